#!/usr/bin/env python3
"""Makes the wheel of the package `fastnorm` around a built library. Prints the wheel's path.

    packages/python/wheel.py --library build/src/libfastnorm.so.1 --out dist
        [--plugin libfastnorm_xla.so] [--plugin libfastnorm_onnxruntime.so] [--plugin _C.so]

Nothing is compiled. Two runs with the same files write the same bytes."""

import argparse
import base64
import hashlib
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "packages"))
import elf  # noqa: E402
from version import version as project_version  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SONAME = "libfastnorm.so.1"
# What fastnorm.jax and fastnorm.onnxruntime load from beside the library, and fastnorm.torch from
# its own folder: folders by names.
PLUGINS = {"libfastnorm_xla.so": "lib", "libfastnorm_onnxruntime.so": "lib", "_C.so": "torch"}
DATE = (1980, 1, 1, 0, 0, 0)  # of every file: the contents alone decide the bytes


def headers(project, version, licence, notices):
    """METADATA but its text, of the table `project` of pyproject.toml."""
    yield from (("Metadata-Version", "2.4"), ("Name", project["name"]), ("Version", version))
    yield "Summary", project["description"]
    yield from (("Author", person["name"]) for person in project["authors"])
    yield from (("Maintainer", person["name"]) for person in project["maintainers"])
    yield "License-Expression", licence
    yield from (("License-File", name) for name in notices)
    yield from (("Project-URL", f"{name}, {url}") for name, url in project["urls"].items())
    yield "Keywords", ",".join(project["keywords"])
    yield from (("Classifier", text) for text in project["classifiers"])
    yield "Requires-Python", project["requires-python"]
    yield from (("Requires-Dist", text) for text in project["dependencies"])
    for extra, wanted in project["optional-dependencies"].items():
        yield "Provides-Extra", extra
        yield from (("Requires-Dist", f'{text}; extra == "{extra}"') for text in wanted)
    yield "Description-Content-Type", "text/markdown"


def entry_points():
    """entry_points.txt, of the tables `project.entry-points` of pyproject.toml."""
    return "\n".join(
        f"[{group}]\n" + "".join(f"{name} = {where}\n" for name, where in names.items())
        for group, names in PROJECT["entry-points"].items()
    )


def stripped(path, cross=""):
    """The library's bytes without symbols for debuggers."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "library"
        subprocess.run([f"{cross}strip", "--strip-unneeded", "-o", out, path], check=True)
        return out.read_bytes()


def check_library(path):
    names = subprocess.run(
        ["readelf", "--wide", "--dynamic", path], capture_output=True, text=True, check=True
    ).stdout
    if f"soname: [{SONAME}]" not in names:
        raise SystemExit(f"{path} is not {SONAME}; required: the shared library of this version")


def check_plugins(paths):
    wrong = [str(path) for path in paths if path.name not in PLUGINS]
    if wrong:
        raise SystemExit(f"{wrong[0]} is no plugin; required: one of {', '.join(PLUGINS)}")
    names = [path.name for path in paths]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise SystemExit(f"{twice[0]} is named twice; required: each plugin once")


def contents(library, plugins):
    """What is installed: bytes by path."""
    cross = "aarch64-linux-gnu-" if elf.machine(library) != elf.machine(sys.executable) else ""
    files = {}
    for path in sorted((HERE / "fastnorm").rglob("*")):
        if path.is_file() and path.suffix in (".py", ".typed", ".cpp", ".h"):
            files[str(path.relative_to(HERE))] = path.read_bytes()
    files[f"fastnorm/lib/{SONAME}"] = stripped(library, cross)
    for plugin in sorted(plugins, key=lambda path: path.name):
        files[f"fastnorm/{PLUGINS[plugin.name]}/{plugin.name}"] = stripped(plugin, cross)
    return files


def metadata(version, tag, cuda):
    """The files of the dist-info folder but RECORD, by name."""
    notices = [ROOT / "LICENSE", *([ROOT / "packages" / "NOTICE-NVIDIA.txt"] if cuda else [])]
    licence = PROJECT["license"] + (" AND LicenseRef-NVIDIA-CUDA" if cuda else "")
    lines = headers(PROJECT, version, licence, [path.name for path in notices])
    text = "".join(f"{name}: {value}\n" for name, value in lines)
    return {
        "METADATA": f"{text}\n{(ROOT / PROJECT['readme']).read_text()}".encode(),
        "WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: libfastnorm packages/python/wheel.py ({version})\n"
            f"Root-Is-Purelib: false\nTag: py3-none-{tag}\n"
        ).encode(),
        "entry_points.txt": entry_points().encode(),
        **{f"licenses/{path.name}": path.read_bytes() for path in notices},
    }


def make(library, out, plugins=()):
    check_library(library)
    check_plugins(plugins)
    version, tag = project_version(), elf.manylinux(library, *plugins)
    info = f"fastnorm-{version}.dist-info"
    files = contents(library, plugins)
    files.update(
        {
            f"{info}/{name}": data
            for name, data in metadata(version, tag, elf.has_cuda(library)).items()
        }
    )
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    files[f"{info}/RECORD"] = ("".join(lines) + f"{info}/RECORD,,\n").encode()
    out.mkdir(parents=True, exist_ok=True)
    wheel = out / f"fastnorm-{version}-py3-none-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if ".so" in name else 0o100644) << 16
            archive.writestr(entry, data)
    return wheel


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", type=Path, required=True, help="libfastnorm.so.1")
    parser.add_argument(
        "--plugin",
        type=Path,
        action="append",
        default=[],
        help="libfastnorm_xla.so, for fastnorm.jax; libfastnorm_onnxruntime.so, for "
        "fastnorm.onnxruntime; _C.so, for fastnorm.torch",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the wheel")
    options = parser.parse_args()
    for path in (options.library, *options.plugin):
        if not path.is_file():
            parser.error(f"{path} does not exist; required: a built library")
    print(make(options.library, options.out, options.plugin))


if __name__ == "__main__":
    main()
