#!/usr/bin/env python3
"""Builds FlashInfer's CUDA norm kernels into a module for FASTNORM_FLASHINFER_CUDA, from its wheel.
Needs nvcc and no GPU.

What is built is csrc/norm.cu and its binding, with the flags that FlashInfer compiles them with
itself. The wheels of FlashInfer and of tvm-ffi are fetched by pip; the machine that runs compare.py
needs tvm-ffi alone.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLATFORMS = ["manylinux_2_28_x86_64", "manylinux2014_x86_64", "any"]
# Included on the way and not used; the wheels that have them take 500 MB.
EMPTY_HEADERS = ["cublasLt.h", "cublas_v2.h", "curand_kernel.h"]


def find_nvcc():
    """On PATH, or the one of tools/setup."""
    found = shutil.which("nvcc")
    native = ROOT / ".venv" / "native.ini"
    if found or not native.is_file():
        return found
    named = re.search(r"^cuda = '(.*)'", native.read_text(), re.M)
    return named[1] if named else None


def unpack_wheels(folder, requirements):
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--python-version",
            "3.12",
            *platforms,
            "--dest",
            folder,
            *requirements,
        ],
        check=True,
    )
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(folder)


def compile_module(nvcc, folder, arch, output):
    data, ffi, empty = folder / "flashinfer" / "data", folder / "tvm_ffi", folder / "empty"
    empty.mkdir()
    for header in EMPTY_HEADERS:
        (empty / header).touch()
    dtypes = ["F16", "BF16", "FP8_E4M3", "FP8_E5M2"]
    first = [data / "cccl" / part for part in ("libcudacxx/include", "cub", "thrust")]
    others = [
        ffi / "include",
        data / "include",
        data / "csrc",
        data / "cutlass" / "include",
        data / "spdlog" / "include",
        empty,
    ]
    objects = []
    for source in ("norm", "flashinfer_norm_binding"):
        objects.append(folder / f"{source}.o")
        subprocess.run(
            [
                nvcc,
                "-c",
                "-o",
                objects[-1],
                data / "csrc" / f"{source}.cu",
                "-std=c++17",
                "-O3",
                "-DNDEBUG",
                "-use_fast_math",
                "-DENABLE_BF16",
                "-DENABLE_FP8",
                *[f"-DFLASHINFER_ENABLE_{d}" for d in dtypes],
                "--expt-relaxed-constexpr",
                "-static-global-template-stub=false",
                "--compiler-options=-fPIC",
                f"-gencode=arch=compute_{arch},code=sm_{arch}",
                *[f"-I{path}" for path in first],
                *[word for path in others for word in ("-isystem", path)],
            ],
            check=True,
        )
    subprocess.run(
        [
            nvcc,
            "-shared",
            "-cudart",
            "static",
            "-o",
            output,
            *objects,
            f"-L{ffi / 'lib'}",
            "-ltvm_ffi",
        ],
        check=True,
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path, help="the module, such as flashinfer_norm.so")
    parser.add_argument("--version", default="0.7.2", help="of flashinfer-python (%(default)s)")
    parser.add_argument(
        "--tvm-ffi",
        default="0.1.15",
        help="of apache-tvm-ffi, or a later one of its series (%(default)s)",
    )
    parser.add_argument("--arch", default="90a", help="what to compile for (%(default)s)")
    options = parser.parse_args()
    nvcc = find_nvcc()
    if nvcc is None:
        sys.exit("no nvcc: on PATH, or by tools/setup")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        unpack_wheels(
            Path(folder),
            [f"flashinfer-python=={options.version}", f"apache-tvm-ffi~={options.tvm_ffi}"],
        )
        compile_module(nvcc, Path(folder), options.arch, options.output.resolve())
    print(f"{options.output}: FlashInfer {options.version}, sm_{options.arch}")


main()
