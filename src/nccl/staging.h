// A little memory of the device that NCCL can reach, and copies to and from it. On CUDA by the
// driver, found at run time; else it is the host's.
#pragma once

#include <cstddef>
#include <vector>

#include "fastnorm/tensor.h"
#include "nccl/error.h"

namespace fastnorm::nccl {

class Staging {
 public:
  Staging() = default;
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  fastnorm_status create(fastnorm_device device, size_t bytes, void* stream);
  std::byte* data() const { return data_; }
  // Ordered by the stream. get() returns when its bytes are there.
  fastnorm_status put(size_t at, const void* from, size_t bytes);
  fastnorm_status get(size_t at, void* to, size_t bytes);

 private:
  bool is_cuda() const { return context_ != nullptr; }

  std::byte* data_ = nullptr;
  std::vector<std::byte> host_;
  int device_ = 0;
  void* context_ = nullptr;
  void* stream_ = nullptr;
};

}  // namespace fastnorm::nccl
