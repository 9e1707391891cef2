// Calls of norm_heads and of its backward: parts, and the tables that they share.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "judge.h"
#include "norm_family.h"
#include "target.h"

namespace fastnorm::fuzz {

// The rules of the shared struct, and of flags.
class HeadsFamily : public Family {
 public:
  void choose(Choice* choice, Bytes& bytes) const override;
  void numbers(const CallStruct& type, void* args, Bytes& bytes) const override;
  Extents extents(const CallStruct& type, const void* args, const Field* field,
                  const Extents& in) const override;
  const char* fault(const CallStruct& type, const void* args, const Field* field,
                    const Extents& e) const override;

  // What the parts of the call have.
  bool rope = false, cache = false;
  int64_t columns = 1;  // of the narrowest
  int64_t axes = 0;     // of positions; 0: there are none

 protected:
  using Shared = fastnorm_norm_heads_args;
  static bool is_shared(const CallStruct& type);
  // [tokens, heads, d]; of another rank nothing fits.
  static std::vector<int64_t> rows_of(const fastnorm_tensor* t, const std::vector<int64_t>& in);
  // Drops what needs a flag that is not there. `flags` are those of the choice.
  static void tidy_flags(Choice* choice, size_t flags, uint32_t known, Bytes& bytes);
  static const char* flags_fault(uint32_t flags, uint32_t known);
};

template <class Part>
class HeadsCall {
 public:
  static constexpr int64_t kColumns[] = {1, 8, 17, 64, 96, 130, 576, 1030};

  HeadsCall(Bytes& bytes, HeadsFamily* family, const char* name)
      : drawer(bytes, *family, FASTNORM_DEVICE_CPU), family_(*family), name_(name) {
    const CallStruct& type = *support::find_family(name)->part;
    const int64_t tokens = bytes.pick(5);
    const uint32_t count = 1 + bytes.pick(3);
    Extents e;
    e.dtype = row_dtype(bytes);
    family->columns = kColumns[7];
    for (uint32_t i = 0; i < count; ++i) {
      parts_.push_back(drawer.begin(type));
      const Part& part = *reinterpret_cast<const Part*>(parts_.back()->value.data());
      family->rope = family->rope || (part.flags & FASTNORM_NORM_HEADS_ROPE) != 0;
      family->cache = family->cache || has_cache(part);
      rows_.push_back({tokens, 1 + bytes.pick(3), kColumns[bytes.pick(8)]});
      if ((part.flags & FASTNORM_NORM_HEADS_ROPE) != 0)
        family->columns = std::min(family->columns, rows_.back()[2]);
    }
    family->axes = bytes.pick(3) * 2 - (bytes.byte() & 1);
    if (family->axes < 0) family->axes = 0;
    shared_ = drawer.begin(type_of("fastnorm_norm_heads_args"));
    for (size_t i = 0; i < parts_.size(); ++i) {
      e.x = rows_[i];
      e.tail = has_tail(*reinterpret_cast<const Part*>(parts_[i]->value.data()))
                   ? std::min<int64_t>(64, e.x[2] - 1)
                   : 0;
      drawer.finish(parts_[i].get(), e);
      pointers.push_back(parts_[i]->template args<Part>());
      known_.push_back(parts_[i]->known.data());
    }
    e.x = rows_[0];
    drawer.finish(shared_.get(), e);
    args = shared_->args<fastnorm_norm_heads_args>();
  }

  int32_t count() const { return static_cast<int32_t>(pointers.size()); }
  const Part& part(size_t i) const { return parts_[i]->template as_known<Part>(); }
  const fastnorm_norm_heads_args& shared() const {
    return shared_->as_known<fastnorm_norm_heads_args>();
  }
  std::string text() const {
    return call_text(name_, shared_->known.data(), known_.data(), count());
  }

  // Empty, or what an accepted call gets wrong. `rows` is the tensor that has tokens.
  std::string find_fault(const fastnorm_tensor* Part::*rows) const {
    Extents e;
    Memory memory(family_);
    for (size_t i = 0; i < parts_.size(); ++i) {
      const CallStruct& type = *parts_[i]->type;
      const std::string fault = fuzz::find_fault(family_, type, known_[i], FASTNORM_DEVICE_CPU);
      if (!fault.empty()) return fault;
      const Extents own = family_.extents(type, known_[i], nullptr, {});
      if (i == 0) e = own;
      if (own.x[0] != e.x[0] || own.dtype != e.dtype) return "parts of other tokens or dtypes";
      if ((part(i).flags & FASTNORM_NORM_HEADS_ROPE) != 0) {
        if (shared().cos == nullptr || shared().sin == nullptr) return "no tables of a rope";
        if (shared().rope_dim > own.x[2]) return "a rope of more columns";
        if (shared().cos->ndim == 3 && shared().cos->shape[0] != own.x[1])
          return "a table for other heads";
        e.x[1] = own.x[1];  // a table for each head is one for these
      }
      if (part(i).*rows != nullptr && own.x[0] != 0) memory.add(type, known_[i], 0);
    }
    fastnorm_norm_heads_args tables = shared();
    // A backward does not look at them.
    if constexpr (!requires(const Part& p) { p.cache; }) tables.slots = nullptr;
    const std::string fault =
        fuzz::find_fault(family_, *shared_->type, &tables, FASTNORM_DEVICE_CPU, e);
    if (!fault.empty()) return fault;
    if (e.x[0] != 0) memory.add(*shared_->type, &tables, 0);
    return memory.find_fault();
  }

  const fastnorm_norm_heads_args* args = nullptr;
  std::vector<const Part*> pointers;
  Drawer drawer;

 private:
  static bool has_cache(const Part& part) {
    if constexpr (requires { part.cache; }) return part.cache != nullptr;
    return false;
  }

  static bool has_tail(const Part& part) {
    if constexpr (requires { part.cache_tail; }) return part.cache_tail != nullptr;
    return false;
  }

  const HeadsFamily& family_;
  const char* name_;
  std::vector<std::vector<int64_t>> rows_;
  std::vector<std::unique_ptr<DrawnStruct>> parts_;
  std::vector<const void*> known_;
  std::unique_ptr<DrawnStruct> shared_;
};

}  // namespace fastnorm::fuzz
