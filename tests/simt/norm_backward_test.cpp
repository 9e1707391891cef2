// The kernels of norm_backward on the SIMT machine: each of them, and what planning chooses,
// against the model bit for bit.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "core/norm_backward_rows.h"
#include "core/pdl.h"
#include "cuda/norm_backward/table.h"
#include "ref/data.h"
#include "ref/norm_backward_model.h"
#include "simt/device.h"
#include "simt/machine.h"

namespace {

using namespace fastnorm;
using ref::Pattern;
using ref::Type;

Dtype dtype_of(Type type) {
  return type == Type::kF32 ? Dtype::kF32 : type == Type::kF16 ? Dtype::kF16 : Dtype::kBF16;
}

// What a call is made of.
struct Shape {
  int64_t shared[2] = {1, 1};  // rows that share a weight, the faster index first
  int64_t groups = 1;
  // Above 1: groups have two dimensions, and the faster index this extent. Not where shared[1] is
  // above 1: a description has at most three dimensions.
  int64_t inner_groups = 1;
  int64_t n = 1;
  Type type = Type::kBF16;  // T
  Type x = Type::kBF16, dy = Type::kBF16;
  bool residual_in = false;
  Type residual_in_type = Type::kBF16;
  bool dresidual = false;
  Type dresidual_type = Type::kF32;
  bool weight = true;
  Type weight_type = Type::kBF16, dweight_type = Type::kF32, dbias_type = Type::kF32;
  bool dx = true, dweight = true, dbias = false;
  bool layer = false;
  ref::Rounding rounding = ref::Rounding::kOnce;
  float offset = 0;
  bool recompute = false;
  bool accumulate = false;
  bool scalar_dy = false;
  int in_place = 0;      // 1: dx is dy, 2: x, 3: dresidual_in
  int64_t misalign = 0;  // elements that tensors begin behind a multiple of 16 bytes
  int64_t pad = 0;       // elements between rows
  Pattern pattern = Pattern::kNormal;
  uint32_t flags = 0;
  bool gate = false, dgate = false, bias = false, before = false, from_rounded = false;
  ref::Activation act = ref::Activation::kIdentity;
  Type gate_type = Type::kBF16, dgate_type = Type::kBF16, bias_type = Type::kBF16;
  bool dgate_over_gate = false;
  Pattern gate_pattern = Pattern::kNormal;
  // A branch with an RMSNorm, or, modulated, times a residual gate. Its weight, or the gate, has
  // weight_type.
  bool branch = false, modulated = false, branch_dweight = true, branch_recompute = false,
       sum_scale = false;
  bool dbranch_over_branch = false;
  ref::Rounding branch_rounding = ref::Rounding::kOnce;
  float alpha = 1;

  int64_t rows_of_group() const { return shared[0] * shared[1]; }
  int64_t rows() const { return rows_of_group() * groups; }
  // Parameters are in memory with the slower index of their groups inside. Neither dimension joins
  // the other one.
  int64_t parameter_row(int64_t group) const {
    return group % inner_groups * (groups / inner_groups) + group / inner_groups;
  }
};

// Rows of a tensor in memory: row r of the numbering of NormBackwardDesc. Groups are the middle
// index in memory where there are two shared ones.
struct Rows {
  Rows(const Shape& s, Type type_of, int64_t count, bool scalar = false)
      : type(type_of), n(scalar ? 1 : count) {
    const int64_t bytes = ref::bytes_of(type);
    // What begins at multiples of 16 bytes steps by such, too, unless it is misaligned on purpose.
    const int64_t row = s.misalign == 0 && s.pad == 0 && n > 1 ? n * bytes : (n + s.pad) * bytes;
    base = s.misalign * bytes;
    stride[0] = row;
    group_stride = row * s.shared[0];
    stride[1] = group_stride * s.groups;
    // A row lies between two indices of the slower dimension of groups.
    outer_group_stride = group_stride * s.inner_groups + row;
    const int64_t all = s.inner_groups > 1 ? outer_group_stride * (s.groups / s.inner_groups)
                                           : stride[1] * s.shared[1];
    memory.assign(static_cast<size_t>(all + base + 64), std::byte{0x5a});
  }
  // Memory of vectors is at multiples of 16 bytes where `new` gives such.
  std::byte* data() { return memory.data() + base; }
  std::byte* row(const Shape& s, int64_t r) {
    const int64_t i = r % s.rows_of_group(), g = r / s.rows_of_group();
    const int64_t of_group = s.inner_groups == 1 ? g * group_stride
                                                 : g % s.inner_groups * group_stride +
                                                       g / s.inner_groups * outer_group_stride;
    return data() + i % s.shared[0] * stride[0] + i / s.shared[0] * stride[1] + of_group;
  }
  RowTensor tensor(const Shape& s, int shared_rank) {
    RowTensor t;
    t.data = data();
    t.dtype = dtype_of(type);
    for (int d = 0; d < shared_rank; ++d) t.stride_bytes[d] = stride[d];
    if (s.groups > 1) t.stride_bytes[shared_rank] = group_stride;
    if (s.inner_groups > 1) t.stride_bytes[shared_rank + 1] = outer_group_stride;
    return t;
  }

  Type type;
  int64_t n, base = 0, stride[2] = {}, group_stride = 0, outer_group_stride = 0;
  std::vector<std::byte> memory;
};

std::vector<float> decoded(Type type, const std::byte* from, int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  ref::decode_row(type, from, values.data(), n);
  return values;
}

bool same(Type type, const std::byte* a, const std::byte* b, int64_t n) {
  if (std::memcmp(a, b, static_cast<size_t>(n * ref::bytes_of(type))) == 0) return true;
  // A NaN's sign and payload are no part of the contract.
  const std::vector<float> x = decoded(type, a, n), y = decoded(type, b, n);
  for (size_t i = 0; i < x.size(); ++i) {
    const bool nan = x[i] != x[i] && y[i] != y[i];
    if (!nan && std::bit_cast<uint32_t>(x[i]) != std::bit_cast<uint32_t>(y[i])) return false;
  }
  return true;
}

// A call with its inputs, and what the model makes of them.
class Call {
 public:
  explicit Call(const Shape& shape)
      : s(shape),
        dy(s, s.dy, s.n, s.scalar_dy),
        x(s, s.x, s.n),
        residual_in(s, s.residual_in_type, s.n),
        dx(s, s.type, s.n),
        dresidual(s, s.dresidual_type, s.n),
        mean(s, Type::kF32, 1),
        rstd(s, Type::kF32, 1),
        weight(parameter(s.weight_type)),
        dweight(parameter(s.dweight_type)),
        dbias(parameter(s.dbias_type)),
        gate(s, s.gate_type, s.n),
        dgate(s, s.dgate_type, s.n),
        bias(parameter(s.bias_type)),
        branch(s, s.type, s.n),
        dbranch(s, s.type, s.n),
        branch_rstd(s, Type::kF32, 1),
        branch_weight(parameter(s.weight_type)),
        dbranch_weight(parameter(s.dweight_type)) {
    options.dtype = s.type, options.x_dtype = s.x;
    options.kind = s.layer ? ref::Kind::kLayer : ref::Kind::kRms;
    options.rounding = s.rounding;
    options.eps = 1e-5f, options.weight_offset = s.weight ? s.offset : 0.0f;
    fill(&dy, 1, Pattern::kNormal), fill(&x, 2, s.pattern);
    fill(&residual_in, 3, Pattern::kNormal);
    fill(&gate, 7, s.gate_pattern);
    fill_parameter(&bias, s.bias_type, 8);
    options.gate_act = s.act, options.gate_before = s.before;
    options.gate_from_rounded = s.from_rounded;
    options.branch.normalise = s.branch && !s.modulated;
    options.branch.act = s.act;
    options.branch.rounding = s.branch_rounding;
    options.branch.eps = 1e-4f, options.branch.weight_offset = s.offset;
    options.branch.alpha = s.alpha;
    if (s.sum_scale) options.branch.sum_scale = kSumScale;
    fill(&branch, 9, Pattern::kNormal);
    fill_parameter(&branch_weight, s.weight_type, 10);
    fill_parameter(&dbranch_weight, s.dweight_type, 11);
    fill_parameter(&weight, s.weight_type, 4);
    fill_parameter(&dweight, s.dweight_type, 5), fill_parameter(&dbias, s.dbias_type, 6);
    ref::ModelScratch scratch;
    for (int64_t r = 0; r < s.rows(); ++r) {
      float m = 0, v = 0;
      const std::vector<float> values = decoded(s.x, x.row(s, r), s.n);
      const std::vector<float> gates = decoded(s.gate_type, gate.row(s, r), s.n);
      ref::norm_backward_statistics(options, values.data(), s.n, ref::Order::kGpu, &scratch, &m, &v,
                                    s.before ? gates.data() : nullptr);
      std::memcpy(mean.row(s, r), &m, sizeof m);
      std::memcpy(rstd.row(s, r), &v, sizeof v);
      const std::vector<float> of_branch = decoded(s.type, branch.row(s, r), s.n);
      ref::norm_backward_statistics(ref::norm_backward_branch_options(options), of_branch.data(),
                                    s.n, ref::Order::kGpu, &scratch, &m, &v);
      std::memcpy(branch_rstd.row(s, r), &v, sizeof v);
    }
    expect();
  }

  NormBackwardDesc desc() {
    NormBackwardDesc d;
    // Where each row has a weight of its own, no dimension numbers rows that share one.
    const int shared_rank = s.shared[1] > 1 ? 2 : s.inner_groups > 1 && s.shared[0] == 1 ? 0 : 1;
    d.rows = s.rows(), d.n = s.n, d.shared_rows = s.rows_of_group(), d.groups = s.groups;
    d.shared_rank = shared_rank;
    d.outer_rank = shared_rank + (s.groups > 1 ? 1 : 0) + (s.inner_groups > 1 ? 1 : 0);
    for (int i = 0; i < shared_rank; ++i) d.outer[i] = s.shared[i];
    if (s.groups > 1) d.outer[shared_rank] = s.inner_groups > 1 ? s.inner_groups : s.groups;
    if (s.inner_groups > 1) d.outer[shared_rank + 1] = s.groups / s.inner_groups;
    d.dtype = dtype_of(s.type);
    d.kind = s.layer ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS;
    d.rounding = static_cast<fastnorm_rounding>(s.rounding);
    d.eps = options.eps, d.weight_offset = options.weight_offset;
    d.inv_n = 1.0f / static_cast<float>(s.n);
    d.flags = s.flags;
    d.accumulate_dweight = s.accumulate && s.dweight, d.accumulate_dbias = s.accumulate && s.dbias;
    d.in_place = s.in_place != 0;
    d.dy_element_bytes = s.scalar_dy ? 0 : ref::bytes_of(s.dy);
    d.dy = dy_now.tensor(s, shared_rank), d.x = x_now.tensor(s, shared_rank);
    if (s.residual_in) d.dresidual_in = residual_in_now.tensor(s, shared_rank);
    if (!s.recompute) {
      d.rstd = rstd.tensor(s, shared_rank);
      if (s.layer) d.mean = mean.tensor(s, shared_rank);
    }
    if (s.dx) d.dx = dx_rows().tensor(s, shared_rank);
    if (s.dx && s.dresidual) d.dresidual = got_dresidual.tensor(s, shared_rank);
    const auto weight_or_bias = [&](std::vector<std::byte>& memory, Type type) {
      ParameterTensor t;
      t.data = memory.data() + s.misalign * ref::bytes_of(type);
      t.dtype = dtype_of(type);
      const int64_t row = s.n * ref::bytes_of(type);
      if (s.groups > 1) t.stride_bytes[shared_rank] = s.parameter_row(1) * row;
      if (s.inner_groups > 1)
        t.stride_bytes[shared_rank + 1] = s.parameter_row(s.inner_groups) * row;
      return t;
    };
    if (s.weight) d.weight = weight_or_bias(weight, s.weight_type);
    if (s.dweight) d.dweight = weight_or_bias(got_dweight, s.dweight_type);
    if (s.dbias) d.dbias = weight_or_bias(got_dbias, s.dbias_type);
    if (s.branch) {
      NormBackwardBranch& b = d.branch;
      b.present = true, b.normalise = !s.modulated;
      b.act = static_cast<fastnorm_activation>(s.act);
      b.rounding = static_cast<fastnorm_rounding>(s.branch_rounding);
      b.eps = options.branch.eps, b.weight_offset = s.offset, b.alpha = s.alpha;
      if (s.sum_scale) b.sum_scale = reinterpret_cast<const std::byte*>(&kSumScale);
      b.branch = branch_now.tensor(s, shared_rank),
      b.dbranch = dbranch_rows().tensor(s, shared_rank);
      ParameterTensor& parameter = s.modulated ? b.residual_gate : b.weight;
      parameter = weight_or_bias(branch_weight, s.weight_type);
      ParameterTensor& sum = s.modulated ? b.dresidual_gate : b.dweight;
      if (s.branch_dweight) sum = weight_or_bias(got_dbranch_weight, s.dweight_type);
      (s.modulated ? b.accumulate_dresidual_gate : b.accumulate_dweight) =
          s.accumulate && s.branch_dweight;
      if (!s.modulated && !s.branch_recompute) b.rstd = branch_rstd.tensor(s, shared_rank);
    }
    if (!s.gate) return d;
    d.gate.present = true, d.gate.before = s.before;
    d.gate.act = static_cast<fastnorm_activation>(s.act);
    d.gate.round_result = s.from_rounded || s.rounding == ref::Rounding::kEveryStep;
    d.gate.gate = gate_now.tensor(s, shared_rank);
    if (s.dgate) d.gate.dgate = dgate_rows().tensor(s, shared_rank);
    if (s.dgate && s.bias && !s.before) d.gate.bias = weight_or_bias(bias, s.bias_type);
    return d;
  }

  // Runs on kernel `index`, or what planning chooses (-1), and compares everything that may be
  // written. The plan's kernel, "" if the kernel cannot serve the call.
  std::string run(int32_t index, simt::Order order) {
    restore();
    const NormBackwardDesc d = desc();
    const ArchSpec& arch = cuda::kSm90;
    DeviceFacts facts;
    facts.device_type = FASTNORM_DEVICE_CUDA;
    facts.arch = &arch;
    facts.multiprocessors = 132;
    facts.max_cluster_blocks = arch.max_cluster_blocks;
    const auto table = cuda::norm_backward_table(arch);
    NormBackwardPlan plan;
    Error error;
    const fastnorm_status status =
        index < 0 ? plan_norm_backward(d, facts, table, &plan, error)
                  : plan_norm_backward_for(d, facts, table, index, &plan, error);
    if (index >= 0 && status == FASTNORM_ERROR_UNSUPPORTED) return "";
    EXPECT_EQ(status, FASTNORM_OK) << error.text;
    std::vector<std::byte> workspace(plan.workspace_bytes + 512, std::byte{0xff});
    auto* const begin = reinterpret_cast<std::byte*>(
        (reinterpret_cast<uintptr_t>(workspace.data()) + 255) / 256 * 256);
    EXPECT_EQ(simt::run_norm_backward(d, plan, begin, order), "") << plan.kernel << " " << text();
    const std::string what = std::string(plan.kernel) + " " + text();
    // Inputs stay, but for the one that dx replaces.
    EXPECT_TRUE(s.in_place == 1 || dy_now.memory == dy.memory) << what << ": dy";
    EXPECT_TRUE(s.in_place == 2 || x_now.memory == x.memory) << what << ": x";
    EXPECT_TRUE(s.in_place == 3 || residual_in_now.memory == residual_in.memory)
        << what << ": dresidual_in";
    EXPECT_TRUE((s.dgate && s.dgate_over_gate) || gate_now.memory == gate.memory)
        << what << ": gate";
    compare(dx_rows(), want_dx, s.dx, what + ": dx");
    compare(dgate_rows(), want_dgate, s.dgate, what + ": dgate");
    compare(got_dresidual, want_dresidual, s.dx && s.dresidual, what + ": dresidual");
    EXPECT_TRUE((s.branch && s.dbranch_over_branch) || branch_now.memory == branch.memory)
        << what << ": branch";
    compare(dbranch_rows(), want_dbranch, s.branch, what + ": dbranch");
    EXPECT_TRUE(
        same(s.dweight_type, got_dbranch_weight.data(), want_dbranch_weight.data(), parameters()))
        << what << ": dbranch_weight";
    EXPECT_TRUE(same(s.dweight_type, got_dweight.data(), want_dweight.data(), parameters()))
        << what << ": dweight";
    EXPECT_TRUE(same(s.dbias_type, got_dbias.data(), want_dbias.data(), parameters()))
        << what << ": dbias";
    EXPECT_EQ(std::to_integer<int>(workspace.back()), 0xff);
    return plan.kernel;
  }

  std::string text() const {
    return "rows " + std::to_string(s.shared[0]) + "x" + std::to_string(s.shared[1]) + "x" +
           std::to_string(s.groups) +
           (s.inner_groups > 1 ? " (" + std::to_string(s.inner_groups) + " inside)" : "") + " n " +
           std::to_string(s.n) + " " + ref::name_of(s.type) + " x " + ref::name_of(s.x) + " dy " +
           ref::name_of(s.dy) + (s.layer ? " layer" : " rms") + " in place " +
           std::to_string(s.in_place) + " rounding " +
           std::to_string(static_cast<int>(s.rounding)) + (s.recompute ? " recomputed" : "") +
           (s.residual_in ? " add" : "") +
           (s.gate ? s.before ? " gate before" : " gate after" : "") +
           (s.gate ? " act " + std::to_string(static_cast<int>(s.act)) : "") +
           (s.modulated ? " modulated"
            : s.branch  ? " branch"
                        : "") +
           " misaligned " + std::to_string(s.misalign) + " " + ref::name_of(s.pattern);
  }

  const Shape s;

 private:
  int64_t parameters() const { return s.groups * s.n + s.misalign; }
  std::vector<std::byte> parameter(Type type) const {
    return std::vector<std::byte>(static_cast<size_t>(parameters() * ref::bytes_of(type)));
  }
  void fill(Rows* rows, uint64_t seed, Pattern pattern) const {
    std::vector<float> values(static_cast<size_t>(rows->n));
    for (int64_t r = 0; r < s.rows(); ++r) {
      ref::fill_row(pattern, rows->type, ref::hash(seed, static_cast<uint64_t>(r)), values.data(),
                    rows->n);
      ref::encode_row(rows->type, values.data(), rows->row(s, r), rows->n);
    }
  }
  void fill_parameter(std::vector<std::byte>* memory, Type type, uint64_t seed) const {
    std::vector<float> values(static_cast<size_t>(parameters()));
    ref::fill_row(Pattern::kWeights, type, seed, values.data(), parameters());
    ref::encode_row(type, values.data(), memory->data(), parameters());
  }
  std::byte* weight_or_bias(std::vector<std::byte>& memory, Type type, int64_t group) const {
    return memory.data() + (s.misalign + s.parameter_row(group) * s.n) * ref::bytes_of(type);
  }

  Rows& dx_rows() {
    return s.in_place == 1   ? dy_now
           : s.in_place == 2 ? x_now
           : s.in_place == 3 ? residual_in_now
                             : got_dx;
  }
  Rows& dgate_rows() { return s.dgate_over_gate ? gate_now : got_dgate; }
  Rows& dbranch_rows() { return s.dbranch_over_branch ? branch_now : got_dbranch; }
  void compare(const Rows& got, const Rows& want, bool wanted, const std::string& what) {
    if (!wanted) return;
    const auto n = static_cast<int64_t>(got.memory.size()) / ref::bytes_of(got.type);
    EXPECT_TRUE(same(got.type, got.memory.data(), want.memory.data(), n)) << what;
  }
  void restore() {
    dy_now = dy, x_now = x, residual_in_now = residual_in, got_dx = dx, got_dresidual = dresidual;
    got_dweight = dweight, got_dbias = dbias;
    gate_now = gate, got_dgate = dgate;
    branch_now = branch, got_dbranch = dbranch, got_dbranch_weight = dbranch_weight;
  }

  void expect() {
    restore();
    // What lies between rows stays, also where dx takes an input's place.
    want_dx = dx_rows(), want_dresidual = dresidual, want_dgate = dgate_rows();
    want_dweight = dweight, want_dbias = dbias;
    want_dbranch = dbranch_rows(), want_dbranch_weight = dbranch_weight;
    const int64_t m = s.rows_of_group();
    const auto n = static_cast<size_t>(s.n);
    for (int64_t g = 0; g < s.groups; ++g) {
      const std::vector<float> w =
          decoded(s.weight_type, weight_or_bias(weight, s.weight_type, g), s.n);
      const std::vector<float> b = decoded(s.bias_type, weight_or_bias(bias, s.bias_type, g), s.n);
      const std::vector<float> branch_w =
          decoded(s.weight_type, weight_or_bias(branch_weight, s.weight_type, g), s.n);
      std::vector<std::vector<float>> dys, xs, gates, branches, adds;
      for (int64_t i = 0; i < m; ++i) {
        const int64_t r = g * m + i;
        dys.push_back(decoded(s.dy, dy.row(s, r), dy.n));
        dys.back().resize(n, dys.back()[0]);
        xs.push_back(decoded(s.x, x.row(s, r), s.n));
        gates.push_back(decoded(s.gate_type, gate.row(s, r), s.n));
        branches.push_back(decoded(s.type, branch.row(s, r), s.n));
        adds.push_back(decoded(s.residual_in_type, residual_in.row(s, r), s.n));
      }
      const auto row_of = [&](int64_t i) {
        ref::NormBackwardRow row;
        row.n = s.n;
        row.dy = dys[static_cast<size_t>(i)].data(), row.x = xs[static_cast<size_t>(i)].data();
        row.weight = s.weight ? w.data() : nullptr;
        row.gate = s.gate ? gates[static_cast<size_t>(i)].data() : nullptr;
        row.bias = s.bias ? b.data() : nullptr;
        std::memcpy(&row.mean, mean.row(s, g * m + i), sizeof row.mean);
        std::memcpy(&row.rstd, rstd.row(s, g * m + i), sizeof row.rstd);
        if (s.residual_in) row.dresidual_in = adds[static_cast<size_t>(i)].data();
        if (!s.branch) return row;
        row.branch = branches[static_cast<size_t>(i)].data();
        (s.modulated ? row.residual_gate : row.branch_weight) = branch_w.data();
        std::memcpy(&row.branch_rstd, branch_rstd.row(s, g * m + i), sizeof row.branch_rstd);
        return row;
      };
      for (int64_t i = 0; i < m && (s.dx || s.dgate); ++i) {
        const int64_t r = g * m + i;
        const ref::NormBackwardRow row = row_of(i);
        std::vector<float> dh(n), of_gate(n);
        if (s.branch) {
          std::vector<float> of_branch(n);
          ref::norm_backward_branch_model(options, row, ref::Order::kGpu, dh.data(),
                                          of_branch.data());
          ref::encode_row(s.type, of_branch.data(), want_dbranch.row(s, r), s.n);
        } else {
          ref::norm_backward_row_model(options, row, ref::Order::kGpu, dh.data(), of_gate.data());
        }
        if (s.dgate) ref::encode_row(s.dgate_type, of_gate.data(), want_dgate.row(s, r), s.n);
        if (!s.dx) continue;
        ref::encode_row(s.type, dh.data(), want_dx.row(s, r), s.n);
        ref::encode_row(s.dresidual_type, dh.data(), want_dresidual.row(s, r), s.n);
      }
      std::vector<float> dw(n), db(n);
      ref::norm_backward_sums_model(options, m, s.n, row_of, dw.data(), db.data());
      const auto put = [&](std::vector<std::byte>& to, Type type, std::vector<float>& sums) {
        const std::vector<float> old = decoded(type, weight_or_bias(to, type, g), s.n);
        for (size_t i = 0; i < n && s.accumulate; ++i) sums[i] = old[i] + sums[i];
        ref::encode_row(type, sums.data(), weight_or_bias(to, type, g), s.n);
      };
      if (s.dweight) put(want_dweight, s.dweight_type, dw);
      if (s.dbias) put(want_dbias, s.dbias_type, db);
      if (!s.branch || !s.branch_dweight) continue;
      ref::norm_backward_branch_sums_model(options, m, s.n, row_of, ref::Order::kGpu,
                                           s.modulated ? nullptr : dw.data(), nullptr,
                                           s.modulated ? dw.data() : nullptr);
      put(want_dbranch_weight, s.dweight_type, dw);
    }
  }

  ref::NormBackwardOptions options;
  Rows dy, x, residual_in, dx, dresidual, mean, rstd;
  std::vector<std::byte> weight, dweight, dbias;
  Rows dy_now = dy, x_now = x, residual_in_now = residual_in, got_dx = dx,
       got_dresidual = dresidual, want_dx = dx, want_dresidual = dresidual;
  std::vector<std::byte> got_dweight, got_dbias, want_dweight, want_dbias;
  Rows gate, dgate;
  std::vector<std::byte> bias;
  Rows gate_now = gate, got_dgate = dgate, want_dgate = dgate;
  static constexpr float kSumScale = 0.8125f;
  Rows branch, dbranch, branch_rstd;
  std::vector<std::byte> branch_weight, dbranch_weight, got_dbranch_weight, want_dbranch_weight;
  Rows branch_now = branch, got_dbranch = dbranch, want_dbranch = dbranch;
};

// Some calls have groups along two dimensions.
void draw_groups(ref::Random& random, int64_t most, Shape* s) {
  s->groups = 2 + random.below(most);
  if (s->shared[1] > 1 || !random.one_in(2)) return;
  s->inner_groups = 2 + random.below(2);
  s->groups = s->inner_groups * (2 + random.below(2));
  if (random.one_in(3)) s->shared[0] = 1;
}

Shape plain(Type type, int64_t rows, int64_t n) {
  Shape s;
  s.shared[0] = rows, s.n = n;
  s.type = s.x = s.dy = s.residual_in_type = s.weight_type = type;
  s.dresidual_type = type == Type::kF32 ? Type::kBF16 : Type::kF32;
  return s;
}

// Every kernel of the table at the longest row that it holds, at one a vector shorter, and with
// more rows than a step takes.
TEST(SimtNormBackward, EveryKernelHasTheModelsBits) {
  const auto table = cuda::norm_backward_table(cuda::kSm90);
  int kernels = 0;
  for (size_t i = 0; i < table.size(); ++i) {
    const NormBackwardVariant& v = table[i].variant;
    if (v.form == BackwardForm::kFold || v.form == BackwardForm::kColumns ||
        v.form == BackwardForm::kGatedColumns || v.form == BackwardForm::kBranchColumns ||
        v.form == BackwardForm::kBranchRows) {
      continue;
    }
    const Type type = v.dtype == Dtype::kF32   ? Type::kF32
                      : v.dtype == Dtype::kF16 ? Type::kF16
                                               : Type::kBF16;
    const bool general = v.writes_rows();
    const int64_t longest =
        general ? 4 * v.threads + 3 : int64_t{v.row_threads()} * v.vectors * per_vector(type);
    ++kernels;
    const int64_t lengths[] = {longest, general ? 7 : longest - per_vector(type)};
    for (const int64_t n : lengths) {
      const NormBackwardRows order = norm_backward_rows(1 << 20, n);
      // Two rows of some lanes, and an incomplete step; few where the model would take long.
      const int64_t rows = v.form == BackwardForm::kPersistent && n >= 8192 ? order.blocks + 3
                           : v.form == BackwardForm::kFew                   ? 2 * v.lanes + 1
                                                                            : 3 * order.lanes + 2;
      Shape s = plain(type, rows, n);
      s.layer = v.stat == Stat::kLayer, s.dbias = s.layer || general;
      s.branch = v.has_branch(), s.modulated = v.input == BackwardInput::kModulated;
      s.branch_rounding = n == longest ? ref::Rounding::kOnce : ref::Rounding::kNormalized;
      s.alpha = 0.75f, s.sum_scale = n == longest, s.dbranch_over_branch = s.branch && n != longest;
      s.residual_in =
          v.input == BackwardInput::kAdd || ((general || v.has_branch()) && n == longest);
      s.rounding =
          n == longest || type == Type::kF32 ? ref::Rounding::kOnce : ref::Rounding::kNormalized;
      s.accumulate = n != longest;
      s.flags = with_pdl(0, true);
      s.gate = s.dgate = v.input == BackwardInput::kGated || v.form == BackwardForm::kGatedRows;
      s.act = n == longest ? ref::Activation::kSilu : ref::Activation::kSigmoid;
      s.bias = general && n == longest, s.from_rounded = s.gate && n != longest;
      s.gate_pattern =
          v.input == BackwardInput::kGated && n == longest ? Pattern::kOutlier : Pattern::kNormal;
      s.gate_type = s.dgate_type = s.bias_type = type;
      for (int position = 0; position < (s.gate ? 2 : 1); ++position) {
        s.layer = v.stat == Stat::kLayer || (v.form == BackwardForm::kGatedRows && n != longest);
        if (position == 1) {
          s.before = true, s.from_rounded = false, s.residual_in = false;
          if (n != longest && type != Type::kF32) s.rounding = ref::Rounding::kEveryStep;
        }
        Call call(s);
        const std::string ran = call.run(static_cast<int32_t>(i), simt::Order::kShuffled);
        EXPECT_TRUE(ran == table[i].name) << table[i].name << " " << call.text();
        if (testing::Test::HasFailure()) return;
      }
    }
  }
  EXPECT_EQ(kernels, static_cast<int>(table.size()) - 19);
}

// Many rows through the forms that can hold them, in all orders of threads: lanes with several
// rows, all blocks of the row order.
TEST(SimtNormBackward, FormsAgreeOnManyRows) {
  const auto table = cuda::norm_backward_table(cuda::kSm90);
  for (const auto& [rows, n] : {std::pair<int64_t, int64_t>{9000, 16},
                                {9000, 64},
                                {4500, 128},
                                {1100, 512},
                                {300, 2048},
                                {150, 4096}}) {
    for (const Type type : {Type::kBF16, Type::kF32}) {
      Shape s = plain(type, rows, n);
      s.layer = n == 512, s.dbias = s.layer;
      Call call(s);
      int forms = 0;
      for (size_t i = 0; i < table.size(); ++i) {
        if (call.run(static_cast<int32_t>(i), simt::Order::kBackward) != "") ++forms;
      }
      EXPECT_GE(forms, 3) << call.text();
      EXPECT_NE(call.run(-1, simt::Order::kForward), "");
      if (testing::Test::HasFailure()) return;
    }
  }
}

// The same with a gate, which its gradient replaces, as dx replaces dy or x.
TEST(SimtNormBackward, GatedFormsAgreeOnManyRows) {
  const auto table = cuda::norm_backward_table(cuda::kSm90);
  for (const auto& [rows, n] : {std::pair<int64_t, int64_t>{9000, 16},
                                {9000, 64},
                                {4500, 128},
                                {1100, 512},
                                {300, 2048},
                                {150, 4096}}) {
    for (const auto act : {ref::Activation::kSilu, ref::Activation::kSigmoid}) {
      Shape s = plain(Type::kBF16, rows, n);
      s.gate = s.dgate = s.dgate_over_gate = true, s.act = act;
      s.in_place = act == ref::Activation::kSilu ? 1 : 2;
      s.offset = 1;
      s.gate_pattern = act == ref::Activation::kSilu ? Pattern::kOutlier : Pattern::kRandomBits;
      for (const bool before : {false, true}) {
        s.before = before;
        Call call(s);
        int forms = 0;
        for (size_t i = 0; i < table.size(); ++i) {
          if (call.run(static_cast<int32_t>(i), simt::Order::kBackward) != "") ++forms;
        }
        EXPECT_GE(forms, 3) << call.text();
        EXPECT_NE(call.run(-1, simt::Order::kForward).find("gated persistent"), std::string::npos);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// Calls at random, as planning runs them.
TEST(SimtNormBackward, WhatPlanningChooses) {
  ref::Random random(20261127);
  int general = 0, persistent = 0, few = 0;
  for (int i = 0; i < 1500; ++i) {
    Shape s;
    constexpr int64_t kLengths[] = {1,   2,   7,   8,   24,  64,  80,  100,
                                    128, 200, 256, 511, 512, 640, 1024};
    s.n = random.of(kLengths);
    const auto type = [&] { return ref::kTypes[random.below(3)]; };
    s.type = s.x = s.dy = s.residual_in_type = s.weight_type = type();
    if (random.one_in(3)) s.x = type();
    if (random.one_in(4)) s.dy = Type::kF32;
    if (random.one_in(3)) s.residual_in_type = type();
    if (random.one_in(3)) s.weight_type = type();
    s.dweight_type = random.one_in(2) ? s.weight_type : Type::kF32;
    s.dbias_type = type();
    s.shared[0] = 1 + random.below(random.one_in(3) ? 200 : 9);
    if (random.one_in(4)) s.shared[1] = 2 + random.below(3);
    if (random.one_in(3)) draw_groups(random, 5, &s);
    s.residual_in = random.one_in(2);
    s.dresidual = random.one_in(4);
    do s.dresidual_type = type();
    while (s.dresidual_type == s.type);
    s.layer = random.one_in(2);
    s.dbias = random.one_in(2);
    s.weight = !random.one_in(5);
    s.dweight = s.weight && !random.one_in(4);
    s.dx = !random.one_in(5) || !(s.dweight || s.dbias);
    s.rounding = static_cast<ref::Rounding>(random.below(ref::kRoundings));
    if (s.type == Type::kF32 && s.rounding == ref::Rounding::kNormalized)
      s.rounding = ref::Rounding::kOnce;
    if (random.one_in(3)) s.offset = 1;
    s.recompute = random.one_in(3);
    s.accumulate = random.one_in(3);
    s.scalar_dy = random.one_in(8);
    if (random.one_in(3)) s.misalign = 1 + random.below(7);
    if (random.one_in(3)) s.pad = 1 + random.below(9);
    if (random.one_in(3)) s.in_place = 1 + static_cast<int>(random.below(3));
    if (!s.dx || (s.in_place == 1 && (s.dy != s.type || s.scalar_dy)) ||
        (s.in_place == 2 && s.x != s.type) ||
        (s.in_place == 3 && (!s.residual_in || s.residual_in_type != s.type))) {
      s.in_place = 0;
    }
    s.pattern =
        random.one_in(3) ? static_cast<Pattern>(random.below(ref::kPatterns)) : Pattern::kNormal;
    s.flags = static_cast<uint32_t>(random.below(4));
    Call call(s);
    const std::string ran = call.run(-1, static_cast<simt::Order>(random.below(3)));
    persistent += ran.find("persistent") != std::string::npos ? 1 : 0;
    few += ran.find(" few ") != std::string::npos ? 1 : 0;
    general += ran.find(" rows ") != std::string::npos ? 1 : 0;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(general, 300);
  EXPECT_GT(persistent, 20);
  EXPECT_GT(few, 20);
}

// Gates at random, as planning runs them.
TEST(SimtNormBackward, Gates) {
  ref::Random random(20261128);
  int before = 0;
  for (int i = 0; i < 500; ++i) {
    Shape s;
    constexpr int64_t kLengths[] = {1, 2, 7, 8, 24, 64, 100, 128, 256, 511, 640, 1100};
    s.n = random.of(kLengths);
    const auto type = [&] { return ref::kTypes[random.below(3)]; };
    s.type = s.x = s.dy = s.residual_in_type = s.weight_type = s.gate_type = s.dgate_type = type();
    if (random.one_in(3)) s.x = type();
    if (random.one_in(4)) s.dy = Type::kF32;
    if (random.one_in(3)) s.gate_type = Type::kF32;
    if (random.one_in(3)) s.dgate_type = Type::kF32;
    if (random.one_in(3)) s.weight_type = type();
    s.bias_type = type(), s.dbias_type = type();
    s.shared[0] = 1 + random.below(random.one_in(3) ? 100 : 9);
    if (random.one_in(4)) s.shared[1] = 2 + random.below(3);
    if (random.one_in(3)) draw_groups(random, 5, &s);
    s.gate = true, s.dgate = !random.one_in(4), s.bias = random.one_in(2);
    s.before = random.one_in(3), s.from_rounded = !s.before && random.one_in(3);
    s.act = static_cast<ref::Activation>(random.below(ref::kActivations));
    s.dgate_over_gate = s.gate_type == s.dgate_type && random.one_in(3);
    s.residual_in = !s.before && random.one_in(2);
    s.layer = random.one_in(2), s.dbias = random.one_in(2), s.weight = !random.one_in(5);
    s.dweight = s.weight && !random.one_in(4);
    s.dx = !random.one_in(4) || !(s.dweight || s.dbias || s.dgate);
    s.rounding = static_cast<ref::Rounding>(random.below(ref::kRoundings));
    if (s.type == Type::kF32 && s.rounding == ref::Rounding::kNormalized)
      s.rounding = ref::Rounding::kOnce;
    s.recompute = random.one_in(3), s.accumulate = random.one_in(3);
    s.scalar_dy = random.one_in(8);
    if (random.one_in(3)) s.misalign = 1 + random.below(7);
    if (random.one_in(3)) s.pad = 1 + random.below(9);
    if (s.dx && s.dy == s.type && !s.scalar_dy && random.one_in(3)) s.in_place = 1;
    if (random.one_in(3)) s.pattern = static_cast<Pattern>(random.below(ref::kPatterns));
    if (random.one_in(4)) s.gate_pattern = static_cast<Pattern>(random.below(ref::kPatterns));
    Call call(s);
    const std::string ran = call.run(-1, static_cast<simt::Order>(random.below(3)));
    if (ran.find("gated persistent") != std::string::npos) {
      EXPECT_TRUE(s.dx && s.type == Type::kBF16 && !s.layer) << ran;
    } else {
      EXPECT_NE(ran.find(s.dx || s.dgate ? "gated rows" : "gated columns"), std::string::npos)
          << ran;
    }
    before += s.before ? 1 : 0;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(before, 100);
}

// Gates that held forms serve, at random: roundings, groups, strides, gradients over inputs.
TEST(SimtNormBackward, HeldGates) {
  ref::Random random(20261129);
  int held = 0;
  constexpr int kCalls = 400;
  for (int i = 0; i < kCalls; ++i) {
    constexpr int64_t kLengths[] = {8, 24, 64, 72, 128, 136, 256, 320, 512, 640, 1024, 1536};
    Shape s =
        plain(Type::kBF16, 1 + random.below(random.one_in(3) ? 300 : 20), random.of(kLengths));
    if (random.one_in(4)) s.shared[1] = 2 + random.below(3);
    if (random.one_in(3)) draw_groups(random, 3, &s);
    s.gate = true, s.dgate = !random.one_in(5);
    s.act = random.one_in(2) ? ref::Activation::kSilu : ref::Activation::kSigmoid;
    s.before = random.one_in(2), s.from_rounded = !s.before && random.one_in(3);
    s.rounding = static_cast<ref::Rounding>(random.below(ref::kRoundings));
    if (random.one_in(3)) s.offset = 1;
    s.weight = !random.one_in(5), s.dweight = s.weight && !random.one_in(4);
    if (random.one_in(3)) s.weight_type = Type::kF32;
    s.dweight_type = random.one_in(2) ? s.weight_type : Type::kF32;
    s.recompute = s.dweight && random.one_in(3), s.accumulate = random.one_in(3);
    if (random.one_in(4)) s.pad = 8 * (1 + random.below(3));
    if (random.one_in(8)) s.misalign = 1 + random.below(7);
    if (random.one_in(3)) s.in_place = 1 + static_cast<int>(random.below(2));
    s.dgate_over_gate = s.dgate && random.one_in(3);
    if (random.one_in(4)) s.pattern = static_cast<Pattern>(random.below(ref::kPatterns));
    if (random.one_in(2)) s.gate_pattern = static_cast<Pattern>(random.below(ref::kPatterns));
    s.flags = static_cast<uint32_t>(random.below(4));
    Call call(s);
    const std::string ran = call.run(-1, static_cast<simt::Order>(random.below(3)));
    const bool is_held = ran.find("gated persistent") != std::string::npos;
    EXPECT_EQ(is_held, s.misalign == 0) << ran;
    held += is_held ? 1 : 0;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(held, kCalls / 2);
}

// Branches that held forms serve, at random.
TEST(SimtNormBackward, HeldBranches) {
  ref::Random random(20261130);
  int held = 0;
  constexpr int kCalls = 300;
  for (int i = 0; i < kCalls; ++i) {
    constexpr int64_t kLengths[] = {72,   128,  136,  256,  264,  512,  520,  768,
                                    1024, 1032, 2048, 2560, 4096, 4224, 5120, 5632};
    Shape s = plain(Type::kBF16, 1 + random.below(random.one_in(3) ? 60 : 9), random.of(kLengths));
    if (s.n < 512 && random.one_in(3)) s.shared[0] = 100 + random.below(200);
    if (random.one_in(4)) s.shared[1] = 2;
    if (random.one_in(4)) draw_groups(random, 1, &s);
    s.branch = true, s.branch_dweight = !random.one_in(4);
    s.modulated = s.layer = random.one_in(2);
    if (s.modulated) s.act = static_cast<ref::Activation>(random.below(ref::kActivations));
    s.dbias = s.modulated && random.one_in(2);
    s.residual_in = !random.one_in(3);
    s.rounding = static_cast<ref::Rounding>(random.below(ref::kRoundings));
    s.branch_rounding = static_cast<ref::Rounding>(random.below(3));
    if (random.one_in(3)) s.offset = 1;
    if (random.one_in(3)) s.alpha = -0.375f;
    s.sum_scale = random.one_in(3);
    s.dweight = !random.one_in(4);
    if (random.one_in(3)) s.weight_type = Type::kF32;
    s.dweight_type = random.one_in(2) ? s.weight_type : Type::kF32;
    const bool sums = s.dweight || s.dbias || s.branch_dweight;
    s.recompute = sums && random.one_in(3), s.branch_recompute = sums && random.one_in(3);
    s.accumulate = random.one_in(3);
    if (random.one_in(4)) s.pad = 8 * (1 + random.below(3));
    if (random.one_in(8)) s.misalign = 1 + random.below(7);
    if (random.one_in(3)) s.in_place = 1 + static_cast<int>(random.below(s.residual_in ? 3 : 2));
    s.dbranch_over_branch = random.one_in(3);
    if (random.one_in(4)) s.pattern = static_cast<Pattern>(random.below(ref::kPatterns));
    s.flags = static_cast<uint32_t>(random.below(4));
    Call call(s);
    const std::string ran = call.run(-1, static_cast<simt::Order>(random.below(3)));
    const bool is_held =
        ran.find(s.modulated ? "modulated persistent" : "branch persistent") != std::string::npos;
    EXPECT_EQ(is_held, s.misalign == 0) << ran;
    held += is_held ? 1 : 0;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(held, kCalls / 2);
}

// The longest rows that a cluster holds, with a second row for some of its blocks.
TEST(SimtNormBackward, RowsOfAWholeCluster) {
  for (const bool layer : {false, true}) {
    Shape s = plain(Type::kBF16, 34, 32768);
    s.layer = s.dbias = layer;
    Call call(s);
    const std::string ran = call.run(-1, simt::Order::kShuffled);
    EXPECT_NE(ran.find("persistent 512x"), std::string::npos) << ran;
  }
}

// A row longer than any kernel holds.
TEST(SimtNormBackward, LongRows) {
  for (const bool layer : {false, true}) {
    Shape s = plain(Type::kBF16, 3, 70001);
    s.layer = s.dbias = layer, s.recompute = true, s.residual_in = true;
    Call call(s);
    EXPECT_NE(call.run(-1, simt::Order::kForward), "");
  }
}

TEST(SimtNormBackward, NoRows) {
  {
    Shape s = plain(Type::kF16, 5, 33);
    s.groups = 3, s.dbias = true;
    Call call(s);
    NormBackwardDesc d = call.desc();
    d.rows = d.shared_rows = 0;
    d.dx = {};
    d.outer[0] = 0;
    const ArchSpec& arch = cuda::kSm90;
    DeviceFacts facts;
    facts.device_type = FASTNORM_DEVICE_CUDA, facts.arch = &arch, facts.max_cluster_blocks = 16;
    const auto table = cuda::norm_backward_table(arch);
    NormBackwardPlan plan;
    Error error;
    ASSERT_EQ(plan_norm_backward(d, facts, table, &plan, error), FASTNORM_OK) << error.text;
    ASSERT_EQ(plan.launches, 1);
    EXPECT_EQ(plan.workspace_bytes, 0u);
    EXPECT_STREQ(plan.kernel, "norm_backward fold");
    EXPECT_EQ(simt::run_norm_backward(d, plan, nullptr, simt::Order::kForward), "");
    for (const ParameterTensor* t : {&d.dweight, &d.dbias}) {
      for (int64_t i = 0; i < 3 * 33 * 4; ++i) EXPECT_EQ(std::to_integer<int>(t->data[i]), 0) << i;
    }
  }
}

}  // namespace
