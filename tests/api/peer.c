/* Peers through the C ABI: three ranks as threads, sums computed by hand, a rank that is missing,
 * and refusals. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "api/api_test.h"
#include "api/call.h"

const family_lines peer_lines = {.call = NULL}; /* calls of peers need ranks */

enum { kRanks = 3, kRows = 5, kColumns = 16 };

/* One rank: its thread, memory and result. */
typedef struct rank_of {
  fastnorm_context* context;
  fastnorm_peer* peer;
  fastnorm_peer_allreduce_norm_args* args;
  float x[kRows * kColumns], y[kRows * kColumns], residual[kRows * kColumns];
  fastnorm_status status;
  int number;
  char text[256];
} rank_of;

static rank_of ranks[kRanks];
static unsigned char blobs[kRanks][FASTNORM_PEER_BLOB_BYTES];

static fastnorm_status call(rank_of* rank) {
  fastnorm_info info = empty_info();
  void* workspace = NULL;
  fastnorm_status status = fastnorm_peer_allreduce_norm_prepare(rank->context, rank->args);
  if (status != FASTNORM_OK) return status;
  status = fastnorm_peer_allreduce_norm_query(rank->context, rank->args, &info);
  if (status != FASTNORM_OK) return status;
  if (posix_memalign(&workspace, 256, (size_t)info.workspace_bytes) != 0) {
    return FASTNORM_ERROR_OUT_OF_MEMORY;
  }
  status = fastnorm_peer_allreduce_norm(rank->context, rank->args, workspace,
                                        (size_t)info.workspace_bytes, NULL);
  free(workspace);
  return status;
}

/* Rows of number + 1, and a residual of 10. */
static void* rank_main(void* argument) {
  rank_of* rank = (rank_of*)argument;
  int i;
  for (i = 0; i < kRows * kColumns; ++i) {
    rank->x[i] = (float)(rank->number + 1);
    rank->residual[i] = 10;
    rank->y[i] = 77;
  }
  rank->status = call(rank);
  rank->text[0] = 0;
  if (rank->status != FASTNORM_OK) {
    snprintf(rank->text, sizeof rank->text, "%s", fastnorm_last_error());
  }
  return NULL;
}

/* The first `count` ranks. */
static void run(int count) {
  pthread_t threads[kRanks];
  int r;
  for (r = 0; r < count; ++r) pthread_create(&threads[r], NULL, rank_main, &ranks[r]);
  for (r = 0; r < count; ++r) pthread_join(threads[r], NULL);
}

static void test_calls(void) {
  int r, i, good = 0;
  run(kRanks);
  for (r = 0; r < kRanks; ++r) {
    CHECK_STATUS(ranks[r].status, FASTNORM_OK);
    for (i = 0; i < kRows * kColumns; ++i) {
      good += ranks[r].residual[i] == 16 && fabsf(ranks[r].y[i] - 1) < 1e-6f;
    }
  }
  CHECK(good == kRanks * kRows * kColumns);
}

static void test_missing_rank(void) {
  fastnorm_peer_state state;
  int r;
  memset(&state, 0, sizeof state);
  state.struct_size = sizeof state;
  run(kRanks - 1);
  for (r = 0; r < kRanks - 1; ++r) {
    CHECK_STATUS(ranks[r].status, FASTNORM_ERROR_DEVICE);
    CHECK(strstr(ranks[r].text, "did not arrive within") != NULL);
    CHECK(ranks[r].y[0] == 77 && ranks[r].residual[0] == 10);
    CHECK_OK(fastnorm_peer_status(ranks[r].peer, &state));
    CHECK(state.error == FASTNORM_PEER_ERROR_MISSING && state.connected == 1);
  }
  for (r = 0; r < kRanks; ++r) CHECK_OK(fastnorm_peer_reset(ranks[r].peer));
  test_calls();
}

void test_peer(void) {
  fastnorm_peer_options options;
  int r;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.ranks = kRanks;
  options.dtype = FASTNORM_DTYPE_F32;
  options.max_columns = kColumns;
  options.wait_ns = 2000000000;
  for (r = 0; r < kRanks; ++r) {
    options.rank = r;
    ranks[r].number = r;
    ranks[r].context = cpu_context(NULL);
    CHECK_OK(fastnorm_peer_create(ranks[r].context, &options, &ranks[r].peer));
    ranks[r].args =
        call_of("peer_allreduce_norm norm.x,norm.y,norm.residual,norm.residual_out=f32[5,16]",
                ranks[r].x, ranks[r].y, ranks[r].residual, ranks[r].residual);
    ranks[r].args->peer = ranks[r].peer;
    CHECK_OK(fastnorm_peer_export(ranks[r].peer, blobs[r], sizeof blobs[r]));
  }
  CHECK_STATUS(call(&ranks[0]), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("peer is not connected");
  for (r = 0; r < kRanks; ++r) CHECK_OK(fastnorm_peer_import(ranks[r].peer, blobs, sizeof blobs));
  CHECK_STATUS(fastnorm_peer_import(ranks[0].peer, blobs, sizeof blobs), FASTNORM_ERROR_ARGUMENT);
  test_calls();
  test_missing_rank();
  for (r = 0; r < kRanks; ++r) {
    fastnorm_peer_destroy(ranks[r].peer);
    fastnorm_context_destroy(ranks[r].context);
  }
  fastnorm_peer_destroy(NULL);
}
