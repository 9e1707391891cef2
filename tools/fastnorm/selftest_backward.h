// The backward pass in the self-test: cases, their input, and running them in some layout.
#pragma once

#include <string>
#include <vector>

#include "selftest.h"

namespace fastnorm::tool {

struct BackwardCase {
  fastnorm_dtype dtype;
  fastnorm_norm_kind kind;
  bool residual;  // a dresidual_in is added
  int64_t rows, n;
  fastnorm_rounding rounding = FASTNORM_ROUND_ONCE;
  bool f32_weights = false;  // weight, dweight and dbias beside 16-bit rows
  bool recompute = false;    // mean and rstd are not given
  int64_t heads = 1;         // each with a row of the weight; rows are those of all heads

  std::string name() const;
  bool layer() const { return kind == FASTNORM_NORM_LAYER; }
  fastnorm_dtype weight_dtype() const;
};

// Every case; the same list on every machine.
std::vector<BackwardCase> backward_cases();

// Contents of the tensors of a case, compact. mean and rstd are there with `recompute` too.
struct BackwardInputs {
  std::vector<std::byte> dy, x, weight, dresidual_in, mean, rstd;
};
BackwardInputs make_inputs(const BackwardCase& c);

// dx depends on the order of sums along a row, which is a CPU's or a GPU's. dweight and, of
// LayerNorm, dbias have one order on all machines.
struct BackwardOutputs {
  std::vector<std::byte> dx, dweight, dbias;
};
uint64_t hash_of_dx(const BackwardOutputs& outputs);
uint64_t hash_of_sums(const BackwardOutputs& outputs);
// Their names in the table of hashes.
std::string dx_name(const BackwardCase& c);
std::string sums_name(const BackwardCase& c);

// Runs a case. Of the layout count gap, offset, poison and in_place (dx over dy). Adds to `tally`
// whether all other bytes, the inputs' too, are unchanged.
BackwardOutputs run_case(const Machine& machine, const BackwardCase& c,
                         const BackwardInputs& inputs, const CaseLayout& layout, Tally* tally);

// Layouts that must not change a bit.
std::vector<CaseLayout> backward_layouts();

}  // namespace fastnorm::tool
