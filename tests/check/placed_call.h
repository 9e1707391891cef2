// A random call of tests/support in a target's memory.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "check/target.h"
#include "support/norm_heads_call.h"

namespace fastnorm::check {

// All tensors of a call in the target's memory, with guards between them.
template <class Call>
class PlacedCall {
 public:
  // After the tensors there are `room` bytes of workspace.
  PlacedCall(Call& call, Target& target, size_t room = 0) : call_(call), memory_(*target.memory) {
    constexpr size_t kGuard = 256;
    size_t bytes = kGuard;
    for (support::CallTensor* t : call.tensors()) {
      begin_.push_back(bytes);
      bytes += (t->now.size() + kGuard + 255) / 256 * 256;
    }
    before_.assign(bytes, 0xff);
    std::byte* const block = memory_.block(bytes + room);
    workspace_ = block + bytes;
    const DeviceFacts& facts = target.devices[0]->facts;
    size_t i = 0;
    for (support::CallTensor* t : call.tensors()) {
      std::memcpy(before_.data() + begin_[i], t->now.data(), t->now.size());
      t->elsewhere = block + begin_[i++];
      t->abi.device_type = facts.device_type;
      t->abi.device_id = facts.device_id;
    }
  }

  std::byte* workspace() const { return workspace_; }  // 256-byte aligned

  void upload() {
    memory_.upload(reinterpret_cast<const std::byte*>(before_.data()), before_.size());
  }

  // Returns "", or what is wrong after a run.
  std::string examine() {
    std::vector<unsigned char> found(before_.size());
    memory_.download(reinterpret_cast<std::byte*>(found.data()), found.size());
    size_t i = 0, behind = 0;
    const auto guard_is_whole = [&](size_t end) {
      for (; behind < end; ++behind) {
        if (found[behind] != 0xff) return false;
      }
      return true;
    };
    for (support::CallTensor* t : call_.tensors()) {
      if (!guard_is_whole(begin_[i])) return "a byte between two tensors has changed";
      std::memcpy(t->now.data(), found.data() + begin_[i], t->now.size());
      behind = begin_[i++] + t->now.size();
    }
    return guard_is_whole(found.size()) ? call_.difference()
                                        : "a byte behind the tensors has changed";
  }

 private:
  Call& call_;
  Memory& memory_;
  std::vector<size_t> begin_;  // of each tensor, in the block
  std::vector<unsigned char> before_;
  std::byte* workspace_ = nullptr;
};

}  // namespace fastnorm::check
