/* Dry runs: planning for any GPU without one, with addresses that do not exist. */
#include "api/api_test.h"

static fastnorm_status create(int32_t device_type, int32_t capability, fastnorm_context** context) {
  fastnorm_device device;
  fastnorm_context_options options = empty_options();
  device.device_type = device_type;
  device.device_id = 0;
  options.flags = FASTNORM_CONTEXT_DRY_RUN;
  options.dry_run_capability = capability;
  return fastnorm_context_create(device, &options, context);
}

static const fastnorm_tensor* fake(tensor_of* t, uintptr_t address, int64_t rows, int64_t n) {
  make_rows(t, (void*)address, FASTNORM_DTYPE_BF16, rows, n);
  t->tensor.device_type = FASTNORM_DEVICE_CUDA;
  return &t->tensor;
}

static void plans(int32_t capability) {
  static const int64_t kRows[] = {1, 128, 4096}, kColumns[] = {1, 64, 1000, 4096, 65536, 1048576};
  fastnorm_context* context = NULL;
  tensor_of tx, ty, tw;
  size_t i, j;
  if (!CHECK_OK(create(FASTNORM_DEVICE_CUDA, capability, &context))) return;
  for (i = 0; i < sizeof kRows / sizeof *kRows; ++i) {
    for (j = 0; j < sizeof kColumns / sizeof *kColumns; ++j) {
      const int64_t rows = kRows[i], n = kColumns[j];
      fastnorm_norm_args args = empty_args();
      fastnorm_info info = empty_info();
      args.x = fake(&tx, 0x100000000000u, rows, n);
      args.y = fake(&ty, 0x200000000000u, rows, n);
      args.weight = make_vector(&tw, (void*)(uintptr_t)0x300000000000u, FASTNORM_DTYPE_BF16, n);
      tw.tensor.device_type = FASTNORM_DEVICE_CUDA;
      CHECK_OK(fastnorm_norm_query(context, &args, &info));
      CHECK(info.launches == 1 && info.kernel[0] != '\0' && info.blocks >= 1);
      CHECK(info.bytes_read == (uint64_t)(rows * n + n) * 2);
      CHECK(info.bytes_written == (uint64_t)(rows * n) * 2);
      CHECK(info.threads_per_row >= 1 && info.blocks_per_row >= 1);
      CHECK(info.vectors_per_thread == 0 ||
            (int64_t)info.vectors_per_thread * info.threads_per_row * 8 >= n);
      CHECK(capability >= 90 || info.blocks_per_row == 1); /* no clusters before */
      CHECK_OK(fastnorm_norm_prepare(context, &args));
      CHECK_OK(fastnorm_norm(context, &args, NULL, (size_t)info.workspace_bytes, NULL));
    }
  }
  fastnorm_context_destroy(context);
}

/* Calls that share a kernel for short rows are one launch. Other calls are not. */
static void launches(int32_t capability) {
  fastnorm_context* context = NULL;
  tensor_of tx[3], ty[3];
  fastnorm_norm_args args[3];
  const fastnorm_norm_args* list[3];
  const int64_t kColumns[3] = {128, 128, 8192};
  fastnorm_info info = empty_info();
  int i;
  if (!CHECK_OK(create(FASTNORM_DEVICE_CUDA, capability, &context))) return;
  for (i = 0; i < 3; ++i) {
    args[i] = empty_args();
    args[i].x = fake(&tx[i], (uintptr_t)(0x100000000000u + 0x10000000000u * (unsigned)i), 1000 << i,
                     kColumns[i]);
    args[i].y = fake(&ty[i], (uintptr_t)(0x200000000000u + 0x10000000000u * (unsigned)i), 1000 << i,
                     kColumns[i]);
    list[i] = &args[i];
  }
  CHECK_OK(fastnorm_norm_many_query(context, list, 2, &info));
  CHECK(info.launches == 1);
  CHECK_OK(fastnorm_norm_many_query(context, list, 3, &info));
  CHECK(info.launches == 2); /* another length */
  args[1].flags = capability >= 90 ? FASTNORM_NORM_NO_PDL : FASTNORM_NORM_PDL_WAIT;
  CHECK_OK(fastnorm_norm_many_query(context, list, 2, &info));
  CHECK(info.launches == 2); /* one of the two waits inside its kernel */
  args[1].flags = 0;
  args[1].weight_offset = 0;
  args[1].rounding = FASTNORM_ROUND_EVERY_STEP;
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

  const int64_t kTokens = 2048, kSize = 128, kHeads[2] = {64, 1};
  fastnorm_context* context = NULL;
  tensor_of tensors[2];
  fastnorm_norm_args args[2];
  const fastnorm_norm_args* list[2];
  fastnorm_info alone[2], info = empty_info();
  int i;
  if (!CHECK_OK(create_tuned(gpu, capability, arch, kFewRows, &context))) return;
  for (i = 0; i < 2; ++i) {
    const int64_t shape[3] = {kTokens, kHeads[i], kSize};
    make_tensor(&tensors[i], (void*)(uintptr_t)(0x100000000000u + (uintptr_t)i * 64 * 256),
                FASTNORM_DTYPE_BF16, 3, shape);
    tensors[i].strides[0] = 66 * kSize;
    tensors[i].tensor.device_type = FASTNORM_DEVICE_CUDA;
    args[i] = empty_args();
    args[i].x = args[i].y = &tensors[i].tensor;
    list[i] = &args[i];
    alone[i] = empty_info();
    CHECK_OK(fastnorm_norm_query(context, &args[i], &alone[i]));
  }
  CHECK(strcmp(alone[0].kernel, alone[1].kernel) != 0);
  CHECK_OK(fastnorm_norm_many_query(context, list, 2, &info));
  CHECK(info.launches == 1);
  CHECK(strcmp(info.kernel, alone[0].kernel) == 0); /* that of the more rows */
  CHECK_OK(fastnorm_norm_many(context, list, 2, NULL, 0, NULL));
  tensors[1].shape[0] = 0; /* beside a part without rows */
  list[0] = &args[1];
  list[1] = &args[0];
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
  tensor_of tx;
  fastnorm_norm_args args = empty_args();
  if (!CHECK_OK(create(FASTNORM_DEVICE_CUDA, 90, &context))) return;
  args.x = args.y = fake(&tx, 0x100000000001u, 4, 64);
  CHECK_STATUS(fastnorm_norm(context, &args, NULL, 0, NULL), FASTNORM_ERROR_LAYOUT);
  args.x = args.y = fake(&tx, 0x100000000000u, 4, 64);
  tx.tensor.device_type = FASTNORM_DEVICE_CPU;
  CHECK_STATUS(fastnorm_norm(context, &args, NULL, 0, NULL), FASTNORM_ERROR_DEVICE);
  tx.tensor.device_type = FASTNORM_DEVICE_CUDA_MANAGED;
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, &tx)); /* any stream */
  args.x = args.y = fake(&tx, 0x100000000000u, (int64_t)1 << 33, 64);
  CHECK_STATUS(fastnorm_norm(context, &args, NULL, 0, NULL), FASTNORM_ERROR_UNSUPPORTED);
  CHECK_TEXT("8589934592 rows");
  fastnorm_context_destroy(context);
}

static void on_the_cpu(void) {
  float x[64], before[64];
  fastnorm_context* context = NULL;
  tensor_of t;
  fastnorm_norm_args args = empty_args();
  if (!CHECK_OK(create(FASTNORM_DEVICE_CPU, 0, &context))) return;
  fill_random(x, 64, 20);
  memcpy(before, x, sizeof x);
  args.x = args.y = make_rows(&t, x, FASTNORM_DTYPE_F32, 4, 16);
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  CHECK(memcmp(x, before, sizeof x) == 0);
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
  on_the_cpu();
}
