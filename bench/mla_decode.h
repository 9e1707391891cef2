// MLA decode in the benchmark: its cases, what a call moves and computes, its arguments, its table.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/devices.h"
#include "bench/line_call.h"
#include "fastnorm/fastnorm.h"

namespace bench {

struct MlaDecodeCase {
  std::string text;              // as it was asked for: "128x4096:128:2cp64f656k2048"
  std::vector<int64_t> lengths;  // cached tokens of each request
  int64_t heads = 0, new_tokens = 1, page = 64;
  int64_t format = 0;  // bytes of a row with FP8 codes; 0: rows of the dtype
  // Rows that each new token selects, of this cache and of a second one of the same shape; 0: all
  // of its request, and no second one.
  int64_t topk = 0, extra_topk = 0;
  bool causal = false;
  std::string dtype;

  int64_t element_bytes() const { return dtype == "f32" ? 4 : 2; }
  int64_t requests() const { return static_cast<int64_t>(lengths.size()); }
  int64_t tokens() const { return requests() * new_tokens; }
  int64_t rows() const { return tokens() * heads; }
  int64_t row_bytes() const { return format != 0 ? format : 576 * element_bytes(); }
  int64_t columns() const { return format == 584 ? 512 : 576; }  // of a query
  int64_t pages() const;
  int64_t pages_of_longest() const;
  int64_t total() const;
  // Rows that are read: cached tokens, or what new tokens select.
  int64_t rows_read() const { return topk != 0 ? tokens() * (topk + extra_topk) : total(); }
  int64_t cache_bytes() const { return pages() * page * row_bytes(); }
  int64_t query_bytes() const { return rows() * columns() * element_bytes(); }
  int64_t output_bytes() const { return rows() * 512 * element_bytes(); }
  // Query and cached latents read once, o written once.
  int64_t bytes_moved() const { return rows_read() * row_bytes() + query_bytes() + output_bytes(); }
  // Multiply-adds of both products, times two; causal: of the pairs that are allowed.
  double flops() const;
};

// "LENGTHS:HEADS[:NEW][c][pPAGE][fBYTES][kTOPK[+EXTRA]]", LENGTHS being 128x4096 or
// 4641+45118+1730; c: causal. Or the name of a list: "page1", "long", "heads", "small". Throws
// std::invalid_argument.
std::vector<MlaDecodeCase> make_mla_decode_cases(const std::vector<std::string>& shapes,
                                                 const std::vector<std::string>& dtypes);

// Rates of the same run; 0: not measured.
struct MlaDecodeCeilings {
  double read_gb_per_s = 0, copy_gb_per_s = 0, matmul_tflop_per_s = 0;
};

struct MlaDecodeResult {
  double us = 0, spread = 0;  // of a call whose plan is there
  double plan_us = -1;        // that the plan adds; below 0: there is none
  std::string kernel;
  uint64_t workspace_bytes = 0;
  nlohmann::json more = nlohmann::json::object();
};

// Addresses of a call's tensors.
struct MlaDecodeBuffers {
  char *query, *cache, *o, *lse;
  int32_t *lengths, *table;
  // Of selected rows.
  int32_t *indices = nullptr, *extra_indices = nullptr;
  char* extra = nullptr;
  float* scale = nullptr;
};

// The call of a case: fused query and cache, a block table.
class MlaDecodeCall {
 public:
  MlaDecodeCall(const MlaDecodeCase& c, int32_t device_type, const MlaDecodeBuffers& b);

  void set(const MlaDecodeBuffers& b);
  void reuse_plan(bool reuse) { args()->reuse_plan = reuse ? 1 : 0; }
  fastnorm_info query(fastnorm_context* context) const;
  void prepare(fastnorm_context* context) const;
  void run(fastnorm_context* context, void* workspace, size_t workspace_bytes, void* stream) const;

 private:
  fastnorm_mla_decode_args* args() const { return &call_.args<fastnorm_mla_decode_args>(); }

  LineCall call_;
  fastnorm_tensor *q_nope_ = call_.tensor("q_nope"), *q_pe_ = call_.tensor("q_pe"),
                  *ckv_ = call_.tensor("ckv"), *kpe_ = call_.tensor("kpe"),
                  *lengths_ = call_.tensor("kv_len"), *table_ = call_.tensor("page_table"),
                  *o_ = call_.tensor("o"), *lse_ = call_.tensor("lse"),
                  *bytes_ = call_.tensor("cache"), *scale_ = call_.tensor("cache_scale"),
                  *indices_ = call_.tensor("indices"), *extra_ckv_ = call_.tensor("extra_ckv"),
                  *extra_kpe_ = call_.tensor("extra_kpe"),
                  *extra_bytes_ = call_.tensor("extra_cache"),
                  *extra_indices_ = call_.tensor("extra_indices");
};

// The block table of a case, [requests, pages of the longest], with its pages in a random order.
std::vector<int32_t> mla_decode_table(const MlaDecodeCase& c);

// The rows that new tokens select, [tokens, topk]. `seed` tells the caches of a call apart.
std::vector<int32_t> mla_decode_indices(const MlaDecodeCase& c, int64_t topk, uint64_t seed);

// Makes FP8 rows of pages that hold numbers of bf16: codes of magnitude 1/2 to 2, scales of 1.
void make_fp8_rows(char* cache, const MlaDecodeCase& c, int64_t pages);

// As time_all, for these cases.
int time_all_mla_decode(const std::vector<MlaDecodeCase>& cases, const MlaDecodeCeilings& ceilings,
                        const std::function<MlaDecodeResult(const MlaDecodeCase&)>& time,
                        const std::function<void(const nlohmann::json&)>& save,
                        nlohmann::json* document);

}  // namespace bench
