"""libfastnorm through its C ABI, by ctypes alone."""

import ctypes
import hashlib
import sys
import types
from ctypes import POINTER, byref, c_int32, c_int64, c_void_p, sizeof
from pathlib import Path

from compare.ops import HEADS, QUERY_HEADS
from compare.reference import EPS
from compare.tables import NO_SUCH_OPERATION, OWN_PDL
from compare.timing import Unsupported


sys.path.append(str(Path(__file__).resolve().parents[2] / "packages" / "python"))
from fastnorm import abi as ctypes_api  # noqa: E402

CPU, CUDA, LAYER, RMS = ctypes_api.CPU, ctypes_api.CUDA, ctypes_api.LAYER, ctypes_api.RMS
Dtype, FastnormError, Info = ctypes_api.Dtype, ctypes_api.FastnormError, ctypes_api.Info
NormArgs, NormBackwardArgs, Tensor = (
    ctypes_api.NormArgs,
    ctypes_api.NormBackwardArgs,
    ctypes_api.Tensor,
)

PER_TENSOR, PER_ROW = 1, 2
ROUND_NORMALIZED, RESIDUAL_ROUND_BEFORE_STATISTICS = 1, 2
PDL_WAIT, PDL_TRIGGER, PDL_CONSTANT_WEIGHTS = 1, 2, 4
F32 = Dtype(2, 32, 1)
DTYPES = {"torch.float32": F32, "torch.float16": Dtype(2, 16, 1), "torch.bfloat16": Dtype(4, 16, 1),
          "torch.float8_e4m3fn": Dtype(10, 8, 1)}


class Library(ctypes_api.Library):
    def __init__(self, path, older=False):
        super().__init__(path, older)
        many = [c_void_p, POINTER(POINTER(NormArgs)), c_int32]
        self.c.fastnorm_norm_many_query.argtypes = [*many, POINTER(Info)]
        self.c.fastnorm_norm_many_prepare.argtypes = many
        self.c.fastnorm_norm_many.argtypes = [*many, c_void_p, ctypes.c_size_t, c_void_p]
        self.c.fastnorm_build_info.restype = ctypes.c_char_p

    def identity(self):
        """Tells two builds apart."""
        return {"version": self.version(), "build": self.c.fastnorm_build_info().decode(),
                "sha256": hashlib.sha256(Path(self.path).read_bytes()).hexdigest()}


class Call:
    """One fastnorm_norm, or one fastnorm_norm_many of several parts; the structs live as long as
    this."""

    def __init__(self, context, parts):
        self.context, self.parts = context, parts
        self.many = (POINTER(NormArgs) * len(parts))(*(ctypes.pointer(p) for p in parts))
        self.function = context.library.c.fastnorm_norm
        self.workspace, self.workspace_bytes = None, 0

    def query(self):
        c, info = self.context, Info(struct_size=sizeof(Info))
        status = (
            c.library.c.fastnorm_norm_query(c.handle, byref(self.parts[0]), byref(info))
            if len(self.parts) == 1
            else c.library.c.fastnorm_norm_many_query(
                c.handle, self.many, len(self.parts), byref(info)
            )
        )
        c.library.check(status)
        return info

    def prepare(self):
        c = self.context
        c.library.check(
            c.library.c.fastnorm_norm_prepare(c.handle, byref(self.parts[0]))
            if len(self.parts) == 1
            else c.library.c.fastnorm_norm_many_prepare(c.handle, self.many, len(self.parts))
        )

    def run(self, stream):
        c = self.context
        if len(self.parts) == 1:
            status = self.function(
                c.handle, byref(self.parts[0]), self.workspace, self.workspace_bytes, stream
            )
        else:
            status = c.library.c.fastnorm_norm_many(
                c.handle, self.many, len(self.parts), self.workspace, self.workspace_bytes, stream
            )
        c.library.check(status)


class BackwardCall(Call):
    """One fastnorm_norm_backward."""

    def __init__(self, context, args):
        self.context, self.args = context, args
        self.workspace, self.workspace_bytes = None, 0

    def query(self):
        c, info = self.context, Info(struct_size=sizeof(Info))
        c.library.check(
            c.library.c.fastnorm_norm_backward_query(c.handle, byref(self.args), byref(info))
        )
        return info

    def prepare(self):
        c = self.context
        c.library.check(c.library.c.fastnorm_norm_backward_prepare(c.handle, byref(self.args)))

    def run(self, stream):
        c = self.context
        c.library.check(
            c.library.c.fastnorm_norm_backward(
                c.handle, byref(self.args), self.workspace, self.workspace_bytes, stream
            )
        )


class Fastnorm:
    """The library as a contender. What it does not have it says itself, when it is asked
    (query)."""

    name, label = "fastnorm", "fastnorm"
    pdl = False

    def __init__(self, library, machine):
        self.library, self.machine = library, machine
        device = machine.device
        self.device_type, self.device_id = (
            (CUDA, device.index or 0) if device.type == "cuda" else (CPU, 0)
        )
        self.context = self._context()
        self.facts = {}

    def _context(self):
        """One whose calls have programmatic dependent launch only where their flags say so."""
        return ctypes_api.Context(self.library, self.device_type, self.device_id, pdl=False)

    def body(self, case, buffers):
        if self.pdl and self.device_type == CPU:
            raise Unsupported("a CPU launches nothing")
        calls = [
            (
                BackwardCall(self.context, self._backward(case, buffers, i))
                if case.op.backward
                else Call(self.context, self._parts(case, buffers, i))
            )
            for i in range(len(buffers.x))
        ]
        try:
            info = calls[0].query()
            calls[0].prepare()
        except FastnormError as why:
            if str(why).startswith("FASTNORM_ERROR_UNSUPPORTED"):
                raise Unsupported(str(why)) from why
            raise
        if case.op.two_weights and info.launches != 1 and self.device_type == CUDA:
            raise Unsupported(f"takes {info.launches} launches")
        if info.workspace_bytes:
            self._workspace = self._workspace_of(calls, info.workspace_bytes)
        self.facts = {"kernel": info.kernel.decode(), "launches": info.launches}
        stream = self.machine.stream_handle
        return lambda i: calls[i].run(stream)

    def gradients(self, case, buffers, i, outputs):
        """Call i of a backward pass into other tensors, {"dx", "dweight", ..}, which are there on
        return."""
        inputs = {name: getattr(buffers, name)
                  for name in ("x", "dy", "dresidual_in", "rstd", "mean", "weight", "bias")}
        given = types.SimpleNamespace(**inputs, **{name: {i: t} for name, t in outputs.items()})
        call = BackwardCall(self.context, self._backward(case, given, i))
        info = call.query()
        call.prepare()
        memory = self._workspace_of([call], info.workspace_bytes)
        call.run(self.machine.stream_handle)
        self.machine.synchronize()
        del memory  # until here

    def _workspace_of(self, calls, size):
        """Memory that the calls share: they run one after the other in a stream."""
        torch = self.machine.torch
        memory = torch.empty(size + 256, dtype=torch.uint8, device=self.machine.device)
        for call in calls:
            call.workspace = -(-memory.data_ptr() // 256) * 256
            call.workspace_bytes = size
        return memory

    def _tensor(self, t):
        shape, strides = (c_int64 * t.dim())(*t.shape), (c_int64 * t.dim())(*t.stride())
        made = Tensor(
            t.data_ptr(),
            self.device_type,
            self.device_id,
            t.dim(),
            DTYPES[str(t.dtype)],
            shape,
            strides,
            0,
        )
        return ctypes.pointer(made)

    def _backward(self, case, b, i):
        op = case.op
        args = NormBackwardArgs(
            struct_size=sizeof(NormBackwardArgs),
            kind=LAYER if op.layer else RMS,
            eps=EPS,
            flags=PDL_WAIT | PDL_TRIGGER if self.pdl else 0,
        )
        names = ["dy", "x", "rstd", "dx", "dweight"]
        names += ["mean", "dbias"] if op.layer else []
        names += ["dresidual_in"] if op.adds else []
        for name in names:
            setattr(args, name, self._tensor(getattr(b, name)[i]))
        args.weight = self._tensor(b.weight)
        return args

    def _parts(self, case, b, i):
        op = case.op
        flags = PDL_WAIT | PDL_TRIGGER | PDL_CONSTANT_WEIGHTS if self.pdl else 0
        if op.two_weights:
            heads = b.heads_of(b.y[i])
            views = [
                (heads[:, :QUERY_HEADS], b.weight),
                (heads[:, QUERY_HEADS:HEADS], b.key_weight),
            ]
            return [self._args(RMS, flags, x=v, y=v, weight=w) for v, w in views]
        if op.heads:
            view = b.heads_of(b.y[i])
            return [self._args(RMS, flags, x=view, y=view, weight=b.weight)]
        tensors = {"x": b.x[i]}
        if op.own_weights:
            tensors.update(weight=b.weight, bias=b.bias)
        elif op.layer:
            tensors.update(weight=b.weight32, bias=b.bias32)
        else:
            tensors["weight"] = b.weight
        if op.adds:
            tensors.update(residual=b.residual[i], residual_out=b.residual_out[i])
        if op.quantized:
            tensors.update(
                quantized=b.quantized[i], scale=b.row_scale[i] if op.row_scales else b.scale
            )
        else:
            tensors["y"] = b.y[i]
        if op.statistics:
            tensors["rstd"] = b.rstd[i]
            if op.layer:
                tensors["mean"] = b.mean[i]
        args = self._args(LAYER if op.layer else RMS, flags, **tensors)
        args.quant_scheme = PER_ROW if op.row_scales else PER_TENSOR if op.quantized else 0
        return [args]

    def _args(self, kind, flags, **tensors):
        args = NormArgs(struct_size=sizeof(NormArgs), kind=kind, eps=EPS, flags=flags)
        for name, tensor in tensors.items():
            setattr(args, name, self._tensor(tensor))
        return args


class FastnormBefore(Fastnorm):
    """Another build of the library, such as the one before a change: --against."""

    name, label = "fastnorm-before", "fastnorm before"

    def _context(self):
        try:
            return super()._context()
        except FastnormError:  # without that flag, and so without dependent launch by default
            return ctypes_api.Context(self.library, self.device_type, self.device_id)


class FastnormRounded(Fastnorm):
    """The same with the sum and the normalised row rounded to the rows' dtype before they are used,
    as models of Llama's form are published."""

    name, label = "fastnorm-rounded", "fastnorm, Llama's form"
    OPS = ("rms", "add")

    def body(self, case, buffers):
        if case.op_name not in self.OPS:
            raise Unsupported(NO_SUCH_OPERATION)
        return super().body(case, buffers)

    def _args(self, kind, flags, **tensors):
        args = super()._args(kind, flags, **tensors)
        args.rounding = ROUND_NORMALIZED
        if "residual" in tensors:
            args.residual_rounding = RESIDUAL_ROUND_BEFORE_STATISTICS
        return args


class FastnormPdl(Fastnorm):
    """The same, each call waiting for the one before it inside its kernel (programmatic dependent
    launch); the weights are there all the time, and are read before."""

    name, label = OWN_PDL, "fastnorm, PDL"
    pdl = True
    decode_only = True
