// The kernels that the pretended runtime launches. Only their addresses are used.
#pragma once

#include <span>
#include <type_traits>
#include <vector>

#include "cuda/arch.h"
#include "cuda/families.h"

namespace fastnorm::test {

// A family's kernels on sm_90, by number: addresses of bytes.
template <class Family>
class Pretended {
 public:
  static Pretended& instance() {
    static Pretended kernels;
    return kernels;
  }

  // The numbers that belong to a part of the table.
  template <int kPart>
  std::span<const void* const> part() const {
    size_t first = 0, count = 0;
    for (const auto& entry : table_) {
      first += part_of(entry) < kPart ? 1 : 0;
      count += part_of(entry) == kPart ? 1 : 0;
    }
    return {addresses_.data() + first * Family::kForms, count * Family::kForms};
  }
  const void* address(size_t number) const { return addresses_[number]; }
  bool has(const void* kernel) const {
    return kernel >= bytes_.data() && kernel < bytes_.data() + bytes_.size();
  }
  size_t number_of(const void* kernel) const {
    return static_cast<size_t>(static_cast<const char*>(kernel) - bytes_.data());
  }
  const typename Family::Entry& entry(const void* kernel) const {
    return table_[number_of(kernel) / Family::kForms];
  }

 private:
  Pretended()
      : table_(cuda::table_of<Family>(cuda::kSm90)), bytes_(table_.size() * Family::kForms) {
    for (size_t i = 0; i < bytes_.size(); ++i)
      addresses_.push_back(exists(i) ? &bytes_[i] : nullptr);
  }
  bool exists(size_t number) const {
    if constexpr (std::is_same_v<Family, cuda::NormFamily>) {
      const NormEntry& entry = table_[number / Family::kForms];
      const auto form = static_cast<GridForm>(number % Family::kForms);
      return form == GridForm::kRows || (form == GridForm::kPair && runs_pairs(entry)) ||
             (form == GridForm::kHeads && runs_heads(entry.key, entry.tile));
    }
    return true;
  }
  static int part_of(const auto& entry) {
    if constexpr (std::is_same_v<Family, cuda::NormFamily>)
      return cuda::NormFamily::part_of(entry.key.dtype, entry.key.source);
    else
      return static_cast<int>(entry.variant.dtype);
  }

  const std::span<const typename Family::Entry> table_;
  std::vector<char> bytes_;
  std::vector<const void*> addresses_;
};

template <class Family>
Pretended<Family>& pretended() {
  return Pretended<Family>::instance();
}

// The entry of a kernel, or null if it is another family's.
template <class Family>
const typename Family::Entry* entry_of(const void* kernel) {
  const auto& kernels = pretended<Family>();
  return kernels.has(kernel) ? &kernels.entry(kernel) : nullptr;
}

// Whether it is a kernel of the norm that takes two calls.
inline bool is_pair(const void* kernel) {
  const auto& norm = pretended<cuda::NormFamily>();
  return norm.has(kernel) && norm.number_of(kernel) % cuda::kNormForms != 0;
}

// The address of an entry's kernel in the norm's table.
inline const void* kernel_address(int32_t index, GridForm form = GridForm::kRows) {
  return pretended<cuda::NormFamily>().address(
      static_cast<size_t>(cuda::norm_kernel_number(index, form)));
}

}  // namespace fastnorm::test
