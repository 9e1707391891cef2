package fastnorm

import (
	"embed"
	"io/fs"
	"math"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/libfastnorm/libfastnorm/bindings/go/internal/direct"
	"github.com/libfastnorm/libfastnorm/bindings/go/internal/raw"
)

// Each field of a description arrives in its field of the C struct, and all C fields have a Go
// field. Each value and function of the generated layer has a name in this package.

// described is a type that describes a call, or a part of one. descriptions_test.go has all.
type described struct {
	name    string // in the decoder
	value   any    // a pointer to it
	tensors []string
	calls   *family // nil: it stands in others
	fields  []cField
}

// cField is a field of a C struct.
type cField struct {
	name         string
	offset, size uintptr
}

const atPeer = 0x5000

// encoded is the call of a description, or a part alone.
func encoded(value any) *call {
	switch d := value.(type) {
	case interface{ call() *call }:
		return d.call()
	case interface{ call(peer uintptr) *call }:
		return d.call(atPeer)
	}
	q := newCall(1, raw.NormMaxWords)
	value.(interface{ encode(q *call, part int) }).encode(q, 0)
	return q
}

// unset are C fields that no Go field sets, with the reason.
var unset = map[string]string{
	"struct_size":               "the decoder sets it",
	"parallel_user":             "a Context has no parallel loop of the caller's",
	"reserved":                  "must be 0",
	"stage_reserved":            "must be 0",
	"norm_heads_backward.slots": "gradients write to no cache; the library refuses slots",
	"peer":                      "the Peer whose method takes the description",
	"peer_allreduce_norm.norm":  "a Norm is always there",
}

// renamed are Go fields whose C field has another name, but for capitals and underscores.
var renamed = map[string]string{
	"quant.Out":                            "quantized",
	"norm.Branch":                          "branch_norm",
	"mla_decode.Scale":                     "sm_scale",
	"mla_decode.MaxNew":                    "max_s_q",
	"norm_heads.MropeInterleaved":          "flags",
	"norm_heads.NoPDL":                     "flags",
	"norm_heads_backward.MropeInterleaved": "flags",
	"norm_heads_backward.NoPDL":            "flags",
}

// texts are in the test program: it also runs where the sources are not.
//
//go:embed *.go internal/raw/*.go
var texts embed.FS

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := texts.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// sources is the package without its tests.
func sources(t *testing.T) string {
	t.Helper()
	names, err := fs.Glob(texts, "*.go")
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, name := range names {
		if !strings.HasSuffix(name, "_test.go") {
			text.WriteString(read(t, name))
		}
	}
	return text.String()
}

// leaf is a field that can be set, and where it is in a description.
type leaf struct {
	name string
	path func(root reflect.Value) reflect.Value
}

var tensorType = reflect.TypeFor[Tensor]()

func (d described) leaves() []leaf {
	return leaves(reflect.TypeOf(d.value).Elem(), d.name,
		func(root reflect.Value) reflect.Value { return root })
}

// leaves lists the fields of a type, those of nested descriptions too. An optional description is a
// leaf itself.
func leaves(of reflect.Type, name string, path func(reflect.Value) reflect.Value) []leaf {
	switch {
	case of == tensorType:
	case of == reflect.TypeFor[*Quant](): // it has an entry of its own
	case of == reflect.TypeFor[*float32]():
	case of == reflect.TypeFor[Norm]() && name != "norm":
		return nil // the same
	case of.Kind() == reflect.Pointer:
		all := []leaf{{name, path}}
		return append(all, leaves(of.Elem(), name, func(root reflect.Value) reflect.Value {
			p := path(root)
			if p.IsNil() {
				p.Set(reflect.New(of.Elem()))
			}
			return p.Elem()
		})...)
	case of.Kind() == reflect.Struct:
		var all []leaf
		for i := range of.NumField() {
			at := func(root reflect.Value) reflect.Value { return path(root).Field(i) }
			all = append(all, leaves(of.Field(i).Type, name+"."+of.Field(i).Name, at)...)
		}
		return all
	case of.Kind() == reflect.Array:
		var all []leaf
		for i := range of.Len() {
			at := func(root reflect.Value) reflect.Value { return path(root).Index(i) }
			all = append(all, leaves(of.Elem(), name+"["+strconv.Itoa(i)+"]", at)...)
		}
		return all
	case of.Kind() == reflect.Slice: // of parts, which have a description of their own
		return nil
	}
	return []leaf{{name, path}}
}

// set gives a field a value, and returns the bits of the C field; of a tensor the address.
func set(t *testing.T, field reflect.Value) uint64 {
	t.Helper()
	switch {
	case field.Type() == tensorType:
		field.Set(reflect.ValueOf(At(CUDA(7), 0x1000, BF16, 3, 4).WithOffset(6).WithStrides(5, 1)))
		return 0x1000
	case field.Kind() == reflect.Pointer && field.Type().Elem().Kind() == reflect.Float32:
		value := float32(1.5)
		field.Set(reflect.ValueOf(&value))
		return uint64(math.Float32bits(1.5))
	case field.Kind() == reflect.Pointer:
		field.Set(reflect.New(field.Type().Elem()))
		return 1
	case field.Kind() == reflect.Bool:
		field.SetBool(true)
		return 1
	case field.CanInt():
		field.SetInt(-3)
		return ^uint64(2)
	case field.CanUint():
		field.SetUint(3)
		return 3
	case field.Kind() == reflect.Float32:
		field.SetFloat(1.5)
		return uint64(math.Float32bits(1.5))
	case field.Kind() == reflect.Float64:
		field.SetFloat(1.5)
		return math.Float64bits(1.5)
	}
	t.Fatalf("a field of type %v", field.Type())
	return 0
}

// cTensor is fastnorm_tensor.
type cTensor struct {
	data                       uintptr
	deviceType, deviceID, ndim int32
	dtype                      DType
	shape, strides             *[2]int64
	offset                     uint64
}

func TestFieldsComplete(t *testing.T) {
	for _, d := range descriptions {
		t.Run(d.name, func(t *testing.T) { checkFields(t, d) })
	}
}

func checkFields(t *testing.T, d described) {
	byName := map[string]string{} // without capitals and underscores
	for _, f := range d.fields {
		byName[strings.ReplaceAll(f.name, "_", "")] = f.name
	}
	setBy, bits := map[string]string{}, map[uint64]string{}
	for _, l := range d.leaves() {
		root := reflect.New(reflect.TypeOf(d.value).Elem())
		field := l.path(root.Elem()) // allocates the descriptions around it
		before := d.decoded(t, root)
		wanted := set(t, field)
		name := renamed[l.name]
		if name == "" {
			_, path, _ := strings.Cut(l.name, ".")
			name = byName[strings.ToLower(regexp.MustCompile(`[.\[\]]`).ReplaceAllString(path, ""))]
		}
		ofFlags := name == "flags" && field.Kind() == reflect.Bool // several have it
		if name == "" || setBy[name] != "" && !ofFlags {
			t.Errorf("%s has the C field %q, which %q sets", l.name, name, setBy[name])
			continue
		}
		setBy[name] = l.name
		for f, value := range d.decoded(t, root) {
			expected := before[f]
			isFlag := f.name == "flags" && (ofFlags || name == "alpha")
			if f.name == name {
				expected = wanted << (64 - 8*f.size) >> (64 - 8*f.size)
			}
			if isFlag && value&(value-1) == 0 { // its flag is one bit
				expected = max(value, 1)
			}
			if ofFlags && f.name == name {
				if by := bits[value]; by != "" {
					t.Errorf("%s sets the bit %#x, which %q sets", l.name, value, by)
				}
				bits[value] = l.name
			}
			if value != expected {
				t.Errorf("%s: %s is %#x, required: %#x", l.name, f.name, value, expected)
			}
		}
	}
	for _, f := range d.fields {
		reason := unset[f.name] + unset[d.name+"."+f.name]
		if by := setBy[f.name]; by == "" && reason == "" || by != "" && reason != "" {
			t.Errorf("%s is set by %q; exempt: %q", f.name, by, reason)
		}
	}
}

// decoded is what C makes of a description: the bits of each field, of a tensor its address, and
// for what else it points to whether it is there.
func (d described) decoded(t *testing.T, root reflect.Value) map[cField]uint64 {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	q := encoded(root.Interface())
	defer q.free()
	at := direct.Decode(d.name, q.list(), q.used)
	if at == nil {
		t.Fatalf("malformed words of %s", d.name)
	}
	values := map[cField]uint64{}
	for _, f := range d.fields {
		memory := unsafe.Slice((*byte)(unsafe.Add(at, f.offset)), f.size)
		for i, b := range memory {
			values[f] |= uint64(b) << (8 * i)
		}
		pointer := *(*unsafe.Pointer)(unsafe.Add(at, f.offset&^7))
		switch {
		case f.name == "struct_size" || f.name == "norm" || f.name == "peer":
			if values[f] == 0 || f.name == "peer" && values[f] != atPeer {
				t.Errorf("%s is %#x", f.name, values[f])
			}
		case strings.HasSuffix(f.name, "quant"):
			values[f] = min(values[f], 1)
		case slices.Contains(d.tensors, f.name) && values[f] != 0:
			tensor := *(*cTensor)(pointer)
			values[f] = uint64(tensor.data)
			if *tensor.shape != [2]int64{3, 4} || *tensor.strides != [2]int64{5, 1} ||
				tensor.deviceType != 2 || tensor.deviceID != 7 || tensor.ndim != 2 ||
				tensor.offset != 6 || tensor.dtype != BF16 {
				t.Errorf("%s: %+v", f.name, tensor)
			}
		}
	}
	return values
}

// A slice that is too short is named as the library names the tensor, wherever it stands.
func TestFaultsNamed(t *testing.T) {
	short, seen := Of([]float32{1}, 2), 0
	for _, d := range descriptions {
		prefix := ""
		if strings.HasSuffix(d.name, "_part") {
			prefix = "parts[0]."
		}
		for _, l := range d.leaves() {
			root := reflect.New(reflect.TypeOf(d.value).Elem())
			field := l.path(root.Elem())
			if field.Type() != tensorType || d.calls == nil {
				continue // a Quant is named where it stands, below
			}
			seen++
			field.Set(reflect.ValueOf(short))
			name := faultOf(t, d.calls, encoded(root.Interface()))
			_, path, _ := strings.Cut(l.name, ".")
			if strip(name) != strip(prefix+path) {
				t.Errorf("%s is named %q", l.name, name)
			}
		}
	}
	if seen < 70 {
		t.Errorf("%d tensors", seen)
	}
	quant := &Quant{Scale: short}
	norm := Norm{Quant: quant}
	reduced := PeerAllreduceNorm{Norm: norm}
	parts := NormHeads{Parts: []NormHeadsPart{{}, {CacheQuant: quant}}}
	list := encodeList([]Norm{{}, {Quant: &Quant{Out: short}}}, raw.NormMaxWords, (*Norm).encode)
	for name, found := range map[string]string{
		"quant.scale":                faultOf(t, callNorm, norm.call()),
		"norm.quant.scale":           faultOf(t, callPeerAllreduceNorm, reduced.call(atPeer)),
		"parts[1].cache_quant.scale": faultOf(t, callNormHeads, parts.call()),
		"args[1].quant.quantized":    faultOf(t, callNormMany, list),
	} {
		if found != name {
			t.Errorf("%s is named %q", name, found)
		}
	}
}

// strip leaves what names of Go and of C have in common.
func strip(name string) string {
	return strings.ToLower(strings.NewReplacer("_", "", ".", "").Replace(name))
}

func faultOf(t *testing.T, f *family, q *call) string {
	t.Helper()
	defer q.free()
	if q.fault == nil {
		t.Fatal("no fault is noted")
	}
	return f.name(q.fault)
}

var (
	enumBlock = regexp.MustCompile(`(?ms)^// (fastnorm_\w+)\.\nconst \(\n(.*?)^\)`)
	function  = regexp.MustCompile(`(?m)^func ((?:Fastnorm|Fnb)_\w+)\(`)
	getter    = regexp.MustCompile(`(?m)^func \(arg1 SwigcptrFastnorm_\w+\) (Get\w+)\(`)
)

var assignment = regexp.MustCompile(`(?m)^\t(\w+) += (\d+)$`)

// Each value of each enum has a name in this package.
func TestEnumsComplete(t *testing.T) {
	used, blocks := names(sources(t)), enumBlock.FindAllStringSubmatch(
		read(t, "internal/raw/constants.go"), -1)
	if len(blocks) < 20 {
		t.Fatalf("%d enums", len(blocks))
	}
	for _, block := range blocks {
		t.Run(block[1], func(t *testing.T) {
			if block[1] == "fastnorm_profile_id" {
				// ProfileID.String asks the library for the names.
				return
			}
			for _, value := range assignment.FindAllStringSubmatch(block[2], -1) {
				if !used[value[1]] {
					t.Errorf("%s has no name in Go", value[1])
				}
			}
		})
	}
}

// names are those of the package raw that the text uses.
func names(text string) map[string]bool {
	used := map[string]bool{}
	for _, match := range regexp.MustCompile(`\braw\.(\w+)`).FindAllStringSubmatch(text, -1) {
		used[match[1]] = true
	}
	return used
}

// Each function of the generated layer, and each value that it reads, is used.
func TestFunctionsComplete(t *testing.T) {
	source, generated := sources(t), read(t, "internal/raw/raw.go")
	used, functions := names(source), function.FindAllStringSubmatch(generated, -1)
	getters := getter.FindAllStringSubmatch(generated, -1)
	if len(functions) < 40 || len(getters) < 20 {
		t.Fatalf("%d functions, %d getters", len(functions), len(getters))
	}
	for _, f := range functions {
		t.Run(f[1], func(t *testing.T) {
			if !used[f[1]] {
				t.Errorf("%s is not used", f[1])
			}
		})
	}
	for _, g := range getters {
		if !strings.Contains(source, "."+g[1]+"()") {
			t.Errorf("%s is not used", g[1])
		}
	}
}
