#!/usr/bin/env python3
"""Makes the Conan recipe and the vcpkg port of a source archive. Prints their folders.

    packages/recipes.py --archive dist/libfastnorm-0.2.0.tar.gz --out dist

Both fetch the archive from the release's page, or from --url, and know its hash.
"""

import argparse
import hashlib
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from version import version as project_version  # noqa: E402

HOMEPAGE = "https://github.com/libfastnorm/libfastnorm"


def make(archive, out, url=None):
    """The folders out/conan and out/vcpkg/fastnorm."""
    version, data = project_version(), archive.read_bytes()
    values = {
        "@VERSION@": version,
        "@URL@": url or f"{HOMEPAGE}/releases/download/v{version}/{archive.name}",
        "@SHA256@": hashlib.sha256(data).hexdigest(),
        "@SHA512@": hashlib.sha512(data).hexdigest(),
    }
    made = []
    for name, target in (("conan", out / "conan"), ("vcpkg", out / "vcpkg" / "fastnorm")):
        shutil.rmtree(target, ignore_errors=True)
        for path in sorted((HERE / name).rglob("*")):
            if path.is_dir() or "__pycache__" in path.parts:
                continue
            text = path.read_text()
            for key, value in values.items():
                text = text.replace(key, value)
            place = target / path.relative_to(HERE / name)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        made.append(target)
    return made


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--archive", type=Path, required=True, help="the source archive")
    parser.add_argument("--out", type=Path, required=True, help="folder for both")
    parser.add_argument("--url", help="where the archive is (default: the release's page)")
    options = parser.parse_args()
    if not options.archive.is_file():
        parser.error(f"{options.archive} does not exist; required: a source archive")
    for folder in make(options.archive, options.out, options.url):
        print(folder)


if __name__ == "__main__":
    main()
