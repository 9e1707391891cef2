"""The tables of docs/models.md, from what compare_models.py wrote. Pure."""

import textwrap

from compare.models import LIGER, LIGER_NORMS
from compare.tables import markdown

NAMES = {
    "llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen 2", "qwen3": "Qwen 3", "gemma": "Gemma",
    "gemma2": "Gemma 2", "gemma3": "Gemma 3", "gemma4": "Gemma 4", "phi": "Phi", "phi3": "Phi 3",
    "gpt2": "GPT-2", "bert": "BERT", "olmo2": "OLMo 2", "deepseek": "DeepSeek V3",
}  # fmt: skip
STEPS = {"prefill": "prefill", "decode": "decode", "train": "training"}
FUSES = {"patch": "", "patch, residual": "residual", "patch, residual, heads": "residual, heads"}
DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
UNMEASURED = "Not measured yet."


def by_case(content, layers="layers"):
    """Lines of models with so many layers as the content's number of this name."""
    return {
        (r["model"], r["mode"], r["variant"]): r
        for r in (content or {}).get("results", [])
        if r["layers"] == content[layers]
    }


def how(text):
    """RMS, ONCE, weight + 1 of rms once, weight + 1."""
    first, *more = text.split(", ")
    kind, rounding = first.split()
    return ", ".join([{"rms": "RMS", "layer": "Layer"}[kind], rounding.upper(), *more])


def ratio(r, word):
    """The share of the stock model's time; it is told where three quarters of the rounds take
    longer. word: ratio or cpu, for processor time."""
    if r is None:
        return "-"
    slower = r[f"{word}_low"] > 1
    return f"{r['ratio' if word == 'ratio' else 'cpu_ratio']:.2f}{' (slower)' if slower else ''}"


def off(found, model, variant):
    """The largest difference of logits."""
    rows = [found.get((model, mode, variant)) for mode in ("prefill", "decode")]
    values = [r["logits"] for r in rows if r]
    text = "-" if not values else "0" if max(values) == 0 else f"{max(values):.1e}"
    return text.replace("e-0", "e-")


def measured(content):
    """A sentence that says what was measured."""
    return (
        ("" if content["device"] == "cpu" else f"{content['device']}, ")
        + f"{DTYPES[content['dtype']]}, PyTorch {content['versions']['torch']}, "
        f"transformers {content['transformers']}, {content['layers']} layers of "
        f"{content['hidden']} columns, {content['batch']} x {content['tokens']} tokens"
        + (f", threads: {content['threads']}" if content["device"] == "cpu" else "")
        + f", {content['date'][:10]}"
    )


def parted(contents):
    """(the CPU's content, the GPU's), None where there is none."""
    cpu = [c for c in contents if c["device"] == "cpu"]
    gpu = [c for c in contents if c["device"] != "cpu"]
    return (cpu or [None])[-1], (gpu or [None])[-1]


def models(contents):
    """Each model: how its norms compute, what is fused, and each step's share of the stock model's
    time, on the CPU of processor time."""
    sides = parted(contents)
    found = [by_case(content) for content in sides]
    head = ["model", "its norms", "`fuse`"]
    for name, content in zip(("CPU", "GPU"), sides):
        dtype = f", {DTYPES[content['dtype']]}" if content else ""
        head += [f"{name}: logits{dtype}", *(f"{name}: {step}" for step in STEPS.values())]
    rows = []
    for model, shown in NAMES.items():
        for variant, fuse in FUSES.items():
            facts = [side.get((model, "prefill", variant)) for side in found]
            known = next((r for r in facts if r), None)
            if known is None:
                continue
            row = [shown, how(known["how"]), fuse]
            for side, word in zip(found, ("cpu", "ratio")):
                row += [off(side, model, variant)]
                row += [ratio(side.get((model, step, variant)), word) for step in STEPS]
            rows.append(row)
    said = [f"{name}: {measured(content)}." if content else f"{name}: {UNMEASURED.lower()}"
            for name, content in zip(("CPU", "GPU"), sides)]
    lines = textwrap.wrap(" ".join(said), 100, break_long_words=False, break_on_hyphens=False)
    return [*markdown(head, rows).splitlines(), "", *lines] if rows else [UNMEASURED]


def models_beside(contents):
    """Steps of the GPU in milliseconds, beside Liger."""
    content = parted(contents)[1]
    if content is None:
        return [UNMEASURED]
    found = by_case(content)
    head = ["model", "step", "stock, ms", "tokens/s", "peak, MiB", "`patch()`, ms", "peak, MiB",
            f"{LIGER_NORMS}, ms", f"{LIGER}, ms"]
    rows = []
    for model, shown in NAMES.items():
        for step, name in STEPS.items():
            stock = found.get((model, step, "stock"))
            if stock is None:
                continue
            ours = min((r for v in FUSES if (r := found.get((model, step, v)))),
                       key=lambda r: r["median_ms"])
            others = [found.get((model, step, v)) for v in (LIGER_NORMS, LIGER)]
            rows.append([
                shown, name, f"{stock['median_ms']:.2f}", str(stock["tokens_s"]),
                str(stock.get("peak_mib", "-")), f"{ours['median_ms']:.2f}",
                str(ours.get("peak_mib", "-")),
                *("-" if r is None else f"{r['median_ms']:.2f}" for r in others),
            ])  # fmt: skip
    return markdown(head, rows).splitlines()


def models_compiled(contents):
    """Steps with torch.compile, in milliseconds, of few layers."""
    is_there = [any("compiled" in r["variant"] for r in c["results"]) for c in contents]
    content = parted([c for c, there in zip(contents, is_there) if there])[1]
    names = ("stock", "stock, compiled", "patch, compiled", "patch, residual, compiled")
    found = by_case(content, "compile_layers")
    rows = []
    for model, shown in NAMES.items():
        for step, name in STEPS.items():
            times = [found.get((model, step, variant)) for variant in names]
            if times[1] is not None:
                cells = ["-" if r is None else f"{r['median_ms']:.2f}" for r in times]
                rows.append([shown, name, str(times[1]["layers"]), *cells])
    if not rows:
        return [UNMEASURED]
    head = ["model", "step", "layers", "stock", "stock, compiled", "`patch()`, compiled",
            "`fuse=\"residual\"`, compiled"]
    return markdown(head, rows).splitlines()


# Tables by name, with the files that they are of.
TABLES = {
    "models": (models, ("*_models.csv", "*_models_cpu.csv")),
    "models_beside": (models_beside, ("*_models.csv",)),
    "models_compiled": (models_compiled, ("*_models.csv", "*_models_compiled.csv")),
}
