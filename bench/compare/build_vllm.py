#!/usr/bin/env python3
"""Builds vLLM's fused_qk_norm_rope alone, from its source distribution, into a library for
FASTNORM_VLLM_HEADS. Needs nvcc and PyTorch, and no GPU.

  build_vllm.py vllm_heads.so
  build_vllm.py vllm_heads.so --source csrc          a folder that has vLLM's csrc, no network
  build_vllm.py --unpack csrc                        only that folder, for another machine
"""

import argparse
import importlib
import json
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from compare.build_flashinfer import find_nvcc  # noqa: E402

KERNEL = "fused_qknorm_rope_kernel.cu"
FILES = (
    KERNEL,
    "async_util.cuh",
    "core/cuda_compat.h",
    "dispatch_utils.h",
    "torch_utils.h",
    "type_convert.cuh",
)
# The operator: what vLLM's own library registers among a thousand others.
BINDING = r"""
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

using Tensor = torch::stable::Tensor;

void fused_qk_norm_rope(Tensor& qkv, int64_t query_heads, int64_t key_heads, int64_t value_heads,
                        int64_t columns, double eps, Tensor& query_weight, Tensor& key_weight,
                        Tensor& table, bool rotate_half, Tensor& positions, int64_t heads_of_warp);

STABLE_TORCH_LIBRARY(vllm_heads, library) {
  library.def("fused_qk_norm_rope(Tensor! qkv, int query_heads, int key_heads, int value_heads, "
              "int columns, float eps, Tensor query_weight, Tensor key_weight, Tensor table, "
              "bool rotate_half, Tensor positions, int heads_of_warp=-1) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(vllm_heads, CUDA, library) {
  library.impl("fused_qk_norm_rope", TORCH_BOX(&fused_qk_norm_rope));
}
"""
# torch_utils.h names a handle of cuBLAS, which the kernel does not use. A toolkit may lack the
# header.
CUBLAS = "#pragma once\ntypedef struct cublasContext* cublasHandle_t;\n"


def fetch(version, folder):
    """The source distribution, from the index that pip asks by default."""
    index = importlib.import_module("pip._internal.models.index").PyPI.simple_url
    request = urllib.request.Request(
        f"{index}/vllm/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    with urllib.request.urlopen(request) as answer:
        files = json.load(answer)["files"]
    wanted = f"vllm-{version}.tar.gz"
    found = [entry["url"] for entry in files if entry["filename"] == wanted]
    if not found:
        sys.exit(f"the index has no {wanted}")
    urllib.request.urlretrieve(found[0], folder / wanted)
    return folder / wanted


def unpack(archive, folder):
    """The files that the kernel needs."""
    with tarfile.open(archive) as packed:
        top = packed.next().name.split("/")[0]
        for name in FILES:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(packed.extractfile(f"{top}/csrc/{name}").read())


def compile_library(nvcc, source, work, arch, output):
    extension = importlib.import_module("torch.utils.cpp_extension")
    (work / "binding.cpp").write_text(BINDING)
    (work / "stand_in").mkdir()
    (work / "stand_in" / "cublas_v2.h").write_text(CUBLAS)
    folders = [f"-I{source}", *(f"-I{path}" for path in extension.include_paths())]
    # The stable ABI that vLLM itself asks for.
    defines = ["-DUSE_CUDA", "-DTORCH_TARGET_VERSION=0x020b000000000000"]
    lib = Path(importlib.import_module("torch").__file__).parent / "lib"
    subprocess.run(
        [
            nvcc,
            "-shared",
            "-o",
            output,
            source / KERNEL,
            work / "binding.cpp",
            "-std=c++17",
            "-O3",
            "-DNDEBUG",
            *defines,
            "--expt-relaxed-constexpr",
            "--compiler-options=-fPIC",
            f"-gencode=arch=compute_{arch},code=sm_{arch}",
            *folders,
            f"-Xcompiler=-idirafter,{work / 'stand_in'}",
            f"-L{lib}",
            "-ltorch",
            "-ltorch_cpu",
            "-ltorch_cuda",
            f"-Xlinker=-rpath,{lib}",
        ],
        check=True,
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path, nargs="?", help="the library, such as vllm_heads.so")
    parser.add_argument("--version", default="0.33.0", help="of vLLM (%(default)s)")
    parser.add_argument("--source", type=Path, help="vLLM's folder csrc, or a part of it")
    parser.add_argument("--unpack", type=Path, help="where to put the sources instead of building")
    parser.add_argument("--arch", default="90", help="what to compile for (%(default)s)")
    options = parser.parse_args()
    if (options.output is None) == (options.unpack is None):
        parser.error("required: either the library's file or --unpack FOLDER")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        source = options.source
        if source is None:
            source = options.unpack or work / "csrc"
            unpack(fetch(options.version, work), source)
        if options.unpack:
            print(f"{source}: vLLM {options.version}, {len(FILES)} files")
            return
        nvcc = find_nvcc()
        if nvcc is None:
            sys.exit("no nvcc: on PATH, or by tools/setup")
        options.output.parent.mkdir(parents=True, exist_ok=True)
        compile_library(nvcc, source.resolve(), work, options.arch, options.output.resolve())
    print(f"{options.output}: fused_qk_norm_rope of vLLM, sm_{options.arch}")


if __name__ == "__main__":
    main()
