/* Norm with a gated residual and a modulation (adaLN) through the C ABI: results computed by hand,
 * views of one buffer of six modulators, tables, an index, the chain in bf16, and refusals. */
#include <math.h>

#include "api/api_test.h"
#include "api/call.h"

enum { kBatch = 2, kTokens = 3, kRows = kBatch * kTokens, kN = 40, kChunks = 6 };

static float x[kRows * kN], residual[kRows * kN], buffer[kBatch * kChunks * kN];

static void reset(void) {
  fill_random(x, kRows * kN, 21);
  fill_random(residual, kRows * kN, 22);
  fill_random(buffer, kBatch * kChunks * kN, 23);
}

/* Views of one of six modulators of each sample: [batch, 1, n] in [batch, 6 n]. */
static float* chunk(int number) { return buffer + number * kN; }

static float chunk_at(int row, int chunk, int i) {
  return buffer[(row / kTokens * kChunks + chunk) * kN + i];
}

/* rstd is 1 / 2.5. */
static void by_hand(fastnorm_context* context) {
  float row[4] = {3, 4, 0, 0}, scale[4] = {1, -1, 7, 0}, shift[4] = {0, 0.5f, 2, -3}, y[4];
  float all[1] = {3}, table[4] = {-1, 1, 0, -3};
  const float t = 3 * (1 / 2.5f), u = 4 * (1 / 2.5f);
  fastnorm_norm_args* const args = NORM("x,y,modulation_scale=f32[1,4]", row, y, scale);
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(y[0] == 2 * t && y[1] == 0 && y[2] == 0 && y[3] == 0);
  change(args, "modulation_shift=f32[4]", shift);
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(y[0] == 2 * t && y[1] == 0.5f && y[2] == 2 && y[3] == -3);
  change(args, "modulation_scale=f32[1]", all);
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(y[0] == 4 * t && y[1] == fmaf(u, 4, 0.5f) && y[2] == 2 && y[3] == -3);
  change(args, "flags=0x8 scale_table=f32[4]", table); /* a plain scale */
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(y[0] == 2 * t && y[1] == fmaf(u, 4, 0.5f) && y[2] == 2 && y[3] == -3);
  change(args, "flags=0 scale_table,modulation_scale=null");
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(y[0] == t && y[1] == u + 0.5f && y[2] == 2 && y[3] == -3);
}

/* A gated residual, then the modulation, with views of chunk(6); the same by an index. */
static void diffusion_block(fastnorm_context* context) {
  float sum[kRows * kN], y[kRows * kN], z[kRows * kN], again[kRows * kN];
  int32_t index[kRows];
  int r, i;
  fastnorm_norm_args* const args = NORM(
      "kind=layer eps=1e-06 x,residual,residual_out,y=f32[2,3,40] "
      "residual_gate,modulation_scale,modulation_shift=f32[2,1,40] "
      "residual_gate,modulation_scale,modulation_shift.strides=[240,12345,1]",
      x, residual, sum, y, chunk(2), chunk(4), chunk(3));
  reset();
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  for (r = 0; r < kRows; ++r) {
    for (i = 0; i < kN; ++i) {
      const int at = r * kN + i;
      CHECK(sum[at] == fmaf(x[at], chunk_at(r, 2, i), residual[at]));
    }
  }
  /* The norm of the sum, alone. */
  CHECK_OK(
      fastnorm_norm(context, NORM("kind=layer eps=1e-06 x,y=f32[2,3,40]", sum, z), NULL, 0, NULL));
  for (r = 0; r < kRows; ++r) {
    for (i = 0; i < kN; ++i) {
      const int at = r * kN + i;
      CHECK(y[at] == fmaf(z[at], 1 + chunk_at(r, 4, i), chunk_at(r, 3, i)));
    }
  }
  /* Rows of [batch, n] by number. In place, too. */
  for (r = 0; r < kRows; ++r) index[r] = r / kTokens;
  memcpy(again, residual, sizeof again);
  memcpy(z, x, sizeof z);
  change(args,
         "x,y,residual,residual_out=f32[2,3,40] modulation_index=i32[2,3] "
         "residual_gate,modulation_scale,modulation_shift.shape=[2,40] "
         "residual_gate,modulation_scale,modulation_shift.strides=[240,1]",
         z, z, again, again, index);
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(memcmp(again, sum, sizeof sum) == 0 && memcmp(z, y, sizeof y) == 0);
  /* A number that is none writes nothing. */
  index[4] = kBatch;
  CHECK_STATUS(fastnorm_norm(context, args, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("modulation_index of row 4 is 2; required: 0 to 1, the rows of the modulators");
  CHECK(memcmp(again, sum, sizeof sum) == 0 && memcmp(z, y, sizeof y) == 0);
}

/* norm(x) * tanh(gate) + residual: large gates are 1 and -1, and alpha multiplies them. */
static void gated_branch(fastnorm_context* context) {
  float in[2] = {3, 4}, r[2] = {10, 20}, gate[2] = {50, -50}, sum[2], y[2];
  const float rstd = 1 / sqrtf(12.5f);
  fastnorm_norm_args* const args = NORM(
      "eps=1 branch_norm=1 residual_gate_act=tanh x,residual,residual_out,y=f32[1,2] "
      "residual_gate=f32[2]",
      in, r, sum, y, gate);
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(sum[0] == 3 * rstd + 10 && sum[1] == fmaf(4 * rstd, -1, 20));
  change(args, "flags=0x10 alpha=2");
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(sum[0] == fmaf(3 * rstd, 2, 10) && sum[1] == fmaf(4 * rstd, -2, 20));
}

/* A value of bf16 by rounding to nearest even. */
static float brain(float v) {
  uint32_t bits;
  memcpy(&bits, &v, sizeof bits);
  bits += 0x7fffu + (bits >> 16 & 1);
  bits &= 0xffff0000u;
  memcpy(&v, &bits, sizeof v);
  return v;
}

static float from_brain(uint16_t b) {
  const uint32_t bits = (uint32_t)b << 16;
  float v;
  memcpy(&v, &bits, sizeof v);
  return v;
}

/* With EVERY_STEP the modulation is a chain of operations in bf16. */
static void chain(fastnorm_context* context) {
  static uint16_t in[kRows * kN], scale[kN], shift[kN], y[kRows * kN], z[kRows * kN];
  float table[kN];
  int i;
  fastnorm_norm_args* const args = NORM("eps=1e-06 x,y=bf16[6,40]", in, z);
  reset();
  for (i = 0; i < kRows * kN; ++i) {
    const float v = brain(x[i]);
    memcpy(&in[i], (const char*)&v + 2, 2);
  }
  for (i = 0; i < kN; ++i) {
    const float s = brain(residual[i]), h = brain(residual[kN + i]);
    memcpy(&scale[i], (const char*)&s + 2, 2);
    memcpy(&shift[i], (const char*)&h + 2, 2);
    table[i] = buffer[i];
  }
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  change(args,
         "modulation_rounding=every_step y=bf16[6,40] modulation_scale=bf16[40] "
         "scale_table=f32[40] modulation_shift=bf16[40]",
         y, scale, table, shift);
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  for (i = 0; i < kRows * kN; ++i) {
    const float k = brain(1 + brain(from_brain(scale[i % kN]) + table[i % kN]));
    CHECK(from_brain(y[i]) == brain(brain(from_brain(z[i]) * k) + from_brain(shift[i % kN])));
  }
}

static void query_and_refusals(fastnorm_context* context) {
  float y[kRows * kN];
  fastnorm_info info = empty_info();
  fastnorm_norm_args* const args =
      NORM("x,y=f32[2,3,40] modulation_scale=f32[2,1,40] modulation_scale.strides=[240,12345,1]", x,
           y, chunk(0));
  reset();
  CHECK_OK(fastnorm_norm_query(context, args, &info));
  CHECK(strcmp(info.kernel, "f32 rms stages") == 0);
  CHECK(info.bytes_read == sizeof x + kBatch * kN * 4 && info.bytes_written == sizeof y);
  y[0] = 77;
  change(args, "modulation_scale=f32[40] y.address=modulation_scale y.shape=[40]", buffer);
  CHECK_STATUS(fastnorm_norm(context, args, NULL, 0, NULL), FASTNORM_ERROR_SHAPE);
  CHECK(y[0] == 77);
}

void test_norm_modulation(void) {
  fastnorm_context* context = cpu_context(NULL);
  by_hand(context);
  diffusion_block(context);
  gated_branch(context);
  chain(context);
  query_and_refusals(context);
  fastnorm_context_destroy(context);
}
