#include "oracle.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace fastnorm::fuzz {
namespace {

constexpr int64_t kMostSpans = 4096;

uint32_t id_of(fastnorm_dtype d) {
  return d.code | uint32_t{d.bits} << 8 | uint32_t{d.lanes} << 16;
}

bool is_row_dtype(uint32_t id) {
  return id == FASTNORM_DTYPE_F32 || id == FASTNORM_DTYPE_F16 || id == FASTNORM_DTYPE_BF16;
}

bool same_shape(const fastnorm_tensor& a, const fastnorm_tensor& b) {
  return a.ndim == b.ndim && std::equal(a.shape, a.shape + a.ndim, b.shape);
}

// Elements, or -1 where there are more than matter here.
int64_t elements_of(const fastnorm_tensor& t) {
  int64_t count = 1;
  for (int32_t i = 0; i < t.ndim; ++i) {
    if (t.shape[i] == 0) return 0;
  }
  for (int32_t i = 0; i < t.ndim; ++i) {
    if (__builtin_mul_overflow(count, t.shape[i], &count)) return -1;
  }
  return count;
}

int64_t stride_of(const fastnorm_tensor& t, int32_t dim) {
  if (t.strides != nullptr) return t.strides[dim];
  int64_t stride = 1;
  for (int32_t i = t.ndim - 1; i > dim; --i) stride *= t.shape[i];
  return stride;
}

bool on_device(const fastnorm_tensor& t, int32_t device_type) {
  const int32_t same =
      device_type == FASTNORM_DEVICE_CPU ? FASTNORM_DEVICE_CUDA_HOST : FASTNORM_DEVICE_CUDA_MANAGED;
  return t.device_type == device_type || t.device_type == same;
}

// --- one tensor ---

const char* tensor_fault(const fastnorm_tensor& t, int32_t device_type) {
  if (!on_device(t, device_type)) return "a tensor on another device";
  if (t.ndim < 1 || t.ndim > 4) return "a rank that no tensor may have";
  for (int32_t i = 0; i < t.ndim; ++i) {
    if (t.shape[i] < 0) return "a negative extent";
  }
  const int64_t count = elements_of(t);
  if (count == 0) return nullptr;
  if (count > 0 && t.data == nullptr) return "no memory for elements";
  const uintptr_t address = reinterpret_cast<uintptr_t>(t.data) + t.byte_offset;
  if (address % (t.dtype.bits / 8) != 0) return "an address that does not suit the dtype";
  return nullptr;
}

const char* row_fault(const fastnorm_tensor& t, const fastnorm_tensor& x, int32_t device_type,
                      bool may_be_f32) {
  if (const char* fault = tensor_fault(t, device_type)) return fault;
  const uint32_t id = id_of(t.dtype);
  if (id != id_of(x.dtype) && !(may_be_f32 && id == FASTNORM_DTYPE_F32)) return "a wrong dtype";
  if (!same_shape(t, x)) return "a shape that is not x's";
  const int32_t last = t.ndim - 1;
  if (t.shape[last] > 1 && stride_of(t, last) != 1) return "a last dimension with gaps";
  return nullptr;
}

const char* column_fault(const fastnorm_tensor& t, const fastnorm_tensor& x, int32_t device_type) {
  if (const char* fault = tensor_fault(t, device_type)) return fault;
  const uint32_t id = id_of(t.dtype);
  if (id != id_of(x.dtype) && id != FASTNORM_DTYPE_F32) return "a wrong dtype of columns";
  if (t.ndim > 2 || t.shape[t.ndim - 1] != x.shape[x.ndim - 1]) return "columns that are not n";
  if (t.ndim == 2 && (x.ndim < 2 || t.shape[0] != x.shape[x.ndim - 2])) return "heads unlike x's";
  return nullptr;
}

const char* statistic_fault(const fastnorm_tensor& t, const fastnorm_tensor& x,
                            int32_t device_type) {
  if (const char* fault = tensor_fault(t, device_type)) return fault;
  if (id_of(t.dtype) != FASTNORM_DTYPE_F32) return "a statistic that is not f32";
  if (elements_of(x) != 0 && elements_of(t) != elements_of(x) / x.shape[x.ndim - 1]) {
    return "a statistic without one value a row";
  }
  return nullptr;
}

// --- one call ---

const char* scalar_fault(const fastnorm_norm_args& a) {
  if (a.x == nullptr || a.y == nullptr) return "no x or no y";
  if (a.kind != FASTNORM_NORM_RMS && a.kind != FASTNORM_NORM_LAYER) return "an unknown kind";
  if (!std::isfinite(a.eps) || a.eps < 0) return "eps out of range";
  if (!std::isfinite(a.weight_offset)) return "weight_offset out of range";
  if (a.weight == nullptr && a.weight_offset != 0) return "weight_offset without a weight";
  if (static_cast<uint32_t>(a.rounding) > 2) return "an unknown rounding";
  if (static_cast<uint32_t>(a.residual_rounding) > 2) return "an unknown residual rounding";
  if (a.residual_out != nullptr && a.residual == nullptr) return "residual_out without residual";
  if (a.mean != nullptr && a.kind == FASTNORM_NORM_RMS) return "a mean of RMS";
  if (a.flags != 0 || a.reserved != 0) return "flags that mean nothing yet";
  if (a.quant_scheme != FASTNORM_QUANT_NONE || a.quantized != nullptr || a.scale != nullptr ||
      a.global_scale != nullptr || a.amax != nullptr) {
    return "a quantised output";
  }
  return nullptr;
}

const char* call_fault(const fastnorm_norm_args& a, int32_t device_type) {
  if (const char* fault = scalar_fault(a)) return fault;
  const fastnorm_tensor& x = *a.x;
  if (!is_row_dtype(id_of(x.dtype))) return "a dtype that rows cannot have";
  if (x.ndim < 1 || x.shape[x.ndim - 1] < 1) return "rows without columns";
  const struct {
    const fastnorm_tensor* tensor;
    bool may_be_f32;
  } rows[] = {{a.x, false}, {a.y, false}, {a.residual, true}, {a.residual_out, true}};
  for (const auto& row : rows) {
    if (row.tensor == nullptr) continue;
    if (const char* fault = row_fault(*row.tensor, x, device_type, row.may_be_f32)) return fault;
  }
  for (const fastnorm_tensor* t : {a.weight, a.bias}) {
    if (t == nullptr) continue;
    if (const char* fault = column_fault(*t, x, device_type)) return fault;
  }
  for (const fastnorm_tensor* t : {a.mean, a.rstd}) {
    if (t == nullptr) continue;
    if (const char* fault = statistic_fault(*t, x, device_type)) return fault;
  }
  return nullptr;
}

// --- memory ---

// Bytes of the last dimension for one index of the leading ones.
struct Span {
  uintptr_t begin, end;
  int tensor;  // which tensor of all calls
};

struct View {
  const fastnorm_tensor* tensor;
  int call;
  bool written;
  char
      role;  // tensors of one call and one role may be the same view: x and y, residual and its output
};

std::vector<View> views_of(const std::vector<fastnorm_norm_args>& calls) {
  std::vector<View> views;
  for (int i = 0; i < static_cast<int>(calls.size()); ++i) {
    const fastnorm_norm_args& a = calls[static_cast<size_t>(i)];
    const View all[] = {{a.x, i, false, 'x'},        {a.y, i, true, 'x'},
                        {a.residual, i, false, 'r'}, {a.residual_out, i, true, 'r'},
                        {a.weight, i, false, 'w'},   {a.bias, i, false, 'b'},
                        {a.mean, i, true, 'm'},      {a.rstd, i, true, 's'}};
    // Without rows a call touches nothing, its weight neither.
    if (elements_of(*a.x) == 0) continue;
    for (const View& view : all) {
      if (view.tensor != nullptr) views.push_back(view);
    }
  }
  return views;
}

bool same_view(const fastnorm_tensor& a, const fastnorm_tensor& b) {
  if (id_of(a.dtype) != id_of(b.dtype) || !same_shape(a, b)) return false;
  if (reinterpret_cast<uintptr_t>(a.data) + a.byte_offset !=
      reinterpret_cast<uintptr_t>(b.data) + b.byte_offset) {
    return false;
  }
  for (int32_t i = 0; i < a.ndim; ++i) {
    if (a.shape[i] > 1 && stride_of(a, i) != stride_of(b, i)) return false;
  }
  return true;
}

// One span an element where the last dimension has gaps (statistics may), else one a row.
void add_spans(const fastnorm_tensor& t, int number, std::vector<Span>* spans) {
  const uint64_t bytes = t.dtype.bits / 8u;
  const int32_t last = t.ndim - 1;
  const bool whole_rows = t.shape[last] <= 1 || stride_of(t, last) == 1;
  const int64_t count = elements_of(t), step = whole_rows ? t.shape[last] : 1;
  for (int64_t e = 0; e < count; e += step) {
    uintptr_t address = reinterpret_cast<uintptr_t>(t.data) + t.byte_offset;
    int64_t rest = e;
    for (int32_t d = last; d >= 0; --d) {
      address +=
          static_cast<uint64_t>(rest % t.shape[d]) * static_cast<uint64_t>(stride_of(t, d)) * bytes;
      rest /= t.shape[d];
    }
    spans->push_back({address, address + static_cast<uint64_t>(step) * bytes, number});
  }
}

int64_t spans_of(const fastnorm_tensor& t) {
  const int32_t last = t.ndim - 1;
  const int64_t count = elements_of(t);
  if (count <= 0) return count < 0 ? kMostSpans + 1 : 0;
  return t.shape[last] <= 1 || stride_of(t, last) == 1 ? count / t.shape[last] : count;
}

bool may_overlap(const View& a, const View& b) {
  if (!a.written && !b.written) return true;
  return a.call == b.call && a.role == b.role && a.tensor != nullptr &&
         same_view(*a.tensor, *b.tensor);
}

const char* memory_fault(const std::vector<View>& views) {
  std::vector<Span> spans;
  for (int i = 0; i < static_cast<int>(views.size()); ++i) {
    add_spans(*views[static_cast<size_t>(i)].tensor, i, &spans);
  }
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return a.begin < b.begin; });
  for (size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].end < spans[i].begin) return "memory past the end of the address space";
    for (size_t j = i + 1; j < spans.size() && spans[j].begin < spans[i].end; ++j) {
      const View& a = views[static_cast<size_t>(spans[i].tensor)];
      const View& b = views[static_cast<size_t>(spans[j].tensor)];
      if (spans[i].tensor == spans[j].tensor) {
        if (a.written) return "an output that overlaps itself";
      } else if (!may_overlap(a, b)) {
        return "an output that overlaps another tensor";
      }
    }
  }
  return nullptr;
}

}  // namespace

bool is_small(const std::vector<fastnorm_norm_args>& calls) {
  int64_t spans = 0;
  for (const View& view : views_of(calls)) {
    spans += spans_of(*view.tensor);
    if (spans > kMostSpans) return false;
  }
  return true;
}

const char* find_fault(const std::vector<fastnorm_norm_args>& calls, int32_t device_type) {
  for (const fastnorm_norm_args& call : calls) {
    if (const char* fault = call_fault(call, device_type)) return fault;
  }
  return is_small(calls) ? memory_fault(views_of(calls)) : nullptr;
}

}  // namespace fastnorm::fuzz
