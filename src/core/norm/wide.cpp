#include "core/norm/wide.h"

#include "core/common/schema.h"
#include "core/norm/check_stages.h"
#include "core/norm/shape.h"

namespace fastnorm {
namespace {

constexpr int kMaxLeading = kMaxRank - 1;

// What kind of shape a tensor must have.
enum class Kind { kRows, kWeights, kStatistic, kCodes, kScales };

// A tensor with leading dimensions.
struct Wide {
  const fastnorm_tensor* given;
  const fastnorm_tensor** field;  // of FoldedArgs::args or quant
  Kind kind;
  int32_t behind;             // dimensions behind those of rows, at most 2
  int64_t behind_strides[2];  // in elements
  // Bytes along the leading dimensions of x, outermost first; 0 where the tensor is broadcast.
  int64_t strides[kMaxLeading];
};

class Folder {
 public:
  Folder(const fastnorm_norm_args& args, const fastnorm_quant* quant, CheckedDevice device,
         FoldedArgs* folded, Error& error)
      : x_(*args.x), device_(device), out_(*folded), error(error) {
    out_.args = args;
    out_.args.quant = nullptr;
    if (quant == nullptr) return;
    out_.quant = *quant;
    out_.args.quant = &out_.quant;
  }

  fastnorm_status run() {
    if (!is_row_dtype(dtype_from(x_.dtype))) return FASTNORM_OK;  // check_norm() reports it
    FASTNORM_TRY(collect());
    rank_ = x_.ndim - 1;
    bool empty = false;
    for (int32_t d = 0; d < rank_; ++d) {
      outer_[d] = x_.shape[d];
      empty |= outer_[d] == 0;
    }
    if (empty) {
      rank_ = 1;
      outer_[0] = 0;
    } else {
      fold();
    }
    FASTNORM_REQUIRE(rank_ <= kMaxOuter, FASTNORM_ERROR_UNSUPPORTED,
                     "x.shape is %s: with the strides of all tensors, %d leading dimensions remain "
                     "of which none joins its neighbour, %s; this version takes %d; nearest: "
                     "tensors that are compact in more of them",
                     shape_text(x_.shape, x_.ndim).c, rank_, shape_text(outer_, rank_).c,
                     kMaxOuter);
    for (int i = 0; i < count_; ++i) build(i);
    return FASTNORM_OK;
  }

 private:
  // Tensors of stages come after all others.
  fastnorm_status collect() {
    using enum schema::Shape;
    fastnorm_norm_args& a = out_.args;
    for (const schema::Shape shape : {kX, kGroupWeight, kGroups})
      FASTNORM_TRY(fields(shape, 0, kFirstStage));
    if (a.quant != nullptr) FASTNORM_TRY(codes());
    if (a.quant != nullptr) FASTNORM_TRY(scales());
    if (!has_stages(a)) return FASTNORM_OK;
    for (const schema::Shape shape : {kX, kGroups, kSums, kWeight, kRow, kSpread})
      FASTNORM_TRY(fields(shape, kFirstStage, sizeof a));
    return FASTNORM_OK;
  }

  // The tensors of a shape, among the fields at these offsets.
  fastnorm_status fields(schema::Shape shape, size_t begin, size_t end) {
    for (const schema::Field& f : schema::Fields<fastnorm_norm_args>::kAll) {
      if (f.shape != shape || f.offset < begin || f.offset >= end) continue;
      auto* const at = reinterpret_cast<std::byte*>(&out_.args) + f.offset;
      FASTNORM_TRY(tensor(f, reinterpret_cast<const fastnorm_tensor**>(at)));
    }
    return FASTNORM_OK;
  }

  fastnorm_status tensor(const schema::Field& f, const fastnorm_tensor** field) {
    using enum schema::Shape;
    if (*field == nullptr) return FASTNORM_OK;
    const fastnorm_tensor& t = **field;
    const Dtype dtype = dtype_from(t.dtype);
    const auto n = [&] { return x_.shape[x_.ndim - 1]; };  // x comes first: then it is checked
    const bool layer = number(out_.args.kind) == FASTNORM_NORM_LAYER;
    // check_norm() refuses another dtype.
    const auto checked = [&](bool has_dtype, bool last_contiguous, Kind kind, const auto& shape) {
      if (!has_dtype) return FASTNORM_OK;
      FASTNORM_TRY(check_tensor(f.name, t, {dtype, kMaxRank, last_contiguous}, device_, error));
      FASTNORM_TRY(shape());
      add(field, kind);
      return FASTNORM_OK;
    };
    const auto rows = [&](Kind kind, const auto& shape) {
      return checked(is_row_dtype(dtype), true, kind, shape);
    };
    const auto weight = [&](int64_t columns) {
      return rows(Kind::kWeights,
                  [&] { return check_weight_shape(f.name, t, x_, columns, error); });
    };
    const auto statistic = [&](int32_t values) {  // so many of each group
      const int64_t groups = n() / group();
      return checked(dtype == Dtype::kF32, false, Kind::kStatistic, [&] {
        return groups > 1 || values > 1
                   ? check_stage_statistic_shape(f.name, t, values, groups, x_, error)
                   : check_statistic_shape(f.name, t, x_, error);
      });
    };
    switch (f.shape) {
      case kX:
        return rows(Kind::kRows, [&] {
          return &t == &x_ ? check_x_shape(t, error) : check_row_shape(f.name, t, x_, error);
        });
      case kGroupWeight:
        return weight(group());
      case kWeight:
        return weight(n());
      case kGroups:
        return statistic(1);
      case kSums:
        return statistic(layer ? 2 : 1);
      case kRow:  // one value, whatever groups there are
        return checked(dtype != Dtype::kUnknown, false, Kind::kStatistic,
                       [&] { return check_statistic_shape(f.name, t, x_, error); });
      default:  // a modulator; with an index it has no dimension of x
        if (out_.args.modulation_index != nullptr) return FASTNORM_OK;
        return rows(Kind::kWeights, [&] { return check_modulator_shape(f.name, t, x_, error); });
    }
  }

  // Columns of a group; those of a row where check_norm() will refuse the group.
  int64_t group() const {
    const int64_t n = x_.shape[x_.ndim - 1], size = out_.args.group_size;
    return size > 0 && n % size == 0 ? size : n;
  }

  // That of NONE where check_norm() will refuse the number.
  const QuantScheme& scheme() const {
    const auto i = static_cast<uint32_t>(number(out_.quant.scheme));
    return kQuantSchemes[i < std::size(kQuantSchemes) ? i : 0];
  }

  fastnorm_status codes() {
    const fastnorm_tensor** const field = &out_.quant.quantized;
    if (*field == nullptr) return FASTNORM_OK;
    const fastnorm_tensor& t = **field;
    const Dtype dtype = dtype_from(t.dtype);
    const bool fp4 = scheme().is_fp4();
    if (dtype == Dtype::kUnknown || (fp4 && x_.shape[x_.ndim - 1] % 2 != 0)) return FASTNORM_OK;
    const bool pairs = fp4 && (dtype == Dtype::kF4E2M1x2 || dtype == Dtype::kU8);
    FASTNORM_TRY(check_tensor("quant.quantized", t, {dtype, kMaxRank, true}, device_, error));
    FASTNORM_TRY(check_code_shape(t, x_, pairs, error));
    if (fp4 && !pairs) FASTNORM_TRY(check_code_strides(t, error));
    add(field, Kind::kCodes);
    return FASTNORM_OK;
  }

  // Scales by rows. A single scale and swizzled scales have no leading dimensions.
  fastnorm_status scales() {
    const fastnorm_tensor** const field = &out_.quant.scale;
    const QuantScheme& of = scheme();
    const int32_t block = of.block == kOwnBlock ? out_.quant.block_size : of.block;
    const bool known = block == 0 || block == 16 || block == 32 || block == 64 || block == 128;
    if (*field == nullptr || !known || of.scale == SchemeScale::kNone ||
        of.scale == SchemeScale::kInput ||
        number(out_.quant.scale_layout) == FASTNORM_SCALE_SWIZZLED_128X4) {
      return FASTNORM_OK;
    }
    const fastnorm_tensor& t = **field;
    const Dtype dtype = dtype_from(t.dtype);
    if (dtype == Dtype::kUnknown) return FASTNORM_OK;
    const int64_t n = x_.shape[x_.ndim - 1];
    FASTNORM_TRY(check_tensor("quant.scale", t, {dtype, kMaxRank, false}, device_, error));
    FASTNORM_TRY(
        check_scale_shape(t, x_, block == 0 ? 1 : (n + block - 1) / block, block == 0, error));
    add(field, Kind::kScales);
    return FASTNORM_OK;
  }

  // Adds a checked tensor, with its strides along x's leading dimensions.
  void add(const fastnorm_tensor** field, Kind kind) {
    const fastnorm_tensor& t = **field;
    Wide& w = wide_[count_++];
    w.given = &t;
    w.field = field;
    w.kind = kind;
    w.behind = kind == Kind::kWeights ? 1 : t.ndim - (x_.ndim - 1);
    const int32_t leading = x_.ndim - 1, first_behind = t.ndim - w.behind;
    const int32_t absent = kind == Kind::kWeights ? x_.ndim - t.ndim : 0;
    const bool by_columns = kind == Kind::kScales && t.strides == nullptr && w.behind != 0 &&
                            number(out_.quant.scale_layout) == FASTNORM_SCALE_COLUMN_MAJOR;
    // Unsigned: the products may overflow if there are no elements.
    uint64_t compact = 1;
    for (int32_t i = w.behind - 1; i >= 0; --i) {
      const int32_t dim = first_behind + i;
      const bool given = t.strides != nullptr && t.shape[dim] > 1;
      w.behind_strides[i] = given ? t.strides[dim] : static_cast<int64_t>(compact);
      if (!by_columns) compact *= static_cast<uint64_t>(t.shape[dim]);
    }
    for (int32_t d = leading - 1; d >= 0; --d) {
      w.strides[d] = 0;
      if (d < absent) continue;
      const int64_t extent = t.shape[d - absent];
      if (extent > 1) {
        w.strides[d] = t.strides != nullptr ? t.strides[d - absent] : static_cast<int64_t>(compact);
      }
      compact *= static_cast<uint64_t>(extent);
    }
    if (by_columns) w.behind_strides[0] = static_cast<int64_t>(compact);
  }

  void fold() {
    int32_t kept = 0;
    for (int32_t d = 0; d < rank_; ++d) {
      if (outer_[d] != 1) move(d, kept++);
    }
    rank_ = kept;
    for (int32_t d = rank_ - 2; d >= 0; --d) {
      if (!joins(d)) continue;
      outer_[d] *= outer_[d + 1];
      for (int i = 0; i < count_; ++i) wide_[i].strides[d] = wide_[i].strides[d + 1];
      for (int32_t later = d + 2; later < rank_; ++later) move(later, later - 1);
      --rank_;
    }
    if (rank_ > 0) return;
    rank_ = 1;  // a description has at least one
    outer_[0] = 1;
  }

  // True if every tensor continues along dimension d where d + 1 ends.
  bool joins(int32_t d) const {
    for (int i = 0; i < count_; ++i) {
      int64_t step = 0;
      const int64_t* const strides = wide_[i].strides;
      if (__builtin_mul_overflow(strides[d + 1], outer_[d + 1], &step) || strides[d] != step) {
        return false;
      }
    }
    return true;
  }

  void move(int32_t from, int32_t to) {
    outer_[to] = outer_[from];
    for (int i = 0; i < count_; ++i) wide_[i].strides[to] = wide_[i].strides[from];
  }

  void build(int i) {
    const Wide& w = wide_[i];
    // Without rows no tensor has elements, so none needs an address.
    bool varies = w.kind != Kind::kWeights || outer_[0] == 0;
    for (int32_t d = 0; d < rank_; ++d) varies |= w.strides[d] != 0 && outer_[d] > 1;
    int32_t rank = 0;
    for (int32_t d = 0; d < rank_ && varies; ++d, ++rank) {
      out_.shape[i][rank] = outer_[d];
      out_.strides[i][rank] = w.strides[d];
    }
    for (int32_t b = 0; b < w.behind; ++b, ++rank) {
      out_.shape[i][rank] = w.given->shape[w.given->ndim - w.behind + b];
      out_.strides[i][rank] = w.behind_strides[b];
    }
    fastnorm_tensor& t = out_.tensor[i];
    t = *w.given;
    t.ndim = rank;
    t.shape = out_.shape[i];
    t.strides = out_.strides[i];
    *w.field = &t;
  }

  const fastnorm_tensor& x_;
  const CheckedDevice device_;
  FoldedArgs& out_;
  Error& error;
  Wide wide_[FoldedArgs::kTensors];
  int count_ = 0;
  int32_t rank_ = 0;
  int64_t outer_[kMaxLeading];  // outermost first
};

}  // namespace

fastnorm_status fold_args(const fastnorm_norm_args& args, const fastnorm_quant* quant,
                          CheckedDevice device, FoldedArgs* folded, Error& error) {
  return Folder(args, quant, device, folded, error).run();
}

}  // namespace fastnorm
