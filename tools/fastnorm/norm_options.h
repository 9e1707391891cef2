// The scalar fields of a norm as command-line options, shared by the commands that make a call.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "field_options.h"
#include "library.h"
#include "quant_tensors.h"

namespace fastnorm::tool {

// What bench and tune time: --op, --dtype, --repeats.
struct TimedOptions {
  std::vector<std::string> ops = {"rms", "add", "layer"}, dtypes = {"bf16"};
  int32_t repeats = 9;

  // more: operations besides bench_ops().
  void add_to(CLI::App& command, const std::vector<std::string>& more = {});
};

// --tuning FILE
void add_tuning_option(CLI::App& command, std::string* path);

// --threads N
void add_threads_option(CLI::App& command, int32_t* threads);

// --output FILE
void add_output_option(CLI::App& command, std::string* path);

// --device cpu, and what its value is called in help and completion. planned: a GPU that need not
// be there will do, too.
inline constexpr const char *kDevice = "DEVICE", *kPlannedDevice = "DEVICE|ARCH", *kGpu = "GPU";
void add_device_option(CLI::App& command, std::string* device, bool planned);

// Options of this group need --backward.
inline constexpr const char* kBackwardGroup = "With --backward";
// Separates the two passes of a command whose options are all there: those of kBackwardGroup need
// `flag`; all others exclude it but `shared` and the arithmetic that both passes have.
void separate_backward(CLI::App& command, CLI::Option* flag,
                       const std::vector<std::string>& shared);

class NormOptions {
 public:
  void add_to(CLI::App& command);
  // Parts of it: the norm's kind, eps, weight offset and rounding; what is quantised and how, with
  // row-major scales.
  void add_statistic_to(CLI::App& command);
  void add_quant_to(CLI::App& command);
  const FieldOptions& fields() const { return fields_; }
  // A norm with these fields and without tensors. It has a `quant` in any case.
  support::Call call() const;
  bool is_layer() const { return fields_.chosen("--kind") == "layer"; }
  bool quantises() const { return scheme() != FASTNORM_QUANT_NONE; }
  // For rows of a shape.
  QuantTensors quant_tensors(const std::vector<int64_t>& shape) const;
  fastnorm_quant_scheme scheme() const;

 private:
  FieldOptions fields_;
};

}  // namespace fastnorm::tool
