/* What the files of the API test share: counts, tensors on one line, and the tests. */
#ifndef FASTNORM_TESTS_API_TEST_H_
#define FASTNORM_TESTS_API_TEST_H_

#include <fastnorm/fastnorm.h>
#include <stdio.h>
#include <string.h>

#include "support/families.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Counts `ok`. If it is 0, prints where and why. Returns ok. Thread-safe. */
int check(int ok, const char* expression, const char* file, int line);
#define CHECK(condition) check((condition) ? 1 : 0, #condition, __FILE__, __LINE__)

/* Compares a status with the required one. */
int check_status(fastnorm_status found, fastnorm_status wanted, const char* expression,
                 const char* file, int line);
#define CHECK_STATUS(expression, wanted) \
  check_status((expression), (wanted), #expression, __FILE__, __LINE__)
#define CHECK_OK(expression) CHECK_STATUS(expression, FASTNORM_OK)

/* The last error's text must contain `part`. */
#define CHECK_TEXT(part) CHECK(strstr(fastnorm_last_error(), (part)) != NULL)

/* Counts a skip, with its reason. */
void skip(const char* what, const char* why);

/* Prints the counts. Returns what main() does. */
int finish(void);

/* A tensor of rank 1 to 8 with its arrays. */
typedef struct tensor_of {
  fastnorm_tensor tensor;
  int64_t shape[8];
  int64_t strides[8];
} tensor_of;

/* Compact, row-major, on the CPU. `out` must not move afterwards. */
const fastnorm_tensor* make_tensor(tensor_of* out, void* data, fastnorm_dtype_id dtype,
                                   int32_t ndim, const int64_t* shape);
/* [rows, n] and [n]. */
const fastnorm_tensor* make_rows(tensor_of* out, void* data, fastnorm_dtype_id dtype, int64_t rows,
                                 int64_t n);
const fastnorm_tensor* make_vector(tensor_of* out, void* data, fastnorm_dtype_id dtype, int64_t n);

/* Arguments with only their struct_size. */
fastnorm_norm_args empty_args(void);
fastnorm_info empty_info(void);
fastnorm_context_options empty_options(void);

/* A CPU context; ends the program if there is none. */
fastnorm_context* cpu_context(const fastnorm_context_options* options);

/* Creates a context with a tuning file of these rules. dry_run_capability: 0 = no dry run. */
fastnorm_status create_tuned(fastnorm_device device, int32_t dry_run_capability, const char* arch,
                             const char* rules, fastnorm_context** context);

/* Pseudo-random f32 in about [-2, 2). */
void fill_random(float* values, size_t count, uint32_t seed);

void test_status(void);
void test_context(void);
void test_structs(void);
void test_shapes(void);
void test_aliasing(void);
void test_many(void);
void test_families(void);
void test_large(void);
void test_quant(void);
void test_dry_run(void);
void test_tuning(void);
void test_norm_modulation(void);
void test_norm_stages(void);
void test_cuda(void);

/* Calls of a family as lines of text (support/operands.h), with which families.cpp and
 * alloc_test.cpp test what all families promise. */
typedef struct family_lines {
  const char* call;  /* of rows for several threads; NULL = the family's own test has all of it */
  const char* empty; /* without rows */
  const char* units; /* what the CPU spreads over threads, as errors name it */
  const char* wrong; /* one of its arguments is wrong */
  const char* gpu;   /* what a GPU has in place of `call`; NULL = the same */
  const char* others[8]; /* more calls that allocate nothing; the last is NULL */
} family_lines;

/* The tests and the lines in a family's own file. */
#define FAMILY(name)      \
  void test_##name(void); \
  extern const family_lines name##_lines;
FASTNORM_FAMILIES(FAMILY)
#undef FAMILY

/* A parallel_for that throws a C++ exception. */
void throwing_loop(void* user, int64_t n, int64_t grain, fastnorm_range_fn fn, void* task);

#ifdef __cplusplus
}
#endif

#endif /* FASTNORM_TESTS_API_TEST_H_ */
