// What the two halves of `fastnorm run`, forward and backward, share.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "json.h"
#include "machine.h"
#include "norm_options.h"
#include "safetensors.h"
#include "stage_options.h"

namespace fastnorm::tool {

struct RunOptions {
  std::string input, output, device = "cpu", tuning;
  NamedTensors names;  // inputs in the input file, outputs in the output file
  std::string y_dtype, residual_out_dtype, quantized_dtype, scale_dtype;  // empty = the default
  std::vector<int64_t> scale_shape;
  bool in_place = false, json = false;
  int32_t threads = 1;
  NormOptions norm;
  StageOptions stages;
  bool backward = false, no_dx = false;
  std::string dx_dtype, dresidual_dtype = "f32", dweight_dtype, dbias_dtype, dgate_dtype;
};

// A tensor of a call: its memory, and for outputs the name to store it under.
struct Operand {
  std::string name;
  Block memory;
  std::byte* data = nullptr;
  fastnorm_dtype dtype = {};
  size_t bytes = 0;
  std::vector<int64_t> shape;
};

// The tensors of a call: from a file, in a machine's memory, to a file. Each has the path of its
// field, or a name of its own where it is not given to the call.
class Operands {
 public:
  Operands(const RunOptions& options, const char* family);

  const support::CallFamily& family() const { return call_.family(); }
  const Machine& machine() const { return machine_; }

  // Loads what the file has for the options that are inputs of the family.
  void load_inputs();
  // The tensor of that name in the file; an empty name is none.
  void load(const std::string& path, const std::string& name);
  // A tensor of zeros, or the memory of `in_place_of` where that is there.
  void make(const std::string& path, const std::string& name, const Operand* in_place_of,
            fastnorm_dtype dtype, const std::vector<int64_t>& shape);
  // null where there is none.
  const Operand* find(const std::string& path) const;
  void drop(const std::string& path) { operands_.erase(path); }

  // Runs the call with these flags beside those of the options. Stores those of the outputs that
  // are there, and tells of them.
  template <class Args>
  void run(uint32_t flags, const std::vector<std::string>& outputs) {
    prepare(flags);
    const fastnorm_info info = machine_.run(*call_.args<Args>());
    tell(info, store(outputs));
  }

 private:
  void place(Operand* operand, Block memory, fastnorm_dtype dtype, std::vector<int64_t> shape);
  void prepare(uint32_t flags);
  Json store(const std::vector<std::string>& outputs) const;
  void tell(const fastnorm_info& info, const Json& stored) const;

  const RunOptions& options_;
  Machine machine_;
  SafetensorsFile file_;
  support::Call call_;
  std::map<std::string, Operand> operands_;
};

// A tensor of a file: its name, dtype and shape.
Json to_json(const NewTensor& tensor);
// What --json says of a call that ran.
Json to_json(const Machine& machine, const fastnorm_info& info);
// fastnorm run --backward.
void run_backward(const RunOptions& options);

}  // namespace fastnorm::tool
