// The addresses of each unit's forward kernels, in the order of list.h's table. Data only:
// reading them runs no code of an instruction set that the machine may lack.
#pragma once

#include "cpu/norm/list.h"
#include "cpu/norm/params.h"

namespace fastnorm::cpu {

struct NormKernels {
  NormKernel at[kNormKernels];
};

extern const NormKernels kNormScalar;
extern const NormKernels kNormAvx2;
extern const NormKernels kNormAvx512;
extern const NormKernels kNormAvx512Bf16;  // the bf16 kernels for machines with AVX512_BF16
extern const NormKernels kNormNeon;

}  // namespace fastnorm::cpu
