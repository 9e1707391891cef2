// A norm_heads_backward call as tests change it, without memory.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/norm_heads_backward/check.h"
#include "unit/norm/request.h"

namespace fastnorm::test {

inline RequestTensor backward_heads_tensor(std::vector<int64_t> shape, fastnorm_dtype_id dtype,
                                           int number) {
  RequestTensor t;
  t.shape = std::move(shape);
  t.dtype = dtype;
  t.address = uintptr_t{0x100000} + (static_cast<uintptr_t>(number) << 40);
  return t;
}

struct BackwardHeadsPart {
  fastnorm_norm_heads_backward_part args = {};
  std::optional<RequestTensor> dy, x, weight, mean, rstd, dx, dweight, dbias;
};

struct BackwardHeadsRequest {
  fastnorm_norm_heads_args args = {};
  std::optional<RequestTensor> cos, sin, positions, slots;
  std::vector<BackwardHeadsPart> parts;
  CheckedDevice device = {FASTNORM_DEVICE_CPU, 0};
  bool null_part = false;
  int32_t count = -1;  // other than parts' size

  fastnorm_status check(NormHeadsBackwardDesc* desc, Error& error) const {
    std::vector<fastnorm_norm_heads_backward_part> structs(parts.size());
    std::vector<const fastnorm_norm_heads_backward_part*> pointers(parts.size());
    std::vector<fastnorm_tensor> tensors(8 * parts.size() + 4);
    size_t used = 0;
    const auto give = [&](const std::optional<RequestTensor>& from, const fastnorm_tensor** to) {
      if (!from) return;
      tensors[used] = from->abi();
      *to = &tensors[used++];
    };
    for (size_t i = 0; i < parts.size(); ++i) {
      const BackwardHeadsPart& p = parts[i];
      fastnorm_norm_heads_backward_part& a = structs[i];
      a = p.args;
      give(p.dy, &a.dy), give(p.x, &a.x), give(p.weight, &a.weight);
      give(p.mean, &a.mean), give(p.rstd, &a.rstd), give(p.dx, &a.dx);
      give(p.dweight, &a.dweight), give(p.dbias, &a.dbias);
      pointers[i] = null_part ? nullptr : &a;
    }
    fastnorm_norm_heads_args a = args;
    give(cos, &a.cos);
    give(sin, &a.sin);
    give(positions, &a.positions);
    give(slots, &a.slots);
    return check_norm_heads_backward(&a, pointers.data(),
                                     count >= 0 ? count : static_cast<int32_t>(parts.size()),
                                     device, desc, error);
  }
};

// Query, key and value heads whose dx are views of one packed gradient: 7 tokens of 8, 2 and 2
// heads of 128 columns. The query's weight is shared. The key has one for each head, and
// statistics.
inline BackwardHeadsRequest backward_heads_request() {
  BackwardHeadsRequest r;
  r.args.struct_size = sizeof r.args;
  r.args.rope_dim = 128;
  int number = 0;
  RequestTensor qkv = backward_heads_tensor({7, 8, 128}, FASTNORM_DTYPE_BF16, ++number);
  qkv.strides = {12 * 128, 128, 1};
  for (int i = 0; i < 3; ++i) {
    const int64_t heads = i == 0 ? 8 : 2;
    BackwardHeadsPart p;
    p.args.struct_size = sizeof p.args;
    p.dy = backward_heads_tensor({7, heads, 128}, FASTNORM_DTYPE_BF16, ++number);
    p.dx = qkv;
    p.dx->shape[1] = heads;
    p.dx->byte_offset = static_cast<uint64_t>(i == 0 ? 0 : (6 + 2 * i) * 256);
    if (i < 2) {
      p.args.flags = FASTNORM_NORM_HEADS_NORM | FASTNORM_NORM_HEADS_ROPE;
      p.args.eps = 1e-6f;
      p.x = backward_heads_tensor({7, heads, 128}, FASTNORM_DTYPE_BF16, ++number);
      const std::vector<int64_t> columns =
          i == 0 ? std::vector<int64_t>{128} : std::vector<int64_t>{2, 128};
      p.weight = backward_heads_tensor(columns, FASTNORM_DTYPE_BF16, ++number);
      p.dweight = backward_heads_tensor(columns, FASTNORM_DTYPE_F32, ++number);
      p.dbias = backward_heads_tensor({128}, FASTNORM_DTYPE_F32, ++number);
    }
    if (i == 1) p.rstd = backward_heads_tensor({7, 2}, FASTNORM_DTYPE_F32, ++number);
    r.parts.push_back(p);
  }
  r.cos = backward_heads_tensor({4096, 64}, FASTNORM_DTYPE_F32, ++number);
  r.sin = backward_heads_tensor({4096, 64}, FASTNORM_DTYPE_F32, ++number);
  r.positions = backward_heads_tensor({7}, FASTNORM_DTYPE_I64, ++number);
  return r;
}

}  // namespace fastnorm::test
