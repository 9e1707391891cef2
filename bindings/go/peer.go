package fastnorm

import (
	"runtime"
	"time"
	"unsafe"

	"github.com/libfastnorm/libfastnorm/bindings/go/internal/raw"
)

// PeerMaxRanks is the greatest number of ends of a group.
const PeerMaxRanks = raw.FASTNORM_PEER_MAX_RANKS

// PeerBlobBytes is the size of what [Peer.Export] returns.
const PeerBlobBytes = raw.FASTNORM_PEER_BLOB_BYTES

// PeerOptions are how a peer is made. All but Rank and Wait must be the same on all ranks.
type PeerOptions struct {
	Rank         int           // this end's number, from 0
	Ranks        int           // ends of the group, 2 to 8
	DType        DType         // of X of a [PeerAllreduceNorm]: F32, F16 or BF16
	Algorithm    PeerAlgorithm // default: by size
	MaxColumns   int           // longest row of a [PeerAllreduceNorm], 1 to 65536
	OneShotBytes int64         // the most bytes of rows that go one-shot; 0 = measured defaults
	Wait         time.Duration // the longest wait for another rank; 0 = 10 seconds
	Rings        int           // rows on their way at once, 1 to 256; 0 = 8, on a GPU 128
}

// Peer is one rank's end of a group. CPU ranks are goroutines, each with a peer; GPUs may be
// processes, too. All ranks make the same calls in the same order, and a peer runs one call at a
// time: a second one is refused. A call of a CPU rank waits for the other ranks, with its thread.
//
// Close it when it is no longer needed, before or after its context; one that is forgotten is
// closed by the garbage collector.
type Peer struct {
	h       *peerHandle
	context *Context
	cleanup runtime.Cleanup
}

// peerHandle is the library's peer. It holds its context, or the handle that has it.
type peerHandle struct {
	raw     uintptr
	context *handle
	owner   *ncclHandle
	lifetime
}

func (h *peerHandle) end() {
	if h.owner != nil {
		h.owner.release(h.owner.end)
		return
	}
	raw.Fastnorm_peer_destroy(h.raw)
	h.context.release()
}

func (o *PeerOptions) scalars() (rank, ranks int32, dtype uint32, algorithm int32, columns, oneShot,
	wait int64, rings int32) {
	return clip(o.Rank), clip(o.Ranks), uint32(o.DType), int32(o.Algorithm), int64(o.MaxColumns),
		o.OneShotBytes, o.Wait.Nanoseconds(), clip(o.Rings)
}

// NewPeer makes one rank's end with a buffer of its own. It calls once it has the others' blobs:
// [Peer.Import].
func (c *Context) NewPeer(options PeerOptions) (*Peer, error) { return c.newPeer(options, nil) }

// NewPeerFromPointers makes one rank's end over buffers that all ranks reach: their addresses in
// rank order, as this rank reaches them, each of [Context.PeerBufferBytes] bytes and 256-byte
// aligned. It is connected at once. No rank may call before this has returned on all. The buffers
// are memory of C or of a GPU, used for nothing else, and must outlive every rank's peer.
func (c *Context) NewPeerFromPointers(options PeerOptions, buffers []uintptr) (*Peer, error) {
	if buffers == nil {
		buffers = []uintptr{}
	}
	return c.newPeer(options, buffers)
}

func (c *Context) newPeer(o PeerOptions, buffers []uintptr) (*Peer, error) {
	context := c.acquire()
	if context == nil {
		return nil, ErrClosed
	}
	var made, addresses uintptr // by themselves: C may not get a pointer into memory with pointers
	var pinner runtime.Pinner
	defer pinner.Unpin()
	if buffers != nil {
		list := append(buffers[:len(buffers):len(buffers)], 0) // has an address, even if empty
		pinner.Pin(&list[0])
		addresses = uintptr(unsafe.Pointer(&list[0]))
	}
	rank, ranks, dtype, algorithm, columns, oneShot, wait, rings := o.scalars()
	err := checked(func() int32 {
		return raw.Fnb_peer_create(context.raw, rank, ranks, dtype, algorithm, columns, oneShot, wait,
			rings, addresses, clip(len(buffers)), &made)
	})
	if err != nil {
		context.release()
		return nil, err
	}
	return newPeer(c, &peerHandle{raw: made, context: context}), nil
}

func newPeer(c *Context, h *peerHandle) *Peer {
	p := &Peer{h: h, context: c}
	p.cleanup = runtime.AddCleanup(p, func(h *peerHandle) { h.close(h.end) }, h)
	return p
}

// PeerBufferBytes says how many bytes a rank's buffer needs, for [Context.NewPeerFromPointers].
func (c *Context) PeerBufferBytes(options PeerOptions) (uint64, error) {
	context := c.acquire()
	if context == nil {
		return 0, ErrClosed
	}
	defer context.release()
	var bytes uint64
	rank, ranks, dtype, algorithm, columns, oneShot, wait, rings := options.scalars()
	err := checked(func() int32 {
		return raw.Fnb_peer_buffer_bytes(context.raw, rank, ranks, dtype, algorithm, columns, oneShot,
			wait, rings, &bytes)
	})
	return bytes, err
}

// Close ends the peer: later calls return [ErrPeerClosed]. A call that is running finishes first,
// without Close waiting for it. Other ranks that call on find this one missing. On a GPU no stream
// may have calls of the peer left. Closing twice is fine. It returns nil.
func (p *Peer) Close() error {
	if p != nil && p.h != nil {
		p.cleanup.Stop()
		p.h.close(p.h.end)
	}
	return nil
}

// use runs a function of the library on the peer.
func (p *Peer) use(f func(h *peerHandle) error) error {
	if p == nil || p.h == nil {
		return &Error{Status: StatusArgument, Message: "peer is nil; required: a peer of Context.NewPeer"}
	}
	h := p.h
	if !h.acquire() {
		h.release(h.end)
		return ErrPeerClosed
	}
	defer h.release(h.end)
	return f(h)
}

// Context returns the context that the peer was made for.
func (p *Peer) Context() *Context { return p.context }

// Export returns what other ranks need to reach this one: PeerBlobBytes bytes, which the caller
// brings to all of them. A peer of [Context.NewPeerFromPointers] has no blob.
func (p *Peer) Export() ([]byte, error) {
	blob := make([]byte, PeerBlobBytes)
	err := p.use(func(h *peerHandle) error {
		return withBytes(blob, func(address, size uintptr) int32 {
			return raw.Fastnorm_peer_export(h.raw, address, size)
		})
	})
	if err != nil {
		return nil, err
	}
	return blob, nil
}

// Import connects this rank with all others, once: with the blobs of all ranks, this one's too, one
// after the other in rank order. The error names an option that differs, with both values.
func (p *Peer) Import(blobs []byte) error {
	return p.use(func(h *peerHandle) error {
		return withBytes(blobs, func(address, size uintptr) int32 {
			return raw.Fastnorm_peer_import(h.raw, address, size)
		})
	})
}

// withBytes hands memory to a function of the library.
func withBytes(memory []byte, f func(address, size uintptr) int32) error {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	var address uintptr
	if len(memory) > 0 {
		pinner.Pin(&memory[0])
		address = uintptr(unsafe.Pointer(&memory[0]))
	}
	return checked(func() int32 { return f(address, uintptr(len(memory))) })
}

// State says whether the peer was stopped, and by which rank. It may be called at any time, also
// while a call waits for other ranks.
func (p *Peer) State() (PeerState, error) {
	state := raw.NewFastnorm_peer_state()
	defer raw.DeleteFastnorm_peer_state(state)
	err := p.use(func(h *peerHandle) error {
		return checked(func() int32 { return raw.Fastnorm_peer_status(h.raw, state) })
	})
	if err != nil {
		return PeerState{}, err
	}
	return peerStateOf(state), nil
}

// Reset makes a stopped group usable again. Every rank calls it, after no rank runs a call any more
// and before any rank runs the next one: the caller makes sure, by a barrier before and one after.
func (p *Peer) Reset() error {
	return p.use(func(h *peerHandle) error {
		return checked(func() int32 { return raw.Fastnorm_peer_reset(h.raw) })
	})
}

// with makes a call of the peer, while it cannot be destroyed.
func (p *Peer) with(encode func(peer uintptr) *call, f func(q *call) error) error {
	return p.use(func(h *peerHandle) error {
		q := encode(h.raw)
		defer q.free()
		return f(q)
	})
}

// AllreduceNorm adds up the ranks' X and normalises, together with all other ranks. On the CPU the
// work is done when it returns. On a GPU kernels are queued on the stream; [Peer.State] tells of
// ranks that did not come.
//
// Rank r has a part of each row in the X of the Norm. All ranks get the same bits:
//
//	s = X of rank 0 + X of rank 1 + ..   in rank order, in single precision
//	s = s rounded to the dtype of X      unless SumRounding is PeerSumExact
//
// and then everything that the Norm makes of the row s in place of X.
func (p *Peer) AllreduceNorm(n PeerAllreduceNorm, options ...CallOption) error {
	return p.with(n.call, func(q *call) error {
		q.apply(options)
		return q.run(p.context, callPeerAllreduceNorm)
	})
}

// AllreduceNormQuery says what the call would do. Memory is not touched, no rank is waited for.
func (p *Peer) AllreduceNormQuery(n PeerAllreduceNorm) (info Info, err error) {
	err = p.with(n.call, func(q *call) error {
		info, err = q.query(p.context, callPeerAllreduceNorm)
		return err
	})
	return info, err
}

// AllreduceNormPrepare loads what the call needs. On GPUs: on all ranks before the first call.
func (p *Peer) AllreduceNormPrepare(n PeerAllreduceNorm) error {
	return p.with(n.call, func(q *call) error { return q.prepare(p.context, callPeerAllreduceNorm) })
}

// ShardedNorm normalises rows whose columns are spread over the ranks, as [Peer.AllreduceNorm].
// Each rank has some columns, as many as every other one, and gets Y of them, by the statistic of
// the whole row.
func (p *Peer) ShardedNorm(n PeerShardedNorm, options ...CallOption) error {
	return p.with(n.call, func(q *call) error {
		q.apply(options)
		return q.run(p.context, callPeerShardedNorm)
	})
}

// ShardedNormQuery is [Peer.AllreduceNormQuery] for a PeerShardedNorm.
func (p *Peer) ShardedNormQuery(n PeerShardedNorm) (info Info, err error) {
	err = p.with(n.call, func(q *call) error {
		info, err = q.query(p.context, callPeerShardedNorm)
		return err
	})
	return info, err
}

// ShardedNormPrepare is [Peer.AllreduceNormPrepare] for a PeerShardedNorm.
func (p *Peer) ShardedNormPrepare(n PeerShardedNorm) error {
	return p.with(n.call, func(q *call) error { return q.prepare(p.context, callPeerShardedNorm) })
}
