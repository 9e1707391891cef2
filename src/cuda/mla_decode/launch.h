// Launches of an MLA decode call, on the current device.
#pragma once

#include <cuda_runtime_api.h>

#include "core/common/error.h"
#include "core/mla_decode/desc.h"
#include "core/mla_decode/plan.h"

namespace fastnorm::cuda {

// Loads the kernels of a call and lets the attention kernel have its shared memory.
fastnorm_status load_mla_decode(const MlaDecodeDesc& desc, const MlaDecodePlan& plan, Error& error);

// Queues the planner alone, as launch_mla_decode() does where the plan is not reused.
fastnorm_status launch_mla_decode_plan(const MlaDecodeDesc& desc, const MlaDecodePlan& plan,
                                       void* workspace, cudaStream_t stream, Error& error);

// Queues planner, attention and merge. `encode_tiled` is the driver's cuTensorMapEncodeTiled.
fastnorm_status launch_mla_decode(const MlaDecodeDesc& desc, const MlaDecodePlan& plan,
                                  int32_t multiprocessors, void* encode_tiled, void* workspace,
                                  cudaStream_t stream, Error& error);

}  // namespace fastnorm::cuda
