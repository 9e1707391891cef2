#!/usr/bin/env python3
"""A user's view: programs in C and C++, and the example of the README. They compile and run with
pkg-config's flags alone, and with what CMake finds in a copy of the installation."""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "abi"), str(ROOT / "packages")]
from cases import Cases  # noqa: E402
from version import version as project_version  # noqa: E402

HEADERS = {p.name for p in (ROOT / "include" / "fastnorm").iterdir()}
NCCL_HEADERS = {p.name for p in (ROOT / "src" / "nccl" / "include" / "fastnorm").iterdir()}


class Consumer:
    def __init__(self, cases, pkgconfig, work):
        self.cases, self.work = cases, work
        # PKG_CONFIG_LIBDIR replaces the system's folders: no other fastnorm.pc can be found.
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("PKG_CONFIG")}
        self.env["PKG_CONFIG_LIBDIR"] = str(pkgconfig)
        work.mkdir(parents=True, exist_ok=True)

    def run(self, name, command, env=None):
        result = subprocess.run(
            [str(c) for c in command], capture_output=True, text=True, env=env or self.env
        )
        self.cases.check(
            name,
            result.returncode == 0,
            f"exit code {result.returncode}\n{result.stdout}{result.stderr}",
        )
        return result.stdout if result.returncode == 0 else None

    def pkg_config(self, *options, package="fastnorm"):
        shown = " ".join([*options, *([package] if package != "fastnorm" else [])])
        return (self.run(f"pkg-config {shown}", ["pkg-config", *options, package]) or "").split()

    def build_and_run(self, name, source, compiler, package="fastnorm"):
        """The printed text of the program, or None."""
        flags = self.pkg_config("--cflags", package=package)
        libs = self.pkg_config("--libs", package=package)
        program = self.work / name
        built = self.run(
            f"{name} compiles",
            [*compiler, "-Wall", "-Wextra", "-Werror", *flags, source, "-o", program, *libs, "-lm"],
        )
        if built is None:
            return None
        folders = [lib[2:] for lib in libs if lib.startswith("-L")]
        env = {**self.env, "LD_LIBRARY_PATH": ":".join(folders)}
        return self.run(f"{name} runs", [program], env)


def check_archive(consumer):
    """Linked whole into a C program, with what pkg-config says of the archive and nothing else."""
    libs = consumer.pkg_config("--static", "--libs")
    program = consumer.work / "consumer_static"
    built = consumer.run(
        "consumer_static compiles",
        [
            "cc",
            "-std=c99",
            "-static",
            *consumer.pkg_config("--cflags"),
            ROOT / "pkgconfig" / "consumer.c",
            "-o",
            program,
            *libs,
        ],
    )
    if built is not None:
        consumer.run("consumer_static runs", [program])


CMAKE_PROJECT = """cmake_minimum_required(VERSION 3.19)
project(consumer C CXX)
find_package(fastnorm @ASKED@ CONFIG REQUIRED)
message(STATUS "found fastnorm ${fastnorm_VERSION} in ${fastnorm_DIR}")
add_executable(consumer_c consumer.c)
add_executable(consumer_cpp consumer.cpp)
foreach(name consumer_c consumer_cpp)
  target_link_libraries(${name} PRIVATE @TARGET@)
  if(NOT APPLE)
    target_link_libraries(${name} PRIVATE m)
  endif()
endforeach()
"""

NO_COMPILER = ("-DCMAKE_C_COMPILER_WORKS=1", "-DCMAKE_CXX_COMPILER_WORKS=1")  # it is not tried


def cmake_configure(consumer, name, prefix, target, asked, *options):
    """The build folder of a project that asks for this, and cmake's exit code and text."""
    source, build = consumer.work / name, consumer.work / name / "build"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    for suffix in ("c", "cpp"):
        shutil.copy(ROOT / "pkgconfig" / f"consumer.{suffix}", source)
    text = CMAKE_PROJECT.replace("@ASKED@", asked).replace("@TARGET@", target)
    (source / "CMakeLists.txt").write_text(text)
    result = subprocess.run(
        ["cmake", "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}", *options],
        capture_output=True,
        text=True,
        env=consumer.env,
    )
    return build, result.returncode, result.stdout + result.stderr


def check_cmake(cases, consumer, prefix, version):
    """find_package and its targets, in an installation that was moved; versions that it refuses."""
    if not cases.check("cmake is installed", shutil.which("cmake"), "tools/setup installs it"):
        return
    moved = consumer.work / "moved"
    shutil.rmtree(moved, ignore_errors=True)
    shutil.copytree(prefix, moved, symlinks=True)
    for path in sorted((moved / "lib" / "cmake" / "fastnorm").iterdir()):
        cases.check(
            f"{path.name} names no place of this machine",
            str(prefix) not in path.read_text()
            and "/usr" not in re.sub("#.*", "", path.read_text()),
        )
    archive = (moved / "lib" / "libfastnorm.a").exists()
    for target in ["fastnorm::fastnorm", *(["fastnorm::fastnorm_static"] if archive else [])]:
        name = f"cmake_{target.split(':')[-1]}"
        build, code, text = cmake_configure(consumer, name, moved, target, version)
        if not cases.check(
            f"find_package for {target}",
            code == 0 and f"found fastnorm {version} in {moved}/lib/cmake/" in text,
            text,
        ):
            continue
        if consumer.run(f"{name} builds", ["cmake", "--build", build]) is None:
            continue
        for program in ("consumer_c", "consumer_cpp"):
            printed = consumer.run(f"{name}: {program} runs", [build / program])
            cases.equal(f"{name}: {program} prints", printed, f"libfastnorm {version}\n")
            needed = consumer.run("readelf", ["readelf", "-d", build / program]) or ""
            cases.equal(
                f"{name}: {program} needs the shared library",
                "libfastnorm.so.1" in needed,
                target == "fastnorm::fastnorm",
            )
    major, minor, patch = map(int, version.split("."))
    accepted = (
        "",
        f"{major}.{minor}",
        f"{version} EXACT",
        f"{major}...{major}.{minor}",
        f"{major}.{minor}...<{major + 1}",
    )
    refused = (
        f"{major}.{minor + 1}",
        f"{major}.{minor}.{patch + 1}",
        f"{major + 1}",
        f"{major}.{minor}.{patch + 1} EXACT",
        f"{major}...<{version}",
        f"{version} COMPONENTS gpu",
    )
    for asked in accepted + refused:
        # A configuration alone: nothing is compiled for these.
        _, code, text = cmake_configure(
            consumer, "cmake_versions", moved, "fastnorm::fastnorm", asked, *NO_COMPILER
        )
        cases.equal(f"find_package(fastnorm {asked}) is refused", code != 0, asked in refused)
        if asked in refused:
            cases.check(
                f"the error of find_package(fastnorm {asked}) names what was found",
                version in text or "component gpu" in text,
                text,
            )
    # The archive needs threads; users of the shared library do not.
    _, code, text = cmake_configure(
        consumer,
        "cmake_needs",
        moved,
        "fastnorm::fastnorm",
        "",
        "-DCMAKE_DISABLE_FIND_PACKAGE_Threads=ON",
        *NO_COMPILER,
    )
    cases.check("the shared library is found without the archive's needs", code == 0, text)
    shutil.rmtree(moved / "include")
    _, code, text = cmake_configure(
        consumer, "cmake_headers", moved, "fastnorm::fastnorm", "", *NO_COMPILER
    )
    cases.check(
        "an installation without headers is refused with its reason",
        code != 0
        and "has the headers and a library; required: include/fastnorm/" in " ".join(text.split()),
        text,
    )


def check_libs(cases, consumer, archive):
    """Nothing private leaks: a user links -lfastnorm and includes one folder. What an archive needs
    is a matter of --static."""
    cases.equal(
        "Libs", [w for w in consumer.pkg_config("--libs") if not w.startswith("-L")], ["-lfastnorm"]
    )
    static = [w for w in consumer.pkg_config("--static", "--libs") if not w.startswith("-L")]
    if archive:
        static = [w for w in static if w not in ("-pthread", "-lstdc++", "-lm", "-ldl", "-lrt")]
    cases.equal("Libs --static", static, ["-lfastnorm"])
    others = [w for w in consumer.pkg_config("--cflags") if not w.startswith("-I")]
    cases.equal("Cflags", others, [])


def check_nccl(cases, consumer):
    """A program with libfastnorm_nccl."""
    for standard in ("11", "20"):
        printed = consumer.build_and_run(
            f"consumer_nccl{standard}",
            ROOT / "pkgconfig" / "consumer_nccl.cpp",
            ["c++", f"-std=c++{standard}", "-pedantic-errors"],
            package="fastnorm-nccl",
        )
        wanted = "FASTNORM_ERROR_ARGUMENT: comm is NULL; required: an ncclComm_t\n"
        cases.equal(f"consumer_nccl{standard} prints", printed, wanted)


def check_installed(cases, prefix, also, nccl, work):
    """What is installed: the headers that are public, the library's three names and what is built with it, the program, fastnorm.pc."""
    headers = {p.name for p in (prefix / "include" / "fastnorm").iterdir()}
    public = HEADERS | NCCL_HEADERS if nccl else HEADERS
    cases.equal("installed headers", sorted(headers), sorted(public))
    library = prefix / "lib"
    names = sorted(p.name for p in library.iterdir() if p.name.startswith("lib"))
    version = subprocess.run(
        ["pkg-config", "--modversion", "fastnorm"],
        capture_output=True,
        text=True,
        env={**os.environ, "PKG_CONFIG_LIBDIR": str(library / "pkgconfig")},
    ).stdout.strip()
    if nccl:
        name = "libfastnorm_nccl.so"
        also = [*also, name, f"{name}.1", f"{name}.{version}"]
    cases.equal(
        "installed library",
        names,
        sorted(["libfastnorm.so", "libfastnorm.so.1", f"libfastnorm.so.{version}", *also]),
    )
    # The program finds the library of its own installation, wherever that is moved to.
    moved = work / "moved"
    shutil.rmtree(moved, ignore_errors=True)
    for folder in ("bin", "lib"):
        shutil.copytree(prefix / folder, moved / folder, symlinks=True)
    env = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    for name, where in (("installed", prefix), ("moved", moved)):
        result = subprocess.run(
            [where / "bin" / "fastnorm", "info"], capture_output=True, text=True, env=env
        )
        cases.check(
            f"the program runs, {name}, without LD_LIBRARY_PATH",
            result.returncode == 0 and version in result.stdout,
            result.stdout + result.stderr,
        )
    everything = {
        str(p.relative_to(prefix)) for p in prefix.rglob("*") if p.is_file() or p.is_symlink()
    }
    expected = (
        {f"include/fastnorm/{h}" for h in public}
        | {f"lib/{n}" for n in names}
        | {
            "lib/pkgconfig/fastnorm.pc",
            "lib/cmake/fastnorm/fastnormConfig.cmake",
            "lib/cmake/fastnorm/fastnormConfigVersion.cmake",
            "bin/fastnorm",
        }
        | ({"lib/pkgconfig/fastnorm-nccl.pc"} if nccl else set())
    )
    unexpected = {name for name in everything - expected if not name.startswith("share/")}
    cases.equal("nothing else is installed", sorted(unexpected), [])


def readme_example(work):
    """The first C block of the README, as a file; None if there is none."""
    block = re.search(r"^```c\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    if block is None:
        return None
    path = work / "readme_example.c"
    path.write_text(block[1])
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pkgconfig", type=Path, required=True, help="folder of fastnorm.pc")
    parser.add_argument("--prefix", type=Path, help="installation to look at")
    parser.add_argument(
        "--also",
        nargs="*",
        default=[],
        metavar="NAME",
        help="libraries that are installed beside it",
    )
    parser.add_argument("--nccl", action="store_true", help="libfastnorm_nccl is there, too")
    parser.add_argument("--archive", action="store_true", help="libfastnorm.a is there, too")
    parser.add_argument("--static", action="store_true", help="the archive alone")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is built")
    options = parser.parse_args()
    cases = Cases()
    consumer = Consumer(cases, options.pkgconfig, options.work)
    if options.static:
        check_archive(consumer)
        if options.prefix:
            check_cmake(cases, consumer, options.prefix, project_version())
        cases.finish()
        return
    check_libs(cases, consumer, options.archive)
    if options.prefix:
        also = [*options.also, *(["libfastnorm.a"] if options.archive else [])]
        check_installed(cases, options.prefix, also, options.nccl, options.work)
        check_cmake(cases, consumer, options.prefix, project_version())
    source = ROOT / "pkgconfig" / "consumer"
    consumer.build_and_run(
        "consumer_c", source.with_suffix(".c"), ["cc", "-std=c99", "-pedantic-errors"]
    )
    for standard in ("11", "14", "17", "20"):
        consumer.build_and_run(
            f"consumer_cpp{standard}",
            source.with_suffix(".cpp"),
            ["c++", f"-std=c++{standard}", "-pedantic-errors"],
        )
    if options.nccl:
        check_nccl(cases, consumer)
    example = readme_example(options.work)
    if cases.check("README.md has a C example", example):
        printed = consumer.build_and_run(
            "readme_example", example, ["cc", "-std=c99", "-pedantic-errors"]
        )
        cases.check("the README's example prints something", printed)
    cases.finish()


main()
