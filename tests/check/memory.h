// Memory that a device's kernels work on.
#pragma once

#include <cstddef>
#include <memory>

namespace fastnorm::check {

class Memory {
 public:
  virtual ~Memory() = default;
  // `bytes` bytes of device memory, 256-byte aligned. Reuses the block if it is large enough.
  virtual std::byte* block(size_t bytes) = 0;
  virtual void release() = 0;  // the block
  void upload(const std::byte* from, size_t bytes) { write(0, from, bytes); }
  void download(std::byte* to, size_t bytes) { read(0, to, bytes); }
  // Copies bytes to a place `at` bytes into the block.
  virtual void write(size_t at, const std::byte* from, size_t bytes) = 0;
  // Waits for all queued work. Throws if any of it failed.
  virtual void read(size_t at, std::byte* to, size_t bytes) = 0;
  // Streams to run on. A CPU has only nullptr.
  virtual void* stream(int number) = 0;
  // Whether what was written reaches the block while the kernels behind it may already have
  // started, so that they have to wait for it.
  virtual bool is_late() const { return false; }
};

std::unique_ptr<Memory> make_cpu_memory();
// Throws if the GPU does not exist.
std::unique_ptr<Memory> make_cuda_memory(int ordinal);

// Memory between two kernels of a user of the library, on one stream. One lets the next kernel
// start at once and writes to the block some time later; before that, the block has other values.
// The other may start before the library's kernel has ended, and reads the block behind its own
// wait. With `races` it does not wait, which is the mistake that a caller can make.
std::unique_ptr<Memory> make_late_cuda_memory(int ordinal, bool races);

}  // namespace fastnorm::check
