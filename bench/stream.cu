#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>

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

// 1 / kShrink of the bits of `v`, in which every bit of it has a part.
template <int kShrink>
__device__ __forceinline__ auto fold(uint4 v) {
  if constexpr (kShrink == 1) {
    return touch(v);
  } else if constexpr (kShrink == 2) {
    return make_uint2(v.x ^ v.y, v.z ^ v.w);
  } else {
    const uint32_t word = v.x ^ v.y ^ v.z ^ v.w;
    if constexpr (kShrink == 4) {
      return word;
    } else {
      static_assert(kShrink == 8);
      return static_cast<unsigned short>(word ^ word >> 16);
    }
  }
}

__device__ __forceinline__ uint4 join(uint4 v, uint4 w) {
  return make_uint4(v.x ^ w.x, v.y ^ w.y, v.z ^ w.z, v.w ^ w.w);
}

// Traffic in vectors of 16 bytes.
struct Work {
  const uint4 *a, *b, *e, *f;
  void* c;
  uint4 *d, *extra;
  int64_t count, extra_count;
  uint32_t row, stride;
};

template <int kReads, int kShrink, bool kStrided, int kVectors, int kHint>
__global__ void stream_kernel(const Work w) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (blockDim.x * kVectors) + threadIdx.x;
  const auto place = [&](int64_t i) {
    if constexpr (!kStrided) return i;
    const auto short_i = static_cast<uint32_t>(i);  // launch() has checked the count
    return int64_t{short_i / w.row} * w.stride + short_i % w.row;
  };
  uint4 x[kVectors], y[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int64_t i = first + v * blockDim.x;
    if (i < w.count) x[v] = load<kHint>(w.a + place(i));
  }
  if constexpr (kReads == 2) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int64_t i = first + v * blockDim.x;
      if (i < w.count) y[v] = load<kHint>(w.b + i);
    }
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int64_t i = first + v * blockDim.x;
    if (i >= w.count) continue;
    const auto folded = fold<kShrink>(x[v]);
    using Piece = std::remove_const_t<decltype(folded)>;
    store<kHint, Piece>(static_cast<Piece*>(w.c) + place(i), folded);
    if constexpr (kReads == 2) store<kHint>(w.d + i, touch(y[v]));
    if constexpr (kShrink > 1) {
      if (i < w.extra_count) store<kHint>(w.extra + i, touch(x[v]));
    }
  }
}

// c is what of a, b, e and f is read, joined. d is c with bits flipped. The first threads read the
// vectors of `extra` too.
template <int kReads, int kWritten, int kVectors, int kHint>
__global__ void join_kernel(const Work w) {
  static_assert(kReads >= 2 && kReads <= 4 && (kWritten == 1 || kWritten == 2));
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (blockDim.x * kVectors) + threadIdx.x;
  uint4 x[kReads][kVectors];
#pragma unroll
  for (int r = 0; r < kReads; ++r) {
    const uint4* from = r == 0 ? w.a : r == 1 ? w.b : r == 2 ? w.e : w.f;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int64_t i = first + v * blockDim.x;
      if (i < w.count) x[r][v] = load<kHint>(from + i);
    }
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int64_t i = first + v * blockDim.x;
    if (i >= w.count) continue;
    uint4 all = join(x[0][v], x[1][v]);
#pragma unroll
    for (int r = 2; r < kReads; ++r) all = join(all, x[r][v]);
    if (i < w.extra_count) all = join(all, load<kHint>(w.extra + i));
    store<kHint>(static_cast<uint4*>(w.c) + i, all);
    if constexpr (kWritten == 2) store<kHint>(w.d + i, touch(all));
  }
}

template <int kReads, int kWritten, int kVectors>
void add_join_streams(std::vector<Stream>* list) {
  for (int hint : {kDefault, kStreaming}) {
    const void* kernel =
        hint == kDefault
            ? reinterpret_cast<const void*>(&join_kernel<kReads, kWritten, kVectors, kDefault>)
            : reinterpret_cast<const void*>(&join_kernel<kReads, kWritten, kVectors, kStreaming>);
    for (int threads : {128, 256, 512, 1024}) {
      if (threads * kVectors * kReads > 4096) continue;
      char name[64];
      std::snprintf(name, sizeof name, "R%dW%d %dx%d%s", kReads, kWritten, threads, kVectors,
                    hint == kDefault ? "" : " cs");
      list->push_back({kernel, threads, kVectors, name, kReads, true});
    }
  }
}

template <int kReads, int kWritten>
std::vector<Stream> all_join_streams() {
  std::vector<Stream> list;
  add_join_streams<kReads, kWritten, 1>(&list);
  add_join_streams<kReads, kWritten, 2>(&list);
  add_join_streams<kReads, kWritten, 4>(&list);
  add_join_streams<kReads, kWritten, 8>(&list);
  return list;
}

template <int kReads, int kShrink, bool kStrided, int kVectors>
void add_streams(std::vector<Stream>* list) {
  for (int hint : {kDefault, kStreaming}) {
    const void* kernel = hint == kDefault
                             ? reinterpret_cast<const void*>(
                                   &stream_kernel<kReads, kShrink, kStrided, kVectors, kDefault>)
                             : reinterpret_cast<const void*>(
                                   &stream_kernel<kReads, kShrink, kStrided, kVectors, kStreaming>);
    for (int threads : {128, 256, 512, 1024}) {
      if (threads * kVectors * kReads > 4096) continue;  // more registers than a multiprocessor has
      char name[64];
      std::snprintf(name, sizeof name, "R%dW%g %dx%d%s%s", kReads, kReads - 1 + 1.0 / kShrink,
                    threads, kVectors, hint == kDefault ? "" : " cs", kStrided ? " strided" : "");
      list->push_back({kernel, threads, kVectors, name, kReads});
    }
  }
}

template <int kReads, int kShrink, bool kStrided = false>
std::vector<Stream> all_streams() {
  std::vector<Stream> list;
  add_streams<kReads, kShrink, kStrided, 1>(&list);
  add_streams<kReads, kShrink, kStrided, 2>(&list);
  add_streams<kReads, kShrink, kStrided, 4>(&list);
  add_streams<kReads, kShrink, kStrided, 8>(&list);
  return list;
}

template <int kReads>
std::vector<Stream> streams_of(int shrink) {
  switch (shrink) {
    case 1:
      return all_streams<kReads, 1>();
    case 2:
      return all_streams<kReads, 2>();
    case 4:
      return all_streams<kReads, 4>();
    case 8:
      return all_streams<kReads, 8>();
    default:
      throw std::invalid_argument("no stream writes 1/" + std::to_string(shrink));
  }
}

__global__ void wait_kernel(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
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

template <int kVectors>
__global__ void read_kernel(const uint4* data, int64_t count, uint4* sink) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x * kVectors + threadIdx.x;
  uint4 v[kVectors];
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int64_t i = first + static_cast<int64_t>(k) * blockDim.x;
    v[k] = i < count ? __ldcs(data + i) : make_uint4(0, 0, 0, 0);
  }
  uint32_t all = 0;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) all += (v[k].x ^ v[k].y) + (v[k].z ^ v[k].w);
  if (all == 0x9e3779b9u) *sink = v[0];  // so rarely that it costs nothing
}

// cuBLAS by its C names; the numbers are those of its headers.
struct Cublas {
  using Create = int (*)(void**);
  using SetStream = int (*)(void*, cudaStream_t);
  using Gemm = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int,
                       const void*, int, int, const void*, void*, int, int, int, int);

  static std::shared_ptr<Cublas> open() {
    void* library = nullptr;
    for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so"}) {
      if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) return nullptr;
    auto found = std::make_shared<Cublas>();
    const auto create = reinterpret_cast<Create>(dlsym(library, "cublasCreate_v2"));
    found->set_stream = reinterpret_cast<SetStream>(dlsym(library, "cublasSetStream_v2"));
    found->gemm = reinterpret_cast<Gemm>(dlsym(library, "cublasGemmEx"));
    const bool whole = create != nullptr && found->set_stream != nullptr && found->gemm != nullptr;
    return whole && create(&found->handle) == 0 ? found : nullptr;
  }

  void* handle = nullptr;  // lives as long as the program
  SetStream set_stream = nullptr;
  Gemm gemm = nullptr;
};

}  // namespace

std::vector<Stream> read_streams() {
  std::vector<Stream> list;
  const auto add = [&](auto* kernel, int vectors) {
    for (const int threads : {256, 512, 1024}) {
      list.push_back({reinterpret_cast<const void*>(kernel), threads, vectors,
                      "R1W0 " + std::to_string(threads) + "x" + std::to_string(vectors)});
    }
  };
  add(&read_kernel<2>, 2);
  add(&read_kernel<4>, 4);
  add(&read_kernel<8>, 8);
  return list;
}

void launch_read(const Stream& s, const char* data, int64_t bytes, char* sink, cudaStream_t queue) {
  const auto* from = reinterpret_cast<const uint4*>(data);
  auto* to = reinterpret_cast<uint4*>(sink);
  int64_t count = bytes / 16;
  const int64_t share = static_cast<int64_t>(s.threads) * s.vectors;
  void* arguments[] = {&from, &count, &to};
  require(cudaLaunchKernel(s.kernel, dim3(static_cast<unsigned>((count + share - 1) / share)),
                           dim3(static_cast<unsigned>(s.threads)), arguments, 0, queue));
}

Matmul open_matmul(const char* a, const char* b, char* c, int n) {
  const std::shared_ptr<Cublas> cublas = Cublas::open();
  if (cublas == nullptr) return {};
  return [=](cudaStream_t queue) {
    constexpr int kTransposed = 1, kPlain = 0, kBf16 = 14, kCompute32F = 68, kDefault = -1;
    const float one = 1, zero = 0;
    int status = cublas->set_stream(cublas->handle, queue);
    if (status == 0) {
      status = cublas->gemm(cublas->handle, kTransposed, kPlain, n, n, n, &one, a, kBf16, n, b,
                            kBf16, n, &zero, c, kBf16, n, kCompute32F, kDefault);
    }
    if (status != 0) throw std::runtime_error("cuBLAS: status " + std::to_string(status));
  };
}

std::vector<Stream> streams(int reads, int shrink) {
  return reads == 1 ? streams_of<1>(shrink) : streams_of<2>(shrink);
}

std::vector<Stream> strided_streams() { return all_streams<1, 1, true>(); }

std::vector<Stream> join_streams(int reads, int written) {
  if (written == 2) return reads == 3 ? all_join_streams<3, 2>() : all_join_streams<4, 2>();
  return reads == 2 ? all_join_streams<2, 1>() : all_join_streams<3, 1>();
}

void launch(const Stream& s, const Traffic& t, cudaStream_t queue) {
  Work w = {};
  w.a = reinterpret_cast<const uint4*>(t.a);
  w.b = reinterpret_cast<const uint4*>(t.b);
  w.e = reinterpret_cast<const uint4*>(t.e);
  w.f = reinterpret_cast<const uint4*>(t.f);
  w.c = t.c;
  w.d = reinterpret_cast<uint4*>(t.d);
  w.extra = reinterpret_cast<uint4*>(t.extra);
  w.count = t.bytes / 16;
  w.extra_count = t.extra_bytes / 16;
  w.row = static_cast<uint32_t>(t.row_bytes / 16);
  w.stride = static_cast<uint32_t>(t.stride_bytes / 16);
  if (w.row != 0 && w.count > int64_t{UINT32_MAX}) {
    throw std::invalid_argument("too many vectors for a strided stream");
  }
  const int64_t share = static_cast<int64_t>(s.threads) * s.vectors;
  void* arguments[] = {&w};
  require(cudaLaunchKernel(s.kernel, dim3(static_cast<unsigned>((w.count + share - 1) / share)),
                           dim3(static_cast<unsigned>(s.threads)), arguments, 0, queue));
}

void wait_a_little(cudaStream_t queue) {
  wait_kernel<<<1, 1, 0, queue>>>(200'000);
  require(cudaGetLastError());
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
