"""The command line of a comparison of one family, such as compare_heads.py.

A family is a module with CASE (made from a text), MODELS, WHATS, TOKENS, cases_of(), PROVIDERS, GPU
and HOST; it may have summary(document), lines to print at the end.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from compare import lines, runner, timing
from compare.library import Library
from compare.machine import DoesNotFit
from compare.streams import Streams

BENCH = Path(__file__).resolve().parents[1]
CASE = ("op", "dtype", "rows", "n")  # what tells the results of a file apart


def arguments(family, text):
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, default=BENCH.parent / "build", help="(%(default)s)")
    parser.add_argument("--library", type=Path, help="libfastnorm.so.1, where it is elsewhere")
    parser.add_argument("--streams", type=Path, help="libfastnorm_streams.so, likewise")
    parser.add_argument("--device", default="cuda:0", help="cuda:N, or cpu to try the program out")
    parser.add_argument("--cases", nargs="+", type=lambda text: case_of(family, text),
                        help="in place of all")
    parser.add_argument("--models", nargs="+", choices=family.MODELS, default=list(family.MODELS))
    parser.add_argument("--what", nargs="+", choices=family.WHATS, default=family.WHATS)
    parser.add_argument("--tokens", nargs="+", type=int, default=family.TOKENS)
    parser.add_argument("--contenders", nargs="+", choices=[p.name for p in family.PROVIDERS])
    parser.add_argument("--replays", type=int, default=9)
    parser.add_argument("--cold-mib", type=int, default=600,
                        help="MiB that the calls of a graph touch (%(default)s)")
    parser.add_argument("--case-seconds", type=float, default=60,
                        help="how long a contender may take to get ready for a case (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no case after so long")
    parser.add_argument("--csv", type=Path, help="results; cases that the file has are left out")
    parser.add_argument("--fresh", action="store_true", help="forget what the file has")
    return parser


def case_of(family, text):
    try:
        return family.CASE(text)
    except ValueError as why:
        raise argparse.ArgumentTypeError(str(why)) from why


def find(path, build, name, parser):
    found = [path] if path else sorted(build.rglob(name)) if build.is_dir() else []
    if not found or not found[0].is_file():
        parser.error(f"no {name} in {path or build}")
    return found[0].resolve()


def make(providers, torch, wanted):
    """The contenders that can be made, and why the others can't."""
    made, unavailable = [], {}
    for kind in providers:
        if wanted and kind.name not in wanted:
            unavailable[kind.name] = "left out by --contenders"
            continue
        try:
            made.append(kind(torch))
        except Exception as why:  # an import may fail in any way
            unavailable[kind.name] = f"{type(why).__name__}: {why}".splitlines()[0][:300]
    return made, unavailable


def text_of(case, result):
    """A line for each contender of a case."""
    ceiling, found = result["ceiling"]["us"], result["contenders"]
    ours = found.get("fastnorm", {}).get("us")
    for name, row in found.items():
        text = f"{case.op_name:24} {case.rows:6} {name:16}"
        if "us" not in row:
            yield f"{text} {next(f'{kind}: {why}' for kind, why in row.items())}"
            continue
        over = f"{row['us'] / ours:.2f} x fastnorm" if ours else ""
        yield (
            f"{text} {row['us']:10.2f} us {100 * row['spread']:5.1f}%  "
            f"{row['us'] / ceiling:.2f} x ceiling  {over}"
        )


def main(name, family, text):
    parser = arguments(family, text)
    options = parser.parse_args()
    library = find(options.library, options.build, "libfastnorm.so.1", parser)
    os.environ["FASTNORM_LIBRARY"] = str(library)
    try:
        import torch
    except ImportError as error:
        sys.exit(f"{name}: {error}")
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.exit(f"{name}: PyTorch has no CUDA device here; --device cpu does without")
    if device.type == "cuda":
        streams = find(options.streams, options.build, "libfastnorm_streams.so", parser)
        machine = family.GPU(torch, device, Streams(streams))
    else:
        machine = family.HOST(torch, device)
    contenders, unavailable = make(family.PROVIDERS, torch, options.contenders)
    document = {
        "kind": family.__name__.rpartition(".")[2],
        "library": Library(library).identity(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "replays": options.replays,
        "unavailable": unavailable,
        **runner.describe_machine(torch, device),
        "results": [],
    }
    try:
        lines.go_on(options.csv, document, options.fresh)
    except lines.Mismatch as why:
        sys.exit(f"{name}: {why}")
    for contender, why in unavailable.items():
        print(f"{contender}: not here: {why}")
    timed = {tuple(r[field] for field in CASE) for r in document["results"]}
    cases = options.cases or family.cases_of(options.models, options.what, options.tokens)
    ceilings, patience = timing.Ceilings(), timing.Patience(options.case_seconds, 3600)
    start, wrong = time.monotonic(), False
    for case in cases:
        if (case.op_name, case.dtype, case.rows, case.n) in timed:
            continue
        if time.monotonic() - start > options.seconds:
            print("the time is over")
            return lines.EXIT_LEFT
        try:
            result = timing.time_case(machine, case, contenders, ceilings, patience,
                                      options.replays, options.cold_mib << 20)
        except DoesNotFit as why:
            print(f"{case.op_name:24} {case.rows:6} {why}", flush=True)
            continue
        document["results"].append(result)
        print("\n".join(text_of(case, result)), flush=True)
        if options.csv:
            lines.write(options.csv, document)
        wrong = wrong or "us" not in result["contenders"].get("fastnorm", {"us": 0})
    if hasattr(family, "summary"):
        print("\n".join(family.summary(document)))
    # What others lack is no failure; a result of ours that is not there is.
    return wrong
