// Which tensors of a norm call, or of several, may share memory.
#pragma once

#include <cstddef>
#include <span>

#include "core/check.h"
#include "core/norm_desc.h"
#include "core/row_map.h"

namespace fastnorm {

// The bytes of a call's tensors, for the question whether some are shared that may not be, where yes or no is enough: no names, inputs
// before outputs, and of a tensor that is changed in place the output alone. Not initialised: collect() sets what counts.
class Touched {
 public:
  static constexpr size_t kMost = 29;  // tensors of a call

  // False if some bytes do not fit in the address space. Points into `desc`.
  bool collect(const NormDesc& desc);

  // True if no output's address range meets that of another tensor.
  bool apart() const;

  // True if neither of two calls, of which this is the one that `mine` describes, touches what the other one writes.
  bool apart(const NormDesc& mine, const Touched& t, const NormDesc& theirs) const;

 private:
  size_t count_, inputs_;
  RowBytes bytes_[kMost];
  AddressRange range_[kMost];
};

// Checks that no output of a call shares a byte with another tensor, but where it may be the same view. With the names of those that
// do: longer than Touched, which says whether this is to be asked.
fastnorm_status check_aliasing(const NormDesc& desc, Error& error);

// The rows of an output share bytes, or may.
fastnorm_status check_scattered_rows(const char* name, const RowTensor& row, int64_t row_bytes,
                                     const NormDesc& desc, Error& error);

// An output's rows must not share bytes among themselves.
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

// The same with what check_norm() found of each.
fastnorm_status check_norm_many(std::span<const NormDesc> descs, std::span<const Touched> touched,
                                Error& error);

}  // namespace fastnorm
