"""The one timing loop: contenders and streams one after the other, medians and spread.

A machine is anything with buffers(case, chain), reference(case, buffers), streams(case, buffers),
capture(body, calls), replay(captured, flush) -> microseconds and synchronize(). A contender has a
name and body(case, buffers), which returns a function that runs call i, or raises Unsupported.
"""

import contextlib
import signal
import statistics
import time

from compare.ops import chain_of
from compare.reference import WrongResult

FINALISTS = 3  # streams that are timed again beside the contenders


class Unsupported(Exception):
    """A contender has nothing for this case; str() says why."""


class TimeLimit(Exception):
    """A contender took too long."""


class MachineLost(Exception):
    """Nothing can be run any more in this process."""


@contextlib.contextmanager
def time_limit(seconds):
    """Raises TimeLimit in the body after so many seconds (as soon as Python runs again)."""

    def stop(*_):
        raise TimeLimit(f"took more than {seconds:g} s to get ready")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def spread(samples):
    return (max(samples) - min(samples)) / statistics.median(samples)


class Ceilings:
    """The best plain streams of each number of bytes; found once, then timed beside every case."""

    def __init__(self):
        self._best = {}

    def finalists(self, machine, case, chain, buffers):
        """[(name, captured)] of the fastest streams."""
        bodies = machine.streams(case, buffers)
        key = (case.stream, case.op.heads, chain)
        if key not in self._best:
            fastest = {}
            for name, body in bodies.items():
                body(
                    0
                )  # a kernel is loaded by its first launch, which need not work while capturing
                captured = machine.capture(body, chain.calls)
                machine.replay(captured, chain.flush)
                fastest[name] = min(machine.replay(captured, chain.flush) for _ in range(2))
            self._best[key] = sorted(fastest, key=fastest.get)[:FINALISTS]
        return [(name, machine.capture(bodies[name], chain.calls)) for name in self._best[key]]


class Patience:
    """How long contenders may take to get ready: for a case, and in all."""

    def __init__(self, case_seconds, total_seconds):
        self.case_seconds, self.total_seconds = case_seconds, total_seconds
        self.used = {}

    @contextlib.contextmanager
    def of(self, name):
        if self.used.get(name, 0) > self.total_seconds:
            raise TimeLimit(f"its {self.total_seconds:g} s of getting ready are used up")
        start = time.monotonic()
        try:
            with time_limit(self.case_seconds):
                yield
        finally:
            self.used[name] = self.used.get(name, 0) + time.monotonic() - start


def _ready(machine, contender, case, chain, buffers, reference):
    """Captured calls of a contender whose results are right, and what is known before timing."""
    body = contender.body(case, buffers)
    buffers.reset()
    results = body(0)
    machine.synchronize()
    reference.check(0, results)
    buffers.reset()  # what works in place needs its inputs again
    captured = machine.capture(body, chain.calls)
    machine.replay(captured, chain.flush)
    error = reference.check(chain.calls - 1, captured.results[-1])
    return captured, {"max_error": error, **getattr(contender, "facts", {})}


def time_case(
    machine,
    case,
    contenders,
    ceilings,
    patience,
    replays,
    cold_bytes,
    on_contender=lambda name: None,
):
    """Everything about one case, as it goes into the JSON."""
    start = time.monotonic()
    chain = chain_of(case, cold_bytes)
    buffers = machine.buffers(case, chain)
    reference = machine.reference(case, buffers)
    timed, found = {}, {}
    for contender in contenders:
        on_contender(contender.name)
        try:
            with patience.of(contender.name):
                timed[contender.name], found[contender.name] = _ready(
                    machine, contender, case, chain, buffers, reference)
        except Unsupported as why:
            found[contender.name] = {"unsupported": str(why)}
        except WrongResult as why:
            found[contender.name] = {"wrong": str(why)}
        except TimeLimit as why:
            found[contender.name] = {"too_slow": str(why)}
        except MachineLost:
            raise
        except Exception as why:  # a peer may fail in any way; the others go on
            machine.synchronize()  # raises MachineLost if nothing can go on
            found[contender.name] = {"failed": f"{type(why).__name__}: {why}"[:400]}
    on_contender("streams")
    streams = ceilings.finalists(machine, case, chain, buffers)
    samples = {name: [] for name in [*timed, *(name for name, _ in streams)]}
    for captured in timed.values():
        machine.replay(captured, chain.flush)
    for _ in range(replays):
        for name, captured in [*timed.items(), *streams]:
            samples[name].append(machine.replay(captured, chain.flush) / chain.calls)
    for name in timed:
        found[name].update(us=statistics.median(samples[name]), spread=spread(samples[name]))
    best = min((name for name, _ in streams), key=lambda name: statistics.median(samples[name]))
    return {
        "op": case.op_name,
        "dtype": case.dtype,
        "rows": case.rows,
        "n": case.n,
        "bytes": case.bytes_moved,
        "calls": chain.calls,
        "flushed": chain.flush,
        "replays": replays,
        "ceiling": {
            "us": statistics.median(samples[best]),
            "spread": spread(samples[best]),
            "stream": best,
        },
        "contenders": found,
        "seconds": round(time.monotonic() - start, 3),
    }
