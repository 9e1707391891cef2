#!/usr/bin/env python3
"""Builds FlashMLA's decode of bf16 and of selected FP8 rows into a library for FASTNORM_FLASHMLA,
from its checkout and the headers of CUTLASS. Needs nvcc and no GPU, and takes five minutes of one
core.

  build_flashmla.py flashmla.so --source FlashMLA --cutlass cutlass/include

Compiled are the kernels, the merge and the planner with the flags of FlashMLA's setup.py, and
flashmla_c.cu, which calls them.
"""

import argparse
import concurrent.futures
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from build_flashinfer import find_nvcc

HERE = Path(__file__).resolve().parent
SOURCES = (
    "sm90/decode/dense/instantiations/bf16.cu",
    "sm90/decode/sparse_fp8/instantiations/v32_persistent_h64.cu",
    "sm90/decode/sparse_fp8/instantiations/v32_persistent_h128.cu",
    "smxx/decode/combine/combine.cu",
    "smxx/decode/get_decoding_sched_meta/get_decoding_sched_meta.cu",
)
FLAGS = [
    "-O3",
    "-std=c++20",
    "-DNDEBUG",
    "-D_USE_MATH_DEFINES",
    "--expt-relaxed-constexpr",
    "--expt-extended-lambda",
    "--use_fast_math",
    "-Xptxas=--register-usage-level=10",
    "-Xcompiler=-fPIC",
    "-gencode=arch=compute_90a,code=sm_90a",
    "-w",
]


def compile_all(nvcc, csrc, cutlass, folder):
    toolkit = Path(nvcc).resolve().parents[1] / "include"
    includes = [
        csrc,
        csrc / "kerutils" / "include",
        csrc / "sm90",
        cutlass,
        toolkit,
        toolkit / "cccl",
    ]
    words = [word for path in includes for word in ("-isystem", path)]

    def compiled(numbered):
        number, source = numbered
        made = folder / f"{number}.o"
        subprocess.run([nvcc, "-c", "-o", made, source, *FLAGS, *words], check=True)
        return made

    sources = [csrc / source for source in SOURCES] + [HERE / "flashmla_c.cu"]
    with concurrent.futures.ThreadPoolExecutor(len(sources)) as pool:
        return list(pool.map(compiled, enumerate(sources)))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path, help="the library, such as flashmla.so")
    parser.add_argument("--source", type=Path, required=True, help="a checkout of FlashMLA")
    parser.add_argument("--cutlass", type=Path, required=True, help="the headers of CUTLASS")
    options = parser.parse_args()
    nvcc = find_nvcc()
    if nvcc is None:
        sys.exit("no nvcc: on PATH, or by tools/setup")
    csrc = options.source / "csrc"
    for folder in (csrc, options.cutlass / "cutlass"):
        if not folder.is_dir():
            parser.error(f"{folder} is no folder")
    with tempfile.TemporaryDirectory() as folder:
        objects = compile_all(nvcc, csrc, options.cutlass, Path(folder))
        made = Path(folder) / "flashmla.so"
        subprocess.run([nvcc, "-shared", "-cudart", "static", "-o", made, *objects], check=True)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(made, options.output)
    print(options.output)


if __name__ == "__main__":
    main()
