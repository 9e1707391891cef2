#!/usr/bin/env python3
"""The backward pass on the command line: what `fastnorm run --backward` computes, compared with
NumPy in double precision, what `explain --backward` and `bench` say, and what all refuse."""

import itertools
import json

import numpy as np
import tensor_file
from program import FAILURE, SUCCESS, USAGE, main, share_of

HALF_ULP = {"F32": 2.0**-24, "F16": 2.0**-11, "BF16": 2.0**-8}
ARITHMETIC = 64 * 2.0**-24  # of sums over rows and columns of some hundred values
LEAST = {"F32": 0.0, "F16": 2.0**-25, "BF16": 0.0}
EPS, OFFSET = 1e-5, 0.25


def make_tensors(rng, dtype, shape, weight_dtype, weight_shape, layer, gradient_dtype=None):
    def normal(kind, size, scale=1.0, offset=0.0):
        return (kind, size, tensor_file.encode(kind, rng.standard_normal(size) * scale + offset))

    tensors = {
        "x": normal(dtype, shape),
        "dy": normal(dtype, shape),
        "gain": normal(weight_dtype, weight_shape, 0.2, 1.0),
        "from_residual": normal(gradient_dtype or dtype, shape, 2.0),
        "old": normal("F32", weight_shape, 3.0),
        "old_shift": normal("F32", weight_shape, 3.0),
    }
    x = tensor_file.decode(tensors["x"]).astype(np.float64)
    mean = x.mean(-1) if layer else np.zeros(shape[:-1])
    rstd = 1 / np.sqrt(((x - mean[..., None]) ** 2).mean(-1) + EPS)
    for name, values in (("m", mean), ("r", rstd)):
        values = np.asarray(values, np.float32).reshape(shape[:-1] or (1,))
        tensors[name] = ("F32", values.shape, values.tobytes())
    return tensors


def expected(tensors, layer, add):
    """{name: (value, size)} in double precision; what is allowed is in proportion to the size."""
    x, dy, gain = (
        tensor_file.decode(tensors[name]).astype(np.float64) for name in ("x", "dy", "gain")
    )
    mean, rstd = (
        tensor_file.decode(tensors[name]).astype(np.float64).reshape(x.shape[:-1])
        for name in ("m", "r")
    )
    xhat = (x - (mean[..., None] if layer else 0)) * rstd[..., None]
    e = dy * (gain + OFFSET)
    dx = e - xhat * (e * xhat).mean(-1, keepdims=True) - (e.mean(-1, keepdims=True) if layer else 0)
    dx = dx * rstd[..., None] + (
        tensor_file.decode(tensors["from_residual"]).astype(np.float64) if add else 0
    )
    shared = tuple(range(x.ndim - gain.ndim))
    found = {"dx": (dx, np.abs(dx) + 1)}
    for name, terms in (("dweight", dy * xhat), ("dbias", dy)):
        found[name] = terms.sum(shared), np.abs(terms).sum(shared)
    return found


def close(tensor, wanted, size):
    found = tensor_file.decode(tensor).astype(np.float64)
    return found.shape == wanted.shape and bool(
        np.all(
            np.abs(found - wanted)
            <= HALF_ULP[tensor[0]] * np.abs(wanted) + ARITHMETIC * size + LEAST[tensor[0]]
        )
    )


def run(program, name, *options, code=SUCCESS, says=()):
    program.expect(
        name,
        code,
        "run",
        "--backward",
        "in.safetensors",
        "out.safetensors",
        "--x",
        "x",
        *options,
        says=says,
    )
    return tensor_file.read(program.work / "out.safetensors") if code == SUCCESS else {}


def test_gradients(program, rng):
    cases = program.cases
    shapes = [((5, 96), (96,)), ((1000,), (1000,)), ((3, 4, 129), (4, 129)), ((300, 64), (64,))]
    for (shape, weight_shape), dtype in share_of(itertools.product(shapes, HALF_ULP)):
        for kind, add, in_place, given in (
            ("rms", False, False, True),
            ("layer", True, False, True),
            ("rms", True, True, False),
            ("layer", False, True, False),
        ):
            layer = kind == "layer"
            name = f"gradients {kind} {dtype} {'x'.join(map(str, shape))}"
            name += " add" * add + " in place" * in_place + " recomputed" * (not given)
            weight_dtype = "F32" if add else dtype
            tensors = make_tensors(rng, dtype, shape, weight_dtype, weight_shape, layer)
            tensor_file.write(program.work / "in.safetensors", tensors)
            options = [
                "--dy",
                "dy",
                "--weight",
                "gain",
                "--kind",
                kind,
                "--eps",
                str(EPS),
                "--weight-offset",
                str(OFFSET),
                "--dx",
                "gx",
                "--dweight",
                "gw",
                "--dbias",
                "gb",
            ]
            options += ["--rstd", "r"] * given + ["--mean", "m"] * (given and layer)
            options += ["--dresidual-in", "from_residual"] * add + ["--in-place"] * in_place
            out = run(program, name, *options)
            wanted = expected(tensors, layer, add)
            cases.equal(
                f"{name}: tensors",
                {n: t[:2] for n, t in out.items()},
                {
                    "gx": (dtype, shape),
                    "gw": (weight_dtype, weight_shape),
                    "gb": (weight_dtype, weight_shape),
                },
            )
            for stored, output in (("gx", "dx"), ("gw", "dweight"), ("gb", "dbias")):
                cases.check(
                    f"{name}: {output}", stored in out and close(out[stored], *wanted[output])
                )


def test_outputs(program, rng):
    """Which outputs there are, and their dtypes; sums that come to old ones."""
    cases = program.cases
    tensors, base = write_rows(program, rng)
    wanted = expected(tensors, False, False)
    cases.equal("dx alone", list(run(program, "dx alone", *base)), ["dx"])
    sums = run(program, "no dx", *base, *"--no-dx --dweight gw --dweight-dtype f32".split(),
               *"--dbias gb --bias shift".split())
    cases.equal("no dx: dtypes", {n: t[0] for n, t in sums.items()}, {"gw": "F32", "gb": "F16"})
    cases.check("no dx: dweight", close(sums["gw"], *wanted["dweight"]))
    cases.check("no dx: dbias", close(sums["gb"], *wanted["dbias"]))
    both = run(program, "two dtypes", *base, *"--dresidual-in from_residual".split(),
               *"--dresidual gr --threads 2".split())
    with_residual = expected(tensors, False, True)["dx"]
    cases.check("two dtypes: dx", close(both["dx"], *with_residual))
    cases.check(
        "two dtypes: dresidual is the same in f32",
        both["gr"][0] == "F32" and close(both["gr"], *with_residual),
    )
    cases.equal(
        "dx is dresidual, rounded",
        both["dx"][2],
        tensor_file.encode("BF16", tensor_file.decode(both["gr"])),
    )
    added = run(program, "accumulated", *base, *"--no-dx --dweight gw --old-dweight old".split(),
                *"--dbias gb --old-dbias old_shift".split())
    for stored, old, output in (("gw", "old", "dweight"), ("gb", "old_shift", "dbias")):
        value, size = wanted[output]
        cases.check(
            f"accumulated: {output}",
            close(added[stored], value + tensor_file.decode(tensors[old]), size + 3),
        )


def test_options(program, rng):
    """Options of the norm change the sums, options of the launch change nothing."""
    cases = program.cases
    _, base = write_rows(program, rng)
    dweight = "--no-dx --dweight gw --dweight-dtype f32".split()
    sums, plain = run(program, "dweight", *base, *dweight), run(program, "dx", *base)
    for options in ("--rounding normalized", "--rounding every-step", "--kind layer --mean m"):
        other = run(program, options, *base, *dweight, *options.split())
        cases.equal(
            f"{options} changes dweight",
            other["gw"][2] != sums["gw"][2],
            "layer" not in options,
        )
    for options in ("--threads 2", "--pdl-wait", "--pdl-trigger", "--no-pdl"):
        cases.equal(
            f"{options} changes nothing",
            run(program, options, *base, *options.split())["dx"],
            plain["dx"],
        )


def write_rows(program, rng):
    """Writes rows of bf16 to the input file; its tensors, and the options that name them."""
    tensors = make_tensors(rng, "BF16", (40, 128), "BF16", (128,), False, "F32")
    tensors["shift"] = ("F16", (128,), bytes(256))
    tensor_file.write(program.work / "in.safetensors", tensors)
    base = "--dy dy --weight gain --rstd r".split()
    return tensors, [*base, "--weight-offset", str(OFFSET), "--eps", str(EPS)]


def test_refused(program, rng):
    work, cases = program.work, program.cases
    tensors = make_tensors(rng, "F16", (4, 64), "F16", (64,), True)
    tensors["short"] = ("F16", (63,), bytes(126))
    tensor_file.write(work / "in.safetensors", tensors)

    def refuse(name, options, says, code=FAILURE):
        (work / "out.safetensors").write_bytes(b"as it was")
        run(program, name, *options.split(), code=code, says=says)
        cases.check(
            f"{name}: the output file is as it was",
            (work / "out.safetensors").read_bytes() == b"as it was",
        )

    for name, options, says in (
        ("dweight without weight", "--dweight gw", ("FASTNORM_ERROR_ARGUMENT", "dweight")),
        ("mean with RMS", "--mean m --rstd r", ("FASTNORM_ERROR_ARGUMENT", "mean")),
        ("rstd alone", "--rstd r --kind layer", ("FASTNORM_ERROR_ARGUMENT", "mean")),
        ("no output", "--no-dx", "FASTNORM_ERROR_ARGUMENT"),
        ("dresidual of dx's dtype", "--dresidual gr --dresidual-dtype f16",
         "dresidual.dtype is f16, as dx's"),
        ("weight of the wrong length", "--weight short", ("FASTNORM_ERROR_SHAPE", "weight", "63")),
        ("an old sum without a new one", "--weight gain --old-dweight old", "required: --dweight"),
    ):
        refuse(name, f"--dy dy {options}", says)
    refuse("no such tensor", "--dy nix", "has no tensor 'nix'")
    refuse("two outputs of one name", "--dy dy --weight gain --dweight dx",
           "two outputs are named 'dx'", USAGE)
    refuse("no dy", "", "--backward needs --dy", USAGE)
    for option in ("--residual x", "--y y", "--quantized q", "--clamp 2", "--pdl-constant-weights"):
        flag = option.split()[0]
        refuse(f"{flag} with --backward", f"--dy dy {option}", f"{flag} excludes --backward", USAGE)
    for option in ("--dy dy", "--dweight gw", "--no-dx"):
        flag, *value = option.split()
        program.expect(f"{flag} without --backward", USAGE, "run", "in.safetensors", "o", "--x", "x",
                       flag, *value, says=f"{flag} requires --backward")


def explained(program, *options):
    return program.json(f"explain {' '.join(options)}", "explain", "--backward", *options)


def launched(program, *options, device="sm_90"):
    found = explained(program, "--device", device, *options)
    program.cases.check(
        f"explain {options}: launches are those named",
        found["launches"] == found["launched"].count(",") + 1,
        found,
    )
    program.cases.equal(
        f"explain {options}: a line of choices",
        [found[k].split("(")[0] for k in ("kind", "choice")],
        (
            ["", ""]
            if found["launched"].startswith(("columns, fold", "statistics, columns, fold"))
            else ["KIND", "ROWS"]
        ),
    )
    return found["launched"]


def test_explain(program):
    cases = program.cases

    cpu = explained(program, "--shape", "4096,512", "--threads", "2")
    cases.equal(
        "explain: bytes of a call",
        (cpu["bytes_read"], cpu["bytes_written"]),
        (2 * 4096 * 1024 + 4096 * 4 + 1024, 4096 * 1024 + 1024),
    )
    # nb blocks of n floats: nb is the least of 128, 2^20 / n and, with 8192 / n lanes, 4096 / 16.
    cases.equal("explain: workspace of dweight", cpu["workspace_bytes"], 128 * 512 * 4)
    layer = explained(
        program, "--shape", "4096,512", "--kind", "layer", "--bias", "--dresidual-in",
        "--accumulate"
    )
    cases.equal(
        "explain: bytes of LayerNorm with everything",
        (layer["bytes_read"], layer["bytes_written"]),
        (3 * 4096 * 1024 + 2 * 4096 * 4 + 3 * 1024, 4096 * 1024 + 2 * 1024),
    )
    cases.equal("explain: workspace of both", layer["workspace_bytes"], 2 * 128 * 512 * 4)
    frozen = explained(program, "--shape", "4096,512", "--no-dweight")
    cases.equal("explain: dx alone needs no workspace", frozen["workspace_bytes"], 0)

    for options, wanted in {
        ("--shape", "512,4096"): "few",
        ("--shape", "512,4096", "--in-place"): "persistent, fold",
        ("--shape", "65536,4096"): "persistent, fold",
        ("--shape", "65536,4096", "--recompute"): "statistics, persistent, fold",
        ("--shape", "65536,4096", "--no-dweight"): "few",
        ("--shape", "65536,128", "--dresidual-in", "--kind", "layer", "--bias"): "persistent, fold",
        ("--shape", "4096,4097"): "columns, rows, fold",
        ("--shape", "4096,4096", "--offset", "1", "--recompute"): "statistics, columns, rows, fold",
        (
            "--shape",
            "4096,4096",
            "--dresidual-in",
            "--dresidual-in-dtype",
            "f32",
        ): "columns, rows, fold",
        ("--shape", "4096,4096", "--x-dtype", "f32"): "columns, rows, fold",
        ("--shape", "4096,4096", "--dresidual-dtype", "f32"): "columns, rows, fold",
        ("--shape", "4096,4096", "--no-dx"): "columns, fold",
        ("--shape", "4096,4097", "--no-dweight"): "rows",
    }.items():
        cases.equal(f"explain {' '.join(options)}", launched(program, *options), wanted)
    cases.equal(
        "explain on sm_80: the general form",
        launched(program, "--shape", "512,4096", device="sm_80"),
        "columns, rows, fold",
    )
    heads = launched(program, "--shape", "4096,32,128", "--head-weights")
    cases.equal("explain: a weight for each head", heads, "persistent, fold")
    text = program.expect(
        "explain as text",
        SUCCESS,
        "explain",
        "--backward",
        "--shape",
        "65536,4096",
        "--device",
        "sm_90",
    )
    cases.check(
        "explain as text: launches and grids",
        "launches           2: persistent, fold" in text and "\ngrids  " in text,
        text,
    )


def test_explained_stages(program):
    cases = program.cases
    stages = ("--shape", "4096,512")
    rows = 4096 * 1024
    for options, read, written, workspace in (
        # dy, x, gate; dx, dgate
        (("--gate", "--gate-act", "silu", "--no-dweight"), 3 * rows, 2 * rows, 0),
        (("--gate", "--no-dweight", "--no-dgate"), 3 * rows, rows, 0),
        (("--gate", "--no-dweight", "--group-size", "128"), 3 * rows + 3 * 4 * 4096, 2 * rows, 0),
        # dy, x, branch; dx, dbranch, dbranch_weight
        (("--branch", "--branch-norm", "rms", "--branch-weight", "--no-dweight"),
         3 * rows + 4 * 4096 + 1024, 2 * rows, 0),
    ):
        found = explained(program, *stages, *options)
        cases.equal(
            f"explain {' '.join(options)}",
            (found["bytes_read"], found["bytes_written"], found["workspace_bytes"]),
            (read + 4 * 4096 + 1024, written, workspace),
        )
    sums = explained(program, *stages, "--branch", "--branch-norm", "layer", "--branch-weight",
                     "--branch-bias", "--residual-gate", "512", "--sum-scale")  # fmt: skip
    more = explained(program, *stages, "--branch", "--branch-norm", "layer", "--branch-weight",
                     "--branch-bias", "--residual-gate", "512", "--sum-scale",
                     "--accumulate")  # fmt: skip
    cases.equal(
        "explain: four sums with a branch, and their old values",
        (sums["workspace_bytes"], more["bytes_read"] - sums["bytes_read"]),
        (4 * 128 * 512 * 4, 4 * 1024),
    )
    again = explained(program, *stages, "--branch", "--branch-norm", "rms", "--recompute")
    given = explained(program, *stages, "--branch", "--branch-norm", "rms")
    cases.equal("explain: two statistics", given["bytes_read"] - again["bytes_read"], 2 * 4 * 4096)
    cases.equal(
        "explain: a gate on a GPU",
        launched(program, "--shape", "4096,4096", "--gate", "--gate-act", "silu"),
        "persistent, fold",
    )
    branch = explained(program, "--shape", "4096,4096", "--device", "sm_90", "--branch",
                       "--branch-norm", "rms", "--branch-weight")  # fmt: skip
    cases.check(
        "explain: launches with a branch have no names",
        branch["launches"] > 0 and "launched" not in branch, branch,
    )  # fmt: skip


def test_explain_refuses(program):
    for options, says in (
        (("--residual",), "--residual excludes --backward"),
        (("--branch-rstd",), "--branch-rstd excludes --backward"),
        (("--modulation-scale", "64"), "--modulation-scale excludes --backward"),
        (("--rstd",), "--rstd excludes --backward"),
        (("--no-dx", "--in-place"), "--in-place needs dx"),
    ):
        program.expect(
            f"explain {options}",
            USAGE,
            "explain",
            "--backward",
            "--shape",
            "4,64",
            *options,
            says=says,
        )
    program.expect(
        "explain --no-dx without --backward",
        USAGE,
        "explain",
        "--shape",
        "4,64",
        "--no-dx",
        says="--no-dx requires --backward",
    )
    program.expect(
        "explain: no output",
        FAILURE,
        "explain",
        "--backward",
        "--shape",
        "4,64",
        "--no-dx",
        "--no-dweight",
        says="FASTNORM_ERROR_ARGUMENT",
    )
    program.expect(
        "explain: dweight of another dtype",
        FAILURE,
        "explain",
        "--backward",
        "--shape",
        "4,64",
        "--dweight-dtype",
        "f16",
        says="FASTNORM_ERROR_DTYPE",
    )


def test_bench(program):
    cases, path = program.cases, program.work / "bench.json"
    shapes, dtypes = share_of(["1x1024", "8x1024"]), share_of(["bf16", "f32"])
    program.expect(
        "bench",
        SUCCESS,
        "bench",
        "--shape",
        ",".join(shapes),
        "--op",
        "rms_backward,add_backward,layer_backward",
        "--dtype",
        ",".join(dtypes),
        "--repeats",
        "2",
        "--threads",
        "2",
        "--output",
        path,
    )
    results = json.loads(path.read_text())["results"]
    cases.equal(
        "bench: every case once", len({(r["op"], r["dtype"], r["rows"]) for r in results}),
        3 * len(shapes) * len(dtypes),
    )
    for r in results:
        name = f"bench {r['op']} {r['dtype']} {r['rows']}x{r['n']}"
        tensors, statistics = (
            (4, 1) if r["op"] == "add_backward" else (3, 2 if r["op"] == "layer_backward" else 1)
        )
        cases.equal(
            f"{name}: bytes",
            r["bytes_moved"],
            tensors * r["rows"] * r["n"] * (4 if r["dtype"] == "f32" else 2)
            + statistics * 4 * r["rows"],
        )
        cases.check(f"{name}: times", r["median_us"] > 0 and r["copy_us"] > 0, r)
    program.expect(
        "bench dx alone",
        SUCCESS,
        "bench",
        "--shape",
        "64x256",
        "--op",
        "rms_dx,add_dx,layer_dx",
        "--repeats",
        "1",
        "--output",
        path,
    )
    results = json.loads(path.read_text())["results"]
    cases.equal(
        "bench dx alone: bytes",
        [r["bytes_moved"] for r in results],
        [64 * (tensors * 512 + values * 4) for tensors, values in ((3, 1), (4, 1), (3, 2))],
    )


def test_tuning(program):
    """What can be seen of tuning without a GPU: the file, and which kernels it leads to."""
    path, cases = program.work / "backward.tuning", program.cases
    version = program.expect("--version", SUCCESS, "--version").split()[-1]
    head = f"fastnorm tuning 2\nlibrary {version}\narch sm_90\n"
    path.write_text(
        head + "KIND(many, bf16, rms, plain)\nROWS(4096, 4096, 1, 64, 512, 2, 1, 1, 3)\n"
        "KIND(alone, bf16, rms, plain)\nROWS(4096, 4096, 1, 64, 256, 4, 1, 1, 0)\n"
    )

    def explained(rows, *options):
        shape = ("--shape", f"{rows},4096", "--dtype", "bf16", "--device", "sm_90")
        name = f"explain {rows} rows {' '.join(map(str, options))}"
        return program.json(name, "explain", "--backward", *shape, *options)

    tuned = explained(64, "--tuning", path)
    cases.equal(
        "tuning: the file's kernel and list",
        (tuned["kernel"], tuned["kind"], tuned["choice"]),
        (
            "norm_backward bf16 rms persistent 512x2 1x3",
            "KIND(many, bf16, rms, plain)",
            "a line of the tuning file",
        ),
    )
    cases.equal(
        "tuning: dx alone has its own line",
        explained(64, "--no-dweight", "--tuning", path)["kernel"],
        "norm_backward bf16 rms few 256x4 1x0",
    )
    cases.equal(
        "tuning: other rows keep theirs",
        explained(65, "--tuning", path)["kernel"],
        explained(65)["kernel"],
    )
    path.write_text(
        head + "KIND(many, bf16, rms, plain)\nROWS(4096, 8192, 1, 64, 256, 2, 1, 2, 3)\n"
    )
    program.expect(
        "tuning: a kernel that does not hold the rows",
        FAILURE,
        "explain",
        "--backward",
        "--shape",
        "64,4096",
        "--device",
        "sm_90",
        "--tuning",
        path,
        says=("options.tuning_file, line 5", "for KIND(many, bf16, rms, plain) with 1 rows of"),
    )
    for device, op, says in (("cpu", "rms_backward", "not cuda:N"), ("cuda:0", "gated", "gated")):
        for command in (["--output", "tuned"], ["--csv", "times.csv"]):
            program.expect(
                f"tune {command[0]} of {op} on {device}",
                USAGE,
                "tune",
                "--op",
                op,
                "--device",
                device,
                *command,
                says=says,
            )
    cases.check(
        "tune: nothing was written",
        not any((program.work / name).exists() for name in ("tuned", "times.csv")),
    )


def gradient_of_norm(x, dy, gain, eps, layer):
    """The gradient of x, and the normalised x, in double precision."""
    centred = x - x.mean(-1, keepdims=True) * layer
    rstd = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    xhat, e = centred * rstd, dy * gain
    mean = e.mean(-1, keepdims=True) * layer
    return (e - mean - xhat * (e * xhat).mean(-1, keepdims=True)) * rstd, xhat


def test_branch(program, rng):
    """A normalised branch with a gate and alpha, added to a residual of another dtype."""
    cases = program.cases
    shape, n = (7, 96), (96,)
    normal = {
        "x": ("F32", shape), "dy": ("F32", shape), "branch": ("BF16", shape), "gain": ("F32", n),
        "shift": ("F32", n), "gate": ("BF16", n), "weight": ("F32", n), "scale": ("F32", (1,)),
    }
    tensors = {
        name: (dtype, size, tensor_file.encode(dtype, rng.standard_normal(size)))
        for name, (dtype, size) in normal.items()
    }
    tensor_file.write(program.work / "in.safetensors", tensors)
    value = {name: tensor_file.decode(t).astype(np.float64) for name, t in tensors.items()}
    options = [
        "--dy", "dy", "--weight", "weight", "--eps", "0.01", "--branch", "branch",
        "--branch-norm", "layer", "--branch-eps", "0.001", "--branch-weight", "gain",
        "--branch-weight-offset", "1", "--branch-bias", "shift", "--residual-gate", "gate",
        "--residual-gate-act", "tanh", "--alpha", "0.5", "--sum-scale", "scale",
        "--dx", "dr", "--dbranch", "db", "--dbranch-weight", "dg", "--dbranch-bias", "ds",
        "--dresidual-gate", "dk",
    ]  # fmt: skip
    found = run(program, "branch", *options)
    r, _ = gradient_of_norm(value["x"], value["dy"], value["weight"], 0.01, False)
    r = r * value["scale"]
    du = r * np.tanh(value["gate"]) * 0.5
    gain = 1 + value["gain"]
    db, xhat = gradient_of_norm(value["branch"], du, gain, 0.001, True)
    slope = (1 - np.tanh(value["gate"]) ** 2) * 0.5
    terms = r * (xhat * gain + value["shift"])
    for name, wanted, size in (
        ("dr", r, np.abs(r) + 1),
        ("db", db, np.abs(db) + 1),
        ("dg", (du * xhat).sum(0), np.abs(du * xhat).sum(0)),
        ("ds", du.sum(0), np.abs(du).sum(0)),
        ("dk", slope * terms.sum(0), np.abs(terms).sum(0)),
    ):
        cases.check(f"branch: {name}", close(found[name], wanted, size))
    dtypes = [found[name][0] for name in ("dr", "db", "dk")]
    cases.check("branch: dtypes", dtypes == ["F32", "BF16", "BF16"])
    old = {name: ("F32", n, tensor_file.encode("F32", rng.standard_normal(n)))
           for name in ("old_dg", "old_ds", "old_dk")}  # fmt: skip
    tensor_file.write(program.work / "in.safetensors", tensors | old)
    added = run(program, "branch: accumulated", *options, "--old-dbranch-weight", "old_dg",
                "--old-dbranch-bias", "old_ds", "--old-dresidual-gate", "old_dk")  # fmt: skip
    for name, wanted, size in (
        ("dg", (du * xhat).sum(0), np.abs(du * xhat).sum(0)),
        ("ds", du.sum(0), np.abs(du).sum(0)),
        ("dk", slope * terms.sum(0), np.abs(terms).sum(0)),
    ):
        wanted = wanted + tensor_file.decode(old[f"old_{name}"])
        cases.check(f"branch: accumulated {name}", close(added[name], wanted, size + 3))
    for name, options, says in (
        ("no branch", ["--branch-norm", "rms"], "branch_norm is 1 and branch is NULL"),
        ("a gradient without its gate", ["--branch", "branch", "--dresidual-gate", "dk"],
         "dresidual_gate is given and residual_gate is NULL"),
        ("an old sum without a new one",
         ["--branch", "branch", "--residual-gate", "gate", "--old-dresidual-gate", "old_dk"],
         "there is a tensor 'old_dk' to add to, but the sum has no name"),
        ("a gate and a branch", ["--branch", "branch", "--dbranch", "db", "--gate", "x"],
         "branch is given and gate is given"),
    ):
        run(program, f"branch: {name}", "--dy", "dy", *options, code=FAILURE, says=says)


def test_gate(program, rng):
    """A gate before or after the norm of groups, and its gradient."""
    cases, groups = program.cases, 3
    shape, n = (7, 96), (96,)
    normal = {
        "x": ("BF16", shape), "dy": ("BF16", shape), "z": ("F32", shape), "weight": ("F32", n),
        "shift": ("F32", n),
    }
    tensors = {
        name: (dtype, size, tensor_file.encode(dtype, rng.standard_normal(size)))
        for name, (dtype, size) in normal.items()
    }
    tensor_file.write(program.work / "in.safetensors", tensors)
    x, dy, z, weight, shift = (tensor_file.decode(t).astype(np.float64) for t in tensors.values())
    sigmoid = 1 / (1 + np.exp(-z))
    act, slope = z * sigmoid, sigmoid * (1 + z * (1 - sigmoid))
    options = [
        "--dy", "dy", "--weight", "weight", "--bias", "shift", "--eps", "0.01", "--gate", "z",
        "--gate-act", "silu", "--group-size", "32", "--dx", "gx", "--dweight", "gw", "--dbias",
        "gb", "--dgate", "gz",
    ]  # fmt: skip

    def grouped(values):
        return values.reshape(*values.shape[:-1], groups, -1)

    def norm(values, gradient):
        found = gradient_of_norm(grouped(values), grouped(gradient), grouped(weight), 0.01, False)
        return [part.reshape(shape) for part in found]

    dx, xhat = norm(x, dy * act)
    du, uhat = norm(x * act, dy)
    after = {
        "gx": dx, "gz": dy * (xhat * weight + shift) * slope, "gw": dy * act * xhat, "gb": dy * act
    }  # fmt: skip
    before = {"gx": du * act, "gz": du * x * slope, "gw": dy * uhat, "gb": dy}
    for position, wanted in (("after-norm", after), ("before-norm", before)):
        found = run(program, f"gate {position}", *options, "--gate-position", position)
        cases.equal(
            f"gate {position}: dtypes",
            {name: t[0] for name, t in found.items()},
            {"gx": "BF16", "gw": "F32", "gb": "F32", "gz": "F32"},
        )
        for name, value in wanted.items():
            sums = name in ("gw", "gb")
            size = np.abs(value).sum(0) if sums else np.abs(value) + 1
            value = value.sum(0) if sums else value
            cases.check(f"gate {position}: {name}", close(found[name], value, size))
    narrow = run(program, "gate: dgate's dtype", *options, "--dgate-dtype", "bf16")
    plain = run(program, "gate: again", *options)
    cases.equal(
        "gate: dgate's dtype",
        narrow["gz"],
        ("BF16", shape, tensor_file.encode("BF16", tensor_file.decode(plain["gz"]))),
    )
    placed = run(program, "gate: in place", *options, "--in-place")
    cases.check("gate: in place", all(placed[name] == plain[name] for name in plain))
    source = run(program, "gate: source", *options, "--gate-source", "rounded")
    cases.check("gate: the source changes dgate", source["gz"] != plain["gz"])
    for name, more, says in (
        ("no gate", ["--dgate", "gz"], "dgate is given and gate is NULL"),
        ("groups of another size", ["--group-size", "36"], "group_size is 36 and n is 96"),
        ("dgate of another dtype", ["--gate", "z", "--dgate", "gz", "--dgate-dtype", "f16"],
         "dgate.dtype is f16"),
    ):
        run(program, f"gate: {name}", "--dy", "dy", *more, code=FAILURE, says=says)
    run(program, "gate: two outputs of one name", "--dy", "dy", "--gate", "z", "--dgate", "dx",
        code=USAGE, says="two outputs are named 'dx'")  # fmt: skip


def test(program):
    rng = np.random.default_rng(41)
    test_branch(program, np.random.default_rng(43))
    test_gate(program, np.random.default_rng(44))
    test_gradients(program, rng)
    test_outputs(program, rng)
    test_options(program, rng)
    test_refused(program, rng)
    test_explain(program)
    test_explained_stages(program)
    test_explain_refuses(program)
    test_bench(program)
    test_tuning(program)


main(test)
