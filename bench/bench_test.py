#!/usr/bin/env python3
"""fastnorm_bench on the CPU: every operation is timed once, bytes are those of the operation,
errors are told; and the host cost that is planned for a GPU. bench_test.py PROGRAM [--pretend
PROGRAM]

The other program is the GPU's part of the benchmark with a CUDA runtime that only pretends: its
times mean nothing."""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "abi"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from cases import Cases  # noqa: E402
from compare import lines  # noqa: E402

NORMS = ("rms", "layer", "add", "add_layer")
CODES = ("", "_fp8", "_row_fp8", "_block_fp8", "_mxfp8", "_nvfp4", "_rounded")
ROTATED = [
    norm + codes
    for norm in ("rms", "add")
    for codes in (
        "_rot128_fp8", "_rot16_row_fp8", "_rot128_row_fp8", "_rot32_mxfp8", "_rot16_nvfp4"
    )
]  # fmt: skip
BACKWARD = [norm + "_backward" for norm in NORMS]
# Gradients of stages: tensors that a call reads, values of statistics for each row.
STAGES_BACKWARD = {
    "gated_backward": (3, 1),
    "gated_before_backward": (3, 1),
    "sandwich_backward": (4, 2),
    "adaln_backward": (4, 2),
}
FOUR_DIGITS = 2e-3  # how far a product of three numbers of four digits may be off
# Tensors that a call with stages reads and writes.
STAGES = {
    "gated": 3, "gated_before": 3, "sandwich": 4, "adaln": 4, "adaln_tables": 4, "modulated": 2
}
OPS = [norm + codes for norm in NORMS for codes in CODES] + BACKWARD + ["qk", "qk_rounded"]
OPS += [*STAGES, *STAGES_BACKWARD]


def expected_bytes(op, size, rows, n):
    """(all bytes of a call, those of scales), by hand; elements have `size` bytes."""
    if op.startswith("qk"):
        return 2 * size * rows * 72 * n, 0
    if op in STAGES:
        return STAGES[op] * size * rows * n, 0
    if op in STAGES_BACKWARD:
        tensors = STAGES_BACKWARD[op][0] + 2
        return tensors * size * rows * n + statistics_bytes(op, rows), 0
    if op.endswith("_backward"):
        return (4 if op.startswith("add") else 3) * size * rows * n + statistics_bytes(op, rows), 0
    scales = 0
    if op.endswith("_row_fp8"):
        scales = 4 * rows
    elif op.endswith("_block_fp8"):
        scales = 4 * rows * -(-n // 128)
    elif op.endswith("_mxfp8"):
        scales = rows * -(-n // 32)
    elif op.endswith("_nvfp4"):
        scales = rows * -(-n // 16)
    leaves = (
        rows * n // 2
        if op.endswith("_nvfp4")
        else rows * n if op.endswith("fp8") else size * rows * n
    )
    return (3 if op.startswith("add") else 1) * size * rows * n + leaves + scales, scales


def statistics_bytes(op, rows):
    """rstd, and mean of LayerNorm or the branch's rstd, that a backward pass reads."""
    if op in STAGES_BACKWARD:
        return 4 * rows * STAGES_BACKWARD[op][1]
    return 0 if not op.endswith("_backward") else 4 * rows * (2 if "layer" in op else 1)


class Program:
    def __init__(self, cases, path, work):
        self.cases, self.path, self.work = cases, path, work

    def run(self, *arguments):
        return subprocess.run([self.path, *arguments], capture_output=True, text=True, timeout=300)

    def results(self, name, *arguments):
        """The document that a run writes; None, and a failed case, if it does not."""
        file = self.work / "out.csv"
        file.unlink(missing_ok=True)
        ran = self.run(*arguments, "--csv", str(file))
        if self.cases.check(f"{name}: runs", ran.returncode == 0, (ran.stdout + ran.stderr)[-600:]):
            return self.read(name, file)
        return None

    def read(self, name, file):
        """The document of a file, which is what compare.py writes for the same document."""
        text = file.read_text()
        document = lines.parse(text, file)
        again = lines.parse(lines.text_of(document), file)
        self.cases.equal(f"{name}: the file has whole numbers and four digits", document, again)
        self.cases.equal(f"{name}: one line a case", text.count("\n"), 2 + len(document["results"]))
        return document

    def refuses(self, name, says, *arguments):
        ran = self.run(*arguments)
        text = ran.stdout + ran.stderr
        self.cases.check(
            f"refused: {name}", ran.returncode not in (0, -6, -11) and says in text, text[-300:]
        )


def check_rows(cases, document, ops, shapes, dtypes):
    rows = document["results"]
    found = {(r["op"], r["dtype"], r["rows"], r["n"]): r for r in rows}
    wanted = {(op, dtype, *shape) for op in ops for dtype in dtypes for shape in shapes}
    cases.equal("rows of the table", len(rows), len(wanted))
    cases.equal("every case once", set(found), wanted)
    for key, r in found.items():
        size = 4 if r["dtype"] == "f32" else 2
        total, scales = expected_bytes(r["op"], size, r["rows"], r["n"])
        if not cases.check(f"{key}: timed", "us" in r, r.get("error")):
            continue
        cases.equal(f"{key}: bytes", (r["bytes"], r.get("scale_bytes", 0)), (total, scales))
        backward = r["op"].endswith("_backward")
        cases.equal(
            f"{key}: bytes of statistics",
            r.get("statistics_bytes", 0),
            statistics_bytes(r["op"], r["rows"]),
        )
        cases.equal(f"{key}: has a workspace", "workspace_bytes" in r, backward)
        cases.check(
            f"{key}: times", r["us"] > 0 and r["ceiling_us"] > 0 and r["kernel"] and r["ceiling"], r
        )
        cases.check(f"{key}: derived", abs(r["ratio"] * r["ceiling_us"] / r["us"] - 1) < FOUR_DIGITS
                    and abs(r["gb_per_s"] * r["us"] * 1e3 / r["bytes"] - 1) < FOUR_DIGITS, r)
        words = r["kernel"].replace("norm_backward ", "").replace("_", " ").split()
        cases.equal(
            f"{key}: kernel's dtype",
            [w for w in words if w in ("bf16", "f16", "f32")][:1],
            [r["dtype"]],
        )
        if r["op"] in STAGES:
            forms = {
                "adaln": "modulated", "adaln_tables": "modulated", "gated_before": "gated"
            }
            named = {"stages", forms.get(r["op"], r["op"])}
            cases.check(f"{key}: kernel's form", named & set(words), r["kernel"])
        elif r["op"] in STAGES_BACKWARD:
            # A kernel of a GPU has its form in its name.
            forms = {"gated"} if r["op"].startswith("gated") else {"branch", "modulated"}
            cases.check(f"{key}: kernel's form", forms & set(words) or len(words) == 2, r["kernel"])
        else:
            cases.equal(f"{key}: kernel's norm", "layer" in words, "layer" in r["op"])


def check_rotated(program, device, dtypes):
    """Operations whose blocks of columns divide the rows."""
    document = program.results(
        "rotated codes", "--device", device, "--replays", "1", "--ops", ",".join(ROTATED),
        "--shapes", "3x256", "--dtypes", ",".join(dtypes),
    )  # fmt: skip
    if document:
        check_rows(program.cases, document, ROTATED, [(3, 256)], dtypes)


def test_cpu(program):
    shapes, dtypes = [(3, 64), (5, 208)], ["bf16", "f16", "f32"]
    document = program.results(
        "all operations",
        "--device",
        "cpu",
        "--replays",
        "1",
        "--ops",
        ",".join(OPS),
        "--shapes",
        "3x64,5x208",
        "--dtypes",
        ",".join(dtypes),
    )
    if document:
        check_rows(program.cases, document, OPS, shapes, dtypes)
    check_rotated(program, "cpu", dtypes)
    # Beyond the caches, and more threads than pieces.
    document = program.results(
        "cold",
        "--device",
        "cpu",
        "--replays",
        "1",
        "--threads",
        "3",
        "--ops",
        "add_row_fp8,rms_nvfp4,qk,add_layer_backward",
        "--shapes",
        "64x8192",
    )
    if document:
        check_rows(
            program.cases,
            document,
            ["add_row_fp8", "rms_nvfp4", "qk", "add_layer_backward"],
            [(64, 8192)],
            ["bf16"],
        )
        program.cases.check("cold cases", all(r["cold"] for r in document["results"]))


def test_strided(program):
    """Gaps and shifts: another access of the kernel, the same bytes moved."""
    document = program.results(
        "strided",
        "--device",
        "cpu",
        "--replays",
        "1",
        "--ops",
        "rms,add_fp8",
        "--shapes",
        "64x1024,64x1024+4,64x1024@1,64x1024+8@2",
    )
    if not document:
        return
    rows = document["results"]
    program.cases.equal(
        "strided: gaps and shifts",
        [(r["op"], r.get("gap", 0), r.get("shift", 0)) for r in rows],
        [(op, *at) for at in ((0, 0), (4, 0), (0, 1), (8, 2)) for op in ("rms", "add_fp8")],
    )
    for r in rows:
        program.cases.equal(
            f"strided {r}: bytes", r["bytes"], expected_bytes(r["op"], 2, 64, 1024)[0]
        )
        program.cases.check(
            f"strided {r}: kernel",
            ("any" in r["kernel"]) == ("gap" in r or "shift" in r or "fp8" in r["op"])
            and r["us"] > 0,
        )


def test_backward(program):
    """Unaligned rows, f32 parameters and the ceilings."""
    document = program.results(
        "backward, strided",
        "--device",
        "cpu",
        "--replays",
        "1",
        "--ops",
        ",".join([*BACKWARD, *STAGES_BACKWARD]),
        "--shapes",
        "64x1024,64x1024+4,64x1024+8@2",
        "--f32-parameters",
    )
    if document:
        rows = document["results"]
        program.cases.equal(
            "backward, strided: gaps and shifts",
            [(r["op"], r.get("gap", 0), r.get("shift", 0)) for r in rows],
            [(op, *at) for at in ((0, 0), (4, 0), (8, 2)) for op in [*BACKWARD, *STAGES_BACKWARD]],
        )
        program.cases.check("backward, strided: timed", all(r.get("us", 0) > 0 for r in rows), rows)
        ceilings = {r["op"]: r["ceiling"].split()[0] for r in rows}
        program.cases.equal(
            "backward: ceilings on a CPU",
            ceilings,
            {op: "R3W1" if "add" in op else "R2W1" for op in BACKWARD}
            | {op: f"R{reads}W2" for op, (reads, _) in STAGES_BACKWARD.items()},
        )


def test_failing_case(program):
    """An odd row has no pairs of 4-bit codes: its row has the library's error, and the others are
    timed."""
    file = program.work / "failed.csv"
    ran = program.run(
        "--device",
        "cpu",
        "--replays",
        "1",
        "--ops",
        "rms_nvfp4,rms",
        "--shapes",
        "2x33",
        "--csv",
        str(file),
    )
    rows = program.read("a failed case", file)["results"]
    program.cases.equal("a failed case: exit status", ran.returncode, 1)
    program.cases.check(
        "a failed case: its text", "FASTNORM_ERROR_" in rows[0].get("error", ""), rows[0]
    )
    program.cases.check(
        "a failed case: on stdout", "failed: FASTNORM_ERROR_" in ran.stdout, ran.stdout
    )
    program.cases.check("a failed case: the next", rows[1].get("us", 0) > 0, rows[1])


def test_refusals(program):
    program.refuses("operation", "rms_fp9", "--ops", "rms_fp9")
    program.refuses("dtype", "f64", "--dtypes", "f64")
    program.refuses("list of shapes", "no list of shapes is called wide", "--shapes", "wide")
    for shape in (
        "4096x",
        "4096x64+",
        "4096x64@",
        "4096x64@1+1",
        "4096x64+-1",
        "0x64",
        "4096x64+1x",
    ):
        program.refuses(f"shape {shape}", "ROWSxN", "--shapes", shape)
    program.refuses("gaps between heads", "TOKENSxHEAD", "--ops", "qk", "--shapes", "64x128+8")
    program.refuses("device", "cpu or cuda:N", "--device", "gpu")
    program.refuses("dependent launch on a CPU", "--pdl needs", "--device", "cpu", "--pdl")
    program.refuses("a chain on a CPU", "--chain needs", "--device", "cpu", "--chain", "4")
    program.refuses(
        "unwritable file",
        "cannot write",
        "--replays",
        "1",
        "--ops",
        "rms",
        "--shapes",
        "1x64",
        "--csv",
        str(program.work / "no" / "file"),
    )


def test_host_cost(program):
    ran = program.run("--host-cost", "90", "--csv", str(program.work / "host.csv"))
    if not program.cases.check("host cost: runs", ran.returncode == 0, ran.stdout + ran.stderr):
        return
    rows = program.read("host cost", program.work / "host.csv")["results"]
    program.cases.check(
        "host cost: operations",
        {"rms", "add_fp8", "rms_nvfp4", "qk"} <= {r["op"] for r in rows},
        rows,
    )
    program.cases.check(
        "host cost: times", all(0 < r["fastest_ns"] <= r["ns"] < 1e6 for r in rows), rows
    )


def check_mla_rows(cases, name, document, shapes, dtypes):
    """shapes: {text: (lengths, heads, new tokens, page, causal)}"""
    rows = document["results"]
    cases.equal(
        f"{name}: every case once",
        [(r["shape"], r["dtype"]) for r in rows],
        [(s, d) for d in dtypes for s in shapes],
    )
    ceilings = document["ceilings"]
    cases.check(
        f"{name}: ceilings",
        ceilings["read_gb_per_s"] > 0 and ceilings["copy_gb_per_s"] > 0,
        ceilings,
    )
    for r in rows:
        lengths, heads, new, page, causal = shapes[r["shape"]]
        key, size, queries = (
            f"{name} {r['shape']} {r['dtype']}",
            4 if r["dtype"] == "f32" else 2,
            len(lengths) * new,
        )
        if not cases.check(f"{key}: timed", r.get("us", 0) > 0, r):
            continue
        pairs = sum(
            max(0, length - new + i + 1) if causal else length
            for length in lengths
            for i in range(new)
        )
        cases.equal(
            f"{key}: bytes and flops",
            (r["bytes"], r["flops"]),
            (
                (sum(lengths) * 576 + queries * heads * (576 + 512)) * size,
                2 * pairs * heads * (576 + 512),
            ),
        )
        cases.equal(
            f"{key}: what it is",
            (
                r["requests"],
                r["cached_tokens"],
                r["heads"],
                r["new_tokens"],
                r["page"],
                r["causal"],
            ),
            (len(lengths), sum(lengths), heads, new, page, causal),
        )
        wanted = {"gb_per_s": r["bytes"] / r["us"] / 1e3, "tflop_per_s": r["flops"] / r["us"] / 1e6,
                  "share_of_read": r["bytes"] / r["us"] / 1e3 / ceilings["read_gb_per_s"],
                  "share_of_copy": r["bytes"] / r["us"] / 1e3 / ceilings["copy_gb_per_s"]}
        cases.check(
            f"{key}: figures agree with each other",
            all(abs(r[k] / v - 1) < FOUR_DIGITS for k, v in wanted.items()),
            (r, wanted),
        )


MLA_SHAPES = {
    "2x300:16": ([300] * 2, 16, 1, 64, False),
    "3+0+65:2:2cp5": ([3, 0, 65], 2, 2, 5, True),
}


# Rows with FP8 codes, and selected rows: bytes of a row, of a query's columns, and rows read.
MLA_FORMATS = {
    "2x30:3:2cp7f656": (656, 576, 60),
    "3+40:2p5f576": (576, 576, 43),
    "2x30:2f584": (584, 512, 60),
    "2x30:2:2k8": (576 * 2, 576, 4 * 8),
    "2x30:2:2p7f656k8+3": (656, 576, 4 * 11),
    "2x30:2f576k8+3": (576, 576, 2 * 11),
    "2x30:2p7f584k8+3": (584, 512, 2 * 11),
    "2x30:2k8+40": (576 * 2, 576, 2 * 48),
}


def check_mla_formats(program):
    document = program.results("MLA decode of other rows", "--device", "cpu", "--replays", "1",
                               "--mla-decode", ",".join(MLA_FORMATS))
    for r in document["results"] if document else ():
        row, columns, read = MLA_FORMATS[r["shape"]]
        rows = r["requests"] * r["new_tokens"] * r["heads"]
        program.cases.equal(f"MLA decode {r['shape']}: bytes", r.get("bytes"),
                            read * row + rows * (columns + 512) * 2)
        program.cases.check(f"MLA decode {r['shape']}: timed", r.get("us", 0) > 0, r)
    if document:
        program.cases.equal("MLA decode of other rows: every case once",
                            [r["shape"] for r in document["results"]], list(MLA_FORMATS))


def test_mla_decode(program):
    document = program.results(
        "MLA decode",
        "--device",
        "cpu",
        "--replays",
        "2",
        "--mla-decode",
        ",".join(MLA_SHAPES),
        "--dtypes",
        "bf16,f16,f32",
    )
    if document:
        check_mla_rows(program.cases, "MLA decode", document, MLA_SHAPES, ["bf16", "f16", "f32"])
        program.cases.check(
            "MLA decode: no matmul on a CPU",
            all(r["share_of_matmul"] is None for r in document["results"]),
        )
    check_mla_formats(program)
    for shape in (
        "x",
        "2x300",
        "2x300:16f600",
        "2x300:16k0",
        "2x300:16ck4",
        "3+0:16k4",
        "2x300:16f656k4+",
        "0x5:3",
        "2x300:16:0",
        "2x300:16cq",
        "0:2",
        "2x300:",
        "2x:3",
        "1++2:3",
        "2x300:16p0",
        "-1x5:3",
    ):
        program.refuses(f"MLA shape {shape}", "is no shape of MLA decode", f"--mla-decode={shape}")
    program.refuses(
        "MLA decode with a chain", "are of norms", "--mla-decode", "5:2", "--chain", "4"
    )


def test_pretended_mla_decode(program):
    shapes = {**MLA_SHAPES, "64x1024:64p1": ([1024] * 64, 64, 1, 1, False)}
    document = program.results(
        "pretended MLA decode",
        "--device",
        "cuda:0",
        "--replays",
        "2",
        "--mla-decode",
        ",".join(shapes),
        "--dtypes",
        "bf16,f16",
    )
    if document:
        check_mla_rows(program.cases, "pretended MLA decode", document, shapes, ["bf16", "f16"])
        for r in document["results"]:
            name = f"pretended MLA decode {r['shape']} {r['dtype']}"
            program.cases.check(
                f"{name}: plan, workspace, launches",
                r.get("plan_us", -1) >= 0
                and r["workspace_bytes"] > 0
                and 2 <= r["launches"] <= 3
                and r["share_of_matmul"] > 0,
                r,
            )
            program.cases.check(
                f"{name}: flushed where the calls are small",
                r["flushed"] == ("x1024" not in r["shape"]),
                r,
            )
    lists = program.results(
        "lists of MLA decode",
        "--device",
        "cuda:0",
        "--replays",
        "1",
        "--mla-decode",
        "page1,long,heads,small",
    )
    if lists:
        program.cases.equal(
            "lists of MLA decode: shapes",
            len({r["shape"] for r in lists["results"]}),
            18 + 5 + 6 + 5,
        )
        program.cases.check(
            "lists of MLA decode: all run",
            all("us" in r for r in lists["results"]),
            lists["results"],
        )
    program.cases.check("f32 on a GPU is refused", "FASTNORM_ERROR_UNSUPPORTED" in program.run(
        "--device", "cuda:0", "--mla-decode", "5:2", "--dtypes", "f32").stdout)


# Bytes that a token moves, in and out, of bf16: by hand.
HEADS = {
    "5x3+1x64": 2 * 4 * 64 * 2,  # query and key, in place
    "5x3+1x64:own": 2 * 5 * 64 * 2,
    "70x3+1x64:fp8": 5 * 64 * 2 + 3 * 64 * 2 + 2 * 64,
    "5x3+1x64:across": 2 * 4 * 64 * 2,
    "70x3+1x64:own:across": 2 * 5 * 64 * 2,
    "5xmla:none": 2 * 576 * 2,
    "70xmla:own": 2 * 576 * 2,
    "5xmla:fp8": 576 * 2 + 656,
    "70xmla584": 512 * 2 + 584,
    "5xindexer": (65 * 128 + 64) * 2 + 132 + 64 * 136,
}


def check_heads_rows(cases, name, document, token_bytes):
    shapes = [r["shape"] for r in document["results"]]
    cases.equal(f"{name}: every case once", shapes, list(token_bytes))
    for r in document["results"]:
        key = f"{name} {r['shape']}"
        if not cases.check(f"{key}: timed", r.get("us", 0) > 0 and r["ceiling_us"] > 0, r):
            continue
        cases.equal(f"{key}: bytes", r["bytes"], r["tokens"] * token_bytes[r["shape"]])
        cases.check(f"{key}: figures agree with each other",
                    abs(r["ratio"] * r["ceiling_us"] / r["us"] - 1) < FOUR_DIGITS
                    and abs(r["gb_per_s"] * r["us"] * 1e3 / r["bytes"] - 1) < FOUR_DIGITS, r)


def check_on_threads(program, name, option, shapes):
    """Two shapes of 16 and 32 bits: one beyond the caches, and one within."""
    document = program.results(
        f"{name} on threads", "--threads", "3", "--dtypes", "f16,f32", "--replays", "1", option,
        shapes,
    )
    if not document:
        return
    rows = document["results"]
    program.cases.check(f"{name} on threads: timed", all(r.get("us", 0) > 0 for r in rows), rows)
    program.cases.equal(f"{name} on threads: cold", [r["cold"] for r in rows], [True, False] * 2)


def test_norm_heads(program):
    arguments = ("--replays", "2", "--norm-heads", ",".join(HEADS))
    document = program.results("heads", *arguments)
    if document:
        check_heads_rows(program.cases, "heads", document, HEADS)
    check_on_threads(program, "heads", "--norm-heads", "4096x4+1x64:own,300x4+1x64")
    for shape in (
        "x",
        "5x3+1",
        "5x3x64",
        "0x3+1x64",
        "5x3+1x64:f8",
        "5x3+1x64x",
        "5xmlas",
        "5xmla:across",
        "5xindexer:own",
        "5xmla584:fp8",
        "5x3+1x64:across:own",
        "5x0+1x64",
    ):
        program.refuses(f"shape of heads {shape}", "is no shape of heads", f"--norm-heads={shape}")
    program.refuses("heads with a chain", "are of norms", "--norm-heads", "5xmla", "--chain", "4")
    program.refuses(
        "two families", "exclude each other", "--norm-heads", "5xmla", "--mla-decode", "5:2"
    )
    program.refuses("a window past the row", "FASTNORM_ERROR_SHAPE", "--norm-heads", "5x3+1x63")


# Bytes of gradients of heads by their shape: dy, x and dx, and the rstd of each token.
GRADIENTS = {
    "70x3+1x64": (2 * 5 + 4) * 64 * 2 + 4 * 4,
    "5x3+1x64:dx": (2 * 5 + 4) * 64 * 2 + 4 * 4,
    "70x3+1x64:across": (2 * 5 + 4) * 64 * 2 + 2 * 4,
    "70x3+1x64:rope": 2 * 5 * 64 * 2,
}


def check_gradient_rows(program, name, document, most_launches=None):
    cases = program.cases
    check_heads_rows(cases, name, document, GRADIENTS)
    for r in document["results"]:
        gradients = r["shape"].partition(":")[2]
        per_token = {"rope": None, "across": 2 * 4}.get(gradients, 4 * 4)
        cases.equal(
            f"{name} {r['shape']}: bytes of statistics",
            r.get("statistics_bytes"),
            per_token and r["tokens"] * per_token,
        )
        cases.equal(
            f"{name} {r['shape']}: has a workspace",
            "workspace_bytes" in r,
            gradients in ("", "across"),
        )
        reads = 1 if gradients == "rope" else 2
        cases.check(f"{name} {r['shape']}: ceiling", r["ceiling"].startswith(f"R{reads}W1 "), r)
        if most_launches:
            launches = {"": 2, "dx": 1, "rope": 1, "across": 3}[gradients]
            cases.equal(f"{name} {r['shape']}: launches", r["launches"], launches)


def test_norm_heads_backward(program):
    document = program.results(
        "gradients", "--replays", "2", "--norm-heads-backward", ",".join(GRADIENTS)
    )
    if document:
        check_gradient_rows(program, "gradients", document)
    check_on_threads(
        program, "gradients", "--norm-heads-backward", "2048x4+1x64,100x4+1x64:rope"
    )
    lists = ("mla", "mla584", "indexer")
    for shape in ("x", "5xmla", *lists, "5x3+1x64:own", "5x0+1x64", "5x3+1x64x"):
        program.refuses(
            f"shape of gradients {shape}",
            "is no shape of gradients of heads",
            f"--norm-heads-backward={shape}",
        )
    program.refuses(
        "three families", "exclude each other", "--norm-heads", "5xmla", "--norm-heads-backward",
        "5x3+1x64",
    )
    program.refuses(
        "a window past the row of gradients", "FASTNORM_ERROR_SHAPE", "--norm-heads-backward",
        "5x3+1x63",
    )


def test_pretended_norm_heads_backward(program):
    document = program.results(
        "pretended gradients", "--device", "cuda:0", "--replays", "2", "--norm-heads-backward",
        ",".join(GRADIENTS),
    )
    if document:
        check_gradient_rows(program, "pretended gradients", document, most_launches=True)
    few = program.results(
        "pretended gradients of few tokens", "--device", "cuda:0", "--replays", "2",
        "--norm-heads-backward", "5x3+1x64",
    )
    if few:
        found = [(r["launches"], "workspace_bytes" in r) for r in few["results"]]
        program.cases.equal("few tokens: one block of each part", found, [(1, False)])
    lists = program.results(
        "lists of gradients", "--device", "cuda:0", "--replays", "1", "--norm-heads-backward",
        "qwen3,qwen3-64,olmo2",
    )
    if lists:
        program.cases.equal(
            "lists of gradients: cases",
            len({r["shape"] for r in lists["results"]}),
            (2 * 4 + 1) * 7,
        )
        program.cases.check(
            "lists of gradients: all run", all("us" in r for r in lists["results"]), lists
        )


def test_pretended_norm_heads(program):
    """A context that has no kernels for heads says so in each row; one that has them is timed."""
    lists = program.run(
        "--device",
        "cuda:0",
        "--replays",
        "2",
        "--norm-heads",
        "qwen3,qwen3-64,olmo2,olmo2-32b,mla",
        "--csv",
        str(program.work / "heads.csv"),
    )
    rows = program.read("norm_heads", program.work / "heads.csv")["results"]
    program.cases.equal("lists of heads: cases", len({r["shape"] for r in rows}), 5 * 3 * 7)
    if any("error" in r for r in rows):
        program.cases.check(
            "heads without kernels: each case says so, and the program fails",
            lists.returncode == 1
            and all(
                "FASTNORM_ERROR_UNSUPPORTED: context is of CUDA:0; norm_heads has no"
                in r.get("error", "")
                for r in rows
            ),
            rows[:2],
        )
        return
    for r in rows:
        name = f"pretended heads {r['shape']}"
        in_place = r["cache"] == "none"
        program.cases.check(f"{name}: ceiling", r["ceiling"].startswith("R1W1 ")
                            and r["ceiling"].endswith(" strided") == in_place, r)
        footprint = r["bytes"] // (2 if in_place else 1)
        program.cases.equal(
            f"{name}: flushed", r["flushed"], r["calls_per_graph"] * footprint < 600 << 20
        )


def test_pretended_gpu(program):
    shapes, dtypes = [(1, 64), (4096, 1024), (300, 208)], ["bf16", "f16", "f32"]
    document = program.results(
        "pretended GPU",
        "--device",
        "cuda:0",
        "--replays",
        "2",
        "--pdl",
        "--ops",
        ",".join(OPS),
        "--shapes",
        "1x64,4096x1024,300x208",
        "--dtypes",
        ",".join(dtypes),
    )
    if not document:
        return
    check_rows(program.cases, document, OPS, shapes, dtypes)
    check_rotated(program, "cuda:0", dtypes)
    for r in document["results"]:
        key = (r["op"], r["dtype"], r["rows"], r["n"])
        footprint = r["bytes"] // (2 if r["op"].startswith("qk") else 1)
        program.cases.check(f"{key}: with dependent launch", r["pdl_us"] > 0, r)
        # Short heads share a grid; long ones need not.
        backward = r["op"].endswith("_backward")
        most = 4 if backward else 2 if key[0].startswith("qk") and r["n"] > 256 else 1
        program.cases.check(f"{key}: launches", 1 <= r["launches"] <= most, r["launches"])
        program.cases.equal(
            f"{key}: flushed", r["flushed"], r["calls_per_graph"] * footprint < 600 << 20
        )
        shrink = (4 if r["dtype"] == "f32" else 2) * (2 if "nvfp4" in r["op"] else 1)
        written = 1 / shrink if r["op"].endswith(("fp8", "nvfp4")) else 1
        adds = r["op"].startswith("add") or STAGES.get(r["op"]) == 4
        joins = backward or r["op"].startswith("gated")
        kind = f"R{2 + adds}W1 " if joins else f"R{1 + adds}W{adds + written:g} "
        if r["op"] in STAGES_BACKWARD:
            kind = f"R{STAGES_BACKWARD[r['op']][0]}W2 "
        program.cases.check(
            f"{key}: ceiling",
            r["ceiling"].startswith(kind)
            and r["ceiling"].endswith(" strided") == (r["op"].startswith("qk")),
            r["ceiling"],
        )


def test_pretended_training(program):
    """The lists of training shapes, all operations, as they run on a GPU."""
    document = program.results(
        "training",
        "--device",
        "cuda:0",
        "--replays",
        "1",
        "--ops",
        ",".join(BACKWARD),
        "--shapes",
        "training,training_few,training_short",
    )
    if document:
        shapes = {(r["rows"], r["n"]) for r in document["results"]}
        program.cases.equal("training: cases", len(document["results"]), 4 * len(shapes))
        program.cases.check(
            "training: all run",
            all("us" in r for r in document["results"]),
            [r for r in document["results"] if "us" not in r][:3],
        )
        program.cases.check(
            "training: the goals' shapes",
            {(4096, 5120), (128, 4096), (512, 4096), (65536, 128), (65536, 1024)} <= shapes,
        )
        forms = {
            word
            for r in document["results"]
            for word in r["kernel"].split()
            if word in ("persistent", "few", "rows")
        }
        program.cases.equal("training: forms", forms, {"persistent", "few"})
    document = program.results(
        "training of stages",
        "--device",
        "cuda:0",
        "--replays",
        "1",
        "--ops",
        ",".join(STAGES_BACKWARD),
        "--shapes",
        "stages_training",
    )
    if document:
        shapes = {(r["rows"], r["n"]) for r in document["results"]}
        program.cases.equal("training of stages: cases", len(document["results"]),
                            len(STAGES_BACKWARD) * len(shapes))
        program.cases.check("training of stages: heads and rows",
                            {(131072, 128), (4096, 8192)} <= shapes)
        gated = [r["kernel"] for r in document["results"] if r["op"].startswith("gated")]
        program.cases.check("training of stages: gates are held",
                            all("gated persistent" in kernel for kernel in gated), gated)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--pretend", help="the benchmark with a pretended CUDA runtime")
    options = parser.parse_args()
    cases = Cases()
    with tempfile.TemporaryDirectory() as work:
        program = Program(cases, options.program, Path(work))
        test_cpu(program)
        test_strided(program)
        test_backward(program)
        test_failing_case(program)
        test_refusals(program)
        test_host_cost(program)
        test_mla_decode(program)
        test_norm_heads(program)
        test_norm_heads_backward(program)
        if options.pretend:
            test_pretended_mla_decode(Program(cases, options.pretend, Path(work)))
            test_pretended_norm_heads(Program(cases, options.pretend, Path(work)))
            test_pretended_norm_heads_backward(Program(cases, options.pretend, Path(work)))
            test_pretended_gpu(Program(cases, options.pretend, Path(work)))
            test_pretended_training(Program(cases, options.pretend, Path(work)))
        else:
            cases.skip("the GPU's part with a pretended runtime", "this build has no CUDA")
    cases.finish()


main()
