#!/usr/bin/env python3
"""Tests of the peers of fastnorm.abi, which peer.py uses: ranks as threads on the CPU.

Results are compared with one norm of the sum, bit by bit, and with double precision. Run with a
Python that has NumPy. The last line is the count.
"""

import os
import sys
import threading
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.append(str(Path(__file__).resolve().parents[1]))
from norm_testing import Suite, arguments, missing, use_library  # noqa: E402

TOKENS, COLUMNS, HEADS, HEAD, EPS = 5, 96, 3, 32, 1e-5


class Group:
    """Ranks of one process, each with a context of its own."""

    def __init__(self, ranks):
        self.contexts = [abi.Context(library, abi.CPU) for _ in range(ranks)]
        options = {"ranks": ranks, "dtype": abi.F32, "max_columns": COLUMNS, "wait_ns": 10**10}
        self.peers = [
            abi.Peer(context, rank=rank, **options) for rank, context in enumerate(self.contexts)
        ]
        blobs = [peer.blob() for peer in self.peers]
        for peer in self.peers:
            peer.connect(blobs)

    def run(self, calls):
        """One call of each rank, all at once; what they raised."""
        raised = []

        def run(call):
            try:
                call.run_on_cpu()
            except abi.FastnormError as error:
                raised.append(str(error))

        threads = [threading.Thread(target=run, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return raised

    def close(self):
        for peer in self.peers:
            peer.close()
        for context in self.contexts:
            context.close()


def test_allreduce(suite):
    random = np.random.default_rng(1)
    for ranks in (2, 3):
        group = Group(ranks)
        x = random.standard_normal((ranks, TOKENS, COLUMNS)).astype(np.float32)
        residual = random.standard_normal((TOKENS, COLUMNS)).astype(np.float32)
        weight = random.standard_normal(COLUMNS).astype(np.float32)
        ys, sums = np.zeros_like(x), np.stack([residual] * ranks)
        calls = [
            group.contexts[r].peer_allreduce_norm(
                group.peers[r], x=x[r], residual=sums[r], residual_out=sums[r], weight=weight,
                y=ys[r], eps=EPS,
            )
            for r in range(ranks)
        ]  # fmt: skip
        suite.equal(f"{ranks} ranks: no error", group.run(calls), [])
        total = x[0]
        for r in range(1, ranks):
            total = total + x[r]
        wanted, wanted_sum = fastnorm.add_rms_norm(total, residual, weight, EPS)
        suite.check(
            f"{ranks} ranks: each has one norm of the sum, and the sum",
            all((y == wanted).all() for y in ys) and all((s == wanted_sum).all() for s in sums),
        )
        group.close()


def test_sharded(suite):
    random = np.random.default_rng(2)
    for kind in (abi.RMS, abi.LAYER):
        ranks, group = 2, Group(2)
        x, x2 = (
            random.standard_normal((ranks, TOKENS, heads, HEAD)).astype(np.float32) + 0.5
            for heads in (HEADS, 1)
        )
        weight = random.standard_normal((HEADS, HEAD)).astype(np.float32)
        y, y2 = np.zeros_like(x), np.zeros_like(x2)
        calls = [
            group.contexts[r].peer_sharded_norm(
                group.peers[r], kind=kind, eps=EPS, x=x[r], weight=weight, y=y[r], x2=x2[r],
                y2=y2[r],
            )
            for r in range(ranks)
        ]  # fmt: skip
        suite.equal(f"kind {kind}: no error", group.run(calls), [])
        for name, rows, found, scale in (("first", x, y, weight), ("second", x2, y2, 1.0)):
            rows = rows.astype(np.float64)
            axes = (0, 2, 3)  # of all ranks
            if kind == abi.LAYER:
                rows = rows - rows.mean(axes, keepdims=True)
            exact = rows / np.sqrt((rows**2).mean(axes, keepdims=True) + EPS) * scale
            suite.check(
                f"kind {kind}: the {name} part",
                (abs(found - exact) <= 2.0**-20 * (abs(exact) + 0.1)).all(),
            )
        group.close()


def test_errors(suite):
    context = abi.Context(library, abi.CPU)
    suite.raises(
        "a group of one",
        abi.FastnormError,
        "ranks",
        lambda: abi.Peer(context, rank=0, ranks=1, dtype=abi.F32, max_columns=8),
    )
    peer = abi.Peer(context, rank=0, ranks=2, dtype=abi.F32, max_columns=8)
    x = np.ones((1, 8), np.float32)
    suite.raises(
        "a peer that is not connected",
        abi.FastnormError,
        "connected",
        lambda: context.peer_allreduce_norm(peer, x=x, y=x).run_on_cpu(),
    )
    suite.raises(
        "blobs of one rank", abi.FastnormError, "bytes", lambda: peer.connect([peer.blob()])
    )
    peer.close()


if __name__ == "__main__":
    options = arguments(__doc__.splitlines()[0]).parse_args()
    why = missing("numpy")
    if options.device != "cpu":
        why = "the ranks are threads on a CPU"
    suite = Suite("peers of fastnorm.abi", options)
    if why:
        suite.skip("the peers of fastnorm.abi", why)
        suite.write()
        suite.finish()
    import numpy as np

    os.environ["FASTNORM_LIBRARY"] = use_library(options)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packages" / "python"))
    import fastnorm
    from fastnorm import abi

    library = abi.Library(abi.library_path())
    suite.run([test_allreduce, test_sharded, test_errors])
    suite.finish()
