/* Norm with a gated residual and a modulation (adaLN) through the C ABI: results computed by hand,
 * views of one buffer of six modulators, tables, an index, the chain in bf16, and refusals. */
#include <math.h>

#include "api/api_test.h"

enum { kBatch = 2, kTokens = 3, kRows = kBatch * kTokens, kN = 40, kChunks = 6 };

static float x[kRows * kN], residual[kRows * kN], buffer[kBatch * kChunks * kN];

static void reset(void) {
  fill_random(x, kRows * kN, 21);
  fill_random(residual, kRows * kN, 22);
  fill_random(buffer, kBatch * kChunks * kN, 23);
}

/* x of [batch, tokens, n]. */
static const fastnorm_tensor* make_batch(tensor_of* out, float* data) {
  const int64_t shape[] = {kBatch, kTokens, kN};
  return make_tensor(out, data, FASTNORM_DTYPE_F32, 3, shape);
}

/* One of the six modulators of each sample: [batch, 1, n] in [batch, 6 n]. */
static const fastnorm_tensor* make_chunk(tensor_of* out, int chunk) {
  const int64_t shape[] = {kBatch, 1, kN};
  make_tensor(out, buffer + chunk * kN, FASTNORM_DTYPE_F32, 3, shape);
  out->strides[0] = kChunks * kN, out->strides[1] = 12345, out->strides[2] = 1;
  out->tensor.strides = out->strides;
  return &out->tensor;
}

static float chunk_at(int row, int chunk, int i) {
  return buffer[(row / kTokens * kChunks + chunk) * kN + i];
}

/* rstd is 1 / 2.5. */
static void by_hand(fastnorm_context* context) {
  float row[4] = {3, 4, 0, 0}, scale[4] = {1, -1, 7, 0}, shift[4] = {0, 0.5f, 2, -3}, y[4];
  float all = 3, table[4] = {-1, 1, 0, -3};
  const float t = 3 * (1 / 2.5f), u = 4 * (1 / 2.5f);
  tensor_of tx, ts, th, ty, tt;
  fastnorm_norm_args args = empty_args();
  args.x = make_rows(&tx, row, FASTNORM_DTYPE_F32, 1, 4);
  args.y = make_rows(&ty, y, FASTNORM_DTYPE_F32, 1, 4);
  args.modulation_scale = make_rows(&ts, scale, FASTNORM_DTYPE_F32, 1, 4);
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  CHECK(y[0] == 2 * t && y[1] == 0 && y[2] == 0 && y[3] == 0);
  args.modulation_shift = make_vector(&th, shift, FASTNORM_DTYPE_F32, 4);
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  CHECK(y[0] == 2 * t && y[1] == 0.5f && y[2] == 2 && y[3] == -3);
  args.modulation_scale = make_vector(&ts, &all, FASTNORM_DTYPE_F32, 1);
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  CHECK(y[0] == 4 * t && y[1] == fmaf(u, 4, 0.5f) && y[2] == 2 && y[3] == -3);
  args.scale_table = make_vector(&tt, table, FASTNORM_DTYPE_F32, 4);
  args.flags = FASTNORM_NORM_MODULATION_PLAIN_SCALE;
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  CHECK(y[0] == 2 * t && y[1] == fmaf(u, 4, 0.5f) && y[2] == 2 && y[3] == -3);
  args.scale_table = args.modulation_scale = NULL;
  args.flags = 0;
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  CHECK(y[0] == t && y[1] == u + 0.5f && y[2] == 2 && y[3] == -3);
}

/* A gated residual, then the modulation, with views of chunk(6); the same by an index. */
static void diffusion_block(fastnorm_context* context) {
  float sum[kRows * kN], y[kRows * kN], z[kRows * kN], again[kRows * kN];
  int32_t index[kRows];
  tensor_of tx, tr, tg, tc, th, ts, ty, ti;
  const int64_t rows[] = {kBatch, kTokens}, modulators[] = {kBatch, kN};
  tensor_of* const views[] = {&tg, &tc, &th};
  int r, i;
  fastnorm_norm_args args = empty_args();
  reset();
  args.kind = FASTNORM_NORM_LAYER;
  args.eps = 1e-6f;
  args.x = make_batch(&tx, x);
  args.residual = make_batch(&tr, residual);
  args.residual_out = make_batch(&ts, sum);
  args.y = make_batch(&ty, y);
  args.residual_gate = make_chunk(&tg, 2);
  args.modulation_scale = make_chunk(&tc, 4);
  args.modulation_shift = make_chunk(&th, 3);
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  for (r = 0; r < kRows; ++r) {
    for (i = 0; i < kN; ++i) {
      const int at = r * kN + i;
      CHECK(sum[at] == fmaf(x[at], chunk_at(r, 2, i), residual[at]));
    }
  }
  /* The norm of the sum, alone. */
  args = empty_args();
  args.kind = FASTNORM_NORM_LAYER;
  args.eps = 1e-6f;
  args.x = make_batch(&tx, sum);
  args.y = make_batch(&ty, z);
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
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
  args.x = make_batch(&tx, z);
  args.y = args.x;
  args.residual = args.residual_out = make_batch(&tr, again);
  args.modulation_index = make_tensor(&ti, index, FASTNORM_DTYPE_I32, 2, rows);
  for (i = 0; i < 3; ++i) {
    static const int chunks[] = {2, 4, 3};
    make_tensor(views[i], buffer + chunks[i] * kN, FASTNORM_DTYPE_F32, 2, modulators);
    views[i]->strides[0] = kChunks * kN, views[i]->strides[1] = 1;
    views[i]->tensor.strides = views[i]->strides;
  }
  args.residual_gate = &tg.tensor;
  args.modulation_scale = &tc.tensor;
  args.modulation_shift = &th.tensor;
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  CHECK(memcmp(again, sum, sizeof sum) == 0 && memcmp(z, y, sizeof y) == 0);
  /* A number that is none writes nothing. */
  index[4] = kBatch;
  CHECK_STATUS(fastnorm_norm(context, &args, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("modulation_index of row 4 is 2; required: 0 to 1, the rows of the modulators");
  CHECK(memcmp(again, sum, sizeof sum) == 0 && memcmp(z, y, sizeof y) == 0);
}

/* norm(x) * tanh(gate) + residual: large gates are 1 and -1, and alpha multiplies them. */
static void gated_branch(fastnorm_context* context) {
  float in[2] = {3, 4}, r[2] = {10, 20}, gate[2] = {50, -50}, sum[2], y[2];
  const float rstd = 1 / sqrtf(12.5f);
  tensor_of tx, tr, tg, ts, ty;
  fastnorm_norm_args args = empty_args();
  args.eps = 1;
  args.x = make_rows(&tx, in, FASTNORM_DTYPE_F32, 1, 2);
  args.residual = make_rows(&tr, r, FASTNORM_DTYPE_F32, 1, 2);
  args.residual_out = make_rows(&ts, sum, FASTNORM_DTYPE_F32, 1, 2);
  args.y = make_rows(&ty, y, FASTNORM_DTYPE_F32, 1, 2);
  args.residual_gate = make_vector(&tg, gate, FASTNORM_DTYPE_F32, 2);
  args.residual_gate_act = FASTNORM_ACTIVATION_TANH;
  args.branch_norm = 1;
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  CHECK(sum[0] == 3 * rstd + 10 && sum[1] == fmaf(4 * rstd, -1, 20));
  args.alpha = 2;
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
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
  tensor_of tx, tc, th, ty, tt;
  int i;
  fastnorm_norm_args args = empty_args();
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
  args.eps = 1e-6f;
  args.x = make_rows(&tx, in, FASTNORM_DTYPE_BF16, kRows, kN);
  args.y = make_rows(&ty, z, FASTNORM_DTYPE_BF16, kRows, kN);
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  args.y = make_rows(&ty, y, FASTNORM_DTYPE_BF16, kRows, kN);
  args.modulation_scale = make_vector(&tc, scale, FASTNORM_DTYPE_BF16, kN);
  args.scale_table = make_vector(&tt, table, FASTNORM_DTYPE_F32, kN);
  args.modulation_shift = make_vector(&th, shift, FASTNORM_DTYPE_BF16, kN);
  args.modulation_rounding = FASTNORM_MODULATION_EVERY_STEP;
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  for (i = 0; i < kRows * kN; ++i) {
    const float k = brain(1 + brain(from_brain(scale[i % kN]) + table[i % kN]));
    CHECK(from_brain(y[i]) == brain(brain(from_brain(z[i]) * k) + from_brain(shift[i % kN])));
  }
}

static void query_and_refusals(fastnorm_context* context) {
  float y[kRows * kN];
  tensor_of tx, tc, ty;
  fastnorm_info info = empty_info();
  fastnorm_norm_args args = empty_args();
  reset();
  args.x = make_batch(&tx, x);
  args.y = make_batch(&ty, y);
  args.modulation_scale = make_chunk(&tc, 0);
  CHECK_OK(fastnorm_norm_query(context, &args, &info));
  CHECK(strcmp(info.kernel, "f32 rms stages") == 0);
  CHECK(info.bytes_read == sizeof x + kBatch * kN * 4 && info.bytes_written == sizeof y);
  y[0] = 77;
  args.modulation_scale = NULL;
  args.scale_table = make_vector(&tc, buffer, FASTNORM_DTYPE_F32, kN);
  CHECK_STATUS(fastnorm_norm(context, &args, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("scale_table is given and modulation_scale is NULL; required: both, or no table");
  args.modulation_scale = args.scale_table;
  args.scale_table = NULL;
  args.y = args.modulation_scale;
  CHECK_STATUS(fastnorm_norm(context, &args, NULL, 0, NULL), FASTNORM_ERROR_SHAPE);
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
