#include "cuda/mla_decode/launch.h"

#include "core/common/check.h"
#include "core/common/pdl.h"
#include "cuda/device.h"
#include "cuda/mla_decode/kernels.h"
#include "cuda/mla_decode/launch_params.h"
#include "cuda/mla_decode/maps.h"

namespace fastnorm::cuda {
namespace {

constexpr unsigned kMergeBlocksPerMultiprocessor = 2;

const void* attention_kernel(const MlaDecodeDesc& desc, const MlaDecodePlan& plan) {
  if (plan.tile_rows != kMlaTileRows) {
    return desc.dtype == Dtype::kBF16 ? mla_decode_swapped_kernel<Dtype::kBF16>()
                                      : mla_decode_swapped_kernel<Dtype::kF16>();
  }
  if (desc.gathers()) {
    return desc.dtype == Dtype::kBF16 ? mla_decode_gather_kernel<Dtype::kBF16>(desc.format)
                                      : mla_decode_gather_kernel<Dtype::kF16>(desc.format);
  }
  const bool profiles = desc.profile_events != 0;
  return desc.dtype == Dtype::kBF16 ? mla_decode_kernel<Dtype::kBF16>(profiles)
                                    : mla_decode_kernel<Dtype::kF16>(profiles);
}

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

fastnorm_status encode(EncodeTiled encode_tiled, Dtype dtype, const char* name,
                       const MlaDecodeBox& box, CUtensorMap* map, Error& error) {
  const cuuint64_t extents[4] = {64, box.extent[0], box.extent[1], box.extent[2]};
  const cuuint64_t strides[3] = {static_cast<cuuint64_t>(box.stride[0]),
                                 static_cast<cuuint64_t>(box.stride[1]),
                                 static_cast<cuuint64_t>(box.stride[2])};
  const cuuint32_t boxes[4] = {64, box.box[0], box.box[1], box.box[2]};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUresult result = encode_tiled(
      map,
      dtype == Dtype::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
      const_cast<char*>(box.data), extents, strides, boxes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      // Of 128 bytes: rows of 1152 bytes begin in the middle of 256 ones.
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  FASTNORM_REQUIRE(result == CUDA_SUCCESS, FASTNORM_ERROR_DEVICE,
                   "cuTensorMapEncodeTiled of %s failed with %d; its extents are %llu, %llu and "
                   "%llu, its strides %lld, %lld and %lld bytes",
                   name, static_cast<int>(result), static_cast<unsigned long long>(box.extent[0]),
                   static_cast<unsigned long long>(box.extent[1]),
                   static_cast<unsigned long long>(box.extent[2]),
                   static_cast<long long>(box.stride[0]), static_cast<long long>(box.stride[1]),
                   static_cast<long long>(box.stride[2]));
  return FASTNORM_OK;
}

fastnorm_status encode_maps(EncodeTiled encode_tiled, const MlaDecodeDesc& desc,
                            const MlaDecodePlan& plan, MlaDecodeMaps* maps, Error& error) {
  const MlaDecodeBoxes boxes = make_mla_decode_boxes(desc, plan);
  FASTNORM_TRY(encode(encode_tiled, desc.dtype, "q_nope", boxes.q_nope, &maps->q_nope, error));
  FASTNORM_TRY(encode(encode_tiled, desc.dtype, "q_pe", boxes.q_pe, &maps->q_pe, error));
  if (!desc.gathers()) {
    FASTNORM_TRY(encode(encode_tiled, desc.dtype, "ckv", boxes.ckv, &maps->ckv, error));
    FASTNORM_TRY(encode(encode_tiled, desc.dtype, "kpe", boxes.kpe, &maps->kpe, error));
  }
  return encode(encode_tiled, desc.dtype, "o", boxes.o, &maps->o, error);
}

}  // namespace

fastnorm_status load_mla_decode(const MlaDecodeDesc& desc, const MlaDecodePlan& plan,
                                Error& error) {
  const void* const attention = attention_kernel(desc, plan);
  cudaFuncAttributes attributes;  // asking for them loads a kernel
  FASTNORM_CUDA_TRY(cudaFuncGetAttributes(&attributes, mla_decode_plan_kernel()));
  FASTNORM_CUDA_TRY(cudaFuncGetAttributes(&attributes, mla_decode_merge_kernel(desc.dtype)));
  FASTNORM_CUDA_TRY(cudaFuncSetAttribute(attention, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(mla_decode_shared_bytes())));
  FASTNORM_CUDA_TRY(cudaFuncGetAttributes(&attributes, attention));
  return FASTNORM_OK;
}

fastnorm_status launch_mla_decode_plan(const MlaDecodeDesc& desc, const MlaDecodePlan& plan,
                                       void* workspace, cudaStream_t stream, Error& error) {
  MlaDecodeParams params = make_mla_decode_params(desc, plan, workspace);
  void* arguments[] = {&params};
  const bool early = (desc.pdl & kPdlWait) != 0;
  return launch_kernel(mla_decode_plan_kernel(), {1, 1, mla_decode_plan_threads(), 0, 1, early},
                       arguments, stream, error);
}

fastnorm_status launch_mla_decode(const MlaDecodeDesc& desc, const MlaDecodePlan& plan,
                                  int32_t multiprocessors, void* encode_tiled, void* workspace,
                                  cudaStream_t stream, Error& error) {
  MlaDecodeParams params = make_mla_decode_params(desc, plan, workspace);
  MlaDecodeMaps maps = {};
  FASTNORM_TRY(encode_maps(reinterpret_cast<EncodeTiled>(encode_tiled), desc, plan, &maps, error));
  void* of_params[] = {&params};
  void* of_both[] = {&maps, &params};
  // The call's kernels start early behind each other, and the first one where the call asks for it.
  const bool early = !desc.reuse_plan || (desc.pdl & kPdlWait) != 0;
  if (!desc.reuse_plan) {
    FASTNORM_TRY(launch_mla_decode_plan(desc, plan, workspace, stream, error));
  }
  const LaunchShape attention = {static_cast<uint32_t>(plan.m_tiles),
                                 static_cast<uint32_t>(plan.parts),
                                 mla_decode_threads(desc.gathers(), plan.tile_rows),
                                 static_cast<uint32_t>(mla_decode_shared_bytes()),
                                 1,
                                 early};
  FASTNORM_TRY(launch_kernel(attention_kernel(desc, plan), attention, of_both, stream, error));
  if (!plan.may_split) return FASTNORM_OK;
  const uint32_t blocks = kMergeBlocksPerMultiprocessor * static_cast<uint32_t>(multiprocessors);
  return launch_kernel(mla_decode_merge_kernel(desc.dtype),
                       {blocks, 1, mla_decode_merge_threads(), 0, 1, true}, of_params, stream,
                       error);
}

}  // namespace fastnorm::cuda
