/* The norms of ggml's CPU backend by libfastnorm. The patch calls these at the start of ggml's own
 * functions. A call that returns 0 has written nothing, and ggml goes on with its own code. */
#ifndef FASTNORM_INTEGRATIONS_GGML_FASTNORM_GGML_H_
#define FASTNORM_INTEGRATIONS_GGML_FASTNORM_GGML_H_

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_tensor;

/* Smaller tensors are ggml's. */
#define FASTNORM_GGML_LEAST_ELEMENTS 256

/* The rows of thread `ith` of `nth`: ith, ith + nth, .., as ggml divides them.
 * norm: the node of GGML_OP_NORM or GGML_OP_RMS_NORM; mul: the node of GGML_OP_MUL that is fused
 * with it, or NULL. Returns 1 if the rows are done. */
int fastnorm_ggml_norm(int ith, int nth, const struct ggml_tensor* norm,
                       const struct ggml_tensor* mul);

/* For comparisons: with 0 ggml's own code runs from the next call on. Returns the number of calls
 * that libfastnorm has done. */
long fastnorm_ggml_enable(int enabled);

#ifdef __cplusplus
}
#endif

#endif /* FASTNORM_INTEGRATIONS_GGML_FASTNORM_GGML_H_ */
