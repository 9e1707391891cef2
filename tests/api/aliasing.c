/* Tensors that share memory. Allowed sharing gives the same bits. Other sharing is refused and
 * changes nothing. */
#include "api/api_test.h"
#include "api/call.h"

enum { kRows = 3, kN = 40, kCount = kRows * kN };

static void in_place(fastnorm_context* context) {
  float x[kCount], r[kCount], y[kCount], sum[kCount], own_x[kCount], own_r[kCount];
  fastnorm_norm_args* const args =
      NORM("kind=layer eps=1e-05 x,residual,y,residual_out=f32[3,40]", x, r, y, sum);
  fill_random(x, kCount, 1);
  fill_random(r, kCount, 2);
  memcpy(own_x, x, sizeof x);
  memcpy(own_r, r, sizeof r);
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(memcmp(x, own_x, sizeof x) == 0 && memcmp(r, own_r, sizeof r) == 0);
  change(args, "y.address=x residual_out.address=residual");
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(memcmp(x, y, sizeof x) == 0);
  CHECK(memcmp(r, sum, sizeof r) == 0);
}

/* y overlaps `over`, `shift` elements further. */
static void overlap(fastnorm_context* context, int shift, fastnorm_status wanted) {
  float memory[3 * kCount], before[3 * kCount];
  fill_random(memory, 3 * kCount, 3);
  memcpy(before, memory, sizeof memory);
  CHECK_STATUS(
      fastnorm_norm(context, NORM("x,y=f32[3,40]", memory + kCount, memory + kCount + shift), NULL,
                    0, NULL),
      wanted);
  if (wanted == FASTNORM_OK) return;
  CHECK_TEXT("overlaps");
  CHECK(memcmp(memory, before, sizeof memory) == 0);
}

static void columns(fastnorm_context* context) {
  float x[kCount], y[kCount];
  fastnorm_norm_args* const args = NORM("x,y=f32[3,40] weight=f32[40]", x, y, y + kN);
  fill_random(x, kCount, 4);
  CHECK_STATUS(fastnorm_norm(context, args, NULL, 0, NULL), FASTNORM_ERROR_LAYOUT);
  CHECK_TEXT("y");
  CHECK_TEXT("weight");
  change(args, "weight.address=x"); /* two inputs may share */
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
}

/* y over the residual, residual_out over x, and both: graph allocators reuse buffers like this. The
 * rows are long enough for streaming stores. */
static void crossed(fastnorm_context* context) {
  enum { kLong = 3000, kLongCount = kRows * kLong };
  static float x[kLongCount], r[kLongCount], y[kLongCount], sum[kLongCount], a[kLongCount],
      b[kLongCount];
  int which;
  fill_random(x, kLongCount, 7);
  fill_random(r, kLongCount, 8);
  for (which = 0; which < 4; ++which) {
    const int over_residual = which & 1, over_x = which >> 1;
    fastnorm_norm_args* const args =
        NORM("kind=layer eps=1e-05 x,residual,y,residual_out=f32[3,3000]", a, b, y, sum);
    memcpy(a, x, sizeof x);
    memcpy(b, r, sizeof r);
    if (over_residual) change(args, "y.address=residual");
    if (over_x) change(args, "residual_out.address=x");
    CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
    CHECK(memcmp(over_residual ? b : y, y, sizeof y) == 0); /* which 0 has set y and sum */
    CHECK(memcmp(over_x ? a : sum, sum, sizeof sum) == 0);
    CHECK(memcmp(a, over_x ? sum : x, sizeof x) == 0);
    CHECK(memcmp(b, over_residual ? y : r, sizeof r) == 0);
  }
}

/* One output at most may overwrite an input, and no two outputs may overlap. */
static void wrong_pairs(fastnorm_context* context) {
  static const char* const wrong[] = {"y,residual_out.address=residual", "y,residual_out.address=x",
                                      ""};
  float x[kCount], r[kCount], y[kCount];
  int i;
  fill_random(x, kCount, 5);
  fill_random(r, kCount, 6);
  for (i = 0; i < 3; ++i) {
    fastnorm_norm_args* const args = NORM("x,residual,y,residual_out=f32[3,40]", x, r, y, y);
    change(args, wrong[i]);
    CHECK_STATUS(fastnorm_norm(context, args, NULL, 0, NULL), FASTNORM_ERROR_LAYOUT);
  }
}

void test_aliasing(void) {
  fastnorm_context* context = cpu_context(NULL);
  in_place(context);
  overlap(context, 0, FASTNORM_OK);
  overlap(context, 1, FASTNORM_ERROR_LAYOUT);
  overlap(context, -1, FASTNORM_ERROR_LAYOUT);
  overlap(context, kN, FASTNORM_ERROR_LAYOUT);
  overlap(context, kCount - 1, FASTNORM_ERROR_LAYOUT);
  overlap(context, kCount, FASTNORM_OK);
  overlap(context, -kCount, FASTNORM_OK);
  columns(context);
  crossed(context);
  wrong_pairs(context);
  fastnorm_context_destroy(context);
}
