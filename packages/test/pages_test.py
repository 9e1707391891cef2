#!/usr/bin/env python3
"""The commands of docs/install.md, typed as a newcomer types them, in a folder with a release's
files and nothing else. Go's proxy and cargo's registry are folders of this test: nothing is
published."""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

import go_test
import rust_crates
from clean import ROOT, Cases, clean_env

sys.path[:0] = [str(ROOT / "packages" / name) for name in ("go", "java", "python")]
import archives  # noqa: E402
import jars  # noqa: E402
import module  # noqa: E402
import wheel  # noqa: E402

PAGE = ROOT / "docs" / "install.md"
ONE_LINE = "In one line"  # the section of tabs
# Sections whose commands change the system, or build for minutes: other tests run them.
ELSEWHERE = {
    "Debian and Ubuntu": "deb_test.py installs into a root of its own",
    "Conan and vcpkg": "conan_test.py runs the recipe",
    "From source": "the stage build builds it",
}


def sections(text):
    """(title, files by name, commands, what they print) of each."""
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        title = part.split("\n", 1)[0]
        files = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', part, re.M | re.S))
        commands = "".join(re.findall(r"^```sh\n(.*?)^```", part, re.M | re.S))
        printed = re.search(r"^```text\n(.*?)^```", part, re.M | re.S)
        yield title, files, commands, printed and printed[1]


def check_one_lines(cases, text):
    """Each tab has one command of one line, and a section of the page or another test types it."""
    tabs, _, rest = text.partition(f"## {ONE_LINE}\n")[2].partition("<!-- end -->")
    typed = rest + (ROOT / "packages/test/python_source_test.py").read_text()
    found = re.findall(r"^\*\*([^\n]+)\*\*\n\n```sh\n(.*?)^```", tabs, re.M | re.S)
    cases.check("tabs were found", len(found) >= 6, [title for title, _ in found])
    for title, command in found:
        cases.check(f"{ONE_LINE}, {title}: one command", command.count("\n") == 1, command)
        crate = re.fullmatch(r"cargo add (\w+)@([\d.]+)", command.strip())
        line = f'{crate[1]} = "{crate[2]}"' if crate else command.strip()
        cases.check(f"{ONE_LINE}, {title}: is typed below", line in typed, line)


def count(commands):
    """How many commands: lines that no backslash and no && goes on from."""
    return len([line for line in commands.splitlines() if not re.search(r"(\\|&&)$", line)])


def release(options, work):
    """A folder with the files that the page names."""
    dist = work / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir(parents=True)
    version = module.project_version()
    configured, _ = archives.configure(work)
    stripped = work / "libfastnorm.so.1"
    stripped.write_bytes(wheel.stripped(options.library))
    archives.binary_archive(dist, version, configured, stripped, preset=0)
    wheel.make(options.library, dist)
    if shutil.which("javac"):
        made = jars.make([options.library], work / "java", work / "maven")
        for jar in made.glob("*.jar"):
            shutil.copy(jar, dist)
    return dist


def environment(work, title):
    """What stands for the registries."""
    if title == "Go":
        shutil.rmtree(work / "proxy", ignore_errors=True)
        module.make(work / "proxy")
        return {
            "GOPROXY": f"file://{work / 'proxy'}",
            "GOSUMDB": "off",
            "GOFLAGS": "-modcacherw",
            "GOTOOLCHAIN": "local",
            "GOMODCACHE": str(work / "modules"),
            "GOCACHE": str(work / "cache"),
        }
    if title == "Rust":
        folder, _ = rust_crates.unpacked(work / "rust")
        version = module.project_version()
        patches = "".join(
            f'{name} = {{ path = "{folder}/{name}-{version}" }}\n'
            for name in ("fastnorm", "fastnorm-sys")
        )
        home = rust_crates.crates.cargo_home(work / "cargo", f"[patch.crates-io]\n{patches}")
        shutil.rmtree(work / "target", ignore_errors=True)
        return {"CARGO_HOME": str(home), "CARGO_TARGET_DIR": str(work / "target")}
    return {}


def missing(title):
    """Why a section cannot be typed on this machine; None if it can."""
    if title == "Java" and shutil.which("javac") is None:
        return "there is no JDK"
    if title == "Go":
        return go_test.unfit_go()
    if title == "Rust":
        return rust_crates.unfit_cargo()
    return None


def type_commands(cases, title, files, commands, printed, dist, work):
    folder = work / "typed" / re.sub(r"\W+", "-", title.lower())
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(dist, folder)
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    cases.check(f"{title}: two commands", count(commands) == 2, commands)
    result = subprocess.run(
        ["bash", "-e"],
        input=commands,
        capture_output=True,
        text=True,
        cwd=folder,
        env=clean_env(**environment(work, title)),
    )
    ok = cases.check(
        f"{title}: the commands run",
        result.returncode == 0,
        f"exit code {result.returncode}\n{result.stdout}{result.stderr}"[-4000:],
    )
    if ok:
        cases.check(
            f"{title}: the page says what they print",
            printed and result.stdout.endswith(printed),
            result.stdout[-2000:],
        )
    shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, required=True, help="libfastnorm.so.1")
    parser.add_argument("--program", type=Path, help="not used")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is made")
    parser.add_argument("--only", help="one section by its title")
    options = parser.parse_args()
    cases, work = Cases(), options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    check_one_lines(cases, PAGE.read_text())
    found = [s for s in sections(PAGE.read_text()) if s[0] != ONE_LINE]
    cases.check("the page has sections", len(found) >= 6, [title for title, *_ in found])
    dist = release(options, work)
    for title, files, commands, printed in found:
        if options.only and title != options.only:
            continue
        if title in ELSEWHERE:
            cases.check(f"{title} has commands", commands)
            continue
        why = missing(title)
        if why:
            cases.skip(title, why)
            continue
        type_commands(cases, title, files, commands, printed, dist, work)
    cases.finish()


main()
