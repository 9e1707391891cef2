#!/usr/bin/env python3
"""Makes a candle-nn whose norms are libfastnorm's, and prints the lines for Cargo.toml that put it
in the place of candle-nn. Models of candle-transformers then run on the library unchanged.

    integrations/candle/patch.py fastnorm-candle-nn

The folder gets candle-nn itself, as Cargo has fetched it, and the crate that stands before it.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def candle_nn():
    """The folder of candle-nn's source, which Cargo fetches."""
    result = subprocess.run(
        ["cargo", "metadata", "--locked", "--format-version", "1", "--manifest-path",
         HERE / "Cargo.toml"],
        capture_output=True,
        text=True,
    )  # fmt: skip
    if result.returncode != 0:
        sys.exit(result.stderr)
    packages = json.loads(result.stdout)["packages"]
    return next(Path(p["manifest_path"]).parent for p in packages if p["name"] == "candle-nn")


def make(folder):
    source = candle_nn()
    shutil.rmtree(folder / "stock", ignore_errors=True)
    shutil.copytree(source, folder / "stock", ignore=shutil.ignore_patterns(".cargo*"))
    # A lock file cannot hold two packages of one name and version.
    manifest = folder / "stock" / "Cargo.toml"
    text = manifest.read_text()
    manifest.write_text(re.sub(r'^(version = "[^"+]+)"$', r'\1+stock"', text, count=1, flags=re.M))
    (folder / "src").mkdir(exist_ok=True)
    shutil.copyfile(HERE / "fastnorm-candle" / "src" / "load.rs", folder / "src" / "load.rs")
    text = (HERE / "candle-nn" / "src" / "lib.rs").read_text()
    text = re.sub(r'#\[path = ".*/load\.rs"\]\n', "", text)
    (folder / "src" / "lib.rs").write_text(text)
    text = (HERE / "candle-nn" / "Cargo.toml").read_text()
    text = text.replace('path = "../ops"', f"path = {json.dumps(str(HERE / 'ops'))}")
    (folder / "Cargo.toml").write_text(text)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="a new folder, or one that this made")
    folder = parser.parse_args().folder.resolve()
    if folder.exists() and any(folder.iterdir()) and not (folder / "stock").exists():
        sys.exit(f"{folder} has files of something else; required: a new or an empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    make(folder)
    print(f"[patch.crates-io]\ncandle-nn = {{ path = {json.dumps(str(folder))} }}")


if __name__ == "__main__":
    main()
