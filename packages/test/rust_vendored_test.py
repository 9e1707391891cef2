#!/usr/bin/env python3
"""The README's program of Rust with the feature `vendored`: no library is installed, build.rs
compiles one."""

import argparse
import subprocess
from pathlib import Path

import rust_crates
from clean import Cases, run_clean


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, help="not used")
    parser.add_argument("--program", type=Path, help="not used")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is made")
    options = parser.parse_args()
    cases, work = Cases(), options.work.resolve()
    why = rust_crates.unfit_cargo()
    if why:
        cases.skip("the feature vendored", why)
        cases.finish()
    folder, _ = rust_crates.unpacked(work)
    project, _ = rust_crates.consumer(work, folder, ["vendored"])
    target = work / "consumer-target"
    # Without optimisation it compiles in a fraction of the time, with the same results.
    env = {"CARGO_TARGET_DIR": str(target), "CXXFLAGS": "-O0", "PKG_CONFIG_LIBDIR": str(work)}
    built = run_clean(
        cases, "cargo build --features vendored", ["cargo", "build", "--quiet"], project, **env
    )
    if built is not None:
        program = target / "debug" / "consumer"
        printed = run_clean(cases, "the README's program runs", [program], project)
        cases.equal(
            "what it prints", printed, "[1.200, 3.200, 0.000, 0.000, 0.000, 0.000, 2.308, 7.385]\n"
        )
        needed = subprocess.run(["readelf", "-d", program], capture_output=True, text=True).stdout
        cases.check("it needs no libfastnorm", "fastnorm" not in needed, needed)
    cases.finish()


main()
