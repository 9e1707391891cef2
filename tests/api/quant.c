/* Quantised outputs computed by hand. x is 1 (or -1), so the root mean square is 1, and each result
 * is the weight of its row and column. The tests choose the values to be quantised. */
#include <math.h>

#include "api/api_test.h"
#include "api/call.h"

enum { kMost = 1000 * 384, kFill = 0xaa };

static float x_values[kMost], y_values[kMost], z_values[kMost];
static uint8_t codes[kMost + 64];
static union {
  float f32[8192];
  uint8_t bytes[4 * 8192];
} scales;

typedef struct quant_call {
  fastnorm_norm_args* args;
  fastnorm_quant* quant; /* of args */
} quant_call;

/* Rows whose results are z [rows, n]. n must be 2, 3 or 5 times a power of two, so that n * (1 / n)
 * = 1. Codes of u8 and of type x2 are pairs; without a scheme there are none. */
static void make_call(quant_call* c, float* z, int64_t rows, int64_t n, const char* scheme,
                      const char* dtype) {
  const int pairs = strcmp(dtype, "u8") == 0 || strcmp(dtype, "f4_e2m1fn_x2") == 0;
  char line[160];
  int64_t i;
  /* A weight of -0 would lose its sign in weight + weight_offset. So x supplies the sign. */
  for (i = 0; i < rows * n; ++i) x_values[i] = z[i] == 0 && signbit(z[i]) ? -1.0f : 1.0f;
  memset(codes, kFill, sizeof codes);
  memset(&scales, kFill, sizeof scales);
  snprintf(line, sizeof line, "norm x,weight=f32[%d,%d] quant.scheme=%s", (int)rows, (int)n,
           scheme);
  c->args = call_of(line, x_values, z);
  c->quant = (fastnorm_quant*)c->args->quant;
  if (strcmp(scheme, "none") == 0) return;
  snprintf(line, sizeof line, "quant.quantized=%s[%d,%d]", dtype, (int)rows,
           (int)(pairs ? n / 2 : n));
  change(c->args, line, codes);
}

/* Runs the call. The first `count` codes must be these, and the byte after them must not change. */
static void gives(fastnorm_context* context, const quant_call* c, const uint8_t* expected,
                  size_t count, const char* what) {
  size_t i;
  CHECK_OK(fastnorm_norm(context, c->args, NULL, 0, NULL));
  for (i = 0; i < count; ++i) {
    if (codes[i] == expected[i]) continue;
    printf("%s: code %d is 0x%02x, required 0x%02x\n", what, (int)i, codes[i], expected[i]);
  }
  CHECK(memcmp(codes, expected, count) == 0);
  CHECK(codes[count] == kFill);
}
#define GIVES(context, call, expected) gives(context, call, expected, sizeof(expected), #expected)

/* --- static scale --- */

static void tensor_e4m3(fastnorm_context* context) {
  float z[16] = {0,       -0.0f,    2,         1,
                 3.5f,    896,      1000,      -1000, /* halved: 0, 1, 1/2, 1.75, 448, 500 */
                 0x1p-8f, 0x1p-9f,  0x1.8p-8f, 2.125f,
                 2.375f,  INFINITY, -INFINITY, NAN};
  static const uint8_t e4m3[16] = {0x00, 0x80, 0x38, 0x30, 0x3e, 0x7e, 0x7e, 0xfe,
                                   0x01, 0x00, 0x02, 0x38, 0x3a, 0x7e, 0xfe, 0x7f};
  float scale = 2;
  quant_call c;
  make_call(&c, z, 1, 16, "per_tensor", "f8_e4m3fn");
  change(c.args, "quant.scale=f32[1]", &scale);
  GIVES(context, &c, e4m3);
  CHECK(scale == 2);
}

static void tensor_e5m2(fastnorm_context* context) {
  float z[16] = {0,       -0.0f,  1,       1.25f,  57344,    60000,     0x1p-16f, 0x1p-17f,
                 -1.125f, 1.375f, 0.0625f, -60000, INFINITY, -INFINITY, NAN,      0x1.8p-16f};
  static const uint8_t e5m2[16] = {0x00, 0x80, 0x3c, 0x3d, 0x7b, 0x7b, 0x01, 0x00,
                                   0xbc, 0x3e, 0x2c, 0xfb, 0x7b, 0xfb, 0x7f, 0x02};
  float scale = 1;
  quant_call c;
  make_call(&c, z, 1, 16, "per_tensor", "f8_e5m2");
  change(c.args, "quant.scale=f32[1]", &scale);
  GIVES(context, &c, e5m2);
}

static void tensor_i8(fastnorm_context* context) {
  float z[16] = {0,   1,   0.25f, 0.75f, -0.75f,   -0.25f,    63.5f, 64,
                 -64, -65, -63,   1e30f, INFINITY, -INFINITY, NAN,   1.25f};
  static const uint8_t i8[16] = {0,    2,    0,    2,   0xfe, 0,    127, 127, /* 2 z */
                                 0x80, 0x80, 0x82, 127, 127,  0x80, 0,   2};
  float scale = 0.5f;
  quant_call c;
  make_call(&c, z, 1, 16, "per_tensor", "i8");
  change(c.args, "quant.scale=f32[1]", &scale);
  GIVES(context, &c, i8);
}

/* --- rotated rows --- */

/* Two columns of 16 to 128, times a Hadamard matrix. z is 4 in columns 0 and 1, or 0. */
static void rotated(fastnorm_context* context) {
  /* Columns 0 and 1 are (8, 0) after the first step, which spreads over the even columns: 8 / 4. */
  static const uint8_t both[16] = {0x40, 0, 0x40, 0, 0x40, 0, 0x40, 0,
                                   0x40, 0, 0x40, 0, 0x40, 0, 0x40, 0};
  /* With a minus before column 0 they are (0, -8). */
  static const uint8_t minus[16] = {0, 0xc0, 0, 0xc0, 0, 0xc0, 0, 0xc0,
                                    0, 0xc0, 0, 0xc0, 0, 0xc0, 0, 0xc0};
  float z[128] = {4, 4}, scale = 1, signs[128], amax = 0, y[128];
  quant_call c;
  int i, block;
  for (i = 0; i < 128; ++i) signs[i] = i == 0 ? -1.0f : 1.0f;
  for (i = 0; i < 2; ++i) {
    make_call(&c, z, 1, 16, "per_tensor", "f8_e4m3fn");
    change(c.args, "quant.scale=f32[1]", &scale);
    c.quant->rotation = 16;
    amax = 0;
    change(c.args, "quant.amax=f32[1] y=f32[1,16]", &amax, y);
    c.quant->y_rotated = i;
    if (i == 1) change(c.args, "quant.rotation_signs=f32[16]", signs);
    gives(context, &c, i == 0 ? both : minus, 16, "rotated");
    CHECK(amax == 2);
    CHECK(y[0] == (i == 0 ? 4 : 0) && y[1] == (i == 0 ? 4 : -2) && y[3] == (i == 0 ? 0 : -2));
  }
  /* The scale is that of the rotated row: a column of 448 is 448 / sqrt(block) in each. */
  for (block = 16; block <= 128; block *= 2) {
    const float most = 448 * (float)(1 / sqrt((double)block));
    memset(z, 0, sizeof z);
    z[0] = 448;
    make_call(&c, z, 1, 128, "per_row", "f8_e4m3fn");
    change(c.args, "quant.scale=f32[1]", &scales);
    c.quant->rotation = block;
    CHECK_OK(fastnorm_norm(context, c.args, NULL, 0, NULL));
    CHECK(scales.f32[0] == most / 448);
    for (i = 0; i < 128; ++i) CHECK(codes[i] == (i < block ? 0x7e : 0));
  }
}

/* A call of a list may rotate, whatever the others do. */
static void rotated_of_many(fastnorm_context* context) {
  static const uint8_t both[16] = {0x40, 0, 0x40, 0, 0x40, 0, 0x40, 0,
                                   0x40, 0, 0x40, 0, 0x40, 0, 0x40, 0};
  float z[16] = {4, 4}, scale = 1;
  uint8_t straight[16];
  quant_call c, other;
  const fastnorm_norm_args* list[2];
  make_call(&c, z, 1, 16, "per_tensor", "f8_e4m3fn");
  change(c.args, "quant.scale=f32[1]", &scale);
  c.quant->rotation = 16;
  make_call(&other, z, 1, 16, "per_tensor", "f8_e4m3fn");
  change(other.args, "quant.scale=f32[1] quant.quantized=f8_e4m3fn[1,16]", &scale, straight);
  list[0] = other.args;
  list[1] = c.args;
  CHECK_OK(fastnorm_norm_many(context, list, 2, NULL, 0, NULL));
  CHECK(memcmp(codes, both, sizeof both) == 0);
  CHECK(straight[0] == 0x48 && straight[1] == 0x48 && straight[2] == 0);
}

static void rotations_refused(fastnorm_context* context) {
  float z[128] = {4, 4}, scale = 1, signs[16];
  quant_call c;
  int i;
  make_call(&c, z, 1, 96, "per_tensor", "f8_e4m3fn");
  change(c.args, "quant.scale=f32[1]", &scale);
  c.quant->rotation = 64;
  CHECK_STATUS(fastnorm_norm(context, c.args, NULL, 0, NULL), FASTNORM_ERROR_SHAPE);
  CHECK_TEXT("quant.rotation is 64 and n is 96; required: a divisor of n");
  for (i = 0; i < 16; ++i) signs[i] = i == 5 ? 2.0f : -1.0f;
  c.quant->rotation = 16;
  change(c.args, "quant.rotation_signs=f32[16]", signs);
  CHECK_STATUS(fastnorm_norm(context, c.args, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("quant.rotation_signs[5] is 2; required: 1 or -1");
  CHECK(codes[0] == kFill);
}

/* --- one scale for each row --- */

/* Six rows: largest magnitude 448, 896 and 449; zeros; a NaN; an Inf. */
static void six_rows(float* z) {
  static const float rows[6][4] = {{448, -1, 0.5f, 0}, {-896, 2, 1, 0},
                                   {449, 0, 1, -2},    {0, -0.0f, 0, 0},
                                   {1, NAN, 2, 3},     {1, -1, INFINITY, -INFINITY}};
  memcpy(z, rows, sizeof rows);
}

static void rows_e4m3(fastnorm_context* context) {
  float z[24], limit, small[8] = {1.75f, -1, 0, 0, 0x1p-20f, 0, 0, 0};
  int i;
  static const uint8_t by_division[24] = {0x7e, 0xb8, 0x30, 0x00, 0xfe, 0x38, 0x30, 0x00,
                                          0x7e, 0x00, 0x38, 0xc0, 0x00, 0x80, 0x00, 0x00,
                                          0x7f, 0x7f, 0x7f, 0x7f, 0x00, 0x80, 0x7f, 0x7f};
  static const uint8_t floored[8] = {0x76, 0xf0, 0, 0, 0, 0, 0, 0};
  static const uint8_t clamped[24] = {0x7e, 0xc0, 0x38, 0x00, 0xfe, 0x48, 0x40, 0x00,
                                      0x7e, 0x00, 0x40, 0xc8, 0x00, 0x80, 0x00, 0x00,
                                      0x7f, 0x7f, 0x7f, 0x7f, 0x40, 0xc0, 0x7e, 0xfe};
  quant_call c;
  six_rows(z);
  make_call(&c, z, 6, 4, "per_row", "f8_e4m3fn");
  change(c.args, "quant.scale=f32[6]", &scales);
  GIVES(context, &c, by_division);
  CHECK(scales.f32[0] == 1 && scales.f32[1] == 2 && scales.f32[2] == 449.0f / 448.0f);
  CHECK(scales.f32[3] == 1e-10f / 448.0f);
  CHECK(isnan(scales.f32[4]) && isinf(scales.f32[5]) && scales.f32[5] > 0);
  CHECK(scales.bytes[24] == kFill);

  make_call(&c, z, 6, 4, "per_row", "f8_e4m3fn");
  change(c.args, "quant.scale=f32[6]", &scales);
  c.quant->clamp = 224; /* makes it the largest magnitude of the rows that have more */
  GIVES(context, &c, clamped);
  CHECK(scales.f32[0] == 0.5f && scales.f32[1] == 0.5f && scales.f32[2] == 0.5f);
  CHECK(isnan(scales.f32[4]) && scales.f32[5] == 0.5f);

  /* A limit in memory, which each call reads. A value that is not above 0 switches it off. */
  for (i = 0; i < 5; ++i) {
    const float limits[5] = {224, 0, -224, NAN, -0.0f};
    limit = limits[i];
    make_call(&c, z, 6, 4, "per_row", "f8_e4m3fn");
    change(c.args, "quant.scale=f32[6] quant.clamp_scale=f32[1]", &scales, &limit);
    gives(context, &c, i == 0 ? clamped : by_division, sizeof clamped, "clamp_scale");
    CHECK(scales.f32[0] == (i == 0 ? 0.5f : 1.0f));
  }
  c.quant->clamp = 2;
  CHECK_STATUS(fastnorm_norm(context, c.args, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("quant.clamp_scale is given and quant.clamp is 2");

  make_call(&c, small, 2, 4, "per_row", "f8_e4m3fn");
  change(c.args, "quant.scale=f32[2]", &scales);
  c.quant->amax_floor = 3.5f; /* scale 2^-7 for both rows */
  GIVES(context, &c, floored);
  CHECK(scales.f32[0] == 0x1p-7f && scales.f32[1] == 0x1p-7f);
}

/* The e4m3 code nearest to v; of two, the even one. */
static uint8_t nearest_e4m3(float v) {
  uint8_t best = 0;
  int code;
  for (code = 1; code < 0x7f; ++code) {
    const float value =
        code < 8 ? ldexpf((float)code, -9) : ldexpf((float)(8 + code % 8), code / 8 - 10);
    const float last =
        best < 8 ? ldexpf((float)best, -9) : ldexpf((float)(8 + best % 8), best / 8 - 10);
    const float mine = fabsf(fabsf(v) - value), other = fabsf(fabsf(v) - last);
    if (mine < other || (mine == other && code % 2 == 0)) best = (uint8_t)code;
  }
  return (uint8_t)(best | (signbit(v) ? 0x80 : 0));
}

/* Codes of z / scale. Some codes of z * (1 / scale) differ. */
static void divided(fastnorm_context* context) {
  enum { kRows = 512, kN = 64 };
  static float z[kRows * kN];
  static uint8_t expected[kRows * kN];
  quant_call c;
  int i, j, products = 0;
  fill_random(z, kRows * kN, 5);
  for (i = 0; i < kRows; ++i) {
    float most = 0, scale;
    if (i % 100 == 7) z[i * kN] = -0.0f;
    if (i % 2 == 0) { /* a scale of c / 1024, and quotients that lie between two codes */
      const float c = (float)(17 + i % 32);
      for (j = 0; j < kN / 2; ++j) z[i * kN + j] = c * (float)(17 + 2 * (j % 8)) / 4096;
      for (; j < kN; ++j) z[i * kN + j] *= c / 1024;
      z[i * kN + kN - 1] = -7 * c / 16;
    }
    for (j = 0; j < kN; ++j) most = fmaxf(most, fabsf(z[i * kN + j]));
    scale = most / 448;
    for (j = 0; j < kN; ++j) {
      expected[i * kN + j] = nearest_e4m3(z[i * kN + j] / scale);
      products += expected[i * kN + j] != nearest_e4m3(z[i * kN + j] * (1 / scale));
    }
  }
  CHECK(products > 0);
  make_call(&c, z, kRows, kN, "per_row", "f8_e4m3fn");
  change(c.args, "quant.scale=f32[512]", &scales);
  c.quant->division = FASTNORM_QUANT_DIVIDE;
  GIVES(context, &c, expected);
  make_call(&c, z, kRows, kN, "per_block", "f8_e4m3fn");
  c.quant->block_size = 64;
  change(c.args, "quant.scale=f32[512,1]", &scales);
  c.quant->division = FASTNORM_QUANT_DIVIDE;
  GIVES(context, &c, expected);
  make_call(&c, z, kRows, kN, "per_tensor", "f8_e4m3fn");
  scales.f32[0] = -0.0237f;
  for (i = 0; i < kRows * kN; ++i) expected[i] = nearest_e4m3(z[i] / scales.f32[0]);
  change(c.args, "quant.scale=f32[1]", &scales);
  c.quant->division = FASTNORM_QUANT_DIVIDE;
  GIVES(context, &c, expected);
}

static void rows_i8(fastnorm_context* context) {
  float z[8] = {127, -126, 0.5f, 1.5f, -254, 2, 3, 5};
  static const uint8_t i8[8] = {127, 0x82, 0, 2, 0x81, 1, 2, 2};
  quant_call c;
  make_call(&c, z, 2, 4, "per_row", "i8");
  change(c.args, "quant.scale=f32[2]", &scales);
  GIVES(context, &c, i8);
  CHECK(scales.f32[0] == 1 && scales.f32[1] == 2);
}

static void rows_pow2(fastnorm_context* context) {
  float z[24];
  static const uint8_t exponents[6] = {127, 128, 128, 85, 0xff, 254};
  static const uint8_t pow2[24] = {0x7e, 0xb8, 0x30, 0x00, 0xfe, 0x38, 0x30, 0x00,
                                   0x76, 0x00, 0x30, 0xb8, 0x00, 0x80, 0x00, 0x00,
                                   0x7f, 0x7f, 0x7f, 0x7f, 0x00, 0x80, 0x7e, 0xfe};
  static const char* const kScales[] = {"quant.scale=f8_e8m0fnu[6]", "quant.scale=u8[6]"};
  quant_call c;
  int i;
  six_rows(z);
  for (i = 0; i < 2; ++i) {
    make_call(&c, z, 6, 4, "per_row", "f8_e4m3fn");
    change(c.args, kScales[i], &scales);
    c.quant->scale_pow2 = 1;
    GIVES(context, &c, pow2);
    CHECK(memcmp(scales.bytes, exponents, 6) == 0);
    CHECK(scales.bytes[6] == kFill);
  }
  make_call(&c, z, 6, 4, "per_row", "f8_e4m3fn");
  change(c.args, "quant.scale=f32[6]", &scales);
  c.quant->scale_pow2 = 1;
  GIVES(context, &c, pow2);
  CHECK(scales.f32[0] == 1 && scales.f32[1] == 2 && scales.f32[2] == 2);
  CHECK(scales.f32[3] == 0x1p-42f && isnan(scales.f32[4]) && scales.f32[5] == 0x1p127f);
}

/* --- one scale for each block --- */

/* Two rows of 96, blocks of 64 and 32 columns: largest magnitudes 448 and 896, 224 and 1792. */
static void make_blocks(quant_call* c) {
  static const float most[4] = {448, 896, 224, 1792};
  int64_t i;
  for (i = 0; i < 2 * 96; ++i) z_values[i] = most[i / 96 * 2 + i % 96 / 64] / (i % 2 == 0 ? 1 : -4);
  make_call(c, z_values, 2, 96, "per_block", "f8_e4m3fn");
  c->quant->block_size = 64;
}

/* Every even code is 448, and every odd one -112. */
static void check_block_codes(void) {
  int i, wrong = 0;
  for (i = 0; i < 2 * 96; ++i) wrong += codes[i] != (i % 2 == 0 ? 0x7e : 0xee);
  CHECK(wrong == 0);
  CHECK(codes[2 * 96] == kFill);
}

static void blocks(fastnorm_context* context) {
  quant_call c;
  float untouched;
  memset(&untouched, kFill, sizeof untouched);

  make_blocks(&c);
  change(c.args, "quant.scale=f32[2,2]", &scales);
  CHECK_OK(fastnorm_norm(context, c.args, NULL, 0, NULL));
  check_block_codes();
  CHECK(scales.f32[0] == 1 && scales.f32[1] == 2 && scales.f32[2] == 0.5f && scales.f32[3] == 4);

  make_blocks(&c);
  change(c.args, "quant.scale=f32[2,2]", &scales);
  c.quant->scale_layout = FASTNORM_SCALE_COLUMN_MAJOR;
  CHECK_OK(fastnorm_norm(context, c.args, NULL, 0, NULL));
  check_block_codes();
  CHECK(scales.f32[0] == 1 && scales.f32[1] == 0.5f && scales.f32[2] == 2 && scales.f32[3] == 4);

  make_blocks(&c); /* columns 5 floats apart, rows 2 */
  change(c.args, "quant.scale=f32[2,2] quant.scale.strides=[2,5]", &scales);
  c.quant->scale_layout = FASTNORM_SCALE_COLUMN_MAJOR;
  CHECK_OK(fastnorm_norm(context, c.args, NULL, 0, NULL));
  check_block_codes();
  CHECK(scales.f32[0] == 1 && scales.f32[2] == 0.5f && scales.f32[5] == 2 && scales.f32[7] == 4);
  CHECK(memcmp(&scales.f32[1], &untouched, sizeof untouched) == 0);
  CHECK(memcmp(&scales.f32[3], &untouched, sizeof untouched) == 0);
  CHECK(memcmp(&scales.f32[6], &untouched, sizeof untouched) == 0);

  make_blocks(&c);
  change(c.args, "quant.scale=f8_e8m0fnu[2,2]", &scales);
  c.quant->scale_pow2 = 1;
  CHECK_OK(fastnorm_norm(context, c.args, NULL, 0, NULL));
  check_block_codes();
  CHECK(scales.bytes[0] == 127 && scales.bytes[1] == 128 && scales.bytes[2] == 126);
  CHECK(scales.bytes[3] == 129 && scales.bytes[4] == kFill);

  make_blocks(&c); /* one block of 128 columns holds the row */
  change(c.args, "quant.scale=f32[2,1]", &scales);
  c.quant->block_size = 128;
  CHECK_OK(fastnorm_norm(context, c.args, NULL, 0, NULL));
  CHECK(scales.f32[0] == 2 && scales.f32[1] == 4);
  CHECK(codes[0] == 0x76 && codes[1] == 0xe6); /* 224 and -56 */
}

static void mxfp8(fastnorm_context* context) {
  static const uint8_t e4m3[8] = {127, 119, 0, 128, 0xff, 254, 127, 0};
  static const uint8_t e5m2[8] = {120, 112, 0, 121, 0xff, 254, 120, 0};
  static const float first[8] = {448, 1, 0, 449, NAN, INFINITY, -448, 0x1p-149f};
  static const uint8_t codes_e4m3[8] = {0x7e, 0x78, 0x00, 0x76, 0x7f, 0x7e, 0xfe, 0x00};
  static const uint8_t codes_e5m2[8] = {0x7b, 0x78, 0x00, 0x77, 0x7f, 0x7b, 0xfb, 0x00};
  quant_call c;
  int i, k, five;
  for (five = 0; five < 2; ++five) {
    int wrong = 0;
    for (i = 0; i < 8 * 32; ++i) z_values[i] = i % 32 == 7 ? first[i / 32] : 0.0f;
    make_call(&c, z_values, 4, 64, "mxfp8", five ? "f8_e5m2" : "f8_e4m3fn");
    change(c.args, "quant.scale=f8_e8m0fnu[4,2]", &scales);
    CHECK_OK(fastnorm_norm(context, c.args, NULL, 0, NULL));
    CHECK(memcmp(scales.bytes, five ? e5m2 : e4m3, 8) == 0);
    CHECK(scales.bytes[8] == kFill);
    for (i = 0; i < 8; ++i) {
      CHECK(codes[i * 32 + 7] == (five ? codes_e5m2 : codes_e4m3)[i]);
      for (k = 0; k < 32; ++k) wrong += k != 7 && codes[i * 32 + k] != (i == 4 ? 0x7f : 0);
    }
    CHECK(wrong == 0);
  }
}

static void mxfp4(fastnorm_context* context) {
  static const float first[8] = {6, 1, 0, 7, NAN, INFINITY, -6, 0x1p-149f};
  static const uint8_t e8m0[8] = {127, 125, 0, 128, 0xff, 254, 127, 0};
  static const uint8_t e2m1[8] = {7, 6, 0, 6, 7, 7, 15, 0}; /* 7 is 3.5 * 2, a tie */
  static const char* const kDtypes[] = {"f4_e2m1fn", "f4_e2m1fn_x2", "u8"};
  uint8_t expected[8 * 16];
  quant_call c;
  int i, k;
  for (i = 0; i < 8; ++i) {
    for (k = 0; k < 16; ++k)
      expected[i * 16 + k] = (uint8_t)(k == 3   ? e2m1[i] << 4 | (i == 4 ? 7 : 0)
                                       : i == 4 ? 0x77
                                                : 0);
  }
  for (k = 0; k < 3; ++k) {
    for (i = 0; i < 8 * 32; ++i) z_values[i] = i % 32 == 7 ? first[i / 32] : 0.0f;
    make_call(&c, z_values, 4, 64, "mxfp4", kDtypes[k]);
    change(c.args, k > 0 ? "quant.scale=u8[4,2]" : "quant.scale=f8_e8m0fnu[4,2]", &scales);
    GIVES(context, &c, expected);
    CHECK(memcmp(scales.bytes, e8m0, 8) == 0);
    CHECK(scales.bytes[8] == kFill);
  }
}

/* Tiles of 128 rows x 4 scales: each byte is a scale, or zero if there is none. */
static void swizzled(fastnorm_context* context) {
  enum { kRows = 130, kScales = 5, kBytes = 2 * 2 * 512 };
  quant_call c;
  int i, wrong = 0;
  for (i = 0; i < kRows * kScales * 32; ++i) z_values[i] = ldexpf(448, i / 32 % 11 - 5);
  make_call(&c, z_values, kRows, kScales * 32, "mxfp8", "f8_e4m3fn");
  change(c.args, "quant.scale=u8[2048]", &scales);
  c.quant->scale_layout = FASTNORM_SCALE_SWIZZLED_128X4;
  CHECK_OK(fastnorm_norm(context, c.args, NULL, 0, NULL));
  for (i = 0; i < kRows * kScales * 32; ++i) wrong += codes[i] != 0x7e;
  CHECK(wrong == 0);
  for (i = 0; i < kBytes; ++i) {
    const int tile = i / 512, line = i % 512 / 16, place = i % 16;
    const int row = tile / 2 * 128 + place / 4 * 32 + line, k = tile % 2 * 4 + place % 4;
    const int there = row < kRows && k < kScales;
    wrong += scales.bytes[i] != (there ? 127 + (row * kScales + k) % 11 - 5 : 0);
  }
  CHECK(wrong == 0);
  CHECK(scales.bytes[kBytes] == kFill);
  CHECK(scales.bytes[16] == 127 + 5 % 11 - 5);         /* row 1, scale 0 */
  CHECK(scales.bytes[4] == 127 + 160 % 11 - 5);        /* row 32, scale 0 */
  CHECK(scales.bytes[512] == 127 + 4 - 5);             /* row 0, scale 4 */
  CHECK(scales.bytes[1024 + 1] == 127 + 641 % 11 - 5); /* row 128, scale 1 */
}

/* --- fp4 --- */

static void nvfp4(fastnorm_context* context) {
  float z[7 * 16] = {
      6,  0.5f, 1, 1.5f, 2, 3, 4, -6, 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, -0.0f, /* sf 1 */
      12, -12,  1, 2,    3, 4, 6, 8,  -1,    -2,    -3,    -4,    -6,   -8,   0, 0.5f,  /* sf 2 */
      0,  -0.0f};                                                                       /* sf 0 */
  static const uint8_t fp4[7 * 8] = {
      0x17, 0x32, 0x54, 0xf6, 0x20, 0x42, 0x64, 0x86, /* ties to even */
      0xf7, 0x21, 0x43, 0x65, 0xa9, 0xcb, 0xed, 0x00, 0x80, 0,    0,    0,
      0,    0,    0,    0,    0x77, 0x77, 0x77, 0x77, 0x77, 0x77, 0x77, 0x77, /* a NaN */
      0x07, 0x0f, 0,    0,    0,    0,    0,    0,                            /* Inf, 1 and -Inf */
      0x80, 0,    0,    0,    0,    0,    0,    0, /* too small for a scale */
      0x70, 0,    0,    0,    0,    0,    0,    0};
  static const uint8_t sf[7] = {0x38, 0x40, 0, 0x7f, 0x7e, 0, 0x7e};
  static const uint8_t halved[7] = {0x30, 0x38, 0, 0x7f, 0x7e, 0, 0x7e};
  static const char* const kDtypes[] = {"f4_e2m1fn", "f4_e2m1fn_x2", "u8"};
  uint8_t negative[7 * 8];
  float global = 2;
  quant_call c;
  int i;
  z[3 * 16] = 1, z[3 * 16 + 9] = NAN;
  z[4 * 16] = INFINITY, z[4 * 16 + 1] = 1, z[4 * 16 + 2] = -INFINITY;
  z[5 * 16] = 0.001f, z[5 * 16 + 1] = -0.001f;
  z[6 * 16 + 1] = 1e6f;
  for (i = 0; i < 3; ++i) {
    make_call(&c, z, 7, 16, "nvfp4", kDtypes[i]);
    change(c.args, i > 0 ? "quant.scale=u8[7,1]" : "quant.scale=f8_e4m3fn[7,1]", &scales);
    GIVES(context, &c, fp4);
    CHECK(memcmp(scales.bytes, sf, sizeof sf) == 0);
    CHECK(scales.bytes[7] == kFill);
  }
  make_call(&c, z, 7, 16, "nvfp4", "f4_e2m1fn");
  change(c.args, "quant.scale=f8_e4m3fn[7,1] quant.global_scale=f32[1]", &scales, &global);
  GIVES(context, &c, fp4); /* the scales halve, the products with them stay */
  CHECK(memcmp(scales.bytes, halved, sizeof halved) == 0);
  /* The first scale is 431.99999 before it is rounded, just below the middle of 416 and 448. With 1
   * / (6 * global) rounded at once it would be 432, whose nearest even code is that of 448. */
  global = 0.0037f;
  z[0] = 9.5903997f;
  CHECK_OK(fastnorm_norm(context, c.args, NULL, 0, NULL));
  CHECK(scales.bytes[0] == 0x7d);
  z[0] = 6, global = 2;
  CHECK(global == 2);
  /* With a negative global scale the codes have the opposite sign, except for NaN and a scale of
   * 0. */
  global = -2;
  for (i = 0; i < 7 * 8; ++i)
    negative[i] = fp4[i] ^ (i / 8 == 2 || i / 8 == 3 || i / 8 == 5 ? 0 : 0x88);
  GIVES(context, &c, negative);
  CHECK(memcmp(scales.bytes, halved, sizeof halved) == 0);
}

/* --- with other outputs --- */

static void sources(fastnorm_context* context) {
  static uint16_t x[4] = {0x3f80, 0x3f80, 0x3f80, 0x3f80}, y[4]; /* bf16 ones */
  float z[4] = {1.0625f + 0x1p-12f, 448, -0x1.008p8f, 0};        /* above a tie, exact, below 257 */
  float scale = 1, amax = 0;
  quant_call c;
  make_call(&c, z, 1, 4, "per_tensor", "f8_e4m3fn");
  change(c.args, "x=bf16[1,4] y=bf16[1,4] quant.scale=f32[1] quant.amax=f32[1]", x, y, &scale,
         &amax);
  c.quant->clamp = 256.5f;
  CHECK_OK(fastnorm_norm(context, c.args, NULL, 0, NULL));
  CHECK(codes[0] == 0x39 && codes[1] == 0x78 && codes[2] == 0xf8 && codes[3] == 0);
  CHECK(amax == 256.5f);                   /* what is quantised */
  CHECK(y[0] == 0x3f88 && y[1] == 0x43e0); /* rounded, not clamped */
  CHECK(y[2] == 0xc380 && y[3] == 0);
  c.quant->source = FASTNORM_QUANT_FROM_ROUNDED;
  c.quant->clamp = 0;
  CHECK_OK(fastnorm_norm(context, c.args, NULL, 0, NULL));
  CHECK(codes[0] == 0x38 && codes[1] == 0x7e && codes[2] == 0xf8);
  CHECK(amax == 448);
}

static void in_place(fastnorm_context* context) {
  float z[24], other[24];
  uint8_t first[24];
  quant_call c;
  int i;
  six_rows(z);
  make_call(&c, z, 6, 4, "per_row", "f8_e4m3fn");
  change(c.args, "y=f32[6,4] quant.scale=f32[6]", y_values, &scales);
  CHECK_OK(fastnorm_norm(context, c.args, NULL, 0, NULL));
  memcpy(first, codes, 24);
  memcpy(other, scales.f32, 24);
  for (i = 0; i < 24; ++i) CHECK(isnan(z[i]) ? isnan(y_values[i]) : y_values[i] == z[i]);
  make_call(&c, z, 6, 4, "per_row", "f8_e4m3fn");
  change(c.args, "y=f32[6,4] quant.scale=f32[6]", x_values, &scales);
  CHECK_OK(fastnorm_norm(context, c.args, NULL, 0, NULL));
  CHECK(memcmp(codes, first, 24) == 0);
  CHECK(memcmp(scales.f32, other, 24) == 0);
  CHECK(memcmp(x_values, y_values, sizeof z) == 0);
}

static void largest_magnitude(fastnorm_context* context) {
  float z[8] = {1, -3, 2, 0, -0.5f, 0, 0, 2.5f}, amax = 0;
  static uint16_t x[8], y[8];
  quant_call c;
  int i;
  make_call(&c, z, 2, 4, "none", ""); /* of y, where nothing is quantised */
  change(c.args, "y=f32[2,4] quant.amax=f32[1]", y_values, &amax);
  CHECK_OK(fastnorm_norm(context, c.args, NULL, 0, NULL));
  CHECK(amax == 3 && y_values[1] == -3 && codes[0] == kFill);
  amax = 3.5f;
  CHECK_OK(fastnorm_norm(context, c.args, NULL, 0, NULL));
  CHECK(amax == 3.5f);
  z[6] = -4;
  CHECK_OK(fastnorm_norm(context, c.args, NULL, 0, NULL));
  CHECK(amax == 4);
  z[6] = -INFINITY;
  CHECK_OK(fastnorm_norm(context, c.args, NULL, 0, NULL));
  CHECK(isinf(amax) && amax > 0);
  z[2] = NAN;
  CHECK_OK(fastnorm_norm(context, c.args, NULL, 0, NULL));
  CHECK(isnan(amax));
  z[2] = z[6] = 0;
  CHECK_OK(fastnorm_norm(context, c.args, NULL, 0, NULL));
  CHECK(isnan(amax)); /* a NaN of an earlier call stays */

  z[1] = -(1 + 0x1p-12f); /* y rounds it to -1 */
  z[7] = 0.25f;
  make_call(&c, z, 2, 4, "none", "");
  for (i = 0; i < 8; ++i) x[i] = 0x3f80;
  change(c.args, "x=bf16[2,4] y=bf16[2,4] quant.amax=f32[1]", x, y, &amax);
  amax = 0;
  CHECK_OK(fastnorm_norm(context, c.args, NULL, 0, NULL));
  CHECK(amax == 1);
  change(c.args, "quant.scheme=per_row quant.quantized=i8[2,4] quant.scale=f32[2]", codes, &scales);
  CHECK_OK(fastnorm_norm(context, c.args, NULL, 0, NULL));
  CHECK(amax == 1 + 0x1p-12f);
}

/* --- threads, rows, queries, devices --- */

static void same_bytes_of_threads(void) {
  enum { kRows = 1000, kN = 384, kCodes = kRows * kN / 2, kScales = 8 * 6 * 512 };
  static uint8_t first_codes[kCodes], first_scales[kScales];
  static float first_y[kMost];
  float first_amax = 0;
  int32_t threads;
  fill_random(z_values, kMost, 5);
  for (threads = 1; threads <= 3; threads += 2) {
    fastnorm_context_options options = empty_options();
    fastnorm_info info = empty_info();
    fastnorm_context* context;
    float amax = 0;
    quant_call c;
    options.num_threads = threads;
    context = cpu_context(&options);
    make_call(&c, z_values, kRows, kN, "nvfp4", "f4_e2m1fn");
    change(c.args, "y=f32[1000,384] quant.scale=f8_e4m3fn[24576]", y_values, &scales);
    c.quant->scale_layout = FASTNORM_SCALE_SWIZZLED_128X4;
    change(c.args, "quant.amax=f32[1]", &amax);
    CHECK_OK(fastnorm_norm_query(context, c.args, &info));
    CHECK(info.blocks == (uint64_t)threads);
    CHECK_OK(fastnorm_norm(context, c.args, NULL, 0, NULL));
    CHECK(codes[kCodes] == kFill && scales.bytes[kScales] == kFill);
    if (threads == 1) {
      int i;
      for (i = 0; i < kMost; ++i) {
        if (fabsf(z_values[i]) > first_amax) first_amax = fabsf(z_values[i]);
      }
      memcpy(first_codes, codes, kCodes);
      memcpy(first_scales, &scales, kScales);
      memcpy(first_y, y_values, sizeof first_y);
    }
    CHECK(amax == first_amax);
    CHECK(memcmp(codes, first_codes, kCodes) == 0);
    CHECK(memcmp(&scales, first_scales, kScales) == 0);
    CHECK(memcmp(y_values, first_y, sizeof first_y) == 0);
    fastnorm_context_destroy(context);
  }
}

static void without_rows(fastnorm_context* context) {
  float z[4] = {1, 2, 3, 4}, amax = 0.5f;
  fastnorm_info info = empty_info();
  quant_call c;
  make_call(&c, z, 0, 4, "per_row", "f8_e4m3fn");
  change(c.args, "weight=null");
  change(c.args, "quant.scale=f32[0] quant.amax=f32[1]", &scales, &amax);
  CHECK_OK(fastnorm_norm(context, c.args, NULL, 0, NULL));
  CHECK(amax == 0.5f && codes[0] == kFill && scales.bytes[0] == kFill);
  CHECK_OK(fastnorm_norm_query(context, c.args, &info));
  CHECK(info.launches == 0 && info.bytes_written == 0);
}

static void query(fastnorm_context* context) {
  fastnorm_info info = empty_info();
  fastnorm_kernel_info kernel;
  int32_t i, listed = 0;
  quant_call c;
  make_blocks(&c);
  change(c.args, "quant.scale=f32[2,2]", &scales);
  CHECK_OK(fastnorm_norm_query(context, c.args, &info));
  CHECK(info.workspace_bytes == 0 && info.launches == 1);
  CHECK(info.bytes_written == 2 * 96 + 4 * 4);
  memset(&kernel, 0, sizeof kernel);
  kernel.struct_size = sizeof kernel;
  for (i = 0; i < fastnorm_kernel_count(); ++i) {
    fastnorm_kernel_describe(i, &kernel);
    listed += strcmp(kernel.name, info.kernel) == 0;
  }
  CHECK(listed >= 1);
  CHECK_OK(fastnorm_norm_prepare(context, c.args));
  CHECK(codes[0] == kFill && scales.bytes[0] == kFill);
}

/* A wrong call writes nothing. A dry run plans the correct call without a GPU. */
static void refused(fastnorm_context* context) {
  const fastnorm_device device = {FASTNORM_DEVICE_CUDA, 0};
  fastnorm_context_options options = empty_options();
  fastnorm_context* cuda = NULL;
  float z[4] = {1, 2, 3, 4}, amax = 0.5f;
  fastnorm_info info = empty_info();
  quant_call c;
  make_call(&c, z, 1, 4, "per_row", "f8_e4m3fn");
  change(c.args, "quant.scale=f32[1] quant.amax=f32[1]", &scales, &amax);
  c.quant->amax_floor = -1;
  CHECK_STATUS(fastnorm_norm(context, c.args, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("quant.amax_floor is -1");
  CHECK(amax == 0.5f && codes[0] == kFill && scales.bytes[0] == kFill);
  c.quant->amax_floor = 0;

  options.flags = FASTNORM_CONTEXT_DRY_RUN;
  options.dry_run_capability = 90;
  CHECK_OK(fastnorm_context_create(device, &options, &cuda));
  if (cuda == NULL) return;
  change(c.args, "device=cuda:0");
  CHECK_OK(fastnorm_norm_query(cuda, c.args, &info));
  CHECK(strstr(info.kernel, " quant ") != NULL);
  change(c.args, "quant.scheme=none quant.quantized,quant.scale=null y=f32[1,4] y.address=x",
         codes);
  CHECK_OK(fastnorm_norm(cuda, c.args, NULL, 0, NULL));
  change(c.args, "quant.amax=null");
  CHECK_OK(fastnorm_norm_prepare(cuda, c.args));
  fastnorm_context_destroy(cuda);
}

void test_quant(void) {
  fastnorm_context* context = cpu_context(NULL);
  tensor_e4m3(context);
  tensor_e5m2(context);
  tensor_i8(context);
  rotated(context);
  rotated_of_many(context);
  rotations_refused(context);
  rows_e4m3(context);
  divided(context);
  rows_i8(context);
  rows_pow2(context);
  blocks(context);
  mxfp8(context);
  mxfp4(context);
  swizzled(context);
  nvfp4(context);
  sources(context);
  in_place(context);
  largest_magnitude(context);
  same_bytes_of_threads();
  without_rows(context);
  query(context);
  refused(context);
  fastnorm_context_destroy(context);
}
