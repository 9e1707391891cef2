"""Everybody else who computes the same: one class a peer, in the order in which they are tried.

A peer is made from the module torch; its imports are in __init__, so one that is not installed only
says so. body(case, buffers) returns a function that runs call i. Where that returns a dict, it has
the tensors of the results ("y", "sum", "quantized"; "dx", "dweight", "dbias" of a backward pass);
else they are in the buffers. Peers work with the functions of their packages that are nearest to
the kernel.
"""

import functools
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import types

from compare.ops import QUERY_HEADS
from compare.reference import EPS, QMAX
from compare.tables import NO_SUCH_OPERATION
from compare.timing import Unsupported


GRADIENTS = ("dx", "dweight", "dbias")


def gradients(tensors):
    """A peer's results by name: dx, dweight and, of LayerNorm, dbias."""
    return dict(zip(GRADIENTS, tensors))


def added_later(backward, buffers):
    """A backward pass whose dresidual_in is added by a kernel of its own."""

    def run(i):
        found = backward(i)
        found["dx"].add_(buffers.dresidual_in[i])
        return found

    return run


def columns(tensors):
    """[rows] as [rows, 1]."""
    return [t.unsqueeze(-1) for t in tensors]


def rows_of(tensors):
    """[rows, n] or [rows] as cuDNN's [rows, n or 1, 1, 1]."""
    return [t.view(t.shape[0], -1, 1, 1) for t in tensors]


def parameter_of(tensor):
    """[n] as cuDNN's [1, n, 1, 1]."""
    return tensor.view(1, -1, 1, 1)


class Peer:
    name = label = ""
    package = ""  # whose version is noted
    slow = False  # compiles for seconds a shape: comes after all others were timed
    decode_only = False

    def __init__(self, torch):
        self.torch = torch

    def has(self, case):
        return hasattr(self, case.op_name)

    def body(self, case, buffers):
        if not self.has(case):
            raise Unsupported(NO_SUCH_OPERATION)
        return getattr(self, case.op_name)(case, buffers)

    def views(self, buffers):
        """The heads to normalise in place, of every call."""
        return [buffers.heads_of(y) for y in buffers.y]

    def two_views(self, buffers):
        """The same as (query heads, key heads)."""
        return [(v[:, :QUERY_HEADS], v[:, QUERY_HEADS:]) for v in self.views(buffers)]


class TorchNative(Peer):
    """PyTorch's own kernels, one after the other where no single one does it all."""

    name, label, package = "torch", "torch", "torch"

    def rms(self, case, b):
        norm = self.torch.nn.functional.rms_norm
        return lambda i: {"y": norm(b.x[i], (case.n,), b.weight, EPS)}

    def add(self, case, b):
        norm = self.torch.nn.functional.rms_norm

        def run(i):
            sums = b.x[i] + b.residual[i]
            return {"y": norm(sums, (case.n,), b.weight, EPS), "sum": sums}

        return run

    def layer(self, case, b):
        # Its GPU kernel wants parameters of the rows' dtype; the values are exact in 16 bits.
        weight, bias = b.weight, b.bias32.to(b.weight.dtype)
        norm = self.torch.nn.functional.layer_norm
        return lambda i: {"y": norm(b.x[i], (case.n,), weight, bias, EPS)}

    layer_own = layer

    def rms_backward(self, case, b):
        backward = self.torch.ops.aten._fused_rms_norm_backward
        rstd = columns(b.rstd)
        return lambda i: dict(
            zip(GRADIENTS, backward(b.dy[i], b.x[i], [case.n], rstd[i], b.weight, [True] * 2))
        )

    def add_backward(self, case, b):
        return added_later(self.rms_backward(case, b), b)

    def layer_backward(self, case, b):
        backward = self.torch.ops.aten.native_layer_norm_backward
        mean, rstd = columns(b.mean), columns(b.rstd)
        return lambda i: dict(
            zip(
                GRADIENTS,
                backward(b.dy[i], b.x[i], [case.n], mean[i], rstd[i], b.weight, b.bias, [True] * 3),
            )
        )

    def heads(self, case, b):
        views, norm = self.views(b), self.torch.nn.functional.rms_norm

        def run(i):
            views[i].copy_(norm(views[i], (case.n,), b.weight, EPS))

        return run

    def qk(self, case, b):
        views, norm = self.two_views(b), self.torch.nn.functional.rms_norm

        def run(i):
            for view, weight in zip(views[i], (b.weight, b.key_weight)):
                view.copy_(norm(view, (case.n,), weight, EPS))

        return run


class TorchCompile(Peer):
    """What torch.compile makes of the formula, for each shape."""

    name, label, package = "torch-compile", "torch.compile", "torch"
    slow = True

    def _compiled(self, function):
        self.torch._dynamo.reset()
        return self.torch.compile(function, dynamic=False)

    def rms(self, case, b):
        norm = self.torch.nn.functional.rms_norm
        run = self._compiled(lambda x, w: norm(x, (case.n,), w, EPS))
        return lambda i: {"y": run(b.x[i], b.weight)}

    def add(self, case, b):
        norm = self.torch.nn.functional.rms_norm

        def formula(x, residual, w):
            sums = x + residual
            return norm(sums, (case.n,), w, EPS), sums

        run = self._compiled(formula)
        return lambda i: dict(zip(("y", "sum"), run(b.x[i], b.residual[i], b.weight)))

    def layer(self, case, b):
        norm = self.torch.nn.functional.layer_norm
        run = self._compiled(
            lambda x, w, bias: norm(x.float(), (case.n,), w, bias, EPS).to(x.dtype)
        )
        return lambda i: {"y": run(b.x[i], b.weight32, b.bias32)}

    def _codes(self, x, w, scale, n):
        y = self.torch.nn.functional.rms_norm(x.float(), (n,), w.float(), EPS) / scale
        return y.clamp(-QMAX, QMAX).to(self.torch.float8_e4m3fn)

    def rms_fp8(self, case, b):
        run = self._compiled(lambda x, w, scale: self._codes(x, w, scale, case.n))
        return lambda i: {"quantized": run(b.x[i], b.weight, b.scale)}

    def add_fp8(self, case, b):
        def formula(x, residual, w, scale):
            sums = x + residual
            return self._codes(sums, w, scale, case.n), sums

        run = self._compiled(formula)
        return lambda i: dict(
            zip(("quantized", "sum"), run(b.x[i], b.residual[i], b.weight, b.scale))
        )

    def _backward(self, case, b):
        """The formula; dresidual_in and mean may be None."""
        layer, dtype = case.op.layer, b.weight.dtype

        def formula(dy, x, weight, rstd, mean, dresidual_in):
            dy, x = dy.float(), x.float()
            xhat = (x - mean if layer else x) * rstd
            e = dy * weight.float()
            dx = e - xhat * (e * xhat).mean(-1, keepdim=True)
            if layer:
                dx = dx - e.mean(-1, keepdim=True)
            dx = dx * rstd
            if dresidual_in is not None:
                dx = dx + dresidual_in.float()
            sums = [(dy * xhat).sum(0).to(dtype)] + ([dy.sum(0).to(dtype)] if layer else [])
            return dx.to(dtype), *sums

        run = self._compiled(formula)
        mean, rstd = columns(b.mean), columns(b.rstd)
        return lambda i: dict(
            zip(
                GRADIENTS,
                run(
                    b.dy[i],
                    b.x[i],
                    b.weight,
                    rstd[i],
                    mean[i] if layer else None,
                    b.dresidual_in[i] if case.op.adds else None,
                ),
            )
        )

    rms_backward = add_backward = layer_backward = _backward


class FlashInferCuda(Peer):
    """FlashInfer's CUDA kernels: a module built before (FASTNORM_FLASHINFER_CUDA names it), or
    built now."""

    name, label, package = "flashinfer-cuda", "FlashInfer CUDA", "flashinfer-python"

    def __init__(self, torch):
        super().__init__(torch)
        built = os.environ.get("FASTNORM_FLASHINFER_CUDA")
        if built:
            self.module = importlib.import_module("tvm_ffi").load_module(built)
        else:
            self.module = importlib.import_module("flashinfer.norm").get_norm_module()

    def rms(self, case, b):
        return lambda i: self.module.rmsnorm(b.y[i], b.x[i], b.weight, EPS, False)

    def add(self, case, b):  # in place: x becomes y, residual the sum
        return lambda i: self.module.fused_add_rmsnorm(
            b.y[i], b.residual_out[i], b.weight, EPS, False
        )

    def layer(self, case, b):
        return lambda i: self.module.layernorm(b.y[i], b.x[i], b.weight32, b.bias32, EPS)

    def rms_fp8(self, case, b):
        return lambda i: self.module.rmsnorm_quant(
            b.quantized[i], b.x[i], b.weight, b.scale, EPS, False
        )

    def add_fp8(self, case, b):
        return lambda i: self.module.fused_add_rmsnorm_quant(
            b.quantized[i], b.x[i], b.residual_out[i], b.weight, b.scale, EPS, False)

    def heads(self, case, b):
        views = self.views(b)
        return lambda i: self.module.rmsnorm(views[i], views[i], b.weight, EPS, False)

    def qk(self, case, b):
        views = self.two_views(b)

        def run(i):
            for view, weight in zip(views[i], (b.weight, b.key_weight)):
                self.module.rmsnorm(view, view, weight, EPS, False)

        return run


class FlashInferCute(Peer):
    """FlashInfer's CuTe-DSL kernels."""

    name, label, package = "flashinfer-cute", "FlashInfer CuTe", "flashinfer-python"
    pdl = False

    def __init__(self, torch):
        super().__init__(torch)
        try:
            self.kernels = importlib.import_module("flashinfer.norm.kernels")
        except ImportError:
            # What the whole package wants (cuDNN's front end, NCCL, ..) is not there; these kernels
            # need none of it.
            _bare_packages("flashinfer", "flashinfer.norm", "flashinfer.cute_dsl")
            self.kernels = importlib.import_module("flashinfer.norm.kernels")
        _keep_on_disk("flashinfer.norm.kernels.")

    def rms(self, case, b):
        return lambda i: self.kernels.rmsnorm_cute(b.x[i], b.weight, b.y[i], EPS, 0.0, self.pdl)

    def add(self, case, b):  # in place: x becomes y, residual the sum
        return lambda i: self.kernels.fused_add_rmsnorm_cute(
            b.y[i], b.residual_out[i], b.weight, EPS, 0.0, self.pdl
        )

    def layer(self, case, b):
        return lambda i: self.kernels.layernorm_cute(
            b.y[i], b.x[i], b.weight32, b.bias32, EPS, self.pdl
        )

    def rms_fp8(self, case, b):
        return lambda i: self.kernels.rmsnorm_quant_cute(
            b.quantized[i], b.x[i], b.weight, b.scale, EPS, 0.0, self.pdl
        )

    def add_fp8(self, case, b):
        return lambda i: self.kernels.fused_add_rmsnorm_quant_cute(
            b.quantized[i], b.x[i], b.residual_out[i], b.weight, b.scale, EPS, 0.0, self.pdl)

    def heads(self, case, b):
        views = self.views(b)
        return lambda i: self.kernels.qk_rmsnorm_cute(
            views[i], b.weight, views[i], EPS, 0.0, self.pdl
        )

    def qk(self, case, b):
        views = self.two_views(b)

        def run(i):
            for view, weight in zip(views[i], (b.weight, b.key_weight)):
                self.kernels.qk_rmsnorm_cute(view, weight, view, EPS, 0.0, self.pdl)

        return run


class FlashInferCutePdl(FlashInferCute):
    """The same with programmatic dependent launch."""

    name, label = "flashinfer-cute-pdl", "FlashInfer CuTe, PDL"
    pdl = True
    decode_only = True


class Quack(Peer):
    name, label, package = "quack", "quack", "quack-kernels"

    def __init__(self, torch):
        super().__init__(torch)
        self.module = importlib.import_module("quack.rmsnorm")
        self.forward = self.module._rmsnorm_fwd

    def rms(self, case, b):
        return lambda i: self.forward(b.x[i], b.weight, b.y[i], eps=EPS)

    def add(self, case, b):
        return lambda i: self.forward(b.x[i], b.weight, b.y[i], residual=b.residual[i],
                                      residual_out=b.residual_out[i], eps=EPS)

    def layer(self, case, b):
        return lambda i: self.forward(
            b.x[i], b.weight32, b.y[i], bias=b.bias32, eps=EPS, is_layernorm=True
        )

    def heads(self, case, b):
        views = self.views(b)
        weight = b.weight.expand(views[0].shape[1], -1).contiguous()
        return lambda i: self.forward(views[i], weight, views[i], eps=EPS)

    def qk(self, case, b):  # a weight for each head
        views, weight = self.views(b), b.head_weights().contiguous()
        return lambda i: self.forward(views[i], weight, views[i], eps=EPS)

    def rms_backward(self, case, b):  # dx, dweight, no dbias, the residual's gradient
        backward = self.module.rmsnorm_bwd
        return lambda i: gradients(backward(b.x[i], b.weight, b.dy[i], b.rstd[i])[:2])

    def add_backward(self, case, b):
        backward = self.module.rmsnorm_bwd
        return lambda i: gradients(
            backward(b.x[i], b.weight, b.dy[i], b.rstd[i], dresidual_out=b.dresidual_in[i])[:2]
        )

    def layer_backward(self, case, b):
        if not hasattr(self.module, "layernorm_bwd"):
            raise Unsupported("this version of quack has no backward of LayerNorm")
        backward = self.module.layernorm_bwd
        return lambda i: gradients(backward(b.x[i], b.weight, b.dy[i], b.rstd[i], b.mean[i]))


class Liger(Peer):
    name, label, package = "liger", "Liger", "liger-kernel"

    def __init__(self, torch):
        super().__init__(torch)
        self._rms = importlib.import_module("liger_kernel.ops.rms_norm").rms_norm_forward
        self._add = importlib.import_module(
            "liger_kernel.ops.fused_add_rms_norm"
        ).fused_add_rms_norm_forward
        self._layer = importlib.import_module("liger_kernel.ops.layer_norm").layer_norm_forward

        self._backward = {
            op: getattr(importlib.import_module(f"liger_kernel.ops.{module}"), f"{module}_backward")
            for op, module in (
                ("rms", "rms_norm"),
                ("add", "fused_add_rms_norm"),
                ("layer", "layer_norm"),
            )
        }

    # The forward says how the backward is launched. Casting mode "gemma" computes in f32.

    def rms_backward(self, case, b):
        *_, block, warps, casting = self._rms(b.x[0], b.weight, EPS, 0.0, "gemma", None)
        return lambda i: dict(
            zip(
                GRADIENTS,
                self._backward["rms"](
                    b.dy[i], b.x[i], b.weight, b.rstd[i], 0.0, casting, block, warps, False, None
                ),
            )
        )

    def add_backward(self, case, b):
        *_, block, warps, stages, casting = self._add(
            b.x[0], b.dresidual_in[0], b.weight, EPS, 0.0, "gemma"
        )

        def run(i):
            dx, _, dweight = self._backward["add"](
                b.dy[i],
                b.dresidual_in[i],
                b.x[i],
                b.weight,
                b.rstd[i],
                0.0,
                casting,
                block,
                warps,
                stages,
                False,
            )
            return {"dx": dx, "dweight": dweight}

        return run

    def layer_backward(self, case, b):
        return lambda i: dict(
            zip(
                GRADIENTS,
                self._backward["layer"](b.dy[i], b.x[i], b.weight, b.bias, b.mean[i], b.rstd[i]),
            )
        )

    def rms(self, case, b):
        return lambda i: {"y": self._rms(b.x[i], b.weight, EPS, 0.0, "llama", None)[0]}

    def add(self, case, b):
        return lambda i: dict(
            zip(("y", "sum"), self._add(b.x[i], b.residual[i], b.weight, EPS, 0.0, "llama"))
        )

    def layer(self, case, b):
        return lambda i: {"y": self._layer(b.x[i], b.weight32, b.bias32, EPS)[0]}


class TransformerEngine(Peer):
    name, label, package = "transformer-engine", "TE", "transformer-engine"

    def __init__(self, torch):
        super().__init__(torch)
        importlib.import_module("transformer_engine.pytorch")
        self.tex = importlib.import_module("transformer_engine_torch")

    def _dtype(self, case):
        return {"bf16": self.tex.DType.kBFloat16, "f16": self.tex.DType.kFloat16}[case.dtype]

    def rms(self, case, b):
        return lambda i: self.tex.rmsnorm_fwd(
            b.x[i], b.weight, EPS, b.y[i], None, self._dtype(case), 0, False
        )

    def layer(self, case, b):
        weight, bias = b.weight, b.bias32.to(b.weight.dtype)
        return lambda i: self.tex.layernorm_fwd(
            b.x[i], weight, bias, EPS, b.y[i], None, self._dtype(case), 0, False)

    layer_own = layer

    def rms_backward(self, case, b):
        backward = self.tex.rmsnorm_bwd
        return lambda i: gradients(backward(b.dy[i], b.x[i], b.rstd[i], b.weight, 0, False))

    def add_backward(self, case, b):
        if not hasattr(self.tex, "rmsnorm_bwd_add"):  # an earlier version: two kernels
            return added_later(self.rms_backward(case, b), b)
        backward = self.tex.rmsnorm_bwd_add
        return lambda i: gradients(
            backward(b.dy[i], b.x[i], b.dresidual_in[i], b.rstd[i], b.weight, 0, False)
        )

    def layer_backward(self, case, b):
        backward = self.tex.layernorm_bwd
        return lambda i: gradients(
            backward(b.dy[i], b.x[i], b.mean[i], b.rstd[i], b.weight, 0, False)
        )


class Cudnn(Peer):
    """cuDNN's graphs, by its own Python front end. A plan is built once for a case; its kernels are
    launched with programmatic dependent launch. Parameters and gradients have x's dtype."""

    name, label, package = "cudnn", "cuDNN", "nvidia-cudnn-frontend"

    def __init__(self, torch):
        super().__init__(torch)
        self.cudnn = importlib.import_module("cudnn")
        self.handle = self.cudnn.create_handle()
        self.epsilon = torch.full((1, 1, 1, 1), EPS, dtype=torch.float32)  # the host's: a value
        self.facts = {"backend": self.cudnn.backend_version_string()}

    def _planned(self, define, count):
        """A function that runs call i of a graph. define(graph) returns ({input: tensors of the
        calls}, {output: tensors of the calls})."""
        cudnn, torch = self.cudnn, self.torch
        stream = torch.cuda.current_stream()
        cudnn.set_stream(handle=self.handle, stream=stream.cuda_stream)
        graph = cudnn.pygraph(intermediate_data_type=cudnn.data_type.FLOAT,
                              compute_data_type=cudnn.data_type.FLOAT, handle=self.handle)
        inputs, outputs = define(graph)
        for output, tensors in outputs.items():
            output.set_output(True).set_data_type(tensors[0].dtype)
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
            graph.check_support()
            graph.build_plans()
        except cudnn.cudnnGraphNotSupportedError as why:
            raise Unsupported(str(why)) from why
        workspace = torch.empty(max(graph.get_workspace_size(), 1), dtype=torch.uint8,
                                device=stream.device)
        self._held = graph, workspace  # captured calls go on using them when the body is gone
        given = [{t: of[i] for t, of in [*inputs.items(), *outputs.items()]} for i in range(count)]
        return lambda i: graph.execute(given[i], workspace, handle=self.handle)

    def _forward(self, case, b, norm, parameters):
        """norm: the name of the graph's operation; parameters: {its argument: [n]}."""
        count, inference = len(b.x), self.cudnn.norm_forward_phase.INFERENCE

        def define(graph):
            given = {"input": rows_of(b.x), "epsilon": [self.epsilon] * count}
            given.update((name, [parameter_of(t)] * count) for name, t in parameters.items())
            places = {name: graph.tensor_like(tensors[0]) for name, tensors in given.items()}
            found = getattr(graph, norm)(name=norm, norm_forward_phase=inference,
                                         **{"bias": None, **places})
            return {places[name]: given[name] for name in given}, {found[0]: rows_of(b.y)}

        return self._planned(define, count)

    def rms(self, case, b):
        return self._forward(case, b, "rmsnorm", {"scale": b.weight})

    def layer(self, case, b):
        return self._forward(case, b, "layernorm", {"scale": b.weight, "bias": b.bias})

    layer_own = layer

    def _backward(self, case, b):
        layer, count = case.op.layer, len(b.x)
        norm, more = ("layernorm_backward", {}) if layer else (
            "rmsnorm_backward", {"has_dbias": False}
        )

        def define(graph):
            given = {"grad": rows_of(b.dy), "input": rows_of(b.x),
                     "scale": [parameter_of(b.weight)] * count, "inv_variance": rows_of(b.rstd)}
            if layer:
                given["mean"] = rows_of(b.mean)
            places = {name: graph.tensor_like(tensors[0]) for name, tensors in given.items()}
            dx, dweight, dbias = getattr(graph, norm)(name=norm, **places, **more)
            outputs = {dx: rows_of(b.dx), dweight: [parameter_of(t) for t in b.dweight]}
            if layer:
                outputs[dbias] = [parameter_of(t) for t in b.dbias]
            return {places[name]: given[name] for name in given}, outputs

        return self._planned(define, count)

    rms_backward = layer_backward = _backward


class Vllm(Peer):
    name, label, package = "vllm", "vLLM", "vllm"

    def __init__(self, torch):
        super().__init__(torch)
        importlib.import_module("vllm._C")
        self.ops = torch.ops._C

    def rms(self, case, b):
        return lambda i: self.ops.rms_norm(b.y[i], b.x[i], b.weight, EPS)

    def add(self, case, b):  # in place
        return lambda i: self.ops.fused_add_rms_norm(b.y[i], b.residual_out[i], b.weight, EPS)

    def rms_fp8(self, case, b):
        return lambda i: self.ops.rms_norm_static_fp8_quant(
            b.quantized[i], b.x[i], b.weight, b.scale, EPS
        )

    def add_fp8(self, case, b):
        return lambda i: self.ops.fused_add_rms_norm_static_fp8_quant(
            b.quantized[i], b.x[i], b.residual_out[i], b.weight, b.scale, EPS)


class SglKernel(Peer):
    name, label, package = "sgl-kernel", "sgl-kernel", "sgl-kernel"

    def __init__(self, torch):
        super().__init__(torch)
        self.kernels = importlib.import_module("sgl_kernel")

    def rms(self, case, b):
        return lambda i: self.kernels.rmsnorm(b.x[i], b.weight, EPS, out=b.y[i])

    def add(self, case, b):  # in place
        return lambda i: self.kernels.fused_add_rmsnorm(b.y[i], b.residual_out[i], b.weight, EPS)


# FlashInfer's CUDA kernels first: what stands in for its package below would hide why they are not
# there.
PEERS = (
    TorchNative,
    FlashInferCuda,
    FlashInferCute,
    Quack,
    Liger,
    TransformerEngine,
    Cudnn,
    Vllm,
    SglKernel,
    FlashInferCutePdl,
    TorchCompile,
)

# Packages whose versions a result depends on.
PACKAGES = (
    "torch",
    "triton",
    "flashinfer-python",
    "quack-kernels",
    "liger-kernel",
    "fla-core",
    "nvidia-cutlass-dsl",
    "nvidia-cutlass-dsl-libs-cu13",
    "nvidia-cutlass-dsl-libs-cu12",
    "apache-tvm-ffi",
    "torch-c-dlpack-ext",
    "transformer-engine",
    "nvidia-cudnn-frontend",
    "nvidia-cudnn-cu13",
    "nvidia-cudnn-cu12",
    "vllm",
    "sgl-kernel",
    "numpy",
)


def versions():
    """{package: version, or None where it is not installed}, Python's own too."""
    found = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def _bare_packages(*names):
    """Lets modules below these packages be imported without what their __init__ wants."""
    first = names[0].partition(".")[0]
    for name in [n for n in sys.modules if n == first or n.startswith(first + ".")]:
        del sys.modules[name]
    for name in names:
        parent, _, leaf = name.rpartition(".")
        if parent:
            places = [os.path.join(place, leaf) for place in sys.modules[parent].__path__]
        else:
            spec = importlib.util.find_spec(name)
            if spec is None:
                raise ModuleNotFoundError(f"No module named {name!r}")
            places = list(spec.submodule_search_locations)
        package = types.ModuleType(name)
        package.__path__ = places
        sys.modules[name] = package


def _keep_on_disk(prefix):
    """Compiled kernels of the modules of FlashInfer go through the disk cache that quack has for
    its own, where that is there: a second process does not compile again."""
    try:
        jit_cache = importlib.import_module("quack.cache").jit_cache
    except ImportError:
        return
    for name in ("rmsnorm", "fused_add_rmsnorm", "layernorm"):
        module = sys.modules[prefix + name]
        for key, compile_kernel in list(vars(module).items()):
            if key.startswith("_get_compiled_") and isinstance(
                compile_kernel, functools._lru_cache_wrapper
            ):
                setattr(module, key, jit_cache(compile_kernel.__wrapped__))
