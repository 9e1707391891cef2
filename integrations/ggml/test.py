#!/usr/bin/env python3
"""Builds ggml's CPU backend with the patch and compares its norms with and without libfastnorm.
The last line is the count. Sources of ggml come with a package for Rust, which Cargo fetches.

    integrations/ggml/test.py --build build-test/native --work build-test/ggml
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "tests" / "abi"), str(HERE.parent)]
from cases import Cases, output_of  # noqa: E402
from figures import with_table  # noqa: E402

PACKAGE = ("llama-cpp-sys-2", "0.1.161")  # with ggml 0.26.0
LINE = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.M)


def sources(work):
    """ggml's sources, patched. The folder of the package stays as it is."""
    name, version = PACKAGE
    folder = work / "package"
    (folder / "src").mkdir(parents=True, exist_ok=True)
    (folder / "src" / "lib.rs").write_text("")
    (folder / "Cargo.toml").write_text(
        '[package]\nname = "sources"\nversion = "0.0.0"\nedition = "2021"\n\n[workspace]\n\n'
        f'[dependencies]\n{name} = {{ version = "={version}", default-features = false }}\n'
    )
    found = json.loads(output_of(["cargo", "metadata", "--quiet", "--format-version", "1",
                                  "--manifest-path", folder / "Cargo.toml"]))
    package = next(p for p in found["packages"] if p["name"] == name)
    original = Path(package["manifest_path"]).parent / "llama.cpp" / "ggml"
    patched, stamp = work / "ggml", work / "patched"
    patch = (HERE / "ggml.patch").read_text()
    wanted = f"{original}\n{patch}"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(patched, ignore_errors=True)
        shutil.copytree(original, patched)
        output_of(["patch", "-p1", "--quiet", "-i", HERE / "ggml.patch"], cwd=patched)
        stamp.write_text(wanted)
    return patched


def build(work, library):
    """The test program. ccache keeps what is compiled."""
    folder = work / "build"
    environ = {**os.environ, "CCACHE_BASEDIR": str(work)}
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    output_of(
        ["cmake", *generator, "-S", HERE / "test", "-B", folder, "-DCMAKE_BUILD_TYPE=Release",
         f"-DGGML_SOURCE={sources(work)}", f"-DFASTNORM_LIBRARY={library}"],
        env=environ,
    )
    output_of(["cmake", "--build", folder, "--target", "norm_test", "--parallel", "2"],
              env=environ)
    return folder / "norm_test"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, required=True, help="folder of Meson")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is built")
    options = parser.parse_args()
    work, cases = options.work.resolve(), Cases()
    work.mkdir(parents=True, exist_ok=True)
    missing = [name for name in ("cargo", "cmake", "patch") if shutil.which(name) is None]
    if missing:
        cases.skip("ggml", f"there is no {missing[0]} to get and build its sources with")
        cases.finish()
    library = (options.build / "src" / "libfastnorm.so").resolve()
    program = build(work, library)
    result = subprocess.run([program], capture_output=True, text=True)
    print(result.stdout + result.stderr, end="")
    line = LINE.search(result.stdout)
    if cases.check("the program ends with a count", line, f"it ended with {result.returncode}"):
        passed, failed, skipped = map(int, line.groups())
        cases.passed, cases.failed, cases.skipped = (
            cases.passed + passed, cases.failed + failed, cases.skipped + skipped)
        cases.equal("its exit status", result.returncode, 1 if failed else 0)
    import bench

    page = HERE / "README.md"
    cases.check("figures of README.md", with_table(page, bench.table()) == page.read_text(),
                "other ones than in bench/results/ggml_cpu.csv")
    cases.finish()


if __name__ == "__main__":
    main()
