// What commands that explain share, and the two halves of `fastnorm explain`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "machine.h"
#include "norm_options.h"
#include "stage_options.h"

namespace fastnorm::tool {

struct ExplainOptions {
  std::vector<int64_t> shape;
  std::string dtype = "bf16", device = "cpu", tuning;
  std::string parameter_dtype, bias_dtype, residual_dtype, residual_out_dtype, y_dtype;
  NamedTensors tensors;  // of stages: "true" where there is one, and shapes of modulators
  bool residual = false, residual_out = false, no_weight = false, bias = false;
  bool statistics = false, head_weights = false, in_place = false, clamp_scale = false,
       rotation_signs = false, json = false;
  int64_t row_stride_elems = 0, offset_elems = 0;
  int32_t threads = 1;
  NormOptions norm;
  StageOptions stages;
  bool backward = false, dresidual_in = false, no_dx = false, no_dweight = false, no_dgate = false,
       branch = false, recompute = false, accumulate = false;
  std::string x_dtype, dresidual_in_dtype, dresidual_dtype, dweight_dtype;
};

// Addresses of tensors that do not exist: a query looks at overlap and alignment, not at memory.
// Each tensor has a region of its own, far more than any tensor has bytes.
class Regions {
 public:
  std::byte* next() { return reinterpret_cast<std::byte*>(uintptr_t{++used_} << kSpacing); }
  static constexpr int kSpacing = 58;

 private:
  uintptr_t used_ = 0;
};

// A call of the options' shape with tensors in regions.
class Pretended {
 public:
  Pretended(const ExplainOptions& options, const char* family);

  // Tensors of a field. Shaped as x, with the row stride and the offset that the options ask for.
  void rows(const char* path, fastnorm_dtype dtype);
  // rows() that take the place of another tensor if the options say so.
  void rows_over(const char* path, const char* other, fastnorm_dtype dtype);
  // Adds a compact tensor of another shape.
  void tensor(const char* path, fastnorm_dtype dtype, std::vector<int64_t> shape);
  // A weight or a bias.
  void parameters(const char* path, fastnorm_dtype dtype);
  bool has(const char* path) { return call_.tensor(path) != nullptr; }
  std::vector<int64_t> row_shape() const;
  // The shape of a value for each group of columns. A group size that the library will refuse
  // counts as none.
  std::vector<int64_t> group_shape() const;

  // The call with these flags beside those of the options.
  support::Call& call(uint32_t flags);

 private:
  uint64_t next_address() { return reinterpret_cast<uintptr_t>(regions_.next()); }
  void rows_at(const char* path, uint64_t address, fastnorm_dtype dtype);

  const ExplainOptions& options_;
  support::Call call_;
  Regions regions_;
};

// What the query of the backward pass answers.
fastnorm_info query_backward(fastnorm_context* context, const ExplainOptions& options);

// The kernels of a backward pass on a GPU, in order: "columns, rows, fold"; "" of other calls,
// and of those with a branch.
std::string backward_launches(const fastnorm_info& info);

// Prints what a query says, as lines or as JSON. `device`: as --device names it.
void tell_plan(const fastnorm_info& info, const std::string& device, bool json);

}  // namespace fastnorm::tool
