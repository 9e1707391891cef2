/**
 * RMSNorm and LayerNorm of rows, with the residual addition before them, on NVIDIA GPUs and on
 * CPUs: the Java binding of libfastnorm.
 *
 * <p>For each row of {@code x}, which is its last dimension, {@code n} elements long:
 *
 * <pre>
 * s    = x + residual                          (x where there is no residual)
 * mean = sum(s) / n                            (layer norm only)
 * rstd = 1 / sqrt(sum((s - mean)^2) / n + eps) (RMS norm: mean is not subtracted)
 * y    = (s - mean) * rstd * (weight + weight_offset) + bias, rounded to x's dtype
 * </pre>
 *
 * <p>{@link dev.fastnorm.Norm} has the stages that may stand around it: gate, activation, groups of
 * columns, and a norm of x before the sum.
 *
 * <p>Open one {@link dev.fastnorm.Context} for each device, describe memory with {@link
 * dev.fastnorm.Tensor}, describe the call with {@link dev.fastnorm.Norm} and run it. What the
 * library refuses is a {@link dev.fastnorm.FastnormException} with the library's own text; what
 * this binding refuses before it asks the library is an {@link java.lang.IllegalArgumentException}
 * or an {@link java.lang.IllegalStateException}.
 *
 * <p>{@link dev.fastnorm.NormBackward} describes the gradients of a norm, for training.
 *
 * <p>{@link dev.fastnorm.NormHeads} describes the norm, the rotary embedding and the paged cache of
 * query and key heads, in parts that are each a {@link dev.fastnorm.NormHeadsPart}. {@link
 * dev.fastnorm.NormHeadsBackward} describes their gradients.
 *
 * <p>{@link dev.fastnorm.MlaDecode} describes attention of new tokens over a paged cache of
 * latents, and is run in the same way.
 *
 * <p>{@link dev.fastnorm.Peer} is one of several ranks that normalise together, and {@link
 * dev.fastnorm.Nccl} is one on a communicator of NCCL's.
 *
 * <p>Contexts, tensors and devices may be used by any number of threads at a time. A {@code Norm}
 * is a builder: it may be run by several threads as long as none of them changes it.
 */
package dev.fastnorm;
