#!/usr/bin/env python3
"""Draws who is busy when in a trace that fastnorm_profile_write_trace wrote: an SVG of one thread
block's warpgroups.

  trace_picture.py TRACE.json OUT.svg [--block N] [--from US] [--to US]

Each warpgroup has two lanes. The upper one shows what its threads do; a wait is grey. The lower one
shows the products that the tensor cores have in hand for it, scores above and values below. Times
are microseconds since the start of the picture.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP = 1400, 150, 20, 64
LANE, GAP = 26, 14
COLOURS = {
    "load q": "#5b7fb5",
    "load kv": "#7fa7d9",
    "softmax": "#e0a030",
    "rescale": "#c9691f",
    "write p": "#b8518f",
    "write o": "#8a5fb0",
    "merge": "#6a4a3a",
    "qk": "#3b8f5a",
    "pv": "#1f5f8f",
}
WAIT, OTHER = "#d9d9d9", "#999999"
PRODUCTS = ("qk", "pv")


class TraceError(ValueError):
    pass


def spans(events):
    """(name, begin, end, thread) of each span of one process; one that has no end lasts to the last
    event."""
    last = max((e["ts"] for e in events), default=0)
    found, open_spans = [], {}
    for e in events:
        key = (e["tid"], e["name"])
        if e["ph"] in "Bb":
            open_spans.setdefault(key, []).append(e["ts"])
        elif e["ph"] in "Ee" and open_spans.get(key):
            found.append((e["name"], open_spans[key].pop(), e["ts"], e["tid"]))
    found += [
        (name, begin, last, thread)
        for (thread, name), begins in open_spans.items()
        for begin in begins
    ]
    return sorted(found, key=lambda span: span[1])


class Trace:
    def __init__(self, document):
        try:
            events = document["traceEvents"]
            timed = [e for e in events if e["ph"] in ("B", "E", "b", "e")]
            names = {
                (e["pid"], e.get("tid") if e["name"] == "thread_name" else None): e["args"]["name"]
                for e in events
                if e["ph"] == "M"
            }
        except (KeyError, TypeError) as error:
            raise TraceError(f"not a trace of fastnorm_profile_write_trace: no {error}") from None
        self.names, self.summary = names, document.get("otherData", {})
        self.blocks = {}
        for e in timed:
            self.blocks.setdefault(e["pid"], []).append(e)

    def pick(self, block):
        if block is None:
            if not self.blocks:
                raise TraceError("the trace has no spans")
            block = max(self.blocks, key=lambda b: (len(self.blocks[b]), -b))
        if block not in self.blocks:
            raise TraceError(
                f"the trace has no spans of thread block {block}; it has {len(self.blocks)} blocks"
            )
        return block


def ticks(length):
    """About ten round numbers from 0 to length."""
    step = 10 ** math.floor(math.log10(max(length, 1e-3) / 10))
    step = next(step * k for k in (1, 2, 5, 10) if length / (step * k) <= 12)
    return [i * step for i in range(int(length / step) + 1)]


def shares(summary):
    """The trace's own shares, the largest waits first."""
    found = [
        (name.removesuffix(" share"), value)
        for name, value in summary.items()
        if name.endswith(" share")
    ]
    waits = sorted((f for f in found if f[0].startswith("wait") and f[1] > 0), key=lambda f: -f[1])[
        :4
    ]
    return [f for f in found if not f[0].startswith("wait")] + waits


def draw(trace, block, begin=None, end=None):
    """The SVG's text."""
    block = trace.pick(block)
    all_spans = [s for s in spans(trace.blocks[block]) if s[0] != "work"]
    begin = min(s[1] for s in all_spans) if begin is None else begin
    end = max(s[2] for s in all_spans) if end is None else end
    if not end > begin:
        raise TraceError(f"the picture would end at {end} us, before its begin at {begin} us")
    threads = sorted({s[3] for s in all_spans})
    scale = (WIDTH - LEFT - RIGHT) / (end - begin)
    height = TOP + len(threads) * (2 * LANE + GAP) + 70
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
           f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{height}" fill="white"/>']

    def text(x, y, words, more=""):
        out.append(f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(words)}</text>')

    text(
        12,
        22,
        trace.names.get((block, None), f"block {block}"),
        ' font-size="15" font-weight="bold"',
    )
    text(
        12,
        42,
        "whole profile: "
        + ", ".join(f"{name} {100 * value:.0f} %" for name, value in shares(trace.summary)),
    )
    bottom = TOP + len(threads) * (2 * LANE + GAP)
    for at in ticks(end - begin):
        x = LEFT + at * scale
        out.append(
            f'<line x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{bottom}" stroke="#eeeeee"/>'
        )
        text(x, bottom + 14, f"{at:g}", ' text-anchor="middle" fill="#555555"')
    text(LEFT - 8, bottom + 14, "µs", ' text-anchor="end" fill="#555555"')
    used = set()
    for i, thread in enumerate(threads):
        top = TOP + i * (2 * LANE + GAP)
        text(12, top + 17, trace.names.get((block, thread), f"warpgroup {thread}"))
        text(LEFT - 8, top + 17, "threads", ' text-anchor="end" fill="#777777"')
        if any(s[3] == thread and s[0] in PRODUCTS for s in all_spans):
            text(LEFT - 8, top + LANE + 15, "tensor cores", ' text-anchor="end" fill="#777777"')
        for name, first, last, _ in (s for s in all_spans if s[3] == thread):
            first, last = max(first, begin), min(last, end)
            if last < first or first >= end:
                continue
            used.add("wait" if name.startswith("wait") else name)
            y, tall = top, LANE - 4
            if name in PRODUCTS:
                tall = (LANE - 6) / 2
                y = top + LANE + PRODUCTS.index(name) * (tall + 1)
            colour = WAIT if name.startswith("wait") else COLOURS.get(name, OTHER)
            out.append(
                f'<rect class="span" x="{LEFT + (first - begin) * scale:.2f}" y="{y:.1f}" '
                f'width="{max((last - first) * scale, 0.3):.2f}" height="{tall:.1f}" fill="{colour}">'
                f'<title>{escape(name)}: {first - begin:.3f} to {last - begin:.3f} µs</title></rect>'
            )
    x = LEFT
    for name in [*(n for n in COLOURS if n in used), *(["wait"] if "wait" in used else [])]:
        out.append(
            f'<rect x="{x}" y="{bottom + 30}" width="14" height="14" fill="{COLOURS.get(name, WAIT)}"/>'
        )
        text(x + 20, bottom + 42, name)
        x += 40 + 8 * len(name)
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("svg", type=Path)
    parser.add_argument(
        "--block", type=int, help="thread block (default: the one with the most events)"
    )
    parser.add_argument(
        "--from", dest="begin", type=float, metavar="US", help="of the trace's time"
    )
    parser.add_argument("--to", dest="end", type=float, metavar="US")
    options = parser.parse_args()
    try:
        trace = Trace(json.loads(options.trace.read_text()))
        options.svg.write_text(draw(trace, options.block, options.begin, options.end))
    except (OSError, ValueError) as error:
        sys.exit(f"trace_picture.py: {error}")


if __name__ == "__main__":
    main()
