#include "cuda/device.h"

#include <cstdio>
#include <string>
#include <vector>

#include "core/common/check.h"
#include "cuda/kernels.h"
#include "cuda/norm/params.h"

namespace fastnorm::cuda {
namespace {

template <int kArch>
ArchKernels kernels_of(const ArchSpec& arch) {
  ArchKernels kernels = {&arch, {}};
  Families::for_each([&]<class Family>() {
    kernels.of[Families::index_of<Family>()] = all_kernels<Family, kArch>();
  });
  return kernels;
}

// The architectures of this build. The option gpu_archs sets the macros.
std::span<const ArchKernels> built_kernels() {
  static const ArchKernels kernels[] = {
#ifdef FASTNORM_HAS_SM80
      kernels_of<80>(kSm80),
#endif
#ifdef FASTNORM_HAS_SM90
      kernels_of<90>(kSm90),
#endif
#ifdef FASTNORM_HAS_SM100
      kernels_of<100>(kSm100),
#endif
#ifdef FASTNORM_HAS_SM120
      kernels_of<120>(kSm120),
#endif
#ifdef FASTNORM_HAS_PTX
      kernels_of<kPtxNumber>(kPtx),
#endif
  };
  return kernels;
}

bool is_built(const ArchSpec& arch) { return arch_kernels(arch) != nullptr; }

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
int32_t largest_cluster(const ArchSpec& arch, const ArchKernels& kernels) {
  const std::span<const NormEntry> table = table_of<NormFamily>(arch);
  for (auto blocks = static_cast<int8_t>(arch.max_cluster_blocks);
       Tile{.blocks = blocks}.is_cluster(); blocks = static_cast<int8_t>(blocks / 2)) {
    const NormEntry* largest = nullptr;
    for (const NormEntry& entry : table) {
      if (entry.tile.blocks == blocks &&
          (largest == nullptr || entry.tile.threads > largest->tile.threads))
        largest = &entry;
    }
    if (largest != nullptr) {
      const int32_t number =
          norm_kernel_number(static_cast<int32_t>(largest - table.data()), GridForm::kRows);
      const void* const kernel =
          kernels.of[Families::index_of<NormFamily>()][static_cast<size_t>(number)];
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
  const ArchKernels* kernels = arch != nullptr ? arch_kernels(*arch) : nullptr;
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

std::span<const KernelSet> kernel_sets() {
  static const std::vector<KernelSet> sets = [] {
    std::vector<KernelSet> list;
    for (const ArchKernels& built : built_kernels()) {
      KernelSet& set = list.emplace_back(KernelSet{built.arch->name, {}});
      Families::for_each([&]<class Family>() {
        set.families.push_back(names_of(Family::kName, table_of<Family>(*built.arch)));
      });
      if (built.arch == &kSm90)
        set.families.push_back({"mla_decode", {"bf16", "f16", "bf16_profile", "f16_profile"}});
    }
    return list;
  }();
  return sets;
}

const char* build_info() {
  static const std::string text = [] {
    std::string s = "cuda: runtime " + version_text(runtime_version()) + "\ngpu architectures:";
    for (const ArchKernels& built : built_kernels()) s += std::string(" ") + built.arch->name;
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

const ArchKernels* arch_kernels(const ArchSpec& arch) {
  for (const ArchKernels& built : built_kernels()) {
    if (built.arch == &arch) return &built;
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
