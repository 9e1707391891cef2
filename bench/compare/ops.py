"""What is compared: operations, their shapes, and the bytes that each moves. Pure."""

from dataclasses import dataclass

ELEMENT_BYTES = {"bf16": 2, "f16": 2}
# What a stream writes: as many tensors as it reads; so, the first half as wide; one tensor.
ALIKE, NARROW, JOINED = 0, 1, 2
ALIGNMENT = 1024  # of each tensor, in bytes
HEADS, HEADS_OF_ALL, QUERY_HEADS = (
    72,
    80,
    64,
)  # query and key heads of a fused QKV tensor; the rest are values


@dataclass(frozen=True)
class Op:
    name: str
    title: str
    adds: bool = False  # x + residual comes first, and the sum leaves too
    layer: bool = False  # LayerNorm, with f32 weight and bias
    own_weights: bool = False  # LayerNorm, with weight and bias of x's dtype
    quantized: bool = False # leaves as f8_e4m3fn codes, by a static scale
    row_scales: bool = False  # or by a scale for each row, which leaves too
    statistics: bool = False  # rstd, and LayerNorm's mean, leave too
    heads: bool = (
        False  # strided heads of a fused QKV tensor, in place; rows are tokens, n is the head size
    )
    two_weights: bool = False  # query and key heads have different weights
    backward: bool = False  # dx, dweight and LayerNorm's dbias; adds: with a dresidual_in

    @property
    def reads(self):
        return 1 + self.adds + self.backward


OPS = {
    op.name: op
    for op in (
        Op("add", "Fused add + RMSNorm", adds=True),
        Op("rms", "RMSNorm"),
        Op("layer", "LayerNorm, f32 weight and bias", layer=True),
        Op("rms_fp8", "RMSNorm to static fp8", quantized=True),
        Op("add_fp8", "Fused add + RMSNorm to static fp8", adds=True, quantized=True),
        Op("heads", f"{HEADS} of {HEADS_OF_ALL} heads in place", heads=True),
        Op(
            "qk",
            f"{QUERY_HEADS} query and {HEADS - QUERY_HEADS} key heads of {HEADS_OF_ALL} in place, one launch",
            heads=True,
            two_weights=True,
        ),
        Op("rms_backward", "RMSNorm backward", backward=True),
        Op("add_backward", "Fused add + RMSNorm backward", adds=True, backward=True),
        Op("layer_backward", "LayerNorm backward", layer=True, own_weights=True, backward=True),
        Op("layer_own", "LayerNorm, weight and bias of x's dtype", layer=True, own_weights=True),
        # The library alone is timed on these.
        Op("rms_row_fp8", "RMSNorm to per-row fp8", quantized=True, row_scales=True),
        Op("rms_stats", "RMSNorm with statistics", statistics=True),
        Op("add_stats", "Fused add + RMSNorm with statistics", adds=True, statistics=True),
        Op(
            "layer_stats",
            "LayerNorm with statistics",
            layer=True,
            own_weights=True,
            statistics=True,
        ),
    )
}


@dataclass(frozen=True)
class Case:
    """One operation on one shape."""

    op_name: str
    dtype: str
    rows: int
    n: int

    @property
    def op(self):
        return OPS[self.op_name]

    @property
    def key(self):
        return f"{self.op_name} {self.dtype} {self.shape}"

    @property
    def shape(self):
        return f"{self.rows}x{self.n}"

    @property
    def tensor_bytes(self):
        """Of one tensor that is normalised."""
        heads = HEADS if self.op.heads else 1
        return self.rows * heads * self.n * ELEMENT_BYTES[self.dtype]

    @property
    def bytes_moved(self):
        """Each input read once, each output written once; weights, scales and statistics are not
        counted."""
        if self.op.backward:
            return (self.op.reads + 1) * self.tensor_bytes
        codes = self.tensor_bytes // ELEMENT_BYTES[self.dtype]
        first_output = codes if self.op.quantized else self.tensor_bytes
        return (
            self.op.reads * self.tensor_bytes
            + first_output
            + (self.tensor_bytes if self.op.adds else 0)
        )

    @property
    def footprint(self):
        """Bytes of memory that a call touches."""
        return self.tensor_bytes if self.op.heads else self.bytes_moved

    @property
    def stream(self):
        """(tensors read, what is written, bytes of a tensor) of the stream of the same bytes."""
        written = JOINED if self.op.backward else NARROW if self.op.quantized else ALIKE
        return self.op.reads, written, (self.tensor_bytes + 15) // 16 * 16


def rounded(shape, itemsize):
    """Bytes of a tensor, up to where the next one begins."""
    count = itemsize
    for extent in shape:
        count *= extent
    return -(-count // ALIGNMENT) * ALIGNMENT


LARGE_N = [1024, 2048, 3072, 4096, 5120, 6144, 7168, 8192, 12288, 14336, 16384, 32768]
LARGE = [(512, 5120), *((4096, n) for n in LARGE_N)]
DECODE = [
    (1, 2048),
    (1, 4096),
    (1, 8192),
    (1, 16384),
    (16, 4096),
    (64, 7168),
    (64, 8192),
    (128, 4096),
    (128, 8192),
    (128, 16384),
    (512, 8192),
    (1024, 8192),
    (512, 16384),
]
LAYER = [
    (512, 5120),
    *((4096, n) for n in (1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 32768)),
]
QUANTIZED = [(4096, n) for n in (1024, 2048, 3072, 4096, 8192, 16384, 32768)]
TOKENS = [(tokens, 128) for tokens in (1, 64, 1024, 4096, 9010)]
# 25 to 400 MB of RMSNorm's backward; then rows of heads, and few rows.
BACKWARD = [*((4096, n) for n in (1024, 2048, 4096, 5120, 8192, 16384)), (8192, 2048), (8192, 4096),
            (8192, 8192), (16384, 1024), (16384, 4096), (32768, 1024), (4096, 128),
            *((65536, n) for n in (64, 128, 256, 512))]
BACKWARD_FEW = [*((rows, 4096) for rows in (1, 16, 128, 512, 2048)),
                *((rows, 1024) for rows in (128, 512, 2048)), (512, 8192), (128, 16384)]


@dataclass(frozen=True)
class Section:
    """A table of the report."""

    title: str
    op_name: str
    shapes: tuple
    decode: bool = False  # few rows: microseconds above the ceiling, not ratios


SECTIONS = (
    Section("Fused add + RMSNorm", "add", tuple(LARGE)),
    Section("RMSNorm", "rms", tuple(LARGE)),
    Section("RMSNorm, decode", "rms", tuple(DECODE), decode=True),
    Section("Fused add + RMSNorm, decode", "add", tuple(DECODE), decode=True),
    Section("LayerNorm, f32 weight and bias", "layer", tuple(LAYER)),
    Section(
        "LayerNorm, decode", "layer", ((1, 4096), (1, 8192), (128, 8192), (512, 8192)), decode=True
    ),
    Section("RMSNorm to static fp8", "rms_fp8", tuple(QUANTIZED)),
    Section(
        "RMSNorm to static fp8, decode",
        "rms_fp8",
        ((1, 4096), (1, 16384), (128, 8192), (512, 8192)),
        decode=True,
    ),
    Section("Fused add + RMSNorm to static fp8", "add_fp8", tuple(QUANTIZED)),
    Section(OPS["heads"].title, "heads", tuple(TOKENS)),
    Section(OPS["qk"].title, "qk", tuple(TOKENS)),
    *(
        Section(op.title + more, op.name, tuple(shapes))
        for op in OPS.values()
        if op.backward
        for more, shapes in (("", BACKWARD), (", few rows", BACKWARD_FEW))
    ),
)

# What a suite's gradients are to keep, of times of one run. From so many bytes moved, at most so
# many times the ceiling; LayerNorm has a bound of its own from the least of them.
LABORATORY_BOUND = 1.03
GRADIENT_BOUNDS = ((400e6, 1.10), (100e6, 1.12))
LAYER_GRADIENT_BOUND = 1.15
_JUDGED = (
    *((rows, 1024) for rows in (4096, 16384, 65536)),
    *((rows, 4096) for rows in (4096, 8192, 16384)),
    *((rows, 8192) for rows in (8192, 16384)),
    (262144, 128),
)
_ALSO = ((8192, 1024), (8192, 2048), (16384, 2048), (32768, 2048), (16384, 5120), (65536, 512))
_FORWARD = ((1, 4096), (128, 8192), *((4096, n) for n in (1024, 4096, 8192)))
# Named sets of shapes on which the library is beside the laboratory and cuDNN. PDL chains are timed
# on all of them.
SUITES = {
    "gradients": tuple(
        Section(OPS[op].title, op, _JUDGED) for op in ("rms_backward", "layer_backward")
    ),
    "gradients_also": tuple(
        Section(OPS[op].title, op, _ALSO) for op in ("rms_backward", "layer_backward")
    ),
    "forward": tuple(Section(OPS[op].title, op, _FORWARD) for op in ("rms", "layer_own")),
}


def suite_cases(name, dtypes, op_names=None, n_wanted=None):
    """The cases of a suite, section by section."""
    return [Case(s.op_name, dtype, rows, n) for dtype in dtypes for s in SUITES[name]
            for rows, n in s.shapes
            if (not op_names or s.op_name in op_names) and (not n_wanted or n in n_wanted)]


def gradient_bound(case):
    """Most times the ceiling that a gradient may take, or None."""
    of_size = [bound for least, bound in GRADIENT_BOUNDS if case.bytes_moved >= least]
    if not case.op.backward or not of_size:
        return None
    return LAYER_GRADIENT_BOUND if case.op.layer else of_size[0]


# Row lengths in the order in which they are measured. Some peers compile a kernel for a row length
# at run time. So all shapes of one length come together, the most common lengths first.
ORDER_OF_N = [4096, 8192, 128, 16384, 2048, 7168, 5120, 1024, 32768, 14336, 3072, 6144, 12288,
              512, 256, 64]

GRID_ROWS = [1, 2, 8, 32, 128, 1024, 4096, 16384, 65536]
GRID_N = [
    64,
    111,
    128,
    256,
    500,
    512,
    1024,
    1536,
    2048,
    2880,
    3072,
    3584,
    4096,
    4100,
    5000,
    5120,
    6144,
    7168,
    8192,
    10240,
    12288,
    13824,
    14336,
    16384,
    20480,
    24576,
    28672,
    32768,
    65536,
    131072,
    262144,
]


def table_cases(dtypes, op_names=None, n_wanted=None):
    """All cases of the tables, in the order of measurement."""
    cases = {Case(s.op_name, dtype, rows, n): None
             for dtype in dtypes for s in SECTIONS for rows, n in s.shapes
             if (not op_names or s.op_name in op_names) and (not n_wanted or n in n_wanted)}
    return sorted(cases, key=lambda c: (dtypes.index(c.dtype), ORDER_OF_N.index(c.n)))


MODEL_N = [1024, 1536, 2048, 2560, 2880, 3072, 3584, 4096, 5120, 6144, 7168, 8192, 12288, 16384]
MODEL_ROWS = [1, 16, 64, 256, 1024, 4096, 16384]
MODEL_OPS = ["rms", "add", "layer_own", "rms_fp8", "add_fp8", "rms_row_fp8"]
LONG_N = 8192  # longer rows have a bound of their own


@dataclass(frozen=True)
class Group:
    """Cases over which a geometric mean is taken, and the bounds of the ratio of two builds
    there."""

    title: str
    dtypes: tuple
    op_names: tuple
    shapes: tuple
    mean: float
    worst: float | None = None  # of rows up to LONG_N
    worst_long: float | None = None

    def cases(self):
        return [
            Case(op, dtype, rows, n)
            for dtype in self.dtypes
            for op in self.op_names
            for rows, n in self.shapes
        ]


_MODELS = tuple((rows, n) for n in MODEL_N for rows in MODEL_ROWS)
# Named sets of cases: what a build must keep of the speed of the one before.
PRESETS = {"models": (
    Group("bf16", ("bf16",), tuple(MODEL_OPS), _MODELS, 1.005, 1.04, 1.10),
    Group("query and key heads", ("bf16",), ("heads", "qk"), tuple(TOKENS), 1.01),
    Group("with statistics", ("bf16",), ("rms_stats", "add_stats", "layer_stats"), _MODELS, 1.03),
    Group("f16", ("f16",), tuple(MODEL_OPS), _MODELS, 1.03),
    Group("LayerNorm, f32 weight and bias", ("bf16",), ("layer",), tuple(LAYER), 1.005, 1.04, 1.10),
)}
# Against the ceiling, not against the build before: (case, most times the stream of its bytes).
CEILING_BOUNDS = {"models": ((Case("layer", "bf16", 4096, 8192), 1.08),)}


def preset_cases(name, dtypes=None, op_names=None, n_wanted=None):
    """The cases of a preset, group by group."""
    return list(dict.fromkeys(
        c for group in PRESETS[name] for c in group.cases()
        if (not dtypes or c.dtype in dtypes) and (not op_names or c.op_name in op_names)
        and (not n_wanted or c.n in n_wanted)))


def grid_cases(dtypes, op_names, n_wanted=None):
    """The grid of rows x n, small tensors first, so that memory grows as it is needed."""
    cases = [
        Case(op, dtype, rows, n)
        for dtype in dtypes
        for op in op_names
        for rows in GRID_ROWS
        for n in GRID_N
        if not n_wanted or n in n_wanted
    ]
    return sorted(cases, key=lambda c: (dtypes.index(c.dtype), c.footprint, c.key))


COLD_BYTES = 600 << 20
MOST_CALLS = 64
HUGE_BYTES = 4 << 30


@dataclass(frozen=True)
class Chain:
    """How often a graph calls a case, each time with other buffers. `flush` says that the buffers
    do not fill the cache many times: memory is written over before the graph."""

    calls: int
    flush: bool


def chain_of(case, cold_bytes=COLD_BYTES):
    fewest = 1 if case.footprint >= HUGE_BYTES else 2
    calls = min(max(cold_bytes // case.footprint + 1, fewest), MOST_CALLS)
    return Chain(calls, calls * case.footprint < cold_bytes)
