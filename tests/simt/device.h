// A device whose kernels simt/machine.h runs: those of sm_90, in host memory.
#pragma once

#include <memory>
#include <string>

#include "core/backend.h"
#include "simt/machine.h"

namespace simt {

std::unique_ptr<fastnorm::Device> make_device(Order order);

// Runs a backward pass. What was wrong with its accesses, "" = nothing.
std::string run_norm_backward(const fastnorm::NormBackwardDesc& desc,
                              const fastnorm::NormBackwardPlan& plan, void* workspace, Order order);

// Runs a norm_heads call likewise.
std::string run_norm_heads(const fastnorm::NormHeadsDesc& desc, const fastnorm::NormHeadsPlan& plan,
                           Order order);

// Runs a norm_heads_backward call likewise.
std::string run_norm_heads_backward(const fastnorm::HeadsGradients& call,
                                    const fastnorm::NormHeadsBackwardPlan& plan, void* workspace,
                                    Order order);
// Runs a norm call with stages likewise.
std::string run_norm_stages(const fastnorm::NormDesc& desc, const fastnorm::NormPlan& plan,
                            Order order);

// Whether kernel `index` of the table was compiled: see -Dsimt_sample.
bool has_kernel(int32_t index);

}  // namespace simt
