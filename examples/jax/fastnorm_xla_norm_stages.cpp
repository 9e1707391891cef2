// libfastnorm for XLA: the handlers behind the JAX functions of fastnorm.jax.norm_stages. A call
// builds one fastnorm_norm on its stack, from the buffers that XLA passes.
//
// The attribute `words` has kWords numbers, and `scalars` has kScalars. Operands are those that the
// mask of inputs tells of, results those of the mask of outputs. Buffers are compact.

#include "fastnorm_xla_heads.h"

namespace {

using namespace fastnorm_xla;

enum Word : size_t {
  kKind,
  kRounding,
  kResidualRounding,
  kFlags,
  kGateAct,
  kGatePosition,
  kGateSource,
  kActivation,
  kGroupSize,
  kBranchNorm,
  kBranchKind,
  kBranchRounding,
  kBranchRounded,
  kSumRounding,
  kResidualGateAct,
  kModulationRounding,
  kInputs,   // mask of kInputFields
  kOutputs,  // mask of kOutputFields
  kWords
};
enum Scalar : size_t { kEps, kWeightOffset, kBranchEps, kBranchWeightOffset, kAlpha, kScalars };

using Field = const fastnorm_tensor* fastnorm_norm_args::*;
constexpr Field kInputFields[] = {
    &fastnorm_norm_args::x,
    &fastnorm_norm_args::residual,
    &fastnorm_norm_args::weight,
    &fastnorm_norm_args::bias,
    &fastnorm_norm_args::gate,
    &fastnorm_norm_args::branch_weight,
    &fastnorm_norm_args::sum_scale,
    &fastnorm_norm_args::residual_gate,
    &fastnorm_norm_args::residual_gate_table,
    &fastnorm_norm_args::modulation_scale,
    &fastnorm_norm_args::scale_table,
    &fastnorm_norm_args::modulation_shift,
    &fastnorm_norm_args::shift_table,
    &fastnorm_norm_args::modulation_index,
};
constexpr Field kOutputFields[] = {&fastnorm_norm_args::y, &fastnorm_norm_args::residual_out};

class Call : HeadsBuffers<std::size(kInputFields) + std::size(kOutputFields)> {
 public:
  Call(fastnorm_device device, ffi::RemainingArgs arguments, ffi::RemainingRets results)
      : HeadsBuffers(device, arguments, results) {
    args.struct_size = sizeof args;
  }

  // False where the buffers are not those that the numbers tell of.
  bool take(const int32_t* words, const float* scalars) {
    args.kind = static_cast<fastnorm_norm_kind>(words[kKind]);
    args.rounding = static_cast<fastnorm_rounding>(words[kRounding]);
    args.residual_rounding = static_cast<fastnorm_residual_rounding>(words[kResidualRounding]);
    args.flags = static_cast<uint32_t>(words[kFlags]);
    args.gate_act = static_cast<fastnorm_activation>(words[kGateAct]);
    args.gate_position = static_cast<fastnorm_gate_position>(words[kGatePosition]);
    args.gate_source = static_cast<fastnorm_gate_source>(words[kGateSource]);
    args.activation = static_cast<fastnorm_activation>(words[kActivation]);
    args.group_size = words[kGroupSize];
    args.branch_norm = words[kBranchNorm];
    args.branch_kind = static_cast<fastnorm_norm_kind>(words[kBranchKind]);
    args.branch_rounding = static_cast<fastnorm_rounding>(words[kBranchRounding]);
    args.branch_rounded = words[kBranchRounded];
    args.sum_rounding = static_cast<fastnorm_sum_rounding>(words[kSumRounding]);
    args.residual_gate_act = static_cast<fastnorm_activation>(words[kResidualGateAct]);
    args.modulation_rounding =
        static_cast<fastnorm_modulation_rounding>(words[kModulationRounding]);
    args.eps = scalars[kEps];
    args.weight_offset = scalars[kWeightOffset];
    args.branch_eps = scalars[kBranchEps];
    args.branch_weight_offset = scalars[kBranchWeightOffset];
    args.alpha = scalars[kAlpha];
    for (size_t i = 0; i < std::size(kInputFields); ++i) {
      if ((words[kInputs] >> i & 1) != 0) args.*kInputFields[i] = operand();
    }
    for (size_t i = 0; i < std::size(kOutputFields); ++i) {
      if ((words[kOutputs] >> i & 1) != 0) args.*kOutputFields[i] = result();
    }
    return used_up();
  }

  fastnorm_norm_args args = {};
};

ffi::Error norm_stages(fastnorm_device device, void* stream, Allocate allocate, void* from,
                       ffi::RemainingArgs arguments, ffi::RemainingRets results,
                       ffi::Span<const int32_t> words, ffi::Span<const float> scalars) {
  calls.fetch_add(1, std::memory_order_relaxed);
  Call call(device, arguments, results);
  if (words.size() != kWords || scalars.size() != kScalars ||
      !call.take(words.begin(), scalars.begin()))
    return ffi::Error::InvalidArgument("the buffers are not those that the attributes tell of");
  fastnorm_context* context = nullptr;
  fastnorm_status status = find_context(device, &context);
  if (status != FASTNORM_OK) return error_of(status);
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  status = fastnorm_norm_query(context, &call.args, &info);
  if (status != FASTNORM_OK) return error_of(status);
  const size_t bytes = info.workspace_bytes;
  return error_of(fastnorm_norm(context, &call.args, bytes == 0 ? nullptr : allocate(from, bytes),
                                bytes, stream));
}

ffi::Error norm_stages_cpu(ffi::RemainingArgs arguments, ffi::RemainingRets results,
                           ffi::Span<const int32_t> words, ffi::Span<const float> scalars) {
  std::vector<std::byte> memory;
  return norm_stages({FASTNORM_DEVICE_CPU, 0}, nullptr, allocate_host, &memory, arguments, results,
                     words, scalars);
}

ffi::Error norm_stages_cuda(void* stream, int32_t ordinal, ffi::ScratchAllocator scratch,
                            ffi::RemainingArgs arguments, ffi::RemainingRets results,
                            ffi::Span<const int32_t> words, ffi::Span<const float> scalars) {
  return norm_stages({FASTNORM_DEVICE_CUDA, ordinal}, stream, allocate_scratch, &scratch, arguments,
                     results, words, scalars);
}

template <typename Binding>
auto with_attributes(Binding&& binding) {
  return std::move(binding)
      .RemainingArgs()
      .RemainingRets()
      .template Attr<ffi::Span<const int32_t>>("words")
      .template Attr<ffi::Span<const float>>("scalars");
}

}  // namespace

#pragma GCC visibility push(default)
XLA_FFI_DECLARE_HANDLER_SYMBOL(fastnorm_xla_norm_stages_cpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(fastnorm_xla_norm_stages_cuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(fastnorm_xla_norm_stages_cuda_graph);
#pragma GCC visibility pop

XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_norm_stages_cpu, norm_stages_cpu,
                              with_attributes(ffi::Ffi::Bind()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_norm_stages_cuda, norm_stages_cuda,
                              with_attributes(cuda_binding()));

// The same, for XLA to record in CUDA graphs: on a GPU it needs no workspace.
XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_norm_stages_cuda_graph, norm_stages_cuda,
                              with_attributes(cuda_binding()),
                              {ffi::Traits::kCmdBufferCompatible});
