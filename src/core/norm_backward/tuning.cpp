#include "core/norm_backward/tuning.h"

#include <algorithm>
#include <bit>
#include <cinttypes>

namespace fastnorm {

fastnorm_status NormBackwardTuning::Reader::add_choice(const TuningLine& line, Error& error) {
  return add_if(line, [&](const NormBackwardKind& kind) { return has_kernel(kind, line, error); });
}

// Checks that the kernel exists, and that it holds every length of a line for the least of its
// rows. Where it does not hold more rows, calls keep the library's choice.
fastnorm_status NormBackwardTuning::Reader::has_kernel(const NormBackwardKind& kind,
                                                       const TuningLine& line, Error& error) const {
  const NormBackwardChoice& choice = parsed_.choice;
  const int32_t index = find_norm_backward_entry(table_, kind, form_of(kind.job), choice.pick);
  FASTNORM_REQUIRE(index >= 0, FASTNORM_ERROR_ARGUMENT,
                   "options.tuning_file, line %d is \"%.*s\"; required: a kernel that %s has for "
                   "%s; \"fastnorm info --kernels\" lists them",
                   line.number, kShownChoice, line.text, facts_.arch->name, text_of(kind));
  const NormBackwardVariant& variant = table_[static_cast<size_t>(index)].variant;
  // What is held depends on the next power of two, and on the length itself.
  for (int64_t n = choice.least_vectors;;
       n = std::min<int64_t>(choice.most_vectors,
                             static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n))) + 1)) {
    FASTNORM_REQUIRE(
        holds_rows(variant, n, choice.least_rows, kind.job != BackwardJob::kAlone),
        FASTNORM_ERROR_ARGUMENT,
        "options.tuning_file, line %d is \"%.*s\"; required: a kernel that %s has for %s with %d "
        "rows of %" PRId64 " elements",
        line.number, kShownChoice, line.text, facts_.arch->name, text_of(kind), choice.least_rows,
        n);
    if (n >= choice.most_vectors) return FASTNORM_OK;
  }
}

}  // namespace fastnorm
