#include "core/norm_stages.h"

#include <cinttypes>

#include "core/check.h"
#include "core/norm_plan.h"

namespace fastnorm {
namespace {

// The general kernels: a warp has a row up to this many bytes, a block has a longer one.
constexpr int64_t kWarpRowBytes = 2048;
constexpr int16_t kWarp = 32, kBlock = 256;

int32_t find_kernel(const StagesKernelList& list, Dtype dtype, StagesForm form, int threads) {
  for (int32_t i = 0; i < list.count; ++i) {
    const StagesVariant& v = list.entries[i].variant;
    if (v.dtype == dtype && v.form == form && v.threads == threads) return i;
  }
  return -1;
}

// True if a kernel computes what `desc` asks for.
bool serves(const StagesVariant& v, const NormDesc& d) { return v.dtype == d.dtype; }

fastnorm_status plan_on(const NormDesc& d, const DeviceFacts& facts, int32_t index, NormPlan* plan,
                        Error& error) {
  const StagesEntry& entry = facts.arch->stages->entries[index];
  constexpr int64_t kMostColumns = UINT32_MAX;  // column numbers are 32 bits wide on the device
  FASTNORM_REQUIRE(d.n <= kMostColumns, FASTNORM_ERROR_UNSUPPORTED,
                   "x has rows of %" PRId64
                   " elements and a stage is given; on CUDA a call with stages "
                   "takes %" PRId64,
                   d.n, kMostColumns);
  plan->index = index;
  plan->entry = &entry.norm;
  plan->rows_per_block = rows_per_block(entry.norm.tile);
  plan->blocks = static_cast<uint64_t>((d.rows + plan->rows_per_block - 1) / plan->rows_per_block);
  return check_grid(d, plan->blocks, *facts.arch, error);
}

}  // namespace

fastnorm_status plan_stages_cuda(const NormDesc& d, const DeviceFacts& facts, NormPlan* plan,
                                 Error& error) {
  const bool warp = d.n * dtype_bytes(d.dtype) <= kWarpRowBytes;
  const int32_t index =
      find_kernel(*facts.arch->stages, d.dtype, StagesForm::kGeneral, warp ? kWarp : kBlock);
  FASTNORM_REQUIRE(index >= 0, FASTNORM_ERROR_INTERNAL, "no kernel for stages of %s",
                   dtype_name(d.dtype));
  return plan_on(d, facts, index, plan, error);
}

fastnorm_status plan_stages_for(const NormDesc& d, const DeviceFacts& facts, int32_t index,
                                NormPlan* plan, Error& error) {
  const StagesEntry& entry = facts.arch->stages->entries[index];
  FASTNORM_REQUIRE(d.rows > 0 && d.has_stages && serves(entry.variant, d),
                   FASTNORM_ERROR_UNSUPPORTED, "kernel \"%s\" does not serve this call",
                   entry.norm.name);
  // The totals are those of any kernel.
  FASTNORM_TRY(make_plan(d, facts, {}, plan, error));
  return plan_on(d, facts, index, plan, error);
}

}  // namespace fastnorm
