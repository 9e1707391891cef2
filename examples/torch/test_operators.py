#!/usr/bin/env python3
"""What every PyTorch operator of libfastnorm owes PyTorch, and what all of them reach of the C
structs, on the CPU or a CUDA device. The last line is the count.

The operators are those that PyTorch has by name, so that a new one without calls here fails. Their
arguments are those that the public functions give them.
"""

import contextlib
import itertools
import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.append(str(Path(__file__).resolve().parents[1]))
import completeness  # noqa: E402

try:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError:  # then the suite says so
    TorchDispatchMode = object
from norm_testing import Suite, arguments, missing, use_library  # noqa: E402

EPS = 1e-5
ROWS, COLUMNS, HEAD = 4, 64, 32


def normal(*shape, dtype=None, seed=1, grad=False):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))
    return values.to(dtype or torch.float32).to(DEVICE).requires_grad_(grad)


def bits(t):
    return t.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


# --- public calls ---


def norms(grad):
    """Calls of the norms by name; with grad those that have a backward, whose tensors want it."""
    x, residual = normal(ROWS, COLUMNS, grad=grad), normal(ROWS, COLUMNS, seed=2, grad=grad)
    weight, bias = normal(COLUMNS, grad=grad), normal(COLUMNS, seed=3, grad=grad)
    gate = normal(ROWS, COLUMNS, seed=4, grad=grad)
    found = {
        "rms_norm": lambda: ft.rms_norm(x, weight, EPS),
        "layer_norm": lambda: ft.layer_norm(x, weight, bias, EPS),
        "add_rms_norm": lambda: ft.add_rms_norm(x, residual, weight, EPS),
        "fused_add_rms_norm": lambda: ft.fused_add_rms_norm(x, residual * 1, weight, EPS),
        "gated_norm": lambda: fs.gated_norm(x, gate, weight, EPS, bias=bias, group_size=32),
        "sandwich_norm": lambda: fs.sandwich_norm(x, residual, bias, weight, EPS, alpha=0.5),
        "sandwich_norm, layer": lambda: fs.sandwich_norm(
            x, residual, weight, weight, EPS, branch_kind="layer", branch_bias=bias, kind="layer",
            bias=bias,
        ),
        "adaln": lambda: fs.adaln(x, weight, bias, EPS),
        "adaln with a branch": lambda: fs.adaln(
            x, weight, bias, EPS, residual=residual, residual_gate=bias, branch_norm=True,
            branch_weight=weight, branch_bias=bias, kind="rms",
        ),
        "main_grad": lambda: ft.rms_norm(x, weight, EPS, main_grad=torch.zeros_like(weight)),
    }  # fmt: skip
    if grad:
        return found
    quant = fs.Quant("per_row", y=True)
    return {
        **found,
        "rms_norm_quant": lambda: ft.rms_norm_quant(x, weight, EPS, scheme="per_row"),
        "fused_add_rms_norm_quant": lambda: ft.fused_add_rms_norm_quant(
            x, residual.clone(), weight, EPS, scheme="mxfp8"
        ),
        "gated_norm_outputs": lambda: fs.gated_norm(x, gate, weight, EPS, quant=quant),
        "sandwich_norm_outputs": lambda: fs.sandwich_norm(x, residual, quant=quant),
        "adaln_outputs": lambda: fs.adaln(x, weight, quant=quant),
    }


def tables(dtype=None):
    angles = torch.arange(9.0)[:, None] / 10.0 ** torch.arange(HEAD / 2)
    made = [t.to(dtype or torch.float32).to(DEVICE) for t in (angles.cos(), angles.sin())]
    return {"cos": made[0], "sin": made[1], "rope_dim": HEAD}


def heads(grad):
    q, k = normal(5, 3, HEAD, grad=grad), normal(5, 2, HEAD, seed=2, grad=grad)
    weight, bias = normal(HEAD, grad=grad), normal(2, HEAD, grad=grad)
    parts = [
        fh.Part(q, norm="rms", eps=EPS, weight=weight, rope=True),
        fh.Part(k, norm="layer", eps=EPS, weight=weight, bias=bias),
    ]
    found = {"norm_heads_results": lambda: fh.norm_heads(parts, **tables())}
    if grad:
        return found
    slots = torch.arange(5, device=DEVICE)

    def stored():
        cache = torch.zeros(2, 4, 2, HEAD, device=DEVICE)
        return [parts[0], parts[1]._replace(cache=cache)]

    return {
        **found,
        "norm_heads": lambda: fh.norm_heads(stored(), slots=slots, **tables()),
        "norm_heads_": lambda: fh.norm_heads_(
            [p._replace(x=p.x.clone()) for p in stored()], slots=slots, **tables()
        ),
    }


def decode_tensors(dtype=None):
    dtype = dtype or torch.bfloat16
    pages = torch.arange(4, dtype=torch.int32, device=DEVICE).view(2, 2)
    lengths = torch.tensor([40, 70], dtype=torch.int32, device=DEVICE)
    cache = normal(4, 64, 576, dtype=dtype)
    query = normal(2, 1, 16, 576, dtype=dtype)
    return query, cache, lengths, pages


def decodes():
    query, cache, lengths, pages = decode_tensors()
    given = (query, None, cache, None, lengths, pages)
    workspace = fm.workspace_for(*given, sm_scale=0.07)
    return {
        "mla_decode": lambda: fm.mla_decode(*given, sm_scale=0.07),
        "mla_decode_planned": lambda: fm.mla_decode(*given, sm_scale=0.07, workspace=workspace),
    }


def flat(found):
    """The tensors of a result."""
    if isinstance(found, torch.Tensor):
        return [found]
    return [t for one in found if one is not None for t in flat(one)] if found is not None else []


# --- the operators that they call ---


class Calls(TorchDispatchMode):
    """Notes the operators of libfastnorm that are called, with their arguments."""

    def __init__(self):
        super().__init__()
        self.seen = {}

    def __torch_dispatch__(self, op, kinds, given=(), named=None):
        if op.namespace == "fastnorm":
            self.seen.setdefault(op._opname, []).append((op, copied(given, False)))
        return op(*given, **(named or {}))


def copied(given, grad):
    """Arguments with tensors of their own; with grad those of floating point want a gradient."""

    def one(a):
        if isinstance(a, (list, tuple)):
            return [one(element) for element in a]
        if not isinstance(a, torch.Tensor):
            return a
        a = a.detach().clone()
        return a.requires_grad_() if grad and a.dtype == torch.float32 else a

    return tuple(one(a) for a in given)


def recorded():
    """Operators and arguments by name: of all public calls, and of their backwards."""
    with Calls() as calls:
        groups = [norms(False), heads(False)] + ([decodes()] if HAS_MLA else [])
        for call in itertools.chain(*(group.values() for group in groups)):
            call()
        for call in itertools.chain(norms(True).values(), heads(True).values()):
            sum(t.float().pow(2).sum() for t in flat(call())).backward()
    return calls.seen


def every_operator():
    """Their names, without those behind compiled operators, which have the same schemas, and those
    of _C.so, which test_stable.py calls."""
    names = torch._C._dispatch_get_all_op_names()
    found = {n.partition("::")[2] for n in names if n.startswith("fastnorm::")}
    return {n for n in found if not n.endswith("_by_python") and not n.startswith("eager_")}


def test_opcheck(suite):
    """torch.library.opcheck of every operator, also with tensors that want a gradient where the
    operator has a backward."""
    seen, wanted = recorded(), every_operator()
    if not HAS_MLA:
        suite.skip("opcheck of mla_decode", "no kernels for it here")
        wanted -= {"mla_decode", "mla_decode_planned"}
    suite.equal("every operator is called", sorted(seen), sorted(wanted))
    differentiable = {
        "rms_norm",
        "layer_norm",
        "add_rms_norm",
        "gated_norm",
        "sandwich_norm",
        "adaln",
        "norm_heads_results",
    }
    for name, calls in sorted(seen.items()):
        # The calls of an operator that differ in what there is.
        kinds = {
            str([None if a is None else type(a) for a in given]): i
            for i, (_, given) in enumerate(calls)
        }
        for grad in (False, True) if name in differentiable else (False,):
            for i in kinds.values():
                op, given = calls[i]
                own = copied(given, grad)
                for a, argument in zip(own, op._schema.arguments):
                    if argument.name in ("cos", "sin") and a is not None:
                        a.requires_grad_(False)  # tables have no gradient
                found = torch.library.opcheck(op, own, raise_exception=False)
                suite.check(
                    f"opcheck of {name}{', gradients' if grad else ''}, call {i}",
                    len(found) == 4 and all(v == "SUCCESS" for v in found.values()),
                    found,
                )


def public(grad=False):
    groups = [norms(grad), heads(grad)]
    if not grad and HAS_MLA:
        groups.append(decodes())
    return {name: call for group in groups for name, call in group.items()}


def refused(suite, name, call, text):
    suite.raises(name, RuntimeError, text, call)


def test_forward_derivatives(suite):
    """A tangent of any tensor of any operator is refused, not lost; also where a gradient is
    differentiated forward."""
    for name, calls in sorted(recorded().items()):
        op, given = calls[0]
        places = [
            (i, j)
            for i, a in enumerate(given)
            for j in (range(len(a)) if isinstance(a, list) else (None,))
            if isinstance(a if j is None else a[j], torch.Tensor)
            and (a if j is None else a[j]).is_floating_point()
        ]
        suite.check(f"{name} has tensors", places)
        for i, j in places:
            with torch.no_grad(), torch.autograd.forward_ad.dual_level():
                own = list(copied(given, False))
                t = own[i] if j is None else own[i][j]
                dual = torch.autograd.forward_ad.make_dual(t, torch.ones_like(t))
                if j is None:
                    own[i] = dual
                else:
                    own[i][j] = dual
                refused(suite, f"a tangent of {name}, {i}, {j}", lambda: op(*own),
                        f"fastnorm::{name} has no forward derivative")  # fmt: skip
    x, weight = normal(5, 3, HEAD), normal(HEAD)
    functions = {
        "rms_norm": lambda a: ft.rms_norm(a, weight),
        "gated_norm": lambda a: fs.gated_norm(a, a * 2),
        "norm_heads": lambda a: fh.norm_heads([fh.Part(a, norm="rms", weight=weight)])[0],
    }
    for name, function in functions.items():
        text = "has no forward derivative"
        refused(suite, f"jvp of {name}", lambda: torch.func.jvp(function, (x,), (x,)), text)
        gradient = torch.func.grad(lambda a: function(a).pow(3).sum())
        refused(suite, f"jvp of {name}'s grad", lambda: torch.func.jvp(gradient, (x,), (x,)), text)
        wanted = torch.autograd.grad(function(y := x.clone().requires_grad_()).pow(3).sum(), y)[0]
        suite.check(f"grad of {name}", torch.equal(gradient(x), wanted))
        refused(
            suite,
            f"grad of {name}'s grad",
            lambda: torch.func.grad(lambda a: gradient(a).pow(2).sum())(x),
            "has no backward",
        )
        if name != "norm_heads":
            rows = torch.vmap(torch.func.grad(lambda a: function(a).pow(3).sum()))(x)
            suite.check(f"vmap of {name}'s grad", torch.equal(rows, wanted))


def test_second_derivatives(suite):
    """The gradient of a sum, which wants no gradient itself, still knows that it has a history."""
    for name, call in public(grad=True).items():
        if name == "main_grad":
            text = "norm_backward_accumulate has no backward"
            total = sum(t.float().sum() for t in flat(call()))
            refused(suite, f"{name}, create_graph", lambda: total.backward(create_graph=True), text)
            continue
        leaves = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: (leaves.append(t), t)[1], lambda t: t
        ):
            total = sum(t.float().sum() for t in flat(call()))
        leaves = [t for t in leaves if t.requires_grad and t.is_leaf]
        suite.check(f"{name} keeps leaves", leaves)
        for t in leaves:
            (gradient,) = torch.autograd.grad(total, t, create_graph=True, retain_graph=True)
            if not suite.check(f"{name}: a gradient has a history", gradient.requires_grad):
                continue
            refused(suite, f"{name}: its derivative", gradient.pow(2).sum().backward,
                    "has no backward")  # fmt: skip


def test_places(suite):
    """One tensor on meta beside others is refused by every operator, and nothing is written; all on
    meta give results of the right form."""
    for name, calls in sorted(recorded().items()):
        op, given = calls[0]
        results = [(t.shape, t.dtype, t.stride()) for t in flat(op(*copied(given, False)))]
        on_meta = torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda t: t.to("meta"), copied(given, False)
        )
        found = flat(op(*on_meta))
        suite.equal(
            f"{name} on meta", [(t.shape, t.dtype, t.stride()) for t in found], results
        )
        suite.check(f"{name}: results on meta", all(t.is_meta for t in found))
        tensors, spec = torch.utils._pytree.tree_flatten(list(given))
        for i, t in enumerate(tensors):
            if not isinstance(t, torch.Tensor):
                continue
            own = [a.clone() if isinstance(a, torch.Tensor) else a for a in tensors]
            own[i] = t.to("meta")
            before = [bits(a) for a in own if isinstance(a, torch.Tensor) and not a.is_meta]
            if not before:
                continue
            refused(
                suite,
                f"{name}, tensor {i} on meta",
                lambda: op(*torch.utils._pytree.tree_unflatten(own, spec)),
                "meta",
            )
            suite.equal(
                f"{name}, tensor {i} on meta: nothing is written",
                [bits(a) for a in own if isinstance(a, torch.Tensor) and not a.is_meta],
                before,
            )


# --- what the C structs have ---


def test_completeness(suite):
    """Calls that use every argument of every function; see completeness.py."""
    recorder = completeness.Recorder(ft._c, ft._library)
    ft._calls.made.clear()
    one = torch.full((1,), 0.5, device=DEVICE)
    dtypes = (torch.float32, torch.bfloat16)
    for dtype in dtypes:
        x, residual = normal(6, 256, dtype=dtype), normal(6, 256, dtype=dtype, seed=2)
        w, b = normal(256), normal(256, seed=3)
        for rounding in ft._ROUNDING:
            ft.rms_norm(x, w, EPS, weight_offset=1.0, rounding=rounding)
        for rounding in ft._RESIDUAL_ROUNDING:
            ft.add_rms_norm(x, residual, w, EPS, residual_rounding=rounding)
        ft.layer_norm(x, w, b, EPS)
        for scheme in ft._SCHEMES:
            block = {"block_size": 128} if scheme == "per_block" else {}
            ft.rms_norm_quant(x, w, EPS, scheme=scheme, quant_source="rounded", clamp=2.0, **block)
        ft.rms_norm_quant(
            x, scheme="per_block", block_size=64, division="divide", layout="column_major",
            amax_floor=0.25, clamp_scale=one,
        )  # fmt: skip
        ft.rms_norm_quant(x, scheme="per_row", pow2=True)
        ft.rms_norm_quant(x, scheme="nvfp4", layout="swizzled_128x4", global_scale=one)
        signs = torch.ones(256, device=DEVICE)
        ft.rms_norm_quant(x, scheme="per_row", rotation=64, rotation_signs=signs)
        ft.fused_add_rms_norm_quant(x, residual.clone(), scheme="mxfp8", rotation=32)
        for settings in completeness.settings_of_codes(stages.SETTINGS, one):
            with contextlib.suppress(ft.FastnormError, ValueError):
                fs.gated_norm(x, x.clone(), quant=fs.Quant(**settings, y=True))
        for act in ("identity", "silu", "sigmoid", "tanh"):
            fs.gated_norm(x, x.clone(), w, gate_act=act, activation=act, group_size=64)
            fs.adaln(x, w, residual=residual, residual_gate=b, residual_gate_act=act)
        fs.gated_norm(x, x.clone(), gate_before=True)
        fs.gated_norm(x, x.clone(), gate_from_rounded=True)
        mean, rstd = torch.zeros(6, 1, device=DEVICE), torch.ones(6, 1, device=DEVICE)
        fs.gated_norm(x, mean_in=mean, rstd_in=rstd, kind="layer")
        fs.gated_norm_sums(x)
        fs.sandwich_norm(
            x, residual, w, w, EPS, bias=b, kind="layer", branch_kind="layer", branch_bias=b,
            branch_weight_offset=1.0, branch_rounding="every_step", branch_rounded=True,
            alpha=0.5, sum_scale=one, sum_rounding="every_step",
        )  # fmt: skip
        index = torch.tensor([0, 1, 1, 0, 1, 0], device=DEVICE)
        rows = normal(2, 256)
        fs.adaln(
            x, rows, rows, residual=residual, residual_gate=rows, residual_gate_table=b,
            scale_table=w, shift_table=b, index=index, modulation_rounding="every_step",
        )  # fmt: skip
        fs.adaln(x, w, plain_scale=True)
        leaf = x.clone().requires_grad_()
        weight = w.clone().requires_grad_()
        bias = b.clone().requires_grad_()
        for call in (
            lambda: ft.layer_norm(leaf, weight, bias, EPS),
            lambda: ft.layer_norm(
                leaf, weight, bias, main_grad=w.clone(), bias_main_grad=b.clone()
            ),
            lambda: sum(ft.add_rms_norm(leaf, residual.float().requires_grad_(), weight, EPS)),
            lambda: fs.gated_norm(leaf, leaf * 2, weight, bias=bias, group_size=64),
            lambda: fs.gated_norm(leaf, leaf * 2, weight, gate_act="tanh", gate_from_rounded=True),
            lambda: fs.gated_norm(leaf, leaf * 2, gate_act="sigmoid", gate_before=True),
            lambda: ft.rms_norm(leaf, weight, EPS, weight_offset=1.0, rounding="normalized"),
            lambda: ft.rms_norm(leaf, weight, EPS, rounding="every_step"),
            lambda: ft.rms_norm(leaf, weight, EPS, rounding="once_rw"),
            lambda: fs.sandwich_norm(
                leaf, residual, weight, weight, EPS, branch_bias=bias, branch_kind="layer",
                branch_weight_offset=1.0, branch_rounding="normalized", branch_rounded=True,
                alpha=0.5, sum_scale=one,
            )[0],
            lambda: fs.sandwich_norm(leaf, residual, weight, branch_rounding="every_step")[0],
            *(
                lambda act=act: fs.adaln(
                    leaf, weight, residual=residual, residual_gate=bias, residual_gate_act=act,
                    branch_norm=True, branch_weight=weight, branch_bias=bias,
                )[0]
                for act in ("silu", "sigmoid", "tanh")
            ),
        ):  # fmt: skip
            call().float().pow(2).sum().backward()
        complete_heads(dtype, one)
    if HAS_MLA:
        complete_decodes()
    completeness.check(suite, ft._c, "PyTorch", recorder)


def complete_codes(x, settings):
    """One part with these settings of a Quant, or nothing where they do not go together."""
    quant = fs.Quant(**settings)
    part = {s.of_part: getattr(quant, s.name) for s in stages.SETTINGS}
    with contextlib.suppress(ft.FastnormError, ValueError):
        if quant.scheme == "per_tensor":
            part["quantized"] = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
        elif quant.scale is None:
            codes, scale = ft._quant_outputs(
                x, quant.scheme, quant.block_size, torch.float8_e4m3fn, quant.layout, quant.pow2
            ).values()
            part.update(quantized=codes, scale=scale)
        fh.norm_heads([fh.Part(x, **part)])


def complete_heads(dtype, one):
    def rows(heads=2):
        return normal(5, heads, 64, dtype=dtype)

    def empty(*shape, dtype=torch.float32):
        return torch.zeros(shape, dtype=dtype, device=DEVICE)

    e4m3 = torch.float8_e4m3fn
    slots = torch.arange(5, device=DEVICE)
    angles = torch.rand(9, 16, device=DEVICE)
    turned = {"cos": angles.cos(), "sin": angles.sin(), "rope_dim": 32}
    w = normal(64)
    fh.norm_heads([fh.Part(rows(), norm="rms", eps=EPS, weight=w, weight_offset=1.0,
                           across_heads=True, rstd=empty(5))])  # fmt: skip
    fh.norm_heads([fh.Part(rows(), norm="layer", weight=w, bias=w, mean=empty(5, 2),
                           sumsq=empty(5, 2, 2))])  # fmt: skip
    fh.norm_heads([fh.Part(rows(), norm="layer", mean_in=empty(5, 2), rstd_in=empty(5, 2))])
    for rounding in ft._ROUNDING:
        fh.norm_heads([fh.Part(rows(), norm="rms", eps=EPS, rounding=rounding)])
    positions = torch.arange(5, device=DEVICE).expand(4, 5)
    sections = {"positions": positions, "mrope": (4, 4, 4, 4)}
    fh.norm_heads([fh.Part(rows(), rope=True, rope_offset=8, inverse=True)], **turned, **sections)
    fh.norm_heads(
        [fh.Part(rows(), rope=True, interleaved=True, rope_rounding="every_step")],
        **turned, positions=positions[:3], mrope=(6, 5, 5), mrope_interleaved=True,
    )  # fmt: skip
    fh.norm_heads([fh.Part(rows(), norm="rms", rope=True, from_rounded=True)], **turned)
    for settings in completeness.settings_of_codes(stages.SETTINGS, one):
        complete_codes(rows(), settings)
    codes = {"quantized": empty(5, 2, 64, dtype=e4m3)}
    signs = torch.ones(64, device=DEVICE)
    fh.norm_heads([fh.Part(rows(), scheme="per_row", scale=empty(5, 2), rotation=64,
                           rotation_signs=signs, cache_rotation=32,
                           cache_rotation_signs=signs[:32], cache_scale=one,
                           cache=empty(2, 4, 2, 64, dtype=e4m3), **codes)],
                  slots=slots)  # fmt: skip
    fh.norm_heads([fh.Part(rows(), y=False, scheme="per_row", scale=empty(5, 2),
                           head_weights=empty(5, 2), head_weights_out=empty(5, 2),
                           head_weights_factor=0.5, **codes)])  # fmt: skip
    bytes_of = {"cache": empty(2, 4, 2, 64, dtype=torch.uint8), "cache_dtype": e4m3}
    fh.norm_heads([fh.Part(rows(), cache_scale=one, **bytes_of)], slots=slots)
    fh.norm_heads([fh.Part(rows(), cache_scale=empty(2, 4, 2, 1), cache_block=64, cache_pow2=True,
                           **bytes_of)], slots=slots)  # fmt: skip
    fh.norm_heads([fh.Part(rows(), cache=empty(2, 4, 2, 56, dtype=e4m3), cache_scale=one,
                           cache_tail=empty(2, 4, 2, 8, dtype=dtype))], slots=slots)  # fmt: skip
    weight = w.clone().requires_grad_()
    x = rows().requires_grad_()
    for part in (
        fh.Part(x, norm="rms", eps=EPS, weight=weight, weight_offset=1.0, rope=True, rope_offset=8),
        fh.Part(x, norm="layer", weight=weight, bias=weight, interleaved=True, rope=True),
        fh.Part(x, norm="rms", across_heads=True, rope=True, inverse=True, from_rounded=True),
        *(fh.Part(x, norm="rms", rope=True, rounding=rounding) for rounding in ft._ROUNDING),
    ):
        (y,) = fh.norm_heads([part], **turned, **sections)
        y.float().pow(2).sum().backward()
    part = fh.Part(x, rope=True, interleaved=True)
    more = {"positions": positions[:3], "mrope": (6, 5, 5), "mrope_interleaved": True}
    fh.norm_heads([part], **turned, **more)[0].float().pow(2).sum().backward()


def call_selected_rows(query, cache, lengths):
    """Caches of rows and of bytes, with all that goes with indices. A GPU refuses them."""
    indices = torch.zeros(2, 1, 3, dtype=torch.int32, device=DEVICE)
    sink = normal(16)
    more = {"indices": indices, "topk_length": lengths * 0 + 2, "attention_sink": sink}
    more.update(extra_indices=indices, extra_topk_length=lengths * 0, sm_scale=0.07)
    calls = [(query, cache[..., :512], cache[..., 512:], {"extra_kpe": cache[..., 512:]})]
    for row in fm._FORMATS:
        stored = torch.zeros(4, 64, row, dtype=torch.uint8, device=DEVICE)
        scale = {"cache_scale": sink[:1]} if row == 576 else {}
        calls.append((query[..., 64:] if row == 584 else query, stored, None, scale))
    for q, ckv, kpe, own in calls:
        try:
            fm.mla_decode(q, None, ckv, kpe, None, None, extra_ckv=ckv, **own, **more)
        except ft.FastnormError as error:
            if DEVICE.type == "cpu" or "on a CUDA device" not in str(error):
                raise


def complete_decodes():
    query, cache, lengths, pages = decode_tensors()
    given = (query.flatten(0, 1), None, cache, None, lengths)
    starts = torch.tensor([0, 2, 4], dtype=torch.int32, device=DEVICE)
    new = torch.tensor([0, 1, 2], dtype=torch.int32, device=DEVICE)
    fm.mla_decode(
        *given, pages.flatten(), sm_scale=0.07, causal=True, kv_indptr=starts, qo_indptr=new,
        max_s_q=1, lse_base="2", split_tokens=64, total_kv_hint=110,
    )  # fmt: skip
    workspace = fm.workspace_for(*given, pages, sm_scale=0.07)
    for reuse in (False, True):
        fm.mla_decode(*given, pages, sm_scale=0.07, workspace=workspace, reuse_plan=reuse)
    call_selected_rows(query, cache, lengths)
    profile = torch.zeros(1 << 20, dtype=torch.uint8, device=DEVICE)
    try:
        fm.mla_decode(*given, pages, sm_scale=0.07, profile=profile, profile_events=16)
    except ft.FastnormError as error:  # on the CPU
        if "profile" not in str(error):
            raise


if __name__ == "__main__":
    parser = arguments(__doc__.splitlines()[0])
    options = parser.parse_args()
    why = missing("torch", "numpy")
    suite = Suite("torch operators", options)
    if why:
        suite.skip("the PyTorch operators", why)
        suite.write()
        suite.finish()
    os.environ["FASTNORM_LIBRARY"] = use_library(options)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packages" / "python"))
    import fastnorm.torch as ft
    import fastnorm.torch.mla_decode as fm
    import fastnorm.torch.norm_heads as fh
    import fastnorm.torch.norm_stages as fs
    from fastnorm import stages

    DEVICE = torch.device("cuda", 0) if options.device == "cuda" else torch.device("cpu")
    HAS_MLA = DEVICE.type == "cpu" or torch.cuda.get_device_capability() == (9, 0)
    suite.results["versions"]["torch"] = torch.__version__
    suite.run(
        [
            test_opcheck,
            test_forward_derivatives,
            test_second_derivatives,
            test_places,
            test_completeness,
        ]
    )
    suite.finish()
