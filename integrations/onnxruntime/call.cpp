#include "call.h"

#include <algorithm>
#include <mutex>
#include <thread>

namespace fastnorm_ort {
namespace {

// One library context a device, made at its first use, kept until the process ends.
fastnorm_context* find_context(fastnorm_device device) {
  static std::mutex mutex;
  static auto* const cuda = new std::vector<fastnorm_context*>;
  static fastnorm_context* cpu = nullptr;
  const std::lock_guard lock(mutex);
  fastnorm_context** found = &cpu;
  if (device.device_type == FASTNORM_DEVICE_CUDA) {
    const auto index = static_cast<size_t>(device.device_id);
    if (index >= cuda->size()) cuda->resize(index + 1);
    found = &(*cuda)[index];
  }
  if (*found == nullptr) {
    fastnorm_context_options options = {};
    options.struct_size = sizeof options;
    if (found == &cpu) options.parallel_for = Call::parallel_for;
    check(fastnorm_context_create(device, &options, found));
  }
  return *found;
}

fastnorm_context* cpu_context() {
  static fastnorm_context* const context = find_context({FASTNORM_DEVICE_CPU, 0});
  return context;
}

// The range that a part of the caller's loop has.
struct Ranges {
  int64_t n, parts;
  fastnorm_range_fn fn;
  void* task;

  int64_t begin(int64_t part) const { return n / parts * part + std::min(part, n % parts); }
};

void run_range(void* user, size_t index) {
  const auto& ranges = *static_cast<const Ranges*>(user);
  const auto part = static_cast<int64_t>(index);
  ranges.fn(ranges.task, ranges.begin(part), ranges.begin(part + 1));
}

// ONNX Runtime does not say how many threads it has. More ranges than threads cost little.
int64_t most_ranges() {
  static const int64_t most = 2 * std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, 512);
  return most;
}

}  // namespace

void fail(OrtErrorCode code, const std::string& text) { throw Failure{code, text}; }

void check(const Api& api, OrtStatus* status) {
  if (status == nullptr) return;
  const std::string text = api.GetErrorMessage(status);
  api.ReleaseStatus(status);
  fail(kOrtFail, text);
}

void check(fastnorm_status status) {
  if (status == FASTNORM_OK) return;
  const int decade = static_cast<int>(status) / 10;
  fail(decade <= 4   ? kOrtInvalidArgument
       : decade == 5 ? kOrtNotImplemented
                     : kOrtFail,
       std::string(fastnorm_status_name(status)) + ": " + fastnorm_last_error());
}

std::string text_of(std::span<const int64_t> dims) {
  std::string text = "[";
  for (const int64_t dim : dims) text += (text.size() > 1 ? ", " : "") + std::to_string(dim);
  return text + "]";
}

int64_t product(std::span<const int64_t> dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  return count;
}

fastnorm_dtype dtype_of(OrtElementType type) {
  switch (type) {
    case kOrtF16:
      return fastnorm_dtype_of(FASTNORM_DTYPE_F16);
    case kOrtBf16:
      return fastnorm_dtype_of(FASTNORM_DTYPE_BF16);
    case kOrtI8:
      return fastnorm_dtype_of(FASTNORM_DTYPE_I8);
    case kOrtI64:
      return fastnorm_dtype_of(FASTNORM_DTYPE_I64);
    case kOrtF8E4m3fn:
      return fastnorm_dtype_of(FASTNORM_DTYPE_F8_E4M3FN);
    case kOrtF8E5m2:
      return fastnorm_dtype_of(FASTNORM_DTYPE_F8_E5M2);
    default:
      return fastnorm_dtype_of(FASTNORM_DTYPE_F32);
  }
}

size_t bytes_of(OrtElementType type) { return dtype_of(type).bits / 8u; }

// --- values ---

Value read_value(const Api& api, const OrtValue* value) {
  Value read;
  if (value == nullptr) return read;
  read.value = value;
  check(api, api.GetTensorMutableData(const_cast<OrtValue*>(value), &read.data));
  const auto check_rank = [&] {
    if (read.rank > kMaxRank) {
      fail(kOrtNotImplemented, "a tensor has " + std::to_string(read.rank) +
                                   " dimensions; supported: " + std::to_string(kMaxRank));
    }
  };
  if (api.GetTensorElementTypeAndShapeDataReference != nullptr) {
    const int64_t* dims = nullptr;
    check(api, api.GetTensorElementTypeAndShapeDataReference(value, &read.type, &dims, &read.rank));
    check_rank();
    std::copy_n(dims, read.rank, read.dims.begin());
    return read;
  }
  OrtTensorTypeAndShapeInfo* info = nullptr;
  check(api, api.GetTensorTypeAndShape(value, &info));
  OrtStatus* status = api.GetTensorElementType(info, &read.type);
  if (status == nullptr) status = api.GetDimensionsCount(info, &read.rank);
  if (status == nullptr && read.rank <= kMaxRank) {
    status = api.GetDimensions(info, read.dims.data(), read.rank);
  }
  api.ReleaseTensorTypeAndShapeInfo(info);
  check(api, status);
  check_rank();
  return read;
}

Constants::Constants(const Api& api, const OrtKernelInfo* info) {
  size_t count = 0;
  check(api, api.KernelInfo_GetInputCount(info, &count));
  check(api, api.KernelInfo_GetOutputCount(info, &outputs_));
  values_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    int constant = 0;
    const OrtValue* value = nullptr;
    OrtStatus* const status = api.KernelInfoGetConstantInput_tensor(info, i, &constant, &value);
    if (status != nullptr) {
      api.ReleaseStatus(status);  // an optional input that the node leaves out
    } else if (constant != 0) {
      values_[i] = read_value(api, value);
    }
  }
}

const Value* Constants::find(size_t index) const {
  return index < values_.size() && values_[index] ? &values_[index] : nullptr;
}

const fastnorm_tensor* Tensor::set(const Value& value, std::span<const int64_t> shape) {
  std::array<int64_t, kMaxRank + 1> strides;
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0; stride *= shape[i]) strides[i] = stride;
  return set(value, shape, {strides.data(), shape.size()});
}

const fastnorm_tensor* Tensor::set(const Value& value, std::span<const int64_t> shape,
                                   std::span<const int64_t> strides, int64_t offset) {
  std::copy(shape.begin(), shape.end(), shape_.begin());
  std::copy(strides.begin(), strides.end(), strides_.begin());
  tensor_.data = value.data;
  tensor_.device_type = device.device_type;
  tensor_.device_id = device.device_id;
  tensor_.ndim = static_cast<int32_t>(shape.size());
  tensor_.dtype = dtype_of(value.type);
  tensor_.shape = shape_.data();
  tensor_.strides = strides_.data();
  tensor_.byte_offset = static_cast<uint64_t>(offset) * bytes_of(value.type);
  return &tensor_;
}

// --- calls ---

Call::~Call() {
  for (void* memory : scratch_) {
    OrtStatus* const status = api_.AllocatorFree(allocator_, memory);
    if (status != nullptr) api_.ReleaseStatus(status);
  }
}

Value Call::input(size_t index) const {
  if (const Value* constant = constants_.find(index)) return *constant;
  if (!constants_.has_input(index)) return {};
  const OrtValue* value = nullptr;
  check(api_, api_.KernelContext_GetInput(context_, index, &value));
  return read_value(api_, value);
}

Value Call::output(size_t index, OrtElementType type, std::span<const int64_t> dims) {
  if (!constants_.has_output(index)) return {};
  OrtValue* made = nullptr;
  check(api_, api_.KernelContext_GetOutput(context_, index, dims.data(), dims.size(), &made));
  Value value;
  if (made == nullptr) return value;
  value.value = made;
  value.type = type;
  value.rank = dims.size();
  std::copy(dims.begin(), dims.end(), value.dims.begin());
  check(api_, api_.GetTensorMutableData(made, &value.data));
  return value;
}

Value Call::scratch(const Value& x, OrtElementType type, std::span<const int64_t> dims) {
  if (allocator_ == nullptr) {
    const OrtMemoryInfo* memory = nullptr;
    check(api_, api_.GetTensorMemoryInfo(x.value, &memory));
    check(api_, api_.KernelContext_GetAllocator(context_, memory, &allocator_));
  }
  scratch_.reserve(scratch_.size() + 1);
  Value value;
  value.value = x.value;
  value.type = type;
  value.rank = dims.size();
  std::copy(dims.begin(), dims.end(), value.dims.begin());
  const size_t bytes = static_cast<size_t>(product(dims)) * bytes_of(type);
  check(api_, api_.AllocatorAlloc(allocator_, bytes, &value.data));
  scratch_.push_back(value.data);
  return value;
}

void Call::find_device(const Value& x) {
  if (!cuda_) {
    library_ = cpu_context();
    return;
  }
  const OrtMemoryInfo* memory = nullptr;
  int device = 0;
  check(api_, api_.GetTensorMemoryInfo(x.value, &memory));
  check(api_, api_.MemoryInfoGetId(memory, &device));
  device_ = {FASTNORM_DEVICE_CUDA, device};
  library_ = find_context(device_);
  check(api_, api_.KernelContext_GetGPUComputeStream(context_, &stream_));
}

void Call::parallel_for(void* user, int64_t n, int64_t grain, fastnorm_range_fn fn, void* task) {
  const int64_t parts = std::min(n / std::max<int64_t>(grain, 1), most_ranges());
  if (parts <= 1) return fn(task, 0, n);
  const auto& call = *static_cast<const Call*>(user);
  Ranges ranges = {n, parts, fn, task};
  OrtStatus* const status = call.api_.KernelContext_ParallelFor(
      call.context_, run_range, static_cast<size_t>(parts), 0, &ranges);
  if (status != nullptr) call.api_.ReleaseStatus(status);  // the library sees what did not run
}

int64_t attribute(const Api& api, const OrtKernelInfo* info, const char* name, int64_t otherwise) {
  int64_t value = 0;
  OrtStatus* const status = api.KernelInfoGetAttribute_int64(info, name, &value);
  if (status == nullptr) return value;
  api.ReleaseStatus(status);
  return otherwise;
}

float attribute(const Api& api, const OrtKernelInfo* info, const char* name, float otherwise) {
  float value = 0;
  OrtStatus* const status = api.KernelInfoGetAttribute_float(info, name, &value);
  if (status == nullptr) return value;
  api.ReleaseStatus(status);
  return otherwise;
}

}  // namespace fastnorm_ort
