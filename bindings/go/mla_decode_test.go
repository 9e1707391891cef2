package fastnorm_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"

	fastnorm "github.com/libfastnorm/libfastnorm/bindings/go"
)

const latent, rotary = 512, 64

// decode is a call for one head of two requests with 3 and 1 cached tokens, in pages of 2. The
// query is 0, so that all tokens count alike. The latents of a token are its number in the cache.
func decode(o, lse []float32) fastnorm.MLADecode {
	const pages, page = 4, 2
	ckv := make([]float32, pages*page*latent)
	for i := range ckv {
		ckv[i] = float32(i / latent)
	}
	return fastnorm.MLADecode{Scale: 0.0625, Causal: true,
		QNope: fastnorm.Of(make([]float32, 2*latent), 2, 1, latent),
		QPE:   fastnorm.Of(make([]float32, 2*rotary), 2, 1, rotary),
		CKV:   fastnorm.Of(ckv, pages, page, latent),
		KPE:   fastnorm.Of(make([]float32, pages*page*rotary), pages, page, rotary),
		KVLen: fastnorm.Of([]int32{3, 1}, 2), PageTable: fastnorm.Of([]int32{3, 1, 2, 99}, 2, 2),
		O: fastnorm.Of(o, 2, 1, latent), LSE: fastnorm.Of(lse, 2, 1)}
}

func TestMLADecode(t *testing.T) {
	c := cpu(t)
	o, lse := make([]float32, 2*latent), make([]float32, 2)
	d := decode(o, lse)
	check(t, c.MLADecodePrepare(d))
	check(t, c.MLADecode(d))
	for k := range latent { // tokens 6, 7 and 2 of the cache, and token 4
		near(t, "o", []float32{o[k], o[latent+k]}, 5, 4)
	}
	near(t, "lse", lse, math.Log(3), 0)

	// The same by a list of pages, with the other logarithm, and one new token of each request.
	d.PageTable, d.KVIndptr = fastnorm.Of([]int32{3, 1, 2}, 3), fastnorm.Of([]int32{0, 2, 3}, 3)
	d.QOIndptr, d.MaxNew = fastnorm.Of([]int32{0, 1, 2}, 3), 1
	d.LSEBase = fastnorm.LSEBase2
	clear(o)
	check(t, d.Run(c))
	near(t, "o", []float32{o[0], o[latent]}, 5, 4)
	near(t, "lse", lse, math.Log2(3), 0)
}

// One new token that selects rows of bytes, of 1 and -3 times 2. The others are NaN. Half of the
// weight is the sink's.
func TestMLADecodeBytes(t *testing.T) {
	const row = latent + rotary
	cache := make([]uint8, 4*row)
	for i := range cache {
		cache[i] = []uint8{0xc4, 0x7f, 0x7f, 0x38}[i/row] // -3, NaN, NaN, 1
	}
	o, lse := make([]float32, latent), make([]float32, 1)
	d := fastnorm.MLADecode{Scale: 1, CacheFormat: fastnorm.MLACacheBytes576,
		QNope:         fastnorm.Of(make([]float32, latent), 1, 1, latent),
		QPE:           fastnorm.Of(make([]float32, rotary), 1, 1, rotary),
		Cache:         fastnorm.Of(cache, 2, 2, row),
		CacheScale:    fastnorm.Of([]float32{2}, 1),
		Indices:       fastnorm.Of([]int32{3, -1, 0, 99}, 1, 1, 4),
		TopkLength:    fastnorm.Of([]int32{3}, 1),
		AttentionSink: fastnorm.Of([]float32{float32(math.Log(2))}, 1),
		O:             fastnorm.Of(o, 1, 1, latent), LSE: fastnorm.Of(lse, 1, 1)}
	c := cpu(t)
	check(t, c.MLADecode(d))
	near(t, "o", []float32{o[0], o[latent-1]}, -1, -1)
	near(t, "lse", lse, math.Log(2))
	// The same rows, one of them of a second cache.
	d.Indices, d.ExtraCache = fastnorm.Of([]int32{-1, 3, -1, 99}, 1, 1, 4), d.Cache
	d.ExtraIndices = fastnorm.Of([]int32{0, 99}, 1, 1, 2)
	d.ExtraTopkLength = fastnorm.Of([]int32{1}, 1, 1)
	check(t, d.Run(c))
	near(t, "o", []float32{o[0], o[latent-1]}, -1, -1)
	d.Indices = fastnorm.Of([]int32{4, 0, 0, 0}, 1, 1, 4)
	wantError(t, d.Run(c), fastnorm.ErrArgument, "indices[0][0][0] is 4; required: -1, or 0 to 3")
}

func TestMLADecodeRefused(t *testing.T) {
	c := cpu(t)
	o, lse := make([]float32, 2*latent), make([]float32, 2)
	d := decode(o, lse)
	d.Scale = 0
	wantError(t, c.MLADecode(d), fastnorm.ErrArgument, "sm_scale")
	d = decode(o[1:], lse)
	wantError(t, d.Run(c), fastnorm.ErrShape, "o's slice")
	d = decode(o, lse)
	d.KVLen = fastnorm.Of([]int32{3, 5}, 2)
	wantError(t, d.Run(c), fastnorm.ErrArgument, "kv_len")
	var none *fastnorm.MLADecode
	wantError(t, none.Run(c), fastnorm.ErrArgument, "the MLADecode is nil")
	equals(t, "o", o, make([]float32, 2*latent)...)
}

// A GPU's call that is only planned: the workspace, and the profile's size.
func TestMLADecodeQuery(t *testing.T) {
	gpu := dryGPU(t)
	at := func(n int, shape ...int) fastnorm.Tensor {
		return fastnorm.At(gpu.Device(), uintptr(n)<<32, fastnorm.BF16, shape...)
	}
	i32 := func(n int, shape ...int) fastnorm.Tensor {
		return fastnorm.At(gpu.Device(), uintptr(n)<<32, fastnorm.I32, shape...)
	}
	d := fastnorm.MLADecode{
		Scale: 0.1, QNope: at(1, 4, 128, latent), QPE: at(2, 4, 128, rotary), CKV: at(3, 100, 64, latent),
		KPE: at(4, 100, 64, rotary), KVLen: i32(5, 4), PageTable: i32(6, 4, 25), O: at(7, 4, 128, latent),
	}
	info, err := gpu.MLADecodeQuery(d)
	if errors.Is(err, fastnorm.ErrUnsupported) || errors.Is(err, fastnorm.ErrDevice) {
		t.Skip(err)
	}
	check(t, err)
	if info.WorkspaceBytes == 0 || info.Launches < 2 || info.ProfileBytes != 0 {
		t.Errorf("%+v", info)
	}
	d.Profile, d.ProfileEvents = fastnorm.At(gpu.Device(), 8<<32, fastnorm.U8, 1<<30), 100
	profiled, err := gpu.MLADecodeQuery(d)
	check(t, err)
	if profiled.ProfileBytes < 100*8 || profiled.WorkspaceBytes != info.WorkspaceBytes {
		t.Errorf("%+v", profiled)
	}
	d.TotalKVHint = 1000
	hinted, err := gpu.MLADecodeQuery(d)
	check(t, err)
	if hinted.BytesRead <= profiled.BytesRead {
		t.Errorf("a hint of 1000 tokens: %d bytes, without: %d", hinted.BytesRead, profiled.BytesRead)
	}
}

func TestMLADecodeGoroutines(t *testing.T) {
	c := cpu(t)
	var group sync.WaitGroup
	for range 4 {
		group.Add(1)
		go func() {
			defer group.Done()
			for range 20 {
				o, lse := make([]float32, 2*latent), make([]float32, 2)
				if err := c.MLADecode(decode(o, lse)); err != nil || o[0] != o[latent-1] ||
					math.Abs(float64(o[0])-5) > 1e-6 {
					t.Errorf("o[0] is %v, o[%d] is %v: %v", o[0], latent-1, o[latent-1], err)
					return
				}
			}
		}()
	}
	group.Wait()
}

// profileBuffer is what one thread block with one warpgroup leaves: a span of scores within one of
// work.
func profileBuffer() []byte {
	const events = 4
	var b []byte
	u32 := func(values ...uint32) {
		for _, value := range values {
			b = binary.LittleEndian.AppendUint32(b, value)
		}
	}
	u64 := func(values ...uint64) {
		for _, value := range values {
			b = binary.LittleEndian.AppendUint64(b, value)
		}
	}
	u64(0x464f52504d524f4e) // magic
	u32(1, 1, 1, events)    // version, blocks, groups, capacity
	u64(0, 0, 0, 0, 0)
	u32(17, 1, events, 0) // multiprocessor, pieces, written, dropped
	u64(1<<32, 5000, 1<<32+2000, 6000, 0, 0)
	event := func(cycle, id, kind, value uint64) { u64(cycle | (id|kind<<8|value<<10)<<32) }
	event(0, 0, 0, 7)
	event(500, 3, 0, 7)
	event(1500, 3, 1, 7)
	event(2000, 0, 1, 7)
	return b
}

func TestProfile(t *testing.T) {
	buffer := profileBuffer()
	events, err := fastnorm.DecodeProfile(buffer)
	check(t, err)
	equals(t, "events", events,
		fastnorm.ProfileEvent{TimeNS: 0, Cycle: 0, Multiprocessor: 17, ID: 0, Kind: fastnorm.ProfileBegin,
			Value: 7},
		fastnorm.ProfileEvent{TimeNS: 250, Cycle: 500, Multiprocessor: 17, ID: 3,
			Kind: fastnorm.ProfileBegin, Value: 7},
		fastnorm.ProfileEvent{TimeNS: 750, Cycle: 1500, Multiprocessor: 17, ID: 3,
			Kind: fastnorm.ProfileEnd, Value: 7},
		fastnorm.ProfileEvent{TimeNS: 1000, Cycle: 2000, Multiprocessor: 17, ID: 0,
			Kind: fastnorm.ProfileEnd, Value: 7})
	for id, name := range map[fastnorm.ProfileID]string{0: "work", 4: "softmax", 99: "unknown"} {
		equal(t, "name", id.String(), name)
	}

	path := filepath.Join(t.TempDir(), "trace.json")
	check(t, fastnorm.WriteTrace(buffer, path))
	text, err := os.ReadFile(path)
	check(t, err)
	var trace struct {
		TraceEvents []map[string]any
	}
	check(t, json.Unmarshal(text, &trace))
	if len(trace.TraceEvents) < 2 {
		t.Errorf("the trace has %d events", len(trace.TraceEvents))
	}
	err = fastnorm.WriteTrace(buffer, "/no/such/folder/trace.json")
	if !errors.Is(err, fastnorm.ErrArgument) {
		t.Error(err)
	}
	for _, bad := range [][]byte{nil, buffer[:7], buffer[:len(buffer)-1],
		append([]byte{1}, buffer[1:]...)} {
		if _, err := fastnorm.DecodeProfile(bad); !errors.Is(err, fastnorm.ErrArgument) {
			t.Errorf("%d bytes: %v", len(bad), err)
		}
		if err := fastnorm.WriteTrace(bad, path); !errors.Is(err, fastnorm.ErrArgument) {
			t.Errorf("%d bytes: %v", len(bad), err)
		}
	}
}
