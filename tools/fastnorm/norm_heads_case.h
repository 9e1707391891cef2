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
  int32_t rope_dim = -1, rope_offset = 0, cache_block = 0, cache_rotation = 0;
  std::string dtype = "bf16", table_dtype = "f32", parameter_dtype, y_dtype;  // empty: x's
  std::string rope_rounding = "once", cache = "own", cache_scheme = "per-tensor";
  bool no_norm = false, no_weight = false, head_weights = false, across_heads = false;
  bool interleaved = false, inverse = false, from_rounded = false, cache_pow2 = false;
  bool separate = false, in_place = false;
  std::vector<int32_t> mrope;  // pairs of each axis of positions; empty: one row of positions
  bool mrope_interleaved = false;
  bool statistics = false, sumsq = false, statistics_in = false, no_y = false;
  NormOptions norm;

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

// The tensors of one call. Not movable: the arguments point inside.
class NormHeadsCall {
 public:
  // Memory of so many bytes, with this content where it is not NULL.
  using Place = std::function<std::byte*(size_t bytes, const std::byte* content)>;

  NormHeadsCall(const NormHeadsOptions& options, const NormHeadsInputs& inputs,
                const Target& target, const Place& place);
  NormHeadsCall(const NormHeadsCall&) = delete;
  NormHeadsCall& operator=(const NormHeadsCall&) = delete;

  const fastnorm_norm_heads_args& args() const { return args_; }
  const fastnorm_norm_heads_part* const* parts() const { return parts_; }
  int32_t count() const { return count_; }
  const std::vector<HeadsOutput>& outputs() const { return outputs_; }

  fastnorm_info query(fastnorm_context* context) const;
  // Outputs to bytes of 0xff, so that what is not written is found, and inputs as they were.
  void reset(const Machine& machine) const;
  std::vector<std::byte> read(const Machine& machine, const HeadsOutput& output) const;

 private:
  const fastnorm_tensor* view(std::byte* data, fastnorm_dtype dtype, std::vector<int64_t> shape,
                              std::vector<int64_t> strides = {});
  const fastnorm_tensor* input(const HostTensor& tensor);
  const fastnorm_tensor* output(const char* name, HeadsPart part, fastnorm_dtype dtype,
                                std::vector<int64_t> shape);
  void place_rows();
  void set_mrope();
  void describe(HeadsPart part, const fastnorm_norm_args& norm);
  void add_statistics(HeadsPart part);
  void add_quantized(HeadsPart part, const fastnorm_norm_args& norm);
  void add_cache(HeadsPart part, const fastnorm_norm_args& norm);

  struct Restored {
    std::byte* data;
    std::vector<std::byte> content;
  };

  const NormHeadsOptions& options_;
  const NormHeadsInputs& inputs_;
  const Target target_;
  const Place& place_;
  std::vector<std::unique_ptr<TensorView>> views_;
  std::vector<HeadsOutput> outputs_;
  std::vector<Restored> restored_;  // of in-place calls
  std::byte* rows_[kHeadsParts] = {};
  size_t token_bytes_[kHeadsParts] = {};
  fastnorm_norm_heads_part part_[kHeadsParts] = {};
  fastnorm_quant given_quant_ = {};                                         // by the options
  fastnorm_quant quant_[kHeadsParts] = {}, cache_quant_[kHeadsParts] = {};  // of part_
  const fastnorm_norm_heads_part* parts_[kHeadsParts] = {};
  int32_t count_ = 0;
  fastnorm_norm_heads_args args_ = {};
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
