#!/usr/bin/env python3
"""Tests of tools/select.py: the notation of the lists, the selection, the lines that are written,
and --check. Times are made up here, and are never those of a GPU."""

import argparse
import csv
import itertools
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "abi")]
sys.path.append(
    str(ROOT / "tools")
)  # behind Python's own modules: tools/select.py is not one of them
import norm_lists as lists  # noqa: E402
import selection  # noqa: E402
from cases import Cases  # noqa: E402
from norm_lists import ALL, Kernel, Rectangle, VariantLine, Wrong  # noqa: E402
from selection import Rules, Shape  # noqa: E402

CHOICE_NAMES = sorted(set(lists.CHOICES.values()))
KIND = ("b16", "plain", "rms", "own_dtype", "y", "aligned", "lean", "rows")
LAYER = ("b16", "plain", "layer", "own_dtype", "per_row", "aligned", "lean", "rows")
LENGTHS = [1024, 2048, 3072, 4096, 8192]
ROWS = [1, 64, 4096]


def refused(cases, name, function, *text):
    """That `function` raises Wrong with each of these words in it."""
    try:
        function()
    except Wrong as why:
        cases.check(name, all(t in str(why) for t in text), why)
    else:
        cases.check(name, False, "not refused")


# --- notation ---


def test_notation(cases):
    variants = lists.read_variants()
    for file in [*variants, *map(lists.read_choices, CHOICE_NAMES)]:
        cases.equal(
            f"{file.path} read and written is the same", file.text(), (ROOT / file.path).read_text()
        )
    kernels = lists.all_kernels(variants, "sm_90")
    cases.check("sm_90 has kernels", len(kernels) > 300, len(kernels))
    names = {str(k): k for k in kernels}
    cases.equal("names are unique", len(names), len(kernels))
    for name in random.Random(1).sample(sorted(names), 50):
        cases.equal(f"name {name}", Kernel.parse(name), names[name])
    forms = {
        "bf16 plain rms once store vector bare 32x1": 3,
        "bf16 plain rms once store vector 32x1": 2,
        "bf16 plain layer f32 store vector bare 32x1": 2,
        "bf16 plain rms once store vector bare-cs 32x1": 1,
        "bf16 plain rms once store vector bare 64x2": 1,
        "bf16 add rms once store vector bare 32x1": 1,
        "bf16 plain rms once quant vector bare 32x1": 1,
        "f32 plain rms once store unaligned 32x1": 1,
    }
    cases.equal("entry points", {name: Kernel.parse(name).entry_points() for name in forms}, forms)
    good = "ROWS(   5121,    6144,      1,     32,  128,      kFit,  4, cached)"
    cases.equal("a choice", str(Rectangle.parse(good)), good)
    for wrong in (
        "ROWS(1, 2, 3, 4, 5, kFit, 1)",
        "ROWS(2, 1, 1, 1, 128, kFit, 1, lean)",
        "ROWS(1, 2, 0, 1, 128, kFit, 1, lean)",
        "ROWS(1, 2, 1, 1, 128, 9, 1, lean)",
        "ROWS(1, 2, 1, 1, 128, kFit, 1, quick)",
        "ROW(1)",
        "ROWS(1, 2",
    ):
        refused(
            cases,
            f"choice {wrong}",
            lambda wrong=wrong: Rectangle.parse(wrong),
            "not a line of a list of choices",
        )
    for wrong in ("KIND(b16)", "KIND(b17, plain, rms, own_dtype, y, aligned, lean, rows)"):
        refused(cases, wrong, lambda wrong=wrong: lists.kind_words(wrong), "not a line")
    line = next(
        v
        for v in variants[1].variants()
        if "bare" in v.word(9) and v.word(8) == "HALF" and v.blocks("sm_100f")
    )
    for i, word in ((0, "minus"), (5, "x"), (6, "4"), (8, "HALVES"), (9, "quick"), (15, "-1")):
        fields = list(line.fields)
        fields[i] = word
        refused(
            cases,
            f"kernel with {word}",
            lambda fields=fields: VariantLine.parse(str(VariantLine(fields))),
            "not a line",
        )
    bound = VariantLine.parse(f"{line}  // bound: 1.10 beyond 8192")
    cases.equal(
        "a bound is read",
        (bound.bound, str(bound)),
        ("1.10 beyond 8192", f"{line}  // bound: 1.10 beyond 8192"),
    )
    half = line.without(("sm_90",), ("bf16",), line.flavours[:1])
    cases.equal(
        "a part of a line",
        (half.word(8), half.word(9), half.blocks("sm_90"), half.blocks("sm_100f")),
        ("BF16", line.flavours[0], 0, line.blocks("sm_100f")),
    )
    cases.equal("it is a line", str(VariantLine.parse(str(half))), str(half))
    cases.equal(
        "nothing of a line", line.without(tuple(lists.ARCHS), line.dtypes, line.flavours), None
    )


# --- selection ---


def kernel(tile, flavour="bare"):
    return Kernel("", "plain", "rms", "once", "store", "vector", flavour, lists.Tile.parse(tile))


A, B, C, D = (kernel(t) for t in ("128x4", "256x2", "64x8", "128x7"))


def test_cover(cases):
    shapes = [Shape(KIND, n, rows) for n in (4096, 4097) for rows in (1, 2, 3)]
    ratios = dict(
        zip(
            shapes,
            (
                {A: 1.0, B: 1.01},
                {A: 1.05, B: 1.0},
                {B: 1.0, C: 1.0},
                {C: 1.0, A: 1.08},
                {B: 1.0},
                {D: 1.0},
            ),
        )
    )
    cases.equal("exactly the best", set(selection.cover(ratios, lambda s: 0.0)), {A, B, C, D})
    near = selection.cover(ratios, lambda s: 0.02)
    cases.equal("within 2 %, most first", near[0], B)
    cases.equal("within 2 %", set(near), {B, C, D})
    apart = {Shape(KIND, 4096, 1): {A: 1.0}, Shape(KIND, 4097, 1): {A: 1.08, C: 1.0}}
    cases.equal(
        "lengths of no model may be further away",
        [
            len(selection.cover(apart, rules.distance))
            for rules in (Rules(0.02, 0.10), Rules(0.02, 0.05))
        ],
        [1, 2],
    )
    # A shape of a model outweighs one that is none.
    weighed = {
        Shape(KIND, 4096, 1): {A: 1.0},
        Shape(KIND, 999, 1): {B: 1.0},
        Shape(KIND, 999, 2): {B: 1.0},
    }
    cases.equal("shapes of models first", selection.cover(weighed, lambda s: 0.0), [A, B])
    refused(
        cases,
        "a shape without kernels",
        lambda: selection.cover({shapes[0]: {}}, lambda s: 0.0),
        "no kernel",
        "1 x 4096",
    )
    chance = random.Random(7)
    for _ in range(20):
        ratios = {s: {k: 1 + chance.random() / 5 for k in (A, B, C, D)} for s in shapes}
        for of in ratios.values():
            of[min(of, key=of.get)] = 1.0
        counts = []
        for near in selection.CURVE:
            chosen = selection.cover(ratios, lambda s, near=near: near)
            cases.check(
                "every shape has a near kernel",
                all(
                    selection.best_of(ratios, s, set(chosen))[0] <= 1 + near + 1e-9 for s in shapes
                ),
            )
            cases.equal("no kernel twice", len(set(chosen)), len(chosen))
            counts.append(len(chosen))
        smallest = min(
            len(c)
            for size in range(1, 5)
            for c in itertools.combinations((A, B, C, D), size)
            if all(selection.best_of(ratios, s, set(c))[0] <= 1.05 + 1e-9 for s in shapes)
        )
        cases.check(
            "not far from the smallest",
            counts[selection.CURVE.index(0.05)] <= smallest + 1,
            (counts, smallest),
        )


def test_small_gains(cases):
    def kept(gain, count, n=4096, rules=Rules(worst_short=0.5, worst_long=0.5)):
        """Whether D, beyond the ladder, stays where it wins so much on so many of ten shapes."""
        ratios = {
            Shape(KIND, n, rows): {
                A: 1 + gain if rows < count else 1.0,
                D: 1.0 if rows < count else 1.2,
            }
            for rows in range(10)
        }
        return D in selection.drop_small_gains(ratios, [A, D], rules)

    cases.equal("5 % on 3 shapes", kept(0.05, 3), True)
    cases.equal("5 % on 2 shapes", kept(0.05, 2), False)
    cases.equal("2 % on 5 shapes", kept(0.02, 5), False)
    cases.equal("5 % on 5 shapes of no model", kept(0.05, 5, n=4097), False)
    cases.equal("a bound that it is needed for", kept(0.05, 1, rules=Rules()), True)
    cases.equal(
        "a bound of longer rows", [kept(0.05, 1, n, Rules()) for n in (12288, 8192)], [False, True]
    )
    ratios = {Shape(KIND, 4096, 1): {A: 1.0, B: 1.0}}
    cases.equal("the ladder stays", selection.drop_small_gains(ratios, [A, B], Rules()), [A, B])


def test_curve(cases):
    shapes = [Shape(KIND, 4096, 1), Shape(KIND, 2560, 1)]
    p = selection.point({shapes[0]: {A: 1.1}, shapes[1]: {A: 1.0}}, 0.02, [A])
    weights = [selection.MODELS[s.n] for s in shapes]
    cases.check("loss, weighted", abs(p.loss - (1.1 ** (weights[0] / sum(weights)) - 1)) < 1e-12, p)
    cases.check("worst", abs(p.worst - 0.1) < 1e-12, p)
    cases.equal(
        "a line of the curve",
        selection.curve_table([p], p).splitlines()[2].split(" | ")[:2],
        ["| 2.0%", "1"],
    )


def test_times(cases, folder):
    """Rounds count by their median, dtypes by the worse one, and kernels that one of them lacks not
    at all."""
    path = Path(folder) / "times.csv"
    kernels = [
        f"{{}} plain rms once store vector {rest}" for rest in ("bare 128x4", "bare 256x2", "256x2")
    ]
    times = {"bf16": [(10, 12, 30), (11, 11, 11), (9,)], "f16": [(10, 10, 10), (12, 12, 12)]}
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(selection.COLUMNS)
        for dtype, of in times.items():
            for name, rounds in zip(kernels, of):
                for number, us in enumerate(rounds, 1):
                    writer.writerow(
                        [
                            "a GPU",
                            "1",
                            "0.2.0",
                            "1",
                            "rms",
                            " ".join(KIND),
                            dtype,
                            64,
                            4096,
                            number,
                            name.format(dtype),
                            us,
                            0.01,
                            1,
                        ]
                    )
    ratios, device = selection.read_times(path)
    shape = Shape(KIND, 4096, 64)
    cases.equal("one shape of both dtypes", (device, list(ratios)), ("a GPU", [shape]))
    cases.equal("its kernels", set(ratios[shape]), {A, B})
    rows = list(csv.reader(path.open(newline="")))
    short = [[b if i >= 11 or a != b else "" for i, (a, b) in enumerate(zip(above, row))]
             for above, row in zip(rows, rows[1:])]
    cases.check("some cells are empty then", sum(cell == "" for row in short for cell in row) > 50)
    with open(path, "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([rows[0], *short])
    cases.equal(
        "empty cells are those of the line above", selection.read_times(path), (ratios, device)
    )
    cases.check(
        "the worse ratio of two",
        abs(ratios[shape][A] - 12 / 9) < 1e-12 and abs(ratios[shape][B] - 11 / 9) < 1e-12,
        ratios,
    )


# --- lines ---


def line_for(lines, n, rows):
    found = [
        line
        for line in lines
        if line.least_n <= n <= line.most_n and line.least_rows <= rows <= line.most_rows
    ]
    return found[0] if len(found) == 1 else None


def test_lines(cases):
    # A list with every tile, whatever sm_90 has.
    have = {
        kernel(f"{threads}x{vectors}x{blocks}")._replace(dtype=dtype)
        for threads in (32, 64, 128, 256, 512)
        for vectors in range(1, 9)
        for blocks in (1, 2, 4)
        for dtype in ("bf16", "f16")
    }
    rules = Rules()

    def lines_of(ratios, kernels):
        return selection.measured_lines(KIND, list(ratios), ratios, kernels, rules, have)

    one = {Shape(KIND, n, rows): {B: 1.0} for n in (3072, 4096) for rows in ROWS}
    cases.equal("one kernel, one line", [str(line) for line in lines_of(one, {B})],
                ["ROWS(   3073,    4096,      1,   kAll,  256,      kFit,  1, cached)"])
    # A kernel stands for numbers of rows down to the next smaller one.
    two = {Shape(KIND, n, rows): {A: 1.0 if rows > 64 else 1.5, B: 1.5 if rows > 64 else 1.0}
           for n in (3072, 4096) for rows in ROWS}
    cases.equal(
        "two kernels, two lines",
        [(x.least_rows, x.most_rows, x.pick.threads) for x in lines_of(two, {A, B})],
        [(1, 64, 256), (65, ALL, 128)],
    )
    near = {
        Shape(KIND, n, rows): {A: 1.0, B: 1.01} if rows > 1 else {A: 1.3, B: 1.0}
        for n in (3072, 4096)
        for rows in ROWS
    }
    cases.equal(
        "neighbours share what is near for both",
        [(x.least_rows, x.most_rows, x.pick.threads) for x in lines_of(near, {A, B})],
        [(1, ALL, 256)],
    )
    merged = {
        Shape(KIND, n, rows): {kernel(f"128x{n // 1024}"): 1.0}
        for n in (1024, 2048, 3072, 4096)
        for rows in ROWS
    }
    cases.equal("neighbouring lengths share their lines", [(x.least_n, x.most_n) for x in lines_of(
        merged, {kernel(f"128x{v}") for v in (1, 2, 3, 4)})], [(1025, 4096)])
    gap = {Shape(KIND, n, 1): {kernel("32x4"): 1.0} for n in (1024, 16384)}
    refused(
        cases,
        "a kernel that does not hold a length",
        lambda: lines_of(gap, {kernel("32x4")}),
        "no kernel that is near at 16384",
    )
    # Two kernels can run 8192 elements, but only one of them 4097 to 8192.
    odd, even = kernel("128x2x4"), kernel("256x4")
    ratios = {
        Shape(KIND, n, 1): {odd: 1.2, even: 1.0} if n > 4096 else {B: 1.0} for n in (4096, 8192)
    }
    there = set(have) - {kernel("256x3")._replace(dtype="bf16")}
    eligible = selection.eligible(ratios, there)
    cases.equal(
        "a kernel must hold all lengths that a time stands for",
        list(eligible[Shape(KIND, 8192, 1)]),
        [odd],
    )
    cases.equal("the next best serves then", selection.cover(eligible, lambda s: 0.0), [B, odd])
    before = [
        Rectangle.parse(f"ROWS({a}, {b}, 1, kAll, 128, kFit, 1, lean)")
        for a, b in ((1, 2000), (2001, 5000), (5001, 9000))
    ]
    new = [Rectangle.parse("ROWS(1025, 4096, 1, kAll, 256, kFit, 1, cached)")]
    cases.equal(
        "other lengths keep their lines",
        [(x.least_n, x.most_n, x.pick.threads) for x in selection.spliced(before, new)],
        [(1, 1024, 128), (1025, 4096, 256), (4097, 5000, 128), (5001, 9000, 128)],
    )
    cases.equal("no lines, no change", selection.spliced(before, []), before)


# --- the program, on a copy ---


class Copy:
    """The lists in a folder of their own."""

    def __init__(self, folder):
        self.root = Path(folder)
        for path in [*lists.VARIANTS, *map(lists.choice_file, CHOICE_NAMES)]:
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, self.root / path)
        # As if no list were made of times yet.
        self.edit(
            lists.choice_file("sm90"),
            lambda s: re.sub(f"^{re.escape(selection.GENERATED)}.*\n", "", s, flags=re.M),
        )
        self.times = self.root / "bench" / "tune" / "sm_90.csv"

    def write_times(
        self, time_of, lengths=LENGTHS, rows=ROWS, kinds=(KIND, LAYER), device="a pretended GPU"
    ):
        """time_of(kind, n, rows, kernel) for each kernel that holds the rows."""
        self.times.parent.mkdir(parents=True, exist_ok=True)
        have = lists.all_kernels(lists.read_variants(self.root), "sm_90")
        with open(self.times, "w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(selection.COLUMNS)
            for kind, n, m in itertools.product(kinds, lengths, rows):
                slots = lists.kernel_of(kind, "bf16", None)[:6]
                for k in have:
                    step = k.tile.threads * k.tile.blocks
                    if (
                        k[:6] == slots
                        and k.flavour in ("general", "bare", "bare_sm")
                        and k.tile.vectors == -(-n // 8 // step)
                    ):
                        writer.writerow(
                            [
                                device,
                                "13000",
                                "0.2.0",
                                "1",
                                "op",
                                " ".join(kind),
                                "bf16",
                                m,
                                n,
                                "1",
                                k,
                                f"{time_of(kind, n, m, k):.4f}",
                                "0.0100",
                                "1.0000",
                            ]
                        )

    def run(self, *given):
        done = subprocess.run(
            [sys.executable, ROOT / "tools" / "select.py", "--root", self.root, *map(str, given)],
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout + done.stderr

    def edit(self, path, change):
        file = self.root / path
        before = file.read_text()
        file.write_text(change(before))
        return before


def pretended_time(kind, n, rows, k):
    """Few rows like many threads, many rows like few; full kernels take 5 % more, and some noise
    that stays."""
    threads = k.tile.threads * k.tile.blocks
    wanted = n // 8 if rows == 1 else n // 16 if rows <= 64 else n // 32
    off = abs(threads.bit_length() - max(wanted, 1).bit_length())
    noise = random.Random(f"{kind}{n}{rows}{k}").random() * 0.01
    return (1 + 0.04 * off + (0.05 if k.flavour == "general" else 0) + noise) * (1 + rows * n / 1e6)


def test_program(cases, folder):
    copy = Copy(folder)
    code, out = copy.run("--check")
    cases.check("what is checked in agrees", code == 0 and "nothing to compare" in out, out)
    copy.write_times(pretended_time)
    code, out = copy.run("--check")
    cases.check(
        "times that no list is made of",
        code == 1 and "no list of choices is made of it" in out,
        out,
    )
    before = {
        p: (copy.root / p).read_text()
        for p in [*lists.VARIANTS, *map(lists.choice_file, CHOICE_NAMES)]
    }
    code, out = copy.run(copy.times)
    cases.check(
        "the curve is printed",
        code == 0 and "| within | kernels |" in out and "a pretended GPU" in out,
        out,
    )
    cases.equal(
        "nothing is written unless that is asked for",
        {p: (copy.root / p).read_text() for p in before},
        before,
    )
    kernels_before = {
        a: set(lists.all_kernels(lists.read_variants(copy.root), a)) for a in lists.ARCHS
    }
    code, out = copy.run(copy.times, "--write", "--near", "0.03")
    cases.check("written", code == 0, out)
    code, out = copy.run("--check")
    cases.check(
        "what was written is what the times make",
        code == 0 and "sm_90 is what bench/tune/sm_90.csv makes it" in out,
        out,
    )
    changed = {p for p in before if (copy.root / p).read_text() != before[p]}
    cases.check(
        "the other lists of choices stay",
        changed & set(map(lists.choice_file, CHOICE_NAMES)) == {lists.choice_file("sm90")},
        changed,
    )
    kernels = {a: set(lists.all_kernels(lists.read_variants(copy.root), a)) for a in lists.ARCHS}
    cases.equal(
        "other architectures keep their kernels",
        {a for a in lists.ARCHS if kernels[a] != kernels_before[a]} - {"sm_90"},
        set(),
    )
    cases.check("none is new", kernels["sm_90"] <= kernels_before["sm_90"])
    new, old = lists.read_choices("sm90", copy.root), lists.read_choices("sm90")
    by_kind = [{k: lst.lines for lst in f.lists for k in lst.each_kind()} for f in (new, old)]
    cases.equal("kinds that were not timed keep their lines",
                {k for k in by_kind[1] if by_kind[0][k] != by_kind[1][k]}, {KIND, LAYER})
    ratios, _ = selection.read_times(copy.times)
    for shape, of in ratios.items():
        line = line_for(by_kind[0][shape.kind], shape.n, shape.rows)
        if shape.n == min(LENGTHS):
            cases.equal(
                "the smallest length keeps its line",
                line,
                line_for(by_kind[1][shape.kind], shape.n, shape.rows),
            )
            continue
        named = {k: r for k, r in of.items() if selection.pick_of(k) == line.pick}
        cases.check(
            f"{shape.rows} x {shape.n} is near",
            named and min(named.values()) <= 1.10 + 1e-9,
            (line, named),
        )
    for n, rows in ((20000, 1), (32768, 4096), (512, 7)):
        cases.equal(f"{rows} x {n} keeps its kernel", line_for(by_kind[0][KIND], n, rows).pick,
                    line_for(by_kind[1][KIND], n, rows).pick)
    cases.equal("no line behind the last", line_for(by_kind[0][KIND], 65536, 4096), None)
    check_failures(cases, copy)


def check_failures(cases, copy):
    path = lists.choice_file("sm90")

    def fails(name, path, change, *text):
        before = copy.edit(path, change)
        code, out = copy.run("--check")
        changed = (copy.root / path).read_text() != before
        cases.check(
            name, changed and code == 1 and "1 failed" in out and all(t in out for t in text), out
        )
        (copy.root / path).write_text(before)

    first, second = lists.read_choices("sm90", copy.root).lists[0].lines[:2]
    fails(
        "a choice by hand",
        path,
        lambda s: s.replace(str(first), str(first).replace("lean", "cached"), 1),
        "bare-cs 4x1",
    )
    fails("a gap", path, lambda s: s.replace(str(second) + "\n", "", 1), "leaves a gap")
    fails("a word", path, lambda s: s.replace("kFit", "kfit", 1), path + ":")
    full = next(v for v in lists.read_variants(copy.root)[1].variants()
                if v.word(4) == "vector" and v.word(8) == "ALL" and v.word(9) == "general")
    fails(
        "a kernel that a choice names",
        lists.VARIANTS[1],
        lambda s: s.replace(
            str(full), str(full.without(("sm_90",), full.dtypes, full.flavours)), 1
        ),
        "has no kernel",
    )
    line = next(
        v
        for v in lists.read_variants(copy.root)[1].variants()
        if v.blocks("sm_90") and v.word(5) == "1024"
    )
    extra = list(line.fields)
    extra[5] = extra[5].replace("1024", " 512")
    extra[6], extra[7] = " x1", "16"
    extra = VariantLine(extra)
    lonely = str(extra)
    fails(
        "a kernel without a choice",
        lists.VARIANTS[1],
        lambda s: s + lonely + "\n",
        "no choice names it",
    )
    before = copy.edit(lists.VARIANTS[1], lambda s: s + lonely + "  // bound: 1.04 of one shape\n")
    variants = lists.read_variants(copy.root)
    cases.check(
        "a bound keeps it",
        lists.check_lists(variants, {n: lists.read_choices(n, copy.root) for n in CHOICE_NAMES}),
    )
    (copy.root / lists.VARIANTS[1]).write_text(before)
    times = copy.times.read_bytes()
    copy.times.unlink()
    code, out = copy.run("--check")
    cases.check(
        "times that are claimed and not there", code == 1 and "which is not there" in out, out
    )
    copy.times.write_bytes(times)
    cases.equal("all as before", copy.run("--check")[0], 0)
    for name, change, text in (
        ("another head", lambda s: s.replace("device,", "gpu,", 1), ":1: required"),
        (
            "a time of nothing",
            lambda s: s.replace(",0.0100,", ",,").replace(",13000,", ",", 1),
            ":2:",
        ),
        ("two devices", lambda s: s.replace("a pretended GPU", "another", 1), "times of 2 devices"),
        ("a kernel of another dtype", lambda s: s.replace(",bf16,", ",f16,", 1), ":2:"),
        ("no kernel", lambda s: s.replace("plain rms once store", "plain", 1), "no kernel's name"),
    ):
        copy.times.write_text(change(times.decode()))
        code, out = copy.run(copy.times)
        cases.check(f"times: {name}", code == 1 and text in out and "Traceback" not in out, out)
    copy.times.write_bytes(times)
    code, out = copy.run()
    cases.check("nothing to do", code == 2 and "required: a file of times, or --check" in out, out)
    odd = copy.times.with_name("h200.csv")
    shutil.copy(copy.times, odd)
    code, out = copy.run(odd)
    cases.check("a file of no architecture", code == 1 and "required: a name of" in out, out)


def test_module(cases):
    """Scripts of tools/ get Python's own module `select`, although select.py lies beside them."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import select, subprocess; print(select.select([], [], [], 0))"
    done = subprocess.run(
        [sys.executable, "-c", code, ROOT / "tools"], capture_output=True, text=True
    )
    cases.equal("the module select", done.stdout.strip(), "([], [], [])")


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    cases = Cases()
    for test in (test_notation, test_cover, test_small_gains, test_curve, test_lines, test_module):
        test(cases)
    for test in (test_times, test_program):
        with tempfile.TemporaryDirectory() as folder:
            test(cases, folder)
    cases.finish()


main()
