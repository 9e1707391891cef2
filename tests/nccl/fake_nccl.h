/* A library that has NCCL's name and the few functions that libfastnorm_nccl uses. Ranks are
   threads of one process, and memory is the host's. FAKE_NCCL_FAULT makes it faulty: "sum" leaves
   out the last rank, "beyond" writes a byte behind a sum, "hang" makes no communicators. */
#ifndef TESTS_NCCL_FAKE_NCCL_H_
#define TESTS_NCCL_FAKE_NCCL_H_

#ifdef __cplusplus
extern "C" {
#endif

/* Communicators of ranks 0 to ranks - 1, all of one group. `device`: what ncclCommCuDevice says. */
void fake_nccl_create(int ranks, int device, void** comms);
void fake_nccl_destroy(void* const* comms, int ranks);
/* Calls of ncclAllReduce, ncclReduceScatter and ncclAllGather by this rank. */
int fake_nccl_calls(void* comm, int operation);
/* The next call of an operation fails on this rank, before it meets the others. */
void fake_nccl_fail(void* comm, int operation);

enum { FAKE_ALL_REDUCE, FAKE_REDUCE_SCATTER, FAKE_ALL_GATHER, FAKE_OPERATIONS };

#ifdef __cplusplus
}
#endif

#endif /* TESTS_NCCL_FAKE_NCCL_H_ */
