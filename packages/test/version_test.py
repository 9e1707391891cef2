#!/usr/bin/env python3
"""packages/version.py in a copy of the tree: a release is dated, the next version begins, and no
file still has the version before."""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

from clean import ROOT, Cases

sys.path.insert(0, str(ROOT / "packages"))
from version import version as project_version  # noqa: E402

# Files that may have the version before: what was measured or decided with it, its promise, texts
# of examples, and packages of others that have that number.
KEPT = re.compile(
    r"CHANGELOG\.md|bench/|docs/lab/|tests/abi/(old/|meson\.build)|tests/(select|cli|pages|nccl)/"
    r"|.*\.lock|.*go\.sum|packages/(recipes|test/version_test)\.py|docs/.*\.md|README\.md"
)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, help="not used")
    parser.add_argument("--program", type=Path, help="not used")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is made")
    options = parser.parse_args()
    cases, tree = Cases(), options.work.resolve() / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    listed = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True)
    if listed.returncode:
        cases.skip("a copy of the tree", "this is no checkout")
        cases.finish()
        return
    names = listed.stdout.splitlines()
    for name in names:
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name, follow_symlinks=False)
    if (ROOT / ".venv").exists():
        (tree / ".venv").symlink_to((ROOT / ".venv").resolve())

    def run(*command):
        done = subprocess.run([sys.executable, *map(str, command)], cwd=tree, capture_output=True,
                              text=True)
        return done.returncode, done.stdout + done.stderr

    def checks(name, version):
        code, said = run("packages/version.py", "--check")
        cases.check(f"{name}: all places agree", code == 0 and " 0 failed" in said, said)
        cases.equal(f"{name}: the version", run("packages/version.py")[1].strip(), version)
        code, said = run("tests/abi/old.py", "--include", "include", "--version", version)
        cases.check(f"{name}: its headers", code == 0, said)

    now = project_version()
    following = ".".join(["0", str(int(now.split(".")[1]) + 1), "0"])
    checks("as it is", now)
    waits = f"## {now}, not released" in (ROOT / "CHANGELOG.md").read_text().splitlines()
    if waits:
        code, said = run("packages/version.py", "--next", following, "--news", "a")
        refused = code != 0 and "not released" in said
        cases.check("no next version before the release", refused, said)
        code, said = run("packages/version.py", "--release", "2031-02-03")
        cases.equal("--release", code, 0)
        changes = (tree / "CHANGELOG.md").read_text().splitlines()
        cases.check("the date stands in CHANGELOG.md", f"## {now}, 2031-02-03" in changes)
        checks("released", now)
        code, said = run("packages/version.py", "--release", "2031-02-03")
        cases.check("a version is released once", code != 0, said)
    for wanted, news, why in (("0.0.1", "a", "does not follow"), (following, None, "needs --news")):
        given = ["--news", news] if news else []
        code, said = run("packages/version.py", "--next", wanted, *given)
        cases.check(f"--next {wanted} is refused", code != 0 and why in said, said)
    code, said = run("packages/version.py", "--next", following, "--news", "something new")
    cases.check("--next", code == 0, said)
    checks("the next one", following)
    code, said = run("bindings/swig/generate.py", "--check")
    cases.check("the bindings have it", code == 0, said)
    code, said = run("bench/tables.py", "--check")
    cases.check("pages name the version before as older", code == 0, said)
    code, said = run("bench/tables.py", "--stale", following)
    cases.check("a release of it wants other figures", code != 0 and "or why not in" in said, said)
    left = [
        name for name in names
        if not KEPT.match(name) and (tree / name).is_file()
        and re.search(rf"(?<![\d.]){re.escape(now)}(?![\d.])",
                      re.sub(r'such as (?:\{@code )?"[^"]*"', "",
                             (tree / name).read_text(errors="replace")))
    ]
    cases.equal("files that still have the version before", left, [])
    page = (tree / "docs" / "install.md").read_text()
    cases.check("install.md has the next one", f"fastnorm-{following}" in page)
    shutil.rmtree(tree)
    cases.finish()


main()
