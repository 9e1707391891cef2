/* Tuning files as an option of a context: what is refused, and which kernels calls run on. Dry
 * runs, so no GPU is needed. */
#include <stdlib.h>
#include <unistd.h>

#include "api/api_test.h"
#include "api/call.h"

fastnorm_status create_tuned(fastnorm_device device, int32_t dry_run_capability, const char* arch,
                             const char* rules, fastnorm_context** context) {
  char path[] = "/tmp/fastnorm_tuning_XXXXXX";
  const int fd = mkstemp(path);
  FILE* file = fd >= 0 ? fdopen(fd, "w") : NULL;
  fastnorm_context_options options = empty_options();
  fastnorm_status status;
  *context = NULL;
  if (!CHECK(file != NULL)) return FASTNORM_ERROR_INTERNAL;
  fprintf(file, "fastnorm tuning 2\nlibrary %s\narch %s\n%s", fastnorm_version_string(), arch,
          rules);
  CHECK(fclose(file) == 0);
  if (dry_run_capability != 0) options.flags = FASTNORM_CONTEXT_DRY_RUN;
  options.dry_run_capability = dry_run_capability;
  options.tuning_file = path;
  status = fastnorm_context_create(device, &options, context);
  CHECK((status == FASTNORM_OK) == (*context != NULL));
  CHECK(unlink(path) == 0); /* it is read once */
  return status;
}

static const fastnorm_device kGpu = {FASTNORM_DEVICE_CUDA, 0};

static void refused_path(fastnorm_device device, const char* path, const char* text) {
  fastnorm_context_options options = empty_options();
  fastnorm_context* context = (fastnorm_context*)&device; /* not NULL */
  options.flags = FASTNORM_CONTEXT_DRY_RUN;
  options.dry_run_capability = device.device_type == FASTNORM_DEVICE_CUDA ? 90 : 0;
  options.tuning_file = path;
  CHECK_STATUS(fastnorm_context_create(device, &options, &context), FASTNORM_ERROR_ARGUMENT);
  CHECK(context == NULL);
  CHECK_TEXT("options.tuning_file");
  CHECK_TEXT(text);
}

static void refusals(void) {
  const fastnorm_device cpu = {FASTNORM_DEVICE_CPU, 0};
  fastnorm_context* context = NULL;
  refused_path(cpu, "/nowhere/at/all", "/nowhere/at/all");
  CHECK_TEXT("required: NULL");
  refused_path(kGpu, "/nowhere/at/all", "No such file");
  refused_path(kGpu, "", "cannot be read");
  refused_path(kGpu, "/", "Is a directory");
  refused_path(kGpu, "/dev/null", "ends after 0 of the 3 lines");
  refused_path(kGpu, "/dev/zero", "longer than 1048576 bytes");
  CHECK_STATUS(create_tuned(kGpu, 80, "sm_90", "", &context), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("line 3 is \"arch sm_90\"; required: \"arch sm_80\"");
  CHECK_STATUS(create_tuned(kGpu, 90, "sm_90", "\nnorm 1 4096 quick\n", &context),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("line 5 is \"norm 1 4096 quick\"; required: KIND(");
  CHECK_STATUS(create_tuned(kGpu, 90, "sm_90", "ROWS(64, 64, 1, 1, 4, kFit, 1, full)\n", &context),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("required: ROWS, after a KIND");
  CHECK_STATUS(create_tuned(kGpu, 90, "sm_90",
                            "KIND(b16, plain, rms, own_dtype, y, aligned, lean, rows)\n"
                            "ROWS(4096, 4096, 1, 1, 96, kFit, 1, full)\n",
                            &context),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("line 5 is \"ROWS(4096, 4096, 1, 1, 96, kFit, 1, full)\"; required: a kernel");
}

/* The kernel for RMSNorm of bf16 rows. */
static const char* kernel_for(fastnorm_context* context, int64_t rows, int64_t n) {
  fastnorm_info info = empty_info();
  const fastnorm_norm_args* const args =
      dry_call_of(words("norm device=cuda:0 x,y=bf16[%d,%d]", (int)rows, (int)n));
  CHECK_OK(fastnorm_norm_query(context, args, &info));
  CHECK_OK(fastnorm_norm(context, args, NULL, (size_t)info.workspace_bytes, NULL));
  return info.kernel;
}

static void kernels(void) {
  static const char kTuned[] = "bf16 plain rms once store vector 256x4";
  fastnorm_context *tuned = NULL, *untuned = NULL;
  static const char rules[] =
      "# measured\nKIND(b16, plain, rms, own_dtype, y, aligned, full, rows)\n"
      "ROWS(4096, 4096, 4, 7, 256, 4, 1, full)\n";
  if (!CHECK_OK(create_tuned(kGpu, 90, "sm_90", rules, &tuned))) return;
  if (!CHECK_OK(create_tuned(kGpu, 90, "sm_90", "", &untuned))) return;
  CHECK(strcmp(kernel_for(untuned, 4, 4096), kTuned) != 0);
  CHECK(strcmp(kernel_for(tuned, 4, 4096), kTuned) == 0);
  CHECK(strcmp(kernel_for(tuned, 7, 4096), kTuned) == 0);
  CHECK(strcmp(kernel_for(tuned, 8, 4096), kernel_for(untuned, 8, 4096)) == 0);
  CHECK(strcmp(kernel_for(tuned, 4, 8192), kernel_for(untuned, 4, 8192)) == 0);
  fastnorm_context_destroy(tuned);
  fastnorm_context_destroy(untuned);
}

static void log_rules(void* user, int32_t level, const char* text) {
  *(int*)user += level == FASTNORM_LOG_INFO && strstr(text, "tuning: 0 rules of /") != NULL;
}

static void logging(void) {
  char path[] = "/tmp/fastnorm_tuning_XXXXXX";
  FILE* file = fdopen(mkstemp(path), "w");
  fastnorm_context_options options = empty_options();
  fastnorm_context* context = NULL;
  int calls = 0;
  fprintf(file, "fastnorm tuning 2\nlibrary %s\narch sm_90\n", fastnorm_version_string());
  fclose(file);
  options.flags = FASTNORM_CONTEXT_DRY_RUN;
  options.dry_run_capability = 90;
  options.tuning_file = path;
  options.log = log_rules;
  options.log_user = &calls;
  CHECK_OK(fastnorm_context_create(kGpu, &options, &context));
  CHECK(calls == 1);
  fastnorm_context_destroy(context);
  unlink(path);
}

void test_tuning(void) {
  refusals();
  kernels();
  logging();
}
