package fastnorm_test

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	fastnorm "github.com/libfastnorm/libfastnorm/bindings/go"
)

const peerRows, peerColumns = 5, 48

// peerPart is a rank's rows: whole numbers, so that sums are exact in any order.
func peerPart(rank int) []float32 {
	values := make([]float32, peerRows*peerColumns)
	for i := range values {
		values[i] = float32((i*7+rank*13)%9 - 4 + rank)
	}
	return values
}

func peerSum(ranks int) []float32 {
	sum := make([]float32, peerRows*peerColumns)
	for rank := range ranks {
		for i, v := range peerPart(rank) {
			sum[i] += v
		}
	}
	return sum
}

// peerGroup makes connected peers, which are closed at the test's end.
func peerGroup(t *testing.T, c *fastnorm.Context, ranks int,
	o fastnorm.PeerOptions) []*fastnorm.Peer {
	t.Helper()
	peers := make([]*fastnorm.Peer, ranks)
	var blobs []byte
	for rank := range peers {
		o.Rank, o.Ranks, o.DType, o.MaxColumns = rank, ranks, fastnorm.F32, peerColumns
		p, err := c.NewPeer(o)
		check(t, err)
		t.Cleanup(func() { p.Close() })
		peers[rank] = p
		blob, err := p.Export()
		check(t, err)
		equal(t, "bytes of a blob", len(blob), fastnorm.PeerBlobBytes)
		blobs = append(blobs, blob...)
	}
	for _, p := range peers {
		state, err := p.State()
		check(t, err)
		equal(t, "the state", state, fastnorm.PeerState{Rank: -1})
		check(t, p.Import(blobs))
	}
	return peers
}

// onAll runs a function on all ranks, each on a goroutine.
func onAll(peers []*fastnorm.Peer, run func(rank int, p *fastnorm.Peer) error) []error {
	errs := make([]error, len(peers))
	var group sync.WaitGroup
	for rank, p := range peers {
		group.Add(1)
		go func() {
			defer group.Done()
			errs[rank] = run(rank, p)
		}()
	}
	group.Wait()
	return errs
}

func TestPeerAllreduceIsASumAndOneNorm(t *testing.T) {
	c := cpu(t)
	weight, residual := peerPart(7)[:peerColumns], peerPart(5)
	for _, o := range []struct {
		ranks     int
		algorithm fastnorm.PeerAlgorithm
		rounding  fastnorm.PeerSumRounding
	}{
		{2, fastnorm.PeerOneShot, fastnorm.PeerSumRounded},
		{3, fastnorm.PeerTwoShot, fastnorm.PeerSumExact},
	} {
		peers := peerGroup(t, c, o.ranks,
			fastnorm.PeerOptions{Algorithm: o.algorithm, Rings: 2, Wait: 20 * time.Second})
		sum := peerSum(o.ranks)
		wanted, wantedSum := make([]float32, len(sum)), slices.Clone(sum)
		wantedRstd, wantedScale := make([]float32, peerRows), make([]float32, peerRows)
		wantedCodes := make([]byte, len(sum))
		rows := func(values []float32) fastnorm.Tensor {
			return fastnorm.Of(values, peerRows, peerColumns)
		}
		quant := func(codes []byte, scale []float32) *fastnorm.Quant {
			return &fastnorm.Quant{
				Scheme: fastnorm.QuantPerRow,
				Out:    fastnorm.View(codes, fastnorm.F8E4M3FN, peerRows, peerColumns),
				Scale:  fastnorm.Of(scale, peerRows, 1),
			}
		}
		check(t, c.Norm(fastnorm.Norm{
			Eps: 1e-3, WeightOffset: 1, X: rows(sum), Residual: rows(residual),
			Weight: fastnorm.Of(weight, peerColumns), Y: rows(wanted), ResidualOut: rows(wantedSum),
			Rstd: fastnorm.Of(wantedRstd, peerRows, 1), Quant: quant(wantedCodes, wantedScale),
		}))
		for i, err := range onAll(peers, func(rank int, p *fastnorm.Peer) error {
			y, h := make([]float32, len(sum)), slices.Clone(residual)
			rstd, scale := make([]float32, peerRows), make([]float32, peerRows)
			codes := make([]byte, len(sum))
			n := fastnorm.PeerAllreduceNorm{
				SumRounding: o.rounding, Norm: fastnorm.Norm{Eps: 1e-3, WeightOffset: 1,
					Flags: fastnorm.NormPDLWait | fastnorm.NormPDLTrigger,
					X:     rows(peerPart(rank)), Residual: rows(h), ResidualOut: rows(h),
					Weight: fastnorm.Of(weight, peerColumns), Y: rows(y),
					Rstd: fastnorm.Of(rstd, peerRows, 1), Quant: quant(codes, scale)},
			}
			info, err := p.AllreduceNormQuery(n)
			if err != nil || info.WorkspaceBytes < uint64(4*len(sum)) {
				return fmt.Errorf("%d bytes of workspace: %w", info.WorkspaceBytes, err)
			}
			if err := errors.Join(p.AllreduceNormPrepare(n), p.AllreduceNorm(n)); err != nil {
				return err
			}
			if !slices.Equal(y, wanted) || !slices.Equal(h, wantedSum) ||
				!slices.Equal(rstd, wantedRstd) || !slices.Equal(codes, wantedCodes) ||
				!slices.Equal(scale, wantedScale) {
				return errors.New("the results are not those of one norm")
			}
			return nil
		}) {
			if err != nil {
				t.Errorf("rank %d of %d: %v", i, o.ranks, err)
			}
		}
		state, err := peers[0].State()
		check(t, err)
		equal(t, "the state", state, fastnorm.PeerState{Rank: -1, Calls: 1, Connected: true})
	}
}

func TestPeerShardedNorm(t *testing.T) {
	c := cpu(t)
	const ranks, eps = 3, 0.5
	peers := peerGroup(t, c, ranks, fastnorm.PeerOptions{})
	// The whole row's reciprocal roots, of rows and of keys.
	root := func(row int, part func(rank int) []float32) float64 {
		squares := 0.0
		for rank := range ranks {
			for _, v := range part(rank)[row*peerColumns : (row+1)*peerColumns] {
				squares += float64(v) * float64(v)
			}
		}
		return 1 / math.Sqrt(squares/(ranks*peerColumns)+eps)
	}
	keys := func(rank int) []float32 { return peerPart(rank + 20) }
	weight := peerPart(3)[:peerColumns]
	for i, err := range onAll(peers, func(rank int, p *fastnorm.Peer) error {
		x, k := peerPart(rank), keys(rank)
		y, z := make([]float32, len(x)), make([]float32, len(x))
		n := fastnorm.PeerShardedNorm{
			Eps: eps, Flags: fastnorm.NormPDLWait,
			X: fastnorm.Of(x, peerRows, peerColumns), Y: fastnorm.Of(y, peerRows, peerColumns),
			Weight: fastnorm.Of(weight, peerColumns),
			X2:     fastnorm.Of(k, peerRows, 3, peerColumns/3),
			Y2:     fastnorm.Of(z, peerRows, 3, peerColumns/3),
		}
		info, err := p.ShardedNormQuery(n)
		if err != nil || info.WorkspaceBytes == 0 {
			return fmt.Errorf("%d bytes of workspace: %w", info.WorkspaceBytes, err)
		}
		if err := errors.Join(p.ShardedNormPrepare(n), p.ShardedNorm(n)); err != nil {
			return err
		}
		for i := range y {
			row, column := i/peerColumns, i%peerColumns
			wanted := float64(x[i]) * root(row, peerPart) * float64(weight[column])
			if math.Abs(float64(y[i])-wanted) > 1e-5*(1+math.Abs(wanted)) {
				return fmt.Errorf("y[%d] is %v, required: %v", i, y[i], wanted)
			}
			wanted = float64(k[i]) * root(row, keys)
			if math.Abs(float64(z[i])-wanted) > 1e-5*(1+math.Abs(wanted)) {
				return fmt.Errorf("y2[%d] is %v, required: %v", i, z[i], wanted)
			}
		}
		return nil
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", i, err)
		}
	}
}

// A rank that does not come, or that makes another call, is an error in time; a reset makes the
// group usable again.
func TestPeerFailures(t *testing.T) {
	c := cpu(t)
	peers := peerGroup(t, c, 2, fastnorm.PeerOptions{Wait: 20 * time.Millisecond})
	rows := func(rows int) fastnorm.PeerAllreduceNorm {
		x := fastnorm.Of(make([]float32, rows*peerColumns), rows, peerColumns)
		return fastnorm.PeerAllreduceNorm{Norm: fastnorm.Norm{X: x, Y: x, Eps: 1}}
	}
	reset := func() {
		for _, p := range peers {
			check(t, p.Reset())
		}
	}
	err := peers[0].AllreduceNorm(rows(1))
	wantError(t, err, fastnorm.ErrDevice, "rank 1")
	state, err := peers[0].State()
	check(t, err)
	equal(t, "the state", state,
		fastnorm.PeerState{Failure: fastnorm.PeerMissing, Rank: 1, Connected: true})
	wantError(t, peers[0].AllreduceNorm(rows(1)), fastnorm.ErrDevice, "was stopped")
	reset()
	errs := onAll(peers, func(rank int, p *fastnorm.Peer) error {
		return p.AllreduceNorm(rows(1 + rank))
	})
	if errs[0] == nil || errs[1] == nil {
		t.Errorf("ranks disagree: %v", errs)
	}
	found := false
	for rank, p := range peers {
		state, err := p.State()
		check(t, err)
		found = found || state.Failure == fastnorm.PeerDisagrees && state.Rank == 1-rank
	}
	if !found {
		t.Error("no rank found that the other one makes another call")
	}
	reset()
	for _, err := range onAll(peers, func(_ int, p *fastnorm.Peer) error {
		return p.AllreduceNorm(rows(2))
	}) {
		check(t, err)
	}
}

func TestPeerFromPointers(t *testing.T) {
	c := cpu(t)
	o := fastnorm.PeerOptions{Ranks: 2, DType: fastnorm.F32, MaxColumns: 4, Rings: 1}
	bytes, err := c.PeerBufferBytes(o)
	check(t, err)
	memory := make([]uint64, 2*(bytes+256)/8+32) // of two ranks; it stays where it is
	defer runtime.KeepAlive(memory)
	first := (uintptr(unsafe.Pointer(&memory[0])) + 255) &^ 255
	buffers := []uintptr{first, first + uintptr(bytes+255)&^255}
	peers := make([]*fastnorm.Peer, 2)
	for rank := range peers {
		o.Rank = rank
		peers[rank], err = c.NewPeerFromPointers(o, buffers)
		check(t, err)
		defer peers[rank].Close()
	}
	_, err = peers[0].Export()
	wantError(t, err, fastnorm.ErrArgument, "fastnorm_peer_create_from_pointers")
	for _, err := range onAll(peers, func(rank int, p *fastnorm.Peer) error {
		v := float32(rank + 1)
		x, y := []float32{v, -v, v, -v}, make([]float32, 4)
		err := p.AllreduceNorm(fastnorm.PeerAllreduceNorm{Norm: fastnorm.Norm{
			X: fastnorm.Of(x, 1, 4), Y: fastnorm.Of(y, 1, 4),
		}})
		if err == nil && !slices.Equal(y, []float32{1, -1, 1, -1}) {
			err = fmt.Errorf("y is %v", y)
		}
		return err
	}) {
		check(t, err)
	}
	_, err = c.NewPeerFromPointers(o, nil)
	wantError(t, err, fastnorm.ErrArgument, "count is 0; required: options.ranks, 2")
	_, err = c.NewPeerFromPointers(o, []uintptr{buffers[0] + 1, buffers[1]})
	wantError(t, err, fastnorm.ErrLayout, "buffers[0]")
	check(t, peers[0].Close())

}

func TestPeersRefused(t *testing.T) {
	c := cpu(t)
	good := fastnorm.PeerOptions{Ranks: 2, DType: fastnorm.F32, MaxColumns: 4}
	for text, change := range map[string]func(o *fastnorm.PeerOptions){
		"options.ranks is 9":     func(o *fastnorm.PeerOptions) { o.Ranks = fastnorm.PeerMaxRanks + 1 },
		"options.rank is 2":      func(o *fastnorm.PeerOptions) { o.Rank = 2 },
		"options.algorithm is 7": func(o *fastnorm.PeerOptions) { o.Algorithm = 7 },
		"options.max_columns is": func(o *fastnorm.PeerOptions) { o.MaxColumns = 0 },
		"options.one_shot_bytes": func(o *fastnorm.PeerOptions) { o.OneShotBytes = -1 },
		"options.wait_ns is 1;":  func(o *fastnorm.PeerOptions) { o.Wait = 1 },
		"options.rings is 257":   func(o *fastnorm.PeerOptions) { o.Rings = 257 },
	} {
		o := good
		change(&o)
		_, err := c.NewPeer(o)
		wantError(t, err, fastnorm.ErrArgument, text)
		_, err = c.PeerBufferBytes(o)
		wantError(t, err, fastnorm.ErrArgument, text)
	}
	p, err := c.NewPeer(good)
	check(t, err)
	wantError(t, p.Import(nil), fastnorm.ErrArgument, "blobs is NULL")
	wantError(t, p.Import(make([]byte, 2*fastnorm.PeerBlobBytes)), fastnorm.ErrArgument, "blobs[0]")
	x := fastnorm.Of(make([]float32, 4), 1, 4)
	plain := fastnorm.PeerAllreduceNorm{Norm: fastnorm.Norm{X: x, Y: x}}
	wantError(t, p.AllreduceNorm(plain), fastnorm.ErrArgument, "not connected")
	stage := fastnorm.PeerAllreduceNorm{Norm: fastnorm.Norm{X: x, Y: x, GroupSize: 2}}
	wantError(t, p.AllreduceNorm(stage), fastnorm.ErrUnsupported, "norm.group_size is given")
	codes := fastnorm.PeerAllreduceNorm{Norm: fastnorm.Norm{X: x, Y: x,
		Quant: &fastnorm.Quant{Scheme: fastnorm.QuantPerRow, Scale: fastnorm.Of(make([]float32, 1), 1),
			Out: fastnorm.Of(make([]int8, 3), 1, 4)}}}
	wantError(t, p.AllreduceNorm(codes), fastnorm.ErrShape, "norm.quant.quantized's slice")
	wantError(t, p.ShardedNorm(fastnorm.PeerShardedNorm{X: x}), fastnorm.ErrArgument, "y is NULL")
	short := fastnorm.Of(make([]float32, 3), 1, 4)
	wantError(t, p.ShardedNorm(fastnorm.PeerShardedNorm{X: x, Y: short}), fastnorm.ErrShape,
		"y's slice")
	wantError(t, (*fastnorm.Peer)(nil).Reset(), fastnorm.ErrArgument, "peer is nil")
}

// A peer keeps its context until it is closed itself.
func TestPeersAndContextsClose(t *testing.T) {
	c, err := fastnorm.Open(fastnorm.CPU)
	check(t, err)
	o := fastnorm.PeerOptions{Ranks: 2, DType: fastnorm.F32, MaxColumns: 4}
	p, err := c.NewPeer(o)
	check(t, err)
	equal(t, "the context", p.Context(), c)
	check(t, c.Close())
	_, err = c.NewPeer(o)
	wantError(t, err, fastnorm.ErrClosed, "closed")
	_, err = c.PeerBufferBytes(o)
	wantError(t, err, fastnorm.ErrClosed, "closed")
	_, err = p.State() // still there
	check(t, err)
	x := fastnorm.Of(make([]float32, 4), 1, 4)
	err = p.AllreduceNorm(fastnorm.PeerAllreduceNorm{Norm: fastnorm.Norm{X: x, Y: x}})
	wantError(t, err, fastnorm.ErrClosed, "context is closed")
	for range 2 {
		check(t, p.Close())
	}
	for _, err := range []error{
		p.Reset(), p.Import(nil), p.AllreduceNormPrepare(fastnorm.PeerAllreduceNorm{}),
	} {
		if !errors.Is(err, fastnorm.ErrPeerClosed) || !strings.Contains(err.Error(), "peer is closed") {
			t.Errorf("after Close: %v", err)
		}
	}
	_, err = p.Export()
	wantError(t, err, fastnorm.ErrPeerClosed, "peer is closed")
}

// Ranks as goroutines: their rows are added, and each gets the norm of the sum.
func ExampleContext_NewPeer() {
	c, err := fastnorm.Open(fastnorm.CPU)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	const ranks = 2
	peers := make([]*fastnorm.Peer, ranks)
	var blobs []byte // processes bring them to each other by any means
	for rank := range peers {
		peers[rank], err = c.NewPeer(fastnorm.PeerOptions{
			Rank: rank, Ranks: ranks, DType: fastnorm.F32, MaxColumns: 4,
		})
		if err != nil {
			panic(err)
		}
		defer peers[rank].Close()
		blob, err := peers[rank].Export()
		if err != nil {
			panic(err)
		}
		blobs = append(blobs, blob...)
	}
	results := make([][4]float32, ranks)
	var group sync.WaitGroup
	for rank, peer := range peers {
		group.Add(1)
		go func() {
			defer group.Done()
			if err := peer.Import(blobs); err != nil {
				panic(err)
			}
			v := float32(rank + 1)
			x := []float32{v, -v, v, -v}
			err := peer.AllreduceNorm(fastnorm.PeerAllreduceNorm{Norm: fastnorm.Norm{
				Kind: fastnorm.RMS,
				X:    fastnorm.Of(x, 1, 4),
				Y:    fastnorm.Of(results[rank][:], 1, 4),
			}})
			if err != nil {
				panic(err)
			}
		}()
	}
	group.Wait()
	fmt.Println(results) // the sum is 3 -3 3 -3
	// Output: [[1 -1 1 -1] [1 -1 1 -1]]
}
