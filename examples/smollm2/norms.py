"""RMSNorm and rope of the model: in double precision, by libfastnorm on the CPU or a GPU, and the
norms by plain NumPy, too."""

import time

import numpy as np

from fastnorm.abi import CPU, CUDA, ROPE, ROPE_INTERLEAVED, Context, DeviceArray, Devmem


def rms_norm_double(rows, weight, eps):
    rows = rows.astype(np.float64)
    return rows / np.sqrt((rows * rows).mean(-1, keepdims=True) + eps) * weight.astype(np.float64)


def rms_norm_numpy(x, residual, weight, eps):
    """Plain NumPy in f32. The residual is updated in place, where there is one."""
    if residual is not None:
        residual += x
        x = residual
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight


def turn_double(x, tables, positions):
    """Rope of heads [tokens, heads, d], and the sum of the magnitudes that each element is made
    of."""
    cos, sin = (table[positions][:, None, :] for table in tables)
    x = x.astype(np.float64)
    even, odd = x[..., 0::2], x[..., 1::2]
    turned, terms = np.empty_like(x), np.empty_like(x)
    turned[..., 0::2], turned[..., 1::2] = even * cos - odd * sin, odd * cos + even * sin
    terms[..., 0::2] = abs(even * cos) + abs(odd * sin)
    terms[..., 1::2] = abs(odd * cos) + abs(even * sin)
    return turned, terms


class DoubleNorms:
    """The formulas in double precision, their results rounded once. The residual stays f32, as the
    model keeps it."""

    def __init__(self, weights, eps, tables):
        self.weights, self.eps, self.tables = weights, eps, tables

    def first(self, x):
        return rms_norm_double(x, self.weights[0], self.eps).astype(np.float32)

    def next(self, index, x, residual):
        residual += x
        return rms_norm_double(residual, self.weights[index], self.eps).astype(np.float32)

    def turn(self, query, key, positions):
        turned = (turn_double(x, self.tables, positions)[0] for x in (query, key))
        return [x.astype(np.float32) for x in turned]


class Errors:
    """For each norm of the model and for its rope, how far they are from double precision over all
    calls."""

    def __init__(self, count):
        self.max_ulp = np.zeros(count)
        self.calls = self.wrong_sums = self.turns = 0
        self.max_turn = 0.0

    def compare_turned(self, y, exact, terms):
        # In roundoffs of f32 of what an element is the sum of.
        error = np.abs(y.astype(np.float64) - exact)
        share = np.divide(error, terms, out=np.where(error > 0, np.inf, 0.0), where=terms > 0)
        self.max_turn = max(self.max_turn, share.max() * 2.0**24)

    def compare(self, index, y, exact, sums_equal):
        # Distance from the exact value in units of the last place of that value's f32.
        ulp = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
        worst = np.max(np.abs(y.astype(np.float64) - exact) / ulp)
        self.max_ulp[index] = max(self.max_ulp[index], worst)
        self.calls += 1
        self.wrong_sums += not sums_equal


class LibraryNorms:
    """libfastnorm through its C ABI. Keeps the inputs of the first pass of each norm, and compares
    every result with double precision. Every norm is done by plain NumPy, too, for its time."""

    def __init__(self, weights, eps, tables, compute):
        self.weights, self.eps, self.tables, self.compute = weights, eps, tables, compute
        self.errors = Errors(len(weights))
        self.us = self.making_us = self.numpy_us = 0.0  # of all norms so far
        self.inputs = {}

    def first(self, x):
        return self._norm(0, x, None)

    def next(self, index, x, residual):
        return self._norm(index, x, residual)

    def _norm(self, index, x, residual):
        x = np.ascontiguousarray(x)
        if index not in self.inputs:
            self.inputs[index] = (x.copy(), None if residual is None else residual.copy())
        sums = x if residual is None else x + residual
        exact = rms_norm_double(sums, self.weights[index], self.eps)
        numpy_residual = None if residual is None else residual.copy()
        y, making_us, us = self.compute.norm(index, x, residual)
        self.making_us += making_us
        self.us += us
        start = time.perf_counter_ns()
        rms_norm_numpy(x, numpy_residual, self.weights[index], self.eps)
        self.numpy_us += (time.perf_counter_ns() - start) / 1e3
        equal = residual is None or np.array_equal(residual, sums)
        self.errors.compare(index, y, exact, equal)
        return y

    def turn(self, query, key, positions):
        """Both in one call."""
        found = self.compute.turn(query, key, positions)
        for x, y in zip((query, key), found):
            self.errors.compare_turned(y, *turn_double(x, self.tables, positions))
        self.errors.turns += 1
        return found


def turn_call(context, heads, tables, positions, stream=None):
    """A call that turns neighbouring pairs of all columns. heads: pairs of what is read and where
    the result goes."""
    parts = [{"flags": ROPE | ROPE_INTERLEAVED, "x": x, "y": y} for x, y in heads]
    cos, sin = tables
    return context.norm_heads(
        parts, stream, rope_dim=2 * cos.shape[1], cos=cos, sin=sin, positions=positions
    )


class CpuCompute:
    """Norms and rope in host memory."""

    def __init__(self, library, weights, eps, tables, threads):
        self.context = Context(library, CPU, 0, threads)
        self.weights, self.eps = weights, eps
        self.tables = [table.astype(np.float32) for table in tables]
        info = library.describe(CPU)
        self.copy_name = "a copy by NumPy, on one thread,"
        self.name = f"CPU ({info.name.decode()}, {info.kernel_arch.decode()} kernels)"

    def norm(self, index, x, residual):
        """y, and the microseconds of making the call in Python and of the call itself."""
        start = time.perf_counter_ns()
        y = np.empty_like(x)
        call = self.context.call(x=x, residual=residual, residual_out=residual, y=y,
                                 weight=self.weights[index], eps=self.eps)
        made = time.perf_counter_ns()
        call.run()
        return y, (made - start) / 1e3, (time.perf_counter_ns() - made) / 1e3

    def turn(self, query, key, positions):
        turned = [np.empty_like(query), np.empty_like(key)]
        heads = zip((query, key), turned)
        turn_call(self.context, heads, self.tables, positions).run()
        return turned


class CudaCompute:
    """Norms and rope in GPU memory; the rest of the model stays on the host."""

    def __init__(self, library, weights, eps, tables, devmem_path):
        self.context = Context(library, CUDA, 0)
        self.devmem = Devmem(devmem_path, 0)
        self.weights, self.eps = [DeviceArray(self.devmem, w) for w in weights], eps
        self.tables = [DeviceArray(self.devmem, table.astype(np.float32)) for table in tables]
        info = library.describe(CUDA)
        self.copy_name = "the driver's copy inside the GPU"
        self.name = f"GPU ({info.name.decode()}, {info.kernel_arch.decode()} kernels)"

    def norm(self, index, x, residual):
        """y, and the microseconds of making the call in Python and of the call on the GPU."""
        on_device = DeviceArray(self.devmem, x)
        y = DeviceArray(self.devmem, shape=x.shape)
        sums = None if residual is None else DeviceArray(self.devmem, residual)
        start = time.perf_counter_ns()
        call = self.context.call(x=on_device, residual=sums, residual_out=sums, y=y,
                                 weight=self.weights[index], eps=self.eps,
                                 stream=self.devmem.stream)
        making_us = (time.perf_counter_ns() - start) / 1e3
        us = self.devmem.elapsed_us(call.run)
        if sums is not None:
            sums.download(residual)
        return y.download(), making_us, us

    def turn(self, query, key, positions):
        on_device = [DeviceArray(self.devmem, x) for x in (query, key)]
        turn_call(
            self.context, [(x, x) for x in on_device], self.tables,
            DeviceArray(self.devmem, positions), self.devmem.stream,
        ).run()
        self.devmem.synchronize()
        return [x.download() for x in on_device]
