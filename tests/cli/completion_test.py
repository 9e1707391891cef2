#!/usr/bin/env python3
"""`fastnorm completion`: every command and option is in each shell's script, and the shells that
are here complete with it."""

import os
import pty
import re
import select
import shutil
import subprocess
import time

from program import SUCCESS, USAGE, main

# What stands before the cursor, and some of the words that must be offered.
COMPLETED = [
    ("fastnorm ex", {"explain"}),
    ("fastnorm norm_heads ", {"run", "explain", "bench"}),
    ("fastnorm explain --resid", {"--residual", "--residual-out", "--residual-dtype"}),
    ("fastnorm explain --dtype ", {"f32", "f16", "bf16"}),
    ("fastnorm explain --shape 4x8 --device cuda:", {"cuda:0"}),
    ("fastnorm peer explain --device sm_9", {"sm_90"}),
    ("fastnorm bench --op rms,add_b", {"rms,add_backward", "rms,add_block_fp8"}),
    ("fastnorm explain --tuning tab", {"table.txt"}),
    ("fastnorm run tab", {"table.txt"}),
    ("fastnorm mla_decode bench --cau", {"--causal"}),
    ("fastnorm completion z", {"zsh"}),
]
# Where nothing is right, and so nothing must be offered.
NOTHING = ["fastnorm explain --shape ", "fastnorm explain --sideways", "fastnorm fly --de"]


def told_commands(program):
    return program.json("completion --json", "completion")


def options_of_help(program, path):
    """The long options that a command's help lists."""
    text = program.expect(f"{path} --help", SUCCESS, *path.split()[1:], "--help")
    return set(re.findall(r"^  (?:-\w,)?(--[a-z0-9-]+)", text, re.M))


def test_table(program, told):
    """The table of what can be completed against the help, which is what a person reads."""
    cases = program.cases
    cases.check("completion --json: commands", len(told) >= 21, len(told))
    for command in told:
        path = command["command"]
        names = {n for o in command["options"] for n in o["names"] if n.startswith("--")}
        shown = options_of_help(program, path)
        extra = names - shown
        if path == "fastnorm mla_decode bench":  # it takes those of mla_decode, too
            extra -= options_of_help(program, "fastnorm mla_decode")
        cases.equal(f"{path}: options of its help", (shown - names, extra), (set(), set()))


def functions_of_zsh(script):
    return dict(re.findall(r"^_(fastnorm\w*)\(\) \{\n(.*?)^\}", script, re.M | re.S))


def test_scripts(program, told, scripts):
    cases = program.cases
    zsh = functions_of_zsh(scripts["zsh"])
    for command in told:
        path = command["command"]
        names = [n for o in command["options"] for n in o["names"]]
        in_bash = re.search(rf"^    '{path}'\)\n      options='([^']*)'\n", scripts["bash"], re.M)
        cases.equal(f"bash: {path}", in_bash and in_bash[1].split(), names)
        function = zsh.get(path.replace(" ", "_"), "")
        in_zsh = re.findall(r"^    '(?:\([^)]*\))?(--?[a-z0-9-]+)=?\[", function, re.M)
        cases.equal(f"zsh: {path}", in_zsh, names)
        lines = re.findall(rf"-n '__fastnorm_at {path}'(.*)", scripts["fish"])
        in_fish = [word for line in lines
                   for word in re.findall(r" (-[ls] \S+)", line.partition(" -d ")[0])]
        wanted = [f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in names]
        cases.equal(f"fish: {path}", in_fish, wanted)
        following = command["commands"]
        in_fish = [w for line in lines for w in re.findall(r"^ -a (\w+) -d", line)]
        cases.equal(f"fish: commands of {path}", in_fish, following)
        in_zsh = re.findall(r"^        (\w+)\) _fastnorm", function, re.M)
        cases.equal(f"zsh: commands of {path}", in_zsh, following)


def bash_words(script, folder, lines):
    """What bash offers for each line. It cuts the words of a line at each colon and "=", too, and
    puts what is offered in place of the last piece."""
    text = f"source {script}\n"
    for line in lines:
        pieces = [p for p in re.split(r"\s+|([:=])", line) if p is not None and p != ""]
        if line[-1].isspace() or line[-1] in ":=":
            pieces.append("")
        if line[-1] in ":=":
            pieces.pop()  # the character itself is the piece before the cursor
        quoted = " ".join(f"'{p}'" for p in pieces)
        text += (
            f"COMP_LINE='{line}' COMP_POINT={len(line)} COMP_WORDS=({quoted})\n"
            f"COMP_CWORD={len(pieces) - 1}; COMPREPLY=(); _fastnorm\n"
            "printf '%s\\n' \"${COMPREPLY[@]}\" --end--\n"
        )
    result = subprocess.run(["bash", "--norc", "-c", text], capture_output=True, text=True,
                            cwd=folder)
    offered = result.stdout.split("--end--\n")[:-1]
    found = {}
    for line, words in zip(lines, offered):
        last = line.split(" ")[-1]
        kept = last[: last.rfind(":") + 1] if ":" in last else ""
        found[line] = {kept + w for w in words.split("\n") if w}
    return found, result.stderr


def fish_words(script, folder, lines):
    text = f"source {script}\n" + "".join(
        f"complete -C '{line}'\necho --end--\n" for line in lines
    )
    result = subprocess.run(
        ["fish", "--no-config", "-c", text], capture_output=True, text=True, cwd=folder,
        env={**os.environ, "HOME": str(folder)},
    )
    offered = result.stdout.split("--end--\n")[:-1]
    found = {line: {w.split("\t")[0] for w in words.splitlines()}
             for line, words in zip(lines, offered)}
    return found, result.stderr


class Terminal:
    """A shell on a terminal, as somebody at a keyboard has it."""

    def __init__(self, command, folder, **environment):
        self.pid, self.end = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(command[0], command, {**os.environ, "TERM": "xterm", **environment})

    def type(self, text):
        os.write(self.end, text.encode())

    def read_until(self, wanted, seconds=30):
        shown, limit = "", time.monotonic() + seconds
        while wanted not in shown and time.monotonic() < limit:
            if not select.select([self.end], [], [], 0.2)[0]:
                continue
            try:
                more = os.read(self.end, 65536)
            except OSError:
                break
            if not more:
                break
            shown += more.decode(errors="replace")
        return shown

    def close(self):
        os.close(self.end)
        os.waitpid(self.pid, 0)


def test_typing(program, shell, command, start, **environment):
    """An unfinished word and the tabulator key in the real shell."""
    terminal = Terminal(command, program.work, **environment)
    terminal.type(f"{start}; echo rea''dy\n")
    shown = terminal.read_until("ready\r\n")
    terminal.type("echo fastnorm >/dev/null; fastnorm explain --accum\t4x8 --devi\tsm_10\t\x01: \n")
    shown += terminal.read_until("--device sm_100f")
    terminal.type("exit\n")
    terminal.close()
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|[\a\b]", "", shown)
    typed = "--accumulate 4x8 --device sm_100f" in plain
    program.cases.check(f"{shell}: the tabulator key", typed, plain[-600:])


def zsh_words(program, setup, lines):
    """What zsh lists for each line on a terminal, which its completion needs."""
    at_prompt = "\x1b[?2004h"  # zsh turns bracketed paste on when it begins to read a line
    terminal = Terminal(["zsh", "-f", "-i"], program.work, COLUMNS="200")
    terminal.read_until(at_prompt)
    terminal.type(f"autoload -U compinit; {setup}; unsetopt promptsp\n")
    terminal.read_until(at_prompt)
    found = {}
    for line in lines:
        # ^D behind the last word lists; ^U empties the line.
        terminal.type(line + "\x04\x15echo en''d\n")
        shown = terminal.read_until("end\r\n")
        if at_prompt not in shown.partition("end\r\n")[2]:
            terminal.read_until(at_prompt)
        found[line] = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", " ", shown.partition("end\r\n")[0])
    terminal.type("exit\n")
    terminal.close()
    return found


def test_shell(program, shell, offered):
    found, errors = offered
    program.cases.check(f"{shell}: no error", not errors, errors)
    for line, wanted in COMPLETED:
        got = found.get(line, set())
        program.cases.check(f"{shell}: '{line}' offers {sorted(wanted)}", wanted <= got, got)
    for line in NOTHING:
        program.cases.equal(f"{shell}: '{line}' offers nothing", found.get(line), set())


def test(program):
    told, scripts, paths = told_commands(program), {}, {}
    (program.work / "table.txt").write_text("")
    for shell in ("bash", "zsh", "fish"):
        scripts[shell] = program.expect(f"completion {shell}", SUCCESS, "completion", shell)
        paths[shell] = program.work / f"completion.{shell}"
        paths[shell].write_text(scripts[shell])
    program.expect("completion", USAGE, "completion", says="required: bash, zsh or fish")
    program.expect("completion of another", USAGE, "completion", "tcsh", says="tcsh not in")
    test_table(program, told)
    test_scripts(program, told, scripts)
    lines = [line for line, _ in COMPLETED] + NOTHING
    for shell, words in (("bash", bash_words), ("fish", fish_words)):
        if shutil.which(shell):
            test_shell(program, shell, words(paths[shell], program.work, lines))
        else:
            program.cases.skip(f"{shell} completes", f"no {shell} here")
    if shutil.which("bash"):
        test_typing(program, "bash", ["bash", "--norc", "--noprofile", "-i"],
                    f"source {paths['bash']}")
    if not shutil.which("zsh"):
        program.cases.skip("zsh completes", "no zsh here")
        return
    folder = program.work / "site-functions"
    folder.mkdir()
    (folder / "_fastnorm").write_text(scripts["zsh"])
    shown = zsh_words(program, f"fpath=({folder} $fpath); compinit -u -D", lines)
    sourced = zsh_words(program, f"compinit -u -D; source {paths['zsh']}", lines[:1])
    program.cases.check("zsh: a sourced script", "explain" in sourced[lines[0]].split(), sourced)
    for line, wanted in COMPLETED:
        # What is offered stands below the line; of a list it is the last word alone.
        below = shown[line].partition("\r\r\n")[2].split()
        words = {w.split(",")[-1] for w in wanted}
        program.cases.check(f"zsh: '{line}' offers {sorted(words)}", words <= set(below),
                            shown[line])
    for line in NOTHING:
        program.cases.check(f"zsh: '{line}' offers nothing", "\r\r\n" not in shown[line].rstrip(),
                            shown[line])


main(test)
