#include "support/norm_heads_call.h"

#include <algorithm>
#include <cmath>

#include "support/call_scales.h"

namespace fastnorm::support {

using ref::Type;

void set_index(CallTensor& t, int64_t i, int64_t value) {
  if (t.bytes == 8) return t.set_number(static_cast<size_t>(i * 8), value);
  t.set_number(static_cast<size_t>(i * 4), static_cast<int32_t>(value));
}

void CallTables::make(ref::Random& random, fastnorm_norm_heads_args* args) {
  const int64_t half = rope_dim / 2;
  width_ = random.one_in(2) ? half : 2 * half;
  f32_ = random.one_in(2);
  std::vector<int64_t> shape = {kPositions, width_};
  if (heads != 0) shape.insert(shape.begin(), heads);
  const fastnorm_dtype_id id = f32_ ? FASTNORM_DTYPE_F32 : id_of(type);
  // Of aligned calls some tables are not.
  const int64_t between = aligned && random.one_in(4) ? 1 : random.below(3) * (aligned ? 16 : 1);
  cos = make_tensor(shape, id, between);
  sin = make_tensor(shape, id, between);
  for (int64_t h = 0; h < std::max<int64_t>(1, heads); ++h) {
    for (int64_t row = 0; row < kPositions && width_ != 0; ++row) {
      fill(random, *cos, h, row);
      fill(random, *sin, h, row);
    }
  }
  args->rope_dim = static_cast<int32_t>(rope_dim);
  if (many || !random.one_in(4)) make_positions(random, args);
}

void CallTables::fill(ref::Random& random, CallTensor& t, int64_t head, int64_t row) const {
  std::vector<float> values(static_cast<size_t>(width_));
  const Type of_table = f32_ ? Type::kF32 : type;
  ref::fill_row(ref::Pattern::kNormal, of_table, random.next(), values.data(), width_);
  t.set(place(t, head, row), of_table, values.data(), width_);
}

size_t CallTables::place(const CallTensor& t, int64_t head, int64_t row) const {
  return heads != 0 ? t.place({head, row}) : t.place({row});
}

void CallTables::give(fastnorm_norm_heads_args* args) {
  args->cos = abi_of(cos);
  args->sin = abi_of(sin);
  args->positions = abi_of(positions);
}

void CallTables::spread(int64_t first, int64_t stride) {
  for (const OwnedTensor* t : {&cos, &sin}) {
    (*t)->far_first = first;
    (*t)->far_stride = stride;
  }
  for (size_t i = 0; i < position_.size(); ++i)
    set_index(*positions, static_cast<int64_t>(i), first + position_[i]);
}

void CallTables::make_positions(ref::Random& random, fastnorm_norm_heads_args* args) {
  const int64_t half = rope_dim / 2;
  const int64_t axes[] = {0, 1, 3, 4};  // 0: of rank 1
  const int64_t rows = aligned && random.one_in(2) ? 0 : random.of(axes);
  axes_ = static_cast<int>(std::max<int64_t>(1, rows));
  const bool wide = random.one_in(2);
  const fastnorm_dtype_id id = wide ? FASTNORM_DTYPE_I64 : FASTNORM_DTYPE_I32;
  positions = rows == 0 ? make_tensor(std::vector<int64_t>{tokens}, id)
                        : make_tensor(std::vector<int64_t>{rows, tokens}, id);
  for (int64_t i = 0; i < axes_ * tokens; ++i) {
    position_.push_back(random.below(kPositions));
    set_index(*positions, i, position_.back());
  }
  if (axes_ == 1) return;
  for (int a = 1; a < axes_; ++a) section_[a] = static_cast<int32_t>(half / (axes_ + 1));
  section_[0] = static_cast<int32_t>(half) - section_[1] * (axes_ - 1);
  args->mrope_0 = section_[0], args->mrope_1 = section_[1];
  args->mrope_2 = section_[2], args->mrope_3 = section_[3];
  interleaved_ = axes_ == 3 && random.one_in(2);
  if (interleaved_) args->flags = FASTNORM_NORM_HEADS_MROPE_INTERLEAVED;
}

std::vector<float> CallTables::angles(const CallTensor& table, const ref::RopeOptions& o,
                                      int64_t head, int64_t token) const {
  const Type of_table = f32_ ? Type::kF32 : type;
  std::vector<float> result;
  for (int64_t j = 0; j < o.half; ++j) {
    const int axis = axes_ == 1 ? 0 : ref::rope_axis(axes_, section_, interleaved_, j);
    const int64_t row =
        positions == nullptr ? token : position_[static_cast<size_t>(axis * tokens + token)];
    float value = 0;
    const size_t at =
        place(table, head, row) + static_cast<size_t>(ref::rope_entry(o, width_, j) * table.bytes);
    ref::decode_row(of_table, table.now.data() + at, &value, 1);
    result.push_back(value);
  }
  return result;
}

std::vector<CallTensor*> CallPart::tensors() const {
  std::vector<CallTensor*> all;
  for (const OwnedTensor* t :
       {&x, &weight, &bias, &y, &mean, &rstd, &sumsq, &mean_in, &rstd_in, &codes, &scale, &amax,
        &global, &clamp, &cache, &cache_scale, &cache_tensor_scale}) {
    if (*t != nullptr) all.push_back(t->get());
  }
  return all;
}

const fastnorm_norm_heads_part* CallPart::get() {
  args.struct_size = sizeof args;
  args.x = abi_of(x);
  args.weight = abi_of(weight);
  args.bias = abi_of(bias);
  args.y = in_place ? args.x : abi_of(y);
  args.mean = abi_of(mean);
  args.rstd = abi_of(rstd);
  args.sumsq = abi_of(sumsq);
  args.mean_in = abi_of(mean_in);
  args.rstd_in = abi_of(rstd_in);
  args.quantized = abi_of(codes);
  args.scale = abi_of(scale);
  args.amax = abi_of(amax);
  args.global_scale = abi_of(global);
  args.clamp_scale = abi_of(clamp);
  args.cache = abi_of(cache);
  args.cache_scale = cache_scale != nullptr ? abi_of(cache_scale) : abi_of(cache_tensor_scale);
  return &args;
}

RandomHeadsCall::RandomHeadsCall(uint64_t seed, ref::Order order, CallKind kind)
    : random_(seed),
      seed_(seed),
      order_(order),
      aligned_(kind != CallKind::kAny),
      many_(kind == CallKind::kMany || kind == CallKind::kLarge),
      more_(kind == CallKind::kMore || (kind == CallKind::kFew && seed % 2 == 0)),
      across_(kind == CallKind::kAcross),
      latents_(kind == CallKind::kLatents),
      large_(kind == CallKind::kLarge),
      few_(kind == CallKind::kFew) {
  type_ = ref::kTypes[across_ || latents_ || few_ ? 1 + random_.below(2) : random_.below(3)];
  tokens_ = large_     ? 320 + random_.below(80)
            : many_    ? 100 + random_.below(300)
            : few_     ? 3
            : aligned_ ? 1 + random_.below(9)
                       : random_.below(7);
  const int64_t dims[] = {0, 2, 6, 16, 24, 64, 128, 130}, whole[] = {16, 32, 48, 64, 96, 128, 256};
  rope_dim_ = aligned_ ? random_.of(whole) : random_.of(dims);
  if (latents_) rope_dim_ = random_.of({16, 32, 64});
  table_heads_ = !latents_ && random_.one_in(aligned_ ? 9 : 4) ? 1 + random_.below(3) : 0;
  if (large_ || few_) rope_dim_ = 16 * (1 + random_.below(2)), table_heads_ = 0;
  const int64_t count = large_ || few_ ? 1 : random_.one_in(16) ? 8 : 1 + random_.below(4);
  make_slots();
  for (int64_t i = 0; i < count; ++i) make_part();
  bool rope = false, cache = false;
  for (const CallPart& p : parts_) {
    rope = rope || p.options.rope;
    cache = cache || p.cache != nullptr;
  }
  args_.struct_size = sizeof args_;
  if (rope) {
    tables_.type = type_;
    tables_.tokens = tokens_;
    tables_.rope_dim = rope_dim_;
    tables_.heads = table_heads_;
    tables_.aligned = aligned_;
    tables_.many = many_ || few_;
    tables_.make(random_, &args_);
  }
  if (!cache) slots_.reset();
}

void RandomHeadsCall::expect_results() {
  for (CallPart& p : parts_) predict(p);
}

void RandomHeadsCall::spread_rows(int64_t stride) {
  for (CallPart& p : parts_) {
    for (const OwnedTensor* t : {&p.x, &p.y, &p.codes, &p.cache}) {
      if (*t != nullptr) (*t)->far_stride = stride;
    }
  }
}

std::vector<CallTensor*> RandomHeadsCall::tensors() const {
  std::vector<CallTensor*> all;
  for (const CallPart& p : parts_) {
    for (CallTensor* t : p.tensors()) all.push_back(t);
  }
  for (const OwnedTensor* t : {&tables_.cos, &tables_.sin, &tables_.positions, &slots_}) {
    if (*t != nullptr) all.push_back(t->get());
  }
  return all;
}

const fastnorm_norm_heads_args& RandomHeadsCall::args() {
  tables_.give(&args_);
  args_.slots = abi_of(slots_);
  return args_;
}

const std::vector<const fastnorm_norm_heads_part*>& RandomHeadsCall::parts() {
  pointers_.clear();
  for (CallPart& p : parts_) pointers_.push_back(p.get());
  return pointers_;
}

std::string RandomHeadsCall::difference() const {
  constexpr const char* kNames[] = {"x",
                                    "weight",
                                    "bias",
                                    "y",
                                    "mean",
                                    "rstd",
                                    "sumsq",
                                    "mean_in",
                                    "rstd_in",
                                    "codes",
                                    "scale",
                                    "amax",
                                    "global",
                                    "clamp",
                                    "cache",
                                    "cache_scale",
                                    "cache_tensor_scale"};
  for (size_t i = 0; i < parts_.size(); ++i) {
    const CallPart& p = parts_[i];
    size_t name = 0;
    for (const OwnedTensor* t : {&p.x, &p.weight, &p.bias, &p.y, &p.mean, &p.rstd, &p.sumsq,
                                 &p.mean_in, &p.rstd_in, &p.codes, &p.scale, &p.amax, &p.global,
                                 &p.clamp, &p.cache, &p.cache_scale, &p.cache_tensor_scale}) {
      const char* what = kNames[name++];
      if (*t == nullptr || (*t)->now == (*t)->expected) continue;
      const auto [found, wanted] =
          std::mismatch((*t)->now.begin(), (*t)->now.end(), (*t)->expected.begin());
      const auto byte = found - (*t)->now.begin() - static_cast<int64_t>((*t)->first);
      return "parts[" + std::to_string(i) + "]." + what + " byte " + std::to_string(byte) + " is " +
             std::to_string(*found) + ", not " + std::to_string(*wanted);
    }
  }
  for (const OwnedTensor* t : {&tables_.cos, &tables_.sin, &tables_.positions, &slots_}) {
    if (*t != nullptr && (*t)->now != (*t)->expected) return "a shared input was written";
  }
  return "";
}

std::string RandomHeadsCall::text() const {
  std::string s = "norm_heads " + std::string(ref::name_of(type_)) + " seed " +
                  std::to_string(seed_) +
                  (large_     ? " large"
                   : few_     ? " few"
                   : many_    ? " many"
                   : across_  ? " across heads"
                   : aligned_ ? " aligned"
                              : "") +
                  " tokens " + std::to_string(tokens_) + " rope " + std::to_string(rope_dim_);
  for (const CallPart& p : parts_) {
    s += " [" + std::to_string(p.heads) + "x" + std::to_string(p.n);
    if (p.options.normalise) s += p.options.norm.kind == ref::Kind::kLayer ? " layer" : " rms";
    if (p.across()) s += " across";
    if (p.rstd_in != nullptr) s += " given";
    if (p.options.rope) s += p.options.turn.interleaved ? " interleaved" : " neox";
    if (p.options.rope) s += "@" + std::to_string(p.options.turn.offset);
    if (p.options.normalise)
      s += " rounding " + std::to_string(static_cast<int>(p.options.norm.rounding));
    if (p.in_place) s += " in place";
    if (p.y != nullptr) s += p.y_f32 ? " y f32" : " y";
    if (p.codes != nullptr)
      s += std::string(" codes ") + ref::name_of(p.quant.scheme) + name_of(p.args.scale_layout);
    if (p.cache != nullptr) s += " cache";
    s += "]";
  }
  return s;
}

void RandomHeadsCall::fill(CallTensor& t, size_t at, int64_t n, ref::Pattern pattern, bool as_f32) {
  std::vector<float> row(static_cast<size_t>(n));
  const Type type = as_f32 ? Type::kF32 : type_;
  ref::fill_row(pattern, type, random_.next(), row.data(), n);
  t.set(at, type, row.data(), n);
}

// Elements between rows: of aligned calls a multiple of a vector.
int64_t RandomHeadsCall::gap(int64_t most) { return random_.below(most) * (aligned_ ? 16 : 1); }
int64_t RandomHeadsCall::shift() { return !aligned_ && random_.one_in(4) ? random_.below(8) : 0; }

void RandomHeadsCall::make_slots() {
  const int64_t count = random_.one_in(3) ? random_.below(tokens_ + 1) : tokens_;
  wide_ = random_.one_in(2);
  slots_ =
      make_tensor(std::vector<int64_t>{count}, wide_ ? FASTNORM_DTYPE_I64 : FASTNORM_DTYPE_I32);
  page_size_ = few_ ? 1 : 1 + random_.below(5);
  const int64_t slots = many_ ? 401 : few_ ? 3 : 47;
  for (int64_t t = 0; t < count; ++t) {
    const int64_t slot = random_.one_in(4) ? -1 : (t * 5 + 3) % slots;  // distinct
    slot_.push_back(slot);
    set_index(*slots_, t, slot);
  }
  pages_ = slots / page_size_ + 1;
}

constexpr int64_t kLatent = 512;  // columns

void RandomHeadsCall::make_part() {
  CallPart p;
  const int64_t columns[] = {1, 2, 8, 17, 32, 48, 64, 96, 128, 130, 192, 256, 512, 576, 1100, 2056};
  const int64_t whole[] = {8,   32,  64,  64,  80,  96,  112, 128, 128, 128, 160,
                           192, 224, 256, 256, 320, 384, 448, 512, 576, 768, 1536};
  // Most parts of a call have rows of one length.
  p.n = aligned_ ? random_.of(whole) : random_.of(columns);
  if (aligned_ && !parts_.empty() && !random_.one_in(4)) p.n = parts_[0].n;
  if (large_) {
    const int64_t some[] = {48, 64, 80, 128};
    p.n = random_.of(some);
  } else if (few_) {
    p.n = random_.one_in(4) ? kLatent : std::max<int64_t>(p.n, 32);
  } else if (aligned_ && !latents_ && parts_.empty() && random_.one_in(2)) {
    rope_dim_ = p.n / 16 * 16;
  }
  if (latents_) p.n = parts_.empty() || random_.one_in(3) ? kLatent : random_.of({8, 32, 64, 64});
  const bool latent = latents_ && p.n == kLatent;
  constexpr int64_t kMostHeads = 48, kMostColumns = 8192;  // across_
  const int64_t most = across_ ? std::min(kMostHeads, kMostColumns / p.n) : aligned_ ? 11 : 4;
  p.heads = latent ? 1 : table_heads_ != 0 ? table_heads_ : 1 + random_.below(most);
  if (large_) p.heads = 33 + random_.below(32);
  p.options.norm.dtype = type_;
  p.x = make_tensor(std::vector<int64_t>{tokens_, p.heads, p.n}, id_of(type_), gap(3), shift());
  for (int64_t t = 0; t < tokens_; ++t) {
    for (int64_t h = 0; h < p.heads; ++h) fill(*p.x, p.x->place({t, h}), p.n);
  }
  if (latent || !random_.one_in(aligned_ ? 4 : 2)) make_norm(p);
  if (!latent && rope_dim_ <= p.n && rope_dim_ > (aligned_ ? 0 : -1) &&
      (large_ || few_ || random_.one_in(2)))
    make_rope(p);
  if ((!aligned_ || more_) && random_.one_in(2)) make_codes(p);
  if (latent || random_.one_in(2)) make_cache(p);
  p.in_place = random_.one_in(3);
  const bool codes_alone = more_ && p.codes != nullptr;
  const bool sums_alone = across_ && p.sumsq != nullptr && p.cache == nullptr && random_.one_in(4);
  if (codes_alone || sums_alone) p.in_place = false;
  if (!codes_alone && !sums_alone && !p.in_place &&
      (random_.one_in(2) || (p.codes == nullptr && p.cache == nullptr)))
    make_y(p);
  if (!aligned_ && random_.one_in(4)) p.amax = make_scalar(0.25f);
  parts_.push_back(std::move(p));
}

void RandomHeadsCall::make_y(CallPart& p) {
  p.y_f32 = random_.one_in(aligned_ ? 12 : 4);
  p.y = make_tensor(p.x->shape, p.y_f32 ? FASTNORM_DTYPE_F32 : id_of(type_),
                    aligned_ ? gap(2) : 2 * random_.below(2), shift());
}

OwnedTensor RandomHeadsCall::make_scalar(float value) const {
  OwnedTensor t = make_tensor(std::vector<int64_t>{1}, FASTNORM_DTYPE_F32);
  t->set_number(0, value);
  return t;
}

void RandomHeadsCall::make_norm(CallPart& p) {
  ref::NormOptions& o = p.options.norm;
  p.options.normalise = true;
  p.args.flags |= FASTNORM_NORM_HEADS_NORM;
  if (across_ || (!aligned_ && random_.one_in(3))) p.args.flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS;
  const bool layer = random_.one_in(aligned_ ? 6 : 3);
  o.kind = layer ? ref::Kind::kLayer : ref::Kind::kRms;
  o.rounding = static_cast<ref::Rounding>(
      aligned_ && random_.one_in(2) ? 0 : random_.below(ref::kRoundings));
  o.eps = 1e-5f;
  p.args.kind = layer ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS;
  p.args.rounding = static_cast<fastnorm_rounding>(static_cast<int>(o.rounding));
  p.args.eps = o.eps;
  if (!random_.one_in(4)) {
    p.weight = make_columns(p);
    if (random_.one_in(2)) p.args.weight_offset = o.weight_offset = 1;
  }
  if (random_.one_in(aligned_ ? 8 : 3)) p.bias = make_columns(p);
  if (random_.one_in(aligned_ ? 10 : 6)) {
    give_statistics(p);
  } else if (!aligned_ || more_ || across_ || random_.one_in(4)) {
    make_statistics(p);
  }
}

void RandomHeadsCall::make_statistics(CallPart& p) {
  const bool layer = p.options.norm.kind == ref::Kind::kLayer;
  std::vector<int64_t> rows = {tokens_};
  if (!p.across()) rows.push_back(p.heads);
  if (random_.one_in(2)) p.rstd = make_tensor(rows, FASTNORM_DTYPE_F32, 1);
  if (layer && random_.one_in(2)) p.mean = make_tensor(rows, FASTNORM_DTYPE_F32, 1);
  if ((aligned_ && !more_ && !across_) || p.options.norm.rounding == ref::Rounding::kEveryStep ||
      !random_.one_in(2))
    return;
  if (layer) rows.push_back(2);
  p.sumsq = make_tensor(rows, FASTNORM_DTYPE_F32, 2);
}

// Others than the rows'.
void RandomHeadsCall::give_statistics(CallPart& p) {
  std::vector<int64_t> rows = {tokens_};
  if (!p.across()) rows.push_back(p.heads);
  const auto make = [&](float value) {
    OwnedTensor t = make_tensor(rows, FASTNORM_DTYPE_F32, 1);
    const int64_t heads = p.across() ? 1 : p.heads;
    for (int64_t i = 0; i < tokens_ * heads; ++i) {
      t->set_number(p.across() ? t->place({i}) : t->place({i / heads, i % heads}),
                    value + 0.125f * static_cast<float>(i % 5));
    }
    return t;
  };
  p.rstd_in = make(0.75f);
  if (p.options.norm.kind == ref::Kind::kLayer) p.mean_in = make(-0.25f);
}

// Shared, or a row for each head.
OwnedTensor RandomHeadsCall::make_columns(const CallPart& p) {
  const bool each = random_.one_in(aligned_ && !across_ ? 4 : 2),
             f32 = random_.one_in(aligned_ ? 5 : 2);
  const fastnorm_dtype_id id = f32 ? FASTNORM_DTYPE_F32 : id_of(type_);
  OwnedTensor t = each ? make_tensor(std::vector<int64_t>{p.heads, p.n}, id, gap(2), shift())
                       : make_tensor(std::vector<int64_t>{p.n}, id, int64_t{0}, shift());
  for (int64_t h = 0; h < (each ? p.heads : 1); ++h)
    fill(*t, t->place({h * (each ? 1 : 0)}), p.n, ref::Pattern::kWeights, f32);
  return t;
}

void RandomHeadsCall::make_rope(CallPart& p) {
  p.options.rope = true;
  p.args.flags |= FASTNORM_NORM_HEADS_ROPE;
  ref::RopeOptions& o = p.options.turn;
  o.half = rope_dim_ / 2;
  o.interleaved = latents_ ? !random_.one_in(8) : random_.one_in(aligned_ ? 3 : 2);
  o.inverse = random_.one_in(3);
  o.every_step = random_.one_in(aligned_ ? 4 : 2);
  p.options.round_before_rope = random_.one_in(2);
  if (o.interleaved) p.args.flags |= FASTNORM_NORM_HEADS_ROPE_INTERLEAVED;
  if (o.inverse) p.args.flags |= FASTNORM_NORM_HEADS_ROPE_INVERSE;
  if (p.options.round_before_rope) p.args.flags |= FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED;
  p.args.rope_rounding = o.every_step ? FASTNORM_ROPE_EVERY_STEP : FASTNORM_ROPE_ONCE;
  const bool last = random_.one_in(2);
  const int64_t step = aligned_ ? 8 : 1;
  o.offset = last ? p.n - rope_dim_ : random_.below((p.n - rope_dim_) / step + 1) * step;
  p.args.rope_offset = last ? -1 : static_cast<int32_t>(o.offset);
}

bool RandomHeadsCall::rounds_steps(const CallPart& p) {
  return p.options.normalise && p.options.norm.rounding == ref::Rounding::kEveryStep;
}

bool RandomHeadsCall::rounds_codes(const CallPart& p) {
  return p.args.quant_source == FASTNORM_QUANT_FROM_ROUNDED || rounds_steps(p);
}

void RandomHeadsCall::make_codes(CallPart& p) {
  const fastnorm_dtype_id formats[] = {FASTNORM_DTYPE_F8_E4M3FN, FASTNORM_DTYPE_F8_E5M2,
                                       FASTNORM_DTYPE_I8};
  int64_t scheme = 1 + random_.below(6), format = random_.below(3);
  if (scheme >= 5 && p.n % 2 != 0) scheme = 2;
  if (scheme == 4) format = random_.below(2);
  if (more_) scheme = 1;
  const bool f4 = scheme >= 5;
  ref::QuantOptions& q = p.quant;
  q.scheme = ref::kSchemes[scheme];
  q.format = f4 ? ref::Format::kE2M1 : ref::kFormats[format];
  p.args.quant_scheme = static_cast<fastnorm_quant_scheme>(scheme);
  if (scheme == 3) q.block_size = p.args.quant_block_size = random_.one_in(2) ? 64 : 128;
  if (scheme <= 3 && random_.one_in(3)) divide(p, q);
  if (!more_) p.clamp = draw_quant_options(random_, &q, &p.args);
  if (random_.one_in(2)) p.args.quant_source = FASTNORM_QUANT_FROM_ROUNDED;
  const std::vector<int64_t> shape = {tokens_, p.heads, f4 ? p.n / 2 : p.n};
  p.codes = make_tensor(shape, f4 ? FASTNORM_DTYPE_F4_E2M1FN_X2 : formats[format],
                        more_ ? gap(2) : random_.below(2), shift());
  p.scale = scheme == 1 ? make_scalar(p.tensor_scale)
                        : make_scales(random_, q, tokens_, p.heads, ref::scopes_of(q, p.n),
                                      &p.args.scale_layout);
  if (scheme == 5) p.global = make_scalar(0.5f);
}

// Codes are quotients; with scales of powers of two they are the same.
void RandomHeadsCall::divide(CallPart& p, ref::QuantOptions& q) {
  p.args.quant_division = FASTNORM_QUANT_DIVIDE;
  q.divide = true;
}

void RandomHeadsCall::make_cache(CallPart& p) {
  const fastnorm_dtype_id formats[] = {FASTNORM_DTYPE_F8_E4M3FN, FASTNORM_DTYPE_F8_E5M2,
                                       FASTNORM_DTYPE_I8};
  const std::vector<int64_t> shape = {pages_, page_size_, p.heads, p.n};
  // Most latents have scales of blocks.
  const int64_t scheme =
      latents_ && p.n == kLatent ? random_.of({0, 1, 2, 2, 2, 2}) : random_.below(across_ ? 2 : 3);
  if (scheme == 0) {
    p.cache = make_tensor(shape, id_of(type_), gap(3), shift());
    return;
  }
  ref::QuantOptions& q = p.cache_quant;
  const bool pow2 = scheme == 2 && random_.one_in(2);
  const int64_t format = random_.below(pow2 ? 2 : 3);
  q.format = ref::kFormats[format];
  q.pow2 = q.e8m0 = pow2;
  p.cache = make_tensor(shape, formats[format], gap(3), shift());
  if (p.codes == nullptr && random_.one_in(2)) p.args.quant_source = FASTNORM_QUANT_FROM_ROUNDED;
  // Of codes with another scheme than those of the three the division is the cache's alone.
  const bool both = p.codes == nullptr || p.args.quant_scheme > FASTNORM_QUANT_PER_BLOCK;
  if (p.quant.divide || (both && random_.one_in(aligned_ ? 8 : 3))) divide(p, q);
  if (scheme == 1) {
    q.scheme = ref::Scheme::kPerTensor;
    p.args.cache_scheme = FASTNORM_QUANT_PER_TENSOR;
    p.cache_tensor_scale = make_scalar(p.tensor_scale);
    return;
  }
  q.scheme = ref::Scheme::kPerBlock;
  q.block_size = p.args.cache_block_size = random_.one_in(2) ? 64 : 128;
  // One floor for codes and cache.
  const bool of_codes =
      p.quant.scheme == ref::Scheme::kPerRow || p.quant.scheme == ref::Scheme::kPerBlock;
  if (!of_codes) p.args.amax_floor = random_.of({0.0f, 0.0f, 0x1p-9f, 4.0f});
  q.amax_floor = p.args.amax_floor;
  p.args.cache_scheme = FASTNORM_QUANT_PER_BLOCK;
  p.args.cache_pow2 = pow2 ? 1 : 0;
  p.cache_scale =
      make_tensor(std::vector<int64_t>{pages_, page_size_, p.heads, ref::scopes_of(q, p.n)},
                  pow2 ? FASTNORM_DTYPE_F8_E8M0FNU : FASTNORM_DTYPE_F32, random_.below(3));
}

std::vector<float> RandomHeadsCall::values(const CallTensor& t, size_t at, int64_t n,
                                           bool f32) const {
  std::vector<float> result(static_cast<size_t>(n));
  ref::decode_row(f32 ? Type::kF32 : type_, t.now.data() + at, result.data(), n);
  return result;
}

std::vector<float> RandomHeadsCall::column_values(const OwnedTensor& t, const CallPart& p,
                                                  int64_t head) const {
  if (t == nullptr) return {};
  const bool f32 = t->abi.dtype.bits == 32;
  return values(*t, t->shape.size() == 2 ? t->place({head}) : t->first, p.n, f32);
}

void RandomHeadsCall::predict(CallPart& p) {
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

void RandomHeadsCall::predict_statistic(CallPart& p, const std::vector<float>& x, int64_t t,
                                        int64_t h, ref::NormResult* result) {
  const auto at = [&](const OwnedTensor& to) {
    return p.across() ? to->place({t}) : to->place({t, h});
  };
  if (p.rstd_in != nullptr) {
    std::memcpy(&result->rstd, p.rstd_in->now.data() + at(p.rstd_in), sizeof result->rstd);
    result->mean = 0;
    if (p.mean_in != nullptr)
      std::memcpy(&result->mean, p.mean_in->now.data() + at(p.mean_in), sizeof result->mean);
    return;
  }
  const ref::NormRow row = {static_cast<int64_t>(x.size()), x.data()};
  ref::norm_model(p.options.norm, row, order_, &scratch_, result);
  const auto put = [&](const OwnedTensor& to, std::initializer_list<float> numbers) {
    if (to != nullptr)
      to->expect(at(to), Type::kF32, numbers.begin(), static_cast<int64_t>(numbers.size()));
  };
  put(p.mean, {result->mean});
  put(p.rstd, {result->rstd});
  if (p.sumsq == nullptr) return;
  std::vector<float> partial, d = x;
  if (p.options.norm.kind == ref::Kind::kRms)
    return put(p.sumsq, {ref::ordered_sum_of_squares(order_, type_, d.data(), row.n, &partial)});
  // The sums about the row's first element give the mean, those about the mean its correction.
  const float inv_n = 1.0f / static_cast<float>(row.n);
  for (float& v : d) v -= x[0];
  const float mean = x[0] + ref::ordered_sum(order_, type_, d.data(), row.n, &partial) * inv_n;
  for (size_t i = 0; i < d.size(); ++i) d[i] = x[i] - mean;
  const float sum = ref::ordered_sum(order_, type_, d.data(), row.n, &partial);
  const float squares = ref::ordered_sum_of_squares(order_, type_, d.data(), row.n, &partial);
  put(p.sumsq, {result->mean, std::max(0.0f, std::fma(-(sum * inv_n), sum, squares))});
}

void RandomHeadsCall::predict_head(CallPart& p, int64_t t, int64_t h,
                                   const ref::NormResult& across) {
  const std::vector<float> x = values(*p.x, p.x->place({t, h}), p.n);
  const std::vector<float> weight = column_values(p.weight, p, h),
                           bias = column_values(p.bias, p, h);
  const ref::NormRow row = {p.n, x.data(), nullptr, weight.empty() ? nullptr : weight.data(),
                            bias.empty() ? nullptr : bias.data()};
  ref::NormResult own;
  if (p.options.normalise && !p.across()) predict_statistic(p, x, t, h, &own);
  const ref::NormResult& s = p.across() ? across : own;
  std::vector<float> c, sn, o(static_cast<size_t>(p.n));
  if (p.options.rope) {
    c = tables_.angles(*tables_.cos, p.options.turn, h, t);
    sn = tables_.angles(*tables_.sin, p.options.turn, h, t);
  }
  ref::head_model(p.options, row, s.mean, s.rstd, c.data(), sn.data(), o.data());
  if (p.in_place) p.x->expect(p.x->place({t, h}), type_, o.data(), p.n);
  if (p.y != nullptr) p.y->expect(p.y->place({t, h}), p.y_f32 ? Type::kF32 : type_, o.data(), p.n);
  predict_codes(p, t, h, o);
  predict_cache(p, t, h, o);
}

namespace {

void put_codes(const ref::QuantOptions& q, const ref::QuantResult& r, int64_t n, CallTensor& to,
               size_t at) {
  std::vector<uint8_t> bytes = r.codes;
  if (q.format == ref::Format::kE2M1) {
    ref::pack_e2m1(r.codes.data(), n, bytes.data());
    bytes.resize(static_cast<size_t>(n / 2));
  }
  to.expect_bytes(at, bytes.data(), bytes.size());
}

void put_scales(const ref::QuantOptions& q, const ref::QuantResult& r, CallTensor& to, size_t at) {
  if (ref::has_scale_bytes(q)) {
    to.expect_bytes(at, r.scale_bytes.data(), r.scale_bytes.size());
  } else {
    to.expect(at, Type::kF32, r.scale.data(), static_cast<int64_t>(r.scale.size()));
  }
}

}  // namespace

void RandomHeadsCall::predict_codes(CallPart& p, int64_t t, int64_t h,
                                    const std::vector<float>& o) const {
  if (p.codes == nullptr && p.amax == nullptr) return;
  ref::QuantOptions q = p.quant;
  // Without codes the amax is that of y, and the source is the cache's alone.
  const bool of_y = p.codes == nullptr;
  const Type type = of_y && p.y_f32 && !rounds_steps(p) ? Type::kF32 : type_;
  q.source = of_y || rounds_codes(p) ? ref::QuantSource::kRounded : ref::QuantSource::kF32;
  ref::QuantResult r;
  ref::quant_model(q, o.data(), p.n, type, p.tensor_scale, 0.5f, &r);
  if (p.amax != nullptr) {
    float most = 0;
    std::memcpy(&most, p.amax->expected.data(), sizeof most);
    most = ref::max_magnitude(most, r.amax);
    p.amax->expect(0, Type::kF32, &most, 1);
  }
  if (p.codes == nullptr) return;
  put_codes(q, r, p.n, *p.codes, p.codes->place({t, h}));
  if (q.scheme != ref::Scheme::kPerTensor) expect_scales(q, r, t, h, p.heads, *p.scale);
}

void RandomHeadsCall::predict_cache(CallPart& p, int64_t t, int64_t h,
                                    const std::vector<float>& o) const {
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

}  // namespace fastnorm::support
