// A random call of tests/support in a target's memory, of which rows lie far apart.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "check/target.h"
#include "support/norm_heads_call.h"

namespace fastnorm::check {

// Tensors in the target's memory. Of one that is spread only the rows that the call knows, and
// guards around them, are written and compared.
template <class Call>
class FarCall {
 public:
  FarCall(Call& call, Target& target) : call_(call), memory_(*target.memory) {
    size_t bytes = kGuard;
    for (support::CallTensor* t : call.tensors()) {
      const auto size = static_cast<size_t>(t->bytes);
      size_t end = bytes + t->now.size();
      if (t->far_stride == 0) {
        pieces_.push_back({t, 0, bytes, t->now.size()});
      } else {
        const size_t span = static_cast<size_t>(t->span()) * size;
        for (int64_t i = 0; i < t->shape[0]; ++i) {
          const auto far = static_cast<size_t>((t->far_first + i) * t->far_stride);
          pieces_.push_back({t, t->place({i}), bytes + t->first + far * size, span});
        }
        end = pieces_.back().there + span;
      }
      begin_.push_back(bytes);
      bytes = (end + kGuard + 255) / 256 * 256;
    }
    std::byte* const block = memory_.block(bytes);
    const DeviceFacts& facts = target.devices[0]->facts;
    size_t i = 0;
    for (support::CallTensor* t : call.tensors()) {
      t->elsewhere = block + begin_[i++];
      t->abi.device_type = facts.device_type;
      t->abi.device_id = facts.device_id;
    }
    for (const Piece& p : pieces_) {
      const unsigned char* const from = p.tensor->now.data() + p.here;
      before_.insert(before_.end(), from, from + p.bytes);
    }
  }

  void upload() {
    size_t at = 0;
    for (const Piece& p : pieces_) {
      std::vector<std::byte> image(p.bytes + 2 * kBetween, std::byte{0xff});
      std::memcpy(image.data() + kBetween, before_.data() + at, p.bytes);
      memory_.write(p.there - kBetween, image.data(), image.size());
      at += p.bytes;
    }
  }

  // Returns "", or what is wrong after a run.
  std::string examine() {
    for (const Piece& p : pieces_) {
      std::vector<std::byte> image(p.bytes + 2 * kBetween);
      memory_.read(p.there - kBetween, image.data(), image.size());
      const auto whole = [](std::byte b) { return b == std::byte{0xff}; };
      const auto end = image.end() - kBetween;
      if (!std::all_of(image.begin(), image.begin() + kBetween, whole) ||
          !std::all_of(end, image.end(), whole))
        return "a byte beside a row has changed";
      std::memcpy(p.tensor->now.data() + p.here, image.data() + kBetween, p.bytes);
    }
    return call_.difference();
  }

 private:
  static constexpr size_t kGuard = 256;      // bytes between tensors
  static constexpr ptrdiff_t kBetween = 64;  // bytes of them that are compared

  struct Piece {
    support::CallTensor* tensor;
    size_t here, there, bytes;  // in the tensor's `now` and in the block
  };

  Call& call_;
  Memory& memory_;
  std::vector<Piece> pieces_;
  std::vector<size_t> begin_;  // of each tensor, in the block
  std::vector<unsigned char> before_;
};

}  // namespace fastnorm::check
