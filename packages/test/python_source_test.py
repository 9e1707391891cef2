#!/usr/bin/env python3
"""`pip install .` of the sources in an empty environment: what is installed, and the README's
program."""

import argparse
import email.parser
import os
import re
import shutil
import sys
from pathlib import Path

from clean import ROOT, Cases, run_clean

sys.path.insert(0, str(ROOT / "packages" / "python"))
import wheel as wheel_maker  # noqa: E402

# How it is compiled here: without CUDA, which takes a quarter of an hour, and as tools/test builds
# the library, in a folder beside that build: what the compiler cache has of it is not compiled
# again.
FAST = ("-Dcuda=disabled", "-Dbuildtype=release", "-Dwerror=true", "-Dnccl=true")
FAST += ("-Ddefault_library=both", "-Djax=disabled")
FOLDER = ROOT / "build-test" / "pip"


def metadata(text):
    """The fields, each a sorted list."""
    fields = email.parser.HeaderParser().parsestr(text)
    return {name: sorted(fields.get_all(name)) for name in fields.keys()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, help="not used")
    parser.add_argument("--program", type=Path, help="not used")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is made")
    options = parser.parse_args()
    cases, work = Cases(), options.work.resolve()
    venv = work / "venv"
    python = venv / "bin" / "python"
    run_clean(cases, "an empty environment", [sys.executable, "-m", "venv", "--clear", venv], work)
    install = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", ROOT]
    install += [f"--config-settings=setup-args={option}" for option in FAST]
    install.append(f"--config-settings=builddir={FOLDER}")
    shutil.rmtree(FOLDER, ignore_errors=True)
    if run_clean(cases, "pip install .", install, work, CCACHE_BASEDIR=str(ROOT)) is None:
        cases.finish()
    site = next(venv.glob("lib/python*/site-packages"))
    found = {
        str(p.relative_to(site))
        for p in (site / "fastnorm").rglob("*")
        if p.is_file() and p.suffix != ".pyc"
    }
    package = wheel_maker.HERE
    wanted = {
        str(p.relative_to(package))
        for p in (package / "fastnorm").rglob("*")
        if p.suffix in (".py", ".typed", ".cpp")
    }
    cases.equal(
        "installed files", sorted(found), sorted({*wanted, "fastnorm/lib/libfastnorm.so.1"})
    )
    version = wheel_maker.project_version()
    info = site / f"fastnorm-{version}.dist-info"
    released = wheel_maker.metadata(version, "any", False)
    cases.equal(
        "its METADATA has the fields of the released wheel's",
        metadata((info / "METADATA").read_text()),
        metadata(released["METADATA"].decode()),
    )
    cases.equal(
        "its entry points",
        sorted((info / "entry_points.txt").read_text().split()),
        sorted(wheel_maker.entry_points().split()),
    )
    tag = re.search(r"^Tag: (.*)$", (info / "WHEEL").read_text(), re.M)[1]
    machine = os.uname().machine
    cases.check("it is for this processor", tag.endswith(f"-linux_{machine}"), tag)
    page = (ROOT / "README.md").read_text()
    program, printed = re.search(
        r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", page, re.M | re.S
    ).groups()
    ran = run_clean(cases, "the README's program", [python, "-c", program], work)
    cases.equal("what it prints", ran, printed)
    run_clean(cases, "pip check", [python, "-m", "pip", "check"], work)
    cases.finish()


main()
