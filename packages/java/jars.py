#!/usr/bin/env python3
"""Makes the jars of the Java binding, in the layout of a Maven repository. Prints their folder.

    packages/java/jars.py --library build/src/libfastnorm.so.1 --work build-jars --out dist/maven

fastnorm-VERSION.jar has the classes, -sources and -javadoc what they say, and -linux-ARCH, one for
each --library, the JNI library and libfastnorm. Two runs with the same tools write the same bytes.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "packages"))
import elf  # noqa: E402
from version import version as project_version  # noqa: E402

JAVA = ROOT / "bindings" / "java"
GENERATE = ROOT / "bindings" / "swig" / "generate.py"
DATE = (1980, 1, 1, 0, 0, 0)
RELEASE = "17"


def run(command, **env):
    result = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, env={**os.environ, **env}
    )
    if result.returncode != 0:
        raise SystemExit(
            f"{' '.join(map(str, command))[:200]} ended with {result.returncode}\n"
            f"{result.stdout}{result.stderr}"
        )
    return result.stdout


def java_home():
    text = run(["java", "-XshowSettings:properties", "-version"]) or ""
    found = re.search(r"java\.home = (.*)", text)
    if found:
        return Path(found[1])
    return Path(shutil.which("javac")).resolve().parents[1]


def group():
    return re.search(r"<groupId>([^<]*)</groupId>", (JAVA / "pom.xml").read_text())[1]


def write_jar(path, files, manifest=()):
    """files: contents by path. The manifest and the licence come first."""
    lines = ["Manifest-Version: 1.0", *manifest]
    first = {
        "META-INF/MANIFEST.MF": "".join(f"{line}\r\n" for line in (*lines, "")).encode(),
        "META-INF/LICENSE": (ROOT / "LICENSE").read_bytes(),
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in {**first, **dict(sorted(files.items()))}.items():
            entry = zipfile.ZipInfo(name, DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data)


def tree(folder, keep=lambda path: True):
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and keep(p)
    }


def make_natives(library, work, native):
    """META-INF/native/ of one processor: the JNI library, made here of the folder native, and
    libfastnorm."""
    machine = elf.machine(library)
    prefix, classes = work / f"prefix-{machine}", work / f"natives-{machine}"
    for folder in (prefix, classes):
        shutil.rmtree(folder, ignore_errors=True)
    (prefix / "lib").mkdir(parents=True)
    shutil.copyfile(library, prefix / "lib" / "libfastnorm.so.1")
    (prefix / "lib" / "libfastnorm.so").symlink_to("libfastnorm.so.1")
    (prefix / "lib" / "fastnorm.pc").write_text(
        f"Name: fastnorm\nDescription: none\nVersion: {project_version()}\n"
        f"Libs: -L{prefix}/lib -lfastnorm\nCflags: -I{ROOT / 'include'}\n"
    )
    cross = "" if machine == os.uname().machine else f"{machine}-linux-gnu-"
    run(
        ["sh", JAVA / "src" / "main" / "native" / "build.sh", classes, java_home(), native],
        FASTNORM_ARCH=machine,
        CC=f"{cross}gcc",
        CFLAGS=f"-ffile-prefix-map={native}=. -ffile-prefix-map={ROOT}=.",
        FASTNORM_BUNDLE="1",
        PKG_CONFIG_LIBDIR=str(prefix / "lib"),
        PKG_CONFIG_PATH="",
    )
    for path in classes.rglob("*.so*"):
        run([f"{cross}strip", "--strip-unneeded", path])
    # The folder that pkg-config named is one of this machine.
    return machine, tree(classes, lambda path: path.name != "libdir")


def make(libraries, work, out):
    version = project_version()
    work.mkdir(parents=True, exist_ok=True)
    folder = out / group().replace(".", "/") / "fastnorm" / version
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    name = f"fastnorm-{version}"
    generated = work / "generated"
    run([sys.executable, GENERATE, "--java", generated])
    roots = (JAVA / "src" / "main" / "java", generated / "java")
    sources = sorted(p for root in roots for p in root.rglob("*.java"))
    classes, docs = work / "classes", work / "javadoc"
    for made in (classes, docs):
        shutil.rmtree(made, ignore_errors=True)
    run(["javac", "--release", RELEASE, "-encoding", "UTF-8", "-nowarn", "-d", classes, *sources])
    write_jar(folder / f"{name}.jar", tree(classes), [f"Automatic-Module-Name: {group()}"])
    write_jar(
        folder / f"{name}-sources.jar", {n: d for root in roots for n, d in tree(root).items()}
    )
    run(
        [
            "javadoc",
            "-quiet",
            "-notimestamp",
            "-encoding",
            "UTF-8",
            "--release",
            RELEASE,
            "-Xdoclint:all",
            "-Werror",
            "-d",
            docs,
            "-sourcepath",
            ":".join(map(str, roots)),
            group(),
        ]
    )
    write_jar(folder / f"{name}-javadoc.jar", tree(docs))
    for library in libraries:
        machine, files = make_natives(library, work, generated / "native")
        if elf.has_cuda(library):
            notice = ROOT / "packages" / "NOTICE-NVIDIA.txt"
            files[f"META-INF/{notice.name}"] = notice.read_bytes()
        write_jar(folder / f"{name}-linux-{machine}.jar", files)
    shutil.copyfile(JAVA / "pom.xml", folder / f"{name}.pom")
    for path in sorted(folder.iterdir()):
        for kind in ("md5", "sha1"):
            path.with_name(f"{path.name}.{kind}").write_text(
                hashlib.new(kind, path.read_bytes()).hexdigest()
            )
    return folder


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--library",
        type=Path,
        action="append",
        required=True,
        help="libfastnorm.so.1 of a processor",
    )
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for what is made on the way"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the repository")
    options = parser.parse_args()
    print(make(options.library, options.work.resolve(), options.out.resolve()))


if __name__ == "__main__":
    main()
