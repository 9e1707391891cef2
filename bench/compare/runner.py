"""Runs the comparison: a child process measures, its parent starts another one where a contender
took it down.

The child writes the document after every case. Before each step it writes the name of the contender
(the file *.now), so the parent knows whom to leave out next time.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from compare import lines, ops, peers, tables
from compare.laboratory import Lab, Laboratory
from compare.library import Fastnorm, FastnormBefore, FastnormPdl, FastnormRounded, Library
from compare.machine import DoesNotFit, Gpu, Host
from compare.results import Document, Mismatch
from compare.streams import Streams
from compare.timing import Ceilings, MachineLost, Patience, time_case

EXIT_LOST, EXIT_UNUSABLE = 3, 2
RESTARTS = 6
KNOWN = (
    Fastnorm,
    FastnormBefore,
    FastnormPdl,
    Laboratory,
    *peers.PEERS,
    FastnormRounded,
)  # in the order of the tables
FEW_ROWS = 1024  # a decode step has no more
STALLED_SECONDS = 75  # without a sign of life: longer than a contender may take for one case


def say(text):
    print(text, flush=True)


class Progress:
    """The file that says which contender and case the child is at."""

    def __init__(self, document_path):
        self.path = Path(f"{document_path}.now")

    def write(self, contender, key=""):
        self.path.write_text(f"{contender}\t{key}\n")

    def read(self):
        """(contender, case key, age in seconds)"""
        try:
            text, age = self.path.read_text(), time.time() - self.path.stat().st_mtime
        except OSError:
            return "start", "", 0.0
        contender, _, key = text.strip().partition("\t")
        return contender, key, age

    def clear(self):
        self.path.unlink(missing_ok=True)


def describe_machine(torch, device):
    """Device, driver, clocks now and at most, and versions."""
    found = {"versions": peers.versions(), "torch_cuda": torch.version.cuda}
    if device.type != "cuda":
        return {"device": "cpu", **found}
    properties = torch.cuda.get_device_properties(device)
    found.update(device=properties.name, multiprocessors=properties.multi_processor_count,
                 memory_bytes=properties.total_memory, l2_bytes=properties.L2_cache_size)
    fields = [
        "driver_version",
        "clocks.sm",
        "clocks.mem",
        "clocks.max.sm",
        "clocks.max.mem",
        "power.limit",
        "power.draw",
        "temperature.gpu",
    ]
    if shutil.which("nvidia-smi"):
        try:
            asked = subprocess.run(
                [
                    "nvidia-smi",
                    f"--query-gpu={','.join(fields)}",
                    "--format=csv,noheader",
                    f"--id={device.index or 0}",
                ],
                capture_output=True,
                text=True,
                timeout=20,
            )
        except subprocess.TimeoutExpired:
            return found
        if asked.returncode == 0:
            found.update(
                zip((f.replace(".", "_") for f in fields), asked.stdout.strip().split(", "))
            )
    return found


def wanted_contenders(options):
    """The kinds of contenders of a run, in order."""
    known = (Fastnorm, FastnormBefore) if options.kind == "grid" or options.preset else KNOWN
    return [kind for kind in known if (kind is not FastnormBefore or options.against)
            and (not options.contenders or kind.name in options.contenders)]


def make_contenders(torch, libraries, machine, document, options, progress):
    """All contenders that can be made, in order, and why the others can't. libraries: this build,
    and the one before."""
    made, unavailable = [], {}
    library, before = libraries
    crashed = document.content.get("crashed", {})
    for kind in wanted_contenders(options):
        if kind.name in crashed:
            unavailable[kind.name] = f"brought the process down: {crashed[kind.name]}"
            continue
        progress.write(kind.name)
        start = time.monotonic()
        try:
            if issubclass(kind, Fastnorm):
                made.append(kind(before if kind is FastnormBefore else library, machine))
            elif kind is Laboratory:
                lab = None if options.lab is None else Lab(options.lab)
                made.append(Laboratory(lab, machine, Fastnorm(library, machine)))
            else:
                made.append(kind(torch))
            if options.pdl:
                made[-1].decode_only = False
            say(f"{kind.name}: ready after {time.monotonic() - start:.1f} s")
        except Exception as why:  # an import may fail in any way
            unavailable[kind.name] = f"{type(why).__name__}: {why}".splitlines()[0][:300]
            say(f"{kind.name}: not here: {unavailable[kind.name]}")
    return made, unavailable


def at_case(contenders, case):
    """The contenders that this case is for."""
    few_rows = case.rows <= FEW_ROWS and not case.op.heads
    return [c for c in contenders if few_rows or not getattr(c, "decode_only", False)]


def passes(contenders, cases, document):
    """First everything by those who are quickly ready, then again with those who compile long."""
    quick = [c for c in contenders if not getattr(c, "slow", False)]
    todo = document.missing(cases, {c.name for c in quick if not getattr(c, "decode_only", False)})
    for case in todo:
        yield case, at_case(quick, case)
    many_rows_first = sorted(cases, key=lambda case: case.rows <= FEW_ROWS)
    for slow in (c for c in contenders if getattr(c, "slow", False)):
        for case in document.missing([c for c in many_rows_first if slow.has(c)], {slow.name}):
            yield case, at_case(contenders, case)


def measure(machine, contenders, cases, document, options, progress):
    """Times all cases that the document lacks, until there is no time left. Returns how many are
    left."""
    ceilings = Ceilings()
    patience = Patience(options.case_seconds, options.contender_seconds)
    skipped = document.content.setdefault("skipped", {})
    done = 0
    work = list(passes(contenders, cases, document))
    for case, present in work:
        if time.time() > options.until:
            break
        done += 1
        if case.key in skipped:
            continue
        progress.write("streams", case.key)
        try:
            result = time_case(
                machine,
                case,
                present,
                ceilings,
                patience,
                options.replays,
                options.cold_bytes,
                lambda name, key=case.key: progress.write(name, key),
            )
        except DoesNotFit as why:
            skipped[case.key] = str(why)
            say(f"{case.key:26}  {why}")
            continue
        document.add(result)
        document.write()
        say(tables.progress_line(case, result))
    return len(work) - done


def cases_of(options):
    """What the options ask for, in the order of measurement."""
    dtypes = options.dtypes or ["bf16"]
    if options.preset:
        cases = ops.preset_cases(options.preset, options.dtypes, options.ops, options.n)
    elif options.suite:
        cases = ops.suite_cases(options.suite, dtypes, options.ops, options.n)
    elif options.kind == "grid":
        cases = ops.grid_cases(dtypes, options.ops or ["rms", "add", "layer"], options.n)
    else:
        cases = ops.table_cases(dtypes, options.ops, options.n)
    return [c for c in cases if not options.rows or c.rows in options.rows]


def run_child(options):
    progress = Progress(options.csv)
    progress.write("start")
    try:
        import torch
    except ImportError as why:
        say(f"PyTorch is needed: {why}")
        return EXIT_UNUSABLE
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        say("PyTorch sees no GPU")
        return EXIT_UNUSABLE
    try:
        library = Library(options.library)
        machine = (
            Host(torch, device)
            if device.type == "cpu"
            else Gpu(torch, device, Streams(options.streams))
        )
        document = Document.open(options.csv)
        before = Library(options.against, older=True) if options.against else None
        described = describe_machine(torch, machine.device)
        if options.lab is not None:
            described["laboratory"] = Lab(options.lab).identity()
        document.describe(options.kind, library.identity(), described,
                          before.identity() if before else None, options.preset, options.suite)
    except (Mismatch, OSError, RuntimeError, AttributeError) as why:
        say(f"{type(why).__name__}: {why}")
        return EXIT_UNUSABLE
    say(
        f"{document.content['device']}, libfastnorm {library.version()}, PyTorch {torch.__version__}"
    )
    document.content["contenders"] = [[c.name, c.label] for c in KNOWN]
    contenders, document.content["unavailable"] = make_contenders(
        torch, (library, before), machine, document, options, progress
    )
    document.write()
    cases = cases_of(options)
    try:
        left = measure(machine, contenders, cases, document, options, progress)
    except MachineLost as why:
        say(f"the device is lost to this process: {why}")
        return EXIT_LOST
    document.content["runs"][-1]["at_the_end"] = describe_machine(torch, machine.device)
    document.write()
    say(f"{left} measurements left to make" if left else "all measured")
    return lines.EXIT_LEFT if left else 0


def watch(command, progress, until):
    """Runs the child; kills it where it shows no sign of life, or is far beyond its time. Its exit
    code and why it was killed."""
    child = subprocess.Popen(command, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        while True:
            try:
                return child.wait(timeout=1), ""
            except subprocess.TimeoutExpired:
                pass
            age = progress.read()[2]
            if age > STALLED_SECONDS:
                why = f"no sign of life for {age:.0f} s"
            elif time.time() > until + STALLED_SECONDS:
                why = "far beyond the time given"
            else:
                continue
            child.kill()
            return child.wait(), why
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


def run_parent(options, command):
    """Children, one after the other, until one comes to its end or the time is over. Returns an
    exit code."""
    try:
        Document.open(options.csv, options.fresh).write()
    except (Mismatch, OSError, ValueError) as why:
        say(f"{options.csv}: {why}")
        return EXIT_UNUSABLE
    progress = Progress(options.csv)
    for _ in range(RESTARTS):
        progress.clear()
        code, why = watch([*command, "--until", str(options.until)], progress, options.until)
        contender, key, _ = progress.read()
        progress.clear()
        if code in (0, EXIT_UNUSABLE, lines.EXIT_LEFT):
            return code
        why = why or (
            f"signal {-code}"
            if code < 0
            else "the device was lost" if code == EXIT_LOST else f"exit {code}"
        )
        blame(options.csv, contender, key, why)
        say(f"the process ended in {contender} {key}: {why}")
        if contender == "start" or time.time() > options.until:
            return 1
    return 1


def blame(path, contender, key, why):
    """Notes what the next child leaves out: the contender, or the case where it was nobody's kernel
    or our own."""
    document = Document.load(path)
    if contender in ("streams", Fastnorm.name, FastnormBefore.name) and key:
        document.content.setdefault("skipped", {})[key] = f"{contender}: {why}"
    else:
        document.content.setdefault("crashed", {})[contender] = f"{why} at {key}" if key else why
    document.write()


def child_command(script, arguments):
    return [sys.executable, str(script), *arguments, "--child"]
