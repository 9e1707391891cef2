"""What the benchmarks of the integrations share: where a figure was measured, and tables in
pages."""

import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "bench"))
from compare import lines  # noqa: E402,F401

BEGIN, END = "<!-- bench.py -->\n", "<!-- end -->\n"


def device():
    """The processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def commit():
    done = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--exclude=*"],
                          capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def with_table(page, table):
    """The page's text with this table between its marks."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"
