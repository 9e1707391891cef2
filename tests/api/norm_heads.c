/* norm_heads through the C ABI: results computed by hand, a layer's query, key and value heads,
 * queries, dry runs and refusals of values. */
#include <math.h>

#include "api/api_test.h"
#include "api/call.h"

#define NORM_HEADS(...) ((fastnorm_norm_heads_args*)call_of("norm_heads " __VA_ARGS__))

const family_lines norm_heads_lines = {
    .call =
        "norm_heads rope_dim=64 cos,sin=f32[9,32] positions=i64[600] slots=i32[600] "
        "parts[0].flags=0x3 parts[0].eps=1e-6 parts[0].x,parts[0].y=f32[600,4,64] "
        "parts[0].weight=f32[64] parts[1].x=f32[600,2,64] parts[1].cache=f32[80,8,2,64]",
    .empty = "norm_heads parts[0].x,parts[0].y=f32[0,4,64]",
    .units = "tokens",
    .wrong = "norm_heads parts[0].flags=0x1 parts[0].eps=-1 parts[0].x,parts[0].y=f32[2,4,64]",
};

enum { kTokens = 4, kQuery = 4, kKey = 2, kColumns = 64, kHeads = kQuery + 2 * kKey };
enum { kPages = 3, kPage = 3, kPositions = 9 };

/* A call and its memory: query, key and value heads of one buffer. */
typedef struct heads_call {
  float qkv[kTokens * kHeads * kColumns], weight[kColumns];
  float cos[kPositions * kColumns / 2], sin[kPositions * kColumns / 2];
  float key_cache[kPages * kPage * kKey * kColumns];
  int8_t value_cache[kPages * kPage * kKey * kColumns];
  float value_scale[1];
  int64_t positions[kTokens];
  int32_t slots[kTokens];
  fastnorm_norm_heads_args* args;
} heads_call;

static heads_call heads;

static void reset(void) {
  float* const key = heads.qkv + kQuery * kColumns;
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
  heads.args = NORM_HEADS(
      "rope_dim=64 cos,sin=f32[9,32] positions=i64[4] slots=i32[4] "
      "parts[0].flags,parts[1].flags=0x3 parts[0].eps,parts[1].eps=1e-06 "
      "parts[0].weight,parts[1].weight=f32[64] parts[0].x,parts[0].y=f32[4,4,64] "
      "parts[1].x,parts[1].y,parts[2].x=f32[4,2,64] "
      "parts[0].x,parts[0].y,parts[1].x,parts[1].y,parts[2].x.strides=[512,64,1] "
      "parts[1].cache=f32[3,3,2,64] parts[2].cache=i8[3,3,2,64] "
      "parts[2].cache_quant.scheme=per_tensor parts[2].cache_quant.scale=f32[1]",
      heads.cos, heads.sin, heads.positions, heads.slots, heads.weight, heads.weight, heads.qkv,
      heads.qkv, key, key, key + kKey * kColumns, heads.key_cache, heads.value_cache,
      heads.value_scale);
}

static fastnorm_status run(fastnorm_context* context) {
  return fastnorm_norm_heads(context, heads.args, parts_of(heads.args), 3, NULL, 0, NULL);
}

/* A quarter turn: (1, 0) becomes (0, 1). A key of ones is its own norm. */
static void by_hand(fastnorm_context* context) {
  int i;
  reset();
  for (i = 0; i < kPositions * kColumns / 2; ++i) heads.cos[i] = 0, heads.sin[i] = 1;
  for (i = 0; i < kColumns; ++i) heads.qkv[i] = i < kColumns / 2 ? 1.0f : 0.0f;
  for (i = 0; i < kColumns; ++i) heads.qkv[kQuery * kColumns + i] = i % 2 ? -3.0f : 3.0f;
  for (i = 0; i < kColumns; ++i) heads.qkv[(kQuery + kKey) * kColumns + i] = (float)(i - 32) / 64;
  change(heads.args,
         "parts[0].flags=0x2 parts[1].flags=0x1 parts[0].eps,parts[1].eps=0 "
         "parts[0].weight,parts[1].weight=null");
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
  int i;
  reset();
  memcpy(before, heads.qkv, sizeof before);
  heads.slots[2] = 0;
  CHECK_OK(run(context));
  memcpy(whole, heads.qkv, sizeof whole);
  CHECK(memcmp(whole, before, sizeof whole) != 0);
  reset();
  for (i = 0; i < kTokens * kQuery; ++i) rstd[i] = 77;
  heads.positions[2] = -1, heads.positions[3] = INT64_MAX;
  change(heads.args, "parts[0].rstd=f32[4,4] slots.shape=[3]", rstd);
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
    change(heads.args, division ? "parts[2].cache_quant.division=divide"
                                : "parts[2].cache_quant.division=multiply_reciprocal");
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
  const fastnorm_norm_heads_args* args;
  int i, token;
  fill_random(x, kTokensHere * kN, 21);
  fill_random(weight, kN, 22);
  fill_random(bias, kN, 23);
  for (i = 0; i < kTokensHere * 32; ++i) {
    cos[i] = cosf((float)(i / 32) * powf(10000, -(float)(i % 32) / 32));
    sin[i] = sinf((float)(i / 32) * powf(10000, -(float)(i % 32) / 32));
  }
  memset(&memory, 0x55, sizeof memory);
  args = NORM_HEADS(
      "rope_dim=64 cos,sin=f32[5,32] slots=i32[5] parts[0].flags=0x3 parts[0].kind=layer "
      "parts[0].eps=1e-06 parts[0].x=f32[5,1,128] parts[0].weight,parts[0].bias=f32[128] "
      "parts[0].cache=f8_e4m3fn[2,4,1,128] parts[0].cache.strides=[528,128,128,1] "
      "parts[0].cache_quant.scheme=per_block parts[0].cache_quant.block_size=128 "
      "parts[0].cache_quant.rotation=128 parts[0].cache_quant.scale=f32[2,4,1,1] "
      "parts[0].cache_quant.scale.strides=[132,1,1,1]",
      cos, sin, slots, x, weight, bias, memory.bytes, memory.bytes + kPageSize * kN);
  CHECK_OK(fastnorm_norm_heads(context, args, parts_of(args), 1, NULL, 0, NULL));
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

/* Two heads of 16 columns: 4 and -8 in the first column become 1 and -2 in all of them, with scales
 * of 2^-8 and 2^-7. Their weights, 3 and -1, are multiplied by these and by 2. */
static void indexer_query(fastnorm_context* context) {
  float x[2 * 16] = {4}, weights[2] = {3, -1}, scaled[2] = {7, 7}, scales[2] = {7, 7};
  uint8_t codes[2 * 16];
  int i;
  fastnorm_norm_heads_args* const args = NORM_HEADS(
      "parts[0].x=f32[1,2,16] parts[0].quant.scheme=per_row parts[0].quant.scale_pow2=1 "
      "parts[0].quant.rotation=16 parts[0].quant.quantized=f8_e4m3fn[1,2,16] "
      "parts[0].quant.scale=f32[1,2] parts[0].head_weights,parts[0].head_weights_out=f32[1,2] "
      "parts[0].head_weights_factor=2",
      x, codes, scales, weights, scaled);
  x[16] = -8;
  CHECK_OK(fastnorm_norm_heads(context, args, parts_of(args), 1, NULL, 0, NULL));
  for (i = 0; i < 16 && codes[i] == 0x78 && codes[16 + i] == 0xf8; ++i) {
  }
  CHECK(i == 16);
  CHECK(scales[0] == 1.0f / 256 && scales[1] == 1.0f / 128);
  CHECK(scaled[0] == 6.0f / 256 && scaled[1] == -2.0f / 128);
  change(args, "parts[0].head_weights_factor=0");
  CHECK_OK(fastnorm_norm_heads(context, args, parts_of(args), 1, NULL, 0, NULL));
  CHECK(scaled[0] == 3.0f / 256 && scaled[1] == -1.0f / 128);
}

static void clamped_codes(fastnorm_context* context) {
  static uint8_t codes[kTokens * kQuery * kColumns / 2], scales[kTokens * kQuery * kColumns / 32];
  float limit = 3;
  int i;
  reset();
  for (i = 0; i < kColumns; ++i) heads.qkv[i] = i % 2 ? -40.0f : 50.0f;
  change(
      heads.args,
      "parts[0].flags,parts[0].eps=0 parts[0].weight,parts[0].y=null parts[0].quant.scheme=mxfp4 "
      "parts[0].quant.quantized=f4_e2m1fn_x2[4,4,32] parts[0].quant.scale=f8_e8m0fnu[4,4,2] "
      "parts[0].quant.clamp_scale=f32[1]",
      codes, scales, &limit);
  CHECK_OK(run(context));
  /* 3 is 6 * 2^-1: codes of 6 and -6. */
  for (i = 0; i < kColumns / 2 && codes[i] == 0xf7; ++i) {
  }
  CHECK(i == kColumns / 2 && scales[0] == 126 && scales[1] == 126);
  change(heads.args, "parts[0].quant.clamp=1");
  CHECK_STATUS(run(context), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("parts[0].quant.clamp_scale is given and quant.clamp is 1");
}

static void query(fastnorm_context* context) {
  fastnorm_info info = empty_info();
  reset();
  CHECK_OK(fastnorm_norm_heads_query(context, heads.args, parts_of(heads.args), 3, &info));
  CHECK(info.workspace_bytes == 0 && info.launches == 1 && strcmp(info.kernel, "f32") == 0);
  CHECK(info.bytes_read == sizeof heads.qkv + 2 * sizeof heads.weight + 4 + kTokens * 8 +
                               kTokens * 4 + 2 * kTokens * kColumns / 2 * 4);
  CHECK(info.bytes_written ==
        kTokens * kColumns * ((kQuery + kKey) * 4 + kKey * 4 + (uint64_t)kKey));
}

/* A call without parts, and a part that is refused before any other runs. */
static void parts(fastnorm_context* context) {
  reset();
  CHECK_STATUS(fastnorm_norm_heads(context, heads.args, NULL, 0, NULL, 0, NULL),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("rope_dim is 64 and no part has ROPE");
  CHECK_OK(fastnorm_norm_heads(context, NORM_HEADS(""), NULL, 0, NULL, 0, NULL));
  reset();
  heads.positions[3] = kPositions;
  CHECK_STATUS(run(context), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("the position of token 3, axis 0, is 9");
  CHECK(heads.value_cache[7 * kKey * kColumns] == 0x55);
}

static void dry_runs(void) {
  const fastnorm_device cpu = {FASTNORM_DEVICE_CPU, 0}, cuda = {FASTNORM_DEVICE_CUDA, 0};
  fastnorm_context_options options = empty_options();
  fastnorm_context* context = NULL;
  fastnorm_info info = empty_info();
  options.flags = FASTNORM_CONTEXT_DRY_RUN;
  reset();
  heads.positions[0] = -1; /* not read */
  if (CHECK_OK(fastnorm_context_create(cpu, &options, &context))) {
    CHECK_OK(run(context));
    fastnorm_context_destroy(context);
  }
  options.dry_run_capability = 90;
  if (!CHECK_OK(fastnorm_context_create(cuda, &options, &context))) return;
  change(heads.args, "device=cuda:0");
  CHECK_OK(fastnorm_norm_heads_query(context, heads.args, parts_of(heads.args), 3, &info));
  CHECK(info.launches == 1 && strncmp(info.kernel, "norm_heads f32 ", 15) == 0);
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
  indexer_query(context);
  clamped_codes(context);
  query(context);
  parts(context);
  dry_runs();
  fastnorm_context_destroy(context);
}
