#include "check/memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "support/copy_kernel.h"
#include "support/devmem.h"

namespace fastnorm::check {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kSparse = size_t{1} << 30;  // larger blocks are address space until they are used

class CpuMemory final : public Memory {
 public:
  ~CpuMemory() override { CpuMemory::release(); }

  std::byte* block(size_t bytes) override {
    if (bytes > bytes_) {
      release();
      const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
      block_ = static_cast<std::byte*>(rounded < kSparse ? std::aligned_alloc(kAlignment, rounded)
                                                         : map(rounded));
      if (block_ == nullptr) throw std::bad_alloc();
      bytes_ = rounded;
    }
    return block_;
  }
  void release() override {
    if (bytes_ < kSparse) {
      std::free(block_);
    } else {
      munmap(block_, bytes_);
    }
    block_ = nullptr;
    bytes_ = 0;
  }
  void write(size_t at, const std::byte* from, size_t bytes) override {
    std::memcpy(block_ + at, from, bytes);
  }
  void read(size_t at, std::byte* to, size_t bytes) override {
    std::memcpy(to, block_ + at, bytes);
  }
  void* stream(int) override { return nullptr; }

 private:
  static void* map(size_t bytes) {
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? nullptr : memory;
  }

  std::byte* block_ = nullptr;
  size_t bytes_ = 0;
};

class CudaMemory final : public Memory {
 public:
  explicit CudaMemory(int ordinal) : device_(support::open_devmem(ordinal)), stream_(device_) {}

  std::byte* block(size_t bytes) override {
    if (bytes > bytes_) {
      release();
      block_ = support::DeviceBuffer(device_, bytes);
      bytes_ = bytes;
    }
    return start();
  }
  void release() override {
    block_ = support::DeviceBuffer();
    bytes_ = 0;
  }
  void write(size_t at, const std::byte* from, size_t bytes) override {
    support::devmem_check(devmem_upload(device_.get(), start() + at, from, bytes));
  }
  void read(size_t at, std::byte* to, size_t bytes) override {
    stream_.synchronize();
    support::devmem_check(devmem_stream_synchronize(device_.get(), nullptr));
    support::devmem_check(devmem_download(device_.get(), to, start() + at, bytes));
  }
  void* stream(int number) override { return number % 2 == 0 ? nullptr : stream_.get(); }

 private:
  std::byte* start() const { return static_cast<std::byte*>(block_.get()); }

  support::DevmemPtr device_;
  support::DeviceStream stream_;
  support::DeviceBuffer block_;
  size_t bytes_ = 0;
};

class LateCudaMemory final : public Memory {
 public:
  LateCudaMemory(int ordinal, bool races)
      : device_(support::open_devmem(ordinal)), stream_(device_), races_(races) {
    support::devmem_check(devmem_module_load(device_.get(), copy_kernel_ptx, &module_));
    support::devmem_check(devmem_kernel(device_.get(), module_, "copy", &copy_));
  }
  ~LateCudaMemory() override {
    devmem_stream_synchronize(device_.get(), stream_.get());
    devmem_module_unload(device_.get(), module_);
  }

  std::byte* block(size_t bytes) override {
    if (bytes > bytes_) {
      release();
      for (support::DeviceBuffer* b : {&block_, &before_, &behind_})
        *b = support::DeviceBuffer(device_, bytes);
      bytes_ = bytes;
    }
    return start(block_);
  }
  void release() override {
    stream_.synchronize();
    for (support::DeviceBuffer* b : {&block_, &before_, &behind_}) *b = support::DeviceBuffer();
    bytes_ = 0;
  }
  void write(size_t at, const std::byte* from, size_t bytes) override {
    constexpr uint8_t kOther = 0x3e;
    stream_.synchronize();
    support::devmem_check(devmem_upload(device_.get(), start(before_) + at, from, bytes));
    support::devmem_check(
        devmem_fill(device_.get(), start(block_) + at, kOther, bytes, stream_.get()));
    copy(start(block_) + at, start(before_) + at, bytes, COPY_TRIGGERS, kLateNs, false);
  }
  void read(size_t at, std::byte* to, size_t bytes) override {
    copy(start(behind_) + at, start(block_) + at, bytes, races_ ? 0 : COPY_WAITS, 0, true);
    stream_.synchronize();
    support::devmem_check(devmem_download(device_.get(), to, start(behind_) + at, bytes));
  }
  void* stream(int) override { return stream_.get(); }
  bool is_late() const override { return true; }

 private:
  static constexpr uint32_t kLateNs = 20'000;

  static std::byte* start(const support::DeviceBuffer& b) {
    return static_cast<std::byte*>(b.get());
  }
  void copy(std::byte* to, const std::byte* from, size_t bytes, uint32_t options, uint32_t late_ns,
            bool early) {
    constexpr uint32_t kBlocks = 32, kThreads = 1024;
    auto to_number = reinterpret_cast<uint64_t>(to), from_number = reinterpret_cast<uint64_t>(from);
    uint64_t count = bytes, times = 0;
    void* arguments[] = {&to_number, &from_number, &count, &options, &late_ns, &times};
    support::devmem_check(devmem_launch(device_.get(), copy_, kBlocks, kThreads, arguments,
                                        early ? 1 : 0, stream_.get()));
  }

  support::DevmemPtr device_;
  support::DeviceStream stream_;
  support::DeviceBuffer block_, before_, behind_;  // before: what is written; behind: what was read
  size_t bytes_ = 0;
  void *module_ = nullptr, *copy_ = nullptr;
  bool races_;
};

}  // namespace

std::unique_ptr<Memory> make_late_cuda_memory(int ordinal, bool races) {
  return std::make_unique<LateCudaMemory>(ordinal, races);
}

std::unique_ptr<Memory> make_cpu_memory() { return std::make_unique<CpuMemory>(); }

std::unique_ptr<Memory> make_cuda_memory(int ordinal) {
  return std::make_unique<CudaMemory>(ordinal);
}

}  // namespace fastnorm::check
