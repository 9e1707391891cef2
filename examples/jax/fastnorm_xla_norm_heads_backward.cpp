// libfastnorm for XLA: the handlers behind the gradients of fastnorm.jax.norm_heads. A call builds
// the parts of one fastnorm_norm_heads_backward on its stack, from the buffers that XLA passes.
//
// Attributes are as in fastnorm_xla_norm_heads.cpp. Operands are those of each part: dy, and what
// its mask of inputs says; then the shared ones. Results are those of its mask of outputs.
// Statistics are computed again.

#include "fastnorm_xla_heads.h"

namespace {

using namespace fastnorm_xla;

enum Word : size_t {
  kFlags,
  kKind,
  kRounding,
  kRopeOffset,
  kFirstHead,  // of x, whose others are not looked at
  kHeads,
  kInputs,   // mask: x, weight
  kOutputs,  // mask: dx, dweight, dbias
  kWords
};
enum SharedWord : size_t { kCallFlags, kRopeDim, kMrope, kTensors = kMrope + 4, kSharedWords };

constexpr size_t kMostParts = 8, kPartBuffers = 6, kSharedTensors = 3;

class Call : HeadsBuffers<kMostParts * kPartBuffers + kSharedTensors> {
 public:
  Call(fastnorm_device device, ffi::RemainingArgs arguments, ffi::RemainingRets results)
      : HeadsBuffers(device, arguments, results) {
    args.struct_size = sizeof args;
  }

  // False where the buffers are not those that the numbers tell of.
  bool add_part(const int32_t* words, const float* scalars) {
    fastnorm_norm_heads_backward_part& p = part_[count];
    parts[count++] = &p;
    p.struct_size = sizeof p;
    p.flags = static_cast<uint32_t>(words[kFlags]);
    p.kind = static_cast<fastnorm_norm_kind>(words[kKind]);
    p.eps = scalars[0];
    p.weight_offset = scalars[1];
    p.rounding = static_cast<fastnorm_rounding>(words[kRounding]);
    p.rope_offset = words[kRopeOffset];
    p.dy = operand();
    if ((words[kInputs] & 1) != 0) {
      p.x = operand();
      if (!fits_ || !take_heads(p.x, words[kFirstHead], words[kHeads])) return false;
    }
    if ((words[kInputs] & 2) != 0) p.weight = operand();
    if ((words[kOutputs] & 1) != 0) p.dx = result();
    if ((words[kOutputs] & 2) != 0) p.dweight = result();
    if ((words[kOutputs] & 4) != 0) p.dbias = result();
    return fits_;
  }

  // `spare`: results that are no tensors of the call.
  bool add_shared(const int32_t* words, size_t spare) {
    args.flags = static_cast<uint32_t>(words[kCallFlags]);
    args.rope_dim = words[kRopeDim];
    args.mrope_0 = words[kMrope], args.mrope_1 = words[kMrope + 1];
    args.mrope_2 = words[kMrope + 2], args.mrope_3 = words[kMrope + 3];
    const fastnorm_tensor** const fields[] = {&args.cos, &args.sin, &args.positions};
    for (size_t i = 0; i < kSharedTensors; ++i) {
      if ((words[kTensors] >> i & 1) != 0) *fields[i] = operand();
    }
    return used_up(spare);
  }

  fastnorm_norm_heads_args args = {};
  const fastnorm_norm_heads_backward_part* parts[kMostParts] = {};
  int32_t count = 0;

 private:
  fastnorm_norm_heads_backward_part part_[kMostParts] = {};
};

ffi::Error norm_heads_backward(fastnorm_device device, void* stream, Allocate allocate, void* from,
                               ffi::RemainingArgs arguments, ffi::RemainingRets results,
                               ffi::Span<const int32_t> words, ffi::Span<const float> scalars,
                               ffi::Span<const int32_t> shared, size_t spare = 0) {
  calls.fetch_add(1, std::memory_order_relaxed);
  const size_t count = scalars.size() / 2;
  Call call(device, arguments, results);
  bool fits =
      count <= kMostParts && words.size() == count * kWords && shared.size() == kSharedWords;
  for (size_t i = 0; fits && i < count; ++i)
    fits = call.add_part(words.begin() + i * kWords, scalars.begin() + 2 * i);
  if (!fits || !call.add_shared(shared.begin(), spare))
    return ffi::Error::InvalidArgument("the buffers are not those that the attributes tell of");
  fastnorm_context* context = nullptr;
  fastnorm_status status = find_context(device, &context);
  if (status != FASTNORM_OK) return error_of(status);
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  status = fastnorm_norm_heads_backward_query(context, &call.args, call.parts, call.count, &info);
  if (status != FASTNORM_OK) return error_of(status);
  const size_t bytes = info.workspace_bytes;
  void* const workspace = bytes == 0 ? nullptr : allocate(from, bytes);
  return error_of(fastnorm_norm_heads_backward(context, &call.args, call.parts, call.count,
                                               workspace, bytes, stream));
}

ffi::Error norm_heads_backward_cpu(ffi::RemainingArgs arguments, ffi::RemainingRets results,
                                   ffi::Span<const int32_t> words, ffi::Span<const float> scalars,
                                   ffi::Span<const int32_t> shared) {
  std::vector<std::byte> memory;
  return norm_heads_backward({FASTNORM_DEVICE_CPU, 0}, nullptr, allocate_host, &memory, arguments,
                             results, words, scalars, shared);
}

ffi::Error norm_heads_backward_cuda(void* stream, int32_t ordinal, ffi::ScratchAllocator scratch,
                                    ffi::RemainingArgs arguments, ffi::RemainingRets results,
                                    ffi::Span<const int32_t> words, ffi::Span<const float> scalars,
                                    ffi::Span<const int32_t> shared) {
  return norm_heads_backward({FASTNORM_DEVICE_CUDA, ordinal}, stream, allocate_scratch, &scratch,
                             arguments, results, words, scalars, shared);
}

// In memory that the caller gives as the last result. A CPU does without it.
ffi::Error norm_heads_backward_cpu_graph(ffi::RemainingArgs arguments, ffi::RemainingRets results,
                                         ffi::Span<const int32_t> words,
                                         ffi::Span<const float> scalars,
                                         ffi::Span<const int32_t> shared) {
  std::vector<std::byte> memory;
  return norm_heads_backward({FASTNORM_DEVICE_CPU, 0}, nullptr, allocate_host, &memory, arguments,
                             results, words, scalars, shared, 1);
}

ffi::Error norm_heads_backward_cuda_graph(void* stream, int32_t ordinal,
                                          ffi::RemainingArgs arguments, ffi::RemainingRets results,
                                          ffi::Span<const int32_t> words,
                                          ffi::Span<const float> scalars,
                                          ffi::Span<const int32_t> shared) {
  GivenMemory memory = last_result(results);
  return norm_heads_backward({FASTNORM_DEVICE_CUDA, ordinal}, stream, take_given, &memory,
                             arguments, results, words, scalars, shared, 1);
}

template <typename Binding>
auto with_attributes(Binding&& binding) {
  return std::move(binding)
      .RemainingArgs()
      .RemainingRets()
      .template Attr<ffi::Span<const int32_t>>("words")
      .template Attr<ffi::Span<const float>>("scalars")
      .template Attr<ffi::Span<const int32_t>>("shared");
}

}  // namespace

#pragma GCC visibility push(default)
XLA_FFI_DECLARE_HANDLER_SYMBOL(fastnorm_xla_norm_heads_backward_cpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(fastnorm_xla_norm_heads_backward_cuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(fastnorm_xla_norm_heads_backward_cpu_graph);
XLA_FFI_DECLARE_HANDLER_SYMBOL(fastnorm_xla_norm_heads_backward_cuda_graph);
#pragma GCC visibility pop

XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_norm_heads_backward_cpu, norm_heads_backward_cpu,
                              with_attributes(ffi::Ffi::Bind()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_norm_heads_backward_cuda, norm_heads_backward_cuda,
                              with_attributes(cuda_binding()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_norm_heads_backward_cpu_graph,
                              norm_heads_backward_cpu_graph, with_attributes(ffi::Ffi::Bind()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_norm_heads_backward_cuda_graph,
                              norm_heads_backward_cuda_graph, with_attributes(graph_binding()),
                              {ffi::Traits::kCmdBufferCompatible});
