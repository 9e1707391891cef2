#include "unit/cuda/pretend_runtime.h"

#include <cuda.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "cuda/kernels.h"
#include "cuda/mla_decode/kernels.h"
#include "unit/cuda/pretend_kernels.h"

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

// Kernels of MLA decode: attention by f16 and profile, then by f16 and the format of gathered rows;
// the planner, two that merge.
constexpr size_t kMlaGather = 4, kMlaSwapped = 12, kMlaPlan = 14, kMlaMerge = 15;
char mla_bytes[17];

bool is_mla(const void* kernel) { return kernel >= mla_bytes && kernel < std::end(mla_bytes); }

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
  MlaKernels all = {{{&mla_bytes[0], &mla_bytes[1]}, {&mla_bytes[2], &mla_bytes[3]}},
                    &mla_bytes[kMlaPlan],
                    {&mla_bytes[kMlaMerge], &mla_bytes[kMlaMerge + 1]},
                    {},
                    {}};
  const char* next = &mla_bytes[kMlaGather];
  for (auto& of_dtype : all.gather) {
    for (const void*& kernel : of_dtype) kernel = next++;
  }
  next = &mla_bytes[kMlaSwapped];
  for (const void*& kernel : all.swapped) kernel = next++;
  return all;
}

void* primary_context(int gpu) { return &contexts[0][gpu]; }
void* other_context(int gpu) { return &contexts[1][gpu]; }

}  // namespace fastnorm::test

namespace fastnorm::cuda {

// PTX has kernels that nothing launches.
template <class Family, int kArch, int kPart>
std::span<const void* const> part_kernels() {
  if (kArch == kPtxNumber) return {};
  return test::pretended<Family>().template part<kPart>();
}

// The addresses of these functions for all families, without which the compiler would not make
// them: only other files call them.
std::vector<std::span<const void* const> (*)()> all_parts() {
  std::vector<std::span<const void* const> (*)()> all;
  Families::for_each([&]<class Family>() {
    [&]<int... kPart>(std::integer_sequence<int, kPart...>) {
      (all.push_back(part_kernels<Family, 90, kPart>), ...);
      (all.push_back(part_kernels<Family, kPtxNumber, kPart>), ...);
    }
    (std::make_integer_sequence<int, Family::kParts>());
  });
  return all;
}

template <>
const void* mla_decode_kernel<Dtype::kBF16>(bool profiles) {
  return test::mla_kernels().attention[0][profiles];
}
template <>
const void* mla_decode_kernel<Dtype::kF16>(bool profiles) {
  return test::mla_kernels().attention[1][profiles];
}
template <>
const void* mla_decode_gather_kernel<Dtype::kBF16>(MlaCacheFormat format) {
  return test::mla_kernels().gather[0][static_cast<int>(format)];
}
template <>
const void* mla_decode_gather_kernel<Dtype::kF16>(MlaCacheFormat format) {
  return test::mla_kernels().gather[1][static_cast<int>(format)];
}
template <>
const void* mla_decode_swapped_kernel<Dtype::kBF16>() {
  return test::mla_kernels().swapped[0];
}
template <>
const void* mla_decode_swapped_kernel<Dtype::kF16>() {
  return test::mla_kernels().swapped[1];
}
unsigned mla_decode_threads(bool gathers, int32_t tile_rows) {
  return tile_rows != kMlaTileRows ? 192 : gathers ? 512 : 384;
}
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

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  properties->uuid.bytes[0] = static_cast<char>(device + 1);
  std::strcpy(properties->name, "pretended GPU");
  properties->major = machine.capability / 10;
  properties->minor = machine.capability % 10;
  properties->multiProcessorCount = machine.multiprocessors;
  properties->l2CacheSize = 50 << 20;
  properties->totalGlobalMem = size_t{80} << 30;
  return result_of("cudaGetDeviceProperties");
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMultiProcessorCount ? machine.multiprocessors : 0;
  return result_of("cudaDeviceGetAttribute");
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
  const bool has_maps = is_mla(kernel) && kernel < &mla_bytes[kMlaPlan];
  launch.params = arguments[has_maps ? 1 : 0];
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
