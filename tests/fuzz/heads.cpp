#include "heads.h"

namespace fastnorm::fuzz {

bool HeadsFamily::is_shared(const CallStruct& type) {
  static const CallStruct& shared = type_of("fastnorm_norm_heads_args");
  return &type == &shared;
}

std::vector<int64_t> HeadsFamily::rows_of(const fastnorm_tensor* t,
                                          const std::vector<int64_t>& in) {
  std::vector<int64_t> shape = shape_of(t, in);
  if (shape.size() != 3) shape = {0, 0, 0};
  return shape;
}

void HeadsFamily::tidy_flags(Choice* choice, size_t flags, uint32_t known, Bytes& bytes) {
  uint32_t& value = choice->values[flags];
  value = bytes.byte() & known;
  if ((value & FASTNORM_NORM_HEADS_ROPE) == 0) value &= ~28u;
  if ((value & FASTNORM_NORM_HEADS_NORM) == 0) value &= ~uint32_t{FASTNORM_NORM_HEADS_ACROSS_HEADS};
  choice->want(flags);
  if (bytes.rarely()) return;
  for (size_t f = 0; f < choice->type.fields.size(); ++f) {
    for (const schema::OneOf& need : choice->type.fields[f].needs) {
      const schema::Term& t = need.terms[0];
      if (t.op == schema::Op::kHas && t.field == flags && (t.value & value) == 0) choice->drop(f);
    }
  }
}

const char* HeadsFamily::flags_fault(uint32_t flags, uint32_t known) {
  if ((flags & ~known) != 0) return "flags that mean nothing yet";
  if ((flags & FASTNORM_NORM_HEADS_ROPE) == 0 && (flags & 28) != 0) return "flags of a rope";
  if ((flags & FASTNORM_NORM_HEADS_NORM) == 0 && (flags & FASTNORM_NORM_HEADS_ACROSS_HEADS) != 0)
    return "flags of a norm";
  return nullptr;
}

void HeadsFamily::choose(Choice* choice, Bytes& bytes) const {
  if (!is_shared(choice->type)) return;
  Choice& c = *choice;
  if (rope != bytes.rarely()) {
    c.want<&Shared::cos>(), c.want<&Shared::sin>(), c.want<&Shared::rope_dim>();
    axes != 0 ? c.want<&Shared::positions>() : c.drop<&Shared::positions>();
  } else {
    c.drop<&Shared::cos>(), c.drop<&Shared::sin>(), c.drop<&Shared::positions>();
    c.drop<&Shared::rope_dim>();
  }
  cache != bytes.rarely() ? c.want<&Shared::slots>() : c.drop<&Shared::slots>();
}

void HeadsFamily::numbers(const CallStruct& type, void* args, Bytes& bytes) const {
  if (!is_shared(type)) return;
  Shared& a = *static_cast<Shared*>(args);
  const auto half =
      std::min(static_cast<int32_t>(bytes.pick(9)), static_cast<int32_t>(columns / 2));
  if (a.cos != nullptr) a.rope_dim = 2 * half;
  if (bytes.rarely()) return;
  const bool several = axes > 1 && a.positions != nullptr;
  const bool three = axes > 2 && several;
  a.mrope_1 = several ? half / 4 : 0;
  a.mrope_2 = three ? half / 4 : 0;
  a.mrope_0 = several ? half - a.mrope_1 - a.mrope_2 : 0;
  a.mrope_3 = 0;
  const uint32_t byte = bytes.byte();
  a.flags = (axes == 3 && several && (byte & 1) != 0 ? FASTNORM_NORM_HEADS_MROPE_INTERLEAVED : 0) |
            ((byte & 2) != 0 ? FASTNORM_NORM_HEADS_NO_PDL : 0);
}

Extents HeadsFamily::extents(const CallStruct& type, const void* args, const Field*,
                             const Extents& in) const {
  Extents e = in;
  if (!is_shared(type)) return e;
  const Shared& a = *static_cast<const Shared*>(args);
  e.rope_dim = a.rope_dim;
  e.axes = 0;
  if (axes > 0 && a.positions == nullptr) e.axes = axes;
  e.cos = a.cos == nullptr ? std::vector<int64_t>() : shape_of(a.cos, {});
  e.cos_dtype = a.cos == nullptr ? 0 : id_of(a.cos->dtype);
  return e;
}

const char* HeadsFamily::fault(const CallStruct& type, const void* args, const Field*,
                               const Extents&) const {
  if (!is_shared(type)) return nullptr;
  const Shared& a = *static_cast<const Shared*>(args);
  constexpr uint32_t kKnown = FASTNORM_NORM_HEADS_MROPE_INTERLEAVED | FASTNORM_NORM_HEADS_NO_PDL;
  if ((a.flags & ~kKnown) != 0) return "flags that mean nothing yet";
  if ((a.flags & FASTNORM_NORM_HEADS_MROPE_INTERLEAVED) != 0 && a.cos != nullptr &&
      (a.positions == nullptr || a.positions->ndim != 2 || a.positions->shape[0] != 3))
    return "axes of pairs in turn that are not three";
  if (a.rope_dim < 0 || a.rope_dim % 2 != 0) return "half a pair of a rope";
  const bool several =
      a.positions != nullptr && a.positions->ndim == 2 && a.positions->shape[0] > 1;
  if (a.cos != nullptr && !several && (a.mrope_0 | a.mrope_1 | a.mrope_2 | a.mrope_3) != 0)
    return "sections of one axis";
  if (a.cos != nullptr && several &&
      int64_t{a.mrope_0} + a.mrope_1 + a.mrope_2 + a.mrope_3 != a.rope_dim / 2)
    return "sections of other columns";
  return nullptr;
}

}  // namespace fastnorm::fuzz
