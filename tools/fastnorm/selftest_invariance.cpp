// A row gives the same bits wherever it lies.
#include "dtype.h"
#include "progress.h"
#include "selftest.h"

namespace fastnorm::tool {
namespace {

void test_rows_alone(const Machine& machine, const SelftestCase& c, const CaseInputs& inputs,
                     const CaseOutputs& expected, Tally* tally) {
  for (int64_t row = 0; row < c.rows; ++row) {
    CaseLayout layout;
    layout.only_row = row;
    layout.name = "a row alone";
    const CaseOutputs found = run_case(machine, c, inputs, layout, tally);
    tally->expect(
        part_equals(expected, c.rows, row, found),
        c.name() + ": row " + std::to_string(row) + " alone has other bits than among others");
  }
}

void test_many_rows(const Machine& machine, const SelftestCase& c, const CaseInputs& inputs,
                    const CaseOutputs& expected, Tally* tally) {
  // Codes take the CPU longer, and 200000 elements are still work for three threads.
  const int64_t elements = c.quant.any() ? 200'000 : 400'000;
  // In the last form: swizzled scales of many rows are several tiles, and many heads fill a GPU.
  CaseLayout layout = call_forms(c).back();
  layout.copies = std::max<int64_t>(2, std::min<int64_t>(700, elements / (c.rows * c.n)));
  layout.name = "many rows";
  const CaseOutputs found = run_case(machine, c, inputs, layout, tally);
  int64_t different = 0;
  for (int64_t copy = 0; copy < layout.copies; ++copy) {
    if (!part_equals(found, layout.copies, copy, expected)) ++different;
  }
  tally->expect(different == 0, c.name() + ": among " + std::to_string(c.rows * layout.copies) +
                                    " rows, " + std::to_string(different) + " of " +
                                    std::to_string(layout.copies) + " copies have other bits");
}

std::vector<CaseLayout> layouts(const SelftestCase& c) {
  CaseLayout again, strided, shifted, apart, in_place, in_place_strided;
  again.name = "a second run";
  again.poison = 0x5a;
  strided.name = "rows 8 elements apart";
  strided.gap_elems = 8;
  shifted.name = "off by one element";
  shifted.offset_elems = 1;
  apart.name = "odd strides";
  apart.gap_elems = 3;
  apart.offset_elems = 5;
  in_place.name = "in place";
  in_place.in_place = true;
  in_place_strided = apart;
  in_place_strided.name = "in place, odd strides";
  in_place_strided.in_place = true;
  std::vector<CaseLayout> all = call_forms(c);
  all[0] = again;
  all.insert(all.end(), {strided, shifted, apart, in_place, in_place_strided});
  return all;
}

}  // namespace

void test_invariance(const Machine& machine, const Effort& effort, Tally* tally) {
  const bool cpu = !machine.target().is_cuda();
  const std::unique_ptr<Machine> pooled =
      cpu ? std::make_unique<Machine>(machine.target(), 3) : nullptr;
  const std::vector<SelftestCase> cases = effort.some_of(selftest_cases());
  for (size_t i = 0; i < cases.size(); ++i) {
    const SelftestCase& c = cases[i];
    show_progress(i, cases.size(), c.name());
    const CaseInputs inputs = make_inputs(c);
    const CaseOutputs expected = run_case(machine, c, inputs, {}, tally);
    for (const CaseLayout& layout : layouts(c)) {
      tally->expect(run_case(machine, c, inputs, layout, tally) == expected,
                    c.name() + ": " + layout.name + " gives other bits");
    }
    test_rows_alone(machine, c, inputs, expected, tally);
    test_many_rows(machine, c, inputs, expected, tally);
    if (pooled != nullptr) test_many_rows(*pooled, c, inputs, expected, tally);
  }
}

}  // namespace fastnorm::tool
