#!/usr/bin/env python3
"""The Debian packages as users get them: lintian, dpkg into an empty root, and the README's
program."""

import argparse
import shutil
import sys
from pathlib import Path

from clean import ROOT, Cases, readme_program, run_clean

sys.path.insert(0, str(ROOT / "packages" / "debian"))
import debs  # noqa: E402


def install(cases, packages, root):
    """dpkg's own installation; what the packages need of Debian is not in the root."""
    shutil.rmtree(root, ignore_errors=True)
    for folder in ("info", "updates", "triggers"):
        (root / "var" / "lib" / "dpkg" / folder).mkdir(parents=True)
    (root / "var" / "lib" / "dpkg" / "status").touch()
    return run_clean(
        cases,
        "dpkg --install",
        [
            "dpkg",
            f"--root={root}",
            "--force-depends",
            "--force-not-root",
            "--force-script-chrootless",
            "--log=/dev/null",
            "--install",
            *packages,
        ],
        root.parent,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, required=True, help="libfastnorm.so.0")
    parser.add_argument("--program", type=Path, help="the program fastnorm of a build")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is made")
    options = parser.parse_args()
    cases, work = Cases(), options.work.resolve()
    why = (
        "no program fastnorm was built"
        if options.program is None
        else "there is no dpkg-shlibdeps" if shutil.which("dpkg-shlibdeps") is None else None
    )
    if why:
        cases.skip("Debian packages", why)
        cases.finish()
    prefix = debs.assemble(options.library.resolve(), options.program.resolve(), work)
    stamp = debs.commit_time()  # a commit may be made meanwhile
    packages = debs.make(prefix, work / "first", work / "packages", stamp)
    again = debs.make(prefix, work / "second", work / "packages2", stamp)
    cases.equal("packages", [p.name.split("_")[0] for p in packages], list(debs.TEXTS))
    for one, other in zip(packages, again):
        cases.check(f"two runs make the same {one.name}", one.read_bytes() == other.read_bytes())
    if shutil.which("lintian"):
        said = run_clean(
            cases,
            "lintian accepts the packages",
            ["lintian", "--fail-on", "error,warning", "--allow-root", *packages],
            work,
        )
        cases.equal("what lintian says", said, "")
    else:
        cases.skip("lintian", "it is not installed")
    root = work / "installed"
    if install(cases, packages, root) is None:
        cases.finish()
    folder = next(root.glob("usr/lib/*-linux-gnu"))
    printed = run_clean(
        cases,
        "fastnorm --version",
        [root / "usr" / "bin" / "fastnorm", "--version"],
        work,
        LD_LIBRARY_PATH=str(folder),
    )
    cases.check("it prints the version", debs.project_version() in (printed or ""), printed)
    program, _ = readme_program(ROOT / "README.md", "c")
    source = work / "example.c"
    source.write_text(program)
    env = {"PKG_CONFIG_SYSROOT_DIR": str(root), "PKG_CONFIG_LIBDIR": str(folder / "pkgconfig")}
    flags = run_clean(
        cases,
        "pkg-config",
        ["pkg-config", "--cflags", "--libs", "fastnorm"],
        work,
        PKG_CONFIG_ALLOW_SYSTEM_CFLAGS="1",
        PKG_CONFIG_ALLOW_SYSTEM_LIBS="1",
        **env,
    )
    command = ["cc", source, *(flags or "").split(), "-o", work / "example"]
    if run_clean(cases, "the README's program compiles", command, work) is not None:
        found = run_clean(
            cases,
            "the README's program runs",
            [work / "example"],
            work,
            LD_LIBRARY_PATH=str(folder),
        )
        cases.equal(
            "what it prints", found, "0.3651 0.7303 2.1909 2.9212\n-1.4142 0.0000 2.8284 0.0000\n"
        )
    run_clean(
        cases,
        "dpkg --purge",
        [
            "dpkg",
            f"--root={root}",
            "--force-not-root",
            "--log=/dev/null",
            "--purge",
            *reversed(list(debs.TEXTS)),
        ],
        work,
    )
    left = sorted(str(p.relative_to(root)) for p in root.rglob("*fastnorm*"))
    cases.equal("what is left after that", left, [])
    cases.finish()


main()
