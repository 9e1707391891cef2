#!/usr/bin/env python3
"""The crates as users get them: packed, unpacked, and the README's program with FASTNORM_DIR. Those
for candle are only looked at: integrations/candle/test.py compiles them.

--vendored builds it with the feature of that name, too: the CPU backend from the packed sources, in
minutes. Without it the sources are only looked at: each finds all that it includes."""

import argparse
import os
import re
import shutil
import subprocess
import tarfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import rust_crates
from clean import ROOT, Cases, clean_env, make_prefix, run_clean

# What each crate needs of the others.
NEEDED = {
    "fastnorm-sys": [],
    "fastnorm": ["fastnorm-sys"],
    "fastnorm-candle-ops": ["fastnorm"],
    "fastnorm-candle": ["fastnorm-candle-ops"],
}
PRINTED = "[1.200, 3.200, 0.000, 0.000, 0.000, 0.000, 2.308, 7.385]\n"


def check_contents(cases, made):
    for crate in made:
        with tarfile.open(crate) as archive:
            names = {name.split("/", 1)[1] for name in archive.getnames()}
        for wanted in ("LICENSE", "README.md", "Cargo.toml"):
            cases.check(f"{crate.name} has {wanted}", wanted in names)
        if crate.name.startswith("fastnorm-sys"):
            headers = {
                f"vendor/include/fastnorm/{p.name}"
                for p in (ROOT / "include" / "fastnorm").iterdir()
            }
            cases.equal("headers that are not packed", sorted(headers - names), [])


def check_manifests(cases, folder):
    """A registry can serve them: each names the others by version, and no path."""
    version = rust_crates.crates.project_version()
    for name, needed in NEEDED.items():
        manifest = tomllib.loads((folder / f"{name}-{version}" / "Cargo.toml").read_text())
        tables = {**manifest.get("dependencies", {}), **manifest.get("dev-dependencies", {})}
        ours = {key: wanted for key, wanted in tables.items() if key.startswith("fastnorm")}
        cases.equal(f"what {name} needs", ours, {key: {"version": version} for key in needed})
        paths = [key for key, wanted in tables.items() if "path" in wanted]
        cases.equal(f"what {name} needs by a path", paths, [])
        for field in ("description", "license", "repository", "readme"):
            cases.check(f"{name} has {field}", manifest["package"].get(field))


def check_vendor(cases, folder):
    """Every unit of vendor/units.txt for this processor, and all that it includes, is packed."""
    vendor = next(folder.glob("fastnorm-sys-*")) / "vendor"
    lines = [line.split("\t") for line in (vendor / "units.txt").read_text().splitlines()]
    own = [line[1:] for line in lines if line[0] == os.uname().machine]
    cases.equal(
        "processors of the units", sorted({line[0] for line in lines}), ["aarch64", "x86_64"]
    )
    cases.check("there are units", len(own) > 30, len(own))

    def included(unit):
        command = ["g++", "-std=c++20", "-M", "-I", vendor / "include", "-I", vendor / "src"]
        command += [*filter(None, unit[1].split("\x1f")), vendor / unit[0]]
        result = subprocess.run(
            [str(word) for word in command], capture_output=True, text=True, env=clean_env()
        )
        if result.returncode != 0:
            return [f"{unit[0]}: {result.stderr[:500]}"]
        paths = [Path(p).resolve() for p in result.stdout.split() if p.startswith("/")]
        return [f"{unit[0]} includes {p}" for p in paths if p.is_relative_to(ROOT / "src")]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        faults = [fault for found in pool.map(included, own) for fault in found]
    cases.equal("units that are not whole", faults, [])


def check_vendored(cases, work, folder):
    """The feature `vendored`, without an installation."""
    project, _ = rust_crates.consumer(work, folder, ["vendored"])
    target = work / "vendored-target"
    shutil.rmtree(target, ignore_errors=True)
    env = {"CARGO_TARGET_DIR": str(target), "PKG_CONFIG_LIBDIR": str(work)}
    command = ["cargo", "run", "--quiet"]
    printed = run_clean(cases, "the feature vendored", command, project, **env)
    cases.equal("what it prints", printed, PRINTED)


def check_refused(cases, project, prefix, target):
    """What build.rs says of a FASTNORM_DIR that does not fit."""
    header = prefix / "include" / "fastnorm" / "version.h"
    text = header.read_text()

    def refused(name, wanted, **env):
        result = subprocess.run(
            ["cargo", "build", "--quiet"],
            cwd=project,
            capture_output=True,
            text=True,
            env=clean_env(CARGO_TARGET_DIR=str(target), **env),
        )
        cases.check(
            f"{name} is refused",
            result.returncode != 0 and wanted in result.stderr,
            result.stderr[-2000:],
        )

    refused(
        "a folder without headers",
        "without include/fastnorm/version.h; required",
        FASTNORM_DIR=str(target),
    )
    header.write_text(re.sub(r"(VERSION_MINOR) \d+", r"\1 1", text))
    refused("an older installation", "with libfastnorm 0.1.0; required", FASTNORM_DIR=str(prefix))
    header.write_text(text)
    library = prefix / "lib" / "libfastnorm.so"
    library.rename(library.with_name("away"))
    (prefix / "lib" / "libfastnorm.so.1").rename(prefix / "lib" / "away.0")
    refused(
        "an installation without a library",
        "without libfastnorm.so in lib; required",
        FASTNORM_DIR=str(prefix),
    )
    (prefix / "lib" / "away.0").rename(prefix / "lib" / "libfastnorm.so.1")
    library.with_name("away").rename(library)
    refused("no library", "FASTNORM_DIR names an installation", PKG_CONFIG_LIBDIR=str(target))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, required=True, help="libfastnorm.so.1")
    parser.add_argument("--program", type=Path, help="not used")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is made")
    parser.add_argument("--vendored", action="store_true", help="compile the backend, too")
    options = parser.parse_args()
    cases, work = Cases(), options.work.resolve()
    why = rust_crates.unfit_cargo()
    if why:
        cases.skip("crates", why)
        cases.finish()
    folder, made = rust_crates.unpacked(work)
    check_contents(cases, made)
    check_manifests(cases, folder)
    prefix = make_prefix(options.library, work / "prefix")
    project, _ = rust_crates.consumer(work, folder)
    # Packed files have one time, by which cargo takes changed ones for the old.
    target = work / "consumer-target"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    env = {"FASTNORM_DIR": str(prefix), "CARGO_TARGET_DIR": str(target)}
    if (
        run_clean(
            cases, "cargo build with FASTNORM_DIR", ["cargo", "build", "--quiet"], project, **env
        )
        is not None
    ):
        printed = run_clean(
            cases,
            "the README's program runs",
            [target / "debug" / "consumer"],
            project,
            LD_LIBRARY_PATH=str(prefix / "lib"),
        )
        cases.equal("what it prints", printed, PRINTED)
    check_vendor(cases, folder)
    if options.vendored:
        check_vendored(cases, work, folder)
    check_refused(cases, project, prefix, target)
    run_clean(
        cases,
        "cargo doc without a library",
        ["cargo", "doc", "--quiet", "--no-deps", "-p", "fastnorm"],
        project,
        DOCS_RS="1",
        CARGO_TARGET_DIR=str(work / "doc-target"),
    )
    cases.finish()


main()
