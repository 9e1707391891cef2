"""Whole models of transformers with random weights, as variants beside each other: the stock model,
the same with fastnorm.torch.patch(), and with Liger. main() of compare_models.py imports torch,
transformers and fastnorm.torch before."""

import contextlib
import copy
import sys

# What transformers calls the models that these names stand for.
ALIASES = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "deepseek": "deepseek_v3",
}
FAMILIES = (
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "gemma4", "phi", "phi3",
    "gpt2", "bert", "olmo2", "deepseek",
)  # fmt: skip
ENCODERS = ("bert",)  # no cache, so no decode step
LIGER, LIGER_NORMS = "Liger", "Liger, norms"
FUSES = {"patch": (), "patch, residual": ("residual",),
         "patch, residual, heads": ("residual", "heads")}


def kind_of(name):
    return ALIASES.get(name, name)


def settings_of(name, options):
    """The configuration of a family in the sizes that the options have."""
    n, heads = options.hidden, options.heads or max(4, options.hidden // 128)
    places = options.tokens + 64
    if name == "gpt2":
        return {"vocab_size": options.vocabulary, "n_embd": n, "n_layer": options.layers,
                "n_head": heads, "n_positions": places}
    found = {
        "vocab_size": options.vocabulary,
        "hidden_size": n,
        "intermediate_size": 3 * n,
        "num_hidden_layers": options.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // 4),
        "head_dim": n // heads,
        "max_position_embeddings": places,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if name == "gemma4":
        found |= {"global_head_dim": n // heads, "vocab_size_per_layer_input": options.vocabulary,
                  "hidden_size_per_layer_input": n // 8}
    if name == "deepseek":  # few experts: they are no norms
        d = n // heads
        found |= {
            "num_key_value_heads": heads, "head_dim": d // 2, "q_lora_rank": n // 2,
            "kv_lora_rank": n // 4, "qk_rope_head_dim": d // 2, "qk_nope_head_dim": d,
            "v_head_dim": d, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
            "topk_group": 1, "first_k_dense_replace": 1, "moe_intermediate_size": n // 2,
        }  # fmt: skip
    return found


def make(torch, transformers, name, options):
    """The stock model of a family, made on its device, with norms whose weights are not all one."""
    config = transformers.AutoConfig.for_model(kind_of(name), **settings_of(name, options))
    auto = transformers.AutoModelForCausalLM
    if name in ENCODERS:
        auto = transformers.AutoModelForMaskedLM
    torch.manual_seed(0)
    with torch.device(options.device):
        model = auto.from_config(config, dtype=getattr(torch, options.dtype))
        for part, t in model.named_parameters():
            if "norm" in part.lower() or ".ln_" in part:
                t.data += 0.2 * torch.randn_like(t)
    return model


def patched(ft, stock):
    """(variant, model, what is known of it) for each way of patch() that fuses something new."""
    last = None
    for variant, fuse in FUSES.items():
        model = copy.deepcopy(stock)
        report = ft.patch(model, fuse=fuse)
        fused = sorted({e.what.split(": ")[1] for e in report.replaced if e.what[:4] == "fuse"})
        if last is not None and len(fused) == last:
            continue
        last = len(fused)
        norms = [e for e in report.replaced if e.what[:4] != "fuse"]
        facts = {
            "norms": len(norms),
            "kept": len([e for e in report.kept if e.what[:4] != "fuse"]),
            "how": "; ".join(sorted({e.what for e in norms})),
        }
        yield variant, model, facts | ({"fused": "; ".join(fused)} if fused else {})


# --- Liger ---


class Swapped:
    """A model whose library changes names of the modelling file: they stand there only while the
    model runs, so that the others do not meet them."""

    def __init__(self, model, places):
        self.model, self.places = model, places  # [(module, name, before, changed)]

    @contextlib.contextmanager
    def __call__(self):
        for module, name, _, changed in self.places:
            setattr(module, name, changed)
        try:
            yield
        finally:
            for module, name, before, _ in self.places:
                setattr(module, name, before)


def liger(stock):
    """(variant, model, context of its runs) of Liger's kernels, all that it has by default and only
    its norms. Nothing where it is not installed or does not know the model."""
    try:
        from liger_kernel.transformers import monkey_patch
    except Exception as why:  # an import may fail in any way
        print(f"Liger is not here: {type(why).__name__}: {why}".splitlines()[0])
        return
    known = monkey_patch.MODEL_TYPE_TO_APPLY_LIGER_FN
    if stock.config.model_type not in known:
        print(f"Liger does not know {stock.config.model_type}")
        return
    only = {word: False for word in ("rope", "swiglu", "geglu", "cross_entropy",
                                     "fused_linear_cross_entropy")}
    modules = [module for name, module in sys.modules.items()
               if name.startswith("transformers.") and hasattr(module, "__dict__")]
    for variant, named in ((LIGER, {}), (LIGER_NORMS, only)):
        before = {module: dict(vars(module)) for module in modules}
        model = copy.deepcopy(stock)
        try:
            monkey_patch._apply_liger_kernel_to_instance(model=model, **named)
        except Exception as why:  # a version of transformers that it does not know
            print(f"{variant}: {type(why).__name__}: {why}".splitlines()[0])
            continue
        finally:
            places = [
                (module, name, old[name], value)
                for module, old in before.items()
                for name, value in list(vars(module).items())
                if name in old and old[name] is not value
            ]
            for module, name, old, _ in places:
                setattr(module, name, old)
        yield variant, model, Swapped(model, places)
