/* Two rows, normalised on the CPU; fails where a value is not what RMSNorm gives. */
#include <fastnorm/fastnorm.h>
#include <stdio.h>

int main(void) {
  float x[2 * 4] = {3, 4, 0, 0, 0, 0, 5, 12}, y[2 * 4];
  const float wanted[2 * 4] = {1.2f, 1.6f, 0, 0, 0, 0, 0.769231f, 1.846154f};
  const int64_t rows[2] = {2, 4};
  const fastnorm_dtype f32 = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
  const fastnorm_tensor tx = {x, FASTNORM_DEVICE_CPU, 0, 2, f32, rows, NULL, 0};
  const fastnorm_tensor ty = {y, FASTNORM_DEVICE_CPU, 0, 2, f32, rows, NULL, 0};
  const fastnorm_device cpu = {FASTNORM_DEVICE_CPU, 0};
  fastnorm_norm_args args = {0};
  fastnorm_context* context = NULL;
  int i, wrong = 0;
  args.struct_size = sizeof args;
  args.kind = FASTNORM_NORM_RMS;
  args.x = &tx, args.y = &ty;
  if (fastnorm_context_create(cpu, NULL, &context) != FASTNORM_OK ||
      fastnorm_norm(context, &args, NULL, 0, NULL) != FASTNORM_OK) {
    fprintf(stderr, "%s\n", fastnorm_last_error());
    return 1;
  }
  for (i = 0; i < 8; ++i) {
    const float error = y[i] - wanted[i];
    wrong += !(error > -1e-5f && error < 1e-5f);
  }
  printf("libfastnorm %s: %d of 8 values are wrong\n", fastnorm_version_string(), wrong);
  fastnorm_context_destroy(context);
  return wrong != 0;
}
