#!/usr/bin/env python3
"""Tests of the Rust bindings.

They are format, lints and documentation; the crates' own tests, and what must not compile; faults
that a preloaded stub brings about; libraries that must be refused; and the README's example as a
user would build it.

Needs cargo; clippy, rustfmt and a nightly Miri where they are there. Everything that is built goes
below --work. The last line is the count.
"""

import argparse
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests" / "abi"), str(ROOT / "packages")]
from cases import Cases  # noqa: E402
from version import version as project_version  # noqa: E402

CRATE = HERE / "fastnorm"
COMPILE_FAIL = CRATE / "tests" / "compile_fail"
NCCL_STUB = ROOT / "tests" / "nccl" / "library_stub.c"
STUB = CRATE / "tests" / "preload" / "stub.cpp"
# What the crate `fastnorm` has by another way than the name in the C ABI.
OTHERWISE = {
    "FASTNORM_QUANT_NONE": "a Norm without a Quant",
    "FASTNORM_PROFILE_INSTANT": "what is neither begin nor end",
    "fastnorm_profile_id": "ProfileId has the number, and the library's name for it",
}


class Session:
    """Where things are, how commands run, and the count."""

    def __init__(self, options):
        self.cases = Cases()
        self.work = options.work.resolve()
        self.target = self.work / "target"
        self.library_dir = options.library_dir.resolve()
        self.nccl_dir = options.nccl_dir and options.nccl_dir.resolve()
        folders = [self.library_dir, *([self.nccl_dir] if self.nccl_dir else [])]
        empty = self.work / "empty"
        empty.mkdir(parents=True, exist_ok=True)
        # PKG_CONFIG_LIBDIR replaces the system's folders: no other fastnorm.pc can be found.
        self.env = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("PKG_CONFIG", "RUSTFLAGS", "RUSTDOCFLAGS"))
        }
        self.env.update(
            PKG_CONFIG_PATH=str(options.pkgconfig.resolve()),
            PKG_CONFIG_LIBDIR=str(empty),
            LD_LIBRARY_PATH=":".join(map(str, folders)),
            CARGO_TARGET_DIR=str(self.target),
            CARGO_TERM_COLOR="never",
        )
        if options.fake_nccl:
            self.env["FASTNORM_TEST_NCCL"] = str(options.fake_nccl.resolve())

    def run(self, command, cwd=HERE, **env):
        shown = (
            " ".join(str(c) for c in command).replace(f"{ROOT}/", "").replace(f"{self.work}/", "")
        )
        print("+", shown if len(shown) <= 110 else f"{shown[:50]} .. {shown[-56:]}", flush=True)
        result = subprocess.run(
            [str(c) for c in command],
            cwd=cwd,
            env={**self.env, **env},
            text=True,
            errors="replace",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return result.returncode, result.stdout

    def check(self, name, command, **options):
        """One case: the command ends well. Its output, or None."""
        code, text = self.run(command, **options)
        return (
            text if self.cases.check(name, code == 0, f"exit code {code}\n{text[-6000:]}") else None
        )


# --- is there a Rust that will do ---


def version_of(command):
    try:
        text = subprocess.run(command, capture_output=True, text=True).stdout
    except OSError:
        return None
    found = re.search(r"(\d+)\.(\d+)\.\d+", text)
    return found and (int(found[1]), int(found[2]))


def unfit_toolchain():
    """Why there is no testing with the Rust of this machine; None if there is."""
    needed = re.search(r'^rust-version = "(\d+)\.(\d+)"', (HERE / "Cargo.toml").read_text(), re.M)
    needed = (int(needed[1]), int(needed[2]))
    for tool in ("cargo", "rustc"):
        found = version_of([tool, "--version"])
        if found is None:
            return f"no {tool} here; Rust {needed[0]}.{needed[1]} or later is needed"
        if found < needed:
            return f"{tool} is {found[0]}.{found[1]}; {needed[0]}.{needed[1]} or later is needed"
    return None


# --- the parts ---


def check_generated(s):
    if not (ROOT / ".venv" / "bin" / "swig").exists():
        s.cases.skip("generated files", "no swig in .venv (tools/setup installs it)")
        return
    s.check(
        "ffi.rs, nccl.rs and fields.rs are what generate.py writes",
        [
            sys.executable,
            "-B",
            ROOT / "bindings" / "swig" / "generate.py",
            "--check",
            "--only",
            "rust",
            "rust_safe",
        ],
    )


def check_complete(s):
    """The crate uses every function and value of an enum that fastnorm-sys declares. Fields are the
    generator's affair: it stops at one that has no setter."""
    declared = "".join(
        (HERE / "fastnorm-sys" / "src" / name).read_text() for name in ("ffi.rs", "nccl.rs")
    )
    names = [(name, name) for name in re.findall(r"^    pub fn (fastnorm_\w+)\(", declared, re.M)]
    # Functions of the library that is found at run time are fields of a struct.
    loaded = re.findall(r"^    pub (fastnorm_nccl_\w+):", declared, re.M)
    names += [(name, name) for name in loaded]
    names += re.findall(r"^pub const (FASTNORM_\w+): (fastnorm_\w+) =", declared, re.M)
    names = [(name, kind) for name, kind in names if not name.endswith("_MAX_ENUM")]
    sources = "".join(
        p.read_text().split("#[cfg(test)]\nmod tests")[0] for p in (CRATE / "src").rglob("*.rs")
    )
    used = set(re.findall(r"\bsys::(\w+)", sources))
    used.update(re.findall(r"\b0\.(fastnorm_nccl_\w+)", sources))
    for names_of_calls in re.findall(r"^\s*calls! \{(.*?)\}", sources, re.M | re.S):
        used.update(re.findall(r"\w+", names_of_calls))  # the macro puts sys:: before them
    s.cases.check("names of the C ABI were found", len(names) > 150, len(names))
    for name, kind in names:
        if name not in OTHERWISE and kind not in OTHERWISE:
            s.cases.check(
                f"{name} has a Rust layer", name in used, "no source of the crate uses it"
            )


def check_format(s):
    if version_of(["rustfmt", "--version"]) is None:
        s.cases.skip("rustfmt", "not installed")
        return
    s.check("cargo fmt", ["cargo", "fmt", "--all", "--check"])
    s.check(
        "rustfmt of what is no part of the workspace",
        [
            "rustfmt",
            "--check",
            "--edition",
            "2021",
            HERE / "bindgen-check" / "src" / "main.rs",
            *sorted(COMPILE_FAIL.glob("*.rs")),
        ],
    )


def check_lints(s):
    if version_of(["cargo", "clippy", "--version"]) is None:
        s.cases.skip("clippy", "not installed")
        return
    s.check(
        "clippy",
        ["cargo", "clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"],
    )


def check_docs(s):
    s.check(
        "documentation without warnings",
        ["cargo", "doc", "--locked", "--workspace", "--no-deps"],
        RUSTDOCFLAGS="-D warnings",
    )


def count_tests(s, name, code, text):
    """The tests of every program that libtest ran, from its own lines."""
    found = re.findall(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", text, re.M)
    passed, failed, ignored = (sum(int(line[i]) for line in found) for i in range(3))
    s.cases.passed += passed
    if failed or code != 0 or not passed:
        s.cases.failed += max(failed, 1)
        print(f"FAIL {name}: exit code {code}\n{text[-8000:]}")
    for _ in range(ignored):
        s.cases.skip(name, "ignored")
    print(f"  {name}: {passed} passed, {failed} failed, {ignored} ignored", flush=True)


def run_tests(s):
    if "FASTNORM_TEST_NCCL" not in s.env:
        s.cases.skip("tests of NCCL", "--fake-nccl names no library that pretends to be it")
    code, text = s.run(["cargo", "test", "--locked", "--workspace", "--no-fail-fast"])
    count_tests(s, "cargo test", code, text)


def check_miri(s):
    """What the crates do before and after they call the library, under Miri: it calls no foreign
    functions."""
    if version_of(["cargo", "+nightly", "miri", "--version"]) is None:
        s.cases.skip(
            "miri",
            "not installed; `rustup component add --toolchain nightly miri rust-src` brings it to a nightly toolchain",
        )
        return
    code, text = s.run(
        ["cargo", "+nightly", "miri", "test", "--locked", "--workspace", "--lib"],
        CARGO_TARGET_DIR=str(s.work / "miri"),
    )
    count_tests(s, "miri", code, text)


def artifacts(s):
    """The compiled library of the crate `fastnorm`, and its test programs that run in other ways,
    too."""
    command = [
        "cargo",
        "test",
        "--locked",
        "-p",
        "fastnorm",
        "--test",
        "preload",
        "--test",
        "device",
        "--test",
        "nccl_library",
        "--no-run",
        "--message-format=json",
    ]
    result = subprocess.run(command, cwd=HERE, env=s.env, capture_output=True, text=True)
    library, programs = None, {}
    for line in result.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") != "compiler-artifact":
            continue
        target = message["target"]
        if message["executable"]:
            programs[target["name"]] = Path(message["executable"])
        elif target["name"] == "fastnorm":
            library = next(Path(f) for f in message["filenames"] if f.endswith(".rlib"))
    return library, programs


def run_on_gpu(s, program):
    """The cases of tests/device.rs, which have run on the CPU, on a GPU."""
    count = ctypes.c_int32()
    ctypes.CDLL(str(s.library_dir / "libfastnorm.so.1")).fastnorm_device_count(
        2, ctypes.byref(count)
    )
    if count.value == 0:
        s.cases.skip("tests on a GPU", "no CUDA device, or a libfastnorm without CUDA")
        return
    code, text = s.run([program], FASTNORM_TEST_DEVICE="cuda")
    count_tests(s, "tests on a GPU", code, text)


def check_compile_fail(s, library):
    """Each file fails with the error it names, and compiles with what --cfg fixed changes."""
    files = sorted(COMPILE_FAIL.glob("*.rs"))
    s.cases.check("there are files that must not compile", len(files) >= 10)
    out = s.work / "compile_fail"
    out.mkdir(exist_ok=True)
    for path in files:
        wanted = re.match(r"// error: (E\d{4})\n", path.read_text())[1]
        command = [
            "rustc",
            "--edition",
            "2021",
            "--emit=metadata",
            "--out-dir",
            out,
            "--check-cfg",
            "cfg(fixed)",
            "--extern",
            f"fastnorm={library}",
            "-L",
            f"dependency={s.target / 'debug' / 'deps'}",
            path,
        ]
        code, text = s.run(command)
        errors = set(re.findall(r"^error\[(E\d{4})\]", text, re.M))
        s.cases.check(
            f"{path.stem} does not compile",
            code != 0 and errors == {wanted},
            f"found {sorted(errors)}, required {wanted}\n{text}",
        )
        s.check(f"{path.stem}, corrected", [*command, "--cfg", "fixed"])


def run_with_stub(s, program):
    compiler = shutil.which("c++")
    if compiler is None:
        s.cases.skip("tests with a preloaded stub", "no C++ compiler")
        return
    stub = s.work / "libfastnorm_stub.so"
    if (
        s.check(
            "the stub compiles",
            [
                compiler,
                "-shared",
                "-fPIC",
                "-O1",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-fvisibility=hidden",
                f"-I{ROOT / 'include'}",
                STUB,
                "-o",
                stub,
                "-ldl",
            ],
        )
        is None
    ):
        return
    for name, arguments, env in (
        ("faults", [], {}),
        ("an older library", ["versions_that_fit"], {"FASTNORM_STUB_VERSION": "9"}),
        ("a newer library", ["versions_that_fit"], {"FASTNORM_STUB_VERSION": "990000"}),
    ):
        code, text = s.run([program, "--nocapture", *arguments], LD_PRELOAD=str(stub), **env)
        count_tests(s, name, code, text)


def run_without_nccl(s, program):
    """A libfastnorm_nccl that is missing, and libraries of its name that do not fit."""
    if s.nccl_dir is None:
        s.cases.skip("a missing libfastnorm_nccl", "--nccl-dir names none to load at the end")
        return
    stubs = s.work / "nccl_stubs"
    stubs.mkdir(exist_ok=True)
    for name, flags in (("other.so", []), ("part.so", ["-DWITHOUT_LAST_ERROR"])):
        command = ["cc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", *flags]
        s.check(f"{NCCL_STUB.name} compiles to {name}", [*command, NCCL_STUB, "-o", stubs / name])
    code, text = s.run(
        [program],
        LD_LIBRARY_PATH=str(s.library_dir),
        NCCL_STUBS=str(stubs),
        FASTNORM_TEST_NCCL_LIBRARY=str(s.nccl_dir / "libfastnorm_nccl.so.1"),
    )
    count_tests(s, "a missing libfastnorm_nccl", code, text)


def fake_library(s, name, version, files):
    """A folder with a fastnorm.pc of that version and empty files."""
    folder = s.work / "fake" / name
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        (folder / file).touch()
    (folder / "fastnorm.pc").write_text(
        f"Name: fastnorm\nDescription: none\nVersion: {version}\n" f"Libs: -L{folder} -lfastnorm\n"
    )
    return folder


def check_refused(s):
    """What build.rs says of libraries that do not fit, and where there is none."""
    for name, folder, feature, wanted in (
        (
            "an older library",
            fake_library(s, "older", "0.0.9", ["libfastnorm.so", "libfastnorm.so.1"]),
            [],
            f"needs libfastnorm {project_version()} or later",
        ),
        (
            "a library of another ABI",
            fake_library(s, "other", "1.0.0", ["libfastnorm.so", "libfastnorm.so.2"]),
            [],
            "is for libfastnorm.so.1",
        ),
        (
            "no archive",
            fake_library(
                s, "shared", project_version(), ["libfastnorm.so", "libfastnorm.so.1"]
            ),
            ["--features", "static"],
            "the feature `static` needs libfastnorm.a",
        ),
        ("no library", s.work / "empty", [], "whose folder must be in PKG_CONFIG_PATH"),
    ):
        code, text = s.run(
            ["cargo", "build", "--locked", "-p", "fastnorm-sys", *feature],
            PKG_CONFIG_PATH=str(folder),
            CARGO_TARGET_DIR=str(s.work / "refused"),
        )
        s.cases.check(
            f"{name} is refused", code != 0 and wanted in text, f"exit code {code}\n{text}"
        )


def run_consumer(s, static):
    """The README's example, in a project of its own."""
    name = "consumer-static" if static else "consumer"
    folder = s.work / name
    (folder / "src").mkdir(parents=True, exist_ok=True)
    example = re.search(r"^```rust\n(.*?)^```", (HERE / "README.md").read_text(), re.M | re.S)
    if not s.cases.check("README.md has an example", example and "fn main" in example[1]):
        return
    (folder / "src" / "main.rs").write_text(example[1])
    feature = ', features = ["static"]' if static else ""
    (folder / "Cargo.toml").write_text(
        f'[package]\nname = "{name}"\nversion = "0.0.0"\nedition = "2021"\n\n[workspace]\n\n'
        f'[dependencies]\nfastnorm = {{ path = "{CRATE}"{feature} }}\n'
    )
    shutil.copy(HERE / "Cargo.lock", folder / "Cargo.lock")
    if s.check(f"{name} builds", ["cargo", "build", "--offline"], cwd=folder) is None:
        return
    program = s.target / "debug" / name
    env = {"LD_LIBRARY_PATH": ""} if static else {}
    printed = s.check(f"{name} runs", [program], **env)
    s.cases.check(
        f"{name} prints the result", printed and printed.startswith("[1.200, 3.200, 0.000"), printed
    )
    code, needed = s.run(["readelf", "-d", program])
    s.cases.equal(f"{name} needs libfastnorm.so.1", "libfastnorm.so.1" in needed, not static)


def check_bindgen(s):
    """The generated declarations against those that bindgen makes of the same headers."""
    folder = HERE / "bindgen-check"
    code, text = s.run(
        [
            "cargo",
            "run",
            "--locked",
            "--manifest-path",
            folder / "Cargo.toml",
            "--",
            ROOT / "include",
            HERE / "fastnorm-sys" / "src" / "ffi.rs",
        ],
        CARGO_TARGET_DIR=str(s.work / "bindgen"),
    )
    closing = re.search(r"^(\d+) passed, (\d+) failed, 0 skipped$", text, re.M)
    if s.cases.check("bindgen-check", code == 0 and closing, f"exit code {code}\n{text[-6000:]}"):
        s.cases.passed += int(closing[1]) - 1


def source_files():
    return {
        str(p): p.stat().st_mtime_ns
        for p in HERE.rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pkgconfig", type=Path, required=True, help="folder of fastnorm.pc")
    parser.add_argument(
        "--library-dir", type=Path, required=True, help="folder of libfastnorm.so.1"
    )
    parser.add_argument("--nccl-dir", type=Path, help="folder of libfastnorm_nccl.so.1")
    parser.add_argument("--fake-nccl", type=Path, help="the libnccl.so.2 of tests/nccl")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is built")
    parser.add_argument(
        "--consumer",
        action="store_true",
        help="only the README's example, such as against an installed library",
    )
    parser.add_argument(
        "--bindgen",
        action="store_true",
        help="also compare with bindgen: a minute more to compile it; needs libclang",
    )
    options = parser.parse_args()
    s = Session(options)
    reason = unfit_toolchain()
    if reason:
        s.cases.skip("Rust bindings", reason)
        s.cases.finish()
    if options.consumer:
        if s.check("the crates' dependencies", ["cargo", "fetch", "--locked"]) is not None:
            run_consumer(s, static=False)
        s.cases.finish()
    before = source_files()
    check_generated(s)
    check_complete(s)
    check_format(s)
    if s.check("the crates' dependencies", ["cargo", "fetch", "--locked"]) is not None:
        run_tests(s)
        check_miri(s)
        library, programs = artifacts(s)
        if s.cases.check(
            "the crate and its tests are built",
            library and {"preload", "device", "nccl_library"} <= set(programs),
        ):
            check_compile_fail(s, library)
            run_with_stub(s, programs["preload"])
            run_without_nccl(s, programs["nccl_library"])
            run_on_gpu(s, programs["device"])
        check_refused(s)
        run_consumer(s, static=False)
        if (s.library_dir / "libfastnorm.a").exists():
            run_consumer(s, static=True)
        else:
            s.cases.skip(
                "static linking",
                "this libfastnorm has no archive (-Ddefault_library=both makes one)",
            )
        check_lints(s)
        check_docs(s)
        if options.bindgen:
            check_bindgen(s)
    changed = sorted(set(before.items()) ^ set(source_files().items()))
    s.cases.equal(
        "files of the source tree that are new or changed", [name for name, _ in changed], []
    )
    s.cases.finish()


main()
