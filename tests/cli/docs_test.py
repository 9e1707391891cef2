#!/usr/bin/env python3
"""Every `fastnorm` command of README.md and docs/ runs; what a page shows of its output is what it
prints."""

import re
import shlex
from pathlib import Path

import numpy as np
import tensor_file
from program import SELFTEST_AS_JSON, SUCCESS, main

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


def examples(program):
    """The commands at the head of each command's help, by the command."""
    found, queue = {}, [[]]
    while queue:
        command = queue.pop()
        text = program.expect(f"{' '.join(command)} --help", SUCCESS, *command, "--help")
        head = text.split("\n\n", 1)[0].replace("\\\n", " ").splitlines()
        if head[0] == "Examples:":
            found[" ".join(command)] = [shlex.split(line)[1:] for line in head[1:]]
        listed = text.partition("\nSubcommands:\n")[2]
        names = re.findall(r"^  (\w+)", listed, re.M)
        queue += [[*command, name] for name in names]
    return found


def check_reference(program):
    """docs/command_line.md against the program: its table has every command, and a section names
    no option that its command lacks."""
    cases, page = program.cases, (ROOT / "docs" / "command_line.md").read_text()
    options = {}
    for command in program.json("completion --json", "completion"):
        first = command["command"].split()[1:2]
        names = {name for o in command["options"] for name in o["names"]}
        options.setdefault("".join(first), set()).update(names)
    tabled = re.findall(r"^\| `fastnorm (\w+)` \|", page, re.M)
    cases.equal("command_line.md: commands", set(tabled), set(options) - {""})
    parts = re.split(r"^## (\w+)\n", page, flags=re.M)
    for command, text in zip(parts[1::2], parts[2::2]):
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text))
        cases.equal(f"command_line.md: options of {command}", named - options[command], set())
    elsewhere = {"", "completion", "mla_decode", "tune"}  # pages of their own, and the head
    cases.equal("command_line.md: sections", set(parts[1::2]), set(options) - elsewhere)


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
    cases, gpu, printed = program.cases, has_gpu(program), {}
    make_inputs(program.work)
    check_reference(program)

    def output_of(name, words):
        """What a command prints, which runs once however often it is named."""
        if tuple(words) not in printed:
            printed[tuple(words)] = program.expect(name, SUCCESS, *words)
        return printed[tuple(words)]

    found = 0
    for page in PAGES:
        for words, shown in commands(page.read_text()):
            name = f"{page.relative_to(ROOT)}: fastnorm {' '.join(words)}"
            found += 1
            if any(w.startswith("cuda:") for w in words) and not gpu:
                cases.skip(name, "no GPU")
                continue
            check_output(cases, name, output_of(name, words), shown)
    cases.check("the pages have commands", found >= 8, found)
    found = examples(program)
    cases.check("commands with help", len(found) >= 18, sorted(found))
    for command, lines in found.items():
        cases.check(f"{command}: its help has two examples", len(lines) >= 2, lines)
        for words in lines:
            name = f"help of '{command}': fastnorm {' '.join(words)}"
            cases.equal(f"{name}: is this command", words[: len(command.split())], command.split())
            if any("cuda:" in w for w in words) and not gpu:
                refused = program.run(*words)
                no_gpu = refused.returncode == 1 and "FASTNORM_ERROR_DEVICE" in refused.stderr
                cases.check(f"{name}: its options are known", no_gpu, refused.stderr)
                cases.skip(name, "no GPU")
                continue
            if words != SELFTEST_AS_JSON:
                output_of(name, words)
    closing = output_of("selftest", ["selftest"]).strip().splitlines()[-1]
    match = re.fullmatch(r"(\d+) passed, 0 failed, 0 skipped", closing)
    cases.check("selftest: closing line", match and int(match[1]) > 36000, closing)


main(test)
