#include "check/case.h"

#include <bit>

namespace fastnorm::check {
namespace {

const char* weight_text(const std::optional<ref::Type>& dtype) {
  return dtype ? ref::name_of(*dtype) : "none";
}

std::string strides_text(const TensorLayout& t, int rank) {
  std::string text = "(";
  for (int d = rank - 1; d >= 0; --d) text += std::to_string(t.stride[d]) + (d > 0 ? "," : "");
  return text + ")+" + std::to_string(t.shift);
}

uint64_t code(const std::optional<ref::Type>& dtype) {
  return dtype ? static_cast<uint64_t>(*dtype) + 1 : 0;
}

}  // namespace

uint64_t Content::hash() const {
  const ref::NormOptions& o = options;
  return ref::hash(static_cast<uint64_t>(o.dtype), static_cast<uint64_t>(o.kind), o.rounding,
                   o.residual_rounding, o.sum_dtype, o.y_f32, std::bit_cast<uint32_t>(o.eps),
                   std::bit_cast<uint32_t>(o.weight_offset), n, add, residual_dtype, code(weight),
                   code(bias), weight_heads, bias_heads, pattern + 1, seed, quant.scheme,
                   quant.format, quant.block_size, quant.source, quant.pow2, quant.e8m0,
                   std::bit_cast<uint32_t>(quant.amax_floor), std::bit_cast<uint32_t>(quant.clamp),
                   quant.divide, std::bit_cast<uint32_t>(tensor_scale),
                   std::bit_cast<uint32_t>(global_scale.value_or(1.0f)));
}

std::string Case::text() const {
  const ref::NormOptions& o = content.options;
  const Layout& l = layout;
  std::string text = std::string(ref::name_of(o.dtype)) + " n " + std::to_string(content.n);
  text += " outer [";
  for (int d = l.rank - 1; d >= 0; --d) text += std::to_string(l.outer[d]) + (d > 0 ? "," : "");
  text += "] rounding " + std::to_string(static_cast<int>(o.rounding)) + "/" +
          std::to_string(static_cast<int>(o.residual_rounding));
  text += " eps " + std::to_string(o.eps) + " offset " + std::to_string(o.weight_offset);
  text += std::string(" weight ") + weight_text(content.weight) +
          (content.weight_heads ? " a head" : "") + " bias " + weight_text(content.bias) +
          (content.bias_heads ? " a head" : "");
  if (l.weight_dims != 1 || l.bias_dims != 1)
    text += " of dimensions " + std::to_string(l.weight_dims) + "/" + std::to_string(l.bias_dims);
  if (content.clamp_scale) text += " clamp_scale " + std::to_string(*content.clamp_scale);
  text += content.pattern == kMixed
              ? " mixed"
              : std::string(" ") + ref::name_of(static_cast<ref::Pattern>(content.pattern));
  text += " x" + strides_text(l.x, l.rank);
  text += l.y_in_place        ? " y=x"
          : l.y_over_residual ? " y=residual"
                              : " y" + strides_text(l.y, l.rank);
  if (o.y_f32) text += " f32";
  if (content.add) {
    text += std::string(" residual ") + ref::name_of(content.residual_dtype) +
            strides_text(l.residual, l.rank);
  }
  if (l.residual_out_dtype) {
    text += std::string(" residual_out ") + ref::name_of(*l.residual_out_dtype) +
            (l.sum_in_place ? "=residual"
             : l.sum_over_x ? "=x"
                            : strides_text(l.residual_out, l.rank));
  }
  const ref::QuantOptions& q = content.quant;
  if (q.scheme != ref::Scheme::kNone) {
    text += std::string(" quant ") + ref::name_of(q.scheme) + " " + ref::name_of(q.format) +
            " block " + std::to_string(q.block_size) +
            (q.source == ref::QuantSource::kRounded ? " rounded" : "") + (q.pow2 ? " pow2" : "") +
            (q.e8m0 ? " e8m0" : "") + (q.divide ? " divided" : "") + " floor " +
            std::to_string(q.amax_floor) + " clamp " + std::to_string(q.clamp) + " scale " +
            std::to_string(content.tensor_scale) + " global " +
            (content.global_scale ? std::to_string(*content.global_scale) : "none") + " codes" +
            strides_text(l.codes, l.rank) + " scales " + std::to_string(static_cast<int>(l.scales));
  }
  if (l.amax) text += " amax " + std::to_string(*l.amax);
  if (!l.store_y) text += " no y";
  if (l.store_mean) text += " mean";
  if (l.store_rstd) text += " rstd";
  return text + " from row " + std::to_string(l.first_row);
}

int64_t heads_of(const Layout& layout, unsigned dims) {
  int64_t heads = 1;
  for (int d = 0; d < kMaxOuter; ++d) heads *= (dims >> d & 1) != 0 ? layout.outer[d] : 1;
  return heads;
}

int64_t head_of(const Layout& layout, unsigned dims, const RowIndex& index) {
  int64_t head = 0, step = 1;
  for (int d = 0; d < kMaxOuter; ++d) {
    if ((dims >> d & 1) == 0) continue;
    head += index.digit[d] * step;
    step *= layout.outer[d];
  }
  return head;
}

RowIndex index_of(const Layout& layout, int64_t row) {
  RowIndex index{};
  for (int d = 0; d < kMaxOuter; ++d) {
    index.digit[d] = row % layout.outer[d];
    row /= layout.outer[d];
  }
  return index;
}

int64_t row_number(const Layout& layout, const TensorLayout& tensor, const RowIndex& index) {
  int64_t number = layout.first_row, step = 1;
  for (int d = 0; d < kMaxOuter; ++d) {
    if (tensor.stride[d] != 0) number += index.digit[d] * step;
    step *= layout.outer[d];
  }
  return number;
}

}  // namespace fastnorm::check
