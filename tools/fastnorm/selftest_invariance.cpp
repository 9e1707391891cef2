// The same row gives the same bits wherever it lies.
#include "dtype.h"
#include "selftest.h"

namespace fastnorm::tool {
namespace {

// The outputs of one row among `count`.
CaseOutputs one_row(const CaseOutputs& all, int64_t count, int64_t row) {
  const auto part = [&](const std::vector<std::byte>& from) {
    const size_t bytes = from.size() / static_cast<size_t>(count);
    const std::byte* begin = from.data() + bytes * static_cast<size_t>(row);
    return std::vector<std::byte>(begin, begin + bytes);
  };
  return {part(all.y), part(all.residual_out), part(all.mean), part(all.rstd)};
}

void test_rows_alone(const Machine& machine, const SelftestCase& c, const CaseInputs& inputs,
                     const CaseOutputs& expected, Tally* tally) {
  for (int64_t row = 0; row < c.rows; ++row) {
    CaseLayout layout;
    layout.only_row = row;
    layout.name = "a row alone";
    tally->expect(
        run_case(machine, c, inputs, layout, tally) == one_row(expected, c.rows, row),
        c.name() + ": row " + std::to_string(row) + " alone has other bits than among others");
  }
}

void test_many_rows(const Machine& machine, const SelftestCase& c, const CaseInputs& inputs,
                    const CaseOutputs& expected, Tally* tally) {
  constexpr int64_t kElements = 400'000;
  CaseLayout layout;
  layout.copies = std::max<int64_t>(2, std::min<int64_t>(700, kElements / (c.rows * c.n)));
  layout.name = "many rows";
  const CaseOutputs found = run_case(machine, c, inputs, layout, tally);
  int64_t different = 0;
  for (int64_t copy = 0; copy < layout.copies; ++copy) {
    if (one_row(found, layout.copies, copy) != expected) ++different;
  }
  tally->expect(different == 0, c.name() + ": among " + std::to_string(c.rows * layout.copies) +
                                    " rows, " + std::to_string(different) + " of " +
                                    std::to_string(layout.copies) + " copies have other bits");
}

std::vector<CaseLayout> layouts() {
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
  return {again, strided, shifted, apart, in_place, in_place_strided};
}

}  // namespace

void test_invariance(const Machine& machine, Tally* tally) {
  const bool cpu = !machine.target().is_cuda();
  const std::unique_ptr<Machine> pooled =
      cpu ? std::make_unique<Machine>(machine.target(), 3) : nullptr;
  for (const SelftestCase& c : selftest_cases()) {
    const CaseInputs inputs = make_inputs(c);
    CaseLayout compact;
    compact.name = "compact rows";
    const CaseOutputs expected = run_case(machine, c, inputs, compact, tally);
    for (const CaseLayout& layout : layouts()) {
      tally->expect(run_case(machine, c, inputs, layout, tally) == expected,
                    c.name() + ": " + layout.name + " gives other bits");
    }
    test_rows_alone(machine, c, inputs, expected, tally);
    test_many_rows(machine, c, inputs, expected, tally);
    if (pooled != nullptr) test_many_rows(*pooled, c, inputs, expected, tally);
  }
}

}  // namespace fastnorm::tool
