#!/usr/bin/env python3
"""Times norm_heads and its gradients beside others, in one process and on the same buffers.

  compare_heads.py --build build --csv heads.csv
  compare_heads.py --library LIB --streams LIB --cases 4096xqwen3:fp8 64xmla:own

A case is TOKENSxMODEL[:WHAT]: MODEL is qwen3, llama3, gemma3 or mla (DeepSeek's latents), WHAT none
(in place), own or fp8 (a paged cache), or backward. Others are this library's calls one after the
other, FlashInfer, vLLM, Liger, PyTorch and torch.compile, as far as they are installed; the file
has the reason of each that is not. Every result is compared with the formula in double precision,
and with this library's, before it is timed; one that is wrong is not timed. It needs PyTorch.
"""

import argparse
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from compare import lines  # noqa: E402


def arguments():
    from compare import heads

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, default=HERE.parent / "build", help="(%(default)s)")
    parser.add_argument("--library", type=Path, help="libfastnorm.so.0, where it is elsewhere")
    parser.add_argument("--streams", type=Path, help="libfastnorm_streams.so, likewise")
    parser.add_argument("--device", default="cuda:0", help="cuda:N, or cpu to try the program out")
    parser.add_argument("--cases", nargs="+", type=heads.HeadsCase, help="in place of all")
    parser.add_argument("--models", nargs="+", choices=heads.MODELS, default=list(heads.MODELS))
    parser.add_argument("--what", nargs="+", choices=heads.WHATS, default=heads.WHATS)
    parser.add_argument("--tokens", nargs="+", type=int, default=heads.TOKENS)
    parser.add_argument("--contenders", nargs="+", choices=[p.name for p in heads.PROVIDERS])
    parser.add_argument("--replays", type=int, default=9)
    parser.add_argument("--cold-mib", type=int, default=600,
                        help="MiB that the calls of a graph touch (%(default)s)")
    parser.add_argument("--case-seconds", type=float, default=60,
                        help="how long a contender may take to get ready for a case (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no case after so long")
    parser.add_argument("--csv", type=Path, help="results")
    return parser


def find(path, build, name, parser):
    found = [path] if path else sorted(build.rglob(name)) if build.is_dir() else []
    if not found or not found[0].is_file():
        parser.error(f"no {name} in {path or build}")
    return found[0].resolve()


def make(torch, wanted):
    """The contenders that can be made, and why the others can't."""
    from compare import heads

    made, unavailable = [], {}
    for kind in heads.PROVIDERS:
        if wanted and kind.name not in wanted:
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


def main():
    parser = arguments()
    options = parser.parse_args()
    library = find(options.library, options.build, "libfastnorm.so.0", parser)
    os.environ["FASTNORM_LIBRARY"] = str(library)
    sys.path.append(str(HERE.parent / "packages" / "python"))
    try:
        import torch
    except ImportError as error:
        sys.exit(f"compare_heads.py: {error}")
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.exit("compare_heads.py: PyTorch has no CUDA device here; --device cpu does without")
    from compare import heads, runner, timing
    from compare.library import Library
    from compare.streams import Streams

    if device.type == "cuda":
        streams = find(options.streams, options.build, "libfastnorm_streams.so", parser)
        machine = heads.HeadsGpu(torch, device, Streams(streams))
    else:
        machine = heads.HeadsHost(torch, device)
    contenders, unavailable = make(torch, options.contenders)
    document = {
        "kind": "heads",
        "library": Library(library).identity(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "replays": options.replays,
        "unavailable": unavailable,
        **runner.describe_machine(torch, device),
        "results": [],
    }
    for name, why in unavailable.items():
        print(f"{name}: not here: {why}")
    cases = options.cases or heads.cases_of(options.models, options.what, options.tokens)
    ceilings, patience = timing.Ceilings(), timing.Patience(options.case_seconds, 3600)
    start, wrong = time.monotonic(), False
    for case in cases:
        if time.monotonic() - start > options.seconds:
            print("the time is over")
            break
        try:
            result = timing.time_case(machine, case, contenders, ceilings, patience,
                                      options.replays, options.cold_mib << 20)
        except heads.DoesNotFit as why:
            print(f"{case.op_name:24} {case.rows:6} {why}", flush=True)
            continue
        document["results"].append(result)
        print("\n".join(text_of(case, result)), flush=True)
        if options.csv:
            lines.write(options.csv, document)
        wrong = wrong or "us" not in result["contenders"].get("fastnorm", {"us": 0})
    # What others lack is no failure; a result of ours that is not there is.
    return wrong


if __name__ == "__main__":
    sys.exit(main())
