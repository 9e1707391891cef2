// What a token's heads share, of aligned 16-bit heads: a block has a token, whose heads are one row
// in the registers of its threads. Sums go over vectors of that row; each is of one head.
//
// Bytes: dy and x once, 16 a token written. The other vector of a pair comes from the L1 cache, to
// which the block has loaded it.
#pragma once

#include "cuda/norm_heads_backward/held.cuh"

namespace fastnorm::cuda {

template <uint32_t kWord>
struct HeldTokenSlots {
  static constexpr NormHeadsBackwardVariant kV = heads_backward_variant_of(kWord);
  using T = Element<kV.dtype>;
  using Tile = RowTile<kV.threads, kV.vectors, 1>;
  static constexpr int kVectors = kV.vectors;
  static_assert(T::kBytes == 2 && !Tile::kOneWarp);
};

// This thread's vectors of a token, as they are loaded.
template <class S>
struct HeldToken {
  using T = typename S::T;

  __device__ __forceinline__ HeldToken(const HeldGradientParams& part, const HeadsShared& shared,
                                       uint32_t token, const Place<typename S::Tile>& place) {
    const auto address = [&](const HeldTensor& t, int v, int vector) {
      return held_address(t, token, head[v]) + vector * kVectorBytes;
    };
    const auto all = part.heads * static_cast<uint32_t>(part.vectors);
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v) {
      const auto number = static_cast<uint32_t>(place.vector(v));
      there[v] = number < all;
      head[v] = !there[v]                    ? 0
                : part.by_vectors.value == 1 ? number
                                             : quotient(number, part.by_vectors);
      vector[v] = there[v] ? static_cast<int>(number - head[v] * part.vectors) : 0;
      rope[v] = rope_of<T::kPerVector>(part, shared, vector[v]);
      x[v] = dy[v] = other[v] = make_uint4(0, 0, 0, 0);
      const bool wanted = there[v] && part.dx.data != nullptr,
                 pairs = rope[v].kind == RopeKind::kFirst || rope[v].kind == RopeKind::kSecond;
      ptx::ld_global_v4_if(x[v], address(part.x, v, vector[v]), there[v]);
      ptx::ld_global_v4_if(dy[v], address(part.dy, v, vector[v]), wanted);
      ptx::ld_global_v4_if(other[v], address(part.dy, v, rope[v].partner), wanted && pairs);
    }
  }

  bool there[S::kVectors];
  uint32_t head[S::kVectors];
  int vector[S::kVectors];  // of the head's row
  VectorRope rope[S::kVectors];
  uint4 x[S::kVectors], dy[S::kVectors], other[S::kVectors];
};

template <class S>
__device__ __forceinline__ Statistics statistics_of_token(const HeldGradientParams& part,
                                                          uint32_t token, const HeldToken<S>& row,
                                                          const Place<typename S::Tile>& place) {
  using T = typename S::T;
  Statistics s = {0.0f, 0.0f};
  if (part.rstd.data != nullptr) {
    s.rstd = ptx::ld_global_f32(held_address(part.rstd, token, 0));
    if (part.mean.data != nullptr) s.mean = ptx::ld_global_f32(held_address(part.mean, token, 0));
    return s;
  }
  const float sum = fold_row<Sum>(squares_of<T>(row.x),
                                  ptx::block_shared<FoldScratch<typename S::Tile>>(), place);
  s.rstd = rstd_of(__fmul_rn(sum, part.inv_n), part, NoSteps());
  return s;
}

template <class S>
__device__ __forceinline__ void values_of_held_token(const HeldHeadsBackwardParams& p) {
  using T = typename S::T;
  constexpr int kPerVector = T::kPerVector;
  const HeldGradientParams& part = gradient_part_of_block(p);
  const HeadsShared& shared = p.shared;
  const uint32_t token = blockIdx.x - part.order.first_block;
  const Place<typename S::Tile> place(0);
  follow_stream(p.triggers);

  const HeldToken<S> row(part, shared, token, place);
  const Statistics s = statistics_of_token<S>(part, token, row, place);
  float c[2] = {0.0f, 0.0f};
  if (part.dx.data != nullptr) {
    const HeldRows rows(shared, token);
    Moments m[S::kVectors];
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v) {
      float d[kPerVector], x[kPerVector], gain[kPerVector], cosine[kPerVector], sine[kPerVector];
      T::unpack(row.dy[v], d);
      T::unpack(row.x[v], x);
      load_rope<T>(cosine, sine, shared, rows, row.head[v], part.bits, row.rope[v].kind,
                   row.rope[v].pair);
      rotate_vector<T>(d, row.other[v], row.rope[v].kind, cosine, sine);
      load_gains(gain, part, weight_row<T>(part, row.head[v]), row.vector[v],
                 row.there[v] ? T::kPerVector : 0);
#pragma unroll
      for (int i = 0; i < kPerVector; ++i) {
        d[i] = __fmul_rn(d[i], gain[i]);
        x[i] = normalized<Stat::kLayer>(x[i], s);
      }
      // A missing vector's share is +0, whatever the statistics are.
      m[v].sum = row.there[v] ? vector_dot(d, x) : 0.0f;
      m[v].squares = row.there[v] ? vector_sum(d) : 0.0f;
    }
    const Moments total = fold_row_moments(
        fold_moments(m), ptx::block_shared<FoldScratch<typename S::Tile, 2>>(), place);
    c[0] = __fmul_rn(positive_zero(total.sum), part.inv_n);
    if ((part.bits & kHeadsLayer) != 0) c[1] = __fmul_rn(positive_zero(total.squares), part.inv_n);
  }
  if (threadIdx.x == 0) {
    ptx::st_global_v4(part.token_values + int64_t{token} * kTokenFloats,
                      make_uint4(__float_as_uint(s.mean), __float_as_uint(s.rstd),
                                 __float_as_uint(c[0]), __float_as_uint(c[1])));
  }
}

}  // namespace fastnorm::cuda
