#include "core/norm_heads_backward/check.h"

#include <algorithm>
#include <cinttypes>

#include "core/common/reciprocal.h"
#include "core/norm_backward/view.h"
#include "core/norm_heads/part_check.h"

namespace fastnorm {
namespace {

constexpr uint32_t kFlags = FASTNORM_NORM_HEADS_NORM | FASTNORM_NORM_HEADS_ROPE | kRopeFlags |
                            FASTNORM_NORM_HEADS_ACROSS_HEADS |
                            FASTNORM_NORM_HEADS_ACCUMULATE_DWEIGHT |
                            FASTNORM_NORM_HEADS_ACCUMULATE_DBIAS;

// One part's checks. What a norm's backward has, too, check_norm_backward_heads() looks at.
class PartCheck {
 public:
  PartCheck(const fastnorm_norm_heads_backward_part& part, CheckedDevice device,
            NormBackwardDesc* whole, Error& failure)
      : part_(part), device_(device), d_(*whole), error(failure) {}

  fastnorm_status run() {
    FASTNORM_TRY(flags());
    FASTNORM_TRY(outputs());
    FASTNORM_TRY(fields());
    FASTNORM_TRY(rows());
    FASTNORM_TRY(statistic("mean", part_.mean));
    FASTNORM_TRY(statistic("rstd", part_.rstd));
    return norm();
  }

 private:
  bool has(uint32_t flag) const { return (part_.flags & flag) != 0; }

  fastnorm_status flags() {
    FASTNORM_TRY(check_part_flags(part_.flags, kFlags, error));
    heads_.normalise = has(FASTNORM_NORM_HEADS_NORM);
    heads_.across_heads = has(FASTNORM_NORM_HEADS_ACROSS_HEADS);
    heads_.rope = has(FASTNORM_NORM_HEADS_ROPE);
    heads_.interleaved = has(FASTNORM_NORM_HEADS_ROPE_INTERLEAVED);
    heads_.inverse = has(FASTNORM_NORM_HEADS_ROPE_INVERSE);
    return FASTNORM_OK;
  }

  fastnorm_status outputs() {
    FASTNORM_REQUIRE(part_.dy != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "dy is NULL; required: a tensor [tokens, heads, d]");
    FASTNORM_REQUIRE(
        part_.dx != nullptr || part_.dweight != nullptr || part_.dbias != nullptr,
        FASTNORM_ERROR_ARGUMENT,
        "dx is NULL, dweight is NULL and dbias is NULL; required: at least one output");
    const struct {
      uint32_t flag;
      const char *flag_name, *name;
      const fastnorm_tensor* tensor;
    } sums[] = {{FASTNORM_NORM_HEADS_ACCUMULATE_DWEIGHT, "DWEIGHT (64)", "dweight", part_.dweight},
                {FASTNORM_NORM_HEADS_ACCUMULATE_DBIAS, "DBIAS (128)", "dbias", part_.dbias}};
    for (const auto& s : sums) {
      FASTNORM_REQUIRE(!has(s.flag) || s.tensor != nullptr, FASTNORM_ERROR_ARGUMENT,
                       "flags is 0x%x and %s is NULL; required: %s with "
                       "FASTNORM_NORM_HEADS_ACCUMULATE_%s",
                       part_.flags, s.name, s.name, s.flag_name);
    }
    return FASTNORM_OK;
  }

  fastnorm_status fields() {
    FASTNORM_REQUIRE(!heads_.normalise || part_.x != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "x is NULL and flags is 0x%x; required: a tensor [tokens, heads, d] with "
                     "FASTNORM_NORM_HEADS_NORM (1)",
                     part_.flags);
    FASTNORM_TRY(check_rules(part_, error));
    FASTNORM_TRY(check_rope_offset(part_.rope_offset, error));
    heads_.rope_offset = part_.rope_offset;
    return FASTNORM_OK;
  }

  // Ranks, and T.
  fastnorm_status rows() {
    FASTNORM_TRY(row_tensor("dy", *part_.dy, false));
    if (part_.x != nullptr) FASTNORM_TRY(row_tensor("x", *part_.x, true));
    if (part_.dx != nullptr) FASTNORM_TRY(row_tensor("dx", *part_.dx, true));
    const fastnorm_tensor& dy = *part_.dy;
    const NamedTensor weights[] = {
        {"weight", part_.weight}, {"dweight", part_.dweight}, {"dbias", part_.dbias}};
    FASTNORM_TRY(check_heads("dy", dy, heads_.across_heads, weights, error));
    const fastnorm_tensor& of_type = part_.x != nullptr ? *part_.x : *part_.dx;
    const Dtype type = dtype_from(of_type.dtype), gradient = dtype_from(dy.dtype);
    const char* const from = part_.x != nullptr ? "x" : "dx";
    FASTNORM_REQUIRE(gradient == type || gradient == Dtype::kF32, FASTNORM_ERROR_DTYPE,
                     "dy.dtype is %s; required: %s%s, as %s is %s", dtype_name(gradient),
                     dtype_name(type), type != Dtype::kF32 ? ", or f32" : "", from,
                     dtype_name(type));
    FASTNORM_REQUIRE(part_.dx == nullptr || dtype_from(part_.dx->dtype) == type,
                     FASTNORM_ERROR_DTYPE, "dx.dtype is %s; required: x's, %s",
                     dtype_text(part_.dx->dtype).c, dtype_name(type));
    heads_.heads = dy.shape[1];
    return FASTNORM_OK;
  }

  fastnorm_status row_tensor(const char* name, const fastnorm_tensor& t, bool last_contiguous) {
    const Dtype dtype = dtype_from(t.dtype);
    FASTNORM_TRY(check_row_dtype(name, t, error));
    FASTNORM_REQUIRE(t.ndim == 3, FASTNORM_ERROR_SHAPE,
                     "%s.ndim is %d; required: 3, [tokens, heads, d]", name, t.ndim);
    FASTNORM_TRY(check_tensor(name, t, {dtype, 3, last_contiguous}, device_, error));
    FASTNORM_REQUIRE(same_numbers(t.shape, part_.dy->shape, 3), FASTNORM_ERROR_SHAPE,
                     "%s.shape is %s; required: dy's, %s", name, shape_text(t.shape, 3).c,
                     shape_text(part_.dy->shape, 3).c);
    return FASTNORM_OK;
  }

  // [tokens, heads]; of all heads [tokens].
  fastnorm_status statistic(const char* name, const fastnorm_tensor* tensor) {
    if (tensor == nullptr) return FASTNORM_OK;
    const fastnorm_tensor& t = *tensor;
    const int32_t rank = heads_.across_heads ? 1 : 2;
    FASTNORM_TRY(check_typed(name, t, {Dtype::kF32, 3, false}, device_, error));
    FASTNORM_REQUIRE(t.ndim == rank && std::equal(t.shape, t.shape + rank, part_.dy->shape),
                     FASTNORM_ERROR_SHAPE, "%s.shape is %s; required: %s, as dy is %s%s", name,
                     shape_text(t.shape, t.ndim).c, shape_text(part_.dy->shape, rank).c,
                     shape_text(part_.dy->shape, 3).c,
                     heads_.across_heads ? " with ACROSS_HEADS" : "");
    return FASTNORM_OK;
  }

  // The rows as norm_backward's.
  fastnorm_status norm() {
    fastnorm_norm_backward_args a = {};
    a.struct_size = sizeof a;
    copy_number(a.kind, part_.kind);
    a.eps = part_.eps;
    a.weight_offset = part_.weight_offset;
    copy_number(a.rounding, part_.rounding);
    if (has(FASTNORM_NORM_HEADS_ACCUMULATE_DWEIGHT))
      a.flags |= FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT;
    if (has(FASTNORM_NORM_HEADS_ACCUMULATE_DBIAS))
      a.flags |= FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS;
    a.dy = part_.dy;
    a.x = heads_.normalise ? part_.x : part_.dx;
    a.weight = part_.weight;
    ForAllHeads mean, rstd;
    a.mean = heads_.across_heads ? mean.of(part_.mean, heads_.heads) : part_.mean;
    a.rstd = heads_.across_heads ? rstd.of(part_.rstd, heads_.heads) : part_.rstd;
    a.dx = part_.dx;
    a.dweight = part_.dweight;
    a.dbias = part_.dbias;
    FASTNORM_TRY(check_norm_backward_heads(a, heads_, device_, &d_, error));
    if (!heads_.normalise) {
      d_.x = {};
      d_.x.dtype = d_.dtype;
    }
    if (heads_.across_heads) d_.inv_n = reciprocal_of(heads_.heads * d_.n);
    return FASTNORM_OK;
  }

  // A statistic of [tokens] as one of [tokens, heads].
  struct ForAllHeads {
    const fastnorm_tensor* of(const fastnorm_tensor* t, int64_t heads) {
      if (t == nullptr) return nullptr;
      tensor = *t;
      shape[0] = t->shape[0];
      shape[1] = heads;
      strides[0] = t->strides != nullptr ? t->strides[0] : 1;
      strides[1] = 0;
      tensor.ndim = 2;
      tensor.shape = shape;
      tensor.strides = strides;
      return &tensor;
    }

    fastnorm_tensor tensor;
    int64_t shape[2], strides[2];
  };

  const fastnorm_norm_heads_backward_part& part_;
  const CheckedDevice device_;
  NormBackwardDesc& d_;
  NormBackwardHeads heads_;
  Error& error;
};

fastnorm_status check_parts(const fastnorm_norm_heads_backward_part* const* parts, int32_t count,
                            CheckedDevice device, NormHeadsBackwardDesc* desc, Error& error) {
  const auto check = [&](int32_t i, const fastnorm_norm_heads_backward_part& part) {
    FASTNORM_TRY(PartCheck(part, device, &desc->wholes[i], error).run());
    const fastnorm_tensor& dy = *part.dy;
    if (i == 0) desc->tokens = dy.shape[0];
    FASTNORM_REQUIRE(dy.shape[0] == desc->tokens, FASTNORM_ERROR_SHAPE,
                     "dy.shape is %s; required: the %" PRId64 " tokens of parts[0].dy",
                     shape_text(dy.shape, 3).c, desc->tokens);
    const Dtype type = desc->wholes[i].dtype, first = desc->wholes[0].dtype;
    FASTNORM_REQUIRE(type == first, FASTNORM_ERROR_DTYPE,
                     "%s.dtype is %s; required: %s, as in parts[0]", part.x != nullptr ? "x" : "dx",
                     dtype_name(type), dtype_name(first));
    return FASTNORM_OK;
  };
  FASTNORM_TRY(for_each_part_struct(kPartsNames, parts, count, error, check));
  desc->count = count;
  return FASTNORM_OK;
}

// The tables and positions, as the forward's check sees them.
fastnorm_status check_tables(const fastnorm_norm_heads_args& args, CheckedDevice device,
                             NormHeadsBackwardDesc* desc, Error& error) {
  NormHeadsDesc forward;
  forward.tokens = desc->tokens;
  forward.count = desc->count;
  if (desc->count != 0) forward.dtype = desc->wholes[0].dtype;
  for (int32_t i = 0; i < desc->count; ++i) {
    const NormBackwardHeads& h = desc->wholes[i].of_heads;
    NormHeadsPart& part = forward.parts[i];
    part.norm.n = desc->wholes[i].n;
    part.heads = h.heads;
    part.rope = h.rope;
    part.rope_offset = h.rope_offset;
  }
  fastnorm_norm_heads_args without_slots = args;
  without_slots.slots = nullptr;
  FASTNORM_TRY(check_norm_heads_shared(without_slots, device, &forward, error));
  for (int32_t i = 0; i < desc->count; ++i) {
    NormBackwardHeads& h = desc->wholes[i].of_heads;
    desc->wholes[i].flags |= forward.pdl;  // NO_PDL has the same number
    if (!h.rope) continue;
    h.rope_offset = forward.parts[i].rope_offset;
    h.tables = forward;
  }
  return FASTNORM_OK;
}

// No output shares a byte with what all parts read.
fastnorm_status check_overlap(const NormHeadsBackwardDesc& desc, const char* name,
                              const fastnorm_tensor* tensor, Error& error) {
  View shared;
  if (tensor == nullptr || !shared_view(name, *tensor, &shared)) return FASTNORM_OK;
  FASTNORM_TRY(set_range(&shared, error));
  for (int32_t i = 0; i < desc.count; ++i) {
    const NormBackwardDesc& d = desc.wholes[i];
    fastnorm_status status = FASTNORM_OK;
    for_each_backward_tensor(d, [&](auto of, const auto& t) {
      if (!decltype(of)::kOutput || !t) return true;
      View out = view_of(d, of, t);
      out.part = i;
      status = set_range(&out, error);
      if (status == FASTNORM_OK) status = check_overlap(out, shared, error);
      return status == FASTNORM_OK;
    });
    FASTNORM_TRY(status);
  }
  return FASTNORM_OK;
}

}  // namespace

fastnorm_status check_norm_heads_backward(const fastnorm_norm_heads_args* args,
                                          const fastnorm_norm_heads_backward_part* const* parts,
                                          int32_t count, CheckedDevice device,
                                          NormHeadsBackwardDesc* desc, Error& error) {
  fastnorm_norm_heads_args local;
  const fastnorm_norm_heads_args* ours = nullptr;
  FASTNORM_TRY(accept_call(args, "args", &local, &ours, error));
  FASTNORM_TRY(check_part_list(kPartsNames, parts, count, error));
  *desc = {};
  FASTNORM_TRY(check_parts(parts, count, device, desc, error));
  for (NormBackwardDesc& whole : desc->wholes) whole.parallel_user = ours->parallel_user;
  FASTNORM_TRY(check_tables(*ours, device, desc, error));
  FASTNORM_TRY(
      check_norm_backward_many({desc->wholes, static_cast<size_t>(count)}, "parts", error));
  FASTNORM_TRY(check_overlap(*desc, "cos", ours->cos, error));
  FASTNORM_TRY(check_overlap(*desc, "sin", ours->sin, error));
  return check_overlap(*desc, "positions", ours->positions, error);
}

}  // namespace fastnorm
