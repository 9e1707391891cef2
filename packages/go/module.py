#!/usr/bin/env python3
"""Makes the Go module as `go get` receives it: a folder that GOPROXY=file://FOLDER reads.

    packages/go/module.py --out dist/go

The module has no list of files: it is what git has of bindings/go, and the licence, as for the tag
bindings/go/vVERSION. Two runs write the same bytes.
"""

import argparse
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "packages"))
from version import version as project_version  # noqa: E402

FOLDER = "bindings/go"
DATE = (1980, 1, 1, 0, 0, 0)


def module_path():
    return re.search(r"^module (\S+)$", (ROOT / FOLDER / "go.mod").read_text(), re.M)[1]


def files():
    """Contents by path inside the module."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard", FOLDER],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = {
        str(Path(name).relative_to(FOLDER)): (ROOT / name).read_bytes()
        for name in sorted(filter(None, listed.split("\0")))
        if (ROOT / name).is_file()
    }
    found.setdefault("LICENSE", (ROOT / "LICENSE").read_bytes())
    return found


def make(out):
    version, module = f"v{project_version()}", module_path()
    folder = out / module / "@v"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "list").write_text(version + "\n")
    # The time of a version is that of its commit; it decides nothing.
    (folder / f"{version}.info").write_text(
        json.dumps({"Version": version, "Time": "1980-01-01T00:00:00Z"}) + "\n"
    )
    contents = files()
    (folder / f"{version}.mod").write_bytes(contents["go.mod"])
    path = folder / f"{version}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in contents.items():
            entry = zipfile.ZipInfo(f"{module}@{version}/{name}", DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data)
    return path


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of modules")
    print(make(parser.parse_args().out))


if __name__ == "__main__":
    main()
