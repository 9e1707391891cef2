#!/usr/bin/env python3
"""The crates as users get them: packed, unpacked, and the README's program with FASTNORM_DIR."""

import argparse
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import rust_crates
from clean import ROOT, Cases, clean_env, make_prefix, run_clean


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
    (prefix / "lib" / "libfastnorm.so.0").rename(prefix / "lib" / "away.0")
    refused(
        "an installation without a library",
        "without libfastnorm.so in lib; required",
        FASTNORM_DIR=str(prefix),
    )
    (prefix / "lib" / "away.0").rename(prefix / "lib" / "libfastnorm.so.0")
    library.with_name("away").rename(library)
    refused("no library", "FASTNORM_DIR names an installation", PKG_CONFIG_LIBDIR=str(target))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, required=True, help="libfastnorm.so.0")
    parser.add_argument("--program", type=Path, help="not used")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is made")
    options = parser.parse_args()
    cases, work = Cases(), options.work.resolve()
    why = rust_crates.unfit_cargo()
    if why:
        cases.skip("crates", why)
        cases.finish()
    folder, made = rust_crates.unpacked(work)
    check_contents(cases, made)
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
        cases.equal(
            "what it prints", printed, "[1.200, 3.200, 0.000, 0.000, 0.000, 0.000, 2.308, 7.385]\n"
        )
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
