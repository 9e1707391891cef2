"""Time of each norm of the model on its own data, beside a copy of the same bytes.

The rows that a norm saw in the prompt are repeated to the length of a longer prompt. The calls
rotate over several sets of buffers, so that caches do not hold them all.
"""

import time
from dataclasses import dataclass

import numpy as np

from fastnorm.abi import CPU, DeviceArray

SETS = 3
REPEATS = 9


@dataclass
class Measurement:
    bytes_moved: int
    us: float
    copy_us: float

    @property
    def gb_per_s(self):
        return self.bytes_moved / self.us / 1e3

    @property
    def ratio(self):
        return self.us / self.copy_us


def _median(values):
    return sorted(values)[len(values) // 2]


class _Set:
    """Buffers of one call. The residual is updated in place, so repeated calls drift: values grow
    by x each time, which no timing notices."""

    def __init__(self, place, x, residual):
        self.x, self.y = place(x), place(np.zeros_like(x))
        self.residual = None if residual is None else place(residual)
        self.copied = None if residual is None else place(np.zeros_like(x))

    def copies(self):
        pairs = [(self.y, self.x)]
        return pairs if self.residual is None else [*pairs, (self.copied, self.residual)]


class _Sets:
    """The sets of one shape, refilled for each norm of that shape."""

    def __init__(self, compute, x, residual):
        self.cpu = compute.context.device_type == CPU
        place = np.copy if self.cpu else (lambda a: DeviceArray(compute.devmem, a))
        self.sets = [_Set(place, x, residual) for _ in range(SETS)]

    def fill(self, x, residual):
        for s in self.sets:
            for buffer, values in ((s.x, x), (s.residual, residual)):
                if buffer is None:
                    continue
                if self.cpu:
                    np.copyto(buffer, values)
                else:
                    buffer.upload(values)


def _elapsed_us(compute, cpu, work):
    if not cpu:
        return compute.devmem.elapsed_us(work)
    start = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - start) / 1e3


class Meter:
    def __init__(self, compute, rows):
        self.compute, self.rows, self._sets = compute, rows, {}

    def measure(self, index, x, residual):
        """Medians for norm `index` on its inputs, repeated to self.rows rows."""
        x, residual = (None if a is None else np.resize(a, (self.rows, a.shape[1]))
                       for a in (x, residual))
        key = residual is None
        if key not in self._sets:
            self._sets[key] = _Sets(self.compute, x, residual)
        sets = self._sets[key]
        sets.fill(x, residual)
        c = self.compute
        calls = [c.context.call(x=s.x, residual=s.residual, residual_out=s.residual, y=s.y,
                                weight=c.weights[index], eps=c.eps,
                                stream=None if sets.cpu else c.devmem.stream) for s in sets.sets]
        pairs = [pair for s in sets.sets for pair in s.copies()]
        info = calls[0].query()

        def run_calls():
            for call in calls:
                call.run()

        def run_copies():
            for to, source in pairs:
                if sets.cpu:
                    np.copyto(to, source)
                else:
                    c.devmem.copy(to, source)

        samples = [(_elapsed_us(c, sets.cpu, run_calls), _elapsed_us(c, sets.cpu, run_copies))
                   for _ in range(REPEATS + 1)][1:]  # the first warms up
        return Measurement(info.bytes_read + info.bytes_written,
                           _median([s[0] for s in samples]) / SETS,
                           _median([s[1] for s in samples]) / SETS)
