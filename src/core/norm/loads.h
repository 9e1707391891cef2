// How rows are loaded on a GPU, as data: which calls use streaming loads, and which bring later
// rows into L2. Caches depend on bytes, so these rules do. choice.h depends on shapes.
// Measured on an H200 (60 MB of L2).
#pragma once

#include <cstdint>
#include <span>

#include "fastnorm/norm.h"

namespace fastnorm {

// RMSNorm with these numbers of rows uses streaming loads, if it moves at most this many bytes.
struct StreamingLoads {
  bool residual, quantised;
  int64_t least_rows, most_rows;
  uint64_t most_bytes;
};

inline constexpr int64_t kAnyRows = INT64_MAX;

inline constexpr StreamingLoads kStreamingRows[] = {
    // Columns: residual, quantised, rows from, to, bytes moved.
    {true, false, 25, kAnyRows, 36 << 20}, {false, false, 25, 512, 36 << 20},
    {false, false, 513, 1024, 18 << 20},   {false, false, 1025, kAnyRows, 9 << 20},
    {true, true, 25, kAnyRows, 18 << 20},  {false, true, 25, kAnyRows, 9 << 20},
};
// Streaming loads of thread blocks with several rows.
inline constexpr StreamingLoads kStreamingShortRows[] = {{false, false, 1, kAnyRows, 6 << 20}};

constexpr bool streams(std::span<const StreamingLoads> lines, bool residual, bool quantised,
                       int64_t rows, uint64_t bytes) {
  for (const StreamingLoads& line : lines) {
    if (line.residual == residual && line.quantised == quantised && rows >= line.least_rows &&
        rows <= line.most_rows) {
      return bytes <= line.most_bytes;
    }
  }
  return false;
}

// From this many bytes read, later rows are brought into L2, this many bytes ahead. Lines farther
// ahead would be evicted before their use.
struct Prefetch {
  fastnorm_norm_kind kind;
  uint64_t least_bytes_read;
  int64_t bytes_ahead;
};
inline constexpr Prefetch kPrefetches[] = {{FASTNORM_NORM_RMS, 95 << 20, 3 << 20},
                                           {FASTNORM_NORM_LAYER, 40 << 20, 3 << 20}};

}  // namespace fastnorm
