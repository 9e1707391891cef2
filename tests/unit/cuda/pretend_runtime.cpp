#include "unit/cuda/pretend_runtime.h"

#include <cuda.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "cuda/arch.h"
#include "cuda/mla_decode/kernels.h"
#include "cuda/norm/kernels.h"
#include "cuda/norm/list.h"
#include "cuda/norm_backward/kernels.h"
#include "cuda/norm_backward/table.h"
#include "cuda/norm_heads/kernels.h"
#include "cuda/norm_heads/table.h"
#include "cuda/norm_heads_backward/kernels.h"
#include "cuda/norm_heads_backward/table.h"
#include "cuda/norm_stages/kernels.h"
#include "cuda/norm_stages/table.h"
#include "cuda/peer/kernels.h"
#include "cuda/peer/table.h"

namespace fastnorm::test {

Machine machine;
Holdings holdings;
thread_local ThreadNotes notes;

namespace {

char contexts[2][kMostGpus];  // only their addresses are used, as of all kernels

// What the library asks for next finds nothing, or an error.
cudaError_t result_of(const char* function) {
  const auto found = machine.failures.find(std::string_view(function));
  if (found == machine.failures.end()) return cudaSuccess;
  notes.last_error = found->second;
  return found->second;
}

int get_current(void** context) {
  *context = notes.context;
  return 0;
}

int set_current(void* context) {
  if (const auto found = machine.failures.find("cuCtxSetCurrent"); found != machine.failures.end())
    return found->second;
  notes.context = context;
  return 0;
}

int get_device(int* device) {
  for (auto& kind : contexts) {
    if (notes.context >= kind && notes.context < kind + kMostGpus) {
      *device = static_cast<int>(static_cast<char*>(notes.context) - kind);
      return 0;
    }
  }
  return 201;  // no context
}

// The kernels of a part of the table: addresses of bytes.
template <Dtype kDtype, Source kSource>
struct Part {
  static constexpr size_t kCount =
      cuda::count_variants(kDtype, kSource, cuda::list_arch(cuda::kSm90));
  static inline char single_bytes[kCount], pair_bytes[2 * kCount];
  Part() {
    const auto& entries = cuda::kNormPart<cuda::list_arch(cuda::kSm90), kDtype, kSource>;
    for (size_t i = 0; i < kCount; ++i) {
      single[i] = reinterpret_cast<cuda::NormKernel>(&single_bytes[i]);
      const auto kernel = [&](size_t form) {
        return reinterpret_cast<cuda::NormPairKernel>(&pair_bytes[2 * i + form]);
      };
      pair[i] = {runs_pairs(entries[i]) ? kernel(0) : nullptr,
                 runs_heads(entries[i].key, entries[i].tile) ? kernel(1) : nullptr};
    }
  }
  static bool has_pair(const void* kernel) {
    return kernel >= pair_bytes && kernel < pair_bytes + 2 * kCount;
  }
  cuda::NormKernel single[kCount];
  cuda::PairKernels pair[kCount];
};

template <Dtype kDtype, Source kSource>
const Part<kDtype, kSource>& part() {
  static const Part<kDtype, kSource> kernels;
  return kernels;
}

bool is_pair(const void* kernel) {
  return Part<Dtype::kF32, Source::kPlain>::has_pair(kernel) ||
         Part<Dtype::kF16, Source::kPlain>::has_pair(kernel) ||
         Part<Dtype::kBF16, Source::kPlain>::has_pair(kernel);
}

// Kernels of MLA decode: attention by f16 and profile, the planner, two that merge.
constexpr size_t kMlaPlan = 4, kMlaMerge = 5;
char mla_bytes[7];

bool is_mla(const void* kernel) { return kernel >= mla_bytes && kernel < std::end(mla_bytes); }

size_t index_of(const void* kernel, const char* first) {
  return static_cast<size_t>(static_cast<const char*>(kernel) - first);
}

// The backward kernels: addresses of bytes, in the order of the table.
char backward_bytes[cuda::kNumberedWords<cuda::BackwardFamily, true>.size()];

bool is_backward(const void* kernel) {
  return kernel >= backward_bytes && kernel < std::end(backward_bytes);
}

template <Dtype kDtype>
std::span<const cuda::NormBackwardKernel> backward_part() {
  static const std::vector<cuda::NormBackwardKernel> kernels = [] {
    std::vector<cuda::NormBackwardKernel> part;
    const auto table = cuda::norm_backward_table(cuda::kSm90);
    for (size_t i = 0; i < table.size(); ++i) {
      if (table[i].variant.dtype == kDtype)
        part.push_back(reinterpret_cast<cuda::NormBackwardKernel>(&backward_bytes[i]));
    }
    return part;
  }();
  return kernels;
}

// The kernels of norm_heads: likewise.
char heads_bytes[cuda::kNumberedWords<cuda::HeadsFamily, true>.size()];

bool is_heads(const void* kernel) {
  return kernel >= heads_bytes && kernel < std::end(heads_bytes);
}
bool is_held_heads(const void* kernel) {
  return cuda::variant_at<cuda::HeadsFamily, true>(index_of(kernel, heads_bytes)).is_held();
}

template <Dtype kDtype>
std::span<const cuda::NormHeadsKernel> heads_part() {
  static const std::vector<cuda::NormHeadsKernel> kernels = [] {
    std::vector<cuda::NormHeadsKernel> part;
    const auto table = cuda::norm_heads_table(cuda::kSm90);
    for (size_t i = 0; i < table.size(); ++i) {
      if (table[i].variant.dtype != kDtype) continue;
      if (table[i].variant.is_held()) {
        part.push_back(
            {nullptr, reinterpret_cast<void (*)(cuda::HeldHeadsParams)>(&heads_bytes[i])});
      } else {
        part.push_back(
            {reinterpret_cast<void (*)(cuda::NormHeadsParams)>(&heads_bytes[i]), nullptr});
      }
    }
    return part;
  }();
  return kernels;
}

// The kernels of norm_heads_backward: likewise.
char heads_backward_bytes[cuda::kNumberedWords<cuda::HeadsBackwardFamily, true>.size()];

bool is_heads_backward(const void* kernel) {
  return kernel >= heads_backward_bytes && kernel < std::end(heads_backward_bytes);
}
HeadsBackwardForm heads_backward_form(const void* kernel) {
  return cuda::variant_at<cuda::HeadsBackwardFamily, true>(index_of(kernel, heads_backward_bytes))
      .form;
}

template <Dtype kDtype>
std::span<const cuda::NormHeadsBackwardKernel> heads_backward_part() {
  static const std::vector<cuda::NormHeadsBackwardKernel> kernels = [] {
    std::vector<cuda::NormHeadsBackwardKernel> part;
    const auto table = cuda::norm_heads_backward_table(cuda::kSm90);
    for (size_t i = 0; i < table.size(); ++i) {
      if (table[i].variant.dtype != kDtype) continue;
      char* const address = &heads_backward_bytes[i];
      cuda::NormHeadsBackwardKernel kernel = {nullptr, nullptr, nullptr};
      switch (table[i].variant.form) {
        case HeadsBackwardForm::kGeneral:
          kernel.general = reinterpret_cast<void (*)(cuda::NormHeadsBackwardParams)>(address);
          break;
        case HeadsBackwardForm::kHeld:
        case HeadsBackwardForm::kTokens:
        case HeadsBackwardForm::kWhole:
          kernel.held = reinterpret_cast<void (*)(cuda::HeldHeadsBackwardParams)>(address);
          break;
        case HeadsBackwardForm::kFold:
          kernel.fold = reinterpret_cast<void (*)(cuda::HeadsFoldParams)>(address);
          break;
      }
      part.push_back(kernel);
    }
    return part;
  }();
  return kernels;
}

// The kernels of peers: likewise.
char peer_bytes[cuda::kNumberedWords<cuda::PeerFamily, true>.size()];

bool is_peer(const void* kernel) { return kernel >= peer_bytes && kernel < std::end(peer_bytes); }
PeerVariant peer_variant(const void* kernel) {
  return cuda::variant_at<cuda::PeerFamily, true>(index_of(kernel, peer_bytes));
}

template <Dtype kDtype>
std::span<const cuda::PeerKernel> peer_part() {
  static const std::vector<cuda::PeerKernel> kernels = [] {
    std::vector<cuda::PeerKernel> part;
    const auto table = cuda::peer_table();
    for (size_t i = 0; i < table.size(); ++i) {
      const PeerVariant& v = table[i].variant;
      if (v.dtype != kDtype) continue;
      char* const at = &peer_bytes[i];
      part.push_back({});
      if (v.is_fused()) {
        part.back().norm = reinterpret_cast<void (*)(cuda::PeerNormParams)>(at);
      } else if (v.form == PeerForm::kSharded) {
        part.back().sharded = reinterpret_cast<void (*)(cuda::PeerShardedParams)>(at);
      } else if (v.form == PeerForm::kStatistics) {
        part.back().statistics = reinterpret_cast<void (*)(cuda::PeerStatisticsParams)>(at);
      } else {
        part.back().sum = reinterpret_cast<void (*)(cuda::PeerSumParams)>(at);
      }
    }
    return part;
  }();
  return kernels;
}

// The kernels of calls with stages: likewise.
char stages_bytes[cuda::kNumberedWords<cuda::StagesFamily, true>.size()];

bool is_stages(const void* kernel) {
  return kernel >= stages_bytes && kernel < std::end(stages_bytes);
}
StagesVariant stages_variant(const void* kernel) {
  return cuda::variant_at<cuda::StagesFamily, true>(index_of(kernel, stages_bytes));
}

template <Dtype kDtype>
std::span<const cuda::NormStagesKernel> stages_part() {
  static const std::vector<cuda::NormStagesKernel> kernels = [] {
    std::vector<cuda::NormStagesKernel> part;
    const auto table = cuda::norm_stages_table(cuda::kSm90);
    for (size_t i = 0; i < table.size(); ++i) {
      if (table[i].variant.dtype != kDtype) continue;
      cuda::NormStagesKernel kernel = {};
      if (table[i].variant.is_rotated()) {
        kernel.rotated = reinterpret_cast<void (*)(cuda::NormCallParams)>(&stages_bytes[i]);
      } else if (table[i].variant.is_held()) {
        kernel.held = reinterpret_cast<void (*)(cuda::HeldStagesParams)>(&stages_bytes[i]);
      } else {
        kernel.general = reinterpret_cast<void (*)(cuda::NormStagesParams)>(&stages_bytes[i]);
      }
      part.push_back(kernel);
    }
    return part;
  }();
  return kernels;
}

// The GPU that is current.
int current_gpu() {
  int gpu = -1;
  get_device(&gpu);
  return gpu;
}

// As the driver does, for tensor maps of four dimensions.
bool valid_map(const void* address, const cuuint64_t* extents, const cuuint64_t* strides,
               const cuuint32_t* box) {
  bool valid = reinterpret_cast<uintptr_t>(address) % 16 == 0;
  for (int i = 0; i < 4; ++i) {
    valid =
        valid && extents[i] >= 1 && extents[i] <= uint64_t{1} << 32 && box[i] >= 1 && box[i] <= 256;
  }
  for (int i = 0; i < 3; ++i)
    valid = valid && strides[i] % 16 == 0 && strides[i] < uint64_t{1} << 40;
  return valid;
}

}  // namespace

MlaKernels mla_kernels() {
  return {{{&mla_bytes[0], &mla_bytes[1]}, {&mla_bytes[2], &mla_bytes[3]}},
          &mla_bytes[kMlaPlan],
          {&mla_bytes[kMlaMerge], &mla_bytes[kMlaMerge + 1]}};
}

void* primary_context(int gpu) { return &contexts[0][gpu]; }
void* other_context(int gpu) { return &contexts[1][gpu]; }

const void* kernel_address(int32_t index) {
  return reinterpret_cast<const void*>(cuda::kernel_at(cuda::kernel_parts<90>().kernels, index));
}
const void* pair_kernel_address(int32_t index, cuda::GridForm form) {
  const cuda::PairKernels kernels = cuda::kernel_at(cuda::kernel_parts<90>().pair_kernels, index);
  return reinterpret_cast<const void*>(form == cuda::GridForm::kHeads ? kernels.heads
                                                                      : kernels.pair);
}

}  // namespace fastnorm::test

namespace fastnorm::cuda {

// PTX has kernels that nothing launches.
#define FASTNORM_PRETEND_PART(dtype, source)                                                   \
  template <>                                                                                  \
  std::span<const NormKernel> norm_kernels<90, Dtype::dtype, Source::source>() {               \
    return test::part<Dtype::dtype, Source::source>().single;                                  \
  }                                                                                            \
  template <>                                                                                  \
  std::span<const PairKernels> norm_pair_kernels<90, Dtype::dtype, Source::source>() {         \
    return test::part<Dtype::dtype, Source::source>().pair;                                    \
  }                                                                                            \
  template <>                                                                                  \
  std::span<const NormKernel> norm_kernels<kPtxNumber, Dtype::dtype, Source::source>() {       \
    return {};                                                                                 \
  }                                                                                            \
  template <>                                                                                  \
  std::span<const PairKernels> norm_pair_kernels<kPtxNumber, Dtype::dtype, Source::source>() { \
    return {};                                                                                 \
  }
FASTNORM_PRETEND_PART(kF32, kPlain)
FASTNORM_PRETEND_PART(kF32, kAdd)
FASTNORM_PRETEND_PART(kF16, kPlain)
FASTNORM_PRETEND_PART(kF16, kAdd)
FASTNORM_PRETEND_PART(kBF16, kPlain)
FASTNORM_PRETEND_PART(kBF16, kAdd)
#undef FASTNORM_PRETEND_PART

#define FASTNORM_PRETEND_BACKWARD(dtype)                                                  \
  template <>                                                                             \
  std::span<const NormBackwardKernel> norm_backward_kernels<90, Dtype::dtype>() {         \
    return test::backward_part<Dtype::dtype>();                                           \
  }                                                                                       \
  template <>                                                                             \
  std::span<const NormBackwardKernel> norm_backward_kernels<kPtxNumber, Dtype::dtype>() { \
    return {};                                                                            \
  }
FASTNORM_PRETEND_BACKWARD(kF32)
FASTNORM_PRETEND_BACKWARD(kF16)
FASTNORM_PRETEND_BACKWARD(kBF16)
#undef FASTNORM_PRETEND_BACKWARD

#define FASTNORM_PRETEND_HEADS(dtype)                                               \
  template <>                                                                       \
  std::span<const NormHeadsKernel> norm_heads_kernels<90, Dtype::dtype>() {         \
    return test::heads_part<Dtype::dtype>();                                        \
  }                                                                                 \
  template <>                                                                       \
  std::span<const NormHeadsKernel> norm_heads_kernels<kPtxNumber, Dtype::dtype>() { \
    return {};                                                                      \
  }
FASTNORM_PRETEND_HEADS(kF32)
FASTNORM_PRETEND_HEADS(kF16)
FASTNORM_PRETEND_HEADS(kBF16)
#undef FASTNORM_PRETEND_HEADS

#define FASTNORM_PRETEND_HEADS_BACKWARD(dtype)                                               \
  template <>                                                                                \
  std::span<const NormHeadsBackwardKernel> norm_heads_backward_kernels<90, Dtype::dtype>() { \
    return test::heads_backward_part<Dtype::dtype>();                                        \
  }                                                                                          \
  template <>                                                                                \
  std::span<const NormHeadsBackwardKernel>                                                   \
  norm_heads_backward_kernels<kPtxNumber, Dtype::dtype>() {                                  \
    return {};                                                                               \
  }
FASTNORM_PRETEND_HEADS_BACKWARD(kF32)
FASTNORM_PRETEND_HEADS_BACKWARD(kF16)
FASTNORM_PRETEND_HEADS_BACKWARD(kBF16)
#undef FASTNORM_PRETEND_HEADS_BACKWARD
#define FASTNORM_PRETEND_PEER(dtype)                                     \
  template <>                                                            \
  std::span<const PeerKernel> peer_kernels<90, Dtype::dtype>() {         \
    return test::peer_part<Dtype::dtype>();                              \
  }                                                                      \
  template <>                                                            \
  std::span<const PeerKernel> peer_kernels<kPtxNumber, Dtype::dtype>() { \
    return {};                                                           \
  }
FASTNORM_PRETEND_PEER(kF32)
FASTNORM_PRETEND_PEER(kF16)
FASTNORM_PRETEND_PEER(kBF16)
#undef FASTNORM_PRETEND_PEER

#define FASTNORM_PRETEND_STAGES(dtype)                                                \
  template <>                                                                         \
  std::span<const NormStagesKernel> norm_stages_kernels<90, Dtype::dtype>() {         \
    return test::stages_part<Dtype::dtype>();                                         \
  }                                                                                   \
  template <>                                                                         \
  std::span<const NormStagesKernel> norm_stages_kernels<kPtxNumber, Dtype::dtype>() { \
    return {};                                                                        \
  }
FASTNORM_PRETEND_STAGES(kF32)
FASTNORM_PRETEND_STAGES(kF16)
FASTNORM_PRETEND_STAGES(kBF16)
#undef FASTNORM_PRETEND_STAGES

template <>
const void* mla_decode_kernel<Dtype::kBF16>(bool profiles) {
  return test::mla_kernels().attention[0][profiles];
}
template <>
const void* mla_decode_kernel<Dtype::kF16>(bool profiles) {
  return test::mla_kernels().attention[1][profiles];
}
unsigned mla_decode_threads() { return 384; }
size_t mla_decode_shared_bytes() { return 231000; }
const void* mla_decode_plan_kernel() { return test::mla_kernels().plan; }
unsigned mla_decode_plan_threads() { return 512; }
const void* mla_decode_merge_kernel(Dtype dtype) {
  return test::mla_kernels().merge[dtype == Dtype::kF16];
}
unsigned mla_decode_merge_threads() { return 256; }

}  // namespace fastnorm::cuda

using namespace fastnorm::test;

extern "C" {

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = machine.driver;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (const cudaError_t error = result_of("cudaGetDeviceCount"); error != cudaSuccess) return error;
  *count = machine.gpus;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "pretended GPU");
  properties->major = machine.capability / 10;
  properties->minor = machine.capability % 10;
  properties->multiProcessorCount = machine.multiprocessors;
  properties->l2CacheSize = 50 << 20;
  properties->totalGlobalMem = size_t{80} << 30;
  return result_of("cudaGetDeviceProperties");
}

cudaError_t cudaSetDevice(int device) {
  if (const cudaError_t error = result_of("cudaSetDevice"); error != cudaSuccess) return error;
  notes.context = primary_context(device);
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = notes.last_error;
  notes.last_error = cudaSuccess;
  return error;
}

const char* cudaGetErrorString(cudaError_t) { return "the runtime's words"; }

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const struct {
    const char* name;
    void* function;
  } all[] = {{"cuCtxGetCurrent", reinterpret_cast<void*>(get_current)},
             {"cuCtxSetCurrent", reinterpret_cast<void*>(set_current)},
             {"cuCtxGetDevice", reinterpret_cast<void*>(get_device)},
             {"cuTensorMapEncodeTiled", reinterpret_cast<void*>(cuTensorMapEncodeTiled)}};
  *function = nullptr;
  *result = cudaDriverEntryPointSymbolNotFound;
  for (const auto& f : all) {
    if (std::strcmp(name, f.name) != 0 || machine.missing_function == name || version != 12000)
      continue;
    *function = f.function;
    *result = cudaDriverEntryPointSuccess;
  }
  return result_of("cudaGetDriverEntryPointByVersion");
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void* kernel) {
  if (const cudaError_t error = result_of("cudaFuncGetAttributes"); error != cudaSuccess)
    return error;
  notes.loaded.push_back(kernel);
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (const cudaError_t error = result_of("cudaFuncSetAttribute"); error != cudaSuccess)
    return error;
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    constexpr int kMost = 227 << 10;  // sm_90's
    if (value > kMost) return notes.last_error = cudaErrorInvalidValue;
    notes.shared_bytes[kernel] = value;
    return cudaSuccess;
  }
  return notes.last_error = cudaErrorInvalidValue;
}

cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*,
                                           const cudaLaunchConfig_t* config) {
  const bool asked = config->numAttrs == 1 &&
                     config->attrs[0].id == cudaLaunchAttributeClusterDimension &&
                     config->gridDim.x == config->attrs[0].val.clusterDim.x;
  const unsigned blocks = config->attrs[0].val.clusterDim.x;
  if (!asked || blocks > 8) return notes.last_error = cudaErrorInvalidValue;
  *clusters = blocks <= machine.largest_cluster ? 1 : 0;
  return result_of("cudaOccupancyMaxActiveClusters");
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel,
                                void** arguments) {
  if (const cudaError_t error = result_of("cudaLaunchKernelExC"); error != cudaSuccess)
    return error;
  const auto permitted = notes.shared_bytes.find(kernel);
  const size_t most = permitted != notes.shared_bytes.end() ? static_cast<size_t>(permitted->second)
                                                            : size_t{48} << 10;
  if (config->dynamicSmemBytes > most) return notes.last_error = cudaErrorInvalidValue;
  ++notes.launches;
  Launch launch = {};
  launch.kernel = kernel;
  launch.grid = config->gridDim, launch.block = config->blockDim;
  launch.early = -1;
  launch.stream = config->stream;
  launch.context = notes.context;
  launch.shared_bytes = config->dynamicSmemBytes;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& a = config->attrs[i];
    if (a.id == cudaLaunchAttributeClusterDimension) launch.cluster = a.val.clusterDim.x;
    if (a.id == cudaLaunchAttributeProgrammaticStreamSerialization)
      launch.early = a.val.programmaticStreamSerializationAllowed;
  }
  if (is_mla(kernel)) {
    const bool has_maps = kernel < &mla_bytes[kMlaPlan];
    launch.mla_params =
        static_cast<const fastnorm::cuda::MlaDecodeParams*>(arguments[has_maps ? 1 : 0]);
  } else if (is_backward(kernel)) {
    launch.backward_params = static_cast<const fastnorm::cuda::NormBackwardParams*>(arguments[0]);
  } else if (is_heads(kernel)) {
    if (is_held_heads(kernel)) {
      launch.held_heads_params = static_cast<const fastnorm::cuda::HeldHeadsParams*>(arguments[0]);
    } else {
      launch.heads_params = static_cast<const fastnorm::cuda::NormHeadsParams*>(arguments[0]);
    }
  } else if (is_heads_backward(kernel)) {
    using namespace fastnorm;
    switch (heads_backward_form(kernel)) {
      case HeadsBackwardForm::kGeneral:
        launch.heads_backward_params =
            static_cast<const cuda::NormHeadsBackwardParams*>(arguments[0]);
        break;
      case HeadsBackwardForm::kHeld:
      case HeadsBackwardForm::kTokens:
      case HeadsBackwardForm::kWhole:
        launch.held_heads_backward_params =
            static_cast<const cuda::HeldHeadsBackwardParams*>(arguments[0]);
        break;
      case HeadsBackwardForm::kFold:
        launch.heads_fold_params = static_cast<const cuda::HeadsFoldParams*>(arguments[0]);
        break;
    }
  } else if (is_peer(kernel)) {
    const fastnorm::PeerVariant v = peer_variant(kernel);
    if (v.is_fused()) {
      launch.peer_norm_params = static_cast<const fastnorm::cuda::PeerNormParams*>(arguments[0]);
    } else if (v.form == fastnorm::PeerForm::kSharded) {
      launch.peer_sharded_params =
          static_cast<const fastnorm::cuda::PeerShardedParams*>(arguments[0]);
    } else if (v.form == fastnorm::PeerForm::kStatistics) {
      launch.peer_statistics_params =
          static_cast<const fastnorm::cuda::PeerStatisticsParams*>(arguments[0]);
    } else {
      launch.peer_sum_params = static_cast<const fastnorm::cuda::PeerSumParams*>(arguments[0]);
    }
  } else if (is_stages(kernel)) {
    const fastnorm::StagesVariant v = stages_variant(kernel);
    if (v.is_rotated()) {
      launch.params = static_cast<const fastnorm::cuda::NormCallParams*>(arguments[0]);
    } else if (v.is_held()) {
      launch.held_stages_params =
          static_cast<const fastnorm::cuda::HeldStagesParams*>(arguments[0]);
    } else {
      launch.stages_params = static_cast<const fastnorm::cuda::NormStagesParams*>(arguments[0]);
    }
  } else if (is_pair(kernel)) {
    launch.pair_params = static_cast<const fastnorm::cuda::NormPairParams*>(arguments[0]);
  } else {
    launch.params = static_cast<const fastnorm::cuda::NormParams*>(arguments[0]);
  }
  if (notes.on_launch != nullptr) notes.on_launch(launch);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (const cudaError_t error = result_of("cudaMalloc"); error != cudaSuccess) return error;
  constexpr size_t kAlign = 512;
  *memory = std::aligned_alloc(kAlign, (bytes + kAlign - 1) / kAlign * kAlign);
  ++holdings.device_memory;
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  --holdings.device_memory;
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  if (const cudaError_t error = result_of("cudaHostAlloc"); error != cudaSuccess) return error;
  *memory = std::malloc(bytes);
  ++holdings.host_memory;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  --holdings.host_memory;
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return result_of("cudaHostGetDevicePointer");
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t) {
  std::memset(memory, value, bytes);
  return result_of("cudaMemsetAsync");
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  std::memcpy(to, from, bytes);
  return result_of("cudaMemcpyAsync");
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  if (const cudaError_t error = result_of("cudaStreamCreateWithFlags"); error != cudaSuccess)
    return error;
  *stream = reinterpret_cast<cudaStream_t>(std::malloc(1));
  ++holdings.streams;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::free(stream);
  --holdings.streams;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return result_of("cudaStreamSynchronize"); }
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  if (const cudaError_t error = result_of("cudaIpcGetMemHandle"); error != cudaSuccess)
    return error;
  *handle = {};
  std::memcpy(handle->reserved + 8, &memory, sizeof memory);
  handle->reserved[0] = 1;
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned) {
  if (const cudaError_t error = result_of("cudaIpcOpenMemHandle"); error != cudaSuccess)
    return error;
  std::memcpy(memory, handle.reserved + 8, sizeof *memory);
  ++holdings.opened;
  ++holdings.opened_since_wait;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  holdings.opened_since_wait = 0;
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void*) {
  --holdings.opened;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = machine.reaches ? 1 : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  if (const cudaError_t error = result_of("cudaDeviceEnablePeerAccess"); error != cudaSuccess)
    return error;
  const std::pair access{current_gpu(), peer};
  if (std::find(holdings.access.begin(), holdings.access.end(), access) != holdings.access.end())
    return notes.last_error = cudaErrorPeerAccessAlreadyEnabled;
  holdings.access.push_back(access);
  return cudaSuccess;
}
// Odd multiples of 1 GB from 2^45 on belong to GPU 1, all other memory to GPU 0.
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const bool second = address >= uintptr_t{1} << 45 && (address >> 30 & 1) != 0;
  *attributes = {cudaMemoryTypeDevice, second ? 1 : 0};
  return result_of("cudaPointerGetAttributes");
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank,
                                void* address, const cuuint64_t* extents, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* steps,
                                CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill) {
  if (machine.failures.contains("cuTensorMapEncodeTiled")) return CUDA_ERROR_INVALID_VALUE;
  if (rank != 4 || steps[0] != 1 || !valid_map(address, extents, strides, box))
    return CUDA_ERROR_INVALID_VALUE;
  ++notes.tensor_maps;
  TensorMap& note = notes.maps.emplace_back();
  note.address = address;
  std::copy_n(extents, 4, note.extent);
  std::copy_n(strides, 3, note.stride);
  std::copy_n(box, 4, note.box);
  *map = {};
  return CUDA_SUCCESS;
}
}
