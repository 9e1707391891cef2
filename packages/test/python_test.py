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

from clean import ROOT, Cases, readme_program, run_clean

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
assert fastnorm.abi.library_path() == str(here.parent / "lib" / "libfastnorm.so.1")
assert (here.parent / "py.typed").exists()
assert fastnorm.__version__ == fastnorm.version(), fastnorm.__version__
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
     "FASTNORM_ERROR_DTYPE: weight.dtype is f64; required: f32, f16 or bf16"),
    (lambda: fastnorm.rms_norm(x.astype(np.float64)), fastnorm.FastnormError,
     "FASTNORM_ERROR_DTYPE: x.dtype is f64; required: f32, f16 or bf16"),
    (lambda: fastnorm.rms_norm(x.astype(np.int16)), fastnorm.FastnormError,
     "FASTNORM_ERROR_DTYPE: x.dtype is i16; required: f32, f16 or bf16"),
    (lambda: fastnorm.rms_norm(x.astype(bool)), fastnorm.FastnormError,
     "FASTNORM_ERROR_DTYPE: x.dtype is bool; required: f32, f16 or bf16"),
    (lambda: fastnorm.rms_norm(x.astype(">f4")), fastnorm.FastnormError,
     "FASTNORM_ERROR_DTYPE: x.dtype is >f4; required: a number's, in the order of bytes"),
    (lambda: fastnorm.rms_norm(x.astype(object)), fastnorm.FastnormError,
     "FASTNORM_ERROR_DTYPE: x.dtype is object; required: a number's"),
    (lambda: fastnorm.set_num_threads(0), ValueError,
     "number is 0; required: an integer from 1 to 1024"),
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
DLPACK = """
import numpy as np
import fastnorm
from fastnorm import abi

class Exporter:
    # A tensor of another framework that has DLPack as of a version, or of none.
    def __init__(self, array, version=(1, 0), copies=False):
        self.array, self.version, self.copies = array, version, copies
    def __dlpack_device__(self):
        return self.array.__dlpack_device__()
    def __dlpack__(self, **options):
        if self.version is None:
            if "max_version" in options:
                raise TypeError("unexpected keyword argument 'max_version'")
            return self.array.__dlpack__(**options)
        options["max_version"] = self.version
        return self.array.__dlpack__(copy=True if self.copies else None, **options)

rows = np.arange(12, dtype=np.float32).reshape(3, 4)
wanted, y = fastnorm.rms_norm(rows), np.empty_like(rows)
frozen = rows.copy()
frozen.flags.writeable = False
for x in (Exporter(rows), Exporter(rows, None), Exporter(frozen), Exporter(rows, copies=True)):
    for out in (Exporter(y), Exporter(y, None)):
        y[:] = 0
        fastnorm.rms_norm(x, out=out)
        assert (y == wanted).all()
weight = Exporter(frozen[0])
fastnorm.rms_norm(rows, weight, out=y)
assert (y == fastnorm.rms_norm(rows, rows[0])).all()

class Later(Exporter):
    def __dlpack__(self, **options):
        capsule = super().__dlpack__(**options)
        place = abi.Exported._pointer(capsule, b"dltensor_versioned")
        abi._ManagedVersioned.from_address(place).major = 2
        return capsule

class Odd(Exporter):
    def __dlpack__(self, **options):
        from ctypes import c_char_p, c_void_p, py_object, pythonapi
        make = pythonapi.PyCapsule_New
        make.restype, make.argtypes = py_object, [c_void_p, c_char_p, c_void_p]
        return make(self.array.ctypes.data, NAME, None)

NAME = b"tensor"
context = fastnorm.context()
for call, text in (
    (lambda: fastnorm.rms_norm(rows, out=Exporter(frozen)), "y is read-only; required: an array"),
    (lambda: fastnorm.rms_norm(rows, out=Exporter(y, copies=True)), "y is given as a copy"),
    (lambda: context.call(x=rows, y=frozen), "y is read-only; required: an array"),
    (lambda: context.call(x=rows, y=y, rstd=Exporter(frozen[:, :1])), "rstd is read-only"),
    (lambda: context.norm_backward(dy=rows, x=rows, dx=frozen), "dx is read-only"),
    (lambda: context.norm_heads([{"x": rows[None], "y": frozen[None]}]), "y is read-only"),
    (lambda: context.call(x=rows, y=y, quant_scheme=2, scale=frozen), "scale is read-only"),
    (lambda: fastnorm.rms_norm(Later(rows), out=y), "x.__dlpack__() gives DLPack 2.0; required: 1"),
    (lambda: fastnorm.rms_norm(Odd(rows), out=y), "a capsule named 'tensor'; required: 'dltensor'"),
):
    y[:] = 7
    try:
        call()
    except (abi.FastnormError, ValueError) as error:
        assert text in str(error), error
    else:
        raise SystemExit("no error: " + text)
    assert (y == 7).all() and (frozen == rows).all(), text
context.call(x=rows, y=y, quant_scheme=abi.PER_TENSOR, scale=frozen[0, :1])  # it is read
context.norm_backward(dy=rows, x=rows, dx=y, rstd=frozen[:, :1])
print("dlpack")
"""
THREADS = """
import gc
import os
import threading
import weakref
import numpy as np
import fastnorm

rows = np.random.default_rng(1).standard_normal((64, 4096), np.float32)
def threads():
    return len(os.listdir("/proc/self/task"))
assert fastnorm.get_num_threads() == 1
wanted, alone = fastnorm.rms_norm(rows), threads()
held = fastnorm.context()
contexts = [weakref.ref(held)]
for number in (3, 1, 2, 3):
    fastnorm.set_num_threads(number)
    assert fastnorm.get_num_threads() == number
    assert (fastnorm.rms_norm(rows) == wanted).all()
    assert threads() == alone + number - 1, (number, threads())
    contexts.append(weakref.ref(fastnorm.context()))
y = np.empty_like(rows)
held.call(x=rows, y=y, eps=1e-6).run()  # a context that was replaced stays for who has it
assert (y == wanted).all()
del held
gc.collect()
assert [c() is not None for c in contexts] == [False] * 4 + [True]
wrong, stop = [], threading.Event()
def work():
    while not stop.is_set():
        if not (fastnorm.rms_norm(rows) == wanted).all():
            wrong.append(1)
worker = threading.Thread(target=work)
worker.start()
for number in range(60):
    fastnorm.set_num_threads(1 + number % 3)
    fastnorm.rms_norm(rows[:2])
stop.set()
worker.join()
assert not wrong
print("threads")
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


# rms([3, 4]) = sqrt(12.5) and rms([1, 0]) = sqrt(0.5). The loss is the sum of y's first column: d x
# of a row is (1 - x0 x0 / (2 rms^2), -x0 x1 / (2 rms^2)) / rms, and d weight is the column without
# the weight.
JAX = """
import jax, jax.numpy as jnp, numpy as np, pathlib
import fastnorm.jax as fn
assert pathlib.Path(fn._library._name).parent == pathlib.Path(fn.__file__).parents[1] / "lib"
x, weight = jnp.array([[3.0, 4.0], [1.0, 0.0]]), jnp.array([1.0, 2.0])
y = jax.jit(lambda x, w: fn.rms_norm(x, w, eps=0.0))(x, weight)
np.testing.assert_allclose(y, [[0.848528, 2.262742], [1.414214, 0]], atol=2e-6)
loss = lambda x, w: fn.rms_norm(x, w, eps=0.0)[:, 0].sum()
dx, dweight = jax.jit(jax.grad(loss, (0, 1)))(x, weight)
np.testing.assert_allclose(dx, [[0.181019, -0.135765], [0, 0]], atol=2e-6)
np.testing.assert_allclose(dweight, [2.262742, 0], atol=2e-6)
print("jax")
"""
NO_PLUGIN = """
try:
    import fastnorm.jax
except ImportError as error:
    for part in ("libfastnorm_xla.so", "Released wheels for Linux", "pip install --no-build-isol"):
        assert part in str(error), error
else:
    raise SystemExit("fastnorm.jax loads without its plugin")
import fastnorm
print(fastnorm.rms_norm(__import__("numpy").ones((1, 2), "f4")).shape)
"""
NAMED_PLUGIN = """
try:
    import fastnorm.jax
except ImportError as error:
    text = "FASTNORM_XLA_LIBRARY is '/absent.so'; required: a libfastnorm_xla.so that loads"
    assert text in str(error), error
else:
    raise SystemExit("FASTNORM_XLA_LIBRARY was not used")
print("named")
"""


def check_jax(cases, wheel, without, work):
    """The wheel with the plugin, and one without it, where there is JAX of PyPI."""
    folder = work / "jax"
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wanted = ROOT / "examples" / "jax" / "requirements.txt"
    run_clean(cases, "JAX: a venv", [sys.executable, "-m", "venv", "--clear", folder], work)
    run_clean(cases, "JAX", [*pip, "install", "--no-deps", "-r", wanted], work)
    for name, file, program, printed, env in (
        ("the wheel", wheel, JAX, "jax\n", {}),
        ("a plugin that is not there", wheel, NAMED_PLUGIN, "named\n", {
            "FASTNORM_XLA_LIBRARY": "/absent.so"
        }),
        ("a wheel without the plugin", without, NO_PLUGIN, "(1, 2)\n", {}),
    ):
        run_clean(
            cases, f"JAX: pip install, {name}", [*pip, "install", "--force-reinstall", "--no-deps",
                                                 file], work
        )
        found = run_clean(cases, f"JAX: {name}", [python, "-c", program], work, **env)
        cases.equal(f"JAX: {name} prints", found, printed)


NO_OPERATORS = """
import onnxruntime
import fastnorm.onnxruntime as fn
try:
    fn.register(onnxruntime.SessionOptions())
except ImportError as error:
    for part in ("libfastnorm_onnxruntime.so", "required: a package that has it"):
        assert part in str(error), error
else:
    raise SystemExit("fastnorm.onnxruntime registers operators that are not there")
print("no operators")
"""
NAMED_OPERATORS = """
import onnxruntime
import fastnorm.onnxruntime as fn
try:
    fn.register(onnxruntime.SessionOptions())
except ImportError as error:
    assert "'/absent.so' does not load" in str(error), error
else:
    raise SystemExit("FASTNORM_ONNXRUNTIME_LIBRARY was not used")
print("named")
"""


def check_onnxruntime(cases, wheel, without, work):
    """Installs the wheel beside ONNX Runtime of PyPI and runs the program of its operators' page."""
    folder, page = work / "onnxruntime", ROOT / "integrations" / "onnxruntime" / "README.md"
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run_clean(cases, "ONNX Runtime: a venv", [sys.executable, "-m", "venv", "--clear", folder],
              work)
    wanted = page.with_name("requirements.txt")
    run_clean(cases, "ONNX Runtime", [*pip, "install", "--no-deps", "-r", wanted], work)
    program, printed = readme_program(page, "python")
    absent = {"FASTNORM_ONNXRUNTIME_LIBRARY": "/absent.so"}
    for name, file, text, result, env in (
        ("the wheel", wheel, program, printed, {}),
        ("operators that are not there", wheel, NAMED_OPERATORS, "named\n", absent),
        ("a wheel without the operators", without, NO_OPERATORS, "no operators\n", {}),
    ):
        run_clean(
            cases,
            f"ONNX Runtime: pip install, {name}",
            [*pip, "install", "--force-reinstall", "--no-deps", file],
            work,
        )
        found = run_clean(cases, f"ONNX Runtime: {name}", [python, "-c", text], work, **env)
        cases.equal(f"ONNX Runtime: {name} prints", found, result)


TORCH = """
import torch
import fastnorm.torch as fn
from fastnorm.torch import compiled
x, weight = torch.tensor([[3.0, 4.0], [0.0, 5.0]]), torch.tensor([1.0, 2.0])
y = fn.rms_norm(x, weight, eps=0.0)
torch.testing.assert_close(y, torch.tensor([[0.848528, 2.262742], [0.0, 2.828427]]))
print(compiled.path(), compiled.runs())
"""
NAMED_TORCH = """
try:
    import fastnorm.torch
except ImportError as error:
    assert "FASTNORM_TORCH_LIBRARY is '/absent.so'; required: a _C.so" in str(error), error
else:
    raise SystemExit("FASTNORM_TORCH_LIBRARY was not used")
print("named")
"""
ABOUT_TORCH = """
import pathlib, torch
major, minor = map(int, torch.__version__.split(".")[:2])
print(pathlib.Path(torch.__file__).parents[1])
print("stable 1" if (major, minor) >= (2, 10) else "python 0")
"""


def torch_python():
    """A Python with PyTorch, as tools/testing has it."""
    named = os.environ.get("FASTNORM_TORCH_PYTHON")
    return named or os.path.join(sys.base_prefix, "bin", "python3")


def check_torch(cases, wheel, without, work):
    """Tests the wheel in the PyTorch that is there, which is too large to be installed here."""
    there = torch_python()
    about = subprocess.run([there, "-c", ABOUT_TORCH], capture_output=True, text=True)
    if about.returncode != 0:
        cases.skip("the wheel in PyTorch", f"no PyTorch in {there}")
        return
    folder, (site, path) = work / "torch", about.stdout.splitlines()
    python = folder / "bin" / "python"
    run_clean(cases, "PyTorch: a venv", [there, "-m", "venv", "--clear", folder], work)
    own = run_clean(
        cases, "PyTorch: its folder", [python, "-c", "import site; print(*site.getsitepackages())"],
        work,
    )
    Path(own.split()[0], "torch.pth").write_text(f"{site}\n")
    nothing = {"FASTNORM_CACHE": str(work / "nothing")}
    for name, file, text, printed, env in (
        ("the wheel", wheel, TORCH, f"{path}\n", nothing),
        ("the wheel, by Python", wheel, TORCH, "python 0\n", {"FASTNORM_TORCH_COMPILED": "0"}),
        ("a file that is not there", wheel, NAMED_TORCH, "named\n", {
            "FASTNORM_TORCH_LIBRARY": "/absent.so"
        }),
        ("a wheel without the file", without, TORCH, "python 0\n", nothing),
    ):
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        run_clean(
            cases, f"PyTorch: pip install, {name}", [*pip, "--force-reinstall", "--no-deps", file],
            work,
        )
        found = run_clean(cases, f"PyTorch: {name}", [python, "-c", text], work, **env)
        cases.equal(f"PyTorch: {name} prints", found, printed)


def check_plugins(cases, options, wheel, work):
    """Each plugin in a program of its engine."""
    without = wheel_maker.make(options.library, work / "without")
    given = {path.name for path in options.plugin}
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    checks = (check_jax, check_onnxruntime, check_torch)
    for (name, place), check in zip(wheel_maker.PLUGINS.items(), checks, strict=True):
        if name not in given:
            cases.skip(f"the wheel with {name}", "no --plugin names it")
            continue
        cases.check(f"the wheel has {name}", f"fastnorm/{place}/{name}" in names)
        check(cases, wheel, without, work)
    for paths, message in (
        ([Path("libother.so")], "libother.so is no plugin; required: one of libfastnorm_xla.so, "
         "libfastnorm_onnxruntime.so, _C.so"),
        ([Path("a/libfastnorm_xla.so"), Path("b/libfastnorm_xla.so")],
         "libfastnorm_xla.so is named twice; required: each plugin once"),
    ):
        said = ""
        try:
            wheel_maker.make(options.library, work / "refused", paths)
        except SystemExit as error:
            said = str(error)
        cases.equal("what wheel.py refuses", said, message)


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
        cases.equal(
            "its entry points",
            archive.read(info + "entry_points.txt").decode().split(),
            "[vllm.general_plugins] fastnorm = fastnorm.engines:vllm_plugin "
            "[sglang.srt.plugins] fastnorm = fastnorm.engines:sglang_plugin".split(),
        )
        modules = {
            str(p.relative_to(PACKAGE))
            for p in (PACKAGE / "fastnorm").rglob("*")
            if p.suffix in (".py", ".cpp", ".h")
        }
        cases.equal("modules that are left out", sorted(modules - set(names)), [])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, required=True, help="libfastnorm.so.1")
    parser.add_argument(
        "--plugin",
        type=Path,
        action="append",
        default=[],
        help="libfastnorm_xla.so, libfastnorm_onnxruntime.so or _C.so",
    )
    parser.add_argument("--wheel", type=Path, help="a wheel that was made of them")
    parser.add_argument("--program", type=Path, help="not used")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is made")
    options = parser.parse_args()
    cases, work = Cases(), options.work.resolve()
    wheel = wheel_maker.make(options.library, work / "first", options.plugin)
    again = wheel_maker.make(options.library, work / "second", options.plugin)
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
    programs = (
        ("layouts", LAYOUTS),
        ("dlpack", DLPACK),
        ("threads", THREADS),
        ("devices", DEVICES),
    )
    for name, program in programs:
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
    check_plugins(cases, options, wheel, work)
    run_clean(cases, "pip uninstall", [*pip, "uninstall", "--yes", "fastnorm"], work)
    left = [str(p) for p in venv.rglob("*fastnorm*")]
    cases.equal("what is left after that", left, [])
    cases.finish()


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    main()
