"""Norms and attention of the model by libfastnorm's C ABI, in host memory or on a GPU."""

import numpy as np

from fastnorm.abi import (
    BF16, CPU, CUDA, F16, F32, F8_E4M3FN, I32, PER_BLOCK, U8, Context, DeviceArray, Devmem,
    MlaCacheFormat,
)  # fmt: skip

ROW_BYTES = 656  # of an FP8 cache: 512 codes, 4 scales of f32, 64 numbers of bf16


class Format:
    """The dtype of all tensors of norms and attention. NumPy has no bf16: its bits are kept as
    uint16."""

    def __init__(self, name):
        self.name = name
        self.dtype, self.storage, significand = {
            "f32": (F32, np.float32, 24),
            "f16": (F16, np.float16, 11),
            "bf16": (BF16, np.uint16, 8),
        }[name]
        self.unit = 2.0 ** -significand  # largest relative error of one rounding

    def encode(self, x):
        """A compact array of this format, rounded to nearest, ties to even."""
        x = np.ascontiguousarray(x, np.float32)
        if self.name != "bf16":
            return x.astype(self.storage)
        bits = x.view(np.uint32)
        rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16
        return np.where(np.isnan(x), 0x7fc0, rounded).astype(np.uint16)

    def decode(self, stored):
        if self.name != "bf16":
            return stored.astype(np.float32)
        return (stored.astype(np.uint32) << 16).view(np.float32)


class View:
    """Memory as fastnorm.abi takes it: address, shape, strides in bytes, dtype."""

    def __init__(self, address, dtype, shape, strides, itemsize):
        self.address, self.dtype, self.shape = address, dtype, shape
        self.strides, self.itemsize = strides, itemsize


class Buffer:
    """An array on the host and, with devmem, its copy on the GPU."""

    def __init__(self, host, dtype, devmem=None):
        self.host, self.dtype = host, dtype
        self.device = DeviceArray(devmem, host) if devmem and host.size else None

    def view(self, part=None):
        """All of it, or a part: a NumPy view of self.host."""
        part = self.host if part is None else part
        address = part.ctypes.data
        if self.device is not None:
            address += self.device.address - self.host.ctypes.data
        return View(address, self.dtype, part.shape, part.strides, part.itemsize)

    def upload(self):
        if self.device is not None:
            self.device.upload(self.host)

    def download(self):
        if self.device is not None:
            self.device.download(self.host)
        return self.host


class Compute:
    """What the model asks for. `scale_error` makes every attention wrong by this factor: a test
    that it is noticed. `fp8`: the cache has rows of 656 bytes, and the format is bf16."""

    def __init__(
        self, library, config, format_name, device, devmem_path=None, threads=1, scale_error=0.0,
        fp8=False,
    ):  # fmt: skip
        self.config, self.format, self.fp8 = config, Format(format_name), fp8
        self.scale = config.scale * (1 + scale_error)
        # The context first: where there is no GPU, the library's text says more than the driver's.
        self.context = Context(library, device, 0, 0 if device == CUDA else threads)
        self.devmem = Devmem(devmem_path, 0) if device == CUDA else None
        self.stream = self.devmem.stream if self.devmem else None
        self._weights, self._workspace = {}, None
        info = library.describe(device)
        kind, arch = "GPU" if device == CUDA else "CPU", info.kernel_arch.decode()
        self.name = f"{kind} ({info.name.decode()}, {arch} kernels)"
        self.norms = self.attentions = 0

    def _buffer(self, host, dtype=None):
        return Buffer(host, dtype or self.format.dtype, self.devmem)

    def _result(self, buffer):
        if self.devmem:
            self.devmem.synchronize()
        return buffer.download()

    # --- norms ---

    def _weight(self, weight):
        if id(weight) not in self._weights:
            self._weights[id(weight)] = self._buffer(weight, F32)
        return self._weights[id(weight)].view()

    def _norm(self, x, weight, residual):
        x = self._buffer(self.format.encode(x))
        y = self._buffer(np.empty_like(x.host))
        sums = None if residual is None else self._buffer(residual, F32)
        view = None if sums is None else sums.view()
        self.context.call(
            x=x.view(),
            residual=view,
            residual_out=view,
            y=y.view(),
            weight=self._weight(weight),
            eps=self.config.eps,
            stream=self.stream,
        ).run()
        self.norms += 1
        result = self.format.decode(self._result(y))
        if sums is not None:
            sums.download()
        return result

    def norm(self, x, weight):
        return self._norm(x, weight, None)

    def add_norm(self, x, residual, weight):
        """The norm of residual + x, which is stored over the float32 `residual`."""
        return self._norm(x, weight, residual)

    # --- the cache and attention ---

    def cache(self, pages, page, width):
        """Rows that no token has yet are NaN."""
        if self.fp8:
            return self._buffer(np.full((pages, page, ROW_BYTES), 0xff, np.uint8), U8)
        return self._buffer(self.format.encode(np.full((pages, page, width), np.nan)))

    def begin(self, cache, counts):
        """A step of the model begins: counts[i] new tokens of request i, the same for all
        blocks."""
        self._lengths = self._buffer(cache.lengths.copy(), I32)
        self._table = self._buffer(cache.table.copy(), I32)
        self._starts, self._most = None, 0
        if min(counts) != max(counts):
            self._starts = self._buffer(
                np.concatenate(([0], np.cumsum(counts))).astype(np.int32), I32
            )
            self._most = max(counts)
        self._planned = False

    def store(self, rows, slots, values):
        """Writes latents into pages, at slots = (pages, rows in them)."""
        if self.fp8:
            return self._store_codes(rows.host, slots, values)
        rows.host[slots] = self.format.encode(values)
        rows.upload()

    def _store_codes(self, cache, slots, values):
        """The library quantises the latents by 128 columns, with powers of two as scales."""
        pages, page, rank = *cache.shape[:2], self.config.kv_rank
        x = self.format.encode(values[:, None])

        def part(of, dtype, first, columns, itemsize):
            strides = (page * ROW_BYTES, ROW_BYTES, ROW_BYTES, itemsize)
            shape = (pages, page, 1, columns)
            return View(of.ctypes.data + first, dtype, shape, strides, itemsize)

        def columns(which):
            view = x[..., which]
            return View(view.ctypes.data, BF16, view.shape, view.strides, view.itemsize)

        self.context.norm_heads(
            [
                {
                    "x": columns(slice(None, rank)),
                    "cache": part(cache, F8_E4M3FN, 0, rank, 1),
                    "cache_scheme": PER_BLOCK,
                    "cache_block_size": 128,
                    "cache_pow2": 1,
                    "cache_scale": part(cache, F32, rank, rank // 128, 4),
                },
                {
                    "x": columns(slice(rank, None)),
                    "cache": part(cache, BF16, rank + rank // 32, values.shape[-1] - rank, 2),
                },
            ],
            slots=(slots[0] * page + slots[1]).astype(np.int32),
        ).run()

    def _rows(self, rows):
        """The cache of one block, by the fields of the call."""
        if self.fp8:
            return {"cache": rows.view(), "cache_format": MlaCacheFormat.BYTES_656}
        rank = self.config.kv_rank
        return {"ckv": rows.view(rows.host[..., :rank]), "kpe": rows.view(rows.host[..., rank:])}

    def attend(self, absorbed, rotary, rows):
        """Mixed latents of each new token and head. Query and cache are fused: two views of one
        array each."""
        rank = self.config.kv_rank
        query = self._buffer(self.format.encode(np.concatenate((absorbed, rotary), -1)))
        mixed = self._buffer(np.empty(absorbed.shape, self.format.storage))
        call = self.context.mla_decode(
            q_nope=query.view(query.host[..., :rank]),
            q_pe=query.view(query.host[..., rank:]),
            **self._rows(rows),
            kv_len=self._lengths.view(),
            page_table=self._table.view(),
            qo_indptr=None if self._starts is None else self._starts.view(),
            max_s_q=self._most,
            o=mixed.view(),
            sm_scale=self.scale,
            causal=1,
            reuse_plan=int(self._planned),
            stream=self.stream,
        )
        call.run(*self._workspace_for(call))
        self._planned = True
        self.attentions += 1
        return self.format.decode(self._result(mixed))

    def _workspace_for(self, call):
        """Address and size. One allocation serves all blocks: a plan is made in the first, and used
        by the others."""
        size = call.query().workspace_bytes
        if size == 0:
            return None, 0
        if self._workspace is None or self._workspace.nbytes < size:
            self._workspace = DeviceArray(self.devmem, shape=(size,), dtype=np.uint8)
        return self._workspace.address, size
