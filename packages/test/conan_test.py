#!/usr/bin/env python3
"""The Conan recipe in a home of its own, without a remote: it is exported, its sources are fetched
from the source archive, and another archive is refused.

--create is what users run, `conan create`, which also compiles the library and the program of
test_package. That takes minutes, so tools/test leaves it out."""

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

LIST = ROOT / "packages" / "test" / "requirements-conan.txt"
PROFILE = """\
[settings]
os=Linux
arch={arch}
compiler=gcc
compiler.version={gcc}
compiler.libcxx=libstdc++11
compiler.cppstd=gnu17
build_type={build_type}

[platform_tool_requires]
meson/{meson}
"""


def version_of(*command):
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return text.strip()


def create(cases, conan, recipe, reference, work, home, env):
    """What users run. The package has the library, and none of the files that Conan's generators
    write for whoever consumes it."""
    shutil.rmtree(recipe / "src")
    run_clean(cases, "conan create", [conan, "create", recipe, *reference], work, **env)
    library = next(iter(home.glob("p/b/fast*/p/lib/libfastnorm.so.1")), None)
    if not cases.check("the package has the library", library):
        return
    package = library.parents[1]
    names = {str(p.relative_to(package)) for p in package.rglob("*") if p.is_file()}
    for wanted in ("licenses/LICENSE", "include/fastnorm/fastnorm.h"):
        cases.check(f"the package has {wanted}", wanted in names, sorted(names))
    own = [n for n in names if n.endswith((".pc", ".cmake", ".a"))]
    cases.equal("files that Conan's generators write", own, [])


def check_standard(cases, conan, recipe, profile, version, work, env):
    """The library is configured in its own C++ standard where the profile has an older one, as a
    detected profile may have."""
    folder = work / "generated"
    shutil.rmtree(folder, ignore_errors=True)
    command = [conan, "install", recipe / "conanfile.py", "--version", version, "--no-remote"]
    command += ["-pr:a", profile, "-of", folder]
    run_clean(cases, "conan install of its needs", command, work, **env)
    files = list(folder.rglob("conan_meson_native.ini"))
    if not cases.equal("files of options for Meson", len(files), 1):
        return
    build = folder / "configured"
    command = ["meson", "setup", build, recipe / "src", "--native-file", files[0]]
    if run_clean(cases, "meson setup with them", command, work, **env) is None:
        return
    command = ["meson", "introspect", "--buildoptions", build]
    shown = json.loads(run_clean(cases, "its options", command, work, **env) or "[]")
    values = {option["name"]: option["value"] for option in shown}
    cases.equal("the library's C++ standard", values.get("cpp_std"), "c++20")
    cases.equal("the library's tests", values.get("tests"), False)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, help="not used: the recipe builds its own")
    parser.add_argument("--program", type=Path, help="not used")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is made")
    parser.add_argument("--create", action="store_true", help="compile the library, too")
    parser.add_argument("--build-type", default="Release", help="Conan's (default %(default)s)")
    options = parser.parse_args()
    cases, work = Cases(), options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    tools = ROOT / ".venv" / "bin"
    bin_folder = work / "bin"  # Meson and Ninja alone are in reach
    shutil.rmtree(bin_folder, ignore_errors=True)
    bin_folder.mkdir()
    for name in ("meson", "ninja"):
        found = tools / name if (tools / name).exists() else shutil.which(name)
        (bin_folder / name).symlink_to(found)
    venv, conan = work / "venv", work / "venv" / "bin" / "conan"
    stamp = venv / "installed.txt"
    if not (stamp.exists() and stamp.read_text() == LIST.read_text()):
        run_clean(cases, "an environment", [sys.executable, "-m", "venv", "--clear", venv], work)
        pip = [venv / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
        if run_clean(cases, "Conan", [*pip, "install", "--no-deps", "-r", LIST], work) is None:
            cases.finish()
        shutil.copy(LIST, stamp)

    version = recipes.project_version()
    archive = archives.source_archive(work, version)
    recipe, _ = recipes.make(archive, work / "made", url=archive.as_uri())
    profile = work / "profile"
    profile.write_text(
        PROFILE.format(
            arch={"x86_64": "x86_64", "aarch64": "armv8"}[os.uname().machine],
            build_type=options.build_type,
            gcc=version_of("gcc", "-dumpversion").split(".")[0],
            meson=version_of(bin_folder / "meson", "--version"),
        )
    )
    home = work / "home"
    shutil.rmtree(home, ignore_errors=True)
    env = {"CONAN_HOME": str(home), "PATH": f"{bin_folder}:{clean_env()['PATH']}"}
    reference = ["--version", version, "--no-remote", "-pr:a", profile]
    run_clean(cases, "conan export", [conan, "export", recipe, "--version", version], work, **env)
    graph = ["graph", "info", f"--requires=fastnorm/{version}", "--no-remote", "-pr:a", profile]
    shown = run_clean(cases, "conan graph info", [conan, *graph], work, **env) or ""
    cases.check("the graph has the package", f"fastnorm/{version}" in shown, shown[-2000:])
    source = [conan, "source", recipe / "conanfile.py", "--version", version]
    run_clean(cases, "conan source", source, work, **env)
    cases.check("the sources are there", (recipe / "src" / "meson.build").exists())
    check_standard(cases, conan, recipe, profile, version, work, env)
    if options.create:
        create(cases, conan, recipe, reference, work, home, env)
    data = recipe / "conandata.yml"
    text = data.read_text()
    data.write_text(re.sub(r'(sha256: ")\w{8}', r"\g<1>00000000", text))
    result = subprocess.run(
        [str(word) for word in source],
        capture_output=True,
        text=True,
        cwd=work,
        env=clean_env(**env),
    )
    cases.check(
        "an archive with another hash is refused",
        result.returncode != 0 and "sha256" in result.stdout + result.stderr,
        result.stdout + result.stderr,
    )
    cases.finish()


main()
