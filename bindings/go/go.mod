module github.com/libfastnorm/libfastnorm/bindings/go

go 1.24
