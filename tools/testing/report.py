"""Counting: every test of every kind ends up here, and the closing line is its sum."""

import json
import re
import time

from times import processor_seconds

CLOSING = re.compile(r"(\d+) passed, (\d+) failed, (\d+) skipped")
SKIPPED_EXIT = 77


class Report:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.failures, self.skips, self.times = [], [], []
        self.stage_name = ""

    def stage(self, name):
        return Stage(self, name)

    def add_passed(self, count=1):
        self.passed += count

    def add_failed(self, name, text="", count=1):
        self.failed += count
        self.failures.append(f"{self.stage_name}: {name}")
        print(f"FAIL {name}", flush=True)
        if text:
            print(_tail(text), flush=True)

    def add_skipped(self, name, why, count=1):
        self.skipped += count
        self.skips.append(f"{self.stage_name}: {name}: {why}")

    def add_program(self, name, code, output, timed_out=False):
        """Counts a finished test program: by its closing line, or as one test by its exit code.
        Returns whether nothing failed."""
        passed, failed, skipped = _closing_line(output)
        reasons = re.findall(r"^SKIP (.*)$", output, re.M)
        if passed + failed + skipped == 0:
            passed, failed, skipped = (0, 0, 1) if code == SKIPPED_EXIT else (1, 0, 0)
        died = timed_out or code not in (0, SKIPPED_EXIT)
        if died and failed == 0:  # it broke off, or found fault after counting
            failed, passed = 1, max(passed - 1, 0)
        if not died and failed > 0:
            output += f"\n(exit code {code} in spite of failures)"
        self.add_passed(passed)
        if failed:
            self.add_failed(
                f"{name}{' (timeout)' if timed_out else ''}, exit code {code}", output, failed
            )
        self.skipped += skipped
        if skipped:
            shown = reasons or ["no reason given"]
            self.skips += [f"{self.stage_name}: {name}: {reason}" for reason in shown]
        return failed == 0

    def write_counts(self, path):
        """For add_counts() of another process."""
        path.write_text(json.dumps(vars(self)))

    def add_counts(self, path, code):
        """What a process that ended with this code wrote of its stages."""
        counts = json.loads(path.read_text()) if path.exists() else None
        if counts is None or code not in (0, 1):
            self.add_failed(f"the stages beside ended with exit code {code}")
        for name in ("passed", "failed", "skipped", "failures", "skips", "times"):
            if counts is not None:
                setattr(self, name, getattr(self, name) + counts[name])

    def print_summary(self, seconds, modes):
        print("\n--- times")
        for name, taken, computed in self.times:
            kind = ", a part" if modes.get(name) == "part" else ""
            print(f"{taken:7.1f} s  {name}{kind}, {computed:.1f} s of processors")
        computed = sum(computed for _, _, computed in self.times)
        print(f"{seconds:7.1f} s  in all, {computed:.1f} s of processors")
        _print_list("skipped", self.skips)
        _print_list("failed", self.failures)
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped", flush=True)


class Stage:
    """A named, timed part of the run. An exception inside it is one failed test, not the end."""

    def __init__(self, report, name):
        self.report, self.name = report, name

    def __enter__(self):
        print(f"\n=== {self.name}", flush=True)
        self.report.stage_name = self.name
        self.start, self.computed = time.monotonic(), processor_seconds()
        self.counts = (self.report.passed, self.report.failed, self.report.skipped)
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None and not issubclass(kind, Exception):
            return False
        if kind is not None:
            first, _, rest = str(error).partition("\n")
            self.report.add_failed(f"{kind.__name__}: {first}", rest)
        taken = time.monotonic() - self.start
        self.report.times.append((self.name, taken, processor_seconds() - self.computed))
        now = (self.report.passed, self.report.failed, self.report.skipped)
        p, f, s = (b - a for a, b in zip(self.counts, now))
        print(f"{self.name}: {p} passed, {f} failed, {s} skipped, {taken:.1f} s", flush=True)
        return True


def _closing_line(output):
    for line in reversed(output.splitlines()):
        if line.strip():
            match = CLOSING.fullmatch(line.strip())
            if match:
                return tuple(map(int, match.groups()))
            break
    return _googletest_line(output)


def _googletest_line(output):
    """GoogleTest's own sum, where a program ends with that."""
    counts = dict(re.findall(r"^\[  (PASSED|SKIPPED|FAILED) ? \] (\d+) tests?", output, re.M))
    return tuple(int(counts.get(word, 0)) for word in ("PASSED", "FAILED", "SKIPPED"))


def _print_list(title, lines):
    """Each different line once, with how often it came."""
    if not lines:
        return
    print(f"--- {title}")
    for line in dict.fromkeys(lines):
        count = lines.count(line)
        print(f"{line}{f' (x {count})' if count > 1 else ''}")


def _tail(text, lines=60):
    kept = text.rstrip().splitlines()
    cut = [f".. {len(kept) - lines} lines before .."] if len(kept) > lines else []
    return "\n".join(cut + kept[-lines:])
