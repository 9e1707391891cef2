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

    # written: ops.ALIKE, NARROW or JOINED

    def names(self, reads, written):
        return [
            self.c.streams_name(reads, written, i).decode()
            for i in range(self.c.streams_count(reads, written))
        ]

    def launch(self, reads, written, index, addresses, size, queue):
        """addresses: two that are read, two that are written; of JOINED the last is read."""
        if self.c.streams_launch(reads, written, index, *addresses, size, queue) != 0:
            raise RuntimeError(self.c.streams_error().decode())
