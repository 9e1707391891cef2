#!/usr/bin/env python3
"""`fastnorm peer`: "explain" plans, "bench" runs ranks as threads of the CPU and compares the
results itself."""

import subprocess
import sys
from pathlib import Path

from program import SUCCESS, USAGE, main

BENCH = Path(__file__).resolve().parents[2] / "bench"

QUICK = ("--calls", 2, "--repeats", 2, "--replays", 3)

CASES = {
    "all-reduce": ("--rows", 5, "--columns", 96),
    "all-reduce, codes": ("--rows", 3, "--columns", 64, "--ranks", 3, "--quantise", "per-row"),
    "all-reduce, two-shot": ("--rows", 7, "--columns", 40, "--ranks", 3, "--algorithm", "two-shot"),
    "all-reduce, exact": ("--rows", 6, "--columns", 40, "--exact", "--algorithm", "two-shot"),
    "all-reduce, exact sums alone": ("--rows", 3, "--columns", 20, "--exact", "--no-residual"),
    "all-reduce, a weight a batch": ("--rows", 6, "--columns", 64, "--exact", "--weights", 2),
    "all-reduce, codes, weights": ("--rows", 6, "--columns", 64, "--weights", 3,
                                   "--quantise", "per-row"),
    "sharded": ("--sharded", "--rows", 5, "--columns", 96, "--ranks", 3),
    "sharded, layer": ("--sharded", "--layer", "--rows", 4, "--columns", 50, "--dtype", "f32"),
    "sharded, two parts": ("--sharded", "--rows", 9, "--columns", 256, "--columns2", 128),
}

REFUSED = {
    "columns2 alone": (("--columns2", 64), "--columns2 needs --sharded"),
    "codes of sharded rows": (("--sharded", "--quantise", "per-row"), "--quantise"),
    "weights of sharded rows": (("--sharded", "--weights", 2), "--weights"),
    "weights that do not divide": (
        ("--rows", 5, "--weights", 2),
        "--weights is 2; required: a divisor of --rows, which is 5",
    ),
    "long rows": (("--sharded", "--columns", 8200), "a multiple of 128"),
    "NCCL on a CPU": (("--nccl",), "--nccl needs GPUs"),
    "processes on a CPU": (("--processes",), "--processes needs GPUs"),
    "one rank": (("--ranks", 1), "--ranks"),
}


def test_compare_peers(program):
    """bench/compare_peers.py has a line with a time for each case."""
    sys.path.insert(0, str(BENCH))
    from compare import lines

    path = program.work / "peers.csv"

    def run(*given):
        return subprocess.run(
            [sys.executable, BENCH / "compare_peers.py", "--program", program.path, "--csv", path,
             "--device", "cpu", "--ranks", "4", "--columns", "96", "--repeats", "1", *given],
            capture_output=True, text=True,
        )

    cases = program.cases
    ran = run("--rows", "1", "8", "--seconds", "0")
    cases.equal("compare_peers: no time", ran.returncode, lines.EXIT_LEFT)
    cases.equal("compare_peers: one row", run("--rows", "1").returncode, 0)
    first = lines.read(path)["results"]
    cases.check("compare_peers: results of one row", {r["rows"] for r in first} == {1}, first)
    cases.equal("compare_peers: exit code", run("--rows", "1", "8").returncode, 0)
    document = lines.read(path) if path.exists() else {"results": []}
    rows = document["results"]
    commit = document.get("library", {}).get("build", {}).get("commit", "")
    cases.check("compare_peers: the library's commit", commit, document.get("library"))
    cases.equal("compare_peers: what the file has is kept", rows[:len(first)], first)
    rows.sort(key=lambda r: (r["family"], r["rows"]))
    found = [(r["family"], r["rows"], r.get("algorithm")) for r in rows]
    wanted = [("allreduce", 1, "one-shot"), ("allreduce", 8, "one-shot"),
              ("allreduce", 8, "two-shot"), ("allreduce", 8, "auto")]
    cases.equal("compare_peers: the all-reduces", found[:4], wanted)
    sharded = [r for r in rows if r["family"] == "sharded"]
    cases.check("compare_peers: sharded norms", len(sharded) == 4, found)
    lines.write(path, {**document, "device": "another"})
    ran = run("--rows", "1")
    cases.check("compare_peers: a file of another device",
                ran.returncode == 1 and "required: the same one, or --fresh" in ran.stderr, ran)
    cases.check("compare_peers: times", rows and all(r["us"] > 0 for r in rows), rows)


# Kernels of ranks whose GPU is not there.
EXPLAINED = {
    "one-shot": (("--rows", 8, "--columns", 4096), "peer bf16 one-shot", 1),
    "two-shot": (("--rows", 1024, "--columns", 4096, "--ranks", 4), "peer bf16 two-shot", 1),
    "a weight a batch": (("--rows", 6, "--columns", 4096, "--weights", 2), "bf16 add rms", 2),
    "exact": (("--rows", 8, "--columns", 4096, "--exact"), "bf16 add rms", 2),
    "unaligned": (("--rows", 3, "--columns", 4100), "bf16 add rms once store unaligned", 2),
    "sharded": (("--sharded", "--rows", 32, "--columns", 3072, "--columns2", 512),
                "peer bf16 sharded", 1),
    "many sharded rows": (("--sharded", "--rows", 4096, "--columns", 3072), "norm_heads bf16", 3),
}


def test_explain(program):
    cases = program.cases
    for name, (options, kernel, launches) in EXPLAINED.items():
        result = program.json(f"explain: {name}", "peer", "explain", "--device", "sm_90", *options)
        cases.check(f"explain: {name}: kernel", kernel in result.get("kernel", ""), result)
        cases.equal(f"explain: {name}: launches", result.get("launches"), launches)
        cases.check(f"explain: {name}: bytes", result.get("bytes_read", 0) > 0, result)
    text = program.expect("explain: text", SUCCESS, "peer", "explain", "--rows", 4)
    for part in ("kernel ", "workspace ", "reads "):
        cases.check(f"explain: text: {part}", part in text, text)


def test(program):
    cases = program.cases
    test_explain(program)
    for name, options in CASES.items():
        result = program.json(name, "peer", "bench", *options, *QUICK)
        sharded = "--sharded" in options
        cases.equal(
            f"{name}: family",
            result.get("family"),
            "peer_sharded_norm" if sharded else "peer_allreduce_norm",
        )
        cases.equal(f"{name}: replays", result.get("replays"), 3)
        cases.check(f"{name}: a time", result.get("median_us", 0) > 0, result)
        cases.equal(f"{name}: columns2", result.get("columns2"), 128 if "parts" in name else None)
    for name in ("all-reduce", "sharded"):
        result = program.json(
            f"{name}: a rank missing",
            "peer",
            "bench",
            *CASES[name],
            *("--missing", "--wait-ms", 50),
        )
        cases.check(f"{name}: ranks stopped", result.get("stopped_ranks", 0) >= 1, result)
    text = program.expect("text", SUCCESS, "peer", "bench", *CASES["sharded"], *QUICK)
    for part in ("3 ranks, kernel", "right on all ranks, and 3 times more", "median"):
        cases.check(f"text: {part}", part in text, text)
    test_compare_peers(program)
    for name, (options, says) in REFUSED.items():
        program.expect(name, USAGE, "peer", "bench", *options, says=says)
    for name in ("columns2 alone", "codes of sharded rows", "one rank"):
        options, says = REFUSED[name]
        program.expect(f"explain: {name}", USAGE, "peer", "explain", *options, says=says)


main(test)
