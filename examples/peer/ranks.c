/* Several processes that add up their rows and normalise them: tensor parallel ranks, each forked
   with a context and a peer of its own. Their buffers are memory that all share, so CPU ranks need
   no more. Ranks on GPUs exchange blobs instead: fastnorm_peer_create, _export and _import.

       cc ranks.c $(pkg-config --cflags --libs fastnorm) -o ranks && ./ranks 4 */
#define _GNU_SOURCE
#include <fastnorm/fastnorm.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROWS = 5, COLUMNS = 64 };

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, fastnorm_last_error());
  return 1;
}

/* What rank r has of the sum. */
static float part(int r, int i) { return (float)((i * 7 + r * 13) % 23 - 11) / 8.0f; }

/* A barrier of processes: each adds one, and waits for all. */
static void meet(int* arrived, int ranks) {
  const int before = __atomic_add_fetch(arrived, 1, __ATOMIC_ACQ_REL);
  const int all = (before + ranks - 1) / ranks * ranks;
  while (__atomic_load_n(arrived, __ATOMIC_ACQUIRE) < all) usleep(100);
}

static int check(const float* y, int ranks) {
  int row, i, r;
  for (row = 0; row < ROWS; ++row) {
    double sum[COLUMNS], squares = 0;
    for (i = 0; i < COLUMNS; ++i) {
      sum[i] = 0;
      for (r = 0; r < ranks; ++r) sum[i] += (double)part(r, row * COLUMNS + i);
      squares += sum[i] * sum[i];
    }
    for (i = 0; i < COLUMNS; ++i) {
      const double expected = sum[i] / sqrt(squares / COLUMNS + 1e-6);
      if (!(fabs((double)y[row * COLUMNS + i] - expected) < 1e-5)) return 0;
    }
  }
  return 1;
}

static int run_rank(int rank, int ranks, void* const* buffers, int* arrived) {
  const fastnorm_device cpu = {FASTNORM_DEVICE_CPU, 0};
  const int64_t shape[2] = {ROWS, COLUMNS};
  static float x[ROWS * COLUMNS], y[ROWS * COLUMNS];
  fastnorm_context* context = NULL;
  fastnorm_peer* peer = NULL;
  fastnorm_peer_options options = {0};
  fastnorm_norm_args norm = {0};
  fastnorm_peer_allreduce_norm_args args = {0};
  fastnorm_tensor in = {0}, out;
  fastnorm_info info = {0};
  void* workspace = NULL;
  int i, right;

  for (i = 0; i < ROWS * COLUMNS; ++i) x[i] = part(rank, i);
  if (fastnorm_context_create(cpu, NULL, &context) != FASTNORM_OK) return failed("context");
  options.struct_size = sizeof options;
  options.rank = rank;
  options.ranks = ranks;
  options.dtype = FASTNORM_DTYPE_F32;
  options.max_columns = COLUMNS;
  if (fastnorm_peer_create_from_pointers(context, &options, buffers, ranks, &peer) != FASTNORM_OK)
    return failed("peer");
  meet(arrived, ranks); /* all buffers are prepared */

  in.data = x;
  in.device_type = FASTNORM_DEVICE_CPU;
  in.ndim = 2;
  in.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
  in.shape = shape;
  out = in;
  out.data = y;
  norm.struct_size = sizeof norm;
  norm.eps = 1e-6f;
  norm.x = &in;
  norm.y = &out;
  args.struct_size = sizeof args;
  args.peer = peer;
  args.norm = &norm;
  info.struct_size = sizeof info;
  if (fastnorm_peer_allreduce_norm_query(context, &args, &info) != FASTNORM_OK)
    return failed("query");
  workspace = aligned_alloc(256, (size_t)(info.workspace_bytes + 255) / 256 * 256 + 256);
  if (workspace == NULL) return 1;
  if (fastnorm_peer_allreduce_norm(context, &args, workspace, (size_t)info.workspace_bytes, NULL) !=
      FASTNORM_OK)
    return failed("call");
  right = check(y, ranks);
  meet(arrived, ranks); /* nobody reads this rank's buffer any more */
  fastnorm_peer_destroy(peer);
  fastnorm_context_destroy(context);
  free(workspace);
  return right ? 0 : 1;
}

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? atoi(argv[1]) : 2;
  const fastnorm_device cpu = {FASTNORM_DEVICE_CPU, 0};
  fastnorm_context* context = NULL;
  fastnorm_peer_options options = {0};
  void* buffers[FASTNORM_PEER_MAX_RANKS];
  uint64_t bytes = 0;
  char* memory;
  int r, wrong = 0;

  if (ranks < 2 || ranks > FASTNORM_PEER_MAX_RANKS) {
    fprintf(stderr, "usage: ranks [2 to %d]\n", FASTNORM_PEER_MAX_RANKS);
    return 2;
  }
  options.struct_size = sizeof options;
  options.ranks = ranks;
  options.dtype = FASTNORM_DTYPE_F32;
  options.max_columns = COLUMNS;
  if (fastnorm_context_create(cpu, NULL, &context) != FASTNORM_OK) return failed("context");
  if (fastnorm_peer_buffer_bytes(context, &options, &bytes) != FASTNORM_OK) return failed("bytes");
  fastnorm_context_destroy(context);
  bytes = (bytes + 4095) / 4096 * 4096;
  /* A page for the barrier, then a buffer for each rank. */
  memory = mmap(NULL, 4096 + (size_t)bytes * (size_t)ranks, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    perror("mmap");
    return 1;
  }
  for (r = 0; r < ranks; ++r) buffers[r] = memory + 4096 + (size_t)r * bytes;
  for (r = 0; r < ranks; ++r) {
    const pid_t child = fork();
    if (child < 0) {
      perror("fork");
      return 1;
    }
    if (child == 0) _exit(run_rank(r, ranks, buffers, (int*)memory));
  }
  for (r = 0; r < ranks; ++r) {
    int status = 0;
    wait(&status);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) ++wrong;
  }
  printf("%d ranks, %d wrong\n", ranks, wrong);
  return wrong != 0;
}
