"""RMSNorm and LayerNorm of libfastnorm as PyTorch operators, by ctypes alone: nothing is compiled.
fastnorm.torch.compiled builds some of them for speed.

The library is the file that FASTNORM_LIBRARY names, else the one of this package.
Tensors on the CPU and on CUDA devices, with the strides they have; work goes to the current stream.
The guide's page on PyTorch says which inputs are copied and which kinds of tensors are refused.
Words: rounding "once", "normalized", "every_step", "once_rw"; residual_rounding "exact",
"before_apply", "before_statistics"; schemes are the keys of fastnorm.stages.SCHEMES. norm.h says
what they mean.

eps None is that of float32, as in torch.nn.functional.rms_norm. y_dtype None is x's dtype.

All operators but the quantised ones have a backward, by fastnorm_norm_backward: gradients have the
dtypes of their inputs. The quantised ones refuse tensors that require grad while grad is enabled.
"""

import contextlib
import ctypes
import math
import sys
import threading
import weakref
from typing import Dict, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nested._internal.nested_tensor import NestedTensor

from fastnorm import abi as _c
from fastnorm import stages as _stages
from fastnorm.torch import compiled as _compiled

__all__ = [
    "FastnormError",
    "LayerNorm",
    "RMSNorm",
    "add_rms_norm",
    "fused_add_rms_norm",
    "fused_add_rms_norm_quant",
    "layer_norm",
    "patch",
    "register",
    "rms_norm",
    "rms_norm_quant",
    "unpatch",
    "unregister",
    "version",
]

FastnormError = _c.FastnormError
"""A RuntimeError with the status' name and the library's text: fastnorm.abi.FastnormError."""
_library = _c.Library(_c.library_path())

# With plain addresses as arguments; indexing makes a function of its own, whose types are its own.
_norm, _backward = _library.c["fastnorm_norm"], _library.c["fastnorm_norm_backward"]
for _function in (_norm, _backward):
    _function.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_void_p,
    ]

# Some dtypes that no norm takes are here, too: the library says so.
_DTYPES = {
    torch.float32: _c.F32,
    torch.float16: _c.F16,
    torch.bfloat16: _c.BF16,
    torch.int8: _c.I8,
    torch.uint8: _c.U8,
    torch.int32: _c.Dtype(0, 32, 1),
    torch.int64: _c.Dtype(0, 64, 1),
    torch.float8_e4m3fn: _c.F8_E4M3FN,
    torch.float8_e5m2: _c.F8_E5M2,
    torch.float8_e8m0fnu: _c.F8_E8M0FNU,
}
_FP4 = getattr(torch, "float4_e2m1fn_x2", None)  # since PyTorch 2.8
if _FP4 is not None:
    _DTYPES[_FP4] = _c.F4_E2M1FN_X2
_ROUNDING = {"once": 0, "normalized": 1, "every_step": 2, "once_rw": 3}
_RESIDUAL_ROUNDING = {"exact": 0, "before_apply": 1, "before_statistics": 2}
# The schemes of rms_norm_quant, which computes the scales.
_SCHEMES = {word: n for word, n in _stages.SCHEMES.items() if word != "per_tensor"}


def version() -> str:
    """Version of the loaded library, such as "0.2.0".

    Returns:
        The version.
    """
    return _library.version()


# --- contexts: one a device, made at its first use; on the CPU one for each number of threads ---

_contexts: Dict[int, _c.Context] = {}  # of CUDA devices
# Contexts of the CPU by torch.get_num_threads(), which each thread has for itself. Only the threads
# that use a context keep it: it ends with the last of them and the last call.
_host_contexts: "weakref.WeakValueDictionary[int, _c.Context]" = weakref.WeakValueDictionary()
_contexts_lock = threading.Lock()

_loop = _compiled.loop()  # of PyTorch, in place of a number of threads

_MAX_CALLS = 4096  # of a thread; a server with ever new shapes must not fill the memory


class _Calls(threading.local):
    """What a thread keeps: its context of the CPU, and the calls that it has made. A struct is
    never shared by two threads. Instead of a call there may be a tuple: the positions of the
    tensors to copy before."""

    def __init__(self):
        self.made = {}
        self.host, self.num_threads = None, None

    def add(self, key, call):
        if len(self.made) >= _MAX_CALLS:
            self.made.clear()
        self.made[key] = call

    def follow_threads(self):
        """Changes the context of the CPU where torch.get_num_threads() has changed."""
        wanted = 0 if _loop else torch.get_num_threads()
        if wanted != self.num_threads:
            self.made.clear()  # with the calls the former context goes
            with _contexts_lock:
                host = _host_contexts.get(wanted)
                if host is None:
                    host = _host_contexts[wanted] = _c.Context(
                        _library, _c.CPU, 0, wanted, parallel_for=_loop
                    )
            self.host, self.num_threads = host, wanted


_calls = _Calls()


def _context(device_id):
    """The context of a CUDA device, or of the CPU, which Tensor.get_device() calls -1."""
    if device_id < 0:
        _calls.follow_threads()
        return _calls.host
    with _contexts_lock:
        if device_id not in _contexts:
            _contexts[device_id] = _c.Context(_library, _c.CUDA, device_id)
        return _contexts[device_id]


def _public_raw_stream(device_id):
    return torch.cuda.current_stream(device_id).cuda_stream


# What PyTorch's own generated code calls; the public way costs ten times as much.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _public_raw_stream)


# --- arguments ---


def _word(words, name, value):
    if value not in words:
        required = ", ".join(str(word) for word in words)
        raise ValueError(f"{name} is {value!r}; required: one of {required}")
    return words[value]


def _named(names, tensors):
    """Pairs of a name and its tensor, without those that are None."""
    return [(name, t) for name, t in zip(names, tensors) if t is not None]


def _check_kind(name, t):
    """Refuses a tensor whose elements do not lie in memory at its strides."""
    kind = (
        f"has layout {t.layout}"
        if t.layout is not torch.strided
        else "is a nested tensor"
        if t.is_nested
        else f"is quantised ({t.dtype})"
        if t.is_quantized
        else None
    )
    if kind:
        raise FastnormError(
            f"FASTNORM_ERROR_LAYOUT: {name} {kind}; "
            "required: layout torch.strided, not nested or quantised"
        )


def _check_places(names, tensors, devices):
    """Refuses tensors that are not dense, or not on the device of the first one. devices: its
    types."""
    present = _named(names, tensors)
    for name, t in present:
        _check_kind(name, t)
    first, x = present[0]
    if x.device.type not in devices:
        raise FastnormError(
            f"FASTNORM_ERROR_DEVICE: {first} is on {x.device}; required: a CPU or CUDA device"
        )
    for name, t in present:
        if t.device != x.device:
            raise FastnormError(
                f"FASTNORM_ERROR_DEVICE: {name} is on {t.device}; "
                f"required: {x.device}, the device of {first}"
            )


# --- views: the shapes and strides that the library gets ---

_MAX_RANK = 4
_PARAMETERS = (
    "weight",
    "bias",
    "dweight",
    "dbias",
    "branch_weight",
    "dbranch_weight",
    "sum_scale",
    "residual_gate",
    "dresidual_gate",
    "residual_gate_table",
    "modulation_scale",
    "scale_table",
    "modulation_shift",
    "shift_table",
    "static_scale",
    "swizzled_scale",
    *(s.field for s in _stages.SETTINGS if s.kind is None and s.name != "scale"),
)
# Fields of scales whose shape is not that of rows.
_FIELDS = {"static_scale": "scale", "swizzled_scale": "scale"}
# The strides of their last dimension are free.
_ANY_STRIDES = ("scale",)


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
            raise FastnormError(
                f"FASTNORM_ERROR_SHAPE: {name}.shape is {list(t.shape)}; "
                f"required: the leading dimensions of x, {list(x.shape)}"
            )
    if 0 in x.shape:
        return [list(range(lead))]
    rows = [_strides(t) for name, t in _named(names, tensors) if name not in _PARAMETERS]
    return _merged(x.shape[:lead], rows)


def _positions_to_copy(names, tensors):
    """Positions of inputs that the library takes only as a compact copy."""
    unit = [
        i
        for i, (name, t) in enumerate(zip(names, tensors))
        if t is not None
        and t.dim() > 0
        and name not in _ANY_STRIDES
        and _strides(t)[-1] not in ((0, 1) if name == "dy" else (1,))
    ]
    if unit:
        return tuple(unit)
    groups = _groups(names, tensors)
    if (
        groups is None
        or len(groups) + tensors[0].dim() - _rows_to_merge(names, tensors) <= _MAX_RANK
    ):
        return ()
    return tuple(
        i
        for i, (name, t) in enumerate(zip(names, tensors))
        if t is not None
        and name not in (*_PARAMETERS, *_ANY_STRIDES)
        and _strides(t) != _compact(t.shape)
    )


def _view(name, t, groups):
    """(shape, strides) of a tensor, with the dimensions of rows merged by groups."""
    shape, strides = list(t.shape), _strides(t)
    if groups is None or name in _PARAMETERS:
        return shape, strides
    lead = groups[-1][-1] + 1
    return (
        [math.prod(shape[i] for i in group) for group in groups] + shape[lead:],
        [strides[group[-1]] for group in groups] + strides[lead:],
    )


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
        raise FastnormError(
            f"FASTNORM_ERROR_LAYOUT: residual.stride() is {list(residual.stride())} for the shape "
            f"{list(residual.shape)}; required: elements that do not overlap, since it is written"
        )
    start, end = _span(residual, addresses[position])
    for name, t, address in zip(names, tensors, addresses):
        if t is None:
            continue
        other_start, other_end = _span(t, address)
        if t is not residual and start < other_end and other_start < end:
            raise FastnormError(
                f"FASTNORM_ERROR_LAYOUT: {name} at [{other_start:#x}, {other_end:#x}) overlaps residual at "
                f"[{start:#x}, {end:#x}), which is written; required: memory of its own, such as {name}.clone()"
            )


# --- calls ---


class _Call:
    """fastnorm_norm_args, or with a tensor named dy fastnorm_norm_backward_args, for tensors of
    certain dtypes, shapes, strides and devices. Only addresses change from one run to the next."""

    def __init__(self, options, names, tensors, addresses=None):
        self.device_id = tensors[0].get_device()
        self.context = _context(self.device_id)
        backward = "dy" in names
        struct_type = _c.NormBackwardArgs if backward else _c.NormArgs
        self.function = _backward if backward else _norm
        self.args = struct_type(struct_size=ctypes.sizeof(struct_type), **dict(options))
        self.structs = []
        groups = _groups(names, tensors)
        for i, (name, t) in enumerate(zip(names, tensors)):
            struct = None
            if t is not None:
                address = t.data_ptr() if addresses is None else addresses[i]
                struct = _c.tensor(
                    address, *self._device(t), self._dtype(name, t), *_view(name, t, groups)
                )
                setattr(self.args, _FIELDS.get(name, name), ctypes.pointer(struct))
            self.structs.append(struct)
        self.address = ctypes.addressof(self.args)
        info = _c.Info(struct_size=ctypes.sizeof(_c.Info))
        query = (
            _library.c.fastnorm_norm_backward_query if backward else _library.c.fastnorm_norm_query
        )
        _library.check(query(self.context.handle, self.args, info))
        self.workspace_bytes = info.workspace_bytes
        self.handle = self.context.handle.value

    @staticmethod
    def _device(t):
        return (_c.CPU, 0) if t.get_device() < 0 else (_c.CUDA, t.get_device())

    @staticmethod
    def _dtype(name, t):
        if t.dtype not in _DTYPES:
            words = (
                _DTYPES
                if name in ("quantized", "scale", "swizzled_scale")
                else (torch.float32, torch.float16, torch.bfloat16)
            )
            raise FastnormError(
                f"FASTNORM_ERROR_DTYPE: {name}.dtype is {t.dtype}; "
                f"required: one of {', '.join(map(str, words))}"
            )
        return _DTYPES[t.dtype]

    def run(self):
        """Queues the work; for the addresses that are in the structs."""
        stream = None if self.device_id < 0 else _raw_stream(self.device_id)
        if self.workspace_bytes == 0:
            _library.check(self.function(self.handle, self.address, None, 0, stream))
            return
        device = "cpu" if self.device_id < 0 else torch.device("cuda", self.device_id)
        memory = torch.empty(self.workspace_bytes + 255, dtype=torch.uint8, device=device)
        aligned = (memory.data_ptr() + 255) & ~255
        _library.check(
            self.function(self.handle, self.address, aligned, self.workspace_bytes, stream)
        )


def _run(options, names, tensors):
    """One fastnorm_norm or fastnorm_norm_backward. options: pairs of a field and its value; names
    of fields and their tensors or None, x first. The dispatcher leads only dense tensors on CPU and
    CUDA devices here."""
    if tensors[0].get_device() < 0:
        _calls.follow_threads()
    key = (
        options,
        names,
        *[t if t is None else (t.dtype, t.get_device(), t.shape, t.stride()) for t in tensors],
    )
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
    """_run with compact copies of some tensors; a residual that is replaced is copied back, and so
    are gradients of parameters."""
    _check_copies(names, tensors, [None if t is None else t.data_ptr() for t in tensors])
    copies = {i: tensors[i].clone(memory_format=torch.contiguous_format) for i in positions}
    residual = _in_place(names, tensors)
    if residual in copies:
        copies[names.index("residual_out")] = copies[residual]
    _run(options, names, tuple(copies.get(i, t) for i, t in enumerate(tensors)))
    if residual in copies:
        tensors[residual].copy_(copies[residual])
    for i in copies:
        if names[i] in ("dweight", "dbias"):
            tensors[i].copy_(copies[i])


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


# --- calls of the other families, which fastnorm.abi makes ---

_ALIGNMENT = 256  # of a workspace


class _View:
    """A tensor as fastnorm.abi takes it."""

    def __init__(self, name, t, address):
        if t.dtype not in _DTYPES and t.dtype is not torch.float64:
            raise FastnormError(
                f"FASTNORM_ERROR_DTYPE: {name}.dtype is {t.dtype}; required: one of "
                f"{', '.join(map(str, _DTYPES))}"
            )
        self.name, self.tensor, self.address = name, t, address  # the tensor is kept
        self.dtype = _DTYPES.get(t.dtype, _c.Dtype(2, 64, 1))
        self.shape, self.itemsize = t.shape, t.element_size()
        self.strides = [stride * self.itemsize for stride in t.stride()]


def _aligned(memory):
    """Address and size of the aligned part of a workspace, which has room for it."""
    address = -(-memory.data_ptr() // _ALIGNMENT) * _ALIGNMENT
    return address, memory.numel() - (address - memory.data_ptr())


def _made(named, build):
    """A call of fastnorm.abi, not run. named: all tensors by their names, the one that says the
    device first; None for those that are not there. build(context, stream, view) gives the call,
    with view(name) for each of its tensors."""
    _check_places(named, named.values(), ("cpu", "cuda"))
    device_id = next(iter(named.values())).get_device()

    def view(name):
        t = named[name]
        return None if t is None else _View(name, t, t.data_ptr())

    stream = None if device_id < 0 else _raw_stream(device_id)
    return build(_context(device_id), stream, view)


def _query_call(named, build):
    return _made(named, build).query()


class _Kept:
    """A call of fastnorm.abi for tensors of any address. named, build: as for _made."""

    def __init__(self, named, build):
        call = self.call = _made(named, build)
        self.workspace_bytes = call.query().workspace_bytes
        self.structs = [(view.name, struct) for view, struct in call.tensors]
        call.tensors = []  # which would keep these alive

    def place(self, named, device_id):
        """The call at the addresses of these tensors, on the stream that is current now."""
        for name, struct in self.structs:
            struct.data = named[name].data_ptr()
        self.call.stream = None if device_id < 0 else _raw_stream(device_id)
        return self.call


def _run_call(named, build, workspace=None, key=None):
    """Queues one call. workspace: memory for it; None: new memory. key: what build() depends on
    but for its tensors, so that the thread keeps the call for others of the same forms; None:
    the call is made anew."""
    first = next(iter(named.values()))
    if key is None:
        call = _made(named, build)
        size = call.query().workspace_bytes if workspace is None else 0
    else:
        device_id = first.get_device()
        if device_id < 0:
            _calls.follow_threads()
        forms = [
            None if t is None else (name, t.dtype, t.get_device(), t.shape, t.stride())
            for name, t in named.items()
        ]
        key = key, *forms
        kept = _calls.made.get(key)
        if kept is None:
            kept = _Kept(named, build)
            _calls.add(key, kept)
        call, size = kept.place(named, device_id), kept.workspace_bytes
    if workspace is None and size > 0:
        workspace = first.new_empty(size + _ALIGNMENT, dtype=torch.uint8)
    call.run(*(_aligned(workspace) if workspace is not None and workspace.numel() else (None, 0)))


def _check_call(named, build, workspace=None, key=None):
    """What _run_call refuses, without memory. Where all sizes are numbers, the library is asked."""
    _check_places(named, named.values(), ("cpu", "cuda", "meta"))
    present = [t for t in named.values() if t is not None]
    if not all(type(size) is int for t in present for size in (*t.shape, *t.stride())):
        return
    places = {}

    def view(name):
        t = named[name]
        if t is None:
            return None
        # Stand-in addresses, 2^44 bytes apart; a tensor that is there twice has one.
        return _View(name, t, places.setdefault(id(t), len(places) + 1) << 44)

    build(_context(-1), None, view).query()


# What torch.nn.functional.rms_norm takes for None: that of the arithmetic, also for x of 16 bits.
_DEFAULT_EPS = torch.finfo(torch.float32).eps


def _options(kind, eps, weight_offset, rounding, residual_rounding="exact"):
    return (
        ("kind", kind),
        ("eps", _DEFAULT_EPS if eps is None else eps),
        ("weight_offset", weight_offset),
        ("rounding", _word(_ROUNDING, "rounding", rounding)),
        ("residual_rounding", _word(_RESIDUAL_ROUNDING, "residual_rounding", residual_rounding)),
    )


# Parameters of an operator that stores codes: how, and their dtype.
_QUANT_OPTIONS = (
    "str scheme, int block_size, ScalarType dtype, str division='reciprocal', str quant_source='unrounded', "
    "str layout='row_major', bool pow2=False, float amax_floor=0.0, float clamp=0.0, "
    "Tensor? clamp_scale=None, Tensor? global_scale=None, int rotation=0, "
    "Tensor? rotation_signs=None"
)


# --- outputs ---


def _like(x, dtype=None):
    """Empty, of x's shape, compact; dtype None: of x's dtype."""
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)


_E8M0 = torch.float8_e8m0fnu


def _scales(x, block, dtype, layout, pow2=False):
    """A name of _run, and empty scales of blocks of columns."""
    rows, count = x.shape[:-1], -(-x.shape[-1] // block)
    dtype = _E8M0 if pow2 and layout == "swizzled_128x4" else dtype
    if layout == "swizzled_128x4":
        tiles = -(-math.prod(rows) // 128) * -(-count // 4)
        return "swizzled_scale", x.new_empty((512 * tiles,), dtype=dtype)
    if layout == "column_major":
        return "scale", x.new_empty((count, *rows), dtype=dtype).movedim(0, -1)
    return "scale", x.new_empty((*rows, count), dtype=dtype)


def _quant_outputs(x, scheme, block_size, dtype, layout="row_major", pow2=False):
    """Empty codes and scales for x by the names of _run. A scheme decides the dtype of its scales,
    and whether codes are of 4 bits."""
    _word(_SCHEMES, "scheme", scheme)
    _word(_stages.LAYOUTS, "layout", layout)
    if x.dim() < 1:
        raise FastnormError("FASTNORM_ERROR_SHAPE: x has 0 dimensions; required: at least 1")
    if block_size not in ((64, 128) if scheme == "per_block" else (0,)):
        required = "64 or 128" if scheme == "per_block" else f"0, since the scheme is {scheme}"
        raise FastnormError(
            f"FASTNORM_ERROR_ARGUMENT: block_size is {block_size}; required: {required}"
        )
    fixed = _stages.BLOCKS.get(scheme)
    if fixed is not None and fixed.pairs:
        dtype = dtype if dtype == _FP4 else torch.uint8
        codes = x.new_empty((*x.shape[:-1], x.shape[-1] // 2), dtype=dtype)
    else:
        codes = x.new_empty(x.shape, dtype=dtype)
    if scheme == "per_row":
        name, scales = "scale", x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
    elif scheme == "per_block":
        name, scales = _scales(x, block_size, torch.float32, layout, pow2)
    else:
        name, scales = _scales(x, fixed.columns, getattr(torch, fixed.scale), layout)
    return {"quantized": codes, name: scales}


# --- operators ---

# PyTorch's custom_op decorator costs twice as much a call. The compiler must leave strides as they
# are.
_lib = torch.library.Library("fastnorm", "DEF")
_TAGS = (
    torch.Tag.pt2_compliant_tag,
    getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order),
)


class _Operator:
    """An operator, as its schema describes it. name: what errors call it; defined: its name for
    PyTorch."""

    def __init__(self, name, mutated, defined):
        self.name, self.mutated, self.defined = name, mutated, defined
        self.call = getattr(torch.ops.fastnorm, defined).default
        arguments = self.call._schema.arguments
        self.names = [a.name for a in arguments]
        self.required = [i for i, a in enumerate(arguments) if a.type.kind() == "TensorType"]
        self.lists = [i for i, a in enumerate(arguments) if self._is_list_of_tensors(a.type)]

    @staticmethod
    def _is_list_of_tensors(kind):
        if kind.kind() != "ListType":
            return False
        element = kind.getElementType()
        element = element.getElementType() if element.kind() == "OptionalType" else element
        return element.kind() == "TensorType"

    def present(self, arguments):
        """The arguments, none of which is None that must not be."""
        for i in self.required:
            if arguments[i] is None:
                raise FastnormError(
                    f"FASTNORM_ERROR_ARGUMENT: {self.names[i]} is None; required: a tensor"
                )
        return arguments

    def flat(self, arguments):
        """The arguments with the elements of lists of tensors among them."""
        if not self.lists:
            return arguments
        found = []
        for i, a in enumerate(arguments):
            found.extend(a) if i in self.lists else found.append(a)
        return found

    def sizes(self, arguments):
        """How many elements each list of tensors has."""
        return [len(arguments[i]) for i in self.lists]

    def nested(self, flat, sizes):
        """What flat() was made of."""
        if not self.lists:
            return flat
        count = len(flat) - sum(sizes) + len(sizes)  # PyTorch leaves out defaults at the end
        found, flat, sizes = [], iter(flat), iter(sizes)
        for i in range(count):
            is_list = i in self.lists
            found.append([next(flat) for _ in range(next(sizes))] if is_list else next(flat))
        return found

    def named(self, arguments):
        """Pairs of a name and a tensor."""
        found = []
        for i, (name, a) in enumerate(zip(self.names, arguments)):
            of = [(f"{name}[{j}]", t) for j, t in enumerate(a)] if i in self.lists else [(name, a)]
            found += [(n, t) for n, t in of if isinstance(t, Tensor)]
        return found

    def refuse_forward(self, arguments):
        """Refuses a forward derivative, which PyTorch would take for 0."""
        if any(
            isinstance(a, Tensor) and forward_ad.unpack_dual(a).tangent is not None
            for a in self.flat(arguments)
        ):
            raise RuntimeError(f"fastnorm::{self.name} has no forward derivative yet")

    def needs_gradient(self, arguments):
        return torch.is_grad_enabled() and any(
            isinstance(a, Tensor) and a.requires_grad for a in self.flat(arguments)
        )

    def written(self, arguments):
        """Pairs of a name and a tensor that is written."""
        found = []
        for i in self.mutated:
            a = arguments[i] if i < len(arguments) else None  # PyTorch leaves out defaults
            if i in self.lists:
                found += [(f"{self.names[i]}[{j}]", t) for j, t in enumerate(a)]
            elif a is not None:
                found.append((self.names[i], a))
        return found


def _as_autograd_sees(op, differentiable):
    """The operator as autograd sees it, and as inference mode sees it where tensors were made
    outside of it: autograd counts the versions of what is written. differentiable: what to call
    instead where a tensor requires grad; None if there is no backward."""

    def call(*arguments):
        if forward_ad._current_level >= 0:
            op.refuse_forward(arguments)
        if op.needs_gradient(arguments):
            if differentiable is None:
                raise RuntimeError(
                    f"fastnorm::{op.name} has no backward: call it under torch.no_grad() or "
                    "torch.inference_mode(), or with tensors that do not require grad"
                )
            return differentiable(*arguments)
        return counted(*arguments)

    def counted(*arguments):
        with torch._C._AutoDispatchBelowADInplaceOrView():
            results = op.call(*arguments)
        for _, t in op.written(arguments):
            torch.autograd.graph.increment_version(t)
        return results

    return call, counted


def _one_level():
    """Allows torch.func's transforms a node of one level, which is what they call an Autograd
    kernel for."""
    if torch._C._are_functorch_transforms_active():
        return torch._functorch.autograd_function.enable_single_level_autograd_function()
    return contextlib.nullcontext()


@contextlib.contextmanager
def _of_the_next_level():
    """What the next level of torch.func's transforms differentiates: a node's forward has both
    kinds of derivatives switched off, for its own level."""
    if not torch._C._are_functorch_transforms_active():
        yield
        return
    with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
        yield


def _node(op, backward, setup_context):
    """The operator as autograd sees it, with a backward of its own. As
    torch.library.register_autograd, but for torch.func's transforms, too: each level of them calls
    this kernel for itself. Autograd sees no lists of tensors: the elements are arguments of their
    own here, and backward() gives a gradient for each."""

    def below(keyset, arguments):
        with torch._C._AutoDispatchBelowAutograd():
            return op.call.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)

    def forward(ctx, call, *flat):
        keyset, sizes = call
        arguments = op.nested(flat, sizes)
        with _of_the_next_level():
            result = below(keyset, arguments)
        result = tuple(result) if isinstance(result, list) else result
        if setup_context is not None:
            setup_context(ctx, arguments, result)
        return result

    node = type(
        f"fastnorm_{op.name}",
        (torch.autograd.function._SingleLevelFunction,),
        {
            "forward": staticmethod(forward),
            "backward": staticmethod(lambda ctx, *gradients: (None, *backward(ctx, *gradients))),
        },
    )

    def call(keyset, *arguments):
        if forward_ad._current_level >= 0:
            op.refuse_forward(arguments)
        if op.needs_gradient(arguments):
            with _one_level():
                return node.apply((keyset, op.sizes(arguments)), *op.flat(arguments))
        return below(keyset, arguments)

    return call


def _resolving_neg(op):
    """The operator on views that stand for the negative of their memory. PyTorch's own kernel for
    them fails where an operator does not return what it writes."""

    def call(*arguments):
        for name, t in op.written(arguments):
            if t.is_neg():
                raise FastnormError(
                    f"FASTNORM_ERROR_LAYOUT: {name}.is_neg() is True; required: False, since it "
                    "is written (Tensor.resolve_neg() makes a copy)"
                )
        flat = [a.resolve_neg() if isinstance(a, Tensor) else a for a in op.flat(arguments)]
        return op.call(*op.nested(flat, op.sizes(arguments)))

    return call


def _refuse_others(op):
    """The operator on tensors that have no strides or no device of ours: an error that names
    one."""

    def refuse(*arguments):
        found = op.named(op.present(arguments))
        if not found:
            raise FastnormError(
                f"FASTNORM_ERROR_ARGUMENT: {op.names[0]} is {arguments[0]}; required: tensors"
            )
        _check_places(*zip(*found), ("cpu", "cuda", "meta"))
        kinds = ", ".join(f"{n} is a {type(a).__name__} on {a.device}" for n, a in found)
        raise FastnormError(
            f"FASTNORM_ERROR_DEVICE: {kinds}; required: plain tensors on one CPU or CUDA device"
        )

    for kind in ("CompositeExplicitAutograd", "NestedTensorCPU", "NestedTensorCUDA"):
        _lib.impl(op.defined, refuse, kind)
    torch.library.register_torch_dispatch(
        f"fastnorm::{op.defined}",
        NestedTensor,
        lambda mode, overload, types, arguments, options: refuse(*arguments),
        lib=_lib,
    )


def _operator(
    schema, mutated=(), differentiable=None, backward=None, setup_context=None, runs=None
):
    """Makes the function below it an operator on CPU and CUDA tensors. The function makes the
    outputs and gives all to its first argument, one of runs: what queues the work, or what checks
    the call for tensors without memory. By default these are _run and _check.

    An operator either has a backward of its own, or one that it borrows from the operator that
    differentiable() calls, or none. mutated: positions of what is written."""
    name = schema.partition("(")[0]

    def define(body):
        _lib.define(schema, tags=_TAGS)
        op = by_python = _Operator(name, mutated, name)
        is_compiled = _compiled.is_loaded() and name in _compiled.KERNELS
        if is_compiled:  # its file has kernels for the name, and calls this for what they leave
            _lib.define(schema.replace("(", "_by_python(", 1), tags=_TAGS)
            by_python = _Operator(name, mutated, f"{name}_by_python")

        def run(*arguments):
            return body(_run if runs is None else runs[0], *op.present(arguments))

        def fake(*arguments):
            return body(_check if runs is None else runs[1], *op.present(arguments))

        def add_python(op, with_backend, with_autograd):
            for device in ("CPU", "CUDA") if with_backend else ():
                _lib.impl(op.defined, run, device)
            torch.library.register_fake(f"fastnorm::{op.defined}", fake, lib=_lib)
            call, counted = _as_autograd_sees(op, differentiable)
            if backward is not None and with_autograd:
                node = _node(op, backward, setup_context)
                _lib.impl(op.defined, node, "Autograd", with_keyset=True)
            elif with_autograd:
                _lib.impl(op.defined, call, "Autograd")
            if mutated:
                _lib.impl(op.defined, counted, "ADInplaceOrView")
                _lib.impl(op.defined, _resolving_neg(op), "Negative")
            _refuse_others(op)

        add_python(op, not is_compiled, not (is_compiled and name in _compiled.WITH_AUTOGRAD))
        if is_compiled:
            add_python(by_python, True, True)
        return op.call

    return define


# --- the backward ---
#
# Where a tensor requires grad, an operator calls its twin ".._with_statistics", which also returns
# what the backward wants of each row: rstd, and mean for LayerNorm.


def _statistics(x):
    """Empty, one number for each row."""
    return x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)


def _gradients(x, dtype, dresidual_dtype, weight, bias, wanted):
    """Empty gradients, None where not wanted. wanted: of dx, dweight, dbias."""
    dx, dweight, dbias = wanted
    return (
        torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format) if dx else None,
        None
        if dresidual_dtype is None
        else torch.empty_like(x, dtype=dresidual_dtype, memory_format=torch.contiguous_format),
        _like(weight) if dweight else None,
        _like(bias) if dbias else None,
    )


def _some(x, found):
    """The tensors, an empty one for None."""
    return tuple(x.new_empty(0) if t is None else t for t in found)


_BACKWARD = (
    "x",
    "dy",
    "weight",
    "mean",
    "rstd",
    "dresidual_in",
    "dx",
    "dresidual",
    "dweight",
    "dbias",
)


def _no_second(context, *gradients):
    raise RuntimeError(
        "fastnorm's backward has no backward: the operators of fastnorm.torch can be "
        "differentiated once only (double backward, create_graph=True)"
    )


@_operator(
    "norm_backward(Tensor x, Tensor dy, Tensor? weight, Tensor? bias, Tensor? mean, Tensor? rstd, "
    "Tensor? dresidual_in, int kind, float? eps, float weight_offset, str rounding, ScalarType dtype, "
    "ScalarType? dresidual_dtype, bool[3] wanted) -> (Tensor, Tensor, Tensor, Tensor)",
    backward=_no_second,
)
def _norm_backward(
    run,
    x,
    dy,
    weight,
    bias,
    mean,
    rstd,
    dresidual_in,
    kind,
    eps,
    weight_offset,
    rounding,
    dtype,
    dresidual_dtype,
    wanted,
):
    """dx, dresidual, dweight and dbias, which are empty where not wanted: vmap takes no lists."""
    found = _gradients(x, dtype, dresidual_dtype, weight, bias, wanted)
    run(
        _options(kind, eps, weight_offset, rounding)[:4],
        _BACKWARD,
        (x, dy, weight, mean, rstd, dresidual_in, *found),
    )
    return _some(x, found)


@_operator(
    "norm_backward_accumulate(Tensor x, Tensor dy, Tensor? weight, Tensor? mean, Tensor? rstd, "
    "Tensor? dresidual_in, Tensor(a!)? dweight, Tensor(b!)? dbias, int kind, float? eps, float weight_offset, "
    "str rounding, ScalarType dtype, ScalarType? dresidual_dtype, bool dx) -> (Tensor, Tensor)",
    mutated=(6, 7),
)
def _norm_backward_accumulate(
    run,
    x,
    dy,
    weight,
    mean,
    rstd,
    dresidual_in,
    dweight,
    dbias,
    kind,
    eps,
    weight_offset,
    rounding,
    dtype,
    dresidual_dtype,
    dx,
):
    """Adds to dweight and dbias; gives dx and dresidual as _norm_backward."""
    found = _gradients(x, dtype, dresidual_dtype, None, None, (dx, False, False))[:2]
    flags = (_c.ACCUMULATE_DWEIGHT if dweight is not None else 0) | (
        _c.ACCUMULATE_DBIAS if dbias is not None else 0
    )
    run(
        _options(kind, eps, weight_offset, rounding)[:4] + (("flags", flags),),
        _BACKWARD,
        (x, dy, weight, mean, rstd, dresidual_in, *found, dweight, dbias),
    )
    return _some(x, found)


def _zeros(like):
    return None if like is None else torch.zeros_like(like, memory_format=torch.contiguous_format)


def _differentiate(context, dy, dtotal=None):
    """Gradients of (x, residual, weight, bias) for those of y and of the sum, each of which may be
    None."""
    x, weight, bias, mean, rstd = context.saved_tensors
    kind, eps, weight_offset, rounding, dtype, residual_dtype = context.options
    wants_x, wants_residual, wants_weight, wants_bias = context.wanted
    dweight_into, dbias_into = context.into
    if dy is None:  # then nothing of the norm's is left
        if dtotal is None:
            return None, None, None, None
        return (
            dtotal.to(dtype) if wants_x else None,
            dtotal if wants_residual else None,
            _zeros(weight) if wants_weight and dweight_into is None else None,
            _zeros(bias) if wants_bias and dbias_into is None else None,
        )
    # One gradient serves x and the residual where their dtypes agree.
    own = residual_dtype if wants_residual and residual_dtype != dtype else None
    wanted = (
        wants_x or wants_residual,
        wants_weight and dweight_into is None,
        wants_bias and dbias_into is None,
    )
    into = (dweight_into if wants_weight else None, dbias_into if wants_bias else None)
    dx = dresidual = dweight = dbias = None
    if into != (None, None):
        dx, dresidual = _norm_backward_accumulate(
            x,
            dy,
            weight,
            mean,
            rstd,
            dtotal,
            *into,
            kind,
            eps,
            weight_offset,
            rounding,
            dtype,
            own,
            wanted[0],
        )
        if wanted[1] or wanted[2]:
            _, _, dweight, dbias = _norm_backward(
                x,
                dy,
                weight,
                bias,
                mean,
                rstd,
                None,
                kind,
                eps,
                weight_offset,
                rounding,
                dtype,
                None,
                (False, *wanted[1:]),
            )
    elif any(wanted):
        dx, dresidual, dweight, dbias = _norm_backward(
            x,
            dy,
            weight,
            bias,
            mean,
            rstd,
            dtotal,
            kind,
            eps,
            weight_offset,
            rounding,
            dtype,
            own,
            wanted,
        )
    return (
        dx if wants_x else None,
        (dx if own is None else dresidual) if wants_residual else None,
        dweight if wanted[1] else None,
        dbias if wanted[2] else None,
    )


def _save(context, x, weight, bias, mean, rstd, options, wanted, into):
    """What _differentiate needs. Gradients that are None stay None: nothing is added for them."""
    context.set_materialize_grads(False)
    context.save_for_backward(x, weight, bias, mean, rstd)
    context.options, context.wanted, context.into = options, wanted, into


def _refuse_statistics(**gradients):
    for name, gradient in gradients.items():
        if gradient is not None:
            raise RuntimeError(
                f"{name} has a gradient; required: none, since the backward of the statistics is not there"
            )


def _rms_norm_context(ctx, inputs, output):
    x, weight, eps, weight_offset, rounding, _, into = inputs
    needs = ctx.needs_input_grad[1:]
    _save(
        ctx,
        x,
        weight,
        None,
        None,
        output[1],
        (_c.RMS, eps, weight_offset, rounding, x.dtype, None),
        (needs[0], False, needs[1], False),
        (into, None),
    )


def _rms_norm_gradients(context, dy, drstd):
    _refuse_statistics(rstd=drstd)
    dx, _, dweight, _ = _differentiate(context, dy)
    return dx, dweight, None, None, None, None, None


def _layer_norm_context(ctx, inputs, output):
    x, weight, bias, eps, rounding, _, weight_into, bias_into = inputs
    needs = ctx.needs_input_grad[1:]
    _save(
        ctx,
        x,
        weight,
        bias,
        output[1],
        output[2],
        (_c.LAYER, eps, 0.0, rounding, x.dtype, None),
        (needs[0], False, needs[1], needs[2]),
        (weight_into, bias_into),
    )


def _layer_norm_gradients(context, dy, dmean, drstd):
    _refuse_statistics(mean=dmean, rstd=drstd)
    dx, _, dweight, dbias = _differentiate(context, dy)
    return dx, dweight, dbias, None, None, None, None, None


def _add_rms_norm_context(ctx, inputs, output):
    x, residual, weight, eps, weight_offset, rounding, _, _, into = inputs
    needs = ctx.needs_input_grad[1:]
    _save(
        ctx,
        output[1],
        weight,
        None,
        None,
        output[2],
        (_c.RMS, eps, weight_offset, rounding, x.dtype, residual.dtype),
        (needs[0], needs[1], needs[2], False),
        (into, None),
    )


def _add_rms_norm_gradients(context, dy, dtotal, drstd):
    _refuse_statistics(rstd=drstd)
    dx, dresidual, dweight, _ = _differentiate(context, dy, dtotal)
    return dx, dresidual, dweight, None, None, None, None, None, None


@_operator(
    "rms_norm_with_statistics(Tensor x, Tensor? weight, float? eps, float weight_offset, str rounding, "
    "ScalarType? y_dtype, Tensor? main_grad) -> (Tensor, Tensor)",
    backward=_rms_norm_gradients,
    setup_context=_rms_norm_context,
)
def _rms_norm_with_statistics(run, x, weight, eps, weight_offset, rounding, y_dtype, main_grad):
    """y and rstd. main_grad, where it is there, gets the weight's gradient added in the
    backward."""
    _check_main_grad("main_grad", main_grad, "weight", weight)
    y, rstd = _like(x, y_dtype), _statistics(x)
    run(
        _options(_c.RMS, eps, weight_offset, rounding),
        ("x", "weight", "y", "rstd"),
        (x, weight, y, rstd),
    )
    return y, rstd


@_operator(
    "layer_norm_with_statistics(Tensor x, Tensor? weight, Tensor? bias, float? eps, str rounding, "
    "ScalarType? y_dtype, Tensor? main_grad, Tensor? bias_main_grad) -> (Tensor, Tensor, Tensor)",
    backward=_layer_norm_gradients,
    setup_context=_layer_norm_context,
)
def _layer_norm_with_statistics(
    run, x, weight, bias, eps, rounding, y_dtype, main_grad, bias_main_grad
):
    """y, mean and rstd."""
    _check_main_grad("main_grad", main_grad, "weight", weight)
    _check_main_grad("bias_main_grad", bias_main_grad, "bias", bias)
    y, mean, rstd = _like(x, y_dtype), _statistics(x), _statistics(x)
    run(
        _options(_c.LAYER, eps, 0.0, rounding),
        ("x", "weight", "bias", "y", "mean", "rstd"),
        (x, weight, bias, y, mean, rstd),
    )
    return y, mean, rstd


@_operator(
    "add_rms_norm_with_statistics(Tensor x, Tensor residual, Tensor? weight, float? eps, float weight_offset, "
    "str rounding, str residual_rounding, ScalarType? y_dtype, Tensor? main_grad) -> (Tensor, Tensor, Tensor)",
    backward=_add_rms_norm_gradients,
    setup_context=_add_rms_norm_context,
)
def _add_rms_norm_with_statistics(
    run, x, residual, weight, eps, weight_offset, rounding, residual_rounding, y_dtype, main_grad
):
    """y, the sum and rstd."""
    _check_main_grad("main_grad", main_grad, "weight", weight)
    y, residual_out, rstd = _like(x, y_dtype), _like(residual), _statistics(x)
    run(
        _options(_c.RMS, eps, weight_offset, rounding, residual_rounding),
        (*_ADD, "rstd"),
        (x, residual, weight, y, residual_out, rstd),
    )
    return y, residual_out, rstd


def _check_main_grad(name, main_grad, parameter_name, parameter):
    """Refuses a main_grad that the backward could not add to."""
    if main_grad is None:
        return
    if parameter is None:
        raise FastnormError(
            f"FASTNORM_ERROR_ARGUMENT: {name} is a tensor and {parameter_name} is None; "
            f"required: both, or no {name}"
        )
    if main_grad.dtype != torch.float32:
        raise FastnormError(
            f"FASTNORM_ERROR_DTYPE: {name}.dtype is {main_grad.dtype}; required: torch.float32"
        )
    if main_grad.shape != parameter.shape or main_grad.device != parameter.device:
        raise FastnormError(
            f"FASTNORM_ERROR_SHAPE: {name} is {list(main_grad.shape)} on {main_grad.device}; required: "
            f"{list(parameter.shape)} on {parameter.device}, as {parameter_name}"
        )


# --- the norms ---


def _differentiable_rms_norm(x, weight, eps, weight_offset, rounding, y_dtype=None):
    return _rms_norm_with_statistics(x, weight, eps, weight_offset, rounding, y_dtype, None)[0]


@_operator(
    "rms_norm(Tensor x, Tensor? weight, float? eps, float weight_offset, str rounding, "
    "ScalarType? y_dtype=None) -> Tensor",
    differentiable=_differentiable_rms_norm,
)
def _rms_norm(run, x, weight, eps, weight_offset, rounding, y_dtype=None):
    y = _like(x, y_dtype)
    run(_options(_c.RMS, eps, weight_offset, rounding), ("x", "weight", "y"), (x, weight, y))
    return y


def _differentiable_layer_norm(x, weight, bias, eps, rounding, y_dtype=None):
    return _layer_norm_with_statistics(x, weight, bias, eps, rounding, y_dtype, None, None)[0]


@_operator(
    "layer_norm(Tensor x, Tensor? weight, Tensor? bias, float? eps, str rounding, "
    "ScalarType? y_dtype=None) -> Tensor",
    differentiable=_differentiable_layer_norm,
)
def _layer_norm(run, x, weight, bias, eps, rounding, y_dtype=None):
    y = _like(x, y_dtype)
    run(_options(_c.LAYER, eps, 0.0, rounding), ("x", "weight", "bias", "y"), (x, weight, bias, y))
    return y


_ADD = ("x", "residual", "weight", "y", "residual_out")


def _differentiable_add(
    x, residual, weight, eps, weight_offset, rounding, residual_rounding, y_dtype=None
):
    return _add_rms_norm_with_statistics(
        x, residual, weight, eps, weight_offset, rounding, residual_rounding, y_dtype, None
    )[:2]


@_operator(
    "add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float? eps, float weight_offset, "
    "str rounding, str residual_rounding, ScalarType? y_dtype=None) -> (Tensor, Tensor)",
    differentiable=_differentiable_add,
)
def _add_rms_norm(
    run, x, residual, weight, eps, weight_offset, rounding, residual_rounding, y_dtype=None
):
    y, residual_out = _like(x, y_dtype), _like(residual)
    run(
        _options(_c.RMS, eps, weight_offset, rounding, residual_rounding),
        _ADD,
        (x, residual, weight, y, residual_out),
    )
    return y, residual_out


def _differentiable_fused_add(x, residual, *options):
    """The backward of this layer needs its sum, and the next layer replaces the residual: so the
    sum has memory of its own and is copied. A compiler leaves the copy out where residual is a
    value of its graph."""
    y, total = _differentiable_add(x, residual, *options)
    residual.copy_(total)
    return y


@_operator(
    "fused_add_rms_norm(Tensor x, Tensor(a!) residual, Tensor? weight, float? eps, float weight_offset, "
    "str rounding, str residual_rounding, ScalarType? y_dtype=None) -> Tensor",
    mutated=(1,),
    differentiable=_differentiable_fused_add,
)
def _fused_add_rms_norm(
    run, x, residual, weight, eps, weight_offset, rounding, residual_rounding, y_dtype=None
):
    y = _like(x, y_dtype)
    run(
        _options(_c.RMS, eps, weight_offset, rounding, residual_rounding),
        _ADD,
        (x, residual, weight, y, residual),
    )
    return y


def _run_quantised(
    run,
    options,
    tensors,
    scheme,
    block_size,
    dtype,
    division="reciprocal",
    quant_source="unrounded",
    layout="row_major",
    pow2=False,
    amax_floor=0.0,
    clamp=0.0,
    clamp_scale=None,
    global_scale=None,
    rotation=0,
    rotation_signs=None,
):
    """The codes and scales. The arguments after tensors are those of _QUANT_OPTIONS; PyTorch leaves
    out defaults at the end."""
    options += (
        ("quant_scheme", _word(_SCHEMES, "scheme", scheme)),
        ("quant_block_size", block_size),
        ("quant_division", _word(_stages.DIVISIONS, "division", division)),
        ("quant_source", _word(_stages.SOURCES, "quant_source", quant_source)),
        ("scale_layout", _word(_stages.LAYOUTS, "layout", layout)),
        ("scale_pow2", int(pow2)),
        ("amax_floor", amax_floor),
        ("clamp", clamp),
        ("rotation", rotation),
    )
    found = _quant_outputs(tensors["x"], scheme, block_size, dtype, layout, pow2)
    read = {
        "clamp_scale": clamp_scale,
        "global_scale": global_scale,
        "rotation_signs": rotation_signs,
    }
    tensors = {**tensors, **read, **found}
    run(options, tuple(tensors), tuple(tensors.values()))
    return tuple(found.values())


@_operator(
    "rms_norm_quant(Tensor x, Tensor? weight, float? eps, float weight_offset, str rounding, "
    f"{_QUANT_OPTIONS}) -> (Tensor, Tensor)"
)
def _rms_norm_quant(run, x, weight, eps, weight_offset, rounding, *quant):
    options = _options(_c.RMS, eps, weight_offset, rounding)
    return _run_quantised(run, options, {"x": x, "weight": weight}, *quant)


@_operator(
    "fused_add_rms_norm_quant(Tensor x, Tensor(a!) residual, Tensor? weight, float? eps, "
    f"float weight_offset, str rounding, str residual_rounding, {_QUANT_OPTIONS}) "
    "-> (Tensor, Tensor)",
    mutated=(1,),
)
def _fused_add_rms_norm_quant(
    run, x, residual, weight, eps, weight_offset, rounding, residual_rounding, *quant
):
    options = _options(_c.RMS, eps, weight_offset, rounding, residual_rounding)
    tensors = {"x": x, "residual": residual, "weight": weight, "residual_out": residual}
    return _run_quantised(run, options, tensors, *quant)


# --- the functions to call ---

_eager = _compiled.define_eager(_lib)  # the operators of _C.so
_wants_gradient, _eager_number = _compiled.wants_gradient, _compiled.eager_number
_norm_node, _add_norm_node = _compiled.Norm.apply, _compiled.AddNorm.apply  # for gradients
_eager_numbers = _compiled.eager_numbers  # of the arguments of _eager_number()


def rms_norm(
    x: Tensor,
    weight: Optional[Tensor] = None,
    eps: Optional[float] = 1e-6,
    *,
    weight_offset: float = 0.0,
    rounding: str = "once",
    y_dtype: Optional[torch.dtype] = None,
    main_grad: Optional[Tensor] = None,
) -> Tensor:
    """RMSNorm of each row: y = x * rsqrt(mean(x^2) + eps) * (weight + weight_offset).

    Gradients are those of fastnorm_norm_backward and have the dtypes of their inputs.

    Args:
        x: The rows, [.., n], in float32, float16 or bfloat16. A row is the last dimension.
        weight: [.., n], broadcast against x, in float32, float16 or bfloat16. None stands for ones.
        eps: Added to the mean of squares, or to the variance, before the root. None is the epsilon
            of float32.
        weight_offset: Added to the weight in float32: 0, or 1 for Gemma.
        rounding: Where the row is rounded to x's dtype on its way: "once" when y is stored,
            "normalized" also before the weight, "every_step" after each operation, "once_rw" once
            with rstd * weight multiplied first.
        y_dtype: The dtype of y: None for that of x, or float32.
        main_grad: float32, of weight's shape. The backward adds the weight's gradient to it in the
            same kernel, and leaves weight.grad as it is.

    Returns:
        y, of x's shape.

    Raises:
        FastnormError: The library refuses a shape, a dtype, a layout or a device; the text has the
            status and names the argument.
        ValueError: A word, such as that of rounding, is unknown.
    """
    if main_grad is not None:
        return _rms_norm_with_statistics(
            x, weight, eps, weight_offset, rounding, y_dtype, main_grad
        )[0]
    if _eager is not None and (wanted := _wants_gradient(x, weight)) is not None:
        options = (_c.RMS, eps, weight_offset, rounding, "exact", y_dtype)
        number = _eager_numbers.get(options) or _eager_number(*options)
        y = (
            _norm_node(x, weight, None, number, _c.RMS)
            if wanted
            else _eager.norm(x, weight, None, number)
        )
        if y is not None:
            return y
    return _rms_norm(x, weight, eps, weight_offset, rounding, y_dtype)


def layer_norm(
    x: Tensor,
    weight: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    eps: Optional[float] = 1e-5,
    *,
    rounding: str = "once",
    y_dtype: Optional[torch.dtype] = None,
    main_grad: Optional[Tensor] = None,
    bias_main_grad: Optional[Tensor] = None,
) -> Tensor:
    """LayerNorm of each row: y = (x - mean) / sqrt(var + eps) * weight + bias.

    Gradients are those of fastnorm_norm_backward and have the dtypes of their inputs.

    Args:
        x: The rows, [.., n], in float32, float16 or bfloat16. A row is the last dimension.
        weight: [.., n], broadcast against x, in float32, float16 or bfloat16. None stands for ones.
        bias: [.., n], broadcast against x, in float32, float16 or bfloat16. None stands for zeros.
        eps: Added to the mean of squares, or to the variance, before the root. None is the epsilon
            of float32.
        rounding: Where the row is rounded to x's dtype on its way: "once" when y is stored,
            "normalized" also before the weight, "every_step" after each operation, "once_rw" once
            with rstd * weight multiplied first.
        y_dtype: The dtype of y: None for that of x, or float32.
        main_grad: float32, of weight's shape. The backward adds the weight's gradient to it in the
            same kernel, and leaves weight.grad as it is.
        bias_main_grad: The same for the bias.

    Returns:
        y, of x's shape.

    Raises:
        FastnormError: The library refuses a shape, a dtype, a layout or a device; the text has the
            status and names the argument.
        ValueError: A word, such as that of rounding, is unknown.
    """
    if main_grad is not None or bias_main_grad is not None:
        return _layer_norm_with_statistics(
            x, weight, bias, eps, rounding, y_dtype, main_grad, bias_main_grad
        )[0]
    if _eager is not None and (wanted := _wants_gradient(x, weight, bias)) is not None:
        options = (_c.LAYER, eps, 0.0, rounding, "exact", y_dtype)
        number = _eager_numbers.get(options) or _eager_number(*options)
        y = (
            _norm_node(x, weight, bias, number, _c.LAYER)
            if wanted
            else _eager.norm(x, weight, bias, number)
        )
        if y is not None:
            return y
    return _layer_norm(x, weight, bias, eps, rounding, y_dtype)


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Optional[Tensor] = None,
    eps: Optional[float] = 1e-6,
    *,
    weight_offset: float = 0.0,
    rounding: str = "once",
    residual_rounding: str = "exact",
    y_dtype: Optional[torch.dtype] = None,
    main_grad: Optional[Tensor] = None,
) -> Tuple[Tensor, Tensor]:
    """RMSNorm of the sum x + residual, and the sum, both as new tensors.

    Gradients are those of fastnorm_norm_backward and have the dtypes of their inputs.

    Args:
        x: The rows, [.., n], in float32, float16 or bfloat16. A row is the last dimension.
        residual: What is added to x before the norm, of x's shape, in float32, float16 or bfloat16.
        weight: [.., n], broadcast against x, in float32, float16 or bfloat16. None stands for ones.
        eps: Added to the mean of squares, or to the variance, before the root. None is the epsilon
            of float32.
        weight_offset: Added to the weight in float32: 0, or 1 for Gemma.
        rounding: Where the row is rounded to x's dtype on its way: "once" when y is stored,
            "normalized" also before the weight, "every_step" after each operation, "once_rw" once
            with rstd * weight multiplied first.
        residual_rounding: Which value of the sum is normalised: "exact" the float32 sum,
            "before_apply" the rounded one after statistics of the exact one, "before_statistics"
            the rounded one for both.
        y_dtype: The dtype of y: None for that of x, or float32.
        main_grad: float32, of weight's shape. The backward adds the weight's gradient to it in the
            same kernel, and leaves weight.grad as it is.

    Returns:
        (y, sum), where the sum has residual's dtype.

    Raises:
        FastnormError: The library refuses a shape, a dtype, a layout or a device; the text has the
            status and names the argument.
        ValueError: A word, such as that of rounding, is unknown.
    """
    if main_grad is not None:
        return _add_rms_norm_with_statistics(
            x, residual, weight, eps, weight_offset, rounding, residual_rounding, y_dtype, main_grad
        )[:2]
    if _eager is not None and (wanted := _wants_gradient(x, residual, weight)) is not None:
        options = (_c.RMS, eps, weight_offset, rounding, residual_rounding, y_dtype)
        number = _eager_numbers.get(options) or _eager_number(*options)
        y, total = (_add_norm_node if wanted else _eager.add_norm)(x, residual, weight, number)
        if y is not None:
            return y, total
    return _add_rms_norm(
        x, residual, weight, eps, weight_offset, rounding, residual_rounding, y_dtype
    )


def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Optional[Tensor] = None,
    eps: Optional[float] = 1e-6,
    *,
    weight_offset: float = 0.0,
    rounding: str = "once",
    residual_rounding: str = "exact",
    y_dtype: Optional[torch.dtype] = None,
) -> Tensor:
    """RMSNorm of the sum x + residual, where the sum replaces residual in its own memory.

    Where a tensor requires grad the sum is copied there, since the backward needs it after the next
    layer has replaced the residual again.

    Args:
        x: The rows, [.., n], in float32, float16 or bfloat16. A row is the last dimension.
        residual: What is added to x, of x's shape. The sum is written to it. It may not be a leaf
            that requires grad.
        weight: [.., n], broadcast against x, in float32, float16 or bfloat16. None stands for ones.
        eps: Added to the mean of squares, or to the variance, before the root. None is the epsilon
            of float32.
        weight_offset: Added to the weight in float32: 0, or 1 for Gemma.
        rounding: Where the row is rounded to x's dtype on its way: "once" when y is stored,
            "normalized" also before the weight, "every_step" after each operation, "once_rw" once
            with rstd * weight multiplied first.
        residual_rounding: Which value of the sum is normalised: "exact" the float32 sum,
            "before_apply" the rounded one after statistics of the exact one, "before_statistics"
            the rounded one for both.
        y_dtype: The dtype of y: None for that of x, or float32.

    Returns:
        y, of x's shape.

    Raises:
        FastnormError: The library refuses a shape, a dtype, a layout or a device; the text has the
            status and names the argument.
        ValueError: A word, such as that of rounding, is unknown.
    """
    if _eager is not None and _wants_gradient(x, residual, weight) is False:
        options = (_c.RMS, eps, weight_offset, rounding, residual_rounding, y_dtype)
        number = _eager_numbers.get(options) or _eager_number(*options)
        y = _eager.fused_add_norm(x, residual, weight, number)
        if y is not None:
            if not residual.is_inference():
                torch.autograd.graph.increment_version(residual)
            return y
    return _fused_add_rms_norm(
        x, residual, weight, eps, weight_offset, rounding, residual_rounding, y_dtype
    )


def rms_norm_quant(
    x: Tensor,
    weight: Optional[Tensor] = None,
    eps: Optional[float] = 1e-6,
    *,
    scheme: str,
    block_size: int = 0,
    dtype: torch.dtype = torch.float8_e4m3fn,
    division: str = "reciprocal",
    quant_source: str = "unrounded",
    layout: str = "row_major",
    pow2: bool = False,
    amax_floor: float = 0.0,
    clamp: float = 0.0,
    clamp_scale: Optional[Tensor] = None,
    global_scale: Optional[Tensor] = None,
    rotation: int = 0,
    rotation_signs: Optional[Tensor] = None,
    weight_offset: float = 0.0,
    rounding: str = "once",
) -> Tuple[Tensor, Tensor]:
    """RMSNorm of each row as codes with their scales, in one kernel.

    The formats are those of norm.h: OCP's float8 and microscaling formats, and NVIDIA's NVFP4.
    There is no gradient: while grad is enabled, a tensor that requires grad is an error.

    Args:
        x: The rows, [.., n], in float32, float16 or bfloat16. A row is the last dimension.
        weight: [.., n], broadcast against x, in float32, float16 or bfloat16. None stands for ones.
        eps: Added to the mean of squares, or to the variance, before the root. None is the epsilon
            of float32.
        scheme: How codes are scaled, such as "per_row": one of fastnorm.stages.SCHEMES but
            "per_tensor". docs/quantisation.md describes them.
        block_size: Elements that share a scale with "per_block": 64 or 128. Otherwise 0.
        dtype: The dtype of codes: float8_e4m3fn, float8_e5m2 or int8 for "per_row" and "per_block",
            float8 for "mxfp8". The 4-bit schemes have uint8, or float4_e2m1fn_x2 where dtype says
            so.
        division: "reciprocal" makes codes of y * (1 / scale), "divide" of y / scale, as vLLM does.
        quant_source: "unrounded" quantises the float32 result, "rounded" the result in x's dtype,
            as an unfused chain does.
        layout: The order of the scales: "row_major", "column_major" with the scales of one column
            of blocks together, or "swizzled_128x4", one dimension of one-byte scales in the order
            of norm.h.
        pow2: Whether scales of "per_row" and "per_block" are powers of two.
        amax_floor: The least magnitude that a scale of "per_row" or "per_block" is made from. 0
            stands for 1e-10.
        clamp: Results are clamped to [-clamp, clamp] before they become codes. 0 clamps nothing.
        clamp_scale: [1] in float32: the clamp as a value on the device.
        global_scale: [1] in float32: the second scale of "nvfp4". None stands for 1.
        rotation: Columns of a block that a Hadamard matrix multiplies before its scale is found:
            16, 32, 64 or 128. 0 rotates nothing.
        rotation_signs: [n] or [rotation] in float32, of 1 and -1, which multiply the columns before
            the rotation. None stands for ones.
        weight_offset: Added to the weight in float32: 0, or 1 for Gemma.
        rounding: Where the row is rounded to x's dtype on its way: "once" when y is stored,
            "normalized" also before the weight, "every_step" after each operation, "once_rw" once
            with rstd * weight multiplied first.

    Returns:
        (codes, scales). Scales are x.shape[:-1] + [1] for "per_row", otherwise x.shape[:-1] +
            [scales of a row]. Codes of 4 bits are two to a byte.

    Raises:
        FastnormError: The library refuses a shape, a dtype, a layout or a device; the text has the
            status and names the argument.
        ValueError: A word, such as that of rounding, is unknown.
    """
    return _rms_norm_quant(
        x,
        weight,
        eps,
        weight_offset,
        rounding,
        scheme,
        block_size,
        dtype,
        division,
        quant_source,
        layout,
        pow2,
        amax_floor,
        clamp,
        clamp_scale,
        global_scale,
        rotation,
        rotation_signs,
    )


def fused_add_rms_norm_quant(
    x: Tensor,
    residual: Tensor,
    weight: Optional[Tensor] = None,
    eps: Optional[float] = 1e-6,
    *,
    scheme: str,
    block_size: int = 0,
    dtype: torch.dtype = torch.float8_e4m3fn,
    division: str = "reciprocal",
    quant_source: str = "unrounded",
    layout: str = "row_major",
    pow2: bool = False,
    amax_floor: float = 0.0,
    clamp: float = 0.0,
    clamp_scale: Optional[Tensor] = None,
    global_scale: Optional[Tensor] = None,
    rotation: int = 0,
    rotation_signs: Optional[Tensor] = None,
    weight_offset: float = 0.0,
    rounding: str = "once",
    residual_rounding: str = "exact",
) -> Tuple[Tensor, Tensor]:
    """As rms_norm_quant of the sum x + residual, where the sum replaces residual in its own memory.

    There is no gradient: while grad is enabled, a tensor that requires grad is an error.

    Args:
        x: The rows, [.., n], in float32, float16 or bfloat16. A row is the last dimension.
        residual: What is added to x, of x's shape. The sum is written to it.
        weight: [.., n], broadcast against x, in float32, float16 or bfloat16. None stands for ones.
        eps: Added to the mean of squares, or to the variance, before the root. None is the epsilon
            of float32.
        scheme: How codes are scaled, such as "per_row": one of fastnorm.stages.SCHEMES but
            "per_tensor". docs/quantisation.md describes them.
        block_size: Elements that share a scale with "per_block": 64 or 128. Otherwise 0.
        dtype: The dtype of codes: float8_e4m3fn, float8_e5m2 or int8 for "per_row" and "per_block",
            float8 for "mxfp8". The 4-bit schemes have uint8, or float4_e2m1fn_x2 where dtype says
            so.
        division: "reciprocal" makes codes of y * (1 / scale), "divide" of y / scale, as vLLM does.
        quant_source: "unrounded" quantises the float32 result, "rounded" the result in x's dtype,
            as an unfused chain does.
        layout: The order of the scales: "row_major", "column_major" with the scales of one column
            of blocks together, or "swizzled_128x4", one dimension of one-byte scales in the order
            of norm.h.
        pow2: Whether scales of "per_row" and "per_block" are powers of two.
        amax_floor: The least magnitude that a scale of "per_row" or "per_block" is made from. 0
            stands for 1e-10.
        clamp: Results are clamped to [-clamp, clamp] before they become codes. 0 clamps nothing.
        clamp_scale: [1] in float32: the clamp as a value on the device.
        global_scale: [1] in float32: the second scale of "nvfp4". None stands for 1.
        rotation: Columns of a block that a Hadamard matrix multiplies before its scale is found:
            16, 32, 64 or 128. 0 rotates nothing.
        rotation_signs: [n] or [rotation] in float32, of 1 and -1, which multiply the columns before
            the rotation. None stands for ones.
        weight_offset: Added to the weight in float32: 0, or 1 for Gemma.
        rounding: Where the row is rounded to x's dtype on its way: "once" when y is stored,
            "normalized" also before the weight, "every_step" after each operation, "once_rw" once
            with rstd * weight multiplied first.
        residual_rounding: Which value of the sum is normalised: "exact" the float32 sum,
            "before_apply" the rounded one after statistics of the exact one, "before_statistics"
            the rounded one for both.

    Returns:
        (codes, scales), as those of rms_norm_quant.

    Raises:
        FastnormError: The library refuses a shape, a dtype, a layout or a device; the text has the
            status and names the argument.
        ValueError: A word, such as that of rounding, is unknown.
    """
    return _fused_add_rms_norm_quant(
        x,
        residual,
        weight,
        eps,
        weight_offset,
        rounding,
        residual_rounding,
        scheme,
        block_size,
        dtype,
        division,
        quant_source,
        layout,
        pow2,
        amax_floor,
        clamp,
        clamp_scale,
        global_scale,
        rotation,
        rotation_signs,
    )


# --- modules ---


def _as_rows(name, x, normalized_shape):
    """x with the dimensions that are normalised as one."""
    count = len(normalized_shape)
    if not torch.jit.is_tracing() and tuple(x.shape[-count:]) != normalized_shape:
        raise FastnormError(
            f"FASTNORM_ERROR_SHAPE: {name}.shape is {list(x.shape)}; required: [.., "
            f"{', '.join(map(str, normalized_shape))}]"
        )
    return x if count == 1 else x.flatten(-count)


def _as_row(parameter):
    """A parameter and its main_grad as rows."""
    if parameter is None:
        return None, None
    main_grad = getattr(parameter, "main_grad", None)
    if parameter.dim() == 1:
        return parameter, main_grad
    return parameter.flatten(), None if main_grad is None else main_grad.view(-1)


def _rms_module(x, residual, weight, normalized_shape, eps, weight_offset, rounding, y_dtype):
    """What the module RMSNorm computes."""
    row, main_grad = _as_row(weight)
    options = {
        "weight_offset": weight_offset,
        "rounding": rounding,
        "y_dtype": y_dtype,
        "main_grad": main_grad,
    }
    rows = _as_rows("x", x, normalized_shape)
    if residual is None:
        return rms_norm(rows, row, eps, **options).view(x.shape)
    y, total = add_rms_norm(
        rows, _as_rows("residual", residual, normalized_shape), row, eps, **options
    )
    return y.view(x.shape), total.view(residual.shape)


def _layer_module(x, weight, bias, normalized_shape, eps, rounding, y_dtype):
    """What the module LayerNorm computes."""
    (weight, main_grad), (bias, bias_main_grad) = _as_row(weight), _as_row(bias)
    return layer_norm(
        _as_rows("x", x, normalized_shape),
        weight,
        bias,
        eps,
        rounding=rounding,
        y_dtype=y_dtype,
        main_grad=main_grad,
        bias_main_grad=bias_main_grad,
    ).view(x.shape)


class _Norm(torch.nn.Module):
    """What RMSNorm and LayerNorm share. The parameters have the names and shapes of those of
    torch.nn, so that a state_dict fits both. A parameter's main_grad, if it has that attribute,
    gets its gradient added.

    In a graph of torch.fx a module is one node, as those of torch.nn are. TorchScript compiles the
    calls of the operators; it does not see main_grad, so that gradients go to .grad."""

    def __init__(self, normalized_shape, eps, elementwise_affine, bias, device, dtype, y_dtype):
        super().__init__()
        self.normalized_shape = (
            (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        )
        if not self.normalized_shape:
            raise ValueError("normalized_shape is (); required: at least one extent")
        self.eps = None if eps is None else float(eps)  # TorchScript tells 0 from 0.0
        self.elementwise_affine, self.y_dtype = elementwise_affine, y_dtype
        for name, there in (("weight", elementwise_affine), ("bias", elementwise_affine and bias)):
            self.register_parameter(
                name,
                torch.nn.Parameter(torch.empty(self.normalized_shape, device=device, dtype=dtype))
                if there
                else None,
            )
        self.reset_parameters()

    def reset_parameters(self):
        if self.weight is not None:
            torch.nn.init.ones_(self.weight)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def _computed(self, function, *inputs):
        """The function of the inputs and of the attributes that _attributes names, or a node for
        it: torch.fx takes a module for one node by itself only if it is one of torch.nn. Where this
        module is what is traced, the node is that of the function."""
        x = inputs[0]
        if isinstance(x, torch.fx.Proxy) and x.tracer.root is not self:
            path = x.tracer.path_of_module(self)
            present = tuple(t for t in inputs if t is not None)
            return x.tracer.create_proxy("call_module", path, present, {})
        inputs += tuple(getattr(self, name) for name in self._attributes)
        if isinstance(x, torch.fx.Proxy):
            return x.tracer.create_proxy("call_function", function, inputs, {})
        return function(*inputs)

    def _scripted_rows(self, name: str, x: Tensor) -> Tensor:
        """_as_rows in TorchScript."""
        shape = list(self.normalized_shape)
        if list(x.shape[-len(shape) :]) != shape:
            raise RuntimeError(
                f"FASTNORM_ERROR_SHAPE: {name}.shape is {list(x.shape)}; required: {shape} at its "
                "end"
            )
        return x if len(shape) == 1 else x.flatten(-len(shape))

    def _scripted_row(self, parameter: Optional[Tensor]) -> Optional[Tensor]:
        return None if parameter is None else parameter.flatten()

    def extra_repr(self):
        found = (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )
        return found if self.y_dtype is None else f"{found}, y_dtype={self.y_dtype}"


class RMSNorm(_Norm):
    """torch.nn.RMSNorm by libfastnorm.

    Parameters and state are those of torch.nn.RMSNorm. A parameter's attribute main_grad gets its
    gradient added.

    Args:
        normalized_shape: The extents of the trailing dimensions that are normalised, or the one
            extent.
        eps: Added to the mean of squares, or to the variance, before the root. None is the epsilon
            of float32.
        elementwise_affine: Whether there is a weight, and for LayerNorm a bias.
        device: Where the parameters are made.
        dtype: The dtype of the parameters.
        weight_offset: Added to the weight in float32: 0, or 1 for Gemma.
        rounding: Where the row is rounded to x's dtype on its way: "once" when y is stored,
            "normalized" also before the weight, "every_step" after each operation, "once_rw" once
            with rstd * weight multiplied first.
        y_dtype: The dtype of y: None for that of x, or float32.

    Raises:
        ValueError: normalized_shape is empty.
    """

    _attributes = ("weight", "normalized_shape", "eps", "weight_offset", "rounding", "y_dtype")

    def __init__(
        self,
        normalized_shape,
        eps=None,
        elementwise_affine=True,
        device=None,
        dtype=None,
        *,
        weight_offset=0.0,
        rounding="once",
        y_dtype=None,
    ):
        super().__init__(normalized_shape, eps, elementwise_affine, False, device, dtype, y_dtype)
        self.weight_offset, self.rounding = float(weight_offset), rounding

    def forward(self, x: Tensor, residual: Optional[Tensor] = None):
        """The norm of x, or with a residual what add() gives.

        In TorchScript, where a function has one type of result, forward takes x alone.

        Args:
            x: [.., *normalized_shape].
            residual: Of x's shape; None for no addition.

        Returns:
            y, or (y, sum).

        Raises:
            FastnormError: The library refuses a shape, a dtype, a layout or a device; the text has
                the status and names the argument.
            ValueError: A word, such as that of rounding, is unknown.
        """
        if torch.jit.is_scripting():
            if residual is not None:
                raise RuntimeError(
                    "residual is a tensor; required in TorchScript: None, or the method add"
                )
            return torch.ops.fastnorm.rms_norm(
                self._scripted_rows("x", x),
                self._scripted_row(self.weight),
                self.eps,
                self.weight_offset,
                self.rounding,
                self.y_dtype,
            ).view(x.shape)
        else:
            return self._computed(_rms_module, x, residual)

    @torch.jit.export
    def add(self, x: Tensor, residual: Tensor) -> Tuple[Tensor, Tensor]:
        """The norm of the sum x + residual, and the sum.

        Args:
            x: [.., *normalized_shape].
            residual: Of x's shape.

        Returns:
            (y, sum), where the sum has residual's dtype.

        Raises:
            FastnormError: The library refuses a shape, a dtype, a layout or a device; the text has
                the status and names the argument.
            ValueError: A word, such as that of rounding, is unknown.
        """
        if torch.jit.is_scripting():
            y, total = torch.ops.fastnorm.add_rms_norm(
                self._scripted_rows("x", x),
                self._scripted_rows("residual", residual),
                self._scripted_row(self.weight),
                self.eps,
                self.weight_offset,
                self.rounding,
                "exact",
                self.y_dtype,
            )
            return y.view(x.shape), total.view(residual.shape)
        else:
            return self(x, residual)


class LayerNorm(_Norm):
    """torch.nn.LayerNorm by libfastnorm.

    Parameters and state are those of torch.nn.LayerNorm. A parameter's attribute main_grad gets its
    gradient added.

    Args:
        normalized_shape: The extents of the trailing dimensions that are normalised, or the one
            extent.
        eps: Added to the mean of squares, or to the variance, before the root. None is the epsilon
            of float32.
        elementwise_affine: Whether there is a weight, and for LayerNorm a bias.
        bias: Whether there is a bias beside the weight.
        device: Where the parameters are made.
        dtype: The dtype of the parameters.
        rounding: Where the row is rounded to x's dtype on its way: "once" when y is stored,
            "normalized" also before the weight, "every_step" after each operation, "once_rw" once
            with rstd * weight multiplied first.
        y_dtype: The dtype of y: None for that of x, or float32.

    Raises:
        ValueError: normalized_shape is empty.
    """

    _attributes = ("weight", "bias", "normalized_shape", "eps", "rounding", "y_dtype")

    def __init__(
        self,
        normalized_shape,
        eps=1e-5,
        elementwise_affine=True,
        bias=True,
        device=None,
        dtype=None,
        *,
        rounding="once",
        y_dtype=None,
    ):
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype, y_dtype)
        self.rounding = rounding

    def forward(self, x: Tensor):
        """The norm of x.

        Args:
            x: [.., *normalized_shape].

        Returns:
            y, of x's shape.

        Raises:
            FastnormError: The library refuses a shape, a dtype, a layout or a device; the text has
                the status and names the argument.
            ValueError: A word, such as that of rounding, is unknown.
        """
        if torch.jit.is_scripting():
            return torch.ops.fastnorm.layer_norm(
                self._scripted_rows("x", x),
                self._scripted_row(self.weight),
                self._scripted_row(self.bias),
                self.eps,
                self.rounding,
                self.y_dtype,
            ).view(x.shape)
        else:
            return self._computed(_layer_module, x)


if _compiled.path() != "python":
    _compiled.bind(sys.modules[__name__], _norm, _backward)


# --- whole models ---

from fastnorm.torch.models import patch, register, unpatch, unregister  # noqa: E402
