// What the laboratory's kernels share: the arithmetic of 8 elements, and folds. Every fold combines
// the highest digit first, as the library's order demands.
#pragma once

#include "bench/lab/backward/instructions.cuh"
#include "bench/lab/backward/tile.h"

namespace lab {

// --- arithmetic ---

LAB_DEVICE void unpack(uint4 v, float* f) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    f[2 * i] = __uint_as_float(words[i] << 16);
    f[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}

LAB_DEVICE uint4 pack(const float* f) {
  return make_uint4(pack(f[0], f[1]), pack(f[2], f[3]), pack(f[4], f[5]), pack(f[6], f[7]));
}

LAB_DEVICE void make_gain(uint4 weight, float offset, float* gain) {
  unpack(weight, gain);
#pragma unroll
  for (int i = 0; i < kPerVector; ++i) gain[i] = __fadd_rn(gain[i], offset);
}

// Even and odd elements are one chain each.
LAB_DEVICE float dot(const float* a, const float* b) {
  float even = __fmul_rn(a[0], b[0]), odd = __fmul_rn(a[1], b[1]);
#pragma unroll
  for (int i = 2; i < kPerVector; i += 2) {
    even = __fmaf_rn(a[i], b[i], even);
    odd = __fmaf_rn(a[i + 1], b[i + 1], odd);
  }
  return __fadd_rn(even, odd);
}
LAB_DEVICE float sum(const float* f) {
  float even = f[0], odd = f[1];
#pragma unroll
  for (int i = 2; i < kPerVector; i += 2) {
    even = __fadd_rn(even, f[i]);
    odd = __fadd_rn(odd, f[i + 1]);
  }
  return __fadd_rn(even, odd);
}

template <Norm kNorm>
LAB_DEVICE float normalized(float x, float mean, float rstd) {
  return __fmul_rn(kNorm == Norm::kLayer ? __fsub_rn(x, mean) : x, rstd);
}
// dx of an element, of c1 = mean(e * xhat) and c2 = mean(e).
template <Norm kNorm>
LAB_DEVICE float gradient(float xhat, float e, float c1, float c2, float rstd) {
  const float centred = kNorm == Norm::kLayer ? __fsub_rn(e, c2) : e;
  return __fmul_rn(__fmaf_rn(-xhat, c1, centred), rstd);
}
LAB_DEVICE float mean_of(float sum, float inverse_n) {
  return __fmul_rn(__fadd_rn(sum, 0.0f), inverse_n);
}

LAB_DEVICE float4 add(float4 a, float4 b) {
  return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z),
                     __fadd_rn(a.w, b.w));
}
LAB_DEVICE float add(float a, float b) { return __fadd_rn(a, b); }

// --- folds ---

template <int kCount, int kHalf = power_of_two_up(kCount) / 2, class Value>
LAB_DEVICE Value fold_registers(Value* q) {
  if constexpr (kHalf >= 1) {
#pragma unroll
    for (int j = 0; j < kHalf; ++j) {
      if (j + kHalf < kCount) q[j] = add(q[j], q[j + kHalf]);
    }
    return fold_registers<kCount, kHalf / 2>(q);
  }
  return q[0];
}

template <int kLanes>
LAB_DEVICE float fold_lanes(float q) {
#pragma unroll
  for (int half = kLanes / 2; half >= 1; half /= 2) q = __fadd_rn(q, __shfl_xor_sync(~0u, q, half));
  return q;
}

}  // namespace lab
