#!/usr/bin/env python3
"""Writes every measured table and sentence of README.md and docs/ from bench/results, those of the
integrations, and the committed plots.

    bench/tables.py              what stands between "<!-- bench/tables.py NAME -->" and
                                 "<!-- end -->" is written anew; lines of bench/older.csv that are
                                 no longer needed go
    bench/tables.py --check      changes nothing; exit code 1 where something would change, where a
                                 page has a figure of an older version that bench/older.csv does
                                 not list, a figure of no file, or where another library is faster
                                 and bench/reasons.csv has no reason
    bench/tables.py --stale VERSION
                                 as a release asks: exit code 1 where a page has figures that are
                                 not of this minor version and bench/older.csv has no reason
    bench/tables.py --list-older after a new version: bench/older.csv gets a line for each file that
                                 is of an older one
"""

import argparse
import csv
import io
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
from compare import model_tables  # noqa: E402
from pages import check, families, norms  # noqa: E402
from pages import faster as faster_cases  # noqa: E402
from pages.files import RESULTS, ROOT, Missing, Shelf, project_version  # noqa: E402


def of_models(make, patterns):
    return lambda shelf: make([f.content for p in patterns for f in shelf.matching(p)])


TABLES = {
    **{f.__name__: f for f in (
        norms.readme, norms.large, norms.decode, norms.codes, norms.heads, norms.short, norms.host,
        norms.beside, norms.beside_short, norms.grid, norms.rounded, norms.far, norms.cpu,
        families.adaln_more, families.backward, families.stages_backward, families.gradients,
        families.norm_heads, families.across_heads, families.heads_backward, families.heads_beside,
        families.vllm, families.mla_decode, families.peers, families.nccl, families.rotation,
        families.pdl, faster_cases.faster,
    )},
    "gated_norm": families.stages("gated", (1152, 2304, 3072, 4096, 8192)),
    "sandwich_norm": families.stages("sandwich", (1152, 3072, 4096, 8192)),
    "adaln": families.stages("adaln", (1152, 3072, 4096, 8192)),
    **{name: of_models(*table) for name, table in model_tables.TABLES.items()},
}
PLOTS = ROOT / "docs" / "plots"
DRAWN_FROM = ("h200_compare.csv", "h200_grid.csv")
# Programs of the integrations that write a table from a result file, with what they need.
INTEGRATIONS = (
    ("integrations/onnxruntime/bench.py", "--table", "--check"),
)


def mark(name):
    return f"<!-- bench/tables.py {name} -->\n"


def marks_of(text):
    """Names of a page's tables, in order."""
    start = mark("\0").split("\0")[0]
    return [line[len(start):].removesuffix(" -->") for line in text.splitlines()
            if line.startswith(start)]


def renewed(text, shelf):
    for name in marks_of(text):
        if name not in TABLES:
            raise Missing(f"nothing makes the table {name}; known: {', '.join(TABLES)}")
        head, rest = text.split(mark(name), 1)
        tail = rest[rest.index("<!-- end -->"):]
        text = head + mark(name) + "\n".join(TABLES[name](shelf)) + "\n" + tail
    return text


def renew_pages(write):
    """(page, what is wrong with it) where something changes or cannot be made; {page: files}."""
    faults, shown = [], {}
    for page in check.pages():
        old = page.read_text()
        if not marks_of(old):
            shown[page] = []
            continue
        shelf = Shelf()
        try:
            new = renewed(old, shelf)
        except Missing as why:
            faults.append(f"{page.relative_to(ROOT)}: {why}")
            continue
        finally:
            shown[page] = list(shelf.used.values())
        if new != old and write:
            page.write_text(new)
            print(f"{page.relative_to(ROOT)}: written")
        elif new != old:
            faults.append(f"{page.relative_to(ROOT)}: tables are not those of bench/results")
    return faults, shown


def renew_plots(write):
    """The committed plots; nothing where matplotlib is not there, as tools/docs looks at them."""
    committed = sorted(PLOTS.glob("*.svg"))
    if not committed:
        return []
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print("plots: matplotlib is not here; tools/docs compares them")
        return []
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, ROOT / "bench" / "compare.py", "plot"]
        command += [RESULTS / name for name in DRAWN_FROM if (RESULTS / name).exists()]
        drawn = subprocess.run([str(c) for c in (*command, "--out", folder)], capture_output=True,
                               text=True)
        if drawn.returncode:
            return [f"bench/compare.py plot: {drawn.stderr.strip()}"]
        for path in committed:
            made = Path(folder) / path.name
            if not made.exists():
                faults.append(f"{path.relative_to(ROOT)}: nothing draws it")
            elif made.read_bytes() != path.read_bytes():
                if write:
                    path.write_bytes(made.read_bytes())
                    print(f"{path.relative_to(ROOT)}: written")
                else:
                    faults.append(f"{path.relative_to(ROOT)} is not what bench/compare.py draws")
    return faults


def renew_integrations(write):
    faults = []
    for program, table, compare in INTEGRATIONS:
        command = [sys.executable, ROOT / program, table if write else compare]
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
        if done.returncode:
            faults.append(f"{program}: {(done.stdout + done.stderr).strip()[-300:]}")
    return faults


def list_older(shown, add):
    """Writes bench/older.csv: lines that stay keep their reasons, those that are no longer needed
    go. add: files that are missing there come in."""
    kept = {row["file"]: row for row in check.read(check.OLDER)}
    rows = {}
    for _, name, version in check.older(shown, project_version()):
        before = kept.get(name)
        if before and before["version"] == version:
            rows[name] = before
        elif add:
            rows[name] = {"file": name, "version": version, "why": check.UNMEASURED}
    out = io.StringIO()
    writer = csv.DictWriter(out, ["file", "version", "why"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows[name] for name in sorted(rows))
    notes = [line for line in check.OLDER.read_text().splitlines() if line.startswith("#")]
    check.OLDER.write_text("\n".join(notes) + "\n" + out.getvalue())


def all_faults(shown):
    """What --check finds beside tables that differ."""
    yield from check.faults_of_older(shown, project_version(), check.read(check.OLDER))
    quoted = check.read(check.QUOTED)
    for page in shown:
        yield from check.faults_of_prose(str(page.relative_to(ROOT)), page.read_text(), quoted)
    known = {str(page.relative_to(ROOT)) for page in shown}
    for row in quoted:
        if row["page"] not in known:
            yield f"bench/quoted.csv: {row['page']} is no page"
    yield from faster_cases.without_reason()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument("--stale", metavar="VERSION", help="change nothing")
    parser.add_argument("--list-older", action="store_true", help="write bench/older.csv alone")
    options = parser.parse_args()
    write = not (options.check or options.stale or options.list_older)
    faults, shown = renew_pages(write)
    if options.list_older:
        faults = []
        list_older(shown, add=True)
    elif options.stale:
        faults += check.faults_of_older(
            shown, options.stale, check.read(check.OLDER), release=True
        )
    else:
        faults += renew_plots(write) + renew_integrations(write)
        if write:  # pages name other files than before
            shown = renew_pages(False)[1]
            list_older(shown, add=False)
        faults += all_faults(shown)
    for fault in faults:
        print(fault)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
