// The calls of one entry point of the backward families: each checked, split into parts and
// planned.
#pragma once

#include <cstdint>
#include <span>

#include "core/common/error.h"
#include "core/norm/batch.h"
#include "core/norm/key.h"
#include "core/norm_backward/check.h"
#include "core/norm_backward/tuning.h"
#include "core/norm_heads_backward/check.h"
#include "core/norm_heads_backward/plan.h"

namespace fastnorm {

// What plans calls on a device.
struct NormBackwardPlanner {
  const DeviceFacts& facts;
  std::span<const NormBackwardEntry> table;  // of a GPU
  std::span<const NormHeadsBackwardEntry> heads_table;
  const NormBackwardTuning* tuning = nullptr;  // nullptr: none
};

struct NormBackwardBatch {
  static constexpr int32_t kMostParts = 2 * kMaxCalls;  // of norm_heads_backward, too
  static_assert(kMaxHeadsParts <= kMaxCalls);

  std::span<const NormBackwardCall> planned() const {
    return {call.at, static_cast<size_t>(count)};
  }

  Room<NormBackwardCall, kMostParts> call;
  int32_t count = 0;
  uint64_t workspace_bytes = 0;
  // What runs all parts of norm_heads_backward together, on a CUDA device. Without launches each
  // part has a plan of its own.
  NormHeadsBackwardPlan together;
};

// The parts of a call that run together.
HeadsGradients heads_gradients(const NormBackwardBatch& batch);

fastnorm_status plan_norm_backward_one(const NormBackwardPlanner& planner,
                                       const fastnorm_norm_backward_args* args,
                                       NormBackwardBatch* batch, Error& error);

// `args` are `count` pointers. Checks the calls against each other too.
fastnorm_status plan_norm_backward_many(const NormBackwardPlanner& planner,
                                        const fastnorm_norm_backward_args* const* args,
                                        int32_t count, NormBackwardBatch* batch, Error& error);

// The parts of a norm_heads_backward call.
fastnorm_status plan_norm_heads_backward(const NormBackwardPlanner& planner,
                                         const fastnorm_norm_heads_args* args,
                                         const fastnorm_norm_heads_backward_part* const* parts,
                                         int32_t count, NormBackwardBatch* batch, Error& error);

// What fastnorm_norm_backward_query() says of planned calls.
fastnorm_info norm_backward_info(const DeviceFacts& facts, const NormBackwardBatch& batch);

}  // namespace fastnorm
