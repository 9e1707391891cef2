/* Several normalisations in one call: query and key heads of a fused QKV buffer. */
#include "api/api_test.h"

enum { kTokens = 5, kHeads = 12, kQueryHeads = 8, kKeyHeads = 2, kSize = 64 };
enum { kCount = kTokens * kHeads * kSize };

typedef struct heads {
  tensor_of view, weight;
  fastnorm_norm_args args;
} heads;

/* Heads [first, first + count) of every token, in place. */
static void make_heads(heads* h, float* buffer, float* weight, int first, int count) {
  const int64_t shape[3] = {kTokens, count, kSize};
  make_tensor(&h->view, buffer + first * kSize, FASTNORM_DTYPE_F32, 3, shape);
  h->view.strides[0] = kHeads * kSize;
  h->args = empty_args();
  h->args.eps = 1e-6f;
  h->args.x = h->args.y = &h->view.tensor;
  h->args.weight = make_vector(&h->weight, weight, FASTNORM_DTYPE_F32, kSize);
}

static void fused_heads(fastnorm_context* context) {
  static float together[kCount], apart[kCount];
  float query_weight[kSize], key_weight[kSize];
  heads query, key;
  const fastnorm_norm_args* list[2];
  fastnorm_info info = empty_info();
  int i, untouched = 1;
  fill_random(together, kCount, 7);
  memcpy(apart, together, sizeof apart);
  fill_random(query_weight, kSize, 8);
  fill_random(key_weight, kSize, 9);
  make_heads(&query, apart, query_weight, 0, kQueryHeads);
  make_heads(&key, apart, key_weight, kQueryHeads, kKeyHeads);
  CHECK_OK(fastnorm_norm(context, &query.args, NULL, 0, NULL));
  CHECK_OK(fastnorm_norm(context, &key.args, NULL, 0, NULL));
  for (i = 0; i < kCount; ++i) {
    if (i / kSize % kHeads >= kQueryHeads + kKeyHeads) untouched &= apart[i] == together[i];
  }
  CHECK(untouched); /* the value heads */
  make_heads(&query, together, query_weight, 0, kQueryHeads);
  make_heads(&key, together, key_weight, kQueryHeads, kKeyHeads);
  list[0] = &query.args;
  list[1] = &key.args;
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
  heads query, key;
  const fastnorm_norm_args* list[9];
  int i;
  fill_random(buffer, kCount, 10);
  memcpy(before, buffer, sizeof before);
  fill_random(weight, kSize, 11);
  make_heads(&query, buffer, weight, 0, kQueryHeads);
  make_heads(&key, buffer, weight, kQueryHeads - 1, kKeyHeads); /* shares a head */
  for (i = 0; i < 9; ++i) list[i] = &query.args;
  list[1] = &key.args;
  CHECK_STATUS(fastnorm_norm_many(context, list, 2, NULL, 0, NULL), FASTNORM_ERROR_LAYOUT);
  CHECK_TEXT("args[0].");
  CHECK_TEXT("args[1].");
  make_heads(&key, buffer, weight, kQueryHeads, kKeyHeads);
  key.args.eps = -1;
  CHECK_STATUS(fastnorm_norm_many(context, list, 2, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("args[1].eps is -1");
  key.args.eps = 1;
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
  list[1] = &query.args;
  CHECK_STATUS(fastnorm_norm_many(context, list, 2, NULL, 0, NULL), FASTNORM_ERROR_LAYOUT);
  CHECK(memcmp(buffer, before, sizeof before) == 0);
}

static void empty_lists(fastnorm_context* context) {
  fastnorm_info info = empty_info();
  float weight[kSize], x[kSize];
  const int64_t none[2] = {0, kSize};
  heads one;
  const fastnorm_norm_args* list[1];
  CHECK_OK(fastnorm_norm_many(context, NULL, 0, NULL, 0, NULL));
  CHECK_OK(fastnorm_norm_many_prepare(context, NULL, 0));
  CHECK_OK(fastnorm_norm_many_query(context, NULL, 0, &info));
  CHECK(info.launches == 0 && info.kernel[0] == '\0');
  fill_random(weight, kSize, 12);
  make_heads(&one, x, weight, 0, 1);
  one.args.x = one.args.y = make_tensor(&one.view, x, FASTNORM_DTYPE_F32, 2, none);
  list[0] = &one.args;
  CHECK_OK(fastnorm_norm_many(context, list, 1, NULL, 0, NULL));
}

void test_many(void) {
  fastnorm_context* context = cpu_context(NULL);
  fused_heads(context);
  refused_parts(context);
  empty_lists(context);
  fastnorm_context_destroy(context);
}
