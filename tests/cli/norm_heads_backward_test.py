#!/usr/bin/env python3
"""fastnorm norm_heads_backward: gradients of random layers, what it explains, its time, and what it
refuses. On the CPU."""

import json

from program import FAILURE, SUCCESS, USAGE, main, share_of

WORD = "norm_heads_backward"

# Options of layers that run in each dtype.
LAYERS = [
    "",
    "--kind layer --across-heads --head-weights --weight-offset 1",
    "--rope-dim 64 --rope-offset -1 --interleaved --in-place",
    "--rounding every-step --recompute --kind layer",
    "--rounding normalized --head-weights --parameter-dtype f32 --recompute --across-heads",
    "--separate --no-weight --inverse --table-dtype f32",
    "--dy-dtype f32 --no-norm",
]


def run(program, *arguments):
    """The document of a run, whose figures agree with each other."""
    cases, name = program.cases, " ".join((WORD, "run", *arguments))
    document = program.json(name, WORD, "run", *arguments)
    call = document.get("call", {})
    if not call:
        return document
    cases.equal(
        f"{name}: nothing is wrong, the same bits twice",
        (document["wrong"], document["same_bits_twice"]),
        (0, True),
    )
    cases.check(
        f"{name}: errors are within what is allowed", 0 <= document["error_share"] <= 1, document
    )
    cases.check(f"{name}: an error that is not 0", document["max_error"] > 0, document)
    if "--no-dx" not in arguments:
        rows = min(call["tokens"], 16) * (call["query_heads"] + 2 * call["key_heads"])
        cases.equal(f"{name}: rows were compared", document["checked_rows"], rows)
    return document


def test_runs(program):
    cases = program.cases
    few = ("--tokens", "9", "--query-heads", "4", "--key-heads", "2")
    for dtype in share_of(("bf16", "f16", "f32")):
        for more in map(str.split, LAYERS):
            document = run(program, "--dtype", dtype, *few, *more)
            sums = 0 if "--no-weight" in more or "--no-norm" in more else 2 * 128
            if "--head-weights" in more:
                sums = (4 + 2) * 128
            cases.equal(
                f"{WORD} run {dtype} {' '.join(more)}: sums", document["checked_sums"], sums
            )
    frozen = run(program, *few, "--no-dweight")
    cases.equal(
        f"{WORD} run: frozen weights", (frozen["checked_sums"], frozen["workspace_bytes"]), (0, 0)
    )
    alone = run(program, *few, "--no-dx")
    cases.equal(
        f"{WORD} run: weights alone", (alone["checked_rows"], alone["checked_sums"]), (0, 256)
    )
    cases.equal(f"{WORD} run: bytes written", alone["bytes_written"], 2 * 128 * 4)
    none = program.json(f"{WORD} run: no tokens", WORD, "run", "--tokens", "0")
    cases.equal(f"{WORD} run: no tokens", (none["checked_rows"], none["wrong"]), (0, 0))


def test_explain(program):
    cases = program.cases
    plan = program.json(
        f"{WORD} explain",
        WORD,
        "explain",
        "--tokens",
        "9",
        "--query-heads",
        "4",
        "--key-heads",
        "2",
    )
    cases.equal(f"{WORD} explain: written", plan["bytes_written"], 9 * 8 * 128 * 2 + 2 * 128 * 4)
    held = program.json(
        f"{WORD} explain sm_90", WORD, "explain", "--tokens", "4096", "--device", "sm_90"
    )
    cases.equal(
        f"{WORD} explain sm_90: one launch, and one fold",
        (held["kernel"], held["launches"], held["workspace_bytes"]),
        ("norm_heads_backward bf16 held rms 16x1x64", 2, 2 * 128 * 128 * 4),
    )
    across = program.json(
        f"{WORD} explain sm_80", WORD, "explain", "--across-heads", "--device", "sm_80"
    )
    cases.equal(
        f"{WORD} explain sm_80: one more",
        (across["kernel"], across["launches"]),
        ("norm_heads_backward bf16 general", 3),
    )


def test_bench(program):
    cases = program.cases
    path = program.work / "heads_backward.json"
    text = program.expect(
        f"{WORD} bench",
        SUCCESS,
        WORD,
        "bench",
        "--tokens",
        "9",
        "--query-heads",
        "4",
        "--key-heads",
        "2",
        "--repeats",
        "2",
        "--output",
        path,
        says=("median", "GB/s", "copy of as many bytes in the same run"),
    )
    document = json.loads(path.read_text())
    cases.check(
        f"{WORD} bench: figures",
        all(document[k] > 0 for k in ("median_us", "gb_per_s", "copy_us", "ratio_to_copy")),
        document,
    )
    cases.check(
        f"{WORD} bench: the text has the same time",
        f"median {document['median_us']:.2f} us" in text,
        text,
    )


def test_refusals(program):
    for name, says, arguments in (
        ("an unknown dtype", "f8 not in", ("run", "--dtype", "f8")),
        ("no output", "--no-dx leaves no output", ("run", "--no-dx", "--no-dweight")),
        ("dx over dy without dx", "--in-place needs dx", ("explain", "--no-dx", "--in-place")),
        ("nothing to time", "--tokens is 0", ("bench", "--tokens", "0")),
        ("a device to plan for", "not cpu or cuda:N", ("run", "--device", "sm_90")),
        ("no word", ("Usage: fastnorm norm_heads_backward", "Subcommands:"), ()),
    ):
        program.expect(f"{WORD}: {name}", USAGE, WORD, *arguments, says=says)
    for name, says, arguments in (
        ("an odd window", "rope_dim is 33; required: even", ("run", "--rope-dim", "33")),
        ("dy of another dtype", "parts[0].dy.dtype is f16", ("run", "--dy-dtype", "f16")),
    ):
        program.expect(f"{WORD}: {name}", FAILURE, WORD, *arguments, says=says)


def test(program):
    test_runs(program)
    test_explain(program)
    test_bench(program)
    test_refusals(program)


main(test)
