/* The C ABI on a GPU: streams, graphs, the current context, large tensors. */
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_test.h"
#include "support/copy_kernel.h"
#include "support/devmem.h"

enum { kRows = 200, kN = 1000, kCount = kRows * kN };

static const fastnorm_device context_device = {FASTNORM_DEVICE_CUDA, 0};
static devmem* gpu;
static fastnorm_context* context;
static float *host_x, *host_y, *cpu_y;
static void *device_x, *device_y;

/* A function of the driver, found at run time. */
static int (*get_current)(void** current);
static int (*set_current)(void* current);

static const fastnorm_tensor* on_gpu(tensor_of* t, void* data, fastnorm_dtype_id dtype,
                                     int64_t rows, int64_t n) {
  make_rows(t, data, dtype, rows, n);
  t->tensor.device_type = FASTNORM_DEVICE_CUDA;
  return &t->tensor;
}

static int done(int32_t error) {
  if (error != 0) printf("devmem: %s\n", devmem_error());
  return CHECK(error == 0);
}

static fastnorm_norm_args simple_args(tensor_of* tx, tensor_of* ty) {
  fastnorm_norm_args args = empty_args();
  args.kind = FASTNORM_NORM_LAYER;
  args.eps = 1e-5f;
  args.x = on_gpu(tx, device_x, FASTNORM_DTYPE_F32, kRows, kN);
  args.y = on_gpu(ty, device_y, FASTNORM_DTYPE_F32, kRows, kN);
  return args;
}

/* The GPU's y is close to the CPU's, which adds in another order. */
static void expect_result(void) {
  float worst = 0;
  int i;
  if (!done(devmem_download(gpu, host_y, device_y, kCount * sizeof(float)))) return;
  for (i = 0; i < kCount; ++i) worst = fmaxf(worst, fabsf(host_y[i] - cpu_y[i]));
  CHECK(worst < 1e-5f);
  done(devmem_fill(gpu, device_y, 0xff, kCount * sizeof(float), NULL));
}

static int set_up(void) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  fastnorm_context* cpu = cpu_context(NULL);
  tensor_of tx, ty;
  fastnorm_norm_args args = empty_args();
  host_x = (float*)malloc(kCount * sizeof(float));
  host_y = (float*)malloc(kCount * sizeof(float));
  cpu_y = (float*)malloc(kCount * sizeof(float));
  fill_random(host_x, kCount, 30);
  args.kind = FASTNORM_NORM_LAYER;
  args.eps = 1e-5f;
  args.x = make_rows(&tx, host_x, FASTNORM_DTYPE_F32, kRows, kN);
  args.y = make_rows(&ty, cpu_y, FASTNORM_DTYPE_F32, kRows, kN);
  CHECK_OK(fastnorm_norm(cpu, &args, NULL, 0, NULL));
  fastnorm_context_destroy(cpu);
  if (!CHECK(driver != NULL)) return 0;
  *(void**)&get_current = dlsym(driver, "cuCtxGetCurrent");
  *(void**)&set_current = dlsym(driver, "cuCtxSetCurrent");
  if (!CHECK(get_current != NULL && set_current != NULL)) return 0;
  return CHECK_OK(fastnorm_context_create(context_device, NULL, &context)) &&
         done(devmem_open(0, &gpu)) && done(devmem_alloc(gpu, kCount * sizeof(float), &device_x)) &&
         done(devmem_alloc(gpu, kCount * sizeof(float), &device_y)) &&
         done(devmem_upload(gpu, device_x, host_x, kCount * sizeof(float)));
}

static void streams(void) {
  tensor_of tx, ty;
  const fastnorm_norm_args args = simple_args(&tx, &ty);
  void* stream = NULL;
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  expect_result();
  if (!done(devmem_stream_create(gpu, &stream))) return;
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, stream));
  done(devmem_stream_synchronize(gpu, stream));
  expect_result();
  done(devmem_stream_destroy(gpu, stream));
}

static void graph(void) {
  tensor_of tx, ty;
  const fastnorm_norm_args args = simple_args(&tx, &ty);
  void *stream = NULL, *captured = NULL;
  int i;
  if (!done(devmem_stream_create(gpu, &stream))) return;
  CHECK_OK(fastnorm_norm_prepare(context, &args));
  if (!done(devmem_capture_begin(gpu, stream))) return;
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, stream));
  if (!done(devmem_capture_end(gpu, stream, &captured))) return;
  for (i = 0; i < 3; ++i) {
    done(devmem_graph_launch(gpu, captured, stream));
    done(devmem_stream_synchronize(gpu, stream));
    expect_result();
  }
  done(devmem_graph_destroy(gpu, captured));
  done(devmem_stream_destroy(gpu, stream));
}

/* A call does not change the thread's current context. */
static void current_context(void) {
  tensor_of tx, ty;
  const fastnorm_norm_args args = simple_args(&tx, &ty);
  fastnorm_context* other = NULL;
  void *before = NULL, *now = &before;
  CHECK(set_current(NULL) == 0);
  CHECK_OK(fastnorm_context_create(context_device, NULL, &other));
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  CHECK(get_current(&now) == 0 && now == NULL);
  fastnorm_context_destroy(other);
  CHECK(get_current(&now) == 0 && now == NULL);
  expect_result();
}

/* Every kernel that a tuning file may name for a call gives the bits of the planned kernel. */
static void tuned(void) {
  tensor_of tx, ty;
  const fastnorm_norm_args args = simple_args(&tx, &ty);
  fastnorm_device_info device;
  fastnorm_kernel_info kernel;
  fastnorm_info info = empty_info();
  float* expected = (float*)malloc(kCount * sizeof(float));
  static const char kKind[] = "KIND(f32, plain, layer, own_dtype, y, aligned, full, rows)";
  size_t prefix;
  int32_t i, kernels = 0;
  memset(&device, 0, sizeof device);
  device.struct_size = sizeof device;
  memset(&kernel, 0, sizeof kernel);
  kernel.struct_size = sizeof kernel;
  CHECK_OK(fastnorm_device_describe(context_device, &device));
  CHECK_OK(fastnorm_norm_query(context, &args, &info));
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  done(devmem_download(gpu, expected, device_y, kCount * sizeof(float)));
  prefix = (size_t)(strrchr(info.kernel, ' ') - info.kernel) + 1;
  for (i = 0; i < fastnorm_kernel_count(); ++i) {
    fastnorm_context* other = NULL;
    char rule[256];
    int threads = 0, vectors = 0, blocks = 1;
    CHECK_OK(fastnorm_kernel_describe(i, &kernel));
    if (strcmp(kernel.arch, device.kernel_arch) != 0) continue;
    if (strncmp(kernel.name, info.kernel, prefix) != 0) continue;
    CHECK(sscanf(kernel.name + prefix, "%dx%dx%d", &threads, &vectors, &blocks) >= 2);
    snprintf(rule, sizeof rule, "%s\nROWS(%d, %d, %d, %d, %d, %d, %d, full)\n", kKind, kN, kN,
             kRows, kRows, threads, vectors, blocks);
    if (create_tuned(context_device, 0, device.kernel_arch, rule, &other) != FASTNORM_OK) continue;
    done(devmem_fill(gpu, device_y, 0xff, kCount * sizeof(float), NULL));
    CHECK_OK(fastnorm_norm_query(other, &args, &info));
    CHECK(strcmp(info.kernel, kernel.name) == 0);
    CHECK_OK(fastnorm_norm(other, &args, NULL, 0, NULL));
    done(devmem_download(gpu, host_y, device_y, kCount * sizeof(float)));
    CHECK(memcmp(host_y, expected, kCount * sizeof(float)) == 0);
    fastnorm_context_destroy(other);
    ++kernels;
  }
  CHECK(kernels >= 2); /* several tiles hold such rows */
  free(expected);
}

/* With a second GPU: calls run on the context's device while another one is current. */
static void two_devices(void) {
  tensor_of tx, ty;
  const fastnorm_norm_args args = simple_args(&tx, &ty);
  const fastnorm_device second = {FASTNORM_DEVICE_CUDA, 1};
  fastnorm_context* other = NULL;
  devmem* other_gpu = NULL;
  void *stream = NULL, *primary = NULL, *now = NULL;
  int (*retain)(void**, int) = NULL;
  if (devmem_device_count() < 2) {
    skip("another device current", "one GPU");
    return;
  }
  *(void**)&retain = dlsym(RTLD_DEFAULT, "cuDevicePrimaryCtxRetain");
  if (!CHECK_OK(fastnorm_context_create(second, NULL, &other))) return;
  if (!done(devmem_open(1, &other_gpu))) return;
  if (retain == NULL) {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    *(void**)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
  }
  CHECK(retain != NULL && retain(&primary, 1) == 0 && set_current(primary) == 0);
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, stream));
  CHECK(get_current(&now) == 0 && now == primary);
  expect_result();
  CHECK_STATUS(fastnorm_norm(other, &args, NULL, 0, NULL), FASTNORM_ERROR_DEVICE);
  CHECK_TEXT("CUDA:0");
  set_current(NULL);
  fastnorm_context_destroy(other);
  devmem_close(other_gpu);
}

static void refused(void) {
  tensor_of tx, ty;
  fastnorm_norm_args args = simple_args(&tx, &ty);
  const int64_t none[2] = {0, kN};
  tx.tensor.device_type = FASTNORM_DEVICE_CPU;
  CHECK_STATUS(fastnorm_norm(context, &args, NULL, 0, NULL), FASTNORM_ERROR_DEVICE);
  tx.tensor.device_type = FASTNORM_DEVICE_CUDA;
  tx.tensor.device_id = 1;
  CHECK_STATUS(fastnorm_norm(context, &args, NULL, 0, NULL), FASTNORM_ERROR_DEVICE);
  args.x = make_tensor(&tx, NULL, FASTNORM_DTYPE_F32, 2, none);
  args.y = make_tensor(&ty, NULL, FASTNORM_DTYPE_F32, 2, none);
  tx.tensor.device_type = ty.tensor.device_type = FASTNORM_DEVICE_CUDA;
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  CHECK(devmem_stream_synchronize(gpu, NULL) == 0); /* nothing was launched that could fail */
}

static void many(void) {
  tensor_of q, k, unused;
  fastnorm_norm_args first = simple_args(&q, &unused), second = simple_args(&k, &unused);
  const fastnorm_norm_args* list[2];
  tensor_of yq, yk;
  const int64_t half = kRows / 2;
  first.x = on_gpu(&q, device_x, FASTNORM_DTYPE_F32, half, kN);
  first.y = on_gpu(&yq, device_y, FASTNORM_DTYPE_F32, half, kN);
  second.x = on_gpu(&k, (float*)device_x + half * kN, FASTNORM_DTYPE_F32, half, kN);
  second.y = on_gpu(&yk, (float*)device_y + half * kN, FASTNORM_DTYPE_F32, half, kN);
  list[0] = &first;
  list[1] = &second;
  CHECK_OK(fastnorm_norm_many(context, list, 2, NULL, 0, NULL));
  expect_result();
}

/* Query and key heads of a fused buffer, each with a weight, in one launch. Compared with two
 * launches. */
static void heads_in_one_launch(void) {
  enum { kTokens = 33, kHeads = 12, kQuery = 8, kKey = 2, kSize = 128 };
  enum { kAll = kTokens * kHeads * kSize };
  static uint16_t host[kAll], apart[kAll], together[kAll];
  const int64_t shapes[2][3] = {{kTokens, kQuery, kSize}, {kTokens, kKey, kSize}};
  uint16_t *buffer = NULL, *weights = NULL, host_weights[2 * kSize];
  tensor_of view[2], weight[2];
  fastnorm_norm_args args[2];
  const fastnorm_norm_args* list[2];
  fastnorm_info info = empty_info();
  int i, untouched = 1;
  for (i = 0; i < kAll; ++i) host[i] = (uint16_t)(0x3f00 + i * 2654435761u % 256);
  for (i = 0; i < 2 * kSize; ++i) host_weights[i] = (uint16_t)(0x3f80 + i % 100);
  if (!done(devmem_alloc(gpu, sizeof host, (void**)&buffer))) return;
  if (!done(devmem_alloc(gpu, sizeof host_weights, (void**)&weights))) return;
  done(devmem_upload(gpu, weights, host_weights, sizeof host_weights));
  for (i = 0; i < 2; ++i) {
    make_tensor(&view[i], buffer + (i == 0 ? 0 : kQuery * kSize), FASTNORM_DTYPE_BF16, 3,
                shapes[i]);
    view[i].strides[0] = kHeads * kSize;
    view[i].tensor.device_type = FASTNORM_DEVICE_CUDA;
    args[i] = empty_args();
    args[i].eps = 1e-6f;
    args[i].x = args[i].y = &view[i].tensor;
    args[i].weight = make_vector(&weight[i], weights + i * kSize, FASTNORM_DTYPE_BF16, kSize);
    weight[i].tensor.device_type = FASTNORM_DEVICE_CUDA;
    list[i] = &args[i];
  }
  done(devmem_upload(gpu, buffer, host, sizeof host));
  CHECK_OK(fastnorm_norm(context, &args[0], NULL, 0, NULL));
  CHECK_OK(fastnorm_norm(context, &args[1], NULL, 0, NULL));
  done(devmem_download(gpu, apart, buffer, sizeof apart));
  done(devmem_upload(gpu, buffer, host, sizeof host));
  CHECK_OK(fastnorm_norm_many_query(context, list, 2, &info));
  CHECK(info.launches == 1);
  CHECK_OK(fastnorm_norm_many_prepare(context, list, 2));
  CHECK_OK(fastnorm_norm_many(context, list, 2, NULL, 0, NULL));
  done(devmem_download(gpu, together, buffer, sizeof together));
  CHECK(memcmp(apart, together, sizeof apart) == 0);
  CHECK(memcmp(apart, host, kQuery * kSize * 2) != 0);
  for (i = 0; i < kAll; ++i)
    if (i / kSize % kHeads >= kQuery + kKey) untouched &= apart[i] == host[i];
  CHECK(untouched); /* the value heads */
  done(devmem_free(gpu, buffer));
  done(devmem_free(gpu, weights));
}

/* A chain in which each kernel reads what the previous one wrote. Each step increases the sum, so a
 * step that reads old numbers changes the result. */
static void chain(void* sum, void* stream, uint32_t flags) {
  tensor_of tx, ty, tr;
  fastnorm_norm_args there = simple_args(&tx, &ty), back;
  int i;
  there.flags = flags;
  there.residual = there.residual_out = on_gpu(&tr, sum, FASTNORM_DTYPE_F32, kRows, kN);
  back = there;
  back.x = there.y;
  back.y = there.x;
  for (i = 0; i < 20; ++i) {
    CHECK_OK(fastnorm_norm(context, &there, NULL, 0, stream));
    CHECK_OK(fastnorm_norm(context, &back, NULL, 0, stream));
  }
}

/* With and without flags, early start and graph capture. */
static void dependent_launches(void) {
  const uint32_t flags[] = {
      FASTNORM_NORM_NO_PDL,
      0,
      FASTNORM_NORM_PDL_WAIT,
      FASTNORM_NORM_PDL_WAIT | FASTNORM_NORM_PDL_TRIGGER,
      FASTNORM_NORM_PDL_WAIT | FASTNORM_NORM_PDL_TRIGGER | FASTNORM_NORM_PDL_CONSTANT_WEIGHTS,
      FASTNORM_NORM_NO_PDL | FASTNORM_NORM_PDL_WAIT,
      FASTNORM_NORM_NO_PDL | FASTNORM_NORM_PDL_WAIT | FASTNORM_NORM_PDL_TRIGGER};
  const int count = (int)(sizeof flags / sizeof *flags);
  const size_t bytes = kCount * sizeof(float);
  float *expected = (float*)malloc(bytes), *result = (float*)malloc(bytes);
  void *sum = NULL, *stream = NULL, *captured = NULL;
  int i, captures;
  if (!done(devmem_alloc(gpu, bytes, &sum)) || !done(devmem_stream_create(gpu, &stream))) return;
  for (captures = 0; captures < 2; ++captures) {
    for (i = 0; i < count; ++i) {
      const int first = i == 0 && !captures;
      done(devmem_upload(gpu, device_x, host_x, bytes));
      done(devmem_upload(gpu, sum, host_x, bytes));
      done(devmem_stream_synchronize(gpu, NULL));
      if (captures && !done(devmem_capture_begin(gpu, stream))) break;
      chain(sum, stream, flags[i]);
      if (captures) {
        if (!done(devmem_capture_end(gpu, stream, &captured))) break;
        done(devmem_graph_launch(gpu, captured, stream));
      }
      done(devmem_stream_synchronize(gpu, stream));
      if (captures) done(devmem_graph_destroy(gpu, captured));
      done(devmem_download(gpu, first ? expected : result, sum, bytes));
      CHECK(first || memcmp(expected, result, bytes) == 0);
      CHECK(memcmp(first ? expected : result, host_x, bytes) != 0);
    }
  }
  done(devmem_stream_destroy(gpu, stream));
  done(devmem_free(gpu, sum));
  done(devmem_upload(gpu, device_x, host_x, bytes));
  free(expected);
  free(result);
}

/* What a copying kernel of the user gets; support/copy_kernel.h explains it. */
typedef struct {
  uint64_t to, from, bytes;
  uint32_t options, nanoseconds;
  uint64_t times;
} copy_args;

static void copy(void* kernel, copy_args* a, int early, void* stream) {
  void* arguments[] = {&a->to, &a->from, &a->bytes, &a->options, &a->nanoseconds, &a->times};
  done(devmem_launch(gpu, kernel, 1, 1024, arguments, early, stream));
}

/* A user's kernel A writes x late, and lets the norm start at once; another stream, which the
 * norm's stream joins, writes the residual later still. A user's kernel C reads y; it may start
 * early. */
typedef struct {
  void *kernel, *stream, *other, *source, *residual, *result, *times;
} user;

static void before_norm_after(const user* u, uint32_t flags, uint32_t options_of_c, int joins) {
  const uint64_t bytes = kCount * sizeof(float);
  tensor_of tx, ty, tr;
  fastnorm_norm_args args = simple_args(&tx, &ty);
  copy_args a = {(uintptr_t)device_x, (uintptr_t)u->source, 0, COPY_TRIGGERS, 200000, 0};
  copy_args b = {(uintptr_t)u->residual, (uintptr_t)u->source, 0, 0, 400000, 0};
  copy_args c = {(uintptr_t)u->result, (uintptr_t)device_y, 0, 0, 0, 0};
  a.bytes = b.bytes = c.bytes = bytes;
  a.times = (uintptr_t)u->times;
  c.times = a.times + 16;
  c.options = options_of_c;
  args.flags = flags;
  if (joins) args.residual = on_gpu(&tr, u->residual, FASTNORM_DTYPE_F32, kRows, kN);
  done(devmem_stream_follow(gpu, u->other, u->stream));
  if (joins) copy(u->kernel, &b, 0, u->other);
  copy(u->kernel, &a, 0, u->stream);
  if (joins) {
    done(devmem_stream_follow(gpu, u->stream, u->other));
  }
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, u->stream));
  copy(u->kernel, &c, 1, u->stream);
  if (!joins) done(devmem_stream_follow(gpu, u->stream, u->other)); /* ends a capture's fork */
}

/* Between kernels of a user, eager and captured. C waits, or does not: that C may start before the
 * norm has ended, but not before A has. */
static void between_kernels(void) {
  const size_t bytes = kCount * sizeof(float);
  float* found[2] = {(float*)malloc(bytes), (float*)malloc(bytes)};
  uint64_t times[4];
  user u;
  void *module = NULL, *graph = NULL;
  int captures, joins, waits, off;
  fastnorm_device_info info;
  memset(&u, 0, sizeof u);
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  CHECK_OK(fastnorm_device_describe(context_device, &info));
  if (info.capability < 90) {
    skip("a norm between kernels of a user", "the GPU has no programmatic dependent launch");
    return;
  }
  if (!done(devmem_module_load(gpu, copy_kernel_ptx, &module)) ||
      !done(devmem_kernel(gpu, module, "copy", &u.kernel)) ||
      !done(devmem_stream_create(gpu, &u.stream)) || !done(devmem_stream_create(gpu, &u.other)) ||
      !done(devmem_alloc(gpu, bytes, &u.source)) || !done(devmem_alloc(gpu, bytes, &u.residual)) ||
      !done(devmem_alloc(gpu, bytes, &u.result)) ||
      !done(devmem_alloc(gpu, sizeof times, &u.times)))
    return;
  done(devmem_upload(gpu, u.source, host_x, bytes));
  for (joins = 0; joins < 2; ++joins) {
    int known = 0;
    for (captures = 0; captures < 2; ++captures) {
      for (off = 1; off >= 0; --off) {
        for (waits = 1; waits >= 0; --waits) {
          done(devmem_fill(gpu, device_x, 0x3e, bytes, u.stream));
          done(devmem_fill(gpu, u.residual, 0x3e, bytes, u.stream));
          done(devmem_fill(gpu, device_y, 0xff, bytes, u.stream));
          done(devmem_fill(gpu, u.result, 0xff, bytes, u.stream));
          done(devmem_stream_synchronize(gpu, u.stream));
          if (captures && !done(devmem_capture_begin(gpu, u.stream))) return;
          before_norm_after(&u, off ? FASTNORM_NORM_NO_PDL : 0, waits ? COPY_WAITS : 0, joins);
          if (captures) {
            if (!done(devmem_capture_end(gpu, u.stream, &graph))) return;
            done(devmem_graph_launch(gpu, graph, u.stream));
          }
          done(devmem_stream_synchronize(gpu, u.stream));
          if (captures) done(devmem_graph_destroy(gpu, graph));
          done(devmem_download(gpu, found[known], u.result, bytes));
          done(devmem_download(gpu, times, u.times, sizeof times));
          CHECK(times[2] >= times[1]); /* C began when A had ended */
          /* C has y unless it starts early and does not wait. */
          if (waits || off) {
            if (known) CHECK(memcmp(found[0], found[1], bytes) == 0);
            known = 1;
          }
        }
      }
    }
    if (!joins) { /* x is that of the other tests */
      int i;
      float worst = 0;
      for (i = 0; i < kCount; ++i) worst = fmaxf(worst, fabsf(found[0][i] - cpu_y[i]));
      CHECK(worst < 1e-5f);
    }
  }
  done(devmem_free(gpu, u.source));
  done(devmem_free(gpu, u.residual));
  done(devmem_free(gpu, u.result));
  done(devmem_free(gpu, u.times));
  done(devmem_stream_destroy(gpu, u.other));
  done(devmem_stream_destroy(gpu, u.stream));
  done(devmem_module_unload(gpu, module));
  done(devmem_fill(gpu, device_y, 0xff, bytes, NULL));
  free(found[0]);
  free(found[1]);
}

/* 2^31 elements and more: the first row, the last and one between must be right. */
static void large(void) {
  const int64_t n = 1024, rows = ((int64_t)1 << 21) + 5;
  const size_t bytes = (size_t)(rows * n) * 2;
  const int64_t look_at[] = {0, rows / 2, rows - 1};
  uint16_t row[1024];
  void* x = NULL;
  tensor_of t;
  fastnorm_norm_args args = empty_args();
  int i, j, wrong = 0;
  if (devmem_alloc(gpu, bytes, &x) != 0) {
    skip("more than 2^31 elements on the GPU", devmem_error());
    return;
  }
  done(devmem_fill(gpu, x, 0x40, bytes, NULL)); /* 0x4040 is 3 in bf16 */
  args.x = args.y = on_gpu(&t, x, FASTNORM_DTYPE_BF16, rows, n);
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
  for (i = 0; i < 3; ++i) {
    done(devmem_download(gpu, row, (uint16_t*)x + look_at[i] * n, sizeof row));
    for (j = 0; j < 1024; ++j) wrong += row[j] != 0x3f80;
  }
  CHECK(wrong == 0);
  done(devmem_free(gpu, x));
}

void test_cuda(void) {
  int32_t count = 0;
  CHECK_OK(fastnorm_device_count(FASTNORM_DEVICE_CUDA, &count));
  if (count == 0) {
    skip("calls on a GPU",
         devmem_device_count() == 0 ? "no GPU" : "this build has no CUDA backend");
    return;
  }
  if (!set_up()) return;
  streams();
  graph();
  current_context();
  two_devices();
  refused();
  tuned();
  many();
  heads_in_one_launch();
  dependent_launches();
  between_kernels();
  large();
  devmem_free(gpu, device_x);
  devmem_free(gpu, device_y);
  devmem_close(gpu);
  fastnorm_context_destroy(context);
  free(host_x);
  free(host_y);
  free(cpu_y);
}
