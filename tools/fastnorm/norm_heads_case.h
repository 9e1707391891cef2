// A layer's query, key and value heads for norm_heads: tensors of a call, and the formula in double
// precision.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtype.h"
#include "machine.h"
#include "norm_options.h"

namespace fastnorm::tool {

// Parts of the call.
enum HeadsPart { kQuery, kKey, kValue, kHeadsParts };

struct NormHeadsOptions {
  int64_t tokens = 16, query_heads = 32, key_heads = 8, columns = 128, page = 16;
  int64_t table_rows = 4096, seed = 0;
  int32_t rope_dim = -1, rope_offset = 0, cache_block = 0, cache_rotation = 0, cache_tail = 0;
  std::string dtype = "bf16", table_dtype = "f32", parameter_dtype, y_dtype;  // empty: x's
  std::string rope_rounding = "once", cache = "own", cache_scheme = "per-tensor";
  bool no_norm = false, no_weight = false, head_weights = false, across_heads = false;
  bool interleaved = false, inverse = false, from_rounded = false, cache_pow2 = false;
  bool separate = false, in_place = false;
  std::vector<int32_t> mrope;  // pairs of each axis of positions; empty: one row of positions
  bool mrope_interleaved = false;
  bool statistics = false, sumsq = false, statistics_in = false, no_y = false;
  // The heads of a sparse attention's indexer: the query has no norm, and codes with head weights;
  // the codes of the key go to the cache alone, and there is no value.
  bool indexer = false;
  double head_weights_factor = 0;
  NormOptions norm;

  bool has_norm(HeadsPart part) const {
    return !no_norm && part != kValue && !(indexer && part == kQuery);
  }
  bool has_codes_of_y(HeadsPart part) const {
    return norm.quantises() && part != kValue && !(indexer && part == kKey);
  }
  bool has_cache() const { return cache != "none"; }
  bool has_codes() const { return cache.rfind("f8", 0) == 0 || cache == "i8"; }
};

// A tensor on the host; without content where nothing will run.
struct HostTensor {
  fastnorm_dtype dtype = {};
  std::vector<int64_t> shape;  // empty = there is none
  std::vector<std::byte> content;

  bool present() const { return !shape.empty(); }
  size_t elements() const;
  size_t bytes() const { return elements() * element_bytes(dtype); }
};

// Values of row `row`, of as many elements as the last extent; number `i`, of i32 or i64.
std::vector<double> row_of(const HostTensor& tensor, int64_t row);
int64_t index_at(const HostTensor& tensor, int64_t i);

// Blocks of a machine for the tensors of a call.
class CallMemory {
 public:
  explicit CallMemory(const Machine& machine) : machine_(machine) {}

  std::byte* place(size_t bytes, const std::byte* content) {
    blocks_.push_back(machine_.allocate(std::max<size_t>(bytes, 1)));
    std::byte* data = blocks_.back().get();
    const std::vector<std::byte> zeros(content == nullptr ? bytes : 0);
    machine_.upload(data, content != nullptr ? content : zeros.data(), bytes);
    return data;
  }

 private:
  const Machine& machine_;
  std::vector<Block> blocks_;
};

struct NormHeadsInputs {
  HostTensor x[kHeadsParts], weight[2], cos, sin, positions, slots, clamp_scale, rotation_signs;
  HostTensor mean_in[2], rstd_in[2];  // of query and key
  HostTensor bias, head_weights;      // of the indexer's key and query
  int64_t pages = 0;

  // Shapes of a layer, without content.
  explicit NormHeadsInputs(const NormHeadsOptions& options);
  NormHeadsInputs() = default;
  void fill(uint64_t seed);
};

// An output and where it is. Its tokens are apart by token_bytes where it lies in the fused buffer.
struct HeadsOutput {
  std::string name;
  HeadsPart part;
  std::byte* data;
  fastnorm_dtype dtype;
  std::vector<int64_t> shape;
  size_t token_bytes = 0;  // 0: compact
  bool in_place = false;

  size_t bytes() const;
};

// One call and its tensors.
class NormHeadsCall {
 public:
  // Memory of so many bytes, with this content where it is not NULL.
  using Place = std::function<std::byte*(size_t bytes, const std::byte* content)>;

  NormHeadsCall(const NormHeadsOptions& options, const NormHeadsInputs& inputs,
                const Target& target, const Place& place);
  NormHeadsCall(const NormHeadsCall&) = delete;
  NormHeadsCall& operator=(const NormHeadsCall&) = delete;

  const fastnorm_norm_heads_args& args() const { return *args_; }
  const fastnorm_norm_heads_part* const* parts() const { return parts_; }
  int32_t count() const { return call_.count(); }
  const std::vector<HeadsOutput>& outputs() const { return outputs_; }

  fastnorm_info query(fastnorm_context* context) const;
  // Outputs to bytes of 0xff, so that what is not written is found, and inputs as they were.
  void reset(const Machine& machine) const;
  std::vector<std::byte> read(const Machine& machine, const HeadsOutput& output) const;

 private:
  // Give the call a tensor.
  void give(const std::string& path, std::byte* data, fastnorm_dtype dtype,
            std::vector<int64_t> shape, std::vector<int64_t> strides = {});
  void input(const std::string& path, const HostTensor& tensor);
  void output(const std::string& path, const char* name, HeadsPart part, fastnorm_dtype dtype,
              std::vector<int64_t> shape);
  void give_scale(const std::string& path, const std::vector<int64_t>& shape);
  void give_rows(const std::string& path, HeadsPart part);
  void place_rows();
  void describe(HeadsPart part, const std::string& norm);
  void add_statistics(HeadsPart part);
  void add_quantized(HeadsPart part);
  void add_cache(HeadsPart part);
  std::string path(const char* field) const;  // of the part that is described

  struct Restored {
    std::byte* data;
    std::vector<std::byte> content;
  };

  const NormHeadsOptions& options_;
  const NormHeadsInputs& inputs_;
  const Place& place_;
  std::vector<HeadsOutput> outputs_;
  std::vector<Restored> restored_;  // of in-place calls
  std::byte* rows_[kHeadsParts] = {};
  size_t token_bytes_[kHeadsParts] = {};
  int32_t described_ = -1;  // number of the part that is described
  support::Call call_{"norm_heads"};
  const fastnorm_norm_heads_args* args_ = nullptr;
  const fastnorm_norm_heads_part* const* parts_ = nullptr;
};

// How far the results are from the formula. `worst` is the largest error as a share of what is
// allowed: at most 1 is right.
struct NormHeadsErrors {
  int64_t rows = 0, wrong_rows = 0, cached_rows = 0, touched_slots = 0, statistics = 0;
  int64_t padding = 0, touched_padding = 0;  // tokens, and those of which something was written
  double max_error = 0, worst = 0;
};

// Compares every stored row and statistic of `check_tokens` tokens, spread over the call. `results`
// are the outputs' bytes, in their order. Slots that no token has must be as reset() left them, and
// so must outputs of padding.
NormHeadsErrors compare_norm_heads(const NormHeadsOptions& options, const NormHeadsInputs& inputs,
                                   const std::vector<HeadsOutput>& outputs,
                                   const std::vector<std::vector<std::byte>>& results,
                                   int64_t check_tokens);

}  // namespace fastnorm::tool
