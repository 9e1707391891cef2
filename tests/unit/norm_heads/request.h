// A norm_heads call with the arrays of its tensors, in one place and easy to change.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "core/norm_heads/check.h"
#include "unit/norm/request.h"

namespace fastnorm::test {

struct HeadsPartRequest {
  fastnorm_norm_heads_part args = {};
  fastnorm_quant quant = {}, cache_quant = {};  // of args
  std::optional<RequestTensor> x, weight, bias, y, mean, rstd, mean_in, rstd_in, sumsq,
      global_scale, quantized, scale, amax, cache, cache_scale, clamp_scale;
  // clamp_scale, global_scale, quantized and amax of cache_quant, which a cache has no use for.
  std::optional<RequestTensor> cache_forbidden[4];
};

struct HeadsRequest {
  fastnorm_norm_heads_args args = {};
  std::optional<RequestTensor> cos, sin, positions, slots;
  std::vector<HeadsPartRequest> parts;
  CheckedDevice device = {FASTNORM_DEVICE_CPU, 0};
  bool null_part = false;
  int32_t count = -1;  // other than parts' size

  fastnorm_status check(NormHeadsDesc* desc, Error& error) const {
    std::vector<fastnorm_norm_heads_part> structs(parts.size());
    std::vector<fastnorm_quant> quants(2 * parts.size());
    std::vector<const fastnorm_norm_heads_part*> pointers(parts.size());
    std::vector<fastnorm_tensor> tensors(20 * parts.size() + 4);
    size_t used = 0;
    const auto give = [&](const std::optional<RequestTensor>& from, const fastnorm_tensor** to) {
      if (!from) return;
      tensors[used] = from->abi();
      *to = &tensors[used++];
    };
    for (size_t i = 0; i < parts.size(); ++i) {
      const HeadsPartRequest& p = parts[i];
      fastnorm_norm_heads_part& a = structs[i];
      a = p.args;
      fastnorm_quant &q = quants[2 * i], &c = quants[2 * i + 1];
      q = p.quant, c = p.cache_quant;
      const std::pair<const std::optional<RequestTensor>*, const fastnorm_tensor**> all[] = {
          {&p.x, &a.x},
          {&p.weight, &a.weight},
          {&p.bias, &a.bias},
          {&p.y, &a.y},
          {&p.mean, &a.mean},
          {&p.rstd, &a.rstd},
          {&p.mean_in, &a.mean_in},
          {&p.rstd_in, &a.rstd_in},
          {&p.sumsq, &a.sumsq},
          {&p.global_scale, &q.global_scale},
          {&p.quantized, &q.quantized},
          {&p.scale, &q.scale},
          {&p.amax, &q.amax},
          {&p.cache, &a.cache},
          {&p.cache_scale, &c.scale},
          {&p.clamp_scale, &q.clamp_scale},
          {&p.cache_forbidden[0], &c.clamp_scale},
          {&p.cache_forbidden[1], &c.global_scale},
          {&p.cache_forbidden[2], &c.quantized},
          {&p.cache_forbidden[3], &c.amax}};
      for (const auto& [from, to] : all) give(*from, to);
      if (is_given(q)) a.quant = &q;
      if (is_given(c)) a.cache_quant = &c;
      for (fastnorm_quant* each : {&q, &c}) {
        if (each->struct_size == 0) each->struct_size = sizeof *each;
      }
      pointers[i] = null_part ? nullptr : &a;
    }
    fastnorm_norm_heads_args a = args;
    give(cos, &a.cos);
    give(sin, &a.sin);
    give(positions, &a.positions);
    give(slots, &a.slots);
    return check_norm_heads(&a, pointers.data(),
                            count >= 0 ? count : static_cast<int32_t>(parts.size()), device, desc,
                            error);
  }
};

// Query, key and value heads of a fused QKV buffer: 7 tokens of 8, 2 and 2 heads of 128 columns.
// Norm and rope are in place. Key and value go to caches of 5 pages of 16 tokens.
inline HeadsRequest heads_request() {
  HeadsRequest r;
  r.args.struct_size = sizeof r.args;
  r.args.rope_dim = 128;
  int number = 0;
  const auto tensor = [&](std::vector<int64_t> shape, fastnorm_dtype_id dtype) {
    RequestTensor t;
    t.shape = std::move(shape);
    t.dtype = dtype;
    // 2^40 bytes for each, below 2^46.
    t.address = uintptr_t{0x100000} + (static_cast<uintptr_t>(++number) << 40);
    return t;
  };
  RequestTensor qkv = tensor({7, 8, 128}, FASTNORM_DTYPE_BF16);
  qkv.strides = {12 * 128, 128, 1};
  for (int i = 0; i < 3; ++i) {
    HeadsPartRequest p;
    p.args.struct_size = sizeof p.args;
    p.x = qkv;
    p.x->shape[1] = i == 0 ? 8 : 2;
    p.x->byte_offset = static_cast<uint64_t>(i == 0 ? 0 : (6 + 2 * i) * 256);
    if (i < 2) {
      p.args.flags = FASTNORM_NORM_HEADS_NORM | FASTNORM_NORM_HEADS_ROPE;
      p.args.eps = 1e-6f;
      p.weight = tensor({128}, FASTNORM_DTYPE_BF16);
      p.y = p.x;
    }
    if (i > 0) p.cache = tensor({5, 16, 2, 128}, FASTNORM_DTYPE_BF16);
    r.parts.push_back(p);
  }
  r.cos = tensor({4096, 64}, FASTNORM_DTYPE_F32);
  r.sin = tensor({4096, 64}, FASTNORM_DTYPE_F32);
  r.positions = tensor({7}, FASTNORM_DTYPE_I64);
  r.slots = tensor({7}, FASTNORM_DTYPE_I64);
  return r;
}

}  // namespace fastnorm::test
