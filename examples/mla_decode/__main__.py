"""Decodes with a small MLA model in absorbed form, every norm and every attention done by
libfastnorm.

First all requests follow given tokens (teacher forcing), then each continues with the tokens that
it finds likeliest. Logits are compared with a plain model in double precision that is not absorbed
and has no cache.
"""

import argparse
import os
import sys
import time
from pathlib import Path

# A second BLAS thread gains nothing on single tokens, and spins where the machine is busy.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "packages" / "python"))

from compute import Compute  # noqa: E402
from fastnorm.abi import CPU, CUDA, FastnormError, Library  # noqa: E402
from model import Model, Pages  # noqa: E402
from reference import Reference  # noqa: E402
from weights import Config, random_weights  # noqa: E402

PROMPTS = (1, 17, 40, 70)  # tokens; one request each
# The bound of a logit's error is (FORMAT * u + FLOAT * 2^-24) * the largest logit, u the rounding
# error of the tensors' dtype. A logit is the sum of 2 outputs a block, each after about 5 roundings
# to the dtype; their errors are independent and add up like sqrt(30) * u of the logits' spread.
# FLOAT stands for NumPy's products in float32, which are sums of up to 2048 terms. Both factors
# leave room of 2 to 4; a wrong attention is far outside (test.py).
FORMAT, FLOAT = 8, 128
# In an FP8 cache a number of a latent has a relative error of up to 2^-4. The sums over 512 columns
# and the mean over tokens average these errors, so that the bound takes a unit of 2^-6 for them.
FP8_UNIT = 2.0 ** -6


def parse_arguments():
    parser = argparse.ArgumentParser(prog="mla_decode", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--dtype",
        choices=("f32", "bf16", "f16"),
        default="f32",
        help="of all tensors of norms and attention (default f32; a GPU needs bf16 or f16)",
    )
    parser.add_argument(
        "--cache",
        choices=("rows", "656"),
        default="rows",
        help="rows of the dtype, or of 656 bytes with FP8 codes, on the CPU with bf16",
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where norms and attention run"
    )
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N", help="CPU threads of the library"
    )
    parser.add_argument(
        "--steps", type=int, default=64, metavar="N", help="teacher-forced steps (default 64)"
    )
    parser.add_argument(
        "--tokens",
        type=int,
        default=16,
        metavar="N",
        help="tokens generated after them (default 16)",
    )
    parser.add_argument(
        "--page",
        type=int,
        default=16,
        metavar="N",
        help="tokens of a page of the cache (default 16)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of weights and tokens")
    parser.add_argument(
        "--scale-error",
        type=float,
        default=0.0,
        metavar="X",
        help="make the softmax's scale wrong by this factor, to see that it is noticed",
    )
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="Meson's build folder")
    arguments = parser.parse_args()
    if min(arguments.steps, arguments.tokens, arguments.page, arguments.threads) < 1:
        parser.error("--steps, --tokens, --page and --threads must be at least 1")
    if arguments.cache != "rows" and (arguments.dtype, arguments.device) != ("bf16", "cpu"):
        parser.error("--cache 656 needs --dtype bf16 and --device cpu")
    return arguments


def decode(model, cache, prompts, forced, count):
    """Logits [requests, 1 + steps + count - 1, vocabulary], and the generated tokens [requests,
    count].

    The prompts go in as one ragged batch. Then each step gives every request one token: first those
    of `forced` [steps, requests], then the likeliest one of the step before."""
    first = model.forward(prompts, cache)
    logits = [first[np.cumsum([len(p) for p in prompts]) - 1]]
    for step in forced:
        logits.append(model.forward([[int(token)] for token in step], cache))
    made = [logits[-1].argmax(-1)]
    while len(made) < count:
        logits.append(model.forward([[int(token)] for token in made[-1]], cache))
        made.append(logits[-1].argmax(-1))
    return np.stack(logits, 1), np.stack(made, 1)


class Comparison:
    """Logits of all steps [requests, steps, vocabulary] beside the reference's. Step 0 follows the
    prompt."""

    def __init__(self, found, exact, format_unit):
        largest = np.abs(exact).max()
        self.bound = (FORMAT * format_unit + FLOAT * 2.0 ** -24) * largest
        self.largest = largest
        self.errors = np.abs(found - exact).max(-1)
        two = np.sort(exact, -1)[..., -2:]
        self.margins = two[..., 1] - two[..., 0]
        self.same = found.argmax(-1) == exact.argmax(-1)
        self.decided = self.margins > self.bound

    def print_steps(self, forced):
        """Each step's margin between the reference's two likeliest tokens, one column a request."""
        requests, steps = self.margins.shape
        print(
            f"\nmargin of the likeliest token in the reference, by request; = the same token here, ~ another, and the "
            f"margin\nis within the bound, ! another, though the margin is larger\n{'step':>14}"
            + "".join(f"{f'request {r}':>13}" for r in range(requests))
            + f"{'max error':>14}"
        )
        for step in range(steps):
            marks = [
                "=" if self.same[r, step] else "!" if self.decided[r, step] else "~"
                for r in range(requests)
            ]
            kind = "prompt" if step == 0 else "forced" if step <= forced else "generated"
            print(
                f"{kind:>10}{step:4}"
                + "".join(f"{self.margins[r, step]:11.5f} {marks[r]}" for r in range(requests))
                + f"{self.errors[:, step].max():14.2e}"
            )

    def summary(self):
        total, decided = self.same.size, int(self.decided.sum())
        agreed, wrong = int((self.same & self.decided).sum()), int(
            (~self.same & self.decided).sum()
        )
        return (
            f"largest error of a logit {self.errors.max():.3e}, median over steps {np.median(self.errors):.3e}; "
            f"bound {self.bound:.3e}; largest logit {self.largest:.3f}\n"
            f"{decided} of {total} steps have a margin above the bound: {agreed} with the same token, {wrong} with "
            f"another; smallest margin {self.margins.min():.2e}\n"
            f"the other {total - decided} steps: {int((self.same & ~self.decided).sum())} with the same token"
        )

    def failure(self):
        if not self.errors.max() <= self.bound:
            return f"an error of {self.errors.max():.3e} is larger than the bound {self.bound:.3e}"
        wrong = int((~self.same & self.decided).sum())
        return f"{wrong} tokens differ though the margin is above the bound" if wrong else ""


def compare_with_rows(arguments, library, config, weights, prompts, forced, found, made):
    """Repeats the steps with a cache of bf16: how far its logits are, and which tokens it makes."""
    compute = Compute(library, config, arguments.dtype, CPU, threads=arguments.threads)
    capacity = max(PROMPTS) + arguments.steps + arguments.tokens
    cache = Pages(config, compute, len(prompts), capacity, arguments.page)
    model = Model(config, weights, compute)
    rows, text = decode(model, cache, prompts, forced, arguments.tokens)
    same = text == made
    agreed = sum(int(np.argmin(s)) if not s.all() else s.size for s in same)
    # Logits after a token that differs are of another text.
    steps = 1 + arguments.steps
    differences = np.abs(rows - found)[:, :steps]
    print(
        f"beside a cache of bf16: {agreed} of {same.size} generated tokens are the same before the first other one; "
        f"largest difference of a logit in the forced steps {differences.max():.3e}"
    )


def main():
    arguments = parse_arguments()
    library = Library(arguments.build / "src" / "libfastnorm.so")
    config = Config()
    weights = random_weights(config, arguments.seed)
    compute = Compute(
        library,
        config,
        arguments.dtype,
        CUDA if arguments.device == "cuda" else CPU,
        arguments.build / "tests" / "support" / "libfastnorm_devmem.so",
        arguments.threads,
        arguments.scale_error,
        arguments.cache != "rows",
    )
    generator = np.random.default_rng(arguments.seed + 1)
    prompts = [generator.integers(config.vocabulary, size=size).tolist() for size in PROMPTS]
    forced = generator.integers(config.vocabulary, size=(arguments.steps, len(prompts)))
    kind = arguments.dtype + (", an FP8 cache" if compute.fp8 else "")
    print(
        f"libfastnorm {library.version()} on the {compute.name}, {kind}; {config.blocks} blocks, "
        f"{config.heads} heads, latents of {config.kv_rank} + {config.rope_dim}; {len(prompts)} requests with prompts "
        f"of {', '.join(map(str, PROMPTS))} tokens; pages of {arguments.page}",
        flush=True,
    )

    start = time.monotonic()
    cache = Pages(
        config,
        compute,
        len(prompts),
        max(PROMPTS) + arguments.steps + arguments.tokens,
        arguments.page,
    )
    found, made = decode(Model(config, weights, compute), cache, prompts, forced, arguments.tokens)
    seconds = time.monotonic() - start

    start, reference = time.monotonic(), Reference(config, weights)
    exact = []
    for request, prompt in enumerate(prompts):
        tokens = prompt + forced[:, request].tolist() + made[request, :-1].tolist()
        exact.append(reference.logits(tokens)[len(prompt) - 1:])
    unit = FP8_UNIT if compute.fp8 else compute.format.unit
    comparison = Comparison(found, np.stack(exact), unit)
    comparison.print_steps(arguments.steps)
    for request in range(len(prompts)):
        print(f"request {request} generated: {' '.join(map(str, made[request]))}")
    print(
        f"\n{compute.norms} norms and {compute.attentions} attentions by the library ({seconds:.1f} s with the rest of "
        f"the model in NumPy; {time.monotonic() - start:.1f} s for the reference)\n{comparison.summary()}"
    )
    if compute.fp8:
        compare_with_rows(arguments, library, config, weights, prompts, forced, found, made)
    failure = comparison.failure()
    if failure:
        sys.exit(f"mla_decode: {failure}")


try:
    main()
except (FastnormError, OSError) as error:  # OSError: a library that is not there
    sys.exit(f"mla_decode: {error}")
