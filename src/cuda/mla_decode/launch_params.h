// From a described and planned MLA decode call to what its kernels get. CUDA-free.
#pragma once

#include "core/mla_decode/desc.h"
#include "core/mla_decode/plan.h"
#include "cuda/mla_decode/params.h"

namespace fastnorm::cuda {

// One tensor map of rank 4 over 16-bit elements. The innermost dimension has 64 columns.
struct MlaDecodeBox {
  const char* data;
  uint64_t extent[3];  // behind the columns
  int64_t stride[3];   // bytes
  uint32_t box[3];
};

struct MlaDecodeBoxes {
  MlaDecodeBox q_nope, q_pe, ckv, kpe, o;
};

PageSize make_page_size(int32_t size);

// Where the parts of `plan` lie in `workspace`, and everything else but tensor maps.
MlaDecodeParams make_mla_decode_params(const MlaDecodeDesc& desc, const MlaDecodePlan& plan,
                                       void* workspace);

// Maps that the kernel does not use cover one row.
MlaDecodeBoxes make_mla_decode_boxes(const MlaDecodeDesc& desc, const MlaDecodePlan& plan);

}  // namespace fastnorm::cuda
