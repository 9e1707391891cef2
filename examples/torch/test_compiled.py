#!/usr/bin/env python3
"""Tests of the operators of fastnorm.torch that are compiled for one version of PyTorch. The last
line is the count.

The operators are built into a folder of their own, or that of --cache. They have the bits and the
errors of the Python operators, which a program without them computes. The other tests of the
operators run with them, too. Run with a Python that has PyTorch and a C++ compiler.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import compiled_testing as shared  # noqa: E402
from compiled_testing import normal, program  # noqa: E402


def environment():
    return {"FASTNORM_TORCH_COMPILED": "1", "FASTNORM_CACHE": str(CACHE)}


# --- the tests ---


def test_same(suite):
    """The bits and texts of both paths."""
    shared.compare(suite, "compiled", environment(), lambda results: results)


def test_path(suite):
    """Which calls are compiled, one call of the library each."""
    x, r = (normal((3, 64), "float32", seed).requires_grad_() for seed in (1, 2))
    w, b = (normal((64,), "float32", seed).requires_grad_() for seed in (3, 4))
    functions = {
        "rms_norm": lambda: ft.rms_norm(x, w),
        "layer_norm": lambda: ft.layer_norm(x, w, b),
        "add_rms_norm": lambda: ft.add_rms_norm(x, r, w)[0],
        "RMSNorm": lambda module=ft.RMSNorm(64, device=DEVICE): module(x),
    }
    for name, function in functions.items():
        before = compiled.runs()
        with torch.no_grad():
            function()
        suite.equal(f"{name}: forward", compiled.runs() - before, 1)
        before = compiled.runs()
        y = function()
        suite.equal(f"{name}: forward with a gradient", compiled.runs() - before, 1)
        before = compiled.runs()
        y.sum().backward(torch.ones((), device=DEVICE), retain_graph=True)
        y.backward(torch.ones_like(y))
        suite.equal(f"{name}: backward", compiled.runs() - before, 2)
    with torch.no_grad():
        before, version = compiled.runs(), (target := r.clone())._version
        ft.fused_add_rms_norm(x, target, w)
        suite.equal("fused_add_rms_norm: forward", compiled.runs() - before, 1)
        suite.equal("fused_add_rms_norm: the version", target._version, version + 1)
    with torch.inference_mode():
        ft.fused_add_rms_norm(x, target.clone(), w)
        suite.equal("in inference mode", compiled.runs() - before, 2)
    before = compiled.runs()
    torch.func.vmap(lambda x: ft.rms_norm(x))(x.detach())
    torch.func.grad(lambda x: ft.rms_norm(x).sum())(x.detach())
    ft.rms_norm(x.detach()[:, ::2])
    suite.check("transforms and copies work", True)


def test_threads(suite):
    shared.test_threads(suite)


def test_build(suite):
    """Errors of building."""
    text = "import fastnorm.torch"
    ran = program({"FASTNORM_TORCH_COMPILED": "yes"}, "-c", text)
    suite.check("another value", "FASTNORM_TORCH_COMPILED is 'yes'; required: 1, 0" in ran.stderr)
    env = {**os.environ, "FASTNORM_CACHE": str(CACHE / "other"), "CXX": "false"}
    env["FASTNORM_TORCH_COMPILED"] = "1"
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=env)
    suite.check("a compiler that fails", "RuntimeError: false fails on" in ran.stderr, ran.stderr)
    suite.equal("it leaves nothing", list((CACHE / "other").iterdir()), [])


def test_costs(suite):
    shared.test_costs(suite)


def test_others(suite):
    shared.test_others(suite, environment())


def main():
    global torch, ft, compiled, DEVICE, CACHE
    suite, options = shared.start(
        __doc__,
        "torch_compiled",
        lambda parser: parser.add_argument("--cache", type=Path, help="folder of the built file"),
        lambda _: None if shutil.which("c++") else "there is no C++ compiler",
    )
    CACHE = options.cache or shared.WORK
    if shared.import_package(suite, options, environment()):
        return
    torch, ft, compiled, DEVICE = shared.torch, shared.ft, shared.compiled, shared.DEVICE
    suite.run([test_same, test_path, test_threads, test_build, test_costs, test_others])
    suite.finish()


main()
