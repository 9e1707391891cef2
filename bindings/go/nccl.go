package fastnorm

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"time"
	"unsafe"

	"github.com/libfastnorm/libfastnorm/bindings/go/internal/raw"
)

// LoadNCCL loads libfastnorm_nccl from that file. Without it the first use of an [NCCL] loads
// libfastnorm_nccl.so.1 from where the loader finds it. What is loaded stays so: a later call does
// nothing. Programs that do not use an [NCCL] do not need the library.
//
// A library that cannot be loaded, or one that uses another copy of libfastnorm, is an
// [ErrUnsupported].
func LoadNCCL(path string) error {
	if strings.Contains(path, "\x00") { // where C would take it to end
		return &Error{Status: StatusArgument,
			Message: fmt.Sprintf("path is %q; required: a path without a zero byte", path)}
	}
	return checkedBy(ncclError, func() int32 { return raw.Fnb_nccl_load(path) })
}

// NCCLVersion finds NCCL and returns ncclGetVersion's number, such as 22809. It is an
// [ErrUnsupported] where there is none.
func NCCLVersion() (int, error) {
	version := make([]int32, 1)
	var pinner runtime.Pinner
	defer pinner.Unpin()
	at := addressOf(&pinner, version)
	err := checkedBy(ncclError, func() int32 { return raw.Fnb_nccl_version(at) })
	return int(version[0]), err
}

// NCCLFunctions are addresses of the functions of a NCCL, for [SetNCCLFunctions]. All are required.
type NCCLFunctions struct {
	GetVersion     uintptr // ncclGetVersion
	CommCount      uintptr // ncclCommCount
	CommUserRank   uintptr // ncclCommUserRank
	CommCuDevice   uintptr // ncclCommCuDevice
	AllReduce      uintptr // ncclAllReduce
	ReduceScatter  uintptr // ncclReduceScatter
	AllGather      uintptr // ncclAllGather
	GroupStart     uintptr // ncclGroupStart
	GroupEnd       uintptr // ncclGroupEnd
	GetErrorString uintptr // ncclGetErrorString
}

// SetNCCLFunctions gives the functions of NCCL, before any [NCCL] is made: in a program that links
// NCCL statically. CPU contexts need it, with functions over host memory. nil = NCCL is looked for
// again.
func SetNCCLFunctions(functions *NCCLFunctions) error {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	var list []uintptr
	if functions != nil {
		list = []uintptr{
			functions.GetVersion, functions.CommCount, functions.CommUserRank, functions.CommCuDevice,
			functions.AllReduce, functions.ReduceScatter, functions.AllGather, functions.GroupStart,
			functions.GroupEnd, functions.GetErrorString,
		}
	}
	at := addressOf(&pinner, list)
	return checkedBy(ncclError, func() int32 {
		return raw.Fnb_nccl_set_functions(at, uintptr(len(list)))
	})
}

// NCCLOptions are how an [NCCL] is made. They are the same on all ranks. Fields that [PeerOptions]
// has too mean the same.
type NCCLOptions struct {
	DType        DType         // of X: F32, F16 or BF16
	Algorithm    PeerAlgorithm // of peers
	MaxColumns   int           // longest row, 1 to 65536
	OneShotBytes int64         // of peers
	Wait         time.Duration // of peers
	Rings        int           // of peers
	PeerBytes    int64         // the most bytes of X that go by peers; 0 = no limit
	NoPeers      bool          // calls always go by NCCL
	FixedOrder   bool          // a call that would go by NCCL is an error
}

// NCCLRank is one rank of this process, for [NewNCCLAll].
type NCCLRank struct {
	Context *Context
	Comm    uintptr // an ncclComm_t of the context's device
	Stream  uintptr // a cudaStream_t, for the exchange; 0 = the default stream
}

// NCCL is one rank on a communicator of NCCL's. Where the ranks reach each other's memory its calls
// are those of a [Peer], else they go by NCCL. All ranks make the same calls in the same order.
//
// The communicator is borrowed: it must outlive the handle. Close the handle when it is no longer
// needed, before or after its context; one that is forgotten is closed by the garbage collector.
type NCCL struct {
	h       *ncclHandle
	context *Context
	cleanup runtime.Cleanup
}

// ncclHandle is the library's handle. It holds its context.
type ncclHandle struct {
	raw     uintptr
	context *handle
	lifetime
}

func (h *ncclHandle) end() {
	raw.Fnb_nccl_destroy(h.raw)
	h.context.release()
}

// ncclError is lastError for libfastnorm_nccl.
func ncclError(status int32) error {
	if status == malformed {
		return lastError(status)
	}
	return &Error{
		Status:      Status(status),
		Message:     raw.Fnb_nccl_last_error(),
		DeviceError: raw.Fnb_nccl_last_device_error(),
	}
}

// addressOf returns where a list lies, and keeps it there; 0 for an empty one.
func addressOf[T any](pinner *runtime.Pinner, list []T) uintptr {
	if len(list) == 0 {
		return 0
	}
	pinner.Pin(&list[0])
	return uintptr(unsafe.Pointer(&list[0]))
}

// NewNCCL makes this rank's handle. Every rank of the communicator does so at the same time, on a
// thread or goroutine of its own, and waits for the others.
func (c *Context) NewNCCL(comm uintptr, options NCCLOptions, stream uintptr) (*NCCL, error) {
	made, err := NewNCCLAll([]NCCLRank{{Context: c, Comm: comm, Stream: stream}}, options)
	if err != nil {
		return nil, err
	}
	return made[0], nil
}

// NewNCCLAll makes the handles of several ranks of this process. It does what as many goroutines
// with [Context.NewNCCL] would.
func NewNCCLAll(ranks []NCCLRank, o NCCLOptions) ([]*NCCL, error) {
	var contexts, comms, streams []uintptr
	var devices []Device
	held := make([]*handle, 0, len(ranks))
	abandon := func(err error) ([]*NCCL, error) {
		for _, h := range held {
			h.release()
		}
		return nil, err
	}
	for i := range ranks {
		h := ranks[i].Context.acquire()
		if h == nil {
			return abandon(ErrClosed)
		}
		held = append(held, h)
		contexts, devices = append(contexts, h.raw), append(devices, h.device)
		comms, streams = append(comms, ranks[i].Comm), append(streams, ranks[i].Stream)
	}
	made := make([]uintptr, len(ranks)+1) // has an address, even if empty
	var pinner runtime.Pinner
	defer pinner.Unpin()
	where := []uintptr{addressOf(&pinner, contexts), addressOf(&pinner, devices),
		addressOf(&pinner, comms), addressOf(&pinner, streams), addressOf(&pinner, made)}
	var flags uint32
	if o.NoPeers {
		flags |= raw.FASTNORM_NCCL_NO_PEERS
	}
	if o.FixedOrder {
		flags |= raw.FASTNORM_NCCL_FIXED_ORDER
	}
	err := checkedBy(ncclError, func() int32 {
		return raw.Fnb_nccl_create_all(where[0], where[1], where[2], uint32(o.DType),
			int32(o.Algorithm), int64(o.MaxColumns), o.OneShotBytes, o.Wait.Nanoseconds(),
			clip(o.Rings), flags, o.PeerBytes, where[3], clip(len(ranks)), where[4])
	})
	if err != nil {
		return abandon(err)
	}
	handles := make([]*NCCL, len(ranks))
	for i := range ranks {
		h := &ncclHandle{raw: made[i], context: held[i]}
		handles[i] = &NCCL{h: h, context: ranks[i].Context}
		handles[i].cleanup = runtime.AddCleanup(handles[i],
			func(h *ncclHandle) { h.close(h.end) }, h)
	}
	return handles, nil
}

// Close ends the handle: later calls return [ErrNCCLClosed]. A call that is running finishes first,
// without Close waiting for it. The communicator stays. On a GPU no stream may have calls of the
// handle left. Closing twice is fine. It returns nil.
func (n *NCCL) Close() error {
	if n != nil && n.h != nil {
		n.cleanup.Stop()
		n.h.close(n.h.end)
	}
	return nil
}

// Context returns the context that the handle was made for.
func (n *NCCL) Context() *Context { return n.context }

// Device returns the device of the context.
func (n *NCCL) Device() Device {
	if n == nil || n.h == nil {
		return CPU
	}
	return n.h.context.device
}

// enter gives the library no handle for an NCCL that was not made: it has the error for it.
func (n *NCCL) enter() (uintptr, error) {
	if n == nil || n.h == nil {
		return 0, nil
	}
	if !n.h.acquire() {
		n.h.release(n.h.end)
		return 0, ErrNCCLClosed
	}
	return n.h.raw, nil
}

func (n *NCCL) leave() {
	if n != nil && n.h != nil {
		n.h.release(n.h.end)
	}
}

// Peer returns the handle's own peer, for [Peer.State], [Peer.Reset] and the calls of a [Peer]; nil
// where the ranks are no peers. The handle is not destroyed before each such peer is closed too.
func (n *NCCL) Peer() (*Peer, error) {
	handle, err := n.enter()
	if err != nil {
		return nil, err
	}
	peer := make([]uintptr, 1)
	var pinner runtime.Pinner
	defer pinner.Unpin()
	at := addressOf(&pinner, peer)
	err = checkedBy(ncclError, func() int32 { return raw.Fnb_nccl_peer(handle, at) })
	if err != nil || peer[0] == 0 {
		n.leave()
		return nil, err
	}
	return newPeer(n.context, &peerHandle{raw: peer[0], context: n.h.context, owner: n.h}), nil
}

// NCCLSequenceNorm describes sequence parallel: each rank normalises its tokens of all tokens.
type NCCLSequenceNorm struct {
	// The norm, all tensors compact. X is [tokens, n], this rank's part of all tokens' sums; tokens is
	// a multiple of the ranks. Residual, ResidualOut, Mean and Rstd are of this rank's tokens alone.
	// Y, codes and their scales are of all tokens. No amax, no swizzled scales.
	Norm   Norm
	Gather bool // Y, codes and scales of all ranks are gathered; else this rank's tokens alone
}

var ncclAllreduceNorm = &family{
	tensors: peerAllreduceNormTensors,
	failure: ncclError,
	run: func(handle uintptr, q *call) int32 {
		return raw.Fnb_nccl_allreduce_norm(handle, q.list(), uintptr(q.used), q.workspace,
			q.workspaceBytes, q.stream)
	},
	prepare: func(handle uintptr, q *call) int32 {
		return raw.Fnb_nccl_allreduce_norm_prepare(handle, q.list(), uintptr(q.used))
	},
	query: func(handle uintptr, q *call, info raw.Fastnorm_info) int32 {
		return raw.Fnb_nccl_allreduce_norm_query(handle, q.list(), uintptr(q.used), info)
	},
}

var ncclSequenceNorm = &family{
	tensors: normTensors,
	failure: ncclError,
	run: func(handle uintptr, q *call) int32 {
		return raw.Fnb_nccl_sequence_norm(handle, q.gather, q.list(), uintptr(q.used), q.workspace,
			q.workspaceBytes, q.stream)
	},
	prepare: func(handle uintptr, q *call) int32 {
		return raw.Fnb_nccl_sequence_norm_prepare(handle, q.gather, q.list(), uintptr(q.used))
	},
	query: func(handle uintptr, q *call, info raw.Fastnorm_info) int32 {
		return raw.Fnb_nccl_sequence_norm_query(handle, q.gather, q.list(), uintptr(q.used), info)
	},
}

func (s *NCCLSequenceNorm) call() *call {
	q := s.Norm.call()
	q.gather = int32(bit(s.Gather))
	return q
}

// AllreduceNorm adds up the ranks' X and normalises, together with all other ranks. Where it goes
// by NCCL, X is compact and its sum is rounded. On a GPU it takes a [Stream] and a [Workspace].
func (n *NCCL) AllreduceNorm(norm PeerAllreduceNorm, options ...CallOption) error {
	q := norm.call(0)
	q.apply(options)
	err := q.run(n, ncclAllreduceNorm)
	q.free()
	return err
}

// AllreduceNormQuery says what the call would do. Launches of NCCL do not count. Memory is not
// touched, no rank is waited for.
func (n *NCCL) AllreduceNormQuery(norm PeerAllreduceNorm) (Info, error) {
	q := norm.call(0)
	defer q.free()
	return q.query(n, ncclAllreduceNorm)
}

// AllreduceNormPrepare loads what the call needs of the library's kernels. On GPUs: before a call
// is captured in a graph.
func (n *NCCL) AllreduceNormPrepare(norm PeerAllreduceNorm) error {
	q := norm.call(0)
	defer q.free()
	return q.prepare(n, ncclAllreduceNorm)
}

// SequenceNorm adds up each rank's tokens of X, normalises them, and gathers the results. All ranks
// call it.
func (n *NCCL) SequenceNorm(norm NCCLSequenceNorm, options ...CallOption) error {
	q := norm.call()
	q.apply(options)
	err := q.run(n, ncclSequenceNorm)
	q.free()
	return err
}

// SequenceNormQuery is [NCCL.AllreduceNormQuery] for an NCCLSequenceNorm.
func (n *NCCL) SequenceNormQuery(norm NCCLSequenceNorm) (Info, error) {
	q := norm.call()
	defer q.free()
	return q.query(n, ncclSequenceNorm)
}

// SequenceNormPrepare is [NCCL.AllreduceNormPrepare] for an NCCLSequenceNorm.
func (n *NCCL) SequenceNormPrepare(norm NCCLSequenceNorm) error {
	q := norm.call()
	defer q.free()
	return q.prepare(n, ncclSequenceNorm)
}

// NCCLCall is the call of one of several ranks of this process.
type NCCLCall[T PeerAllreduceNorm | NCCLSequenceNorm] struct {
	Handle    *NCCL
	Norm      T
	Stream    uintptr // a cudaStream_t; 0 = the default stream
	Workspace uintptr // as of [Workspace]
}

// NCCLAllreduceNormAll makes the calls of several ranks from one goroutine: all are checked, then
// NCCL starts their sums together, then their norms follow. Each Workspace has that many bytes; CPU
// contexts that are given none take them from Go.
func NCCLAllreduceNormAll(calls []NCCLCall[PeerAllreduceNorm], workspaceBytes uintptr) error {
	q := newCall(len(calls), raw.PeerAllreduceNormMaxWords)
	defer q.free()
	all := newTogether(q, len(calls))
	for i := range calls {
		c := &calls[i]
		c.Norm.encode(q, i, 0)
		all.add(c.Handle, c.Stream, c.Workspace, false)
	}
	all.query = func(i int) (Info, error) { return calls[i].Handle.AllreduceNormQuery(calls[i].Norm) }
	return all.run(ncclAllreduceNorms, workspaceBytes)
}

// NCCLSequenceNormAll is [NCCLAllreduceNormAll] for sequence parallel. All have one Gather.
func NCCLSequenceNormAll(calls []NCCLCall[NCCLSequenceNorm], workspaceBytes uintptr) error {
	q := newCall(len(calls), raw.NormMaxWords)
	defer q.free()
	all := newTogether(q, len(calls))
	for i := range calls {
		c := &calls[i]
		c.Norm.Norm.encode(q, i)
		all.add(c.Handle, c.Stream, c.Workspace, c.Norm.Gather)
	}
	all.query = func(i int) (Info, error) { return calls[i].Handle.SequenceNormQuery(calls[i].Norm) }
	return all.run(ncclSequenceNorms, workspaceBytes)
}

// together is the calls of several ranks: one call with a description of each.
type together struct {
	q       *call
	ranks   []*NCCL
	handles []uintptr
	streams []uintptr
	spaces  []uintptr
	gathers []int32
	query   func(rank int) (Info, error)
}

func newTogether(q *call, count int) *together {
	return &together{q: q, ranks: make([]*NCCL, 0, count)}
}

func (t *together) add(n *NCCL, stream, workspace uintptr, gather bool) {
	t.ranks = append(t.ranks, n)
	t.streams, t.spaces = append(t.streams, stream), append(t.spaces, workspace)
	t.gathers = append(t.gathers, int32(bit(gather)))
}

// lists are the addresses that a call of several ranks takes.
type lists struct {
	handles, gathers, streams, spaces uintptr
	count                             int32
}

// several is what the library has for the calls of several ranks.
type several struct {
	tensors []string
	run     func(l *lists, q *call) int32
}

var ncclAllreduceNorms = &several{
	run: func(l *lists, q *call) int32 {
		return raw.Fnb_nccl_allreduce_norm_all(l.handles, q.list(), uintptr(q.used), l.spaces,
			q.workspaceBytes, l.streams, l.count)
	},
}

var ncclSequenceNorms = &several{
	tensors: normTensors,
	run: func(l *lists, q *call) int32 {
		return raw.Fnb_nccl_sequence_norm_all(l.handles, l.gathers, q.list(), uintptr(q.used), l.spaces,
			q.workspaceBytes, l.streams, l.count)
	},
}

// run makes the calls, while no handle can be destroyed.
func (t *together) run(f *several, workspaceBytes uintptr) error {
	for i, n := range t.ranks {
		address, err := n.enter()
		if err != nil {
			return err
		}
		defer t.ranks[i].leave()
		t.handles = append(t.handles, address)
	}
	if fault := t.q.fault; fault != nil {
		names := family{list: "args", tensors: f.tensors}
		return fault.tensor.refusal(names.name(fault))
	}
	t.q.workspaceBytes = workspaceBytes
	var pinner runtime.Pinner
	defer pinner.Unpin()
	if workspaceBytes == 0 {
		if err := t.takeHostWorkspaces(&pinner); err != nil {
			return err
		}
	}
	l := &lists{
		handles: addressOf(&pinner, t.handles), gathers: addressOf(&pinner, t.gathers),
		streams: addressOf(&pinner, t.streams), spaces: addressOf(&pinner, t.spaces),
		count: clip(len(t.ranks)),
	}
	return checkedBy(ncclError, func() int32 { return f.run(l, t.q) })
}

// takeHostWorkspaces gives the ranks of CPUs what they need. The error of a query names the rank,
// as that of the library does.
func (t *together) takeHostWorkspaces(pinner *runtime.Pinner) error {
	var most uint64
	for i, n := range t.ranks {
		if n.Device().Type() != DeviceCPU {
			return nil
		}
		info, err := t.query(i)
		if e, is := err.(*Error); is && len(t.ranks) > 1 {
			named := *e
			named.Message = fmt.Sprintf("args[%d]: %s", i, e.Message)
			return &named
		}
		if err != nil {
			return err
		}
		most = max(most, info.WorkspaceBytes)
	}
	if most > math.MaxInt/2 {
		return &Error{Status: StatusOutOfMemory,
			Message: fmt.Sprintf("%d bytes of workspace are needed", most)}
	}
	for i := range t.ranks {
		memory := make([]byte, most+workspaceAlignment)
		t.spaces[i] = (addressOf(pinner, memory) + workspaceAlignment - 1) &^ (workspaceAlignment - 1)
	}
	t.q.workspaceBytes = uintptr(most)
	return nil
}
