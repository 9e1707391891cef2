#!/usr/bin/env python3
"""The version of the project, from meson.build, and the files that repeat it.

packages/version.py            prints the version
packages/version.py --check    compares the files; the last line is a sum
packages/version.py --update   writes the version into the files
"""

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Files that must be read without Meson: a pattern with the version as its only group.
COPIES = {
    "bindings/rust/Cargo.toml": r'^\[workspace\.package\]\nversion = "([^"]*)"',
    "bindings/rust/fastnorm/Cargo.toml": r'^fastnorm-sys = \{ .*version = "([^"]*)"',
    "packages/python/fastnorm/__init__.py": r'^__version__ = "([^"]*)"',
    "bindings/java/pom.xml": r"<artifactId>fastnorm</artifactId>\s*<version>([^<]*)</version>",
    "CHANGELOG.md": r"\A(?:.*\n)*?## (\d+\.\d+\.\d+)",
}
# A page whose every version is the project's.
PAGE, ANY = "docs/install.md", r"(?<![\d.])\d+\.\d+\.\d+(?![\d.]*\d)"
PARTS = "include/fastnorm/version.h"


def version(root=ROOT):
    """As meson.build makes it: 0, the newest API version, the patch."""
    text = (root / "meson.build").read_text()
    form = re.search(r"^  version: '0\.@0@\.(\d+)'\.format\(\n(.*?)^  \),", text, re.M | re.S)
    if form is None:
        raise SystemExit("meson.build has no version of the form '0.@0@.PATCH'")
    versions = map(int, re.findall(r"^ +'(\d+)': ", form[2], re.M))
    return f"0.{max(versions)}.{form[1]}"


def check(wanted):
    failed = 0
    for name, pattern in COPIES.items():
        found = re.search(pattern, (ROOT / name).read_text(), re.M)
        if found is None or found[1] != wanted:
            print(
                f"FAIL {name} has version {found and found[1]}; required: {wanted}, of meson.build"
            )
            failed += 1
    header = (ROOT / PARTS).read_text()
    parts = [
        re.search(rf"FASTNORM_VERSION_{part} (\d+)", header)[1]
        for part in ("MAJOR", "MINOR", "PATCH")
    ]
    if ".".join(parts) != wanted:
        print(f"FAIL {PARTS} has version {'.'.join(parts)}; required: {wanted}, of meson.build")
        failed += 1
    others = sorted(set(re.findall(ANY, (ROOT / PAGE).read_text())) - {wanted})
    if others:
        print(f"FAIL {PAGE} has version {', '.join(others)}; required: {wanted}, of meson.build")
        failed += 1
    print(f"{len(COPIES) + 2 - failed} passed, {failed} failed, 0 skipped")
    return failed


def update(wanted):
    """CHANGELOG.md and the header, which are written by hand, are left alone."""
    for name, pattern in COPIES.items():
        if name.endswith(".md"):
            continue
        path = ROOT / name
        text = path.read_text()
        found = re.search(pattern, text, re.M)
        if found is None:
            raise SystemExit(f"{name} has no version of the form {pattern}")
        path.write_text(text[: found.start(1)] + wanted + text[found.end(1) :])
    (ROOT / PAGE).write_text(re.sub(ANY, wanted, (ROOT / PAGE).read_text()))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    wanted = version()
    if options.update:
        update(wanted)
    if options.check:
        return 1 if check(wanted) else 0
    print(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
