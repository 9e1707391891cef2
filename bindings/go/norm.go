package fastnorm

import (
	"math"

	"github.com/libfastnorm/libfastnorm/bindings/go/internal/raw"
)

// NormKind is the statistic that normalises a row.
type NormKind int32

// The kinds of norms.
const (
	RMS   NormKind = raw.FASTNORM_NORM_RMS   // root mean square; nothing is subtracted
	Layer NormKind = raw.FASTNORM_NORM_LAYER // mean and (biased) variance
)

// Rounding says where a result is rounded to the dtype of X on its way.
type Rounding int32

// The roundings. For f32 RoundOnce and RoundNormalized are the same.
const (
	RoundOnce Rounding = raw.FASTNORM_ROUND_ONCE // only when Y is stored
	// also t, before the weight: Llama, Mistral and Qwen as published
	RoundNormalized Rounding = raw.FASTNORM_ROUND_NORMALIZED
	// every elementwise result, as a 16-bit eager chain does
	RoundEveryStep Rounding = raw.FASTNORM_ROUND_EVERY_STEP
	// only when Y is stored, of X * (rstd * Weight): vLLM's fused query/key norm and rope
	RoundOnceRW Rounding = raw.FASTNORM_ROUND_ONCE_RW
)

// ResidualRounding says which value of the sum X + Residual is used, in terms of the dtype of
// ResidualOut (of Residual, where there is no ResidualOut).
type ResidualRounding int32

// The values of the sum.
const (
	// the single-precision sum
	ResidualExact ResidualRounding = raw.FASTNORM_RESIDUAL_EXACT
	// statistics of the sum; t from the rounded sum
	ResidualRoundBeforeApply ResidualRounding = raw.FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY
	// both from the rounded sum: as a separate addition would
	ResidualRoundBeforeStatistics ResidualRounding = raw.FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS
)

// NormFlags are bits. Those of PDL are programmatic dependent launch, by which a kernel starts
// while the stream's previous one still runs. On the CPU and on GPUs before compute capability 9.0
// they have no effect. Results never depend on them.
type NormFlags uint32

// The flags.
const (
	// start when the stream's previous kernel allows it; read and write nothing before that one has
	// ended
	NormPDLWait NormFlags = raw.FASTNORM_NORM_PDL_WAIT
	// let the stream's next kernel start early; it must wait itself before it uses a result
	NormPDLTrigger NormFlags = raw.FASTNORM_NORM_PDL_TRIGGER
	// with NormPDLWait: Weight and Bias, which no running kernel writes, may be read before the wait
	NormPDLConstantWeights NormFlags = raw.FASTNORM_NORM_PDL_CONSTANT_WEIGHTS
	// the factor is ModulationScale, not 1 + it
	NormPlainScale NormFlags = raw.FASTNORM_NORM_MODULATION_PLAIN_SCALE
)

// QuantScheme says how a quantised output is scaled.
type QuantScheme int32

// The schemes.
const (
	QuantNone      QuantScheme = raw.FASTNORM_QUANT_NONE
	QuantPerTensor QuantScheme = raw.FASTNORM_QUANT_PER_TENSOR // one scale, an input
	// a scale a row, from its largest magnitude
	QuantPerRow QuantScheme = raw.FASTNORM_QUANT_PER_ROW
	// a scale for 64 or 128 columns of a row
	QuantPerBlock QuantScheme = raw.FASTNORM_QUANT_PER_BLOCK
	// fp8 with a power-of-two scale for 32 columns
	QuantMXFP8 QuantScheme = raw.FASTNORM_QUANT_MXFP8
	// fp4 with an e4m3 scale for 16 columns and a global scale
	QuantNVFP4 QuantScheme = raw.FASTNORM_QUANT_NVFP4
	// fp4 with a power-of-two scale for 32 columns
	QuantMXFP4 QuantScheme = raw.FASTNORM_QUANT_MXFP4
)

// QuantSource is what is quantised.
type QuantSource int32

// The sources.
const (
	QuantFromF32 QuantSource = raw.FASTNORM_QUANT_FROM_F32 // the unrounded result
	// the result rounded to the dtype of X, as an unfused chain would
	QuantFromRounded QuantSource = raw.FASTNORM_QUANT_FROM_ROUNDED
)

// QuantDivision is how a code is made of a value and its scale.
type QuantDivision int32

// The divisions. With scales that are powers of two they are the same.
const (
	// value * (1 / scale)
	QuantMultiplyReciprocal QuantDivision = raw.FASTNORM_QUANT_MULTIPLY_RECIPROCAL
	// value / scale, as vLLM's dynamic fp8
	QuantDivide QuantDivision = raw.FASTNORM_QUANT_DIVIDE
)

// ScaleLayout is the order of scales in memory.
type ScaleLayout int32

// The layouts.
const (
	ScaleRowMajor    ScaleLayout = raw.FASTNORM_SCALE_ROW_MAJOR
	ScaleColumnMajor ScaleLayout = raw.FASTNORM_SCALE_COLUMN_MAJOR
	// tiles of 128 rows x 4 scales, padding zeroed
	ScaleSwizzled128x4 ScaleLayout = raw.FASTNORM_SCALE_SWIZZLED_128X4
)

// Activation is a function of each element, with the same bits on all machines.
type Activation int32

// The activations of v.
const (
	ActivationIdentity Activation = raw.FASTNORM_ACTIVATION_IDENTITY // v
	ActivationSiLU     Activation = raw.FASTNORM_ACTIVATION_SILU     // v / (1 + exp(-v))
	ActivationSigmoid  Activation = raw.FASTNORM_ACTIVATION_SIGMOID  // 1 / (1 + exp(-v))
	ActivationTanh     Activation = raw.FASTNORM_ACTIVATION_TANH     // tanh(v)
)

// GatePosition is where the gate multiplies.
type GatePosition int32

// The positions.
const (
	// GateAfterNorm multiplies the normalised row: Qwen3-Next, Kimi Linear.
	GateAfterNorm GatePosition = raw.FASTNORM_GATE_AFTER_NORM
	// GateBeforeNorm multiplies X, before the residual and the statistics: Mamba2.
	GateBeforeNorm GatePosition = raw.FASTNORM_GATE_BEFORE_NORM
)

// GateSource is what a gate after the norm multiplies.
type GateSource int32

// The sources.
const (
	// GateFromF32 is the unrounded result: FLA, mamba, vLLM.
	GateFromF32 GateSource = raw.FASTNORM_GATE_FROM_F32
	// GateFromRounded is the result rounded to the dtype of X: Hugging Face.
	GateFromRounded GateSource = raw.FASTNORM_GATE_FROM_ROUNDED
)

// SumRounding says where the sum of branch and residual is rounded to the dtype of X on its way.
type SumRounding int32

// The roundings of the sum.
const (
	// SumOnce rounds nowhere: the product with Alpha and the sum are one operation.
	SumOnce SumRounding = raw.FASTNORM_SUM_ONCE
	// SumEveryStep rounds the product, the sum and the product with SumScale.
	SumEveryStep SumRounding = raw.FASTNORM_SUM_EVERY_STEP
)

// ModulationRounding says where the modulation is rounded to the dtype of X on its way.
type ModulationRounding int32

// The roundings of the modulation.
const (
	// ModulationOnce rounds nowhere: the product and the sum are one operation.
	ModulationOnce ModulationRounding = raw.FASTNORM_MODULATION_ONCE
	// ModulationEveryStep rounds the normalised row, 1 + ModulationScale, the product and the sum.
	ModulationEveryStep ModulationRounding = raw.FASTNORM_MODULATION_EVERY_STEP
)

// Norm describes a normalisation of rows. A row is the last dimension of X, n elements long. For
// each row:
//
//	s            = X + Residual                                 (X where there is no Residual)
//	ResidualOut  = s, rounded to its dtype
//	Mean         = sum(s) / n                                   (Layer only)
//	Rstd         = 1 / sqrt(sum((s - Mean)^2) / n + Eps)        (RMS: Mean is not subtracted)
//	t            = (s - Mean) * Rstd                            (RMS: s * Rstd)
//	Y            = t * (Weight + WeightOffset) + Bias, rounded to the dtype of Y
//
// Stages are optional, and go with all else:
//
//	u = X * act(Gate)            (GateBeforeNorm; else u = X)
//	u = norm(u)                  (Branch: its own kind, Eps, Weight and Bias)
//	u = u rounded to T           (Branch.Rounded)
//	k = act(ResidualGate + ResidualGateTable) * Alpha
//	s = u * k + Residual         (one fused operation; without k u + Residual)
//	s = s * SumScale             (s is the row that is normalised)
//	z = z * (1 + ModulationScale + ScaleTable) + ModulationShift + ShiftTable
//	z = z * act(Gate)            (GateAfterNorm; z is Y before its rounding)
//	z = Activation(z)
//
// With GroupSize d the columns are n / d groups that have statistics of their own: as X viewed
// [..., n / d, d]. For d < n, Mean, Rstd, RstdIn, MeanIn and Sumsq have the shape of X without its
// last extent, and n / d behind that.
//
// Where a row is spread over devices, Sumsq gives each device's part. RstdIn (Layer: and MeanIn)
// takes the statistic of all. RMS: add up the sums S; rstd = 1 / sqrt(S / N + Eps) for N columns in
// all. Layer: merge means and sums by Chan's formula, of docs/gated_norm.md.
//
// All arithmetic is single precision; ResidualRounding and Rounding say where else a value is
// rounded. A row's bits depend on its values, Weight, Bias, n, dtypes and options only.
//
// T below is the dtype of X: F32, F16 or BF16. All tensors are on the context's device. The last
// dimension must be contiguous, leading strides are free. Y and ResidualOut may each be X or
// Residual, as the same view, but not both the same; Y may be Gate. Any other overlap is an error.
// The zero value of every field but X and Y is its default.
type Norm struct {
	Kind             NormKind         // RMS or Layer
	Eps              float32          // finite, >= 0
	WeightOffset     float32          // added to Weight: 0, or 1 for Gemma; 0 without Weight
	Rounding         Rounding         // default: once
	ResidualRounding ResidualRounding // default: exact; no effect without Residual
	Flags            NormFlags        // default: none

	X        Tensor // [..., n] of rank 1 to 8, n >= 1; T. Required
	Residual Tensor // shape of X; F32, F16 or BF16. Not given: nothing is added
	// [..., n], broadcasts against X: [n], [heads, n], [batch, 1, n]; F32, F16 or BF16. Not given: 1
	Weight Tensor
	Bias   Tensor // as Weight. Not given: 0

	// Y is an output, shape of X; T or F32. May be X, Residual or Gate. Not needed with Quant or
	// Sumsq.
	Y           Tensor
	ResidualOut Tensor // output, shape of X; F32, F16 or BF16. May be Residual or X; needs Residual
	Mean        Tensor // output, shape of X without its last extent, or with 1 there; F32. Layer only
	Rstd        Tensor // output, as Mean

	Quant *Quant // quantised output; nil = none

	Gate         Tensor       // shape of X; T or F32. May not overlap X. Not given: nothing is gated
	GateAct      Activation   // of the Gate; default: identity. 0 without Gate, as the next two
	GatePosition GatePosition // default: after the norm
	GateSource   GateSource   // default: unrounded. Rounded only after the norm
	Activation   Activation   // of the result, after the Gate; default: identity
	GroupSize    int          // columns that share a statistic, a divisor of n; 0 = n

	// Sumsq is an output in F32, for a statistic over several devices. RMS: shape of Rstd, the sum of
	// squares. Layer: with a last extent of 2, the mean and the sum of (s - mean)^2.
	Sumsq  Tensor
	MeanIn Tensor // F32 statistics to use, with RstdIn; shape of Mean. Layer only
	RstdIn Tensor // F32 statistics to use, shape of Rstd; nothing is summed. Not given: computed

	Branch      *Branch     // norm of X before the sum; nil = none
	Alpha       float32     // factor of X, or of the Branch's result, in the sum. Finite; 0 = 1
	SumRounding SumRounding // default: the sum is not rounded on its way
	SumScale    Tensor      // [1] F32. Factor of the sum, a value on the device. Not given: 1

	// ResidualGate, ModulationScale and ModulationShift broadcast against X, the last dimension too:
	// [1], [batch, 1, n], [batch, tokens, 1]. T or F32. With ModulationIndex they are [m, n] or [m,
	// 1].
	ResidualGate      Tensor     // factor of the branch in the sum. Not given: 1
	ResidualGateTable Tensor     // [n]; T or F32. Added to ResidualGate. Not given: 0
	ResidualGateAct   Activation // of that sum; default: identity. 0 without ResidualGate
	// 1 + it is the factor of the normalised row. Not given: no product
	ModulationScale Tensor
	ScaleTable      Tensor // as ResidualGateTable, of ModulationScale
	ModulationShift Tensor // added to the normalised row. Not given: nothing is added
	ShiftTable      Tensor // as ResidualGateTable, of ModulationShift
	// shape of X without its last extent, or with 1 there; I32 or I64. The row of each modulator
	ModulationIndex Tensor
	// default: once. 0 without ModulationScale and ModulationShift
	ModulationRounding ModulationRounding
}

// Branch describes the norm of X before the residual is added, as in Gemma: norm, sum, norm. Its
// statistics are of all n columns, whatever the GroupSize of the [Norm].
type Branch struct {
	Kind         NormKind // RMS or Layer
	Eps          float32  // finite, >= 0
	WeightOffset float32  // added to Weight: 0, or 1 for Gemma; 0 without Weight
	Rounding     Rounding // default: the branch is not rounded on its way. Not RoundOnceRW
	Rounded      bool     // the result is rounded to the dtype of X before the sum

	Weight Tensor // as [Norm].Weight. Not given: 1
	Bias   Tensor // as [Norm].Bias. Not given: 0
	Rstd   Tensor // output, shape of X without its last extent, or with 1 there; F32
}

// Quant describes the quantised output of a [Norm]. Every scale is one of dequantisation: a value
// is about its code times its scale.
type Quant struct {
	Scheme      QuantScheme
	BlockSize   int         // QuantPerBlock: 64 or 128 columns; else 0
	Source      QuantSource // default: the unrounded result
	ScaleLayout ScaleLayout // default: row-major
	ScalePow2   bool        // round dynamic fp8 scales up to a power of two
	AmaxFloor   float32     // least magnitude a dynamic scale is made from; 0 = 1e-10
	Clamp       float32     // > 0: results are clamped to [-Clamp, Clamp] first
	// QuantPerTensor, QuantPerRow, QuantPerBlock: default times the reciprocal
	Division QuantDivision

	GlobalScale Tensor // [1] F32. The second scale of QuantNVFP4; not given: 1
	Out         Tensor // output, shape of X, the quantised dtype
	Scale       Tensor // input for QuantPerTensor, else output
	Amax        Tensor // [1] F32; in and out: the largest magnitude seen is maximised into it
	// [1] F32. The clamp on the device, read when the norm runs; not > 0 is off. Needs Clamp 0
	ClampScale Tensor
}

var normTensors = []string{
	raw.NormBitX:            "x",
	raw.NormBitResidual:     "residual",
	raw.NormBitWeight:       "weight",
	raw.NormBitBias:         "bias",
	raw.NormBitY:            "y",
	raw.NormBitResidualOut:  "residual_out",
	raw.NormBitMean:         "mean",
	raw.NormBitRstd:         "rstd",
	raw.NormBitGlobalScale:  "global_scale",
	raw.NormBitQuantized:    "quantized",
	raw.NormBitScale:        "scale",
	raw.NormBitAmax:         "amax",
	raw.NormBitClampScale:   "clamp_scale",
	raw.NormBitGate:         "gate",
	raw.NormBitSumsq:        "sumsq",
	raw.NormBitMeanIn:       "mean_in",
	raw.NormBitRstdIn:       "rstd_in",
	raw.NormBitBranchWeight: "branch_weight",
	raw.NormBitBranchBias:   "branch_bias",
	raw.NormBitBranchRstd:   "branch_rstd",
	raw.NormBitSumScale:     "sum_scale",

	raw.NormBitResidualGate:      "residual_gate",
	raw.NormBitResidualGateTable: "residual_gate_table",
	raw.NormBitModulationScale:   "modulation_scale",
	raw.NormBitScaleTable:        "scale_table",
	raw.NormBitModulationShift:   "modulation_shift",
	raw.NormBitShiftTable:        "shift_table",
	raw.NormBitModulationIndex:   "modulation_index",
}

func (n *Norm) encode(q *call, part int) {
	w := q.begin(raw.NormMask)
	w[raw.NormKind] = uint64(n.Kind)
	w[raw.NormEps] = uint64(math.Float32bits(n.Eps))
	w[raw.NormWeightOffset] = uint64(math.Float32bits(n.WeightOffset))
	w[raw.NormRounding] = uint64(n.Rounding)
	w[raw.NormResidualRounding] = uint64(n.ResidualRounding)
	w[raw.NormFlags] = uint64(n.Flags)
	q.tensor(part, raw.NormBitX, &n.X)
	q.tensor(part, raw.NormBitResidual, &n.Residual)
	q.tensor(part, raw.NormBitWeight, &n.Weight)
	q.tensor(part, raw.NormBitBias, &n.Bias)
	q.tensor(part, raw.NormBitY, &n.Y)
	q.tensor(part, raw.NormBitResidualOut, &n.ResidualOut)
	q.tensor(part, raw.NormBitMean, &n.Mean)
	q.tensor(part, raw.NormBitRstd, &n.Rstd)
	if n.Quant != nil {
		n.Quant.encode(q, w, part)
	}
	n.encodeStages(q, w, part)
}

func (n *Norm) encodeStages(q *call, w []uint64, part int) {
	w[raw.NormGateAct] = uint64(n.GateAct)
	w[raw.NormGatePosition] = uint64(n.GatePosition)
	w[raw.NormGateSource] = uint64(n.GateSource)
	w[raw.NormActivation] = uint64(n.Activation)
	w[raw.NormGroupSize] = uint64(n.GroupSize)
	w[raw.NormAlpha] = uint64(math.Float32bits(n.Alpha))
	w[raw.NormSumRounding] = uint64(n.SumRounding)
	q.tensor(part, raw.NormBitGate, &n.Gate)
	q.tensor(part, raw.NormBitSumsq, &n.Sumsq)
	q.tensor(part, raw.NormBitMeanIn, &n.MeanIn)
	q.tensor(part, raw.NormBitRstdIn, &n.RstdIn)
	if n.Branch != nil {
		n.Branch.encode(q, w, part)
	}
	q.tensor(part, raw.NormBitSumScale, &n.SumScale)
	n.encodeModulation(q, w, part)
}

func (n *Norm) encodeModulation(q *call, w []uint64, part int) {
	w[raw.NormResidualGateAct] = uint64(n.ResidualGateAct)
	w[raw.NormModulationRounding] = uint64(n.ModulationRounding)
	q.tensor(part, raw.NormBitResidualGate, &n.ResidualGate)
	q.tensor(part, raw.NormBitResidualGateTable, &n.ResidualGateTable)
	q.tensor(part, raw.NormBitModulationScale, &n.ModulationScale)
	q.tensor(part, raw.NormBitScaleTable, &n.ScaleTable)
	q.tensor(part, raw.NormBitModulationShift, &n.ModulationShift)
	q.tensor(part, raw.NormBitShiftTable, &n.ShiftTable)
	q.tensor(part, raw.NormBitModulationIndex, &n.ModulationIndex)
}

func (b *Branch) encode(q *call, w []uint64, part int) {
	w[raw.NormBranchNorm] = 1
	w[raw.NormBranchKind] = uint64(b.Kind)
	w[raw.NormBranchEps] = uint64(math.Float32bits(b.Eps))
	w[raw.NormBranchWeightOffset] = uint64(math.Float32bits(b.WeightOffset))
	w[raw.NormBranchRounding] = uint64(b.Rounding)
	w[raw.NormBranchRounded] = bit(b.Rounded)
	q.tensor(part, raw.NormBitBranchWeight, &b.Weight)
	q.tensor(part, raw.NormBitBranchBias, &b.Bias)
	q.tensor(part, raw.NormBitBranchRstd, &b.Rstd)
}

func (z *Quant) encode(q *call, w []uint64, part int) {
	w[raw.NormQuantScheme] = uint64(z.Scheme)
	w[raw.NormQuantBlockSize] = uint64(clip(z.BlockSize))
	w[raw.NormQuantSource] = uint64(z.Source)
	w[raw.NormScaleLayout] = uint64(z.ScaleLayout)
	if z.ScalePow2 {
		w[raw.NormScalePow2] = 1
	}
	w[raw.NormAmaxFloor] = uint64(math.Float32bits(z.AmaxFloor))
	w[raw.NormClamp] = uint64(math.Float32bits(z.Clamp))
	w[raw.NormQuantDivision] = uint64(z.Division)
	q.tensor(part, raw.NormBitGlobalScale, &z.GlobalScale)
	q.tensor(part, raw.NormBitQuantized, &z.Out)
	q.tensor(part, raw.NormBitScale, &z.Scale)
	q.tensor(part, raw.NormBitAmax, &z.Amax)
	q.tensor(part, raw.NormBitClampScale, &z.ClampScale)
}

func (n *Norm) call() *call {
	q := newCall(1, raw.NormMaxWords)
	n.encode(q, 0)
	return q
}

// encodeNorms encodes a list. Of one that is too long the library refuses the number.
func encodeNorms(list []Norm) *call {
	if len(list) > raw.MaxParts {
		q := newCall(0, 0)
		q.count = clip(len(list))
		return q
	}
	q := newCall(len(list), raw.NormMaxWords)
	for i := range list {
		list[i].encode(q, i)
	}
	return q
}

var oneNorm = &family{
	tensors: normTensors,
	run: func(context uintptr, q *call) int32 {
		return raw.Fnb_norm(context, q.list(), uintptr(q.used), q.workspace, q.workspaceBytes, q.stream)
	},
	prepare: func(context uintptr, q *call) int32 {
		return raw.Fnb_norm_prepare(context, q.list(), uintptr(q.used))
	},
	query: func(context uintptr, q *call, info raw.Fastnorm_info) int32 {
		return raw.Fnb_norm_query(context, q.list(), uintptr(q.used), info)
	},
}

var manyNorms = &family{
	tensors: normTensors,
	list:    "args",
	run: func(context uintptr, q *call) int32 {
		return raw.Fnb_norm_many(context, q.list(), uintptr(q.used), q.count, q.workspace,
			q.workspaceBytes, q.stream)
	},
	prepare: func(context uintptr, q *call) int32 {
		return raw.Fnb_norm_many_prepare(context, q.list(), uintptr(q.used), q.count)
	},
	query: func(context uintptr, q *call, info raw.Fastnorm_info) int32 {
		return raw.Fnb_norm_many_query(context, q.list(), uintptr(q.used), q.count, info)
	},
}

// Run runs the normalisation on a context. On the CPU it is done when Run returns; on a GPU one
// kernel is queued on the stream. No rows are success: nothing is written. A Norm may be run again
// and again, also by several goroutines if their outputs differ.
func (n *Norm) Run(c *Context, options ...CallOption) error {
	if n == nil {
		return &Error{Status: StatusArgument, Message: "the Norm is nil; required: a description"}
	}
	q := n.call()
	q.apply(options)
	err := q.run(c, oneNorm)
	q.free()
	return err
}

// Norm is [Norm.Run].
func (c *Context) Norm(n Norm, options ...CallOption) error { return n.Run(c, options...) }

// NormQuery says what a Norm would do: workspace, kernel, launches, bytes. Memory is not touched,
// but addresses count.
func (c *Context) NormQuery(n Norm) (Info, error) {
	q := n.call()
	defer q.free()
	return q.query(c, oneNorm)
}

// NormPrepare loads what a Norm needs. After it, calls that use the same kernel neither allocate
// nor synchronise on a GPU and can be captured in a CUDA graph. Optional: the first call does the
// same.
func (c *Context) NormPrepare(n Norm) error {
	q := n.call()
	defer q.free()
	return q.prepare(c, oneNorm)
}

// NormMany runs up to 8 normalisations, with the results of one Norm each, in order: such as the
// query heads and the key heads of one fused QKV tensor. All are checked, against each other too,
// before anything runs. None may read what another one writes. On a GPU two neighbours that share a
// kernel of short rows are one launch.
func (c *Context) NormMany(list []Norm, options ...CallOption) error {
	q := encodeNorms(list)
	q.apply(options)
	err := q.run(c, manyNorms)
	q.free()
	return err
}

// NormManyQuery is [Context.NormQuery] for a list: the sum of its parts; Kernel is that of the
// first with rows.
func (c *Context) NormManyQuery(list []Norm) (Info, error) {
	q := encodeNorms(list)
	defer q.free()
	return q.query(c, manyNorms)
}

// NormManyPrepare is [Context.NormPrepare] for a list.
func (c *Context) NormManyPrepare(list []Norm) error {
	q := encodeNorms(list)
	defer q.free()
	return q.prepare(c, manyNorms)
}
