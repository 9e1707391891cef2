"""What the tests of the integrations share: the count, results as JSON, and the norms in double
precision with the bounds of their error.

The bounds follow from the single-precision roundings on the way of a value: L in a sum, and one for
each operation after it. UNIT is half a unit in the last place of f32.
"""

import argparse
import datetime
import importlib.util
import json
import os
import platform
import re
import sys
import time
import traceback
from pathlib import Path

try:
    import numpy as np
except ImportError:
    np = None  # the suites say so

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "abi"))
from cases import Cases  # noqa: E402

UNIT = 2.0**-24
INF = float("inf")
# A format has bits of the significand, the exponent of the least subnormal, and the greatest finite
# value.
FORMATS = {
    "float32": (24, -149, INF),
    "float16": (11, -24, INF),
    "bfloat16": (8, -133, INF),
    "float8_e4m3fn": (4, -9, 448.0),
    "float8_e5m2": (3, -16, 57344.0),
    "int8": (54, 0, 127.0),
    "float4_e2m1fn": (2, -1, 6.0),
}
# Schemes of codes with their own blocks: columns of a scale, which is a power of two or not, and
# whether codes have 4 bits.
BLOCKS = {"mxfp8": (32, True, False), "nvfp4": (16, False, True), "mxfp4": (32, True, True)}
FP4 = tuple(scheme for scheme, (_, _, pairs) in BLOCKS.items() if pairs)
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def missing(*names):
    """Which package is not here, and so why there is nothing to test; None if all are. The suites'
    folders have names of packages, too: a package is one only if it has a file."""
    for name in names:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            return f"no {name} in {sys.executable}"
    return None


def round_to(values, name):
    """Nearest value of a format, ties to even, saturating at its greatest one."""
    bits, least, greatest = FORMATS[name]
    _, exponent = np.frexp(values)
    quantum = np.ldexp(1.0, np.maximum(exponent - bits, least))
    return np.clip(np.rint(values / quantum) * quantum, -greatest, greatest)


class Exact:
    """One norm in double precision. Arrays are float64 and hold values of their tensors' dtypes."""

    def __init__(
        self,
        kind,
        x,
        weight=None,
        bias=None,
        residual=None,
        eps=0.0,
        weight_offset=0.0,
        rounding="once",
        dtype="float32",
        y_dtype=None,
    ):
        n = x.shape[-1]
        self.dtype = y_dtype or dtype
        sums = x.astype(np.float32)
        if residual is not None:
            sums = sums + residual.astype(np.float32)
        self.sums = s = sums.astype(np.float64)
        roundings = max(min(256, -(-n // 64)) + 6 + -(-n // 16384), 8 + np.ceil(np.log2(n)))
        mean, mean_error = 0.0, 0.0
        if kind == "layer":
            mean = s.mean(-1, keepdims=True)
            mean_error = (roundings + 2) * UNIT * np.abs(s).mean(-1, keepdims=True)
        variance = ((s - mean) ** 2).mean(-1, keepdims=True) + float(np.float32(eps))
        rstd = 1 / np.sqrt(variance)
        relative = (roundings / 2 + 5) * UNIT + mean_error**2 / (2 * variance)
        t = (s - mean) * rstd
        t_error = rstd * mean_error + (relative + 2 * UNIT) * np.abs(t)
        gain = (1.0 if weight is None else weight) + weight_offset
        shift = 0.0 if bias is None else bias
        self.z = t * gain + shift
        if rounding in ("once", "once_rw"):
            low, high = t - t_error, t + t_error
        else:
            low, high = round_to(t - t_error, dtype), round_to(t + t_error, dtype)
        ends = np.stack([low * gain, high * gain])
        step = 2 * UNIT * (np.abs(t * gain) + np.abs(shift))
        self.low, self.high = ends.min(0) + shift - step, ends.max(0) + shift + step

    def holds(self, y):
        """Whether y, as float64, is within the bounds."""
        return bool(
            np.all((round_to(self.low, self.dtype) <= y) & (y <= round_to(self.high, self.dtype)))
        )

    def holds_codes(self, codes, scales, name, block):
        """Codes (as numbers) and the scale of each block of columns, both float64, against the
        exact result; a text that says what is wrong, or ''."""
        n = self.z.shape[-1]
        wide = np.repeat(scales, block, -1)[..., :n]
        ends = np.stack([self.low / wide, self.high / wide])
        slack = 3 * UNIT * np.abs(ends).max(0)
        low, high = round_to(ends.min(0) - slack, name), round_to(ends.max(0) + slack, name)
        wrong = int(np.sum((codes < low) | (codes > high)))
        return f"{wrong} of {codes.size} codes are not the nearest" if wrong else ""

    def holds_scales(self, scales, name, block, scheme):
        """The scales of a scheme that makes them from the greatest magnitude of a block."""
        n, greatest = self.z.shape[-1], FORMATS[name][2]
        padding = [(0, 0)] * (self.z.ndim - 1) + [(0, -n % block)]
        shape = (*self.z.shape[:-1], -1, block)
        amax = np.abs(np.pad(self.z, padding)).reshape(shape).max(-1)
        error = np.pad(self.high - self.low, padding).reshape(shape).max(-1) + 3 * UNIT * amax
        _, pow2, pairs = BLOCKS.get(scheme, (block, False, False))
        if pow2:
            fits = (amax - error <= greatest * scales) & (amax + error >= greatest * scales / 2)
            wrong = int(np.sum(~fits))
        else:
            low, high = (amax - error) / greatest, (amax + error) / greatest
            if pairs:
                low, high = round_to(low, "float8_e4m3fn"), round_to(high, "float8_e4m3fn")
            wrong = int(np.sum((scales < low) | (scales > high)))
        return f"{wrong} of {scales.size} scales are wrong" if wrong else ""


def unpack_e2m1(pairs):
    """Numbers of uint8 [.., n/2] that hold two codes each, the first in the low half."""
    return np.array(E2M1)[np.stack([pairs & 15, pairs >> 4], -1).reshape(*pairs.shape[:-1], -1)]


class View:
    """Memory as fastnorm.abi takes it: address, shape, byte strides, dtype."""

    def __init__(self, address, dtype, shape, strides, itemsize):
        self.address, self.dtype, self.shape, self.itemsize = address, dtype, tuple(shape), itemsize
        self.strides = [s * itemsize for s in strides]


class Suite(Cases):
    """Cases whose results are kept and written as they come, so that a run cut short leaves what it
    found."""

    def __init__(self, what, options):
        super().__init__()
        self.path, self.only, self.without = options.json, options.only, options.without
        self.results = {
            "suite": what,
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "versions": {},
            "tests": {},
            "costs_us": {},
        }

    def write(self):
        if self.path:
            self.results["count"] = {
                "passed": self.passed,
                "failed": self.failed,
                "skipped": self.skipped,
            }
            beside = self.path.with_suffix(".part")
            beside.write_text(json.dumps(self.results, indent=1) + "\n")
            beside.replace(self.path)

    def check(self, name, ok, detail=""):
        ok = super().check(name, ok, detail)
        self.keep(name, "passed" if ok else f"failed: {str(detail)[:2000]}")
        return ok

    def skip(self, name, why):
        super().skip(name, why)
        self.keep(name, f"skipped: {why}")

    def keep(self, name, result):
        tests, count, unique = self.results["tests"], 1, name
        while unique in tests:
            count += 1
            unique = f"{name} ({count})"
        tests[unique] = result

    def cost(self, name, microseconds):
        self.results["costs_us"][name] = round(microseconds, 3)
        print(f"  {microseconds:8.2f} us  {name}", flush=True)

    def raises(self, name, kind, text, call):
        """One case: call() raises an exception of this kind whose text has this text."""
        try:
            call()
        except Exception as error:
            return self.check(
                name,
                isinstance(error, kind) and text in str(error),
                f"{type(error).__name__}: {error}",
            )
        return self.check(name, False, "no error")

    def run(self, tests):
        """Runs functions one after the other; what one raises is one failure."""
        for test in tests:
            if self.only and not any(word in test.__name__ for word in self.only):
                continue
            if any(word in test.__name__ for word in self.without):
                continue
            start = time.monotonic()
            before = self.failed
            try:
                test(self)
            except Exception:
                self.check(test.__name__, False, traceback.format_exc())
            print(
                f"{'ok' if self.failed == before else 'FAILED':6} {time.monotonic() - start:6.1f} s  {test.__name__}",
                flush=True,
            )
            self.write()


def arguments(description):
    """The options of a suite."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--library", type=Path, help="libfastnorm.so (default: FASTNORM_LIBRARY)")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--only", nargs="+", help="tests whose name has one of these words")
    parser.add_argument("--without", nargs="+", default=[], help="leave these out")
    return parser


def use_library(options):
    if options.library:
        os.environ["FASTNORM_LIBRARY"] = str(options.library.resolve())
    return os.environ.get("FASTNORM_LIBRARY", "libfastnorm.so.1")


def run_readme(suite, folder):
    """One case for each Python example of a README: it runs."""
    examples = re.findall(r"^```python\n(.*?)^```", (folder / "README.md").read_text(), re.M | re.S)
    suite.check("README.md has an example", examples)
    for i, example in enumerate(examples):
        exec(compile(example, f"README.md, example {i}", "exec"), {})
        suite.check(f"README.md, example {i}", True)


def growth_kib(call, count):
    """By how much the process has grown after count calls, the first of them left out."""

    def resident():
        return (
            int(Path("/proc/self/statm").read_text().split()[1])
            * os.sysconf("SC_PAGE_SIZE")
            // 1024
        )

    for _ in range(count // 10):
        call()
    before = resident()
    for _ in range(count):
        call()
    return resident() - before


def best_us(call, count, after=lambda: None, repeats=5):
    """Microseconds of one call: the best mean of some series; after() runs outside of the clock."""
    best = float("inf")
    for _ in range(repeats + 1):
        start = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, time.perf_counter() - start)
        after()
    return best / count * 1e6
