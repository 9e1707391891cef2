#include "core/check.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <utility>

#include "core/reciprocal.h"

namespace fastnorm {
namespace {

constexpr int64_t kMaxColumns = int64_t{1} << 32;

struct Text {
  char c[96];
};

Text shape_text(const int64_t* shape, int32_t rank) {
  Text text{};
  size_t used = 0;
  const auto put = [&](const char* format, auto value) {
    if (used < sizeof text.c) {
      used +=
          static_cast<size_t>(std::snprintf(text.c + used, sizeof text.c - used, format, value));
    }
  };
  put("%s", "[");
  for (int32_t d = 0; d < rank; ++d) put(d == 0 ? "%" PRId64 : ", %" PRId64, shape[d]);
  put("%s", "]");
  return text;
}

Text dtype_text(fastnorm_dtype dtype) {
  Text text{};
  const Dtype known = dtype_from(dtype);
  if (known != Dtype::kUnknown) {
    std::snprintf(text.c, sizeof text.c, "%s", dtype_name(known));
  } else {
    std::snprintf(text.c, sizeof text.c, "{code %d, bits %d, lanes %d}", dtype.code, dtype.bits,
                  dtype.lanes);
  }
  return text;
}

const char* device_name(int32_t device_type) {
  switch (device_type) {
    case FASTNORM_DEVICE_CPU:
      return "CPU";
    case FASTNORM_DEVICE_CUDA:
      return "CUDA";
    case FASTNORM_DEVICE_CUDA_HOST:
      return "CUDA_HOST";
    case FASTNORM_DEVICE_CUDA_MANAGED:
      return "CUDA_MANAGED";
    default:
      return "unknown";
  }
}

// A scheme that was checked.
const char* scheme_text(int32_t scheme) {
  constexpr const char* kTexts[] = {"FASTNORM_QUANT_NONE (0)",    "FASTNORM_QUANT_PER_TENSOR (1)",
                                    "FASTNORM_QUANT_PER_ROW (2)", "FASTNORM_QUANT_PER_BLOCK (3)",
                                    "FASTNORM_QUANT_MXFP8 (4)",   "FASTNORM_QUANT_NVFP4 (5)"};
  return kTexts[scheme];
}

// Memory kinds count as the device that reaches them without a copy.
int32_t effective_device(int32_t device_type) {
  if (device_type == FASTNORM_DEVICE_CUDA_HOST) return FASTNORM_DEVICE_CPU;
  if (device_type == FASTNORM_DEVICE_CUDA_MANAGED) return FASTNORM_DEVICE_CUDA;
  return device_type;
}

// The address of a tensor's first element. By integers: where there are no elements, data may be NULL.
std::byte* address_of(const fastnorm_tensor& t) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(t.data) + t.byte_offset);
}

// An enum field as the number it holds: a C caller may have stored any.
template <class Enum>
int32_t number(const Enum& field) {
  int32_t value;
  static_assert(sizeof field == sizeof value);
  std::memcpy(&value, &field, sizeof value);
  return value;
}

// NormDesc's defaults, but for what every call sets. In pieces: a struct this large would be cleared by a string instruction, which takes
// tens of cycles to start.
FASTNORM_HOT void clear(NormDesc* desc) {
  desc->rows = desc->n = 0;
  desc->outer_rank = 1;
  for (int64_t& extent : desc->outer) extent = 1;
  for (RowTensor* t : {&desc->x, &desc->residual, &desc->y, &desc->residual_out, &desc->mean,
                       &desc->rstd, &desc->quant.codes, &desc->quant.scale}) {
    *t = RowTensor{};
  }
  for (ColumnTensor* c : {&desc->weight, &desc->bias}) *c = ColumnTensor{};
  QuantDesc& q = desc->quant;
  q.scheme = FASTNORM_QUANT_NONE;
  q.dtype = Dtype::kUnknown;
  q.block = 0;
  q.from_rounded = q.pow2 = q.swizzled = false;
  q.clamp = q.amax_floor = 0;
  q.scale_step_bytes = 0;
  q.tensor_scale = q.global_scale = nullptr;
  q.amax = nullptr;
}

// Whether two arrays of `count` are the same, or both are absent.
FASTNORM_HOT bool same_numbers(const int64_t* a, const int64_t* b, int32_t count) {
  if (a == b) return true;
  bool same = a != nullptr && b != nullptr;
  for (int32_t i = 0; same && i < count; ++i) same = a[i] == b[i];
  return same;
}

bool is_row_dtype(Dtype dtype) { return static_cast<int>(dtype) < kRowDtypes; }

struct View;

// One call's checks; members are what most of them need.
class NormCheck {
 public:
  NormCheck(const fastnorm_norm_args& args, CheckedDevice device, NormDesc* desc, Touched* touched,
            Error& error)
      : args_(args), device_(device), d_(*desc), touched_(*touched), error(error) {}

  fastnorm_status run() {
    FASTNORM_TRY(scalars());
    FASTNORM_TRY(outputs());
    FASTNORM_TRY(quant_scalars());
    FASTNORM_TRY(x());
    if (args_.residual != nullptr)
      FASTNORM_TRY(row_tensor("residual", *args_.residual, false, true, &d_.residual));
    if (args_.y != nullptr) FASTNORM_TRY(row_tensor("y", *args_.y, true, false, &d_.y));
    if (args_.residual_out != nullptr)
      FASTNORM_TRY(row_tensor("residual_out", *args_.residual_out, true, true, &d_.residual_out));
    if (args_.weight != nullptr) FASTNORM_TRY(column("weight", *args_.weight, &d_.weight));
    if (args_.bias != nullptr) FASTNORM_TRY(column("bias", *args_.bias, &d_.bias));
    if (args_.mean != nullptr) FASTNORM_TRY(statistic("mean", *args_.mean, &d_.mean));
    if (args_.rstd != nullptr) FASTNORM_TRY(statistic("rstd", *args_.rstd, &d_.rstd));
    if (d_.quant.scheme != FASTNORM_QUANT_NONE) FASTNORM_TRY(quantised());
    if (args_.amax != nullptr) {
      const std::byte* amax = nullptr;
      FASTNORM_TRY(scalar("amax", *args_.amax, &amax));
      d_.quant.amax = const_cast<std::byte*>(amax);
    }
    if (d_.rows == 0) return FASTNORM_OK;
    FASTNORM_TRY(aliasing());
    canonical();
    return FASTNORM_OK;
  }

 private:
  fastnorm_status scalars() {
    const int32_t kind = number(args_.kind), rounding = number(args_.rounding),
                  residual_rounding = number(args_.residual_rounding);
    FASTNORM_REQUIRE(
        kind == FASTNORM_NORM_RMS || kind == FASTNORM_NORM_LAYER, FASTNORM_ERROR_ARGUMENT,
        "kind is %d; required: FASTNORM_NORM_RMS (0) or FASTNORM_NORM_LAYER (1)", kind);
    FASTNORM_REQUIRE(std::isfinite(args_.eps) && args_.eps >= 0, FASTNORM_ERROR_ARGUMENT,
                     "eps is %g; required: finite and >= 0", static_cast<double>(args_.eps));
    FASTNORM_REQUIRE(std::isfinite(args_.weight_offset), FASTNORM_ERROR_ARGUMENT,
                     "weight_offset is %g; required: finite",
                     static_cast<double>(args_.weight_offset));
    FASTNORM_REQUIRE(args_.weight != nullptr || args_.weight_offset == 0, FASTNORM_ERROR_ARGUMENT,
                     "weight_offset is %g and weight is NULL; required: 0 without a weight",
                     static_cast<double>(args_.weight_offset));
    FASTNORM_REQUIRE(rounding >= FASTNORM_ROUND_ONCE && rounding <= FASTNORM_ROUND_EVERY_STEP,
                     FASTNORM_ERROR_ARGUMENT,
                     "rounding is %d; required: a fastnorm_rounding, 0 to 2", rounding);
    FASTNORM_REQUIRE(residual_rounding >= FASTNORM_RESIDUAL_EXACT &&
                         residual_rounding <= FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS,
                     FASTNORM_ERROR_ARGUMENT,
                     "residual_rounding is %d; required: a fastnorm_residual_rounding, 0 to 2",
                     residual_rounding);
    FASTNORM_REQUIRE(args_.reserved == 0, FASTNORM_ERROR_ARGUMENT, "reserved is %d; required: 0",
                     args_.reserved);
    FASTNORM_REQUIRE(args_.x != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "x is NULL; required: a tensor [..., n]");
    FASTNORM_REQUIRE(
        args_.residual_out == nullptr || args_.residual != nullptr, FASTNORM_ERROR_ARGUMENT,
        "residual_out is given and residual is NULL; required: both, or no residual_out");
    FASTNORM_REQUIRE(
        args_.mean == nullptr || kind == FASTNORM_NORM_LAYER, FASTNORM_ERROR_ARGUMENT,
        "mean is given and kind is FASTNORM_NORM_RMS; required: FASTNORM_NORM_LAYER, or no mean");
    return FASTNORM_OK;
  }

  // Flags, and what is left to ask of outputs.
  fastnorm_status outputs() {
    constexpr uint32_t kFlags =
        FASTNORM_NORM_PDL_WAIT | FASTNORM_NORM_PDL_TRIGGER | FASTNORM_NORM_PDL_CONSTANT_COLUMNS;
    d_.flags = static_cast<uint32_t>(args_.flags);
    FASTNORM_REQUIRE((d_.flags & ~kFlags) == 0, FASTNORM_ERROR_UNSUPPORTED,
                     "flags is 0x%x; this version has the flags 0x%x; nearest: flags 0x%x",
                     d_.flags, kFlags, d_.flags & kFlags);
    FASTNORM_REQUIRE((d_.flags & FASTNORM_NORM_PDL_CONSTANT_COLUMNS) == 0 ||
                         (d_.flags & FASTNORM_NORM_PDL_WAIT) != 0,
                     FASTNORM_ERROR_ARGUMENT,
                     "flags is 0x%x; required: FASTNORM_NORM_PDL_WAIT (1) with "
                     "FASTNORM_NORM_PDL_CONSTANT_COLUMNS (4)",
                     d_.flags);
    FASTNORM_REQUIRE(args_.y != nullptr || args_.quantized != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "y is NULL and quantized is NULL; required: at least one, of x's shape");
    return FASTNORM_OK;
  }

  // True if every field of quantisation but amax, which stands alone too, is what zeroed memory holds.
  bool nothing_quantised() const {
    return (number(args_.quant_scheme) | args_.quant_block_size | number(args_.quant_source) |
            number(args_.scale_layout) | args_.scale_pow2) == 0 &&
           args_.amax_floor == 0 && args_.clamp == 0 && args_.global_scale == nullptr &&
           args_.quantized == nullptr && args_.scale == nullptr;
  }

  // A field that only some schemes have a use for.
  template <class Field>
  fastnorm_status zero_unless(bool used, const char* name, Field value, const char* user) {
    FASTNORM_REQUIRE(value == 0 || used, FASTNORM_ERROR_ARGUMENT,
                     "%s is %g and quant_scheme is %s; required: 0 but for %s", name,
                     static_cast<double>(value), scheme_text(number(args_.quant_scheme)), user);
    return FASTNORM_OK;
  }

  // The scalars of quantised outputs: each is 0 where its scheme has no use for it.
  fastnorm_status quant_scalars() {
    if (nothing_quantised()) return FASTNORM_OK;  // most calls; d_.quant says so from the start
    QuantDesc& q = d_.quant;
    const int32_t scheme = number(args_.quant_scheme), source = number(args_.quant_source),
                  layout = number(args_.scale_layout);
    FASTNORM_REQUIRE(scheme >= FASTNORM_QUANT_NONE && scheme <= FASTNORM_QUANT_NVFP4,
                     FASTNORM_ERROR_ARGUMENT,
                     "quant_scheme is %d; required: a fastnorm_quant_scheme, 0 to 5", scheme);
    FASTNORM_REQUIRE(
        source == FASTNORM_QUANT_FROM_F32 || source == FASTNORM_QUANT_FROM_ROUNDED,
        FASTNORM_ERROR_ARGUMENT,
        "quant_source is %d; required: FASTNORM_QUANT_FROM_F32 (0) or FASTNORM_QUANT_FROM_ROUNDED "
        "(1)",
        source);
    FASTNORM_REQUIRE(layout >= FASTNORM_SCALE_ROW_MAJOR && layout <= FASTNORM_SCALE_SWIZZLED_128X4,
                     FASTNORM_ERROR_ARGUMENT,
                     "scale_layout is %d; required: a fastnorm_scale_layout, 0 to 2", layout);
    FASTNORM_REQUIRE(args_.scale_pow2 == 0 || args_.scale_pow2 == 1, FASTNORM_ERROR_ARGUMENT,
                     "scale_pow2 is %d; required: 0 or 1", args_.scale_pow2);
    FASTNORM_REQUIRE(std::isfinite(args_.clamp) && args_.clamp >= 0, FASTNORM_ERROR_ARGUMENT,
                     "clamp is %g; required: finite and >= 0", static_cast<double>(args_.clamp));
    const bool none = scheme == FASTNORM_QUANT_NONE;
    const bool dynamic = scheme == FASTNORM_QUANT_PER_ROW || scheme == FASTNORM_QUANT_PER_BLOCK;
    FASTNORM_TRY(zero_unless(scheme == FASTNORM_QUANT_PER_BLOCK, "quant_block_size",
                             args_.quant_block_size, "FASTNORM_QUANT_PER_BLOCK"));
    FASTNORM_TRY(zero_unless(!none, "quant_source", source, "a scheme"));
    FASTNORM_TRY(zero_unless(scheme >= FASTNORM_QUANT_PER_BLOCK, "scale_layout", layout,
                             "a scheme with scales of blocks"));
    FASTNORM_TRY(zero_unless(dynamic, "scale_pow2", args_.scale_pow2,
                             "FASTNORM_QUANT_PER_ROW or PER_BLOCK"));
    FASTNORM_TRY(zero_unless(dynamic, "amax_floor", args_.amax_floor,
                             "FASTNORM_QUANT_PER_ROW or PER_BLOCK"));
    FASTNORM_TRY(zero_unless(!none, "clamp", args_.clamp, "a scheme"));
    const int32_t block = args_.quant_block_size;
    FASTNORM_REQUIRE(scheme != FASTNORM_QUANT_PER_BLOCK || block == 64 || block == 128,
                     FASTNORM_ERROR_ARGUMENT, "quant_block_size is %d; required: 64 or 128", block);
    FASTNORM_REQUIRE(
        args_.amax_floor == 0 || (args_.amax_floor >= 0x1p-100f && args_.amax_floor <= 0x1p100f),
        FASTNORM_ERROR_ARGUMENT, "amax_floor is %g; required: 0, or 2^-100 to 2^100",
        static_cast<double>(args_.amax_floor));
    q.scheme = static_cast<fastnorm_quant_scheme>(scheme);
    q.block = scheme == FASTNORM_QUANT_MXFP8 ? 32 : scheme == FASTNORM_QUANT_NVFP4 ? 16 : block;
    q.from_rounded = source == FASTNORM_QUANT_FROM_ROUNDED;
    q.pow2 = args_.scale_pow2 != 0 || scheme == FASTNORM_QUANT_MXFP8;
    q.swizzled = layout == FASTNORM_SCALE_SWIZZLED_128X4;
    q.clamp = args_.clamp;
    q.amax_floor = !dynamic ? 0 : args_.amax_floor == 0 ? 1e-10f : args_.amax_floor;
    return quant_presence(scheme);
  }

  // Which tensors a scheme needs, and which it has no use for.
  fastnorm_status quant_presence(int32_t scheme) {
    const bool none = scheme == FASTNORM_QUANT_NONE;
    for (const auto& [name, tensor] :
         {std::pair{"quantized", args_.quantized}, std::pair{"scale", args_.scale}}) {
      FASTNORM_REQUIRE(none || tensor != nullptr, FASTNORM_ERROR_ARGUMENT,
                       "%s is NULL and quant_scheme is %s; required: a tensor", name,
                       scheme_text(scheme));
      FASTNORM_REQUIRE(!none || tensor == nullptr, FASTNORM_ERROR_ARGUMENT,
                       "%s is given and quant_scheme is FASTNORM_QUANT_NONE (0); required: a "
                       "scheme, or %s NULL",
                       name, name);
    }
    FASTNORM_REQUIRE(args_.global_scale == nullptr || scheme == FASTNORM_QUANT_NVFP4,
                     FASTNORM_ERROR_ARGUMENT,
                     "global_scale is given and quant_scheme is %s; required: FASTNORM_QUANT_NVFP4 "
                     "(5), or global_scale NULL",
                     scheme_text(scheme));
    return FASTNORM_OK;
  }

  // A single f32.
  fastnorm_status scalar(const char* name, const fastnorm_tensor& t, const std::byte** address) {
    FASTNORM_REQUIRE(dtype_from(t.dtype) == Dtype::kF32, FASTNORM_ERROR_DTYPE,
                     "%s.dtype is %s; required: f32", name, dtype_text(t.dtype).c);
    FASTNORM_TRY(common(name, t, Dtype::kF32, 1, false));
    FASTNORM_REQUIRE(t.shape[0] == 1, FASTNORM_ERROR_SHAPE, "%s.shape is %s; required: [1]", name,
                     shape_text(t.shape, 1).c);
    *address = address_of(t);
    return FASTNORM_OK;
  }

  // The tensors of a scheme.
  fastnorm_status quantised() {
    FASTNORM_TRY(quant_codes());
    FASTNORM_TRY(quant_scale());
    if (args_.global_scale == nullptr) return FASTNORM_OK;
    return scalar("global_scale", *args_.global_scale, &d_.quant.global_scale);
  }

  fastnorm_status quant_codes() {
    QuantDesc& q = d_.quant;
    const fastnorm_tensor& t = *args_.quantized;
    const Dtype dtype = dtype_from(t.dtype);
    const bool fp4 = q.scheme == FASTNORM_QUANT_NVFP4;
    const bool packed = dtype == Dtype::kF4E2M1x2 || dtype == Dtype::kU8;
    const bool fp8 = dtype == Dtype::kF8E4M3 || dtype == Dtype::kF8E5M2;
    const bool fits =
        fp4 ? dtype == Dtype::kF4E2M1 || packed : fp8 || (dtype == Dtype::kI8 && !q.pow2);
    FASTNORM_REQUIRE(fits, FASTNORM_ERROR_DTYPE, "quantized.dtype is %s; required: %s",
                     dtype_text(t.dtype).c,
                     fp4      ? "f4_e2m1fn, f4_e2m1fn_x2 or u8"
                     : q.pow2 ? "f8_e4m3fn or f8_e5m2"
                              : "f8_e4m3fn, f8_e5m2 or i8");
    FASTNORM_REQUIRE(!fp4 || d_.n % 2 == 0, FASTNORM_ERROR_SHAPE,
                     "n is %" PRId64 "; required: even for FASTNORM_QUANT_NVFP4", d_.n);
    FASTNORM_TRY(common("quantized", t, dtype, kMaxOuter + 1, true));
    const fastnorm_tensor& x = *args_.x;
    bool same = t.ndim == x.ndim && t.shape[t.ndim - 1] == (fp4 && packed ? d_.n / 2 : d_.n);
    for (int32_t i = 0; same && i < x.ndim - 1; ++i) same = t.shape[i] == x.shape[i];
    FASTNORM_REQUIRE(same, FASTNORM_ERROR_SHAPE, "quantized.shape is %s; required: x's, %s%s",
                     shape_text(t.shape, t.ndim).c, shape_text(x.shape, x.ndim).c,
                     fp4 && packed ? " with half of n, for packed pairs" : "");
    q.dtype = fp4 ? Dtype::kF4E2M1 : dtype;
    q.codes.data = address_of(t);
    q.codes.dtype = Dtype::kU8;
    auto compact = static_cast<uint64_t>(q.code_bytes(d_.n));  // unsigned: as in fill()
    for (int32_t i = 0; i < d_.outer_rank; ++i) {
      const int32_t dim = t.ndim - 2 - i;
      int64_t stride = t.strides != nullptr ? t.strides[dim] : static_cast<int64_t>(compact);
      if (t.strides != nullptr && fp4 && !packed) {
        FASTNORM_REQUIRE(stride % 2 == 0 || t.shape[dim] <= 1, FASTNORM_ERROR_LAYOUT,
                         "quantized.strides[%d] is %" PRId64
                         "; required: even, rows of f4_e2m1fn begin with a byte",
                         dim, stride);
        stride /= 2;
      }
      q.codes.stride_bytes[i] = stride;
      compact *= static_cast<uint64_t>(t.shape[dim]);
    }
    return output_rows("quantized", q.codes, q.code_bytes(d_.n));
  }

  fastnorm_status quant_scale() {
    QuantDesc& q = d_.quant;
    if (q.scheme == FASTNORM_QUANT_PER_TENSOR)
      return scalar("scale", *args_.scale, &q.tensor_scale);
    const fastnorm_tensor& t = *args_.scale;
    const Dtype dtype = dtype_from(t.dtype);
    const bool fp4 = q.scheme == FASTNORM_QUANT_NVFP4;
    const bool byte = fp4 ? dtype == Dtype::kF8E4M3 || dtype == Dtype::kU8
                          : q.pow2 && (dtype == Dtype::kF8E8M0 || dtype == Dtype::kU8);
    const bool must_be_byte = fp4 || q.scheme == FASTNORM_QUANT_MXFP8 || q.swizzled;
    FASTNORM_REQUIRE(byte || (!must_be_byte && dtype == Dtype::kF32), FASTNORM_ERROR_DTYPE,
                     "scale.dtype is %s; required: %s", dtype_text(t.dtype).c,
                     fp4                                ? "f8_e4m3fn or u8"
                     : q.scheme == FASTNORM_QUANT_MXFP8 ? "f8_e8m0fnu or u8"
                     : must_be_byte                     ? "f8_e8m0fnu or u8, and scale_pow2 1"
                     : q.pow2                           ? "f32, f8_e8m0fnu or u8"
                                                        : "f32");
    q.scale.data = address_of(t);
    q.scale.dtype = dtype;
    if (q.swizzled) return swizzled_scale(t);
    FASTNORM_TRY(common("scale", t, dtype, kMaxOuter + 1, false));
    const fastnorm_tensor& x = *args_.x;
    const int64_t scales = q.scales(d_.n);
    const bool with_last = t.ndim == x.ndim;
    bool same = with_last ? t.shape[t.ndim - 1] == scales : q.block == 0 && t.ndim == x.ndim - 1;
    for (int32_t i = 0; same && i < x.ndim - 1; ++i) same = t.shape[i] == x.shape[i];
    const auto wanted = [&] {
      int64_t shape[kMaxOuter + 1] = {};
      for (int32_t i = 0; i < x.ndim; ++i) shape[i] = i + 1 < x.ndim ? x.shape[i] : scales;
      return shape_text(shape, x.ndim);
    };
    FASTNORM_REQUIRE(
        same, FASTNORM_ERROR_SHAPE,
        "scale.shape is %s; required: %s (x.shape[:-1] and %" PRId64 "%s), for x of shape %s",
        shape_text(t.shape, t.ndim).c, wanted().c, scales,
        q.block == 0 ? ", or without it" : " scales a row", shape_text(x.shape, x.ndim).c);
    const int64_t bytes = dtype_bytes(dtype);
    // Without strides column-major has all rows of a column after each other.
    const bool columns = number(args_.scale_layout) == FASTNORM_SCALE_COLUMN_MAJOR;
    auto compact = static_cast<uint64_t>(columns ? bytes : scales * bytes);
    for (int32_t i = 0; i < d_.outer_rank; ++i) {
      const int32_t dim = t.ndim - (with_last ? 2 : 1) - i;
      q.scale.stride_bytes[i] =
          t.strides != nullptr ? t.strides[dim] * bytes : static_cast<int64_t>(compact);
      compact *= static_cast<uint64_t>(t.shape[dim]);
    }
    q.scale_step_bytes = !with_last             ? bytes
                         : t.strides != nullptr ? t.strides[t.ndim - 1] * bytes
                         : columns              ? static_cast<int64_t>(compact)
                                                : bytes;
    if (d_.rows == 0) return FASTNORM_OK;
    Footprint f;
    FASTNORM_REQUIRE(
        footprint({q.scale.data, q.scale.stride_bytes, bytes, scales, q.scale_step_bytes}, d_.outer,
                  &f) &&
            rows_disjoint(f),
        FASTNORM_ERROR_LAYOUT,
        "scale overlaps itself: its strides are %s bytes, innermost row first, and %" PRId64
        " bytes between the %" PRId64 " scales of a row; required: scales that share no byte",
        shape_text(q.scale.stride_bytes, d_.outer_rank).c, q.scale_step_bytes, scales);
    return FASTNORM_OK;
  }

  fastnorm_status swizzled_scale(const fastnorm_tensor& t) {
    FASTNORM_TRY(common("scale", t, d_.quant.scale.dtype, 1, true));
    // 512 bytes a tile of 128 rows x 4 scales.
    const int64_t row_tiles = d_.rows / 128 + (d_.rows % 128 != 0 ? 1 : 0);
    const int64_t row_bytes = d_.quant.scale_tiles(d_.n) * 512;
    int64_t bytes = 0;
    FASTNORM_REQUIRE(
        !__builtin_mul_overflow(row_tiles, row_bytes, &bytes) && t.shape[0] == bytes,
        FASTNORM_ERROR_SHAPE,
        "scale.shape is %s; required: [512 * ceil(rows / 128) * ceil(scales of a row / "
        "4)], for %" PRId64 " rows of %" PRId64 " scales",
        shape_text(t.shape, 1).c, d_.rows, d_.quant.scales(d_.n));
    return FASTNORM_OK;
  }

  // What holds for every tensor: device, rank, extents, contiguous last dimension, an address that suits its dtype, which is known.
  fastnorm_status common(const char* name, const fastnorm_tensor& t, Dtype dtype, int32_t max_rank,
                         bool last_contiguous) {
    FASTNORM_REQUIRE(
        effective_device(t.device_type) == device_.device_type &&
            (t.device_id == device_.device_id || device_.device_type == FASTNORM_DEVICE_CPU),
        FASTNORM_ERROR_DEVICE,
        "%s is on device %s:%d (device_type %d); required: the context's device, %s:%d", name,
        device_name(t.device_type), t.device_id, t.device_type, device_name(device_.device_type),
        device_.device_id);
    FASTNORM_REQUIRE(
        t.ndim >= 1 && t.ndim <= max_rank, FASTNORM_ERROR_SHAPE,
        max_rank == 1 ? "%s.ndim is %d; required: %d" : "%s.ndim is %d; required: 1 to %d", name,
        t.ndim, max_rank);
    FASTNORM_REQUIRE(t.shape != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "%s.shape is NULL; required: an array of %d extents", name, t.ndim);
    int64_t elements = 1, signs = 0;
    bool overflows = false, empty = false;
    for (int32_t i = 0; i < t.ndim; ++i) {
      signs |= t.shape[i];
      empty |= t.shape[i] == 0;
      overflows |= __builtin_mul_overflow(elements, t.shape[i], &elements);
    }
    if (empty) elements = 0;
    FASTNORM_REQUIRE(signs >= 0, FASTNORM_ERROR_SHAPE, "%s.shape is %s; required: extents >= 0",
                     name, shape_text(t.shape, t.ndim).c);
    FASTNORM_REQUIRE(!overflows || empty, FASTNORM_ERROR_SHAPE,
                     "%s.shape is %s; required: fewer than 2^63 elements", name,
                     shape_text(t.shape, t.ndim).c);
    const int64_t bytes = std::max<int64_t>(dtype_bytes(dtype), 1);  // pairs of fp4 share one
    uintptr_t address = 0;
    FASTNORM_REQUIRE(
        !__builtin_add_overflow(reinterpret_cast<uintptr_t>(t.data), t.byte_offset, &address),
        FASTNORM_ERROR_LAYOUT,
        "%s.data is %p and its byte_offset %" PRIu64 "; required: a sum inside the address space",
        name, t.data, t.byte_offset);
    FASTNORM_REQUIRE(t.data != nullptr || elements == 0, FASTNORM_ERROR_ARGUMENT,
                     "%s.data is NULL and its shape %s has elements; required: an address", name,
                     shape_text(t.shape, t.ndim).c);
    FASTNORM_REQUIRE(elements == 0 || (address & static_cast<uintptr_t>(bytes - 1)) == 0,
                     FASTNORM_ERROR_LAYOUT,
                     "%s's address is 0x%" PRIxPTR "; required: a multiple of %d, the bytes of %s",
                     name, address, static_cast<int>(bytes), dtype_name(dtype));
    if (t.strides == nullptr) return FASTNORM_OK;
    const int64_t last = t.strides[t.ndim - 1];
    FASTNORM_REQUIRE(!last_contiguous || last == 1 || t.shape[t.ndim - 1] <= 1,
                     FASTNORM_ERROR_LAYOUT,
                     "%s.strides[%d] is %" PRId64 "; required: 1, a contiguous last dimension",
                     name, t.ndim - 1, last);
    for (int32_t i = 0; i < t.ndim; ++i) {
      int64_t step = 0;
      FASTNORM_REQUIRE(!__builtin_mul_overflow(t.strides[i], bytes, &step), FASTNORM_ERROR_LAYOUT,
                       "%s.strides[%d] is %" PRId64 "; required: fewer than 2^63 bytes", name, i,
                       t.strides[i]);
    }
    return FASTNORM_OK;
  }

  FASTNORM_HOT fastnorm_status x() {
    const fastnorm_tensor& t = *args_.x;
    const Dtype dtype = dtype_from(t.dtype);
    FASTNORM_REQUIRE(is_row_dtype(dtype), FASTNORM_ERROR_DTYPE,
                     "x.dtype is %s; required: f32, f16 or bf16", dtype_text(t.dtype).c);
    FASTNORM_TRY(common("x", t, dtype, kMaxOuter + 1, true));
    d_.dtype = dtype;
    d_.n = t.shape[t.ndim - 1];
    FASTNORM_REQUIRE(d_.n >= 1 && d_.n <= kMaxColumns, FASTNORM_ERROR_SHAPE,
                     "x.shape is %s, so n is %" PRId64 "; required: 1 to 2^32",
                     shape_text(t.shape, t.ndim).c, d_.n);
    d_.outer_rank = t.ndim - 1;
    uint64_t rows = 1;  // unsigned: as in fill()
    for (int32_t i = 0; i < t.ndim - 1; ++i) {
      d_.outer[i] = t.shape[t.ndim - 2 - i];
      rows *= static_cast<uint64_t>(d_.outer[i]);
    }
    d_.rows = static_cast<int64_t>(rows);
    fill(t, dtype, 1, &d_.x);
    return FASTNORM_OK;
  }

  // Address and byte strides; `skip` trailing dimensions are not rows.
  void fill(const fastnorm_tensor& t, Dtype dtype, int32_t skip, RowTensor* row) const {
    row->data = address_of(t);
    row->dtype = dtype;
    const int64_t bytes = dtype_bytes(dtype);
    // Unsigned: where there are no rows, shapes whose product fits in no integer are fine.
    auto compact = static_cast<uint64_t>(skip == 1 ? t.shape[t.ndim - 1] * bytes : bytes);
    for (int32_t i = 0; i < d_.outer_rank; ++i) {
      const int32_t dim = t.ndim - 1 - skip - i;
      row->stride_bytes[i] =
          t.strides != nullptr ? t.strides[dim] * bytes : static_cast<int64_t>(compact);
      compact *= static_cast<uint64_t>(t.shape[dim]);
    }
  }

  // True if `t` is on x's device, at an address that suits elements of `bytes`: common() has nothing to say to that. If it is false,
  // common() decides.
  FASTNORM_HOT bool placed(const fastnorm_tensor& t, int64_t bytes) const {
    uintptr_t address = 0;
    return t.device_type == args_.x->device_type && t.device_id == args_.x->device_id &&
           !__builtin_add_overflow(reinterpret_cast<uintptr_t>(t.data), t.byte_offset, &address) &&
           t.data != nullptr && (address & static_cast<uintptr_t>(bytes - 1)) == 0;
  }

  // True if `t` is as x is but for its address, as most are: what common() and fill() found of x holds for it, too.
  FASTNORM_HOT bool like_x(const fastnorm_tensor& t) const {
    const fastnorm_tensor& x = *args_.x;
    return t.ndim == x.ndim && dtype_id(t.dtype) == dtype_id(x.dtype) &&
           same_numbers(t.shape, x.shape, x.ndim) && same_numbers(t.strides, x.strides, x.ndim) &&
           placed(t, dtype_bytes(d_.dtype));
  }

  FASTNORM_HOT fastnorm_status row_tensor(const char* name, const fastnorm_tensor& t, bool output,
                                          bool may_be_f32, RowTensor* row) {
    if (like_x(t)) {
      row->data = address_of(t);
      row->dtype = d_.dtype;
      // One by one: read in pairs they would have to wait until x's, just written, are in the cache.
      for (int32_t i = 0; i < d_.outer_rank; ++i) row->stride_bytes[i] = d_.x.stride_bytes[i];
    } else {
      FASTNORM_TRY(unlike_x(name, t, may_be_f32, row));
    }
    return output ? output_rows(name, *row, d_.n * dtype_bytes(row->dtype)) : FASTNORM_OK;
  }

  fastnorm_status unlike_x(const char* name, const fastnorm_tensor& t, bool may_be_f32,
                           RowTensor* row) {
    const Dtype dtype = dtype_from(t.dtype);
    FASTNORM_REQUIRE(dtype == d_.dtype || (may_be_f32 && dtype == Dtype::kF32),
                     FASTNORM_ERROR_DTYPE, "%s.dtype is %s; required: %s%s, as x is %s", name,
                     dtype_text(t.dtype).c, dtype_name(d_.dtype),
                     may_be_f32 && d_.dtype != Dtype::kF32 ? ", or f32" : "", dtype_name(d_.dtype));
    FASTNORM_TRY(common(name, t, dtype, kMaxOuter + 1, true));
    bool same = t.ndim == args_.x->ndim;
    for (int32_t i = 0; same && i < t.ndim; ++i) same = t.shape[i] == args_.x->shape[i];
    FASTNORM_REQUIRE(same, FASTNORM_ERROR_SHAPE, "%s.shape is %s; required: x's, %s", name,
                     shape_text(t.shape, t.ndim).c, shape_text(args_.x->shape, args_.x->ndim).c);
    fill(t, dtype, 1, row);
    return FASTNORM_OK;
  }

  // An output's rows must not share bytes among themselves.
  FASTNORM_HOT fastnorm_status output_rows(const char* name, const RowTensor& row,
                                           int64_t row_bytes) {
    if (d_.rows <= 1 || rows_follow(row, d_.outer, d_.outer_rank, row_bytes)) return FASTNORM_OK;
    return scattered_rows(name, row, row_bytes);
  }

  // Rows that may share bytes.
  fastnorm_status scattered_rows(const char* name, const RowTensor& row, int64_t row_bytes) {
    Footprint f;
    FASTNORM_REQUIRE(footprint(row, d_.outer, row_bytes, &f) && rows_disjoint(f),
                     FASTNORM_ERROR_LAYOUT,
                     "%s overlaps itself: its strides are %s bytes for rows of %" PRId64
                     " bytes, innermost first; required: "
                     "rows of an output that share no byte",
                     name, shape_text(row.stride_bytes, d_.outer_rank).c, row_bytes);
    return FASTNORM_OK;
  }

  FASTNORM_HOT fastnorm_status column(const char* name, const fastnorm_tensor& t,
                                      ColumnTensor* column) {
    const bool is_f32 = dtype_id(t.dtype) == FASTNORM_DTYPE_F32;
    const Dtype dtype = is_f32 ? Dtype::kF32 : d_.dtype;
    // As most are; common() has nothing to say to it.
    if ((is_f32 || dtype_id(t.dtype) == dtype_id(args_.x->dtype)) && t.ndim == 1 &&
        t.shape != nullptr && t.shape[0] == d_.n && (t.strides == nullptr || t.strides[0] == 1) &&
        placed(t, dtype_bytes(dtype))) {
      column->data = address_of(t);
      column->dtype = dtype;
      return FASTNORM_OK;
    }
    return any_column(name, t, column);
  }

  fastnorm_status any_column(const char* name, const fastnorm_tensor& t, ColumnTensor* column) {
    const Dtype dtype = dtype_from(t.dtype);
    FASTNORM_REQUIRE(dtype == d_.dtype || dtype == Dtype::kF32, FASTNORM_ERROR_DTYPE,
                     "%s.dtype is %s; required: %s%s, as x is %s", name, dtype_text(t.dtype).c,
                     dtype_name(d_.dtype), d_.dtype != Dtype::kF32 ? ", or f32" : "",
                     dtype_name(d_.dtype));
    FASTNORM_TRY(common(name, t, dtype, 2, true));
    const int32_t rank = args_.x->ndim;
    const int64_t heads = rank >= 2 ? args_.x->shape[rank - 2] : 1;
    const bool per_head = t.ndim == 2;
    FASTNORM_REQUIRE(
        t.shape[t.ndim - 1] == d_.n && (!per_head || (rank >= 2 && t.shape[0] == heads)),
        FASTNORM_ERROR_SHAPE, "%s.shape is %s; required: [%" PRId64 "]%s for x of shape %s", name,
        shape_text(t.shape, t.ndim).c, d_.n, rank >= 2 ? " or [x.shape[-2], n]" : "",
        shape_text(args_.x->shape, rank).c);
    column->data = address_of(t);
    column->dtype = dtype;
    if (per_head && heads > 1) {
      column->head_stride_bytes = (t.strides != nullptr ? t.strides[0] : d_.n) * dtype_bytes(dtype);
    }
    return FASTNORM_OK;
  }

  fastnorm_status statistic(const char* name, const fastnorm_tensor& t, RowTensor* row) {
    FASTNORM_REQUIRE(dtype_from(t.dtype) == Dtype::kF32, FASTNORM_ERROR_DTYPE,
                     "%s.dtype is %s; required: f32", name, dtype_text(t.dtype).c);
    const fastnorm_tensor& x = *args_.x;
    // A row vector has no leading dimension: its statistic is [1], which is also the "last 1" form of [].
    const bool with_last = t.ndim == x.ndim;
    FASTNORM_TRY(common(name, t, Dtype::kF32, kMaxOuter + 1, false));
    bool same = with_last ? t.shape[t.ndim - 1] == 1 : t.ndim == x.ndim - 1;
    for (int32_t i = 0; same && i < x.ndim - 1; ++i) same = t.shape[i] == x.shape[i];
    FASTNORM_REQUIRE(
        same, FASTNORM_ERROR_SHAPE,
        "%s.shape is %s; required: x.shape[:-1] or that with a last 1, for x of shape %s", name,
        shape_text(t.shape, t.ndim).c, shape_text(x.shape, x.ndim).c);
    fill(t, Dtype::kF32, with_last ? 1 : 0, row);
    return output_rows(name, *row, 4);
  }

  fastnorm_status aliasing();
  fastnorm_status aliasing_by_name();
  fastnorm_status overlap(const View& out, const View& other);
  void fold();
  void canonical();

  const fastnorm_norm_args& args_;
  const CheckedDevice device_;
  NormDesc& d_;
  Touched& touched_;
  Error& error;
};

// Inputs first, then outputs.
enum class Role { kX, kResidual, kColumn, kScalar, kY, kResidualOut, kStatistic, kQuant };

// A tensor of a call as the aliasing rules see it.
struct View {
  bool output() const { return role >= Role::kY; }

  const char* name;
  Role role;
  Dtype dtype;
  RowBytes bytes;
  AddressRange range;
};

constexpr int64_t kSameForAllRows[kMaxOuter] = {};

// One row, or one a head.
RowBytes column_bytes_of(const NormDesc& d, const ColumnTensor& c) {
  return {c.data, kSameForAllRows, d.n * dtype_bytes(c.dtype),
          c.head_stride_bytes != 0 ? d.outer[0] : 1, c.head_stride_bytes};
}

RowBytes scale_bytes_of(const NormDesc& d) {
  const QuantDesc& q = d.quant;
  const RowTensor& s = q.scale;
  if (q.swizzled) return {s.data, kSameForAllRows, q.swizzled_bytes(d.rows, d.n), 1, 0};
  return {s.data, s.stride_bytes, dtype_bytes(s.dtype), q.scales(d.n), q.scale_step_bytes};
}

// The tensors of a call that are there. Functions that add one give false if its bytes do not fit in the address space.
class Views {
 public:
  explicit Views(const NormDesc& d) : d_(d) {}

  // All tensors; where it gives false, the last view is the one to blame.
  bool collect() {
    const QuantDesc& q = d_.quant;
    return rows("x", Role::kX, d_.x, d_.n) &&
           rows("residual", Role::kResidual, d_.residual, d_.n) && column("weight", d_.weight) &&
           column("bias", d_.bias) && rows("y", Role::kY, d_.y, d_.n) &&
           rows("residual_out", Role::kResidualOut, d_.residual_out, d_.n) &&
           rows("mean", Role::kStatistic, d_.mean, 1) &&
           rows("rstd", Role::kStatistic, d_.rstd, 1) && (!q.any() || quantised());
  }

  std::span<const View> all() const { return {view_, count_}; }

 private:
  bool quantised() {
    const QuantDesc& q = d_.quant;
    return rows("quantized", Role::kQuant, q.codes, q.code_bytes(d_.n)) && scale() &&
           scalar("scale", Role::kScalar, q.tensor_scale) &&
           scalar("global_scale", Role::kScalar, q.global_scale) &&
           scalar("amax", Role::kQuant, q.amax);
  }

  bool rows(const char* name, Role role, const RowTensor& t, int64_t columns) {
    const int64_t row_bytes = columns * dtype_bytes(t.dtype);
    return !t || add(name, role, t.dtype, {t.data, t.stride_bytes, row_bytes, 1, 0});
  }

  bool column(const char* name, const ColumnTensor& c) {
    return !c || add(name, Role::kColumn, c.dtype, column_bytes_of(d_, c));
  }

  bool scalar(const char* name, Role role, const std::byte* data) {
    return data == nullptr || add(name, role, Dtype::kF32, {data, kSameForAllRows, 4, 1, 0});
  }

  bool scale() {
    const RowTensor& s = d_.quant.scale;
    return !s || add("scale", Role::kQuant, s.dtype, scale_bytes_of(d_));
  }

  bool add(const char* name, Role role, Dtype dtype, const RowBytes& bytes) {
    View& v = view_[count_++];
    v.name = name;
    v.role = role;
    v.dtype = dtype;
    v.bytes = bytes;
    return address_range(v.bytes, d_.outer, &v.range, d_.outer_rank);
  }

  const NormDesc& d_;
  size_t count_ = 0;
  View view_[Touched::kMost];  // the first `count_` are set
};

// Whether two tensors share no byte, where their address ranges do not say so already.
bool interleaved(const RowBytes& a, const AddressRange& range_a, const NormDesc& of_a,
                 const RowBytes& b, const AddressRange& range_b, const NormDesc& of_b) {
  Footprint fa, fb;
  footprint(a, of_a.outer, range_a, &fa);
  footprint(b, of_b.outer, range_b, &fb);
  return disjoint(fa, fb);
}

FASTNORM_HOT bool same_view(const RowTensor& a, const RowTensor& b, const NormDesc& d) {
  if (a.data != b.data || a.dtype != b.dtype) return false;
  for (int i = 0; i < d.outer_rank; ++i) {
    if (d.outer[i] != 1 && a.stride_bytes[i] != b.stride_bytes[i]) return false;
  }
  return true;
}

fastnorm_status NormCheck::aliasing() {
  const bool fit = touched_.collect(d_);
  return fit && touched_.apart() ? FASTNORM_OK : aliasing_by_name();
}

// The same at length: for calls to refuse, and for views that are interleaved.
fastnorm_status NormCheck::aliasing_by_name() {
  Views views(d_);
  FASTNORM_REQUIRE(views.collect(), FASTNORM_ERROR_LAYOUT,
                   "%s's strides reach past the ends of the address space, or over more than 2^62 "
                   "bytes; required: strides in elements of memory that exists",
                   views.all().back().name);
  for (const View& out : views.all()) {
    if (!out.output()) continue;
    for (const View& other : views.all()) {
      if (other.output() && &other >= &out) continue;
      if (!separate(out.range, other.range)) FASTNORM_TRY(overlap(out, other));
    }
  }
  return FASTNORM_OK;
}

// An output and another tensor whose address ranges meet.
fastnorm_status NormCheck::overlap(const View& out, const View& other) {
  // Only these may be one view: whoever writes an element is who read it.
  const bool pair = (out.role == Role::kY && other.role == Role::kX) ||
                    (out.role == Role::kResidualOut && other.role == Role::kResidual);
  const bool in_place =
      pair && (out.role == Role::kY ? same_view(d_.y, d_.x, d_)
                                    : same_view(d_.residual_out, d_.residual, d_));
  FASTNORM_REQUIRE(in_place || interleaved(out.bytes, out.range, d_, other.bytes, other.range, d_),
                   FASTNORM_ERROR_LAYOUT,
                   "%s [0x%" PRIxPTR ", 0x%" PRIxPTR ") overlaps %s [0x%" PRIxPTR ", 0x%" PRIxPTR
                   "); required: %s, separate memory, or interleaved views that share no element",
                   out.name, out.range.begin, out.range.end, other.name, other.range.begin,
                   other.range.end,
                   !pair ? "two tensors" : "the same view (address, dtype, strides)");
  return FASTNORM_OK;
}

void NormCheck::fold() {
  RowTensor* present[8];
  size_t count = 0;
  for (RowTensor* t : {&d_.x, &d_.residual, &d_.y, &d_.residual_out, &d_.mean, &d_.rstd,
                       &d_.quant.codes, &d_.quant.scale}) {
    if (*t) present[count++] = t;
  }
  fold_rows(d_.outer, &d_.outer_rank, {present, count},
            d_.weight.head_stride_bytes != 0 || d_.bias.head_stride_bytes != 0);
}

// Fewest rows dimensions, and the least general settings that mean the same.
void NormCheck::canonical() {
  if (d_.outer_rank > 1) {
    if (may_fold(d_.outer, d_.outer_rank, d_.x)) fold();
  } else {
    d_.outer_rank = 1;
    if (d_.rows == 1) {  // as fold_rows() leaves it
      d_.x.stride_bytes[0] = d_.residual.stride_bytes[0] = 0;
      d_.y.stride_bytes[0] = d_.residual_out.stride_bytes[0] = 0;
      d_.mean.stride_bytes[0] = d_.rstd.stride_bytes[0] = 0;
      d_.quant.codes.stride_bytes[0] = d_.quant.scale.stride_bytes[0] = 0;
    }
  }
  d_.kind = args_.kind;
  d_.eps = args_.eps;
  d_.weight_offset = args_.weight_offset;
  d_.inv_n = reciprocal_of(d_.n);
  d_.sum_dtype = d_.residual_out ? d_.residual_out.dtype
                 : d_.residual   ? d_.residual.dtype
                                 : Dtype::kF32;
  const bool sum_is_rounded = d_.residual && d_.sum_dtype != Dtype::kF32;
  d_.residual_rounding = sum_is_rounded ? args_.residual_rounding : FASTNORM_RESIDUAL_EXACT;
  d_.rounding = d_.dtype == Dtype::kF32 && args_.rounding == FASTNORM_ROUND_NORMALIZED
                    ? FASTNORM_ROUND_ONCE
                    : args_.rounding;
  // A chain in T ends with a value of T.
  d_.quant.from_rounded |= d_.rounding == FASTNORM_ROUND_EVERY_STEP;
}

}  // namespace

fastnorm_status check_struct(const void* data, size_t size, size_t least, size_t own,
                             const char* name, Error& error) {
  FASTNORM_REQUIRE(size >= least, FASTNORM_ERROR_ARGUMENT,
                   "%s.struct_size is %zu; required: at least %zu", name, size, least);
  constexpr size_t kLongest =
      1 << 16;  // so that a garbage size is not taken for a long struct and read past its end
  FASTNORM_REQUIRE(size <= kLongest, FASTNORM_ERROR_ARGUMENT,
                   "%s.struct_size is %zu; required: at most %zu", name, size, kLongest);
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = own; i < size; ++i) {
    FASTNORM_REQUIRE(bytes[i] == 0, FASTNORM_ERROR_UNSUPPORTED,
                     "%s.struct_size is %zu and byte %zu is not 0; this library knows %zu bytes; "
                     "nearest: zero in the rest",
                     name, size, i, own);
  }
  return FASTNORM_OK;
}

bool Touched::collect(const NormDesc& d) {
  size_t count = 0;
  // Inline: the parts of `bytes` stay in registers, else they would be read back in pairs right after they are written.
  const auto add = [&](const RowBytes& bytes) __attribute__((always_inline)) {
    bytes_[count] = bytes;
    return address_range(bytes, d.outer, &range_[count++], d.outer_rank);
  };
  const auto rows = [&](const RowTensor& t, int64_t columns) {
    return !t || add({t.data, t.stride_bytes, columns * dtype_bytes(t.dtype), 1, 0});
  };
  // The same bytes for all rows: at most 2^34.
  const auto piece = [&](const std::byte* data, int64_t bytes) __attribute__((always_inline)) {
    bytes_[count] = {data, kSameForAllRows, bytes, 1, 0};
    AddressRange& range = range_[count++];
    range.begin = reinterpret_cast<uintptr_t>(data);
    return !__builtin_add_overflow(range.begin, static_cast<uintptr_t>(bytes), &range.end);
  };
  const auto columns = [&](const ColumnTensor& c) {
    if (!c) return true;
    return c.head_stride_bytes == 0 ? piece(c.data, d.n * dtype_bytes(c.dtype))
                                    : add(column_bytes_of(d, c));
  };
  const auto scalar = [&](const std::byte* data) { return data == nullptr || piece(data, 4); };
  const QuantDesc& q = d.quant;
  const bool quant = q.any();
  bool fit = same_view(d.x, d.y, d) || rows(d.x, d.n);
  if (d.residual) fit = fit && (same_view(d.residual, d.residual_out, d) || rows(d.residual, d.n));
  fit = fit && columns(d.weight) && columns(d.bias);
  if (quant) fit = fit && scalar(q.tensor_scale) && scalar(q.global_scale);
  inputs_ = count;
  fit = fit && rows(d.y, d.n) && rows(d.residual_out, d.n) && rows(d.mean, 1) && rows(d.rstd, 1);
  if (quant) {
    fit = fit && rows(q.codes, q.code_bytes(d.n)) && (!q.scale || add(scale_bytes_of(d))) &&
          scalar(q.amax);
  }
  count_ = count;
  return fit;
}

bool Touched::apart() const {
  for (size_t out = inputs_; out < count_; ++out) {
    for (size_t other = 0; other < out; ++other) {
      if (!separate(range_[out], range_[other])) return false;
    }
  }
  return true;
}

bool Touched::apart(const NormDesc& mine, const Touched& t, const NormDesc& theirs) const {
  for (size_t i = 0; i < count_; ++i) {
    for (size_t j = i < inputs_ ? t.inputs_ : 0; j < t.count_; ++j) {
      if (!separate(range_[i], t.range_[j]) &&
          !take_turns(bytes_[i], mine.outer, t.bytes_[j], theirs.outer) &&
          !interleaved(bytes_[i], range_[i], mine, t.bytes_[j], t.range_[j], theirs)) {
        return false;
      }
    }
  }
  return true;
}

fastnorm_status check_norm(const fastnorm_norm_args* args, CheckedDevice device, NormDesc* desc,
                           Touched* touched, Error& error) {
  fastnorm_norm_args local;
  const fastnorm_norm_args* ours = nullptr;
  FASTNORM_TRY(accept_struct(args, kFirstNormArgs, "args", &local, &ours, error));
  clear(desc);
  return NormCheck(*ours, device, desc, touched, error).run();
}

fastnorm_status check_norm(const fastnorm_norm_args* args, CheckedDevice device, NormDesc* desc,
                           Error& error) {
  Touched touched;
  return check_norm(args, device, desc, &touched, error);
}

fastnorm_status check_norm_many(std::span<const NormDesc> descs, std::span<const Touched> touched,
                                Error& error) {
  bool apart = true;
  for (size_t i = 1; i < descs.size(); ++i) {
    for (size_t j = 0; j < i && descs[i].rows != 0; ++j)
      apart = apart && (descs[j].rows == 0 || touched[j].apart(descs[j], touched[i], descs[i]));
  }
  return apart ? FASTNORM_OK : check_norm_many(descs, error);
}

fastnorm_status check_norm_many(std::span<const NormDesc> descs, Error& error) {
  for (size_t i = 0; i + 1 < descs.size(); ++i) {
    const NormDesc& a = descs[i];
    if (a.rows == 0) continue;
    Views views_a(a);
    views_a.collect();  // checked alone before, so its bytes exist
    for (size_t j = i + 1; j < descs.size(); ++j) {
      const NormDesc& b = descs[j];
      if (b.rows == 0) continue;
      Views views_b(b);
      views_b.collect();
      for (const View& va : views_a.all()) {
        for (const View& vb : views_b.all()) {
          if (!va.output() && !vb.output()) continue;
          FASTNORM_REQUIRE(
              separate(va.range, vb.range) ||
                  interleaved(va.bytes, va.range, a, vb.bytes, vb.range, b),
              FASTNORM_ERROR_LAYOUT,
              "args[%zu].%s [0x%" PRIxPTR ", 0x%" PRIxPTR ") overlaps args[%zu].%s [0x%" PRIxPTR
              ", 0x%" PRIxPTR "); required: no part touches what another one writes",
              i, va.name, va.range.begin, va.range.end, j, vb.name, vb.range.begin, vb.range.end);
        }
      }
    }
  }
  return FASTNORM_OK;
}

}  // namespace fastnorm
