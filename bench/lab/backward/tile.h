// The laboratory's kernels of a backward pass, as data.
#pragma once

#include <cstdint>

namespace lab {

constexpr int kVectorBytes = 16, kPerVector = 8;

constexpr int power_of_two_up(int v) {
  int p = 1;
  while (p < v) p *= 2;
  return p;
}

enum class Norm { kRms, kLayer };

// Where a step's rows wait until they are used.
enum class Input {
  kRegisters,  // the next step's rows are loaded before this one's are used
  kRing,       // in shared memory: each thread copies the vectors that it reads itself
  kBulkRing,   // in shared memory: one thread copies whole rows
};

// A block has `lanes` rows at once, `threads` for each with `vectors` vectors of 16 bytes. A step
// takes `unroll` rows of each lane.
struct Tile {
  int threads;
  int vectors;
  int lanes;
  int unroll;
  Input input;
  int stages;             // of a ring
  bool rereads;           // the ring is read again once the row's sums are known
  bool one_warp_folds;    // a row's sums, and a second barrier hands them out
  bool streaming_stores;  // of dx

  constexpr int block_threads() const { return threads * lanes; }
  constexpr int columns() const { return threads * vectors * kPerVector; }
};

// Everything a kernel needs to know of a call.
struct Params {
  const char *x, *dy;  // bf16 [rows, n]
  char* dx;            // bf16 [rows, n]
  const float *rstd, *mean;
  const char* weight;  // bf16 [n]
  float* partials[2];  // of dweight and dbias: f32 [blocks, n]
  void* gradients[2];  // dweight and dbias: [n]
  int64_t row_bytes;
  int n;
  int row_vectors;  // n / 8
  int rows;
  int blocks;
  int fold_width;  // the power of two from `blocks` on
  int step;        // rows from a row of a lane to its next: lanes * blocks
  float inverse_n;
  // Added to the weight. Without the sum ptxas keeps raw weights, and unpacks them in every step.
  float weight_offset;
  bool f32_gradients;  // else bf16
};

using Kernel = void (*)(Params);

struct Entry {
  Norm norm;
  Tile tile;
  Kernel kernel;
};

}  // namespace lab
