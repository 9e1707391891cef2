#!/usr/bin/env python3
"""Times whole models of transformers with the norms of fastnorm.torch.patch() and without.

    bench/compare_models.py --library build/src/libfastnorm.so.1 --models llama,gpt2 --device cpu

The weights are random. Variants run one after the other in each round, in an order that turns from
round to round, so that a change of the machine's speed meets all of them. A line has the median of
a step, its quartiles, tokens a second and the ratio to the stock model, of time and of processor
time, which other programs on the machine change less: the medians and quartiles of the rounds'
ratios. Then come the peak of the GPU's memory above what was there before the step, the largest
difference of logits from the stock model's, as a share of the greatest (for training, that of the
loss), and how many calls of the library a step makes by compiled operators, such as those of _C.so,
and how many by Python's. Prefill is one forward of all tokens, decode one token with a static
cache, train a forward, backward and step of SGD. Liger takes part where it is installed, on a GPU:
all that it changes by default, and its norms alone.

--compile names models that are also timed with torch.compile, without dynamic shapes. Compiling
takes long, so these have --compile-layers layers, and lines of their own for the stock model of so
many layers. With --seconds nothing is begun after so many seconds; the exit code then is 75, and
the same command goes on where the file ends.
"""

import argparse
import contextlib
import copy
import gc
import inspect
import os
import statistics
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))
from compare import lines, models  # noqa: E402

COLUMNS = {
    "model": "", "mode": "", "variant": "", "layers": "", "median_ms": ".3f", "low_ms": ".3f",
    "high_ms": ".3f", "tokens_s": "", "ratio": ".3f", "ratio_low": ".3f", "ratio_high": ".3f",
    "cpu_ratio": ".3f", "cpu_low": ".3f", "cpu_high": ".3f", "peak_mib": "",
    "logits": ".1e", "loss": ".1e", "compiled": "",
    "python": "",
}  # of the table, with their forms
MODES = ("prefill", "decode", "train")
LEAST_ROUNDS = 5
COMPILING = 20  # seconds that a first cell of torch.compile takes, at least


def words(text):
    return text.split(",")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=Path, help="libfastnorm.so.1 (default: the package's)")
    parser.add_argument("--operators", type=Path,
                        help="_C.so of fastnorm.torch; the word compiled: "
                        "those that fastnorm.torch.compiled.build() makes (default: what is there)")
    parser.add_argument("--models", type=words, default=["llama"],
                        help=f"of {', '.join(models.FAMILIES)}; all: these (%(default)s)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, help="default: one for 128 columns, at least 4")
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, help="of PyTorch on the CPU")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--compile", type=words, default=[], help="models, also with torch.compile")
    parser.add_argument("--compile-layers", type=int, default=4, help="of these (%(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"),
                        help="begin nothing after so many")
    parser.add_argument("--fresh", action="store_true", help="do not go on with the file")
    parser.add_argument("--csv", type=Path, help="file for the lines")
    options = parser.parse_args()
    for name in ("models", "compile"):
        if getattr(options, name) == ["all"]:
            setattr(options, name, list(models.FAMILIES))
        unknown = [m for m in getattr(options, name) if m not in models.FAMILIES]
        if unknown:
            parser.error(f"--{name} has {unknown[0]}; required: some of "
                         f"{', '.join(models.FAMILIES)}")
    return options


class Variant:
    """A model, what stands around its runs, and what is known of it."""

    def __init__(self, name, model, around=contextlib.nullcontext, facts=None, is_other=False):
        self.name, self.model, self.around, self.facts = name, model, around, facts or {}
        self.is_other = is_other  # of another library, whose versions may not fit together


def eager(options, name):
    stock = models.make(torch, transformers, name, options)
    yield Variant("stock", stock)
    for variant, model, facts in models.patched(ft, stock):
        yield Variant(variant, model, facts=facts)
    if options.device == "cuda":
        for variant, model, around in models.liger(stock):
            yield Variant(variant, model, around, is_other=True)


def compiled_too(options, name):
    """The stock model, and it and its patched forms by torch.compile. A copy of a compiled model
    would not be compiled."""
    stock = models.make(torch, transformers, name, options)
    yield Variant("stock", stock)
    found = [("stock", copy.deepcopy(stock), {}), *models.patched(ft, stock)]
    for variant, model, facts in found:
        if "heads" not in variant:
            model.compile(dynamic=False)
            yield Variant(f"{variant}, compiled", model, facts=facts)


def step_of(mode, model, ids):
    """A function that runs one step; its result is the logits, or for training the loss."""
    if mode == "train":
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def train():
            optimizer.zero_grad()
            named = {} if model.config.model_type in models.ENCODERS else {"use_cache": False}
            loss = model(input_ids=ids, labels=ids, **named).loss
            loss.backward()
            optimizer.step()
            return loss.detach()

        return train
    model.eval()
    if model.config.model_type in models.ENCODERS:
        return lambda: model(input_ids=ids).logits
    if mode == "prefill":
        return lambda: model(input_ids=ids, use_cache=False).logits
    word = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    cache = transformers.StaticCache(config=model.config, max_cache_len=ids.shape[1] + 32)
    # By the function itself: torch.compile gets the step alone.
    type(model).forward(model, input_ids=ids, **{word: cache}, use_cache=True)
    place = torch.tensor([[ids.shape[1]]], device=ids.device).expand(ids.shape[0], 1)
    token = ids[:, -1:]

    def decode():
        # The counters of a static cache go back, so that each step writes the same slot.
        for layer in cache.layers:
            layer.cumulative_length.fill_(ids.shape[1])
            if hasattr(layer, "cumulative_length_int"):
                layer.cumulative_length_int = ids.shape[1]
        return model(input_ids=token, position_ids=place, **{word: cache}, use_cache=True).logits

    return decode


class Step:
    """A step of a variant, inside of what stands around it."""

    def __init__(self, variant, mode, ids):
        self.around, self.model = variant.around, variant.model
        with self.around():
            self.run = step_of(mode, variant.model, ids)

    def __call__(self):
        with self.around():
            return self.run()


def synchronize(options):
    if options.device == "cuda":
        torch.cuda.synchronize()


def timed(options, step):
    """Milliseconds of one step, and those of all processors."""
    synchronize(options)
    start, cpu = time.perf_counter(), time.process_time()
    step()
    synchronize(options)
    return (time.perf_counter() - start) * 1e3, (time.process_time() - cpu) * 1e3


def peak_mib(options, step):
    """Memory of the GPU that a step takes above what the models have, with its gradients."""
    if options.device != "cuda":
        return None
    step.model.zero_grad()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - before) / 2**20)


def calls_of(step):
    """How many calls of the library a step makes: by compiled operators and by Python's."""
    counts = []
    kept = {kind: kind.run for kind in (ft._Call, abi.Call)}
    before = compiled.runs()
    for kind, run in kept.items():
        kind.run = lambda self, *inputs, run=run: (counts.append(1), run(self, *inputs))[1]
    try:
        step()
    finally:
        for kind, run in kept.items():
            kind.run = run
    return compiled.runs() - before, len(counts)


class TimeOver(Exception):
    pass


def rounds_of(options, steps, left):
    """How many rounds the time that is left is enough for."""
    once = sum(timed(options, step)[0] for step in steps.values()) / 1e3
    rounds = int(min(options.rounds, left() / max(once, 1e-9) - 2))
    if rounds < min(options.rounds, LEAST_ROUNDS):
        raise TimeOver
    return rounds


def compare(options, name, mode, found, left):
    """The lines of one mode of a model."""
    generator = torch.Generator().manual_seed(1)
    shape = options.batch, options.tokens
    ids = torch.randint(3, options.vocabulary, shape, generator=generator).to(options.device)
    with torch.set_grad_enabled(mode == "train"):
        steps, results = {}, {}
        for variant in found:
            try:
                steps[variant.name] = step = Step(variant, mode, ids)
                torch.manual_seed(2)  # of dropout
                results[variant.name] = step().float()
            except Exception as why:
                if not variant.is_other:
                    raise
                steps.pop(variant.name, None)
                print(f"# {variant.name}: {type(why).__name__}: {why}".splitlines()[0][:200])
        found = [variant for variant in found if variant.name in results]
        rounds = rounds_of(options, steps, left)
        times, of_cpu = ({variant: [] for variant in steps} for _ in range(2))
        order = list(steps)
        for i in range(rounds):
            turn = i % len(order)
            for variant in order[turn:] + order[:turn]:
                for table, value in zip((times, of_cpu), timed(options, steps[variant])):
                    table[variant].append(value)
        for variant in found:
            yield line_of(options, name, mode, variant, steps, results, times, of_cpu)


def line_of(options, name, mode, variant, steps, results, times, of_cpu):
    step = steps[variant.name]
    low, median, high = statistics.quantiles(times[variant.name], n=4)
    ratios = [a / b for a, b in zip(times[variant.name], times["stock"])]
    ratio_low, ratio, ratio_high = statistics.quantiles(ratios, n=4)
    ratios = [a / b for a, b in zip(of_cpu[variant.name], of_cpu["stock"])]
    cpu_low, cpu_ratio, cpu_high = statistics.quantiles(ratios, n=4)
    a, b = results[variant.name], results["stock"]
    off = ((a - b).abs().max() / b.abs().max()).item()
    tokens = options.batch * (1 if mode == "decode" else options.tokens)
    by_compiled, by_python = calls_of(step)
    values = (
        name, mode, variant.name, options.layers, median, low, high, round(tokens / median * 1e3),
        ratio, ratio_low, ratio_high, cpu_ratio, cpu_low, cpu_high, peak_mib(options, step),
        None if mode == "train" else off, off if mode == "train" else None, by_compiled, by_python,
    )  # fmt: skip
    row = {k: v for k, v in zip(COLUMNS, values) if v is not None}
    cells = (format(row[k], form) if k in row else "" for k, form in COLUMNS.items())
    print("  ".join(f"{cell:>9}" for cell in cells), flush=True)
    return {**row, **variant.facts}


def cells(options):
    """(model, mode, whether by torch.compile) of all that is asked for."""
    for by_compiler, names in ((False, options.models), (True, options.compile)):
        for name in names:
            for mode in options.modes:
                if mode != "decode" or name not in models.ENCODERS:
                    yield name, mode, by_compiler


def measure(options, document, left):
    """Fills the document; the exit code. A model that fails leaves the others."""
    there = {(r["model"], r["mode"], "compiled" in r["variant"]) for r in document["results"]}
    last, found, longest, code = None, [], {False: 0.0, True: COMPILING}, 0
    for cell in cells(options):
        if cell in there:
            continue
        name, mode, by_compiler = cell
        if left() < longest[by_compiler]:
            return lines.EXIT_LEFT
        start = time.monotonic()
        sizes = argparse.Namespace(**vars(options))
        sizes.layers = options.compile_layers if by_compiler else options.layers
        try:
            # Training changes the weights, so it comes last. Each mode is compiled for itself.
            if by_compiler or last != (name, by_compiler):
                found.clear()
                gc.collect()
                torch._dynamo.reset()
                if options.device == "cuda":
                    torch.cuda.empty_cache()
                found += (compiled_too if by_compiler else eager)(sizes, name)
            last = name, by_compiler
            document["results"] += list(compare(sizes, name, mode, found, left))
        except TimeOver:
            return lines.EXIT_LEFT
        except Exception:
            print(f"# {name}, {mode}: failed\n{traceback.format_exc()}", flush=True)
            last, code = None, 1
            continue
        if options.csv:
            lines.write(options.csv, document)
        took = time.monotonic() - start
        print(f"# {name}, {mode}{', compiled' if by_compiler else ''}: {took:.1f} s", flush=True)
        longest[by_compiler] = max(longest[by_compiler], 0.8 * took)
    return code


def description(options):
    """What is measured, and where."""
    from compare import library, runner

    found = library.Library(Path(os.environ["FASTNORM_LIBRARY"])) if options.library else None
    asked = ("hidden", "layers", "compile_layers", "vocabulary", "batch", "tokens", "rounds")
    return {
        "kind": "models",
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "library": found.identity() if found else {"version": ft.version()},
        "operators": compiled.path(),
        "transformers": transformers.__version__,
        "dtype": options.dtype,
        "threads": torch.get_num_threads(),
        **{name: getattr(options, name) for name in asked},
        **runner.describe_machine(torch, torch.device(options.device)),
        "results": [],
    }


def main():
    global torch, transformers, abi, ft, compiled
    start = time.monotonic()
    options = arguments()
    if options.library:
        os.environ["FASTNORM_LIBRARY"] = str(options.library.resolve())
    if str(options.operators) == "compiled":
        os.environ["FASTNORM_TORCH_COMPILED"] = "1"
    elif options.operators:
        os.environ["FASTNORM_TORCH_LIBRARY"] = str(options.operators.resolve())
    sys.path.insert(0, str(ROOT / "packages" / "python"))
    import torch
    import transformers

    import fastnorm.torch as ft
    from fastnorm import abi
    from fastnorm.torch import compiled

    transformers.logging.set_verbosity_error()
    if options.threads:
        torch.set_num_threads(options.threads)
    # All models of a run are programs of one function, of which the compiler keeps 8 by default.
    torch._dynamo.config.recompile_limit = 64
    document = description(options)
    try:
        lines.go_on(options.csv, document, options.fresh)
    except lines.Mismatch as why:
        sys.exit(f"compare_models.py: {why}")
    print(f"operators: {compiled.path()}")
    print("  ".join(f"{name:>9}" for name in COLUMNS))
    code = measure(options, document, lambda: options.seconds - (time.monotonic() - start))
    if options.csv:
        lines.write(options.csv, document)
    if code == lines.EXIT_LEFT:
        print("the time is over")
    return code


if __name__ == "__main__":
    sys.exit(main())
