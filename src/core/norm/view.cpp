#include "core/norm/view.h"

#include <cinttypes>

namespace fastnorm {

bool interleaved(const View& a, const int64_t (&outer_a)[kMaxOuter], const View& b,
                 const int64_t (&outer_b)[kMaxOuter]) {
  return interleaved(a.bytes, outer_a, a.range, b.bytes, outer_b, b.range);
}

fastnorm_status refuse_reach(const char* name, Error& error) {
  return error.set(FASTNORM_ERROR_LAYOUT,
                   "%s's strides reach past the ends of the address space, or over more than 2^62 "
                   "bytes; required: strides in elements of memory that exists",
                   name);
}

fastnorm_status refuse_overlap(const View& out, const View& other, Error& error) {
  return error.set(FASTNORM_ERROR_LAYOUT,
                   "%s [0x%" PRIxPTR ", 0x%" PRIxPTR ") overlaps %s [0x%" PRIxPTR ", 0x%" PRIxPTR
                   "); required: %s, separate memory, or interleaved views that share no element",
                   out.name, out.range.begin, out.range.end, other.name, other.range.begin,
                   other.range.end,
                   out.may_be(other) ? "the same view (address, dtype, strides)" : "two tensors");
}

fastnorm_status refuse_overlap_of_parts(const char* list, size_t i, const View& a, size_t j,
                                        const View& b, Error& error) {
  return error.set(FASTNORM_ERROR_LAYOUT,
                   "%s[%zu].%s [0x%" PRIxPTR ", 0x%" PRIxPTR ") overlaps %s[%zu].%s [0x%" PRIxPTR
                   ", 0x%" PRIxPTR "); required: no part touches what another one writes",
                   list, i, a.name, a.range.begin, a.range.end, list, j, b.name, b.range.begin,
                   b.range.end);
}

}  // namespace fastnorm
