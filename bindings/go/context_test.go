package fastnorm_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	fastnorm "github.com/libfastnorm/libfastnorm/bindings/go"
)

func TestVersions(t *testing.T) {
	v := fastnorm.Version()
	equal(t, "the version", fastnorm.VersionString(),
		fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100))
	if !strings.Contains(fastnorm.BuildInfo(), "compiler") {
		t.Errorf("the build info is %q", fastnorm.BuildInfo())
	}
	if fastnorm.NumericVersion() < 1 {
		t.Errorf("the numeric version is %d", fastnorm.NumericVersion())
	}
}

func TestKernels(t *testing.T) {
	kernels, err := fastnorm.Kernels()
	check(t, err)
	cpu, err := fastnorm.Describe(fastnorm.CPU)
	check(t, err)
	own := 0
	seen := map[fastnorm.Kernel]bool{}
	for _, k := range kernels {
		if k.Family == "" || k.Arch == "" || k.Name == "" || seen[k] {
			t.Errorf("kernel %+v", k)
		}
		seen[k] = true
		if k.Arch == cpu.KernelArch {
			own++
		}
	}
	if own == 0 {
		t.Errorf("no kernel of %q among %d", cpu.KernelArch, len(kernels))
	}
}

func TestDevices(t *testing.T) {
	count, err := fastnorm.DeviceCount(fastnorm.DeviceCPU)
	check(t, err)
	equal(t, "number of CPUs", count, 1)
	gpus, err := fastnorm.DeviceCount(fastnorm.DeviceCUDA)
	check(t, err)
	_, err = fastnorm.DeviceCount(77)
	wantError(t, err, fastnorm.ErrArgument, "device_type is 77")
	info, err := fastnorm.Describe(fastnorm.CPU)
	check(t, err)
	if info.Name == "" || info.Multiprocessors < 1 || info.Capability != 0 || info.MemoryBytes != 0 {
		t.Errorf("the CPU is %+v", info)
	}
	_, err = fastnorm.Describe(fastnorm.CUDA(gpus))
	wantError(t, err, fastnorm.ErrDevice, "")
	_, err = fastnorm.Open(fastnorm.CUDA(gpus))
	wantError(t, err, fastnorm.ErrDevice, "")
	equal(t, "a device", fastnorm.CUDA(3).String(), "CUDA:3")
	equal(t, "its type", fastnorm.CUDA(3).Type(), fastnorm.DeviceCUDA)
	equal(t, "its number", fastnorm.DeviceOf(fastnorm.DeviceCUDAManaged, -7).ID(), -7)
	equal(t, "the CPU", fastnorm.CPU, fastnorm.DeviceOf(fastnorm.DeviceCPU, 0))
	equal(t, "the CPU's name", fastnorm.CPU.String(), "CPU:0")
	equal(t, "a name",
		fastnorm.DeviceOf(fastnorm.DeviceCUDAHost,
			1).String()+fastnorm.DeviceOf(fastnorm.DeviceCUDAManaged, 2).String(), "CUDAHost:1CUDAManaged:2")
	equal(t, "no name", fastnorm.DeviceType(99).String(), "DeviceType(99)")
	equal(t, "a context's device", cpu(t).Device(), fastnorm.CPU)
}

func TestLog(t *testing.T) {
	var messages []string
	c, err := fastnorm.OpenWith(fastnorm.CPU,
		fastnorm.Options{Log: func(level fastnorm.LogLevel, text string) {
			runtime.GC() // Go's memory may not be needed by who calls
			messages = append(messages, fmt.Sprintf("%d %s", level, text))
		}})
	check(t, err)
	defer c.Close()
	if len(messages) == 0 || !strings.HasPrefix(messages[0], fmt.Sprintf("%d ", fastnorm.LogInfo)) ||
		len(messages[0]) < 10 {
		t.Errorf("the messages are %q", messages)
	}
	defer func() {
		if p := recover(); p != "of the user" {
			t.Errorf("recovered %v", p)
		}
	}()
	_, err = fastnorm.OpenWith(fastnorm.CPU,
		fastnorm.Options{Log: func(fastnorm.LogLevel, string) { panic("of the user") }})
	t.Errorf("no panic, error %v", err)
}

func TestGoroutines(t *testing.T) {
	const rows, n = 50, 300
	x := make([]float32, rows*n)
	for i := range x {
		x[i] = float32(i%1013) - 500
	}
	for _, threads := range []int{0, 3} {
		c := open(t, fastnorm.CPU, fastnorm.Options{Threads: threads})
		wanted := make([]float32, len(x))
		norm := func(y []float32) fastnorm.Norm {
			return fastnorm.Norm{Kind: fastnorm.Layer, Eps: 1e-5, X: fastnorm.Of(x, rows, n),
				Y: fastnorm.Of(y, rows, n)}
		}
		check(t, c.Norm(norm(wanted)))
		var group sync.WaitGroup
		for range 8 {
			group.Add(1)
			go func() {
				defer group.Done()
				for range 20 {
					y := make([]float32, len(x))
					if err := c.Norm(norm(y)); err != nil {
						t.Error(err)
						return
					}
					for i := range y {
						if y[i] != wanted[i] {
							t.Errorf("y[%d] is %v, required: %v", i, y[i], wanted[i])
							return
						}
					}
				}
			}()
		}
		group.Wait()
	}
}

var global = [4]float32{1, 2, 3, 4}

// Memory that is not of Go's heap: a mapped file, a global array, a part of an array, by its
// address.
func TestForeignMemory(t *testing.T) {
	mapped, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE)
	check(t, err)
	defer syscall.Munmap(mapped)
	// 1, 2, 3, 4
	copy(mapped[16:], []byte{0, 0, 0x80, 0x3f, 0, 0, 0, 0x40, 0, 0, 0x40, 0x40, 0, 0, 0x80, 0x40})
	large := make([]float32, 1<<20)
	y := large[1<<19 : 1<<19+4]
	wanted := make([]float32, 4)
	c := cpu(t)
	check(t, c.Norm(fastnorm.Norm{X: fastnorm.Of([]float32{1, 2, 3, 4}, 4),
		Y: fastnorm.Of(wanted, 4)}))
	address := uintptr(unsafe.Pointer(&mapped[16]))
	for name, x := range map[string]fastnorm.Tensor{
		"mapped":  fastnorm.View(mapped[16:], fastnorm.F32, 4),
		"offset":  fastnorm.View(mapped, fastnorm.F32, 4).WithOffset(16),
		"global":  fastnorm.Of(global[:], 4),
		"address": fastnorm.At(fastnorm.CPU, address, fastnorm.F32, 4),
		"pinned": fastnorm.At(fastnorm.DeviceOf(fastnorm.DeviceCUDAHost, 0), address-4, fastnorm.F32,
			4).WithOffset(4),
	} {
		clear(y)
		check(t, c.Norm(fastnorm.Norm{X: x, Y: fastnorm.Of(y, 4)}))
		equals(t, name, y, wanted...)
	}
	wantError(t,
		c.Norm(fastnorm.Norm{X: fastnorm.View(mapped[1:], fastnorm.F32, 4), Y: fastnorm.Of(y, 4)}),
		fastnorm.ErrLayout, "required: a multiple of 4, the bytes of f32")
}

// --- a GPU that is not there ---

func TestDryRun(t *testing.T) {
	c := dryGPU(t)
	at := func(p uintptr, shape ...int) fastnorm.Tensor {
		return fastnorm.At(c.Device(), p, fastnorm.BF16, shape...)
	}
	const rows, n = 128, 4096
	norm := fastnorm.Norm{Eps: 1e-6, X: at(0x100000000000, rows, n), Y: at(0x200000000000, rows, n),
		Weight: at(0x300000000000, n)}
	info, err := c.NormQuery(norm)
	check(t, err)
	equal(t, "launches", info.Launches, 1)
	equal(t, "bytes read", info.BytesRead, (rows*n+n)*2)
	equal(t, "bytes written", info.BytesWritten, rows*n*2)
	if info.Kernel == "" || info.Blocks < 1 || info.ThreadsPerRow < 1 || info.BlocksPerRow < 1 ||
		info.RowsPerBlock < 1 || info.VectorBytes != 16 || info.VectorsPerThread < 0 {
		t.Errorf("the plan is %+v", info)
	}
	check(t, c.NormPrepare(norm))
	check(t, c.Norm(norm, fastnorm.Stream(0x1234), fastnorm.Workspace(0, 0)))
	check(t, norm.Run(c, fastnorm.Workspace(0x400000000000, 1<<20)))
	check(t, c.NormMany([]fastnorm.Norm{norm}, fastnorm.Stream(1)))
	norm.X = fastnorm.Of(make([]fastnorm.BFloat16, rows*n), rows, n)
	wantError(t, c.Norm(norm), fastnorm.ErrDevice, "x is on device CPU:0")
	norm.X = at(0x100000000001, rows, n)
	wantError(t, c.Norm(norm), fastnorm.ErrLayout,
		"x's address is 0x100000000001; required: a multiple of 2")
	norm.X = fastnorm.At(fastnorm.DeviceOf(fastnorm.DeviceCUDAManaged, 0), 0x100000000000,
		fastnorm.BF16, rows, n)
	check(t, c.Norm(norm))
	norm.X = fastnorm.At(fastnorm.CUDA(1), 0x100000000000, fastnorm.BF16, rows, n)
	wantError(t, c.Norm(norm), fastnorm.ErrDevice, "x is on device CUDA:1")
	wantError(t, c.NormMany(make([]fastnorm.Norm, 9)), fastnorm.ErrArgument,
		"count is 9; required: 0 to 8")
	wantError(t, c.NormManyPrepare(make([]fastnorm.Norm, 100)), fastnorm.ErrArgument,
		"count is 100; required: 0 to 8")
	x := []float32{1, 2}
	v := fastnorm.Of(x, 1, 2)
	wantError(t, cpu(t).Norm(fastnorm.Norm{X: v, Y: v}, fastnorm.Stream(1)), fastnorm.ErrArgument,
		"stream is 0x1 and the context is a CPU's; required: NULL")
	dry := open(t, fastnorm.CPU, fastnorm.Options{DryRun: true})
	check(t, dry.Norm(fastnorm.Norm{X: v, Y: v}))
	equals(t, "x", x, 1, 2)
}

func TestTuningFile(t *testing.T) {
	const tuned = "bf16 plain rms once store vector 256x4"
	path := filepath.Join(t.TempDir(), "größe") // UTF-8, as all paths of Go
	text := fmt.Sprintf("fastnorm tuning 2\nlibrary %s\narch sm_90\n"+
		"KIND(b16, plain, rms, own_dtype, y, aligned, lean | full, rows)\n"+
		"ROWS(4096, 4096, 4, 7, 256, 4, 1, full)\n", fastnorm.VersionString())
	check(t, os.WriteFile(path, []byte(text), 0o600))
	c := open(t, fastnorm.CUDA(0),
		fastnorm.Options{DryRun: true, DryRunCapability: 90, TuningFile: path})
	check(t, os.Remove(path)) // it is read once
	kernel := func(c *fastnorm.Context, rows int) string {
		at := func(p uintptr) fastnorm.Tensor {
			return fastnorm.At(c.Device(), p, fastnorm.BF16, rows,
				4096)
		}
		info, err := c.NormQuery(fastnorm.Norm{X: at(0x100000000000), Y: at(0x200000000000)})
		check(t, err)
		return info.Kernel
	}
	untuned := dryGPU(t)
	equal(t, "the kernel of 4 rows", kernel(c, 4), tuned)
	equal(t, "the kernel of 8 rows", kernel(c, 8), kernel(untuned, 8))
	for _, rows := range []int{4, 8} {
		if kernel(untuned, rows) == tuned {
			t.Errorf("%d rows run on %s without a file", rows, tuned)
		}
	}
}

// --- no leak, no allocation ---

func residentBytes(t *testing.T) int {
	text, err := os.ReadFile("/proc/self/statm")
	check(t, err)
	pages, err := strconv.Atoi(string(bytes.Fields(text)[1]))
	check(t, err)
	return pages * os.Getpagesize()
}

func TestMillionCalls(t *testing.T) {
	if underRace {
		t.Skip("the race detector takes memory of its own")
	}
	rounds := 1000
	if testing.Short() {
		rounds = 20
	}
	c, gpu := cpu(t), dryGPU(t)
	x, residual := make([]float32, 16), make([]float32, 16)
	device := fastnorm.At(gpu.Device(), 0x100000000000, fastnorm.BF16, 4, 4)
	round := func() {
		for i := range 1000 {
			v, r := fastnorm.Of(x, 4, 4), fastnorm.Of(residual, 4, 4)
			n := fastnorm.Norm{Eps: 1, X: v, Y: v, Residual: r, ResidualOut: r}
			switch i % 10 {
			case 0: // refused, by the library and by us
				n.Eps = -1
				wantError(t, n.Run(c), fastnorm.ErrArgument, "eps is -1")
			case 1:
				n.X = fastnorm.Of(x, 5, 4)
				wantError(t, n.Run(c), nil, "")
			case 2:
				n.X = v.WithStrides(4, 1)
				check(t, c.NormMany([]fastnorm.Norm{n}))
			case 3:
				_, err := c.NormQuery(n)
				check(t, err)
			case 4, 5, 6:
				check(t, c.Norm(n))
			default:
				n = fastnorm.Norm{X: device, Y: device}
				check(t, n.Run(gpu))
			}
		}
		own, err := fastnorm.OpenWith(fastnorm.CPU,
			fastnorm.Options{Log: func(fastnorm.LogLevel, string) {}})
		check(t, err)
		own.Close()
	}
	for range 100 { // until the heap has its size
		round()
	}
	before := residentBytes(t)
	for range rounds {
		round()
	}
	grown := residentBytes(t) - before
	t.Logf("%d calls: the process grew by %d KiB", rounds*1000, grown>>10)
	if grown > 4<<20 {
		t.Errorf("%d calls: the process grew by %d KiB", rounds*1000, grown>>10)
	}
}

func TestAllocations(t *testing.T) {
	if underRace {
		t.Skip("the race detector empties pools")
	}
	c, gpu := cpu(t), dryGPU(t)
	x, y := make([]float32, 16), make([]float32, 16)
	for what, call := range map[string]func() error{
		"CPU": func() error {
			return c.Norm(fastnorm.Norm{X: fastnorm.Of(x, 4, 4), Y: fastnorm.Of(y, 4, 4)})
		},
		"device": func() error {
			at := func(p uintptr) fastnorm.Tensor {
				return fastnorm.At(gpu.Device(), p, fastnorm.BF16, 4,
					4)
			}
			n := fastnorm.Norm{X: at(0x1000), Y: at(0x2000)}
			return n.Run(gpu, fastnorm.Stream(1))
		},
	} {
		if found := testing.AllocsPerRun(1000, func() { check(t, call()) }); found >= 1 {
			t.Errorf("%s: %v allocations a call", what, found)
		}
	}
}
