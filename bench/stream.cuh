// The ceiling: plain kernels that read and write the same bytes as a norm and do nothing else.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace bench {

// A streaming kernel: R tensors read, W written, `vectors` 16-byte accesses a thread and tensor.
struct Stream {
  const void* kernel;
  int threads;
  int vectors;
  std::string name;  // "R2W2 256x4 cs", "R1W0.5 128x2", "R1W1 512x2 strided", "R3W1 256x2"
  int reads = 1;
  bool joins = false;  // of join_streams()
};

// What a stream moves. Sizes are multiples of 16.
struct Traffic {
  const char *a, *b;  // read: `bytes` each; b only where R > 1
  char *c, *d;        // written: c narrower than a where the stream is narrow; d only where W > 1
  int64_t bytes;      // of a
  // `extra_bytes` more. Narrow streams write them, as scales beside codes. Joining ones read them,
  // as rstd beside rows.
  char* extra = nullptr;
  int64_t extra_bytes = 0;  // at most `bytes`
  int64_t row_bytes = 0;    // strided streams: `row_bytes` of each `stride_bytes` are moved
  int64_t stride_bytes = 0;
  const char *e = nullptr, *f = nullptr;  // read where R > 2, R > 3
};

// All kernels of a number of tensors: 128 to 1024 threads, 1 to 8 vectors, with and without
// streaming hints. `shrink` is how many times fewer bytes are written to c than are read from a: 1;
// 2 as where rows of 16 bits leave as codes of 8; 4; 8.
std::vector<Stream> streams(int reads, int shrink = 1);

// A sweep over rows that lie apart, R = 1; c may be a.
std::vector<Stream> strided_streams();

// A sweep for kernels that read more tensors than they write, as a backward pass does: 2 or
// 3 and one, or 3 or 4 and two.
std::vector<Stream> join_streams(int reads, int written = 1);

void launch(const Stream& stream, const Traffic& traffic, cudaStream_t queue);

// Kernels that read and write nothing (but where all they read adds up to a certain number): 256 to
// 1024 threads, 2 to 8 vectors.
std::vector<Stream> read_streams();
// Reads `bytes` bytes, a multiple of 16; `sink` is memory of 16 bytes.
void launch_read(const Stream& stream, const char* data, int64_t bytes, char* sink,
                 cudaStream_t queue);

// Queues a product of bf16 matrices of n x n, where cuBLAS can be loaded; else it is empty.
using Matmul = std::function<void(cudaStream_t queue)>;
Matmul open_matmul(const char* a, const char* b, char* c, int n);

// Occupies the queue for about 0.1 ms, so that what follows is queued before it starts.
void wait_a_little(cudaStream_t queue);

// Fills memory with values of a dtype that look like activations: every value finite, about normal,
// different.
void fill_random(char* data, int64_t bytes, const std::string& dtype, uint32_t seed,
                 cudaStream_t queue);

}  // namespace bench
