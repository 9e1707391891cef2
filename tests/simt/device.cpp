#include "simt/device.h"

#include "cuda/launch_params.h"
#include "cuda/norm_kernels.h"
#include "cuda/table.h"

namespace simt {
namespace {

using namespace fastnorm;

// The architecture number that kernels.cpp is compiled with: no GPU's.
constexpr int kSimt = 0;

class SimtDevice final : public Device {
 public:
  SimtDevice(const DeviceFacts& facts, Order order) : Device(facts), order_(order) {}

  std::span<const NormEntry> norm_table() const override {
    return fastnorm::cuda::norm_table(*facts.arch);
  }

  fastnorm_status prepare_norm(std::span<const NormCall>, Error&) override { return FASTNORM_OK; }

  fastnorm_status run_norm(std::span<const NormCall> calls, void*, void*, Error&) override {
    for (const NormCall& call : calls) {
      const fastnorm::cuda::NormParams params = fastnorm::cuda::make_params(*call.desc, *call.plan);
      const fastnorm::cuda::NormKernel kernel = kernel_at(call.plan->index);
      const Tile tile = call.plan->entry->tile;
      launch(call.plan->blocks, static_cast<unsigned>(tile.threads * call.plan->rows_per_block),
             static_cast<unsigned>(tile.blocks), order_, [&] { kernel(params); });
    }
    return FASTNORM_OK;
  }

 private:
  // The kernel of an entry of norm_table(), which has the dtypes one after the other.
  static fastnorm::cuda::NormKernel kernel_at(int32_t index) {
    auto left = static_cast<size_t>(index);
    for (std::span<const fastnorm::cuda::NormKernel> kernels :
         {fastnorm::cuda::norm_kernels<kSimt, Dtype::kF32>(),
          fastnorm::cuda::norm_kernels<kSimt, Dtype::kF16>(),
          fastnorm::cuda::norm_kernels<kSimt, Dtype::kBF16>()}) {
      if (left < kernels.size()) return kernels[left];
      left -= kernels.size();
    }
    fault("an entry without a kernel");
  }

  const Order order_;
};

}  // namespace

std::unique_ptr<Device> make_device(Order order) {
  const ArchSpec& arch = cuda::kSm90;
  return std::make_unique<SimtDevice>(cuda::make_facts(arch, 0, 132, arch.max_cluster_blocks),
                                      order);
}

}  // namespace simt
