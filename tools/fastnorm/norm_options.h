// The scalar fields of fastnorm_norm_args as command-line options, shared by the commands that make
// a call.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

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
  // Sets the scalar fields of `args`, struct_size included; and those of `quant`, to which args
  // then points.
  void apply(fastnorm_norm_args* args, fastnorm_quant* quant) const;
  void apply(fastnorm_norm_backward_args* args) const;
  bool is_layer() const { return kind_ == "layer"; }
  bool quantises() const { return quant_scheme_ != "none"; }
  // For rows of a shape.
  QuantTensors quant_tensors(const std::vector<int64_t>& shape) const;

 private:
  std::string kind_ = "rms", rounding_ = "once", residual_rounding_ = "exact";
  float eps_ = 1e-6f, weight_offset_ = 0;
  bool pdl_wait_ = false, pdl_trigger_ = false, pdl_constant_weights_ = false, no_pdl_ = false;
  std::string quant_scheme_ = "none", quant_source_ = "f32", scale_layout_ = "row-major";
  int32_t quant_block_size_ = 0, rotation_ = 0;
  bool scale_pow2_ = false, y_rotated_ = false;
  float amax_floor_ = 0, clamp_ = 0;
  std::string quant_division_ = "reciprocal";
};

}  // namespace fastnorm::tool
