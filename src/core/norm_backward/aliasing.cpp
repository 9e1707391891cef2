// Which tensors of a backward call, or of several, may share memory.
#include <cinttypes>

#include "core/norm/view.h"
#include "core/norm_backward/check.h"
#include "core/norm_backward/tensors.h"

namespace fastnorm {
namespace {

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
  if (out.may_be(other) && same_view(out, other, *d)) {
    d->in_place = true;
    return FASTNORM_OK;
  }
  return shares_bytes(out, d->outer, other, d->outer) ? refuse_overlap(out, other, error)
                                                      : FASTNORM_OK;
}

}  // namespace

fastnorm_status check_norm_backward_aliasing(NormBackwardDesc* whole, Error& error) {
  Views views(*whole);
  if (!views.collect()) return refuse_reach(views.all().back().name, error);
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
          if ((va.output || vb.output) && shares_bytes(va, a.of().outer, vb, b.of().outer))
            return refuse_overlap_of_parts(word, i, va, j, vb, error);
        }
      }
    }
  }
  return FASTNORM_OK;
}

}  // namespace fastnorm
