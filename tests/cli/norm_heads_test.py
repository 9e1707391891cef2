#!/usr/bin/env python3
"""fastnorm norm_heads: random layers, a layer of a file compared with NumPy in double precision,
what it explains, and what it refuses. On the CPU."""

import json
import re

import numpy as np
import tensor_file
from program import FAILURE, SUCCESS, USAGE, main, share_of

# Options of layers that run in each dtype.
LAYERS = [
    "",
    "--kind layer --across-heads --head-weights --weight-offset 1",
    "--rope-dim 64 --rope-offset -1 --interleaved",
    "--cache f8_e4m3",
    "--cache f8_e5m2 --cache-scheme per-block --cache-block 64",
    "--cache i8 --cache-scheme per-block",
    "--cache f8_e4m3 --cache-scheme per-block --cache-block 64 --cache-pow2 --cache-tail 64",
    "--cache i8 --cache-tail 48 --cache-rotation 16",
    "--cache f8_e4m3 --quant-division divide",
    "--quant-scheme per-row",
    "--quant-scheme mxfp8 --cache none",
    "--quant-scheme nvfp4",
    "--quant-scheme mxfp4 --cache f8_e4m3 --quant-division divide",
    "--quant-scheme per-row --quant-division divide --clamp 1.5",
    "--rounding once-rw",
    "--rounding once-rw --kind layer --head-weights --weight-offset 1 --y-dtype f32",
    "--in-place --rounding every-step --from-rounded --rope-rounding every-step",
    "--separate --in-place --no-norm --inverse --table-dtype f32",
    "--mrope 16,24,24",
    "--mrope 8,12,12 --mrope-interleaved --rope-dim 64 --interleaved",
    "--mrope 4,12,0,16 --rope-dim 64 --rope-offset -1",
    "--statistics --sumsq --kind layer",
    "--statistics --sumsq --across-heads --head-weights --cache none",
    "--statistics-in --kind layer --cache i8",
    "--statistics-in --across-heads --head-weights",
]

# The key and the value of 512 columns, of which the last 64 are stored as they are.
TAIL = (
    "--query-heads 1 --key-heads 1 --head-dim 512 --rope-dim 64 --rope-offset -1 --interleaved "
    "--cache f8_e4m3 --cache-scheme per-block --cache-block 64 --cache-pow2 --cache-tail 64"
).split()

INDEXER = (
    "--indexer --query-heads 64 --key-heads 1 --rope-dim 64 --kind layer --quant-scheme per-row "
    "--rotation 128 --cache f8_e4m3 --cache-scheme per-block --cache-rotation 128"
).split()


def run(program, *arguments):
    """The document of a run on random data, whose figures agree with each other."""
    cases, name = program.cases, " ".join(("norm_heads run", *arguments))
    document = program.json(name, "norm_heads", "run", *arguments)
    call = document.get("call", {})
    if not call:
        return document
    cases.equal(f"{name}: nothing is wrong, the same bits twice",
                (document["wrong_rows"], document["touched_slots"], document["touched_padding"],
                 document["same_bits_twice"]), (0, 0, 0, True))
    cases.check(f"{name}: errors are within what is allowed", 0 <= document["error_share"] <= 1,
                document)
    if "--check-tokens" not in arguments:
        tokens = min(call["tokens"], 16) - document["padding"]
        rows = tokens * (call["query_heads"] + call["key_heads"])
        cases.equal(f"{name}: rows were compared", document["checked_rows"],
                    rows + document["cached_rows"])
    return document


def test_runs(program):
    cases = program.cases
    for dtype in share_of(("bf16", "f16", "f32")):
        for more in map(str.split, LAYERS):
            document = run(program, "--dtype", dtype, *more)
            cases.check(f"norm_heads run {dtype} {' '.join(more)}: an error that is not 0",
                        document["max_error"] > 0)
    plain = run(program, "--dtype", "f32", "--tokens", "9", "--query-heads", "3", "--key-heads",
                "2", "--page", "4")
    cases.equal("norm_heads run: the eighth token has no slot",
                (plain["cached_rows"], plain["padding"]), (8 * 2 * 2, 1))
    cases.equal("norm_heads run: bytes written", plain["bytes_written"],
                9 * 128 * 4 * (3 + 2 + 2 * 2))
    wide = run(program, "--y-dtype", "f32", "--cache", "none", "--tokens", "9")
    cases.equal("norm_heads run: bytes written, y of f32", wide["bytes_written"], 9 * 128 * 4 * 40)
    again = run(program, "--dtype", "f32", "--tokens", "9", "--query-heads", "3", "--key-heads",
                "2", "--threads", "2")
    cases.equal("norm_heads run: two threads, the same results", again["max_error"],
                plain["max_error"])
    other = run(program, "--dtype", "f32", "--tokens", "9", "--query-heads", "3", "--key-heads",
                "2", "--seed", "5")
    cases.check("norm_heads run: another seed, other data", other["max_error"]
                != plain["max_error"])
    odd = run(program, "--head-dim", "80", "--rope-dim", "36", "--rope-offset", "20", "--page", "7",
              "--tokens", "33", "--check-tokens", "1000")
    cases.equal("norm_heads run: all tokens on request", odd["checked_rows"],
                (33 - 4) * 40 + odd["cached_rows"])
    statistics = run(program, "--statistics", "--kind", "layer", "--tokens", "9")
    sums = run(program, "--sumsq", "--across-heads", "--head-weights", "--tokens", "9")
    cases.equal("norm_heads run: statistics were compared", [
        document["checked_statistics"] for document in (plain, statistics, sums)
    ], [0, 8 * 40, 8 * 2])
    alone = program.json("norm_heads run: sums alone", "norm_heads", "run", "--sumsq", "--no-y",
                         "--cache", "none", "--kind", "layer", "--dtype", "f32")
    cases.equal("norm_heads run: sums alone",
                (alone["checked_rows"], alone["checked_statistics"], alone["wrong_rows"]),
                (0, 16 * 40, 0))
    cases.equal("norm_heads run: bytes of sums alone", alone["bytes_written"], 16 * 40 * 8)
    # Codes and weights of the query, the key in the cache; each eighth token is padding.
    for more in ((), ("--head-weights-factor", "0.011048543", "--scale-pow2", "--dtype", "f32")):
        indexer = run(program, *INDEXER, "--tokens", "9", "--check-tokens", "9", *more)
        cases.equal(f"norm_heads run --indexer {' '.join(more)}: rows",
                    (indexer["checked_rows"], indexer["cached_rows"]), (8 * (2 * 64 + 1), 8))
    tail = run(program, *TAIL, "--tokens", "9", "--check-tokens", "9")
    cases.equal("norm_heads run --cache-tail: rows", (tail["checked_rows"], tail["cached_rows"]),
                (8 * (2 + 2), 8 * 2))
    none = run(program, "--tokens", "0")
    cases.equal("norm_heads run: no tokens", (none["launches"], none["checked_rows"]), (0, 0))
    program.expect("norm_heads run text",
                   SUCCESS,
                   "norm_heads",
                   "run",
                   says=("kernel \"bf16\"", "16 token(s)", "0 wrong", "0 slot(s)",
                         "0 of 2 token(s) without a slot", "the same bits"))
    program.expect("norm_heads run text of statistics", SUCCESS, "norm_heads", "run", "--sumsq",
                   says="560 statistic(s) compared")


def make_layer(rng):
    """Tensors of a file, f32: two query heads and a key head of 40 columns; the last 16 turn."""
    angles = np.arange(9)[:, None] * 10000.0**(-np.arange(8) / 8)
    arrays = {
        "q": rng.standard_normal((5, 2, 40)), "k": rng.standard_normal(
            (5, 1, 40)), "v": rng.standard_normal((5, 1, 40)), "qw": rng.standard_normal((2, 40)),
        "kw": rng.standard_normal(40), "c": np.cos(angles), "s": np.sin(angles)
    }
    arrays = {name: values.astype(np.float32) for name, values in arrays.items()}
    arrays["p"], arrays["slot"] = np.array([8, 0, 3, 3, 1], np.int64), np.array([6, -1, 0, 2],
                                                                                np.int32)
    kinds = {np.dtype(np.float32): "F32", np.dtype(np.int64): "I64", np.dtype(np.int32): "I32"}
    return arrays, {
        name: (kinds[values.dtype], values.shape, values.tobytes())
        for name, values in arrays.items()
    }


def turned(x, weight, arrays):
    """RMSNorm and rope of the last 16 columns, in double precision."""
    x = x.astype(np.float64)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) +
                    np.float64(np.float32(1e-5))) * (weight.astype(np.float64) + 1)
    c, s = (arrays[name][arrays["p"]].astype(np.float64)[:, None, :] for name in "cs")
    first, second = x[..., 24:32].copy(), x[..., 32:].copy()
    x[..., 24:32], x[..., 32:] = first * c - second * s, second * c + first * s
    return x


class LayerFile:
    """The tensors of a layer as arrays and in a file, and what `fastnorm norm_heads run` makes of
    the file."""

    STORED, PADDING = [0, 2, 3], [1, 4]  # tokens: others have slot -1, or lie behind the last slot
    NAMES = {
        "query": "q", "key": "k", "value": "v", "query-weight": "qw", "key-weight": "kw",
        "cos": "c", "sin": "s", "positions": "p", "slots": "slot", "rope-offset": "-1",
        "eps": "1e-5", "weight-offset": "1", "page": "3"
    }

    def __init__(self, program):
        self.program, self.work = program, program.work
        self.arrays, self.tensors = make_layer(np.random.default_rng(7))
        self.write()

    def write(self, **more):
        """Writes the file, with more tensors."""
        tensor_file.write(self.work / "layer.safetensors", {**self.tensors, **more})

    def words(self, without=(), **changed):
        options = {n: value for n, value in {**self.NAMES, **changed}.items() if n not in without}
        return [
            "norm_heads", "run", "layer.safetensors", "out.safetensors",
            *(f"--{option}={value}" for option, value in options.items())
        ]

    def run(self, name, *more, **changed):
        """The tensors of the output file."""
        self.program.expect(self.named(name), SUCCESS, *self.words(**changed), *more)
        return tensor_file.read(self.work / "out.safetensors")

    def check(self, name, ok, shown=""):
        self.program.cases.check(self.named(name), ok, shown)

    def equal(self, name, found, wanted):
        self.program.cases.equal(self.named(name), found, wanted)

    @staticmethod
    def named(name):
        return f"norm_heads run on a file: {name}"


def test_file(program):
    sizes = tensor_file.SIZES
    tensor_file.SIZES = {**sizes, "I32": 4, "I64": 8}
    layer = LayerFile(program)
    test_codes_of_file(layer, test_rows_of_file(layer))
    test_axes_of_file(layer)
    test_statistics_of_file(layer)
    test_clamps_of_file(layer)
    test_refused_files(layer)
    tensor_file.SIZES = sizes


def test_rows_of_file(layer):
    """Rows, and caches in the dtype of rows; the key's rows."""
    arrays, found = layer.arrays, layer.run("rows")
    shapes = {name: (kind, shape) for name, (kind, shape, _) in found.items()}
    layer.equal(
        "its tensors", shapes, {
            "query": ("F32", (5, 2, 40)), "key": ("F32", (5, 1, 40)),
            "key_cache": ("F32", (3, 3, 1, 40)), "value_cache": ("F32", (3, 3, 1, 40))
        })
    wanted = {
        "query": turned(arrays["q"], arrays["qw"], arrays),
        "key": turned(arrays["k"], arrays["kw"], arrays)
    }
    for name, rows in wanted.items():
        result = tensor_file.decode(found[name]).astype(np.float64)
        error = np.abs(result - rows)[layer.STORED].max()
        layer.check(name, error < 5e-6, error)
        layer.check(f"{name} of padding", not result[layer.PADDING].any())
    key = tensor_file.decode(found["key"])
    for name, rows in (("key_cache", key), ("value_cache", arrays["v"])):
        cache = np.zeros((9, 1, 40), np.float32)
        for token, slot in ((0, 6), (2, 0), (3, 2)):
            cache[slot] = rows[token]
        layer.check(name, np.array_equal(tensor_file.decode(found[name]).reshape(9, 1, 40), cache))
    return key


def test_codes_of_file(layer, key):
    """Caches of codes, and rows in place. `key`: its rows without them."""
    codes = layer.run("codes", "--cache", "i8", "--cache-scheme", "per-block", "--cache-block",
                      "64", "--in-place")
    scale = tensor_file.decode(codes["key_cache_scale"]).reshape(9)
    layer.check("codes: scales of the slots", list(np.flatnonzero(scale)) == [0, 2, 6], scale)
    layer.check("codes: the largest is 127",
                np.isclose(scale[6] * 127, np.abs(key[0]).max(), rtol=1e-6), scale)
    values = np.frombuffer(codes["key_cache"][2], np.int8).reshape(9, 40) * scale[:, None]
    layer.check("codes: values", np.abs(values[6] - key[0, 0]).max() <= scale[6] / 2 * 1.0001)
    in_place = tensor_file.decode(codes["key"])
    layer.check("in place: the same key",
                np.array_equal(in_place[layer.STORED], key[layer.STORED]))
    layer.check("in place: padding keeps its x",
                np.array_equal(in_place[layer.PADDING], layer.arrays["k"][layer.PADDING]))


def test_axes_of_file(layer):
    """Positions of three axes, and a given rstd of the query."""
    arrays = layer.arrays
    axes = np.array([[8, 0, 3, 3, 1], [2, 7, 7, 0, 5], [4, 4, 1, 8, 6]], np.int64)
    given = np.linspace(0.5, 1.5, 10, dtype=np.float32).reshape(5, 2)
    layer.write(axes=("I64", (3, 5), axes.tobytes()), given=("F32", (5, 2), given.tobytes()))
    for name, more, axis in (
        ("mrope", ["--mrope", "3x3x2"], [0, 0, 0, 1, 1, 1, 2, 2]),
        ("mrope-interleaved", ["--mrope", "4,2,2", "--mrope-interleaved"],
         [0, 1, 2, 0, 1, 2, 0, 0]),
    ):
        found = layer.run(name, *more, positions="axes", **{"query-rstd-in": "given"})
        layer.equal(f"{name}: its tensors", sorted(found), [
            "key", "key_cache", "query", "value_cache"
        ])
        rows = axes[axis].T  # the table's row of each token and pair
        tables = {t: arrays[t][rows, np.arange(8)] for t in "cs"} | {"p": np.arange(5)}
        query = tensor_file.decode(found["query"]).astype(np.float64)
        wide = arrays["q"].astype(np.float64)
        wanted = turned(wide, arrays["qw"], tables) * given[..., None] * np.sqrt(
            (wide**2).mean(-1, keepdims=True) + np.float64(np.float32(1e-5)))
        error = np.abs(query - wanted)[layer.STORED].max()
        layer.check(f"{name}: query", error < 1e-5, error)
        key = turned(arrays["k"], arrays["kw"], tables)
        found_key = tensor_file.decode(found["key"]).astype(np.float64)
        error = np.abs(found_key - key)[layer.STORED].max()
        layer.check(f"{name}: key", error < 5e-6, error)


def test_statistics_of_file(layer):
    found = layer.run("statistics", "--statistics", "--sumsq")
    for part, x in (("query", layer.arrays["q"]), ("key", layer.arrays["k"])):
        squares = (x.astype(np.float64)**2).sum(-1)
        for name, wanted in (("rstd", 1 / np.sqrt(squares / 40 + 1e-5)), ("sumsq", squares)):
            values = tensor_file.decode(found[f"{part}_{name}"])
            wanted[layer.PADDING] = 0
            layer.check(f"{name} of the {part}",
                        values.shape == wanted.shape
                        and np.allclose(values, wanted, rtol=1e-6, atol=0), values.tolist())


def test_clamps_of_file(layer):
    layer.write(limit=("F32", (1, ), np.float32(0.5).tobytes()))
    options = {"without": ("value", "slots"), "quant-scheme": "per-row", "clamp-scale": "limit"}
    scales = tensor_file.decode(layer.run("clamp_scale", **options)["query_scale"])
    layer.check("clamp_scale clamps", np.all(scales == np.float32(0.5) / np.float32(448)), scales)
    layer.program.expect(layer.named("two clamps"), FAILURE, *layer.words(**options), "--clamp",
                         "2", says="quant.clamp_scale is given and quant.clamp is 2")


def test_refused_files(layer):
    """What the library and the program refuse of a file and of the options for it."""
    tensors = layer.tensors
    layer.write(short=("F32", (5, 8), tensors["c"][2][:160]),
                few=("F32", (1, 1, 40), tensors["k"][2][:160]))
    for name, says, changed in (
        ("a name that is not there", "'nope'", {"key": "nope"}),
        ("a matrix", "--query has 2 dimensions; required: 3", {"query": "c"}),
        ("a position behind the table", "the position of token 0, axis 0, is 8; required: 0 to 4",
         {"cos": "short", "sin": "short"}),
        ("heads of other tokens", "FASTNORM_ERROR_SHAPE: parts[1].x.shape", {"key": "few"}),
    ):
        layer.program.expect(layer.named(name), FAILURE, *layer.words(**changed), says=says)
    for name, says, more in (
        ("no output", "OUT is missing", ("layer.safetensors", )),
        ("no tensor", "required: --query, --key or --value", ("layer.safetensors",
                                                              "o.safetensors")),
        ("one table", "--cos and --sin go together", ("layer.safetensors", "o.safetensors", "--key",
                                                      "k", "--cos", "c")),
        ("a value without slots", "--value needs --slots", ("layer.safetensors", "o.safetensors",
                                                            "--value", "v")),
    ):
        layer.program.expect(layer.named(name), USAGE, "norm_heads", "run", *more, says=says)
    layer.check("nothing is written after a refusal", not (layer.work / "o.safetensors").exists())


def test_explain(program):
    cases = program.cases
    plan = program.json("norm_heads explain", "norm_heads", "explain", "--tokens", "64", "--cache",
                        "f8_e4m3")
    cases.equal("norm_heads explain", (plan["kernel"], plan["launches"], plan["workspace_bytes"]),
                ("bf16", 1, 0))
    cases.equal("norm_heads explain: bytes written", plan["bytes_written"],
                64 * 128 * (40 * 2 + 16))
    huge = program.json("norm_heads explain: more than there is memory", "norm_heads", "explain",
                        "--tokens", "16000000")
    cases.equal("norm_heads explain: bytes of a huge call", huge["bytes_written"],
                16000000 * 128 * 2 * 56)
    in_place = program.json("norm_heads explain --in-place", "norm_heads", "explain", "--in-place",
                            "--tokens", "64")
    cases.equal("norm_heads explain --in-place", in_place["bytes_written"], 64 * 128 * 2 * 56)
    indexer = program.json("norm_heads explain --indexer", "norm_heads", "explain", *INDEXER,
                           "--tokens", "64", "--device", "sm_90")
    cases.equal("norm_heads explain --indexer", (indexer["kernel"], indexer["bytes_written"]),
                ("norm_heads bf16 indexer-lean 4x4", 64 * (64 * 136 + 132)))
    rows = program.json("norm_heads explain of rows of 584 bytes", "norm_heads", "explain", *TAIL,
                        "--tokens", "64", "--device", "sm_90")
    cases.equal("norm_heads explain of rows of 584 bytes: bytes written", rows["bytes_written"],
                64 * 2 * (512 * 2 + 448 + 7 * 4 + 64 * 2))
    program.expect("norm_heads explain text",
                   SUCCESS,
                   "norm_heads",
                   "explain",
                   says=("kernel             bf16", "writes"))


def test_bench(program):
    cases, path = program.cases, program.work / "heads.json"
    text = program.expect("norm_heads bench",
                          SUCCESS,
                          "norm_heads",
                          "bench",
                          "--tokens",
                          "9",
                          "--cache",
                          "f8_e4m3",
                          "--in-place",
                          "--repeats",
                          "3",
                          "--output",
                          path,
                          says=("median", "GB/s", "copy of as many bytes in the same run"))
    document = json.loads(path.read_text())
    plan = program.json("norm_heads explain of what is timed", "norm_heads", "explain", "--tokens",
                        "9", "--cache", "f8_e4m3", "--in-place")
    cases.equal("norm_heads bench: the call",
                (document["call"]["tokens"], document["repeats"], document["kernel"]),
                (9, 3, plan["kernel"]))
    cases.equal("norm_heads bench: bytes", document["bytes_moved"],
                plan["bytes_read"] + plan["bytes_written"])
    cases.check("norm_heads bench: figures",
                all(document[k] > 0 for k in ("median_us", "gb_per_s", "copy_us", "ratio_to_copy")),
                document)
    agree = (abs(document["gb_per_s"] * document["median_us"] * 1e3 / document["bytes_moved"] - 1)
             < 1e-6 and abs(document["ratio_to_copy"] * document["copy_us"] /
                            document["median_us"] - 1) < 1e-6)
    cases.check("norm_heads bench: figures agree with each other", agree, document)
    cases.check("norm_heads bench: the text has the same time",
                f"median {document['median_us']:.2f} us" in text, text)
    large = program.json("norm_heads bench of more than a cache", "norm_heads", "bench", "--tokens",
                         "100", "--dtype", "f32", "--rope-dim", "0", "--repeats", "1", "--threads",
                         "2")
    cases.equal("norm_heads bench of more than a cache", (large["call"]["dtype"], large["threads"]),
                ("f32", 2))


def test_refusals(program):
    for name, says, arguments in (
        ("an unknown dtype", "f8 not in", ("run", "--dtype", "f8")),
        ("no heads", "--query-heads", ("run", "--query-heads", "0")),
        ("no page", "--page", ("run", "--page", "0")),
        ("blocks of a cache without codes", "needs --cache", ("explain", "--cache-scheme",
                                                              "per-block")),
        ("a tail of a cache without codes", "--cache-tail needs --cache", ("run", "--cache-tail",
                                                                           "64")),
        ("an indexer without codes", "--indexer needs --quant-scheme", ("run", "--indexer")),
        ("an indexer without a cache", "--indexer needs --cache",
         ("run", "--indexer", "--quant-scheme", "per-row", "--cache", "none")),
        ("a factor alone", "needs --indexer", ("run", "--head-weights-factor", "2")),
        ("five axes", "required: 1 to 4 numbers from 0 to 16777216",
         ("run", "--mrope", "16,16,16,8,8")),
        ("no sections", "--mrope is 16,x", ("explain", "--mrope", "16,x")),
        ("a device to plan for", "not cpu or cuda:N", ("run", "--device", "sm_90")),
        ("nothing to time", "--tokens is 0", ("bench", "--tokens", "0")),
        ("no word", ("Usage: fastnorm norm_heads", "Subcommands:"), ()),
    ):
        program.expect(f"norm_heads: {name}", USAGE, "norm_heads", *arguments, says=says)
    for name, says, arguments in (
        ("a tail of all columns", "--cache-tail is 128; required: fewer columns than heads have, "
         "128", ("run", "--cache", "i8", "--cache-tail", "128")),
        ("an odd window", "FASTNORM_ERROR_SHAPE: rope_dim is 33; required: even",
         ("run", "--rope-dim", "33")),
        ("a window past the row", "parts[0].rope_offset is 4 and rope_dim is 128",
         ("explain", "--rope-offset", "4")),
        ("sections of another sum", "mrope_0 to mrope_3 are 16, 24, 0 and 0",
         ("run", "--mrope", "16,24")),
        ("alternating axes without axes", "has MROPE_INTERLEAVED", ("explain",
                                                                    "--mrope-interleaved")),
        ("statistics in and out", "parts[0].rstd is given and rstd_in is given",
         ("run", "--statistics", "--statistics-in")),
        ("nothing to store", "required: an output", ("run", "--no-y", "--cache", "none")),
        ("wide rows", "FASTNORM_ERROR_UNSUPPORTED",
         ("run", "--head-dim", "8200", "--tokens", "1", "--query-heads", "1", "--key-heads", "1")),
        ("a division of no codes", "parts[0].quant.division is FASTNORM_QUANT_DIVIDE (1)",
         ("run", "--quant-division", "divide")),
        ("y of another dtype", "FASTNORM_ERROR_DTYPE: parts[0].y.dtype is f16",
         ("run", "--y-dtype", "f16")),
        ("a file that cannot be written", "cannot be written", ("bench", "--output", "no/file")),
        ("a source of no codes", "parts[0].quant.source is FASTNORM_QUANT_FROM_ROUNDED (1)",
         ("run", "--quant-source", "rounded")),
    ):
        program.expect(f"norm_heads: {name}", FAILURE, "norm_heads", *arguments, says=says)
    if not re.search(r"^\s*cuda", program.expect("info", SUCCESS, "info"), re.M):
        program.expect("norm_heads without a GPU",
                       FAILURE,
                       "norm_heads",
                       "run",
                       "--device",
                       "cuda:0",
                       says="FASTNORM_ERROR_DEVICE")


def test(program):
    text = program.expect("norm_heads run --help",
                          SUCCESS,
                          "norm_heads",
                          "run",
                          "--help",
                          says=("Usage", "--slots"))
    program.cases.check("norm_heads run --help tells the tolerance", "2^-18" in text)
    test_runs(program)
    test_file(program)
    test_explain(program)
    test_bench(program)
    test_refusals(program)


main(test)
