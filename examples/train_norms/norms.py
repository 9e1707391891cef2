"""The norms of a model, by libfastnorm or by PyTorch, with a look at their gradients."""

import hashlib

import torch
from torch import nn
from torch.nn import functional

EPS = 1e-5


class Norm(nn.Module):
    """A norm that keeps the gradient of its own input: dx is what it gives back, without what
    reaches x by other ways. fault: factor of dx or dweight, to see that an error is noticed."""

    def __init__(self, kind, n):
        super().__init__()
        self.kind, self.n = kind, n
        # Not all ones, so that a gradient that leaves the weight out is wrong.
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(n))
        self.bias = nn.Parameter(0.1 * torch.randn(n)) if kind == "layer" else None
        self.fault = {"dx": 1.0, "dweight": 1.0}
        self.dx = None
        self.weight.register_hook(
            lambda gradient: (
                gradient * self.fault["dweight"] if self.fault["dweight"] != 1 else None
            )
        )

    def forward(self, x, *residual):
        own = x.view_as(x)
        own.register_hook(self._seen)
        return self.compute(own, *residual)

    def _seen(self, gradient):
        self.dx = gradient * self.fault["dx"] if self.fault["dx"] != 1 else gradient
        return self.dx

    def gradients(self):
        """The gradients by name."""
        named = {
            "dx": self.dx,
            "dweight": self.weight.grad,
            "dbias": None if self.bias is None else self.bias.grad,
        }
        return {name: g for name, g in named.items() if g is not None}


class PlainNorm(Norm):
    """By PyTorch."""

    def compute(self, x, residual=None):
        if self.kind == "layer":
            return functional.layer_norm(x, (self.n,), self.weight, self.bias, EPS)
        if residual is None:
            return functional.rms_norm(x, (self.n,), self.weight, EPS)
        total = x + residual
        return functional.rms_norm(total, (self.n,), self.weight, EPS), total


class FastNorm(Norm):
    """By libfastnorm, forward and backward."""

    def compute(self, x, residual=None):
        import fastnorm.torch as fn
        if self.kind == "layer":
            return fn.layer_norm(x, self.weight, self.bias, EPS)
        if residual is None:
            return fn.rms_norm(x, self.weight, EPS)
        return fn.add_rms_norm(x, residual, self.weight, EPS)


def norms_of(model):
    return {name: module for name, module in model.named_modules() if isinstance(module, Norm)}


def digest(model):
    """A hash of the bits of all gradients of the norms."""
    found = hashlib.sha256()
    for norm in norms_of(model).values():
        for gradient in norm.gradients().values():
            found.update(gradient.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


class Calls:
    """Counts the calls of the library. A call that needs copies of its inputs runs once more,
    inside of itself."""

    def __init__(self):
        import fastnorm.torch as fn
        self.forward = self.backward = self._depth = 0
        run = fn._run

        def counted(options, names, tensors):
            if self._depth == 0:
                self.forward += "dy" not in names
                self.backward += "dy" in names
            self._depth += 1
            try:
                return run(options, names, tensors)
            finally:
                self._depth -= 1

        fn._run = counted
