/** @file fastnorm.h
 *  libfastnorm: RMSNorm and LayerNorm, with what is fused around them, on NVIDIA GPUs and CPUs.
 *  This header includes all others.
 */
#ifndef FASTNORM_FASTNORM_H_
#define FASTNORM_FASTNORM_H_

#include "context.h"             /* IWYU pragma: export */
#include "mla_decode.h"          /* IWYU pragma: export */
#include "norm.h"                /* IWYU pragma: export */
#include "norm_backward.h"       /* IWYU pragma: export */
#include "norm_heads.h"          /* IWYU pragma: export */
#include "norm_heads_backward.h" /* IWYU pragma: export */
#include "peer.h"                /* IWYU pragma: export */
#include "status.h"              /* IWYU pragma: export */
#include "tensor.h"              /* IWYU pragma: export */
#include "version.h"             /* IWYU pragma: export */

#endif /* FASTNORM_FASTNORM_H_ */
