#include "selftest_backward.h"

#include "dtype.h"
#include "selftest_image.h"

namespace fastnorm::tool {
namespace {

constexpr uint64_t kDy = 5, kDresidualIn = 6, kStatistics = 7;  // streams of make_tensor

fastnorm_dtype f32() { return fastnorm_dtype_of(FASTNORM_DTYPE_F32); }

// The tensors of a case in an image.
struct Tensors {
  Rows dy, x, weight, dresidual_in, mean, rstd, dx, dweight, dbias;
};

Tensors add_tensors(const BackwardCase& c, const BackwardInputs& inputs, bool in_place,
                    Image* image) {
  const auto add_input = [&](const std::vector<std::byte>& content, fastnorm_dtype dtype,
                             int64_t columns) {
    const Rows added = image->add_rows(dtype, columns);
    image->fill(added, content);
    return added;
  };
  Tensors t;
  t.dy = add_input(inputs.dy, c.dtype, c.n);
  t.x = add_input(inputs.x, c.dtype, c.n);
  t.weight = image->add_compact(c.weight_dtype(), c.heads, c.n);
  image->fill(t.weight, inputs.weight);
  if (c.residual) t.dresidual_in = add_input(inputs.dresidual_in, c.dtype, c.n);
  if (!c.recompute) {
    t.rstd = add_input(inputs.rstd, f32(), 1);
    if (c.layer()) t.mean = add_input(inputs.mean, f32(), 1);
  }
  t.dx = in_place ? t.dy : image->add_rows(c.dtype, c.n);
  t.dweight = image->add_compact(c.weight_dtype(), c.heads, c.n);
  if (c.layer()) t.dbias = image->add_compact(c.weight_dtype(), c.heads, c.n);
  return t;
}

void run(const Machine& machine, const BackwardCase& c, const Image& image, const Tensors& t) {
  std::vector<TensorView> views;
  views.reserve(9);
  const auto rows = [&](const Rows& of) {
    return views.emplace_back(image.view(machine.target(), of, 0, c.heads)).get();
  };
  const auto columns = [&](const Rows& of) {
    return views.emplace_back(image.columns(machine.target(), of, 0, c.heads)).get();
  };
  fastnorm_norm_backward_args args = {};
  args.struct_size = sizeof args;
  args.kind = c.kind;
  args.eps = kSelftestEps;
  args.weight_offset = kSelftestWeightOffset;
  args.rounding = c.rounding;
  args.dy = rows(t.dy);
  args.x = rows(t.x);
  args.weight = columns(t.weight);
  args.mean = rows(t.mean);
  args.rstd = rows(t.rstd);
  args.dresidual_in = rows(t.dresidual_in);
  args.dx = t.dx.first == t.dy.first ? args.dy : rows(t.dx);
  args.dweight = columns(t.dweight);
  args.dbias = columns(t.dbias);
  machine.run(args);
}

void hash(const std::vector<std::byte>& bytes, uint64_t* to) {
  for (const std::byte b : bytes) *to = (*to ^ static_cast<uint64_t>(b)) * 0x100000001b3u;
}

}  // namespace

fastnorm_dtype BackwardCase::weight_dtype() const { return f32_weights ? f32() : dtype; }

std::string BackwardCase::name() const {
  static constexpr const char* kRoundings[] = {"", " normalized", " every-step"};
  return "backward " + std::string(find_dtype(dtype)->name) + (layer() ? " layer" : " rms") +
         (residual ? " add" : "") + " " + std::to_string(rows) + "x" + std::to_string(n) +
         kRoundings[rounding] + (f32_weights ? " f32-weights" : "") +
         (recompute ? " recompute" : "") + (heads == 1 ? "" : " heads=" + std::to_string(heads));
}

std::vector<BackwardCase> backward_cases() {
  std::vector<BackwardCase> cases;
  for (const std::string& name : row_dtype_names()) {
    const fastnorm_dtype dtype = find_dtype(name)->dtype;
    for (const auto kind : {FASTNORM_NORM_RMS, FASTNORM_NORM_LAYER}) {
      for (const bool residual : {false, true}) {
        const auto add = [&](int64_t rows, int64_t n) -> BackwardCase& {
          return cases.emplace_back(BackwardCase{dtype, kind, residual, rows, n});
        };
        // With 1000 and with 4096 columns a block of the row order has two rows of a lane. With
        // other numbers some blocks have one row, or some lanes none.
        for (const auto& [rows, n] : {std::pair<int64_t, int64_t>{40, 1},
                                      {70, 7},
                                      {300, 64},
                                      {33, 129},
                                      {530, 1000},
                                      {131, 4096},
                                      {9, 5120},
                                      {19, 8192},
                                      {6, 20000},
                                      {5, 70001}}) {
          add(rows, n);
        }
        add(20, 768).rounding = FASTNORM_ROUND_NORMALIZED;
        add(20, 768).rounding = FASTNORM_ROUND_EVERY_STEP;
        add(20, 1000).recompute = true;
        add(160, 128).heads = 4;
        if (dtype.bits == 16) add(20, 1000).f32_weights = true;
      }
    }
  }
  // Short rows go around all blocks, too.
  cases.push_back({fastnorm_dtype_of(FASTNORM_DTYPE_BF16), FASTNORM_NORM_RMS, false, 8300, 64});
  return cases;
}

BackwardInputs make_inputs(const BackwardCase& c) {
  const int64_t count = c.rows * c.n;
  BackwardInputs inputs = {make_tensor(c.dtype, count, kDy),
                           make_tensor(c.dtype, count, 1),
                           make_tensor(c.weight_dtype(), c.heads * c.n, 3),
                           {},
                           make_tensor(f32(), c.rows, kStatistics),
                           make_tensor(f32(), c.rows, kStatistics)};
  if (c.residual) inputs.dresidual_in = make_tensor(c.dtype, count, kDresidualIn);
  // rstd is about 1, and mean + 1.
  for (size_t at = 0; at < inputs.rstd.size(); at += sizeof(float)) {
    encode(f32(), 0.875 + decode(f32(), &inputs.mean[at]) * 0x1p-7, &inputs.rstd[at]);
  }
  return inputs;
}

uint64_t hash_of_dx(const BackwardOutputs& outputs) {
  uint64_t all = 0xcbf29ce484222325u;
  hash(outputs.dx, &all);
  return all;
}

uint64_t hash_of_sums(const BackwardOutputs& outputs) {
  uint64_t all = 0xcbf29ce484222325u;
  hash(outputs.dweight, &all);
  hash(outputs.dbias, &all);
  return all;
}

std::string dx_name(const BackwardCase& c) { return c.name() + " dx"; }
std::string sums_name(const BackwardCase& c) { return c.name() + " sums"; }

BackwardOutputs run_case(const Machine& machine, const BackwardCase& c,
                         const BackwardInputs& inputs, const CaseLayout& layout, Tally* tally) {
  Image image(c.rows, c.heads, layout);
  const Tensors t = add_tensors(c, inputs, layout.in_place, &image);
  image.upload(machine);
  run(machine, c, image, t);
  image.download(machine);
  BackwardOutputs outputs = {image.take(t.dx), image.take(t.dweight), image.take(t.dbias)};
  tally->expect(image.intact(), c.name() + ", " + layout.name + ": bytes around the rows changed");
  return outputs;
}

std::vector<CaseLayout> backward_layouts() {
  CaseLayout compact, in_place, strided, apart;
  in_place.name = "in place";
  in_place.in_place = true;
  strided.name = "rows 8 elements apart";
  strided.gap_elems = 8;
  strided.poison = 0x5a;
  apart.name = "in place, odd strides";
  apart.gap_elems = 3;
  apart.offset_elems = 5;
  apart.in_place = true;
  return {compact, in_place, strided, apart};
}

}  // namespace fastnorm::tool
