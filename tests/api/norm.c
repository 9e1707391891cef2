/* Results computed by hand, queries, and calls without rows. */
#include <math.h>

#include "api/api_test.h"
#include "api/call.h"

const family_lines norm_lines = {
    .call = "norm kind=layer eps=1e-5 x,y=f32[300,1024]",
    .empty = "norm x,y=f32[0,1024]",
    .units = "rows",
    .wrong = "norm eps=-1 x,y=f32[2,4]",
    .others =
        {
            "norm x,y=f32[64,4096]",
            "norm flags=0x3 x,y=f32[64,4096]",
            "norm kind=layer rounding=every_step x,y=f32[64,4096] weight,bias=f32[4096] "
            "residual,residual_out=f32[64,4096] residual_out.address=residual rstd=f32[64]",
            "norm x=f32[64,4096] quant.scheme=per_tensor quant.quantized=f8_e4m3fn[64,4096] "
            "quant.scale=f32[1]",
            "norm x,y=f32[64,4096] quant.scheme=per_block quant.block_size=128 "
            "quant.quantized=f8_e5m2[64,4096] quant.scale=f32[64,32]",
            "norm x,y=f32[64,4096] quant.scheme=nvfp4 quant.scale_layout=swizzled_128x4 "
            "quant.global_scale=f32[1] quant.quantized=u8[64,2048] quant.scale=f8_e4m3fn[32768]",
            "norm x,y=f32[64,3,1024] x,y.strides=[4096,1024,1]",
        },
};

static void root_mean_square(fastnorm_context* context) {
  float x[8] = {3, 4, 0, 0, 0, 0, 5, 12}; /* mean squares 6.25 and 42.25 */
  float weight[4] = {1, 2, 3, 4}, y[8], rstd[2];
  fastnorm_norm_args* const args =
      NORM("x,y=f32[2,4] weight=f32[4] rstd=f32[2]", x, y, weight, rstd);
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(rstd[0] == 1.0f / 2.5f && rstd[1] == 1.0f / 6.5f);
  CHECK(y[0] == 3 * rstd[0] * 1 && y[1] == 4 * rstd[0] * 2);
  CHECK(y[6] == 5 * rstd[1] * 3 && y[7] == 12 * rstd[1] * 4 && y[4] == 0);
  change(args, "weight_offset=1");
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(y[0] == 3 * rstd[0] * 2 && y[7] == 12 * rstd[1] * 5);
}

static void layer_norm(fastnorm_context* context) {
  float x[4] = {1, 3, 1, 3}, weight[4] = {2, 2, 4, 8}, bias[4] = {1, 1, 1, 1};
  float y[4], mean[1], rstd[1];
  const fastnorm_norm_args* const args = NORM(
      "kind=layer eps=3 x,y,weight,bias=f32[4] mean,rstd=f32[1]", x, y, weight, bias, mean, rstd);
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(mean[0] == 2 && rstd[0] == 0.5f); /* variance 1, and 3 */
  CHECK(y[0] == 0 && y[1] == 2 && y[2] == -1 && y[3] == 5);
}

/* LayerNorm of rows of one value: y is the bias, for every value and length. */
static void constant_rows(fastnorm_context* context) {
  enum { kMost = 40000 };
  static const float values[] = {101325.0f,  1e-20f,   -3.3e-7f, 0.1f,     1.0f / 3,
                                 -1234.567f, 16777215, 1e9f,     -7.7e18f, 1.1e30f};
  static const int64_t lengths[] = {1,   2,    3,    7,    8,     9,     31,    64,   65,
                                    127, 1000, 4095, 4097, 16384, 16385, 32769, kMost};
  static float x[kMost], weight[kMost], bias[kMost], y[kMost];
  static uint16_t half[kMost], half_y[kMost];
  size_t v, l;
  int64_t i;
  const float rstd_of_0 = 1 / sqrtf(1e-5f);
  for (i = 0; i < kMost; ++i) weight[i] = 1.7f, bias[i] = (float)(i % 13) / 7;
  for (v = 0; v < sizeof values / sizeof *values; ++v) {
    for (l = 0; l < sizeof lengths / sizeof *lengths; ++l) {
      const int64_t n = lengths[l];
      uint32_t bits;
      int wrong = 0;
      float mean, rstd;
      fastnorm_norm_args* const args =
          call_of(words("norm kind=layer eps=1e-05 x,y=f32[1,%d] mean,rstd=f32[1]", (int)n), x, y,
                  &mean, &rstd);
      for (i = 0; i < n; ++i) x[i] = values[v];
      CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
      for (i = 0; i < n; ++i) wrong += y[i] != 0;
      CHECK(wrong == 0 && mean == values[v] && rstd == rstd_of_0);
      change(args, words("weight,bias=f32[%d]", (int)n), weight, bias);
      CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
      for (i = 0; i < n; ++i) wrong += y[i] != bias[i];
      CHECK(wrong == 0 && mean == values[v] && rstd == rstd_of_0);
      /* bf16: its upper half. */
      memcpy(&bits, &values[v], sizeof bits);
      bits &= 0xffff0000u;
      for (i = 0; i < n; ++i) half[i] = (uint16_t)(bits >> 16), half_y[i] = 1;
      change(args, words("weight,bias=null x,y=bf16[1,%d]", (int)n), half, half_y);
      CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
      for (i = 0; i < n; ++i) wrong += (half_y[i] & 0x7fff) != 0;
      CHECK(wrong == 0 && memcmp(&mean, &bits, sizeof bits) == 0 && rstd == rstd_of_0);
      /* f16: values between 1 and 2, whose bits follow from v. */
      for (i = 0; i < n; ++i) half[i] = (uint16_t)(0x3c00 + 97 * v), half_y[i] = 1;
      change(args, "x,y.dtype=f16");
      CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
      for (i = 0; i < n; ++i) wrong += (half_y[i] & 0x7fff) != 0;
      CHECK(wrong == 0 && mean == 1 + (float)(97 * v) / 1024 && rstd == rstd_of_0);
    }
  }
}

static void residual(fastnorm_context* context) {
  float x[2] = {1, 2}, r[2] = {2, 2}, y[2], sum[2];
  const fastnorm_norm_args* const args = NORM("x,residual,y,residual_out=f32[1,2]", x, r, y, sum);
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(sum[0] == 3 && sum[1] == 4);
  CHECK(fabsf(y[0] - 3 / sqrtf(12.5f)) < 1e-6f && fabsf(y[1] - 4 / sqrtf(12.5f)) < 1e-6f);
}

static void sixteen_bits(fastnorm_context* context) {
  const uint16_t one_bf16 = 0x3f80, two_bf16 = 0x4000, one_f16 = 0x3c00, two_f16 = 0x4000;
  uint16_t x[9], y[10];
  fastnorm_norm_args* const args = NORM("x,y=bf16[1,9]", x, y);
  int i;
  for (i = 0; i < 9; ++i) x[i] = two_bf16;
  y[9] = 0xabcd;
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(y[0] == one_bf16 && y[8] == one_bf16 && y[9] == 0xabcd);
  for (i = 0; i < 9; ++i) x[i] = two_f16;
  change(args, "x,y.dtype=f16");
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(y[0] == one_f16 && y[8] == one_f16 && y[9] == 0xabcd);
}

/* Columns of a wider buffer, addressed by byte_offset. The gaps do not change. */
static void strided(fastnorm_context* context) {
  float buffer[3 * 10];
  const fastnorm_norm_args* const args =
      NORM("x,y=f32[3,4] x,y.strides=[10,1] x,y.offset=12", buffer, buffer);
  int i, wrong = 0;
  for (i = 0; i < 30; ++i) buffer[i] = 7;
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  for (i = 0; i < 30; ++i) wrong += buffer[i] != (i % 10 >= 3 && i % 10 < 7 ? 1.0f : 7.0f);
  CHECK(wrong == 0);
}

static void query(fastnorm_context* context) {
  static float x[8 * 256];
  const fastnorm_norm_args* const args = NORM("x,y=f32[8,256]", x, x);
  fastnorm_info info = empty_info();
  int32_t i, listed = 0;
  fastnorm_kernel_info kernel;
  CHECK_OK(fastnorm_norm_query(context, args, &info));
  CHECK(info.workspace_bytes == 0);
  CHECK(info.bytes_read == sizeof x && info.bytes_written == sizeof x);
  CHECK(info.launches == 1 && info.threads_per_row == 1 && info.blocks_per_row == 1);
  CHECK(info.vectors_per_thread == 0 && info.vector_bytes >= 4 && info.rows_per_block >= 1);
  memset(&kernel, 0, sizeof kernel);
  kernel.struct_size = sizeof kernel;
  for (i = 0; i < fastnorm_kernel_count(); ++i) {
    fastnorm_kernel_describe(i, &kernel);
    listed += strcmp(kernel.name, info.kernel) == 0;
  }
  CHECK(listed >= 1);
  CHECK_OK(fastnorm_norm_prepare(context, args));
}

static void no_rows(fastnorm_context* context) {
  float y[4] = {-1, -1, -1, -1};
  fastnorm_norm_args* const args = NORM("x,y=f32[2,0,4]", (void*)NULL, y);
  fastnorm_info info = empty_info();
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK_OK(fastnorm_norm_prepare(context, args));
  CHECK_OK(fastnorm_norm_query(context, args, &info));
  CHECK(info.launches == 0 && info.blocks == 0 && info.kernel != NULL && info.kernel[0] == '\0');
  CHECK(info.bytes_read == 0 && info.bytes_written == 0);
  CHECK(y[0] == -1 && y[3] == -1);
  change(args, "eps=-1"); /* the rest is checked all the same */
  CHECK_STATUS(fastnorm_norm(context, args, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
}

void test_norm(void) {
  fastnorm_context* context = cpu_context(NULL);
  root_mean_square(context);
  layer_norm(context);
  constant_rows(context);
  residual(context);
  sixteen_bits(context);
  strided(context);
  query(context);
  no_rows(context);
  fastnorm_context_destroy(context);
}
