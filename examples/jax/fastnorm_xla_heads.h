// What the handlers of norm_heads and norm_heads_backward share: XLA's buffers as tensors, in their
// order. Buffers are compact.
#pragma once

#include <array>

#include "fastnorm_xla.h"

namespace fastnorm_xla {

template <size_t kMostViews>
class HeadsBuffers {
 public:
  HeadsBuffers(const HeadsBuffers&) = delete;
  HeadsBuffers& operator=(const HeadsBuffers&) = delete;

 protected:
  struct View {
    std::array<int64_t, kMaxRank> shape = {}, strides = {};
    fastnorm_tensor tensor = {};
  };

  HeadsBuffers(fastnorm_device device, ffi::RemainingArgs arguments, ffi::RemainingRets results)
      : device_(device), arguments_(arguments), results_(results) {}

  const fastnorm_tensor* operand() {
    const auto buffer = arguments_.get<ffi::AnyBuffer>(next_argument_++);
    return buffer.has_value() ? view(*buffer) : nothing();
  }
  const fastnorm_tensor* result() {
    auto buffer = results_.get<ffi::AnyBuffer>(next_result_++);
    return buffer.has_value() ? view(**buffer) : nothing();
  }
  const fastnorm_tensor* nothing() {
    fits_ = false;
    return nullptr;
  }

  fastnorm_device device() const { return device_; }

  // Of a compact tensor.
  static size_t bytes_of(const fastnorm_tensor& t) {
    int64_t bits = t.dtype.bits;
    for (int32_t i = 0; i < t.ndim; ++i) bits *= t.shape[i];
    return static_cast<size_t>(bits / 8);
  }

  const fastnorm_tensor* view(ffi::AnyBuffer buffer) {
    const auto dims = buffer.dimensions();
    if (used_ == views_.size() || dims.size() > kMaxRank) return nothing();
    View& v = views_[used_++];
    std::copy(dims.begin(), dims.end(), v.shape.begin());
    int64_t stride = 1;
    for (size_t i = dims.size(); i-- > 0; stride *= v.shape[i]) v.strides[i] = stride;
    v.tensor.data = buffer.untyped_data();
    v.tensor.device_type = device_.device_type;
    v.tensor.device_id = device_.device_id;
    v.tensor.ndim = static_cast<int32_t>(dims.size());
    v.tensor.dtype = dtype_of(buffer.element_type());
    v.tensor.shape = v.shape.data();
    v.tensor.strides = v.strides.data();
    return &v.tensor;
  }

  // x becomes a view of some of its heads.
  bool take_heads(const fastnorm_tensor* x, int32_t first, int32_t heads) {
    View& v = views_[used_ - 1];
    if (x != &v.tensor || v.tensor.ndim != 3 || first < 0 || heads < 0 ||
        first + int64_t{heads} > v.shape[1]) {
      return false;
    }
    const int64_t bytes = v.tensor.dtype.bits / 8;
    v.tensor.byte_offset = static_cast<uint64_t>(first * v.strides[1] * bytes);
    v.shape[1] = heads;
    return true;
  }

  // True if every buffer was there, and no other one but `spare` results.
  bool used_up(size_t spare = 0) const {
    return fits_ && next_argument_ == arguments_.size() && next_result_ + spare == results_.size();
  }

  bool fits_ = true;

 private:
  const fastnorm_device device_;
  ffi::RemainingArgs arguments_;
  ffi::RemainingRets results_;
  size_t next_argument_ = 0, next_result_ = 0, used_ = 0;
  std::array<View, kMostViews> views_;
};

}  // namespace fastnorm_xla
