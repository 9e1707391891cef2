// A call as one line of text, and back: what a test's table, a message or a command line says.
//
//   norm kind=layer eps=1e-05 x=bf16[64,4096] weight=f32[4096] y=bf16[64,4096] y.address=x
//
// The first word is the family. Each other word is PATH=VALUE and sets one field:
//
//   kind=layer            an enum, by the end of its name or by number
//   flags=0x3             a number. `null` is that of a pointer
//   quant.scheme=per_row  a field of a struct that the field `quant` points to
//   parts[1].x=..         a field of a part
//   x=bf16[2,3,16]        a tensor: dtype and extents. All else is as if it were not set before
//   x.strides=[48,16,1]   one property of a tensor: dtype, shape, strides, ndim, address, offset
//                         (byte_offset) and device. `x.shape=null` and `x.strides=null` are NULL
//   x.address=y+32        an address beside that of another tensor. Or a number, or `null`
//   x.device=cuda:1       other than that of the call
//   x,y.shape=[4,16]      the same of several tensors
//   device=cuda:0         where the call runs; its tensors are there
//   count=9               the number of parts, other than those that are given
//   quant=null            nothing: no struct, no tensor, and with parts[1]=null no part
//
// A tensor without an address has an own place in the address space, 2^40 bytes from the next.
// Names and places of fields come from the schema: a new field has its text without a line here.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/common/schema.h"
#include "fastnorm/fastnorm.h"

namespace fastnorm::support {

// What is wrong with a text; the message begins with its column.
struct CallTextError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct CallEnum {
  std::vector<std::pair<std::string, int32_t>> values;  // by the text of a call
};

// A struct as the schema has it, without its type of C++.
struct CallStruct {
  struct Field : schema::Field {
    const CallStruct* type;  // of what it points to
    const CallEnum* values;
  };
  const char* name;
  size_t size, first_size;  // the latter in the struct's first version
  std::vector<Field> fields;
};

// A family's structs. Without parts the second is null.
struct CallFamily {
  const char* name;
  const CallStruct* args;
  const CallStruct* part;
};
const std::vector<CallFamily>& families();
const CallFamily* find_family(std::string_view name);

struct CallTensor {
  // An address: `number` bytes behind the tensor `of`, or the number alone.
  struct Address {
    std::string of;
    uint64_t number = 0;
  };

  uint32_t dtype = 0;  // code | bits << 8 | lanes << 16
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;         // empty = compact
  std::optional<Address> address = {};  // without one, an own place
  uint64_t byte_offset = 0;
  std::optional<fastnorm_device> device = {};  // without one, the call's
  std::optional<int32_t> ndim = {};            // other than shape's size
  bool null_shape = false;
};

class Call {
 public:
  Call() = default;
  // Throws CallTextError.
  explicit Call(std::string_view text);
  // The text of a call that exists. Addresses are numbers, handles too.
  Call(const CallFamily& family, const void* args, const void* const* parts, int32_t count,
       fastnorm_device device);

  // Sets fields, in order. The text has no family. Throws CallTextError.
  void change(std::string_view text);
  std::string text() const;

  const CallFamily& family() const { return *family_; }
  fastnorm_device device() const { return device_; }

  // The structs. They are valid until the call changes or ends.
  template <class Args>
  const Args* args() {
    build();
    return static_cast<const Args*>(data(args_));
  }
  template <class Part>
  const Part* const* parts() {
    build();
    return reinterpret_cast<const Part* const*>(part_pointers_.data());
  }
  int32_t count() const { return count_.value_or(static_cast<int32_t>(parts_.size())); }

  // A tensor, or null where it is not given.
  CallTensor* tensor(std::string_view path);
  // Gives a tensor.
  void give(std::string_view path, CallTensor tensor);
  // Paths of the tensors that are given, in the order of the schema.
  std::vector<std::string> tensors() const;
  // Sets a handle or pointer of the host.
  void set_pointer(std::string_view path, const void* value);
  uint64_t address_of(std::string_view path) const;
  // The bytes of a scalar, or null where its struct is not given.
  const void* scalar(std::string_view path) const;
  const CallStruct::Field* field(std::string_view path) const;
  bool is_output(std::string_view path) const { return schema::is_output(field(path)->role); }
  // What the struct of a tensor that is given points to, since args().
  const fastnorm_tensor* built(std::string_view path) const;

 private:
  struct Struct {
    const CallStruct* type = nullptr;
    std::vector<uint64_t> words;
    std::vector<std::pair<const CallStruct::Field*, CallTensor>> tensors;
    std::vector<std::pair<const CallStruct::Field*, Struct>> structs;
    std::vector<fastnorm_tensor> built;  // of tensors, in their order

    explicit Struct(const CallStruct* of);
  };
  // Where a path leads.
  struct Place {
    Struct* in;
    const CallStruct::Field* field;
    int slot;                   // of the address space
    std::string_view property;  // what is behind the field
  };

  static void* data(const Struct& s) { return const_cast<uint64_t*>(s.words.data()); }
  static CallTensor* tensor_of(Struct& s, const CallStruct::Field* field);
  static Struct read(const CallStruct* type, const void* from, fastnorm_device device);
  // With `make`, structs on the way are made. Without it `in` is null where one is not given.
  Place find(std::string_view path, bool make);
  void set(std::string_view path, std::string_view value);
  std::vector<std::string> paths_of(std::string_view list);
  void set_tensor(const Place& place, std::string_view path, std::string_view value);
  uint64_t address(std::string_view path, int depth) const;
  void build();
  void build(Struct& s, const std::string& prefix);
  void write(const Struct& s, const std::string& prefix, std::string* to) const;
  void list(const Struct& s, const std::string& prefix, std::vector<std::string>* to) const;

  const CallFamily* family_ = nullptr;
  fastnorm_device device_ = {FASTNORM_DEVICE_CPU, 0};
  Struct args_{nullptr};
  std::vector<Struct> parts_;
  std::vector<bool> null_parts_;
  std::optional<int32_t> count_;
  std::vector<const void*> part_pointers_;
};

}  // namespace fastnorm::support
