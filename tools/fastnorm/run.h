// What the two halves of `fastnorm run`, forward and backward, share.
#pragma once

#include <string>
#include <vector>

#include "json.h"
#include "machine.h"
#include "norm_options.h"
#include "safetensors.h"
#include "stage_options.h"

namespace fastnorm::tool {

// Names of tensors: inputs in the input file, outputs in the output file. Empty = absent.
struct Names {
  std::string x, residual, weight, bias, global_scale, scale_in, clamp_scale, rotation_signs;
  std::string y = "y", residual_out, mean, rstd, quantized, scale_out, amax;
};

// Those of a backward pass, in which mean and rstd are inputs. `bias` gives dbias its shape and
// dtype, and is read for dgate.
struct BackwardNames {
  std::string dy, dresidual_in, old_dweight, old_dbias;
  std::string old_dbranch_weight, old_dbranch_bias, old_dresidual_gate;
  std::string dx = "dx", dresidual, dweight, dbias, dgate;
  std::string branch, branch_mean, dbranch, dbranch_weight, dbranch_bias, dresidual_gate;
};

struct RunOptions {
  std::string input, output, device = "cpu", tuning;
  Names names;
  std::string y_dtype, residual_out_dtype, quantized_dtype, scale_dtype;  // empty = the default
  std::vector<int64_t> scale_shape;
  bool in_place = false, json = false;
  int32_t threads = 1;
  NormOptions norm;
  StageOptions stages;
  bool backward = false, no_dx = false;
  BackwardNames gradients;
  std::string dx_dtype, dresidual_dtype = "f32", dweight_dtype, dbias_dtype, dgate_dtype;
};

// A tensor of a call: its memory and its view, and for outputs the name to store it under.
struct Operand {
  std::string name;
  Block memory;
  std::byte* data = nullptr;
  fastnorm_dtype dtype = {};
  size_t bytes = 0;
  TensorView view;
};

// The tensors of a call: from a file, in a machine's memory, to a file.
class Operands {
 public:
  Operands(const std::string& input, const Machine& machine) : file_(input), machine_(machine) {}

  // The tensor of that name in the file; an empty name is none.
  void load(const std::string& name, Operand* operand) const;
  // A tensor of zeros, or the memory of `in_place_of` where that is there.
  void make(const std::string& name, Operand* operand, const Operand* in_place_of,
            fastnorm_dtype dtype, const std::vector<int64_t>& shape) const;
  // Those of `outputs` that are there. Returns the tensors of the file: name, dtype and shape.
  Json store(const std::string& output, const std::vector<Operand*>& outputs) const;

 private:
  void place(Operand* operand, Block memory, fastnorm_dtype dtype,
             std::vector<int64_t> shape) const;

  SafetensorsFile file_;
  const Machine& machine_;
};

// A tensor of a file: its name, dtype and shape.
Json to_json(const NewTensor& tensor);
// What --json says of a call that ran.
Json to_json(const Machine& machine, const fastnorm_info& info);
// With --json, what was called and written.
void tell_run(const RunOptions& options, const Machine& machine, const fastnorm_info& info,
              const Json& stored);

// fastnorm run --backward.
void run_backward(const RunOptions& options);

}  // namespace fastnorm::tool
