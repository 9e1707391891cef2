package fastnorm

import (
	"errors"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/libfastnorm/libfastnorm/bindings/go/internal/raw"
)

func TestCheckVersion(t *testing.T) {
	for loaded, message := range map[int32]string{
		raw.FASTNORM_VERSION:     "",
		raw.FASTNORM_VERSION + 1: "",
		990000:                   "",
		99: "libfastnorm 0.0.99 is loaded; required: " +
			versionText(raw.FASTNORM_VERSION) + " or later",
	} {
		err := checkVersion(loaded)
		if message == "" && err != nil || message != "" &&
			(err == nil || err.(*Error).Message != message) {
			t.Errorf("%d: %v, required: %q", loaded, err, message)
		}
	}
}

// hungry is a family that needs a workspace, as the library may some day.
func hungry(needs uint64, runs *int) *family {
	dry, err := OpenWith(CPU, Options{DryRun: true})
	if err != nil {
		panic(err)
	}
	return &family{
		run: func(context uintptr, q *call) int32 {
			*runs++
			if uint64(q.workspaceBytes) < needs || q.workspace%256 != 0 || q.workspace == 0 {
				// A refusal with a text of the library.
				return raw.Fnb_norm(dry.h.raw, q.list(), 0, 0, 0, 0)
			}
			memory := unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&q.workspace))),
				q.workspaceBytes)
			for i := range memory {
				memory[i] = byte(i)
			}
			runtime.GC()
			for i := range memory {
				if memory[i] != byte(i) {
					panic("the workspace moved")
				}
			}
			return 0
		},
	}
}

// The library of today needs no workspace on the CPU, so that the second try is tested by itself.
func TestWorkspace(t *testing.T) {
	c, err := Open(CPU)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, bytes := range []uint64{1, 255, 256, 257, 100000} {
		runs := 0
		f := hungry(bytes, &runs)
		q := newCall(0, 0)
		if err := q.withWorkspace(c, f, bytes); err != nil || runs != 1 {
			t.Errorf("%d bytes: %v after %d runs", bytes, err, runs)
		}
		q.free()
		if q.workspace != 0 || len(q.pinned) != 0 {
			t.Error("the workspace was kept")
		}
	}
	q := newCall(0, 0)
	if err := q.withWorkspace(c, callNorm, math.MaxUint64); !errors.Is(err, ErrOutOfMemory) {
		t.Error(err)
	}
	q.free()
	// A call that needs none and fails keeps its own error; one that is given too little, too.
	n := Norm{X: Of([]float32{1}, 1)}
	for _, options := range [][]CallOption{nil, {Workspace(256, 1)}, {Workspace(0, 5)}} {
		if err := n.Run(c, options...); err == nil || !strings.Contains(err.Error(), "y is NULL") {
			t.Error(err)
		}
	}
}

// A list that is not what the decoder expects is an error of its own.
func TestMalformed(t *testing.T) {
	c, err := Open(CPU)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	x := Of([]float32{1, 2}, 1, 2)
	n := Norm{X: x, Y: x}
	for _, f := range []*family{callNorm, callNormMany} {
		for change := range 3 {
			q := n.call()
			switch change {
			case 0:
				q.used--
			case 1:
				q.used++
			case 2:
				q.words[raw.NormMask] |= 1 << 40
			}
			err := q.run(c, f)
			if !errors.Is(err, ErrInternal) || !strings.Contains(err.Error(), "malformed") {
				t.Errorf("change %d: %v", change, err)
			}
			q.free()
		}
	}
}

func TestCloseDuringCalls(t *testing.T) {
	for range 50 {
		c, err := Open(CPU)
		if err != nil {
			t.Fatal(err)
		}
		h := c.h
		var group sync.WaitGroup
		start := make(chan struct{})
		for range 4 {
			group.Add(1)
			go func() {
				defer group.Done()
				x := make([]float32, 64)
				n := Norm{Eps: 1, X: Of(x, 4, 16), Y: Of(x, 4, 16)}
				<-start
				for {
					if err := n.Run(c); err != nil {
						if err != ErrClosed {
							t.Error(err)
						}
						return
					}
				}
			}()
		}
		close(start)
		runtime.Gosched()
		for range 2 {
			go c.Close()
		}
		group.Wait()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		for !h.destroyed.Load() {
			runtime.Gosched()
		}
		if calls := h.state.Load(); calls != closed {
			t.Errorf("%d calls are left", calls-closed)
		}
	}
}

// The context lives until the call that keeps it has ended.
func TestCloseDefersDestruction(t *testing.T) {
	c, err := Open(CPU)
	if err != nil {
		t.Fatal(err)
	}
	h := c.acquire()
	c.Close()
	if h.destroyed.Load() {
		t.Error("destroyed during a call")
	}
	if c.acquire() != nil {
		t.Error("a call on a closed context")
	}
	if h.destroyed.Load() {
		t.Error("destroyed by a call that was refused")
	}
	h.release()
	if !h.destroyed.Load() {
		t.Error("not destroyed")
	}
}

// A context that is forgotten is destroyed by the garbage collector.
func TestForgotten(t *testing.T) {
	h := func() *handle {
		c, err := OpenWith(CPU, Options{Log: func(LogLevel, string) {}})
		if err != nil {
			t.Fatal(err)
		}
		return c.h
	}()
	for range 500 {
		runtime.GC()
		if h.destroyed.Load() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("never destroyed")
}

// Constants that are not printed by the generator.
func TestNumbers(t *testing.T) {
	if size := unsafe.Sizeof(ProfileEvent{}); size != 40 {
		t.Errorf("a ProfileEvent has %d bytes, the library's 40", size)
	}
	if size := unsafe.Sizeof(Tensor{}); size > 72 {
		t.Errorf("a Tensor has %d bytes: calls copy them", size)
	}
}
