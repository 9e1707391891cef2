#include "judge.h"

#include <algorithm>
#include <cmath>

#include "memory.h"

namespace fastnorm::fuzz {

using schema::Kind;
using schema::Role;
using schema::Shape;

namespace {

bool on_device(const fastnorm_tensor& t, int32_t device_type) {
  if (device_type == FASTNORM_DEVICE_CPU) {
    return t.device_type == FASTNORM_DEVICE_CPU || t.device_type == FASTNORM_DEVICE_CUDA_HOST;
  }
  return t.device_id == 0 &&
         (t.device_type == FASTNORM_DEVICE_CUDA || t.device_type == FASTNORM_DEVICE_CUDA_MANAGED);
}

const char* fault_of_any(const fastnorm_tensor& t, int32_t device_type) {
  if (!on_device(t, device_type)) return "another device";
  if (t.ndim < 1 || t.ndim > 8) return "a rank that no tensor may have";
  if (t.shape == nullptr) return "no shape";
  if (*std::min_element(t.shape, t.shape + t.ndim) < 0) return "a negative extent";
  const int64_t elements = elements_of(t);
  if (elements < 0) return "too many elements";
  if (elements == 0) return nullptr;
  if (t.data == nullptr) return "no memory for elements";
  const uintptr_t address = reinterpret_cast<uintptr_t>(t.data) + t.byte_offset;
  const auto bytes = static_cast<uintptr_t>(std::max<int64_t>(bits_of(t.dtype) / 8, 1));
  return address % bytes != 0 ? "an address that does not suit the dtype" : nullptr;
}

const char* scalar_fault(const CallStruct& type, const void* args, const Field& field) {
  switch (field.role) {
    case Role::kSize:
      return load<size_t>(args, field) < type.first_size ? "a struct of no version" : nullptr;
    case Role::kReserved:
      return is_given(args, field) ? "not 0" : nullptr;
    case Role::kSwitch:
      return load<uint32_t>(args, field) > 1 ? "neither 0 nor 1" : nullptr;
    case Role::kEnum: {
      const auto value = load<int32_t>(args, field);
      const auto& values = field.values->values;
      const bool known = std::any_of(values.begin(), values.end(),
                                     [&](const auto& v) { return v.second == value; });
      return !known || (field.refused >> value & 1) != 0 ? "out of range" : nullptr;
    }
    case Role::kNumber:
      if (field.kind == Kind::kFloat && !std::isfinite(load<float>(args, field)))
        return "not finite";
      if (field.kind == Kind::kDouble && !std::isfinite(load<double>(args, field)))
        return "not finite";
      return nullptr;
    default:
      return field.required && !is_given(args, field) ? "not given" : nullptr;
  }
}

const char* presence_fault(const CallStruct& type, const void* args, const Field& field) {
  if (!is_given(args, field)) return nullptr;
  for (const schema::OneOf& need : field.needs) {
    bool met = need.terms[0].field == schema::kNoField;
    for (const schema::Term& t : need.terms)
      met |= t.field != schema::kNoField && holds(type, args, t);
    if (!met) return "without what it needs";
  }
  for (const schema::Term& t : field.excludes) {
    if (t.field != schema::kNoField && holds(type, args, t)) return "with what it excludes";
  }
  return nullptr;
}

const char* tensor_fault(const CallStruct& type, const void* args, const Field& field,
                         const Extents& e, int32_t device_type) {
  const fastnorm_tensor& t = *tensor_of(args, field);
  if (const char* fault = fault_of_any(t, device_type)) return fault;
  const fastnorm_tensor* const own = own_of(type, args, field);
  const std::vector<uint32_t> dtypes = dtypes_of(field, e, own);
  if (std::find(dtypes.begin(), dtypes.end(), id_of(t.dtype)) == dtypes.end())
    return "another dtype";
  return fits(t, patterns_of(field, id_of(t.dtype), e, own)) ? nullptr : "another shape";
}

}  // namespace

std::string find_fault(const Family& family, const CallStruct& type, const void* args,
                       int32_t device_type, const Extents& in) {
  const auto named = [&](const Field& field, const char* fault) {
    return std::string(field.path) + ": " + fault;
  };
  struct Part {
    const CallStruct* type;
    const void* args;
    const Field* field;
    Extents in;
  };
  std::vector<Part> parts = {{&type, args, nullptr, in}};
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part part = parts[i];
    for (const Field& field : part.type->fields) {
      if (const char* fault = scalar_fault(*part.type, part.args, field))
        return named(field, fault);
      const char* fault = presence_fault(*part.type, part.args, field);
      if (fault != nullptr && family.keeps_needs(part.field)) return named(field, fault);
    }
    const Extents e = family.extents(*part.type, part.args, part.field, part.in);
    for (const Field& field : part.type->fields) {
      if (!is_given(part.args, field)) continue;
      if (field.kind == Kind::kStruct)
        parts.push_back({field.type, load<const void*>(part.args, field), &field, e});
      if (!is_tensor(field)) continue;
      const char* const fault = tensor_fault(*part.type, part.args, field, e, device_type);
      if (fault != nullptr) return named(field, fault);
    }
    if (const char* fault = family.fault(*part.type, part.args, part.field, e)) return fault;
  }
  return "";
}

// --- memory ---

// Bytes of the last dimension for one index of the leading ones.
struct Memory::Span {
  uintptr_t begin, end;
  size_t view;
};

void Memory::add(const CallStruct& type, const void* args, int call) {
  for (const Field& field : type.fields) {
    if (field.kind == Kind::kStruct && is_given(args, field))
      add(*field.type, load<const void*>(args, field), call);
    if (!is_tensor(field) || !is_given(args, field) || !family_.is_read(type, args, field))
      continue;
    View view = {tensor_of(args, field), args, &type, &field, call, false, {}};
    const fastnorm_tensor& t = *view.tensor;
    view.written = schema::is_output(field.role);
    for (int32_t d = 0; d < t.ndim; ++d) view.strides[d] = stride_of(t, d);
    if (field.role == Role::kScales) {
      const auto& q = *static_cast<const fastnorm_quant*>(args);
      view.written = number(q.scheme) != FASTNORM_QUANT_PER_TENSOR;
      if (t.strides == nullptr && number(q.scale_layout) == FASTNORM_SCALE_COLUMN_MAJOR) {
        int64_t rows = 1;  // all rows of a column after each other
        for (int32_t d = t.ndim - 2; d >= 0; --d) {
          view.strides[d] = rows;
          rows *= t.shape[d];
        }
        view.strides[t.ndim - 1] = rows;
      }
    }
    views_.push_back(view);
  }
}

bool Memory::is_small() const {
  constexpr int64_t kMostSpans = 4096;
  int64_t spans = 0;
  for (const View& v : views_) {
    const int32_t last = v.tensor->ndim - 1;
    const bool rows = v.tensor->shape[last] <= 1 || v.strides[last] == 1;
    const int64_t count = elements_of(*v.tensor);
    if (count > 0) spans += rows ? count / v.tensor->shape[last] : count;
    if (count < 0 || spans > kMostSpans) return false;
  }
  return true;
}

// One span an element where the last dimension has gaps, else one a row.
void Memory::add_spans(size_t view, std::vector<Span>* spans) const {
  const View& v = views_[view];
  const fastnorm_tensor& t = *v.tensor;
  const int32_t last = t.ndim - 1;
  const bool rows = t.shape[last] <= 1 || v.strides[last] == 1;
  const int64_t count = elements_of(t), step = rows ? t.shape[last] : 1;
  for (int64_t e = 0; e < count; e += step) {
    const auto place = static_cast<int64_t>(place_of(t, v.strides, e));
    const uintptr_t address =
        reinterpret_cast<uintptr_t>(t.data) + t.byte_offset + bytes_of(place, t.dtype);
    spans->push_back({address, address + bytes_of(step, t.dtype), view});
  }
}

bool Memory::may_overlap(const View& a, const View& b) {
  const auto number_of = [](const View& v) { return v.field - v.type->fields.data(); };
  if (!a.written && !b.written) {
    return a.of != b.of ||
           ((a.field->apart >> number_of(b) & 1) == 0 && (b.field->apart >> number_of(a) & 1) == 0);
  }
  if (a.of != b.of || a.written == b.written) return false;
  const View &out = a.written ? a : b, &in = a.written ? b : a;
  if ((out.field->same_view >> number_of(in) & 1) == 0) return false;
  const fastnorm_tensor &x = *a.tensor, &y = *b.tensor;
  if (id_of(x.dtype) != id_of(y.dtype) || x.ndim != y.ndim ||
      !std::equal(x.shape, x.shape + x.ndim, y.shape))
    return false;
  if (reinterpret_cast<uintptr_t>(x.data) + x.byte_offset !=
      reinterpret_cast<uintptr_t>(y.data) + y.byte_offset)
    return false;
  for (int32_t d = 0; d < x.ndim; ++d) {
    if (x.shape[d] > 1 && a.strides[d] != b.strides[d]) return false;
  }
  return true;
}

std::string Memory::find_fault() const {
  if (!is_small()) return "";
  std::vector<Span> spans;
  for (size_t i = 0; i < views_.size(); ++i) add_spans(i, &spans);
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return a.begin < b.begin; });
  for (size_t i = 0; i < spans.size(); ++i) {
    const View& a = views_[spans[i].view];
    const std::string name = a.field->path;
    if (spans[i].end < spans[i].begin) return name + ": past the end of the address space";
    for (size_t j = i + 1; j < spans.size() && spans[j].begin < spans[i].end; ++j) {
      const View& b = views_[spans[j].view];
      if (spans[i].view == spans[j].view) {
        // Gradients of weights with a stride of 0 are one sum.
        if (a.written && a.field->role != Role::kWeightOut) return name + ": it overlaps itself";
      } else if (!may_overlap(a, b)) {
        return name + ": it overlaps " + b.field->path;
      }
    }
  }
  return "";
}

}  // namespace fastnorm::fuzz
