/* Tensors that share memory. Allowed sharing gives the same bits. Other sharing is refused and
 * changes nothing. */
#include "api/api_test.h"

enum { kRows = 3, kN = 40, kCount = kRows * kN };

static void in_place(fastnorm_context* context) {
  float x[kCount], r[kCount], y[kCount], sum[kCount], own_x[kCount], own_r[kCount];
  tensor_of tx, tr, ty, ts;
  fastnorm_norm_args args = empty_args();
  fill_random(x, kCount, 1);
  fill_random(r, kCount, 2);
  memcpy(own_x, x, sizeof x);
  memcpy(own_r, r, sizeof r);
  args.kind = FASTNORM_NORM_LAYER;
  args.eps = 1e-5f;
  args.x = make_rows(&tx, x, FASTNORM_DTYPE_F32, kRows, kN);
  args.residual = make_rows(&tr, r, FASTNORM_DTYPE_F32, kRows, kN);
  args.y = make_rows(&ty, y, FASTNORM_DTYPE_F32, kRows, kN);
  args.residual_out = make_rows(&ts, sum, FASTNORM_DTYPE_F32, kRows, kN);
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  CHECK(memcmp(x, own_x, sizeof x) == 0 && memcmp(r, own_r, sizeof r) == 0);
  args.y = args.x;
  args.residual_out = args.residual;
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  CHECK(memcmp(x, y, sizeof x) == 0);
  CHECK(memcmp(r, sum, sizeof r) == 0);
}

/* y overlaps `over`, `shift` elements further. */
static void overlap(fastnorm_context* context, int shift, fastnorm_status wanted) {
  float memory[3 * kCount], before[3 * kCount];
  tensor_of tx, ty;
  fastnorm_norm_args args = empty_args();
  fill_random(memory, 3 * kCount, 3);
  memcpy(before, memory, sizeof memory);
  args.x = make_rows(&tx, memory + kCount, FASTNORM_DTYPE_F32, kRows, kN);
  args.y = make_rows(&ty, memory + kCount + shift, FASTNORM_DTYPE_F32, kRows, kN);
  CHECK_STATUS(fastnorm_norm(context, &args, NULL, 0, NULL), wanted);
  if (wanted == FASTNORM_OK) return;
  CHECK_TEXT("overlaps");
  CHECK(memcmp(memory, before, sizeof memory) == 0);
}

static void columns(fastnorm_context* context) {
  float x[kCount], y[kCount];
  tensor_of tx, ty, tw;
  fastnorm_norm_args args = empty_args();
  fill_random(x, kCount, 4);
  args.x = make_rows(&tx, x, FASTNORM_DTYPE_F32, kRows, kN);
  args.y = make_rows(&ty, y, FASTNORM_DTYPE_F32, kRows, kN);
  args.weight = make_vector(&tw, y + kN, FASTNORM_DTYPE_F32, kN);
  CHECK_STATUS(fastnorm_norm(context, &args, NULL, 0, NULL), FASTNORM_ERROR_LAYOUT);
  CHECK_TEXT("y");
  CHECK_TEXT("weight");
  args.weight = make_vector(&tw, x, FASTNORM_DTYPE_F32, kN); /* two inputs may share */
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
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
    tensor_of ta, tb, ty, ts;
    fastnorm_norm_args args = empty_args();
    const int over_residual = which & 1, over_x = which >> 1;
    memcpy(a, x, sizeof x);
    memcpy(b, r, sizeof r);
    args.kind = FASTNORM_NORM_LAYER;
    args.eps = 1e-5f;
    args.x = make_rows(&ta, a, FASTNORM_DTYPE_F32, kRows, kLong);
    args.residual = make_rows(&tb, b, FASTNORM_DTYPE_F32, kRows, kLong);
    args.y = over_residual ? args.residual : make_rows(&ty, y, FASTNORM_DTYPE_F32, kRows, kLong);
    args.residual_out = over_x ? args.x : make_rows(&ts, sum, FASTNORM_DTYPE_F32, kRows, kLong);
    CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
    CHECK(memcmp(over_residual ? b : y, y, sizeof y) == 0); /* which 0 has set y and sum */
    CHECK(memcmp(over_x ? a : sum, sum, sizeof sum) == 0);
    CHECK(memcmp(a, over_x ? sum : x, sizeof x) == 0);
    CHECK(memcmp(b, over_residual ? y : r, sizeof r) == 0);
  }
}

/* One output at most may overwrite an input, and no two outputs may overlap. */
static void wrong_pairs(fastnorm_context* context) {
  float x[kCount], r[kCount], y[kCount];
  tensor_of tx, tr, ty;
  fastnorm_norm_args args = empty_args();
  fill_random(x, kCount, 5);
  fill_random(r, kCount, 6);
  args.x = make_rows(&tx, x, FASTNORM_DTYPE_F32, kRows, kN);
  args.residual = make_rows(&tr, r, FASTNORM_DTYPE_F32, kRows, kN);
  args.y = args.residual_out = args.residual;
  CHECK_STATUS(fastnorm_norm(context, &args, NULL, 0, NULL), FASTNORM_ERROR_LAYOUT);
  args.y = args.residual_out = args.x;
  CHECK_STATUS(fastnorm_norm(context, &args, NULL, 0, NULL), FASTNORM_ERROR_LAYOUT);
  args.y = make_rows(&ty, y, FASTNORM_DTYPE_F32, kRows, kN);
  args.residual_out = args.y;
  CHECK_STATUS(fastnorm_norm(context, &args, NULL, 0, NULL), FASTNORM_ERROR_LAYOUT);
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
