#include "simt/device.h"

#include "cuda/launch_params.h"
#include "cuda/norm_kernels.h"
#include "cuda/table.h"

namespace simt {
namespace {

using namespace fastnorm;

// The architecture number that kernels.cpp is compiled with: no GPU's.
constexpr int kSimt = 0;

const fastnorm::cuda::KernelParts& simt_kernels() {
  static const fastnorm::cuda::KernelParts parts = fastnorm::cuda::kernel_parts<kSimt>();
  return parts;
}

class SimtDevice final : public Device {
 public:
  SimtDevice(const DeviceFacts& facts, Order order) : Device(facts), order_(order) {}

  std::span<const NormEntry> norm_table() const override {
    return fastnorm::cuda::norm_table(*facts.arch);
  }

  fastnorm_status prepare_norm(std::span<const NormCall>, Error&) override { return FASTNORM_OK; }

  fastnorm_status run_norm(std::span<const NormCall> calls, void*, void*, Error&) override {
    for (std::span<const NormCall> left = calls; !left.empty();) {
      const std::span<const NormCall> now = left.first(fastnorm::cuda::calls_together(left));
      left = left.subspan(now.size());
      run_together(now);
    }
    return FASTNORM_OK;
  }

  int32_t launches(std::span<const NormCall> calls) const override {
    return fastnorm::cuda::count_grids(calls);
  }

 private:
  void run_together(std::span<const NormCall> calls) {
    using namespace fastnorm::cuda;
    const KernelParts& parts = simt_kernels();
    const NormPlan& plan = *calls.front().plan;
    const auto start = [&](uint64_t blocks, auto kernel, const auto& params) {
      if (kernel == nullptr) fault("an entry without a kernel");
      const Tile tile = plan.entry->tile;
      launch(blocks, static_cast<unsigned>(tile.threads * plan.rows_per_block),
             static_cast<unsigned>(tile.blocks), order_, [&] { kernel(params); });
    };
    if (calls.size() == 1) {
      start(plan.blocks, kernel_at(parts.kernels, plan.index), make_params(*calls[0].desc, plan));
      return;
    }
    start(plan.blocks + calls[1].plan->blocks, kernel_at(parts.pair_kernels, plan.index),
          make_pair_params(calls[0], calls[1]));
  }

  const Order order_;
};

}  // namespace

std::unique_ptr<Device> make_device(Order order) {
  const ArchSpec& arch = cuda::kSm90;
  return std::make_unique<SimtDevice>(cuda::make_facts(arch, 0, 132, arch.max_cluster_blocks),
                                      order);
}

bool has_kernel(int32_t index) {
  return fastnorm::cuda::kernel_at(simt_kernels().kernels, index) != nullptr;
}

}  // namespace simt
