package fastnorm_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	fastnorm "github.com/libfastnorm/libfastnorm/bindings/go"
)

const latent, rotary, wide = 512, 64, 576

// mlaCase is a batch: new tokens and lengths by request, in pages that are mixed up, behind which
// there is garbage.
type mlaCase struct {
	heads, page  int
	fresh        []int // new tokens
	lengths      []int32
	causal       bool
	scale        float64
	query, cache []float32 // fused, 576 wide
	table        []int32   // CSR
	starts       []int32   // of the pages in the table
	newStarts    []int32   // of the new tokens
	row          int       // pages of a row of the block table
	block        []int32
}

func newMLACase(heads, page int, fresh []int, lengths []int32, causal bool) *mlaCase {
	m := &mlaCase{heads: heads, page: page, fresh: fresh, lengths: lengths, causal: causal,
		scale:  0.0625,
		starts: []int32{0}, newStarts: []int32{0}}
	random := rand.New(rand.NewPCG(1, uint64(heads*page)))
	for b, length := range lengths {
		pages := (int(length) + page - 1) / page
		m.starts = append(m.starts, m.starts[b]+int32(pages))
		m.newStarts = append(m.newStarts, m.newStarts[b]+int32(fresh[b]))
		m.row = max(m.row, pages)
	}
	total := int(m.starts[len(lengths)])
	for _, p := range random.Perm(total) {
		m.table = append(m.table, int32(p))
	}
	m.cache = make([]float32, total*page*wide)
	for i := range m.cache {
		m.cache[i] = float32(math.NaN())
	}
	for b, length := range lengths {
		for j := range int(length) {
			row := m.row576(b, j)
			for i := range row {
				row[i] = float32(random.NormFloat64())
			}
		}
		list := m.table[m.starts[b]:m.starts[b+1]]
		m.block = append(m.block, list...)
		for range m.row - len(list) {
			m.block = append(m.block, 2147480000)
		}
	}
	m.query = make([]float32, int(m.newStarts[len(fresh)])*heads*wide)
	for i := range m.query {
		m.query[i] = float32(random.NormFloat64())
	}
	return m
}

// row576 is cached token j of request b.
func (m *mlaCase) row576(b, j int) []float32 {
	at := (int(m.table[int(m.starts[b])+j/m.page])*m.page + j%m.page) * wide
	return m.cache[at : at+wide]
}

// attend is the formula in double precision: o and the natural logarithm.
func (m *mlaCase) attend() (o, lse []float64) {
	rows := len(m.query) / wide
	o, lse = make([]float64, rows*latent), make([]float64, rows)
	for b, fresh := range m.fresh {
		for i := range fresh {
			last := int(m.lengths[b])
			if m.causal {
				last = last - fresh + i + 1
			}
			for h := range m.heads {
				r := (int(m.newStarts[b])+i)*m.heads + h
				query := m.query[r*wide : (r+1)*wide]
				scores, most := make([]float64, max(last, 0)), math.Inf(-1)
				for j := range scores {
					for k, value := range m.row576(b, j) {
						scores[j] += m.scale * float64(query[k]) * float64(value)
					}
					most = max(most, scores[j])
				}
				sum := 0.0
				for _, score := range scores {
					sum += math.Exp(score - most)
				}
				lse[r] = math.Inf(-1)
				if last > 0 {
					lse[r] = most + math.Log(sum)
				}
				for j, score := range scores {
					for k, value := range m.row576(b, j)[:latent] {
						o[r*latent+k] += math.Exp(score-lse[r]) * float64(value)
					}
				}
			}
		}
	}
	return o, lse
}

// describe is the call: a ragged batch with a block table, whose query and cache are views of fused
// arrays.
func (m *mlaCase) describe(o, lse []float32) fastnorm.MLADecode {
	tokens, pages := len(m.query)/wide/m.heads, len(m.cache)/wide/m.page
	view := func(data []float32, offset, rows, inner, width int) fastnorm.Tensor {
		return fastnorm.Of(data, rows, inner, width).WithStrides(inner*wide, wide,
			1).WithOffset(uint64(4 * offset))
	}
	most := 1
	for _, fresh := range m.fresh {
		most = max(most, fresh)
	}
	return fastnorm.MLADecode{
		Scale: m.scale, Causal: m.causal, MaxNew: most,
		QNope: view(m.query, 0, tokens, m.heads, latent),
		QPE:   view(m.query, latent, tokens, m.heads, rotary),
		CKV:   view(m.cache, 0, pages, m.page, latent), KPE: view(m.cache, latent, pages, m.page, rotary),
		KVLen:     fastnorm.Of(m.lengths, len(m.lengths)),
		PageTable: fastnorm.Of(m.block, len(m.lengths), m.row),
		QOIndptr:  fastnorm.Of(m.newStarts, len(m.newStarts)),
		O:         fastnorm.Of(o, tokens, m.heads, latent), LSE: fastnorm.Of(lse, tokens, m.heads),
	}
}

func (m *mlaCase) outputs() (o, lse []float32) {
	rows := len(m.query) / wide
	o, lse = make([]float32, rows*latent), make([]float32, rows)
	for i := range o {
		o[i] = float32(math.NaN())
	}
	return o, lse
}

func (m *mlaCase) compare(t *testing.T, what string, o, lse []float32, base float64) {
	t.Helper()
	exactO, exactLSE := m.attend()
	for i := range o {
		if !(math.Abs(float64(o[i])-exactO[i]) <= 2e-5) {
			t.Fatalf("%s: o[%d] is %v, required: %v", what, i, o[i], exactO[i])
		}
	}
	for i := range lse {
		wanted := exactLSE[i] / math.Log(base)
		if float64(lse[i]) != wanted && !(math.Abs(float64(lse[i])-wanted) <= 2e-5) {
			t.Fatalf("%s: lse[%d] is %v, required: %v", what, i, lse[i], wanted)
		}
	}
}

func TestMLADecode(t *testing.T) {
	c := cpu(t)
	for name, m := range map[string]*mlaCase{
		"one request":      newMLACase(3, 16, []int{1}, []int32{37}, false),
		"ragged, causal":   newMLACase(2, 5, []int{1, 0, 3, 2}, []int32{9, 4, 21, 1}, true),
		"an empty request": newMLACase(1, 64, []int{2, 2}, []int32{0, 65}, false),
	} {
		o, lse := m.outputs()
		d := m.describe(o, lse)
		check(t, c.MLADecodePrepare(d))
		check(t, c.MLADecode(d))
		m.compare(t, name, o, lse, math.E)

		// The same by a CSR list and with the other logarithm.
		again, other := m.outputs()
		d = m.describe(again, other)
		d.PageTable, d.KVIndptr = fastnorm.Of(m.table, len(m.table)), fastnorm.Of(m.starts, len(m.starts))
		d.LSEBase = fastnorm.LSEBase2
		check(t, d.Run(c))
		m.compare(t, name+", CSR", again, other, 2)
		equals(t, name+", CSR: o", again, o...)
	}
}

// Without QOIndptr each request has as many new tokens; bf16 throughout.
func TestMLADecodeUniform(t *testing.T) {
	m := newMLACase(4, 16, []int{2, 2}, []int32{30, 7}, true)
	query, cache := make([]fastnorm.BFloat16, len(m.query)), make([]fastnorm.BFloat16, len(m.cache))
	for i, value := range m.query {
		query[i] = fastnorm.ToBFloat16(value)
		m.query[i] = query[i].Float32()
	}
	for i, value := range m.cache {
		cache[i] = fastnorm.ToBFloat16(value)
		m.cache[i] = cache[i].Float32()
	}
	o, lse := make([]fastnorm.BFloat16, 4*4*latent), make([]float32, 4*4)
	pages := len(cache) / wide / 16
	view := func(data []fastnorm.BFloat16, rows, inner, width int) fastnorm.Tensor {
		return fastnorm.Of(data, rows, inner, width).WithStrides(inner*wide, wide, 1)
	}
	check(t, cpu(t).MLADecode(fastnorm.MLADecode{
		Scale: m.scale, Causal: true,
		QNope: view(query, 4, 4, latent), QPE: view(query[latent:], 4, 4, rotary),
		CKV: view(cache, pages, 16, latent), KPE: view(cache[latent:], pages, 16, rotary),
		KVLen: fastnorm.Of(m.lengths, 2), PageTable: fastnorm.Of(m.block, 2, m.row),
		O: fastnorm.Of(o, 4, 4, latent), LSE: fastnorm.Of(lse, 4, 4),
	}))
	exact, logs := m.attend()
	for i, value := range o {
		if !(math.Abs(float64(value.Float32())-exact[i]) <= 0.03) {
			t.Fatalf("o[%d] is %v, required: %v", i, value.Float32(), exact[i])
		}
	}
	for i, value := range lse {
		if !(math.Abs(float64(value)-logs[i]) <= 2e-5) {
			t.Fatalf("lse[%d] is %v, required: %v", i, value, logs[i])
		}
	}
}

// Every field reaches the library, which refuses a bad value under the field's name.
func TestMLADecodeErrors(t *testing.T) {
	c := cpu(t)
	m := newMLACase(2, 4, []int{1, 2}, []int32{6, 3}, true)
	for name, it := range map[string]struct {
		change func(d *fastnorm.MLADecode)
		kind   error
	}{
		"sm_scale":       {func(d *fastnorm.MLADecode) { d.Scale = 0 }, fastnorm.ErrArgument},
		"lse_base":       {func(d *fastnorm.MLADecode) { d.LSEBase = 2 }, fastnorm.ErrArgument},
		"max_s_q":        {func(d *fastnorm.MLADecode) { d.MaxNew = 0 }, fastnorm.ErrArgument},
		"split_tokens":   {func(d *fastnorm.MLADecode) { d.SplitTokens = 63 }, fastnorm.ErrArgument},
		"profile_events": {func(d *fastnorm.MLADecode) { d.ProfileEvents = -1 }, fastnorm.ErrArgument},
		"total_kv_hint":  {func(d *fastnorm.MLADecode) { d.TotalKVHint = -1 }, fastnorm.ErrArgument},
		"q_nope": {func(d *fastnorm.MLADecode) { d.QNope = fastnorm.Tensor{} },
			fastnorm.ErrArgument},
		"q_pe": {func(d *fastnorm.MLADecode) { d.QPE = d.QNope }, fastnorm.ErrUnsupported},
		"ckv": {func(d *fastnorm.MLADecode) { d.CKV = fastnorm.Of(m.cache, 4) },
			fastnorm.ErrShape},
		"kpe": {func(d *fastnorm.MLADecode) {
			d.KPE = fastnorm.View(m.cache, fastnorm.I32, 1,
				4, 64)
		}, fastnorm.ErrDType},
		"kv_len": {func(d *fastnorm.MLADecode) { d.KVLen = fastnorm.Of([]int32{25, 3}, 2) },
			fastnorm.ErrArgument},
		"page": {func(d *fastnorm.MLADecode) {
			d.PageTable = fastnorm.Of([]int32{0, 9, 1, 0}, 2,
				2)
		}, fastnorm.ErrArgument},
		"kv_indptr": {func(d *fastnorm.MLADecode) { d.KVIndptr = fastnorm.Of([]int32{0}, 1) },
			fastnorm.ErrShape},
		"qo_indptr": {func(d *fastnorm.MLADecode) { d.QOIndptr = fastnorm.Of([]int32{0, 1, 9}, 3) },
			fastnorm.ErrArgument},
		"o": {func(d *fastnorm.MLADecode) { d.O = fastnorm.Of(m.cache, 3, 2, latent) },
			fastnorm.ErrLayout},
		"lse": {func(d *fastnorm.MLADecode) { d.LSE = fastnorm.Of(make([]float32, 5), 5) },
			fastnorm.ErrShape},
		"profile": {func(d *fastnorm.MLADecode) {
			d.Profile, d.ProfileEvents = fastnorm.Of(make([]uint8, 4096), 4096), 16
		}, fastnorm.ErrUnsupported},
	} {
		o, lse := m.outputs()
		d := m.describe(o, lse)
		it.change(&d)
		err := c.MLADecode(d)
		if !errors.Is(err, it.kind) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v; required: %v", name, err, it.kind)
		}
		if !math.IsNaN(float64(o[0])) {
			t.Errorf("%s: o was written", name)
		}
	}
	var none *fastnorm.MLADecode
	if err := none.Run(c); !errors.Is(err, fastnorm.ErrArgument) {
		t.Error(err)
	}
	o, lse := m.outputs()
	d := m.describe(o, lse)
	d.O = fastnorm.Of(o[1:], 3, 2, latent)
	if err := d.Run(c); !errors.Is(err, fastnorm.ErrShape) ||
		!strings.Contains(err.Error(), "o's slice") {
		t.Error(err)
	}
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
	m := newMLACase(2, 8, []int{1, 1}, []int32{20, 11}, false)
	wanted, lse := m.outputs()
	check(t, c.MLADecode(m.describe(wanted, lse)))
	var group sync.WaitGroup
	for range 4 {
		group.Add(1)
		go func() {
			defer group.Done()
			for range 20 {
				o, lse := m.outputs()
				d := m.describe(o, lse)
				if err := d.Run(c); err != nil {
					t.Error(err)
					return
				}
				for i := range o {
					if o[i] != wanted[i] {
						t.Errorf("o[%d] is %v, required: %v", i, o[i], wanted[i])
						return
					}
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
