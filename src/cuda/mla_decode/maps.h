// Tensor maps of an MLA decode call, by value in the kernel's parameters.
#pragma once

#include <cuda.h>

namespace fastnorm::cuda {

// Rank 4. Queries and outputs: {64 columns, rows of x, rows of y, sub-tiles}, see RowAccess; boxes
// of 64 rows and all of their sub-tiles (outputs: half of them). The cache: {64 columns, rows of a
// page, sub-tiles, pages}; boxes of one sub-tile and 64 rows, or a page where it has fewer.
struct MlaDecodeMaps {
  CUtensorMap q_nope, q_pe, ckv, kpe, o;
};

}  // namespace fastnorm::cuda
