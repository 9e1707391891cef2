// Checks of a backward call's arguments, and their canonical form.
#pragma once

#include <span>

#include "core/common/check.h"
#include "core/common/error.h"
#include "core/norm_backward/desc.h"

namespace fastnorm {

// Checks one call. `whole` describes it with leading dimensions in the caller's order: shared_rows,
// groups and shared_rank are not set. Without rows, its strides are those of the parameters alone.
fastnorm_status check_norm_backward(const fastnorm_norm_backward_args* args, CheckedDevice device,
                                    NormBackwardDesc* whole, Error& error);

// Checks and describes gradients of heads, whose tensors are [tokens, heads, d]. Where they need
// own kernels, and on CUDA, tokens and heads stay dimensions of their own.
fastnorm_status check_norm_backward_heads(const fastnorm_norm_backward_args& args,
                                          const NormBackwardHeads& heads, CheckedDevice device,
                                          NormBackwardDesc* whole, Error& error);

// What backends run for a checked call. bias_apart: dbias is a part of its own in any case.
NormBackwardParts norm_backward_parts(const NormBackwardDesc& whole, bool bias_apart = false);

// Checks that no output of a call shares a byte with another tensor, but where it may be the same
// view, nor with itself. Sets in_place.
fastnorm_status check_norm_backward_aliasing(NormBackwardDesc* whole, Error& error);

// Checks that no call of several touches what another one writes. Error texts name call i word[i].
fastnorm_status check_norm_backward_many(std::span<const NormBackwardDesc> wholes, const char* word,
                                         Error& error);

}  // namespace fastnorm
