#!/usr/bin/env python3
"""Tests of the Go bindings against a built libfastnorm.

They are format, vet and staticcheck; the Go tests, alone, under the race detector and with cgo's
strictest checks; the README's program as a user builds it; the decoder of words and the generator.

  test.py --pkgconfig DIR --library-dir DIR --work DIR [--nccl-dir DIR --fake-nccl FILE]
"""

import argparse
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "abi"))
sys.dont_write_bytecode = True
from cases import Cases  # noqa: E402

STATICCHECK = "honnef.co/go/tools/cmd/staticcheck@v0.8.0"


def cache_key(pkgconfig):
    """Go's build cache keeps what pkg-config once said of a library and does not ask again when the
    library has moved; C flags of its own make it a package of its own."""
    text = "".join(path.read_text() for path in sorted(pkgconfig.glob("fastnorm*.pc")))
    return f"-DFASTNORM_TEST_LIBRARY=0x{zlib.crc32(f'{pkgconfig}{text}'.encode()):x}"


class Go:
    def __init__(self, cases, options):
        self.cases, self.work = cases, options.work
        self.library_dir, self.nccl_dir = folders = (options.library_dir, options.nccl_dir)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("PKG_CONFIG", "CGO_"))}
        # PKG_CONFIG_LIBDIR replaces the system's folders: no other fastnorm.pc can be found.
        self.env.update(
            PKG_CONFIG_LIBDIR=str(options.pkgconfig),
            LD_LIBRARY_PATH=":".join(map(str, filter(None, folders))),
            CGO_ENABLED="1",
            GOTOOLCHAIN="local",
            GOWORK="off",
            GODEBUG="cgocheck=1",
            CGO_CPPFLAGS=cache_key(options.pkgconfig),
        )
        if options.fake_nccl:
            self.env["FASTNORM_TEST_NCCL"] = str(options.fake_nccl)

    def run(self, command, cwd=HERE, timeout=600, **env):
        start = time.monotonic()
        try:
            result = subprocess.run(
                [str(c) for c in command],
                cwd=cwd,
                env={**self.env, **env},
                text=True,
                timeout=timeout,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            code, text = result.returncode, result.stdout
        except subprocess.TimeoutExpired as stop:
            code, text = -1, (stop.stdout or b"").decode(errors="replace") + "\n(timeout)"
        print(
            f"{time.monotonic() - start:7.1f} s  {' '.join(str(c).replace(f'{self.work}/', '') for c in command)}",
            flush=True,
        )
        return code, text

    def check(self, name, command, **options):
        """One test: the command succeeds. Its text, or None."""
        code, text = self.run(command, **options)
        return (
            text if self.cases.check(name, code == 0, f"exit code {code}\n{text[-6000:]}") else None
        )

    def tests(self, name, binary, *flags, **env):
        """Runs a test binary and counts each test, subtest and example."""
        code, text = self.run([binary, "-test.v=test2json", "-test.timeout=300s", *flags], **env)
        events = subprocess.run(
            ["go", "tool", "test2json"], input=text, capture_output=True, text=True, env=self.env
        ).stdout
        reasons, output, counted = {}, {}, 0
        for line in events.splitlines():
            event = json.loads(line)
            test, action = event.get("Test", ""), event["Action"]
            if action == "output":
                output.setdefault(test, []).append(event["Output"])
                if not re.match(r"\s*(---|===)", event["Output"]):
                    reasons[test] = re.sub(r"^\s*\S+\.go:\d+: ", "", event["Output"]).strip()
            elif test and action == "skip":
                self.cases.skip(f"{name}: {test}", reasons.get(test, "no reason given"))
                counted += 1
            elif test and action in ("pass", "fail"):
                self.cases.check(
                    f"{name}: {test}", action == "pass", "".join(output.get(test, []))[-3000:]
                )
                counted += 1
        self.cases.check(
            f"{name}: ends well",
            code == 0 and counted > 0,
            f"exit code {code}, {counted} tests\n{text[-6000:]}",
        )


def go_version():
    """The Go that is there, as (major, minor); None if there is none."""
    if shutil.which("go") is None:
        return None
    text = subprocess.run(
        ["go", "env", "GOVERSION"],
        capture_output=True,
        text=True,
        env={**os.environ, "GOTOOLCHAIN": "local"},
        cwd="/",
    ).stdout
    match = re.match(r"go(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def needed_version():
    return tuple(
        map(int, re.search(r"^go (\d+)\.(\d+)", (HERE / "go.mod").read_text(), re.M).groups())
    )


def module():
    return re.search(r"^module (\S+)", (HERE / "go.mod").read_text(), re.M)[1]


def check_sources(go):
    files = sorted(str(p.relative_to(HERE)) for p in HERE.rglob("*.go"))
    text = go.check("gofmt runs", ["gofmt", "-l", *files])
    go.cases.equal("files that gofmt would change", text, "")
    imported = {
        p
        for f in files
        for p in re.findall(r'"(\S*/bindings/go)(?:/\S*)?"', (HERE / f).read_text())
    }
    go.cases.equal("module path of the imports", imported, {module()})
    go.cases.check(
        "the README imports the module", f'"{module()}"' in (HERE / "README.md").read_text()
    )
    vetted = [".", "./internal/direct", "./internal/gpu", "./internal/fakenccl"]
    go.check("go vet", ["go", "vet", *vetted])
    # SWIG turns C's addresses into pointers.
    go.check("go vet of raw", ["go", "vet", "-unsafeptr=false", "./internal/raw"])
    code, text = go.run(["go", "build", "."], CGO_ENABLED="0")
    go.cases.check(
        "without cgo the compiler says what is required",
        code != 0 and "libfastnorm for Go calls C; required: CGO_ENABLED=1 and a C" in text,
        f"exit code {code}\n{text}",
    )


def check_static(go):
    code, text = go.run(["go", "run", STATICCHECK, "./..."])
    if code != 0 and re.search(
        r"dial tcp|proxyconnect|no such host|i/o timeout|lookup disabled|Forbidden|Service Unavailable",
        text,
    ):
        go.cases.skip("staticcheck", "the module proxy cannot be reached")
    else:
        go.cases.check(f"staticcheck ({STATICCHECK.split('@')[1]})", code == 0, text)


def check_gpu(go, binary):
    """The cases of device_test.go, which have run on the CPU, on a GPU."""
    count = ctypes.c_int32()
    ctypes.CDLL(str(go.library_dir / "libfastnorm.so.1")).fastnorm_device_count(
        2, ctypes.byref(count)
    )
    if count.value == 0:
        go.cases.skip("tests on a GPU", "no CUDA device, or a libfastnorm without CUDA")
        return
    go.tests("tests on a GPU", binary, "-test.run=^TestDevice", FASTNORM_TEST_DEVICE="cuda")


def check_tests(go):
    plain = go.work / "fastnorm.test"
    if go.check("tests compile", ["go", "test", "-c", "-o", plain, "."]) is None:
        return
    go.tests("tests", plain, "-test.skip=^TestFaults$|^TestNCCLMissing$")
    go.tests(
        "tests, memory reused at once",
        plain,
        "-test.short",
        "-test.run=Goroutines|Clos|Log|Many|Forgotten|Workspace|Malformed|NCCL",
        "-test.skip=^TestNCCLMissing$",
        GOGC="1",
        GODEBUG="clobberfree=1,cgocheck=1",
    )
    check_gpu(go, plain)
    faults = go.work / "faults.so"
    flags = subprocess.run(
        ["pkg-config", "--cflags", "fastnorm"], env=go.env, capture_output=True, text=True
    ).stdout.split()
    built = go.check(
        "faults.c compiles",
        [
            "cc",
            "-shared",
            "-fPIC",
            "-Wall",
            "-Wextra",
            "-Werror",
            *flags,
            HERE / "testdata" / "faults.c",
            "-o",
            faults,
        ],
    )
    if built is not None:
        go.tests(
            "a faulty library", plain, "-test.run=^TestFaults$", FAULTS="1", LD_PRELOAD=str(faults)
        )
    check_nccl_library(go, plain)
    text = go.check("benchmarks", [plain, "-test.run=^$", "-test.bench=.", "-test.benchtime=200x"])
    print("\n".join(line for line in (text or "").splitlines() if line.startswith("Benchmark")))
    # What these do not measure: allocations, and under the race detector the size of the process.
    for name, flags, env, unfit in (
        ("race detector", ["-race"], {}, "|^TestMillionCalls$"),
        ("cgocheck2", [], {"GOEXPERIMENT": "cgocheck2"}, ""),
    ):
        binary = go.work / f"{name.split()[0]}.test"
        if (
            go.check(
                f"tests compile, {name}", ["go", "test", "-c", *flags, "-o", binary, "."], **env
            )
            is not None
        ):
            go.tests(
                name,
                binary,
                "-test.short",
                f"-test.skip=^TestFaults$|^TestNCCLMissing$|Allocations${unfit}",
                **env,
            )


def check_nccl_library(go, binary):
    """libfastnorm_nccl where it is missing, and libraries of its name that do not fit."""
    if go.nccl_dir is None:
        go.cases.skip("a missing libfastnorm_nccl", "--nccl-dir names none to load at the end")
        return
    stubs = go.work / "nccl_stubs"
    stubs.mkdir(exist_ok=True)
    for name, flags in (("other.so", []), ("part.so", ["-DWITHOUT_LAST_ERROR"])):
        command = ["cc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", *flags]
        source = ROOT / "tests" / "nccl" / "library_stub.c"
        go.check(f"{source.name} compiles to {name}", [*command, source, "-o", stubs / name])
    go.tests(
        "a missing libfastnorm_nccl",
        binary,
        "-test.run=^TestNCCLMissing$",
        NCCL_STUBS=str(stubs),
        LD_LIBRARY_PATH=str(go.library_dir),
        FASTNORM_TEST_NCCL_LIBRARY=str(go.nccl_dir / "libfastnorm_nccl.so.1"),
    )


def check_consumer(go, options):
    """The README's program, as a user builds it: a module of its own, pkg-config, no network."""
    text = (HERE / "README.md").read_text()
    program = re.search(r"^```go\n(package main\n.*?)^```", text, re.M | re.S)
    printed = re.search(r"^```text\n(.*?)^```", text, re.M | re.S)
    if not go.cases.check("the README has a program and its output", program and printed):
        return
    folder = go.work / "consumer"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "main.go").write_text(program[1])
    major, minor = needed_version()
    (folder / "go.mod").write_text(
        f"module example.com/consumer\n\ngo {major}.{minor}\n\nrequire {module()} v0.0.0\n\n"
        f"replace {module()} => {HERE}\n"
    )
    env = {k: v for k, v in go.env.items() if k != "PKG_CONFIG_LIBDIR"}
    go.env, kept = {
        **env,
        "PKG_CONFIG_PATH": str(options.pkgconfig),
        "GOPROXY": "off",
        "GOFLAGS": "-mod=mod",
    }, go.env
    built = go.check(
        "the README's program compiles", ["go", "build", "-o", "consumer", "."], cwd=folder
    )
    if built is not None:
        found = go.check("the README's program runs", [folder / "consumer"], cwd=folder)
        go.cases.equal("what the README's program prints", found, printed[1])
    go.env = kept


def check_generator(go, name, *arguments):
    """A test program of the generators."""
    code, text = go.run([sys.executable, ROOT / "bindings" / "swig" / name, *arguments])
    lines = text.strip().splitlines()
    counts = re.fullmatch(r"(\d+) passed, (\d+) failed, (\d+) skipped", lines[-1] if lines else "")
    if not go.cases.check(f"{name} ends with its counts", counts, text):
        return
    print("\n".join(lines[:-1]))
    passed, failed, skipped = map(int, counts.groups())
    go.cases.passed, go.cases.failed, go.cases.skipped = (
        go.cases.passed + passed,
        go.cases.failed + failed,
        go.cases.skipped + skipped,
    )
    go.cases.check(f"{name} ends well", code in (0, 77) and failed == 0, text)


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
        help="only the README's program, such as against an installed library",
    )
    options = parser.parse_args()
    for name in ("pkgconfig", "library_dir", "nccl_dir", "fake_nccl", "work"):
        given = getattr(options, name)
        setattr(options, name, given and given.resolve())
    options.work.mkdir(parents=True, exist_ok=True)
    cases = Cases()
    found, needed = go_version(), needed_version()
    if found is None or found < needed:
        there = "there is no Go" if found is None else f"there is Go {found[0]}.{found[1]}"
        cases.skip("the Go bindings", f"{there}; they need {needed[0]}.{needed[1]} or later")
        cases.finish()
    go = Go(cases, options)
    if options.consumer:
        check_consumer(go, options)
        cases.finish()
    check_sources(go)
    check_tests(go)
    check_consumer(go, options)
    check_generator(go, "words_test.py", "--work", go.work / "words")
    check_generator(go, "go_test.py")
    check_static(go)
    cases.finish()


main()
