#include "norm_family.h"

#include <cmath>
#include <iterator>

#include "core/common/quant_scheme.h"
#include "memory.h"

namespace fastnorm::fuzz {

using Norm = fastnorm_norm_args;
using Quant = fastnorm_quant;
using schema::Shape;

namespace {

bool is_quant(const CallStruct& type) {
  static const CallStruct& quant = type_of("fastnorm_quant");
  return &type == &quant;
}

}  // namespace

void choose_quant(Choice* choice, Bytes& bytes) {
  if (bytes.pick(4) != 0 && !choice->has<&Quant::scheme>()) {
    choice->want<&Quant::scheme>();
    choice->value<&Quant::scheme>() =
        1 + bytes.pick(static_cast<uint32_t>(std::size(kQuantSchemes)) - 1);
  }
  // The pair that is never needed by what is drawn.
  if (choice->has<&Quant::scheme>() && choice->value<&Quant::scheme>() == FASTNORM_QUANT_PER_BLOCK)
    choice->want<&Quant::block_size>();
  if (choice->has<&Quant::clamp_scale>() && !bytes.rarely()) choice->drop<&Quant::clamp>();
  // Tiles are of bytes.
  const uint32_t scheme = choice->value<&Quant::scheme>();
  if (scheme == FASTNORM_QUANT_PER_BLOCK &&
      choice->value<&Quant::scale_layout>() == FASTNORM_SCALE_SWIZZLED_128X4) {
    choice->want<&Quant::scale_pow2>();
    choice->value<&Quant::scale_pow2>() = 1;
  }
}

void quant_numbers(Quant* q, Bytes& bytes) {
  if (q->rotation != 0 && !bytes.rarely()) q->rotation = 16 << bytes.pick(4);
  if (q->block_size != 0 || number(q->scheme) == FASTNORM_QUANT_PER_BLOCK)
    q->block_size = (bytes.byte() & 1) != 0 ? 128 : 64;
}

const char* quant_fault(const Quant& q, const Extents& e) {
  const int32_t block = q.rotation;
  if (block != 0) {
    if (block != 16 && block != 32 && block != 64 && block != 128)
      return "a rotation that does not exist";
    if (block_of(q) % block != 0) return "a rotation of several blocks of codes";
    if (!e.x.empty() && e.x.back() % block != 0) return "a rotation that does not divide a row";
  }
  const uint32_t scheme = number(q.scheme);
  const bool blocks = scheme == FASTNORM_QUANT_PER_BLOCK;
  if (blocks ? q.block_size != 64 && q.block_size != 128 : q.block_size != 0)
    return "a block size that does not exist";
  const float low = std::ldexp(1.0f, -100), high = std::ldexp(1.0f, 100);
  if (q.amax_floor != 0 && !(q.amax_floor >= low && q.amax_floor <= high))
    return "amax_floor out of range";
  return q.clamp < 0 ? "a negative clamp" : nullptr;
}

void NormFamily::choose(Choice* choice, Bytes& bytes) const {
  if (is_quant(choice->type)) return choose_quant(choice, bytes);
  Choice& c = *choice;
  if (!bytes.rarely()) c.drop<&Norm::flags>();
  if (bytes.pick(8) != 7) c.want<&Norm::y>();
  if (c.has<&Norm::alpha>()) {
    c.want<&Norm::flags>();
    c.value<&Norm::flags>() |= FASTNORM_NORM_ALPHA;
  }
  // All statistics are given or computed; those of LAYER are two.
  if (c.has<&Norm::rstd_in>() && !bytes.rarely()) {
    c.drop<&Norm::mean>();
    c.drop<&Norm::rstd>();
    c.drop<&Norm::sumsq>();
    if (c.value<&Norm::kind>() == FASTNORM_NORM_LAYER) c.want<&Norm::mean_in>();
  }
}

void NormFamily::numbers(const CallStruct& type, void* args, Bytes& bytes) const {
  if (is_quant(type)) return quant_numbers(static_cast<Quant*>(args), bytes);
  auto& a = *static_cast<Norm*>(args);
  if (a.group_size != 0) a.group_size = int64_t{1} << bytes.pick(8);
  if (bytes.rarely()) return;
  if ((a.flags & FASTNORM_NORM_PDL_WAIT) == 0) a.flags &= ~FASTNORM_NORM_PDL_CONSTANT_WEIGHTS;
  if (a.modulation_scale == nullptr) a.flags &= ~FASTNORM_NORM_MODULATION_PLAIN_SCALE;
  a.flags &= schema::kAllFlags<fastnorm_norm_flags>;
}

Extents NormFamily::extents(const CallStruct& type, const void* args, const Field*,
                            const Extents& in) const {
  Extents e = in;
  if (is_quant(type)) {
    e.quant = static_cast<const Quant*>(args);
    return e;
  }
  const auto& a = *static_cast<const Norm*>(args);
  e.x = shape_of(a.x, in.x.empty() ? std::vector<int64_t>{1} : in.x);
  if (a.x != nullptr) e.dtype = id_of(a.x->dtype);
  e.group = a.group_size;
  e.pairs = number(a.kind) == FASTNORM_NORM_LAYER;
  e.indexed = a.modulation_index != nullptr;
  return e;
}

const char* NormFamily::fault(const CallStruct& type, const void* args, const Field*,
                              const Extents& e) const {
  if (is_quant(type)) return quant_fault(*static_cast<const Quant*>(args), e);
  const auto& a = *static_cast<const Norm*>(args);
  const bool codes = a.quant != nullptr && a.quant->quantized != nullptr;
  if (a.y == nullptr && !codes && a.sumsq == nullptr) return "no output";
  if (a.quant != nullptr && a.quant->amax != nullptr && a.y == nullptr && !codes)
    return "an amax of nothing";
  if (a.eps < 0 || a.branch_eps < 0) return "a negative eps";
  if ((a.flags & ~schema::kAllFlags<fastnorm_norm_flags>) != 0)
    return "flags that mean nothing yet";
  if ((a.flags & 5) == 4) return "constant weights without a wait";
  if ((a.flags & FASTNORM_NORM_MODULATION_PLAIN_SCALE) != 0 && a.modulation_scale == nullptr)
    return "a plain scale that is absent";
  if (number(a.kind) == FASTNORM_NORM_LAYER && (a.mean_in == nullptr) != (a.rstd_in == nullptr))
    return "half a statistic";
  const int64_t n = e.x.back();
  if (n < 1 || n > int64_t{1} << 32) return "rows of no columns, or of too many";
  if (a.group_size < 0 || (a.group_size > 0 && n % a.group_size != 0))
    return "groups that do not divide a row";
  return nullptr;
}

const char* layout_fault(const CallStruct& type, const void* args) {
  for (const Field& field : type.fields) {
    if (field.kind == schema::Kind::kStruct && is_given(args, field)) {
      const void* const child = load<const void*>(args, field);
      if (const char* fault = layout_fault(*field.type, child)) return fault;
    }
    if (!is_tensor(field) || !is_given(args, field)) continue;
    const fastnorm_tensor& t = *tensor_of(args, field);
    const int32_t last = t.ndim - 1;
    const bool rows = field.shape == Shape::kX || field.shape == Shape::kWeight ||
                      field.shape == Shape::kGroupWeight || field.shape == Shape::kCodes;
    if (elements_of(t) == 0) continue;
    if (rows && t.shape[last] > 1 && stride_of(t, last) != 1) return "a last dimension with gaps";
    if (field.shape != Shape::kCodes || id_of(t.dtype) != FASTNORM_DTYPE_F4_E2M1FN) continue;
    for (int32_t d = 0; d < last; ++d) {
      if (t.shape[d] > 1 && stride_of(t, d) % 2 != 0) return "a row that begins inside a byte";
    }
  }
  return nullptr;
}

}  // namespace fastnorm::fuzz
