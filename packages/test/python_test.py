#!/usr/bin/env python3
"""The wheel as a user gets it: made twice, installed into an empty environment, and the README's
programs."""

import argparse
import base64
import csv
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from clean import ROOT, Cases, run_clean

PACKAGE = ROOT / "packages" / "python"
sys.path.insert(0, str(PACKAGE))
import wheel as wheel_maker  # noqa: E402

MISSING = """
import fastnorm, numpy
try:
    fastnorm.version()
except OSError as error:
    assert "absent.so" in str(error), error
else:
    raise SystemExit("FASTNORM_LIBRARY was not used")
"""
PLACES = """
import fastnorm, fastnorm.abi, pathlib, sys
here = pathlib.Path(fastnorm.__file__).resolve()
assert here.is_relative_to(sys.prefix), here
assert fastnorm.abi.library_path() == str(here.parent / "lib" / "libfastnorm.so.0")
assert (here.parent / "py.typed").exists()
print(fastnorm.version())
"""
ERRORS = """
import numpy as np
import fastnorm
x = np.ones((2, 4), np.float32)
frozen = x.copy()
frozen.flags.writeable = False
class Foreign:
    def __dlpack_device__(self): return (10, 0)
    def __dlpack__(self): raise SystemExit("asked for memory of another device")
fields = np.zeros(3, [("v", "f4", (4,)), ("tag", "u2")])
fields["v"], fields["tag"] = np.arange(12).reshape(3, 4), 7
before, packed = fields.tobytes(), fields["v"]
for call, kind, text in (
    (lambda: fastnorm.rms_norm(x, x[0, :3]), fastnorm.FastnormError,
     "weight.shape is [3]; required: [4]"),
    (lambda: fastnorm.rms_norm(x, rounding="up"), ValueError,
     "rounding is 'up'; required: one of once"),
    (lambda: fastnorm.rms_norm([1.0]), TypeError, "out is None; required: an array to write"),
    (lambda: fastnorm.rms_norm(x, out=frozen), ValueError, "out is read-only; required"),
    (lambda: fastnorm.rms_norm([1.0], out=x), TypeError, "x is list; required: a NumPy array"),
    (lambda: fastnorm.rms_norm(Foreign(), out=x), fastnorm.FastnormError,
     "x is on a device of DLPack's type 10"),
    (lambda: fastnorm.context("tpu"), ValueError, "device is 'tpu'; required: one of cpu, cuda"),
    (lambda: fastnorm.rms_norm(packed), fastnorm.FastnormError,
     "FASTNORM_ERROR_LAYOUT: x has strides of (18, 4) bytes; required: multiples of 4"),
    (lambda: fastnorm.rms_norm(np.ones((3, 4), np.float32), out=packed), fastnorm.FastnormError,
     "FASTNORM_ERROR_LAYOUT: y has strides of (18, 4) bytes; required: multiples of 4"),
    (lambda: fastnorm.rms_norm(x, x[0].astype(np.float64)), fastnorm.FastnormError,
     "FASTNORM_ERROR_DTYPE: weight.dtype is float64; required: one of float32, float16, int8,"),
    (lambda: fastnorm.rms_norm(x.astype(">f4")), fastnorm.FastnormError,
     "FASTNORM_ERROR_DTYPE: x.dtype is >f4; required: one of float32"),
    (lambda: fastnorm.rms_norm(x, [1.0]), TypeError,
     "weight is list; required: a NumPy array or one with __dlpack__"),
    (lambda: fastnorm.rms_norm(x, Foreign()), fastnorm.FastnormError,
     "weight is on a device of DLPack's type 10; required: 1"),
):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise SystemExit("no error: " + text)
assert fields.tobytes() == before, "a refused call has written"
print("errors")
"""
LAYOUTS = """
import numpy as np
import fastnorm
rows = np.arange(12, dtype=np.float32).reshape(3, 4)
wanted = fastnorm.rms_norm(rows)
def record(name, dtype, extent, size):
    return np.zeros(size, [(name, dtype, (extent,)), ("tag", "u2")])[name]
one = record("v", "f4", 4, 1)  # its stride of 18 bytes is never taken
one[:] = rows[0]
assert (fastnorm.rms_norm(one) == wanted[:1]).all()
assert fastnorm.rms_norm(record("v", "f4", 4, 0)).shape == (0, 4)
wide = np.zeros(3, [("v", "f4", (4,)), ("tag", "u4")])  # strides of whole elements
fastnorm.rms_norm(rows, out=wide["v"])
assert (wide["v"] == wanted).all() and (wide["tag"] == 0).all()
print("layouts")
"""
DEVICES = """
from types import SimpleNamespace
import numpy as np
from fastnorm import abi
x = np.ones((2, 64), np.float32)
device = SimpleNamespace(
    address=1 << 20, shape=x.shape, strides=x.strides, itemsize=4, dtype=x.dtype
)
context = abi.Context(abi.Library(abi.library_path()), abi.CUDA, dry_run_capability=90)
assert context.call(x=device, y=device).query().launches == 1
for name in ("x", "weight", "y"):
    fields = {"x": device, "y": device, name: x[0] if name == "weight" else x}
    try:
        context.call(**fields).query()
    except abi.FastnormError as error:
        text = f"{name} is on device CPU:0 (device_type 1); required: the context's device, CUDA:0"
        assert text in str(error), error
    else:
        raise SystemExit(f"{name} in host memory is taken for a GPU's")
print("devices")
"""


def check_archive(cases, wheel):
    """RECORD has every file with its hash; the tag is that of the name."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = next(n for n in names if n.endswith(".dist-info/RECORD")).removesuffix("RECORD")
        rows = list(csv.reader(archive.read(info + "RECORD").decode().splitlines()))
        cases.equal("RECORD has every file", sorted(r[0] for r in rows), sorted(names))
        wrong = []
        for name, digest, size in rows:
            data = archive.read(name)
            found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            if digest and (digest, int(size)) != (f"sha256={found}", len(data)):
                wrong.append(name)
        cases.equal("files with another hash than RECORD's", wrong, [])
        tag = re.search(r"^Tag: (.*)$", archive.read(info + "WHEEL").decode(), re.M)[1]
        cases.check("the tag of WHEEL is that of the file's name", wheel.stem.endswith(tag), tag)
        modules = {str(p.relative_to(PACKAGE)) for p in (PACKAGE / "fastnorm").rglob("*.py")}
        cases.equal("modules that are left out", sorted(modules - set(names)), [])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, required=True, help="libfastnorm.so.0")
    parser.add_argument("--wheel", type=Path, help="a wheel that was made of it")
    parser.add_argument("--program", type=Path, help="not used")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is made")
    options = parser.parse_args()
    cases, work = Cases(), options.work.resolve()
    wheel = wheel_maker.make(options.library, work / "first")
    again = wheel_maker.make(options.library, work / "second")
    cases.check("two runs make the same bytes", wheel.read_bytes() == again.read_bytes())
    if options.wheel:
        cases.check(
            "the released wheel has these bytes", options.wheel.read_bytes() == wheel.read_bytes()
        )
    check_archive(cases, wheel)

    venv = work / "venv"
    python = venv / "bin" / "python"
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run_clean(cases, "an empty environment", [sys.executable, "-m", "venv", "--clear", venv], work)
    run_clean(
        cases,
        "its requirements",
        [*pip, "install", "--no-deps", "-r", ROOT / "packages" / "test" / "requirements.txt"],
        work,
    )
    run_clean(cases, "pip install", [*pip, "install", wheel], work)
    run_clean(cases, "pip check", [*pip, "check"], work)
    cases.equal(
        "the package is that of the environment",
        run_clean(cases, "places", [python, "-c", PLACES], work),
        wheel_maker.project_version() + "\n",
    )
    cases.equal(
        "errors name argument, value and requirement",
        run_clean(cases, "errors", [python, "-c", ERRORS], work),
        "errors\n",
    )
    for name, program in (("layouts", LAYOUTS), ("devices", DEVICES)):
        cases.equal(
            f"{name} of NumPy arrays",
            run_clean(cases, name, [python, "-c", program], work),
            name + "\n",
        )
    run_clean(
        cases,
        "another library by its name",
        [python, "-c", MISSING],
        work,
        FASTNORM_LIBRARY="/absent.so",
    )
    for page in (PACKAGE / "README.md", ROOT / "README.md"):
        text = page.read_text()
        programs = re.findall(
            r"^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", text, re.M | re.S
        )
        cases.check(f"{page.relative_to(ROOT)} has a program", programs)
        for i, (program, printed) in enumerate(programs):
            found = run_clean(
                cases, f"program {i} of {page.relative_to(ROOT)}", [python, "-c", program], work
            )
            cases.equal(f"what program {i} of {page.relative_to(ROOT)} prints", found, printed)
    run_clean(cases, "pip uninstall", [*pip, "uninstall", "--yes", "fastnorm"], work)
    left = [str(p) for p in venv.rglob("*fastnorm*")]
    cases.equal("what is left after that", left, [])
    cases.finish()


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    main()
