"""RMSNorm and LayerNorm of libfastnorm as PyTorch operators, by ctypes alone: nothing is compiled.

The library is the file that FASTNORM_LIBRARY names, else libfastnorm.so.0 where the loader finds it.
Tensors on the CPU and on CUDA devices, with the strides they have; work goes to the current stream.
README.md says which inputs are copied and which kinds of tensors are refused.
Words: rounding "once", "normalized", "every_step"; residual_rounding "exact", "before_apply",
"before_statistics"; scheme "per_row", "per_block", "mxfp8", "nvfp4", "mxfp4". norm.h says what they mean.

eps None is that of float32, as in torch.nn.functional.rms_norm. y_dtype None is x's dtype.

There is no backward yet: an operator refuses tensors that require grad while grad is enabled.
"""

import ctypes
import importlib.util
import math
import os
import threading
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nested._internal.nested_tensor import NestedTensor


def _load_ctypes():
    """fastnorm_ctypes.py of the folder above, without putting that folder on sys.path."""
    path = Path(__file__).resolve().parents[1] / "fastnorm_ctypes.py"
    spec = importlib.util.spec_from_file_location("fastnorm_ctypes", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_c = _load_ctypes()
FastnormError = _c.FastnormError  # a RuntimeError with the status' name and the library's text
_library = _c.Library(os.environ.get("FASTNORM_LIBRARY", "libfastnorm.so.0"))

# With plain addresses as arguments; indexing makes a function of its own, whose types are its own.
_norm = _library.c["fastnorm_norm"]
_norm.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]

# Some dtypes that no norm takes are here, too: the library says so.
_DTYPES = {
    torch.float32: _c.F32, torch.float16: _c.F16, torch.bfloat16: _c.BF16,
    torch.int8: _c.I8, torch.uint8: _c.U8, torch.int32: _c.Dtype(0, 32, 1), torch.int64: _c.Dtype(0, 64, 1),
    torch.float8_e4m3fn: _c.F8_E4M3FN, torch.float8_e5m2: _c.F8_E5M2, torch.float8_e8m0fnu: _c.F8_E8M0FNU,
}
_FP4 = getattr(torch, "float4_e2m1fn_x2", None)  # since PyTorch 2.8
if _FP4 is not None:
    _DTYPES[_FP4] = _c.F4_E2M1FN_X2
_ROUNDING = {"once": 0, "normalized": 1, "every_step": 2}
_RESIDUAL_ROUNDING = {"exact": 0, "before_apply": 1, "before_statistics": 2}
_SCHEMES = {"per_row": 2, "per_block": 3, "mxfp8": 4, "nvfp4": 5, "mxfp4": 6}


def version():
    return _library.version()


# --- contexts: one a device, made at its first use ---

_contexts, _contexts_lock = {}, threading.Lock()


def _context(device_id):
    """The context of a CUDA device, or of the CPU, which Tensor.get_device() calls -1."""
    with _contexts_lock:
        if device_id not in _contexts:
            if device_id < 0:
                _contexts[device_id] = _c.Context(_library, _c.CPU, 0, torch.get_num_threads())
            else:
                _contexts[device_id] = _c.Context(_library, _c.CUDA, device_id)
        return _contexts[device_id]


def _public_raw_stream(device_id):
    return torch.cuda.current_stream(device_id).cuda_stream


# What PyTorch's own generated code calls; the public way costs ten times as much.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _public_raw_stream)


# --- arguments ---


def _word(words, name, value):
    if value not in words:
        raise ValueError(f"{name} is {value!r}; required: one of {', '.join(words)}")
    return words[value]


def _named(names, tensors):
    """Pairs of a name and its tensor, without those that are None."""
    return [(name, t) for name, t in zip(names, tensors) if t is not None]


def _check_kind(name, t):
    """Refuses a tensor whose elements do not lie in memory at its strides."""
    kind = (f"has layout {t.layout}" if t.layout is not torch.strided else
            "is a nested tensor" if t.is_nested else
            f"is quantised ({t.dtype})" if t.is_quantized else None)
    if kind:
        raise FastnormError(f"FASTNORM_ERROR_LAYOUT: {name} {kind}; "
                            "required: layout torch.strided, not nested or quantised")


def _check_places(names, tensors, devices):
    """Refuses tensors that are not dense, or not on the device of the first one. devices: its types."""
    present = _named(names, tensors)
    for name, t in present:
        _check_kind(name, t)
    first, x = present[0]
    if x.device.type not in devices:
        raise FastnormError(f"FASTNORM_ERROR_DEVICE: {first} is on {x.device}; required: a CPU or CUDA device")
    for name, t in present:
        if t.device != x.device:
            raise FastnormError(f"FASTNORM_ERROR_DEVICE: {name} is on {t.device}; "
                                f"required: {x.device}, the device of {first}")


# --- views: the shapes and strides that the library gets ---

_MAX_RANK = 4
_PARAMETERS = ("weight", "bias")


def _compact(shape):
    """Strides of a tensor of this shape without gaps."""
    strides, stride = [], 1
    for extent in reversed(shape):
        strides.insert(0, stride)
        stride *= max(extent, 1)
    return strides


def _strides(t):
    """A tensor's strides; where they have no meaning, those of a compact tensor."""
    compact = _compact(t.shape)
    if 0 in t.shape:
        return compact
    return [c if extent == 1 else s for extent, s, c in zip(t.shape, t.stride(), compact)]


def _rows_to_merge(names, tensors):
    """How many leading dimensions of x no parameter has."""
    inner = [t.dim() for name, t in _named(names, tensors) if name in _PARAMETERS]
    return tensors[0].dim() - max(inner + [1])


def _merged(shape, strides):
    """Lists of neighbouring dimensions that become one, for the strides of several tensors."""
    groups = []
    for i in range(len(shape)):
        if groups and all(s[groups[-1][-1]] == s[i] * shape[i] for s in strides):
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def _groups(names, tensors):
    """_merged for the dimensions of _rows_to_merge; None where the library takes x as it is."""
    x, lead = tensors[0], _rows_to_merge(names, tensors)
    if x.dim() <= _MAX_RANK or lead < 2:
        return None
    for name, t in _named(names, tensors):
        if name not in _PARAMETERS and t.shape[:lead] != x.shape[:lead]:
            raise FastnormError(f"FASTNORM_ERROR_SHAPE: {name}.shape is {list(t.shape)}; "
                                f"required: the leading dimensions of x, {list(x.shape)}")
    if 0 in x.shape:
        return [list(range(lead))]
    rows = [_strides(t) for name, t in _named(names, tensors) if name not in _PARAMETERS]
    return _merged(x.shape[:lead], rows)


def _positions_to_copy(names, tensors):
    """Positions of inputs that the library takes only as a compact copy."""
    unit = [i for i, t in enumerate(tensors)
            if t is not None and t.dim() > 0 and _strides(t)[-1] != 1]
    if unit:
        return tuple(unit)
    groups = _groups(names, tensors)
    if groups is None or len(groups) + tensors[0].dim() - _rows_to_merge(names, tensors) <= _MAX_RANK:
        return ()
    return tuple(i for i, (name, t) in enumerate(zip(names, tensors))
                 if t is not None and name not in _PARAMETERS and _strides(t) != _compact(t.shape))


def _view(name, t, groups):
    """(shape, strides) of a tensor, with the dimensions of rows merged by groups."""
    shape, strides = list(t.shape), _strides(t)
    if groups is None or name in _PARAMETERS:
        return shape, strides
    lead = groups[-1][-1] + 1
    return ([math.prod(shape[i] for i in group) for group in groups] + shape[lead:],
            [strides[group[-1]] for group in groups] + strides[lead:])


def _span(t, address):
    """First and last address of a tensor's memory, the last not included."""
    if 0 in t.shape:
        return address, address
    reach = sum((extent - 1) * stride for extent, stride in zip(t.shape, t.stride()))
    return address, address + (reach + 1) * t.dtype.itemsize


def _overlaps_itself(t):
    """Whether two elements may share an address. Strides that interleave dimensions count, too."""
    reach = 0
    for stride, extent in sorted((s, e) for s, e in zip(t.stride(), t.shape) if e != 1):
        if stride <= reach:
            return True
        reach += (extent - 1) * stride
    return False


def _in_place(names, tensors):
    """Position of the residual where it is replaced, else None."""
    if "residual_out" not in names:
        return None
    position = names.index("residual")
    return position if tensors[position] is tensors[names.index("residual_out")] else None


def _check_copies(names, tensors, addresses):
    """Refuses a residual that is replaced, if it shares memory with itself or with another tensor.
    The library does not see that where it gets copies."""
    position = _in_place(names, tensors)
    if position is None:
        return
    residual = tensors[position]
    if residual.dim() and 0 not in residual.shape and _overlaps_itself(residual):
        raise FastnormError(f"FASTNORM_ERROR_LAYOUT: residual.stride() is {list(residual.stride())} for the shape "
                            f"{list(residual.shape)}; required: elements that do not overlap, since it is written")
    start, end = _span(residual, addresses[position])
    for name, t, address in zip(names, tensors, addresses):
        if t is None:
            continue
        other_start, other_end = _span(t, address)
        if t is not residual and start < other_end and other_start < end:
            raise FastnormError(
                f"FASTNORM_ERROR_LAYOUT: {name} at [{other_start:#x}, {other_end:#x}) overlaps residual at "
                f"[{start:#x}, {end:#x}), which is written; required: memory of its own, such as {name}.clone()")


# --- calls ---


class _Call:
    """fastnorm_norm_args for tensors of certain dtypes, shapes, strides and devices. Only addresses
    change from one run to the next."""

    def __init__(self, options, names, tensors, addresses=None):
        self.device_id = tensors[0].get_device()
        self.context = _context(self.device_id)
        self.args = _c.NormArgs(struct_size=ctypes.sizeof(_c.NormArgs), **dict(options))
        self.structs = []
        groups = _groups(names, tensors)
        for i, (name, t) in enumerate(zip(names, tensors)):
            struct = None
            if t is not None:
                address = t.data_ptr() if addresses is None else addresses[i]
                struct = _c.tensor(address, *self._device(t), self._dtype(name, t), *_view(name, t, groups))
                setattr(self.args, name, ctypes.pointer(struct))
            self.structs.append(struct)
        self.address = ctypes.addressof(self.args)
        info = _c.Info(struct_size=ctypes.sizeof(_c.Info))
        _library.check(_library.c.fastnorm_norm_query(self.context.handle, self.args, info))
        self.workspace_bytes = info.workspace_bytes
        self.handle = self.context.handle.value

    @staticmethod
    def _device(t):
        return (_c.CPU, 0) if t.get_device() < 0 else (_c.CUDA, t.get_device())

    @staticmethod
    def _dtype(name, t):
        if t.dtype not in _DTYPES:
            words = _DTYPES if name in ("quantized", "scale") else (torch.float32, torch.float16, torch.bfloat16)
            raise FastnormError(f"FASTNORM_ERROR_DTYPE: {name}.dtype is {t.dtype}; "
                                f"required: one of {', '.join(map(str, words))}")
        return _DTYPES[t.dtype]

    def run(self):
        """Queues the work; for the addresses that are in the structs."""
        stream = None if self.device_id < 0 else _raw_stream(self.device_id)
        if self.workspace_bytes == 0:
            _library.check(_norm(self.handle, self.address, None, 0, stream))
            return
        device = "cpu" if self.device_id < 0 else torch.device("cuda", self.device_id)
        memory = torch.empty(self.workspace_bytes + 255, dtype=torch.uint8, device=device)
        aligned = (memory.data_ptr() + 255) & ~255
        _library.check(_norm(self.handle, self.address, aligned, self.workspace_bytes, stream))


_MAX_CALLS = 4096  # of a thread; a server with ever new shapes must not fill the memory


class _Calls(threading.local):
    """The calls that a thread has made; a struct is never shared by two threads. Instead of a call
    there may be a tuple: the positions of the tensors to copy before."""

    def __init__(self):
        self.made = {}

    def add(self, key, call):
        if len(self.made) >= _MAX_CALLS:
            self.made.clear()
        self.made[key] = call


_calls = _Calls()


def _run(options, names, tensors):
    """One fastnorm_norm. options: pairs of a field and its value; names of fields and their tensors or
    None, x first. The dispatcher leads only dense tensors on CPU and CUDA devices here."""
    key = (options, names, *[t if t is None else (t.dtype, t.get_device(), t.shape, t.stride()) for t in tensors])
    call = _calls.made.get(key)
    if call is None:
        _check_places(names, tensors, ("cpu", "cuda"))
        call = _positions_to_copy(names, tensors) or _Call(options, names, tensors)
        _calls.add(key, call)
    elif type(call) is not tuple:
        for struct, t in zip(call.structs, tensors):
            if t is not None:
                struct.data = t.data_ptr()
    if type(call) is tuple:
        _run_copied(options, names, tensors, call)
    else:
        call.run()


def _run_copied(options, names, tensors, positions):
    """_run with compact copies of some tensors; a residual that is replaced is copied back."""
    _check_copies(names, tensors, [None if t is None else t.data_ptr() for t in tensors])
    copies = {i: tensors[i].clone(memory_format=torch.contiguous_format) for i in positions}
    residual = _in_place(names, tensors)
    if residual in copies:
        copies[names.index("residual_out")] = copies[residual]
    _run(options, names, tuple(copies.get(i, t) for i, t in enumerate(tensors)))
    if residual in copies:
        tensors[residual].copy_(copies[residual])


def _check(options, names, tensors):
    """What _run refuses, without memory: for tensors on `meta` and the compiler's fake ones. Where
    all sizes are numbers, the library is asked."""
    _check_places(names, tensors, ("cpu", "cuda", "meta"))
    sizes = [size for _, t in _named(names, tensors) for size in (*t.shape, *t.stride())]
    if not all(type(size) is int for size in sizes):
        return
    # Stand-in addresses, 2^44 bytes apart; a tensor that is there twice has one.
    places = {}
    addresses = [places.setdefault(id(t), len(places) + 1) << 44 for t in tensors]
    shapes = [None if t is None else _Shape(t.dtype, t.shape, t.stride()) for t in tensors]
    while positions := _positions_to_copy(names, shapes):
        _check_copies(names, tensors, addresses)
        for i in positions:
            shapes[i] = _Shape(shapes[i].dtype, shapes[i].shape, _compact(shapes[i].shape))
    _Call(options, names, shapes, addresses)


class _Shape:
    """What _Call asks of a tensor, for a tensor without memory."""

    def __init__(self, dtype, shape, strides):
        self.dtype, self.shape, self.strides = dtype, shape, strides

    def dim(self):
        return len(self.shape)

    def stride(self):
        return self.strides

    def get_device(self):
        return -1


# What torch.nn.functional.rms_norm takes for None: that of the arithmetic, also for x of 16 bits.
_DEFAULT_EPS = torch.finfo(torch.float32).eps


def _options(kind, eps, weight_offset, rounding, residual_rounding="exact"):
    return (("kind", kind), ("eps", _DEFAULT_EPS if eps is None else eps), ("weight_offset", weight_offset),
            ("rounding", _word(_ROUNDING, "rounding", rounding)),
            ("residual_rounding", _word(_RESIDUAL_ROUNDING, "residual_rounding", residual_rounding)))


def _quant_options(scheme, block_size):
    return (("quant_scheme", _word(_SCHEMES, "scheme", scheme)), ("quant_block_size", block_size))


# --- outputs ---


def _like(x, dtype=None):
    """Empty, of x's shape, compact; dtype None: of x's dtype."""
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)


def _quant_outputs(x, scheme, block_size, dtype):
    """Empty codes and scales for x; a scheme decides the dtype of its scales, and whether codes are of 4 bits."""
    _word(_SCHEMES, "scheme", scheme)
    if x.dim() < 1:
        raise FastnormError("FASTNORM_ERROR_SHAPE: x has 0 dimensions; required: at least 1")
    if block_size not in ((64, 128) if scheme == "per_block" else (0,)):
        required = "64 or 128" if scheme == "per_block" else f"0, since the scheme is {scheme}"
        raise FastnormError(f"FASTNORM_ERROR_ARGUMENT: block_size is {block_size}; required: {required}")
    rows, n = x.shape[:-1], x.shape[-1]
    if scheme == "per_row":
        return x.new_empty(x.shape, dtype=dtype), x.new_empty((*rows, 1), dtype=torch.float32)
    if scheme == "per_block":
        return (x.new_empty(x.shape, dtype=dtype),
                x.new_empty((*rows, -(-n // block_size)), dtype=torch.float32))
    if scheme == "mxfp8":
        return (x.new_empty(x.shape, dtype=dtype),
                x.new_empty((*rows, -(-n // 32)), dtype=torch.float8_e8m0fnu))
    codes = x.new_empty((*rows, n // 2), dtype=dtype if dtype == _FP4 else torch.uint8)
    if scheme == "mxfp4":
        return codes, x.new_empty((*rows, -(-n // 32)), dtype=torch.float8_e8m0fnu)
    return codes, x.new_empty((*rows, -(-n // 16)), dtype=torch.float8_e4m3fn)


# --- operators ---

# PyTorch's custom_op decorator costs twice as much a call. The compiler must leave strides as they are.
_lib = torch.library.Library("fastnorm", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag, getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order))


def _without_backward(name, op, mutated):
    """The operator as autograd sees it, and as inference mode sees it where tensors were made outside of it:
    autograd counts the versions of what is written. mutated: position of that tensor, or None."""

    def call(*arguments):
        if torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in arguments):
            raise RuntimeError(f"fastnorm::{name} has no backward yet: call it under torch.no_grad() or "
                               "torch.inference_mode(), or with tensors that do not require grad")
        # PyTorch would take the derivative for 0.
        if forward_ad._current_level >= 0 and any(
                isinstance(a, Tensor) and forward_ad.unpack_dual(a).tangent is not None for a in arguments):
            raise RuntimeError(f"fastnorm::{name} has no forward derivative yet")
        return counted(*arguments)

    def counted(*arguments):
        with torch._C._AutoDispatchBelowADInplaceOrView():
            results = op(*arguments)
        if mutated is not None:
            torch.autograd.graph.increment_version(arguments[mutated])
        return results

    return call, counted


def _resolving_neg(names, mutated, op):
    """The operator on views that stand for the negative of their memory. PyTorch's own kernel for
    them fails where an operator does not return what it writes."""

    def call(*arguments):
        if arguments[mutated].is_neg():
            raise FastnormError(f"FASTNORM_ERROR_LAYOUT: {names[mutated]}.is_neg() is True; required: False, since it "
                                "is written (Tensor.resolve_neg() makes a copy)")
        return op(*[a.resolve_neg() if isinstance(a, Tensor) else a for a in arguments])

    return call


def _refuse_others(name, names, present):
    """The operator on tensors that have no strides or no device of ours: an error that names one."""

    def refuse(*arguments):
        found = [(n, a) for n, a in zip(names, present(arguments)) if isinstance(a, Tensor)]
        _check_places(*zip(*found), ("cpu", "cuda", "meta"))
        kinds = ", ".join(f"{n} is a {type(a).__name__} on {a.device}" for n, a in found)
        raise FastnormError(f"FASTNORM_ERROR_DEVICE: {kinds}; required: plain tensors on one CPU or CUDA device")

    for kind in ("CompositeExplicitAutograd", "NestedTensorCPU", "NestedTensorCUDA"):
        _lib.impl(name, refuse, kind)
    torch.library.register_torch_dispatch(f"fastnorm::{name}", NestedTensor,
                                          lambda mode, op, types, arguments, options: refuse(*arguments), lib=_lib)


def _operator(schema, mutated=None):
    """Makes the function below it an operator on CPU and CUDA tensors. The function makes the outputs
    and gives all to its first argument: _run, or _check for tensors without memory."""
    name = schema.partition("(")[0]

    def define(body):
        _lib.define(schema, tags=_TAGS)
        op = getattr(torch.ops.fastnorm, name).default
        names = [a.name for a in op._schema.arguments]
        required = [i for i, a in enumerate(op._schema.arguments) if a.type.kind() == "TensorType"]

        def present(arguments):
            for i in required:
                if arguments[i] is None:
                    raise FastnormError(f"FASTNORM_ERROR_ARGUMENT: {names[i]} is None; required: a tensor")
            return arguments

        def run(*arguments):
            return body(_run, *present(arguments))

        def fake(*arguments):
            return body(_check, *present(arguments))

        for device in ("CPU", "CUDA"):
            _lib.impl(name, run, device)
        torch.library.register_fake(f"fastnorm::{name}", fake, lib=_lib)
        call, counted = _without_backward(name, op, mutated)
        _lib.impl(name, call, "Autograd")
        if mutated is not None:
            _lib.impl(name, counted, "ADInplaceOrView")
            _lib.impl(name, _resolving_neg(names, mutated, op), "Negative")
        _refuse_others(name, names, present)
        return op

    return define


@_operator("rms_norm(Tensor x, Tensor? weight, float? eps, float weight_offset, str rounding, "
           "ScalarType? y_dtype=None) -> Tensor")
def _rms_norm(run, x, weight, eps, weight_offset, rounding, y_dtype=None):
    y = _like(x, y_dtype)
    run(_options(_c.RMS, eps, weight_offset, rounding), ("x", "weight", "y"), (x, weight, y))
    return y


@_operator("layer_norm(Tensor x, Tensor? weight, Tensor? bias, float? eps, str rounding, "
           "ScalarType? y_dtype=None) -> Tensor")
def _layer_norm(run, x, weight, bias, eps, rounding, y_dtype=None):
    y = _like(x, y_dtype)
    run(_options(_c.LAYER, eps, 0.0, rounding), ("x", "weight", "bias", "y"), (x, weight, bias, y))
    return y


_ADD = ("x", "residual", "weight", "y", "residual_out")


@_operator("add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float? eps, float weight_offset, "
           "str rounding, str residual_rounding, ScalarType? y_dtype=None) -> (Tensor, Tensor)")
def _add_rms_norm(run, x, residual, weight, eps, weight_offset, rounding, residual_rounding, y_dtype=None):
    y, residual_out = _like(x, y_dtype), _like(residual)
    run(_options(_c.RMS, eps, weight_offset, rounding, residual_rounding), _ADD,
        (x, residual, weight, y, residual_out))
    return y, residual_out


@_operator("fused_add_rms_norm(Tensor x, Tensor(a!) residual, Tensor? weight, float? eps, float weight_offset, "
           "str rounding, str residual_rounding, ScalarType? y_dtype=None) -> Tensor", mutated=1)
def _fused_add_rms_norm(run, x, residual, weight, eps, weight_offset, rounding, residual_rounding, y_dtype=None):
    y = _like(x, y_dtype)
    run(_options(_c.RMS, eps, weight_offset, rounding, residual_rounding), _ADD,
        (x, residual, weight, y, residual))
    return y


@_operator("rms_norm_quant(Tensor x, Tensor? weight, float? eps, float weight_offset, str rounding, str scheme, "
           "int block_size, ScalarType dtype) -> (Tensor, Tensor)")
def _rms_norm_quant(run, x, weight, eps, weight_offset, rounding, scheme, block_size, dtype):
    quantized, scale = _quant_outputs(x, scheme, block_size, dtype)
    run(_options(_c.RMS, eps, weight_offset, rounding) + _quant_options(scheme, block_size),
        ("x", "weight", "quantized", "scale"), (x, weight, quantized, scale))
    return quantized, scale


@_operator("fused_add_rms_norm_quant(Tensor x, Tensor(a!) residual, Tensor? weight, float? eps, "
           "float weight_offset, str rounding, str residual_rounding, str scheme, int block_size, "
           "ScalarType dtype) -> (Tensor, Tensor)", mutated=1)
def _fused_add_rms_norm_quant(run, x, residual, weight, eps, weight_offset, rounding, residual_rounding, scheme,
                              block_size, dtype):
    quantized, scale = _quant_outputs(x, scheme, block_size, dtype)
    run(_options(_c.RMS, eps, weight_offset, rounding, residual_rounding) + _quant_options(scheme, block_size),
        ("x", "residual", "weight", "residual_out", "quantized", "scale"),
        (x, residual, weight, residual, quantized, scale))
    return quantized, scale


# --- the functions to call ---

def rms_norm(x, weight=None, eps=1e-6, *, weight_offset=0.0, rounding="once", y_dtype=None):
    """y = x * rsqrt(mean(x^2) + eps) * (weight + weight_offset), row by row. y_dtype: x's, or float32."""
    return _rms_norm(x, weight, eps, weight_offset, rounding, y_dtype)


def layer_norm(x, weight=None, bias=None, eps=1e-5, *, rounding="once", y_dtype=None):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, row by row. y_dtype: x's, or float32."""
    return _layer_norm(x, weight, bias, eps, rounding, y_dtype)


def add_rms_norm(x, residual, weight=None, eps=1e-6, *, weight_offset=0.0, rounding="once",
                 residual_rounding="exact", y_dtype=None):
    """(rms_norm of the sum, sum) with sum = x + residual, both new tensors; the sum has residual's dtype."""
    return _add_rms_norm(x, residual, weight, eps, weight_offset, rounding, residual_rounding, y_dtype)


def fused_add_rms_norm(x, residual, weight=None, eps=1e-6, *, weight_offset=0.0, rounding="once",
                       residual_rounding="exact", y_dtype=None):
    """As add_rms_norm, but the sum replaces residual in its own memory; returns the norm."""
    return _fused_add_rms_norm(x, residual, weight, eps, weight_offset, rounding, residual_rounding, y_dtype)


def rms_norm_quant(x, weight=None, eps=1e-6, *, scheme, block_size=0, dtype=torch.float8_e4m3fn,
                   weight_offset=0.0, rounding="once"):
    """(codes, scales) of rms_norm. Scales are x.shape[:-1] + [1] (per_row) or + [scales of a row]. Codes of
    nvfp4 and mxfp4 are two to a byte: uint8, or float4_e2m1fn_x2 where dtype says so."""
    return _rms_norm_quant(x, weight, eps, weight_offset, rounding, scheme, block_size, dtype)


def fused_add_rms_norm_quant(x, residual, weight=None, eps=1e-6, *, scheme, block_size=0,
                             dtype=torch.float8_e4m3fn, weight_offset=0.0, rounding="once",
                             residual_rounding="exact"):
    """(codes, scales) of fused_add_rms_norm."""
    return _fused_add_rms_norm_quant(x, residual, weight, eps, weight_offset, rounding,
                                                 residual_rounding, scheme, block_size, dtype)
