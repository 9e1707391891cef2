/* A call allocates nothing, and a failed allocation is reported. This program replaces the C
 * library's malloc by one that counts and can fail. */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "api/api_test.h"

/* glibc's own functions, behind the public names. */
extern void* __libc_malloc(size_t bytes);
extern void* __libc_calloc(size_t count, size_t bytes);
extern void* __libc_realloc(void* memory, size_t bytes);
extern void* __libc_memalign(size_t alignment, size_t bytes);
extern void __libc_free(void* memory);

/* In the thread that tests; other threads are not counted. */
static __thread int watched;
static volatile long calls;
static volatile long left = -1; /* allocations that still succeed; -1 = all */

static int count_call(void) {
  if (!watched) return 1;
  ++calls;
  if (left < 0) return 1;
  if (left == 0) {
    errno = ENOMEM;
    return 0;
  }
  --left;
  return 1;
}

void* malloc(size_t bytes) { return count_call() ? __libc_malloc(bytes) : NULL; }
void* calloc(size_t count, size_t bytes) {
  return count_call() ? __libc_calloc(count, bytes) : NULL;
}
void* realloc(void* memory, size_t bytes) {
  return count_call() ? __libc_realloc(memory, bytes) : NULL;
}
void* memalign(size_t alignment, size_t bytes) {
  return count_call() ? __libc_memalign(alignment, bytes) : NULL;
}
void* aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  *memory = memalign(alignment, bytes);
  return *memory != NULL ? 0 : ENOMEM;
}
void free(void* memory) {
  if (watched && memory != NULL) ++calls;
  __libc_free(memory);
}

static int passed, failed;

/* Counts outside of watched calls, because printf allocates. */
static void expect(int ok, const char* what) {
  ok ? ++passed : ++failed;
  if (!ok) printf("FAIL %s (%ld calls; last error: %s)\n", what, calls, fastnorm_last_error());
}

enum { kRows = 64, kN = 4096, kHeads = 4, kSize = kN / kHeads };
static float x[kRows * kN], y[kRows * kN], y2[kRows * kN], residual[kRows * kN];
static float columns[kN], statistics[kRows], one = 1;
static unsigned char codes[kRows * kN], scales[kRows * kN / 16], swizzled[128 * kN / 16];

/* The views for the arguments of one call. */
typedef struct views {
  tensor_of of[12];
  int count;
  int32_t device_type;
} views;

static const fastnorm_tensor* view(views* v, void* data, fastnorm_dtype_id dtype, int32_t ndim,
                                   int64_t rows, int64_t n) {
  tensor_of* t = &v->of[v->count++];
  memset(t, 0, sizeof *t);
  t->shape[0] = ndim == 1 ? n : rows;
  t->shape[1] = n;
  t->tensor.data = data;
  t->tensor.device_type = v->device_type;
  t->tensor.ndim = ndim;
  t->tensor.dtype = fastnorm_dtype_of(dtype);
  t->tensor.shape = t->shape;
  return &t->tensor;
}

/* Heads of x and y as [rows, heads, size], from head `first` on. */
static const fastnorm_tensor* heads(views* v, float* data, int64_t first, int64_t count) {
  tensor_of* t = &v->of[v->count++];
  memset(t, 0, sizeof *t);
  t->shape[0] = kRows, t->shape[1] = count, t->shape[2] = kSize;
  t->strides[0] = kN, t->strides[1] = kSize, t->strides[2] = 1;
  t->tensor.data = data + first * kSize;
  t->tensor.device_type = v->device_type;
  t->tensor.ndim = 3;
  t->tensor.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
  t->tensor.shape = t->shape;
  t->tensor.strides = t->strides;
  return &t->tensor;
}

/* Of those calls that quantise. */
static fastnorm_quant quant;

static void quantise(fastnorm_norm_args* args, fastnorm_quant_scheme scheme) {
  memset(&quant, 0, sizeof quant);
  quant.struct_size = sizeof quant;
  quant.scheme = scheme;
  args->quant = &quant;
}

static fastnorm_norm_args rows_of(views* v, int32_t device_type, float* to) {
  fastnorm_norm_args args;
  memset(&args, 0, sizeof args);
  v->count = 0;
  v->device_type = device_type;
  args.struct_size = sizeof args;
  args.x = view(v, x, FASTNORM_DTYPE_F32, 2, kRows, kN);
  args.y = view(v, to, FASTNORM_DTYPE_F32, 2, kRows, kN);
  return args;
}

/* Kinds of calls. */
static void plain(views* v, fastnorm_norm_args* args) {
  (void)v;
  (void)args;
}
static void everything(views* v, fastnorm_norm_args* args) {
  args->kind = FASTNORM_NORM_LAYER;
  args->rounding = FASTNORM_ROUND_EVERY_STEP;
  args->weight = view(v, columns, FASTNORM_DTYPE_F32, 1, 1, kN);
  args->bias = args->weight;
  args->residual = view(v, residual, FASTNORM_DTYPE_F32, 2, kRows, kN);
  args->residual_out = args->residual;
  args->rstd = view(v, statistics, FASTNORM_DTYPE_F32, 1, 1, kRows);
}
static void dependent(views* v, fastnorm_norm_args* args) {
  (void)v;
  args->flags = FASTNORM_NORM_PDL_WAIT | FASTNORM_NORM_PDL_TRIGGER;
}
static void static_scale(views* v, fastnorm_norm_args* args) {
  quantise(args, FASTNORM_QUANT_PER_TENSOR);
  args->y = NULL;
  quant.quantized = view(v, codes, FASTNORM_DTYPE_F8_E4M3FN, 2, kRows, kN);
  quant.scale = view(v, &one, FASTNORM_DTYPE_F32, 1, 1, 1);
}
static void blocks(views* v, fastnorm_norm_args* args) {
  quantise(args, FASTNORM_QUANT_PER_BLOCK);
  quant.block_size = 128;
  quant.quantized = view(v, codes, FASTNORM_DTYPE_F8_E5M2, 2, kRows, kN);
  quant.scale = view(v, scales, FASTNORM_DTYPE_F32, 2, kRows, kN / 128);
}
static void nvfp4(views* v, fastnorm_norm_args* args) {
  quantise(args, FASTNORM_QUANT_NVFP4);
  quant.scale_layout = FASTNORM_SCALE_SWIZZLED_128X4;
  quant.global_scale = view(v, &one, FASTNORM_DTYPE_F32, 1, 1, 1);
  quant.quantized = view(v, codes, FASTNORM_DTYPE_U8, 2, kRows, kN / 2);
  quant.scale = view(v, swizzled, FASTNORM_DTYPE_F8_E4M3FN, 1, 1, sizeof swizzled);
}
static void query_heads(views* v, fastnorm_norm_args* args) {
  args->x = heads(v, x, 0, kHeads - 1);
  args->y = heads(v, y, 0, kHeads - 1);
}

static const struct {
  const char* name;
  void (*change)(views*, fastnorm_norm_args*);
} kCalls[] = {{"plain", plain},         {"everything", everything},
              {"dependent", dependent}, {"static scale", static_scale},
              {"blocks", blocks},       {"nvfp4", nvfp4},
              {"heads", query_heads}};

/* Calls on `context`. Preparing a call may allocate, the call may not. The first call of a pool
 * starts its threads. */
static void hot_path(fastnorm_context* context, int32_t device_type, int pool, const char* what) {
  size_t k;
  for (k = 0; k < sizeof kCalls / sizeof *kCalls; ++k) {
    char name[128];
    views first, second;
    fastnorm_norm_args args = rows_of(&first, device_type, y), other;
    const fastnorm_norm_args* list[2];
    fastnorm_info info;
    fastnorm_status status, bad;
    int i;
    snprintf(name, sizeof name, "%s: %s", what, kCalls[k].name);
    kCalls[k].change(&first, &args);
    other = rows_of(&second, device_type, y2);
    if (kCalls[k].change == query_heads) { /* with their key heads in one launch */
      other.x = heads(&second, x, kHeads - 1, 1);
      other.y = heads(&second, y, kHeads - 1, 1);
    }
    list[0] = &args;
    list[1] = &other;
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    status = fastnorm_norm_prepare(context, &args);
    if (status == FASTNORM_OK) status = fastnorm_norm_many_prepare(context, list, 2);
    if (status == FASTNORM_OK && pool) status = fastnorm_norm(context, &args, NULL, 0, NULL);
    calls = 0;
    watched = 1;
    for (i = 0; i < 20 && status == FASTNORM_OK; ++i) {
      status = fastnorm_norm(context, &args, NULL, 0, NULL);
      if (status == FASTNORM_OK) status = fastnorm_norm_many(context, list, 2, NULL, 0, NULL);
      if (status == FASTNORM_OK) status = fastnorm_norm_query(context, &args, &info);
      if (status == FASTNORM_OK) status = fastnorm_norm_prepare(context, &args);
    }
    args.eps = -1;
    bad = fastnorm_norm(context, &args, NULL, 0, NULL);
    watched = 0;
    expect(status == FASTNORM_OK, name);
    expect(bad == FASTNORM_ERROR_ARGUMENT, name);
    expect(calls == 0, name);
  }
}

/* MLA decode of two requests. Lists and new tokens have any number. */
static void mla_hot_path(fastnorm_context* context, int32_t device_type, int pool,
                         const char* what) {
  enum { kTokens = 3, kMlaHeads = 6, kPages = 4, kPage = 16 };
  static float q[kTokens * kMlaHeads * 512], pe[kTokens * kMlaHeads * 64],
      o[kTokens * kMlaHeads * 512];
  static float ckv[kPages * kPage * 512], kpe[kPages * kPage * 64];
  static int32_t kv_len[2] = {40, 9}, pages[4] = {3, 0, 2, 1}, kv_indptr[3] = {0, 3, 4};
  static int32_t qo_indptr[3] = {0, 2, 3};
  void* const workspace = (void*)(uintptr_t)0x100000;
  const int gpu = device_type == FASTNORM_DEVICE_CUDA;
  const fastnorm_dtype_id dtype = gpu ? FASTNORM_DTYPE_BF16 : FASTNORM_DTYPE_F32;
  const int64_t wide[3] = {kTokens, kMlaHeads, 512}, narrow[3] = {kTokens, kMlaHeads, 64};
  const int64_t cache[3] = {kPages, kPage, 512}, rope[3] = {kPages, kPage, 64};
  void* const data[9] = {q, pe, ckv, kpe, o, kv_len, pages, kv_indptr, qo_indptr};
  const int64_t* const shapes[5] = {wide, narrow, cache, rope, wide};
  const int64_t lengths[4] = {2, 4, 3, 3};
  fastnorm_tensor t[9];
  fastnorm_mla_decode_args args;
  fastnorm_info info;
  fastnorm_status status, bad;
  size_t bytes;
  int i;
  memset(t, 0, sizeof t);
  for (i = 0; i < 9; ++i) {
    t[i].data = data[i];
    t[i].device_type = device_type;
    t[i].ndim = i < 5 ? 3 : 1;
    t[i].dtype = fastnorm_dtype_of(i < 5 ? dtype : FASTNORM_DTYPE_I32);
    t[i].shape = i < 5 ? shapes[i] : &lengths[i - 5];
    /* Lists need not be aligned as a GPU requires. */
    if (gpu && i < 5) t[i].data = (void*)((uintptr_t)(i + 1) << 30);
  }
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.sm_scale = 1;
  args.max_s_q = 2;
  args.q_nope = &t[0], args.q_pe = &t[1], args.ckv = &t[2], args.kpe = &t[3], args.o = &t[4];
  args.kv_len = &t[5], args.page_table = &t[6], args.kv_indptr = &t[7], args.qo_indptr = &t[8];
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  status = fastnorm_mla_decode_query(context, &args, &info);
  bytes = (size_t)info.workspace_bytes;
  if (status == FASTNORM_OK && pool) {
    status = fastnorm_mla_decode(context, &args, workspace, bytes, NULL);
  }
  calls = 0;
  watched = 1;
  for (i = 0; i < 20 && status == FASTNORM_OK; ++i) {
    status = fastnorm_mla_decode(context, &args, workspace, bytes, NULL);
    if (status == FASTNORM_OK) status = fastnorm_mla_decode_query(context, &args, &info);
    if (status == FASTNORM_OK) status = fastnorm_mla_decode_prepare(context, &args);
  }
  args.sm_scale = 0;
  bad = fastnorm_mla_decode(context, &args, workspace, bytes, NULL);
  watched = 0;
  expect(status == FASTNORM_OK, what);
  expect(bad == FASTNORM_ERROR_ARGUMENT, what);
  expect(calls == 0, what);
}

/* Norm and cache of the heads of many tokens. */
static void heads_hot_path(fastnorm_context* context, int pool, const char* what) {
  enum { kHeadTokens = 300, kHeadColumns = 128 };
  static float x[kHeadTokens * kHeadColumns], cache[kHeadTokens * kHeadColumns];
  static int32_t slots[kHeadTokens];
  const int64_t rows[3] = {kHeadTokens, 1, kHeadColumns}, count[1] = {kHeadTokens};
  const int64_t pages[4] = {kHeadTokens, 1, 1, kHeadColumns};
  void* const data[3] = {x, cache, slots};
  const int64_t* const shapes[3] = {rows, pages, count};
  fastnorm_tensor t[3];
  fastnorm_norm_heads_args args;
  fastnorm_norm_heads_part part;
  const fastnorm_norm_heads_part* parts[1] = {&part};
  fastnorm_info info;
  fastnorm_status status, bad;
  int i;
  memset(t, 0, sizeof t);
  for (i = 0; i < 3; ++i) {
    t[i].data = data[i];
    t[i].device_type = FASTNORM_DEVICE_CPU;
    t[i].ndim = i == 0 ? 3 : i == 1 ? 4 : 1;
    t[i].dtype = fastnorm_dtype_of(i < 2 ? FASTNORM_DTYPE_F32 : FASTNORM_DTYPE_I32);
    t[i].shape = shapes[i];
  }
  for (i = 0; i < kHeadTokens; ++i) slots[i] = i;
  memset(&args, 0, sizeof args);
  memset(&part, 0, sizeof part);
  memset(&info, 0, sizeof info);
  args.struct_size = sizeof args;
  args.slots = &t[2];
  part.struct_size = sizeof part;
  part.flags = FASTNORM_NORM_HEADS_NORM;
  part.x = part.y = &t[0];
  part.cache = &t[1];
  info.struct_size = sizeof info;
  status = FASTNORM_OK;
  if (pool) status = fastnorm_norm_heads(context, &args, parts, 1, NULL, 0, NULL);
  calls = 0;
  watched = 1;
  for (i = 0; i < 20 && status == FASTNORM_OK; ++i) {
    status = fastnorm_norm_heads(context, &args, parts, 1, NULL, 0, NULL);
    if (status == FASTNORM_OK) status = fastnorm_norm_heads_query(context, &args, parts, 1, &info);
    if (status == FASTNORM_OK) status = fastnorm_norm_heads_prepare(context, &args, parts, 1);
  }
  part.eps = -1;
  bad = fastnorm_norm_heads(context, &args, parts, 1, NULL, 0, NULL);
  watched = 0;
  expect(status == FASTNORM_OK, what);
  expect(bad == FASTNORM_ERROR_ARGUMENT, what);
  expect(calls == 0, what);
}

/* Gradients of the heads of many tokens, with a statistic of all heads and a shared weight. */
static void heads_backward_hot_path(fastnorm_context* context, int pool, const char* what) {
  enum { kHeadTokens = 300, kHeadColumns = 128, kRoom = 1 << 17 };
  static float x[kHeadTokens * kHeadColumns], dy[kHeadTokens * kHeadColumns], weight[64],
      dweight[64];
  static unsigned char memory[kRoom + 255];
  void* const workspace = (void*)(((uintptr_t)memory + 255) & ~(uintptr_t)255);
  const int64_t rows[3] = {kHeadTokens, 2, 64}, columns[1] = {64};
  void* const data[4] = {dy, x, weight, dweight};
  fastnorm_tensor t[4];
  fastnorm_norm_heads_args args;
  fastnorm_norm_heads_backward_part part;
  const fastnorm_norm_heads_backward_part* parts[1] = {&part};
  fastnorm_info info;
  fastnorm_status status = FASTNORM_OK, bad;
  int i;
  memset(t, 0, sizeof t);
  for (i = 0; i < 4; ++i) {
    t[i].data = data[i];
    t[i].device_type = FASTNORM_DEVICE_CPU;
    t[i].ndim = i < 2 ? 3 : 1;
    t[i].dtype = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
    t[i].shape = i < 2 ? rows : columns;
  }
  memset(&args, 0, sizeof args);
  memset(&part, 0, sizeof part);
  memset(&info, 0, sizeof info);
  args.struct_size = sizeof args;
  part.struct_size = sizeof part;
  part.flags = FASTNORM_NORM_HEADS_NORM | FASTNORM_NORM_HEADS_ACROSS_HEADS;
  part.eps = 1e-6f;
  part.dy = part.dx = &t[0];
  part.x = &t[1], part.weight = &t[2], part.dweight = &t[3];
  info.struct_size = sizeof info;
  if (pool) status = fastnorm_norm_heads_backward(context, &args, parts, 1, workspace, kRoom, NULL);
  calls = 0;
  watched = 1;
  for (i = 0; i < 20 && status == FASTNORM_OK; ++i) {
    status = fastnorm_norm_heads_backward(context, &args, parts, 1, workspace, kRoom, NULL);
    if (status == FASTNORM_OK)
      status = fastnorm_norm_heads_backward_query(context, &args, parts, 1, &info);
    if (status == FASTNORM_OK)
      status = fastnorm_norm_heads_backward_prepare(context, &args, parts, 1);
  }
  part.eps = -1;
  bad = fastnorm_norm_heads_backward(context, &args, parts, 1, workspace, kRoom, NULL);
  watched = 0;
  expect(status == FASTNORM_OK, what);
  expect(info.workspace_bytes <= kRoom, what);
  expect(bad == FASTNORM_ERROR_ARGUMENT, what);
  expect(calls == 0, what);
}

static void hot_paths(void) {
  const fastnorm_device cpu = {FASTNORM_DEVICE_CPU, 0}, cuda = {FASTNORM_DEVICE_CUDA, 0};
  fastnorm_context_options options;
  fastnorm_context* context = NULL;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  expect(fastnorm_context_create(cpu, NULL, &context) == FASTNORM_OK, "a context");
  hot_path(context, FASTNORM_DEVICE_CPU, 0, "one thread allocates nothing");
  mla_hot_path(context, FASTNORM_DEVICE_CPU, 0, "one thread allocates nothing: mla_decode");
  heads_hot_path(context, 0, "one thread allocates nothing: norm_heads");
  heads_backward_hot_path(context, 0, "one thread allocates nothing: norm_heads_backward");
  fastnorm_context_destroy(context);
  options.num_threads = 3;
  expect(fastnorm_context_create(cpu, &options, &context) == FASTNORM_OK, "a context with threads");
  hot_path(context, FASTNORM_DEVICE_CPU, 1, "three threads allocate nothing");
  mla_hot_path(context, FASTNORM_DEVICE_CPU, 1, "three threads allocate nothing: mla_decode");
  heads_hot_path(context, 1, "three threads allocate nothing: norm_heads");
  heads_backward_hot_path(context, 1, "three threads allocate nothing: norm_heads_backward");
  fastnorm_context_destroy(context);
  options.num_threads = 0;
  options.flags = FASTNORM_CONTEXT_DRY_RUN;
  options.dry_run_capability = 90;
  expect(fastnorm_context_create(cuda, &options, &context) == FASTNORM_OK, "a dry run");
  hot_path(context, FASTNORM_DEVICE_CUDA, 0, "planning for a GPU allocates nothing");
  mla_hot_path(context, FASTNORM_DEVICE_CUDA, 0,
               "planning for a GPU allocates nothing: mla_decode");
  fastnorm_context_destroy(context);
}

/* Fails the first allocation, then the second, .. until a context is created. */
static void out_of_memory(void) {
  const fastnorm_device cpu = {FASTNORM_DEVICE_CPU, 0};
  fastnorm_context_options options;
  long n;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.num_threads = 3;
  for (n = 0; n < 1000; ++n) {
    fastnorm_context* context = NULL;
    fastnorm_status status;
    left = n;
    watched = 1;
    status = fastnorm_context_create(cpu, &options, &context);
    watched = 0;
    left = -1;
    if (status == FASTNORM_OK) {
      expect(context != NULL && n > 0, "creating a context allocates");
      fastnorm_context_destroy(context);
      return;
    }
    expect(status == FASTNORM_ERROR_OUT_OF_MEMORY && context == NULL,
           "a failed allocation is FASTNORM_ERROR_OUT_OF_MEMORY");
    expect(fastnorm_last_error()[0] != '\0', "and has a text");
  }
  expect(0, "no number of allocations is enough");
}

int main(void) {
  void* probe;
  watched = 1; /* the counting itself must work */
  probe = malloc(1);
  free(probe);
  watched = 0;
  expect(calls == 2, "malloc and free are counted");
  hot_paths();
  out_of_memory();
  printf("%d passed, %d failed, 0 skipped\n", passed, failed);
  return failed != 0;
}
