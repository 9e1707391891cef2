"""FlashMLA and FlashInfer for compare_mla_decode.py, where their kernels were compiled before and
their packages are not installed. Both take bf16 alone, FlashMLA rows of FP8 codes besides; it
has no dense kernel for these, so that a request's whole cache is selected there.

    FASTNORM_FLASHMLA          a library of build_flashmla.py
    FASTNORM_FLASHINFER_MLA    a module of build_flashinfer.py --what mla; it needs tvm-ffi
"""

import ctypes
import importlib

LATENT, WIDE = 512, 576
SCALE = 192 ** -0.5

PLAN_RECORD = 32  # bytes of FlashMLA's record of a part
SPACE, INT_SPACE = 128 << 20, 8 << 20  # bytes, as FlashInfer's wrapper has them by default


class FlashMlaCall(ctypes.Structure):
    """FlashMlaCall of flashmla_c.cu."""

    _fields_ = [
        *[(name, ctypes.c_void_p) for name in ("q", "cache", "o", "lse", "lengths", "table")],
        *[(name, ctypes.c_void_p) for name in ("plan", "splits", "partial_o", "partial_lse")],
        *[(name, ctypes.c_int32) for name in ("batch", "s_q", "heads", "pages")],
        *[(name, ctypes.c_int32) for name in ("table_columns", "parts", "causal", "selects")],
        ("scale", ctypes.c_float),
        ("stream", ctypes.c_void_p),
    ]


def require_bf16(torch, b):
    if b.dtype != torch.bfloat16:
        raise ValueError(f"dtype is {b.dtype}; required: bf16")


def require_numbers(shape):
    if shape.codes or shape.topk:
        raise ValueError("rows are of codes or selected; required: all rows, of numbers")


def require_selectable(shape):
    if shape.heads not in (64, 128):
        raise ValueError(f"heads is {shape.heads}; required: 64 or 128 with rows of codes")
    if shape.causal:
        raise ValueError("the call is causal; required: one that is not with rows of codes")
    if shape.selected() % 64:
        raise ValueError(
            f"{shape.selected()} rows are selected; required: a multiple of 64 with rows of codes"
        )


class FlashMlaLibrary:
    """Calls of one batch: makes its plan, then runs. It holds all that a call points to."""

    class Calls:
        def __init__(self, library, torch, shape, b):
            self.library, self.torch, self.shape, self.b = library, torch, shape, b
            rows = shape.new * shape.heads
            multiprocessors = torch.cuda.get_device_properties(b.device).multi_processor_count
            self.parts = library.flashmla_parts(rows, multiprocessors)

            def empty(*extents, dtype=torch.float32):
                return torch.empty(extents, dtype=dtype, device=b.device)

            self.outputs = [
                empty(shape.batch * shape.new, shape.heads, LATENT, dtype=b.dtype)
                for _ in range(b.sets)
            ]
            self.lse = empty(shape.batch, rows)
            self.plan = empty(self.parts, PLAN_RECORD, dtype=torch.uint8)
            self.splits = empty(shape.batch + 1, dtype=torch.int32)
            self.partial_o = empty(shape.batch + self.parts, rows, LATENT)
            self.partial_lse = empty(shape.batch + self.parts, rows)
            library.flashmla_plan(ctypes.byref(self.call(0)))

        def call(self, i):
            b, shape = self.b, self.shape
            tensors = {
                "q": b.queries[i],
                "cache": b.caches[i],
                "o": self.outputs[i],
                "lse": self.lse,
                "lengths": b.lengths,
                "table": b.indices if shape.codes else b.table,
                "plan": self.plan,
                "splits": self.splits,
                "partial_o": self.partial_o,
                "partial_lse": self.partial_lse,
            }
            return FlashMlaCall(
                **{name: tensor.data_ptr() for name, tensor in tensors.items()},
                batch=shape.batch,
                s_q=shape.new,
                heads=shape.heads,
                pages=shape.batch * shape.pages,
                table_columns=shape.selected() if shape.codes else shape.pages,
                parts=self.parts,
                causal=shape.causal,
                selects=shape.codes,
                scale=SCALE,
                stream=self.torch.cuda.current_stream().cuda_stream,
            )

        def __call__(self, i):
            library = self.library
            run = library.flashmla_decode_selected if self.shape.codes else library.flashmla_decode
            run(ctypes.byref(self.call(i)))
            return self.outputs[i]

    def __init__(self, torch, path):
        self.torch, self.library = torch, ctypes.CDLL(path)
        self.library.flashmla_parts.argtypes = [ctypes.c_int32, ctypes.c_int32]
        for name in ("flashmla_plan", "flashmla_decode", "flashmla_decode_selected"):
            function = getattr(self.library, name)
            function.argtypes, function.restype = [ctypes.POINTER(FlashMlaCall)], None

    def calls(self, shape, b):
        require_bf16(self.torch, b)
        if shape.codes:
            require_selectable(shape)
        return self.Calls(self.library, self.torch, shape, b)


def compact_parts(b):
    """Latent and rotary columns of queries and caches, each compact: as FlashInfer's users have
    them."""
    return [
        [
            t[..., part].contiguous()
            for t in (q, c)
            for part in (slice(LATENT), slice(LATENT, None))
        ]
        for q, c in zip(b.queries, b.caches)
    ]


class FlashInferModule:
    """The functions that BatchMLAPagedAttentionWrapper calls with its backend fa3."""

    def __init__(self, torch, path):
        self.torch, self.module = torch, importlib.import_module("tvm_ffi").load_module(path)
        self.space = torch.empty(SPACE, dtype=torch.uint8, device="cuda")

    def calls(self, shape, b):
        torch, module, space = self.torch, self.module, self.space
        require_bf16(torch, b)
        require_numbers(shape)
        steps = torch.arange(shape.batch + 1, dtype=torch.int32)
        records = torch.empty(INT_SPACE, dtype=torch.uint8, device=b.device)
        staged = torch.empty(INT_SPACE, dtype=torch.uint8, pin_memory=True)
        plan, staged_bytes = module.plan(
            space,
            records,
            staged,
            steps * shape.new,
            steps * shape.pages,
            b.lengths.cpu(),
            shape.heads,
            LATENT,
            shape.causal,
        )
        records[:staged_bytes].copy_(staged[:staged_bytes])  # the module leaves that to its caller
        parts = compact_parts(b)
        pages = b.table.reshape(-1)
        outputs = [torch.empty_like(part[0]) for part in parts]

        def run(i):
            q_nope, q_pe, ckv, kpe = parts[i]
            lse, scales = None, None
            module.run(
                space, records, plan, q_nope, q_pe, ckv, kpe, pages, outputs[i], lse,
                int(shape.causal), shape.heads, shape.page, SCALE, False, 1.0, 1.0, scales)
            return outputs[i]

        return run
