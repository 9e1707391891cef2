#!/usr/bin/env python3
"""Tests of the plug-ins of vLLM and SGLang. The last line is the count.

Where vLLM or SGLang is installed and its registry imports, the plug-in runs in the real one. Else a
small registry of the same interface, in this file, stands for it. A line says which. Without
--device all runs on the CPU, and then on a GPU where PyTorch has one. Run with a Python that has
PyTorch.
"""

import importlib
import inspect
import os
import subprocess
import sys
import tomllib
import types
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.append(str(Path(__file__).resolve().parents[1]))
from norm_testing import ROOT, Suite, arguments, missing, use_library  # noqa: E402

EPS = 1e-6
PACKAGE = ROOT / "packages" / "python"


# --- helpers ---


def normal(shape, dtype, seed, scale=1.0, offset=0.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale + offset).to(dtype).to(DEVICE)


def exact_rows(n, dtype):
    return models._exact_rows(n, dtype, torch.Generator().manual_seed(3)).to(DEVICE)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def close(a, b):
    """Whether the last places of statistics explain the difference."""
    if a.dtype != b.dtype:
        return False
    return ((models._steps(a, b) <= 1) | ((a - b).abs() <= b.abs().max() * 2.0**-20)).all().item()


def import_all(names):
    """The modules, or the text of the first error."""
    try:
        return [importlib.import_module(name) for name in names], ""
    except Exception as error:  # of many kinds: an engine checks the machine as it is imported
        for name in list(sys.modules):
            if name.split(".")[0] == names[0].split(".")[0]:
                del sys.modules[name]
        return None, f"{type(error).__name__}: {error}".splitlines()[0]


def stand_in(name, **members):
    """A module of this name, as part of its package."""
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules.get(parent) or stand_in(parent), last, module)
    return module


# --- entry points ---


def test_entry_points(suite):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {"vllm.general_plugins": "vllm_plugin", "sglang.srt.plugins": "sglang_plugin"}
    found = project["entry-points"]
    suite.equal("the groups", sorted(found), sorted(wanted))
    for group, name in wanted.items():
        suite.equal(
            f"{group}: its function", found[group], {"fastnorm": f"fastnorm.engines:{name}"}
        )
    program = (
        "import sys, fastnorm.engines as e; e.{0}(); "
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('torch', 'vllm', 'sglang')))"
    )
    for name, variable in (("vllm_plugin", "FASTNORM_VLLM"), ("sglang_plugin", "FASTNORM_SGLANG")):
        for value in (None, "", "0"):
            env = {k: v for k, v in os.environ.items() if k != variable}
            env["PYTHONPATH"] = str(PACKAGE)
            if value is not None:
                env[variable] = value
            command = [sys.executable, "-c", program.format(name)]
            result = subprocess.run(command, capture_output=True, text=True, env=env)
            text = result.stdout + result.stderr
            suite.equal(f"{variable}={value!r}: nothing is imported", text.strip(), "[]")
        os.environ[variable] = "yes"
        text = f"{variable} is 'yes'; required: 1"
        suite.raises(f"{variable}=yes", ValueError, text, getattr(engines, name))
        del os.environ[variable]


# --- vLLM ---


class Operator:
    """Stands for vLLM's IrOp: the providers of an operator, and which of them is asked first."""

    def __init__(self, native):
        self.impls, self.signature = {}, inspect.signature(native)
        self.register_impl("native")(native)
        self.order = ["native"]

    def register_impl(self, provider, *, supported=True, supports_args=None, inplace=False):
        def register(function):
            for f in (function, supports_args or function):
                names = list(inspect.signature(f).parameters)
                assert names == list(self.signature.parameters), names
            impl = types.SimpleNamespace(
                impl_fn=function, supports_args=supports_args or (lambda *_: True), inplace=inplace
            )
            self.impls[provider] = impl
            return impl

        return register

    def set_default(self, order):
        self.order = order

    def __call__(self, *inputs):
        for provider in self.order:
            impl = self.impls[provider]
            if impl.supports_args(*inputs):
                copies = inputs
                if impl.inplace:
                    copies = [x.clone() if i < 2 else x for i, x in enumerate(inputs)]
                return impl.impl_fn(*copies)
        raise RuntimeError("no provider takes these arguments")

    def maybe_inplace(self, *inputs):
        for provider in self.order:
            if self.impls[provider].supports_args(*inputs):
                return self.impls[provider].impl_fn(*inputs)
        raise RuntimeError("no provider takes these arguments")


def native_rms_norm(x, weight, epsilon, variance_size=None):
    wide = x.float()
    part = wide if variance_size is None else wide[..., :variance_size]
    wide = wide * torch.rsqrt(part.pow(2).mean(-1, keepdim=True) + epsilon)
    return (wide if weight is None else wide.to(weight.dtype) * weight).to(x.dtype)


def native_fused_add(x, x_residual, weight, epsilon, variance_size=None):
    total = x.float() + x_residual.float()
    part = total if variance_size is None else total[..., :variance_size]
    wide = total * torch.rsqrt(part.pow(2).mean(-1, keepdim=True) + epsilon)
    wide = wide if weight is None else wide.to(weight.dtype) * weight
    return wide.to(x.dtype), total.to(x.dtype)


def cuda_rms_norm(x, weight, epsilon):
    """The arithmetic of vLLM's CUDA kernels: rounded once."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return (wide if weight is None else wide * weight.float()).to(x.dtype)


def cuda_fused_add(x, x_residual, weight, epsilon):
    """The same of the rounded sum."""
    total = (x.float() + x_residual.float()).to(x.dtype)
    return cuda_rms_norm(total, weight, epsilon), total


def vllm_wanted(word, x, residual, weight):
    """What the plug-in computes with this rounding; None: that of the device."""
    word = word or {"cpu": "native", "cuda": "cuda"}[DEVICE.type]
    inputs = (x, weight, EPS) if residual is None else (x, residual, weight, EPS)
    if word == "cuda" and (weight is None or weight.dtype == x.dtype):
        return (cuda_rms_norm if residual is None else cuda_fused_add)(*inputs)
    import vllm.ir

    ops = vllm.ir.ops
    return (ops.rms_norm if residual is None else ops.fused_add_rms_norm).impls["native"].impl_fn(
        *inputs
    )


# --- vLLM's kernels of a norm and fp8 codes: their signatures and arithmetic ---

F8 = 448.0


def quant_sum(x, residual):
    """The sum in float32; it replaces the residual."""
    total = x.float()
    if residual is not None:
        total = total + residual.float()
        residual.copy_(total)
    return total


def quant_rms(wide, epsilon):
    return torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)


def native_static(result, x, weight, scale, epsilon):
    wide = x.float()
    y = (wide * quant_rms(wide, epsilon) * weight.float()).to(x.dtype).float()
    result.copy_((y * (1 / scale)).clamp(-F8, F8).to(result.dtype))


def native_add_static(result, x, residual, weight, scale, epsilon):
    quant_sum(x, residual)
    native_static(result, residual, weight, scale, epsilon)


def native_block(
    result, x, weight, scale, epsilon, scale_ub, residual, group_size, is_scale_transposed
):
    wide = quant_sum(x, residual)
    y = ((wide * quant_rms(wide, epsilon)).to(x.dtype) * weight).float()
    blocks = y.unflatten(-1, (-1, group_size))
    amax = blocks.abs().amax(-1)
    amax = amax if scale_ub is None else amax.minimum(scale_ub)
    scale.copy_((amax / F8).clamp(min=1 / (F8 * 512)).view(scale.shape))
    codes = blocks / scale.reshape(*amax.shape, 1)
    result.copy_(codes.clamp(-F8, F8).flatten(-2).to(result.dtype))


def native_token(result, x, weight, scale, epsilon, scale_ub, residual):
    native_block(result, x, weight, scale, epsilon, scale_ub, residual, x.shape[-1], False)


VLLM_KERNELS = {
    "rms_norm_static_fp8_quant": (
        "(Tensor! result, Tensor input, Tensor weight, Tensor scale, float epsilon) -> ()",
        native_static,
    ),
    "fused_add_rms_norm_static_fp8_quant": (
        "(Tensor! result, Tensor input, Tensor! residual, Tensor weight, Tensor scale, "
        "float epsilon) -> ()",
        native_add_static,
    ),
    "rms_norm_dynamic_per_token_quant": (
        "(Tensor! result, Tensor input, Tensor weight, Tensor! scale, float epsilon, "
        "Tensor? scale_ub, Tensor!? residual) -> ()",
        native_token,
    ),
    "rms_norm_per_block_quant": (
        "(Tensor! result, Tensor input, Tensor weight, Tensor! scale, float epsilon, "
        "Tensor? scale_ub, Tensor!? residual, int group_size, bool is_scale_transposed) -> ()",
        native_block,
    ),
    "another_kernel": ("(Tensor! result) -> ()", lambda result: None),
}


def vllm_pass_stand_in():
    """The table of vLLM's compiler pass, with the kernels above."""
    library = torch.library.Library("_C", "FRAGMENT")
    for name, (schema, function) in VLLM_KERNELS.items():
        library.define(name + schema)
        library.impl(name, function, "CompositeExplicitAutograd")

    class RMSNormQuantFusionPass:
        def uuid(self):
            return "of the pass"

    return stand_in(
        "vllm.compilation.passes.fusion.rms_quant_fusion",
        FUSED_OPS={name: getattr(torch.ops._C, name).default for name in VLLM_KERNELS},
        RMSNormQuantFusionPass=RMSNormQuantFusionPass,
        library=library,
    )


def vllm_stand_in():
    class Platform:
        def is_cuda(self):
            return True

        @classmethod
        def get_default_ir_op_priority(cls, config):
            return types.SimpleNamespace(rms_norm=["native"], fused_add_rms_norm=["native"])

    stand_in("vllm")
    ops = types.SimpleNamespace(
        rms_norm=Operator(native_rms_norm), fused_add_rms_norm=Operator(native_fused_add)
    )
    stand_in("vllm.ir", ops=ops)
    stand_in("vllm.platforms", current_platform=Platform())


def test_vllm(suite):
    names = ("vllm.ir", "vllm.platforms", "vllm.config.kernel")
    found, why = import_all(names)
    if found is None:
        vllm_stand_in()
        vllm_pass_stand_in()
    import vllm.ir
    import vllm.platforms

    version = getattr(sys.modules["vllm"], "__version__", "")
    print(f"  vLLM: {'a stand-in, ' + why if why else 'its own registry ' + str(version)}")
    suite.results["versions"]["vllm"] = version or "stand-in"
    os.environ["FASTNORM_VLLM"] = "1"
    engines.vllm_plugin()
    engines.vllm_plugin()
    ops = vllm.ir.ops
    priority = type(vllm.platforms.current_platform).get_default_ir_op_priority(None)
    for name in ("rms_norm", "fused_add_rms_norm"):
        suite.check(f"{name}: registered", "fastnorm" in getattr(ops, name).impls)
        listed = list(getattr(priority, name))
        suite.equal(f"{name}: comes first, once", listed, ["fastnorm", "native"])
        getattr(ops, name).set_default(listed)
    for word in (None, "native", "cuda"):
        of_vllm._WORD = word
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for wide in (False, True):
                vllm_norms(suite, ops, word, dtype, wide)
    of_vllm._WORD = None
    heads = normal((3, 6, 128), torch.bfloat16, 5)[..., :2, :64]
    weight = normal(64, torch.bfloat16, 2, 0.2, 1.0)
    wanted = vllm_wanted(None, heads, None, weight)
    suite.check("heads of a view", close(ops.rms_norm(heads, weight, EPS), wanted))
    x = normal((5, 64), torch.bfloat16, 3)
    suite.check("no weight", close(ops.rms_norm(x, None, EPS), native_rms_norm(x, None, EPS)))
    with Calls() as counts:
        y = ops.rms_norm(x, weight, EPS, 32)
        suite.check("a part for the variance", same(y, native_rms_norm(x, weight, EPS, 32)))
        ops.rms_norm(x.double(), weight.double(), EPS)
        ops.rms_norm(x, weight.half(), EPS)
    suite.equal("what it does not serve", counts, {})


def vllm_norms(suite, ops, word, dtype, wide):
    """Both operators of one dtype, with a weight of it or of float32."""
    x = exact_rows(64, dtype)
    weight = normal(64, torch.float32 if wide else dtype, 2, 0.2, 1.0)
    label = f"{word or ''} {dtype}{' float32 weight' if wide else ''}"
    with Calls() as counts:
        y = ops.rms_norm(x, weight, EPS)
    suite.equal(f"rms_norm {label}: by fastnorm", counts, {"rms_norm": 1})
    wanted = vllm_wanted(word, x, None, weight)
    exact = same if DEVICE.type == "cpu" else close
    suite.check(f"rms_norm {label}: its bits", exact(y, wanted))
    residual = torch.zeros_like(x)  # the sum is exact, too
    kept = residual.clone()
    with Calls() as counts:
        y, total = ops.fused_add_rms_norm(x, residual, weight, EPS)
    suite.equal(f"fused_add {label}: by fastnorm", counts, {"fused_add_rms_norm": 1})
    suite.check(f"fused_add {label}: its bits", exact(y, wanted) and same(total, x))
    suite.check(f"fused_add {label}: functional", same(residual, kept))
    x, residual = normal((5, 64), dtype, 3), normal((5, 64), dtype, 4)
    wanted = vllm_wanted(word, x, residual, weight)
    y, total = ops.fused_add_rms_norm.maybe_inplace(x, residual, weight, EPS)
    suite.check(f"fused_add {label}: in place", total.data_ptr() == residual.data_ptr())
    suite.check(f"fused_add {label}: the sum", same(total, wanted[1]))
    suite.check(f"fused_add {label}: the norm", close(y, wanted[0]))


def quant_inputs(name, dtype, group, transposed, scale_ub, rows):
    """The arguments of a kernel by name, with new memory for what it writes."""
    n = rows.shape[-1]
    found = {"result": torch.zeros(rows.shape, dtype=torch.float8_e4m3fn, device=DEVICE)}
    found["input"] = rows
    if "fused_add" in name:
        # The sum's statistics are exact once it is rounded.
        small = {torch.bfloat16: 2.0**-10, torch.float16: 2.0**-13}.get(dtype, 0.0)
        found = {**found, "input": rows, "residual": rows * small}
    found["weight"] = normal(n, dtype, 2, 0.2, 1.0)
    if "static" in name:
        return {**found, "scale": torch.tensor([0.03], device=DEVICE), "epsilon": EPS}
    shape = (len(rows), n // group if group else 1)
    # As vLLM makes them where rows of scales are padded to a multiple of 4.
    padded = torch.zeros(shape[1], -(-shape[0] // 4) * 4, device=DEVICE).t()[: shape[0]]
    found["scale"] = padded if transposed else torch.zeros(shape, device=DEVICE)
    found |= {"epsilon": EPS, "scale_ub": scale_ub, "residual": None}
    if "fused_add" not in name and scale_ub is None:
        found |= {"input": rows / 2, "residual": rows / 2}
    return {**found, **({"group_size": group, "is_scale_transposed": transposed} if group else {})}


def test_vllm_codes(suite):
    """What takes the place of vLLM's kernels of a norm and fp8 codes."""
    name = "vllm.compilation.passes.fusion.rms_quant_fusion"
    fusion = sys.modules.get(name)
    if fusion is None:  # vLLM itself has no such kernels on a CPU
        fusion = vllm_pass_stand_in()
        of_vllm._replace_quantised(fusion)
    suite.equal(
        "another kernel stays", fusion.FUSED_OPS["another_kernel"].name(), "_C::another_kernel"
    )
    version = fusion.RMSNormQuantFusionPass().uuid()
    suite.equal("the pass's version", version, f"of the pass-fastnorm-{ft.version()}")
    cases = [(name, 0, False, bound) for name in list(VLLM_KERNELS)[:3] for bound in (False, True)]
    cases += [("rms_norm_per_block_quant", g, t, False) for g in (64, 128) for t in (False, True)]
    for name, group, transposed, bound in cases:
        if bound and "token" not in name:
            continue
        ours = fusion.FUSED_OPS[name]
        suite.equal(f"{name}: replaced", ours.name(), f"fastnorm::vllm_{name}")
        names = [a.name for a in ours._schema.arguments]
        theirs = getattr(torch.ops._C, name).default
        suite.equal(f"{name}: arguments", names, [a.name for a in theirs._schema.arguments])
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            label = f"{name} {group or ''} {transposed} {bound} {dtype}"
            scale_ub = torch.tensor([0.5], device=DEVICE) if bound else None
            rows = exact_rows(256, dtype)
            rows[1] = 0
            found, wanted = (
                quant_inputs(name, dtype, group, transposed, scale_ub, rows) for _ in range(2)
            )
            theirs(**wanted)
            functional = auto_functionalized(ours, **found)
            ours(**found)
            written = [key for key in ("result", "scale", "residual") if found.get(key) is not None]
            if DEVICE.type == "cuda" and bound:  # a last place of rstd may change a code
                continue
            for key in written:
                if key == "scale" and DEVICE.type == "cuda":  # so is the scale's last place
                    off = (found[key] - wanted[key]).abs() > wanted[key].abs() * 2.0**-21
                    suite.check(f"{label}: scale", not off.any(), off.float().mean().item())
                    continue
                codes = found[key].view(torch.uint8) if key == "result" else found[key]
                target = wanted[key].view(torch.uint8) if key == "result" else wanted[key]
                share = (codes != target).float().mean().item()
                limit = 0.0 if DEVICE.type == "cpu" else 0.01
                suite.check(f"{label}: {key}", share <= limit, share)
            again = functional[1].view(torch.uint8)
            suite.check(
                f"{label}: functional", torch.equal(again, found["result"].view(torch.uint8))
            )


def test_vllm_layers(suite):
    if not getattr(sys.modules["vllm"], "__version__", ""):
        suite.skip("vLLM's layers", "vLLM's registry is a stand-in")
        return
    vllm_layers(suite)


def vllm_layers(suite):
    """RMSNorm and GemmaRMSNorm of vLLM."""
    found, why = import_all(["vllm.model_executor.layers.layernorm", "vllm.config"])
    if found is None:
        suite.skip("vLLM's layers", why)
        return
    layers, config = found
    device = config.DeviceConfig(
        device=DEVICE.type
    )  # vLLM finds none on a machine without its kernels
    with config.set_current_vllm_config(config.VllmConfig(device_config=device)):
        norms = layers.RMSNorm(64, eps=EPS), layers.GemmaRMSNorm(64, eps=EPS)
    for norm in norms:
        name = type(norm).__name__
        norm.to(DEVICE)
        norm.weight.data = normal(64, torch.float32, 2, 0.2).bfloat16() + (name == "RMSNorm")
        x, residual = normal((5, 64), torch.bfloat16, 3), normal((5, 64), torch.bfloat16, 4)
        weight = norm.weight.data if name == "RMSNorm" else norm.weight.float() + 1
        with Calls() as counts, torch.no_grad():
            suite.check(f"{name}", close(norm(x), vllm_wanted(None, x, None, weight)))
            wanted = vllm_wanted(None, x, residual, weight)
            y, total = norm(x, residual)
        suite.check(f"{name} with a residual", close(y, wanted[0]) and same(total, wanted[1]))
        suite.equal(f"{name}: by fastnorm", counts, {"rms_norm": 1, "fused_add_rms_norm": 1})


# --- SGLang ---


def sglang_stand_in():
    """SGLang's norms as they compute on a CPU, and the registry of hooks."""

    class RMSNorm(torch.nn.Module):
        def __init__(self, n, eps=EPS, casts=False, variance_size=None):
            super().__init__()
            self.weight, self.variance_epsilon = torch.nn.Parameter(torch.ones(n)), eps
            self.has_weight, self.cast_x_before_out_mul = True, casts
            self.fp32_residual, self.override_orig_dtype = False, None
            self.variance_size_override = variance_size

        def forward_native(self, x, residual=None, post_residual_addition=None, quant_linear=None):
            wide = x.float()
            total = None
            if residual is not None:
                wide = wide + residual.float()
                if post_residual_addition is not None:
                    wide = wide + post_residual_addition.float()
                total = wide.to(x.dtype)
            part = wide[..., : self.variance_size_override]
            z = wide * torch.rsqrt(part.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
            y = self.weight * z.to(x.dtype)
            y = y if self.cast_x_before_out_mul else (z * self.weight).to(x.dtype)
            return y if residual is None else (y, total)

        def forward_cpu(self, *inputs):
            return self.forward_native(*inputs)

        def forward_cuda(self, *inputs):
            raise RuntimeError("there is no kernel of SGLang")

    class GemmaRMSNorm(torch.nn.Module):
        def __init__(self, n, eps=EPS):
            super().__init__()
            self.weight, self.variance_epsilon = torch.nn.Parameter(torch.zeros(n)), eps

        def forward_native(self, x, residual=None, post_residual_addition=None):
            x = x if residual is None else x + residual
            wide = x.float()
            z = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
            y = (z * (1.0 + self.weight.float())).to(x.dtype)
            return y if residual is None else (y, x)

        forward_cpu = forward_cuda = forward_native

    class Gemma3RMSNorm(GemmaRMSNorm):
        def __init__(self, n, eps=EPS):
            super().__init__(n, eps)
            self.eps = eps

        def forward_native(self, x, residual=None):
            return GemmaRMSNorm.forward_native.__wrapped__(self, x, residual)

        forward_cpu = forward_cuda = forward_native

    class LayerNorm(torch.nn.Module):
        def __init__(self, n, eps=EPS):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(n))
            self.bias = torch.nn.Parameter(torch.zeros(n))
            self.variance_epsilon, self.dtype = eps, torch.float32
            self.elementwise_affine = self.use_bias = True

        def forward_native(self, x):
            n = self.weight.numel()
            norm = torch.nn.functional.layer_norm
            y = norm(x.float(), (n,), self.weight, self.bias, self.variance_epsilon)
            return y.to(x.dtype)

        forward_cpu = forward_cuda = forward_native

    class HookRegistry:
        hooks = []

        @classmethod
        def register(cls, target, hook, hook_type):
            cls.hooks.append((target, hook))

        @classmethod
        def apply_hooks(cls):
            for target, hook in cls.hooks:
                path, kind, method = target.rsplit(".", 2)
                owner = getattr(sys.modules[path], kind)
                original = getattr(owner, method)

                def wrapper(*inputs, hook=hook, original=original, **named):
                    return hook(original, *inputs, **named)

                wrapper.__wrapped__ = original
                setattr(owner, method, wrapper)

    kinds = {kind.__name__: kind for kind in (RMSNorm, GemmaRMSNorm, Gemma3RMSNorm, LayerNorm)}
    stand_in("sglang.srt.layers.layernorm", **kinds)
    stand_in("sglang.srt.batch_invariant_ops", is_batch_invariant_mode_enabled=lambda: INVARIANT[0])
    around = types.SimpleNamespace(AROUND="around")
    stand_in("sglang.srt.plugins.hook_registry", HookRegistry=HookRegistry, HookType=around)


INVARIANT = [False]


def test_sglang(suite):
    names = ("sglang.srt.plugins.hook_registry", "sglang.srt.layers.layernorm")
    found, why = import_all(names)
    if found is None:
        sglang_stand_in()
    layers = importlib.import_module(names[1])
    registry = importlib.import_module(names[0]).HookRegistry
    version = getattr(sys.modules["sglang"], "__version__", "")
    print(f"  SGLang: {'a stand-in, ' + why if why else 'its own registry ' + str(version)}")
    suite.results["versions"]["sglang"] = version or "stand-in"
    os.environ["FASTNORM_SGLANG"] = "1"
    engines.sglang_plugin()
    engines.sglang_plugin()
    registry.apply_hooks()
    forward = "forward_cuda" if DEVICE.type == "cuda" else "forward_native"
    for kind in ("RMSNorm", "GemmaRMSNorm", "Gemma3RMSNorm", "LayerNorm"):
        wanted_method = getattr(layers, kind).forward_native.__wrapped__
        for dtype in (torch.float32, torch.bfloat16):
            norm = getattr(layers, kind)(64, eps=EPS).to(DEVICE)
            if kind != "LayerNorm":
                norm = norm.to(dtype)
            for seed, t in enumerate(norm.parameters()):
                t.data += normal(64, torch.float32, seed, 0.2).to(t.dtype)
            label = f"{kind} {dtype}"
            x, residual = normal((5, 64), dtype, 3), normal((5, 64), dtype, 4)
            with torch.no_grad(), Calls() as counts:
                y = getattr(norm, forward)(x)
                wanted = wanted_method(norm, x)
                suite.check(f"{label}", close(y, wanted))
                if kind != "LayerNorm":
                    wanted = wanted_method(norm, x, residual)
                    y, total = getattr(norm, forward)(x, residual)
                    suite.check(f"{label} with a residual", close(y, wanted[0]))
                    suite.check(f"{label}: the sum", same(total, wanted[1]))
            calls = sum(counts.values())
            suite.equal(f"{label}: by fastnorm", calls, 1 if kind == "LayerNorm" else 2)
    if DEVICE.type == "cuda":
        sglang_others_cuda(suite, layers, why)
        return
    norm = layers.RMSNorm(
        64, eps=EPS, **({"casts": True} if why else {"cast_x_before_out_mul": True})
    )
    norm = norm.bfloat16()
    norm.weight.data += normal(64, torch.float32, 1, 0.2).bfloat16()
    plain = layers.RMSNorm.forward_native.__wrapped__
    x, residual = exact_rows(64, torch.bfloat16), normal((8, 64), torch.bfloat16, 4)
    with torch.no_grad():
        suite.check("rounded before the weight", same(norm.forward_native(x), plain(norm, x)))
        extra = residual[: len(x)]
        with Calls() as counts:
            found = norm.forward_native(x, extra, extra)
            suite.check("a second residual", same(found[0], plain(norm, x, extra, extra)[0]))
            norm.variance_size_override = 32
            suite.check("a part for the variance", same(norm.forward_native(x), plain(norm, x)))
            norm.variance_size_override = None
            empty = x[:0]
            suite.equal("no rows", norm.forward_native(empty).shape, empty.shape)
            if why:
                INVARIANT[0] = True
                suite.check("batch-invariant mode", same(norm.forward_native(x), plain(norm, x)))
                INVARIANT[0] = False
        suite.equal("what it does not serve", counts, {})


def sglang_others_cuda(suite, layers, why):
    """What the hooks leave to SGLang's own methods on a GPU."""
    norm = layers.RMSNorm(64, eps=EPS).to(DEVICE).bfloat16()
    plain = layers.RMSNorm.forward_native.__wrapped__
    x, residual = normal((5, 64), torch.bfloat16, 3), normal((5, 64), torch.bfloat16, 4)
    with torch.no_grad(), Calls() as counts:
        suite.check("forward_native", same(norm.forward_native(x), plain(norm, x)))
        if why:  # the stand-in's kernel is an error
            own = "there is no kernel of SGLang"
            suite.raises("no rows", RuntimeError, own, lambda: norm.forward_cuda(x[:0]))
            suite.raises(
                "a second residual",
                RuntimeError,
                own,
                lambda: norm.forward_cuda(x, residual, residual),
            )
            norm.variance_size_override = 32
            suite.raises("a part", RuntimeError, own, lambda: norm.forward_cuda(x))
            norm.variance_size_override = None
            INVARIANT[0] = True
            suite.raises("batch-invariant mode", RuntimeError, own, lambda: norm.forward_cuda(x))
            INVARIANT[0] = False
    suite.equal("what it does not serve", counts, {})


class Calls:
    """Counts how often norms of fastnorm.torch run."""

    def __enter__(self):
        names = ("rms_norm", "layer_norm", "add_rms_norm", "fused_add_rms_norm")
        self.before, self.counts = {name: getattr(ft, name) for name in names}, {}
        for name, function in self.before.items():
            setattr(ft, name, self.counted(name, function))
        return self.counts

    def counted(self, name, function):
        def call(*inputs, **named):
            self.counts[name] = self.counts.get(name, 0) + 1
            return function(*inputs, **named)

        return call

    def __exit__(self, *_):
        for name, function in self.before.items():
            setattr(ft, name, function)


def main():
    global torch, ft, models, of_vllm, engines, DEVICE, auto_functionalized
    options = arguments(__doc__.splitlines()[0]).parse_args()
    use_library(options)
    suite = Suite("torch_engines", options)
    why = missing("torch", "numpy")
    if why is None:
        import torch

        if options.device == "cuda" and not torch.cuda.is_available():
            why = "PyTorch has no CUDA device here"
    if why:
        suite.skip("plug-ins of engines", why)
        suite.finish()
    sys.path.insert(0, str(PACKAGE))
    import fastnorm.engines as engines
    import fastnorm.torch as ft
    from fastnorm.torch import models
    from fastnorm.torch import vllm as of_vllm
    from torch._higher_order_ops.auto_functionalize import auto_functionalized

    DEVICE = torch.device(options.device)
    suite.results["versions"] = {"torch": torch.__version__, "libfastnorm": ft.version()}
    suite.run([test_entry_points, test_vllm, test_vllm_codes, test_vllm_layers, test_sglang])
    if options.device == "cpu" and not options.only:
        on_gpu(suite)
        suite.write()
    suite.finish()


def on_gpu(suite):
    """All of this once more in a program of its own, for plug-ins are installed once."""
    if not torch.cuda.is_available():
        suite.skip("plug-ins of engines on a GPU", "PyTorch has no CUDA device here")
        return
    command = [sys.executable, __file__, "--device", "cuda"]
    env = {k: v for k, v in os.environ.items() if k not in ("FASTNORM_VLLM", "FASTNORM_SGLANG")}
    ran = subprocess.run(command, capture_output=True, text=True, env=env)
    print(ran.stdout)
    last = (ran.stdout.strip().splitlines() or [""])[-1]
    suite.check(f"on a GPU: {last}", ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:])


main()
