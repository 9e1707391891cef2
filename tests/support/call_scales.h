// Where the scales of quantised rows lie: the layouts of random calls, and what a row's should be.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "support/norm_heads_call.h"

namespace fastnorm::support {

// Memory for the scales of quantised rows, of two leading dimensions, in any layout. Sets
// `*layout`.
inline OwnedTensor make_scales(ref::Random& random, const ref::QuantOptions& q, int64_t outer,
                               int64_t inner, int64_t scopes, fastnorm_scale_layout* layout) {
  using ref::Scheme;
  const fastnorm_dtype_id dtype = q.scheme == Scheme::kNvfp4 ? FASTNORM_DTYPE_F8_E4M3FN
                                  : ref::has_scale_bytes(q)  ? FASTNORM_DTYPE_F8_E8M0FNU
                                                             : FASTNORM_DTYPE_F32;
  *layout = FASTNORM_SCALE_ROW_MAJOR;
  if (q.scheme != Scheme::kPerRow && random.one_in(2))
    *layout = random.one_in(2) && ref::has_scale_bytes(q) ? FASTNORM_SCALE_SWIZZLED_128X4
                                                          : FASTNORM_SCALE_COLUMN_MAJOR;
  if (*layout == FASTNORM_SCALE_SWIZZLED_128X4) {
    const int64_t bytes = ref::swizzled_bytes(outer * inner, scopes);
    OwnedTensor t = make_tensor(std::vector<int64_t>{bytes}, dtype);
    // Places of no scale become 0.
    std::fill_n(t->expected.begin() + static_cast<int64_t>(t->first), bytes, uint8_t{0});
    return t;
  }
  if (*layout == FASTNORM_SCALE_COLUMN_MAJOR) {
    OwnedTensor t = make_tensor(std::vector<int64_t>{scopes, outer, inner}, dtype);
    t->shape = {outer, inner, scopes};
    t->strides = {inner, 1, outer * inner};
    t->compact = true;
    return t;
  }
  const std::vector<int64_t> shape = {outer, inner, scopes};
  if (!random.one_in(3)) return make_tensor(shape, dtype, random.below(2));
  OwnedTensor t = make_tensor(std::vector<int64_t>{outer, inner, scopes * 3 + 5}, dtype);
  t->shape = shape;
  t->strides.back() = 3;
  return t;
}

// Expects the scales of row [a, b] of `inner` rows for each a.
inline void expect_scales(const ref::QuantOptions& q, const ref::QuantResult& r, int64_t a,
                          int64_t b, int64_t inner, CallTensor& to) {
  const auto scopes = static_cast<int64_t>(r.scale.size());
  for (int64_t i = 0; i < scopes; ++i) {
    const size_t at = to.shape.size() == 3
                          ? to.place({a, b, i})
                          : to.place({ref::swizzled_index(a * inner + b, i, scopes)});
    if (ref::has_scale_bytes(q)) {
      to.expect_bytes(at, &r.scale_bytes[static_cast<size_t>(i)], 1);
    } else {
      to.expect(at, ref::Type::kF32, &r.scale[static_cast<size_t>(i)], 1);
    }
  }
}

// Draws scale_pow2, amax_floor and the clamp of quantised rows, where `args` is a norm's or a
// part's. Returns the clamp as a value in memory, or null.
template <class Args>
OwnedTensor draw_quant_options(ref::Random& random, ref::QuantOptions* q, Args* args) {
  const bool dynamic = q->scheme == ref::Scheme::kPerRow || q->scheme == ref::Scheme::kPerBlock;
  if (dynamic && q->format != ref::Format::kI8 && random.one_in(2)) {
    q->pow2 = true;
    q->e8m0 = random.one_in(2);
    args->scale_pow2 = 1;
  }
  if (dynamic) q->amax_floor = args->amax_floor = random.of({0.0f, 0.0f, 0x1p-9f, 4.0f});
  if (random.one_in(3)) q->clamp = args->clamp = 1.5f;
  if (q->clamp != 0 || !random.one_in(3)) return nullptr;
  const float given = random.of({1.5f, 0.25f, 1e30f, 0.0f, -0.0f, -1.5f, std::nanf("")});
  q->clamp = given > 0 ? given : 0;
  OwnedTensor t = make_tensor(std::vector<int64_t>{1}, FASTNORM_DTYPE_F32);
  t->set_number(0, given);
  return t;
}

// What a call's text says of its scales.
inline const char* name_of(fastnorm_scale_layout layout) {
  constexpr const char* kNames[] = {"", " by columns", " swizzled"};
  return kNames[static_cast<int>(layout)];
}

}  // namespace fastnorm::support
