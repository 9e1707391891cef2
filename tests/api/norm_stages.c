/* Norm with stages through the C ABI: results computed by hand, groups as rows, statistics of two
 * devices, quantised groups, in place, queries and refusals. */
#include <math.h>

#include "api/api_test.h"

enum { kRows = 3, kN = 96, kGroup = 32, kGroups = kN / kGroup };

static float x[kRows * kN], gate[kRows * kN], weight[kN];

static void reset(void) {
  fill_random(x, kRows * kN, 11);
  fill_random(gate, kRows * kN, 12);
  fill_random(weight, kN, 13);
}

/* sigmoid(0) is 1/2 and silu(0) is 0. Both are exact for gates of large magnitude. */
static void by_hand(fastnorm_context* context) {
  float row[4] = {3, 4, 0, 0}, g[4] = {0, 200, -200, -INFINITY}, y[4]; /* rstd is 1 / 2.5 */
  const float rstd = 1 / 2.5f;
  tensor_of tx, tg, ty;
  fastnorm_norm_args args = empty_args();
  args.x = make_rows(&tx, row, FASTNORM_DTYPE_F32, 1, 4);
  args.gate = make_rows(&tg, g, FASTNORM_DTYPE_F32, 1, 4);
  args.y = make_rows(&ty, y, FASTNORM_DTYPE_F32, 1, 4);
  args.gate_act = FASTNORM_ACTIVATION_SIGMOID;
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  CHECK(y[0] == 3 * rstd * 0.5f && y[1] == 4 * rstd && y[2] == 0 && y[3] == 0);
  args.gate_act = FASTNORM_ACTIVATION_SILU;
  row[3] = 5; /* -0 times anything finite is a zero, not NaN */
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  CHECK(y[0] == 0 && y[1] > 0 && y[3] == 0 && signbit(y[3]));
  args.gate = NULL;
  args.gate_act = FASTNORM_ACTIVATION_IDENTITY;
  args.activation = FASTNORM_ACTIVATION_SIGMOID;
  row[2] = 0;
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  CHECK(y[2] == 0.5f && y[0] > 0.5f && y[0] < 1);
}

/* The gate before the norm gives the result of a row that was gated before the call. */
static void before(fastnorm_context* context) {
  float gated[kRows * kN], wanted[kRows * kN], y[kRows * kN];
  tensor_of tx, tg, ty;
  int i;
  fastnorm_norm_args args = empty_args();
  reset();
  for (i = 0; i < kRows * kN; ++i) gated[i] = x[i] * gate[i];
  args.eps = 1e-5f;
  args.x = make_rows(&tx, gated, FASTNORM_DTYPE_F32, kRows, kN);
  args.y = make_rows(&ty, wanted, FASTNORM_DTYPE_F32, kRows, kN);
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  args.x = make_rows(&tx, x, FASTNORM_DTYPE_F32, kRows, kN);
  args.y = make_rows(&ty, y, FASTNORM_DTYPE_F32, kRows, kN);
  args.gate = make_rows(&tg, gate, FASTNORM_DTYPE_F32, kRows, kN);
  args.gate_position = FASTNORM_GATE_BEFORE_NORM;
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  CHECK(memcmp(y, wanted, sizeof y) == 0);
}

/* Groups are the rows of a view, except for the scales, which cover the whole row. */
static void groups(fastnorm_context* context) {
  float y[kRows * kN], wanted[kRows * kN], rstd[kRows * kGroups], wanted_rstd[kRows * kGroups];
  uint8_t codes[kRows * kN];
  float scale[kRows];
  tensor_of tx, ty, tw, tr, tc, ts;
  const int64_t statistics[2] = {kRows, kGroups};
  int r, i;
  fastnorm_norm_args args = empty_args();
  reset();
  args.eps = 1e-5f;
  args.x = make_rows(&tx, x, FASTNORM_DTYPE_F32, kRows * kGroups, kGroup);
  args.y = make_rows(&ty, wanted, FASTNORM_DTYPE_F32, kRows * kGroups, kGroup);
  args.weight = make_vector(&tw, weight, FASTNORM_DTYPE_F32, kGroup);
  args.rstd = make_vector(&tr, wanted_rstd, FASTNORM_DTYPE_F32, kRows * kGroups);
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  args.x = make_rows(&tx, x, FASTNORM_DTYPE_F32, kRows, kN);
  args.y = make_rows(&ty, y, FASTNORM_DTYPE_F32, kRows, kN);
  args.rstd = make_tensor(&tr, rstd, FASTNORM_DTYPE_F32, 2, statistics);
  args.group_size = kGroup;
  args.quant_scheme = FASTNORM_QUANT_PER_ROW;
  args.quantized = make_rows(&tc, codes, FASTNORM_DTYPE_F8_E4M3FN, kRows, kN);
  args.scale = make_vector(&ts, scale, FASTNORM_DTYPE_F32, kRows);
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  CHECK(memcmp(y, wanted, sizeof y) == 0 && memcmp(rstd, wanted_rstd, sizeof rstd) == 0);
  for (r = 0; r < kRows; ++r) {
    float most = 0;
    for (i = 0; i < kN; ++i) most = fmaxf(most, fabsf(y[r * kN + i]));
    CHECK(scale[r] == most / 448);
  }
  /* A weight for every column differs from one for every group. */
  args.weight = make_vector(&tw, weight, FASTNORM_DTYPE_F32, kN);
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  CHECK(memcmp(y, wanted, kGroup * 4) == 0);
  CHECK(memcmp(y + kGroup, wanted + kGroup, kGroup * 4) != 0);
}

/* Two halves of each row give their sums. A second call takes the statistic of both. */
static void split(fastnorm_context* context) {
  enum { kHalf = kN / 2 };
  float sums[2][kRows], rstd[kRows], y[kRows * kN], wanted[kRows * kN];
  tensor_of tx, ty, ts;
  int half, r, i;
  double worst = 0;
  fastnorm_norm_args args = empty_args();
  reset();
  for (half = 0; half < 2; ++half) {
    args.x = make_rows(&tx, x + half * kHalf, FASTNORM_DTYPE_F32, kRows, kHalf);
    tx.strides[0] = kN, tx.strides[1] = 1, tx.tensor.strides = tx.strides;
    args.sumsq = make_vector(&ts, sums[half], FASTNORM_DTYPE_F32, kRows);
    CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  }
  for (r = 0; r < kRows; ++r) rstd[r] = 1 / sqrtf((sums[0][r] + sums[1][r]) / kN + 1e-5f);
  args.sumsq = NULL;
  args.rstd_in = make_vector(&ts, rstd, FASTNORM_DTYPE_F32, kRows);
  for (half = 0; half < 2; ++half) {
    args.x = make_rows(&tx, x + half * kHalf, FASTNORM_DTYPE_F32, kRows, kHalf);
    args.y = make_rows(&ty, y + half * kHalf, FASTNORM_DTYPE_F32, kRows, kHalf);
    tx.strides[0] = ty.strides[0] = kN, tx.strides[1] = ty.strides[1] = 1;
    tx.tensor.strides = tx.strides, ty.tensor.strides = ty.strides;
    CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  }
  for (r = 0; r < kRows; ++r) {
    for (i = 0; i < kN; ++i) CHECK(y[r * kN + i] == x[r * kN + i] * rstd[r]);
  }
  args = empty_args();
  args.eps = 1e-5f;
  args.x = make_rows(&tx, x, FASTNORM_DTYPE_F32, kRows, kN);
  args.y = make_rows(&ty, wanted, FASTNORM_DTYPE_F32, kRows, kN);
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  for (i = 0; i < kRows * kN; ++i) worst = fmax(worst, fabs((double)y[i] - (double)wanted[i]));
  CHECK(worst < 1e-6);
}

/* y over the gate, and over x, has the same values as elsewhere. */
static void in_place(fastnorm_context* context) {
  float y[kRows * kN];
  tensor_of tx, tg, ty;
  fastnorm_norm_args args = empty_args();
  reset();
  args.eps = 1e-5f;
  args.x = make_rows(&tx, x, FASTNORM_DTYPE_F32, kRows, kN);
  args.gate = make_rows(&tg, gate, FASTNORM_DTYPE_F32, kRows, kN);
  args.gate_act = FASTNORM_ACTIVATION_SILU;
  args.y = make_rows(&ty, y, FASTNORM_DTYPE_F32, kRows, kN);
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  args.y = args.gate;
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  CHECK(memcmp(gate, y, sizeof y) == 0);
  reset();
  args.y = args.x;
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  CHECK(memcmp(x, y, sizeof y) == 0);
}

static void random_brains(uint16_t* to, size_t count, uint32_t seed) {
  float value;
  uint32_t bits;
  size_t i;
  for (i = 0; i < count; ++i) {
    fill_random(&value, 1, seed + (uint32_t)i);
    memcpy(&bits, &value, sizeof bits);
    to[i] = (uint16_t)(bits >> 16);
  }
}

/* Post-norm, addition and pre-norm equal two calls, bit for bit. With alpha and sum_scale they do
 * not. */
static void sandwich(fastnorm_context* context) {
  static uint16_t in[kRows * kN], residual[kRows * kN], w1[kN], w2[kN], branch[kRows * kN];
  static uint16_t sum[2][kRows * kN], y[2][kRows * kN];
  static const fastnorm_norm_kind kinds[] = {FASTNORM_NORM_RMS, FASTNORM_NORM_LAYER};
  float rstd[2][kRows], half = 0.5f;
  tensor_of tx, tr, t1, t2, tb, ts, ty, tq, th;
  fastnorm_norm_args args;
  int kind;
  random_brains(in, kRows * kN, 1);
  random_brains(residual, kRows * kN, 1000);
  random_brains(w1, kN, 2000);
  random_brains(w2, kN, 3000);
  for (kind = 0; kind < 2; ++kind) {
    args = empty_args();
    args.kind = kinds[kind];
    args.eps = 1e-3f;
    args.weight_offset = 1;
    args.x = make_rows(&tx, in, FASTNORM_DTYPE_BF16, kRows, kN);
    args.weight = make_vector(&t1, w1, FASTNORM_DTYPE_BF16, kN);
    args.y = make_rows(&tb, branch, FASTNORM_DTYPE_BF16, kRows, kN);
    args.rstd = make_vector(&tq, rstd[0], FASTNORM_DTYPE_F32, kRows);
    CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
    args = empty_args();
    args.eps = 1e-6f;
    args.x = make_rows(&tx, branch, FASTNORM_DTYPE_BF16, kRows, kN);
    args.residual = make_rows(&tr, residual, FASTNORM_DTYPE_BF16, kRows, kN);
    args.residual_rounding = FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS;
    args.weight = make_vector(&t2, w2, FASTNORM_DTYPE_BF16, kN);
    args.y = make_rows(&ty, y[0], FASTNORM_DTYPE_BF16, kRows, kN);
    args.residual_out = make_rows(&ts, sum[0], FASTNORM_DTYPE_BF16, kRows, kN);
    CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
    args.x = make_rows(&tx, in, FASTNORM_DTYPE_BF16, kRows, kN);
    args.y = make_rows(&ty, y[1], FASTNORM_DTYPE_BF16, kRows, kN);
    args.residual_out = make_rows(&ts, sum[1], FASTNORM_DTYPE_BF16, kRows, kN);
    args.branch_norm = args.branch_rounded = 1;
    args.branch_kind = kinds[kind];
    args.branch_eps = 1e-3f;
    args.branch_weight_offset = 1;
    args.branch_weight = make_vector(&t1, w1, FASTNORM_DTYPE_BF16, kN);
    args.branch_rstd = make_vector(&tq, rstd[1], FASTNORM_DTYPE_F32, kRows);
    CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
    CHECK(memcmp(y[0], y[1], sizeof y[0]) == 0 && memcmp(sum[0], sum[1], sizeof sum[0]) == 0);
    CHECK(memcmp(rstd[0], rstd[1], sizeof rstd[0]) == 0);
    args.alpha = 1;
    CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
    CHECK(memcmp(sum[0], sum[1], sizeof sum[0]) == 0);
    args.alpha = 0.25f;
    CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
    CHECK(memcmp(sum[0], sum[1], sizeof sum[0]) != 0);
    args.alpha = 0;
    args.sum_scale = make_vector(&th, &half, FASTNORM_DTYPE_F32, 1);
    CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
    CHECK(memcmp(sum[0], sum[1], sizeof sum[0]) != 0);
  }
}

/* 3 * 2 + 1, then times 1 / 2. */
static void scaled_sum(fastnorm_context* context) {
  float in[2] = {3, 5}, residual[2] = {1, -10}, sum[2], y[2], half = 0.5f;
  tensor_of tx, tr, ts, ty, th;
  fastnorm_norm_args args = empty_args();
  args.eps = 1;
  args.x = make_rows(&tx, in, FASTNORM_DTYPE_F32, 1, 2);
  args.residual = make_rows(&tr, residual, FASTNORM_DTYPE_F32, 1, 2);
  args.residual_out = make_rows(&ts, sum, FASTNORM_DTYPE_F32, 1, 2);
  args.y = make_rows(&ty, y, FASTNORM_DTYPE_F32, 1, 2);
  args.alpha = 2;
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  CHECK(sum[0] == 7 && sum[1] == 0 && y[1] == 0); /* u = -residual cancels */
  args.sum_scale = make_vector(&th, &half, FASTNORM_DTYPE_F32, 1);
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  CHECK(sum[0] == 3.5f && sum[1] == 0);
}

static void query_and_refusals(fastnorm_context* context) {
  float y[kRows * kN];
  tensor_of tx, tg, ty;
  fastnorm_info info = empty_info();
  fastnorm_norm_args args = empty_args();
  const fastnorm_norm_args* two[2];
  reset();
  args.x = make_rows(&tx, x, FASTNORM_DTYPE_F32, kRows, kN);
  args.gate = make_rows(&tg, gate, FASTNORM_DTYPE_F32, kRows, kN);
  args.y = make_rows(&ty, y, FASTNORM_DTYPE_F32, kRows, kN);
  CHECK_OK(fastnorm_norm_query(context, &args, &info));
  CHECK(strcmp(info.kernel, "f32 rms stages") == 0 && info.workspace_bytes == 0);
  CHECK(info.bytes_read == 2 * sizeof x && info.bytes_written == sizeof y && info.launches == 1);
  CHECK_OK(fastnorm_norm_prepare(context, &args));
  two[0] = two[1] = &args;
  CHECK_STATUS(fastnorm_norm_many(context, two, 2, NULL, 0, NULL), FASTNORM_ERROR_LAYOUT);
  CHECK_OK(fastnorm_norm_many(context, two, 1, NULL, 0, NULL));
  y[0] = 77;
  args.group_size = 36;
  CHECK_STATUS(fastnorm_norm(context, &args, NULL, 0, NULL), FASTNORM_ERROR_SHAPE);
  CHECK_TEXT("group_size is 36 and n is 96; required: a divisor of n");
  args.group_size = 0;
  args.gate = args.x;
  CHECK_STATUS(fastnorm_norm(context, &args, NULL, 0, NULL), FASTNORM_ERROR_LAYOUT);
  CHECK_TEXT("overlaps x");
  CHECK(y[0] == 77);
}

/* What a GPU would run, without one. */
static void on_a_gpu(void) {
  const fastnorm_device device = {FASTNORM_DEVICE_CUDA, 0};
  fastnorm_context_options options = empty_options();
  fastnorm_context* context = NULL;
  fastnorm_info info = empty_info();
  tensor_of tx, tg, ty;
  fastnorm_norm_args args = empty_args();
  options.flags = FASTNORM_CONTEXT_DRY_RUN;
  options.dry_run_capability = 90;
  if (!CHECK_OK(fastnorm_context_create(device, &options, &context))) return;
  args.x = make_rows(&tx, (void*)(uintptr_t)0x100000000000u, FASTNORM_DTYPE_BF16, 4, 64);
  args.y = make_rows(&ty, (void*)(uintptr_t)0x200000000000u, FASTNORM_DTYPE_BF16, 4, 64);
  args.gate = make_rows(&tg, (void*)(uintptr_t)0x300000000000u, FASTNORM_DTYPE_BF16, 4, 64);
  tx.tensor.device_type = ty.tensor.device_type = tg.tensor.device_type = FASTNORM_DEVICE_CUDA;
  CHECK_OK(fastnorm_norm_query(context, &args, &info));
  CHECK(strcmp(info.kernel, "bf16 gated 8x1") == 0 && info.launches == 1);
  CHECK(info.blocks == 1 && info.rows_per_block == 16 && info.workspace_bytes == 0);
  CHECK(info.bytes_read == 2 * 4 * 64 * 2 && info.bytes_written == 4 * 64 * 2);
  CHECK(strncmp(info.variant, "V(kGated, ", 10) == 0 && info.choice[0] == '\0');
  CHECK_OK(fastnorm_norm_prepare(context, &args));
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  args.activation = FASTNORM_ACTIVATION_SILU;
  CHECK_OK(fastnorm_norm_query(context, &args, &info));
  CHECK(strcmp(info.kernel, "bf16 stages 32xstream") == 0 && info.rows_per_block == 4);
  args.activation = FASTNORM_ACTIVATION_IDENTITY;
  args.gate = NULL;
  CHECK_OK(fastnorm_norm_query(context, &args, &info));
  fastnorm_context_destroy(context);
}

void test_norm_stages(void) {
  fastnorm_context* context = cpu_context(NULL);
  by_hand(context);
  before(context);
  groups(context);
  split(context);
  in_place(context);
  sandwich(context);
  scaled_sum(context);
  query_and_refusals(context);
  on_a_gpu();
  fastnorm_context_destroy(context);
}
