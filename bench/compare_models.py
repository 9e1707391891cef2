#!/usr/bin/env python3
"""Times whole models of transformers with the norms of fastnorm.torch.patch() and without.

    bench/compare_models.py --library build/src/libfastnorm.so.1 --model llama --device cpu

The weights are random. Variants run one after the other in each round, so that a change of the
machine's speed meets all of them. A line has the median of a step, its quartiles, tokens a second
and the ratio to the stock model, and the same ratio of processor time, which other programs on the
machine change less. Then come the peak of the GPU's memory and the largest difference of logits, as
a share of the greatest, and how many calls of the library a step makes by compiled operators, such
as those of _C.so. Prefill is one forward of all tokens, decode one token with a
static cache, train a forward, backward and step of SGD. Liger takes part where it is installed, on
a GPU.
"""

import argparse
import copy
import os
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))
from compare import lines  # noqa: E402

COLUMNS = {
    "model": "", "mode": "", "variant": "", "median_ms": ".3f", "low_ms": ".3f", "high_ms": ".3f",
    "tokens_s": "", "ratio": ".3f", "cpu_ratio": ".3f", "peak_mib": "", "logits": ".1e", "compiled": ""
}  # of the table, with their forms


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=Path, help="libfastnorm.so.1 (default: the package's)")
    parser.add_argument("--operators", type=Path, help="_C.so of fastnorm.torch (default: none)")
    parser.add_argument("--model", default="llama", help="a model type of transformers")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, help="of PyTorch on the CPU")
    parser.add_argument("--modes", nargs="+", default=["prefill", "decode", "train"])
    parser.add_argument("--compile", action="store_true", help="also with torch.compile")
    parser.add_argument("--csv", type=Path, help="file for the lines")
    return parser.parse_args()


def make_model(options):
    """The stock model."""
    n, heads = options.hidden, options.heads
    settings = {
        "vocab_size": options.vocabulary,
        "hidden_size": n,
        "intermediate_size": 3 * n,
        "num_hidden_layers": options.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // 4),
        "head_dim": n // heads,
        "max_position_embeddings": options.tokens + 64,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if options.model == "gpt2":
        names = {"n_embd": n, "n_layer": options.layers, "n_head": heads}
        settings = {**names, "vocab_size": options.vocabulary, "n_positions": options.tokens + 64}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(options.model, **settings)
    model = transformers.AutoModelForCausalLM.from_config(config)
    return model.to(getattr(torch, options.dtype)).to(options.device)


def variants(options):
    """(name, model) of each."""
    stock = make_model(options)
    found = [("stock", stock)]
    for name, fuse in (("patch", ()), ("patch, fused", ("residual", "heads"))):
        model = copy.deepcopy(stock)
        report = ft.patch(model, fuse=fuse)
        if not fuse or any(entry.what.startswith("fuse") for entry in report.replaced):
            found.append((name, model))
    if options.device == "cuda":
        try:
            from liger_kernel.transformers import _apply_liger_kernel_to_instance

            liger = copy.deepcopy(stock)
            _apply_liger_kernel_to_instance(model=liger)
            found.append(("Liger", liger))
        except ImportError:
            print("Liger is not installed")
    return found


def copies(options, found):
    """A copy of each model by name, with --compile also a compiled one. A copy of a compiled model
    would not be compiled."""
    models = {name: copy.deepcopy(model) for name, model in found}
    if options.compile:
        for name, model in found:
            models[f"{name}, compiled"] = copy.deepcopy(model)
            models[f"{name}, compiled"].compile()
    return models


def step_of(mode, model, ids):
    """A function that runs one step."""
    if mode == "train":
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def train():
            optimizer.zero_grad()
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
            optimizer.step()

        return train
    model.eval()
    if mode == "prefill":
        return lambda: model(input_ids=ids, use_cache=False).logits
    names = model.forward.__code__.co_varnames
    word = "cache" if "cache" in names else "past_key_values"
    cache = transformers.StaticCache(config=model.config, max_cache_len=ids.shape[1] + 32)
    model(input_ids=ids, **{word: cache}, use_cache=True)
    place = torch.tensor([[ids.shape[1]]], device=ids.device).expand(ids.shape[0], 1)
    token = ids[:, -1:]

    def decode():
        # The counters of a static cache go back, so that each step writes the same slot.
        for layer in cache.layers:
            layer.cumulative_length.fill_(ids.shape[1])
        return model(input_ids=token, position_ids=place, **{word: cache}, use_cache=True).logits

    return decode


def timed(options, step):
    """Milliseconds of one step, and those of all processors."""
    if options.device == "cuda":
        torch.cuda.synchronize()
    start, cpu = time.perf_counter(), time.process_time()
    step()
    if options.device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3, (time.process_time() - cpu) * 1e3


def peak_mib(options, step):
    if options.device != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return round(torch.cuda.max_memory_allocated() / 2**20)


def compare(options, mode, found):
    """The results of one mode."""
    generator = torch.Generator().manual_seed(1)
    shape = options.batch, options.tokens
    ids = torch.randint(3, options.vocabulary, shape, generator=generator).to(options.device)
    rows = []
    with torch.set_grad_enabled(mode == "train"):
        models = copies(options, found)
        steps = {name: step_of(mode, model, ids) for name, model in models.items()}
        results = {name: step() for name, step in steps.items()}
        times, of_cpu = ({name: [] for name in steps} for _ in range(2))
        for _ in range(options.rounds):
            for name, step in steps.items():
                for found, value in zip((times, of_cpu), timed(options, step)):
                    found[name].append(value)
        for name, step in steps.items():
            low, median, high = statistics.quantiles(times[name], n=4)
            off = None
            if mode != "train":
                a, b = results[name].float(), results["stock"].float()
                off = ((a - b).abs().max() / b.abs().max()).item()
            tokens = options.batch * (1 if mode == "decode" else options.tokens)
            ratio, cpu_ratio = (
                statistics.median(of[name]) / statistics.median(of["stock"])
                for of in (times, of_cpu)
            )
            before = compiled.runs()
            step()
            values = (
                options.model, mode, name, median, low, high, round(tokens / median * 1e3), ratio,
                cpu_ratio, peak_mib(options, step), off, compiled.runs() - before,
            )  # fmt: skip
            row = {k: v for k, v in zip(COLUMNS, values) if v is not None}
            cells = (format(row[k], form) if k in row else "" for k, form in COLUMNS.items())
            print("  ".join(f"{cell:>12}" for cell in cells), flush=True)
            rows.append(row)
    return rows


def description(options):
    """What was measured, and where."""
    from compare import library, runner

    found = library.Library(Path(os.environ["FASTNORM_LIBRARY"])) if options.library else None
    asked = ("hidden", "layers", "heads", "vocabulary", "batch", "tokens", "rounds", "threads")
    return {
        "kind": "models",
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "library": found.identity() if found else {"version": ft.version()},
        "operators": compiled.path(),
        "transformers": transformers.__version__,
        "dtype": options.dtype,
        **{name: getattr(options, name) for name in asked},
        **runner.describe_machine(torch, torch.device(options.device)),
    }


def main():
    global torch, transformers, ft, compiled
    options = arguments()
    if options.library:
        os.environ["FASTNORM_LIBRARY"] = str(options.library.resolve())
    if options.operators:
        os.environ["FASTNORM_TORCH_LIBRARY"] = str(options.operators.resolve())
    sys.path.insert(0, str(ROOT / "packages" / "python"))
    import torch
    import transformers

    import fastnorm.torch as ft
    from fastnorm.torch import compiled

    transformers.logging.set_verbosity_error()
    if options.threads:
        torch.set_num_threads(options.threads)
    # All models of a run are programs of one function, of which the compiler keeps 8 by default.
    torch._dynamo.config.recompile_limit = 64
    print(f"operators: {compiled.path()}")
    print("  ".join(f"{name:>12}" for name in COLUMNS))
    found = variants(options)
    rows = [row for mode in options.modes for row in compare(options, mode, found)]
    if options.csv:
        lines.write(options.csv, {**description(options), "results": rows})


if __name__ == "__main__":
    main()
