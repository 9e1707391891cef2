#include "check/memory.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include "support/devmem.h"

namespace fastnorm::check {
namespace {

constexpr size_t kAlignment = 256;

class CpuMemory final : public Memory {
 public:
  ~CpuMemory() override { std::free(block_); }

  std::byte* block(size_t bytes) override {
    if (bytes > bytes_) {
      std::free(block_);
      bytes_ = (bytes + kAlignment - 1) / kAlignment * kAlignment;
      block_ = static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes_));
      if (block_ == nullptr) throw std::bad_alloc();
    }
    return block_;
  }
  void upload(const std::byte* from, size_t bytes) override { std::memcpy(block_, from, bytes); }
  void download(std::byte* to, size_t bytes) override { std::memcpy(to, block_, bytes); }
  void* stream(int) override { return nullptr; }

 private:
  std::byte* block_ = nullptr;
  size_t bytes_ = 0;
};

class CudaMemory final : public Memory {
 public:
  explicit CudaMemory(int ordinal) : device_(support::open_devmem(ordinal)), stream_(device_) {}

  std::byte* block(size_t bytes) override {
    if (bytes > bytes_) {
      block_ = support::DeviceBuffer();
      block_ = support::DeviceBuffer(device_, bytes);
      bytes_ = bytes;
    }
    return static_cast<std::byte*>(block_.get());
  }
  void upload(const std::byte* from, size_t bytes) override {
    support::devmem_check(devmem_upload(device_.get(), block_.get(), from, bytes));
  }
  void download(std::byte* to, size_t bytes) override {
    stream_.synchronize();
    support::devmem_check(devmem_stream_synchronize(device_.get(), nullptr));
    support::devmem_check(devmem_download(device_.get(), to, block_.get(), bytes));
  }
  void* stream(int number) override { return number % 2 == 0 ? nullptr : stream_.get(); }

 private:
  support::DevmemPtr device_;
  support::DeviceStream stream_;
  support::DeviceBuffer block_;
  size_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<Memory> make_cpu_memory() { return std::make_unique<CpuMemory>(); }

std::unique_ptr<Memory> make_cuda_memory(int ordinal) {
  return std::make_unique<CudaMemory>(ordinal);
}

}  // namespace fastnorm::check
