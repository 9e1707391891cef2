#!/usr/bin/env python3
"""Runs the example on the CPU and looks at what it prints; then a wrong norm, and no library."""

import argparse
import re
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.dont_write_bytecode = True
from layer_testing import ROOT, Cases, run_example  # noqa: E402

LINE = (
    r"(\w+): 7 steps for 46 tokens, largest score (\S+), largest error (\S+), bound (\S+); (\d+) of "
    r"(\d+) chosen tokens are those of double precision, the others (\S+) below them"
)


def check_run(cases, build, *options):
    name = f"example {' '.join(options)}".strip()
    code, text, errors = run_example(build, HERE, *options)
    cases.equal(f"{name}: exit code", (code, errors), (0, ""))
    found = re.findall(f"^{LINE}$", text, re.M)
    cases.equal(f"{name}: orders of a page", [order for order, *_ in found], ["first", "behind"])
    for order, *numbers in found:
        largest, error, bound, same, rows, _ = map(float, numbers)
        cases.check(
            f"{name}, {order}: the error is there, and within the bound",
            0 < error <= bound < largest / 11,
            text,
        )
        cases.check(f"{name}, {order}: nearly all tokens are the same", same >= 0.95 * rows, text)
    cases.check(
        f"{name}: both orders give the same", len({tuple(f[1:]) for f in found}) == 1, text
    )
    return text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path, required=True)
    build, cases = parser.parse_args().build.resolve(), Cases()
    one = check_run(cases, build)
    cases.equal("two threads: the same figures", check_run(cases, build, "--threads", "2"), one)
    cases.check("another seed: other figures", check_run(cases, build, "--seed", "2") != one)
    source = (HERE / "__main__.py").read_text()
    with tempfile.TemporaryDirectory() as work:
        # A copy of the program whose reference has other pairs, and one with another eps.
        copy = Path(work) / "examples" / HERE.name / "__main__.py"
        copy.parent.mkdir(parents=True)
        (Path(work) / "packages").symlink_to(ROOT / "packages")
        for name, old, new in (
            ("rope", "x[..., half:ROTARY]", "x[..., half + 1 : ROTARY + 1]"),
            ("norm", "np.float32(EPS)", "np.float32(0.5)"),
        ):
            cases.check(f"the reference's {name} is found", old in source)
            copy.write_text(source.replace(old, new))
            code, text, errors = run_example(build, copy)
            found = code == 1 and "larger than the bound" in errors
            cases.check(f"a wrong {name} is found", found, text + errors)
        code, _, errors = run_example(Path(work), HERE)
        cases.check("no library", code == 1 and "there is no" in errors, errors)
    cases.finish()


main()
