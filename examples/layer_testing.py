"""The test of an example of layers: runs it on the CPU and looks at what it prints; then a wrong
norm, and no library."""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "abi"))
sys.dont_write_bytecode = True
from cases import Cases  # noqa: E402


def run_example(build, program, *options):
    result = subprocess.run(
        [sys.executable, program, "--build", build, *options],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    return result.returncode, result.stdout, result.stderr


def test_layers(folder, work_of_a_layer, layers, share):
    """The example in `folder` prints a line for each of `layers`, which begins with its name and
    `work_of_a_layer`. Its bound is below 1 / share of the largest output."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path, required=True)
    build, cases = parser.parse_args().build.resolve(), Cases()
    line = rf"(\w+): {work_of_a_layer}, largest output (\S+), largest error (\S+), bound (\S+)"

    def check_run(*options):
        name = f"example {' '.join(options)}".strip()
        code, text, errors = run_example(build, folder, *options)
        cases.equal(f"{name}: exit code", (code, errors), (0, ""))
        found = re.findall(f"^{line}$", text, re.M)
        cases.equal(f"{name}: layers", [layer[0] for layer in found], layers)
        for layer, largest, error, bound in found:
            cases.check(
                f"{name}, {layer}: the error is there, and within the bound",
                0 < float(error) <= float(bound) < float(largest) / share,
                text,
            )
        return text

    one = check_run()
    cases.equal("two threads: the same figures", check_run("--threads", "2"), one)
    cases.check("another seed: other figures", check_run("--seed", "2") != one)
    with tempfile.TemporaryDirectory() as work:
        # A copy of the program whose reference has another eps.
        copy = Path(work) / "examples" / folder.name / "__main__.py"
        copy.parent.mkdir(parents=True)
        (Path(work) / "packages").symlink_to(ROOT / "packages")
        source = (folder / "__main__.py").read_text()
        cases.check("the reference's eps is found", "np.float32(EPS)" in source)
        copy.write_text(source.replace("np.float32(EPS)", "np.float32(1e-3)"))
        code, text, errors = run_example(build, copy)
        found = code == 1 and "larger than the bound" in errors
        cases.check("a wrong norm is found", found, text + errors)
        code, _, errors = run_example(Path(work), folder)
        cases.check("no library", code == 1 and "there is no" in errors, errors)
    cases.finish()
