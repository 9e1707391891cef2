// Which tensors of a backward call, or of several, may share memory.
#include "core/norm/view.h"
#include "core/norm_backward/check.h"
#include "core/norm_backward/view.h"

namespace fastnorm {
namespace {

using BackwardViews = Views<kMostBackwardTensors>;

// Adds all tensors.
fastnorm_status collect(const NormBackwardDesc& d, BackwardViews* views, Error& error) {
  fastnorm_status status = FASTNORM_OK;
  for_each_backward_tensor(d, [&](auto of, const auto& t) {
    using Of = decltype(of);
    if (!t) return true;
    View v = view_of(d, of, t);
    v.field = &Of::kField;
    v.bit = Of::kBit;
    status = views->add(v, error);
    return status == FASTNORM_OK;
  });
  return status;
}

// An output's rows must not share bytes among themselves. Those of a parameter are as many as it
// has strides.
fastnorm_status check_output_rows(View v, Error& error) {
  for (int i = 0; i < kMaxOuter; ++i) {
    if (v.field->role == schema::Role::kWeightOut && v.strides[i] == 0) v.outer[i] = 1;
  }
  return check_own_rows(v, error);
}

}  // namespace

fastnorm_status check_norm_backward_aliasing(NormBackwardDesc* whole, Error& error) {
  BackwardViews views;
  FASTNORM_TRY(collect(*whole, &views, error));
  for (const View& out : views.all()) {
    if (!out.output) continue;
    FASTNORM_TRY(check_output_rows(out, error));
    for (const View& other : views.all()) {
      if (&other >= &out) break;
      if (out.may_be(other) && same_view(out, other)) {
        whole->in_place = true;
      } else {
        FASTNORM_TRY(check_overlap(out, other, error));
      }
    }
  }
  return FASTNORM_OK;
}

fastnorm_status check_norm_backward_many(std::span<const NormBackwardDesc> wholes, const char* word,
                                         Error& error) {
  for (size_t i = 0; i < wholes.size(); ++i) {
    BackwardViews a;
    FASTNORM_TRY(collect(wholes[i], &a, error));
    for (size_t j = i + 1; j < wholes.size(); ++j) {
      BackwardViews b;
      FASTNORM_TRY(collect(wholes[j], &b, error));
      FASTNORM_TRY(check_parts(word, i, a.all(), j, b.all(), error));
    }
  }
  return FASTNORM_OK;
}

}  // namespace fastnorm
