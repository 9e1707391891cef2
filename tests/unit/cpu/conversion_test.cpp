// Conversions of every instruction set: all 16-bit values to f32, and f32 to 16 bits. The latter at
// every exponent, near every value and halfway case.
//
// The general kernels for x + residual convert: -0 + r is r for every r, so residual_out is r in
// the other dtype.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "cpu/norm/run.h"
#include "ref/dtype.h"
#include "unit/cpu/levels.h"

namespace fastnorm::test {
namespace {

constexpr ref::Type ref_type(Dtype dtype) {
  return dtype == Dtype::kF32   ? ref::Type::kF32
         : dtype == Dtype::kF16 ? ref::Type::kF16
                                : ref::Type::kBF16;
}

int32_t general_add_kernel(Dtype dtype) {
  const NormKey key{dtype, Source::kAdd, Stat::kRms, Affine::kAny, Sink::kStore, Access::kAny};
  return find_entry(cpu::kNormTable, key, Tile{});
}

// One row: residual_out = x + residual.
void add_row(const Level& level, Dtype dtype, void* x, Dtype residual_dtype, void* residual,
             Dtype sum_dtype, void* sum, int64_t n) {
  std::vector<std::byte> y(static_cast<size_t>(n * dtype_bytes(dtype)));
  NormDesc desc;
  desc.rows = 1;
  desc.n = n;
  desc.dtype = dtype;
  const auto row = [](void* data, Dtype t) {
    RowTensor tensor;
    tensor.data = static_cast<std::byte*>(data);
    tensor.dtype = t;
    return tensor;
  };
  desc.x = row(x, dtype);
  desc.residual = row(residual, residual_dtype);
  desc.residual_out = row(sum, sum_dtype);
  desc.y = row(y.data(), dtype);
  desc.sum_dtype = sum_dtype;
  NormPlan plan;
  plan.index = general_add_kernel(dtype);
  ASSERT_GE(plan.index, 0);
  cpu::NormTask task{cpu::norm_kernels(*level.isa, level.avx512_bf16)[plan.index],
                     cpu::make_params(desc, plan, *level.isa, 1 << 20), 1};
  cpu::run_norm_range(&task, 0, 1);
}

TEST(Conversion, EveryValueToF32) {
  constexpr int64_t kValues = 65536;
  for (const Level& level : runnable_levels()) {
    for (const Dtype dtype : {Dtype::kF16, Dtype::kBF16}) {
      std::vector<uint16_t> x(kValues);
      for (int64_t i = 0; i < kValues; ++i) x[static_cast<size_t>(i)] = static_cast<uint16_t>(i);
      std::vector<float> negative_zeros(kValues, -0.0f), sum(kValues);
      add_row(level, dtype, x.data(), Dtype::kF32, negative_zeros.data(), Dtype::kF32, sum.data(),
              kValues);
      for (size_t i = 0; i < kValues; ++i) {
        const float wanted = ref::decode(ref_type(dtype), x[i]);
        if (std::isnan(wanted)) {
          ASSERT_TRUE(std::isnan(sum[i])) << level.name << " " << dtype_name(dtype) << " " << i;
        } else {
          ASSERT_EQ(std::memcmp(&sum[i], &wanted, 4), 0)
              << level.name << " " << dtype_name(dtype) << " " << i;
        }
      }
    }
  }
}

// All upper halves of an f32, with lower halves at and near the halfway points of both dtypes.
std::vector<float> interesting_floats() {
  std::vector<float> values;
  for (uint32_t high = 0; high < 65536; ++high) {
    for (const uint32_t low :
         {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x1fffu, 0x2000u, 0x3000u, 0x7fffu, 0x8000u,
          0x8001u, 0x9000u, 0xafffu, 0xb000u, 0xb001u, 0xefffu, 0xf000u, 0xf001u, 0xffffu}) {
      values.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  return values;
}

// Subnormal f16 values have halfway points at any bit. Tests each of them and its neighbours.
void add_subnormal_halves(std::vector<float>* values) {
  for (uint32_t i = 0; i <= 1024; ++i) {
    const float half = std::ldexp(static_cast<float>(2 * i + 1), -25);
    for (const float f : {half, std::nextafter(half, 0.0f), std::nextafter(half, 1.0f)}) {
      values->push_back(f);
      values->push_back(-f);
    }
  }
}

TEST(Conversion, FromF32RoundsToNearestEven) {
  std::vector<float> values = interesting_floats();
  add_subnormal_halves(&values);
  const auto n = static_cast<int64_t>(values.size());
  ASSERT_GT(n, 1200000);
  for (const Level& level : runnable_levels()) {
    for (const Dtype dtype : {Dtype::kF16, Dtype::kBF16}) {
      std::vector<uint16_t> negative_zeros(values.size(), 0x8000), sum(values.size());
      add_row(level, dtype, negative_zeros.data(), Dtype::kF32, values.data(), dtype, sum.data(),
              n);
      for (size_t i = 0; i < values.size(); ++i) {
        const ref::Type type = ref_type(dtype);
        if (std::isnan(values[i])) {
          ASSERT_TRUE(std::isnan(ref::decode(type, sum[i])))
              << level.name << " " << dtype_name(dtype) << " " << std::hexfloat << values[i];
        } else {
          ASSERT_EQ(sum[i], ref::encode(type, values[i]))
              << level.name << " " << dtype_name(dtype) << " " << std::hexfloat << values[i];
        }
      }
    }
  }
}

}  // namespace
}  // namespace fastnorm::test
