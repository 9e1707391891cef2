#include <algorithm>
#include <span>
#include <type_traits>

#include "core/norm/tensors.h"
#include "core/norm/view.h"
#include "core/norm_heads/check.h"
#include "core/norm_heads/tensors.h"

namespace fastnorm {
namespace {

class HeadsViews {
 public:
  explicit HeadsViews(Error& failure) : error(failure) {}

  std::span<const View> all() const { return views_.all(); }
  // check_norm_part() has compared the tensors of one part with each other.
  static bool is_known(const View& a, const View& b) {
    return a.part == b.part && a.field != nullptr && b.field != nullptr;
  }

  fastnorm_status collect(const fastnorm_norm_heads_args& args, const NormHeadsDesc& d) {
    for (part_ = 0; part_ < d.count; ++part_) {
      FASTNORM_TRY(norm(d.parts[part_].norm));
      FASTNORM_TRY(heads(d.parts[part_], d.tokens));
    }
    part_ = -1;
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
            View v = view(Of::kField.path, outputs, bytes.data, bytes.piece_bytes,
                          rows ? n.outer : kOne, rows ? bytes.strides : kNone);
            v.pieces = bytes.pieces, v.step = bytes.step;
            v.field = &Of::kField;
            status = views_.add(v, error);
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
      status = views_.add(view(Of::kField.path, Of::kOutput, v.data,
                               values_of(p, of) * dtype_bytes(v.dtype), outer, strides),
                          error);
      return status == FASTNORM_OK;
    });
    return status == FASTNORM_OK ? cache(p) : status;
  }

  fastnorm_status cache(const NormHeadsPart& p) {
    const HeadsCache& c = p.cache;
    const QuantDesc& q = c.quant;
    if (!c) return FASTNORM_OK;
    const auto add = [&](const View& v) { return views_.add(v, error); };
    if (!q.scale && q.tensor_scale != nullptr)
      FASTNORM_TRY(add(view("cache_quant.scale", false, q.tensor_scale, 4)));
    if (q.signs) {
      FASTNORM_TRY(add(view("cache_quant.rotation_signs", false, q.signs.data,
                            q.sign_columns(p.cache_columns()) * 4)));
    }
    if (c.pages == 0) return FASTNORM_OK;
    const int64_t outer[kMaxOuter] = {p.heads, c.page_size, c.pages};
    FASTNORM_TRY(add(view("cache", true, c.rows.data, p.cache_columns() * dtype_bytes(c.rows.dtype),
                          outer, c.rows.stride_bytes)));
    if (c.tail) {
      FASTNORM_TRY(
          add(view("cache_tail", true, c.tail.data, c.tail_columns * dtype_bytes(c.tail.dtype),
                   outer, c.tail.stride_bytes)));
    }
    if (!q.scale) return FASTNORM_OK;
    View scale = view("cache_quant.scale", true, q.scale.data, dtype_bytes(q.scale.dtype), outer,
                      q.scale.stride_bytes);
    scale.pieces = q.scales(p.cache_columns()), scale.step = q.scale_step_bytes;
    return add(scale);
  }

  fastnorm_status shared(const char* name, const fastnorm_tensor* tensor) {
    View v;
    if (tensor == nullptr || !shared_view(name, *tensor, &v)) return FASTNORM_OK;
    return views_.add(v, error);
  }

  View view(const char* name, bool output, const std::byte* data, int64_t piece_bytes,
            const int64_t* outer = kOne, const int64_t* strides = kNone) const {
    View v = {name, output, data, piece_bytes};
    v.part = part_;
    std::copy_n(outer, kMaxOuter, v.outer);
    std::copy_n(strides, kMaxOuter, v.strides);
    return v;
  }

  static constexpr int64_t kOne[kMaxOuter] = {1, 1, 1};
  static constexpr int64_t kNone[kMaxOuter] = {};
  static constexpr size_t kMost = 22 * kMaxHeadsParts + 4;

  Error& error;
  int32_t part_ = -1;
  Views<kMost> views_;
};

}  // namespace

fastnorm_status check_norm_heads_aliasing(const fastnorm_norm_heads_args& args,
                                          const NormHeadsDesc& desc, Error& error) {
  HeadsViews views(error);
  FASTNORM_TRY(views.collect(args, desc));
  for (const View& out : views.all()) {
    if (!out.output) continue;
    if (out.field == nullptr) FASTNORM_TRY(check_own_rows(out, error));
    for (const View& other : views.all()) {
      if (&other != &out && !HeadsViews::is_known(out, other))
        FASTNORM_TRY(check_overlap(out, other, error));
    }
  }
  return FASTNORM_OK;
}

}  // namespace fastnorm
