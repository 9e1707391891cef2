#include "check/norm_backward_case.h"

#include <algorithm>

#include "core/norm_backward_rows.h"

namespace fastnorm::check {
namespace {

using ref::Type;

constexpr int64_t kLengths[] = {1,    2,    3,    7,    8,    16,   31,   33,   64,  65,
                                96,   100,  128,  255,  256,  500,  512,  513,  768, 1000,
                                1024, 1536, 2047, 2048, 2049, 3584, 4096, 5120, 8192};

// The same for the branch of a call, whose T is known.
void settle_branch(NormBackwardCase* c) {
  BranchCase* b = &c->branch;
  if (!b->normalise) {
    b->has_weight = b->has_bias = b->has_statistics = b->rounded = false;
    b->has_dbias = false;
    b->kind = ref::Kind::kRms;
    b->rounding = ref::Rounding::kOnce;
  }
  b->has_dweight = b->has_dweight && b->has_weight;
  if (!b->has_weight) b->weight_offset = 0;
  b->has_dgate = b->has_dgate && b->has_gate;
  if (!b->has_gate) b->act = ref::Activation::kIdentity;
  b->has_branch = b->has_branch || b->normalise || b->has_dgate;
  b->present = b->has_branch || b->has_dbranch || b->has_sum_scale;
  if (b->gate != Type::kF32) b->gate = c->dtype;
  if (b->dgate != Type::kF32) b->dgate = b->gate;
  if (b->dweight != Type::kF32) b->dweight = b->weight;
  b->accumulate_dweight = b->accumulate_dweight && b->has_dweight;
  b->accumulate_dbias = b->accumulate_dbias && b->has_dbias;
  b->accumulate_dgate = b->accumulate_dgate && b->has_dgate;
  b->in_place = b->in_place && b->has_dbranch && b->has_branch;
}

// Resolves settings that contradict each other.
void settle(NormBackwardCase* c) {
  if (c->dy != Type::kF32) c->dy = c->dtype;
  c->has_dgate = c->has_dgate && c->has_gate;
  c->gate_before = c->gate_before && c->has_gate;
  if (!c->has_gate) c->gate_act = ref::Activation::kIdentity;
  c->gate_from_rounded = c->gate_from_rounded && c->has_gate && !c->gate_before;
  c->has_bias = c->has_bias && c->has_gate;
  settle_branch(c);
  const bool sums = c->branch.has_dweight || c->branch.has_dbias || c->branch.has_dgate;
  const bool of_branch = c->branch.has_dbranch || sums;
  if (c->gate_before) c->has_dresidual_in = c->has_dresidual = false;
  if (!c->has_weight) {
    c->has_dweight = false;
    c->weight_offset = 0;
    if (!c->has_dbias && !c->has_dgate && !of_branch) c->has_dx = true;
  }
  if (!c->has_dx && !c->has_dweight && !c->has_dgate && !of_branch) c->has_dbias = true;
  if (c->grouped) {
    c->padding = 0;
    c->transposed = false;
    if (c->expand == Expand::kRows) c->expand = Expand::kNo;
  }
  // T is then dy's dtype if that has 16 bits, else x's.
  const bool branch_has_type = c->branch.has_branch || c->branch.has_dbranch;
  if (!c->has_dx && !branch_has_type) c->dtype = c->dy == Type::kF32 ? c->x : c->dy;
  if (!branch_has_type) c->dx = c->dtype;
  settle_branch(c);
  c->has_dresidual = c->has_dresidual && c->has_dx && c->dresidual != c->dx;
  if (c->dweight != Type::kF32) c->dweight = c->weight;
  c->accumulate_dweight = c->accumulate_dweight && c->has_dweight;
  c->accumulate_dbias = c->accumulate_dbias && c->has_dbias;
  if (!c->has_dx || (c->in_place == InPlace::kDy && (c->dy != c->dx || c->expand != Expand::kNo)) ||
      (c->in_place == InPlace::kX && c->x != c->dx) ||
      (c->in_place == InPlace::kDresidualIn &&
       (!c->has_dresidual_in || c->dresidual_in != c->dx))) {
    c->in_place = InPlace::kNothing;
  }
  c->dresidual_in_place = c->dresidual_in_place && c->has_dresidual && c->has_dresidual_in &&
                          c->dresidual_in == c->dresidual;
  if (c->gate != Type::kF32) c->gate = c->dtype;
  if (c->dgate != Type::kF32) c->dgate = c->dtype;
  const bool over_dy = c->gate_in_place == GateInPlace::kDy;
  if (!c->has_dgate || c->dgate != (over_dy ? c->dy : c->gate) ||
      (over_dy && (c->expand != Expand::kNo || c->in_place == InPlace::kDy))) {
    c->gate_in_place = GateInPlace::kNothing;
  }
}

void add_gate(ref::Random* random, NormBackwardCase* c) {
  c->grouped = random->one_in(2);
  c->has_gate = !random->one_in(8);
  c->has_dgate = !random->one_in(4);
  c->has_bias = random->one_in(2);
  c->gate_before = random->one_in(3);
  c->gate_from_rounded = random->one_in(4);
  c->gate_act = static_cast<ref::Activation>(random->below(ref::kActivations));
  c->gate = random->one_in(3) ? Type::kF32 : c->dtype;
  c->dgate = random->one_in(3) ? Type::kF32 : c->dtype;
  c->bias = random->of(ref::kTypes);
  c->gate_in_place = static_cast<GateInPlace>(random->below(3));
  if (random->one_in(4)) c->gate_pattern = static_cast<ref::Pattern>(random->below(ref::kPatterns));
}

// What a random case has beside the plain call.
enum class Beside : uint8_t { kNothing, kGate, kBranch };

void add_branch(ref::Random* random, bool cuda, NormBackwardCase* c) {
  BranchCase* b = &c->branch;
  b->normalise = !random->one_in(3);
  b->has_branch = random->one_in(2);
  b->has_weight = !random->one_in(4), b->has_bias = random->one_in(2);
  b->has_statistics = random->one_in(2), b->has_gate = random->one_in(2);
  b->has_sum_scale = random->one_in(3), b->rounded = random->one_in(2);
  b->has_dbranch = !random->one_in(4), b->has_dweight = !random->one_in(3);
  b->has_dbias = random->one_in(2), b->has_dgate = !random->one_in(3);
  b->accumulate_dweight = random->one_in(3), b->accumulate_dbias = random->one_in(3);
  b->accumulate_dgate = random->one_in(3), b->in_place = random->one_in(2);
  b->kind = random->one_in(2) ? ref::Kind::kLayer : ref::Kind::kRms;
  b->rounding = static_cast<ref::Rounding>(random->one_in(2) ? 0 : random->below(3));
  b->weight_offset = random->one_in(3) ? 1.0f : 0.0f;
  b->alpha = random->one_in(3) ? -0.375f : 0.0f;
  b->act = static_cast<ref::Activation>(random->below(ref::kActivations));
  b->weight = random->of(ref::kTypes), b->bias = random->of(ref::kTypes);
  b->gate = random->one_in(3) ? Type::kF32 : c->dtype;
  b->dgate = random->one_in(2) ? Type::kF32 : Type::kF16;
  b->dweight = random->one_in(2) ? Type::kF32 : Type::kF16;
  b->dbias = random->of(ref::kTypes);
  const auto share = [&] {
    return random->one_in(2) ? c->share : static_cast<Share>(random->below(cuda ? 3 : 4));
  };
  b->share = share(), b->bias_share = share(), b->gate_share = share();
  if (random->one_in(3)) b->pattern = static_cast<ref::Pattern>(random->below(ref::kPatterns));
  c->dx = random->one_in(2) ? c->dtype : random->of(ref::kTypes);
}

NormBackwardCase random_case(ref::Random* random, int64_t most_elements, bool cuda, Beside beside) {
  NormBackwardCase c;
  c.n = random->of(kLengths);
  const int64_t most_rows = std::max<int64_t>(1, most_elements / c.n);
  c.heads = random->one_in(2) ? 1 : 1 + random->below(std::min<int64_t>(most_rows, 8));
  c.batch =
      random->below(1 + std::min<int64_t>(most_rows / c.heads, random->one_in(3) ? 4096 : 24));
  c.dtype = random->of(ref::kTypes);
  const auto type = [&] { return random->one_in(2) ? c.dtype : random->of(ref::kTypes); };
  c.x = type(), c.weight = type(), c.dresidual_in = type(), c.dresidual = random->of(ref::kTypes);
  c.dy = random->one_in(3) ? Type::kF32 : c.dtype;
  c.dweight = random->one_in(2) ? Type::kF32 : Type::kF16;
  c.dbias = random->of(ref::kTypes);
  c.kind = random->one_in(2) ? ref::Kind::kLayer : ref::Kind::kRms;
  c.rounding = static_cast<ref::Rounding>(random->one_in(2) ? 0 : random->below(ref::kRoundings));
  c.eps = random->one_in(8) ? 0.0f : 1e-5f;
  c.weight_offset = random->one_in(3) ? 1.0f : 0.0f;
  c.has_weight = !random->one_in(6);
  c.has_dresidual_in = random->one_in(3);
  c.has_statistics = !random->one_in(3);
  c.has_dx = !random->one_in(5);
  c.has_dresidual = random->one_in(3);
  c.has_dweight = !random->one_in(4);
  c.has_dbias = random->one_in(c.kind == ref::Kind::kLayer ? 2 : 6);
  c.accumulate_dweight = random->one_in(4);
  c.accumulate_dbias = random->one_in(4);
  // A GPU's weight and bias vary along one dimension.
  const auto share = [&] {
    return random->one_in(2) ? Share::kAll : static_cast<Share>(random->below(cuda ? 3 : 4));
  };
  c.share = share();
  c.bias_share = random->one_in(2) ? c.share : share();
  c.expand = random->one_in(6) ? static_cast<Expand>(1 + random->below(2)) : Expand::kNo;
  c.in_place = random->one_in(2) ? InPlace::kNothing : static_cast<InPlace>(random->below(4));
  c.dresidual_in_place = random->one_in(2);
  c.padding = random->one_in(3) ? static_cast<int>(random->below(17)) : 0;
  c.shift = random->one_in(3) ? static_cast<int>(random->below(16)) : 0;
  c.transposed = random->one_in(4);
  if (random->one_in(3)) c.pattern = static_cast<ref::Pattern>(random->below(ref::kPatterns));
  c.seed = random->next();
  c.dx = c.dtype;
  if (beside == Beside::kGate) add_gate(random, &c);
  if (beside == Beside::kBranch) add_branch(random, cuda, &c);
  settle(&c);
  return c;
}

// Many rows: every block takes several steps, and there are more rows than lanes.
void add_many_rows(bool reduced, std::vector<NormBackwardCase>* cases) {
  struct Shape {
    int64_t rows, n;
  };
  constexpr Shape kShapes[] = {{20000, 8},  {9000, 64},  {4500, 128}, {1200, 512}, {600, 1024},
                               {300, 2048}, {130, 4096}, {40, 16389}, {18, 40000}};
  for (const Shape& shape : kShapes) {
    for (const Type type : ref::kTypes) {
      for (const ref::Kind kind : {ref::Kind::kRms, ref::Kind::kLayer}) {
        NormBackwardCase c;
        c.batch = reduced ? (shape.rows + 7) / 8 : shape.rows;
        c.n = shape.n;
        c.dtype = c.x = c.dy = c.weight = c.dx = type;
        c.kind = kind;
        c.has_dbias = kind == ref::Kind::kLayer;
        c.seed = cases->size();
        cases->push_back(c);
      }
    }
  }
}

// Gates of aligned rows, which held kernels serve. There are more rows than a step of theirs takes.
void add_held_gates(bool reduced, std::vector<NormBackwardCase>* cases) {
  const auto add = [&](int64_t rows, int64_t n, ref::Activation act, bool grouped,
                       bool before = false) {
    NormBackwardCase c;
    c.n = n;
    c.heads = grouped ? 3 : 1;
    c.batch = rows;
    c.grouped = grouped;
    c.share = grouped && n % 128 == 0 ? Share::kByHead : Share::kAll;
    c.dtype = c.x = c.dy = c.weight = c.dx = c.gate = c.dgate = Type::kBF16;
    c.has_gate = c.has_dgate = true;
    c.gate_act = act;
    c.gate_before = before;
    c.seed = cases->size();
    const bool other = cases->size() % 2 != 0;
    c.rounding = !other   ? ref::Rounding::kOnce
                 : before ? ref::Rounding::kEveryStep
                          : ref::Rounding::kNormalized;
    c.gate_from_rounded = other && !before;
    c.has_statistics = !grouped;
    c.gate_in_place = other ? GateInPlace::kGate : GateInPlace::kNothing;
    c.in_place = grouped ? InPlace::kDy : InPlace::kNothing;
    cases->push_back(c);
  };
  for (const auto act : {ref::Activation::kSilu, ref::Activation::kSigmoid}) {
    for (const int64_t n : {8, 64, 96, 128, 256, 512, 776, 1024, 2048, 4096, 5120, 8192}) {
      // All lanes of all blocks of the row order, and some twice.
      const NormBackwardRows order = norm_backward_rows(1 << 20, n);
      const int64_t rows = order.step() * 9 / 8 / (reduced ? 8 : 1) + 1;
      add(rows, n, act, false), add(rows / 3 + 1, n, act, true);
      add(rows / 3 + 1, n, act, n % 1024 == 0, true);
    }
    add(reduced ? 1024 : 16500, 128, act, false, true);
    // The tile for more rows, and every value of the gate where the function stays finite.
    add(reduced ? 1024 : 16500, 128, act, false);
    if (act == ref::Activation::kSigmoid) cases->back().gate_pattern = ref::Pattern::kRandomBits;
  }
}

// Branches of aligned rows, which held kernels serve, with a norm or with a residual gate.
void add_held_branches(bool reduced, std::vector<NormBackwardCase>* cases) {
  struct Shape {
    int64_t rows, n;
  };
  // More rows than the blocks of the row order have lanes; of 4096, the tile for more rows, too.
  constexpr Shape kShapes[] = {{4500, 72},  {4500, 128}, {2200, 256}, {1200, 512},
                               {600, 776},  {600, 1024}, {300, 2048}, {150, 4096},
                               {520, 4096}, {140, 5120}, {140, 8192}};
  for (const Shape& shape : kShapes) {
    for (const bool other : {false, true}) {
      NormBackwardCase c;
      c.batch = reduced && shape.rows != 520 ? shape.rows / 8 + 1 : shape.rows;
      if (reduced && shape.rows == 520 && other) continue;
      c.n = shape.n;
      c.dtype = c.x = c.dy = c.weight = c.dx = c.dresidual_in = Type::kBF16;
      c.has_dresidual_in = !other;
      c.in_place = other ? InPlace::kX : InPlace::kDresidualIn;
      c.rounding = other ? ref::Rounding::kNormalized : ref::Rounding::kOnce;
      c.seed = cases->size();
      BranchCase& b = c.branch;
      b.present = b.normalise = b.has_branch = b.has_weight = b.rounded = true;
      b.has_dbranch = b.has_dweight = true;
      b.weight = Type::kBF16, b.dweight = other ? Type::kBF16 : Type::kF32;
      b.has_statistics = !other, b.in_place = other;
      b.rounding = c.rounding;
      b.accumulate_dweight = other;
      b.alpha = other ? -0.375f : 0.0f, b.has_sum_scale = other;
      cases->push_back(c);
      // The same of adaLN: a residual gate in place of the branch's norm.
      if (shape.rows == 520) continue;
      c.kind = ref::Kind::kLayer;
      c.weight_offset = 1, c.has_dbias = true;
      b.normalise = b.has_weight = b.has_dweight = b.has_statistics = false;
      b.rounded = b.accumulate_dweight = false;
      b.rounding = ref::Rounding::kOnce;
      b.has_gate = b.has_dgate = true;
      b.gate = b.dgate = other ? Type::kF32 : Type::kBF16;
      b.accumulate_dgate = other;
      b.act = other ? ref::Activation::kTanh : ref::Activation::kIdentity;
      c.heads = 2, c.batch = (c.batch + 1) / 2;
      c.share = c.bias_share = b.gate_share = Share::kByHead;
      c.seed = cases->size();
      cases->push_back(c);
    }
  }
}

void add_empty(std::vector<NormBackwardCase>* cases) {
  for (const bool accumulate : {false, true}) {
    for (const Share share : {Share::kAll, Share::kByHead}) {
      NormBackwardCase c;
      c.batch = 0;
      c.heads = 3;
      c.n = 70;
      c.dtype = c.x = c.dy = c.weight = c.dx = Type::kBF16;
      c.share = share;
      c.has_dbias = true;
      c.accumulate_dweight = accumulate;
      cases->push_back(c);
    }
  }
}

const char* name_of(Share share) {
  constexpr const char* kNames[] = {"[n]", "[heads,n]", "[batch,1,n]", "[batch,heads,n]"};
  return kNames[static_cast<int>(share)];
}

}  // namespace

namespace {

std::string text_of(const BranchCase& b) {
  constexpr const char* kRoundings[] = {"", " normalized", " every-step"};
  constexpr const char* kActivations[] = {"identity", "silu", "sigmoid", "tanh"};
  std::string s = " branch";
  const auto put = [&s](bool there, const std::string& text) {
    if (there) s += " " + text;
  };
  const auto sum = [&](bool there, const char* name, ref::Type type, Share share,
                       bool accumulates) {
    put(there, std::string(name) + " " + ref::name_of(type) + name_of(share) +
                   (accumulates ? " accumulate" : ""));
  };
  put(!b.has_branch, "absent"), put(b.normalise, b.kind == ref::Kind::kRms ? "rms" : "layer");
  put(b.normalise && !b.has_statistics, "recomputed"), put(b.rounded, "rounded");
  s += kRoundings[static_cast<int>(b.rounding)];
  sum(b.has_weight, "weight", b.weight, b.share, false);
  sum(b.has_bias, "bias", b.bias, b.bias_share, false);
  sum(b.has_gate, kActivations[static_cast<int>(b.act)], b.gate, b.gate_share, false);
  put(b.alpha != 0, "alpha"), put(b.has_sum_scale, "sum_scale"),
      put(b.weight_offset != 0, "offset");
  put(b.has_dbranch, b.in_place ? "dbranch in place" : "dbranch");
  sum(b.has_dweight, "dweight", b.dweight, b.share, b.accumulate_dweight);
  sum(b.has_dbias, "dbias", b.dbias, b.bias_share, b.accumulate_dbias);
  sum(b.has_dgate, "dgate", b.dgate, b.gate_share, b.accumulate_dgate);
  return s + " " + ref::name_of(b.pattern);
}

}  // namespace

std::string NormBackwardCase::text() const {
  constexpr const char* kRoundings[] = {"", " normalized", " every-step", " once-rw"};
  constexpr const char* kPlaces[] = {"", " over dy", " over x", " over dresidual_in"};
  constexpr const char* kExpands[] = {"", " one row of dy", " one element of dy"};
  std::string s = std::string("norm_backward ") + (kind == ref::Kind::kRms ? "rms " : "layer ") +
                  ref::name_of(x) + " " + std::to_string(batch) + "x" + std::to_string(heads) +
                  "x" + std::to_string(n);
  const auto put = [&s](bool there, const char* name, ref::Type type) {
    if (there) s += std::string(" ") + name + " " + ref::name_of(type);
  };
  put(true, "T", dtype), put(true, "dy", dy), put(has_weight, "weight", weight);
  put(has_dresidual_in, "dresidual_in", dresidual_in), put(has_dresidual, "dresidual", dresidual);
  put(has_dweight, "dweight", dweight), put(has_dbias, "dbias", dbias);
  if (!has_dx) s += " no dx";
  if (!has_statistics) s += " no statistics";
  if (accumulate_dweight) s += " accumulate dweight";
  if (accumulate_dbias) s += " accumulate dbias";
  s += std::string(" weight ") + name_of(share) + " bias " + name_of(bias_share);
  s += kRoundings[static_cast<int>(rounding)];
  s += kPlaces[static_cast<int>(in_place)];
  s += kExpands[static_cast<int>(expand)];
  if (dresidual_in_place) s += " dresidual in place";
  if (weight_offset != 0) s += " offset";
  if (eps == 0) s += " eps 0";
  if (padding != 0) s += " padding " + std::to_string(padding);
  if (shift != 0) s += " shift " + std::to_string(shift);
  if (transposed) s += " transposed";
  if (grouped) s += " grouped";
  if (branch.present) s += std::string(" dx ") + ref::name_of(dx) + text_of(branch);
  if (!has_gate) return s + " " + ref::name_of(pattern);
  constexpr const char* kActivations[] = {"identity", "silu", "sigmoid", "tanh"};
  constexpr const char* kGatePlaces[] = {"", " dgate over gate", " dgate over dy"};
  s += std::string(" gate ") + kActivations[static_cast<int>(gate_act)] + " " + ref::name_of(gate) +
       (gate_before ? " before" : " after");
  put(has_dgate, "dgate", dgate), put(has_bias, "with bias", bias);
  if (gate_from_rounded) s += " from rounded";
  s += kGatePlaces[static_cast<int>(gate_in_place)];
  s += std::string(" ") + ref::name_of(gate_pattern);
  return s + " " + ref::name_of(pattern);
}

std::vector<NormBackwardCase> make_norm_backward_cases(bool cuda, const Options& options) {
  std::vector<NormBackwardCase> cases;
  add_empty(&cases);
  add_many_rows(options.reduced, &cases);
  const bool few_rows = options.reduced || !cuda;  // no held kernels
  add_held_gates(few_rows, &cases);
  add_held_branches(few_rows, &cases);
  ref::Random random(20261127);
  const int count = options.reduced ? 300 : 1500;
  const int64_t most_elements = options.reduced ? 1 << 13 : 1 << 15;
  for (const Beside beside : {Beside::kNothing, Beside::kGate, Beside::kBranch}) {
    const int of_kind = beside == Beside::kBranch ? count / 3 : count;
    for (int i = 0; i < of_kind; ++i)
      cases.push_back(random_case(&random, most_elements, cuda, beside));
  }
  return cases;
}

}  // namespace fastnorm::check
