/* Norm with stages through the C ABI: results computed by hand, groups as rows, statistics of two
 * devices, quantised groups, in place, queries and refusals. */
#include <math.h>

#include "api/api_test.h"
#include "api/call.h"

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
  fastnorm_norm_args* const args = NORM("gate_act=sigmoid x,gate,y=f32[1,4]", row, g, y);
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(y[0] == 3 * rstd * 0.5f && y[1] == 4 * rstd && y[2] == 0 && y[3] == 0);
  change(args, "gate_act=silu");
  row[3] = 5; /* -0 times anything finite is a zero, not NaN */
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(y[0] == 0 && y[1] > 0 && y[3] == 0 && signbit(y[3]));
  change(args, "gate=null gate_act=identity activation=sigmoid");
  row[2] = 0;
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(y[2] == 0.5f && y[0] > 0.5f && y[0] < 1);
}

/* The gate before the norm gives the result of a row that was gated before the call. */
static void before(fastnorm_context* context) {
  float gated[kRows * kN], wanted[kRows * kN], y[kRows * kN];
  fastnorm_norm_args* const args = NORM("eps=1e-05 x,y=f32[3,96]", gated, wanted);
  int i;
  reset();
  for (i = 0; i < kRows * kN; ++i) gated[i] = x[i] * gate[i];
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  change(args, "x,y,gate=f32[3,96] gate_position=before_norm", x, y, gate);
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(memcmp(y, wanted, sizeof y) == 0);
}

/* Groups are the rows of a view, except for the scales, which cover the whole row. */
static void groups(fastnorm_context* context) {
  float y[kRows * kN], wanted[kRows * kN], rstd[kRows * kGroups], wanted_rstd[kRows * kGroups];
  uint8_t codes[kRows * kN];
  float scale[kRows];
  int r, i;
  fastnorm_norm_args* const args =
      NORM("eps=1e-05 x,y=f32[9,32] weight=f32[32] rstd=f32[9]", x, wanted, weight, wanted_rstd);
  reset();
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  change(args,
         "group_size=32 x,y=f32[3,96] rstd=f32[3,3] quant.scheme=per_row "
         "quant.quantized=f8_e4m3fn[3,96] quant.scale=f32[3]",
         x, y, rstd, codes, scale);
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(memcmp(y, wanted, sizeof y) == 0 && memcmp(rstd, wanted_rstd, sizeof rstd) == 0);
  for (r = 0; r < kRows; ++r) {
    float most = 0;
    for (i = 0; i < kN; ++i) most = fmaxf(most, fabsf(y[r * kN + i]));
    CHECK(scale[r] == most / 448);
  }
  /* A weight for every column differs from one for every group. */
  change(args, "weight.shape=[96]");
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(memcmp(y, wanted, kGroup * 4) == 0);
  CHECK(memcmp(y + kGroup, wanted + kGroup, kGroup * 4) != 0);
}

/* Two halves of each row give their sums. A second call takes the statistic of both. */
static void split(fastnorm_context* context) {
  enum { kHalf = kN / 2 };
  float sums[2][kRows], rstd[kRows], y[kRows * kN], wanted[kRows * kN];
  const fastnorm_norm_args* args;
  int half, r, i;
  double worst = 0;
  reset();
  for (half = 0; half < 2; ++half) {
    args = NORM("x=f32[3,48] x.strides=[96,1] sumsq=f32[3]", x + half * kHalf, sums[half]);
    CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  }
  for (r = 0; r < kRows; ++r) rstd[r] = 1 / sqrtf((sums[0][r] + sums[1][r]) / kN + 1e-5f);
  for (half = 0; half < 2; ++half) {
    args = NORM("x,y=f32[3,48] x,y.strides=[96,1] rstd_in=f32[3]", x + half * kHalf,
                y + half * kHalf, rstd);
    CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  }
  for (r = 0; r < kRows; ++r) {
    for (i = 0; i < kN; ++i) CHECK(y[r * kN + i] == x[r * kN + i] * rstd[r]);
  }
  args = NORM("eps=1e-05 x,y=f32[3,96]", x, wanted);
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  for (i = 0; i < kRows * kN; ++i) worst = fmax(worst, fabs((double)y[i] - (double)wanted[i]));
  CHECK(worst < 1e-6);
}

/* y over the gate, and over x, has the same values as elsewhere. */
static void in_place(fastnorm_context* context) {
  float y[kRows * kN];
  fastnorm_norm_args* const args = NORM("eps=1e-05 gate_act=silu x,gate,y=f32[3,96]", x, gate, y);
  reset();
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  change(args, "y.address=gate");
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(memcmp(gate, y, sizeof y) == 0);
  reset();
  change(args, "y.address=x");
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
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
  static const char* const kinds[] = {"branch_kind=rms", "branch_kind=layer"};
  float rstd[2][kRows], half = 0.5f;
  fastnorm_norm_args* args;
  int kind;
  random_brains(in, kRows * kN, 1);
  random_brains(residual, kRows * kN, 1000);
  random_brains(w1, kN, 2000);
  random_brains(w2, kN, 3000);
  for (kind = 0; kind < 2; ++kind) {
    args = NORM("eps=0.001 weight_offset=1 x,y=bf16[3,96] weight=bf16[96] rstd=f32[3]", in, branch,
                w1, rstd[0]);
    change(args, kinds[kind] + strlen("branch_"));
    CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
    args = NORM(
        "eps=1e-06 residual_rounding=round_before_statistics x,residual,y,residual_out=bf16[3,96] "
        "weight=bf16[96]",
        branch, residual, y[0], sum[0], w2);
    CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
    change(args,
           "branch_norm,branch_rounded,branch_weight_offset=1 branch_eps=0.001 "
           "x,y,residual_out=bf16[3,96] branch_weight=bf16[96] branch_rstd=f32[3]",
           in, y[1], sum[1], w1, rstd[1]);
    change(args, kinds[kind]);
    CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
    CHECK(memcmp(y[0], y[1], sizeof y[0]) == 0 && memcmp(sum[0], sum[1], sizeof sum[0]) == 0);
    CHECK(memcmp(rstd[0], rstd[1], sizeof rstd[0]) == 0);
    change(args, "flags=0x10 alpha=1");
    CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
    CHECK(memcmp(sum[0], sum[1], sizeof sum[0]) == 0);
    change(args, "alpha=0.25");
    CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
    CHECK(memcmp(sum[0], sum[1], sizeof sum[0]) != 0);
    /* ReZero's start: a factor of 0 leaves the residual. */
    change(args, "alpha=0");
    CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
    CHECK(memcmp(residual, sum[1], sizeof sum[1]) == 0);
    change(args, "flags=0 sum_scale=f32[1]", &half);
    CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
    CHECK(memcmp(sum[0], sum[1], sizeof sum[0]) != 0);
  }
}

/* 3 * 2 + 1, then times 1 / 2. */
static void scaled_sum(fastnorm_context* context) {
  float in[2] = {3, 5}, residual[2] = {1, -10}, sum[2], y[2], half = 0.5f;
  fastnorm_norm_args* const args =
      NORM("eps=1 flags=0x10 alpha=2 x,residual,residual_out,y=f32[1,2]", in, residual, sum, y);
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(sum[0] == 7 && sum[1] == 0 && y[1] == 0); /* u = -residual cancels */
  change(args, "sum_scale=f32[1]", &half);
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(sum[0] == 3.5f && sum[1] == 0);
  change(args, "sum_scale=null alpha=0");
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(sum[0] == 1 && sum[1] == -10);
}

static void query_and_refusals(fastnorm_context* context) {
  float y[kRows * kN];
  fastnorm_info info = empty_info();
  fastnorm_norm_args* const args = NORM("x,gate,y=f32[3,96]", x, gate, y);
  const fastnorm_norm_args* two[2];
  reset();
  CHECK_OK(fastnorm_norm_query(context, args, &info));
  CHECK(strcmp(info.kernel, "f32 rms stages") == 0 && info.workspace_bytes == 0);
  CHECK(info.bytes_read == 2 * sizeof x && info.bytes_written == sizeof y && info.launches == 1);
  CHECK_OK(fastnorm_norm_prepare(context, args));
  two[0] = two[1] = args;
  CHECK_STATUS(fastnorm_norm_many(context, two, 2, NULL, 0, NULL), FASTNORM_ERROR_LAYOUT);
  CHECK_OK(fastnorm_norm_many(context, two, 1, NULL, 0, NULL));
  y[0] = 77;
  change(args, "group_size=36");
  CHECK_STATUS(fastnorm_norm(context, args, NULL, 0, NULL), FASTNORM_ERROR_SHAPE);
  CHECK(y[0] == 77);
}

/* What a GPU would run, without one. */
static void on_a_gpu(void) {
  const fastnorm_device device = {FASTNORM_DEVICE_CUDA, 0};
  fastnorm_context_options options = empty_options();
  fastnorm_context* context = NULL;
  fastnorm_info info = empty_info();
  fastnorm_norm_args* const args = dry_call_of("norm device=cuda:0 x,y,gate=bf16[4,64]");
  options.flags = FASTNORM_CONTEXT_DRY_RUN;
  options.dry_run_capability = 90;
  if (!CHECK_OK(fastnorm_context_create(device, &options, &context))) return;
  CHECK_OK(fastnorm_norm_query(context, args, &info));
  CHECK(strcmp(info.kernel, "bf16 gated 8x1") == 0 && info.launches == 1);
  CHECK(info.blocks == 1 && info.rows_per_block == 16 && info.workspace_bytes == 0);
  CHECK(info.bytes_read == 2 * 4 * 64 * 2 && info.bytes_written == 4 * 64 * 2);
  CHECK(strncmp(info.variant, "V(kGated, ", 10) == 0 && info.choice[0] == '\0');
  CHECK_OK(fastnorm_norm_prepare(context, args));
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  change(args, "activation=silu");
  CHECK_OK(fastnorm_norm_query(context, args, &info));
  CHECK(strcmp(info.kernel, "bf16 stages 32xstream") == 0 && info.rows_per_block == 4);
  change(args, "activation=identity gate=null");
  CHECK_OK(fastnorm_norm_query(context, args, &info));
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
