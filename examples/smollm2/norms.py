"""RMSNorm of the model three ways: in double precision, and by libfastnorm on the CPU or a GPU."""

import numpy as np

from fastnorm.abi import CPU, CUDA, Context, DeviceArray, Devmem


def rms_norm_double(rows, weight, eps):
    rows = rows.astype(np.float64)
    return rows / np.sqrt((rows * rows).mean(-1, keepdims=True) + eps) * weight.astype(np.float64)


class DoubleNorms:
    """The formula in double precision, its result rounded once. The residual stays f32, as the
    model keeps it."""

    def __init__(self, weights, eps):
        self.weights, self.eps = weights, eps

    def first(self, x):
        return rms_norm_double(x, self.weights[0], self.eps).astype(np.float32)

    def next(self, index, x, residual):
        residual += x
        return rms_norm_double(residual, self.weights[index], self.eps).astype(np.float32)


class Errors:
    """For each norm of the model, how far it is from double precision over all its calls."""

    def __init__(self, count):
        self.max_ulp = np.zeros(count)
        self.calls = self.wrong_sums = 0

    def compare(self, index, y, exact, sums_equal):
        # Distance from the exact value in units of the last place of that value's f32.
        ulp = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
        worst = np.max(np.abs(y.astype(np.float64) - exact) / ulp)
        self.max_ulp[index] = max(self.max_ulp[index], worst)
        self.calls += 1
        self.wrong_sums += not sums_equal


class LibraryNorms:
    """libfastnorm through its C ABI. Keeps the inputs of the first pass of each norm, and compares
    every result with double precision."""

    def __init__(self, weights, eps, compute):
        self.weights, self.eps, self.compute = weights, eps, compute
        self.errors = Errors(len(weights))
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
        y = self.compute.norm(index, x, residual)
        equal = residual is None or np.array_equal(residual, sums)
        self.errors.compare(index, y, exact, equal)
        return y


class CpuCompute:
    """Norms in host memory."""

    def __init__(self, library, weights, eps, threads):
        self.context = Context(library, CPU, 0, threads)
        self.weights, self.eps = weights, eps
        info = library.describe(CPU)
        self.copy_name = "a copy by NumPy, on one thread,"
        self.name = f"CPU ({info.name.decode()}, {info.kernel_arch.decode()} kernels)"

    def norm(self, index, x, residual):
        y = np.empty_like(x)
        self.context.call(x=x, residual=residual, residual_out=residual, y=y,
                          weight=self.weights[index], eps=self.eps).run()
        return y


class CudaCompute:
    """Norms in GPU memory; the rest of the model stays on the host."""

    def __init__(self, library, weights, eps, devmem_path):
        self.context = Context(library, CUDA, 0)
        self.devmem = Devmem(devmem_path, 0)
        self.weights, self.eps = [DeviceArray(self.devmem, w) for w in weights], eps
        info = library.describe(CUDA)
        self.copy_name = "the driver's copy inside the GPU"
        self.name = f"GPU ({info.name.decode()}, {info.kernel_arch.decode()} kernels)"

    def norm(self, index, x, residual):
        on_device = DeviceArray(self.devmem, x)
        y = DeviceArray(self.devmem, shape=x.shape)
        sums = None if residual is None else DeviceArray(self.devmem, residual)
        self.context.call(x=on_device, residual=sums, residual_out=sums, y=y,
                          weight=self.weights[index], eps=self.eps, stream=self.devmem.stream).run()
        self.devmem.synchronize()
        if sums is not None:
            sums.download(residual)
        return y.download()
