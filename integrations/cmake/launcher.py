#!/usr/bin/env python3
"""What CMake runs in the test in place of the compiler. A source of the library must be compiled
with the arguments that Meson has for it, and a generated one must have the same bytes. Then Meson's
own command makes the object, which ccache has from Meson's build."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

BUILD = Path(os.environ["FASTNORM_MESON_BUILD"])
SOURCES = Path(os.environ["FASTNORM_SOURCES"])
# Arguments that decide what code a compiler makes; the order of the last ones counts, as they do.
KINDS = ("-O", "-f", "-m", "-std", "-D")
NOT_CODE = ("-fdiagnostics", "-D_FILE_OFFSET_BITS", "-Dfastnorm_EXPORTS")


def code_arguments(command):
    found = [a for a in command if a.startswith(KINDS) and not a.startswith(NOT_CODE)]
    levels = [a for a in found if a.startswith("-O")]
    return sorted({a for a in found if not a.startswith("-O")}) + levels[-1:]


def value_after(command, name):
    return command[command.index(name) + 1]


def main():
    command = sys.argv[1:]
    if "-c" not in command:
        sys.exit(subprocess.run(command).returncode)
    source = Path(value_after(command, "-c")).resolve()
    units = "units" == source.parent.name
    if not units and SOURCES / "src" not in source.parents:
        sys.exit(subprocess.run(command).returncode)
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        theirs = (BUILD / entry["file"]).resolve()
        same = theirs == source
        if units:
            same = theirs.name == source.name and theirs.parent == BUILD / "src" / "cpu"
        if same and entry["output"].startswith("src/"):
            break
    else:
        sys.exit(f"{source} is no source of Meson's build")
    if units and theirs.read_bytes() != source.read_bytes():
        sys.exit(f"{source} has other bytes than {theirs}")
    wanted = shlex.split(entry["command"])
    if code_arguments(command) != code_arguments(wanted):
        sys.exit(f"{source}: CMake has {code_arguments(command)}, Meson {code_arguments(wanted)}")
    output = str(Path(value_after(command, "-o")).resolve())
    changed = {"-o": output, "-MF": output + ".d", "-MQ": output}
    for name, value in changed.items():
        wanted[wanted.index(name) + 1] = value
    code = subprocess.run(wanted, cwd=BUILD).returncode
    if "-MF" in command:
        Path(value_after(command, "-MF")).write_text(f"{value_after(command, '-o')}: {source}\n")
    with open(os.environ["FASTNORM_COMPILED"], "a") as log:
        log.write(f"{source.name}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
