// What bench and tune time: an operation on matrices of a shape, in memory of its own.
#pragma once

#include <string>
#include <vector>

#include "field_options.h"
#include "machine.h"
#include "quant_tensors.h"
#include "stopwatch.h"

namespace fastnorm::tool {

struct BenchCase {
  std::string op, dtype;  // of bench_ops(), backward_ops() or stage_ops()
  int64_t rows, n;

  std::string name() const;
  bool adds() const { return op.starts_with("add") || op == "sandwich" || op == "adaln"; }
  size_t inputs() const { return adds() || op == "gated" ? 2 : 1; }  // shaped as x
  bool is_backward() const { return op.ends_with("_backward") || op.ends_with("_dx"); }
  bool has_sums() const { return !op.ends_with("_dx"); }  // a backward pass: dweight and dbias
  bool is_layer() const { return op.starts_with("layer"); }
  bool quantises() const { return scheme() != FASTNORM_QUANT_NONE; }
  fastnorm_quant_scheme scheme() const;
  bool has_block_scales() const { return scheme() >= FASTNORM_QUANT_PER_BLOCK; }
  QuantTensors quant() const { return quant_tensors(scheme(), {rows, n}); }
  bool has_f32_weights() const { return op.ends_with("_f32"); }
  size_t tensor_bytes() const;  // of x
  size_t scale_bytes() const;   // of scales that leave
  // Inputs and y, or what is in its place, and residual_out. A backward pass: dy, x, mean, rstd,
  // dresidual_in and dx.
  size_t bytes_moved() const;
};

// "rms", "add" (RMS of x + residual, which is stored) and "layer"; the same to f8 e4m3 by one
// static scale ("_fp8"), by a scale a row ("_row_fp8") or for each 128 columns ("_block_fp8"); RMS
// to MXFP8 and NVFP4; and those without a residual with weight and bias in f32 ("_f32").
std::vector<std::string> bench_ops();

// "rms_backward", "layer_backward", and "add_backward", that of RMSNorm with a dresidual_in: dx,
// dweight and, of LayerNorm, dbias, from given statistics. "rms_dx", "add_dx" and "layer_dx": dx
// alone, as for frozen weights.
std::vector<std::string> backward_ops();

// Norms with stages: "gated" (norm times silu of a gate), "sandwich" (norm, residual, norm) and
// "adaln" (x * residual_gate + residual, LayerNorm without weight, scale and shift). All rows share
// the modulators.
std::vector<std::string> stage_ops();

// A call of a forward or a backward case, somewhere in memory. The tensors are from `data` on,
// `tensor_stride` bytes apart, in the order of their words in bench_case.cpp; weights and what is
// like them from `parameters` on.
class CaseCall {
 public:
  CaseCall(const Target& target, const BenchCase& c, std::byte* data, size_t tensor_stride,
           std::byte* parameters, size_t parameter_stride);

  // Valid until this ends or is moved.
  template <class Args>
  const Args& args() {
    return *call_.args<Args>();
  }

 private:
  void add_forward(const BenchCase& c);
  void add_backward(const BenchCase& c);
  // The next tensor of rows, or parameter number `number`.
  void rows(const char* path, fastnorm_dtype dtype, std::vector<int64_t> shape);
  void parameter(const char* path, fastnorm_dtype dtype, std::vector<int64_t> shape, int number);

  support::Call call_;
  std::byte *data_, *parameters_;
  size_t tensor_stride_, parameter_stride_;
};

// Buffers and calls of one case. Cases larger than the caches, and all on a GPU, rotate over many
// sets so that nothing is found in a cache.
class CaseMemory {
 public:
  CaseMemory(const Machine& machine, const BenchCase& c);

  const Workload& workload() const { return workload_; }

 private:
  Block memory_;
  std::vector<CaseCall> calls_;
  Workload workload_ = {};
};

// Buffers and calls of one backward case, as CaseMemory.
class BackwardMemory {
 public:
  BackwardMemory(const Machine& machine, const BenchCase& c);
  BackwardMemory(const BackwardMemory&) = delete;
  BackwardMemory& operator=(const BackwardMemory&) = delete;

  // The calls in a context of this or another machine with the same device, whose kernels are
  // loaded. Valid until the next ones are asked for.
  TimedCalls calls(const Machine& machine);

 private:
  Block memory_, workspace_;
  std::vector<CaseCall> calls_;
  std::vector<const fastnorm_norm_backward_args*> args_;
  TimedCalls timed_ = {};
};

// The time in UTC.
std::string now_text();

}  // namespace fastnorm::tool
