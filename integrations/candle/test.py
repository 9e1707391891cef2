#!/usr/bin/env python3
"""Tests of the crates for candle with the candle of crates.io: format and lints; the crates' own
tests; the crates as they are published; models of candle-transformers with candle-nn and with the
crate that takes its place; time beside candle-nn. The last line is the count.

    integrations/candle/test.py --build build-test/native --work build-test/candle
"""

import json
import os
import re
import shutil
import stat
import statistics
import sys
import tarfile
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE.parent))
from engine_testing import Session, write_figures  # noqa: E402

CRATES = HERE.parents[1] / "packages" / "rust" / "crates.py"
FIGURES = HERE / "figures.md"
# What candle's build script calls nvcc for is left out where code is only type-checked.
NO_NVCC = """#!/bin/sh
# Takes the place of nvcc where CUDA code is type-checked: it makes files without kernels.
case "$*" in *--version*) echo "Cuda compilation tools, release 13.0, V13.0.0"; exit;; esac
previous=
for word; do
  case "$previous" in -o) : > "$word";; --output-directory) folder=$word;; esac
  previous=$word
done
for word; do
  case "$word" in *.cu)
    name=${word##*/}
    test -z "$folder" || : > "$folder/${name%.cu}.ptx";;
  esac
done
"""


def count_tests(s, text):
    """Counts each test that cargo ran."""
    found = re.findall(r"^test (.+) \.\.\. (ok|FAILED|ignored.*)$", text, re.M)
    for name, result in found:
        if result.startswith("ignored"):
            s.cases.skip(name, result)
        else:
            s.cases.check(name, result == "ok")
    return len(found)


def run_tests(s):
    code, text = s.run(["cargo", "test", "--locked", "--release", "--workspace", "--no-fail-fast"])
    count = count_tests(s, text)
    good = code == 0 and count > 0
    s.cases.check("cargo test ends well", good, f"exit code {code}, {count} tests\n{text[-6000:]}")


def run_cuda(s):
    """The tests on a GPU, where there is one beside CUDA's compiler."""
    if not Path("/dev/nvidia0").exists() or shutil.which("nvcc") is None:
        s.cases.skip("candle on CUDA", "there is no GPU, or no nvcc")
        return
    code, text = s.run(
        ["cargo", "test", "--locked", "--release", "--package", "fastnorm-candle", "--features",
         "fastnorm-candle/cuda", "--test", "cuda"],
    )  # fmt: skip
    count = count_tests(s, text)
    good = code == 0 and count > 0
    s.cases.check("tests on CUDA end well", good, f"exit code {code}\n{text[-6000:]}")


def check_lints(s):
    """Format and lints of all code, that of CUDA too, which without a GPU nothing else checks."""
    crates = ["candle-nn/src/lib.rs", "model/src/main.rs"]
    s.check("cargo fmt", ["cargo", "fmt", "--all", "--check"])
    s.check("rustfmt", ["rustfmt", "--edition", "2021", "--check", *crates])
    tools = s.work / "no-cuda"
    (tools / "bin").mkdir(parents=True, exist_ok=True)
    nvcc = tools / "bin" / "nvcc"
    nvcc.write_text(NO_NVCC)
    nvcc.chmod(nvcc.stat().st_mode | stat.S_IXUSR)
    s.check(
        "clippy, with the code for CUDA",
        ["cargo", "clippy", "--locked", "--workspace", "--all-targets", "--features",
         "fastnorm-candle/cuda", "--", "-D", "warnings"],
        NVCC=str(nvcc),
        CUDA_HOME=str(tools),
        CUDA_COMPUTE_CAP="90",
        CUDARC_CUDA_VERSION="13000",
        PATH=f"{tools / 'bin'}:{os.environ['PATH']}",
    )  # fmt: skip


# --- models ---


def model_program(s, name, patch):
    """The folder of the program's project, with or without the patch."""
    folder = s.work / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE / "model", folder)
    manifest = folder / "Cargo.toml"
    manifest.write_text(f"{manifest.read_text()}\n{patch}\n")
    return folder


def outputs(text):
    """The numbers of each model and dtype, in order."""
    found = {}
    for model, dtype, number in re.findall(r"^(\w+) (f\d+) (\S+)$", text, re.M):
        found.setdefault((model, dtype), []).append(float(number))
    return found


def distance(found, wanted):
    """Root of the mean square of the difference, relative to that of what is wanted."""
    square = statistics.fmean((a - b) ** 2 for a, b in zip(found, wanted, strict=True))
    return (square / statistics.fmean(b * b for b in wanted)) ** 0.5


def run_models(s):
    patch = s.check(
        "patch.py", [sys.executable, "-B", HERE / "patch.py", s.work / "fastnorm-candle-nn"]
    )
    if patch is None:
        return
    manifests = [s.work / "fastnorm-candle-nn" / name for name in ("", "stock")]
    features = [
        set(tomllib.loads((folder / "Cargo.toml").read_text())["features"]) for folder in manifests
    ]
    s.cases.equal("features of candle-nn that are missing", features[1] - features[0] - {"default"},
                  set())  # fmt: skip
    printed = {}
    ways = (("stock", "", "candle_nn"), ("patched", patch, "fastnorm_candle_ops"))
    for name, lines, module in ways:
        folder = model_program(s, name, lines)
        locked = ["--locked"] if name == "stock" else ["--offline"]
        command = ["cargo", "run", *locked, "--", *(["--f64"] if lines else [])]
        text = s.check(f"models with {name} norms run", command, cwd=folder)
        if text is None:
            return
        found = re.search(r"^module (\w+)$", text, re.M)
        s.cases.equal(f"crate of {name} norms", found and found[1], module)
        printed[name] = outputs(text)
    stock, patched = printed["stock"], printed["patched"]
    s.cases.equal("models", sorted(stock), sorted(key for key in patched if key[1] != "f64"))
    for key, wanted in stock.items():
        apart = distance(patched[key], wanted)
        limit = {"f32": 1e-5, "f16": 1e-2}[key[1]]
        s.cases.check(f"{key} is near candle-nn's", 0 < apart < limit, f"{apart:.1e} apart")
        print(f"{' '.join(key)}: {len(wanted)} numbers, {apart:.1e} from candle-nn's")
    exact = patched["bert", "f64"]
    error, theirs = (distance(p["bert", "f32"], exact) for p in (patched, stock))
    s.cases.check("error of bert", error <= 1.1 * theirs, f"{error} {theirs}")
    print(f"bert f32: error {error:.1e}, with candle-nn {theirs:.1e}")


# --- the published crates ---


def check_packed(s):
    """The program of fastnorm-candle's page in a project that has the packed crates alone."""
    made = s.check(
        "crates.py",
        [sys.executable, "-B", CRATES, "--work", s.work / "pack", "--out", s.work / "crates"],
    )
    if made is None:
        return
    folder, project = s.work / "unpacked", s.work / "consumer"
    for path in (folder, project):
        shutil.rmtree(path, ignore_errors=True)
    patches = []
    for crate in re.findall(r"^\S+\.crate$", made, re.M):
        with tarfile.open(crate) as archive:
            archive.extractall(folder, filter="data")
        name = Path(crate).stem
        patches.append(f'{name.rpartition("-")[0]} = {{ path = "{folder / name}" }}')
    s.cases.equal("crates that are packed", len(patches), 4)
    program, printed = re.search(
        r"^```rust\n(.*?)^```\n\n```text\n(.*?)^```",
        (next(folder.glob("fastnorm-candle-[0-9]*")) / "README.md").read_text(),
        re.M | re.S,
    ).groups()
    (project / "src").mkdir(parents=True)
    (project / "src" / "main.rs").write_text(program)
    workspace = (HERE / "Cargo.toml").read_text()
    version = tomllib.loads(workspace)["workspace"]["package"]["version"]
    (project / "Cargo.toml").write_text(
        '[package]\nname = "consumer"\nversion = "0.0.0"\nedition = "2021"\n\n[dependencies]\n'
        f'candle-core = "0.11.1"\ncandle-nn = "0.11.1"\nfastnorm-candle = "{version}"\n\n'
        + "[patch.crates-io]\n"
        + "\n".join(patches)
        + "\n\n"
        # What is compiled with the profile of the workspace is not compiled again.
        + workspace[workspace.index("[profile.release]") :]
    )
    shutil.copyfile(HERE / "Cargo.lock", project / "Cargo.lock")
    text = s.check(
        "the page's program with the packed crates",
        ["cargo", "run", "--release", "--quiet", "--offline"],
        cwd=project,
    )
    s.cases.equal("what it prints", (text or "")[-len(printed) :], printed)


# --- figures ---


def measure(s, rounds):
    text = s.check(
        "the bench runs",
        ["cargo", "bench", "--locked", "--bench", "beside_candle", "--", "--rounds", rounds],
    )
    lines = [line.split("\t") for line in (text or "").splitlines() if line.count("\t") == 7]
    s.cases.check("the bench has lines", lines)
    for what, dtype, rows, _, stock, ours, stock_error, error in lines:
        least = {"f32": 1e-6, "f16": 1e-3, "bf16": 6e-3}[dtype]
        for side, found in (("candle-nn", stock_error), ("fastnorm", error)):
            s.cases.check(f"{what} {dtype} {rows} rows of {side}", float(found) < least, found)
        ratio = float(ours) / float(stock)
        s.cases.check(f"{what} {dtype} {rows} rows is no slower", ratio <= 1, f"{ratio:.2f}")
    return lines


def write_table(s, lines):
    write_figures(
        s,
        FIGURES,
        "Time and error beside candle-nn",
        [
            "`test.py --figures` writes this page. Both sides are timed by turns in one run, on the",
            "threads of one rayon pool, and the least time of each counts. The error is the root of",
            "the mean square of the difference from double precision, relative to the result. With",
            "gradients, a line is a forward pass and a backward pass of all inputs, and its error is",
            "that of dx. candle-nn has gradients in a form of several operators, which stands here.",
        ],
        ["norm", "dtype", "rows", "columns", "candle-nn, µs", "fastnorm, µs", "time",
         "error of candle-nn", "error of fastnorm"],
        [[*line[:6], f"{float(line[5]) / float(line[4]):.2f}", *line[6:]] for line in lines],
    )  # fmt: skip


def main():
    s = Session(__doc__, HERE)
    s.env.update(CARGO_TARGET_DIR=str(s.work / "target"), CARGO_TERM_COLOR="never")
    if shutil.which("cargo") is None:
        s.cases.skip("the crates for candle", "there is no cargo")
        s.cases.finish()
    if not s.fetch("candle", ["cargo", "fetch", "--locked"]):
        s.cases.finish()
    if s.figures:
        write_table(s, measure(s, "20"))
        s.finish()
    run_tests(s)
    run_cuda(s)
    check_packed(s)
    measure(s, "5")
    manifest = HERE / "model" / "Cargo.toml"
    if s.fetch("candle-transformers", ["cargo", "fetch", "--locked", "--manifest-path", manifest]):
        run_models(s)
    check_lints(s)
    s.finish()


if __name__ == "__main__":
    main()
