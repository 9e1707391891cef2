#!/usr/bin/env python3
"""What somebody meets who types `fastnorm`: help, mistakes, ways to write a shape, JSON, progress,
and outputs that cannot be written. All of it for every command."""

import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from fcntl import ioctl

import numpy as np
import tensor_file
from program import FAILURE, SUCCESS, USAGE, main

WIDTH = 100


def words_of(command):
    return command["command"].split()[1:]


def leaves(commands):
    """The commands that do something themselves, not only by a command below them."""
    return [c for c in commands if not c["commands"] or c["command"].endswith("mla_decode")]


def option_of(command, name):
    return next((o for o in command["options"] if name in o["names"]), None)


def test_help(program, commands):
    cases = program.cases
    for command in commands:
        name, path = command["command"], words_of(command)
        text = program.expect(f"{name} --help", SUCCESS, *path, "--help")
        head = text.split("\n\n")[0].splitlines()
        examples = [line for line in head[1:] if line.startswith(f"  {name}")]
        cases.check(f"{name} --help begins with two examples",
                    head[0] == "Examples:" and len(examples) >= 2, head)
        cases.check(f"{name} --help: usage", f"\nUsage: {name} " in text, text[:600])
        wide = [line for line in text.splitlines() if len(line) > WIDTH]
        cases.equal(f"{name} --help: lines of more than {WIDTH} columns", wide, [])
        options = {o for c in command["options"] for o in c["names"]}
        cases.check(f"{name}: --json", command not in leaves(commands) or "--json" in options,
                    options)
    same = [program.run(*words).stdout for words in (("help", "peer", "bench"),
                                                     ("peer", "bench", "--help"))]
    cases.check("help peer bench", same[0] == same[1] and "Usage:" in same[0], same[0])
    cases.equal("help", program.run("help").stdout, program.run("--help").stdout)


def test_mistakes(program, commands):
    for command in leaves(commands):
        name, path = command["command"], words_of(command)
        program.expect(f"{name} --fly", USAGE, *path, "--fly",
                       says=(f"{name}: there is no option --fly\n", f'"{name} --help" tells more'))
    for words, says in (
        (("explian",), "there is no command explian; required: one of info, run,"),
        (("explian",), "; did you mean explain?"),
        (("norm-heads", "run"), "did you mean norm_heads?"),
        (("norm_heads", "explian"), "fastnorm norm_heads: there is no command explian; required: "
                                    "one of run, explain, bench; did you mean explain?"),
        (("",), "there is no command "),
        (("help", "fly"), "there is no command fly"),
        (("--json",), "fastnorm: there is no option --json"),
        (("norm_heads", "--tokens", "4"), "fastnorm norm_heads: there is no option --tokens"),
        (("explain", "--shpae", "4x8"), "there is no option --shpae; did you mean --shape?"),
        (("explain", "--shpae=4x8"), "there is no option --shpae; did you mean --shape?"),
        (("mla_decode", "bench", "--csuaal"), "did you mean --causal?"),
        (("explain", "--shape", "4x8", "more"), "'more' is one argument too many"),
        (("run", "a", "b", "c", "--x", "x"), "'c' is one argument too many"),
        (("explain", "--shape", "4x8", "a\x1b[31m"), "'a?[31m' is one argument too many"),
    ):
        program.expect(f"fastnorm {' '.join(words)}", USAGE, *words, says=says)


# Options of numbers that have a value of their own, which is not one of the two below.
SHAPES = {"--modulation-scale", "--modulation-shift", "--residual-gate"}


def test_numbers(program, commands):
    """One text for all wrong numbers and shapes, whichever option they belong to."""
    cases, tried = program.cases, set()
    for command in leaves(commands):
        for option in command["options"]:
            name = option["names"][-1]
            if name in tried or not is_number(program, command, name):
                continue
            tried.add(name)
            program.expect(f"{command['command']} {name} 4y", USAGE, *words_of(command), name, "4y",
                           says=(f"{name} is 4y; required: ", " from "))
    cases.check("options of numbers and shapes", len(tried) >= 40, sorted(tried))


def is_number(program, command, name):
    """Whether the help says that a number or a shape follows."""
    if "help" not in command:
        command["help"] = program.run(*words_of(command), "--help").stdout
    return any(line.startswith((f"  {name} NUMBER", f"  {name} SHAPE"))
               for line in command["help"].splitlines()) and name not in SHAPES


def test_both_forms(program):
    """4096x8192 and 4096,8192 are the same wherever a shape or a list of sizes may stand."""
    few = ("--repeats", "1", "--json")
    for words, read in (
        (("explain", "--json", "--shape", "{4,64}"), lambda d: d["bytes_read"]),
        (("explain", "--json", "--backward", "--branch", "--shape", "4x64", "--residual-gate",
          "{4,64}"), lambda d: d["bytes_read"]),
        (("bench", *few, "--op", "rms", "--shape", "{4,64}"), lambda d: d["results"][0]["rows"]),
        (("mla_decode", "--json", "--batch", "2", "--lengths", "{5,9}"),
         lambda d: d["call"]["cached_tokens"]),
        (("mla_decode", "--json", "--batch", "2", "--lengths", "9", "--new-tokens", "{1,2}"),
         lambda d: d["call"]["tokens"]),
        (("norm_heads", "explain", "--json", "--head-dim", "16", "--mrope", "{4,2,2}"),
         lambda d: d["bytes_read"]),
    ):
        found = []
        for separator in ",x":
            given = [w[1:-1].replace(",", separator) if w[0] == "{" else w for w in words]
            result = program.run(*given)
            found.append(read(json.loads(result.stdout)) if result.returncode == 0 else
                         result.stderr)
        program.cases.check(f"{' '.join(words)}: both forms",
                            found[0] == found[1] and isinstance(found[0], int), found)


def make_rows(program):
    values = np.linspace(-2, 2, 4 * 64, dtype=np.float32)
    tensor_file.write(program.work / "in.safetensors", {
        "x": ("BF16", (4, 64), tensor_file.encode("BF16", values)),
        "q": ("F32", (2, 2, 16), values[:64].tobytes()),
    })


def test_json(program):
    """Commands that write a file say as JSON what is in it."""
    make_rows(program)
    bf16 = {"name": "y", "dtype": "bf16", "shape": [4, 64]}
    for name, words, tensors in (
        ("run", ("--x", "x"), [bf16]),
        ("run --backward", ("--backward", "--x", "x", "--dy", "x"), [{**bf16, "name": "dx"}]),
        ("norm_heads run", ("--query", "q"), [{"name": "query", "dtype": "f32",
                                               "shape": [2, 2, 16]}]),
    ):
        told = program.json(name, *name.split(), "in.safetensors", "out.safetensors", *words)
        program.cases.equal(f"{name} --json: what was written",
                            (told.get("file"), told.get("tensors")), ("out.safetensors", tensors))
        program.cases.check(f"{name} --json: the call",
                            told.get("kernel") and told.get("bytes_written", 0) >= 256, told)
    plain = program.run("run", "in.safetensors", "out.safetensors", "--x", "x")
    program.cases.equal("run says nothing without it", (plain.stdout, plain.stderr), ("", ""))


def test_outputs(program):
    """What cannot be written is told, and is a failure."""
    cases = program.cases
    commands = (("info",), ("--help",), ("--version",), ("explain", "--shape", "4x8", "--json"),
                ("completion", "bash"))
    for words in commands:
        for where in ("full", "closed"):
            name = f"{' '.join(words)}, stdout {where}"
            with open("/dev/full" if where == "full" else os.devnull, "w") as out:
                result = subprocess.run(
                    [program.path, *words], stdout=out, stderr=subprocess.PIPE, text=True,
                    preexec_fn=(lambda: os.close(1)) if where == "closed" else None,
                )
            reason = "No space left on device" if where == "full" else "Bad file descriptor"
            cases.equal(name, (result.returncode, result.stderr),
                        (FAILURE, f"fastnorm: stdout cannot be written: {reason}\n"))
    path = program.work / "times.json"
    few = ("bench", "--shape", "1x64", "--op", "rms", "--repeats", "1", "--output", path)
    result = subprocess.run([program.path, *few], stderr=subprocess.PIPE,
                            preexec_fn=lambda: os.close(1))
    written = json.loads(path.read_text())
    cases.check("bench --output, stdout closed: only JSON in the file",
                result.returncode == FAILURE and len(written["results"]) == 1, result)
    for form, restore in (("ends the program", True), ("is told", False)):
        read, write = os.pipe()
        os.close(read)
        result = subprocess.run(
            [program.path, "completion", "bash"], stdout=write, stderr=subprocess.PIPE, text=True,
            restore_signals=restore,
            preexec_fn=None if restore else lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN),
        )
        os.close(write)
        told = (-signal.SIGPIPE, "") if restore else (
            FAILURE, "fastnorm: stdout cannot be written: Broken pipe\n")
        cases.equal(f"a pipe that is closed {form}", (result.returncode, result.stderr), told)
    make_rows(program)
    for where, says in (("no/out.safetensors", "cannot be written"), (".", "not a regular file")):
        program.expect(f"run into {where}", FAILURE, "run", "in.safetensors", where, "--x", "x",
                       says=says)


def run_on_terminal(program, command, until, **environment):
    """Its exit code, what it writes to stderr, which is a terminal of 40 columns, and the seconds
    after which `until` is shown. Its results go to a FIFO that nobody reads before: it waits."""
    fifo = program.work / "fifo"
    fifo.unlink(missing_ok=True)
    os.mkfifo(fifo)
    parent, child = pty.openpty()
    ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    process = subprocess.Popen(
        [program.path, *command, "--output", fifo], stdout=subprocess.PIPE, stderr=child,
        env={**os.environ, **environment},
    )
    os.close(child)
    shown, start = "", time.monotonic()
    while until not in shown and time.monotonic() < start + 20:
        if select.select([parent], [], [], 0.1)[0]:
            shown += os.read(parent, 65536).decode()
    seconds = time.monotonic() - start
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    while process.poll() is None:
        try:
            os.read(reader, 65536)
        except BlockingIOError:
            pass
        time.sleep(0.005)
    shown_after = os.read(parent, 65536).decode() if select.select([parent], [], [], 0)[0] else ""
    os.close(reader)
    os.close(parent)
    process.stdout.read()
    return process.returncode, shown + shown_after, seconds


def test_progress(program):
    """Whatever takes over two seconds has a line on a terminal; docs/command_line.md says how."""
    cases = program.cases
    bench = ("norm_heads", "bench", "--tokens", "1", "--query-heads", "1", "--key-heads", "1",
             "--head-dim", "16", "--repeats", "1")
    code, shown, seconds = run_on_terminal(program, bench, " s", TERM="xterm")
    cases.equal("progress: exit code", code, SUCCESS)
    line = re.match(r"\r\x1b\[Kfastnorm norm_heads bench, \d+ s", shown)
    cases.check("progress: the line", line, shown)
    cases.check("progress: after two seconds", 1.9 < seconds < 20, seconds)
    cases.check("progress: the line is gone in the end", shown.endswith("\r\x1b[K"), shown)
    named = ("bench", "--shape", "1x64", "--op", "rms_block_fp8", "--dtype", "bf16", "--repeats",
             "1")
    parent, child = pty.openpty()
    ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 16, 0, 0))
    for terminal, name in (("xterm", "narrow"), ("dumb", "dumb")):
        subprocess.run([program.path, *named], stdout=subprocess.DEVNULL, stderr=child,
                       env={**os.environ, "TERM": terminal}, check=True)
        text = ""
        while select.select([parent], [], [], 0)[0]:
            text += os.read(parent, 65536).decode()
        lines = [line.removeprefix("\x1b[K") for line in text.split("\r") if line]
        if name == "dumb":
            cases.equal("progress: none on a terminal that cannot erase", text, "")
        else:
            cases.equal("progress: no wider than the terminal", {x for x in lines if x},
                        {"1/1 rms_block_f"})
    os.close(child)
    os.close(parent)


def test(program):
    commands = program.json("completion --json", "completion")
    test_help(program, commands)
    test_mistakes(program, commands)
    test_numbers(program, commands)
    test_both_forms(program)
    test_json(program)
    test_outputs(program)
    test_progress(program)


main(test)
