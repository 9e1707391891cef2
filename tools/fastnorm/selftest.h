// Parts of the self-test. Each counts what it checked and prints what is wrong.
#pragma once

#include <cstdio>
#include <string>

#include "machine.h"

namespace fastnorm::tool {

struct Tally {
  int64_t passed = 0, failed = 0, skipped = 0;

  // Counts one check; prints the first failures of a part, so that a broken machine does not fill
  // the terminal.
  bool expect(bool ok, const std::string& what) {
    constexpr int64_t kShown = 20;
    if (ok) {
      ++passed;
    } else if (++failed <= kShown) {
      std::printf("FAIL %s\n", what.c_str());
    }
    return ok;
  }
};

// One call of the sweep: rows of hashed integers, so that every machine has the same input.
struct SelftestCase {
  fastnorm_dtype dtype;
  fastnorm_norm_kind kind;
  bool residual;
  int64_t rows, n;
  fastnorm_rounding rounding = FASTNORM_ROUND_ONCE;
  fastnorm_residual_rounding residual_rounding = FASTNORM_RESIDUAL_EXACT;

  std::string name() const;
};

// Every case; the same list on every machine.
std::vector<SelftestCase> selftest_cases();

// Contents of the tensors of a case, compact.
struct CaseInputs {
  std::vector<std::byte> x, residual, weight, bias;
};
struct CaseOutputs {
  std::vector<std::byte> y, residual_out, mean, rstd;
  bool operator==(const CaseOutputs&) const = default;
};

constexpr float kSelftestEps = 1e-5f;
constexpr float kSelftestWeightOffset = 0.5f;

CaseInputs make_inputs(const SelftestCase& c);

// How the rows of a case lie in memory. None of it may change a bit.
struct CaseLayout {
  int64_t copies = 1;        // the rows of the case, so many times over
  int64_t only_row = -1;     // >= 0: this row alone
  int64_t gap_elems = 0;     // between rows
  int64_t offset_elems = 0;  // between an aligned address and the first row
  bool in_place = false;     // y over x, residual_out over residual
  uint8_t poison = 0xa5;     // what outputs hold before
  const char* name = "";
};

// Runs a case and returns the outputs of its rows (of one copy, of all copies one after the other;
// of `only_row`). Adds to `tally` whether the bytes between and around the rows are unchanged.
CaseOutputs run_case(const Machine& machine, const SelftestCase& c, const CaseInputs& inputs,
                     const CaseLayout& layout, Tally* tally);

// The same bits for the same row, whatever the layout, batch and thread count.
void test_invariance(const Machine& machine, Tally* tally);

// One number for all outputs of a case: FNV-1a, 64 bits.
uint64_t hash_of(const CaseOutputs& outputs);
// What it must be, by the committed table; nullptr if the case is not there.
const uint64_t* find_golden(const std::string& case_name, bool cuda);

// Output hashes equal those of the committed table.
void test_golden(const Machine& machine, Tally* tally);
// Prints the lines of that table as this machine computes them: name and hash.
void print_golden(const Machine& machine);

// Outputs lie within the error bounds of the arithmetic around a double-precision computation.
void test_against_double(const Machine& machine, Tally* tally);

// The reciprocal root equals 1 / sqrt(v) in IEEE single precision: for every positive float v if
// `full`, else for every v of two binades and samples of all others.
void test_root(const Machine& machine, bool full, Tally* tally);

}  // namespace fastnorm::tool
