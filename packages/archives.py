"""The archives of a release: the sources, and what a user unpacks anywhere."""

import gzip
import io
import lzma
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import elf

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ROOT / "packages"
VENV = ROOT / ".venv"
# For code of x86-64; that of others loses nothing by it.
FILTERS = [
    {"id": lzma.FILTER_X86},
    {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "pb": 0},
]


def run(command, **options):
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    if result.returncode != 0:
        raise SystemExit(
            f"{' '.join(map(str, command))[:300]} ended with {result.returncode}\n"
            f"{result.stdout[-4000:]}{result.stderr[-4000:]}"
        )
    return result.stdout


def write_tar(path, files, links=(), mtime=0, preset=None):
    """files: (contents, mode) by path; links: (path, target). The order is that of the paths. A
    preset of xz takes less time."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, (contents, mode) in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(contents), mode, mtime
            archive.addfile(entry, io.BytesIO(contents))
        for name, target in sorted(links):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.mode, entry.mtime = (
                tarfile.SYMTYPE,
                target,
                0o777,
                mtime,
            )
            archive.addfile(entry)
    how = {"filters": FILTERS} if preset is None else {"preset": preset}
    path.write_bytes(lzma.compress(data.getvalue(), **how))


def source_archive(out, version):
    """What git has of the commit, below a folder of the version's name."""
    name = f"libfastnorm-{version}"
    tar = subprocess.run(
        ["git", "-C", ROOT, "archive", "--format=tar", f"--prefix={name}/", "HEAD"],
        capture_output=True,
        check=True,
    ).stdout
    path = out / f"{name}.tar.gz"
    path.write_bytes(gzip.compress(tar, 9, mtime=0))
    return path


def binary_archive(out, version, configured, library, preset=None):
    """Headers, the library with its names, and what pkg-config and CMake find it by; may be
    unpacked anywhere."""
    kind = "cuda" if elf.has_cuda(library) else "cpu"
    name = f"libfastnorm-{version}-linux-{elf.machine(library)}-{kind}"
    files = {
        f"{name}/include/fastnorm/{p.name}": (p.read_bytes(), 0o644)
        for p in (ROOT / "include" / "fastnorm").iterdir()
    }
    files[f"{name}/lib/libfastnorm.so.{version}"] = (library.read_bytes(), 0o755)
    files[f"{name}/lib/pkgconfig/fastnorm.pc"] = (
        (configured / "meson-private" / "fastnorm.pc").read_bytes(),
        0o644,
    )
    for path in (configured / "packages" / "cmake").glob("*.cmake"):
        files[f"{name}/lib/cmake/fastnorm/{path.name}"] = (path.read_bytes(), 0o644)
    for path in (ROOT / "LICENSE", *([PACKAGES / "NOTICE-NVIDIA.txt"] if kind == "cuda" else [])):
        files[f"{name}/{path.name}"] = (path.read_bytes(), 0o644)
    links = [
        (f"{name}/lib/libfastnorm.so", "libfastnorm.so.1"),
        (f"{name}/lib/libfastnorm.so.1", f"libfastnorm.so.{version}"),
    ]
    path = out / f"{name}.tar.xz"
    write_tar(path, files, links, preset=preset)
    return path


# What a build folder is for: its processor and its backends.
KINDS = {
    "cpu": ["-Dcuda=disabled"],
    "aarch64": [
        "-Dcuda=disabled",
        "--cross-file",
        ROOT / "tools" / "testing" / "aarch64.ini",
    ],
    "cuda": ["-Dcuda=enabled", "--native-file", VENV / "native.ini"],
}


def configure(work, kind="cpu", *more):
    """A build folder for an archive, relocatable; and the environment that its tools need."""
    folder = work / kind
    options = [
        "--buildtype",
        "release",
        "-Dtests=false",
        "-Dtools=false",
        "-Dbench=false",
        "-Dsimt=false",
        "-Dprefix=/usr/local",
        "-Dlibdir=lib",
        "-Dpkgconfig.relocatable=true",
        *KINDS[kind],
        *more,
    ]
    env = {**os.environ, "PATH": f"{VENV / 'bin'}:{os.environ['PATH']}"}
    wanted = [str(option) for option in options]
    stamp = folder / "options.txt"
    if not stamp.exists() or stamp.read_text().splitlines() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        run(["meson", "setup", folder, ROOT, *options], env=env)
        stamp.write_text("\n".join(wanted) + "\n")
    return folder, env
