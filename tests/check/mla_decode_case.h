// One MLA decode call to check: what it computes, and its layout in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "check/options.h"
#include "fastnorm/mla_decode.h"
#include "ref/dtype.h"
#include "ref/mla_decode_ref.h"

namespace fastnorm::check {

struct MlaRequest {
  int32_t kv_len = 0;
  int32_t s_q = 1;
};

// Rows that each new token of a sparse call attends to.
struct MlaSelection {
  enum class Lengths : uint8_t { kNone, kOfRequest, kOfToken };

  int32_t topk = -1;  // -1: none
  int32_t pages = 1, page = 64;
  Lengths lengths = Lengths::kNone;

  bool given() const { return topk >= 0; }
};

// What the scales of FP8 codes are, and the sinks of heads.
enum class MlaScales : uint8_t { kPowersOfTwo, kAny };
enum class MlaSinks : uint8_t { kNone, kNormal, kExtreme };

struct MlaCase {
  const char* group = "";
  ref::Type dtype = ref::Type::kBF16;
  std::vector<MlaRequest> requests;
  int32_t heads = 16;
  int32_t page = 64;
  bool causal = false;
  bool base_2 = false;
  ref::MlaFormat format = ref::MlaFormat::kNone;
  MlaScales scales = MlaScales::kPowersOfTwo;
  MlaSinks sinks = MlaSinks::kNone;
  MlaSelection selected, extra;  // sparse: requests have s_q new tokens each, and no kv_len
  bool csr = false;              // page lists in one array
  bool ragged = false;           // with qo_indptr
  bool fused_cache = true;       // one [pages, page, 576]
  bool fused_query = false;
  bool padded = false;  // strides longer than rows, in multiples of 16 bytes
  bool odd = false;     // CPU: padded by one element, and addresses offset by one
  bool lse = true;
  bool lse_by_head = false;  // strides of lse: heads outermost
  int32_t spare_rows = 0;    // of q, after those of all requests; with ragged
  int32_t split_tokens = 0;
  double sm_scale = 1.0 / 24;
  double q_scale = 1;  // magnitude of the queries
  uint64_t seed = 0;

  // "mla_decode dense bf16 .."
  std::string text() const;
  int64_t tokens() const;  // of all requests
  int64_t macs() const;    // products of all rows
  bool sparse() const { return selected.given(); }
  bool fp8() const { return format != ref::MlaFormat::kNone; }
};

// All cases, in the same order on all machines: those of other libraries' tests, and ours. CPU:
// also f32, and without the slow ones.
std::vector<MlaCase> make_mla_cases(bool cuda, const Options& options);

}  // namespace fastnorm::check
