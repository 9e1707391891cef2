/** @file fastnorm.h
 *  libfastnorm computes RMSNorm and LayerNorm, with the operations that are fused around them, on
 *  NVIDIA GPUs and CPUs. This header includes all others.
 *
 *  **Zero is the default.** Later versions may add fields at the end of the structs of options and
 *  arguments. A caller therefore zeroes such a struct, sets its struct_size and then the fields
 *  that it needs. In all other fields 0 means what it says: a NULL pointer is an absent tensor, and
 *  an enum or a number has the value 0. The fields below are the exceptions, because 0 itself would
 *  be of no use there:
 *
 *  | Field                                        | 0 means                            |
 *  |----------------------------------------------|------------------------------------|
 *  | fastnorm_context_options.num_threads         | 1, the calling thread alone        |
 *  | fastnorm_quant.amax_floor                    | 1e-10                              |
 *  | fastnorm_quant.clamp                         | no clamp                           |
 *  | fastnorm_norm_args.group_size                | n, the whole row                   |
 *  | fastnorm_norm_backward_args.group_size       | n, the whole row                   |
 *  | fastnorm_norm_heads_part.head_weights_factor | 1                                  |
 *  | fastnorm_mla_decode_args.max_s_q             | N / B                              |
 *  | fastnorm_mla_decode_args.split_tokens        | the library chooses                |
 *  | fastnorm_mla_decode_args.total_kv_hint       | the sum is not known               |
 *  | fastnorm_peer_options.one_shot_bytes         | a measured size, by rank count     |
 *  | fastnorm_peer_options.wait_ns                | 10 s                               |
 *  | fastnorm_peer_options.rings                  | 8, on CUDA 128                     |
 *  | fastnorm_nccl_options.peer_bytes             | no limit                           |
 *
 *  fastnorm_nccl_options also has the exceptions of fastnorm_peer_options. A factor of 0 is a valid
 *  factor, so a flag says whether the factor alpha is used.
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
