// One backward pass in canonical form: what the checks make of the caller's tensors, for planning,
// kernels and tests. Rows are flattened, leading dimensions joined, strides in bytes, defaults
// filled in.
//
// Rows that share a row of the weight have consecutive numbers. Row r is number r % shared_rows of
// those that share weight row r / shared_rows. That number counts in the caller's row-major order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/common/dtype.h"
#include "core/common/rope_desc.h"
#include "core/norm/desc.h"
#include "fastnorm/norm_backward.h"

namespace fastnorm {

// weight, dweight or dbias: a row of n elements for each group of rows.
struct ParameterTensor {
  std::byte* data = nullptr;  // nullptr = absent
  int64_t stride_bytes[kMaxOuter] =
      {};  // by the digits of a row's number; 0 for those inside a group
  Dtype dtype = Dtype::kUnknown;

  explicit operator bool() const { return data != nullptr; }
};

// The sums over rows that a call may want.
inline constexpr int kBackwardSums = 5;

// Rows that are heads of tokens: dy is rotated back before the norm's gradient.
struct NormBackwardHeads {
  int64_t heads = 0;          // of a token; 0: rows are not heads
  bool normalise = true;      // otherwise dx is the rotated dy, and x is dy
  bool across_heads = false;  // one statistic, c1 and c2 for all heads of a token
  bool rope = false;
  bool interleaved = false;
  bool inverse = false;  // of the forward
  int64_t rope_offset = 0;
  RowTensor token, head;  // strides of a token and of a head for each digit of a row's number
  RopeTables tables;

  // True if norm_backward's own kernels do not support it.
  bool needs_own_kernels() const { return heads != 0 && (rope || across_heads || !normalise); }
};

// The forward's gate.
struct NormBackwardGate {
  RowTensor gate, dgate;
  ParameterTensor bias;  // the forward's, for dgate; absent: 0
  fastnorm_activation act = FASTNORM_ACTIVATION_IDENTITY;
  bool before = false;        // it multiplies x
  bool round_result = false;  // what it multiplies after the norm is rounded to T
  bool present = false;       // also of a call without rows, whose tensors have no addresses
};

// The forward's addition of a branch to a residual. x is its stored residual_out.
struct NormBackwardBranch {
  RowTensor branch, dbranch;  // rows of n elements of T
  RowTensor mean, rstd;       // of the branch; rstd absent: both are computed again
  ParameterTensor weight;     // absent: 1
  ParameterTensor bias;       // the forward's, for dresidual_gate; absent: 0
  ParameterTensor residual_gate;
  ParameterTensor dweight, dbias, dresidual_gate;
  const std::byte* sum_scale = nullptr;  // f32; nullptr: 1
  fastnorm_norm_kind kind = FASTNORM_NORM_RMS;
  fastnorm_rounding rounding = FASTNORM_ROUND_ONCE;  // as NormBackwardDesc's
  float eps = 0;
  float weight_offset = 0;
  float alpha = 1;
  fastnorm_activation act = FASTNORM_ACTIVATION_IDENTITY;
  bool normalise = false;     // branch_norm
  bool round_result = false;  // what is added is rounded to T
  bool accumulate_dweight = false, accumulate_dbias = false, accumulate_dresidual_gate = false;
  bool present = false;  // something of it is wanted; also of a call without rows

  bool has_sums() const { return dweight || dbias || dresidual_gate; }
  // True if the rows of the branch are normalised for an output.
  bool needs_norm() const { return normalise && present && (dbranch || dweight || dresidual_gate); }
};

struct NormBackwardDesc {
  int64_t rows = 0;  // shared_rows * groups
  int64_t n = 0;
  int64_t shared_rows = 0;               // M: rows that share a row of the weight
  int64_t groups = 1;                    // rows of the weight
  int32_t outer_rank = 1;                // digits of a row's number in use, 1 to 3
  int32_t shared_rank = 1;               // how many of them number rows of one group
  int64_t outer[kMaxOuter] = {1, 1, 1};  // their extents, the fastest first; the product is rows
  Dtype dtype = Dtype::kF32;             // T: of the forward's x, and of dx
  fastnorm_norm_kind kind = FASTNORM_NORM_RMS;
  fastnorm_rounding rounding =
      FASTNORM_ROUND_ONCE;  // never ONCE_RW, nor NORMALIZED for f32: the same
  float eps = 0;
  float weight_offset = 0;
  float inv_n = 0;                // f32(1 / f32(n))
  uint32_t flags = 0;             // fastnorm_norm_backward_flags
  void* parallel_user = nullptr;  // of the caller's parallel loop; nullptr = the context's
  bool accumulate_dweight = false;
  bool accumulate_dbias = false;
  bool in_place = false;         // dx or dresidual is dy, x or dresidual_in
  int64_t dy_element_bytes = 0;  // from an element of dy to the next; 0: a row is one element
  RowTensor dy, x,
      dresidual_in;         // rows of n elements; x.dtype decides the order of sums along a row
  RowTensor mean, rstd;     // f32, one value a row; rstd absent: both are computed again
  RowTensor dx, dresidual;  // rows of n elements
  ParameterTensor weight;   // absent: 1
  ParameterTensor dweight, dbias;
  NormBackwardGate gate;
  NormBackwardBranch branch;
  NormBackwardHeads of_heads;

  bool has_sums() const { return dweight || dbias || branch.has_sums(); }
  // True if a row's statistics are needed.
  bool needs_statistics() const { return (needs_gradient() || dweight) && of_heads.normalise; }
  // True if there is an output for each row.
  bool writes_rows() const { return dx || gate.dgate || branch.dbranch; }
  // True if dh is needed.
  bool needs_gradient() const { return writes_rows() || branch.has_sums(); }
};

// They, dweight first. Absent ones are not wanted.
inline std::array<const ParameterTensor*, kBackwardSums> sums_of(const NormBackwardDesc& d) {
  return {&d.dweight, &d.dbias, &d.branch.dweight, &d.branch.dbias, &d.branch.dresidual_gate};
}
inline int count_sums(const NormBackwardDesc& d) {
  int count = 0;
  for (const ParameterTensor* sum : sums_of(d)) count += *sum ? 1 : 0;
  return count;
}

// A call as backends run it: one part, or several in order if its sums have different groups. All
// but the last one then compute sums alone, before the last one may overwrite dy. If there are no
// rows, a part has shared_rows 0.
struct NormBackwardParts {
  int32_t count = 0;
  NormBackwardDesc at[kBackwardSums];
};

}  // namespace fastnorm
