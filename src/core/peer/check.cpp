#include "core/peer/check.h"

#include <cinttypes>

#include "core/common/shared_fields.h"
#include "core/peer/layout.h"
#include "core/peer/norm_fields.h"

namespace fastnorm {
namespace {

constexpr int64_t kLeastWait = 1000, kMostWait = 1000000000000, kDefaultWait = 10000000000;
constexpr int32_t kDefaultCpuRings = 8;
constexpr int64_t kMostHeadColumns = 8192;

// The field as a dtype: its number may be any.
Dtype dtype_of(const fastnorm_dtype_id& field) {
  const auto id = static_cast<uint32_t>(number(field));
  return dtype_from(
      {static_cast<uint8_t>(id), static_cast<uint8_t>(id >> 8), static_cast<uint16_t>(id >> 16)});
}

class ShardedCheck {
 public:
  ShardedCheck(const fastnorm_peer_sharded_norm_args& args, CheckedDevice device,
               const PeerDesc& desc, PeerSharded* sharded, Error& failure)
      : args_(args), device_(device), peer_(desc), s_(*sharded), error(failure) {}

  fastnorm_status run() {
    FASTNORM_TRY(scalars());
    FASTNORM_TRY(part({"x", "weight", "bias", "y"}, args_.x, args_.weight, args_.bias, args_.y, 0));
    s_.count = 1;
    if (args_.x2 == nullptr) return FASTNORM_OK;
    FASTNORM_TRY(
        part({"x2", "weight2", "bias2", "y2"}, args_.x2, args_.weight2, args_.bias2, args_.y2, 1));
    s_.count = 2;
    return FASTNORM_OK;
  }

 private:
  struct Names {
    const char *x, *weight, *bias, *y;
  };

  fastnorm_status scalars() {
    const int32_t rounding = number(args_.rounding);
    FASTNORM_TRY(check_norm_scalars(args_, error));
    FASTNORM_REQUIRE(rounding == FASTNORM_ROUND_ONCE || rounding == FASTNORM_ROUND_NORMALIZED,
                     FASTNORM_ERROR_ARGUMENT,
                     "rounding is %d; required: FASTNORM_ROUND_ONCE (0) or "
                     "FASTNORM_ROUND_NORMALIZED (1), as statistics of several ranks are f32",
                     rounding);
    FASTNORM_TRY(check_peer_flags(args_.flags, error));
    FASTNORM_REQUIRE((args_.flags & FASTNORM_NORM_PDL_CONSTANT_WEIGHTS) == 0 ||
                         (args_.flags & FASTNORM_NORM_PDL_WAIT) != 0,
                     FASTNORM_ERROR_ARGUMENT,
                     "flags is 0x%x; required: FASTNORM_NORM_PDL_WAIT (1) with "
                     "FASTNORM_NORM_PDL_CONSTANT_WEIGHTS (4)",
                     args_.flags);
    FASTNORM_TRY(check_reserved("reserved", args_.reserved, error));
    FASTNORM_REQUIRE(args_.x != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "x is NULL; required: a tensor [tokens, n] or [tokens, heads, d]");
    return check_rules(args_, error);
  }

  fastnorm_status part(const Names& names, const fastnorm_tensor* x, const fastnorm_tensor* weight,
                       const fastnorm_tensor* bias, const fastnorm_tensor* y, int32_t index) {
    FASTNORM_REQUIRE(y != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "%s is NULL; required: a tensor of the shape and dtype of %s", names.y,
                     names.x);
    FASTNORM_REQUIRE(weight != nullptr || args_.weight_offset == 0, FASTNORM_ERROR_ARGUMENT,
                     "weight_offset is %g and %s is NULL; required: 0 without a weight",
                     static_cast<double>(args_.weight_offset), names.weight);
    FASTNORM_TRY(rows(names, *x, index));
    FASTNORM_TRY(output(names, *x, *y));
    if (weight != nullptr) FASTNORM_TRY(columns(names.weight, *weight, index));
    if (bias != nullptr) FASTNORM_TRY(columns(names.bias, *bias, index));
    return FASTNORM_OK;
  }

  fastnorm_status rank_of(const char* name, const fastnorm_tensor& t) {
    FASTNORM_TRY(check_row_dtype(name, t, error));
    FASTNORM_TRY(check_tensor(name, t, {dtype_from(t.dtype), 3, true}, device_, error));
    FASTNORM_REQUIRE(t.ndim >= 2, FASTNORM_ERROR_SHAPE, "%s.ndim is %d; required: 2 or 3", name,
                     t.ndim);
    return FASTNORM_OK;
  }

  fastnorm_status rows(const Names& names, const fastnorm_tensor& x, int32_t index) {
    FASTNORM_TRY(rank_of(names.x, x));
    const int64_t columns = x.shape[x.ndim - 1], heads = x.ndim == 3 ? x.shape[1] : 1;
    FASTNORM_REQUIRE(columns >= 1 && heads >= 1, FASTNORM_ERROR_SHAPE,
                     "%s.shape is %s; required: at least one head and column", names.x,
                     shape_text(x.shape, x.ndim).c);
    FASTNORM_REQUIRE(columns <= kMostHeadColumns, FASTNORM_ERROR_UNSUPPORTED,
                     "%s.shape is %s; required: rows of at most %" PRId64
                     " columns; nearest: the same memory as [tokens, heads, d]",
                     names.x, shape_text(x.shape, x.ndim).c, kMostHeadColumns);
    FASTNORM_REQUIRE(x.shape[0] <= kMostPeerRows, FASTNORM_ERROR_SHAPE,
                     "%s.shape is %s; required: at most %" PRId64 " tokens", names.x,
                     shape_text(x.shape, x.ndim).c, kMostPeerRows);
    FASTNORM_REQUIRE(heads <= INT32_MAX / columns / peer_.ranks, FASTNORM_ERROR_SHAPE,
                     "%s.shape is %s; required: fewer than 2^31 columns of all %d ranks", names.x,
                     shape_text(x.shape, x.ndim).c, peer_.ranks);
    if (index == 0) {
      s_.tokens = x.shape[0];
    } else {
      FASTNORM_REQUIRE(x.shape[0] == s_.tokens, FASTNORM_ERROR_SHAPE,
                       "%s.shape is %s; required: the %" PRId64 " tokens of x", names.x,
                       shape_text(x.shape, x.ndim).c, s_.tokens);
      FASTNORM_REQUIRE(dtype_from(x.dtype) == dtype_from(args_.x->dtype), FASTNORM_ERROR_DTYPE,
                       "%s.dtype is %s; required: %s, as x", names.x, dtype_text(x.dtype).c,
                       dtype_text(args_.x->dtype).c);
    }
    s_.parts[index] = {heads, columns};
    return FASTNORM_OK;
  }

  fastnorm_status output(const Names& names, const fastnorm_tensor& x, const fastnorm_tensor& y) {
    FASTNORM_TRY(rank_of(names.y, y));
    FASTNORM_REQUIRE(dtype_from(y.dtype) == dtype_from(x.dtype), FASTNORM_ERROR_DTYPE,
                     "%s.dtype is %s; required: %s, as %s", names.y, dtype_text(y.dtype).c,
                     dtype_text(x.dtype).c, names.x);
    FASTNORM_REQUIRE(y.ndim == x.ndim && same_numbers(y.shape, x.shape, x.ndim),
                     FASTNORM_ERROR_SHAPE, "%s.shape is %s; required: %s, as %s", names.y,
                     shape_text(y.shape, y.ndim).c, shape_text(x.shape, x.ndim).c, names.x);
    return FASTNORM_OK;
  }

  fastnorm_status columns(const char* name, const fastnorm_tensor& t, int32_t index) {
    const PeerPart& p = s_.parts[index];
    FASTNORM_TRY(check_row_dtype(name, t, error));
    FASTNORM_TRY(check_tensor(name, t, {dtype_from(t.dtype), 2, true}, device_, error));
    const bool fits = t.shape[t.ndim - 1] == p.columns &&
                      (t.ndim == 1 || t.shape[0] == 1 || t.shape[0] == p.heads);
    FASTNORM_REQUIRE(fits, FASTNORM_ERROR_SHAPE,
                     "%s.shape is %s; required: [%" PRId64 "] or [%" PRId64 ", %" PRId64 "]", name,
                     shape_text(t.shape, t.ndim).c, p.columns, p.heads, p.columns);
    return FASTNORM_OK;
  }

  const fastnorm_peer_sharded_norm_args& args_;
  const CheckedDevice device_;
  const PeerDesc& peer_;
  PeerSharded& s_;
  Error& error;
};

}  // namespace

fastnorm_status check_peer_options(const fastnorm_peer_options* options, int32_t device_type,
                                   PeerDesc* desc, Error& error) {
  fastnorm_peer_options local;
  const fastnorm_peer_options* ours = nullptr;
  FASTNORM_TRY(accept_struct(options, kFirstPeerOptions, "options", &local, &ours, error));
  const fastnorm_peer_options& o = *ours;
  const int32_t algorithm = number(o.algorithm);
  const Dtype dtype = dtype_of(o.dtype);
  FASTNORM_REQUIRE(o.ranks >= 2 && o.ranks <= kMaxRanks, FASTNORM_ERROR_ARGUMENT,
                   "options.ranks is %d; required: 2 to %d", o.ranks, kMaxRanks);
  FASTNORM_REQUIRE(o.rank >= 0 && o.rank < o.ranks, FASTNORM_ERROR_ARGUMENT,
                   "options.rank is %d; required: 0 to %d", o.rank, o.ranks - 1);
  FASTNORM_REQUIRE(is_row_dtype(dtype), FASTNORM_ERROR_DTYPE,
                   "options.dtype is 0x%08x; required: FASTNORM_DTYPE_F32, F16 or BF16",
                   static_cast<uint32_t>(number(o.dtype)));
  FASTNORM_TRY(check_value<fastnorm_peer_algorithm>("options.algorithm", algorithm, error));
  FASTNORM_REQUIRE(o.max_columns >= 1 && o.max_columns <= kMostPeerColumns, FASTNORM_ERROR_ARGUMENT,
                   "options.max_columns is %" PRId64 "; required: 1 to %" PRId64, o.max_columns,
                   kMostPeerColumns);
  FASTNORM_REQUIRE(o.one_shot_bytes >= 0, FASTNORM_ERROR_ARGUMENT,
                   "options.one_shot_bytes is %" PRId64 "; required: >= 0", o.one_shot_bytes);
  FASTNORM_REQUIRE(o.wait_ns == 0 || (o.wait_ns >= kLeastWait && o.wait_ns <= kMostWait),
                   FASTNORM_ERROR_ARGUMENT,
                   "options.wait_ns is %" PRId64 "; required: 0, or %" PRId64 " to %" PRId64,
                   o.wait_ns, kLeastWait, kMostWait);
  FASTNORM_REQUIRE(o.rings >= 0 && o.rings <= kMostPeerRings, FASTNORM_ERROR_ARGUMENT,
                   "options.rings is %d; required: 0 to %d", o.rings, kMostPeerRings);
  FASTNORM_TRY(check_reserved("options.reserved", o.reserved, error));
  desc->rank = o.rank;
  desc->ranks = o.ranks;
  desc->dtype = dtype;
  desc->algorithm = static_cast<fastnorm_peer_algorithm>(algorithm);
  desc->max_columns = o.max_columns;
  desc->one_shot_bytes = o.one_shot_bytes;
  desc->wait_ns = o.wait_ns == 0 ? kDefaultWait : o.wait_ns;
  desc->rings = o.rings != 0                          ? o.rings
                : device_type == FASTNORM_DEVICE_CUDA ? default_cuda_rings(o.ranks)
                                                      : kDefaultCpuRings;
  return FASTNORM_OK;
}

fastnorm_status check_peer_buffers(const PeerDesc& desc, void* const* buffers, int32_t count,
                                   Error& error) {
  FASTNORM_REQUIRE(count == desc.ranks, FASTNORM_ERROR_ARGUMENT,
                   "count is %d; required: options.ranks, %d", count, desc.ranks);
  FASTNORM_REQUIRE(buffers != nullptr, FASTNORM_ERROR_ARGUMENT,
                   "buffers is NULL; required: %d addresses", count);
  const uint64_t bytes = peer_layout(desc).bytes();
  for (int32_t i = 0; i < count; ++i) {
    const auto address = reinterpret_cast<uintptr_t>(buffers[i]);
    FASTNORM_REQUIRE(buffers[i] != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "buffers[%d] is NULL; required: an address", i);
    FASTNORM_REQUIRE(address % 256 == 0, FASTNORM_ERROR_LAYOUT,
                     "buffers[%d] is %p; required: a 256-byte aligned address", i, buffers[i]);
    for (int32_t j = 0; j < i; ++j) {
      const auto other = reinterpret_cast<uintptr_t>(buffers[j]);
      const uintptr_t apart = address > other ? address - other : other - address;
      FASTNORM_REQUIRE(apart >= bytes, FASTNORM_ERROR_LAYOUT,
                       "buffers[%d] is %p and buffers[%d] %p; required: at least %" PRIu64
                       " bytes between them",
                       j, buffers[j], i, buffers[i], bytes);
    }
  }
  return FASTNORM_OK;
}

fastnorm_status check_peer_flags(uint32_t flags, Error& error) {
  constexpr uint32_t kFlags = FASTNORM_NORM_PDL_WAIT | FASTNORM_NORM_PDL_TRIGGER |
                              FASTNORM_NORM_PDL_CONSTANT_WEIGHTS | FASTNORM_NORM_NO_PDL;
  return check_flags("flags", flags, kFlags, error);
}

fastnorm_status check_peer_norm_fields(const fastnorm_norm_args& norm, Error& error) {
  const char* const field = not_of_allreduce(norm);
  FASTNORM_REQUIRE(
      field == nullptr, FASTNORM_ERROR_UNSUPPORTED,
      "%s is given, which an all-reduce does not have; nearest: 0 or NULL, and another "
      "call for it",
      field);
  return FASTNORM_OK;
}

fastnorm_status check_peer_allreduce_norm(const fastnorm_peer_allreduce_norm_args& args,
                                          const NormDesc& norm, const PeerDesc& desc,
                                          Error& error) {
  FASTNORM_TRY(check_enum<&fastnorm_peer_allreduce_norm_args::sum_rounding>(args, error));
  FASTNORM_TRY(check_reserved("reserved", args.reserved, error));
  FASTNORM_REQUIRE(norm.quant.rotation == 0, FASTNORM_ERROR_UNSUPPORTED,
                   "norm.quant.rotation is %d, which an all-reduce does not have; nearest: 0, and "
                   "another call for it",
                   norm.quant.rotation);
  const fastnorm_tensor& x = *args.norm->x;
  FASTNORM_REQUIRE(norm.dtype == desc.dtype, FASTNORM_ERROR_DTYPE,
                   "norm.x.dtype is %s; required: %s, the peer's options.dtype",
                   dtype_name(norm.dtype), dtype_name(desc.dtype));
  FASTNORM_REQUIRE(norm.n <= desc.max_columns, FASTNORM_ERROR_SHAPE,
                   "norm.x.shape is %s; required: rows of at most %" PRId64
                   " columns, the peer's options.max_columns",
                   shape_text(x.shape, x.ndim).c, desc.max_columns);
  FASTNORM_REQUIRE(norm.rows <= kMostPeerRows, FASTNORM_ERROR_SHAPE,
                   "norm.x.shape is %s; required: at most %" PRId64 " rows",
                   shape_text(x.shape, x.ndim).c, kMostPeerRows);
  return FASTNORM_OK;
}

fastnorm_status check_peer_sharded_norm(const fastnorm_peer_sharded_norm_args& args,
                                        CheckedDevice device, const PeerDesc& desc,
                                        PeerSharded* sharded, Error& error) {
  return ShardedCheck(args, device, desc, sharded, error).run();
}

}  // namespace fastnorm
