// Tiles of bare kernels that were measured to be faster than those of the ladders in norm_plan.cpp, for some lengths and numbers of rows of
// 16 bits: every tile of 64 to 512 threads, 1 to 8 vectors a thread and 1 to 8 blocks a cluster was timed with 16 to 2048 rows of 4096 to
// 32768 elements, and those of up to 4 vectors with 1 to 8 rows (H200, bf16, 2026-11-25; a laboratory of all those kernels and `fastnorm tune`). Where one wins depends on how many
// blocks a multiprocessor holds beside each other: the rows that are all resident at once end together, and one more row begins a second
// wave. Codes of 96 rows of 32768 elements, say, take 24 % less time in clusters of 8 x 128 threads than in blocks of 512.
//
// Columns in shared memory (Beside::kShared) give registers to the row: more vectors a thread, or more blocks beside each other. Such kernels
// of 64 to 512 threads, 2 to 8 vectors and 1 to 16 blocks were timed likewise, with 1 to 8192 rows of 2048 to 262144 elements; which, and beside
// what, is in bench/README.md. On 2026-11-26 the library's choice was timed beside all its other kernels (`fastnorm tune`, 1 to 4096 rows of 1024 to
// 16384 elements): what gained 1.5 % or more is here, too, but for codes by a scale a row
// where those by scales of columns have another rung. Rungs of kOfBlocks are what it found for scales of 128 columns and MXFP8 (1 to 4096 rows of 1024
// to 32768 elements): first on an H100, where few rows take as long, and with those rungs again on the H200.
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
  // Uneven rows to y; and those of them that are whole halves of vectors at multiples of 8 bytes.
  kUnevenRms,
  kUnevenLayer,
  kUnevenLayerF32,
  kUnevenSum,
  kHalfRms,
  kHalfLayer,
  kHalfLayerF32,
  kHalfSum,
  kOther,
};

constexpr CallKind call_kind(NormKey key) {
  const bool add = key.source == Source::kAdd, layer = key.stat == Stat::kLayer;
  if (key.dtype == Dtype::kF32 || (add && layer)) return CallKind::kOther;
  if (key.access == Access::kUneven && key.sink == Sink::kStore) {
    if (key.affine == Affine::kF32) return layer ? CallKind::kUnevenLayerF32 : CallKind::kOther;
    return add ? CallKind::kUnevenSum : layer ? CallKind::kUnevenLayer : CallKind::kUnevenRms;
  }
  if (key.access != Access::kVector) return CallKind::kOther;
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

// Of those uneven rows that bare kernels may reach by 8 bytes (Beside::kHalves).
constexpr CallKind half_kind(CallKind uneven) {
  return uneven == CallKind::kUnevenRms        ? CallKind::kHalfRms
         : uneven == CallKind::kUnevenLayer    ? CallKind::kHalfLayer
         : uneven == CallKind::kUnevenLayerF32 ? CallKind::kHalfLayerF32
         : uneven == CallKind::kUnevenSum      ? CallKind::kHalfSum
                                               : CallKind::kOther;
}

// Of codes by scales from the values: where a row has one scale, the blocks of a cluster find it together, and with scales of blocks of columns they
// need not (RMSNorm 48 x 8192 by scales of 128 columns would take 2.83 us for 2.74 in the one block that is faster with a scale a row).
enum class RungScales : uint8_t { kAny, kOfRows, kOfBlocks };

// Rows of more than `above` and at most `most` vectors.
struct MeasuredRung {
  int32_t above, most;
  int16_t least_rows, most_rows;
  int16_t threads;
  int8_t blocks;
  Beside beside = Beside::kNothing;  // or kNothingCs, kShared
  RungScales scales = RungScales::kAny;
};

// As many as 132 multiprocessors have two rows of each.
inline constexpr int16_t kTwoEach = 264;
inline constexpr int16_t kAllRows = INT16_MAX;
inline constexpr int64_t kLeastMeasuredVectors = 64;  // that a row of whole vectors has more than
inline constexpr Beside kBare = Beside::kNothing, kBareCs = Beside::kNothingCs,
                        kShared = Beside::kShared, kHalves = Beside::kHalves;
inline constexpr RungScales kOfRows = RungScales::kOfRows, kOfBlocks = RungScales::kOfBlocks;

inline constexpr MeasuredRung kRmsRungs[] = {
    {640, 768, 1, 32, 128, 4},                     // 1 x 6144: 2.10 us -> 2.02
    {768, 1024, 1, 16, 128, 4},                    // 1 x 8192: 2.10 -> 2.05
    {768, 896, 641, 1280, 128, 1, kShared},        // 768 x 7168: 7.46 us -> 7.29
    {1024, 1792, 129, 448, 128, 2, kShared},       // 384 x 14336: 7.76 -> 7.28
    {1024, 1792, 641, 3072, 128, 2, kShared},      // 1024 x 14336: 17.1 -> 16.3
    {1792, 2048, 129, kTwoEach, 128, 4, kShared},  // 192 x 16384: 5.65 -> 5.25, 256: 6.30 -> 6.19
    {1792, 2048, 321, 448, 128, 2, kShared},       // 384 x 16384: 8.50 -> 8.15
    {1792, 2048, 641, 3072, 128, 4, kShared},      // 1024 x 16384: 19.0 -> 18.3
    {2048, 2560, 33, 96, 128, 8},                  // 96 x 20480: 4.83 -> 4.48
    {2048, 2560, 97, 3072, 128, 4, kShared},       // 512 x 20480: 13.5 -> 12.3
    {2560, 3072, 33, 96, 128, 8},
    {2560, 3072, 97, 6144, 128, 4, kShared},        // 384 x 24576: 14.0 -> 11.3
    {3072, 4096, 65, 6144, 128, 4, kShared},        // 1024 x 32768: 38.3 -> 34.7
    {4096, 8192, 1, kAllRows, 128, 8, kShared},     // 128 x 65536: 13.7 -> 10.8
    {8192, 16384, 1, 4, 128, 16, kShared},          // 1 x 131072: 3.40 -> 2.71
    {8192, 16384, 5, kAllRows, 256, 8, kShared},    // 128 x 131072: 22.6 -> 19.6
    {16384, 32768, 1, kAllRows, 256, 16, kShared},  // 128 x 262144: 44.7 -> 37.4
};
inline constexpr MeasuredRung kLayerRungs[] = {
    {192, 256, 1281, 3072, 64, 1, kShared},      // 2048 x 2048: 6.34 -> 6.08
    {512, 640, 449, kAllRows, 128, 1, kShared},  // 1536 x 5120: 10.1 -> 9.8, 512: 4.97 -> 4.90
    {640, 768, 641, 3072, 128, 1, kShared},      // 1024 x 6144: 8.82 -> 8.45
    {768, 1024, 1, 16, 128, 4},                  // 8 x 8192: 2.63 -> 2.59
    {768, 896, 57, 320, 128, 1, kShared},        // 64 x 7168: 3.04 -> 2.96
    {768, 896, 321, 447, 256, 1, kShared},       // 384 x 7168: 5.35 -> 5.22
    {768, 896, 448, kAllRows, 128, 1, kShared},  // 1024 x 7168: 10.3 -> 9.4
    {896, 1024, 129, 6144, 256, 1, kShared},  // in place of kept columns: 384 x 8192 5.91 -> 5.69
    {1024, 1280, 17, 112, 128, 4},            // 64 x 10240: 3.54 -> 3.37
    {1024, 1280, 113, 320, 128, 2, kShared},  // 192 x 10240: 5.38 -> 4.71, 128: 4.15 -> 4.03
    {1024, 1280, 321, kAllRows, 256, 1, kShared},  // 1024 x 10240: 13.6 -> 13.2
    {1280, 1536, 17, 112, 128, 4},
    {1280, 1536, 113, 448, 128, 2, kShared},       // 384 x 12288: 7.83 -> 7.13, 128: 4.45 -> 4.35
    {1280, 1536, 449, kAllRows, 256, 1, kShared},  // 1024 x 12288: 17.5 -> 15.2
    {1536, 1792, 41, 80, 128, 2, kShared},         // 64 x 14336: 3.85 -> 3.72
    {1536, 1792, 81, 112, 128, 4, kShared},
    {1536, 1792, 113, 320, 128, 2, kShared},    // 192 x 14336: 6.42 -> 5.52, 128: 4.75 -> 4.65
    {1536, 1792, 641, 1280, 128, 2, kShared},   // 768 x 14336: 16.0 -> 14.5
    {1536, 1792, 1281, 6144, 256, 1, kShared},  // 1536 x 14336: 25.8 -> 24.6
    {1792, 2048, 41, 56, 128, 4, kShared},      // 48 x 16384: 3.62 -> 3.56
    {1792, 2048, 57, 80, 128, 2, kShared},      // 64 x 16384: 3.96 -> 3.85
    {1792, 2048, 81, 128, 128, 4, kShared},     // 96 x 16384: 4.81 -> 4.51
    {1792, 2048, 129, 224, 128, 2, kShared},
    {1792, 2048, 225, 320, 512, 1, kShared},       // 256 x 16384: 7.00 -> 6.80
    {1792, 2048, 321, 447, 512, 1},                // 384 x 16384: 9.41 -> 9.27
    {1792, 2048, 641, kAllRows, 512, 1, kShared},  // 768 x 16384: 17.9 -> 15.9
    {2048, 2560, 9, 64, 128, 8},
    {2048, 2560, 65, 128, 128, 4, kShared},    // 96 x 20480: 5.74 -> 4.94
    {2048, 2560, 129, 1791, 256, 2, kShared},  // 768 x 20480: 21.6 -> 19.1
    {2560, 3072, 9, 64, 128, 8},               // 64 x 24576: 5.21 -> 4.65
    {2560, 3072, 65, 224, 256, 2, kShared},    // 192 x 24576: 8.10 -> 7.62
    {2560, 3072, 225, 320, 256, 2},
    {2560, 3072, 321, 1791, 256, 2, kShared},     // 512 x 24576: 18.0 -> 16.7
    {3072, 4096, 49, 96, 256, 4, kShared},        // 64 x 28672: 5.79 -> 5.03
    {3072, 4096, 97, 128, 128, 4, kShared},       // 128 x 28672: 7.22 -> 6.74
    {3072, 4096, 129, 320, 256, 2},               // 192 x 32768: 11.1 -> 9.8
    {3072, 4096, 321, 896, 128, 4, kShared},      // 512 x 28672: 20.6 -> 19.2
    {4096, 6144, 1, 64, 128, 8, kShared},         // 32 x 49152: 6.23 -> 4.88
    {4096, 6144, 65, kAllRows, 256, 4, kShared},  // 1024 x 49152: 63.5 -> 59.9
    {6144, 8192, 1, 1279, 128, 8, kShared},       // 32 x 65536: 7.14 -> 5.62
    {8192, 12288, 1, 4, 128, 16, kShared},        // 1 x 98304: 4.01 -> 2.96
    {8192, 12288, 5, 1279, 256, 8, kShared},      // 128 x 98304: 20.8 -> 19.5
    {12288, 16384, 1, 4, 128, 16, kShared},       // 1 x 131072: 4.51 -> 3.25
    {12288, 16384, 5, 64, 256, 8, kShared},       // 8 x 131072: 5.46 -> 4.53
    {16384, 24576, 1, 64, 256, 16, kShared},      // 1 x 163840: 4.56 -> 3.66
    {24576, 32768, 1, 8, 256, 16, kShared},       // 1 x 262144: 5.14 -> 4.43
};
inline constexpr MeasuredRung kLayerF32Rungs[] = {
    {96, 128, 1281, 2560, 64, 1},   // in place of kept columns: 2048 x 1024 4.22 -> 4.04
    {192, 256, 641, 1280, 128, 1},  // 1024 x 2048: 4.34 -> 4.16
    {256, 512, 1, 128, 256,
     1},  // in place of clusters: 1 x 3072 2.32 -> 2.12, 1 x 4096 2.37 -> 2.23
    {256, 384, 161, 224, 256, 1},          // 192 x 3072: 2.97 -> 2.90
    {256, 384, 321, 895, 128, 1},          // in place of kept columns: 384 x 3072 3.74 -> 3.53
    {384, 512, 129, 512, 256, 1},          // 512 x 4096: 4.54 -> 4.44
    {512, 1024, 161, 224, 128, 4},         // 192 x 8192: 4.52 -> 4.32
    {768, 1024, 321, 447, 256, 1},         // in place of kept columns: 384 x 8192 6.34 -> 6.08
    {1024, 1536, 65, 192, 128, 4},         // 192 x 12288: 6.15 -> 5.38
    {1024, 1536, 193, kTwoEach, 512, 1},   // 256 x 12288: 6.86 -> 6.27
    {1280, 1536, 1537, kAllRows, 512, 1},  // 2048 x 12288: 30.5 -> 29.1
    {1536, 2048, 81, 112, 128, 8},         // 96 x 16384: 4.99 -> 4.70
    {1536, 2048, 129, kTwoEach, 512, 1},   // 256 x 16384: 8.38 -> 7.47
    {1536, 2048, 641, 896, 512, 1},        // 768 x 16384: 19.3 -> 18.4
    {1536, 2048, 1281, kAllRows, 512, 1},  // 4096 x 16384: 72.6 -> 69.6, 1536: 32.6 -> 29.9
    {2048, 3072, 33, 96, 128, 8},          // 96 x 24576: 6.72 -> 5.75
    {3072, 4096, 33, 96, 128, 8},          // 64 x 28672: 5.79 -> 5.14
    {3072, 4096, 129, kTwoEach, 256, 2},   // 192 x 32768: 11.7 -> 10.9
};
inline constexpr MeasuredRung kSumRungs[] = {
    {224, 256, 1281, 1791, 128, 1},                // 1536 x 2048: 8.31 -> 8.09
    {320, 384, 641, 895, 128, 1, kBareCs},         // 768 x 3072: 6.66 -> 6.37
    {512, 640, 641, 895, 256, 1},                  // 768 x 5120: 10.11 -> 9.90
    {640, 768, 321, 447, 256, 1, kBareCs},         // 384 x 6144: 6.74 -> 6.42
    {768, 1024, 321, 640, 128, 1, kShared},        // 384 x 7168: 7.61 -> 7.16
    {1024, 1280, 81, 144, 256, 1, kShared},        // 96 x 10240: 4.40 -> 4.27
    {1024, 2048, 193, kTwoEach, 256, 1, kShared},  // 256 x 14336: 9.35 -> 8.89
    {1280, 1536, 81, 112, 512, 1},                 // 96 x 12288: 4.76 -> 4.68
    {1280, 1536, 161, 192, 128, 4},                // 192 x 12288: 7.20 -> 6.84
    {1536, 2048, 81, 112, 128, 8},                 // 96 x 16384: 5.63 -> 5.40
    {1536, 2048, 113, 192, 256, 1, kShared},       // 128 x 16384: 6.45 -> 6.27
    {1792, 2048, 1281, 1791, 128, 8},              // 1536 x 16384: 52.3 -> 51.0
    {2048, 3072, 65, 96, 128, 8},                  // 96 x 20480: 6.78 -> 6.16
    {2048, 4096, 97, 132, 256, 2, kShared},        // 128 x 24576: 8.65 -> 8.30
    {2048, 3072, 133, 1024, 128, 8},
    {3072, 4096, 133, 1024, 256, 8},                // 192 x 32768: 17.0 -> 14.9
    {4096, 8192, 1, kAllRows, 128, 8, kShared},     // 128 x 40960: 17.8 -> 13.0
    {8192, 16384, 1, kAllRows, 128, 16, kShared},   // 4096 x 98304: 1003 -> 767
    {16384, 32768, 1, kAllRows, 256, 16, kShared},  // 1024 x 262144: 662 -> 524
};
inline constexpr MeasuredRung kRmsGivenRungs[] = {
    {64, 96, 1, 512, 64, 1},    // 64 x 768: 2.21 -> 2.14; 4096 rows would take 4.75 for 4.50
    {96, 128, 1, 2560, 64, 1},  // 16 x 1024: 2.09 -> 1.96, 2048 x 1024: 3.84 -> 3.77
    {112, 128, 3584, kAllRows, 64, 1},  // 4096 x 1024: 5.31 -> 5.20; but 3072 x 1024 4.58 -> 4.70
    {512, 640, 1, 32, 128, 1},          // 1 x 5120: 2.19 -> 2.12
    {512, 640, 33, 3071, 128, 1, kShared},      // 192 x 5120: 3.16 -> 3.03
    {640, 768, 1, 32, 128, 4},                  // 1 x 6144: 2.23 -> 2.15
    {640, 768, 265, 512, 128, 2},               // 512 x 5120: 4.62 -> 4.32
    {768, 1024, 1, 16, 128, 4},                 // 1 x 8192: 2.23 -> 2.17
    {768, 896, 97, kAllRows, 128, 1, kShared},  // 1024 x 7168: 8.02 -> 7.81
    {896, 1024, 129, kTwoEach, 512, 1},         // 192 x 8192: 3.75 -> 3.66
    {896, 1024, 321, 1279, 256, 1, kShared},    // 768 x 8192: 7.22 -> 7.08
    {1024, 1280, 33, 192, 128, 4},              // 192 x 10240: 4.42 -> 4.02
    {1024, 1280, 193, 640, 128, 2, kShared},    // 256 x 10240: 4.82 -> 4.53
    {1280, 1536, 33, 192, 128, 4},
    {1280, 1536, 193, kAllRows, 128, 2, kShared},  // 4096 x 12288: 39.6 -> 39.0
    {1536, 1792, 65, 80, 128, 4},
    {1536, 1792, 81, 112, 128, 8},  // 96 x 14336: 3.72 -> 3.64
    {1536, 1792, 113, 192, 128, 4},
    {1536, 1792, 193, kAllRows, 256, 1, kShared},  // 1024 x 14336: 15.5 -> 13.5
    {1792, 2048, 65, 80, 128, 4},
    {1792, 2048, 81, 112, 128, 8},                 // 96 x 16384: 3.86 -> 3.80
    {1792, 2048, 113, 192, 128, 4},                // 192 x 16384: 5.34 -> 4.89
    {1792, 2048, 193, kAllRows, 128, 2, kShared},  // 2048 x 16384: 29.1 -> 27.2
    {2048, 2560, 9, 96, 128, 8},
    {2048, 2560, 97, kAllRows, 256, 2, kShared},   // 512 x 20480: 11.3 -> 10.4
    {2560, 3072, 9, 96, 128, 8},                   // 96 x 24576: 5.51 -> 4.47
    {2560, 3072, 97, 320, 256, 2, kShared},        // 192 x 24576: 6.85 -> 6.26
    {2560, 3072, 321, kAllRows, 128, 4, kShared},  // 512 x 24576: 14.7 -> 12.3
    {3072, 3584, 9, 96, 128, 8},
    {3072, 3584, 97, kAllRows, 128, 4, kShared},   // 1024 x 28672: 28.2 -> 24.6
    {3584, 4096, 9, 96, 128, 8},                   // 96 x 32768: 6.58 -> 5.08
    {3584, 4096, 97, 896, 128, 4, kShared},        // 384 x 32768: 13.3 -> 12.2
    {3584, 4096, 897, kAllRows, 512, 1, kShared},  // 1024 x 32768: 32.3 -> 27.8
};
inline constexpr MeasuredRung kLayerGivenRungs[] = {
    {192, 256, 1791, kAllRows, 64, 1, kShared},  // 4096 x 2048: 9.35 -> 8.83
    {384, 512, 1, 448, 256, 1},                  // 1 x 4096: 2.58 -> 2.25
    {384, 512, 641, kAllRows, 128, 1, kShared},  // 768 x 4096: 5.51 -> 5.17
    {512, 640, 161, kAllRows, 128, 1, kShared},  // 2048 x 5120: 11.4 -> 10.8
    {640, 768, 641, kAllRows, 128, 1, kShared},  // 1536 x 6144: 10.7 -> 10.1
    {768, 1024, 1, 16, 128, 4},                  // 8 x 8192: 2.75 -> 2.70
    {768, 896, 81, kAllRows, 128, 1, kShared},   // 2048 x 7168: 15.4 -> 14.1
    {896, 1024, 129, 448, 256, 1, kShared},      // 384 x 8192: 5.59 -> 5.46
    {1024, 1280, 9, 112, 128, 4},                // 96 x 10240: 4.15 -> 3.65
    {1024, 1280, 113, 160, 256, 1, kShared},     // 128 x 10240: 3.98 -> 3.91
    {1024, 1280, 161, 192, 128, 4},
    {1024, 1280, 193, kAllRows, 256, 1, kShared},  // 4096 x 10240: 37.8 -> 35.7
    {1280, 1536, 9, 192, 128, 4},                  // 16 x 12288: 3.01 -> 2.94
    {1280, 1536, 321, 3071, 256, 1, kShared},      // 1024 x 12288: 15.1 -> 13.3
    {1536, 2048, 33, 128, 128, 4},                 // 96 x 16384: 4.99 -> 4.27
    {1536, 2048, 129, 224, 128, 2, kShared},       // 192 x 14336: 5.92 -> 5.30
    {1536, 1792, 225, 1279, 128, 2, kShared},      // 1024 x 14336: 17.7 -> 16.1
    {1792, 2048, 225, 1791, 512, 1, kShared},      // 768 x 16384: 15.5 -> 14.1
    {2048, 2560, 9, 96, 128, 8},
    {2048, 2560, 97, 1791, 256, 2, kShared},  // 768 x 20480: 20.2 -> 17.6
    {2560, 3072, 9, 96, 128, 8},              // 64 x 24576: 5.88 -> 4.43
    {2560, 3072, 97, 1279, 256, 2, kShared},  // 768 x 24576: 22.8 -> 21.1
    {3072, 3584, 9, 64, 128, 8},
    {3072, 3584, 65, 1023, 256, 2, kShared},  // 512 x 28672: 18.5 -> 17.4
    {3584, 4096, 9, 64, 128, 8},              // 64 x 32768: 7.02 -> 4.91
    {3584, 4096, 65, 128, 256, 2, kShared},   // 96 x 32768: 6.59 -> 6.34
    {3584, 4096, 129, 512, 256, 2},           // 192 x 32768: 10.7 -> 9.6
};
inline constexpr MeasuredRung kSumGivenRungs[] = {
    {512, 640, 449, 640, 256, 1},            // 512 x 5120: 7.02 -> 6.89
    {768, 896, 225, 320, 128, 1, kShared},   // 256 x 7168: 5.47 -> 5.38
    {768, 1024, 321, 640, 128, 1, kShared},  // 512 x 7168: 8.92 -> 8.44
    {1024, 1536, 33, 64, 128, 4},            // 64 x 10240: 3.74 -> 3.62
    {1280, 1536, 161, 224, 128, 4},          // 192 x 12288: 6.67 -> 6.54
    {1280, 1536, 321, 447, 128, 4},
    {1280, 1536, 641, 895, 128, 4},          // 768 x 12288: 18.9 -> 18.5
    {1536, 1792, 81, 128, 256, 1, kShared},  // 128 x 14336: 5.75 -> 5.57
    {1536, 2048, 129, 224, 256, 4},
    {1536, 2048, 225, kTwoEach, 256, 1, kShared},   // 256 x 16384: 9.82 -> 9.44
    {1536, 2048, 265, 1024, 256, 4},                // 512 x 14336: 16.8 -> 15.0
    {1536, 1792, 1281, 1791, 256, 4},               // 1536 x 14336: 42.7 -> 39.8
    {2048, 4096, 17, 2048, 128, 8},                 // 192 x 32768: 17.6 -> 13.6
    {2560, 4096, 2049, kAllRows, 256, 4, kShared},  // 4096 x 32768: 233 -> 222
};
inline constexpr MeasuredRung kRmsScalesRungs[] = {
    {384, 512, 1, 128, 256, 1},                      // 64 x 4096: 2.74 -> 2.69
    {384, 512, 129, 288, 128, 1, kShared},           // 256 x 4096: 3.37 -> 3.27
    {384, 512, 321, 447, 128, 1, kShared, kOfRows},  // 384 x 4096: 3.82 -> 3.75
    // In place of clusters: 1 x 5120 2.58 -> 2.33; by scales of 128 columns 64 x 5120 3.07 -> 2.93 (H100).
    {512, 640, 1, 64, 256, 1},
    {512, 640, 113, 128, 128, 1, kShared, kOfRows},  // 128 x 5120: 3.05 -> 3.00
    {512, 640, 129, kAllRows, 128, 1, kShared},      // 192 x 5120: 3.43 -> 3.29
    {640, 768, 1, 64, 256, 1},  // by scales of 128 columns 64 x 6144 3.13 -> 3.01 (H100)
    {768, 1024, 1, 40, 256, 1, kBare, kOfRows},
    {768, 1024, 41, 96, 256, 1, kShared, kOfRows},  // 64 x 8192: 3.12 -> 3.04
    {768, 1024, 97, 224, 256, 1, kShared},          // 128 x 7168: 3.44 -> 3.32
    {768, 1024, 225, 320, 256, 1,
     kShared},  // 256 x 8192: 4.50 -> 4.40, by scales of 128 columns 4.61 -> 4.50
    {768, 896, 321, 640, 128, 1, kBare, kOfRows},       // 512 x 7168: 5.65 -> 5.49
    {896, 1024, 449, 640, 256, 1, kShared, kOfRows},    // 512 x 8192: 5.98 -> 5.88
    {1024, 1536, 17, 64, 128, 4},                       // 64 x 12288: 3.73 -> 3.49
    {1024, 1280, 81, 448, 256, 1, kShared},             // 96 x 10240: 3.74 -> 3.47
    {1024, 1280, 449, 6144, 128, 2, kShared},           // 4096 x 10240: 36.7 -> 35.7
    {1280, 1536, 161, 224, 128, 4, kBare, kOfRows},     // 192 x 12288: 4.97 -> 4.85
    {1536, 2048, 41, 128, 128, 4, kShared, kOfRows},    // 64 x 14336: 3.83 -> 3.72
    {1536, 2048, 65, 128, 128, 4, kShared, kOfBlocks},  // 128 x 16384: 5.43 -> 5.18 (H100)
    {1536, 2048, 129, 224, 128, 4, kShared},            // 192 x 14336: 5.57 -> 5.28
    {1536, 1792, 225, 3072, 128, 2, kShared},           // 1024 x 14336: 16.5 -> 15.2
    {1792, 2048, 225, 6144, 128, 2, kShared},           // 768 x 16384: 14.7 -> 13.0
    {2048, 2560, 9, 80, 128, 8},                        // 32 x 20480: 3.77 -> 3.50
    {2048, 2560, 81, kAllRows, 128, 4, kShared},        // 4096 x 20480: 83.3 -> 72.8
    {2560, 3072, 1, 8, 128, 8, kBare, kOfBlocks},       // 8 x 24576: 3.05 -> 2.99
    {2560, 3072, 9, 96, 128, 8},                        // 48 x 24576: 4.54 -> 4.08
    {2560, 3072, 97, kAllRows, 256, 2, kShared},        // 4096 x 24576: 96.4 -> 85.2
    {3072, 4096, 9, 64, 128, 8},                        // 48 x 32768: 5.27 -> 4.55
    {3072, 4096, 65, 112, 128, 8, kShared},             // 96 x 32768: 6.40 -> 5.85
    {3072, 3584, 113, 2048, 128, 4, kShared},           // 1024 x 28672: 34.9 -> 29.6
    {3584, 4096, 113, 160, 128, 8, kShared,
     kOfBlocks},  // 128 x 32768: 7.97 -> 7.45, NVFP4 9.10 -> 7.96 (H100)
    {3584, 4096, 113, 160, 128, 4, kShared, kOfRows},
    {3584, 4096, 161, kAllRows, 128, 4, kShared},  // 1024 x 32768: 36.6 -> 31.7
};
inline constexpr MeasuredRung kLayerScalesRungs[] = {
    {256, 384, 1, 64, 128, 1, kShared, kOfBlocks},   // 64 x 3072: 3.04 -> 2.96
    {256, 384, 2, 64, 256, 1, kBare, kOfRows},       // 16 x 3072: 2.69 -> 2.64
    {256, 384, 97, 1279, 128, 1, kShared},           // 768 x 3072: 5.14 -> 4.86
    {256, 384, 1280, kAllRows, 64, 1, kShared},      // 4096 x 3072: 14.3 -> 13.3
    {384, 512, 1, 512, 256, 1},                      // 64 x 4096: 3.25 -> 3.09
    {512, 640, 1, 64, 128, 1, kShared, kOfRows},     // in place of clusters: 64 x 5120 3.39 -> 3.07
    {512, 640, 33, 64, 128, 1, kShared, kOfBlocks},  // 64 x 5120: 3.41 -> 3.31 (H100)
    {512, 640, 65, kAllRows, 128, 1, kShared},       // 2048 x 5120: 12.4 -> 11.6
    {640, 768, 1, 64, 256, 1, kBare, kOfRows},
    {640, 768, 97, kAllRows, 128, 1, kShared},    // 192 x 6144: 4.20 -> 3.99
    {768, 896, 1, 64, 256, 1, kShared, kOfRows},  // 64 x 7168: 3.47 -> 3.31
    {768, 896, 65, 448, 256, 1, kShared},
    {896, 1024, 33, 64, 256, 1, kShared, kOfRows},           // 64 x 8192: 3.52 -> 3.42
    {896, 1024, 65, 448, 256, 1, kShared},                   // 192 x 8192: 4.81 -> 4.55
    {1024, 1536, 9, 16, 128, 4, kBare, kOfRows},             // 16 x 10240: 3.36 -> 3.30
    {1024, 1536, 17, 64, 128, 4},                            // 64 x 10240: 4.16 -> 3.75
    {1024, 1280, 65, kAllRows, 256, 1, kShared},             // 192 x 10240: 5.37 -> 5.07
    {1280, 1536, 65, 160, 256, 1, kShared},                  // 96 x 12288: 4.37 -> 4.25
    {1280, 1536, 161, 1791, 128, 2, kShared},                // 192 x 12288: 5.94 -> 5.37
    {1280, 1536, 1792, kAllRows, 512, 1, kBare, kOfBlocks},  // 4096 x 12288: 55.1 -> 53.4
    {1280, 1536, 1792, kAllRows, 256, 1, kShared, kOfRows},  // 4096 x 12288: 54.2 -> 50.6
    {1536, 2048, 25, 32, 128, 4, kBare, kOfRows},            // 32 x 14336: 3.75 -> 3.61
    {1536, 2048, 33, 96, 128, 4},                            // 64 x 14336: 4.34 -> 4.10
    {1792, 2048, 113, 160, 256, 1, kBare, kOfRows},          // 128 x 16384: 5.45 -> 5.32
    {2048, 2560, 9, 48, 128, 8},                             // 32 x 20480: 4.34 -> 3.96
    {2048, 2560, 49, 224, 256, 2, kShared},                  // 128 x 20480: 6.08 -> 5.86
    {2048, 2560, 225, 2048, 256, 2},                         // 512 x 20480: 18.6 -> 14.4
    {2048, 2560, 2049, kAllRows, 256, 2, kShared},           // 4096 x 20480: 101 -> 94
    {2560, 3072, 1, 8, 128, 8, kBare, kOfBlocks},            // 1 x 24576: 3.20 -> 3.08 (H100)
    {2560, 3072, 9, 64, 128, 8},
    {2560, 3072, 65, 1279, 128, 4, kShared},               // 192 x 24576: 10.2 -> 9.4
    {2560, 3072, 1280, 3072, 128, 4, kShared, kOfBlocks},  // 2048 x 24576: 64.9 -> 63.2
    {3072, 4096, 9, 48, 128, 8},                           // 48 x 32768: 6.10 -> 5.06
    {3072, 4096, 49, 112, 128, 8, kShared},                // 64 x 32768: 6.18 -> 5.63
    {3072, 3584, 129, 640, 256, 2, kShared},               // 384 x 28672: 18.0 -> 17.4
    {3584, 4096, 113, 192, 512, 2, kBare, kOfBlocks},      // 128 x 32768: 8.85 -> 8.11
    {3584, 4096, 129, 448, 512, 2, kBare, kOfRows},        // 192 x 32768: 12.8 -> 11.9
    {3584, 4096, 193, 640, 128, 8, kShared, kOfBlocks},    // 512 x 32768: 28.7 -> 25.1 (H100)
};
inline constexpr MeasuredRung kSumScalesRungs[] = {
    {512, 1024, 1, 64, 256, 1, kBare, kOfRows},    // in place of clusters
    {512, 768, 17, 64, 256, 1, kBare, kOfBlocks},  // 64 x 6144: 3.69 -> 3.54 (H100)
    {896, 1024, 321, 512, 128, 1},                 // all resident at once with 8 vectors a thread
    {1024, 1280, 25, 64, 256, 1, kBare, kOfRows},  // 32 x 10240: 3.57 -> 3.43
    {1024, 1280, 65, kTwoEach, 256, 1},
    {1024, 1280, 321, 2048, 128, 4},
    {1280, 1536, 25, 64, 128, 4, kBare, kOfRows},     // 48 x 12288: 4.11 -> 3.96
    {1280, 1536, 49, 128, 128, 4, kBare, kOfBlocks},  // 64 x 12288: 4.86 -> 4.71 (H100)
    {1280, 1536, 65, 128, 256, 1, kBare, kOfRows},
    {1280, 1536, 129, kTwoEach, 256, 1},           // 256 x 12288: 8.32 -> 8.13
    {1280, 1536, 321, 2048, 128, 4},               // 384 x 12288: 12.3 -> 11.2
    {1536, 2048, 41, 48, 128, 4, kBare, kOfRows},  // 48 x 14336: 4.35 -> 4.20
    {1536, 2048, 49, 128, 128, 4, kBare,
     kOfBlocks},  // 64 x 16384: 5.82 -> 5.35 (H100), 128: 6.80 -> 6.61
    {1536, 2048, 49, 128, 256, 1, kBare, kOfRows},
    {1536, 2048, 129, kTwoEach, 256, 1},          // 256 x 16384: 11.7 -> 9.9
    {1536, 2048, 321, 1536, 128, 4},              // 512 x 16384: 20.1 -> 17.7
    {2048, 2560, 9, 96, 128, 8},                  // 64 x 20480: 7.04 -> 5.46
    {2048, 2560, 97, kAllRows, 128, 4, kShared},  // 1024 x 20480: 42.4 -> 39.4
    {2560, 3072, 9, 96, 128, 8},
    {2560, 3072, 97, 160, 256, 2, kShared},              // 128 x 24576: 9.12 -> 8.39
    {2560, 3072, 161, 1024, 128, 8},                     // 256 x 24576: 15.9 -> 14.5
    {2560, 3072, 1025, 2560, 128, 8, kBare, kOfBlocks},  // 2048 x 24576: 91.4 -> 88.0
    {3072, 4096, 9, 64, 128, 8},
    {3072, 4096, 65, 3071, 128, 8, kShared},               // 1024 x 28672: 58.1 -> 53.5
    {3072, 4096, 3072, 6144, 128, 8, kShared, kOfBlocks},  // 4096 x 32768: 231 -> 225
};

// Uneven rows beyond what the ladders in norm_plan.cpp have: H200, bf16, 2026-11-26, rows of 1001 to 16380 elements.
inline constexpr MeasuredRung kUnevenRmsRungs[] = {
    {16, 32, 8193, kAllRows, 8, 1},     // 65536 x 250: 20.2 us -> 19.0
    {1024, 1280, 1, kAllRows, 256, 1},  // 4096 x 10001: 52.4 -> 44.6
    {1280, 1536, 1, kAllRows, 256, 1},
    {1536, 1792, 1, kAllRows, 256, 1},  // 4096 x 12290: 63.0 -> 56.6
};
inline constexpr MeasuredRung kUnevenLayerRungs[] = {
    {16, 32, 8193, kAllRows, 8, 1},      // 65536 x 250: 22.8 -> 21.7
    {768, 1024, 257, kAllRows, 128, 1},  // 4096 x 8190: 46.6 -> 41.1, 16384: 175 -> 143
    {1024, 1280, 1, kAllRows, 256, 1},   // 4096 x 10001: 63.7 -> 54.7
    {1280, 1536, 1, kAllRows, 256, 1},
    {1536, 1792, 257, kAllRows, 256, 1},  // 4096 x 12290: 75.2 -> 65.7
    {1792, 2048, 257, kAllRows, 256, 1},  // 1024 x 14337: 25.8 -> 24.2
};
// By 8 bytes, beside the same rows through shared memory. RMSNorm and sums of 64 MB and more lose up to 8 % by it, the most where no row begins at a multiple
// of 16 bytes (4096 x 8192, 4 elements behind: 39.7 us, 37.2): what is written by 8 bytes leaves L1 in twice as many pieces. So does LAYER of
// 4096 x 1024 (7.04, 6.73).
inline constexpr MeasuredRung kHalfRmsRungs[] = {
    {0, 4, 1, kAllRows, 4, 1, kHalves},     // 65536 x 20: 4.92 -> 3.28
    {4, 8, 1, kAllRows, 4, 1, kHalves},     // 65536 x 60: 7.35 -> 6.54
    {8, 16, 1, kAllRows, 16, 1, kHalves},   // 65536 x 100: 10.4 -> 9.2
    {16, 32, 1, kAllRows, 32, 1, kHalves},  // 1 x 252: 1.85 -> 1.66
    {32, 48, 1, 8192, 32, 1, kHalves},
    {32, 48, 8193, kAllRows, 16, 1, kHalves},  // 65536 x 380: 28.6 -> 27.3
    {48, 64, 1, kAllRows, 32, 1, kHalves},     // 1 x 500: 1.97 -> 1.75, 4096: 4.40 -> 4.05
    {64, 96, 1, 16, 128, 1, kHalves},
    {64, 96, 17, kAllRows, 32, 1, kHalves},    // 4096 x 748: 5.10 -> 4.98
    {96, 128, 1, 512, 128, 1, kHalves},        // 512 x 1020: 2.84 -> 2.59
    {96, 128, 513, kAllRows, 32, 1, kHalves},  // 4096 x 1020: 6.14 -> 5.98
    {128, 256, 1, 128, 128, 1, kHalves},
    {128, 256, 129, kAllRows, 64, 1, kHalves},  // 4096 x 1500: 8.72 -> 8.15
    {256, 384, 1, 8192, 128, 1, kHalves},       // 1 x 2052: 2.15 -> 1.95, 4096 x 3068: 15.7 -> 15.0
    {384, 512, 1, 512, 256, 1, kHalves},        // 1 x 4092: 2.38 -> 2.12
    {384, 512, 513, 2048, 128, 1, kHalves},
    {512, 640, 1, kAllRows, 128, 1, kHalves},  // 1 x 4100: 2.54 -> 2.07, 4096: 21.1 -> 18.7
    {640, 768, 1, 128, 256, 1, kHalves},
    {640, 768, 129, kAllRows, 128, 1, kHalves},  // 4096 x 6140: 30.9 -> 28.0
    {768, 1024, 1, 2048, 256, 1, kHalves},       // 1 x 8188: 2.88 -> 2.49
    {1024, 1280, 1, 1024, 256, 1, kHalves},
    {1280, 2048, 1, kAllRows, 256, 1, kHalves},  // 4096 x 12292: 62.8 -> 53.2
};
inline constexpr MeasuredRung kHalfLayerRungs[] = {
    {0, 4, 1, kAllRows, 4, 1, kHalves},     // 65536 x 20: 5.53 -> 3.45
    {4, 8, 1, kAllRows, 4, 1, kHalves},     // 65536 x 60: 7.99 -> 6.74
    {8, 16, 1, kAllRows, 16, 1, kHalves},   // 65536 x 100: 12.2 -> 9.9
    {16, 32, 1, kAllRows, 32, 1, kHalves},  // 65536 x 252: 23.0 -> 19.4
    {32, 48, 1, 8192, 32, 1, kHalves},
    {32, 48, 8193, kAllRows, 16, 1, kHalves},  // 65536 x 380: 30.6 -> 27.6
    {48, 64, 1, kAllRows, 32, 1, kHalves},     // 4096 x 500: 5.01 -> 4.06
    {64, 96, 1, 16, 128, 1, kHalves},
    {64, 96, 17, kAllRows, 32, 1, kHalves},  // 16384 x 748: 15.5 -> 14.4
    {96, 128, 1, 1024, 128, 1, kHalves},     // 1024 x 1020: 3.72 -> 3.37
    {128, 256, 1, 128, 128, 1, kHalves},
    {128, 256, 129, kAllRows, 64, 1, kHalves},  // 4096 x 2044: 12.2 -> 10.9
    {256, 384, 1, kAllRows, 128, 1, kHalves},   // 1 x 2052: 2.40 -> 2.06, 4096 x 3068: 17.2 -> 15.4
    {384, 512, 1, 512, 256, 1, kHalves},        // 512 x 4092: 5.53 -> 4.75
    {384, 512, 513, kAllRows, 128, 1, kHalves},  // 4096 x 4092: 22.5 -> 19.3
    {512, 640, 1, 256, 256, 1, kHalves},         // 1 x 4100: 2.80 -> 2.37
    {512, 640, 257, kAllRows, 128, 1, kHalves},  // 4096 x 4100: 24.9 -> 20.5
    {640, 768, 1, 128, 256, 1, kHalves},
    {640, 768, 129, kAllRows, 128, 1, kHalves},  // 4096 x 6140: 32.0 -> 29.0
    {768, 1024, 1, kAllRows, 256, 1, kHalves},   // 4096 x 8188: 46.5 -> 38.2
    {1024, 1536, 1, kAllRows, 512, 1, kHalves},  // 4096 x 10004: 63.7 -> 46.7
    {1536, 1792, 1, kAllRows, 256, 1, kHalves},  // 4096 x 12292: 74.7 -> 56.1
    {1792, 2048, 1, kAllRows, 512, 1, kHalves},  // 4096 x 16380: 86.9 -> 72.3
};
inline constexpr MeasuredRung kHalfLayerF32Rungs[] = {
    {0, 4, 1, kAllRows, 4, 1, kHalves},     // 65536 x 20: 5.68 -> 3.92
    {4, 8, 1, kAllRows, 4, 1, kHalves},     // 65536 x 60: 8.76 -> 6.59
    {8, 16, 1, kAllRows, 16, 1, kHalves},   // 65536 x 100: 13.4 -> 11.2
    {16, 32, 1, kAllRows, 32, 1, kHalves},  // 65536 x 252: 29.4 -> 22.4
    {32, 64, 1, kAllRows, 32, 1, kHalves},  // 65536 x 500: 48.2 -> 40.1
    {64, 96, 1, 16, 128, 1, kHalves},
    {64, 96, 17, kAllRows, 32, 1, kHalves},      // 4096 x 748: 6.88 -> 5.67
    {96, 128, 1, 1024, 128, 1, kHalves},         // 1024 x 1020: 3.79 -> 3.25
    {96, 128, 1025, kAllRows, 32, 1, kHalves},   // 4096 x 1020: 8.50 -> 7.29
    {128, 256, 1, 128, 128, 1, kHalves},         // 1 x 1500: 2.21 -> 1.93
    {128, 256, 129, kAllRows, 64, 1, kHalves},   // 4096 x 2044: 13.9 -> 11.3
    {256, 384, 1, kAllRows, 128, 1, kHalves},    // 16384 x 3068: 71.6 -> 54.0
    {384, 512, 1, 512, 256, 1, kHalves},         // 512 x 4092: 5.57 -> 4.59
    {384, 512, 513, kAllRows, 128, 1, kHalves},  // 4096 x 4092: 25.3 -> 19.8
    {512, 640, 1, 256, 256, 1, kHalves},         // 1 x 4100: 2.86 -> 2.61
    {512, 640, 257, kAllRows, 128, 1, kHalves},  // 4096 x 4100: 27.9 -> 21.6
    {640, 1024, 1, kAllRows, 256, 1, kHalves},   // 4096 x 8188: 51.3 -> 38.5
    {1024, 2048, 1, kAllRows, 512, 1, kHalves},  // 4096 x 16380: 104 -> 77
};
inline constexpr MeasuredRung kHalfSumRungs[] = {
    {0, 4, 1, kAllRows, 4, 1, kHalves},     // 65536 x 20: 7.21 -> 4.66
    {4, 16, 1, kAllRows, 16, 1, kHalves},   // 65536 x 100: 20.2 -> 16.1
    {16, 32, 1, kAllRows, 32, 1, kHalves},  // 1024 x 252: 2.92 -> 2.55
    {32, 64, 1, kAllRows, 32, 1, kHalves},  // 1 x 500: 2.27 -> 1.98, 4096: 6.60 -> 6.07
    {64, 96, 1, 128, 128, 1, kHalves},      // 64 x 748: 2.76 -> 2.38
    {64, 96, 129, 8192, 32, 1, kHalves},    // 4096 x 748: 8.53 -> 8.13
    {96, 128, 1, 8192, 128, 1, kHalves},    // 1024 x 1020: 4.71 -> 4.21
    {128, 256, 1, 3072, 128, 1, kHalves},
    {256, 384, 1, 2047, 128, 1, kHalves},  // 1 x 2052: 2.55 -> 2.08, 1024: 6.98 -> 6.28
    {384, 512, 1, 768, 256, 1, kHalves},   // 1 x 4092: 2.79 -> 2.33
    {512, 640, 1, 8192, 256, 1, kHalves},  // 1 x 4100: 3.09 -> 2.38, 64: 3.63 -> 2.90
    {640, 768, 1, 2047, 256, 1, kHalves},
    {768, 1024, 1, 256, 256, 1, kHalves},   // 64 x 8188: 4.55 -> 3.66
    {1024, 2048, 1, 256, 512, 1, kHalves},  // 1 x 10004: 4.18 -> 2.76, 256 x 12292: 13.1 -> 10.1
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
    case CallKind::kUnevenRms:
      return kUnevenRmsRungs;
    case CallKind::kUnevenLayer:
      return kUnevenLayerRungs;
    case CallKind::kHalfRms:
      return kHalfRmsRungs;
    case CallKind::kHalfLayer:
      return kHalfLayerRungs;
    case CallKind::kHalfSum:
      return kHalfSumRungs;
    case CallKind::kHalfLayerF32:
      return kHalfLayerF32Rungs;
    case CallKind::kUnevenLayerF32:
    case CallKind::kUnevenSum:
    case CallKind::kOther:
      return {};
  }
  return {};
}

}  // namespace fastnorm
