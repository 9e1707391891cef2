"""Counting for tests written in Python: cases, skips with their reason, and the closing line."""

import subprocess
import sys


class Cases:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def check(self, name, ok, detail=""):
        if ok:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAIL {name}" + (f": {detail}" if detail else ""))
        return bool(ok)

    def equal(self, name, value, wanted):
        return self.check(name, value == wanted, f"found {value!r}, required {wanted!r}")

    def skip(self, name, why):
        self.skipped += 1
        print(f"SKIP {name}: {why}")

    def finish(self):
        """Prints the closing line and ends the program: 0, 1, or 77 if everything was skipped."""
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        sys.exit(1 if self.failed else 77 if self.skipped and not self.passed else 0)


def output_of(command, **options):
    """What a command writes to stdout; ends the test if the command fails."""
    result = subprocess.run(command, capture_output=True, text=True, **options)
    if result.returncode != 0:
        print(result.stdout + result.stderr)
        sys.exit(f"{' '.join(map(str, command))} ended with {result.returncode}")
    return result.stdout
