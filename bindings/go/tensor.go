package fastnorm

import (
	"fmt"
	"math"
	"math/bits"
	"unsafe"

	"github.com/libfastnorm/libfastnorm/bindings/go/internal/raw"
)

// inlineRank is the rank up to which a Tensor holds its shape in itself; functions take 1 to 8.
const inlineRank = 4

// Tensor is a view of memory with a dtype, a shape and strides. It is a plain value that may be
// copied and kept; it owns no memory, but one of a slice keeps the slice alive. The zero Tensor is
// "not given".
type Tensor struct {
	data   unsafe.Pointer // of a slice, pinned during calls; nil for an address
	where  uint64         // without a slice the address, with one its bytes
	device Device
	dtype  DType
	rank   uint16
	given  bool
	fault  fault
	shape  [inlineRank]int64
	more   *more // nil for the most part; never changed, for copies of the tensor share it
}

// more is what few tensors have.
type more struct {
	shape   [raw.MaxRank]int64 // of more than inlineRank extents
	strides [raw.MaxRank]int64
	strided bool
	given   int // strides, for the message if that is not the rank
	offset  uint64
}

// fault is what is wrong with a tensor that the library cannot see.
type fault uint8

const (
	noFault     fault = iota
	tooShort          // the slice, for shape, strides and offset
	wrongStride       // not one stride for each extent
)

// Of views a slice as a compact, row-major tensor in ordinary memory. A slice that is longer than
// the shape needs is fine; one that is shorter is an error of the call that uses the tensor.
func Of[T Element](data []T, shape ...int) Tensor {
	return ofSlice(unsafe.Pointer(unsafe.SliceData(data)), len(data)*int(unsafe.Sizeof(*new(T))),
		dtypeOf[T](), shape)
}

// View is [Of] with a dtype of its own: the slice is mere memory. So a []uint16 can hold bf16 bits,
// and a []byte anything, if its address is a multiple of the element's size.
func View[T int8 | uint8 | int16 | uint16 | int32 | uint32 | int64 | uint64 | float32](data []T,
	dtype DType, shape ...int) Tensor {
	return ofSlice(unsafe.Pointer(unsafe.SliceData(data)), len(data)*int(unsafe.Sizeof(*new(T))),
		dtype, shape)
}

func ofSlice(data unsafe.Pointer, size int, dtype DType, shape []int) Tensor {
	t := Tensor{device: CPU, dtype: dtype, given: true}
	if size > 0 {
		t.data, t.where = data, uint64(size)
	}
	t.setShape(shape)
	t.checkMemory()
	return t
}

// At views memory by its address as a compact, row-major tensor: memory of a GPU, or of C. It must
// be valid until the call has returned, on a GPU until the stream has run the work. Nothing can be
// checked here.
func At(device Device, address uintptr, dtype DType, shape ...int) Tensor {
	t := Tensor{where: uint64(address), device: device, dtype: dtype, given: true}
	t.setShape(shape)
	return t
}

// WithStrides returns the tensor with strides, counted in elements, one for each extent. The last
// dimension must be contiguous; leading strides are free: any sign, 0 for inputs.
func (t Tensor) WithStrides(strides ...int) Tensor {
	m := t.copyMore()
	m.strided, m.given = true, len(strides)
	for i, s := range strides[:min(len(strides), raw.MaxRank)] {
		m.strides[i] = int64(s)
	}
	t.more = m
	t.check()
	return t
}

// WithOffset returns the tensor with that many bytes added to its address; the first element lies
// there.
func (t Tensor) WithOffset(bytes uint64) Tensor {
	m := t.copyMore()
	m.offset = bytes
	t.more = m
	t.check()
	return t
}

// Given tells whether this is a tensor, and not the zero Tensor.
func (t Tensor) Given() bool { return t.given }

// DType returns the element type.
func (t Tensor) DType() DType { return t.dtype }

// Device returns where the memory is.
func (t Tensor) Device() Device { return t.device }

// Shape returns the extents, as far as the rank is at most 8.
func (t Tensor) Shape() []int { return t.list(t.extent) }

// Strides returns the strides in elements; nil if the tensor is compact.
func (t Tensor) Strides() []int {
	if !t.strided() {
		return nil
	}
	return t.list(t.stride)
}

// Offset returns the bytes that are added to the address.
func (t Tensor) Offset() uint64 {
	if t.more == nil {
		return 0
	}
	return t.more.offset
}

func (t *Tensor) list(at func(int) int64) []int {
	values := make([]int, min(int(t.rank), raw.MaxRank))
	for i := range values {
		values[i] = int(at(i))
	}
	return values
}

func (t *Tensor) extent(i int) int64 {
	if t.rank <= inlineRank {
		return t.shape[i]
	}
	return t.more.shape[i]
}

// strided tells whether there are strides, as many as extents.
func (t *Tensor) strided() bool { return t.more != nil && t.more.strided && t.fault != wrongStride }

func (t *Tensor) stride(i int) int64 { return t.more.strides[i] }

func (t *Tensor) setShape(shape []int) {
	t.rank = uint16(min(len(shape), math.MaxUint16))
	if len(shape) > inlineRank {
		t.setWideShape(shape)
		return
	}
	for i, extent := range shape {
		t.shape[i] = int64(extent)
	}
}

func (t *Tensor) setWideShape(shape []int) {
	t.more = &more{}
	for i, extent := range shape[:min(len(shape), raw.MaxRank)] {
		t.more.shape[i] = int64(extent)
	}
}

func (t *Tensor) copyMore() *more {
	if t.more == nil {
		return &more{}
	}
	m := *t.more
	return &m
}

// --- does the slice hold the elements? ---

// check notes what is wrong with the strides and the slice.
func (t *Tensor) check() {
	t.fault = noFault
	if t.more != nil && t.more.strided && t.more.given != int(t.rank) {
		t.fault = wrongStride
		return
	}
	t.checkMemory()
}

// checkMemory notes a slice that is too short. What the library finds itself, such as a negative
// extent, is left to it.
func (t *Tensor) checkMemory() {
	if t.data == nil || t.rank > raw.MaxRank {
		return
	}
	if t.more == nil {
		if !t.compactFits() {
			t.fault = tooShort
		}
		return
	}
	low, high, ok := t.reach()
	if !ok || low < 0 || high > int64(t.where) {
		t.fault = tooShort
	}
}

// compactFits is reach's answer for what most tensors are: compact, from the start of the slice.
func (t *Tensor) compactFits() bool {
	elements := uint64(1)
	for _, extent := range t.shape[:t.rank] {
		if extent <= 0 {
			return true
		}
		high, low := bits.Mul64(elements, uint64(extent))
		if high != 0 {
			return false
		}
		elements = low
	}
	high, low := bits.Mul64(elements, uint64(t.dtype.Bits()))
	return high == 0 && low <= t.where*8
}

// reach returns the first byte that belongs to an element and the one after the last, counted from
// the start of the slice; false if they cannot be counted.
func (t *Tensor) reach() (low, high int64, ok bool) {
	var first, last int64 // elements
	compact := int64(1)
	ok = true
	strided := t.strided()
	for i := int(t.rank) - 1; i >= 0; i-- {
		extent := t.extent(i)
		if extent <= 0 {
			return 0, 0, true // no element, or an extent that the library refuses
		}
		step := compact
		if strided {
			step = t.stride(i)
		}
		span := times(extent-1, step, &ok)
		if span < 0 {
			first = plus(first, span, &ok)
		} else {
			last = plus(last, span, &ok)
		}
		if !strided {
			compact = times(compact, extent, &ok)
		}
	}
	offset := t.Offset()
	if offset > math.MaxInt64 {
		return 0, 0, false
	}
	width := int64(t.dtype.Bits())
	low = plus(times(first, width, &ok)>>3, int64(offset), &ok)
	end := times(plus(last, 1, &ok), width, &ok)
	high = plus(plus(end, 7, &ok)>>3, int64(offset), &ok)
	return low, high, ok
}

func times(a, b int64, ok *bool) int64 {
	high, low := bits.Mul64(magnitude(a), magnitude(b))
	if high != 0 || low > math.MaxInt64 {
		*ok = false
		return 0
	}
	if (a < 0) != (b < 0) {
		return -int64(low)
	}
	return int64(low)
}

func plus(a, b int64, ok *bool) int64 {
	sum := a + b
	if (a < 0) == (b < 0) && (sum < 0) != (a < 0) {
		*ok = false
		return 0
	}
	return sum
}

func magnitude(a int64) uint64 {
	if a < 0 {
		return -uint64(a)
	}
	return uint64(a)
}

// refusal is the error for a tensor with a fault, under its name in the call.
func (t *Tensor) refusal(name string) error {
	if t.fault == wrongStride {
		return &Error{
			Status: StatusLayout,
			Message: fmt.Sprintf("%s has %d strides; required: %d, one for each extent of %v", name,
				t.more.given, t.rank, t.Shape()),
		}
	}
	layout := fmt.Sprintf("shape %v", t.Shape())
	if t.strided() {
		layout += fmt.Sprintf(" and strides %v", t.Strides())
	}
	if offset := t.Offset(); offset != 0 {
		layout += fmt.Sprintf(" at byte %d", offset)
	}
	low, high, ok := t.reach()
	required := "fewer than 2^63 bytes"
	if ok {
		required = fmt.Sprintf("bytes %d to %d", low, high)
	}
	return &Error{
		Status: StatusShape,
		Message: fmt.Sprintf("%s's slice has %d bytes; required: %s for %s of %v", name, t.where,
			required, layout, t.dtype),
	}
}
