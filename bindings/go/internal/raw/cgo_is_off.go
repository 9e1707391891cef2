//go:build !cgo

package raw

// The compiler's error has this text. Go turns cgo off where it finds no C compiler, too, and when
// it compiles for another platform.
const _ int = "libfastnorm for Go calls C; required: CGO_ENABLED=1 and a C compiler"
