#!/usr/bin/env python3
"""A user's view: programs in C and C++, and the example of the README, compiled and run with what
pkg-config says and nothing else."""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "abi"))
from cases import Cases  # noqa: E402

HEADERS = {"context.h", "fastnorm.h", "fastnorm.hpp", "mla_decode.h", "norm.h", "norm_backward.h", "norm_heads.h", "norm_heads_backward.h", "status.h", "tensor.h", "version.h"}


class Consumer:
    def __init__(self, cases, pkgconfig, work):
        self.cases, self.work = cases, work
        # PKG_CONFIG_LIBDIR replaces the system's folders: no other fastnorm.pc can be found.
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("PKG_CONFIG")}
        self.env["PKG_CONFIG_LIBDIR"] = str(pkgconfig)
        work.mkdir(parents=True, exist_ok=True)

    def run(self, name, command, env=None):
        result = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=env or self.env)
        self.cases.check(name, result.returncode == 0,
                         f"exit code {result.returncode}\n{result.stdout}{result.stderr}")
        return result.stdout if result.returncode == 0 else None

    def pkg_config(self, *options):
        return (self.run(f"pkg-config {' '.join(options)}", ["pkg-config", *options, "fastnorm"]) or "").split()

    def build_and_run(self, name, source, compiler):
        """The printed text of the program, or None."""
        flags, libs = self.pkg_config("--cflags"), self.pkg_config("--libs")
        program = self.work / name
        built = self.run(f"{name} compiles", [*compiler, "-Wall", "-Wextra", "-Werror", *flags, source, "-o", program,
                                              *libs, "-lm"])
        if built is None:
            return None
        folders = [lib[2:] for lib in libs if lib.startswith("-L")]
        env = {**self.env, "LD_LIBRARY_PATH": ":".join(folders)}
        return self.run(f"{name} runs", [program], env)


def check_archive(consumer):
    """Linked whole into a C program, with what pkg-config says of the archive and nothing else."""
    libs = consumer.pkg_config("--static", "--libs")
    program = consumer.work / "consumer_static"
    built = consumer.run("consumer_static compiles", ["cc", "-std=c99", "-static", *consumer.pkg_config("--cflags"),
                                                      ROOT / "pkgconfig" / "consumer.c", "-o", program, *libs])
    if built is not None:
        consumer.run("consumer_static runs", [program])


def check_libs(cases, consumer):
    """Nothing private leaks: a user links -lfastnorm and includes one folder."""
    cases.equal("Libs", [w for w in consumer.pkg_config("--libs") if not w.startswith("-L")], ["-lfastnorm"])
    cases.equal("Libs --static", [w for w in consumer.pkg_config("--static", "--libs") if not w.startswith("-L")],
                ["-lfastnorm"])
    others = [w for w in consumer.pkg_config("--cflags") if not w.startswith("-I")]
    cases.equal("Cflags", others, [])


def check_installed(cases, prefix, also):
    """What is installed: the headers that are public, the library's three names and what is built with it, the program, fastnorm.pc."""
    headers = {p.name for p in (prefix / "include" / "fastnorm").iterdir()}
    cases.equal("installed headers", sorted(headers), sorted(HEADERS))
    library = prefix / "lib"
    names = sorted(p.name for p in library.iterdir() if p.name.startswith("lib"))
    version = subprocess.run(["pkg-config", "--modversion", "fastnorm"], capture_output=True, text=True,
                             env={**os.environ, "PKG_CONFIG_LIBDIR": str(library / "pkgconfig")}).stdout.strip()
    cases.equal("installed library", names, sorted(["libfastnorm.so", "libfastnorm.so.0", f"libfastnorm.so.{version}", *also]))
    program = prefix / "bin" / "fastnorm"
    result = subprocess.run([program, "--version"], capture_output=True, text=True,
                            env={**os.environ, "LD_LIBRARY_PATH": str(library)})
    cases.check("installed program runs", result.returncode == 0 and version in result.stdout, result.stdout + result.stderr)
    everything = {str(p.relative_to(prefix)) for p in prefix.rglob("*") if p.is_file() or p.is_symlink()}
    expected = {f"include/fastnorm/{h}" for h in HEADERS} | {f"lib/{n}" for n in names} | {
        "lib/pkgconfig/fastnorm.pc", "bin/fastnorm"}
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
    parser.add_argument("--also", nargs="*", default=[], metavar="NAME", help="libraries that are installed beside it")
    parser.add_argument("--static", action="store_true", help="the archive alone")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is built")
    options = parser.parse_args()
    cases = Cases()
    consumer = Consumer(cases, options.pkgconfig, options.work)
    if options.static:
        check_archive(consumer)
        cases.finish()
        return
    check_libs(cases, consumer)
    if options.prefix:
        check_installed(cases, options.prefix, options.also)
    source = ROOT / "pkgconfig" / "consumer"
    consumer.build_and_run("consumer_c", source.with_suffix(".c"), ["cc", "-std=c99", "-pedantic-errors"])
    for standard in ("11", "14", "17", "20"):
        consumer.build_and_run(f"consumer_cpp{standard}", source.with_suffix(".cpp"), ["c++", f"-std=c++{standard}", "-pedantic-errors"])
    example = readme_example(options.work)
    if cases.check("README.md has a C example", example):
        printed = consumer.build_and_run("readme_example", example, ["cc", "-std=c99", "-pedantic-errors"])
        cases.check("the README's example prints something", printed)
    cases.finish()


main()
