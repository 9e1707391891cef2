"""RMSNorm and LayerNorm of libfastnorm as PyTorch operators, by ctypes alone: nothing is compiled.

The library is the file that FASTNORM_LIBRARY names, else libfastnorm.so.0 where the loader finds it.
Tensors on the CPU and on CUDA devices, with the strides they have; work goes to the current stream.
Words: rounding "once", "normalized", "every_step"; residual_rounding "exact", "before_apply",
"before_statistics"; scheme "per_row", "per_block", "mxfp8", "nvfp4". norm.h says what they mean.

There is no backward yet: an operator refuses tensors that require grad while grad is enabled.
"""

import ctypes
import importlib.util
import os
import threading
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd import forward_ad


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

# Dtypes that no norm takes are here, too: the library says so.
_DTYPES = {
    torch.float32: _c.F32, torch.float16: _c.F16, torch.bfloat16: _c.BF16,
    torch.int8: _c.I8, torch.uint8: _c.U8, torch.int32: _c.Dtype(0, 32, 1), torch.int64: _c.Dtype(0, 64, 1),
    torch.float64: _c.Dtype(2, 64, 1), torch.bool: _c.Dtype(6, 8, 1),
    torch.float8_e4m3fn: _c.F8_E4M3FN, torch.float8_e5m2: _c.F8_E5M2, torch.float8_e8m0fnu: _c.F8_E8M0FNU,
}
_ROUNDING = {"once": 0, "normalized": 1, "every_step": 2}
_RESIDUAL_ROUNDING = {"exact": 0, "before_apply": 1, "before_statistics": 2}
_SCHEMES = {"per_row": 2, "per_block": 3, "mxfp8": 4, "nvfp4": 5}


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


# --- calls ---


def _word(words, name, value):
    if value not in words:
        raise ValueError(f"{name} is {value!r}; required: one of {', '.join(words)}")
    return words[value]


class _Call:
    """fastnorm_norm_args for tensors of certain dtypes, shapes, strides and devices. Only addresses
    change from one run to the next."""

    def __init__(self, options, names, tensors):
        self.device_id = tensors[0].get_device()
        self.context = _context(self.device_id)
        self.args = _c.NormArgs(struct_size=ctypes.sizeof(_c.NormArgs), **dict(options))
        self.structs = []
        for name, t in zip(names, tensors):
            struct = None
            if t is not None:
                struct = _c.tensor(t.data_ptr(), *self._device(t), self._dtype(name, t), t.shape, t.stride())
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
            raise FastnormError(f"{name} has dtype {t.dtype}, which libfastnorm has no word for")
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
    """The calls that a thread has made; a struct is never shared by two threads."""

    def __init__(self):
        self.made = {}

    def add(self, key, call):
        if len(self.made) >= _MAX_CALLS:
            self.made.clear()
        self.made[key] = call


_calls = _Calls()


def _run(options, names, tensors):
    """One fastnorm_norm. options: pairs of a field and its value; names of fields and their tensors or
    None, x first."""
    key = (options, names, *[t if t is None else (t.dtype, t.get_device(), t.shape, t.stride()) for t in tensors])
    call = _calls.made.get(key)
    if call is None:
        call = _Call(options, names, tensors)
        _calls.add(key, call)
    else:
        for struct, t in zip(call.structs, tensors):
            if t is not None:
                struct.data = t.data_ptr()
    call.run()


def _options(kind, eps, weight_offset, rounding, residual_rounding="exact"):
    return (("kind", kind), ("eps", eps), ("weight_offset", weight_offset),
            ("rounding", _word(_ROUNDING, "rounding", rounding)),
            ("residual_rounding", _word(_RESIDUAL_ROUNDING, "residual_rounding", residual_rounding)))


def _quant_options(scheme, block_size):
    return (("quant_scheme", _word(_SCHEMES, "scheme", scheme)), ("quant_block_size", block_size))


# --- outputs ---


def _quant_outputs(x, scheme, block_size, dtype):
    """Empty codes and scales for x; a scheme decides the dtype of its scales, nvfp4 that of its codes, too."""
    _word(_SCHEMES, "scheme", scheme)
    rows, n = x.shape[:-1], x.shape[-1]
    if scheme == "per_row":
        return x.new_empty(x.shape, dtype=dtype), x.new_empty((*rows, 1), dtype=torch.float32)
    if scheme == "per_block":
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; required: 64 or 128")
        return (x.new_empty(x.shape, dtype=dtype),
                x.new_empty((*rows, -(-n // block_size)), dtype=torch.float32))
    if scheme == "mxfp8":
        return (x.new_empty(x.shape, dtype=dtype),
                x.new_empty((*rows, -(-n // 32)), dtype=torch.float8_e8m0fnu))
    return (x.new_empty((*rows, n // 2), dtype=torch.uint8),
            x.new_empty((*rows, -(-n // 16)), dtype=torch.float8_e4m3fn))


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
        if mutated is not None:
            torch.autograd.graph.increment_version(arguments[mutated])
        with torch._C._AutoDispatchBelowADInplaceOrView():
            return op(*arguments)

    return call, counted


def _operator(schema, fake, mutated=None):
    """Makes the function below it an operator on CPU and CUDA tensors; fake gives outputs without data."""
    name = schema.partition("(")[0]

    def define(run):
        _lib.define(schema, tags=_TAGS)
        for device in ("CPU", "CUDA"):
            _lib.impl(name, run, device)
        torch.library.register_fake(f"fastnorm::{name}", fake, lib=_lib)
        op = getattr(torch.ops.fastnorm, name).default
        call, counted = _without_backward(name, op, mutated)
        _lib.impl(name, call, "Autograd")
        if mutated is not None:
            _lib.impl(name, counted, "ADInplaceOrView")
        return op

    return define


def _like(x):
    """Empty, of x's shape, compact."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@_operator("rms_norm(Tensor x, Tensor? weight, float eps, float weight_offset, str rounding) -> Tensor",
           lambda x, *_: _like(x))
def _rms_norm(x, weight, eps, weight_offset, rounding):
    y = _like(x)
    _run(_options(_c.RMS, eps, weight_offset, rounding), ("x", "weight", "y"), (x, weight, y))
    return y


@_operator("layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps, str rounding) -> Tensor",
           lambda x, *_: _like(x))
def _layer_norm(x, weight, bias, eps, rounding):
    y = _like(x)
    _run(_options(_c.LAYER, eps, 0.0, rounding), ("x", "weight", "bias", "y"), (x, weight, bias, y))
    return y


_ADD = ("x", "residual", "weight", "y", "residual_out")


@_operator("add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float eps, float weight_offset, "
           "str rounding, str residual_rounding) -> (Tensor, Tensor)",
           lambda x, residual, *_: (_like(x), _like(residual)))
def _add_rms_norm(x, residual, weight, eps, weight_offset, rounding, residual_rounding):
    y, residual_out = _like(x), _like(residual)
    _run(_options(_c.RMS, eps, weight_offset, rounding, residual_rounding), _ADD,
         (x, residual, weight, y, residual_out))
    return y, residual_out


@_operator("fused_add_rms_norm(Tensor x, Tensor(a!) residual, Tensor? weight, float eps, float weight_offset, "
           "str rounding, str residual_rounding) -> Tensor",
           lambda x, *_: _like(x), mutated=1)
def _fused_add_rms_norm(x, residual, weight, eps, weight_offset, rounding, residual_rounding):
    y = _like(x)
    _run(_options(_c.RMS, eps, weight_offset, rounding, residual_rounding), _ADD,
         (x, residual, weight, y, residual))
    return y


@_operator("rms_norm_quant(Tensor x, Tensor? weight, float eps, float weight_offset, str rounding, str scheme, "
           "int block_size, ScalarType dtype) -> (Tensor, Tensor)",
           lambda x, weight, eps, offset, rounding, *scheme: _quant_outputs(x, *scheme))
def _rms_norm_quant(x, weight, eps, weight_offset, rounding, scheme, block_size, dtype):
    quantized, scale = _quant_outputs(x, scheme, block_size, dtype)
    _run(_options(_c.RMS, eps, weight_offset, rounding) + _quant_options(scheme, block_size),
         ("x", "weight", "quantized", "scale"), (x, weight, quantized, scale))
    return quantized, scale


@_operator("fused_add_rms_norm_quant(Tensor x, Tensor(a!) residual, Tensor? weight, float eps, "
           "float weight_offset, str rounding, str residual_rounding, str scheme, int block_size, "
           "ScalarType dtype) -> (Tensor, Tensor)",
           lambda x, residual, weight, eps, offset, rounding, residual_rounding, *scheme:
           _quant_outputs(x, *scheme), mutated=1)
def _fused_add_rms_norm_quant(x, residual, weight, eps, weight_offset, rounding, residual_rounding, scheme,
                              block_size, dtype):
    quantized, scale = _quant_outputs(x, scheme, block_size, dtype)
    _run(_options(_c.RMS, eps, weight_offset, rounding, residual_rounding) + _quant_options(scheme, block_size),
         ("x", "residual", "weight", "residual_out", "quantized", "scale"),
         (x, residual, weight, residual, quantized, scale))
    return quantized, scale


# --- the functions to call ---

def rms_norm(x, weight=None, eps=1e-6, *, weight_offset=0.0, rounding="once"):
    """y = x * rsqrt(mean(x^2) + eps) * (weight + weight_offset), row by row."""
    return _rms_norm(x, weight, eps, weight_offset, rounding)


def layer_norm(x, weight=None, bias=None, eps=1e-5, *, rounding="once"):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, row by row."""
    return _layer_norm(x, weight, bias, eps, rounding)


def add_rms_norm(x, residual, weight=None, eps=1e-6, *, weight_offset=0.0, rounding="once",
                 residual_rounding="exact"):
    """(rms_norm of the sum, sum) with sum = x + residual, both new tensors."""
    return _add_rms_norm(x, residual, weight, eps, weight_offset, rounding, residual_rounding)


def fused_add_rms_norm(x, residual, weight=None, eps=1e-6, *, weight_offset=0.0, rounding="once",
                       residual_rounding="exact"):
    """As add_rms_norm, but the sum replaces residual in its own memory; returns the norm."""
    return _fused_add_rms_norm(x, residual, weight, eps, weight_offset, rounding,
                                           residual_rounding)


def rms_norm_quant(x, weight=None, eps=1e-6, *, scheme, block_size=0, dtype=torch.float8_e4m3fn,
                   weight_offset=0.0, rounding="once"):
    """(codes, scales) of rms_norm. Scales are x.shape[:-1] + [1] (per_row) or + [scales of a row]; nvfp4
    codes are uint8, two to a byte."""
    return _rms_norm_quant(x, weight, eps, weight_offset, rounding, scheme, block_size, dtype)


def fused_add_rms_norm_quant(x, residual, weight=None, eps=1e-6, *, scheme, block_size=0,
                             dtype=torch.float8_e4m3fn, weight_offset=0.0, rounding="once",
                             residual_rounding="exact"):
    """(codes, scales) of fused_add_rms_norm."""
    return _fused_add_rms_norm_quant(x, residual, weight, eps, weight_offset, rounding,
                                                 residual_rounding, scheme, block_size, dtype)
