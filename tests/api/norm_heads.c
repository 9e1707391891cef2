/* norm_heads through the C ABI: results computed by hand, a layer's query, key and value heads,
 * queries, threads, dry runs and refusals. */
#include <math.h>

#include "api/api_test.h"

enum { kTokens = 4, kQuery = 4, kKey = 2, kColumns = 64, kHeads = kQuery + 2 * kKey };
enum { kPages = 3, kPage = 3, kPositions = 9 };

/* The memory of a call and its tensors: query, key and value heads of one buffer. */
typedef struct heads_call {
  float qkv[kTokens * kHeads * kColumns], weight[kColumns];
  float cos[kPositions * kColumns / 2], sin[kPositions * kColumns / 2];
  float key_cache[kPages * kPage * kKey * kColumns];
  int8_t value_cache[kPages * kPage * kKey * kColumns];
  float value_scale[1];
  int64_t positions[kTokens];
  int32_t slots[kTokens];
  tensor_of t[14];
  fastnorm_norm_heads_part part[3];
  fastnorm_quant quant[2]; /* of the query's codes and of the values' cache */
  const fastnorm_norm_heads_part* parts[3];
  fastnorm_norm_heads_args args;
} heads_call;

static heads_call heads;

/* The buffer's heads from number `first` on. */
static const fastnorm_tensor* view(tensor_of* out, int first, int count) {
  const int64_t shape[3] = {kTokens, count, kColumns};
  make_tensor(out, heads.qkv + first * kColumns, FASTNORM_DTYPE_F32, 3, shape);
  out->strides[0] = kHeads * kColumns, out->strides[1] = kColumns, out->strides[2] = 1;
  out->tensor.strides = out->strides;
  return &out->tensor;
}

static void reset(void) {
  const int64_t cache[4] = {kPages, kPage, kKey, kColumns}, table[2] = {kPositions, kColumns / 2};
  int i, j;
  fill_random(heads.qkv, sizeof heads.qkv / 4, 5);
  fill_random(heads.weight, kColumns, 6);
  for (i = 0; i < kPositions; ++i) {
    for (j = 0; j < kColumns / 2; ++j) {
      heads.cos[i * kColumns / 2 + j] = cosf((float)i / (float)(1 + j));
      heads.sin[i * kColumns / 2 + j] = sinf((float)i / (float)(1 + j));
    }
  }
  memset(heads.key_cache, 0xff, sizeof heads.key_cache);
  memset(heads.value_cache, 0x55, sizeof heads.value_cache);
  heads.value_scale[0] = 1 / 64.0f;
  for (i = 0; i < kTokens; ++i) {
    heads.positions[i] = 8 - i;
    heads.slots[i] = i == 2 ? -1 : 7 - 2 * i;
  }
  memset(heads.part, 0, sizeof heads.part);
  memset(&heads.args, 0, sizeof heads.args);
  for (i = 0; i < 3; ++i) {
    heads.part[i].struct_size = sizeof heads.part[i];
    heads.part[i].x =
        view(&heads.t[i], i == 0 ? 0 : kQuery + (i - 1) * kKey, i == 0 ? kQuery : kKey);
    heads.parts[i] = &heads.part[i];
  }
  for (i = 0; i < 2; ++i) {
    heads.part[i].flags = FASTNORM_NORM_HEADS_NORM | FASTNORM_NORM_HEADS_ROPE;
    heads.part[i].eps = 1e-6f;
    heads.part[i].weight = make_vector(&heads.t[3], heads.weight, FASTNORM_DTYPE_F32, kColumns);
    heads.part[i].y = heads.part[i].x;
  }
  heads.part[1].cache = make_tensor(&heads.t[4], heads.key_cache, FASTNORM_DTYPE_F32, 4, cache);
  heads.part[2].cache = make_tensor(&heads.t[5], heads.value_cache, FASTNORM_DTYPE_I8, 4, cache);
  memset(heads.quant, 0, sizeof heads.quant);
  for (i = 0; i < 2; ++i) heads.quant[i].struct_size = sizeof heads.quant[i];
  heads.part[2].cache_quant = &heads.quant[1];
  heads.quant[1].scheme = FASTNORM_QUANT_PER_TENSOR;
  heads.quant[1].scale = make_vector(&heads.t[6], heads.value_scale, FASTNORM_DTYPE_F32, 1);
  heads.args.struct_size = sizeof heads.args;
  heads.args.rope_dim = kColumns;
  heads.args.cos = make_tensor(&heads.t[7], heads.cos, FASTNORM_DTYPE_F32, 2, table);
  heads.args.sin = make_tensor(&heads.t[8], heads.sin, FASTNORM_DTYPE_F32, 2, table);
  heads.args.positions = make_vector(&heads.t[9], heads.positions, FASTNORM_DTYPE_I64, kTokens);
  heads.args.slots = make_vector(&heads.t[10], heads.slots, FASTNORM_DTYPE_I32, kTokens);
}

static fastnorm_status run(fastnorm_context* context) {
  return fastnorm_norm_heads(context, &heads.args, heads.parts, 3, NULL, 0, NULL);
}

/* A quarter turn: (1, 0) becomes (0, 1). A key of ones is its own norm. */
static void by_hand(fastnorm_context* context) {
  int i;
  reset();
  for (i = 0; i < kPositions * kColumns / 2; ++i) heads.cos[i] = 0, heads.sin[i] = 1;
  for (i = 0; i < kColumns; ++i) heads.qkv[i] = i < kColumns / 2 ? 1.0f : 0.0f;
  for (i = 0; i < kColumns; ++i) heads.qkv[kQuery * kColumns + i] = i % 2 ? -3.0f : 3.0f;
  for (i = 0; i < kColumns; ++i) heads.qkv[(kQuery + kKey) * kColumns + i] = (float)(i - 32) / 64;
  heads.part[0].flags = FASTNORM_NORM_HEADS_ROPE;
  heads.part[0].eps = 0;
  heads.part[0].weight = heads.part[1].weight = NULL;
  heads.part[1].flags = FASTNORM_NORM_HEADS_NORM;
  heads.part[1].eps = 0;
  CHECK_OK(run(context));
  for (i = 0; i < kColumns && heads.qkv[i] == (i < kColumns / 2 ? 0.0f : 1.0f); ++i) {
  }
  CHECK(i == kColumns);
  for (i = 0; i < kColumns && heads.key_cache[7 * kKey * kColumns + i] == (i % 2 ? -1 : 1); ++i) {
  }
  CHECK(i == kColumns);
  for (i = 0; i < kColumns && heads.value_cache[7 * kKey * kColumns + i] == i - 32; ++i) {
  }
  CHECK(i == kColumns);
}

/* The key in the cache equals the key in the buffer. Slots without a token do not change. */
static void caches(fastnorm_context* context) {
  int slot, token, i;
  reset();
  CHECK_OK(run(context));
  for (slot = 0; slot < kPages * kPage; ++slot) {
    const float* key = heads.key_cache + slot * kKey * kColumns;
    const int8_t* value = heads.value_cache + slot * kKey * kColumns;
    for (token = 0; token < kTokens && heads.slots[token] != slot; ++token) {
    }
    if (token < kTokens) {
      const float* rows = heads.qkv + (token * kHeads + kQuery) * kColumns;
      CHECK(memcmp(key, rows, kKey * kColumns * sizeof(float)) == 0);
      for (i = 0; i < kKey * kColumns; ++i) {
        if (value[i] != (int8_t)fmaxf(-128, fminf(127, rintf(rows[kKey * kColumns + i] * 64))))
          break;
      }
    } else {
      for (i = 0; i < kKey * kColumns && isnan(key[i]) && value[i] == 0x55; ++i) {
      }
    }
    CHECK(i == kKey * kColumns);
  }
}

/* Token 2 has no slot, and token 3 is behind the last one. Their positions have no row in the
 * tables; nothing of them is written, and the others have the bits of a call without padding. */
static void padding(fastnorm_context* context) {
  static float before[kTokens * kHeads * kColumns], whole[kTokens * kHeads * kColumns];
  enum { kTokenBytes = sizeof before / kTokens };
  static float rstd[kTokens * kQuery];
  const int64_t shape[2] = {kTokens, kQuery};
  int i;
  reset();
  memcpy(before, heads.qkv, sizeof before);
  heads.slots[2] = 0;
  CHECK_OK(run(context));
  memcpy(whole, heads.qkv, sizeof whole);
  CHECK(memcmp(whole, before, sizeof whole) != 0);
  reset();
  for (i = 0; i < kTokens * kQuery; ++i) rstd[i] = 77;
  heads.part[0].rstd = make_tensor(&heads.t[11], rstd, FASTNORM_DTYPE_F32, 2, shape);
  heads.positions[2] = -1, heads.positions[3] = INT64_MAX;
  heads.t[10].shape[0] = 3;
  CHECK_OK(run(context));
  CHECK(memcmp(heads.qkv, whole, 2 * kTokenBytes) == 0);
  CHECK(memcmp(heads.qkv + 2 * kHeads * kColumns, before + 2 * kHeads * kColumns,
               2 * kTokenBytes) == 0);
  for (i = 0; i < kTokens * kQuery && (rstd[i] == 77) == (i >= 2 * kQuery); ++i) {
  }
  CHECK(i == kTokens * kQuery);
  for (i = 0; i < kPages * kPage; ++i) /* slots 7 and 5 */
    CHECK((heads.value_cache[i * kKey * kColumns] == 0x55) == (i != 7 && i != 5));
  heads.slots[1] = -1; /* a token that is no padding would be refused */
  heads.positions[1] = kPositions;
  CHECK_OK(run(context));
  heads.slots[1] = 5;
  CHECK_STATUS(run(context), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("the position of token 1, axis 0, is 9");
}

/* Codes of quotients differ from those of products; both computed by hand. */
static void quotients(fastnorm_context* context) {
  const float scale = 0.0123f;
  int division, i, different = 0;
  static int8_t codes[2][kKey * kColumns];
  for (division = 0; division < 2; ++division) {
    const float* row = heads.qkv + (kQuery + kKey) * kColumns;
    reset();
    for (i = 0; i < kKey * kColumns; ++i)
      heads.qkv[(kQuery + kKey) * kColumns + i] = scale * ((float)(i % 100) + 0.5f);
    heads.value_scale[0] = scale;
    heads.quant[1].division = division ? FASTNORM_QUANT_DIVIDE : FASTNORM_QUANT_MULTIPLY_RECIPROCAL;
    CHECK_OK(run(context));
    memcpy(codes[division], heads.value_cache + 7 * kKey * kColumns, sizeof codes[division]);
    for (i = 0; i < kKey * kColumns; ++i) {
      const float quotient = division ? row[i] / scale : row[i] * (1 / scale);
      if (codes[division][i] != (int8_t)rintf(quotient)) break;
    }
    CHECK(i == kKey * kColumns);
  }
  for (i = 0; i < kKey * kColumns; ++i) different += codes[0][i] != codes[1][i];
  CHECK(different > 0);
}

/* The query as MXFP4, clamped by a value in memory. All clamped values of a row have one code. */
static double e4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  const double magnitude = exponent == 0 ? ldexp(fraction, -9) : ldexp(8 + fraction, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

/* The key of a sparse attention's indexer, in double: LayerNorm, rope of the first 64 columns in
 * halves, the Hadamard matrix of 128 columns. */
static void indexer_key(const float* x, const float* weight, const float* bias, const float* c,
                        const float* s, double* key) {
  double v[128], mean = 0, variance = 0;
  int i, j;
  for (i = 0; i < 128; ++i) mean += x[i] / 128.0;
  for (i = 0; i < 128; ++i) variance += (x[i] - mean) * (x[i] - mean) / 128;
  for (i = 0; i < 128; ++i) v[i] = (x[i] - mean) / sqrt(variance + 1e-6) * weight[i] + bias[i];
  for (i = 0; i < 32; ++i) {
    const double first = v[i], second = v[i + 32];
    v[i] = first * c[i] - second * s[i];
    v[i + 32] = second * c[i] + first * s[i];
  }
  for (i = 0; i < 128; ++i) {
    key[i] = 0;
    for (j = 0; j < 128; ++j) {
      int bits = i & j, odd = 0;
      for (; bits != 0; bits &= bits - 1) odd = !odd;
      key[i] += (odd ? -v[j] : v[j]) / sqrt(128.0);
    }
  }
}

/* Pages of 132 bytes a token: the codes of all tokens, then their scales. */
static void indexer_keys(fastnorm_context* context) {
  enum { kTokensHere = 5, kPagesHere = 2, kPageSize = 4, kN = 128, kPageBytes = kPageSize * 132 };
  static float x[kTokensHere * kN], weight[kN], bias[kN];
  static float cos[kTokensHere * 32], sin[kTokensHere * 32];
  static union {
    uint8_t bytes[kPagesHere * kPageBytes];
    float align;
  } memory;
  static int32_t slots[kTokensHere] = {6, 0, 3, -1, 5};
  const int64_t rows[3] = {kTokensHere, 1, kN}, table[2] = {kTokensHere, 32};
  const int64_t cache[4] = {kPagesHere, kPageSize, 1, kN};
  const int64_t scales[4] = {kPagesHere, kPageSize, 1, 1};
  const int64_t cache_steps[4] = {kPageBytes, kN, kN, 1};
  const int64_t scale_steps[4] = {kPageBytes / 4, 1, 1, 1};
  tensor_of t[8];
  fastnorm_quant quant;
  fastnorm_norm_heads_part part;
  fastnorm_norm_heads_args args;
  const fastnorm_norm_heads_part* parts[1];
  int i, token;
  fill_random(x, kTokensHere * kN, 21);
  fill_random(weight, kN, 22);
  fill_random(bias, kN, 23);
  for (i = 0; i < kTokensHere * 32; ++i) {
    cos[i] = cosf((float)(i / 32) * powf(10000, -(float)(i % 32) / 32));
    sin[i] = sinf((float)(i / 32) * powf(10000, -(float)(i % 32) / 32));
  }
  memset(&memory, 0x55, sizeof memory);
  memset(&quant, 0, sizeof quant);
  memset(&part, 0, sizeof part);
  memset(&args, 0, sizeof args);
  quant.struct_size = sizeof quant;
  quant.scheme = FASTNORM_QUANT_PER_BLOCK;
  quant.block_size = kN;
  quant.rotation = kN;
  make_tensor(&t[0], memory.bytes + kPageSize * kN, FASTNORM_DTYPE_F32, 4, scales);
  memcpy(t[0].strides, scale_steps, sizeof scale_steps);
  t[0].tensor.strides = t[0].strides;
  quant.scale = &t[0].tensor;
  part.struct_size = sizeof part;
  part.flags = FASTNORM_NORM_HEADS_NORM | FASTNORM_NORM_HEADS_ROPE;
  part.kind = FASTNORM_NORM_LAYER;
  part.eps = 1e-6f;
  part.x = make_tensor(&t[1], x, FASTNORM_DTYPE_F32, 3, rows);
  part.weight = make_vector(&t[2], weight, FASTNORM_DTYPE_F32, kN);
  part.bias = make_vector(&t[3], bias, FASTNORM_DTYPE_F32, kN);
  make_tensor(&t[4], memory.bytes, FASTNORM_DTYPE_F8_E4M3FN, 4, cache);
  memcpy(t[4].strides, cache_steps, sizeof cache_steps);
  t[4].tensor.strides = t[4].strides;
  part.cache = &t[4].tensor;
  part.cache_quant = &quant;
  args.struct_size = sizeof args;
  args.rope_dim = 64;
  args.cos = make_tensor(&t[5], cos, FASTNORM_DTYPE_F32, 2, table);
  args.sin = make_tensor(&t[6], sin, FASTNORM_DTYPE_F32, 2, table);
  args.slots = make_vector(&t[7], slots, FASTNORM_DTYPE_I32, kTokensHere);
  parts[0] = &part;
  CHECK_OK(fastnorm_norm_heads(context, &args, parts, 1, NULL, 0, NULL));
  for (token = 0; token < kTokensHere; ++token) {
    double key[kN], most = 0;
    const int page = slots[token] / kPageSize, row = slots[token] % kPageSize;
    const uint8_t* const at = memory.bytes + page * kPageBytes;
    float scale;
    if (slots[token] < 0) continue;
    indexer_key(x + token * kN, weight, bias, cos + token * 32, sin + token * 32, key);
    for (i = 0; i < kN; ++i) most = fmax(most, fabs(key[i]));
    memcpy(&scale, at + kPageSize * kN + row * 4, sizeof scale);
    CHECK(fabs(scale * 448 / most - 1) < 1e-5);
    for (i = 0; i < kN; ++i) {
      const double found = e4m3(at[row * kN + i]) * (double)scale;
      CHECK(fabs(found - key[i]) <= fabs(key[i]) / 15 + scale * 0x1p-9);
    }
  }
  CHECK(memory.bytes[1 * kN] == 0x55); /* slot 1 has no token */
}

static void clamped_codes(fastnorm_context* context) {
  static uint8_t codes[kTokens * kQuery * kColumns / 2], scales[kTokens * kQuery * kColumns / 32];
  const int64_t pairs[3] = {kTokens, kQuery, kColumns / 2};
  const int64_t blocks[3] = {kTokens, kQuery, kColumns / 32};
  float limit = 3;
  int i;
  reset();
  for (i = 0; i < kColumns; ++i) heads.qkv[i] = i % 2 ? -40.0f : 50.0f;
  heads.part[0].flags = 0;
  heads.part[0].eps = 0;
  heads.part[0].weight = heads.part[0].y = NULL;
  heads.part[0].quant = &heads.quant[0];
  heads.quant[0].scheme = FASTNORM_QUANT_MXFP4;
  heads.quant[0].quantized =
      make_tensor(&heads.t[11], codes, FASTNORM_DTYPE_F4_E2M1FN_X2, 3, pairs);
  heads.quant[0].scale = make_tensor(&heads.t[12], scales, FASTNORM_DTYPE_F8_E8M0FNU, 3, blocks);
  heads.quant[0].clamp_scale = make_vector(&heads.t[13], &limit, FASTNORM_DTYPE_F32, 1);
  CHECK_OK(run(context));
  /* 3 is 6 * 2^-1: codes of 6 and -6. */
  for (i = 0; i < kColumns / 2 && codes[i] == 0xf7; ++i) {
  }
  CHECK(i == kColumns / 2 && scales[0] == 126 && scales[1] == 126);
  heads.quant[0].clamp = 1;
  CHECK_STATUS(run(context), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("parts[0].quant.clamp is 1 and quant.clamp_scale is given");
}

static void query(fastnorm_context* context) {
  static float before[kTokens * kHeads * kColumns];
  fastnorm_info info = empty_info();
  fastnorm_kernel_info kernel;
  int32_t i, listed = 0;
  reset();
  memcpy(before, heads.qkv, sizeof before);
  CHECK_OK(fastnorm_norm_heads_query(context, &heads.args, heads.parts, 3, &info));
  CHECK(info.workspace_bytes == 0 && info.launches == 1 && info.blocks >= 1);
  CHECK(strcmp(info.kernel, "f32") == 0);
  CHECK(info.bytes_read == sizeof heads.qkv + 2 * sizeof heads.weight + 4 + kTokens * 8 +
                               kTokens * 4 + 2 * kTokens * kColumns / 2 * 4);
  CHECK(info.bytes_written ==
        kTokens * kColumns * ((kQuery + kKey) * 4 + kKey * 4 + (uint64_t)kKey));
  CHECK_OK(fastnorm_norm_heads_prepare(context, &heads.args, heads.parts, 3));
  CHECK(memcmp(before, heads.qkv, sizeof before) == 0);
  memset(&kernel, 0, sizeof kernel);
  kernel.struct_size = sizeof kernel;
  for (i = 0; i < fastnorm_kernel_count(); ++i) {
    CHECK_OK(fastnorm_kernel_describe(i, &kernel));
    if (strcmp(kernel.family, "norm_heads") == 0 && strcmp(kernel.name, "f32") == 0) ++listed;
  }
  CHECK(listed >= 1);
}

static void nothing(fastnorm_context* context) {
  fastnorm_info info = empty_info();
  int i;
  reset();
  CHECK_STATUS(fastnorm_norm_heads(context, &heads.args, NULL, 0, NULL, 0, NULL),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("rope_dim is 64 and no part has ROPE");
  memset(&heads.args, 0, sizeof heads.args);
  heads.args.struct_size = sizeof heads.args;
  CHECK_OK(fastnorm_norm_heads(context, &heads.args, NULL, 0, NULL, 0, NULL));
  reset();
  for (i = 0; i < 3; ++i) heads.t[i].shape[0] = 0;
  heads.t[9].shape[0] = heads.t[10].shape[0] = 0;
  CHECK_OK(fastnorm_norm_heads_query(context, &heads.args, heads.parts, 3, &info));
  CHECK(info.launches == 0 && info.kernel[0] == '\0' && info.bytes_written == 0);
  CHECK_OK(run(context));
  CHECK(isnan(heads.key_cache[7 * kKey * kColumns]));
}

/* All three functions refuse the call, and nothing is written. */
static void refused(fastnorm_context* context, fastnorm_status status, const char* text) {
  fastnorm_info info = empty_info();
  int i;
  CHECK_STATUS(fastnorm_norm_heads_query(context, &heads.args, heads.parts, 3, &info), status);
  CHECK_TEXT(text);
  CHECK_STATUS(fastnorm_norm_heads_prepare(context, &heads.args, heads.parts, 3), status);
  CHECK_STATUS(run(context), status);
  CHECK_TEXT(text);
  for (i = 0; i < (int)sizeof heads.value_cache && heads.value_cache[i] == 0x55; ++i) {
  }
  CHECK(i == (int)sizeof heads.value_cache);
}

static void refusals(fastnorm_context* context) {
  reset();
  CHECK_STATUS(run(NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("context is NULL");
  CHECK_STATUS(fastnorm_norm_heads(context, NULL, heads.parts, 3, NULL, 0, NULL),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_STATUS(fastnorm_norm_heads(context, &heads.args, heads.parts, 3, NULL, 0, &heads),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("stream is");
  CHECK_STATUS(fastnorm_norm_heads_query(context, &heads.args, heads.parts, 3, NULL),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("info is NULL");
  heads.part[1].eps = -1;
  refused(context, FASTNORM_ERROR_ARGUMENT, "parts[1].eps is -1");
  reset();
  heads.args.rope_dim = 62;
  refused(context, FASTNORM_ERROR_SHAPE, "cos.shape is [9, 32]");
  reset();
  heads.t[10].shape[0] = kTokens + 1;
  refused(context, FASTNORM_ERROR_SHAPE, "slots.shape is [5]");
  reset();
  heads.t[5].tensor.data = heads.key_cache;
  refused(context, FASTNORM_ERROR_LAYOUT, "parts[1].cache [");
  reset();
  heads.positions[3] = kPositions;
  CHECK_STATUS(run(context), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("the position of token 3, axis 0, is 9");
  CHECK(heads.value_cache[7 * kKey * kColumns] == 0x55);
}

static void skips_the_last(void* user, int64_t n, int64_t grain, fastnorm_range_fn fn, void* task) {
  (void)user, (void)grain;
  fn(task, 0, n - 1);
}

static void one_by_one(void* user, int64_t n, int64_t grain, fastnorm_range_fn fn, void* task) {
  int64_t i;
  (void)grain;
  ++*(int*)user;
  for (i = n; i-- > 0;) fn(task, i, i + 1);
}

/* Enough tokens for several threads. */
static void threads(fastnorm_context* serial) {
  enum { kMany = 600, kRow = 128 };
  static float x[kMany * kRow], y[kMany * kRow], z[kMany * kRow];
  const int64_t shape[3] = {kMany, 1, kRow};
  fastnorm_context_options options = empty_options();
  fastnorm_norm_heads_args args;
  fastnorm_norm_heads_part part;
  const fastnorm_norm_heads_part* parts[1] = {&part};
  fastnorm_context* context;
  tensor_of t[2];
  int calls = 0, own = 0, i;
  memset(&args, 0, sizeof args);
  memset(&part, 0, sizeof part);
  args.struct_size = sizeof args;
  part.struct_size = sizeof part;
  part.flags = FASTNORM_NORM_HEADS_NORM;
  part.eps = 1e-6f;
  fill_random(x, kMany * kRow, 9);
  part.x = make_tensor(&t[0], x, FASTNORM_DTYPE_F32, 3, shape);
  part.y = make_tensor(&t[1], y, FASTNORM_DTYPE_F32, 3, shape);
  CHECK_OK(fastnorm_norm_heads(serial, &args, parts, 1, NULL, 0, NULL));
  t[1].tensor.data = z;
  for (i = 2; i <= 4; ++i) {
    options.num_threads = i;
    context = cpu_context(&options);
    memset(z, 0xff, sizeof z);
    CHECK_OK(fastnorm_norm_heads(context, &args, parts, 1, NULL, 0, NULL));
    CHECK(memcmp(y, z, sizeof y) == 0);
    fastnorm_context_destroy(context);
  }
  options.num_threads = 0;
  options.parallel_for = one_by_one;
  options.parallel_user = &calls;
  context = cpu_context(&options);
  memset(z, 0xff, sizeof z);
  CHECK_OK(fastnorm_norm_heads(context, &args, parts, 1, NULL, 0, NULL));
  CHECK(calls == 1 && memcmp(y, z, sizeof y) == 0);
  args.parallel_user = &own;
  CHECK_OK(fastnorm_norm_heads(context, &args, parts, 1, NULL, 0, NULL));
  CHECK(calls == 1 && own == 1);
  fastnorm_context_destroy(context);
  options.parallel_for = skips_the_last;
  context = cpu_context(&options);
  CHECK_STATUS(fastnorm_norm_heads(context, &args, parts, 1, NULL, 0, NULL),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("tokens; required: [0, n) exactly once");
  fastnorm_context_destroy(context);
  options.parallel_for = throwing_loop;
  context = cpu_context(&options);
  CHECK_STATUS(fastnorm_norm_heads(context, &args, parts, 1, NULL, 0, NULL),
               FASTNORM_ERROR_INTERNAL);
  fastnorm_context_destroy(context);
}

static void dry_runs(void) {
  const fastnorm_device cpu = {FASTNORM_DEVICE_CPU, 0}, cuda = {FASTNORM_DEVICE_CUDA, 0};
  fastnorm_context_options options = empty_options();
  fastnorm_context* context = NULL;
  fastnorm_info info = empty_info();
  int i;
  options.flags = FASTNORM_CONTEXT_DRY_RUN;
  if (CHECK_OK(fastnorm_context_create(cpu, &options, &context))) {
    reset();
    heads.positions[0] = -1; /* not read */
    CHECK_OK(run(context));
    CHECK(isnan(heads.key_cache[7 * kKey * kColumns]));
    fastnorm_context_destroy(context);
  }
  options.dry_run_capability = 90;
  if (!CHECK_OK(fastnorm_context_create(cuda, &options, &context))) return;
  reset();
  for (i = 0; i < 11; ++i) heads.t[i].tensor.device_type = FASTNORM_DEVICE_CUDA;
  CHECK_OK(fastnorm_norm_heads_query(context, &heads.args, heads.parts, 3, &info));
  CHECK(info.workspace_bytes == 0 && info.launches == 1 && info.blocks >= 1);
  CHECK(strncmp(info.kernel, "norm_heads f32 ", 15) == 0);
  CHECK_OK(fastnorm_norm_heads_prepare(context, &heads.args, heads.parts, 3));
  CHECK_OK(run(context));
  CHECK(isnan(heads.key_cache[7 * kKey * kColumns]));
  fastnorm_context_destroy(context);
}

void test_norm_heads(void) {
  fastnorm_context* context = cpu_context(NULL);
  by_hand(context);
  caches(context);
  padding(context);
  quotients(context);
  indexer_keys(context);
  clamped_codes(context);
  query(context);
  nothing(context);
  refusals(context);
  threads(context);
  dry_runs();
  fastnorm_context_destroy(context);
}
