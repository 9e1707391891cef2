"""Links libfastnorm.so.0 anew from the objects of a build, for systems with an old glibc.

The objects are those of GCC. The linker of Zig's wheel knows the symbols of every glibc; libstdc++
is linked in. libgcc_s stays shared: two unwinders in one process abort where an exception meets
both. """

import os
import subprocess
from pathlib import Path

import elf

ROOT = Path(__file__).resolve().parents[1]
GLIBC = (2, 28)


def objects(build):
    """The library's objects in a build folder."""
    archive = build / "src" / "libfastnorm_internal.a"
    listed = subprocess.run(
        ["ar", "t", archive], capture_output=True, text=True, check=True
    ).stdout.split()
    # A thin archive has paths from its own folder or from the build's.
    found = [
        next((f / name for f in (archive.parent, build) if (f / name).exists()), None)
        for name in listed
    ]
    if not found or None in found:
        raise SystemExit(f"{archive} names objects that do not exist; required: a complete build")
    return found


def compiler_file(compiler, name):
    text = subprocess.run(
        [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout
    path = Path(text.strip())
    if not path.is_absolute():
        raise SystemExit(f"{compiler} has no {name}")
    return path.resolve()


def relink(build, out, python, cache, compiler="g++"):
    """python: one with the package ziglang. Ends the program where the result needs a newer
    glibc."""
    parts = objects(build)
    machine = elf.machine(parts[0])
    out.parent.mkdir(parents=True, exist_ok=True)
    command = [
        python,
        "-m",
        "ziglang",
        "cc",
        "-target",
        f"{machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}",
        "-shared",
        "-s",
        "-o",
        out,
        *parts,
        f"-Wl,--version-script,{ROOT / 'src' / 'fastnorm.map'}",
        "-Wl,-z,nodelete",
        "-Wl,-soname,libfastnorm.so.0",
        compiler_file(compiler, "libstdc++.a"),
        compiler_file(compiler, "libgcc_s.so.1"),
        "-lm",
        "-lpthread",
    ]
    result = subprocess.run(
        [str(c) for c in command],
        capture_output=True,
        text=True,
        env={**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(cache)},
    )
    if result.returncode != 0:
        raise SystemExit(
            f"the link against glibc {GLIBC[0]}.{GLIBC[1]} failed\n{result.stderr[-4000:]}"
        )
    check(out)


def check(library):
    """Refuses what does not load on the oldest system."""
    glibc = elf.newest(library, "GLIBC")
    if glibc is None or glibc > GLIBC:
        raise SystemExit(f"{library} needs glibc {glibc}; required: {GLIBC} or older")
    if elf.newest(library, "GLIBCXX") is not None:
        raise SystemExit(f"{library} needs libstdc++; required: the one that is linked in")
