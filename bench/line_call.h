// A call from its line of text (support/call_text.h) over memory whose addresses may change.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fastnorm/fastnorm.h"
#include "support/call_text.h"

namespace bench {

// Not copyable: the arguments point inside.
class LineCall {
 public:
  LineCall(const std::string& line, int32_t device_type) : call_(line) {
    call_.change("device=" + std::to_string(device_type) + ":0");
    args_ = const_cast<void*>(call_.args<void>());
    parts_ = call_.parts<void>();
  }
  LineCall(const LineCall&) = delete;
  LineCall& operator=(const LineCall&) = delete;

  template <class Args>
  Args& args() const {
    return *static_cast<Args*>(args_);
  }
  template <class Part>
  const Part* const* parts() const {
    return static_cast<const Part* const*>(parts_);
  }
  int32_t count() const { return call_.count(); }

  // The tensor of a field, to change its address. Of a field that the line does not have, one that
  // no call looks at.
  fastnorm_tensor* tensor(const std::string& path) {
    return const_cast<fastnorm_tensor*>(call_.tensor(path) == nullptr ? &none_ : call_.built(path));
  }

 private:
  fastnorm::support::Call call_;
  fastnorm_tensor none_ = {};
  void* args_;
  const void* parts_;
};

// "[4,64]"
inline std::string text_of(const std::vector<int64_t>& extents) {
  std::string text;
  for (const int64_t extent : extents) {
    text += text.empty() ? '[' : ',';
    text += std::to_string(extent);
  }
  text += ']';
  return text;
}

// The path of a part's field.
inline std::string part_of(int part, const char* field) {
  return "parts[" + std::to_string(part) + "]." + field;
}

// A word of a line for a tensor, and words for what is not compact, each with a blank before it.
inline std::string tensor_words(const std::string& path, const std::string& dtype,
                                const std::vector<int64_t>& shape,
                                const std::vector<int64_t>& strides = {}, int64_t byte_offset = 0) {
  std::string words = " " + path + "=" + dtype + text_of(shape);
  if (!strides.empty()) words += " " + path + ".strides=" + text_of(strides);
  if (byte_offset != 0) words += " " + path + ".offset=" + std::to_string(byte_offset);
  return words;
}

}  // namespace bench
