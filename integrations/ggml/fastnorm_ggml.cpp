#include "fastnorm_ggml.h"

#include <fastnorm/fastnorm.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "ggml.h"

namespace {

// Tensors of fewer elements are done before the library has checked its arguments.
constexpr int64_t kLeastElements = FASTNORM_GGML_LEAST_ELEMENTS;

std::atomic<int> enabled{1};
std::atomic<long> done{0};

// The calling thread alone works on a call: ggml's threads have divided the rows already.
fastnorm_context* cpu_context() {
  static fastnorm_context* const context = [] {
    fastnorm_context* made = nullptr;
    fastnorm_context_create({FASTNORM_DEVICE_CPU, 0}, nullptr, &made);
    return made;
  }();
  return context;
}

// A tensor of ggml as [ne3, ne2, rows, ne0], with every nth of its rows from row ith on.
struct View {
  int64_t shape[4], strides[4];
  fastnorm_tensor tensor;

  // False if the strides are no multiples of an element.
  bool set(const ggml_tensor* t, int ith, int nth) {
    // A tensor that broadcasts along the rows has one, which every thread takes.
    const bool all = t->ne[1] == 1 && nth > 1 && ith > 0;
    const int64_t first = all ? 0 : ith;
    const int64_t rows = (t->ne[1] - first + nth - 1) / nth;
    const int64_t extents[] = {t->ne[3], t->ne[2], rows < 0 ? 0 : rows, t->ne[0]};
    const size_t bytes[] = {t->nb[3], t->nb[2], t->nb[1] * static_cast<size_t>(nth), t->nb[0]};
    for (int i = 0; i < 4; ++i) {
      if (bytes[i] % sizeof(float) != 0) return false;
      shape[i] = extents[i];
      strides[i] = static_cast<int64_t>(bytes[i] / sizeof(float));
    }
    tensor = {};
    tensor.data = static_cast<char*>(t->data) + static_cast<size_t>(first) * t->nb[1];
    tensor.device_type = FASTNORM_DEVICE_CPU;
    tensor.ndim = 4;
    tensor.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
    tensor.shape = shape;
    tensor.strides = strides;
    return true;
  }
};

}  // namespace

int fastnorm_ggml_norm(int ith, int nth, const ggml_tensor* norm, const ggml_tensor* mul) {
  if (enabled.load(std::memory_order_relaxed) == 0) return 0;
  fastnorm_context* const context = cpu_context();
  const ggml_tensor* const x = norm->src[0];
  const ggml_tensor* const y = mul != nullptr ? mul : norm;
  if (context == nullptr || x->type != GGML_TYPE_F32 || y->type != GGML_TYPE_F32) return 0;
  if (ggml_nelements(x) < kLeastElements) return 0;
  // More threads than rows: this one has none.
  if (ith >= x->ne[1]) return 1;
  View views[3];
  fastnorm_norm_args args = {};
  args.struct_size = sizeof args;
  args.kind = norm->op == GGML_OP_NORM ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS;
  std::memcpy(&args.eps, norm->op_params, sizeof args.eps);
  if (!views[0].set(x, ith, nth) || !views[1].set(y, ith, nth)) return 0;
  args.x = &views[0].tensor;
  args.y = &views[1].tensor;
  if (mul != nullptr) {
    const ggml_tensor* const weight = mul->src[0] == norm ? mul->src[1] : mul->src[0];
    // Other repetitions than of one row are ggml's.
    for (int i = 1; i < GGML_MAX_DIMS; ++i) {
      if (weight->ne[i] != 1 && weight->ne[i] != x->ne[i]) return 0;
    }
    if (weight->type != GGML_TYPE_F32 || !views[2].set(weight, ith, nth)) return 0;
    args.weight = &views[2].tensor;
  }
  if (fastnorm_norm(context, &args, nullptr, 0, nullptr) != FASTNORM_OK) return 0;
  done.fetch_add(1, std::memory_order_relaxed);
  return 1;
}

long fastnorm_ggml_enable(int on) {
  enabled.store(on, std::memory_order_relaxed);
  return done.load(std::memory_order_relaxed);
}
