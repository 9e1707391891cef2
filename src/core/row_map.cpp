#include "core/row_map.h"

#include <utility>

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

void remove_dimension(int64_t (&outer)[kMaxOuter], int32_t* rank, int d,
                      std::span<RowTensor* const> tensors) {
  for (int i = d; i + 1 < kMaxOuter; ++i) {
    outer[i] = outer[i + 1];
    for (RowTensor* t : tensors) t->stride_bytes[i] = t->stride_bytes[i + 1];
  }
  outer[kMaxOuter - 1] = 1;
  for (RowTensor* t : tensors) t->stride_bytes[kMaxOuter - 1] = 0;
  --*rank;
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
  for (int d = 0; d < kMaxOuter; ++d) {
    if (outer[d] != 1) continue;
    for (RowTensor* t : tensors) t->stride_bytes[d] = 0;
  }
}

bool footprint(const RowTensor& tensor, const int64_t (&outer)[kMaxOuter], int64_t piece_bytes,
               int64_t count, int64_t step, Footprint* result) {
  Footprint f;
  f.row_bytes = piece_bytes;
  int64_t below = 0;            // bytes before the first row's start, negated
  int64_t above = piece_bytes;  // bytes after it
  for (int d = 0; d <= kMaxOuter; ++d) {
    const int64_t extent = d < kMaxOuter ? outer[d] : count;
    const int64_t stride = d < kMaxOuter ? tensor.stride_bytes[d] : step;
    if (extent == 1) continue;
    if (stride == 0) {
      f.broadcast = true;
      continue;
    }
    int64_t reach = 0;
    if (__builtin_mul_overflow(stride, extent - 1, &reach)) return false;
    if (__builtin_add_overflow(reach < 0 ? below : above, reach, reach < 0 ? &below : &above)) {
      return false;
    }
    if (stride == INT64_MIN) return false;
    f.stride[f.rank] = stride < 0 ? -stride : stride;
    f.extent[f.rank++] = extent;
  }
  for (int i = 1; i < f.rank; ++i) {  // at most four
    for (int j = i; j > 0 && f.stride[j] < f.stride[j - 1]; --j) {
      std::swap(f.stride[j], f.stride[j - 1]);
      std::swap(f.extent[j], f.extent[j - 1]);
    }
  }
  const uintptr_t base = reinterpret_cast<uintptr_t>(tensor.data);
  const uintptr_t down = uintptr_t{0} - static_cast<uintptr_t>(below);
  if (down > base) return false;
  f.begin = base - down;
  if (__builtin_add_overflow(base, static_cast<uintptr_t>(above), &f.end)) return false;
  *result = f;
  return true;
}

bool footprint(const RowTensor& tensor, const int64_t (&outer)[kMaxOuter], int64_t row_bytes,
               Footprint* result) {
  return footprint(tensor, outer, row_bytes, 1, 0, result);
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
  if (a.end <= b.begin || b.end <= a.begin) return true;
  int ia = a.rank - 1, ib = b.rank - 1;
  auto span_a = static_cast<int64_t>(a.end - a.begin),
       span_b = static_cast<int64_t>(b.end - b.begin);
  const auto delta = static_cast<int64_t>(b.begin) - static_cast<int64_t>(a.begin);
  while (ia >= 0 && ib >= 0 && a.stride[ia] == b.stride[ib]) {
    const int64_t stride = a.stride[ia];
    span_a -= stride * (a.extent[ia] - 1);
    span_b -= stride * (b.extent[ib] - 1);
    if (span_a > stride || span_b > stride) return false;
    // Both repeat every `stride` bytes: apart for all indices if they are apart within one period.
    const int64_t phase = ((delta % stride) + stride) % stride;
    if (phase >= span_a && phase + span_b <= stride) return true;
    // Otherwise rows of different index are apart if one period holds both; then look further inside.
    const int64_t low = delta < 0 ? delta : 0;
    const int64_t high = delta + span_b > span_a ? delta + span_b : span_a;
    if (high - low > stride) return false;
    --ia, --ib;
  }
  const int64_t low_b = delta, high_b = delta + span_b;
  return high_b <= 0 || low_b >= span_a;
}

}  // namespace fastnorm
