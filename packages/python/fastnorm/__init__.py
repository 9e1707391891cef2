"""RMSNorm and LayerNorm of libfastnorm for NumPy arrays and for whatever has DLPack.

    import fastnorm
    y = fastnorm.rms_norm(x, weight)

fastnorm.torch has PyTorch operators and modules, fastnorm.jax has JAX functions, and fastnorm.abi
has every call of the C ABI. The shared library is in this package; FASTNORM_LIBRARY names another
one.

An array is a NumPy array, or an object with __dlpack__ such as a tensor of PyTorch, CuPy or JAX.
Outputs of NumPy arrays are made where `out` is None. For other arrays `out` is required: it is
written in place, so it is no JAX array, which is immutable. Arrays on a CUDA device are taken on
`stream`, a cudaStream_t as a number; None is the default stream. Words: rounding "once",
"normalized", "every_step"; residual_rounding "exact", "before_apply", "before_statistics". norm.h
says what they mean. """

import threading
from typing import Any, Dict, Optional, Tuple

import numpy as np

from . import abi

__all__ = [
    "FastnormError",
    "add_rms_norm",
    "build_info",
    "context",
    "get_num_threads",
    "layer_norm",
    "rms_norm",
    "set_num_threads",
    "version",
]

__version__ = "0.2.0"  # of this package; version() is that of the library that it loads

FastnormError = abi.FastnormError
"""A RuntimeError with the status' name and the library's text: fastnorm.abi.FastnormError."""

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
        self.num_threads = 1

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
                self._contexts[key] = abi.Context(
                    library, device_type, device_id, self.num_threads
                )
            return self._contexts[key]

    def set_num_threads(self, number: int) -> None:
        with self._lock:
            if number != self.num_threads:
                self.num_threads = number
                # Calls that run have the former context; it ends with the last of them.
                self._contexts.pop((_HOST, 0), None)


_loaded = _Loaded()


def version() -> str:
    """Version of the loaded library, such as "0.2.0".

    Returns:
        The version. `fastnorm.__version__` is that of the package.

    Raises:
        OSError: The library does not load.
    """
    return str(_loaded.library().version())


def build_info() -> str:
    """What the loaded library contains, one "key: value" line each.

    Returns:
        The lines, of version, commit, compilers, architectures and instruction sets.

    Raises:
        OSError: The library does not load.
    """
    function = _loaded.library().c.fastnorm_build_info
    function.restype = abi.c_char_p
    return str(function().decode())


def context(device: str = "cpu", device_id: int = 0) -> abi.Context:
    """The context of a device for the calls of fastnorm.abi. All who ask for it share it.

    Args:
        device: "cpu" or "cuda".
        device_id: The number of the GPU. 0 for a CPU.

    Returns:
        The context, made at the first call.

    Raises:
        ValueError: device is no known word.
        FastnormError: There is no such device, or no driver for it.
    """
    types = {"cpu": _HOST, "cuda": _CUDA}
    return _loaded.context(_word(types, "device", device), device_id)


def get_num_threads() -> int:
    """How many threads a call on the CPU has.

    Returns:
        The number, 1 at first.
    """
    return _loaded.num_threads


def set_num_threads(number: int) -> None:
    """Sets how many threads a call on the CPU has. Results have the same bits for any number.

    Args:
        number: From 1 to 1024, the calling thread included.

    Raises:
        ValueError: number is no integer from 1 to 1024.
    """
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 1024:
        raise ValueError(f"number is {number!r}; required: an integer from 1 to 1024")
    _loaded.set_num_threads(number)


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
        abi.check_writable(name, out)
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
    """RMSNorm of each row: y = x * rsqrt(mean(x^2) + eps) * (weight + weight_offset).

    The statistic is summed in float32, and y is rounded once with the default rounding. The formula
    is that of norm.h; Zhang and Sennrich describe the method in "Root Mean Square Layer
    Normalization" (2019).

    Args:
        x: The rows, [.., n], in float32, float16 or bfloat16: a NumPy array, or what has
            `__dlpack__`. A row is the last dimension.
        weight: [.., n], broadcast against x, in float32, float16 or bfloat16. None stands for ones.
        eps: Added to the mean of squares, or to the variance, before the root.
        weight_offset: Added to the weight in float32: 0, or 1 for Gemma.
        rounding: Where the row is rounded to x's dtype on its way: "once" when y is stored,
            "normalized" also before the weight, "every_step" after each operation.
        out: Where y is written, of x's shape. None makes a NumPy array, and is an error for other
            arrays.
        stream: The cudaStream_t of arrays on a GPU, as a number. None is the default stream.

    Returns:
        y, of x's shape and dtype, which is out or a new NumPy array.

    Raises:
        FastnormError: The library refuses the call, such as for a shape, a dtype or a device; the
            text has the status and names the argument.
        TypeError: x has no `__dlpack__`, or out is None for an array that is not NumPy's.
        ValueError: A word is unknown, or an output may not be written.
    """
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
    """LayerNorm of each row: y = (x - mean) / sqrt(var + eps) * weight + bias.

    The variance is the biased one, summed from differences in float32. The formula is that of
    norm.h; Ba, Kiros and Hinton describe the method in "Layer Normalization" (2016).

    Args:
        x: The rows, [.., n], in float32, float16 or bfloat16: a NumPy array, or what has
            `__dlpack__`. A row is the last dimension.
        weight: [.., n], broadcast against x, in float32, float16 or bfloat16. None stands for ones.
        bias: [.., n], broadcast against x, in float32, float16 or bfloat16. None stands for zeros.
        eps: Added to the mean of squares, or to the variance, before the root.
        rounding: Where the row is rounded to x's dtype on its way: "once" when y is stored,
            "normalized" also before the weight, "every_step" after each operation.
        out: Where y is written, of x's shape. None makes a NumPy array, and is an error for other
            arrays.
        stream: The cudaStream_t of arrays on a GPU, as a number. None is the default stream.

    Returns:
        y, of x's shape and dtype, which is out or a new NumPy array.

    Raises:
        FastnormError: The library refuses the call, such as for a shape, a dtype or a device; the
            text has the status and names the argument.
        TypeError: x has no `__dlpack__`, or out is None for an array that is not NumPy's.
        ValueError: A word is unknown, or an output may not be written.
    """
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
    """RMSNorm of the sum x + residual, and the sum, in one pass over memory.

    The sum is stored in residual's dtype, and y = rms_norm(sum).

    Args:
        x: The rows, [.., n], in float32, float16 or bfloat16: a NumPy array, or what has
            `__dlpack__`. A row is the last dimension.
        residual: What is added to x before the norm, of x's shape, in float32, float16 or bfloat16.
        weight: [.., n], broadcast against x, in float32, float16 or bfloat16. None stands for ones.
        eps: Added to the mean of squares, or to the variance, before the root.
        weight_offset: Added to the weight in float32: 0, or 1 for Gemma.
        rounding: Where the row is rounded to x's dtype on its way: "once" when y is stored,
            "normalized" also before the weight, "every_step" after each operation.
        residual_rounding: Which value of the sum is normalised: "exact" the float32 sum,
            "before_apply" the rounded one after statistics of the exact one, "before_statistics"
            the rounded one for both.
        out: Where y is written, of x's shape. None makes a NumPy array, and is an error for other
            arrays.
        residual_out: Where the sum is written, of residual's shape; residual itself is allowed.
            None makes a NumPy array.
        stream: The cudaStream_t of arrays on a GPU, as a number. None is the default stream.

    Returns:
        (y, sum). residual_out may be residual itself, which the sum then replaces.

    Raises:
        FastnormError: The library refuses the call, such as for a shape, a dtype or a device; the
            text has the status and names the argument.
        TypeError: x has no `__dlpack__`, or out is None for an array that is not NumPy's.
        ValueError: A word is unknown, or an output may not be written.
    """
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
