#include "core/common/check.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "core/common/enum_check.h"
#include "core/common/field_rules.h"

namespace fastnorm {
namespace {

const char* device_name(int32_t device_type) {
  switch (device_type) {
    case FASTNORM_DEVICE_CPU:
      return "CPU";
    case FASTNORM_DEVICE_CUDA:
      return "CUDA";
    case FASTNORM_DEVICE_CUDA_HOST:
      return "CUDA_HOST";
    case FASTNORM_DEVICE_CUDA_MANAGED:
      return "CUDA_MANAGED";
    default:
      return "unknown";
  }
}

// A memory kind counts as the device that reaches it without a copy.
int32_t effective_device(int32_t device_type) {
  if (device_type == FASTNORM_DEVICE_CUDA_HOST) return FASTNORM_DEVICE_CPU;
  if (device_type == FASTNORM_DEVICE_CUDA_MANAGED) return FASTNORM_DEVICE_CUDA;
  return device_type;
}

// Appends to what a text has, as far as there is room.
template <size_t size, class... Values>
void append(TextOf<size>* text, size_t* used, const char* format, Values... values) {
  if (*used >= size) return;
  *used += static_cast<size_t>(std::snprintf(text->c + *used, size - *used, format, values...));
}

// What a field has: "x is NULL", "eps is 1", "kind is FASTNORM_NORM_RMS (0)".
TextOf<96> state_text(const schema::Field& f, const std::byte* s) {
  using schema::Kind;
  TextOf<96> text{};
  size_t used = 0;
  const std::byte* const at = s + f.offset;
  append(&text, &used, "%s is ", f.path);
  if (f.kind == Kind::kTensor || f.kind == Kind::kStruct) {
    append(&text, &used, "%s", value_at<const void*>(at) == nullptr ? "NULL" : "given");
  } else if (f.kind == Kind::kFloat) {
    append(&text, &used, "%g", static_cast<double>(value_at<float>(at)));
  } else if (f.kind == Kind::kUint32) {
    append(&text, &used, "0x%x", value_at<uint32_t>(at));
  } else {
    const auto value = value_at<uint32_t>(at);
    const auto named = std::find_if(f.values.begin(), f.values.end(),
                                    [&](const auto& e) { return e.value == value; });
    if (named != f.values.end())
      append(&text, &used, "%s (%u)", named->name, value);
    else
      append(&text, &used, "%d", static_cast<int32_t>(value));
  }
  return text;
}

}  // namespace

Text shape_text(const int64_t* shape, int32_t rank) {
  Text text{};
  size_t used = 0;
  append(&text, &used, "%s", "[");
  for (int32_t d = 0; d < rank; ++d)
    append(&text, &used, d == 0 ? "%" PRId64 : ", %" PRId64, shape[d]);
  append(&text, &used, "%s", "]");
  return text;
}

Text dtype_text(fastnorm_dtype dtype) {
  Text text{};
  const Dtype known = dtype_from(dtype);
  if (known != Dtype::kUnknown) {
    std::snprintf(text.c, sizeof text.c, "%s", dtype_name(known));
  } else {
    std::snprintf(text.c, sizeof text.c, "{code %d, bits %d, lanes %d}", dtype.code, dtype.bits,
                  dtype.lanes);
  }
  return text;
}

fastnorm_status check_tensor(const char* name, const fastnorm_tensor& t, TensorRule rule,
                             CheckedDevice device, Error& error) {
  FASTNORM_REQUIRE(
      effective_device(t.device_type) == device.device_type &&
          (t.device_id == device.device_id || device.device_type == FASTNORM_DEVICE_CPU),
      FASTNORM_ERROR_DEVICE,
      "%s is on device %s:%d (device_type %d); required: the context's device, %s:%d", name,
      device_name(t.device_type), t.device_id, t.device_type, device_name(device.device_type),
      device.device_id);
  FASTNORM_REQUIRE(
      t.ndim >= 1 && t.ndim <= rule.max_rank, FASTNORM_ERROR_SHAPE,
      rule.max_rank == 1 ? "%s.ndim is %d; required: %d" : "%s.ndim is %d; required: 1 to %d", name,
      t.ndim, rule.max_rank);
  FASTNORM_REQUIRE(t.shape != nullptr, FASTNORM_ERROR_ARGUMENT,
                   "%s.shape is NULL; required: an array of %d extents", name, t.ndim);
  int64_t elements = 1, signs = 0;
  bool overflows = false, empty = false;
  for (int32_t i = 0; i < t.ndim; ++i) {
    signs |= t.shape[i];
    empty |= t.shape[i] == 0;
    overflows |= __builtin_mul_overflow(elements, t.shape[i], &elements);
  }
  if (empty) elements = 0;
  FASTNORM_REQUIRE(signs >= 0, FASTNORM_ERROR_SHAPE, "%s.shape is %s; required: extents >= 0", name,
                   shape_text(t.shape, t.ndim).c);
  FASTNORM_REQUIRE(!overflows || empty, FASTNORM_ERROR_SHAPE,
                   "%s.shape is %s; required: fewer than 2^63 elements", name,
                   shape_text(t.shape, t.ndim).c);
  const int64_t bytes =
      std::max<int64_t>(dtype_bytes(rule.dtype), 1);  // a byte holds two fp4 elements
  uintptr_t address = 0;
  FASTNORM_REQUIRE(
      !__builtin_add_overflow(reinterpret_cast<uintptr_t>(t.data), t.byte_offset, &address),
      FASTNORM_ERROR_LAYOUT,
      "%s.data is %p and its byte_offset %" PRIu64 "; required: a sum inside the address space",
      name, t.data, t.byte_offset);
  FASTNORM_REQUIRE(t.data != nullptr || elements == 0, FASTNORM_ERROR_ARGUMENT,
                   "%s.data is NULL and its shape %s has elements; required: an address", name,
                   shape_text(t.shape, t.ndim).c);
  FASTNORM_REQUIRE(elements == 0 || (address & static_cast<uintptr_t>(bytes - 1)) == 0,
                   FASTNORM_ERROR_LAYOUT,
                   "%s's address is 0x%" PRIxPTR "; required: a multiple of %d, the bytes of %s",
                   name, address, static_cast<int>(bytes), dtype_name(rule.dtype));
  // The strides of a tensor without elements mean nothing, and so does the stride of a dimension
  // with one index.
  if (t.strides == nullptr || elements == 0) return FASTNORM_OK;
  const int32_t last = t.ndim - 1;
  FASTNORM_REQUIRE(!rule.last_contiguous || t.strides[last] == 1 || t.shape[last] == 1,
                   FASTNORM_ERROR_LAYOUT,
                   "%s.strides[%d] is %" PRId64 "; required: 1, a contiguous last dimension", name,
                   last, t.strides[last]);
  for (int32_t i = 0; i < t.ndim; ++i) {
    int64_t step = 0;
    FASTNORM_REQUIRE(!__builtin_mul_overflow(t.strides[i], bytes, &step) || t.shape[i] == 1,
                     FASTNORM_ERROR_LAYOUT,
                     "%s.strides[%d] is %" PRId64 "; required: fewer than 2^63 bytes", name, i,
                     t.strides[i]);
  }
  return FASTNORM_OK;
}

fastnorm_status check_typed(const char* name, const fastnorm_tensor& t, TensorRule rule,
                            CheckedDevice device, Error& error) {
  if (dtype_from(t.dtype) != rule.dtype)
    return refuse_dtype(name, t, dtype_name(rule.dtype), error);
  return check_tensor(name, t, rule, device, error);
}

fastnorm_status refuse_value(const char* name, int32_t value, const char* type,
                             std::span<const schema::Enumerator> allowed, Error& error) {
  if (allowed.size() == 2) {
    return error.set(FASTNORM_ERROR_ARGUMENT, "%s is %d; required: %s (%u) or %s (%u)", name, value,
                     allowed[0].name, allowed[0].value, allowed[1].name, allowed[1].value);
  }
  return error.set(FASTNORM_ERROR_ARGUMENT, "%s is %d; required: a %s, 0 to %u", name, value, type,
                   allowed.back().value);
}

fastnorm_status refuse_dtype(const char* name, const fastnorm_tensor& t, const char* required,
                             Error& error) {
  return error.set(FASTNORM_ERROR_DTYPE, "%s.dtype is %s; required: %s", name,
                   dtype_text(t.dtype).c, required);
}

fastnorm_status check_own_dtype(const char* name, const fastnorm_tensor& t, const char* of,
                                Dtype own, Error& error) {
  const Dtype dtype = dtype_from(t.dtype);
  FASTNORM_REQUIRE(dtype == own || dtype == Dtype::kF32, FASTNORM_ERROR_DTYPE,
                   "%s.dtype is %s; required: %s%s, as %s is %s", name, dtype_text(t.dtype).c,
                   dtype_name(own), own != Dtype::kF32 ? ", or f32" : "", of, dtype_name(own));
  return FASTNORM_OK;
}

fastnorm_status check_scalar(const char* name, const fastnorm_tensor& t, CheckedDevice device,
                             const std::byte** address, Error& error) {
  FASTNORM_TRY(check_f32(name, t, error));
  // The common case. check_tensor() accepts it.
  const bool plain =
      t.ndim == 1 && t.shape != nullptr && t.shape[0] == 1 && is_placed(t, device, 4);
  if (!plain) {
    FASTNORM_TRY(check_tensor(name, t, {Dtype::kF32, 1, false}, device, error));
    FASTNORM_REQUIRE(t.shape[0] == 1, FASTNORM_ERROR_SHAPE, "%s.shape is %s; required: [1]", name,
                     shape_text(t.shape, 1).c);
  }
  *address = address_of(t);
  return FASTNORM_OK;
}

fastnorm_status refuse_field(const schema::Field* fields, size_t field, const schema::Rule& rule,
                             const std::byte* s, fastnorm_status status, Error& error) {
  const schema::Field& f = fields[field];
  TextOf<512> states{}, wanted{};
  size_t states_used = 0, wanted_used = 0;
  const auto& terms = rule.one_of.terms;
  const auto last =
      std::find_if(std::begin(terms), std::end(terms),
                   [](const schema::Term& t) { return t.field == schema::kNoField; }) -
      1;
  for (const schema::Term* t = terms; t <= last; ++t) {
    const schema::Field& of = fields[t->field];
    const bool is_value = t->op != schema::Op::kGiven;
    // Several values are of one field.
    if (t == last || t[1].field != t->field)
      append(&states, &states_used, "%s%s", t == last ? " and " : ", ", state_text(of, s).c);
    append(&wanted, &wanted_used, "%s%s",
           t == terms  ? ""
           : t == last ? " or "
                       : ", ",
           is_value ? t->name : of.path);
    if (is_value) append(&wanted, &wanted_used, " (%u)", t->value);
  }
  return error.set(
      status, "%s%s; %s: %s %s %s", state_text(f, s).c, states.c,
      status == FASTNORM_ERROR_UNSUPPORTED ? "this version has no such call; nearest" : "required",
      is_tensor(f.role) ? "NULL" : "0", rule.needed ? "without" : "with", wanted.c);
}

fastnorm_status check_struct(const void* data, size_t size, size_t least, size_t own,
                             const char* name, Error& error) {
  FASTNORM_REQUIRE(size >= least, FASTNORM_ERROR_ARGUMENT,
                   "%s.struct_size is %zu; required: at least %zu", name, size, least);
  constexpr size_t kLongest = 1 << 16;  // a garbage size must not make us read past a struct's end
  FASTNORM_REQUIRE(size <= kLongest, FASTNORM_ERROR_ARGUMENT,
                   "%s.struct_size is %zu; required: at most %zu", name, size, kLongest);
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = own; i < size; ++i) {
    FASTNORM_REQUIRE(bytes[i] == 0, FASTNORM_ERROR_UNSUPPORTED,
                     "%s.struct_size is %zu and byte %zu is not 0; this library knows %zu bytes; "
                     "nearest: zero in the rest",
                     name, size, i, own);
  }
  return FASTNORM_OK;
}

}  // namespace fastnorm
