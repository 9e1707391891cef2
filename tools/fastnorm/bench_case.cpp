#include "bench_case.h"

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "dtype.h"

namespace fastnorm::tool {
namespace {

constexpr size_t kAlignment = 256;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

fastnorm_dtype weights_dtype(const BenchCase& c) {
  return c.has_f32_weights() ? fastnorm_dtype_of(FASTNORM_DTYPE_F32) : find_dtype(c.dtype)->dtype;
}

struct Sets {
  size_t count;
  bool cold;
};

Sets choose_sets(const Machine& machine, size_t set_bytes) {
  constexpr size_t kGpuColdBytes = size_t{600} << 20, kGpuMaxSets = 256;
  constexpr size_t kCpuColdBytes = size_t{512} << 20, kCacheBytes = size_t{1} << 20;
  if (machine.target().is_cuda())
    return {std::clamp<size_t>(kGpuColdBytes / set_bytes, 2, kGpuMaxSets), true};
  const bool cold = set_bytes > kCacheBytes;
  return {cold ? std::max<size_t>(2, kCpuColdBytes / set_bytes) : 1, cold};
}

// Values near 1 of both signs: speed may depend on how many bits flip.
void fill(const Machine& machine, std::byte* memory, fastnorm_dtype dtype, size_t bytes) {
  const size_t size = element_bytes(dtype), period = std::min<size_t>(bytes, size_t{1} << 20);
  std::vector<std::byte> pattern(period);
  uint64_t state = 1;
  for (size_t i = 0; i + size <= period; i += size) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto h = static_cast<double>(static_cast<int32_t>(state >> 32));
    encode(dtype, h * 0x1p-30, &pattern[i]);
  }
  for (size_t at = 0; at < bytes; at += period) {
    machine.upload(memory + at, pattern.data(), std::min(period, bytes - at));
  }
}

size_t bytes_of(fastnorm_dtype dtype, const std::vector<int64_t>& shape) {
  size_t bytes = element_bytes(dtype);
  for (const int64_t extent : shape) bytes *= static_cast<size_t>(extent);
  return bytes;
}

size_t backward_tensors(const BenchCase& c) { return c.adds() ? 4 : 3; }

size_t values_stride(const BenchCase& c) {
  return aligned(bytes_of(fastnorm_dtype_of(FASTNORM_DTYPE_F32), {c.rows}));
}

}  // namespace

std::vector<std::string> bench_ops() {
  return {"rms",           "add",           "layer",         "rms_fp8",
          "add_fp8",       "layer_fp8",     "rms_row_fp8",   "add_row_fp8",
          "layer_row_fp8", "rms_block_fp8", "add_block_fp8", "layer_block_fp8",
          "rms_mxfp8",     "rms_nvfp4",     "rms_f32",       "layer_f32"};
}

std::vector<std::string> backward_ops() {
  return {"rms_backward", "add_backward", "layer_backward", "rms_dx", "add_dx", "layer_dx"};
}

std::vector<std::string> stage_ops() { return {"gated", "sandwich", "adaln"}; }

fastnorm_quant_scheme BenchCase::scheme() const {
  return op.ends_with("_row_fp8")     ? FASTNORM_QUANT_PER_ROW
         : op.ends_with("_block_fp8") ? FASTNORM_QUANT_PER_BLOCK
         : op.ends_with("_mxfp8")     ? FASTNORM_QUANT_MXFP8
         : op.ends_with("_nvfp4")     ? FASTNORM_QUANT_NVFP4
         : op.ends_with("_fp8")       ? FASTNORM_QUANT_PER_TENSOR
                                      : FASTNORM_QUANT_NONE;
}

size_t BenchCase::tensor_bytes() const { return bytes_of(find_dtype(dtype)->dtype, {rows, n}); }

size_t BenchCase::scale_bytes() const {
  if (!quantises() || scheme() == FASTNORM_QUANT_PER_TENSOR) return 0;
  const QuantTensors q = quant();
  return bytes_of(q.scale, q.scale_shape);
}

size_t BenchCase::bytes_moved() const {
  if (is_backward()) {
    const size_t statistics = bytes_of(fastnorm_dtype_of(FASTNORM_DTYPE_F32), {rows});
    return tensor_bytes() * backward_tensors(*this) + statistics * (is_layer() ? 2 : 1);
  }
  const QuantTensors q = quant();
  return tensor_bytes() * (inputs() + (adds() ? 1 : 0)) +
         (quantises() ? bytes_of(q.codes, q.codes_shape) + scale_bytes() : tensor_bytes());
}

CaseCall::CaseCall(const Target& target, const BenchCase& c, std::byte* data, size_t tensor_stride,
                   std::byte* parameters, size_t parameter_stride)
    : op_(c.op), layer_(c.is_layer()), scheme_(c.scheme()) {
  const fastnorm_dtype dtype = find_dtype(c.dtype)->dtype;
  const QuantTensors quant = c.quant();
  const std::vector<int64_t> shape = {c.rows, c.n};
  const auto next = [&](fastnorm_dtype of, const std::vector<int64_t>& extents) {
    const TensorView view(target, data, of, extents);
    data += tensor_stride;
    return view;
  };
  x_ = next(dtype, shape);
  if (c.inputs() > 1) residual_ = next(dtype, shape);
  y_ = c.quantises() ? next(quant.codes, quant.codes_shape) : next(dtype, shape);
  if (c.adds()) residual_out_ = next(dtype, shape);
  const fastnorm_dtype columns = weights_dtype(c);
  weight_ = TensorView(target, parameters, columns, {c.n});
  if (layer_ || op_ == "adaln")
    bias_ = TensorView(target, parameters + parameter_stride, columns, {c.n});
  more_ = TensorView(target, parameters + 2 * parameter_stride, columns, {c.n});
  if (c.quantises()) {
    const bool given = scheme_ == FASTNORM_QUANT_PER_TENSOR;  // others are behind the other tensors
    scale_ = TensorView(target, given ? parameters + 3 * parameter_stride : data, quant.scale,
                        quant.scale_shape);
  }
}

fastnorm_norm_args CaseCall::args() {
  fastnorm_norm_args args = {};
  args.struct_size = sizeof args;
  args.kind = layer_ ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS;
  args.eps = 1e-6f;
  args.x = x_.get();
  args.residual = residual_.get();
  args.weight = weight_.get();
  args.bias = bias_.get();
  (scheme_ == FASTNORM_QUANT_NONE ? args.y : quant_.quantized) = y_.get();
  quant_.struct_size = sizeof quant_;
  quant_.scheme = scheme_;
  quant_.block_size = scheme_ == FASTNORM_QUANT_PER_BLOCK ? 128 : 0;
  quant_.scale = scale_.get();
  if (scheme_ != FASTNORM_QUANT_NONE) args.quant = &quant_;
  args.residual_out = residual_out_.get();
  if (op_ == "gated") {
    args.gate = args.residual;
    args.gate_act = FASTNORM_ACTIVATION_SILU;
    args.residual = nullptr;
  } else if (op_ == "sandwich") {
    args.branch_norm = args.branch_rounded = 1;
    args.branch_eps = args.eps;
    args.branch_weight = more_.get();
  } else if (op_ == "adaln") {
    args.kind = FASTNORM_NORM_LAYER;
    args.weight = args.bias = nullptr;
    args.residual_gate = more_.get();
    args.modulation_scale = weight_.get();
    args.modulation_shift = bias_.get();
  }
  return args;
}

CaseMemory::CaseMemory(const Machine& machine, const BenchCase& c) {
  const fastnorm_dtype dtype = find_dtype(c.dtype)->dtype;
  const size_t tensor_stride = aligned(c.tensor_bytes()),
               parameter_stride =
                   aligned(static_cast<size_t>(c.n) * element_bytes(weights_dtype(c))),
               set_bytes =
                   tensor_stride * (c.inputs() + (c.adds() ? 2 : 1)) + aligned(c.scale_bytes());
  const Sets sets = choose_sets(machine, set_bytes);
  const size_t parameters = 3 * parameter_stride + kAlignment;
  const size_t bytes = parameters + sets.count * set_bytes;
  memory_ = machine.allocate(bytes);
  fill(machine, memory_.get(), dtype, bytes);
  workload_.cold = sets.cold;
  workload_.copy_bytes = std::min(aligned(c.bytes_moved() / 2), set_bytes - set_bytes / 2);
  calls_.reserve(sets.count);
  for (size_t i = 0; i < sets.count; ++i) {
    std::byte* const data = memory_.get() + parameters + i * set_bytes;
    calls_.emplace_back(machine.target(), c, data, tensor_stride, memory_.get(), parameter_stride);
    workload_.calls.push_back(calls_.back().args());
    workload_.sets.push_back({data, data + set_bytes / 2});
  }
}

BackwardCall::BackwardCall(const Target& target, const BenchCase& c, std::byte* data,
                           size_t tensor_stride, std::byte* parameters, size_t parameter_stride)
    : layer_(c.is_layer()), sums_(c.has_sums()) {
  const fastnorm_dtype dtype = find_dtype(c.dtype)->dtype,
                       f32 = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
  const auto next = [&](std::byte** at, fastnorm_dtype of, std::vector<int64_t> shape,
                        size_t stride) {
    const TensorView view(target, *at, of, std::move(shape));
    *at += stride;
    return view;
  };
  dy_ = next(&data, dtype, {c.rows, c.n}, tensor_stride);
  x_ = next(&data, dtype, {c.rows, c.n}, tensor_stride);
  if (c.adds()) dresidual_in_ = next(&data, dtype, {c.rows, c.n}, tensor_stride);
  dx_ = next(&data, dtype, {c.rows, c.n}, tensor_stride);
  rstd_ = next(&data, f32, {c.rows}, values_stride(c));
  if (layer_) mean_ = next(&data, f32, {c.rows}, values_stride(c));
  weight_ = next(&parameters, dtype, {c.n}, parameter_stride);
  dweight_ = next(&parameters, dtype, {c.n}, parameter_stride);
  dbias_ = next(&parameters, dtype, {c.n}, parameter_stride);
}

fastnorm_norm_backward_args BackwardCall::args() {
  fastnorm_norm_backward_args args = {};
  args.struct_size = sizeof args;
  args.kind = layer_ ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS;
  args.eps = 1e-6f;
  args.dy = dy_.get();
  args.x = x_.get();
  args.weight = weight_.get();
  args.mean = mean_.get();
  args.rstd = rstd_.get();
  args.dresidual_in = dresidual_in_.get();
  args.dx = dx_.get();
  if (sums_) args.dweight = dweight_.get();
  if (sums_ && layer_) args.dbias = dbias_.get();
  return args;
}

BackwardMemory::BackwardMemory(const Machine& machine, const BenchCase& c) {
  const fastnorm_dtype dtype = find_dtype(c.dtype)->dtype,
                       f32 = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
  const size_t tensor = aligned(c.tensor_bytes()), columns = aligned(bytes_of(dtype, {c.n})),
               rows_bytes = tensor * backward_tensors(c),
               set_bytes = rows_bytes + values_stride(c) * (c.is_layer() ? 2 : 1);
  const Sets sets = choose_sets(machine, set_bytes);
  const size_t bytes = 3 * columns + sets.count * set_bytes;
  memory_ = machine.allocate(bytes);
  fill(machine, memory_.get(), dtype, bytes);
  timed_.copy_bytes = std::min(aligned(c.bytes_moved() / 2), set_bytes - set_bytes / 2);
  timed_.cold = sets.cold;
  calls_.reserve(sets.count);  // no view moves
  for (size_t i = 0; i < sets.count; ++i) {
    std::byte* const data = memory_.get() + 3 * columns + i * set_bytes;
    fill(machine, data + rows_bytes, f32, set_bytes - rows_bytes);
    calls_.emplace_back(machine.target(), c, data, tensor, memory_.get(), columns);
    args_.push_back(calls_.back().args());
    timed_.sets.push_back({data, data + set_bytes / 2});
  }
}

TimedCalls BackwardMemory::calls(const Machine& machine) {
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  check(fastnorm_norm_backward_query(machine.context(), args_.data(), &info));
  check(fastnorm_norm_backward_prepare(machine.context(), args_.data()));
  workspace_ = info.workspace_bytes != 0 ? machine.allocate(info.workspace_bytes) : Block();
  TimedCalls timed = timed_;
  timed.run = [this, &machine, workspace_bytes = info.workspace_bytes](size_t i) {
    check(fastnorm_norm_backward(machine.context(), &args_[i], workspace_.get(), workspace_bytes,
                                 machine.stream()));
  };
  return timed;
}

std::string BenchCase::name() const {
  return op + " " + dtype + " " + std::to_string(rows) + "x" + std::to_string(n);
}

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text;
}

}  // namespace fastnorm::tool
