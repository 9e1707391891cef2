#include "core/norm/shape.h"

#include <cinttypes>

#include "core/common/check.h"

namespace fastnorm {
namespace {

// Whether `t` begins with x.shape[:-1].
bool same_leading(const fastnorm_tensor& t, const fastnorm_tensor& x) {
  for (int32_t i = 0; i < x.ndim - 1; ++i) {
    if (t.shape[i] != x.shape[i]) return false;
  }
  return true;
}

// x.shape[:-1] + [last].
bool is_leading_and(const fastnorm_tensor& t, const fastnorm_tensor& x, int64_t last) {
  return t.ndim == x.ndim && t.shape[t.ndim - 1] == last && same_leading(t, x);
}

}  // namespace

fastnorm_status check_x_shape(const fastnorm_tensor& x, Error& error) {
  const int64_t n = x.shape[x.ndim - 1];
  FASTNORM_REQUIRE(n >= 1 && n <= kMaxColumns, FASTNORM_ERROR_SHAPE,
                   "x.shape is %s, so n is %" PRId64 "; required: 1 to 2^32",
                   shape_text(x.shape, x.ndim).c, n);
  return FASTNORM_OK;
}

fastnorm_status check_row_shape(const char* name, const fastnorm_tensor& t,
                                const fastnorm_tensor& x, Error& error) {
  FASTNORM_REQUIRE(is_leading_and(t, x, x.shape[x.ndim - 1]), FASTNORM_ERROR_SHAPE,
                   "%s.shape is %s; required: x's, %s", name, shape_text(t.shape, t.ndim).c,
                   shape_text(x.shape, x.ndim).c);
  return FASTNORM_OK;
}

fastnorm_status check_weight_shape(const char* name, const fastnorm_tensor& t,
                                   const fastnorm_tensor& x, int64_t group, Error& error) {
  const int64_t n = x.shape[x.ndim - 1], last = t.shape[t.ndim - 1];
  bool fits = t.ndim <= x.ndim && (last == n || last == group);
  for (int32_t i = 2; fits && i <= t.ndim; ++i) {
    const int64_t extent = t.shape[t.ndim - i];
    fits = extent == 1 || extent == x.shape[x.ndim - i];
  }
  FASTNORM_REQUIRE(fits || group == n, FASTNORM_ERROR_SHAPE,
                   "%s.shape is %s; required: [%" PRId64 "], or [%" PRId64
                   "] for each group, or with leading extents that are 1 or x's, counted from the "
                   "right, for x of shape %s",
                   name, shape_text(t.shape, t.ndim).c, n, group, shape_text(x.shape, x.ndim).c);
  FASTNORM_REQUIRE(fits, FASTNORM_ERROR_SHAPE,
                   "%s.shape is %s; required: [%" PRId64
                   "], or with leading extents that are 1 "
                   "or x's, counted from the right, for x of shape %s",
                   name, shape_text(t.shape, t.ndim).c, n, shape_text(x.shape, x.ndim).c);
  return FASTNORM_OK;
}

fastnorm_status check_statistic_shape(const char* name, const fastnorm_tensor& t,
                                      const fastnorm_tensor& x, Error& error) {
  FASTNORM_REQUIRE(
      is_leading_and(t, x, 1) || (t.ndim == x.ndim - 1 && same_leading(t, x)), FASTNORM_ERROR_SHAPE,
      "%s.shape is %s; required: x.shape[:-1] or that with a last 1, for x of shape %s", name,
      shape_text(t.shape, t.ndim).c, shape_text(x.shape, x.ndim).c);
  return FASTNORM_OK;
}

fastnorm_status check_code_shape(const fastnorm_tensor& t, const fastnorm_tensor& x, bool pairs,
                                 Error& error) {
  const int64_t n = x.shape[x.ndim - 1];
  FASTNORM_REQUIRE(is_leading_and(t, x, pairs ? n / 2 : n), FASTNORM_ERROR_SHAPE,
                   "quant.quantized.shape is %s; required: x's, %s%s",
                   shape_text(t.shape, t.ndim).c, shape_text(x.shape, x.ndim).c,
                   pairs ? " with half of n, for packed pairs" : "");
  return FASTNORM_OK;
}

fastnorm_status check_code_strides(const fastnorm_tensor& t, Error& error) {
  if (t.strides == nullptr) return FASTNORM_OK;
  bool empty = false;
  for (int32_t i = 0; i < t.ndim; ++i) empty |= t.shape[i] == 0;
  for (int32_t i = t.ndim - 2; i >= 0; --i) {
    FASTNORM_REQUIRE(t.strides[i] % 2 == 0 || t.shape[i] == 1 || empty, FASTNORM_ERROR_LAYOUT,
                     "quant.quantized.strides[%d] is %" PRId64
                     "; required: even, rows of f4_e2m1fn begin with a byte",
                     i, t.strides[i]);
  }
  return FASTNORM_OK;
}

fastnorm_status check_scale_shape(const fastnorm_tensor& t, const fastnorm_tensor& x,
                                  int64_t scales, bool per_row, Error& error) {
  const auto wanted = [&] {
    int64_t shape[kMaxRank] = {};
    for (int32_t i = 0; i < x.ndim; ++i) shape[i] = i + 1 < x.ndim ? x.shape[i] : scales;
    return shape_text(shape, x.ndim);
  };
  FASTNORM_REQUIRE(
      is_leading_and(t, x, scales) || (per_row && t.ndim == x.ndim - 1 && same_leading(t, x)),
      FASTNORM_ERROR_SHAPE,
      "quant.scale.shape is %s; required: %s (x.shape[:-1] and %" PRId64 "%s), for x of shape %s",
      shape_text(t.shape, t.ndim).c, wanted().c, scales,
      per_row ? ", or without it" : " scales a row", shape_text(x.shape, x.ndim).c);
  return FASTNORM_OK;
}

}  // namespace fastnorm
