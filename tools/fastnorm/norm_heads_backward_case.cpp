#include "norm_heads_backward_case.h"

#include <algorithm>
#include <cmath>

#include "random.h"

namespace fastnorm::tool {
namespace {

// The scalars of the norm, which points to nothing.
fastnorm_norm_args norm_of(const HeadsGradientOptions& o) {
  support::Call call = o.layer.norm.call();
  fastnorm_norm_args norm = *call.args<fastnorm_norm_args>();
  norm.quant = nullptr;
  return norm;
}

// A token's heads as one row, or one head: what shares a statistic.
std::vector<double> shared_row(const HostTensor& t, int64_t token, int64_t head, bool across) {
  if (!across) return row_of(t, token * t.shape[1] + head);
  std::vector<double> all;
  for (int64_t h = 0; h < t.shape[1]; ++h) {
    const std::vector<double> more = row_of(t, token * t.shape[1] + h);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

struct RowStatistics {
  double mean, rstd;
};

RowStatistics statistics_of(const std::vector<double>& row, const fastnorm_norm_args& norm) {
  const auto n = static_cast<double>(row.size());
  double mean = 0, squares = 0;
  if (norm.kind == FASTNORM_NORM_LAYER) {
    for (const double v : row) mean += v / n;
  }
  for (const double v : row) squares += (v - mean) * (v - mean);
  return {mean, 1 / std::sqrt(squares / n + static_cast<double>(norm.eps))};
}

}  // namespace

HeadsGradientInputs::HeadsGradientInputs(const HeadsGradientOptions& o) : layer(o.layer) {
  const fastnorm_dtype f32 = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
  const bool layer_norm = o.layer.norm.is_layer();
  const int64_t heads[] = {o.layer.query_heads, o.layer.key_heads, o.layer.key_heads};
  for (int p = 0; p < kHeadsParts; ++p) {
    const HeadsPart part = static_cast<HeadsPart>(p);
    if (part == kValue && o.no_dx) continue;  // it has nothing else
    dy[p] = {dtype_or(o.dy_dtype, layer.x[kQuery].dtype),
             {o.layer.tokens, heads[p], o.layer.columns},
             {}};
    if (part == kValue || o.layer.no_norm || o.recompute) continue;
    rstd[p] = {f32, {o.layer.tokens}, {}};
    if (!o.layer.across_heads) rstd[p].shape.push_back(heads[p]);
    if (layer_norm) mean[p] = rstd[p];
  }
}

void HeadsGradientInputs::fill(const HeadsGradientOptions& o) {
  layer.fill(static_cast<uint64_t>(o.layer.seed));
  Random random(static_cast<uint64_t>(o.layer.seed) + 1);
  for (HostTensor& t : dy) {
    if (!t.present()) continue;
    t.content.resize(t.bytes());
    const size_t element = element_bytes(t.dtype);
    for (size_t at = 0; at < t.content.size(); at += element)
      encode(t.dtype, random.uniform(-1, 1), &t.content[at]);
  }
  // What a forward call would have stored.
  const fastnorm_norm_args norm = norm_of(o);
  for (int p = 0; p < 2; ++p) {
    if (!rstd[p].present()) continue;
    rstd[p].content.resize(rstd[p].bytes());
    if (mean[p].present()) mean[p].content.resize(mean[p].bytes());
    const int64_t heads = o.layer.across_heads ? 1 : layer.x[p].shape[1];
    for (int64_t i = 0; i < o.layer.tokens * heads; ++i) {
      const RowStatistics s =
          statistics_of(shared_row(layer.x[p], i / heads, i % heads, o.layer.across_heads), norm);
      const auto at = static_cast<size_t>(i) * 4;
      encode(rstd[p].dtype, s.rstd, &rstd[p].content[at]);
      if (mean[p].present()) encode(mean[p].dtype, s.mean, &mean[p].content[at]);
    }
  }
}

HeadsGradientCall::HeadsGradientCall(const HeadsGradientOptions& options,
                                     const HeadsGradientInputs& inputs, const Target& target,
                                     const Place& place)
    : options_(options), inputs_(inputs), target_(target), place_(place) {
  args_.struct_size = sizeof args_;
  const NormHeadsInputs& layer = inputs.layer;
  if (layer.cos.present()) {
    args_.rope_dim = options.layer.rope_dim;
    args_.cos = input(layer.cos);
    args_.sin = input(layer.sin);
    args_.positions = input(layer.positions);
  }
  const bool packed = !options.no_dx && !options.layer.in_place && !options.layer.separate;
  if (packed) {
    for (const HostTensor& t : inputs.dy) {
      token_bytes_ +=
          static_cast<size_t>(t.shape[1] * t.shape[2]) * element_bytes(layer.x[kQuery].dtype);
    }
    packed_bytes_ = token_bytes_ * static_cast<size_t>(options.layer.tokens);
    packed_ = place(packed_bytes_, nullptr);
  }
  for (int p = 0; p < kHeadsParts; ++p) {
    if (inputs.dy[p].present()) describe(static_cast<HeadsPart>(p));
  }
}

const fastnorm_tensor* HeadsGradientCall::view(std::byte* data, fastnorm_dtype dtype,
                                               std::vector<int64_t> shape,
                                               std::vector<int64_t> strides) {
  views_.push_back(
      std::make_unique<TensorView>(target_, data, dtype, std::move(shape), std::move(strides)));
  return views_.back()->get();
}

const fastnorm_tensor* HeadsGradientCall::input(const HostTensor& t) {
  const std::byte* content = t.content.empty() ? nullptr : t.content.data();
  return view(place_(t.bytes(), content), t.dtype, t.shape);
}

void HeadsGradientCall::place_dx(HeadsPart p, std::byte* dy) {
  fastnorm_norm_heads_backward_part& part = part_[p];
  const HostTensor& gradient = inputs_.dy[p];
  const fastnorm_dtype dtype = inputs_.layer.x[kQuery].dtype;
  HeadsGradient out = {p, false, dy, dtype, gradient.shape};
  if (options_.layer.in_place) {
    part.dx = part.dy;
    restored_.emplace_back(dy, &gradient);
  } else if (packed_ != nullptr) {
    out.data = packed_ + packed_at_;
    out.token_bytes = token_bytes_;
    const auto element = element_bytes(dtype);
    packed_at_ += static_cast<size_t>(gradient.shape[1] * gradient.shape[2]) * element;
    part.dx = view(out.data, dtype, gradient.shape,
                   {static_cast<int64_t>(token_bytes_ / element), gradient.shape[2], 1});
  } else {
    out.data = place_(HostTensor{dtype, gradient.shape, {}}.bytes(), nullptr);
    part.dx = view(out.data, dtype, gradient.shape);
  }
  outputs_.push_back(out);
}

void HeadsGradientCall::describe(HeadsPart p) {
  const NormHeadsOptions& layer = options_.layer;
  fastnorm_norm_heads_backward_part& part = part_[p];
  part.struct_size = sizeof part;
  parts_[count_++] = &part;
  const HostTensor& dy = inputs_.dy[p];
  std::byte* const data = place_(dy.bytes(), dy.content.empty() ? nullptr : dy.content.data());
  part.dy = view(data, dy.dtype, dy.shape);
  if (!options_.no_dx) place_dx(p, data);
  if (p == kValue) return;
  if (inputs_.layer.cos.present()) {
    part.flags |= FASTNORM_NORM_HEADS_ROPE;
    if (layer.interleaved) part.flags |= FASTNORM_NORM_HEADS_ROPE_INTERLEAVED;
    if (layer.inverse) part.flags |= FASTNORM_NORM_HEADS_ROPE_INVERSE;
    part.rope_offset = layer.rope_offset;
  }
  if (layer.no_norm) return;
  const fastnorm_norm_args norm = norm_of(options_);
  part.flags |= FASTNORM_NORM_HEADS_NORM;
  if (layer.across_heads) part.flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS;
  part.kind = norm.kind;
  part.eps = norm.eps;
  part.rounding = norm.rounding;
  part.x = input(inputs_.layer.x[p]);
  if (inputs_.mean[p].present()) part.mean = input(inputs_.mean[p]);
  if (inputs_.rstd[p].present()) part.rstd = input(inputs_.rstd[p]);
  const HostTensor& weight = inputs_.layer.weight[p];
  if (!weight.present()) return;
  part.weight_offset = norm.weight_offset;
  part.weight = input(weight);
  if (options_.no_dweight) return;
  HeadsGradient out = {p, true, nullptr, dtype_or(options_.dweight_dtype, weight.dtype),
                       weight.shape};
  out.data = place_(HostTensor{out.dtype, out.shape, {}}.bytes(), nullptr);
  part.dweight = view(out.data, out.dtype, out.shape);
  outputs_.push_back(out);
}

fastnorm_info HeadsGradientCall::query(fastnorm_context* context) const {
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  check(fastnorm_norm_heads_backward_query(context, &args_, parts_, count_, &info));
  return info;
}

void HeadsGradientCall::reset(const Machine& machine) const {
  const auto clear = [&](std::byte* data, size_t bytes) {
    const std::vector<std::byte> poison(bytes, std::byte{0xff});
    machine.upload(data, poison.data(), bytes);
  };
  if (packed_ != nullptr) clear(packed_, packed_bytes_);
  for (const HeadsGradient& o : outputs_) {
    const size_t bytes = HostTensor{o.dtype, o.shape, {}}.bytes();
    if (o.is_dweight || (packed_ == nullptr && !options_.layer.in_place)) clear(o.data, bytes);
  }
  for (const auto& [data, tensor] : restored_)
    machine.upload(data, tensor->content.data(), tensor->bytes());
}

void HeadsGradientCall::run(const Machine& machine, std::byte* workspace,
                            size_t workspace_bytes) const {
  check(fastnorm_norm_heads_backward(machine.context(), &args_, parts_, count_, workspace,
                                     workspace_bytes, machine.stream()));
}

std::vector<std::byte> HeadsGradientCall::read(const Machine& machine,
                                               const HeadsGradient& o) const {
  std::vector<std::byte> result(HostTensor{o.dtype, o.shape, {}}.bytes());
  if (result.empty()) return result;
  if (o.token_bytes == 0) {
    machine.download(result.data(), o.data, result.size());
    return result;
  }
  const auto tokens = static_cast<size_t>(o.shape[0]);
  const size_t bytes = result.size() / tokens;
  std::vector<std::byte> all((tokens - 1) * o.token_bytes + bytes);
  machine.download(all.data(), o.data, all.size());
  for (size_t t = 0; t < tokens; ++t)
    std::copy_n(&all[t * o.token_bytes], bytes, &result[t * bytes]);
  return result;
}

namespace {

// A row's gradient before the norm, and the magnitudes of what each element is the sum of.
struct TurnedRow {
  std::vector<double> v, magnitude;
};

class GradientFormula {
 public:
  GradientFormula(const HeadsGradientOptions& options, const HeadsGradientInputs& inputs)
      : options_(options), inputs_(inputs), norm_(norm_of(options)) {}

  TurnedRow turned(HeadsPart p, int64_t token, int64_t head) const {
    const HostTensor& dy = inputs_.dy[p];
    TurnedRow row = {row_of(dy, token * dy.shape[1] + head), {}};
    for (const double v : row.v) row.magnitude.push_back(std::abs(v));
    if (p != kValue && inputs_.layer.cos.present()) turn_back(token, &row);
    return row;
  }

  // xhat of the row, and what rstd multiplies the gradient by.
  double normalise(HeadsPart p, int64_t token, int64_t head, std::vector<double>* xhat) const {
    const HostTensor& x = inputs_.layer.x[p];
    const RowStatistics s =
        statistics_of(shared_row(x, token, head, options_.layer.across_heads), norm_);
    *xhat = row_of(x, token * x.shape[1] + head);
    for (double& v : *xhat) v = (v - s.mean) * s.rstd;
    return s.rstd;
  }

  // dx, and how far f32 may be from it.
  TurnedRow dx(HeadsPart p, int64_t token, int64_t head) const {
    TurnedRow row = turned(p, token, head);
    if (p == kValue || options_.layer.no_norm) return row;
    const int64_t heads = inputs_.dy[p].shape[1];
    const bool across = options_.layer.across_heads;
    double c1 = 0, c2 = 0, m1 = 0, m2 = 0, n = 0;
    for (int64_t h = across ? 0 : head; h < (across ? heads : head + 1); ++h) {
      const TurnedRow other = scaled(p, token, h);
      std::vector<double> xhat;
      normalise(p, token, h, &xhat);
      for (size_t i = 0; i < xhat.size(); ++i) {
        c1 += other.v[i] * xhat[i], m1 += other.magnitude[i] * std::abs(xhat[i]);
        c2 += other.v[i], m2 += other.magnitude[i];
      }
      n += static_cast<double>(xhat.size());
    }
    if (norm_.kind != FASTNORM_NORM_LAYER) c2 = m2 = 0;
    row = scaled(p, token, head);
    std::vector<double> xhat;
    const double rstd = normalise(p, token, head, &xhat);
    for (size_t i = 0; i < xhat.size(); ++i) {
      row.v[i] = (row.v[i] - c2 / n - xhat[i] * c1 / n) * rstd;
      row.magnitude[i] = (row.magnitude[i] + m2 / n + std::abs(xhat[i]) * m1 / n) * rstd;
    }
    return row;
  }

 private:
  // dv * gain.
  TurnedRow scaled(HeadsPart p, int64_t token, int64_t head) const {
    TurnedRow row = turned(p, token, head);
    const HostTensor& w = inputs_.layer.weight[p];
    if (!w.present()) return row;
    const std::vector<double> weight = row_of(w, w.shape.size() == 2 ? head : 0);
    for (size_t i = 0; i < row.v.size(); ++i) {
      double gain = weight[i] + static_cast<double>(norm_.weight_offset);
      if (norm_.rounding == FASTNORM_ROUND_EVERY_STEP)
        gain = round_to(float_format(inputs_.layer.x[p].dtype), gain);
      row.v[i] *= gain, row.magnitude[i] *= std::abs(gain);
    }
    return row;
  }

  // The transpose of the forward's turn.
  void turn_back(int64_t token, TurnedRow* row) const {
    const NormHeadsOptions& o = options_.layer;
    const auto pairs = static_cast<size_t>(o.rope_dim / 2);
    const int64_t entry = index_at(inputs_.layer.positions, token);
    const std::vector<double> c = row_of(inputs_.layer.cos, entry),
                              s = row_of(inputs_.layer.sin, entry);
    const size_t offset =
        o.rope_offset == -1 ? row->v.size() - 2 * pairs : static_cast<size_t>(o.rope_offset);
    for (size_t j = 0; j < pairs; ++j) {
      const size_t first = offset + (o.interleaved ? 2 * j : j),
                   second = o.interleaved ? first + 1 : first + pairs;
      const double sine = o.inverse ? -s[j] : s[j], d1 = row->v[first], d2 = row->v[second],
                   m1 = std::abs(d1), m2 = std::abs(d2), a = std::abs(c[j]), b = std::abs(sine);
      row->v[first] = d1 * c[j] + d2 * sine;
      row->v[second] = d2 * c[j] - d1 * sine;
      row->magnitude[first] = m1 * a + m2 * b;
      row->magnitude[second] = m2 * a + m1 * b;
    }
  }

  const HeadsGradientOptions& options_;
  const HeadsGradientInputs& inputs_;
  const fastnorm_norm_args norm_;
};

class GradientComparison {
 public:
  GradientComparison(const HeadsGradientOptions& options, const HeadsGradientInputs& inputs)
      : options_(options), inputs_(inputs), formula_(options, inputs), norm_(norm_of(options)) {}

  void rows(const HeadsGradient& o, const std::vector<std::byte>& result, int64_t check_tokens) {
    const HostTensor found = {o.dtype, o.shape, result};
    const FloatFormat format = float_format(o.dtype);
    const int64_t tokens = o.shape[0], count = std::min(tokens, check_tokens);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t token = i * tokens / count;
      for (int64_t head = 0; head < o.shape[1]; ++head) {
        const TurnedRow exact = formula_.dx(o.part, token, head);
        const std::vector<double> values = row_of(found, token * o.shape[1] + head);
        double worst = 0;
        for (size_t c = 0; c < values.size(); ++c) {
          const double allowed = std::ldexp(std::abs(exact.v[c]), -format.precision) +
                                 std::ldexp(1.0, format.min_exponent) +
                                 (0x1p-17 + statistic_share()) * exact.magnitude[c];
          note(values[c], exact.v[c], allowed, &worst);
        }
        ++errors_.rows;
        judge(worst);
      }
    }
  }

  void sums(const HeadsGradient& o, const std::vector<std::byte>& result) {
    const HostTensor found = {o.dtype, o.shape, result};
    const FloatFormat format = float_format(o.dtype),
                      rounded = float_format(inputs_.layer.x[o.part].dtype);
    const HostTensor& x = inputs_.layer.x[o.part];
    const bool each = o.shape.size() == 2;
    const bool rounds =
        norm_.rounding == FASTNORM_ROUND_NORMALIZED || norm_.rounding == FASTNORM_ROUND_EVERY_STEP;
    const auto columns = static_cast<size_t>(x.shape[2]);
    const auto groups = static_cast<size_t>(each ? x.shape[1] : 1);
    std::vector<double> sum(groups * columns), magnitude(groups * columns);
    for (int64_t r = 0; r < x.shape[0] * x.shape[1]; ++r) {
      const int64_t token = r / x.shape[1], head = r % x.shape[1];
      const TurnedRow row = formula_.turned(o.part, token, head);
      std::vector<double> xhat;
      formula_.normalise(o.part, token, head, &xhat);
      const size_t at = each ? static_cast<size_t>(head) * columns : 0;
      for (size_t c = 0; c < columns; ++c) {
        sum[at + c] += row.v[c] * xhat[c];
        magnitude[at + c] += row.magnitude[c] * std::abs(xhat[c]);
      }
    }
    // The relative error that a sum may have: by single precision over all rows, by an xhat that
    // the forward rounded, and by statistics.
    const double share = 0x1p-17 + 0x1p-28 * static_cast<double>(x.shape[0] * x.shape[1]) +
                         (rounds ? std::ldexp(1.0, -rounded.precision) : 0) + statistic_share();
    for (size_t g = 0; g < groups; ++g) {
      const std::vector<double> values = row_of(found, static_cast<int64_t>(g));
      for (size_t c = 0; c < columns; ++c) {
        const double exact = sum[g * columns + c];
        double worst = 0;
        note(values[c], exact,
             std::ldexp(std::abs(exact), -format.precision) + std::ldexp(1.0, format.min_exponent) +
                 share * magnitude[g * columns + c],
             &worst);
        ++errors_.sums;
        judge(worst);
      }
    }
  }

  const HeadsGradientErrors& errors() const { return errors_; }

 private:
  // What statistics add to this error if the call computes them again in steps of T.
  double statistic_share() const {
    if (!options_.recompute || norm_.rounding != FASTNORM_ROUND_EVERY_STEP) return 0;
    return std::ldexp(4.0, -float_format(inputs_.layer.x[kQuery].dtype).precision);
  }
  void judge(double worst) {
    if (!(worst <= errors_.worst)) errors_.worst = worst;
    if (!(worst <= 1)) ++errors_.wrong;
  }
  void note(double found, double wanted, double allowed, double* worst) {
    const double error = std::abs(found - wanted);
    if (!(error <= errors_.max_error)) errors_.max_error = error;
    if (!(error / allowed <= *worst)) *worst = error / allowed;
  }

  const HeadsGradientOptions& options_;
  const HeadsGradientInputs& inputs_;
  const GradientFormula formula_;
  const fastnorm_norm_args norm_;
  HeadsGradientErrors errors_;
};

}  // namespace

HeadsGradientErrors compare_heads_gradients(const HeadsGradientOptions& options,
                                            const HeadsGradientInputs& inputs,
                                            const std::vector<HeadsGradient>& outputs,
                                            const std::vector<std::vector<std::byte>>& results,
                                            int64_t check_tokens) {
  GradientComparison comparison(options, inputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].is_dweight) {
      comparison.sums(outputs[i], results[i]);
    } else {
      comparison.rows(outputs[i], results[i], check_tokens);
    }
  }
  return comparison.errors();
}

}  // namespace fastnorm::tool
