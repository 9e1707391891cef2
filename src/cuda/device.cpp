#include "cuda/device.h"

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "core/check.h"

namespace fastnorm::cuda {
namespace {

// The architectures of this build. The option gpu_archs sets the macros.
std::span<const KernelTable> kernel_tables() {
  static const KernelTable tables[] = {
#ifdef FASTNORM_HAS_SM80
      {&kSm80, kernel_parts<80>(), all_norm_backward_kernels<80>(), all_norm_heads_kernels<80>(),
       all_norm_heads_backward_kernels<80>(), all_norm_stages_kernels<80>(),
       all_peer_kernels<80>()},
#endif
#ifdef FASTNORM_HAS_SM90
      {&kSm90, kernel_parts<90>(), all_norm_backward_kernels<90>(), all_norm_heads_kernels<90>(),
       all_norm_heads_backward_kernels<90>(), all_norm_stages_kernels<90>(),
       all_peer_kernels<90>()},
#endif
#ifdef FASTNORM_HAS_SM100
      {&kSm100, kernel_parts<100>(), all_norm_backward_kernels<100>(),
       all_norm_heads_kernels<100>(), all_norm_heads_backward_kernels<100>(),
       all_norm_stages_kernels<100>(), all_peer_kernels<100>()},
#endif
#ifdef FASTNORM_HAS_SM120
      {&kSm120, kernel_parts<120>(), all_norm_backward_kernels<120>(),
       all_norm_heads_kernels<120>(), all_norm_heads_backward_kernels<120>(),
       all_norm_stages_kernels<120>(), all_peer_kernels<120>()},
#endif
#ifdef FASTNORM_HAS_PTX
      {&kPtx, kernel_parts<kPtxNumber>(), all_norm_backward_kernels<kPtxNumber>(),
       all_norm_heads_kernels<kPtxNumber>(), all_norm_heads_backward_kernels<kPtxNumber>(),
       all_norm_stages_kernels<kPtxNumber>(), all_peer_kernels<kPtxNumber>()},
#endif
  };
  return tables;
}  // namespace

bool is_built(const ArchSpec& arch) { return kernel_table(arch) != nullptr; }

// A version as CUDA counts it, 13000 for 13.0, as text.
std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

int runtime_version() {
  int version = 0;
  cudaRuntimeGetVersion(&version);
  return version;
}

int driver_version() {
  int version = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess) version = 0;
  return version;
}

int32_t device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

fastnorm_status no_device(int32_t device_id, Error& error) {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  cudaGetLastError();
  const int driver = driver_version();
  const std::string found = driver == 0 ? std::string("no CUDA driver was found")
                                        : "the driver found supports CUDA " + version_text(driver);
  error.set(FASTNORM_ERROR_DEVICE,
            "device.device_id is %d and there are %d CUDA devices: %s; required: a device and a "
            "driver for CUDA %d or later%s%s",
            device_id, code == cudaSuccess ? count : 0, found.c_str(), runtime_version() / 1000,
            code == cudaSuccess ? "" : "; the runtime says: ",
            code == cudaSuccess ? "" : cudaGetErrorString(code));
  error.device_error = code;
  return FASTNORM_ERROR_DEVICE;
}

fastnorm_status describe(int32_t device_id, fastnorm_device_info* info, Error& error) {
  if (device_id < 0 || device_id >= device_count()) return no_device(device_id, error);
  cudaDeviceProp properties;
  FASTNORM_CUDA_TRY(cudaGetDeviceProperties(&properties, device_id));
  std::snprintf(info->name, sizeof info->name, "%.127s", properties.name);
  info->capability = properties.major * 10 + properties.minor;
  info->multiprocessors = properties.multiProcessorCount;
  info->l2_bytes = static_cast<uint64_t>(properties.l2CacheSize);
  info->memory_bytes = properties.totalGlobalMem;
  info->driver_version = driver_version();
  info->runtime_version = runtime_version();
  const ArchSpec* arch = arch_for(info->capability, is_built);
  info->kernel_arch = arch != nullptr ? arch->name : "none";
  return FASTNORM_OK;
}

template <typename Function>
fastnorm_status find_driver_function(const char* name, Function* function, Error& error) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult result;
  constexpr unsigned kVersion = 12000;
  FASTNORM_CUDA_TRY(
      cudaGetDriverEntryPointByVersion(name, &address, kVersion, cudaEnableDefault, &result));
  FASTNORM_REQUIRE(result == cudaDriverEntryPointSuccess && address != nullptr,
                   FASTNORM_ERROR_DEVICE,
                   "the CUDA driver has no %s; required: a driver for CUDA 12.0 or later", name);
  *function = reinterpret_cast<Function>(address);
  return FASTNORM_OK;
}

// The largest cluster that this device, or slice of a device, can run.
int32_t largest_cluster(const ArchSpec& arch, const KernelTable& kernels) {
  const std::span<const NormEntry> table = norm_table(arch);
  for (auto blocks = static_cast<int8_t>(arch.max_cluster_blocks);
       Tile{.blocks = blocks}.is_cluster(); blocks = static_cast<int8_t>(blocks / 2)) {
    const NormEntry* largest = nullptr;
    for (const NormEntry& entry : table) {
      if (entry.tile.blocks == blocks &&
          (largest == nullptr || entry.tile.threads > largest->tile.threads))
        largest = &entry;
    }
    if (largest != nullptr) {
      const auto kernel =
          reinterpret_cast<const void*>(kernels.at(static_cast<int32_t>(largest - table.data())));
      cudaLaunchAttribute attribute = {};
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
      cudaLaunchConfig_t config = {};
      config.gridDim = dim3(static_cast<unsigned>(blocks));
      config.blockDim = dim3(static_cast<unsigned>(largest->tile.threads));
      config.attrs = &attribute;
      config.numAttrs = 1;
      int clusters = 0;
      if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) == cudaSuccess && clusters > 0)
        return blocks;
      cudaGetLastError();
    }
  }
  return 1;
}

// Makes the device current.
fastnorm_status create_on(int32_t device_id, uint32_t flags, const Driver& driver,
                          std::unique_ptr<Device>* device, Error& error) {
  FASTNORM_CUDA_TRY(cudaSetDevice(device_id));  // also initialises the primary context
  fastnorm_device_info info = {};
  FASTNORM_TRY(describe(device_id, &info, error));
  const ArchSpec* arch = arch_for(info.capability, is_built);
  const KernelTable* kernels = arch != nullptr ? kernel_table(*arch) : nullptr;
  FASTNORM_REQUIRE(kernels != nullptr, FASTNORM_ERROR_UNSUPPORTED,
                   "device %d, %s, has compute capability %d.%d; this build has no kernels for it; "
                   "nearest: a build with that "
                   "architecture in -Dgpu_archs",
                   device_id, info.name, info.capability / 10, info.capability % 10);
  void* primary = nullptr;
  driver.get_current(&primary);
  FASTNORM_REQUIRE(primary != nullptr, FASTNORM_ERROR_DEVICE,
                   "device %d has no current CUDA context after cudaSetDevice", device_id);
  DeviceFacts facts =
      make_facts(*arch, device_id, info.multiprocessors, largest_cluster(*arch, *kernels));
  if ((flags & FASTNORM_CONTEXT_NO_PDL) != 0) facts.pdl = false;
  *device = std::make_unique<CudaDevice>(facts, *kernels, driver, primary);
  return FASTNORM_OK;
}

fastnorm_status create(int32_t device_id, const fastnorm_context_options& options,
                       std::unique_ptr<Device>* device, Error& error) {
  if ((options.flags & FASTNORM_CONTEXT_DRY_RUN) != 0)
    return create_dry_device(device_id, options, device, error);
  if (device_id < 0 || device_id >= device_count()) return no_device(device_id, error);
  Driver driver;
  FASTNORM_TRY(find_driver_function("cuCtxGetCurrent", &driver.get_current, error));
  FASTNORM_TRY(find_driver_function("cuCtxSetCurrent", &driver.set_current, error));
  FASTNORM_TRY(find_driver_function("cuCtxGetDevice", &driver.get_device, error));
  FASTNORM_TRY(find_driver_function("cuTensorMapEncodeTiled", &driver.encode_tiled, error));
  void* before = nullptr;
  driver.get_current(&before);
  const fastnorm_status status = create_on(device_id, options.flags, driver, device, error);
  driver.set_current(before);
  if (status == FASTNORM_OK && options.log != nullptr) {
    char text[160];
    std::snprintf(text, sizeof text, "CUDA device %d: kernels %s, clusters of up to %d blocks",
                  device_id, (*device)->facts.arch->name, (*device)->facts.max_cluster_blocks);
    options.log(options.log_user, FASTNORM_LOG_INFO, text);
  }
  return status;
}

// Names of the MLA decode kernels of an architecture.
std::span<const char* const> mla_decode_kernels(const ArchSpec& arch) {
  static constexpr const char* kNames[] = {"bf16", "f16", "bf16_profile", "f16_profile"};
  if (&arch == &kSm90) return kNames;
  return {};
}

// Names of an architecture's kernels of one family, without the family's.
template <auto kTableOf>
std::span<const char* const> names_of(const ArchSpec& arch) {
  static const struct Names {
    Names() {
      for (const ArchSpec* a : kArchs) {
        std::vector<const char*>& names = of[a->holds_rows ? 1 : 0];
        if (!names.empty()) continue;
        for (const auto& entry : kTableOf(*a)) names.push_back(std::strchr(entry.name, ' ') + 1);
      }
    }
    std::vector<const char*> of[2];
  } names;
  return names.of[arch.holds_rows ? 1 : 0];
}

std::span<const PeerEntry> peer_table_of(const ArchSpec&) { return peer_table(); }

std::span<const KernelSet> kernel_sets() {
  static const struct Sets {
    Sets() {
      for (const KernelTable& table : kernel_tables()) {
        set[count] = {table.arch->name,
                      norm_table(*table.arch),
                      mla_decode_kernels(*table.arch),
                      names_of<norm_backward_table>(*table.arch),
                      names_of<norm_heads_table>(*table.arch),
                      names_of<norm_heads_backward_table>(*table.arch),
                      norm_stages_entries(*table.arch)};
        set[count++].peer = names_of<peer_table_of>(*table.arch);
      }
    }
    KernelSet set[std::size(kArchs)];
    size_t count = 0;
  } sets;
  return {sets.set, sets.count};
}

const char* build_info() {
  static const std::string text = [] {
    std::string s = "cuda: runtime " + version_text(runtime_version()) + "\ngpu architectures:";
    for (const KernelTable& table : kernel_tables()) s += std::string(" ") + table.arch->name;
    return s + "\n";
  }();
  return text.c_str();
}

// Faults of a kernel that ran. The context is lost, and every later call reports them.
bool is_sticky(cudaError_t code) {
  switch (code) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
      return true;
    default:
      return false;
  }
}

}  // namespace

NormKernel KernelTable::at(int32_t index) const { return kernel_at(parts.kernels, index); }

NormPairKernel KernelTable::pair_at(int32_t index, GridForm form) const {
  const PairKernels kernels = kernel_at(parts.pair_kernels, index);
  return form == GridForm::kHeads ? kernels.heads : kernels.pair;
}

const KernelTable* kernel_table(const ArchSpec& arch) {
  for (const KernelTable& table : kernel_tables()) {
    if (table.arch == &arch) return &table;
  }
  return nullptr;
}

fastnorm_status device_error(const char* expression, cudaError_t code, Error& error) {
  cudaGetLastError();
  const bool memory = code == cudaErrorMemoryAllocation;
  error.set(memory ? FASTNORM_ERROR_OUT_OF_MEMORY : FASTNORM_ERROR_DEVICE, "%s%s: %s (%d)",
            is_sticky(code) ? "a fault of earlier work on this device, found by " : "", expression,
            cudaGetErrorString(code), static_cast<int>(code));
  error.device_error = code;
  return error.status;
}

}  // namespace fastnorm::cuda

namespace fastnorm {

const Backend& cuda_backend() {
  static constexpr Backend kBackend = {cuda::device_count, cuda::describe, cuda::create,
                                       cuda::kernel_sets, cuda::build_info};
  return kBackend;
}

}  // namespace fastnorm
