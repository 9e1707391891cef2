#!/usr/bin/env python3
"""Tests of the PyTorch operators of stages, on the CPU or a CUDA device.

Values are compared with double precision. Each element is within the unit roundoff of its dtype for
each rounding on the way, and 2^-18 for single precision. Both are shares of the element and 0.1.
Run with a Python that has PyTorch and
NumPy. The last line is the count.
"""

import os
import shutil
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.append(str(Path(__file__).resolve().parents[1]))
from norm_testing import Suite, arguments, missing, use_library  # noqa: E402

UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
EPS, BRANCH_EPS = 1e-5, 1e-3


def dtypes():
    return torch.float32, torch.float16, torch.bfloat16


def random(*shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype).to(DEVICE)


def rms(x, weight, eps):
    x = x.double()
    x = x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    return x if weight is None else x * weight.double()


def near(found, exact, dtype, roundings=1, terms=0.1):
    unit = UNIT[str(dtype).removeprefix("torch.")]
    allowed = (exact.abs() + terms) * (unit * roundings + 2.0**-18)
    return bool(((found.double() - exact).abs() <= allowed).all())


def exact_gated(x, gate, weight, act, group, before):
    functions = {
        "silu": torch.nn.functional.silu,
        "sigmoid": torch.sigmoid,
        "identity": lambda z: z,
    }
    factor = functions[act](gate.double())
    rows = x.double() * factor if before else x.double()
    y = rms(rows.unflatten(-1, (-1, group)), weight.view(-1, group), EPS).flatten(-2)
    return y if before else y * factor


def test_gated(suite):
    """Groups of a row, either position of the gate, a gate that is a column slice."""
    for dtype in dtypes():
        both = random(5, 3, 512, dtype=dtype, seed=1)
        x, gate = both[..., :256], both[..., 256:]
        for group, columns in ((256, 256), (64, 64), (64, 256), (32, 32)):
            weight = 1 + 0.2 * random(columns, dtype=dtype, seed=2)
            for act in ("silu", "sigmoid", "identity"):
                for before in (False, True):
                    y = fs.gated_norm(
                        x,
                        gate,
                        weight,
                        EPS,
                        gate_act=act,
                        gate_before=before,
                        group_size=0 if group == 256 else group,
                    )
                    exact = exact_gated(x, gate, weight, act, group, before)
                    suite.check(
                        f"gated, {dtype}, {act}, group {group}, weight of {columns}, "
                        f"{'before' if before else 'after'}",
                        y.shape == x.shape and y.dtype == dtype and near(y, exact, dtype),
                    )
        wide = fs.gated_norm(x, gate.float(), None, EPS, y_dtype=torch.float32)
        exact = exact_gated(x, gate, torch.ones(256, device=DEVICE), "silu", 256, False)
        suite.check(
            f"gated, {dtype}, gate and y of float32",
            wide.dtype == torch.float32 and near(wide, exact, torch.float32),
        )
        y = fs.gated_norm(x, gate, None, EPS, gate_act="identity", activation="silu")
        exact = torch.nn.functional.silu(
            exact_gated(x, gate, torch.ones(256, device=DEVICE), "identity", 256, False)
        )
        suite.check(f"gated, {dtype}, activation of the result", near(y, exact, dtype))


def exact_norm(x, weight, bias, kind, group):
    rows = x.unflatten(-1, (-1, group))
    if kind == "layer":
        rows = rows - rows.mean(-1, keepdim=True)
    y = rows / (rows.pow(2).mean(-1, keepdim=True) + EPS).sqrt()
    return (y * weight.view(-1, group) + bias.view(-1, group)).flatten(-2)


def test_gated_gradients(suite):
    """Gradients of x, gate, weight and bias against autograd in double precision."""
    acts = {"silu": torch.nn.functional.silu, "sigmoid": torch.sigmoid, "tanh": torch.tanh}
    for dtype in dtypes():
        # The double-precision gradients are those of the rounded inputs.
        for kind, act, before, group, columns in (
            ("rms", "silu", False, 64, 64),
            ("rms", "silu", True, 128, 128),
            ("layer", "sigmoid", False, 32, 128),
            ("layer", "tanh", True, 128, 128),
        ):
            x, gate, dy = (random(3, 5, 128, dtype=dtype, seed=s) for s in (21, 22, 23))
            weight, bias = (1 + 0.2 * random(columns, dtype=dtype, seed=s) for s in (24, 25))
            leaves = [t.clone().requires_grad_() for t in (x, gate, weight, bias)]
            y = fs.gated_norm(
                *leaves[:3], EPS, bias=leaves[3], kind=kind, gate_act=act, gate_before=before,
                group_size=group,
            )  # fmt: skip
            y.backward(dy)
            exact = [t.double().requires_grad_() for t in (x, gate, weight, bias)]
            factor = acts[act](exact[1])
            if before:
                z = exact_norm(exact[0] * factor, *exact[2:], kind, group)
            else:
                z = exact_norm(exact[0], *exact[2:], kind, group) * factor
            z.backward(dy.double())
            for name, found, wanted in zip(("dx", "dgate", "dweight", "dbias"), leaves, exact):
                suite.check(
                    f"gated gradient {name}, {dtype}, {kind}, {act}, group {group}, "
                    f"{'before' if before else 'after'}",
                    found.grad.dtype == dtype and near(found.grad, wanted.grad, dtype, 2),
                )
    x, gate = (random(4, 96, dtype=torch.bfloat16, seed=s) for s in (26, 27))
    alone = gate.clone().requires_grad_()
    fs.gated_norm(x, alone, None, EPS).float().sum().backward()
    both = [t.clone().requires_grad_() for t in (x, gate)]
    fs.gated_norm(*both, None, EPS).float().sum().backward()
    suite.check("gated gradient of the gate alone", torch.equal(alone.grad, both[1].grad))


def second_derivative(x, gate):
    leaf = x.clone().requires_grad_()
    y = fs.gated_norm(leaf, gate)
    (first,) = torch.autograd.grad(y.float().sum(), leaf, create_graph=True)
    first.float().sum().backward()


def test_sandwich(suite):
    """Against double precision, and the same bits as two calls."""
    for dtype in dtypes():
        x, residual = (random(6, 384, dtype=dtype, seed=s) for s in (3, 4))
        first, second = (1 + 0.2 * random(384, dtype=dtype, seed=s) for s in (5, 6))
        scale = torch.tensor([0.37], device=DEVICE)
        y, total = fs.sandwich_norm(
            x, residual, first, second, EPS, branch_eps=BRANCH_EPS, alpha=0.22, sum_scale=scale
        )
        exact = (0.22 * rms(x, first, BRANCH_EPS) + residual.double()) * scale.double()
        suite.check(f"sandwich, {dtype}, sum", near(total, exact, dtype))
        suite.check(f"sandwich, {dtype}, y", near(y, rms(exact, second, EPS), dtype))
        y, total = fs.sandwich_norm(
            x, residual, first, second, EPS, branch_eps=BRANCH_EPS, branch_rounded=True
        )
        branch = ft.rms_norm(x, first, BRANCH_EPS)
        wanted = ft.add_rms_norm(branch, residual, second, EPS)
        suite.check(
            f"sandwich, {dtype}, the bits of two calls",
            torch.equal(y, wanted[0]) and torch.equal(total, wanted[1]),
        )


def test_sandwich_gradients(suite):
    """Gradients of x, residual and both weights against autograd in double precision, and the bits
    of the backward of two calls."""
    for dtype in dtypes():
        scale = torch.tensor([0.37], device=DEVICE)
        for residual_dtype, alpha, sum_scale in (
            (dtype, 0.0, None),
            (torch.float32, 0.22, scale),
        ):
            x, dy = (random(6, 96, dtype=dtype, seed=s) for s in (31, 32))
            residual, dtotal = (random(6, 96, dtype=residual_dtype, seed=s) for s in (33, 34))
            weights = [1 + 0.2 * random(96, dtype=dtype, seed=s) for s in (35, 36)]
            leaves = [t.clone().requires_grad_() for t in (x, residual, *weights)]
            y, total = fs.sandwich_norm(
                *leaves, EPS, branch_eps=BRANCH_EPS, alpha=alpha, sum_scale=sum_scale
            )
            torch.autograd.backward((y, total), (dy, dtotal))
            exact = [t.double().requires_grad_() for t in (x, residual, *weights)]
            branch = rms(exact[0], exact[2], BRANCH_EPS) * (alpha or 1.0)
            wanted = branch + exact[1]
            wanted = wanted if sum_scale is None else wanted * sum_scale.double()
            torch.autograd.backward(
                (rms(wanted, exact[3], EPS), wanted), (dy.double(), dtotal.double())
            )
            names = ("dx", "dresidual", "dbranch_weight", "dweight")
            for name, found, leaf in zip(names, leaves, exact):
                # residual_out and its gradient round, too. A weight's gradient is a sum of six
                # terms, which are about 1 and may cancel.
                close = near(found.grad, leaf.grad, dtype, 4, 6.0 if "weight" in name else 1.0)
                suite.check(
                    f"sandwich gradient {name}, {dtype}, residual of {residual_dtype}",
                    found.grad.dtype == found.dtype and close,
                )
        x, residual, first, second, dy = (
            random(*shape, dtype=dtype, seed=s)
            for s, shape in enumerate([(6, 96)] * 2 + [(96,)] * 2 + [(6, 96)], 37)
        )
        one, two = (
            [t.clone().requires_grad_() for t in (x, residual, first, second)] for _ in range(2)
        )
        y, _ = fs.sandwich_norm(*one, EPS, branch_rounded=True)
        y.backward(dy)
        y, _ = ft.add_rms_norm(ft.rms_norm(two[0], two[2], EPS), two[1], two[3], EPS)
        y.backward(dy)
        suite.check(
            f"sandwich gradients, {dtype}, the bits of two calls",
            all(torch.equal(a.grad, b.grad) for a, b in zip(one, two)),
        )


def test_errors(suite):
    x, gate = (random(4, 96, dtype=torch.bfloat16, seed=s) for s in (7, 8))
    suite.raises(
        "a group that does not divide",
        RuntimeError,
        "group_size is 36 and n is 96",
        lambda: fs.gated_norm(x, gate, group_size=36),
    )
    suite.raises(
        "an activation without a name",
        ValueError,
        "gate_act is 'gelu'",
        lambda: fs.gated_norm(x, gate, gate_act="gelu"),
    )
    suite.raises(
        "a gate of another shape",
        RuntimeError,
        "gate.shape",
        lambda: fs.gated_norm(x, gate[:, :48]),
    )
    suite.raises(
        "a gradient through an activation of the result",
        RuntimeError,
        "fastnorm::gated_norm has no backward for activation 'silu'",
        lambda: fs.gated_norm(x.clone().requires_grad_(), gate, activation="silu"),
    )
    suite.raises(
        "a second derivative",
        RuntimeError,
        "has no backward",
        lambda: second_derivative(x, gate),
    )
    with torch.no_grad():
        y = fs.gated_norm(x.clone().requires_grad_(), gate)
    suite.check("under no_grad", torch.equal(y, fs.gated_norm(x, gate)))


def test_opcheck(suite):
    x, gate = (random(4, 96, dtype=torch.bfloat16, seed=s) for s in (9, 10))
    weight, scale = random(96, dtype=torch.bfloat16, seed=11), torch.ones(1, device=DEVICE)
    calls = {
        "gated_norm": (
            x, gate, weight, None, EPS, "rms", "silu", False, True, 48, "identity", 1.0,
            "once", None
        ),
        "sandwich_norm": (
            x, gate, weight, weight, scale, EPS, EPS, 1.0, 1.0, "once", "once", True, "exact", 0.0,
            "once", None,
        ),
    }  # fmt: skip
    gated = calls["gated_norm"]
    calls["gated_norm, gradients"] = tuple(
        a.clone().requires_grad_() if isinstance(a, torch.Tensor) else a
        for a in (gated[0].float(), gated[1].float(), *gated[2:5], *gated[5:8], False, *gated[9:])
    )
    calls["gated_norm"] = (*gated[:2], None, *gated[3:11], 0.0, "once", None)
    x, residual, first, second = (
        random(*shape, dtype=torch.float32, seed=s).requires_grad_()
        for s, shape in enumerate([(4, 96)] * 2 + [(96,)] * 2, 41)
    )
    calls["sandwich_norm, gradients"] = (
        x, residual, first, second, scale, EPS, EPS, 1.0, 1.0, "once", "once", False, "exact", 0.5,
        "once", None,
    )  # fmt: skip
    for name, args in calls.items():
        found = torch.library.opcheck(
            getattr(torch.ops.fastnorm, name.partition(",")[0]).default,
            args,
            raise_exception=False,
        )
        suite.check(
            f"opcheck of {name}",
            len(found) == 4 and all(v == "SUCCESS" for v in found.values()),
            found,
        )


def test_compile(suite):
    """The calls within pointwise work that the compiler fuses."""
    backends = ["aot_eager"]
    if shutil.which("g++"):
        backends.append("inductor")
    else:
        suite.skip("compile, inductor", "no C++ compiler for it")

    def block(x, gate, weight):
        y = fs.gated_norm(x * 2, gate + 1, weight, EPS)
        y, total = fs.sandwich_norm(y, x, weight, weight, EPS)
        return torch.relu(y), total - 1

    tensors = [random(8, 128, dtype=torch.bfloat16, seed=s) for s in (12, 13)]
    tensors.append(random(128, dtype=torch.bfloat16, seed=14))
    wanted = block(*tensors)
    for backend in backends:
        torch._dynamo.reset()
        found = torch.compile(block, fullgraph=True, backend=backend)(*tensors)
        suite.check(
            f"compile, {backend}", all(torch.equal(a, b) for a, b in zip(wanted, found))
        )


if __name__ == "__main__":
    parser = arguments(__doc__.splitlines()[0])
    options = parser.parse_args()
    why = missing("torch", "numpy")
    suite = Suite("torch norm_stages", options)
    if why:
        suite.skip("the PyTorch operators of stages", why)
        suite.write()
        suite.finish()
    import torch

    os.environ["FASTNORM_LIBRARY"] = use_library(options)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packages" / "python"))
    import fastnorm.torch as ft
    import fastnorm.torch.norm_stages as fs

    DEVICE = torch.device("cuda", 0) if options.device == "cuda" else torch.device("cpu")
    suite.results["versions"]["torch"] = torch.__version__
    suite.run(
        [
            test_gated,
            test_gated_gradients,
            test_sandwich,
            test_sandwich_gradients,
            test_errors,
            test_opcheck,
            test_compile,
        ]
    )
    suite.finish()
