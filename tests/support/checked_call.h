// A call of any family that the model knows, from its line of text to what is wrong with it.
#pragma once

#include <string>

#include "ref/norm_spec.h"
#include "support/operands.h"

namespace fastnorm::support {

class CheckedCall : public Operands {
 public:
  // Throws CallTextError.
  explicit CheckedCall(const std::string& line);

  // Works out what should be there afterwards. Before the call.
  void expect_results(ref::Order order);

  // "" or what differs from the model, or of the model from the specification in double.
  std::string difference() const;
  // "" or where the model leaves the bounds of the formula in double. After expect_results().
  const std::string& out_of_bounds() const { return out_of_bounds_; }
  // Rows of a norm that were compared with the specification in double.
  int64_t bounded() const { return bounded_; }

 private:
  std::string out_of_bounds_;
  int64_t bounded_ = 0;
};

}  // namespace fastnorm::support
