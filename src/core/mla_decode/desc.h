// One MLA decode call in canonical form: what the checks make of the caller's tensors, for planning
// and the kernels. Strides are in bytes. Defaults are filled in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "core/common/dtype.h"
#include "core/mla_decode/work.h"
#include "fastnorm/mla_decode.h"

namespace fastnorm {

// What the rows of a cache are made of.
enum class MlaCacheFormat : uint8_t { kRows, kFp8Blocks, kFp8Tensor, kFp8Pages };

// By MlaCacheFormat, whose numbers are those of fastnorm_mla_cache_format.
struct MlaCacheLayout {
  const char* name;
  int32_t row_bytes;  // of FP8 formats
  int32_t nope;       // columns of q_nope
};
inline constexpr MlaCacheLayout kMlaCacheLayouts[] = {
    {"FASTNORM_MLA_CACHE_ROWS (0)", 0, kMlaLatent},
    {"FASTNORM_MLA_CACHE_BYTES_656 (1)", 656, kMlaLatent},
    {"FASTNORM_MLA_CACHE_BYTES_576 (2)", 576, kMlaLatent},
    {"FASTNORM_MLA_CACHE_BYTES_584 (3)", 584, kMlaLatent - kMlaRope},
};

inline constexpr int kMlaCacheFormats = 4;
static_assert(std::size(kMlaCacheLayouts) == kMlaCacheFormats);

// A tensor of contiguous rows with two leading dimensions. Element (i, j, k) is at data + i * outer
// + j * inner + k elements.
struct MlaDecodeTensor {
  std::byte* data = nullptr;  // nullptr = absent or empty
  int64_t outer = 0;          // bytes from token to token, or from page to page
  int64_t inner = 0;          // bytes from head to head, or from row to row of a page
};

// The rows of one cache that each new token attends to. Strides are in elements.
struct MlaDecodeSelection {
  const int32_t* indices = nullptr;  // [batch][s_q][topk]; nullptr = no selection
  int64_t outer = 0, inner = 0;      // from request to request, and from token to token
  int64_t topk = 0;
  const int32_t* lengths = nullptr;  // [batch][s_q]; nullptr = topk
  int64_t length_outer = 0, length_inner = 0;
  bool per_token = false;  // a length for each new token, in place of one for each request
};

// The second cache of a sparse call.
struct MlaDecodeExtra {
  MlaDecodeTensor ckv, kpe;
  int32_t pages = 0, page_size = 1;
  MlaDecodeSelection selection;
};

struct MlaDecodeDesc {
  int64_t tokens = 0;         // N, new tokens of all requests
  int32_t heads = 1;          // H
  int32_t batch = 0;          // B
  int32_t max_s_q = 0;        // most new tokens of a request; at most N
  int32_t pages = 0;          // of the cache
  int32_t page_size = 1;      // tokens of a page
  Dtype dtype = Dtype::kF32;  // of q_nope, q_pe, ckv, kpe and o
  double sm_scale = 0;
  bool causal = false;
  bool lse_base_2 = false;
  bool reuse_plan = false;
  int32_t split_tokens = 0;       // 0 = automatic
  int64_t total_kv_hint = 0;      // 0 = unknown
  int32_t profile_events = 0;     // of a warpgroup; 0 = no profile
  void* parallel_user = nullptr;  // of the caller's parallel loop; nullptr = the context's
  uint32_t pdl = 0;               // kPdlWait and kPdlTrigger; before with_pdl() also kNoPdl

  MlaCacheFormat format = MlaCacheFormat::kRows;
  bool sparse = false;  // rows by `selection`, in place of kv_len and page_table
  bool has_extra = false;

  MlaDecodeTensor q_nope, q_pe, o;
  MlaDecodeTensor ckv, kpe;             // FP8 formats: the bytes of the cache are ckv
  MlaDecodeSelection selection;         // of a sparse call
  MlaDecodeExtra extra;                 // with has_extra
  const float* cache_scale = nullptr;   // nullptr = 1
  const float* sink = nullptr;          // [heads]; nullptr = none
  MlaDecodeTensor lse;                  // f32, one value a row; data nullptr = not stored
  const int32_t* kv_len = nullptr;      // [batch]
  const int32_t* page_table = nullptr;  // [batch][table_columns], or with kv_indptr [table_columns]
  int64_t table_stride = 0;             // elements from request to request; 0 with kv_indptr
  int64_t table_columns = 0;            // pages that a request's list may have, or of all lists
  const int32_t* kv_indptr = nullptr;   // [batch + 1], or nullptr
  const int32_t* qo_indptr = nullptr;   // [batch + 1], or nullptr: each request has max_s_q tokens
  std::byte* profile = nullptr;
  uint64_t profile_bytes = 0;  // of the caller's buffer

  bool empty() const { return tokens == 0 || batch == 0; }
  // Packed query rows of a request: token * heads + head.
  int64_t rows() const { return int64_t{max_s_q} * heads; }
  // Whether rows of the cache are gathered one by one: those of FP8 caches, and selected ones.
  bool gathers() const { return format != MlaCacheFormat::kRows || sparse; }
  const MlaCacheLayout& layout() const { return kMlaCacheLayouts[static_cast<int>(format)]; }
};

}  // namespace fastnorm
