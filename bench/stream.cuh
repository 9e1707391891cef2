// The ceiling: plain kernels that read and write the same bytes as a norm and do nothing else.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

namespace bench {

// A streaming kernel: R tensors read, R written (R = 1 or 2), `vectors` 16-byte accesses a thread and tensor.
struct Stream {
  const void* kernel;
  int reads;
  int threads;
  int vectors;
  std::string name;  // "R2W2 256x4 cs", "R1W0.5 128x2"
};

// All kernels of a number of tensors: 128 to 1024 threads, 1 to 8 vectors, with and without streaming hints. Narrow: half as many
// bytes are written to the first tensor as are read, as where rows of 16 bits leave as codes of 8.
std::vector<Stream> streams(int reads, bool narrow = false);

// Launches `stream`, which reads tensors of `bytes` (a multiple of 16).
void launch(const Stream& stream, const char* a, const char* b, char* c, char* d, int64_t bytes,
            cudaStream_t queue);

// Fills memory with values of a dtype that look like activations: every value finite, about normal, different.
void fill_random(char* data, int64_t bytes, const std::string& dtype, uint32_t seed,
                 cudaStream_t queue);

}  // namespace bench
