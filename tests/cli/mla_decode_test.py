#!/usr/bin/env python3
"""fastnorm mla_decode: what it runs and compares, its time, and what it refuses. On the CPU."""

import json
import re

from program import FAILURE, SUCCESS, USAGE, main

ELEMENT = {"bf16": 2, "f16": 2, "f32": 4}


def run(program, name, *arguments):
    """The document of a run, whose figures agree with each other."""
    cases = program.cases
    document = program.json(name, "mla_decode", *arguments)
    if not document:
        return document
    call = document["call"]
    cases.equal(
        f"{name}: no row is wrong, the same bits twice",
        (document["wrong_rows"], document["same_bits_twice"]),
        (0, True),
    )
    cases.check(
        f"{name}: errors are within what is allowed",
        0 <= document["error_share_o"] <= 1 and 0 <= document["error_share_lse"] <= 1,
        document,
    )
    rows = call["tokens"] * call["heads"]
    cases.check(
        f"{name}: rows were compared",
        document["checked_rows"] == min(rows, 64) or "--check-rows" in arguments,
        document,
    )
    size = ELEMENT[call["dtype"]]
    row_bytes = int(call["cache"]) if call["cache"].isdigit() else 576 * size
    query = 512 if call["cache"] == "584" else 576
    read = call["tokens"] * (call["topk"] + call["extra_topk"]) or call["cached_tokens"]
    moved = read * row_bytes + rows * (query + 512) * size + rows * 4
    cases.equal(f"{name}: bytes", call["bytes_moved"], moved)
    cases.equal(f"{name}: kernel", document["kernel"], call["dtype"] if rows else "")
    return document


RAGGED_CACHE = ("--lengths", "90,3,130", "--batch", "3", "--heads", "5", "--new-tokens", "2")


def run_inexact(program, name, *options):
    """Runs a call whose results are not exact."""
    document = run(program, name, *options)
    program.cases.check(f"{name}: an error that is not 0",
                        document["max_error_o"] > 0 and document["max_error_lse"] > 0)
    return document


def test_runs(program):
    cases = program.cases
    for dtype in ELEMENT:
        for table in (
            (),
            ("--csr",),
            ("--separate",),
            ("--lse-base", "2"),
            ("--csr", "--separate", "--page", "7"),
        ):
            name = " ".join(("mla_decode", dtype, *table))
            options = ("--dtype", dtype, *RAGGED_CACHE, "--causal", *table)
            document = run_inexact(program, name, *options)
            pairs = sum(length - 2 + i + 1 for length in (90, 3, 130) for i in range(2))
            cases.equal(f"{name}: pairs", document["call"]["flops"], 2 * 5 * (576 + 512) * pairs)


def test_runs_of_bytes(program):
    for cache in ("656", "576", "584"):
        for dtype, *more in (
            ("bf16", "--causal", "--csr"),
            ("f16", "--sink"),
            ("f32", "--topk", "40", "--sink", "--lse-base", "2"),
        ):
            run_inexact(program, f"mla_decode rows of {cache} bytes, {dtype}", "--cache", cache,
                        "--dtype", dtype, *RAGGED_CACHE, "--page", "7", *more)


def test_runs_of_indices(program):
    cases = program.cases
    selected = run(
        program, "mla_decode topk", "--topk", "17", "--lengths", "90,0", "--batch", "2", "--heads",
        "3", "--separate",
    )  # fmt: skip
    cases.equal(
        "mla_decode topk: pairs, and a request without rows",
        (selected["call"]["flops"], selected["call"]["table"], selected["empty_rows"]),
        (2 * 3 * (576 + 512) * 17 * 2, "none", 3),
    )
    # Two caches, and lengths of 0 to topk.
    two = ("--topk", "17", "--extra-topk", "9", "--extra-length", "33", "--extra-page", "3",
           "--lengths", "90,0", "--batch", "2", "--heads", "3", "--new-tokens", "4", "--page", "7")
    for more in ((), ("--cache", "656"), ("--cache", "576", "--dtype", "f16"),
                 ("--cache", "584", "--sink"), ("--separate", "--dtype", "f32")):
        width = 1024 if "584" in more else 576 + 512
        for lengths in ((), ("--topk-lengths",)):
            name = " ".join(("mla_decode of two caches", *more, *lengths))
            document = run_inexact(program, name, *two, *more, *lengths)
            call = document["call"]
            cases.equal(f"{name}: the call",
                        (call["extra_topk"], call["topk_lengths"], call["flops"]),
                        (9, bool(lengths), 2 * 3 * width * (17 + 9) * 2 * 4))
    none = run(program, "mla_decode of two empty caches", "--topk", "5", "--extra-topk", "3",
               "--lengths", "0", "--extra-length", "0", "--sink")
    cases.equal("mla_decode of two empty caches", none["empty_rows"], none["checked_rows"])


def test_rows_and_seeds(program):
    cases = program.cases
    ragged = run(
        program, "mla_decode ragged", "--batch", "4", "--lengths", "0,64,65,2", "--new-tokens",
        "1,0,3,4", "--causal", "--heads", "2", "--check-rows", "1000",
    )  # fmt: skip
    cases.equal(
        "mla_decode ragged: all rows, those of the empty cache and those before it",
        (ragged["checked_rows"], ragged["empty_rows"]),
        (16, 2 + 2 * 2),
    )
    none = run(program, "mla_decode no new tokens", "--new-tokens", "0", "--check-rows", "9")
    cases.equal(
        "mla_decode no new tokens: nothing is launched",
        (none["launches"], none["checked_rows"]),
        (0, 0),
    )
    one, other = (
        run(program, f"mla_decode seed {seed}", "--seed", str(seed), "--lengths", "50")
        for seed in (1, 2)
    )
    cases.check("mla_decode: another seed, other data", one["max_error_o"] != other["max_error_o"])
    threads = run(
        program, "mla_decode two threads", "--seed", "1", "--lengths", "50", "--threads", "2"
    )
    cases.equal(
        "mla_decode: two threads, the same results", threads["max_error_o"], one["max_error_o"]
    )
    program.expect("mla_decode text", SUCCESS, "mla_decode", "--lengths", "70",
                   says=("kernel \"bf16\"", "4 request(s)", "0 wrong", "the same bits"))


def test_bench(program):
    cases, path = program.cases, program.work / "mla.json"
    text = program.expect(
        "mla_decode bench",
        SUCCESS,
        "mla_decode",
        "bench",
        "--batch",
        "2",
        "--lengths",
        "100",
        "--repeats",
        "3",
        "--output",
        path,
        says=("median", "GB/s", "copy in the same run", "reading in the same run"),
    )
    document = json.loads(path.read_text())
    cases.equal(
        "mla_decode bench: the call",
        (document["call"]["batch"], document["call"]["cached_tokens"]),
        (2, 200),
    )
    cases.check(
        "mla_decode bench: figures",
        all(
            document[k] > 0
            for k in (
                "median_us",
                "gb_per_s",
                "gflop_per_s",
                "copy_gb_per_s",
                "read_gb_per_s",
                "ratio_to_copy_rate",
            )
        ),
        document,
    )
    agree = (
        abs(
            document["gb_per_s"] * document["median_us"] * 1e3 / document["call"]["bytes_moved"] - 1
        )
        < 1e-6
        and abs(
            document["gflop_per_s"] * document["median_us"] * 1e3 / document["call"]["flops"] - 1
        )
        < 1e-6
        and abs(
            document["ratio_to_copy_rate"] * document["copy_gb_per_s"] / document["gb_per_s"] - 1
        )
        < 1e-6
    )
    cases.check("mla_decode bench: figures agree with each other", agree, document)
    cases.check(
        "mla_decode bench: the text has the same time",
        f"median {document['median_us']:.2f} us" in text,
        text,
    )
    timed = program.json(
        "mla_decode bench of bytes", "mla_decode", "bench", "--cache", "656", "--lengths", "100",
        "--topk", "8", "--repeats", "1",
    )  # fmt: skip
    cases.equal(
        "mla_decode bench of bytes: the call",
        (timed["call"]["cache"], timed["call"]["topk"], timed["median_us"] > 0),
        ("656", 8, True),
    )
    timed = program.json(
        "mla_decode bench of two caches", "mla_decode", "bench", "--cache", "584", "--lengths",
        "100", "--topk", "8", "--extra-topk", "4", "--repeats", "1",
    )  # fmt: skip
    cases.equal(
        "mla_decode bench of two caches: bytes",
        timed["call"]["bytes_moved"],
        4 * ((8 + 4) * 584 + 16 * (1024 * 2 + 4)),
    )
    before = program.json(
        "mla_decode, options before bench",
        "mla_decode",
        "--dtype",
        "f32",
        "--lengths",
        "10",
        "bench",
        "--repeats",
        "1",
    )
    cases.equal(
        "mla_decode, options before bench", (before["call"]["dtype"], before["repeats"]), ("f32", 1)
    )


def test_refusals(program):
    for name, says, arguments in (
        ("an unknown dtype", "f8 not in", ("--dtype", "f8")),
        ("no page", "--page", ("--page", "0")),
        ("no heads", "--heads", ("--heads", "0")),
        ("a device to plan for", "not cpu or cuda:N", ("--device", "sm_90")),
        ("an unknown word", "'fly' is one argument too many", ("fly",)),
        ("rows of other bytes", "600 not in", ("--cache", "600")),
        ("indices and causal", "--causal is given with --topk; required: one of them",
         ("--topk", "4", "--causal")),
        ("indices and a list", "--csr is given with --topk", ("--topk", "4", "--csr")),
        ("bytes apart", "--separate is given with a --cache of bytes",
         ("--cache", "576", "--separate")),
        ("indices of some", "--new-tokens differ and --topk is given; required: one number",
         ("--topk", "4", "--batch", "2", "--new-tokens", "1,2")),
        ("a second cache without indices", "--extra-topk is given without --topk; required: both",
         ("--extra-topk", "4")),
        ("lengths without indices", "--topk-lengths is given without --topk", ("--topk-lengths",)),
        ("two lengths for four requests", "--lengths has 2 numbers", ("--lengths", "1x2")),
        ("a length below 0", "--lengths is 4,-1; required: numbers from 0 to 16777216",
         ("--lengths", "4,-1")),
    ):
        program.expect(f"mla_decode: {name}", USAGE, "mla_decode", *arguments, says=says)
    for name, says, arguments in (
        ("no scale", "FASTNORM_ERROR_ARGUMENT: sm_scale is 0", ("--scale", "0")),
        ("a split", "FASTNORM_ERROR_ARGUMENT: split_tokens is 63", ("--split-tokens", "63")),
        ("a profile on the CPU", "FASTNORM_ERROR_UNSUPPORTED", ("--profile", "trace.json")),
        ("a file that cannot be written", "cannot be written", ("bench", "--output", "no/file")),
    ):
        program.expect(f"mla_decode: {name}", FAILURE, "mla_decode", *arguments, says=says)
    program.cases.check(
        "mla_decode: no empty trace is left", not (program.work / "trace.json").exists()
    )
    if not re.search(r"^\s*cuda", program.expect("info", SUCCESS, "info"), re.M):
        program.expect(
            "mla_decode without a GPU",
            FAILURE,
            "mla_decode",
            "--device",
            "cuda:0",
            says="FASTNORM_ERROR_DEVICE",
        )


def test(program):
    text = program.expect(
        "mla_decode --help", SUCCESS, "mla_decode", "--help", says=("Usage", "bench", "--profile")
    )
    program.cases.check("mla_decode --help tells the tolerance", "/ 256" in text)
    test_runs(program)
    test_runs_of_bytes(program)
    test_runs_of_indices(program)
    test_rows_and_seeds(program)
    test_bench(program)
    test_refusals(program)


main(test)
