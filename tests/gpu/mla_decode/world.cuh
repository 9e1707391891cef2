// The tensors of an MLA decode call on the device, and a slow reference in double. The call itself
// is planned and launched as in the library.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/common/arch_spec.h"
#include "core/mla_decode/plan.h"
#include "cuda/mla_decode/launch.h"

#define CHECK_CUDA(call)                                                                         \
  do {                                                                                           \
    const cudaError_t check_code = (call);                                                       \
    if (check_code != cudaSuccess) {                                                             \
      std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(check_code)); \
      std::fflush(stdout);                                                                       \
      std::exit(2);                                                                              \
    }                                                                                            \
  } while (0)

namespace fastnorm::mla_gpu {

enum class Layout { kFused, kSeparate, kHeadsFirst };

struct Case {
  std::string id;
  std::vector<int> lengths;
  int heads = 16;
  int s_q = 1;
  std::vector<int> tokens;  // of each request: ragged
  bool causal = false;
  int page = 64;
  bool csr = false;
  bool fused_cache = true;
  bool f16 = false;
  int split_tokens = 0;
  bool base_2 = false;
  Layout q = Layout::kFused, o = Layout::kSeparate;
  float q_scale = 1;  // 10: maxima often grow by more than 2^8
  int parts = 0;      // 0: as planned
};

__device__ inline uint32_t mixed(uint64_t x) {
  x ^= x >> 33, x *= 0xff51afd7ed558ccdull, x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53ull, x ^= x >> 33;
  return static_cast<uint32_t>(x);
}

template <class T>
__global__ void fill_normal(T* data, size_t count, uint64_t seed, float scale) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    const float u = (mixed(seed + 2 * i) + 1.0f) * 2.3283064e-10f;
    const float v = mixed(seed * 31 + 2 * i + 1) * 2.3283064e-10f;
    data[i] = static_cast<T>(scale * sqrtf(-2 * logf(fmaxf(u, 1e-9f))) * cospif(2 * v));
  }
}

// What the reference reads. Strides in elements.
struct View {
  const void *q_nope, *q_pe, *ckv, *kpe;
  int64_t q_nope_token, q_nope_head, q_pe_token, q_pe_head;
  int64_t ckv_page, ckv_row, kpe_page, kpe_row;
  const int *table, *starts;  // starts[b]: of the request's list
  int page, causal;
  double scale;
};

struct Row {
  int request, token, head;  // token: of all
  int in_request, s_q, length;
  double lse;
  double o[512], magnitude[512];  // magnitude: sum of p |v|
};

template <class T>
__global__ void reference(View view, Row* rows) {
  Row& row = rows[blockIdx.x];
  __shared__ double scores[1024];
  __shared__ float q[576];
  const auto* q_nope = static_cast<const T*>(view.q_nope) + row.token * view.q_nope_token +
                       row.head * view.q_nope_head;
  const auto* q_pe =
      static_cast<const T*>(view.q_pe) + row.token * view.q_pe_token + row.head * view.q_pe_head;
  for (int i = threadIdx.x; i < 576; i += blockDim.x) {
    q[i] = static_cast<float>(i < 512 ? q_nope[i] : q_pe[i - 512]);
  }
  const int allowed = view.causal ? row.length - row.s_q + row.in_request + 1 : row.length;
  const int limit = max(0, min(allowed, row.length));
  const int* const list = view.table + view.starts[row.request];
  double maximum = -1e300, sum = 0, o = 0, magnitude = 0;
  __syncthreads();
  for (int first = 0; first < limit; first += 1024) {
    const int count = min(1024, limit - first);
    for (int j = threadIdx.x; j < count; j += blockDim.x) {
      const int64_t page = list[(first + j) / view.page], in_page = (first + j) % view.page;
      const auto* latent =
          static_cast<const T*>(view.ckv) + page * view.ckv_page + in_page * view.ckv_row;
      const auto* rope =
          static_cast<const T*>(view.kpe) + page * view.kpe_page + in_page * view.kpe_row;
      double dot = 0;
      for (int i = 0; i < 512; ++i) dot += double{q[i]} * static_cast<float>(latent[i]);
      for (int i = 0; i < 64; ++i) dot += double{q[512 + i]} * static_cast<float>(rope[i]);
      scores[j] = dot * view.scale;
    }
    __syncthreads();
    double greatest = maximum;
    for (int j = 0; j < count; ++j) greatest = fmax(greatest, scores[j]);
    const double factor = exp(maximum - greatest);
    o *= factor, magnitude *= factor, sum *= factor, maximum = greatest;
    __syncthreads();
    for (int j = threadIdx.x; j < count; j += blockDim.x) scores[j] = exp(scores[j] - maximum);
    __syncthreads();
    for (int j = 0; j < count; ++j) {
      const int64_t page = list[(first + j) / view.page], in_page = (first + j) % view.page;
      const double v = static_cast<float>(static_cast<const T*>(
          view.ckv)[page * view.ckv_page + in_page * view.ckv_row + threadIdx.x]);
      sum += scores[j], o += scores[j] * v, magnitude += scores[j] * fabs(v);
    }
    __syncthreads();
  }
  row.o[threadIdx.x] = sum > 0 ? o / sum : 0;
  row.magnitude[threadIdx.x] = sum > 0 ? magnitude / sum : 0;
  if (threadIdx.x == 0) row.lse = sum > 0 ? maximum + log(sum) : -INFINITY;
}

template <class T>
__global__ void fill_tail(View view, const int* lengths, void* ckv, void* kpe) {
  const int b = blockIdx.x, length = lengths[b];
  const int last = (length + view.page - 1) / view.page * view.page;
  const int* const list = view.table + view.starts[b];
  for (int j = length; j < last; ++j) {
    const int64_t page = list[j / view.page], in_page = j % view.page;
    for (int i = threadIdx.x; i < 576; i += blockDim.x) {
      T* const at =
          i < 512 ? static_cast<T*>(ckv) + page * view.ckv_page + in_page * view.ckv_row + i
                  : static_cast<T*>(kpe) + page * view.kpe_page + in_page * view.kpe_row + i - 512;
      *at = static_cast<T>(NAN);
    }
  }
}

inline void* encode_tiled() {
  static void* const function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    CHECK_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                cudaEnableDefault, &result));
    return found;
  }();
  return function;
}

inline int multiprocessors() {
  static const int count = [] {
    int value = 0;
    CHECK_CUDA(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
    return value;
  }();
  return count;
}

// Guarded memory: kGuard bytes of a pattern before and behind.
class World {
 public:
  static constexpr size_t kGuard = 4096;
  static constexpr int kGarbagePage = 2147480000, kUnownedTokens = 2;

  World(const Case& given, double cache_bytes, int most_copies, bool nan_tails) : c(given) {
    const auto requests = static_cast<int>(c.lengths.size());
    std::vector<int> qo = {0};
    most =
        c.tokens.empty() ? c.s_q : std::max(1, *std::max_element(c.tokens.begin(), c.tokens.end()));
    for (int b = 0; b < requests; ++b)
      qo.push_back(qo[b] + (c.tokens.empty() ? c.s_q : c.tokens[b]));
    owned = qo.back();
    tokens = owned + (c.tokens.empty() ? 0 : kUnownedTokens);
    lay_out_pages(requests);
    const size_t row = 576 * 2, cache = size_t{static_cast<size_t>(pages)} * c.page * row;
    copies = std::max(1, std::min(most_copies, static_cast<int>(std::ceil(cache_bytes / cache))));
    cache_copy_bytes = cache;
    kv = take(cache * copies);
    q = take(std::max<size_t>(size_t{static_cast<size_t>(tokens)} * c.heads * row, 16));
    o_bytes = size_t{static_cast<size_t>(tokens)} * c.heads * 1024;
    lse_bytes = size_t{static_cast<size_t>(tokens)} * c.heads * 4;
    o = take(o_bytes + 2 * kGuard);
    lse = take(lse_bytes + 2 * kGuard);
    device_lengths = upload(c.lengths);
    device_qo = upload(qo);
    qo_starts = qo;
    if (c.f16) {
      fill<__half>(cache * copies / 2, static_cast<size_t>(tokens) * c.heads * 576);
    } else {
      fill<__nv_bfloat16>(cache * copies / 2, static_cast<size_t>(tokens) * c.heads * 576);
    }
    if (nan_tails && requests > 0) {
      const auto kernel = c.f16 ? fill_tail<__half> : fill_tail<__nv_bfloat16>;
      const View v = view(0);
      kernel<<<requests, 128>>>(v, device_lengths, const_cast<void*>(v.ckv),
                                const_cast<void*>(v.kpe));
    }
    plan_call();
    CHECK_CUDA(cudaDeviceSynchronize());
  }
  ~World() {
    for (void* memory : all) cudaFree(memory);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  MlaDecodeDesc desc(int copy) const {
    MlaDecodeDesc d;
    d.tokens = tokens, d.heads = c.heads, d.batch = static_cast<int>(c.lengths.size());
    d.max_s_q = most, d.pages = pages, d.page_size = c.page;
    d.dtype = c.f16 ? Dtype::kF16 : Dtype::kBF16;
    d.sm_scale = scale(), d.causal = c.causal, d.lse_base_2 = c.base_2;
    d.split_tokens = c.split_tokens;
    const View v = view(copy);
    const auto tensor = [](const void* data, int64_t outer, int64_t inner) {
      return MlaDecodeTensor{static_cast<std::byte*>(const_cast<void*>(data)), outer * 2,
                             inner * 2};
    };
    d.q_nope = tensor(v.q_nope, v.q_nope_token, v.q_nope_head);
    d.q_pe = tensor(v.q_pe, v.q_pe_token, v.q_pe_head);
    d.ckv = tensor(v.ckv, v.ckv_page, v.ckv_row);
    d.kpe = tensor(v.kpe, v.kpe_page, v.kpe_row);
    const bool heads_first = c.o == Layout::kHeadsFirst;
    d.o = tensor(o + kGuard, heads_first ? 512 : int64_t{c.heads} * 512,
                 heads_first ? int64_t{tokens} * 512 : 512);
    d.lse.data = reinterpret_cast<std::byte*>(lse + kGuard);
    d.lse.outer = heads_first ? 4 : int64_t{c.heads} * 4;
    d.lse.inner = heads_first ? int64_t{tokens} * 4 : 4;
    d.kv_len = device_lengths;
    d.page_table = table;
    d.table_stride = c.csr ? 0 : table_columns;
    d.table_columns = c.csr ? table_total : table_columns;
    d.kv_indptr = c.csr ? device_indptr : nullptr;
    d.qo_indptr = c.tokens.empty() ? nullptr : device_qo;
    return d;
  }

  View view(int copy) const {
    View v = {};
    const char* const cache = kv + static_cast<size_t>(copy) * cache_copy_bytes;
    v.ckv = cache;
    if (c.fused_cache) {
      v.kpe = cache + 1024;
      v.ckv_row = v.kpe_row = 576;
      v.ckv_page = v.kpe_page = int64_t{c.page} * 576;
    } else {
      v.kpe = cache + size_t{static_cast<size_t>(pages)} * c.page * 1024;
      v.ckv_row = 512, v.kpe_row = 64;
      v.ckv_page = int64_t{c.page} * 512, v.kpe_page = int64_t{c.page} * 64;
    }
    v.q_nope = q;
    switch (c.q) {
      case Layout::kFused:
        v.q_pe = q + 1024;
        v.q_nope_head = v.q_pe_head = 576;
        v.q_nope_token = v.q_pe_token = int64_t{c.heads} * 576;
        break;
      case Layout::kSeparate:
        v.q_pe = q + size_t{static_cast<size_t>(tokens)} * c.heads * 1024;
        v.q_nope_head = 512, v.q_pe_head = 64;
        v.q_nope_token = int64_t{c.heads} * 512, v.q_pe_token = int64_t{c.heads} * 64;
        break;
      case Layout::kHeadsFirst:
        v.q_pe = q + size_t{static_cast<size_t>(tokens)} * c.heads * 1024;
        v.q_nope_head = int64_t{tokens} * 512, v.q_pe_head = int64_t{tokens} * 64;
        v.q_nope_token = 512, v.q_pe_token = 64;
        break;
    }
    v.table = table, v.starts = device_starts;
    v.page = c.page, v.causal = c.causal, v.scale = scale();
    return v;
  }

  double scale() const { return 1 / std::sqrt(576.0); }

  void run(int copy, bool reuse, cudaStream_t stream, std::byte* profile = nullptr,
           int profile_events = 0) {
    MlaDecodeDesc d = desc(copy);
    d.reuse_plan = reuse;
    d.profile = profile;
    d.profile_events = profile_events;
    // A profile has another kernel, with the same pieces.
    MlaDecodePlan of_call = plan;
    if (profile != nullptr) of_call.tile_rows = kMlaTileRows;
    Error error;
    if (load_once(d, of_call, error) != FASTNORM_OK ||
        cuda::launch_mla_decode(d, of_call, multiprocessors(), encode_tiled(), workspace, stream,
                                error) != FASTNORM_OK) {
      std::printf("%s: %s\n", c.id.c_str(), error.text);
      std::exit(2);
    }
  }

  void poison() {
    CHECK_CUDA(cudaMemset(o, 0xa5, o_bytes + 2 * kGuard));
    CHECK_CUDA(cudaMemset(lse, 0xa5, lse_bytes + 2 * kGuard));
    CHECK_CUDA(cudaMemset(o + kGuard, 0xff, o_bytes));
    CHECK_CUDA(cudaMemset(lse + kGuard, 0xff, lse_bytes));
  }
  void poison_workspace(size_t from = 0) {
    CHECK_CUDA(cudaMemset(workspace + from, 0xff, plan.workspace_bytes - from));
  }
  std::vector<uint8_t> outputs() const {
    std::vector<uint8_t> bytes(o_bytes + lse_bytes + 4 * kGuard);
    CHECK_CUDA(cudaMemcpy(bytes.data(), o, o_bytes + 2 * kGuard, cudaMemcpyDeviceToHost));
    CHECK_CUDA(cudaMemcpy(bytes.data() + o_bytes + 2 * kGuard, lse, lse_bytes + 2 * kGuard,
                          cudaMemcpyDeviceToHost));
    return bytes;
  }
  void set_lengths(const std::vector<int>& lengths) {
    c.lengths = lengths;
    CHECK_CUDA(
        cudaMemcpy(device_lengths, lengths.data(), lengths.size() * 4, cudaMemcpyHostToDevice));
  }
  int s_q_of(int request) const { return qo_starts[request + 1] - qo_starts[request]; }

  Case c;
  int most = 1, owned = 0, tokens = 0, pages = 1, copies = 1;
  size_t cache_copy_bytes = 0, o_bytes = 0, lse_bytes = 0;
  char *kv = nullptr, *q = nullptr, *o = nullptr, *lse = nullptr, *workspace = nullptr;
  int *table = nullptr, *device_lengths = nullptr, *device_indptr = nullptr, *device_qo = nullptr;
  int* device_starts = nullptr;
  int64_t table_columns = 0, table_total = 0;
  std::vector<int> qo_starts;
  MlaDecodePlan plan;

 private:
  static fastnorm_status load_once(const MlaDecodeDesc& d, const MlaDecodePlan& plan,
                                   Error& error) {
    static std::map<std::string, bool> loaded;
    bool& done = loaded[std::string(plan.kernel) + (d.profile_events != 0 ? " profile" : "")];
    if (done) return FASTNORM_OK;
    done = true;
    return cuda::load_mla_decode(d, plan, error);
  }

  char* take(size_t bytes) {
    void* memory = nullptr;
    CHECK_CUDA(cudaMalloc(&memory, std::max<size_t>(bytes, 256)));
    all.push_back(memory);
    return static_cast<char*>(memory);
  }
  int* upload(const std::vector<int>& values) {
    auto* const memory = reinterpret_cast<int*>(take(values.size() * 4 + 4));
    CHECK_CUDA(cudaMemcpy(memory, values.data(), values.size() * 4, cudaMemcpyHostToDevice));
    return memory;
  }
  template <class T>
  void fill(size_t cache_elements, size_t q_elements) {
    fill_normal<<<2048, 256>>>(reinterpret_cast<T*>(kv), cache_elements, 11, 1.0f);
    fill_normal<<<2048, 256>>>(reinterpret_cast<T*>(q), q_elements, 99, c.q_scale);
  }

  void lay_out_pages(int requests) {
    int total = 0;
    table_columns = 1;
    for (int length : c.lengths) {
      const int count = (length + c.page - 1) / c.page;
      total += count;
      table_columns = std::max<int64_t>(table_columns, count + 3);
    }
    pages = std::max(total, 1);
    std::vector<int> order(static_cast<size_t>(pages));
    for (int i = 0; i < pages; ++i) order[static_cast<size_t>(i)] = i;
    std::mt19937 random(7);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<int> values, starts, indptr = {0};
    size_t next = 0;
    for (int b = 0; b < requests; ++b) {
      const int count = (c.lengths[static_cast<size_t>(b)] + c.page - 1) / c.page;
      starts.push_back(static_cast<int>(values.size()));
      for (int i = 0; i < count; ++i) values.push_back(order[next++]);
      if (!c.csr) values.resize(static_cast<size_t>(b + 1) * table_columns, kGarbagePage);
      indptr.push_back(static_cast<int>(values.size()));
    }
    values.push_back(kGarbagePage);
    table_total = static_cast<int64_t>(values.size());
    table = upload(values);
    device_starts = upload(starts);
    device_indptr = upload(indptr);
  }

  void plan_call() {
    DeviceFacts facts;
    facts.device_type = FASTNORM_DEVICE_CUDA;
    // Planning asks for the name alone. cuda/arch.h would want the choices of all families.
    static constexpr ArchSpec kHopper = {.name = "sm_90", .capability = 90};
    facts.arch = &kHopper;
    facts.multiprocessors =
        c.parts != 0 ? c.parts * ((most * c.heads + 63) / 64) : multiprocessors();
    Error error;
    if (plan_mla_decode(desc(0), facts, &plan, error) != FASTNORM_OK) {
      std::printf("%s: %s\n", c.id.c_str(), error.text);
      std::exit(2);
    }
    workspace = take(plan.workspace_bytes);
  }

  std::vector<void*> all;
};

}  // namespace fastnorm::mla_gpu
