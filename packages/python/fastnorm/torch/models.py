"""One line for a whole model: patch() gives the norms of a model to libfastnorm, unpatch() gives
them back, and register() does so while transformers builds a model.

A norm is recognised by what it computes, not by its name. A copy of it on the CPU runs on rows
whose statistics are exact in any order of summation, beside each of the library's roundings. What
has the same bits is replaced. Everything else stays, and the report says why and how far it is off.

A replaced module keeps its parameters, attributes, hooks and place in the model. Its class becomes
a subclass of the one that it had, so that isinstance and state_dict see no change. Where a call is
not one that was compared, such as float64 or a tensor on another device, the original forward runs.
So it does on the CPU while torch.compile traces, whose compiler fuses a norm with its neighbours.
"""

import ast
import functools
import importlib
import inspect
import math
import re
import textwrap
from typing import Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

import fastnorm.torch as _ft
from fastnorm.torch import compiled as _compiled
from fastnorm.torch import norm_heads as _heads

__all__ = ["MODELS", "Entry", "Report", "Rule", "patch", "register", "unpatch", "unregister"]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_EPS_NAMES = ("variance_epsilon", "eps", "epsilon", "norm_eps", "layer_norm_eps", "layernorm_eps")
_FUSES = ("residual", "heads")
_STRIDED = torch.strided
_is_compiling, _is_autocast_enabled = torch.compiler.is_compiling, torch.is_autocast_enabled
_is_any_autocast_enabled = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


class Rule(NamedTuple):
    """How a norm computes for one dtype of x and one of the weight."""

    kind: str  # "rms" or "layer"
    rounding: str  # as for rms_norm
    weight_offset: float  # added to the weight
    y_dtype: Optional[torch.dtype]  # None: x's


class _Plan(NamedTuple):
    """What a replaced module needs to know."""

    eps_name: str
    shape: Tuple[int, ...]  # of the dimensions that are normalised; (): those of the weight
    rules: Dict[Tuple[torch.dtype, Optional[torch.dtype]], Rule]


class Entry(NamedTuple):
    """One line of a report."""

    name: str  # the module's path
    type: str  # its class
    replaced: bool  # whether the library computes it
    what: str  # how it computes, or why it stays


class Report(List[Entry]):
    """What patch() found. str() has a line for each class and reason, and counts modules."""

    @property
    def replaced(self):
        """The entries of modules that were replaced.

        Returns:
            The entries.
        """
        return [entry for entry in self if entry.replaced]

    @property
    def kept(self):
        """The entries of modules that stay, with the reason in `what`.

        Returns:
            The entries.
        """
        return [entry for entry in self if not entry.replaced]

    def __str__(self):
        groups = {}
        for entry in self:
            groups.setdefault((not entry.replaced, entry.type, entry.what), []).append(entry.name)
        lines = [f"{len(self.replaced)} replaced, {len(self.kept)} kept"]
        for (kept, kind, what), names in sorted(groups.items(), key=lambda group: group[0]):
            first = names[0] or "the model"
            where = first if len(names) == 1 else f"{first} and {len(names) - 1} more"
            lines.append(f"{'kept' if kept else 'replaced'} {kind} ({where}): {what}")
        return "\n".join(lines)


# --- rows whose statistics are exact ---


@functools.lru_cache(maxsize=None)
def _pairs(root):
    """Pairs of integers whose squares add up to twice the square of root."""
    total = 2 * root * root
    found = []
    for a in range(1, root + 1):
        b = math.isqrt(total - a * a)
        if a * a + b * b == total:
            found.append((a, b))
    return found


# The root of the mean of a row's squares, and the power of two.
_ROOTS = ((1, 0), (65, 0), (25, 0), (17, -3), (85, -6), (5, 0), (13, -12), (25, -15))


def _exact_rows(n, dtype, generator):
    """Rows of integers times a power of two. Sums of their squares need no rounding. Nor does the
    mean, by a division or by a product with 1 / n."""
    rows = []
    for root, exponent in _ROOTS:
        total = torch.tensor(n * root * root, dtype=torch.float32)
        if (
            root > 1
            and n * root * root >= 1 << 24
            or (total * (1 / torch.tensor(n))).item() != root * root
        ):
            continue
        pairs = torch.tensor(_pairs(root))
        chosen = pairs[torch.randint(len(pairs), (n // 2,), generator=generator)]
        signs = torch.randint(2, (n // 2, 1), generator=generator) * 2 - 1
        values = (chosen * signs * torch.tensor([1, -1])).flatten()
        if n % 2:
            values = torch.cat([values, torch.tensor([root])])
        order = torch.randperm(n, generator=generator)
        rows.append(values[order].double() * 2.0**exponent)
    return torch.stack(rows).to(dtype)


def _normal_rows(n, dtype, generator):
    rows = torch.randn(8, n, generator=generator, dtype=torch.float32)
    return (rows * torch.tensor([[3.0], [0.05]] * 4) + 0.25).to(dtype)


# --- which rule a module has ---


class _Refused(Exception):
    """Why a module stays."""


def _original(module):
    """The class that a module has, or had before it was replaced."""
    return getattr(type(module), "_fastnorm_original", type(module))


def _parameter(t, seed, dtype):
    """Random values in place of a parameter, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(t.shape, generator=generator, dtype=torch.float32) * 0.2 + 1.0
    return nn.Parameter(values.to(dtype), requires_grad=False)


def _twin(module, dtype):
    """A module of the same class and attributes on the CPU, with random parameters of this
    dtype."""
    original = _original(module)
    twin = original.__new__(original)
    twin.__dict__.update(module.__dict__)
    twin.__dict__["_parameters"] = {
        name: None if t is None else _parameter(t, seed, dtype)
        for seed, (name, t) in enumerate(module._parameters.items())
    }
    return twin


def _eps_name(module):
    for name in _EPS_NAMES:
        if name in module.__dict__ and isinstance(module.__dict__[name], (float, int, type(None))):
            return name
    raise _Refused(f"none of its attributes is {', '.join(_EPS_NAMES)}")


def _refuse_structure(module):
    """Refuses what is no norm of one input with at most a weight and a bias."""
    if "forward" in module.__dict__:
        raise _Refused(
            "its forward is an attribute of the instance, as hooks of accelerate make it"
        )
    if any(True for _ in module.children()):
        raise _Refused("it has submodules")
    if any(True for _ in module.buffers()):
        raise _Refused("it has buffers")
    names = {name for name, t in module._parameters.items() if t is not None}
    if names - {"weight", "bias"} or ("bias" in names and "weight" not in names):
        raise _Refused(f"its parameters are {', '.join(sorted(names))}; required: weight, bias")
    for name in names:
        if not module._parameters[name].is_floating_point():
            raise _Refused(f"{name}.dtype is {module._parameters[name].dtype}")
    wanted = [
        p
        for p in inspect.signature(_original(module).forward).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if len(wanted) != 2:  # self and x
        raise _Refused(f"its forward takes {len(wanted) - 1} inputs; required: 1")


def _shape(module):
    """The dimensions that are normalised."""
    weight = module._parameters.get("weight")
    if weight is not None:
        return tuple(weight.shape)
    shape = module.__dict__.get("normalized_shape", ())
    return (shape,) if isinstance(shape, int) else tuple(shape)


def _computed(rule, x, weight, bias, eps):
    if rule.kind == "layer":
        return _ft.layer_norm(x, weight, bias, eps, rounding=rule.rounding, y_dtype=rule.y_dtype)
    return _ft.rms_norm(
        x,
        weight,
        eps,
        weight_offset=rule.weight_offset,
        rounding=rule.rounding,
        y_dtype=rule.y_dtype,
    )


_ROUNDINGS = ("once", "normalized", "every_step", "once_rw")


def _candidates(y_dtype, has_weight, roundings):
    offsets = (0.0, 1.0) if has_weight else (0.0,)
    for offset in offsets:
        for rounding in roundings:
            yield Rule("rms", rounding, offset, y_dtype)
    for rounding in _ROUNDINGS[:3]:
        yield Rule("layer", rounding, 0.0, y_dtype)


def _steps(wanted, y):
    """The greatest difference of two tensors of one dtype, in units in the last place."""
    bits = {4: torch.int32, 2: torch.int16}[y.element_size()]
    ordered = []
    for t in (wanted, y):
        t = t.contiguous().view(bits).long()
        ordered.append(torch.where(t < 0, -(t & torch.iinfo(bits).max), t))
    return (ordered[0] - ordered[1]).abs()


class _Difference(NamedTuple):
    """How far a rule is from a module."""

    exact: float  # share of elements that differ on rows with exact statistics
    normal: float  # the same on other rows
    steps: int  # units in the last place, at most
    beyond: float  # share of elements further off than the statistics' last places explain

    @property
    def rank(self):
        return self.beyond, self.exact, self.normal


def _difference(rule, samples, wanted, parameters, eps):
    shares, most, beyond = [], 0, 0.0
    for x, a in zip(samples, wanted):
        y = _computed(rule, x, *parameters, eps)
        steps = _steps(a, y)
        off = (a.double() - y.double()).abs() > a.double().abs().amax(-1, keepdim=True) * 2.0**-20
        shares.append((steps > 0).double().mean().item())
        most = max(most, steps.max().item())
        beyond = max(beyond, ((steps > 1) & off).double().mean().item())
    return _Difference(*shares, most, beyond)


def _fits(rule, difference, dtype):
    """Whether only the last places of the statistics differ, and for RMSNorm nothing where these
    are exact. LayerNorm's have no rows that are exact in every order."""
    if rule.kind == "rms" and difference.exact > 0:
        return False
    rare = dtype == torch.float32 or max(difference.exact, difference.normal) <= 0.01
    return rare and difference.beyond == 0


def _rule(module, eps_name, shape, x_dtype, weight_dtype, roundings):
    """The Rule of a module for these dtypes, the first that fits in the order of roundings; a text
    that says what differs where there is none."""
    twin = _twin(module, weight_dtype)
    weight, bias = (twin._parameters.get(name) for name in ("weight", "bias"))
    generator = torch.Generator().manual_seed(1)
    n = math.prod(shape) if shape else 64
    exact, rows = _exact_rows(n, x_dtype, generator), _normal_rows(n, x_dtype, generator)
    forward = _original(module).forward
    try:
        wanted = [forward(twin, x.view(-1, *(shape or (n,)))).reshape(-1, n) for x in (exact, rows)]
    except Exception as error:
        return f"its forward fails on a sample: {type(error).__name__}: {error}".splitlines()[0]
    dtype = wanted[0].dtype
    if wanted[0].shape != exact.shape or dtype not in (x_dtype, torch.float32):
        return f"it makes {list(wanted[0].shape)} of {dtype} from {list(exact.shape)} of {x_dtype}"
    parameters = [None if t is None else t.flatten() for t in (weight, bias)]
    eps = module.__dict__[eps_name]
    best = None
    y_dtype = None if dtype == x_dtype else dtype
    for rule in _candidates(y_dtype, weight is not None, roundings):
        if bias is not None and rule.kind == "rms":
            continue
        difference = _difference(rule, (exact, rows), wanted, parameters, eps)
        if _fits(rule, difference, dtype):
            return rule
        if best is None or difference.rank < best[1].rank:
            best = rule, difference
    rule, difference = best
    return (
        f"no rounding has its bits; nearest: {_words(rule)}, where "
        f"{max(difference.exact, difference.normal):.2%} of the elements differ, by "
        f"{difference.steps} units in the last place at most"
    )


def _words(rule):
    offset = f", weight + {rule.weight_offset:g}" if rule.weight_offset else ""
    wide = "" if rule.y_dtype is None else f", y in {str(rule.y_dtype).removeprefix('torch.')}"
    return f"{rule.kind} {rule.rounding}{offset}{wide}"


_plans: Dict[tuple, tuple] = {}


def _plan(module):
    """(plan, what the module does in its own dtype). Refuses modules that no rule serves. Modules
    of one class and of the same attributes are compared once."""
    _refuse_structure(module)
    eps_name, shape = _eps_name(module), _shape(module)
    weight = module._parameters.get("weight")
    attributes = {
        name: value
        for name, value in module.__dict__.items()
        if isinstance(value, (int, float, str, tuple, type(None))) and name != "training"
    }
    key = (
        _original(module),
        tuple(sorted(attributes.items(), key=lambda item: item[0])),
        shape,
        None if weight is None else weight.dtype,
        tuple(name for name, t in module._parameters.items() if t is not None),
    )
    if key not in _plans:
        _plans[key] = _compared(module, eps_name, shape, weight)
    found = _plans[key]
    if isinstance(found, str):
        raise _Refused(found)
    return found


def _compared(module, eps_name, shape, weight):
    """_plan's result, or a text that says why there is none."""
    rules, texts, roundings = {}, {}, _ROUNDINGS
    cpu = torch.device("cpu")  # models are also made under another default device
    with cpu, torch.no_grad(), torch.autocast("cpu", enabled=False):
        for x_dtype in _DTYPES:
            for weight_dtype in (None,) if weight is None else _DTYPES:
                found = _rule(module, eps_name, shape, x_dtype, weight_dtype, roundings)
                if isinstance(found, Rule):
                    rules[x_dtype, weight_dtype] = found
                    if found.rounding == "once_rw":  # 16 bits hardly tell this order from "once"
                        roundings = ("once_rw", *_ROUNDINGS[:3])
                else:
                    texts[x_dtype, weight_dtype] = found
    own = torch.float32 if weight is None else weight.dtype
    key = (own, None if weight is None else own)
    if key not in rules:
        return texts.get(key, f"weight.dtype is {own}; required: float32, float16 or bfloat16")
    reduced = rules.get((torch.bfloat16, None if weight is None else torch.bfloat16))
    what = _words(rules[key])
    if own == torch.float32 and reduced is not None:  # in float32 most roundings are one
        what = _words(reduced)
    return _Plan(eps_name, shape, rules), what


# --- the classes of replaced modules ---


# Operators of torch that autocast runs in float32, by the name of the module's class.
_IN_FLOAT32 = {nn.LayerNorm: "aten::layer_norm", nn.RMSNorm: "aten::rms_norm"}


@functools.lru_cache(maxsize=None)
def _autocasts(original, device):
    """Whether autocast casts the inputs of the norms of this class."""
    for base, operator in _IN_FLOAT32.items():
        if issubclass(original, base):
            key = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}[device]
            return torch._C._dispatch_has_kernel_for_dispatch_key(operator, key)
    return False


_eager, _wants_gradient, _norm_node = _ft._eager, _ft._wants_gradient, _ft._norm_node
_options: Dict[tuple, Tuple[int, int]] = {}  # of _eager, by a rule and an epsilon: number, kind


def _options_of(rule, eps):
    kind = _ft._c.LAYER if rule.kind == "layer" else _ft._c.RMS
    options = (kind, eps, rule.weight_offset, rule.rounding, "exact", rule.y_dtype)
    number = _ft._eager_numbers.get(options) or _ft._eager_number(*options)
    return _options.setdefault((rule, eps), (number | _compiled.OF_MODULE, kind))


# The common call of a module with a weight, with few questions before the operator. None where
# something else has to be asked, or where another operator runs.


def _short_of_stable(plan, x, weight, bias, fields):
    """By the operators of _C.so, which look at shapes, devices and the bias themselves."""
    wanted = _wants_gradient(x, weight, bias)
    if wanted is None or _is_any_autocast_enabled():
        return None
    rule = plan.rules.get((x.dtype, weight.dtype))
    if rule is None or len(plan.shape) > 1:
        return None
    eps = fields[plan.eps_name]
    number, kind = _options.get((rule, eps)) or _options_of(rule, eps)
    if wanted:
        return _norm_node(x, weight, bias, number, kind)
    return _eager.norm(x, weight, bias, number)


def _short_of_compiled(plan, x, weight, bias, fields):
    """By the operators that build() makes, which look at gradients, modes and transforms."""
    if type(x) is not Tensor or _is_compiling() or _is_any_autocast_enabled():
        return None
    dtype = weight.dtype
    rule = plan.rules.get((x.dtype, dtype))
    if (
        rule is None
        or (x.is_cuda and weight.device != x.device)
        or not (x.is_cuda or x.is_cpu and weight.is_cpu)
        or x.layout is not _STRIDED
        or x.shape[-1:] != weight.shape
        or (bias is not None and (bias.dtype is not dtype or bias.shape != weight.shape))
    ):
        return None
    kind, rounding, offset, y_dtype = rule
    eps = fields[plan.eps_name]
    if kind == "layer":
        return _layer_norm(x, weight, bias, eps, rounding, y_dtype)
    return _rms_norm(x, weight, eps, offset, rounding, y_dtype)


_short, _layer_norm, _rms_norm = None, _ft._layer_norm, _ft._rms_norm
if _compiled.is_loaded():
    _short = _short_of_compiled
    _layer_norm = getattr(_layer_norm, "_op", _layer_norm)  # what the call of an overload ends in
    _rms_norm = getattr(_rms_norm, "_op", _rms_norm)
elif _eager is not None:
    _short = _short_of_stable


class _Patched:
    """What a replaced module has before its own class."""

    _fastnorm_original: type
    _fastnorm: _Plan

    def _fastnorm_rule(self, x):
        """The rule for x, or None where the original forward has to run. It takes a large part of
        a short call: what is cheap to ask comes first."""
        if type(x) is not Tensor and type(x) is not nn.Parameter:
            return None
        is_cuda = x.is_cuda
        if not is_cuda and (not x.is_cpu or _is_compiling()):
            return None
        if x.dim() == 0 or x.layout is not _STRIDED:
            return None
        fields = self.__dict__
        parameters, plan = fields["_parameters"], fields["_fastnorm"]
        weight = parameters.get("weight")
        if weight is None:
            if plan.shape and tuple(x.shape[-len(plan.shape) :]) != plan.shape:
                return None
            rule = plan.rules.get((x.dtype, None))
        else:
            bias = parameters.get("bias")
            dtype = weight.dtype
            if is_cuda and weight.device != x.device or not is_cuda and not weight.is_cpu:
                return None
            shape = plan.shape
            if bias is not None and (bias.dtype != dtype or bias.shape != shape):
                return None
            if weight.shape != shape or x.shape[-len(shape) :] != shape:
                return None
            rule = plan.rules.get((x.dtype, dtype))
        if rule is not None and _is_autocast_enabled(device := "cuda" if is_cuda else "cpu"):
            return None if _autocasts(self._fastnorm_original, device) else rule
        return rule

    def forward(self, *inputs, **named):
        if len(inputs) == 1 and not named:
            x, fields = inputs[0], self.__dict__
            plan, parameters = fields["_fastnorm"], fields["_parameters"]
            weight, bias = parameters.get("weight"), parameters.get("bias")
            if weight is not None and _short is not None:
                y = _short(plan, x, weight, bias, fields)
                if y is not None:
                    return y
            rule = self._fastnorm_rule(x)
            if rule is not None:
                rank, eps = len(plan.shape), fields[plan.eps_name]
                if rank <= 1:
                    return _computed(rule, x, weight, bias, eps)
                rows = x.flatten(-rank)
                weight = None if weight is None else weight.flatten()
                bias = None if bias is None else bias.flatten()
                return _computed(rule, rows, weight, bias, eps).view(x.shape)
        return super().forward(*inputs, **named)

    def _fastnorm_add(self, branch, residual):
        """(the norm of the sum, the sum) of two tensors of one dtype, in one pass."""
        rule = self._fastnorm_rule(branch)
        if (
            rule is None
            or rule.kind != "rms"
            or len(self._fastnorm.shape) > 1
            or type(residual) is not Tensor
            or residual.dtype != branch.dtype
            or residual.shape != branch.shape
            or residual.device != branch.device
            or self._forward_hooks
            or self._forward_pre_hooks
        ):
            total = residual + branch
            return self(total), total
        return _ft.add_rms_norm(
            branch,
            residual,
            self._parameters.get("weight"),
            self.__dict__[self._fastnorm.eps_name],
            weight_offset=rule.weight_offset,
            rounding=rule.rounding,
            residual_rounding="before_statistics",
            y_dtype=rule.y_dtype,
        )

    def __reduce_ex__(self, protocol):
        return _rebuilt, (self._fastnorm_original,), self.__dict__


@functools.lru_cache(maxsize=None)
def _subclass(original, mixin):
    """The class of a class's replaced modules. It keeps the name, which models ask for."""
    return type(
        original.__name__,
        (mixin, original),
        {
            "_fastnorm_original": original,
            "__module__": original.__module__,
            "__qualname__": original.__qualname__,
            "__doc__": original.__doc__,
        },
    )


def _rebuilt(original):
    """An empty module of a subclass, for pickle and copy."""
    made = _subclass(original, _Patched)
    return made.__new__(made)


# --- blocks: the addition before a norm, and query and key with rope ---


class _Fused:
    """What a block whose forward calls fused norms has before its own class."""

    _fastnorm_original: type

    def _fastnorm_add_norm(self, name, branch, residual):
        norm = getattr(self, name)
        if isinstance(norm, _Patched):
            return norm._fastnorm_add(branch, residual)
        total = residual + branch
        return norm(total), total

    def _fastnorm_heads(self, rope, names, q, k, cos, sin):
        """q and k [batch, heads, tokens, d], normalised and turned."""
        norms = [getattr(self, name) for name in names]
        rules = [
            norm._fastnorm_rule(x) if isinstance(norm, _Patched) else None
            for norm, x in zip(norms, (q, k))
        ]
        if not _heads_fit(norms, rules, q, k, cos, sin):
            return rope(norms[0](q), norms[1](k), cos, sin)
        parts = [
            _heads.Part(
                x.transpose(1, 2).flatten(0, 1),
                norm="rms",
                weight=norm._parameters.get("weight"),
                eps=norm.__dict__[norm._fastnorm.eps_name],
                weight_offset=rule.weight_offset,
                rounding=rule.rounding,
                rope=True,
                from_rounded=True,
                rope_rounding="every_step",
            )
            for norm, rule, x in zip(norms, rules, (q, k))
        ]
        batch, _, tokens, d = q.shape
        tables = [t.expand(batch, tokens, d).reshape(batch * tokens, d) for t in (cos, sin)]
        found = _heads.norm_heads(parts, cos=tables[0], sin=tables[1], rope_dim=d)
        return tuple(y.view(batch, tokens, -1, d).transpose(1, 2) for y in found)

    def __reduce_ex__(self, protocol):
        return _rebuilt_block, (self._fastnorm_original, self._fastnorm_fuse), self.__dict__


def _heads_fit(norms, rules, q, k, cos, sin):
    """Whether one call computes the norms and rope of these tensors as the model does."""
    return (
        all(rule is not None and rule.kind == "rms" and rule.y_dtype is None for rule in rules)
        and not any(norm._forward_hooks or norm._forward_pre_hooks for norm in norms)
        and all(norm.__dict__[norm._fastnorm.eps_name] is not None for norm in norms)
        and q.dim() == k.dim() == 4
        and q.dtype == k.dtype == cos.dtype == sin.dtype
        and q.device == k.device == cos.device == sin.device
        and cos.shape == sin.shape
        and cos.dim() == 3
        and cos.shape[-1] == q.shape[-1]
        and not (cos.requires_grad or sin.requires_grad)
    )


def _rope_is_known(rope):
    """Whether a model's function turns heads as norm_heads with rounding after every step does."""
    generator = torch.Generator().manual_seed(2)
    with torch.device("cpu"), torch.no_grad():
        q, k = (torch.randn(2, h, 3, 16, generator=generator).bfloat16() for h in (4, 2))
        angles = torch.randn(2, 3, 8, generator=generator)
        angles = torch.cat([angles, angles], -1)
        cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
        try:
            wanted = rope(q, k, cos, sin)
        except Exception:  # a function of other arguments
            return False
        parts = [
            _heads.Part(x.transpose(1, 2).flatten(0, 1), rope=True, rope_rounding="every_step")
            for x in (q, k)
        ]
        found = _heads.norm_heads(parts, cos=cos.view(6, 16), sin=sin.view(6, 16), rope_dim=16)
        return all(
            torch.equal(y.view(2, 3, -1, 16).transpose(1, 2), a) for y, a in zip(found, wanted)
        )


def _norm_call(node):
    """(name, argument) of `self.NAME(argument)`, else None."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "self"
        and len(node.args) == 1
        and not node.keywords
    ):
        return node.func.attr, node.args[0]
    return None


def _assigned(statement):
    """(name, value) of an assignment to one name, else None."""
    if (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
    ):
        return statement.targets[0].id, statement.value
    return None


def _statements(text):
    return ast.parse(text).body


def _with_residuals(body, norms):
    """The statements, with `a = r + b; r = a; a = self.NAME(a)` as one call of both; the names of
    the norms."""
    found, names = [], []
    i = 0
    while i < len(body):
        three = [_assigned(statement) for statement in body[i : i + 3]]
        if len(three) == 3 and all(three):
            (a, total), (r, copied), (y, norm) = three
            call = _norm_call(norm)
            if (
                isinstance(total, ast.BinOp)
                and isinstance(total.op, ast.Add)
                and isinstance(total.left, ast.Name)
                and isinstance(total.right, ast.Name)
                and {total.left.id, total.right.id} == {a, r}
                and isinstance(copied, ast.Name)
                and copied.id == a
                and a == y != r
                and call is not None
                and call[0] in norms
                and isinstance(call[1], ast.Name)
                and call[1].id == a
            ):
                found += _statements(f"{a}, {r} = self._fastnorm_add_norm({call[0]!r}, {a}, {r})")
                names.append(call[0])
                i += 3
                continue
        found.append(body[i])
        i += 1
    return found, names


_ROPE = "apply_rotary_pos_emb"
_HEADS = ("q_norm", "k_norm")


def _rope_call(statement):
    """The names of the arguments of `.. = apply_rotary_pos_emb(q, k, cos, sin)`, else None."""
    value = getattr(statement, "value", None)
    if (
        isinstance(statement, ast.Assign)
        and isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id == _ROPE
        and len(value.args) == 4
        and not value.keywords
        and all(isinstance(a, ast.Name) for a in value.args)
    ):
        return [a.id for a in value.args]
    return None


def _without_norm(statement, variable, norm):
    """`variable = self.norm(E)`, also with `.transpose(1, 2)` behind, without the norm; else
    None."""
    name, value = _assigned(statement) or (None, None)
    if name != variable:
        return None
    call = _norm_call(value)
    if call is not None and call[0] == norm:
        return _statements(f"{variable} = {ast.unparse(call[1])}")[0]
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        call = _norm_call(value.func.value)
        if call is not None and call[0] == norm and ast.unparse(value).endswith(".transpose(1, 2)"):
            return _statements(f"{variable} = {ast.unparse(call[1])}.transpose(1, 2)")[0]
    return None


def _names(statement):
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}


def _with_heads(body):
    """The statements, with the norms of query and key in the call of rope, or None: nothing may
    happen to either between its norm and rope."""
    for end, statement in enumerate(body):
        arguments = _rope_call(statement)
        if arguments is None:
            continue
        before = list(body[:end])
        for variable, norm in zip(arguments, _HEADS):
            last = max((i for i, s in enumerate(before) if variable in _names(s)), default=None)
            taken = None if last is None else _without_norm(before[last], variable, norm)
            if taken is None:
                return None
            before[last] = taken
        target = ast.unparse(statement.targets[0])
        call = f"self._fastnorm_heads({_ROPE}, {_HEADS}, {', '.join(arguments)})"
        return [*before, *_statements(f"{target} = {call}"), *body[end + 1 :]]
    return None


@functools.lru_cache(maxsize=None)
def _fused_forward(original, word, norms):
    """(the forward of a class of blocks with fused calls, what is fused), or (None, why not). There
    is no reason where there is nothing to fuse."""
    forward = inspect.unwrap(original.forward)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(forward)))
    except (OSError, TypeError, SyntaxError):
        return None, "the source of its forward is not there"
    if forward.__closure__:
        return None, "its forward has variables of a function around it"
    function = tree.body[0]  # with its decorators, which are made anew
    if word == "residual":
        body, names = _with_residuals(function.body, norms)
        if not names:
            return None, None
        what = f"the residual's addition with {', '.join(names)}"
    else:
        body = _with_heads(function.body)
        rope = forward.__globals__.get(_ROPE)
        if body is None or rope is None:
            return None, f"no {_ROPE} right after q_norm and k_norm"
        if not _rope_is_known(rope):
            return None, f"{_ROPE} is not norm_heads' rope, or rounds elsewhere"
        what = "q_norm and k_norm with rope"
    function.body = body
    for argument in ast.walk(function.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    function.returns = None
    ast.fix_missing_locations(tree)
    made = {}
    exec(compile(tree, inspect.getsourcefile(forward), "exec"), forward.__globals__, made)
    fused = made[function.name]
    fused.__qualname__, fused.__module__ = forward.__qualname__, forward.__module__
    fused.__signature__ = inspect.signature(forward)  # with its annotations
    return fused, what


@functools.lru_cache(maxsize=None)
def _fused_class(original, word, norms):
    made = _subclass(original, _Fused)
    return type(
        original.__name__,
        (made,),
        {
            "forward": _fused_forward(original, word, norms)[0],
            "_fastnorm_fuse": (word, norms),
            "__module__": original.__module__,
            "__qualname__": original.__qualname__,
        },
    )


def _rebuilt_block(original, fuse):
    made = _fused_class(original, *fuse)
    return made.__new__(made)


def _fuse(name, module, word):
    """Fuses what the forward of a block allows; its Entry, or None where it has no such norms."""
    norms = tuple(n for n, child in module.named_children() if isinstance(child, _Patched))
    if word == "heads" and not set(_HEADS) <= set(norms):
        return None
    if not norms or isinstance(module, (_Fused, _Patched)) or "forward" in module.__dict__:
        return None
    original = type(module)
    forward, what = _fused_forward(original, word, norms)
    if forward is None:
        return what and Entry(name, original.__name__, False, f"fuse={word!r}: {what}")
    module.__class__ = _fused_class(original, word, norms)
    return Entry(name, original.__name__, True, f"fuse={word!r}: {what}")


# --- patch and unpatch ---


def _looks_like_norm(module):
    return re.search("norm", type(module).__name__, re.IGNORECASE) is not None


def patch(model: nn.Module, *, fuse=()) -> Report:
    """Gives the RMSNorm and LayerNorm modules of a model to libfastnorm, in place.

    A module is replaced where its results have the bits of one rounding of the library. It keeps
    its parameters, hooks and place; its class becomes a subclass of the one that it had.

    Args:
        model: The model, on any device.
        fuse: "residual" also fuses an addition with the norm right after it, "heads" the norms of
            query and key with rope. One word, or several.

    Returns:
        A report of all modules whose class has "norm" in its name, and of what was fused.

    Raises:
        ValueError: fuse has an unknown word.
    """
    fuse = (fuse,) if isinstance(fuse, str) else tuple(fuse)
    for word in fuse:
        if word not in _FUSES:
            raise ValueError(f"fuse has {word!r}; required: some of {', '.join(_FUSES)}")
    report = Report()
    for name, module in list(model.named_modules()):
        if isinstance(module, _Patched) or not _looks_like_norm(module):
            continue
        original = type(module)
        try:
            plan, what = _plan(module)
        except _Refused as reason:
            report.append(Entry(name, original.__name__, False, str(reason)))
            continue
        module.__dict__["_fastnorm"] = plan
        module.__class__ = _subclass(original, _Patched)
        report.append(Entry(name, original.__name__, True, what))
    for word in fuse:
        for name, module in list(model.named_modules()):
            entry = _fuse(name, module, word)
            if entry is not None:
                report.append(entry)
    return report


def unpatch(model: nn.Module) -> int:
    """Takes back what patch() did.

    Args:
        model: The model that patch() changed.

    Returns:
        The number of modules that have their class again.
    """
    count = 0
    for module in model.modules():
        if isinstance(module, (_Patched, _Fused)):
            module.__class__ = module._fastnorm_original
            module.__dict__.pop("_fastnorm", None)
            count += 1
    return count


# --- while transformers builds a model ---


class _Built(_Patched):
    """A norm that transformers makes in place of its own. What no rule serves gets its class
    back."""

    def __init__(self, *inputs, **named):
        super().__init__(*inputs, **named)
        try:
            self.__dict__["_fastnorm"] = _plan(self)[0]
        except _Refused:
            self.__class__ = self._fastnorm_original


MODELS = (
    "deepseek_v2",
    "deepseek_v3",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma4",
    "llama",
    "mistral",
    "mixtral",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
)
"""The model types of transformers that register() takes by default."""


def _norm_classes(model):
    """The norms that the modelling file of a model type of transformers defines, by name."""
    source = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    return {
        name: value
        for name, value in vars(source).items()
        if isinstance(value, type)
        and issubclass(value, nn.Module)
        and value.__module__ == source.__name__
        and re.search("norm$", name, re.IGNORECASE)
    }


def register(*models: str) -> List[str]:
    """Makes transformers build models with libfastnorm's norms, by its register_patch_mapping.

    from_pretrained and from_config then need no patch(). Norms of torch.nn, such as those of GPT-2
    and BERT, have no name to register: patch() serves them.

    Args:
        models: Names of model types, such as "llama". None given stands for those of MODELS that
            this transformers has.

    Returns:
        The names of the classes that are registered.

    Raises:
        ImportError: transformers is not installed, or has no such model type.
    """
    patching = importlib.import_module("transformers.monkey_patching")
    found = {}
    for model in models or MODELS:
        try:
            found.update(_norm_classes(model))
        except ImportError:
            if models:
                raise
    patching.register_patch_mapping(
        {name: _subclass(original, _Built) for name, original in found.items()}, overwrite=True
    )
    return sorted(found)


def unregister() -> int:
    """Takes back what register() did.

    Returns:
        The number of classes.

    Raises:
        ImportError: transformers is not installed.
    """
    patching = importlib.import_module("transformers.monkey_patching")
    names = [
        name for name, made in patching.get_patch_mapping().items() if issubclass(made, _Built)
    ]
    patching.unregister_patch_mapping(names)
    return len(names)
