"""Programs that are run as a user's: in a folder of their own, with nothing of the checkout in
reach."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "abi"), str(ROOT / "packages")]
from cases import Cases  # noqa: E402

__all__ = ["ROOT", "Cases", "clean_env", "make_prefix", "readme_program", "run_clean"]

# What a shell keeps; the rest could name the checkout.
KEPT = (
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "USER",
    "SSL_CERT_FILE",
    "JAVA_HOME",
    "GOROOT",
    "RUSTUP_HOME",
    "CARGO_HOME",
    "RUSTUP_TOOLCHAIN",
    "GOFLAGS",
    "GOPROXY",
    "GOSUMDB",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
)
PREFIXES = ("PIP_", "CARGO_", "http", "https", "HTTP", "HTTPS", "no_proxy", "NO_PROXY")


def clean_env(**more):
    env = {k: v for k, v in os.environ.items() if k in KEPT or k.startswith(PREFIXES)}
    folders = [f for f in os.environ["PATH"].split(":") if not f.startswith(str(ROOT))]
    return {**env, "PATH": ":".join(folders), "PYTHONDONTWRITEBYTECODE": "1", **more}


def run_clean(cases, name, command, cwd, **env):
    """The output of a command, which is one case; None where it failed."""
    cwd.mkdir(parents=True, exist_ok=True)
    result = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, cwd=cwd, env=clean_env(**env)
    )
    ok = cases.check(
        name,
        result.returncode == 0,
        f"exit code {result.returncode}\n{result.stdout}{result.stderr}"[-4000:],
    )
    return result.stdout if ok else None


def make_prefix(library, folder):
    """An installation with headers and this shared library, by hand: what tools find without
    pkg-config."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "include", folder / "include")
    (folder / "lib").mkdir()
    shutil.copyfile(library.resolve(), folder / "lib" / "libfastnorm.so.1")
    (folder / "lib" / "libfastnorm.so").symlink_to("libfastnorm.so.1")
    return folder


def readme_program(page, language):
    """The first program of a page, and the text that the page says it prints, or None. Between the
    two there may be a sentence without code."""
    found = re.search(
        rf"^```{language}\n(.*?)^```\n(?:[^`]*?^```text\n(.*?)^```)?", page.read_text(), re.M | re.S
    )
    return (found[1], found[2]) if found else (None, None)
