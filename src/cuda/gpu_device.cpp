#include "cuda/gpu_device.h"

#include "core/common/check.h"
#include "cuda/families.h"
#include "cuda/launches.h"
#include "cuda/peer/dry_link.h"

namespace fastnorm::cuda {
namespace {

class DryDevice final : public GpuDevice {
 public:
  using GpuDevice::GpuDevice;

  fastnorm_status prepare(const AnyCall&, Error&) override { return FASTNORM_OK; }
  fastnorm_status run(const AnyCall& call, void* workspace, void*, Error&) override {
    return for_each_launch(
        call, *facts.arch, workspace,
        [](const auto&, const auto& make) __attribute__((always_inline)) {
          const auto params = make();
          asm volatile("" ::"m"(params));  // the work counts, not its result
          return FASTNORM_OK;
        });
  }
  fastnorm_status check_peers(Error&) const override { return FASTNORM_OK; }
  fastnorm_status create_peer(const PeerDesc& desc, void* const* buffers,
                              std::unique_ptr<PeerLink>* link, Error&) override {
    *link = make_dry_peer_link(desc, buffers);
    return FASTNORM_OK;
  }
};

// The tables that plans search, by the type of their entries.
KernelTables kernel_tables(const ArchSpec& arch) {
  const Families::Tables all = tables_of(arch);
  KernelTables wanted;
  std::apply([&]<class... Table>(Table&... table) { ((table = std::get<Table>(all)), ...); },
             wanted);
  return wanted;
}

}  // namespace

GpuDevice::GpuDevice(const DeviceFacts& f) : Device(f, kernel_tables(*f.arch)) {}

DeviceFacts make_facts(const ArchSpec& arch, int32_t device_id, int32_t multiprocessors,
                       int32_t max_cluster_blocks) {
  DeviceFacts facts;
  facts.device_type = FASTNORM_DEVICE_CUDA;
  facts.device_id = device_id;
  facts.arch = &arch;
  facts.multiprocessors = multiprocessors;
  facts.max_cluster_blocks = max_cluster_blocks;
  facts.pdl = arch.launches_early();
  return facts;
}

fastnorm_status create_dry_device(int32_t device_id, const fastnorm_context_options& options,
                                  std::unique_ptr<Device>* device, Error& error) {
  constexpr int32_t kMultiprocessors = 132;
  const ArchSpec* arch = arch_for(options.dry_run_capability, [](const ArchSpec&) { return true; });
  FASTNORM_REQUIRE(
      arch != nullptr, FASTNORM_ERROR_UNSUPPORTED,
      "options.dry_run_capability is %d; there are kernels for 80 and later; nearest: 80",
      options.dry_run_capability);
  FASTNORM_REQUIRE(device_id >= 0, FASTNORM_ERROR_ARGUMENT,
                   "device.device_id is %d; required: >= 0", device_id);
  DeviceFacts facts = make_facts(*arch, device_id, kMultiprocessors, arch->max_cluster_blocks);
  if ((options.flags & FASTNORM_CONTEXT_NO_PDL) != 0) facts.pdl = false;
  *device = std::make_unique<DryDevice>(facts);
  return FASTNORM_OK;
}

}  // namespace fastnorm::cuda
