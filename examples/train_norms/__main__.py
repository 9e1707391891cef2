"""Trains a small transformer with libfastnorm's norms, forward and backward, beside the same with
PyTorch's.

Both models start alike and see the same text, the repository's own docs, in float32 and with
deterministic algorithms, by SGD with momentum. The program compares the gradients of each norm in
the first step, and the loss of every step. It fails if one is further off than stated.
"""

import argparse
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT / "packages" / "python")]
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic products on a GPU

LOSS_BOUND = 1e-3  # largest difference of the loss
GRADIENT_BOUND = (
    1e-4  # largest difference of a norm's gradient in step 1, relative to the gradient, in norm
)


def parse_arguments():
    parser = argparse.ArgumentParser(prog="train_norms", description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--steps", type=int, default=200, metavar="N", help="steps of SGD (default 200)"
    )
    parser.add_argument(
        "--batch", type=int, default=16, metavar="N", help="pieces of text a step (default 16)"
    )
    parser.add_argument(
        "--rate", type=float, default=0.05, metavar="X", help="learning rate (default 0.05)"
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        metavar="N",
        help="CPU threads (default 1; PyTorch's products may have other bits with more)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of weights and batches")
    parser.add_argument(
        "--only-fastnorm", action="store_true", help="train that model alone: nothing is compared"
    )
    parser.add_argument(
        "--fault",
        metavar="GRADIENT:NORM",
        help="make dx or dweight of a norm 1 %% too large, to see that it is noticed; "
        "such as dx:blocks.1.mlp_norm",
    )
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="Meson's build folder")
    arguments = parser.parse_args()
    if min(arguments.steps, arguments.batch, arguments.threads) < 1 or not arguments.rate > 0:
        parser.error("--steps, --batch and --threads must be at least 1, --rate greater than 0")
    return arguments


def set_fault(fault, model):
    """Makes one gradient of one norm wrong."""
    from norms import norms_of
    gradient, _, name = fault.partition(":")
    norms = norms_of(model)
    if name not in norms or gradient not in ("dx", "dweight"):
        raise ValueError(
            f"--fault is {fault}; required: dx or dweight, a colon, and one of {', '.join(norms)}"
        )
    norms[name].fault[gradient] = 1.01


class Training:
    """One model and its optimiser."""

    def __init__(self, make_norm, options, device):
        import torch
        from model import Transformer
        torch.manual_seed(options.seed)
        self.model = Transformer(make_norm).to(device)
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=options.rate, momentum=0.9)

    def step(self, tokens, targets):
        """The loss before the step."""
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.model.loss(tokens, targets)
        loss.backward()
        self.optimiser.step()
        return loss.item()


def compare_gradients(ours, theirs):
    """Prints the differences of the norms' gradients; those that are beyond the bound."""
    from norms import norms_of
    beyond = []
    for (name, our), their in zip(norms_of(ours).items(), norms_of(theirs).values()):
        found = []
        for gradient, wanted in their.gradients().items():
            difference = ((our.gradients()[gradient] - wanted).norm() / wanted.norm()).item()
            found.append(f"{gradient} {difference:.1e}")
            if not difference <= GRADIENT_BOUND:
                beyond.append(f"{name}'s {gradient} differs by {difference:.1e}")
        print(f"norm {name}: {', '.join(found)}")
    return beyond


def train(options):
    """The exit code."""
    import torch
    from model import batch, text
    from norms import Calls, FastNorm, PlainNorm, digest, norms_of
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(options.threads)
    data, calls = text(), Calls()
    ours = Training(FastNorm, options, options.device)
    theirs = None if options.only_fastnorm else Training(PlainNorm, options, options.device)
    if options.fault:
        set_fault(options.fault, ours.model)
    norms = len(norms_of(ours.model))
    print(
        f"{sum(p.numel() for p in ours.model.parameters())} parameters, {norms} norms, {len(data)} characters, "
        f"{options.device}, torch {torch.__version__}"
    )
    start, largest, problems = time.monotonic(), 0.0, []
    for step in range(options.steps):
        tokens, targets = (
            t.to(options.device) for t in batch(data, step, options.seed, options.batch, 64)
        )
        loss = ours.step(tokens, targets)
        line = f"step {step + 1:3}: loss {loss:.5f}, gradients of the norms {digest(ours.model)}"
        if theirs is not None:
            wanted = theirs.step(tokens, targets)
            largest = max(largest, abs(loss - wanted)) if loss == loss else float("inf")
            line += f", PyTorch's norms {wanted:.5f}"
            if step == 0:
                problems += compare_gradients(ours.model, theirs.model)
        print(line, flush=True)
    print(
        f"{calls.forward} norms forward and {calls.backward} backward by the library, {norms} a step each"
    )
    if theirs is not None:
        print(f"largest difference of the loss {largest:.1e}; bound {LOSS_BOUND:.0e}")
        if not largest <= LOSS_BOUND:
            problems.append(f"the loss differs by {largest:.1e}, more than {LOSS_BOUND:.0e}")
    print(f"{time.monotonic() - start:.1f} s")
    for problem in problems:
        print(f"train_norms: {problem}", file=sys.stderr)
    return 1 if problems else 0


def main():
    options = parse_arguments()
    os.environ["FASTNORM_LIBRARY"] = str(options.build / "src" / "libfastnorm.so.1")
    try:
        return train(options)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"train_norms: {error}", file=sys.stderr)
        return 1


sys.exit(main())
