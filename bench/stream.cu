#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstdio>
#include <stdexcept>

#include "bench/stream.cuh"

namespace bench {
namespace {

enum Hint { kDefault, kStreaming };

template <int kHint>
__device__ __forceinline__ uint4 load(const uint4* p) {
  if constexpr (kHint == kStreaming) return __ldcs(p);
  return *p;
}

template <int kHint, typename Vector>
__device__ __forceinline__ void store(Vector* p, Vector v) {
  if constexpr (kHint == kStreaming) {
    __stcs(p, v);
  } else {
    *p = v;
  }
}

// Flips a bit of every value, so that no access can be left out.
__device__ __forceinline__ uint4 touch(uint4 v) {
  return make_uint4(v.x ^ 0x10001, v.y, v.z ^ 0x10001, v.w);
}

// As many bits as half of `v`, in which every bit of it has a part.
__device__ __forceinline__ uint2 fold(uint4 v) { return make_uint2(v.x ^ v.y, v.z ^ v.w); }

// kNarrow: c is half as wide as what is read, as codes of 8 bits are beside rows of 16.
template <int kReads, int kVectors, int kHint, bool kNarrow>
__global__ void stream_kernel(const uint4* a, const uint4* b, void* c, uint4* d, int64_t count) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (blockDim.x * kVectors) + threadIdx.x;
  uint4 x[kVectors], y[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int64_t i = first + v * blockDim.x;
    if (i < count) x[v] = load<kHint>(a + i);
  }
  if constexpr (kReads == 2) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int64_t i = first + v * blockDim.x;
      if (i < count) y[v] = load<kHint>(b + i);
    }
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int64_t i = first + v * blockDim.x;
    if (i >= count) continue;
    if constexpr (kNarrow) {
      store<kHint>(static_cast<uint2*>(c) + i, fold(x[v]));
    } else {
      store<kHint>(static_cast<uint4*>(c) + i, touch(x[v]));
    }
    if constexpr (kReads == 2) store<kHint>(d + i, touch(y[v]));
  }
}

template <int kReads, bool kNarrow, int kVectors>
void add_streams(std::vector<Stream>* list) {
  constexpr const char* written =
      kNarrow ? (kReads == 1 ? "0.5" : "1.5") : (kReads == 1 ? "1" : "2");
  for (int hint : {kDefault, kStreaming}) {
    const void* kernel =
        hint == kDefault
            ? reinterpret_cast<const void*>(&stream_kernel<kReads, kVectors, kDefault, kNarrow>)
            : reinterpret_cast<const void*>(&stream_kernel<kReads, kVectors, kStreaming, kNarrow>);
    for (int threads : {128, 256, 512, 1024}) {
      if (threads * kVectors * kReads > 4096) continue;  // more registers than a multiprocessor has
      char name[48];
      std::snprintf(name, sizeof name, "R%dW%s %dx%d%s", kReads, written, threads, kVectors,
                    hint == kDefault ? "" : " cs");
      list->push_back({kernel, kReads, threads, kVectors, name});
    }
  }
}

template <int kReads, bool kNarrow>
std::vector<Stream> all_streams() {
  std::vector<Stream> list;
  add_streams<kReads, kNarrow, 1>(&list);
  add_streams<kReads, kNarrow, 2>(&list);
  add_streams<kReads, kNarrow, 4>(&list);
  add_streams<kReads, kNarrow, 8>(&list);
  return list;
}

__device__ __forceinline__ uint32_t hash(uint64_t i, uint32_t seed) {
  uint64_t h = (i + seed * 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
  h = (h ^ h >> 29) * 0x94d049bb133111ebull;
  return static_cast<uint32_t>(h >> 32);
}

// Sum of four bytes of a hash: a bell of standard deviation 1.
__device__ __forceinline__ float bell(uint32_t h) {
  const float sum = static_cast<float>((h & 255) + (h >> 8 & 255) + (h >> 16 & 255) + (h >> 24));
  return (sum - 510.0f) * (1.0f / 147.8f) + 0.01f;
}

template <typename T>
__global__ void fill_kernel(T* data, int64_t count, uint32_t seed) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    data[i] = static_cast<T>(bell(hash(static_cast<uint64_t>(i), seed)));
  }
}

void require(cudaError_t code) {
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}

}  // namespace

std::vector<Stream> streams(int reads, bool narrow) {
  if (narrow) return reads == 1 ? all_streams<1, true>() : all_streams<2, true>();
  return reads == 1 ? all_streams<1, false>() : all_streams<2, false>();
}

void launch(const Stream& s, const char* a, const char* b, char* c, char* d, int64_t bytes,
            cudaStream_t queue) {
  int64_t count = bytes / 16;
  const int64_t share = static_cast<int64_t>(s.threads) * s.vectors;
  void* arguments[] = {&a, &b, &c, &d, &count};
  require(cudaLaunchKernel(s.kernel, dim3(static_cast<unsigned>((count + share - 1) / share)),
                           dim3(static_cast<unsigned>(s.threads)), arguments, 0, queue));
}

void fill_random(char* data, int64_t bytes, const std::string& dtype, uint32_t seed,
                 cudaStream_t queue) {
  constexpr int kBlocks = 1024, kThreads = 256;
  if (dtype == "f32") {
    fill_kernel<<<kBlocks, kThreads, 0, queue>>>(reinterpret_cast<float*>(data), bytes / 4, seed);
  } else if (dtype == "f16") {
    fill_kernel<<<kBlocks, kThreads, 0, queue>>>(reinterpret_cast<__half*>(data), bytes / 2, seed);
  } else {
    fill_kernel<<<kBlocks, kThreads, 0, queue>>>(reinterpret_cast<__nv_bfloat16*>(data), bytes / 2,
                                                 seed);
  }
  require(cudaGetLastError());
}

}  // namespace bench
