#include "support/checked_call.h"

#include <algorithm>
#include <iterator>

#include "support/call_model.h"

namespace fastnorm::support {

namespace {

const CallModel& model_of(const Operands& call) {
#define FAMILY(name) name##_model(),
  static const CallModel all[] = {FASTNORM_PART_FAMILIES(FAMILY)};
#undef FAMILY
  const auto* const found = std::find_if(std::begin(all), std::end(all), [&](const CallModel& m) {
    return std::string_view(m.family) == call.family().name;
  });
  if (found == std::end(all))
    throw CallTextError("`" + std::string(call.family().name) + "` has no model of a line");
  return *found;
}

}  // namespace

CheckedCall::CheckedCall(const std::string& line) : Operands(line) { model_of(*this).fill(*this); }

void CheckedCall::expect_results(ref::Order order) {
  const Expected expected = model_of(*this).expect(*this, order);
  out_of_bounds_ = expected.out_of_bounds;
  bounded_ = expected.bounded;
}

std::string CheckedCall::difference() const {
  if (!out_of_bounds_.empty()) return "the model: " + out_of_bounds_;
  return Operands::difference(family().part == nullptr);
}

}  // namespace fastnorm::support
