#include "support/norm_backward_case.h"

#include <algorithm>
#include <string_view>

#include "core/norm_backward/rows.h"
#include "fastnorm/norm_backward.h"
#include "support/operands.h"

namespace fastnorm::support {
namespace {

using ref::Type;

constexpr int64_t kLengths[] = {1,    2,    3,    7,    8,    16,   31,   33,   64,  65,
                                96,   100,  128,  255,  256,  500,  512,  513,  768, 1000,
                                1024, 1536, 2047, 2048, 2049, 3584, 4096, 5120, 8192};

// Makes the fields of a branch consistent. T of the call is known.
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

}  // namespace

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

namespace {

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

void add_branch(ref::Random* random, NormBackwardCase* c) {
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
    return random->one_in(2) ? c->share : static_cast<Share>(random->below(4));
  };
  b->share = share(), b->bias_share = share(), b->gate_share = share();
  if (random->one_in(3)) b->pattern = static_cast<ref::Pattern>(random->below(ref::kPatterns));
  c->dx = random->one_in(2) ? c->dtype : random->of(ref::kTypes);
}

}  // namespace

NormBackwardCase random_case(ref::Random* random, int64_t most_elements, Beside beside) {
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
  const auto share = [&] {
    return random->one_in(2) ? Share::kAll : static_cast<Share>(random->below(4));
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
  if (beside == Beside::kBranch) add_branch(random, &c);
  settle(&c);
  return c;
}

namespace {

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
      // adaLN: a residual gate in place of the branch's norm.
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

// Writes a case's words.
class CaseWriter {
 public:
  CaseWriter(const NormBackwardCase& c, bool gpu) : c_(c), line_("norm_backward", c.seed, gpu) {
    line_.byte_offset = 64;
  }

  std::string write();

 private:
  using Shape = std::vector<int64_t>;

  void tensor(const char* path, Type type, const Shape& shape, const Shape& strides) {
    line_.tensor(path, id_of(type), shape, 0, c_.shift);
    line_.strides(path, strides);
  }
  void rows(bool there, const char* path, Type type, int64_t columns, const char* over = nullptr);
  void parameter(bool there, const char* path, Type type, Share share);
  void flag(bool there, uint32_t bit) { flags_ |= there ? bit : 0; }
  void set(const char* path, int64_t value) {
    if (value != 0) line_.set(path, value);
  }
  void set(const char* path, float value) {
    if (value != 0) line_.set(path, static_cast<double>(value));
  }
  void write_branch();
  void write_outputs();

  const NormBackwardCase& c_;
  LineWriter line_;
  uint32_t flags_ = 0;
};

// `over`: what it overwrites.
void CaseWriter::rows(bool there, const char* path, Type type, int64_t columns, const char* over) {
  if (!there) return;
  if (over != nullptr) return line_.same(path, over);
  const bool is_dy = std::string_view(path) == "dy";
  const int64_t pitch = columns + c_.padding;
  const int64_t apart = is_dy && c_.expand != Expand::kNo ? 0 : 1,
                last = is_dy && c_.expand == Expand::kAll ? 0 : 1;
  if (c_.grouped)
    return tensor(path, type, {c_.batch, c_.heads * columns}, {apart * pitch * c_.heads, last});
  tensor(path, type, {c_.batch, c_.heads, columns},
         {apart * (c_.transposed ? pitch : pitch * c_.heads),
          apart * (c_.transposed ? pitch * c_.batch : pitch), last});
}

void CaseWriter::parameter(bool there, const char* path, Type type, Share share) {
  if (!there) return;
  const bool by_head = share == Share::kByHead || share == Share::kNone,
             by_batch = share == Share::kByBatch || share == Share::kNone;
  const int64_t pitch = c_.n + c_.padding, heads = by_head ? c_.heads : 1;
  const Shape shape = {by_batch ? c_.batch : 1, heads, c_.n};
  const Shape strides = {by_batch ? pitch * heads : 0, by_head ? pitch : 0, 1};
  if (c_.grouped) return tensor(path, type, {shape[0], heads * c_.n}, {strides[0], 1});
  tensor(path, type, shape, strides);
}

void CaseWriter::write_branch() {
  const BranchCase& b = c_.branch;
  rows(b.has_branch, "branch", c_.dtype, c_.n);
  if (b.has_branch) line_.fill("branch", b.pattern);
  parameter(b.has_weight, "branch_weight", b.weight, b.share);
  parameter(b.has_bias, "branch_bias", b.bias, b.bias_share);
  parameter(b.has_gate, "residual_gate", b.gate, b.gate_share);
  if (b.has_gate) line_.fill("residual_gate", ref::Pattern::kNormal);
  if (b.has_sum_scale) line_.scalar("sum_scale", 0.8125f);
  const bool statistics = b.normalise && b.has_statistics;
  rows(statistics, "branch_rstd", Type::kF32, 1);
  rows(statistics && b.kind == ref::Kind::kLayer, "branch_mean", Type::kF32, 1);
  rows(b.has_dbranch, "dbranch", c_.dtype, c_.n, b.in_place ? "branch" : nullptr);
  parameter(b.has_dweight, "dbranch_weight", b.dweight, b.share);
  parameter(b.has_dbias, "dbranch_bias", b.dbias, b.bias_share);
  parameter(b.has_dgate, "dresidual_gate", b.dgate, b.gate_share);
  set("branch_kind", static_cast<int64_t>(b.kind));
  line_.set("branch_eps", b.normalise ? 1e-5 : 0.0);
  set("branch_weight_offset", b.weight_offset);
  set("branch_rounding", static_cast<int64_t>(b.rounding));
  set("branch_norm", int64_t{b.normalise});
  set("branch_rounded", int64_t{b.rounded});
  set("residual_gate_act", static_cast<int64_t>(b.act));
  set("alpha", b.alpha);
  flag(b.alpha != 0, FASTNORM_NORM_BACKWARD_ALPHA);
  flag(b.accumulate_dweight, FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_WEIGHT);
  flag(b.accumulate_dbias, FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_BIAS);
  flag(b.accumulate_dgate, FASTNORM_NORM_BACKWARD_ACCUMULATE_DRESIDUAL_GATE);
}

void CaseWriter::write_outputs() {
  constexpr const char* kPlaces[] = {nullptr, "dy", "x", "dresidual_in"};
  constexpr const char* kGatePlaces[] = {nullptr, "gate", "dy"};
  rows(c_.has_dx, "dx", c_.dx, c_.n, kPlaces[static_cast<int>(c_.in_place)]);
  rows(c_.has_dresidual, "dresidual", c_.dresidual, c_.n,
       c_.dresidual_in_place ? "dresidual_in" : nullptr);
  rows(c_.has_dgate, "dgate", c_.dgate, c_.n, kGatePlaces[static_cast<int>(c_.gate_in_place)]);
  parameter(c_.has_dweight, "dweight", c_.dweight, c_.share);
  parameter(c_.has_dbias, "dbias", c_.dbias, c_.bias_share);
  flag(c_.accumulate_dweight, FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT);
  flag(c_.accumulate_dbias, FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS);
}

std::string CaseWriter::write() {
  set("kind", static_cast<int64_t>(c_.kind));
  set("eps", c_.eps);
  set("weight_offset", c_.weight_offset);
  set("rounding", static_cast<int64_t>(c_.rounding));
  if (c_.grouped) set("group_size", c_.n);
  rows(true, "dy", c_.dy, c_.n);
  rows(true, "x", c_.x, c_.n);
  line_.fill("x", c_.pattern);
  parameter(c_.has_weight, "weight", c_.weight, c_.share);
  rows(c_.has_statistics, "rstd", Type::kF32, 1);
  rows(c_.has_statistics && c_.kind == ref::Kind::kLayer, "mean", Type::kF32, 1);
  rows(c_.has_dresidual_in, "dresidual_in", c_.dresidual_in, c_.n);
  rows(c_.has_gate, "gate", c_.gate, c_.n);
  if (c_.has_gate) line_.fill("gate", c_.gate_pattern);
  parameter(c_.has_bias, "bias", c_.bias, c_.share);
  set("gate_act", static_cast<int64_t>(c_.gate_act));
  set("gate_position", int64_t{c_.gate_before});
  set("gate_source", int64_t{c_.gate_from_rounded});
  if (c_.branch.present) write_branch();
  write_outputs();
  if (flags_ != 0) line_.set("flags", int64_t{flags_});
  return line_.line();
}

}  // namespace

std::string NormBackwardCase::line(bool gpu) const { return CaseWriter(*this, gpu).write(); }

std::vector<NormBackwardCase> make_norm_backward_cases(bool cuda, bool reduced) {
  std::vector<NormBackwardCase> cases;
  add_empty(&cases);
  add_many_rows(reduced, &cases);
  const bool few_rows = reduced || !cuda;  // no held kernels
  add_held_gates(few_rows, &cases);
  add_held_branches(few_rows, &cases);
  ref::Random random(20261127);
  const int count = reduced ? 300 : 1500;
  const int64_t most_elements = reduced ? 1 << 13 : 1 << 15;
  for (const Beside beside : {Beside::kNothing, Beside::kGate, Beside::kBranch}) {
    const int of_kind = beside == Beside::kBranch ? count / 3 : count;
    for (int i = 0; i < of_kind; ++i) cases.push_back(random_case(&random, most_elements, beside));
  }
  return cases;
}

}  // namespace fastnorm::support
