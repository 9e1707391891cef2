#include "core/norm/aliasing.h"

#include <algorithm>
#include <cinttypes>
#include <type_traits>

#include "core/norm/tensors.h"
#include "core/norm/view.h"

namespace fastnorm {
namespace {

Dtype dtype_of(const RowTensor& t) { return t.dtype; }
Dtype dtype_of(const WeightTensor& c) { return c.dtype; }
Dtype dtype_of(const Modulator& m) { return m.rows.dtype; }
Dtype dtype_of(const std::byte*) { return Dtype::kF32; }

using NormViews = Views<Touched::kMost>;

// Adds the tensors that a call has.
fastnorm_status collect(const NormDesc& d, NormViews* views, Error& error) {
  fastnorm_status status = FASTNORM_OK;
  for_each_tensor(d, [&](auto of, const auto& t) {
    using Of = decltype(of);
    if (!t) return true;
    const RowBytes bytes = bytes_of(d, of, t);
    View v = {Of::kField.path, Of::kOutput, bytes.data, bytes.piece_bytes};
    std::copy_n(d.outer, d.outer_rank, v.outer);
    std::copy_n(bytes.strides, d.outer_rank, v.strides);
    v.pieces = bytes.pieces, v.step = bytes.step;
    v.field = &Of::kField;
    v.bit = std::is_same_v<typename Of::Struct, fastnorm_norm_args> ? Of::kBit : 0;
    v.dtype = dtype_of(t);
    status = views->add(v, error);
    return status == FASTNORM_OK;
  });
  return status;
}

FASTNORM_HOT bool same_view(const RowTensor& a, const RowTensor& b, const NormDesc& d) {
  if (a.data != b.data || a.dtype != b.dtype) return false;
  for (int i = 0; i < d.outer_rank; ++i) {
    if (d.outer[i] != 1 && a.stride_bytes[i] != b.stride_bytes[i]) return false;
  }
  return true;
}

// A gate that overlaps x is most likely a mistake, although both are only read.
fastnorm_status check_inputs(std::span<const View> views, Error& error) {
  for (const View& in : views) {
    for (const View& other : views) {
      if ((in.field->apart & other.bit) != 0) FASTNORM_TRY(check_overlap(in, other, error));
    }
  }
  return FASTNORM_OK;
}

}  // namespace

bool Touched::collect(const NormDesc& d) {
  size_t count = 0;
  // Inline, so that the parts of `bytes` stay in registers. Otherwise they are read back in pairs
  // right after they are written.
  const auto add = [&](const RowBytes& bytes) __attribute__((always_inline)) {
    bytes_[count] = bytes;
    return address_range(bytes, d.outer, &range_[count++], d.outer_rank);
  };
  // Bytes that all rows share: at most 2^34.
  const auto piece = [&](const std::byte* data, int64_t bytes) __attribute__((always_inline)) {
    bytes_[count] = {data, kSameForAllRows, bytes, 1, 0};
    AddressRange& range = range_[count++];
    range.begin = reinterpret_cast<uintptr_t>(data);
    return !__builtin_add_overflow(range.begin, static_cast<uintptr_t>(bytes), &range.end);
  };
  const auto one = [&](auto of, const auto& t) __attribute__((always_inline)) {
    using Of = decltype(of);
    using Tensor = std::remove_cvref_t<decltype(t)>;
    if (!t) return true;
    if constexpr (std::is_pointer_v<Tensor>) return piece(t, 4);
    if constexpr (std::is_same_v<Tensor, WeightTensor>) {
      if ((t.head_stride_bytes | t.outer_stride_bytes[1] | t.outer_stride_bytes[2]) == 0)
        return piece(t.data, columns_of(d, of) * dtype_bytes(t.dtype));
    }
    // If an output overwrites a tensor in place, only the output counts.
    if constexpr (std::is_same_v<Tensor, RowTensor> && !Of::kOutput) {
      using Y = schema::Of<&fastnorm_norm_args::y>;
      using ResidualOut = schema::Of<&fastnorm_norm_args::residual_out>;
      if constexpr ((Y::kField.same_view & Of::kBit) != 0) {
        if (same_view(t, d.y, d)) return true;
      }
      if constexpr ((ResidualOut::kField.same_view & Of::kBit) != 0) {
        if (same_view(t, d.residual_out, d)) return true;
      }
    }
    return add(bytes_of(d, of, t));
  };
  bool fit = for_each_tensor(
      d, [&](auto of, const auto& t)
             __attribute__((always_inline)) { return decltype(of)::kOutput || one(of, t); });
  inputs_ = count;
  fit = fit && for_each_tensor(
                   d, [&](auto of, const auto& t) __attribute__((always_inline)) {
                     return !decltype(of)::kOutput || one(of, t);
                   });
  count_ = count;
  return fit;
}

fastnorm_status check_aliasing(const NormDesc& desc, Error& error) {
  NormViews views;
  FASTNORM_TRY(collect(desc, &views, error));
  if (desc.has_stages && desc.stages.gate) FASTNORM_TRY(check_inputs(views.all(), error));
  for (const View& out : views.all()) {
    if (!out.output) continue;
    for (const View& other : views.all()) {
      if (other.output && &other >= &out) continue;
      // On every backend, the thread that writes an element has already read it from the tensors
      // that may be the same view.
      if (!out.may_be(other) || !same_view(out, other))
        FASTNORM_TRY(check_overlap(out, other, error));
    }
  }
  return FASTNORM_OK;
}

fastnorm_status check_scattered_rows(const char* name, const RowTensor& row, int64_t row_bytes,
                                     const NormDesc& desc, Error& error) {
  Footprint f;
  FASTNORM_REQUIRE(footprint(row, desc.outer, row_bytes, &f) && rows_disjoint(f),
                   FASTNORM_ERROR_LAYOUT,
                   "%s overlaps itself: its strides are %s bytes for rows of %" PRId64
                   " bytes, innermost first; required: "
                   "rows of an output that share no byte",
                   name, shape_text(row.stride_bytes, desc.outer_rank).c, row_bytes);
  return FASTNORM_OK;
}

bool Touched::apart() const {
  for (size_t out = inputs_; out < count_; ++out) {
    for (size_t other = 0; other < out; ++other) {
      if (!separate(range_[out], range_[other])) return false;
    }
  }
  return true;
}

bool Touched::apart(const NormDesc& mine, const Touched& t, const NormDesc& theirs) const {
  for (size_t i = 0; i < count_; ++i) {
    for (size_t j = i < inputs_ ? t.inputs_ : 0; j < t.count_; ++j) {
      if (!separate(range_[i], t.range_[j]) &&
          !take_turns(bytes_[i], mine.outer, t.bytes_[j], theirs.outer) &&
          !interleaved(bytes_[i], mine.outer, range_[i], t.bytes_[j], theirs.outer, t.range_[j])) {
        return false;
      }
    }
  }
  return true;
}

fastnorm_status check_norm_many(std::span<const NormDesc> descs, std::span<const Touched> touched,
                                Error& error) {
  bool apart = true;
  for (size_t i = 1; i < descs.size(); ++i) {
    for (size_t j = 0; j < i && descs[i].rows != 0; ++j)
      apart = apart && (descs[j].rows == 0 || touched[j].apart(descs[j], touched[i], descs[i]));
  }
  return apart ? FASTNORM_OK : check_norm_many(descs, error);
}

fastnorm_status check_norm_many(std::span<const NormDesc> descs, Error& error) {
  for (size_t i = 0; i + 1 < descs.size(); ++i) {
    NormViews a;
    if (descs[i].rows != 0) FASTNORM_TRY(collect(descs[i], &a, error));
    for (size_t j = i + 1; j < descs.size(); ++j) {
      NormViews b;
      if (descs[j].rows != 0) FASTNORM_TRY(collect(descs[j], &b, error));
      FASTNORM_TRY(check_parts("args", i, a.all(), j, b.all(), error));
    }
  }
  return FASTNORM_OK;
}

}  // namespace fastnorm
