"""Times of stages, and what they may take: stages.csv has CPU seconds as multiples of a yardstick."""

import csv
import os
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUDGETS = HERE.parent / "stages.csv"
PROGRAM = HERE / "yardstick.cpp"
ROOM = 1.3  # of a budget


def processor_seconds():
    """Of all programs that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def yardstick(folder):
    """CPU seconds that compiling one fixed file and running its program take, once each."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "yardstick"
    before = processor_seconds()
    subprocess.run(["g++", "-std=c++20", "-O2", str(PROGRAM), "-o", str(program)], check=True)
    subprocess.run([str(program)], check=True, stdout=subprocess.DEVNULL)
    return processor_seconds() - before


def read_budgets(path=BUDGETS):
    """{stage: {"part": yardsticks or None, "whole": yardsticks or None}}"""
    with open(path, newline="") as file:
        lines = [line for line in file if not line.startswith("#")]
    return {
        row["stage"]: {kind: float(row[kind]) if row[kind] else None for kind in ("part", "whole")}
        for row in csv.DictReader(lines)
    }


def write_budgets(budgets, path=BUDGETS):
    head = [line for line in path.read_text().splitlines() if line.startswith("#")]
    lines = [*head, "stage,part,whole"]
    for stage, of in budgets.items():
        numbers = ["" if of[kind] is None else f"{of[kind]:g}" for kind in ("part", "whole")]
        lines.append(",".join([stage, *numbers]))
    path.write_text("\n".join(lines) + "\n")


def over_budget(times, modes, budgets, unit):
    """What is wrong with the times: [(stage, text)]. times: (stage, wall, CPU seconds)."""
    faults = []
    for stage, _, computed in times:
        kind = modes.get(stage, "whole")
        allowed = budgets.get(stage, {}).get(kind)
        if allowed is None:
            faults.append((stage, f"tools/stages.csv has no budget for it, {kind}"))
        elif computed > allowed * ROOM * unit:
            faults.append(
                (
                    stage,
                    f"{computed:.0f} s of processors are {computed / unit:.1f} yardsticks of "
                    f"{unit:.2f} s; the budget is {allowed:g}, with {ROOM - 1:.0%} of room",
                )
            )
    return faults


def recorded(times, modes, budgets, unit):
    """The budgets with those of a run in place of the old ones. That of the set-up stays, as most
    of it was there."""
    new = {stage: dict(of) for stage, of in budgets.items()}
    for stage, _, computed in times:
        if stage == "setup":
            continue
        of = new.setdefault(stage, {"part": None, "whole": None})
        of[modes.get(stage, "whole")] = float(f"{max(computed / unit, 1):.2g}")
    return new


def write_times(path, times, modes, budgets, unit):
    lines = ["stage,mode,wall_seconds,cpu_seconds,yardsticks,budget"]
    for stage, wall, computed in times:
        kind = modes.get(stage, "whole")
        allowed = budgets.get(stage, {}).get(kind)
        lines.append(
            f"{stage},{kind},{wall:.1f},{computed:.1f},{computed / unit:.1f},"
            f"{'' if allowed is None else f'{allowed:g}'}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
