#include "core/norm_heads/check.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>

#include "core/common/shared_fields.h"
#include "core/norm/check.h"
#include "core/norm/check_quant.h"
#include "core/norm/check_stages.h"
#include "core/norm_heads/part_check.h"
#include "core/norm_heads/tensors.h"

namespace fastnorm {
namespace {

constexpr uint32_t kPartFlags = FASTNORM_NORM_HEADS_NORM | FASTNORM_NORM_HEADS_ROPE | kRopeFlags |
                                FASTNORM_NORM_HEADS_ACROSS_HEADS;

// Byte stride of a dimension, with or without explicit strides; 0 if the dimension has one index.
int64_t step_of(const fastnorm_tensor& t, int32_t dim, int64_t bytes) {
  if (t.shape[dim] <= 1) return 0;
  if (t.strides != nullptr) return stride_bytes_of(t, dim, bytes);
  auto step =
      static_cast<uint64_t>(bytes);  // unsigned: the product may overflow if there are no elements
  for (int32_t i = t.ndim - 1; i > dim; --i) step *= static_cast<uint64_t>(t.shape[i]);
  return static_cast<int64_t>(step);
}

// One part's checks.
class PartCheck {
 public:
  PartCheck(const fastnorm_norm_heads_part& part, CheckedDevice device, NormHeadsPart* desc,
            Error& failure)
      : part_(part), device_(device), d_(*desc), error(failure) {}

  fastnorm_status run() {
    FASTNORM_TRY(accept_quant(part_.quant, "quant", &local_quant_, &quant_, error));
    FASTNORM_TRY(accept_quant(part_.cache_quant, "cache_quant", &local_cache_, &cache_, error));
    FASTNORM_TRY(flags());
    FASTNORM_TRY(rope_fields());
    FASTNORM_TRY(check_given_statistics(part_, number(part_.kind) == FASTNORM_NORM_LAYER, error));
    FASTNORM_TRY(cache_fields());
    FASTNORM_TRY(check_rules(part_, error));
    FASTNORM_TRY(head_weight_fields());
    FASTNORM_TRY(rows());
    if (part_.head_weights != nullptr) FASTNORM_TRY(one_scale());
    FASTNORM_TRY(head_values());
    return part_.cache == nullptr ? FASTNORM_OK : cache();
  }

 private:
  bool has(uint32_t flag) const { return (part_.flags & flag) != 0; }

  fastnorm_status flags() {
    FASTNORM_TRY(check_part_flags(part_.flags, kPartFlags, error));
    const bool codes = quant_ != nullptr && quant_->quantized != nullptr;
    FASTNORM_REQUIRE(
        part_.y != nullptr || codes || part_.cache != nullptr || part_.sumsq != nullptr ||
            part_.mean != nullptr || part_.rstd != nullptr,
        FASTNORM_ERROR_ARGUMENT,
        "y, quant.quantized, cache, sumsq, mean and rstd are NULL; required: an output");
    d_.normalise = has(FASTNORM_NORM_HEADS_NORM);
    d_.across_heads = has(FASTNORM_NORM_HEADS_ACROSS_HEADS);
    d_.rope = has(FASTNORM_NORM_HEADS_ROPE);
    d_.interleaved = has(FASTNORM_NORM_HEADS_ROPE_INTERLEAVED);
    d_.inverse = has(FASTNORM_NORM_HEADS_ROPE_INVERSE);
    d_.round_before_rope = has(FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED);
    return FASTNORM_OK;
  }

  fastnorm_status rope_fields() {
    FASTNORM_TRY(check_enum<&fastnorm_norm_heads_part::rope_rounding>(part_, error));
    FASTNORM_TRY(check_rope_offset(part_.rope_offset, error));
    d_.rope_every_step = part_.rope_rounding == FASTNORM_ROPE_EVERY_STEP;
    d_.rope_offset = part_.rope_offset;
    return FASTNORM_OK;
  }

  // How the codes of the cache are made, and which tensors that requires.
  fastnorm_status cache_fields() {
    FASTNORM_REQUIRE(part_.cache_tail == nullptr ||
                         (cache_ != nullptr && number(cache_->scheme) != FASTNORM_QUANT_NONE),
                     FASTNORM_ERROR_ARGUMENT,
                     "cache_tail is given and cache_quant.scheme is FASTNORM_QUANT_NONE (0); "
                     "required: PER_TENSOR (1) or PER_BLOCK (3), as the cache has codes");
    if (cache_ == nullptr) return FASTNORM_OK;
    const fastnorm_quant& c = *cache_;
    const int32_t scheme = number(c.scheme);
    const bool blocks = scheme == FASTNORM_QUANT_PER_BLOCK;
    FASTNORM_REQUIRE(scheme == FASTNORM_QUANT_NONE || scheme == FASTNORM_QUANT_PER_TENSOR || blocks,
                     FASTNORM_ERROR_ARGUMENT,
                     "cache_quant.scheme is %d; required: FASTNORM_QUANT_NONE (0), PER_TENSOR (1) "
                     "or PER_BLOCK (3)",
                     scheme);
    FASTNORM_REQUIRE(blocks ? c.block_size == 64 || c.block_size == 128 : c.block_size == 0,
                     FASTNORM_ERROR_ARGUMENT,
                     "cache_quant.block_size is %d and cache_quant.scheme is %d; required: 64 or "
                     "128 with FASTNORM_QUANT_PER_BLOCK (3), else 0",
                     c.block_size, scheme);
    FASTNORM_REQUIRE(c.scale_pow2 == 0 || (c.scale_pow2 == 1 && blocks), FASTNORM_ERROR_ARGUMENT,
                     "cache_quant.scale_pow2 is %d and cache_quant.scheme is %d; required: 0, or 1 "
                     "with FASTNORM_QUANT_PER_BLOCK (3)",
                     c.scale_pow2, scheme);
    FASTNORM_REQUIRE(part_.cache != nullptr || scheme == FASTNORM_QUANT_NONE,
                     FASTNORM_ERROR_ARGUMENT,
                     "cache is NULL and cache_quant.scheme is %d; required: a tensor, or "
                     "FASTNORM_QUANT_NONE (0)",
                     scheme);
    FASTNORM_REQUIRE((c.scale != nullptr) == (scheme != FASTNORM_QUANT_NONE),
                     FASTNORM_ERROR_ARGUMENT,
                     "cache_quant.scale is %s and cache_quant.scheme is %d; required: %s",
                     c.scale == nullptr ? "NULL" : "given", scheme,
                     scheme != FASTNORM_QUANT_NONE ? "a tensor" : "NULL");
    FASTNORM_TRY(only_of_caches());
    QuantDesc& q = d_.cache.quant;
    if (c.rotation != 0 || c.rotation_signs != nullptr)
      FASTNORM_TRY(check_rotation("cache_quant", c, c.block_size, error));
    q.rotation = c.rotation;
    q.scheme = static_cast<fastnorm_quant_scheme>(scheme);
    q.block = c.block_size;
    q.pow2 = c.scale_pow2 != 0;
    q.divides = number(c.division) == FASTNORM_QUANT_DIVIDE;
    return FASTNORM_OK;
  }

  // Fields of cache_quant that its scheme, or a cache, has no use for.
  fastnorm_status only_of_caches() {
    const fastnorm_quant& c = *cache_;
    const int32_t scheme = number(c.scheme), source = number(c.source),
                  division = number(c.division);
    FASTNORM_TRY(check_enum<&fastnorm_quant::source>(c, error, "cache_quant.source"));
    FASTNORM_TRY(check_enum<&fastnorm_quant::division>(c, error, "cache_quant.division"));
    const struct {
      const char* name;
      double value;
      bool used;
      const char* user;
    } scalars[] = {
        {"source", static_cast<double>(source), scheme != FASTNORM_QUANT_NONE, " without a scheme"},
        {"division", static_cast<double>(division), scheme != FASTNORM_QUANT_NONE,
         " without a scheme"},
        {"amax_floor", static_cast<double>(c.amax_floor), scheme == FASTNORM_QUANT_PER_BLOCK,
         " but for FASTNORM_QUANT_PER_BLOCK (3)"},
        {"scale_layout", static_cast<double>(number(c.scale_layout)), false,
         ", as the scales of a cache have strides"},
        {"clamp", static_cast<double>(c.clamp), false, ", as a cache is not clamped"},
        {"rotation", static_cast<double>(c.rotation), scheme != FASTNORM_QUANT_NONE,
         " without a scheme"},
        {"y_rotated", static_cast<double>(c.y_rotated), false, ", as y is that of quant"}};
    for (const auto& s : scalars) {
      FASTNORM_REQUIRE(s.value == 0 || s.used, FASTNORM_ERROR_ARGUMENT,
                       "cache_quant.%s is %g and cache_quant.scheme is %d; required: 0%s", s.name,
                       s.value, scheme, s.user);
    }
    const struct {
      const char* name;
      const fastnorm_tensor* tensor;
      const char* reason;
    } tensors[] = {{"quantized", c.quantized, "codes go to cache"},
                   {"global_scale", c.global_scale, "no scheme of a cache has one"},
                   {"clamp_scale", c.clamp_scale, "a cache is not clamped"},
                   {"amax", c.amax, "codes of a cache have none"}};
    for (const auto& t : tensors) {
      FASTNORM_REQUIRE(t.tensor == nullptr, FASTNORM_ERROR_ARGUMENT,
                       "cache_quant.%s is given; required: NULL, as %s", t.name, t.reason);
    }
    return FASTNORM_OK;
  }

  // Kernels make the codes of y and of the cache alike.
  fastnorm_status like_y() {
    const int32_t scheme = number(quant_->scheme);
    if (scheme == FASTNORM_QUANT_NONE) return FASTNORM_OK;
    FASTNORM_REQUIRE(number(cache_->source) == number(quant_->source), FASTNORM_ERROR_ARGUMENT,
                     "cache_quant.source is %d and quant.source is %d; required: one source for "
                     "both",
                     number(cache_->source), number(quant_->source));
    FASTNORM_REQUIRE(
        number(cache_->division) == number(quant_->division) || scheme > FASTNORM_QUANT_PER_BLOCK,
        FASTNORM_ERROR_ARGUMENT,
        "cache_quant.division is %d and quant.division is %d; required: one division "
        "for both",
        number(cache_->division), number(quant_->division));
    return FASTNORM_OK;
  }

  // Head weights go with codes.
  fastnorm_status head_weight_fields() {
    const float factor = part_.head_weights_factor;
    FASTNORM_REQUIRE(std::isfinite(factor), FASTNORM_ERROR_ARGUMENT,
                     "head_weights_factor is %g; required: finite", static_cast<double>(factor));
    FASTNORM_REQUIRE(
        part_.head_weights == nullptr || (quant_ != nullptr && quant_->quantized != nullptr),
        FASTNORM_ERROR_ARGUMENT,
        "head_weights is given and quant.quantized is NULL; required: codes, whose "
        "scales the weights are multiplied by");
    d_.head_weights_factor = factor == 0 ? 1 : factor;
    return FASTNORM_OK;
  }

  // A head weight is multiplied by the scale of its row.
  fastnorm_status one_scale() {
    const QuantDesc& q = d_.norm.quant;
    const SchemeScale scale = scheme_of(q.scheme).scale;
    FASTNORM_REQUIRE(
        (scale == SchemeScale::kInput || scale == SchemeScale::kDynamic) &&
            q.scales(d_.norm.n) == 1,
        FASTNORM_ERROR_ARGUMENT,
        "head_weights is given and quant.scheme is %s, with %" PRId64
        " scales for a row of %" PRId64
        " columns; required: FASTNORM_QUANT_PER_TENSOR (1), PER_ROW (2), or PER_BLOCK (3) with "
        "rows of at most block_size columns",
        scheme_of(q.scheme).text, q.scales(d_.norm.n), d_.norm.n);
    return FASTNORM_OK;
  }

  // x and the fields that a part shares with fastnorm_norm, as rows of (token, head).
  fastnorm_status rows() {
    FASTNORM_REQUIRE(part_.x != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "x is NULL; required: a tensor [tokens, heads, d]");
    const fastnorm_tensor& x = *part_.x;
    FASTNORM_REQUIRE(x.ndim == 3, FASTNORM_ERROR_SHAPE,
                     "x.ndim is %d; required: 3, [tokens, heads, d]", x.ndim);
    FASTNORM_TRY(check_norm_part(as_norm(), device_, &d_.norm, error));
    const NamedTensor weights[] = {{"weight", part_.weight}, {"bias", part_.bias}};
    FASTNORM_TRY(check_heads("x", x, d_.across_heads, weights, error));
    const int64_t bytes = dtype_bytes(dtype_from(x.dtype));
    d_.heads = x.shape[1];
    d_.head_stride = step_of(x, 1, bytes);
    d_.token_stride = step_of(x, 0, bytes);
    return FASTNORM_OK;
  }

  fastnorm_norm_args as_norm() const {
    fastnorm_norm_args a = {};
    a.struct_size = sizeof a;
    copy_number(a.kind, part_.kind);
    a.eps = part_.eps;
    a.weight_offset = part_.weight_offset;
    copy_number(a.rounding, part_.rounding);
    a.x = part_.x;
    a.weight = part_.weight;
    a.bias = part_.bias;
    a.y = part_.y;
    a.quant = quant_;
    return a;
  }

  fastnorm_status head_values() {
    fastnorm_status status = FASTNORM_OK;
    for_each_head_values(d_, [&](auto of, HeadValues& values) {
      using Of = decltype(of);
      constexpr bool kAnyFloat = (Of::kField.dtypes & schema::kAnyBit) != 0;
      status = values_of_heads(Of::kField.name, part_.*Of::kMember, kAnyFloat, is_of_token(d_, of),
                               values_of(d_, of) > 1, &values);
      return status == FASTNORM_OK;
    });
    return status;
  }

  // [tokens, heads], or with `of_token` [tokens]; with `pairs` a last 2.
  fastnorm_status values_of_heads(const char* name, const fastnorm_tensor* tensor, bool any_float,
                                  bool of_token, bool pairs, HeadValues* values) {
    if (tensor == nullptr) return FASTNORM_OK;
    const fastnorm_tensor& t = *tensor;
    const int64_t* x = part_.x->shape;
    const Dtype dtype = dtype_from(t.dtype);
    FASTNORM_REQUIRE(
        dtype == Dtype::kF32 || (any_float && (dtype == Dtype::kF16 || dtype == Dtype::kBF16)),
        FASTNORM_ERROR_DTYPE, "%s.dtype is %s; required: f32%s", name, dtype_text(t.dtype).c,
        any_float ? ", f16 or bf16" : "");
    FASTNORM_TRY(check_tensor(name, t, {dtype, 3, pairs}, device_, error));
    int32_t rank = 0;
    int64_t shape[3] = {};
    shape[rank++] = x[0];
    if (!of_token) shape[rank++] = x[1];
    if (pairs) shape[rank++] = 2;
    FASTNORM_REQUIRE(t.ndim == rank && std::equal(shape, shape + rank, t.shape),
                     FASTNORM_ERROR_SHAPE, "%s.shape is %s; required: %s, as x is %s%s", name,
                     shape_text(t.shape, t.ndim).c, shape_text(shape, rank).c, shape_text(x, 3).c,
                     d_.across_heads ? " with ACROSS_HEADS" : "");
    values->data = address_of(t);
    values->dtype = dtype;
    values->token_stride = step_of(t, 0, dtype_bytes(dtype));
    values->head_stride = of_token ? 0 : step_of(t, 1, dtype_bytes(dtype));
    return FASTNORM_OK;
  }

  fastnorm_status cache() {
    const fastnorm_tensor& t = *part_.cache;
    const Dtype dtype = dtype_from(t.dtype);
    FASTNORM_TRY(cache_dtype(t, dtype));
    FASTNORM_TRY(check_tensor("cache", t, {dtype, 4, true}, device_, error));
    const int64_t* x = part_.x->shape;
    HeadsCache& c = d_.cache;
    if (part_.cache_tail != nullptr) FASTNORM_TRY(tail(*part_.cache_tail));
    const int64_t columns = d_.cache_columns();
    FASTNORM_REQUIRE(t.ndim == 4 && t.shape[2] == x[1] && t.shape[3] == columns,
                     FASTNORM_ERROR_SHAPE,
                     "cache.shape is %s; required: [pages, page_size, %" PRId64 ", %" PRId64
                     "], the heads and columns of x%s",
                     shape_text(t.shape, t.ndim).c, x[1], columns,
                     c.tail_columns == 0 ? "" : " without those of cache_tail");
    FASTNORM_REQUIRE(
        c.tail_columns == 0 || std::equal(t.shape, t.shape + 3, part_.cache_tail->shape),
        FASTNORM_ERROR_SHAPE,
        "cache_tail.shape is %s; required: the pages, page_size and heads of cache, which is %s",
        shape_text(part_.cache_tail->shape, 4).c, shape_text(t.shape, 4).c);
    FASTNORM_REQUIRE(t.shape[0] == 0 || t.shape[1] >= 1, FASTNORM_ERROR_SHAPE,
                     "cache.shape is %s; required: pages of at least 1 token",
                     shape_text(t.shape, 4).c);
    c.pages = t.shape[0];
    c.page_size = std::max<int64_t>(t.shape[1], 1);
    place(t, dtype_bytes(dtype), &c.rows);
    c.rows.dtype = dtype;
    QuantDesc& q = c.quant;
    const bool codes = q.scheme != FASTNORM_QUANT_NONE;
    if (codes && quant_ != nullptr) FASTNORM_TRY(like_y());
    q.from_rounded = (codes && number(cache_->source) == FASTNORM_QUANT_FROM_ROUNDED) ||
                     d_.norm.rounding == FASTNORM_ROUND_EVERY_STEP;
    q.divides = q.divides && !q.pow2 && codes;
    q.dtype = dtype;
    q.codes = c.rows;
    if (q.rotation != 0)
      FASTNORM_TRY(check_rotation_columns("cache_quant", *cache_, columns, device_, &q, error));
    if (q.scheme == FASTNORM_QUANT_PER_TENSOR)
      return check_scalar("cache_quant.scale", *cache_->scale, device_, &q.tensor_scale, error);
    return codes ? cache_scale(*cache_->scale) : FASTNORM_OK;
  }

  // The elements of the last columns.
  fastnorm_status tail(const fastnorm_tensor& t) {
    const Dtype dtype = dtype_from(t.dtype), own = dtype_from(part_.x->dtype);
    FASTNORM_REQUIRE(dtype == own, FASTNORM_ERROR_DTYPE,
                     "cache_tail.dtype is %s; required: %s, as x is", dtype_text(t.dtype).c,
                     dtype_name(own));
    FASTNORM_TRY(check_tensor("cache_tail", t, {dtype, 4, true}, device_, error));
    const int64_t* x = part_.x->shape;
    FASTNORM_REQUIRE(t.ndim == 4 && t.shape[3] >= 1 && t.shape[3] < x[2], FASTNORM_ERROR_SHAPE,
                     "cache_tail.shape is %s; required: [pages, page_size, %" PRId64
                     ", e] with e from 1 to %" PRId64 ", fewer than the columns of x",
                     shape_text(t.shape, t.ndim).c, x[1], x[2] - 1);
    HeadsCache& c = d_.cache;
    c.tail_columns = t.shape[3];
    c.tail.dtype = dtype;
    place(t, dtype_bytes(dtype), &c.tail);
    return FASTNORM_OK;
  }

  fastnorm_status cache_dtype(const fastnorm_tensor& t, Dtype dtype) {
    const QuantDesc& q = d_.cache.quant;
    const Dtype own = dtype_from(part_.x->dtype);
    const bool fp8 = dtype == Dtype::kF8E4M3 || dtype == Dtype::kF8E5M2;
    const bool fits =
        q.scheme == FASTNORM_QUANT_NONE ? dtype == own : fp8 || (dtype == Dtype::kI8 && !q.pow2);
    FASTNORM_REQUIRE(fits, FASTNORM_ERROR_DTYPE,
                     "cache.dtype is %s and cache_quant.scheme is %d; required: %s%s",
                     dtype_text(t.dtype).c, static_cast<int>(q.scheme),
                     q.scheme == FASTNORM_QUANT_NONE ? dtype_name(own)
                     : q.pow2                        ? "f8_e4m3fn or f8_e5m2"
                                                     : "f8_e4m3fn, f8_e5m2 or i8",
                     q.scheme == FASTNORM_QUANT_NONE ? ", as x is, or a scheme" : "");
    return FASTNORM_OK;
  }

  // Address and strides of [pages, page_size, heads, ..].
  static void place(const fastnorm_tensor& t, int64_t bytes, RowTensor* rows) {
    rows->data = address_of(t);
    for (int32_t i = 0; i < 3; ++i) rows->stride_bytes[i] = step_of(t, 2 - i, bytes);
  }

  fastnorm_status cache_scale(const fastnorm_tensor& t) {
    QuantDesc& q = d_.cache.quant;
    const Dtype dtype = dtype_from(t.dtype);
    const bool byte = q.pow2 && (dtype == Dtype::kF8E8M0 || dtype == Dtype::kU8);
    FASTNORM_REQUIRE(byte || dtype == Dtype::kF32, FASTNORM_ERROR_DTYPE,
                     "cache_quant.scale.dtype is %s; required: %s", dtype_text(t.dtype).c,
                     q.pow2 ? "f32, f8_e8m0fnu or u8" : "f32");
    FASTNORM_TRY(check_amax_floor("cache_quant.amax_floor", cache_->amax_floor, error));
    FASTNORM_TRY(check_tensor("cache_quant.scale", t, {dtype, 4, false}, device_, error));
    const int64_t* cache = part_.cache->shape;
    const int64_t shape[4] = {cache[0], cache[1], cache[2], q.scales(cache[3])};
    FASTNORM_REQUIRE(t.ndim == 4 && std::equal(shape, shape + 4, t.shape), FASTNORM_ERROR_SHAPE,
                     "cache_quant.scale.shape is %s; required: %s, as cache is %s",
                     shape_text(t.shape, t.ndim).c, shape_text(shape, 4).c, shape_text(cache, 4).c);
    place(t, dtype_bytes(dtype), &q.scale);
    q.scale.dtype = dtype;
    q.scale_step_bytes = shape[3] == 1 ? dtype_bytes(dtype) : step_of(t, 3, dtype_bytes(dtype));
    q.amax_floor = cache_->amax_floor == 0 ? 1e-10f : cache_->amax_floor;
    return FASTNORM_OK;
  }

  const fastnorm_norm_heads_part& part_;
  const CheckedDevice device_;
  NormHeadsPart& d_;
  Error& error;
  fastnorm_quant local_quant_, local_cache_;  // not initialised: few calls need them
  const fastnorm_quant* quant_ = nullptr;     // those of part_ in our size; nullptr = none
  const fastnorm_quant* cache_ = nullptr;
};

// What the parts share.
class NormHeadsCheck {
 public:
  NormHeadsCheck(const fastnorm_norm_heads_args& args, CheckedDevice device, NormHeadsDesc* desc,
                 Error& failure)
      : args_(args), device_(device), d_(*desc), error(failure) {}

  fastnorm_status parts(const fastnorm_norm_heads_part* const* parts, int32_t count) {
    const auto check = [&](int32_t i, const fastnorm_norm_heads_part& part) {
      d_.parts[i] = {};  // not all parts at once: their kilobytes take longer than the checks
      FASTNORM_TRY(PartCheck(part, device_, &d_.parts[i], error).run());
      return same_tokens(i, *part.x);
    };
    FASTNORM_TRY(for_each_part_struct(kPartsNames, parts, count, error, check));
    d_.count = count;
    return FASTNORM_OK;
  }

  fastnorm_status shared() {
    FASTNORM_TRY(scalars());
    if (has_rope()) FASTNORM_TRY(tables());
    if (has_rope()) FASTNORM_TRY(windows());
    if (args_.positions != nullptr) FASTNORM_TRY(positions(*args_.positions));
    if (has_rope()) FASTNORM_TRY(sections());
    FASTNORM_TRY(table_rows());
    d_.slot_count = d_.tokens;
    return args_.slots == nullptr ? FASTNORM_OK : slots(*args_.slots);
  }

 private:
  bool has_rope() const {
    return std::any_of(d_.parts, d_.parts + d_.count, [](const auto& p) { return p.rope; });
  }
  bool has_cache() const {
    return std::any_of(d_.parts, d_.parts + d_.count,
                       [](const auto& p) { return p.cache.rows.dtype != Dtype::kUnknown; });
  }

  fastnorm_status same_tokens(int32_t i, const fastnorm_tensor& x) {
    const Dtype dtype = dtype_from(x.dtype);
    if (i == 0) {
      d_.tokens = x.shape[0];
      d_.dtype = dtype;
    }
    FASTNORM_REQUIRE(x.shape[0] == d_.tokens, FASTNORM_ERROR_SHAPE,
                     "x.shape is %s; required: the %" PRId64 " tokens of parts[0].x",
                     shape_text(x.shape, 3).c, d_.tokens);
    FASTNORM_REQUIRE(dtype == d_.dtype, FASTNORM_ERROR_DTYPE,
                     "x.dtype is %s; required: %s, as parts[0].x", dtype_name(dtype),
                     dtype_name(d_.dtype));
    return FASTNORM_OK;
  }

  fastnorm_status scalars() {
    constexpr uint32_t kFlags = FASTNORM_NORM_HEADS_MROPE_INTERLEAVED | FASTNORM_NORM_HEADS_NO_PDL;
    FASTNORM_TRY(check_flags("args.flags", args_.flags, kFlags, error));
    const bool rope = has_rope();
    FASTNORM_REQUIRE(rope || args_.rope_dim == 0, FASTNORM_ERROR_ARGUMENT,
                     "rope_dim is %d and no part has ROPE; required: 0", args_.rope_dim);
    const struct {
      const char* name;
      const fastnorm_tensor* tensor;
      bool required, allowed;
      const char* user;
    } tensors[] = {{"cos", args_.cos, rope, rope, "ROPE"},
                   {"sin", args_.sin, rope, rope, "ROPE"},
                   {"positions", args_.positions, false, rope, "ROPE"},
                   {"slots", args_.slots, has_cache(), has_cache(), "a cache"}};
    for (const auto& t : tensors) {
      FASTNORM_REQUIRE(t.tensor != nullptr || !t.required, FASTNORM_ERROR_ARGUMENT,
                       "%s is NULL and a part has %s; required: a tensor", t.name, t.user);
      FASTNORM_REQUIRE(t.tensor == nullptr || t.allowed, FASTNORM_ERROR_ARGUMENT,
                       "%s is given and no part has %s; required: NULL", t.name, t.user);
    }
    d_.mrope_interleaved = (args_.flags & FASTNORM_NORM_HEADS_MROPE_INTERLEAVED) != 0;
    d_.pdl = args_.flags & FASTNORM_NORM_HEADS_NO_PDL;
    return FASTNORM_OK;
  }

  fastnorm_status tables() {
    FASTNORM_REQUIRE(args_.rope_dim >= 0 && args_.rope_dim % 2 == 0, FASTNORM_ERROR_SHAPE,
                     "rope_dim is %d; required: even and >= 0", args_.rope_dim);
    d_.rope_dim = args_.rope_dim;
    FASTNORM_TRY(table("cos", *args_.cos, &d_.cos));
    FASTNORM_TRY(table("sin", *args_.sin, &d_.sin));
    const fastnorm_tensor &c = *args_.cos, &s = *args_.sin;
    FASTNORM_REQUIRE(c.ndim == s.ndim && same_numbers(c.shape, s.shape, c.ndim),
                     FASTNORM_ERROR_SHAPE, "sin.shape is %s; required: %s, as cos",
                     shape_text(s.shape, s.ndim).c, shape_text(c.shape, c.ndim).c);
    FASTNORM_REQUIRE(dtype_id(c.dtype) == dtype_id(s.dtype), FASTNORM_ERROR_DTYPE,
                     "sin.dtype is %s; required: %s, as cos", dtype_text(s.dtype).c,
                     dtype_text(c.dtype).c);
    d_.table_dtype = dtype_from(c.dtype);
    d_.table_rows = c.shape[c.ndim - 2];
    d_.table_repeats = c.shape[c.ndim - 1] != d_.rope_dim / 2;
    for (int32_t i = 0; c.ndim == 3 && i < d_.count; ++i) {
      FASTNORM_REQUIRE(!d_.parts[i].rope || d_.parts[i].heads == c.shape[0], FASTNORM_ERROR_SHAPE,
                       "cos.shape is %s and parts[%d].x has %" PRId64
                       " heads; required: a table for each head, or one of rank 2",
                       shape_text(c.shape, 3).c, i, d_.parts[i].heads);
    }
    return FASTNORM_OK;
  }

  fastnorm_status table(const char* name, const fastnorm_tensor& t, RopeTable* result) {
    const Dtype dtype = dtype_from(t.dtype);
    FASTNORM_REQUIRE(dtype == Dtype::kF32 || dtype == d_.dtype, FASTNORM_ERROR_DTYPE,
                     "%s.dtype is %s; required: f32%s%s", name, dtype_text(t.dtype).c,
                     d_.dtype == Dtype::kF32 ? "" : " or ",
                     d_.dtype == Dtype::kF32 ? "" : dtype_name(d_.dtype));
    FASTNORM_TRY(check_tensor(name, t, {dtype, 3, true}, device_, error));
    const int64_t half = d_.rope_dim / 2, width = t.ndim >= 2 ? t.shape[t.ndim - 1] : -1;
    FASTNORM_REQUIRE(width == half || width == 2 * half, FASTNORM_ERROR_SHAPE,
                     "%s.shape is %s; required: [P, %" PRId64 "] or [P, %" PRId64
                     "], or that for each head, as rope_dim is %d",
                     name, shape_text(t.shape, t.ndim).c, half, 2 * half, args_.rope_dim);
    const int64_t bytes = dtype_bytes(dtype);
    result->data = address_of(t);
    result->row_stride = step_of(t, t.ndim - 2, bytes);
    result->head_stride = t.ndim == 3 ? step_of(t, 0, bytes) : 0;
    return FASTNORM_OK;
  }

  // The first column that rope rotates, for each part.
  fastnorm_status windows() {
    for (int32_t i = 0; i < d_.count; ++i) {
      NormHeadsPart& p = d_.parts[i];
      if (!p.rope) continue;
      const int64_t given = p.rope_offset, columns = d_.parts[i].norm.n;
      const int64_t offset = given == -1 ? columns - d_.rope_dim : given;
      FASTNORM_REQUIRE(offset >= 0 && offset + d_.rope_dim <= columns, FASTNORM_ERROR_SHAPE,
                       "parts[%d].rope_offset is %" PRId64 " and rope_dim is %" PRId64
                       "; required: columns of x, which has %" PRId64,
                       i, given, d_.rope_dim, columns);
      p.rope_offset = offset;
    }
    return FASTNORM_OK;
  }

  fastnorm_status positions(const fastnorm_tensor& t) {
    FASTNORM_TRY(indices("positions", t, 2, &d_.positions));
    const int64_t axes = t.ndim == 2 ? t.shape[0] : 1;
    FASTNORM_REQUIRE(t.shape[t.ndim - 1] == d_.tokens && axes >= 1 && axes <= kMaxRopeAxes,
                     FASTNORM_ERROR_SHAPE,
                     "positions.shape is %s; required: [%" PRId64 "] or [axes, %" PRId64
                     "] with 1 to 4 axes, for the tokens of x",
                     shape_text(t.shape, t.ndim).c, d_.tokens, d_.tokens);
    d_.axes = static_cast<int32_t>(axes);
    d_.positions.axis_stride = t.ndim == 2 ? step_of(t, 0, d_.positions.stride) : 0;
    return FASTNORM_OK;
  }

  fastnorm_status sections() {
    const int32_t given[kMaxRopeAxes] = {args_.mrope_0, args_.mrope_1, args_.mrope_2,
                                         args_.mrope_3};
    int64_t sum = 0;
    for (int32_t a = 0; a < kMaxRopeAxes; ++a) {
      FASTNORM_REQUIRE(given[a] >= 0 && (given[a] == 0 || (d_.axes > 1 && a < d_.axes)),
                       FASTNORM_ERROR_SHAPE,
                       "mrope_%d is %d and positions has %d row%s; required: pairs of that row, 0 "
                       "with one row",
                       a, given[a], d_.axes, d_.axes == 1 ? "" : "s");
      sum += given[a];
      d_.section_end[a] = d_.mrope_interleaved ? int64_t{3} * given[a] : sum;
    }
    FASTNORM_REQUIRE(d_.axes == 1 || sum == d_.rope_dim / 2, FASTNORM_ERROR_SHAPE,
                     "mrope_0 to mrope_3 are %d, %d, %d and %d; required: a sum of %" PRId64
                     ", half of rope_dim, as positions has %d rows",
                     given[0], given[1], given[2], given[3], d_.rope_dim / 2, d_.axes);
    FASTNORM_REQUIRE(!d_.mrope_interleaved || d_.axes == 3, FASTNORM_ERROR_SHAPE,
                     "args.flags has MROPE_INTERLEAVED and positions has %d row%s; required: 3",
                     d_.axes, d_.axes == 1 ? "" : "s");
    return FASTNORM_OK;
  }

  fastnorm_status table_rows() {
    // A GPU reads the first row for padding.
    FASTNORM_REQUIRE(!has_rope() || d_.tokens == 0 || d_.table_rows >= 1, FASTNORM_ERROR_SHAPE,
                     "cos has 0 rows for %" PRId64 " tokens; required: at least 1 row", d_.tokens);
    FASTNORM_REQUIRE(!has_rope() || d_.positions || d_.table_rows >= d_.tokens,
                     FASTNORM_ERROR_SHAPE,
                     "cos has %" PRId64 " rows for %" PRId64
                     " tokens and positions is NULL; required: a row for each token",
                     d_.table_rows, d_.tokens);
    return FASTNORM_OK;
  }

  fastnorm_status slots(const fastnorm_tensor& t) {
    FASTNORM_TRY(indices("slots", t, 1, &d_.slots));
    FASTNORM_REQUIRE(t.shape[0] <= d_.tokens, FASTNORM_ERROR_SHAPE,
                     "slots.shape is %s; required: at most the %" PRId64 " tokens of x",
                     shape_text(t.shape, 1).c, d_.tokens);
    d_.slot_count = t.shape[0];
    return FASTNORM_OK;
  }

  // i32 or i64, of at most so many dimensions, the last of them contiguous.
  fastnorm_status indices(const char* name, const fastnorm_tensor& t, int32_t max_rank,
                          IndexTensor* result) {
    const Dtype dtype = dtype_from(t.dtype);
    FASTNORM_TRY(check_index_dtype(name, t, error));
    FASTNORM_TRY(check_tensor(name, t, {dtype, max_rank, true}, device_, error));
    result->data = address_of(t);
    result->stride = dtype_bytes(dtype);
    result->wide = dtype == Dtype::kI64;
    return FASTNORM_OK;
  }

  const fastnorm_norm_heads_args& args_;
  const CheckedDevice device_;
  NormHeadsDesc& d_;
  Error& error;
};

}  // namespace

fastnorm_status check_norm_heads(const fastnorm_norm_heads_args* args,
                                 const fastnorm_norm_heads_part* const* parts, int32_t count,
                                 CheckedDevice device, NormHeadsDesc* desc, Error& error) {
  fastnorm_norm_heads_args local;
  const fastnorm_norm_heads_args* ours = nullptr;
  FASTNORM_TRY(accept_call(args, "args", &local, &ours, error));
  FASTNORM_TRY(check_part_list(kPartsNames, parts, count, error));
  static_cast<NormHeadsShared&>(*desc) = {};
  desc->parallel_user = ours->parallel_user;
  NormHeadsCheck check(*ours, device, desc, error);
  FASTNORM_TRY(check.parts(parts, count));
  FASTNORM_TRY(check.shared());
  return desc->empty() ? FASTNORM_OK : check_norm_heads_aliasing(*ours, *desc, error);
}

fastnorm_status check_norm_heads_shared(const fastnorm_norm_heads_args& args, CheckedDevice device,
                                        NormHeadsDesc* desc, Error& error) {
  return NormHeadsCheck(args, device, desc, error).shared();
}

namespace {

fastnorm_status check_token_positions(const RopeTables& d, int64_t token, Error& error) {
  for (int32_t a = 0; a < d.axes; ++a) {
    const int64_t position = d.positions.at(a, token);
    FASTNORM_REQUIRE(position >= 0 && position < d.table_rows, FASTNORM_ERROR_ARGUMENT,
                     "the position of token %" PRId64 ", axis %d, is %" PRId64
                     "; required: 0 to %" PRId64 ", the rows of cos",
                     token, a, position, d.table_rows - 1);
  }
  return FASTNORM_OK;
}

}  // namespace

fastnorm_status check_rope_positions(const RopeTables& d, int64_t tokens, Error& error) {
  for (int64_t t = 0; d.positions && t < tokens; ++t)
    FASTNORM_TRY(check_token_positions(d, t, error));
  return FASTNORM_OK;
}

fastnorm_status check_norm_heads_values(const NormHeadsDesc& d, Error& error) {
  for (int32_t i = 0; i < d.count; ++i) {
    const NormHeadsPart& p = d.parts[i];
    const HeadsCache& c = p.cache;
    error.prefix = kPartsNames.prefix[i];
    FASTNORM_TRY(check_rotation_signs("quant", p.norm.quant, p.norm.n, error));
    FASTNORM_TRY(check_rotation_signs("cache_quant", c.quant, p.cache_columns(), error));
    error.prefix = "";
    if (!c) continue;
    for (int64_t t = 0; t < d.slot_count; ++t) {
      const int64_t slot = d.slots.at(0, t);
      FASTNORM_REQUIRE(slot >= -1 && (slot < 0 || slot / c.page_size < c.pages),
                       FASTNORM_ERROR_ARGUMENT,
                       "slots[%" PRId64 "] is %" PRId64 "; required: -1, or 0 to the %" PRId64
                       " pages of %" PRId64 " tokens of parts[%d].cache",
                       t, slot, c.pages, c.page_size, i);
    }
  }
  for (int64_t t = 0; d.positions && t < d.tokens; ++t) {
    if (!d.is_padding(t)) FASTNORM_TRY(check_token_positions(d, t, error));
  }
  return FASTNORM_OK;
}

}  // namespace fastnorm
