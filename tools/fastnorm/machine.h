// Where a command computes: a context, memory beside it, and the way there and back.
#pragma once

#include <cstddef>
#include <vector>

#include "library.h"
#include "support/devmem.h"

namespace fastnorm::tool {

// Memory of a machine, freed with it.
class Block {
 public:
  Block() = default;
  explicit Block(size_t host_bytes);
  Block(support::DevmemPtr device, size_t bytes) : device_(std::move(device), bytes) {}

  std::byte* get() const {
    return host_ != nullptr ? host_.get() : static_cast<std::byte*>(device_.get());
  }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> host_;
  support::DeviceBuffer device_;
};

class Machine {
 public:
  Machine(const Target& target, int32_t threads, const std::string& tuning_file = "");

  const Target& target() const { return target_; }
  int32_t threads() const { return threads_; }  // of a CPU
  fastnorm_context* context() const { return context_.get(); }
  devmem* device() const { return device_.get(); }
  void* stream() const { return stream_ != nullptr ? stream_->get() : nullptr; }

  // 4096-byte aligned on the CPU, 256 on a GPU; contents undefined.
  Block allocate(size_t bytes) const;
  void upload(std::byte* to, const void* from, size_t bytes) const;
  void download(void* to, const std::byte* from, size_t bytes) const;
  void synchronize() const;

  // Runs one normalisation and waits for it. Workspace is allocated for the call. Returns what the
  // query said of it.
  fastnorm_info run(const fastnorm_norm_args& args) const;
  fastnorm_info run(const fastnorm_norm_backward_args& args) const;

 private:
  Target target_;
  int32_t threads_;
  support::DevmemPtr device_;  // null on the CPU
  std::unique_ptr<support::DeviceStream> stream_;
  ContextPtr context_;
};

// A view that carries its shape. Strides are compact unless given.
class TensorView {
 public:
  TensorView() = default;
  TensorView(const Target& target, std::byte* data, fastnorm_dtype dtype,
             std::vector<int64_t> shape, std::vector<int64_t> strides = {})
      : shape_(std::move(shape)), strides_(std::move(strides)), present_(true) {
    tensor_.data = data;
    tensor_.device_type = target.device_type;
    tensor_.device_id = target.device_id;
    tensor_.dtype = dtype;
  }

  // What an args struct points to; valid until this view is moved or ends. NULL for a default view.
  const fastnorm_tensor* get() {
    if (!present_) return nullptr;
    tensor_.ndim = static_cast<int32_t>(shape_.size());
    tensor_.shape = shape_.data();
    tensor_.strides = strides_.empty() ? nullptr : strides_.data();
    return &tensor_;
  }
  const std::vector<int64_t>& shape() const { return shape_; }

 private:
  std::vector<int64_t> shape_, strides_;
  fastnorm_tensor tensor_ = {};
  bool present_ = false;
};

}  // namespace fastnorm::tool
