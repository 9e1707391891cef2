// Tensors of fuzzed calls of norm_heads and of its backward, in memory of exact size.
#pragma once

#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "bytes.h"
#include "fastnorm/fastnorm.h"

namespace fastnorm::fuzz {

inline constexpr fastnorm_dtype_id kDtypes[] = {
    FASTNORM_DTYPE_F32,        FASTNORM_DTYPE_F16,     FASTNORM_DTYPE_BF16,
    FASTNORM_DTYPE_F8_E4M3FN,  FASTNORM_DTYPE_F8_E5M2, FASTNORM_DTYPE_I8,
    FASTNORM_DTYPE_F8_E8M0FNU, FASTNORM_DTYPE_U8,      FASTNORM_DTYPE_F4_E2M1FN_X2,
    FASTNORM_DTYPE_I32,        FASTNORM_DTYPE_I64};

// A tensor in memory that ends where its last element does.
struct Tensor {
  std::vector<int64_t> shape, strides;
  std::unique_ptr<unsigned char[]> memory;
  fastnorm_tensor abi{};
};

class Tensors {
 public:
  explicit Tensors(Bytes& bytes) : bytes_(bytes) {}

  void set_device(int32_t device_type) {
    for (const auto& t : tensors_) t->abi.device_type = device_type;
  }

  const fastnorm_tensor* tensor(std::vector<int64_t> shape, fastnorm_dtype_id dtype) {
    if (very_rarely()) shape[bytes_.pick(static_cast<uint32_t>(shape.size()))] = bytes_.pick(4);
    if (very_rarely()) dtype = kDtypes[bytes_.pick(std::size(kDtypes))];
    tensors_.push_back(std::make_unique<Tensor>());
    Tensor& t = *tensors_.back();
    t.shape = std::move(shape);
    t.strides.resize(t.shape.size());
    const int64_t gap = bytes_.pick(3);
    int64_t step = 1, last = 0;
    for (size_t i = t.shape.size(); i-- > 0;) {
      t.strides[i] = step;
      last += (t.shape[i] - 1) * step;
      step = step * (t.shape[i] == 0 ? 1 : t.shape[i]) + gap;
    }
    const int64_t bytes = fastnorm_dtype_of(dtype).bits * fastnorm_dtype_of(dtype).lanes / 8;
    const int64_t size = last < 0 ? 0 : (last + 1) * bytes;
    t.memory = std::make_unique<unsigned char[]>(static_cast<size_t>(size));
    const unsigned char fill = bytes_.byte();
    std::memset(t.memory.get(), fill, static_cast<size_t>(size));
    t.abi.data = t.memory.get();
    t.abi.device_type = FASTNORM_DEVICE_CPU;
    t.abi.ndim = static_cast<int32_t>(t.shape.size());
    t.abi.dtype = fastnorm_dtype_of(dtype);
    t.abi.shape = t.shape.data();
    t.abi.strides = bytes_.rarely() ? nullptr : t.strides.data();
    if (t.abi.strides == nullptr && gap != 0) t.abi.strides = t.strides.data();
    return &t.abi;
  }

  // Small numbers, now and then one that is out of range.
  const fastnorm_tensor* numbers(std::vector<int64_t> shape) {
    const bool wide = one_in_two();
    const fastnorm_tensor* t =
        tensor(std::move(shape), wide ? FASTNORM_DTYPE_I64 : FASTNORM_DTYPE_I32);
    const Tensor& own = *tensors_.back();
    const int bytes = t->dtype.bits / 8;
    if (bytes != 4 && bytes != 8) return t;
    int64_t elements = 1;
    for (size_t i = 0; i < own.shape.size(); ++i)
      elements =
          own.shape[i] == 0 || elements == 0 ? 0 : elements + (own.shape[i] - 1) * own.strides[i];
    for (int64_t i = 0; i < elements; ++i) {
      const int64_t value =
          bytes_.rarely() ? static_cast<int8_t>(bytes_.byte()) : bytes_.pick(6) - int64_t{1};
      const auto narrow = static_cast<int32_t>(value);
      std::memcpy(own.memory.get() + i * bytes,
                  bytes == 8 ? static_cast<const void*>(&value) : &narrow,
                  static_cast<size_t>(bytes));
    }
    return t;
  }

  // cos, sin and positions of calls of norm_heads, for its rope_dim.
  void tables(int64_t tokens, int64_t heads, fastnorm_dtype_id own, fastnorm_norm_heads_args* to) {
    fastnorm_norm_heads_args& args = *to;
    const int64_t half = args.rope_dim / 2, width = one_in_two() ? half : 2 * half;
    const fastnorm_dtype_id dtype = one_in_two() ? FASTNORM_DTYPE_F32 : own;
    std::vector<int64_t> shape = {6, width};
    if (bytes_.pick(4) == 0) shape.insert(shape.begin(), heads);
    args.cos = tensor(shape, dtype);
    args.sin = tensor(shape, dtype);
    const uint32_t form = bytes_.pick(3);
    if (form == 1) args.positions = numbers({tokens});
    if (form == 2) {
      args.positions = numbers({3, tokens});
      args.mrope_1 = args.mrope_2 = static_cast<int32_t>(half / 4);
      args.mrope_0 = static_cast<int32_t>(half) - 2 * args.mrope_1;
      if (one_in_two()) args.flags = FASTNORM_NORM_HEADS_MROPE_INTERLEAVED;
    }
  }

 private:
  bool very_rarely() { return bytes_.rarely() && bytes_.pick(4) == 0; }
  bool one_in_two() { return (bytes_.byte() & 1) != 0; }

  Bytes& bytes_;
  std::vector<std::unique_ptr<Tensor>> tensors_;
};

}  // namespace fastnorm::fuzz
