"""What the functions of stages for PyTorch and for JAX share: words, and which tensors a gradient
needs. Tensors have the names of fastnorm_norm_args."""

from fastnorm import abi as _c

KINDS = {"rms": _c.RMS, "layer": _c.LAYER}
ACTS = {"identity": 0, "silu": 1, "sigmoid": 2, "tanh": 3}
STEPS = {"once": 0, "every_step": 1}
PLAIN_SCALE = 8  # FASTNORM_NORM_MODULATION_PLAIN_SCALE

# A modulator and its table.
OF_GATE = ("residual_gate", "residual_gate_table")
OF_SCALE = ("modulation_scale", "scale_table")
OF_SHIFT = ("modulation_shift", "shift_table")

_READ = {
    "gate",
    "weight",
    "branch_weight",
    "sum_scale",
    *OF_GATE,
    *OF_SCALE,
    "modulation_index",
}


def is_modulator(name):
    return name in (OF_GATE[0], OF_SCALE[0], OF_SHIFT[0])


def statistics(branch_norm, is_layer):
    """Outputs of a forward that its backward reads."""
    found = ["branch_rstd"] if branch_norm else []
    return found + (["mean", "rstd"] if is_layer else ["rstd"])


def read_by_the_backward(present, wanted, branch_norm, is_layer):
    """Names of the tensors whose values the backward reads. present: the forward's inputs, wanted:
    those whose gradients are."""
    read = set(_READ)
    if "residual" not in present or branch_norm or set(wanted) & set(OF_GATE):
        read.add("x")
    if "gate" in present or "modulation_scale" in present:
        read.add("bias")
    found = [name for name in present if name in read]
    found += ["residual_out"] if "residual" in present else []
    return found + statistics(branch_norm, is_layer)


def has_branch(present, branch_norm, alpha):
    """Whether the gradient of x is another one than that of the residual."""
    scaled = "residual_gate" in present or "sum_scale" in present or alpha not in (0.0, 1.0)
    return bool(branch_norm) or scaled


def joined(x_shape, shape):
    """A parameter's shape [.., n] or [.., 1] as [.., n]. Leading extents between two that vary are
    those of x, so that the rows are numbered by one dimension."""
    lead = [*shape[:-1]]
    varying = [i for i, extent in enumerate(lead) if extent != 1]
    if varying:
        of_x = x_shape[len(x_shape) - len(shape) :]
        lead[varying[0] : varying[-1]] = of_x[varying[0] : varying[-1]]
    return (*lead, x_shape[-1])
