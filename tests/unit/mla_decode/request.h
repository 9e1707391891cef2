// A fastnorm_mla_decode_args with the arrays of its tensors, in one place and easy to change.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>

#include "core/mla_decode/check.h"
#include "unit/norm/request.h"

namespace fastnorm::test {

struct MlaRequest {
  fastnorm_mla_decode_args args = {};
  std::optional<RequestTensor> q_nope, q_pe, ckv, kpe, kv_len, page_table, kv_indptr, qo_indptr, o,
      lse, profile, cache, cache_scale, indices, topk_length, attention_sink, extra_cache,
      extra_indices;
  CheckedDevice device = {FASTNORM_DEVICE_CPU, 0};

  fastnorm_status check(MlaDecodeDesc* desc, Error& error) const {
    const std::optional<RequestTensor>* const from[] = {
        &q_nope,         &q_pe,        &ckv,          &kpe,     &kv_len,
        &page_table,     &kv_indptr,   &qo_indptr,    &o,       &lse,
        &profile,        &cache,       &cache_scale,  &indices, &topk_length,
        &attention_sink, &extra_cache, &extra_indices};
    fastnorm_mla_decode_args a = args;
    const fastnorm_tensor** const to[] = {
        &a.q_nope,         &a.q_pe,        &a.ckv,          &a.kpe,     &a.kv_len,
        &a.page_table,     &a.kv_indptr,   &a.qo_indptr,    &a.o,       &a.lse,
        &a.profile,        &a.cache,       &a.cache_scale,  &a.indices, &a.topk_length,
        &a.attention_sink, &a.extra_cache, &a.extra_indices};
    fastnorm_tensor tensors[std::size(from)];
    for (size_t i = 0; i < std::size(from); ++i) {
      if (!*from[i]) continue;
      tensors[i] = (*from[i])->abi();
      *to[i] = &tensors[i];
    }
    return check_mla_decode(&a, device, desc, error);
  }

  void set_device(int32_t device_type, int32_t device_id) {
    device = {device_type, device_id};
    for (std::optional<RequestTensor>* t :
         {&q_nope, &q_pe, &ckv, &kpe, &kv_len, &page_table, &kv_indptr, &qo_indptr, &o, &lse,
          &profile, &cache, &cache_scale, &indices, &topk_length, &attention_sink, &extra_cache,
          &extra_indices}) {
      if (!*t) continue;
      (*t)->device_type = device_type;
      (*t)->device_id = device_id;
    }
  }
};

// A block table. Each request has s_q new tokens; lse is stored.
inline MlaRequest mla_request(int64_t batch, int64_t s_q, int64_t heads, int64_t pages,
                              int64_t page, int64_t max_pages) {
  MlaRequest r;
  r.args.struct_size = sizeof r.args;
  r.args.sm_scale = 0.125;
  int number = 0;
  const auto tensor = [&](std::vector<int64_t> shape, fastnorm_dtype_id dtype) {
    RequestTensor t;
    t.shape = std::move(shape);
    t.dtype = dtype;
    // 2^44 bytes for each, below 2^48.
    t.address = uintptr_t{0x100000} + (static_cast<uintptr_t>(++number) << 44);
    return t;
  };
  const int64_t tokens = batch * s_q;
  r.q_nope = tensor({tokens, heads, 512}, FASTNORM_DTYPE_BF16);
  r.q_pe = tensor({tokens, heads, 64}, FASTNORM_DTYPE_BF16);
  r.ckv = tensor({pages, page, 512}, FASTNORM_DTYPE_BF16);
  r.kpe = tensor({pages, page, 64}, FASTNORM_DTYPE_BF16);
  r.kv_len = tensor({batch}, FASTNORM_DTYPE_I32);
  r.page_table = tensor({batch, max_pages}, FASTNORM_DTYPE_I32);
  r.o = tensor({tokens, heads, 512}, FASTNORM_DTYPE_BF16);
  r.lse = tensor({tokens, heads}, FASTNORM_DTYPE_F32);
  return r;
}

// Turns the block table into lists of `total` pages. New tokens become a list with at most max_s_q
// for each request.
inline void make_lists(MlaRequest* r, int64_t total, int32_t max_s_q) {
  const int64_t batch = r->kv_len->shape[0];
  r->page_table->shape = {total};
  RequestTensor indptr = *r->kv_len;
  indptr.shape = {batch + 1};
  indptr.address = uintptr_t{0x100000} + (uintptr_t{14} << 44);
  r->kv_indptr = indptr;
  indptr.address = uintptr_t{0x100000} + (uintptr_t{15} << 44);
  r->qo_indptr = indptr;
  r->args.max_s_q = max_s_q;
}

// A tensor at a place of its own, for what mla_request() does not give.
inline RequestTensor mla_tensor(int place, std::vector<int64_t> shape, fastnorm_dtype_id dtype) {
  RequestTensor t;
  t.shape = std::move(shape);
  t.dtype = dtype;
  t.address = uintptr_t{0x100000} + (static_cast<uintptr_t>(20 + place) << 44);
  return t;
}

// A cache of bytes in the place of ckv and kpe.
inline void make_bytes(MlaRequest* r, fastnorm_mla_cache_format format, int64_t row_bytes) {
  r->args.cache_format = format;
  r->cache = mla_tensor(0, {r->ckv->shape[0], r->ckv->shape[1], row_bytes}, FASTNORM_DTYPE_U8);
  r->cache->device_type = r->ckv->device_type;
  r->ckv = r->kpe = std::nullopt;
  if (format == FASTNORM_MLA_CACHE_BYTES_584) r->q_nope->shape[2] = 448;
}

// Indices in the place of lengths and pages.
inline void make_sparse(MlaRequest* r, int64_t topk) {
  const int64_t batch = r->kv_len->shape[0];
  const int64_t s_q = r->q_nope->shape[0] / batch;
  r->indices = mla_tensor(1, {batch, s_q, topk}, FASTNORM_DTYPE_I32);
  r->indices->device_type = r->kv_len->device_type;
  r->kv_len = r->page_table = std::nullopt;
}

}  // namespace fastnorm::test
