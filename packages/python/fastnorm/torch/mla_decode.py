"""MLA decode attention of libfastnorm as PyTorch operators, by ctypes alone: nothing is compiled.

The library is the file that FASTNORM_LIBRARY names, else the one of this package. Tensors keep the
strides they have; work goes to the current stream. mla_decode.h says what each tensor is.

There is no backward: decoding has none. An operator refuses tensors that require grad while grad is
enabled.
"""

import ctypes
import threading

import torch
from torch import Tensor

from fastnorm import abi as _c

FastnormError = _c.FastnormError  # a RuntimeError with the status' name and the library's text
_library = _c.Library(_c.library_path())
# Dtypes that attention does not take are here, too: the library says so.
_DTYPES = {
    torch.float32: _c.F32,
    torch.float16: _c.F16,
    torch.bfloat16: _c.BF16,
    torch.int32: _c.I32,
    torch.int64: _c.Dtype(0, 64, 1),
    torch.uint8: _c.U8,
    torch.int8: _c.I8,
    torch.float64: _c.Dtype(2, 64, 1),
    torch.float8_e4m3fn: _c.F8_E4M3FN,
    torch.float8_e5m2: _c.F8_E5M2,
    torch.float8_e8m0fnu: _c.F8_E8M0FNU,
}
_FP4 = getattr(torch, "float4_e2m1fn_x2", None)  # since PyTorch 2.8
if _FP4 is not None:
    _DTYPES[_FP4] = _c.F4_E2M1FN_X2
_LSE_BASES = {"natural": _c.NATURAL, "2": _c.BASE_2}
_LATENT, _ALIGNMENT = 512, 256


class _Contexts:
    """One a device, made at its first use."""

    def __init__(self):
        self._made, self._lock = {}, threading.Lock()

    def of(self, device):
        index = device.index or 0
        key = (device.type, index)
        with self._lock:
            if key not in self._made:
                self._made[key] = (
                    _c.Context(_library, _c.CUDA, index)
                    if device.type == "cuda"
                    else _c.Context(_library, _c.CPU, 0, torch.get_num_threads())
                )
            return self._made[key]


_contexts = _Contexts()


class _View:
    """A tensor as fastnorm.abi takes it."""

    def __init__(self, name, t):
        if t.dtype not in _DTYPES:
            raise FastnormError(f"{name} has dtype {t.dtype}, which libfastnorm has no word for")
        self.tensor = t  # kept
        self.address, self.dtype, self.shape, self.itemsize = (
            t.data_ptr(),
            _DTYPES[t.dtype],
            t.shape,
            t.element_size(),
        )
        self.strides = [stride * t.element_size() for stride in t.stride()]


def _call(tensors, sm_scale, causal, max_s_q, lse_base, split_tokens, reuse_plan=False):
    """The call of these tensors, by their names in fastnorm_mla_decode_args, on the current
    stream."""
    if lse_base not in _LSE_BASES:
        raise ValueError(f"lse_base is {lse_base!r}; required: one of {', '.join(_LSE_BASES)}")
    device = tensors["q_nope"].device
    for name, t in tensors.items():
        if t is not None and t.device != device:
            raise FastnormError(f"{name} is on {t.device}; required: {device}, as q_nope")
    context = _contexts.of(device)
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
    views = {name: None if t is None else _View(name, t) for name, t in tensors.items()}
    return context.mla_decode(
        stream,
        sm_scale=sm_scale,
        causal=int(causal),
        max_s_q=max_s_q,
        lse_base=_LSE_BASES[lse_base],
        split_tokens=split_tokens,
        reuse_plan=int(reuse_plan),
        **views,
    )


def _aligned(memory):
    """Address and size of the aligned part of a workspace, which has room for it."""
    address = -(-memory.data_ptr() // _ALIGNMENT) * _ALIGNMENT
    return address, memory.numel() - (address - memory.data_ptr())


def _outputs(q_nope):
    """Empty o and lse, compact."""
    rows = q_nope.shape[:-1]
    return q_nope.new_empty((*rows, _LATENT)), q_nope.new_empty(rows, dtype=torch.float32)


_INPUTS = ("q_nope", "q_pe", "ckv", "kpe", "kv_len", "page_table", "kv_indptr", "qo_indptr")
_lib = torch.library.Library("fastnorm", "FRAGMENT")
_TAGS = (
    torch.Tag.pt2_compliant_tag,
    getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order),
)
_ARGUMENTS = (
    "Tensor q_nope, Tensor q_pe, Tensor ckv, Tensor kpe, Tensor kv_len, Tensor page_table, "
    "Tensor? kv_indptr, Tensor? qo_indptr, float sm_scale, bool causal, int max_s_q, str lse_base, "
    "int split_tokens"
)


def _flat(arguments):
    """The arguments, with lists of tensors spread out."""
    for a in arguments:
        yield from a if isinstance(a, (list, tuple)) else (a,)


def _operator(name, schema, run, fake, mutates, returns="(Tensor, Tensor)"):
    """Defines an operator on CPU and CUDA tensors. mutates: the position of what is written, a
    tensor or a list of them, or None; or a tuple of such positions."""
    _lib.define(f"{name}({schema}) -> {returns}", tags=_TAGS)
    positions = mutates if isinstance(mutates, tuple) else () if mutates is None else (mutates,)
    for device in ("CPU", "CUDA"):
        _lib.impl(name, run, device)
    torch.library.register_fake(f"fastnorm::{name}", fake, lib=_lib)
    op = getattr(torch.ops.fastnorm, name).default

    def below(*arguments):
        if positions:
            torch.autograd.graph.increment_version(list(_flat(arguments[i] for i in positions)))
        with torch._C._AutoDispatchBelowADInplaceOrView():
            return op(*arguments)

    def refuse_gradients(*arguments):
        if torch.is_grad_enabled() and any(
            isinstance(a, Tensor) and a.requires_grad for a in _flat(arguments)
        ):
            raise RuntimeError(
                f"fastnorm::{name} has no backward: call it under torch.no_grad() or "
                "torch.inference_mode(), or with tensors that do not require grad"
            )
        return below(*arguments)

    _lib.impl(name, refuse_gradients, "Autograd")
    if positions:
        _lib.impl(name, below, "ADInplaceOrView")
    return op


def _run(*arguments):
    tensors, options = dict(zip(_INPUTS, arguments[:8])), arguments[8:]
    o, lse = _outputs(tensors["q_nope"])
    call = _call({**tensors, "o": o, "lse": lse}, *options)
    size = call.query().workspace_bytes
    memory = o.new_empty(size + _ALIGNMENT if size else 0, dtype=torch.uint8)
    call.run(_aligned(memory)[0] if size else None, size)
    return o, lse


def _run_planned(workspace, reuse_plan, *arguments):
    tensors, options = dict(zip(_INPUTS, arguments[:8])), arguments[8:]
    o, lse = _outputs(tensors["q_nope"])
    call = _call({**tensors, "o": o, "lse": lse}, *options, reuse_plan)
    call.run(*(_aligned(workspace) if workspace.numel() else (None, 0)))
    return o, lse


_decode = _operator("mla_decode", _ARGUMENTS, _run, lambda *a: _outputs(a[0]), None)
_decode_planned = _operator(
    "mla_decode_planned",
    f"Tensor(a!) workspace, bool reuse_plan, {_ARGUMENTS}",
    _run_planned,
    lambda workspace, reuse_plan, *a: _outputs(a[0]),
    0,
)


# --- the functions to call ---


def mla_decode(
    q_nope,
    q_pe,
    ckv,
    kpe,
    kv_len,
    page_table,
    *,
    sm_scale,
    causal=False,
    kv_indptr=None,
    qo_indptr=None,
    max_s_q=0,
    lse_base="natural",
    split_tokens=0,
    workspace=None,
    reuse_plan=False,
):
    """(o, lse): attention of new tokens over a paged cache of latents.

    q_nope [N, H, 512], q_pe [N, H, 64], ckv [pages, page, 512], kpe [pages, page, 64] of one dtype;
    kv_len [B], page_table [B, max_pages] int32. With kv_indptr [B + 1] the table is one list. With
    qo_indptr [B + 1], which needs max_s_q, requests have different numbers of new tokens. o is [N,
    H, 512], lse [N, H] float32.

    A workspace of workspace_for() keeps the plan: calls with reuse_plan=True, equal but for the
    contents of query and cache, such as a model's further layers, skip it. Without one, memory is
    taken from PyTorch for the call."""
    arguments = (
        q_nope,
        q_pe,
        ckv,
        kpe,
        kv_len,
        page_table,
        kv_indptr,
        qo_indptr,
        sm_scale,
        causal,
        max_s_q,
        lse_base,
        split_tokens,
    )
    if workspace is not None:
        return _decode_planned(workspace, reuse_plan, *arguments)
    if reuse_plan:
        raise ValueError(
            "reuse_plan is True without a workspace; required: the workspace of the call that made the plan"
        )
    return _decode(*arguments)


def workspace_for(
    q_nope,
    q_pe,
    ckv,
    kpe,
    kv_len,
    page_table,
    *,
    sm_scale,
    causal=False,
    kv_indptr=None,
    qo_indptr=None,
    max_s_q=0,
    split_tokens=0,
):
    """Memory for mla_decode's workspace: a uint8 tensor, empty where none is needed."""
    tensors = dict(zip(_INPUTS, (q_nope, q_pe, ckv, kpe, kv_len, page_table, kv_indptr, qo_indptr)))
    o, _ = _outputs(q_nope)
    size = (
        _call({**tensors, "o": o}, sm_scale, causal, max_s_q, "natural", split_tokens)
        .query()
        .workspace_bytes
    )
    return q_nope.new_empty(size + _ALIGNMENT if size else 0, dtype=torch.uint8)
