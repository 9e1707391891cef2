/* Contexts, devices, kernels, logging. */
#include <stdlib.h>

#include "api/api_test.h"
#include "api/call.h"

static const fastnorm_device kCpu = {FASTNORM_DEVICE_CPU, 0};

static void devices(void) {
  int32_t count = -1;
  fastnorm_device_info info;
  fastnorm_device bad = {FASTNORM_DEVICE_CPU, 1};
  CHECK_OK(fastnorm_device_count(FASTNORM_DEVICE_CPU, &count));
  CHECK(count == 1);
  count = -1;
  CHECK_OK(fastnorm_device_count(FASTNORM_DEVICE_CUDA, &count));
  CHECK(count >= 0);
  CHECK_STATUS(fastnorm_device_count(FASTNORM_DEVICE_CUDA_HOST, &count), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("device_type is 3");
  CHECK_STATUS(fastnorm_device_count(FASTNORM_DEVICE_CPU, NULL), FASTNORM_ERROR_ARGUMENT);

  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  CHECK_OK(fastnorm_device_describe(kCpu, &info));
  CHECK(info.struct_size == sizeof info);
  CHECK(info.name[0] != '\0' && memchr(info.name, 0, sizeof info.name) != NULL);
  CHECK(info.capability == 0 && info.driver_version == 0 && info.memory_bytes == 0);
  CHECK(info.multiprocessors >= 1);
  CHECK(info.l2_bytes >= 64 * 1024);
  CHECK(info.kernel_arch != NULL && info.kernel_arch[0] != '\0');
  info.struct_size = sizeof info - 1;
  CHECK_STATUS(fastnorm_device_describe(kCpu, &info), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("info.struct_size");
  CHECK_STATUS(fastnorm_device_describe(kCpu, NULL), FASTNORM_ERROR_ARGUMENT);
  info.struct_size = sizeof info;
  CHECK_STATUS(fastnorm_device_describe(bad, &info), FASTNORM_ERROR_DEVICE);
  bad.device_type = 77;
  CHECK_STATUS(fastnorm_device_describe(bad, &info), FASTNORM_ERROR_ARGUMENT);
}

static void refused(fastnorm_device device, const fastnorm_context_options* options,
                    fastnorm_status wanted, const char* text) {
  fastnorm_context* context = (fastnorm_context*)&device; /* not NULL */
  CHECK_STATUS(fastnorm_context_create(device, options, &context), wanted);
  CHECK(context == NULL);
  CHECK_TEXT(text);
}

static void bad_options(void) {
  fastnorm_device device = kCpu;
  fastnorm_context_options options = empty_options();
  CHECK_STATUS(fastnorm_context_create(kCpu, NULL, NULL), FASTNORM_ERROR_ARGUMENT);
  device.device_type = 9;
  refused(device, NULL, FASTNORM_ERROR_ARGUMENT, "device.device_type is 9");
  device.device_type = FASTNORM_DEVICE_CPU;
  device.device_id = 1;
  refused(device, NULL, FASTNORM_ERROR_DEVICE, "device.device_id is 1");
  options.num_threads = -1;
  refused(kCpu, &options, FASTNORM_ERROR_ARGUMENT, "options.num_threads is -1");
  options.num_threads = 1025;
  refused(kCpu, &options, FASTNORM_ERROR_ARGUMENT, "options.num_threads is 1025");
  options = empty_options();
  options.flags = 0x80;
  refused(kCpu, &options, FASTNORM_ERROR_ARGUMENT, "options.flags is 0x80");
  options = empty_options();
  options.reserved = 1;
  refused(kCpu, &options, FASTNORM_ERROR_ARGUMENT, "options.reserved is 1");
  options = empty_options();
  options.dry_run_capability = 90;
  refused(kCpu, &options, FASTNORM_ERROR_ARGUMENT, "options.dry_run_capability is 90");
  options = empty_options();
  options.struct_size = 8;
  refused(kCpu, &options, FASTNORM_ERROR_ARGUMENT, "options.struct_size is 8");
}

static void no_gpu(void) {
  const fastnorm_device far_gpu = {FASTNORM_DEVICE_CUDA, 9999},
                        negative = {FASTNORM_DEVICE_CUDA, -1};
  fastnorm_device_info info;
  refused(far_gpu, NULL, FASTNORM_ERROR_DEVICE, "required");
  refused(negative, NULL, FASTNORM_ERROR_DEVICE, "required");
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  CHECK_STATUS(fastnorm_device_describe(far_gpu, &info), FASTNORM_ERROR_DEVICE);
}

/* --- kernels --- */

static void kernels(void) {
  const int32_t count = fastnorm_kernel_count();
  fastnorm_kernel_info info, other;
  int32_t i, doubles = 0;
  CHECK(count >= 24);
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  other = info;
  for (i = 0; i < count; ++i) {
    if (!CHECK_OK(fastnorm_kernel_describe(i, &info))) return;
    if (!is_known_family(info.family)) ++doubles;
    if (info.arch[0] == '\0' || info.name[0] == '\0') ++doubles;
    if (i == 0) continue;
    fastnorm_kernel_describe(i - 1, &other);
    doubles += strcmp(info.arch, other.arch) == 0 && strcmp(info.name, other.name) == 0;
  }
  CHECK(doubles == 0);
  CHECK_STATUS(fastnorm_kernel_describe(count, &info), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("index is");
  CHECK_STATUS(fastnorm_kernel_describe(-1, &info), FASTNORM_ERROR_ARGUMENT);
  CHECK_STATUS(fastnorm_kernel_describe(INT32_MIN, &info), FASTNORM_ERROR_ARGUMENT);
  CHECK_STATUS(fastnorm_kernel_describe(0, NULL), FASTNORM_ERROR_ARGUMENT);
  info.struct_size = 8;
  CHECK_STATUS(fastnorm_kernel_describe(0, &info), FASTNORM_ERROR_ARGUMENT);
}

/* --- log --- */

typedef struct log_record {
  int calls, bad;
} log_record;

static void log_message(void* user, int32_t level, const char* text) {
  log_record* record = (log_record*)user;
  ++record->calls;
  record->bad += level < FASTNORM_LOG_ERROR || level > FASTNORM_LOG_DEBUG || text == NULL ||
                 text[0] == '\0' || strchr(text, '\n') != NULL;
}

static void logging(void) {
  log_record record = {0, 0};
  fastnorm_context_options options = empty_options();
  options.log = log_message;
  options.log_user = &record;
  fastnorm_context_destroy(cpu_context(&options));
  CHECK(record.calls >= 1); /* which instruction set was chosen */
  CHECK(record.bad == 0);
}

/* --- instruction sets --- */

static void forced_isa(void) {
  const char* before = getenv("FASTNORM_CPU_ISA");
  char saved[64] = "";
  fastnorm_device_info info;
  if (before != NULL) snprintf(saved, sizeof saved, "%s", before);
  setenv("FASTNORM_CPU_ISA", "quantum", 1);
  refused(kCpu, NULL, FASTNORM_ERROR_ARGUMENT, "FASTNORM_CPU_ISA");
  CHECK_TEXT("quantum");
  CHECK_TEXT("scalar"); /* what there is */
  setenv("FASTNORM_CPU_ISA", "scalar", 1);
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  CHECK_OK(fastnorm_device_describe(kCpu, &info));
  CHECK(info.kernel_arch != NULL && strcmp(info.kernel_arch, "scalar") == 0);
  fastnorm_context_destroy(cpu_context(NULL));
  if (before != NULL) {
    setenv("FASTNORM_CPU_ISA", saved, 1);
  } else {
    unsetenv("FASTNORM_CPU_ISA");
  }
}

static void versions(void) {
  char text[32];
  snprintf(text, sizeof text, "%d.%d.%d", FASTNORM_VERSION_MAJOR, FASTNORM_VERSION_MINOR,
           FASTNORM_VERSION_PATCH);
  CHECK(fastnorm_version() == FASTNORM_VERSION);
  CHECK(strcmp(fastnorm_version_string(), text) == 0);
  CHECK(fastnorm_numeric_version() == 2);
  CHECK(strstr(fastnorm_build_info(), text) != NULL);
  CHECK(strstr(fastnorm_build_info(), "scalar") != NULL);
}

void test_context(void) {
  fastnorm_context_destroy(NULL);
  devices();
  bad_options();
  no_gpu();
  kernels();
  logging();
  forced_isa();
  versions();
}
