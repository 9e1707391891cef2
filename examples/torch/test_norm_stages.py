#!/usr/bin/env python3
"""Tests of the PyTorch operators of stages, on the CPU or a CUDA device.

Values are compared with double precision. Each element is within the unit roundoff of its dtype for
each rounding on the way, and 2^-18 for single precision. Both are shares of the element and 0.1.
Run with a Python that has PyTorch and
NumPy. The last line is the count.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.append(str(Path(__file__).resolve().parents[1]))
from norm_testing import Suite, View, arguments, missing, use_library  # noqa: E402

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
        for group, columns in ((64, 64), (64, 256), (32, 32), (256, 256)):
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
        for kind in ("rms", "layer"):
            for act in ("silu", "sigmoid", "tanh"):
                y = fs.gated_norm(x, weight=weight, eps=EPS, kind=kind, activation=act)
                z = exact_norm(x.double(), weight.double(), torch.zeros_like(weight), kind, 256)
                z = {"silu": torch.nn.functional.silu}.get(act, getattr(torch, act, None))(z)
                suite.check(f"{act} of a norm, no gate, {dtype}, {kind}", near(y, z, dtype))


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
    x, weight, bias, dy = (random(4, n, dtype=torch.float32, seed=28) for n in (96, 32, 32, 96))
    leaves = [t.clone().requires_grad_() for t in (x, weight[0], bias[0])]
    y = fs.gated_norm(leaves[0], None, leaves[1], EPS, bias=leaves[2], group_size=32)
    y.backward(dy)
    exact = [t.double().requires_grad_() for t in (x, weight[0], bias[0])]
    exact_norm(*exact, "rms", 32).backward(dy.double())
    for name, found, wanted in zip(("dx", "dweight", "dbias"), leaves, exact):
        suite.check(
            f"gradient {name} of groups without a gate",
            near(found.grad, wanted.grad, torch.float32, 2),
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
            (dtype, 1.0, None),
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
            branch = rms(exact[0], exact[2], BRANCH_EPS) * alpha
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
                    f"sandwich gradient {name}, {dtype}, residual of {residual_dtype}, {alpha}",
                    found.grad.dtype == found.dtype and close,
                )
        # A residual and y in float32: nothing between the two norms is rounded.
        x, first, second = (
            random(*shape, dtype=dtype, seed=s)
            for s, shape in ((37, (6, 96)), (39, (96,)), (40, (96,)))
        )
        residual, dy = (random(6, 96, dtype=torch.float32, seed=s) for s in (38, 41))
        one, two = (
            [t.clone().requires_grad_() for t in (x, residual, first, second)] for _ in range(2)
        )
        y, _ = fs.sandwich_norm(*one, EPS, y_dtype=torch.float32)
        y.backward(dy)
        branch = ft.rms_norm(two[0], two[2], EPS, y_dtype=torch.float32)
        y, _ = ft.add_rms_norm(branch, two[1], two[3], EPS)
        y.backward(dy)
        name = f"sandwich gradients, {dtype}, the bits of two calls"
        if DEVICE.type == "cpu" or dtype == torch.float32:
            suite.check(name, all(torch.equal(a.grad, b.grad) for a, b in zip(one, two)))
        else:
            suite.skip(name, "a GPU adds the rows of a float32 branch in another order")


def test_layer_branch(suite):
    """LayerNorm of a branch with a bias, and of the sum with one: values and gradients against
    double precision."""
    for dtype in dtypes():
        x, residual, dy = (random(6, 96, dtype=dtype, seed=s) for s in (131, 132, 133))
        w1, b1, w2, b2 = (random(96, dtype=dtype, seed=s) for s in (134, 135, 136, 137))
        one = [t.clone().requires_grad_() for t in (x, residual, w1, b1, w2, b2)]
        options = {"branch_kind": "layer", "kind": "layer", "alpha": 0.5}
        y, total = fs.sandwich_norm(
            one[0], one[1], one[2], one[4], EPS, branch_bias=one[3], bias=one[5], **options
        )
        y.backward(dy)
        exact = [t.double().requires_grad_() for t in (x, residual, w1, b1, w2, b2)]

        def layer(a, w, b):
            return torch.nn.functional.layer_norm(a, (96,), w, b, EPS)

        wanted_sum = 0.5 * layer(exact[0], exact[2], exact[3]) + exact[1]
        wanted = layer(wanted_sum, exact[4], exact[5])
        wanted.backward(dy.double())
        name = f"layer after layer, {dtype}"
        suite.check(f"{name}: y", near(y, wanted, dtype, 2))
        suite.check(f"{name}: the sum", near(total, wanted_sum, dtype))
        names = ("x", "residual", "branch_weight", "branch_bias", "weight", "bias")
        for of, a, b in zip(names, one, exact):
            close = near(a.grad, b.grad, dtype, 4, 6.0 if of not in ("x", "residual") else 1.0)
            suite.check(f"{name}: gradient of {of}", close)
        found = fs.adaln(x, w2, b2, EPS, residual=residual, branch_norm=True, branch_kind="layer",
                         branch_weight=w1, branch_bias=b1, alpha=0.5)[0]  # fmt: skip
        wanted = layer(wanted_sum, None, None) * (1 + w2.double()) + b2.double()
        suite.check(f"{name}: adaln", near(found, wanted, dtype, 2))


def given(*numbers):
    return torch.tensor(numbers, device=DEVICE).requires_grad_()


def test_worked_gradients(suite):
    """Gradients that were worked out by hand."""
    x, scale = given([1.0, -2.0, 0.5, 3.0]), given(0.1, 0.2, 0.3, 0.4)
    weight = given(1.0, 2.0, -1.0, 0.5)
    y = fs.adaln(x, scale, eps=1e-5, kind="rms", branch_norm=True, branch_weight=weight)
    (y * torch.tensor([1.0, 2.0, 3.0, 4.0], device=DEVICE)).sum().backward()
    for name, found, wanted in (
        ("scale", scale.grad, [0.453, -3.623, -0.679, 2.717]),
        ("x", x.grad[0], [0.546, 1.793, -1.743, 1.304]),
    ):
        found = [round(v, 3) for v in found.tolist()]
        suite.check(
            f"a branch norm without a residual: {name}",
            all(abs(a - b) < 1.5e-3 for a, b in zip(found, wanted)),
            found,
        )
    x = given([1.0, -2.0, 0.5], [3.0, 1.0, 0.0])
    scale, shift = given(0.0, 0.0, 0.0), torch.zeros(2, 3, device=DEVICE).requires_grad_()
    bias = given(1.0, 1.0, 1.0)
    fs.adaln(x, scale, shift, bias=bias).sum().backward()
    found = [round(v, 3) for v in scale.grad.tolist()]
    suite.check(
        "a bias, and a shift of more rows than the scale",
        all(abs(a - b) < 1.5e-3 for a, b in zip(found, [4.225, 0.336, 1.439])),
        found,
    )


def test_empty_second_result(suite):
    """Without a residual the second result is empty, and its gradient counts for nothing."""
    x, scale = given([1.0, -2.0, 0.5, 3.0]), given(0.1, 0.2, 0.3, 0.4)
    y, total = torch.ops.fastnorm.adaln(
        x, None, None, None, scale, *(None,) * 7, EPS, "rms", "identity", 1.0, False, 0.0, "once",
        "exact", "once", "once", False, 0.0, 0.0, "once", False, None,
    )  # fmt: skip
    suite.equal("the second result", total.shape, (0,))
    torch.autograd.backward((y, total), (torch.ones_like(y), torch.zeros_like(total)))
    wanted = torch.autograd.grad(fs.adaln(x, scale, None, EPS, kind="rms").sum(), (x, scale))
    suite.check("gradients", torch.equal(x.grad, wanted[0]) and torch.equal(scale.grad, wanted[1]))


def test_settings_of_codes(suite):
    """Each setting of a Quant gives the codes that rms_norm_quant has with it."""
    x, weight = random(6, 256, dtype=torch.bfloat16, seed=141), random(
        256, dtype=torch.bfloat16, seed=142
    )
    clamp, half = (torch.tensor([v], device=DEVICE) for v in (0.75, 0.5))
    for scheme, block, options in (
        ("per_row", 0, {}),
        ("per_row", 0, {"source": "rounded"}),
        ("per_row", 0, {"division": "divide", "amax_floor": 8.0}),
        ("per_block", 64, {"pow2": True, "clamp": 0.75}),
        ("per_block", 128, {"layout": "column_major", "clamp_scale": clamp}),
        ("mxfp8", 0, {"layout": "swizzled_128x4"}),
        ("nvfp4", 0, {"global_scale": half}),
    ):
        old = torch.tensor([0.25], device=DEVICE)
        quant = fs.Quant(scheme, block, amax=old, y=True, **options)
        found = fs.gated_norm(x, None, weight, EPS, quant=quant)
        own = {"quant_source" if n == "source" else n: v for n, v in options.items()}
        wanted = ft.rms_norm_quant(x, weight, EPS, scheme=scheme, block_size=block, **own)
        name = f"{scheme} with {options or 'nothing'}"
        pairs = zip((found.quantized, found.scale), wanted)
        suite.check(f"{name}: codes and scales", all(bytes_of(a) == bytes_of(b) for a, b in pairs))
        suite.equal(f"{name}: strides", found.scale.stride(), wanted[1].stride())
        z = ft.rms_norm(x, weight, EPS, y_dtype=torch.float32)
        z = found.y.float() if "source" in options else z
        greatest = z.abs().max() if not {"clamp", "clamp_scale"} & set(options) else clamp[0]
        suite.check(f"{name}: amax", torch.equal(found.amax[0], greatest) and old.item() == 0.25)


BATCH, FRAMES, TOKENS, N = 2, 3, 4, 96
# x's leading extents and the modulators' shape.
BROADCASTS = (
    ((5,), (N,)),
    ((5,), (1,)),
    ((BATCH, TOKENS), (BATCH, 1, N)),
    ((BATCH, TOKENS), (1, 1, N)),
    ((BATCH, TOKENS), (TOKENS, N)),
    ((BATCH, TOKENS), (BATCH, TOKENS, N)),
    ((BATCH, TOKENS), (BATCH, TOKENS, 1)),
    ((BATCH, TOKENS), (BATCH, 1, 1)),
    ((BATCH, FRAMES, TOKENS), (BATCH, FRAMES, 1, N)),
    ((BATCH, FRAMES, TOKENS), (BATCH, 1, TOKENS, N)),
    ((BATCH, FRAMES, 2, TOKENS), (BATCH, FRAMES, 1, 1, N)),
)
INDEXED = ((BATCH, TOKENS), (3, N)), ((BATCH, TOKENS), (3, 1))


def adaln_inputs(dtype, lead, shape, modulator_dtype=None, tables=False, seed=50):
    """Tensors by name; modulators and tables of their own dtype."""
    of = modulator_dtype or dtype
    found = {
        "x": random(*lead, N, dtype=dtype, seed=seed),
        "residual": random(*lead, N, dtype=dtype, seed=seed + 1),
    }
    for i, name in enumerate(("residual_gate", "scale", "shift")):
        found[name] = 0.5 * random(*shape, dtype=of, seed=seed + 2 + i)
        if tables:
            found[TABLES[name]] = 0.5 * random(N, dtype=of, seed=seed + 5 + i)
    return found


TABLES = {
    "residual_gate": "residual_gate_table",
    "scale": "scale_table",
    "shift": "shift_table",
}
C_NAMES = {"scale": "modulation_scale", "shift": "modulation_shift"}


def exact_adaln(
    x,
    scale=None,
    shift=None,
    eps=EPS,
    kind="layer",
    act="identity",
    index=None,
    alpha=1.0,
    plain=False,
    offset=0.0,
    branch_norm=False,
    **tensors,
):
    """The formula in double precision: y and the sum."""

    def modulator(name, value):
        if value is None:
            return None
        value = value if index is None else value[index.long()]
        table = tensors.get(TABLES[name])
        return value if table is None else value + table

    if branch_norm:
        x = rms(x, tensors.get("branch_weight"), eps)
    gate = modulator("residual_gate", tensors.get("residual_gate"))
    if gate is not None:
        acts = {"tanh": torch.tanh, "sigmoid": torch.sigmoid, "silu": torch.nn.functional.silu}
        x = x * acts.get(act, lambda v: v)(gate)
    x = x * alpha
    total = x if tensors.get("residual") is None else x + tensors["residual"]
    z = total - total.mean(-1, keepdim=True) if kind == "layer" else total
    z = z / (z.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    if tensors.get("weight") is not None:
        z = z * (tensors["weight"] + offset)
    if tensors.get("bias") is not None:
        z = z + tensors["bias"]
    scale, shift = modulator("scale", scale), modulator("shift", shift)
    if scale is not None:
        z = z * (scale if plain else 1 + scale)
    return z if shift is None else z + shift, total


def results(found):
    return found if isinstance(found, tuple) else (found,)


def check_adaln(suite, name, inputs, gradients=(True, True), **options):
    """Values and gradients of one call against autograd of the formula in double precision.
    gradients: of which outputs there are."""
    words = {"act": "residual_gate_act", "plain": "plain_scale", "offset": "weight_offset"}
    ours = {words.get(n, n): o for n, o in options.items()}
    leaves = {n: t.clone().requires_grad_() for n, t in inputs.items()}
    found = results(fs.adaln(**leaves, eps=EPS, **ours))
    exact = {n: t.double().requires_grad_() for n, t in inputs.items()}
    wanted = exact_adaln(**exact, **options)
    dtype = inputs["x"].dtype
    suite.check(
        f"{name}: values",
        all(f.dtype == dtype and near(f, w, dtype, 2, 2.0) for f, w in zip(found, wanted)),
    )
    into = [random(*f.shape, dtype=f.dtype, seed=70 + i) for i, f in enumerate(found)]
    chosen = [i for i in range(len(found)) if gradients[i]]
    torch.autograd.backward([found[i] for i in chosen], [into[i] for i in chosen])
    torch.autograd.backward([wanted[i] for i in chosen], [into[i].double() for i in chosen])
    for of, leaf in leaves.items():
        grad = exact[of].grad
        grad = torch.zeros_like(exact[of]) if grad is None else grad
        # A parameter's gradient is a sum of terms of about 1 over elements that share it.
        shared = max(1, inputs["x"].numel() // leaf.numel())
        ok = leaf.grad.dtype == leaf.dtype and leaf.grad.shape == leaf.shape
        suite.check(
            f"{name}: gradient of {of}",
            ok and near(leaf.grad, grad, dtype, 6, 2.0 + shared**0.5),
            lambda: f"{(leaf.grad.double() - grad).abs().max()} of {grad.abs().max()}",
        )


def test_adaln(suite):
    """Every shape that broadcasts, in every dtype."""
    for dtype in dtypes():
        for lead, shape in BROADCASTS:
            check_adaln(suite, f"adaln, {dtype}, {shape}", adaln_inputs(dtype, lead, shape))


def test_adaln_index(suite):
    for dtype in dtypes():
        for lead, shape in INDEXED:
            for index_dtype in (torch.int32, torch.int64):
                generator = torch.Generator().manual_seed(60)
                index = torch.randint(3, lead, generator=generator, dtype=index_dtype)
                check_adaln(
                    suite,
                    f"adaln, {dtype}, {shape} by {index_dtype}",
                    adaln_inputs(dtype, lead, shape, tables=shape[-1] == N),
                    index=index.to(DEVICE),
                )


def test_adaln_settings(suite):
    """Tables, tanh, alpha, norms with a weight and a bias, and parts of the call alone."""
    lead, shape = (BATCH, TOKENS), (BATCH, 1, N)
    for dtype in dtypes():
        both = adaln_inputs(dtype, lead, shape, torch.float32, tables=True)
        parameters = {
            "weight": 1 + 0.2 * random(N, dtype=dtype, seed=58),
            "bias": 0.2 * random(N, dtype=dtype, seed=59),
        }

        def some(*names, **more):
            return {**{n: both[n] for n in names}, **more}

        cases = (
            ("tables, tanh, float32 modulators", both, {"act": "tanh"}),
            ("rms, silu, alpha", both, {"act": "silu", "kind": "rms", "alpha": 0.5}),
            ("sigmoid, plain scale", both, {"act": "sigmoid", "plain": True}),
            ("weight and bias", {**both, **parameters}, {"offset": 1.0}),
            ("bias alone", {**both, "bias": parameters["bias"]}, {}),
            ("weight, no scale", some("x", "residual", "shift", **parameters), {}),
            ("scale alone", some("x", "scale"), {"kind": "rms"}),
            ("shift alone", some("x", "shift"), {}),
            ("no residual", some("x", "scale", "shift"), {}),
            ("a gate, no residual", some("x", "residual_gate", "scale"), {"act": "tanh"}),
            ("a residual, no gate", some("x", "residual", "scale", "shift"), {}),
            ("alpha, no gate", some("x", "residual", "scale"), {"alpha": 0.25}),
            ("nothing", some("x"), {}),
            (
                "a branch norm",
                {**both, "branch_weight": parameters["weight"]},
                {"act": "tanh", "kind": "rms", "branch_norm": True},
            ),
            ("a branch norm, no gate", some("x", "residual"), {"branch_norm": True}),
        )
        for name, inputs, options in cases:
            check_adaln(suite, f"adaln, {dtype}, {name}", inputs, **options)
        for gradients in ((True, False), (False, True)):
            check_adaln(suite, f"adaln, {dtype}, gradients of {gradients}", both, gradients)


def test_adaln_dtypes(suite):
    """A residual and y of float32 beside rows of 16 bits, and autocast, which changes nothing."""
    for dtype in dtypes()[1:]:
        inputs = adaln_inputs(dtype, (BATCH, TOKENS), (BATCH, 1, N))
        inputs["residual"] = inputs["residual"].float()
        leaves, plain = (
            {n: t.clone().requires_grad_() for n, t in inputs.items()} for _ in range(2)
        )
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            y, total = fs.adaln(**leaves, eps=EPS, y_dtype=torch.float32)
        exact = {n: t.double().requires_grad_() for n, t in inputs.items()}
        wanted, wanted_total = exact_adaln(**exact)
        suite.check(
            f"adaln, {dtype}, sum and y of float32 under autocast",
            y.dtype == total.dtype == torch.float32
            and near(y, wanted, torch.float32, 4, 2.0)
            and near(total, wanted_total, torch.float32, 2, 1.0),
        )
        dy, dtotal = (random(*y.shape, dtype=torch.float32, seed=s) for s in (63, 64))
        torch.autograd.backward((y, total), (dy, dtotal))
        torch.autograd.backward((wanted, wanted_total), (dy.double(), dtotal.double()))
        for name, leaf in leaves.items():
            suite.check(
                f"adaln, {dtype}, float32 gradients: {name}",
                leaf.grad.dtype == leaf.dtype and near(leaf.grad, exact[name].grad, dtype, 2, 4.0),
            )
        torch.autograd.backward(
            fs.adaln(**plain, eps=EPS, y_dtype=torch.float32), (dy, dtotal)
        )
        suite.check(
            f"adaln, {dtype}, gradients under autocast have the bits of those without",
            all(torch.equal(plain[n].grad, leaves[n].grad) for n in plain),
        )


def test_adaln_some_gradients(suite):
    """Each gradient alone has the bits that it has beside the others."""
    inputs = adaln_inputs(
        torch.bfloat16, (BATCH, TOKENS), (BATCH, 1, N), torch.float32, tables=True
    )
    inputs["weight"] = 1 + 0.2 * random(N, dtype=torch.bfloat16, seed=58)
    inputs["bias"] = 0.2 * random(N, dtype=torch.bfloat16, seed=59)
    grads = [random(BATCH, TOKENS, N, dtype=torch.bfloat16, seed=s) for s in (61, 62)]
    everything = {n: t.clone().requires_grad_() for n, t in inputs.items()}
    options = {"eps": EPS, "residual_gate_act": "tanh"}
    torch.autograd.backward(fs.adaln(**everything, **options), grads)
    for name in inputs:
        leaf = inputs[name].clone().requires_grad_()
        found = fs.adaln(**{**inputs, name: leaf}, **options)
        # What does not reach the sum has no gradient there.
        of_both = name in ("x", "residual", "residual_gate", "residual_gate_table")
        torch.autograd.backward(found[: 1 + of_both], grads[: 1 + of_both])
        suite.check(
            f"adaln, gradient of {name} alone", torch.equal(leaf.grad, everything[name].grad)
        )


def test_adaln_strides(suite):
    """Views of one buffer of six modulators, and a transposed x."""
    six = random(BATCH, 6, N, dtype=torch.bfloat16, seed=80)
    x = random(TOKENS, BATCH, N, dtype=torch.bfloat16, seed=81).transpose(0, 1)
    residual = random(BATCH, TOKENS, N, dtype=torch.bfloat16, seed=82)
    leaf = six.clone().requires_grad_()
    gate, scale, shift = (leaf[:, i : i + 1] for i in (2, 3, 4))
    y, total = fs.adaln(x, scale, shift, EPS, residual=residual, residual_gate=gate)
    exact = six.double().requires_grad_()
    gate, scale, shift = (exact[:, i : i + 1] for i in (2, 3, 4))
    wanted, _ = exact_adaln(
        x.double(), scale, shift, residual=residual.double(), residual_gate=gate
    )
    suite.check("adaln, views of one buffer", near(y, wanted, torch.bfloat16, 2, 2.0))
    y.float().sum().backward()
    wanted.sum().backward()
    suite.check(
        "adaln, the gradient of one buffer",
        near(leaf.grad, exact.grad, torch.bfloat16, 6, 4.0) and not leaf.grad[:, [0, 1, 5]].any(),
    )
    empty = fs.adaln(x[:, :0], six[:, :1], six[:, 1:2])
    suite.check("adaln, no rows", empty.shape == (BATCH, 0, N))


def test_adaln_transforms(suite):
    """torch.func's grad and vmap."""
    inputs = adaln_inputs(torch.float32, (BATCH, TOKENS), (BATCH, 1, N))
    x, scale, shift = (inputs[n] for n in ("x", "scale", "shift"))

    def loss(x, scale, shift):
        return fs.adaln(x, scale, shift, EPS).pow(3).sum()

    found = torch.func.grad(loss, (0, 1, 2))(x, scale, shift)
    leaves = [t.clone().requires_grad_() for t in (x, scale, shift)]
    loss(*leaves).backward()
    suite.check(
        "adaln, torch.func.grad", all(torch.equal(f, t.grad) for f, t in zip(found, leaves))
    )
    each = torch.func.vmap(torch.func.grad(loss, (0, 1, 2)))(x, scale, shift)
    suite.check(
        "adaln, vmap of grad",
        all(torch.allclose(f, t, rtol=1e-5, atol=1e-5) for f, t in zip(each, found)),
    )


NUMBERS = {"per_tensor": 1, "per_row": 2, "per_block": 3, "mxfp8": 4, "nvfp4": 5}


def direct(kind, inputs, outputs, **fields):
    """The call by the C ABI alone, on copies in host memory; the bytes of the outputs."""
    kept = []

    def view(t):
        kept.append(t.detach().cpu().contiguous().clone())
        t = kept[-1]
        return View(t.data_ptr(), ft._DTYPES[t.dtype], t.shape, t.stride(), t.element_size())

    fields.update({name: view(t) for name, t in inputs.items() if t is not None})
    fields.update({name: view(t) for name, t in outputs.items()})
    context = ft._c.Context(ft._library, ft._c.CPU)
    context.call(kind, eps=EPS, **fields).run()
    return list(map(bytes_of, kept[-len(outputs) :]))


def bytes_of(t):
    return t.cpu().contiguous().view(torch.uint8).numpy().tobytes()


def check_codes(suite, name, found, exact, quant):
    """Codes and scales against the result in double precision."""
    scale = quant.scale if found.scale is None else found.scale
    suite.check(f"{name}: scales", (found.scale is None) == (quant.scheme == "per_tensor"))
    if quant.scheme == "nvfp4":  # bits alone
        return
    columns = {"per_block": quant.block_size, "mxfp8": 32}.get(quant.scheme, exact.shape[-1])
    wide = scale.double().repeat_interleave(columns, -1)[..., : exact.shape[-1]]
    greatest, share, step = (127, 0.0, 0.5) if quant.dtype == torch.int8 else (448, 1 / 16, 2**-10)
    least = -128 if quant.dtype == torch.int8 else -greatest
    kept = torch.maximum(torch.minimum(exact, greatest * wide), least * wide)
    error = (found.quantized.double() * wide - kept).abs()
    suite.check(name, bool((error <= kept.abs() * share + wide * step + 1e-5).all()))


def test_quantised(suite):
    """Codes of each stage against double precision, and bit by bit against the C ABI."""
    schemes = (
        ("per_tensor", torch.float8_e4m3fn, 0),
        ("per_tensor", torch.int8, 0),
        ("per_row", torch.float8_e4m3fn, 0),
        ("per_row", torch.int8, 0),
        ("per_block", torch.float8_e4m3fn, 64),
        ("per_block", torch.int8, 128),
        ("mxfp8", torch.float8_e4m3fn, 0),
        ("nvfp4", torch.uint8, 0),
    )
    for dtype in dtypes():
        x, gate, residual = (random(3, 5, 256, dtype=dtype, seed=s) for s in (61, 62, 63))
        weight, shift = (1 + 0.2 * random(256, dtype=dtype, seed=s) for s in (64, 65))
        total = x.double() + residual.double()
        cases = (
            (
                "gated_norm",
                lambda quant: fs.gated_norm(x, gate, weight, EPS, quant=quant),
                exact_gated(x, gate, weight, "silu", 256, False),
                (0, {"x": x, "gate": gate, "weight": weight}, {"gate_act": 1}),
            ),
            (
                "silu of a norm",
                lambda quant: fs.gated_norm(x, None, weight, EPS, activation="silu", quant=quant),
                torch.nn.functional.silu(rms(x, weight, EPS)),
                (0, {"x": x, "weight": weight}, {"activation": 1}),
            ),
            (
                "sandwich_norm",
                lambda quant: fs.sandwich_norm(x, residual, weight, shift, EPS, quant=quant),
                rms(rms(x, weight, EPS) + residual.double(), shift, EPS),
                (
                    0,
                    {"x": x, "residual": residual, "branch_weight": weight, "weight": shift},
                    {"branch_norm": 1, "branch_eps": EPS},
                ),
            ),
            (
                "adaln",
                lambda quant: fs.adaln(x, weight, shift, EPS, residual=residual, quant=quant),
                rms(total - total.mean(-1, keepdim=True), 1 + weight.double(), EPS)
                + shift.double(),
                (
                    1,
                    {"x": x, "residual": residual, "modulation_scale": weight,
                     "modulation_shift": shift},
                    {},
                ),
            ),
        )  # fmt: skip
        for stage, call, exact, (kind, inputs, fields) in cases:
            for scheme, codes, block in schemes:
                name = f"{stage}, {dtype}, {scheme} of {codes}"
                scale = torch.full((1,), 1 / 32, device=DEVICE) if scheme == "per_tensor" else None
                quant = fs.Quant(scheme, block, codes, scale, y=scheme == "per_row")
                found = call(quant)
                check_codes(suite, name, found, exact, quant)
                suite.check(
                    f"{name}: y and the sum",
                    (found.y is None if not quant.y else near(found.y, exact, dtype, terms=1))
                    and (found.residual_out is None) == ("residual" not in inputs),
                )
                if DEVICE.type != "cpu":
                    continue
                outputs = {n: t for n, t in found._asdict().items() if t is not None}
                static = {} if scale is None else {"scale": scale}
                wanted = direct(
                    kind, {**inputs, **static}, outputs, quant_scheme=NUMBERS[scheme],
                    quant_block_size=block, **fields,
                )  # fmt: skip
                suite.check(
                    f"{name}: bits of the C ABI", list(map(bytes_of, outputs.values())) == wanted
                )
        both = [
            call(fs.Quant("per_tensor", dtype=torch.int8, scale=scale, division=division))
            for scale in (torch.full((1,), 0.0123, device=DEVICE),)
            for division in ("reciprocal", "divide")
        ]
        apart = (both[0].quantized.int() - both[1].quantized.int()).abs()
        suite.check(f"{dtype}: quotients are next to products", int(apart.max()) <= 1)
    five = random(2, 3, 2, 3, 64, dtype=torch.float32, seed=66)
    quant = fs.Quant("per_tensor", dtype=torch.int8, scale=torch.full((1,), 1 / 32, device=DEVICE))
    suite.check(
        "five dimensions",
        torch.equal(
            fs.gated_norm(five, quant=quant).quantized,
            fs.gated_norm(five.flatten(0, 3), quant=quant).quantized.view(five.shape),
        ),
    )
    for name, kind, text, broken in (
        ("a scheme", ValueError, "scheme is 'fp8'", fs.Quant("fp8")),
        ("a block", RuntimeError, "block_size is 7", fs.Quant("per_block", 7)),
        ("no scale", RuntimeError, "scale", fs.Quant("per_tensor")),
        ("a scale that is made", RuntimeError, "scale is given", fs.Quant("per_row", scale=weight)),
        ("a quotient", ValueError, "division is 'half'", fs.Quant("per_row", division="half")),
    ):
        suite.raises(name, kind, text, lambda: fs.gated_norm(x, quant=broken))
    suite.raises(
        "a gradient of codes",
        RuntimeError,
        "gated_norm_outputs has no backward",
        lambda: fs.gated_norm(x.clone().requires_grad_(), quant=fs.Quant("per_row")),
    )


def test_ranks(suite):
    """Sums out, statistics in: columns spread over ranks are normalised as on one."""
    for dtype in dtypes():
        x, gate = (random(3, 5, 256, dtype=dtype, seed=s) + 0.5 for s in (71, 72))
        weight = 1 + 0.2 * random(256, dtype=dtype, seed=73)
        for kind in ("rms", "layer"):
            u = x.double() * torch.nn.functional.silu(gate.double())
            exact = exact_norm(u, weight.double(), torch.zeros_like(weight).double(), kind, 256)
            for ranks in (1, 2, 4):
                shards = [t.chunk(ranks, -1) for t in (x, gate, weight)]
                options = {"kind": kind, "gate_before": True}
                sums = [fs.gated_norm_sums(a, g, **options) for a, g, _ in zip(*shards)]
                shape = (3, 5) if kind == "rms" else (3, 5, 2)
                found = fh.statistics_of_sums(sums, 256 // ranks, EPS, kind)
                mean, rstd = (None, found) if kind == "rms" else found
                parts = [
                    fs.gated_norm(a, g, w, EPS, mean_in=mean, rstd_in=rstd, **options)
                    for a, g, w in zip(*shards)
                ]
                suite.check(
                    f"{ranks} ranks, {dtype}, {kind}",
                    all(s.shape == shape for s in sums)
                    and near(torch.cat(parts, -1), exact, dtype, terms=1),
                )
    sums = fs.gated_norm_sums(x, group_size=64)
    exact = x.double().unflatten(-1, (4, 64)).pow(2).sum(-1)
    suite.check("sums of groups", near(sums, exact, torch.float32))
    suite.raises(
        "a gradient with given statistics",
        RuntimeError,
        "no backward for a given rstd_in",
        lambda: fs.gated_norm(x.float().requires_grad_(), rstd_in=torch.ones(3, 5, 1)),
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
        "the act of a gate that is not there",
        RuntimeError,
        "gate_act is ",
        lambda: fs.gated_norm(x, gate_act="silu"),
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
    inputs = adaln_inputs(torch.float32, (BATCH, TOKENS), (BATCH, 1, N), tables=True)
    index = torch.zeros(BATCH, TOKENS, dtype=torch.int32, device=DEVICE)
    for name, text, broken in (
        *((f"{n} of float64", f"{C_NAMES.get(n, n)}.dtype is ", {n: t.double()})
          for n, t in inputs.items()),
        ("a table alone", "scale_table is given and modulation_scale is NULL", {"scale": None}),
        ("a shift of 3 columns", "modulation_shift.shape is", {"shift": inputs["shift"][..., :3]}),
        ("an index of float32", "modulation_index.dtype is", {"index": index.float()}),
        ("modulators that are no matrix", "modulation", {"index": index}),
        ("a branch's weight alone", "branch_norm is 0", {"branch_weight": inputs["scale_table"]}),
        ("a branch's eps alone", "branch_norm is 0", {"branch_eps": 1e-3}),
    ):  # fmt: skip
        suite.raises(
            f"adaln, {name}", RuntimeError, text, lambda: fs.adaln(**{**inputs, **broken})
        )
    for fake in (False, True):
        with FakeTensorMode() if fake else contextlib.nullcontext():
            double = torch.zeros(4, 96, dtype=torch.float64)
            suite.raises(
                f"adaln of float64{', fake' if fake else ''}",
                RuntimeError,
                "x.dtype is torch.float64; required: one of torch.float32",
                lambda: fs.adaln(double),
            )
    if DEVICE.type == "cpu":
        suite.raises(
            "adaln, an index outside",
            RuntimeError,
            "modulation_index of row 0 is 7",
            lambda: fs.adaln(
                inputs["x"], inputs["scale"][:, 0], index=torch.full_like(index, 7)
            ),
        )
    suite.raises(
        "adaln, a word", ValueError, "kind is 'batch'", lambda: fs.adaln(x, kind="batch")
    )
    with torch.no_grad():
        y = fs.gated_norm(x.clone().requires_grad_(), gate)
    suite.check("under no_grad", torch.equal(y, fs.gated_norm(x, gate)))


def test_opcheck(suite):
    x, gate = (random(4, 96, dtype=torch.bfloat16, seed=s) for s in (9, 10))
    weight, scale = random(96, dtype=torch.bfloat16, seed=11), torch.ones(1, device=DEVICE)
    calls = {
        "gated_norm": (
            x, gate, weight, None, None, None, EPS, "rms", "silu", False, True, 48, "identity", 1.0,
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
        for a in (gated[0].float(), gated[1].float(), *gated[2:10], False, *gated[11:])
    )
    calls["gated_norm"] = (*gated[:2], None, *gated[3:13], 0.0, "once", None)
    calls["gated_norm_outputs"] = (
        *gated[:6], None, *gated[6:15], "per_block", 64, "reciprocal", torch.int8, True, True, None,
    )  # fmt: skip
    x, residual, first, second = (
        random(*shape, dtype=torch.float32, seed=s).requires_grad_()
        for s, shape in enumerate([(4, 96)] * 2 + [(96,)] * 2, 41)
    )
    calls["sandwich_norm, gradients"] = (
        x, residual, first, second, scale, EPS, EPS, 1.0, 1.0, "once", "once", False, "exact", 0.5,
        "once", None,
    )  # fmt: skip
    inputs = adaln_inputs(
        torch.float32, (BATCH, TOKENS), (BATCH, 1, N), torch.float32, tables=True
    )
    order = ("x", "residual", "residual_gate", "residual_gate_table", "scale", "scale_table")
    modulated = [inputs[n].requires_grad_() for n in (*order, "shift", "shift_table")]
    options = (
        EPS, "layer", "tanh", 0.0, False, 0.0, "once", "exact", "once", "once", False, 0.0, 0.0,
        "once", False, None,
    )  # fmt: skip
    calls["adaln, gradients"] = (*modulated, None, None, None, None, *options)
    calls["adaln"] = (x.detach(), *(None,) * 11, EPS, "rms", "identity", *options[3:])
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


def test_compare(suite):
    """bench/compare_stages.py: this library and PyTorch are right and timed, whoever else is
    there."""
    if not (ROOT / "bench").is_dir():
        suite.skip("compare", "there is no folder bench beside the examples")
        return
    cases = ["3xqwen3-next", "2xkimi:backward", "2xmamba2:backward", "2xgemma2",
             "2xgemma3:backward", "2xwan", "2xflux:backward", "3xlumina2:backward"]
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "run.csv"
        program = [
            sys.executable, str(ROOT / "bench" / "compare_stages.py"), "--device", "cpu",
            "--library", os.environ["FASTNORM_LIBRARY"], "--replays", "2", "--cold-mib", "1",
            "--contenders", "fastnorm", "fastnorm-chain", "torch", "flashinfer-cute", "--csv",
            str(path), "--cases", *cases,
        ]
        ran = subprocess.run(program, capture_output=True, text=True)
        if not suite.check("compare: runs", ran.returncode == 0, ran.stdout + ran.stderr):
            return
        sys.path.insert(0, str(ROOT / "bench"))
        from compare import lines

        document = lines.read(path)
    suite.check("compare: every case", len(document["results"]) == len(cases), document)
    suite.check("compare: a last line", f"{len(cases)} cases, " in ran.stdout, ran.stdout)
    for row in document["results"]:
        others = {k: v for k, v in row["contenders"].items() if k != "flashinfer-cute"}
        for name, found in others.items():
            has_none = name == "fastnorm-chain" and "sandwich" not in row["op"]
            suite.check(
                f"compare: {row['op']} of {name}",
                "unsupported" in found if has_none else found.get("max_error", 2) <= 1,
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
        y, total = fs.adaln(y, weight, gate[:1], EPS, residual=total, residual_gate=gate + 1)
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
    leaves, compiled = ([t.clone().requires_grad_() for t in tensors] for _ in range(2))
    torch._dynamo.reset()
    whole = torch.compile(block, fullgraph=True, backend="aot_eager")
    for call, of in ((block, leaves), (whole, compiled)):
        y, total = call(*of)
        (y.float().sum() + total.float().sum()).backward()
    suite.check(
        "compile, gradients", all(torch.equal(a.grad, b.grad) for a, b in zip(leaves, compiled))
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
    from torch._subclasses.fake_tensor import FakeTensorMode

    os.environ["FASTNORM_LIBRARY"] = use_library(options)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packages" / "python"))
    import fastnorm.torch as ft
    import fastnorm.torch.norm_heads as fh
    import fastnorm.torch.norm_stages as fs

    DEVICE = torch.device("cuda", 0) if options.device == "cuda" else torch.device("cpu")
    suite.results["versions"]["torch"] = torch.__version__
    suite.run(
        [
            test_gated,
            test_gated_gradients,
            test_sandwich,
            test_sandwich_gradients,
            test_layer_branch,
            test_worked_gradients,
            test_empty_second_result,
            test_settings_of_codes,
            test_adaln,
            test_adaln_index,
            test_adaln_settings,
            test_adaln_dtypes,
            test_adaln_some_gradients,
            test_adaln_strides,
            test_adaln_transforms,
            test_quantised,
            test_ranks,
            test_errors,
            test_opcheck,
            test_compare,
            test_compile,
        ]
    )
    suite.finish()
