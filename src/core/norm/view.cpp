#include "core/norm/view.h"

#include <cinttypes>
#include <cstdio>

namespace fastnorm {
namespace {

Footprint print_of(const View& v) {
  Footprint f;
  footprint(v.bytes(), v.outer, v.range, &f);
  return f;
}

}  // namespace

Text name_of(const View& v) {
  Text text{};
  if (v.part < 0) {
    std::snprintf(text.c, sizeof text.c, "%s", v.name);
  } else {
    std::snprintf(text.c, sizeof text.c, "parts[%d].%s", v.part, v.name);
  }
  return text;
}

fastnorm_status set_range(View* v, Error& error) {
  FASTNORM_REQUIRE(address_range(v->bytes(), v->outer, &v->range), FASTNORM_ERROR_LAYOUT,
                   "%s's strides reach past the ends of the address space, or over more than 2^62 "
                   "bytes; required: strides in elements of memory that exists",
                   name_of(*v).c);
  return FASTNORM_OK;
}

bool shared_view(const char* name, const fastnorm_tensor& t, View* view) {
  const int64_t bytes = dtype_bytes(dtype_from(t.dtype));
  auto compact = static_cast<uint64_t>(bytes) * static_cast<uint64_t>(t.shape[t.ndim - 1]);
  if (compact == 0) return false;
  *view = {name, false, address_of(t), static_cast<int64_t>(compact)};
  for (int32_t i = 0; i + 1 < t.ndim; ++i) {
    const int32_t dim = t.ndim - 2 - i;
    const int64_t extent = t.shape[dim];
    if (extent == 0) return false;
    view->outer[i] = extent;
    view->strides[i] = extent == 1            ? 0
                       : t.strides != nullptr ? stride_bytes_of(t, dim, bytes)
                                              : static_cast<int64_t>(compact);
    compact *= static_cast<uint64_t>(extent);
  }
  return true;
}

bool same_view(const View& a, const View& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.piece_bytes != b.piece_bytes) return false;
  for (int i = 0; i < kMaxOuter; ++i) {
    if (a.outer[i] != 1 && a.strides[i] != b.strides[i]) return false;
  }
  return true;
}

bool shares_bytes(const View& a, const View& b) {
  return !separate(a.range, b.range) && !disjoint(print_of(a), print_of(b));
}

fastnorm_status check_own_rows(const View& out, Error& error) {
  FASTNORM_REQUIRE(rows_disjoint(print_of(out)), FASTNORM_ERROR_LAYOUT,
                   "%s overlaps itself: its strides are %s bytes for rows of %" PRId64
                   " bytes, innermost first; required: rows of an output that share no byte",
                   name_of(out).c, shape_text(out.strides, kMaxOuter).c, out.piece_bytes);
  return FASTNORM_OK;
}

fastnorm_status check_overlap(const View& out, const View& other, Error& error) {
  FASTNORM_REQUIRE(!shares_bytes(out, other), FASTNORM_ERROR_LAYOUT,
                   "%s [0x%" PRIxPTR ", 0x%" PRIxPTR ") overlaps %s [0x%" PRIxPTR ", 0x%" PRIxPTR
                   "); required: %s, separate memory, or interleaved views that share no element",
                   name_of(out).c, out.range.begin, out.range.end, name_of(other).c,
                   other.range.begin, other.range.end,
                   out.may_be(other) ? "the same view (address, dtype, strides)" : "two tensors");
  return FASTNORM_OK;
}

fastnorm_status check_parts(const char* word, size_t i, std::span<const View> first, size_t j,
                            std::span<const View> second, Error& error) {
  for (const View& a : first) {
    for (const View& b : second) {
      FASTNORM_REQUIRE(
          (!a.output && !b.output) || !shares_bytes(a, b), FASTNORM_ERROR_LAYOUT,
          "%s[%zu].%s [0x%" PRIxPTR ", 0x%" PRIxPTR ") overlaps %s[%zu].%s [0x%" PRIxPTR
          ", 0x%" PRIxPTR "); required: no part touches what another one writes",
          word, i, a.name, a.range.begin, a.range.end, word, j, b.name, b.range.begin, b.range.end);
    }
  }
  return FASTNORM_OK;
}

}  // namespace fastnorm
