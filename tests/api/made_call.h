// The lines of all families, and calls made of them with their memory.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "api/api_test.h"
#include "support/call_functions.h"
#include "support/checked_call.h"

namespace fastnorm::test {

struct Family {
  const char* name;
  const family_lines* lines;
  const support::CallFunctions* functions;
};

// The families whose calls can be written as lines of text.
inline const std::vector<Family>& all_families() {
  static const std::vector<Family> all = [] {
    std::vector<Family> found;
#define FAMILY(name)                \
  if (name##_lines.call != nullptr) \
    found.push_back({#name, &name##_lines, support::find_functions(#name)});
    FASTNORM_FAMILIES(FAMILY)
#undef FAMILY
    return found;
  }();
  return all;
}

class MadeCall {
 public:
  explicit MadeCall(const Family& f, const std::string& more = "")
      : MadeCall(f, f.lines->call, more) {}
  MadeCall(const Family& f, const std::string& base, const std::string& more) : family(f) {
    const std::string line = base + " " + more;
    // Indices are those of the family's model, where it has one.
    memory_ = line.starts_with("mla_decode") ? std::make_unique<support::Operands>(line)
                                             : std::make_unique<support::CheckedCall>(line);
    for (const auto& o : memory_->all()) before_.push_back(o->now);
    fastnorm_context* const planner = cpu_context(nullptr);
    fastnorm_info info = empty_info();
    if (memory_->device().device_type == FASTNORM_DEVICE_CPU &&
        f.functions->query(planner, given(), &info) == FASTNORM_OK)
      reserve(info.workspace_bytes);
    fastnorm_context_destroy(planner);
  }
  ~MadeCall() { std::free(workspace); }
  MadeCall(const MadeCall&) = delete;

  support::GivenCall given() const {
    return {&memory_->args<char>(), memory_->parts<void>(), memory_->count()};
  }
  fastnorm_status query(fastnorm_context* context) const {
    fastnorm_info info = empty_info();
    return family.functions->query(context, given(), &info);
  }
  fastnorm_status prepare(fastnorm_context* context) const {
    return family.functions->prepare(context, given());
  }
  fastnorm_status run(fastnorm_context* context) const {
    return family.functions->run(context, given(), workspace, bytes, nullptr);
  }
  void reserve(uint64_t count) {
    bytes = static_cast<size_t>(count);
    if (bytes != 0) workspace = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  }

  bool untouched() const {
    for (size_t i = 0; i < before_.size(); ++i) {
      if (memory_->all()[i]->now != before_[i]) return false;
    }
    return true;
  }
  bool equals(const MadeCall& other) const {
    for (size_t i = 0; i < before_.size(); ++i) {
      if (memory_->all()[i]->now != other.memory_->all()[i]->now) return false;
    }
    return true;
  }

  const Family& family;
  void* workspace = nullptr;
  size_t bytes = 0;

 private:
  std::unique_ptr<support::Operands> memory_;
  std::vector<std::vector<unsigned char>> before_;
};

}  // namespace fastnorm::test
