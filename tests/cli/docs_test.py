#!/usr/bin/env python3
"""Every `fastnorm` command of README.md and docs/ runs; what a page shows of its output is what it
prints."""

import re
import shlex
from pathlib import Path

import numpy as np
import tensor_file
from program import SUCCESS, main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def commands(text):
    """(words, output lines shown below it) of each `fastnorm` command in a block of code."""
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S):
        lines = block.replace("\\\n", " ").splitlines()
        if kind not in ("console", "sh"):
            continue
        for i, line in enumerate(lines):
            command = line.removeprefix("$ ")
            if command.startswith("fastnorm "):
                words = shlex.split(command, comments=True)
                shown = []
                while (
                    kind == "console" and i + 1 < len(lines) and not lines[i + 1].startswith("$ ")
                ):
                    i += 1
                    shown.append(lines[i])
                yield words[1:], shown


def has_gpu(program):
    return any(
        d["device"].startswith("cuda") for d in program.json("info --json", "info")["devices"]
    )


def check_output(cases, name, printed, shown):
    """Each line shown is printed, in this order; '..' ends a line of which the rest is left out."""
    printed = iter(printed.splitlines())
    for line in shown:
        start = line.removesuffix("..").rstrip()
        found = any(p == line or (line.endswith("..") and p.startswith(start)) for p in printed)
        cases.check(f"{name} prints '{line}'", found)


def make_inputs(work):
    values = np.linspace(-2, 2, 4 * 64, dtype=np.float32)
    tensor_file.write(work / "in.safetensors", {
        "hidden": ("BF16", (4, 64), tensor_file.encode("BF16", values)),
        "residual": ("BF16", (4, 64), tensor_file.encode("BF16", values[::-1])),
        "dy": ("BF16", (4, 64), tensor_file.encode("BF16", values**2)),
        "rstd": ("F32", (4,), np.linspace(0.5, 1, 4, dtype=np.float32).tobytes()),
        "gain": ("BF16", (64,), tensor_file.encode("BF16", values[:64])),
        "branch": ("BF16", (4, 64), tensor_file.encode("BF16", values * 3)),
        **{name: ("BF16", (1, 64), tensor_file.encode("BF16", values[64:128]))
           for name in ("gate", "scale", "shift")},
    })
    rows, index = values.astype(np.float32), np.arange(2, dtype=np.int32)
    heads = {name: ("F32", (2, count, 16), rows[:2 * count * 16].tobytes())
             for name, count in (("q", 2), ("k", 1), ("v", 1))}
    weights = {name: ("F32", (16,), rows[:16].tobytes()) for name in ("q_norm", "k_norm")}
    tables = {name: ("F32", (2, 8), rows[:16].tobytes()) for name in ("cos", "sin")}
    numbers = {name: ("I32", (2,), index.tobytes()) for name in ("positions", "slots")}
    tensor_file.write(work / "layer.safetensors", {**heads, **weights, **tables, **numbers})


def test(program):
    cases, gpu = program.cases, has_gpu(program)
    make_inputs(program.work)
    found = 0
    for page in PAGES:
        for words, shown in commands(page.read_text()):
            name = f"{page.relative_to(ROOT)}: fastnorm {' '.join(words)}"
            found += 1
            if any(w.startswith("cuda:") for w in words) and not gpu:
                cases.skip(name, "no GPU")
                continue
            check_output(cases, name, program.expect(name, SUCCESS, *words), shown)
    cases.check("the pages have commands", found >= 8, found)


main(test)
