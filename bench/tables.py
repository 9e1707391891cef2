#!/usr/bin/env python3
"""The tables of GPU measurements in README.md and docs/performance.md, from bench/results: what
stands between "<!-- bench/tables.py NAME -->" and "<!-- end -->" is written anew, or with --check
compared. --stale VERSION names pages whose figures are of another minor version."""

import argparse
import csv
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
sys.path.insert(0, str(ROOT / "bench"))
from compare import lines as result_lines  # noqa: E402
from compare import model_tables, tables as compared  # noqa: E402


loaded = set()  # names of result files


def load(name):
    """Results of bf16 by (op, rows, n)."""
    loaded.add(f"h200_{name}.csv")
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


def beside_others():
    """The newest result of each case that was timed beside other libraries, with its card."""
    newest = {}
    for path in sorted(RESULTS.glob("h[0-9]*.csv")):
        content = result_lines.read(path)
        date = content.get("date") or (content.get("runs") or [{}])[-1].get("date", "")
        for r in content["results"]:
            if "contenders" in r and compared.best_peer(r):
                key = path.name.split("_")[0], r["op"], r["dtype"], r["rows"], r["n"]
                newest[key] = max(newest.get(key, ("",)), (date, path.name, r), key=lambda t: t[:2])
    for (card, *_), (_, name, r) in newest.items():
        loaded.add(name)
        yield card, r


def reason_of(**asked):
    with open(ROOT / "bench" / "reasons.csv", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        for row in rows:
            if all(re.fullmatch(row[name], value) for name, value in asked.items()):
                return row["reason"]
    return "not known"


def faster():
    found = list(beside_others())
    slow = [(card, r) for card, r in found if compared.beyond_spread(r)]
    slow.sort(key=lambda pair: (pair[0], -compared.against_best(pair[1])))
    rows = []
    for card, r in slow:
        peer, us = compared.best_peer(r)
        own = compared.us_of(r, compared.own_beside(r, peer))
        case = f"{r['op'].removesuffix(' forward')}, {r['dtype']}, {r['rows']} x {r['n']}"
        times = f"{own:.2f} us, {us:.2f} us, {own / us:.2f}"
        reason = reason_of(card=card, case=case, library=peer)
        rows.append([card.upper(), case, peer, times, reason])
    head = ["card", "case", "library", "this library, the other, ratio", "reason"]
    share = f"{len(slow)} of {len(found)} cases, or {100 * len(slow) / len(found):.1f} %:"
    return [share, "", *table(head, rows)]


TABLES = {f.__name__: f for f in (readme, large, decode, codes, heads, short, faster)}
TABLES.update(model_tables.tables(
    lambda pattern: [result_lines.read(path) for path in sorted(RESULTS.glob(pattern))]))


def renewed(text):
    for name, make in TABLES.items():
        begin = f"<!-- bench/tables.py {name} -->\n"
        if begin not in text:
            continue
        head, rest = text.split(begin, 1)
        tail = rest[rest.index("<!-- end -->"):]
        text = head + begin + "\n".join(make()) + "\n" + tail
    return text


def stale(version):
    """(page, result file, its version) of figures that are not of this minor version. docs/lab
    tells what was learnt, whenever it was."""
    minor = version.split(".")[:2]
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text()
        loaded.clear()
        renewed(text)
        named = re.findall(r"\b(\w+\.csv)`", text)
        for name in sorted({*loaded, *(n for n in named if (RESULTS / n).exists())}):
            library = result_lines.read(RESULTS / name).get("library", {})
            version_of = re.search(r"\d+\.\d+\.\d+", str(library.get("version", library)))
            found = version_of[0] if version_of else "no version"
            if found.split(".")[:2] != minor:
                yield page.relative_to(ROOT), name, found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit code 1 where a file would change"
    )
    parser.add_argument("--stale", metavar="VERSION", help="change nothing; exit code 1 where a "
                        "page has figures that are not of this minor version")
    options = parser.parse_args()
    if options.stale:
        found = list(stale(options.stale))
        for page, name, version in found:
            print(f"{page}: {name} is of {version}; required: {options.stale}")
        sys.exit(1 if found else 0)
    changed = []
    pages = ("README.md", "docs/performance.md", "docs/models.md")
    for path in (ROOT / page for page in pages):
        old = path.read_text()
        new = renewed(old)
        if new != old:
            changed.append(path.relative_to(ROOT))
            if not options.check:
                path.write_text(new)
    for path in changed:
        print(f"{path}: {'tables are not those of bench/results' if options.check else 'written'}")
    sys.exit(1 if changed and options.check else 0)


if __name__ == "__main__":
    main()
