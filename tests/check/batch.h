// Cases that share one block of memory. It is filled, and the kernel runs on all of them.
// Afterwards the whole block, with guards, gaps and inputs, may differ only in the expected
// outputs.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "check/placed_case.h"
#include "check/same_bits.h"
#include "ref/norm_model.h"
#include "ref/quant.h"

namespace fastnorm::check {

class Batch {
 public:
  Batch(std::vector<PlacedCase> cases, ref::Order order, int threads);

  const std::vector<PlacedCase>& cases() const { return cases_; }
  size_t bytes() const { return bytes_; }
  int64_t rows() const { return static_cast<int64_t>(rows_.size()); }

  // Memory before run number `pass`. Outputs and the gaps between tensors hold NaN in the first
  // run, noise in later ones.
  const std::byte* fill(int pass);

  // Memory after the run, for the device to write to. Several devices may run one after the other
  // from what fill() gave.
  std::byte* after() { return actual_.data(); }

  // Compares all memory after a run. Returns the error of each case, or "". In `same_bits` equal
  // rows must have equal bits too.
  std::vector<std::string> compare(SameBits* same_bits);

 private:
  struct Row {
    size_t item;     // of cases_
    int64_t number;  // within its case
    RowIndex index;
    bool has_nan = false;
    uint64_t digest[5] =
        {};          // of y, residual_out, mean, rstd, codes with scales, as the library gave them
    float amax = 0;  // as expected
    std::string finding;       // about the model
    std::string tail_finding;  // about the last run
  };
  struct Scratch {
    std::vector<float> x, residual, weight, bias, z;
    ref::ModelScratch model;
    ref::NormResult result;
    ref::QuantResult quant;
    std::vector<uint8_t> packed;
  };

  void fill_inputs(const PlacedCase& placed);
  void refill(int pass);
  void compute(Row& row, Scratch& scratch);
  void compute_quant(Row& row, Scratch& scratch);
  void combine_amax();
  void accept_nan(int64_t at);
  uint64_t quant_digest(const Row& row) const;
  std::string quant_difference(size_t item) const;
  ref::NormRow decode(const PlacedCase& placed, const RowIndex& index, Scratch& scratch) const;
  void examine(Row& row, Scratch& scratch);
  void accept_nans(const Row& row);
  std::string check_tail(const Row& row, Scratch& scratch) const;
  std::string first_difference(size_t item) const;
  std::string repeat(const Row& row, SameBits* same_bits) const;

  std::vector<PlacedCase> cases_;
  const ref::Order order_;
  const int threads_;
  size_t bytes_ = 0;
  int pass_ = -1;
  std::vector<Row> rows_;
  std::vector<Scratch> scratch_;
  std::vector<std::byte> before_, expected_, actual_;
};

}  // namespace fastnorm::check
