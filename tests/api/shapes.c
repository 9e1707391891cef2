/* Shapes of callers: weight and bias that broadcast against x, x of up to 8 dimensions, strides
 * without a meaning. Also rows whose squares leave single precision. Each result is compared with
 * calls for single rows. */
#include <math.h>

#include "api/api_test.h"
#include "api/call.h"

enum { kN = 24, kMostRows = 48 };

/* The row of a tensor for row `row` of x's leading dimensions (the last the fastest). The tensor's
 * leading extents are those of x, or 1. */
static int64_t row_of(const fastnorm_tensor* x, const fastnorm_tensor* t, int64_t row) {
  int64_t number = 0, step = 1;
  int32_t d;
  for (d = 2; d <= x->ndim; ++d) {
    const int64_t extent = x->shape[x->ndim - d], index = row % extent;
    const int64_t own = d <= t->ndim ? t->shape[t->ndim - d] : 1;
    row /= extent;
    if (own != 1) number += index * step;
    step *= own;
  }
  return number;
}

/* A shape as a line has it; `at` is one of the texts that are valid together. */
static const char* text_of(int at, int32_t rank, const int64_t* shape) {
  static char texts[3][64];
  int32_t d, length = 0;
  for (d = 0; d < rank; ++d)
    length += snprintf(texts[at] + length, sizeof texts[at] - (size_t)length, "%s%d",
                       d == 0 ? "" : ",", (int)shape[d]);
  return texts[at];
}

/* Runs a LayerNorm of x's shape with these shapes of weight and bias, then each row alone. */
static void compare(fastnorm_context* context, int32_t rank, const int64_t* shape,
                    int32_t weight_rank, const int64_t* weight_shape, int32_t bias_rank,
                    const int64_t* bias_shape) {
  static float x[kMostRows * kN], y[kMostRows * kN], weight[kMostRows * kN], bias[kMostRows * kN];
  float one[kN];
  const fastnorm_norm_args* const args =
      call_of(words("norm kind=layer eps=1e-05 x,y=f32[%s] weight=f32[%s] bias=f32[%s]",
                    text_of(0, rank, shape), text_of(1, weight_rank, weight_shape),
                    text_of(2, bias_rank, bias_shape)),
              x, y, weight, bias);
  int64_t rows = 1, row;
  int32_t d;
  fill_random(x, kMostRows * kN, 11);
  fill_random(weight, kMostRows * kN, 12);
  fill_random(bias, kMostRows * kN, 13);
  memset(y, 0, sizeof y);
  for (d = 0; d + 1 < rank; ++d) rows *= shape[d];
  if (!CHECK(rows <= kMostRows)) return;
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  for (row = 0; row < rows; ++row) {
    CHECK_OK(fastnorm_norm(context,
                           NORM("kind=layer eps=1e-05 x,y,weight,bias=f32[24]", x + row * kN, one,
                                weight + row_of(args->x, args->weight, row) * kN,
                                bias + row_of(args->x, args->bias, row) * kN),
                           NULL, 0, NULL));
    CHECK(memcmp(one, y + row * kN, sizeof one) == 0);
  }
}

/* Every way in which weight and bias can broadcast against x of rank 4 and more. */
static void broadcast(fastnorm_context* context) {
  const int64_t four[4] = {2, 3, 4, kN}, eight[8] = {2, 1, 3, 2, 1, 2, 1, kN};
  int32_t rank;
  int bits;
  for (rank = 1; rank <= 4; ++rank) {
    for (bits = 0; bits < 1 << (rank - 1); ++bits) {
      int64_t weight[4], bias[4];
      int32_t d;
      for (d = 0; d < rank; ++d) {
        const int64_t extent = four[4 - rank + d];
        const int last = d == rank - 1;
        weight[d] = last || (bits >> d & 1) ? extent : 1;
        bias[d] = last || !(bits >> d & 1) ? extent : 1;
      }
      compare(context, 4, four, rank, weight, rank, bias);
    }
  }
  for (rank = 1; rank <= 8; ++rank) {
    int64_t alternate[8];
    int32_t d;
    for (d = 0; d < rank; ++d) alternate[d] = d % 2 == 0 || d == rank - 1 ? eight[8 - rank + d] : 1;
    compare(context, 8, eight, rank, eight + 8 - rank, 1, eight + 7);
    compare(context, 8, eight, 1, eight + 7, rank, eight + 8 - rank);
    compare(context, 8, eight, rank, alternate, 1, eight + 7);
  }
}

/* Leading dimensions that do not join: at most three. */
static void folding(fastnorm_context* context) {
  static float x[4096], y[48 * kN], flat[48 * kN];
  const int64_t steps[2][5] = {{960, 480, 240, 80, 40}, {1800, 900, 450, 80, 40}};
  fastnorm_norm_args* const args =
      NORM("x,y=f32[2,2,2,3,2,24] x.strides=[2000,960,300,90,40,1]", x, y);
  int which;
  fill_random(x, 4096, 21);
  CHECK_STATUS(fastnorm_norm(context, args, NULL, 0, NULL), FASTNORM_ERROR_UNSUPPORTED);
  CHECK_TEXT("x.shape is [2, 2, 2, 3, 2, 24]");
  CHECK_TEXT("5 leading dimensions remain");
  CHECK_TEXT("nearest");
  change(args, "x.strides=[2000,960,300,80,40,1]");
  CHECK_STATUS(fastnorm_norm(context, args, NULL, 0, NULL), FASTNORM_ERROR_UNSUPPORTED);
  for (which = 0; which < 2; ++which) { /* all join; the first three, and the last two */
    const int64_t* const s = steps[which];
    int64_t row;
    change(args, words("x.strides=[%s,1]", text_of(0, 5, s)));
    CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
    for (row = 0; row < 48; ++row) {
      const int64_t at = row / 24 * s[0] + row / 12 % 2 * s[1] + row / 6 % 2 * s[2] +
                         row / 2 % 3 * s[3] + row % 2 * s[4];
      CHECK_OK(fastnorm_norm(context, NORM("x,y=f32[24]", x + at, flat + row * kN), NULL, 0, NULL));
    }
    CHECK(memcmp(flat, y, sizeof y) == 0);
  }
}

/* Per-row scales and statistics of rank 6, with and without a last 1. */
static void quantised(fastnorm_context* context) {
  static float x[12 * 64], rstd[12], scale[12], flat_rstd[12], flat_scale[12];
  static signed char codes[12 * 64], flat_codes[12 * 64];
  fastnorm_norm_args* args =
      NORM("quant.scheme=per_row x=f32[12,64] quant.quantized=i8[12,64] rstd,quant.scale=f32[12]",
           x, flat_codes, flat_rstd, flat_scale);
  fill_random(x, 12 * 64, 31);
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  /* The last stride of one scale says nothing. */
  args = NORM(
      "quant.scheme=per_row x=f32[1,2,1,3,2,64] quant.quantized=i8[1,2,1,3,2,64] "
      "rstd=f32[1,2,1,3,2] quant.scale=f32[1,2,1,3,2,1] "
      "quant.scale.strides=[12,6,6,2,1,-9223372036854775808]",
      x, codes, rstd, scale);
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(memcmp(codes, flat_codes, sizeof codes) == 0);
  CHECK(memcmp(rstd, flat_rstd, sizeof rstd) == 0 && memcmp(scale, flat_scale, sizeof scale) == 0);
}

/* The stride of a dimension with one index is never read. */
static void one_index(fastnorm_context* context) {
  float x[4 * 16], y[4 * 16], wanted[4 * 16];
  fastnorm_norm_args* const args = NORM("x,y=f32[4,16] weight=f32[16]", x, wanted, x);
  fill_random(x, 64, 41);
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  change(args,
         "x,y=f32[4,1,16] weight=f32[1,1,16] x.strides=[16,-9223372036854775808,1] "
         "y.strides=[16,-1,1] weight.strides=[-9223372036854775808,-9223372036854775808,1]",
         x, y, x);
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(memcmp(y, wanted, sizeof y) == 0);
}

/* Squares beyond single precision: rstd is 0 or Inf. Nothing is rescaled. */
static void beyond_range(fastnorm_context* context) {
  float x[512], y[512], rstd[1];
  fastnorm_norm_args* const args = NORM("eps=1e-05 x,y=f32[1,512] rstd=f32[1]", x, y, rstd);
  int i, zeros = 0, infinite = 0;
  for (i = 0; i < 512; ++i) x[i] = i % 2 ? -1e18f : 1e18f;
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  for (i = 0; i < 512; ++i) zeros += y[i] == 0;
  CHECK(rstd[0] == 0 && zeros == 512);
  change(args, "kind=layer"); /* mean 0: the same */
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  for (zeros = i = 0; i < 512; ++i) zeros += y[i] == 0;
  CHECK(rstd[0] == 0 && zeros == 512);
  change(args, "kind=rms eps=0");
  for (i = 0; i < 512; ++i) x[i] = i % 2 ? -1e-23f : 1e-23f;
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  for (i = 0; i < 512; ++i) infinite += isinf(y[i]) && (y[i] < 0) == (x[i] < 0);
  CHECK(isinf(rstd[0]) && infinite == 512);
  change(args, "eps=1e-30"); /* any eps > 0 that the root can hold makes it finite */
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(isfinite(rstd[0]) && isfinite(y[0]) && y[0] > 0);
}

void test_shapes(void) {
  fastnorm_context* context = cpu_context(NULL);
  broadcast(context);
  folding(context);
  quantised(context);
  one_index(context);
  beyond_range(context);
  fastnorm_context_destroy(context);
}
