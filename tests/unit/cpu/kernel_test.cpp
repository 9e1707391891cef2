// Every kernel gives the same bits in every instruction set, for whole ranges and parts of them,
// with and without streaming stores. The check program compares the scalar kernels with the model.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "cpu/norm/run.h"
#include "support/share.h"
#include "unit/cpu/levels.h"

namespace fastnorm::test {
namespace {

constexpr int64_t kRows = 3;
constexpr size_t kGuard = 64;

// Memory for one tensor, filled with random values of its dtype; some are special.
struct Buffer {
  std::vector<std::byte> bytes;
  std::byte* at(size_t offset) { return bytes.data() + offset; }
};

struct Random {
  std::mt19937_64 engine;
  uint64_t below(uint64_t n) { return engine() % n; }

  // Usually near 1. With `special`, some are tiny, zero, Inf or NaN.
  uint32_t value(Dtype dtype, bool special) {
    const auto noise = static_cast<uint32_t>(engine());
    const uint32_t sign = noise >> 31;
    if (special && below(16) == 0) {
      constexpr uint32_t kF32[] = {0x00000000, 0x00000001, 0x00400000,
                                   0x7f800000, 0x7fc12345, 0x00812345};
      constexpr uint32_t kF16[] = {0x0000, 0x0001, 0x0200, 0x7c00, 0x7e11, 0x0411};
      constexpr uint32_t kBF16[] = {0x0000, 0x0001, 0x0040, 0x7f80, 0x7fc1, 0x0081};
      const uint64_t which =
          below(below(8) == 0 ? 6 : 3);  // Inf and NaN are rare: they affect a whole row
      if (dtype == Dtype::kF32) return kF32[which] | sign << 31;
      return (dtype == Dtype::kF16 ? kF16 : kBF16)[which] | sign << 15;
    }
    if (dtype == Dtype::kF32) return 0x3f000000 | (noise & 0x00ffffff) | sign << 31;
    if (dtype == Dtype::kF16) return 0x3800 | (noise & 0x07ff) | sign << 15;
    return 0x3f00 | (noise & 0x00ff) | sign << 15;
  }

  Buffer buffer(Dtype dtype, int64_t elements, bool special) {
    const auto size = static_cast<size_t>(dtype_bytes(dtype));
    Buffer b;
    b.bytes.resize(static_cast<size_t>(elements) * size + 2 * kGuard);
    for (size_t i = 0; i < b.bytes.size(); i += size) {
      const uint32_t bits = value(dtype, special);
      std::memcpy(b.at(i), &bits, size);
    }
    return b;
  }
};

// One call with its own buffers.
struct Trial {
  NormDesc desc;
  NormPlan plan;
  Buffer x, residual, weight, bias, y, residual_out;
  std::vector<float> mean = std::vector<float>(kRows), rstd = std::vector<float>(kRows);

  void run(const Level& level, bool prefetch) {
    y.bytes.assign(y.bytes.size(), std::byte{0x5a});
    residual_out.bytes.assign(residual_out.bytes.size(), std::byte{0x5a});
    cpu::NormTask task{cpu::norm_kernels(*level.isa, level.avx512_bf16)[plan.index],
                       cpu::make_params(desc, plan, *level.isa, 1 << 20), kRows};
    task.params.prefetch = prefetch;
    cpu::run_norm_range(&task, 0, kRows);
  }
};

RowTensor rows_of(Buffer& b, size_t offset, int64_t stride_elements, Dtype dtype) {
  RowTensor t;
  t.data = b.at(kGuard + offset);
  t.dtype = dtype;
  t.stride_bytes[0] = stride_elements * dtype_bytes(dtype);
  return t;
}

Dtype either(Random& random, Dtype dtype) { return random.below(3) == 0 ? Dtype::kF32 : dtype; }

// A random call that the kernel supports. For the general kernels, alignment, dtypes and roundings
// vary.
Trial make_trial(Random& random, int32_t index, int64_t n) {
  const NormKey key = cpu::kNormTable[static_cast<size_t>(index)].key;
  const bool any = key.affine == Affine::kAny, special = random.below(3) == 0;
  const auto size = static_cast<size_t>(dtype_bytes(key.dtype));
  const auto offset = [&](size_t bytes) { return any ? random.below(8) * bytes : 0; };
  Trial t;
  t.plan.index = index;
  t.plan.non_temporal = random.below(2) == 0;
  NormDesc& d = t.desc;
  d.rows = d.outer[0] = kRows;
  d.n = n;
  d.dtype = key.dtype;
  d.kind = key.stat == Stat::kRms ? FASTNORM_NORM_RMS : FASTNORM_NORM_LAYER;
  d.eps = random.below(4) == 0 ? 0.0f : 1e-5f;
  const int64_t stride = n + (any ? static_cast<int64_t>(random.below(4)) : 0);
  const auto fill = [&](Buffer* b, Dtype dtype, int64_t elements) {
    *b = random.buffer(dtype, elements + 16, special);
  };
  fill(&t.x, key.dtype, stride * kRows);
  d.x = rows_of(t.x, offset(size), stride, key.dtype);
  fill(&t.y, key.dtype, stride * kRows);
  d.y = rows_of(t.y, offset(size), stride, key.dtype);
  if (key.source == Source::kAdd) {
    const Dtype in = any ? either(random, key.dtype) : key.dtype,
                out = any ? either(random, key.dtype) : key.dtype;
    fill(&t.residual, in, stride * kRows);
    d.residual = rows_of(t.residual, offset(4), stride, in);
    d.sum_dtype = in;
    if (random.below(3) != 0) {
      fill(&t.residual_out, out, stride * kRows);
      d.residual_out = rows_of(t.residual_out, offset(4), stride, out);
      d.sum_dtype = out;
    }
  }
  const auto weight_or_bias = [&](Buffer* b) {
    const Dtype dtype = either(random, key.dtype);
    fill(b, dtype, n);
    return WeightTensor{b->at(kGuard + (any ? random.below(4) * 4 : 0)), 0, {}, dtype};
  };
  if (random.below(4) != 0) {
    d.weight = weight_or_bias(&t.weight);
    d.weight_offset = random.below(2) == 0 ? 0.0f : 1.0f;
  }
  if (random.below(2) != 0) d.bias = weight_or_bias(&t.bias);
  if (any) {
    d.rounding = static_cast<fastnorm_rounding>(random.below(4));
    d.residual_rounding = static_cast<fastnorm_residual_rounding>(random.below(3));
  }
  const auto statistic = [](std::vector<float>& v) {
    RowTensor r;
    r.data = reinterpret_cast<std::byte*>(v.data());
    r.dtype = Dtype::kF32;
    r.stride_bytes[0] = 4;
    return r;
  };
  d.rstd = statistic(t.rstd);
  if (key.stat == Stat::kLayer) d.mean = statistic(t.mean);
  return t;
}

bool is_nan(Dtype dtype, uint32_t bits) {
  if (dtype == Dtype::kF32) return (bits & 0x7fffffff) > 0x7f800000;
  return (bits & 0x7fff) > (dtype == Dtype::kF16 ? 0x7c00u : 0x7f80u);
}

// Equal, guards included. The bits of a NaN are free.
testing::AssertionResult same(Dtype dtype, std::span<const std::byte> a,
                              std::span<const std::byte> b) {
  if (a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0) {
    return testing::AssertionSuccess();
  }
  const auto size = static_cast<size_t>(dtype_bytes(dtype));
  for (size_t i = 0; i + size <= a.size(); i += size) {
    uint32_t p = 0, q = 0;
    std::memcpy(&p, &a[i], size);
    std::memcpy(&q, &b[i], size);
    if (p != q && !(is_nan(dtype, p) && is_nan(dtype, q))) {
      return testing::AssertionFailure()
             << "element " << i / size << ": " << std::hex << p << ", " << q;
    }
  }
  return testing::AssertionSuccess();
}

// The buffer from the first aligned element on.
std::span<const std::byte> from(const Buffer& b, const RowTensor& t) {
  if (!t) return {};
  const auto begin =
      static_cast<size_t>(t.data - b.bytes.data()) % static_cast<size_t>(dtype_bytes(t.dtype));
  return std::span(b.bytes).subspan(begin);
}

void expect_same_on_all_levels(Random& random, const std::vector<Level>& levels, int32_t index,
                               int64_t n) {
  Trial trial = make_trial(random, index, n);
  trial.run(levels[0], false);
  const Buffer y = trial.y, sum = trial.residual_out;
  const std::vector<float> mean = trial.mean, rstd = trial.rstd;
  for (size_t i = 0; i < levels.size(); ++i) {
    trial.run(levels[i], random.below(2) == 0);
    const std::string where = std::string(cpu::kNormTable[static_cast<size_t>(index)].name) +
                              " on " + levels[i].name + ", n " + std::to_string(n);
    // The kept copies have other addresses, so only the offsets count.
    const auto part = [](const Buffer& kept, const Buffer& b, const RowTensor& t) {
      return std::span(kept.bytes).subspan(kept.bytes.size() - from(b, t).size());
    };
    ASSERT_TRUE(same(trial.desc.dtype, part(y, trial.y, trial.desc.y), from(trial.y, trial.desc.y)))
        << where;
    if (trial.desc.residual_out) {
      ASSERT_TRUE(same(trial.desc.residual_out.dtype,
                       part(sum, trial.residual_out, trial.desc.residual_out),
                       from(trial.residual_out, trial.desc.residual_out)))
          << where;
    }
    ASSERT_TRUE(
        same(Dtype::kF32, std::as_bytes(std::span(rstd)), std::as_bytes(std::span(trial.rstd))))
        << where;
    ASSERT_TRUE(
        same(Dtype::kF32, std::as_bytes(std::span(mean)), std::as_bytes(std::span(trial.mean))))
        << where;
  }
}

TEST(Kernels, SameBitsOnEveryLevel) {
  const std::vector<Level> levels = runnable_levels();
  ASSERT_GE(levels.size(), 2u);
  Random random{std::mt19937_64(20261121)};
  constexpr int64_t kMore[] = {192, 256, 576, 1000, 1032, 4096, 16376, 16384, 16392, 16448, 33000};
  for (int32_t index = 0; index < static_cast<int32_t>(cpu::kNormKernels); ++index) {
    const NormKey key = cpu::kNormTable[static_cast<size_t>(index)].key;
    const int64_t step = key.access == Access::kVector ? 16 / dtype_bytes(key.dtype) : 1;
    for (int64_t n = step; n <= 200; n += step * support::share()) {
      for (int repeat = 0; repeat < 3; ++repeat) {
        ASSERT_NO_FATAL_FAILURE(expect_same_on_all_levels(random, levels, index, n));
      }
    }
    for (const int64_t n : kMore) {
      if (n % step != 0) continue;
      ASSERT_NO_FATAL_FAILURE(expect_same_on_all_levels(random, levels, index, n));
    }
  }
}

// Otherwise a kernel missing from the second unit would be the first unit's, with right results but
// slower.
TEST(Kernels, EveryUnitHasWhatItIsFor) {
  for (const cpu::IsaKernels& isa : cpu::built_isas()) {
    for (size_t i = 0; i < cpu::kNormKernels; ++i) {
      const NormEntry entry = cpu::kNormTable[i];
      const cpu::ChosenNormKernels kernels = cpu::norm_kernels(isa, true);
      EXPECT_NE(kernels.all->at[i], nullptr) << isa.name << ": " << entry.name;
      ASSERT_EQ(kernels.bf16 != nullptr, isa.has_bf16);
      if (kernels.bf16 == nullptr) continue;
      EXPECT_EQ(kernels.bf16->at[i] != nullptr, entry.key.dtype == Dtype::kBF16) << entry.name;
    }
  }
}

// 16-bit rows larger than the caches, with y on 64-byte boundaries.
struct AheadTrial {
  NormDesc desc;
  NormPlan plan;
  Buffer x, residual, weight, y, sums;

  AheadTrial(Random& random, Dtype dtype, bool adds, fastnorm_norm_kind kind, int64_t n) {
    const int64_t stride = (n + 31) / 32 * 32 * (dtype_bytes(dtype) == 2 ? 1 : 2);
    const auto rows = [&](Buffer* b) {
      *b = random.buffer(dtype, stride * kRows + 64, false);
      const auto misaligned = reinterpret_cast<uintptr_t>(b->at(kGuard)) % 64;
      return rows_of(*b, (64 - misaligned) % 64, stride, dtype);
    };
    NormKey key;
    key.dtype = desc.dtype = dtype;
    key.source = adds ? Source::kAdd : Source::kPlain;
    key.stat = kind == FASTNORM_NORM_RMS ? Stat::kRms : Stat::kLayer;
    desc.rows = desc.outer[0] = kRows;
    desc.n = n;
    desc.inv_n = 1.0f / static_cast<float>(n);
    desc.kind = kind;
    desc.x = rows(&x);
    desc.y = rows(&y);
    if (adds) desc.residual = rows(&residual), desc.residual_out = rows(&sums);
    weight = random.buffer(dtype, n + 16, false);
    desc.weight = {weight.at(kGuard), 0, {}, dtype};
    if (kind == FASTNORM_NORM_LAYER) desc.bias = desc.weight;
    plan.index = find_entry(cpu::kNormTable, key, Tile{});
    plan.non_temporal = true;
  }

  cpu::NormTask task(const Level& level) const {
    return {cpu::norm_kernels(*level.isa, level.avx512_bf16)[plan.index],
            cpu::make_params(desc, plan, *level.isa, 1 << 20), kRows};
  }
};

TEST(Kernels, ReadingAheadChangesNoBit) {
  Random random{std::mt19937_64(11)};
  for (const Level& level : runnable_levels()) {
    for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
      for (const bool adds : {false, true}) {
        for (const auto kind : {FASTNORM_NORM_RMS, FASTNORM_NORM_LAYER}) {
          for (const int64_t n : {1, 31, 32, 63, 64, 65, 100, 1024, 4095, 4096}) {
            AheadTrial trial(random, dtype, adds, kind, n);
            cpu::NormTask task = trial.task(level);
            ASSERT_TRUE(task.params.read_ahead);
            cpu::run_norm_range(&task, 0, kRows);
            const Buffer y = trial.y, sums = trial.sums;
            trial.y.bytes.assign(y.bytes.size(), std::byte{0x5a});
            task.params.read_ahead = false;
            for (int64_t row = 0; row < kRows; ++row) cpu::run_norm_range(&task, row, row + 1);
            for (int64_t row = 0; row < kRows; ++row) {
              const std::byte* const again = trial.desc.y.data + row * trial.desc.y.stride_bytes[0];
              const auto at = static_cast<size_t>(again - trial.y.bytes.data());
              ASSERT_EQ(std::memcmp(y.bytes.data() + at, again, static_cast<size_t>(n * 2)), 0)
                  << level.name << " " << dtype_name(dtype) << " " << adds << " " << kind << " n "
                  << n;
            }
            ASSERT_TRUE(sums.bytes == trial.sums.bytes);
          }
        }
      }
    }
  }
}

TEST(Kernels, RowsAreReadAheadWhereThatPays) {
  Random random{std::mt19937_64(12)};
  const Level level = runnable_levels()[0];
  const auto reads = [&](Dtype dtype, fastnorm_norm_kind kind, int64_t n, auto change) {
    AheadTrial trial(random, dtype, false, kind, n);
    change(&trial);
    return trial.task(level).params.read_ahead;
  };
  const auto nothing = [](AheadTrial*) {};
  EXPECT_TRUE(reads(Dtype::kBF16, FASTNORM_NORM_RMS, 8192, nothing));
  EXPECT_FALSE(reads(Dtype::kBF16, FASTNORM_NORM_RMS, 8193, nothing));
  EXPECT_TRUE(reads(Dtype::kF16, FASTNORM_NORM_LAYER, 4096, nothing));
  EXPECT_FALSE(reads(Dtype::kF16, FASTNORM_NORM_LAYER, 4097, nothing));
  EXPECT_FALSE(reads(Dtype::kF32, FASTNORM_NORM_RMS, 1024, nothing));
  EXPECT_FALSE(reads(Dtype::kBF16, FASTNORM_NORM_RMS, 64,
                     [](AheadTrial* t) { t->plan.non_temporal = false; }));
  EXPECT_FALSE(
      reads(Dtype::kBF16, FASTNORM_NORM_RMS, 64, [](AheadTrial* t) { t->desc.y.data += 32; }));
  EXPECT_FALSE(reads(Dtype::kBF16, FASTNORM_NORM_RMS, 64,
                     [](AheadTrial* t) { t->desc.y.stride_bytes[0] += 32; }));
}

// A row's result does not depend on its range of rows.
TEST(Kernels, SameBitsInAnyRange) {
  Random random{std::mt19937_64(7)};
  for (const Level& level : runnable_levels()) {
    for (int32_t index = 0; index < static_cast<int32_t>(cpu::kNormKernels); ++index) {
      Trial trial = make_trial(random, index, 208);
      trial.run(level, true);
      const Buffer whole = trial.y;
      trial.y.bytes.assign(trial.y.bytes.size(), std::byte{0x5a});
      cpu::NormTask task{cpu::norm_kernels(*level.isa, level.avx512_bf16)[index],
                         cpu::make_params(trial.desc, trial.plan, *level.isa, 1 << 20), kRows};
      for (int64_t row = kRows - 1; row >= 0; --row) cpu::run_norm_range(&task, row, row + 1);
      ASSERT_EQ(std::memcmp(whole.bytes.data(), trial.y.bytes.data(), whole.bytes.size()), 0)
          << "kernel " << index << " on " << level.name;
    }
  }
}

}  // namespace
}  // namespace fastnorm::test
