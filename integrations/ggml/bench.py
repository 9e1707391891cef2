#!/usr/bin/env python3
"""Times ggml's norms with and without libfastnorm, in one process. Writes
bench/results/ggml_cpu.csv and the table of README.md.

    integrations/ggml/bench.py --build build-test/native --work build-test/ggml
"""

import argparse
import datetime
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "tests" / "abi"), str(HERE), str(HERE.parent)]
from cases import output_of  # noqa: E402
from figures import commit, device, lines, with_table  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "ggml_cpu.csv"
PAGE = HERE / "README.md"


def table():
    content = lines.read(RESULTS)
    text = [
        f"{content['device']}, ggml {content['ggml']}, {content['date'][:10]}; microseconds, and",
        "the part of ggml's own time:", "",
        "| operator | 1 x 128 | 1 x 4096 | 256 x 128 | 256 x 4096 |", "|---|---|---|---|---|",
    ]
    found = {(r["op"], r["rows"], r["n"]): r for r in content["results"]}
    for op in dict.fromkeys(op for op, _, _ in found):
        cells = [found[op, rows, n] for rows in (1, 256) for n in (128, 4096)]
        text.append(f"| {op} | " + " | ".join(f"{r['us']:.2f}, {r['ratio']:.2f}" for r in cells)
                    + " |")
    return "\n".join(text) + "\n"


def main():
    from test import PACKAGE, build

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, required=True, help="folder of Meson")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is built")
    parser.add_argument("--program", type=Path, help="norm_test, where it is built already")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    library = (options.build / "src" / "libfastnorm.so").resolve()
    program = options.program or build(options.work.resolve(), library)
    results = []
    for line in output_of([program, "--time"]).splitlines():
        op, rows, n, us, theirs = line.split(",")
        results.append({"op": op, "dtype": "float32", "rows": int(rows), "n": int(n),
                        "us": float(us), "ggml_us": float(theirs),
                        "ratio": float(us) / float(theirs)})
        print(line)
    lines.write(RESULTS, {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "device": device(), "commit": commit(), "ggml": "0.26.0", "package": " ".join(PACKAGE),
        "kind": "ggml", "threads": 1, "results": results,
    })
    PAGE.write_text(with_table(PAGE, table()))


if __name__ == "__main__":
    main()
