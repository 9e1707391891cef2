/* The C ABI as a C program uses it: only the shared library and the public headers. */
#include "api/api_test.h"

int main(void) {
  test_status();
  test_context();
  test_structs();
  test_shapes();
  test_aliasing();
  test_many();
  test_families();
  test_large();
  test_quant();
  test_dry_run();
  test_tuning();
  test_norm_modulation();
  test_norm_stages();
#define FAMILY(name) test_##name();
  FASTNORM_FAMILIES(FAMILY)
#undef FAMILY
  test_cuda();
  return finish();
}
