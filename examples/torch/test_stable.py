#!/usr/bin/env python3
"""Tests of the operators of fastnorm.torch on libtorch's stable ABI. The last line is the count.

--stable names the built _C.so. Its operators have the bits and the errors of the Python operators,
which a program without them computes. The other tests of the operators run with them, too.
"""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import compiled_testing as shared  # noqa: E402
from compiled_testing import normal, program  # noqa: E402

API = shared.PACKAGE / "torch_stable" / "torch_api.h"


def environment():
    """Without what build() has made."""
    return {
        "FASTNORM_TORCH_COMPILED": "",
        "FASTNORM_TORCH_LIBRARY": str(STABLE),
        "FASTNORM_CACHE": str(shared.WORK / "none"),
    }


# --- the tests ---


def test_same(suite):
    """The bits and texts of both paths: half of the results are those of calls without gradients,
    the others of forward and backward, once or twice; a few want copies, and Python runs
    fused_add_rms_norm with gradients."""
    shared.compare(suite, "stable", environment(), lambda results: results)


def test_path(suite):
    """Which calls are compiled, one call of the library each, and which must not be."""
    x, r, w, b = (
        normal(shape, "float32", i) for i, shape in enumerate([(3, 64)] * 2 + [(64,)] * 2)
    )
    leaf = x.clone().requires_grad_()

    def runs(call):
        before = compiled.runs()
        call()
        return compiled.runs() - before

    once = {
        "rms_norm": lambda: ft.rms_norm(x, w),
        "rms_norm without a weight": lambda: ft.rms_norm(x),
        "y in float32": lambda: ft.rms_norm(x.bfloat16(), w, y_dtype=torch.float32),
        "layer_norm": lambda: ft.layer_norm(x, w, b),
        "add_rms_norm": lambda: ft.add_rms_norm(x, r, w),
        "fused_add_rms_norm": lambda: ft.fused_add_rms_norm(x, r.clone(), w),
        "a parameter": lambda: ft.rms_norm(x, torch.nn.Parameter(w, requires_grad=False)),
        "a negative view": lambda: ft.rms_norm(torch._neg_view(x), w),
        "in inference mode": torch.inference_mode()(lambda: ft.rms_norm(x * 2, w)),
        "without grad": torch.no_grad()(lambda: ft.rms_norm(leaf, w)),
        "a module": torch.no_grad()(lambda module=ft.RMSNorm(64, device=DEVICE): module(x)),
        "a gradient of x": lambda: ft.rms_norm(leaf, w),
        "a gradient of the weight": lambda: ft.rms_norm(x, torch.nn.Parameter(w)),
        "a gradient of a sum": lambda: ft.add_rms_norm(leaf, r, w),
        "gradients by Python": lambda: torch.autograd.grad(
            ft.rms_norm(leaf, w).sum(), leaf, create_graph=True
        ),
        "the gradient of the sum alone": lambda: ft.add_rms_norm(leaf, r, w)[1].sum().backward(),
    }
    twice = {
        "rms_norm, backward": lambda: ft.rms_norm(leaf, w).sum().backward(),
        "layer_norm, backward": lambda: ft.layer_norm(
            x, torch.nn.Parameter(w), torch.nn.Parameter(b)
        ).sum().backward(),
        "add_rms_norm, backward": lambda: torch.mul(*ft.add_rms_norm(leaf, r, w)).sum().backward(),
        "a float32 result of bfloat16": lambda: torch.square(
            ft.rms_norm(leaf.bfloat16(), w, y_dtype=torch.float32)
        ).sum().backward(),
    }
    for count, calls in ((1, once), (2, twice)):
        for name, call in calls.items():
            suite.equal(f"{name}: calls", runs(call), count)

    class Subclass(torch.Tensor):
        pass

    class Modes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            seen.append(str(function))
            return function(*arguments, **(options or {}))

    def with_mode():
        with Modes():
            ft.rms_norm(x, w)

    seen = []
    never = {
        "a gradient of a sum in place": lambda: ft.fused_add_rms_norm(leaf, r.clone(), w),
        "a gradient of columns apart": lambda: ft.rms_norm(leaf[:, ::2]),
        "vmap": lambda: torch.func.vmap(lambda x: ft.rms_norm(x))(x),
        "grad of torch.func": lambda: torch.func.grad(lambda x: ft.rms_norm(x).sum())(x),
        "a subclass": lambda: ft.rms_norm(x.as_subclass(Subclass), w),
        "a mode": with_mode,
        "columns apart": lambda: ft.rms_norm(x[:, ::2]),
        "meta": lambda: ft.rms_norm(x.to("meta")),
        "a trace": lambda: torch.jit.trace(lambda x: ft.rms_norm(x, w), (x,), check_trace=False),
        "the compiler": lambda: torch.compile(
            lambda x: ft.rms_norm(x, w), backend="eager", fullgraph=True
        )(x),
    }
    for name, call in never.items():
        suite.equal(f"{name}: calls", runs(call), 0)
    suite.check("a mode sees the operator", "fastnorm.rms_norm.default" in seen, seen)
    target = r.clone()
    version = target._version
    ft.fused_add_rms_norm(x, target, w)
    suite.equal("fused_add_rms_norm: the version", target._version, version + 1)
    with torch.inference_mode():
        suite.equal("in inference mode, in place", runs(lambda: once["fused_add_rms_norm"]()), 1)
    negative = torch._neg_view(x)
    suite.check("a negative view", torch.equal(ft.rms_norm(negative, w), ft.rms_norm(-x, w)))
    for value in range(5000):  # more options than have numbers
        y = ft.rms_norm(x, w, 1e-3 + value * 1e-7)
    suite.check(
        "ever new options",
        torch.equal(y, torch.ops.fastnorm.rms_norm(x, w, 1e-3 + 4999e-7, 0.0, "once")),
    )


def test_threads(suite):
    shared.test_threads(suite)


def test_loop(suite):
    """The CPU's contexts have PyTorch's threads and none of their own."""
    text = """
import os, torch
import fastnorm.torch as ft
from fastnorm.torch import compiled
torch.set_num_threads(4)
x = torch.randn(4096, 1024)
(x + 1).sum()
x.clone().mul_(2)
count = lambda: len(os.listdir("/proc/self/task"))
before = count()
y = ft.rms_norm(x)
torch.set_num_threads(3)
z = ft.layer_norm(x.requires_grad_())
z.sum().backward()
print(compiled.path(), max(0, count() - before), compiled.loop() != 0)
"""
    for path, more, own in (("stable", environment(), "0 True"), ("python", shared.PYTHON, "")):
        ran = program(more, "-c", text)
        found = ran.stdout.strip()
        if own:
            suite.equal(f"threads of the {path} path", found, f"{path} {own}")
        else:
            suite.check(
                f"threads of the {path} path", re.fullmatch(rf"{path} [1-9]\d* False", found), found
            )
        suite.equal(f"errors of the {path} path", ran.stderr, "")


def test_library(suite):
    """Which file is loaded, and what is said of a wrong one."""
    text = "import fastnorm.torch.compiled as c; print(c.path())"
    for name, more, printed in (
        ("the file", {}, "stable"),
        ("0", {"FASTNORM_TORCH_COMPILED": "0"}, "python"),
        ("no file", {"FASTNORM_TORCH_LIBRARY": ""}, "python"),
    ):
        ran = program({**environment(), **more}, "-c", text)
        suite.equal(f"the path with {name}", ran.stdout.strip(), printed)
    for name in ("/absent.so", os.environ["FASTNORM_LIBRARY"]):
        ran = program({**environment(), "FASTNORM_TORCH_LIBRARY": name}, "-c", text)
        wanted = f"ImportError: FASTNORM_TORCH_LIBRARY is {name!r}; required: a _C.so of fastnorm"
        suite.check(f"the error for {name}", wanted in ran.stderr, ran.stderr[-2000:])
    file = ctypes.CDLL(str(STABLE))
    file.fastnorm_torch_open.restype = ctypes.c_char_p
    lacks = file.fastnorm_torch_open(ctypes.c_void_p(ctypes.CDLL("libc.so.6")._handle))
    suite.equal("what a library without the ABI lacks", lacks, b"aoti_torch_device_type_cpu")
    x = torch.tensor([[3.0, 4.0]])
    suite.check("the operators still run", torch.allclose(ft.rms_norm(x), x / 12.5**0.5))
    needed = subprocess.run(["readelf", "-d", STABLE], capture_output=True, text=True).stdout
    suite.equal(
        "PyTorch libraries that it is linked to",
        re.findall(r"\[(lib(?:torch|c10).*)\]", needed),
        [],
    )


def test_declarations(suite):
    """The types of torch_api.h beside those of PyTorch's own header."""
    compiler, include = shutil.which("c++"), Path(torch.__file__).parent / "include"
    if not compiler:
        suite.skip("the types of torch_api.h", "there is no C++ compiler")
        return
    names = re.findall(r"^  F\(\w+, (\w+),", API.read_text(), re.M)
    suite.check("torch_api.h has functions", len(names) > 10, names)
    text = f"""
#include <torch/csrc/stable/c/shim.h>
#include <type_traits>
#include "{API}"
// Words of one size and kind; handles are pointers to other structs here and there.
template <class A, class B>
constexpr bool alike = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> &&
                       std::is_integral_v<A> == std::is_integral_v<B>;
template <class A, class B>
struct Same : std::false_type {{}};
template <class R, class... A, class S, class... B>
requires(sizeof...(A) == sizeof...(B))
struct Same<R (*)(A...), S (*)(B...)>
    : std::bool_constant<(alike<R, S> && ... && alike<A, B>)> {{}};
static_assert(!Same<int (*)(int), int (*)(int*)>::value && !Same<int (*)(), int (*)(int)>::value);
"""
    text += "".join(
        f"static_assert(Same<decltype(&{name}), decltype(fastnorm_torch::Api::{name})>::value);\n"
        for name in names
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "declarations.cpp"
        path.write_text(text)
        command = [compiler, "-std=c++20", "-fsyntax-only", "-isystem", include, path]
        ran = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    suite.check("the types of torch_api.h", ran.returncode == 0, ran.stderr[-3000:])


def test_costs(suite):
    shared.test_costs(suite)


def test_others(suite):
    shared.test_others(suite, environment(), "test_models.py")


def why_not(options):
    if options.stable is None and "FASTNORM_TORCH_LIBRARY" not in os.environ:
        return "--stable names no _C.so"
    import torch

    version = tuple(map(int, torch.__version__.split(".")[:2]))
    return None if version >= (2, 10) else f"PyTorch {torch.__version__} has no such ABI"


def main():
    global torch, ft, compiled, DEVICE, STABLE
    suite, options = shared.start(
        __doc__,
        "torch_stable",
        lambda parser: parser.add_argument("--stable", type=Path, help="the built _C.so"),
        why_not,
    )
    STABLE = (options.stable or Path(os.environ["FASTNORM_TORCH_LIBRARY"])).resolve()
    if shared.import_package(suite, options, environment()):
        return
    torch, ft, compiled, DEVICE = shared.torch, shared.ft, shared.compiled, shared.DEVICE
    tests = [test_same, test_path, test_threads, test_loop, test_library, test_declarations]
    suite.run([*tests, test_costs, test_others])
    suite.finish()


main()
