#include "core/mla_decode/check.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>

#include "core/common/check.h"
#include "core/common/shared_fields.h"
#include "core/norm/view.h"

namespace fastnorm {
namespace {

constexpr int64_t kMostRows = int64_t{1} << 24;  // packed rows of a request
constexpr int64_t kMostIndices = int64_t{1} << 40;
constexpr int64_t kMostStride = int64_t{1} << 40;  // bytes, of a tensor map
constexpr int64_t kCudaAlign = 16;                 // of addresses and strides
constexpr int32_t kMostEvents = 1 << 20;           // of a warpgroup's profile
constexpr int32_t kMostSplit = 1 << 30;            // tokens

class MlaDecodeCheck {
 public:
  MlaDecodeCheck(const fastnorm_mla_decode_args& args, CheckedDevice device, MlaDecodeDesc* desc,
                 Error& failure)
      : args_(args), device_(device), d_(*desc), error(failure) {}

  fastnorm_status run() {
    FASTNORM_TRY(scalars());
    FASTNORM_TRY(presence());
    FASTNORM_TRY(queries());
    FASTNORM_TRY(cache());
    FASTNORM_TRY(lengths());
    FASTNORM_TRY(new_tokens());
    FASTNORM_TRY(outputs());
    return d_.empty() ? FASTNORM_OK : aliasing();
  }

 private:
  bool cuda() const { return device_.device_type == FASTNORM_DEVICE_CUDA; }

  fastnorm_status scalars() {
    FASTNORM_REQUIRE(std::isfinite(args_.sm_scale) && args_.sm_scale != 0, FASTNORM_ERROR_ARGUMENT,
                     "sm_scale is %g; required: finite and not 0, such as 1 / sqrt(192)",
                     args_.sm_scale);
    // Scores are single precision.
    FASTNORM_REQUIRE(std::fabs(args_.sm_scale) >= 0x1p-100 && std::fabs(args_.sm_scale) <= 0x1p60,
                     FASTNORM_ERROR_ARGUMENT,
                     "sm_scale is %g; required: a magnitude from 2^-100 to 2^60", args_.sm_scale);
    FASTNORM_REQUIRE(!cuda() || args_.sm_scale > 0, FASTNORM_ERROR_UNSUPPORTED,
                     "sm_scale is %g on a CUDA device; nearest: > 0, with q negated",
                     args_.sm_scale);
    FASTNORM_TRY(check_switch("causal", args_.causal, error));
    FASTNORM_TRY(check_enum<&fastnorm_mla_decode_args::lse_base>(args_, error));
    FASTNORM_TRY(check_switch("reuse_plan", args_.reuse_plan, error));
    FASTNORM_REQUIRE(
        args_.split_tokens >= 0 && args_.split_tokens <= kMostSplit && args_.split_tokens % 64 == 0,
        FASTNORM_ERROR_ARGUMENT, "split_tokens is %d; required: 0, or a multiple of 64 up to 2^30",
        args_.split_tokens);
    FASTNORM_REQUIRE(args_.max_s_q >= 0, FASTNORM_ERROR_ARGUMENT, "max_s_q is %d; required: >= 0",
                     args_.max_s_q);
    FASTNORM_REQUIRE(args_.total_kv_hint >= 0 && args_.total_kv_hint < int64_t{1} << 48,
                     FASTNORM_ERROR_ARGUMENT,
                     "total_kv_hint is %" PRId64 "; required: 0 to 2^48 - 1", args_.total_kv_hint);
    FASTNORM_REQUIRE(args_.profile_events >= 0 && args_.profile_events <= kMostEvents,
                     FASTNORM_ERROR_ARGUMENT, "profile_events is %d; required: 0 to 2^20",
                     args_.profile_events);
    FASTNORM_TRY(check_flags("flags", args_.flags, FASTNORM_MLA_DECODE_NO_PDL, error));
    FASTNORM_TRY(check_enum<&fastnorm_mla_decode_args::cache_format>(args_, error));
    d_.format = static_cast<MlaCacheFormat>(number(args_.cache_format));
    d_.sparse = args_.indices != nullptr;
    d_.pdl = args_.flags;
    d_.sm_scale = args_.sm_scale;
    d_.causal = args_.causal != 0;
    d_.lse_base_2 = number(args_.lse_base) == FASTNORM_LSE_BASE_2;
    d_.reuse_plan = args_.reuse_plan != 0;
    d_.split_tokens = args_.split_tokens;
    d_.total_kv_hint = args_.total_kv_hint;
    d_.profile_events = args_.profile_events;
    return FASTNORM_OK;
  }

  bool fp8() const { return d_.format != MlaCacheFormat::kRows; }

  fastnorm_status presence() {
    FASTNORM_TRY(check_rules(args_, error));
    const struct {
      const char* name;
      const fastnorm_tensor* tensor;
      const char* shape;
      bool needed = true;
    } required[] = {
        {"q_nope", args_.q_nope, "[N, H, 512]"},
        {"q_pe", args_.q_pe, "[N, H, 64]"},
        {"ckv", args_.ckv, "[pages, page, 512]", !fp8()},
        {"kpe", args_.kpe, "[pages, page, 64]", !fp8()},
        {"cache", args_.cache, "[pages, page, bytes of a row] for the cache_format", fp8()},
        {"kv_len", args_.kv_len, "[B]", !d_.sparse},
        {"page_table", args_.page_table, "[B, max_pages], or [total] with kv_indptr", !d_.sparse},
        {"o", args_.o, "[N, H, 512]"}};
    for (const auto& r : required) {
      FASTNORM_REQUIRE(!r.needed || r.tensor != nullptr, FASTNORM_ERROR_ARGUMENT,
                       "%s is NULL; required: a tensor %s", r.name, r.shape);
    }
    d_.has_extra = args_.extra_indices != nullptr;
    return FASTNORM_OK;
  }

  // The dtype of all rows: q_nope's.
  fastnorm_status row_dtype() {
    const Dtype dtype = dtype_from(args_.q_nope->dtype);
    FASTNORM_REQUIRE(static_cast<int>(dtype) < kRowDtypes, FASTNORM_ERROR_DTYPE,
                     "q_nope.dtype is %s; required: bf16, f16, or f32 on the CPU",
                     dtype_text(args_.q_nope->dtype).c);
    d_.dtype = dtype;
    return FASTNORM_OK;
  }

  fastnorm_status same_dtype(const char* name, const fastnorm_tensor& t, bool of_cache) {
    const Dtype dtype = dtype_from(t.dtype);
    const bool fp8 = dtype == Dtype::kF8E4M3 || dtype == Dtype::kF8E5M2;
    FASTNORM_REQUIRE(!of_cache || !fp8, FASTNORM_ERROR_UNSUPPORTED,
                     "%s.dtype is %s; an FP8 cache is a tensor of bytes, cache, and cache_format "
                     "says what they are; nearest: cache, or %s, as q_nope",
                     name, dtype_name(dtype), dtype_name(d_.dtype));
    FASTNORM_REQUIRE(dtype == d_.dtype, FASTNORM_ERROR_DTYPE,
                     "%s.dtype is %s; required: %s, as q_nope", name, dtype_text(t.dtype).c,
                     dtype_name(d_.dtype));
    return FASTNORM_OK;
  }

  // A tensor of rows with two leading dimensions. A row has `columns` elements.
  fastnorm_status rows(const char* name, const fastnorm_tensor& t, int32_t columns, bool output,
                       MlaDecodeTensor* result) {
    FASTNORM_TRY(check_tensor(name, t, {d_.dtype, 3, true}, device_, error));
    FASTNORM_REQUIRE(t.ndim == 3, FASTNORM_ERROR_SHAPE, "%s.ndim is %d; required: 3", name, t.ndim);
    FASTNORM_REQUIRE(
        t.shape[2] == columns, FASTNORM_ERROR_UNSUPPORTED,
        "%s.shape is %s; nearest: a last dimension of %d, for %s", name, shape_text(t.shape, 3).c,
        columns,
        d_.format == MlaCacheFormat::kFp8Pages ? "heads of 448 + 64" : "latents of 512 + 64");
    fill(t, dtype_bytes(d_.dtype), result);
    if (cuda()) FASTNORM_TRY(aligned(name, t, *result, dtype_bytes(d_.dtype)));
    return keep(name, t, output, {result->inner, result->outer, 0},
                columns * dtype_bytes(d_.dtype));
  }

  static void fill(const fastnorm_tensor& t, int64_t bytes, MlaDecodeTensor* result) {
    result->data = address_of(t);
    if (t.strides != nullptr) {
      result->outer = stride_bytes_of(t, 0, bytes);
      result->inner = stride_bytes_of(t, 1, bytes);
    } else {
      // Unsigned: the product may overflow if the tensor has no elements.
      const uint64_t inner =
          t.ndim == 3 ? static_cast<uint64_t>(t.shape[2] * bytes) : static_cast<uint64_t>(bytes);
      result->inner = static_cast<int64_t>(inner);
      result->outer = static_cast<int64_t>(inner * static_cast<uint64_t>(t.shape[1]));
    }
    // The stride does not count if there is one index, or if the tensor has no elements.
    const bool empty = t.shape[0] == 0 || t.shape[1] == 0;
    if (empty || t.shape[0] == 1) result->outer = 0;
    if (empty || t.shape[1] == 1) result->inner = 0;
  }

  // What tensor maps and 16-byte copies require.
  fastnorm_status aligned(const char* name, const fastnorm_tensor& t, const MlaDecodeTensor& m,
                          int64_t bytes) {
    if (t.shape[0] == 0 || t.shape[1] == 0) return FASTNORM_OK;
    FASTNORM_REQUIRE(reinterpret_cast<uintptr_t>(m.data) % kCudaAlign == 0, FASTNORM_ERROR_LAYOUT,
                     "%s's address is 0x%" PRIxPTR "; required: a multiple of 16", name,
                     reinterpret_cast<uintptr_t>(m.data));
    // Rows of a page with their scales behind them all have a stride that is not used.
    const bool paged = d_.format == MlaCacheFormat::kFp8Pages && bytes == 1;
    const int64_t strides[] = {m.outer, paged ? kCudaAlign : m.inner};
    for (int i = 0; i < 2; ++i) {
      if (t.shape[i] <= 1) continue;
      FASTNORM_REQUIRE(strides[i] > 0 && strides[i] < kMostStride && strides[i] % kCudaAlign == 0,
                       FASTNORM_ERROR_LAYOUT,
                       "%s.strides[%d] is %" PRId64
                       "; required: on CUDA a positive multiple of "
                       "%" PRId64 " elements (16 bytes), below 2^40 bytes",
                       name, i, strides[i] / bytes, kCudaAlign / bytes);
    }
    return FASTNORM_OK;
  }

  // Keeps a tensor for aliasing(). Extents and strides are innermost first.
  fastnorm_status keep(const char* name, const fastnorm_tensor& t, bool output,
                       const int64_t (&strides)[kMaxOuter], int64_t piece_bytes) {
    View v = {name, output, address_of(t), piece_bytes};
    const int32_t leading = t.ndim == 3 ? 2 : t.ndim;
    for (int32_t i = 0; i < leading; ++i) {
      v.outer[i] = t.shape[leading - 1 - i];
      v.strides[i] = strides[i];
      if (v.outer[i] == 0) return FASTNORM_OK;  // no elements
    }
    return views_.add(v, error);
  }

  fastnorm_status queries() {
    FASTNORM_TRY(row_dtype());
    const fastnorm_tensor& nope = *args_.q_nope;
    FASTNORM_TRY(rows("q_nope", nope, d_.layout().nope, false, &d_.q_nope));
    FASTNORM_REQUIRE(nope.shape[1] >= 1, FASTNORM_ERROR_SHAPE,
                     "q_nope.shape is %s; required: at least 1 head", shape_text(nope.shape, 3).c);
    int64_t rows_of_all = 0;
    FASTNORM_REQUIRE(nope.shape[1] <= kMostRows &&
                         !__builtin_mul_overflow(nope.shape[0], nope.shape[1], &rows_of_all) &&
                         rows_of_all <= INT32_MAX,
                     FASTNORM_ERROR_UNSUPPORTED,
                     "q_nope.shape is %s; nearest: fewer than 2^31 rows, and at most 2^24 heads",
                     shape_text(nope.shape, 3).c);
    d_.tokens = nope.shape[0];
    d_.heads = static_cast<int32_t>(nope.shape[1]);
    FASTNORM_TRY(same_dtype("q_pe", *args_.q_pe, false));
    FASTNORM_TRY(rows("q_pe", *args_.q_pe, kMlaRope, false, &d_.q_pe));
    return same_rows("q_pe", *args_.q_pe);
  }

  // The leading dimensions of q_nope.
  fastnorm_status same_rows(const char* name, const fastnorm_tensor& t) {
    FASTNORM_REQUIRE(t.shape[0] == d_.tokens && t.shape[1] == d_.heads, FASTNORM_ERROR_SHAPE,
                     "%s.shape is %s; required: q_nope's tokens and heads, [%" PRId64 ", %d%s]",
                     name, shape_text(t.shape, t.ndim).c, d_.tokens, d_.heads,
                     t.ndim == 3 ? ", .." : "");
    return FASTNORM_OK;
  }

  fastnorm_status cache() {
    if (fp8()) {
      FASTNORM_TRY(byte_pages("cache", *args_.cache, {&d_.ckv, &d_.pages, &d_.page_size}));
    } else {
      FASTNORM_TRY(row_pages("ckv", *args_.ckv, "kpe", *args_.kpe, &d_.kpe,
                             {&d_.ckv, &d_.pages, &d_.page_size}));
    }
    if (args_.cache_scale != nullptr) {
      const std::byte* address = nullptr;
      FASTNORM_TRY(check_scalar("cache_scale", *args_.cache_scale, device_, &address, error));
      d_.cache_scale = reinterpret_cast<const float*>(address);
      FASTNORM_TRY(keep("cache_scale", *args_.cache_scale, false, {}, 4));
    }
    if (args_.attention_sink == nullptr) return FASTNORM_OK;
    const int32_t* sink = nullptr;
    FASTNORM_TRY(list("attention_sink", *args_.attention_sink, Dtype::kF32, d_.heads, &sink));
    d_.sink = reinterpret_cast<const float*>(sink);
    return FASTNORM_OK;
  }

  // Pages of a cache, as its first tensor has them.
  struct Pages {
    MlaDecodeTensor* rows;
    int32_t *pages, *page_size;
  };

  fastnorm_status count_pages(const char* name, const fastnorm_tensor& t, const Pages& result) {
    FASTNORM_REQUIRE(t.shape[1] >= 1, FASTNORM_ERROR_SHAPE,
                     "%s.shape is %s; required: pages of at least 1 token", name,
                     shape_text(t.shape, 3).c);
    FASTNORM_REQUIRE(t.shape[0] <= INT32_MAX && t.shape[1] <= INT32_MAX, FASTNORM_ERROR_UNSUPPORTED,
                     "%s.shape is %s; nearest: fewer than 2^31 pages, of fewer than 2^31 tokens",
                     name, shape_text(t.shape, 3).c);
    *result.pages = static_cast<int32_t>(t.shape[0]);
    *result.page_size = static_cast<int32_t>(t.shape[1]);
    return FASTNORM_OK;
  }

  fastnorm_status row_pages(const char* name, const fastnorm_tensor& ckv, const char* kpe_name,
                            const fastnorm_tensor& kpe, MlaDecodeTensor* kpe_rows,
                            const Pages& result) {
    FASTNORM_TRY(same_dtype(name, ckv, true));
    FASTNORM_TRY(rows(name, ckv, kMlaLatent, false, result.rows));
    FASTNORM_TRY(count_pages(name, ckv, result));
    FASTNORM_TRY(same_dtype(kpe_name, kpe, true));
    FASTNORM_TRY(rows(kpe_name, kpe, kMlaRope, false, kpe_rows));
    FASTNORM_REQUIRE(kpe.shape[0] == ckv.shape[0] && kpe.shape[1] == ckv.shape[1],
                     FASTNORM_ERROR_SHAPE,
                     "%s.shape is %s; required: %s's pages, [%" PRId64 ", %" PRId64 ", 64]",
                     kpe_name, shape_text(kpe.shape, 3).c, name, ckv.shape[0], ckv.shape[1]);
    return FASTNORM_OK;
  }

  fastnorm_status byte_pages(const char* name, const fastnorm_tensor& t, const Pages& result) {
    const MlaCacheLayout& layout = d_.layout();
    FASTNORM_REQUIRE(dtype_from(t.dtype) == Dtype::kU8, FASTNORM_ERROR_DTYPE,
                     "%s.dtype is %s; required: u8, the bytes of the rows", name,
                     dtype_text(t.dtype).c);
    FASTNORM_TRY(check_tensor(name, t, {Dtype::kU8, 3, true}, device_, error));
    FASTNORM_REQUIRE(t.ndim == 3 && t.shape[2] == layout.row_bytes, FASTNORM_ERROR_SHAPE,
                     "%s.shape is %s and cache_format is %s; required: [pages, page, %d]", name,
                     shape_text(t.shape, t.ndim).c, layout.name, layout.row_bytes);
    FASTNORM_TRY(count_pages(name, t, result));
    fill(t, 1, result.rows);
    if (d_.format == MlaCacheFormat::kFp8Pages && t.shape[0] > 0 && t.shape[1] > 1) {
      FASTNORM_REQUIRE(result.rows->inner == layout.row_bytes, FASTNORM_ERROR_LAYOUT,
                       "%s.strides[1] is %" PRId64
                       " and cache_format is %s; required: %d, as the scales of a page lie "
                       "behind its rows",
                       name, result.rows->inner, layout.name, layout.row_bytes);
    }
    if (cuda()) FASTNORM_TRY(aligned(name, t, *result.rows, 1));
    return keep(name, t, false, {result.rows->inner, result.rows->outer, 0}, layout.row_bytes);
  }

  // A list of i32. If `length` is negative, any length fits.
  fastnorm_status list(const char* name, const fastnorm_tensor& t, int64_t length,
                       const int32_t** result) {
    return list(name, t, Dtype::kI32, length, result);
  }

  // A list of elements of 4 bytes.
  fastnorm_status list(const char* name, const fastnorm_tensor& t, Dtype dtype, int64_t length,
                       const int32_t** result) {
    FASTNORM_TRY(check_typed(name, t, {dtype, 1, true}, device_, error));
    FASTNORM_REQUIRE(length < 0 || t.shape[0] == length, FASTNORM_ERROR_SHAPE,
                     "%s.shape is %s; required: [%" PRId64 "]", name, shape_text(t.shape, 1).c,
                     length);
    *result = reinterpret_cast<const int32_t*>(address_of(t));
    return keep(name, t, false, {4, 0, 0}, 4);
  }

  fastnorm_status lengths() {
    if (d_.sparse) return selections();
    FASTNORM_TRY(list("kv_len", *args_.kv_len, -1, &d_.kv_len));
    FASTNORM_REQUIRE(args_.kv_len->shape[0] <= INT32_MAX - 1, FASTNORM_ERROR_UNSUPPORTED,
                     "kv_len.shape is %s; nearest: fewer than 2^31 requests",
                     shape_text(args_.kv_len->shape, 1).c);
    d_.batch = static_cast<int32_t>(args_.kv_len->shape[0]);
    const fastnorm_tensor& table = *args_.page_table;
    if (args_.kv_indptr != nullptr) {
      FASTNORM_TRY(list("kv_indptr", *args_.kv_indptr, int64_t{d_.batch} + 1, &d_.kv_indptr));
      FASTNORM_REQUIRE(table.ndim == 1, FASTNORM_ERROR_SHAPE,
                       "page_table.ndim is %d and kv_indptr is given; required: 1, the lists of "
                       "all requests",
                       table.ndim);
      FASTNORM_TRY(list("page_table", table, -1, &d_.page_table));
      FASTNORM_REQUIRE(table.shape[0] <= INT32_MAX, FASTNORM_ERROR_UNSUPPORTED,
                       "page_table.shape is %s; nearest: fewer than 2^31 entries",
                       shape_text(table.shape, 1).c);
      d_.table_columns = table.shape[0];
      return FASTNORM_OK;
    }
    return block_table(table);
  }

  fastnorm_status selections() {
    FASTNORM_TRY(
        selection("indices", *args_.indices, "topk_length", args_.topk_length, &d_.selection));
    if (!d_.has_extra) return FASTNORM_OK;
    MlaDecodeExtra& extra = d_.extra;
    if (fp8()) {
      FASTNORM_TRY(byte_pages("extra_cache", *args_.extra_cache,
                              {&extra.ckv, &extra.pages, &extra.page_size}));
    } else {
      FASTNORM_TRY(row_pages("extra_ckv", *args_.extra_ckv, "extra_kpe", *args_.extra_kpe,
                             &extra.kpe, {&extra.ckv, &extra.pages, &extra.page_size}));
    }
    return selection("extra_indices", *args_.extra_indices, "extra_topk_length",
                     args_.extra_topk_length, &extra.selection);
  }

  // Indices and their lengths. The first ones say how many requests there are.
  fastnorm_status selection(const char* name, const fastnorm_tensor& t, const char* length_name,
                            const fastnorm_tensor* length, MlaDecodeSelection* s) {
    FASTNORM_TRY(check_typed(name, t, {Dtype::kI32, 3, true}, device_, error));
    FASTNORM_REQUIRE(t.ndim == 3, FASTNORM_ERROR_SHAPE,
                     "%s.ndim is %d; required: 3, [B, s_q, topk]", name, t.ndim);
    int64_t indices = 0;
    FASTNORM_REQUIRE(
        t.shape[0] <= INT32_MAX - 1 && t.shape[2] <= INT32_MAX &&
            !__builtin_mul_overflow(d_.tokens, t.shape[2], &indices) && indices <= kMostIndices,
        FASTNORM_ERROR_UNSUPPORTED,
        "%s.shape is %s; nearest: fewer than 2^31 requests and indices of a token, and "
        "at most 2^40 indices",
        name, shape_text(t.shape, 3).c);
    if (s == &d_.selection) d_.batch = static_cast<int32_t>(t.shape[0]);
    const int64_t s_q = d_.batch == 0 ? t.shape[1] : d_.tokens / d_.batch;
    FASTNORM_REQUIRE(t.shape[0] == d_.batch && t.shape[1] == s_q && d_.batch * s_q == d_.tokens,
                     FASTNORM_ERROR_SHAPE,
                     "%s.shape is %s and q_nope has %" PRId64
                     " tokens; required: [B, s_q, topk] with B * s_q tokens%s",
                     name, shape_text(t.shape, 3).c, d_.tokens,
                     s == &d_.selection ? "" : ", as indices");
    MlaDecodeTensor view;
    fill(t, 4, &view);
    s->indices = reinterpret_cast<const int32_t*>(view.data);
    s->outer = view.outer / 4;
    s->inner = view.inner / 4;
    s->topk = t.shape[2];
    if (t.shape[2] > 0)
      FASTNORM_TRY(keep(name, t, false, {view.inner, view.outer, 0}, 4 * t.shape[2]));
    return length == nullptr ? FASTNORM_OK : lengths_of(length_name, *length, s_q, s);
  }

  // One length a request, or one a new token.
  fastnorm_status lengths_of(const char* name, const fastnorm_tensor& t, int64_t s_q,
                             MlaDecodeSelection* s) {
    if (t.ndim == 1) {
      FASTNORM_TRY(list(name, t, d_.batch, &s->lengths));
      s->length_outer = 1;
      return FASTNORM_OK;
    }
    FASTNORM_TRY(check_typed(name, t, {Dtype::kI32, 2, true}, device_, error));
    FASTNORM_REQUIRE(t.shape[0] == d_.batch && (d_.batch == 0 || t.shape[1] == s_q),
                     FASTNORM_ERROR_SHAPE,
                     "%s.shape is %s; required: [%d] or [%d, %" PRId64
                     "], a length for each "
                     "request or for each of its new tokens",
                     name, shape_text(t.shape, 2).c, d_.batch, d_.batch, s_q);
    MlaDecodeTensor view;
    fill(t, 4, &view);
    s->lengths = reinterpret_cast<const int32_t*>(view.data);
    s->length_outer = view.outer / 4;
    s->length_inner = view.inner / 4;
    s->per_token = true;
    return keep(name, t, false, {view.inner, view.outer, 0}, 4);
  }

  fastnorm_status block_table(const fastnorm_tensor& t) {
    FASTNORM_TRY(check_typed("page_table", t, {Dtype::kI32, 2, true}, device_, error));
    FASTNORM_REQUIRE(t.ndim == 2 && t.shape[0] == d_.batch, FASTNORM_ERROR_SHAPE,
                     "page_table.shape is %s and kv_indptr is NULL; required: [%d, max_pages], a "
                     "row for each request of kv_len",
                     shape_text(t.shape, t.ndim).c, d_.batch);
    FASTNORM_REQUIRE(t.shape[1] <= INT32_MAX, FASTNORM_ERROR_UNSUPPORTED,
                     "page_table.shape is %s; nearest: fewer than 2^31 pages a request",
                     shape_text(t.shape, 2).c);
    d_.page_table = reinterpret_cast<const int32_t*>(address_of(t));
    d_.table_columns = t.shape[1];
    // The stride does not count with one request, or with a table without pages.
    const bool steps = t.shape[0] > 1 && t.shape[1] > 0;
    d_.table_stride = !steps ? 0 : t.strides != nullptr ? t.strides[0] : t.shape[1];
    return keep("page_table", t, false, {4, d_.table_stride * 4, 0}, 4);
  }

  fastnorm_status new_tokens() {
    if (args_.qo_indptr != nullptr) {
      FASTNORM_TRY(list("qo_indptr", *args_.qo_indptr, int64_t{d_.batch} + 1, &d_.qo_indptr));
      d_.max_s_q = static_cast<int32_t>(std::min<int64_t>(args_.max_s_q, d_.tokens));
    } else {
      FASTNORM_REQUIRE(d_.batch == 0 ? d_.tokens == 0 : d_.tokens % d_.batch == 0,
                       FASTNORM_ERROR_SHAPE,
                       "q_nope has %" PRId64
                       " tokens for %d requests and qo_indptr is NULL; "
                       "required: a multiple of the requests, or qo_indptr",
                       d_.tokens, d_.batch);
      d_.max_s_q = d_.batch == 0 ? 0 : static_cast<int32_t>(d_.tokens / d_.batch);
      FASTNORM_REQUIRE(args_.max_s_q == 0 || args_.max_s_q == d_.max_s_q, FASTNORM_ERROR_ARGUMENT,
                       "max_s_q is %d, qo_indptr is NULL and each request has %d tokens; required: "
                       "0 or %d",
                       args_.max_s_q, d_.max_s_q, d_.max_s_q);
    }
    FASTNORM_REQUIRE(d_.rows() <= kMostRows, FASTNORM_ERROR_UNSUPPORTED,
                     "a request has up to %d tokens of %d heads; nearest: at most 2^24 rows",
                     d_.max_s_q, d_.heads);
    return FASTNORM_OK;
  }

  fastnorm_status outputs() {
    FASTNORM_TRY(same_dtype("o", *args_.o, false));
    FASTNORM_TRY(rows("o", *args_.o, kMlaLatent, true, &d_.o));
    FASTNORM_TRY(same_rows("o", *args_.o));
    if (args_.lse != nullptr) FASTNORM_TRY(lse(*args_.lse));
    if (args_.profile != nullptr) FASTNORM_TRY(profile(*args_.profile));
    return FASTNORM_OK;
  }

  fastnorm_status lse(const fastnorm_tensor& t) {
    FASTNORM_TRY(check_typed("lse", t, {Dtype::kF32, 2, false}, device_, error));
    FASTNORM_REQUIRE(t.ndim == 2, FASTNORM_ERROR_SHAPE, "lse.ndim is %d; required: 2", t.ndim);
    FASTNORM_TRY(same_rows("lse", t));
    fill(t, 4, &d_.lse);
    return keep("lse", t, true, {d_.lse.inner, d_.lse.outer, 0}, 4);
  }

  fastnorm_status profile(const fastnorm_tensor& t) {
    FASTNORM_TRY(check_typed("profile", t, {Dtype::kU8, 1, true}, device_, error));
    d_.profile = address_of(t);
    FASTNORM_REQUIRE(reinterpret_cast<uintptr_t>(d_.profile) % kCudaAlign == 0,
                     FASTNORM_ERROR_LAYOUT,
                     "profile's address is 0x%" PRIxPTR "; required: a multiple of 16",
                     reinterpret_cast<uintptr_t>(d_.profile));
    d_.profile_bytes = static_cast<uint64_t>(t.shape[0]);
    return keep("profile", t, true, {1, 0, 0}, 1);
  }

  // Checks outputs against themselves, each other and the inputs.
  fastnorm_status aliasing() {
    for (const View& out : views_.all()) {
      if (!out.output) continue;
      FASTNORM_TRY(check_own_rows(out, error));
      for (const View& other : views_.all()) {
        if (&other < &out || (!other.output && &other != &out))
          FASTNORM_TRY(check_overlap(out, other, error));
      }
    }
    return FASTNORM_OK;
  }

  const fastnorm_mla_decode_args& args_;
  const CheckedDevice device_;
  MlaDecodeDesc& d_;
  Error& error;
  Views<18> views_;  // one for each tensor that a call may have at once
};

// The offsets of the requests' new tokens.
fastnorm_status check_qo_indptr(const MlaDecodeDesc& d, Error& error) {
  const int32_t* at = d.qo_indptr;
  FASTNORM_REQUIRE(at[0] == 0, FASTNORM_ERROR_ARGUMENT, "qo_indptr[0] is %d; required: 0", at[0]);
  for (int32_t b = 0; b < d.batch; ++b) {
    FASTNORM_REQUIRE(at[b + 1] >= at[b] && at[b + 1] <= d.tokens, FASTNORM_ERROR_ARGUMENT,
                     "qo_indptr[%d] is %d; required: qo_indptr[%d], %d, to q_nope's %" PRId64
                     " tokens",
                     b + 1, at[b + 1], b, at[b], d.tokens);
    FASTNORM_REQUIRE(at[b + 1] - at[b] <= d.max_s_q, FASTNORM_ERROR_ARGUMENT,
                     "qo_indptr[%d] is %d and qo_indptr[%d] is %d; required: at most max_s_q, %d, "
                     "tokens a request",
                     b, at[b], b + 1, at[b + 1], d.max_s_q);
  }
  return FASTNORM_OK;
}

// The pages of one request.
fastnorm_status check_pages(const MlaDecodeDesc& d, int32_t b, Error& error) {
  int64_t begin = b * d.table_stride, most = d.table_columns;
  if (d.kv_indptr != nullptr) {
    const int32_t first = d.kv_indptr[b], last = d.kv_indptr[b + 1];
    FASTNORM_REQUIRE(
        first >= 0 && last >= first && last <= d.table_columns, FASTNORM_ERROR_ARGUMENT,
        "kv_indptr[%d] is %d and kv_indptr[%d] is %d; required: 0 to page_table's %" PRId64
        " entries, not falling",
        b, first, b + 1, last, d.table_columns);
    begin = first;
    most = last - first;
  }
  const int32_t length = d.kv_len[b];
  const int64_t pages = length <= 0 ? 0 : (int64_t{length} - 1) / d.page_size + 1;
  FASTNORM_REQUIRE(length >= 0 && pages <= most, FASTNORM_ERROR_ARGUMENT,
                   "kv_len[%d] is %d; required: 0 to the tokens of its %" PRId64 " pages of %d", b,
                   length, most, d.page_size);
  for (int64_t i = 0; i < pages; ++i) {
    const int32_t page = d.page_table[begin + i];
    FASTNORM_REQUIRE(page >= 0 && page < d.pages, FASTNORM_ERROR_ARGUMENT,
                     "page %" PRId64 " of request %d is %d; required: 0 to %d, the pages of ckv", i,
                     b, page, d.pages - 1);
  }
  return FASTNORM_OK;
}

// The indices of one request, of one cache.
fastnorm_status check_selection(const MlaDecodeDesc& d, int32_t b, const MlaDecodeSelection& s,
                                const char* prefix, int64_t rows, Error& error) {
  for (int32_t i = 0; i < d.max_s_q; ++i) {
    int64_t count = s.topk;
    if (s.lengths != nullptr) {
      count = s.lengths[b * s.length_outer + i * s.length_inner];
      FASTNORM_REQUIRE(count >= 0 && count <= s.topk, FASTNORM_ERROR_ARGUMENT,
                       "%stopk_length of new token %d of request %d is %" PRId64
                       "; required: 0 to topk, %" PRId64,
                       prefix, i, b, count, s.topk);
    }
    const int32_t* const indices = s.indices + b * s.outer + i * s.inner;
    for (int64_t k = 0; k < count; ++k) {
      FASTNORM_REQUIRE(indices[k] >= -1 && indices[k] < rows, FASTNORM_ERROR_ARGUMENT,
                       "%sindices[%d][%d][%" PRId64 "] is %d; required: -1, or 0 to %" PRId64
                       ", the rows of the cache",
                       prefix, b, i, k, indices[k], rows - 1);
    }
  }
  return FASTNORM_OK;
}

}  // namespace

fastnorm_status check_mla_decode(const fastnorm_mla_decode_args* args, CheckedDevice device,
                                 MlaDecodeDesc* desc, Error& error) {
  fastnorm_mla_decode_args local;
  const fastnorm_mla_decode_args* ours = nullptr;
  FASTNORM_TRY(accept_call(args, "args", &local, &ours, error));
  *desc = {};
  desc->parallel_user = ours->parallel_user;
  return MlaDecodeCheck(*ours, device, desc, error).run();
}

fastnorm_status check_mla_decode_values(const MlaDecodeDesc& desc, Error& error) {
  if (desc.qo_indptr != nullptr) FASTNORM_TRY(check_qo_indptr(desc, error));
  for (int32_t b = 0; b < desc.batch; ++b) {
    if (!desc.sparse) {
      FASTNORM_TRY(check_pages(desc, b, error));
      continue;
    }
    const MlaDecodeExtra& extra = desc.extra;
    FASTNORM_TRY(
        check_selection(desc, b, desc.selection, "", int64_t{desc.pages} * desc.page_size, error));
    if (desc.has_extra) {
      FASTNORM_TRY(check_selection(desc, b, extra.selection, "extra_",
                                   int64_t{extra.pages} * extra.page_size, error));
    }
  }
  return FASTNORM_OK;
}

}  // namespace fastnorm
