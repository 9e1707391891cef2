#!/usr/bin/env python3
"""The texts of docs/troubleshooting.md are those that the library, its bindings and the loader
give: each error is made and its text compared, or looked up in the source that prints it.

    troubleshooting_test.py --library FILE"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "abi"))
from cases import Cases  # noqa: E402

PYTHON = ROOT / ".venv" / "bin" / "python"  # has NumPy
PAGE = ROOT / "docs" / "troubleshooting.md"
HEAD = "import ctypes, numpy as np, fastnorm\nfrom fastnorm import abi as c\n"
LIBRARY = HEAD + "l = c.Library(c.library_path())\n"
CALL = """
rows, n = {shape}
x = np.ones((rows, n), np.float32)
t = c.tensor(x.ctypes.data, c.CPU, 0, c.F32, x.shape, [n, 1])
def norm(args, handle):
    args.x = args.y = ctypes.pointer(t)
    p = ctypes.cast(ctypes.byref(args), ctypes.POINTER(c.NormArgs))
    l.check(l.c.fastnorm_norm(handle, p, None, 0, None))
"""
NEWER = LIBRARY + CALL.format(shape="1, 8") + """
class Newer(c.NormArgs):
    _fields_ = [("field", ctypes.c_uint64)]
context = c.Context(l)
norm(Newer(struct_size=ctypes.sizeof(Newer), field=1), context.handle)
"""
LOOP = LIBRARY + CALL.format(shape="4096, 1024") + """
from ctypes import c_void_p, c_int64
loop = ctypes.CFUNCTYPE(None, c_void_p, c_int64, c_int64, c_void_p, c_void_p)(lambda *a: None)
options = c.ContextOptions(struct_size=ctypes.sizeof(c.ContextOptions))
options.parallel_for = ctypes.cast(loop, c_void_p)
handle = c_void_p()
device = c.Device(c.CPU, 0)
l.check(l.c.fastnorm_context_create(device, ctypes.byref(options), ctypes.byref(handle)))
norm(c.NormArgs(struct_size=ctypes.sizeof(c.NormArgs)), handle)
"""
# The beginning of a text, and the Python program that ends with it.
PROGRAMS = {
    "OSError: libfastnorm.so.1": HEAD + "c.Library('libfastnorm.so.1')",
    "OSError: /opt/x": "import os\nos.environ['FASTNORM_LIBRARY'] = '/opt/x/libfastnorm.so.1'\n"
    + HEAD + "fastnorm.version()",
    "FASTNORM_ERROR_UNSUPPORTED: args.struct_size": NEWER,
    "ValueError: number": HEAD + "fastnorm.set_num_threads(0)",
    "FASTNORM_ERROR_ARGUMENT: options.num_threads": LIBRARY + "c.Context(l, num_threads=2000)",
    "FASTNORM_ERROR_ARGUMENT: options.parallel_for": LOOP,
}
NO_CUDA = "FASTNORM_ERROR_DEVICE: this build"  # of a build without CUDA alone
CUDA = LIBRARY + "c.Context(l, c.CUDA, 0)"
# The beginning of a text, and the file that prints it: a machine has no such GPU or binding.
SOURCES = {
    "ImportError: fastnorm.jax": "packages/python/fastnorm/jax/__init__.py",
    "ImportError: fastnorm.onnxruntime": "packages/python/fastnorm/onnxruntime/__init__.py",
    "FASTNORM_DIR is": "bindings/rust/fastnorm-sys/build.rs",
    "device.device_id is": "src/cuda/device.cpp",
    "this build has no kernels": "src/cuda/device.cpp",
}
TOOLS = {
    "error while loading shared libraries": "program",
    "Package fastnorm": "pkg-config",
    "cannot find -lfastnorm": "linker",
}


def squeezed(text):
    """Without blanks, quotes and what a value takes the place of."""
    text = re.sub(r"%\w|\{[\w.]*\}", "", text)
    return re.sub(r"[\s\"'\\]|\bf(?=\")", "", text)


def without_sizes(text):
    """Without the sizes of structs, which grow."""
    return re.sub(r"\b(struct_size is|byte|knows) \d+", r"\1 N", text)


def python(program, environment=None):
    result = subprocess.run(
        [PYTHON if PYTHON.exists() else sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "packages" / "python"), **(environment or {})},
    )
    return result.stderr


def check_source(cases, text, path):
    """All words of a text, values left out, stand in a string of a file."""
    source = squeezed((ROOT / path).read_text())
    for piece in re.split(r"\b\d[\d.]*\b|/opt/x|(?=no CUDA driver)|(?<=was found)", text):
        piece = squeezed(piece)
        if len(piece) > 6:
            cases.check(f"{path} prints {piece[:60]}", piece in source)


def check_tools(cases, texts, library, work):
    """What the linker, the loader and pkg-config say."""
    environment = {k: v for k, v in os.environ.items() if not k.endswith(("_PATH", "_DIR"))}
    environment |= {"LC_ALL": "C", "PKG_CONFIG_LIBDIR": str(work)}
    (work / "program.c").write_text(
        "int fastnorm_version(void);\nint main(void) { return fastnorm_version() == 0; }\n"
    )
    (work / "libfastnorm.so").symlink_to(library)

    def said(*command):
        result = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, env=environment
        )
        cases.check(f"{Path(command[0]).name} fails", result.returncode != 0)
        return result.stdout + result.stderr

    compiled = ["cc", work / "program.c", "-o", work / "program"]
    found = {"linker": said(*compiled, "-lfastnorm")}
    subprocess.run(
        [str(part) for part in (*compiled, f"-L{work}", "-lfastnorm")], check=True, env=environment
    )
    found["program"] = said(work / "program")
    found["pkg-config"] = said("pkg-config", "--cflags", "fastnorm")
    for start, tool in TOOLS.items():
        text = next((t for t in texts if t.startswith(start)), None)
        cases.check(f"{tool}: {start}", text and text in found[tool], found[tool])


def check_openmp(cases, page, work):
    """The loop of the page compiles."""
    loop = re.search(r"^```c\n(.*?)^```", page, re.M | re.S)
    (work / "loop.c").write_text(loop[1] if loop else "no loop")
    flags = ["-fopenmp", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]
    result = subprocess.run(
        ["cc", *flags, f"-I{ROOT / 'include'}", "-c", work / "loop.c", "-o", work / "loop.o"],
        capture_output=True,
        text=True,
    )
    cases.check("the OpenMP loop compiles", result.returncode == 0, result.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, required=True, help="libfastnorm.so.1")
    library = parser.parse_args().library.resolve()
    cases, page = Cases(), PAGE.read_text()
    texts = [text.strip() for text in re.findall(r"^```text\n(.*?)^```", page, re.M | re.S)]
    loaded = {"FASTNORM_LIBRARY": str(library)}
    known = [*PROGRAMS, *SOURCES, *TOOLS, NO_CUDA]
    for text in texts:
        starts = [start for start in known if text.startswith(start)]
        cases.check(f"{text[:60]}: is made by this test", len(starts) == 1, starts)
    for start, program in PROGRAMS.items():
        said = python(program, loaded)
        text = next((t for t in texts if t.startswith(start)), None)
        # Where the loader has the library by its name, the first program does not fail.
        if start == "OSError: libfastnorm.so.1" and not said:
            cases.skip(start, "the library is installed")
            continue
        same = text and without_sizes(text) in without_sizes(said)
        cases.check(f"{start}: the library says this", same, said[-800:])
    build = python(HEAD + "raise SystemExit(fastnorm.build_info())", loaded)
    if "cuda: off" in build:
        text = next((t for t in texts if t.startswith(NO_CUDA)), None)
        said = python(CUDA, loaded)
        cases.check("without CUDA the library says this", text and text in said, said[-800:])
    else:
        cases.skip(NO_CUDA, "this build has CUDA")
    for start, path in SOURCES.items():
        text = next((t for t in texts if t.startswith(start)), None)
        if cases.check(f"{start}: is on the page", text):
            check_source(cases, text.removeprefix("ImportError: "), path)
    with tempfile.TemporaryDirectory() as folder:
        check_tools(cases, texts, library, Path(folder))
        check_openmp(cases, page, Path(folder))
    cases.finish()


main()
