// The calls of one entry point of the backward family: each checked, split into parts and planned.
#pragma once

#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/error.h"
#include "core/norm_backward_check.h"
#include "core/norm_backward_tuning.h"
#include "core/norm_batch.h"
#include "core/norm_heads_backward_check.h"
#include "core/norm_heads_backward_plan.h"
#include "core/norm_key.h"

namespace fastnorm {

// What plans calls on a device.
struct NormBackwardPlanner {
  NormBackwardPlanner(const Device& of, const NormBackwardTuning* lines = nullptr)  // NOLINT
      : device(of), tuning(lines) {}

  const Device& device;
  const NormBackwardTuning* tuning;  // nullptr: none
};

// A part that launches something, and where its workspace begins.
struct NormBackwardCall {
  NormBackwardDesc desc;
  NormBackwardPlan plan;
  uint64_t workspace_offset;
  bool first;  // of two parts of one, before the other may replace dy
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
  // Of norm_heads_backward on a CUDA device: what runs all parts together. Without launches each
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
fastnorm_info norm_backward_info(const Device& device, const NormBackwardBatch& batch);

}  // namespace fastnorm
