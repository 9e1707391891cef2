/* Several normalisations in one call: query and key heads of a fused QKV buffer. */
#include "api/api_test.h"
#include "api/call.h"

enum { kTokens = 5, kHeads = 12, kQueryHeads = 8, kKeyHeads = 2, kSize = 64 };
enum { kCount = kTokens * kHeads * kSize };

/* Heads [first, first + count) of every token, in place. */
static fastnorm_norm_args* heads(float* buffer, float* weight, int first, int count) {
  return call_of(
      words("norm eps=1e-06 x,y=f32[5,%d,64] x,y.strides=[768,64,1] weight=f32[64]", count),
      buffer + first * kSize, buffer + first * kSize, weight);
}

static void fused_heads(fastnorm_context* context) {
  static float together[kCount], apart[kCount];
  float query_weight[kSize], key_weight[kSize];
  fastnorm_norm_args *query, *key;
  const fastnorm_norm_args* list[2];
  fastnorm_info info = empty_info();
  int i, untouched = 1;
  fill_random(together, kCount, 7);
  memcpy(apart, together, sizeof apart);
  fill_random(query_weight, kSize, 8);
  fill_random(key_weight, kSize, 9);
  query = heads(apart, query_weight, 0, kQueryHeads);
  key = heads(apart, key_weight, kQueryHeads, kKeyHeads);
  CHECK_OK(fastnorm_norm(context, query, NULL, 0, NULL));
  CHECK_OK(fastnorm_norm(context, key, NULL, 0, NULL));
  for (i = 0; i < kCount; ++i) {
    if (i / kSize % kHeads >= kQueryHeads + kKeyHeads) untouched &= apart[i] == together[i];
  }
  CHECK(untouched); /* the value heads */
  query = heads(together, query_weight, 0, kQueryHeads);
  key = heads(together, key_weight, kQueryHeads, kKeyHeads);
  list[0] = query;
  list[1] = key;
  CHECK_OK(fastnorm_norm_many_query(context, list, 2, &info));
  CHECK(info.launches >= 1 && info.kernel[0] != '\0');
  CHECK(info.bytes_written ==
        (uint64_t)kTokens * (kQueryHeads + kKeyHeads) * kSize * sizeof(float));
  CHECK_OK(fastnorm_norm_many_prepare(context, list, 2));
  CHECK_OK(fastnorm_norm_many(context, list, 2, NULL, 0, NULL));
  CHECK(memcmp(together, apart, sizeof apart) == 0);
}

/* All parts are checked before any runs. */
static void refused_parts(fastnorm_context* context) {
  static float buffer[kCount], before[kCount];
  float weight[kSize];
  fastnorm_norm_args *query, *key;
  const fastnorm_norm_args* list[9];
  int i;
  fill_random(buffer, kCount, 10);
  memcpy(before, buffer, sizeof before);
  fill_random(weight, kSize, 11);
  query = heads(buffer, weight, 0, kQueryHeads);
  key = heads(buffer, weight, kQueryHeads - 1, kKeyHeads); /* shares a head */
  for (i = 0; i < 9; ++i) list[i] = query;
  list[1] = key;
  CHECK_STATUS(fastnorm_norm_many(context, list, 2, NULL, 0, NULL), FASTNORM_ERROR_LAYOUT);
  CHECK_TEXT("args[0].");
  CHECK_TEXT("args[1].");
  list[1] = key = heads(buffer, weight, kQueryHeads, kKeyHeads);
  key->eps = -1;
  CHECK_STATUS(fastnorm_norm_many(context, list, 2, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("args[1].eps is -1");
  key->eps = 1;
  CHECK_STATUS(fastnorm_norm_many(context, list, 9, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("count is 9");
  CHECK_STATUS(fastnorm_norm_many(context, list, -1, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_STATUS(fastnorm_norm_many(context, NULL, 1, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  list[1] = NULL;
  CHECK_STATUS(fastnorm_norm_many(context, list, 2, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("args[1] is NULL");
  CHECK_STATUS(fastnorm_norm_many(NULL, list, 1, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK(memcmp(buffer, before, sizeof before) == 0);
  /* A part must not read what another part writes, not even a part that comes first. */
  list[1] = query;
  CHECK_STATUS(fastnorm_norm_many(context, list, 2, NULL, 0, NULL), FASTNORM_ERROR_LAYOUT);
  CHECK(memcmp(buffer, before, sizeof before) == 0);
}

static void empty_lists(fastnorm_context* context) {
  fastnorm_info info = empty_info();
  float x[kSize];
  const fastnorm_norm_args* list[1];
  CHECK_OK(fastnorm_norm_many(context, NULL, 0, NULL, 0, NULL));
  CHECK_OK(fastnorm_norm_many_prepare(context, NULL, 0));
  CHECK_OK(fastnorm_norm_many_query(context, NULL, 0, &info));
  CHECK(info.launches == 0 && info.kernel[0] == '\0');
  list[0] = NORM("x,y=f32[0,64]", x, x);
  CHECK_OK(fastnorm_norm_many(context, list, 1, NULL, 0, NULL));
}

void test_many(void) {
  fastnorm_context* context = cpu_context(NULL);
  fused_heads(context);
  refused_parts(context);
  empty_lists(context);
  fastnorm_context_destroy(context);
}
