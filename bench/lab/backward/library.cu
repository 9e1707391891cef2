// The laboratory's backward pass for Python's ctypes: bf16 rows that lie side by side, dx, dweight
// and dbias. A shape has a few kernels, which all give the same bits; the caller times them.
#include <algorithm>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/lab/backward/fold.cuh"
#include "bench/lab/backward/plan.h"

#define LAB_API __attribute__((visibility("default")))

namespace lab {

namespace {

thread_local std::string error;
thread_local std::string shown_name;

[[noreturn]] void refuse(const std::string& argument, int64_t value, const std::string& required) {
  throw std::invalid_argument(argument + " is " + std::to_string(value) +
                              "; required: " + required);
}

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess)
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

std::vector<Entry> entries(int norm, int n) {
  if (norm != 0 && norm != 1) refuse("norm", norm, "0 (RMSNorm) or 1 (LayerNorm)");
  static const std::vector<Entry> all[2] = {rms_entries(), layer_entries()};
  std::vector<Entry> found;
  if (n < kPerVector || n > 8192) return found;
  std::copy_if(all[norm].begin(), all[norm].end(), std::back_inserter(found),
               [n](const Entry& e) { return suits(e.tile, n); });
  return found;
}

Entry entry(int norm, int n, int index) {
  const std::vector<Entry> found = entries(norm, n);
  const auto count = static_cast<int>(found.size());
  if (index < 0 || index >= count)
    refuse("index", index, "below " + std::to_string(count) + ", the kernels of this length");
  return found[static_cast<size_t>(index)];
}

int64_t workspace_bytes(int norm, int rows, int n) {
  return int64_t{norm + 1} * row_order(rows, n).blocks * n * 4;
}

struct Call {
  const void *x, *dy, *weight, *rstd, *mean;
  void *dx, *dweight, *dbias, *workspace;
  int rows, n;
  bool f32_gradients;
};

void launch(const Entry& e, const Call& call, int norm, cudaStream_t stream) {
  const RowOrder order = row_order(call.rows, call.n);
  auto* const partials = static_cast<float*>(call.workspace);
  Params p = {
      .x = static_cast<const char*>(call.x),
      .dy = static_cast<const char*>(call.dy),
      .dx = static_cast<char*>(call.dx),
      .rstd = static_cast<const float*>(call.rstd),
      .mean = static_cast<const float*>(call.mean),
      .weight = static_cast<const char*>(call.weight),
      .partials = {partials, partials + int64_t{order.blocks} * call.n},
      .gradients = {call.dweight, call.dbias},
      .row_bytes = int64_t{call.n} * 2,
      .n = call.n,
      .row_vectors = call.n / kPerVector,
      .rows = call.rows,
      .blocks = order.blocks,
      .fold_width = power_of_two_up(order.blocks),
      .step = order.lanes * order.blocks,
      .inverse_n = 1.0f / static_cast<float>(call.n),
      .weight_offset = 0.0f,
      .f32_gradients = call.f32_gradients,
  };
  const int shared = launch_shared_bytes(e.tile, call.n);
  const auto* const kernel = reinterpret_cast<const void*>(e.kernel);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
        "cudaFuncSetAttribute");
  void* arguments[] = {&p, nullptr};
  check(cudaLaunchKernel(kernel, dim3(order.blocks), dim3(e.tile.block_threads()), arguments,
                         static_cast<size_t>(shared), stream),
        "cudaLaunchKernel");

  int columns = fold_columns(call.n);
  arguments[1] = &columns;
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3((call.n / 4 + columns - 1) / columns, norm + 1);
  config.blockDim = dim3(kFoldThreads);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  check(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(fold_kernel), arguments),
        "cudaLaunchKernelExC");
}

void check_call(const Call& call, int norm, int64_t given_bytes) {
  if (call.rows < 1) refuse("rows", call.rows, "1 or more");
  struct Pointer {
    const char* name;
    const void* value;
    bool wanted;
  };
  for (const Pointer& p :
       {Pointer{"x", call.x, true}, Pointer{"dy", call.dy, true},
        Pointer{"weight", call.weight, true}, Pointer{"rstd", call.rstd, true},
        Pointer{"mean", call.mean, norm == 1}, Pointer{"dx", call.dx, true},
        Pointer{"dweight", call.dweight, true}, Pointer{"dbias", call.dbias, norm == 1},
        Pointer{"workspace", call.workspace, true}}) {
    const auto address = reinterpret_cast<intptr_t>(p.value);
    if (p.wanted && (address == 0 || address % 16 != 0))
      refuse(p.name, address, "an address that is a multiple of 16, not 0");
  }
  const int64_t wanted = workspace_bytes(norm, call.rows, call.n);
  if (given_bytes < wanted)
    refuse("workspace_bytes", given_bytes, std::to_string(wanted) + " or more");
}

}  // namespace
}  // namespace lab

extern "C" {

// Number of kernels for rows of n elements, or -1. norm: 0 is RMSNorm, 1 LayerNorm.
LAB_API int32_t lab_backward_count(int32_t norm, int32_t n) {
  try {
    return static_cast<int32_t>(lab::entries(norm, n).size());
  } catch (const std::exception& e) {
    lab::error = e.what();
    return -1;
  }
}

// Name of a kernel, until the thread's next call; NULL where there is none.
LAB_API const char* lab_backward_name(int32_t norm, int32_t n, int32_t index) {
  try {
    lab::shown_name = lab::name_of(lab::entry(norm, n, index).tile);
    return lab::shown_name.c_str();
  } catch (const std::exception& e) {
    lab::error = e.what();
    return nullptr;
  }
}

// Bytes of workspace of a call.
LAB_API int64_t lab_backward_workspace(int32_t norm, int32_t rows, int32_t n) {
  return lab::workspace_bytes(norm, rows, n);
}

// Queues a call. x, dy, dx: bf16 [rows, n]; weight: bf16 [n]; rstd, mean: f32 [rows]; dweight,
// dbias: [n], f32 or bf16. mean and dbias belong to LayerNorm. Returns 0, or 1 with the reason in
// lab_backward_error().
LAB_API int32_t lab_backward_launch(int32_t norm, int32_t index, int32_t rows, int32_t n,
                                    const void* x, const void* dy, const void* weight,
                                    const void* rstd, const void* mean, void* dx, void* dweight,
                                    void* dbias, int32_t f32_gradients, void* workspace,
                                    int64_t workspace_bytes, void* stream) {
  try {
    const lab::Entry entry = lab::entry(norm, n, index);
    const lab::Call call = {x,       dy,    weight,    rstd, mean, dx,
                            dweight, dbias, workspace, rows, n,    f32_gradients != 0};
    lab::check_call(call, norm, workspace_bytes);
    lab::launch(entry, call, norm, static_cast<cudaStream_t>(stream));
    return 0;
  } catch (const std::exception& e) {
    lab::error = e.what();
    return 1;
  }
}

// Text of the calling thread's last failure.
LAB_API const char* lab_backward_error() { return lab::error.c_str(); }
}
