#!/usr/bin/env python3
"""The tables of GPU measurements in README.md and docs/performance.md, from bench/results: what
stands between "<!-- bench/tables.py NAME -->" and "<!-- end -->" is written anew, or with --check
compared."""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
sys.path.insert(0, str(ROOT / "bench"))
from compare import lines as result_lines  # noqa: E402


def load(name):
    """Results of bf16 by (op, rows, n)."""
    results = result_lines.read(RESULTS / f"h200_{name}.csv")["results"]
    return {(r["op"], r["rows"], r["n"]): r for r in results if r["dtype"] == "bf16" and "us" in r}


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def ratio(r):
    return f"{r['us']:.1f} us, {r['ratio']:.3f}"


def many_rows(found, columns):
    return table(
        ["n", "RMSNorm", "residual + RMSNorm", "LayerNorm"],
        [[str(n)] + [ratio(found[op, 4096, n]) for op in ("rms", "add", "layer")] for n in columns],
    )


def large():
    found = load("large")
    return many_rows(found, sorted(n for op, rows, n in found if op == "rms" and rows == 4096))


def readme():
    return many_rows(load("large"), [1024, 2048, 4096, 5120, 7168, 8192, 16384])


def decode():
    # Both columns of one file: the same run, the same buffers.
    found = load("pdl")

    def cell(r):
        return f"{r['us']:.2f} us, {r['us'] - r['ceiling_us']:+.2f}; {r['pdl_us']:.2f}"

    shapes = [(1, 4096), (1, 16384), (16, 4096), (64, 7168), (128, 8192), (128, 16384)]
    return table(
        ["rows x n", "RMSNorm", "residual + RMSNorm", "LayerNorm"],
        [
            [f"{m} x {n}"] + [cell(found[op, m, n]) for op in ("rms", "add", "layer")]
            for m, n in shapes
        ],
    )


def codes():
    found = load("codes")
    names = {
        "rms_fp8": "RMSNorm, e4m3, static scale",
        "add_fp8": "residual + RMSNorm, e4m3, static scale",
        "layer_fp8": "LayerNorm, e4m3, static scale",
        "rms_row_fp8": "RMSNorm, e4m3, dynamic scale per row",
        "add_row_fp8": "residual + RMSNorm, e4m3, dynamic scale per row",
        "rms_block_fp8": "RMSNorm, e4m3, dynamic scale per block of 128",
        "rms_mxfp8": "RMSNorm, MXFP8",
        "rms_nvfp4": "RMSNorm, NVFP4",
    }
    columns = [1024, 4096, 8192, 16384, 32768]
    return table(
        ["output", *map(str, columns)],
        [[name] + [ratio(found[op, 4096, n]) for n in columns] for op, name in names.items()],
    )


def heads():
    found = load("heads")
    shapes = sorted((rows, n) for op, rows, n in found if op == "qk")
    return table(
        ["tokens x head size", "query and key heads", "rounded before the weight"],
        [
            [f"{rows} x {n}"] + [ratio(found[op, rows, n]) for op in ("qk", "qk_rounded")]
            for rows, n in shapes
        ],
    )


def short():
    found = load("other")
    ops = ("rms", "add", "layer")
    shapes = sorted((n, rows) for op, rows, n in found if op == "rms" and n <= 512)
    return table(
        ["rows x n", "RMSNorm", "residual + RMSNorm", "LayerNorm"],
        [[f"{rows} x {n}"] + [ratio(found[op, rows, n]) for op in ops] for n, rows in shapes],
    )


TABLES = {f.__name__: f for f in (readme, large, decode, codes, heads, short)}


def renewed(text):
    for name, make in TABLES.items():
        begin = f"<!-- bench/tables.py {name} -->\n"
        if begin not in text:
            continue
        head, rest = text.split(begin, 1)
        tail = rest[rest.index("<!-- end -->"):]
        text = head + begin + "\n".join(make()) + "\n" + tail
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit code 1 where a file would change"
    )
    options = parser.parse_args()
    stale = []
    for path in (ROOT / "README.md", ROOT / "docs" / "performance.md"):
        old = path.read_text()
        new = renewed(old)
        if new != old:
            stale.append(path.relative_to(ROOT))
            if not options.check:
                path.write_text(new)
    for path in stale:
        print(f"{path}: {'tables are not those of bench/results' if options.check else 'written'}")
    sys.exit(1 if stale and options.check else 0)


if __name__ == "__main__":
    main()
