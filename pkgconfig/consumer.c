/* A user's program: knows the library by pkg-config alone. Normalises two rows and checks them. */
#include <fastnorm/fastnorm.h>
#include <math.h>
#include <stdio.h>

int main(void) {
  const fastnorm_device cpu = {FASTNORM_DEVICE_CPU, 0};
  const int64_t shape[2] = {2, 4};
  float x[8] = {1, -1, 1, -1, 3, 4, 0, 0}, y[8] = {0};
  const float expected[8] = {1, -1, 1, -1, 1.2f, 1.6f, 0, 0};
  fastnorm_tensor in = {0}, out;
  fastnorm_norm_args args = {0};
  fastnorm_context* context = NULL;
  int i;

  in.data = x;
  in.device_type = FASTNORM_DEVICE_CPU;
  in.ndim = 2;
  in.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
  in.shape = shape;
  out = in;
  out.data = y;
  args.struct_size = sizeof args;
  args.x = &in;
  args.y = &out;
  if (fastnorm_context_create(cpu, NULL, &context) != FASTNORM_OK ||
      fastnorm_norm(context, &args, NULL, 0, NULL) != FASTNORM_OK) {
    fprintf(stderr, "%s\n", fastnorm_last_error());
    return 1;
  }
  fastnorm_context_destroy(context);
  for (i = 0; i < 8; ++i) {
    if (!(fabsf(y[i] - expected[i]) < 1e-6f)) {
      fprintf(stderr, "y[%d] is %g, expected %g\n", i, (double)y[i], (double)expected[i]);
      return 1;
    }
  }
  printf("libfastnorm %s\n", fastnorm_version_string());
  return 0;
}
