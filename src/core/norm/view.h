// A tensor of a call as the rules about shared memory see it, in every family.
#pragma once

#include <cstdint>

#include "core/common/error.h"
#include "core/common/schema.h"
#include "core/norm/row_map.h"

namespace fastnorm {

struct View {
  // True if an input and an output of the call may be the same view.
  bool may_be(const View& input) const { return (field->same_view & input.bit) != 0; }

  const char* name;
  const schema::Field* field;
  uint64_t bit;  // of the family's struct; 0 for a field of another one
  bool output;
  Dtype dtype;
  RowBytes bytes;
  AddressRange range;
};

// True if two tensors have the same address, dtype, length and strides. `Desc` has the extents.
template <class Desc>
bool same_view(const View& a, const View& b, const Desc& d) {
  if (a.bytes.data != b.bytes.data || a.dtype != b.dtype ||
      a.bytes.piece_bytes != b.bytes.piece_bytes) {
    return false;
  }
  for (int i = 0; i < d.outer_rank; ++i) {
    if (d.outer[i] != 1 && a.bytes.strides[i] != b.bytes.strides[i]) return false;
  }
  return true;
}

// For tensors whose address ranges meet: true if they still share no byte.
bool interleaved(const View& a, const int64_t (&outer_a)[kMaxOuter], const View& b,
                 const int64_t (&outer_b)[kMaxOuter]);

inline bool shares_bytes(const View& a, const int64_t (&outer_a)[kMaxOuter], const View& b,
                         const int64_t (&outer_b)[kMaxOuter]) {
  return !separate(a.range, b.range) && !interleaved(a, outer_a, b, outer_b);
}

// Fails: the strides of a tensor reach too far.
fastnorm_status refuse_reach(const char* name, Error& error);

// Fails: an output shares bytes with another tensor of its call, which might be the same view.
fastnorm_status refuse_overlap(const View& out, const View& other, Error& error);

// Fails: two parts of a call share bytes of which one writes some.
fastnorm_status refuse_overlap_of_parts(const char* list, size_t i, const View& a, size_t j,
                                        const View& b, Error& error);

}  // namespace fastnorm
