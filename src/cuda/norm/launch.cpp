// The norm family on a CUDA device: one launch for each call, or for two calls that share a kernel.
#include "cuda/launch.h"

#include "core/check.h"
#include "core/pdl.h"
#include "cuda/arch.h"
#include "cuda/device.h"
#include "cuda/norm/launch_params.h"

namespace fastnorm::cuda {
namespace {

constexpr int kPortableSharedBytes =
    40 << 10;  // a kernel's own shared memory is less than 8 of the 48 KB of a block

int shared_bytes(const NormPlan& plan) {
  return launch_shared_bytes(plan.entry->key, plan.entry->tile);
}

// Starts a kernel for calls that share a plan's tile. `params` are its parameters.
fastnorm_status launch(const ArchSpec& arch, const void* kernel, const NormCall& call,
                       const Grid& grid, void* params, cudaStream_t stream, Error& error) {
  void* arguments[] = {params};
  const Tile tile = call.plan->entry->tile;
  LaunchShape shape;
  shape.grid = dim3(grid.x, grid.y);
  shape.threads = static_cast<unsigned>(tile.threads * call.plan->rows_per_block);
  shape.shared_bytes = static_cast<size_t>(shared_bytes(*call.plan));
  shape.cluster = static_cast<unsigned>(tile.blocks);
  shape.early = (call.desc->flags & kPdlWait) != 0 && launches_early(arch);
  return launch_kernel(kernel, shape, arguments, stream, error);
}

}  // namespace

fastnorm_status CudaDevice::prepare_norm(std::span<const NormCall> calls, Error& error) {
  return with_device(error, [&] {
    cudaFuncAttributes attributes;  // reading them loads the kernel
    for (const NormCall& call : calls) {
      if (call.desc->has_stages) {
        FASTNORM_TRY(prepare_stages(call, error));
        continue;
      }
      const auto* const kernel = reinterpret_cast<const void*>(kernels_.at(call.plan->index));
      FASTNORM_CUDA_TRY(cudaFuncGetAttributes(&attributes, kernel));
      FASTNORM_TRY(allow_large(*call.plan, kernel, error));
    }
    for (std::span<const NormCall> left = calls; !left.empty();) {
      const size_t together = calls_together(left);
      Grid grid;
      find_grid(left.first(together), &grid);
      if (grid.form != GridForm::kRows) {
        FASTNORM_CUDA_TRY(cudaFuncGetAttributes(
            &attributes,
            reinterpret_cast<const void*>(kernels_.pair_at(left.front().plan->index, grid.form))));
      }
      left = left.subspan(together);
    }
    return FASTNORM_OK;
  });
}

fastnorm_status CudaDevice::allow_large(const NormPlan& plan, const void* kernel, Error& error) {
  if (shared_bytes(plan) <= kPortableSharedBytes) return FASTNORM_OK;
  std::atomic<bool>& allowed = allowed_large_[static_cast<size_t>(plan.index)];
  if (allowed.load(std::memory_order_relaxed)) return FASTNORM_OK;
  FASTNORM_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         shared_bytes(plan)));
  allowed.store(true, std::memory_order_relaxed);
  return FASTNORM_OK;
}

fastnorm_status CudaDevice::run_together(std::span<const NormCall> calls, cudaStream_t stream,
                                         Error& error) {
  const NormCall& first = calls.front();
  if (first.desc->has_stages) return run_stages(first, stream, error);
  Grid grid;
  find_grid(calls, &grid);
  if (grid.form == GridForm::kRows) {
    const auto* const kernel = reinterpret_cast<const void*>(kernels_.at(first.plan->index));
    FASTNORM_TRY(allow_large(*first.plan, kernel, error));
    NormCallParams params = make_params(*first.desc, *first.plan);
    return launch(*facts.arch, kernel, first, grid, &params, stream, error);
  }
  NormPairParams params = make_pair_params(calls, grid);
  return launch(*facts.arch,
                reinterpret_cast<const void*>(kernels_.pair_at(first.plan->index, grid.form)),
                first, grid, &params, stream, error);
}

fastnorm_status CudaDevice::run_norm(std::span<const NormCall> calls, void*, void* stream,
                                     Error& error) {
  return with_device(error, [&] {
    for (std::span<const NormCall> left = calls; !left.empty();) {
      const std::span<const NormCall> now = left.first(calls_together(left));
      left = left.subspan(now.size());
      FASTNORM_TRY(run_together(now, static_cast<cudaStream_t>(stream), error));
    }
    return FASTNORM_OK;
  });
}

}  // namespace fastnorm::cuda
