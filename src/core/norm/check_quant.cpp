#include "core/norm/check_quant.h"

#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "core/common/shared_fields.h"
#include "core/norm/aliasing.h"
#include "core/norm/shape.h"

namespace fastnorm {
namespace {

static_assert(std::size(kQuantSchemes) == std::size(schema::Enum<fastnorm_quant_scheme>::kAll),
              "kQuantSchemes lacks a scheme");

// The scheme of a number that passed its check.
const QuantScheme& scheme_at(int32_t scheme) { return kQuantSchemes[scheme]; }
const char* scheme_text(int32_t scheme) { return scheme_at(scheme).text; }

// One call's checks. The members are what most checks need.
class QuantCheck {
 public:
  QuantCheck(const fastnorm_quant& quant, CheckedDevice device, NormDesc* desc, Error& failure)
      : q_(quant), device_(device), d_(*desc), error(failure) {}

  // The scalars of quantised outputs, and which fields a scheme requires and refuses.
  fastnorm_status scalars() {
    QuantDesc& q = d_.quant;
    const int32_t scheme = number(q_.scheme), source = number(q_.source),
                  layout = number(q_.scale_layout);
    const int32_t division = number(q_.division);
    FASTNORM_TRY(check_enum<&fastnorm_quant::scheme>(q_, error));
    FASTNORM_TRY(check_enum<&fastnorm_quant::source>(q_, error));
    FASTNORM_TRY(check_enum<&fastnorm_quant::scale_layout>(q_, error));
    FASTNORM_TRY(check_enum<&fastnorm_quant::division>(q_, error));
    FASTNORM_TRY(check_switch("quant.scale_pow2", q_.scale_pow2, error));
    FASTNORM_REQUIRE(std::isfinite(q_.clamp) && q_.clamp >= 0, FASTNORM_ERROR_ARGUMENT,
                     "quant.clamp is %g; required: finite and >= 0", static_cast<double>(q_.clamp));
    const QuantScheme& of = scheme_at(scheme);
    const bool dynamic = of.scale == SchemeScale::kDynamic, own_block = of.block == kOwnBlock;
    FASTNORM_TRY(check_rules(q_, error));
    const int32_t block = q_.block_size;
    FASTNORM_REQUIRE(!own_block || block == 64 || block == 128, FASTNORM_ERROR_ARGUMENT,
                     "quant.block_size is %d; required: 64 or 128", block);
    FASTNORM_TRY(check_amax_floor("quant.amax_floor", q_.amax_floor, error));
    q.scheme = static_cast<fastnorm_quant_scheme>(scheme);
    q.block = own_block ? block : of.block;
    if (q_.rotation != 0) FASTNORM_TRY(check_rotation("quant", q_, q.block, error));
    q.from_rounded = source == FASTNORM_QUANT_FROM_ROUNDED;
    q.pow2 = q_.scale_pow2 != 0 || of.is_mx();
    q.divides = division == FASTNORM_QUANT_DIVIDE && !q.pow2;
    q.swizzled = layout == FASTNORM_SCALE_SWIZZLED_128X4;
    q.rotation = q_.rotation;
    q.y_rotated = q_.y_rotated != 0;
    q.clamp = q_.clamp;
    q.amax_floor = !dynamic ? 0 : q_.amax_floor == 0 ? 1e-10f : q_.amax_floor;
    return FASTNORM_OK;
  }

  // The tensors of a scheme.
  fastnorm_status tensors(const fastnorm_tensor& x) {
    FASTNORM_TRY(codes(x));
    FASTNORM_TRY(scale(x));
    if (q_.clamp_scale != nullptr) {
      FASTNORM_TRY(check_scalar("quant.clamp_scale", *q_.clamp_scale, device_,
                                &d_.quant.clamp_scale, error));
    }
    if (q_.global_scale != nullptr) {
      FASTNORM_TRY(check_scalar("quant.global_scale", *q_.global_scale, device_,
                                &d_.quant.global_scale, error));
    }
    return q_.rotation == 0 ? FASTNORM_OK
                            : check_rotation_columns("quant", q_, d_.n, device_, &d_.quant, error);
  }

  fastnorm_status codes(const fastnorm_tensor& x) {
    QuantDesc& q = d_.quant;
    const fastnorm_tensor& t = *q_.quantized;
    const Dtype dtype = dtype_from(t.dtype);
    const bool fp4 = q.is_fp4();
    const bool packed = dtype == Dtype::kF4E2M1x2 || dtype == Dtype::kU8;
    const bool fp8 = dtype == Dtype::kF8E4M3 || dtype == Dtype::kF8E5M2;
    const bool fits =
        fp4 ? dtype == Dtype::kF4E2M1 || packed : fp8 || (dtype == Dtype::kI8 && !q.pow2);
    FASTNORM_REQUIRE(fits, FASTNORM_ERROR_DTYPE, "quant.quantized.dtype is %s; required: %s",
                     dtype_text(t.dtype).c,
                     fp4      ? "f4_e2m1fn, f4_e2m1fn_x2 or u8"
                     : q.pow2 ? "f8_e4m3fn or f8_e5m2"
                              : "f8_e4m3fn, f8_e5m2 or i8");
    FASTNORM_REQUIRE(!fp4 || d_.n % 2 == 0, FASTNORM_ERROR_SHAPE,
                     "n is %" PRId64 "; required: even for %s", d_.n, scheme_text(q.scheme));
    // The common case. check_tensor() accepts it.
    const bool plain = t.ndim == x.ndim && t.strides == nullptr &&
                       same_numbers(t.shape, x.shape, x.ndim) && is_placed(t, device_, 1);
    if (!plain || packed) {
      FASTNORM_TRY(check_tensor("quant.quantized", t, {dtype, kMaxRank, true}, device_, error));
      FASTNORM_TRY(check_code_shape(t, x, fp4 && packed, error));
    }
    const bool halves = fp4 && !packed;  // of a byte
    if (halves) FASTNORM_TRY(check_code_strides(t, error));
    q.dtype = fp4 ? Dtype::kF4E2M1 : dtype;
    q.codes.data = address_of(t);
    q.codes.dtype = Dtype::kU8;
    auto compact = static_cast<uint64_t>(q.code_bytes(d_.n));  // unsigned, as in fill()
    for (int32_t i = 0; i < d_.outer_rank; ++i) {
      const int32_t dim = t.ndim - 2 - i;
      int64_t stride = t.strides != nullptr ? t.strides[dim] : static_cast<int64_t>(compact);
      if (t.strides != nullptr && halves) stride /= 2;
      q.codes.stride_bytes[i] = stride;
      compact *= static_cast<uint64_t>(t.shape[dim]);
    }
    return check_output_rows("quant.quantized", q.codes, q.code_bytes(d_.n), d_, error);
  }

  fastnorm_status scale(const fastnorm_tensor& x) {
    QuantDesc& q = d_.quant;
    if (scheme_of(q.scheme).scale == SchemeScale::kInput)
      return check_scalar("quant.scale", *q_.scale, device_, &q.tensor_scale, error);
    const fastnorm_tensor& t = *q_.scale;
    const Dtype dtype = dtype_from(t.dtype);
    const bool e4m3 = scheme_of(q.scheme).scale == SchemeScale::kE4M3;
    const bool byte = e4m3 ? dtype == Dtype::kF8E4M3 || dtype == Dtype::kU8
                           : q.pow2 && (dtype == Dtype::kF8E8M0 || dtype == Dtype::kU8);
    const bool must_be_byte = e4m3 || q.is_mx() || q.swizzled;
    FASTNORM_REQUIRE(byte || (!must_be_byte && dtype == Dtype::kF32), FASTNORM_ERROR_DTYPE,
                     "quant.scale.dtype is %s; required: %s", dtype_text(t.dtype).c,
                     e4m3           ? "f8_e4m3fn or u8"
                     : q.is_mx()    ? "f8_e8m0fnu or u8"
                     : must_be_byte ? "f8_e8m0fnu or u8, and quant.scale_pow2 1"
                     : q.pow2       ? "f32, f8_e8m0fnu or u8"
                                    : "f32");
    q.scale.data = address_of(t);
    q.scale.dtype = dtype;
    if (q.swizzled) return swizzled_scale(t);
    FASTNORM_TRY(check_tensor("quant.scale", t, {dtype, kMaxRank, false}, device_, error));
    const int64_t scales = q.scales(d_.n);
    const bool with_last = t.ndim == x.ndim;
    FASTNORM_TRY(check_scale_shape(t, x, scales, q.block == 0, error));
    const int64_t bytes = dtype_bytes(dtype);
    // Without strides, column-major order stores all rows of a column together.
    const bool columns = number(q_.scale_layout) == FASTNORM_SCALE_COLUMN_MAJOR;
    describe_rows(t, t.ndim - (with_last ? 1 : 0), columns ? bytes : scales * bytes, d_.outer_rank,
                  &q.scale);
    // Unsigned: without elements the product may overflow.
    const auto column = static_cast<uint64_t>(d_.rows) * static_cast<uint64_t>(bytes);
    q.scale_step_bytes = !with_last || scales == 1 ? bytes
                         : t.strides != nullptr    ? stride_bytes_of(t, t.ndim - 1, bytes)
                         : columns                 ? static_cast<int64_t>(column)
                                                   : bytes;
    if (d_.rows == 0) return FASTNORM_OK;
    Footprint f;
    FASTNORM_REQUIRE(
        footprint({q.scale.data, q.scale.stride_bytes, bytes, scales, q.scale_step_bytes}, d_.outer,
                  &f) &&
            rows_disjoint(f),
        FASTNORM_ERROR_LAYOUT,
        "quant.scale overlaps itself: its strides are %s bytes, innermost row first, and %" PRId64
        " bytes between the %" PRId64 " scales of a row; required: scales that share no byte",
        shape_text(q.scale.stride_bytes, d_.outer_rank).c, q.scale_step_bytes, scales);
    return FASTNORM_OK;
  }

  fastnorm_status swizzled_scale(const fastnorm_tensor& t) {
    FASTNORM_TRY(check_tensor("quant.scale", t, {d_.quant.scale.dtype, 1, true}, device_, error));
    // A tile of 128 rows x 4 scales has 512 bytes.
    const int64_t row_tiles = d_.rows / 128 + (d_.rows % 128 != 0 ? 1 : 0);
    const int64_t row_bytes = d_.quant.scale_tiles(d_.n) * 512;
    int64_t bytes = 0;
    FASTNORM_REQUIRE(
        !__builtin_mul_overflow(row_tiles, row_bytes, &bytes) && t.shape[0] == bytes,
        FASTNORM_ERROR_SHAPE,
        "quant.scale.shape is %s; required: [512 * ceil(rows / 128) * ceil(scales of a row / "
        "4)], for %" PRId64 " rows of %" PRId64 " scales",
        shape_text(t.shape, 1).c, d_.rows, d_.quant.scales(d_.n));
    return FASTNORM_OK;
  }

 private:
  const fastnorm_quant& q_;
  const CheckedDevice device_;
  NormDesc& d_;
  Error& error;
};

}  // namespace

fastnorm_status check_rotation(const char* name, const fastnorm_quant& quant, int32_t scale_block,
                               Error& error) {
  const int32_t block = quant.rotation;
  FASTNORM_REQUIRE(block == 0 || block == 16 || block == 32 || block == 64 || block == 128,
                   FASTNORM_ERROR_ARGUMENT, "%s.rotation is %d; required: 0, 16, 32, 64 or 128",
                   name, block);
  FASTNORM_REQUIRE(quant.y_rotated == 0 || quant.y_rotated == 1, FASTNORM_ERROR_ARGUMENT,
                   "%s.y_rotated is %d; required: 0 or 1", name, quant.y_rotated);
  FASTNORM_REQUIRE(quant.y_rotated == 0 || block != 0, FASTNORM_ERROR_ARGUMENT,
                   "%s.y_rotated is 1 and %s.rotation is 0; required: 0 without a rotation", name,
                   name);
  FASTNORM_REQUIRE(quant.rotation_signs == nullptr || block != 0, FASTNORM_ERROR_ARGUMENT,
                   "%s.rotation_signs is given and %s.rotation is 0; required: NULL without a "
                   "rotation",
                   name, name);
  FASTNORM_REQUIRE(block == 0 || scale_block % block == 0, FASTNORM_ERROR_ARGUMENT,
                   "%s.rotation is %d and %s.scheme is %s, whose scales have blocks of %d columns; "
                   "required: a divisor of %d",
                   name, block, name, scheme_text(number(quant.scheme)), scale_block, scale_block);
  return FASTNORM_OK;
}

fastnorm_status check_rotation_columns(const char* name, const fastnorm_quant& quant, int64_t n,
                                       CheckedDevice device, QuantDesc* desc, Error& error) {
  FASTNORM_REQUIRE(n % quant.rotation == 0, FASTNORM_ERROR_SHAPE,
                   "%s.rotation is %d and n is %" PRId64 "; required: a divisor of n", name,
                   quant.rotation, n);
  if (quant.rotation_signs == nullptr) return FASTNORM_OK;
  const fastnorm_tensor& t = *quant.rotation_signs;
  char path[40];
  std::snprintf(path, sizeof path, "%s.rotation_signs", name);
  FASTNORM_TRY(check_typed(path, t, {Dtype::kF32, 1, true}, device, error));
  FASTNORM_REQUIRE(t.shape[0] == n || t.shape[0] == quant.rotation, FASTNORM_ERROR_SHAPE,
                   "%s.shape is %s; required: [%" PRId64
                   "] or [%d], the columns of a row or of a "
                   "block of %s.rotation",
                   path, shape_text(t.shape, 1).c, n, quant.rotation, name);
  desc->signs.data = address_of(t);
  desc->signs.dtype = Dtype::kF32;
  desc->signs_shared = t.shape[0] != n;
  return FASTNORM_OK;
}

fastnorm_status check_rotation_signs(const char* name, const QuantDesc& desc, int64_t n,
                                     Error& error) {
  if (!desc.signs) return FASTNORM_OK;
  for (int64_t i = 0; i < desc.sign_columns(n); ++i) {
    float sign;
    std::memcpy(&sign, desc.signs.data + i * sizeof sign, sizeof sign);
    FASTNORM_REQUIRE(sign == 1 || sign == -1, FASTNORM_ERROR_ARGUMENT,
                     "%s.rotation_signs[%" PRId64 "] is %g; required: 1 or -1", name, i,
                     static_cast<double>(sign));
  }
  return FASTNORM_OK;
}

fastnorm_status check_quant_scalars(const fastnorm_quant& quant, NormDesc* desc, Error& error) {
  return QuantCheck(quant, {}, desc, error).scalars();
}

fastnorm_status check_quant_tensors(const fastnorm_quant& quant, const fastnorm_tensor& x,
                                    CheckedDevice device, NormDesc* desc, Error& error) {
  return QuantCheck(quant, device, desc, error).tensors(x);
}

}  // namespace fastnorm
