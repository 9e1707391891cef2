/* Tensors that share memory: what may, gives the same bits; what may not, is refused and changes nothing. */
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

/* y over the memory of `over`, `shift` elements on. */
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

/* Pairs that are not x and y, or residual and residual_out, share nothing. */
static void wrong_pairs(fastnorm_context* context) {
  float x[kCount], r[kCount], y[kCount];
  tensor_of tx, tr, ty;
  fastnorm_norm_args args = empty_args();
  fill_random(x, kCount, 5);
  fill_random(r, kCount, 6);
  args.x = make_rows(&tx, x, FASTNORM_DTYPE_F32, kRows, kN);
  args.residual = make_rows(&tr, r, FASTNORM_DTYPE_F32, kRows, kN);
  args.y = args.residual;
  CHECK_STATUS(fastnorm_norm(context, &args, NULL, 0, NULL), FASTNORM_ERROR_LAYOUT);
  args.y = make_rows(&ty, y, FASTNORM_DTYPE_F32, kRows, kN);
  args.residual_out = args.x;
  CHECK_STATUS(fastnorm_norm(context, &args, NULL, 0, NULL), FASTNORM_ERROR_LAYOUT);
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
  wrong_pairs(context);
  fastnorm_context_destroy(context);
}
