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
    : call_(c.is_backward() ? "norm_backward eps=1e-06" : "norm eps=1e-06"),
      data_(data),
      parameters_(parameters),
      tensor_stride_(tensor_stride),
      parameter_stride_(parameter_stride) {
  call_.change("device=" + std::to_string(target.device_type) + ":" +
               std::to_string(target.device_id));
  if (c.is_layer() || c.op == "adaln") call_.change("kind=layer");
  c.is_backward() ? add_backward(c) : add_forward(c);
}

void CaseCall::rows(const char* path, fastnorm_dtype dtype, std::vector<int64_t> shape) {
  call_.give(path, call_tensor(reinterpret_cast<uintptr_t>(data_), dtype, std::move(shape)));
  data_ += tensor_stride_;
}

void CaseCall::parameter(const char* path, fastnorm_dtype dtype, std::vector<int64_t> shape,
                         int number) {
  const auto at =
      reinterpret_cast<uintptr_t>(parameters_) + static_cast<uintptr_t>(number) * parameter_stride_;
  call_.give(path, call_tensor(at, dtype, std::move(shape)));
}

void CaseCall::add_forward(const BenchCase& c) {
  const fastnorm_dtype dtype = find_dtype(c.dtype)->dtype, columns = weights_dtype(c);
  const std::vector<int64_t> shape = {c.rows, c.n}, n = {c.n};
  const QuantTensors quant = c.quant();
  rows("x", dtype, shape);
  if (c.inputs() > 1) rows(c.op == "gated" ? "gate" : "residual", dtype, shape);
  c.quantises() ? rows("quant.quantized", quant.codes, quant.codes_shape) : rows("y", dtype, shape);
  if (c.adds()) rows("residual_out", dtype, shape);
  if (c.op == "gated") call_.change("gate_act=silu");
  if (c.op == "sandwich") {
    call_.change("branch_norm,branch_rounded=1 branch_eps=1e-06");
    parameter("branch_weight", columns, n, 2);
  }
  const bool modulates = c.op == "adaln";
  parameter(modulates ? "modulation_scale" : "weight", columns, n, 0);
  if (c.is_layer() || modulates) parameter(modulates ? "modulation_shift" : "bias", columns, n, 1);
  if (modulates) parameter("residual_gate", columns, n, 2);
  if (!c.quantises()) return;
  call_.change("quant.scheme=" + std::to_string(c.scheme()));
  if (c.scheme() == FASTNORM_QUANT_PER_BLOCK) call_.change("quant.block_size=128");
  if (c.scheme() == FASTNORM_QUANT_PER_TENSOR) {
    parameter("quant.scale", quant.scale, quant.scale_shape, 3);
  } else {
    rows("quant.scale", quant.scale, quant.scale_shape);  // behind the other tensors
  }
}

void CaseCall::add_backward(const BenchCase& c) {
  const fastnorm_dtype dtype = find_dtype(c.dtype)->dtype,
                       f32 = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
  const std::vector<int64_t> shape = {c.rows, c.n};
  rows("dy", dtype, shape);
  rows("x", dtype, shape);
  if (c.adds()) rows("dresidual_in", dtype, shape);
  rows("dx", dtype, shape);
  tensor_stride_ = values_stride(c);
  rows("rstd", f32, {c.rows});
  if (c.is_layer()) rows("mean", f32, {c.rows});
  parameter("weight", dtype, {c.n}, 0);
  if (c.has_sums()) parameter("dweight", dtype, {c.n}, 1);
  if (c.has_sums() && c.is_layer()) parameter("dbias", dtype, {c.n}, 2);
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
    workload_.calls.push_back(calls_.back().args<fastnorm_norm_args>());
    workload_.sets.push_back({data, data + set_bytes / 2});
  }
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
    args_.push_back(&calls_.back().args<fastnorm_norm_backward_args>());
    timed_.sets.push_back({data, data + set_bytes / 2});
  }
}

TimedCalls BackwardMemory::calls(const Machine& machine) {
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  check(fastnorm_norm_backward_query(machine.context(), args_[0], &info));
  check(fastnorm_norm_backward_prepare(machine.context(), args_[0]));
  workspace_ = info.workspace_bytes != 0 ? machine.allocate(info.workspace_bytes) : Block();
  TimedCalls timed = timed_;
  timed.run = [this, &machine, workspace_bytes = info.workspace_bytes](size_t i) {
    check(fastnorm_norm_backward(machine.context(), args_[i], workspace_.get(), workspace_bytes,
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
