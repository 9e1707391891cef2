#!/usr/bin/env python3
"""What an optional field of a call costs: adds one to norm_backward in a copy of the tree, and says
which files that takes by hand, and which are generated.

    tools/cost_of_change.py               the field is in the headers, the table of fields and
                                          every language; the files by hand are those that
                                          CONTRIBUTING.md names, and few
    tools/cost_of_change.py --build DIR   builds the library and the bindings of the copy, too, in
                                          DIR, and runs the tests of the schema and of all languages

The field has no arithmetic: what a real one needs in kernels, models and tests of values is beside
what is counted here.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECTION = "## Add a field to a call"
MOST_BY_HAND = 11
STRUCT, FIELD = "norm_backward_args", "trial_factor"
COMMENT = "Finite; 0 where there is none."
LANGUAGES = {  # how each spells it
    "bindings/go/args.go": "TrialFactor float32",
    "bindings/rust/fastnorm/src/fields.rs": f"pub fn {FIELD}(",
    "bindings/rust/fastnorm-sys/src/ffi.rs": f"pub {FIELD}: f32",
    "packages/python/fastnorm/headers.py": f'"{FIELD}"',
}
JAVA = re.compile(r"\btrialFactor\(")


def add_to_header(text):
    """Behind the last field, with padding to a multiple of 8 bytes."""
    end = f"}} fastnorm_{STRUCT};"
    field = f"  float {FIELD}; /**< {COMMENT} */\n  int32_t trial_reserved; /**< 0. */\n"
    return text.replace(end, field + end)


def add_to_table(text):
    lines = text.splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if line.startswith(f"{STRUCT},"))
    major, minor = lines[last].strip().rsplit(",", 1)[1].split(".")
    since = f"{major}.{int(minor) + 1}\n"
    lines[last + 1 : last + 1] = [
        f"{STRUCT},{FIELD},number,f32,,,,,0,{since}",
        f"{STRUCT},trial_reserved,reserved,i32,,,,,0,{since}",
    ]
    return "".join(lines)


def add_to_check(text):
    """Behind the check of the padding that is there: finite, and padding of 0."""
    before = 'FASTNORM_TRY(check_reserved("stage_reserved", args_.stage_reserved, error));\n'
    checks = f"""    FASTNORM_TRY(check_finite("{FIELD}", args_.{FIELD}, error));
    FASTNORM_TRY(check_reserved("trial_reserved", args_.trial_reserved, error));
"""
    return text.replace(before, before + checks)


BY_HAND = {
    "include/fastnorm/norm_backward.h": add_to_header,
    "src/schema/fields.csv": add_to_table,
    "src/core/norm_backward/check.cpp": add_to_check,
}
# CONTRIBUTING.md names the files of norm. Each family has its own.
NAMED_AS = {
    "include/fastnorm/norm_backward.h": "include/fastnorm/norm.h",
    "src/core/norm_backward/check.cpp": "src/core/norm/check.cpp",
}


class Count:
    def __init__(self):
        self.passed = self.failed = 0

    def check(self, name, good, why=""):
        self.passed, self.failed = self.passed + bool(good), self.failed + (not good)
        if not good:
            print(f"FAIL {name}: {why}")
        return good

    def run(self, name, command, folder):
        """A command that must end well."""
        result = subprocess.run(
            [str(c) for c in command], cwd=folder, capture_output=True, text=True, errors="replace"
        )
        text = result.stdout + result.stderr
        return self.check(name, result.returncode == 0, text[-4000:])


def copy_tree(folder):
    """The files that git knows, as they are in this checkout."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    names = [name for name in names.split("\0") if name and (ROOT / name).is_file()]
    for name in names:
        to = folder / name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to)
    if (ROOT / ".venv").exists():
        (folder / ".venv").symlink_to(ROOT / ".venv")
    return names


def add_field(count, tree):
    """Edits by hand, then the commands of CONTRIBUTING.md; whether all went well."""
    for name, edit in BY_HAND.items():
        text = (tree / name).read_text()
        edited = edit(text)
        if not count.check(f"{name} is edited", edited != text, "nothing was found to edit"):
            return False
        (tree / name).write_text(edited)
    with tempfile.TemporaryDirectory() as folder:
        layout = [sys.executable, "tests/abi/layout.py", "--include", "include", "--update"]
        return (
            count.run("layout", [*layout, "--work", folder], tree)
            and count.run("generate.py", [sys.executable, "bindings/swig/generate.py"], tree)
            and count.run("table", [sys.executable, "src/schema/schema.py", "--check"], tree)
        )


def named_by_contributing():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.split(SECTION, 1)[1].split("\n## ", 1)[0]
    return set(re.findall(r"`([^`\s]+)`", section))


def compare(count, tree, names):
    """What was changed, beside what CONTRIBUTING.md says."""
    changed = [n for n in names if (tree / n).read_bytes() != (ROOT / n).read_bytes()]
    generated = [name for name in changed if name not in BY_HAND]
    named = named_by_contributing()
    for name in BY_HAND:
        count.check(
            f"{name} in CONTRIBUTING.md", NAMED_AS.get(name, name) in named, f"not in {SECTION!r}"
        )
    count.check(
        "files by hand", len(BY_HAND) <= MOST_BY_HAND, f"{len(BY_HAND)}, at most {MOST_BY_HAND}"
    )
    for name, word in LANGUAGES.items():
        count.check(f"{name} has the field", word in (tree / name).read_text(), f"no {word!r}")
    with tempfile.TemporaryDirectory() as folder:
        java = [sys.executable, "bindings/swig/generate.py", "--java", folder]
        if count.run("generate.py --java", java, tree):
            texts = [path.read_text() for path in Path(folder).rglob("*.java")]
            count.check("Java has the field", any(map(JAVA.search, texts)), "no setter")
    print(f"{len(BY_HAND)} files by hand: {', '.join(BY_HAND)}")
    print(f"{len(generated)} generated: {', '.join(generated)}")


def build(count, tree, folder):
    """The library, the tests of the schema, and those of each language."""
    venv = ROOT / ".venv" / "bin"
    build, prefix = folder / "build", folder / "prefix"
    for old in (build, prefix):
        shutil.rmtree(old, ignore_errors=True)
    options = ["-Dcuda=disabled", "-Dtools=false", "-Dbench=false", "-Dsimt=false", "-Dlibdir=lib"]
    native = ["--native-file", ROOT / ".venv" / "native.ini"]
    setup = [venv / "meson", "setup", build, *native, *options, f"-Dprefix={prefix}"]
    ninja = [venv / "ninja", "-C", build]
    if not (
        count.run("meson setup", setup, tree)
        and count.run("library", [*ninja, "tests/unit/unit_test", "install"], tree)
    ):
        return
    schema = [build / "tests/unit/unit_test", "--gtest_filter=*Schema*:*Fields*:*Calls*:*CallText*"]
    count.run("tests of the schema", schema, tree)
    for language in ("go", "java", "rust"):
        test = [sys.executable, f"bindings/{language}/test.py", "--work", folder / language]
        test += ["--pkgconfig", prefix / "lib/pkgconfig", "--library-dir", prefix / "lib"]
        count.run(f"tests of {language}", test, tree)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, metavar="DIR", help="builds everything in DIR, too")
    options = parser.parse_args()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        names = copy_tree(tree)
        if add_field(count, tree):
            compare(count, tree, names)
            if options.build:
                options.build.mkdir(parents=True, exist_ok=True)
                build(count, tree, options.build.resolve())
    print(f"{count.passed} passed, {count.failed} failed, 0 skipped")
    return 1 if count.failed else 0


sys.exit(main())
