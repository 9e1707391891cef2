#!/usr/bin/env python3
"""Times norms of several ranks beside NCCL: runs "fastnorm peer bench" for a list of cases, and
writes one line a case.

  compare_peers.py --program build/tools/fastnorm/fastnorm --ranks 2 --csv peers.csv

Every case is checked before it is timed, bit by bit and on all ranks. A time is the median of the
slowest rank, in a graph. NCCL's time is that of its all-reduce and this library's fused norm; it is
there if libnccl.so.2 is found (--nccl-folder). NVLink multicast stays off. On a CPU (--device cpu)
ranks are threads, and nothing is comparable: that is for trying the program out.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from compare import lines  # noqa: E402

ROWS = (1, 8, 32, 128, 256, 1024, 4096)
COLUMNS = (4096, 7168, 8192)
SHARDED_ROWS = (1, 8, 32, 128, 256)
SHARDED_COLUMNS = ((4096, 0), (6144, 1024))  # of all ranks: queries, keys
TWO_SHOT_RANKS, TWO_SHOT_ROWS = 3, 8
CASE_SECONDS = 60


def allreduce_cases(ranks, rows, columns):
    for n, m in itertools.product(columns, rows):
        yield {"family": "allreduce", "rows": m, "n": n, "algorithm": "one-shot"}
        if ranks >= TWO_SHOT_RANKS and m >= TWO_SHOT_ROWS:
            yield {"family": "allreduce", "rows": m, "n": n, "algorithm": "two-shot"}
    for m in (8, 256):
        if m in rows:
            yield {
                "family": "allreduce", "rows": m, "n": columns[-1], "algorithm": "auto",
                "quantise": "per-tensor",
            }


def sharded_cases(ranks, rows):
    for (n, n2), m in itertools.product(SHARDED_COLUMNS, rows):
        if n % ranks == 0 and n2 % ranks == 0 and m <= SHARDED_ROWS[-1]:
            yield {"family": "sharded", "rows": m, "n": n // ranks, "n2": n2 // ranks}


def arguments_of(case, options):
    words = ["peer", "bench", "--rows", case["rows"], "--columns", case["n"], "--repeats",
             options.repeats, "--replays", 2]
    if case["family"] == "sharded":
        words += ["--sharded"] + (["--columns2", case["n2"]] if case["n2"] else [])
    else:
        words += ["--algorithm", case["algorithm"], "--quantise", case.get("quantise", "none")]
    if options.device == "cuda":
        devices = ",".join(f"cuda:{i}" for i in range(options.ranks))
        words += ["--processes", "--pdl", "--device", devices]
    else:
        words += ["--ranks", options.ranks]
    return [str(word) for word in words]


def measure(case, options, environment):
    """The case with its times, or with an error."""
    case = dict(case, dtype="bf16", ranks=options.ranks, pdl=options.device == "cuda")
    nccl = ["--nccl"] if options.device == "cuda" and case.get("quantise", "none") == "none" else []
    with tempfile.TemporaryDirectory() as work:
        output = Path(work) / "case.json"
        for extra in (nccl, []) if nccl else ([],):  # without NCCL, where it is not to be had
            command = [options.program, *arguments_of(case, options), "--output", output, *extra]
            try:
                ran = subprocess.run(command, env=environment, capture_output=True, text=True,
                                     timeout=CASE_SECONDS)
            except subprocess.TimeoutExpired:
                return dict(case, error=f"not done in {CASE_SECONDS} s")
            if ran.returncode == 0:
                break
        else:
            return dict(case, error=(ran.stderr.strip().splitlines() or ["no text"])[-1][:300])
        found = json.loads(output.read_text())
    case |= {"kernel": found["kernel"], "launches": found.get("launches"), "us": found["median_us"],
             "spread": found["spread"]}
    if "nccl_median_us" in found:
        case |= {"nccl_us": found["nccl_median_us"],
                 "nccl_over_fastnorm": found["nccl_median_us"] / found["median_us"]}
    return case


def library_of(options, environment):
    """Tells the library's build, with its commit."""
    command = [options.program, "info", "--json"]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(shown.stdout)
    return {key: found[key] for key in ("version", "numeric_version", "build")}


def device_name(options):
    if options.device == "cpu":
        return "cpu"
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        shown = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        return shown.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError) as e:
        sys.exit(f"compare_peers.py: {e}; --device cuda needs a GPU; nearest: --device cpu")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--program", type=Path, required=True, help="the program fastnorm")
    parser.add_argument("--ranks", type=int, default=2, help="GPUs, one a rank (2)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--columns", type=int, nargs="+", default=COLUMNS)
    parser.add_argument("--families", nargs="+", choices=("allreduce", "sharded"),
                        default=("allreduce", "sharded"))
    parser.add_argument("--nccl-folder", help="where libnccl.so.2 is")
    parser.add_argument("--repeats", type=int, default=9, help="samples; the median counts (9)")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no case after so long")
    parser.add_argument("--csv", type=Path, help="results; cases that the file has are left out")
    parser.add_argument("--fresh", action="store_true", help="forget what the file has")
    options = parser.parse_args()
    if not 2 <= options.ranks <= 8:
        parser.error(f"--ranks is {options.ranks}; required: 2 to 8")
    environment = dict(os.environ, NCCL_NVLS_ENABLE="0")
    if options.nccl_folder:
        paths = [options.nccl_folder, os.environ.get("LD_LIBRARY_PATH")]
        environment["LD_LIBRARY_PATH"] = ":".join(p for p in paths if p)
    cases = []
    if "allreduce" in options.families:
        cases += allreduce_cases(options.ranks, options.rows, options.columns)
    if "sharded" in options.families:
        cases += sharded_cases(options.ranks, options.rows)
    document = {"device": device_name(options), "ranks": options.ranks,
                "library": library_of(options, environment),
                "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "results": []}
    try:
        lines.go_on(options.csv, document, options.fresh)
    except lines.Mismatch as why:
        sys.exit(f"compare_peers.py: {why}")
    document["results"] = [row for row in document["results"] if "error" not in row]
    timed = list(document["results"])
    start = time.monotonic()
    for case in cases:
        if any(all(row.get(name) == value for name, value in case.items()) for row in timed):
            continue
        if time.monotonic() - start > options.seconds:
            print("the time is over")
            return lines.EXIT_LEFT
        row = measure(case, options, environment)
        document["results"].append(row)
        name = f"{row['family']} {row['rows']}x{row['n']}" + (f"+{row['n2']}" if row.get("n2") else "")
        how = " ".join(filter(None, (row.get("algorithm"), row.get("quantise"))))
        if "error" in row:
            print(f"{name:26} {how:20} {row['error']}", flush=True)
            continue
        ratio = row.get("nccl_over_fastnorm")
        print(f"{name:26} {how:20} {row['us']:9.2f} us {100 * row['spread']:5.1f}%"
              + (f"  NCCL {row['nccl_us']:9.2f} us, {ratio:.2f} x" if ratio else ""), flush=True)
        if options.csv:
            lines.write(options.csv, document)
    return any("error" in row for row in document["results"])


if __name__ == "__main__":
    sys.exit(main())
