// One call of an operator: ONNX Runtime's values as tensors, its errors, its threads.
#ifndef FASTNORM_INTEGRATIONS_ONNXRUNTIME_CALL_H_
#define FASTNORM_INTEGRATIONS_ONNXRUNTIME_CALL_H_

#include <fastnorm/fastnorm.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "ort_api.h"

namespace fastnorm_ort {

constexpr size_t kMaxRank = 16;

// What a call ends with where it cannot go on. It does not leave the library.
struct Failure {
  OrtErrorCode code;
  std::string text;
};

[[noreturn]] void fail(OrtErrorCode code, const std::string& text);
// Throws what ONNX Runtime or libfastnorm reports.
void check(const Api& api, OrtStatus* status);
void check(fastnorm_status status);
// "[2, 3]"
std::string text_of(std::span<const int64_t> dims);

// A tensor of ONNX Runtime, which are all compact.
struct Value {
  void* data = nullptr;
  OrtElementType type = kOrtUndefined;
  size_t rank = 0;
  std::array<int64_t, kMaxRank> dims;  // [rank]
  const OrtValue* value = nullptr;     // null: the node does not have it

  explicit operator bool() const { return value != nullptr; }
  std::span<const int64_t> shape() const { return {dims.data(), rank}; }
};

int64_t product(std::span<const int64_t> dims);
inline int64_t elements(const Value& value) { return product(value.shape()); }

// A view for the library, with the shape and strides that it points to.
class Tensor {
 public:
  Tensor() {}  // NOLINT: the arrays stay as they are
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  // Compact.
  const fastnorm_tensor* set(const Value& value, std::span<const int64_t> shape);
  // Strides in elements. `offset` is that of the first one, in elements, too.
  const fastnorm_tensor* set(const Value& value, std::span<const int64_t> shape,
                             std::span<const int64_t> strides, int64_t offset = 0);

  fastnorm_device device = {FASTNORM_DEVICE_CPU, 0};

 private:
  fastnorm_tensor tensor_ = {};
  std::array<int64_t, kMaxRank + 1> shape_, strides_;  // without initial values: for each call
};

// What does not change from call to call: values of initializers, and which outputs there are.
class Constants {
 public:
  Constants(const Api& api, const OrtKernelInfo* info);
  // Null if the input is none of them.
  const Value* find(size_t index) const;
  bool has_input(size_t index) const { return index < values_.size(); }
  bool has_output(size_t index) const { return index < outputs_; }

 private:
  std::vector<Value> values_;
  size_t outputs_ = 0;
};

class Call {
 public:
  Call(const Api& api, OrtKernelContext* context, const Constants& constants, bool cuda)
      : api_(api), context_(context), constants_(constants), cuda_(cuda) {}
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Value input(size_t index) const;
  // Without a value if the node does not have this output.
  Value output(size_t index, OrtElementType type, std::span<const int64_t> dims);
  // Memory of x's device until the call ends. On a GPU later work of the stream may have it then.
  Value scratch(const Value& x, OrtElementType type, std::span<const int64_t> dims);
  // The device of the input, its library context, and the stream of ONNX Runtime.
  void find_device(const Value& x);

  fastnorm_device device() const { return device_; }
  fastnorm_context* library() const { return library_; }
  void* stream() const { return stream_; }
  // For fastnorm_norm_args.parallel_user.
  void* parallel_user() { return this; }
  bool cuda() const { return cuda_; }

  // A fastnorm_parallel_for_fn over ONNX Runtime's threads; `user` is a Call.
  static void parallel_for(void* user, int64_t n, int64_t grain, fastnorm_range_fn fn, void* task);

 private:
  const Api& api_;
  OrtKernelContext* const context_;
  const Constants& constants_;
  const bool cuda_;
  fastnorm_device device_ = {FASTNORM_DEVICE_CPU, 0};
  fastnorm_context* library_ = nullptr;
  void* stream_ = nullptr;
  OrtAllocator* allocator_ = nullptr;
  std::vector<void*> scratch_;
};

Value read_value(const Api& api, const OrtValue* value);
fastnorm_dtype dtype_of(OrtElementType type);
size_t bytes_of(OrtElementType type);

// Attributes of a node.
int64_t attribute(const Api& api, const OrtKernelInfo* info, const char* name, int64_t otherwise);
float attribute(const Api& api, const OrtKernelInfo* info, const char* name, float otherwise);

}  // namespace fastnorm_ort

#endif  // FASTNORM_INTEGRATIONS_ONNXRUNTIME_CALL_H_
