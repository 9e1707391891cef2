#include "check/mla_decode_placed.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "ref/data.h"
#include "ref/mla_decode_ref.h"

namespace fastnorm::check {
namespace {

constexpr int64_t kAlign = 256;  // of tensors; the gaps between them are as large
constexpr int32_t kGarbagePage = 2147480000;
constexpr int64_t kPool = 1 << 16;

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

MlaPlaced::MlaPlaced(const MlaCase& what) : case_(what) {
  const MlaCase& c = case_;
  first_token_.push_back(0);
  for (const MlaRequest& r : c.requests) first_token_.push_back(first_token_.back() + r.s_q);
  make_lists();
  const int64_t tokens = first_token_.back() + c.spare_rows;
  const auto batch = static_cast<int64_t>(c.requests.size());
  int64_t at = kAlign;
  if (c.fused_query) {
    q_nope_ = q_pe_ = place_rows(tokens, c.heads, ref::kMlaWidth, &at);
    q_pe_.base += ref::kMlaLatent * element();
  } else {
    q_nope_ = place_rows(tokens, c.heads, ref::kMlaLatent, &at);
    q_pe_ = place_rows(tokens, c.heads, ref::kMlaWidth - ref::kMlaLatent, &at);
  }
  if (c.fused_cache) {
    ckv_ = kpe_ = place_rows(pages_, c.page, ref::kMlaWidth, &at);
    kpe_.base += ref::kMlaLatent * element();
  } else {
    ckv_ = place_rows(pages_, c.page, ref::kMlaLatent, &at);
    kpe_ = place_rows(pages_, c.page, ref::kMlaWidth - ref::kMlaLatent, &at);
  }
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
}

// Page numbers in random order, with unused pages between them. Lists are longer than needed.
void MlaPlaced::make_lists() {
  const MlaCase& c = case_;
  int32_t used = 0, most = 0;
  for (const MlaRequest& r : c.requests) {
    used += pages_of(r, c.page);
    most = std::max(most, pages_of(r, c.page));
  }
  pages_ = used + 2 + used / 8;
  std::vector<int32_t> order(static_cast<size_t>(pages_));
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

const float* MlaPlaced::latent_values(int64_t page, int64_t row) const {
  const uint64_t h = ref::hash(case_.seed, 2, page, row);
  return pool_.data() + h % (kPool - ref::kMlaWidth);
}

std::vector<float> MlaPlaced::query(int64_t token, int64_t head) const {
  const float* values = query_values(token, head);
  std::vector<float> row(values, values + ref::kMlaWidth);
  // A power of two, so that the result has the dtype.
  for (float& v : row) v = ref::round_to(case_.dtype, v * static_cast<float>(case_.q_scale));
  return row;
}

std::vector<float> MlaPlaced::latents(size_t request) const {
  const MlaRequest& r = case_.requests[request];
  std::vector<float> rows;
  rows.reserve(static_cast<size_t>(r.kv_len) * ref::kMlaWidth);
  for (int32_t j = 0; j < r.kv_len; ++j) {
    const int32_t page = lists_[request][static_cast<size_t>(j / case_.page)];
    const float* values = latent_values(page, j % case_.page);
    rows.insert(rows.end(), values, values + ref::kMlaWidth);
  }
  return rows;
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
      encode(row.data(), ref::kMlaLatent, q_nope_.at(t, h));
      encode(row.data() + ref::kMlaLatent, ref::kMlaWidth - ref::kMlaLatent, q_pe_.at(t, h));
    }
  }
  // Only rows that are attended to. The other rows of the cache stay NaN. Each window of the pool
  // is encoded once.
  std::vector<std::byte> encoded(static_cast<size_t>(kPool * element()));
  ref::encode_row(c.dtype, pool_.data(), encoded.data(), kPool);
  for (size_t b = 0; b < c.requests.size(); ++b) {
    for (int64_t j = 0; j < c.requests[b].kv_len; ++j) {
      const int32_t page = lists_[b][static_cast<size_t>(j / c.page)];
      const int64_t row = j % c.page;
      const std::byte* from =
          encoded.data() + (latent_values(page, row) - pool_.data()) * element();
      std::memcpy(block.data() + ckv_.at(page, row), from,
                  static_cast<size_t>(ref::kMlaLatent * element()));
      std::memcpy(block.data() + kpe_.at(page, row), from + ref::kMlaLatent * element(),
                  static_cast<size_t>((ref::kMlaWidth - ref::kMlaLatent) * element()));
    }
  }
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
  const int64_t q_shape[] = {tokens, c.heads, ref::kMlaLatent};
  const int64_t pe_shape[] = {tokens, c.heads, ref::kMlaWidth - ref::kMlaLatent};
  const int64_t ckv_shape[] = {pages_, c.page, ref::kMlaLatent};
  const int64_t kpe_shape[] = {pages_, c.page, ref::kMlaWidth - ref::kMlaLatent};
  int64_t strides[6][3];
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
                        ckv = rows(ckv_, ckv_shape), kpe = rows(kpe_, kpe_shape),
                        o = rows(o_, q_shape);
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
  args.ckv = &ckv;
  args.kpe = &kpe;
  args.kv_len = &kv_len;
  args.page_table = &table;
  args.kv_indptr = c.csr ? &kv_indptr : nullptr;
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
