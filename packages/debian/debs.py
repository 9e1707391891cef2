#!/usr/bin/env python3
"""Makes the Debian packages libfastnorm1, libfastnorm-dev and fastnorm-tools of an installation.

    packages/debian/debs.py --prefix DESTDIR/usr --work build-debs --out dist

The installation is that of a build with --prefix /usr and the libdir of the processor. Two runs
write the same bytes. Prints the packages' paths. """

import argparse
import gzip
import os
import re
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "packages"))
import elf  # noqa: E402
from version import version as project_version  # noqa: E402

HOMEPAGE = "https://github.com/libfastnorm/libfastnorm"
AUTHORS = "The libfastnorm authors"
MAINTAINER = f"{AUTHORS} <maintainers@libfastnorm.example>"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# Where an installation has what completes commands in a shell, and where Debian's shells look.
COMPLETIONS = {
    "bash-completion/completions/fastnorm.bash": "bash-completion/completions/fastnorm",
    "zsh/site-functions/_fastnorm": "zsh/vendor-completions/_fastnorm",
    "fish/vendor_completions.d/fastnorm.fish": "fish/vendor_completions.d/fastnorm.fish",
}
TEXTS = {
    "libfastnorm1": (
        "libs",
        "RMSNorm and LayerNorm for transformer models",
        """\
 libfastnorm computes RMSNorm, LayerNorm and what is fused around them on
 CPUs, with AVX-512, AVX2, NEON and scalar code, through a stable C ABI.
 .
 This package has the shared library.""",
    ),
    "libfastnorm-dev": (
        "libdevel",
        "RMSNorm and LayerNorm for transformer models - headers",
        """\
 libfastnorm computes RMSNorm, LayerNorm and what is fused around them on
 CPUs, with AVX-512, AVX2, NEON and scalar code, through a stable C ABI.
 .
 This package has the headers for C and C++, and the files by which
 pkg-config and CMake find the library.""",
    ),
    "fastnorm-tools": (
        "utils",
        "program for RMSNorm and LayerNorm kernels",
        """\
 libfastnorm computes RMSNorm, LayerNorm and what is fused around them on
 CPUs, with AVX-512, AVX2, NEON and scalar code, through a stable C ABI.
 .
 This package has the program fastnorm, which shows what the library
 contains, runs, explains and measures calls, and tests a machine.""",
    ),
}


def run(command, **options):
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    if result.returncode != 0:
        raise SystemExit(
            f"{' '.join(map(str, command))} ended with {result.returncode}\n"
            f"{result.stdout}{result.stderr}"
        )
    return result.stdout


def commit_time():
    return int(run(["git", "-C", ROOT, "log", "-1", "--format=%ct"]))


def put(path, data, mode=0o644):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    path.chmod(mode)


def zipped(text):
    return gzip.compress(text.encode(), 9, mtime=0)


def add_papers(tree, name, version, stamp):
    day = datetime.fromtimestamp(stamp, timezone.utc)
    documents = tree / "usr" / "share" / "doc" / name
    others = (HERE / "copyright-tools.txt").read_text() if name == "fastnorm-tools" else ""
    put(
        documents / "copyright",
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n"
        f"Upstream-Name: libfastnorm\nSource: {HOMEPAGE}\n\n"
        f"Files: *\nCopyright: {day.year} {AUTHORS}\nLicense: Apache-2.0\n"
        " On Debian systems the text of the licence is in\n"
        f" /usr/share/common-licenses/Apache-2.0.\n{others}",
    )
    put(
        documents / "changelog.gz",
        zipped(
            f"libfastnorm ({version}) unstable; urgency=medium\n\n  * Release {version}.\n\n"
            f" -- {MAINTAINER}  {day.strftime('%a, %d %b %Y %H:%M:%S +0000')}\n"
        ),
    )


def needs(work, file, libraries):
    """Depends of a program or library, as dpkg-shlibdeps finds them."""
    folder = work / "shlibdeps"
    put(
        folder / "debian" / "control",
        "Source: libfastnorm\n\nPackage: libfastnorm1\nArchitecture: any\n",
    )
    text = run(
        [
            "dpkg-shlibdeps",
            "-O",
            "--ignore-missing-info",
            "-xlibfastnorm1",
            f"-l{libraries}",
            "-e",
            file,
        ],
        cwd=folder,
    )
    found = re.search(r"shlibs:Depends=(.*)", text)
    return found[1] if found else ""


def stripped(source, target, mode):
    put(target, source.read_bytes(), mode)
    run(
        ["strip", "--strip-unneeded", "--remove-section=.comment", "--remove-section=.note", target]
    )


def build(tree, name, fields, version, architecture, stamp, out):
    """The package of a tree, whose files all have the commit's time."""
    section, summary, text = TEXTS[name]
    files = sorted(p for p in tree.rglob("*") if p.is_file() and not p.is_symlink())
    size = sum(p.stat().st_size for p in files) // 1024 + 1
    control = tree / "DEBIAN"
    sums = "".join(
        run(["md5sum", p.relative_to(tree)], cwd=tree) for p in files if control not in p.parents
    )
    put(control / "md5sums", sums)
    head = {
        "Package": name,
        "Source": "libfastnorm",
        "Version": version,
        "Architecture": architecture,
        "Maintainer": MAINTAINER,
        "Installed-Size": size,
        "Section": section,
        "Priority": "optional",
        "Homepage": HOMEPAGE,
        **{k: v for k, v in fields.items() if v},
    }
    lines = "".join(f"{k}: {v}\n" for k, v in head.items())
    put(control / "control", f"{lines}Description: {summary}\n{text}\n")
    for path in [tree, *tree.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
        os.utime(path, (stamp, stamp), follow_symlinks=False)
    package = out / f"{name}_{version}_{architecture}.deb"
    run(
        ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", tree, package],
        env={**os.environ, "SOURCE_DATE_EPOCH": str(stamp)},
    )
    return package


def assemble(library, program, work):
    """An installation below work/root of a library and a program that are built; returns its /usr.
    program may be None."""
    folder = f"lib/{elf.machine(library)}-linux-gnu"
    configured, prefix = work / "configured", work / "root" / "usr"
    for made in (configured, prefix):
        shutil.rmtree(made, ignore_errors=True)
    meson = ROOT / ".venv" / "bin" / "meson"
    run(
        [
            meson if meson.exists() else "meson",
            "setup",
            configured,
            ROOT,
            "--prefix",
            "/usr",
            f"-Dlibdir={folder}",
            "-Dcuda=disabled",
            "-Dtests=false",
            "-Dtools=false",
            "-Dbench=false",
        ],
        env={**os.environ, "PATH": f"{meson.parent}:{os.environ['PATH']}"},
    )
    shutil.copytree(ROOT / "include", prefix / "include")
    name = f"libfastnorm.so.{project_version()}"
    put(prefix / folder / name, library.read_bytes())
    (prefix / folder / "libfastnorm.so.1").symlink_to(name)
    if program:
        staged = prefix / "bin" / "fastnorm"
        put(staged, program.read_bytes(), 0o755)
        elf.drop_runpath(staged)  # it names the build folder
        env = {**os.environ, "LD_LIBRARY_PATH": str(prefix / folder)}
        for made in COMPLETIONS:
            shell = re.split("[-/]", made)[0]
            put(prefix / "share" / made, run([staged, "completion", shell], env=env).encode())
    put(
        prefix / folder / "pkgconfig" / "fastnorm.pc",
        (configured / "meson-private" / "fastnorm.pc").read_bytes(),
    )
    for path in (configured / "packages" / "cmake").glob("*.cmake"):
        put(prefix / folder / "cmake" / "fastnorm" / path.name, path.read_bytes())
    return prefix


def refuse_runpath(prefix):
    """A packaged file finds its libraries where the system has them."""
    for path in sorted(prefix.rglob("*")):
        if path.is_file() and not path.is_symlink() and elf.is_elf(path):
            folders = elf.runpath(path)
            if folders:
                raise SystemExit(
                    f"{path} has the RPATH or RUNPATH {', '.join(folders)}; required: neither, "
                    "as `meson install` writes it"
                )


def make(prefix, work, out, stamp=None):
    version, stamp = project_version(), stamp or commit_time()
    refuse_runpath(prefix)
    found = sorted(prefix.glob(f"lib/*/libfastnorm.so.{version}"))
    if len(found) != 1:
        raise SystemExit(
            f"{prefix} has {len(found)} of lib/*/libfastnorm.so.{version}; required: one, of a build "
            "with the libdir of its processor, such as lib/x86_64-linux-gnu"
        )
    library = found[0]
    architecture = ARCHITECTURES[elf.machine(library)]
    folder = library.parent.relative_to(prefix)
    with_tools = (prefix / "bin" / "fastnorm").exists()
    trees = {name: work / name for name in TEXTS if with_tools or name != "fastnorm-tools"}
    for name, tree in trees.items():
        shutil.rmtree(tree, ignore_errors=True)
        add_papers(tree, name, version, stamp)
    out.mkdir(parents=True, exist_ok=True)

    shared = trees["libfastnorm1"] / "usr" / folder
    stripped(library, shared / library.name, 0o644)
    (shared / "libfastnorm.so.1").symlink_to(library.name)
    control = trees["libfastnorm1"] / "DEBIAN"
    put(control / "shlibs", f"libfastnorm 1 libfastnorm1 (>= {version})\n")
    put(control / "triggers", "activate-noawait ldconfig\n")
    symbols = run(["nm", "-D", "--defined-only", library])
    names = sorted(set(re.findall(r" T (fastnorm_\w+)(?:@@FASTNORM_1)?$", symbols, re.M)))
    put(
        control / "symbols",
        "libfastnorm.so.1 libfastnorm1 #MINVER#\n* Build-Depends-Package: libfastnorm-dev\n"
        + f" FASTNORM_1@FASTNORM_1 {version}\n"
        + "".join(f" {n}@FASTNORM_1 {version}\n" for n in names),
    )

    headers = trees["libfastnorm-dev"] / "usr" / "include" / "fastnorm"
    for path in (prefix / "include" / "fastnorm").iterdir():
        put(headers / path.name, path.read_bytes())
    development = trees["libfastnorm-dev"] / "usr" / folder
    development.mkdir(parents=True)
    (development / "libfastnorm.so").symlink_to("libfastnorm.so.1")
    for path in [
        *library.parent.glob("pkgconfig/*.pc"),
        *library.parent.glob("cmake/fastnorm/*.cmake"),
    ]:
        put(development / path.relative_to(library.parent), path.read_bytes())

    same = f"libfastnorm1 (= {version})"
    fields = {
        "libfastnorm1": {
            "Depends": needs(work, shared / library.name, library.parent),
            "Multi-Arch": "same",
        },
        "libfastnorm-dev": {"Depends": same, "Multi-Arch": "same"},
    }
    if with_tools:
        tools = trees["fastnorm-tools"] / "usr"
        stripped(prefix / "bin" / "fastnorm", tools / "bin" / "fastnorm", 0o755)
        day = datetime.fromtimestamp(stamp, timezone.utc).strftime("%Y-%m-%d")
        page = (HERE / "fastnorm.1").read_text().replace("@VERSION@", version)
        man = tools / "share" / "man" / "man1" / "fastnorm.1.gz"
        put(man, zipped(page.replace("@DATE@", day)))
        for made, place in COMPLETIONS.items():
            put(tools / "share" / place, (prefix / "share" / made).read_bytes())
        program = needs(work, tools / "bin" / "fastnorm", library.parent)
        fields["fastnorm-tools"] = {"Depends": ", ".join(filter(None, (same, program)))}
    return [
        build(trees[name], name, fields[name], version, architecture, stamp, out) for name in trees
    ]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prefix", type=Path, required=True, help="the installation's /usr")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for what is made on the way"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the packages")
    options = parser.parse_args()
    for package in make(options.prefix.resolve(), options.work.resolve(), options.out.resolve()):
        print(package)


if __name__ == "__main__":
    main()
