package fastnorm

import (
	"embed"
	"io/fs"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/libfastnorm/libfastnorm/bindings/go/internal/raw"
)

// Descriptions and constants of this package have all that the generated layer has: no field, no
// value and no function is forgotten.

// described is a type that describes a call, or a part of one.
type described struct {
	words   string // what its constants in words.go begin with
	value   any
	tensors []string
	encode  func(value any) *call
}

func encodePart(words int, encode func(q *call)) *call {
	q := newCall(1, words)
	encode(q)
	return q
}

var descriptions = []described{
	{"Norm", Norm{}, normTensors, func(v any) *call { return v.(*Norm).call() }},
	{"NormBackward", NormBackward{}, normBackwardTensors,
		func(v any) *call { return v.(*NormBackward).call() }},
	{"NormHeads", NormHeads{}, normHeadsTensors, func(v any) *call { return v.(*NormHeads).call() }},
	{"NormHeadsPart", NormHeadsPart{}, normHeadsPartTensors, func(v any) *call {
		return encodePart(raw.NormHeadsPartMaxWords,
			func(q *call) { v.(*NormHeadsPart).encode(q, 0) })
	}},
	{"NormHeadsBackward", NormHeadsBackward{}, normHeadsBackwardTensors,
		func(v any) *call { return v.(*NormHeadsBackward).call() }},
	{"NormHeadsBackwardPart", NormHeadsBackwardPart{}, normHeadsBackwardPartTensors,
		func(v any) *call {
			return encodePart(raw.NormHeadsBackwardPartMaxWords,
				func(q *call) { v.(*NormHeadsBackwardPart).encode(q, 0) })
		}},
	{"MlaDecode", MLADecode{}, mlaDecodeTensors, func(v any) *call { return v.(*MLADecode).call() }},
	{"PeerAllreduceNorm", PeerAllreduceNorm{}, peerAllreduceNormTensors,
		func(v any) *call { return v.(*PeerAllreduceNorm).call(0) }},
	{"PeerShardedNorm", PeerShardedNorm{}, peerShardedNormTensors,
		func(v any) *call { return v.(*PeerShardedNorm).call(0) }},
}

// unset are values that no field sets, with the reason.
var unset = map[string]string{
	"NormBackwardReserved":      "must be 0",
	"NormBackwardStageReserved": "must be 0",
	"NormHeadsBackwardBitSlots": "gradients write to no cache; the library refuses slots",
	"NormHeadsPartReserved":     "must be 0",
	"NormHeadsPartReserved2":    "must be 0",
	"PeerAllreduceNormPeer":     "the Peer whose method takes the description",
	"PeerAllreduceNormReserved": "must be 0",
	"PeerShardedNormPeer":       "the Peer whose method takes the description",
	"PeerShardedNormReserved":   "must be 0",
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

var assignment = regexp.MustCompile(`(?m)^\t(\w+) += (\d+)$`)

// layouts are the constants of words.go by the description they belong to: from its first scalar to
// its MaxWords.
func layouts(t *testing.T) map[string]map[string]int {
	t.Helper()
	all := map[string]map[string]int{}
	for _, block := range strings.Split(read(t, "internal/raw/words.go"), "\n\n") {
		constants, name := map[string]int{}, ""
		for _, match := range assignment.FindAllStringSubmatch(block, -1) {
			value, err := strconv.Atoi(match[2])
			if err != nil {
				t.Fatal(err)
			}
			constants[match[1]] = value
			if prefix, is := strings.CutSuffix(match[1], "MaxWords"); is {
				name = prefix
			}
		}
		if name == "" {
			continue
		}
		all[name] = map[string]int{}
		for constant, value := range constants {
			if !strings.HasPrefix(constant, name) {
				t.Fatalf("%s stands among the constants of %s", constant, name)
			}
			all[name][strings.TrimPrefix(constant, name)] = value
		}
	}
	return all
}

var capital = regexp.MustCompile(`[A-Z]`)

// snake is the library's name of a constant: branch_weight of BranchWeight.
func snake(name string) string {
	return strings.ToLower(strings.TrimPrefix(capital.ReplaceAllString(name, "_$0"), "_"))
}

// leaf is a field that can be set, and where it is in a description.
type leaf struct {
	name string
	path func(root reflect.Value) reflect.Value
}

var tensorType = reflect.TypeFor[Tensor]()

// leaves lists the fields of a type, those of nested descriptions too. An optional description is a
// leaf itself.
func leaves(of reflect.Type, name string, path func(reflect.Value) reflect.Value) []leaf {
	switch {
	case of == tensorType:
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

// set gives a field a value, and returns the word that stands for it; 0 for any but 0.
func set(t *testing.T, field reflect.Value) uint64 {
	t.Helper()
	switch {
	case field.Type() == tensorType:
		field.Set(reflect.ValueOf(At(CUDA(7), 0x1000, BF16, 3, 4)))
		return 0x1000
	case field.Kind() == reflect.Pointer:
		field.Set(reflect.New(field.Type().Elem()))
	case field.Kind() == reflect.Bool:
		field.SetBool(true)
	case field.CanInt():
		field.SetInt(3)
		return 3
	case field.CanUint():
		field.SetUint(3)
		return 3
	case field.Kind() == reflect.Float32:
		field.SetFloat(1.5)
		return uint64(math.Float32bits(1.5))
	case field.Kind() == reflect.Float64:
		field.SetFloat(1.5)
		return math.Float64bits(1.5)
	default:
		t.Fatalf("a field of type %v", field.Type())
	}
	return 0
}

// Each field sets one value of the call that no other field sets, and all values have a field.
func TestFieldsComplete(t *testing.T) {
	all := layouts(t)
	for _, d := range descriptions {
		t.Run(d.words, func(t *testing.T) { checkFields(t, d, all[d.words]) })
		delete(all, d.words)
	}
	for name := range all {
		t.Errorf("%s has no Go type", snake(name))
	}
}

func checkFields(t *testing.T, d described, layout map[string]int) {
	scalars, bits := map[int]string{}, map[int]string{}
	mask := layout["Mask"]
	for name, at := range layout {
		if tensor, is := strings.CutPrefix(name, "Bit"); is {
			bits[at] = name
			if at >= len(d.tensors) || d.tensors[at] != snake(tensor) {
				t.Errorf("tensor %d, %s, is not among the names %v", at, snake(tensor), d.tensors)
			}
		} else if name != "Mask" && name != "MaxWords" {
			scalars[at] = name
		}
	}
	if len(scalars) != mask || mask == 0 || len(bits) != len(d.tensors) || len(bits) == 0 {
		t.Fatalf("%d scalars before the mask at %d, %d tensors of %d names",
			len(scalars), mask, len(bits), len(d.tensors))
	}
	if most := mask + 1 + len(bits)*maxTensorWords; most != layout["MaxWords"] {
		t.Errorf("%d words, required: %d", layout["MaxWords"], most)
	}
	setBy := map[string]string{}
	for _, l := range leaves(reflect.TypeOf(d.value), d.words,
		func(root reflect.Value) reflect.Value { return root }) {
		root := reflect.New(reflect.TypeOf(d.value))
		field := l.path(root.Elem()) // allocates the descriptions around it
		before, _ := encoded(d, root, mask)
		wanted := set(t, field)
		after, tensor := encoded(d, root, mask)
		var changed []string
		for i := range mask {
			if after[i] != before[i] {
				changed = append(changed, scalars[i])
				if wanted != 0 && after[i] != wanted {
					t.Errorf("%s: %s is %#x, required: %#x", l.name, scalars[i], after[i], wanted)
				}
			}
		}
		for i := range 64 {
			if (after[mask]^before[mask])>>i&1 != 0 {
				changed = append(changed, bits[i])
				if tensor != wanted {
					t.Errorf("%s: the address is %#x, required: %#x", l.name, tensor, wanted)
				}
			}
		}
		if field.Kind() == reflect.Pointer && len(changed) == 0 {
			continue
		}
		if len(changed) != 1 {
			t.Errorf("%s sets %v, required: one value", l.name, changed)
			continue
		}
		if other := setBy[changed[0]]; other != "" {
			t.Errorf("%s and %s set %s", other, l.name, changed[0])
		}
		setBy[changed[0]] = l.name
	}
	for name := range layout {
		if name == "Mask" || name == "MaxWords" {
			continue
		}
		reason := unset[d.words+name]
		if by := setBy[name]; by == "" && reason == "" || by != "" && reason != "" {
			t.Errorf("%s is set by %q; exempt: %q", name, by, reason)
		}
	}
}

// encoded is the words of a description up to the mask, and the address of its first tensor.
func encoded(d described, root reflect.Value, mask int) (words []uint64, address uint64) {
	q := d.encode(root.Interface())
	defer q.free()
	words = append(words, q.words[:mask+1]...)
	if q.used > mask+1 {
		address = q.words[mask+1]
	}
	return words, address
}

var (
	enumBlock = regexp.MustCompile(`(?ms)^// (fastnorm_\w+)\.\nconst \(\n(.*?)^\)`)
	function  = regexp.MustCompile(`(?m)^func ((?:Fastnorm|Fnb)_\w+)\(`)
	getter    = regexp.MustCompile(`(?m)^func \(arg1 SwigcptrFastnorm_\w+\) (Get\w+)\(`)
)

// Each value of each enum has a name in this package.
func TestEnumsComplete(t *testing.T) {
	source, blocks := sources(t), enumBlock.FindAllStringSubmatch(
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
				if !names(source, value[1]) {
					t.Errorf("%s has no name in Go", value[1])
				}
			}
		})
	}
}

// names tells whether the text uses a name of the package raw.
func names(text, name string) bool {
	return regexp.MustCompile(`\braw\.` + name + `\b`).MatchString(text)
}

// Each function of the generated layer, and each value that it reads, is used.
func TestFunctionsComplete(t *testing.T) {
	source, generated := sources(t), read(t, "internal/raw/raw.go")
	functions := function.FindAllStringSubmatch(generated, -1)
	getters := getter.FindAllStringSubmatch(generated, -1)
	if len(functions) < 40 || len(getters) < 20 {
		t.Fatalf("%d functions, %d getters", len(functions), len(getters))
	}
	for _, f := range functions {
		t.Run(f[1], func(t *testing.T) {
			if !names(source, f[1]) {
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
