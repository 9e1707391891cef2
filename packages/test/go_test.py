#!/usr/bin/env python3
"""The Go module as users get it: `go get` of a tagged version in an empty place, and the README's
program."""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from clean import ROOT, Cases, make_prefix, readme_program, run_clean

sys.path.insert(0, str(ROOT / "packages" / "go"))
import module  # noqa: E402


def unfit_go():
    """Why there is no testing with this machine's Go; None if there is."""
    if shutil.which("go") is None:
        return "there is no Go"
    text = subprocess.run(
        ["go", "env", "GOVERSION"], capture_output=True, text=True, cwd="/"
    ).stdout.strip()
    wanted = module.re.search(
        r"^go (\d+)\.(\d+)", (ROOT / module.FOLDER / "go.mod").read_text(), module.re.M
    )
    found = module.re.match(r"go(\d+)\.(\d+)", text)
    if found is None or tuple(map(int, found.groups())) < tuple(map(int, wanted.groups())):
        return f"there is {text}; {wanted[0]} or later is needed"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, required=True, help="libfastnorm.so.1")
    parser.add_argument("--program", type=Path, help="not used")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is made")
    options = parser.parse_args()
    cases, work = Cases(), options.work.resolve()
    why = unfit_go()
    if why:
        cases.skip("the Go module", why)
        cases.finish()
    proxy, project = work / "proxy", work / "consumer"
    for folder in (proxy, project):
        shutil.rmtree(folder, ignore_errors=True)
    made = module.make(proxy)
    first = made.read_bytes()
    cases.check("two runs make the same bytes", module.make(proxy).read_bytes() == first)
    prefix = make_prefix(options.library, work / "prefix")
    version = module.project_version()
    (prefix / "lib" / "pkgconfig").mkdir()
    (prefix / "lib" / "pkgconfig" / "fastnorm.pc").write_text(
        f"Name: fastnorm\nDescription: none\nVersion: {version}\nLibs: -L{prefix}/lib -lfastnorm\n"
        f"Cflags: -I{prefix}/include\n"
    )
    program, printed = readme_program(ROOT / module.FOLDER / "README.md", "go")
    project.mkdir(parents=True)
    (project / "main.go").write_text(program)
    env = {
        "GOPROXY": f"file://{proxy}",
        "GOSUMDB": "off",
        "GOFLAGS": "-modcacherw",
        "GOTOOLCHAIN": "local",
        "GOMODCACHE": str(work / "modules"),
        "GOCACHE": str(work / "cache"),
        "PKG_CONFIG_LIBDIR": str(prefix / "lib" / "pkgconfig"),
        "LD_LIBRARY_PATH": str(prefix / "lib"),
    }
    path = module.module_path()
    run_clean(cases, "go mod init", ["go", "mod", "init", "example.com/consumer"], project, **env)
    run_clean(cases, "go get", ["go", "get", f"{path}@v{version}"], project, **env)
    text = (project / "go.mod").read_text()
    cases.check(
        "go.mod requires this version and replaces nothing",
        f"require {path} v{version}" in text and "replace" not in text,
        text,
    )
    found = run_clean(cases, "go run", ["go", "run", "."], project, **env)
    if printed is not None:
        cases.equal("what the README's program prints", found, printed)
    run_clean(cases, "go vet", ["go", "vet", ".", path], project, **env)
    shown = run_clean(cases, "go doc", ["go", "doc", path], project, **env) or ""
    cases.check("go doc shows the package", shown.startswith("package fastnorm"), shown)
    cases.finish()


if __name__ == "__main__":
    main()
