#!/usr/bin/env python3
"""Tests of the PyTorch operators' gradients and modules, on the CPU or a CUDA device. The last line
is the count.

Gradients are compared with float64 autograd of the formula. Run with a Python that has PyTorch and
NumPy.
"""

import itertools
import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.append(str(Path(__file__).resolve().parents[1]))
from norm_testing import Suite, arguments, missing, use_library  # noqa: E402

EPS = 1e-3
# Largest error of a gradient, relative and in norm: a few roundings to its dtype, or sums in single
# precision.
BOUNDS = {"float32": 5e-6, "float16": 2e-3, "bfloat16": 1.2e-2}


# --- helpers ---


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def bits(t):
    t = t.detach().cpu().contiguous()
    return t.view(torch.uint8).numpy().tobytes() if t.numel() else b""


def normal(shape, dtype, seed, scale=1.0, offset=0.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale + offset).to(dtype).to(DEVICE)


def formula(kind, x, residual=None, weight=None, bias=None, weight_offset=0.0):
    """y, or y and the sum, by PyTorch's own operators."""
    s = x if residual is None else x + residual
    centred = s - s.mean(-1, keepdim=True) if kind == "layer" else s
    y = centred * (centred.square().mean(-1, keepdim=True) + EPS).rsqrt()
    y = y if weight is None else y * (weight + weight_offset)
    y = y if bias is None else y + bias
    return y if residual is None else (y, s)


# Functions with the kind of norm and their arguments.
FUNCTIONS = {
    "rms_norm": ("rms", ("x", "weight")),
    "layer_norm": ("layer", ("x", "weight", "bias")),
    "add_rms_norm": ("rms", ("x", "residual", "weight")),
}
DTYPES = ("float32", "float16", "bfloat16")


def inputs_of(name, shape, dtype, weight_shape=None, wide=False):
    """Tensors of a function by name; wide: residual, weight and bias are float32."""
    dtype = getattr(torch, dtype)
    other = torch.float32 if wide else dtype
    made = {
        "x": normal(shape, dtype, 1, 2.0, 0.25),
        "residual": normal(shape, other, 2),
        "weight": normal(weight_shape or shape[-1:], other, 3, 0.2, 1.0),
        "bias": normal(weight_shape or shape[-1:], other, 4),
    }
    return {argument: made[argument] for argument in FUNCTIONS[name][1]}


def of(function, inputs, wanted, seeds, **options):
    """Gradients by name for dy, and for dtotal where there is a sum: `seeds` of each, None for
    none."""
    leaves = {k: t.detach().requires_grad_(k in wanted) for k, t in inputs.items()}
    found = function(**leaves, **options)
    found = found if isinstance(found, tuple) else (found,)
    pairs = [
        (t, normal(t.shape, t.dtype, seed)) for t, seed in zip(found, seeds) if seed is not None
    ]
    gradients = torch.autograd.grad(
        [t for t, _ in pairs], [leaves[k] for k in wanted], [g for _, g in pairs], allow_unused=True
    )
    return dict(zip(wanted, gradients))


def exact(name, inputs, wanted, seeds, y_dtype=None, **options):
    """The same in float64, for gradients of y and of the sum that have been rounded to their
    dtypes."""
    kind, _ = FUNCTIONS[name]
    leaves = {k: t.detach().double().requires_grad_(k in wanted) for k, t in inputs.items()}
    found = formula(kind, **leaves, **options)
    found = found if isinstance(found, tuple) else (found,)
    dtypes = (y_dtype or inputs["x"].dtype, inputs.get("residual", inputs["x"]).dtype)
    pairs = [
        (t, normal(t.shape, dtype, seed).double())
        for t, dtype, seed in zip(found, dtypes, seeds)
        if seed is not None
    ]
    gradients = torch.autograd.grad(
        [t for t, _ in pairs], [leaves[k] for k in wanted], [g for _, g in pairs], allow_unused=True
    )
    return dict(zip(wanted, gradients))


def error_of(found, wanted):
    return ((found.double() - wanted).norm() / wanted.norm()).item()


def check_gradients(suite, label, found, wanted, inputs, coarse=None):
    """One case for each gradient: there, with its input's dtype and shape, and near the exact
    one."""
    for k, gradient in found.items():
        name = f"{label}, gradient of {k}"
        bound = (
            BOUNDS[name_of(inputs[k].dtype)]
            if coarse is None
            else max(BOUNDS[name_of(inputs[k].dtype)], BOUNDS[coarse])
        )
        if not suite.check(
            f"{name}: dtype and shape",
            gradient is not None
            and gradient.dtype == inputs[k].dtype
            and gradient.shape == inputs[k].shape,
            gradient,
        ):
            continue
        error = error_of(gradient, wanted[k])
        suite.check(f"{name}: float64", error <= bound, f"{error} > {bound}")


def watched_gradients():
    """A mode of PyTorch whose `calls` say which gradients each call of norm_backward makes."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Gradients(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.calls = []

        def __torch_dispatch__(self, function, types, arguments=(), named=None):
            results = function(*arguments, **(named or {}))
            if function is torch.ops.fastnorm.norm_backward.default:
                names = ("dx", "dresidual", "dweight", "dbias")
                self.calls.append({n for n, t in zip(names, results) if t.numel()})
            return results

    return Gradients()


# --- values ---

SHAPES = [
    ((5, 64), (64,)),
    ((3, 1000), (1000,)),
    ((2, 3, 4, 129), (4, 129)),
    ((130, 8), (8,)),
    ((64,), (64,)),
    ((2, 3, 2, 2, 96), (96,)),
]


def test_values(suite):
    for name, (shape, weight_shape), dtype, wide in itertools.product(
        FUNCTIONS, SHAPES, DTYPES, (False, True)
    ):
        if wide and dtype == "float32":
            continue
        inputs = inputs_of(name, shape, dtype, weight_shape, wide)
        seeds = (7, 8) if "residual" in inputs else (7,)
        label = f"{name} {dtype} {list(shape)}{' f32 weight' if wide else ''}"
        found = of(getattr(ft, name), inputs, list(inputs), seeds, eps=EPS)
        wanted = exact(name, inputs, list(inputs), seeds)
        # A 16-bit sum is what is normalised in the backward.
        check_gradients(
            suite, label, found, wanted, inputs, dtype if wide or "residual" in inputs else None
        )
        again = of(getattr(ft, name), inputs, list(inputs), seeds, eps=EPS)
        suite.check(
            f"{label}: same bits again", all(bits(found[k]) == bits(again[k]) for k in found)
        )


def test_options(suite):
    for dtype in DTYPES:
        inputs = inputs_of("rms_norm", (6, 96), dtype)
        for options in (
            {"weight_offset": 1.0},
            {"rounding": "normalized"},
            {"rounding": "every_step"},
        ):
            found = of(ft.rms_norm, inputs, list(inputs), (7,), eps=EPS, **options)
            offset = {"weight_offset": options.get("weight_offset", 0.0)}
            check_gradients(
                suite,
                f"rms_norm {dtype} {options}",
                found,
                exact("rms_norm", inputs, list(inputs), (7,), **offset),
                inputs,
                dtype,
            )
        without = {"x": inputs["x"]}
        check_gradients(
            suite,
            f"rms_norm {dtype} without weight",
            of(ft.rms_norm, without, ["x"], (7,), eps=EPS),
            exact("rms_norm", without, ["x"], (7,)),
            without,
        )
        alone = {k: t for k, t in inputs_of("layer_norm", (6, 96), dtype).items() if k != "weight"}
        check_gradients(
            suite,
            f"layer_norm {dtype}, bias alone",
            of(ft.layer_norm, alone, ["x", "bias"], (7,), eps=EPS),
            exact("layer_norm", alone, ["x", "bias"], (7,)),
            alone,
        )
    x = {"x": normal((4, 64), torch.float32, 1, 1e-4)}
    found = of(ft.rms_norm, x, ["x"], (7,), eps=None)["x"]
    same = of(ft.rms_norm, x, ["x"], (7,), eps=torch.finfo(torch.float32).eps)["x"]
    other = of(ft.rms_norm, x, ["x"], (7,), eps=1e-6)["x"]
    suite.check("eps None", bits(found) == bits(same) and bits(found) != bits(other))


def test_y_dtype(suite):
    """A float32 y of 16-bit rows, whose gradient is float32, too."""
    for name, dtype in itertools.product(FUNCTIONS, ("float16", "bfloat16")):
        inputs = inputs_of(name, (6, 96), dtype)
        seeds = (7, 8) if "residual" in inputs else (7,)
        label = f"{name} {dtype} with y of float32"
        y = getattr(ft, name)(
            **{k: t.clone().requires_grad_() for k, t in inputs.items()},
            eps=EPS,
            y_dtype=torch.float32,
        )
        y = y[0] if isinstance(y, tuple) else y
        suite.check(f"{label}: dtype", y.dtype == torch.float32 and y.requires_grad)
        found = of(getattr(ft, name), inputs, list(inputs), seeds, eps=EPS, y_dtype=torch.float32)
        check_gradients(
            suite, label, found, exact(name, inputs, list(inputs), seeds, torch.float32), inputs
        )


def test_what_is_wanted(suite):
    """Each subset of inputs: the others have no gradient, and the library computes nothing for
    them."""
    outputs = {"x": "dx", "residual": "dx", "weight": "dweight", "bias": "dbias"}
    for name in FUNCTIONS:
        inputs = inputs_of(name, (4, 64), "float32")
        seeds = (7, 8) if "residual" in inputs else (7,)
        whole = of(getattr(ft, name), inputs, list(inputs), seeds, eps=EPS)
        for count in range(1, len(inputs)):
            for wanted in itertools.combinations(inputs, count):
                with watched_gradients() as watch:
                    found = of(getattr(ft, name), inputs, list(wanted), seeds, eps=EPS)
                suite.check(
                    f"{name}, gradients of {wanted}: same bits",
                    all(bits(found[k]) == bits(whole[k]) for k in wanted),
                )
                suite.equal(
                    f"{name}, gradients of {wanted}: outputs of one call",
                    watch.calls,
                    [{outputs[k] for k in wanted}],
                )
        with torch.no_grad():
            y = getattr(ft, name)(
                **{k: t.clone().requires_grad_() for k, t in inputs.items()}, eps=EPS
            )
        suite.check(
            f"{name} under no_grad",
            not any(t.requires_grad for t in (y if isinstance(y, tuple) else (y,))),
        )


def test_gradients_of_outputs(suite):
    """The gradient of y or that of the sum may be missing."""
    for dtype, wide in (("float32", False), ("bfloat16", False), ("bfloat16", True)):
        inputs = inputs_of("add_rms_norm", (4, 64), dtype, None, wide)
        label = f"add_rms_norm {dtype}{' f32 residual' if wide else ''}"
        for seeds, what in (((7, None), "y alone"), ((None, 8), "the sum alone"), ((7, 8), "both")):
            found = of(ft.add_rms_norm, inputs, list(inputs), seeds, eps=EPS)
            wanted = exact("add_rms_norm", inputs, list(inputs), seeds)
            if what == "the sum alone":
                suite.check(
                    f"{label}, {what}: the weight's is 0",
                    found["weight"] is None or not found["weight"].any(),
                )
                found.pop("weight")
            check_gradients(suite, f"{label}, {what}", found, wanted, inputs, dtype)
    x = normal((4, 64), torch.float32, 1).requires_grad_()
    unused = torch.zeros(1, device=DEVICE, requires_grad=True)
    y, total = ft.add_rms_norm(x, x.detach(), eps=EPS)
    (unused * 2).sum().backward()
    suite.check("neither", x.grad is None and y.requires_grad and total.requires_grad)


def test_fused_add(suite):
    """Layers that replace the residual, against the same with sums of their own."""

    def layers(add, x, residual, weights):
        for weight in weights:
            y, residual = add(x, residual, weight)
            x = y * 1.5
        return x, residual

    def in_place(x, residual, weight):
        return ft.fused_add_rms_norm(x, residual, weight, EPS), residual

    for dtype in DTYPES:
        x, residual = normal((4, 64), getattr(torch, dtype), 1), normal((4, 64), torch.float32, 2)
        weights = [normal((64,), torch.float32, 3 + i, 0.2, 1.0) for i in range(3)]
        results = []
        for add in (in_place, lambda x, r, w: ft.add_rms_norm(x, r, w, EPS)):
            leaves = [t.clone().requires_grad_() for t in (x, residual, *weights)]
            y, total = layers(add, leaves[0], leaves[1] * 1, leaves[2:])
            (y.float() * normal((4, 64), torch.float32, 9)).sum().add(total.sum()).backward()
            results.append([bits(t) for t in (y, total, *(leaf.grad for leaf in leaves))])
        suite.check(
            f"fused_add_rms_norm {dtype}: values and gradients of three layers",
            results[0] == results[1],
        )
    leaf = normal((4, 64), torch.float32, 2).requires_grad_()
    kept = leaf.detach().clone()
    suite.raises(
        "a residual that is a leaf",
        RuntimeError,
        "a leaf Variable that requires grad",
        lambda: ft.fused_add_rms_norm(normal((4, 64), torch.float32, 1), leaf),
    )
    suite.check("a residual that is a leaf: nothing is written", torch.equal(leaf.detach(), kept))


def test_views(suite):
    """Strided inputs and gradients give the bits of compact ones."""
    weight = normal((64,), torch.bfloat16, 3, 0.2, 1.0)
    fused = normal((6, 12 * 64), torch.bfloat16, 1)
    for label, make in (
        ("a QKV slice", lambda t: t[:, :256].view(6, 4, 64)),
        ("rows transposed", lambda t: t.view(6, 12, 64).transpose(0, 1)),
        ("every other column", lambda t: t[:, ::2]),
        (
            "more than four dimensions, permuted",
            lambda t: t.view(3, 2, 2, 6, 64).permute(3, 1, 2, 0, 4),
        ),
    ):
        found = []
        for compact in (False, True):
            whole = fused.clone().requires_grad_()
            own = weight.clone().requires_grad_()
            x = make(whole)
            n = x.shape[-1]
            scale = own.repeat(-(-n // 64))[:n]
            y = ft.rms_norm(x.contiguous() if compact else x, scale, EPS)
            y.backward(normal(y.shape[::-1], torch.bfloat16, 7).permute(*reversed(range(y.dim()))))
            found.append((bits(whole.grad), bits(own.grad)))
        suite.check(label, found[0] == found[1])
    for name in FUNCTIONS:
        inputs = inputs_of(name, (4, 64), "float32")
        leaves = [t.clone().requires_grad_() for t in inputs.values()]
        found = getattr(ft, name)(*leaves, eps=EPS)
        sum(t.sum() for t in (found if isinstance(found, tuple) else (found,))).backward()
        ones = [t.clone().requires_grad_() for t in inputs.values()]
        again = getattr(ft, name)(*ones, eps=EPS)
        again = again if isinstance(again, tuple) else (again,)
        torch.autograd.backward(again, [torch.ones_like(t) for t in again])
        suite.check(
            f"{name}: y.sum().backward()",
            all(bits(a.grad) == bits(b.grad) for a, b in zip(leaves, ones)),
        )
    heads = normal((4, 64), torch.float32, 3, 0.2, 1.0)
    x = normal((5, 4, 64), torch.float32, 1)
    expanded, plain = (
        heads[:1].clone().requires_grad_(),
        heads[:1].expand(4, 64).clone().requires_grad_(),
    )
    dy = normal((5, 4, 64), torch.float32, 7)
    ft.rms_norm(x, expanded.expand(4, 64), EPS).backward(dy)
    ft.rms_norm(x, plain, EPS).backward(dy)
    suite.check(
        "a weight expanded over heads",
        torch.allclose(expanded.grad, plain.grad.sum(0, keepdim=True), rtol=1e-6),
    )


def test_no_rows(suite):
    for name in FUNCTIONS:
        leaves = {
            k: t.requires_grad_() for k, t in inputs_of(name, (0, 64), "float32", (64,)).items()
        }
        found = getattr(ft, name)(**leaves, eps=EPS)
        sum(t.sum() for t in (found if isinstance(found, tuple) else (found,))).backward()
        suite.check(
            f"{name} of no rows",
            leaves["x"].grad.shape == (0, 64)
            and not leaves["weight"].grad.any()
            and leaves["weight"].grad.shape == (64,),
        )


# --- errors ---


def test_errors(suite):
    for name in FUNCTIONS:
        inputs = inputs_of(name, (4, 64), "float32")
        for k in inputs:
            double = {**inputs, k: inputs[k].double().requires_grad_()}
            suite.raises(
                f"{name}, {k} of float64 that requires grad",
                ft.FastnormError,
                f"{k}.dtype is torch.float64; required: one of torch.float32, torch.float16, torch.bfloat16",
                lambda: getattr(ft, name)(**double),
            )
        leaves = {k: t.clone().requires_grad_() for k, t in inputs.items()}
        found = getattr(ft, name)(**leaves, eps=EPS)
        y = found[0] if isinstance(found, tuple) else found
        first = torch.autograd.grad((y * y).sum(), leaves["x"], create_graph=True)[0]
        suite.raises(
            f"{name}: double backward",
            RuntimeError,
            "can be differentiated once only",
            lambda: first.sum().backward(),
        )
        suite.raises(
            f"{name}: forward derivative",
            RuntimeError,
            "no forward derivative",
            lambda: torch.func.jvp(
                lambda x: getattr(ft, name)(**{**inputs, "x": x}), (inputs["x"],), (inputs["x"],)
            ),
        )
    x = normal((4, 64), torch.float32, 1)
    for name, function in (
        ("rms_norm_quant", ft.rms_norm_quant),
        (
            "fused_add_rms_norm_quant",
            lambda x, **o: ft.fused_add_rms_norm_quant(x, normal((4, 64), torch.float32, 2), **o),
        ),
    ):
        suite.raises(
            f"{name} has no backward",
            RuntimeError,
            f"fastnorm::{name} has no backward",
            lambda: function(x.clone().requires_grad_(), scheme="per_row"),
        )
    weight = normal((64,), torch.float32, 3).requires_grad_()
    leaf = x.clone().requires_grad_()
    base = leaf * 1
    y = ft.rms_norm(base, weight)
    base.add_(1)
    suite.raises(
        "x changed before the backward",
        RuntimeError,
        "modified by an inplace operation",
        lambda: y.sum().backward(),
    )
    y, rstd = torch.ops.fastnorm.rms_norm_with_statistics(
        leaf, weight, EPS, 0.0, "once", None, None
    )
    suite.raises(
        "a gradient of rstd",
        RuntimeError,
        "rstd has a gradient; required: none",
        lambda: rstd.sum().backward(),
    )


# --- main_grad ---


def test_main_grad(suite):
    for dtype in DTYPES:
        inputs = inputs_of("layer_norm", (6, 96), dtype)
        plain = of(ft.layer_norm, inputs, list(inputs), (7,), eps=EPS)
        wanted = exact("layer_norm", inputs, list(inputs), (7,))
        leaves = {k: t.clone().requires_grad_() for k, t in inputs.items()}
        main = {k: normal((96,), torch.float32, 11 + i) for i, k in enumerate(("weight", "bias"))}
        before = {k: t.clone() for k, t in main.items()}
        for _ in range(2):
            y = ft.layer_norm(
                **leaves, eps=EPS, main_grad=main["weight"], bias_main_grad=main["bias"]
            )
            y.backward(normal(y.shape, y.dtype, 7))
        label = f"main_grad of layer_norm {dtype}"
        suite.check(
            f"{label}: dx", error_of(leaves["x"].grad / 2, plain["x"].double()) <= BOUNDS[dtype]
        )
        for k in main:
            suite.check(f"{label}: {k} has no grad", leaves[k].grad is None)
            # float32 also where the parameter is not, and added twice.
            error = error_of((main[k].double() - before[k].double()) / 2, wanted[k])
            suite.check(f"{label}: {k}'s sum in float32", error <= 1e-5, error)
    x = normal((4, 64), torch.float32, 1)
    weight, main = normal((64,), torch.float32, 3).requires_grad_(), torch.zeros(64, device=DEVICE)
    leaf = x.clone().requires_grad_()
    y, total = ft.add_rms_norm(leaf, x, weight, EPS, main_grad=main)
    (y.sum() + total.sum()).backward()
    twin = [t.detach().clone().requires_grad_() for t in (x, weight)]
    y, total = ft.add_rms_norm(twin[0], x, twin[1], EPS)
    (y.sum() + total.sum()).backward()
    suite.check(
        "main_grad of add_rms_norm",
        bits(main) == bits(twin[1].grad) and bits(leaf.grad) == bits(twin[0].grad),
    )
    bias = normal((64,), torch.float32, 5).requires_grad_()
    kept = main.clone()
    y = ft.layer_norm(leaf, weight, bias, EPS, main_grad=main)
    y.sum().backward()
    suite.check(
        "main_grad of the weight, a grad of the bias",
        weight.grad is None
        and bias.grad is not None
        and not torch.equal(main, kept)
        and torch.equal(bias.grad, torch.full_like(bias, 4)),
    )
    for label, text, options in (
        (
            "of bf16",
            "main_grad.dtype is torch.bfloat16; required: torch.float32",
            {"main_grad": main.bfloat16()},
        ),
        ("of another shape", "main_grad is [63]", {"main_grad": main[:63]}),
    ):
        suite.raises(
            f"main_grad {label}", ft.FastnormError, text, lambda: ft.rms_norm(x, weight, **options)
        )
    suite.raises(
        "main_grad without a weight",
        ft.FastnormError,
        "weight is None",
        lambda: ft.rms_norm(x, main_grad=main),
    )


# --- modules ---


def test_modules(suite):
    for shape, (ours, theirs) in itertools.product(
        ((96,), (4, 24)), ((ft.RMSNorm, torch.nn.RMSNorm), (ft.LayerNorm, torch.nn.LayerNorm))
    ):
        for options in ({}, {"eps": 1e-3}, {"elementwise_affine": False}) + (
            ({"bias": False},) if ours is ft.LayerNorm else ()
        ):
            label = f"{ours.__name__}({shape}, {options})"
            made, wanted = ours(shape, device=DEVICE, **options), theirs(
                shape, device=DEVICE, **options
            )
            suite.equal(
                f"{label}: names of the parameters",
                list(made.state_dict()),
                list(wanted.state_dict()),
            )
            with torch.no_grad():
                for i, p in enumerate(wanted.parameters()):
                    p.copy_(normal(p.shape, torch.float32, 20 + i, 0.2, 1.0))
            made.load_state_dict(wanted.state_dict())
            leaves = [
                normal((5, *shape), torch.float32, 1, 2.0, 0.25).requires_grad_() for _ in range(2)
            ]
            results = [made(leaves[0]), wanted(leaves[1])]
            suite.check(f"{label}: values", torch.allclose(*results, rtol=1e-5, atol=1e-6))
            for result in results:
                result.backward(normal((5, *shape), torch.float32, 7))
            pairs = [
                tuple(leaf.grad for leaf in leaves),
                *((a.grad, b.grad) for a, b in zip(made.parameters(), wanted.parameters())),
            ]
            suite.check(
                f"{label}: gradients", all(error_of(a, b.double()) < 1e-5 for a, b in pairs)
            )
    norm = ft.RMSNorm(64, device=DEVICE)
    norm.weight.main_grad = torch.zeros(64, device=DEVICE)
    x = normal((4, 64), torch.float32, 1).requires_grad_()
    y, total = norm(x, x.detach())
    (y * total).sum().backward()
    suite.check(
        "RMSNorm of a sum, with main_grad",
        norm.weight.grad is None and norm.weight.main_grad.any() and torch.equal(total, 2 * x),
    )
    suite.raises(
        "another shape",
        ft.FastnormError,
        "x.shape is [4, 64]; required: [.., 63]",
        lambda: ft.RMSNorm(63, device=DEVICE)(x),
    )
    # In a model: a step of SGD, then a smaller loss.
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64),
        ft.RMSNorm(64),
        torch.nn.GELU(),
        ft.LayerNorm(64),
        torch.nn.Linear(64, 1),
    ).to(DEVICE)
    x, target = normal((64, 32), torch.float32, 1), normal((64, 1), torch.float32, 2)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(20):
        optimiser.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    suite.check("a model learns", losses[-1] < 0.5 * losses[0], losses)


# --- transformations ---


def test_autocast(suite):
    """Autocast changes nothing, in the backward neither."""
    for name, dtype in itertools.product(FUNCTIONS, DTYPES):
        inputs = inputs_of(name, (4, 64), dtype)
        seeds = (7, 8) if "residual" in inputs else (7,)
        wanted = of(getattr(ft, name), inputs, list(inputs), seeds, eps=EPS)
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            found = of(getattr(ft, name), inputs, list(inputs), seeds, eps=EPS)
        suite.check(
            f"{name} {dtype} under autocast", all(bits(found[k]) == bits(wanted[k]) for k in wanted)
        )
    linear = torch.nn.Linear(64, 64, device=DEVICE)
    norm = ft.RMSNorm(64, EPS, device=DEVICE)
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        y = norm(linear(normal((4, 64), torch.float32, 1)))
    y.float().square().sum().backward()
    suite.check(
        "a model under autocast",
        y.dtype == torch.bfloat16
        and norm.weight.grad.dtype == torch.float32
        and linear.weight.grad.dtype == torch.float32
        and linear.weight.grad.isfinite().all(),
    )


def model_of(x, residual, weight, bias):
    y, total = ft.add_rms_norm(x * 2, residual, weight, EPS)
    z = ft.layer_norm(y + 1, weight, bias, EPS)
    inner = total * 1
    out = ft.fused_add_rms_norm(z, inner, weight, EPS)
    return ft.rms_norm(out, weight, EPS) + inner


def test_compile(suite):
    """The whole graph, forward and backward, once for several shapes."""
    for backend, dynamic in (("aot_eager", False), ("aot_eager", True)):
        torch._dynamo.reset()
        compiled = torch.compile(model_of, fullgraph=True, backend=backend, dynamic=dynamic)
        for shape in ((4, 64), (7, 64), (7, 96)):
            inputs = [
                normal(shape, torch.float32, 1),
                normal(shape, torch.float32, 2),
                normal(shape[-1:], torch.float32, 3, 0.2, 1.0),
                normal(shape[-1:], torch.float32, 4),
            ]
            results = []
            for function in (model_of, compiled):
                leaves = [t.clone().requires_grad_() for t in inputs]
                y = function(*leaves)
                y.backward(normal(shape, torch.float32, 7))
                results.append([bits(t) for t in (y, *(leaf.grad for leaf in leaves))])
            suite.check(
                f"compiled by {backend}, dynamic {dynamic}, {list(shape)}: bits of eager",
                results[0] == results[1],
            )
    torch._dynamo.reset()
    main = torch.zeros(64, device=DEVICE)

    def accumulate(x, weight):
        return ft.rms_norm(x * 2, weight, EPS, main_grad=main)

    compiled = torch.compile(accumulate, fullgraph=True, backend="aot_eager")
    x, weight = normal((4, 64), torch.float32, 1), normal((64,), torch.float32, 3)
    for function in (accumulate, compiled):
        main.zero_()
        leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
        for _ in range(2):
            function(*leaves).sum().backward()
        suite.check(
            f"main_grad, {function is compiled and 'compiled' or 'eager'}",
            leaves[1].grad is None and bool(main.any()),
        )
        last = main.clone() if function is accumulate else last
    suite.check("main_grad, compiled: bits of eager", bits(main) == bits(last))


def test_opcheck(suite):
    ops = torch.ops.fastnorm
    x, residual, weight = (
        normal((4, 64), torch.bfloat16, 28).requires_grad_(),
        normal((4, 64), torch.float32, 29).requires_grad_(),
        normal((64,), torch.float32, 30).requires_grad_(),
    )
    for name, args in (
        ("rms_norm", (x, weight, EPS, 0.0, "once")),
        ("layer_norm", (x, weight, weight, EPS, "once")),
        ("add_rms_norm", (x, residual, weight, EPS, 0.0, "once", "exact")),
    ):
        found = torch.library.opcheck(getattr(ops, name).default, args, raise_exception=False)
        suite.check(
            f"opcheck of {name} with gradients",
            len(found) == 4 and all(v == "SUCCESS" for v in found.values()),
            found,
        )
    x, weight, rstd = x.detach(), weight.detach(), torch.ones(4, 1, device=DEVICE)
    args = (
        x,
        x,
        weight,
        None,
        None,
        rstd,
        None,
        0,
        EPS,
        0.0,
        "once",
        torch.bfloat16,
        torch.float32,
        (True, True, False),
    )
    found = torch.library.opcheck(ops.norm_backward.default, args, raise_exception=False)
    suite.check("opcheck of norm_backward", all(v == "SUCCESS" for v in found.values()), found)


def test_functional(suite):
    """torch.func, checkpoints and saved tensors that hooks move."""
    x, weight = normal((3, 4, 64), torch.float32, 1), normal((64,), torch.float32, 3, 0.2, 1.0)

    def loss(x, weight):
        return ft.rms_norm(x, weight, EPS).square().sum()

    leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
    loss(*leaves).backward()
    found = torch.func.grad(loss, argnums=(0, 1))(x, weight)
    suite.check("torch.func.grad", all(bits(a) == bits(b.grad) for a, b in zip(found, leaves)))
    y, pull = torch.func.vjp(lambda a: ft.layer_norm(a, weight, weight, EPS), x)
    wanted = of(ft.layer_norm, {"x": x, "weight": weight, "bias": weight}, ["x"], (7,), eps=EPS)[
        "x"
    ]
    suite.check("torch.func.vjp", bits(pull(normal(y.shape, y.dtype, 7))[0]) == bits(wanted))
    each = torch.func.vmap(torch.func.grad(loss, argnums=1), (0, None))(x, weight)
    own = [torch.func.grad(loss, argnums=1)(x[i], weight) for i in range(3)]
    suite.check("gradients of each sample", all(bits(a) == bits(b) for a, b in zip(each, own)))
    again = x.clone().requires_grad_()
    torch.utils.checkpoint.checkpoint(
        lambda a: ft.rms_norm(a, weight, EPS), again, use_reentrant=False
    ).square().sum().backward()
    suite.check("a checkpoint", bits(again.grad) == bits(leaves[0].grad))
    again = x.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        y = ft.rms_norm(again, weight, EPS)
    y.square().sum().backward()
    suite.check("saved tensors that hooks replace", bits(again.grad) == bits(leaves[0].grad))


def test_capture(suite):
    """Forward and backward in a CUDA graph."""
    if DEVICE.type != "cuda":
        suite.skip("forward and backward in a CUDA graph", "needs a CUDA device")
        return
    x, weight = (
        normal((8, 256), torch.bfloat16, 1).requires_grad_(),
        normal((256,), torch.bfloat16, 3).requires_grad_(),
    )
    dy = normal((8, 256), torch.bfloat16, 7)

    def work():
        return torch.autograd.grad(ft.rms_norm(x, weight, EPS), (x, weight), dy)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = work()
    with torch.no_grad():
        x.copy_(normal((8, 256), torch.bfloat16, 2))
    graph.replay()
    torch.cuda.synchronize()
    suite.check(
        "forward and backward in a CUDA graph",
        all(bits(a) == bits(b) for a, b in zip(found, work())),
    )


def main():
    global torch, ft, DEVICE
    options = arguments(__doc__.splitlines()[0]).parse_args()
    library = use_library(options)
    suite = Suite("torch_backward", options)
    why = missing("torch", "numpy")
    if why is None:
        import torch
        import torch.utils.checkpoint

        suite.results["versions"] = {"torch": torch.__version__, "cuda": torch.version.cuda}
        if options.device == "cuda" and not torch.cuda.is_available():
            why = "PyTorch has no CUDA device here"
    if why:
        suite.skip("gradients of the PyTorch operators", why)
        suite.write()
        suite.finish()
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packages" / "python"))
    import fastnorm.torch as ft

    DEVICE = torch.device("cuda", 0) if options.device == "cuda" else torch.device("cpu")
    suite.results["versions"]["libfastnorm"] = ft.version()
    suite.results["device"] = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    print(
        f"{library}, libfastnorm {ft.version()}, torch {torch.__version__}, {suite.results['device']}",
        flush=True,
    )
    suite.run(
        [
            test_values,
            test_options,
            test_y_dtype,
            test_what_is_wanted,
            test_gradients_of_outputs,
            test_fused_add,
            test_views,
            test_no_rows,
            test_errors,
            test_main_grad,
            test_modules,
            test_autocast,
            test_compile,
            test_opcheck,
            test_functional,
            test_capture,
        ]
    )
    suite.finish()


main()
