// The columns of src/schema/fields.csv as what can be asked of a call: which dtypes and shapes a
// tensor may have, and whether a field is there.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "fastnorm/fastnorm.h"
#include "support/call_text.h"

namespace fastnorm::fuzz {

using support::CallStruct;
using Field = CallStruct::Field;

// The schema's description of a struct.
const CallStruct& type_of(const char* name);

template <class T>
T load(const void* args, const Field& field) {
  T value;
  std::memcpy(&value, static_cast<const char*>(args) + field.offset, sizeof value);
  return value;
}
template <class T>
void store(void* args, const Field& field, T value) {
  std::memcpy(static_cast<char*>(args) + field.offset, &value, sizeof value);
}
// An enum field as the number it holds, which may be none of its names.
template <class Enum>
uint32_t number(const Enum& field) {
  uint32_t value;
  static_assert(sizeof field == sizeof value);
  std::memcpy(&value, &field, sizeof value);
  return value;
}

inline uint32_t id_of(fastnorm_dtype d) {
  return d.code | uint32_t{d.bits} << 8 | uint32_t{d.lanes} << 16;
}
bool is_row_dtype(uint32_t id);

// Whether a field has not its neutral value, and whether a condition of another field holds.
bool is_given(const void* args, const Field& field);
bool holds(const CallStruct& type, const void* args, const schema::Term& term);
inline bool is_tensor(const Field& field) { return field.kind == schema::Kind::kTensor; }
inline const fastnorm_tensor* tensor_of(const void* args, const Field& field) {
  return load<const fastnorm_tensor*>(args, field);
}

// What shapes and dtypes of a struct's tensors follow from.
struct Extents {
  std::vector<int64_t> x, x2;           // rows
  uint32_t dtype = FASTNORM_DTYPE_F32;  // T
  const char* any = "";                 // a field of T that may have any of the three dtypes
  int64_t group = 0;                    // columns of a group; 0 = all
  bool pairs = false;                   // sums of LAYER
  bool indexed = false;                 // modulators by their number
  bool across_heads = false;
  int64_t rope_dim = 0;
  int64_t axes = 0;                 // of positions; 0 = any
  std::vector<int64_t> cos, cache;  // shapes; empty: not given
  int64_t tail = 0;                 // columns of x that the cache does not have
  uint32_t cos_dtype = 0;
  int64_t batch = 0, pages = 0, page = 1;  // of MLA
  int64_t extra_pages = 0, extra_page = 1;
  int64_t row_bytes = 0;                  // of a cache of bytes
  bool one_list = false;                  // of all pages
  const fastnorm_quant* quant = nullptr;  // of codes and scales
};

// An extent may be any number of a range, or 1.
struct Extent {
  int64_t least, most;
  bool or_one = false;
};
using Pattern = std::vector<Extent>;

// The first T. `own` is the tensor that the field is the gradient of, or null.
std::vector<uint32_t> dtypes_of(const Field& field, const Extents& e, const fastnorm_tensor* own);
// A shape has to fit one of them.
std::vector<Pattern> patterns_of(const Field& field, uint32_t dtype, const Extents& e,
                                 const fastnorm_tensor* own);
bool fits(const fastnorm_tensor& t, const std::vector<Pattern>& patterns);

// The tensor of the field whose name is without the leading d; null where there is none.
const fastnorm_tensor* own_of(const CallStruct& type, const void* args, const Field& field);
// A shape that can be read; otherwise `instead`.
std::vector<int64_t> shape_of(const fastnorm_tensor* t, const std::vector<int64_t>& instead);

// Columns that share a scale; 0 = the row or all.
int64_t block_of(const fastnorm_quant& quant);
bool is_swizzled(const fastnorm_quant& quant);

}  // namespace fastnorm::fuzz
