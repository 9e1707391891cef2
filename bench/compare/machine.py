"""The machine that calls run on, through PyTorch: buffers, graphs, replays. On a CPU the same, for
trying things out without a GPU: calls run one after the other, and the stream is a copy by
PyTorch."""

import contextlib
import gc
import time

from compare.backward import BackwardBuffers, BackwardReference
from compare.ops import ALIGNMENT, HEADS, HEADS_OF_ALL, QUERY_HEADS, rounded
from compare.reference import Reference
from compare.timing import MachineLost

FLUSH_BYTES = 256 << 20
# Cycles that the GPU waits before a replay, so that the graph is queued before the clock starts.
HEAD_START_CYCLES = 200_000
POISON = 0xFF  # NaN in every dtype used here: what is not written is found out


class DoesNotFit(Exception):
    """The case needs more memory than there is."""


class Arena:
    """Memory from which the tensors of one case after the other are cut."""

    def __init__(self, torch, device, fill):
        self.torch, self.device, self.fill = torch, device, fill
        self.memory, self.kind = None, None

    def reserve(self, size, kind=None):
        """At least `size` bytes, newly filled where they were not filled for this kind."""
        if self.memory is None or self.memory.numel() < size:
            self.memory = None
            gc.collect()
            if self.device.type == "cuda":
                self.torch.cuda.empty_cache()
            self.memory = self.torch.empty(size, dtype=self.torch.uint8, device=self.device)
            self.kind = None
        if self.kind != kind or kind is None:
            self.fill(self.memory, kind)
            self.kind = kind
        self.used = 0

    def refill(self):
        self.fill(self.memory, self.kind)

    def cut(self, shape, dtype):
        count = 1
        for extent in shape:
            count *= extent
        size = count * dtype.itemsize
        piece = self.memory[self.used:self.used + size].view(dtype).view(shape)
        self.used += -(-size // ALIGNMENT) * ALIGNMENT
        return piece


class Buffers:
    """The tensors of all calls of a chain; lists are indexed by call.

    x, residual              inputs, never written
    y, residual_out          outputs; a contender that works in place finds its inputs here after
    reset()
    quantized                [rows, n] f8_e4m3fn, where the operation quantises
    row_scale, mean, rstd    outputs, f32 [rows], where the operation has them
    weight, weight32, bias, bias32, key_weight, scale
    With heads, x and y are [tokens, HEADS_OF_ALL, n]; heads_of() gives the heads to normalise.
    """

    def __init__(self, torch, case, chain, inputs, outputs, parameters):
        op = case.op
        dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[case.dtype]
        shape = (case.rows, HEADS_OF_ALL, case.n) if op.heads else (case.rows, case.n)
        pieces = [rounded(shape, dtype.itemsize)] * op.reads
        written = pieces + ([rounded(shape, 1)] if op.quantized else [])
        inputs.reserve(chain.calls * sum(pieces), case.dtype)
        outputs.reserve(chain.calls * sum(written))
        self.case, self.x, self.residual, self.y, self.residual_out, self.quantized = (
            case,
            [],
            [],
            [],
            [],
            [],
        )
        self._outputs = outputs
        for _ in range(chain.calls):
            self.x.append(inputs.cut(shape, dtype))
            self.y.append(outputs.cut(shape, dtype))
            if op.adds:
                self.residual.append(inputs.cut(shape, dtype))
                self.residual_out.append(outputs.cut(shape, dtype))
            if op.quantized:
                self.quantized.append(outputs.cut(shape, torch.float8_e4m3fn))
        self.torch = torch
        self.row_scale, self.mean, self.rstd = (
            (
                [
                    torch.empty(case.rows, dtype=torch.float32, device=self.x[0].device)
                    for _ in range(chain.calls)
                ]
                if wanted
                else []
            )
            for wanted in (op.row_scales, op.statistics and op.layer, op.statistics)
        )
        self.weight32, self.bias32 = parameters(case.n, 1), parameters(case.n, 0)
        self.weight, self.key_weight = self.weight32.to(dtype), parameters(case.n, 2).to(dtype)
        self.bias = self.bias32.to(dtype)
        self.scale = torch.full((1,), 1 / 64, dtype=torch.float32, device=self.weight.device)

    def heads_of(self, tensor):
        return tensor[:, :HEADS]

    def head_weights(self):
        """[HEADS, n]: the weight of each head."""
        keys = self.key_weight.expand(HEADS - QUERY_HEADS, -1)
        return self.torch.cat([self.weight.expand(QUERY_HEADS, -1), keys])

    def reset(self):
        """Inputs for those that work in place, and NaN elsewhere in the outputs."""
        self._outputs.refill()
        for tensor in [*self.row_scale, *self.mean, *self.rstd]:
            tensor.fill_(float("nan"))
        for source, target in [*zip(self.x, self.y), *zip(self.residual, self.residual_out)]:
            target.copy_(source)


class Captured:
    """Calls that can be run again and again, and what each returned (known once they ran)."""

    def __init__(self, run, results):
        self.run, self.results = run, results


class Machine:
    """What is common to the GPU and the CPU."""

    def __init__(self, torch, device):
        self.torch, self.device = torch, torch.device(device)
        self.inputs = Arena(torch, self.device, self._fill_random)
        self.outputs = Arena(torch, self.device, lambda memory, _: memory.fill_(POISON))
        self._parameters = {}

    def _fill_random(self, memory, kind):
        dtype = {"bf16": self.torch.bfloat16, "f16": self.torch.float16}[kind]
        values = memory[:memory.numel() // 2 * 2].view(dtype)
        first = values[:min(values.numel(), 1 << 29)]
        generator = self.torch.Generator(self.device).manual_seed(1)
        first.normal_(0.01, 1.0, generator=generator)
        for start in range(first.numel(), values.numel(), first.numel()):
            part = values[start:start + first.numel()]
            part.copy_(first[:part.numel()])

    def _parameter(self, n, which):
        """f32 [n]: 0 a bias, 1 and 2 weights, all exact in 16 bits."""
        if (n, which) not in self._parameters:
            generator = self.torch.Generator(self.device).manual_seed(n + which)
            values = self.torch.empty(n, dtype=self.torch.float32, device=self.device)
            values.normal_(0 if which == 0 else 1, 0.25, generator=generator)
            values = values.to(self.torch.bfloat16).to(self.torch.float32)
            self._parameters[n, which] = values.to(self.torch.float16).to(self.torch.float32)
        return self._parameters[n, which]

    def buffers(self, case, chain):
        needed = 2 * chain.calls * case.op.reads * case.tensor_bytes
        if needed > self.memory_bytes():
            raise DoesNotFit(f"needs {needed >> 30} GiB of {self.memory_bytes() >> 30} GiB")
        kind = BackwardBuffers if case.op.backward else Buffers
        try:
            return kind(self.torch, case, chain, self.inputs, self.outputs, self._parameter)
        except self.torch.OutOfMemoryError as why:
            raise DoesNotFit(str(why).splitlines()[0]) from why

    def reference(self, case, buffers):
        return (BackwardReference if case.op.backward else Reference)(self.torch, case, buffers)


class Gpu(Machine):
    def __init__(self, torch, device, streams):
        super().__init__(torch, device)
        torch.cuda.set_device(self.device)
        self.queue = torch.cuda.Stream()
        torch.cuda.set_stream(self.queue)
        self.start, self.stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flush_memory = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=self.device)
        self._streams = streams

    @property
    def stream_handle(self):
        return self.queue.cuda_stream

    def memory_bytes(self):
        held = sum(a.memory.numel() for a in (self.inputs, self.outputs) if a.memory is not None)
        return int((self.torch.cuda.mem_get_info()[0] + held) * 0.9)

    def synchronize(self):
        try:
            self.torch.cuda.synchronize()
        except Exception as why:
            raise MachineLost(str(why).splitlines()[0]) from why

    def capture(self, body, calls):
        """One graph of `calls` calls. Tensors that they return stay alive, so that all have memory
        of their own."""
        graph = self.torch.cuda.CUDAGraph()
        gc.disable()  # what is collected may free memory, which capturing forbids
        try:
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                results = [body(i) for i in range(calls)]
            except BaseException:
                with contextlib.suppress(Exception):  # the first error says more
                    graph.capture_end()
                raise
            graph.capture_end()
        finally:
            gc.enable()
        return Captured(graph.replay, results)

    def replay(self, captured, flush):
        """Microseconds of one replay."""
        if flush:
            self.flush_memory.fill_(0x5A)
        self.torch.cuda._sleep(HEAD_START_CYCLES)
        self.start.record()
        captured.run()
        self.stop.record()
        self.stop.synchronize()
        return self.start.elapsed_time(self.stop) * 1e3

    def streams(self, case, buffers):
        """{name: body} of the streaming kernels that move the bytes of the case."""
        reads, written, size = case.stream
        b, handle = buffers, self.stream_handle
        addresses = []
        for i in range(len(b.x)):
            if case.op.backward:
                last = b.dresidual_in[i].data_ptr() if case.op.adds else 0
                addresses.append([b.dy[i].data_ptr(), b.x[i].data_ptr(), b.dx[i].data_ptr(), last])
                continue
            first = (b.quantized if case.op.quantized else b.y)[i]
            source = b.y[i] if case.op.heads else b.x[i]  # heads are normalised in place
            addresses.append(
                [
                    source.data_ptr(),
                    b.residual[i].data_ptr() if case.op.adds else 0,
                    first.data_ptr(),
                    b.residual_out[i].data_ptr() if case.op.adds else 0,
                ]
            )
        return {
            name: lambda i, k=k: self._streams.launch(reads, written, k, addresses[i], size, handle)
            for k, name in enumerate(self._streams.names(reads, written))
        }


class Host(Machine):
    stream_handle = None

    def memory_bytes(self):
        return 2 << 30

    def synchronize(self):
        pass

    def capture(self, body, calls):
        results = []

        def run():
            results[:] = [body(i) for i in range(calls)]

        return Captured(run, results)

    def replay(self, captured, flush):
        start = time.perf_counter()
        captured.run()
        return (time.perf_counter() - start) * 1e6

    def streams(self, case, buffers):
        b = buffers

        def join(i):
            self.torch.add(b.dy[i], b.x[i], out=b.dx[i])
            if case.op.adds:
                b.dx[i].add_(b.dresidual_in[i])

        if case.op.backward:
            return {"join": join}

        def copy(i):
            (b.quantized[i].view(self.torch.int8) if case.op.quantized else b.y[i]).copy_(b.x[i])
            if case.op.adds:
                b.residual_out[i].copy_(b.residual[i])

        return {"copy": copy}
