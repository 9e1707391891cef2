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

// Where the bytes of a tensor are: rows, and in each row pieces at even steps. Offsets are those of RowTensor.
struct RowBytes {
  const std::byte* data;
  const int64_t* strides;  // kMaxOuter of them, from row to row
  int64_t piece_bytes;
  int64_t pieces;  // of a row
  int64_t step;    // from a piece to the next
};

struct AddressRange {
  uintptr_t begin;  // least address
  uintptr_t end;    // one past the greatest
};

// An address range and the steps inside it. Not initialised: footprint() sets what counts.
struct Footprint : AddressRange {
  int64_t row_bytes;
  int32_t rank;                   // dimensions with more than one index and a stride other than 0
  bool broadcast;                 // some dimension has stride 0
  int64_t stride[kMaxOuter + 1];  // `rank` magnitudes in bytes, ascending
  int64_t extent[kMaxOuter + 1];
};

// False if the range does not fit in the address space.
bool address_range(const RowBytes& bytes, const int64_t (&outer)[kMaxOuter], AddressRange* result);
bool footprint(const RowBytes& bytes, const int64_t (&outer)[kMaxOuter], Footprint* result);

// Where the range is known already.
void footprint(const RowBytes& bytes, const int64_t (&outer)[kMaxOuter], const AddressRange& range,
               Footprint* result);

// Where a row is one piece.
bool footprint(const RowTensor& tensor, const int64_t (&outer)[kMaxOuter], int64_t row_bytes,
               Footprint* result);

// True if no two rows share a byte, by the sufficient test that each stride spans everything inside it.
bool rows_disjoint(const Footprint& f);

// True if the ranges do not meet: what tells most tensors apart.
inline bool separate(const AddressRange& a, const AddressRange& b) {
  return a.end <= b.begin || b.end <= a.begin;
}

// True if a and b share no byte: separate ranges, or interleaved views (at some level equal strides and disjoint inner spans).
bool disjoint(const Footprint& a, const Footprint& b);

}  // namespace fastnorm
