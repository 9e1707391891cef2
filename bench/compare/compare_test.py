#!/usr/bin/env python3
"""Tests of compare.py without a GPU and without PyTorch: its figures and files, its timing loop on
a pretended machine, its way to go on after a crash. Also the library's calls on the CPU, and the
plots."""

import argparse
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import types
import xml.etree.ElementTree as ET
from pathlib import Path
from unittest.mock import patch

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "tests" / "abi")]
from cases import Cases  # noqa: E402
from compare import (  # noqa: E402
    beside,
    heads,
    laboratory,
    lines,
    mla_peers,
    ops,
    peers,
    program,
    results,
    runner,
    stages,
    tables,
    timing,
)
from compare.library import (  # noqa: E402
    F32,
    PDL_CONSTANT_WEIGHTS,
    PDL_TRIGGER,
    PDL_WAIT,
    Fastnorm,
    FastnormPdl,
    FastnormRounded,
    Library,
)
from compare.build_flashinfer import filled  # noqa: E402
from compare.library import ctypes_api as abi  # noqa: E402
from compare.ops import Case  # noqa: E402
from compare.reference import EPS, WrongResult  # noqa: E402
from compare.streams import Streams  # noqa: E402

PROGRAM, STAGES_PROGRAM = (HERE.parent / f"compare{suffix}.py" for suffix in ("", "_stages"))


# --- shapes and bytes ---

# Bytes of a token in and out, by hand, of bf16.
HEADS = {
    "5xqwen3": 2 * 40 * 128 * 2,
    "5xllama3:own": 48 * 128 * 2 + 32 * 128 * 2 + 16 * 128 * 2,
    "70xqwen3:fp8": 48 * 128 * 2 + 32 * 128 * 2 + 16 * 128,
    "5xgemma3:backward": 3 * 12 * 256 * 2,
    "5xllama3:backward": 2 * 40 * 128 * 2,
    "5xmla:own": 2 * 576 * 2,
    "5xmla:fp8": 576 * 2 + 576,
}


def test_heads(cases):
    for text, size in HEADS.items():
        case = heads.HeadsCase(text)
        cases.equal(f"bytes of {text}", case.bytes_moved, case.rows * size)
        reads, written, of_stream = case.stream
        moved = (reads + 1) * of_stream - case.bytes_moved
        cases.check(f"stream of {text} moves its bytes", 0 <= moved <= 16 * (reads + 1), moved)
        half = case.footprint * 2 == case.bytes_moved
        cases.equal(f"{text}: in place touches half as much", half, case.what == "none")
    listed = heads.cases_of(heads.MODELS, heads.WHATS, heads.TOKENS)
    cases.equal("no case of heads twice", len({c.key for c in listed}), len(listed))
    cases.equal("all cases of heads", len(listed), 7 * (3 * 4 + 2))
    for text in ("5", "5xbert", "0xqwen3", "5xqwen3:f8", "5xmla", "5xmla:backward", "xqwen3"):
        try:
            heads.HeadsCase(text)
            cases.check(f"refused: {text}", False)
        except ValueError as why:
            cases.check(f"refused: {text}", "required: " in str(why) and text in str(why), why)
    made, unavailable = program.make(heads.PROVIDERS, None, ["vllm", "flashinfer"])
    cases.check(
        "who is not installed says so",
        not made
        and all("No module named" in unavailable[name] for name in ("vllm", "flashinfer"))
        and set(unavailable) == {p.name for p in heads.PROVIDERS},
        unavailable,
    )
    case = heads.HeadsCase("16xqwen3:fp8")
    contenders = [PretendedContender("fastnorm", 5.0), PretendedContender("off", error="wrong"),
                  PretendedContender("none", error=timing.Unsupported("not here")),
                  PretendedContender("vllm", 10.0)]
    result = timing.time_case(PretendedMachine(), case, contenders, timing.Ceilings(),
                              timing.Patience(9, 9), 3, ops.COLD_BYTES)
    cases.equal("heads: what it is", (result["op"], result["rows"], result["n"], result["bytes"]),
                ("heads qwen3 fp8", 16, 128, case.bytes_moved))
    text = list(program.text_of(case, result))
    for name, wanted in (("fastnorm", "1.25 x ceiling"), ("off", "wrong: off"),
                         ("none", "unsupported: not here"), ("vllm", "2.00 x fastnorm")):
        found = any(name in line and wanted in line for line in text)
        cases.check(f"heads: the line of {name}", found, text)


# Bytes of a token in and out, by hand, of bf16.
STAGES = {
    "5xqwen3-next": 3 * 32 * 128 * 2,
    "5xkimi:backward": 5 * 32 * 128 * 2,
    "6xmamba2": 3 * 8192 * 2,
    "5xgemma3": 4 * 5376 * 2,
    "5xgemma2:backward": 6 * 3584 * 2,
    "6xdit": 4 * 1152 * 2,
    "5xwan:backward": 6 * 5120 * 2,
    "5xlumina2": 2 * 2304 * 2,
    "5xlumina2:backward": 3 * 2304 * 2,
}
ADALN_SHAPES = {"6xflux": (2, 3, 3072), "5xflux": (1, 5, 3072), "1xdit": (1, 1, 1152)}


def test_stages(cases):
    for text, size in STAGES.items():
        case = stages.StagesCase(text)
        cases.equal(f"bytes of {text}", case.bytes_moved, case.rows * size)
        reads, written, of_stream = case.stream
        tensors = reads + (1 if written == ops.JOINED else reads)
        moved = tensors * of_stream - case.bytes_moved
        cases.check(f"stream of {text} moves its bytes", 0 <= moved <= 16 * tensors, moved)
        if case.tensors in ((1, 1), (2, 1), (2, 2)):
            own = (reads, tensors - reads)
            cases.equal(f"stream of {text} reads and writes as much", own, case.tensors)
    for text, shape in ADALN_SHAPES.items():
        cases.equal(f"images of {text}", stages.StagesCase(text).shape, shape)
    listed = stages.cases_of(stages.MODELS, stages.WHATS, stages.TOKENS)
    cases.equal("no case of stages twice", len({c.key for c in listed}), len(listed))
    cases.equal("all cases of stages", len(listed), 5 * 9 * 2)
    for text in ("5", "5xbert", "0xgemma3", "5xgemma3:sideways", "xgemma3"):
        try:
            stages.StagesCase(text)
            cases.check(f"refused: {text}", False)
        except ValueError as why:
            cases.check(f"refused: {text}", "required: " in str(why) and text in str(why), why)
    wanted = ["fla", "flashinfer-cute", "liger"]
    made, unavailable = program.make(stages.PROVIDERS, None, wanted)
    absent = {n for n, m in (("fla", "fla"), ("flashinfer-cute", "flashinfer"),
                             ("liger", "liger_kernel")) if not has_module(m)}
    others = {p.name for p in stages.PROVIDERS} - set(wanted)
    cases.check(
        "stages: who is not installed or not wanted says so",
        absent <= set(unavailable)
        and {p.name for p in made} | set(unavailable) == set(wanted) | others
        and {n for n, why in unavailable.items() if "--contenders" in why} == others,
        unavailable,
    )
    test_lacks(cases)
    test_misses(cases)


def test_lacks(cases):
    """A contender without a method for a kind of case says why, in words of its own or not."""
    for provider in (p for p in stages.PROVIDERS if not issubclass(p, stages.Whole)):
        for text in STAGES:
            case, made = stages.StagesCase(text), provider.__new__(provider)
            if hasattr(made, case.kind):
                continue
            try:
                made.body(case, None)
                cases.check(f"{provider.name}: {text} is refused", False)
            except timing.Unsupported as why:
                wanted = provider.lacks.get(case.kind, "has no such operation")
                cases.equal(f"{provider.name}: {text} is refused", str(why), wanted)


def test_misses(cases):
    def found(rows, us, **others):
        contenders = {"fastnorm": {"us": us, "spread": 0.01} if us else {"failed": "why"}}
        contenders |= {name: {"us": time, "spread": 0.02} for name, time in others.items()}
        result = {"op": "adaln flux forward", "rows": rows, "ceiling": {"us": 100.0},
                  "contenders": {**contenders, "none": {"unsupported": "why"}}}
        return list(stages.misses(result))

    for name, texts, wanted in (
        ("within the bound of many rows", found(4096, 106.0), []),
        ("past the bound of many rows", found(4096, 106.2), ["1.062 x ceiling"]),
        ("within the bound of few rows", found(64, 100.5), []),
        ("past the bound of few rows", found(64, 100.7), ["0.70 us over"]),
        ("rows that have no bound", found(1024, 200.0), []),
        ("a contender within the spreads", found(1024, 100.0, torch=97.2), []),
        ("a contender that is faster", found(1024, 100.0, torch=96.0), ["torch is faster"]),
        ("no time", found(4096, None), ["no time"]),
    ):
        same = len(texts) == len(wanted) and all(w in t for w, t in zip(wanted, texts))
        cases.check(f"misses: {name}", same, texts)
    text = list(stages.summary({"results": []}))
    cases.equal("misses of nothing", text, ["0 cases, 0 misses of bounds or of others' times"])


# --- norms ---


def test_bytes(cases):
    per_element = {
        "rms": 4,
        "layer": 4,
        "add": 8,
        "rms_fp8": 3,
        "add_fp8": 7,
        "layer_own": 4,
        "rms_row_fp8": 3,
        "add_stats": 8,
        "rms_backward": 6,
        "add_backward": 8,
        "layer_backward": 6,
    }
    for op, size in per_element.items():
        cases.equal(f"bytes of {op}", Case(op, "bf16", 3, 40).bytes_moved, 3 * 40 * size)
    heads = Case("heads", "bf16", 10, 128)
    cases.equal("bytes of heads", heads.bytes_moved, 10 * 72 * 128 * 4)
    cases.equal("heads in place touch half as much", heads.footprint * 2, heads.bytes_moved)
    cases.equal("stream of a fused fp8 add", Case("add_fp8", "bf16", 1, 100).stream, (2, True, 208))
    for op in ops.OPS:  # what a stream reads and writes is what the operation moves
        case = Case(op, "bf16", 4096, 4096)
        reads, written, size = case.stream
        writes = {ops.ALIKE: reads, ops.NARROW: reads - 0.5, ops.JOINED: 1}[written]
        cases.equal(f"stream of {op} moves its bytes", (reads + writes) * size, case.bytes_moved)


def test_order(cases):
    listed = ops.table_cases(["bf16", "f16"])
    cases.equal("no case twice", len(listed), len(set(listed)))
    wanted = {(s.op_name, m, n) for s in ops.SECTIONS for m, n in s.shapes}
    cases.equal(
        "every shape of every table",
        {(c.op_name, c.rows, c.n) for c in listed if c.dtype == "f16"},
        wanted,
    )
    lengths = list(dict.fromkeys(c.n for c in listed if c.dtype == "bf16"))
    cases.equal("one row length after the other", lengths, ops.ORDER_OF_N)
    cases.equal(
        "only what is asked for",
        {(c.op_name, c.n) for c in ops.table_cases(["bf16"], ["rms"], [2048])},
        {("rms", 2048)},
    )
    grid = ops.grid_cases(["bf16"], ["rms", "add"])
    cases.equal("the grid is whole", len(grid), 2 * len(ops.GRID_ROWS) * len(ops.GRID_N))
    cases.check("the grid grows", all(a.footprint <= b.footprint for a, b in zip(grid, grid[1:])))


def test_presets(cases):
    listed = ops.preset_cases("models")
    cases.equal("no case of a preset twice", len(listed), len(set(listed)))
    first = ops.PRESETS["models"][0]
    cases.equal(
        "the grid of models",
        (len(first.cases()), len(ops.MODEL_N), len(ops.MODEL_ROWS)),
        (14 * 7 * 6, 14, 7),
    )
    cases.equal(
        "only what is asked for",
        {
            (c.op_name, c.dtype, c.n)
            for c in ops.preset_cases("models", ["f16"], ["rms", "add_fp8"], [4096])
        },
        {("rms", "f16", 4096), ("add_fp8", "f16", 4096)},
    )
    cases.check(
        "heads and statistics are there",
        {"heads", "qk", "rms_stats", "layer_stats"} <= {c.op_name for c in listed},
    )


def test_chain(cases):
    for shape, calls, flush in (
        ((4096, 4096), 10, False),
        ((1, 4096), 64, True),
        ((4096, 32768), 2, False),
        ((65536, 262144), 1, False),
    ):
        cases.equal(
            f"chain of {shape}", ops.chain_of(Case("rms", "bf16", *shape)), ops.Chain(calls, flush)
        )


# --- figures and tables ---


def result(op="rms", rows=4096, n=4096, ceiling=10.0, dtype="bf16", **times):
    """A result as in the JSON; times are microseconds or {word: reason}."""
    contenders = {
        name: {"us": t, "spread": 0.01} if isinstance(t, float) else t for name, t in times.items()
    }
    return {
        "op": op,
        "dtype": dtype,
        "rows": rows,
        "n": n,
        "bytes": Case(op, dtype, rows, n).bytes_moved,
        "ceiling": {"us": ceiling, "spread": 0.0, "stream": "R1W1 128x2"},
        "contenders": contenders,
    }


def content(*found, **more):
    return {
        "format": 1,
        "device": "a GPU",
        "results": list(found),
        "contenders": [["fastnorm", "fastnorm"], ["quack", "Quack"], ["torch", "Torch"]],
        **more,
    }


def test_figures(cases):
    r = result(fastnorm=10.5, quack=10.8, torch=21.0)
    cases.equal("ratio", tables.ratio(r), 1.05)
    cases.equal("excess", tables.excess(r), 0.5)
    cases.equal(
        "GB/s", round(tables.gb_per_s(r, 10.5), 3), round(4096 * 4096 * 4 / 10.5e-6 / 1e9, 3)
    )
    cases.equal("best peer", tables.best_peer(r), ("quack", 10.8))
    cases.equal("against the best", round(tables.against_best(r), 6), round(10.5 / 10.8, 6))
    cases.check("not slower", not tables.beyond_spread(r))
    cases.check("within the spread", not tables.beyond_spread(result(fastnorm=10.1, quack=10.0)))
    cases.check("slower beyond the spread", tables.beyond_spread(result(fastnorm=10.3, quack=10.0)))
    lonely = result(fastnorm=10.5, torch={"failed": "no"})
    cases.equal("no peer", (tables.best_peer(lonely), tables.against_best(lonely)), (None, None))
    pdl = {"fastnorm": 10.5, "flashinfer-cute-pdl": 9.0, "fastnorm-pdl": 8.0, "quack": 11.0}
    cases.equal("PDL is no rival", tables.best_peer(result(**pdl)), ("quack", 11.0))
    rounded = {"fastnorm": 10.5, "fastnorm-rounded": 9.5, "liger": 10.0, "quack": 10.4}
    r = result(**rounded)
    cases.equal(
        "who rounds is beside who rounds",
        (tables.best_peer(r), round(tables.against_best(r), 6)),
        (("quack", 10.4), round(10.5 / 10.4, 6)),
    )
    r = result(**{**rounded, "quack": 12.0})
    cases.equal(
        "and may still be the best",
        (tables.best_peer(r), tables.against_best(r)),
        (("liger", 10.0), 0.95),
    )
    cases.check(
        "beyond the spread of these two",
        tables.beyond_spread(result(**{**rounded, "liger": 9.2, "quack": 12.0})),
    )
    cases.check(
        "within it", not tables.beyond_spread(result(**{**rounded, "liger": 9.4, "quack": 12.0}))
    )
    del rounded["fastnorm-rounded"]
    cases.equal(
        "not timed: beside the library as it is", tables.against_best(result(**rounded)), 1.05
    )


def test_tables(cases):
    text = tables.report(
        content(
            result(fastnorm=10.5, quack=10.8, torch=21.0),
            result(n=8192, fastnorm=12.0, quack=10.0),
            result(n=16384, fastnorm={"wrong": "y is off"}, quack=11.0),
            result(rows=1, ceiling=1.5, fastnorm=2.0, quack=2.25),
            result(
                "rms_fp8",
                fastnorm={"unsupported": "FASTNORM_ERROR_UNSUPPORTED: quant.scheme is 1"},
                quack=10.0,
                torch={"unsupported": tables.NO_SUCH_OPERATION},
            ),
            unavailable={"vllm": "not installed"},
        )
    )
    lines = text.splitlines()
    for name, line in {
        "header": "| M x N | ceiling us | fastnorm us | GB/s | % of ceiling | fastnorm, x ceiling | Quack | Torch "
        "| best peer | fastnorm / best |",
        "a row": "| 4096x4096 | 10.00 | 10.50 | 6391 | 95.2 | 1.050 | 1.080 | 2.100 | quack | 0.972 |",
        "a slower row": "| 4096x8192 | 10.00 | 12.00 | 11185 | 83.3 | 1.200 | 1.000 | - | quack | 1.200 (slower) |",
        "a wrong one": "| 4096x16384 | 10.00 | - | - | - | WRONG | 1.100 | - | quack | - |",
        "decode": "| 1x4096 | 1.50 | 2.00 | 8 | 75.0 | +0.50 | +0.75 | quack | 0.889 |",
        "unsupported": "| 4096x4096 | 10.00 | - | - | - | unsupported | 1.000 | quack | - |",
        "who is slower": "- rms bf16 4096x8192: 1.200 x quack",
        "who is absent": "- vllm: not installed",
        "why": "- fastnorm, rms_fp8: unsupported: FASTNORM_ERROR_UNSUPPORTED: quant.scheme is 1 (1 shapes)",
    }.items():
        cases.check(f"report: {name}", line in lines, f"no line {line!r} in\n{text}")
    cases.check("report: nothing of what a peer never had", tables.NO_SUCH_OPERATION not in text)
    grid = tables.report(
        content(
            *(
                result(n=n, ceiling=1.0, fastnorm=t)
                for n, t in ((64, 1.5), (128, 1.02), (256, 1.1))
            ),
            kind="grid",
        )
    )
    cases.check(
        "grid",
        "| rms | bf16 | 3 | 1.100 | 1 | 4096x64 1.50, 4096x256 1.10, 4096x128 1.02 |" in grid,
        grid,
    )


def test_suites(cases):
    for name, count in (("gradients", 18), ("gradients_also", 12), ("forward", 10)):
        listed = ops.suite_cases(name, ["bf16"])
        cases.equal(f"suite {name}", (len(listed), len(set(listed))), (count, count))
    cases.equal(
        "a part of a suite",
        [c.key for c in ops.suite_cases("gradients", ["f16"], ["layer_backward"], [8192])],
        ["layer_backward f16 8192x8192", "layer_backward f16 16384x8192"],
    )
    for op, rows, n, bound in (
        ("rms_backward", 4096, 1024, None),  # 25 MB
        ("rms_backward", 4096, 4096, 1.12),  # 101 MB
        ("rms_backward", 65536, 1024, 1.10),  # 403 MB
        ("layer_backward", 4096, 1024, None),
        ("layer_backward", 8192, 8192, 1.15),
        ("rms", 65536, 1024, None),
    ):
        cases.equal(f"bound of {op} {rows}x{n}", ops.gradient_bound(Case(op, "bf16", rows, n)),
                    bound)


def test_suite_tables(cases):
    def gradient(op="rms_backward", rows=8192, n=4096, differs=(0, 0), **times):
        made = result(op, rows, n, **times)
        if "laboratory" in made["contenders"]:
            made["contenders"]["laboratory"].update(
                kernel="256x2 2x1 ring3", differs=dict(zip(("dx", "dweight"), differs))
            )
        return made

    beside = {"fastnorm": 10.5, "fastnorm-pdl": 10.2, "laboratory": 10.4, "cudnn": 10.4}
    cases.equal("cuDNN is beside PDL", tables.own_beside(result(**beside), "cudnn"), "fastnorm-pdl")
    cases.equal("and alone beside the library", tables.own_beside(result(fastnorm=1.0), "cudnn"),
                "fastnorm")
    r = result(**beside)
    cases.equal(
        "the best peer is cuDNN, with PDL on both sides",
        (tables.best_peer(r), round(tables.against_best(r), 6), tables.beyond_spread(r)),
        (("cudnn", 10.4), round(10.2 / 10.4, 6), False),
    )
    del beside["cudnn"]
    cases.equal("the laboratory is no peer", tables.best_peer(result(**beside)), None)
    cases.equal("who looked at bits", [tables.same_bits(x) for x in (
        result(fastnorm=1.0), gradient(laboratory=1.0), gradient(laboratory=1.0, differs=(0, 7)),
    )], [None, True, False])
    found = [
        gradient(**beside, cudnn=10.0),
        gradient(n=8192, differs=(0, 7), **{"fastnorm": 11.3, "laboratory": 10.0, "cudnn": 11.2}),
        gradient(rows=4096, fastnorm={"failed": "no"}, laboratory=10.0),
        gradient("layer_backward", fastnorm=11.4, laboratory=11.3),
    ]
    text = tables.report(content(*found, suite="gradients"))
    shown = text.splitlines()
    for name, line in {
        "header": "| M x N | ceiling us | fastnorm us | x ceiling | laboratory us "
        "| fastnorm / laboratory | bits | its kernel | cuDNN us | fastnorm / cuDNN "
        "| fastnorm, PDL us | PDL / cuDNN |",
        "a row": "| 8192x4096 | 10.00 | 10.50 | 1.050 | 10.40 | 1.010 | equal | 256x2 2x1 ring3 "
        "| 10.00 | 1.050 (slower) | 10.20 | 1.020 |",
        "a row without PDL": "| 8192x8192 | 10.00 | 11.30 | 1.130 | 10.00 | 1.130 (slower) "
        "| DIFFER | 256x2 2x1 ring3 | 11.20 | 1.009 | - | - |",
        "a failure": "| 4096x4096 | 10.00 | failed | - | 10.00 | - | equal | 256x2 2x1 ring3 | - "
        "| - | - | - |",
        "over the ceiling": "- rms_backward bf16 8192x8192: 1.130 x ceiling; required: 1.1",
        "over the laboratory": "- rms_backward bf16 8192x8192: 1.130 x laboratory; "
        "required: 1.03",
        "bits": "- rms_backward bf16 8192x8192: the laboratory's bits differ from the library's: "
        "0 elements of dx, 7 elements of dweight",
        "not timed": "- rms_backward bf16 4096x4096: fastnorm was not timed: failed",
    }.items():
        cases.check(f"suite: {name}", line in shown, f"no line {line!r} in\n{text}")
    misses = list(tables.suite_misses(found))
    cases.equal("suite: all that is missed", len(misses), 4)
    slow = gradient(**{"fastnorm": 10.1, "fastnorm-pdl": 10.3, "cudnn": 10.0})
    cases.equal("suite: cuDNN, PDL with PDL", list(tables.suite_misses([slow])), [
        "- rms_backward bf16 8192x4096: fastnorm-pdl 1.030 x cuDNN, beyond the spread of both"
    ])
    forward = tables.report(content(result(rows=1, **beside, cudnn=11.0), suite="forward"))
    line = "| 1x4096 | 10.00 | 10.50 | 1.050 | 11.00 | 0.955 | 10.20 | 0.927 |"
    cases.check("suite: forward", line in forward.splitlines(), forward)
    cases.check("suite: nothing is missed", "Bounds that are missed:\n- none" in forward, forward)


def test_against(cases):
    def pair(op, rows, n, own, before, dtype="bf16"):
        return result(op, rows, n, dtype=dtype, **{"fastnorm": own, "fastnorm-before": before})

    found = [
        pair("rms", 1, 4096, 2.0, 2.0),
        pair("add", 64, 4096, 2.1, 2.0),
        pair("rms", 4096, 16384, 8.0, 10.0),
        pair("rms", 16, 4096, 1.0, 2.0, "f16"),
        pair("rms_stats", 1, 4096, 2.2, 2.0),
        result("rms_fp8", 1, 4096, **{"fastnorm": 2.0, "fastnorm-before": {"failed": "no"}}),
        pair("layer", 4096, 8192, 10.9, 10.0),
    ]
    cases.equal("the ratio of two builds", [tables.against(r) for r in found[:3]], [1.0, 1.05, 0.8])
    cases.equal("none where one was not timed", tables.against(found[5]), None)
    cases.check("geometric mean", abs(tables.geometric_mean([0.5, 2.0, 8.0]) - 2.0) < 1e-12)
    cases.equal("the build before is no peer", tables.best_peer(found[1]), None)
    text = tables.report(content(*found, preset="models"))
    lines = text.splitlines()
    for name, line in {
        "bf16": "| bf16 | 3 of 588 | 0.9435 (<= 1.005) | 1.0500 (ABOVE 1.04) | 0.8000 (<= 1.1) | add 64x4096 1.050, "
        "rms 1x4096 1.000, rms 4096x16384 0.800 |",
        "f16": "| f16 | 1 of 588 | 0.5000 (<= 1.03) | 0.5000 | - | rms 16x4096 0.500 |",
        "statistics": "| with statistics | 1 of 294 | 1.1000 (ABOVE 1.03) | 1.1000 | - | rms_stats 1x4096 1.100 |",
        "nothing": "| query and key heads | 0 of 10 | - | - | - | - |",
        "an operation": "| bf16 | rms | 2 | 0.8944 | 1.000 |",
        "the ceiling": "- layer bf16 4096x8192: 1.0900 (ABOVE 1.08) x ceiling",
    }.items():
        cases.check(f"against: {name}", line in lines, f"no line {line!r} in\n{text}")


def test_contenders(cases):
    def names(**given):
        options = {"kind": "run", "preset": None, "against": None, "contenders": None, **given}
        return [c.name for c in runner.wanted_contenders(argparse.Namespace(**options))]

    cases.check(
        "everybody",
        {"fastnorm", "quack", "cudnn", "laboratory"} <= set(names())
        and "fastnorm-before" not in names(),
        names(),
    )
    cases.equal(
        "the build before, beside everybody",
        names(against="a")[:2],
        ["fastnorm", "fastnorm-before"],
    )
    cases.equal(
        "two builds alone", names(preset="models", against="a"), ["fastnorm", "fastnorm-before"]
    )
    cases.equal("the grid", [names(kind="grid"), names(kind="grid", against="a")],
                [["fastnorm"], ["fastnorm", "fastnorm-before"]])
    options = argparse.Namespace(
        kind="run", preset="models", suite=None, dtypes=None, ops=["rms"], n=[1024], rows=[1, 16]
    )
    cases.equal(
        "only the rows that are asked for",
        [(c.dtype, c.rows) for c in runner.cases_of(options)],
        [("bf16", 1), ("bf16", 16), ("f16", 1), ("f16", 16)],
    )
    cases.equal(
        "only who is asked for",
        names(preset="models", against="a", contenders=["fastnorm"]),
        ["fastnorm"],
    )


# --- the document ---


def test_document(cases, work):
    path = work / "deep" / "d.csv"
    document = results.Document.open(path)
    build, machine = {"version": "1"}, {"device": "a GPU"}
    document.describe("run", build, machine)
    document.add(result(fastnorm=10.5))
    document.write()
    again = results.Document.open(path)
    wanted = [Case("rms", "bf16", 4096, 4096), Case("rms", "bf16", 4096, 8192)]
    cases.equal("goes on with what is missing", again.missing(wanted), wanted[1:])
    cases.equal(
        "goes on with contenders that are missing", again.missing(wanted, {"quack"}), wanted
    )
    again.add(result(fastnorm=10.5, quack=11.0))
    cases.equal(
        "a case is there once",
        (len(again.results), again.missing(wanted, {"quack"})),
        (1, wanted[1:]),
    )
    again.describe("run", build, machine)
    cases.equal("each run is noted", len(again.content["runs"]), 2)
    cases.equal("nothing half written is left", [p.name for p in path.parent.iterdir()], ["d.csv"])
    for name, change in {
        "kind": ("grid", build, machine),
        "library": ("run", {"version": "2"}, machine),
        "device": ("run", build, {"device": "another"}),
    }.items():
        try:
            again.describe(*change)
            cases.check(f"another {name} is refused", False)
        except results.Mismatch as why:
            cases.check(f"another {name} is refused", name in str(why), str(why))
    for name, change in {
        "against": {"against": {"version": "2"}},
        "preset": {"preset": "models"},
    }.items():
        document = results.Document(path)
        document.describe("run", build, machine, **{name: "the first"})
        document.add(result(fastnorm=10.5))
        document.describe("run", build, machine, **{name: "the first"})
        try:
            document.describe("run", build, machine, **change)
            cases.check(f"another {name} is refused", False)
        except results.Mismatch as why:
            cases.check(f"another {name} is refused", name in str(why), str(why))
    cases.equal("fresh forgets", results.Document.open(path, fresh=True).results, [])
    path.write_text('{"format": 99}')
    try:
        results.Document.open(path)
        cases.check("another format is refused", False)
    except results.Mismatch:
        cases.check("another format is refused", True)


class Anything:
    """Documents of all that JSON has, by chance."""

    def __init__(self, seed):
        self.chance = random.Random(seed)

    def value(self, depth=0):
        whole = self.chance.randrange(-10 ** 12, 10 ** 12)
        texts = [
            "",
            "12",
            "true",
            "null",
            "1e5",
            '"',
            "a, b",
            'say "c"',
            "NaN",
            "[1]",
            "{}",
            "# d",
            " e ",
        ]
        values = [
            whole,
            whole / 7.0,
            10.0 ** self.chance.randrange(-9, 9) * self.chance.random(),
            True,
            False,
            None,
            self.chance.choice(texts),
            [],
            [whole, 1.23456, "f"],
            {},
        ]
        if depth < 2 and self.chance.random() < 0.2:
            return {f"k{i}": self.value(depth + 1) for i in range(3)}
        return self.chance.choice(values)

    def result(self):
        names = ["op", "dtype", "rows", "n", "us", "ceiling", "contenders", "a-b", "c d"]
        found = {name: self.value() for name in names if self.chance.random() < 0.8}
        return found or {"op": "rms"}

    def document(self):
        return {
            "device": "a GPU",
            "launch_ns": 3246.6543,
            "runs": [{"date": "d", "t": 0.123456}],
            "none": None,
            "results": [self.result() for _ in range(self.chance.randrange(1, 9))],
        }


def test_lines(cases, work):
    """What is written is read again; what is no result file is refused."""
    for seed in range(50):
        document = Anything(seed).document()
        text = lines.text_of(document)
        wanted = lines.rounded({**document, "format": lines.FORMAT})
        cases.equal(
            f"document {seed} is read as it was",
            repr(sorted_deep(lines.parse(text))),
            repr(sorted_deep(wanted)),
        )
        cases.check(f"document {seed}, written again", lines.text_of(lines.parse(text)) == text)
        cases.equal(
            f"document {seed}: a line a case", text.count("\n"), 2 + len(document["results"])
        )
    cases.equal("no case yet", lines.parse(lines.text_of({"results": []}))["results"], [])
    figures = {
        1234567.8: 1235000,
        129.0649: 129.1,
        0.0123456: 0.01235,
        12.0: 12,
        0.0: 0,
        1e-7: 1e-07,
        123456: 123456,
        123456.0: 123456,
    }
    cases.equal("four digits", {v: lines.rounded(v) for v in figures}, figures)
    head = lines.text_of({"results": []})
    for name, text in {
        "nothing": "",
        "JSON": '{"results": []}',
        "no JSON": "# {\n",
        "another format": '# {"format": 1}\n',
        "a cell too few": head + "op,n\nrms\n",
        "a cell too many": head + "op,n\nrms,1,2\n",
    }.items():
        try:
            cases.check(f"refused: {name}", False, lines.parse(text, "name.csv"))
        except lines.Mismatch as why:
            cases.check(f"refused: {name}", "name.csv" in str(why) and "required" in str(why), why)
    try:
        cases.check("refused: a name with a point", False, lines.text_of({"results": [{"a.b": 1}]}))
    except ValueError as why:
        cases.check("refused: a name with a point", "'a.b'" in str(why), why)
    test_convert(cases, work)
    test_results(cases)


def sorted_deep(value):
    if isinstance(value, dict):
        return {name: sorted_deep(value[name]) for name in sorted(value)}
    return [sorted_deep(v) for v in value] if isinstance(value, list) else value


def test_convert(cases, work):
    """JSON of older versions becomes a result file with the same values to four digits."""
    old = work / "old.json"
    document = {
        "format": 1,
        "device": "a GPU",
        "launch_ns": 3246.65,
        "results": [
            {
                "op": "rms",
                "dtype": "bf16",
                "rows": 4096,
                "n": 1024,
                "bytes": 16777216,
                "us": 5.4567891,
                "flushed": False,
                "ceiling": {"us": 5.372631706689534, "stream": "R1W1 512x2"},
                "contenders": {"quack": {"us": 6.0}, "liger": {"unsupported": "no, \"never\""}},
            },
            {"op": "add", "dtype": "bf16", "rows": 1, "n": 64, "error": "failed"},
        ],
    }
    old.write_text(json.dumps(document, indent=1))
    code, out, err = run_program("convert", old)
    made = work / "old.csv"
    cases.check("convert", code == 0 and out.strip() == str(made), out + err)
    wanted = json.loads(json.dumps(document))
    wanted["format"], wanted["launch_ns"] = lines.FORMAT, 3247
    wanted["results"][0]["us"], wanted["results"][0]["ceiling"]["us"] = 5.457, 5.373
    cases.equal("converted: the same values to four digits", lines.read(made), wanted)
    cases.equal(
        "converted: lines",
        made.read_text().splitlines()[1:],
        [
            "op,dtype,rows,n,bytes,ceiling.stream,ceiling.us,contenders.liger.unsupported,contenders.quack.us,error,flushed,us",
            'rms,bf16,4096,1024,16777216,R1W1 512x2,5.373,"no, ""never""",6,,false,5.457',
            "add,bf16,1,64,,,,,,failed,,",
        ],
    )
    code, _, err = run_program("convert", old)
    cases.check(
        "convert does not overwrite",
        code == 1 and "is there already" in err and "Traceback" not in err,
        err,
    )
    for name, text in {"no JSON": "one", "no results": "{}", "a list": "[]"}.items():
        other = work / "other.json"
        other.write_text(text)
        code, _, err = run_program("convert", other)
        cases.check(
            f"convert: {name}", code == 1 and "required" in err and "Traceback" not in err, err
        )
        cases.check(f"convert: {name}, nothing written", not other.with_suffix(".csv").exists())


def test_results(cases):
    """What is checked in is in this form, and small."""
    folder = HERE.parent / "results"
    files = sorted(folder.iterdir())
    cases.check(
        "results are checked in", len(files) >= 40 and all(f.suffix == ".csv" for f in files), files
    )
    for file in files:
        text = file.read_text()
        cases.check(
            f"{file.name}, written again", lines.text_of(lines.parse(text, file.name)) == text
        )
    for folder, limit in ((folder, 900_000), (HERE.parent / "tune", 1_000_000)):
        size = sum(file.stat().st_size for file in folder.iterdir())
        cases.check(f"{folder.name}: at most {limit} bytes", size <= limit, size)


# --- the timing loop ---


class PretendedReference:
    def check(self, i, given):
        if given == "wrong":
            raise WrongResult("off")
        return 0.25


class PretendedBuffers:
    def __init__(self, log):
        self.log = log

    def reset(self):
        self.log.append("reset")


class PretendedMachine:
    """Time passes as each captured thing says."""

    STREAMS = {"slow": 9.0, "best": 4.0, "good": 5.0, "fair": 6.0}

    def __init__(self):
        self.log, self.replays = [], []

    def buffers(self, case, chain):
        return PretendedBuffers(self.log)

    def reference(self, case, buffers):
        return PretendedReference()

    def streams(self, case, buffers):
        return {name: lambda i, us=us, name=name: (name, us) for name, us in self.STREAMS.items()}

    def synchronize(self):
        pass

    def capture(self, body, calls):
        given = [body(i) for i in range(calls)]
        name, us = given[0] if isinstance(given[0], tuple) else ("", 0)
        return argparse.Namespace(name=name, us=us * calls, results=[None])

    def replay(self, captured, flush):
        self.replays.append((captured.name, flush))
        return captured.us + self.replays.count((captured.name, flush)) % 2 * 0.1


class PretendedContender:
    def __init__(self, name, us=0.0, error=None, sleep=0.0):
        self.name, self.us, self.error, self.sleep = name, us, error, sleep

    def body(self, case, buffers):
        if isinstance(self.error, Exception):
            raise self.error
        end = time.monotonic() + self.sleep
        while time.monotonic() < end:
            time.sleep(0.01)
        return lambda i: "wrong" if self.error == "wrong" else (self.name, self.us)


def test_timing(cases):
    machine, ceilings, seen = PretendedMachine(), timing.Ceilings(), []
    contenders = [PretendedContender("fastnorm", 5.0), PretendedContender("quack", 6.0),
                  PretendedContender("none", error=timing.Unsupported("not here")),
                  PretendedContender("off", error="wrong"),
                  PretendedContender("broken", error=ValueError("bad")),
                  PretendedContender("sleepy", sleep=20.0)]
    case = Case("rms", "bf16", 1, 4096)
    patience = timing.Patience(0.2, 0.3)
    found = timing.time_case(
        machine, case, contenders, ceilings, patience, 4, ops.COLD_BYTES, seen.append
    )
    entries = found["contenders"]
    calls = found["calls"]
    cases.equal(
        "median", round(entries["fastnorm"]["us"], 6), round((5.0 * calls + 0.05) / calls, 6)
    )
    cases.check("spread", 0 < entries["fastnorm"]["spread"] < 0.01, entries["fastnorm"])
    cases.equal("error of the result is kept", entries["quack"]["max_error"], 0.25)
    cases.equal("the ceiling is the fastest stream", found["ceiling"]["stream"], "best")
    cases.equal("unsupported", entries["none"], {"unsupported": "not here"})
    cases.equal("a wrong result is not timed", entries["off"], {"wrong": "off"})
    cases.equal("a failure is named", entries["broken"], {"failed": "ValueError: bad"})
    cases.check(
        "who is too slow is left out",
        "0.2 s" in entries["sleepy"].get("too_slow", ""),
        entries["sleepy"],
    )
    cases.check("that stopped it", found["seconds"] < 5, found["seconds"])
    cases.equal("who is being looked at is said", seen, [*entries, "streams"])
    cases.check(
        "few rows are flushed", found["flushed"] and all(flush for _, flush in machine.replays)
    )
    last = [name for name, _ in machine.replays[-5:]]
    cases.equal("in turn", last, ["fastnorm", "quack", "best", "good", "fair"])
    before = len([1 for name, _ in machine.replays if name == "slow"])
    found = timing.time_case(
        machine,
        Case("layer", "bf16", 1, 4096),
        contenders[:1] + contenders[-1:],
        ceilings,
        patience,
        2,
        ops.COLD_BYTES,
    )
    after = len([1 for name, _ in machine.replays if name == "slow"])
    cases.equal("streams of the same bytes are swept once", after, before)
    timing.time_case(
        machine, Case("add", "bf16", 1, 4096), contenders[:1], ceilings, patience, 2, ops.COLD_BYTES
    )
    cases.check(
        "and anew for others", len([1 for name, _ in machine.replays if name == "slow"]) > after
    )
    found = timing.time_case(machine, case, contenders[-1:], ceilings, patience, 2, ops.COLD_BYTES)
    cases.check(
        "patience ends", "used up" in found["contenders"]["sleepy"]["too_slow"], found["contenders"]
    )
    cases.equal("no alarm is left", signal.getitimer(signal.ITIMER_REAL), (0.0, 0.0))


# --- who runs when, and after a crash ---


def test_passes(cases, work):
    quick, slow, pdl = (
        argparse.Namespace(name=n, slow=s, decode_only=d, has=lambda case: case.op_name != "qk")
        for n, s, d in (("a", False, False), ("b", True, False), ("p", False, True))
    )
    document = results.Document(work / "passes.csv")
    large, few = Case("rms", "bf16", 4096, 4096), Case("rms", "bf16", 1, 4096)
    steps = [
        (c.rows, [x.name for x in present])
        for c, present in runner.passes([quick, slow, pdl], [large, few], document)
    ]
    cases.equal("the quick ones first, then all", steps,
                [(4096, ["a"]), (1, ["a", "p"]), (4096, ["a", "b"]), (1, ["a", "b", "p"])])
    heads = Case("qk", "bf16", 64, 128)
    steps = [
        [x.name for x in present] for _, present in runner.passes([quick, slow], [heads], document)
    ]
    cases.equal("none again for what the slow one does not have", steps, [["a"]])
    document.add(result(a=1.0))
    steps = [
        (c.rows, [x.name for x in present])
        for c, present in runner.passes([quick, slow], [large, few], document)
    ]
    cases.equal(
        "what is there is left out", steps, [(1, ["a"]), (4096, ["a", "b"]), (1, ["a", "b"])]
    )


CHILD = """
import json, os, signal, sys
sys.path.insert(0, {bench!r})
from compare.results import Document
from compare.runner import Progress
path = {path!r}
document, progress = Document.load(path), Progress(path)
crashed = document.content.get("crashed", {{}})
skipped = document.content.get("skipped", {{}})
if "quack" not in crashed:
    progress.write("quack", "rms bf16 1x4096")
    os.kill(os.getpid(), signal.SIGSEGV)
if "rms bf16 1x8192" not in skipped:
    progress.write("fastnorm", "rms bf16 1x8192")
    sys.exit(3)
document.content["came to the end"] = True
document.write()
"""


def test_crashes(cases, work):
    path = work / "crash.csv"
    script = work / "child.py"
    script.write_text(CHILD.format(bench=str(HERE.parent), path=str(path)))
    options = argparse.Namespace(csv=path, fresh=True, until=time.time() + 60)
    code = runner.run_parent(options, [sys.executable, str(script)])
    found = lines.read(path)
    cases.equal("a crash does not end the run", (code, found.get("came to the end")), (0, True))
    cases.check("the peer is left out", "signal 11" in found["crashed"].get("quack", ""), found)
    cases.check(
        "only the case, where it was the library",
        "device was lost" in found["skipped"]["rms bf16 1x8192"],
        found,
    )
    cases.equal(
        "no trace but the document", sorted(p.name for p in work.glob("crash*")), ["crash.csv"]
    )
    stuck = work / "stuck.py"
    stuck.write_text("import time\ntime.sleep(60)\n")
    progress = runner.Progress(path)
    progress.write("quack", "a case")
    os.utime(progress.path, (1, 1))
    code, why = runner.watch([sys.executable, str(stuck)], progress, time.time() + 60)
    cases.check(
        "one that hangs is killed",
        code == -signal.SIGKILL and "no sign of life" in why,
        (code, why),
    )
    progress.clear()


# --- the library ---


class Array:
    """As much of a PyTorch tensor as a contender looks at, over NumPy memory."""

    def __init__(self, array, dtype="torch.float32"):
        self.array, self.dtype, self.shape = array, dtype, array.shape

    def data_ptr(self):
        return self.array.ctypes.data

    def dim(self):
        return self.array.ndim

    def stride(self):
        return [s // self.array.itemsize for s in self.array.strides]

    def __getitem__(self, index):
        return Array(self.array[index], self.dtype)


def f16(array):
    return Array(np.ascontiguousarray(array, np.float16), "torch.float16")


class HostBuffers:
    """One call's tensors in host memory."""

    def __init__(self, case, random):
        shape = (case.rows, ops.HEADS_OF_ALL, case.n) if case.op.heads else (case.rows, case.n)
        self.x, self.residual = ([f16(random.standard_normal(shape))] for _ in range(2))
        self.y, self.residual_out = ([f16(np.zeros(shape))] for _ in range(2))
        self.quantized = [Array(np.zeros(shape, np.uint8), "torch.float8_e4m3fn")]
        self.weight32 = Array(
            random.uniform(0.5, 1.5, case.n).astype(np.float16).astype(np.float32)
        )
        self.bias32 = Array(random.standard_normal(case.n).astype(np.float32))
        self.weight, self.key_weight = f16(self.weight32.array), f16(
            random.uniform(0.5, 1.5, case.n)
        )
        self.bias = f16(self.bias32.array)
        self.scale = Array(np.array([1 / 64], np.float32))
        self.row_scale, self.mean, self.rstd = (
            [Array(np.zeros(case.rows, np.float32))] for _ in range(3)
        )
        if case.op.heads:
            self.y[0].array[:] = self.x[0].array

    def heads_of(self, tensor):
        return tensor[:, :ops.HEADS]


class HostBackwardBuffers:
    """The same of a backward pass; rstd and mean are exact but for one rounding."""

    def __init__(self, case, random):
        shape = (case.rows, case.n)
        self.x, self.dy, self.dresidual_in = (
            [f16(random.standard_normal(shape))] for _ in range(3)
        )
        self.dx, self.dweight, self.dbias = (
            [f16(np.full(s, np.nan))] for s in (shape, case.n, case.n)
        )
        self.weight, self.bias = f16(random.uniform(0.5, 1.5, case.n)), f16(
            random.standard_normal(case.n)
        )
        x = self.x[0].array.astype(np.float64)
        mean = x.mean(-1) if case.op.layer else np.zeros(case.rows)
        rstd = 1 / np.sqrt(((x - mean[:, None]) ** 2).mean(-1) + EPS)
        self.mean, self.rstd = ([Array(v.astype(np.float32))] for v in (mean, rstd))


class HostTorch:
    """What a contender asks of PyTorch on a CPU."""

    uint8 = np.uint8

    @staticmethod
    def empty(size, dtype, device):
        return Array(np.empty(size, dtype))


def exact_gradients(case, b):
    """{name: (value, size)}: an error is measured by the size."""
    x, dy, weight = (t.array.astype(np.float64) for t in (b.x[0], b.dy[0], b.weight))
    xhat = (x - b.mean[0].array[:, None].astype(np.float64)) * b.rstd[0].array[:, None]
    e = dy * weight
    dx = e - xhat * (e * xhat).mean(-1, keepdims=True)
    if case.op.layer:
        dx = dx - e.mean(-1, keepdims=True)
    dx = dx * b.rstd[0].array[:, None] + (b.dresidual_in[0].array if case.op.adds else 0)
    found = {
        "dx": (dx, np.maximum(np.abs(dx), 1)),
        "dweight": ((dy * xhat).sum(0), np.sqrt(((dy * xhat) ** 2).sum(0))),
    }
    if case.op.layer:
        found["dbias"] = dy.sum(0), np.sqrt((dy**2).sum(0))
    return found


def test_backward(cases, path):
    machine = argparse.Namespace(
        device=argparse.Namespace(type="cpu", index=None), stream_handle=None, torch=HostTorch
    )
    contender, random = Fastnorm(Library(path), machine), np.random.default_rng(8)
    for op in (op for op in ops.OPS.values() if op.backward):
        case = Case(op.name, "f16", 37, 200)
        b = HostBackwardBuffers(case, random)
        contender.body(case, b)(0)
        for name, (wanted, size) in exact_gradients(case, b).items():
            worst = np.max(
                np.abs(getattr(b, name)[0].array - wanted)
                / (2.0**-10 * np.maximum(size, np.abs(wanted)))
            )
            cases.check(f"library, {op.name}: {name} is right", worst <= 1, worst)
        cases.equal(
            f"library, {op.name}: no dbias of RMSNorm",
            np.isnan(b.dbias[0].array).all(),
            not op.layer,
        )
        cases.check(
            f"library, {op.name}: its kernel is noted", contender.facts["kernel"], contender.facts
        )
        contender.pdl = True
        cases.equal(
            f"library, {op.name}: PDL's flags",
            contender._backward(case, b, 0).flags,
            PDL_WAIT | PDL_TRIGGER,
        )
        contender.pdl = False


class PretendedPackages:
    """The backward functions of quack 0.6, Transformer Engine 2 and Liger 0.8, with their names and
    parameters. They keep what they are called with, and return words."""

    NAMES = (
        "quack.rmsnorm",
        "transformer_engine.pytorch",
        "transformer_engine_torch",
        "liger_kernel.ops.rms_norm",
        "liger_kernel.ops.fused_add_rms_norm",
        "liger_kernel.ops.layer_norm",
    )

    def __init__(self, present=True):
        self.given, self.present = {}, present
        kept = self.keep

        def rmsnorm_bwd(x, weight, dout, rstd, dresidual_out=None, has_bias=False,
                        has_residual=False, weight_offset=0.0):
            kept(x=x, weight=weight, dy=dout, rstd=rstd, dresidual_in=dresidual_out)
            return "dx", "dweight", None, None

        def layernorm_bwd(x, weight, dout, rstd, mean, has_bias=True):
            kept(x=x, weight=weight, dy=dout, rstd=rstd, mean=mean)
            return "dx", "dweight", "dbias"

        def te_rms(dz, x, rsigma, gamma, sm_margin, zero_centered_gamma):
            kept(x=x, weight=gamma, dy=dz, rstd=rsigma)
            return ["dx", "dweight"]

        def te_add(dz, x, add, rsigma, gamma, sm_margin, zero_centered_gamma):
            kept(x=x, weight=gamma, dy=dz, rstd=rsigma, dresidual_in=add)
            return ["dx", "dweight"]

        def te_layer(dz, x, mu, rsigma, gamma, sm_margin, zero_centered_gamma):
            kept(x=x, weight=gamma, dy=dz, rstd=rsigma, mean=mu)
            return ["dx", "dweight", "dbias"]

        def liger_rms(dY, X, W, RSTD, offset, casting_mode, BLOCK_SIZE, num_warps, in_place,
                      row_mode, needs_dw=None):
            kept(x=X, weight=W, dy=dY, rstd=RSTD, settings=(casting_mode, BLOCK_SIZE, num_warps))
            return "dx", "dweight"

        def liger_add(dY, dS_out, S, W, RSTD, offset, casting_mode, BLOCK_SIZE, num_warps,
                      num_stages, in_place, needs_dw=None):
            kept(x=S, weight=W, dy=dY, rstd=RSTD, dresidual_in=dS_out,
                 settings=(casting_mode, BLOCK_SIZE, num_warps))
            return "dx", "dx", "dweight"

        def liger_layer(dY, X, W, B, Mean, RSTD, needs_dw=None, needs_db=None):
            kept(x=X, weight=W, dy=dY, rstd=RSTD, mean=Mean)
            return "dx", "dweight", "dbias"

        self.functions = {
            "quack.rmsnorm": {"_rmsnorm_fwd": None, "rmsnorm_bwd": rmsnorm_bwd,
                              "layernorm_bwd": layernorm_bwd},
            "transformer_engine.pytorch": {},
            "transformer_engine_torch": {"rmsnorm_bwd": te_rms, "rmsnorm_bwd_add": te_add,
                                         "layernorm_bwd": te_layer},
            "liger_kernel.ops.rms_norm": {
                "rms_norm_forward": lambda X, W, eps, offset, mode, row_mode:
                    ("y", X, "rstd", 1024, 8, mode),
                "rms_norm_backward": liger_rms,
            },
            "liger_kernel.ops.fused_add_rms_norm": {
                "fused_add_rms_norm_forward": lambda X, R, W, eps, offset, mode:
                    ("y", X, "rstd", 1024, 8, 3, mode),
                "fused_add_rms_norm_backward": liger_add,
            },
            "liger_kernel.ops.layer_norm": {"layer_norm_forward": None,
                                            "layer_norm_backward": liger_layer},
        }

    def keep(self, **given):
        self.given = {name: value for name, value in given.items() if value is not None}

    def __enter__(self):
        self.before = {name: sys.modules.get(name) for name in self.NAMES}
        for name in self.NAMES:
            sys.modules[name] = None
            if self.present:
                module = sys.modules[name] = types.ModuleType(name)
                vars(module).update(self.functions[name])
        # Their parents, which import_module looks up first.
        for name in {n.rpartition(".")[0] for n in self.NAMES if "." in n} | {"liger_kernel"}:
            self.before.setdefault(name, sys.modules.get(name))
            sys.modules[name] = types.ModuleType(name) if self.present else None
            if self.present:
                sys.modules[name].__path__ = []
        return self

    def __exit__(self, *_):
        for name, module in self.before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def test_backward_peers(cases):
    """Every peer's function gets the tensors of its call, and its results have their names."""
    generator = np.random.default_rng(9)
    for op in (op for op in ops.OPS.values() if op.backward):
        case = Case(op.name, "f16", 3, 16)
        b = HostBackwardBuffers(case, generator)
        wanted = {"x": b.x[0], "weight": b.weight, "dy": b.dy[0], "rstd": b.rstd[0]}
        if op.adds:
            wanted["dresidual_in"] = b.dresidual_in[0]
        if op.layer:
            wanted["mean"] = b.mean[0]
        names = ["dx", "dweight"] + (["dbias"] if op.layer else [])
        for kind in (peers.Quack, peers.TransformerEngine, peers.Liger):
            with PretendedPackages() as packages:
                found = kind(None).body(case, b)(0)
                name = f"{kind.name}, {op.name}"
                settings = packages.given.pop("settings", ("gemma", 1024, 8))
                cases.check(
                    f"{name}: tensors",
                    packages.given.keys() == wanted.keys()
                    and all(packages.given[n] is t for n, t in wanted.items()),
                    packages.given,
                )
                cases.equal(f"{name}: settings", settings, ("gemma", 1024, 8))
                cases.equal(f"{name}: results", found, {n: n for n in names})
    # Versions that lack a function.
    case = Case("layer_backward", "f16", 3, 16)
    with PretendedPackages():
        del sys.modules["quack.rmsnorm"].layernorm_bwd
        try:
            cases.check("quack without it", False, peers.Quack(None).body(case, b))
        except timing.Unsupported as why:
            cases.check("quack without it", "no backward of LayerNorm" in str(why), why)
    case, total = Case("add_backward", "f16", 3, 16), []
    b = HostBackwardBuffers(case, generator)
    with PretendedPackages():
        module = sys.modules["transformer_engine_torch"]
        del module.rmsnorm_bwd_add
        module.rmsnorm_bwd = lambda *_: [argparse.Namespace(add_=total.append), "dweight"]
        peers.TransformerEngine(None).body(case, b)(0)
    cases.check(
        "Transformer Engine without it: dresidual_in is added", total == b.dresidual_in, total
    )


class NamedTensor:
    """A tensor by its name; cuDNN's views of it have the same name."""

    dtype = "its dtype"

    def __init__(self, name, *shape):
        self.name, self.shape = name, shape

    def view(self, *shape):
        return NamedTensor(self.name, *(self.shape[0] if e == -1 else e for e in shape))


class PretendedCudnn(types.ModuleType):
    """As much of cuDNN's front end as the contender calls: it keeps what a graph is made of."""

    class cudnnGraphNotSupportedError(Exception):
        pass

    def __init__(self, supports=True):
        super().__init__("cudnn")
        self.supports, self.log, self.executed = supports, [], []
        names = argparse.Namespace
        self.data_type, self.heur_mode = names(FLOAT="float"), names(A="a", FALLBACK="b")
        self.norm_forward_phase = names(INFERENCE="inference")
        self.pygraph = lambda **given: PretendedGraph(self, given)

    def create_handle(self):
        return "handle"

    def backend_version_string(self):
        return "9.1.2"

    def set_stream(self, handle, stream):
        self.log.append(("stream", handle, stream))


class PretendedGraph:
    def __init__(self, cudnn, given):
        self.cudnn, self.log, self.outputs = cudnn, cudnn.log, []
        self.log.append(("graph", given))

    def tensor_like(self, tensor):
        return f"place of {tensor.name}"

    def _operation(self, outputs, given):
        self.log.append(("operation", given))
        self.outputs = [PretendedOutput(name, self.log) for name in outputs]
        return self.outputs

    def rmsnorm(self, **given):
        return [*self._operation(["y"], given), None]

    def layernorm(self, **given):
        return [*self._operation(["y"], given), None, None]

    def rmsnorm_backward(self, **given):
        return [*self._operation(["dx", "dweight"], given), None]

    def layernorm_backward(self, **given):
        return self._operation(["dx", "dweight", "dbias"], given)

    def check_support(self):
        if not self.cudnn.supports:
            raise self.cudnn.cudnnGraphNotSupportedError("no engine")

    def validate(self, *_):
        self.log.append(("step",))

    build_operation_graph = create_execution_plans = build_plans = validate

    def get_workspace_size(self):
        return 48

    def execute(self, tensors, workspace, handle):
        self.cudnn.executed.append(
            ({getattr(place, "name", place): t.name for place, t in tensors.items()}, workspace,
             handle)
        )


class PretendedOutput:
    def __init__(self, name, log):
        self.name, self.log = name, log

    def set_output(self, wanted):
        return self

    def set_data_type(self, dtype):
        self.log.append(("output", self.name, dtype))


def test_cudnn(cases):
    def named(name, *shape):
        return [NamedTensor(f"{name}{i}", *shape) for i in range(2)]

    b = argparse.Namespace(
        **{name: named(name, 3, 16) for name in ("x", "dy", "y", "dx")},
        **{name: named(name, 3) for name in ("rstd", "mean")},
        **{name: named(name, 16) for name in ("dweight", "dbias")},
        weight=NamedTensor("weight", 16), bias=NamedTensor("bias", 16),
    )
    torch = argparse.Namespace(
        full=lambda shape, value, dtype: NamedTensor(f"{value}", *shape),
        empty=lambda size, dtype, device: (size, device), float32=0, uint8=0,
        cuda=argparse.Namespace(current_stream=lambda: argparse.Namespace(cuda_stream=7,
                                                                          device="gpu")),
    )
    forward, backward = {"norm_forward_phase": "inference"}, {"inv_variance": "rstd0"}
    for op, given, outputs in (
        ("rms", {**forward, "input": "x0", "epsilon": "1e-06", "scale": "weight", "bias": None},
         ["y"]),
        ("layer_own", {**forward, "input": "x0", "epsilon": "1e-06", "scale": "weight",
                       "bias": "bias"}, ["y"]),
        ("rms_backward", {**backward, "grad": "dy0", "input": "x0", "scale": "weight",
                          "has_dbias": False}, ["dx", "dweight"]),
        ("layer_backward", {**backward, "grad": "dy0", "input": "x0", "scale": "weight",
                            "mean": "mean0"}, ["dx", "dweight", "dbias"]),
    ):
        module, case = PretendedCudnn(), Case(op, "bf16", 3, 16)
        with patch.dict(sys.modules, cudnn=module):
            peer = peers.Cudnn(torch)
            run = peer.body(case, b)
        steps = len(module.log)
        run(1)
        log = {entry[0]: entry[1:] for entry in module.log}
        found = {name: v.removeprefix("place of ") if isinstance(v, str) else v
                 for name, v in log["operation"][0].items() if name != "name"}
        cases.equal(f"cuDNN, {op}: what the graph is made of", found, given)
        cases.equal(f"cuDNN, {op}: outputs of their dtypes",
                    [e[1:] for e in module.log if e[0] == "output"],
                    [(name, "its dtype") for name in outputs])
        cases.equal(f"cuDNN, {op}: the stream of the calls", log["stream"], ("handle", 7))
        # Tensors that are not a call's own have one name for all calls.
        wanted = {f"place of {v}": v.removesuffix("0") + "1" if v.endswith("0") else v
                  for name, v in given.items()
                  if isinstance(v, str) and name != "norm_forward_phase"}
        wanted.update((name, f"{name}1") for name in outputs)
        cases.equal(f"cuDNN, {op}: call 1", module.executed, [(wanted, (48, "gpu"), "handle")])
        cases.equal(f"cuDNN, {op}: nothing is planned in a call", len(module.log), steps)
        cases.equal(f"cuDNN, {op}: the backend is noted", peer.facts, {"backend": "9.1.2"})
    with patch.dict(sys.modules, cudnn=PretendedCudnn(supports=False)):
        try:
            cases.check("cuDNN without an engine", False, peers.Cudnn(torch).body(case, b))
        except timing.Unsupported as why:
            cases.equal("cuDNN without an engine", str(why), "no engine")


class Words:
    """As much of a PyTorch tensor on a CPU as the laboratory's contender looks at."""

    def __init__(self, values):
        self.values, self.dtype = values, values.dtype.type

    def data_ptr(self):
        return self.values.ctypes.data

    def element_size(self):
        return self.values.itemsize

    def fill_(self, value):
        self.values.view(np.uint8)[...] = 0xFF  # NaN

    def view(self, dtype):
        return Words(self.values.view(dtype))

    def __ne__(self, other):
        return Words(self.values != other.values)

    def sum(self):
        return self.values.sum()


class WordTorch:
    uint8, int16, int32, float32 = np.uint8, np.int16, np.int32, np.float32

    @staticmethod
    def empty(size, dtype, device):
        return Words(np.empty(size, dtype))

    @staticmethod
    def empty_like(tensor):
        return Words(np.empty_like(tensor.values))


class PretendedLab:
    """Kernel k leaves 1 in dx and 2 in the gradients; `off` has one that differs in dbias."""

    def __init__(self, off=None):
        self.off, self.calls = off, []

    def names(self, norm, n):
        return [] if n == 8 else ["first", "second", "third"]

    def workspace_bytes(self, norm, rows, n):
        return 64

    def launch(self, norm, index, shape, addresses, f32_gradients, workspace, queue):
        self.calls.append((norm, index, shape, addresses, f32_gradients, queue))
        word = ctypes.c_float if f32_gradients else ctypes.c_uint16
        rows, n = shape
        for address, count, kind, value in zip(
            addresses[5:], (rows * n, n, n), (ctypes.c_uint16, word, word), (1, 2, 2)
        ):
            if address is not None:
                (kind * count).from_address(address)[:] = [value] * count
        if index == self.off and f32_gradients:
            word.from_address(addresses[7]).value = 3


class LabMachine:
    """The second kernel is the fastest."""

    torch, device, stream_handle = WordTorch, "cpu", 77

    def __init__(self, lab):
        self.lab = lab

    def synchronize(self):
        pass

    def capture(self, body, calls):
        for i in range(calls):
            body(i)
        return self.lab.calls[-1][1]

    def replay(self, captured, flush):
        return {0: 6.0, 1: 4.0, 2: 5.0}[captured]


class PretendedGradients:
    """The library, as far as the laboratory asks it."""

    def gradients(self, case, buffers, i, outputs):
        for name, tensor in outputs.items():
            tensor.values[...] = 1 if name == "dx" else 2


def test_laboratory(cases):
    def buffers(layer):
        rows = [Words(np.zeros((3, 16), np.uint16)) for _ in range(6)]
        of_row = [Words(np.zeros(3, np.float32)) for _ in range(4)]
        of_column = [Words(np.zeros(16, np.uint16)) for _ in range(5)]
        return argparse.Namespace(
            x=rows[:2], dy=rows[2:4], dx=rows[4:],
            rstd=of_row[:2], mean=of_row[2:] if layer else [],
            weight=of_column[0], dweight=of_column[1:3], dbias=of_column[3:],
        )

    for op, norm, off in (("rms_backward", 0, None), ("layer_backward", 1, None),
                          ("layer_backward", 1, 2)):
        lab, case = PretendedLab(off), Case(op, "bf16", 3, 16)
        b = buffers(case.op.layer)
        contender = laboratory.Laboratory(lab, LabMachine(lab), PretendedGradients())
        body = contender.body(case, b)
        outputs = ["dx", "dweight", "dbias"][:2 + case.op.layer]
        cases.equal(f"laboratory, {op}: every kernel's bits are looked at, in f32",
                    [(c[1], c[4]) for c in lab.calls[:3]], [(0, True), (1, True), (2, True)])
        cases.equal(f"laboratory, {op}, {off}: bits", contender.facts["differs"],
                    {name: int(off is not None and name == "dbias") for name in outputs})
        cases.equal(f"laboratory, {op}: the fastest is named", contender.facts["kernel"], "second")
        cases.equal(f"laboratory, {op}: and all times", contender.facts["candidates"],
                    "second: 2.00, third: 2.50, first: 3.00")
        lab.calls.clear()
        body(1)
        wanted = [b.x[1], b.dy[1], b.weight, b.rstd[1], b.mean[1] if case.op.layer else None,
                  b.dx[1], b.dweight[1], b.dbias[1] if case.op.layer else None]
        wanted = [None if t is None else t.data_ptr() for t in wanted]
        cases.equal(f"laboratory, {op}: a call", lab.calls,
                    [(norm, 1, (3, 16), wanted, False, 77)])
    lab = PretendedLab()
    lab.names = lambda norm, n: ["only"]
    one = laboratory.Laboratory(lab, LabMachine(lab), PretendedGradients())
    one.body(Case("rms_backward", "bf16", 3, 16), buffers(False))
    cases.equal("laboratory: one kernel is not timed before", one.facts,
                {"kernel": "only", "differs": {"dx": 0, "dweight": 0}})
    for case, why in ((Case("rms_backward", "f16", 3, 16), tables.NO_SUCH_OPERATION),
                      (Case("add_backward", "bf16", 3, 16), tables.NO_SUCH_OPERATION),
                      (Case("rms_backward", "bf16", 3, 8), "no kernel for rows of 8")):
        try:
            cases.check(f"laboratory: {case.key} is refused", False, contender.body(case, b))
        except timing.Unsupported as found:
            cases.equal(f"laboratory: {case.key} is refused", str(found), why)
    try:
        cases.check("no laboratory", False, laboratory.Laboratory(None, None, None))
    except FileNotFoundError as why:
        cases.check("no laboratory says so", "no libfastnorm_lab.so" in str(why), why)


# Bytes of a workspace by hand: norms x blocks x n x 4.
LAB_WORKSPACE = {
    (0, 8192, 4096): 128 * 4096 * 4,
    (1, 8192, 4096): 2 * 128 * 4096 * 4,
    (0, 100, 1024): 13 * 1024 * 4,  # 8 lanes, so 13 blocks
    (0, 262144, 128): 128 * 128 * 4,
    (0, 5, 8192): 5 * 8192 * 4,
}
# Threads x vectors and lanes of all kernels of a length: enough for the row, lanes as the row order
# has them.
LAB_TILES = {
    128: {"16x1 64x1", "8x2 64x1"},
    512: {"32x2 16x1"},
    1024: {"128x1 8x1", "64x2 8x1"},
    2048: {"256x1 4x1", "128x2 4x1"},
    4096: {"256x2 2x1", "512x1 2x1"},
    5120: {"640x1 1x2", "512x2 1x1"},
    8192: {"512x2 1x1"},
}


def test_lab_library(cases, path):
    """What needs no GPU: the lists, and what is refused."""
    lab = laboratory.Lab(path)
    for (norm, rows, n), size in LAB_WORKSPACE.items():
        cases.equal(f"lab: workspace of {norm} {rows}x{n}", lab.workspace_bytes(norm, rows, n),
                    size)
    for n, tiles in LAB_TILES.items():
        names = [lab.names(norm, n) for norm in (0, 1)]
        once = all(len(set(x)) == len(x) > 0 for x in names)
        cases.check(f"lab: kernels of {n}", once, names)
        found = {" ".join(name.split()[:2]) for name in names[0]}
        cases.equal(f"lab: tiles of {n}", found, tiles)
    for n in (1, 12, 100, 1001, 12000, 16384):
        cases.equal(f"lab: no kernel of {n}", lab.names(0, n), [])
    shapes = {c for name in ops.SUITES if name.startswith("gradients")
              for c in ops.suite_cases(name, ["bf16"])}
    lacking = [c.key for c in shapes if not lab.names(laboratory.NORMS[c.op_name], c.n)]
    cases.equal("lab: every shape of the suites", lacking, [])
    memory = np.zeros(1 << 16, np.uint8)
    at = -(-memory.ctypes.data // 16) * 16
    good = {"norm": 1, "index": 0, "rows": 2, "n": 1024, "x": at, "dy": at, "weight": at,
            "rstd": at, "mean": at, "dx": at, "dweight": at, "dbias": at, "workspace": at,
            "workspace_bytes": 8192}
    for name, value, wanted in (
        ("norm", 2, "norm is 2; required: 0 (RMSNorm) or 1 (LayerNorm)"),
        ("index", 99, "index is 99; required: below "),
        ("index", -1, "index is -1; required: below "),
        ("n", 1001, "index is 0; required: below 0, the kernels of this length"),
        ("rows", 0, "rows is 0; required: 1 or more"),
        *((tensor, bad, f"{tensor} is {bad or 0}; required: an address that is a multiple of 16")
          for tensor in ("x", "dy", "weight", "rstd", "mean", "dx", "dweight", "dbias", "workspace")
          for bad in (None, at + 8)),
        ("workspace_bytes", 8191, "workspace_bytes is 8191; required: 8192 or more"),
    ):
        g = {**good, name: value}
        try:
            lab.launch(g["norm"], g["index"], (g["rows"], g["n"]),
                       [g[t] for t in ("x", "dy", "weight", "rstd", "mean", "dx", "dweight",
                                       "dbias")],
                       0, (g["workspace"], g["workspace_bytes"]), None)
            cases.check(f"lab: {name} {value} is refused", False)
        except RuntimeError as why:
            cases.check(f"lab: {name} {value} is refused", str(why).startswith(wanted), why)


def test_absent_peers(cases, work):
    """A peer that is not installed is left out, and the file says why."""
    names = ["quack", "liger", "transformer-engine"]
    options = argparse.Namespace(contenders=names, against=None, kind="run", preset=None)
    document = argparse.Namespace(content={})
    progress = argparse.Namespace(write=lambda *_: None)
    with PretendedPackages(present=False):
        made, unavailable = runner.make_contenders(None, (None, None), None, document, options,
                                                   progress)
    cases.equal("absent peers: none is made", made, [])
    cases.equal("absent peers: each has a reason", sorted(unavailable), sorted(names))
    for name, why in unavailable.items():
        cases.check(f"absent peers: {name}'s", why.startswith("ModuleNotFoundError: "), why)
    text = tables.report(content(result(fastnorm=10.5), unavailable=unavailable))
    cases.check(
        "absent peers: the report names them", all(f": {w}" in text for w in unavailable.values()),
        text,
    )


def e4m3(codes):
    """The values of fp8 codes."""
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent, mantissa = (codes >> 3 & 15).astype(int), (codes & 7).astype(float)
    return sign * np.where(
        exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0)
    )


def exact(case, b):
    a = b.x[0].array.astype(np.float64)
    if case.op.adds:
        a = a + b.residual[0].array.astype(np.float64)
    if case.op.layer:
        a = a - a.mean(-1, keepdims=True)
    t = a / np.sqrt((a * a).mean(-1, keepdims=True) + EPS)
    if case.op.own_weights:
        return t * b.weight.array.astype(np.float64) + b.bias.array.astype(np.float64)
    if case.op.layer:
        return t * b.weight32.array + b.bias32.array
    if case.op.heads:
        y = b.x[0].array.astype(np.float64)
        y[:, :ops.HEADS] = t[:, :ops.HEADS] * b.weight.array.astype(np.float64)
        if case.op.two_weights:
            y[:, ops.QUERY_HEADS : ops.HEADS] = t[
                :, ops.QUERY_HEADS : ops.HEADS
            ] * b.key_weight.array.astype(np.float64)
        return y
    return t * b.weight.array.astype(np.float64)


def test_older_library(cases, path):
    """One whose structs are shorter loads where that is asked for, and nowhere else."""
    known = abi.NormBackwardArgs

    class Longer(known):
        _fields_ = [("more", ctypes.c_int64)]

    with patch.dict(abi.FAMILIES, norm_backward=(Longer, None)):
        cases.check("an older library", Library(path, older=True).version(), "no version")
        try:
            Library(path)
            cases.check("shorter structs are refused", False, "they were taken")
        except abi.FastnormError as why:
            cases.check("shorter structs are refused", "Longer has at least" in str(why), why)


def test_library(cases, path):
    library = Library(path)
    machine = argparse.Namespace(
        device=argparse.Namespace(type="cpu", index=None), stream_handle=None
    )
    contender, random = Fastnorm(library, machine), np.random.default_rng(7)
    for op in (op for op in ops.OPS.values() if not op.backward):
        case = Case(op.name, "f16", 5, 128 if op.heads else 200)
        b = HostBuffers(case, random)
        contender.body(case, b)(0)
        y, wanted = b.y[0].array.astype(np.float64), exact(case, b)
        allowed = 2.0**-10 * np.maximum(np.abs(wanted), 1)
        if op.quantized:
            scale = b.row_scale[0].array[:, None] if op.row_scales else 1 / 64
            y, wanted = e4m3(b.quantized[0].array) * scale, (
                wanted if op.row_scales else np.clip(wanted, -7, 7)
            )
            allowed = allowed + 2.0**-4 * np.abs(wanted)
        worst = np.max(np.abs(y - wanted) / allowed)
        cases.check(f"library, {op.name}: right", worst <= 1, worst)
        cases.check(
            f"library, {op.name}: its kernel is noted", contender.facts["kernel"], contender.facts
        )
        if op.statistics:
            a = b.x[0].array.astype(np.float64) + (b.residual[0].array if op.adds else 0)
            mean = a.mean(-1, keepdims=True) if op.layer else 0
            rstd = 1 / np.sqrt(((a - mean) ** 2).mean(-1) + EPS)
            cases.check(
                f"library, {op.name}: rstd leaves too",
                np.max(np.abs(b.rstd[0].array - rstd)) <= 1e-5,
            )
            cases.check(f"library, {op.name}: and LayerNorm's mean",
                        np.max(np.abs(b.mean[0].array - (mean[:, 0] if op.layer else 0))) <= 1e-6)
        if op.adds:
            sums = b.x[0].array.astype(np.float64) + b.residual[0].array
            cases.check(f"library, {op.name}: the sum leaves too",
                        np.max(np.abs(b.residual_out[0].array - sums)) <= 2.0**-9)
    case = Case("rms", "f16", 5, 200)
    try:
        FastnormPdl(library, machine).body(case, HostBuffers(case, random))
        cases.check("what is not there is said", False)
    except timing.Unsupported as why:
        cases.check("what is not there is said", str(why))
    b = HostBuffers(case, random)
    contender.body(case, b)(0)
    plain = b.y[0].array.copy()
    b.y[0].array[:] = 0
    rounded = FastnormRounded(library, machine)
    rounded.body(case, b)(0)
    t = (exact(case, b) / b.weight.array).astype(np.float16)
    wanted = (t.astype(np.float64) * b.weight.array).astype(np.float16)
    same = np.mean(b.y[0].array == wanted)
    cases.check(
        "Llama's form: rounded before the weight",
        same > 0.9 and not np.array_equal(b.y[0].array, plain),
        same,
    )
    summed = rounded._parts(
        Case("add", "f16", 5, 200), HostBuffers(Case("add", "f16", 5, 200), random), 0
    )[0]
    cases.equal("Llama's form: the sum too", (summed.rounding, summed.residual_rounding), (1, 2))
    try:
        rounded.body(Case("layer", "f16", 5, 200), b)
        cases.check("Llama's form is RMSNorm's", False)
    except timing.Unsupported as why:
        cases.equal("Llama's form is RMSNorm's", str(why), tables.NO_SUCH_OPERATION)
    contender.pdl = True
    flagged = contender._parts(case, b, 0)
    cases.equal("PDL: the flags", flagged[0].flags, PDL_WAIT | PDL_TRIGGER | PDL_CONSTANT_WEIGHTS)
    contender.pdl, contender._parts = False, lambda *_: flagged
    contender.body(case, b)(0)
    cases.check("PDL: the same bits", np.array_equal(b.y[0].array, plain) and plain.any())
    flagged[0].flags = 1 << 20
    try:
        contender.body(case, b)
        cases.check("the library's own refusal is passed on", False)
    except timing.Unsupported as why:
        cases.check("the library's own refusal is passed on",
                    str(why).startswith("FASTNORM_ERROR_UNSUPPORTED: flags is 0x100000"), why)
    cases.check("a build is told from others", len(library.identity()["sha256"]) == 64)
    cases.equal("f32 as DLPack has it", (F32.code, F32.bits, F32.lanes), (2, 32, 1))


def test_streams(cases, path):
    streams = Streams(path)
    for reads, written, prefix in (
        (1, ops.ALIKE, "R1W1 "),
        (2, ops.ALIKE, "R2W2 "),
        (1, ops.NARROW, "R1W0.5 "),
        (2, ops.NARROW, "R2W1.5 "),
        (2, ops.JOINED, "R2W1 "),
        (3, ops.JOINED, "R3W1 "),
    ):
        names = streams.names(reads, written)
        cases.check(
            f"streams {prefix.strip()}",
            len(names) >= 20
            and len(set(names)) == len(names)
            and all(name.startswith(prefix) for name in names),
            names,
        )


# --- the program ---


def run_program(*given, program=PROGRAM):
    done = subprocess.run(
        [sys.executable, program, *map(str, given)], capture_output=True, text=True, timeout=170
    )
    return done.returncode, done.stdout, done.stderr


def has_module(name):
    return (
        subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True).returncode
        == 0
    )


def test_program(cases, work, library):
    path = work / "program.csv"
    lines.write(path, content(result(fastnorm=10.5, quack=11.0)))
    code, out, _ = run_program("report", path)
    cases.check("report", code == 0 and "| 4096x4096 | 10.00 | 10.50 |" in out, out)
    path.write_text("[1, 2]")
    code, _, err = run_program("report", path)
    cases.check(
        "report of something else",
        code == 1 and "not a result file" in err and "Traceback" not in err,
        err,
    )
    path.write_text("# no JSON")
    code, _, err = run_program("report", path)
    cases.check("report of no JSON", code == 1 and "Traceback" not in err, err)
    code, _, err = run_program("run", "--build", work / "nowhere")
    cases.check("no library", code == 2 and "no libfastnorm.so.1 in" in err, err)
    code, _, err = run_program("run", "--ops", "rms,softmax")
    cases.check("no such operation", code == 2 and "softmax" in err, err)
    code, _, err = run_program("run", "--library", library, "--device", "cpu", "--suite", "forward",
                               "--preset", "models")
    cases.check("a suite and a preset", code == 2 and "required: one of them" in err, err)
    path = work / "suite.csv"
    lines.write(path, content(result(fastnorm=10.5, cudnn=11.0), suite="forward"))
    code, out, _ = run_program("report", path)
    cases.check("report of a suite", code == 0 and "| 4096x4096 | 10.00 | 10.50 | 1.050 | 11.00 "
                "| 0.955 | - | - |" in out, out)
    code, out, err = run_program(
        "run",
        "--library",
        library,
        "--device",
        "cpu",
        "--csv",
        work / "run.csv",
        "--n",
        "128",
        "--cold-mib",
        "1",
        "--replays",
        "2",
        "--seconds",
        "8",
        "--contenders",
        "fastnorm",
    )
    if has_module("torch"):
        ended = code in (0, lines.EXIT_LEFT)
        cases.check("a run on the CPU", ended and "heads bf16 1x128" in out, out + err)
        test_backward_program(cases, work, library)
        test_backward_reference(cases, library)
    else:
        cases.check(
            "a run without PyTorch says so", code == 2 and "PyTorch is needed" in out, out + err
        )
    test_two_builds(cases, work, library)
    test_stages_program(cases, work, library)


def test_stages_program(cases, work, library):
    """Without PyTorch; examples/torch/test_norm_stages.py runs it."""
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "torch.py").write_text("raise ImportError('no torch here')\n")
        with patch.dict(os.environ, PYTHONPATH=place):
            code, out, err = run_program(
                "--library", library, "--device", "cpu", program=STAGES_PROGRAM
            )
    cases.equal(
        "stages without PyTorch", (code, out, err), (1, "", "compare_stages.py: no torch here\n")
    )
    code, _, err = run_program("--cases", "5xbert", program=STAGES_PROGRAM)
    cases.check("a wrong case of stages", code == 2 and "'5xbert' is no case" in err, err)
    code, _, err = run_program("--build", work / "nowhere", program=STAGES_PROGRAM)
    cases.check("stages of no library", code == 2 and "no libfastnorm.so.1 in" in err, err)


def test_backward_program(cases, work, library):
    path = work / "backward.csv"
    code, out, err = run_program(
        "run",
        "--library",
        library,
        "--device",
        "cpu",
        "--csv",
        path,
        "--n",
        "1024",
        "--rows",
        "128",
        "--ops",
        "rms_backward,add_backward,layer_backward",
        "--cold-mib",
        "1",
        "--replays",
        "2",
        "--seconds",
        "60",
        "--contenders",
        "fastnorm,fastnorm-pdl",
    )
    cases.check("backward passes on the CPU", code == 0 and "| 128x1024 |" in out, out + err)
    found = {r["op"]: r["contenders"] for r in lines.read(path)["results"]}
    cases.equal(
        "backward passes: all", sorted(found), ["add_backward", "layer_backward", "rms_backward"]
    )
    for op, contenders in found.items():
        own = contenders["fastnorm"]
        cases.check(
            f"{op}: right, with an error that is no zero",
            own.get("us", 0) > 0 and 0 < own["max_error"] <= 1,
            own,
        )
        cases.check(
            f"{op}: PDL is the GPU's", "unsupported" in contenders["fastnorm-pdl"], contenders
        )


def test_backward_reference(cases, library):
    """Results that are a little off are refused, each output by itself."""
    import torch

    from compare.machine import Host

    machine, case = Host(torch, "cpu"), Case("layer_backward", "bf16", 300, 64)
    b = machine.buffers(case, ops.Chain(2, False))
    b.reset()
    reference, body = machine.reference(case, b), Fastnorm(Library(library), machine).body(case, b)
    body(1)
    cases.check("reference: the library is right", 0 < reference.check(1) <= 1)
    for name in ("dx", "dweight", "dbias"):
        wrong = {name: getattr(b, name)[1] * 1.05}
        for what, results in (
            (name, wrong),
            (f"no {name}", {name: torch.full_like(wrong[name], float("nan"))}),
        ):
            try:
                cases.check(f"reference: {what} is refused", False, reference.check(1, results))
            except WrongResult as why:
                cases.check(
                    f"reference: {what} is refused",
                    str(why).startswith(f"{name} of call 1 is off by"),
                    why,
                )


def test_two_builds(cases, work, library):
    other = work / "before.so"
    other.write_bytes(library.read_bytes())
    against = [
        "run",
        "--library",
        library,
        "--device",
        "cpu",
        "--preset",
        "models",
        "--csv",
        work / "against.csv",
        "--n",
        "1024",
        "--rows",
        "1,16",
        "--dtypes",
        "bf16",
        "--ops",
        "rms_row_fp8,layer_stats",
        "--cold-mib",
        "1",
        "--replays",
        "2",
        "--seconds",
        "90",
    ]
    for name, given, wanted in (("without another build", [], "required: --against LIB"),
                                ("with itself", ["--against", library], "is the library itself"),
                                ("with no file", ["--against", work / "none.so"], "is no file")):
        code, _, err = run_program(*against, *given)
        cases.check(f"a preset {name}", code == 2 and wanted in err, err)
    code, out, err = run_program(*against, "--against", other)
    if has_module("torch"):
        cases.check(
            "two builds on the CPU",
            code == 0 and "| bf16 | 2 of 588 |" in out and "| with statistics | 2 of 294 |" in out,
            out + err,
        )
        done = lines.read(work / "against.csv")
        cases.equal(
            "both builds were timed",
            {tuple(sorted(r["contenders"])) for r in done["results"]},
            {("fastnorm", "fastnorm-before")},
        )
        cases.check(
            "both with right results",
            all("us" in c for r in done["results"] for c in r["contenders"].values()),
            done,
        )
        code, out, err = run_program(*against, "--against", other)
        cases.check(
            "a second run has nothing to do", code == 0 and "all measured" in out, out + err
        )
        cases.equal(
            "and keeps what there was", lines.read(work / "against.csv")["results"], done["results"]
        )
    else:
        cases.check(
            "two builds without PyTorch", code == 2 and "PyTorch is needed" in out, out + err
        )


def test_plots(cases, work):
    if not has_module("matplotlib"):
        cases.skip("plots", "matplotlib is not installed")
        return
    run = content(
        *(
            result(
                op,
                m,
                n,
                10.0 * n / 4096,
                fastnorm=10.5 * n / 4096,
                quack=11.0,
                torch={"failed": "x"},
            )
            for op in ("rms", "add_fp8")
            for m, n in ((4096, 4096), (4096, 8192), (1, 4096), (128, 4096))
        )
    )
    grid = content(
        *(
            result("rms", m, n, 10.0, fastnorm=10.0 + m + n / 1000)
            for m in (1, 2)
            for n in (64, 128)
        ),
        kind="grid",
    )
    for name, document in (("run", run), ("grid", grid)):
        lines.write(work / f"{name}.csv", document)
    drawn = {}
    for folder in (work / "a", work / "b"):
        code, out, err = run_program("plot", work / "run.csv", work / "grid.csv", "--out", folder)
        cases.check("plot", code == 0, out + err)
        drawn[folder.name] = (
            {p.name: p.read_bytes() for p in folder.iterdir()} if folder.exists() else {}
        )
    cases.equal(
        "the plots",
        sorted(drawn["a"]),
        [
            "bandwidth_add_fp8_bf16.svg",
            "bandwidth_rms_bf16.svg",
            "decode_rms_bf16.svg",
            "grid_rms_bf16.svg",
        ],
    )
    cases.check("the same plots again", drawn["a"] == drawn["b"])
    texts = {name: "".join(ET.fromstring(data).itertext()) for name, data in drawn["a"].items()}
    for name, wanted in {"bandwidth_rms_bf16.svg": ["GB/s", "ceiling", "fastnorm", "Quack", "8192"],
                         "decode_rms_bf16.svg": ["row length 4096", "128", "ceiling"],
                         "grid_rms_bf16.svg": ["1.11", "64", "a GPU"]}.items():
        missing = [w for w in wanted if w not in texts.get(name, "")]
        cases.check(f"{name} shows what it should", not missing, missing)
    cases.check(
        "who was not timed has no line", "Torch" not in texts.get("bandwidth_rms_bf16.svg", "Torch")
    )


# --- MLA decode ---

C_TYPES = {
    "int32_t": ctypes.c_int32,
    "float": ctypes.c_float,
}


def test_mla(cases):
    """The struct of FlashMLA's calls beside its declaration, the order of rounds, and the template
    of FlashInfer's configuration."""
    source = (HERE / "flashmla_c.cu").read_text()
    body = source[source.index("struct FlashMlaCall {"):source.index("};", source.index("struct "))]
    declared = []
    for line in body.splitlines()[1:]:
        kind, names = line.split("//")[0].strip().rstrip(";").removeprefix("const ").split(" ", 1)
        for name in names.split(","):
            pointer = "*" in kind + name
            declared.append((name.strip(" *"), ctypes.c_void_p if pointer else C_TYPES[kind]))
    cases.equal("fields of FlashMlaCall", mla_peers.FlashMlaCall._fields_, declared)

    names = ["a", "b", "c", "d"]
    rounds = list(beside.orders(names, 8))
    cases.check("each round has all", all(sorted(r) == names for r in rounds), rounds)
    for place in (0, -1):
        cases.equal(f"place {place} of rounds", sorted(r[place] for r in rounds), sorted(names * 2))

    cases.equal("a filled template", filled("{{ a }} {{ b }}", {"a": "1", "b": "2"}), "1 2")
    for text in ("{% if a %}", "{{ a | upper }}"):
        try:
            found = filled(text, {"a": "1"})
        except ValueError as error:
            found = str(error)
        cases.check(f"refuses {text}", "more than names" in found, found)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--streams", type=Path, help="libfastnorm_streams.so, where CUDA is built")
    parser.add_argument("--lab", type=Path, help="libfastnorm_lab.so, where sm_90 is built")
    options = parser.parse_args()
    cases = Cases()
    for test in (
        test_heads,
        test_stages,
        test_bytes,
        test_order,
        test_presets,
        test_chain,
        test_figures,
        test_tables,
        test_suites,
        test_suite_tables,
        test_against,
        test_contenders,
        test_cudnn,
        test_laboratory,
        test_backward_peers,
        test_timing,
        test_mla,
    ):
        test(cases)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        test_lines(cases, work)
        test_document(cases, work)
        test_passes(cases, work)
        test_absent_peers(cases, work)
        test_crashes(cases, work)
        test_library(cases, options.library.resolve())
        test_older_library(cases, options.library.resolve())
        test_backward(cases, options.library.resolve())
        if options.streams:
            test_streams(cases, options.streams.resolve())
        else:
            cases.skip("streams", "this build has no CUDA")
        if options.lab:
            test_lab_library(cases, options.lab.resolve())
        else:
            cases.skip("lab", "this build has no kernels of sm_90")
        test_program(cases, work, options.library.resolve())
        test_plots(cases, work)
    cases.finish()


main()
