#include "simt/device.h"

#include <span>
#include <vector>

#include "core/common/pdl.h"
#include "core/norm/row_map.h"
#include "cuda/families.h"
#include "cuda/gpu_device.h"
#include "cuda/kernels.h"
#include "cuda/launches.h"
#include "simt/spec.h"

namespace simt {
namespace {

using namespace fastnorm;

// The architecture number that kernels.cpp is compiled with: no GPU's.
constexpr int kSimt = 0;

// A family's kernels, by number.
template <class Family>
const std::vector<const void*>& kernels() {
  static const std::vector<const void*> all = cuda::all_kernels<Family, kSimt>();
  return all;
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

// Whether a kernel lets the stream's next one start early.
bool triggers(const cuda::NormParams& p) { return (p.bits & cuda::kTrigger) != 0; }
bool triggers(const cuda::NormCallParams& p) { return (p.bits & cuda::kTrigger) != 0; }
bool triggers(const cuda::NormPairParams& p) { return triggers(p.call[0]); }
bool triggers(const cuda::NormStagesParams& p) { return triggers(p.norm); }
bool triggers(const cuda::HeldStagesParams& p) { return triggers(p.norm); }
bool triggers(const cuda::NormBackwardParams& p) { return (p.bits & kBackwardTrigger) != 0; }
bool triggers(const auto& heads) { return heads.triggers != 0; }

template <class Entry>
const char* name_of(std::span<const Entry> table, int32_t number, int32_t forms) {
  return table[static_cast<size_t>(number / forms)].name;
}

// Runs the launches of a call. Kernels may read `inputs` before they wait for the one before.
template <class Planned>
std::string run_launches(const Planned& call, void* workspace, Order order,
                         const std::vector<Input>& inputs) {
  std::string complaint;
  Error error;
  const auto start = [&]<class Family>(const cuda::Launch<Family>& launch, const auto& make) {
    const auto params = make();
    const void* const address = kernels<Family>()[static_cast<size_t>(launch.kernel)];
    if (address == nullptr) fault("an entry without a kernel");
    const auto kernel = reinterpret_cast<void (*)(std::remove_const_t<decltype(params)>)>(
        reinterpret_cast<uintptr_t>(address));
    const cuda::LaunchShape& s = launch.shape;
    const simt::Grid grid = {s.blocks_x, s.blocks_y, s.threads,        s.cluster, s.shared_bytes,
                             order,      s.early,    triggers(params), inputs};
    complaint = simt::launch(grid, [&] { kernel(params); });
    if (complaint.empty()) return FASTNORM_OK;
    const std::span<const typename Family::Entry> table = cuda::table_of<Family>(cuda::kSm90);
    complaint = std::string(name_of(table, launch.kernel, Family::kForms)) + ": " + complaint;
    return FASTNORM_ERROR_INTERNAL;
  };
  cuda::for_each_launch(call, cuda::kSm90, workspace, start);
  return complaint;
}

// What a kernel with stages, of a gradient or of heads may read ahead of its wait: nothing.
std::string run_call(const auto& call, void* workspace, Order order) {
  return run_launches(call, workspace, order, {});
}

std::string run_call(std::span<const NormCall> calls, void* workspace, Order order) {
  std::string complaint;
  while (!calls.empty() && complaint.empty()) {
    const std::span<const NormCall> now = calls.first(calls_together(calls));
    std::vector<Input> inputs;
    for (const NormCall& call : now) {
      if (!call.desc->has_stages) add_inputs(*call.desc, &inputs);
    }
    complaint = run_launches(now, workspace, order, inputs);
    calls = calls.subspan(now.size());
  }
  return complaint;
}

class SimtDevice final : public cuda::GpuDevice {
 public:
  SimtDevice(const DeviceFacts& facts, Order order) : GpuDevice(facts), order_(order) {}

  fastnorm_status prepare(const AnyCall&, Error&) override { return FASTNORM_OK; }
  fastnorm_status run(const AnyCall& call, void* workspace, void*, Error& error) override {
    const std::string complaint = simt::run(call, workspace, order_);
    if (complaint.empty()) return FASTNORM_OK;
    return error.set(FASTNORM_ERROR_INTERNAL, "%s", complaint.c_str());
  }

 private:
  const Order order_;
};

}  // namespace

std::unique_ptr<Device> make_device(Order order) {
  const ArchSpec& arch = cuda::kSm90;
  return std::make_unique<SimtDevice>(cuda::make_facts(arch, 0, 132, arch.max_cluster_blocks),
                                      order);
}

std::string run(const AnyCall& call, void* workspace, Order order) {
  return std::visit([&](const auto& planned) { return run_call(planned, workspace, order); }, call);
}

bool has_kernel(int32_t index) {
  const int32_t number = cuda::norm_kernel_number(index, GridForm::kRows);
  return kernels<cuda::NormFamily>()[static_cast<size_t>(number)] != nullptr;
}

}  // namespace simt
