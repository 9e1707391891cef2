#include "check/mla_decode_placed.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "ref/data.h"
#include "ref/mla_decode_ref.h"

namespace fastnorm::check {
namespace {

constexpr int64_t kAlign = 256;  // of tensors; the gaps between them are as large
constexpr int32_t kGarbagePage = 2147480000;
constexpr int64_t kPool = 1 << 16, kRope = ref::kMlaWidth - ref::kMlaLatent;

int64_t next_place(int64_t at) { return (at + kAlign - 1) / kAlign * kAlign + kAlign; }

int32_t pages_of(const MlaRequest& r, int32_t page) { return (r.kv_len + page - 1) / page; }

template <class T>
void put(std::vector<std::byte>* block, int64_t at, const T& value) {
  std::memcpy(block->data() + at, &value, sizeof value);
}

}  // namespace

MlaPlace MlaPlaced::place_rows(int64_t outer, int64_t inner, int64_t columns, int64_t* at) const {
  const int64_t pad = case_.odd ? element() : case_.padded ? 32 : 0;
  MlaPlace place;
  place.base = *at + (case_.odd ? element() : 0);
  place.inner = columns * element() + pad;
  place.outer = inner * place.inner + 3 * pad;
  *at = next_place(place.base + outer * place.outer);
  return place;
}

void MlaPlaced::place_cache(Cache* cache, int64_t* at) const {
  const MlaCase& c = case_;
  if (c.fp8()) {
    // Pages of k584 have their scales behind the rows, so that only pages may lie apart.
    const int64_t row = ref::mla_row_bytes(c.format);
    const int64_t pad = c.odd ? 1 : c.padded ? 48 : 0;
    cache->ckv.base = *at + (c.odd ? 1 : 0);
    cache->ckv.inner = row + (c.format == ref::MlaFormat::k584 ? 0 : pad);
    cache->ckv.outer = cache->page * cache->ckv.inner + 3 * pad;
    if (!c.odd) cache->ckv.outer = (cache->ckv.outer + 15) / 16 * 16;  // as a GPU needs it
    *at = next_place(cache->ckv.base + cache->pages * cache->ckv.outer);
  } else if (c.fused_cache) {
    cache->ckv = cache->kpe = place_rows(cache->pages, cache->page, ref::kMlaWidth, at);
    cache->kpe.base += ref::kMlaLatent * element();
  } else {
    cache->ckv = place_rows(cache->pages, cache->page, ref::kMlaLatent, at);
    cache->kpe = place_rows(cache->pages, cache->page, ref::kMlaWidth - ref::kMlaLatent, at);
  }
}

void MlaPlaced::place_indices(const MlaSelection& s, Indices* indices, int64_t* at) const {
  if (!s.given()) return;
  indices->at = *at;
  *at = next_place(*at + 4 * static_cast<int64_t>(indices->rows.size()));
  indices->lengths_at = *at;
  *at = next_place(*at + 4 * first_token_.back());
}

// Random rows, of which some are -1. Behind a length there is garbage.
void MlaPlaced::make_indices(const MlaSelection& s, uint64_t seed, Indices* indices) const {
  ref::Random random(seed);
  const auto requests = static_cast<int64_t>(case_.requests.size());
  const int64_t s_q = requests == 0 ? 0 : first_token_.back() / requests;
  const int64_t rows = int64_t{s.pages} * s.page;
  int32_t of_request = s.topk;
  for (int64_t t = 0; t < first_token_.back(); ++t) {
    if (s.lengths == MlaSelection::Lengths::kOfToken ||
        (s.lengths == MlaSelection::Lengths::kOfRequest && t % s_q == 0)) {
      of_request = random.one_in(5) ? 0 : static_cast<int32_t>(random.below(s.topk + 1));
    }
    indices->lengths.push_back(of_request);
    const bool none = random.one_in(9);  // of the rows are there
    for (int32_t k = 0; k < s.topk; ++k) {
      const bool counts = k < of_request;
      const bool skipped = none || rows == 0 || random.one_in(6);
      indices->rows.push_back(!counts   ? kGarbagePage
                              : skipped ? -1
                                        : static_cast<int32_t>(random.below(rows)));
    }
  }
}

// body(page, row) for each row that new token `token` selects in a cache.
template <class Body>
void MlaPlaced::for_each_selected(const MlaSelection& s, const Indices& indices, int64_t token,
                                  const Body& body) const {
  if (!s.given()) return;
  for (int32_t k = 0; k < indices.lengths[static_cast<size_t>(token)]; ++k) {
    const int32_t index = indices.rows[static_cast<size_t>(token * s.topk + k)];
    if (index >= 0) body(index / s.page, index % s.page);
  }
}

MlaPlaced::MlaPlaced(const MlaCase& what) : case_(what) {
  const MlaCase& c = case_;
  first_token_.push_back(0);
  for (const MlaRequest& r : c.requests) first_token_.push_back(first_token_.back() + r.s_q);
  make_lists();
  if (c.sparse()) {
    cache_.pages = c.selected.pages;
    cache_.page = c.selected.page;
    make_indices(c.selected, ref::hash(c.seed, 3), &indices_);
    make_indices(c.extra, ref::hash(c.seed, 4), &extra_indices_);
  }
  extra_ = {{}, {}, c.extra.pages, c.extra.page, 1};
  const int64_t tokens = first_token_.back() + c.spare_rows;
  const auto batch = static_cast<int64_t>(c.requests.size());
  int64_t at = kAlign;
  if (c.fused_query) {
    q_nope_ = q_pe_ = place_rows(tokens, c.heads, q_columns() + kRope, &at);
    q_pe_.base += q_columns() * element();
  } else {
    q_nope_ = place_rows(tokens, c.heads, q_columns(), &at);
    q_pe_ = place_rows(tokens, c.heads, kRope, &at);
  }
  place_cache(&cache_, &at);
  if (c.extra.given()) place_cache(&extra_, &at);
  place_indices(c.selected, &indices_, &at);
  place_indices(c.extra, &extra_indices_, &at);
  scale_at_ = at;
  at = next_place(at + 4);
  sink_at_ = at;
  at = next_place(at + 4 * int64_t{c.heads});
  kv_len_at_ = at;
  at = next_place(at + batch * 4);
  table_at_ = at;
  at = next_place(at + (c.csr ? int64_t{table_columns_} : batch * table_stride_) * 4);
  kv_indptr_at_ = at;
  at = next_place(at + (batch + 1) * 4);
  qo_indptr_at_ = at;
  at = next_place(at + (batch + 1) * 4);
  o_ = place_rows(tokens, c.heads, ref::kMlaLatent, &at);
  lse_.base = at;
  lse_.outer = c.lse_by_head ? 4 : c.heads * 4;
  lse_.inner = c.lse_by_head ? tokens * 4 : 4;
  at = next_place(at + tokens * c.heads * 4);
  bytes_ = static_cast<size_t>(at);
  pool_.resize(kPool);
  ref::fill_row(ref::Pattern::kNormal, c.dtype, c.seed, pool_.data(), kPool);
  encoded_.resize(static_cast<size_t>(kPool * element()));
  ref::encode_row(c.dtype, pool_.data(), encoded_.data(), kPool);
}

// Page numbers in random order, with unused pages between them. Lists are longer than needed.
void MlaPlaced::make_lists() {
  const MlaCase& c = case_;
  int32_t used = 0, most = 0;  // pages; a sparse call has none of this
  for (const MlaRequest& r : c.requests) {
    used += pages_of(r, c.page);
    most = std::max(most, pages_of(r, c.page));
  }
  cache_.pages = used + 2 + used / 8;
  cache_.page = c.page;
  std::vector<int32_t> order(static_cast<size_t>(cache_.pages));
  std::iota(order.begin(), order.end(), 0);
  ref::Random random(c.seed);
  for (size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
  size_t next = 0;
  table_columns_ = c.csr ? 0 : most + 1;
  for (const MlaRequest& r : c.requests) {
    std::vector<int32_t> list;
    for (int32_t i = 0; i < pages_of(r, c.page); ++i) list.push_back(order[next++]);
    const size_t length =
        c.csr ? list.size() + (random.one_in(3) ? 1 : 0) : static_cast<size_t>(table_columns_);
    list.resize(length, kGarbagePage);
    if (c.csr) table_columns_ += static_cast<int32_t>(length);
    lists_.push_back(list);
  }
  table_stride_ = table_columns_ + (c.padded ? 3 : 0);
}

const float* MlaPlaced::query_values(int64_t token, int64_t head) const {
  const uint64_t h = ref::hash(case_.seed, 1, token, head);
  return pool_.data() + h % (kPool - ref::kMlaWidth);
}

const float* MlaPlaced::latent_values(const Cache& cache, int64_t page, int64_t row) const {
  const uint64_t h = ref::hash(case_.seed + cache.salt, 2, page, row);
  return pool_.data() + h % (kPool - ref::kMlaWidth);
}

float MlaPlaced::tensor_scale() const {
  return case_.scales == MlaScales::kAny ? 0.0123f : 0x1p-7f;
}

// An FP8 row as ref::decode_mla_row() takes it: random codes without NaN, and scales with which
// their values are at most about 4. Some scales are next to nothing.
std::vector<std::byte> MlaPlaced::row_bytes(const Cache& cache, int64_t page, int64_t row) const {
  ref::Random random(ref::hash(case_.seed + cache.salt, 2, page, row));
  const bool any = case_.scales == MlaScales::kAny;
  std::vector<std::byte> bytes(static_cast<size_t>(ref::mla_row_bytes(case_.format)));
  for (std::byte& b : bytes) {
    const auto code = static_cast<uint32_t>(random.next() >> 32 & 0xff);
    b = static_cast<std::byte>((code & 0x7f) == 0x7f ? code - 1 : code);
  }
  if (case_.format == ref::MlaFormat::k576) return bytes;
  const size_t rope_at = case_.format == ref::MlaFormat::k656 ? 528 : 448;
  std::vector<float> rope(kRope);
  ref::fill_row(ref::Pattern::kNormal, ref::Type::kBF16, random.next(), rope.data(), kRope);
  ref::encode_row(ref::Type::kBF16, rope.data(), &bytes[rope_at], kRope);
  if (case_.format == ref::MlaFormat::k584) {
    for (size_t b = 0; b < 7; ++b)
      bytes[576 + b] =
          static_cast<std::byte>(random.one_in(9) ? random.below(118) : 118 + random.below(3));
    return bytes;
  }
  for (size_t b = 0; b < 4; ++b) {
    float scale = std::ldexp(1.0f, static_cast<int>(random.below(3)) - 9);
    if (any && random.one_in(9)) scale = random.one_in(2) ? 0 : 1e-39f;
    if (any) scale *= 1 + static_cast<float>(random.below(1 << 20)) / (1 << 20);
    std::memcpy(&bytes[512 + 4 * b], &scale, sizeof scale);
  }
  return bytes;
}

std::vector<float> MlaPlaced::row_values(const Cache& cache, int64_t page, int64_t row) const {
  if (!case_.fp8()) {
    const float* values = latent_values(cache, page, row);
    return {values, values + ref::kMlaWidth};
  }
  const std::vector<std::byte> bytes = row_bytes(cache, page, row);
  return ref::decode_mla_row(case_.format, bytes.data(), tensor_scale(), case_.dtype);
}

int64_t MlaPlaced::allowed(size_t request, int32_t token, bool causal) const {
  const MlaRequest& r = case_.requests[request];
  if (!case_.sparse()) return ref::mla_decode_allowed(r.kv_len, r.s_q, token, causal);
  int64_t rows = 0;
  const auto count = [&](int64_t, int64_t) { ++rows; };
  const int64_t at = first_token_[request] + int64_t{token};
  for_each_selected(case_.selected, indices_, at, count);
  for_each_selected(case_.extra, extra_indices_, at, count);
  return rows;
}

std::vector<float> MlaPlaced::selected(size_t request, int32_t token, bool with_extra) const {
  std::vector<float> rows;
  const auto add = [&](const Cache& cache) {
    return [&](int64_t page, int64_t row) {
      const std::vector<float> values = row_values(cache, page, row);
      rows.insert(rows.end(), values.begin(), values.end());
    };
  };
  const int64_t at = first_token_[request] + int64_t{token};
  for_each_selected(case_.selected, indices_, at, add(cache_));
  if (with_extra) for_each_selected(case_.extra, extra_indices_, at, add(extra_));
  return rows;
}

double MlaPlaced::sink(int64_t head) const {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kExtreme[] = {-kInf, kInf, 1e30f, -1e30f, 200.0f, -200.0f, 0.0f};
  ref::Random random(ref::hash(case_.seed, 5, head));
  if (case_.sinks == MlaSinks::kExtreme) return double{random.of(kExtreme)};
  return double{static_cast<float>(random.below(1 << 16)) / (1 << 13) - 4.0f};
}

std::vector<float> MlaPlaced::query(int64_t token, int64_t head) const {
  const float* values = query_values(token, head);
  std::vector<float> row(values, values + ref::kMlaWidth);
  // A power of two, so that the result has the dtype.
  for (float& v : row) v = ref::round_to(case_.dtype, v * static_cast<float>(case_.q_scale));
  // A head of 512 columns.
  if (case_.format == ref::MlaFormat::k584) std::fill(row.end() - kRope, row.end(), 0.0f);
  return row;
}

std::vector<float> MlaPlaced::latents(size_t request) const {
  const MlaRequest& r = case_.requests[request];
  std::vector<float> rows;
  rows.reserve(static_cast<size_t>(r.kv_len) * ref::kMlaWidth);
  for (int32_t j = 0; j < r.kv_len; ++j) {
    const int32_t page = lists_[request][static_cast<size_t>(j / case_.page)];
    const std::vector<float> values = row_values(cache_, page, j % case_.page);
    rows.insert(rows.end(), values.begin(), values.end());
  }
  return rows;
}

// A row's bytes in the block.
void MlaPlaced::put_row(const Cache& cache, int64_t page, int64_t row,
                        std::vector<std::byte>* block) const {
  if (case_.fp8()) {
    const std::vector<std::byte> bytes = row_bytes(cache, page, row);
    int64_t at = cache.ckv.at(page, row), count = static_cast<int64_t>(bytes.size());
    if (case_.format == ref::MlaFormat::k584) {
      const int64_t begin = cache.ckv.at(page, 0);
      at = begin + row * 576;
      count = 576;
      std::copy_n(bytes.begin() + 576, 7, block->begin() + begin + cache.page * 576 + row * 8);
    }
    std::copy_n(bytes.begin(), count, block->begin() + at);
    return;
  }
  const std::byte* from =
      encoded_.data() + (latent_values(cache, page, row) - pool_.data()) * element();
  std::memcpy(block->data() + cache.ckv.at(page, row), from,
              static_cast<size_t>(ref::kMlaLatent * element()));
  std::memcpy(block->data() + cache.kpe.at(page, row), from + ref::kMlaLatent * element(),
              static_cast<size_t>(kRope * element()));
}

// The indices, and the rows that they select.
void MlaPlaced::put_indices(const MlaSelection& s, const Indices& indices, const Cache& cache,
                            std::vector<std::byte>* block) const {
  if (!s.given()) return;
  const bool by_request = s.lengths == MlaSelection::Lengths::kOfRequest;
  const auto requests = static_cast<int64_t>(case_.requests.size());
  for (int64_t t = 0; t < first_token_.back(); ++t) {
    for (int64_t k = 0; k < s.topk; ++k) {
      const int64_t i = t * s.topk + k;
      put(block, indices.at + 4 * i, indices.rows[static_cast<size_t>(i)]);
    }
    const int64_t s_q = first_token_.back() / requests;
    if (!by_request || t % s_q == 0)
      put(block, indices.lengths_at + 4 * (by_request ? t / s_q : t),
          indices.lengths[static_cast<size_t>(t)]);
    for_each_selected(s, indices, t,
                      [&](int64_t page, int64_t row) { put_row(cache, page, row, block); });
  }
}

std::vector<std::byte> MlaPlaced::fill(int pass) const {
  const MlaCase& c = case_;
  // 0xff.. is NaN in every dtype, and 0x7f..7f is NaN in bf16 and f16.
  std::vector<std::byte> block(bytes_, pass % 2 == 0 ? std::byte{0xff} : std::byte{0x7f});
  const auto encode = [&](const float* values, int64_t count, int64_t at) {
    ref::encode_row(c.dtype, values, block.data() + at, count);
  };
  for (int64_t t = 0; t < first_token_.back() + c.spare_rows; ++t) {
    for (int64_t h = 0; h < c.heads; ++h) {
      const std::vector<float> row = query(t, h);
      encode(row.data(), q_columns(), q_nope_.at(t, h));
      encode(row.data() + q_columns(), kRope, q_pe_.at(t, h));
    }
  }
  // Only rows that are attended to. The other rows of the cache stay NaN, in every format.
  for (size_t b = 0; b < c.requests.size(); ++b) {
    for (int64_t j = 0; j < c.requests[b].kv_len; ++j)
      put_row(cache_, lists_[b][static_cast<size_t>(j / c.page)], j % c.page, &block);
  }
  put_indices(c.selected, indices_, cache_, &block);
  put_indices(c.extra, extra_indices_, extra_, &block);
  put(&block, scale_at_, tensor_scale());
  for (int64_t h = 0; h < c.heads; ++h) put(&block, sink_at_ + 4 * h, static_cast<float>(sink(h)));
  int64_t entries = 0;
  for (size_t b = 0; b < c.requests.size(); ++b) {
    const auto i = static_cast<int64_t>(b);
    put(&block, kv_len_at_ + 4 * i, c.requests[b].kv_len);
    put(&block, qo_indptr_at_ + 4 * i, first_token_[b]);
    put(&block, kv_indptr_at_ + 4 * i, static_cast<int32_t>(entries));
    const int64_t at = table_at_ + 4 * (c.csr ? entries : i * table_stride_);
    for (size_t k = 0; k < lists_[b].size(); ++k)
      put(&block, at + 4 * static_cast<int64_t>(k), lists_[b][k]);
    entries += static_cast<int64_t>(lists_[b].size());
  }
  const auto batch = static_cast<int64_t>(c.requests.size());
  put(&block, qo_indptr_at_ + 4 * batch, first_token_.back());
  put(&block, kv_indptr_at_ + 4 * batch, static_cast<int32_t>(entries));
  return block;
}

fastnorm_status MlaPlaced::describe(std::byte* block, CheckedDevice device, bool reuse_plan,
                                    MlaDecodeDesc* desc, Error& error) const {
  const MlaCase& c = case_;
  const auto batch = static_cast<int64_t>(c.requests.size());
  const int64_t tokens = first_token_.back() + c.spare_rows;
  const fastnorm_dtype rows_dtype =
      fastnorm_dtype_of(c.dtype == ref::Type::kF32   ? FASTNORM_DTYPE_F32
                        : c.dtype == ref::Type::kF16 ? FASTNORM_DTYPE_F16
                                                     : FASTNORM_DTYPE_BF16);
  const int64_t q_shape[] = {tokens, c.heads, q_columns()};
  const int64_t o_shape[] = {tokens, c.heads, ref::kMlaLatent};
  const int64_t pe_shape[] = {tokens, c.heads, kRope};
  int64_t strides[10][3];
  int used = 0;
  const auto rows = [&](const MlaPlace& p, const int64_t* shape) {
    int64_t* s = strides[used++];
    s[0] = p.outer / element();
    s[1] = p.inner / element();
    s[2] = 1;
    return fastnorm_tensor{
        block, device.device_type,           device.device_id, 3, rows_dtype, shape,
        s,     static_cast<uint64_t>(p.base)};
  };
  const auto list = [&](int64_t at, int32_t rank, const int64_t* shape, const int64_t* stride) {
    return fastnorm_tensor{block,
                           device.device_type,
                           device.device_id,
                           rank,
                           fastnorm_dtype_of(FASTNORM_DTYPE_I32),
                           shape,
                           stride,
                           static_cast<uint64_t>(at)};
  };
  const fastnorm_tensor q_nope = rows(q_nope_, q_shape), q_pe = rows(q_pe_, pe_shape),
                        o = rows(o_, o_shape);
  const int64_t batch_shape[] = {batch}, indptr_shape[] = {batch + 1};
  const int64_t table_shape[] = {batch, table_columns_}, table_strides[] = {table_stride_, 1};
  const int64_t csr_shape[] = {table_columns_};
  const fastnorm_tensor kv_len = list(kv_len_at_, 1, batch_shape, nullptr),
                        kv_indptr = list(kv_indptr_at_, 1, indptr_shape, nullptr),
                        qo_indptr = list(qo_indptr_at_, 1, indptr_shape, nullptr),
                        table = c.csr ? list(table_at_, 1, csr_shape, nullptr)
                                      : list(table_at_, 2, table_shape, table_strides);
  const int64_t lse_shape[] = {tokens, c.heads}, lse_strides[] = {lse_.outer / 4, lse_.inner / 4};
  const fastnorm_tensor lse = {block,
                               device.device_type,
                               device.device_id,
                               2,
                               fastnorm_dtype_of(FASTNORM_DTYPE_F32),
                               lse_shape,
                               lse_strides,
                               static_cast<uint64_t>(lse_.base)};
  fastnorm_mla_decode_args args = {};
  args.struct_size = sizeof args;
  args.sm_scale = c.sm_scale;
  args.causal = c.causal ? 1 : 0;
  args.lse_base = c.base_2 ? FASTNORM_LSE_BASE_2 : FASTNORM_LSE_NATURAL;
  args.reuse_plan = reuse_plan ? 1 : 0;
  args.split_tokens = c.split_tokens;
  args.q_nope = &q_nope;
  args.q_pe = &q_pe;
  // Caches, in the tensors that their format has.
  struct View {
    int64_t ckv_shape[3], kpe_shape[3];
    fastnorm_tensor ckv, kpe;
  };
  View views[2];
  const auto view = [&](const Cache& cache, View* v, const fastnorm_tensor** ckv,
                        const fastnorm_tensor** kpe, const fastnorm_tensor** bytes) {
    const int64_t columns = c.fp8() ? ref::mla_row_bytes(c.format) : ref::kMlaLatent;
    const int64_t kpe_shape[] = {cache.pages, cache.page, kRope};
    std::copy_n(kpe_shape, 3, v->kpe_shape);
    std::copy_n(kpe_shape, 2, v->ckv_shape);
    v->ckv_shape[2] = columns;
    v->ckv = rows(cache.ckv, v->ckv_shape);
    v->kpe = rows(cache.kpe, v->kpe_shape);
    if (!c.fp8()) {
      *ckv = &v->ckv;
      *kpe = &v->kpe;
      return;
    }
    int64_t* const s = strides[used++];
    s[0] = cache.ckv.outer;
    s[1] = cache.ckv.inner;
    s[2] = 1;
    v->ckv.strides = s;
    v->ckv.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_U8);
    *bytes = &v->ckv;
  };
  view(cache_, &views[0], &args.ckv, &args.kpe, &args.cache);
  const int64_t one[] = {1}, head_shape[] = {c.heads};
  fastnorm_tensor scale = list(scale_at_, 1, one, nullptr),
                  sinks = list(sink_at_, 1, head_shape, nullptr);
  scale.dtype = sinks.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
  args.cache_format = static_cast<fastnorm_mla_cache_format>(c.format);
  if (c.format == ref::MlaFormat::k576) args.cache_scale = &scale;
  if (c.sinks != MlaSinks::kNone) args.attention_sink = &sinks;

  const int64_t s_q = batch == 0 ? 0 : tokens / batch;
  const int64_t lengths_shape[] = {batch, s_q};
  struct Selection {
    int64_t shape[3];
    fastnorm_tensor indices, lengths;
  };
  Selection selections[2];
  const auto select = [&](const MlaSelection& s, const Indices& indices, Selection* to,
                          const fastnorm_tensor** rows_to, const fastnorm_tensor** lengths_to) {
    std::copy_n(lengths_shape, 2, to->shape);
    to->shape[2] = s.topk;
    to->indices = list(indices.at, 3, to->shape, nullptr);
    const bool by_request = s.lengths == MlaSelection::Lengths::kOfRequest;
    to->lengths = list(indices.lengths_at, by_request ? 1 : 2, lengths_shape, nullptr);
    *rows_to = &to->indices;
    if (s.lengths != MlaSelection::Lengths::kNone) *lengths_to = &to->lengths;
  };
  if (c.sparse()) {
    select(c.selected, indices_, &selections[0], &args.indices, &args.topk_length);
  } else {
    args.kv_len = &kv_len;
    args.page_table = &table;
    args.kv_indptr = c.csr ? &kv_indptr : nullptr;
  }
  if (c.extra.given()) {
    view(extra_, &views[1], &args.extra_ckv, &args.extra_kpe, &args.extra_cache);
    select(c.extra, extra_indices_, &selections[1], &args.extra_indices, &args.extra_topk_length);
  }
  args.o = &o;
  args.lse = c.lse ? &lse : nullptr;
  if (c.ragged) {
    args.qo_indptr = &qo_indptr;
    args.max_s_q = 1;
    for (const MlaRequest& r : c.requests) args.max_s_q = std::max(args.max_s_q, r.s_q);
  }
  return check_mla_decode(&args, device, desc, error);
}

}  // namespace fastnorm::check
