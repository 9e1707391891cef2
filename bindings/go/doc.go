// Package fastnorm normalises rows of tensors: RMSNorm and LayerNorm, with the residual addition
// before them fused in, on CPUs and NVIDIA GPUs. It calls libfastnorm, which pkg-config must find.
//
//	ctx, err := fastnorm.Open(fastnorm.CPU)
//	if err != nil {
//		return err
//	}
//	defer ctx.Close()
//	err = ctx.Norm(fastnorm.Norm{
//		Kind:   fastnorm.RMS,
//		Eps:    1e-6,
//		X:      fastnorm.Of(x, rows, n),
//		Weight: fastnorm.Of(weight, n),
//		Y:      fastnorm.Of(y, rows, n),
//	})
//
// A [Context] is one device; open one per device and share it between goroutines. A [Tensor] is a
// view, a plain value: of a slice ([Of], [View]), or of an address ([At]) such as device memory of
// the caller. [Norm] describes a normalisation; its documentation has the formula. It may have
// stages: a gate, groups, statistics of several devices, and the norm of a [Branch] before the
// residual. [NormBackward] describes its gradients. [NormHeads] describes the norm, the rotary
// embedding and the paged cache of query and key heads. [MLADecode] describes attention of new
// tokens over a paged cache of latents. A [Peer] is one of several ranks that normalise together,
// and an [NCCL] is one on a communicator of NCCL's.
//
// # Memory
//
// Slices are pinned while a call runs and nothing is kept afterwards. On the CPU the work is done
// when the call returns. On a GPU it is queued on a stream ([Stream]): device memory must stay
// valid until the stream has run it, and is the caller's, as is the stream. A call on device memory
// allocates nothing.
//
// # Errors
//
// A refused call returns an [*Error] with the library's own text: which argument, its value, what
// is required. Nothing was written then. [errors.Is] tells the kind:
//
//	if errors.Is(err, fastnorm.ErrShape) { ... }
package fastnorm
