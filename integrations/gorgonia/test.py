#!/usr/bin/env python3
"""Tests of the package for gorgonia's tensors with gorgonia.org/tensor of the module proxy: format
and vet, the package's own tests, and time beside gorgonia's operators. The last line is the count.

    integrations/gorgonia/test.py --build build-test/native --work build-test/gorgonia
"""

import re
import shutil
import sys
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE.parent))
from engine_testing import Session, write_figures  # noqa: E402

FIGURES = HERE / "figures.md"


def count_tests(s, text):
    """Counts each test and subtest that ran."""
    found = re.findall(r"^ *--- (PASS|FAIL|SKIP): (\S+)", text, re.M)
    for result, name in found:
        if result == "SKIP":
            s.cases.skip(name, "see its output")
        else:
            s.cases.check(name, result == "PASS")
    return len(found)


def run_tests(s):
    code, text = s.run(["go", "test", "-count=1", "-v", "."])
    count = count_tests(s, text)
    good = code == 0 and count > 0
    s.cases.check("go test ends well", good, f"exit code {code}, {count} tests\n{text[-6000:]}")


def measure(s, rounds):
    text = s.check("figures runs", ["go", "run", "./figures", "-rounds", rounds])
    lines = [line.split("\t") for line in (text or "").splitlines() if line.count("\t") == 6]
    s.cases.equal("lines of figures", len(lines), 4)
    for what, rows, _, theirs, ours, their_error, our_error in lines:
        ratio = float(ours) / float(theirs)
        s.cases.check(f"{what}, {rows} rows is no slower", ratio <= 1, f"{ratio:.2f}")
        name = f"gorgonia's {what}, {rows} rows is the same norm"
        s.cases.check(name, float(their_error) < 1e-5, their_error)
        no_worse = float(our_error) <= 1.1 * float(their_error)
        s.cases.check(f"error of {what}, {rows} rows", no_worse, f"{our_error}, {their_error}")
    return lines


def write_table(s, lines):
    write_figures(
        s,
        FIGURES,
        "Time and error beside gorgonia's operators",
        [
            "`test.py --figures` writes this page. Both sides are timed by turns in one run, on one",
            "thread, and the least time of each counts. gorgonia's side is the norm of its operators,",
            "in place where they allow it, with weight and bias repeated for all rows beforehand. The",
            "error is the root of the mean square of the difference from double precision, relative",
            "to the result. All numbers are float32.",
        ],
        ["norm", "rows", "columns", "gorgonia, µs", "fastnorm, µs", "time", "error of gorgonia",
         "error of fastnorm"],
        [[*line[:5], f"{float(line[4]) / float(line[3]):.3f}", *line[5:]] for line in lines],
    )  # fmt: skip


def main():
    s = Session(__doc__, HERE)
    # Go's build cache keeps what pkg-config once said of a library and does not ask again when the
    # library has moved; C flags of its own make it a package of its own.
    key = zlib.crc32(str(s.library_dir).encode())
    s.env.update(
        CGO_ENABLED="1",
        CGO_CPPFLAGS=f"-DFASTNORM_TEST_LIBRARY=0x{key:x}",
        GOFLAGS="-mod=readonly",
        GOTOOLCHAIN="local",
        GOWORK="off",
    )
    if shutil.which("go") is None:
        s.cases.skip("the package for gorgonia", "there is no Go")
        s.cases.finish()
    if not s.fetch("gorgonia", ["go", "mod", "download"]):
        s.cases.finish()
    if s.figures:
        write_table(s, measure(s, "60"))
        s.finish()
    text = s.check("gofmt runs", ["gofmt", "-l", "."])
    s.cases.equal("files that gofmt would change", text, "")
    s.check("go vet", ["go", "vet", "./..."])
    run_tests(s)
    measure(s, "10")
    s.finish()


if __name__ == "__main__":
    main()
