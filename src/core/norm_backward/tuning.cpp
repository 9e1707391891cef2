#include "core/norm_backward/tuning.h"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <utility>

namespace fastnorm {
namespace {

template <class Fn>
void for_each_kind(const NormBackwardKinds& kinds, Fn fn) {
  for (int32_t number = 0; number < NormBackwardKind::kCount; ++number) {
    const NormBackwardKind kind = NormBackwardKind::of(number);
    if (kind.is_in(kinds)) fn(kind);
  }
}

}  // namespace

fastnorm_status NormBackwardTuning::Reader::add_choice(const TuningLine& line, Error& error) {
  fastnorm_status status = FASTNORM_OK;
  for_each_kind(parsed_.kinds, [&](const NormBackwardKind& kind) {
    if (status == FASTNORM_OK) status = has_kernel(kind, line, error);
  });
  FASTNORM_TRY(status);
  NormBackwardChoice choice = parsed_.choice;
  if (choice.pick.blocks > facts_.max_cluster_blocks) return FASTNORM_OK;
  choice.text = line.text;
  for_each_kind(parsed_.kinds,
                [&](const NormBackwardKind& kind) { tuning_.lines_.add(kind.number(), choice); });
  return FASTNORM_OK;
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

fastnorm_status NormBackwardTuning::Reader::finish(NormBackwardTuning* tuning, Error& error) {
  FASTNORM_TRY(tuning_.lines_.sort(error));
  *tuning = std::move(tuning_);
  return FASTNORM_OK;
}

}  // namespace fastnorm
