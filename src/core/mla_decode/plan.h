// What an MLA decode call launches and needs, from its description and the facts of a device. Also
// the device planner's twin on the host. Pure functions of their arguments.
#pragma once

#include <cstdint>

#include "core/common/error.h"
#include "core/mla_decode/desc.h"
#include "core/mla_decode/work.h"
#include "core/norm/plan.h"

namespace fastnorm {

inline constexpr int32_t kMlaGroups = 3;  // warpgroups of a thread block: two compute, one loads

// Offsets are bytes into the workspace, multiples of 256. The plan region is what reuse_plan keeps:
// bytes 0 to partial_lse_offset.
struct MlaDecodePlan {
  const char* kernel = "";           // "" = nothing to do
  int32_t m_tiles = 1;               // of the packed rows of a request
  int32_t parts = 1;                 // the grid is (m_tiles, parts)
  int32_t tile_rows = kMlaTileRows;  // of an m-tile; or kMlaFewerRows
  RowAccess q_access = RowAccess::kRows, o_access = RowAccess::kRows;
  bool boxed_pages = false;         // rows of the cache come by tensor-map boxes
  int32_t split_tiles = 0;          // 0 = automatic
  int32_t s_q = 0;                  // new tokens of each request; with qo_indptr the most of any
  int64_t max_splits = 0;           // requests that may be split
  int64_t max_pieces = 0;           // pieces of all split requests together
  int64_t max_pairs = 0;            // numbers that the first of two pieces may have
  bool may_split = false;           // a kernel of its own merges pieces
  uint64_t parts_offset = 0;        // MlaDecodePart[parts]; the MlaDecodePlanHeader is at 0
  uint64_t splits_offset = 0;       // MlaDecodeSplit[max_splits]
  uint64_t pairs_offset = 0;        // MlaDecodePair[max_pairs][m_tiles]
  uint64_t scan_offset = 0;         // int32[batch + 1]
  uint64_t partial_lse_offset = 0;  // f32[max_pieces][m_tiles * 64], base 2
  uint64_t partial_o_offset = 0;    // f32[max_pieces][m_tiles * 64][512]
  uint64_t workspace_bytes = 0;
  uint64_t profile_bytes = 0;
  int32_t launches = 0;
  uint64_t blocks = 0;  // thread blocks of the attention kernel; CPU: most ranges
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
};

// Bytes from a request's row to its next, if all of them lie that far apart; else 0.
int64_t row_stride(const MlaDecodeDesc& desc, const MlaDecodeTensor& tensor);

// The call as the planner and the kernels of a GPU see it. In a sparse call each new token is a
// request of its own.
MlaDecodeDesc with_token_requests(const MlaDecodeDesc& desc);

// Fails with FASTNORM_ERROR_UNSUPPORTED if the device has no kernel, or if the profile tensor is
// too small.
fastnorm_status plan_mla_decode(const MlaDecodeDesc& desc, const DeviceFacts& facts,
                                MlaDecodePlan* plan, Error& error);

}  // namespace fastnorm
