#!/usr/bin/env python3
"""The vcpkg port: the form of its manifest, and its portfile in CMake with stand-ins for vcpkg's
functions. It fetches the source archive, unpacks and configures it. A program finds the library
where vcpkg moves the files for CMake.

--build compiles and installs, too. That takes minutes, so tools/test leaves it out, and the port
installs --library."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from clean import ROOT, Cases, clean_env, run_clean

sys.path.insert(0, str(ROOT / "packages"))
import archives  # noqa: E402
import recipes  # noqa: E402

# The fields of a manifest in the order in which `vcpkg format-manifest` writes them.
FIELDS = ["name", "version", "description", "homepage", "license", "supports", "dependencies"]


def check_manifest(cases, path):
    text = path.read_text()
    manifest = json.loads(text)
    cases.equal("its fields and their order", list(manifest), FIELDS)
    cases.equal("its layout", text, json.dumps(manifest, indent=2) + "\n")
    cases.equal("the name is that of the port's folder", manifest["name"], path.parent.name)
    cases.check("the name's form", re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", manifest["name"]))
    cases.equal("the version", manifest["version"], recipes.project_version())
    cases.check("the version's form", re.fullmatch(r"\d+(\.\d+)*", manifest["version"]))
    names = [d["name"] for d in manifest["dependencies"]]
    cases.equal("dependencies are sorted", names, sorted(names))
    cases.check("they are of the host", all(d["host"] is True for d in manifest["dependencies"]))
    words = re.findall(r"[a-z0-9]+", manifest["supports"])
    cases.equal("words of supports", sorted(words), ["arm64", "linux", "x64"])


def check_consumer(cases, prefix, work):
    """find_package and a program in an installation as vcpkg leaves it."""
    shutil.copytree(ROOT / "packages" / "conan" / "test_package", work)
    line = ["cmake", "-B", "build", f"-DCMAKE_PREFIX_PATH={prefix}"]
    if run_clean(cases, "find_package", line, work) is None:
        return
    cache = (work / "build" / "CMakeCache.txt").read_text()
    found = re.search(r"^fastnorm_DIR:PATH=(.*)$", cache, re.M)
    cases.equal("where it is found", found and found[1], str(prefix / "share" / "fastnorm"))
    if run_clean(cases, "a program builds", ["cmake", "--build", "build"], work) is None:
        return
    printed = run_clean(cases, "the program runs", [work / "build" / "example"], work)
    wanted = f"libfastnorm {recipes.project_version()}: 0 of 8 values are wrong\n"
    cases.equal("what it prints", printed, wanted)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, help="libfastnorm.so.1, without --build")
    parser.add_argument("--program", type=Path, help="not used")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is made")
    parser.add_argument("--build", action="store_true", help="compile the library, too")
    parser.add_argument("--buildtype", default="release", help="Meson's (default %(default)s)")
    options = parser.parse_args()
    if not options.build and options.library is None:
        parser.error("--library is missing; required: libfastnorm.so.1, or --build")
    cases, work = Cases(), options.work.resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    archive = archives.source_archive(work, recipes.project_version())
    _, port = recipes.make(archive, work / "made", url=archive.as_uri())
    files = {p.name: p.read_text() for p in port.iterdir()}
    cases.equal("files", sorted(files), ["portfile.cmake", "usage", "vcpkg.json"])
    unfilled = [n for n, text in files.items() if re.search(r"@[A-Z0-9]+@", text)]
    cases.equal("files with a value that is not filled in", unfilled, [])
    check_manifest(cases, port / "vcpkg.json")

    for tool in ("meson", "ninja"):
        beside = ROOT / ".venv" / "bin" / tool
        (work / "bin").mkdir(exist_ok=True)
        (work / "bin" / tool).symlink_to(beside if beside.exists() else shutil.which(tool))
    env = {"PATH": f"{work / 'bin'}:{clean_env()['PATH']}"}
    run = work / "run"

    def command(portfile):
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir()
        return [
            "cmake",
            f"-DWORK={run}",
            f"-DPORTFILE={portfile}",
            f"-DVERSION={recipes.project_version()}",
            f"-DBUILDTYPE={options.buildtype}",
            *([] if options.build else [f"-DLIBRARY={options.library.resolve()}"]),
            f"-DFASTNORM_BUILD={'ON' if options.build else 'OFF'}",
            "-P",
            ROOT / "packages" / "test" / "vcpkg_stand_in.cmake",
        ]

    run_clean(cases, "the portfile", command(port / "portfile.cmake"), work, **env)
    share = run / "packages" / "share" / "fastnorm"
    configs = ["fastnormConfig.cmake", "fastnormConfigVersion.cmake"]
    cases.equal("in share/", sorted(os.listdir(share)), ["copyright", *configs, "usage"])
    check_consumer(cases, run / "packages", work / "consumer")
    made = list(run.glob("source/*/build/build.ninja"))
    cases.equal("build folders", len(made), 1)
    if options.build:
        library = run / "packages" / "lib" / "libfastnorm.so.1"
        cases.check("the library is installed", library.exists())
    wrong = work / "portfile.cmake"
    wrong.write_text(re.sub(r"(SHA512 )\w{8}", r"\g<1>00000000", files["portfile.cmake"]))
    result = subprocess.run(
        [str(word) for word in command(wrong)],
        capture_output=True,
        text=True,
        cwd=work,
        env=clean_env(**env),
    )
    said = result.stdout + result.stderr
    refused = result.returncode != 0 and "hash" in said.lower()
    cases.check("an archive with another hash is refused", refused, said)
    cases.finish()


main()
