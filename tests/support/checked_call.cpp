#include "support/checked_call.h"

#include <algorithm>
#include <iterator>

#include "support/norm_backward_call.h"
#include "support/norm_heads_backward_call.h"
#include "support/norm_heads_call.h"
#include "support/norm_stages_call.h"

namespace fastnorm::support {
namespace {

struct Expected {
  std::string out_of_bounds;
  int64_t bounded = 0;
};

struct Family {
  std::string_view name;
  void (*fill)(Operands&);
  Expected (*expect)(Operands&, ref::Order);
};

constexpr Family kFamilies[] = {
    {"norm", fill_norm,
     [](Operands& call, ref::Order order) {
       const ExpectedNorm found = expect_norm(call, order);
       return Expected{found.out_of_bounds, found.bounded};
     }},
    {"norm_backward", fill_norm_backward,
     [](Operands& call, ref::Order order) { return Expected{expect_norm_backward(call, order)}; }},
    {"norm_heads", fill_norm_heads,
     [](Operands& call, ref::Order order) {
       expect_norm_heads(call, order);
       return Expected{};
     }},
    {"norm_heads_backward", fill_norm_heads,
     [](Operands& call, ref::Order order) {
       return Expected{expect_norm_heads_backward(call, order)};
     }},
};

const Family& family_of(const Operands& call) {
  const auto* const found =
      std::find_if(std::begin(kFamilies), std::end(kFamilies),
                   [&](const Family& f) { return f.name == call.family().name; });
  if (found == std::end(kFamilies))
    throw CallTextError("`" + std::string(call.family().name) + "` has no model of a line");
  return *found;
}

}  // namespace

CheckedCall::CheckedCall(const std::string& line) : Operands(line) { family_of(*this).fill(*this); }

void CheckedCall::expect_results(ref::Order order) {
  const Expected expected = family_of(*this).expect(*this, order);
  out_of_bounds_ = expected.out_of_bounds;
  bounded_ = expected.bounded;
}

std::string CheckedCall::difference() const {
  if (!out_of_bounds_.empty()) return "the model: " + out_of_bounds_;
  return Operands::difference(family().part == nullptr);
}

}  // namespace fastnorm::support
