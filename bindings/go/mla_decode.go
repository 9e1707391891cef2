package fastnorm

import (
	"math"
	"runtime"
	"unsafe"

	"github.com/libfastnorm/libfastnorm/bindings/go/internal/raw"
)

// LSEBase is the base of the logarithm in [MLADecode].LSE.
type LSEBase int32

// The bases.
const (
	LSENatural LSEBase = raw.FASTNORM_LSE_NATURAL // as PyTorch and FlashMLA
	LSEBase2   LSEBase = raw.FASTNORM_LSE_BASE_2  // as FlashInfer; the natural logarithm times log2(e)
)

// MLADecode describes attention of new tokens over a paged cache of latents: multi-head latent
// attention in its absorbed form. There are B requests. Request b has s new tokens and L = KVLen[b]
// cached ones, the new ones among them. N is the number of new tokens of all requests, H the number
// of heads. For new token i of its request, head h and cached token j:
//
//	score[j]  = Scale * (QNope[i,h]·CKV[j] + QPE[i,h]·KPE[j])
//	allowed   = j < L; with Causal j <= L - s + i
//	LSE[i,h]  = log of the sum of exp(score[j]) over allowed j
//	O[i,h]    = sum of exp(score[j] - LSE[i,h]) * CKV[j] over allowed j
//
// Where no j is allowed, O is 0 and LSE is minus infinity.
//
// Token j of request b is row j % page of the page with number list[j / page]. The list is row b of
// PageTable or, with KVIndptr, begins at PageTable[KVIndptr[b]]. Entries and rows behind the end of
// a request may hold anything.
//
// T below is the dtype of QNope: BF16 or F16, on the CPU F32 too. All tensors are on the context's
// device; their last dimensions are contiguous. On a GPU, which must be of compute capability 9.0,
// addresses and strides of the tensors of T are multiples of 16 bytes. The zero value of every
// optional field is its default.
type MLADecode struct {
	// of the scores: finite and not 0, on a GPU > 0. Required, since models differ
	Scale   float64
	Causal  bool    // a new token sees no later one
	LSEBase LSEBase // default: natural
	MaxNew  int     // with QOIndptr: at least the most new tokens of a request; else 0
	// the workspace holds the plan of an equal call, such as the previous layer's; no effect on the
	// CPU
	ReusePlan bool
	// 0: long requests are cut as the library likes; else every so many tokens, a multiple of 64
	SplitTokens   int
	ProfileEvents int   // with Profile: the most events of a warpgroup, 1 to 2^20
	TotalKVHint   int64 // the sum of KVLen, for Info.BytesRead only; 0 if unknown

	QNope     Tensor // [N, H, 512] T, the query times the key's up-projection. Required
	QPE       Tensor // [N, H, 64] T, the query's rotary part. Required
	CKV       Tensor // [pages, page, 512] T, the latents after their norm. Required
	KPE       Tensor // [pages, page, 64] T, the key's rotary part. Required
	KVLen     Tensor // [B] I32. Required
	PageTable Tensor // [B, most pages] I32; with KVIndptr [total]. Required
	KVIndptr  Tensor // [B + 1] I32: where a request's pages begin in PageTable
	QOIndptr  Tensor // [B + 1] I32: where a request's new tokens begin. Not given: each has N / B

	O   Tensor // output, [N, H, 512] T. Required
	LSE Tensor // output, [N, H] F32
	// output, [Info.ProfileBytes] U8, 16-byte aligned, on a GPU only: what ran when, for
	// [DecodeProfile]
	Profile Tensor
}

var mlaDecodeTensors = []string{
	raw.MlaDecodeBitQNope:     "q_nope",
	raw.MlaDecodeBitQPe:       "q_pe",
	raw.MlaDecodeBitCkv:       "ckv",
	raw.MlaDecodeBitKpe:       "kpe",
	raw.MlaDecodeBitKvLen:     "kv_len",
	raw.MlaDecodeBitPageTable: "page_table",
	raw.MlaDecodeBitKvIndptr:  "kv_indptr",
	raw.MlaDecodeBitQoIndptr:  "qo_indptr",
	raw.MlaDecodeBitO:         "o",
	raw.MlaDecodeBitLse:       "lse",
	raw.MlaDecodeBitProfile:   "profile",
}

func (m *MLADecode) call() *call {
	q := newCall(1, raw.MlaDecodeMaxWords)
	w := q.begin(raw.MlaDecodeMask)
	w[raw.MlaDecodeSmScale] = math.Float64bits(m.Scale)
	w[raw.MlaDecodeCausal] = bit(m.Causal)
	w[raw.MlaDecodeLseBase] = uint64(m.LSEBase)
	w[raw.MlaDecodeMaxSQ] = uint64(clip(m.MaxNew))
	w[raw.MlaDecodeReusePlan] = bit(m.ReusePlan)
	w[raw.MlaDecodeSplitTokens] = uint64(clip(m.SplitTokens))
	w[raw.MlaDecodeProfileEvents] = uint64(clip(m.ProfileEvents))
	w[raw.MlaDecodeTotalKvHint] = uint64(m.TotalKVHint)
	q.tensor(0, raw.MlaDecodeBitQNope, &m.QNope)
	q.tensor(0, raw.MlaDecodeBitQPe, &m.QPE)
	q.tensor(0, raw.MlaDecodeBitCkv, &m.CKV)
	q.tensor(0, raw.MlaDecodeBitKpe, &m.KPE)
	q.tensor(0, raw.MlaDecodeBitKvLen, &m.KVLen)
	q.tensor(0, raw.MlaDecodeBitPageTable, &m.PageTable)
	q.tensor(0, raw.MlaDecodeBitKvIndptr, &m.KVIndptr)
	q.tensor(0, raw.MlaDecodeBitQoIndptr, &m.QOIndptr)
	q.tensor(0, raw.MlaDecodeBitO, &m.O)
	q.tensor(0, raw.MlaDecodeBitLse, &m.LSE)
	q.tensor(0, raw.MlaDecodeBitProfile, &m.Profile)
	return q
}

func bit(on bool) uint64 {
	if on {
		return 1
	}
	return 0
}

var mlaDecodes = &family{
	tensors: mlaDecodeTensors,
	run: func(context uintptr, q *call) int32 {
		return raw.Fnb_mla_decode(context, q.list(), uintptr(q.used), q.workspace, q.workspaceBytes,
			q.stream)
	},
	prepare: func(context uintptr, q *call) int32 {
		return raw.Fnb_mla_decode_prepare(context, q.list(), uintptr(q.used))
	},
	query: func(context uintptr, q *call, info raw.Fastnorm_info) int32 {
		return raw.Fnb_mla_decode_query(context, q.list(), uintptr(q.used), info)
	},
}

// Run attends. On the CPU the work is done when Run returns; on a GPU up to three kernels are
// queued on the stream, and the call needs a [Workspace]. Lengths and page numbers are checked on
// the CPU; on a GPU they must be valid. An MLADecode may be run again and again, also by several
// goroutines if their outputs differ.
func (m *MLADecode) Run(c *Context, options ...CallOption) error {
	if m == nil {
		return &Error{Status: StatusArgument, Message: "the MLADecode is nil; required: a description"}
	}
	q := m.call()
	q.apply(options)
	err := q.run(c, mlaDecodes)
	q.free()
	return err
}

// MLADecode is [MLADecode.Run].
func (c *Context) MLADecode(m MLADecode,
	options ...CallOption) error {
	return m.Run(c, options...)
}

// MLADecodeQuery says what an MLADecode would do: workspace, launches, bytes. Memory is not
// touched, but addresses count.
func (c *Context) MLADecodeQuery(m MLADecode) (Info, error) {
	q := m.call()
	defer q.free()
	return q.query(c, mlaDecodes)
}

// MLADecodePrepare loads the kernels of an MLADecode. After it, calls that use the same kernels
// neither allocate nor synchronise on a GPU and can be captured in a CUDA graph. Optional: the
// first call does the same.
func (c *Context) MLADecodePrepare(m MLADecode) error {
	q := m.call()
	defer q.free()
	return q.prepare(c, mlaDecodes)
}

// --- the profile ---

// ProfileID says what an event of a profile is; String gives its name, such as "softmax".
type ProfileID int32

// String returns the library's name of the event.
func (id ProfileID) String() string { return raw.Fastnorm_profile_id_name(int32(id)) }

// ProfileKind says how an event of a profile stands in time.
type ProfileKind int32

// The kinds of events.
const (
	// a span starts; its end has the same ID and warpgroup
	ProfileBegin   ProfileKind = raw.FASTNORM_PROFILE_BEGIN
	ProfileEnd     ProfileKind = raw.FASTNORM_PROFILE_END     // the span ends
	ProfileInstant ProfileKind = raw.FASTNORM_PROFILE_INSTANT // a point in time
)

// ProfileEvent is one event of a profile, laid out as the library's own struct.
type ProfileEvent struct {
	TimeNS         uint64      // since the earliest event of the buffer, aligned over multiprocessors
	Cycle          uint64      // since the first event of this thread block, in clock cycles
	Block          int32       // thread block
	Multiprocessor int32       // where it ran
	Group          int32       // warpgroup of the thread block
	ID             ProfileID   // what
	Kind           ProfileKind // begin, end or instant
	Value          int32       // number of the tile or piece that the event belongs to
}

// DecodeProfile returns the events of a profile that an [MLADecode] wrote, copied to host memory,
// in the order of thread block, warpgroup and time.
func DecodeProfile(buffer []byte) ([]ProfileEvent, error) {
	words, address := aligned(buffer)
	var count uintptr
	decode := func(events []ProfileEvent) error {
		var pinner runtime.Pinner
		defer pinner.Unpin()
		pinner.Pin(&count)
		if len(words) > 0 {
			pinner.Pin(&words[0])
		}
		var to uintptr
		if len(events) > 0 {
			pinner.Pin(&events[0])
			to = uintptr(unsafe.Pointer(&events[0]))
		}
		return checked(func() int32 {
			return raw.Fnb_profile_decode(address, uintptr(len(buffer)), to, uintptr(len(events)),
				uintptr(unsafe.Pointer(&count)))
		})
	}
	if err := decode(nil); err != nil {
		return nil, err
	}
	events := make([]ProfileEvent, count)
	if err := decode(events); err != nil {
		return nil, err
	}
	return events, nil
}

// WriteTrace writes a profile that an [MLADecode] wrote, copied to host memory, to a file in
// Chrome's Trace Event Format, which Perfetto opens.
func WriteTrace(buffer []byte, path string) error {
	words, address := aligned(buffer)
	var pinner runtime.Pinner
	defer pinner.Unpin()
	if len(words) > 0 {
		pinner.Pin(&words[0])
	}
	return checked(func() int32 {
		return raw.Fastnorm_profile_write_trace(address, uintptr(len(buffer)), path,
			raw.FASTNORM_TRACE_CHROME_JSON)
	})
}

// aligned copies bytes to where 64-bit words may be read, and returns the memory and its address; 0
// for no bytes.
func aligned(buffer []byte) ([]uint64, uintptr) {
	if len(buffer) == 0 {
		return nil, 0
	}
	words := make([]uint64, (len(buffer)+7)/8)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(buffer)), buffer)
	return words, uintptr(unsafe.Pointer(&words[0]))
}
