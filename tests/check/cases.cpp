#include "check/cases.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "core/norm/plan.h"

namespace fastnorm::check {
namespace {

using ref::Random;
using ref::Type;

constexpr int64_t kUsual[] = {32,    64,    96,    128,    192,    256,   320,   384,   512,
                              576,   640,   768,   896,    1024,   1280,  1536,  1792,  2048,
                              2560,  3072,  3584,  4096,   5120,   6144,  7168,  8192,  9216,
                              10240, 12288, 14336, 16384,  20480,  24576, 28672, 32768, 40960,
                              49152, 65536, 98304, 131072, 196608, 262144};
constexpr int64_t kPrimes[] = {31,   61,   127,   251,   509,   1021,  2039,
                               4093, 8191, 16381, 16411, 32749, 65537, 100003};
constexpr int64_t kLong[] = {300001, 1048576};  // longer than every tile of 16-bit elements

// Rows times columns of a case, and of the cases with many rows.
constexpr int64_t kElements = 150'000, kManyElements = 600'000;

std::optional<Type> any_weight(Random& random, Type dtype) {
  switch (random.below(3)) {
    case 0:
      return std::nullopt;
    case 1:
      return dtype;
    default:
      return Type::kF32;
  }
}

Type any_dtype(Random& random) { return static_cast<Type>(random.below(3)); }

class CaseMaker {
 public:
  CaseMaker(const NormEntry& entry, bool cuda, bool reduced, uint64_t own)
      : key_(entry.key),
        tile_(entry.tile),
        dtype_(static_cast<Type>(entry.key.dtype)),
        cuda_(cuda),
        reduced_(reduced),
        quick_(reduced && cuda),
        vector_only_(entry.key.access == Access::kVector),
        every_(!cuda || entry.every),
        any_weights_(!cuda || entry.key.affine == Affine::kAny),
        any_dims_(any_weights_),
        bare_(entry.key.flavour != Flavour::kGeneral),
        rounded_(with_streaming_loads(entry.key.flavour) == Flavour::kRoundedStreaming),
        weight_dtype_(entry.key.affine == Affine::kF32 ? Type::kF32 : dtype_),
        grain_(vector_only_ ? ref::per_vector(dtype_) : 1),
        random_(ref::hash(own, entry.packed())) {}

  std::vector<Case> make() {
    const std::vector<int64_t> sizes = choose_sizes();
    if (key_.sink != Sink::kStore) return quantised(sizes);
    for (const int64_t n : sizes) every_size(n);
    const int64_t some[] = {sizes.front(), sizes[sizes.size() / 2], sizes.back()};
    for (const int64_t n : some) many_rows(n);
    for (const int64_t n : some) accesses(n);
    for (const int64_t n : {some[0], some[1]}) {
      patterns(n);
      outputs(n);
      roundings(n);
      dtypes(n);
      if (reduced_) break;
    }
    shifts(some[1]);
    heads(some[1]);
    if (cuda_ && runs_heads(key_, tile_)) {
      for (const int64_t n : some) {
        grids_of_heads(n);
        if (reduced_) break;
      }
    }
    return std::move(cases_);
  }

 private:
  // --- sizes ---

  int64_t least_vectors() const {
    return every_ ? 1 : int64_t{tile_.threads_per_row()} * (tile_.vectors - 1) + 1;
  }
  int64_t most_vectors() const {
    if (!cuda_ || tile_.vectors == 0) return int64_t{1} << 40;
    return int64_t{tile_.threads_per_row()} * tile_.vectors;
  }

  bool holds(int64_t n) const {
    const int64_t v = ref::per_vector(dtype_), vectors = (n + v - 1) / v;
    return n > 0 && n % grain_ == 0 && vectors >= least_vectors() && vectors <= most_vectors();
  }

  std::vector<int64_t> choose_sizes() {
    const int64_t v = ref::per_vector(dtype_);
    std::set<int64_t> sizes;
    const auto add = [&](int64_t n) {
      if (holds(n)) sizes.insert(n);
    };
    for (int64_t n = 1; n <= 2 * v + 1; ++n) add(n * grain_);
    for (const int64_t n : kUsual) add(n);
    for (const int64_t n : kPrimes) add(n);
    if (!cuda_ || tile_.vectors == 0) {
      for (const int64_t n : {16383, 16385, 49153}) add(n);  // near the ends of a CPU's chunks
    } else {
      for (const int64_t vectors : {least_vectors(), least_vectors() + 1, most_vectors() - 1,
                                    most_vectors(), (least_vectors() + most_vectors()) / 2}) {
        for (const int64_t n :
             {vectors * v, vectors * v - 1, vectors * v - v / 2, vectors * v - v + 1})
          add(n);
      }
    }
    if (reduced_) thin(sizes, cuda_ ? 6 : 12);
    if (!reduced_ && (!cuda_ || tile_.vectors == 0)) {
      for (const int64_t n : kLong) add(n);
      add(kLong[1] + v);
    }
    return {sizes.begin(), sizes.end()};
  }

  // Keeps the first, the last and evenly spaced ones between them. None is longer than two chunks
  // of a CPU.
  static void thin(std::set<int64_t>& sizes, size_t most) {
    const int64_t first = *sizes.begin();
    std::erase_if(sizes, [&](int64_t n) { return n > 32768 + 64 && n != first; });
    const std::vector<int64_t> all(sizes.begin(), sizes.end());
    if (all.size() <= most) return;
    sizes.clear();
    for (size_t i = 0; i < most; ++i) sizes.insert(all[i * (all.size() - 1) / (most - 1)]);
  }

  // --- contents ---

  Content plain_content(int64_t n) const {
    Content c;
    c.n = n;
    c.add = key_.source == Source::kAdd;
    c.options.dtype = c.options.sum_dtype = c.residual_dtype = dtype_;
    c.options.kind = key_.stat == Stat::kLayer ? ref::Kind::kLayer : ref::Kind::kRms;
    c.options.eps = 1e-6f;
    c.weight = weight_dtype_;
    if (key_.stat == Stat::kLayer) c.bias = weight_dtype_;
    c.seed = ref::hash(static_cast<uint64_t>(dtype_), key_.source, key_.stat, n);
    return c;
  }

  // Contents that every kernel supports.
  Content lean_content(int64_t n, int number) const {
    Content c = plain_content(n);
    if (number == 0) return c;
    Random random(ref::hash(c.seed, 1, number));
    c.weight = any_weight(random, dtype_);
    c.bias = any_weight(random, dtype_);
    c.options.eps = random.of({0.0f, 1e-5f, 1e-12f, 1.0f});
    if (c.weight) c.options.weight_offset = random.of({0.0f, 1.0f, -0.0f, 0.375f});
    if (cuda_ && random.one_in(2)) c.options.rounding = ref::Rounding::kNormalized;
    if (cuda_ && c.add && random.one_in(2))
      c.options.residual_rounding = ref::ResidualRounding::kBeforeStatistics;
    c.seed = random.next();
    keep_to_weights(&c);
    return c;
  }

  // Weight and bias have the kernel's dtype or are absent, and RMS has no bias. Most kernels of a
  // GPU support only that.
  void keep_to_weights(Content* c) const {
    if (any_weights_) return;
    if (c->weight) c->weight = weight_dtype_;
    if (c->bias) c->bias = weight_dtype_;
    if (key_.stat == Stat::kRms) c->bias.reset(), c->bias_heads = false;
  }

  // Contents for the kernels that support everything.
  Content general_content(int64_t n, int number) const {
    Content c = lean_content(n, number + 100);
    Random random(ref::hash(c.seed, 2));
    c.options.rounding = static_cast<ref::Rounding>(random.below(ref::kRoundings));
    if (c.add) {
      c.options.residual_rounding = static_cast<ref::ResidualRounding>(random.below(3));
      c.residual_dtype = random.one_in(3) ? dtype_ : any_dtype(random);
      c.options.sum_dtype = random.one_in(3) ? dtype_ : any_dtype(random);
    }
    if (random.one_in(3)) {
      if (c.weight) c.weight = any_dtype(random);
      if (c.bias) c.bias = any_dtype(random);
    }
    c.options.y_f32 = dtype_ != Type::kF32 && random.one_in(3);
    return c;
  }

  // Contents that a quantising kernel supports: most take only weight and bias of their own dtype.
  Content quantised_content(int64_t n, int number) const {
    if (key_.access == Access::kAny) return general_content(n, number);
    Content c = lean_content(n, number + 100);
    Random random(ref::hash(c.seed, 3));
    if (c.weight) c.weight = weight_dtype_;
    c.bias.reset();
    if (key_.stat == Stat::kLayer && !random.one_in(3)) c.bias = weight_dtype_;
    return c;
  }

  // --- layouts ---

  // Strides that keep rows apart, with dimensions in any order and of either sign. Inputs may be
  // broadcast.
  TensorLayout any_tensor(const Layout& l, int64_t length, int64_t grain, bool input) {
    TensorLayout t;
    int order[kMaxOuter] = {0, 1, 2};
    if (l.rank > 1 && random_.one_in(3)) std::swap(order[0], order[random_.below(l.rank)]);
    int64_t span = (length + grain - 1) / grain * grain;
    for (const int d : order) {
      if (d >= l.rank) continue;
      if (input && random_.one_in(8)) continue;  // stride 0
      const int64_t pad = random_.one_in(3) ? 0 : grain * random_.below(6);
      t.stride[d] = span + pad;
      span += t.stride[d] * (l.outer[d] - 1) + pad;
      if (random_.one_in(8)) t.stride[d] = -t.stride[d];
    }
    t.shift = random_.one_in(2) ? 0 : grain * random_.below(16);
    return t;
  }

  TensorLayout compact_tensor(const Layout& l, int64_t length) const {
    TensorLayout t;
    int64_t step = length;
    for (int d = 0; d < l.rank; ++d) {
      t.stride[d] = step;
      step *= l.outer[d];
    }
    return t;
  }

  void give_rows(Layout& l, int rank, int64_t rows) {
    l.rank = rank;
    std::fill(std::begin(l.outer), std::end(l.outer), 1);
    if (rank == 0) return;
    for (int d = 0; d + 1 < rank; ++d) {
      l.outer[d] = 1 + random_.below(std::min<int64_t>(rows, 5));
      rows = (rows + l.outer[d] - 1) / l.outer[d];
    }
    l.outer[rank - 1] = rows;
  }

  int64_t fitting_rows(int64_t n, int64_t wanted, int64_t elements) const {
    const int64_t fewer = quick_ ? 32 : reduced_ ? 8 : 1;
    if (quick_) wanted = std::min(wanted, std::max<int64_t>(8, 65536 / tile_.threads_per_row()));
    return std::clamp<int64_t>(elements / fewer / n, 1, wanted);
  }

  // A stored residual_out determines what x + residual is rounded to, if its dtype differs from the
  // residual's.
  void choose_sum(const Content& c, Layout& l) {
    if (!c.add) return;
    const bool must = c.options.sum_dtype != c.residual_dtype;
    if (must || !random_.one_in(3)) l.residual_out_dtype = c.options.sum_dtype;
    l.sum_in_place = !must && l.residual_out_dtype && random_.one_in(3);
  }

  // Outputs that overwrite an input which is not their own. Inputs and outputs must have one dtype.
  void choose_crossing(const Content& c, Layout& l) {
    const bool same =
        c.add && c.residual_dtype == dtype_ && c.options.sum_dtype == dtype_ && !c.options.y_f32;
    if (!same || !random_.one_in(3)) return;
    const int64_t which = 1 + random_.below(3);
    if (!l.sum_in_place && (which & 1) != 0) cross_y(l);
    if (!l.y_in_place && (which & 2) != 0) cross_sum(l);
  }
  static void cross_y(Layout& l) {
    l.y_over_residual = true;
    l.y_in_place = false;
  }
  static void cross_sum(Layout& l) {
    l.sum_over_x = l.residual_out_dtype.has_value();
    l.sum_in_place = false;
  }

  Layout any_layout(const Content& c, int64_t rows) {
    Layout l;
    give_rows(
        l, rows > 1 ? 1 + static_cast<int>(random_.below(3)) : static_cast<int>(random_.below(4)),
        rows);
    l.first_row = random_.below(4);
    choose_sum(c, l);
    l.y_in_place = random_.one_in(4) && !c.options.y_f32;
    choose_crossing(c, l);
    l.store_rstd = !random_.one_in(4);
    l.store_mean = c.options.kind == ref::Kind::kLayer && !random_.one_in(4);
    l.last_one = random_.one_in(2);
    l.byte_offset = random_.one_in(4);
    choose_tensors(c, l);
    l.weight_shift = random_.one_in(2) ? 0 : grain_ * random_.below(16);
    l.bias_shift = random_.one_in(2) ? 0 : grain_ * random_.below(16);
    return l;
  }

  Layout compact_layout(const Content& c, int64_t rows, int64_t first_row) const {
    Layout l;
    l.outer[0] = rows;
    l.first_row = first_row;
    if (c.add) l.residual_out_dtype = c.options.sum_dtype;
    l.store_rstd = true;
    l.store_mean = c.options.kind == ref::Kind::kLayer;
    l.x = l.y = l.residual = l.residual_out = compact_tensor(l, c.n);
    l.mean = l.rstd = compact_tensor(l, 1);
    return l;
  }

  void put(const Content& c, const Layout& l, bool bounds = false) {
    cases_.push_back({c, l, bounds});
    if (bare_) make_bare(cases_.back());
  }

  // As a lean kernel needs it. All rows share weight and bias. Rows have one index, or two if a
  // block has several rows. Nothing is rounded in between, or all as in Llama's form.
  void make_bare(Case& what) const {
    Content& c = what.content;
    Layout& l = what.layout;
    c.weight = weight_dtype_;
    if (key_.stat == Stat::kLayer) c.bias = weight_dtype_;
    c.options.rounding = rounded_ ? ref::Rounding::kNormalized : ref::Rounding::kOnce;
    c.options.residual_rounding = rounded_ && c.add ? ref::ResidualRounding::kBeforeStatistics
                                                    : ref::ResidualRounding::kExact;
    if (rounded_) c.options.weight_offset = 0.0f;
    c.weight_heads = c.bias_heads = false;
    if (l.rank == 2 && rows_per_block(tile_) > 1) return;
    if (l.rank != 1) {
      const int64_t rows = l.outer[0] * l.outer[1] * l.outer[2];
      const Layout compact = compact_layout(c, rows, l.first_row);
      l.rank = 1;
      std::copy(std::begin(compact.outer), std::end(compact.outer), std::begin(l.outer));
      l.x = l.y = l.residual = l.residual_out = compact.x;
      l.codes = compact.x;
      l.mean = l.rstd = compact.rstd;
    }
  }

  // --- groups of cases ---

  void every_size(int64_t n) {
    constexpr int64_t kRows[] = {1, 2, 7};
    const int count = reduced_ ? 1 : 2;
    const auto layout = [&](const Content& c) {
      return any_layout(c, fitting_rows(n, random_.of(kRows), kElements));
    };
    for (int i = 0; i < count; ++i) {
      const Content c = lean_content(n, i);
      put(c, layout(c), true);
    }
    for (int i = 0; key_.access == Access::kAny && i < count; ++i) {
      const Content c = general_content(n, i);
      put(c, layout(c), true);
    }
  }

  // Rows in cases of their own: few, many, at equal and at varying distances.
  void many_rows(int64_t n) {
    const Content c = plain_content(n);
    const int64_t many = fitting_rows(n, 4099, kManyElements);
    put(c, compact_layout(c, many, 0), true);
    for (const int64_t rows : {1, 2, 7}) {
      if (rows < many) put(c, compact_layout(c, rows, many - rows), false);
    }
    Layout odd = compact_layout(c, std::min<int64_t>(many, 1027), 0);
    for (TensorLayout* t : {&odd.x, &odd.y, &odd.residual, &odd.residual_out}) {
      t->stride[0] += grain_ * (1 + random_.below(5));
      t->shift = grain_;
    }
    put(c, odd);
  }

  void patterns(int64_t n) {
    for (int pattern = 0; pattern < ref::kPatterns; pattern += quick_ ? 6 : 1) {
      for (const float eps : {1e-5f, 0.0f}) {
        Content c = lean_content(n, eps == 0 ? 0 : 1);
        c.pattern = pattern;
        c.options.eps = eps;
        put(c, compact_layout(c, 3, 0), true);
        if (key_.access != Access::kAny) continue;
        c = general_content(n, pattern);
        c.pattern = pattern;
        c.options.eps = eps;
        put(c, any_layout(c, 3), true);
      }
    }
  }

  // Every subset of the optional outputs, separate and in place. The others must not change.
  void outputs(int64_t n) {
    const Content c = plain_content(n);
    const bool layer = c.options.kind == ref::Kind::kLayer;
    for (int bits = 0; bits < 32; bits += quick_ ? 7 : 1) {
      Layout l = compact_layout(c, 3, 0);
      l.store_rstd = (bits & 1) != 0;
      l.y_in_place = (bits & 2) != 0;
      l.store_mean = (bits & 4) != 0;
      if ((bits & 8) == 0) l.residual_out_dtype.reset();
      l.sum_in_place = (bits & 16) != 0;
      if ((l.store_mean && !layer) || (!c.add && bits >= 8)) continue;
      if (l.sum_in_place && !l.residual_out_dtype) continue;
      put(c, l);
    }
    // y over the residual, residual_out over x, and both: graph allocators reuse buffers this way.
    for (int which = 1; c.add && which < 4; ++which) {
      Layout l = compact_layout(c, 3, 0);
      if ((which & 1) != 0) cross_y(l);
      if ((which & 2) != 0) cross_sum(l);
      put(c, l);
    }
  }

  // All roundings that the kernel supports, with all kinds of weight and bias.
  void roundings(int64_t n) {
    const bool any = key_.access == Access::kAny;
    const std::optional<Type> weights[] = {std::nullopt, dtype_, Type::kF32};
    constexpr int kAll = ref::kRoundings;
    for (int axes = 0; axes < (key_.source == Source::kAdd ? 3 * kAll : kAll); ++axes) {
      const auto rounding = static_cast<ref::Rounding>(axes % kAll);
      const auto of_sum = static_cast<ref::ResidualRounding>(axes / kAll);
      if (!any && (!cuda_ || rounding > ref::Rounding::kNormalized ||
                   of_sum == ref::ResidualRounding::kBeforeApply)) {
        continue;
      }
      for (int pair = 0; pair < 9; ++pair) {
        if (reduced_ && pair != axes % 9) continue;
        Content c = any ? general_content(n, axes) : plain_content(n);
        c.options.rounding = rounding;
        c.options.residual_rounding = of_sum;
        c.weight = weights[pair % 3];
        c.bias = weights[pair / 3];
        keep_to_weights(&c);
        c.options.weight_offset = c.weight && pair % 2 == 0 ? 1.0f : 0.0f;
        put(c, any_layout(c, fitting_rows(n, 5, kElements)), axes % 9 == pair);
      }
    }
  }

  // Every dtype of each tensor with every dtype of the others. A GPU runs a sample.
  void dtypes(int64_t n) {
    if (key_.access != Access::kAny) return;
    const bool add = key_.source == Source::kAdd;
    constexpr int kTypes = 3, kPairs = kTypes * kTypes, kAll = kPairs * kPairs * 2;
    const int step = !cuda_ ? 1 : quick_ ? 23 : reduced_ ? 11 : 5;
    for (int i = static_cast<int>(random_.below(step)); i < (add ? kAll : 2 * kPairs); i += step) {
      Content c = general_content(n, i);
      c.options.y_f32 = dtype_ != Type::kF32 && i % 2 != 0;
      c.weight = static_cast<Type>(i / 2 % kTypes);
      c.bias = static_cast<Type>(i / 2 / kTypes % kTypes);
      if (add) {
        c.residual_dtype = static_cast<Type>(i / 2 / kPairs % kTypes);
        c.options.sum_dtype = static_cast<Type>(i / 2 / kPairs / kTypes);
      }
      put(c, any_layout(c, fitting_rows(n, 3, kElements)), true);
    }
  }

  // Every address modulo 16 elements, for each tensor alone and for all together.
  void shifts(int64_t n) {
    const Content c = plain_content(n);
    for (int which = 0; which < 7; ++which) {
      for (int64_t shift = grain_; shift < std::max<int64_t>(16, 2 * grain_); shift += grain_) {
        if (reduced_ && shift % 7 != which) continue;
        Layout l = compact_layout(c, fitting_rows(n, 2, kElements), 0);
        const bool all = which == 6;
        if (which == 0 || all) l.x.shift = shift;
        if (which == 1 || all) l.y.shift = shift;
        if (which == 2 || all) l.residual.shift = shift;
        if (which == 3 || all) l.residual_out.shift = shift;
        if (which == 4 || all) l.weight_shift = shift;
        if (which == 5 || all) l.bias_shift = shift;
        put(c, l);
      }
    }
  }

  // A different widest access for every tensor. It is the same for all of its rows, or it changes
  // from row to row.
  void accesses(int64_t n) {
    if (vector_only_) return;
    const Content c = plain_content(n);
    constexpr int64_t kShifts[] = {0, 4, 2, 1,
                                   3};  // 16-bit elements: accesses of 16, 8, 4, 2 and 2 bytes
    for (int first = 0; first < 5; ++first) {
      for (const int64_t odd : {0, 1}) {
        Layout l = compact_layout(c, fitting_rows(n, 9, kElements), 0);
        int next = first;
        for (TensorLayout* t : {&l.x, &l.y, &l.residual, &l.residual_out}) {
          t->stride[0] = (n + 7) / 8 * 8 + odd;
          t->shift = kShifts[next++ % 5];
        }
        l.weight_shift = kShifts[next++ % 5];
        l.bias_shift = kShifts[next % 5];
        put(c, l);
      }
    }
  }

  // Weight and bias that vary along some leading dimensions, usually heads, for every rank of x.
  // Most kernels of a GPU support one such dimension.
  void heads(int64_t n) {
    for (int rank = 1; rank <= kMaxOuter; rank += quick_ ? 2 : 1) {
      for (unsigned dims = 1; dims < 1u << rank; ++dims) {
        if (std::has_single_bit(dims) || any_dims_) heads(n, rank, dims);
      }
    }
  }
  void heads(int64_t n, int rank, unsigned dims) {
    for (int which = 1; which < 4; ++which) {
      Content c = lean_content(n, which);
      c.weight = (which & 1) != 0 && !random_.one_in(2) ? Type::kF32 : dtype_;
      c.bias = (which & 2) != 0 && !random_.one_in(2) ? Type::kF32 : dtype_;
      c.weight_heads = (which & 1) != 0;
      c.bias_heads = (which & 2) != 0;
      keep_to_weights(&c);
      Layout l = any_layout(c, fitting_rows(n, 24, kElements));
      give_rows(l, rank, fitting_rows(n, 24, kElements));
      choose_tensors(c, l);
      l.weight_dims = dims;
      l.bias_dims = any_dims_ && random_.one_in(2) ? some_dims(rank) : dims;
      l.weight_pad = grain_ * random_.below(3);
      l.bias_pad = grain_ * random_.below(3);
      put(c, l);
    }
  }

  // Heads of equal numbers of tokens, so that they run as grids of heads, alone or two in one.
  // Blocks are full, or some of their threads are idle.
  void grids_of_heads(int64_t n) {
    const int64_t block = rows_per_block(tile_);
    const Content c = plain_content(n);
    for (const int64_t tokens : {1, 3, 5}) {
      // With three of each, two run together, wherever the first one is in a list.
      for (const int64_t heads : {block, 2 * block, 3 * block - 1, block + 1, 9 * block}) {
        Layout l = any_layout(c, 1);
        l.rank = 2;
        l.outer[0] = heads;
        l.outer[1] = tokens;
        choose_tensors(c, l);
        put(c, l);
      }
    }
  }

  // --- quantised outputs ---

  std::vector<Case> quantised(const std::vector<int64_t>& sizes) {
    for (const int64_t n : sizes) {
      const std::vector<ref::QuantOptions> all = quant_options();
      // Every quantisation at the first size and at one more, a few at the others.
      const bool every = n == sizes.front() || n == sizes[sizes.size() / 2];
      for (size_t i = 0; i < all.size(); ++i) {
        if (every || random_.below(static_cast<int64_t>(all.size())) < (reduced_ ? 2 : 3))
          quantise(n, all[i]);
      }
    }
    const int64_t n = sizes[sizes.size() / 2];
    for (int pattern = 0; pattern < ref::kPatterns; ++pattern) {
      for (const ref::QuantOptions& q : quant_options()) {
        if (!random_.one_in(reduced_ ? 12 : 6)) continue;
        quantise(n, q);
        cases_.back().content.pattern = pattern;
      }
    }
    if (key_.sink == Sink::kQuant && !bare_) amax_alone(n);
    return std::move(cases_);
  }

  // Schemes with formats, and the options that each has.
  std::vector<ref::QuantOptions> quant_options() const {
    using ref::Format;
    using ref::Scheme;
    std::vector<ref::QuantOptions> all;
    for (const Format format : {Format::kE4M3, Format::kE5M2, Format::kI8}) {
      if (key_.sink == Sink::kStatic && format == Format::kE5M2) continue;
      ref::QuantOptions q;
      q.format = format;
      q.scheme = Scheme::kPerTensor;
      all.push_back(q);
      if (key_.sink == Sink::kStatic) continue;
      for (const int64_t block : {0, 64, 128}) {
        q.scheme = block == 0 ? Scheme::kPerRow : Scheme::kPerBlock;
        q.block_size = block;
        for (const int powers : {0, 1, 2}) {
          if (powers > 0 && format == Format::kI8) continue;
          q.pow2 = powers > 0;
          q.e8m0 = powers == 2;
          all.push_back(q);
        }
        q.pow2 = q.e8m0 = false;
      }
      q = {};
      q.format = format;
      q.scheme = Scheme::kMxfp8;
      if (format != Format::kI8) all.push_back(q);
    }
    if (key_.sink == Sink::kStatic) return all;
    ref::QuantOptions q;
    q.format = Format::kE2M1;
    for (const Scheme scheme : ref::kSchemes) {
      q.scheme = scheme;
      if (is_fp4(scheme)) all.push_back(q);
    }
    return all;
  }

  void quantise(int64_t n, ref::QuantOptions q) {
    using ref::Scheme;
    if (is_fp4(q.scheme) && n % 2 != 0) return;
    Content c = quantised_content(n, random_.below(64));
    const bool codes_only = key_.sink == Sink::kStatic || bare_;
    q.source =
        !codes_only && random_.one_in(2) ? ref::QuantSource::kRounded : ref::QuantSource::kF32;
    q.clamp = !codes_only && random_.one_in(4) ? 1.5f : 0.0f;
    if (!codes_only && random_.one_in(4)) {
      c.clamp_scale = random_.of({1.5f, 0.25f, 1e30f, 0.0f, -0.0f, -1.5f, std::nanf("")});
      q.clamp = *c.clamp_scale > 0 ? *c.clamp_scale : 0.0f;
    }
    const bool dynamic = q.scheme == Scheme::kPerRow || q.scheme == Scheme::kPerBlock;
    if (dynamic) q.amax_floor = random_.of({0.0f, 0.0f, 0x1p-9f, 4.0f});
    const bool divisible = dynamic || q.scheme == Scheme::kPerTensor;
    q.divide = !codes_only && divisible && random_.one_in(3);
    c.quant = q;
    if (q.scheme == Scheme::kPerTensor)
      c.tensor_scale = random_.of({1.0f, 0.0078125f, 0.013f, -2.5f});
    if (q.scheme == Scheme::kNvfp4 && !random_.one_in(3))
      c.global_scale = random_.of({1.0f, 0.0037f, 17.0f, -1.0f, -0.25f, 0x1p-100f, -0x1p100f});
    Layout l = any_layout(c, fitting_rows(n, random_.of({1, 2, 7, 130}), kElements));
    if (l.rank > 0 && random_.one_in(4)) {
      c.weight_heads = c.weight.has_value();
      c.bias_heads = c.bias.has_value();
      l.weight_pad = grain_ * random_.below(3);
      l.bias_pad = grain_ * random_.below(3);
    }
    l.store_y = !codes_only && random_.one_in(2);
    l.packed_u8 = random_.one_in(2);
    if (!codes_only && random_.one_in(3)) l.amax = random_.of({0.0f, 0.75f, 1e6f});
    const bool fp4 = q.format == ref::Format::kE2M1;
    const int64_t code_grain = !vector_only_ ? 1 : fp4 ? grain_ / 2 : grain_;
    l.codes = any_tensor(l, fp4 ? n / 2 : n, code_grain, false);
    for (int64_t& stride : l.codes.stride) stride = std::abs(stride);
    if (q.scheme != Scheme::kPerTensor && q.scheme != Scheme::kPerRow) {
      l.scales = random_.of({ScalePlaces::kRowMajor, ScalePlaces::kColumnMajor,
                             ScalePlaces::kStrided, ScalePlaces::kSwizzled});
      if (l.scales == ScalePlaces::kSwizzled && !ref::has_scale_bytes(q))
        l.scales = ScalePlaces::kRowMajor;
    } else if (q.scheme == Scheme::kPerRow && random_.one_in(2)) {
      l.scales = ScalePlaces::kStrided;
    }
    // Most kernels of a GPU then take rows in another order, which swizzled scales do not allow.
    if (c.weight_heads || c.bias_heads) {
      if (any_dims_) {
        l.weight_dims = some_dims(l.rank), l.bias_dims = some_dims(l.rank);
      } else if (l.scales != ScalePlaces::kSwizzled) {
        l.weight_dims = l.bias_dims = 1u << random_.below(l.rank);
      }
    }
    put(c, l);
  }

  // The largest magnitude of y, without quantised output.
  void amax_alone(int64_t n) {
    for (int i = 0; i < 4; ++i) {
      const Content c = quantised_content(n, i);
      Layout l = any_layout(c, fitting_rows(n, 5, kElements));
      l.amax = random_.of({0.0f, 2.5f});
      put(c, l);
    }
  }

  // A random set of the leading dimensions, at least one.
  unsigned some_dims(int rank) {
    return 1 + static_cast<unsigned>(random_.below((int64_t{1} << rank) - 1));
  }

  // Strides for the layout's extents. A tensor that an output overwrites is not broadcast.
  void choose_tensors(const Content& c, Layout& l) {
    l.x = any_tensor(l, c.n, grain_, !l.y_in_place && !l.sum_over_x);
    l.y = l.y_in_place ? l.x : any_tensor(l, c.n, grain_, false);
    l.residual = any_tensor(l, c.n, grain_, !l.sum_in_place && !l.y_over_residual);
    if (l.y_over_residual) l.y = l.residual;
    l.residual_out = l.sum_in_place ? l.residual
                     : l.sum_over_x ? l.x
                                    : any_tensor(l, c.n, grain_, false);
    l.mean = any_tensor(l, 1, 1, false);
    l.rstd = any_tensor(l, 1, 1, false);
  }

  const NormKey key_;
  const Tile tile_;
  const Type dtype_;
  const bool cuda_, reduced_;
  const bool quick_;  // a launch is slow under compute-sanitizer and in software
  const bool vector_only_;
  const bool every_;  // supports rows of any length up to its tile
  const bool any_weights_, any_dims_, bare_, rounded_;
  const Type weight_dtype_;
  const int64_t grain_;  // addresses and strides are multiples of this many elements
  Random random_;
  std::vector<Case> cases_;
};

}  // namespace

std::vector<Case> make_cases(const NormEntry& entry, bool cuda, bool reduced, uint64_t own) {
  return CaseMaker(entry, cuda, reduced, own).make();
}

}  // namespace fastnorm::check
