// NCCL's functions, found at run time.
#pragma once

#include "fastnorm/nccl.h"
#include "nccl/error.h"

namespace fastnorm::nccl {

// Values of ncclDataType_t and ncclRedOp_t, which all versions share.
enum NcclType : int { kNcclUint8 = 1, kNcclFloat16 = 6, kNcclFloat32 = 7, kNcclBfloat16 = 9 };
inline constexpr int kNcclSum = 0;

fastnorm_status set_functions(const fastnorm_nccl_functions* functions);

// `given`: by set_functions().
fastnorm_status find_functions(fastnorm_nccl_functions* functions, bool* given);

// Fails with NCCL's words.
fastnorm_status check(const fastnorm_nccl_functions& functions, const char* name, int result);

}  // namespace fastnorm::nccl
