#!/usr/bin/env python3
"""Makes the crates as they are published: fastnorm-sys and fastnorm, and for candle
fastnorm-candle-ops and fastnorm-candle. Prints the paths of the .crate files.

    packages/rust/crates.py --work build-crates --out dist

fastnorm-sys gets vendor/: the sources of the CPU backend, and units.txt, which has a line for each
object with its flags. Meson says which sources and flags there are, for x86-64 and AArch64. """

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "packages"))
from version import version as project_version  # noqa: E402

# Workspaces, and the crates of each that are published.
SPACE, CANDLE = "bindings/rust", "integrations/candle"
CRATES = {"fastnorm-sys": f"{SPACE}/fastnorm-sys", "fastnorm": f"{SPACE}/fastnorm"}
CANDLE_CRATES = {
    "fastnorm-candle-ops": f"{CANDLE}/ops",
    "fastnorm-candle": f"{CANDLE}/fastnorm-candle",
}
FLAG_SEPARATOR = "\x1f"
# Arguments of a compiler that a crate does not need: what build.rs chooses itself, and what only
# people see.
DROPPED = re.compile(
    r"-(W|O|g|I|M|std=|o$|c$|fdiagnostics|fPIC|ffile-prefix|fmacro-prefix|D_FILE_OFFSET)"
)
PROCESSORS = {"x86_64": [], "aarch64": ["--cross-file", ROOT / "tools" / "testing" / "aarch64.ini"]}


def run(command, **options):
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    if result.returncode != 0:
        raise SystemExit(
            f"{' '.join(map(str, command))} ended with {result.returncode}\n"
            f"{result.stdout}{result.stderr}"
        )
    return result.stdout


def tool(name):
    beside = ROOT / ".venv" / "bin" / name
    return beside if beside.exists() else name


def units(work, processor):
    """(source, flags) of each object of the library of one processor."""
    build = work / f"units-{processor}"
    shutil.rmtree(build, ignore_errors=True)
    run(
        [
            tool("meson"),
            "setup",
            build,
            ROOT,
            "--buildtype",
            "release",
            "-Dcuda=disabled",
            "-Dtests=false",
            "-Dtools=false",
            "-Dbench=false",
            *PROCESSORS[processor],
        ],
        env={**os.environ, "PATH": path()},
    )
    found = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = (Path(entry["directory"]) / entry["file"]).resolve()
        if not source.is_relative_to(ROOT / "src"):
            continue
        words = shlex.split(entry["command"])
        flags = list(dict.fromkeys(w for w in words if w.startswith("-") and not DROPPED.match(w)))
        found.append((source, flags))
    if not found:
        raise SystemExit(f"meson compiles nothing of src/ for {processor}")
    return found


def path():
    return f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"


def with_headers(sources):
    """The sources, and all that they include between quotes or of fastnorm/."""
    wanted, queue = set(), list(sources)
    while queue:
        source = queue.pop()
        if source in wanted:
            continue
        wanted.add(source)
        for name in re.findall(r'^\s*#\s*include\s+["<]([^">]+)[">]', source.read_text(), re.M):
            for folder in (source.parent, ROOT / "src", ROOT / "include"):
                if (folder / name).is_file():
                    queue.append((folder / name).resolve())
                    break
    return sorted(wanted)


def make_vendor(work, vendor):
    lines, sources = [], set()
    for processor in PROCESSORS:
        for source, flags in units(work, processor):
            sources.add(source)
            lines.append(
                "\t".join((processor, str(source.relative_to(ROOT)), FLAG_SEPARATOR.join(flags)))
                + "\n"
            )
    for source in with_headers(sources):
        target = vendor / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    for header in (ROOT / "include" / "fastnorm").iterdir():
        shutil.copyfile(header, vendor / "include" / "fastnorm" / header.name)
    fields = vendor / "src" / "schema" / "fields.inc"  # which core includes, and a build makes
    fields.parent.mkdir(parents=True, exist_ok=True)
    run([sys.executable, ROOT / "src" / "schema" / "schema.py", "--cpp", fields])
    (vendor / "units.txt").write_text("".join(lines))


def make_tree(work):
    """A folder with copies of the workspaces, and with what only the published crates have."""
    tree = work / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    for name in run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        + [SPACE, CANDLE]
    ).split("\0"):
        if name and (ROOT / name).is_file():
            target = tree / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
    make_vendor(work, tree / CRATES["fastnorm-sys"] / "vendor")
    for folder in (*CRATES.values(), *CANDLE_CRATES.values()):
        shutil.copyfile(ROOT / "LICENSE", tree / folder / "LICENSE")
    return tree


def cargo_home(folder, more=""):
    """A home of cargo with what the user's has, but for unpacked crates: cargo takes an unpacked
    fastnorm-sys of the same version for the one that it packs. more: lines of config.toml."""
    own = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "registry").mkdir(parents=True)
    for name in ("registry/index", "registry/cache", "git"):
        (own / name).mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(own / name)
    settings = own / "config.toml"
    text = settings.read_text() if settings.exists() else ""
    (folder / "config.toml").write_text(f"{text}\n{more}")
    return folder


def pack(space, target, home, *more):
    """The crates of a workspace."""
    # Packed files have one time, by which cargo takes changed ones for those of an earlier run.
    shutil.rmtree(target, ignore_errors=True)
    run(
        ["cargo", "package", "--workspace", "--allow-dirty", "--locked", *more],
        cwd=space,
        env={
            **os.environ,
            "CARGO_HOME": str(home),
            "CARGO_TARGET_DIR": str(target),
            "DOCS_RS": "1",
        },
    )
    return sorted((target / "package").glob("*.crate"))


def make(work, out):
    """All crates. Those of bindings/rust are each compiled once from what is packed, as
    documentation is: without a library. Those for candle are not, which would compile candle."""
    work = work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    tree = make_tree(work)
    made = pack(tree / SPACE, work / "target", cargo_home(work / "home"))
    # The registry does not have this version of fastnorm yet.
    here = "".join(f'{name} = {{ path = "{tree / place}" }}\n' for name, place in CRATES.items())
    home = cargo_home(work / "home-candle", f"[patch.crates-io]\n{here}")
    made += pack(tree / CANDLE, work / "target-candle", home, "--no-verify")
    version = project_version()
    wanted = sorted(f"{name}-{version}.crate" for name in (*CRATES, *CANDLE_CRATES))
    if sorted(crate.name for crate in made) != wanted:
        raise SystemExit(
            f"cargo package made {sorted(p.name for p in made)}; required: {', '.join(wanted)}"
        )
    out.mkdir(parents=True, exist_ok=True)
    return [Path(shutil.copy(crate, out)) for crate in made]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for what is made on the way"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the crates")
    options = parser.parse_args()
    for crate in make(options.work, options.out):
        print(crate)


if __name__ == "__main__":
    sys.exit(main())
