// The launches of any planned call. CUDA-free.
#pragma once

#include "core/backend.h"
#include "core/common/check.h"
#include "cuda/families.h"

namespace fastnorm::cuda {

// Neighbours may share a launch.
template <typename Use>
fastnorm_status for_each_launch(std::span<const NormCall> calls, const ArchSpec& arch, void*,
                                Use use) {
  for (size_t count = 0; !calls.empty(); calls = calls.subspan(count)) {
    count = calls_together(calls);
    FASTNORM_TRY(calls[0].desc->has_stages ? launch_stages(calls[0], arch, use)
                                           : launch_together(calls.first(count), arch, use));
  }
  return FASTNORM_OK;
}

// CudaDevice::run_mla_decode() has those of MLA decode, whose tensor maps the driver makes.
template <typename Use>
fastnorm_status for_each_launch(const MlaDecodeCall&, const ArchSpec&, void*, Use) {
  return FASTNORM_OK;
}

// Calls use(launch, make), as launch.h says, for each launch of a call. The overload for the call's
// type is that of its family's launch_params.h, or one of those above.
template <typename Use>
fastnorm_status for_each_launch(const AnyCall& call, const ArchSpec& arch, void* workspace,
                                Use use) {
  return std::visit(
      [&](const auto& planned) { return for_each_launch(planned, arch, workspace, use); }, call);
}

}  // namespace fastnorm::cuda
