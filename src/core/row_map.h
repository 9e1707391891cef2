// Leading dimensions of a set of tensors that share a shape, flattened to rows and folded to as few as their strides allow.
#pragma once

#include <cstdint>
#include <span>

#include "core/norm_desc.h"

namespace fastnorm {

// Folds in place: drops dimensions of extent 1 and joins neighbours wherever every present tensor steps evenly across both.
// `outer` is innermost first. With keep_innermost the innermost dimension stays what it is (it counts heads). Afterwards
// 1 <= rank <= 3 and the unused extents are 1, their strides 0.
void fold_rows(int64_t (&outer)[kMaxOuter], int32_t* rank, std::span<RowTensor* const> tensors,
               bool keep_innermost);

// The bytes that a row tensor touches, as an address range and the steps inside it.
struct Footprint {
  uintptr_t begin = 0;  // least address
  uintptr_t end = 0;    // one past the greatest
  int64_t row_bytes = 0;
  int32_t rank = 0;  // dimensions with more than one index and a stride other than 0
  int64_t stride[kMaxOuter + 1] = {};  // magnitudes in bytes, ascending
  int64_t extent[kMaxOuter + 1] = {};
  bool broadcast = false;  // some dimension has stride 0
};

// False if the range does not fit in the address space.
bool footprint(const RowTensor& tensor, const int64_t (&outer)[kMaxOuter], int64_t row_bytes,
               Footprint* result);

// The same where a row is `count` pieces of `piece_bytes`, `step` bytes apart.
bool footprint(const RowTensor& tensor, const int64_t (&outer)[kMaxOuter], int64_t piece_bytes,
               int64_t count, int64_t step, Footprint* result);

// True if no two rows share a byte, by the sufficient test that each stride spans everything inside it.
bool rows_disjoint(const Footprint& f);

// True if a and b share no byte: separate ranges, or interleaved views (at some level equal strides and disjoint inner spans).
bool disjoint(const Footprint& a, const Footprint& b);

}  // namespace fastnorm
