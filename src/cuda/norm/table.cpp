#include "cuda/norm/table.h"

#include <iterator>

#include "core/check.h"
#include "cuda/norm/launch_params.h"
#include "cuda/norm/list.h"
#include "cuda/norm_backward/launch_params.h"
#include "cuda/norm_backward/table.h"
#include "cuda/norm_heads/launch_params.h"
#include "cuda/norm_heads/table.h"
#include "cuda/norm_heads_backward/launch_params.h"
#include "cuda/norm_heads_backward/table.h"
#include "cuda/norm_stages/launch_params.h"
#include "cuda/norm_stages/table.h"
#include "cuda/peer/dry_link.h"
#include "cuda/peer/table.h"

namespace fastnorm::cuda {
namespace {

template <ListArch kArch>
constexpr auto kNormTable = make_norm_table<kArch>();

// Each entry once, in the order that find_entry() needs.
template <ListArch kArch>
constexpr bool ascends() {
  const auto& table = kNormTable<kArch>;
  for (size_t i = 1; i < table.size(); ++i) {
    if (table[i - 1].packed() >= table[i].packed()) return false;
  }
  return true;
}

// PTX has the same kernels as sm_120f, compiled differently. Planning needs one table for both.
constexpr ListArch table_columns(const ArchSpec& arch) {
  const ListArch columns = list_arch(arch);
  return columns == list_arch(kPtx) ? list_arch(kSm120) : columns;
}
constexpr bool ptx_has_sm120s_kernels() {
  for (const VariantLine& line : kVariantLines) {
    if ((line.blocks_per_sm.of[kListPtx] == 0) != (line.blocks_per_sm.of[kList120] == 0))
      return false;
  }
  return true;
}
static_assert(ptx_has_sm120s_kernels());

template <const ArchSpec&... kArch>
constexpr std::span<const NormEntry> table_of(const ArchSpec& arch) {
  static_assert((ascends<list_arch(kArch)>() && ...));
  std::span<const NormEntry> table;
  ((table_columns(arch) == list_arch(kArch) ? table = kNormTable<list_arch(kArch)> : table), ...);
  return table;
}

#define V(...) "V(" #__VA_ARGS__ ")",
constexpr const char* kVariantTexts[] = {
#include "cuda/norm/variants_codes.inc"
#include "cuda/norm/variants_store.inc"
#include "cuda/norm/variants_unaligned.inc"
};
#undef V
static_assert(std::size(kVariantTexts) == kVariantLines.size());

// The work of making parameters counts, not its result.
constexpr auto kKeep = [](const auto& params) { asm volatile("" ::"m"(params)); };

class DryDevice final : public Device {
 public:
  using Device::Device;

  std::span<const NormEntry> norm_table() const override { return cuda::norm_table(*facts.arch); }

  const char* variant_text(const NormEntry& entry) const override {
    return cuda::variant_text(entry);
  }

  fastnorm_status prepare_norm(std::span<const NormCall>, Error&) override { return FASTNORM_OK; }

  fastnorm_status run_norm(std::span<const NormCall> calls, void*, void*, Error&) override {
    for (size_t count = 0; !calls.empty(); calls = calls.subspan(count)) {
      count = calls_together(calls);
      Grid grid;
      find_grid(calls.first(count), &grid);
      if (calls[0].desc->has_stages) {
        visit_stages_params(*calls[0].desc, *calls[0].plan, *facts.arch, kKeep);
      } else if (grid.form != GridForm::kRows) {
        kKeep(make_pair_params(calls.first(count), grid));
      } else {
        kKeep(make_params(*calls[0].desc, *calls[0].plan));
      }
    }
    return FASTNORM_OK;
  }

  GridCount grids(std::span<const NormCall> calls) const override { return count_grids(calls); }

  std::span<const NormBackwardEntry> norm_backward_table() const override {
    return cuda::norm_backward_table(*facts.arch);
  }
  fastnorm_status prepare_norm_backward(const NormBackwardDesc&, const NormBackwardPlan&,
                                        Error&) override {
    return FASTNORM_OK;
  }
  fastnorm_status run_norm_backward(const NormBackwardDesc& desc, const NormBackwardPlan& plan,
                                    void* workspace, void*, Error&) override {
    for (int32_t i = 0; i < plan.launches; ++i)
      kKeep(make_step_params(desc, plan, plan.steps[i], workspace));
    return FASTNORM_OK;
  }

  std::span<const NormHeadsEntry> norm_heads_table() const override {
    return cuda::norm_heads_table(*facts.arch);
  }
  fastnorm_status prepare_norm_heads(const NormHeadsDesc&, const NormHeadsPlan&, Error&) override {
    return FASTNORM_OK;
  }
  fastnorm_status run_norm_heads(const NormHeadsDesc& desc, const NormHeadsPlan& plan, void*,
                                 Error&) override {
    visit_heads_params(desc, plan, kKeep);
    return FASTNORM_OK;
  }

  std::span<const NormHeadsBackwardEntry> norm_heads_backward_table() const override {
    return cuda::norm_heads_backward_table(*facts.arch);
  }
  fastnorm_status prepare_norm_heads_backward(const HeadsGradients&, const NormHeadsBackwardPlan&,
                                              Error&) override {
    return FASTNORM_OK;
  }
  fastnorm_status run_norm_heads_backward(const HeadsGradients& call,
                                          const NormHeadsBackwardPlan& plan, void* workspace, void*,
                                          Error&) override {
    const std::span<const NormHeadsBackwardEntry> table = norm_heads_backward_table();
    for (int32_t i = 0; i < plan.launches; ++i) {
      const HeadsBackwardStep& step = plan.steps[i];
      visit_heads_backward_params(call, plan, step, table[static_cast<size_t>(step.index)].variant,
                                  workspace, kKeep);
    }
    return FASTNORM_OK;
  }

  std::span<const PeerEntry> peer_table() const override { return cuda::peer_table(); }
  fastnorm_status check_peers(Error&) const override { return FASTNORM_OK; }
  fastnorm_status create_peer(const PeerDesc& desc, void* const* buffers,
                              std::unique_ptr<PeerLink>* link, Error&) override {
    *link = make_dry_peer_link(desc, buffers);
    return FASTNORM_OK;
  }

  fastnorm_status prepare_mla_decode(const MlaDecodeDesc&, const MlaDecodePlan&, Error&) override {
    return FASTNORM_OK;
  }
  fastnorm_status run_mla_decode(const MlaDecodeDesc&, const MlaDecodePlan&, void*, void*,
                                 Error&) override {
    return FASTNORM_OK;
  }
};

}  // namespace

const char* variant_text(const NormEntry& entry) {
  return has_stages_line(entry) ? stages_text(entry) : kVariantTexts[entry.line];
}

std::span<const NormEntry> norm_table(const ArchSpec& arch) {
  return table_of<kSm80, kSm90, kSm100, kSm120>(arch);
}

DeviceFacts make_facts(const ArchSpec& arch, int32_t device_id, int32_t multiprocessors,
                       int32_t max_cluster_blocks) {
  DeviceFacts facts;
  facts.device_type = FASTNORM_DEVICE_CUDA;
  facts.device_id = device_id;
  facts.arch = &arch;
  facts.multiprocessors = multiprocessors;
  facts.max_cluster_blocks = max_cluster_blocks;
  facts.pdl = launches_early(arch);
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
