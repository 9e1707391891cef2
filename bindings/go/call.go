package fastnorm

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"unsafe"

	"github.com/libfastnorm/libfastnorm/bindings/go/internal/raw"
)

// call is one call of the library under way: its descriptions as a list of words (see words.h),
// what is pinned for it, and where it runs. Calls are pooled: one costs no allocation.
type call struct {
	words  []uint64 // memory of C, so that cgo has nothing to look through
	used   int
	mask   int // index of the last description's mask
	depth  int // of the last description in those that point to it
	within [maxDepth]nesting
	count  int32
	pinner runtime.Pinner
	pinned []unsafe.Pointer
	fault  *faultyTensor // the first one

	cleanup runtime.Cleanup // of words

	workspace      uintptr
	workspaceBytes uintptr
	stream         uintptr

	gather int32 // of an NCCLSequenceNorm
}

func (q *call) list() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(q.words))) }

type faultyTensor struct {
	tensor    Tensor
	part, bit int
	within    []nesting
}

// nesting is where a description stands that another one points to.
type nesting struct {
	field   string   // such as "quant."
	tensors []string // names, by their bits
	mask    int      // of the description that points to it
}

// maxDepth is that of norm.quant of a [PeerAllreduceNorm].
const maxDepth = 2

// family is what the library has for one kind of description. The functions take the address of a
// target and a whole call.
type family struct {
	run, prepare func(target uintptr, q *call) int32
	query        func(target uintptr, q *call, info raw.Fastnorm_info) int32
	failure      func(status int32) error // of this thread's last call; nil = lastError
	tensors      []string                 // names, by their bits
	// what the library calls a list of descriptions; "" = there is one description
	list   string
	shared []string // names of tensors that the list shares
}

// target is what a call is made on: a [Context] or an [NCCL].
type target interface {
	Device() Device
	enter() (address uintptr, err error) // until leave it is not destroyed
	leave()                              // after an enter without an error
}

// shared is in the place of a part's number for tensors that the parts share.
const shared = raw.MaxParts

const maxTensorWords = raw.TensorWords + 2*raw.MaxRank

var calls = sync.Pool{New: func() any {
	q := new(call)
	q.reserve(raw.NormMaxWords)
	return q
}}

// reserve makes room for that many words.
func (q *call) reserve(words int) {
	if words > len(q.words) {
		q.cleanup.Stop()
		raw.FreeWords(q.words)
		q.words = raw.NewWords(words)
		q.cleanup = runtime.AddCleanup(q, raw.FreeWords, q.words)
	}
}

// newCall takes a call for count descriptions of at most that many words each.
func newCall(count, maxWords int) *call {
	q := calls.Get().(*call)
	q.reserve(count * maxWords)
	q.count = int32(count)
	return q
}

// free unpins everything and gives the call back.
func (q *call) free() {
	if len(q.pinned) > 0 {
		q.pinner.Unpin()
		clear(q.pinned)
		q.pinned = q.pinned[:0]
	}
	q.used, q.fault, q.depth = 0, nil, 0
	q.workspace, q.workspaceBytes, q.stream, q.gather = 0, 0, 0, 0
	calls.Put(q)
}

// --- encoding ---

// begin appends the scalars and the mask of a description, all 0, and returns the scalars.
func (q *call) begin(scalars int) []uint64 {
	words := q.words[q.used : q.used+scalars+1]
	clear(words)
	q.mask = q.used + scalars
	q.used += scalars + 1
	return words[:scalars]
}

// enter begins the description that a bit of the last one stands for, behind all tensors, and leave
// ends it. The last description is then the same again.
func (q *call) enter(bit int, field string, tensors []string) {
	q.words[q.mask] |= 1 << bit
	q.within[q.depth] = nesting{field, tensors, q.mask}
	q.depth++
}

func (q *call) leave() {
	q.depth--
	q.mask = q.within[q.depth].mask
}

// tensor appends a tensor of the description if it is given. Tensors come in the order of their
// bits.
func (q *call) tensor(part, bit int, t *Tensor) {
	if t.given {
		q.add(part, bit, t)
	}
}

func (q *call) add(part, bit int, t *Tensor) {
	q.words[q.mask] |= 1 << bit
	words := q.words[q.used : q.used+maxTensorWords]
	address := t.where
	if t.data != nil {
		q.pin(t.data)
		address = uint64(uintptr(t.data))
	}
	if t.fault != noFault {
		address = q.noteFault(part, bit, t)
	}
	words[0] = address
	words[1] = uint64(t.device)
	words[2] = uint64(t.rank) | uint64(t.dtype)<<32
	words[3] = 0
	q.used += raw.TensorWords
	if t.more != nil {
		q.tensorWithMore(words, t)
		return
	}
	extents := words[raw.TensorWords:]
	for i := range int(t.rank) {
		extents[i] = uint64(t.shape[i])
	}
	q.used += int(t.rank)
}

// noteFault remembers the first tensor with a fault, and returns an address for the query of
// refuse, another one for each tensor: memory that lies beside the tensor must not decide which
// error is found.
func (q *call) noteFault(part, bit int, t *Tensor) uint64 {
	if q.fault == nil {
		q.fault = &faultyTensor{*t, part, bit, slices.Clone(q.within[:q.depth])}
	}
	return 1<<56 + uint64(q.used)<<42
}

// tensorWithMore appends what follows the head of a tensor that has more than a shape.
func (q *call) tensorWithMore(words []uint64, t *Tensor) {
	words[3] = t.more.offset
	rank := int(t.rank)
	if rank > raw.MaxRank {
		return
	}
	n := raw.TensorWords
	for i := range rank {
		words[n+i] = uint64(t.extent(i))
	}
	q.used += rank
	if t.strided() {
		words[2] |= 1 << 31
		for i := range rank {
			words[n+rank+i] = uint64(t.stride(i))
		}
		q.used += rank
	}
}

// pin keeps memory in its place until free. In-place calls name memory twice; to pin it twice costs
// the runtime a record of its own.
func (q *call) pin(data unsafe.Pointer) {
	if !slices.Contains(q.pinned, data) {
		q.pinner.Pin(data)
		q.pinned = append(q.pinned, data)
	}
}

// encodeList encodes a list of descriptions of at most that many words each. The library refuses
// the number of a list that is too long.
func encodeList[T any](list []T, maxWords int, encode func(d *T, q *call, part int)) *call {
	if len(list) > raw.MaxParts {
		q := newCall(0, 0)
		q.count = clip(len(list))
		return q
	}
	q := newCall(len(list), maxWords)
	for i := range list {
		encode(&list[i], q, i)
	}
	return q
}

// --- calling ---

// A CallOption says where a call runs: [Stream], [Workspace].
type CallOption struct {
	stream                    uintptr
	workspace, workspaceBytes uintptr
	what                      optionKind
}

type optionKind uint8

const (
	streamOption optionKind = iota
	workspaceOption
)

// Stream queues the work on a CUDA stream, by its handle (cudaStream_t, CUstream). Without it, it
// is the legacy default stream. A CPU context takes none.
func Stream(handle uintptr) CallOption { return CallOption{stream: handle, what: streamOption} }

// Workspace gives the call [Info.WorkspaceBytes] bytes on its device, 256-byte aligned, that
// nothing else uses until the work has run. A CPU context that is given none takes what it needs
// from Go.
func Workspace(address, bytes uintptr) CallOption {
	return CallOption{workspace: address, workspaceBytes: bytes, what: workspaceOption}
}

func (q *call) apply(options []CallOption) {
	for i := range options {
		switch o := &options[i]; o.what {
		case streamOption:
			q.stream = o.stream
		case workspaceOption:
			q.workspace, q.workspaceBytes = o.workspace, o.workspaceBytes
		}
	}
}

// run runs the call, on a CPU with a workspace of Go's if the library needs one and was given none.
// That is found out by a query, when the first try was refused, which wrote nothing.
func (q *call) run(c target, f *family) error {
	err := q.do(c, f, f.run)
	if err == nil || q.workspace != 0 || q.workspaceBytes != 0 || c.Device().Type() != DeviceCPU ||
		!errors.Is(err, ErrArgument) {
		return err
	}
	info, queryError := q.query(c, f)
	if queryError != nil {
		return queryError // of what else is wrong
	}
	if info.WorkspaceBytes == 0 {
		return err
	}
	return q.withWorkspace(c, f, info.WorkspaceBytes)
}

// withWorkspace runs the call with that many bytes.
func (q *call) withWorkspace(c target, f *family, bytes uint64) error {
	if bytes > math.MaxInt/2 {
		return &Error{Status: StatusOutOfMemory,
			Message: fmt.Sprintf("%d bytes of workspace are needed", bytes)}
	}
	memory := make([]byte, bytes+workspaceAlignment-1)
	q.pin(unsafe.Pointer(&memory[0]))
	q.workspace = (uintptr(unsafe.Pointer(&memory[0])) +
		workspaceAlignment - 1) &^ (workspaceAlignment - 1)
	q.workspaceBytes = uintptr(bytes)
	return q.do(c, f, f.run)
}

const workspaceAlignment = 256

func (q *call) query(c target, f *family) (Info, error) {
	info := raw.NewFastnorm_info()
	defer raw.DeleteFastnorm_info(info)
	err := q.do(c, f, func(context uintptr, q *call) int32 { return f.query(context, q, info) })
	if err != nil {
		return Info{}, err
	}
	return infoOf(info), nil
}

func (q *call) prepare(c target, f *family) error { return q.do(c, f, f.prepare) }

// do calls one function of the library.
func (q *call) do(c target, f *family, function func(uintptr, *call) int32) error {
	address, err := c.enter()
	if err != nil {
		return err
	}
	if q.fault != nil {
		err = q.refuse(address, f)
	} else {
		// The text of a failure is its thread's, and goroutines move between threads.
		runtime.LockOSThread()
		if status := function(address, q); status != raw.FASTNORM_OK {
			err = f.error(status)
		}
		runtime.UnlockOSThread()
	}
	c.leave()
	return err
}

// refuse makes the error of a call with a faulty tensor: the library's, where it finds a fault of
// its own (a query does not touch memory), else ours.
func (q *call) refuse(address uintptr, f *family) error {
	info := raw.NewFastnorm_info()
	defer raw.DeleteFastnorm_info(info)
	query := func() int32 { return f.query(address, q, info) }
	if err := checkedBy(f.error, query); err != nil {
		return err
	}
	return q.fault.tensor.refusal(f.name(q.fault))
}

// error makes the error of a status, on the thread of the call that returned it.
func (f *family) error(status int32) error {
	if f.failure != nil {
		return f.failure(status)
	}
	return lastError(status)
}

// name is the library's name of a tensor.
func (f *family) name(t *faultyTensor) string {
	if t.part == shared {
		return f.shared[t.bit]
	}
	name, tensors := "", f.tensors
	if f.list != "" {
		name = fmt.Sprintf("%s[%d].", f.list, t.part)
	}
	for _, n := range t.within {
		name, tensors = name+n.field, n.tensors
	}
	return name + tensors[t.bit]
}

// bit is the word of a bool.
func bit(on bool) uint64 {
	if on {
		return 1
	}
	return 0
}
