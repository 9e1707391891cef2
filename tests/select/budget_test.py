#!/usr/bin/env python3
"""Tests of tools/budget.py on listings made up here: who owns a kernel, what ninja's log says, and
what is above a budget."""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "abi")]
sys.path.append(
    str(ROOT / "tools")
)  # behind Python's own modules: tools/select.py is not one of them
import budget  # noqa: E402
import norm_lists as lists  # noqa: E402
from cases import Cases  # noqa: E402

HEAD = ",".join(budget.COLUMNS)


def test_kernels(cases):
    names = {
        "void norm_kernel<90, 1ul, 2ul>(NormParams)": "norm",
        "void norm_pair_kernel<90, 1ul, 2ul, (GridForm)1>(P)": "norm",
        "void mla::mla_decode_kernel<(Dtype)2, true>(MlaDecodeMaps, MlaDecodeParams)": "mla_decode",
        "mla::mla_decode_plan_kernel(MlaDecodeParams)": "mla_decode",
        "void norm_backward_kernel<1ul>(NormBackwardParams)": "norm_backward",
        "peer_norm_kernel<90, 1u>(P)": "peer",
        "void held_heads_kernel<90, 1u>(HeldHeadsParams)": "norm_heads",
        "void indexer_heads_kernel<90, 1u>(IndexerParams)": "norm_heads",
        "void something<1>()": "other",
    }
    families = budget.family_names()
    found = {name: budget.family_of(name, families) for name in names}
    cases.equal("families", found, names)
    # The names of some begin as others' do.
    for family in families:
        kernel = f"void held_{family}_kernel<90, 1u>(P)"
        cases.equal(kernel, budget.family_of(kernel, families), families[family])
    cases.equal(
        "every entry point counts",
        budget.count_kernels([("sm_90", n) for n in names] + [("sm_80", next(iter(names)))]),
        {
            ("norm", "sm_90"): 2,
            ("mla_decode", "sm_90"): 2,
            ("norm_backward", "sm_90"): 1,
            ("peer", "sm_90"): 1,
            ("norm_heads", "sm_90"): 2,
            ("other", "sm_90"): 1,
            ("norm", "sm_80"): 1,
        },
    )


def test_objects(cases):
    objects = {
        "src/cuda/libnorm_sm90_bf16_plain.a.p/norm_instances.cu.o": ("norm", "sm_90"),
        "build/src/cuda/libnorm_sm100f_f32_add.a.p/norm_instances.cu.o": ("norm", "sm_100f"),
        "src/cuda/libnorm_ptx_f32_add.a.p/norm_instances.cu.o": ("norm", "ptx"),
        "src/cuda/libmla_decode_sm90a_plan_merge.a.p/mla_decode_plan_merge.cu.o": (
            "mla_decode",
            "sm_90a",
        ),
        "src/cuda/libnorm_backward_sm90_bf16.a.p/norm_backward_instances.cu.o": (
            "norm_backward",
            "sm_90",
        ),
        "src/cuda/libnorm_l1_ptx_bf16.a.p/norm_l1_instances.cu.o": ("norm_l1", "ptx"),
        "src/cpu/libnorm_avx2.a.p/norm_avx2.cpp.o": None,
        "src/cuda/libnorm_sm90_bf16_plain.a": None,
    }
    cases.equal("objects", {path: budget.object_of(path) for path in objects}, objects)
    one, two, other = (
        list(objects)[0],
        "src/cuda/libnorm_sm90_f32_add.a.p/norm_instances.cu.o",
        "src/cpu/libnorm_avx2.a.p/norm_avx2.cpp.o",
    )
    log = "# ninja log v6\n" + "".join(f"{a}\t{b}\t0\t{path}\tff\n" for a, b, path in (
        (0, 90000, one), (0, 500, two), (5, 7, other), (1000, 11500, one)))
    cases.equal(
        "seconds of the last time each", budget.compile_seconds(log), {("norm", "sm_90"): 11.0}
    )
    cases.equal(
        "bytes",
        budget.code_bytes(
            "x.o  :\nsection size addr\n.text 12 0\n.nv_fatbin 1000 0\n.nvFatBinSegment 24 0\n"
        ),
        1000,
    )
    rule = "rule cpp_COMPILER\n command = ccache c++\n\nrule cuda_COMPILER\n command = {}nvcc $ARGS\n deps = gcc\n\n"
    cases.equal(
        "a cache",
        [budget.is_cached(rule.format(c)) for c in ("", "/usr/bin/ccache ")],
        [False, True],
    )


def write(folder, *lines):
    path = Path(folder) / "budget.csv"
    path.write_text("\n".join(["# A comment, which stays", HEAD, *lines]) + "\n")
    return path


def test_compare(cases, folder):
    path = write(
        folder,
        "norm,sm_90,100,5000,40,50,,",
        "mla_decode,sm_90a,7,,,,,",
        f"{budget.LIBRARY},sm_90,,9000,,,8000,",
    )
    allowed = budget.read_budget(path)

    def verdict(**numbers):
        return [
            v
            for v, _ in budget.compare(
                {("norm", "sm_90"): {"kernels": 1, "bytes": 1, "seconds": 1, **numbers}}, allowed
            )
        ]

    cases.equal("at the budget", verdict(kernels=100, bytes=5000, seconds=60), ["passed"] * 3)
    cases.equal("a kernel more", verdict(kernels=101), ["failed", "passed", "passed"])
    cases.equal("a byte more", verdict(bytes=5001), ["passed", "failed", "passed"])
    cases.equal(
        "more than 1.5 times the seconds", verdict(seconds=61), ["passed", "passed", "failed"]
    )
    cases.equal("goals do not fail", verdict(kernels=99)[0], "passed")
    cached = budget.compare({("norm", "sm_90"): {"kernels": 1, "bytes": 1}}, allowed)
    cases.check(
        "a cache is a skip that says so",
        cached[-1][0] == "skipped" and "not measured" in cached[-1][1],
        cached,
    )
    cases.equal(
        "no budget yet",
        [
            v
            for v, _ in budget.compare(
                {("mla_decode", "sm_90a"): {"kernels": 7, "bytes": 1, "seconds": 1}}, allowed
            )
        ],
        ["passed", "skipped", "skipped"],
    )
    cases.equal(
        "a family without a line",
        [v for v, _ in budget.compare({("other", "sm_90"): {"kernels": 1}}, allowed)],
        ["failed"],
    )
    cases.equal(
        "the library",
        [v for v, _ in budget.compare({(budget.LIBRARY, "sm_90"): {"bytes": 9001}}, allowed)],
        ["failed"],
    )
    text = budget.updated(
        path.read_text(),
        {("norm", "sm_90"): {"kernels": 90, "bytes": 4000}, ("new", "sm_90"): {"kernels": 3}},
    )
    cases.equal(
        "an update",
        text.splitlines(),
        [
            "# A comment, which stays",
            HEAD,
            "norm,sm_90,90,4000,40,50,,",
            "mla_decode,sm_90a,7,,,,,",
            f"{budget.LIBRARY},sm_90,,9000,,,8000,",
            "new,sm_90,3,,,,,",
        ],
    )
    for name, lines in {
        "a line twice": ("norm,sm_90,1,,,,,", "norm,sm_90,1,,,,,"),
        "a number": ("norm,sm_90,many,,,,,",),
    }.items():
        try:
            budget.read_budget(write(folder, *lines))
            cases.check(f"{name} is refused", False)
        except ValueError as why:
            cases.check(f"{name} is refused", str(why))


def test_checked_in(cases):
    """The budget that is there allows what the lists make, entry point by entry point, and no
    more."""
    allowed = budget.read_budget(budget.BUDGET)
    variants = lists.read_variants()
    for arch in ("sm_80", "sm_90", "sm_100f", "sm_120f"):
        cases.equal(f"kernels of {arch}", allowed["norm", arch]["kernels"],
                    sum(k.entry_points() for k in lists.all_kernels(variants, arch)))


FAKE = """#!/bin/sh
echo "Fatbin elf code:"
echo "arch = sm_90"
for two in 2 3; do
  name=_ZN8fastnorm4cuda11norm_kernelILi90ELm1ELm${two}EEEvv
  echo " Function $name:"
  echo "  REG:32 STACK:0 SHARED:0 LOCAL:0"
done
"""


def test_program(cases, folder):
    """All of it on a build folder with an object of the host compiler and a pretended cuobjdump."""
    build = Path(folder) / "build"
    part = build / "src" / "cuda" / "libnorm_sm90_bf16_plain.a.p"
    part.mkdir(parents=True)
    source = Path(folder) / "part.c"
    source.write_text('__attribute__((section(".nv_fatbin"), used)) const char code[4000] = {1};\n')
    subprocess.run(["cc", "-c", source, "-o", part / "norm_instances.cu.o"], check=True)
    subprocess.run(
        ["cc", "-shared", "-fPIC", source, "-o", build / "src" / "libfastnorm.so"], check=True
    )
    (build / "build.ninja").write_text("rule cuda_COMPILER\n command = nvcc $ARGS\n")
    (build / ".ninja_log").write_text(
        f"# ninja log v6\n0\t2500\t0\t{part.relative_to(build)}/norm_instances.cu.o\tff\n"
    )
    tools = Path(folder) / "cuda"
    tools.mkdir()
    (tools / "cuobjdump").write_text(FAKE)
    (tools / "cuobjdump").chmod(0o755)
    native = Path(folder) / "native.ini"
    native.write_text(f"[binaries]\ncuda = '{tools / 'nvcc'}'\n")

    def run(*lines, more=()):
        done = subprocess.run(
            [
                sys.executable,
                ROOT / "tools" / "budget.py",
                build,
                "--budget",
                write(folder, *lines),
                "--native-file",
                native,
                *more,
            ],
            capture_output=True,
            text=True,
            env={"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        )
        return done.returncode, done.stdout + done.stderr

    code, out = run("norm,sm_90,2,4000,2,,,")
    cases.check(
        "within the budget",
        code == 0 and "3 passed, 0 failed, 1 skipped" in out and "norm sm_90: 4000 bytes" in out,
        out,
    )
    code, out = run("norm,sm_90,1,4000,2,,,")
    cases.check("above it", code == 1 and "FAIL norm sm_90: 2 kernels, budget 1" in out, out)
    code, out = run("norm,sm_90,1,1,1,9,,", more=["--update"])
    cases.equal(
        "updated",
        budget.read_budget(Path(folder) / "budget.csv")["norm", "sm_90"],
        {
            "kernels": 2,
            "bytes": 4000,
            "seconds": 2,
            "goal_kernels": 9,
            "goal_bytes": None,
            "goal_seconds": None,
        },
    )


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    cases = Cases()
    for test in (test_kernels, test_objects, test_checked_in):
        test(cases)
    for test in (test_compare, test_program):
        with tempfile.TemporaryDirectory() as folder:
            test(cases, folder)
    cases.finish()


main()
