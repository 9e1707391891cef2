// The calls of one entry point: each checked and planned, and which neighbours share a launch.
#pragma once

#include <cstdint>
#include <span>

#include "core/common/error.h"
#include "core/norm/aliasing.h"
#include "core/norm/desc.h"
#include "core/norm/index.h"
#include "core/norm/plan.h"
#include "core/norm/tuning.h"

namespace fastnorm {

// Uninitialised storage. Clearing it would cost time in every call. Each value is assigned before
// it is read.
template <typename Value, int32_t kCount>
union Room {
  Room() {}
  Value at[kCount];
};

// Checked and planned calls, on the stack of their entry point.
template <int32_t kCalls>
struct NormBatch {
  // The calls with rows.
  std::span<const NormCall> planned() const { return {call, static_cast<size_t>(calls)}; }

  Room<NormDesc, kCalls> desc;
  Room<Touched, kCalls> touched;
  Room<NormPlan, kCalls> plan;
  NormCall call[kCalls];
  int32_t count = 0;  // of desc, touched and plan
  int32_t calls = 0;  // of call
};

// What planning a batch depends on.
struct NormPlanner {
  const DeviceFacts& facts;
  const NormIndex& index;    // of the device's table
  const NormTuning* tuning;  // nullptr: none
  bool keeps_order = false;  // rows stay in the order of x's shape
};

fastnorm_status plan_one(const NormPlanner& planner, const fastnorm_norm_args* args,
                         NormBatch<1>* batch, Error& error);

// `args` are `count` pointers. Checks the calls against each other too.
fastnorm_status plan_many(const NormPlanner& planner, const fastnorm_norm_args* const* args,
                          int32_t count, NormBatch<kMaxCalls>* batch, Error& error);

// What fastnorm_norm_query() reports of planned calls. `variant`: the line of the first one's
// kernel.
fastnorm_info batch_info(const DeviceFacts& facts, std::span<const NormCall> calls,
                         uint64_t workspace_bytes, const char* variant);

}  // namespace fastnorm
