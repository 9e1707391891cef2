#!/usr/bin/env python3
"""Tests of libfastnorm_onnxruntime.so with ONNX Runtime from PyPI: the newest version and the
oldest one that serves, each in an environment of its own. The last line is the count.

    integrations/onnxruntime/test.py --build build-test/native --work build-test/onnxruntime
"""

import argparse
import hashlib
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
sys.path.insert(0, str(ROOT / "tests" / "abi"))
from cases import Cases, output_of  # noqa: E402

LINE = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.M)
# A binding for Rust, which has the whole C interface and is written independently of this one.
BINDING = ("ort-sys", "2.0.0-rc.15", ["api-24"])


def environment(work, requirements):
    """A Python with what the file lists. It is made anew where the list has changed."""
    folder = work / requirements.stem
    stamp, wanted = folder / "made", hashlib.sha256(requirements.read_bytes()).hexdigest()
    python = folder / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        output_of([sys.executable, "-m", "venv", folder])
        output_of([python, "-m", "pip", "install", "--quiet", "--no-deps", "-r", requirements])
        stamp.write_text(wanted)
    return python


def count(cases, name, result):
    """Adds a suite's count."""
    print(f"{name}:\n{result.stdout}{result.stderr}", end="")
    line = LINE.search(result.stdout)
    if not line:
        cases.check(f"{name} ends with a count", False, f"it ended with {result.returncode}")
        return
    passed, failed, skipped = map(int, line.groups())
    cases.passed += passed
    cases.failed += failed
    cases.skipped += skipped
    cases.equal(f"{name}: exit status", result.returncode, 1 if failed else 0)


def binding_source(work):
    """The text of the binding, from the package that Cargo fetches; None without Cargo."""
    if shutil.which("cargo") is None:
        return None
    name, version, features = BINDING
    folder = work / "binding"
    (folder / "src").mkdir(parents=True, exist_ok=True)
    (folder / "src" / "lib.rs").write_text("")
    (folder / "Cargo.toml").write_text(
        '[package]\nname = "binding"\nversion = "0.0.0"\nedition = "2021"\n\n[workspace]\n\n'
        f'[dependencies]\n{name} = {{ version = "={version}", default-features = false, '
        f"features = {json.dumps(features)} }}\n"
    )
    manifest = ["--manifest-path", folder / "Cargo.toml"]
    found = json.loads(output_of(["cargo", "metadata", "--quiet", "--format-version", "1",
                                  *manifest]))
    package = next(p for p in found["packages"] if p["name"] == name)
    return (Path(package["manifest_path"]).parent / "src" / "lib.rs").read_text()


def members(text, struct):
    """Names of the members of a struct of Rust; those for other systems stand twice."""
    body = re.search(rf"pub struct {struct} \{{\n(.*?)\n\}}", text, re.S).group(1)
    return list(dict.fromkeys(re.findall(r"^\t+pub (\w+):", body, re.M)))


def check_interface(cases, work):
    """The places of ONNX Runtime's functions, and the members of an operator, in ort_api.h."""
    source = binding_source(work)
    if source is None:
        cases.skip("ONNX Runtime's C interface", "there is no cargo to fetch a binding with")
        return
    header = (HERE / "ort_api.h").read_text()
    places = {name: int(place) for name, place in re.findall(r"X\((\w+),\s*(\d+),", header)}
    theirs = members(source, "OrtApi")
    cases.check("functions were found", len(places) >= 30 and len(theirs) > 400)
    for name, place in places.items():
        cases.equal(f"ort_api.h: the place of {name}", place, theirs.index(name))
    body = re.search(r"struct OrtCustomOp \{\n(.*?)\n\};", header, re.S).group(1)
    ours = re.findall(r"\(\*(\w+)\)\(|uint32_t (\w+);", body)
    cases.equal("ort_api.h: OrtCustomOp", [a or b for a, b in ours],
                members(source, "OrtCustomOp"))


def check_page(cases, python, environ):
    """The programs of README.md, and its figures, which bench.py writes."""
    text = (HERE / "README.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", text, re.M | re.S)
    cases.check("README.md has programs", programs)
    for i, (program, printed) in enumerate(programs):
        result = subprocess.run([python, "-c", program], capture_output=True, text=True,
                                env=environ)
        cases.equal(f"program {i} of README.md", result.stdout, printed or "")
        cases.check(f"program {i} of README.md ends well", result.returncode == 0, result.stderr)
    result = subprocess.run([python, HERE / "bench.py", "--check"], capture_output=True, text=True,
                            env=environ)
    cases.check("figures of README.md", result.returncode == 0, result.stdout + result.stderr)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, required=True, help="folder of Meson")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is installed")
    options = parser.parse_args()
    work, cases = options.work.resolve(), Cases()
    work.mkdir(parents=True, exist_ok=True)
    build = options.build.resolve()
    library = build / "integrations" / "onnxruntime" / "libfastnorm_onnxruntime.so"
    if not library.exists():
        cases.skip("the operators", f"{library} is not built; -Donnxruntime=true builds it")
        cases.finish()
    environ = {
        **os.environ,
        "FASTNORM_LIBRARY": str(build / "src" / "libfastnorm.so.1"),
        "FASTNORM_ONNXRUNTIME_LIBRARY": str(library),
        "PYTHONPATH": str(ROOT / "packages" / "python"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    check_interface(cases, work)
    newest = None
    for requirements in ("requirements.txt", "requirements-oldest.txt"):
        python = environment(work, HERE / requirements)
        newest = newest or python
        version = output_of([python, "-c", "import onnxruntime as o; print(o.__version__)"])
        result = subprocess.run([python, HERE / "suite.py"], capture_output=True, text=True,
                                env=environ)
        count(cases, f"ONNX Runtime {version.strip()}", result)
    check_page(cases, newest, environ)
    cases.finish()


if __name__ == "__main__":
    main()
