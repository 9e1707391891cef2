#!/usr/bin/env python3
"""Neither library needs NCCL or CUDA to be loaded, nor has a symbol of theirs undefined."""

import subprocess
import sys


def lines(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def main():
    failed = 0
    for library in sys.argv[1:]:
        dynamic = [line for line in lines("readelf", "-d", library) if "(NEEDED)" in line]
        needed = [line.split("[")[-1].rstrip("]") for line in dynamic]
        undefined = [line.split()[-1] for line in lines("nm", "-D", "--undefined-only", library)]
        bad = [n for n in needed if n.startswith(("libnccl", "libcuda"))]
        bad += [s for s in undefined if s.startswith(("nccl", "cuda", "cuMem", "cuCtx"))]
        if not needed:
            bad.append("readelf shows no NEEDED at all")
        print(("FAIL" if bad else "ok"), library, *bad)
        failed += bool(bad)
    sys.exit(failed)


main()
