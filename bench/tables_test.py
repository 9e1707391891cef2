#!/usr/bin/env python3
"""bench/tables.py: that each of its checks can fail, on files of its own. tables_test.py"""

import csv
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / "tests" / "abi"), str(HERE)]
import tables  # noqa: E402
from cases import Cases  # noqa: E402
from compare import lines  # noqa: E402
from pages import check, faster, files, norms  # noqa: E402

VERSION = files.project_version()


def document(version=VERSION, results=(), **more):
    return {"device": "NVIDIA H200", "date": "2026-11-30T00:00:00Z",
            "library": {"version": version, "build": f"version: {version}\n"},
            "results": list(results), **more}


def case(op, m, n, us, **more):
    return {"op": op, "dtype": "bf16", "rows": m, "n": n, "us": us, "ratio": us / 10,
            "ceiling_us": 10.0, "spread": 0.01, **more}


def test_pages(cases, work):
    """Tables follow from the files, and a number that is changed by hand is seen."""
    shelf = files.Shelf(work)
    lines.write(work / "h200_large.csv", document(
        results=[case(op, 4096, n, 12.0) for op in norms.OPS for n in (1024, 2048, 4096, 5120, 7168,
                                                                      8192, 16384)]))
    page = f"text\n{tables.mark('readme')}<!-- end -->\nmore\n"
    made = tables.renewed(page, shelf)
    cases.check("a table is made", "| 16384 | 12.0 us, 1.200 |" in made, made)
    cases.check("the text around it stays", made.startswith("text\n") and made.endswith("more\n"))
    cases.equal("made again, it is the same", tables.renewed(made, shelf), made)
    cases.check("its version stands above", f"with version {VERSION}, 2026-11-30" in made, made)
    other = made.replace("12.0 us", "11.9 us", 1)
    cases.equal("another number is put right", tables.renewed(other, shelf), made)
    lines.write(work / "h200_large.csv", document("0.1.0", [
        case(op, 4096, n, 12.0) for op in norms.OPS
        for n in (1024, 2048, 4096, 5120, 7168, 8192, 16384)]))
    made = tables.renewed(page, files.Shelf(work))
    cases.check("an older version is named so", "the older version 0.1.0" in made, made)
    lines.write(work / "h100_large.csv", document(results=[case("rms", 4096, 64, 1.0)]))
    found = files.Shelf(work).part("large")
    cases.equal("a newer version of another card counts", found.name, "h100_large.csv")
    for text, why in ((tables.mark("nothing"), "nothing makes the table nothing"),
                      (tables.mark("readme"), "h100_large.csv has no time of rms 4096 1024"),
                      (tables.mark("host"), "host_host_cost.csv is not in bench/results")):
        try:
            tables.renewed(f"{text}<!-- end -->\n", files.Shelf(work))
            said = "nothing"
        except files.Missing as error:
            said = str(error)
        cases.check(f"refused: {why}", why in said, said)


def test_tree(cases, work):
    """The command in a copy of the tree: one number of a page, and one of a file."""
    tree = work / "tree"
    for name in ("bench", "integrations", "packages", "docs", "README.md", "CHANGELOG.md",
                 "meson.build", "bindings", "examples"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns(
                "__pycache__", "target", "node_modules", "build*"))
        else:
            shutil.copy(ROOT / name, tree / name)

    shutil.rmtree(tree / "docs" / "plots")  # drawing takes seconds; tools/docs compares

    def run(*given):
        done = subprocess.run([sys.executable, tree / "bench" / "tables.py", *given],
                              capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    code, said = run("--check")
    cases.equal("the tree is as it should be", code, 0)
    cases.check("and says nothing of pages", "README" not in said, said)
    page, result = tree / "README.md", tree / "bench" / "results" / "h200_large.csv"
    text, data = page.read_text(), result.read_text()
    cell = next(line for line in text.splitlines() if line.startswith("| 4096 |")).split(" us")[0]
    page.write_text(text.replace(cell, cell[:-1] + str((int(cell[-1]) + 1) % 10), 1))
    code, said = run("--check")
    cases.check("a number of a page is changed", code == 1 and
                "README.md: tables are not those of bench/results" in said, said)
    page.write_text(text)
    number = next(row for row in data.splitlines() if row.startswith("rms,bf16,4096,4096,"))
    result.write_text(data.replace(number, number.rsplit(",", 1)[0] + ",99.5"))
    code, said = run("--check")
    cases.check("a number of a file is changed", code == 1 and
                "docs/performance.md: tables are not those of bench/results" in said, said)
    code, said = run()
    cases.check("the command writes it", "99.5 us" in page.read_text(), said)
    cases.equal("then the check is content", run("--check")[0], 0)
    page.write_text(page.read_text() + "\nA call takes 17.3 us.\n")
    code, said = run("--check")
    cases.check("a figure of no file", code == 1 and "A call takes 17.3 us." in said, said)
    page.write_text(text)
    result.write_text(data)
    older = tree / "bench" / "older.csv"
    kept = older.read_text()
    row = next(line for line in kept.splitlines(True) if line[0] != "#" and ".csv" in line)
    older.write_text(kept.replace(row, ""))
    code, said = run("--check")
    cases.check("a file of an older version is not listed", code == 1 and
                f"{row.split(',')[0]} is of " in said, said)
    code, said = run("--list-older")
    cases.check("--list-older lists it", code == 0 and f"{row.split(',')[0]}," in
                older.read_text(), said)
    older.write_text(kept + "no.csv,0.0.1,why\n")
    code, said = run("--check")
    cases.check("a line too many", code == 1 and "older figures of no.csv" in said, said)
    run()
    cases.equal("which the command takes away", older.read_text(), kept)
    reasons = tree / "bench" / "reasons.csv"
    reasons.write_text("card,case,library,reason\n")
    code, said = run("--check")
    cases.check("a case has no reason", code == 1 and "required: its line in bench/reasons.csv"
                in said, said)


def test_older(cases, work):
    """The list holds exactly what pages show of older versions."""
    old, new, none = (work / f"{name}.csv" for name in ("old", "new", "none"))
    lines.write(old, document("0.0.9"))
    lines.write(new, document())
    lines.write(none, {"device": "a", "commit": "b", "date": "c", "results": []})
    page = ROOT / "README.md"
    shown = {page: [files.File(path) for path in (old, new, none)]}
    with patch.object(check, "named_files", lambda text: ()):
        found = {name: of for _, name, of in check.older(shown, VERSION)}
        wanted = {"old.csv": "0.0.9", "none.csv": "no version"}
        cases.equal("files of other versions", found, wanted)

        def faults(*rows, release=False):
            listed = [dict(zip(("file", "version", "why"), row)) for row in rows]
            return list(check.faults_of_older(shown, VERSION, listed, release))

        both = [("old.csv", "0.0.9", "no card"), ("none.csv", "no version", check.UNMEASURED)]
        cases.equal("both are listed", faults(*both), [])
        cases.equal("one is not", len(faults(both[0])), 1)
        cases.equal("one is of another version", len(faults(("old.csv", "0.0.8", "a"), both[1])), 1)
        cases.equal("a line too many", len(faults(*both, ("new.csv", "0.0.9", "a"))), 1)
        found = faults(*both, release=True)
        cases.check("a release wants a reason", len(found) == 1 and "none.csv" in found[0], found)


def test_prose(cases):
    """Figures outside of tables."""
    wrong = ["A call takes 2.3 us.", "It takes 1.2 times as long.", "It is 3 % slower.",
             "at 4.0 TB/s", "takes 5 % less time", "83 ns more",
             "| a | b |\n|---|---|\n| 1.5 | 2.5 us, 1.02 |"]
    right = ["4096 rows of 16 bits", "100 columns", "version 0.2.0", "`sleep 3 us`"[:6],
             "```\n2.3 us\n```", f"{tables.mark('large')}| 2.3 us | 1.5 |\n<!-- end -->",
             "<!-- bench.py -->\n| 2.3 us |\n<!-- end -->", "| a | b |\n|---|---|\n| 1.5 | two |"]
    for text in wrong:
        cases.check(f"refused: {text}", list(check.faults_of_prose("p.md", text, [])))
    for text in right:
        cases.equal(f"allowed: {text}", list(check.faults_of_prose("p.md", text, [])), [])
    quoted = [{"page": "p.md", "text": "takes 2.3 us", "why": "a"}]
    text = "A call takes\n2.3 us."
    cases.equal("quoted", list(check.faults_of_prose("p.md", text, quoted)), [])
    found = list(check.faults_of_prose("q.md", text, quoted))
    cases.equal("quoted for another page", len(found), 1)
    found = list(check.faults_of_prose("p.md", "nothing", quoted))
    cases.equal("a quotation that the page has not", len(found), 1)
    quoted[0]["text"] = "| a | b |"
    found = list(check.faults_of_prose("p.md", wrong[-1], quoted))
    cases.equal("a quoted table", found, [])


def contender(us, spread=0.01):
    return {"us": us, "spread": spread}


def test_faster(cases, work):
    """Every kind of file is read, and spreads count."""
    folder = work / "faster"
    folder.mkdir()

    def beside(**entries):
        return {"op": "rms", "dtype": "bf16", "rows": 1, "n": 8, "ceiling": {"us": 1.0},
                "contenders": entries}

    lines.write(folder / "h200_compare.csv", document(results=[
        beside(**{"fastnorm": contender(2.0), "quack": contender(1.9), "liger": contender(3.0)})]))
    lines.write(folder / "h100_compare.csv", document(results=[
        beside(**{"fastnorm": contender(2.0), "quack": contender(1.97)})]))
    lines.write(folder / "h200_compare_heads.csv", document(results=[
        {**beside(**{"fastnorm": contender(2.0), "fastnorm-pdl": contender(1.5),
                     "flashinfer-cute-pdl": contender(1.4), "torch": contender(9.0)}), "n": 16}]))
    lines.write(folder / "h200_compare_mla_decode.csv", document(results=[
        {"shape": "1x8:16", "dtype": "bf16", "provider": name, "us": us, "spread": 0.01}
        for name, us in (("fastnorm", 2.0), ("flashmla", 1.5))]))
    lines.write(folder / "h200_peers_2.csv", document(results=[
        {"family": "allreduce", "dtype": "bf16", "rows": 1, "n": 8, "ranks": 2, "algorithm": how,
         "us": us, "nccl_us": 4.0, "spread": 0.01} for how, us in (("one", 5.0), ("two", 3.0))]))
    lines.write(folder / "h200_nccl_2.csv", document(ranks=2, results=[
        {"op": "sequence_norm", "dtype": "bf16", "rows": 1, "n": 8, "us": 2.0, "spread": 0.01,
         "by_hand_us": 1.0, "by_hand_spread": 0.01}]))
    lines.write(folder / "h200_models_llama.csv", document(kind="models", results=[
        {"model": "llama", "mode": "decode", "variant": name, "median_ms": ms, "low_ms": ms,
         "high_ms": ms} for name, ms in (("stock", 1.0), ("patch", 1.5), ("stock, compiled", 2.0),
                                         ("patch, compiled", 1.9))]))
    lines.write(folder / "ggml_cpu.csv", {"kind": "ggml", "device": "a", "date": "b", "results": [
        {"op": "NORM", "dtype": "float32", "rows": 1, "n": 8, "us": 1.0, "ggml_us": 0.5,
         "ratio": 2.0}]})
    lines.write(folder / "h200_large.csv", document(results=[case("rms", 1, 8, 2.0)]))
    figures = work / "figures"
    for name in faster.FIGURES:
        (figures / name).mkdir(parents=True)
        shutil.copy(ROOT / "integrations" / name / "figures.md", figures / name)
    found = faster.every_case(folder, figures)
    slow = {(c.card, c.what, c.library) for c in found if c.slower and c.file.name != "figures.md"}
    cases.equal("what is faster", slow, {
        ("h200", "rms, bf16, 1 x 8", "quack"),
        ("h200", "rms, bf16, 1 x 16", "flashinfer-cute-pdl"),
        ("h200", "MLA decode 1x8:16, bf16", "flashmla"),
        ("h200", "sequence_norm of 2 ranks, bf16, 1 x 8", "NCCL and norm"),
        ("h200", "llama, decode, patch", "the original"),
        ("cpu", "NORM, float32, 1 x 8", "ggml"),
    })
    engines = {c.library for c in found if c.file.name == "figures.md"}
    cases.check("engines of the figures", {"candle-nn", "gorgonia", "jlama"} <= engines, engines)
    reasons = [{"card": "h.00", "case": "rms, .*", "library": "quack|flash.*", "reason": "why"}]
    cases.equal("without a reason", len(list(faster.without_reason(
        [c for c in found if c.file.name != "figures.md"], reasons))), 4)
    for path in sorted((HERE / "results").glob("*.csv")):
        words = {"contenders", "provider", "nccl_us", "by_hand_us"}
        beside = [r for r in files.read(path).results if words & set(r)]
        if beside:
            cases.check(f"{path.name} is read", faster.kind_of(files.read(path)) is not None)


def test_lists(cases):
    for path, names in ((check.OLDER, {"file", "version", "why"}),
                        (check.QUOTED, {"page", "text", "why"}),
                        (faster.REASONS, {"card", "case", "library", "reason"})):
        rows = check.read(path)
        cases.check(f"{path.name}: every cell is there",
                    all(set(row) == names and all(row.values()) for row in rows), rows[:3])
    with open(faster.REASONS, newline="") as file:
        cases.check("reasons.csv begins with its words", next(csv.reader(file))[0].startswith("#"))


def main():
    cases = Cases()
    test_prose(cases)
    test_lists(cases)
    for test in (test_pages, test_older, test_faster, test_tree):
        with tempfile.TemporaryDirectory() as work:
            test(cases, Path(work))
    cases.finish()


if __name__ == "__main__":
    main()
