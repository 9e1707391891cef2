// Parts of the self-test. Each counts what it checked and notes what is wrong.
#pragma once

#include <array>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "machine.h"

namespace fastnorm::tool {

struct Tally {
  int64_t passed = 0, failed = 0, skipped = 0;
  // What failed first: the first texts of a part, so that a broken machine does not fill the
  // terminal. Notes are what else is worth telling.
  std::vector<std::string> failures, notes;

  // Counts one check.
  bool expect(bool ok, const std::string& what) {
    constexpr int64_t kShown = 20;
    if (ok) {
      ++passed;
    } else if (++failed <= kShown) {
      failures.push_back(what);
    }
    return ok;
  }
  void print() const {
    for (const std::string& text : failures) std::printf("FAIL %s\n", text.c_str());
    for (const std::string& text : notes) std::printf("  %s\n", text.c_str());
  }
};

// Machines that share the work of a part: on a GPU the machine itself, on a CPU one of one thread
// for each of its threads.
class Workers {
 public:
  explicit Workers(const Machine& machine);

  size_t count() const { return own_.empty() ? 1 : own_.size(); }
  const Machine& machine(size_t worker) const { return own_.empty() ? machine_ : *own_[worker]; }
  // Calls work(worker, i) for each i below `parts`, the workers beside each other. `name` is told
  // with the progress. What a worker throws is thrown here, once all have ended.
  void run(size_t parts, const char* name,
           const std::function<void(size_t worker, size_t i)>& work) const;

 private:
  const Machine& machine_;
  std::vector<std::unique_ptr<Machine>> own_;
};

// The codes of a case and their scales.
struct CaseQuant {
  const char* name = "";
  fastnorm_quant_scheme scheme = FASTNORM_QUANT_NONE;
  fastnorm_dtype_id codes = FASTNORM_DTYPE_F8_E4M3FN, scale = FASTNORM_DTYPE_F32;
  int32_t block = 0;       // columns that share a scale; 0 = the row, or all rows
  float static_scale = 0;  // a power of two: PER_TENSOR's scale, or NVFP4's global one

  bool any() const { return scheme != FASTNORM_QUANT_NONE; }
  bool scale_is_static() const { return scheme == FASTNORM_QUANT_PER_TENSOR; }
};

// One call of the sweep: rows of hashed integers, so that every machine has the same input.
struct SelftestCase {
  fastnorm_dtype dtype;
  fastnorm_norm_kind kind;
  bool residual;
  int64_t rows, n;
  fastnorm_rounding rounding = FASTNORM_ROUND_ONCE;
  fastnorm_residual_rounding residual_rounding = FASTNORM_RESIDUAL_EXACT;
  bool f32_weights = false;  // weight and bias beside 16-bit rows
  bool mixed = false;        // weight, residual and x of three dtypes; y is f32
  CaseQuant quant = {};
  bool quant_rounded = false;  // codes of y, which is stored, too; else of the unrounded result
  bool special = false;        // some columns of the weight make results infinite, NaN or 0
  // Not 0: the rows are these heads of tokens. Queries share a weight and keys another, or each
  // head has its own.
  int64_t query_heads = 0, key_heads = 0;
  bool weight_per_head = false;

  std::string name() const;
  int64_t heads() const { return query_heads + key_heads; }
  int64_t weight_rows() const { return heads() == 0 ? 1 : weight_per_head ? heads() : 2; }
  int64_t weight_row(int64_t row) const;
  fastnorm_dtype weight_dtype() const;
  fastnorm_dtype residual_dtype() const;  // of residual_out, too
  fastnorm_dtype y_dtype() const;
  bool stores_y() const { return !quant.any() || quant_rounded; }
  int64_t scales() const { return quant.block == 0 ? 1 : (n + quant.block - 1) / quant.block; }
  // A power of two makes ties of rounded results; from the others, the reciprocal is to be rounded.
  float static_scale() const {
    return quant_rounded ? quant.static_scale : quant.static_scale * 1.3f;
  }
};

// Every case; the same list on every machine.
std::vector<SelftestCase> selftest_cases();

// Contents of the tensors of a case, compact.
struct CaseInputs {
  std::vector<std::byte> x, residual, weight, bias;
};
enum Output { kY, kResidualOut, kMean, kRstd, kCodes, kScale, kOutputs };
// Empty: not an output of the case.
using CaseOutputs = std::array<std::vector<std::byte>, kOutputs>;

constexpr float kSelftestEps = 1e-5f;
constexpr float kSelftestWeightOffset = 0.5f;

CaseInputs make_inputs(const SelftestCase& c);
// The first `count` values of an endless tensor of hashed integers. Streams 1 to 4 are x, residual,
// weight and bias.
std::vector<std::byte> make_tensor(fastnorm_dtype dtype, int64_t count, uint64_t stream);

// Queries and keys by a call each, by one call (with a weight per head), or by one
// fastnorm_norm_many.
enum class HeadCalls { kEach, kOne, kMany };

// How the rows of a case lie in memory, and how the library is asked for them. None of it may
// change a bit.
struct CaseLayout {
  const char* name = "compact rows";
  int64_t copies = 1;        // the rows of the case, so many times over
  int64_t only_row = -1;     // >= 0: this row alone
  int64_t gap_elems = 0;     // between rows
  int64_t offset_elems = 0;  // between an aligned address and the first row
  bool in_place = false;     // y over x, residual_out over residual
  uint8_t poison = 0xa5;     // what outputs hold before
  fastnorm_scale_layout scales = FASTNORM_SCALE_ROW_MAJOR;
  HeadCalls calls = HeadCalls::kEach;
};

// Compact rows, and the same with scales in their other orders and heads in other calls.
std::vector<CaseLayout> call_forms(const SelftestCase& c);

// Runs a case and returns the outputs of its rows (of one copy, of all copies one after the other;
// of `only_row`). Adds to `tally` whether all other bytes, the inputs' too, are unchanged.
CaseOutputs run_case(const Machine& machine, const SelftestCase& c, const CaseInputs& inputs,
                     const CaseLayout& layout, Tally* tally);

// Part `index` of `count` equal parts of the outputs is `wanted`.
bool part_equals(const CaseOutputs& outputs, int64_t count, int64_t index,
                 const CaseOutputs& wanted);

// How much of each part runs.
struct Effort {
  bool full = false;  // functions: of every float
  int64_t every = 1;  // cases: one of so many

  template <typename Case>
  std::vector<Case> some_of(const std::vector<Case>& all) const {
    std::vector<Case> some;
    for (size_t i = 0; i < all.size(); i += static_cast<size_t>(every)) some.push_back(all[i]);
    return some;
  }
};

// A row has the same bits, whatever the layout, batch and thread count.
void test_invariance(const Machine& machine, const Effort& effort, Tally* tally);

// One number for all outputs of a case: FNV-1a, 64 bits.
uint64_t hash_of(const CaseOutputs& outputs);
// What it must be, by the committed table; nullptr if the case is not there.
const uint64_t* find_golden(const std::string& case_name, bool cuda);

// Output hashes equal those of the committed table.
void test_golden(const Machine& machine, const Effort& effort, Tally* tally);
// The golden hashes of the backward pass, in other layouts and with other numbers of threads too.
void test_backward_golden(const Machine& machine, const Effort& effort, Tally* tally);
// The lines of that table as this machine computes them.
struct GoldenHash {
  std::string name, hash;
};
std::vector<GoldenHash> golden_hashes(const Machine& machine);

// Outputs lie within the error bounds of the arithmetic around a double-precision computation.
void test_against_double(const Machine& machine, const Effort& effort, Tally* tally);

// The reciprocal root equals 1 / sqrt(v) in IEEE single precision: for every positive float v if
// `full`, else for every v, or one of so many, of two binades and samples of all others.
void test_root(const Machine& machine, const Effort& effort, Tally* tally);

// sigmoid and silu have the bits of the CPU: for every float if `full`, else for samples.
void test_functions(const Machine& machine, const Effort& effort, Tally* tally);

}  // namespace fastnorm::tool
