#include "core/norm/tuning.h"

#include <algorithm>
#include <cinttypes>

namespace fastnorm {

fastnorm_status NormTuning::Reader::check_kind(const TuningLine& line, Error& error) const {
  FASTNORM_REQUIRE((parsed_.kinds.index & NormKind::kHeads) == 0, FASTNORM_ERROR_ARGUMENT,
                   "options.tuning_file, line %d is for heads; required: rows", line.number);
  return FASTNORM_OK;
}

fastnorm_status NormTuning::Reader::add_choice(const TuningLine& line, Error& error) {
  FASTNORM_REQUIRE(!parsed_.choice.pick.tokens, FASTNORM_ERROR_ARGUMENT,
                   "options.tuning_file, line %d is \"%.*s\"; required: ROWS, after a KIND",
                   line.number, kShownChoice, line.text);
  return add_if(line, [&](const NormKind& kind) { return has_kernels(kind, line, error); });
}

// Checks that the kernel exists for every length of a line.
fastnorm_status NormTuning::Reader::has_kernels(const NormKind& kind, const TuningLine& line,
                                                Error& error) const {
  const NormPick& pick = parsed_.choice.pick;
  const int64_t step = int64_t{pick.threads} * pick.blocks;
  const int64_t most = std::min<int64_t>(parsed_.choice.most_vectors, step * kMaxVectors + 1);
  for (int64_t vectors = parsed_.choice.least_vectors;;
       vectors = std::min(most, (vectors + step - 1) / step * step + 1)) {
    const Tile tile = pick.tile(vectors);
    bool found = false;
    for_each_key(kind, pick.flavour, [&](NormKey key) {
      const int32_t index = find_entry(table_, key, tile);
      if (index < 0) return;
      const VectorRange held = vectors_held(table_[static_cast<size_t>(index)]);
      found |= vectors >= held.least && vectors <= held.most;
    });
    FASTNORM_REQUIRE(found, FASTNORM_ERROR_ARGUMENT,
                     "options.tuning_file, line %d is \"%.*s\"; required: a kernel that %s has "
                     "for rows of %" PRId64
                     " vectors of 16 bytes; \"fastnorm info --kernels\" lists them",
                     line.number, kShownChoice, line.text, facts_.arch->name, vectors);
    if (vectors >= most) return FASTNORM_OK;
  }
}

}  // namespace fastnorm
