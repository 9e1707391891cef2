"""What the functions of stages and heads for PyTorch and for JAX share: words, the settings of
codes, statistics of ranks, and how gradients of stages follow from one fastnorm_norm_backward.
Tensors have the names of fastnorm_norm_args."""

from collections import namedtuple
from typing import Any, NamedTuple

from fastnorm import abi as _c

__all__ = [
    "Quant",
    "Quantized",
]

KINDS = {"rms": _c.RMS, "layer": _c.LAYER}
ACTS = {"identity": 0, "silu": 1, "sigmoid": 2, "tanh": 3}
STEPS = {"once": 0, "every_step": 1}
# "per_tensor" and the others of norm.h, in its order.
SCHEMES = {
    name.lower(): number
    for name, number in vars(_c.QuantScheme).items()
    if name.isupper() and number != _c.QuantScheme.NONE
}
PLAIN_SCALE = 8  # FASTNORM_NORM_MODULATION_PLAIN_SCALE


class Blocks(NamedTuple):
    """What a scheme fixes whose scales are bytes."""

    columns: int  # of a scale
    scale: str  # the dtype of scales
    pairs: bool  # whether codes have 4 bits, two to a byte


BLOCKS = {
    "mxfp8": Blocks(32, "float8_e8m0fnu", False),
    "nvfp4": Blocks(16, "float8_e4m3fn", True),
    "mxfp4": Blocks(32, "float8_e8m0fnu", True),
}


class Quant(NamedTuple):
    """How the result of a stage becomes codes.

    This is the one list of the settings of codes: parts of heads have them, too, and the operators'
    arguments and the fields of fastnorm_quant follow from it. A setting that is Any is a tensor.
    """

    scheme: str  # one of SCHEMES
    block_size: int = 0  # "per_block": 64 or 128
    dtype: Any = None  # of codes: float8_e4m3fn, float8_e5m2 or int8; None: that of the scheme
    scale: Any = None  # "per_tensor": float32 [1], read
    division: str = "reciprocal"  # codes of y * (1 / scale); "divide": of y / scale
    y: bool = False  # whether y is stored, too
    source: str = "unrounded"  # codes of the result in f32; "rounded": of y in x's dtype
    layout: str = "row_major"  # of scales; "swizzled_128x4": one dimension of one-byte scales
    pow2: bool = False  # "per_row", "per_block" of float8: scales are powers of two
    amax_floor: float = 0.0  # "per_row", "per_block": least magnitude of a scale; 0 is 1e-10
    clamp: float = 0.0  # results are clamped to [-clamp, clamp] before; 0: they are not
    clamp_scale: Any = None  # float32 [1]: the clamp as a value on the device
    global_scale: Any = None  # "nvfp4": float32 [1], the second scale; None is 1
    amax: Any = None  # float32 [1]: what Quantized.amax raises
    rotation: int = 0  # 16, 32, 64 or 128 columns that a Hadamard matrix multiplies before; 0: not
    rotation_signs: Any = None  # float32 of 1 and -1, [n] or [rotation]: multiply columns before
    y_rotated: bool = False  # y is rotated, too


class Quantized(NamedTuple):
    """What a call with a Quant gives; None for what it does not have."""

    quantized: Any  # codes, of x's shape; those of 4 bits are two to a byte
    scale: Any  # of the codes; None of "per_tensor"
    y: Any  # the result itself, where Quant.y asks for it
    residual_out: Any  # the sum
    amax: Any = None  # Quant.amax, raised to the greatest magnitude of what is quantised


DIVISIONS = {"reciprocal": 0, "divide": 1}
SOURCES = {"unrounded": 0, "rounded": 1}
LAYOUTS = {"row_major": 0, "column_major": 1, "swizzled_128x4": 2}


class Setting(NamedTuple):
    """A setting of a Quant that is a field of fastnorm_quant."""

    name: str
    kind: Any  # str, int, float or bool; None of a tensor
    default: Any
    field: str  # as fastnorm.abi calls it
    of_part: str  # as a part of heads calls it
    words: Any  # numbers by word where the kind is str


_FIELDS = {
    "scheme": "quant_scheme",
    "block_size": "quant_block_size",
    "division": "quant_division",
    "source": "quant_source",
    "layout": "scale_layout",
    "pow2": "scale_pow2",
}
_WORDS = {
    "scheme": {None: 0, **SCHEMES},
    "division": DIVISIONS,
    "source": SOURCES,
    "layout": LAYOUTS,
}
SETTINGS = tuple(
    Setting(
        name,
        None if kind is Any else kind,
        Quant._field_defaults.get(name),
        _FIELDS.get(name, name),
        "quant_source" if name == "source" else name,
        _WORDS.get(name),
    )
    for name, kind in Quant.__annotations__.items()
    if name not in ("dtype", "y")
)


def part_of_heads(own):
    """Decorates the class Part of a module: adds the settings of codes that are none of its fields.
    Without a scheme there are no codes."""
    defaults = {
        **own._field_defaults,
        **{s.of_part: s.default for s in SETTINGS if s.of_part not in own._fields},
    }
    part = namedtuple("Part", ["x", *defaults], defaults=defaults.values(), module=own.__module__)
    part.__doc__ = own.__doc__
    return part


def statistics_of_sums(sums, columns, eps, is_layer, sqrt):
    """rstd, or (mean, rstd), from the sums of each rank in rank order. columns: of one rank. The
    formula is that of peer.h."""
    if not sums or columns < 1:
        raise ValueError(
            f"sums has {len(sums)} ranks and columns is {columns}; required: at least 1 of each"
        )
    share = 1.0 / (len(sums) * columns)
    if not is_layer:
        total = sums[0]
        for of_rank in sums[1:]:
            total = total + of_rank
        return 1.0 / sqrt(total * share + eps)
    if any(of_rank.shape[-1:] != (2,) for of_rank in sums):
        raise ValueError(
            f"sums has shapes {[tuple(of_rank.shape) for of_rank in sums]}; required: [.., 2], "
            "the mean and the sum of (x - mean)^2"
        )
    mean, total = sums[0][..., 0], sums[0][..., 1]
    for rank, of_rank in enumerate(sums[1:], 1):
        delta = of_rank[..., 0] - mean
        mean = mean + delta * (1.0 / (rank + 1))
        total = (total + of_rank[..., 1]) + delta * delta * (columns * rank / (rank + 1))
    return mean, 1.0 / sqrt(total * share + eps)


def act_of_gate(act, gate):
    """The word of a gate's act, where None is the usual one."""
    return ("identity" if gate is None else "silu") if act is None else act


# A modulator and its table.
OF_GATE = ("residual_gate", "residual_gate_table")
OF_SCALE = ("modulation_scale", "scale_table")
OF_SHIFT = ("modulation_shift", "shift_table")

_READ = {
    "gate",
    "weight",
    "branch_weight",
    "branch_bias",
    "sum_scale",
    *OF_GATE,
    *OF_SCALE,
    "modulation_index",
}


def statistics(branch_norm, is_layer, branch_is_layer=False):
    """Outputs of a forward that its backward reads. A forward stores no mean of the branch, without
    which the backward takes no rstd of it."""
    found = ["branch_rstd"] if branch_norm and not branch_is_layer else []
    return found + (["mean", "rstd"] if is_layer else ["rstd"])


def read_by_the_backward(present, wanted, branch_norm, is_layer, branch_is_layer=False):
    """Names of the tensors whose values the backward reads. present: the forward's inputs, wanted:
    those whose gradients are."""
    read = set(_READ)
    if "residual" not in present or branch_norm or set(wanted) & set(OF_GATE):
        read.add("x")
    if "gate" in present or "modulation_scale" in present:
        read.add("bias")
    found = [name for name in present if name in read]
    found += ["residual_out"] if "residual" in present else []
    return found + statistics(branch_norm, is_layer, branch_is_layer)


def joined(x_shape, shape):
    """A parameter's shape [.., n] or [.., 1] as [.., n]. Leading extents between two that vary are
    those of x, so that the rows are numbered by one dimension."""
    lead = [*shape[:-1]]
    varying = [i for i, extent in enumerate(lead) if extent != 1]
    if varying:
        of_x = x_shape[len(x_shape) - len(shape) :]
        lead[varying[0] : varying[-1]] = of_x[varying[0] : varying[-1]]
    return (*lead, x_shape[-1])


class Gradients:
    """The gradients of one call. A subclass has what differs between frameworks:

    float32, single(t)           the dtype, and a tensor in it
    cast(t, dtype)
    expanded(t, shape)           broadcast
    summed(t, shape)             the sum over what was broadcast from a shape
    scattered(t, rows, shape)    the sum of the rows that have one number
    broadcast_shapes(*shapes)
    zeros(shape)                 of float32
    act(t)                       of the residual gate
    backward(tensors, offset, forms)
                                 one fastnorm_norm_backward: its gradients by name
    """

    def __init__(self, tensors, options, forms, wanted, plain_scale):
        """forms: shape and dtype of each input. wanted: names of those that want a gradient."""
        self.tensors, self.options, self.forms, self.wanted = tensors, options, forms, wanted
        self.one = 0.0 if plain_scale else 1.0
        self.x_shape, self.dtype = forms["x"]  # the dtype is T
        self.alpha = options.get("alpha", 1.0)
        # Whether the gradient of x is another one than that of the residual.
        scaled = "residual_gate" in forms or "sum_scale" in forms or self.alpha != 1.0
        self.has_branch = scaled or bool(options.get("branch_norm"))
        reads_branch = options.get("branch_norm") or bool(self.wants(*OF_GATE))
        self.reads_branch = self.has_branch and reads_branch

    def wants(self, *names):
        return [name for name in names if name in self.wanted]

    # Modulators as they broadcast against x: the rows that the index names, and the table's sum.

    def is_indexed(self, name):
        return "modulation_index" in self.forms and name in (OF_GATE[0], OF_SCALE[0], OF_SHIFT[0])

    def rows(self, name):
        """The row of an indexed modulator for each row of x."""
        return self.tensors["modulation_index"].reshape(-1).clip(0, self.forms[name][0][0] - 1)

    def shape(self, name):
        """That with which a parameter broadcasts against x."""
        shape = self.forms[name][0]
        return (*self.x_shape[:-1], shape[-1]) if self.is_indexed(name) else shape

    def modulator(self, names):
        """None where the call has none."""
        tensor, table = (self.tensors.get(name) for name in names)
        if tensor is None:
            return None
        if self.is_indexed(names[0]):
            tensor = tensor[self.rows(names[0])].reshape(self.shape(names[0]))
        return tensor if table is None else self.single(tensor) + self.single(table)

    def given_back(self, gradient, names):
        """The gradient of what modulator() returned, to each of the names that is wanted."""
        found = {}
        for name in self.wants(*names):
            shape, dtype = self.forms[name]
            part = self.summed(gradient, self.shape(name))
            if self.is_indexed(name):
                part = self.single(part).reshape(-1, shape[-1])
                part = self.scattered(part, self.rows(name), shape)
            found[name] = self.cast(part, dtype)
        return found

    # The call's parts.

    def as_rows(self, parameter):
        """A parameter [.., n] or [.., 1] as the library takes those that have a gradient."""
        return self.expanded(parameter, joined(self.x_shape, parameter.shape))

    def combined_weight(self):
        """What multiplies the normalised row, which is a weight and its offset."""
        weight, offset = self.tensors.get("weight"), self.options.get("weight_offset", 0.0)
        scale = self.modulator(OF_SCALE)
        if scale is None:
            return weight, offset
        if weight is None:
            return self.as_rows(scale), self.one
        return self.as_rows((self.single(weight) + offset) * (self.single(scale) + self.one)), 0.0

    def branch(self):
        """x as it enters the sum, in float32: with branch_norm its norm."""
        x, options = self.single(self.tensors["x"]), self.options
        if not options.get("branch_norm"):
            return x
        if options.get("branch_kind") in (_c.LAYER, "layer"):  # a word of PyTorch's operators
            x = x - x.mean(-1)[..., None]
        rstd = self.tensors.get("branch_rstd")
        if rstd is None:
            rstd = ((x * x).mean(-1) + options.get("branch_eps", 0.0)) ** -0.5
        x = x * rstd.reshape((*self.x_shape[:-1], 1))
        if "branch_weight" in self.tensors:
            weight = self.single(self.tensors["branch_weight"])
            x = x * (weight + options.get("branch_weight_offset", 0.0))
        if "branch_bias" in self.tensors:
            x = x + self.single(self.tensors["branch_bias"])
        return self.single(self.cast(x, self.dtype)) if options.get("branch_rounded") else x

    def row(self, gate):
        """What was normalised."""
        x, total = self.tensors.get("x"), self.tensors.get("residual_out")
        if total is not None or not self.has_branch:
            return x if total is None else total
        factor = 1.0 if gate is None else self.act(self.single(gate))
        return self.branch() * (factor * self.alpha)

    def form_of_dbias(self, weight):
        """Its shape and dtype, or None."""
        names, is_scaled = self.wants("bias", *OF_SHIFT), "modulation_scale" in self.forms
        if names == ["bias"] and not is_scaled:
            return self.forms["bias"]
        shapes = [self.shape(name) for name in names]
        # A bias before a scale meets it in both gradients: each has the rows of both.
        if is_scaled and "bias" in self.forms and self.wants("bias", *OF_SCALE):
            shapes += [weight.shape, self.shape("bias")]
        if not shapes:
            return None
        return joined(self.x_shape, self.broadcast_shapes(*shapes)), self.float32

    def forms_of_gradients(self, tensors):
        """Shapes and dtypes of what the library is to give, by name; tensors: its inputs."""
        residual = self.forms["residual"][1] if "residual" in self.wanted else None
        dtypes, found = {}, {}
        if self.has_branch:
            dtypes["dx"] = residual
            # T is the dtype of branch or dbranch.
            if "x" in self.wanted or not self.reads_branch:
                dtypes["dbranch"] = self.dtype
        else:
            # Without dx T would be the dtype of dy, if that has 16 bits, else the row's.
            known = self.dtype in (tensors["dy"].dtype, tensors["x"].dtype)
            dtypes["dx"] = self.dtype if self.wants("x", "residual") or not known else None
            dtypes["dresidual"] = residual if residual != self.dtype else None
        found = {n: (self.x_shape, dtype) for n, dtype in dtypes.items() if dtype is not None}
        for name in self.wants("gate", "branch_weight", "branch_bias"):
            found[f"d{name}"] = self.forms[name]
        if self.wants("weight", *OF_SCALE):
            found["dweight"] = tensors["weight"].shape, self.float32
        if self.wants(*OF_GATE):
            found["dresidual_gate"] = tensors["residual_gate"].shape, self.float32
        dbias = self.form_of_dbias(tensors.get("weight"))
        return found if dbias is None else {**found, "dbias": dbias}

    def of_parameters(self, dweight, dbias):
        """From the sums over rows of dy * xhat and of dy."""
        tensors, found = self.tensors, {}
        scale = self.modulator(OF_SCALE)
        for name, gradient in (("weight", dweight), ("bias", dbias)):
            if name in self.wanted:
                shape, dtype = self.forms[name]
                if scale is not None:
                    gradient = gradient * (self.single(scale) + self.one)
                found[name] = self.cast(self.summed(gradient, shape), dtype)
        if self.wants(*OF_SCALE):
            gradient = dweight
            if "weight" in tensors:
                offset = self.options.get("weight_offset", 0.0)
                gradient = gradient * (self.single(tensors["weight"]) + offset)
            if "bias" in tensors:
                # The rows of dbias are also those of the shift and the bias.
                of_bias = dbias * self.single(tensors["bias"])
                gradient = gradient + self.summed(of_bias, gradient.shape)
            found.update(self.given_back(gradient, OF_SCALE))
        found.update(self.given_back(dbias, OF_SHIFT))
        return found

    def of(self, dy, dtotal):
        """By name, for the gradients of y and of the sum, of which one may be None."""
        weight, offset = self.combined_weight()
        gate = self.modulator(OF_GATE)
        tensors = {
            **self.tensors,
            "x": self.row(gate),
            "dy": self.zeros(self.x_shape) if dy is None else dy,
            "weight": weight,
            "bias": self.tensors.get("bias") if "gate" in self.tensors else None,
            "dresidual_in": dtotal,
            "branch": self.tensors["x"] if self.reads_branch else None,
            "residual_gate": None if gate is None else self.as_rows(gate),
        }
        tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        found = self.backward(tensors, offset, self.forms_of_gradients(tensors))
        gradients = {
            "x": found.get("dbranch" if self.has_branch else "dx"),
            "residual": found.get("dresidual", found.get("dx")),
            "gate": found.get("dgate"),
            "branch_weight": found.get("dbranch_weight"),
            "branch_bias": found.get("dbranch_bias"),
            **self.of_parameters(found.get("dweight"), found.get("dbias")),
            **self.given_back(found.get("dresidual_gate"), OF_GATE),
        }
        return {name: gradients.get(name) for name in self.wanted}
