#!/usr/bin/env python3
"""The version of the project, from meson.build, and the files that repeat it.

packages/version.py            prints the version
packages/version.py --check    compares the files; the last line is a sum
packages/version.py --update   writes the version into the files
packages/version.py --release DATE
                               dates the version in CHANGELOG.md, and keeps its headers for the
                               tests of its ABI, which are a promise from then on
packages/version.py --next 0.3.0 --news TEXT
                               begins the next version: meson.build with its news, the header,
                               CHANGELOG.md, every file that repeats it and the bindings' raw layers
"""

import argparse
import datetime
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Files that must be read without Meson: a pattern with the version as its only group.
CRATES = r'^name = "fastnorm[\w-]*"\nversion = "([^"]*)"'
COPIES = {
    "bindings/rust/Cargo.toml": r'^\[workspace\.package\]\nversion = "([^"]*)"',
    "bindings/rust/Cargo.lock": CRATES,
    "bindings/rust/fastnorm/Cargo.toml": r'^fastnorm-sys = \{ .*version = "([^"]*)"',
    "packages/python/fastnorm/__init__.py": r'^__version__ = "([^"]*)"',
    "bindings/java/pom.xml": r"<artifactId>fastnorm</artifactId>\s*<version>([^<]*)</version>",
    "bindings/java/README.md": r"(?:fastnorm-|<version>)(\d+\.\d+\.\d+)(?=\.jar|<)",
    "integrations/candle/Cargo.toml": r'^\[workspace\.package\]\n(?:.*\n)*?version = "([^"]*)"',
    "integrations/candle/Cargo.lock": CRATES,
    "integrations/candle/ops/Cargo.toml": r'^fastnorm = \{ .*version = "([^"]*)"',
    "integrations/candle/fastnorm-candle/Cargo.toml":
        r'^fastnorm-candle-ops = \{ .*version = "([^"]*)"',
    "integrations/candle/README.md": r'^fastnorm-candle = "([^"]*)"',
    "integrations/gorgonia/go.mod": r"^\tgithub\.com/libfastnorm/\S+ v(\S+)",
    "CHANGELOG.md": r"\A(?:.*\n)*?## (\d+\.\d+\.\d+)",
}
# A page whose every version is the project's.
PAGE, ANY = "docs/install.md", r"(?<![\d.])\d+\.\d+\.\d+(?![\d.]*\d)"
PARTS = "include/fastnorm/version.h"
NAMES = ("MAJOR", "MINOR", "PATCH")
CHANGES, ABI = "CHANGELOG.md", "tests/abi/meson.build"


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
        found = set(re.findall(pattern, (ROOT / name).read_text(), re.M))
        if found != {wanted}:
            other = ", ".join(sorted(found - {wanted})) or "none"
            print(f"FAIL {name} has version {other}; required: {wanted}, of meson.build")
            failed += 1
    header = (ROOT / PARTS).read_text()
    parts = [
        re.search(rf"FASTNORM_VERSION_{part} (\d+)", header)[1]
        for part in NAMES
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


def replace(name, pattern, new, least=1):
    """Writes the only group of each match anew."""
    path = ROOT / name
    text = path.read_text()
    found = list(re.finditer(pattern, text, re.M))
    if len(found) < least:
        raise SystemExit(f"{name} has nothing of the form {pattern}")
    for match in reversed(found):
        text = text[: match.start(1)] + new + text[match.end(1):]
    path.write_text(text)


def update(wanted):
    """CHANGELOG.md and the header are left alone, which --next writes."""
    for name, pattern in COPIES.items():
        if name != CHANGES:
            replace(name, pattern, wanted)
    (ROOT / PAGE).write_text(re.sub(ANY, wanted, (ROOT / PAGE).read_text()))


def release(date):
    """The version gets its date, and what it promises is kept."""
    wanted = version()
    replace(CHANGES, rf"^## {re.escape(wanted)}(, not released)$", f", {date}")
    released = re.search(r"^abi_versions = \[(.*?)\]", (ROOT / ABI).read_text(), re.M)[1]
    versions = [*filter(None, released.split(", ")), f"'{wanted}'"]
    replace(ABI, r"^abi_versions = \[(.*?)\]", ", ".join(versions))
    old = [sys.executable, ROOT / "tests" / "abi" / "old.py", "--include", ROOT / "include"]
    subprocess.run([str(c) for c in (*old, "--version", wanted, "--update")], check=True)
    print(f"{wanted} is of {date}")


def begin(wanted, news):
    """The next version: an API version with its news, or a patch."""
    parts, before = wanted.split("."), version()
    if f"## {before}, not released" in (ROOT / CHANGES).read_text():
        raise SystemExit(f"{before} is not released; required: --release DATE before --next")
    if [int(n) for n in parts] <= [int(n) for n in before.split(".")] or parts[0] != "0":
        raise SystemExit(f"{wanted} does not follow {before}; required: a greater 0.API.PATCH")
    if parts[1] != before.split(".")[1]:
        if not news or "'" in news:
            raise SystemExit("an API version needs --news, its line in meson.build, without quotes")
        replace("meson.build", r"^    \{\n()      '\d+': ", f"      '{parts[1]}': '{news}',\n")
    replace("meson.build", r"^  version: '0\.@0@\.(\d+)'", parts[2])
    for name, number in zip(NAMES, parts):
        replace(PARTS, rf"FASTNORM_VERSION_{name} (\d+)\b", number)
    replace(CHANGES, rf"^()## {re.escape(before)}", f"## {wanted}, not released\n\n")
    update(wanted)
    for command in (["bindings/swig/generate.py"], ["bench/tables.py", "--list-older"],
                    ["bench/tables.py"]):
        subprocess.run([sys.executable, str(ROOT / command[0]), *command[1:]], check=True)
    if version() != wanted:
        raise SystemExit(f"meson.build makes {version()}; required: {wanted}")
    print(f"{wanted} begins")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--release", type=datetime.date.fromisoformat, metavar="DATE")
    parser.add_argument("--next", metavar="VERSION")
    parser.add_argument("--news", help="of --next: the line in meson.build")
    options = parser.parse_args()
    if options.release:
        release(options.release)
    if options.next:
        begin(options.next, options.news)
    wanted = version()
    if options.update:
        update(wanted)
    if options.check:
        return 1 if check(wanted) else 0
    print(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
