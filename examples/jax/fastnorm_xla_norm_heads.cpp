// libfastnorm for XLA: the handlers behind the JAX functions of fastnorm_jax_norm_heads.py. A call
// builds the parts of one fastnorm_norm_heads on its stack, from the buffers that XLA passes.
//
// The attribute `words` has kWords numbers for each part, `scalars` has two, and `shared` has
// kSharedWords. Operands are those of each part, as its mask of inputs says, then the shared ones;
// results are those of each part, as its mask of outputs says. A cache is an operand and a result,
// in one memory; so are the scales of its blocks. Buffers are compact.

#include "fastnorm_xla_heads.h"

namespace {

using namespace fastnorm_xla;

enum Word : size_t {
  kFlags,
  kKind,
  kRounding,
  kRopeRounding,
  kRopeOffset,
  kCacheScheme,
  kCacheBlock,
  kDivision,
  kScheme,
  kBlock,
  kFirstHead,  // of x, whose others are not looked at
  kHeads,
  kInputs,   // mask: weight, bias, cache, cache_scale, mean_in, rstd_in, scale
  kOutputs,  // mask: y, cache, cache_scale, mean, rstd, sumsq, quantized, scale
  kWords
};
enum SharedWord : size_t { kCallFlags, kRopeDim, kMrope, kTensors = kMrope + 4, kSharedWords };

constexpr size_t kMostParts = 8, kPartBuffers = 16, kSharedTensors = 4;
constexpr int32_t kCacheInput = 4, kScaleInput = 8;  // of the mask of inputs
constexpr int32_t kY = 1, kCache = 2, kScale = 4;    // of the mask of outputs
constexpr int kOtherInputs = 4, kOtherOutputs = 3;   // bits of the others, in their order

class Call : HeadsBuffers<kMostParts * kPartBuffers + kSharedTensors> {
 public:
  Call(fastnorm_device device, ffi::RemainingArgs arguments, ffi::RemainingRets results)
      : HeadsBuffers(device, arguments, results) {
    args.struct_size = sizeof args;
  }

  // False where the buffers are not those that the numbers tell of.
  bool add_part(const int32_t* words, const float* scalars) {
    fastnorm_norm_heads_part& p = part_[count];
    parts[count++] = &p;
    p.struct_size = sizeof p;
    p.flags = static_cast<uint32_t>(words[kFlags]);
    p.kind = static_cast<fastnorm_norm_kind>(words[kKind]);
    p.eps = scalars[0];
    p.weight_offset = scalars[1];
    p.rounding = static_cast<fastnorm_rounding>(words[kRounding]);
    p.rope_rounding = static_cast<fastnorm_rope_rounding>(words[kRopeRounding]);
    p.rope_offset = words[kRopeOffset];
    p.cache_scheme = static_cast<fastnorm_quant_scheme>(words[kCacheScheme]);
    p.cache_block_size = words[kCacheBlock];
    p.quant_division = static_cast<fastnorm_quant_division>(words[kDivision]);
    p.quant_scheme = static_cast<fastnorm_quant_scheme>(words[kScheme]);
    p.quant_block_size = words[kBlock];
    const int32_t inputs = words[kInputs], outputs = words[kOutputs];
    p.x = operand();
    if (!fits_ || !take_heads(p.x, words[kFirstHead], words[kHeads])) return false;
    if ((inputs & 1) != 0) p.weight = operand();
    if ((inputs & 2) != 0) p.bias = operand();
    const fastnorm_tensor* const cache = (inputs & kCacheInput) != 0 ? operand() : nullptr;
    const fastnorm_tensor* const scale = (inputs & kScaleInput) != 0 ? operand() : nullptr;
    int bit = kOtherInputs;
    for (const fastnorm_tensor** field : {&p.mean_in, &p.rstd_in, &p.scale}) {
      if ((inputs >> bit++ & 1) != 0) *field = operand();
    }
    if ((outputs & kY) != 0) p.y = result();
    if ((outputs & kCache) != 0) p.cache = result();
    p.cache_scale = (outputs & kScale) != 0 ? result() : scale;
    bit = kOtherOutputs;
    for (const fastnorm_tensor** field : {&p.mean, &p.rstd, &p.sumsq, &p.quantized, &p.scale}) {
      if ((outputs >> bit++ & 1) != 0) *field = result();
    }
    return fits_ && takes_over(cache, p.cache) && takes_over(scale, p.cache_scale);
  }

  bool add_shared(const int32_t* words) {
    args.flags = static_cast<uint32_t>(words[kCallFlags]);
    args.rope_dim = words[kRopeDim];
    args.mrope_0 = words[kMrope], args.mrope_1 = words[kMrope + 1];
    args.mrope_2 = words[kMrope + 2], args.mrope_3 = words[kMrope + 3];
    const fastnorm_tensor** const fields[] = {&args.cos, &args.sin, &args.positions, &args.slots};
    for (size_t i = 0; i < kSharedTensors; ++i) {
      if ((words[kTensors] >> i & 1) != 0) *fields[i] = operand();
    }
    return used_up();
  }

  // Before the call.
  bool copy_operands(void* stream) const {
    for (size_t i = 0; i < copy_count_; ++i) {
      const Copy& c = copies_[i];
      if (!copy_bytes(device(), stream, c.to->data, c.from->data, bytes_of(*c.to))) return false;
    }
    return true;
  }

  fastnorm_norm_heads_args args = {};
  const fastnorm_norm_heads_part* parts[kMostParts] = {};
  int32_t count = 0;

 private:
  // An operand that is also a result, or is none. XLA may give a slice of a larger result a place
  // of its own. Then the operand is copied there.
  bool takes_over(const fastnorm_tensor* operand, const fastnorm_tensor* result) {
    if (operand == nullptr) return true;
    if (result == nullptr || bytes_of(*operand) != bytes_of(*result)) return false;
    if (operand->data != result->data) copies_[copy_count_++] = {operand, result};
    return true;
  }

  struct Copy {
    const fastnorm_tensor *from, *to;
  };
  Copy copies_[2 * kMostParts] = {};
  size_t copy_count_ = 0;

  fastnorm_norm_heads_part part_[kMostParts] = {};
};

ffi::Error norm_heads(fastnorm_device device, void* stream, Allocate allocate, void* from,
                      ffi::RemainingArgs arguments, ffi::RemainingRets results,
                      ffi::Span<const int32_t> words, ffi::Span<const float> scalars,
                      ffi::Span<const int32_t> shared) {
  calls.fetch_add(1, std::memory_order_relaxed);
  const size_t count = scalars.size() / 2;
  Call call(device, arguments, results);
  bool fits =
      count <= kMostParts && words.size() == count * kWords && shared.size() == kSharedWords;
  for (size_t i = 0; fits && i < count; ++i)
    fits = call.add_part(words.begin() + i * kWords, scalars.begin() + 2 * i);
  if (!fits || !call.add_shared(shared.begin()))
    return ffi::Error::InvalidArgument("the buffers are not those that the attributes tell of");
  fastnorm_context* context = nullptr;
  fastnorm_status status = find_context(device, &context);
  if (status != FASTNORM_OK) return error_of(status);
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  status = fastnorm_norm_heads_query(context, &call.args, call.parts, call.count, &info);
  if (status != FASTNORM_OK) return error_of(status);
  if (!call.copy_operands(stream))
    return ffi::Error::Internal("the cache of the input cannot be copied to that of the result");
  const size_t bytes = info.workspace_bytes;
  return error_of(fastnorm_norm_heads(context, &call.args, call.parts, call.count,
                                      bytes == 0 ? nullptr : allocate(from, bytes), bytes, stream));
}

ffi::Error norm_heads_cpu(ffi::RemainingArgs arguments, ffi::RemainingRets results,
                          ffi::Span<const int32_t> words, ffi::Span<const float> scalars,
                          ffi::Span<const int32_t> shared) {
  std::vector<std::byte> memory;
  return norm_heads({FASTNORM_DEVICE_CPU, 0}, nullptr, allocate_host, &memory, arguments, results,
                    words, scalars, shared);
}

ffi::Error norm_heads_cuda(void* stream, int32_t ordinal, ffi::ScratchAllocator scratch,
                           ffi::RemainingArgs arguments, ffi::RemainingRets results,
                           ffi::Span<const int32_t> words, ffi::Span<const float> scalars,
                           ffi::Span<const int32_t> shared) {
  return norm_heads({FASTNORM_DEVICE_CUDA, ordinal}, stream, allocate_scratch, &scratch, arguments,
                    results, words, scalars, shared);
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
XLA_FFI_DECLARE_HANDLER_SYMBOL(fastnorm_xla_norm_heads_cpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(fastnorm_xla_norm_heads_cuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(fastnorm_xla_norm_heads_cuda_graph);
#pragma GCC visibility pop

XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_norm_heads_cpu, norm_heads_cpu,
                              with_attributes(ffi::Ffi::Bind()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_norm_heads_cuda, norm_heads_cuda,
                              with_attributes(cuda_binding()));

// The same, for XLA to record in CUDA graphs: on a GPU it needs no workspace.
XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_norm_heads_cuda_graph, norm_heads_cuda,
                              with_attributes(cuda_binding()), {ffi::Traits::kCmdBufferCompatible});
