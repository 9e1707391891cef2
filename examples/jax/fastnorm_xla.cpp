// libfastnorm for XLA: the handlers behind the JAX functions of fastnorm.jax. A call builds the
// args of one fastnorm_norm or fastnorm_norm_backward on its stack, from the buffers that XLA
// passes; a status that is not OK becomes XLA's error, with the library's text.
//
// All buffers are compact. The attributes `inputs` and `outputs` are bit masks: which of a family's
// kInputs and kOutputs there are. x has `lead` dimensions of rows, then [n] or [heads, n]; more in
// front are a batch of vmap, which every buffer then has. (Flattened by XLA itself, a residual
// would be copied on its way to the call.)

#include "fastnorm_xla.h"

#include <algorithm>
#include <array>
#include <utility>

namespace {

using namespace fastnorm_xla;

struct Norm {
  using Args = fastnorm_norm_args;
  using Field = const fastnorm_tensor* Args::*;
  static constexpr std::array<Field, 4> kInputs = {&Args::x, &Args::residual, &Args::weight,
                                                   &Args::bias};
  static constexpr std::array<Field, 6> kOutputs = {
      &Args::y, &Args::residual_out, &Args::quantized, &Args::scale, &Args::mean, &Args::rstd};
  static constexpr std::array<Field, 2> kParameters = {&Args::weight, &Args::bias};
  static constexpr auto* kQuery = &fastnorm_norm_query;
  static constexpr auto* kRun = &fastnorm_norm;
};

struct NormBackward {
  using Args = fastnorm_norm_backward_args;
  using Field = const fastnorm_tensor* Args::*;
  static constexpr std::array<Field, 6> kInputs = {&Args::x,    &Args::dy,   &Args::weight,
                                                   &Args::mean, &Args::rstd, &Args::dresidual_in};
  static constexpr std::array<Field, 4> kOutputs = {&Args::dx, &Args::dresidual, &Args::dweight,
                                                    &Args::dbias};
  static constexpr std::array<Field, 3> kParameters = {&Args::weight, &Args::dweight, &Args::dbias};
  static constexpr auto* kQuery = &fastnorm_norm_backward_query;
  static constexpr auto* kRun = &fastnorm_norm_backward;
};

template <typename Family>
struct Operand {
  typename Family::Field field = nullptr;
  ffi::AnyBuffer::Dimensions dims{nullptr, 0};
  size_t element_bytes = 0;
  std::array<int64_t, kMaxRank> shape = {}, strides = {};
  fastnorm_tensor tensor = {};
};

int64_t product(const int64_t* begin, const int64_t* end) {
  int64_t count = 1;
  for (; begin != end; ++begin) count *= *begin;
  return count;
}

template <typename Family>
struct Call {
  using Field = typename Family::Field;
  using Operand = ::Operand<Family>;

  typename Family::Args args = {};
  std::array<Operand, Family::kInputs.size() + Family::kOutputs.size()> operands;
  size_t count = 0;
  fastnorm_device device = {};
  size_t batch_rank = 0, lead = 0;
  int64_t batch = 1;

  bool add(Field field, ffi::AnyBuffer buffer) {
    Operand& o = operands[count++];
    o.field = field;
    o.dims = buffer.dimensions();
    o.element_bytes = ffi::ByteWidth(buffer.element_type());
    o.tensor.data = buffer.untyped_data();
    o.tensor.device_type = device.device_type;
    o.tensor.device_id = device.device_id;
    o.tensor.dtype = dtype_of(buffer.element_type());
    return o.dims.size() >= batch_rank && rank_of(o) < kMaxRank;  // the batch is one more
  }

  static bool is_parameter(Field field) {
    return std::find(Family::kParameters.begin(), Family::kParameters.end(), field) !=
           Family::kParameters.end();
  }

  bool has_parameters() const {
    return std::any_of(Family::kParameters.begin(), Family::kParameters.end(),
                       [&](Field field) { return args.*field != nullptr; });
  }

  // Whether the first dimensions of an operand, without its batch, are rows that become one.
  bool has_rows(const Operand& o) const {
    const size_t rank = o.dims.size() - batch_rank;
    return !is_parameter(o.field) && rank > 0 && rank >= lead;
  }

  size_t rank_of(const Operand& o) const {
    const size_t rank = o.dims.size() - batch_rank;
    return has_rows(o) ? rank - lead + 1 : rank;
  }

  // Fills in the struct of an operand without its batch, if it has one, and with its rows as one
  // dimension; of part `part` of the batch.
  void describe_part(Operand& o, int64_t part) {
    const int64_t* from = o.dims.begin() + batch_rank;
    const size_t rank = rank_of(o);
    auto shape = o.shape.begin();
    if (has_rows(o)) {
      *shape++ = product(from, from + lead);
      from += lead;
    }
    std::copy(from, static_cast<const int64_t*>(o.dims.end()), shape);
    int64_t stride = 1;
    for (size_t i = rank; i-- > 0; stride *= o.shape[i]) o.strides[i] = stride;
    finish(o, rank);
    o.tensor.byte_offset = static_cast<uint64_t>(part * stride) * o.element_bytes;
  }

  // The batch as one more dimension: the first, or (`inner`) the one after the rows.
  void describe_batch(Operand& o, bool inner) {
    describe_part(o, 0);
    const auto rank = static_cast<size_t>(o.tensor.ndim);
    if (rank == 0) return;  // a number stays one, which the library refuses
    const int64_t part = product(o.shape.data(), o.shape.data() + rank);
    const size_t at = inner && rank > 1 ? 1 : 0;
    std::copy_backward(o.shape.begin() + at, o.shape.begin() + rank, o.shape.begin() + rank + 1);
    std::copy_backward(o.strides.begin() + at, o.strides.begin() + rank,
                       o.strides.begin() + rank + 1);
    o.shape[at] = batch;
    o.strides[at] = part;
    finish(o, rank + 1);
  }

  void finish(Operand& o, size_t rank) {
    o.tensor.ndim = static_cast<int32_t>(rank);
    o.tensor.shape = o.shape.data();
    o.tensor.strides = o.strides.data();
    args.*o.field = &o.tensor;
  }
};

template <typename Family>
struct Runner {
  fastnorm_context* context;
  void* stream;
  Allocate allocate;
  void* from;

  fastnorm_status run(const typename Family::Args& args) const {
    fastnorm_info info = {};
    info.struct_size = sizeof info;
    const auto status = Family::kQuery(context, &args, &info);
    if (status != FASTNORM_OK) return status;
    const size_t bytes = info.workspace_bytes;
    return Family::kRun(context, &args, bytes == 0 ? nullptr : allocate(from, bytes), bytes,
                        stream);
  }
};

template <typename Family>
fastnorm_status run_batch(const Runner<Family>& runner, Call<Family>& call, bool heads) {
  using Operand = ::Operand<Family>;
  const auto begin = call.operands.begin(), end = begin + call.count;
  const bool parameters = call.has_parameters();
  if (call.batch_rank == 0) {
    std::for_each(begin, end, [&](Operand& o) { call.describe_part(o, 0); });
    return runner.run(call.args);
  }
  // Without parameters a batch is more rows. Parameters [batch, n] are those of heads, of x as
  // [rows, batch, n].
  if (!parameters || !heads) {
    std::for_each(begin, end, [&](Operand& o) { call.describe_batch(o, parameters); });
    return runner.run(call.args);
  }
  for (int64_t part = 0; part < call.batch; ++part) {
    std::for_each(begin, end, [&](Operand& o) { call.describe_part(o, part); });
    const auto status = runner.run(call.args);
    if (status != FASTNORM_OK) return status;
  }
  return FASTNORM_OK;
}

// What both families have.
struct Attributes {
  int32_t kind;
  float eps;
  float weight_offset;
  int32_t rounding;
  int32_t inputs;
  int32_t outputs;
  int32_t rank;
  int32_t lead;
};

// A call with the scalars that both families have, and no tensors.
template <typename Family>
Call<Family> call_of(fastnorm_device device, const Attributes& attributes) {
  Call<Family> call;
  call.device = device;
  call.args.struct_size = sizeof call.args;
  call.args.kind = static_cast<fastnorm_norm_kind>(attributes.kind);
  call.args.eps = attributes.eps;
  call.args.weight_offset = attributes.weight_offset;
  call.args.rounding = static_cast<fastnorm_rounding>(attributes.rounding);
  call.lead = static_cast<size_t>(attributes.lead);
  return call;
}

template <typename Family>
ffi::Error run(Runner<Family> runner, Call<Family> call, ffi::RemainingArgs arguments,
               ffi::RemainingRets results, const Attributes& attributes) {
  calls.fetch_add(1, std::memory_order_relaxed);
  const auto status = find_context(call.device, &runner.context);
  if (status != FASTNORM_OK) return error_of(status);
  const auto rank = static_cast<size_t>(attributes.rank);
  const auto malformed = [] {
    return ffi::Error::InvalidArgument(
        "a buffer has too many dimensions, or fewer than x's attributes say");
  };
  size_t next = 0;
  for (size_t i = 0; i < Family::kInputs.size(); ++i) {
    if ((attributes.inputs >> i & 1) == 0) continue;
    const auto buffer = arguments.get<ffi::AnyBuffer>(next++);
    if (!buffer.has_value()) return malformed();
    const auto dims = buffer->dimensions();
    if (i == 0) {
      if (dims.size() < rank) return malformed();
      call.batch_rank = dims.size() - rank;
      call.batch = product(dims.begin(), dims.begin() + call.batch_rank);
    }
    if (!call.add(Family::kInputs[i], *buffer)) return malformed();
    call.args.*Family::kInputs[i] = &call.operands[call.count - 1].tensor;
  }
  next = 0;
  for (size_t i = 0; i < Family::kOutputs.size(); ++i) {
    if ((attributes.outputs >> i & 1) == 0) continue;
    auto buffer = results.get<ffi::AnyBuffer>(next++);
    if (!buffer.has_value() || !call.add(Family::kOutputs[i], **buffer)) return malformed();
    call.args.*Family::kOutputs[i] = &call.operands[call.count - 1].tensor;
  }
  return error_of(run_batch(runner, call, rank > call.lead + 1));
}

ffi::Error norm(Runner<Norm> runner, fastnorm_device device, ffi::RemainingArgs arguments,
                ffi::RemainingRets results, const Attributes& attributes, int32_t residual_rounding,
                int32_t quant_scheme, int32_t quant_block_size) {
  auto call = call_of<Norm>(device, attributes);
  call.args.residual_rounding = static_cast<fastnorm_residual_rounding>(residual_rounding);
  call.args.quant_scheme = static_cast<fastnorm_quant_scheme>(quant_scheme);
  call.args.quant_block_size = quant_block_size;
  return run(runner, call, arguments, results, attributes);
}

// --- the two platforms ---

ffi::Error norm_cpu(ffi::RemainingArgs arguments, ffi::RemainingRets results, int32_t kind,
                    float eps, float weight_offset, int32_t rounding, int32_t inputs,
                    int32_t outputs, int32_t rank, int32_t lead, int32_t residual_rounding,
                    int32_t quant_scheme, int32_t quant_block_size) {
  std::vector<std::byte> memory;
  return norm({nullptr, nullptr, allocate_host, &memory}, {FASTNORM_DEVICE_CPU, 0}, arguments,
              results, {kind, eps, weight_offset, rounding, inputs, outputs, rank, lead},
              residual_rounding, quant_scheme, quant_block_size);
}

ffi::Error norm_backward_cpu(ffi::RemainingArgs arguments, ffi::RemainingRets results, int32_t kind,
                             float eps, float weight_offset, int32_t rounding, int32_t inputs,
                             int32_t outputs, int32_t rank, int32_t lead) {
  std::vector<std::byte> memory;
  const Attributes attributes = {kind, eps, weight_offset, rounding, inputs, outputs, rank, lead};
  return run<NormBackward>({nullptr, nullptr, allocate_host, &memory},
                           call_of<NormBackward>({FASTNORM_DEVICE_CPU, 0}, attributes), arguments,
                           results, attributes);
}

ffi::Error norm_cuda(void* stream, int32_t ordinal, ffi::ScratchAllocator scratch,
                     ffi::RemainingArgs arguments, ffi::RemainingRets results, int32_t kind,
                     float eps, float weight_offset, int32_t rounding, int32_t inputs,
                     int32_t outputs, int32_t rank, int32_t lead, int32_t residual_rounding,
                     int32_t quant_scheme, int32_t quant_block_size) {
  return norm({nullptr, stream, allocate_scratch, &scratch}, {FASTNORM_DEVICE_CUDA, ordinal},
              arguments, results, {kind, eps, weight_offset, rounding, inputs, outputs, rank, lead},
              residual_rounding, quant_scheme, quant_block_size);
}

ffi::Error norm_backward_cuda(void* stream, int32_t ordinal, ffi::ScratchAllocator scratch,
                              ffi::RemainingArgs arguments, ffi::RemainingRets results,
                              int32_t kind, float eps, float weight_offset, int32_t rounding,
                              int32_t inputs, int32_t outputs, int32_t rank, int32_t lead) {
  const Attributes attributes = {kind, eps, weight_offset, rounding, inputs, outputs, rank, lead};
  return run<NormBackward>({nullptr, stream, allocate_scratch, &scratch},
                           call_of<NormBackward>({FASTNORM_DEVICE_CUDA, ordinal}, attributes),
                           arguments, results, attributes);
}

// In memory that the caller gives as the last result.
ffi::Error norm_backward_cuda_graph(void* stream, int32_t ordinal, ffi::RemainingArgs arguments,
                                    ffi::RemainingRets results, int32_t kind, float eps,
                                    float weight_offset, int32_t rounding, int32_t inputs,
                                    int32_t outputs, int32_t rank, int32_t lead) {
  const Attributes attributes = {kind, eps, weight_offset, rounding, inputs, outputs, rank, lead};
  GivenMemory memory = last_result(results);
  return run<NormBackward>({nullptr, stream, take_given, &memory},
                           call_of<NormBackward>({FASTNORM_DEVICE_CUDA, ordinal}, attributes),
                           arguments, results, attributes);
}

template <typename Binding>
auto with_attributes(Binding&& binding) {
  return std::move(binding)
      .RemainingArgs()
      .RemainingRets()
      .template Attr<int32_t>("kind")
      .template Attr<float>("eps")
      .template Attr<float>("weight_offset")
      .template Attr<int32_t>("rounding")
      .template Attr<int32_t>("inputs")
      .template Attr<int32_t>("outputs")
      .template Attr<int32_t>("rank")
      .template Attr<int32_t>("lead");
}

template <typename Binding>
auto with_norm_attributes(Binding&& binding) {
  return with_attributes(std::move(binding))
      .template Attr<int32_t>("residual_rounding")
      .template Attr<int32_t>("quant_scheme")
      .template Attr<int32_t>("quant_block_size");
}

}  // namespace

#pragma GCC visibility push(default)
XLA_FFI_DECLARE_HANDLER_SYMBOL(fastnorm_xla_norm_cpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(fastnorm_xla_norm_cuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(fastnorm_xla_norm_cuda_graph);
XLA_FFI_DECLARE_HANDLER_SYMBOL(fastnorm_xla_norm_backward_cpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(fastnorm_xla_norm_backward_cuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(fastnorm_xla_norm_backward_cuda_graph);
/** How often XLA has called a handler. It does not where it replays a CUDA graph. */
extern "C" uint64_t fastnorm_xla_calls(void);
#pragma GCC visibility pop

uint64_t fastnorm_xla_calls(void) { return calls.load(std::memory_order_relaxed); }

XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_norm_cpu, norm_cpu,
                              with_norm_attributes(ffi::Ffi::Bind()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_norm_cuda, norm_cuda,
                              with_norm_attributes(cuda_binding()));

// The same, for XLA to record in CUDA graphs: one kernel launch, nothing allocated, nothing waited
// for.
XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_norm_cuda_graph, norm_cuda,
                              with_norm_attributes(cuda_binding()),
                              {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_norm_backward_cpu, norm_backward_cpu,
                              with_attributes(ffi::Ffi::Bind()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_norm_backward_cuda, norm_backward_cuda,
                              with_attributes(cuda_binding()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_norm_backward_cuda_graph, norm_backward_cuda_graph,
                              with_attributes(graph_binding()),
                              {ffi::Traits::kCmdBufferCompatible});
