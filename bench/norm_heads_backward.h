// Gradients of query, key and value heads in the benchmark: cases, what a call moves, its
// arguments.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/norm_heads.h"
#include "fastnorm/fastnorm.h"

namespace bench {

// A layer's gradients of query, key and value, each compact, into one packed gradient of QKV.
struct NormHeadsBackwardCase {
  // The forward: in place, without a cache. `text` has the gradients, too.
  NormHeadsCase heads;
  std::string gradients;  // "all" (dx and dweight), "dx", "across" (all, of one statistic for all
                          // heads of a token), "rope" (dx, without a norm)

  bool normalises() const { return gradients != "rope"; }
  bool across() const { return gradients == "across"; }
  bool wants_weights() const { return gradients == "all" || across(); }
  int64_t turned_heads() const { return heads.query + heads.key; }
  int64_t all_heads() const { return heads.query + 2 * heads.key; }
  int64_t row_bytes() const { return heads.columns * heads.element_bytes(); }
  // The bytes of dy, of dx and of x, in all heads of all tokens.
  int64_t tensor_bytes() const { return heads.tokens * all_heads() * row_bytes(); }
  // rstd of query and key.
  int64_t statistics_bytes() const {
    return normalises() ? heads.tokens * (across() ? 2 : turned_heads()) * 4 : 0;
  }
  // dy of all heads, x of query and key, and statistics are read, dx of all heads is written.
  // Tables, positions, weights and their gradients are few bytes beside them, and not counted.
  int64_t bytes_moved() const {
    const int64_t x = normalises() ? heads.tokens * turned_heads() * row_bytes() : 0;
    return 2 * tensor_bytes() + x + statistics_bytes();
  }
  // Tensors that a plain stream beside it reads. It moves as many bytes in all.
  int reads() const { return normalises() ? 2 : 1; }
  int64_t stream_bytes() const { return (bytes_moved() / (reads() + 1) + 15) / 16 * 16; }
};

inline const NormHeadsCase& heads_of_case(const NormHeadsBackwardCase& c) { return c.heads; }
inline nlohmann::json columns_of_case(const NormHeadsBackwardCase& c) {
  nlohmann::json columns = nlohmann::json::object();
  if (c.normalises()) columns["statistics_bytes"] = c.statistics_bytes();
  return columns;
}

// "TOKENSxQUERY+KEYxHEAD[:GRADIENTS]", GRADIENTS being all, dx, across or rope; or the name of a
// list: "qwen3" (32+8 heads of 128), "olmo2" (32+32, across). Throws std::invalid_argument.
std::vector<NormHeadsBackwardCase> make_norm_heads_backward_cases(
    const std::vector<std::string>& shapes, const std::vector<std::string>& dtypes);

// Addresses of a call's tensors. `rstd` has the query's, then the key's; `weights` the query's
// weight, the key's, and their gradients, of weight_bytes() each.
struct NormHeadsBackwardBuffers {
  char *dy, *x, *dx, *rstd, *weights;
  float *cos, *sin;
  int32_t* positions;
};

class NormHeadsBackwardCall {
 public:
  NormHeadsBackwardCall(const NormHeadsBackwardCase& c, int32_t device_type,
                        const NormHeadsBackwardBuffers& b);

  void set(const NormHeadsBackwardBuffers& b);
  fastnorm_info query(fastnorm_context* context) const;
  void prepare(fastnorm_context* context) const;
  void run(fastnorm_context* context, void* workspace, size_t workspace_bytes, void* stream) const;

  // The bytes of the weight of the longest part: one row, or one for each head.
  static int64_t weight_bytes(const NormHeadsBackwardCase& c) {
    return (c.across() ? c.turned_heads() : 1) * c.row_bytes();
  }

 private:
  static constexpr int kParts = 3;  // query, key, value

  const fastnorm_norm_heads_args* args() const { return &call_.args<fastnorm_norm_heads_args>(); }
  const fastnorm_norm_heads_backward_part* const* parts() const {
    return call_.parts<fastnorm_norm_heads_backward_part>();
  }

  LineCall call_;
  int64_t weight_bytes_;
  fastnorm_tensor *dy_[kParts], *x_[kParts], *dx_[kParts], *rstd_[kParts], *weight_[kParts],
      *dweight_[kParts];
  fastnorm_tensor *cos_ = call_.tensor("cos"), *sin_ = call_.tensor("sin"),
                  *positions_ = call_.tensor("positions");
};

}  // namespace bench
