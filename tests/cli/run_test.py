#!/usr/bin/env python3
"""fastnorm run: what it computes, compared with NumPy in double precision, and what it refuses."""

import itertools
import os

import numpy as np
import tensor_file
from program import FAILURE, SUCCESS, USAGE, main, share_of

# Half a unit in the last place of each dtype, relative. The error of single-precision arithmetic is
# that of rows of at most 1024 elements (22 roundings: a chain of 16 additions and a tree of 6).
HALF_ULP = {"F32": 2.0 ** -24, "F16": 2.0 ** -11, "BF16": 2.0 ** -8}
ARITHMETIC = 32 * 2.0 ** -24
LEAST = {"F32": 0.0, "F16": 2.0**-25, "BF16": 0.0}  # half the least subnormal that can matter here


def make_tensors(rng, dtype, shape, weight_dtype, weight_shape):
    def normal(kind, size, scale=1.0, offset=0.0):
        return (kind, size, tensor_file.encode(kind, rng.standard_normal(size) * scale + offset))

    return {
        "x": normal(dtype, shape),
        "residual": normal(dtype, shape, 2.0, 0.5),
        "gain": normal(weight_dtype, weight_shape, 0.2, 1.0),
        "shift": normal(weight_dtype, weight_shape, 0.5),
    }


def expected(tensors, layer, add, eps, offset):
    """y, sum, mean and rstd in double precision; the sum is one f32 addition."""
    s = tensor_file.decode(tensors["x"])
    if add:
        s = s + tensor_file.decode(tensors["residual"])
    wide = s.astype(np.float64)
    mean = wide.mean(-1) if layer else np.zeros(wide.shape[:-1])
    centred = wide - mean[..., None]
    rstd = 1 / np.sqrt((centred ** 2).mean(-1) + np.float64(np.float32(eps)))
    gain = tensor_file.decode(tensors["gain"]).astype(np.float64) + offset
    y = centred * rstd[..., None] * gain + tensor_file.decode(tensors["shift"]).astype(np.float64)
    return y, s, mean, rstd


def close(found, wanted, relative, absolute):
    return bool(
        np.all(np.abs(found.astype(np.float64) - wanted) <= relative * np.abs(wanted) + absolute)
    )


def test_round_trip(program, rng):
    cases, work = program.cases, program.work
    shapes = [((5, 96), (96,)), ((1000,), (1000,)), ((3, 4, 129), (4, 129)), ((2, 1, 2, 64), (64,))]
    for (shape, weight_shape), dtype in share_of(itertools.product(shapes, HALF_ULP)):
        for kind, add, in_place in (
            ("rms", False, False),
            ("layer", True, False),
            ("rms", True, True),
        ):
            name = f"run {kind} {dtype} {'x'.join(map(str, shape))}{' add' if add else ''}{' in place' if in_place else ''}"
            tensors = make_tensors(rng, dtype, shape, "F32" if in_place else dtype, weight_shape)
            tensor_file.write(work / "in.safetensors", tensors)
            options = [
                "--x",
                "x",
                "--weight",
                "gain",
                "--bias",
                "shift",
                "--kind",
                kind,
                "--eps",
                "1e-5",
                "--weight-offset",
                "0.25",
                "--y",
                "out",
                "--rstd",
                "r",
            ]
            options += ["--mean", "m"] if kind == "layer" else []
            options += ["--residual", "residual", "--residual-out", "sum"] if add else []
            options += ["--in-place"] if in_place else []
            program.expect(name, SUCCESS, "run", "in.safetensors", "out.safetensors", *options)
            out = tensor_file.read(work / "out.safetensors")
            y, s, mean, rstd = expected(tensors, kind == "layer", add, 1e-5, 0.25)
            cases.equal(f"{name}: tensors", sorted(out),
                        sorted(["out", "r"] + ["m"] * (kind == "layer") + ["sum"] * add))
            cases.equal(f"{name}: y's dtype and shape", out["out"][:2], (dtype, shape))
            # What cancels in t * g + bias is bounded by its terms, here below 16.
            cases.check(
                f"{name}: y",
                close(
                    tensor_file.decode(out["out"]),
                    y,
                    HALF_ULP[dtype] + ARITHMETIC,
                    LEAST[dtype] + 16 * ARITHMETIC,
                ),
            )
            cases.equal(f"{name}: shape of rstd", out["r"][1], shape[:-1] or (1,))
            cases.check(
                f"{name}: rstd",
                close(tensor_file.decode(out["r"]).ravel(), rstd.ravel(), ARITHMETIC, 0),
            )
            if kind == "layer":
                cases.check(
                    f"{name}: mean",
                    close(tensor_file.decode(out["m"]).ravel(), mean.ravel(), 0, 8 * ARITHMETIC),
                )
            if add:
                cases.check(
                    f"{name}: the sum, to the bit", out["sum"][2] == tensor_file.encode(dtype, s)
                )


def test_axes(program, rng):
    """Options that change bits do so, in the direction that they say."""
    cases, work = program.cases, program.work
    tensors = make_tensors(rng, "BF16", (64, 512), "BF16", (512,))
    tensor_file.write(work / "in.safetensors", tensors)

    def y(*options):
        program.expect(
            f"run {' '.join(options)}",
            SUCCESS,
            "run",
            "in.safetensors",
            "out.safetensors",
            "--x",
            "x",
            "--residual",
            "residual",
            "--weight",
            "gain",
            *options,
        )
        return tensor_file.read(work / "out.safetensors")

    plain = y()["y"][2]
    for options in (
        ["--rounding", "normalized"],
        ["--rounding", "every-step"],
        ["--residual-rounding", "before-apply"],
        ["--residual-rounding", "before-statistics"],
        ["--eps", "0.1"],
        ["--weight-offset", "1"],
        ["--kind", "layer"],
        ["--bias", "shift"],
    ):
        cases.check(f"{' '.join(options)} changes y", y(*options)["y"][2] != plain)
    for options in (
        ["--threads", "2"],
        ["--pdl-wait"],
        ["--pdl-trigger"],
        ["--no-pdl"],
        ["--no-pdl", "--pdl-wait"],
        ["--pdl-wait", "--pdl-constant-weights"],
    ):
        cases.check(f"{' '.join(options)} changes nothing", y(*options)["y"][2] == plain)
    wide = y("--residual-out", "sum", "--residual-out-dtype", "f32")
    exact = tensor_file.decode(tensors["x"]) + tensor_file.decode(tensors["residual"])
    cases.equal("--residual-out-dtype f32", wide["sum"], ("F32", (64, 512), exact.tobytes()))
    cases.check("a wider residual_out changes nothing else", wide["y"][2] == plain)


def test_mixed_dtypes(program, rng):
    """Each tensor has a dtype of its own; y is x's or f32."""
    cases, work = program.cases, program.work
    kinds = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
    for x, residual, parameters, sums in itertools.product(kinds, repeat=4):
        tensors = make_tensors(rng, x, (5, 131), parameters, (131,))
        tensors["residual"] = make_tensors(rng, residual, (5, 131), parameters, (131,))["residual"]
        tensor_file.write(work / "in.safetensors", tensors)
        name = f"run x {x}, residual {residual}, parameters {parameters}, residual_out {sums}"
        program.expect(
            name,
            SUCCESS,
            "run",
            "in.safetensors",
            "out.safetensors",
            "--x",
            "x",
            "--residual",
            "residual",
            "--weight",
            "gain",
            "--bias",
            "shift",
            "--residual-out",
            "sum",
            "--residual-out-dtype",
            kinds[sums],
            "--y-dtype",
            "f32",
        )
        out = tensor_file.read(work / "out.safetensors")
        y, s, _, _ = expected(tensors, False, True, 1e-6, 0)
        cases.equal(f"{name}: y's dtype and shape", out["y"][:2], ("F32", (5, 131)))
        cases.check(
            f"{name}: y", close(tensor_file.decode(out["y"]), y, ARITHMETIC, 16 * ARITHMETIC)
        )
        cases.check(
            f"{name}: the sum, to the bit",
            out["sum"] == (sums, (5, 131), tensor_file.encode(sums, s)),
        )
    tensor_file.write(work / "in.safetensors", make_tensors(rng, "BF16", (5, 131), "BF16", (131,)))
    program.expect(
        "y of another 16-bit dtype",
        FAILURE,
        "run",
        "in.safetensors",
        "out.safetensors",
        "--x",
        "x",
        "--y-dtype",
        "f16",
        says="y.dtype is f16; required: bf16, or f32, as x is bf16",
    )


def test_quantised(program, rng):
    """Codes and scales of every scheme, with the shapes that the scheme has, give y back within a
    step."""
    cases, (rows, n) = program.cases, (6, 256)
    tensor_file.write(
        program.work / "in.safetensors",
        make_tensors(rng, "F32", (rows, n), "F32", (n,))
        | {"one": ("F32", (1,), np.float32(0.05).tobytes())},
    )
    # scheme: options, dtypes of codes and scales, scales of a row, greatest error in parts of the
    # scope's greatest magnitude
    schemes = {
        "per-tensor": (["--scale", "one"], "F8_E4M3", None, 1, 1 / 16),
        "per-row": (["--quantized-dtype", "i8"], "I8", "F32", 1, 1 / 250),
        "per-block": (["--quant-block-size", "64"], "F8_E4M3", "F32", 4, 1 / 16),
        "mxfp8": ([], "F8_E4M3", "F8_E8M0", 8, 1 / 16),
        "nvfp4": ([], "U8", "F8_E4M3", 16, 1 / 4),
        "mxfp4": ([], "U8", "F8_E8M0", 8, 1 / 4),
    }
    for scheme, (options, codes_dtype, scale_dtype, scales, step) in schemes.items():
        scale_out = [] if scheme == "per-tensor" else ["--scale-out", "s"]
        program.expect(
            f"run {scheme}",
            SUCCESS,
            "run",
            "in.safetensors",
            "out.safetensors",
            "--x",
            "x",
            "--weight",
            "gain",
            "--quant-scheme",
            scheme,
            "--quantized",
            "q",
            "--y",
            "normal",
            "--amax",
            "a",
            *scale_out,
            *options,
        )
        out = tensor_file.read(program.work / "out.safetensors")
        y = np.frombuffer(out["normal"][2], np.float32).reshape(rows, n)
        dtype, shape, content = out["q"]
        cases.equal(
            f"{scheme}: codes",
            (dtype, shape),
            (codes_dtype, (rows, n // 2 if scheme.endswith("fp4") else n)),
        )
        codes = decoded_codes(dtype, content).reshape(rows, n)
        if scale_dtype is None:
            scale = np.full((rows, 1), 0.05)
        else:
            cases.equal(
                f"{scheme}: scales",
                out["s"][:2],
                (scale_dtype, (rows, scales) if scheme != "per-row" else (rows,)),
            )
            scale = decoded_scales(scale_dtype, out["s"][2]).reshape(rows, scales)
        wide = np.repeat(scale, n // scales, axis=1)
        greatest = (
            np.abs(y)
            .reshape(rows, scales, -1)
            .max(axis=2, keepdims=True)
            .repeat(n // scales, axis=2)
            .reshape(rows, n)
        )
        worst = np.max(np.abs(codes * wide - y) / greatest)
        cases.check(f"{scheme}: codes times scales are y", worst <= step, f"{worst} > {step}")
        cases.check(f"{scheme}: codes are of use", np.abs(codes).max() >= 3, np.abs(codes).max())
        cases.equal(f"{scheme}: amax", np.frombuffer(out["a"][2], np.float32)[0], np.abs(y).max())


def test_clamp_scale(program, rng):
    """A clamp on the device is --clamp where it is above 0, and nothing else."""
    values = {"some": 0.75, "zero": 0.0, "negative": -0.75, "nan": np.nan, "large": 1e30}
    tensors = make_tensors(rng, "BF16", (6, 256), "F32", (256,))
    tensor_file.write(
        program.work / "in.safetensors",
        tensors | {name: ("F32", (1,), np.float32(v).tobytes()) for name, v in values.items()},
    )

    def codes(name, *options):
        program.expect(
            name,
            SUCCESS,
            "run",
            "in.safetensors",
            "out.safetensors",
            "--x",
            "x",
            "--weight",
            "gain",
            "--quant-scheme",
            "per-row",
            "--quantized",
            "q",
            "--scale-out",
            "s",
            *options,
        )
        out = tensor_file.read(program.work / "out.safetensors")
        return out["q"][2], out["s"][2]

    plain, clamped = codes("no clamp"), codes("--clamp", "--clamp", "0.75")
    program.cases.check("the clamp has an effect", plain != clamped)
    for name in values:
        program.cases.check(
            f"--clamp-scale {name}",
            codes(f"--clamp-scale {name}", "--clamp-scale", name)
            == (clamped if name == "some" else plain),
        )
    program.expect(
        "both clamps",
        FAILURE,
        "run",
        "in.safetensors",
        "out.safetensors",
        "--x",
        "x",
        "--quant-scheme",
        "per-row",
        "--quantized",
        "q",
        "--scale-out",
        "s",
        "--clamp-scale",
        "some",
        "--clamp",
        "2",
        says="quant.clamp_scale is given and quant.clamp is 2; required: NULL with quant.clamp",
    )


def hadamard(columns):
    """In Sylvester's order, normalised."""
    both = np.arange(columns)[:, None] & np.arange(columns)
    odd = sum(both >> bit & 1 for bit in range(columns.bit_length())) % 2
    return np.where(odd, -1, 1) / np.sqrt(columns)


def test_rotation(program, rng):
    """Codes times scales are about the rotated rows, and so is y where it is asked for."""
    tensors = make_tensors(rng, "F32", (6, 256), "F32", (256,))
    signs = rng.choice(np.float32([-1, 1]), 256)
    tensors["signs"] = ("F32", (256,), signs.tobytes())
    tensor_file.write(program.work / "in.safetensors", tensors)
    plain = ["run", "in.safetensors", "out.safetensors", "--x", "x", "--weight", "gain"]
    program.expect("rows to rotate", SUCCESS, *plain, "--y", "out")
    y = tensor_file.decode(tensor_file.read(program.work / "out.safetensors")["out"])
    y = y.astype(np.float64).reshape(6, 256)
    quantised = [*plain, "--y", "out", "--quant-scheme", "per-row", "--quantized", "q"]
    quantised += ["--scale-out", "s"]
    for block in (16, 32, 64, 128):
        name = f"--rotation {block}"
        program.expect(name, SUCCESS, *quantised, "--rotation", str(block), "--rotation-signs",
                       "signs", "--y-rotated")  # fmt: skip
        found = tensor_file.read(program.work / "out.safetensors")
        wanted = ((y * signs).reshape(6, -1, block) @ hadamard(block)).reshape(6, 256)
        stored = tensor_file.decode(found["out"]).reshape(6, 256)
        program.cases.check(f"{name}: y", np.allclose(stored, wanted, rtol=0, atol=2e-5))
        codes = decoded_codes("F8_E4M3", found["q"][2]).reshape(6, 256)
        scale = decoded_scales("F32", found["s"][2])[:, None]
        program.cases.check(
            f"{name}: codes",
            np.all(np.abs(codes * scale - wanted) <= np.abs(wanted) / 16 + scale * 2.0**-9),
        )
    program.expect("a rotation of 48", FAILURE, *quantised, "--rotation", "48",
                   says="quant.rotation is 48; required: 0, 16, 32, 64 or 128")  # fmt: skip
    signs[7] = 0.5
    tensors["signs"] = ("F32", (256,), signs.tobytes())
    tensor_file.write(program.work / "in.safetensors", tensors)
    program.expect("a sign that is none", FAILURE, *quantised, "--rotation", "64",
                   "--rotation-signs", "signs",
                   says="quant.rotation_signs[7] is 0.5; required: 1 or -1")  # fmt: skip


def decoded_codes(dtype, content):
    codes = np.frombuffer(content, np.uint8)
    if dtype == "I8":
        return codes.view(np.int8).astype(np.float64)
    if dtype == "U8":  # pairs of e2m1
        values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        pairs = np.stack([codes & 15, codes >> 4], axis=-1).reshape(-1)
        return values[pairs & 7] * np.where(pairs & 8, -1, 1)
    return decoded_scales(dtype, content)


def decoded_scales(dtype, content):
    if dtype == "F32":
        return np.frombuffer(content, np.float32).astype(np.float64)
    codes = np.frombuffer(content, np.uint8).astype(np.int64)
    if dtype == "F8_E8M0":
        return 2.0 ** (codes - 127)
    exponent, fraction = codes >> 3 & 15, codes & 7  # e4m3
    magnitude = np.where(
        exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0 ** (exponent - 10.0)
    )
    return magnitude * np.where(codes & 128, -1, 1)


def test_stages(program, rng):
    """A gated residual and a modulation (adaLN), gates with groups, and a norm of the branch."""
    cases, work = program.cases, program.work
    batch, tokens, n, group = 2, 3, 96, 32

    def normal(*size):
        return ("F32", size, tensor_file.encode("F32", rng.standard_normal(size)))

    index = np.array([0, 1, 1, 0, 1, 0], np.int32)
    tensors = {
        "x": normal(batch, tokens, n),
        "residual": normal(batch, tokens, n),
        "gate": normal(batch, 1, n),
        "scale": normal(batch, n),
        "shift": normal(batch, n),
        "table": normal(n),
        "index": ("I32", (batch, tokens), index.tobytes()),
        "z": normal(batch, tokens, n),
        "gain": normal(n),
    }
    tensor_file.write(work / "in.safetensors", tensors)
    value = {
        k: tensor_file.decode(t).astype(np.float64) for k, t in tensors.items() if k != "index"
    }
    x, residual = value["x"], value["residual"]

    def run(name, *options):
        program.expect(
            f"run {name}", SUCCESS, "run", "in.safetensors", "out.safetensors", "--x", "x", *options
        )
        results = tensor_file.read(work / "out.safetensors")
        return {k: tensor_file.decode(t) for k, t in results.items()}

    def near(name, found, wanted):
        cases.check(name, found.shape == wanted.shape and close(found, wanted, 1e-5, 2e-5))

    def normalised(rows, eps, layer=False):
        centred = rows - rows.mean(-1, keepdims=True) if layer else rows
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)

    adaln = ["--kind", "layer", "--residual", "residual", "--residual-out", "sum"]
    adaln += ["--residual-gate", "gate", "--residual-gate-act", "tanh"]
    out = run("adaLN", *adaln, "--modulation-scale", "gate", "--scale-table", "table",
              "--modulation-shift", "gate")
    s = x * np.tanh(value["gate"]) + residual
    y = normalised(s, 1e-6, layer=True) * (1 + value["gate"] + value["table"]) + value["gate"]
    near("adaLN: the sum", out["sum"], s)
    near("adaLN: y", out["y"], y)
    out = run("adaLN by an index", "--modulation-index", "index", "--modulation-plain-scale",
              "--modulation-scale", "scale", "--modulation-shift", "shift")
    rows = index.reshape(batch, tokens)
    near("index: y", out["y"], normalised(x, 1e-6) * value["scale"][rows] + value["shift"][rows])
    out = run("gate", "--gate", "z", "--gate-act", "sigmoid", "--group-size", str(group), "--rstd",
              "r", "--sumsq", "sums")
    grouped = x.reshape(batch, tokens, n // group, group)
    y = normalised(grouped, 1e-6).reshape(x.shape) / (1 + np.exp(-value["z"]))
    near("gate: y", out["y"], y)
    near("gate: rstd", out["r"], 1 / np.sqrt((grouped**2).mean(-1) + 1e-6))
    near("gate: sums", out["sums"] / group, (grouped**2).mean(-1))
    out = run("sandwich", "--residual", "residual", "--residual-out", "sum", "--branch-norm", "rms",
              "--branch-eps", "0.5", "--branch-weight", "gain", "--branch-weight-offset", "1",
              "--branch-rstd", "r", "--alpha", "0.25")
    s = normalised(x, 0.5) * (1 + value["gain"]) * 0.25 + residual
    near("sandwich: the sum", out["sum"], s)
    near("sandwich: y", out["y"], normalised(s, 1e-6))
    near("sandwich: rstd of the branch", out["r"], 1 / np.sqrt((x**2).mean(-1) + 0.5))
    command = ["run", "in.safetensors", "refused.safetensors", "--x", "x"]
    program.expect("run with a table alone", FAILURE, *command, "--scale-table", "table",
                   says="scale_table is given and modulation_scale is NULL; required: NULL")
    program.expect("run with a wrong act", USAGE, *command, "--gate-act", "relu", says="relu")
    program.expect("run --backward with an activation", USAGE, *command, "--backward", "--dy", "x",
                   "--activation", "silu", says="--activation")
    cases.check("no output of what was refused", not (work / "refused.safetensors").exists())


def test_step_roundings(program, _):
    """The options that round a step, with values by hand. bf16 has steps of 2^-7 from 1
    to 2, of 2^-6 from 2 to 4 and of 2^-5 from 4 to 8; ties go to even multiples."""
    cases, work = program.cases, program.work

    def tensor(dtype, *values):
        return (dtype, (len(values),), tensor_file.encode(dtype, values))

    tensors = {
        "x": tensor("BF16", 1 + 2**-7, 2),
        "one": tensor("F32", 1, 1),
        "three": tensor("F32", 3),
        "same": tensor("BF16", 3, 3),
        "gain": tensor("BF16", 161 / 128, 1),
        "scale": tensor("BF16", 1.5 * 2**-8, 0),
        "shift": tensor("BF16", 1, 1),
        "ones": tensor("BF16", 1, 1),
        "half": tensor("BF16", 2**-8, 2**-8),
    }
    tensor_file.write(work / "in.safetensors", tensors)

    def run(name, wanted, *options):
        for rounding, values in wanted.items():
            command = ["run", "in.safetensors", "out.safetensors", *options, rounding]
            program.expect(f"{name} {rounding}", SUCCESS, *command)
            found = tensor_file.decode(tensor_file.read(work / "out.safetensors")["out"])
            cases.equal(f"{name} {rounding}: values", found.ravel().tolist(), values)

    # 1 + 2^-8 is between two steps and is rounded to 1. Divided by the root of its own square it is
    # 1; rounded after that root alone it is 1 / (1 + 2^-8), of which 255/256 is the nearest bf16.
    run(
        "--residual-rounding",
        {"exact": [1, 1], "before-apply": [255 / 256, 255 / 256], "before-statistics": [1, 1]},
        *("--x", "ones", "--residual", "half", "--eps", "0", "--y", "out", "--residual-rounding"),
    )
    # (x * 1.5 + 1) * 3. The product is 193.5 steps, which is rounded to 194: 1.515625. The sum
    # is 2.515625, a bf16. Times 3 that is 241.5 steps, which is rounded to 242: 7.5625.
    run(
        "--sum-rounding",
        {"once": [((1 + 2**-7) * 1.5 + 1) * 3, 12], "every-step": [7.5625, 12]},
        *("--x", "x", "--residual", "one", "--residual-out", "out", "--alpha", "1.5"),
        *("--sum-scale", "three", "--sum-rounding"),
    )
    # Rows of equal elements are 1 and the weight: z = 161/128. 1 + scale is 128.75 steps, which is
    # rounded to 129. Their product is 162.26 steps, which is rounded to 162: 1.265625.
    run(
        "--modulation-rounding",
        {
            "once": [161 / 128 * (1 + 1.5 * 2**-8) + 1, 2],
            "every-step": [162 / 128 + 1, 2],
        },
        *("--x", "same", "--weight", "gain", "--eps", "0", "--y", "out", "--y-dtype", "f32"),
        *("--modulation-scale", "scale", "--modulation-shift", "shift", "--modulation-rounding"),
    )


# Calls that are refused: a name, options of `run` after --x, and what the program says.
REFUSED = (
    ("weight of the wrong length", "x --weight short", ("FASTNORM_ERROR_SHAPE", "weight", "63")),
    ("f64 rows", "double", ("FASTNORM_ERROR_DTYPE", "x")),
    ("negative eps", "x --eps -1", ("FASTNORM_ERROR_ARGUMENT", "eps")),
    ("offset without weight", "x --weight-offset 1", ("FASTNORM_ERROR_ARGUMENT", "weight_offset")),
    ("mean of RMS", "x --mean m", "mean"),
    ("sum without residual", "x --residual-out s --residual-out-dtype f16", "residual"),
    ("no such tensor", "nix", ("has no tensor 'nix'", "gain, residual, shift, short, x")),
    *(
        (f"quantisation or flag {options.split()[0]}", f"x {options}", "FASTNORM_ERROR_")
        for options in (
            "--quant-scheme per-row --quantized q",
            "--clamp 3",
            "--amax-floor 1e-3",
            "--quant-block-size 64",
            "--scale-pow2",
            "--quant-source rounded",
            "--quant-division divide",
            "--scale-layout column-major",
            "--quantized q",
            "--pdl-constant-weights",
            "--global-scale gain",
            "--scale gain",
        )
    ),
)


def write_refused_tensors(work, rng):
    tensors = make_tensors(rng, "F16", (4, 64), "F16", (64,))
    tensors |= {"short": ("F16", (63,), bytes(126)), "double": ("F64", (4, 64), bytes(2048)),
                "empty": ("F16", (0, 64), b"")}
    tensor_file.write(work / "in.safetensors", tensors)
    tensor_file.write(work / "scalar.safetensors", {"x": ("F32", (), bytes(4))})


def test_refused(program, rng):
    """What the library and the program refuse, with whose words; nothing is written then."""
    work = program.work
    write_refused_tensors(work, rng)

    def refuse(name, options, says, code=FAILURE):
        target = work / "untouched.safetensors"
        target.write_bytes(b"as it was")
        program.expect(
            name, code, "run", "in.safetensors", target, "--x", *options.split(), says=says
        )
        program.cases.check(
            f"{name}: the output file is as it was", target.read_bytes() == b"as it was"
        )
        left = [p.name for p in work.iterdir() if ".tmp" in p.name]
        program.cases.equal(f"{name}: no temporary file", left, [])

    for name, options, says in REFUSED:
        refuse(name, options, says)
    refuse("two outputs of one name", "x --rstd y", "two outputs are named 'y'", code=USAGE)
    program.expect("no rows", SUCCESS, "run", "in.safetensors", "out.safetensors", "--x", "empty")
    program.cases.equal(
        "no rows: output", tensor_file.read(work / "out.safetensors")["y"], ("F16", (0, 64), b"")
    )
    program.expect(
        "output folder that does not exist", FAILURE, "run", "in.safetensors", "no/out", "--x", "x",
        says=("no/out: cannot be written", "No such file"),
    )  # fmt: skip
    program.expect(
        "a tensor without dimensions", FAILURE, "run", "scalar.safetensors", "out.safetensors",
        "--x", "x", says="x.ndim is 0; required: 1 to 8",
    )  # fmt: skip


def test_output_file(program, rng):
    """A file in the output's place is replaced, with its mode, behind a link too; what is no file
    stays what it is."""
    work, cases = program.work, program.cases
    tensor_file.write(work / "in.safetensors", make_tensors(rng, "F32", (2, 8), "F32", (8,)))
    run = ("run", "in.safetensors")
    target, link, fifo = work / "target", work / "link", work / "fifo"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to("target")
    program.expect("output through a link", SUCCESS, *run, "link", "--x", "x")
    cases.check("output through a link: the link is still one", link.is_symlink())
    cases.equal("output through a link: the file", list(tensor_file.read(target)), ["y"])
    cases.equal("output through a link: the file's mode", target.stat().st_mode & 0o777, 0o640)
    os.mkfifo(fifo)
    dangling = work / "dangling"
    dangling.symlink_to("nowhere")
    program.expect(
        "output through a link to nothing",
        FAILURE,
        *run,
        dangling,
        "--x",
        "x",
        says=(str(dangling), "is not a regular file"),
    )
    cases.check(
        "output through a link to nothing: it is what it was",
        dangling.is_symlink() and not dangling.exists(),
    )
    for name, path in (("a pipe", fifo), ("a folder", work)):
        kind = path.stat().st_mode
        program.expect(
            f"output to {name}",
            FAILURE,
            *run,
            path,
            "--x",
            "x",
            says=(str(path), "is not a regular file"),
        )
        cases.equal(f"output to {name}: it is what it was", path.stat().st_mode, kind)
    program.expect(
        "input from a pipe",
        FAILURE,
        "run",
        "fifo",
        "out",
        "--x",
        "x",
        says="fifo: is not a regular file",
    )


def entry(dtype="F32", shape=(2, 2), offsets=(0, 16), **others):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **others}


def test_bad_files(program):
    """Files that are not what they say. Every one is refused by name, none crashes the program."""
    work, data = program.work, bytes(16)
    raw = tensor_file.raw_file
    huge = (1 << 62).to_bytes(8, "little")
    files = {
        "empty": (b"", "at least 8"),
        "short": (b"\1\2\3", "at least 8"),
        "length beyond the file": (huge + b"{}", "the header should have"),
        "length one too many": (b"\3" + bytes(7) + b"{}", "the header should have"),
        "not JSON": (raw("{'x'"), "not JSON"),
        "not UTF-8": (b"\4" + bytes(7) + b'"\xff\xfe"', "not JSON"),
        "a list": (raw("[]"), "not a JSON object"),
        "tensor is a number": (raw({"x": 3}), "not described by an object"),
        "no dtype": (raw({"x": {"shape": [4], "data_offsets": [0, 16]}}, data), "has no 'dtype'"),
        "no shape": (raw({"x": {"dtype": "F32", "data_offsets": [0, 16]}}, data), "has no 'shape'"),
        "no offsets": (raw({"x": {"dtype": "F32", "shape": [4]}}, data), "has no 'data_offsets'"),
        "dtype is a number": (raw({"x": entry(dtype=5)}, data), "is not a string"),
        "negative extent": (raw({"x": entry(shape=(-2, 2))}, data), "required: integers"),
        "fraction": (raw({"x": entry(shape=(2.5, 2))}, data), "required: integers"),
        "shape is a text": (raw({"x": {**entry(), "shape": "2"}}, data), "is not a list"),
        "three offsets": (raw({"x": entry(offsets=(0, 8, 16))}, data), "not two numbers"),
        "offsets reversed": (raw({"x": entry(offsets=(16, 0))}, data), "lies at [16, 0)"),
        "past the end": (
            raw({"x": entry(shape=(2, 4), offsets=(0, 32))}, data),
            "the data have 16 bytes",
        ),
        "size does not fit": (raw({"x": entry(shape=(3, 1))}, data), "call for 12"),
        "overflowing shape": (raw({"x": entry(shape=(1 << 62, 16))}, data), "64 bits"),
        "overlap": (raw({"x": entry(), "z": entry(shape=(1,), offsets=(4, 8))}, data), "overlaps"),
        "overlap of a byte": (
            raw({"x": entry(), "z": entry("I8", shape=(1,), offsets=(15, 16))}, data),
            "overlaps",
        ),
        "hole": (raw({"x": entry(shape=(2,), offsets=(8, 16))}, data), "belong to no tensor"),
        "rest": (raw({"x": entry(shape=(2,), offsets=(0, 8))}, data), "belong to no tensor"),
        "twice": (
            raw('{"x":%s,"x":%s}' % ((tensor_file.json.dumps(entry()),) * 2), data),
            "names 'x' twice",
        ),
        "deep nesting": (raw("[" * 100000), "not JSON"),
    }
    for name, (content, says) in files.items():
        path = work / f"{name.replace(' ', '_')}.safetensors"
        path.write_bytes(content)
        program.expect(
            f"file: {name}", FAILURE, "run", path, "out", "--x", "x", says=(path.name, says)
        )
    (work / "names").write_bytes(raw({"x\n\u001b[31m": entry()}, data))
    program.expect(
        "file: a name of control characters",
        FAILURE,
        "run",
        "names",
        "out",
        "--x",
        "x",
        says="it has: x??[31m",
    )
    (work / "strange").write_bytes(raw({"x": entry(dtype="Q7")}, data))
    program.expect(
        "file: unknown dtype",
        FAILURE,
        "run",
        "strange",
        "out",
        "--x",
        "x",
        says=("strange: tensor 'x' has dtype Q7", "required: ", "BF16"),
    )
    program.expect(
        "file: missing",
        FAILURE,
        "run",
        "nowhere",
        "out",
        "--x",
        "x",
        says=("nowhere", "cannot be opened"),
    )
    program.expect(
        "file: a folder", FAILURE, "run", ".", "out", "--x", "x", says="not a regular file"
    )
    program.cases.check("no output was written", not (work / "out").exists())


def test(program):
    rng = np.random.default_rng(7)
    test_round_trip(program, rng)
    test_axes(program, rng)
    test_mixed_dtypes(program, rng)
    test_quantised(program, rng)
    test_clamp_scale(program, rng)
    test_rotation(program, rng)
    test_stages(program, rng)
    test_step_roundings(program, rng)
    test_refused(program, rng)
    test_output_file(program, rng)
    test_bad_files(program)


main(test)
