#!/usr/bin/env python3
"""Builds CUDA kernels of FlashInfer into a module, from its wheel. Needs nvcc and no GPU.

  build_flashinfer.py flashinfer_norm.so               norms, for FASTNORM_FLASHINFER_CUDA
  build_flashinfer.py --what mla flashinfer_mla.so     MLA decode, for FASTNORM_FLASHINFER_MLA

Sources and flags are those that FlashInfer compiles at first use: of the norms csrc/norm.cu, of MLA
decode the kernels of its backend fa3 for bf16. The wheels of FlashInfer and of tvm-ffi are fetched
by pip; the machine that measures needs tvm-ffi alone.
"""

import argparse
import concurrent.futures
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
DTYPES = ["F16", "BF16", "FP8_E4M3", "FP8_E5M2"]
SOURCES = {
    "norm": ["norm", "flashinfer_norm_binding"],
    "mla": ["batch_mla_sm90_plan", "batch_mla_sm90_run", "batch_mla_sm90_binding"],
}
MORE_FLAGS = {
    "norm": [],
    "mla": [
        "-DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED",
        "-DFLASHINFER_ENABLE_FP8_E8M0",
        "-DFLASHINFER_ENABLE_FP4_E2M1",
    ],
}
# What FlashInfer's generator puts into batch_mla_config.jinja.
MLA_CONFIG = {
    "dtype_q": "nv_bfloat16",
    "dtype_kv": "nv_bfloat16",
    "dtype_o": "nv_bfloat16",
    "dtype_idx": "int32_t",
    "head_dim_ckv": "512",
    "head_dim_kpe": "64",
}


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


def filled(template, values):
    """A template of plain names in double braces, which is all that this one has."""
    text = re.sub(r"\{\{ (\w+) \}\}", lambda name: values[name[1]], template)
    if "{{" in text or "{%" in text:
        raise ValueError("batch_mla_config.jinja has more than names; required: a version without")
    return text


def flags_for(what, folder, arch):
    data, ffi, made = folder / "flashinfer" / "data", folder / "tvm_ffi", folder / "made"
    first = [data / "cccl" / part for part in ("libcudacxx/include", "cub", "thrust")]
    others = [
        ffi / "include",
        data / "include",
        data / "csrc",
        data / "cutlass" / "include",
        data / "spdlog" / "include",
        made,
    ]
    return [
        "-std=c++17",
        "-O3",
        "-DNDEBUG",
        "-use_fast_math",
        "-DENABLE_BF16",
        "-DENABLE_FP8",
        *[f"-DFLASHINFER_ENABLE_{d}" for d in DTYPES],
        *MORE_FLAGS[what],
        "--expt-relaxed-constexpr",
        "-static-global-template-stub=false",
        "--compiler-options=-fPIC",
        f"-gencode=arch=compute_{arch},code=sm_{arch}",
        *[f"-I{path}" for path in first],
        *[word for path in others for word in ("-isystem", path)],
    ]


def compile_module(nvcc, folder, what, arch, output):
    csrc, made = folder / "flashinfer" / "data" / "csrc", folder / "made"
    made.mkdir()
    for header in EMPTY_HEADERS:
        (made / header).touch()
    if what == "mla":
        config = filled((csrc / "batch_mla_config.jinja").read_text(), MLA_CONFIG)
        (made / "batch_mla_sm90_config.inc").write_text(config)
    flags = flags_for(what, folder, arch)

    def compiled(source):
        written = folder / f"{source}.o"
        subprocess.run([nvcc, "-c", "-o", written, csrc / f"{source}.cu", *flags], check=True)
        return written

    with concurrent.futures.ThreadPoolExecutor() as pool:
        objects = list(pool.map(compiled, SOURCES[what]))
    library = ["-L", folder / "tvm_ffi" / "lib", "-ltvm_ffi"]
    subprocess.run(
        [nvcc, "-shared", "-cudart", "static", "-o", output, *objects, *library], check=True
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path, help="the module, such as flashinfer_norm.so")
    parser.add_argument("--what", choices=sorted(SOURCES), default="norm", help="(%(default)s)")
    parser.add_argument("--version", default="0.7.2", help="of flashinfer-python (%(default)s)")
    parser.add_argument(
        "--tvm-ffi",
        default="0.1.15",
        help="of apache-tvm-ffi, or a later one of its series (%(default)s)",
    )
    parser.add_argument("--arch", default="90a", help="what to compile for (%(default)s)")
    options = parser.parse_args()
    if options.what == "mla" and options.arch != "90a":
        parser.error(f"--arch is {options.arch}; required with --what mla: 90a")
    nvcc = find_nvcc()
    if nvcc is None:
        sys.exit("no nvcc: on PATH, or by tools/setup")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        unpack_wheels(
            Path(folder),
            [f"flashinfer-python=={options.version}", f"apache-tvm-ffi~={options.tvm_ffi}"],
        )
        compile_module(nvcc, Path(folder), options.what, options.arch, options.output.resolve())
    print(f"{options.output}: FlashInfer {options.version}, {options.what}, sm_{options.arch}")


if __name__ == "__main__":
    main()
