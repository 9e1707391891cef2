"""Norms with stages beside others: cases, tensors, what a result must be, and who computes it.

A case is TOKENSxMODEL[:WHAT]. MODEL is one of MODELS, WHAT forward (the default) or backward. Rows
are tokens. n is the number of columns that are normalised together, but for groups. adaLN has two
images of half the tokens each, with a modulation each. Of one token there is one image.

Providers work with the functions of their packages that are nearest to the kernels. One that is not
installed only says so.
"""

import dataclasses
import functools
import importlib
import types

from compare import family, peers
from compare.ops import ALIKE, JOINED
from compare.reference import EPS
from compare.timing import Unsupported

TOKENS = (1, 16, 64, 4096, 16384)
WHATS = ("forward", "backward")
IMAGES, MODULATORS = 2, 6
FEW_TOKENS, MANY_TOKENS = 64, 4096
FEW_US, MANY_RATIO = 0.6, 1.06  # what a call may take beyond the stream of its bytes


@dataclasses.dataclass(frozen=True)
class Model:
    stage: str  # gated, sandwich or adaln
    columns: int
    heads: int = 1
    act: str = "silu"  # of a gate
    gate_before: bool = False
    group: int = 0  # columns that share a statistic, where that is not all
    weight_offset: float = 0.0
    layer: bool = True  # adaLN's norm is LayerNorm and has a gated sum before and a shift after
    single: bool = False  # adaLN's modulators are f32, and have tables


MODELS = {
    "qwen3-next": Model("gated", 128, heads=32),
    "kimi": Model("gated", 128, heads=32, act="sigmoid"),
    "mamba2": Model("gated", 8192, gate_before=True, group=1024),
    "gemma3": Model("sandwich", 5376, weight_offset=1.0),
    "gemma2": Model("sandwich", 3584, weight_offset=1.0),
    "dit": Model("adaln", 1152),
    "flux": Model("adaln", 3072),
    "wan": Model("adaln", 5120, single=True),
    "lumina2": Model("adaln", 2304, layer=False),
}


class StagesCase:
    dtype = "bf16"
    op = types.SimpleNamespace(heads=False, backward=False)  # of the streams beside it

    def __init__(self, text):
        shape, _, what = text.partition(":")
        tokens, _, name = shape.partition("x")
        self.what = what or "forward"
        if not tokens.isdigit() or int(tokens) < 1 or name not in MODELS or self.what not in WHATS:
            raise ValueError(
                f"'{text}' is no case of stages; required: TOKENSxMODEL[:WHAT], MODEL one of "
                f"{', '.join(MODELS)} and WHAT one of {', '.join(WHATS)}, such as 4096xgemma3"
            )
        self.name, self.model, self.rows = name, MODELS[name], int(tokens)
        self.n = self.model.columns
        self.images = IMAGES if self.model.stage == "adaln" and self.rows % IMAGES == 0 else 1
        self.op_name = f"{self.model.stage} {name} {self.what}"
        self.key = f"{self.op_name} {self.dtype} {self.rows}x{self.n}"

    @property
    def backward(self):
        return self.what == "backward"

    @property
    def kind(self):
        return self.model.stage + ("_backward" if self.backward else "")

    @property
    def shape(self):
        if self.model.stage == "adaln":
            return self.images, self.rows // self.images, self.n
        return (self.rows, *((self.model.heads,) if self.model.heads > 1 else ()), self.n)

    @property
    def adds(self):
        """Whether the sum with a residual leaves too."""
        return self.model.stage == "sandwich" or self.model.stage == "adaln" and self.model.layer

    @property
    def gated(self):
        return self.model.stage == "gated"

    @property
    def tensors(self):
        """(read, written) of rows; weights and modulators are few bytes and not counted."""
        if self.backward:
            return (4, 2) if self.adds else (3, 2) if self.gated else (2, 1)
        return (2, 2) if self.adds else (2, 1) if self.gated else (1, 1)

    @property
    def bytes_moved(self):
        return sum(self.tensors) * self.rows * self.model.heads * self.n * 2

    footprint = bytes_moved

    @property
    def stream(self):
        """(tensors read, how one is written, bytes of each): as many bytes in all, with about this
        share of what is read."""
        reads, written = self.tensors
        more = 2 if self.adds else 1
        return family.stream_of(
            self.bytes_moved, *((more, ALIKE) if reads == written else (2, JOINED))
        )


def cases_of(models, whats, tokens):
    """All that there are of these, few tokens first."""
    texts = (f"{count}x{name}:{what}" for count in tokens for name in models for what in whats)
    return [StagesCase(text) for text in texts]


class StagesBuffers:
    """The tensors of all calls of a chain; lists are indexed by call.

    given, other        inputs, never written; other is the gate or the residual
    y, total            for those that work in place: what given and other have, after reset()
    dy, dtotal          gradients of the results
    weight, branch_weight [n], less their offset
    modulation          [images, 1, 6 * n]
    gate, scale, shift  [images, 1, n], views of it
    gate_table, scale_table, shift_table  [n] of f32, or None
    """

    def __init__(self, torch, case, chain, inputs, outputs, device):
        m, shape, kind = case.model, case.shape, torch.bfloat16
        self.torch, self.case, self._outputs = torch, case, outputs
        forward = not case.backward
        sizes = {
            "given": (inputs, shape, kind, True),
            "other": (inputs, shape, kind, case.gated or case.adds),
            "dy": (inputs, shape, kind, case.backward),
            "dtotal": (inputs, shape, kind, case.backward and case.adds),
            "y": (outputs, shape, kind, forward),
            "total": (outputs, shape, kind, forward and case.adds),
        }
        family.cut(self, chain.calls, inputs, outputs, sizes, case.dtype)
        generator = torch.Generator("cpu").manual_seed(3)

        def uniform(low, high, *extents):
            return torch.empty(extents).uniform_(low, high, generator=generator)

        near = uniform(0.5, 1.5, 2, case.n).to(kind).float() - m.weight_offset
        self.weight, self.branch_weight = near.to(device, kind)
        single = torch.float32 if m.single else kind
        modulation = uniform(-0.5, 0.5, case.images, 1, MODULATORS * case.n)
        self.modulation = modulation.to(device, single)
        self.shift, self.scale, self.gate, *_ = self.modulation.split(case.n, -1)
        tables = uniform(-0.5, 0.5, 3, case.n).to(device)
        self.shift_table, self.scale_table, self.gate_table = tables if m.single else [None] * 3

    def reset(self):
        """Inputs for those that work in place, and NaN elsewhere in the outputs."""
        self._outputs.refill()
        for source, target in [*zip(self.given, self.y), *zip(self.other, self.total)]:
            target.copy_(source)

    def parameters(self):
        """Tensors beside the rows that a call has gradients of, by name."""
        m = self.case.model
        if m.stage == "adaln" and m.layer:
            return {name: getattr(self, name) for name in ("gate", "scale", "shift")}
        more = {"scale": self.scale} if m.stage == "adaln" else {}
        more |= {"branch_weight": self.branch_weight} if m.stage == "sandwich" else {}
        return {"weight": self.weight, **more}


# --- the formula ---


def normalised(v, layer=False):
    """Rows with a statistic of their own, in v's dtype."""
    v = v - v.mean(-1, keepdim=True) if layer else v
    return v * (v.square().mean(-1, keepdim=True) + EPS).rsqrt()


def activated(torch, act, v):
    return torch.sigmoid(v) if act == "sigmoid" else v * torch.sigmoid(v)


def formula(b, given, other, p):
    """The results of a call, in the dtype of what it is given: {"y"}, or {"y", "total"}. p:
    parameters() in this dtype."""
    m, torch = b.case.model, b.torch
    if m.stage == "gated":
        gate = activated(torch, m.act, other)
        v = given * gate if m.gate_before else given
        v = normalised(v.unflatten(-1, (-1, m.group))).flatten(-2) if m.group else normalised(v)
        v = v * (p["weight"] + m.weight_offset)
        return {"y": v if m.gate_before else v * gate}
    if m.stage == "sandwich":
        total = normalised(given) * (p["branch_weight"] + m.weight_offset) + other
        return {"y": normalised(total) * (p["weight"] + m.weight_offset), "total": total}

    def modulator(name):
        table = getattr(b, f"{name}_table")
        return p[name] if table is None else p[name] + table.to(p[name].dtype)

    if not m.layer:
        return {"y": normalised(given) * p["weight"] * (1 + modulator("scale"))}
    total = given * modulator("gate") + other
    y = normalised(total, layer=True) * (1 + modulator("scale")) + modulator("shift")
    return {"y": y, "total": total}


def leaves(b, i, dtype=None):
    """(given, other or None, parameters) of call i, which want gradients."""
    cast = lambda t: (t if dtype is None else t.to(dtype)).detach().clone().requires_grad_()
    other = cast(b.other[i]) if b.other else None
    return cast(b.given[i]), other, {name: cast(t) for name, t in b.parameters().items()}


def gradients_of(b, given, other, parameters):
    """{name: leaf} of those that want gradients."""
    rows = {"x": given} if other is None else {"x": given, "other": other}
    return rows | parameters


class StagesReference(family.FamilyReference):
    terms = {}

    def wanted(self, i):
        b, torch = self.buffers, self.torch
        if not self.case.backward:
            double = {name: t.double() for name, t in b.parameters().items()}
            other = b.other[i].double() if b.other else None
            found = formula(b, b.given[i].double(), other, double)
            if self.case.model.stage == "sandwich":
                self.terms = self._terms(b.given[i].double(), other, double, found["total"])
            return found
        inputs = leaves(b, i, torch.float64)
        with torch.enable_grad():
            results = formula(b, *inputs)
        wanted = gradients_of(b, *inputs)
        of_results = [g[i].double() for g in (b.dy, b.dtotal) if g]
        found = torch.autograd.grad([*results.values()], [*wanted.values()], of_results)
        return dict(zip((f"d{name}" for name in wanted), found))

    def given(self, i, results):
        if self.case.backward:
            return {name: t for name, t in results.items() if t is not None}
        b = self.buffers
        found = {"y": results.get("y", b.y[i])}
        return found | ({"total": results.get("total", b.total[i])} if self.case.adds else {})

    def _terms(self, given, other, parameters, total):
        """Magnitudes of the terms of a sandwich's results. Most contenders round the branch, and
        where it cancels against the residual, that error stays."""
        offset = self.case.model.weight_offset
        branch = normalised(given) * (parameters["branch_weight"] + offset)
        of_sum = self.torch.maximum(branch.abs(), other.abs())
        rstd = (total.square().mean(-1, keepdim=True) + EPS).rsqrt()
        return {"total": of_sum, "y": of_sum * rstd * (parameters["weight"] + offset).abs()}

    def limits(self, name, exact, codes):
        if name in self.terms:
            near = self.torch.maximum(exact.abs(), self.terms[name]).clamp(min=1.0)
            return exact, 4 * family.UNIT * near
        if name in ("y", "total"):
            return super().limits(name, exact, codes)
        if name not in ("dx", "dother"):
            return super().limits(f"{name}_weight", exact, codes)
        # A gradient is a difference of terms of its row's magnitude.
        near = exact.abs().amax(-1, keepdim=True).clamp(min=1.0)
        return exact, 4 * family.UNIT * near


class StagesGpu(family.FamilyGpu):
    buffers_kind, reference_kind = StagesBuffers, StagesReference


class StagesHost(family.FamilyHost):
    buffers_kind, reference_kind = StagesBuffers, StagesReference


# --- contenders ---


class Provider(family.Provider):
    """run(b) of a case, where there is one, returns a function of (given, other, parameters) that
    autograd knows."""

    def results(self, case, b, run):
        """Calls of run(); its results are new tensors."""
        names, parameters = ("y", "total"), b.parameters()
        others = b.other or [None] * len(b.given)

        def body(i):
            found = run(b.given[i], others[i], parameters)
            return dict(zip(names, found if isinstance(found, tuple) else (found,)))

        return body

    def gradients(self, case, b, run):
        """Calls of autograd through run(), whose forward ran before."""
        torch, calls = self.torch, []
        for i in range(len(b.given)):
            inputs = leaves(b, i)
            with torch.enable_grad():
                found = run(*inputs)
            found = found if isinstance(found, tuple) else (found,)
            calls.append((found, gradients_of(b, *inputs), [g[i] for g in (b.dy, b.dtotal) if g]))

        def body(i):
            results, wanted, given = calls[i]
            found = torch.autograd.grad(
                results, [*wanted.values()], given, retain_graph=True, allow_unused=True
            )
            return dict(zip((f"d{name}" for name in wanted), found))

        return body


class Whole(Provider):
    """One whose run(case, b) has a function for every stage, with its gradients."""

    def body(self, case, b):
        return (self.gradients if case.backward else self.results)(case, b, self.run(case, b))


class Fastnorm(Whole):
    name, label = "fastnorm", "fastnorm, one call"

    def __init__(self, torch):
        super().__init__(torch)
        self.module = importlib.import_module("fastnorm.torch.norm_stages")

    def run(self, case, b):
        m, module = case.model, self.module
        if m.stage == "gated":
            settings = {
                "gate_act": m.act, "gate_before": m.gate_before, "group_size": m.group,
                "weight_offset": m.weight_offset,
            }
            return lambda x, gate, p: module.gated_norm(x, gate, p["weight"], EPS, **settings)
        if m.stage == "sandwich":
            settings = {
                "branch_weight_offset": m.weight_offset, "weight_offset": m.weight_offset,
                "branch_rounded": True,
            }
            return lambda x, residual, p: module.sandwich_norm(
                x, residual, p["branch_weight"], p["weight"], EPS, **settings
            )
        if not m.layer:
            return lambda x, _, p: module.adaln(
                x, p["scale"], None, EPS, weight=p["weight"], kind="rms"
            )
        tables = {
            "residual_gate_table": b.gate_table, "scale_table": b.scale_table,
            "shift_table": b.shift_table,
        }
        return lambda x, residual, p: module.adaln(
            x, p["scale"], p["shift"], EPS, residual=residual, residual_gate=p["gate"], **tables
        )


class FastnormChain(Provider):
    """The same in two calls of the library."""

    name, label = "fastnorm-chain", "fastnorm, two norms"
    lacks = {
        kind: "no chain: a gate and a modulation are no calls of their own"
        for kind in ("gated", "gated_backward", "adaln", "adaln_backward")
    }

    def __init__(self, torch):
        super().__init__(torch)
        self.module = importlib.import_module("fastnorm.torch")

    def _run(self, case):
        module, offset = self.module, case.model.weight_offset

        def run(x, residual, p):
            branch = module.rms_norm(x, p["branch_weight"], EPS, weight_offset=offset)
            return module.add_rms_norm(branch, residual, p["weight"], EPS, weight_offset=offset)

        return run

    def sandwich(self, case, b):
        return self.results(case, b, self._run(case))

    def sandwich_backward(self, case, b):
        return self.gradients(case, b, self._run(case))


class FlashInferCuda(Provider):
    """rmsnorm and fused_add_rmsnorm."""

    name, label, package = "flashinfer-cuda", "FlashInfer CUDA", "flashinfer-python"
    lacks = {
        "gated": "its gated norm, rmsnorm_sigmoid_gate, is of 64 columns and for sm_100",
        "adaln": "its fused_dit_layernorm of 3072 columns ends in an illegal address as called here",
    }

    def __init__(self, torch):
        super().__init__(torch)
        self.module = peers.FlashInferCuda(torch).module

    def sandwich(self, case, b):  # in place: y becomes the norm, total the sum
        names = ("rmsnorm", "fused_add_rmsnorm")
        norm, add = (
            getattr(self.module, f"gemma_{name}" if case.model.weight_offset else name)
            for name in names
        )

        def run(i):
            norm(b.y[i], b.given[i], b.branch_weight, EPS, False)
            add(b.y[i], b.total[i], b.weight, EPS, False)

        return run


class FlashInferCute(Provider):
    """The same two norms by its CuTe-DSL kernels."""

    name, label, package = "flashinfer-cute", "FlashInfer CuTe", "flashinfer-python"
    lacks = FlashInferCuda.lacks

    def __init__(self, torch):
        super().__init__(torch)
        self.kernels = peers.FlashInferCute(torch).kernels

    def sandwich(self, case, b):
        kernels, offset = self.kernels, case.model.weight_offset

        def run(i):
            kernels.rmsnorm_cute(b.given[i], b.branch_weight, b.y[i], EPS, offset, False)
            kernels.fused_add_rmsnorm_cute(b.y[i], b.total[i], b.weight, EPS, offset, False)

        return run


class Fla(Provider):
    """Its gated norms: one for a gate after the norm, one for groups; RMSNorm twice for a
    sandwich."""

    name, label, package = "fla", "flash-linear-attention", "fla-core"

    def __init__(self, torch):
        super().__init__(torch)
        modules = "fla.modules.norm."
        self.after = importlib.import_module(modules + "fused_norm_gate")
        self.groups = importlib.import_module(modules + "layernorm_gated")
        self.plain = importlib.import_module(modules + "layernorm")

    def gated(self, case, b):
        m, n = case.model, case.n
        rows = lambda t: t.view(-1, n)
        if m.gate_before or m.group:
            forward = self.groups.layer_norm_fwd
            settings = {
                "group_size": m.group or None, "norm_before_gate": not m.gate_before,
                "is_rms_norm": True,
            }
            return lambda i: {
                "y": forward(
                    rows(b.given[i]), b.weight, None, EPS, z=rows(b.other[i]),
                    out=rows(b.y[i]), **settings,
                )[0]
            }
        forward = self.after.layer_norm_gated_fwd
        return lambda i: {
            "y": forward(
                rows(b.given[i]), rows(b.other[i]), b.weight, None, activation=m.act, eps=EPS,
                is_rms_norm=True,
            )[0]
        }

    def gated_backward(self, case, b):
        m = case.model
        if m.gate_before or m.group:
            norm = functools.partial(
                self.groups.rmsnorm_fn, eps=EPS, group_size=m.group or None,
                norm_before_gate=not m.gate_before,
            )
            return self.gradients(case, b, lambda x, gate, p: norm(x, p["weight"], None, gate))
        norm = functools.partial(self.after.rms_norm_gated, activation=m.act, eps=EPS)
        return self.gradients(case, b, lambda x, gate, p: norm(x, gate, p["weight"], None))

    # It has no offset of a weight: a model adds 1 before.

    def sandwich(self, case, b):
        forward, offset = self.plain.layer_norm_fwd, case.model.weight_offset
        branch_weight, weight = b.branch_weight + offset, b.weight + offset

        def run(i):
            branch = forward(b.given[i], branch_weight, None, EPS, is_rms_norm=True)[0]
            y, _, _, total = forward(
                branch, weight, None, EPS, residual=b.other[i], is_rms_norm=True
            )
            return {"y": y, "total": total}

        return run

    def sandwich_backward(self, case, b):
        norm, offset = self.plain.rms_norm, case.model.weight_offset

        def run(x, residual, p):
            branch = norm(x, p["branch_weight"] + offset, None, eps=EPS)
            return norm(
                branch, p["weight"] + offset, None, residual=residual, eps=EPS, prenorm=True
            )

        return self.gradients(case, b, run)


class Liger(Provider):
    """rms_norm and fused_add_rms_norm for a sandwich, modulated_rms_norm where adaLN is of RMSNorm.
    Casting mode "gemma" computes in f32."""

    name, label, package = "liger", "Liger", "liger-kernel"
    lacks = {kind: "has no norm with a gate" for kind in ("gated", "gated_backward")}

    def __init__(self, torch):
        super().__init__(torch)
        module = lambda name: importlib.import_module(f"liger_kernel.ops.{name}")
        self.norm, self.add, self.modulated = (
            module(name) for name in ("rms_norm", "fused_add_rms_norm", "modulated_rms_norm")
        )

    def sandwich(self, case, b):
        norm, add = self.norm.rms_norm_forward, self.add.fused_add_rms_norm_forward
        offset = case.model.weight_offset

        def run(i):
            branch = norm(b.given[i], b.branch_weight, EPS, offset, "gemma", None)[0]
            y, total, *_ = add(branch, b.other[i], b.weight, EPS, offset, "gemma")
            return {"y": y, "total": total}

        return run

    def sandwich_backward(self, case, b):
        norm = self.norm.LigerRMSNormFunction.apply
        add = self.add.LigerFusedAddRMSNormFunction.apply
        offset = case.model.weight_offset

        def run(x, residual, p):
            branch = norm(x, p["branch_weight"], EPS, offset, "gemma", False)
            return add(branch, residual, p["weight"], EPS, offset, "gemma", False)

        return self.gradients(case, b, run)

    def _modulates(self, case):
        if case.model.layer:
            raise Unsupported("its modulated norm is RMSNorm; this is LayerNorm with a gated sum")

    def adaln(self, case, b):
        self._modulates(case)
        forward, scale = self.modulated.modulated_rms_norm_forward, b.scale.contiguous()
        return lambda i: {
            "y": forward(b.given[i], b.weight, scale, None, EPS, 0.0, "gemma")[0]
        }

    def adaln_backward(self, case, b):
        self._modulates(case)
        norm = self.modulated.LigerModulatedRMSNormFunction.apply
        return self.gradients(
            case, b,
            lambda x, _, p: norm(x, p["weight"], p["scale"], None, EPS, 0.0, "gemma", False),
        )


class Quack(Provider):
    """Its norm twice for a sandwich."""

    name, label, package = "quack", "quack", "quack-kernels"
    lacks = {"gated": "has no norm with a gate", "adaln": "has no norm with a modulation"}

    def __init__(self, torch):
        super().__init__(torch)
        self.forward = importlib.import_module("quack.rmsnorm")._rmsnorm_fwd

    def sandwich(self, case, b):
        forward, offset = self.forward, case.model.weight_offset
        branches = [self.torch.empty_like(x) for x in b.given]

        def run(i):
            forward(b.given[i], b.branch_weight, branches[i], eps=EPS, weight_offset=offset)
            forward(
                branches[i], b.weight, b.y[i], residual=b.other[i], residual_out=b.total[i],
                eps=EPS, weight_offset=offset,
            )

        return run


class TorchNative(Whole):
    """PyTorch's own kernels in bf16, one after the other."""

    name, label, package = "torch", "torch", "torch"

    def run(self, case, b):
        m, torch = case.model, self.torch
        function = torch.nn.functional
        act = function.silu if m.act == "silu" else torch.sigmoid
        rms = lambda x, weight: function.rms_norm(x, (x.shape[-1],), weight, EPS)
        offset = m.weight_offset
        if m.stage == "gated":
            if not m.gate_before:
                return lambda x, gate, p: rms(x, p["weight"]) * act(gate)

            def before(x, gate, p):
                v = rms((x * act(gate)).unflatten(-1, (-1, m.group)), None)
                return v.flatten(-2) * p["weight"]

            return before
        if m.stage == "sandwich":

            def sandwich(x, residual, p):
                total = rms(x, p["branch_weight"] + offset) + residual
                return rms(total, p["weight"] + offset), total

            return sandwich

        def modulator(p, name):
            table = getattr(b, f"{name}_table")
            return p[name] if table is None else p[name] + table

        if not m.layer:
            return lambda x, _, p: rms(x, p["weight"]) * (1 + p["scale"])

        def adaln(x, residual, p):
            gate, scale, shift = (modulator(p, name) for name in ("gate", "scale", "shift"))
            total = torch.addcmul(residual, x, gate).to(x.dtype)
            v = function.layer_norm(total, (case.n,), None, None, EPS)
            return torch.addcmul(shift, v, 1 + scale).to(x.dtype), total

        return adaln


class TorchCompile(Whole):
    """What torch.compile makes of the formula in f32, for each shape."""

    name, label, package, slow = "torch-compile", "torch.compile", "torch", True
    mode = None

    def run(self, case, b):
        torch = self.torch

        def whole(x, other, p):
            single = {name: t.float() for name, t in p.items()}
            found = formula(b, x.float(), None if other is None else other.float(), single)
            return tuple(t.to(torch.bfloat16) for t in found.values())

        return family.compiled(torch, whole, self.mode)


class TorchCompileTuned(TorchCompile):
    """The same with max-autotune: more kernels are tried."""

    name, label = "torch-compile-tuned", "torch.compile, max-autotune"
    mode = "max-autotune-no-cudagraphs"


PROVIDERS = (
    Fastnorm, FastnormChain, FlashInferCuda, FlashInferCute, Fla, Liger, Quack, TorchNative,
    TorchCompile, TorchCompileTuned,
)
CASE, GPU, HOST = StagesCase, StagesGpu, StagesHost


# --- what comes out ---


def misses(result):
    """Words for what a result of this library misses: its bound, or a contender that is faster by
    more than both spreads."""
    ours, ceiling = result["contenders"].get("fastnorm", {}), result["ceiling"]["us"]
    name = f"{result['op']} {result['rows']}"
    if "us" not in ours:
        yield f"{name}: fastnorm has no time"
        return
    us = ours["us"]
    if result["rows"] >= MANY_TOKENS and us > MANY_RATIO * ceiling:
        yield f"{name}: {us / ceiling:.3f} x ceiling; wanted: {MANY_RATIO}"
    if result["rows"] <= FEW_TOKENS and us > ceiling + FEW_US:
        yield f"{name}: {us - ceiling:.2f} us over the ceiling; wanted: {FEW_US}"
    for other, row in result["contenders"].items():
        if "us" not in row or other == "fastnorm":
            continue
        if us - row["us"] > ours["spread"] * us + row["spread"] * row["us"]:
            yield f"{name}: {other} is faster, {row['us']:.2f} us to {us:.2f} us"


def summary(document):
    found = [text for result in document["results"] for text in misses(result)]
    yield f"{len(document['results'])} cases, {len(found)} misses of bounds or of others' times"
    yield from found
