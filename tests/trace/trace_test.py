#!/usr/bin/env python3
"""Traces of profiles: fastnorm_profile_write_trace on a profile that the test makes, and the schema
of its output. Also the picture that tools/trace_picture.py draws.

Usage: trace_test.py --library FILE [--trace FILE]...

--trace names traces of real profiles, as `fastnorm mla_decode --profile` writes them. They get the
same checks.
"""

import argparse
import copy
import ctypes
import json
import struct
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(ROOT / "tests" / "abi"),
    str(ROOT / "tools"),
    str(Path(__file__).resolve().parent),
]
sys.dont_write_bytecode = True
import schema  # noqa: E402
import trace_picture  # noqa: E402
from cases import Cases  # noqa: E402

BEGIN, END, INSTANT = 0, 1, 2
GROUPS, TILES, CAPACITY = 3, 6, 128
CYCLES_OF_A_MICROSECOND = 1500


def word(cycle, name, kind, value):
    return cycle | (schema.NAMES.index(name) | kind << 8 | value << 10) << 32


def warpgroup(group, dropped):
    """Events of one: the two that compute take turns, the third loads. Cut behind the 20th if some are dropped."""
    events, now = [], 0

    def span(name, cycles, value):
        nonlocal now
        events.append(word(now, name, BEGIN, value))
        now += cycles
        events.append(word(now, name, END, value))

    events.append(word(now, "work", BEGIN, 0))
    if group == 2:
        span("load q", 90, 0)
        for tile in range(2 * TILES):
            span("wait free", 300, tile)
            span("load kv", 60, tile)
    else:
        span("wait q", 400 + 150 * group, 0)
        for tile in range(group, 2 * TILES, 2):
            span("wait kv", 50, tile)
            start = now
            events.append(word(now, "qk", BEGIN, tile))
            now += 120
            events.append(word(now, "qk", END, tile))
            span(f"wait scale {group}", 20, tile)
            span("softmax", 150, tile)
            events.append(word(now, "pv", BEGIN, tile))
            span("rescale", 70, tile)  # while the product runs
            events.append(word(now, "write p", INSTANT, tile))
            now += 200 - (now - start) % 7
            events.append(word(now, "pv", END, tile))
        span("write o", 250, 0)
    events.append(word(now, "work", END, 0))
    return (events[:20] if dropped else events), len(events) - 20 if dropped else 0, now


def profile(blocks=2, dropped=False):
    """The bytes that a kernel of `blocks` thread blocks would leave, and the number of events in them."""
    header = struct.pack(
        "<QIIII40x", int.from_bytes(b"NORMPROF", "little"), 1, blocks, GROUPS, CAPACITY
    )
    writers, words, total = b"", b"", 0
    for block in range(blocks):
        for group in range(GROUPS):
            events, left_out, end = warpgroup(group, dropped)
            start, start_ns = 10**12 + 977 * block, 5 * 10**9 + 700 * block
            writers += struct.pack(
                "<IIIIQQQQ16x",
                7 * block + 3,
                1,
                len(events),
                left_out,
                start,
                start_ns,
                start + end,
                start_ns + end * 1000 // CYCLES_OF_A_MICROSECOND,
            )
            words += struct.pack(f"<{CAPACITY}Q", *events, *[0xFEEDFACE] * (CAPACITY - len(events)))
            total += len(events)
    return header + writers + words, total


class Library:
    def __init__(self, path):
        self.c = ctypes.CDLL(str(path))
        self.c.fastnorm_last_error.restype = ctypes.c_char_p
        self.c.fastnorm_profile_write_trace.argtypes = [
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_char_p,
            ctypes.c_int32,
        ]
        self.c.fastnorm_profile_id_name.restype = ctypes.c_char_p

    def write_trace(self, data, path):
        """'' or the library's text."""
        memory = (ctypes.c_uint64 * (len(data) // 8 + 1))()
        ctypes.memmove(memory, data, len(data))
        status = self.c.fastnorm_profile_write_trace(memory, len(data), str(path).encode(), 0)
        return "" if status == 0 else self.c.fastnorm_last_error().decode() or f"status {status}"


def check_made(cases, library, work):
    """Traces of made profiles, whose contents are known."""
    path = work / "trace.json"
    data, count = profile()
    if not cases.equal("a trace is written", library.write_trace(data, path), ""):
        return None
    trace = json.loads(path.read_text())
    cases.equal("schema of a made trace", schema.problems(trace), [])
    timed = [e for e in trace["traceEvents"] if e["ph"] != "M"]
    cases.equal("every event is there", (len(timed), trace["otherData"]["events"]), (count, count))
    cases.equal(
        "blocks and warpgroups",
        {(e["pid"], e["tid"]) for e in timed},
        {(b, g) for b in range(2) for g in range(3)},
    )
    cases.equal(
        "names of a warpgroup",
        [e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M" and e["pid"] == 1],
        ["block 1, SM 10", "compute 0", "block 1, SM 10", "compute 1", "block 1, SM 10", "load"],
    )
    first = [e for e in timed if e["pid"] == 1 and e["tid"] == 0][0]
    cases.check("the second block starts 0.7 us later", abs(first["ts"] - 0.7) < 0.002, first)
    softmax = [e for e in timed if e["name"] == "softmax" and e["pid"] == 0 and e["tid"] == 1]
    cases.equal(
        "a softmax for each tile of a warpgroup",
        [e["args"]["value"] for e in softmax if e["ph"] == "B"],
        list(range(1, 2 * TILES, 2)),
    )
    took = softmax[1]["ts"] - softmax[0]["ts"]
    cases.check("150 cycles are 0.1 us", abs(took - 0.1) < 0.002, took)
    shares = trace["otherData"]
    cases.check(
        "shares of what is there are above 0",
        all(
            shares[f"{name} share"] > 0
            for name in ("tensor", "wait q", "wait kv", "wait free", "wait scale 0")
        ),
        shares,
    )
    cases.equal("shares of what is not there", shares["wait plan share"], 0)

    data, _ = profile(blocks=1, dropped=True)
    cut = work / "cut.json"
    cases.equal("a trace of a profile that ran full", library.write_trace(data, cut), "")
    cut_trace = json.loads(cut.read_text())
    cases.equal("schema of a trace of a profile that ran full", schema.problems(cut_trace), [])
    cases.check("says how many events were dropped", cut_trace["otherData"]["dropped"] > 0)
    for name, bad in (
        ("no bytes", b""),
        ("a wrong magic", b"X" + data[1:]),
        ("cut short", data[:-8]),
    ):
        cases.check(f"refused: {name}", "required" in library.write_trace(bad, work / "none.json"))
    cases.check("nothing was written", not (work / "none.json").exists())
    for i, name in enumerate(schema.NAMES):
        cases.equal(f"name of event {i}", library.c.fastnorm_profile_id_name(i).decode(), name)
    return trace


def check_schema(cases, trace):
    """The schema finds what is broken."""

    def broken(name, change):
        other = copy.deepcopy(trace)
        change(other, [e for e in other["traceEvents"] if e["ph"] != "M"])
        cases.check(f"the schema finds {name}", schema.problems(other))

    def remove(document, test):
        at = next(i for i, e in enumerate(document["traceEvents"]) if test(e))
        del document["traceEvents"][at]

    broken("a missing part", lambda d, _: d.pop("otherData"))
    broken("an unknown phase", lambda d, t: t[3].update(ph="X"))
    broken("an unknown name", lambda d, t: t[3].update(name="sleep"))
    broken("a time that goes back", lambda d, t: t[9].update(ts=0.0))
    broken("a missing end", lambda d, _: remove(d, lambda e: e["ph"] == "E"))
    broken("a missing begin of a product", lambda d, _: remove(d, lambda e: e["ph"] == "b"))
    broken(
        "a warpgroup without a name", lambda d, _: remove(d, lambda e: e["name"] == "thread_name")
    )
    broken("a number that is a text", lambda d, t: t[0]["args"].update(cycle="0"))
    broken(
        "a product that is no async span",
        lambda d, t: next(e for e in t if e["name"] == "qk").update(ph="B"),
    )
    broken("a wrong count", lambda d, _: d["otherData"].update(events=1))
    broken("a share above 1", lambda d, _: d["otherData"].update({"tensor share": 1.5}))


def check_picture(cases, name, trace, work, *options):
    """The picture is an SVG with a rectangle for each span of the block that it shows."""
    path, svg = work / "picture.json", work / "picture.svg"
    path.write_text(json.dumps(trace))
    svg.unlink(missing_ok=True)
    ran = subprocess.run(
        [sys.executable, ROOT / "tools" / "trace_picture.py", path, svg, *options],
        capture_output=True,
        text=True,
    )
    if not cases.equal(f"{name}: drawn", (ran.returncode, ran.stderr), (0, "")):
        return None
    root = ElementTree.parse(svg).getroot()
    cases.equal(f"{name}: an SVG", root.tag, "{http://www.w3.org/2000/svg}svg")
    return [r for r in root if r.get("class") == "span"]


def check_made_picture(cases, trace, work):
    rectangles = check_picture(cases, "picture", trace, work)
    spans = [
        e for e in trace["traceEvents"] if e["ph"] in "Bb" and e["pid"] == 0 and e["name"] != "work"
    ]
    cases.equal("picture: a rectangle for each span", len(rectangles or []), len(spans))
    lanes = {(r.get("y"), r.get("height")) for r in rectangles}
    cases.equal(
        "picture: lanes of three warpgroups, two of which use the tensor cores",
        len(lanes),
        3 + 2 * 2,
    )
    inside = all(
        149.9 <= float(r.get("x")) and float(r.get("x")) + float(r.get("width")) <= 1380.5
        for r in rectangles
    )
    cases.check("picture: everything lies in the lanes", inside)
    titles = {r[0].text.split(":")[0] for r in rectangles}
    cases.equal("picture: names", titles, {e["name"] for e in spans})
    part = check_picture(
        cases, "picture of a part", trace, work, "--block", "1", "--from", "1.0", "--to", "1.5"
    )
    cases.check("picture of a part: fewer spans", 0 < len(part) < len(rectangles))
    for name, document, options, says in (
        ("a block that is not there", trace, ["--block", "9"], "no spans of thread block 9"),
        ("an end before the begin", trace, ["--from", "2", "--to", "1"], "before its begin"),
        ("no trace", {"a": 1}, [], "not a trace"),
        ("no spans", {"traceEvents": []}, [], "no spans"),
    ):
        (work / "bad.json").write_text(json.dumps(document))
        ran = subprocess.run(
            [sys.executable, trace_picture.__file__, work / "bad.json", work / "bad.svg", *options],
            capture_output=True,
            text=True,
        )
        cases.check(
            f"picture refused: {name}",
            ran.returncode == 1 and says in ran.stderr and "Traceback" not in ran.stderr,
            ran.stderr,
        )
    cases.check("picture refused: no file was written", not (work / "bad.svg").exists())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--trace", type=Path, action="append", default=[])
    options = parser.parse_args()
    cases = Cases()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        trace = check_made(cases, Library(options.library.resolve()), work)
        if trace is not None:
            check_schema(cases, trace)
            check_made_picture(cases, trace, work)
        for path in options.trace:
            real = json.loads(path.read_text())
            cases.equal(f"schema of {path.name}", schema.problems(real)[:5], [])
            rectangles = check_picture(cases, f"picture of {path.name}", real, work)
            cases.check(f"picture of {path.name}: spans", rectangles)
    cases.finish()


main()
