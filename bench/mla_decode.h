// MLA decode in the benchmark: its cases, what a call moves and computes, its arguments, its table.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/devices.h"
#include "fastnorm/fastnorm.h"

namespace bench {

struct MlaDecodeCase {
  std::string text;              // as it was asked for: "128x4096:128:2cp64"
  std::vector<int64_t> lengths;  // cached tokens of each request
  int64_t heads = 0, new_tokens = 1, page = 64;
  bool causal = false;
  std::string dtype;

  int64_t element_bytes() const { return dtype == "f32" ? 4 : 2; }
  int64_t requests() const { return static_cast<int64_t>(lengths.size()); }
  int64_t rows() const { return requests() * new_tokens * heads; }
  int64_t pages() const;
  int64_t pages_of_longest() const;
  int64_t total() const;
  int64_t cache_bytes() const { return pages() * page * 576 * element_bytes(); }
  int64_t query_bytes() const { return rows() * 576 * element_bytes(); }
  int64_t output_bytes() const { return rows() * 512 * element_bytes(); }
  // Query and cached latents read once, o written once.
  int64_t bytes_moved() const {
    return total() * 576 * element_bytes() + query_bytes() + output_bytes();
  }
  // Multiply-adds of both products, times two; causal: of the pairs that are allowed.
  double flops() const;
};

// "LENGTHS:HEADS[:NEW][c][pPAGE]", LENGTHS being 128x4096 or 4641+45118+1730; c: causal. Or the
// name of a list: "page1", "long", "heads", "small". Throws std::invalid_argument.
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
};

// Arguments of a case: fused query and cache, a block table. Not copyable: the arguments point
// inside.
class MlaDecodeCall {
 public:
  MlaDecodeCall(const MlaDecodeCase& c, int32_t device_type, const MlaDecodeBuffers& b);
  MlaDecodeCall(const MlaDecodeCall&) = delete;
  MlaDecodeCall& operator=(const MlaDecodeCall&) = delete;

  void set(const MlaDecodeBuffers& b);
  void reuse_plan(bool reuse) { args_.reuse_plan = reuse ? 1 : 0; }
  fastnorm_info query(fastnorm_context* context) const;
  void prepare(fastnorm_context* context) const;
  void run(fastnorm_context* context, void* workspace, size_t workspace_bytes, void* stream) const;

 private:
  int64_t query_shape_[2][3], cache_shape_[2][3], query_strides_[3], cache_strides_[3], o_shape_[3],
      batch_, table_shape_[2];
  fastnorm_tensor q_nope_, q_pe_, ckv_, kpe_, lengths_, table_, o_, lse_;
  fastnorm_mla_decode_args args_ = {};
};

// The block table of a case, [requests, pages of the longest], with its pages in a random order.
std::vector<int32_t> mla_decode_table(const MlaDecodeCase& c);

// As time_all, for these cases.
int time_all_mla_decode(const std::vector<MlaDecodeCase>& cases, const MlaDecodeCeilings& ceilings,
                        const std::function<MlaDecodeResult(const MlaDecodeCase&)>& time,
                        const std::function<void(const nlohmann::json&)>& save,
                        nlohmann::json* document);

int bench_mla_decode_cpu(const std::vector<MlaDecodeCase>& cases, const Options& options);
int bench_mla_decode_cuda(int id, const std::vector<MlaDecodeCase>& cases, const Options& options);

}  // namespace bench
