// A call made of a fuzzer's bytes: structs, shapes and strides in heap blocks of their exact size,
// so that AddressSanitizer sees a read past any of them. Tensor addresses point nowhere.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bytes.h"
#include "fastnorm/fastnorm.h"

namespace fastnorm::fuzz {

inline constexpr int kTensors = 28;  // fields of fastnorm_norm_args that are tensors

struct RandomTensor {
  std::unique_ptr<int64_t[]> shape, strides;
  std::unique_ptr<fastnorm_tensor> tensor;  // null: the field is NULL
};

class RandomCall {
 public:
  // x's device is the context's, unless the bytes say otherwise. With `quantised` the call has a
  // scheme, else rarely.
  RandomCall(Bytes& bytes, int32_t device_type, bool quantised);

  const fastnorm_norm_args* args() const { return args_; }
  // The struct as this version knows it; fields past the caller's struct_size are 0.
  fastnorm_norm_args known() const;
  // Writes it to stderr, for people.
  void print() const;

 private:
  void tensor_like_x(Bytes& bytes, RandomTensor* t, fastnorm_dtype_id dtype);
  void add_dimensions(Bytes& bytes, int most);
  void columns(Bytes& bytes, RandomTensor* t);
  void statistic(Bytes& bytes, RandomTensor* t);
  void quantise(Bytes& bytes, fastnorm_norm_args* args);
  void codes(Bytes& bytes, bool fp4, bool pow2);
  void scales(Bytes& bytes, const fastnorm_norm_args& args, bool pow2);
  void stages(Bytes& bytes, fastnorm_norm_args* args);
  void modulation(Bytes& bytes, fastnorm_norm_args* args);
  void modulator(Bytes& bytes, int field, bool indexed);
  void group_statistic(Bytes& bytes, int field, int64_t groups, bool pairs);
  void own_memory(Bytes& bytes, int field);
  void fill(Bytes& bytes, RandomTensor* t, const std::vector<int64_t>& shape,
            fastnorm_dtype_id dtype);
  void strides(Bytes& bytes, RandomTensor* t, const std::vector<int64_t>& shape);
  void damage(Bytes& bytes, RandomTensor* t);
  void pack(Bytes& bytes, fastnorm_norm_args args);

  int32_t device_type_;
  fastnorm_dtype_id dtype_ = FASTNORM_DTYPE_F32;
  std::vector<int64_t> shape_;
  RandomTensor tensors_[kTensors];
  std::unique_ptr<uint8_t[]> block_;  // what args_ points to
  const fastnorm_norm_args* args_ = nullptr;
};

}  // namespace fastnorm::fuzz
