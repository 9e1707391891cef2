#!/usr/bin/env python3
"""campaign.py on a table of its own, whose programs need no GPU. campaign_test.py [PROGRAM]

With fastnorm_bench every part's options are read: on a GPU that no machine has, so that nothing is
measured."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "abi"))
sys.path.insert(0, str(HERE))
import campaign  # noqa: E402
from cases import Cases  # noqa: E402
from compare import lines  # noqa: E402

# Writes a file of results: one more with each call, up to three.
COUNTS = """
import sys, pathlib
sys.path.insert(0, {bench!r})
from compare import lines
path = pathlib.Path(sys.argv[sys.argv.index("--csv") + 1])
document = lines.read(path) if path.exists() else {{"device": "d", "results": []}}
document["results"].append({{"op": "rms", "us": 1.5, "given": " ".join(sys.argv[1:3])}})
lines.write(path, document)
sys.exit(0 if len(document["results"]) == 3 or "whole" in sys.argv else lines.EXIT_LEFT)
"""


def test_words(cases):
    parts = {part.name: part for part in campaign.read_parts(HERE / "campaign.csv")}
    found = parts["large"].words(Path("/b"), "cuda:1")
    wanted = ["/b/fastnorm_bench", "--device", "cuda:1", "--shapes", "large", "--dtypes"]
    cases.equal("a part of fastnorm_bench", found[:6], wanted)
    found = parts["f32_codes"].words(Path("/b"), "cuda:0")
    cases.equal("pairs of braces", found[found.index("--shapes") + 1],
                "4096x1024,4096x2048,4096x4096,4096x8192,4096x16384,1x4096,128x8192")
    cases.equal("two braces", campaign.pairs_of("{1,2}x{3,4}@1,5x6"),
                "1x3@1,1x4@1,2x3@1,2x4@1,5x6")
    for part in parts.values():
        program = part.words(HERE, "cuda:0")[part.command.startswith("PYTHON")]
        if part.command.startswith("PYTHON"):
            cases.check(f"{part.name}: {program} is there", Path(program).is_file())
    for text, card in [("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H200", "h200"),
                       ("NVIDIA A100-SXM4-80GB", "a100")]:
        cases.equal(text, campaign.card_of([text]), card)
    cases.equal("no GPU", campaign.card_of([]), "host")


def test_runs(cases, work):
    program = work / "counts.py"
    program.write_text(COUNTS.format(bench=str(HERE)))
    table = work / "table.csv"

    def write(*rows):
        table.write_text("part,gpus,seconds,more,needs,command\n" + "\n".join(rows) + "\n")

    def run(*given):
        command = [sys.executable, HERE / "campaign.py", "--table", table, "--out", work / "out",
                   "--card", "c", *given]
        nothing = dict(os.environ, PATH=str(work))  # no nvidia-smi
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=nothing)
        states = dict(line.split(None, 1) for line in done.stdout.splitlines())
        return done.returncode, states, done.stderr

    write(
        f"whole,0,1,,,PYTHON {program} whole",
        f"pieces,0,1,1,,PYTHON {program} some",
        "two,2,1,,,BENCH --shapes large",
        f"long,0,900,,,PYTHON {program} whole",
    )
    code, states, _ = run("--list")
    cases.equal("--list", (code, states["whole"], states["pieces"]), (0, "1 s", "1 s or more"))
    cases.check("--list runs nothing", not list((work / "out").glob("*.csv")))
    code, states, _ = run("--seconds", "300")
    cases.equal("some are left", code, lines.EXIT_LEFT)
    cases.check("a part is made", states["whole"].startswith("made in"), states["whole"])
    cases.check("a part goes on", states["pieces"].startswith("left: "), states["pieces"])
    cases.equal("GPUs lack", states["two"], "needs 2 GPUs, here are 0")
    cases.equal("no time", states["long"], "left: no time")
    cases.check("no file of a part that is left", not (work / "out" / "c_pieces.csv").exists())
    run("--seconds", "300")
    code, states, _ = run("--seconds", "300")
    cases.check("the third call makes it", states["pieces"].startswith("made in"))
    cases.equal("what is there is left out", states["whole"], "there")
    found = lines.read(work / "out" / "c_pieces.csv")["results"]
    cases.equal("pieces add up", len(found), 3)
    cases.equal("options of a part", found[0]["given"], "some --csv")
    code, states, _ = run("--parts", "whole", "--fresh")
    cases.check("--fresh", code == 0 and states["whole"].startswith("made in"), states)
    cases.equal("--fresh forgets", len(lines.read(work / "out" / "c_whole.csv")["results"]), 1)

    # The order, what a part needs, and how much of the seconds it has.
    for name in ("whole", "pieces"):
        (work / "out" / f"c_{name}.csv").unlink()
    order = work / "order.py"
    order.write_text(COUNTS.format(bench=str(HERE)) + "\n")
    write(
        f"one,0,1,1,,PYTHON {order} whole",
        f"two,0,1,,json or no_such_module,PYTHON {order} whole",
        f"three,0,1,,NO_SUCH_VARIABLE or no_such_module,PYTHON {order} whole",
    )
    code, states, text = run("--parts", "two,three,one", "--seconds", "300", "--most", "50",
                             "--commit", "abc")
    cases.equal("--parts has the order", list(states), ["two", "three", "one"])
    cases.check("one of two alternatives is enough", states["two"].startswith("made in"), states)
    cases.equal("a need is named", states["three"], "needs NO_SUCH_VARIABLE or no_such_module")
    cases.equal("what is needed and lacks is no failure", code, 0)
    log = (work / "out" / "c_one.log").read_text()
    cases.check("--most bounds a part", "--seconds 45" in log, log)
    told = lines.read(work / "out" / "c_one.csv")["campaign"]
    cases.equal("the commit is kept", told["commit"], "abc")
    cases.check("versions of packages are kept", isinstance(told["packages"], dict), told)
    code, states, _ = run("--dry-run")
    cases.check("--dry-run prints commands", code == 0 and states["one"].endswith("order.py whole"),
                states)

    write("bad,0,1,,,PYTHON nowhere.py", f"good,0,1,,,PYTHON {program} whole")
    code, states, _ = run()
    cases.equal("a failed part", code, 1)
    cases.check("a failed part is named", states["bad"].startswith("failed with exit code 2: "),
                states["bad"])
    cases.check("its log has why", "nowhere.py" in (work / "out" / "c_bad.log").read_text())
    cases.check("others go on", states["good"].startswith("made in"), states["good"])
    code, _, text = run("--parts", "good,worse")
    cases.equal("an unknown part", code, 2)
    cases.check("an unknown part is named", "--parts has worse" in text, text)
    write("a,0,1,,,BENCH", "a,0,1,,,BENCH")
    code, _, text = run()
    cases.check("a name stands twice", code != 0 and "part a stands twice" in text, text)


def test_options(cases, program):
    """What campaign.csv asks fastnorm_bench for is there."""
    for part in campaign.read_parts(HERE / "campaign.csv"):
        if part.command.startswith("BENCH") and part.gpus:
            words = [program, *part.words(HERE, "cuda:99")[1:]]
            done = subprocess.run(words, capture_output=True, text=True)
            cases.check(f"options of {part.name}", done.returncode == 1 and
                        re.search(r"CUDA|cuda:99", done.stderr), done.stderr)
    for given in (["--shapes", "nowhere"], ["--ops", "rms_nothing"], ["--nothing"]):
        words = [program, "--device", "cuda:99", *given]
        done = subprocess.run(words, capture_output=True, text=True)
        cases.check(f"{given} is no option", done.returncode and
                    not re.search(r"CUDA|cuda:99", done.stderr), done.stderr)


def main():
    cases = Cases()
    test_words(cases)
    if len(sys.argv) > 1:
        test_options(cases, sys.argv[1])
    with tempfile.TemporaryDirectory() as work:
        test_runs(cases, Path(work))
    cases.finish()


if __name__ == "__main__":
    main()
