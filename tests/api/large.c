/* More than 2^31 elements. The memory is mostly address space: far rows of a sparse mapping, or one
 * small file that is mapped repeatedly. A tensor of gigabytes takes megabytes of memory. */
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "api/api_test.h"
#include "api/call.h"

static const uint16_t kOne = 0x3f80, kTwo = 0x4000, kFour = 0x4080; /* bf16 */

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Three rows at distances of 2^30 elements and more. Their offsets do not fit in 32 bits. */
static void far_rows(fastnorm_context* context) {
  const int64_t n = 1000, stride = ((int64_t)1 << 30) + 13;
  const size_t bytes = (size_t)(2 * stride + n) * 2;
  uint16_t* memory = (uint16_t*)mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  fastnorm_norm_args* const args =
      NORM("x,y=bf16[3,1000] x,y.strides=[1073741837,1]", memory, memory);
  int64_t r, i, wrong = 0;
  if (memory == MAP_FAILED) {
    skip("rows far apart", "no 4 GiB of address space");
    return;
  }
  for (r = 0; r < 3; ++r) {
    for (i = 0; i < n; ++i) memory[r * stride + i] = kTwo;
  }
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  for (r = 0; r < 3; ++r) {
    for (i = 0; i < n; ++i) wrong += memory[r * stride + i] != kOne;
  }
  CHECK(wrong == 0);
  CHECK(memory[n] == 0 && memory[stride - 1] == 0 && memory[2 * stride - 1] == 0);
  /* Backwards: negative strides of the same size. */
  change(args, "x,y=bf16[3,1000] x,y.strides=[-1073741837,1]", memory + 2 * stride,
         memory + 2 * stride);
  for (r = 0; r < 3; ++r) memory[r * stride] = kFour;
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(memory[0] == memory[2 * stride] && memory[1] == memory[2 * stride + 1]);
  CHECK(memory[0] != kFour && memory[0] > kTwo);
  munmap(memory, bytes);
}

/* `bytes` of address space in which every window of 2 MiB is the same memory; NULL if that
 * fails. */
static uint16_t* repeated_memory(size_t bytes) {
  const size_t window = (size_t)2 << 20;
  char name[] = "/dev/shm/fastnorm-api-XXXXXX";
  const int file = mkstemp(name);
  unsigned char* memory;
  size_t at;
  if (file < 0) return NULL;
  unlink(name);
  memory = (unsigned char*)mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                                -1, 0);
  if (memory == MAP_FAILED || ftruncate(file, (off_t)window) != 0) {
    close(file);
    return NULL;
  }
  for (at = 0; at < bytes; at += window) {
    const size_t size = bytes - at < window ? bytes - at : window;
    if (mmap(memory + at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) ==
        MAP_FAILED) {
      munmap(memory, bytes);
      close(file);
      return NULL;
    }
  }
  close(file);
  return (uint16_t*)memory;
}

/* Seconds for 2^31 elements, predicted from 2^20. */
static double predicted_seconds(fastnorm_context* context, uint16_t* x, uint16_t* y) {
  const fastnorm_norm_args* const args = NORM("x,y=bf16[512,1024]", x, y);
  double start;
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  start = seconds();
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  return (seconds() - start) * 4096;
}

/* A few more than 2^31 elements, in many rows and in one row. */
static void dense(fastnorm_context* context, uint16_t* x, uint16_t* y) {
  const int64_t n = 1024, rows = ((int64_t)1 << 21) + 3, all = ((int64_t)1 << 31) + 17;
  float rstd = 0;
  fastnorm_norm_args* const args = NORM("x,y=bf16[2097155,1024]", x, y);
  int64_t i;
  y[(rows * n) % (1 << 20)] = 0;
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(y[0] == kOne && y[rows * n - 1] == kOne);

  for (i = 0; i < 1 << 20; ++i) y[i] = 0;
  change(args, "x,y=bf16[2147483665] rstd=f32[1]", x, y, &rstd);
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK(rstd == 0.5f); /* the sum of 2^31 and 17 fours is 2^33 in single precision */
  CHECK(y[0] == kOne && y[all - 1] == kOne && y[(1 << 20) - 1] == kOne);
}

static void more_than_32_bits(fastnorm_context* context) {
  const char* what = "more than 2^31 elements in a tensor";
  const size_t bytes = (((size_t)1 << 31) + 4096) * 2;
  uint16_t *x = repeated_memory(bytes), *y = repeated_memory(bytes);
  int64_t i;
  if (x == NULL || y == NULL) {
    skip(what, "no shared memory or address space for the mappings");
    return;
  }
  for (i = 0; i < 1 << 20; ++i) x[i] = kTwo;
  if (predicted_seconds(context, x, y) > 6) {
    skip(what,
         "would take longer than 6 s for a pass here (instruction set, emulator or sanitizer)");
  } else {
    dense(context, x, y);
  }
  munmap(x, bytes);
  munmap(y, bytes);
}

void test_large(void) {
  fastnorm_context* context = cpu_context(NULL);
  far_rows(context);
  more_than_32_bits(context);
  fastnorm_context_destroy(context);
}
