// The kernels before and after attention: the planner, and the merge of pieces.
#include "cuda/mla_decode/gather_tile.cuh"
#include "cuda/mla_decode/kernels.h"
#include "cuda/mla_decode/merge.cuh"
#include "cuda/mla_decode/plan.cuh"
#include "cuda/mla_decode/swapped.cuh"

namespace fastnorm::cuda {

unsigned mla_decode_threads(bool gathers, int32_t tile_rows) {
  if (tile_rows != kMlaTileRows) return mla::kSwappedThreads;
  return gathers ? mla::kGatherThreads : mla::kThreads;
}
size_t mla_decode_shared_bytes() { return mla::kSharedBytes; }
unsigned mla_decode_plan_threads() { return mla::kPlanThreads; }
unsigned mla_decode_merge_threads() { return mla::kMergeThreads; }

const void* mla_decode_plan_kernel() {
  return reinterpret_cast<const void*>(mla::mla_decode_plan_kernel);
}

const void* mla_decode_merge_kernel(Dtype dtype) {
  return dtype == Dtype::kBF16
             ? reinterpret_cast<const void*>(mla::mla_decode_merge_kernel<Dtype::kBF16>)
             : reinterpret_cast<const void*>(mla::mla_decode_merge_kernel<Dtype::kF16>);
}

}  // namespace fastnorm::cuda
