"""Models for the tests and the benchmark: one operator, or a transformer block."""

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import fastnorm.onnxruntime as fastnorm_onnxruntime

DOMAIN = fastnorm_onnxruntime.DOMAIN
OPSETS = (("", 21), ("com.microsoft", 1), (DOMAIN, 1))
# Of the sessions that say nothing else; suite_cuda.py has others.
PROVIDERS = ["CPUExecutionProvider"]
FLOATS = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
}


class Maker:
    """Collects nodes and initializers of a model."""

    def __init__(self, opsets=OPSETS):
        self.nodes, self.initializers, self.inputs, self.outputs = [], [], [], []
        self.opsets = opsets

    def constant(self, name, value, kind=None):
        tensor = numpy_helper.from_array(np.asarray(value), name)
        if kind is not None and tensor.data_type != kind:
            values = np.asarray(value, np.float32)
            tensor = helper.make_tensor(name, kind, values.shape, values.reshape(-1).tolist())
        self.initializers.append(tensor)
        return name

    def node(self, op, inputs, outputs, domain="", **attributes):
        outputs = [outputs] if isinstance(outputs, str) else outputs
        name = f"node_{next(o for o in outputs if o)}"
        self.nodes.append(
            helper.make_node(op, inputs, outputs, name, domain=domain, **attributes)
        )
        return outputs[0]

    def input(self, name, kind, shape=None):
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name, kind, shape=None):
        self.outputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def model(self, ir_version=10):
        graph = helper.make_graph(
            self.nodes, "model", self.inputs, self.outputs, self.initializers
        )
        opsets = [helper.make_opsetid(*pair) for pair in self.opsets]
        return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def session(model, threads=1, ours=True, providers=None):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    if ours:
        fastnorm_onnxruntime.register(options)
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=list(providers or PROVIDERS)
    )


def one_operator(op, domain, dtype, inputs, outputs, opset=21, parameters=None, **attributes):
    """A model of one node. Inputs are arrays by name, None for one that is left out; all are fed in
    single precision and converted within the model, which serves bfloat16, too. Those of 64-bit
    integers and of int8 stay as they are. outputs: a kind by name, None: left out."""
    make = Maker((("", opset), ("com.microsoft", 1), (DOMAIN, 1)))
    names = []
    for name, array in inputs.items():
        if array is None:
            names.append("")
            continue
        if not isinstance(array, np.ndarray):  # (values, kind): an initializer of that kind
            names.append(make.constant(name, *array))
            continue
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        make.input(name, kind, [f"{name}{i}" for i in range(array.ndim)])
        if kind != TensorProto.FLOAT:
            names.append(name)
            continue
        to = FLOATS[(parameters or {}).get(name, dtype)]
        names.append(make.node("Cast", [name], f"{name}_cast", to=to))
    results = [f"{name}_made" if kind is not None else "" for name, kind in outputs.items()]
    make.node(op, names, results, domain, **attributes)
    for name, kind in outputs.items():
        if kind is None:
            continue
        if kind in FLOATS.values() or kind in (
            TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2
        ):
            make.node("Cast", [f"{name}_made"], name, to=TensorProto.FLOAT)
            kind = TensorProto.FLOAT
        else:
            make.node("Identity", [f"{name}_made"], name)
        make.output(name, kind)
    return make.model()


def block(norm, dtype, width=256, heads=4, layers=1, rotary=True, positions=64, seed=0):
    """Transformer layers: attention with query and key norms, then a feed-forward part. norm:
    "layer", "rms" (RMSNormalization) or "chain" (RMSNorm as Pow, ReduceMean, ..)."""
    rng = np.random.default_rng(seed)
    kind, np_type = FLOATS[dtype], np.dtype(dtype)
    make = Maker((("", 23), ("com.microsoft", 1)))
    d = width // heads

    def weight(name, *shape):
        values = rng.standard_normal(shape) / np.sqrt(shape[0])
        return make.constant(name, values.astype(np_type))

    def gain(name, size):
        return make.constant(name, (1 + 0.1 * rng.standard_normal(size)).astype(np_type))

    def row_norm(x, y):
        g = gain(f"{y}_gain", width)
        if norm == "layer":
            bias = make.constant(f"{y}_bias", rng.standard_normal(width).astype(np_type))
            return make.node("LayerNormalization", [x, g, bias], y, axis=-1, epsilon=1e-5)
        if norm == "rms":
            return make.node("RMSNormalization", [x, g], y, axis=-1, epsilon=1e-6)
        make.node("Pow", [x, make.constant(f"{y}_two", np.asarray(2, np_type))], f"{y}_square")
        axes = make.constant(f"{y}_axes", np.array([-1], np.int64))
        make.node("ReduceMean", [f"{y}_square", axes], f"{y}_mean")
        eps = make.constant(f"{y}_eps", np.asarray(1e-6, np_type))
        make.node("Add", [f"{y}_mean", eps], f"{y}_variance")
        make.node("Sqrt", [f"{y}_variance"], f"{y}_root")
        make.node("Reciprocal", [f"{y}_root"], f"{y}_rstd")
        make.node("Mul", [x, f"{y}_rstd"], f"{y}_normalised")
        return make.node("Mul", [g, f"{y}_normalised"], y)

    x = make.input("x", kind, ["batch", "tokens", width])
    ids = make.input("positions", TensorProto.INT64, ["batch", "tokens"]) if rotary else None
    split = make.constant("split", np.array([0, 0, heads, d], np.int64))
    join = make.constant("join", np.array([0, 0, width], np.int64))
    root = make.constant("root", np.asarray(d**-0.5, np_type))
    if rotary:
        angle = np.arange(positions)[:, None] / 100.0 ** (np.arange(d // 2) / (d // 2))
        make.constant("cos", np.cos(angle).astype(np_type))
        make.constant("sin", np.sin(angle).astype(np_type))
    for i in range(layers):
        p = f"layer{i}_"
        a = row_norm(x, f"{p}normed")
        for part in "qkv":
            make.node("MatMul", [a, weight(f"{p}w{part}", width, width)], f"{p}{part}_rows")
            make.node("Reshape", [f"{p}{part}_rows", split], f"{p}{part}_split")
            if part == "v":
                make.node("Transpose", [f"{p}v_split"], f"{p}v", perm=[0, 2, 1, 3])
                continue
            made = f"{p}{part}_normed"
            make.node(
                "RMSNormalization", [f"{p}{part}_split", gain(f"{p}{part}_gain", d)], made,
                epsilon=1e-6,
            )
            turned = f"{p}{part}_heads" if rotary else f"{p}{part}"
            make.node("Transpose", [made], turned, perm=[0, 2, 1, 3])
            if rotary:
                make.node("RotaryEmbedding", [turned, "cos", "sin", ids], f"{p}{part}")
        make.node("Transpose", [f"{p}k"], f"{p}k_turned", perm=[0, 1, 3, 2])
        make.node("MatMul", [f"{p}q", f"{p}k_turned"], f"{p}scores")
        make.node("Mul", [f"{p}scores", root], f"{p}scaled")
        make.node("Softmax", [f"{p}scaled"], f"{p}shares", axis=-1)
        make.node("MatMul", [f"{p}shares", f"{p}v"], f"{p}mixed_heads")
        make.node("Transpose", [f"{p}mixed_heads"], f"{p}mixed_split", perm=[0, 2, 1, 3])
        make.node("Reshape", [f"{p}mixed_split", join], f"{p}mixed")
        make.node("MatMul", [f"{p}mixed", weight(f"{p}wo", width, width)], f"{p}attended")
        make.node("Add", [x, f"{p}attended"], f"{p}between")
        b = row_norm(f"{p}between", f"{p}normed_again")
        make.node("MatMul", [b, weight(f"{p}up", width, 2 * width)], f"{p}wide")
        make.node("Relu", [f"{p}wide"], f"{p}bent")
        make.node("MatMul", [f"{p}bent", weight(f"{p}down", 2 * width, width)], f"{p}narrow")
        x = make.node("Add", [f"{p}between", f"{p}narrow"], f"{p}out")
    row_norm(x, "y")
    make.output("y", kind, ["batch", "tokens", width])
    return make.model(ir_version=11)


def feeds(dtype, batch, tokens, width, rotary=True, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, tokens, width)).astype(dtype)
    if not rotary:
        return {"x": x}
    return {"x": x, "positions": np.tile(np.arange(tokens), (batch, 1))}
