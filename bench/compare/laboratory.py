"""The laboratory's backward pass (bench/lab/backward) as a contender.

It shows what a GPU has been seen to do with the library's row order: the library is to come near,
and its results are to have the same bits.
"""

import ctypes
import hashlib
import statistics
from ctypes import c_char_p, c_int32, c_int64, c_void_p
from pathlib import Path

from compare.tables import LABORATORY, NO_SUCH_OPERATION
from compare.timing import Unsupported

NORMS = {"rms_backward": 0, "layer_backward": 1}
PICKING_ROUNDS = 5


class Lab:
    """libfastnorm_lab.so by ctypes."""

    def __init__(self, path):
        self.path = Path(path)
        self.c = c = ctypes.CDLL(str(path))
        c.lab_backward_name.restype = c.lab_backward_error.restype = c_char_p
        c.lab_backward_workspace.restype = c_int64
        c.lab_backward_count.argtypes = [c_int32] * 2
        c.lab_backward_name.argtypes = c.lab_backward_workspace.argtypes = [c_int32] * 3
        c.lab_backward_launch.argtypes = [
            *[c_int32] * 4, *[c_void_p] * 8, c_int32, c_void_p, c_int64, c_void_p,
        ]

    def identity(self):
        return {"sha256": hashlib.sha256(self.path.read_bytes()).hexdigest()}

    def names(self, norm, n):
        """Of the kernels for rows of n elements, which all give the same bits."""
        count = self.c.lab_backward_count(norm, n)
        if count < 0:
            raise ValueError(self.error())
        return [self.c.lab_backward_name(norm, n, i).decode() for i in range(count)]

    def workspace_bytes(self, norm, rows, n):
        return self.c.lab_backward_workspace(norm, rows, n)

    def launch(self, norm, index, shape, addresses, f32_gradients, workspace, queue):
        """shape: (rows, n); addresses: x, dy, weight, rstd, mean, dx, dweight, dbias;
        workspace: (address, bytes)."""
        if self.c.lab_backward_launch(norm, index, *shape, *addresses, f32_gradients, *workspace,
                                      queue):
            raise RuntimeError(self.error())

    def error(self):
        return self.c.lab_backward_error().decode()


class Laboratory:
    """Of a shape's few kernels the fastest, found before the timing."""

    name, label = LABORATORY, "laboratory"

    def __init__(self, lab, machine, library):
        """lab may be None; library is the contender with whose bits the results are compared."""
        if lab is None:
            raise FileNotFoundError("no libfastnorm_lab.so; a build for sm_90 with -Dbench has it")
        self.lab, self.machine, self.library = lab, machine, library
        self.facts = {}

    def has(self, case):
        return case.op_name in NORMS and case.dtype == "bf16"

    def body(self, case, buffers):
        if not self.has(case):
            raise Unsupported(NO_SUCH_OPERATION)
        norm = NORMS[case.op_name]
        names = self.lab.names(norm, case.n)
        if not names:
            raise Unsupported(f"no kernel for rows of {case.n}")
        torch, device = self.machine.torch, self.machine.device
        size = self.lab.workspace_bytes(norm, case.rows, case.n)
        # Captured calls go on using it when the body is gone.
        memory = self._workspace = torch.empty(size, dtype=torch.uint8, device=device)
        queue = self.machine.stream_handle

        def run(kernel, i, outputs=None):
            tensors = [buffers.x[i], buffers.dy[i], buffers.weight, buffers.rstd[i],
                       buffers.mean[i] if case.op.layer else None]
            given = outputs or {name: getattr(buffers, name)[i] for name in outputs_of(case)}
            tensors += [given["dx"], given["dweight"], given.get("dbias")]
            self.lab.launch(norm, kernel, (case.rows, case.n),
                            [None if t is None else t.data_ptr() for t in tensors],
                            given["dweight"].dtype == torch.float32, (memory.data_ptr(), size),
                            queue)

        differs = self._differences(case, buffers, len(names), run)
        times = self._times(len(buffers.x), len(names), run)
        order = sorted(range(len(names)), key=times.__getitem__)
        best = order[0]
        self.facts = {"kernel": names[best], "differs": differs}
        if len(names) > 1:
            shown = (f"{names[k]}: {times[k]:.2f}" for k in order)
            self.facts["candidates"] = ", ".join(shown)
        return lambda i: run(best, i)

    def _times(self, calls, count, run):
        """Microseconds of a call of each kernel."""
        if count == 1:
            return [0.0]
        captured = [
            self.machine.capture(lambda i, k=k: run(k, i), calls) for k in range(count)
        ]
        samples = [[] for _ in captured]
        for _ in range(PICKING_ROUNDS):
            for own, c in zip(samples, captured):
                own.append(self.machine.replay(c, True) / calls)
        return [statistics.median(own) for own in samples]

    def _differences(self, case, buffers, count, run):
        """{output: elements whose bits differ from the library's, of the kernel with most}, of
        call 0, with gradients in f32. Every kernel has run then: its first launch loads it, which
        need not work while capturing."""
        wanted = self._outputs(case, buffers)
        self.library.gradients(case, buffers, 0, wanted)
        found = dict.fromkeys(wanted, 0)
        for kernel in range(count):
            given = self._outputs(case, buffers)
            run(kernel, 0, given)
            self.machine.synchronize()
            for name, tensor in given.items():
                found[name] = max(found[name], different_bits(self.machine.torch, tensor,
                                                              wanted[name]))
        return found

    def _outputs(self, case, buffers):
        """New memory for dx, and for dweight and dbias in f32; NaN, so what is not written
        differs from what is."""
        torch = self.machine.torch
        found = {"dx": torch.empty_like(buffers.dx[0])}
        for name in outputs_of(case)[1:]:
            found[name] = torch.empty(case.n, dtype=torch.float32, device=self.machine.device)
        for tensor in found.values():
            tensor.fill_(float("nan"))
        return found


def outputs_of(case):
    return ["dx", "dweight", "dbias"] if case.op.layer else ["dx", "dweight"]


def different_bits(torch, a, b):
    """Elements of two tensors whose bits differ."""
    word = {2: torch.int16, 4: torch.int32}[a.element_size()]
    return int((a.view(word) != b.view(word)).sum().item())
