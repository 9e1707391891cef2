// A random call of tests/support in a target's memory.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "check/target.h"
#include "support/operands.h"

namespace fastnorm::check {

// All tensors of a call in the target's memory, with guards between them. Of a tensor whose indices
// lie far apart only the rows that the call knows, and guards beside them, are written and
// compared.
class PlacedCall {
 public:
  // After the tensors there are `room` bytes of workspace, which begin as NaN.
  PlacedCall(support::Operands& call, Target& target, size_t room = 0) : memory_(*target.memory) {
    std::vector<size_t> begin;  // of each tensor
    size_t bytes = 0;
    ranges_.push_back({});
    for (const auto& t : call.all()) {
      if (t->far_stride == 0) add(*t, 0, t->now.size(), &ranges_[0], &begin);
    }
    ranges_[0].before.resize((ranges_[0].before.size() + 2 * kGuard - 1) / kGuard * kGuard, kWhole);
    bytes = ranges_[0].before.size();
    for (const auto& t : call.all()) {
      if (t->far_stride != 0) bytes = add_far(*t, bytes, &begin);
    }
    std::byte* const block = memory_.block(bytes + room);
    workspace_ = block + bytes;
    ranges_.push_back({bytes, std::vector<std::byte>(room, kWhole), {}});
    size_t i = 0;
    for (const bool far : {false, true}) {
      for (const auto& t : call.all()) {
        if ((t->far_stride != 0) == far) t->elsewhere = block + begin[i++];
      }
    }
    const DeviceFacts& facts = target.devices[0]->facts;
    call.place({facts.device_type, facts.device_id});
  }

  std::byte* workspace() const { return workspace_; }  // 256-byte aligned

  void upload() {
    for (const Range& r : ranges_) {
      if (!r.before.empty()) memory_.write(r.there, r.before.data(), r.before.size());
    }
  }

  // Gives the call's memory back what it had before the run.
  void restore() const {
    for (const Range& r : ranges_) {
      for (const Piece& p : r.pieces)
        std::memcpy(p.tensor->now.data() + p.here, r.before.data() + p.at, p.bytes);
    }
  }

  // Brings the tensors back. Returns "", or what is wrong beside them.
  std::string download() {
    for (const Range& r : ranges_) {
      if (r.pieces.empty()) continue;
      std::vector<std::byte> found(r.before.size());
      memory_.read(r.there, found.data(), found.size());
      size_t behind = 0;
      for (const Piece& p : r.pieces) {
        if (!is_whole(found, behind, p.at))
          return "a byte before " + p.tensor->path + " has changed";
        std::memcpy(p.tensor->now.data() + p.here, found.data() + p.at, p.bytes);
        behind = p.at + p.bytes;
      }
      if (!is_whole(found, behind, found.size())) return "a byte behind the tensors has changed";
    }
    return "";
  }

 private:
  static constexpr size_t kGuard = 256;  // bytes between tensors
  static constexpr std::byte kWhole{0xff};

  // Bytes of a tensor, in its `now` and in the range.
  struct Piece {
    support::Operand* tensor;
    size_t here, at, bytes;
  };
  // Bytes that are written and read together.
  struct Range {
    size_t there = 0;  // in the block
    std::vector<std::byte> before;
    std::vector<Piece> pieces;
  };

  static bool is_whole(const std::vector<std::byte>& found, size_t from, size_t to) {
    return std::all_of(found.begin() + static_cast<std::ptrdiff_t>(from),
                       found.begin() + static_cast<std::ptrdiff_t>(to),
                       [](std::byte b) { return b == kWhole; });
  }

  static void add(support::Operand& t, size_t here, size_t bytes, Range* range,
                  std::vector<size_t>* begin = nullptr) {
    std::vector<std::byte>& image = range->before;
    // 256-byte aligned, with a guard before it.
    const size_t at = begin == nullptr ? kGuard : (image.size() + 2 * kGuard - 1) / kGuard * kGuard;
    image.resize(at + bytes, kWhole);
    std::memcpy(image.data() + at, t.now.data() + here, bytes);
    range->pieces.push_back({&t, here, at, bytes});
    if (begin != nullptr) begin->push_back(at);
  }

  // From a byte of the block on. Returns the end.
  size_t add_far(support::Operand& t, size_t from, std::vector<size_t>* begin) {
    const auto size = static_cast<size_t>(t.bytes);
    const size_t own = from + kGuard, span = static_cast<size_t>(t.span()) * size;
    begin->push_back(own);
    size_t end = own;
    for (int64_t i = t.far_first; i < t.far_first + t.shape[0]; ++i) {
      const size_t there = own + t.first + static_cast<size_t>(i * t.far_stride) * size;
      ranges_.push_back({there - kGuard, {}, {}});
      add(t, t.place({i}), span, &ranges_.back());
      ranges_.back().before.resize(span + 2 * kGuard, kWhole);
      end = there + span;
    }
    return (end + 2 * kGuard - 1) / kGuard * kGuard;
  }

  Memory& memory_;
  std::vector<Range> ranges_;
  std::byte* workspace_ = nullptr;
};

}  // namespace fastnorm::check
