// Which tensors of a backward call, or of several, may share memory.
#include <cinttypes>

#include "core/norm_backward_check.h"
#include "core/norm_backward_tensors.h"
#include "core/row_map.h"

namespace fastnorm {
namespace {

// A tensor of a call as the aliasing rules see it.
struct View {
  // True if an input and an output may be the same view.
  bool may_be(const View& input) const { return (field->same_view & input.bit) != 0; }

  const char* name;
  const schema::Field* field;
  uint64_t bit;
  bool output;
  Dtype dtype;
  RowBytes bytes;
  AddressRange range;
};

class Views {
 public:
  explicit Views(const NormBackwardDesc& d) : d_(d) {}

  // All tensors; where it gives false, the last view's bytes do not fit in the address space.
  bool collect() {
    return for_each_backward_tensor(d_, [&](auto of, const auto& t) {
      using Of = decltype(of);
      if (!t) return true;
      static constexpr int64_t kNoStrides[kMaxOuter] = {};
      View& v = view_[count_++];
      v = {Of::kField.path, &Of::kField, Of::kBit, Of::kOutput, Dtype::kF32, {}, {}};
      const int64_t bytes = row_bytes_of(d_, of, t);
      if constexpr (kHasStrides<std::remove_cvref_t<decltype(t)>>) {
        v.dtype = t.dtype;
        v.bytes = {t.data, t.stride_bytes, bytes, 1, 0};
      } else {
        v.bytes = {t, kNoStrides, bytes, 1, 0};
      }
      return address_range(v.bytes, d_.outer, &v.range);
    });
  }

  std::span<const View> all() const { return {view_, count_}; }
  const NormBackwardDesc& of() const { return d_; }

 private:
  const NormBackwardDesc& d_;
  size_t count_ = 0;
  View view_[kMostBackwardTensors];
};

bool same_view(const View& a, const View& b, const NormBackwardDesc& d) {
  if (a.bytes.data != b.bytes.data || a.dtype != b.dtype ||
      a.bytes.piece_bytes != b.bytes.piece_bytes) {
    return false;
  }
  for (int i = 0; i < d.outer_rank; ++i) {
    if (d.outer[i] != 1 && a.bytes.strides[i] != b.bytes.strides[i]) return false;
  }
  return true;
}

// Two tensors whose address ranges meet.
bool interleaved(const View& a, const NormBackwardDesc& of_a, const View& b,
                 const NormBackwardDesc& of_b) {
  Footprint fa, fb;
  footprint(a.bytes, of_a.outer, a.range, &fa);
  footprint(b.bytes, of_b.outer, b.range, &fb);
  return disjoint(fa, fb);
}

bool shares_bytes(const View& a, const NormBackwardDesc& of_a, const View& b,
                  const NormBackwardDesc& of_b) {
  return !separate(a.range, b.range) && !interleaved(a, of_a, b, of_b);
}

// An output's rows must not share bytes among themselves. Those of a parameter are as many as it
// has strides.
fastnorm_status check_output_rows(const View& v, const NormBackwardDesc& d, Error& error) {
  int64_t outer[kMaxOuter];
  for (int i = 0; i < kMaxOuter; ++i)
    outer[i] =
        v.field->role == schema::Role::kWeightOut && v.bytes.strides[i] == 0 ? 1 : d.outer[i];
  Footprint f;
  FASTNORM_REQUIRE(footprint(v.bytes, outer, &f) && rows_disjoint(f), FASTNORM_ERROR_LAYOUT,
                   "%s overlaps itself: its strides are %s bytes for rows of %" PRId64
                   " bytes, innermost first; required: rows of an output that share no byte",
                   v.name, shape_text(v.bytes.strides, d.outer_rank).c, v.bytes.piece_bytes);
  return FASTNORM_OK;
}

fastnorm_status check_overlap(const View& out, const View& other, NormBackwardDesc* d,
                              Error& error) {
  const bool pair = out.may_be(other);
  if (pair && same_view(out, other, *d)) {
    d->in_place = true;
    return FASTNORM_OK;
  }
  FASTNORM_REQUIRE(!shares_bytes(out, *d, other, *d), FASTNORM_ERROR_LAYOUT,
                   "%s [0x%" PRIxPTR ", 0x%" PRIxPTR ") overlaps %s [0x%" PRIxPTR ", 0x%" PRIxPTR
                   "); required: %s, separate memory, or interleaved views that share no element",
                   out.name, out.range.begin, out.range.end, other.name, other.range.begin,
                   other.range.end,
                   pair ? "the same view (address, dtype, strides)" : "two tensors");
  return FASTNORM_OK;
}

}  // namespace

fastnorm_status check_norm_backward_aliasing(NormBackwardDesc* whole, Error& error) {
  Views views(*whole);
  FASTNORM_REQUIRE(views.collect(), FASTNORM_ERROR_LAYOUT,
                   "%s's strides reach past the ends of the address space, or over more than 2^62 "
                   "bytes; required: strides in elements of memory that exists",
                   views.all().back().name);
  for (const View& out : views.all()) {
    if (!out.output) continue;
    FASTNORM_TRY(check_output_rows(out, *whole, error));
    for (const View& other : views.all()) {
      if (&other >= &out) break;
      FASTNORM_TRY(check_overlap(out, other, whole, error));
    }
  }
  return FASTNORM_OK;
}

fastnorm_status check_norm_backward_many(std::span<const NormBackwardDesc> wholes, const char* word,
                                         Error& error) {
  for (size_t i = 0; i < wholes.size(); ++i) {
    Views a(wholes[i]);
    a.collect();  // checked alone before, so its bytes exist
    for (size_t j = i + 1; j < wholes.size(); ++j) {
      Views b(wholes[j]);
      b.collect();
      for (const View& va : a.all()) {
        for (const View& vb : b.all()) {
          FASTNORM_REQUIRE((!va.output && !vb.output) || !shares_bytes(va, a.of(), vb, b.of()),
                           FASTNORM_ERROR_LAYOUT,
                           "%s[%zu].%s [0x%" PRIxPTR ", 0x%" PRIxPTR
                           ") overlaps %s[%zu].%s [0x%" PRIxPTR ", 0x%" PRIxPTR
                           "); required: no part touches what another one writes",
                           word, i, va.name, va.range.begin, va.range.end, word, j, vb.name,
                           vb.range.begin, vb.range.end);
        }
      }
    }
  }
  return FASTNORM_OK;
}

}  // namespace fastnorm
