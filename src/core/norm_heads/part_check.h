// Checks that norm_heads and its backward share.
#pragma once

#include <cinttypes>
#include <span>

#include "core/common/check.h"
#include "core/common/part_list.h"
#include "core/common/shared_fields.h"
#include "core/norm_heads/desc.h"
#include "fastnorm/norm_heads.h"

namespace fastnorm {

static_assert(kMaxHeadsParts == kMostListParts);

inline constexpr uint32_t kRopeFlags = FASTNORM_NORM_HEADS_ROPE_INTERLEAVED |
                                       FASTNORM_NORM_HEADS_ROPE_INVERSE |
                                       FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED;

struct NamedTensor {
  const char* name;
  const fastnorm_tensor* tensor;
};

// Checks that flags are known and may be combined.
inline fastnorm_status check_part_flags(uint32_t flags, uint32_t known, Error& error) {
  FASTNORM_TRY(check_flags("flags", flags, known, error));
  FASTNORM_REQUIRE((flags & FASTNORM_NORM_HEADS_ROPE) != 0 || (flags & kRopeFlags) == 0,
                   FASTNORM_ERROR_ARGUMENT,
                   "flags is 0x%x; required: FASTNORM_NORM_HEADS_ROPE (2) with ROPE_INTERLEAVED "
                   "(4), ROPE_INVERSE (8) and ROPE_FROM_ROUNDED (16)",
                   flags);
  FASTNORM_REQUIRE(
      (flags & FASTNORM_NORM_HEADS_NORM) != 0 || (flags & FASTNORM_NORM_HEADS_ACROSS_HEADS) == 0,
      FASTNORM_ERROR_ARGUMENT,
      "flags is 0x%x; required: FASTNORM_NORM_HEADS_NORM (1) with ACROSS_HEADS (32)", flags);
  return FASTNORM_OK;
}

inline fastnorm_status check_rope_offset(int32_t offset, Error& error) {
  FASTNORM_REQUIRE(offset >= -1, FASTNORM_ERROR_ARGUMENT,
                   "rope_offset is %d; required: a column, or -1 for the last ones", offset);
  return FASTNORM_OK;
}

// Checks heads and columns of a tensor of rank 3, and the ranks of its weights.
inline fastnorm_status check_heads(const char* name, const fastnorm_tensor& t, bool across_heads,
                                   std::span<const NamedTensor> weights, Error& error) {
  FASTNORM_REQUIRE(t.shape[1] >= 1, FASTNORM_ERROR_SHAPE,
                   "%s.shape is %s; required: at least 1 head", name, shape_text(t.shape, 3).c);
  FASTNORM_REQUIRE(t.shape[2] >= 1, FASTNORM_ERROR_SHAPE,
                   "%s.shape is %s; required: at least 1 column", name, shape_text(t.shape, 3).c);
  FASTNORM_REQUIRE(t.shape[2] <= kMaxHeadColumns, FASTNORM_ERROR_UNSUPPORTED,
                   "%s.shape is %s; nearest: rows of at most %" PRId64 " columns", name,
                   shape_text(t.shape, 3).c, kMaxHeadColumns);
  FASTNORM_REQUIRE(!across_heads || t.shape[1] <= (int64_t{1} << 32) / t.shape[2],
                   FASTNORM_ERROR_UNSUPPORTED,
                   "%s.shape is %s with ACROSS_HEADS; nearest: at most 2^32 columns in all heads",
                   name, shape_text(t.shape, 3).c);
  for (const NamedTensor& w : weights) {
    FASTNORM_REQUIRE(w.tensor == nullptr || w.tensor->ndim <= 2, FASTNORM_ERROR_SHAPE,
                     "%s.ndim is %d; required: 1 or 2, [d] or [heads, d]", w.name, w.tensor->ndim);
  }
  return FASTNORM_OK;
}

}  // namespace fastnorm
