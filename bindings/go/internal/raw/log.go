package raw

// #include <stdint.h>
import "C"

import "runtime/cgo"

// fastnormGoLog is what the C side calls for a message of a context. The handle is that of a
// func(int32, string), which must return normally.
//
//export fastnormGoLog
func fastnormGoLog(handle C.uintptr_t, level C.int32_t, text *C.char) {
	cgo.Handle(handle).Value().(func(int32, string))(int32(level), C.GoString(text))
}
