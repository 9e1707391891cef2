"""RMSNorm and LayerNorm of libfastnorm for NumPy arrays and for whatever has DLPack.

    import fastnorm
    y = fastnorm.rms_norm(x, weight)

fastnorm.torch has PyTorch operators and modules, fastnorm.jax has JAX functions, and fastnorm.abi
has every call of the C ABI. The shared library is in this package; FASTNORM_LIBRARY names another
one.

An array is a NumPy array, or an object with __dlpack__ such as a tensor of PyTorch, CuPy or JAX.
Outputs of NumPy arrays are made where `out` is None. For other arrays `out` is required: it is
written in place. Arrays on a CUDA device are taken on `stream`, a cudaStream_t as a number; None is
the default stream. Words: rounding "once", "normalized", "every_step"; residual_rounding "exact",
"before_apply", "before_statistics". norm.h says what they mean. """

import threading
from typing import Any, Dict, Optional, Tuple

import numpy as np

from . import abi

__all__ = [
    "FastnormError",
    "add_rms_norm",
    "build_info",
    "context",
    "layer_norm",
    "rms_norm",
    "version",
]

FastnormError = abi.FastnormError

_ROUNDING = {"once": 0, "normalized": 1, "every_step": 2}
_RESIDUAL_ROUNDING = {"exact": 0, "before_apply": 1, "before_statistics": 2}
# DLPack's types of devices, as the library takes them.
_HOST, _CUDA = 1, 2


class _Loaded:
    """The library and one context a device, made at their first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._library: Optional[abi.Library] = None
        self._contexts: Dict[Tuple[int, int], abi.Context] = {}

    def library(self) -> abi.Library:
        with self._lock:
            if self._library is None:
                self._library = abi.Library(abi.library_path())
            return self._library

    def context(self, device_type: int, device_id: int) -> abi.Context:
        library = self.library()
        with self._lock:
            key = (device_type, device_id)
            if key not in self._contexts:
                self._contexts[key] = abi.Context(library, device_type, device_id)
            return self._contexts[key]


_loaded = _Loaded()


def version() -> str:
    """Version of the loaded library."""
    return str(_loaded.library().version())


def build_info() -> str:
    """What the loaded library contains, one "key: value" line each."""
    function = _loaded.library().c.fastnorm_build_info
    function.restype = abi.c_char_p
    return str(function().decode())


def context(device: str = "cpu", device_id: int = 0) -> abi.Context:
    """The context of "cpu" or "cuda", for the calls of fastnorm.abi; shared by all who ask for
    it."""
    types = {"cpu": _HOST, "cuda": _CUDA}
    return _loaded.context(_word(types, "device", device), device_id)


def _word(words: Dict[str, int], name: str, value: str) -> int:
    if value not in words:
        raise ValueError(f"{name} is {value!r}; required: one of {', '.join(words)}")
    return words[value]


def _context_of(name: str, x: Any) -> abi.Context:
    if isinstance(x, np.ndarray):
        return _loaded.context(_HOST, 0)
    if not hasattr(x, "__dlpack_device__"):
        raise TypeError(
            f"{name} is {type(x).__name__}; required: a NumPy array or one with __dlpack__"
        )
    device_type, device_id = (int(part) for part in x.__dlpack_device__())
    if device_type not in (_HOST, _CUDA):
        raise FastnormError(
            f"FASTNORM_ERROR_DEVICE: {name} is on a device of DLPack's type {device_type}; "
            f"required: {_HOST}, a CPU, or {_CUDA}, a CUDA device"
        )
    return _loaded.context(device_type, device_id if device_type == _CUDA else 0)


def _output(name: str, out: Any, like: Any) -> Any:
    if out is not None:
        if isinstance(out, np.ndarray) and not out.flags.writeable:
            raise ValueError(f"{name} is read-only; required: an array that can be written")
        return out
    if isinstance(like, np.ndarray):
        return np.empty(like.shape, like.dtype)
    raise TypeError(
        f"{name} is None; required: an array to write, since the input is a "
        f"{type(like).__name__}"
    )


def _run(x: Any, kind: int, stream: Optional[int], **fields: Any) -> None:
    _context_of("x", x).call(kind, stream, x=x, **fields).run()


def rms_norm(
    x: Any,
    weight: Any = None,
    eps: float = 1e-6,
    *,
    weight_offset: float = 0.0,
    rounding: str = "once",
    out: Any = None,
    stream: Optional[int] = None,
) -> Any:
    """y = x * rsqrt(mean(x^2) + eps) * (weight + weight_offset) for each row, the last dimension.

    x is [.., n], weight [n] or None. Dtypes are float32, float16 and bfloat16. Returns y."""
    y = _output("out", out, x)
    _run(
        x,
        abi.RMS,
        stream,
        weight=weight,
        y=y,
        eps=eps,
        weight_offset=weight_offset,
        rounding=_word(_ROUNDING, "rounding", rounding),
    )
    return y


def layer_norm(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *,
    rounding: str = "once",
    out: Any = None,
    stream: Optional[int] = None,
) -> Any:
    """y = (x - mean) / sqrt(var + eps) * weight + bias for each row, the last dimension. Returns
    y."""
    y = _output("out", out, x)
    _run(
        x,
        abi.LAYER,
        stream,
        weight=weight,
        bias=bias,
        y=y,
        eps=eps,
        rounding=_word(_ROUNDING, "rounding", rounding),
    )
    return y


def add_rms_norm(
    x: Any,
    residual: Any,
    weight: Any = None,
    eps: float = 1e-6,
    *,
    weight_offset: float = 0.0,
    rounding: str = "once",
    residual_rounding: str = "exact",
    out: Any = None,
    residual_out: Any = None,
    stream: Optional[int] = None,
) -> Tuple[Any, Any]:
    """(rms_norm of the sum, the sum) with sum = x + residual, in one pass over memory.

    residual_out may be residual itself, which the sum then replaces."""
    y = _output("out", out, x)
    total = _output("residual_out", residual_out, residual)
    _run(
        x,
        abi.RMS,
        stream,
        residual=residual,
        residual_out=total,
        weight=weight,
        y=y,
        eps=eps,
        weight_offset=weight_offset,
        rounding=_word(_ROUNDING, "rounding", rounding),
        residual_rounding=_word(_RESIDUAL_ROUNDING, "residual_rounding", residual_rounding),
    )
    return y, total
