"""Norms of libfastnorm as operators of ONNX Runtime, 1.20 or later.

    import fastnorm.onnxruntime as fn
    session = fn.session("model.onnx")          # in place of onnxruntime.InferenceSession

The operators are in libfastnorm_onnxruntime.so: the file that FASTNORM_ONNXRUNTIME_LIBRARY names,
else that of this package, else what the loader finds. They are of the domain `fastnorm`, since
ONNX Runtime keeps its own operators of its own domains: rewrite() gives a model's nodes that
domain. rewrite() needs the package `onnx`, register() only `onnxruntime`.
"""

import ctypes
import importlib
import os
import tempfile
from pathlib import Path
from typing import Any, Dict, Optional, Sequence, Union

from .. import abi as _abi

__all__ = ["DOMAIN", "count", "library_path", "register", "rewrite", "session"]

DOMAIN = "fastnorm"
"""The domain of the operators."""

_MOST_BYTES = 2**31 - 1  # of a message of protobuf


def _needed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"fastnorm.onnxruntime needs the package {name}, which does not load ({error}); "
            f"required: pip install {name}"
        ) from error


def library_path() -> str:
    """Path of libfastnorm_onnxruntime.so.

    Returns:
        What FASTNORM_ONNXRUNTIME_LIBRARY says, else the file of this package, else the bare name,
        which the loader looks for.
    """
    beside = Path(_abi.__file__).parent / "lib" / "libfastnorm_onnxruntime.so"
    named = os.environ.get("FASTNORM_ONNXRUNTIME_LIBRARY")
    return named or (str(beside) if beside.exists() else beside.name)


def register(options: Any) -> Any:
    """Makes the operators known to sessions with these options.

    Args:
        options: an onnxruntime.SessionOptions.

    Returns:
        The same options.

    Raises:
        ImportError: libfastnorm_onnxruntime.so does not load.
    """
    if os.path.isabs(_abi.library_path()) or "FASTNORM_LIBRARY" in os.environ:
        ctypes.CDLL(_abi.library_path())  # what is loaded under this name serves the library below
    path = library_path()
    try:
        ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"fastnorm.onnxruntime needs libfastnorm_onnxruntime.so, and {path!r} does not load: "
            f"{error}; required: a package that has it, or FASTNORM_ONNXRUNTIME_LIBRARY"
        ) from error
    options.register_custom_ops_library(path)
    return options


def _copy(model: Any) -> Any:
    copied = type(model)()
    copied.CopyFrom(model)
    return copied


def _optimized(model: Any, providers: Sequence[Any]) -> Any:
    """The model with the fusions that ONNX Runtime has for it."""
    onnx, ort = _needed("onnx"), _needed("onnxruntime")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        options = register(ort.SessionOptions())
        # Above this level are layouts for the very processor.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(path)
        options.log_severity_level = 3
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", "initializers.bin"
        )
        _open(model, options, providers)
        return onnx.load(str(path))


def _open(model: Any, options: Any, providers: Sequence[Any]) -> Any:
    """A session of a model, which may be larger than a message."""
    onnx, ort = _needed("onnx"), _needed("onnxruntime")
    if model.ByteSize() <= _MOST_BYTES:
        return ort.InferenceSession(model.SerializeToString(), options, providers=list(providers))
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.onnx")
        onnx.save(_copy(model), path, save_as_external_data=True)
        return ort.InferenceSession(path, options, providers=list(providers))


def rewrite(
    model: Union[str, "os.PathLike[str]", Any],
    *,
    optimize: bool = True,
    everything: bool = True,
    providers: Sequence[Any] = ("CPUExecutionProvider",),
) -> Any:
    """The model, an onnx.ModelProto or a path, with its norms as operators of this library.

    ONNX Runtime first makes the fusions that it has (optimize=False: it does not; a model that it
    cannot run goes on as it is). Then these become one node each:

    - LayerNormalization, RMSNormalization, SimplifiedLayerNormalization, SkipLayerNormalization,
      SkipSimplifiedLayerNormalization, and RMSNorm as a chain of elementwise nodes;
    - an addition before a norm;
    - a norm and the QuantizeLinear behind it, for symmetric codes;
    - a norm, a transposition of heads, and the RotaryEmbedding behind them, of query and key.

    Nodes in double precision stay as they are. With the CUDA provider so do two that only the CPU
    has: weights that broadcast along a normalised dimension, and one position for all tokens.

    Args:
        model: an onnx.ModelProto, which is not changed, or the path of a file.
        optimize: whether ONNX Runtime makes its fusions first.
        everything: False leaves the last two, and float16 norms without a residual, as they are.
        providers: the execution providers that the model is meant for.

    Returns:
        A new onnx.ModelProto.

    Raises:
        ImportError: the package onnx, or with optimize=True onnxruntime, is not installed.
    """
    onnx = _needed("onnx")
    from . import _rewriting

    found = _copy(model) if isinstance(model, onnx.ModelProto) else onnx.load(os.fspath(model))
    found = _rewriting.infer_shapes(found)
    names = [entry if isinstance(entry, str) else entry[0] for entry in providers]
    gpu = "CUDAExecutionProvider" in names
    if not optimize:
        _rewriting.rewrite(found, DOMAIN, everything=everything, gpu=gpu)
        return found
    # ONNX Runtime's fusions of attention and embedding begin with LayerNormalization, and all its
    # fusions end where a domain begins that it does not know. Those of 16-bit types are for GPUs.
    known = _rewriting.types_of(found)
    _rewriting.rewrite(found, DOMAIN, wait=True, everything=everything, known=known, gpu=gpu)
    try:
        found = _optimized(found, providers)
    except Exception as error:  # it has no common class of its errors
        if not type(error).__module__.startswith("onnxruntime"):
            raise
    _rewriting.rewrite(found, DOMAIN, everything=everything, known=known, gpu=gpu)
    return found


def count(model: Any) -> Dict[str, int]:
    """Counts the operators of this library in a model.

    Args:
        model: an onnx.ModelProto.

    Returns:
        How often each operator is there, by name, with those of subgraphs.
    """
    from . import _rewriting

    _needed("onnx")
    found: Dict[str, int] = {}
    for node in _rewriting.all_nodes(model.graph):
        if node.domain == DOMAIN:
            found[node.op_type] = found.get(node.op_type, 0) + 1
    return found


def session(
    model: Union[str, "os.PathLike[str]", Any],
    options: Optional[Any] = None,
    *,
    optimize: bool = True,
    everything: bool = True,
    providers: Sequence[Any] = ("CPUExecutionProvider",),
) -> Any:
    """Opens a session of the model after rewrite().

    Args:
        model: as of rewrite().
        options: an onnxruntime.SessionOptions, which gets the operators; None: new ones.
        optimize: as of rewrite().
        everything: as of rewrite().
        providers: the session's execution providers.

    Returns:
        An onnxruntime.InferenceSession.
    """
    ort = _needed("onnxruntime")
    options = register(options if options is not None else ort.SessionOptions())
    rewritten = rewrite(model, optimize=optimize, everything=everything, providers=providers)
    return _open(rewritten, options, providers)
