// Leading dimensions of tensors that share a shape: flattened to rows, and folded to as few as
// their strides allow.
#pragma once

#include <cstdint>
#include <span>

#include "core/norm/desc.h"

namespace fastnorm {

// Folds in place. Drops dimensions of extent 1, and joins neighbours if every tensor steps evenly
// across both. `outer` is innermost first. With keep_innermost the innermost dimension stays,
// because it counts heads. Afterwards 1 <= rank <= 3; unused extents are 1, and their strides 0.
void fold_rows(int64_t (&outer)[kMaxOuter], int32_t* rank, std::span<RowTensor* const> tensors,
               bool keep_innermost);

// False if fold_rows() would change nothing: no dimension has one index, and no two of this tensor
// join.
inline bool may_fold(const int64_t (&outer)[kMaxOuter], int32_t rank, const RowTensor& tensor) {
  if (outer[0] == 1) return true;
  for (int d = 1; d < rank; ++d) {
    const uint64_t step =
        static_cast<uint64_t>(tensor.stride_bytes[d - 1]) * static_cast<uint64_t>(outer[d - 1]);
    if (outer[d] == 1 || static_cast<uint64_t>(tensor.stride_bytes[d]) == step) return true;
  }
  return false;
}

// Where a tensor's bytes are: rows, and pieces at equal steps in each row. Offsets are those of
// RowTensor.
struct RowBytes {
  const std::byte* data;
  const int64_t* strides;  // kMaxOuter strides from row to row
  int64_t piece_bytes;
  int64_t pieces;  // of a row
  int64_t step;    // from one piece to the next
};

struct AddressRange {
  uintptr_t begin;  // lowest address
  uintptr_t end;    // one past the highest
};

// An address range and the steps inside it. Not initialised: footprint() sets what counts.
struct Footprint : AddressRange {
  int64_t row_bytes;
  int32_t rank;                   // dimensions with more than one index and a stride that is not 0
  bool broadcast;                 // some dimension has stride 0
  int64_t stride[kMaxOuter + 1];  // `rank` magnitudes in bytes, ascending
  int64_t extent[kMaxOuter + 1];
};

// Adds the bytes that a dimension reaches before and behind the first piece. False on overflow.
inline bool reach(int64_t extent, int64_t stride, int64_t* before, int64_t* behind) {
  int64_t last = 0;
  if (__builtin_mul_overflow(stride, extent - 1, &last)) return false;
  if (last >= 0) return !__builtin_add_overflow(*behind, last, behind);
  return stride != INT64_MIN && !__builtin_add_overflow(*before, last, before);
}

// The limit of a tensor's span. No machine has more, and sums of two spans fit in 64 bits with
// their sign.
inline constexpr uint64_t kMostSpan = uint64_t{1} << 62;

// False if the range does not fit in the address space, or is longer than kMostSpan. The first
// `rank` extents of `outer` count; the others are 1. Inline, because every call asks it for every
// tensor.
inline bool address_range(const RowBytes& bytes, const int64_t (&outer)[kMaxOuter],
                          AddressRange* result, int32_t rank = kMaxOuter) {
  int64_t before = 0;  // bytes before the first row's start, negative
  int64_t behind = bytes.piece_bytes;
  for (int d = 0; d < rank; ++d) {
    if (!reach(outer[d], bytes.strides[d], &before, &behind)) return false;
  }
  if (!reach(bytes.pieces, bytes.step, &before, &behind)) return false;
  const uintptr_t base = reinterpret_cast<uintptr_t>(bytes.data);
  const uintptr_t down = uintptr_t{0} - static_cast<uintptr_t>(before);
  if (down > base || down + static_cast<uintptr_t>(behind) > kMostSpan) return false;
  result->begin = base - down;
  return !__builtin_add_overflow(base, static_cast<uintptr_t>(behind), &result->end);
}

bool footprint(const RowBytes& bytes, const int64_t (&outer)[kMaxOuter], Footprint* result);

// The footprint of bytes whose range is known.
void footprint(const RowBytes& bytes, const int64_t (&outer)[kMaxOuter], const AddressRange& range,
               Footprint* result);

// The footprint of rows that are one piece each.
bool footprint(const RowTensor& tensor, const int64_t (&outer)[kMaxOuter], int64_t row_bytes,
               Footprint* result);

// True if each dimension's stride is at least as long as all inside it, and the end is a valid
// address. Then the rows share no byte. footprint() and rows_disjoint() decide the other cases.
inline bool rows_follow(const RowTensor& tensor, const int64_t (&outer)[kMaxOuter], int32_t rank,
                        int64_t row_bytes) {
  int64_t span = row_bytes;
  for (int d = 0; d < rank; ++d) {
    if (outer[d] == 1) continue;
    int64_t last = 0;
    if (tensor.stride_bytes[d] < span ||
        __builtin_mul_overflow(tensor.stride_bytes[d], outer[d] - 1, &last) ||
        __builtin_add_overflow(span, last, &span)) {
      return false;
    }
  }
  uintptr_t end = 0;
  return !__builtin_add_overflow(reinterpret_cast<uintptr_t>(tensor.data),
                                 static_cast<uintptr_t>(span), &end);
}

// True if no two rows share a byte. A sufficient test: each stride spans everything inside it.
bool rows_disjoint(const Footprint& f);

// True if the ranges do not meet. This test separates most tensors.
inline bool separate(const AddressRange& a, const AddressRange& b) {
  return a.end <= b.begin || b.end <= a.begin;
}

// True if two tensors with two indices repeat at the same distance and each lies in the gaps of the
// other. Query and key heads of a fused tensor do. Their ranges are those of address_range(). Then
// they share no byte. disjoint() decides the other cases.
inline bool take_turns(const RowBytes& a, const int64_t (&outer_a)[kMaxOuter], const RowBytes& b,
                       const int64_t (&outer_b)[kMaxOuter]) {
  const int64_t period = a.strides[1];
  if (b.strides[1] != period || period < 0 || a.strides[0] < 0 || b.strides[0] < 0 ||
      outer_a[2] != 1 || outer_b[2] != 1 || a.pieces != 1 || b.pieces != 1) {
    return false;
  }
  const auto span = [](const RowBytes& bytes, int64_t extent) {
    return static_cast<uint64_t>(bytes.strides[0] * (extent - 1) + bytes.piece_bytes);
  };
  const auto in_gaps = [&](uintptr_t ahead, uint64_t span_first, uint64_t span_second) {
    return ahead >= span_first && ahead + span_second <= static_cast<uint64_t>(period);
  };
  const auto begin_a = reinterpret_cast<uintptr_t>(a.data),
             begin_b = reinterpret_cast<uintptr_t>(b.data);
  const uint64_t span_a = span(a, outer_a[0]), span_b = span(b, outer_b[0]);
  return begin_a <= begin_b ? in_gaps(begin_b - begin_a, span_a, span_b)
                            : in_gaps(begin_a - begin_b, span_b, span_a);
}

// True if a and b, whose ranges address_range() gave, share no byte. Their ranges are separate, or
// they interleave: equal strides at some level, and disjoint spans inside.
bool disjoint(const Footprint& a, const Footprint& b);

// For bytes whose address ranges meet: true if they still share none.
bool interleaved(const RowBytes& a, const int64_t (&outer_a)[kMaxOuter],
                 const AddressRange& range_a, const RowBytes& b,
                 const int64_t (&outer_b)[kMaxOuter], const AddressRange& range_b);

}  // namespace fastnorm
