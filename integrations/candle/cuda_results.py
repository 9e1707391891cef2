#!/usr/bin/env python3
"""Makes a result file of the lines that the benchmark prints on a GPU.

  beside_candle --cuda --rounds 41 --rows 1,256 > lines.tsv
  cuda_results.py lines.tsv bench/results/h200_candle.csv --device "NVIDIA H200" --commit HASH

--commit is that of the library and of the program, --date the day of the run. Other lines of the
file than the benchmark's are left out.
"""

import argparse
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from figures import ROOT, lines  # noqa: E402

sys.path.insert(0, str(ROOT / "packages"))
import version  # noqa: E402

FIELDS = 8  # what, dtype, rows, columns, us of candle-nn, ours, error of candle-nn, ours


def results_of(text):
    """One row a line; behind the fields a line may say more."""
    for line in text.splitlines():
        fields = line.split("\t")[:FIELDS]
        if len(fields) < FIELDS:
            continue
        what, dtype, rows, columns, *figures = fields
        theirs, ours, their_error, error = map(float, figures)
        yield {
            "op": what,
            "dtype": dtype,
            "rows": int(rows),
            "n": int(columns),
            "us": ours,
            "candle_us": theirs,
            "ratio": ours / theirs,
            "error": error,
            "candle_error": their_error,
        }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("lines", type=Path, help="what the benchmark printed")
    parser.add_argument("output", type=Path, help="the result file")
    parser.add_argument("--device", required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--date", default=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    options = parser.parse_args()
    found = list(results_of(options.lines.read_text()))
    if not found:
        sys.exit(f"{options.lines} has no line of the benchmark; required: {FIELDS} fields")
    build = f"version: {version.version()}\ncommit: {options.commit}\n"
    document = {
        "kind": "candle",
        "date": options.date,
        "device": options.device,
        "library": {"build": build},
        "results": found,
    }
    lines.write(options.output, document)


if __name__ == "__main__":
    main()
