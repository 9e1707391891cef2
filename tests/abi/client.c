/* A client of one version of the headers (CLIENT_HEADER) with a library of another version. To a
 * newer library, fields that the client's structs lack are zero. An older library reads only zeros
 * from fields that it does not know, and writes nothing there. CLIENT_GROWN: the headers are newer
 * than the library. */
#include <stdio.h>
#include <string.h>

#include CLIENT_HEADER

enum { kN = 4, kGuard = 64 };

static int passed, failed;

static int check(int ok, const char* what, int line) {
  ok ? ++passed : ++failed;
  if (!ok) printf("FAIL line %d: %s (last error: %s)\n", line, what, fastnorm_last_error());
  return ok;
}
#define CHECK(condition) check((condition) ? 1 : 0, #condition, __LINE__)

/* Bytes outside a struct: all 0xa5, before and after a call. */
static int untouched(const void* from, const void* end) {
  const unsigned char* byte = (const unsigned char*)from;
  for (; byte != (const unsigned char*)end; ++byte) {
    if (*byte != 0xa5) return 0;
  }
  return 1;
}

/* Where this client's struct ends for the library: at its own end, or at the last field that the
 * library knows. */
#ifdef CLIENT_GROWN
#define KNOWN_END(held) ((held).part.grown)
#else
#define KNOWN_END(held) ((held).guard)
#endif
#define HELD(type)               \
  struct {                       \
    type part;                   \
    unsigned char guard[kGuard]; \
  }
#define HOLD(held) \
  (memset(&(held), 0xa5, sizeof(held)), (held).part.struct_size = sizeof(held).part)
#define EMPTY(held)                                        \
  (HOLD(held), memset(&(held).part, 0, sizeof(held).part), \
   (held).part.struct_size = sizeof(held).part)
/* The struct_size is unchanged, and nothing past the struct's end was written. */
#define CHECK_HELD(held)                                \
  (CHECK((held).part.struct_size == sizeof(held).part), \
   CHECK(untouched(KNOWN_END(held), &(held) + 1)))

static float x[kN] = {3, 4, 0, 0}, y[kN];
static const int64_t shape[2] = {1, kN};
static fastnorm_tensor tx, ty;
static HELD(fastnorm_norm_args) args;

static void reset(void) {
  int i;
  memset(&tx, 0, sizeof tx);
  tx.data = x;
  tx.device_type = FASTNORM_DEVICE_CPU;
  tx.ndim = 2;
  tx.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
  tx.shape = shape;
  ty = tx;
  ty.data = y;
  for (i = 0; i < kN; ++i) y[i] = -1;
  EMPTY(args);
  args.part.x = &tx;
  args.part.y = &ty;
}

static int written(void) { return y[0] == 3 * 0.4f && y[1] == 4 * 0.4f && y[2] == 0 && y[3] == 0; }
static int unwritten(void) { return y[0] == -1 && y[1] == -1 && y[2] == -1 && y[3] == -1; }

static void devices(void) {
  const fastnorm_device cpu = {FASTNORM_DEVICE_CPU, 0};
  HELD(fastnorm_device_info) info;
  HELD(fastnorm_kernel_info) kernel;
  HOLD(info);
  CHECK(fastnorm_device_describe(cpu, &info.part) == FASTNORM_OK);
  CHECK(info.part.multiprocessors >= 1 && info.part.kernel_arch[0] != '\0');
  CHECK_HELD(info);
  info.part.struct_size = sizeof(size_t);
  CHECK(fastnorm_device_describe(cpu, &info.part) == FASTNORM_ERROR_ARGUMENT);
  CHECK(fastnorm_kernel_count() > 0);
  HOLD(kernel);
  CHECK(fastnorm_kernel_describe(0, &kernel.part) == FASTNORM_OK);
  CHECK(strcmp(kernel.part.family, "norm") == 0 && kernel.part.name[0] != '\0');
  CHECK_HELD(kernel);
  kernel.part.struct_size = sizeof(size_t);
  CHECK(fastnorm_kernel_describe(0, &kernel.part) == FASTNORM_ERROR_ARGUMENT);
}

static fastnorm_context* contexts(void) {
  const fastnorm_device cpu = {FASTNORM_DEVICE_CPU, 0};
  HELD(fastnorm_context_options) options;
  fastnorm_context* context = NULL;
  EMPTY(options);
  options.part.num_threads = 2;
  CHECK(fastnorm_context_create(cpu, &options.part, &context) == FASTNORM_OK && context != NULL);
  fastnorm_context_destroy(context);
#ifdef CLIENT_GROWN
  options.part.grown[1] = 1;
  CHECK(fastnorm_context_create(cpu, &options.part, &context) == FASTNORM_ERROR_UNSUPPORTED);
  CHECK(context == NULL);
#endif
  options.part.struct_size = sizeof(size_t);
  CHECK(fastnorm_context_create(cpu, &options.part, &context) == FASTNORM_ERROR_ARGUMENT);
  CHECK(fastnorm_context_create(cpu, NULL, &context) == FASTNORM_OK);
  return context;
}

static void norms(fastnorm_context* context) {
  const fastnorm_norm_args* list[1];
  HELD(fastnorm_info) info;
  list[0] = &args.part;
  reset();
  CHECK(fastnorm_norm_prepare(context, &args.part) == FASTNORM_OK);
  CHECK(fastnorm_norm_many_prepare(context, list, 1) == FASTNORM_OK);
  HOLD(info);
  CHECK(fastnorm_norm_query(context, &args.part, &info.part) == FASTNORM_OK);
  CHECK(info.part.launches == 1 && info.part.bytes_written == sizeof y);
  CHECK_HELD(info);
  HOLD(info);
  CHECK(fastnorm_norm_many_query(context, list, 1, &info.part) == FASTNORM_OK);
  CHECK(info.part.launches == 1);
  CHECK_HELD(info);
  info.part.struct_size = sizeof(size_t);
  CHECK(fastnorm_norm_query(context, &args.part, &info.part) == FASTNORM_ERROR_ARGUMENT);
  CHECK(unwritten());
  CHECK(fastnorm_norm(context, &args.part, NULL, 0, NULL) == FASTNORM_OK && written());
  reset();
  CHECK(fastnorm_norm_many(context, list, 1, NULL, 0, NULL) == FASTNORM_OK && written());
  CHECK(untouched(args.guard, &args + 1));
}

/* A struct that is too short for any version, and one with fields that the library does not
 * know. */
static void refusals(fastnorm_context* context) {
#ifdef CLIENT_GROWN
  const fastnorm_norm_args* list[1];
  list[0] = &args.part;
#endif
  reset();
  args.part.struct_size = sizeof(size_t);
  CHECK(fastnorm_norm(context, &args.part, NULL, 0, NULL) == FASTNORM_ERROR_ARGUMENT);
#ifdef CLIENT_FIRST
  args.part.struct_size = sizeof args.part - 1;
  CHECK(fastnorm_norm(context, &args.part, NULL, 0, NULL) == FASTNORM_ERROR_ARGUMENT);
#endif
#ifdef CLIENT_GROWN
  args.part.struct_size = sizeof args.part;
  args.part.grown[0] = 1;
  CHECK(fastnorm_norm(context, &args.part, NULL, 0, NULL) == FASTNORM_ERROR_UNSUPPORTED);
  CHECK(fastnorm_norm_prepare(context, &args.part) == FASTNORM_ERROR_UNSUPPORTED);
  CHECK(fastnorm_norm_many(context, list, 1, NULL, 0, NULL) == FASTNORM_ERROR_UNSUPPORTED);
  CHECK(strstr(fastnorm_last_error(), "this library knows") != NULL);
#endif
  CHECK(unwritten());
}

static void mla_decodes(fastnorm_context* context) {
  enum { kLatent = 512, kRope = 64 };
  static float q[kLatent], q_pe[kRope], ckv[kLatent], kpe[kRope], o[kLatent];
  static int32_t length = 1, page = 0;
  const int64_t wide[3] = {1, 1, kLatent}, narrow[3] = {1, 1, kRope}, one[2] = {1, 1};
  fastnorm_tensor t[7];
  void* data[7];
  HELD(fastnorm_mla_decode_args) mla;
  HELD(fastnorm_info) info;
  int i;
  data[0] = q, data[1] = q_pe, data[2] = ckv, data[3] = kpe, data[4] = o;
  data[5] = &length, data[6] = &page;
  for (i = 0; i < 7; ++i) {
    memset(&t[i], 0, sizeof t[i]);
    t[i].data = data[i];
    t[i].device_type = FASTNORM_DEVICE_CPU;
    t[i].ndim = i < 5 ? 3 : i == 5 ? 1 : 2;
    t[i].dtype = fastnorm_dtype_of(i < 5 ? FASTNORM_DTYPE_F32 : FASTNORM_DTYPE_I32);
    t[i].shape = i == 1 || i == 3 ? narrow : i < 5 ? wide : one;
  }
  ckv[3] = 5;
  o[3] = -1;
  EMPTY(mla);
  mla.part.sm_scale = 1;
  mla.part.q_nope = &t[0], mla.part.q_pe = &t[1], mla.part.ckv = &t[2], mla.part.kpe = &t[3];
  mla.part.o = &t[4], mla.part.kv_len = &t[5], mla.part.page_table = &t[6];
  HOLD(info);
  CHECK(fastnorm_mla_decode_query(context, &mla.part, &info.part) == FASTNORM_OK);
  CHECK(info.part.launches == 1 && info.part.bytes_written == sizeof o);
  CHECK_HELD(info);
  CHECK(fastnorm_mla_decode_prepare(context, &mla.part) == FASTNORM_OK && o[3] == -1);
  CHECK(fastnorm_mla_decode(context, &mla.part, NULL, 0, NULL) == FASTNORM_OK);
  CHECK(o[3] == 5 && o[0] == 0);
  CHECK(untouched(mla.guard, &mla + 1));
#ifdef CLIENT_GROWN
  mla.part.grown[1] = 1;
  CHECK(fastnorm_mla_decode(context, &mla.part, NULL, 0, NULL) == FASTNORM_ERROR_UNSUPPORTED);
#endif
  mla.part.struct_size = sizeof(size_t);
  CHECK(fastnorm_mla_decode(context, &mla.part, NULL, 0, NULL) == FASTNORM_ERROR_ARGUMENT);
}

/* Codes of one row, by a struct that another one points to: 3 * 0.4 and 4 * 0.4 by a scale of 0.2,
 * and of its greatest value. */
static void codes(fastnorm_context* context) {
  static int8_t code[kN];
  static float scale[1] = {0.2f}, amax[1];
  const int64_t one[1] = {1};
  HELD(fastnorm_quant) quant;
  fastnorm_tensor t[3];
  int i;
  reset();
  for (i = 0; i < 3; ++i) {
    t[i] = tx;
    t[i].ndim = i == 0 ? 2 : 1;
    t[i].shape = i == 0 ? shape : one;
  }
  t[0].data = code, t[1].data = scale, t[2].data = amax;
  t[0].dtype = fastnorm_dtype_of(FASTNORM_DTYPE_I8);
  EMPTY(quant);
  quant.part.scheme = FASTNORM_QUANT_PER_TENSOR;
  quant.part.quantized = &t[0], quant.part.scale = &t[1], quant.part.amax = &t[2];
  args.part.quant = &quant.part;
  CHECK(fastnorm_norm(context, &args.part, NULL, 0, NULL) == FASTNORM_OK && written());
  CHECK(code[0] == 6 && code[1] == 8 && code[2] == 0 && amax[0] == 4 * 0.4f);
  CHECK(untouched(quant.guard, &quant + 1));
#ifdef CLIENT_GROWN
  quant.part.grown[1] = 1;
  CHECK(fastnorm_norm(context, &args.part, NULL, 0, NULL) == FASTNORM_ERROR_UNSUPPORTED);
  CHECK(strstr(fastnorm_last_error(), "quant.struct_size") != NULL);
#endif
  quant.part.struct_size = sizeof(size_t);
  CHECK(fastnorm_norm(context, &args.part, NULL, 0, NULL) == FASTNORM_ERROR_ARGUMENT);
}

/* Gradients of one row of an RMSNorm with a stored rstd: dy - x * mean(dy * x). */
static void backwards(fastnorm_context* context) {
  static float dy[kN] = {1, 0, 0, 0}, dx[kN], rstd[1] = {1};
  HELD(fastnorm_norm_backward_args) backward;
  HELD(fastnorm_info) info;
  fastnorm_tensor t[3];
  int i;
  reset();
  for (i = 0; i < 3; ++i) t[i] = tx;
  t[0].data = dy, t[1].data = dx, t[2].data = rstd;
  t[2].ndim = 1;
  dx[0] = -1;
  EMPTY(backward);
  backward.part.x = &tx, backward.part.dy = &t[0], backward.part.dx = &t[1];
  backward.part.rstd = &t[2];
  HOLD(info);
  CHECK(fastnorm_norm_backward_query(context, &backward.part, &info.part) == FASTNORM_OK);
  CHECK(info.part.launches == 1 && info.part.workspace_bytes == 0);
  CHECK_HELD(info);
  CHECK(fastnorm_norm_backward_prepare(context, &backward.part) == FASTNORM_OK && dx[0] == -1);
  CHECK(fastnorm_norm_backward(context, &backward.part, NULL, 0, NULL) == FASTNORM_OK);
  CHECK(dx[0] == -1.25f && dx[1] == -3 && dx[2] == 0 && dx[3] == 0);
  CHECK(untouched(backward.guard, &backward + 1));
#ifdef CLIENT_GROWN
  backward.part.grown[1] = 1;
  CHECK(fastnorm_norm_backward(context, &backward.part, NULL, 0, NULL) ==
        FASTNORM_ERROR_UNSUPPORTED);
#endif
  backward.part.struct_size = sizeof(size_t);
  CHECK(fastnorm_norm_backward(context, &backward.part, NULL, 0, NULL) == FASTNORM_ERROR_ARGUMENT);
}

int main(void) {
  fastnorm_context* context;
  devices();
  context = contexts();
  if (context != NULL) {
    norms(context);
    refusals(context);
    codes(context);
    mla_decodes(context);
    backwards(context);
    fastnorm_context_destroy(context);
  }
  CHECK(strcmp(fastnorm_status_name(FASTNORM_ERROR_SHAPE), "FASTNORM_ERROR_SHAPE") == 0);
  printf("%d passed, %d failed, 0 skipped\n", passed, failed);
  return failed != 0;
}
