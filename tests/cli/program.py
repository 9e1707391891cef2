"""Running the program `fastnorm` and looking at what came of it."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "abi"))
from cases import Cases  # noqa: E402

SUCCESS, FAILURE, USAGE = 0, 1, 2
# The example of the self-test's help that cli_test.py runs, and docs_test.py does not run again.
SELFTEST_EVERY = 7  # of its cases
SELFTEST_AS_JSON = ["selftest", "--threads", "3", "--every", str(SELFTEST_EVERY), "--json"]
# Tests with many cases take one in so many, where a sanitizer makes each take long.
SHARE = int(os.environ.get("FASTNORM_TEST_SHARE", "1"))


def share_of(items):
    return list(items)[::SHARE]


class Program:
    def __init__(self, cases, path, work):
        self.cases, self.path, self.work = cases, path, Path(work)

    def run(self, *arguments, **options):
        return subprocess.run([self.path, *map(str, arguments)], capture_output=True, text=True,
                              timeout=300, cwd=self.work, **options)

    def expect(self, name, code, *arguments, says=()):
        """Runs it; checks the exit code, that errors say all of `says`, and that a failure is told
        on stderr. Returns what was printed."""
        result = self.run(*arguments)
        shown = f"exit code {result.returncode}, stderr: {result.stderr.strip()[-400:]}"
        self.cases.check(f"{name}: exit code {code}", result.returncode == code, shown)
        text = result.stdout if code == SUCCESS else result.stderr
        for part in (says,) if isinstance(says, str) else says:
            self.cases.check(f"{name}: says '{part}'", part in text, text[-600:])
        if code == FAILURE:
            self.cases.check(
                f"{name}: one line that names the program",
                result.stderr.startswith("fastnorm: ") and result.stderr.count("\n") == 1,
                result.stderr,
            )
        if code == USAGE:
            self.cases.check(
                f"{name}: names the command, or shows its help",
                result.stderr.startswith(("fastnorm", "Examples:\n")) and not result.stdout,
                result.stderr,
            )
        if code == SUCCESS:
            self.cases.check(f"{name}: nothing on stderr", not result.stderr, result.stderr)
        return result.stdout

    def json(self, name, *arguments):
        """What it prints with --json; {} if that is not JSON."""
        text = self.expect(name, SUCCESS, *arguments, "--json")
        try:
            return json.loads(text)
        except ValueError as error:
            self.cases.check(f"{name}: prints JSON", False, str(error))
            return {}


def main(test):
    """Runs test(program) with the program given on the command line, in a folder of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=Path)
    options = parser.parse_args()
    cases = Cases()
    with tempfile.TemporaryDirectory() as work:
        test(Program(cases, options.program.resolve(), work))
    cases.finish()
