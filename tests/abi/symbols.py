#!/usr/bin/env python3
"""What the built library exports and needs.

Exports: exactly symbols.txt, exactly what the headers declare, all under the version FASTNORM_1.
Needs: only the libraries and symbol versions that every supported system has.
"""

import argparse
import re
from pathlib import Path

from cases import Cases, output_of
from headers import Headers

COMMITTED = Path(__file__).with_name("symbols.txt")
VERSION_NODE = "FASTNORM_1"

NEEDED = {
    "libstdc++.so.6",
    "libm.so.6",
    "libgcc_s.so.1",
    "libc.so.6",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
}
NEEDED_STATIC_RUNTIME = NEEDED - {"libstdc++.so.6"}
# Greatest symbol versions of the oldest system supported, Debian 12; a build on Ubuntu 24.04 is for
# that and later.
GREATEST = {
    "debian": {"GLIBC": (2, 36), "GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)},
    "ubuntu": {"GLIBC": (2, 39), "GLIBCXX": (3, 4, 33), "CXXABI": (1, 3, 15), "GCC": (14, 0, 0)},
}


def check_exports(cases, library, headers):
    exported = []
    for line in output_of(["nm", "-D", "--defined-only", library]).splitlines():
        _, kind, name = line.split()
        if kind == "A" and name == VERSION_NODE:
            continue
        symbol, _, version = name.partition("@@")
        cases.equal(f"version of {symbol}", version, VERSION_NODE)
        cases.equal(f"kind of {symbol}", kind, "T")
        exported.append(symbol)
    promised = COMMITTED.read_text().split()
    for symbol in sorted(set(exported) | set(promised)):
        cases.equal(
            f"{symbol} is exported and in symbols.txt",
            (symbol in exported, symbol in promised),
            (True, True),
        )
    for symbol in sorted(set(exported) ^ set(headers.functions)):
        cases.check(symbol, False, "exported but not declared, or declared but not exported")


def check_needs(cases, library, static_runtime):
    dynamic = output_of(["readelf", "-dW", library])
    allowed = NEEDED_STATIC_RUNTIME if static_runtime else NEEDED
    for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
        cases.check(f"needs {name}", name in allowed, "not on the allow-list")
    cases.equal("soname", re.findall(r"\(SONAME\).*\[(.*)\]", dynamic), ["libfastnorm.so.1"])
    cases.check("stays loaded (NODELETE)", re.search(r"FLAGS_1.*NODELETE", dynamic))
    for tag in ("RPATH", "RUNPATH", "TEXTREL"):
        cases.check(f"no {tag}", f"({tag})" not in dynamic)
    stack = re.search(r"GNU_STACK.*", output_of(["readelf", "-lW", library]))
    cases.check("stack is not executable", stack and "RWE" not in stack[0])


def check_symbol_versions(cases, library):
    system = re.search(r"^ID=(\w+)", Path("/etc/os-release").read_text(), re.M)[1]
    limits = GREATEST.get(system)
    if limits is None:
        cases.skip("symbol versions", f"no limits are known for {system}")
        return
    text = output_of(["objdump", "-T", library])
    for family, limit in limits.items():
        versions = [
            tuple(map(int, v.split("."))) for v in re.findall(rf"\({family}_([\d.]+)\)", text)
        ]
        if versions:
            print(f"greatest {family} needed: {'.'.join(map(str, max(versions)))}")
            cases.check(f"{family} versions", max(versions) <= limit, f"{max(versions)} > {limit}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--include", required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("--static-runtime", action="store_true")
    options = parser.parse_args()
    cases = Cases()
    check_exports(cases, options.library, Headers(options.include))
    check_needs(cases, options.library, options.static_runtime)
    check_symbol_versions(cases, options.library)
    cases.finish()


main()
