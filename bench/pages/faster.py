"""Every case in which something else was faster than this library, of all result files and of the
integrations' figures, with its reason."""

import csv
import math
import re
from dataclasses import dataclass

from compare import tables as compared
from pages.files import RESULTS, ROOT, File, minor, project_version, read, table, wrapped

REASONS = ROOT / "bench" / "reasons.csv"
# Of times that have no spread in their file: the fastest of several rounds.
NOISE = 0.02
NOT_PEERS = {*compared.NOT_PEERS, "fastnorm-chain"}
ENGINES = {"onnxruntime": "ONNX Runtime", "ggml": "ggml", "candle": "candle-nn"}
FIGURES = {"candle": "candle-nn", "gorgonia": "gorgonia", "java": None}


@dataclass
class Case:
    card: str
    what: str
    library: str
    own: float
    other: float
    noise: float
    file: object  # where the times are of: a File, or the path of a page

    @property
    def ratio(self):
        return self.own / self.other

    @property
    def slower(self):
        return self.ratio > 1 + self.noise

    def place(self):
        """The version, and the file."""
        if isinstance(self.file, File):
            return self.file.version or "none", self.file.name
        return "none", str(self.file.relative_to(ROOT))


def own_beside(result, peer):
    """The library's contender that does what this peer does; None: it was not timed."""
    if peer.endswith("-pdl"):
        return compared.OWN_PDL if compared.us_of(result, compared.OWN_PDL) else None
    own = compared.own_beside(result, peer)
    return own if compared.us_of(result, own) else None


def of_contenders(file):
    for r in file.results:
        found = []
        for peer, entry in r["contenders"].items():
            own = None if peer in NOT_PEERS or "us" not in entry else own_beside(r, peer)
            if own:
                ours = r["contenders"][own]
                found.append(Case(
                    "", f"{r['op'].removesuffix(' forward')}, {r['dtype']}, {r['rows']} x {r['n']}",
                    peer, ours["us"], entry["us"], ours["spread"] + entry["spread"], file,
                ))
        if found:
            yield max(found, key=lambda case: case.ratio)


def of_providers(file):
    """MLA decode and the indexer: a line for each provider."""
    groups = {}
    for r in file.results:
        if "us" in r:
            groups.setdefault(r.get("shape", r.get("tokens")), {})[r["provider"]] = r
    kind = "MLA decode" if "mla" in file.name else "indexer of"
    for shape, found in groups.items():
        ours = found.pop("fastnorm", None)
        cases = [
            Case("", f"{kind} {shape}, {r.get('dtype', 'bf16')}", name, ours["us"], r["us"],
                 ours["spread"] + r["spread"], file)
            for name, r in found.items()
            if ours
        ]
        if cases:
            yield max(cases, key=lambda case: case.ratio)


def of_peers(file):
    """Norms of several ranks beside NCCL: the better of both algorithms."""
    best = {}
    for r in file.results:
        if "nccl_us" in r and "us" in r and "family" in r:
            key = (r["family"], r["rows"], r["n"], r.get("n2"))
            best[key] = min(best.get(key, r), r, key=lambda r: r["us"])
    for (family, m, n, _), r in best.items():
        what = f"{family} of {r['ranks']} ranks, {r['dtype']}, {m} x {n}"
        yield Case("", what, "NCCL", r["us"], r["nccl_us"], r["spread"] + NOISE, file)


def of_nccl(file):
    for r in file.results:
        if "by_hand_us" in r and "us" in r:
            shape = f"{r['dtype']}, {r['rows']} x {r['n']}"
            what = f"{r['op']} of {file.content['ranks']} ranks, {shape}"
            noise = r["spread"] + r["by_hand_spread"]
            yield Case("", what, "NCCL and norm", r["us"], r["by_hand_us"], noise, file)


def of_models(file):
    """A whole model beside the original one, both compiled or neither; half of the times lie
    between low and high."""
    found = {(r["model"], r["mode"], r["variant"]): r for r in file.results}
    for (model, mode, variant), r in found.items():
        end = ", compiled" if variant.endswith(", compiled") else ""
        other = found.get((model, mode, f"stock{end}"))
        if not variant.startswith("patch") or other is None:
            continue
        noise = sum((v["high_ms"] - v["low_ms"]) / v["median_ms"] for v in (r, other)) / 2
        yield Case("", f"{model}, {mode}, {variant}", f"the original{end}", 1e3 * r["median_ms"],
                   1e3 * other["median_ms"], noise, file)


def of_engines(file):
    engine = ENGINES[file.content["kind"]]
    for r in file.results:
        shape = f"{r['rows']} x {r['n']}" if "n" in r else f"{r['rows']} tokens"
        what = f"{r['op']}, {r['dtype']}, {shape}"
        yield Case("", what, engine, r["us"], r["us"] / r["ratio"], NOISE, file)


def of_figures(path):
    """A page of an integration: the table with the columns rows, columns, fastnorm and time."""
    lines = [line for line in path.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    names = {name: i for i, name in enumerate(cells[0])}
    engine = FIGURES[path.parent.name]
    for row in cells[2:]:
        library = engine or row[names["engine"]]
        dtype = row[names["dtype"]] if "dtype" in names else "f32"
        what = f"{row[names['norm']]}, {dtype}, {row[names['rows']]} x {row[names['columns']]}"
        own, ratio = (float(row[names[name]]) for name in ("fastnorm, µs", "time"))
        other = own / ratio if ratio else math.inf  # the ratio has two digits
        yield Case("", what, library, own, other, NOISE, path)


def kind_of(file):
    first = next(iter(file.results), {})
    if "contenders" in first:
        return of_contenders
    for name, made in (("provider", of_providers), ("nccl_us", of_peers), ("by_hand_us", of_nccl),
                       ("mode", of_models)):
        if any(name in r for r in file.results):
            return of_nccl if "by_hand_us" in first else made
    return of_engines if file.content.get("kind") in ENGINES else None


def every_case(folder=RESULTS, figures=ROOT / "integrations"):
    """The newest result of each case that was timed beside something else."""
    newest = {}
    for path in sorted(folder.glob("*.csv")):
        file = read(path)
        made = kind_of(file)
        word = path.name.split("_")[0]
        card = word if re.fullmatch(r"[a-z]\d+\w*", word) else "cpu"
        for case in made(file) if made else ():
            case.card = card
            kept = newest.get((card, case.what))
            if kept is None or kept.file.date <= file.date:
                newest[card, case.what] = case
    for name in FIGURES:
        for case in of_figures(figures / name / "figures.md"):
            case.card = "cpu"
            newest[name, case.what, case.library] = case
    return list(newest.values())


def read_reasons(path=REASONS):
    with open(path, newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def reason_of(case, reasons):
    asked = {"card": case.card, "case": case.what, "library": case.library}
    for row in reasons:
        if all(re.fullmatch(row[name], value) for name, value in asked.items()):
            return row["reason"]
    return None


def without_reason(cases=None, reasons=None):
    """Lines: cases in which something else is faster, and nobody has said why."""
    reasons = read_reasons() if reasons is None else reasons
    for case in every_case() if cases is None else cases:
        if case.slower and not reason_of(case, reasons):
            yield (
                f"{case.card}: {case.what}: {case.library} is faster, {case.own:.2f} us to "
                f"{case.other:.2f}; required: its line in bench/reasons.csv"
            )


def number(us):
    return f"{us:.2f}" if us < 1000 else f"{us:.0f}"


def faster(shelf):
    cases, reasons = every_case(shelf.folder), read_reasons()
    slow = sorted((c for c in cases if c.slower), key=lambda c: (c.card, -c.ratio))
    rows = []
    for case in slow:
        version, name = case.place()
        if isinstance(case.file, File):
            shelf.file(case.file.path.stem)
        rows.append([
            {"cpu": "CPU"}.get(case.card, case.card.upper()), case.what, case.library,
            f"{number(case.own)} us, {number(case.other)} us, {case.ratio:.2f}",
            reason_of(case, reasons) or "not known", f"`{name}`"
            + ("" if version == "none" or minor(version) == minor(project_version())
               else f", version {version}"),
        ])
    head = ["card", "case", "library", "this library, the other, ratio", "reason", "file"]
    share = 100 * len(slow) / len(cases)
    text = f"These are {len(slow)} of {len(cases)} cases, or {share:.1f} %."
    return [*wrapped(text), "", *table(head, rows)]
