"""What the tests of engines share: how they are called, how commands run, and tables of figures."""

import argparse
import datetime
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "abi"))
from cases import Cases  # noqa: E402

UNREACHABLE = re.compile(
    r"dial tcp|no such host|i/o timeout|Could not resolve|Couldn't resolve|Could not transfer"
    r"|failed to download|spurious network error|Connection timed out|Unknown host"
    r"|Network is unreachable|lookup disabled|503 Service Unavailable"
)


class Session:
    """Where things are, how commands run, and the count."""

    def __init__(self, doc, folder):
        parser = argparse.ArgumentParser(
            description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument(
            "--build", type=Path, required=True, help="a Meson build, such as build-test/native"
        )
        parser.add_argument(
            "--work", type=Path, required=True, help="folder for what is fetched and built"
        )
        parser.add_argument(
            "--figures",
            action="store_true",
            help="only measure, and write the table of figures into the source tree",
        )
        options = parser.parse_args()
        self.cases, self.folder, self.figures = Cases(), folder, options.figures
        self.build, self.work = options.build.resolve(), options.work.resolve()
        self.work.mkdir(parents=True, exist_ok=True)
        self.library_dir = self.build / "src"
        # PKG_CONFIG_LIBDIR replaces the system's folders: no other fastnorm.pc can be found.
        self.env = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PKG_CONFIG", "CGO_", "RUSTFLAGS", "MAVEN_"))
        }
        self.env.update(
            PKG_CONFIG_LIBDIR=str(self.build / "meson-uninstalled"),
            LD_LIBRARY_PATH=str(self.library_dir),
        )
        self.before = self.source_files()

    def source_files(self):
        return {
            str(path.relative_to(ROOT)): path.stat().st_mtime_ns
            for path in self.folder.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }

    def run(self, command, cwd=None, timeout=1800, **env):
        """The command's exit status and what it printed."""
        shown = " ".join(map(str, command))
        shown = shown.replace(f"{self.work}/", "").replace(f"{ROOT}/", "")
        print("+", shown if len(shown) <= 98 else f"{shown[:95]}...", flush=True)
        try:
            result = subprocess.run(
                [str(word) for word in command],
                cwd=cwd or self.folder,
                env={**self.env, **env},
                text=True,
                errors="replace",
                timeout=timeout,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except subprocess.TimeoutExpired as stop:
            return -1, (stop.stdout or b"").decode(errors="replace") + "\n(timeout)"
        return result.returncode, result.stdout

    def check(self, name, command, **options):
        """One case: the command ends well. What it printed, or None."""
        code, text = self.run(command, **options)
        good = self.cases.check(name, code == 0, f"exit code {code}\n{text[-6000:]}")
        return text if good else None

    def fetch(self, name, command, **options):
        """Whether the packages are there. Without a registry that answers it is a skip."""
        code, text = self.run(command, **options)
        if code != 0 and UNREACHABLE.search(text):
            self.cases.skip(name, "the packages' registry cannot be reached")
            return False
        return self.cases.check(name, code == 0, f"exit code {code}\n{text[-6000:]}")

    def finish(self):
        if not self.figures:
            changed = sorted(set(self.before.items()) ^ set(self.source_files().items()))
            names = [name for name, _ in changed]
            self.cases.equal("files of the source tree that are new or changed", names, [])
        self.cases.finish()


def processor():
    """The name of this machine's processor, and its number of threads."""
    text = Path("/proc/cpuinfo").read_text()
    name = re.search(r"^model name\s*: (.*)$", text, re.M)
    name = name[1] if name else platform.machine()
    return f"{name}, {len(os.sched_getaffinity(0))} threads"


def commit():
    """The commit that is measured; with a mark where the tree has changes that may matter."""

    def git(*words):
        result = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True)
        return result.stdout.strip()

    name = git("rev-parse", "--short=12", "HEAD") or "unknown"
    changed = git("status", "--porcelain", "--untracked-files=no")
    changed = [line for line in changed.splitlines() if not line.endswith(".md")]
    return f"{name} with changes" if changed else name


def write_figures(session, path, title, about, head, rows):
    """A page with one table, and what it was measured with, if what was measured is right."""
    if session.cases.failed:
        return
    lines = [
        f"# {title}",
        "",
        *about,
        "",
        f"- date: {datetime.date.today().isoformat()}",
        f"- device: {processor()}",
        f"- commit: {commit()}",
        f"- load: {os.getloadavg()[1]:.0f} processes that want to run, over five minutes",
        "",
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]
    path.write_text("\n".join(lines))
