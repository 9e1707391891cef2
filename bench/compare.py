#!/usr/bin/env python3
"""Compares libfastnorm with others who compute the same: PyTorch, torch.compile, FlashInfer, quack,
Liger, Transformer Engine, cuDNN, vLLM and sgl-kernel, as far as they are installed, and with the
laboratory. One process times them one after the other on the same buffers. The ceiling is the best
plain stream of the same bytes.

    compare.py run     the tables: peers on the shapes of large batches, decode, fp8 and heads
    compare.py run --suite gradients
                       the shapes on which the library is to keep up with the laboratory and cuDNN
    compare.py run --preset models --against LIB
                       this build and another one in turn, on hidden sizes of models; goes on where
                       its file ends
    compare.py grid    many shapes, the library against the ceiling alone; goes on where its file
    ends compare.py report  the tables of a file, as Markdown; needs no GPU
    compare.py plot    the plots of files, as SVG; needs no GPU but matplotlib
    compare.py convert writes JSON documents of older versions as result files, beside them
"""

import argparse
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from compare import lines, ops, tables  # noqa: E402
from compare.results import Document, Mismatch  # noqa: E402


def words(allowed=None):
    """A list separated by commas."""

    def parse(text):
        found = [w for w in text.split(",") if w]
        unknown = [w for w in found if allowed and w not in allowed]
        if unknown or not found:
            raise argparse.ArgumentTypeError(
                f"{', '.join(unknown) or 'nothing'}; known: {', '.join(allowed or [])}"
            )
        return found

    return parse


def numbers(text):
    try:
        return [int(n) for n in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not a list of whole numbers") from None


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("run", "measure the tables"), ("grid", "measure the grid")):
        p = commands.add_parser(name, help=text)
        p.add_argument(
            "--build",
            type=Path,
            default=HERE.parent / "build",
            help="build folder, or a folder with the libraries side by side (%(default)s)",
        )
        p.add_argument("--library", type=Path, help="libfastnorm.so.1, where it is elsewhere")
        p.add_argument("--streams", type=Path, help="libfastnorm_streams.so, where it is elsewhere")
        p.add_argument(
            "--device", default="cuda:0", help="cuda:N, or cpu to try the program out (%(default)s)"
        )
        p.add_argument(
            "--csv",
            type=Path,
            default=Path(f"{name}.csv"),
            help="results; what it has is not measured " "again (%(default)s)",
        )
        p.add_argument("--fresh", action="store_true", help="forget what the file has")
        p.add_argument(
            "--seconds", type=float, default=200, help="begin no case after so long (%(default)s)"
        )
        p.add_argument("--against", type=Path, metavar="LIB",
                       help="libfastnorm.so.1 of another build, timed in turn with this one")
        if name == "run":
            p.add_argument("--lab", type=Path, help="libfastnorm_lab.so, where it is elsewhere")
            p.add_argument(
                "--pdl", action="store_true",
                help="time the PDL chains at every shape, not at few rows alone; --suite does",
            )
            p.add_argument("--suite", choices=list(ops.SUITES),
                           help="a named set of shapes in place of the tables")
            p.add_argument(
                "--preset",
                choices=list(ops.PRESETS),
                help="a named set of shapes in place of the tables, with --against: prints "
                "geometric means of the two builds and their bounds",
            )
        p.add_argument("--dtypes", type=words(list(ops.ELEMENT_BYTES)),
                       help="only these (bf16; a preset: all that it has)")
        p.add_argument("--ops", type=words(list(ops.OPS)), help="only these operations")
        p.add_argument("--n", type=numbers, help="only these row lengths")
        p.add_argument("--rows", type=numbers, help="only these numbers of rows")
        p.add_argument("--contenders", type=words(), help="only these, such as fastnorm,quack")
        p.add_argument(
            "--replays", type=int, default=9, help="timed replays of each graph (%(default)s)"
        )
        p.add_argument("--case-seconds", type=float, default=30,
                       help="how long a contender may take to get ready for a case (%(default)s)")
        p.add_argument(
            "--contender-seconds", type=float, help="and for all cases (90; a preset or a suite: 3600)"
        )
        p.add_argument("--cold-mib", type=int, default=ops.COLD_BYTES >> 20,
                       help="MiB that the calls of a graph touch (%(default)s)")
        p.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
        p.add_argument("--until", type=float, help=argparse.SUPPRESS)
    p = commands.add_parser("report", help="print the tables of a file")
    p.add_argument("csv", type=Path)
    p = commands.add_parser("plot", help="draw the plots of files")
    p.add_argument("csv", type=Path, nargs="+")
    p.add_argument("--out", type=Path, default=HERE.parent / "docs" / "plots",
                   help="folder for the SVG files (%(default)s)")
    p = commands.add_parser(
        "convert", help="write JSON documents of older versions as result files"
    )
    p.add_argument("json", type=Path, nargs="+")
    return parser


def find(options, parser):
    """Fills in the paths of the libraries."""
    for name, pattern in (("library", "libfastnorm.so.1"), ("streams", "libfastnorm_streams.so"),
                          ("lab", "libfastnorm_lab.so")):
        given = getattr(options, name)
        if name != "library" and options.device == "cpu":
            continue
        found = (
            [given]
            if given
            else sorted(options.build.rglob(pattern)) if options.build.is_dir() else []
        )
        if not found and name == "lab":  # the others can be compared without
            continue
        if not found or not found[0].is_file():
            parser.error(f"no {pattern} in {given or options.build}")
        setattr(options, name, found[0].resolve())
    if options.against and not options.against.is_file():
        parser.error(
            f"--against {options.against} is no file; required: the libfastnorm.so.1 of another build"
        )
    if options.against and options.against.resolve() == options.library:
        parser.error(
            f"--against {options.against} is the library itself; required: that of another build"
        )
    if options.preset and options.suite:
        parser.error(f"--preset {options.preset} and --suite {options.suite}; required: one of them")
    if options.preset and not options.against:
        parser.error(f"--preset {options.preset} compares two builds; required: --against LIB")


def run(options, parser):
    from compare import runner  # wants NumPy, which report and plot do without

    for name in ("preset", "suite", "lab", "pdl"):  # the grid has none of them
        setattr(options, name, getattr(options, name, None))
    options.pdl = bool(options.pdl or options.suite)
    find(options, parser)
    options.kind = options.command
    options.cold_bytes = options.cold_mib << 20
    if options.contender_seconds is None:
        options.contender_seconds = 3600 if options.preset or options.suite else 90
    if options.until is None:
        options.until = time.time() + options.seconds
    if options.child:
        return runner.run_child(options)
    code = runner.run_parent(options, runner.child_command(__file__, sys.argv[1:]))
    print()
    return code if code == runner.EXIT_UNUSABLE else report(options.csv) or code


def report(path):
    document = Document.load(path)
    print(
        f"{document.content.get('device', 'nothing measured')}, x ceiling: time over that of the best plain stream "
        "of the same bytes, same run\n"
    )
    print(tables.report(document.content), flush=True)
    return 0


def plot(options):
    from compare import plots

    drawn = plots.draw([Document.load(path).content for path in options.csv], options.out)
    print("\n".join(str(path) for path in drawn) or "nothing to draw")
    return 0 if drawn else 1


def main():
    parser = arguments()
    options = parser.parse_args()
    try:
        if options.command in ("run", "grid"):
            return run(options, parser)
        if options.command == "convert":
            print("\n".join(str(lines.convert(path)) for path in options.json))
            return 0
        return report(options.csv) if options.command == "report" else plot(options)
    except (Mismatch, OSError, ValueError, ImportError) as why:
        print(f"compare.py: {why}", file=sys.stderr)
        return 1


sys.exit(main())
