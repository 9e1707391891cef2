#include "simt/device.h"

#include "core/pdl.h"
#include "core/row_map.h"
#include "cuda/norm/kernels.h"
#include "cuda/norm/launch_params.h"
#include "cuda/norm/list.h"
#include "cuda/norm/table.h"
#include "cuda/norm_backward/kernels.h"
#include "cuda/norm_backward/launch_params.h"
#include "cuda/norm_backward/table.h"
#include "cuda/norm_heads/kernels.h"
#include "cuda/norm_heads/launch_params.h"
#include "cuda/norm_heads/table.h"
#include "cuda/norm_heads_backward/kernels.h"
#include "cuda/norm_heads_backward/launch_params.h"
#include "cuda/norm_heads_backward/table.h"
#include "cuda/norm_stages/kernels.h"
#include "cuda/norm_stages/launch_params.h"
#include "simt/spec.h"

namespace simt {
namespace {

using namespace fastnorm;

// The architecture number that kernels.cpp is compiled with: no GPU's.
constexpr int kSimt = 0;

const fastnorm::cuda::KernelParts& simt_kernels() {
  static const fastnorm::cuda::KernelParts parts = fastnorm::cuda::kernel_parts<kSimt>();
  return parts;
}

// Columns first: the range of rows that lie apart may have others in it.
void add_inputs(const NormDesc& d, std::vector<Input>* inputs) {
  const auto add = [&](const char* name, const std::byte* data, const int64_t* strides,
                       int64_t bytes, bool constant) {
    AddressRange range;
    if (data != nullptr && address_range({data, strides, bytes, 1, 0}, d.outer, &range))
      inputs->push_back({name, range.begin, range.end, constant});
  };
  const auto rows = [&](const char* name, const RowTensor& t) {
    add(name, t.data, t.stride_bytes, d.n * dtype_bytes(t.dtype), false);
  };
  const auto weight_or_bias = [&](const char* name, const WeightTensor& c) {
    const int64_t strides[kMaxOuter] = {c.stride_bytes(0), c.stride_bytes(1), c.stride_bytes(2)};
    add(name, c.data, strides, d.n * dtype_bytes(c.dtype),
        (d.flags & FASTNORM_NORM_PDL_CONSTANT_WEIGHTS) != 0);
  };
  const auto scalar = [&](const char* name, const std::byte* data) {
    constexpr int64_t kOne[kMaxOuter] = {};
    add(name, data, kOne, sizeof(float), false);
  };
  weight_or_bias("weight", d.weight), weight_or_bias("bias", d.bias);
  scalar("scale", d.quant.tensor_scale), scalar("global_scale", d.quant.global_scale);
  scalar("clamp_scale", d.quant.clamp_scale);
  rows("x", d.x), rows("residual", d.residual);
}

// The one of a family's kernels that takes these parameters.
void call_with(const cuda::NormHeadsKernel& kernel, const cuda::NormHeadsParams& params) {
  kernel.general(params);
}
void call_with(const cuda::NormHeadsKernel& kernel, const cuda::HeldHeadsParams& params) {
  kernel.held(params);
}
void call_with(const cuda::NormHeadsBackwardKernel& kernel,
               const cuda::NormHeadsBackwardParams& params) {
  kernel.general(params);
}
void call_with(const cuda::NormHeadsBackwardKernel& kernel,
               const cuda::HeldHeadsBackwardParams& params) {
  kernel.held(params);
}
void call_with(const cuda::NormHeadsBackwardKernel& kernel, const cuda::HeadsFoldParams& params) {
  kernel.fold(params);
}
void call_with(const cuda::NormStagesKernel& kernel, const cuda::NormStagesParams& params) {
  kernel.general(params);
}
void call_with(const cuda::NormStagesKernel& kernel, const cuda::HeldStagesParams& params) {
  kernel.held(params);
}
void call_with(const cuda::NormStagesKernel& kernel, const cuda::NormCallParams& params) {
  kernel.rotated(params);
}

class SimtDevice final : public Device {
 public:
  SimtDevice(const DeviceFacts& facts, Order order) : Device(facts), order_(order) {}

  std::span<const NormEntry> norm_table() const override {
    static constexpr auto kTable =
        fastnorm::cuda::make_norm_table<fastnorm::cuda::list_arch(fastnorm::cuda::kSimt)>();
    return kTable;
  }

  fastnorm_status prepare_norm(std::span<const NormCall>, Error&) override { return FASTNORM_OK; }

  fastnorm_status run_norm(std::span<const NormCall> calls, void*, void*, Error& error) override {
    for (std::span<const NormCall> left = calls; !left.empty();) {
      const std::span<const NormCall> now = left.first(fastnorm::cuda::calls_together(left));
      left = left.subspan(now.size());
      const std::string complaint = run_together(now);
      if (!complaint.empty()) return error.set(FASTNORM_ERROR_INTERNAL, "%s", complaint.c_str());
    }
    return FASTNORM_OK;
  }

  std::span<const NormBackwardEntry> norm_backward_table() const override {
    return fastnorm::cuda::norm_backward_table(*facts.arch);
  }
  fastnorm_status prepare_norm_backward(const NormBackwardDesc&, const NormBackwardPlan&,
                                        Error&) override {
    return FASTNORM_OK;
  }
  fastnorm_status run_norm_backward(const NormBackwardDesc& desc, const NormBackwardPlan& plan,
                                    void* workspace, void*, Error& error) override {
    const std::string complaint = simt::run_norm_backward(desc, plan, workspace, order_);
    if (!complaint.empty()) return error.set(FASTNORM_ERROR_INTERNAL, "%s", complaint.c_str());
    return FASTNORM_OK;
  }

  std::span<const NormHeadsEntry> norm_heads_table() const override {
    return fastnorm::cuda::norm_heads_table(*facts.arch);
  }
  fastnorm_status prepare_norm_heads(const NormHeadsDesc&, const NormHeadsPlan&, Error&) override {
    return FASTNORM_OK;
  }
  fastnorm_status run_norm_heads(const NormHeadsDesc& desc, const NormHeadsPlan& plan, void*,
                                 Error& error) override {
    const std::string complaint = simt::run_norm_heads(desc, plan, order_);
    if (!complaint.empty()) return error.set(FASTNORM_ERROR_INTERNAL, "%s", complaint.c_str());
    return FASTNORM_OK;
  }

  std::span<const NormHeadsBackwardEntry> norm_heads_backward_table() const override {
    return fastnorm::cuda::norm_heads_backward_table(*facts.arch);
  }
  fastnorm_status prepare_norm_heads_backward(const HeadsGradients&, const NormHeadsBackwardPlan&,
                                              Error&) override {
    return FASTNORM_OK;
  }
  fastnorm_status run_norm_heads_backward(const HeadsGradients& call,
                                          const NormHeadsBackwardPlan& plan, void* workspace, void*,
                                          Error& error) override {
    const std::string complaint = simt::run_norm_heads_backward(call, plan, workspace, order_);
    if (!complaint.empty()) return error.set(FASTNORM_ERROR_INTERNAL, "%s", complaint.c_str());
    return FASTNORM_OK;
  }

  GridCount grids(std::span<const NormCall> calls) const override {
    return fastnorm::cuda::count_grids(calls);
  }

 private:
  std::string run_together(std::span<const NormCall> calls) {
    using namespace fastnorm::cuda;
    const KernelParts& parts = simt_kernels();
    const NormPlan& plan = *calls.front().plan;
    if (calls.front().desc->has_stages) return run_norm_stages(*calls.front().desc, plan, order_);
    cuda::Grid blocks;
    find_grid(calls, &blocks);
    const auto start = [&](auto kernel, const auto& params) {
      if (kernel == nullptr) fault("an entry without a kernel");
      const Tile tile = plan.entry->tile;
      simt::Grid grid = {blocks.x,
                         blocks.y,
                         static_cast<unsigned>(tile.threads * plan.rows_per_block),
                         static_cast<unsigned>(tile.blocks),
                         static_cast<unsigned>(launch_shared_bytes(plan.entry->key, tile)),
                         order_,
                         (calls.front().desc->flags & kPdlWait) != 0,
                         (calls.front().desc->flags & kPdlTrigger) != 0,
                         {}};
      for (const NormCall& call : calls) add_inputs(*call.desc, &grid.inputs);
      return launch(grid, [&] { kernel(params); });
    };
    if (blocks.form == GridForm::kRows)
      return start(kernel_at(parts.kernels, plan.index), make_params(*calls[0].desc, plan));
    const PairKernels kernels = kernel_at(parts.pair_kernels, plan.index);
    return start(blocks.form == GridForm::kHeads ? kernels.heads : kernels.pair,
                 make_pair_params(calls, blocks));
  }

  const Order order_;
};

}  // namespace

std::unique_ptr<Device> make_device(Order order) {
  const ArchSpec& arch = cuda::kSimt;
  return std::make_unique<SimtDevice>(cuda::make_facts(arch, 0, 132, arch.max_cluster_blocks),
                                      order);
}

std::string run_norm_backward(const NormBackwardDesc& desc, const NormBackwardPlan& plan,
                              void* workspace, Order order) {
  using namespace fastnorm::cuda;
  static const NormBackwardKernels kernels = all_norm_backward_kernels<kSimt>();
  const std::span<const NormBackwardEntry> table = norm_backward_table(fastnorm::cuda::kSimt);
  for (int32_t i = 0; i < plan.launches; ++i) {
    const NormBackwardStep& step = plan.steps[i];
    const NormBackwardEntry& entry = table[static_cast<size_t>(step.index)];
    const NormBackwardKernel kernel = kernels.at(step.index);
    const NormBackwardParams params = make_step_params(desc, plan, step, workspace);
    // No kernel reads ahead of its wait: there are no inputs that it could.
    const simt::Grid grid = {step.blocks_x,
                             step.blocks_y,
                             static_cast<unsigned>(entry.variant.block_threads()),
                             static_cast<unsigned>(entry.variant.blocks),
                             static_cast<unsigned>(step.shared_bytes),
                             order,
                             step.early,
                             (step.bits & kBackwardTrigger) != 0,
                             {}};
    const std::string complaint = launch(grid, [&] { kernel(params); });
    if (!complaint.empty()) return std::string(entry.name) + ": " + complaint;
  }
  return "";
}

std::string run_norm_heads(const NormHeadsDesc& desc, const NormHeadsPlan& plan, Order order) {
  using namespace fastnorm::cuda;
  static const NormHeadsKernels kernels = all_norm_heads_kernels<kSimt>();
  const NormHeadsKernel kernel = kernels.at(plan.index);
  const simt::Grid grid = {static_cast<unsigned>(plan.blocks),
                           1,
                           static_cast<unsigned>(plan.entry->variant.block_threads()),
                           1,
                           0,
                           order,
                           (desc.pdl & kPdlWait) != 0,
                           (desc.pdl & kPdlTrigger) != 0,
                           {}};
  const std::string complaint = visit_heads_params(desc, plan, [&](const auto& params) {
    return launch(grid, [&] { call_with(kernel, params); });
  });
  return complaint.empty() ? "" : std::string(plan.kernel) + ": " + complaint;
}

std::string run_norm_heads_backward(const HeadsGradients& call, const NormHeadsBackwardPlan& plan,
                                    void* workspace, Order order) {
  using namespace fastnorm::cuda;
  static const NormHeadsBackwardKernels kernels = all_norm_heads_backward_kernels<kSimt>();
  const std::span<const NormHeadsBackwardEntry> table =
      norm_heads_backward_table(fastnorm::cuda::kSimt);
  for (int32_t i = 0; i < plan.launches; ++i) {
    const HeadsBackwardStep& step = plan.steps[i];
    const NormHeadsBackwardEntry& entry = table[static_cast<size_t>(step.index)];
    const NormHeadsBackwardKernel kernel = kernels.at(step.index);
    const simt::Grid grid = {step.blocks,
                             1,
                             static_cast<unsigned>(entry.variant.block_threads()),
                             1,
                             static_cast<unsigned>(step.shared_bytes),
                             order,
                             step.early,
                             step.triggers,
                             {}};
    const std::string complaint = visit_heads_backward_params(
        call, plan, step, entry.variant, workspace,
        [&](const auto& params) { return launch(grid, [&] { call_with(kernel, params); }); });
    if (!complaint.empty()) return std::string(entry.name) + ": " + complaint;
  }
  return "";
}

std::string run_norm_stages(const NormDesc& desc, const NormPlan& plan, Order order) {
  using namespace fastnorm::cuda;
  static const NormStagesKernels kernels = all_norm_stages_kernels<kSimt>();
  const NormStagesKernel kernel = kernels.at(plan.index);
  // No kernel reads ahead of its wait: there are no inputs that it could.
  const simt::Grid grid = {static_cast<unsigned>(plan.blocks),
                           1,
                           static_cast<unsigned>(plan.entry->tile.threads * plan.rows_per_block),
                           1,
                           0,
                           order,
                           (desc.flags & kPdlWait) != 0,
                           (desc.flags & kPdlTrigger) != 0,
                           {}};
  const std::string complaint = visit_stages_params(
      desc, plan, fastnorm::cuda::kSimt,
      [&](const auto& params) { return launch(grid, [&] { call_with(kernel, params); }); });
  return complaint.empty() ? "" : std::string(plan.entry->name) + ": " + complaint;
}

bool has_kernel(int32_t index) {
  return fastnorm::cuda::kernel_at(simt_kernels().kernels, index) != nullptr;
}

}  // namespace simt
