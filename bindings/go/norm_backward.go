package fastnorm

import (
	"math"

	"github.com/libfastnorm/libfastnorm/bindings/go/internal/raw"
)

// NormBackwardFlags are bits of a [NormBackward].
type NormBackwardFlags uint32

// The flags. Those of programmatic dependent launch mean what those of [NormFlags] do.
const (
	NormBackwardPDLWait    NormBackwardFlags = raw.FASTNORM_NORM_BACKWARD_PDL_WAIT
	NormBackwardPDLTrigger NormBackwardFlags = raw.FASTNORM_NORM_BACKWARD_PDL_TRIGGER
	// NormBackwardAccumulateDWeight adds to what DWeight holds: after the sum, in F32.
	NormBackwardAccumulateDWeight NormBackwardFlags = raw.FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT
	// NormBackwardAccumulateDBias is the same for DBias.
	NormBackwardAccumulateDBias NormBackwardFlags = raw.FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS
	// NormBackwardAccumulateDBranchWeight is the same for DBranchWeight.
	NormBackwardAccumulateDBranchWeight = NormBackwardFlags(
		raw.FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_WEIGHT)
	// NormBackwardAccumulateDBranchBias is the same for DBranchBias.
	NormBackwardAccumulateDBranchBias = NormBackwardFlags(
		raw.FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_BIAS)
	// NormBackwardAccumulateDResidualGate is the same for DResidualGate.
	NormBackwardAccumulateDResidualGate = NormBackwardFlags(
		raw.FASTNORM_NORM_BACKWARD_ACCUMULATE_DRESIDUAL_GATE)
)

// NormBackward describes the gradients of a [Norm]. For each row of n elements, with
// g = Weight + WeightOffset (1 without Weight):
//
//	xhat      = (X - Mean) * Rstd                    (RMS: X * Rstd)
//	e         = DY * g
//	c1        = sum(e * xhat) / n
//	c2        = sum(e) / n                           (Layer only)
//	DX        = (e - c2 - xhat * c1) * Rstd + DResidualIn
//	DResidual = the same, rounded to its own dtype
//
// and for each column, over all rows that share an element of Weight or Bias:
//
//	DWeight = sum(DY * xhat)                         (+ the old DWeight)
//	DBias   = sum(DY)                                (+ the old DBias)
//
// DX is the gradient of X and of Residual of the Norm alike. All arithmetic is single precision.
// DWeight and DBias have the same bits for any number of threads. They have the same bits on CPU
// and GPU if DY, X, Mean and Rstd have.
//
// With a Gate after the norm, v = DY * act(Gate) takes the place of DY above. Its gradient is
// DGate = DY * z * act'(Gate), where z = xhat * g + Bias.
//
// With a Gate before the norm, X * act(Gate) takes the place of X. Call the result of the formula
// dh. Then DX = dh * act(Gate), and DGate = dh * X * act'(Gate).
//
// With GroupSize d, the call is that of X viewed as [.., n / d, d].
//
// Where the Norm added its X, the branch, to a residual, X here is the stored ResidualOut. With
// k = act(ResidualGate) * Alpha, u what the Norm added, and r = SumScale times the DX above:
//
//	DX            = r, the gradient of the residual
//	du            = r * k
//	DBranch       = du, or the gradient of the branch's norm for du in place of DY
//	DBranchWeight = sum(du * the normalised branch)
//	DBranchBias   = sum(du)
//	DResidualGate = act'(ResidualGate) * Alpha * sum(r * u)
//
// T below is the dtype of the Norm's X. All tensors are on the context's device, with contiguous
// last dimensions. DY's last dimension may have stride 0 instead. At least one of DX, DWeight,
// DBias and DGate is given. DX, DResidual and DGate may each be DY, X, Gate or DResidualIn, as the
// same view. DBranch may be Branch. Any other overlap is an error.
type NormBackward struct {
	Kind         NormKind          // of the Norm, as the next three
	Eps          float32           // used where Rstd is not given
	WeightOffset float32           // 0 without Weight
	Rounding     Rounding          // of the Norm
	Flags        NormBackwardFlags // default: none

	DY          Tensor // gradient of Y; shape of X, T or F32. Required
	X           Tensor // [..., n] F32, F16 or BF16: X of the Norm, or its ResidualOut. Required
	Weight      Tensor // of the Norm. Not given: 1
	Mean        Tensor // of the Norm; Layer only. Not given where Rstd is not
	Rstd        Tensor // of the Norm. Not given: computed again from X
	DResidualIn Tensor // gradient that reaches ResidualOut from elsewhere; shape of X. Not given: 0

	DX        Tensor // output, shape of X; T. May be DY, X or DResidualIn
	DResidual Tensor // output, as DX with another dtype. Needs DX
	DWeight   Tensor // output, shape of Weight; F32 or its dtype
	DBias     Tensor // output, shape of the Norm's Bias; F32, F16 or BF16

	Gate         Tensor       // of the Norm. Before the norm: no DResidualIn, no DResidual
	Bias         Tensor       // of the Norm; read for DGate alone. Not given: 0
	DGate        Tensor       // output, shape of X; T or F32. Needs Gate
	GateAct      Activation   // of the Norm, as the next three; 0 without Gate
	GatePosition GatePosition // 0 without Gate
	GateSource   GateSource   // 0 without Gate
	GroupSize    int          // a divisor of n; 0 = n

	// The Norm's X, where it added a residual; T. All below go without Gate and GroupSize.
	Branch             Tensor
	BranchWeight       Tensor     // of the Norm. Not given: 1
	BranchBias         Tensor     // of the Norm; read for DResidualGate alone. Not given: 0
	BranchMean         Tensor     // of the branch; Layer only. Not given where BranchRstd is not
	BranchRstd         Tensor     // of the branch. Not given: computed again from Branch
	ResidualGate       Tensor     // of the Norm, [.., n] T or F32, its table added. Not given: 1
	SumScale           Tensor     // of the Norm, [1] F32. Not given: 1
	DBranch            Tensor     // output, shape of X; T. May be Branch
	DBranchWeight      Tensor     // output, shape of BranchWeight; F32 or its dtype
	DBranchBias        Tensor     // output, shape of the Norm's BranchBias; F32, F16 or BF16
	DResidualGate      Tensor     // output, shape of ResidualGate; F32 or its dtype
	BranchNorm         bool       // of the Norm, as the rest
	BranchKind         NormKind   // default: RMS
	BranchEps          float32    // used where BranchRstd is not given
	BranchWeightOffset float32    // 0 without BranchWeight
	BranchRounding     Rounding   // default: the branch is not rounded on its way
	BranchRounded      bool       // default: the branch is not rounded before the sum
	ResidualGateAct    Activation // default: the gate itself
	Alpha              float32    // 0 = 1
}

var normBackwardTensors = []string{
	raw.NormBackwardBitDy:            "dy",
	raw.NormBackwardBitX:             "x",
	raw.NormBackwardBitWeight:        "weight",
	raw.NormBackwardBitMean:          "mean",
	raw.NormBackwardBitRstd:          "rstd",
	raw.NormBackwardBitDresidualIn:   "dresidual_in",
	raw.NormBackwardBitDx:            "dx",
	raw.NormBackwardBitDresidual:     "dresidual",
	raw.NormBackwardBitDweight:       "dweight",
	raw.NormBackwardBitDbias:         "dbias",
	raw.NormBackwardBitGate:          "gate",
	raw.NormBackwardBitBias:          "bias",
	raw.NormBackwardBitDgate:         "dgate",
	raw.NormBackwardBitBranch:        "branch",
	raw.NormBackwardBitBranchWeight:  "branch_weight",
	raw.NormBackwardBitBranchBias:    "branch_bias",
	raw.NormBackwardBitBranchMean:    "branch_mean",
	raw.NormBackwardBitBranchRstd:    "branch_rstd",
	raw.NormBackwardBitResidualGate:  "residual_gate",
	raw.NormBackwardBitSumScale:      "sum_scale",
	raw.NormBackwardBitDbranch:       "dbranch",
	raw.NormBackwardBitDbranchWeight: "dbranch_weight",
	raw.NormBackwardBitDbranchBias:   "dbranch_bias",
	raw.NormBackwardBitDresidualGate: "dresidual_gate",
}

func (b *NormBackward) encode(q *call, part int) {
	w := q.begin(raw.NormBackwardMask)
	w[raw.NormBackwardKind] = uint64(b.Kind)
	w[raw.NormBackwardEps] = uint64(math.Float32bits(b.Eps))
	w[raw.NormBackwardWeightOffset] = uint64(math.Float32bits(b.WeightOffset))
	w[raw.NormBackwardRounding] = uint64(b.Rounding)
	w[raw.NormBackwardFlags] = uint64(b.Flags)
	w[raw.NormBackwardGateAct] = uint64(b.GateAct)
	w[raw.NormBackwardGatePosition] = uint64(b.GatePosition)
	w[raw.NormBackwardGateSource] = uint64(b.GateSource)
	w[raw.NormBackwardGroupSize] = uint64(b.GroupSize)
	w[raw.NormBackwardBranchNorm] = bit(b.BranchNorm)
	w[raw.NormBackwardBranchKind] = uint64(b.BranchKind)
	w[raw.NormBackwardBranchEps] = uint64(math.Float32bits(b.BranchEps))
	w[raw.NormBackwardBranchWeightOffset] = uint64(math.Float32bits(b.BranchWeightOffset))
	w[raw.NormBackwardBranchRounding] = uint64(b.BranchRounding)
	w[raw.NormBackwardBranchRounded] = bit(b.BranchRounded)
	w[raw.NormBackwardResidualGateAct] = uint64(b.ResidualGateAct)
	w[raw.NormBackwardAlpha] = uint64(math.Float32bits(b.Alpha))
	q.tensor(part, raw.NormBackwardBitDy, &b.DY)
	q.tensor(part, raw.NormBackwardBitX, &b.X)
	q.tensor(part, raw.NormBackwardBitWeight, &b.Weight)
	q.tensor(part, raw.NormBackwardBitMean, &b.Mean)
	q.tensor(part, raw.NormBackwardBitRstd, &b.Rstd)
	q.tensor(part, raw.NormBackwardBitDresidualIn, &b.DResidualIn)
	q.tensor(part, raw.NormBackwardBitDx, &b.DX)
	q.tensor(part, raw.NormBackwardBitDresidual, &b.DResidual)
	q.tensor(part, raw.NormBackwardBitDweight, &b.DWeight)
	q.tensor(part, raw.NormBackwardBitDbias, &b.DBias)
	q.tensor(part, raw.NormBackwardBitGate, &b.Gate)
	q.tensor(part, raw.NormBackwardBitBias, &b.Bias)
	q.tensor(part, raw.NormBackwardBitDgate, &b.DGate)
	q.tensor(part, raw.NormBackwardBitBranch, &b.Branch)
	q.tensor(part, raw.NormBackwardBitBranchWeight, &b.BranchWeight)
	q.tensor(part, raw.NormBackwardBitBranchBias, &b.BranchBias)
	q.tensor(part, raw.NormBackwardBitBranchMean, &b.BranchMean)
	q.tensor(part, raw.NormBackwardBitBranchRstd, &b.BranchRstd)
	q.tensor(part, raw.NormBackwardBitResidualGate, &b.ResidualGate)
	q.tensor(part, raw.NormBackwardBitSumScale, &b.SumScale)
	q.tensor(part, raw.NormBackwardBitDbranch, &b.DBranch)
	q.tensor(part, raw.NormBackwardBitDbranchWeight, &b.DBranchWeight)
	q.tensor(part, raw.NormBackwardBitDbranchBias, &b.DBranchBias)
	q.tensor(part, raw.NormBackwardBitDresidualGate, &b.DResidualGate)
}

func (b *NormBackward) call() *call {
	q := newCall(1, raw.NormBackwardMaxWords)
	b.encode(q, 0)
	return q
}

// encodeNormBackwards encodes a list. Of one that is too long the library refuses the number.
func encodeNormBackwards(list []NormBackward) *call {
	if len(list) > raw.MaxParts {
		q := newCall(0, 0)
		q.count = clip(len(list))
		return q
	}
	q := newCall(len(list), raw.NormBackwardMaxWords)
	for i := range list {
		list[i].encode(q, i)
	}
	return q
}

var oneNormBackward = &family{
	tensors: normBackwardTensors,
	run: func(context uintptr, q *call) int32 {
		return raw.Fnb_norm_backward(context, q.list(), uintptr(q.used), q.workspace,
			q.workspaceBytes, q.stream)
	},
	prepare: func(context uintptr, q *call) int32 {
		return raw.Fnb_norm_backward_prepare(context, q.list(), uintptr(q.used))
	},
	query: func(context uintptr, q *call, info raw.Fastnorm_info) int32 {
		return raw.Fnb_norm_backward_query(context, q.list(), uintptr(q.used), info)
	},
}

var manyNormBackwards = &family{
	tensors: normBackwardTensors,
	list:    "args",
	run: func(context uintptr, q *call) int32 {
		return raw.Fnb_norm_backward_many(context, q.list(), uintptr(q.used), q.count, q.workspace,
			q.workspaceBytes, q.stream)
	},
	prepare: func(context uintptr, q *call) int32 {
		return raw.Fnb_norm_backward_many_prepare(context, q.list(), uintptr(q.used), q.count)
	},
	query: func(context uintptr, q *call, info raw.Fastnorm_info) int32 {
		return raw.Fnb_norm_backward_many_query(context, q.list(), uintptr(q.used), q.count, info)
	},
}

// Run computes the gradients on a context. On the CPU they are there when Run returns. On a GPU Run
// queues kernels on the stream, and a call with DWeight or DBias needs a [Workspace]. A call with
// no rows succeeds. It sets DWeight and DBias to 0, or keeps them if their flags are set.
func (b *NormBackward) Run(c *Context, options ...CallOption) error {
	if b == nil {
		return &Error{Status: StatusArgument, Message: "the NormBackward is nil; required: a description"}
	}
	q := b.call()
	q.apply(options)
	err := q.run(c, oneNormBackward)
	q.free()
	return err
}

// NormBackward is [NormBackward.Run].
func (c *Context) NormBackward(b NormBackward, options ...CallOption) error {
	return b.Run(c, options...)
}

// NormBackwardQuery says what a NormBackward would do: workspace, kernel, launches, bytes. It reads
// the tensors' addresses, not their memory.
func (c *Context) NormBackwardQuery(b NormBackward) (Info, error) {
	q := b.call()
	defer q.free()
	return q.query(c, oneNormBackward)
}

// NormBackwardPrepare is [Context.NormPrepare] for a NormBackward.
func (c *Context) NormBackwardPrepare(b NormBackward) error {
	q := b.call()
	defer q.free()
	return q.prepare(c, oneNormBackward)
}

// NormBackwardMany computes up to 8 NormBackwards, such as those of the query heads and the key
// heads of one fused QKV gradient. The results are those of one call each, in order. All parts are
// checked, against each other too, before anything runs. No part may touch what another one writes.
func (c *Context) NormBackwardMany(list []NormBackward, options ...CallOption) error {
	q := encodeNormBackwards(list)
	q.apply(options)
	err := q.run(c, manyNormBackwards)
	q.free()
	return err
}

// NormBackwardManyQuery is [Context.NormBackwardQuery] for a list: the sum of its parts.
func (c *Context) NormBackwardManyQuery(list []NormBackward) (Info, error) {
	q := encodeNormBackwards(list)
	defer q.free()
	return q.query(c, manyNormBackwards)
}

// NormBackwardManyPrepare is [Context.NormBackwardPrepare] for a list.
func (c *Context) NormBackwardManyPrepare(list []NormBackward) error {
	q := encodeNormBackwards(list)
	defer q.free()
	return q.prepare(c, manyNormBackwards)
}
