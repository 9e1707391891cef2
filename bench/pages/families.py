"""Tables of the families' pages: stages, gradients, heads, MLA decode, peers, rotations, PDL."""

import math
import re

from compare import tables as compared
from pages.files import CARDS, Missing, and_of, measured, pick, ranged, read, table, wrapped
from pages.norms import title, with_place


def cell(r):
    return f"{r['us']:.1f} us, {r['ratio']:.2f}"


def three(us):
    """Three digits of a time that may be long."""
    return f"{us:.2f}" if us < 10 else f"{us:.1f}" if us < 100 else f"{us:.0f}"


# --- stages and gradients ---


def stages(op, columns):
    def made(shelf):
        file = shelf.part("stages")
        found, rows = file.by_case(), (1, 64, 4096, 16384)
        head = ["n", *(f"{m} row{'s' if m > 1 else ''}" for m in rows)]
        return with_place(file, table(
            head,
            [[str(n)] + [cell(pick(found, (op, m, n), file)) for m in rows] for n in columns],
        ))

    return made


def adaln_more(shelf):
    """Other kinds of modulators, as sentences."""
    file = shelf.part("stages")
    found = file.by_case()

    def times(op, columns):
        us = {n: pick(found, (op, 4096, n), file)["us"] for n in columns}
        return and_of(f"{us[n]:.1f} us for n = {n}" for n in columns)

    return wrapped(
        "With f32 modulators and f32 tables, 4096 rows take "
        f"{times('adaln_tables', (1152, 3072, 4096, 8192))}. RMSNorm with a weight and a scale, "
        f"without a residual addition, takes {times('modulated', (1152, 2304, 8192))}. "
        f"`fastnorm_bench` calls these operations `adaln_tables` and `modulated` "
        f"(`bench/results/{file.name}`)."
    )


def backward(shelf):
    file = shelf.part("backward")
    found = file.by_case()
    shapes = [(4096, 1024), (65536, 1024), (4096, 4096), (16384, 4096), (8192, 8192), (16384, 8192),
              (16384, 16384)]
    ops = ("rms_backward", "add_backward", "layer_backward")
    return with_place(file, table(
        ["rows x n", "RMSNorm", "with dresidual_in", "LayerNorm"],
        [
            [f"{m}x{n}"] + [f"{pick(found, (op, m, n), file)['ratio']:.2f}" for op in ops]
            for m, n in shapes
        ],
    ))


def stages_backward(shelf):
    file = shelf.part("stages_training")
    found = file.by_case()
    shapes = [(131072, 128), (524288, 128), (32768, 512), (4096, 1024), (16384, 1024),
              (4096, 2048), (16384, 2048), (4096, 4096), (16384, 4096), (16384, 5120),
              (16384, 8192)]
    ops = ("gated", "gated_before", "sandwich", "adaln")
    return with_place(file, table(
        ["rows x n", "gate after the norm", "before it", "two norms", "adaLN"],
        [
            [f"{m}x{n}"] + [cell(pick(found, (f"{op}_backward", m, n), file)) for op in ops]
            for m, n in shapes
        ],
    ))


def times_as_long(results, name, own=None):
    """How many times as long as this library another one takes, over these results."""
    found = []
    for r in results:
        us, ours = compared.us_of(r, name), compared.us_of(r, own or compared.own_beside(r, name))
        if us is not None and ours is not None:
            found.append(us / ours)
    return found


def beside_sentence(results, labels):
    """PyTorch takes 1.2 to 5.3 times as long; and so on, for each that was timed."""
    said = []
    for name, label in labels.items():
        found = times_as_long(results, name)
        if found and name not in compared.NOT_PEERS:
            cases = f" in {len(found)} of {len(results)} cases" if len(found) < len(results) else ""
            said.append(f"{title(label)} takes {ranged(found)} times as long{cases}")
    return said


def gradients(shelf):
    file = shelf.part("gradients")
    labels = compared.labels_of(file.content)
    said = beside_sentence(file.results, labels)
    return wrapped(
        f"In {len(file.results)} shapes {and_of(said)}. {' '.join(measured(file))}"
    )


# --- heads ---


def norm_heads(shelf):
    file = shelf.part("norm_heads")
    found = file.timed("shape")
    wanted = ("32+8x128:none", "32+8x128:own", "32+8x128:fp8", "mla:own", "mla:fp8")

    def row(tokens):
        rs = [pick(found, (f"{tokens}x{name}",), file) for name in wanted]
        return [str(tokens), *map(cell, rs), f"{rs[0]['pdl_us']:.1f} us"]

    return with_place(file, table(
        ["tokens", "32+8x128 in place", "with a bf16 cache", "with an fp8 cache", "MLA, bf16 cache",
         "MLA, fp8 cache", "in place, PDL"],
        [row(tokens) for tokens in (1, 64, 1024, 4096, 16384)],
    ))


def across_heads(shelf):
    """Ratios with one statistic for all heads of a token, which only some files have."""
    for card in CARDS:
        if not (shelf.folder / f"{card}_norm_heads.csv").exists():
            continue
        file = read(shelf.folder / f"{card}_norm_heads.csv")
        ratios = [
            r["ratio"] for r in file.results
            if "ratio" in r and r["shape"].endswith(":across") and r["tokens"] >= 4096
        ]
        if ratios:
            shelf.file(file.path.stem)
            return wrapped(
                f"From 4096 tokens on, these kernels, `tokens`, take {ranged(ratios)} times as "
                f"long as the ceiling. {' '.join(measured(file))}"
            )
    raise Missing("no file has heads with one statistic for all of a token")


def heads_backward(shelf):
    file = shelf.part("heads_backward")
    found = file.timed("shape")
    names = ("32+8x128", "32+8x128:dx", "32+8x128:rope", "32+8x128:across")
    by_case = {}
    for (shape,), r in found.items():
        by_case[shape.removesuffix(":all")] = r

    def one(tokens, name):
        return cell(pick(by_case, f"{tokens}x{name}", file))

    return with_place(file, table(
        ["tokens", "dx and dweight", "dx", "rope without a norm", "across all heads"],
        [[str(t), *(one(t, name) for name in names)] for t in (1, 64, 1024, 4096, 16384)],
    ))


def heads_beside(shelf):
    file = shelf.part("compare_heads")
    forward = [r for r in file.results if not r["op"].endswith("backward")]
    back = [r for r in file.results if r["op"].endswith("backward")]
    tokens = sorted({r["rows"] for r in file.results})
    chain = times_as_long(forward, "fastnorm-chain", compared.OWN)
    labels = {
        "flashinfer": "FlashInfer", "vllm": "vLLM", "liger": "Liger", "torch": "torch",
        "torch-compile": "torch.compile",
    }
    text = (
        f"With {and_of(map(str, tokens))} tokens, separate calls of this library take "
        f"{ranged(chain)} times as long as one call. Of other libraries "
        f"{and_of(beside_sentence(forward, labels))}. Of their gradients "
        f"{and_of(beside_sentence(back, labels))}. {' '.join(measured(file))}"
    )
    return wrapped(text)


def vllm(shelf):
    file = shelf.part("compare_vllm")
    found = {(r["op"].split()[1], r["rows"]): r for r in file.results}

    def one(model, tokens):
        r = pick(found, (model, tokens), file)
        ours = compared.us_of(r, compared.own_beside(r, compared.VLLM_HEADS))
        theirs = compared.us_of(r, compared.VLLM_HEADS)
        if theirs is None:
            raise Missing(f"{file.name} has no time of vLLM; required: FASTNORM_VLLM_HEADS")
        digits = 2 if theirs < 10 else 1
        return f"{ours:.{digits}f} us, {theirs:.{digits}f} us, {ours / theirs:.2f}"

    return with_place(file, table(
        ["tokens", "Qwen3, 32+8x128", "Gemma 3, 8+4x256"],
        [
            [str(tokens), one("qwen3", tokens), one("gemma3", tokens)]
            for tokens in (1, 16, 64, 256, 4096, 16384)
        ],
    ))


# --- MLA decode ---


def mla_shape(text):
    found = re.fullmatch(r"(\d+x\d+):(\d+)(?::(\d+))?(c?)(?:f(\d+))?(?:k(\d+))?", text)
    shape, heads, new, causal, codes, topk = found.groups()
    words = [f"{shape}, {heads}"]
    words += [f"{'two' if new == '2' else new} new tokens"] if new else []
    words += ["causal"] if causal else []
    words += [f"rows of {codes} bytes"] if codes else []
    words += [f"{topk} selected"] if topk else []
    return ", ".join(words)


def mla_decode(shelf):
    file = shelf.part("compare_mla_decode")
    by_shape = {}
    for r in file.results:
        if "us" in r:
            by_shape.setdefault(r["shape"], {})[r["provider"]] = r
    names = {"flashmla": "FlashMLA", "flashinfer": "FlashInfer", "torch": "PyTorch"}
    others = [p for p in names if any(p in found for found in by_shape.values())]
    head = ["requests x tokens, heads", "us", "TFLOP/s"]
    for name in others:
        head += [f"{names[name]} us", "its time over ours"]
    rows = []
    for shape, found in by_shape.items():
        ours = found.get("fastnorm")
        if not ours:
            continue
        row = [mla_shape(shape), f"{ours['us']:.1f}", f"{ours['tflop_per_s']:.0f}"]
        for name in others:
            theirs = found.get(name)
            if theirs:
                row += [f"{theirs['us']:.1f}", f"{theirs['us'] / ours['us']:.2f}"]
            else:
                row += ["", ""]
        rows.append(row)
    return with_place(file, table(head, rows))


# --- several GPUs ---


def peers(shelf):
    files = {ranks: shelf.part(f"peers_{ranks}") for ranks in (2, 4)}
    found = {
        ranks: {
            (r["rows"], r["n"], r.get("algorithm")): r
            for r in file.results
            if r["family"] == "allreduce" and "us" in r and not r.get("quantise")
        }
        for ranks, file in files.items()
    }
    shapes = [(1, 4096), (8, 4096), (32, 4096), (128, 4096), (256, 4096), (1024, 4096),
              (128, 8192), (1024, 8192), (4096, 8192)]
    rows = []
    for m, n in shapes:
        two = pick(found[2], (m, n, "one-shot"), files[2])
        one, both = (found[4].get((m, n, how)) for how in ("one-shot", "two-shot"))
        pick(found[4], (m, n, "one-shot"), files[4])
        best = min((r for r in (one, both) if r), key=lambda r: r["us"])
        rows.append([
            f"{m}x{n}",
            f"{three(two['us'])} us",
            f"{two['nccl_over_fastnorm']:.2f} x",
            f"{three(one['us'])} us",
            f"{three(both['us'])} us" if both else "",
            f"{best['nccl_us'] / best['us']:.2f} x",
        ])
    lines = table(
        ["rows x n", "2 GPUs", "NCCL", "4 GPUs: one-shot", "two-shot",
         "NCCL, over the better of both"],
        rows,
    )

    def case(ranks, **wanted):
        for r in files[ranks].results:
            if "us" in r and all(r.get(k) == v for k, v in wanted.items()):
                return r
        raise Missing(f"{files[ranks].name} has no {wanted}")

    codes = [case(2, quantise="per-tensor", rows=m, n=8192)["us"] for m in (8, 256)]
    shard = {
        ranks: case(ranks, family="sharded", rows=1, n=n) for ranks, n in ((2, 2048), (4, 1024))
    }
    text = (
        f"With fp8 codes in addition to y, 8x8192 takes {three(codes[0])} us and 256x8192 takes "
        f"{three(codes[1])} us on 2 GPUs. A sharded norm of one token of 2 x 2048 elements takes "
        f"{shard[2]['us']:.1f} us on 2 GPUs, and one of 4 x 1024 elements takes "
        f"{shard[4]['us']:.1f} us on 4 GPUs. Computing the sums, an ncclAllReduce and then y takes "
        f"{shard[2]['nccl_over_fastnorm']:.1f} times as long on 2 GPUs and "
        f"{shard[4]['nccl_over_fastnorm']:.1f} times on 4."
    )
    places = [line for file in files.values() for line in [*measured(file), ""]]
    return [*places, *lines, "", *wrapped(text)]


def nccl(shelf):
    file = shelf.part("nccl_2")
    rows = []
    groups = [("1 to 32", 1, 32), ("128", 128, 128), ("1024, 4096", 1024, 4096)]
    for title, low, high in groups:
        some = [r for r in file.results if low <= r["rows"] <= high and r["dtype"] == "bf16"]
        joined = [r for r in some if r["op"] == "allreduce_norm"]
        parallel = [r for r in some if r["op"] == "sequence_norm"]
        if not joined or not parallel:
            raise Missing(f"{file.name} lacks rows of {title}")
        rows.append([title, ranged([r["ratio"] for r in joined]),
                     ranged([r["nccl_ratio"] for r in joined]),
                     ranged([r["ratio"] for r in parallel])])
    return with_place(file, table(
        ["rows", "all-reduce and norm by peers", "the same on NCCL", "sequence parallel"], rows
    ))


# --- rotated codes, PDL ---


def rotation(shelf):
    file = shelf.part("rotation")
    found = file.by_case()

    def us(op):
        r = found.get((op, 4096, 4096)) if op else None
        if op and r is None:
            raise Missing(f"{file.name} has no time of {op} 4096 4096")
        return f"{r['us']:.1f} us" if r else ""

    rows = [
        ("e4m3, one scale for the tensor", "rms_fp8", None, None, "rms_rot128_fp8"),
        ("e4m3, a scale for each row", "rms_row_fp8", "rms_rot16_row_fp8", None,
         "rms_rot128_row_fp8"),
        ("MXFP8", "rms_mxfp8", None, "rms_rot32_mxfp8", None),
        ("NVFP4", "rms_nvfp4", "rms_rot16_nvfp4", None, None),
    ]
    return with_place(file, table(
        ["codes", "without", "blocks of 16", "32", "128"],
        [[name, *map(us, ops)] for name, *ops in rows],
    ))


def pdl(shelf):
    file = shelf.part("pdl")
    found = file.by_case()
    names = {"rms": "RMS", "add": "RMS with residual", "layer": "LAYER"}
    lengths = sorted({n for _, _, n in found})

    def mean(op, m):
        shares = [pick(found, (op, m, n), file) for n in lengths]
        return math.exp(sum(math.log(r["pdl_us"] / r["us"]) for r in shares) / len(shares))

    rows = [
        [str(m), *(f"{mean(op, m):.2f}" for op in names)] for m in (1, 16, 64, 256, 512, 1024)
    ]
    slow = sorted(
        ((r["pdl_us"] / r["us"], key) for key, r in found.items() if r["pdl_us"] > 1.01 * r["us"]),
        reverse=True,
    )
    worst = and_of(
        f"{names[op]} of {m} rows of {n} ({share:.2f})" for share, (op, m, n) in slow[:4]
    )
    text = f"Of these {len(found)} shapes {len(slow)} are slower by more than 1 % with PDL"
    text += f", most of all {worst}." if slow else "."
    head = (
        f"Geometric means of {len(lengths)} row lengths from {lengths[0]} to {lengths[-1]}. "
        f"{' '.join(measured(file))}"
    )
    return [*wrapped(head), "", *table(["rows", *names.values()], rows), "", *wrapped(text)]
