// The addresses of the forward kernels of each unit, in the order of norm_list.h's table. Data only, so that looking at them runs no
// code of an instruction set that the machine may lack.
#pragma once

#include "cpu/norm_list.h"
#include "cpu/norm_params.h"

namespace fastnorm::cpu {

struct NormKernels {
  NormKernel at[kNormKernels];
};

extern const NormKernels kNormScalar;
extern const NormKernels kNormAvx2;
extern const NormKernels kNormAvx512;
extern const NormKernels kNormAvx512Bf16;  // those of bf16, where AVX512_BF16 is there too
extern const NormKernels kNormNeon;

}  // namespace fastnorm::cpu
