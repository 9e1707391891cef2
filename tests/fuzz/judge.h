// What must hold of calls that the library accepted: the columns of the table, and the rules that a
// family adds. Memory is looked at byte by byte instead of by strides, and therefore only of small
// calls.
#pragma once

#include <string>
#include <vector>

#include "drawer.h"

namespace fastnorm::fuzz {

// Empty, or what a struct gets wrong in its numbers, dtypes, shapes or devices, and those that it
// points to. `in` as of Family::extents().
std::string find_fault(const Family& family, const CallStruct& type, const void* args,
                       int32_t device_type, const Extents& in = {});

// The tensors of one call or several.
class Memory {
 public:
  explicit Memory(const Family& family) : family_(family) {}

  // Adds the tensors of a struct, and of structs that it points to. Structs of one call have one
  // number.
  void add(const CallStruct& type, const void* args, int call);
  // Empty, or what the tensors get wrong together.
  std::string find_fault() const;

 private:
  struct View {
    const fastnorm_tensor* tensor;
    const void* of;  // the struct
    const CallStruct* type;
    const Field* field;
    int call;
    bool written;
    int64_t strides[8];
  };
  struct Span;

  bool is_small() const;
  void add_spans(size_t view, std::vector<Span>* spans) const;
  static bool may_overlap(const View& a, const View& b);

  const Family& family_;
  std::vector<View> views_;
};

}  // namespace fastnorm::fuzz
