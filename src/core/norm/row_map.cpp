#include "core/norm/row_map.h"

namespace fastnorm {
namespace {

// True if dimension d + 1 continues where dimension d ends, in every tensor.
bool joins(int64_t extent, int d, std::span<RowTensor* const> tensors) {
  for (const RowTensor* t : tensors) {
    int64_t step = 0;
    if (__builtin_mul_overflow(t->stride_bytes[d], extent, &step)) return false;
    if (*t && t->stride_bytes[d + 1] != step) return false;
  }
  return true;
}

// clear_unused() takes care of what is beyond the last dimension.
void remove_dimension(int64_t (&outer)[kMaxOuter], int32_t* rank, int d,
                      std::span<RowTensor* const> tensors) {
  --*rank;
  for (int i = d; i < *rank; ++i) {
    outer[i] = outer[i + 1];
    for (RowTensor* t : tensors) t->stride_bytes[i] = t->stride_bytes[i + 1];
  }
  outer[*rank] = 1;
}

// A dimension with one index has no stride.
void clear_unused(const int64_t (&outer)[kMaxOuter], std::span<RowTensor* const> tensors) {
  for (int d = 0; d < kMaxOuter; ++d) {
    if (outer[d] != 1) continue;
    for (RowTensor* t : tensors) t->stride_bytes[d] = 0;
  }
}

// Inserts a dimension by its stride among those that are there, at most four.
void add_dimension(int64_t extent, int64_t stride, Footprint* f) {
  if (extent == 1) return;
  if (stride == 0) {
    f->broadcast = true;
    return;
  }
  const int64_t magnitude = stride < 0 ? -stride : stride;
  int at = f->rank++;
  for (; at > 0 && magnitude < f->stride[at - 1]; --at) {
    f->stride[at] = f->stride[at - 1];
    f->extent[at] = f->extent[at - 1];
  }
  f->stride[at] = magnitude;
  f->extent[at] = extent;
}

}  // namespace

void fold_rows(int64_t (&outer)[kMaxOuter], int32_t* rank, std::span<RowTensor* const> tensors,
               bool keep_innermost) {
  const int first = keep_innermost ? 1 : 0;
  for (int d = *rank - 1; d >= first; --d) {
    if (outer[d] == 1) remove_dimension(outer, rank, d, tensors);
  }
  for (int d = *rank - 2; d >= first; --d) {
    if (!joins(outer[d], d, tensors)) continue;
    outer[d + 1] *= outer[d];
    for (RowTensor* t : tensors) t->stride_bytes[d + 1] = t->stride_bytes[d];
    remove_dimension(outer, rank, d, tensors);
  }
  if (*rank < 1) *rank = 1;
  clear_unused(outer, tensors);
}

bool footprint(const RowBytes& bytes, const int64_t (&outer)[kMaxOuter], Footprint* result) {
  AddressRange range;
  if (!address_range(bytes, outer, &range)) return false;
  footprint(bytes, outer, range, result);
  return true;
}

void footprint(const RowBytes& bytes, const int64_t (&outer)[kMaxOuter], const AddressRange& range,
               Footprint* result) {
  result->begin = range.begin;
  result->end = range.end;
  result->row_bytes = bytes.piece_bytes;
  result->rank = 0;
  result->broadcast = false;
  for (int d = 0; d < kMaxOuter; ++d) add_dimension(outer[d], bytes.strides[d], result);
  add_dimension(bytes.pieces, bytes.step, result);
}

bool footprint(const RowTensor& tensor, const int64_t (&outer)[kMaxOuter], int64_t row_bytes,
               Footprint* result) {
  return footprint({tensor.data, tensor.stride_bytes, row_bytes, 1, 0}, outer, result);
}

bool rows_disjoint(const Footprint& f) {
  if (f.broadcast) return false;
  int64_t span = f.row_bytes;
  for (int d = 0; d < f.rank; ++d) {
    if (f.stride[d] < span) return false;
    span += f.stride[d] * (f.extent[d] - 1);
  }
  return true;
}

bool disjoint(const Footprint& a, const Footprint& b) {
  if (separate(a, b)) return true;
  int ia = a.rank - 1, ib = b.rank - 1;
  auto span_a = static_cast<int64_t>(a.end - a.begin),
       span_b = static_cast<int64_t>(b.end - b.begin);
  auto delta = static_cast<int64_t>(b.begin - a.begin);  // the ranges meet: less than a span
  while (ia >= 0 && ib >= 0 && a.stride[ia] == b.stride[ib]) {
    const int64_t stride = a.stride[ia];
    span_a -= stride * (a.extent[ia] - 1);
    span_b -= stride * (b.extent[ib] - 1);
    if (span_a > stride || span_b > stride) return false;
    // Both repeat every `stride` bytes. They are apart for all indices if they are apart within one
    // period.
    const int64_t remainder = delta % stride,
                  phase = remainder < 0 ? remainder + stride : remainder;
    if (phase >= span_a && phase + span_b <= stride) return true;
    // Otherwise only bytes of one period can meet, or those of b with the next period of a. Then
    // look further inside.
    if (phase + span_b <= stride) {
      delta = phase;
    } else if (phase >= span_a) {
      delta = phase - stride;
    } else {
      return false;
    }
    --ia, --ib;
  }
  const int64_t low_b = delta, high_b = delta + span_b;
  return high_b <= 0 || low_b >= span_a;
}

bool interleaved(const RowBytes& a, const int64_t (&outer_a)[kMaxOuter],
                 const AddressRange& range_a, const RowBytes& b,
                 const int64_t (&outer_b)[kMaxOuter], const AddressRange& range_b) {
  Footprint print_a, print_b;
  footprint(a, outer_a, range_a, &print_a);
  footprint(b, outer_b, range_b, &print_b);
  return disjoint(print_a, print_b);
}

}  // namespace fastnorm
