/* Dry runs: planning for any GPU without one, with addresses that do not exist. */
#include "api/api_test.h"
#include "api/call.h"

static fastnorm_status create(int32_t device_type, int32_t capability, fastnorm_context** context) {
  fastnorm_device device;
  fastnorm_context_options options = empty_options();
  device.device_type = device_type;
  device.device_id = 0;
  options.flags = FASTNORM_CONTEXT_DRY_RUN;
  options.dry_run_capability = capability;
  return fastnorm_context_create(device, &options, context);
}

static void plans(int32_t capability) {
  static const int64_t kRows[] = {1, 128, 4096}, kColumns[] = {1, 64, 1000, 4096, 65536, 1048576};
  fastnorm_context* context = NULL;
  size_t i, j;
  if (!CHECK_OK(create(FASTNORM_DEVICE_CUDA, capability, &context))) return;
  for (i = 0; i < sizeof kRows / sizeof *kRows; ++i) {
    for (j = 0; j < sizeof kColumns / sizeof *kColumns; ++j) {
      const int64_t rows = kRows[i], n = kColumns[j];
      const fastnorm_norm_args* const args = dry_call_of(
          words("norm device=cuda:0 x,y=bf16[%d,%d] weight=bf16[%d]", (int)rows, (int)n, (int)n));
      fastnorm_info info = empty_info();
      CHECK_OK(fastnorm_norm_query(context, args, &info));
      CHECK(info.launches == 1 && info.kernel[0] != '\0' && info.blocks >= 1);
      CHECK(info.bytes_read == (uint64_t)(rows * n + n) * 2);
      CHECK(info.bytes_written == (uint64_t)(rows * n) * 2);
      CHECK(info.threads_per_row >= 1 && info.blocks_per_row >= 1);
      CHECK(info.vectors_per_thread == 0 ||
            (int64_t)info.vectors_per_thread * info.threads_per_row * 8 >= n);
      CHECK(capability >= 90 || info.blocks_per_row == 1); /* no clusters before */
      CHECK_OK(fastnorm_norm_prepare(context, args));
      CHECK_OK(fastnorm_norm(context, args, NULL, (size_t)info.workspace_bytes, NULL));
    }
  }
  fastnorm_context_destroy(context);
}

/* Calls that share a kernel for short rows are one launch. Other calls are not. */
static void launches(int32_t capability) {
  fastnorm_context* context = NULL;
  fastnorm_norm_args* args[3];
  const fastnorm_norm_args* list[3];
  const int kColumns[3] = {128, 128, 8192};
  fastnorm_info info = empty_info();
  int i;
  if (!CHECK_OK(create(FASTNORM_DEVICE_CUDA, capability, &context))) return;
  for (i = 0; i < 3; ++i) {
    args[i] =
        dry_call_of(words("norm device=cuda:0 x,y=bf16[%d,%d] x.address=0x%llx y.address=0x%llx",
                          1000 << i, kColumns[i], 0x100000000000ull + 0x10000000000ull * i,
                          0x200000000000ull + 0x10000000000ull * i));
    list[i] = args[i];
  }
  CHECK_OK(fastnorm_norm_many_query(context, list, 2, &info));
  CHECK(info.launches == 1);
  CHECK_OK(fastnorm_norm_many_query(context, list, 3, &info));
  CHECK(info.launches == 2); /* another length */
  args[1]->flags = capability >= 90 ? FASTNORM_NORM_NO_PDL : FASTNORM_NORM_PDL_WAIT;
  CHECK_OK(fastnorm_norm_many_query(context, list, 2, &info));
  CHECK(info.launches == 2); /* one of the two waits inside its kernel */
  args[1]->flags = 0;
  args[1]->weight_offset = 0;
  args[1]->rounding = FASTNORM_ROUND_EVERY_STEP;
  CHECK_OK(fastnorm_norm_many_query(context, list, 2, &info));
  CHECK(info.launches == 2); /* another kernel */
  CHECK_OK(fastnorm_norm_many(context, list, 3, NULL, 0, NULL));
  fastnorm_context_destroy(context);
}

/* Query heads and a single key head, whose dimension is no index of a row. With the tuning file
 * only their tiles differ. In one call they are one launch, on the tile of the call with more
 * rows. */
static void one_key_head(int32_t capability, const char* arch) {
  static const char kFewRows[] =
      "KIND(b16, plain, rms, own_dtype, y, aligned, full, rows)\n"
      "ROWS(128, 128, 1, 4096, 32, 4, 1, full)\n";
  const fastnorm_device gpu = {FASTNORM_DEVICE_CUDA, 0};

  fastnorm_context* context = NULL;
  fastnorm_norm_args* args[2];
  const fastnorm_norm_args* list[2];
  fastnorm_info alone[2], info = empty_info();
  int i;
  if (!CHECK_OK(create_tuned(gpu, capability, arch, kFewRows, &context))) return;
  for (i = 0; i < 2; ++i) {
    args[i] = dry_call_of(words(
        "norm device=cuda:0 x,y=bf16[2048,%d,128] x,y.strides=[8448,128,1] x,y.address=0x%llx",
        i == 0 ? 64 : 1, 0x100000000000ull + 64 * 256 * (unsigned long long)i));
    list[i] = args[i];
    alone[i] = empty_info();
    CHECK_OK(fastnorm_norm_query(context, args[i], &alone[i]));
  }
  CHECK(strcmp(alone[0].kernel, alone[1].kernel) != 0);
  CHECK_OK(fastnorm_norm_many_query(context, list, 2, &info));
  CHECK(info.launches == 1);
  CHECK(strcmp(info.kernel, alone[0].kernel) == 0); /* that of the more rows */
  CHECK_OK(fastnorm_norm_many(context, list, 2, NULL, 0, NULL));
  change(args[1], "x,y.shape=[0,1,128]"); /* beside a part without rows */
  list[0] = args[1];
  list[1] = args[0];
  CHECK_OK(fastnorm_norm_many_query(context, list, 2, &info));
  CHECK(info.launches == 1);
  fastnorm_context_destroy(context);
}

static void refusals(void) {
  fastnorm_context* context = NULL;
  CHECK_STATUS(create(FASTNORM_DEVICE_CUDA, 70, &context), FASTNORM_ERROR_UNSUPPORTED);
  CHECK_TEXT("dry_run_capability is 70");
  CHECK(context == NULL);
  CHECK(create(FASTNORM_DEVICE_CUDA, 0, &context) != FASTNORM_OK);
  CHECK(create(FASTNORM_DEVICE_CUDA, -5, &context) != FASTNORM_OK);
  CHECK_STATUS(create(FASTNORM_DEVICE_CPU, 90, &context), FASTNORM_ERROR_ARGUMENT);
}

/* A dry run makes the checks of a real context. */
static void checks(void) {
  fastnorm_context* context = NULL;
  int stream;
  fastnorm_norm_args* const args =
      dry_call_of("norm device=cuda:0 x,y=bf16[4,64] x,y.address=0x101");
  if (!CHECK_OK(create(FASTNORM_DEVICE_CUDA, 90, &context))) return;
  CHECK_STATUS(fastnorm_norm(context, args, NULL, 0, NULL), FASTNORM_ERROR_LAYOUT);
  change(args, "x,y.address=0x100 x,y.device=cpu:0");
  CHECK_STATUS(fastnorm_norm(context, args, NULL, 0, NULL), FASTNORM_ERROR_DEVICE);
  change(args, "x,y.device=13:0"); /* managed memory */
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, NULL));
  CHECK_OK(fastnorm_norm(context, args, NULL, 0, &stream)); /* any stream */
  change(args, "x,y.shape=[8589934592,64] x,y.device=cuda:0");
  CHECK_STATUS(fastnorm_norm(context, args, NULL, 0, NULL), FASTNORM_ERROR_UNSUPPORTED);
  CHECK_TEXT("8589934592 rows");
  fastnorm_context_destroy(context);
}

void test_dry_run(void) {
  static const struct {
    int32_t capability;
    const char* arch; /* of the kernels that it runs */
  } kGpus[] = {{80, "sm_80"},    {86, "sm_80"},    {90, "sm_90"},   {100, "sm_100f"},
               {103, "sm_100f"}, {120, "sm_120f"}, {121, "sm_120f"}};
  size_t i;
  for (i = 0; i < sizeof kGpus / sizeof *kGpus; ++i) {
    plans(kGpus[i].capability);
    launches(kGpus[i].capability);
    one_key_head(kGpus[i].capability, kGpus[i].arch);
  }
  refusals();
  checks();
}
