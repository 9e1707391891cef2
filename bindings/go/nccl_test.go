package fastnorm_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"unsafe"

	fastnorm "github.com/libfastnorm/libfastnorm/bindings/go"
	"github.com/libfastnorm/libfastnorm/bindings/go/internal/fakenccl"
)

var pretend = sync.OnceValue(func() error { return fakenccl.Open(os.Getenv("FASTNORM_TEST_NCCL")) })

// fakeNCCL gives the functions of a library that pretends to be NCCL.
func fakeNCCL(t testing.TB) {
	t.Helper()
	if os.Getenv("FASTNORM_TEST_NCCL") == "" {
		t.Skip("FASTNORM_TEST_NCCL names no library that pretends to be NCCL")
	}
	if err := pretend(); err != nil {
		t.Fatal(err)
	}
	check(t, fastnorm.SetNCCLFunctions(functionsOfNCCL()))
}

func functionsOfNCCL() *fastnorm.NCCLFunctions {
	return &fastnorm.NCCLFunctions{
		GetVersion: fakenccl.Find("ncclGetVersion"), CommCount: fakenccl.Find("ncclCommCount"),
		CommUserRank: fakenccl.Find("ncclCommUserRank"), CommCuDevice: fakenccl.Find("ncclCommCuDevice"),
		AllReduce: fakenccl.Find("ncclAllReduce"), ReduceScatter: fakenccl.Find("ncclReduceScatter"),
		AllGather: fakenccl.Find("ncclAllGather"), GroupStart: fakenccl.Find("ncclGroupStart"),
		GroupEnd: fakenccl.Find("ncclGroupEnd"), GetErrorString: fakenccl.Find("ncclGetErrorString"),
	}
}

var ncclOptions = fastnorm.NCCLOptions{DType: fastnorm.F32, MaxColumns: peerColumns}

// ncclComms makes communicators, which end with the test.
func ncclComms(t *testing.T, ranks int) []uintptr {
	t.Helper()
	fakeNCCL(t)
	comms := fakenccl.Create(ranks)
	t.Cleanup(func() { fakenccl.Destroy(comms) })
	return comms
}

// onRanks runs a function for all ranks, each on a goroutine.
func onRanks(ranks int, run func(rank int) error) []error {
	errs := make([]error, ranks)
	var group sync.WaitGroup
	for rank := range ranks {
		group.Add(1)
		go func() {
			defer group.Done()
			errs[rank] = run(rank)
		}()
	}
	group.Wait()
	return errs
}

// ncclGroup makes handles, which are closed at the test's end: together, or a goroutine each.
func ncclGroup(t *testing.T, c *fastnorm.Context, comms []uintptr, o fastnorm.NCCLOptions,
	together bool) []*fastnorm.NCCL {
	t.Helper()
	handles := make([]*fastnorm.NCCL, len(comms))
	if together {
		ranks := make([]fastnorm.NCCLRank, len(comms))
		for i, comm := range comms {
			ranks[i] = fastnorm.NCCLRank{Context: c, Comm: comm}
		}
		made, err := fastnorm.NewNCCLAll(ranks, o)
		check(t, err)
		handles = made
	} else {
		for rank, err := range onRanks(len(comms), func(rank int) (err error) {
			handles[rank], err = c.NewNCCL(comms[rank], o, 0)
			return err
		}) {
			if err != nil {
				t.Fatalf("rank %d: %v", rank, err)
			}
		}
	}
	for _, n := range handles {
		t.Cleanup(func() { n.Close() })
		equal(t, "the context", n.Context(), c)
		equal(t, "the device", n.Device(), fastnorm.CPU)
	}
	return handles
}

func peerTensor(values []float32) fastnorm.Tensor {
	return fastnorm.Of(values, len(values)/peerColumns, peerColumns)
}

// TestNCCLAllreduceIsASumAndOneNorm compares bits of calls by peers, by NCCL, and from one
// goroutine: sums of whole numbers are exact.
func TestNCCLAllreduceIsASumAndOneNorm(t *testing.T) {
	c := cpu(t)
	weight, residual := peerPart(7)[:peerColumns], peerPart(5)
	for _, way := range []struct {
		name              string
		ranks, allReduces int
		change            func(o *fastnorm.NCCLOptions)
		together          bool
	}{
		{"peers", 2, 0, func(o *fastnorm.NCCLOptions) { o.FixedOrder, o.Rings = true, 2 }, false},
		{"too many bytes for peers", 3, 1, func(o *fastnorm.NCCLOptions) { o.PeerBytes = 64 }, false},
		{"NCCL", 3, 1, func(o *fastnorm.NCCLOptions) { o.NoPeers = true }, false},
		{"one goroutine", 2, 1, func(o *fastnorm.NCCLOptions) { o.NoPeers = true }, true},
	} {
		t.Run(way.name, func(t *testing.T) {
			comms, o := ncclComms(t, way.ranks), ncclOptions
			way.change(&o)
			handles := ncclGroup(t, c, comms, o, way.together)
			sum := peerSum(way.ranks)
			wanted, wantedSum := make([]float32, len(sum)), slices.Clone(sum)
			check(t, c.Norm(fastnorm.Norm{
				Eps: 1e-3, WeightOffset: 1, X: peerTensor(wantedSum), Residual: peerTensor(residual),
				ResidualOut: peerTensor(wantedSum), Weight: fastnorm.Of(weight, peerColumns),
				Y: peerTensor(wanted),
			}))
			y, h := make([][]float32, way.ranks), make([][]float32, way.ranks)
			calls := make([]fastnorm.NCCLCall[fastnorm.PeerAllreduceNorm], way.ranks)
			for rank := range calls {
				y[rank], h[rank] = make([]float32, len(sum)), make([]float32, len(sum))
				calls[rank] = fastnorm.NCCLCall[fastnorm.PeerAllreduceNorm]{
					Handle: handles[rank],
					Norm: fastnorm.PeerAllreduceNorm{Norm: fastnorm.Norm{
						Eps: 1e-3, WeightOffset: 1, X: peerTensor(peerPart(rank)),
						Residual: peerTensor(residual), ResidualOut: peerTensor(h[rank]),
						Weight: fastnorm.Of(weight, peerColumns), Y: peerTensor(y[rank]),
					}},
				}
				info, err := handles[rank].AllreduceNormQuery(calls[rank].Norm)
				check(t, err)
				if info.WorkspaceBytes < 4*peerRows*peerColumns || info.Kernel == "" {
					t.Errorf("%+v", info)
				}
				check(t, handles[rank].AllreduceNormPrepare(calls[rank].Norm))
			}
			if way.together {
				check(t, fastnorm.NCCLAllreduceNormAll(calls, 0))
			} else {
				for _, err := range onRanks(way.ranks, func(rank int) error {
					return handles[rank].AllreduceNorm(calls[rank].Norm)
				}) {
					check(t, err)
				}
			}
			for rank := range calls {
				if !slices.Equal(y[rank], wanted) || !slices.Equal(h[rank], wantedSum) {
					t.Errorf("rank %d has other bits", rank)
				}
				equal(t, "calls of ncclAllReduce", fakenccl.Calls(comms[rank], fakenccl.AllReduce),
					way.allReduces)
			}
		})
	}
}

func TestNCCLSequenceNorm(t *testing.T) {
	c := cpu(t)
	const ranks, tokens = 2, 6
	part := func(rank int) []float32 {
		return append(peerPart(rank), peerPart(rank+3)...)[:tokens*peerColumns]
	}
	sum, residual := make([]float32, tokens*peerColumns), part(9)
	for rank := range ranks {
		for i, v := range part(rank) {
			sum[i] += v
		}
	}
	wanted, wantedSum := make([]float32, len(sum)), make([]float32, len(sum))
	check(t, c.Norm(fastnorm.Norm{
		Eps: 1e-3, X: peerTensor(sum), Residual: peerTensor(residual),
		ResidualOut: peerTensor(wantedSum), Y: peerTensor(wanted),
	}))
	for _, way := range []struct{ gather, together bool }{
		{true, false}, {false, false}, {true, true}, {false, true},
	} {
		comms := ncclComms(t, ranks)
		handles := ncclGroup(t, c, comms, ncclOptions, way.together)
		y, h := make([][]float32, ranks), make([][]float32, ranks)
		calls := make([]fastnorm.NCCLCall[fastnorm.NCCLSequenceNorm], ranks)
		const own = tokens / ranks * peerColumns
		for rank := range calls {
			y[rank], h[rank] = make([]float32, len(sum)), make([]float32, own)
			calls[rank] = fastnorm.NCCLCall[fastnorm.NCCLSequenceNorm]{
				Handle: handles[rank],
				Norm: fastnorm.NCCLSequenceNorm{Gather: way.gather, Norm: fastnorm.Norm{
					Eps: 1e-3, X: peerTensor(part(rank)), Y: peerTensor(y[rank]),
					Residual:    peerTensor(residual[rank*own : (rank+1)*own]),
					ResidualOut: peerTensor(h[rank]),
				}},
			}
			info, err := handles[rank].SequenceNormQuery(calls[rank].Norm)
			check(t, err)
			if info.WorkspaceBytes < 4*own {
				t.Errorf("%+v", info)
			}
			check(t, handles[rank].SequenceNormPrepare(calls[rank].Norm))
		}
		if way.together {
			check(t, fastnorm.NCCLSequenceNormAll(calls, 0))
		} else {
			for _, err := range onRanks(ranks, func(rank int) error {
				return handles[rank].SequenceNorm(calls[rank].Norm)
			}) {
				check(t, err)
			}
		}
		for rank := range calls {
			mine := slices.Clone(wanted)
			for i := range mine {
				if !way.gather && i/own != rank { // tokens of other ranks
					mine[i] = 0
				}
			}
			if !slices.Equal(y[rank], mine) || !slices.Equal(h[rank], wantedSum[rank*own:(rank+1)*own]) {
				t.Errorf("%+v: rank %d has other bits", way, rank)
			}
			equal(t, "calls of ncclReduceScatter",
				fakenccl.Calls(comms[rank], fakenccl.ReduceScatter), 1)
		}
	}
}

func TestNCCLPeer(t *testing.T) {
	c := cpu(t)
	handles := ncclGroup(t, c, ncclComms(t, 2), ncclOptions, false)
	for _, err := range onRanks(2, func(rank int) error {
		p, err := handles[rank].Peer()
		if err != nil {
			return err
		}
		x := peerPart(rank)
		if err := p.AllreduceNormPrepare(fastnorm.PeerAllreduceNorm{Norm: fastnorm.Norm{
			X: peerTensor(x), Y: peerTensor(x),
		}}); err != nil {
			return err
		}
		return p.AllreduceNorm(fastnorm.PeerAllreduceNorm{
			Norm: fastnorm.Norm{X: peerTensor(x), Y: peerTensor(x)}})
	}) {
		check(t, err)
	}
	p, err := handles[0].Peer()
	check(t, err)
	equal(t, "the context", p.Context(), c)
	state, err := p.State()
	check(t, err)
	equal(t, "the state", state, fastnorm.PeerState{Rank: -1, Calls: 1, Connected: true})
	check(t, handles[0].Close())
	check(t, p.Reset()) // the peer keeps the handle
	for range 2 {
		check(t, p.Close())
	}
	wantError(t, p.Reset(), fastnorm.ErrPeerClosed, "peer is closed")
	_, err = handles[0].Peer()
	wantError(t, err, fastnorm.ErrNCCLClosed, "NCCL handle is closed")

	apart := ncclOptions
	apart.NoPeers = true
	handles = ncclGroup(t, c, ncclComms(t, 2), apart, true)
	p, err = handles[1].Peer()
	check(t, err)
	if p != nil {
		t.Error("a peer where there are none")
	}
}

func TestNCCLRefused(t *testing.T) {
	c := cpu(t)
	comms := ncclComms(t, 2)
	version, err := fastnorm.NCCLVersion()
	check(t, err)
	equal(t, "the version", version, 22809)
	for text, change := range map[string]func(o *fastnorm.NCCLOptions){
		"options.max_columns is 0; required: 1 to 65536": func(o *fastnorm.NCCLOptions) {
			o.MaxColumns = 0
		},
		"options.peer_bytes is -1; required: >= 0": func(o *fastnorm.NCCLOptions) { o.PeerBytes = -1 },
		"options.rings is 257":                     func(o *fastnorm.NCCLOptions) { o.Rings = 257 },
		"options.algorithm is 7":                   func(o *fastnorm.NCCLOptions) { o.Algorithm = 7 },
		"options.wait_ns is 1;":                    func(o *fastnorm.NCCLOptions) { o.Wait = 1 },
		"options.one_shot_bytes is -1;":            func(o *fastnorm.NCCLOptions) { o.OneShotBytes = -1 },
	} {
		o := ncclOptions
		change(&o)
		_, err := fastnorm.NewNCCLAll([]fastnorm.NCCLRank{
			{Context: c, Comm: comms[0]}, {Context: c, Comm: comms[1]},
		}, o)
		wantError(t, err, fastnorm.ErrArgument, text)
	}
	o := ncclOptions
	o.DType = fastnorm.I8
	_, err = c.NewNCCL(comms[0], o, 0)
	wantError(t, err, fastnorm.ErrDType, "options.dtype is 0x")
	_, err = c.NewNCCL(0, ncclOptions, 0)
	wantError(t, err, fastnorm.ErrArgument, "comm is NULL; required: an ncclComm_t")
	_, err = (*fastnorm.Context)(nil).NewNCCL(comms[0], ncclOptions, 0)
	wantError(t, err, fastnorm.ErrArgument, "context is NULL")
	_, err = fastnorm.NewNCCLAll(nil, ncclOptions)
	wantError(t, err, fastnorm.ErrArgument, "count is 0; required: >= 1")
	o = ncclOptions
	o.NoPeers, o.FixedOrder = true, true
	_, err = fastnorm.NewNCCLAll([]fastnorm.NCCLRank{
		{Context: c, Comm: comms[0]}, {Context: c, Comm: comms[1]},
	}, o)
	wantError(t, err, fastnorm.ErrUnsupported, "FASTNORM_NCCL_FIXED_ORDER")

	o = ncclOptions
	o.NoPeers = true
	handles := ncclGroup(t, c, comms, o, true)
	x, y := peerTensor(peerPart(0)), peerTensor(make([]float32, peerRows*peerColumns))
	good := fastnorm.PeerAllreduceNorm{Norm: fastnorm.Norm{X: x, Y: y}}
	exact, negative, short := good, good, good
	exact.SumRounding = fastnorm.PeerSumExact
	negative.Norm.Eps = -1
	short.Norm.Y = fastnorm.Of(make([]float32, 3), peerRows, peerColumns)
	n := handles[0]
	wantError(t, n.AllreduceNorm(exact), fastnorm.ErrUnsupported, "sum_rounding is 1")
	wantError(t, n.AllreduceNorm(negative), fastnorm.ErrArgument, "norm.eps is -1")
	wantError(t, n.AllreduceNorm(short), fastnorm.ErrShape, "norm.y's slice has 12 bytes")
	wantError(t, n.AllreduceNorm(fastnorm.PeerAllreduceNorm{}), fastnorm.ErrArgument, "norm.x is NULL")
	wantError(t, n.AllreduceNorm(good, fastnorm.Workspace(256, 1)), fastnorm.ErrArgument,
		"workspace_bytes is 1; required: at least")
	wantError(t, (*fastnorm.NCCL)(nil).AllreduceNorm(good), fastnorm.ErrArgument, "handle is NULL")
	check(t, (*fastnorm.NCCL)(nil).Close())
	odd := fastnorm.NCCLSequenceNorm{Norm: fastnorm.Norm{X: x, Y: y}} // 5 tokens of 2 ranks
	wantError(t, n.SequenceNorm(odd), fastnorm.ErrShape, "a multiple of the 2 ranks")
	calls := []fastnorm.NCCLCall[fastnorm.PeerAllreduceNorm]{
		{Handle: handles[0], Norm: good}, {Handle: handles[1], Norm: negative},
	}
	wantError(t, fastnorm.NCCLAllreduceNormAll(calls, 0), fastnorm.ErrArgument,
		"args[1]: norm.eps is -1")
	calls[1].Norm = short
	wantError(t, fastnorm.NCCLAllreduceNormAll(calls, 0), fastnorm.ErrShape, "args[1].norm.y's slice")
	calls[1].Handle = nil
	calls[1].Norm = good
	wantError(t, fastnorm.NCCLAllreduceNormAll(calls, 0), fastnorm.ErrArgument,
		"args[1]: handle is NULL")
	wantError(t, fastnorm.NCCLAllreduceNormAll(nil, 0), fastnorm.ErrArgument, "count is 0")
	sequences := []fastnorm.NCCLCall[fastnorm.NCCLSequenceNorm]{
		{Handle: handles[0], Norm: odd}, {Handle: handles[1], Norm: odd},
	}
	wantError(t, fastnorm.NCCLSequenceNormAll(sequences, 0), fastnorm.ErrShape, "args[0]: x has")
	for rank := range comms {
		equal(t, "sums of calls that are refused",
			fakenccl.Calls(comms[rank], fakenccl.AllReduce), 0)
	}
	fakenccl.Fail(comms[0], fakenccl.AllReduce) // it never meets the other rank
	err = n.AllreduceNorm(good)
	wantError(t, err, fastnorm.ErrDevice, "ncclAllReduce: invalid argument (4)")
	if e := new(fastnorm.Error); !errors.As(err, &e) || e.DeviceError != 0 {
		t.Errorf("%#v", err)
	}

	functions := functionsOfNCCL()
	functions.AllGather = 0
	wantError(t, fastnorm.SetNCCLFunctions(functions), fastnorm.ErrArgument,
		"functions.all_gather is NULL")
	wantError(t, fastnorm.LoadNCCL("a\x00b"), fastnorm.ErrArgument,
		`path is "a\x00b"; required: a path without a zero byte`)
	check(t, fastnorm.SetNCCLFunctions(nil)) // NCCL itself does not serve the memory of a CPU
	_, err = c.NewNCCL(comms[0], ncclOptions, 0)
	wantError(t, err, fastnorm.ErrUnsupported, "NCCL is for CUDA (2)")
}

// A handle keeps its context until it is closed itself.
func TestNCCLAndContextsClose(t *testing.T) {
	c, err := fastnorm.Open(fastnorm.CPU)
	check(t, err)
	n := ncclGroup(t, c, ncclComms(t, 1), ncclOptions, false)[0]
	check(t, c.Close())
	x := peerPart(0)
	call := fastnorm.PeerAllreduceNorm{
		Norm: fastnorm.Norm{X: peerTensor(x), Y: peerTensor(x)}}
	check(t, n.AllreduceNorm(call))
	_, err = c.NewNCCL(1, ncclOptions, 0)
	wantError(t, err, fastnorm.ErrClosed, "closed")
	for range 2 {
		check(t, n.Close())
	}
	_, err = n.SequenceNormQuery(fastnorm.NCCLSequenceNorm{})
	for _, err := range []error{
		err, n.AllreduceNorm(call), n.AllreduceNormPrepare(call),
		n.SequenceNorm(fastnorm.NCCLSequenceNorm{}),
		fastnorm.NCCLAllreduceNormAll([]fastnorm.NCCLCall[fastnorm.PeerAllreduceNorm]{{Handle: n}}, 0),
	} {
		wantError(t, err, fastnorm.ErrNCCLClosed, "NCCL handle is closed")
	}
}

func TestNCCLAllocations(t *testing.T) {
	if underRace {
		t.Skip("the race detector empties pools")
	}
	c := cpu(t)
	n := ncclGroup(t, c, ncclComms(t, 1), ncclOptions, false)[0]
	x, y := make([]float32, 16), make([]float32, 16)
	space := make([]uint64, 64)
	defer runtime.KeepAlive(space)
	workspace := fastnorm.Workspace((uintptr(unsafe.Pointer(&space[0]))+255)&^255, 256)
	for what, call := range map[string]func() error{
		"all-reduce": func() error {
			return n.AllreduceNorm(fastnorm.PeerAllreduceNorm{Norm: fastnorm.Norm{
				X: fastnorm.Of(x, 4, 4), Y: fastnorm.Of(y, 4, 4),
			}}, workspace)
		},
		"sequence parallel": func() error {
			return n.SequenceNorm(fastnorm.NCCLSequenceNorm{Norm: fastnorm.Norm{
				X: fastnorm.Of(x, 4, 4), Y: fastnorm.Of(y, 4, 4),
			}}, workspace)
		},
	} {
		if found := testing.AllocsPerRun(1000, func() { check(t, call()) }); found >= 1 {
			t.Errorf("%s: %v allocations a call", what, found)
		}
	}
}

// Run by test.py, in a process without the library. Each failure is the next call's, too.
func TestNCCLMissing(t *testing.T) {
	folder := os.Getenv("NCCL_STUBS")
	if folder == "" {
		t.Skip("not asked for: test.py sets NCCL_STUBS")
	}
	for range 2 {
		_, err := cpu(t).NewNCCL(1, ncclOptions, 0)
		wantError(t, err, fastnorm.ErrUnsupported, "libfastnorm_nccl.so.1 cannot be loaded: ")
		_, err = fastnorm.NCCLVersion()
		wantError(t, err, fastnorm.ErrUnsupported, "-Dnccl=true")
		wantError(t, fastnorm.SetNCCLFunctions(nil), fastnorm.ErrUnsupported, "cannot be loaded")
	}
	wantError(t, fastnorm.LoadNCCL(filepath.Join(folder, "nothing.so")), fastnorm.ErrUnsupported,
		"nothing.so cannot be loaded: ")
	wantError(t, fastnorm.LoadNCCL(filepath.Join(folder, "part.so")), fastnorm.ErrUnsupported,
		"part.so has no fastnorm_nccl_last_error; required: that of libfastnorm")
	wantError(t, fastnorm.LoadNCCL(filepath.Join(folder, "other.so")), fastnorm.ErrUnsupported,
		"other.so uses another copy of libfastnorm than this program")
	check(t, fastnorm.LoadNCCL(os.Getenv("FASTNORM_TEST_NCCL_LIBRARY")))
	check(t, fastnorm.LoadNCCL(filepath.Join(folder, "nothing.so"))) // it is loaded
	fakeNCCL(t)
	_, err := fastnorm.NCCLVersion()
	check(t, err)
}
