"""SmolLM2-135M-Instruct in NumPy with every RMSNorm and the rope done by libfastnorm.

Prints what the model answers, and a line on its norms: how many ran, their time beside plain
NumPy's, and the largest error. It fails unless norms and rope in double precision make the model
say the same. With --verbose it lists, for each of the 61 norms, the error, the time, and the ratio
to a copy of the same bytes.
"""

import argparse
import os
import sys
import time
from pathlib import Path

# A second BLAS thread gains nothing on single tokens, and spins where the machine is busy.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "packages" / "python"))

from fastnorm.abi import FastnormError, Library  # noqa: E402
from measure import Meter  # noqa: E402
from model import Model, generate  # noqa: E402
from norms import CpuCompute, CudaCompute, DoubleNorms, LibraryNorms  # noqa: E402
from weights import GgufModel, SyntheticModel, WeightsError, fetch  # noqa: E402

# The bound of y's error in units in the last place of f32, for rows of at most 1024 elements. A row
# is summed by a chain of at most 16 additions, then a tree of 6; half of these errors and of three
# roundings reach rstd, two more roundings follow it and three make y of it; a unit in the last
# place is at least one rounding error and at most two.
MAX_ULP = 18
# The bound of rope's error in roundoffs of f32 of what an element is the sum of: one of the table,
# one of the product, one of the sum.
MAX_TURN = 3


def parse_arguments():
    parser = argparse.ArgumentParser(prog="smollm2", description=__doc__.splitlines()[0])
    parser.add_argument("--prompt", default="What is the capital of France?", help="what to ask")
    parser.add_argument(
        "--tokens", type=int, default=24, metavar="N", help="at most N tokens of answer"
    )
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="where norms and rope run; auto: a GPU if there is one with kernels here",
    )
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N", help="CPU threads of the norms and rope"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="a table of all norms, and the rope's figures"
    )
    parser.add_argument("--rows", type=int, default=2048, metavar="N",
                        help="with --verbose: rows of the timed calls (default 2048: a prompt of "
                        "so many tokens)")
    parser.add_argument(
        "--synthetic", action="store_true", help="random weights; nothing is downloaded"
    )
    parser.add_argument(
        "--cache", type=Path, default=ROOT / ".cache", help="where the download is kept"
    )
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="Meson's build folder")
    arguments = parser.parse_args()
    if arguments.tokens < 1 or arguments.rows < 1 or arguments.threads < 1:
        parser.error("--tokens, --rows and --threads must be at least 1")
    return arguments


def load(arguments):
    if arguments.synthetic:
        return SyntheticModel()
    try:
        return GgufModel(fetch(arguments.cache))
    except WeightsError as error:
        sys.exit(f"smollm2: {error}")


def choose_compute(arguments, library, weights, eps, tables):
    if arguments.device != "cpu":
        devmem = arguments.build / "tests" / "support" / "libfastnorm_devmem.so"
        try:
            return CudaCompute(library, weights, eps, tables, devmem)
        except FastnormError as error:
            if arguments.device == "cuda":
                raise
            print(f"the norms run on the CPU: {error}")
    return CpuCompute(library, weights, eps, tables, arguments.threads)


def name_of(index, last):
    if index == last:
        return "output"
    return f"blk.{index // 2:<2} {'ffn' if index % 2 else 'attn'}"


def print_table(norms, arguments):
    meter, last = Meter(norms.compute, arguments.rows), len(norms.weights) - 1
    print(f"\n{'norm':12} {'fused add':>9} {'max ulp':>8} {'us':>9} {'GB/s':>7} {'x copy':>7}"
          f"   (times: {arguments.rows} rows of {norms.weights[0].size} f32)")
    results = []
    for index, (x, residual) in sorted(norms.inputs.items()):
        m = meter.measure(index, x, residual)
        results.append(m)
        print(f"{name_of(index, last):12} {'no' if residual is None else 'yes':>9} "
              f"{norms.errors.max_ulp[index]:8.2f} {m.us:9.1f} {m.gb_per_s:7.1f} {m.ratio:7.2f}")
    return results


def time_text(us):
    return f"{us / 1e3:.1f} ms" if us < 1e6 else f"{us / 1e6:.1f} s"


def print_line(norms):
    errors, compute = norms.errors, norms.compute
    print(
        f"\n{errors.calls} norms ran on the {compute.name} in {time_text(norms.us)}, and making the "
        f"calls in Python took {time_text(norms.making_us)}; plain NumPy takes "
        f"{time_text(norms.numpy_us)} for them; the largest error is {errors.max_ulp.max():.2f} "
        f"units in the last place."
    )


def print_summary(norms, results, seconds):
    ratios = sorted(m.ratio for m in results[1:])  # all but the first norm add the residual
    errors, compute = norms.errors, norms.compute
    print(
        f"\nAll {len(norms.weights)} norms ran on the {compute.name}: {errors.calls} calls while the "
        f"text was generated ({seconds:.1f} s in all). {len(ratios)} of them add the residual in the "
        f"same pass over memory and store the sum in place; {errors.calls - errors.wrong_sums} of "
        f"{errors.calls} calls left sums equal to the last bit. The largest error against double "
        f"precision is {errors.max_ulp.max():.2f} units in the last place of f32; the arithmetic "
        f"allows {MAX_ULP}. A fused norm takes {ratios[0]:.2f} to {ratios[-1]:.2f} times as long as "
        f"{compute.copy_name} of the same bytes, {ratios[len(ratios) // 2]:.2f} in the median. "
        f"{errors.turns} calls turned the queries and the keys; their largest error is "
        f"{errors.max_turn:.2f} roundoffs of f32 of what an element is the sum of, and the "
        f"arithmetic allows {MAX_TURN}. With norms and rope in double precision the model says the "
        f"same text."
    )


def main():
    arguments = parse_arguments()
    library = Library(arguments.build / "src" / "libfastnorm.so")
    source = load(arguments)
    print(f"libfastnorm {library.version()}; model: {source.source}", flush=True)
    model = Model(source.config, source.weights())
    weights, eps = model.norm_weights(), source.config.eps
    prompt = source.encode(arguments.prompt)
    tables = model.rope_tables(len(prompt) + arguments.tokens)
    compute = choose_compute(arguments, library, weights, eps, tables)
    norms = LibraryNorms(weights, eps, tables, compute)

    start = time.monotonic()
    made = generate(model, prompt, arguments.tokens, source.end_token, norms)
    seconds = time.monotonic() - start
    text = source.decode(made)
    print(f"\n> {arguments.prompt}\n{text}", flush=True)
    in_double = source.decode(generate(model, prompt, arguments.tokens, source.end_token,
                                       DoubleNorms(weights, eps, tables)))
    if in_double != text:
        sys.exit(f"smollm2: with norms and rope in double precision the model says\n{in_double}")
    if arguments.verbose:
        print_summary(norms, print_table(norms, arguments), seconds)
    print_line(norms)
    if norms.errors.wrong_sums:
        sys.exit("smollm2: residual sums differ from the f32 sums")
    if norms.errors.max_ulp.max() > MAX_ULP:
        sys.exit(f"smollm2: an error is larger than {MAX_ULP} units in the last place")
    if not norms.errors.max_turn <= MAX_TURN:
        sys.exit(f"smollm2: an error of rope is larger than {MAX_TURN} roundoffs")


try:
    main()
except (FastnormError, OSError) as error:  # OSError: a library that is not there
    sys.exit(f"smollm2: {error}")
