#!/usr/bin/env python3
"""Tests of tools/launch_order.py on disassemblies that were written by hand."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "abi"), str(ROOT / "tools")]
import launch_order  # noqa: E402
from cases import Cases  # noqa: E402

RIGHT = """
LDC R1, c[0x0][0x28]
ACQBULK
@P0 PREEXIT
LDG.E R2, desc[UR4][R2.64]
STG.E desc[UR4][R2.64], R3
EXIT
"""
# The wait under a predicate, as an instruction's own or by a branch around it, is one where the
# call asks for it.
PREDICATE = "@P1 ACQBULK\nPREEXIT\nLDG R2\nEXIT"
AROUND = "@P1 BRA 0x20\nACQBULK\nLDG R2\nEXIT"
FAULTS = {
    "a load": ("LDG R2\nACQBULK\nEXIT", "LDG R2 at 0x0"),
    "a store on one path": ("@P0 BRA 0x30\nACQBULK\nEXIT\nSTG R2\nEXIT", "STG R2 at 0x30"),
    "an atomic": ("RED.E.ADD R2\nACQBULK\nEXIT", "RED.E.ADD R2 at 0x0"),
    "a copy to shared memory": ("LDGSTS R2\nACQBULK\nEXIT", "LDGSTS R2 at 0x0"),
    "a trigger": ("PREEXIT\nACQBULK\nEXIT", "lets the next kernel start at 0x0"),
    "an end without work": ("@P0 EXIT\nACQBULK\nLDG R2\nEXIT", "ends at 0x0"),
    "no wait at all": ("MOV R1, R2\nEXIT", "ends at 0x10"),
}


def disassembly(arch, **kernels):
    """As cuobjdump writes it."""
    lines = [f"\tcode for sm_{arch}"]
    for name, text in kernels.items():
        lines.append(f"\t\tFunction : {name}")
        for i, instruction in enumerate(text.strip().splitlines()):
            lines.append(f"        /*{16 * i:04x}*/  {instruction} ;  /* 0x0000 */")
    return "\n".join(lines)


def faults(text, name="_Zkernel"):
    ((_, _, code),) = launch_order.kernels_of(disassembly(90, **{name: text}))
    return launch_order.faults_of(name, code)


def test_kernels(cases):
    text = disassembly(80, _Za="EXIT") + "\n" + disassembly(90, _Zb=RIGHT, _Zc="EXIT")
    found = [(arch, name, len(code)) for arch, name, code in launch_order.kernels_of(text)]
    cases.equal("kernels", found, [(80, "_Za", 1), (90, "_Zb", 6), (90, "_Zc", 1)])


def test_order(cases):
    for name, text in (("right", RIGHT), ("predicate", PREDICATE), ("around", AROUND)):
        cases.equal(f"in order: {name}", faults(text), [])
    for name, (text, wanted) in FAULTS.items():
        found = faults(text)
        cases.check(f"found: {name}", wanted in found, found)
    merge = "_Zmla_decode_merge_kernelv"
    cases.equal("the merge may read its plan", faults("LDG R2\nACQBULK\nEXIT", merge), [])
    cases.check("and may not write", faults("STG R2\nACQBULK\nEXIT", merge))


if __name__ == "__main__":
    run = Cases()
    test_kernels(run)
    test_order(run)
    run.finish()
