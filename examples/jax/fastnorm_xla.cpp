// libfastnorm for XLA: the handlers behind the JAX functions of fastnorm.jax. One handler a
// platform serves all families. A call's scalars come as the bytes of its C structs, whose tensors
// are null. `operands` says which buffer of XLA is which tensor. So Python alone decides what a
// call has.
//
// Attributes:
//
//   family    a number of Family
//   structs   the args struct, then those of parts, then structs to which others point, each of as
//             many bytes as its struct_size says, which is a multiple of 8
//   parts     the number of parts
//   links     pairs: where a pointer to a struct is in `structs`, and where that struct is. A pair
//             of -1 is none
//   operands  kOperandWords numbers for each input, then for each result: see OperandWord
//   rank      the dimensions of a row tensor without vmap's batch; -1: no buffer has a batch
//   lead      how many leading dimensions of a row tensor become one
//   given     1: the last result is the call's workspace
//
// Buffers are compact. More dimensions than `rank` in front of a row tensor are a batch of vmap,
// which every buffer then has. (Flattened by XLA itself, a residual would be copied on its way to
// the call.) A status that is not OK becomes XLA's error, with the library's text.

#include <dlfcn.h>
#include <fastnorm/fastnorm.h>
#include <xla/ffi/api/ffi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace ffi = xla::ffi;

constexpr size_t kMaxRank = 8;
constexpr size_t kMostParts = 8;
constexpr size_t kMostOperands = 192;      // of 8 parts with all their tensors
constexpr size_t kMostStructWords = 1024;  // of 8 bytes

// How often XLA has called a handler.
std::atomic<uint64_t> calls = 0;

ffi::Error error_of(fastnorm_status status) {
  if (status == FASTNORM_OK) return ffi::Error::Success();
  const int decade = static_cast<int>(status) / 10;
  const auto code = decade <= 4   ? ffi::ErrorCode::kInvalidArgument
                    : decade == 5 ? ffi::ErrorCode::kUnimplemented
                    : decade == 7 ? ffi::ErrorCode::kResourceExhausted
                                  : ffi::ErrorCode::kInternal;
  return {code, std::string(fastnorm_status_name(status)) + ": " + fastnorm_last_error()};
}

ffi::Error malformed() {
  return ffi::Error::InvalidArgument("the buffers are not those that the attributes tell of");
}

// --- contexts: one a device, made at its first use, kept until the process ends ---

struct Contexts {
  std::mutex mutex;
  std::vector<fastnorm_context*> of_device;
};

fastnorm_status find_context(fastnorm_device device, fastnorm_context** context) {
  static auto* const cpu = new Contexts;
  static auto* const cuda = new Contexts;
  const bool is_cpu = device.device_type == FASTNORM_DEVICE_CPU;
  Contexts& all = is_cpu ? *cpu : *cuda;
  const std::lock_guard lock(all.mutex);
  const auto index = static_cast<size_t>(device.device_id);
  if (index >= all.of_device.size()) all.of_device.resize(index + 1);
  fastnorm_context*& found = all.of_device[index];
  fastnorm_status status = FASTNORM_OK;
  if (found == nullptr) {
    fastnorm_context_options options = {};
    options.struct_size = sizeof options;
    const unsigned processors = std::clamp(std::thread::hardware_concurrency(), 1u, 1024u);
    options.num_threads = is_cpu ? static_cast<int32_t>(processors) : 0;
    status = fastnorm_context_create(device, &options, &found);
  }
  *context = found;
  return status;
}

// --- buffers as tensors ---

// DLPack's words for an element. What no call takes has one too, so that the library can say so.
fastnorm_dtype dtype_of(ffi::DataType type) {
  const auto width = static_cast<uint8_t>(8 * ffi::ByteWidth(type));
  switch (type) {
    case ffi::DataType::F16:
    case ffi::DataType::F32:
    case ffi::DataType::F64:
      return {2, width, 1};
    case ffi::DataType::BF16:
      return fastnorm_dtype_of(FASTNORM_DTYPE_BF16);
    case ffi::DataType::F8E4M3FN:
      return fastnorm_dtype_of(FASTNORM_DTYPE_F8_E4M3FN);
    case ffi::DataType::F8E5M2:
      return fastnorm_dtype_of(FASTNORM_DTYPE_F8_E5M2);
    case ffi::DataType::F8E8M0FNU:
      return fastnorm_dtype_of(FASTNORM_DTYPE_F8_E8M0FNU);
    case ffi::DataType::S8:
    case ffi::DataType::S16:
    case ffi::DataType::S32:
    case ffi::DataType::S64:
      return {0, width, 1};
    case ffi::DataType::U8:
    case ffi::DataType::U16:
    case ffi::DataType::U32:
    case ffi::DataType::U64:
      return {1, width, 1};
    case ffi::DataType::PRED:
      return {6, width, 1};
    default:
      return {3, width, 1};  // DLPack's opaque handle
  }
}

int64_t product(const int64_t* begin, const int64_t* end) {
  int64_t count = 1;
  for (; begin != end; ++begin) count *= *begin;
  return count;
}

// What `operands` says of a buffer.
enum OperandWord : size_t {
  kOffset,  // of the pointer to the tensor in `structs`, in bytes; -1: the call does not see it
  kRole,    // a number of Role
  kFirst,   // of the second dimension's part that the tensor has
  kNumber,  // its extent; -1: all of the buffer
  kResult,  // of an input: the result that has its contents before the call; -1: none
  kOperandWords
};

enum Role : int64_t {
  kRows,       // of x's rows: its leading dimensions become one
  kParameter,  // broadcasts against x: a weight, a bias and their gradients
};

// Without initial values: a call fills in those that it has.
struct Operand {
  int64_t offset, first, number;
  bool parameter;
  const int64_t *dims_begin, *dims_end;
  size_t element_bytes;
  std::array<int64_t, kMaxRank + 1> shape, strides;
  fastnorm_tensor tensor;

  size_t dims() const { return static_cast<size_t>(dims_end - dims_begin); }
  size_t bytes() const {
    return static_cast<size_t>(product(dims_begin, dims_end)) * element_bytes;
  }
};

// --- memory of the two platforms ---

// Memory of the device for the duration of the call, 256-byte aligned; null if there is none.
using Allocate = void* (*)(void* from, size_t bytes);

void* allocate_host(void* from, size_t bytes) {
  auto& memory = *static_cast<std::vector<std::byte>*>(from);
  memory.resize(bytes + 255);
  void* address = memory.data();
  size_t space = memory.size();
  return std::align(256, bytes, address, space);
}

// XLA refuses to align scratch memory to more than 16 bytes.
void* allocate_scratch(void* from, size_t bytes) {
  size_t space = bytes + 240;
  void* address = static_cast<ffi::ScratchAllocator*>(from)->Allocate(space, 16).value_or(nullptr);
  return address == nullptr ? nullptr : std::align(256, bytes, address, space);
}

// Copies bytes of a device, in the order of its stream. False where that is not possible. JAX has
// loaded the driver.
bool copy_bytes(fastnorm_device device, void* stream, void* to, const void* from, size_t bytes) {
  if (device.device_type == FASTNORM_DEVICE_CPU) {
    std::memcpy(to, from, bytes);
    return true;
  }
  using Copy = int(uint64_t to, uint64_t from, size_t bytes, void* stream);
  static const auto copy = [] {
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    return driver == nullptr ? nullptr
                             : reinterpret_cast<Copy*>(dlsym(driver, "cuMemcpyDtoDAsync_v2"));
  }();
  return copy != nullptr &&
         copy(reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from), bytes, stream) == 0;
}

// --- families ---

enum Family : int32_t { kNorm, kNormBackward, kNormHeads, kNormHeadsBackward, kMlaDecode };

struct Attributes {
  int32_t family;
  ffi::Span<const int32_t> structs;
  int32_t parts;
  ffi::Span<const int64_t> links;
  ffi::Span<const int64_t> operands;
  int32_t rank;
  int32_t lead;
  int32_t given;
};

class Call {
 public:
  Call(fastnorm_device device, void* stream, const Attributes& attributes)
      : device_(device), stream_(stream), attributes_(attributes) {}

  ffi::Error run(ffi::RemainingArgs arguments, ffi::RemainingRets results, Allocate allocate,
                 void* from) {
    calls.fetch_add(1, std::memory_order_relaxed);
    allocate_ = allocate, from_ = from;
    if (!take_structs() || !take_buffers(arguments, results)) return malformed();
    fastnorm_status status = find_context(device_, &context_);
    if (status != FASTNORM_OK) return error_of(status);
    for (size_t i = 0; i < copy_count_; ++i) {
      const Copy& c = copies_[i];
      if (!copy_bytes(device_, stream_, c.to, c.from, c.bytes)) {
        return ffi::Error::Internal("an input cannot be copied to the result that begins with it");
      }
    }
    return error_of(run_batch());
  }

 private:
  struct Copy {
    const void* from;
    void* to;
    size_t bytes;
  };

  // The structs in memory of their alignment, with their pointers to each other.
  bool take_structs() {
    struct_bytes_ = attributes_.structs.size() * sizeof(int32_t);
    if (struct_bytes_ == 0 || struct_bytes_ > sizeof structs_) return false;
    std::memcpy(structs_, attributes_.structs.begin(), struct_bytes_);
    if (attributes_.parts < 0 || static_cast<size_t>(attributes_.parts) > kMostParts) return false;
    size_t at = 0;
    for (int32_t i = -1; i < attributes_.parts; ++i) {
      size_t size = 0;
      if (!holds(at)) return false;
      std::memcpy(&size, byte(at), sizeof size);
      if (size < sizeof size || size % 8 != 0 || size > struct_bytes_ - at) return false;
      if (i >= 0) parts_[i] = byte(at);
      at += size;
    }
    const auto& links = attributes_.links;
    for (size_t i = 0; i + 1 < links.size(); i += 2) {
      const int64_t from = links.begin()[i], to = links.begin()[i + 1];
      if (from < 0 && to < 0) continue;
      if (from < 0 || to < 0 || !holds(static_cast<size_t>(from)) ||
          !holds(static_cast<size_t>(to))) {
        return false;
      }
      put(static_cast<size_t>(from), byte(static_cast<size_t>(to)));
    }
    return true;
  }

  // Whether a pointer's bytes are in the structs, at its alignment.
  bool holds(size_t at) const { return at % 8 == 0 && at + sizeof(void*) <= struct_bytes_; }

  void put(size_t at, const void* pointer) { std::memcpy(byte(at), &pointer, sizeof pointer); }

  char* byte(size_t at) { return reinterpret_cast<char*>(structs_) + at; }

  bool take_buffers(ffi::RemainingArgs arguments, ffi::RemainingRets results) {
    const size_t inputs = arguments.size();
    const size_t spare = attributes_.given != 0 ? 1 : 0;
    if (results.size() < spare) return false;
    const size_t outputs = results.size() - spare;
    count_ = inputs + outputs;
    if (count_ > kMostOperands || attributes_.operands.size() != count_ * kOperandWords) {
      return false;
    }
    for (size_t i = 0; i < count_; ++i) {
      const int64_t* const words = attributes_.operands.begin() + i * kOperandWords;
      if (i < inputs) {
        const auto buffer = arguments.get<ffi::AnyBuffer>(i);
        if (!buffer.has_value() || !add(i, *buffer, words)) return false;
      } else {
        auto buffer = results.get<ffi::AnyBuffer>(i - inputs);
        if (!buffer.has_value() || !add(i, **buffer, words)) return false;
      }
    }
    // XLA may give a result that begins with an input a place of its own.
    for (size_t i = 0; i < inputs; ++i) {
      const int64_t result = attributes_.operands.begin()[i * kOperandWords + kResult];
      if (result < 0) continue;
      if (result >= static_cast<int64_t>(outputs)) return false;
      const Operand &from = operands_[i], &to = operands_[inputs + static_cast<size_t>(result)];
      if (from.bytes() != to.bytes()) return false;
      if (from.tensor.data != to.tensor.data) {
        copies_[copy_count_++] = {from.tensor.data, to.tensor.data, to.bytes()};
      }
    }
    if (spare != 0) {
      auto buffer = results.get<ffi::AnyBuffer>(outputs);
      if (!buffer.has_value()) return false;
      given_ = (*buffer)->untyped_data(), given_bytes_ = (*buffer)->size_bytes();
    }
    return true;
  }

  bool add(size_t index, ffi::AnyBuffer buffer, const int64_t* words) {
    Operand& o = operands_[index];
    o.offset = words[kOffset];
    o.parameter = words[kRole] == kParameter;
    o.first = words[kFirst], o.number = words[kNumber];
    o.dims_begin = buffer.dimensions().begin(), o.dims_end = buffer.dimensions().end();
    o.element_bytes = ffi::ByteWidth(buffer.element_type());
    o.tensor = {};
    o.tensor.data = buffer.untyped_data();
    o.tensor.device_type = device_.device_type;
    o.tensor.device_id = device_.device_id;
    o.tensor.dtype = dtype_of(buffer.element_type());
    if (index == 0 && attributes_.rank >= 0) {
      const auto rank = static_cast<size_t>(attributes_.rank);
      if (o.dims() < rank) return false;
      batch_rank_ = o.dims() - rank;
      batch_ = product(o.dims_begin, o.dims_begin + batch_rank_);
    }
    has_parameters_ |= o.parameter;
    if (o.offset >= 0 && !holds(static_cast<size_t>(o.offset))) return false;
    if (o.number >= 0 &&
        (o.dims() < 2 || o.first < 0 || batch_rank_ != 0 || o.first + o.number > o.dims_begin[1])) {
      return false;
    }
    return o.dims() >= batch_rank_ && rank_of(o) <= kMaxRank;
  }

  // Whether the first dimensions of an operand, without its batch, are rows that become one.
  bool has_rows(const Operand& o) const {
    const size_t rank = o.dims() - batch_rank_;
    return attributes_.rank >= 0 && !o.parameter && rank > 0 &&
           rank >= static_cast<size_t>(attributes_.lead);
  }

  size_t rank_of(const Operand& o) const {
    const size_t rank = o.dims() - batch_rank_;
    return has_rows(o) ? rank - static_cast<size_t>(attributes_.lead) + 1 : rank;
  }

  // The tensor of an operand without its batch, if it has one, and with its rows as one dimension;
  // of part `part` of the batch.
  void describe_part(Operand& o, int64_t part) {
    const int64_t* from = o.dims_begin + batch_rank_;
    const size_t rank = rank_of(o);
    auto shape = o.shape.begin();
    if (has_rows(o)) {
      *shape++ = product(from, from + attributes_.lead);
      from += attributes_.lead;
    }
    std::copy(from, o.dims_end, shape);
    int64_t stride = 1;
    for (size_t i = rank; i-- > 0; stride *= o.shape[i]) o.strides[i] = stride;
    o.tensor.byte_offset = static_cast<uint64_t>(part * stride) * o.element_bytes;
    if (o.number >= 0) {
      o.tensor.byte_offset += static_cast<uint64_t>(o.first * o.strides[1]) * o.element_bytes;
      o.shape[1] = o.number;
    }
    finish(o, rank);
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
    o.shape[at] = batch_;
    o.strides[at] = part;
    finish(o, rank + 1);
  }

  void finish(Operand& o, size_t rank) {
    o.tensor.ndim = static_cast<int32_t>(rank);
    o.tensor.shape = o.shape.data();
    o.tensor.strides = o.strides.data();
    if (o.offset >= 0) put(static_cast<size_t>(o.offset), &o.tensor);
  }

  fastnorm_status run_batch() {
    const auto begin = operands_.begin(), end = begin + count_;
    if (batch_rank_ == 0) {
      std::for_each(begin, end, [&](Operand& o) { describe_part(o, 0); });
      return call();
    }
    // Without parameters a batch is more rows. Parameters [batch, n] are those of heads, of x as
    // [rows, batch, n].
    const bool heads = attributes_.rank > attributes_.lead + 1;
    if (!has_parameters_ || !heads) {
      std::for_each(begin, end, [&](Operand& o) { describe_batch(o, has_parameters_); });
      return call();
    }
    for (int64_t part = 0; part < batch_; ++part) {
      std::for_each(begin, end, [&](Operand& o) { describe_part(o, part); });
      const auto status = call();
      if (status != FASTNORM_OK) return status;
    }
    return FASTNORM_OK;
  }

  fastnorm_status call() {
    switch (attributes_.family) {
      case kNorm:
        return of(fastnorm_norm_query, fastnorm_norm);
      case kNormBackward:
        return of(fastnorm_norm_backward_query, fastnorm_norm_backward);
      case kNormHeads:
        return of_parts(fastnorm_norm_heads_query, fastnorm_norm_heads);
      case kNormHeadsBackward:
        return of_parts(fastnorm_norm_heads_backward_query, fastnorm_norm_heads_backward);
      default:
        return of(fastnorm_mla_decode_query, fastnorm_mla_decode);
    }
  }

  template <typename Args>
  fastnorm_status of(fastnorm_status (*query)(fastnorm_context*, const Args*, fastnorm_info*),
                     fastnorm_status (*run)(fastnorm_context*, const Args*, void*, size_t, void*)) {
    const auto* const args = reinterpret_cast<const Args*>(structs_);
    return with_workspace([&](fastnorm_info* info) { return query(context_, args, info); },
                          [&](void* workspace, size_t bytes) {
                            return run(context_, args, workspace, bytes, stream_);
                          });
  }

  template <typename Args, typename Part>
  fastnorm_status of_parts(fastnorm_status (*query)(fastnorm_context*, const Args*,
                                                    const Part* const*, int32_t, fastnorm_info*),
                           fastnorm_status (*run)(fastnorm_context*, const Args*,
                                                  const Part* const*, int32_t, void*, size_t,
                                                  void*)) {
    const auto* const args = reinterpret_cast<const Args*>(structs_);
    const Part* parts[kMostParts] = {};
    const int32_t count = attributes_.parts;
    for (int32_t i = 0; i < count; ++i) parts[i] = reinterpret_cast<const Part*>(parts_[i]);
    return with_workspace(
        [&](fastnorm_info* info) { return query(context_, args, parts, count, info); },
        [&](void* workspace, size_t bytes) {
          return run(context_, args, parts, count, workspace, bytes, stream_);
        });
  }

  template <typename Query, typename Run>
  fastnorm_status with_workspace(Query query, Run run) {
    fastnorm_info info = {};
    info.struct_size = sizeof info;
    const auto status = query(&info);
    if (status != FASTNORM_OK) return status;
    const size_t bytes = info.workspace_bytes;
    return run(bytes == 0 ? nullptr : workspace(bytes), bytes);
  }

  // A recorded call has its workspace as its last result: XLA gives scratch memory to others when
  // the handler returns, and the graph runs later. A CPU does without it.
  void* workspace(size_t bytes) {
    if (given_ == nullptr || device_.device_type == FASTNORM_DEVICE_CPU) {
      return allocate_(from_, bytes);
    }
    void* address = given_;
    size_t space = given_bytes_;
    return std::align(256, bytes, address, space);
  }

  const fastnorm_device device_;
  void* const stream_;
  const Attributes& attributes_;
  Allocate allocate_ = nullptr;
  void* from_ = nullptr;
  fastnorm_context* context_ = nullptr;
  void* given_ = nullptr;
  size_t given_bytes_ = 0;
  size_t struct_bytes_ = 0;
  size_t batch_rank_ = 0;
  int64_t batch_ = 1;
  bool has_parameters_ = false;
  size_t count_ = 0, copy_count_ = 0;
  const char* parts_[kMostParts] = {};
  std::array<Copy, kMostOperands> copies_;
  std::array<Operand, kMostOperands> operands_;
  uint64_t structs_[kMostStructWords];
};

// --- the two platforms ---

ffi::Error on_cpu(ffi::RemainingArgs arguments, ffi::RemainingRets results, int32_t family,
                  ffi::Span<const int32_t> structs, int32_t parts, ffi::Span<const int64_t> links,
                  ffi::Span<const int64_t> operands, int32_t rank, int32_t lead, int32_t given) {
  std::vector<std::byte> memory;
  const Attributes attributes = {family, structs, parts, links, operands, rank, lead, given};
  Call call({FASTNORM_DEVICE_CPU, 0}, nullptr, attributes);
  return call.run(arguments, results, allocate_host, &memory);
}

ffi::Error on_cuda(void* stream, int32_t ordinal, ffi::ScratchAllocator scratch,
                   ffi::RemainingArgs arguments, ffi::RemainingRets results, int32_t family,
                   ffi::Span<const int32_t> structs, int32_t parts, ffi::Span<const int64_t> links,
                   ffi::Span<const int64_t> operands, int32_t rank, int32_t lead, int32_t given) {
  const Attributes attributes = {family, structs, parts, links, operands, rank, lead, given};
  Call call({FASTNORM_DEVICE_CUDA, ordinal}, stream, attributes);
  return call.run(arguments, results, allocate_scratch, &scratch);
}

auto cuda_binding() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::PlatformStream<void*>>()
      .Ctx<ffi::DeviceOrdinal>()
      .Ctx<ffi::ScratchAllocator>();
}

template <typename Binding>
auto with_attributes(Binding&& binding) {
  return std::move(binding)
      .RemainingArgs()
      .RemainingRets()
      .template Attr<int32_t>("family")
      .template Attr<ffi::Span<const int32_t>>("structs")
      .template Attr<int32_t>("parts")
      .template Attr<ffi::Span<const int64_t>>("links")
      .template Attr<ffi::Span<const int64_t>>("operands")
      .template Attr<int32_t>("rank")
      .template Attr<int32_t>("lead")
      .template Attr<int32_t>("given");
}

}  // namespace

#pragma GCC visibility push(default)
XLA_FFI_DECLARE_HANDLER_SYMBOL(fastnorm_xla_cpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(fastnorm_xla_cuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(fastnorm_xla_cuda_graph);
/** How often XLA has called a handler. It does not where it replays a CUDA graph. */
extern "C" uint64_t fastnorm_xla_calls(void);
#pragma GCC visibility pop

uint64_t fastnorm_xla_calls(void) { return calls.load(std::memory_order_relaxed); }

XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_cpu, on_cpu, with_attributes(ffi::Ffi::Bind()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_cuda, on_cuda, with_attributes(cuda_binding()));

// The same, for XLA to record in CUDA graphs: kernel launches, nothing allocated, nothing waited
// for. A call that needs a workspace has `given`.
XLA_FFI_DEFINE_HANDLER_SYMBOL(fastnorm_xla_cuda_graph, on_cuda, with_attributes(cuda_binding()),
                              {ffi::Traits::kCmdBufferCompatible});
