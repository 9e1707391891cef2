#include "bench/norm_heads_backward.h"

#include <algorithm>
#include <stdexcept>

#include "bench/call.h"
#include "bench/families.h"

namespace bench {

FamilyBench norm_heads_backward_bench() {
  return {"--norm-heads-backward",
          "gradients of heads in place of norms: lists (qwen3, qwen3-64, olmo2, olmo2-32b) or "
          "TOKENSxQUERY+KEYxHEAD[:GRADIENTS], such as 4096x32+8x128:dx; GRADIENTS: all (dx "
          "and dweight), dx, across (all, of one statistic for all heads), rope (without a "
          "norm)"};
}

namespace {

constexpr const char* kGradients[] = {"all", "dx", "across", "rope"};

NormHeadsBackwardCase parse_gradients(const std::string& text) {
  NormHeadsBackwardCase c;
  const size_t colon = text.find(':');
  c.gradients = colon == std::string::npos ? "all" : text.substr(colon + 1);
  c.heads.text = text;
  c.heads.cache = "none";
  const bool known =
      std::find(std::begin(kGradients), std::end(kGradients), c.gradients) != std::end(kGradients);
  if (known && parse_heads_shape(text.substr(0, colon), &c.heads)) return c;
  throw std::invalid_argument(
      "'" + text +
      "' is no shape of gradients of heads; required: TOKENSxQUERY+KEYxHEAD[:GRADIENTS], GRADIENTS "
      "being all, dx, across or rope, such as 4096x32+8x128:dx; or one of qwen3, qwen3-64, olmo2, "
      "olmo2-32b");
}

std::vector<std::string> gradients_of(const std::string& name) {
  const HeadsOfList list = heads_of_list(name);
  const std::string layer = list.heads;
  if (layer.find('+') == std::string::npos) return {name};
  std::vector<std::string> found;
  for (const std::string gradients : kGradients) {
    if (list.across && gradients != "across") continue;
    for (const char* tokens : kHeadsTokens)
      found.push_back(std::string(tokens) + "x" + layer + ":" + gradients);
  }
  return found;
}

}  // namespace

std::vector<NormHeadsBackwardCase> make_norm_heads_backward_cases(
    const std::vector<std::string>& shapes, const std::vector<std::string>& dtypes) {
  std::vector<NormHeadsBackwardCase> cases;
  for (const std::string& dtype : dtypes) {
    for (const std::string& shape : shapes) {
      for (const std::string& text : gradients_of(shape)) {
        cases.push_back(parse_gradients(text));
        cases.back().heads.dtype = dtype;
      }
    }
  }
  return cases;
}

namespace {

std::string line_of(const NormHeadsBackwardCase& c) {
  const NormHeadsCase& h = c.heads;
  const int64_t d = h.columns, all = c.all_heads();
  const std::vector<int64_t> table = {NormHeadsCase::kTableRows, d / 2};
  std::string line = "norm_heads_backward rope_dim=" + std::to_string(d) +
                     tensor_words("cos", "f32", table) + tensor_words("sin", "f32", table) +
                     tensor_words("positions", "i32", {h.tokens});
  int64_t first = 0;  // head of the part
  for (int p = 0; p < 3; ++p) {
    const int64_t heads = p == 0 ? h.query : h.key;
    const std::vector<int64_t> shape = {h.tokens, heads, d}, packed = {all * d, d, 1};
    const int64_t column = first * c.row_bytes();
    const auto tensor = [&](const char* field, const std::string& dtype,
                            const std::vector<int64_t>& extents,
                            const std::vector<int64_t>& strides = {}, int64_t offset = 0) {
      line += tensor_words(part_of(p, field), dtype, extents, strides, offset);
    };
    tensor("dy", h.dtype, shape, {}, h.tokens * column);
    tensor("dx", h.dtype, shape, packed, column);
    first += heads;
    if (p == 2) break;
    int flags = FASTNORM_NORM_HEADS_ROPE;
    if (c.normalises()) flags |= FASTNORM_NORM_HEADS_NORM;
    if (c.across()) flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS;
    line += " " + part_of(p, "flags") + "=" + std::to_string(flags);
    if (!c.normalises()) continue;
    line += " " + part_of(p, "eps") + "=1e-06";
    tensor("x", h.dtype, shape, packed, column);
    std::vector<int64_t> statistic = {h.tokens, heads}, columns = {heads, d};
    (c.across() ? statistic.pop_back() : void(columns.erase(columns.begin())));
    tensor("rstd", "f32", statistic, {}, p == 0 ? 0 : h.tokens * (c.across() ? 1 : h.query) * 4);
    tensor("weight", h.dtype, columns);
    if (c.wants_weights()) tensor("dweight", h.dtype, columns);
  }
  return line;
}

}  // namespace

NormHeadsBackwardCall::NormHeadsBackwardCall(const NormHeadsBackwardCase& c, int32_t device_type,
                                             const NormHeadsBackwardBuffers& b)
    : call_(line_of(c), device_type), weight_bytes_(weight_bytes(c)) {
  for (int p = 0; p < kParts; ++p) {
    dy_[p] = call_.tensor(part_of(p, "dy"));
    x_[p] = call_.tensor(part_of(p, "x"));
    dx_[p] = call_.tensor(part_of(p, "dx"));
    rstd_[p] = call_.tensor(part_of(p, "rstd"));
    weight_[p] = call_.tensor(part_of(p, "weight"));
    dweight_[p] = call_.tensor(part_of(p, "dweight"));
  }
  set(b);
}

void NormHeadsBackwardCall::set(const NormHeadsBackwardBuffers& b) {
  for (int p = 0; p < kParts; ++p) {
    dy_[p]->data = b.dy;
    x_[p]->data = b.x;
    dx_[p]->data = b.dx;
    rstd_[p]->data = b.rstd;
    weight_[p]->data = b.weights + p * weight_bytes_;
    dweight_[p]->data = b.weights + (2 + p) * weight_bytes_;
  }
  cos_->data = b.cos;
  sin_->data = b.sin;
  positions_->data = b.positions;
}

fastnorm_info NormHeadsBackwardCall::query(fastnorm_context* context) const {
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  check(fastnorm_norm_heads_backward_query(context, args(), parts(), kParts, &info));
  return info;
}

void NormHeadsBackwardCall::prepare(fastnorm_context* context) const {
  check(fastnorm_norm_heads_backward_prepare(context, args(), parts(), kParts));
}

void NormHeadsBackwardCall::run(fastnorm_context* context, void* workspace, size_t workspace_bytes,
                                void* stream) const {
  check(fastnorm_norm_heads_backward(context, args(), parts(), kParts, workspace, workspace_bytes,
                                     stream));
}

}  // namespace bench
