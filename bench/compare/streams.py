"""The plain streaming kernels of stream.cu, from libfastnorm_streams.so."""

import ctypes
from ctypes import c_char_p, c_int32, c_int64, c_void_p


class Streams:
    def __init__(self, path):
        self.c = c = ctypes.CDLL(str(path))
        c.streams_name.restype = c.streams_error.restype = c_char_p
        c.streams_count.argtypes = [c_int32, c_int32]
        c.streams_name.argtypes = [c_int32, c_int32, c_int32]
        c.streams_launch.argtypes = [c_int32, c_int32, c_int32, *[c_void_p] * 4, c_int64, c_void_p]

    def names(self, reads, narrow):
        return [self.c.streams_name(reads, narrow, i).decode() for i in range(self.c.streams_count(reads, narrow))]

    def launch(self, reads, narrow, index, addresses, size, queue):
        if self.c.streams_launch(reads, narrow, index, *addresses, size, queue) != 0:
            raise RuntimeError(self.c.streams_error().decode())
