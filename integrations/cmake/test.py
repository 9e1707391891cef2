#!/usr/bin/env python3
"""Builds and runs the example with libfastnorm as a part of its CMake build. The last line is the
count. Every source must be compiled as Meson compiles it, see launcher.py.

    integrations/cmake/test.py --build build-test/native --work build-test/cmake
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tests" / "abi"))
sys.path.insert(0, str(ROOT / "packages"))
from cases import Cases  # noqa: E402
from version import version  # noqa: E402

PRINTED = ["1.0000 2.0000 3.0000 4.0000", "0.4472 -0.8944 4.0249 -5.3666"]


def run(cases, name, command, **options):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                            **options)
    cases.check(name, result.returncode == 0, (result.stdout + result.stderr)[-2000:])
    return result


def library_sources(build):
    """Names of the files that Meson compiles for the library."""
    entries = json.loads((build / "compile_commands.json").read_text())
    return sorted(Path(e["file"]).name for e in entries if is_of_library(e["output"]))


def is_of_library(output):
    """Whether Meson has the object in the library: it is the archive's, or a unit's of a CPU."""
    return output.startswith(("src/libfastnorm_internal.a.p/", "src/cpu/lib"))


def check(cases, name, build, work, *options):
    """A build of the example with these options of CMake."""
    folder = work / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    compiled = folder / "compiled"
    environ = {
        **os.environ,
        "CCACHE_BASEDIR": str(ROOT),
        "FASTNORM_MESON_BUILD": str(build),
        "FASTNORM_SOURCES": str(ROOT),
        "FASTNORM_COMPILED": str(compiled),
    }
    configured = run(
        cases, f"{name}: configured",
        ["cmake", "-S", HERE, "-B", folder, f"-DFETCHCONTENT_SOURCE_DIR_FASTNORM={ROOT}",
         f"-DCMAKE_CXX_COMPILER_LAUNCHER={sys.executable};{HERE / 'launcher.py'}", *options],
        env=environ,
    )
    if configured.returncode != 0:
        return
    built = run(cases, f"{name}: built", ["cmake", "--build", folder, "--parallel", "2"],
                env=environ)
    if built.returncode != 0:
        return
    names = sorted(compiled.read_text().split())
    cases.equal(f"{name}: the library's sources", names, library_sources(build))
    result = run(cases, f"{name}: the program", [folder / "norm_example"])
    lines = result.stdout.splitlines()
    cases.equal(f"{name}: what it prints", lines, [f"libfastnorm {version()}", *PRINTED])
    for library in folder.rglob("libfastnorm.so.*"):
        text = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True,
                              text=True).stdout
        symbols = [line.split()[-1] for line in text.splitlines()]
        others = [s for s in symbols if not s.startswith(("fastnorm_", "FASTNORM_"))]
        cases.check(f"{name}: symbols of {library.name}", symbols and not others, others[:5])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, required=True, help="folder of Meson")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is built")
    options = parser.parse_args()
    cases, build = Cases(), options.build.resolve()
    if shutil.which("cmake") is None:
        cases.skip("the CMake project", "there is no cmake")
        cases.finish()
    check(cases, "archive", build, options.work.resolve())
    check(cases, "shared", build, options.work.resolve(), "-DBUILD_SHARED_LIBS=ON")
    cases.finish()


if __name__ == "__main__":
    main()
