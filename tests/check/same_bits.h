// The bits of each row of each content, across kernels, layouts, batches and instruction sets.
#pragma once

#include <cstdint>
#include <unordered_map>

namespace fastnorm::check {

class SameBits {
 public:
  // False if the row `key` gave other bits before.
  bool put(uint64_t key, uint64_t bits) {
    const auto [place, is_new] = seen_.emplace(key, bits);
    repeats_ += is_new ? 0 : 1;
    return place->second == bits;
  }
  int64_t rows() const { return static_cast<int64_t>(seen_.size()); }
  int64_t repeats() const { return repeats_; }

 private:
  std::unordered_map<uint64_t, uint64_t> seen_;
  int64_t repeats_ = 0;
};

}  // namespace fastnorm::check
