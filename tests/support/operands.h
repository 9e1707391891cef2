// The memory of a call's tensors, made from the call's line of text: what is in them before the
// call, and what should be there afterwards, byte for byte, gaps between rows included.
//
//   norm seed=7 kind=layer x=bf16[64,4096] y=bf16[64,4096] y.address=x fill.x=random_bits
//
// A line is the text of a call (call_text.h) with these words beside it:
//
//   seed=7         of all random values: the same line gives the same bytes on every machine
//   fill.PATH=..   what an input has: a pattern of ref/data.h, `spikes` (normal, with three values
//                  of great magnitude), or a number for every element. An index has a number, or
//                  numbers of columns such as 0,3,4, where its family does not fill it in
//
// Without such a word the field's role decides: weights are near 1, tables and rows normal,
// statistics other than the rows', outputs NaN. Sums to which a call may add have values.
// Indices are the family's (checked_call.h). An address is PATH+BYTES of the tensor itself, or
// another tensor, which then has the same view. A tensor of which indices lie more than 2^31
// bytes apart has memory for few of them alone.
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ref/data.h"
#include "support/call_text.h"

namespace fastnorm::support {

using Index = std::span<const int64_t>;

constexpr fastnorm_dtype_id id_of(ref::Type type) {
  constexpr fastnorm_dtype_id kIds[] = {FASTNORM_DTYPE_F32, FASTNORM_DTYPE_F16,
                                        FASTNORM_DTYPE_BF16};
  return kIds[static_cast<int>(type)];
}

// Memory of a tensor, and what it should hold after a call. Strides are in elements.
struct Operand {
  // `shift` elements are ahead of the first one.
  Operand(std::vector<int64_t> extents, std::vector<int64_t> steps, uint32_t dtype,
          int64_t shift = 0);
  // Compact rows, and the tensor of a call that gets them.
  Operand(std::vector<int64_t> extents, fastnorm_dtype_id dtype);
  const fastnorm_tensor* get();

  ref::Type type() const;
  bool is_float() const { return bytes != 1 && !is_index(); }
  bool is_index() const { return dtype == FASTNORM_DTYPE_I32 || dtype == FASTNORM_DTYPE_I64; }
  // Indices of the dimensions but the last.
  int64_t rows() const;
  // Elements from the first of an index of the first dimension to behind its last.
  int64_t span() const;
  unsigned char* data() {
    return (elsewhere != nullptr ? static_cast<unsigned char*>(elsewhere) : now.data()) + first;
  }

  // The byte of an element. What is behind the given dimensions has index 0.
  size_t place(Index index) const;
  size_t place(std::initializer_list<int64_t> index) const { return place(Index(index)); }
  // The place of a row of a tensor that broadcasts: leading dimensions may be missing, and have
  // extent 1.
  size_t place_of_row(Index leading) const;

  std::vector<float> values(size_t at, int64_t n) const;  // that are contiguous
  // A row as [n], whose elements may be one.
  std::vector<float> row(Index leading, int64_t n) const;
  int64_t number(size_t at) const;  // of a tensor of integers
  float scalar() const { return values(first, 1)[0]; }

  void set(size_t at, const float* from, int64_t n);
  void expect(size_t at, const float* from, int64_t n) {
    ref::encode_row(type(), from, expected.data() + at, n);
  }
  void expect(size_t at, const std::vector<float>& from) {
    expect(at, from.data(), static_cast<int64_t>(from.size()));
  }
  void expect_bytes(size_t at, const void* from, size_t count) {
    std::memcpy(expected.data() + at, from, count);
  }
  template <class Value>
  void set_number(size_t at, Value value) {
    std::memcpy(now.data() + at, &value, sizeof value);
    std::memcpy(expected.data() + at, &value, sizeof value);
  }
  void set_index(size_t at, int64_t value);  // of a tensor of integers

  std::string path;
  const CallStruct::Field* field = nullptr;
  std::vector<int64_t> shape, strides;
  uint32_t dtype;
  int64_t bytes;  // of an element
  size_t first;   // byte of `now` that is the first element's
  std::vector<unsigned char> now, expected;
  void* elsewhere = nullptr;  // where `now` lies for the call, if not there
  // In a tensor whose indices lie far apart: their distance, and the first one with memory.
  int64_t far_stride = 0, far_first = 0;

 private:
  fastnorm_tensor abi_ = {};
};

using OwnedOperand = std::unique_ptr<Operand>;
inline OwnedOperand make_operand(std::vector<int64_t> extents, fastnorm_dtype_id dtype) {
  return std::make_unique<Operand>(std::move(extents), dtype);
}
inline const fastnorm_tensor* abi_of(const OwnedOperand& t) {
  return t == nullptr ? nullptr : t->get();
}

class Operands {
 public:
  // Throws CallTextError.
  explicit Operands(const std::string& line);
  Operands(const Operands&) = delete;

  const std::string& line() const { return line_; }
  const CallFamily& family() const { return call_.family(); }
  uint64_t seed() const { return seed_; }
  fastnorm_device device() const { return call_.device(); }

  // Each memory once, in the order of the schema.
  const std::vector<std::unique_ptr<Operand>>& all() const { return all_; }
  // The operand of a tensor of the structs below, or null. Tensors that are one view have one
  // memory.
  Operand* operator()(const fastnorm_tensor* t) const;

  // The structs. They are valid until place().
  template <class Args>
  const Args& args() const {
    return *static_cast<const Args*>(args_);
  }
  template <class Part>
  const Part* const* parts() const {
    return static_cast<const Part* const*>(parts_);
  }
  int32_t count() const { return call_.count(); }

  // Puts each operand where `elsewhere` says, on a device.
  void place(fastnorm_device device);

  // "" or where memory differs from what is expected. With `nan_is_one` NaN may have any bits.
  std::string difference(bool nan_is_one) const;

 private:
  void make(const std::string& path);
  void fill(Operand& o, const std::string* word);
  void fill_index(Operand& o, const std::string& word);

  std::string line_;
  uint64_t seed_ = 0;
  Call call_;
  std::vector<std::unique_ptr<Operand>> all_;
  std::vector<std::pair<std::string, Operand*>> by_path_;
  std::unordered_map<const fastnorm_tensor*, Operand*> by_tensor_;
  const void* args_ = nullptr;
  const void* parts_ = nullptr;
};

// Writes a line.
class LineWriter {
 public:
  LineWriter(const char* family, uint64_t seed, bool gpu);

  void set(const std::string& path, const std::string& value) { line_ += " " + path + "=" + value; }
  void set(const std::string& path, double value);
  void set(const std::string& path, int64_t value) { set(path, std::to_string(value)); }
  void fill(const std::string& path, const std::string& value) { set("fill." + path, value); }
  void fill(const std::string& path, ref::Pattern pattern);

  // `gap` elements are between the indices of each dimension but the last, `shift` ahead of all.
  void tensor(const std::string& path, fastnorm_dtype_id dtype, const std::vector<int64_t>& shape,
              int64_t gap = 0, int64_t shift = 0);
  void strides(const std::string& path, const std::vector<int64_t>& strides);
  // The view of a tensor that was written before.
  void same(const std::string& path, const std::string& as);
  // A tensor of one value.
  void scalar(const std::string& path, float value);

  // What the tensors that follow have:
  int64_t far_stride = 0;    // not 0: indices of the first dimension lie so far apart
  uint64_t byte_offset = 0;  // from the address to the first element

  const std::string& line() const { return line_; }

 private:
  struct View {
    std::string path, tensor, strides;
  };
  View& view(const std::string& path);

  std::string line_;
  std::vector<View> views_;
};

}  // namespace fastnorm::support
