// Two pieces that are all of a request: the block that begins with its piece second merges them,
// when both are done. It waits for a block that runs already, so it waits for no block in vain.
//
// Each consumer does so for its 64 x 256 outputs. A thread reads what the thread of its own number
// in the other block has written: 16 bytes of each four columns of its accumulator, so that a warp
// reads 512 bytes at once. The sum is that of the merging kernel: w[k] o[k] in the order of the
// pieces.
#pragma once

#include "cuda/common/ptx/flag.cuh"
#include "cuda/common/ptx/memory.cuh"
#include "cuda/mla_decode/tile.cuh"
#include "cuda/mla_decode/work.cuh"

namespace fastnorm::cuda::mla {

// The first of a thread's two rows, of all packed ones.
__device__ __forceinline__ int first_row(const Place& place) {
  return static_cast<int>(blockIdx.x) * kMlaTileRows + place.row;
}

__device__ __forceinline__ float lse_of(float sum, float maximum, float scale) {
  return sum > 0 ? ptx::log2_approx(sum) + maximum * scale : -INFINITY;
}
__device__ __forceinline__ void store_lse(const MlaDecodeParams& p, const Tokens& tokens, int row,
                                          float lse) {
  if (row >= tokens.count * p.heads) return;
  p.lse[(tokens.first + row / p.heads) * p.lse_token_stride + (row % p.heads) * p.lse_head_stride] =
      lse * p.lse_scale;
}

// Factors that normalise a thread's two rows, and their LSE to base 2.
struct Normalized {
  float factor0, factor1;
  float lse0, lse1;
};

// What a head's sink leaves of its output: exp(lse) / (exp(lse) + exp(sink)).
__device__ __forceinline__ float beside_sink(const MlaDecodeParams& p, int row, float lse) {
  if (p.sink == nullptr || lse == -INFINITY) return 1.0f;
  constexpr float kLog2E = 1.4426950408889634f;
  return 1.0f / (1.0f + ptx::exp2_approx(__fmaf_rn(__ldg(p.sink + row % p.heads), kLog2E, -lse)));
}

// A maximum to subtract: finite where all pieces are empty.
__device__ __forceinline__ float finite_maximum(float v) { return v == -INFINITY ? 0.0f : v; }

// A warp's rounded outputs of 16 columns, of the 64 x 256 that four sub-tiles hold.
__device__ __forceinline__ void stage_words(const Place& place, uint32_t stage, int step,
                                            const uint32_t (&words)[4]) {
  const auto row = static_cast<uint32_t>(place.warp * 16 + (place.lane & 15));
  const auto chunk = static_cast<uint32_t>(2 * (step & 3) + (place.lane >> 4));
  ptx::stmatrix_x4(stage + static_cast<uint32_t>(step >> 2) * kSubBytes + swizzled(row, chunk),
                   words[0], words[1], words[2], words[3]);
}

// Where a consumer's half of a pair's outputs passes from block to block.
struct PairPlace {
  MlaDecodePair* pair;
  float4* o;   // the thread's first four; the next are kGroup further
  float* lse;  // of the thread's first row

  __device__ __forceinline__ PairPlace(const MlaDecodeParams& p, const Place& place, Piece piece) {
    const int64_t first = piece.first_of_pair();
    const int64_t tile = first * p.m_tiles + blockIdx.x;
    pair = p.pairs + tile;
    o = reinterpret_cast<float4*>(p.partial_o + tile * kMlaTileRows * kMlaLatent) +
        place.group * (kMlaTileRows * 64) + place.thread;
    // Both consumers know the LSE of all rows. Each has the room of one of the two pieces.
    lse = p.partial_lse + (tile + place.group * p.m_tiles) * kMlaTileRows + place.row;
  }
};

// At the start of a piece; leave_or_join() needs it.
__device__ __forceinline__ void begin_pair(const MlaDecodeParams& p, const Place& place,
                                           Piece piece) {
  if (!piece.is_of_pair() || place.thread != 0) return;
  MlaDecodePair* const pair =
      p.pairs + static_cast<int64_t>(piece.first_of_pair()) * p.m_tiles + blockIdx.x;
  ptx::store_shared_u32(place.shared + kTaken + static_cast<uint32_t>(place.group) * 4,
                        static_cast<uint32_t>(ptx::take_number(&pair->taken[place.group])));
}
__device__ __forceinline__ bool began_first(const Place& place) {
  return ptx::load_shared_u32(place.shared + kTaken + static_cast<uint32_t>(place.group) * 4) == 0;
}

// The outputs of the block that began first.
__device__ __forceinline__ void leave_for_partner(const PairPlace& at, const Place& place,
                                                  const float (&o)[128], const Normalized& rows) {
#pragma unroll
  for (int k = 0; k < 32; ++k) {
    const float* v = o + 4 * k;
    at.o[k * kGroup] = make_float4(v[0] * rows.factor0, v[1] * rows.factor0, v[2] * rows.factor1,
                                   v[3] * rows.factor1);
  }
  if ((place.lane & 3) == 0) {
    at.lse[0] = rows.lse0;
    at.lse[8] = rows.lse1;
  }
  ptx::named_barrier_sync(kOneGroup + place.group, kGroup);
  if (place.thread == 0) ptx::raise_flag(&at.pair->written[place.group]);
}

// Weights of a row's two pieces in the sum, and what normalises it.
struct PairWeights {
  float first, second;
  float factor, lse;

  __device__ __forceinline__ PairWeights(float lse_first, float lse_second) {
    const float maximum = finite_maximum(fmaxf(lse_first, lse_second));
    first = ptx::exp2_approx(lse_first - maximum);
    second = ptx::exp2_approx(lse_second - maximum);
    const float sum = first + second;
    factor = sum > 0 ? 1.0f / sum : 1.0f;
    lse = sum > 0 ? ptx::log2_approx(sum) + maximum : -INFINITY;
  }
};

__device__ __forceinline__ float weighted(const PairWeights& w, float first, float second) {
  return __fmaf_rn(w.second, second, __fmaf_rn(w.first, first, 0.0f));
}

// Stages the outputs of the whole request, and gives their LSE. kAhead of 16 steps have their loads
// on the way at once, two each.
template <Dtype kDtype, bool kSecond, int kAhead>
__device__ __forceinline__ void join_partner(const MlaDecodeParams& p, const PairPlace& at,
                                             const Place& place, uint32_t stage,
                                             const float (&o)[128], Normalized& rows) {
  if (place.thread == 0) {
    ptx::wait_for_flag(&at.pair->written[place.group]);
    at.pair->taken[place.group] = at.pair->written[place.group] = 0;
  }
  ptx::named_barrier_sync(kOneGroup + place.group, kGroup);
  const float other0 = __ldcg(at.lse), other1 = __ldcg(at.lse + 8);
  PairWeights w0 = kSecond ? PairWeights(other0, rows.lse0) : PairWeights(rows.lse0, other0);
  PairWeights w1 = kSecond ? PairWeights(other1, rows.lse1) : PairWeights(rows.lse1, other1);
  w0.factor *= beside_sink(p, first_row(place), w0.lse);
  w1.factor *= beside_sink(p, first_row(place) + 8, w1.lse);
  const auto joined = [](const PairWeights& w, float own, float other) {
    return (kSecond ? weighted(w, other, own) : weighted(w, own, other)) * w.factor;
  };
#pragma unroll
  for (int first = 0; first < 16; first += kAhead) {
    float4 others[2 * kAhead];
#pragma unroll
    for (int i = 0; i < 2 * kAhead; ++i) {
      others[i] = ptx::ld_global_cg_v4(at.o + (2 * first + i) * kGroup);
    }
#pragma unroll
    for (int step = 0; step < kAhead; ++step) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float* const v = o + 8 * (first + step) + 4 * i;
        const float4& other = others[2 * step + i];
        words[2 * i] = pack<kDtype>(joined(w0, v[0] * rows.factor0, other.x),
                                    joined(w0, v[1] * rows.factor0, other.y));
        words[2 * i + 1] = pack<kDtype>(joined(w1, v[2] * rows.factor1, other.z),
                                        joined(w1, v[3] * rows.factor1, other.w));
      }
      stage_words(place, stage, first + step, words);
    }
    __syncwarp();  // ptxas starts no loads before it: there are registers for these alone
  }
  rows.lse0 = w0.lse, rows.lse1 = w1.lse;
}

// Whether the outputs are whole now and staged: this block's to store.
template <Dtype kDtype, int kAhead>
__device__ __forceinline__ bool leave_or_join(const MlaDecodeParams& p, const Place& place,
                                              Piece piece, uint32_t stage, const float (&o)[128],
                                              Normalized& rows) {
  const PairPlace at(p, place, piece);
  if (began_first(place)) {
    leave_for_partner(at, place, o, rows);
    return false;
  }
  if (piece.is_second()) {
    join_partner<kDtype, true, kAhead>(p, at, place, stage, o, rows);
  } else {
    join_partner<kDtype, false, kAhead>(p, at, place, stage, o, rows);
  }
  return true;
}

}  // namespace fastnorm::cuda::mla
