#include "core/norm_heads/aliasing.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <span>
#include <type_traits>

#include "core/common/check.h"
#include "core/norm/row_map.h"
#include "core/norm/tensors.h"
#include "core/norm_heads/tensors.h"

namespace fastnorm {
namespace {

constexpr int32_t kShared = -1;  // belongs to no part

// A tensor of the call.
struct View {
  const char* name;
  int32_t part;
  bool output;
  bool of_norm;                // check_norm_part() has checked it
  int64_t outer[kMaxOuter];    // extents, innermost first
  int64_t strides[kMaxOuter];  // bytes
  const std::byte* data;
  int64_t piece_bytes, pieces, step;
  AddressRange range;

  RowBytes bytes() const { return {data, strides, piece_bytes, pieces, step}; }
  Footprint print() const {
    Footprint f;
    footprint(bytes(), outer, range, &f);
    return f;
  }
};

Text name_of(const View& v) {
  Text text{};
  if (v.part == kShared) {
    std::snprintf(text.c, sizeof text.c, "%s", v.name);
  } else {
    std::snprintf(text.c, sizeof text.c, "parts[%d].%s", v.part, v.name);
  }
  return text;
}

class Views {
 public:
  explicit Views(Error& failure) : error(failure) {}

  std::span<const View> all() const { return {view_, count_}; }

  fastnorm_status collect(const fastnorm_norm_heads_args& args, const NormHeadsDesc& d) {
    for (part_ = 0; part_ < d.count; ++part_) {
      FASTNORM_TRY(norm(d.parts[part_].norm));
      FASTNORM_TRY(heads(d.parts[part_], d.tokens));
    }
    part_ = kShared;
    FASTNORM_TRY(shared("cos", args.cos));
    FASTNORM_TRY(shared("sin", args.sin));
    FASTNORM_TRY(shared("positions", args.positions));
    return shared("slots", args.slots);
  }

 private:
  // The tensors that a part has in common with a norm.
  fastnorm_status norm(const NormDesc& n) {
    FASTNORM_TRY(norm<false>(n));
    return norm<true>(n);
  }

  // Its inputs, or its outputs.
  template <bool outputs>
  fastnorm_status norm(const NormDesc& n) {
    fastnorm_status status = FASTNORM_OK;
    for_each_tensor(
        n, [&](auto of, const auto& t) __attribute__((always_inline)) {
          using Of = decltype(of);
          if constexpr (Of::kOutput == outputs) {
            if (!t) return true;
            const RowBytes bytes = bytes_of(n, of, t);
            const bool rows = std::is_same_v<decltype(t), const RowTensor&> &&
                              !(Of::kRole == schema::Role::kScales && n.quant.swizzled);
            status = add(Of::kField.path, outputs, true, rows ? n.outer : kOne,
                         rows ? bytes.strides : kNone, bytes);
            return status == FASTNORM_OK;
          } else {
            return true;
          }
        });
    return status;
  }

  // The other tensors of a part.
  fastnorm_status heads(const NormHeadsPart& p, int64_t tokens) {
    fastnorm_status status = FASTNORM_OK;
    for_each_head_values(p, [&](auto of, const HeadValues& v) {
      using Of = decltype(of);
      if (!v) return true;
      const int64_t outer[kMaxOuter] = {is_of_token(p, of) ? 1 : p.heads, tokens, 1};
      const int64_t strides[kMaxOuter] = {v.head_stride, v.token_stride, 0};
      status = add(Of::kField.path, Of::kOutput, false, outer, strides,
                   {v.data, nullptr, values_of(p, of) * dtype_bytes(v.dtype), 1, 0});
      return status == FASTNORM_OK;
    });
    return status == FASTNORM_OK ? cache(p) : status;
  }

  fastnorm_status cache(const NormHeadsPart& p) {
    const HeadsCache& c = p.cache;
    const QuantDesc& q = c.quant;
    if (!c) return FASTNORM_OK;
    if (!q.scale && q.tensor_scale != nullptr) {
      FASTNORM_TRY(
          add("cache_quant.scale", false, false, kOne, kNone, {q.tensor_scale, nullptr, 4, 1, 0}));
    }
    if (q.signs) {
      FASTNORM_TRY(add("cache_quant.rotation_signs", false, false, kOne, kNone,
                       {q.signs.data, nullptr, q.sign_columns(p.cache_columns()) * 4, 1, 0}));
    }
    if (c.pages == 0) return FASTNORM_OK;
    const int64_t outer[kMaxOuter] = {p.heads, c.page_size, c.pages};
    FASTNORM_TRY(add("cache", true, false, outer, c.rows.stride_bytes,
                     {c.rows.data, nullptr, p.cache_columns() * dtype_bytes(c.rows.dtype), 1, 0}));
    if (c.tail) {
      FASTNORM_TRY(add("cache_tail", true, false, outer, c.tail.stride_bytes,
                       {c.tail.data, nullptr, c.tail_columns * dtype_bytes(c.tail.dtype), 1, 0}));
    }
    if (!q.scale) return FASTNORM_OK;
    return add("cache_quant.scale", true, false, outer, q.scale.stride_bytes,
               {q.scale.data, nullptr, dtype_bytes(q.scale.dtype), q.scales(p.cache_columns()),
                q.scale_step_bytes});
  }

  fastnorm_status shared(const char* name, const fastnorm_tensor* tensor) {
    SharedView view;
    if (tensor == nullptr || !shared_view(*tensor, &view)) return FASTNORM_OK;
    return add(name, false, false, view.outer, view.strides, view.bytes());
  }

  fastnorm_status add(const char* name, bool output, bool of_norm, const int64_t* outer,
                      const int64_t* strides, const RowBytes& bytes) {
    View& v = view_[count_++];
    v.name = name;
    v.part = part_;
    v.output = output;
    v.of_norm = of_norm;
    std::copy_n(outer, kMaxOuter, v.outer);
    std::copy_n(strides, kMaxOuter, v.strides);
    v.data = bytes.data;
    v.piece_bytes = bytes.piece_bytes;
    v.pieces = bytes.pieces;
    v.step = bytes.step;
    FASTNORM_REQUIRE(address_range(v.bytes(), v.outer, &v.range), FASTNORM_ERROR_LAYOUT,
                     "%s's strides reach past the ends of the address space, or over more than "
                     "2^62 bytes; required: strides in elements of memory that exists",
                     name_of(v).c);
    return FASTNORM_OK;
  }

  static constexpr int64_t kOne[kMaxOuter] = {1, 1, 1};
  static constexpr int64_t kNone[kMaxOuter] = {};
  static constexpr size_t kMost = 22 * kMaxHeadsParts + 4;

  Error& error;
  int32_t part_ = kShared;
  size_t count_ = 0;
  View view_[kMost];  // the first `count_` are set
};

}  // namespace

bool shared_view(const fastnorm_tensor& t, SharedView* view) {
  const int64_t bytes = dtype_bytes(dtype_from(t.dtype));
  auto compact = static_cast<uint64_t>(bytes) * static_cast<uint64_t>(t.shape[t.ndim - 1]);
  if (compact == 0) return false;
  *view = {address_of(t), {1, 1, 1}, {}, static_cast<int64_t>(compact)};
  for (int32_t i = 0; i + 1 < t.ndim; ++i) {
    const int32_t dim = t.ndim - 2 - i;
    if (t.shape[dim] == 0) return false;
    view->outer[i] = t.shape[dim];
    view->strides[i] =
        t.strides != nullptr ? stride_bytes_of(t, dim, bytes) : static_cast<int64_t>(compact);
    if (view->outer[i] == 1) view->strides[i] = 0;
    compact *= static_cast<uint64_t>(view->outer[i]);
  }
  return true;
}

fastnorm_status check_norm_heads_aliasing(const fastnorm_norm_heads_args& args,
                                          const NormHeadsDesc& desc, Error& error) {
  Views views(error);
  FASTNORM_TRY(views.collect(args, desc));
  for (const View& out : views.all()) {
    if (!out.output) continue;
    FASTNORM_REQUIRE(out.of_norm || rows_disjoint(out.print()), FASTNORM_ERROR_LAYOUT,
                     "%s overlaps itself: its strides are %s bytes, innermost first; required: "
                     "elements of an output that share no byte",
                     name_of(out).c, shape_text(out.strides, kMaxOuter).c);
    for (const View& other : views.all()) {
      const bool known = out.of_norm && other.of_norm && out.part == other.part;
      if (&other == &out || known || separate(out.range, other.range)) continue;
      FASTNORM_REQUIRE(disjoint(out.print(), other.print()), FASTNORM_ERROR_LAYOUT,
                       "%s [0x%" PRIxPTR ", 0x%" PRIxPTR ") overlaps %s [0x%" PRIxPTR
                       ", 0x%" PRIxPTR
                       "); required: separate memory, or interleaved views that share no element",
                       name_of(out).c, out.range.begin, out.range.end, name_of(other).c,
                       other.range.begin, other.range.end);
    }
  }
  return FASTNORM_OK;
}

}  // namespace fastnorm
