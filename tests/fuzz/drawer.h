// Calls made of a fuzzer's bytes and of the table of fields: which fields are there, what they
// need, and dtypes, shapes, strides and addresses. Most are right; now and then one thing is not.
// Structs, shapes and strides lie in heap blocks of their exact size, so that AddressSanitizer sees
// a read past any of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bytes.h"
#include "table.h"

namespace fastnorm::fuzz {

// Which fields of a struct are given, and what enums, flags and switches say.
struct Choice {
  Choice(const CallStruct& of, const Field* in) : type(of), at(in), values(of.fields.size()) {}

  bool has(size_t field) const { return (wanted >> field & 1) != 0; }
  void want(size_t field) { wanted |= uint64_t{1} << field; }
  void drop(size_t field) {
    wanted &= ~(uint64_t{1} << field);
    values[field] = 0;
  }
  template <auto member>
  bool has() const {
    return has(static_cast<size_t>(schema::kNumber<member>));
  }
  template <auto member>
  void want() {
    want(static_cast<size_t>(schema::kNumber<member>));
  }
  template <auto member>
  void drop() {
    drop(static_cast<size_t>(schema::kNumber<member>));
  }
  template <auto member>
  uint32_t& value() {
    return values[static_cast<size_t>(schema::kNumber<member>)];
  }

  const CallStruct& type;
  const Field* const at;  // what points to the struct; null: it is a call's
  uint64_t wanted = 0;
  std::vector<uint32_t> values;
};

// What a family's calls have beside the words of the table. `type` says which struct is meant.
class Family {
 public:
  virtual ~Family() = default;

  // What the table does not say of which fields belong together.
  virtual void choose(Choice*, Bytes&) const {}
  // Numbers and handles that are right, where those of the drawer are not.
  virtual void numbers(const CallStruct&, void*, Bytes&) const {}
  // The extents of a struct whose tensors may be missing. `in`: the extents of the struct that
  // points to it by `field`, or of the call's args.
  virtual Extents extents(const CallStruct& type, const void* args, const Field* field,
                          const Extents& in) const = 0;
  // What is wrong with a call that keeps the rules of the table, or null.
  virtual const char* fault(const CallStruct& type, const void* args, const Field* field,
                            const Extents& e) const = 0;
  // False of a struct that `field` points to, if it needs and excludes other fields than elsewhere.
  virtual bool keeps_needs(const Field*) const { return true; }
  // False of an input that a call that is right does not read.
  virtual bool is_read(const CallStruct&, const void*, const Field&) const { return true; }
};

struct DrawnTensor {
  const Field* field = nullptr;
  std::unique_ptr<int64_t[]> shape, strides;
  std::unique_ptr<fastnorm_tensor> view;
  std::unique_ptr<uint8_t[]> memory;
  size_t bytes = 0;             // of memory
  std::vector<uint8_t> before;  // what memory holds, but for what a call may write
};

// A struct and those that it points to.
struct DrawnStruct {
  const CallStruct* type;
  std::vector<uint64_t> value;       // as drawn, of the size of this version
  std::unique_ptr<uint8_t[]> block;  // what the library gets, of the size that it claims
  std::vector<uint64_t> known;       // of this, what this version knows: fields behind are 0
  struct Child {
    const Field* field;
    std::unique_ptr<DrawnStruct> drawn;
  };
  std::vector<Child> children;

  template <class T>
  const T* args() const {
    return reinterpret_cast<const T*>(block.get());
  }
  template <class T>
  const T& as_known() const {
    return *reinterpret_cast<const T*>(known.data());
  }
};

class Drawer {
 public:
  Drawer(Bytes& bytes, const Family& family, int32_t device_type)
      : bytes_(bytes), family_(family), device_type_(device_type) {}

  std::unique_ptr<DrawnStruct> draw(const CallStruct& type, const Extents& extents);
  // In two steps, where a call has several structs. All have to have their numbers first.
  std::unique_ptr<DrawnStruct> begin(const CallStruct& type, const Field* at = nullptr);
  void finish(DrawnStruct* s, const Extents& extents, const Field* field = nullptr);

  // True if nothing was damaged or broken on purpose.
  bool is_right() const { return right_; }

  // Real memory of exact size for every tensor; rarely one lies in another. False where a tensor is
  // too large for that, or no memory can be like it.
  bool place();
  // From the CPU. What was elsewhere is elsewhere.
  void move_to_cuda();
  // Whether a call has changed what it must not: with `accepted`, other bytes than those of its
  // outputs.
  bool has_changed(bool accepted);

 private:
  bool now_and_then();  // rarely, and then the call is not right
  Choice choose(const CallStruct& type, const Field* at);
  void complete(Choice* choice);
  bool is_met(const Choice& choice, const schema::OneOf& need) const;
  bool drop_what_does_not_fit(Choice* choice);
  void scalars(const Choice& choice, void* args);
  const fastnorm_tensor* tensor(const DrawnStruct& s, const Field& field, const Extents& e);
  void shape(DrawnTensor* t, const Pattern& pattern);
  void strides(DrawnTensor* t);
  void damage(DrawnTensor* t);
  uintptr_t address();
  void pack(DrawnStruct* s);

  Bytes& bytes_;
  const Family& family_;
  int32_t device_type_;
  bool right_ = true;
  std::vector<std::unique_ptr<DrawnTensor>> tensors_;
  std::vector<const fastnorm_tensor*> outputs_;
};

// Numbers at which arithmetic on extents, strides and addresses breaks.
int64_t hard_number(Bytes& bytes);
// Small, now and then hard.
int64_t small_extent(Bytes& bytes);
float random_float(Bytes& bytes);
fastnorm_dtype_id row_dtype(Bytes& bytes);

}  // namespace fastnorm::fuzz
