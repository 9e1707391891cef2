#include "machine.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace fastnorm::tool {
namespace {

constexpr size_t kPageBytes = 4096;

}  // namespace

void Block::Free::operator()(std::byte* p) const { std::free(p); }

Block::Block(size_t host_bytes) {
  const size_t bytes = (host_bytes + kPageBytes) / kPageBytes * kPageBytes;
  if (bytes < host_bytes) throw std::bad_alloc();
  host_.reset(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, bytes)));
  if (host_ == nullptr) throw std::bad_alloc();
}

Machine::Machine(const Target& target, int32_t threads, const std::string& tuning_file)
    : target_(target), threads_(threads) {
  // The context first: where there is no GPU, the library's text says more than the driver's.
  context_ = make_context(target, threads, tuning_file);
  if (!target.is_cuda()) return;
  device_ = support::open_devmem(target.device_id);
  stream_ = std::make_unique<support::DeviceStream>(device_);
}

Block Machine::allocate(size_t bytes) const {
  return target_.is_cuda() ? Block(device_, bytes) : Block(bytes);
}

void Machine::upload(std::byte* to, const void* from, size_t bytes) const {
  if (target_.is_cuda()) {
    support::devmem_check(devmem_upload(device(), to, from, bytes));
  } else if (bytes != 0) {
    std::memcpy(to, from, bytes);
  }
}

void Machine::download(void* to, const std::byte* from, size_t bytes) const {
  if (target_.is_cuda()) {
    support::devmem_check(devmem_download(device(), to, from, bytes));
  } else if (bytes != 0) {
    std::memcpy(to, from, bytes);
  }
}

void Machine::synchronize() const {
  if (stream_ != nullptr) stream_->synchronize();
}

namespace {

template <typename Args, typename Query, typename Run>
fastnorm_info run_call(const Machine& machine, const Args& args, Query query, Run run) {
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  check(query(machine.context(), &args, &info));
  const Block workspace =
      info.workspace_bytes != 0 ? machine.allocate(info.workspace_bytes) : Block();
  check(run(machine.context(), &args, workspace.get(), info.workspace_bytes, machine.stream()));
  machine.synchronize();
  return info;
}

}  // namespace

fastnorm_info Machine::run(const fastnorm_norm_args& args) const {
  return run_call(*this, args, fastnorm_norm_query, fastnorm_norm);
}

fastnorm_info Machine::run(const fastnorm_norm_backward_args& args) const {
  return run_call(*this, args, fastnorm_norm_backward_query, fastnorm_norm_backward);
}

}  // namespace fastnorm::tool
