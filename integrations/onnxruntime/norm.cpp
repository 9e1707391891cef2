// Norms of rows: with a residual, with quantised outputs.

#include <algorithm>

#include "operators.h"

namespace fastnorm_ort {
namespace {

constexpr int64_t kFloat = 1;  // ONNX's number of the type that stash_type may name

struct Options {
  fastnorm_norm_kind kind;
  bool skip;      // x has a residual, and is normalised along its last dimension
  bool quantize;  // the first output is codes
};

// Where the inputs and outputs of an operator are; kNone: it has none.
constexpr size_t kNone = 99;
struct Places {
  size_t weight, bias, row_bias, zero, scale;  // inputs; row_bias is added to the residual
  size_t y, mean, rstd, sum, scales;           // outputs
};

constexpr Places places_of(Options o) {
  const size_t first = o.skip ? 2 : 1;
  Places p = {first, kNone, kNone, kNone, kNone, 0, kNone, kNone, kNone, kNone};
  const bool layer = o.kind == FASTNORM_NORM_LAYER;
  size_t next = first + 1;
  if (o.quantize) p.zero = next++, p.scale = next++;
  if (layer) p.bias = next++;
  if (o.skip) p.row_bias = next++;
  if (o.quantize) {
    p.scales = 1, p.y = 2;
  } else {
    if (layer || o.skip) p.mean = 1;
    p.rstd = layer || o.skip ? 2 : 1;
  }
  if (o.skip) p.sum = 3;
  return p;
}

// x as the library has it: normalised dimensions are one, leading ones too if nothing hinders.
class NormKernel final : public Kernel {
 public:
  NormKernel(const Api& api, const OrtKernelInfo* info, bool cuda, Options options,
             OrtElementType code)
      : Kernel(api, info, cuda), options_(options), places_(places_of(options)), code_(code) {
    eps_ = attribute(api, info, "epsilon", options.skip ? 1e-12f : 1e-5f);
    axis_ = options.skip ? -1 : attribute(api, info, "axis", int64_t{-1});
    rounding_ = attribute(api, info, "rounding", int64_t{FASTNORM_ROUND_ONCE});
    block_size_ = attribute(api, info, "block_size", int64_t{0});
    const int64_t stash = attribute(api, info, "stash_type", kFloat);
    if (stash != kFloat) {
      fail(kOrtNotImplemented,
           "stash_type is " + std::to_string(stash) + "; supported: 1, single precision");
    }
  }

  void compute(Call& call) override {
    Rows rows(call, options_, axis_);
    run(call, rows);
  }

 private:
  // The inputs, and whether every one of them fits x as rows of one length.
  struct Rows {
    Rows(Call& call, Options options, int64_t axis_given) : x(call.input(0)) {
      if (options.skip) {
        residual = call.input(1);
      }
      const auto rank = static_cast<int64_t>(x.rank);
      axis = axis_given < 0 ? axis_given + rank : axis_given;
      if (axis < 0 || axis >= rank) {
        fail(kOrtInvalidArgument,
             "axis is " + std::to_string(axis_given) + "; the input is " + text_of(x.shape()));
      }
      lead = x.shape().first(static_cast<size_t>(axis));
      n = product(x.shape().subspan(static_cast<size_t>(axis)));
      number = product(lead);
      call.find_device(x);
    }

    // Shape of a tensor with `last` columns in place of x's.
    std::span<const int64_t> shape(int64_t last) {
      size_t rank = 0;
      if (flat) {
        shape_[rank++] = number;
      } else {
        for (const int64_t dim : lead) shape_[rank++] = dim;
      }
      shape_[rank++] = last;
      return {shape_.data(), rank};
    }

    Value x, residual;
    int64_t axis, n, number;
    std::span<const int64_t> lead;
    bool flat = true;

   private:
    std::array<int64_t, kMaxRank + 1> shape_ = {};
  };

  // A weight or bias that has an element for every column, and no more.
  static bool is_row(const Value& value, int64_t n) { return !value || elements(value) == n; }

  // A parameter that broadcasts against x, with the normalised dimensions as one.
  const fastnorm_tensor* parameter(Call& call, const Rows& rows, const Value& value, Tensor& tensor,
                                   Value& spread) const {
    if (!value) return nullptr;
    tensor.device = call.device();
    if (rows.flat) return tensor.set(value, {&rows.n, 1});
    const auto inner = rows.x.shape().subspan(rows.lead.size());
    if (value.rank > rows.x.rank) misfit(rows, value);
    // Extents and strides as many as x has; those that are missing are 1.
    std::array<int64_t, kMaxRank> dims = {}, strides = {};
    int64_t stride = 1;
    bool whole = true;
    for (size_t i = rows.x.rank, j = value.rank; i-- > 0;) {
      dims[i] = j > 0 ? value.dims[--j] : 1;
      if (dims[i] != 1 && dims[i] != rows.x.dims[i]) misfit(rows, value);
      if (i >= rows.lead.size() && dims[i] != rows.x.dims[i]) whole = false;
      strides[i] = dims[i] == 1 ? 0 : stride;
      stride *= dims[i];
    }
    std::array<int64_t, kMaxRank + 1> shape = {};
    std::copy_n(dims.begin(), rows.lead.size(), shape.begin());
    shape[rows.lead.size()] = rows.n;
    const std::span<const int64_t> result(shape.data(), rows.lead.size() + 1);
    if (whole) return tensor.set(value, result);
    if (call.cuda()) {
      fail(kOrtNotImplemented, "a weight or bias of " + text_of(value.shape()) +
                                   " for normalised dimensions of " + text_of(inner) +
                                   " on a GPU; supported: all of them");
    }
    spread = call.scratch(rows.x, value.type, result);
    copy_spread(value, spread, {dims.data(), rows.lead.size()}, inner,
                {strides.data(), rows.x.rank});
    return tensor.set(spread, result);
  }

  [[noreturn]] static void misfit(const Rows& rows, const Value& value) {
    fail(kOrtInvalidArgument, "a tensor of " + text_of(value.shape()) +
                                  " does not broadcast against " + text_of(rows.x.shape()));
  }

  static void copy_spread(const Value& from, const Value& to, std::span<const int64_t> outer,
                          std::span<const int64_t> inner, std::span<const int64_t> strides) {
    const size_t bytes = bytes_of(from.type), rank = strides.size();
    std::array<int64_t, kMaxRank> dims = {}, at = {};
    std::copy(outer.begin(), outer.end(), dims.begin());
    std::copy(inner.begin(), inner.end(), dims.begin() + static_cast<ptrdiff_t>(outer.size()));
    const auto count = product({dims.data(), rank});
    for (int64_t i = 0; i < count; ++i) {
      int64_t offset = 0;
      for (size_t k = 0; k < rank; ++k) offset += at[k] * strides[k];
      std::copy_n(static_cast<const char*>(from.data) + static_cast<size_t>(offset) * bytes, bytes,
                  static_cast<char*>(to.data) + static_cast<size_t>(i) * bytes);
      for (size_t k = rank; k-- > 0 && ++at[k] == dims[k];) at[k] = 0;
    }
  }

  // The residual, which may broadcast against x in leading dimensions.
  const fastnorm_tensor* residual(Rows& rows, Tensor& tensor) const {
    const Value& r = rows.residual;
    if (rows.flat) return tensor.set(r, rows.shape(rows.n));
    std::array<int64_t, kMaxRank> strides = {};
    int64_t stride = 1;
    if (r.rank > rows.x.rank) misfit(rows, r);
    for (size_t i = rows.x.rank, j = r.rank; i-- > 0;) {
      const int64_t dim = j > 0 ? r.dims[--j] : 1;
      const bool last = i + 1 == rows.x.rank;
      if (dim != rows.x.dims[i] && (dim != 1 || last)) misfit(rows, r);
      strides[i] = dim == 1 && !last ? 0 : stride;
      stride *= dim;
    }
    return tensor.set(r, rows.shape(rows.n), {strides.data(), rows.x.rank});
  }

  // residual + row_bias in single precision, which a second call then adds to x.
  Value sum_before(Call& call, Rows& rows, const Value& row_bias) const {
    if (elements(row_bias) != rows.n) misfit(rows, row_bias);
    Value both = call.scratch(rows.x, kOrtF32, rows.shape(rows.n));
    const Value sums = call.scratch(rows.x, kOrtF32, rows.shape(1));
    std::array<int64_t, kMaxRank + 1> strides = {};
    Tensor x, bias, out, sumsq;
    for (Tensor* t : {&x, &bias, &out, &sumsq}) t->device = call.device();
    fastnorm_norm_args args = {};
    args.struct_size = sizeof args;
    args.parallel_user = call.parallel_user();
    args.x = residual(rows, x);
    const auto shape = rows.shape(rows.n);
    strides[shape.size() - 1] = 1;
    args.residual = bias.set(row_bias, shape, {strides.data(), shape.size()});
    args.residual_out = out.set(both, shape);
    args.sumsq = sumsq.set(sums, rows.shape(1));
    check(fastnorm_norm(call.library(), &args, nullptr, 0, call.stream()));
    return both;
  }

  Value optional_input(Call& call, size_t place) const {
    return place == kNone ? Value{} : call.input(place);
  }

  Value optional_output(Call& call, size_t place, OrtElementType type,
                        std::span<const int64_t> dims) const {
    return place == kNone ? Value{} : call.output(place, type, dims);
  }

  void run(Call& call, Rows& rows) const {
    const Value weight = optional_input(call, places_.weight);
    const Value bias = optional_input(call, places_.bias);
    const Value row_bias = optional_input(call, places_.row_bias);
    rows.flat = is_row(weight, rows.n) && is_row(bias, rows.n) &&
                (!rows.residual || elements(rows.residual) == elements(rows.x));

    Tensor tensors[8];
    for (Tensor& t : tensors) t.device = call.device();
    Value weight_spread, bias_spread;
    fastnorm_norm_args args = {};
    args.struct_size = sizeof args;
    args.parallel_user = call.parallel_user();
    args.kind = options_.kind;
    args.eps = eps_;
    args.rounding = static_cast<fastnorm_rounding>(rounding_);
    args.x = tensors[0].set(rows.x, rows.shape(rows.n));
    args.weight = parameter(call, rows, weight, tensors[1], weight_spread);
    args.bias = parameter(call, rows, bias, tensors[2], bias_spread);
    Value before;
    if (row_bias) {
      before = sum_before(call, rows, row_bias);
      args.residual = tensors[3].set(before, rows.shape(rows.n));
    } else if (rows.residual) {
      args.residual = residual(rows, tensors[3]);
    }

    std::array<int64_t, kMaxRank> statistic = rows.x.dims;
    std::fill(statistic.begin() + rows.axis, statistic.end(), 1);
    const std::span<const int64_t> statistic_dims(statistic.data(), rows.x.rank);
    const Value y = optional_output(call, places_.y, rows.x.type, rows.x.shape());
    const Value sum = optional_output(call, places_.sum, rows.x.type, rows.x.shape());
    const Value mean = optional_output(call, places_.mean, kOrtF32, statistic_dims);
    const Value rstd = optional_output(call, places_.rstd, kOrtF32, statistic_dims);
    if (y) args.y = tensors[4].set(y, rows.shape(rows.n));
    if (sum) args.residual_out = tensors[5].set(sum, rows.shape(rows.n));
    if (options_.kind == FASTNORM_NORM_LAYER && mean)
      args.mean = tensors[6].set(mean, rows.shape(1));
    if (rstd) args.rstd = tensors[7].set(rstd, rows.shape(1));
    if (options_.kind == FASTNORM_NORM_RMS && mean) {
      fail(kOrtInvalidArgument, "output 1 is the mean, which this norm does not have");
    }
    if (options_.quantize) return quantize(call, rows, args);
    if (rows.number != 0) check(fastnorm_norm(call.library(), &args, nullptr, 0, call.stream()));
  }

  // The codes: from y_scale if the node has it, else scales of rows or blocks are made.
  void quantize(Call& call, Rows& rows, fastnorm_norm_args args) const {
    const Value scale = optional_input(call, places_.scale);
    Tensor codes_tensor, scale_tensor;
    codes_tensor.device = scale_tensor.device = call.device();
    fastnorm_quant quant = {};
    quant.struct_size = sizeof quant;
    quant.source = FASTNORM_QUANT_FROM_ROUNDED;
    quant.division = FASTNORM_QUANT_DIVIDE;
    const Value codes = call.output(0, code_, rows.x.shape());
    quant.quantized = codes_tensor.set(codes, rows.shape(rows.n));
    const int64_t one = 1;
    if (scale) {
      if (elements(scale) != 1) {
        fail(kOrtInvalidArgument,
             "y_scale is " + text_of(scale.shape()) + "; supported: one number");
      }
      quant.scheme = FASTNORM_QUANT_PER_TENSOR;
      quant.scale = scale_tensor.set(scale, {&one, 1});
      if (call.output(places_.scales, kOrtF32, {&one, 1})) {
        fail(kOrtInvalidArgument, "the scales are an output only where y_scale is no input");
      }
    } else {
      const int64_t blocks = block_size_ == 0 ? 1 : (rows.n + block_size_ - 1) / block_size_;
      std::array<int64_t, kMaxRank> dims = rows.x.dims;
      std::fill(dims.begin() + rows.axis, dims.end(), 1);
      dims[rows.x.rank - 1] = blocks;
      const Value made = call.output(places_.scales, kOrtF32, {dims.data(), rows.x.rank});
      if (!made) fail(kOrtInvalidArgument, "without y_scale the scales must be an output");
      quant.scheme = block_size_ == 0 ? FASTNORM_QUANT_PER_ROW : FASTNORM_QUANT_PER_BLOCK;
      quant.block_size = static_cast<int32_t>(block_size_);
      quant.scale = scale_tensor.set(made, rows.shape(blocks));
    }
    args.quant = &quant;
    if (rows.number != 0) check(fastnorm_norm(call.library(), &args, nullptr, 0, call.stream()));
  }

  const Options options_;
  const Places places_;
  const OrtElementType code_;
  float eps_;
  int64_t axis_, rounding_, block_size_;
};

template <fastnorm_norm_kind kind, bool skip, bool quantize>
std::unique_ptr<Kernel> make(const Api& api, const OrtKernelInfo* info, bool cuda,
                             OrtElementType code) {
  return std::make_unique<NormKernel>(api, info, cuda, Options{kind, skip, quantize}, code);
}

constexpr auto kRms = FASTNORM_NORM_RMS;
constexpr auto kLayer = FASTNORM_NORM_LAYER;

constexpr Port kX = {Type::kX};
constexpr Port kW = {Type::kParameter};
constexpr Port kOptionalW = {Type::kParameter, true};
constexpr Port kOptionalX = {Type::kX, true};
constexpr Port kOptionalF32 = {Type::kF32, true};
constexpr Port kCode = {Type::kCode};

constexpr Port kLayerIn[] = {kX, kW, kOptionalW};
constexpr Port kLayerOut[] = {kX, kOptionalF32, kOptionalF32};
constexpr Port kRmsIn[] = {kX, kW};
constexpr Port kRmsOut[] = {kX, kOptionalF32};
constexpr Port kSkipLayerIn[] = {kX, kX, kW, kOptionalW, kOptionalW};
constexpr Port kSkipRmsIn[] = {kX, kX, kW, kOptionalW};
constexpr Port kSkipOut[] = {kX, kOptionalF32, kOptionalF32, kOptionalX};
constexpr Port kLayerCodesIn[] = {kX, kW, kCode, kOptionalF32, kOptionalW};
constexpr Port kRmsCodesIn[] = {kX, kW, kCode, kOptionalF32};
constexpr Port kCodesOut[] = {kCode, kOptionalF32, kOptionalX};
constexpr Port kSkipLayerCodesIn[] = {kX, kX, kW, kCode, kOptionalF32, kOptionalW, kOptionalW};
constexpr Port kSkipRmsCodesIn[] = {kX, kX, kW, kCode, kOptionalF32, kOptionalW};
constexpr Port kSkipCodesOut[] = {kCode, kOptionalF32, kOptionalX, kOptionalX};

constexpr Operator kOperators[] = {
    {"LayerNormalization", kLayerIn, kLayerOut, make<kLayer, false, false>},
    {"RMSNormalization", kRmsIn, kRmsOut, make<kRms, false, false>},
    {"SimplifiedLayerNormalization", kRmsIn, kRmsOut, make<kRms, false, false>},
    {"SkipLayerNormalization", kSkipLayerIn, kSkipOut, make<kLayer, true, false>, true},
    {"SkipSimplifiedLayerNormalization", kSkipRmsIn, kSkipOut, make<kRms, true, false>, true},
    {"LayerNormalizationQuantize", kLayerCodesIn, kCodesOut, make<kLayer, false, true>, false,
     false, false},
    {"RMSNormalizationQuantize", kRmsCodesIn, kCodesOut, make<kRms, false, true>, false, false,
     false},
    {"SkipLayerNormalizationQuantize", kSkipLayerCodesIn, kSkipCodesOut, make<kLayer, true, true>,
     true, false, false},
    {"SkipRMSNormalizationQuantize", kSkipRmsCodesIn, kSkipCodesOut, make<kRms, true, true>, true,
     false, false},
};

}  // namespace

std::span<const Operator> norm_operators() { return kOperators; }

}  // namespace fastnorm_ort
