// norm_heads on the CPU, through the C ABI: random calls against the model byte for byte, gaps between rows and pages included; and what
// the header promises of pairs of calls.
#include "fastnorm/norm_heads.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "cpu/isa.h"
#include "ref/data.h"
#include "ref/norm_heads_ref.h"
#include "ref/norm_model.h"
#include "ref/quant.h"
#include "unit/cpu/environment.h"

namespace fastnorm::test {
namespace {

using ref::Random;
using ref::Type;

constexpr fastnorm_dtype_id kDtypeIds[] = {FASTNORM_DTYPE_F32, FASTNORM_DTYPE_F16,
                                           FASTNORM_DTYPE_BF16};
fastnorm_dtype_id id_of(Type type) { return kDtypeIds[static_cast<int>(type)]; }

// Memory of a tensor, and what it should hold after a call. Strides are in elements.
struct Tensor {
  std::vector<int64_t> shape, strides;
  int64_t bytes = 4;  // of an element
  std::vector<unsigned char> now, expected;
  fastnorm_tensor abi = {};

  // `gap` elements are left between the indices of each dimension but the last.
  Tensor(std::vector<int64_t> extents, fastnorm_dtype_id dtype, int64_t gap = 0)
      : shape(std::move(extents)), strides(shape.size()) {
    const fastnorm_dtype d = fastnorm_dtype_of(dtype);
    bytes = d.bits * d.lanes / 8;
    int64_t step = 1;
    for (size_t i = shape.size(); i-- > 0;) {
      strides[i] = step;
      step = step * shape[i] + gap;
    }
    now.assign(static_cast<size_t>((step + 1) * bytes), 0xa5);
    expected = now;
    abi.device_type = FASTNORM_DEVICE_CPU;
    abi.dtype = d;
  }

  const fastnorm_tensor* get() {
    abi.data = now.data();
    abi.ndim = static_cast<int32_t>(shape.size());
    abi.shape = shape.data();
    abi.strides = strides.data();
    return &abi;
  }

  size_t place(std::initializer_list<int64_t> index) const {
    int64_t at = 0;
    size_t i = 0;
    for (const int64_t k : index) at += k * strides[i++];
    return static_cast<size_t>(at * bytes);
  }

  void set(size_t at, Type type, const float* values, int64_t n) {
    ref::encode_row(type, values, now.data() + at, n);
    std::memcpy(expected.data() + at, now.data() + at,
                static_cast<size_t>(n * ref::bytes_of(type)));
  }
  void expect(size_t at, Type type, const float* values, int64_t n) {
    ref::encode_row(type, values, expected.data() + at, n);
  }
  void expect_bytes(size_t at, const void* from, size_t count) {
    std::memcpy(expected.data() + at, from, count);
  }
  template <class Value>
  void set_number(size_t at, Value value) {
    std::memcpy(now.data() + at, &value, sizeof value);
    std::memcpy(expected.data() + at, &value, sizeof value);
  }
};

using Owned = std::unique_ptr<Tensor>;
template <class... Args>
Owned make(Args... args) {
  return std::make_unique<Tensor>(args...);
}
const fastnorm_tensor* abi_of(const Owned& t) { return t == nullptr ? nullptr : t->get(); }

struct Context {
  explicit Context(int32_t threads = 1) {
    fastnorm_context_options options = {};
    options.struct_size = sizeof options;
    options.num_threads = threads;
    const fastnorm_device cpu = {FASTNORM_DEVICE_CPU, 0};
    EXPECT_EQ(fastnorm_context_create(cpu, &options, &context), FASTNORM_OK)
        << fastnorm_last_error();
  }
  ~Context() { fastnorm_context_destroy(context); }
  fastnorm_context* context = nullptr;
};

// A part with its memory.
struct Part {
  fastnorm_norm_heads_part args = {};
  ref::HeadOptions options;
  ref::QuantOptions quant, cache_quant;
  int64_t heads = 1, n = 1;
  float tensor_scale = 0.5f;
  bool in_place = false;
  Owned x, weight, bias, y, mean, rstd, sumsq, codes, scale, amax, global, cache, cache_scale,
      cache_tensor_scale;

  bool across() const { return (args.flags & FASTNORM_NORM_HEADS_ACROSS_HEADS) != 0; }
  std::vector<Tensor*> tensors() const {
    std::vector<Tensor*> all;
    for (const Owned* t : {&x, &weight, &bias, &y, &mean, &rstd, &sumsq, &codes, &scale, &amax,
                           &global, &cache, &cache_scale, &cache_tensor_scale}) {
      if (*t != nullptr) all.push_back(t->get());
    }
    return all;
  }
  const fastnorm_norm_heads_part* get() {
    args.struct_size = sizeof args;
    args.x = abi_of(x);
    args.weight = abi_of(weight);
    args.bias = abi_of(bias);
    args.y = in_place ? args.x : abi_of(y);
    args.mean = abi_of(mean);
    args.rstd = abi_of(rstd);
    args.sumsq = abi_of(sumsq);
    args.quantized = abi_of(codes);
    args.scale = abi_of(scale);
    args.amax = abi_of(amax);
    args.global_scale = abi_of(global);
    args.cache = abi_of(cache);
    args.cache_scale = cache_scale != nullptr ? abi_of(cache_scale) : abi_of(cache_tensor_scale);
    return &args;
  }
};

constexpr int64_t kPositions = 37;

// A random call with its memory and what should be there afterwards.
class RandomCall {
 public:
  explicit RandomCall(uint64_t seed) : random_(seed) {
    type_ = ref::kTypes[random_.below(3)];
    tokens_ = random_.below(7);
    const int64_t dims[] = {0, 2, 6, 16, 24, 64, 128, 130};
    rope_dim_ = random_.of(dims);
    table_heads_ = random_.one_in(4) ? 1 + random_.below(3) : 0;
    const int64_t count = 1 + random_.below(4);
    make_slots();
    for (int64_t i = 0; i < count; ++i) make_part();
    bool rope = false, cache = false;
    for (const Part& p : parts_) {
      rope = rope || p.options.rope;
      cache = cache || p.cache != nullptr;
    }
    args_.struct_size = sizeof args_;
    if (rope) make_tables();
    if (!cache) slots_.reset();
    for (Part& p : parts_) predict(p);
  }

  fastnorm_status run(fastnorm_context* context) {
    args_.cos = abi_of(cos_);
    args_.sin = abi_of(sin_);
    args_.positions = abi_of(positions_);
    args_.slots = abi_of(slots_);
    std::vector<const fastnorm_norm_heads_part*> parts;
    for (Part& p : parts_) parts.push_back(p.get());
    return fastnorm_norm_heads(context, &args_, parts.data(), static_cast<int32_t>(parts.size()),
                               nullptr, 0, nullptr);
  }

  void compare() const {
    for (size_t i = 0; i < parts_.size(); ++i) {
      int number = 0;
      for (const Tensor* t : parts_[i].tensors()) {
        EXPECT_TRUE(t->now == t->expected) << "part " << i << ", tensor " << number;
        ++number;
      }
    }
  }

 private:
  void fill(Tensor& t, size_t at, int64_t n, ref::Pattern pattern = ref::Pattern::kNormal,
            bool as_f32 = false) {
    std::vector<float> values(static_cast<size_t>(n));
    const Type type = as_f32 ? Type::kF32 : type_;
    ref::fill_row(pattern, type, random_.next(), values.data(), n);
    t.set(at, type, values.data(), n);
  }

  void make_slots() {
    const int64_t count = random_.one_in(3) ? random_.below(tokens_ + 1) : tokens_;
    wide_ = random_.one_in(2);
    slots_ = make(std::vector<int64_t>{count}, wide_ ? FASTNORM_DTYPE_I64 : FASTNORM_DTYPE_I32);
    page_size_ = 1 + random_.below(5);
    for (int64_t t = 0; t < count; ++t) {
      const int64_t slot = random_.one_in(4) ? -1 : (t * 5 + 3) % 35;  // distinct
      slot_.push_back(slot);
      set_index(*slots_, t, slot);
    }
    pages_ = 35 / page_size_ + 1;
  }

  void set_index(Tensor& t, int64_t i, int64_t value) const {
    if (t.bytes == 8) return t.set_number(static_cast<size_t>(i * 8), value);
    t.set_number(static_cast<size_t>(i * 4), static_cast<int32_t>(value));
  }

  void make_part() {
    Part p;
    const int64_t columns[] = {1, 2, 8, 17, 32, 48, 64, 96, 128, 130, 192, 256, 512, 576, 1100};
    p.n = random_.of(columns);
    p.heads = table_heads_ != 0 ? table_heads_ : 1 + random_.below(4);
    p.options.norm.dtype = type_;
    p.x = make(std::vector<int64_t>{tokens_, p.heads, p.n}, id_of(type_), random_.below(3));
    for (int64_t t = 0; t < tokens_; ++t) {
      for (int64_t h = 0; h < p.heads; ++h) fill(*p.x, p.x->place({t, h}), p.n);
    }
    if (random_.one_in(2)) make_norm(p);
    if (rope_dim_ <= p.n && random_.one_in(2)) make_rope(p);
    if (random_.one_in(2)) make_codes(p);
    if (random_.one_in(2)) make_cache(p);
    p.in_place = random_.one_in(3);
    if (!p.in_place && (random_.one_in(2) || (p.codes == nullptr && p.cache == nullptr)))
      p.y = make(p.x->shape, id_of(type_), 2 * random_.below(2));
    if (random_.one_in(4)) p.amax = make_scalar(0.25f);
    parts_.push_back(std::move(p));
  }

  Owned make_scalar(float value) {
    Owned t = make(std::vector<int64_t>{1}, FASTNORM_DTYPE_F32);
    t->set_number(0, value);
    return t;
  }

  void make_norm(Part& p) {
    ref::NormOptions& o = p.options.norm;
    p.options.normalise = true;
    p.args.flags |= FASTNORM_NORM_HEADS_NORM;
    if (random_.one_in(3)) p.args.flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS;
    const bool layer = random_.one_in(3);
    o.kind = layer ? ref::Kind::kLayer : ref::Kind::kRms;
    o.rounding = static_cast<ref::Rounding>(random_.below(3));
    o.eps = 1e-5f;
    p.args.kind = layer ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS;
    p.args.rounding = static_cast<fastnorm_rounding>(static_cast<int>(o.rounding));
    p.args.eps = o.eps;
    if (!random_.one_in(4)) {
      p.weight = make_columns(p);
      if (random_.one_in(2)) p.args.weight_offset = o.weight_offset = 1;
    }
    if (random_.one_in(3)) p.bias = make_columns(p);
    std::vector<int64_t> rows = {tokens_};
    if (!p.across()) rows.push_back(p.heads);
    if (random_.one_in(2)) p.rstd = make(rows, FASTNORM_DTYPE_F32, 1);
    if (layer && random_.one_in(2)) p.mean = make(rows, FASTNORM_DTYPE_F32, 1);
    if (!layer && o.rounding != ref::Rounding::kEveryStep && random_.one_in(2))
      p.sumsq = make(rows, FASTNORM_DTYPE_F32, 2);
  }

  // Shared, or a row for each head.
  Owned make_columns(const Part& p) {
    const bool each = random_.one_in(2), f32 = random_.one_in(2);
    Owned t = each ? make(std::vector<int64_t>{p.heads, p.n},
                          f32 ? FASTNORM_DTYPE_F32 : id_of(type_), random_.below(2))
                   : make(std::vector<int64_t>{p.n}, f32 ? FASTNORM_DTYPE_F32 : id_of(type_));
    for (int64_t h = 0; h < (each ? p.heads : 1); ++h)
      fill(*t, t->place({h * (each ? 1 : 0)}), p.n, ref::Pattern::kWeights, f32);
    return t;
  }

  void make_rope(Part& p) {
    p.options.rope = true;
    p.args.flags |= FASTNORM_NORM_HEADS_ROPE;
    ref::RopeOptions& o = p.options.turn;
    o.half = rope_dim_ / 2;
    o.interleaved = random_.one_in(2);
    o.inverse = random_.one_in(3);
    o.every_step = random_.one_in(2);
    p.options.round_before_rope = random_.one_in(2);
    if (o.interleaved) p.args.flags |= FASTNORM_NORM_HEADS_ROPE_INTERLEAVED;
    if (o.inverse) p.args.flags |= FASTNORM_NORM_HEADS_ROPE_INVERSE;
    if (p.options.round_before_rope) p.args.flags |= FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED;
    p.args.rope_rounding = o.every_step ? FASTNORM_ROPE_EVERY_STEP : FASTNORM_ROPE_ONCE;
    const bool last = random_.one_in(2);
    o.offset = last ? p.n - rope_dim_ : random_.below(p.n - rope_dim_ + 1);
    p.args.rope_offset = last ? -1 : static_cast<int32_t>(o.offset);
  }

  bool rounds_codes(const Part& p) const {
    return p.args.quant_source == FASTNORM_QUANT_FROM_ROUNDED ||
           (p.options.normalise && p.options.norm.rounding == ref::Rounding::kEveryStep);
  }

  void make_codes(Part& p) {
    const fastnorm_dtype_id formats[] = {FASTNORM_DTYPE_F8_E4M3FN, FASTNORM_DTYPE_F8_E5M2,
                                         FASTNORM_DTYPE_I8};
    int64_t scheme = 1 + random_.below(5), format = random_.below(3);
    if (scheme == 5 && p.n % 2 != 0) scheme = 2;
    if (scheme == 4) format = random_.below(2);
    ref::QuantOptions& q = p.quant;
    q.scheme = ref::kSchemes[scheme];
    q.format = scheme == 5 ? ref::Format::kE2M1 : ref::kFormats[format];
    p.args.quant_scheme = static_cast<fastnorm_quant_scheme>(scheme);
    if (scheme == 3) q.block_size = p.args.quant_block_size = random_.one_in(2) ? 64 : 128;
    if (random_.one_in(3)) q.clamp = p.args.clamp = 1.5f;
    if (random_.one_in(2)) p.args.quant_source = FASTNORM_QUANT_FROM_ROUNDED;
    std::vector<int64_t> shape = {tokens_, p.heads, scheme == 5 ? p.n / 2 : p.n};
    p.codes =
        make(shape, scheme == 5 ? FASTNORM_DTYPE_F4_E2M1FN_X2 : formats[format], random_.below(2));
    shape[2] = ref::scopes_of(q, p.n);
    if (scheme == 1) {
      p.scale = make_scalar(p.tensor_scale);
    } else {
      p.scale = make(shape,
                     scheme == 5   ? FASTNORM_DTYPE_F8_E4M3FN
                     : scheme == 4 ? FASTNORM_DTYPE_F8_E8M0FNU
                                   : FASTNORM_DTYPE_F32,
                     random_.below(2));
    }
    if (scheme == 5) p.global = make_scalar(0.5f);
  }

  void make_cache(Part& p) {
    const fastnorm_dtype_id formats[] = {FASTNORM_DTYPE_F8_E4M3FN, FASTNORM_DTYPE_F8_E5M2,
                                         FASTNORM_DTYPE_I8};
    const std::vector<int64_t> shape = {pages_, page_size_, p.heads, p.n};
    const int64_t scheme = random_.below(3);
    if (scheme == 0) {
      p.cache = make(shape, id_of(type_), random_.below(3));
      return;
    }
    ref::QuantOptions& q = p.cache_quant;
    const bool pow2 = scheme == 2 && random_.one_in(2);
    const int64_t format = random_.below(pow2 ? 2 : 3);
    q.format = ref::kFormats[format];
    q.pow2 = q.e8m0 = pow2;
    p.cache = make(shape, formats[format], random_.below(3));
    if (p.codes == nullptr && random_.one_in(2)) p.args.quant_source = FASTNORM_QUANT_FROM_ROUNDED;
    if (scheme == 1) {
      q.scheme = ref::Scheme::kPerTensor;
      p.args.cache_scheme = FASTNORM_QUANT_PER_TENSOR;
      p.cache_tensor_scale = make_scalar(p.tensor_scale);
      return;
    }
    q.scheme = ref::Scheme::kPerBlock;
    q.block_size = p.args.cache_block_size = random_.one_in(2) ? 64 : 128;
    p.args.cache_scheme = FASTNORM_QUANT_PER_BLOCK;
    p.args.cache_pow2 = pow2 ? 1 : 0;
    p.cache_scale = make(std::vector<int64_t>{pages_, page_size_, p.heads, ref::scopes_of(q, p.n)},
                         pow2 ? FASTNORM_DTYPE_F8_E8M0FNU : FASTNORM_DTYPE_F32, random_.below(3));
  }

  void make_tables() {
    const int64_t half = rope_dim_ / 2;
    width_ = random_.one_in(2) ? half : 2 * half;
    table_f32_ = random_.one_in(2);
    std::vector<int64_t> shape = {kPositions, width_};
    if (table_heads_ != 0) shape.insert(shape.begin(), table_heads_);
    const fastnorm_dtype_id id = table_f32_ ? FASTNORM_DTYPE_F32 : id_of(type_);
    cos_ = make(shape, id, random_.below(3));
    sin_ = make(shape, id, random_.below(3));
    for (int64_t h = 0; h < std::max<int64_t>(1, table_heads_); ++h) {
      for (int64_t row = 0; row < kPositions && width_ != 0; ++row) {
        fill(*cos_, table_place(*cos_, h, row), width_, ref::Pattern::kNormal, table_f32_);
        fill(*sin_, table_place(*sin_, h, row), width_, ref::Pattern::kNormal, table_f32_);
      }
    }
    args_.rope_dim = static_cast<int32_t>(rope_dim_);
    if (!random_.one_in(4)) make_positions(half);
  }

  size_t table_place(const Tensor& t, int64_t head, int64_t row) const {
    return table_heads_ != 0 ? t.place({head, row}) : t.place({row});
  }

  void make_positions(int64_t half) {
    const int64_t axes[] = {0, 1, 3, 4};  // 0: of rank 1
    const int64_t rows = random_.of(axes);
    axes_ = static_cast<int>(std::max<int64_t>(1, rows));
    const bool wide = random_.one_in(2);
    const fastnorm_dtype_id id = wide ? FASTNORM_DTYPE_I64 : FASTNORM_DTYPE_I32;
    positions_ = rows == 0 ? make(std::vector<int64_t>{tokens_}, id)
                           : make(std::vector<int64_t>{rows, tokens_}, id);
    for (int64_t i = 0; i < axes_ * tokens_; ++i) {
      position_.push_back(random_.below(kPositions));
      set_index(*positions_, i, position_.back());
    }
    if (axes_ == 1) return;
    for (int a = 1; a < axes_; ++a) section_[a] = static_cast<int32_t>(half / (axes_ + 1));
    section_[0] = static_cast<int32_t>(half) - section_[1] * (axes_ - 1);
    args_.mrope_0 = section_[0], args_.mrope_1 = section_[1];
    args_.mrope_2 = section_[2], args_.mrope_3 = section_[3];
    mrope_interleaved_ = axes_ == 3 && random_.one_in(2);
    if (mrope_interleaved_) args_.flags = FASTNORM_NORM_HEADS_MROPE_INTERLEAVED;
  }

  // Cosines or sines of a token.
  std::vector<float> angles(const Tensor& table, const ref::RopeOptions& o, int64_t head,
                            int64_t token) const {
    const Type type = table_f32_ ? Type::kF32 : type_;
    std::vector<float> result;
    for (int64_t j = 0; j < o.half; ++j) {
      const int axis = axes_ == 1 ? 0 : ref::rope_axis(axes_, section_, mrope_interleaved_, j);
      const int64_t row =
          positions_ == nullptr ? token : position_[static_cast<size_t>(axis * tokens_ + token)];
      float value = 0;
      const size_t at = table_place(table, head, row) +
                        static_cast<size_t>(ref::rope_entry(o, width_, j) * table.bytes);
      ref::decode_row(type, table.now.data() + at, &value, 1);
      result.push_back(value);
    }
    return result;
  }

  std::vector<float> values(const Tensor& t, size_t at, int64_t n, bool f32 = false) const {
    std::vector<float> result(static_cast<size_t>(n));
    ref::decode_row(f32 ? Type::kF32 : type_, t.now.data() + at, result.data(), n);
    return result;
  }

  std::vector<float> column_values(const Owned& t, const Part& p, int64_t head) const {
    if (t == nullptr) return {};
    const bool f32 = t->abi.dtype.bits == 32;
    return values(*t, t->shape.size() == 2 ? t->place({head}) : 0, p.n, f32);
  }

  void predict(Part& p) {
    ref::NormResult across;
    for (int64_t t = 0; t < tokens_; ++t) {
      if (p.options.normalise && p.across()) {
        std::vector<float> row;
        for (int64_t h = 0; h < p.heads; ++h) {
          const std::vector<float> more = values(*p.x, p.x->place({t, h}), p.n);
          row.insert(row.end(), more.begin(), more.end());
        }
        predict_statistic(p, row, t, 0, &across);
      }
      for (int64_t h = 0; h < p.heads; ++h) predict_head(p, t, h, across);
    }
  }

  void predict_statistic(Part& p, const std::vector<float>& x, int64_t t, int64_t h,
                         ref::NormResult* result) {
    const ref::NormRow row = {static_cast<int64_t>(x.size()), x.data()};
    ref::norm_model(p.options.norm, row, ref::Order::kCpu, &scratch_, result);
    std::vector<float> partial;
    const float squares =
        ref::ordered_sum_of_squares(ref::Order::kCpu, type_, x.data(), row.n, &partial);
    const auto put = [&](const Owned& to, float value) {
      if (to == nullptr) return;
      to->expect(p.across() ? to->place({t}) : to->place({t, h}), Type::kF32, &value, 1);
    };
    put(p.mean, result->mean);
    put(p.rstd, result->rstd);
    put(p.sumsq, squares);
  }

  void predict_head(Part& p, int64_t t, int64_t h, const ref::NormResult& across) {
    const std::vector<float> x = values(*p.x, p.x->place({t, h}), p.n);
    const std::vector<float> weight = column_values(p.weight, p, h),
                             bias = column_values(p.bias, p, h);
    ref::NormRow row = {p.n, x.data(), nullptr, weight.empty() ? nullptr : weight.data(),
                        bias.empty() ? nullptr : bias.data()};
    ref::NormResult own;
    if (p.options.normalise && !p.across()) predict_statistic(p, x, t, h, &own);
    const ref::NormResult& s = p.across() ? across : own;
    std::vector<float> c, sn, o(static_cast<size_t>(p.n));
    if (p.options.rope) {
      c = angles(*cos_, p.options.turn, h, t);
      sn = angles(*sin_, p.options.turn, h, t);
    }
    ref::head_model(p.options, row, s.mean, s.rstd, c.data(), sn.data(), o.data());
    if (p.in_place) p.x->expect(p.x->place({t, h}), type_, o.data(), p.n);
    if (p.y != nullptr) p.y->expect(p.y->place({t, h}), type_, o.data(), p.n);
    predict_codes(p, t, h, o);
    predict_cache(p, t, h, o);
  }

  void predict_codes(Part& p, int64_t t, int64_t h, const std::vector<float>& o) {
    if (p.codes == nullptr && p.amax == nullptr) return;
    ref::QuantOptions q = p.quant;
    q.source =
        rounds_codes(p) || p.codes == nullptr ? ref::QuantSource::kRounded : ref::QuantSource::kF32;
    ref::QuantResult r;
    ref::quant_model(q, o.data(), p.n, type_, p.tensor_scale, 0.5f, &r);
    if (p.amax != nullptr) {
      float most = 0;
      std::memcpy(&most, p.amax->expected.data(), sizeof most);
      most = ref::max_magnitude(most, r.amax);
      p.amax->expect(0, Type::kF32, &most, 1);
    }
    if (p.codes == nullptr) return;
    put_codes(q, r, p.n, *p.codes, p.codes->place({t, h}));
    if (q.scheme != ref::Scheme::kPerTensor) put_scales(q, r, *p.scale, p.scale->place({t, h}));
  }

  static void put_codes(const ref::QuantOptions& q, const ref::QuantResult& r, int64_t n,
                        Tensor& to, size_t at) {
    std::vector<uint8_t> bytes = r.codes;
    if (q.format == ref::Format::kE2M1) {
      ref::pack_e2m1(r.codes.data(), n, bytes.data());
      bytes.resize(static_cast<size_t>(n / 2));
    }
    to.expect_bytes(at, bytes.data(), bytes.size());
  }

  static void put_scales(const ref::QuantOptions& q, const ref::QuantResult& r, Tensor& to,
                         size_t at) {
    if (ref::has_scale_bytes(q)) {
      to.expect_bytes(at, r.scale_bytes.data(), r.scale_bytes.size());
    } else {
      to.expect(at, Type::kF32, r.scale.data(), static_cast<int64_t>(r.scale.size()));
    }
  }

  void predict_cache(Part& p, int64_t t, int64_t h, const std::vector<float>& o) {
    if (p.cache == nullptr || t >= static_cast<int64_t>(slot_.size())) return;
    const int64_t slot = slot_[static_cast<size_t>(t)];
    if (slot < 0) return;
    const int64_t page = slot / page_size_, row = slot % page_size_;
    const size_t at = p.cache->place({page, row, h});
    ref::QuantOptions q = p.cache_quant;
    if (q.scheme == ref::Scheme::kNone) return p.cache->expect(at, type_, o.data(), p.n);
    q.source = rounds_codes(p) ? ref::QuantSource::kRounded : ref::QuantSource::kF32;
    ref::QuantResult r;
    ref::quant_model(q, o.data(), p.n, type_, p.tensor_scale, 1, &r);
    put_codes(q, r, p.n, *p.cache, at);
    if (p.cache_scale != nullptr)
      put_scales(q, r, *p.cache_scale, p.cache_scale->place({page, row, h}));
  }

  Random random_;
  Type type_ = Type::kF32;
  int64_t tokens_ = 0, rope_dim_ = 0, table_heads_ = 0, page_size_ = 1, pages_ = 1, width_ = 0;
  bool wide_ = false, table_f32_ = true, mrope_interleaved_ = false;
  int axes_ = 1;
  int32_t section_[4] = {};
  std::vector<int64_t> slot_, position_;
  std::vector<Part> parts_;
  fastnorm_norm_heads_args args_ = {};
  Owned cos_, sin_, positions_, slots_;
  ref::ModelScratch scratch_;
};

// Calls use() with each instruction set of this machine in force.
template <class Use>
void for_each_isa(Use use) {
  for (const cpu::IsaKernels& isa : cpu::built_isas()) {
    if (isa.isa > cpu::machine_features().best) continue;
    SCOPED_TRACE(isa.name);
    const Variable forced("FASTNORM_CPU_ISA", isa.name);
    use();
  }
}

constexpr int kCalls = 400;

TEST(NormHeads, RandomCallsEqualTheModel) {
  for_each_isa([] {
    const Context one, three(3);
    for (int seed = 0; seed < kCalls && !::testing::Test::HasFailure(); ++seed) {
      SCOPED_TRACE(seed);
      RandomCall call(static_cast<uint64_t>(seed));
      ASSERT_EQ(call.run(seed % 3 == 0 ? three.context : one.context), FASTNORM_OK)
          << fastnorm_last_error();
      call.compare();
    }
  });
}

// A call of one part, easy to change. Tokens are at positions 0, 1, ..
struct OneCall {
  OneCall(Type t, int64_t count, int64_t head_count, int64_t columns, uint64_t seed = 1)
      : type(t), tokens(count) {
    args.struct_size = sizeof args;
    part.heads = head_count;
    part.n = columns;
    part.x = make(std::vector<int64_t>{tokens, head_count, columns}, id_of(type));
    std::vector<float> values(static_cast<size_t>(tokens * head_count * columns));
    ref::fill_row(ref::Pattern::kNormal, type, seed, values.data(),
                  static_cast<int64_t>(values.size()));
    part.x->set(0, type, values.data(), static_cast<int64_t>(values.size()));
    part.y = make(part.x->shape, id_of(type));
  }

  void norm(fastnorm_norm_kind kind, uint32_t more = 0) {
    part.args.flags |= FASTNORM_NORM_HEADS_NORM | more;
    part.args.kind = kind;
    part.args.eps = 1e-6f;
  }

  // The angles of token t are t * 10000^(-j / R).
  void rope(int64_t rope_dim, uint32_t more = 0) {
    part.args.flags |= FASTNORM_NORM_HEADS_ROPE | more;
    part.args.rope_offset = -1;
    args.rope_dim = static_cast<int32_t>(rope_dim);
    const int64_t half = rope_dim / 2;
    cos = make(std::vector<int64_t>{tokens, half}, FASTNORM_DTYPE_F32);
    sin = make(std::vector<int64_t>{tokens, half}, FASTNORM_DTYPE_F32);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t j = 0; j < half; ++j) {
        const double angle = static_cast<double>(t) *
                             std::pow(10000.0, -static_cast<double>(j) / static_cast<double>(half));
        cos->set_number(cos->place({t, j}), static_cast<float>(std::cos(angle)));
        sin->set_number(sin->place({t, j}), static_cast<float>(std::sin(angle)));
      }
    }
  }

  // Statistics of the part's rows, with a last 2 where `pairs`.
  Owned statistic(bool pairs = false) const {
    std::vector<int64_t> shape = {tokens};
    if (!part.across()) shape.push_back(part.heads);
    if (pairs) shape.push_back(2);
    return make(shape, FASTNORM_DTYPE_F32);
  }

  fastnorm_status run(fastnorm_context* context) {
    args.cos = abi_of(cos);
    args.sin = abi_of(sin);
    args.positions = abi_of(positions);
    args.slots = abi_of(slots);
    const fastnorm_norm_heads_part* parts[] = {part.get()};
    part.args.mean_in = abi_of(mean_in);
    part.args.rstd_in = abi_of(rstd_in);
    return fastnorm_norm_heads(context, &args, parts, 1, nullptr, 0, nullptr);
  }

  std::vector<float> row(const Owned& t, int64_t token, int64_t head) const {
    std::vector<float> values(static_cast<size_t>(part.n));
    ref::decode_row(type, t->now.data() + t->place({token, head}), values.data(), part.n);
    return values;
  }

  Type type;
  int64_t tokens;
  Part part;
  fastnorm_norm_heads_args args = {};
  Owned cos, sin, positions, slots, mean_in, rstd_in;
};

float number_at(const Owned& t, std::initializer_list<int64_t> index) {
  float value = 0;
  std::memcpy(&value, t->now.data() + t->place(index), sizeof value);
  return value;
}

constexpr fastnorm_norm_kind kKinds[] = {FASTNORM_NORM_RMS, FASTNORM_NORM_LAYER};
constexpr uint32_t kStyles[] = {0, FASTNORM_NORM_HEADS_ROPE_INTERLEAVED};

TEST(NormHeads, ARopeOfANormIsTwoCalls) {
  for_each_isa([] {
    const Context context;
    for (const Type type : ref::kTypes) {
      for (const int64_t columns : {64, 130, 576}) {
        for (const fastnorm_norm_kind kind : kKinds) {
          for (const uint32_t style : kStyles) {
            OneCall both(type, 5, 3, columns), rope(type, 5, 3, columns);
            both.norm(kind);
            both.rope(64, style | FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED);
            ASSERT_EQ(both.run(context.context), FASTNORM_OK) << fastnorm_last_error();
            fastnorm_norm_args norm = {};
            norm.struct_size = sizeof norm;
            norm.kind = kind;
            norm.eps = 1e-6f;
            norm.x = both.part.x->get();
            norm.y = rope.part.x->get();
            ASSERT_EQ(fastnorm_norm(context.context, &norm, nullptr, 0, nullptr), FASTNORM_OK);
            rope.rope(64, style);
            ASSERT_EQ(rope.run(context.context), FASTNORM_OK) << fastnorm_last_error();
            EXPECT_TRUE(both.part.y->now == rope.part.y->now);
          }
        }
      }
    }
  });
}

// Of a value of T.
double ulp(Type type, double value) {
  const int digits = type == Type::kF32 ? 23 : type == Type::kF16 ? 10 : 7;
  const int least = type == Type::kF16 ? -14 : -126;
  const int exponent = value == 0 ? least : std::max(std::ilogb(value), least);
  return std::ldexp(1.0, exponent - digits);
}

TEST(NormHeads, TheInverseUndoesRope) {
  for_each_isa([] {
    const Context context;
    for (const Type type : ref::kTypes) {
      for (const uint32_t style : kStyles) {
        OneCall there(type, 40, 3, 128, 7), back(type, 40, 3, 128);
        there.rope(96, style);
        ASSERT_EQ(there.run(context.context), FASTNORM_OK) << fastnorm_last_error();
        back.rope(96, style | FASTNORM_NORM_HEADS_ROPE_INVERSE);
        back.part.x->now = there.part.y->now;
        ASSERT_EQ(back.run(context.context), FASTNORM_OK) << fastnorm_last_error();
        EXPECT_FALSE(there.part.y->now == there.part.x->now);
        const ref::RopeOptions turn = {style != 0, false, false, 32, 48};
        const double most = type == Type::kF32 ? 4 : 2;
        for (int64_t t = 0; t < 40; ++t) {
          for (int64_t h = 0; h < 3; ++h) {
            const std::vector<float> x = there.row(there.part.x, t, h),
                                     z = back.row(back.part.y, t, h);
            for (size_t i = 0; i < 32; ++i) ASSERT_EQ(x[i], z[i]);
            for (int64_t j = 0; j < 48; ++j) {
              const ref::RopePair p = ref::rope_pair(turn, j);
              const auto a = static_cast<size_t>(p.first), b = static_cast<size_t>(p.second);
              const double larger = static_cast<double>(std::max(std::fabs(x[a]), std::fabs(x[b])));
              const double limit = most * ulp(type, larger);
              ASSERT_LE(std::fabs(static_cast<double>(x[a]) - static_cast<double>(z[a])), limit);
              ASSERT_LE(std::fabs(static_cast<double>(x[b]) - static_cast<double>(z[b])), limit);
            }
          }
        }
      }
    }
  });
}

TEST(NormHeads, ResultsLieWithinTheBoundsOfDouble) {
  for_each_isa([] {
    const Context context;
    for (const fastnorm_norm_kind kind : kKinds) {
      for (const uint32_t style : kStyles) {
        OneCall call(Type::kF32, 9, 4, 192, 3);
        call.norm(kind);
        call.rope(128, style);
        call.part.rstd = call.statistic();
        if (kind == FASTNORM_NORM_LAYER) call.part.mean = call.statistic();
        ASSERT_EQ(call.run(context.context), FASTNORM_OK) << fastnorm_last_error();
        ref::HeadOptions o;
        o.normalise = o.rope = true;
        o.turn = {style != 0, false, false, 64, 64};
        for (int64_t t = 0; t < 9; ++t) {
          for (int64_t h = 0; h < 4; ++h) {
            const std::vector<float> x = call.row(call.part.x, t, h),
                                     y = call.row(call.part.y, t, h);
            std::vector<double> exact(192), bound(192);
            const float mean = call.part.mean == nullptr ? 0 : number_at(call.part.mean, {t, h});
            ref::head_ref(
                o, {192, x.data()}, static_cast<double>(mean),
                static_cast<double>(number_at(call.part.rstd, {t, h})),
                reinterpret_cast<const float*>(call.cos->now.data() + call.cos->place({t})),
                reinterpret_cast<const float*>(call.sin->now.data() + call.sin->place({t})),
                exact.data(), bound.data());
            for (size_t i = 0; i < x.size(); ++i) {
              ASSERT_NEAR(static_cast<double>(y[i]), exact[i],
                          bound[i] + 0x1p-24 * std::fabs(exact[i]))
                  << t << ", " << h << ", " << i;
            }
          }
        }
      }
    }
  });
}

TEST(NormHeads, StatisticsThatAreGivenAreAsGoodAsComputed) {
  const Context context;
  for (const fastnorm_norm_kind kind : kKinds) {
    for (const uint32_t across : {0u, uint32_t{FASTNORM_NORM_HEADS_ACROSS_HEADS}}) {
      OneCall first(Type::kBF16, 6, 5, 96), second(Type::kBF16, 6, 5, 96);
      first.norm(kind, across);
      second.norm(kind, across);
      first.part.rstd = first.statistic();
      if (kind == FASTNORM_NORM_LAYER) first.part.mean = first.statistic();
      ASSERT_EQ(first.run(context.context), FASTNORM_OK) << fastnorm_last_error();
      second.rstd_in = std::move(first.part.rstd);
      second.mean_in = std::move(first.part.mean);
      ASSERT_EQ(second.run(context.context), FASTNORM_OK) << fastnorm_last_error();
      EXPECT_TRUE(first.part.y->now == second.part.y->now);
      const float doubled = 2 * number_at(second.rstd_in, {2});
      std::memcpy(second.rstd_in->now.data() + second.rstd_in->place({2}), &doubled, 4);
      ASSERT_EQ(second.run(context.context), FASTNORM_OK) << fastnorm_last_error();
      EXPECT_FALSE(first.part.y->now == second.part.y->now);
    }
  }
}

// The statistic of all heads from sums of two halves of them, as two devices would have.
TEST(NormHeads, SumsOfSquaresMakeAStatisticOfAllHeads) {
  const Context context;
  for (const fastnorm_norm_kind kind : kKinds) {
    const bool layer = kind == FASTNORM_NORM_LAYER;
    OneCall whole(Type::kF32, 3, 4, 64);
    whole.norm(kind, FASTNORM_NORM_HEADS_ACROSS_HEADS);
    whole.part.rstd = whole.statistic();
    ASSERT_EQ(whole.run(context.context), FASTNORM_OK) << fastnorm_last_error();
    Owned sums[2];
    for (int64_t half = 0; half < 2; ++half) {
      OneCall part(Type::kF32, 3, 2, 64);
      part.norm(kind, FASTNORM_NORM_HEADS_ACROSS_HEADS);
      for (int64_t t = 0; t < 3; ++t) {
        std::memcpy(part.part.x->now.data() + part.part.x->place({t}),
                    whole.part.x->now.data() + whole.part.x->place({t, 2 * half}), 2 * 64 * 4);
      }
      part.part.y.reset();  // the sums are the only output
      part.part.sumsq = part.statistic(layer);
      ASSERT_EQ(part.run(context.context), FASTNORM_OK) << fastnorm_last_error();
      sums[half] = std::move(part.part.sumsq);
    }
    for (int64_t t = 0; t < 3; ++t) {
      double squares = 0;
      if (layer) {
        const double a = static_cast<double>(number_at(sums[0], {t, 0})),
                     b = static_cast<double>(number_at(sums[1], {t, 0}));
        squares = static_cast<double>(number_at(sums[0], {t, 1})) +
                  static_cast<double>(number_at(sums[1], {t, 1})) + (a - b) * (a - b) * 64;
      } else {
        squares = static_cast<double>(number_at(sums[0], {t})) +
                  static_cast<double>(number_at(sums[1], {t}));
      }
      const double rstd = 1 / std::sqrt(squares / 256 + 1e-6);
      EXPECT_NEAR(static_cast<double>(number_at(whole.part.rstd, {t})), rstd, 1e-6 * rstd);
    }
  }
}

TEST(NormHeads, PaddingOfNanTouchesNoOtherRow) {
  for_each_isa([] {
    const Context context;
    OneCall clean(Type::kBF16, 4, 3, 128), dirty(Type::kBF16, 4, 3, 128);
    for (OneCall* call : {&clean, &dirty}) {
      call->norm(FASTNORM_NORM_RMS);
      call->rope(128);
      call->slots = make(std::vector<int64_t>{4}, FASTNORM_DTYPE_I32);
      for (int32_t t = 0; t < 4; ++t)
        call->slots->set_number(static_cast<size_t>(t) * 4, t == 1 ? -1 : t);
      call->part.cache = make(std::vector<int64_t>{2, 3, 3, 128}, FASTNORM_DTYPE_BF16);
    }
    std::memset(dirty.part.x->now.data() + dirty.part.x->place({1}), 0xff, 3 * 128 * 2);
    ASSERT_EQ(clean.run(context.context), FASTNORM_OK) << fastnorm_last_error();
    ASSERT_EQ(dirty.run(context.context), FASTNORM_OK) << fastnorm_last_error();
    EXPECT_TRUE(clean.part.cache->now == dirty.part.cache->now);
    for (int64_t h = 0; h < 3; ++h) EXPECT_TRUE(std::isnan(dirty.row(dirty.part.y, 1, h)[5]));
    std::memcpy(dirty.part.y->now.data() + dirty.part.y->place({1}),
                clean.part.y->now.data() + clean.part.y->place({1}), 3 * 128 * 2);
    EXPECT_TRUE(clean.part.y->now == dirty.part.y->now);
  });
}

TEST(NormHeads, BadNumbersAreFoundBeforeAnythingIsWritten) {
  const Context context;
  OneCall call(Type::kF32, 4, 2, 32);
  call.rope(32);
  call.positions = make(std::vector<int64_t>{4}, FASTNORM_DTYPE_I64);
  call.slots = make(std::vector<int64_t>{4}, FASTNORM_DTYPE_I64);
  call.part.cache = make(std::vector<int64_t>{2, 3, 2, 32}, FASTNORM_DTYPE_F32);
  const auto set = [](const Owned& t, int64_t i, int64_t value) {
    t->set_number(t->place({i}), value);
  };
  for (int64_t t = 0; t < 4; ++t) set(call.positions, t, 3 - t), set(call.slots, t, t);
  const auto refused = [&](const char* text) {
    EXPECT_EQ(call.run(context.context), FASTNORM_ERROR_ARGUMENT);
    EXPECT_NE(std::strstr(fastnorm_last_error(), text), nullptr) << fastnorm_last_error();
    EXPECT_TRUE(call.part.y->now == call.part.y->expected);
    EXPECT_TRUE(call.part.cache->now == call.part.cache->expected);
  };
  set(call.positions, 3, 4);
  refused("the position of token 3");
  set(call.positions, 3, 0);
  set(call.slots, 3, 6);
  refused("slots[3] is 6");
  set(call.slots, 3, 5);
  EXPECT_EQ(call.run(context.context), FASTNORM_OK) << fastnorm_last_error();
}

// Tokens more than 2^31 elements apart, in memory of which few pages are used.
TEST(NormHeads, TokensFarApart) {
  constexpr int64_t kApart = (int64_t{1} << 31) + 8;
  constexpr size_t kBytes = static_cast<size_t>(kApart + 64) * 2;
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no address space of 4 GiB";
  const Context context;
  OneCall near(Type::kBF16, 2, 1, 64), far(Type::kBF16, 2, 1, 64);
  near.norm(FASTNORM_NORM_RMS);
  near.rope(64);
  ASSERT_EQ(near.run(context.context), FASTNORM_OK) << fastnorm_last_error();
  far.norm(FASTNORM_NORM_RMS);
  far.rope(64);
  far.part.y.reset();
  far.part.in_place = true;
  far.part.x->strides[0] = kApart;
  auto* const bytes = static_cast<unsigned char*>(memory);
  for (int64_t t = 0; t < 2; ++t)
    std::memcpy(bytes + t * kApart * 2, near.part.x->now.data() + t * 128, 128);
  const fastnorm_norm_heads_part* parts[] = {far.part.get()};
  far.part.x->abi.data = memory;
  far.args.cos = abi_of(far.cos);
  far.args.sin = abi_of(far.sin);
  ASSERT_EQ(fastnorm_norm_heads(context.context, &far.args, parts, 1, nullptr, 0, nullptr),
            FASTNORM_OK)
      << fastnorm_last_error();
  for (int64_t t = 0; t < 2; ++t)
    EXPECT_EQ(std::memcmp(bytes + t * kApart * 2, near.part.y->now.data() + t * 128, 128), 0);
  munmap(memory, kBytes);
}

}  // namespace
}  // namespace fastnorm::test
