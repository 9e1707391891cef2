#!/usr/bin/env python3
"""Tests of patch() and register() of fastnorm.torch. The last line is the count.

Models of transformers have random weights and small sizes. Norms of a module and of its patched
form have the same bits on rows whose statistics are exact. Logits of a model differ at most as the
last places of statistics let them. A case says whether Python's operators ran or compiled ones. Run
with a Python that has PyTorch; without transformers or PEFT their cases are skipped.
"""

import copy
import io
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.append(str(Path(__file__).resolve().parents[1]))
from norm_testing import ROOT, Suite, arguments, missing, use_library  # noqa: E402

DTYPES = ("float32", "bfloat16", "float16")
# What a model's logits may differ by, as a share of the greatest magnitude.
LOGITS = {"float32": 2e-5, "bfloat16": 2.0**-6, "float16": 2.0**-9}

SMALL = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
DEEPSEEK = {
    **SMALL,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
}
GEMMA4 = {**SMALL, "vocab_size_per_layer_input": 128, "hidden_size_per_layer_input": 8}
GEMMA4["global_head_dim"] = 16
PRE_NORM = "post_attention_layernorm"
GEMMA_NORM = "pre_feedforward_layernorm"
# For each model type its settings, how many norms it has, how they compute, and what is fused.
MODELS = {
    "llama": (SMALL, 5, "rms normalized", {"residual": PRE_NORM}),
    "mistral": (SMALL, 5, "rms normalized", {"residual": PRE_NORM}),
    "qwen2": (SMALL, 5, "rms normalized", {"residual": PRE_NORM}),
    "qwen3": (SMALL, 9, "rms normalized", {"residual": PRE_NORM, "heads": "q_norm"}),
    "gemma": (SMALL, 5, "rms once, weight + 1", {"residual": PRE_NORM}),
    "gemma2": (SMALL, 9, "rms once, weight + 1", {"residual": GEMMA_NORM}),
    "gemma3_text": (SMALL, 13, "rms once, weight + 1", {"residual": GEMMA_NORM, "heads": "q_norm"}),
    "gemma4_text": (GEMMA4, 18, "rms once", {"residual": GEMMA_NORM}),
    "phi": (SMALL, 3, "layer once", {}),
    "phi3": (SMALL, 5, "rms normalized", {}),
    "gpt2": (GPT2, 5, "layer once", {}),
    "bert": (SMALL, 5, "layer once", {}),
    "olmo2": (SMALL, 9, "rms once", {}),
    "deepseek_v3": (DEEPSEEK, 9, "rms normalized", {"residual": PRE_NORM}),
}


# --- helpers ---


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def normal(shape, dtype, seed, scale=1.0, offset=0.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale + offset).to(dtype).to(DEVICE)


def exact_rows(n, dtype):
    return models._exact_rows(n, dtype, torch.Generator().manual_seed(3)).to(DEVICE)


def randomised(model, dtype):
    """The model with norms whose parameters are not all alike."""
    for seed, (name, t) in enumerate(model.named_parameters()):
        if "norm" in name.lower() or ".ln_" in name:
            t.data += normal(t.shape, torch.float32, seed, 0.2).to("cpu", t.dtype)
    return model.to(dtype).to(DEVICE).eval()


def made(kind, dtype, **settings):
    """A model of transformers with random weights."""
    config = transformers.AutoConfig.for_model(kind, **{**MODELS[kind][0], **settings})
    torch.manual_seed(0)
    auto = transformers.AutoModel if kind == "bert" else transformers.AutoModelForCausalLM
    return randomised(auto.from_config(config), dtype)


def ids(tokens=12):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(3, 120, (2, tokens), generator=generator).to(DEVICE)


def logits(model, *inputs):
    with torch.no_grad():
        return model(*(inputs or (ids(),)))[0]


def needs(suite, *names):
    why = missing(*names)
    if why:
        suite.skip(", ".join(names), why)
    return bool(why)


def patched_of(model):
    return [m for m in model.modules() if isinstance(m, models._Patched)]


class Calls:
    """Counts how often norms of fastnorm.torch run."""

    def __init__(self):
        self.counts = {}

    def __enter__(self):
        self.before = {
            name: getattr(ft, name) for name in ("rms_norm", "layer_norm", "add_rms_norm")
        }
        self.heads, self.short = models._heads.norm_heads, models._short
        for name, function in self.before.items():
            setattr(ft, name, self.counted(name, function))
        models._heads.norm_heads = self.counted("norm_heads", self.heads)
        if self.short is not None:
            models._short = self.short_call
        return self.counts

    def short_call(self, plan, *inputs):
        found = self.short(plan, *inputs)
        if found is not None:
            name = f"{next(iter(plan.rules.values())).kind}_norm"
            self.counts[name] = self.counts.get(name, 0) + 1
        return found

    def counted(self, name, function):
        def call(*inputs, **named):
            self.counts[name] = self.counts.get(name, 0) + 1
            return function(*inputs, **named)

        return call

    def __exit__(self, *_):
        for name, function in self.before.items():
            setattr(ft, name, function)
        models._heads.norm_heads, models._short = self.heads, self.short


# --- modules ---


def test_modules(suite):
    makers = {
        "RMSNorm": lambda: torch.nn.RMSNorm(64, eps=1e-5),
        "RMSNorm eps None": lambda: torch.nn.RMSNorm(96),
        "RMSNorm no weight": lambda: torch.nn.RMSNorm(63, elementwise_affine=False, eps=1e-3),
        "RMSNorm 2 dimensions": lambda: torch.nn.RMSNorm((4, 24), eps=1e-6),
        "LayerNorm": lambda: torch.nn.LayerNorm(64),
        "LayerNorm no bias": lambda: torch.nn.LayerNorm(65, bias=False),
        "LayerNorm no weight": lambda: torch.nn.LayerNorm(64, elementwise_affine=False),
        "LayerNorm 2 dimensions": lambda: torch.nn.LayerNorm((4, 16)),
    }
    for name, maker in makers.items():
        for dtype in (getattr(torch, word) for word in DTYPES):
            module = torch.nn.Sequential(maker())
            for seed, t in enumerate(module.parameters()):
                t.data = normal(t.shape, torch.float32, seed, 0.2, 1.0).cpu()
            module = module.to(dtype).to(DEVICE)
            shape = module[0].normalized_shape
            columns = torch.Size(shape).numel()
            is_rms = name.startswith("RMS")
            x = exact_rows(columns, dtype) if is_rms else normal((8, columns), dtype, 5, 2.0, 0.3)
            x = x.view(-1, *shape)
            wanted = module(x)
            report = ft.patch(module)
            label = f"{name} {dtype}"
            suite.check(f"{label}: replaced", len(report.replaced) == 1 and not report.kept, report)
            with Calls() as counts:
                found = module(x)
            suite.check(f"{label}: by fastnorm", sum(counts.values()) == 1, counts)
            if is_rms and DEVICE.type == "cpu":
                suite.check(f"{label}: same bits", same(found, wanted))
            else:
                steps = models._steps(wanted, found)
                off = (wanted - found).abs() > wanted.abs().max() * 2.0**-20
                suite.check(f"{label}: last place", not ((steps > 1) & off).any(), steps.max())
            suite.check(f"{label}: unpatched", ft.unpatch(module) == 1)
            suite.check(f"{label}: as before", same(module(x), wanted))
            suite.check(f"{label}: its class", type(module[0]) is type(maker()))


def test_roundings(suite):
    """Modules of each arithmetic get the rule that has it, whatever their names are."""

    class Norm(torch.nn.Module):
        def __init__(self, eps=1e-6):
            super().__init__()
            self.weight, self.eps = torch.nn.Parameter(torch.ones(64)), eps

        def forward(self, x):
            wide = x.float()
            return self.apply(x, wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps))

    class OnceNorm(Norm):
        def apply(self, x, z):
            return (z * self.weight.float()).to(x.dtype)

    class NormalizedNorm(Norm):
        def apply(self, x, z):
            return self.weight * z.to(x.dtype)

    class OffsetNorm(Norm):
        def apply(self, x, z):
            return (z * (1.0 + self.weight.float())).to(x.dtype)

    class OnceRwNorm(Norm):
        def forward(self, x):
            wide = x.float()
            r = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
            return (wide * (r * self.weight.float())).to(x.dtype)

    class OutsideEpsNorm(Norm):  # eps added to the root
        def forward(self, x):
            wide = x.float()
            root = wide.pow(2).mean(-1, keepdim=True).sqrt() + self.eps
            return (wide / root * self.weight.float()).to(x.dtype)

    class Float32Norm(Norm):  # the weight's product is not rounded
        def apply(self, x, z):
            return z * self.weight.float()

    wanted = {
        OnceNorm: ("once", 0.0),
        NormalizedNorm: ("normalized", 0.0),
        OffsetNorm: ("once", 1.0),
        OnceRwNorm: ("once_rw", 0.0),
        Float32Norm: ("once", 0.0),
    }
    for kind, (rounding, offset) in wanted.items():
        module = kind().to(torch.bfloat16)
        report = ft.patch(module)
        rule = module._fastnorm.rules.get((torch.bfloat16, torch.bfloat16))
        suite.check(
            f"{kind.__name__}: its rule",
            rule is not None and (rule.rounding, rule.weight_offset) == (rounding, offset),
            report,
        )
        wide = None if kind is not Float32Norm else torch.float32
        suite.check(f"{kind.__name__}: its dtype", rule is not None and rule.y_dtype == wide, rule)
    mixed = NormalizedNorm()
    ft.patch(mixed)
    x = exact_rows(64, torch.bfloat16).cpu()
    suite.check(
        "a float32 weight makes a float32 result",
        same(mixed(x), NormalizedNorm.forward(mixed, x)) and mixed(x).dtype == torch.float32,
    )
    refused = OutsideEpsNorm(0.01).to(torch.bfloat16)
    report = ft.patch(refused)
    suite.check("another formula stays", type(refused) is OutsideEpsNorm, report)
    suite.check("the report says how far off", "% of the elements differ" in str(report), report)


def test_kept(suite):
    """What stays, and what the report says about it."""

    class TwoInputsNorm(torch.nn.Module):
        def forward(self, x, gate):
            return x * gate

    class NestedNorm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.eps = torch.nn.RMSNorm(8), 1e-6

        def forward(self, x):
            return self.inner(x)

    class NoEpsNorm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8))

        def forward(self, x):
            return torch.nn.functional.rms_norm(x, (8,), self.weight, 1e-6)

    class OtherNorm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gamma, self.eps = torch.nn.Parameter(torch.ones(8)), 1e-6

        def forward(self, x):
            return torch.nn.functional.rms_norm(x, (8,), self.gamma, self.eps)

    hooked = torch.nn.RMSNorm(8)
    hooked.forward = lambda x: x
    model = torch.nn.ModuleDict(
        {
            "two": TwoInputsNorm(),
            "nested": NestedNorm(),
            "eps": NoEpsNorm(),
            "other": OtherNorm(),
            "hooked": hooked,
            "batch": torch.nn.BatchNorm1d(8),
            "wide": torch.nn.RMSNorm(8, dtype=torch.float64),
            "linear": torch.nn.Linear(8, 8),
        }
    )
    report = ft.patch(model)
    found = {entry.name: entry.what for entry in report.kept}
    for name, text in {
        "two": "takes 2 inputs",
        "nested": "has submodules",
        "eps": "none of its attributes",
        "other": "its parameters are gamma",
        "hooked": "an attribute of the instance",
        "batch": "it has buffers",
        "wide": "torch.float64",
    }.items():
        suite.check(f"{name} stays", text in found.get(name, ""), found.get(name))
    suite.equal("what is replaced", [e.name for e in report.replaced], ["nested.inner"])
    suite.check("only norms are reported", "linear" not in str(report))
    suite.check("the count comes first", str(report).startswith("1 replaced, 7 kept"), report)
    suite.raises(
        "an unknown fuse", ValueError, "fuse has 'all'", lambda: ft.patch(model, fuse="all")
    )
    suite.equal("a second patch finds nothing new", len(ft.patch(model).replaced), 0)


def test_fallbacks(suite):
    """Calls that were not compared run the original forward."""
    module = torch.nn.LayerNorm(16).to(DEVICE)
    reference = copy.deepcopy(module)
    ft.patch(module)
    x = normal((3, 16), torch.float32, 1)
    with Calls() as counts:
        suite.check("x as a keyword", same(module(input=x), reference(x)))
        suite.check("meta", module.to("meta")(x.to("meta")).is_meta)
        double = copy.deepcopy(reference).double()
        ft.patch(module := copy.deepcopy(reference))
        module.double()
        suite.check("float64", same(module(x.double()), double(x.double())))
        suite.check("none of them by fastnorm", not counts, counts)
    module = copy.deepcopy(reference)
    ft.patch(module)
    suite.raises("a wrong row", RuntimeError, "16", lambda: module(x[:, :8]))
    for name, change in {
        "a short weight": {"weight": torch.ones(1)},
        "a long bias": {"bias": torch.ones(17)},
        "a matrix as weight": {"weight": torch.ones(3, 16)},
        "a bias of float64": {"bias": torch.ones(16, dtype=torch.float64)},
    }.items():
        texts = []
        for each in (copy.deepcopy(reference), copy.deepcopy(module)):
            for parameter, t in change.items():
                setattr(each, parameter, torch.nn.Parameter(t.to(DEVICE)))
            try:
                texts.append(each(x))
            except RuntimeError as error:
                texts.append(str(error))
        suite.check(f"{name}: an error", isinstance(texts[0], str), texts)
        suite.equal(f"{name}: that of the original", texts[1], texts[0])
    for enabled in (False, True):
        for dtype in (torch.float32, torch.bfloat16):
            with torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=enabled):
                wanted, found = reference(x.to(dtype)), module(x.to(dtype))
            close = torch.allclose(wanted.float(), found.float(), atol=2e-2)
            suite.check(f"autocast {enabled} {dtype}", found.dtype == wanted.dtype and close)


def test_copies(suite):
    """Pickle, deepcopy, torch.save and state_dict."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.RMSNorm(16, eps=1e-6))
    state = {name: t.clone() for name, t in model.state_dict().items()}
    ft.patch(model)
    suite.equal("the names of the state", list(model.state_dict()), list(state))
    suite.check("isinstance", isinstance(model[1], torch.nn.RMSNorm))
    suite.equal("the name of the class", type(model[1]).__name__, "RMSNorm")
    x = normal((3, 16), torch.float32, 1).cpu()
    wanted = model(x)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    copies = {
        "pickle": pickle.loads(pickle.dumps(model)),
        "deepcopy": copy.deepcopy(model),
        "torch.save": torch.load(buffer, weights_only=False),
    }
    for name, other in copies.items():
        suite.check(f"{name}: a patched copy", len(patched_of(other)) == 1)
        suite.check(f"{name}: same bits", same(other(x), wanted))
        other[1].weight.data.zero_()
        suite.check(f"{name}: memory of its own", same(model(x), wanted))
        suite.equal(f"{name}: unpatch", ft.unpatch(other), 1)
    fresh = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.RMSNorm(16, eps=1e-6))
    fresh.load_state_dict(model.state_dict())
    suite.check("a state for an unpatched model", torch.allclose(fresh(x), wanted))
    calls = []
    model[1].register_forward_hook(lambda module, inputs, output: calls.append(1))
    model(x)
    suite.equal("hooks run", len(calls), 1)


def test_compile(suite):
    """On the CPU the compiler has the original norms, on a GPU the library's."""
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 16), torch.nn.RMSNorm(16, eps=1e-6), torch.nn.LayerNorm(16)
    ).to(DEVICE)
    ft.patch(model)
    x = normal((3, 16), torch.float32, 1)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    traced = copy.deepcopy(model)
    if DEVICE.type == "cpu":
        ft.unpatch(traced)
    suite.check("compiled: same bits", same(compiled(x), traced(x)))
    suite.equal("compiled: graphs", counter.frame_count, 1)
    text = str(counter.graphs[0].graph)
    found = [word for word in ("fastnorm.rms_norm", "fastnorm.layer_norm") if word in text]
    suite.equal("compiled: operators", len(found), 0 if DEVICE.type == "cpu" else 2)
    x.requires_grad_()
    compiled(x).square().sum().backward()
    found, x.grad = x.grad, None
    traced(x).square().sum().backward()
    suite.check("compiled: the gradient", same(found, x.grad))


def test_training(suite):
    """Gradients and a few steps, beside the model as it was."""
    torch.manual_seed(1)
    reference = torch.nn.Sequential(
        torch.nn.Linear(16, 32),
        torch.nn.RMSNorm(32, eps=1e-6),
        torch.nn.Linear(32, 16),
        torch.nn.LayerNorm(16),
    ).to(DEVICE)
    model = copy.deepcopy(reference)
    ft.patch(model)
    x, goal = normal((8, 16), torch.float32, 1), normal((8, 16), torch.float32, 2)
    losses = []
    for each in (reference, model):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.05)
        for _ in range(5):
            optimizer.zero_grad()
            loss = (each(x) - goal).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    suite.check("losses", abs(losses[0] - losses[1]) < 1e-6 and losses[0] > 0, losses)
    for (name, a), b in zip(reference.named_parameters(), model.parameters()):
        suite.check(f"{name} after 5 steps", torch.allclose(a, b, atol=1e-6), (a - b).abs().max())
        suite.check(f"{name}.grad", torch.allclose(a.grad, b.grad, atol=1e-6))


# --- models of transformers ---


def test_path(suite):
    """Which operators run: those that --path names, which compute all norms of a forward."""
    print(f"  norms run by the path {compiled.path()}")
    suite.results["path"] = compiled.path()
    if PATH:
        suite.equal("the path", compiled.path(), PATH)
    model = torch.nn.Sequential(torch.nn.RMSNorm(16, eps=1e-6), torch.nn.LayerNorm(16)).to(DEVICE)
    ft.patch(model)
    before = compiled.runs()
    with torch.no_grad():
        model(normal((3, 16), torch.float32, 1))
    suite.equal("calls by compiled operators", compiled.runs() - before, compiled_calls(2))


def compiled_calls(calls):
    """How many calls of norms compiled operators run."""
    return 0 if compiled.path() == "python" else calls


def test_models(suite):
    for kind, (_, count, what, _) in MODELS.items():
        if not hasattr(transformers.models, kind.removesuffix("_text")):
            suite.skip(kind, f"transformers {transformers.__version__} does not have it")
            continue
        for dtype in DTYPES:
            model = made(kind, getattr(torch, dtype))
            label = f"{kind} {dtype}"
            wanted = logits(model)
            report = ft.patch(model)
            suite.equal(f"{label}: replaced", (len(report.replaced), len(report.kept)), (count, 0))
            suite.equal(f"{label}: how", {entry.what for entry in report}, {what})
            before = compiled.runs()
            with Calls() as counts:
                found = logits(model)
            suite.equal(f"{label}: calls", sum(counts.values()), count)
            ran = compiled.runs() - before
            suite.equal(f"{label}: calls by {compiled.path()}", ran, compiled_calls(count))
            scale = wanted.float().abs().max().item()
            off = (found.float() - wanted.float()).abs().max().item() / scale
            share = (found != wanted).double().mean().item()
            suite.results.setdefault("logits", {})[label] = {"largest": off, "share": share}
            print(f"  {label:24} logits differ by {off:.1e} of the greatest, {share:.1%} of them")
            suite.check(f"{label}: logits", off <= LOGITS[dtype], off)
            suite.equal(f"{label}: unpatch", ft.unpatch(model), count)
            suite.check(f"{label}: as before", same(logits(model), wanted))
            for name, module in model.named_modules():  # the arithmetic, on exact statistics
                weight = module._parameters.get("weight")
                if what.startswith("rms") and "Norm" in type(module).__name__:
                    n = weight.numel() if weight is not None else 16
                    rows = exact_rows(n, getattr(torch, dtype))
                    original = module(rows)
                    ft.patch(module)
                    suite.check(f"{label}: {name}", same(module(rows), original))


def test_fused(suite):
    for kind, (_, count, _, fused) in MODELS.items():
        if not hasattr(transformers.models, kind.removesuffix("_text")):
            suite.skip(f"{kind} fused", f"transformers {transformers.__version__} lacks it")
            continue
        model = made(kind, torch.bfloat16)
        ft.patch(model)
        wanted = logits(model)
        ft.unpatch(model)
        report = ft.patch(model, fuse=("residual", "heads"))
        blocks = {entry.what for entry in report.replaced if entry.what.startswith("fuse")}
        suite.equal(f"{kind}: what is fused", len(blocks), len(fused))
        for word, norm in fused.items():
            ok = any(word in text and norm in text for text in blocks)
            suite.check(f"{kind}: {word} with {norm}", ok, blocks)
        with Calls() as counts:
            found = logits(model)
        layers = 2
        suite.equal(
            f"{kind}: additions", counts.get("add_rms_norm", 0), layers * ("residual" in fused)
        )
        suite.equal(f"{kind}: heads", counts.get("norm_heads", 0), layers * ("heads" in fused))
        rest = count - layers * ("residual" in fused) - 2 * layers * ("heads" in fused)
        plain = counts.get("rms_norm", 0) + counts.get("layer_norm", 0)
        suite.equal(f"{kind}: other norms", plain, rest)
        suite.check(f"{kind}: same bits as patched", same(found, wanted))
        ft.unpatch(model)
        left = [m for m in model.modules() if hasattr(m, "_fastnorm_original")]
        suite.equal(f"{kind}: unpatched", left, [])


def test_fused_training(suite):
    """Gradients of fused blocks, with hooks, checkpoints, a cache and copies."""
    reference = made("qwen3", torch.float32).train()
    model = copy.deepcopy(reference)
    ft.patch(model, fuse=("residual", "heads"))
    for each in (reference, model):
        each(input_ids=ids(), labels=ids()).loss.backward()
    for (name, a), b in zip(reference.named_parameters(), model.parameters()):
        close = torch.allclose(a.grad, b.grad, rtol=1e-3, atol=1e-5)
        suite.check(f"{name}.grad", close, (a.grad - b.grad).abs().max())
    model.zero_grad()
    other = pickle.loads(pickle.dumps(model)).eval()
    model.gradient_checkpointing_enable()
    model(input_ids=ids(), labels=ids(), use_cache=False).loss.backward()
    a = reference.model.layers[0].input_layernorm.weight.grad
    b = model.model.layers[0].input_layernorm.weight.grad
    suite.check("with checkpoints", torch.allclose(a, b, rtol=1e-3, atol=1e-5))
    model.eval(), reference.eval()
    suite.check("a copy", same(logits(other), logits(model)))
    with Calls() as counts:
        logits(other)
    suite.check("a fused copy", counts.get("norm_heads") == 2 == counts.get("add_rms_norm"), counts)
    calls = []
    other.model.layers[0].post_attention_layernorm.register_forward_hook(
        lambda module, inputs, output: calls.append(1)
    )
    other.model.layers[1].self_attn.k_norm.register_forward_hook(
        lambda module, inputs, output: calls.append(1)
    )
    suite.check("with hooks: same bits", same(logits(other), logits(model)))
    suite.equal("with hooks: they run", len(calls), 2)
    texts = [
        each.generate(ids(4), max_new_tokens=6, min_new_tokens=6, do_sample=False)
        for each in (reference, model)
    ]
    suite.check("generated tokens", torch.equal(*texts), texts)


def test_compiled_models(suite):
    """A whole model in one graph."""
    for kind, fuse in (("llama", ()), ("qwen3", ("residual", "heads")), ("gpt2", ())):
        model = made(kind, torch.float32, use_cache=False)
        ft.patch(model, fuse=fuse)
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(model, backend=counter, fullgraph=True)
        with torch.no_grad():
            found = compiled(ids()).logits
        suite.check(f"{kind}: same logits", torch.allclose(found, logits(model), atol=1e-6))
        suite.equal(f"{kind}: graphs", counter.frame_count, 1)
        text = str(counter.graphs[0].graph)
        suite.equal(f"{kind}: the operators", "fastnorm." in text, DEVICE.type != "cpu")


def test_pretrained(suite):
    """save_pretrained and from_pretrained, with patch() and with register()."""
    model = made("llama", torch.bfloat16)
    ft.patch(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        auto = transformers.AutoModelForCausalLM
        plain = auto.from_pretrained(folder, dtype=torch.bfloat16).to(DEVICE)
        suite.equal("a saved model is a plain one", patched_of(plain), [])
        before = logits(plain).float()
        ft.patch(plain)
        wanted = logits(plain)
        off = (wanted.float() - before).abs().max() / before.abs().max()
        suite.check("loaded and patched", off.item() <= LOGITS["bfloat16"], off)
        names = ft.register("llama", "gemma2")
        suite.equal("registered", names, ["Gemma2RMSNorm", "LlamaRMSNorm"])
        built = auto.from_pretrained(folder, dtype=torch.bfloat16).to(DEVICE)
        suite.equal("from_pretrained builds ours", len(patched_of(built)), 5)
        suite.check("from_pretrained: same bits", same(logits(built), wanted))
        gemma = auto.from_config(made("gemma2", torch.float32).config)
        suite.equal("from_config builds ours", len(patched_of(gemma)), 9)
        weights = {m.weight.abs().max().item() for m in patched_of(gemma)}
        suite.equal("their weights are initialised", weights, {0.0})
        copied = pickle.loads(pickle.dumps(built))
        suite.check("a copy", same(logits(copied), wanted) and len(patched_of(copied)) == 5)
        suite.equal("unpatch", ft.unpatch(built), 5)
        suite.equal("unregister", ft.unregister(), 2)
        plain = auto.from_pretrained(folder, dtype=torch.bfloat16)
        suite.equal("then it builds its own", patched_of(plain), [])
    suite.raises("an unknown model", ImportError, "nothing", lambda: ft.register("nothing"))
    names = ft.register()
    suite.check("all of them", {"LlamaRMSNorm", "Qwen3RMSNorm"} <= set(names), names)
    suite.equal("unregister all", ft.unregister(), len(names))


def test_peft(suite):
    if needs(suite, "peft"):
        return
    import peft

    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], modules_to_save=["norm"])
    torch.manual_seed(2)
    reference = peft.get_peft_model(made("llama", torch.float32), config)
    model = copy.deepcopy(reference)
    report = ft.patch(model, fuse="residual")
    norms = [e for e in report.replaced if not e.what.startswith("fuse")]
    suite.equal("after PEFT: replaced", len(norms), 10)  # the frozen norms and what PEFT trains
    suite.check("after PEFT: logits", torch.allclose(logits(model), logits(reference), atol=1e-5))
    for each in (reference, model):
        each.train()
        optimizer = torch.optim.SGD([p for p in each.parameters() if p.requires_grad], lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            each(input_ids=ids(), labels=ids()).loss.backward()
            optimizer.step()
    trained = [(n, a, b) for (n, a), b in zip(reference.named_parameters(), model.parameters())]
    for name, a, b in trained:
        if a.requires_grad:
            suite.check(f"after 2 steps: {name}", torch.allclose(a, b, atol=1e-5))
    suite.check("frozen norms have no gradient", all(
        a.grad is None and b.grad is None for _, a, b in trained if not a.requires_grad
    ))  # fmt: skip
    base = made("llama", torch.float32)
    ft.patch(base)
    torch.manual_seed(2)
    wrapped = peft.get_peft_model(base, config)
    suite.equal("before PEFT: norms", len(patched_of(wrapped)), 10)
    suite.check("before PEFT: logits", logits(wrapped).isfinite().all())
    merged = model.merge_and_unload()
    suite.equal("merged: norms", len(patched_of(merged)), 5)
    suite.check("merged: logits", logits(merged).isfinite().all())


# --- all ---


def test_benchmark(suite):
    """bench/compare_models.py on a small Llama: its lines, logits and operators."""
    sys.path.append(str(ROOT / "bench"))
    from compare import lines

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "models.csv"
        more = ["--hidden", 64, "--layers", 2, "--heads", 4, "--vocabulary", 128, "--tokens", 16]
        command = [sys.executable, ROOT / "bench" / "compare_models.py", "--csv", path, *more]
        command += ["--rounds", 3, "--dtype", "float32", "--device", DEVICE.type]
        command += ["--models", "llama,bert"]
        for code, seconds in ((75, 0), (0, 600), (0, 0)):  # what is there is not timed again
            words = list(map(str, [*command, "--seconds", seconds]))
            ran = subprocess.run(words, capture_output=True, text=True)
            label = f"the benchmark in {seconds} s"
            if not suite.check(label, ran.returncode == code, ran.stderr[-3000:]):
                return
        content = lines.parse(path.read_text())
    suite.equal("the benchmark: operators", content["operators"], compiled.path())
    rows = content["results"]
    variants = {"llama": ("stock", "patch", "patch, residual"), "bert": ("stock", "patch")}
    suite.equal(
        "the benchmark: lines",
        [(row["model"], row["mode"], row["variant"]) for row in rows if row["variant"][0] != "L"],
        [
            (model, mode, variant)
            for model, mode in (
                *(("llama", mode) for mode in ("prefill", "decode", "train")),
                *(("bert", mode) for mode in ("prefill", "train")),
            )
            for variant in variants[model]
        ],
    )
    for row in rows:
        name = f"the benchmark: {row['model']}, {row['mode']}, {row['variant']}"
        ordered = 0 < row["low_ms"] <= row["median_ms"] <= row["high_ms"]
        suite.check(f"{name}: times", ordered and row["ratio"] > 0 < row["tokens_s"], row)
        limit = {"logits": LOGITS["float32"], "loss": 1e-5}
        word = "loss" if row["mode"] == "train" else "logits"
        suite.check(f"{name}: {word}", row[word] <= limit[word], row)
        if row["variant"][0] == "L":  # Liger
            continue
        norms = 0 if row["variant"] == "stock" else {"llama": 5, "bert": 6}[row["model"]]
        calls = norms * (2 if word == "loss" else 1)
        found = row["compiled"] + row["python"]
        suite.equal(f"{name}: calls of the library", found, calls)
        suite.equal(f"{name}: compiled calls", row["compiled"], compiled_calls(calls))


def main():
    global torch, transformers, ft, compiled, models, DEVICE, PATH, CompileCounterWithBackend
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--path", help="the operators that must run: python, stable or compiled")
    options = parser.parse_args()
    PATH = options.path
    use_library(options)
    suite = Suite("torch_models", options)
    why = missing("torch", "numpy")
    if why is None:
        import torch

        if options.device == "cuda" and not torch.cuda.is_available():
            why = "PyTorch has no CUDA device here"
    if why:
        suite.skip("patched models", why)
        suite.finish()
    from torch._dynamo.testing import CompileCounterWithBackend

    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packages" / "python"))
    import fastnorm.torch as ft
    from fastnorm.torch import compiled, models

    DEVICE = torch.device(options.device)
    suite.results["versions"] = {"torch": torch.__version__, "libfastnorm": ft.version()}
    suite.run(
        [
            test_path,
            test_modules,
            test_roundings,
            test_kept,
            test_fallbacks,
            test_copies,
            test_compile,
            test_training,
        ]
    )
    if not needs(suite, "transformers"):
        import transformers

        suite.results["versions"]["transformers"] = transformers.__version__
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        suite.run(
            [
                test_models,
                test_fused,
                test_fused_training,
                test_compiled_models,
                test_pretrained,
                test_peft,
                test_benchmark,
            ]
        )
    suite.finish()


main()
