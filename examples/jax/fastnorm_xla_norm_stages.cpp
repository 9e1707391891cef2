// libfastnorm for XLA: the handlers behind the JAX functions of fastnorm.jax.norm_stages. A call
// builds one fastnorm_norm or fastnorm_norm_backward on its stack, from the buffers of XLA.
//
// The attribute `words` has a number for each integer of a family and two masks. `scalars` has the
// others. Operands are those that the mask of inputs tells of, results those of the mask of
// outputs. Buffers are compact.

#include <iterator>
#include <type_traits>

#include "fastnorm_xla_heads.h"

namespace {

using namespace fastnorm_xla;

// What differs between the two: the struct, its functions, and its fields in the order of their
// numbers and masks.
struct Forward {
  using Args = fastnorm_norm_args;
  using Tensor = const fastnorm_tensor* Args::*;
  static constexpr auto kQuery = fastnorm_norm_query;
  static constexpr auto kRun = fastnorm_norm;
  static constexpr Tensor kInputs[] = {
      &Args::x,
      &Args::residual,
      &Args::weight,
      &Args::bias,
      &Args::gate,
      &Args::branch_weight,
      &Args::sum_scale,
      &Args::residual_gate,
      &Args::residual_gate_table,
      &Args::modulation_scale,
      &Args::scale_table,
      &Args::modulation_shift,
      &Args::shift_table,
      &Args::modulation_index,
      &Args::mean_in,
      &Args::rstd_in,
      &Args::scale,
  };
  static constexpr Tensor kOutputs[] = {
      &Args::y,    &Args::residual_out, &Args::branch_rstd, &Args::mean,
      &Args::rstd, &Args::sumsq,        &Args::quantized,   &Args::scale,
  };

  template <typename Take>
  static void set(Args& args, Take word) {
    word(args.kind);
    word(args.rounding);
    word(args.residual_rounding);
    word(args.flags);
    word(args.gate_act);
    word(args.gate_position);
    word(args.gate_source);
    word(args.activation);
    word(args.group_size);
    word(args.branch_norm);
    word(args.branch_kind);
    word(args.branch_rounding);
    word(args.branch_rounded);
    word(args.sum_rounding);
    word(args.residual_gate_act);
    word(args.modulation_rounding);
    word(args.quant_scheme);
    word(args.quant_block_size);
    word(args.quant_division);
    word(args.eps);
    word(args.weight_offset);
    word(args.branch_eps);
    word(args.branch_weight_offset);
    word(args.alpha);
  }
};

struct Backward {
  using Args = fastnorm_norm_backward_args;
  using Tensor = const fastnorm_tensor* Args::*;
  static constexpr auto kQuery = fastnorm_norm_backward_query;
  static constexpr auto kRun = fastnorm_norm_backward;
  static constexpr Tensor kInputs[] = {
      &Args::x,           &Args::dy,
      &Args::weight,      &Args::bias,
      &Args::mean,        &Args::rstd,
      &Args::gate,        &Args::dresidual_in,
      &Args::branch,      &Args::branch_weight,
      &Args::branch_rstd, &Args::residual_gate,
      &Args::sum_scale,
  };
  static constexpr Tensor kOutputs[] = {
      &Args::dx,    &Args::dresidual, &Args::dgate,          &Args::dweight,
      &Args::dbias, &Args::dbranch,   &Args::dbranch_weight, &Args::dresidual_gate,
  };

  template <typename Take>
  static void set(Args& args, Take word) {
    word(args.kind);
    word(args.rounding);
    word(args.gate_act);
    word(args.gate_position);
    word(args.gate_source);
    word(args.group_size);
    word(args.branch_kind);
    word(args.branch_rounding);
    word(args.branch_norm);
    word(args.branch_rounded);
    word(args.residual_gate_act);
    word(args.eps);
    word(args.weight_offset);
    word(args.branch_eps);
    word(args.branch_weight_offset);
    word(args.alpha);
  }
};

template <typename Family>
class Call : HeadsBuffers<std::size(Family::kInputs) + std::size(Family::kOutputs)> {
  using Buffers = HeadsBuffers<std::size(Family::kInputs) + std::size(Family::kOutputs)>;

 public:
  Call(fastnorm_device device, ffi::RemainingArgs arguments, ffi::RemainingRets results)
      : Buffers(device, arguments, results) {
    args.struct_size = sizeof args;
  }

  // False where the buffers and numbers are not those that the masks tell of. `spare`: results that
  // are no tensors of the call.
  bool take(ffi::Span<const int32_t> words, ffi::Span<const float> scalars, size_t spare) {
    size_t word = 0, scalar = 0;
    bool fits = true;
    Family::set(args, [&]<typename T>(T& field) {
      if constexpr (std::is_same_v<T, float>) {
        if (scalar < scalars.size()) field = scalars.begin()[scalar];
        fits = scalar++ < scalars.size() && fits;
      } else {
        if (word < words.size()) field = static_cast<T>(words.begin()[word]);
        fits = word++ < words.size() && fits;
      }
    });
    if (!fits || words.size() != word + 2 || scalars.size() != scalar) return false;
    const int32_t inputs = words.begin()[word], outputs = words.begin()[word + 1];
    for (size_t i = 0; i < std::size(Family::kInputs); ++i) {
      if ((inputs >> i & 1) != 0) args.*Family::kInputs[i] = this->operand();
    }
    for (size_t i = 0; i < std::size(Family::kOutputs); ++i) {
      if ((outputs >> i & 1) != 0) args.*Family::kOutputs[i] = this->result();
    }
    return this->used_up(spare);
  }

  typename Family::Args args = {};
};

template <typename Family>
ffi::Error run(fastnorm_device device, void* stream, Allocate allocate, void* from,
               ffi::RemainingArgs arguments, ffi::RemainingRets results,
               ffi::Span<const int32_t> words, ffi::Span<const float> scalars, size_t spare = 0) {
  calls.fetch_add(1, std::memory_order_relaxed);
  Call<Family> call(device, arguments, results);
  if (!call.take(words, scalars, spare))
    return ffi::Error::InvalidArgument("the buffers are not those that the attributes tell of");
  fastnorm_context* context = nullptr;
  fastnorm_status status = find_context(device, &context);
  if (status != FASTNORM_OK) return error_of(status);
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  status = Family::kQuery(context, &call.args, &info);
  if (status != FASTNORM_OK) return error_of(status);
  const size_t bytes = info.workspace_bytes;
  return error_of(Family::kRun(context, &call.args, bytes == 0 ? nullptr : allocate(from, bytes),
                               bytes, stream));
}

template <typename Family>
ffi::Error on_cpu(ffi::RemainingArgs arguments, ffi::RemainingRets results,
                  ffi::Span<const int32_t> words, ffi::Span<const float> scalars) {
  std::vector<std::byte> memory;
  return run<Family>({FASTNORM_DEVICE_CPU, 0}, nullptr, allocate_host, &memory, arguments, results,
                     words, scalars);
}

template <typename Family>
ffi::Error on_cuda(void* stream, int32_t ordinal, ffi::ScratchAllocator scratch,
                   ffi::RemainingArgs arguments, ffi::RemainingRets results,
                   ffi::Span<const int32_t> words, ffi::Span<const float> scalars) {
  return run<Family>({FASTNORM_DEVICE_CUDA, ordinal}, stream, allocate_scratch, &scratch, arguments,
                     results, words, scalars);
}

// In memory that the caller gives as the last result. A CPU does without it.
ffi::Error backward_on_cpu_for_graphs(ffi::RemainingArgs arguments, ffi::RemainingRets results,
                                      ffi::Span<const int32_t> words,
                                      ffi::Span<const float> scalars) {
  std::vector<std::byte> memory;
  return run<Backward>({FASTNORM_DEVICE_CPU, 0}, nullptr, allocate_host, &memory, arguments,
                       results, words, scalars, 1);
}

ffi::Error backward_on_cuda_for_graphs(void* stream, int32_t ordinal, ffi::RemainingArgs arguments,
                                       ffi::RemainingRets results, ffi::Span<const int32_t> words,
                                       ffi::Span<const float> scalars) {
  GivenMemory memory = last_result(results);
  return run<Backward>({FASTNORM_DEVICE_CUDA, ordinal}, stream, take_given, &memory, arguments,
                       results, words, scalars, 1);
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
XLA_FFI_DECLARE_HANDLER_SYMBOL(fastnorm_xla_norm_stages_backward_cpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(fastnorm_xla_norm_stages_backward_cuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(fastnorm_xla_norm_stages_backward_cpu_graph);
XLA_FFI_DECLARE_HANDLER_SYMBOL(fastnorm_xla_norm_stages_backward_cuda_graph);
#pragma GCC visibility pop

XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_norm_stages_cpu, on_cpu<Forward>,
                              with_attributes(ffi::Ffi::Bind()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_norm_stages_cuda, on_cuda<Forward>,
                              with_attributes(cuda_binding()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_norm_stages_backward_cpu, on_cpu<Backward>,
                              with_attributes(ffi::Ffi::Bind()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_norm_stages_backward_cuda, on_cuda<Backward>,
                              with_attributes(cuda_binding()));

// The same, for XLA to record in CUDA graphs. On a GPU the forward needs no workspace.
XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_norm_stages_cuda_graph, on_cuda<Forward>,
                              with_attributes(cuda_binding()), {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_norm_stages_backward_cpu_graph,
                              backward_on_cpu_for_graphs, with_attributes(ffi::Ffi::Bind()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_norm_stages_backward_cuda_graph,
                              backward_on_cuda_for_graphs, with_attributes(graph_binding()),
                              {ffi::Traits::kCmdBufferCompatible});
