// fastnorm/torch/_C.so: the norms of fastnorm.torch without Python in a call, on libtorch's stable
// ABI. One file serves PyTorch 2.10 and later.
//
// This ABI has no functions of autograd, does not say whether a tensor requires grad, and cannot
// call an operator below a key of the dispatcher. So these are operators of their own, for plain
// tensors: fastnorm.torch calls them in eager mode, those with statistics and the backward inside
// of a node of autograd, and its Python operators in all other cases. Where a call is not the
// common one, such as for copies and for all errors, the result is not defined, which is None in
// Python, and the Python operator runs.
//
// The CPU's contexts use PyTorch's loop, so that there is no second pool of threads.

#include <dlfcn.h>

#include <algorithm>

#include "../fastnorm/torch/plans.h"
#include "torch_api.h"

namespace fastnorm_torch {
namespace {

Api api;

// A tensor that this file owns.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(StableWord word) : handle_(reinterpret_cast<TensorHandle>(word)) {}
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() {
    if (handle_ != nullptr) api.aoti_torch_delete_tensor_object(handle_);
  }

  TensorHandle get() const { return handle_; }
  TensorHandle* receive() { return &handle_; }
  StableWord give() {
    const auto word = reinterpret_cast<StableWord>(handle_);
    handle_ = nullptr;
    return word;
  }

 private:
  TensorHandle handle_ = nullptr;
};

// The handle of an optional argument, whose memory is freed here.
StableWord optional(StableWord word) {
  auto* const there = reinterpret_cast<StableWord*>(word);
  if (there == nullptr) return 0;
  const StableWord value = *there;
  delete there;
  return value;
}

StableWord undefined() {
  TensorHandle found = nullptr;
  api.aoti_torch_new_uninitialized_tensor(&found);
  return reinterpret_cast<StableWord>(found);
}

// What `options` is made of: the dtype of y plus 1 in the lowest 7 bits, 0 for that of x; whether
// weight and bias are a module's, which are of one dtype and have a value for each column; and the
// number of Python's list of options.
constexpr int64_t kDtype = 0x7f, kOfModule = 0x80, kOptionsBits = 8;

// One call: its key, addresses and results. Whatever goes wrong ends in run() == false.
class Call {
 public:
  Call(Body body, int64_t options, const Tensor& x) : body_(body), options_(options) {
    key_.add(static_cast<int64_t>(body));
    ok_ = options >= 0 && api.aoti_torch_get_device_type(x.get(), &device_type_) == 0 &&
          api.aoti_torch_get_device_index(x.get(), &device_index_) == 0;
    key_.add(device());
    key_.add(options >> kOptionsBits);
    x_ = form(x);
    add(x_, x, false);
  }

  void read(const Tensor& t) { add(form(t), t, false); }
  void read_parameter(const Tensor& t) {
    const Form parameter = form(t);
    if ((options_ & kOfModule) != 0 && parameter.rank >= 0) {
      ok_ = ok_ && parameter.rank == 1 && x_.rank > 0 &&
            parameter.sizes[0] == x_.sizes[x_.rank - 1] &&
            (parameter_dtype_ < 0 || parameter.dtype == parameter_dtype_);
      parameter_dtype_ = parameter.dtype;
    }
    add(parameter, t, false);
  }
  void write(const Tensor& t) { add(form(t), t, true); }

  // A compact result of x's shape.
  void make(Tensor& y, int64_t dtype) { make(y, dtype, x_, false); }
  // One number for each row of x.
  void make_statistics(Tensor& y) { make(y, kFloat, x_, true); }
  // A compact result of the shape and dtype of t.
  void make_like(Tensor& y, const Tensor& t) {
    const Form of_t = form(t);
    make(y, of_t.dtype, of_t, false);
  }
  // y: of x's dtype, unless the options have another one.
  void make_y(Tensor& y) {
    const int64_t dtype = options_ & kDtype;
    make(y, dtype == 0 ? x_.dtype : dtype - 1);
  }

  bool run() {
    if (!ok_) return false;
    Tensor memory;
    const auto allocate = [&](int64_t bytes) -> void* {
      constexpr int64_t kOne = 1;
      void* found = nullptr;
      if (api.aoti_torch_empty_strided(1, &bytes, &kOne, kBytes, device_type_, device_index_,
                                       memory.receive()) == 0) {
        api.torch_get_mutable_data_ptr(memory.get(), &found);
      }
      return found;
    };
    return run_planned(key_, body_, device(), addresses_.data(), count_, allocate);
  }

 private:
  static constexpr int64_t kMostRank = 32;
  static constexpr int32_t kBytes = 0, kFloat = 6;  // PyTorch's numbers of uint8 and float32

  void make(Tensor& y, int64_t dtype, const Form& like, bool one_column) {
    if (!ok_ || like.rank < 0 || like.rank > kMostRank) {
      ok_ = false;
      return;
    }
    std::array<int64_t, kMostRank> sizes, strides;
    std::copy_n(like.sizes, like.rank, sizes.data());
    if (one_column && like.rank > 0) sizes[like.rank - 1] = 1;
    int64_t stride = 1;
    for (int64_t i = like.rank; i-- > 0;) {
      strides[i] = stride;
      stride *= sizes[i] > 1 ? sizes[i] : 1;
    }
    ok_ = api.aoti_torch_empty_strided(like.rank, sizes.data(), strides.data(), dtype, device_type_,
                                       device_index_, y.receive()) == 0;
    if (ok_) write(y);
  }

  int device() const {
    return device_type_ == api.aoti_torch_device_type_cpu() ? -1 : device_index_;
  }
  Form form(const Tensor& t) {
    Form found;
    if (t.get() == nullptr || !ok_) return found;
    int32_t type = 0, index = 0, dtype = 0;
    int64_t *sizes = nullptr, *strides = nullptr;
    ok_ = api.aoti_torch_get_device_type(t.get(), &type) == 0 && type == device_type_ &&
          api.aoti_torch_get_device_index(t.get(), &index) == 0 && index == device_index_ &&
          api.aoti_torch_get_dim(t.get(), &found.rank) == 0 &&
          api.aoti_torch_get_dtype(t.get(), &dtype) == 0 &&
          api.aoti_torch_get_sizes(t.get(), &sizes) == 0 &&
          api.aoti_torch_get_strides(t.get(), &strides) == 0;
    found.dtype = dtype;
    found.sizes = sizes, found.strides = strides;
    return found;
  }
  void add(const Form& form, const Tensor& t, bool written) {
    if (!ok_) return;
    const void* address = nullptr;
    if (form.rank >= 0 && written) {
      void* found = nullptr;
      ok_ = api.torch_get_mutable_data_ptr(t.get(), &found) == 0;
      address = found;
    } else if (form.rank >= 0) {
      ok_ = api.torch_get_const_data_ptr(t.get(), &address) == 0;
    }
    addresses_[count_++] = reinterpret_cast<int64_t>(address);
    key_.add(form);
  }

  const Body body_;
  const int64_t options_;
  bool ok_ = true;
  int32_t device_type_ = 0, device_index_ = 0;
  int64_t parameter_dtype_ = -1;  // of the one before
  Form x_;
  Key key_;
  std::array<int64_t, kMostTensors> addresses_ = {};
  int count_ = 0;
};

// --- operators; compiled.py has their schemas ---

// (Tensor x, Tensor? weight, Tensor? bias, int options) -> Tensor
void eager_norm(StableWord* stack, uint64_t, uint64_t) {
  const Tensor x(stack[0]), weight(optional(stack[1])), bias(optional(stack[2]));
  Call call(Body::kLayer, static_cast<int64_t>(stack[3]), x);
  call.read_parameter(weight);
  call.read_parameter(bias);
  Tensor y;
  call.make_y(y);
  stack[0] = call.run() ? y.give() : undefined();
}

// (Tensor x, Tensor residual, Tensor? weight, int options) -> (Tensor, Tensor)
void eager_add_norm(StableWord* stack, uint64_t, uint64_t) {
  const Tensor x(stack[0]), residual(stack[1]), weight(optional(stack[2]));
  Call call(Body::kAdd, static_cast<int64_t>(stack[3]), x);
  call.read(residual);
  call.read(weight);
  Tensor y, total;
  call.make_y(y);
  int32_t dtype = 0;
  api.aoti_torch_get_dtype(residual.get(), &dtype);
  call.make(total, dtype);
  const bool ok = call.run();
  stack[0] = ok ? y.give() : undefined();
  stack[1] = ok ? total.give() : undefined();
}

// (Tensor x, Tensor(a!) residual, Tensor? weight, int options) -> Tensor
void eager_fused_add_norm(StableWord* stack, uint64_t, uint64_t) {
  const Tensor x(stack[0]), residual(stack[1]), weight(optional(stack[2]));
  Call call(Body::kFusedAdd, static_cast<int64_t>(stack[3]), x);
  call.write(residual);
  call.read(weight);
  Tensor y;
  call.make_y(y);
  call.write(residual);
  stack[0] = call.run() ? y.give() : undefined();
}

// (Tensor x, Tensor? weight, Tensor? bias, int options, int kind) -> (Tensor, Tensor, Tensor)
// y, mean and rstd; kind 0 is RMSNorm, without a mean.
void eager_norm_with_statistics(StableWord* stack, uint64_t, uint64_t) {
  const Tensor x(stack[0]), weight(optional(stack[1])), bias(optional(stack[2]));
  const bool is_layer = stack[4] != 0;
  Call call(is_layer ? Body::kLayerStatistics : Body::kRmsStatistics,
            static_cast<int64_t>(stack[3]), x);
  call.read_parameter(weight);
  if (is_layer) call.read_parameter(bias);
  Tensor y, mean, rstd;
  call.make_y(y);
  if (is_layer) call.make_statistics(mean);
  call.make_statistics(rstd);
  const bool ok = call.run();
  stack[0] = ok ? y.give() : undefined();
  stack[1] = ok && is_layer ? mean.give() : undefined();
  stack[2] = ok ? rstd.give() : undefined();
}

// (Tensor x, Tensor residual, Tensor? weight, int options) -> (Tensor, Tensor, Tensor)
// y, the sum and rstd.
void eager_add_norm_with_statistics(StableWord* stack, uint64_t, uint64_t) {
  const Tensor x(stack[0]), residual(stack[1]), weight(optional(stack[2]));
  Call call(Body::kAddStatistics, static_cast<int64_t>(stack[3]), x);
  call.read(residual);
  call.read(weight);
  Tensor y, total, rstd;
  call.make_y(y);
  int32_t dtype = 0;
  api.aoti_torch_get_dtype(residual.get(), &dtype);
  call.make(total, dtype);
  call.make_statistics(rstd);
  const bool ok = call.run();
  stack[0] = ok ? y.give() : undefined();
  stack[1] = ok ? total.give() : undefined();
  stack[2] = ok ? rstd.give() : undefined();
}

// (Tensor x, Tensor dy, Tensor? weight, Tensor? bias, Tensor? mean, Tensor rstd,
//  Tensor? dresidual_in, int options, int wanted) -> (Tensor, Tensor, Tensor, Tensor)
// dx, dresidual, dweight and dbias. wanted has a byte each: the dtypes of dx and dresidual plus 1,
// or 0, and whether dweight and dbias are wanted.
void eager_norm_backward(StableWord* stack, uint64_t, uint64_t) {
  const Tensor x(stack[0]), dy(stack[1]), weight(optional(stack[2])), bias(optional(stack[3])),
      mean(optional(stack[4])), rstd(stack[5]), dresidual_in(optional(stack[6]));
  const uint64_t wanted = stack[8];
  const auto byte = [wanted](int i) { return static_cast<int64_t>(wanted >> 8 * i & 0xff); };
  Call call(Body::kBackward, static_cast<int64_t>(stack[7]), x);
  for (const Tensor* t : {&dy, &weight, &mean, &rstd, &dresidual_in}) call.read(*t);
  Tensor results[4];
  for (int i = 0; i < 4; ++i) {
    if (byte(i) == 0) {
      call.read(results[i]);
    } else if (i < 2) {
      call.make(results[i], byte(i) - 1);
    } else {
      call.make_like(results[i], i == 2 ? weight : bias);
    }
  }
  const bool ok = call.run();
  for (int i = 0; i < 4; ++i) stack[i] = ok && byte(i) != 0 ? results[i].give() : undefined();
}

struct Work {
  void (*run)(void* task, int64_t begin, int64_t end);
  void* task;
};

}  // namespace

// libtorch: what dlopen() gave for libtorch_cpu.so. The name of what it lacks, or null.
FASTNORM_TORCH_EXPORTED const char* fastnorm_torch_open(void* libtorch) {
  Api found = {};
#define F(result, name, parameters)                                            \
  found.name = reinterpret_cast<result(*) parameters>(dlsym(libtorch, #name)); \
  if (found.name == nullptr) return #name;
  FASTNORM_TORCH_FUNCTIONS(F)
#undef F
  api = found;
  constexpr struct {
    const char* name;
    Kernel kernel;
  } kKernels[] = {
      {"eager_norm", eager_norm},
      {"eager_add_norm", eager_add_norm},
      {"eager_fused_add_norm", eager_fused_add_norm},
      {"eager_norm_with_statistics", eager_norm_with_statistics},
      {"eager_add_norm_with_statistics", eager_add_norm_with_statistics},
      {"eager_norm_backward", eager_norm_backward},
  };
  for (const char* key : {"CPU", "CUDA"}) {
    LibraryHandle library = nullptr;  // lives as long as the program
    if (api.aoti_torch_library_init_impl("fastnorm", key, "stable.cpp", 0, &library) != 0) {
      return "aoti_torch_library_init_impl";
    }
    for (const auto& [name, kernel] : kKernels) {
      if (api.torch_library_impl(library, name, kernel, kAbiVersion) != 0) {
        return "torch_library_impl";
      }
    }
  }
  return nullptr;
}

// A fastnorm_parallel_for_fn over PyTorch's threads.
FASTNORM_TORCH_EXPORTED void fastnorm_torch_parallel_for(void*, int64_t n, int64_t grain,
                                                         void (*run)(void*, int64_t, int64_t),
                                                         void* task) {
  Work work = {run, task};
  const auto range = [](int64_t begin, int64_t end, void* of) {
    const auto& work = *static_cast<const Work*>(of);
    work.run(work.task, begin, end);
  };
  api.torch_parallel_for(0, n, grain, range, &work);
}

FASTNORM_TORCH_EXPORTED void fastnorm_torch_bind(Run norm, Run backward, StreamOf stream_of,
                                                 MakePlan make_plan, EndPlans end_plans) {
  bound.norm = norm, bound.backward = backward;
  bound.stream_of = stream_of;
  bound.make_plan = make_plan, bound.end_plans = end_plans;
}

// Python ends: nothing of it is called any more by threads that end later.
FASTNORM_TORCH_EXPORTED void fastnorm_torch_unbind() { bound.end_plans = nullptr; }

// How often these operators have called the library.
FASTNORM_TORCH_EXPORTED int64_t fastnorm_torch_runs() { return runs.load(); }

}  // namespace fastnorm_torch
