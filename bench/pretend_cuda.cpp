// Stands in for the CUDA runtime and the streaming kernels, so that cuda.cpp runs on machines
// without a GPU: contexts plan and launch nothing, and times are made up. Checked is what can be:
// that streams stay in the memory that was allocated, are aligned, and that the calls of a graph
// share nothing.
#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <utility>

#include "bench/stream.cuh"
#include "fastnorm/fastnorm.h"

namespace {

char* const kMemory = reinterpret_cast<char*>(uintptr_t{1} << 40);  // nothing is there
const auto kHandle = reinterpret_cast<void*>(uintptr_t{16});

size_t allocated;
std::vector<std::pair<const char*, const char*>> moved;  // by the streams of this graph
unsigned ticks;

void require_inside(const char* at, int64_t span) {
  if (reinterpret_cast<uintptr_t>(at) % 16 != 0) throw std::logic_error("a misaligned stream");
  if (at < kMemory || at + span > kMemory + allocated)
    throw std::logic_error("a stream outside the memory");
}

void move(const char* at, int64_t bytes, int64_t stride_bytes = 0, int64_t row_bytes = 0) {
  if (bytes == 0) return;
  const int64_t span = row_bytes == 0 ? bytes : (bytes / row_bytes - 1) * stride_bytes + row_bytes;
  require_inside(at, span);
  for (const auto& [begin, end] : moved) {
    if (at < end && begin < at + span) throw std::logic_error("streams that overlap");
  }
  moved.emplace_back(at, at + span);
}

std::vector<bench::Stream> named(const char* format, int reads, double written,
                                 bool joins = false) {
  std::vector<bench::Stream> list;
  for (int threads : {128, 256, 512, 1024}) {
    char name[64];
    std::snprintf(name, sizeof name, format, reads, written, threads);
    list.push_back({nullptr, threads, 1, name, reads, joins});
  }
  return list;
}

}  // namespace

extern "C" {

cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = static_cast<cudaStream_t>(kHandle);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = static_cast<cudaEvent_t>(kHandle);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  *ms = 0.1f + static_cast<float>(ticks++ % 7) * 0.001f;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** address, size_t bytes) {
  allocated = std::max(allocated, bytes);
  *address = kMemory;
  return cudaSuccess;
}
cudaError_t cudaFree(void*) { return cudaSuccess; }
cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  moved.clear();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  *graph = static_cast<cudaGraph_t>(kHandle);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t, unsigned long long) {
  *exec = static_cast<cudaGraphExec_t>(kHandle);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 1;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) { return "an error of the pretended runtime"; }

// The linker hands the program's calls of these two to here.
fastnorm_status __real_fastnorm_context_create(fastnorm_device, const fastnorm_context_options*,
                                               fastnorm_context**);
fastnorm_status __wrap_fastnorm_context_create(fastnorm_device device,
                                               const fastnorm_context_options* wanted,
                                               fastnorm_context** context) {
  fastnorm_context_options options = {};
  options.struct_size = sizeof options;
  options.flags = FASTNORM_CONTEXT_DRY_RUN | (wanted != nullptr ? wanted->flags : 0);
  options.dry_run_capability = 90;
  return __real_fastnorm_context_create(device, &options, context);
}
fastnorm_status __wrap_fastnorm_device_describe(fastnorm_device, fastnorm_device_info* info) {
  std::snprintf(info->name, sizeof info->name, "a pretended GPU");
  return FASTNORM_OK;
}
}

namespace bench {

std::vector<Stream> streams(int reads, int shrink) {
  return named("R%dW%g %dx1", reads, reads - 1 + 1.0 / shrink);
}

std::vector<Stream> strided_streams() { return named("R%dW%g %dx1 strided", 1, 1.0); }

std::vector<Stream> join_streams(int reads, int written) {
  return named("R%dW%g %dx1", reads, written, true);
}

void launch(const Stream& s, const Traffic& t, cudaStream_t) {
  double written = 0;
  std::sscanf(s.name.c_str(), "R%*dW%lf", &written);
  if (t.bytes <= 0 || t.bytes % 16 != 0 || t.extra_bytes % 16 != 0 || t.row_bytes % 16 != 0 ||
      t.stride_bytes % 16 != 0 || t.extra_bytes > t.bytes)
    throw std::logic_error("a size that a stream cannot move");
  move(t.a, t.bytes, t.stride_bytes, t.row_bytes);
  if (s.joins) {
    move(t.b, t.bytes);
    if (s.reads > 2) move(t.e, t.bytes);
    if (s.reads > 3) move(t.f, t.bytes);
    move(t.c, t.bytes);
    if (written == 2) move(t.d, t.bytes);
    move(t.extra, t.extra_bytes);
    return;
  }
  const int reads = s.reads;
  if (t.c != t.a)
    move(t.c, static_cast<int64_t>(static_cast<double>(t.bytes) * (written - (reads - 1))));
  if (reads == 2) {
    move(t.b, t.bytes);
    move(t.d, t.bytes);
  }
  move(t.extra, t.extra_bytes);
}

std::vector<Stream> read_streams() { return {{nullptr, 256, 2, "R1W0 256x2"}}; }

void launch_read(const Stream&, const char* data, int64_t bytes, char* sink, cudaStream_t) {
  if (bytes <= 0 || bytes % 16 != 0) throw std::logic_error("a size that a stream cannot read");
  move(data, bytes);
  move(sink, 16);
}

Matmul open_matmul(const char* a, const char* b, char* c, int n) {
  return [=](cudaStream_t) {
    for (const char* matrix : {a, b, static_cast<const char*>(c)})
      require_inside(matrix, 2LL * n * n);
  };
}

void wait_a_little(cudaStream_t) {}

void fill_random(char* data, int64_t bytes, const std::string&, uint32_t, cudaStream_t) {
  require_inside(data, bytes);
}

}  // namespace bench
