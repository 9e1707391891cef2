#include "support/norm_heads_call.h"

#include <algorithm>
#include <cmath>

#include "support/call_model.h"
#include "support/quant_call.h"

namespace fastnorm::support {

using ref::Type;
using Shape = std::vector<int64_t>;

// ---- Positions, slots and tables.

namespace {

constexpr int64_t kPositions = 37;     // rows of the tables, fewer than many tokens
constexpr int64_t kMillion = 1000000;  // of tables far apart

std::vector<int64_t> numbers_of(const Operand* t) {
  std::vector<int64_t> all;
  for (int64_t i = 0; t != nullptr && i < t->shape[0]; ++i) all.push_back(t->number(t->place({i})));
  return all;
}

// The first part's cache that is there, as the slots of all parts are the same. norm_heads_backward
// has none.
const Operand* cache_of(const Operands& call) {
  for (int32_t i = 0; i < call.count(); ++i) {
    if (const Operand* cache = call(call.parts<fastnorm_norm_heads_part>()[i]->cache)) return cache;
  }
  return nullptr;
}

std::vector<int64_t> fill_slots(ref::Random& random, Operands& call, Operand* slots) {
  const Operand* const cache = cache_of(call);
  const int64_t capacity = cache == nullptr ? 0 : cache->shape[0] * cache->shape[1];
  const int64_t known = capacity % 5 == 0 ? capacity - 1 : capacity;
  for (int64_t t = 0; t < slots->shape[0]; ++t) {
    const int64_t distinct = t < known ? (t * 5 + 3) % known : -1;
    slots->set_index(slots->place({t}), random.one_in(4) ? -1 : distinct);
  }
  // What is behind the last slot reads as a slot that exists.
  slots->set_index(slots->place({slots->shape[0]}), 0);
  return numbers_of(slots);
}

}  // namespace

void fill_norm_heads(Operands& call) {
  const auto& args = call.args<fastnorm_norm_heads_args>();
  ref::Random random(ref::hash(call.seed(), 0x51075));
  Operand* const given = call(args.slots);
  const std::vector<int64_t> slots = given == nullptr ? Shape() : fill_slots(random, call, given);
  Operand* const positions = call(args.positions);
  if (positions == nullptr) return;
  const Operand& table = *call(args.cos);
  const size_t rows = table.shape.size() - 2, last = positions->shape.size() - 1;
  const int64_t axes = last == 0 ? 1 : positions->shape[0];
  for (int64_t token = 0; token < positions->shape[last]; ++token) {
    const bool padding =
        given != nullptr && (token >= given->shape[0] || slots[static_cast<size_t>(token)] < 0);
    // A call must not look at those of padding.
    const bool spoilt = padding && !random.one_in(3);
    for (int64_t axis = 0; axis < axes; ++axis) {
      const int64_t position = table.far_first + random.below(table.shape[rows]);
      positions->set_index(last == 0 ? positions->place({token}) : positions->place({axis, token}),
                           spoilt ? random.of({-1, INT32_MIN, INT32_MAX}) : position);
    }
  }
}

void draw_tables(ref::Random& random, LineWriter& line, const DrawnTables& drawn) {
  const int64_t half = drawn.rope_dim / 2, width = random.one_in(2) ? half : 2 * half;
  Shape shape = {drawn.far ? kMillion + kPositions : kPositions, width};
  if (drawn.heads != 0) shape.insert(shape.begin(), drawn.heads);
  const fastnorm_dtype_id id = random.one_in(2) ? FASTNORM_DTYPE_F32 : id_of(drawn.type);
  // Some aligned calls have tables that are not.
  const int64_t between =
      drawn.aligned && random.one_in(4) ? 1 : random.below(3) * (drawn.aligned ? 16 : 1);
  line.far_stride = drawn.far ? 2160 : 0;
  line.tensor("cos", id, shape, between);
  line.tensor("sin", id, shape, between);
  line.far_stride = 0;
  line.set("rope_dim", drawn.rope_dim);
  if (!drawn.many && random.one_in(4)) return;
  const int64_t axes[] = {0, 1, 3, 4};  // 0: of rank 1
  const int64_t rows = drawn.aligned && random.one_in(2) ? 0 : random.of(axes);
  line.tensor("positions", random.one_in(2) ? FASTNORM_DTYPE_I64 : FASTNORM_DTYPE_I32,
              rows == 0 ? Shape{drawn.tokens} : Shape{rows, drawn.tokens});
  if (rows < 2) return;
  // Sections of different lengths, of which the first has what the others leave.
  int64_t first = half;
  for (int64_t a = 1; a < rows; ++a) {
    const int64_t own = std::max<int64_t>(half / (rows + 1) - (a - 1), 0);
    line.set("mrope_" + std::to_string(a), own);
    first -= own;
  }
  line.set("mrope_0", first);
  if (rows == 3 && random.one_in(2))
    line.set("flags", int64_t{FASTNORM_NORM_HEADS_MROPE_INTERLEAVED});
}

Tables::Tables(const Operands& call, const fastnorm_norm_heads_args& args)
    : cos_(call(args.cos)),
      sin_(call(args.sin)),
      positions_(call(args.positions)),
      section_{args.mrope_0, args.mrope_1, args.mrope_2, args.mrope_3},
      interleaved_((args.flags & FASTNORM_NORM_HEADS_MROPE_INTERLEAVED) != 0) {
  if (positions_ != nullptr && positions_->shape.size() == 2)
    axes_ = static_cast<int>(positions_->shape[0]);
}

std::vector<float> Tables::angles(const Operand& t, const ref::RopeOptions& o, int64_t head,
                                  int64_t token) const {
  std::vector<float> result;
  for (int64_t j = 0; j < o.half; ++j) {
    const int axis = axes_ == 1 ? 0 : ref::rope_axis(axes_, section_, interleaved_, j);
    int64_t row = token;
    if (positions_ != nullptr)
      row = positions_->number(positions_->shape.size() == 1 ? positions_->place({token})
                                                             : positions_->place({axis, token}));
    const int64_t entry = ref::rope_entry(o, t.shape.back(), j);
    const size_t at = t.shape.size() == 3 ? t.place({head, row, entry}) : t.place({row, entry});
    float value = 0;
    ref::decode_row(t.type(), t.now.data() + at, &value, 1);
    result.push_back(value);
  }
  return result;
}

// ---- Drawing.

namespace {

constexpr int64_t kLatent = 512, kIndexed = 128;  // columns

class HeadsDrawer {
 public:
  HeadsDrawer(uint64_t seed, CallKind kind, bool gpu)
      : line_("norm_heads", seed, gpu),
        random_(seed),
        aligned_(kind != CallKind::kAny),
        many_(kind == CallKind::kMany || kind == CallKind::kLarge),
        few_(kind >= CallKind::kFew),
        more_(kind == CallKind::kMore || (few_ && seed % 2 == 0)),
        across_(kind == CallKind::kAcross),
        latents_(kind == CallKind::kLatents || kind == CallKind::kPrologue),
        prologue_(kind == CallKind::kPrologue),
        indexer_(kind == CallKind::kIndexer),
        large_(kind == CallKind::kLarge),
        far_rows_(kind == CallKind::kFarRows ? (int64_t{1} << 30) + 16 : 0),
        far_tables_(kind == CallKind::kFarTables) {}

  std::string draw();

 private:
  // A part, and what of it other draws depend on.
  struct Part {
    std::string name;  // parts[i].
    int64_t heads = 1, n = 1;
    uint32_t flags = 0;
    bool layer = false, every_step = false, cache = false, sumsq = false;
    bool codes = false, divide = false, from_rounded = false;
    int64_t scheme = 0;
  };

  // Elements between rows: of aligned calls a multiple of a vector.
  int64_t gap(int64_t most) { return random_.below(most) * (aligned_ ? 16 : 1); }
  int64_t shift() { return !aligned_ && random_.one_in(4) ? random_.below(8) : 0; }
  fastnorm_dtype_id own() const { return id_of(type_); }
  Shape rows(const Part& p) const { return {tokens_, p.heads, p.n}; }
  void tensor(const std::string& path, fastnorm_dtype_id dtype, const Shape& shape, int64_t between,
              int64_t ahead) {
    line_.far_stride = far_rows_;
    line_.tensor(path, dtype, shape, between, ahead);
    line_.far_stride = 0;
  }

  void draw_slots();
  void draw_part();
  int64_t columns_of_part();
  void draw_norm(Part& p);
  void draw_columns(const Part& p, const char* field);
  void draw_row_codes(Part& p);
  void draw_row_scales(const Part& p, const std::string& quant);
  void draw_head_weights(const Part& p);
  void draw_statistics(Part& p);
  void draw_rope(Part& p);
  void draw_codes(Part& p);
  void draw_cache(Part& p);
  void draw_cache_rotation(const Part& p, int64_t columns, int64_t block);
  int64_t draw_tail(const Part& p);

  LineWriter line_;
  ref::Random random_;
  const bool aligned_, many_, few_, more_, across_, latents_, prologue_, indexer_, large_;
  const int64_t far_rows_;
  const bool far_tables_;
  Type type_ = Type::kF32;
  bool lean_ = false;  // the indexer's common call
  int64_t tokens_ = 0, rope_dim_ = 0, table_heads_ = 0, page_size_ = 1, pages_ = 1, slots_ = 0;
  int64_t parts_ = 0, columns_ = 0;  // of the first part
  bool ropes_ = false, caches_ = false;
};

std::string HeadsDrawer::draw() {
  type_ = ref::kTypes[across_ || latents_ || indexer_ || few_ ? 1 + random_.below(2)
                                                              : random_.below(3)];
  tokens_ = large_     ? 320 + random_.below(80)
            : many_    ? 100 + random_.below(300)
            : few_     ? 3
            : aligned_ ? 1 + random_.below(9)
                       : random_.below(7);
  const int64_t dims[] = {0, 2, 6, 16, 24, 64, 128, 130}, whole[] = {16, 32, 48, 64, 96, 128, 256};
  rope_dim_ = aligned_ ? random_.of(whole) : random_.of(dims);
  if (latents_) rope_dim_ = random_.of({16, 32, 64});
  if (indexer_) rope_dim_ = random_.of({64, 64, 64, 64, 64, 32, 128});
  lean_ = indexer_ && random_.one_in(3);
  if (lean_) rope_dim_ = 64;
  table_heads_ =
      !latents_ && !indexer_ && random_.one_in(aligned_ ? 9 : 4) ? 1 + random_.below(3) : 0;
  if (large_ || few_) rope_dim_ = 16 * (1 + random_.below(2)), table_heads_ = 0;
  const int64_t count = large_ || few_ ? 1 : random_.one_in(16) ? 8 : 1 + random_.below(4);
  slots_ = random_.one_in(3) ? random_.below(tokens_ + 1) : tokens_;
  page_size_ = few_ ? 1 : 1 + random_.below(5);
  pages_ = (many_ ? 401 : few_ ? 3 : 47) / page_size_ + 1;
  while (parts_ < count) draw_part();
  if (caches_)
    line_.tensor("slots", random_.one_in(2) ? FASTNORM_DTYPE_I64 : FASTNORM_DTYPE_I32, {slots_});
  if (ropes_)
    draw_tables(random_, line_,
                {type_, tokens_, rope_dim_, table_heads_, aligned_, many_ || few_, far_tables_});
  return line_.line();
}

int64_t HeadsDrawer::columns_of_part() {
  const int64_t columns[] = {1, 2, 8, 17, 32, 48, 64, 96, 128, 130, 192, 256, 512, 576, 1100, 2056};
  const int64_t whole[] = {8,   32,  64,  64,  80,  96,  112, 128, 128, 128, 160,
                           192, 224, 256, 256, 320, 384, 448, 512, 576, 768, 1536};
  if (latents_ && parts_ != 0 && random_.one_in(3))
    return random_.of({520, 1024, 1536, 1536, 2048});
  if (latents_) return parts_ == 0 || random_.one_in(3) ? kLatent : random_.of({8, 32, 64, 64});
  if (lean_) return kIndexed;
  if (indexer_) return random_.one_in(20) ? random_.of({64, 256}) : kIndexed;
  if (large_) return random_.of({48, 64, 80, 128});
  if (!aligned_) return random_.of(columns);
  const int64_t n = random_.of(whole);
  if (few_) return random_.one_in(4) ? kLatent : std::max<int64_t>(n, 32);
  // Most parts of a call have rows of one length.
  return parts_ != 0 && !random_.one_in(4) ? columns_ : n;
}

void HeadsDrawer::draw_part() {
  Part p;
  p.name = "parts[" + std::to_string(parts_) + "].";
  p.n = columns_of_part();
  if (parts_ == 0) {
    columns_ = p.n;
    if (aligned_ && !latents_ && !indexer_ && !few_ && !large_ && random_.one_in(2))
      rope_dim_ = p.n / 16 * 16;
  }
  const bool latent = latents_ && p.n >= kLatent;
  constexpr int64_t kMostHeads = 48, kMostColumns = 8192;  // across_
  const int64_t most = across_ ? std::min(kMostHeads, kMostColumns / p.n) : aligned_ ? 11 : 4;
  p.heads = latent ? 1 : table_heads_ != 0 ? table_heads_ : 1 + random_.below(most);
  if (large_) p.heads = 33 + random_.below(32);
  tensor(p.name + "x", own(), rows(p), gap(3), shift());
  if (latent || !random_.one_in(aligned_ ? 4 : 2)) draw_norm(p);
  if (!latent && rope_dim_ <= p.n && rope_dim_ > (aligned_ ? 0 : -1) &&
      (large_ || few_ || lean_ || random_.one_in(2)))
    draw_rope(p);
  if ((!aligned_ || more_) && random_.one_in(2)) draw_codes(p);
  if (indexer_ || (latents_ && p.n > kLatent)) {
    draw_row_codes(p);
  } else if (latent || random_.one_in(2)) {
    draw_cache(p);
  }
  const bool codes_alone = lean_ || (p.codes && (more_ || (indexer_ && !random_.one_in(4))));
  const bool sums_alone = across_ && p.sumsq && !p.cache && random_.one_in(4);
  const bool in_place = random_.one_in(3) && !codes_alone && !sums_alone;
  const std::string y = p.name + "y";
  if (in_place) {
    line_.same(y, p.name + "x");
  } else if (!codes_alone && !sums_alone && (random_.one_in(2) || (!p.codes && !p.cache))) {
    const bool f32 = random_.one_in(aligned_ ? 12 : 4);
    tensor(y, f32 ? FASTNORM_DTYPE_F32 : own(), rows(p), aligned_ ? gap(2) : 2 * random_.below(2),
           shift());
  }
  if (!aligned_ && random_.one_in(4)) line_.scalar(p.name + "quant.amax", 0.25f);
  line_.set(p.name + "flags", int64_t{p.flags});
  ++parts_;
}

void HeadsDrawer::draw_norm(Part& p) {
  p.flags |= FASTNORM_NORM_HEADS_NORM;
  if (prologue_ && !random_.one_in(16)) {
    line_.set(p.name + "eps", 1e-5);
    line_.set(p.name + "rounding", random_.below(2));
    if (!random_.one_in(4)) line_.tensor(p.name + "weight", own(), {p.n});
    return;
  }
  if (lean_) {
    p.layer = true;
    line_.set(p.name + "kind", std::string("layer"));
    line_.set(p.name + "eps", 1e-6);
    for (const char* field : {"weight", "bias"})
      line_.tensor(p.name + field, random_.one_in(3) ? FASTNORM_DTYPE_F32 : own(), {p.n});
    if (random_.one_in(2)) line_.set(p.name + "weight_offset", int64_t{1});
    return;
  }
  if (across_ || (!aligned_ && random_.one_in(3))) p.flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS;
  p.layer = random_.one_in(aligned_ ? 6 : 3);
  const int64_t rounding = aligned_ && random_.one_in(2) ? 0 : random_.below(ref::kRoundings);
  p.every_step = rounding == FASTNORM_ROUND_EVERY_STEP;
  if (p.layer) line_.set(p.name + "kind", std::string("layer"));
  line_.set(p.name + "rounding", rounding);
  line_.set(p.name + "eps", 1e-5);
  if (!random_.one_in(4)) {
    draw_columns(p, "weight");
    if (random_.one_in(2)) line_.set(p.name + "weight_offset", int64_t{1});
  }
  if (random_.one_in(aligned_ ? 8 : 3)) draw_columns(p, "bias");
  draw_statistics(p);
}

void HeadsDrawer::draw_statistics(Part& p) {
  Shape rows = {tokens_};
  if ((p.flags & FASTNORM_NORM_HEADS_ACROSS_HEADS) == 0) rows.push_back(p.heads);
  const auto add = [&](const char* field, int64_t between) {
    line_.tensor(p.name + field, FASTNORM_DTYPE_F32, rows, between);
  };
  if (random_.one_in(aligned_ ? 10 : 6)) {
    add("rstd_in", 1);
    if (p.layer) add("mean_in", 1);
    return;
  }
  if (aligned_ && !more_ && !across_ && !random_.one_in(4)) return;
  if (random_.one_in(2)) add("rstd", 1);
  if (p.layer && random_.one_in(2)) add("mean", 1);
  if ((aligned_ && !more_ && !across_) || p.every_step || !random_.one_in(2)) return;
  if (p.layer) rows.push_back(2);
  add("sumsq", 2);
  p.sumsq = true;
}

// Shared, or a row for each head.
void HeadsDrawer::draw_columns(const Part& p, const char* field) {
  const bool each = random_.one_in(aligned_ && !across_ ? 4 : 2),
             f32 = random_.one_in(aligned_ ? 5 : 2);
  line_.tensor(p.name + field, f32 ? FASTNORM_DTYPE_F32 : own(),
               each ? Shape{p.heads, p.n} : Shape{p.n}, each ? gap(2) : 0, shift());
}

void HeadsDrawer::draw_rope(Part& p) {
  ropes_ = true;
  p.flags |= FASTNORM_NORM_HEADS_ROPE;
  if (lean_) return line_.set(p.name + "rope_offset", int64_t{0});
  if (latents_ ? !random_.one_in(8) : random_.one_in(aligned_ ? 3 : 2))
    p.flags |= FASTNORM_NORM_HEADS_ROPE_INTERLEAVED;
  if (random_.one_in(3)) p.flags |= FASTNORM_NORM_HEADS_ROPE_INVERSE;
  if (random_.one_in(2)) p.flags |= FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED;
  if (random_.one_in(aligned_ ? 4 : 2)) line_.set(p.name + "rope_rounding", int64_t{1});
  const int64_t step = indexer_ && !random_.one_in(8) ? 64 : aligned_ ? 8 : 1;
  line_.set(p.name + "rope_offset",
            random_.one_in(2) ? -1 : random_.below((p.n - rope_dim_) / step + 1) * step);
}

void HeadsDrawer::draw_codes(Part& p) {
  const DrawnQuant drawn = draw_quant(random_, line_, p.name + "quant", tokens_, p.heads, p.n,
                                      more_ ? QuantKind::kPlain : QuantKind::kAny);
  p.codes = true;
  p.divide = drawn.options.divide;
  p.from_rounded = drawn.from_rounded;
  p.scheme = static_cast<int64_t>(drawn.options.scheme);
  Shape shape = rows(p);
  if (drawn.options.format == ref::Format::kE2M1) shape.back() /= 2;
  tensor(p.name + "quant.quantized", drawn.codes, shape, more_ ? gap(2) : random_.below(2),
         shift());
  const bool one_scale =
      p.scheme <= FASTNORM_QUANT_PER_BLOCK && ref::scopes_of(drawn.options, p.n) == 1;
  if (one_scale && !more_ && random_.one_in(2)) draw_head_weights(p);
}

void HeadsDrawer::draw_head_weights(const Part& p) {
  constexpr fastnorm_dtype_id kTypes[] = {FASTNORM_DTYPE_F32, FASTNORM_DTYPE_F16,
                                          FASTNORM_DTYPE_BF16};
  const Shape shape = {tokens_, p.heads};
  const fastnorm_dtype_id dtype = kTypes[random_.below(3)];
  line_.tensor(p.name + "head_weights", dtype, shape, random_.below(3));
  line_.tensor(p.name + "head_weights_out", FASTNORM_DTYPE_F32, shape, random_.below(3));
  if (random_.one_in(2))
    line_.set(p.name + "head_weights_factor", static_cast<double>(random_.of({0.125f, -3.0f})));
}

// Codes whose scales the call computes: one for a row of an indexer, one or several for a latent.
// They are those of y or of the cache.
void HeadsDrawer::draw_row_codes(Part& p) {
  const bool to_cache = indexer_ && random_.one_in(2);
  const std::string quant = p.name + (to_cache ? "cache_quant" : "quant");
  const bool row = !to_cache && random_.one_in(2);
  const int64_t block = row ? 0 : !lean_ && random_.one_in(indexer_ ? 12 : 2) ? 64 : 128;
  line_.set(quant + ".scheme", int64_t{row ? FASTNORM_QUANT_PER_ROW : FASTNORM_QUANT_PER_BLOCK});
  if (!row) line_.set(quant + ".block_size", block);
  const bool pow2 = random_.one_in(2);
  const int64_t format = lean_ ? 0 : random_.below(pow2 ? 2 : 3);
  if (pow2) line_.set(quant + ".scale_pow2", int64_t{1});
  if (random_.one_in(4)) line_.set(quant + ".amax_floor", random_.one_in(2) ? 0x1p-9 : 4.0);
  if (lean_) {
    line_.set(quant + ".rotation", p.n);
  } else {
    if (random_.one_in(4)) line_.set(quant + ".source", std::string("rounded"));
    if (random_.one_in(4)) line_.set(quant + ".division", std::string("divide"));
    if (!to_cache && random_.one_in(6)) line_.set(quant + ".clamp", 1.5);
    if (!to_cache && random_.one_in(20)) line_.scalar(quant + ".amax", 0.25f);
    if (indexer_ ? !random_.one_in(4) : random_.one_in(12))
      draw_rotation(random_, line_, quant, p.n, block, !to_cache && random_.one_in(3));
  }
  const fastnorm_dtype_id scale =
      pow2 && random_.one_in(2) ? FASTNORM_DTYPE_F8_E8M0FNU : FASTNORM_DTYPE_F32;
  const int64_t scales = row ? 1 : (p.n + block - 1) / block;
  // Rows of a cache that has the scales behind the codes are 132 bytes apart.
  const int64_t between = random_.of({0, 0, 4, 16, 16});
  if (to_cache) {
    caches_ = p.cache = true;
    tensor(p.name + "cache", kCodeTypes[format], {pages_, page_size_, p.heads, p.n}, between,
           shift());
    return line_.tensor(quant + ".scale", scale, {pages_, page_size_, p.heads, scales},
                        random_.below(3));
  }
  p.codes = true;
  tensor(p.name + "quant.quantized", kCodeTypes[format], rows(p), between, shift());
  const bool columns = random_.one_in(3);  // column-major
  line_.tensor(quant + ".scale", scale, {tokens_, p.heads, scales}, columns ? 0 : random_.below(3));
  if (columns) line_.strides(quant + ".scale", {p.heads, 1, tokens_ * p.heads + random_.below(3)});
  if (scales == 1 && !random_.one_in(3)) draw_head_weights(p);
}

void HeadsDrawer::draw_cache(Part& p) {
  caches_ = p.cache = true;
  const std::string cache = p.name + "cache", quant = p.name + "cache_quant.";
  Shape shape = {pages_, page_size_, p.heads, p.n};
  // Most latents have scales of blocks.
  const int64_t scheme =
      latents_ && p.n == kLatent ? random_.of({0, 1, 2, 2, 2, 2}) : random_.below(across_ ? 2 : 3);
  if (scheme == 0) return tensor(cache, own(), shape, gap(3), shift());
  if (p.n > 1 && random_.one_in(aligned_ ? 16 : 3)) shape.back() -= draw_tail(p);
  const int64_t columns = shape.back();
  const bool pow2 = scheme == 2 && random_.one_in(2);
  tensor(cache, kCodeTypes[random_.below(pow2 ? 2 : 3)], shape, gap(3), shift());
  // One source for codes and cache.
  if (p.codes ? p.from_rounded : random_.one_in(2))
    line_.set(quant + "source", std::string("rounded"));
  // With codes of a scheme that has no division, the division is the cache's alone.
  const bool own_division = !p.codes || p.scheme > FASTNORM_QUANT_PER_BLOCK;
  if (p.divide || (own_division && random_.one_in(aligned_ ? 8 : 3)))
    line_.set(quant + "division", std::string("divide"));
  if (scheme == 1) {
    line_.set(quant + "scheme", std::string("per_tensor"));
    line_.scalar(quant + "scale", 0.5f);
    return draw_cache_rotation(p, columns, 0);
  }
  const int64_t block = random_.one_in(2) ? 64 : 128;
  const float floor = random_.of({0.0f, 0.0f, 0x1p-9f, 4.0f});
  line_.set(quant + "scheme", std::string("per_block"));
  line_.set(quant + "block_size", block);
  if (floor != 0) line_.set(quant + "amax_floor", static_cast<double>(floor));
  if (pow2) line_.set(quant + "scale_pow2", int64_t{1});
  line_.tensor(quant + "scale", pow2 ? FASTNORM_DTYPE_F8_E8M0FNU : FASTNORM_DTYPE_F32,
               {pages_, page_size_, p.heads, (columns + block - 1) / block}, random_.below(3));
  draw_cache_rotation(p, columns, block);
}

// Seldom where kernels that hold rows are wanted, which do not rotate.
void HeadsDrawer::draw_cache_rotation(const Part& p, int64_t columns, int64_t block) {
  if (random_.one_in(aligned_ ? 10 : 2))
    draw_rotation(random_, line_, p.name + "cache_quant", columns, block, false);
}

// Returns its columns.
int64_t HeadsDrawer::draw_tail(const Part& p) {
  const int64_t columns =
      p.n > 64 && random_.one_in(2) ? 64 : 1 + random_.below(std::min<int64_t>(p.n - 1, 80));
  tensor(p.name + "cache_tail", own(), {pages_, page_size_, p.heads, columns}, gap(3), shift());
  return columns;
}

}  // namespace

std::string draw_norm_heads(uint64_t seed, CallKind kind, bool gpu) {
  return HeadsDrawer(seed, kind, gpu).draw();
}

// ---- What should be there.

namespace {

class HeadsModel {
 public:
  HeadsModel(Operands& call, ref::Order order)
      : call_(call),
        args_(call.args<fastnorm_norm_heads_args>()),
        order_(order),
        tables_(call, args_),
        slots_(numbers_of(call(args_.slots))) {}

  void expect(const fastnorm_norm_heads_part& p);

 private:
  void expect_statistic(const fastnorm_norm_heads_part& p, const std::vector<float>& x, Index row,
                        ref::NormResult* result);
  void expect_head(const fastnorm_norm_heads_part& p, int64_t t, int64_t h,
                   const ref::NormResult& across);
  void expect_head_weight(const fastnorm_norm_heads_part& p, Index at);

  Operands& call_;
  const fastnorm_norm_heads_args& args_;
  const ref::Order order_;
  const Tables tables_;
  const std::vector<int64_t> slots_;
  ref::ModelScratch scratch_;
  // What the part that is computed is.
  ref::HeadOptions options_;
  bool across_ = false;
  int64_t heads_ = 0, n_ = 0;
  QuantModel *codes_ = nullptr, *cache_ = nullptr;
};

void HeadsModel::expect(const fastnorm_norm_heads_part& p) {
  const auto has = [&](uint32_t flag) { return (p.flags & flag) != 0; };
  const Operand& x = *call_(p.x);
  const Type type = x.type();
  heads_ = x.shape[1], n_ = x.shape[2];
  across_ = has(FASTNORM_NORM_HEADS_ACROSS_HEADS);
  options_ = {};
  options_.normalise = has(FASTNORM_NORM_HEADS_NORM);
  options_.norm = norm_options(p, type);
  options_.rope = has(FASTNORM_NORM_HEADS_ROPE);
  options_.round_before_rope = has(FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED);
  options_.turn = rope_options(p, args_, n_);
  options_.turn.every_step = p.rope_rounding == FASTNORM_ROPE_EVERY_STEP;
  if (!options_.rope) options_.turn.half = 0;
  const bool every_step = options_.normalise && options_.norm.rounding == ref::Rounding::kEveryStep;
  const Operand* const y = call_(p.y);
  QuantModel codes(p.quant, call_, type, y == nullptr ? type : y->type(), every_step);
  QuantModel cache(p.cache_quant, call_, type, type, every_step, call_(p.cache));
  codes_ = &codes, cache_ = &cache;
  ref::NormResult across;
  for (int64_t t = 0; t < x.shape[0]; ++t) {
    const bool padding = args_.slots != nullptr && (t >= static_cast<int64_t>(slots_.size()) ||
                                                    slots_[static_cast<size_t>(t)] < 0);
    if (padding) {  // nothing of it may be written
      for (int64_t h = 0; h < heads_; ++h) codes.keep(t * heads_ + h);
      continue;
    }
    if (options_.normalise && across_) {
      std::vector<float> row;
      for (int64_t h = 0; h < heads_; ++h) {
        const std::vector<float> more = x.values(x.place({t, h}), n_);
        row.insert(row.end(), more.begin(), more.end());
      }
      expect_statistic(p, row, Shape{t}, &across);
    }
    for (int64_t h = 0; h < heads_; ++h) expect_head(p, t, h, across);
  }
}

void HeadsModel::expect_statistic(const fastnorm_norm_heads_part& p, const std::vector<float>& x,
                                  Index at, ref::NormResult* result) {
  if (const Operand* given = call_(p.rstd_in)) {
    const Operand* const mean = call_(p.mean_in);
    result->rstd = given->values(given->place(at), 1)[0];
    result->mean = mean == nullptr ? 0 : mean->values(mean->place(at), 1)[0];
    return;
  }
  const ref::NormRow row = {static_cast<int64_t>(x.size()), x.data()};
  ref::norm_model(options_.norm, row, order_, &scratch_, result);
  const auto put = [&](const fastnorm_tensor* t, const std::vector<float>& numbers) {
    if (Operand* to = call_(t)) to->expect(to->place(at), numbers);
  };
  put(p.mean, {result->mean});
  put(p.rstd, {result->rstd});
  if (p.sumsq == nullptr) return;
  const Type type = options_.norm.dtype;
  std::vector<float> partial, d = x;
  if (options_.norm.kind == ref::Kind::kRms)
    return put(p.sumsq, {ref::ordered_sum_of_squares(order_, type, d.data(), row.n, &partial)});
  // The sums about the row's first element give the mean, those about the mean its correction.
  const float inv_n = 1.0f / static_cast<float>(row.n);
  for (float& v : d) v -= x[0];
  const float mean = x[0] + ref::ordered_sum(order_, type, d.data(), row.n, &partial) * inv_n;
  for (size_t i = 0; i < d.size(); ++i) d[i] = x[i] - mean;
  const float sum = ref::ordered_sum(order_, type, d.data(), row.n, &partial);
  const float squares = ref::ordered_sum_of_squares(order_, type, d.data(), row.n, &partial);
  put(p.sumsq, {result->mean, std::max(0.0f, std::fma(-(sum * inv_n), sum, squares))});
}

void HeadsModel::expect_head(const fastnorm_norm_heads_part& p, int64_t t, int64_t h,
                             const ref::NormResult& across) {
  const int64_t at[] = {t, h};
  const auto columns = [&](const fastnorm_tensor* of) {
    const Operand* const o = call_(of);
    return o == nullptr ? std::vector<float>() : o->row(Index(at + 1, 1), n_);
  };
  const Operand& from = *call_(p.x);
  const std::vector<float> x = from.values(from.place(at), n_), weight = columns(p.weight),
                           bias = columns(p.bias);
  const ref::NormRow row = {n_, x.data(), nullptr, weight.empty() ? nullptr : weight.data(),
                            bias.empty() ? nullptr : bias.data()};
  ref::NormResult own;
  if (options_.normalise && !across_) expect_statistic(p, x, at, &own);
  const ref::NormResult& s = across_ ? across : own;
  std::vector<float> c, sn, o(x.size());
  if (options_.rope) {
    c = tables_.cosines(options_.turn, h, t);
    sn = tables_.sines(options_.turn, h, t);
  }
  ref::head_model(options_, row, s.mean, s.rstd, c.data(), sn.data(), o.data());
  const std::vector<float> of_y = codes_->expect(at, t * heads_ + h, o);
  if (Operand* y = call_(p.y)) y->expect(y->place(at), of_y);
  if (p.head_weights != nullptr) expect_head_weight(p, at);
  Operand* const cache = call_(p.cache);
  if (cache == nullptr) return;
  const int64_t slot = slots_[static_cast<size_t>(t)], page_size = cache->shape[1];
  const int64_t place[] = {slot / page_size, slot % page_size, h};
  if (p.cache_quant == nullptr) return cache->expect(cache->place(place), o);
  if (Operand* const tail = call_(p.cache_tail)) {
    const auto first = o.end() - tail->shape[3];
    tail->expect(tail->place(place), {first, o.end()});
    o.erase(first, o.end());
  }
  cache_->expect(place, 0, o);
}

void HeadsModel::expect_head_weight(const fastnorm_norm_heads_part& p, Index at) {
  const Operand& weights = *call_(p.head_weights);
  Operand& out = *call_(p.head_weights_out);
  const float factor = p.head_weights_factor == 0 ? 1 : p.head_weights_factor;
  out.expect(out.place(at), {ref::head_weight_model(weights.values(weights.place(at), 1)[0],
                                                    codes_->scale(), factor)});
}

Expected expect_heads(Operands& call, ref::Order order) {
  HeadsModel model(call, order);
  for (int32_t i = 0; i < call.count(); ++i)
    model.expect(*call.parts<fastnorm_norm_heads_part>()[i]);
  return {};
}

}  // namespace

CallModel norm_heads_model() { return {"norm_heads", fill_norm_heads, expect_heads}; }

}  // namespace fastnorm::support
