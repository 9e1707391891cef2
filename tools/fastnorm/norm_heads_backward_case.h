// The gradients of a layer's query, key and value heads for norm_heads_backward: tensors of a call,
// and the formula in double precision.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "norm_heads_case.h"

namespace fastnorm::tool {

struct HeadsGradientOptions {
  NormHeadsOptions layer;
  std::string dy_dtype, dweight_dtype = "f32";  // empty: the heads'
  bool recompute = false;                       // statistics are computed again
  bool no_dx = false, no_dweight = false;
};

// Random tensors on the host: `layer` has x, the weights and the tables.
struct HeadsGradientInputs {
  NormHeadsInputs layer;
  HostTensor dy[kHeadsParts], mean[2], rstd[2];

  // Shapes, without content.
  explicit HeadsGradientInputs(const HeadsGradientOptions& options);
  void fill(const HeadsGradientOptions& options);
};

// An output and where it is: of a packed gradient, tokens are token_bytes apart.
struct HeadsGradient {
  HeadsPart part;
  bool is_dweight;
  std::byte* data;
  fastnorm_dtype dtype;
  std::vector<int64_t> shape;
  size_t token_bytes = 0;  // 0: compact
};

// The tensors of one call. dx of all parts lie side by side in one packed gradient, unless they are
// separate or over dy. Not movable: the arguments point inside.
class HeadsGradientCall {
 public:
  using Place = NormHeadsCall::Place;

  HeadsGradientCall(const HeadsGradientOptions& options, const HeadsGradientInputs& inputs,
                    const Target& target, const Place& place);
  HeadsGradientCall(const HeadsGradientCall&) = delete;
  HeadsGradientCall& operator=(const HeadsGradientCall&) = delete;

  fastnorm_info query(fastnorm_context* context) const;
  // Outputs to bytes of 0xff, and dy as it was.
  void reset(const Machine& machine) const;
  void run(const Machine& machine, std::byte* workspace, size_t workspace_bytes) const;
  const std::vector<HeadsGradient>& outputs() const { return outputs_; }
  std::vector<std::byte> read(const Machine& machine, const HeadsGradient& output) const;

 private:
  const fastnorm_tensor* view(std::byte* data, fastnorm_dtype dtype, std::vector<int64_t> shape,
                              std::vector<int64_t> strides = {});
  const fastnorm_tensor* input(const HostTensor& tensor);
  void describe(HeadsPart part);
  void place_dx(HeadsPart part, std::byte* dy);

  const HeadsGradientOptions& options_;
  const HeadsGradientInputs& inputs_;
  const Target target_;
  const Place& place_;
  std::vector<std::unique_ptr<TensorView>> views_;
  std::vector<HeadsGradient> outputs_;
  std::vector<std::pair<std::byte*, const HostTensor*>> restored_;  // dy that dx replaces
  std::byte* packed_ = nullptr;
  size_t packed_bytes_ = 0, token_bytes_ = 0, packed_at_ = 0;
  fastnorm_norm_heads_args args_ = {};
  fastnorm_norm_heads_backward_part part_[kHeadsParts] = {};
  const fastnorm_norm_heads_backward_part* parts_[kHeadsParts] = {};
  int32_t count_ = 0;
};

// How far the results are from the formula. `worst` is the largest error as a share of what is
// allowed: at most 1 is right.
struct HeadsGradientErrors {
  int64_t rows = 0, sums = 0, wrong = 0;  // rows of dx, columns of dweight, and wrong ones of both
  double max_error = 0, worst = 0;
};

// Compares the rows of dx of `check_tokens` tokens, spread over the call, and all of dweight.
HeadsGradientErrors compare_heads_gradients(const HeadsGradientOptions& options,
                                            const HeadsGradientInputs& inputs,
                                            const std::vector<HeadsGradient>& outputs,
                                            const std::vector<std::vector<std::byte>>& results,
                                            int64_t check_tokens);

}  // namespace fastnorm::tool
