"""Norms of fastnorm.torch without Python in a call: two files of compiled operators.

Calls by ctypes cost Python's time, which is more than a norm of a few rows takes.

_C.so is in released wheels and uses libtorch's stable ABI, so one file serves PyTorch 2.10 and
later. In eager mode rms_norm, layer_norm, add_rms_norm and fused_add_rms_norm run through it.
Where a gradient is wanted, its operators stand in a node of autograd of Python, but for
fused_add_rms_norm, which Python runs then. FASTNORM_TORCH_LIBRARY names another file. The CPU's
contexts take their threads from PyTorch through it.

operators.cpp also has nodes of autograd, and what torch.compile calls. It needs headers of one
version of PyTorch: build() compiles it on this machine into a cache. From then on fastnorm.torch
loads it as it is imported, and it takes the place of _C.so. FASTNORM_TORCH_COMPILED=1 builds it
when fastnorm.torch is imported, if that has not happened yet; 0 leaves out both files.
FASTNORM_CACHE names the folder, in place of ~/.cache/fastnorm.

The bits and the errors are those of the Python operators, which run everything else.
"""

import atexit
import ctypes
import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch.autograd import forward_ad

__all__ = ["build", "is_loaded", "path", "runs"]

HERE = Path(__file__).parent
SOURCE, HEADER = HERE / "operators.cpp", HERE / "plans.h"
# What the file has kernels for, and which of these have one of autograd.
KERNELS = (
    "rms_norm",
    "layer_norm",
    "add_rms_norm",
    "fused_add_rms_norm",
    "rms_norm_with_statistics",
    "layer_norm_with_statistics",
    "add_rms_norm_with_statistics",
    "norm_backward",
)
WITH_AUTOGRAD = (*KERNELS[:4], KERNELS[7])
_VARIABLE = "FASTNORM_TORCH_COMPILED"
_LIBRARY_VARIABLE = "FASTNORM_TORCH_LIBRARY"
_OPTIONS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")


def _wanted():
    value = os.environ.get(_VARIABLE)
    if value not in (None, "", "0", "1"):
        raise ValueError(f"{_VARIABLE} is {value!r}; required: 1, 0 or nothing")
    return value or None


def _file():
    """Where the built file is, or would be."""
    known = hashlib.sha256(SOURCE.read_bytes() + HEADER.read_bytes()).hexdigest()[:16]
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("FASTNORM_CACHE") or Path(caches) / "fastnorm")
    return folder / f"torch-{torch.__version__}-{known}.so"


def build() -> Path:
    """Compiles the operators for this PyTorch, unless that has happened. It takes about a minute.
    The program that runs keeps its operators: import fastnorm.torch in a new one.

    Returns:
        The built file.

    Raises:
        RuntimeError: There is no C++ compiler, named by CXX or called c++, or it fails.
    """
    path = _file()
    if path.exists():
        return path
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if not compiler:
        raise RuntimeError("there is no c++; required: a C++20 compiler, which CXX may name")
    root = Path(torch.__file__).parent
    include = root / "include"
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        command = [
            *(*compiler.split(), *_OPTIONS),
            *("-isystem", include, "-isystem", include / "torch" / "csrc" / "api" / "include"),
            *(f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}", SOURCE),
            *("-o", made, f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu"),
        ]
        result = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if result.returncode != 0:
            raise RuntimeError(f"{compiler} fails on {SOURCE.name}:\n{result.stderr[-4000:]}")
        made.replace(path)  # whole, also where another program builds it
    return path


def _load():
    """The built file, loaded before the operators are defined; None where there is none."""
    wanted = _wanted()
    if wanted == "0":
        return None
    path = build() if wanted else _file()
    return ctypes.CDLL(str(path)) if path.exists() else None


def _load_stable():
    """_C.so, with its operators for the dispatcher; None where there is none, or where PyTorch is
    older than its ABI."""
    named = os.environ.get(_LIBRARY_VARIABLE)
    path = Path(named) if named else HERE / "_C.so"
    if _wanted() == "0" or not (named or path.exists()):
        return None
    try:
        found = ctypes.CDLL(str(path))
        found.fastnorm_torch_open.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        raise ImportError(
            f"{_LIBRARY_VARIABLE} is {named!r}; required: a _C.so of fastnorm.torch that loads. "
            f"{error}"
        ) from None
    libtorch = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    return None if found.fastnorm_torch_open(ctypes.c_void_p(libtorch._handle)) else found


_loaded, _stable = _load(), _load_stable()


def is_loaded() -> bool:
    """Whether the operators that build() compiles run in this program.

    Returns:
        Whether they do.
    """
    return _loaded is not None


def path() -> str:
    """Which operators run the norms of this program.

    Returns:
        "compiled" for what build() has compiled, "stable" for _C.so, "python" for neither.
    """
    return "compiled" if _loaded else "stable" if _stable else "python"


def loop() -> int:
    """The address of PyTorch's parallel loop for contexts of the CPU; 0 where they have threads of
    their own."""
    if _stable is None:
        return 0
    return ctypes.cast(_stable.fastnorm_torch_parallel_for, ctypes.c_void_p).value


def runs() -> int:
    """How often compiled operators have called the library in this program.

    Returns:
        The number.
    """
    total = 0
    for file in filter(None, (_loaded, _stable)):
        file.fastnorm_torch_runs.restype = ctypes.c_int64
        total += file.fastnorm_torch_runs()
    return total


# --- plans: what a new call of the compiled operators asks of Python ---

_MOST_TENSORS = 10


class Plan(ctypes.Structure):
    """A planned call, as in operators.cpp."""

    _fields_ = [
        ("context", ctypes.c_void_p),
        ("args", ctypes.c_void_p),
        ("workspace_size", ctypes.c_int64),
        ("by_python", ctypes.c_int64),
        ("data", ctypes.c_void_p * _MOST_TENSORS),
    ]


_MakePlan = ctypes.CFUNCTYPE(
    None,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.POINTER(ctypes.c_int64),
    ctypes.c_int64,
    ctypes.POINTER(ctypes.c_int64),
    ctypes.POINTER(Plan),
)
_EndPlans = ctypes.CFUNCTYPE(None, ctypes.c_int64)
_SCALAR_TYPES = {5: torch.float16, 6: torch.float32, 15: torch.bfloat16}  # c10's numbers
# Names of the tensors of the norms' operators; indices are the numbers of Body.
_ADD = ("x", "residual", "weight", "y", "residual_out")
_NAMES = (
    ("x", "weight", "y"),
    ("x", "weight", "bias", "y"),
    _ADD,
    _ADD,
    ("x", "weight", "y", "rstd"),
    ("x", "weight", "bias", "y", "mean", "rstd"),
    (*_ADD, "rstd"),
    ("x", "dy", "weight", "mean", "rstd", "dresidual_in", "dx", "dresidual", "dweight", "dbias"),
)
_FUSED_ADD, _BACKWARD = 3, 7


class _Form:
    """What a plan asks of a tensor."""

    def __init__(self, device, dtype, shape, strides):
        self.device_id, self.dtype, self.shape, self.strides = device, dtype, shape, strides

    def dim(self):
        return len(self.shape)

    def stride(self):
        return self.strides

    def get_device(self):
        return self.device_id


def _forms(device, words, count):
    """The tensors that the words describe, None for those that are not there."""
    found, words = [], iter(words)
    for _ in range(count):
        rank = next(words)
        if rank < 0:
            found.append(None)
            continue
        dtype = _SCALAR_TYPES.get(next(words))
        shape, strides = ([next(words) for _ in range(rank)] for _ in range(2))
        found.append(_Form(device, dtype, tuple(shape), tuple(strides)))
    return found


def _options_of_words(words):
    """The options that operators.cpp puts into a key, and the words after them."""
    kind, has_eps, eps, offset, rounding, residual_rounding, *words = words
    eps, offset = struct.unpack("2d", struct.pack("2q", eps, offset))
    return (kind, eps if has_eps else None, offset, rounding, residual_rounding), words


def _options_of_number(words):
    """The options whose number stable.cpp puts into a key, and the words after it."""
    return _eager_options[words[0]], words[1:]


def _planned(ft, read_options, key, addresses):
    """The call that a key describes, or None where the Python operator has to run."""
    body, device, *words = key
    names = _NAMES[body]
    (kind, eps, offset, rounding, residual_rounding), words = read_options(words)
    forms = _forms(device, words, len(names))
    if any(form is not None and form.dtype is None for form in forms):
        return None
    if body == _FUSED_ADD:
        forms[4] = forms[1]
    roundings, of_residuals = list(ft._ROUNDING), list(ft._RESIDUAL_ROUNDING)
    if rounding >= len(roundings) or residual_rounding >= len(of_residuals):
        return None
    options = ft._options(kind, eps, offset, roundings[rounding], of_residuals[residual_rounding])
    if body == _BACKWARD:
        options = options[:4]
    if ft._positions_to_copy(names, forms):
        return None
    return ft._Call(options, names, forms, addresses)


def _bind_file(ft, file, read_options, norm, backward):
    """Gives a file the library's functions and what plans calls."""
    kept = {}  # calls of a thread, whose structs the compiled operators use

    def make_plan(thread, is_new, key, words, addresses, plan):
        plan = plan.contents
        try:
            call = _planned(ft, read_options, key[:words], addresses[:_MOST_TENSORS])
        except Exception:  # the Python operator meets it, too, and says so
            call = None
        if is_new:
            kept[thread] = []
        plan.by_python = call is None
        if call is None:
            return
        kept[thread].append(call)
        plan.context, plan.args = call.handle, call.address
        plan.workspace_size = call.workspace_bytes and call.workspace_bytes + 255
        for i, of_tensor in enumerate(call.structs):
            if of_tensor is not None:
                plan.data[i] = ctypes.addressof(of_tensor) + type(of_tensor).data.offset

    def end_plans(thread):
        kept.pop(thread, None)

    stream_of = None
    if torch.version.cuda:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))
        stream_of = ctypes.cast(library.aoti_torch_get_current_cuda_stream, ctypes.c_void_p)
    file.callbacks = _MakePlan(make_plan), _EndPlans(end_plans)  # live as long as the file
    file.fastnorm_torch_bind(
        ctypes.cast(norm, ctypes.c_void_p),
        ctypes.cast(backward, ctypes.c_void_p),
        stream_of,
        *file.callbacks,
    )
    atexit.register(file.fastnorm_torch_unbind)


def bind(ft, norm, backward):
    """Gives the loaded files the library's functions and what plans calls. ft: fastnorm.torch."""
    global _ft
    _ft = ft
    if _loaded:
        _bind_file(ft, _loaded, _options_of_words, norm, backward)
    if _stable:
        _bind_file(ft, _stable, _options_of_number, norm, backward)


# --- the operators of _C.so ---

EAGER = (
    "eager_norm(Tensor x, Tensor? weight, Tensor? bias, int options) -> Tensor",
    "eager_add_norm(Tensor x, Tensor residual, Tensor? weight, int options) -> (Tensor, Tensor)",
    "eager_fused_add_norm(Tensor x, Tensor(a!) residual, Tensor? weight, int options) -> Tensor",
    "eager_norm_with_statistics(Tensor x, Tensor? weight, Tensor? bias, int options, int kind) -> "
    "(Tensor, Tensor, Tensor)",
    "eager_add_norm_with_statistics(Tensor x, Tensor residual, Tensor? weight, int options) -> "
    "(Tensor, Tensor, Tensor)",
    "eager_norm_backward(Tensor x, Tensor dy, Tensor? weight, Tensor? bias, Tensor? mean, "
    "Tensor rstd, Tensor? dresidual_in, int options, int wanted) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
)
_ft, _eager = None, None  # fastnorm.torch, and the operators
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_MOST_OPTIONS = 4096
_eager_options = [None]  # by the numbers that keys have
eager_numbers = {}  # of an operator's options, none of them 0
_OPTIONS_BITS = 8  # below them: the dtype of y plus 1, and OF_MODULE
OF_MODULE = 0x80  # where weight and bias have to be of one dtype, with a value for each column
_eager_lock = threading.Lock()


class _Eager(NamedTuple):
    norm: Any
    add_norm: Any
    fused_add_norm: Any
    norm_with_statistics: Any
    add_norm_with_statistics: Any
    backward: Any


def define_eager(library):
    """Defines the operators of _C.so and gives them, or None where they do not run. library: a
    torch.library.Library. Their result is None where the Python operator has to run."""
    global _eager
    if _stable is None or _loaded is not None:
        return None
    found = []
    for schema in EAGER:
        library.define(schema)
        name = schema.partition("(")[0]
        count = schema.partition("->")[2].count("Tensor")
        absent = (None,) * count if count > 1 else None
        kinds = ["CompositeExplicitAutograd", "NestedTensorCPU", "NestedTensorCUDA"]
        if "!" in schema:  # PyTorch's own kernel for negative views fails there
            kinds.append("Negative")
        for kind in kinds:
            library.impl(name, lambda *_, absent=absent: absent, kind)
        for key in ("Autograd", "ADInplaceOrView"):
            library.impl(name, torch.library.fallthrough_kernel, key)
        call = getattr(torch.ops.fastnorm, name).default
        found.append(getattr(call, "_op", call))  # what the call of an overload ends in
    _eager = _Eager(*found)
    return _eager


def eager_number(kind, eps, offset, rounding, residual_rounding, y_dtype):
    """A new number for options of an operator of _C.so; -1 where the Python operator has to run."""
    ft, dtypes = _ft, {dtype: number for number, dtype in _SCALAR_TYPES.items()}
    is_known = (
        rounding in ft._ROUNDING
        and residual_rounding in ft._RESIDUAL_ROUNDING
        and (y_dtype is None or y_dtype in dtypes)
        and isinstance(eps, (int, float, type(None)))
        and isinstance(offset, (int, float))
    )
    if not is_known or len(_eager_options) >= _MOST_OPTIONS:
        return -1
    with _eager_lock:
        _eager_options.append(
            (
                kind,
                eps,
                offset,
                ft._ROUNDING[rounding],
                ft._RESIDUAL_ROUNDING[residual_rounding],
            )
        )
        number = len(_eager_options) - 1 << _OPTIONS_BITS
    number |= 0 if y_dtype is None else dtypes[y_dtype] + 1
    eager_numbers[kind, eps, offset, rounding, residual_rounding, y_dtype] = number
    return number


# Whether a mode, a transform or a tracer sees what is called. Where PyTorch has none of these, the
# Python operators run.
_is_grad_enabled, _is_compiling = torch.is_grad_enabled, torch.compiler.is_compiling
_transforms = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)
_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
_function_modes = getattr(torch._C, "_len_torch_function_stack", lambda: 1)
_tracer = getattr(torch._C, "_get_tracing_state", lambda: True)


def wants_gradient(x, second=None, third=None):
    """Whether a gradient of these tensors is wanted; None where anything but their norm and its
    gradient is, such as a graph. It is a large part of the time of a short call."""
    if (
        _is_compiling()
        or _transforms()
        or _dispatch_modes()
        or _function_modes()
        or _tracer() is not None
        or forward_ad._current_level >= 0
        or type(x) not in _PLAIN
        or (second is not None and type(second) not in _PLAIN)
        or (third is not None and type(third) not in _PLAIN)
    ):
        return None
    return _is_grad_enabled() and (
        x.requires_grad
        or (second is not None and second.requires_grad)
        or (third is not None and third.requires_grad)
    )


def is_plain(tensors):
    """Whether an operator of these tensors, some of which may be None, only has to run: no gradient
    of theirs is wanted, nothing else sees the call, and all are dense, on a CPU or a GPU."""
    recorded = _is_grad_enabled()
    return wants_gradient(tensors[0]) is False and all(
        t is None
        or type(t) in _PLAIN
        and (t.is_cuda or t.is_cpu)
        and t.layout is torch.strided
        and not t.is_neg()
        and not (recorded and t.requires_grad)
        for t in tensors
    )


# --- nodes of autograd around the operators of _C.so ---

_NUMBERS = {dtype: number for number, dtype in _SCALAR_TYPES.items()}
_WANTS_WEIGHT, _WANTS_BIAS = 1 << 16, 1 << 24  # of eager_norm_backward's last argument


class _Context(NamedTuple):
    """What fastnorm.torch._differentiate asks of a node."""

    saved_tensors: Tuple[Optional[torch.Tensor], ...]
    options: tuple
    wanted: Tuple[bool, bool, bool, bool]
    into: Tuple[None, None] = (None, None)


def _gradients(saved, number, dtypes, wanted, dy, dtotal):
    """The gradients of (x, residual, weight, bias), None where not wanted. By the Python operator
    where a call is not the common one, and where a derivative of the gradients is wanted."""
    x, weight, bias, mean, rstd = saved
    dtype, residual_dtype = dtypes
    wants_x, wants_residual, wants_weight, wants_bias = wanted
    # One gradient serves x and the residual where their dtypes agree.
    own = wants_residual and residual_dtype != dtype
    is_plain = dy is not None and wants_gradient(dy, x, weight) is False
    if is_plain and (dtotal is None or type(dtotal) in _PLAIN):
        word = _NUMBERS[dtype] + 1 if wants_x or wants_residual else 0
        word |= _NUMBERS[residual_dtype] + 1 << 8 if own else 0
        word |= (_WANTS_WEIGHT if wants_weight else 0) | (_WANTS_BIAS if wants_bias else 0)
        found = _eager.backward(x, dy, weight, bias, mean, rstd, dtotal, number, word)
        dx, dresidual, dweight, dbias = found
        if dx is not None or dweight is not None or dbias is not None:
            of_residual = dresidual if own else dx
            return (
                dx if wants_x else None,
                of_residual if wants_residual else None,
                dweight,
                dbias,
            )
    kind, eps, offset, rounding, _ = _eager_options[number >> _OPTIONS_BITS]
    word = list(_ft._ROUNDING)[rounding]
    options = (kind, eps, offset, word, dtype, residual_dtype)
    return _ft._differentiate(_Context(saved, options, wanted), dy, dtotal)


class Norm(torch.autograd.function._SingleLevelFunction):
    """The node of RMSNorm and LayerNorm. apply() gives None where the Python operator has to
    run."""

    @staticmethod
    def forward(context, x, weight, bias, number, kind):
        y, mean, rstd = _eager.norm_with_statistics(x, weight, bias, number, kind)
        if y is not None:
            context.set_materialize_grads(False)
            context.save_for_backward(x, weight, bias, mean, rstd)
            context.number = number
        return y

    @staticmethod
    def backward(context, dy):
        if dy is None:
            return None, None, None, None, None
        saved, needs = context.saved_tensors, context.needs_input_grad
        wanted = needs[0], False, needs[1], needs[2]
        found = _gradients(saved, context.number, (saved[0].dtype, None), wanted, dy, None)
        return found[0], found[2], found[3], None, None


class AddNorm(torch.autograd.function._SingleLevelFunction):
    """The node of RMSNorm of a sum, whose results are y and the sum."""

    @staticmethod
    def forward(context, x, residual, weight, number):
        y, total, rstd = _eager.add_norm_with_statistics(x, residual, weight, number)
        if y is not None:
            context.set_materialize_grads(False)
            context.save_for_backward(total, weight, None, None, rstd)
            context.number, context.dtypes = number, (x.dtype, residual.dtype)
        return y, total

    @staticmethod
    def backward(context, dy, dtotal):
        if dy is None and dtotal is None:
            return None, None, None, None
        needs = context.needs_input_grad
        wanted = needs[0], needs[1], needs[2], False
        found = _gradients(
            context.saved_tensors, context.number, context.dtypes, wanted, dy, dtotal
        )
        return found[0], found[1], found[2], None
