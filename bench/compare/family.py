"""What comparisons of one family share: the machines, the check of results, and contenders.

A case of a family has rows, n, dtype, op_name, key, op, bytes_moved, footprint, and stream: tensors
read, how one is written, bytes of each. Its buffers have stream_read and stream_written, which are
the tensors of a stream for each call.
"""

import importlib

from compare.machine import DoesNotFit, Gpu, Host
from compare.ops import ALIKE, JOINED
from compare.reference import WrongResult
from compare.timing import Unsupported

UNIT = 2.0**-8  # of bf16


def stream_of(bytes_moved, reads, written):
    """A case's stream: as many bytes in all."""
    tensors = reads + (1 if written == JOINED else reads)
    return reads, written, -(-bytes_moved // tensors // 16) * 16


def stream_tensors(case):
    """How many tensors a case's stream reads, and how many it writes."""
    reads, written, _ = case.stream
    return reads, reads if written == ALIKE else 1


def cut(buffers, calls, inputs, outputs, sizes, dtype):
    """Cuts the tensors of all calls. sizes: {name: (arena, shape, dtype, wanted)}. Each becomes a
    list in buffers, which is empty where it is not wanted. Those of the stream come with them."""
    case, element = buffers.case, buffers.torch.bfloat16
    reads, written = stream_tensors(case)
    shape = (case.stream[2] // element.itemsize,)
    streams = [("stream_read", inputs)] * reads + [("stream_written", outputs)] * written
    room = {inputs: 0, outputs: 0}
    for arena, extents, kind, wanted in [
        *sizes.values(),
        *((arena, shape, element, True) for _, arena in streams),
    ]:
        count = kind.itemsize
        for extent in extents:
            count *= extent
        room[arena] += calls * (count + 4096) if wanted else 0
    inputs.reserve(room[inputs], dtype)
    outputs.reserve(room[outputs])  # filled anew
    for name, (arena, extents, kind, wanted) in sizes.items():
        pieces = [arena.cut(extents, kind) for _ in range(calls)] if wanted else []
        setattr(buffers, name, pieces)
    buffers.stream_read, buffers.stream_written = ([[] for _ in range(calls)] for _ in range(2))
    for name, arena in streams:
        for pieces in getattr(buffers, name):
            pieces.append(arena.cut(shape, element))


class FamilyReference:
    """Checks calls of one case: against the formula in double precision, and against what the first
    contender gave, which is this library. A subclass has wanted(i) and given(i, results), both by
    name, and may have limits()."""

    def __init__(self, torch, case, buffers):
        self.torch, self.case, self.buffers, self.first = torch, case, buffers, None

    def may_miss(self, name):
        """Whether a contender need not give it."""
        return False

    def limits(self, name, exact, codes):
        """What is wanted, and how far off it a result may be. codes: those that were given so."""
        # A few roundings to bf16. A sum over rows has the magnitude of its terms.
        near = exact.abs().amax() if name.endswith("_weight") else self.magnitude(name, exact)
        return exact, 4 * UNIT * near.clamp(min=1.0)

    def magnitude(self, name, exact):
        """The magnitude of what an element is the sum of."""
        return exact.abs()

    def check(self, i, results=None):
        """The largest error, in units of what is allowed; WrongResult if that is above 1."""
        found = self.given(i, results if isinstance(results, dict) else {})
        codes = {name for name, t in found.items() if t.element_size() == 1}
        given = {name: t.double() for name, t in found.items()}
        worst = self._compare(i, given, self.wanted(i), 1.0, codes)
        if i == 0:
            if self.first is None:
                self.first = given
            else:  # each may be off the formula to its own side
                self._compare(i, given, self.first, 2.0, codes)
        return worst

    def _compare(self, i, given, wanted, sides, codes):
        worst = 0.0
        for name, exact in wanted.items():
            if name not in given:
                if self.may_miss(name):
                    continue
                raise WrongResult(f"{name} of call {i} is missing")
            value = given[name].reshape(exact.shape)
            exact, allowed = self.limits(name, exact, codes)
            error = ((value - exact).abs() / (sides * allowed)).max().item()
            if not error <= 1.0:  # NaN too
                whose = "the formula" if sides == 1.0 else "the first contender's"
                raise WrongResult(
                    f"{name} of call {i} is off {whose} by {error:.3g} times what rounding allows"
                )
            worst = max(worst, error)
        return worst


class FamilyMachine:
    """What a machine does otherwise for a family; a subclass names buffers_kind and
    reference_kind."""

    def buffers(self, case, chain):
        needed = 4 * chain.calls * case.footprint
        if needed > self.memory_bytes():
            raise DoesNotFit(f"needs {needed >> 20} MiB of {self.memory_bytes() >> 20} MiB")
        return self.buffers_kind(self.torch, case, chain, self.inputs, self.outputs, self.device)

    def reference(self, case, buffers):
        return self.reference_kind(self.torch, case, buffers)


class FamilyGpu(FamilyMachine, Gpu):
    def streams(self, case, buffers):
        reads, written, size = case.stream
        addresses = []
        for read, write in zip(buffers.stream_read, buffers.stream_written):
            pair = [[t.data_ptr() for t in pieces] + [0] for pieces in (read, write)]
            addresses.append(pair[0][:2] + pair[1][:2])
        return {
            name: lambda i, k=k: self._streams.launch(
                reads, written, k, addresses[i], size, self.stream_handle
            )
            for k, name in enumerate(self._streams.names(reads, written))
        }


class FamilyHost(FamilyMachine, Host):
    def streams(self, case, buffers):
        def copy(i):
            for source, target in zip(buffers.stream_read[i], buffers.stream_written[i]):
                target.copy_(source)

        return {"copy": copy}


class Provider:
    """A contender of a family. It has a method for each kind of case that it can compute."""

    name = label = ""
    package = ""  # whose version is noted
    slow = False  # compiles for seconds a shape
    lacks = {}  # why there is no method for a kind, where there is more to say

    def __init__(self, torch):
        self.torch = torch

    def body(self, case, b):
        if not hasattr(self, case.kind):
            raise Unsupported(self.lacks.get(case.kind, "has no such operation"))
        return getattr(self, case.kind)(case, b)


def compiled(torch, function, mode=None):
    """What torch.compile makes of a function, for one shape."""
    torch._dynamo.reset()
    # The graph of a backward pass is replayed.
    importlib.import_module("torch._functorch.config").donated_buffer = False
    return torch.compile(function, dynamic=False, mode=mode)
