#include "bench/norm_heads_backward.h"

#include <algorithm>
#include <stdexcept>

#include "bench/call.h"

namespace bench {
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
  if (layer.empty() || layer == "mla") return {name};
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

NormHeadsBackwardCall::NormHeadsBackwardCall(const NormHeadsBackwardCase& c, int32_t device_type,
                                             const NormHeadsBackwardBuffers& b)
    : weight_bytes_(weight_bytes(c)) {
  const NormHeadsCase& h = c.heads;
  const fastnorm_dtype dtype = dtype_of(h), f32 = fastnorm_dtype_of(FASTNORM_DTYPE_F32),
                       i32 = fastnorm_dtype_of(FASTNORM_DTYPE_I32);
  const int64_t d = h.columns, all = c.all_heads();
  int64_t first = 0;  // head of the part
  for (int p = 0; p < kParts; ++p) {
    fastnorm_norm_heads_backward_part& part = part_[p];
    const int64_t heads = p == 0 ? h.query : h.key;
    const std::vector<int64_t> shape = {h.tokens, heads, d}, packed = {all * d, d, 1};
    const int64_t column = first * c.row_bytes();
    part.struct_size = sizeof part;
    part.dy = dy_[p].describe(device_type, dtype, shape, {}, h.tokens * column);
    part.dx = dx_[p].describe(device_type, dtype, shape, packed, column);
    first += heads;
    if (p == 2) break;
    part.flags = FASTNORM_NORM_HEADS_ROPE;
    if (!c.normalises()) continue;
    part.flags |= FASTNORM_NORM_HEADS_NORM;
    if (c.across()) part.flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS;
    part.eps = 1e-6f;
    part.x = x_[p].describe(device_type, dtype, shape, packed, column);
    part.rstd = rstd_[p].describe(
        device_type, f32,
        c.across() ? std::vector<int64_t>{h.tokens} : std::vector<int64_t>{h.tokens, heads}, {},
        p == 0 ? 0 : h.tokens * (c.across() ? 1 : h.query) * 4);
    const std::vector<int64_t> columns =
        c.across() ? std::vector<int64_t>{heads, d} : std::vector<int64_t>{d};
    part.weight = weight_[p].describe(device_type, dtype, columns);
    if (c.wants_weights()) part.dweight = dweight_[p].describe(device_type, dtype, columns);
  }
  args_.struct_size = sizeof args_;
  args_.rope_dim = static_cast<int32_t>(d);
  args_.cos = cos_.describe(device_type, f32, {NormHeadsCase::kTableRows, d / 2});
  args_.sin = sin_.describe(device_type, f32, {NormHeadsCase::kTableRows, d / 2});
  args_.positions = positions_.describe(device_type, i32, {h.tokens});
  set(b);
}

void NormHeadsBackwardCall::set(const NormHeadsBackwardBuffers& b) {
  for (int p = 0; p < kParts; ++p) {
    dy_[p].tensor.data = b.dy;
    x_[p].tensor.data = b.x;
    dx_[p].tensor.data = b.dx;
    if (p == 2) break;
    rstd_[p].tensor.data = b.rstd;
    weight_[p].tensor.data = b.weights + p * weight_bytes_;
    dweight_[p].tensor.data = b.weights + (2 + p) * weight_bytes_;
  }
  cos_.tensor.data = b.cos;
  sin_.tensor.data = b.sin;
  positions_.tensor.data = b.positions;
}

fastnorm_info NormHeadsBackwardCall::query(fastnorm_context* context) const {
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  check(fastnorm_norm_heads_backward_query(context, &args_, parts_, kParts, &info));
  return info;
}

void NormHeadsBackwardCall::prepare(fastnorm_context* context) const {
  check(fastnorm_norm_heads_backward_prepare(context, &args_, parts_, kParts));
}

void NormHeadsBackwardCall::run(fastnorm_context* context, void* workspace, size_t workspace_bytes,
                                void* stream) const {
  check(fastnorm_norm_heads_backward(context, &args_, parts_, kParts, workspace, workspace_bytes,
                                     stream));
}

}  // namespace bench
