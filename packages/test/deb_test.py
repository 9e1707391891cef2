#!/usr/bin/env python3
"""The Debian packages: made twice, accepted by lintian without overrides, installed by dpkg into an
empty root, and the page's program compiled and run with what is there."""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from clean import ROOT, Cases, clean_env, run_clean

sys.path[:0] = [str(ROOT / "packages" / "debian"), str(ROOT / "packages")]
import debs  # noqa: E402

EMPTY = ("info", "updates", "triggers")  # what dpkg wants of its folder, beside two files


def install(cases, packages, root):
    """By dpkg, as root; else unpacked by dpkg-deb."""
    shutil.rmtree(root, ignore_errors=True)
    database = root / "var" / "lib" / "dpkg"
    for name in EMPTY:
        (database / name).mkdir(parents=True)
    for name in ("status", "available"):
        (database / name).touch()
    if os.geteuid() != 0:
        for package in packages:
            run_clean(cases, f"unpack {package.name}", ["dpkg-deb", "-x", package, root], root)
        return
    # The C library is the only thing that the packages need, and an empty root has none.
    command = ["dpkg", f"--root={root}", "--force-depends", f"--log={root}/log", "-i", *packages]
    run_clean(cases, "dpkg -i", command, root)
    status = (database / "status").read_text()
    found = re.findall(r"^Package: (\S+)\nStatus: install ok installed$", status, re.M)
    cases.equal("installed packages", sorted(found), sorted(p.name.split("_")[0] for p in packages))
    command = ["dpkg", f"--root={root}", "--verify"]
    cases.equal("changed files", run_clean(cases, "dpkg --verify", command, root), "")


def check_program(cases, root, folder):
    """The C program of docs/install.md, with pkg-config and with CMake."""
    page = (ROOT / "docs" / "install.md").read_text()
    program = re.search(r'^```c title="example.c"\n(.*?)^```\n.*?^```text\n(.*?)^```', page,
                        re.M | re.S)
    work = root.parent / "consumer"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    (work / "example.c").write_text(program[1])
    library = root / "usr" / folder
    env = {
        "PKG_CONFIG_SYSROOT_DIR": str(root),
        "PKG_CONFIG_LIBDIR": str(library / "pkgconfig"),
        "LD_LIBRARY_PATH": str(library),
    }
    line = "cc example.c $(pkg-config --cflags --libs fastnorm) -o example && ./example"
    printed = run_clean(cases, "the page's program", ["sh", "-c", line], work, **env)
    cases.equal("what it prints", printed, program[2])
    (work / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(example LANGUAGES C)\n"
        "find_package(fastnorm CONFIG REQUIRED)\nadd_executable(example example.c)\n"
        "target_link_libraries(example PRIVATE fastnorm::fastnorm)\n"
    )
    line = f"cmake -B build -DCMAKE_PREFIX_PATH={root}/usr && cmake --build build && build/example"
    printed = run_clean(cases, "with CMake", ["sh", "-c", line], work) or ""
    cases.check("what it prints", printed.endswith(program[2]), printed)


def check_depends(cases, tree, folder, work):
    """By the symbols file, another package's program needs the version that has what it calls."""
    user, library = work / "user", tree / "usr" / folder / "libfastnorm.so.1"
    shutil.rmtree(user, ignore_errors=True)
    (user / "debian").mkdir(parents=True)
    (user / "debian" / "control").write_text("Source: user\n\nPackage: user\nArchitecture: any\n")
    (user / "user.c").write_text(
        "const char* fastnorm_version_string(void);\n"
        "int main(void) { return fastnorm_version_string() == 0; }\n"
    )
    line = ["cc", "user.c", library, "-o", "user"]
    if run_clean(cases, "a program of another package", line, user) is None:
        return
    other = user / "libfastnorm1"  # with the symbols file as what dpkg-shlibdeps finds
    shutil.copytree(tree, other, symlinks=True)
    (other / "DEBIAN" / "shlibs").unlink()
    line = ["dpkg-shlibdeps", "-O", f"-S{other}", "--ignore-missing-info"]
    line += [f"-l{other / 'usr' / folder}", "-e", "user"]
    found = run_clean(cases, "dpkg-shlibdeps of it", line, user) or ""
    wanted = f"libfastnorm1 (>= {debs.project_version()})"
    cases.check("it depends on a version of the library", wanted in found, found)


def check_runpath(cases, prefix, work):
    """A program that names a folder of libraries is refused, until the name is taken out."""
    program, source = prefix / "bin" / "fastnorm", work / "runpath.c"
    program.parent.mkdir(exist_ok=True)
    source.write_text("int main(void) { return 0; }\n")
    for kind, option in (("RPATH", "--disable-new-dtags"), ("RUNPATH", "--enable-new-dtags")):
        line = ["cc", source, f"-Wl,-rpath,/nowhere,{option}", "-o", program]
        run_clean(cases, f"a program with {kind}", line, work)
        cases.equal(f"its {kind}", debs.elf.runpath(program), ["/nowhere"])
        refused = ""
        try:
            debs.make(prefix, work / "work", work / "third")
        except SystemExit as error:
            refused = str(error)
        wanted = f"{program} has the RPATH or RUNPATH /nowhere; required: neither"
        cases.check(f"{kind} is refused", wanted in refused, refused)
        debs.elf.drop_runpath(program)
        cases.equal(f"no {kind} is left", debs.elf.runpath(program), [])
        run_clean(cases, "the program still runs", [program], work)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, required=True, help="libfastnorm.so.1")
    parser.add_argument("--program", type=Path, help="fastnorm; without it fastnorm-tools is not")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is made")
    options = parser.parse_args()
    cases, work = Cases(), options.work.resolve()
    if shutil.which("dpkg-shlibdeps") is None or shutil.which("lintian") is None:
        cases.check("dpkg-dev and lintian", False, "not installed; tools/setup installs them")
        cases.finish()
    prefix = debs.assemble(options.library, options.program, work)
    packages = debs.make(prefix, work / "work", work / "first")
    again = debs.make(prefix, work / "work", work / "second")
    for one, other in zip(packages, again):
        same = one.read_bytes() == other.read_bytes()
        cases.check(f"two runs make the same {one.name}", same)
    result = subprocess.run(
        ["lintian", "--allow-root", "--fail-on", "error,warning", *packages],
        capture_output=True,
        text=True,
        env=clean_env(),
    )
    said = result.stdout + result.stderr
    cases.check("lintian accepts them", result.returncode == 0 and not said, said)
    files = subprocess.run(
        ["dpkg-deb", "-c", *packages[:1]], capture_output=True, text=True, check=True
    ).stdout
    cases.check("no overrides", "lintian/overrides" not in files)
    root = work / "target"
    install(cases, packages, root)
    folder = f"lib/{debs.elf.machine(options.library)}-linux-gnu"
    check_program(cases, root, folder)
    check_depends(cases, work / "work" / "libfastnorm1", folder, work)
    if options.program:
        shown = run_clean(
            cases,
            "fastnorm info",
            [root / "usr" / "bin" / "fastnorm", "info"],
            work,
            LD_LIBRARY_PATH=str(root / "usr" / folder),
        )
        cases.check("it shows the version", debs.project_version() in (shown or ""), shown)
        command = ["readelf", "--dynamic", root / "usr" / "bin" / "fastnorm"]
        dynamic = run_clean(cases, "readelf", command, work) or ""
        cases.check("it needs the library", "libfastnorm.so.1" in dynamic, dynamic)
        cases.check("it has no RPATH or RUNPATH", not re.search("R(UN)?PATH", dynamic), dynamic)
        page = root / "usr" / "share" / "man" / "man1" / "fastnorm.1.gz"
        cases.check("its manual page is there", page.exists())
        for place in debs.COMPLETIONS.values():
            script = root / "usr" / "share" / place
            text = script.read_text() if script.exists() else ""
            cases.check(f"completion in {place}", "residual-out" in text)
        copyright = root / "usr" / "share" / "doc" / "fastnorm-tools" / "copyright"
        licences = re.findall(r"^License: (\S+)\n ", copyright.read_text(), re.M)
        wanted = ["Apache-2.0", "BSD-3-Clause", "Expat"]
        cases.equal("licences of the program, with their texts", licences, wanted)
    else:
        cases.skip("fastnorm-tools", "the program is not built")
    check_runpath(cases, prefix, work)
    cases.finish()


main()
