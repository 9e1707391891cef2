"""What programs share that time calls of this library beside others in one process of PyTorch:
their options, and the run over their cases."""

import os
import statistics
import sys
import time
from pathlib import Path

from compare import lines

FLUSH_BYTES = 256 << 20


class Clock:
    """Microseconds of a call, from passes over all sets.

    On a GPU each call is a graph of its own, behind a small kernel whose time is taken off: a model
    has other kernels between two calls. Where calls are chained, all are one graph with nothing
    between them. Then a call may begin before the one in front of it ends: blocks of FlashMLA's
    attention wait for no kernel, and those of its merge for none where a request is whole."""

    def __init__(self, torch, device, sets, flush, chained):
        self.torch, self.cuda, self.sets, self.chained = torch, device.type == "cuda", sets, chained
        self.flush = self.alone = None
        if self.cuda and flush:
            self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device)
        if self.cuda and not chained:
            self.between = torch.zeros(1, device=device)
            self.alone = self.graph(lambda: None)

    def graph(self, run):
        """What replays it, and what it returned, which is alive as long."""
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            if not self.chained:
                self.between.add_(1)
            kept = run()
        return graph.replay, kept

    def prepared(self, run):
        """A pass: what to call one after the other, and time."""
        every = range(self.sets)
        if not self.cuda:
            return [(lambda: [run(i) for i in every], None)]
        run(0)
        self.torch.cuda.synchronize()
        if self.chained:
            return [(*self.graph(lambda: [run(i) for i in every]), run)]  # run holds the workspace
        return [(*self.graph(lambda i=i: run(i)), run) for i in every]

    def us(self, prepared):
        if not self.cuda:
            start = time.perf_counter()
            prepared[0][0]()
            return (time.perf_counter() - start) * 1e6 / self.sets
        if self.flush is not None:
            self.flush.fill_(1)
        between = self.replay_us(self.alone[0]) * self.sets if self.alone else 0
        return (sum(self.replay_us(replay) for replay, *_ in prepared) - between) / self.sets

    def replay_us(self, replay):
        start, stop = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        # So that the graph is queued before the clock starts: a call is up to three launches.
        self.torch.cuda._sleep(200_000 + 40_000 * (self.sets if self.chained else 1))
        start.record()
        replay()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) * 1e3


def orders(names, repeats):
    """Of rounds: a name begins one, and ends the next. A call's clock rate depends on the call
    before."""
    for i in range(repeats):
        k = i // 2 % max(1, len(names))
        turned = names[k:] + names[:k]
        yield turned[::-1] if i % 2 else turned


def measured(made, case, prepare, clock, repeats, figures, ours):
    """A row for each provider: what names the case, and medians of what `clock` says, or an error.
    prepare(provider): (its call, '' or what is wrong with its results). figures(us): more of a
    row. ours: the name of this library's provider."""
    rows, passes = [], {}
    for name, provider in made.items():
        row = {"provider": name, **case}
        rows.append(row)
        try:
            if isinstance(provider, Exception):
                raise provider
            call, error = prepare(provider)
            if error:
                row["error"] = error
                continue
            passes[name] = clock.prepared(call)
            clock.us(passes[name])
        except Exception as error:
            row["error"] = " ".join(f"{type(error).__name__}: {error}".split())[:400]
    samples = {name: [] for name in passes}
    for order in orders(list(passes), repeats):
        for name in order:
            samples[name].append(clock.us(passes[name]))
    for row in rows:
        if found := samples.get(row["provider"]):
            us = statistics.median(found)
            row |= {"us": us, "spread": (max(found) - min(found)) / us, **figures(us)}
    of_ours = next((row.get("us") for row in rows if row["provider"] == ours), None)
    for row in rows:
        if of_ours and "us" in row:
            row["time_over_fastnorm"] = row["us"] / of_ours
    return rows


def add_options(parser):
    parser.add_argument("--library", type=Path, required=True, help="libfastnorm.so.1")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--csv", type=Path, help="results")


def run(options, providers, ours, cases, compare, head, shown):
    """Prints and writes the rows of each case, which compare(torch, case, device, made) gives.
    providers: classes with a name. head: names of columns. shown(case, row): the text of a row,
    which ends with its figures or its error. Returns whether `ours` had an error: what others
    lack is no failure."""
    program = Path(sys.argv[0]).name
    try:
        import torch
    except ImportError as error:
        sys.exit(f"{program}: {error}")
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit(f"{program}: PyTorch has no CUDA device here; --device cpu does without")
    os.environ["FASTNORM_LIBRARY"] = str(options.library.resolve())
    device = torch.device("cuda", 0) if options.device == "cuda" else torch.device("cpu")
    made = {}
    for provider in providers:
        try:
            made[provider.name] = provider(torch)
        except Exception as error:  # not installed, or not for this device
            made[provider.name] = error
    document = {
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "library": {"build": getattr(made.get(ours), "build", None)},
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "repeats": options.repeats,
        "results": [],
    }
    print(f"{document['device']}\n{head}")
    for case in cases:
        for row in compare(torch, case, device, made):
            document["results"].append(row)
            print(shown(case, row), flush=True)
        if options.csv:
            lines.write(options.csv, document)
    return any("error" in row for row in document["results"] if row["provider"] == ours)
