#!/usr/bin/env python3
"""fastnorm: usage, info, explain, bench and selftest."""

import json
import os
import pty
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

from program import (
    FAILURE, SELFTEST_AS_JSON, SELFTEST_EVERY, SHARE, SUCCESS, USAGE, main, share_of
)

ROOT = Path(__file__).resolve().parents[2]
SUBCOMMANDS = ("info", "run", "bench", "explain", "mla_decode", "peer", "selftest", "tune",
               "completion")


def groups(program):
    """The commands that do nothing without a subcommand."""
    commands = program.json("completion --json", "completion")
    words = [c["command"].split()[1:] for c in commands if c["commands"]]
    return [group for group in words if group != ["mla_decode"]]


def test_usage(program):
    for family in groups(program):
        program.expect(
            f"{' '.join(family)} without a command", USAGE, *family,
            says=("Examples:\n", f"Usage: {' '.join(('fastnorm', *family))} ", "Subcommands:",
                  *(SUBCOMMANDS if not family else ("explain", "bench"))),
        )
    program.expect("unknown command", USAGE, "fly", says=("no command fly", *SUBCOMMANDS))
    program.expect("unknown option", USAGE, "info", "--fly")
    program.expect("run without files", USAGE, "run", "--x", "x")
    program.expect("run without --x", USAGE, "run", "a", "b", says="--x is required")
    program.expect(
        "unknown kind", USAGE, "run", "a", "b", "--x", "x", "--kind", "batch", says="batch not in"
    )
    program.expect(
        "unknown rounding", USAGE, "explain", "--shape", "1,8", "--rounding", "up", says="up not in"
    )
    program.expect(
        "number expected", USAGE, "run", "a", "b", "--x", "x", "--eps", "tiny", says="--eps"
    )
    for device in ("gpu", "cuda:", "cuda:-1", "cuda:1x", "cpu0", "sm_", "sm_x", ""):
        program.expect(
            f"device '{device}'",
            USAGE,
            "explain",
            "--shape",
            "1,8",
            "--device",
            device,
            says="--device",
        )
    program.expect(
        "planning device for work", USAGE, "bench", "--device", "sm_90", says="not cpu or cuda:N"
    )
    program.expect("no shape", USAGE, "explain", says="--shape is required")
    for shape in ("4,-1", "-1,8", "8x8,8", "8,", ",8", "8,,8", "8x", "x8", "a",
                  "99999999999999999999,8"):
        program.expect(
            f"shape '{shape}'",
            USAGE,
            "explain",
            f"--shape={shape}",
            says=(f"--shape is {shape}; required: numbers from 0 on with x between them, such as "
                  "4096x8192"),
        )
    for shape in ("4096", "4,8,2", "4x8x2", "1x64,4", "0x8", "8x0", "8x", "4x-8", "x",
                  "99999999999x99999999999"):
        program.expect(f"bench shape '{shape}'", USAGE, "bench", f"--shape={shape}",
                       says=("--shape is ", "required: 2 numbers from 1 to 268435456 with x "
                             "between them, such as 4096x8192"))
    program.expect("no threads", USAGE, "selftest", "--threads", "0", says="--threads")
    program.expect("--version", SUCCESS, "--version", says="0.")
    text = program.expect("--help", SUCCESS, "--help", says=SUBCOMMANDS)
    program.cases.check("--help tells the exit codes", "Exit code" in text)
    for name in SUBCOMMANDS:
        text = program.expect(f"{name} --help", SUCCESS, name, "--help", says="Usage")
        start = re.match(rf"Examples?:\n  fastnorm {name}", text)
        program.cases.check(f"{name} --help begins with examples", start, text[:200])


def test_info(program):
    cases = program.cases
    info = program.json("info --json", "info")
    text = program.expect(
        "info", SUCCESS, "info", says=f"libfastnorm {info['version']}, numeric version"
    )
    cases.check("info: a version", re.fullmatch(r"\d+\.\d+\.\d+", info["version"]), info["version"])
    commit = info["build"]["commit"]
    known = re.fullmatch(r"[0-9a-f]{12,40}(-dirty)?", commit)
    asked = ["git", "-C", ROOT, "--git-dir=.git", "rev-parse", "HEAD"]
    git = shutil.which("git") and subprocess.run(asked, capture_output=True).returncode == 0
    right = known if git else commit == "unknown"
    cases.check("info: a commit, where git knows it", right, commit)
    cpus = [d for d in info["devices"] if d["device"] == "cpu"]
    cases.equal("info: one CPU", len(cpus), 1)
    cases.check(
        "info: the CPU's kernels are among those counted",
        cpus[0]["kernels"] in info["kernels_per_arch"],
    )
    cases.check("info: processors", cpus[0]["processors"] >= 1, cpus[0])
    cases.equal(
        "info: the counts add up", sum(info["kernels_per_arch"].values()), info["kernel_count"]
    )
    has_gpu = any(d["device"].startswith("cuda") for d in info["devices"])
    cases.equal("info: a reason where there is no GPU", "no_cuda_device" in info, not has_gpu)
    if not has_gpu:
        cases.check(
            "info: says plainly that there is no GPU",
            f"no CUDA device: {info['no_cuda_device']}" in text,
            text,
        )
    kernels = program.json("info --kernels --json", "info", "--kernels")["kernels"]
    names = {(k["family"], k["arch"], k["name"]) for k in kernels}
    cases.equal(
        "info: every kernel is listed once", (len(kernels), len(names)), (info["kernel_count"],) * 2
    )
    families = {k["family"] for k in kernels}
    headers = {path.stem for path in (ROOT / "include" / "fastnorm").glob("*.h")}
    cases.check("info: each family has a header", families and families <= headers, families)
    listed = program.expect("info --kernels", SUCCESS, "info", "--kernels").splitlines()
    cases.equal(
        "info --kernels: one line each",
        sum(line.split(" ")[0] in families for line in listed),
        len(kernels),
    )
    cases.equal("info: families", {k["family"] for k in kernels}, families)
    cases.equal(
        "info: kernels of families",
        {name: f["kernels"] for name, f in info["families"].items()},
        {name: sum(k["family"] == name for k in kernels) for name in info["families"]},
    )
    cases.equal(
        "info: and of their architectures",
        {name: sum(f["kernels_per_arch"].values()) for name, f in info["families"].items()},
        {name: f["kernels"] for name, f in info["families"].items()},
    )
    cases.equal(
        "info: the sum of families",
        sum(f["kernels"] for f in info["families"].values()),
        info["kernel_count"],
    )
    size = info["file"]["library_bytes"]
    cases.check(
        "info: bytes", size > 100_000 and 0 <= info["file"]["gpu_code_bytes"] < size, info["file"]
    )
    cases.equal(
        "info: GPU code where there are such kernels",
        info["file"]["gpu_code_bytes"] > 0,
        any(k["arch"].startswith(("sm_", "ptx")) for k in kernels),
    )
    for line in [
        f"{info['kernel_count']} kernels",
        *(f"  {name:18} {f['kernels']}" for name, f in info["families"].items()),
    ]:
        cases.check(f"info prints {line!r}", line in text.splitlines(), text)
    return has_gpu


def test_explain(program):
    cases = program.cases
    rows, n = 300, 4096
    for device in ("cpu", "sm_80", "sm_90", "sm_100f", "sm_120f"):

        def explain(*options):
            return program.json(
                f"explain {device} {' '.join(options)}",
                "explain",
                "--shape",
                f"{rows},{n}",
                "--device",
                device,
                *options,
            )

        plain = explain()
        tensor = rows * n * 2
        cases.equal(f"explain {device}: bytes read", plain["bytes_read"], tensor + n * 2)
        cases.equal(f"explain {device}: bytes written", plain["bytes_written"], tensor)
        cases.equal(f"explain {device}: launches", plain["launches"], 1)
        fused = explain(
            "--residual",
            "--residual-out",
            "--bias",
            "--parameter-dtype",
            "f32",
            "--rstd",
            "--kind",
            "layer",
        )
        cases.equal(
            f"explain {device}: bytes of a fused add",
            (fused["bytes_read"], fused["bytes_written"]),
            (2 * tensor + 2 * n * 4, 2 * tensor + rows * 4),
        )
        cases.check(
            f"explain {device}: another kernel", fused["kernel"] != plain["kernel"], fused["kernel"]
        )
        mixed = explain(
            "--residual",
            "--residual-dtype",
            "f16",
            "--residual-out",
            "--residual-out-dtype",
            "f32",
            "--bias",
            "--parameter-dtype",
            "f16",
            "--bias-dtype",
            "f32",
            "--y-dtype",
            "f32",
        )
        cases.equal(
            f"explain {device}: bytes read of mixed dtypes", mixed["bytes_read"], 2 * tensor + n * 6
        )
        cases.equal(
            f"explain {device}: bytes written of mixed dtypes", mixed["bytes_written"], 4 * tensor
        )
        cases.check(
            f"explain {device}: mixed dtypes run on a general kernel",
            " any " in mixed["kernel"],
            mixed["kernel"],
        )
        moved = explain("--offset", "1")
        cases.equal(f"explain {device}: widest access of an odd address", moved["vector_bytes"], 2)
        cases.equal(
            f"explain {device}: widest access of an odd stride",
            explain("--row-stride", "4100")["vector_bytes"],
            min(8, plain["vector_bytes"]),
        )  # scalar kernels never take more than 4
        cases.equal(
            f"explain {device}: in place",
            explain("--in-place", "--residual", "--residual-out")["bytes_written"],
            2 * tensor,
        )
        if device.startswith("sm_"):
            cases.check(
                f"explain {device}: a row's threads hold it",
                16 * plain["vectors_per_thread"] * plain["threads_per_row"] >= n * 2,
                plain,
            )


def test_explained_shapes(program):
    cases = program.cases
    cases.equal(
        "explain: both forms of a shape",
        program.json("explain 7x4096", "explain", "--shape", "7x3x4096"),
        program.json("explain 7,4096", "explain", "--shape", "7,3,4096"),
    )
    modulated = ("explain", "--shape", "2x64x3072", "--kind", "layer", "--no-weight")
    cases.equal(
        "explain: both forms of a modulator's shape",
        program.json("explain 2x1x3072", *modulated, "--modulation-scale", "2x1x3072"),
        program.json("explain 2,1,3072", *modulated, "--modulation-scale", "2,1,3072"),
    )
    none = program.json("explain no rows", "explain", "--shape", "0,64")
    cases.equal("explain: no rows, no launch", (none["launches"], none["kernel"]), (0, ""))
    program.expect(
        "explain no rows, text", SUCCESS, "explain", "--shape", "0,64", says="there are no rows"
    )
    heads = program.json(
        "explain heads", "explain", "--shape", "7,32,128", "--head-weights", "--dtype", "f16"
    )
    cases.equal(
        "explain: a weight for each head", heads["bytes_read"], 7 * 32 * 128 * 2 + 32 * 128 * 2
    )
    large = program.json(
        "explain a large shape", "explain", "--shape", "4000000,8192", "--device", "sm_90"
    )
    cases.equal("explain: more than 2^31 elements", large["bytes_written"], 4000000 * 8192 * 2)
    program.expect(
        "explain text",
        SUCCESS,
        "explain",
        "--shape",
        "8,8192",
        "--device",
        "sm_90",
        says=("threads per row", "vectors of 16 bytes", "workspace"),
    )
    program.expect(
        "explain: n = 0", FAILURE, "explain", "--shape", "4,0", says="FASTNORM_ERROR_SHAPE"
    )
    rank8 = program.json(
        "explain: rank 8", "explain", "--shape", "2,1,2,1,2,1,2,8", "--dtype", "f32"
    )
    cases.equal("explain: rank 8 folds", rank8["bytes_written"], 16 * 8 * 4)
    program.expect(
        "explain: rank 9",
        FAILURE,
        "explain",
        "--shape",
        "1,1,1,1,1,1,1,1,8",
        says="FASTNORM_ERROR_SHAPE",
    )


def test_explained_quantisation(program):
    cases = program.cases
    quantised = program.json(
        "explain quantised",
        "explain",
        "--shape",
        "4,64",
        "--quant-scheme",
        "mxfp8",
        "--device",
        "cpu",
    )
    cases.equal(
        "explain: codes and scales are written, beside y",
        quantised["bytes_written"],
        4 * (64 * 2 + 64 + 2),
    )
    program.expect(
        "explain: quantised on a GPU",
        SUCCESS,
        "explain",
        "--shape",
        "4,64",
        "--quant-scheme",
        "mxfp8",
        "--device",
        "sm_90",
        says="bf16 plain rms once quant vector",
    )
    program.expect(
        "explain: overlapping rows",
        FAILURE,
        "explain",
        "--shape",
        "4,64",
        "--row-stride",
        "32",
        says="FASTNORM_ERROR_LAYOUT",
    )
    program.expect(
        "explain: an architecture that has no kernels",
        FAILURE,
        "explain",
        "--shape",
        "4,64",
        "--device",
        "sm_50",
        says="FASTNORM_ERROR_",
    )


def test_explain_without_kernels(program):
    """A GPU can be planned for in any build; whether the build could run there is said."""
    counts = program.json("info --json", "info")["kernels_per_arch"]
    for arch in ("sm_80", "sm_90", "sm_100f", "sm_120f"):
        call = ("explain", "--shape", "16,4096", "--device", arch)
        text, built = program.expect(f"explain {arch}", SUCCESS, *call), counts.get(arch, 0) > 0
        program.cases.equal(
            f"explain {arch}: whether there are kernels",
            program.json(f"explain {arch} --json", *call)["kernel_built"],
            built,
        )
        program.cases.equal(
            f"explain {arch}: says so", f"this build has no kernels for {arch}" in text, not built
        )


def test_no_gpu(program):
    """Commands for a GPU that is not there end with the library's words."""
    for arguments in (
        ("selftest",),
        ("bench", "--shape", "1x64"),
        ("explain", "--shape", "1,64"),
        ("tune", "--output", "tuned"),
        ("tune", "--csv", "times.csv", "--resume"),
    ):
        program.expect(
            f"{arguments[0]} without a GPU",
            FAILURE,
            *arguments,
            "--device",
            "cuda:0",
            says="FASTNORM_ERROR_DEVICE",
        )


def test_bench(program):
    cases, path, dtypes = program.cases, program.work / "bench.json", share_of(["f16", "f32"])
    text = program.expect(
        "bench",
        SUCCESS,
        "bench",
        "--shape",
        "1x1024,64x1024",
        "--op",
        "rms,add",
        "--dtype",
        ",".join(dtypes),
        "--repeats",
        "3",
        "--threads",
        "2",
        "--output",
        path,
    )
    document = json.loads(path.read_text())
    results = document["results"]
    cases.equal(
        "bench: every case once", len({(r["op"], r["dtype"], r["rows"]) for r in results}),
        4 * len(dtypes),
    )
    cases.equal("bench: a line for each", len(re.findall(r"^(?:rms|add) ", text, re.M)),
                4 * len(dtypes))
    for r in results:
        name = f"bench {r['op']} {r['dtype']} {r['rows']}x{r['n']}"
        tensor = r["rows"] * r["n"] * (4 if r["dtype"] == "f32" else 2)
        cases.equal(f"{name}: bytes", r["bytes_moved"], tensor * (4 if r["op"] == "add" else 2))
        cases.check(f"{name}: times", r["median_us"] > 0 and r["copy_us"] > 0, r)
        consistent = (
            abs(r["gb_per_s"] * r["median_us"] * 1e3 / r["bytes_moved"] - 1) < 1e-6
            and abs(r["ratio_to_copy"] * r["copy_us"] / r["median_us"] - 1) < 1e-6
        )
        cases.check(f"{name}: figures agree with each other", consistent, r)
    program.expect(
        "bench: JSON that cannot be written",
        FAILURE,
        "bench",
        "--shape",
        "1x64",
        "--op",
        "rms",
        "--output",
        "no/file",
        says="cannot be written",
    )


def test_bench_shapes(program):
    """Several matrices, one with a comma, and JSON in place of the table."""
    few = ("bench", "--op", "rms", "--dtype", "f32", "--repeats", "1", "--shape")
    for given, wanted in (
        (("8,64",), [(8, 64)]),
        (("8x64",), [(8, 64)]),
        (("8x64,2x32", "4,16"), [(8, 64), (2, 32), (4, 16)]),
    ):
        found = program.json(f"bench --json {given}", *few, *given).get("results", [])
        program.cases.equal(
            f"bench {given}: shapes", [(r["rows"], r["n"]) for r in found], wanted
        )


def test_stages(program):
    """Gated norm, sandwich and adaLN: explained for a CPU and a GPU, and timed on the CPU."""
    cases, path = program.cases, program.work / "stages.json"
    tensor, row = 2 * 64 * 3072 * 2, 3072 * 2  # bytes
    shape = ("explain", "--shape", "2,64,3072")
    modulated = [f"--{name}" for name in ("residual-gate", "modulation-scale", "modulation-shift")]
    calls = {
        "gated": (("--gate", "--gate-act", "silu"), 2 * tensor + row, tensor),
        "sandwich": (
            ("--branch-norm", "rms", "--branch-weight", "--residual", "--residual-out"),
            2 * tensor + 2 * row,
            2 * tensor,
        ),
        "modulated": (
            ("--residual", "--residual-out", "--kind", "layer", "--no-weight")
            + tuple(word for name in modulated for word in (name, "2,1,3072")),
            2 * tensor + 3 * 2 * row,
            2 * tensor,
        ),
    }
    for form, (options, read, written) in calls.items():
        for device, kernel in (("cpu", "bf16 "), ("sm_90", f"bf16 {form} "), ("sm_80", "stages")):
            told = program.json(f"explain {form} {device}", *shape, *options, "--device", device)
            cases.check(f"explain {form} {device}: kernel", kernel in told["kernel"], told)
            cases.equal(
                f"explain {form} {device}: bytes",
                (told["bytes_read"], told["bytes_written"]),
                (read, written),
            )
    program.expect(
        "explain: a modulator's shape",
        USAGE,
        *shape,
        "--modulation-scale",
        "2,,3",
        says="--modulation-scale is 2,,3; required: numbers from 0 on with x between them",
    )
    program.expect(
        "explain: a modulator that does not broadcast",
        FAILURE,
        *shape,
        "--modulation-scale",
        "3,1,3072",
        says="modulation_scale.shape is [3, 1, 3072]",
    )
    program.expect(
        "explain: a stage of the gradients",
        USAGE,
        *shape,
        "--backward",
        "--sumsq",
        says="--sumsq excludes --backward",
    )
    program.expect(
        "bench stages",
        SUCCESS,
        "bench",
        "--shape",
        "8x256",
        "--op",
        "gated,sandwich,adaln",
        "--repeats",
        "1",
        "--output",
        path,
    )
    results = json.loads(path.read_text())["results"]
    cases.equal(
        "bench stages: bytes",
        {r["op"]: r["bytes_moved"] // (8 * 256 * 2) for r in results},
        {"gated": 3, "sandwich": 4, "adaln": 4},
    )
    timed = all(r["median_us"] > 0 and r["copy_us"] > 0 for r in results)
    cases.check("bench stages: times", timed, results)


def test_bench_codes(program):
    path = program.work / "codes.json"
    values = 64 * 1024
    moved = {
        "rms_fp8": 3 * values,
        "add_fp8": 7 * values,
        "layer_fp8": 3 * values,
        "rms_row_fp8": 3 * values + 4 * 64,
        "add_row_fp8": 7 * values + 4 * 64,
        "rms_block_fp8": 3 * values + 4 * 64 * 8,
        "add_block_fp8": 7 * values + 4 * 64 * 8,
        "layer_block_fp8": 3 * values + 4 * 64 * 8,
        "rms_mxfp8": 3 * values + 64 * 32,
        "rms_nvfp4": 2 * values + values // 2 + 64 * 64,
    }
    ops = share_of(moved)
    program.expect("bench codes", SUCCESS, "bench", "--shape", "64x1024", "--op", ",".join(ops),
                   "--repeats", "1", "--output", path)
    program.cases.equal(
        "bench codes: bytes",
        {r["op"]: r["bytes_moved"] for r in json.loads(path.read_text())["results"]},
        {op: moved[op] for op in ops},
    )


def test_bench_f32_weights(program):
    path = program.work / "columns.json"
    program.expect(
        "bench f32 weights",
        SUCCESS,
        "bench",
        "--shape",
        "64x1024",
        "--op",
        "rms_f32,layer_f32",
        "--repeats",
        "1",
        "--output",
        path,
    )
    moved = {r["op"]: r["bytes_moved"] for r in json.loads(path.read_text())["results"]}
    program.cases.equal(
        "bench f32 weights: bytes", moved, {"rms_f32": 4 * 64 * 1024, "layer_f32": 4 * 64 * 1024}
    )


def test_tuning(program):
    """What can be seen of tuning without a GPU: the file, and who takes it."""
    path = program.work / "tuning"
    version = program.expect("--version", SUCCESS, "--version").split()[-1]
    kernel = "bf16 plain rms once store vector 128x4"
    path.write_text(
        f"fastnorm tuning 2\nlibrary {version}\narch sm_90\n"
        "KIND(b16, plain, rms, own_dtype, y, aligned, lean | full, rows)\n"
        "ROWS(4096, 4096, 4, 7, 128, kFit, 1, full)\n"
    )

    def explained(rows, *options):
        return program.json(
            f"explain {rows} rows {' '.join(map(str, options))}",
            "explain",
            "--shape",
            f"{rows},4096",
            "--device",
            "sm_90",
            *options,
        )["kernel"]

    program.cases.check("explain: another kernel without the file", explained(4) != kernel)
    program.cases.equal("explain: the file's kernel", explained(4, "--tuning", path), kernel)
    program.cases.equal(
        "explain: other rows keep theirs", explained(8, "--tuning", path), explained(8)
    )
    program.expect(
        "explain: another architecture's file",
        FAILURE,
        "explain",
        "--shape",
        "4,64",
        "--device",
        "sm_80",
        "--tuning",
        path,
        says=("options.tuning_file, line 3", "arch sm_80"),
    )
    for command in (("explain", "--shape", "4,64"), ("bench", "--shape", "1x64")):
        program.expect(
            f"{command[0]}: a tuning file for the CPU",
            FAILURE,
            *command,
            "--tuning",
            path,
            says="options.tuning_file is",
        )
    program.expect(
        "tune without a file to write", USAGE, "tune", says=("--output", "--csv", "required")
    )
    program.expect(
        "tune with two",
        USAGE,
        "tune",
        "--output",
        "tuned",
        "--csv",
        "times.csv",
        says=("--output", "--csv", "2 were given"),
    )
    for option in (("--resume",), ("--rounds", "2"), ("--seconds", "5")):
        program.expect(
            f"tune {option[0]} without --csv",
            USAGE,
            "tune",
            "--output",
            "tuned",
            *option,
            says=(option[0], "--csv"),
        )
    program.expect(
        "tune a negative time",
        USAGE,
        "tune",
        "--csv",
        "times.csv",
        "--seconds",
        "-1",
        says="--seconds",
    )
    program.expect(
        "tune no round", USAGE, "tune", "--csv", "times.csv", "--rounds", "0", says="--rounds"
    )
    program.expect(
        "tune a CPU", USAGE, "tune", "--device", "cpu", "--output", "tuned", says="not cuda:N"
    )
    program.expect("tune no rows", USAGE, "tune", "--rows", "0", "--output", "tuned", says="--rows")
    program.cases.check(
        "tune: nothing was written",
        not any((program.work / name).exists() for name in ("tuned", "times.csv")),
    )


def test_progress(program):
    """Progress goes to a terminal, and only there."""
    parent, child = pty.openpty()
    result = subprocess.run(
        [program.path, "bench", "--shape", "1x64", "--op", "rms", "--repeats", "1"],
        stdout=subprocess.PIPE,
        stderr=child,
        timeout=60,
    )
    os.close(child)
    shown = os.read(parent, 10000).decode()
    os.close(parent)
    program.cases.check(
        "bench: progress on a terminal",
        result.returncode == 0 and "1/1 rms bf16 1x64" in shown,
        shown,
    )


def test_selftest_threads(program):
    """The parts on several threads, with their progress, and as JSON. docs_test.py has the text."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [program.path, *SELFTEST_AS_JSON],
        stdout=subprocess.PIPE,
        stderr=child,
        text=True,
    )
    os.close(child)
    reader = threading.Thread(target=lambda: shown.append(read_all(parent)))
    shown = []
    reader.start()
    most, done = 0, False
    while not done:
        done = process.poll() is not None
        most = max(most, threads_of(process.pid))
        time.sleep(0.002)
    text = process.stdout.read()
    reader.join()
    document = json.loads(text)
    cases = program.cases
    cases.equal("selftest: exit code", process.returncode, 0)
    cases.check("selftest: threads that work", most >= 3, most)
    first = f"1/{len(range(0, 627, SELFTEST_EVERY))} "
    for progress in ("139/139 reciprocal root", "256/256 sigmoid and silu", first):
        cases.check(f"selftest: progress '{progress}'", progress in shown[0], shown[0][-500:])
    parts = document["parts"]
    cases.equal("selftest: parts", len(parts), 6)
    cases.equal("selftest: nothing failed", [p["failures"] for p in parts], [[]] * 6)
    for what in ("passed", "failed", "skipped"):
        cases.equal(f"selftest: {what}", document[what], sum(p[what] for p in parts))
    cases.check("selftest: each part has checks", all(p["passed"] > 100 for p in parts), parts)
    # Fewer would mean that a part did not run: more than 2000 checks of hashes, forward and
    # backward, and 10000 and more of each other kind.
    most = 36000 // SELFTEST_EVERY
    cases.check(f"selftest: more than {most}", document["passed"] > most, document["passed"])
    few = program.json("selftest --every 200", "selftest", "--every", "200")
    cases.equal("selftest --every 200: parts", len(few["parts"]), 6)
    cases.equal("selftest --every 200: its number", few["every"], 200)
    cases.check("selftest --every 200: few of the cases",
                660 < few["passed"] < document["passed"] * SELFTEST_EVERY // 10, few["passed"])
    cases.equal("selftest: threads", document["threads"], 3)
    cases.check("selftest: a note", "positive floats" in parts[4]["notes"][0], parts[4])


def read_all(terminal):
    """What is written to a terminal until its other end is closed."""
    text = b""
    while True:
        try:
            more = os.read(terminal, 65536)
        except OSError:  # so a terminal tells that it is closed
            more = b""
        if not more:
            os.close(terminal)
            return text.decode()
        text += more


def threads_of(process):
    try:
        return len(os.listdir(f"/proc/{process}/task"))
    except OSError:  # it has ended
        return 0


def test_selftest_table(program):
    if SHARE > 1:
        program.cases.skip("selftest --print-golden", "a sanitizer runs a share of the cases")
        return
    golden = program.expect(
        "selftest --print-golden", SUCCESS, "selftest", "--print-golden"
    ).splitlines()
    program.cases.equal(
        "selftest: lines of the table", len({line.split(" ", 1)[1] for line in golden}), 627 + 354
    )


def test(program):
    test_usage(program)
    if not test_info(program):
        test_no_gpu(program)
    else:
        program.cases.skip("without a GPU", "there is one")
    test_explain(program)
    test_explained_shapes(program)
    test_explained_quantisation(program)
    test_explain_without_kernels(program)
    test_bench(program)
    test_bench_shapes(program)
    test_bench_codes(program)
    test_stages(program)
    test_bench_f32_weights(program)
    test_tuning(program)
    test_progress(program)
    test_selftest_table(program)
    test_selftest_threads(program)


main(test)
