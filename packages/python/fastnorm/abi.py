"""libfastnorm from Python by ctypes alone, on NumPy arrays, on what has DLPack, and on GPU memory.

The structs are those of include/fastnorm/*.h. `Library` compares their sizes with the least
that the library takes before anything is called.

A struct that points to a fastnorm_quant has the quant's fields as attributes of its own, which make
the quant where they are set: quant_scheme, quant_block_size, quant_source, quant_division and the
others by their names. Setting alpha also sets its flag, but for 1, which is none.
"""

import ctypes
import functools
import os
import re
import sys
import weakref
from ctypes import POINTER, byref, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint32
from ctypes import c_uint64, c_void_p, sizeof
from pathlib import Path

import numpy as np

from .headers import *

__all__ = [
    "Call",
    "Context",
    "FastnormError",
    "Library",
    "Peer",
    "check_writable",
    "dtype_id",
    "library_path",
    "scalar_names",
    "tensor",
    "tensor_names",
    "written",
]

CPU, CUDA = DeviceType.CPU, DeviceType.CUDA
RMS, LAYER = NormKind.RMS, NormKind.LAYER
NATURAL, BASE_2 = LseBase.NATURAL, LseBase.BASE_2
DRY_RUN = ContextFlags.DRY_RUN
OK = Status.OK
ACCUMULATE_DWEIGHT = NormBackwardFlags.ACCUMULATE_DWEIGHT
ACCUMULATE_DBIAS = NormBackwardFlags.ACCUMULATE_DBIAS
NORM, ROPE = NormHeadsPartFlags.NORM, NormHeadsPartFlags.ROPE
ROPE_INTERLEAVED = NormHeadsPartFlags.ROPE_INTERLEAVED
ROPE_INVERSE = NormHeadsPartFlags.ROPE_INVERSE
ROPE_FROM_ROUNDED = NormHeadsPartFlags.ROPE_FROM_ROUNDED
ACROSS_HEADS = NormHeadsPartFlags.ACROSS_HEADS
MROPE_INTERLEAVED = NormHeadsFlags.MROPE_INTERLEAVED
PDL_WAIT, PDL_TRIGGER = NormFlags.PDL_WAIT, NormFlags.PDL_TRIGGER
PEER_BLOB_BYTES = PeerLimits.BLOB_BYTES
PER_TENSOR, PER_ROW = QuantScheme.PER_TENSOR, QuantScheme.PER_ROW
PER_BLOCK = QuantScheme.PER_BLOCK
QuantPointer = POINTER(Quant)


def dtype_id(dtype) -> int:
    """The number of fastnorm_dtype_id of a Dtype.

    Args:
        dtype: A Dtype.

    Returns:
        code, bits and lanes in one integer.
    """
    return dtype.code | dtype.bits << 8 | dtype.lanes << 16


# NumPy's dtypes that DLPack has a word for. The library says which of them a tensor may have.
DTYPES = {
    np.dtype(f"{kind}{bits // 8}"): Dtype(code, bits, 1)
    for kind, code, sizes in (
        ("f", 2, (16, 32, 64)),
        ("i", 0, (8, 16, 32, 64)),
        ("u", 1, (8, 16, 32, 64)),
        ("c", 5, (64, 128)),
    )
    for bits in sizes
}
DTYPES[np.dtype(np.bool_)] = Dtype(6, 8, 1)
# Dtypes that the package ml_dtypes adds to NumPy, by name.
ML_DTYPES = {
    "bfloat16": BF16,
    "float8_e4m3fn": F8_E4M3FN,
    "float8_e5m2": F8_E5M2,
    "float8_e8m0fnu": F8_E8M0FNU,
}


def _quant_of(struct, pointer):
    """The Quant that a struct's pointer leads to, which is made where there is none."""
    made = struct.__dict__.setdefault("quants", {})
    if pointer not in made:
        made[pointer] = Quant(struct_size=sizeof(Quant))
        setattr(struct, pointer, ctypes.pointer(made[pointer]))
    return made[pointer]


def _field_of_quant(pointer, name):
    """An attribute of a struct that is a field of the Quant behind one of its pointers."""

    def get(struct):
        found = struct.__dict__.get("quants", {}).get(pointer)
        return getattr(Quant() if found is None else found, name)

    return property(get, lambda struct, value: setattr(_quant_of(struct, pointer), name, value))


def _quant_names(prefix, prefixed):
    """The attributes of a struct for the fields of a Quant: some with a prefix, others as they
    are."""
    names = [name for name, _ in Quant._fields_[1:]]
    return {prefix + name if name in prefixed else name: name for name in names}


def _add_quant(struct, pointer, names):
    """Adds these attributes to a class."""
    for attribute, name in names.items():
        setattr(struct, attribute, _field_of_quant(pointer, name))
    known = dict(Quant._fields_)
    struct.QUANTS = {
        **getattr(struct, "QUANTS", {}),
        **{attribute: known[name] for attribute, name in names.items()},
    }


OF_QUANT = _quant_names("quant_", {"scheme", "block_size", "source", "division"})


def _add_alpha(struct, flag):
    """Setting the field alpha sets this flag as well, which later flags keep. An alpha of 1 is
    none."""
    alpha, flags = struct.alpha, struct.flags

    def put_alpha(args, value):
        alpha.__set__(args, 0 if value == 1 else value)
        others = flags.__get__(args) & ~flag
        flags.__set__(args, others if value == 1 else others | flag)

    def put_flags(args, value):
        flags.__set__(args, value | flags.__get__(args) & flag)

    struct.alpha = property(alpha.__get__, put_alpha)
    struct.flags = property(flags.__get__, put_flags)


_add_alpha(NormArgs, NormFlags.ALPHA)
_add_alpha(NormBackwardArgs, NormBackwardFlags.ALPHA)
_add_quant(NormArgs, "quant", OF_QUANT)
_add_quant(NormHeadsPart, "quant", OF_QUANT)
_add_quant(
    NormHeadsPart,
    "cache_quant",
    {
        "cache_pow2": "scale_pow2",
        **{
            f"cache_{name}": name
            for name in ("scheme", "block_size", "scale", "rotation", "rotation_signs")
        },
    },
)


def _of_both(name, schemes):
    """An attribute of a NormHeadsPart that is a field of each of its quants whose scheme has a use
    for it, which must agree; of y's where none has, which the library refuses."""
    quant, cache = (_field_of_quant(pointer, name) for pointer in ("quant", "cache_quant"))

    def put(part, value):
        of_cache = part.cache_scheme in schemes
        if of_cache:
            cache.fset(part, value)
        if part.quant_scheme in schemes or not of_cache:
            quant.fset(part, value)

    return property(lambda part: cache.fget(part) or quant.fget(part), put)


for _name, _field, _schemes in (
    ("quant_source", "source", range(1, 7)),
    ("quant_division", "division", range(PER_TENSOR, PER_BLOCK + 1)),
    ("amax_floor", "amax_floor", (PER_ROW, PER_BLOCK)),
):
    setattr(NormHeadsPart, _name, _of_both(_field, _schemes))


@functools.lru_cache(maxsize=None)
def _names(struct):
    """The fields of a struct that a caller sets, with those of its quants; each with its type."""
    inner = (QuantPointer, POINTER(NormArgs))
    own = {
        name: kind
        for name, kind in struct._fields_
        if kind not in inner and name != "struct_size" and not name.endswith("reserved")
    }
    return {**own, **getattr(struct, "QUANTS", {})}


@functools.lru_cache(maxsize=None)
def tensor_names(struct) -> tuple:
    """Names of the fields of a struct that are tensors, with those of its quants.

    Args:
        struct: A class of arguments, such as NormArgs.

    Returns:
        The names.
    """
    return tuple(name for name, kind in _names(struct).items() if kind is TensorPointer)


@functools.lru_cache(maxsize=None)
def scalar_names(struct) -> tuple:
    """Names of the other fields of a struct that a caller sets.

    Args:
        struct: A class of arguments, such as NormArgs.

    Returns:
        The names.
    """
    return tuple(name for name, kind in _names(struct).items() if kind is not TensorPointer)


TENSORS, SCALARS = tensor_names(NormArgs), scalar_names(NormArgs)

# What a call writes, also by its quant. A scale is written but where it is static, which its scheme
# says.
WRITTEN = {
    struct: names | (OUTPUTS[Quant] if hasattr(struct, "QUANTS") else set())
    for struct, names in OUTPUTS.items()
}
_SCHEME_OF_SCALE = {"scale": "quant_scheme", "cache_scale": "cache_scheme"}


def written(struct, fields) -> set:
    """Names of the tensors among the fields that a call writes.

    Args:
        struct: A class of arguments, such as NormArgs.
        fields: The fields of the call by name. The schemes among them say whether scales are
            written.

    Returns:
        The names.
    """
    names = WRITTEN.get(struct, set())
    return {
        name
        for name in fields
        if name in names
        or name in _SCHEME_OF_SCALE
        and fields.get(_SCHEME_OF_SCALE[name]) not in (None, 0, PER_TENSOR)
    }


def check_writable(name, array):
    """Refuses an output that may not be written: a JAX array, which is immutable and may share its
    memory with others, and a read-only NumPy array.

    Args:
        name: What the error calls the array.
        array: The array.

    Raises:
        ValueError: The array may not be written.
    """
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(array, jax.Array):
        raise ValueError(
            f"{name} is a JAX array, which is immutable; required: an array that can be written. "
            "fastnorm.jax returns its results as new arrays"
        )
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        raise ValueError(f"{name} is read-only; required: an array that can be written")


def tensor(address, device_type, device_id, dtype, shape, strides) -> Tensor:
    """A tensor struct. It keeps the arrays that it points to.

    Args:
        address: The address of the first element.
        device_type: CPU or CUDA.
        device_id: The number of the GPU, 0 for a CPU.
        dtype: A Dtype.
        shape: The extents, in elements.
        strides: The strides, in elements.

    Returns:
        The Tensor.
    """
    extents = c_int64 * len(shape)
    return Tensor(
        address, device_type, device_id, len(shape), dtype, extents(*shape), extents(*strides), 0
    )


def library_path() -> str:
    """The file of the library: the one that FASTNORM_LIBRARY names, else that of this package, else
    the name that the loader looks for.

    Returns:
        The path or name.
    """
    beside = Path(__file__).parent / "lib" / "libfastnorm.so.1"
    return os.environ.get("FASTNORM_LIBRARY", str(beside) if beside.exists() else beside.name)


class FastnormError(RuntimeError):
    """A call failed. str() has the status' name, such as FASTNORM_ERROR_SHAPE, and the library's
    text, which names the argument and what is required."""


def _readable(text):
    """A text of the library with words for dtypes that it only has numbers for."""

    def word(found):
        code, bits, lanes = map(int, found.groups())
        kind = {0: "i", 1: "u", 2: "f", 5: "c"}.get(code)
        if lanes != 1:
            return found.group()
        return "bool" if (code, bits) == (6, 8) else f"{kind}{bits}" if kind else found.group()

    return re.sub(r"\{code (\d+), bits (\d+), lanes (\d+)\}", word, text)


class Library:
    """The functions of a loaded libfastnorm. The sizes of all structs are compared with the least
    that the library takes.

    Args:
        path: The file, or a name that the loader finds.
        older: Whether the library may be of an earlier version, whose structs are shorter.

    Raises:
        OSError: The file does not load.
        FastnormError: A struct is longer or shorter than the library takes.
    """

    def __init__(self, path, older=False):
        self.path = path
        self.c = ctypes.CDLL(str(path))
        self.missing = set()  # functions of families that this library does not have
        for name, (returns, arguments) in FUNCTIONS.items():
            try:
                function = getattr(self.c, name)
            except AttributeError:
                self.missing.add(name)
            else:
                function.restype, function.argtypes = returns, arguments
        self._check_sizes(older)

    def version(self) -> str:
        """The version, such as "0.2.0".

        Returns:
            The version.
        """
        return self.c.fastnorm_version_string().decode()

    def check(self, status):
        """Raises the library's error of a status that is not OK.

        Args:
            status: What a function of the library returned.

        Raises:
            FastnormError: status is not OK. The text has its name and fastnorm_last_error().
        """
        if status != OK:
            name = self.c.fastnorm_status_name(status).decode()
            raise FastnormError(f"{name}: {_readable(self.c.fastnorm_last_error().decode())}")

    def device_count(self, device_type) -> int:
        """How many devices of a type there are.

        Args:
            device_type: CPU or CUDA.

        Returns:
            The number.
        """
        count = c_int32()
        self.check(self.c.fastnorm_device_count(device_type, byref(count)))
        return count.value

    def describe(self, device_type, device_id=0) -> DeviceInfo:
        """What fastnorm_device_describe says of a device.

        Args:
            device_type: CPU or CUDA.
            device_id: The number of the GPU.

        Returns:
            A DeviceInfo with name, multiprocessors, bytes of memory and of L2, driver.

        Raises:
            FastnormError: There is no such device.
        """
        info = DeviceInfo(struct_size=sizeof(DeviceInfo))
        self.check(self.c.fastnorm_device_describe(Device(device_type, device_id), byref(info)))
        return info

    def _required_size(self, status):
        """What the library's text says that a struct_size must at least be."""
        text = self.c.fastnorm_last_error().decode()
        found = re.search(r"struct_size is \d+; required: at least (\d+)", text)
        if status == OK or not found:
            raise FastnormError(f"no struct_size was asked for, but: {text or 'success'}")
        return int(found.group(1))

    def _asking(self, context):
        """Each struct, and a call by which the library says what size it must at least have."""
        device, info = Device(CPU, 0), byref(Info(struct_size=sizeof(Info)))
        create, describe = self.c.fastnorm_context_create, self.c.fastnorm_device_describe
        yield DeviceInfo, lambda s: describe(device, byref(s))
        yield ContextOptions, lambda s: create(device, byref(s), byref(c_void_p()))
        if "fastnorm_peer_buffer_bytes" not in self.missing:
            size = self.c.fastnorm_peer_buffer_bytes
            yield PeerOptions, lambda s: size(context, byref(s), byref(c_uint64()))
        norm = NormArgs(struct_size=sizeof(NormArgs))

        def of_quant(quant):
            norm.quant = ctypes.pointer(quant)
            return self.c.fastnorm_norm_query(context, byref(norm), info)

        yield Quant, of_quant
        for name, (args, part) in FAMILIES.items():
            if f"fastnorm_{name}_query" in self.missing:
                continue
            query = functools.partial(getattr(self.c, f"fastnorm_{name}_query"), context)
            if part is None:
                yield args, lambda s, query=query: query(byref(s), info)
                continue
            whole = args(struct_size=sizeof(args))
            yield args, lambda s, query=query: query(byref(s), None, 0, info)
            yield (
                part,
                lambda s, query=query, whole=whole: query(
                    byref(whole), byref(ctypes.pointer(s)), 1, info
                ),
            )

    def _check_sizes(self, older):
        """Each struct, claimed to be one byte long, is refused with the size that its first version
        has. An older library may ask for less: it takes longer structs whose rest is zero."""
        context = c_void_p()
        self.check(self.c.fastnorm_context_create(Device(CPU, 0), None, byref(context)))
        try:
            for struct, call in self._asking(context):
                required, here = self._required_size(call(struct(struct_size=1))), sizeof(struct)
                if required > here or (required < here and not older):
                    raise FastnormError(
                        f"{struct.__name__} has at least {here} bytes here and "
                        f"{required} in {self.path}"
                    )
        finally:
            self.c.fastnorm_context_destroy(context)


class Context:
    """One device of the library. Calls of a context may run in several threads at once.

    Args:
        library: The Library.
        device_type: CPU or CUDA.
        device_id: The number of the GPU, 0 for a CPU.
        num_threads: Threads of a call on the CPU, the calling thread included; 0 stands for 1.
        dry_run_capability: A compute capability such as 90 makes a context that plans for such a
            GPU and runs nothing. 0 is a device.
        pdl: Whether calls on a GPU use programmatic dependent launch unless their flags turn it
            off. False: only where their flags ask for it.
        parallel_for: The address of a C function, fastnorm_parallel_for_fn, that shares the work of
            calls on the CPU. num_threads has no effect then. 0: none.

    Raises:
        FastnormError: There is no such device, or no driver for it.
    """

    def __init__(
        self,
        library,
        device_type=CPU,
        device_id=0,
        num_threads=0,
        dry_run_capability=0,
        pdl=True,
        parallel_for=0,
    ):
        self.library, self.device_type, self.device_id = library, device_type, device_id
        self.num_threads = num_threads
        options = ContextOptions(
            struct_size=sizeof(ContextOptions),
            num_threads=num_threads,
            parallel_for=parallel_for or None,
            flags=(DRY_RUN if dry_run_capability else 0)
            | (0 if pdl else ContextFlags.NO_PDL),
            dry_run_capability=dry_run_capability,
        )
        self.handle = c_void_p()
        library.check(
            library.c.fastnorm_context_create(
                Device(device_type, device_id), byref(options), byref(self.handle)
            )
        )
        destroy, handle = library.c.fastnorm_context_destroy, c_void_p(self.handle.value)
        self._destroy = weakref.finalize(self, destroy, handle)
        self._destroy.atexit = False  # a thread of the program may still be in a call
        if device_type != CPU:
            # Work that was queued may still run: only close() ends such a context.
            self._destroy.detach()
            self._destroy = lambda: destroy(handle)

    def close(self):
        """Ends the context. One of the CPU ends by itself, too: with the last of it and of its
        calls. One of a GPU ends by close() alone, when no work that was queued runs any more.
        """
        if self.handle:
            self._destroy()
        self.handle = c_void_p()

    def call(self, kind=RMS, stream=None, **fields) -> "Call":
        """A norm, fastnorm_norm.

        An array is a NumPy array, a DeviceArray, or what has `__dlpack__`. Also what has address,
        shape, dtype (a Dtype, too), strides in bytes and itemsize, in the memory of the context's
        device.

        Args:
            kind: RMS or LAYER.
            stream: The cudaStream_t as a number, None for the default stream.
            fields: The fields of fastnorm_norm_args by name, and those of its quant as attributes
                of NormArgs are.

        Returns:
            A Call, whose run() and query() may be called again and again.

        Raises:
            TypeError: A field is unknown, or an array has no `__dlpack__`.
            ValueError: An output may not be written.
            FastnormError: An array is on another device, or of no dtype of the library.
        """
        return Call(self, "norm", stream, fields, kind=kind)

    def norm_backward(self, kind=RMS, stream=None, **fields) -> "Call":
        """The call fastnorm_norm_backward, with arrays as those of call().

        Args:
            kind: RMS or LAYER.
            stream: The cudaStream_t as a number, None for the default stream.
            fields: The fields of fastnorm_norm_backward_args by name.

        Returns:
            A Call, whose run() and query() may be called again and again.

        Raises:
            TypeError: A field is unknown, or an array has no `__dlpack__`.
            ValueError: An output may not be written.
            FastnormError: An array is on another device, or of no dtype of the library.
        """
        return Call(self, "norm_backward", stream, fields, kind=kind)

    def norm_heads(self, parts, stream=None, **fields) -> "Call":
        """The call fastnorm_norm_heads, with arrays as those of call().

        Args:
            parts: For each part a dict of the fields of fastnorm_norm_heads_part.
            stream: The cudaStream_t as a number, None for the default stream.
            fields: The fields of fastnorm_norm_heads_args by name.

        Returns:
            A Call, whose run() and query() may be called again and again.

        Raises:
            TypeError: A field is unknown, or an array has no `__dlpack__`.
            ValueError: An output may not be written.
            FastnormError: An array is on another device, or of no dtype of the library.
        """
        return Call(self, "norm_heads", stream, fields, parts)

    def norm_heads_backward(self, parts, stream=None, **fields) -> "Call":
        """The call fastnorm_norm_heads_backward, with arrays as those of call().

        Args:
            parts: For each part a dict of the fields of fastnorm_norm_heads_backward_part.
            stream: The cudaStream_t as a number, None for the default stream.
            fields: The fields of fastnorm_norm_heads_backward_args by name.

        Returns:
            A Call, whose run() and query() may be called again and again.

        Raises:
            TypeError: A field is unknown, or an array has no `__dlpack__`.
            ValueError: An output may not be written.
            FastnormError: An array is on another device, or of no dtype of the library.
        """
        return Call(self, "norm_heads_backward", stream, fields, parts)

    def mla_decode(self, stream=None, **fields) -> "Call":
        """The call fastnorm_mla_decode, with arrays as those of call().

        Args:
            stream: The cudaStream_t as a number, None for the default stream.
            fields: The fields of fastnorm_mla_decode_args by name.

        Returns:
            A Call, whose run() and query() may be called again and again.

        Raises:
            TypeError: A field is unknown, or an array has no `__dlpack__`.
            ValueError: An output may not be written.
            FastnormError: An array is on another device, or of no dtype of the library.
        """
        return Call(self, "mla_decode", stream, fields)

    def peer_allreduce_norm(self, peer, stream=None, **fields) -> "Call":
        """The call fastnorm_peer_allreduce_norm, with arrays as those of call().

        Args:
            peer: A connected Peer.
            stream: The cudaStream_t as a number, None for the default stream.
            fields: sum_rounding, and the fields of fastnorm_norm_args, by name.

        Returns:
            A Call, whose run() and query() may be called again and again.

        Raises:
            TypeError: A field is unknown, or an array has no `__dlpack__`.
            ValueError: An output may not be written.
            FastnormError: An array is on another device, or of no dtype of the library.
        """
        return PeerAllreduceCall(self, peer, stream, fields)

    def peer_sharded_norm(self, peer, stream=None, **fields) -> "Call":
        """The call fastnorm_peer_sharded_norm, with arrays as those of call().

        Args:
            peer: A connected Peer.
            stream: The cudaStream_t as a number, None for the default stream.
            fields: The fields of fastnorm_peer_sharded_norm_args by name.

        Returns:
            A Call, whose run() and query() may be called again and again.

        Raises:
            TypeError: A field is unknown, or an array has no `__dlpack__`.
            ValueError: An output may not be written.
            FastnormError: An array is on another device, or of no dtype of the library.
        """
        call = Call(self, "peer_sharded_norm", stream, fields, peer=peer.handle)
        call._peer = peer  # lives as long as the call
        return call


class _ManagedVersioned(ctypes.Structure):
    """DLManagedTensorVersioned of DLPack 1, up to its tensor."""

    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", Tensor),
    ]


class Exported:
    """The memory of what has __dlpack__, for as long as this object lives. A DLTensor is laid out
    as fastnorm_tensor is. The struct that an unversioned capsule holds begins with one; that of
    DLPack 1 has flags before it."""

    _name = ctypes.PYFUNCTYPE(c_char_p, ctypes.py_object)(
        ("PyCapsule_GetName", ctypes.pythonapi)
    )
    _pointer = ctypes.PYFUNCTYPE(c_void_p, ctypes.py_object, c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    _VERSION = (1, 0)  # later minor versions are laid out alike
    _READ_ONLY, _COPIED = 1, 2  # flags

    def __init__(self, name, array, device_type, stream=None, is_output=False):
        if not hasattr(array, "__dlpack__"):
            raise TypeError(
                f"{name} is {type(array).__name__}; required: a NumPy array or one with __dlpack__"
            )
        found = int(array.__dlpack_device__()[0])
        if found != device_type:
            raise FastnormError(
                f"FASTNORM_ERROR_DEVICE: {name} is on a device of DLPack's type {found}; "
                f"required: {device_type}, the context's"
            )
        self.array, self.capsule = array, self._capsule(array, device_type, stream)
        self.tensor = self._tensor(name, is_output)

    def _capsule(self, array, device_type, stream):
        # The exporter makes its work visible to this stream; DLPack calls the default stream 1.
        more = {} if device_type == CPU else {"stream": int(stream or 1)}
        try:
            return array.__dlpack__(max_version=self._VERSION, **more)
        except TypeError:  # an exporter from before DLPack 1
            return array.__dlpack__(**more)

    def _tensor(self, name, is_output):
        kind = self._name(self.capsule)
        if kind == b"dltensor":
            return Tensor.from_address(self._pointer(self.capsule, kind))
        if kind != b"dltensor_versioned":
            raise FastnormError(
                f"FASTNORM_ERROR_ARGUMENT: {name}.__dlpack__() gives a capsule named "
                f"{(kind or b'').decode()!r}; required: 'dltensor' or 'dltensor_versioned'"
            )
        managed = _ManagedVersioned.from_address(self._pointer(self.capsule, kind))
        if managed.major != self._VERSION[0]:
            raise FastnormError(
                f"FASTNORM_ERROR_ARGUMENT: {name}.__dlpack__() gives DLPack {managed.major}."
                f"{managed.minor}; required: {self._VERSION[0]}"
            )
        if is_output and managed.flags & (self._READ_ONLY | self._COPIED):
            word = "read-only" if managed.flags & self._READ_ONLY else "given as a copy"
            raise ValueError(f"{name} is {word}; required: an array that can be written")
        return managed.tensor


def _dtype_of(name, dtype):
    """The Dtype of a NumPy dtype in the machine's order of bytes."""
    word = dtype if isinstance(dtype, Dtype) else DTYPES.get(dtype)
    if word is None and getattr(dtype, "isnative", True):
        word = ML_DTYPES.get(getattr(dtype, "name", None))
    if word is None:
        raise FastnormError(
            f"FASTNORM_ERROR_DTYPE: {name}.dtype is {dtype}; required: a number's, in the order of "
            f"bytes of this machine; of ml_dtypes one of {', '.join(ML_DTYPES)}"
        )
    return word


def _strides_of(name, array):
    """Strides in elements. Those of extents of 0 and 1, and of empty arrays, reach no memory."""
    shape, strides, size = array.shape, array.strides, array.itemsize
    if 0 not in shape and any(n > 1 and s % size != 0 for n, s in zip(shape, strides)):
        raise FastnormError(
            f"FASTNORM_ERROR_LAYOUT: {name} has strides of {tuple(strides)} bytes; "
            f"required: multiples of {size}"
        )
    return [s // size for s in strides]


class Call:
    """One filled struct of arguments. The methods of a Context make it; run() and query() may be
    called again and again. It keeps the arrays alive in its list `tensors`. Its `stream` is where
    run() queues it, and may be changed.

    Args:
        context: The Context.
        family: The name of the C function without fastnorm_.
        stream: As for Context.call.
        fields: The fields by name.
        parts: A dict of fields for each part.
        given: Fields that are no arguments of the caller.
    """

    def __init__(self, context, family, stream, fields, parts=(), **given):
        self._context, self.stream = context, stream
        c, (args, part) = context.library.c, FAMILIES[family]
        self._run = getattr(c, f"fastnorm_{family}")
        self._query = getattr(c, f"fastnorm_{family}_query")
        self.tensors = []  # pairs of an array, which is kept, and its Tensor
        self.args = self._filled(args(struct_size=sizeof(args), **given), fields)
        self._arguments = (byref(self.args),)  # of the functions, behind the context
        if part is not None:
            self.parts = [self._filled(part(struct_size=sizeof(part)), own) for own in parts]
            list_of = POINTER(part) * len(parts)
            self._arguments += (list_of(*map(ctypes.pointer, self.parts)), len(parts))

    def _filled(self, struct, fields):
        """The struct with these fields."""
        tensors, scalars = tensor_names(type(struct)), scalar_names(type(struct))
        unknown = set(fields) - set(tensors) - set(scalars)
        if unknown:
            raise TypeError(f"no such fields: {sorted(unknown)}")
        outputs = written(type(struct), fields)
        for name in outputs:
            check_writable(name, fields[name])
        # Schemes first, as some fields of heads are those of the quants that have one.
        for name, value in sorted(fields.items(), key=lambda field: "scheme" not in field[0]):
            if name in scalars:
                setattr(struct, name, value)
            elif value is not None:
                found = self._tensor(name, value, name in outputs)
                setattr(struct, name, ctypes.pointer(found))
        return struct

    def _tensor(self, name, array, is_output):
        on_host = isinstance(array, np.ndarray)
        device = self._context.device_type, self._context.device_id
        if not on_host and not hasattr(array, "address"):
            array = Exported(name, array, device[0], self.stream, is_output)
            self.tensors.append((array, array.tensor))
            return array.tensor
        # A NumPy array is in host memory, whatever the context's device is.
        address, device = (array.ctypes.data, (CPU, 0)) if on_host else (array.address, device)
        dtype, strides = _dtype_of(name, array.dtype), _strides_of(name, array)
        found = tensor(address, *device, dtype, array.shape, strides)
        self.tensors.append((array, found))
        return found

    def run(self, workspace=None, workspace_bytes=0):
        """Runs the call: on a CPU it is done at the return, on a GPU it is queued on the stream.

        Args:
            workspace: An address aligned to 256 bytes on the device. Norms need none.
            workspace_bytes: Its size, at least what query() says.

        Raises:
            FastnormError: The library refuses the call.
        """
        c = self._context
        c.library.check(
            self._run(c.handle, *self._arguments, workspace, workspace_bytes, self.stream)
        )

    def query(self) -> Info:
        """What the call would do, without doing it.

        Returns:
            An Info with kernel, launches, bytes read and written, bytes of workspace.

        Raises:
            FastnormError: The library refuses the call.
        """
        info = Info(struct_size=sizeof(Info))
        c = self._context
        c.library.check(self._query(c.handle, *self._arguments, byref(info)))
        return info

    def run_on_cpu(self):
        """run() of a call on the CPU, with a workspace made for it.

        Raises:
            FastnormError: The library refuses the call.
        """
        size = self.query().workspace_bytes
        memory = np.empty(size + 255, np.uint8)
        self.run((memory.ctypes.data + 255) & ~255 if size else None, size)


class PeerAllreduceCall(Call):
    def __init__(self, context, peer, stream, fields):
        own = {name: fields[name] for name in fields if name == "sum_rounding"}
        super().__init__(context, "peer_allreduce_norm", stream, own, peer=peer.handle)
        norm = {name: value for name, value in fields.items() if name not in own}
        self.norm = self._filled(NormArgs(struct_size=sizeof(NormArgs)), norm)
        self.args.norm = ctypes.pointer(self.norm)
        self._peer = peer


class Peer:
    """One rank's end of a group. The caller brings the blobs of all ranks to each, by any means.

    Args:
        context: The Context of the rank's device.
        options: The fields of fastnorm_peer_options by name; dtype is a Dtype.

    Raises:
        FastnormError: An option is out of range, or the device cannot be a peer.
    """

    def __init__(self, context, **options):
        options["dtype"] = dtype_id(options["dtype"])
        struct = PeerOptions(struct_size=sizeof(PeerOptions), **options)
        self._context, self.handle = context, c_void_p()
        c = context.library.c
        self._check(c.fastnorm_peer_create(context.handle, byref(struct), byref(self.handle)))

    def _check(self, status):
        self._context.library.check(status)

    def blob(self) -> bytes:
        """What the other ranks need to reach this one.

        Returns:
            128 bytes.

        Raises:
            FastnormError: The memory cannot be shared.
        """
        made = ctypes.create_string_buffer(PEER_BLOB_BYTES)
        c = self._context.library.c
        self._check(c.fastnorm_peer_export(self.handle, made, PEER_BLOB_BYTES))
        return made.raw

    def connect(self, blobs):
        """Connects this rank with the others.

        Args:
            blobs: Those of all ranks, in rank order.

        Raises:
            FastnormError: A blob is of another group, or its memory cannot be reached.
        """
        every = b"".join(blobs)
        c = self._context.library.c
        self._check(c.fastnorm_peer_import(self.handle, every, len(every)))

    def close(self):
        """Ends this rank's end of the group. No call of it may run any more."""
        self._context.library.c.fastnorm_peer_destroy(self.handle)
        self.handle = c_void_p()


class Devmem:
    """GPU memory by tests/support/devmem.h, whose C functions return 0 or an error."""

    def __init__(self, path, device_id=0):
        self.c = c = ctypes.CDLL(str(path))
        pointer_out = POINTER(c_void_p)
        c.devmem_error.restype = c_char_p
        c.devmem_open.argtypes = [c_int32, pointer_out]
        c.devmem_close.argtypes = [c_void_p]
        c.devmem_close.restype = None
        c.devmem_alloc.argtypes = [c_void_p, c_size_t, pointer_out]
        c.devmem_free.argtypes = [c_void_p, c_void_p]
        c.devmem_upload.argtypes = [c_void_p, c_void_p, c_void_p, c_size_t]
        c.devmem_download.argtypes = [c_void_p, c_void_p, c_void_p, c_size_t]
        c.devmem_copy.argtypes = [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p]
        c.devmem_stream_create.argtypes = [c_void_p, pointer_out]
        c.devmem_stream_synchronize.argtypes = [c_void_p, c_void_p]
        c.devmem_event_create.argtypes = [c_void_p, pointer_out]
        c.devmem_event_record.argtypes = [c_void_p, c_void_p, c_void_p]
        c.devmem_event_elapsed_ms.argtypes = [c_void_p, c_void_p, c_void_p, POINTER(c_float)]
        self.handle = c_void_p()
        self.check(c.devmem_open(device_id, byref(self.handle)))
        self.stream = self._made(c.devmem_stream_create)
        self._events = [self._made(c.devmem_event_create) for _ in range(2)]

    def check(self, error):
        if error != 0:
            raise FastnormError(self.c.devmem_error().decode())

    def _made(self, create):
        handle = c_void_p()
        self.check(create(self.handle, byref(handle)))
        return handle

    def copy(self, to, source):
        """Queues a copy inside the device."""
        self.check(
            self.c.devmem_copy(self.handle, to.address, source.address, source.nbytes, self.stream)
        )

    def synchronize(self):
        self.check(self.c.devmem_stream_synchronize(self.handle, self.stream))

    def elapsed_us(self, work):
        """Microseconds on the GPU of what work() queues."""
        start, stop = self._events
        self.check(self.c.devmem_event_record(self.handle, start, self.stream))
        work()
        self.check(self.c.devmem_event_record(self.handle, stop, self.stream))
        milliseconds = c_float()
        self.check(self.c.devmem_event_elapsed_ms(self.handle, start, stop, byref(milliseconds)))
        return milliseconds.value * 1e3


class DeviceArray:
    """A compact array in GPU memory; freed with this object."""

    def __init__(self, devmem, host=None, shape=None, dtype=np.float32):
        self._devmem = devmem
        self.shape = tuple(host.shape if host is not None else shape)
        self.dtype = np.dtype(host.dtype if host is not None else dtype)
        self.ndim, self.itemsize = len(self.shape), self.dtype.itemsize
        self.nbytes = int(np.prod(self.shape, dtype=np.int64)) * self.itemsize
        strides = [self.itemsize]
        for extent in self.shape[:0:-1]:
            strides.insert(0, strides[0] * extent)
        self.strides = tuple(strides)
        found = c_void_p()
        devmem.check(devmem.c.devmem_alloc(devmem.handle, self.nbytes, byref(found)))
        self.address = found.value
        if host is not None:
            self.upload(host)

    def upload(self, host):
        host = np.ascontiguousarray(host, self.dtype)
        d = self._devmem
        d.check(d.c.devmem_upload(d.handle, self.address, host.ctypes.data, self.nbytes))

    def download(self, out=None):
        host = np.empty(self.shape, self.dtype) if out is None else out
        d = self._devmem
        d.check(d.c.devmem_download(d.handle, host.ctypes.data, self.address, self.nbytes))
        return host

    def __del__(self):
        if getattr(self, "address", None):
            self._devmem.c.devmem_free(self._devmem.handle, self.address)
