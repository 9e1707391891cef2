// Runs a call, given as a line of text, on the devices of a target, and compares it with the model.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "check/family.h"
#include "check/options.h"
#include "check/sweep.h"
#include "check/target.h"
#include "support/checked_call.h"

namespace fastnorm::check {

// Kernels of a GPU that a call of this family may be run on.
std::vector<std::string> kernels_for(std::string_view family, const Target& target);

// The kernels of `wanted` that can run the call.
std::vector<int32_t> able_kernels(support::CheckedCall& call, Target& target,
                                  const std::vector<int32_t>& wanted);

// Returns "", or what differs from expect_results(). Afterwards the call's memory is as before.
std::string run_call(support::CheckedCall& call, Target& target, int32_t kernel);

// Counts and prints what run_call() found, with the command that runs the line again.
void report_call(const support::CheckedCall& call, const char* name, const Target& target,
                 int32_t kernel, const std::string& finding, Counts* counts);

// --call LINE.
void replay(Target& target, const Options& options, Counts* counts);

}  // namespace fastnorm::check
