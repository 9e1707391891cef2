// Which tensors of a norm call, or of several, may share memory.
#pragma once

#include <cstddef>
#include <span>

#include "core/common/check.h"
#include "core/norm/desc.h"
#include "core/norm/row_map.h"
#include "core/norm/tensors.h"

namespace fastnorm {

// The bytes of a call's tensors, to ask quickly whether any are shared that must not be. It has no
// names. Inputs come before outputs. If an output overwrites its input, only the output is there.
// Not initialised: collect() sets what counts.
class Touched {
 public:
  static constexpr size_t kMost = kMostNormTensors;

  // False if some bytes do not fit in the address space. Points into `desc`.
  bool collect(const NormDesc& desc);

  // True if no output's address range meets that of another tensor.
  bool apart() const;

  // True if neither of two calls touches what the other one writes. `mine` describes the call of
  // this object.
  bool apart(const NormDesc& mine, const Touched& t, const NormDesc& theirs) const;

 private:
  size_t count_, inputs_;
  RowBytes bytes_[kMost];
  AddressRange range_[kMost];
};

// Checks that no output shares a byte with another tensor, except where the two may be the same
// view. Errors name the tensors. Slower than Touched, which tells when this check is needed.
fastnorm_status check_aliasing(const NormDesc& desc, Error& error);

// Fails: the rows of an output share bytes, or may.
fastnorm_status check_scattered_rows(const char* name, const RowTensor& row, int64_t row_bytes,
                                     const NormDesc& desc, Error& error);

// Checks that an output's rows share no bytes with each other.
FASTNORM_HOT fastnorm_status check_output_rows(const char* name, const RowTensor& row,
                                               int64_t row_bytes, const NormDesc& desc,
                                               Error& error) {
  if (desc.rows <= 1 || rows_follow(row, desc.outer, desc.outer_rank, row_bytes)) {
    return FASTNORM_OK;
  }
  return check_scattered_rows(name, row, row_bytes, desc, error);
}

// Checks that no part of a fastnorm_norm_many touches what another one writes.
fastnorm_status check_norm_many(std::span<const NormDesc> descs, Error& error);

// Checks the calls by what check_norm() found for each of them.
fastnorm_status check_norm_many(std::span<const NormDesc> descs, std::span<const Touched> touched,
                                Error& error);

}  // namespace fastnorm
