// Descriptions of norms and of their quantised outputs. calls/norm.txt has the calls that are
// refused.
#include "core/norm/check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "unit/call_table.h"
#include "unit/norm/request.h"

namespace fastnorm::test {
namespace {

const CheckedFamily kFamily("norm", check_norm);

constexpr int64_t kHeads = 3, kRows = 2, kN = 16;

// A LAYER call with every tensor.
Request full_request() {
  Request r = simple_request({kRows, kHeads, kN}, FASTNORM_DTYPE_BF16, true, FASTNORM_NORM_LAYER);
  RequestTensor statistic;
  statistic.shape = {kRows, kHeads};
  statistic.address = address_of(6);
  r.mean = statistic;
  statistic.address = address_of(7);
  r.rstd = statistic;
  return r;
}

TEST(CheckNorm, AFullCallIsFine) {
  NormDesc desc;
  Error error;
  ASSERT_EQ(full_request().check(&desc, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(desc.rows, kRows * kHeads);
  EXPECT_EQ(desc.n, kN);
  EXPECT_EQ(desc.dtype, Dtype::kBF16);
  EXPECT_EQ(desc.kind, FASTNORM_NORM_LAYER);
  EXPECT_EQ(desc.inv_n, 1.0f / 16);
}

TEST(CheckNorm, CanonicalSettings) {
  NormDesc desc;
  Error error;
  Request r = full_request();
  r.args.residual_rounding = FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY;
  r.residual->dtype = FASTNORM_DTYPE_F32;
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK);
  EXPECT_EQ(desc.sum_dtype, Dtype::kBF16) << "R is residual_out's dtype where there is one";
  EXPECT_EQ(desc.residual_rounding, FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY);
  r.residual_out.reset();
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK);
  EXPECT_EQ(desc.sum_dtype, Dtype::kF32);
  EXPECT_EQ(desc.residual_rounding, FASTNORM_RESIDUAL_EXACT) << "rounding to f32 is none";
  r.residual.reset();
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK);
  EXPECT_EQ(desc.residual_rounding, FASTNORM_RESIDUAL_EXACT) << "nothing is added";

  r = simple_request({2, 16}, FASTNORM_DTYPE_F32);
  r.args.rounding = FASTNORM_ROUND_NORMALIZED;
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK);
  EXPECT_EQ(desc.rounding, FASTNORM_ROUND_ONCE) << "for f32 they are the same";
  r.args.rounding = FASTNORM_ROUND_EVERY_STEP;
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK);
  EXPECT_EQ(desc.rounding, FASTNORM_ROUND_EVERY_STEP);
  r.args.rounding = FASTNORM_ROUND_ONCE_RW;
  r.weight.reset();
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK);
  EXPECT_EQ(desc.rounding, FASTNORM_ROUND_ONCE) << "the factor is rstd";
  r = full_request();
  r.args.rounding = FASTNORM_ROUND_ONCE_RW;
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK);
  EXPECT_EQ(desc.rounding, FASTNORM_ROUND_ONCE_RW);
}

TEST(CheckNorm, RowsAreFolded) {
  NormDesc desc;
  Error error;
  Request r = full_request();
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK);
  EXPECT_EQ(desc.outer_rank, 1) << "compact dimensions are one";
  EXPECT_EQ(desc.outer[0], kRows * kHeads);
  EXPECT_EQ(desc.x.stride_bytes[0], kN * 2);
  EXPECT_EQ(desc.rstd.stride_bytes[0], 4);
  r.weight->shape = {kHeads, kN};
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK);
  EXPECT_EQ(desc.outer_rank, 2) << "heads stay apart";
  EXPECT_EQ(desc.outer[0], kHeads);
  EXPECT_EQ(desc.weight.head_stride_bytes, kN * 2);
  EXPECT_EQ(desc.bias.head_stride_bytes, 0);
}

// --- strides without a meaning ---

constexpr int64_t kAnyStride = std::numeric_limits<int64_t>::min();

std::vector<RequestTensor*> tensors_of(Request& r) {
  std::vector<RequestTensor*> all;
  for (auto* t : {&r.x, &r.residual, &r.weight, &r.bias, &r.y, &r.residual_out, &r.mean, &r.rstd,
                  &r.global_scale, &r.quantized, &r.scale, &r.amax, &r.clamp_scale}) {
    if (*t) all.push_back(&**t);
  }
  return all;
}

// Sets explicit strides: `any` for a dimension with one index, compact ones otherwise.
void write_strides(RequestTensor* t, int64_t any) {
  if (t->strides.empty()) {
    t->strides.resize(t->shape.size());
    int64_t step = 1;
    for (size_t d = t->shape.size(); d-- > 0;) {
      t->strides[d] = step;
      step *= t->shape[d];
    }
  }
  for (size_t d = 0; d < t->shape.size(); ++d) {
    if (t->shape[d] == 1) t->strides[d] = any;
  }
}

TEST(CheckNorm, StridesOfOneIndexSayNothing) {
  constexpr int64_t kAny[] = {
      kAnyStride, kAnyStride + 1, -1, 0, 3, int64_t{1} << 62, std::numeric_limits<int64_t>::max()};
  const std::vector<int64_t> shapes[] = {{kRows, 1, kN},
                                         {1, kHeads, kN},
                                         {1, kN},
                                         {kRows, kHeads, 1},
                                         {1},
                                         {1, 1, 1},
                                         {1, kRows, 1, kN},
                                         {kRows, 1, 1, kN},
                                         {1, 1, kRows, 1, kN},
                                         {1, kRows, 1, kHeads, 1, 1, 1, kN}};
  for (const auto& shape : shapes) {
    for (int scheme = FASTNORM_QUANT_NONE; scheme <= FASTNORM_QUANT_NVFP4; ++scheme) {
      if (scheme == FASTNORM_QUANT_NVFP4 && shape.back() == 1) continue;
      Request plain = simple_request(shape, FASTNORM_DTYPE_BF16, true, FASTNORM_NORM_LAYER);
      std::vector<int64_t> rows = shape;
      rows.back() = 1;
      plain.mean = RequestTensor{rows, {}, FASTNORM_DTYPE_F32, address_of(6)};
      plain.rstd = RequestTensor{rows, {}, FASTNORM_DTYPE_F32, address_of(7)};
      std::vector<int64_t> column(shape.size(), 1);
      column.back() = shape.back();
      plain.bias->shape = column;
      if (scheme != FASTNORM_QUANT_NONE)
        add_quant(&plain, static_cast<fastnorm_quant_scheme>(scheme));
      NormDesc desc, same;
      Error error;
      ASSERT_EQ(plain.check(&desc, error), FASTNORM_OK) << error.text;
      for (const int64_t any : kAny) {
        Request r = plain;
        for (RequestTensor* t : tensors_of(r)) write_strides(t, any);
        ASSERT_EQ(r.check(&same, error), FASTNORM_OK) << error.text;
        EXPECT_EQ(same.outer_rank, desc.outer_rank);
        for (int d = 0; d < kMaxOuter; ++d) {
          EXPECT_EQ(same.outer[d], desc.outer[d]);
          EXPECT_EQ(same.x.stride_bytes[d], desc.x.stride_bytes[d]);
          EXPECT_EQ(same.residual_out.stride_bytes[d], desc.residual_out.stride_bytes[d]);
          EXPECT_EQ(same.mean.stride_bytes[d], desc.mean.stride_bytes[d]);
          EXPECT_EQ(same.quant.codes.stride_bytes[d], desc.quant.codes.stride_bytes[d]);
          EXPECT_EQ(same.quant.scale.stride_bytes[d], desc.quant.scale.stride_bytes[d]);
          EXPECT_EQ(same.bias.stride_bytes(d), 0);
        }
        EXPECT_EQ(same.quant.scale_step_bytes, desc.quant.scale_step_bytes);
      }
    }
  }
}

TEST(CheckNorm, StridesOfNoElementsSayNothing) {
  const std::vector<int64_t> shapes[] = {
      {0, kN}, {kRows, 0, kN}, {0, kHeads, kN}, {kRows, 0, kHeads, kN}, {2, 0, 2, 2, 2, 2, 2, kN}};
  for (const auto& shape : shapes) {
    for (int scheme = FASTNORM_QUANT_NONE; scheme <= FASTNORM_QUANT_NVFP4; ++scheme) {
      Request r = simple_request(shape, FASTNORM_DTYPE_BF16, true, FASTNORM_NORM_LAYER);
      std::vector<int64_t> rows = shape;
      rows.pop_back();
      r.mean = RequestTensor{rows, {}, FASTNORM_DTYPE_F32, address_of(6)};
      if (scheme != FASTNORM_QUANT_NONE) add_quant(&r, static_cast<fastnorm_quant_scheme>(scheme));
      for (RequestTensor* t : tensors_of(r)) {
        bool empty = false;
        for (const int64_t extent : t->shape) empty |= extent == 0;
        if (empty) t->strides.assign(t->shape.size(), kAnyStride + 1);
      }
      NormDesc desc;
      Error error;
      ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
      EXPECT_EQ(desc.rows, 0);
    }
  }
}

// --- weight and bias that broadcast, and x with more dimensions than a description has ---

struct WeightCase {
  std::vector<int64_t> shape;
  std::vector<int64_t> outer, strides;  // innermost first, of the weight in bytes
};

std::vector<int64_t> outer_of(const NormDesc& d) { return {d.outer, d.outer + d.outer_rank}; }
std::vector<int64_t> weight_strides_of(const NormDesc& d) {
  std::vector<int64_t> strides;
  for (int i = 0; i < d.outer_rank; ++i) strides.push_back(d.weight.stride_bytes(i));
  return strides;
}

TEST(CheckNorm, WeightAndBiasBroadcast) {
  const WeightCase cases[] = {
      {{16}, {24}, {0}},
      {{1, 16}, {24}, {0}},
      {{1, 1, 1, 16}, {24}, {0}},
      {{4, 16}, {4, 6}, {32, 0}},
      {{1, 4, 16}, {4, 6}, {32, 0}},
      {{3, 1, 16}, {4, 3, 2}, {0, 32, 0}},
      {{3, 4, 16}, {12, 2}, {32, 0}},
      {{2, 1, 1, 16}, {12, 2}, {0, 32}},
      {{2, 1, 4, 16}, {4, 3, 2}, {32, 0, 128}},
      {{2, 3, 1, 16}, {4, 6}, {0, 32}},
      {{2, 3, 4, 16}, {24}, {32}},
  };
  for (const WeightCase& c : cases) {
    Request r = simple_request({2, 3, 4, 16}, FASTNORM_DTYPE_BF16);
    r.weight->shape = c.shape;
    NormDesc desc;
    Error error;
    ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
    EXPECT_EQ(outer_of(desc), c.outer);
    EXPECT_EQ(weight_strides_of(desc), c.strides);
    // Additional dimensions of one index.
    for (auto* t : {&r.x, &r.y}) (*t)->shape = {2, 1, 3, 1, 1, 4, 1, 16};
    r.weight->shape.insert(r.weight->shape.end() - 1, 1);
    if (c.shape.size() > 2) r.weight->shape.insert(r.weight->shape.end() - 3, 2, 1);
    if (c.shape.size() > 3) r.weight->shape.insert(r.weight->shape.begin() + 1, 1);
    ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
    EXPECT_EQ(outer_of(desc), c.outer);
    EXPECT_EQ(weight_strides_of(desc), c.strides);
  }
}

Request on_gpu(Request r) {
  r.device = {FASTNORM_DEVICE_CUDA, 0};
  for (RequestTensor* t : tensors_of(r)) t->device_type = FASTNORM_DEVICE_CUDA;
  return r;
}

// Most kernels of a GPU support rows of weight and bias along the innermost dimension only. Rows
// are then taken in another order. A weight that varies along several dimensions keeps the order.
TEST(CheckNorm, WeightAndBiasOfAGpu) {
  NormDesc desc;
  Error error;
  Request r = on_gpu(simple_request({2, 3, 4, 16}, FASTNORM_DTYPE_BF16, true));
  r.residual->strides = {1000, 200, 40, 1};
  r.weight->shape = {2, 1, 1, 16};
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(outer_of(desc), (std::vector<int64_t>{2, 3, 4}));
  EXPECT_EQ(weight_strides_of(desc), (std::vector<int64_t>{32, 0, 0}));
  EXPECT_EQ(desc.x.stride_bytes[0], 12 * 32);
  EXPECT_EQ(desc.x.stride_bytes[1], 4 * 32);
  EXPECT_EQ(desc.x.stride_bytes[2], 32);
  EXPECT_EQ(desc.residual.stride_bytes[0], 2000);
  EXPECT_EQ(desc.residual.stride_bytes[2], 80);
  r.residual->strides.clear();
  r.weight->shape = {3, 1, 16};
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(outer_of(desc), (std::vector<int64_t>{3, 4, 2}));
  EXPECT_EQ(weight_strides_of(desc), (std::vector<int64_t>{32, 0, 0}));

  EXPECT_FALSE(desc.weights_outside);

  r.weight->shape = {2, 1, 4, 16};
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(outer_of(desc), (std::vector<int64_t>{4, 3, 2}));
  EXPECT_EQ(weight_strides_of(desc), (std::vector<int64_t>{32, 0, 128}));
  EXPECT_TRUE(desc.weights_outside);
  r.weight->shape = {2, 3, 4, 16};
  r.weight->strides = {1000, 200, -40, 1};
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(weight_strides_of(desc), (std::vector<int64_t>{-80, 400, 2000}));
  EXPECT_TRUE(desc.weights_outside);
}

TEST(CheckNorm, SwizzledScalesKeepTheOrderOfRows) {
  NormDesc desc;
  Error error;
  Request r = simple_request({2, 3, 64}, FASTNORM_DTYPE_BF16);
  add_quant(&r, FASTNORM_QUANT_MXFP8);
  r.quant.scale_layout = FASTNORM_SCALE_SWIZZLED_128X4;
  r.scale->shape = {512};
  r.weight->shape = {2, 1, 64};
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(outer_of(desc), (std::vector<int64_t>{3, 2}));
  r = on_gpu(r);
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(outer_of(desc), (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(weight_strides_of(desc), (std::vector<int64_t>{0, 128}));
  EXPECT_TRUE(desc.weights_outside);
  r.weight->shape = {3, 64};
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
  EXPECT_FALSE(desc.weights_outside);
}

TEST(CheckNorm, RanksToEightFold) {
  NormDesc desc;
  Error error;
  const std::vector<int64_t> shape = {2, 1, 3, 2, 1, 2, 2, 16};
  Request r = simple_request(shape, FASTNORM_DTYPE_BF16, true, FASTNORM_NORM_LAYER);
  r.mean = RequestTensor{{2, 1, 3, 2, 1, 2, 2}, {}, FASTNORM_DTYPE_F32, address_of(6)};
  r.rstd = RequestTensor{{2, 1, 3, 2, 1, 2, 2, 1}, {}, FASTNORM_DTYPE_F32, address_of(7)};
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(outer_of(desc), std::vector<int64_t>{48});
  EXPECT_EQ(desc.rows, 48);
  EXPECT_EQ(desc.rstd.stride_bytes[0], 4);
  // A padded tensor keeps two dimensions from joining.
  r.x->strides = {2000, 7, 500, 160, -9, 80, 40, 1};
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(outer_of(desc), (std::vector<int64_t>{8, 3, 2}));
  EXPECT_EQ(desc.x.stride_bytes[0], 80);
  EXPECT_EQ(desc.x.stride_bytes[1], 1000);
  EXPECT_EQ(desc.x.stride_bytes[2], 4000);
  EXPECT_EQ(desc.y.stride_bytes[1], 8 * 32);
  r.x->strides = {2000, 7, 500, 160, -9, 80, 30, 1};
  EXPECT_EQ(r.check(&desc, error), FASTNORM_ERROR_UNSUPPORTED);
  const std::string text = error.text;
  for (const char* part :
       {"x.shape is [2, 1, 3, 2, 1, 2, 2, 16]", "4 leading", "[2, 3, 4, 2]", "nearest"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
  for (auto* t : {&r.x, &r.y, &r.residual, &r.residual_out}) (*t)->shape[1] = 0;
  r.mean->shape[1] = r.rstd->shape[1] = 0;
  EXPECT_EQ(r.check(&desc, error), FASTNORM_OK) << "no rows: nothing to fold. " << error.text;
  EXPECT_EQ(desc.rows, 0);
}

// x and what has its rows, with more dimensions. Other tensors have no rank of their own.
void widen(support::Call* call) {
  const std::vector<int64_t> shapes[] = {{kRows, kHeads, kN}, {kRows, kHeads}, {kRows, kHeads, 1}};
  for (const std::string& path : call->tensors()) {
    support::CallTensor* const t = call->tensor(path);
    if (std::find(std::begin(shapes), std::end(shapes), t->shape) == std::end(shapes)) continue;
    t->shape.insert(t->shape.begin(), {1, 1});
    if (!t->strides.empty()) t->strides.insert(t->strides.begin(), {kAnyStride, 5});
  }
}

// Every requirement also holds for x with more dimensions.
TEST(CheckNorm, RankFiveIsCheckedAlike) {
  int alike = 0;
  for (const CallLine& line : call_table("norm").lines) {
    if (line.base != "full") continue;
    support::Call call = call_of("norm", "full", line.changes);
    // Calls whose only fault is a rank that is right for x of rank 5, and those without x's shape.
    if (line.name == "x rank 5 alone" || line.name == "weight of more dimensions") continue;
    const support::CallTensor* const x = call.tensor("x");
    if (x == nullptr) continue;
    const bool has_shape = x->shape == std::vector<int64_t>{kRows, kHeads, kN};
    if (line.status == FASTNORM_OK && !has_shape) continue;
    SCOPED_TRACE(line.where + ": " + line.name);
    const CheckedDevice cpu = {FASTNORM_DEVICE_CPU, 0};
    NormDesc three, five;
    Error error;
    const fastnorm_status status = check_norm(call.args<fastnorm_norm_args>(), cpu, &three, error);
    EXPECT_EQ(status, line.status) << error.text;
    widen(&call);
    const fastnorm_status wide = check_norm(call.args<fastnorm_norm_args>(), cpu, &five, error);
    EXPECT_EQ(wide == FASTNORM_OK, status == FASTNORM_OK) << error.text;
    ++alike;
    if (status != FASTNORM_OK || wide != FASTNORM_OK) continue;
    EXPECT_EQ(outer_of(five), outer_of(three));
    EXPECT_EQ(weight_strides_of(five), weight_strides_of(three));
    for (int d = 0; d < five.outer_rank; ++d) {
      EXPECT_EQ(five.x.stride_bytes[d], three.x.stride_bytes[d]);
      EXPECT_EQ(five.residual_out.stride_bytes[d], three.residual_out.stride_bytes[d]);
      EXPECT_EQ(five.mean.stride_bytes[d], three.mean.stride_bytes[d]);
    }
  }
  EXPECT_GT(alike, 100);
}

// --- quantised outputs ---

constexpr fastnorm_quant_scheme kNone = FASTNORM_QUANT_NONE, kTensor = FASTNORM_QUANT_PER_TENSOR,
                                kRow = FASTNORM_QUANT_PER_ROW, kBlock = FASTNORM_QUANT_PER_BLOCK,
                                kMx = FASTNORM_QUANT_MXFP8, kFp4 = FASTNORM_QUANT_NVFP4;
constexpr int64_t kQuantN =
    272;  // 5 blocks of 64, 9 of 32, 17 of 16; the last of 64 and of 32 short

// A LAYER call with every tensor of the scheme.
Request quant_request(fastnorm_quant_scheme scheme) {
  Request r =
      simple_request({kRows, kHeads, kQuantN}, FASTNORM_DTYPE_BF16, true, FASTNORM_NORM_LAYER);
  RequestTensor statistic;
  statistic.shape = {kRows, kHeads};
  statistic.address = address_of(6);
  r.mean = statistic;
  statistic.address = address_of(7);
  r.rstd = statistic;
  if (scheme != kNone) add_quant(&r, scheme);
  return r;
}

// Swizzled scales for rows of kQuantN: 5 scales of 64 columns, 9 of 32, 17 of 16.
void swizzle(Request& r) {
  const int32_t block = scheme_of(r.quant.scheme).block;
  r.quant.scale_layout = FASTNORM_SCALE_SWIZZLED_128X4;
  r.scale->shape = {512 * (block == 16 ? 5 : block == 32 ? 3 : 2)};
  if (r.quant.scheme == kBlock) {
    r.quant.scale_pow2 = 1;
    r.scale->dtype = FASTNORM_DTYPE_F8_E8M0FNU;
  }
}

// Changes the shape of all tensors that have rows.
void set_shape(Request& r, std::vector<int64_t> shape) {
  r.mean.reset();
  r.rstd.reset();
  r.weight->shape = r.bias->shape = {shape.back()};
  for (auto* t : {&r.x, &r.y, &r.residual, &r.residual_out}) (*t)->shape = shape;
  if (r.quant.scheme != kNone) add_quant(&r, r.quant.scheme);
}

NormDesc checked(const Request& r) {
  NormDesc desc;
  Error error;
  EXPECT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
  return desc;
}

std::vector<int64_t> strides_of(const RowTensor& t, const NormDesc& d) {
  return {t.stride_bytes, t.stride_bytes + d.outer_rank};
}

using Strides = std::vector<int64_t>;

TEST(CheckQuant, DescriptionOfNone) {
  Request r = quant_request(kNone);
  EXPECT_FALSE(checked(r).quant.any());
  add_quant(&r, kTensor);
  r.quant.scheme = kNone;
  r.quantized.reset();
  r.scale.reset();
  const NormDesc d = checked(r);
  EXPECT_TRUE(d.quant.any());
  EXPECT_EQ(d.quant.scheme, kNone);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(d.quant.amax), address_of(12));
  EXPECT_FALSE(d.quant.codes);
  EXPECT_FALSE(d.quant.scale);
}

TEST(CheckQuant, DescriptionPerTensor) {
  Request r = quant_request(kTensor);
  r.quant.clamp = 2.5f;
  r.amax->byte_offset = 8;
  r.scale->byte_offset = 16;
  r.quantized->byte_offset = 5;
  const NormDesc d = checked(r);
  const QuantDesc& q = d.quant;
  EXPECT_EQ(q.scheme, kTensor);
  EXPECT_EQ(q.dtype, Dtype::kF8E4M3);
  EXPECT_EQ(q.block, 0);
  EXPECT_EQ(q.clamp, 2.5f);
  EXPECT_EQ(q.amax_floor, 0.0f) << "a given scale has no floor";
  EXPECT_FALSE(q.from_rounded || q.pow2 || q.swizzled || q.divides);
  EXPECT_FALSE(q.scale) << "the scale is an input";
  EXPECT_EQ(reinterpret_cast<uintptr_t>(q.tensor_scale), address_of(11) + 16);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(q.amax), address_of(12) + 8);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(q.codes.data), address_of(10) + 5);
  EXPECT_EQ(q.global_scale, nullptr);
  EXPECT_EQ(d.outer_rank, 1);
  EXPECT_EQ(strides_of(q.codes, d), Strides{kQuantN});
}

TEST(CheckQuant, DescriptionPerRow) {
  Request r = quant_request(kRow);
  NormDesc d = checked(r);
  EXPECT_EQ(d.quant.scheme, kRow);
  EXPECT_EQ(d.quant.block, 0);
  EXPECT_EQ(d.quant.scales(d.n), 1);
  EXPECT_EQ(d.quant.amax_floor, 1e-10f) << "0 is the default";
  EXPECT_EQ(d.quant.tensor_scale, nullptr);
  EXPECT_EQ(d.quant.scale.dtype, Dtype::kF32);
  EXPECT_EQ(d.outer_rank, 1);
  EXPECT_EQ(strides_of(d.quant.scale, d), Strides{4});
  EXPECT_EQ(strides_of(d.quant.codes, d), Strides{kQuantN});
  r.scale->shape = {kRows, kHeads, 1};
  d = checked(r);
  EXPECT_EQ(strides_of(d.quant.scale, d), Strides{4}) << "a last 1 changes nothing";
  r.scale->strides = {24, 8, 3};
  d = checked(r);
  EXPECT_EQ(strides_of(d.quant.scale, d), Strides{32}) << "rows of all heads step evenly";
  r.scale->strides = {25, 8, 3};
  d = checked(r);
  EXPECT_EQ(d.outer_rank, 2) << "scales that step unevenly keep rows apart";
  EXPECT_EQ(strides_of(d.quant.scale, d), (Strides{32, 100}));
  EXPECT_EQ(strides_of(d.quant.codes, d), (Strides{kQuantN, 3 * kQuantN}));
  EXPECT_EQ(strides_of(d.x, d), (Strides{2 * kQuantN, 6 * kQuantN}));
  r = quant_request(kRow);
  r.quant.division = FASTNORM_QUANT_DIVIDE;
  EXPECT_TRUE(checked(r).quant.divides);
  r.quant.scale_pow2 = 1;
  EXPECT_FALSE(checked(r).quant.divides) << "by a power of two both are the same";
  r.quant.amax_floor = 0.25f;
  r.scale->dtype = FASTNORM_DTYPE_U8;
  r.quantized->dtype = FASTNORM_DTYPE_F8_E5M2;
  d = checked(r);
  EXPECT_TRUE(d.quant.pow2);
  EXPECT_EQ(d.quant.amax_floor, 0.25f);
  EXPECT_EQ(d.quant.dtype, Dtype::kF8E5M2);
  EXPECT_NE(d.quant.scale.dtype, Dtype::kF32);
  EXPECT_EQ(strides_of(d.quant.scale, d), Strides{1});
}

TEST(CheckQuant, DescriptionPerBlock) {
  Request r = quant_request(kBlock);
  NormDesc d = checked(r);
  EXPECT_EQ(d.quant.block, 64);
  EXPECT_EQ(d.quant.scales(d.n), 5);
  EXPECT_EQ(d.quant.amax_floor, 1e-10f);
  EXPECT_EQ(d.outer_rank, 1);
  EXPECT_EQ(strides_of(d.quant.scale, d), Strides{20});
  EXPECT_EQ(d.quant.scale_step_bytes, 4);
  r.quant.scale_layout = FASTNORM_SCALE_COLUMN_MAJOR;
  d = checked(r);
  EXPECT_EQ(d.outer_rank, 1) << "columns of all rows step evenly";
  EXPECT_EQ(strides_of(d.quant.scale, d), Strides{4});
  EXPECT_EQ(d.quant.scale_step_bytes, 4 * kRows * kHeads);
  r.scale->strides = {30, 10, 2};
  d = checked(r);
  EXPECT_EQ(strides_of(d.quant.scale, d), Strides{40}) << "strides win over the layout's name";
  EXPECT_EQ(d.quant.scale_step_bytes, 8);
  r.scale->strides = {-4, 1, 8};
  d = checked(r);
  EXPECT_EQ(d.outer_rank, 2);
  EXPECT_EQ(strides_of(d.quant.scale, d), (Strides{4, -16}));
  EXPECT_EQ(d.quant.scale_step_bytes, 32);
  r = quant_request(kBlock);
  r.quant.block_size = 128;
  r.scale->shape = {kRows, kHeads, 3};
  EXPECT_EQ(checked(r).quant.block, 128);
  EXPECT_EQ(checked(r).quant.scales(kQuantN), 3);
}

TEST(CheckQuant, DescriptionMxfp8) {
  Request r = quant_request(kMx);
  NormDesc d = checked(r);
  EXPECT_EQ(d.quant.block, 32);
  EXPECT_EQ(d.quant.scales(d.n), 9);
  EXPECT_TRUE(d.quant.pow2);
  EXPECT_EQ(d.quant.amax_floor, 0.0f) << "MXFP8 has no floor";
  EXPECT_EQ(strides_of(d.quant.scale, d), Strides{9});
  EXPECT_EQ(d.quant.scale_step_bytes, 1);
  r.quant.scale_layout = FASTNORM_SCALE_COLUMN_MAJOR;
  EXPECT_EQ(checked(r).quant.scale_step_bytes, kRows * kHeads);
  r = quant_request(kMx);
  swizzle(r);
  d = checked(r);
  EXPECT_TRUE(d.quant.swizzled);
  EXPECT_EQ(d.outer_rank, 1) << "swizzled scales count rows, so they fold";
  EXPECT_EQ(d.rows, kRows * kHeads);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(d.quant.scale.data), address_of(11));
}

TEST(CheckQuant, DescriptionNvfp4) {
  Request r = quant_request(kFp4);
  NormDesc d = checked(r);
  EXPECT_EQ(d.quant.block, 16);
  EXPECT_EQ(d.quant.scales(d.n), 17);
  EXPECT_FALSE(d.quant.pow2);
  EXPECT_EQ(d.quant.dtype, Dtype::kF4E2M1);
  EXPECT_EQ(strides_of(d.quant.codes, d), Strides{kQuantN / 2}) << "in bytes, of two codes each";
  EXPECT_EQ(strides_of(d.quant.scale, d), Strides{17});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(d.quant.global_scale), address_of(13));
  r.quantized->strides = {-2000, 300, 1};
  d = checked(r);
  EXPECT_EQ(strides_of(d.quant.codes, d), (Strides{150, -1000}));
  for (const fastnorm_dtype_id dtype : {FASTNORM_DTYPE_F4_E2M1FN_X2, FASTNORM_DTYPE_U8}) {
    r = quant_request(kFp4);
    r.quantized->dtype = dtype;
    r.quantized->shape[2] = kQuantN / 2;
    d = checked(r);
    EXPECT_EQ(d.quant.dtype, Dtype::kF4E2M1) << "the codes are the same";
    EXPECT_EQ(strides_of(d.quant.codes, d), Strides{kQuantN / 2});
    r.quantized->strides = {1001, 151, 1};
    d = checked(r);
    EXPECT_EQ(strides_of(d.quant.codes, d), (Strides{151, 1001}));
  }
  r = quant_request(kFp4);
  r.global_scale.reset();
  EXPECT_EQ(checked(r).quant.global_scale, nullptr);
}

TEST(CheckQuant, RanksOneToEight) {
  const std::vector<int64_t> shapes[] = {{kQuantN},
                                         {6, kQuantN},
                                         {kRows, kHeads, kQuantN},
                                         {1, kRows, kHeads, kQuantN},
                                         {kRows, 1, kHeads, 1, kQuantN},
                                         {1, kRows, 1, 1, kHeads, 1, 1, kQuantN}};
  for (const QuantScheme& of : kQuantSchemes) {
    const fastnorm_quant_scheme scheme = of.scheme;
    if (scheme == kNone) continue;
    for (const auto& shape : shapes) {
      Request r = quant_request(scheme);
      set_shape(r, shape);
      const NormDesc d = checked(r);
      EXPECT_EQ(d.rows, shape.size() == 1 ? 1 : 6);
      EXPECT_EQ(d.outer_rank, 1);
      const bool one = shape.size() == 1;  // a single row needs no stride
      EXPECT_EQ(strides_of(d.quant.codes, d), Strides{one           ? 0
                                                      : of.is_fp4() ? kQuantN / 2
                                                                    : kQuantN});
      if (scheme == kTensor) continue;
      const int64_t bytes = scheme == kRow ? 4 : scheme == kBlock ? 20 : of.block == 16 ? 17 : 9;
      EXPECT_EQ(strides_of(d.quant.scale, d), Strides{one ? 0 : bytes}) << "scheme " << scheme;
    }
  }
}

TEST(CheckQuant, EveryStepQuantisesWhatYHolds) {
  Request r = quant_request(kRow);
  EXPECT_FALSE(checked(r).quant.from_rounded);
  r.args.rounding = FASTNORM_ROUND_NORMALIZED;
  EXPECT_FALSE(checked(r).quant.from_rounded);
  r.args.rounding = FASTNORM_ROUND_EVERY_STEP;
  EXPECT_TRUE(checked(r).quant.from_rounded);
  r.args.rounding = FASTNORM_ROUND_ONCE;
  r.quant.source = FASTNORM_QUANT_FROM_ROUNDED;
  EXPECT_TRUE(checked(r).quant.from_rounded);
}

// --- struct_size ---

struct LongArgs {
  fastnorm_norm_args args;
  unsigned char tail[24];
};

TEST(CheckStruct, GrowsWithZeros) {
  const Request r = simple_request({2, 16}, FASTNORM_DTYPE_F32);
  const fastnorm_tensor x = r.x->abi(), y = r.y->abi();
  LongArgs longer = {};
  longer.args = r.args;
  longer.args.x = &x;
  longer.args.y = &y;
  longer.args.struct_size = sizeof longer;
  NormDesc desc;
  Error error;
  EXPECT_EQ(check_norm(&longer.args, r.device, &desc, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(desc.rows, 2);
  longer.tail[23] = 1;
  EXPECT_EQ(check_norm(&longer.args, r.device, &desc, error), FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(error.text).find(std::to_string(sizeof longer - 1)), std::string::npos)
      << "names the byte: " << error.text;
  longer.args.struct_size = sizeof longer - 1;  // the byte is no longer part of it
  EXPECT_EQ(check_norm(&longer.args, r.device, &desc, error), FASTNORM_OK) << error.text;
  constexpr size_t kFirst =
      offsetof(fastnorm_norm_args, modulation_index) + sizeof(fastnorm_norm_args::modulation_index);
  longer.args.struct_size = kFirst;
  EXPECT_EQ(check_norm(&longer.args, r.device, &desc, error), FASTNORM_OK) << error.text;
  longer.args.struct_size = kFirst - 1;
  EXPECT_EQ(check_norm(&longer.args, r.device, &desc, error), FASTNORM_ERROR_ARGUMENT);
}

TEST(CheckStruct, QuantGrowsWithZeros) {
  struct LongQuant {
    fastnorm_quant quant;
    unsigned char tail[8];
  } longer = {};
  const Request r = simple_request({2, 16}, FASTNORM_DTYPE_F32);
  const fastnorm_tensor x = r.x->abi(), y = r.y->abi();
  fastnorm_norm_args args = r.args;
  args.x = &x;
  args.y = &y;
  args.quant = &longer.quant;
  longer.quant.struct_size = sizeof longer;
  NormDesc desc;
  Error error;
  EXPECT_EQ(check_norm(&args, r.device, &desc, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(desc.quant.scheme, FASTNORM_QUANT_NONE);
  longer.tail[7] = 1;
  EXPECT_EQ(check_norm(&args, r.device, &desc, error), FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(error.text).find("quant"), std::string::npos) << error.text;
  longer.quant.struct_size = sizeof longer.quant - 1;
  EXPECT_EQ(check_norm(&args, r.device, &desc, error), FASTNORM_ERROR_ARGUMENT);
  EXPECT_NE(std::string(error.text).find("quant.struct_size is 95"), std::string::npos)
      << error.text;
}

TEST(CheckStruct, NullArgs) {
  NormDesc desc;
  Error error;
  EXPECT_EQ(check_norm(nullptr, {FASTNORM_DEVICE_CPU, 0}, &desc, error), FASTNORM_ERROR_ARGUMENT);
  EXPECT_NE(std::string(error.text).find("args is NULL"), std::string::npos) << error.text;
}

// --- several parts ---

fastnorm_status check_pair(const Request& a, const Request& b, Error& error) {
  NormDesc descs[2];
  EXPECT_EQ(a.check(&descs[0], error), FASTNORM_OK) << error.text;
  EXPECT_EQ(b.check(&descs[1], error), FASTNORM_OK) << error.text;
  return check_norm_many(descs, error);
}

// Query and key heads of one fused buffer, both in place.
Request heads_of_qkv(int64_t first_head, int64_t heads) {
  constexpr int64_t kTokens = 5, kAllHeads = 12, kHeadSize = 16;
  Request r = simple_request({kTokens, heads, kHeadSize}, FASTNORM_DTYPE_BF16);
  r.x->strides = r.y->strides = {kAllHeads * kHeadSize, kHeadSize, 1};
  r.x->address = r.y->address = address_of(0) + static_cast<uintptr_t>(first_head * kHeadSize * 2);
  return r;
}

TEST(CheckNormMany, InterleavedPartsOfOneBuffer) {
  Error error;
  EXPECT_EQ(check_pair(heads_of_qkv(0, 8), heads_of_qkv(8, 2), error), FASTNORM_OK) << error.text;
  EXPECT_EQ(check_pair(heads_of_qkv(0, 8), heads_of_qkv(7, 2), error), FASTNORM_ERROR_LAYOUT);
  const std::string text = error.text;
  EXPECT_NE(text.find("args[0]."), std::string::npos) << text;
  EXPECT_NE(text.find("args[1]."), std::string::npos) << text;
}

TEST(CheckNormMany, NoPartReadsWhatAnotherWrites) {
  Error error;
  Request a = simple_request({4, 16}, FASTNORM_DTYPE_F32), b = a;
  b.y->address = address_of(8);
  EXPECT_EQ(check_pair(a, b, error), FASTNORM_OK) << "sharing inputs: " << error.text;
  b.x->address = a.y->address;
  EXPECT_EQ(check_pair(a, b, error), FASTNORM_ERROR_LAYOUT);
  b = a;
  b.y->address = address_of(8);
  b.weight->address = a.y->address + 64;
  EXPECT_EQ(check_pair(a, b, error), FASTNORM_ERROR_LAYOUT);
}

TEST(CheckNormMany, QuantisedOutputsAreApart) {
  const auto part = [](int number) {
    Request r = simple_request({2, 64}, FASTNORM_DTYPE_BF16);
    add_quant(&r, kFp4);
    for (auto* t : {&r.y, &r.quantized, &r.scale, &r.amax}) {
      (*t)->address += static_cast<uintptr_t>(number) * 4096;
    }
    return r;
  };
  Error error;
  EXPECT_EQ(check_pair(part(0), part(1), error), FASTNORM_OK)
      << "sharing the global scale: " << error.text;
  for (auto tensor : {&Request::quantized, &Request::scale, &Request::amax}) {
    Request b = part(1);
    (b.*tensor)->address -= 4096;
    EXPECT_EQ(check_pair(part(0), b, error), FASTNORM_ERROR_LAYOUT);
  }
  Request b = part(1);
  b.global_scale->address = part(0).amax->address;
  EXPECT_EQ(check_pair(part(0), b, error), FASTNORM_ERROR_LAYOUT) << "read here, written there";
}

}  // namespace
}  // namespace fastnorm::test
