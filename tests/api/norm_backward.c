/* Gradients of norms through the C ABI: results computed by hand, the forward's statistics,
 * accumulation, no rows and several calls in one. Also more than 2^31 elements. */
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "api/api_test.h"
#include "api/call.h"

#define NORM_BACKWARD(...) ((fastnorm_norm_backward_args*)call_of("norm_backward " __VA_ARGS__))

const family_lines norm_backward_lines = {
    .call = "norm_backward kind=layer eps=1e-5 dy,x,dx=f32[600,300] weight,dweight,dbias=f32[300]",
    .empty = "norm_backward dy,x,dx=f32[0,300]",
    .units = "blocks of rows",
    .wrong = "norm_backward eps=-1 dy,x,dx=f32[2,4]",
};

enum { kRows = 600, kColumns = 300, kElements = kRows * kColumns };

/* A LayerNorm's call and its memory. */
typedef struct backward_call {
  float dy[kElements], x[kElements], dx[kElements];
  float weight[kColumns], mean[kRows], rstd[kRows], dweight[kColumns], dbias[kColumns];
  fastnorm_norm_backward_args* args;
} backward_call;

static backward_call one, other;
static void* workspace;
static size_t workspace_bytes;

static void reset(backward_call* c) {
  fill_random(c->dy, kElements, 1);
  fill_random(c->x, kElements, 2);
  fill_random(c->weight, kColumns, 3);
  memset(c->dx, 0xff, sizeof c->dx);
  memset(c->dweight, 0xff, sizeof c->dweight);
  memset(c->dbias, 0xff, sizeof c->dbias);
  c->args = NORM_BACKWARD("kind=layer eps=1e-05 dy,x,dx=f32[600,300] weight,dweight,dbias=f32[300]",
                          c->dy, c->x, c->dx, c->weight, c->dweight, c->dbias);
}

static int is_unwritten(const float* values, size_t count) {
  const unsigned char* bytes = (const unsigned char*)values;
  size_t i;
  for (i = 0; i < count * sizeof *values; ++i) {
    if (bytes[i] != 0xff) return 0;
  }
  return 1;
}

static int nothing_written(const backward_call* c) {
  return is_unwritten(c->dx, kElements) && is_unwritten(c->dweight, kColumns) &&
         is_unwritten(c->dbias, kColumns);
}

static fastnorm_status run(fastnorm_context* context, const backward_call* c) {
  return fastnorm_norm_backward(context, c->args, workspace, workspace_bytes, NULL);
}

static int same_results(const backward_call* a, const backward_call* b) {
  return memcmp(a->dx, b->dx, sizeof a->dx) == 0 &&
         memcmp(a->dweight, b->dweight, sizeof a->dweight) == 0 &&
         memcmp(a->dbias, b->dbias, sizeof a->dbias) == 0;
}

static void query(fastnorm_context* context) {
  fastnorm_info info = empty_info();
  reset(&one);
  CHECK_OK(fastnorm_norm_backward_query(context, one.args, &info));
  /* n 300: 16 lanes, 38 blocks of rows, for each of two sums. */
  CHECK(info.workspace_bytes == 2 * 38 * 320 * sizeof(float));
  CHECK(info.launches == 1 && strcmp(info.kernel, "layer_f32") == 0);
  CHECK(info.bytes_read == (2 * kElements + kColumns) * sizeof(float));
  CHECK(info.bytes_written == (kElements + 2 * kColumns) * sizeof(float));
  workspace_bytes = (size_t)info.workspace_bytes;
  workspace = aligned_alloc(256, workspace_bytes);
  change(one.args, "dweight,dbias=null");
  CHECK_OK(fastnorm_norm_backward_query(context, one.args, &info));
  CHECK(info.workspace_bytes == 0);
}

/* Formulas in double, for some rows and columns. */
static void by_formula(fastnorm_context* context) {
  static double xhat[kElements];
  int r, i;
  reset(&one);
  CHECK_OK(run(context, &one));
  for (r = 0; r < kRows; ++r) {
    const float *x = one.x + r * kColumns, *dy = one.dy + r * kColumns;
    double mean = 0, variance = 0, rstd, c1 = 0, c2 = 0, largest = 0;
    for (i = 0; i < kColumns; ++i) mean += (double)x[i] / kColumns;
    for (i = 0; i < kColumns; ++i) variance += ((double)x[i] - mean) * ((double)x[i] - mean);
    rstd = 1 / sqrt(variance / kColumns + 1e-5);
    for (i = 0; i < kColumns; ++i) {
      xhat[r * kColumns + i] = ((double)x[i] - mean) * rstd;
      c1 += (double)(dy[i] * one.weight[i]) * xhat[r * kColumns + i] / kColumns;
      c2 += (double)(dy[i] * one.weight[i]) / kColumns;
    }
    for (i = 0; i < kColumns; ++i) {
      const double e = (double)(dy[i] * one.weight[i]);
      const double dx = (e - c2 - xhat[r * kColumns + i] * c1) * rstd;
      largest = fmax(largest, fabs(dx - (double)one.dx[r * kColumns + i]));
    }
    if (!CHECK(largest < 1e-5)) return;
  }
  for (i = 0; i < kColumns; ++i) {
    double dweight = 0, dbias = 0;
    for (r = 0; r < kRows; ++r) {
      dweight += (double)one.dy[r * kColumns + i] * xhat[r * kColumns + i];
      dbias += (double)one.dy[r * kColumns + i];
    }
    if (!CHECK(fabs(dweight - (double)one.dweight[i]) < 1e-3)) return;
    if (!CHECK(fabs(dbias - (double)one.dbias[i]) < 1e-3)) return;
  }
}

/* The forward's mean and rstd give the same bits as computing them again. So does each output
 * alone, and in place. */
static void statistics_and_subsets(fastnorm_context* context) {
  static float y[kElements];
  reset(&one);
  CHECK_OK(run(context, &one));
  reset(&other);
  CHECK_OK(fastnorm_norm(context,
                         NORM("kind=layer eps=1e-05 x,y=f32[600,300] mean,rstd=f32[600]", other.x,
                              y, other.mean, other.rstd),
                         NULL, 0, NULL));
  change(other.args, "mean,rstd=f32[600]", other.mean, other.rstd);
  CHECK_OK(run(context, &other));
  CHECK(same_results(&one, &other));
  memset(other.dweight, 0, sizeof other.dweight);
  change(other.args, "dx,dbias=null");
  CHECK_OK(run(context, &other));
  CHECK(memcmp(one.dweight, other.dweight, sizeof one.dweight) == 0);
  reset(&other);
  change(other.args, "dx.address=dy dweight,dbias=null");
  CHECK_OK(fastnorm_norm_backward(context, other.args, NULL, 0, NULL));
  CHECK(memcmp(one.dx, other.dy, sizeof one.dx) == 0);
  CHECK(is_unwritten(other.dweight, kColumns));
}

/* Old values are added once, as the last step. Without the flag they are not read. */
static void accumulation(fastnorm_context* context) {
  int i, wrong = 0;
  reset(&one);
  CHECK_OK(run(context, &one));
  reset(&other);
  fill_random(other.dweight, kColumns, 9);
  memcpy(one.weight, other.dweight, sizeof one.weight); /* the old values */
  memset(other.dbias, 0, sizeof other.dbias);
  other.args->flags =
      FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT | FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS;
  CHECK_OK(run(context, &other));
  CHECK_OK(run(context, &other));
  for (i = 0; i < kColumns; ++i) {
    const float first = one.weight[i] + one.dweight[i];
    wrong += other.dweight[i] != first + one.dweight[i];
    wrong += other.dbias[i] != one.dbias[i] + one.dbias[i];
  }
  CHECK(wrong == 0);
}

static void no_rows(fastnorm_context* context) {
  int i, set = 0;
  reset(&one);
  change(one.args, "dy,x,dx.shape=[0,300]");
  one.args->flags = FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS;
  CHECK_OK(fastnorm_norm_backward(context, one.args, NULL, 0, NULL));
  for (i = 0; i < kColumns; ++i) set += one.dweight[i] == 0 && !signbit(one.dweight[i]);
  CHECK(set == kColumns);
  CHECK(is_unwritten(one.dbias, kColumns) && is_unwritten(one.dx, kElements));
}

static void several(fastnorm_context* context) {
  static backward_call alone;
  const fastnorm_norm_backward_args* list[2];
  fastnorm_info info = empty_info(), single = empty_info();
  void* room;
  size_t bytes;
  reset(&one);
  reset(&other);
  list[0] = one.args, list[1] = other.args;
  other.args->kind = FASTNORM_NORM_RMS;
  reset(&alone);
  CHECK_OK(fastnorm_norm_backward_query(context, one.args, &single));
  CHECK_OK(fastnorm_norm_backward_many_query(context, list, 2, &info));
  CHECK(info.launches == 2 && info.workspace_bytes == 2 * single.workspace_bytes);
  CHECK(info.bytes_read == 2 * single.bytes_read);
  CHECK_OK(fastnorm_norm_backward_many_prepare(context, list, 2));
  bytes = (size_t)info.workspace_bytes;
  room = aligned_alloc(256, bytes);
  CHECK_STATUS(fastnorm_norm_backward_many(context, list, 2, room, bytes - 1, NULL),
               FASTNORM_ERROR_ARGUMENT);
  CHECK(nothing_written(&one) && nothing_written(&other));
  CHECK_OK(fastnorm_norm_backward_many(context, list, 2, room, bytes, NULL));
  free(room);
  CHECK_OK(run(context, &alone));
  CHECK(same_results(&one, &alone));
  alone.args->kind = FASTNORM_NORM_RMS;
  CHECK_OK(run(context, &alone));
  CHECK(same_results(&other, &alone));
  CHECK_OK(fastnorm_norm_backward_many(context, NULL, 0, NULL, 0, NULL));
  CHECK_STATUS(fastnorm_norm_backward_many(context, list, 9, NULL, 0, NULL),
               FASTNORM_ERROR_ARGUMENT);
  const fastnorm_norm_backward_args* without[] = {one.args, NULL};
  CHECK_STATUS(fastnorm_norm_backward_many_query(context, without, 2, &info),
               FASTNORM_ERROR_ARGUMENT);
  CHECK(strncmp(fastnorm_last_error(), "args[1] is NULL", 15) == 0);
  change(other.args, "dbias=f32[300]", one.dbias);
  CHECK_STATUS(fastnorm_norm_backward_many_query(context, list, 2, &info), FASTNORM_ERROR_LAYOUT);
  CHECK_TEXT("args[0].dbias");
  other.args->eps = -1;
  CHECK_STATUS(fastnorm_norm_backward_many_query(context, list, 2, &info), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("args[1].eps is -1");
}

static float gate[kElements], dgate[kElements], forward[kElements], bias[kColumns];

/* Gives `one` a gate. */
static void add_gate(const char* position) {
  fill_random(gate, kElements, 4);
  fill_random(bias, kColumns, 5);
  memset(dgate, 0xff, sizeof dgate);
  change(one.args, "gate,dgate=f32[600,300] bias=f32[300]", gate, dgate, bias);
  change(one.args, position);
}

/* A gate that is a factor, against calls in which dy or x was multiplied before: the same bits. */
static void gates(fastnorm_context* context) {
  size_t i, wrong = 0;
  reset(&one), reset(&other);
  add_gate("gate_position=after_norm");
  for (i = 0; i < kElements; ++i) other.dy[i] = one.dy[i] * gate[i];
  CHECK_OK(run(context, &one));
  CHECK_OK(run(context, &other));
  CHECK(same_results(&one, &other));
  CHECK_OK(fastnorm_norm(context,
                         NORM("kind=layer eps=1e-05 x,y=f32[600,300] weight,bias=f32[300]", one.x,
                              forward, one.weight, bias),
                         NULL, 0, NULL));
  for (i = 0; i < kElements; ++i) wrong += dgate[i] != one.dy[i] * forward[i];
  CHECK(wrong == 0);
  reset(&one), reset(&other);
  add_gate("gate_position=before_norm");
  for (i = 0; i < kElements; ++i) other.x[i] = one.x[i] * gate[i];
  CHECK_OK(run(context, &one));
  CHECK_OK(run(context, &other));
  for (i = 0; i < kElements; ++i) {
    wrong += one.dx[i] != other.dx[i] * gate[i];
    wrong += dgate[i] != other.dx[i] * one.x[i];
  }
  CHECK(wrong == 0);
  CHECK(memcmp(one.dweight, other.dweight, sizeof one.dweight) == 0);
  CHECK(memcmp(one.dbias, other.dbias, sizeof one.dbias) == 0);
}

/* The derivatives of the activations, in double precision. */
static void slopes(fastnorm_context* context) {
  static const char* const kActs[] = {"gate_act=silu", "gate_act=sigmoid", "gate_act=tanh"};
  static float z[kColumns], dz[kColumns], result[kColumns];
  static float ones[kColumns], rstd[1] = {1};
  fastnorm_norm_backward_args* const args =
      NORM_BACKWARD("dy,x,gate,dgate,dx=f32[1,300] rstd=f32[1]", ones, ones, z, dz, result, rstd);
  int a, i;
  for (i = 0; i < kColumns; ++i) {
    z[i] = (float)(i - kColumns / 2) / 16;
    ones[i] = 1;
  }
  z[0] = -INFINITY, z[1] = INFINITY, z[2] = -1e30f, z[3] = 1e30f, z[4] = NAN;
  for (a = 0; a < 3; ++a) {
    change(args, kActs[a]);
    CHECK_OK(fastnorm_norm_backward(context, args, NULL, 0, NULL));
    CHECK(dz[0] == 0 && dz[2] == 0);
    CHECK(dz[1] == (float)(a == 0) && dz[3] == dz[1]);
    CHECK(dz[4] != dz[4]);
    for (i = 5; i < kColumns; ++i) {
      const double v = (double)z[i], s = 1 / (1 + exp(-v)), c = 1 / (1 + exp(v));
      const double s2 = 1 / (1 + exp(-2 * v)), c2 = 1 / (1 + exp(2 * v));
      const double exact = a == 0 ? s * (1 + v * c) : a == 1 ? s * c : 4 * s2 * c2;
      if (!CHECK(fabs((double)dz[i] - exact) <= 2e-6 * (fabs(exact) + (a == 0 ? s : 0)))) return;
    }
  }
}

/* Groups of the columns, against x viewed as [rows, groups, columns]. */
static void groups(fastnorm_context* context) {
  reset(&one), reset(&other);
  change(one.args, "group_size=100");
  change(other.args, "dy,x,dx.shape=[600,3,100] weight,dweight,dbias.shape=[3,100]");
  CHECK_OK(run(context, &one));
  CHECK_OK(run(context, &other));
  CHECK(same_results(&one, &other));
}

/* The block of a diffusion transformer in double precision, as fastnorm/norm.h writes it: a branch
 * with a LayerNorm, a gated residual, a scaled sum, a LayerNorm and its modulation. Gates, scales
 * and shifts are of a batch. */
enum { kBatch = 2, kTokens = 3, kModel = 9, kAll = kBatch * kTokens * kModel };

typedef struct block_inputs {
  double residual[kAll], branch[kAll], branch_weight[kModel], branch_bias[kModel];
  double gate[kBatch * kModel], scale[kBatch * kModel], shift[kBatch * kModel];
} block_inputs;

static const double kEps1 = 1e-3, kEps2 = 1e-2, kAlpha = 0.75, kScale = 1.25;
static double block_dy[kAll], block_dsum[kAll];

static void normalise(const double* row, double eps, double* result) {
  double mean = 0, variance = 0;
  int i;
  for (i = 0; i < kModel; ++i) mean += row[i] / kModel;
  for (i = 0; i < kModel; ++i) variance += (row[i] - mean) * (row[i] - mean) / kModel;
  for (i = 0; i < kModel; ++i) result[i] = (row[i] - mean) / sqrt(variance + eps);
}

/* sum(y * block_dy + s * block_dsum); s goes to `sums`, unless that is NULL. */
static double loss_of(const block_inputs* b, double* sums) {
  double total = 0;
  int r, i;
  for (r = 0; r < kBatch * kTokens; ++r) {
    const int of_batch = r / kTokens * kModel, at = r * kModel;
    double normal[kModel], s[kModel];
    normalise(b->branch + at, kEps1, normal);
    for (i = 0; i < kModel; ++i) {
      const double u = normal[i] * (1 + b->branch_weight[i]) + b->branch_bias[i];
      s[i] = (b->residual[at + i] + u * tanh(b->gate[of_batch + i]) * kAlpha) * kScale;
      total += s[i] * block_dsum[at + i];
      if (sums != NULL) sums[at + i] = s[i];
    }
    normalise(s, kEps2, normal);
    for (i = 0; i < kModel; ++i) {
      const double y = normal[i] * (1 + b->scale[of_batch + i]) + b->shift[of_batch + i];
      total += y * block_dy[at + i];
    }
  }
  return total;
}

/* Differences of the loss against what the call found. */
static void check_slopes(block_inputs* b, double* values, const float* found, int count) {
  const double step = 1e-5;
  int i;
  for (i = 0; i < count; ++i) {
    const double old = values[i];
    double slope;
    values[i] = old + step;
    slope = loss_of(b, NULL);
    values[i] = old - step;
    slope = (slope - loss_of(b, NULL)) / (2 * step);
    values[i] = old;
    if (!CHECK(fabs(slope - (double)found[i]) < 2e-5)) return;
  }
}

static void randomise(double* values, float* single, int count, uint32_t seed) {
  int i;
  fill_random(single, (size_t)count, seed);
  for (i = 0; i < count; ++i) values[i] = (double)single[i];
}

/* adaLN and sandwich in one call: dscale and dshift are dweight and dbias. */
static void branches(fastnorm_context* context) {
  static block_inputs b;
  static float dy[kAll], dsum[kAll], x[kAll], branch[kAll], weight[kModel], bias[kModel];
  static float gate[kBatch * kModel], scale[kBatch * kModel], factor[1] = {(float)1.25};
  static float dx[kAll], dbranch[kAll], dweight[kModel], dbias[kModel], unused[kAll];
  static float dgate[kBatch * kModel], dscale[kBatch * kModel], dshift[kBatch * kModel];
  static double sums[kAll];
  fastnorm_norm_backward_args* const args = NORM_BACKWARD(
      "kind,branch_kind=layer eps=0.01 branch_eps=0.001 weight_offset,branch_weight_offset=1 "
      "branch_norm=1 alpha=0.75 flags=0x100 residual_gate_act=tanh "
      "dy,x,dresidual_in,dx,branch,dbranch=f32[2,3,9] "
      "weight,dweight,dbias,residual_gate,dresidual_gate=f32[2,1,9] "
      "branch_weight,branch_bias,dbranch_weight=f32[9] sum_scale=f32[1]",
      dy, x, dsum, dx, branch, dbranch, scale, dscale, dshift, gate, dgate, weight, bias, dweight,
      factor);
  int i;
  randomise(block_dy, dy, kAll, 11), randomise(block_dsum, dsum, kAll, 12);
  randomise(b.residual, unused, kAll, 13), randomise(b.branch, branch, kAll, 14);
  randomise(b.branch_weight, weight, kModel, 15), randomise(b.branch_bias, bias, kModel, 16);
  randomise(b.gate, gate, kBatch * kModel, 17), randomise(b.scale, scale, kBatch * kModel, 18);
  loss_of(&b, sums);
  for (i = 0; i < kAll; ++i) x[i] = (float)sums[i];
  CHECK_OK(fastnorm_norm_backward(context, args, workspace, workspace_bytes, NULL));
  check_slopes(&b, b.residual, dx, kAll);
  check_slopes(&b, b.branch, dbranch, kAll);
  check_slopes(&b, b.branch_weight, dweight, kModel);
  check_slopes(&b, b.gate, dgate, kBatch * kModel);
  check_slopes(&b, b.scale, dscale, kBatch * kModel);
  check_slopes(&b, b.shift, dshift, kBatch * kModel);
  /* The bias's gradient in place of the weight's, added to what is there. */
  change(args, "dbranch_weight=null dbranch_bias=f32[9] flags=0x140", dbias);
  for (i = 0; i < kModel; ++i) dbias[i] = 8;
  CHECK_OK(fastnorm_norm_backward(context, args, workspace, workspace_bytes, NULL));
  for (i = 0; i < kModel; ++i) dbias[i] -= 8;
  check_slopes(&b, b.branch_bias, dbias, kModel);
}

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* dbias of `rows` rows of ones is exactly the number of rows. All rows share one row of memory.
 * Returns the time in seconds. */
static double count_rows(fastnorm_context* context, int64_t rows) {
  enum { kWide = 1024 };
  static float dy[kWide], dbias[kWide];
  const fastnorm_norm_backward_args* args;
  char line[96];
  void* room = aligned_alloc(256, 128 * kWide * sizeof(float));
  double start;
  int i, right = 0;
  for (i = 0; i < kWide; ++i) dy[i] = 1;
  snprintf(line, sizeof line, "norm_backward dy,x=f32[%d,1024] dy,x.strides=[0,1] dbias=f32[1024]",
           (int)rows);
  args = call_of(line, dy, dy, dbias);
  start = seconds();
  CHECK_OK(fastnorm_norm_backward(context, args, room, 128 * kWide * sizeof(float), NULL));
  start = seconds() - start;
  for (i = 0; i < kWide; ++i) right += dbias[i] == (float)rows;
  CHECK(right == kWide);
  free(room);
  return start;
}

/* Rows whose offsets do not fit in 32 bits. */
static void far_rows(fastnorm_context* context) {
  const int64_t stride = ((int64_t)1 << 30) + 13, n = 100;
  const size_t bytes = (size_t)(2 * stride + n) * sizeof(float);
  float* memory = (float*)mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  static float rstd[3] = {1, 1, 1};
  int64_t r, i, wrong = 0;
  if (memory == MAP_FAILED) {
    skip("gradients of rows far apart", "no 8 GiB of address space");
    return;
  }
  for (r = 0; r < 3; ++r) {
    for (i = 0; i < n; ++i) memory[r * stride + i] = 2;
  }
  CHECK_OK(fastnorm_norm_backward(
      context,
      NORM_BACKWARD("dy,x,dx=f32[3,100] dy,x,dx.strides=[1073741837,1] rstd=f32[3]", memory, memory,
                    memory, rstd),
      NULL, 0, NULL));
  for (r = 0; r < 3; ++r) {
    for (i = 0; i < n; ++i)
      wrong += memory[r * stride + i] != 2 - 2 * 4.0f; /* dy - x * mean(dy x) */
  }
  CHECK(wrong == 0);
  munmap(memory, bytes);
}

static void large(fastnorm_context* context) {
  const int64_t rows = ((int64_t)1 << 21) + 3;
  far_rows(context);
  count_rows(context, 1 << 10);
  if (count_rows(context, 1 << 10) * 2048 > 6) {
    skip("gradients of more than 2^31 elements",
         "would take longer than 6 s here (instruction set, emulator or sanitizer)");
    return;
  }
  count_rows(context, rows);
}

/* bytes_read of a call with one sum, and how many more they are if it adds to what is there. */
static void adds_to_one(fastnorm_context* context, const char* device, const char* line,
                        uint32_t flag, uint64_t alone) {
  fastnorm_norm_backward_args* args;
  fastnorm_info info = empty_info();
  char text[256];
  snprintf(text, sizeof text, "norm_backward device=%s dy,x=f32[4,16] %s", device, line);
  args = dry_call_of(text);
  CHECK_OK(fastnorm_norm_backward_query(context, args, &info));
  CHECK(info.bytes_read == alone);
  args->flags = flag;
  CHECK_OK(fastnorm_norm_backward_query(context, args, &info));
  CHECK(info.bytes_read == alone + 16 * sizeof(float));
}

/* Each sum alone, of 4 rows of 16 columns: a tensor of rows has 256 bytes, a sum 64. */
static void bytes_of_accumulation(fastnorm_device device) {
  const int on_gpu = device.device_type == FASTNORM_DEVICE_CUDA;
  const char* const name = on_gpu ? "cuda:0" : "cpu:0";
  fastnorm_context_options options = empty_options();
  fastnorm_context* context = NULL;
  options.flags = FASTNORM_CONTEXT_DRY_RUN;
  options.dry_run_capability = on_gpu ? 90 : 0;
  if (!CHECK_OK(fastnorm_context_create(device, &options, &context))) return;
  adds_to_one(context, name, "weight,dweight=f32[16]", /* dy and x */
              FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT, 512);
  adds_to_one(context, name, "dbias=f32[16]", /* dy */
              FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS, 256);
  adds_to_one(context, name, /* dy, x, branch and rstd */
              "rstd=f32[4] branch=f32[4,16] residual_gate,dresidual_gate=f32[16]",
              FASTNORM_NORM_BACKWARD_ACCUMULATE_DRESIDUAL_GATE, 3 * 256 + 64 + 16);
  adds_to_one(context, name, /* dy, x and rstd */
              "rstd=f32[4] branch=f32[4,16] branch_norm=1 dbranch_bias=f32[16]",
              FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_BIAS, 2 * 256 + 16);
  adds_to_one(context, name,
              "rstd=f32[4] branch=f32[4,16] branch_norm=1 branch_weight,dbranch_weight=f32[16]",
              FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_WEIGHT, 3 * 256 + 64 + 16);
  fastnorm_context_destroy(context);
}

void test_norm_backward(void) {
  const fastnorm_device cpu = {FASTNORM_DEVICE_CPU, 0}, cuda = {FASTNORM_DEVICE_CUDA, 0};
  fastnorm_context* context = cpu_context(NULL);
  bytes_of_accumulation(cpu);
  bytes_of_accumulation(cuda);
  query(context);
  by_formula(context);
  statistics_and_subsets(context);
  accumulation(context);
  no_rows(context);
  several(context);
  gates(context);
  slopes(context);
  groups(context);
  branches(context);
  large(context);
  free(workspace);
  fastnorm_context_destroy(context);
}
