#include "core/norm/plan.h"

#include <algorithm>
#include <bit>
#include <cinttypes>

#include "core/common/check.h"
#include "core/common/grain.h"
#include "core/norm/index.h"
#include "core/norm/loads.h"
#include "core/norm/stages.h"
#include "core/norm/tensors.h"
#include "core/norm/tuning.h"

namespace fastnorm {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Division by a power of two with a shift: a call has several.
int64_t divide_up_pow2(int64_t a, int64_t b) {
  return (a + b - 1) >> std::countr_zero(static_cast<uint64_t>(b));
}

FASTNORM_HOT int64_t row_vectors(const NormDesc& d) {
  return divide_up_pow2(d.n * dtype_bytes(d.dtype), 16);
}

// The greatest power of two up to `limit` that divides everything in `bits`; at least 1.
int32_t widest_access(uint64_t bits, int32_t limit) {
  bits |= static_cast<uint64_t>(limit);
  return static_cast<int32_t>(bits & (~bits + 1));
}

// True if weight and bias can be read 16 bytes at a time.
bool weights_aligned(const NormDesc& d) {
  uint64_t bits = 0;
  for (const WeightTensor& c : {d.weight, d.bias})
    bits |= reinterpret_cast<uintptr_t>(c.data) | static_cast<uint64_t>(c.head_stride_bytes);
  return widest_access(bits, 16) == 16;
}

// Totals over all tensors of a call.
struct Totals {
  // All numbers that limit the access width of rows, weight and bias (addresses, strides, lengths
  // in bytes), combined by or.
  uint64_t alignment = 0;
  // Distinct bytes: a broadcast dimension is read once.
  uint64_t bytes_read = 0, bytes_written = 0;
};

// Unsigned, since products may overflow: rows that overlap count more bytes than memory has.
FASTNORM_HOT Totals totals_of(const NormDesc& d) {
  using schema::Of;
  using schema::Role;
  Totals sum;
  uint64_t any = 0;
  const auto rows = [&](const RowTensor& t, int64_t columns, uint64_t* alignment)
      __attribute__((always_inline)) {
    if (!t) return uint64_t{0};
    auto bytes = static_cast<uint64_t>(columns * dtype_bytes(t.dtype));
    *alignment |= reinterpret_cast<uintptr_t>(t.data) | bytes;
    for (int i = 0; i < d.outer_rank; ++i) {
      *alignment |= static_cast<uint64_t>(t.stride_bytes[i]);
      if (t.stride_bytes[i] != 0) bytes *= static_cast<uint64_t>(d.outer[i]);
    }
    return bytes;
  };
  const auto bytes_of = [&](auto of, const auto& t) __attribute__((always_inline)) {
    using O = decltype(of);
    using Tensor = std::remove_cvref_t<decltype(t)>;
    if constexpr (std::is_same_v<Tensor, WeightTensor>) {
      if (!t) return uint64_t{0};
      auto bytes = static_cast<uint64_t>(columns_of(d, of) * dtype_bytes(t.dtype));
      sum.alignment |= reinterpret_cast<uintptr_t>(t.data);
      for (int i = 0; i < d.outer_rank; ++i) {
        const int64_t stride = t.stride_bytes(i);
        sum.alignment |= static_cast<uint64_t>(stride);
        if (stride != 0) bytes *= static_cast<uint64_t>(d.outer[i]);
      }
      return bytes;
    } else if constexpr (std::is_same_v<Tensor, Modulator>) {
      if (!t) return uint64_t{0};
      const int64_t taken = std::min(t.index_rows, d.rows);  // 0 without an index
      return rows(t.rows, t.columns(d.n), &any) *
             static_cast<uint64_t>(std::max<int64_t>(taken, 1));
    } else if constexpr (std::is_same_v<Tensor, RowTensor>) {
      if (O::kRole == Role::kScales && d.quant.swizzled)
        return static_cast<uint64_t>(d.quant.swizzled_bytes(d.rows, d.n));
      // The others are not accessed by vectors; for codes see codes_aligned().
      constexpr bool kVectors = (O::kRole == Role::kRowsIn || O::kRole == Role::kRowsOut) &&
                                !std::is_same_v<O, Of<&fastnorm_norm_args::gate>>;
      return rows(t, columns_of(d, of), kVectors ? &sum.alignment : &any);
    } else {
      return uint64_t{0};  // a scalar
    }
  };
  for_each_tensor(
      d, [&](auto of, const auto& t) __attribute__((always_inline)) {
        (decltype(of)::kOutput ? sum.bytes_written : sum.bytes_read) += bytes_of(of, t);
        return true;
      });
  return sum;
}

uint64_t alignment_bits(const NormDesc& d) { return totals_of(d).alignment; }

fastnorm_status plan_cpu(const NormDesc& d, const DeviceFacts& facts, NormPlan* plan) {
  const int64_t grain = std::clamp<int64_t>(divide_up(kNormGrain, d.n), 1, INT32_MAX);
  plan->rows_per_block = static_cast<int32_t>(grain);
  const int64_t ranges = std::min<int64_t>(divide_up(d.rows, grain), facts.threads);
  plan->blocks = static_cast<uint64_t>(ranges);
  // Streaming stores help from 1.5 L2 of output per thread on. With 2 MiB of L2 and 2 MiB of output
  // the time is 0.76 of the time with normal stores.
  plan->non_temporal = plan->bytes_written / static_cast<uint64_t>(ranges) >=
                       static_cast<uint64_t>(facts.l2_bytes) * 3 / 2;
  return FASTNORM_OK;
}

// Calls with stages have their own kernels.
[[gnu::noinline]] fastnorm_status plan_stages(const NormDesc& d, const DeviceFacts& facts,
                                              NormPlan* plan, Error& error) {
  if (facts.device_type == FASTNORM_DEVICE_CUDA) return plan_stages_cuda(d, facts, plan, error);
  plan->index = stages_kernel(d.dtype, d.kind == FASTNORM_NORM_LAYER ? Stat::kLayer : Stat::kRms);
  plan->entry = &kStagesTable[static_cast<size_t>(plan->index)];
  return plan_cpu(d, facts, plan);
}

// True if a call uses streaming loads, by loads.h for one row per block.
FASTNORM_HOT bool streams_loads(const NormDesc& d, const NormPlan& plan) {
  if (d.kind != FASTNORM_NORM_RMS) return false;
  return streams(kStreamingRows, bool{d.residual}, d.quant.any(), d.rows,
                 plan.bytes_read + plan.bytes_written);
}

// Whether a lean kernel with several rows per block uses streaming loads.
FASTNORM_HOT bool streams_short_loads(const NormDesc& d, NormKey key, const NormPlan& plan) {
  if (d.kind != FASTNORM_NORM_RMS || d.outer_rank > 1 || key.sink != Sink::kStore) return false;
  return streams(kStreamingShortRows, bool{d.residual}, false, d.rows,
                 plan.bytes_read + plan.bytes_written);
}

FASTNORM_HOT fastnorm_status fits_grid(const NormDesc& d, uint64_t blocks, const ArchSpec& arch,
                                       Error& error) {
  constexpr int64_t kMaxRows = int64_t{0xffffff00};  // row numbers are 32 bits wide on the device
  FASTNORM_REQUIRE(d.rows <= kMaxRows, FASTNORM_ERROR_UNSUPPORTED,
                   "x has %" PRId64 " rows; a call takes %" PRId64
                   "; nearest: a call for each part of the rows",
                   d.rows, kMaxRows);
  FASTNORM_REQUIRE(blocks <= arch.max_blocks, FASTNORM_ERROR_UNSUPPORTED,
                   "x has %" PRId64 " rows, which take %" PRIu64
                   " thread blocks; a grid holds %" PRIu64
                   "; nearest: a call for each part of the rows",
                   d.rows, blocks, arch.max_blocks);
  return FASTNORM_OK;
}

// The part of a CUDA plan that follows from the kernel.
FASTNORM_HOT fastnorm_status plan_cuda(const NormDesc& d, const DeviceFacts& facts,
                                       const NormEntry& entry, NormPlan* plan, Error& error) {
  const NormKey key = entry.key;
  const Tile tile = entry.tile;
  const ArchSpec& arch = *facts.arch;
  const int32_t per_block = rows_per_block(tile);
  plan->rows_per_block = per_block;
  plan->blocks = static_cast<uint64_t>(divide_up_pow2(d.rows, plan->rows_per_block)) *
                 static_cast<uint64_t>(tile.blocks);
  FASTNORM_TRY(fits_grid(d, plan->blocks, arch, error));
  const bool layer = d.kind == FASTNORM_NORM_LAYER;
  // A lean kernel with several rows per block that writes y either streams or does not.
  const bool known = per_block > 1 && key.source == Source::kPlain && key.sink == Sink::kStore &&
                     (key.flavour == Flavour::kLean || key.flavour == Flavour::kLeanStreaming);
  plan->stream_loads = known ? key.flavour == Flavour::kLeanStreaming
                             : key.access != Access::kUnaligned && streams_loads(d, *plan);
  const Prefetch& prefetch = kPrefetches[layer ? 1 : 0];
  if (d.outer_rank == 1 && arch.bulk_prefetch && plan->bytes_read >= prefetch.least_bytes_read) {
    const int64_t row_bytes = d.n * dtype_bytes(d.dtype) * (d.residual ? 2 : 1);
    if (entry.prefetches)
      plan->prefetch_rows = static_cast<uint32_t>(divide_up(prefetch.bytes_ahead, row_bytes));
  }
  return FASTNORM_OK;
}

// The part that does not depend on the tile. Returns alignment_bits().
FASTNORM_HOT uint64_t plan_common(const NormDesc& d, const DeviceFacts& facts, NormPlan* plan) {
  const Totals sum = totals_of(d);
  plan->vector_bytes = widest_access(sum.alignment, facts.vector_bytes);
  plan->bytes_read = sum.bytes_read;
  plan->bytes_written = sum.bytes_written;
  return sum.alignment;
}

}  // namespace

bool plain_weights(const NormDesc& d) {
  if (d.weights_outside || (d.weight && d.weight.dtype != d.dtype)) return false;
  return !d.bias || (d.kind == FASTNORM_NORM_LAYER && d.bias.dtype == d.dtype);
}

bool f32_weights(const NormDesc& d) {
  const auto fits = [](const WeightTensor& c) { return !c || c.dtype == Dtype::kF32; };
  return d.dtype != Dtype::kF32 && !d.weights_outside && fits(d.weight) && fits(d.bias) &&
         (!d.bias || d.kind == FASTNORM_NORM_LAYER);
}

bool codes_aligned(const QuantDesc& q, Dtype dtype, int vectors) {
  // The bytes that the codes of one 16-byte vector of a row take.
  const auto bytes = static_cast<uint64_t>(q.code_bytes(vectors * (dtype == Dtype::kF32 ? 4 : 8)));
  return (address_bits(q.codes.data, q.codes.stride_bytes) & (bytes - 1)) == 0;
}

namespace {

// True if all rows share weight and bias. They must not vary along outer dimensions.
FASTNORM_HOT bool shares_weights(const NormDesc& d) {
  return (d.weight.head_stride_bytes | d.bias.head_stride_bytes) == 0;
}

// The flavour of the lean kernels that support what a call asks for of y, whatever its rows'
// indices are.
// kGeneral: there are none.
FASTNORM_HOT Flavour flavour_of_y(const NormDesc& d) {
  if (!d.weight || (!d.bias && d.kind != FASTNORM_NORM_RMS) || !shares_weights(d))
    return Flavour::kGeneral;
  if (d.rounding == FASTNORM_ROUND_ONCE && d.residual_rounding == FASTNORM_RESIDUAL_EXACT)
    return Flavour::kLean;
  const bool sum_rounded =
      !d.residual || d.residual_rounding == FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS;
  // An offset of -0 leaves a weight of -0 unchanged; 0 does not.
  const bool offset = std::bit_cast<uint32_t>(d.weight_offset) != 0;
  return d.rounding == FASTNORM_ROUND_NORMALIZED && sum_rounded && !offset ? Flavour::kRounded
                                                                           : Flavour::kGeneral;
}

// The leanest flavour that serves all that a call asks for.
FASTNORM_HOT Flavour flavour_of(const NormDesc& d) {
  return d.quant.any() && (d.y || d.quant.has_extras()) ? Flavour::kGeneral : flavour_of_y(d);
}

FASTNORM_HOT bool lean_kernels_do_static(const NormDesc& d) {
  return d.quant.scheme == FASTNORM_QUANT_PER_TENSOR && !d.quant.has_extras() &&
         d.quant.code_type() != CodeType::kE5M2 && d.dtype != Dtype::kF32 && d.outer_rank == 1 &&
         d.quant.rotation == 0 && flavour_of_y(d) == Flavour::kLean;
}

}  // namespace

bool is_lean(const NormDesc& d) { return d.outer_rank == 1 && flavour_of(d) == Flavour::kLean; }

bool is_lean_static(const NormDesc& d) { return lean_kernels_do_static(d); }

namespace {

// An index of a row is its place in one leading dimension. Lean kernels know one. Those without a
// residual and with several rows per block know two.
constexpr int kMaxLeanIndices = 2;

FASTNORM_HOT Flavour flavour_of(const NormDesc& d, Tile tile) {
  const bool two = rows_per_block(tile) > 1 && !d.residual;
  return d.outer_rank > (two ? kMaxLeanIndices : 1) ? Flavour::kGeneral : flavour_of(d);
}

// What a kernel of a key and tile may leave out. Lean kernels for unaligned rows read weight and
// bias 16 bytes at a time.
FASTNORM_HOT Flavour flavour_of(const NormDesc& d, NormKey key, Tile tile) {
  if (key.access == Access::kUnaligned && (!weights_aligned(d) || d.outer_rank > 1))
    return Flavour::kGeneral;
  return flavour_of(d, tile);
}

// True if a kernel supports what `desc` asks for and its rows: a kernel of the same key, or a more
// general one.
bool serves(const NormEntry& entry, const NormDesc& desc, const DeviceFacts& facts) {
  const NormKey have = entry.key, need = norm_key(desc, facts);
  if (facts.device_type == FASTNORM_DEVICE_CUDA) {
    if (have.affine == Affine::kOnce && !plain_weights(desc)) return false;
    if (have.affine == Affine::kF32 && !f32_weights(desc)) return false;
    if (have.flavour != Flavour::kGeneral) {
      const Flavour asked = flavour_of(desc, need, entry.tile);
      const bool does = have.flavour == asked ||
                        (have.flavour == with_streaming_loads(asked) && desc.outer_rank == 1) ||
                        (have.flavour == Flavour::kLeanShared && asked == Flavour::kLean);
      return does && have == lean_key(need, have.flavour);
    }
  }
  return have.dtype == need.dtype && have.source == need.source && have.stat == need.stat &&
         (have.sink == need.sink || (have.sink == Sink::kQuant && need.sink == Sink::kStatic)) &&
         have.affine >= (need.affine == Affine::kAny ? Affine::kAny : Affine::kOnce) &&
         have.access >= need.access;
}

NormKey key_of_any(const NormDesc& d, Sink sink) {
  return {d.dtype,
          d.residual ? Source::kAdd : Source::kPlain,
          d.kind == FASTNORM_NORM_RMS ? Stat::kRms : Stat::kLayer,
          Affine::kAny,
          sink,
          Access::kAny};
}

FASTNORM_HOT bool has_one_dtype(const NormDesc& d) {
  return (!d.y || d.y.dtype == d.dtype) && (!d.residual || d.residual.dtype == d.dtype) &&
         (!d.residual_out || d.residual_out.dtype == d.dtype);
}

// True if weight and bias have x's dtype or f32.
bool own_or_f32_weights(const NormDesc& d) {
  const auto fits = [&](const WeightTensor& c) {
    return !c || c.dtype == d.dtype || c.dtype == Dtype::kF32;
  };
  return fits(d.weight) && fits(d.bias);
}

// The CPU has kernels for common calls, with weight and bias of x's dtype or f32, and kernels that
// serve every call.
NormKey cpu_key(const NormDesc& d, uint64_t bits) {
  const bool once =
      d.rounding == FASTNORM_ROUND_ONCE && d.residual_rounding == FASTNORM_RESIDUAL_EXACT;
  const bool quant = d.quant.any();
  NormKey key = key_of_any(d, quant ? Sink::kQuant : Sink::kStore);
  if (once && !quant && has_one_dtype(d) && own_or_f32_weights(d) &&
      widest_access(bits, kVectorBytes) == kVectorBytes)
    key.affine = Affine::kOnce, key.access = Access::kVector;
  return key;
}

// True if the call only quantises with one static scale, which a lean kernel supports.
FASTNORM_HOT bool is_static(const NormDesc& d) { return !d.y && lean_kernels_do_static(d); }

// The key of the GPU kernels that support a call, if its rows fit. All of them round x + residual
// and the normalised row if the call asks for it.
FASTNORM_HOT NormKey cuda_key(const NormDesc& d, uint64_t bits) {
  const bool once = d.rounding <= FASTNORM_ROUND_NORMALIZED &&
                    d.residual_rounding != FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY;
  const bool aligned = widest_access(bits, kVectorBytes) == kVectorBytes, quant = d.quant.any();
  const bool plain = plain_weights(d);
  NormKey key = {d.dtype, d.residual ? Source::kAdd : Source::kPlain,
                 d.kind == FASTNORM_NORM_RMS ? Stat::kRms : Stat::kLayer};
  if (aligned && once && plain && !quant && has_one_dtype(d)) return key;  // most calls
  const NormKey any = key_of_any(d, quant ? Sink::kQuant : Sink::kStore);
  const bool f32 = !plain && f32_weights(d);
  if (!once || !has_one_dtype(d) || (!plain && !f32)) return any;
  if (f32) key.affine = Affine::kF32;
  if (quant) key.sink = Sink::kQuant;
  if (quant && aligned && plain && codes_aligned(d)) {
    if (is_static(d)) key.sink = Sink::kStatic;
    return key;
  }
  if (!quant && aligned) return key;
  // Unaligned kernels write y. They support f32 weights only without a residual.
  if (quant || (f32 && (d.residual || !weights_aligned(d)))) return any;
  key.access = Access::kUnaligned;
  return key;
}

// What a call asks for beyond its key. Lean kernels have rows of one index; the lists tell which
// have two.
FASTNORM_HOT NormKind::Ask ask_of(const NormDesc& d, NormKey key) {
  if (!shares_weights(d)) return NormKind::kHeadWeights;
  if (d.outer_rank > kMaxLeanIndices || (d.outer_rank > 1 && d.residual)) return NormKind::kFull;
  if (key.access == Access::kUnaligned && (d.outer_rank > 1 || !weights_aligned(d)))
    return NormKind::kFull;
  const Flavour flavour = flavour_of(d);
  return flavour == Flavour::kLean      ? NormKind::kLean
         : flavour == Flavour::kRounded ? NormKind::kLlama
                                        : NormKind::kFull;
}

FASTNORM_HOT NormKind kind_of(const NormDesc& d, NormKey key) {
  NormKind kind;
  kind.width = d.dtype == Dtype::kF32 ? NormKind::kF32 : NormKind::kB16;
  kind.from = key.source == Source::kAdd ? NormKind::kAdd : NormKind::kPlain;
  kind.of = key.stat == Stat::kLayer ? NormKind::kLayer : NormKind::kRms;
  const bool scales = key.sink == Sink::kQuant;
  if (key.access == Access::kAny) {
    kind.weights = NormKind::kAnyWeights;
    kind.output = scales ? NormKind::kPerRow : NormKind::kY;
    kind.reach = NormKind::kAnyAddress;
    kind.ask = NormKind::kFull;
    return kind;
  }
  kind.weights = key.affine == Affine::kF32 ? NormKind::kF32Weights : NormKind::kOwnDtype;
  kind.output = scales ? d.quant.block != 0 ? NormKind::kPerBlock : NormKind::kPerRow
                : key.sink == Sink::kStatic ? NormKind::kPerTensor
                                            : NormKind::kY;
  kind.ask = ask_of(d, key);
  if (d.outer_rank > 1) kind.index = NormKind::kHeads;
  if (key.access == Access::kUnaligned) kind.reach = NormKind::kUnaligned;
  return kind;
}

// The line of a list for a call. Calls that ask for little have their own lines up to some length;
// beyond it they share those of calls that ask for anything.
FASTNORM_HOT const NormChoice* find_line(const NormChoices& choices, NormKind kind,
                                         const NormDesc& d) {
  const auto find = [&] {
    return find_choice(choices.lines(kind), row_vectors(d), d.rows, [&](const NormChoice& line) {
      return line.pick.tokens ? d.outer[0] : int64_t{1};
    });
  };
  const NormChoice* const line = find();
  if (line != nullptr) return line;
  kind.ask = NormKind::kFull;
  return find();
}

// The kind of a call and its line. nullptr: no kernel of `key` supports such rows.
struct Chosen {
  NormKey key;
  NormKind kind;
  const NormChoice* line;
};

FASTNORM_HOT Chosen choose(const NormDesc& d, NormKey key, const DeviceFacts& facts) {
  const NormKind kind = kind_of(d, key);
  const NormChoice* line = find_line(*facts.arch->choices, kind, d);
  if (line != nullptr && line->pick.blocks > facts.max_cluster_blocks)
    line = find_line(kNormChoicesDefault, kind, d);
  return {key, kind, line};
}

// The kernel of any call. Rows that no kernel of its key supports use the kernels for any address.
FASTNORM_HOT Chosen choose_any(const NormDesc& d, uint64_t bits, const DeviceFacts& facts) {
  NormKey key = cuda_key(d, bits);
  Chosen chosen = choose(d, key, facts);
  if (chosen.line == nullptr && key.sink == Sink::kStatic) {
    key.sink = Sink::kQuant;
    chosen = choose(d, key, facts);
  }
  if (chosen.line != nullptr) return chosen;
  return choose(d, key_of_any(d, d.quant.any() ? Sink::kQuant : Sink::kStore), facts);
}

// The entry of the kernel that a line names for a call, or the full kernel of its tile; -1 if there
// is neither. A line never selects a kernel that does not support the call.
template <class Find>
FASTNORM_HOT int32_t entry_of(const NormDesc& d, const Chosen& chosen, const NormPlan& plan,
                              Tile tile, Find find) {
  const NormKey key = chosen.key;
  const NormKind::Ask ask = static_cast<NormKind::Ask>(chosen.kind.ask);
  const bool several = rows_per_block(tile) > 1;
  // Lean kernels with one row per block know one index of a row.
  const bool may_be_lean =
      (ask == NormKind::kLean || ask == NormKind::kLlama) && (d.outer_rank == 1 || several);
  const PickedFlavour picked = chosen.line->pick.flavour;
  int32_t index = -1;
  if (may_be_lean && picked == PickedFlavour::kShared) {
    if (ask == NormKind::kLean) index = find(lean_key(key, Flavour::kLeanShared));
  } else if (may_be_lean && picked != PickedFlavour::kFull) {
    const Flavour lean = ask == NormKind::kLlama ? Flavour::kRounded : Flavour::kLean;
    const bool streaming = picked == PickedFlavour::kStreaming ? d.outer_rank == 1
                           : picked == PickedFlavour::kCached  ? false
                           : several                           ? streams_short_loads(d, key, plan)
                                                               : streams_loads(d, plan);
    index = find(lean_key(key, streaming ? with_streaming_loads(lean) : lean));
  }
  return index >= 0 ? index : find(key);
}

// True if two calls without residual and quantised output differ only in rows, addresses and
// strides.
FASTNORM_HOT bool asks_the_same(const NormDesc& a, const NormDesc& b) {
  const auto same_weights = [](const WeightTensor& c, const WeightTensor& other) {
    return bool{c} == bool{other} && c.dtype == other.dtype;
  };
  return a.n == b.n && a.dtype == b.dtype && a.outer_rank == b.outer_rank && a.kind == b.kind &&
         a.flags == b.flags && a.rounding == b.rounding &&
         std::bit_cast<uint32_t>(a.weight_offset) == std::bit_cast<uint32_t>(b.weight_offset) &&
         a.y.dtype == b.y.dtype && !b.has_stages && !b.weights_outside &&
         same_weights(a.weight, b.weight) && same_weights(a.bias, b.bias) &&
         shares_weights(a) == shares_weights(b) && bool{a.mean} == bool{b.mean} &&
         bool{a.rstd} == bool{b.rstd} && !b.residual && !b.quant.any();
}

}  // namespace

fastnorm_status check_grid(const NormDesc& d, uint64_t blocks, const ArchSpec& arch, Error& error) {
  return fits_grid(d, blocks, arch, error);
}

NormKey norm_key(const NormDesc& d, const DeviceFacts& facts) {
  const uint64_t bits = alignment_bits(d);
  return facts.device_type == FASTNORM_DEVICE_CPU ? cpu_key(d, bits)
                                                  : choose_any(d, bits, facts).key;
}

int32_t find_entry(std::span<const NormEntry> table, NormKey key, Tile tile) {
  const uint64_t wanted = packed(key, tile);
  const auto found = std::lower_bound(
      table.begin(), table.end(), wanted,
      [](const NormEntry& entry, uint64_t order) { return entry.packed() < order; });
  if (found == table.end() || found->packed() != wanted) return -1;
  return static_cast<int32_t>(found - table.begin());
}

VectorRange vectors_held(const NormEntry& entry) {
  const int64_t threads = entry.tile.threads_per_row(), vectors = entry.tile.vectors;
  if (vectors == 0) return {1, INT64_MAX};
  if (entry.every) return {1, threads * vectors};
  // Other kernels test only a thread's last vector, so a row must reach into it.
  return {threads * (vectors - 1) + 1, threads * vectors};
}

fastnorm_status make_plan(const NormDesc& desc, const DeviceFacts& facts,
                          std::span<const NormEntry> table, NormPlan* plan, Error& error,
                          const NormTuning* tuning, const NormIndex* index) {
  *plan = NormPlan{};
  if (desc.rows == 0) return FASTNORM_OK;
  const uint64_t bits = plan_common(desc, facts, plan);
  if (__builtin_expect(desc.has_stages, 0)) return plan_stages(desc, facts, plan, error);
  NormKey key;
  Tile tile;
  const auto find = [&](NormKey wanted) __attribute__((always_inline)) {
    const uint64_t order = packed(wanted, tile);
    return index != nullptr ? index->find(order) : find_entry(table, wanted, tile);
  };
  if (facts.device_type == FASTNORM_DEVICE_CPU) {
    key = cpu_key(desc, bits);
    plan->index = find(key);
    FASTNORM_TRY(plan_cpu(desc, facts, plan));
  } else {
    Chosen chosen = choose_any(desc, bits, facts);
    if (tuning != nullptr) {
      const NormChoice* const line = tuning->find(chosen.kind, row_vectors(desc), desc.rows);
      if (line != nullptr) chosen.line = line;
    }
    FASTNORM_REQUIRE(chosen.line != nullptr, FASTNORM_ERROR_INTERNAL,
                     "no choice for %" PRId64 " rows of %" PRId64 " elements", desc.rows, desc.n);
    key = chosen.key;
    tile = chosen.line->pick.tile(row_vectors(desc));
    plan->kind = chosen.kind;
    plan->line = chosen.line;
    plan->index = entry_of(desc, chosen, *plan, tile, find);
    if (plan->index >= 0)
      FASTNORM_TRY(plan_cuda(desc, facts, table[static_cast<size_t>(plan->index)], plan, error));
  }
  FASTNORM_REQUIRE(plan->index >= 0, FASTNORM_ERROR_INTERNAL, "no kernel \"%s\" in the table",
                   make_entry(key, tile).name);
  plan->entry = &table[static_cast<size_t>(plan->index)];
  return FASTNORM_OK;
}

bool plan_like(const NormDesc& first, const NormPlan& first_plan, const NormDesc& second,
               const DeviceFacts& facts, NormPlan* plan, Error& error) {
  const NormEntry& entry = *first_plan.entry;
  if (facts.device_type != FASTNORM_DEVICE_CUDA || !runs_pairs(entry) || first.outer_rank > 2 ||
      second.rows > first.rows || second.rows == 0 || !asks_the_same(first, second)) {
    return false;
  }
  *plan = NormPlan{};
  plan_common(second, facts, plan);
  plan->kind = first_plan.kind;
  plan->line = first_plan.line;
  plan->index = first_plan.index;
  plan->entry = &entry;
  return plan->vector_bytes == first_plan.vector_bytes &&
         plan_cuda(second, facts, entry, plan, error) == FASTNORM_OK;
}

bool plan_together(const NormDesc& first, const NormDesc& second, const DeviceFacts& facts,
                   std::span<const NormEntry> table, NormPlan* first_plan, NormPlan* second_plan) {
  if (facts.device_type != FASTNORM_DEVICE_CUDA) return false;
  // Grids of two calls know two indices of a row: [tokens, heads, d].
  if (first.flags != second.flags || first.outer_rank > 2 || second.outer_rank > 2) return false;
  const NormEntry &a = *first_plan->entry, &b = *second_plan->entry;
  if (a.order == b.order && runs_pairs(a)) return true;
  const auto key_before_tile = [&](const NormEntry& entry, const NormDesc& d) {
    return entry.key.flavour != Flavour::kGeneral ? norm_key(d, facts) : entry.key;
  };
  const NormKey key = key_before_tile(a, first), other = key_before_tile(b, second);
  if (key != other) return false;
  const auto both = [&](int32_t index) {
    if (index < 0 || !runs_pairs(table[static_cast<size_t>(index)])) return false;
    NormPlan plans[2];
    Error not_held;
    if (make_plan_for_entry(first, facts, table, index, &plans[0], not_held) != FASTNORM_OK ||
        make_plan_for_entry(second, facts, table, index, &plans[1], not_held) != FASTNORM_OK) {
      return false;
    }
    *first_plan = plans[0];
    *second_plan = plans[1];
    return true;
  };
  const int64_t vectors = std::max(row_vectors(first), row_vectors(second));
  const Tile warp = NormPick{.threads = kWarpThreads}.tile(vectors);
  const bool first_has_more = first.rows >= second.rows;
  for (const Tile tile :
       {first_has_more ? a.tile : b.tile, first_has_more ? b.tile : a.tile, warp}) {
    if (both(find_entry(table, lean_key(key), tile)) ||
        both(find_entry(table, lean_key(key, Flavour::kRounded), tile))) {
      return true;
    }
  }
  // The first full kernel that supports the rows of both, with the fewest threads. Much shorter
  // rows would leave most threads idle.
  if (2 * std::min(row_vectors(first), row_vectors(second)) < vectors) return false;
  auto entry =
      std::lower_bound(table.begin(), table.end(), packed(key, Tile{0, 0, 0}),
                       [](const NormEntry& e, uint64_t order) { return e.packed() < order; });
  for (; entry != table.end() && entry->key == key && runs_pairs(*entry); ++entry) {
    if (vectors <= vectors_held(*entry).most)
      return both(static_cast<int32_t>(entry - table.begin()));
  }
  return false;
}

fastnorm_status make_plan_for_entry(const NormDesc& desc, const DeviceFacts& facts,
                                    std::span<const NormEntry> table, int32_t index, NormPlan* plan,
                                    Error& error) {
  *plan = NormPlan{};
  const NormEntry& entry = table[static_cast<size_t>(index)];
  const Tile tile = entry.tile;
  const int64_t vectors = row_vectors(desc);
  FASTNORM_REQUIRE(desc.rows > 0 && !desc.has_stages && serves(entry, desc, facts),
                   FASTNORM_ERROR_UNSUPPORTED,
                   "kernel \"%s\" does not serve this call; nearest: \"%s\"", entry.name,
                   make_entry(norm_key(desc, facts), tile).name);
  plan_common(desc, facts, plan);
  plan->index = index;
  plan->entry = &entry;
  if (facts.device_type == FASTNORM_DEVICE_CPU) return plan_cpu(desc, facts, plan);
  const VectorRange held = vectors_held(entry);
  FASTNORM_REQUIRE(vectors >= held.least && vectors <= held.most, FASTNORM_ERROR_UNSUPPORTED,
                   "a row of %" PRId64 " vectors does not fit kernel \"%s\"; nearest: %" PRId64
                   " to %" PRId64 " vectors",
                   vectors, entry.name, held.least, held.most);
  return plan_cuda(desc, facts, entry, plan, error);
}

}  // namespace fastnorm
