// The laboratory's kernels of a backward pass on the SIMT machine: each of them, bit for bit
// against the row order and the sums that docs/numerics.md describes, written out below.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "simt/cuda_words.h"
//
#include "bench/lab/backward/fold.cuh"
#include "bench/lab/backward/layer.cu"
#include "bench/lab/backward/rms.cu"

namespace {

using fastnorm::ref::decode_bf16;
using fastnorm::ref::encode_bf16;

// The highest digit first.
float fold(std::vector<float> q) {
  size_t p = std::bit_ceil(q.size());
  q.resize(p, 0.0f);
  while (p > 1) {
    p /= 2;
    for (size_t j = 0; j < p; ++j) q[j] += q[j + p];
  }
  return q[0];
}

// Vectors of 8, with a chain for even and one for odd elements; then the fold over vectors. b may
// be empty: a plain sum.
float row_sum(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> vectors;
  for (size_t i = 0; i < a.size(); i += 8) {
    float chain[2];
    for (size_t k = 0; k < 8; ++k) {
      float& c = chain[k % 2];
      const float x = a[i + k];
      if (b.empty()) {
        c = k < 2 ? x : c + x;
      } else {
        c = k < 2 ? x * b[i + k] : std::fma(x, b[i + k], c);
      }
    }
    vectors.push_back(chain[0] + chain[1]);
  }
  return fold(vectors) + 0.0f;
}

// The second launch.
std::string fold_blocks(const lab::Params& p, unsigned gradients, simt::Order order) {
  const int columns = lab::fold_columns(p.n);
  const auto slices = static_cast<unsigned>((p.n / 4 + columns - 1) / columns);
  return simt::launch({slices, gradients, lab::kFoldThreads, 1, 0, order, false, {}},
                      [&] { lab::fold_kernel(p, columns); });
}

struct Call {
  Call(int rows_, int n_, int lanes_, int blocks_, bool layer_)
      : rows(rows_), n(n_), lanes(lanes_), blocks(blocks_), layer(layer_) {
    std::mt19937 random(static_cast<unsigned>(rows * 7 + n));
    std::normal_distribution<float> normal;
    const auto draw = [&](std::vector<uint16_t>& to, size_t count) {
      to.resize(count);
      for (uint16_t& v : to) v = static_cast<uint16_t>(encode_bf16(normal(random)));
    };
    draw(x, size()), draw(dy, size()), draw(weight, static_cast<size_t>(n));
    for (int r = 0; r < rows; ++r) {
      rstd.push_back(0.5f + std::fabs(normal(random)));
      mean.push_back(layer ? normal(random) : 0.0f);
    }
  }
  size_t size() const { return static_cast<size_t>(rows) * static_cast<size_t>(n); }

  // What is to be.
  void expect() {
    const auto columns = static_cast<size_t>(n);
    std::vector<std::vector<float>> sums[2];  // [gradient][block * lanes + lane][column]
    for (auto& s : sums)
      s.assign(static_cast<size_t>(blocks * lanes), std::vector<float>(columns, 0.0f));
    dx.resize(size());
    for (int r = 0; r < rows; ++r) {
      const auto at = static_cast<size_t>(r) * columns;
      const auto of = static_cast<size_t>(r / lanes % blocks * lanes + r % lanes);
      const float scale = rstd[static_cast<size_t>(r)], m = mean[static_cast<size_t>(r)];
      std::vector<float> xhat(columns), e(columns);
      for (size_t c = 0; c < columns; ++c) {
        const float a = decode_bf16(x[at + c]), d = decode_bf16(dy[at + c]);
        xhat[c] = (layer ? a - m : a) * scale;
        e[c] = d * decode_bf16(weight[c]);
        sums[0][of][c] = std::fma(d, xhat[c], sums[0][of][c]);
        sums[1][of][c] += d;
      }
      const float inverse = 1.0f / static_cast<float>(n);
      const float c1 = row_sum(e, xhat) * inverse, c2 = row_sum(e, {}) * inverse;
      for (size_t c = 0; c < columns; ++c) {
        const float centred = layer ? e[c] - c2 : e[c];
        dx[at + c] = static_cast<uint16_t>(encode_bf16(std::fma(-xhat[c], c1, centred) * scale));
      }
    }
    for (int s = 0; s < 2; ++s) {
      for (size_t c = 0; c < columns; ++c) {
        std::vector<float> of_blocks;
        for (int b = 0; b < blocks; ++b) {
          std::vector<float> of_lanes;
          for (int q = 0; q < lanes; ++q)
            of_lanes.push_back(sums[s][static_cast<size_t>(b * lanes + q)][c]);
          of_blocks.push_back(fold(of_lanes));
        }
        gradients[s].push_back(fold(of_blocks) + 0.0f);
      }
    }
  }

  // What a kernel leaves, and what was wrong with its accesses.
  std::string run(const lab::Entry& entry, simt::Order order, std::vector<uint16_t>& got_dx,
                  std::vector<float> (&got)[2]) {
    const auto sums = static_cast<size_t>(blocks * n);
    std::vector<float> partials(2 * sums, NAN);
    got_dx.assign(size(), 0x7fff);
    for (auto& g : got) g.assign(static_cast<size_t>(n), NAN);
    const auto bytes = [](auto& v) { return reinterpret_cast<char*>(v.data()); };
    lab::Params p = {bytes(x),
                     bytes(dy),
                     bytes(got_dx),
                     rstd.data(),
                     mean.data(),
                     bytes(weight),
                     {partials.data(), partials.data() + sums},
                     {got[0].data(), got[1].data()},
                     int64_t{n} * 2,
                     n,
                     n / 8,
                     rows,
                     blocks,
                     lab::power_of_two_up(blocks),
                     lanes * blocks,
                     1.0f / static_cast<float>(n),
                     0.0f,
                     true};
    simt::Grid grid = {static_cast<unsigned>(blocks),
                       1,
                       static_cast<unsigned>(entry.tile.block_threads()),
                       1,
                       static_cast<unsigned>(lab::launch_shared_bytes(entry.tile, n)),
                       order,
                       false,
                       true,
                       {}};
    std::string wrong = simt::launch(grid, [&] { entry.kernel(p); });
    return wrong + fold_blocks(p, layer ? 2 : 1, order);
  }

  int rows, n, lanes, blocks;
  bool layer;
  std::vector<uint16_t> x, dy, weight, dx;
  std::vector<float> rstd, mean, gradients[2];
};

int different(const std::vector<float>& a, const std::vector<float>& b) {
  int count = 0;
  for (size_t i = 0; i < a.size(); ++i)
    count += std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]);
  return count;
}

void test_all(const std::vector<lab::Entry>& entries) {
  int number = 0;
  for (const lab::Entry& entry : entries) {
    const lab::Tile& tile = entry.tile;
    const bool layer = entry.norm == lab::Norm::kLayer;
    SCOPED_TRACE((layer ? "layer " : "rms ") + lab::name_of(tile));
    // A row that fills the tile and one that leaves a part of it empty. With three blocks each has
    // steps enough to go round its ring twice, and the last rows are some lanes' alone; one row.
    const int longest = tile.columns(), shorter = longest - tile.threads * 8 / 2;
    for (const auto& [rows, n, blocks] :
         {std::tuple{tile.lanes * tile.unroll * 19 + 1, longest, 3},
          std::tuple{tile.lanes * 5 - 1, shorter, 2}, std::tuple{1, longest, 1}}) {
      if (!lab::suits(tile, n)) continue;
      Call call(rows, n, tile.lanes, blocks, layer);
      call.expect();
      std::vector<uint16_t> dx;
      std::vector<float> gradients[2];
      const auto order = static_cast<simt::Order>(number++ % 3);
      EXPECT_EQ(call.run(entry, order, dx, gradients), "") << rows << "x" << n;
      EXPECT_EQ(dx, call.dx) << rows << "x" << n;
      EXPECT_EQ(different(gradients[0], call.gradients[0]), 0) << rows << "x" << n;
      if (layer) EXPECT_EQ(different(gradients[1], call.gradients[1]), 0) << rows << "x" << n;
    }
  }
  EXPECT_GE(number, 2 * static_cast<int>(entries.size()));
}

TEST(Lab, Rms) { test_all(lab::rms_entries()); }
TEST(Lab, Layer) { test_all(lab::layer_entries()); }

// As many blocks as a call has, one and some between, of each width of a slice; to bf16, too.
TEST(Lab, Fold) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const auto& [n, blocks] : {std::pair{64, 128},
                                  {128, 100},
                                  {1000, 128},
                                  {4096, 128},
                                  {4104, 77},
                                  {8192, 16},
                                  {8192, 1}}) {
    std::vector<float> partials(static_cast<size_t>(n * blocks)), got(static_cast<size_t>(n));
    std::vector<uint16_t> got_bf16(static_cast<size_t>(n));
    for (float& v : partials) v = normal(random);
    lab::Params p = {};
    p.partials[0] = partials.data(), p.gradients[0] = got.data();
    p.n = n, p.blocks = blocks, p.fold_width = lab::power_of_two_up(blocks);
    p.f32_gradients = true;
    EXPECT_EQ(fold_blocks(p, 1, simt::Order::kShuffled), "");
    p.gradients[0] = got_bf16.data(), p.f32_gradients = false;
    EXPECT_EQ(fold_blocks(p, 1, simt::Order::kBackward), "");
    std::vector<float> wanted;
    std::vector<uint16_t> wanted_bf16;
    for (int c = 0; c < n; ++c) {
      std::vector<float> column;
      for (int b = 0; b < blocks; ++b) column.push_back(partials[static_cast<size_t>(b * n + c)]);
      wanted.push_back(fold(column) + 0.0f);
      wanted_bf16.push_back(static_cast<uint16_t>(encode_bf16(wanted.back())));
    }
    EXPECT_EQ(different(got, wanted), 0) << n << " columns of " << blocks << " blocks";
    EXPECT_EQ(got_bf16, wanted_bf16) << n << " columns of " << blocks << " blocks";
  }
}

// Lanes and blocks by hand, of (rows, n).
TEST(Lab, RowOrder) {
  const auto order = [](int rows, int n) {
    const lab::RowOrder o = lab::row_order(rows, n);
    return std::pair(o.lanes, o.blocks);
  };
  EXPECT_EQ(order(1, 8), std::pair(64, 1));
  EXPECT_EQ(order(262144, 128), std::pair(64, 128));
  EXPECT_EQ(order(65536, 1024), std::pair(8, 128));
  EXPECT_EQ(order(1000, 1000), std::pair(8, 125));
  EXPECT_EQ(order(4096, 4096), std::pair(2, 128));
  EXPECT_EQ(order(77, 5120), std::pair(1, 77));
  EXPECT_EQ(order(8192, 8192), std::pair(1, 128));
}

}  // namespace
