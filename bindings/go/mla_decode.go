package fastnorm

import (
	"runtime"
	"unsafe"

	"github.com/libfastnorm/libfastnorm/bindings/go/internal/raw"
)

// Run attends. On the CPU the work is done when Run returns; on a GPU up to three kernels are
// queued on the stream, and the call needs a [Workspace]. Lengths and page numbers are checked on
// the CPU; on a GPU they must be valid. An MLADecode may be run again and again, also by several
// goroutines if their outputs differ.
//
// Attention is of new tokens over a paged cache of latents: multi-head latent attention in its
// absorbed form. There are B requests. Request b has s new tokens and L = KVLen[b]
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
// With a CacheFormat of FP8 the bytes of Cache are the rows, in place of CKV and KPE. With Indices,
// a new token attends to the rows that it lists, in place of those of PageTable. AttentionSink
// multiplies O[i,h] by exp(LSE) / (exp(LSE) + exp(AttentionSink[h])). A GPU has none of the three.
func (m *MLADecode) Run(c *Context, options ...CallOption) error {
	if m == nil {
		return &Error{Status: StatusArgument, Message: "the MLADecode is nil; required: a description"}
	}
	q := m.call()
	q.apply(options)
	err := q.run(c, callMLADecode)
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
	return q.query(c, callMLADecode)
}

// MLADecodePrepare loads the kernels of an MLADecode. After it, calls that use the same kernels
// neither allocate nor synchronise on a GPU and can be captured in a CUDA graph. Optional: the
// first call does the same.
func (c *Context) MLADecodePrepare(m MLADecode) error {
	q := m.call()
	defer q.free()
	return q.prepare(c, callMLADecode)
}

// --- the profile ---

// ProfileID says what an event of a profile is; String gives its name, such as "softmax".
type ProfileID int32

// String returns the library's name of the event.
func (id ProfileID) String() string { return raw.Fastnorm_profile_id_name(int32(id)) }

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
