// Tiles of bare kernels that were measured to be faster than those of the ladders in norm_plan.cpp, for some lengths and numbers of rows of
// 16 bits: every tile of 64 to 512 threads, 1 to 8 vectors a thread and 1 to 8 blocks a cluster was timed with 16 to 2048 rows of 4096 to
// 32768 elements, and those of up to 4 vectors with 1 to 8 rows (H200, bf16, 2026-11-25; a laboratory of all those kernels and `fastnorm tune`). Where one wins depends on how many
// blocks a multiprocessor holds beside each other: the rows that are all resident at once end together, and one more row begins a second
// wave. Codes of 96 rows of 32768 elements, say, take 24 % less time in clusters of 8 x 128 threads than in blocks of 512.
#pragma once

#include <cstdint>
#include <span>

#include "core/norm_key.h"

namespace fastnorm {

// Of calls whose kernels are bare (see Beside): with weights of x's dtype but for kLayerF32; to y, to codes by a given scale, or to codes
// by scales from the values.
enum class CallKind : uint8_t {
  kRms,
  kLayer,
  kLayerF32,
  kSum,
  kRmsGiven,
  kLayerGiven,
  kSumGiven,
  kRmsScales,
  kLayerScales,
  kSumScales,
  kOther,
};

constexpr CallKind call_kind(NormKey key) {
  const bool add = key.source == Source::kAdd, layer = key.stat == Stat::kLayer;
  if (key.dtype == Dtype::kF32 || key.access != Access::kVector || (add && layer))
    return CallKind::kOther;
  if (key.affine == Affine::kF32)
    return layer && key.sink == Sink::kStore ? CallKind::kLayerF32 : CallKind::kOther;
  if (key.affine != Affine::kOnce) return CallKind::kOther;
  switch (key.sink) {
    case Sink::kStore:
      return add ? CallKind::kSum : layer ? CallKind::kLayer : CallKind::kRms;
    case Sink::kStatic:
      return add ? CallKind::kSumGiven : layer ? CallKind::kLayerGiven : CallKind::kRmsGiven;
    default:
      return add ? CallKind::kSumScales : layer ? CallKind::kLayerScales : CallKind::kRmsScales;
  }
}

// Rows of more than `above` and at most `most` vectors.
struct MeasuredRung {
  int16_t above, most;
  int16_t least_rows, most_rows;
  int16_t threads;
  int8_t blocks;
  // Only where a row has one scale, which the blocks of a cluster find together: RMSNorm 48 x 8192 by scales of 128 columns would take
  // 2.83 us for 2.74.
  bool row_scales = false;
};

// As many as 132 multiprocessors have two rows of each.
inline constexpr int16_t kTwoEach = 264;
inline constexpr int16_t kAllRows = INT16_MAX;

inline constexpr MeasuredRung kRmsRungs[] = {
    {1024, 1536, 129, kTwoEach, 256, 2},  // 192 x 12288: 4.90 us -> 4.67
    {2048, 3072, 33, 96, 128, 8},         // 96 x 20480: 4.83 -> 4.48
    {2048, 3072, 129, kTwoEach, 256, 2},  // 256 x 24576: 9.11 -> 8.57
    {3072, 4096, 129, 512, 256, 2},       // 384 x 28672: 16.8 -> 15.1
};
inline constexpr MeasuredRung kLayerRungs[] = {
    {768, 1024, 265, 448, 256, 1},   // in place of kept columns: 384 x 8192 6.19 -> 5.88
    {1024, 1536, 17, 128, 128, 4},   // 64 x 10240: 3.54 -> 3.37
    {2048, 3072, 9, 64, 128, 8},     // 64 x 24576: 5.21 -> 4.65
    {2048, 3072, 129, 512, 256, 2},  // 384 x 24576: 15.7 -> 14.0
    {3072, 4096, 129, 448, 256, 2},  // 192 x 32768: 11.1 -> 9.8
};
inline constexpr MeasuredRung kLayerF32Rungs[] = {
    {256, 512, 1, 128, 256,
     1},  // in place of clusters: 1 x 3072 2.32 -> 2.12, 1 x 4096 2.37 -> 2.23
    {384, 512, 129, 512, 256, 1},          // 512 x 4096: 4.54 -> 4.44
    {1024, 1536, 65, 192, 128, 4},         // 192 x 12288: 6.15 -> 5.38
    {1024, 1536, 193, kTwoEach, 512, 1},   // 256 x 12288: 6.86 -> 6.27
    {1280, 1536, 1537, kAllRows, 512, 1},  // 2048 x 12288: 30.5 -> 29.1
    {1536, 2048, 129, kTwoEach, 512, 1},   // 256 x 16384: 8.38 -> 7.47
    {1536, 2048, 641, 896, 512, 1},        // 768 x 16384: 19.3 -> 18.4
    {1536, 2048, 1537, kAllRows, 512, 1},  // 4096 x 16384: 72.6 -> 69.6
    {2048, 3072, 33, 96, 128, 8},          // 96 x 24576: 6.72 -> 5.75
    {3072, 4096, 33, 96, 128, 8},          // 64 x 28672: 5.79 -> 5.14
    {3072, 4096, 129, kTwoEach, 256, 2},   // 192 x 32768: 11.7 -> 10.9
};
inline constexpr MeasuredRung kSumRungs[] = {
    {2048, 3072, 65, 1024, 128, 8},   // 96 x 20480: 6.78 -> 6.16
    {3072, 4096, 129, 1024, 256, 8},  // 192 x 32768: 17.0 -> 14.9
};
inline constexpr MeasuredRung kRmsGivenRungs[] = {
    {512, 768, 265, 512, 128, 2},        // 512 x 5120: 4.62 -> 4.32
    {768, 1024, 129, kTwoEach, 512, 1},  // 192 x 8192: 3.75 -> 3.66
    {1024, 1536, 33, 192, 128, 4},       // 192 x 10240: 4.42 -> 4.02
    {1536, 2048, 65, 192, 128, 4},       // 192 x 16384: 5.34 -> 4.89
    {2048, 3072, 9, 96, 128, 8},         // 96 x 24576: 5.51 -> 4.47
    {2048, 3072, 97, 128, 512, 2},       // 128 x 24576: 6.03 -> 5.14
    {2048, 3072, 129, 198, 256, 2},      // 192 x 20480: 6.33 -> 5.92
    {3072, 4096, 9, 192, 128, 8},        // 96 x 32768: 6.58 -> 5.08
    {3072, 4096, 321, 768, 128, 8},      // 384 x 32768: 16.0 -> 13.3
};
inline constexpr MeasuredRung kLayerGivenRungs[] = {
    {384, 512, 1, 448, 256, 1},      // 1 x 4096: 2.58 -> 2.25
    {768, 1024, 265, 448, 256, 1},   // in place of kept columns: 384 x 8192 6.02 -> 5.51
    {1024, 1536, 17, 192, 128, 4},   // 96 x 10240: 4.15 -> 3.65
    {1536, 2048, 33, 128, 128, 4},   // 96 x 16384: 4.99 -> 4.27
    {2048, 3072, 9, 96, 128, 8},     // 64 x 24576: 5.88 -> 4.43
    {2048, 3072, 97, 128, 512, 2},   // 128 x 24576: 6.93 -> 6.05
    {2048, 3072, 129, 512, 256, 2},  // 192 x 20480: 7.59 -> 6.96
    {3072, 4096, 9, 64, 128, 8},     // 64 x 32768: 7.02 -> 4.91
    {3072, 4096, 65, 128, 512, 2},   // 128 x 32768: 8.48 -> 7.00
    {3072, 4096, 129, 512, 256, 2},  // 192 x 32768: 10.7 -> 9.6
};
inline constexpr MeasuredRung kSumGivenRungs[] = {
    {1024, 1536, 33, 64, 128, 4},     // 64 x 10240: 3.74 -> 3.62
    {1536, 2048, 129, 1024, 256, 4},  // 512 x 14336: 16.8 -> 15.0
    {2048, 4096, 17, 2048, 128, 8},   // 192 x 32768: 17.6 -> 13.6
};
inline constexpr MeasuredRung kRmsScalesRungs[] = {
    {384, 512, 1, 128, 256, 1},        // 64 x 4096: 2.74 -> 2.69
    {512, 768, 1, 64, 256, 1, true},   // in place of clusters: 1 x 5120 2.58 -> 2.33
    {768, 1024, 1, 64, 256, 1, true},  // 64 x 8192: 3.18 -> 3.10
    {1024, 1536, 17, 64, 128, 4},      // 64 x 12288: 3.73 -> 3.49
    {2048, 2560, 9, 64, 128, 8},       // 32 x 20480: 3.77 -> 3.50
    {2048, 3072, 129, 2048, 256, 2},   // 1024 x 20480: 29.3 -> 23.3
    {2560, 3072, 9, 96, 128, 8},       // 48 x 24576: 4.54 -> 4.08
    {3072, 4096, 9, 64, 128, 8},       // 48 x 32768: 5.27 -> 4.55
    {3072, 4096, 129, 1024, 512, 2},   // 192 x 28672: 10.2 -> 9.5
};
inline constexpr MeasuredRung kLayerScalesRungs[] = {
    {384, 512, 1, 512, 256, 1},       // 64 x 4096: 3.25 -> 3.09
    {512, 768, 1, 64, 256, 1, true},  // in place of clusters: 64 x 5120 3.39 -> 3.20
    {1024, 1536, 17, 64, 128, 4},     // 64 x 10240: 4.16 -> 3.75
    {1536, 2048, 33, 96, 128, 4},     // 64 x 14336: 4.34 -> 4.10
    {2048, 3072, 9, 64, 128, 8},      // 32 x 20480: 4.34 -> 3.96
    {2048, 2560, 129, 2048, 256, 2},  // 512 x 20480: 18.6 -> 14.4
    {2560, 3072, 129, 896, 256, 2},   // 192 x 24576: 10.7 -> 9.5
    {3072, 4096, 9, 48, 128, 8},      // 48 x 32768: 6.10 -> 5.06
    {3072, 4096, 49, 64, 512, 2},     // 64 x 32768: 6.42 -> 5.98
    {3072, 4096, 129, 448, 512, 2},   // 192 x 32768: 12.8 -> 11.6
};
inline constexpr MeasuredRung kSumScalesRungs[] = {
    {512, 1024, 1, 64, 256, 1, true},    // in place of clusters
    {896, 1024, 321, 512, 128, 1},       // all resident at once with 8 vectors a thread
    {1024, 1536, 33, 64, 256, 1, true},  // 64 x 12288: 4.57 -> 4.30
    {1024, 1536, 65, kTwoEach, 256, 1},  // 256 x 12288: 8.32 -> 8.13
    {1024, 1536, 321, 2048, 128, 4},     // 384 x 12288: 12.3 -> 11.2
    {1536, 2048, 49, kTwoEach, 256, 1},  // 256 x 16384: 11.7 -> 9.9
    {1536, 2048, 321, 1536, 128, 4},     // 512 x 16384: 20.1 -> 17.7
    {2048, 3072, 9, 96, 128, 8},         // 64 x 20480: 7.04 -> 5.46
    {2048, 3072, 129, 1024, 128, 8},     // 256 x 24576: 15.9 -> 14.5
    {3072, 4096, 9, 1024, 128, 8},       // 192 x 32768: 18.4 -> 14.8
};

constexpr std::span<const MeasuredRung> measured_rungs(CallKind kind) {
  switch (kind) {
    case CallKind::kRms:
      return kRmsRungs;
    case CallKind::kLayer:
      return kLayerRungs;
    case CallKind::kLayerF32:
      return kLayerF32Rungs;
    case CallKind::kSum:
      return kSumRungs;
    case CallKind::kRmsGiven:
      return kRmsGivenRungs;
    case CallKind::kLayerGiven:
      return kLayerGivenRungs;
    case CallKind::kSumGiven:
      return kSumGivenRungs;
    case CallKind::kRmsScales:
      return kRmsScalesRungs;
    case CallKind::kLayerScales:
      return kLayerScalesRungs;
    case CallKind::kSumScales:
      return kSumScalesRungs;
    case CallKind::kOther:
      return {};
  }
  return {};
}

}  // namespace fastnorm
