// The row order of dweight and dbias: computed by hand, and against the model.
#include "core/norm_backward/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/norm_backward/cpu_plan.h"
#include "ref/data.h"
#include "ref/norm_backward_ref.h"

namespace fastnorm::test {
namespace {

TEST(NormBackwardRows, LanesAndBlocks) {
  const struct {
    int64_t rows, n, lanes, blocks;
  } kCases[] = {
      {0, 1024, 8, 0},        {1, 1024, 8, 1},       {8, 1024, 8, 1},      {9, 1024, 8, 2},
      {100000, 1024, 8, 128}, {1000000, 1, 64, 128}, {64, 64, 64, 1},      {65, 64, 64, 2},
      {1000, 65, 64, 16},     {1000, 129, 32, 32},   {1000, 4096, 2, 128}, {255, 4096, 2, 128},
      {1000, 4097, 1, 128},   {1000, 8193, 1, 64},   {1000, 65536, 1, 16}, {1000, 1 << 30, 1, 16},
      {7, 65536, 1, 7},
  };
  for (const auto& c : kCases) {
    const NormBackwardRows order = norm_backward_rows(c.rows, c.n);
    EXPECT_EQ(order.lanes, c.lanes) << c.rows << " x " << c.n;
    EXPECT_EQ(order.blocks, c.blocks) << c.rows << " x " << c.n;
  }
}

TEST(NormBackwardRows, NeighboursGoToLanesThenBlocks) {
  const NormBackwardRows order = norm_backward_rows(100000, 1024);
  EXPECT_EQ(order.lane_of(0), 0);
  EXPECT_EQ(order.lane_of(7), 7);
  EXPECT_EQ(order.block_of(7), 0);
  EXPECT_EQ(order.lane_of(8), 0);
  EXPECT_EQ(order.block_of(8), 1);
  EXPECT_EQ(order.block_of(order.step()), 0);
  EXPECT_EQ(order.lane_of(order.step()), 0);
}

TEST(NormBackwardRows, PartialSumsOfUsualLengthsStayBelow4MiB) {
  for (int64_t n = 1; n <= 65536; n = n * 3 / 2 + 1) {
    const NormBackwardRows order = norm_backward_rows(1 << 30, n);
    EXPECT_LE(order.most_partials() * n * 4, 4 << 20) << n;
    EXPECT_TRUE(order.lanes == 1 || order.lanes * n <= kBackwardLaneColumns) << n;
  }
}

TEST(NormBackwardRows, ThreadBlocksShareTheLanesOfABlock) {
  const NormBackwardRows order = norm_backward_rows(1000, 1024);
  EXPECT_EQ(order.split_of(8), 1);
  EXPECT_EQ(order.split_of(4), 2);
  EXPECT_EQ(order.split_of(2), 4);
  EXPECT_EQ(order.split_of(1), 0) << "more than 4 thread blocks";
  EXPECT_EQ(order.split_of(16), 0) << "more lanes than a block has";
  // The fold of all lanes is that of the folds of every split-th lane.
  float lanes[64];
  for (int i = 0; i < 64; ++i) lanes[i] = 1.0f / static_cast<float>(3 * i + 1);
  float whole[64];
  std::copy_n(lanes, 64, whole);
  phi(whole, 64);
  for (const int64_t split : {2, 4}) {
    float sums[4];
    for (int64_t s = 0; s < split; ++s) {
      float own[64];
      for (int64_t i = 0; i < 64 / split; ++i) own[i] = lanes[s + i * split];
      phi(own, 64 / split);
      sums[s] = own[0];
    }
    phi(sums, split);
    EXPECT_EQ(sums[0], whole[0]) << split;
  }
}

TEST(NormBackwardRows, PhiAddsTheUpperHalf) {
  // 2^24 + 1 is not an f32: the order of additions shows.
  float values[] = {0x1p24f, 1, 1, 1, 1};
  phi(values, 5);  // (0 + 4), 1, 2, 3; then (0 + 2), (1 + 3); then both
  EXPECT_EQ(values[0], ((0x1p24f + 1.0f) + 1.0f) + (1.0f + 1.0f));
  float strided[] = {1, -7, 2, -7, 4};
  phi(strided, 3, 2);
  EXPECT_EQ(strided[0], 7.0f);
  EXPECT_EQ(strided[1], -7.0f);
}

// Sums of a column by the library's row order equal the model's.
TEST(NormBackwardRows, ModelTakesTheSameOrder) {
  for (const int64_t n : {3, 64, 300, 1024, 5000}) {
    for (const int64_t rows : {1, 2, 63, 64, 65, 1000}) {
      const auto size = static_cast<size_t>(n);
      std::vector<std::vector<float>> dy(static_cast<size_t>(rows), std::vector<float>(size));
      for (size_t r = 0; r < dy.size(); ++r)
        ref::fill_row(ref::Pattern::kNormal, ref::Type::kF32, ref::hash(r, n), dy[r].data(), n);
      std::vector<float> model(size);
      const ref::NormBackwardRows row_of = [&](int64_t i) {
        ref::NormBackwardRow row;
        row.n = n;
        row.dy = dy[static_cast<size_t>(i)].data();
        return row;
      };
      ref::norm_backward_sums_model({}, rows, n, row_of, nullptr, model.data());
      const NormBackwardRows order = norm_backward_rows(rows, n);
      std::vector<float> sums(static_cast<size_t>(order.lanes * order.blocks), 0.0f);
      for (int64_t r = 0; r < rows; ++r) {
        float& sum = sums[static_cast<size_t>(order.block_of(r) * order.lanes + order.lane_of(r))];
        sum = sum + dy[static_cast<size_t>(r)][0];
      }
      for (int64_t b = 0; b < order.blocks; ++b)
        phi(&sums[static_cast<size_t>(b * order.lanes)], order.lanes);
      phi(sums.data(), order.blocks, order.lanes);
      EXPECT_EQ(sums[0] + 0.0f, model[0]) << rows << " x " << n;
    }
  }
}

// One row of two columns, by hand: RMS with weight 1 and rstd 1 has dx = dy - x * mean(dy * x).
TEST(NormBackwardModel, ByHand) {
  const float dy[] = {1, 2}, x[] = {3, 5};
  ref::NormBackwardRow row;
  row.n = 2;
  row.dy = dy;
  row.x = x;
  row.rstd = 1;
  float dh[2];
  ref::norm_backward_row_model({}, row, ref::Order::kCpu, dh);
  EXPECT_EQ(dh[0], 1 - 3 * 6.5f);
  EXPECT_EQ(dh[1], 2 - 5 * 6.5f);
  ref::NormBackwardOptions layer;
  layer.kind = ref::Kind::kLayer;
  row.mean = 4;
  row.rstd = 2;  // xhat -2, 2; c1 1; c2 1.5
  ref::norm_backward_row_model(layer, row, ref::Order::kGpu, dh);
  EXPECT_EQ(dh[0], (1 - 1.5f + 2) * 2);
  EXPECT_EQ(dh[1], (2 - 1.5f - 2) * 2);
  float dweight[2], dbias[2];
  ref::norm_backward_sums_model(
      layer, 3, 2, [&](int64_t) { return row; }, dweight, dbias);
  EXPECT_EQ(dweight[0], -6);
  EXPECT_EQ(dweight[1], 12);
  EXPECT_EQ(dbias[1], 6);
}

// The gradient of sum(dy * y) by differences in double: the formulas match the forward.
TEST(NormBackwardRef, EqualsDifferencesOfTheForward) {
  constexpr int kN = 5;
  const float dy[kN] = {0.5f, -1, 2, 0.25f, 1}, x[kN] = {1, -2, 0.5f, 3, -1},
              w[kN] = {1, 0.5f, -1, 2, 1.5f};
  for (const ref::Kind kind : {ref::Kind::kRms, ref::Kind::kLayer}) {
    const bool layer = kind == ref::Kind::kLayer;
    double mean = 0, rstd = 0;
    const auto loss = [&](const double* v) {
      mean = 0;
      for (int i = 0; layer && i < kN; ++i) mean += v[i] / kN;
      double variance = 0, sum = 0;
      for (int i = 0; i < kN; ++i) variance += (v[i] - mean) * (v[i] - mean) / kN;
      rstd = 1 / std::sqrt(variance);
      for (int i = 0; i < kN; ++i)
        sum += static_cast<double>(dy[i]) * (v[i] - mean) * rstd * static_cast<double>(w[i]);
      return sum;
    };
    double v[kN];
    for (int i = 0; i < kN; ++i) v[i] = static_cast<double>(x[i]);
    loss(v);
    ref::NormBackwardOptions options;
    options.kind = kind;
    ref::NormBackwardRow row;
    row.n = kN;
    row.dy = dy;
    row.x = x;
    row.weight = w;
    row.mean = static_cast<float>(mean);
    row.rstd = static_cast<float>(rstd);
    const std::vector<ref::Range> bounds =
        ref::norm_backward_row_bounds(options, row, ref::Order::kCpu, ref::Type::kF32);
    ASSERT_EQ(bounds.size(), size_t{kN});
    for (int i = 0; i < kN; ++i) {
      constexpr double kStep = 1e-5;
      double up[kN], down[kN];
      std::copy_n(v, kN, up);
      std::copy_n(v, kN, down);
      up[i] += kStep;
      down[i] -= kStep;
      const double difference = (loss(up) - loss(down)) / (2 * kStep);
      const ref::Range& range = bounds[static_cast<size_t>(i)];
      EXPECT_NEAR((range.low + range.high) / 2, difference, 1e-6);
      EXPECT_LT(range.high - range.low, 1e-5);
    }
  }
}

TEST(NormBackwardCpuPlan, WorkspaceIsThatOfTheSums) {
  NormBackwardDesc d;
  d.rows = d.shared_rows = 1024;
  d.outer[0] = 1024;
  d.n = 1000;
  std::byte memory[1] = {};
  d.dx.data = memory;
  d.dx.dtype = d.dy.dtype = d.x.dtype = Dtype::kF32;
  NormBackwardPlan plan;
  Error error;
  DeviceFacts facts;
  ASSERT_EQ(plan_norm_backward_cpu(d, facts, &plan, error), FASTNORM_OK);
  EXPECT_EQ(plan.workspace_bytes, 0u);
  d.dbias.data = d.dweight.data = memory;
  ASSERT_EQ(plan_norm_backward_cpu(d, facts, &plan, error), FASTNORM_OK);
  EXPECT_EQ(plan.workspace_bytes, 2u * 128 * 1024 * 4);
  EXPECT_EQ(plan.partial_offset[1], 128u * 1024 * 4);
  EXPECT_STREQ(plan.kernel, "rms_f32");
}

}  // namespace
}  // namespace fastnorm::test
