#!/usr/bin/env python3
"""Writes the generated files of the bindings. Those of Rust, Go and Python are committed: their
users need neither SWIG nor this program. Those of Java are made by its build.

  generate.py                  write all that are committed
  generate.py --only rust go   write those of some targets
  generate.py --check          write to a temporary folder and compare with what is committed;
                               print the differences and how many files are the same, differ,
                               were skipped
  generate.py --java FOLDER    write Java's raw layer, setters and enums: FOLDER/java and
                               FOLDER/native

A target is a module beside this one with generate(tree, out_dir): it writes below out_dir, which
stands for bindings/, or below the folder around it, and returns the paths it wrote.
"""

import argparse
import difflib
import importlib
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True
import tree as headers  # noqa: E402

TARGETS = ("rust", "rust_safe", "words", "go", "python")


def write(tree, target, folder):
    """Runs one generator; the paths it wrote, relative to `folder`, the project's place."""
    written = importlib.import_module(target).generate(tree, folder / "bindings")
    return sorted(Path(path).resolve().relative_to(folder.resolve()) for path in written)


def compare(name, wanted, committed):
    """Whether a committed file is what the generator writes; prints the difference."""
    if not committed.exists():
        print(f"FAIL {name}: not committed")
        return False
    if wanted.read_bytes() == committed.read_bytes():
        return True
    print(f"FAIL {name}: differs from what generate.py writes")
    lines = difflib.unified_diff(
        committed.read_text().splitlines(),
        wanted.read_text().splitlines(),
        "committed",
        "generated",
        lineterm="",
        n=1,
    )
    for line in list(lines)[:60]:
        print(line)
    return False


def check(tree, targets):
    passed = failed = 0
    for target in targets:
        with tempfile.TemporaryDirectory() as folder:
            names = write(tree, target, Path(folder))
            for name in names:
                same = compare(name, Path(folder) / name, ROOT / name)
                passed, failed = passed + same, failed + (not same)
        if not names:
            print(f"FAIL {target}: wrote nothing")
            failed += 1
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=TARGETS,
        default=list(TARGETS),
        metavar="TARGET",
        help=f"one or more of {', '.join(TARGETS)}",
    )
    parser.add_argument("--java", type=Path, metavar="FOLDER", help="write Java's sources there")
    options = parser.parse_args()
    try:
        tree = headers.load()
        if options.java:
            importlib.import_module("java").generate(tree, options.java)
            return 0
        if options.check:
            return check(tree, options.only)
        for target in options.only:
            for name in write(tree, target, ROOT):
                print(name)
    except headers.TreeError as error:
        print(f"FAIL {error}", file=sys.stderr)
        print("0 passed, 1 failed, 0 skipped")
        return 1
    return 0


sys.exit(main())
