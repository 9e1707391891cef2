"""Figures out of results, and the tables. Pure."""

import math

from compare.ops import (
    CEILING_BOUNDS,
    LABORATORY_BOUND,
    LONG_N,
    OPS,
    PRESETS,
    SECTIONS,
    SUITES,
    Case,
    gradient_bound,
)

OWN = "fastnorm"
OWN_ROUNDED = "fastnorm-rounded"
OWN_PDL = "fastnorm-pdl"
BEFORE = "fastnorm-before"
LABORATORY = "laboratory"
NOT_PEERS = (OWN, OWN_ROUNDED, BEFORE, OWN_PDL, LABORATORY)
# These launch their kernels with PDL. They are compared with the library doing the same, where that
# was timed.
CUDNN, VLLM_HEADS = "cudnn", "vllm-heads"
PDL_PEERS = (CUDNN, VLLM_HEADS)
# These round the residual addition and the normalised row to 16 bits. They are compared with the
# library doing the same, where that was timed.
ROUNDING_PEERS = ("liger",)
NO_SUCH_OPERATION = "no such operation"  # of a peer that was never meant to have it


def us_of(result, name):
    """Microseconds of a contender; None if it was not timed."""
    return result["contenders"].get(name, {}).get("us")


def ratio(result, name=OWN):
    """Time over the ceiling's."""
    us = us_of(result, name)
    return None if us is None else us / result["ceiling"]["us"]


def excess(result, name=OWN):
    """Microseconds above the ceiling."""
    us = us_of(result, name)
    return None if us is None else us - result["ceiling"]["us"]


def gb_per_s(result, us):
    return None if us is None else result["bytes"] / us / 1e3


def own_beside(result, peer):
    """Which of the library's contenders does what this peer does."""
    if peer in PDL_PEERS and us_of(result, OWN_PDL) is not None:
        return OWN_PDL
    return OWN_ROUNDED if peer in ROUNDING_PEERS and us_of(result, OWN_ROUNDED) is not None else OWN


def best_peer(result):
    """(name, us) of the contender beside which the library does worst, or None: the fastest, but
    for what it rounds. PDL is no fair rival for a chain without it."""
    peers = [name for name, entry in result["contenders"].items()
             if name not in NOT_PEERS and not name.endswith("-pdl") and "us" in entry]
    if not peers:
        return None
    best = min(
        peers,
        key=lambda name: us_of(result, name) / (us_of(result, own_beside(result, name)) or 1.0),
    )
    return best, us_of(result, best)


def against_best(result):
    """Time of the library over that of the best peer: below 1 it is faster."""
    best = best_peer(result)
    own = None if best is None else us_of(result, own_beside(result, best[0]))
    return None if own is None else own / best[1]


def beyond_spread(result):
    """Whether the best peer is faster than the library by more than the spread of both."""
    best = best_peer(result)
    if best is None or against_best(result) is None:
        return False
    noise = sum(
        result["contenders"][name]["spread"] for name in (own_beside(result, best[0]), best[0])
    )
    return against_best(result) > 1 + noise


def why_not(entry):
    """One word for a contender that has no time."""
    for word, shown in (
        ("unsupported", "unsupported"),
        ("wrong", "WRONG"),
        ("too_slow", "time"),
        ("failed", "failed"),
        ("crashed", "crashed"),
    ):
        if word in entry:
            return shown
    return "-"


def _number(value, digits):
    return "-" if value is None else f"{value:.{digits}f}"


def _cell(result, name, decode):
    entry = result["contenders"].get(name, {})
    if "us" not in entry:
        return why_not(entry)
    return f"{excess(result, name):+.2f}" if decode else f"{ratio(result, name):.3f}"


def markdown(header, rows):
    """A table in Markdown."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def section_table(section, dtype, by_key, labels):
    """The table of a section, or None if nothing of it was measured. labels: {contender: heading},
    in order."""
    found = [by_key.get(Case(section.op_name, dtype, rows, n).key) for rows, n in section.shapes]
    found = [r for r in found if r is not None]
    if not found:
        return None
    names = [
        n for n in labels if n != OWN and any("us" in r["contenders"].get(n, {}) for r in found)
    ]
    rows_are = "tokens x head" if OPS[section.op_name].heads else "M x N"
    unit = "us above" if section.decode else "x ceiling"
    header = [rows_are, "ceiling us", f"{OWN} us", "GB/s", "% of ceiling", f"{OWN}, {unit}",
              *[labels[n] for n in names], "best peer", f"{OWN} / best"]
    rows = []
    for r in found:
        own, best = us_of(r, OWN), best_peer(r)
        percent = None if own is None else 100 * r["ceiling"]["us"] / own
        verdict = _number(against_best(r), 3) + (" (slower)" if beyond_spread(r) else "")
        rows.append(
            [
                f"{r['rows']}x{r['n']}",
                _number(r["ceiling"]["us"], 2),
                _number(own, 2),
                _number(gb_per_s(r, own), 0),
                _number(percent, 1),
                _cell(r, OWN, section.decode),
                *[_cell(r, n, section.decode) for n in names],
                best[0] if best else "-",
                verdict,
            ]
        )
    return markdown(header, rows)


def over(result, name, own):
    """(ratio, slower), or None where one was not timed. The ratio is the time of the library's
    contender `own` over that of `name`. Slower is a ratio beyond the spread of both."""
    times = us_of(result, own), us_of(result, name)
    if None in times:
        return None
    noise = sum(result["contenders"][who]["spread"] for who in (own, name))
    return times[0] / times[1], times[0] / times[1] > 1 + noise


def same_bits(result):
    """Whether the laboratory's results have the library's bits; None if nobody looked."""
    differs = result["contenders"].get(LABORATORY, {}).get("differs")
    return None if differs is None else not any(differs.values())


def suite_table(section, dtype, by_key):
    """The library beside the laboratory and cuDNN, or None if nothing of the section was measured.
    cuDNN's kernels have PDL: the fair figure is the last one, the library's calls with PDL over
    cuDNN's."""
    found = [by_key.get(Case(section.op_name, dtype, rows, n).key) for rows, n in section.shapes]
    found = [r for r in found if r is not None]
    if not found:
        return None
    backward = OPS[section.op_name].backward
    header = ["M x N", "ceiling us", f"{OWN} us", "x ceiling"]
    header += ["laboratory us", f"{OWN} / laboratory", "bits", "its kernel"] if backward else []
    header += ["cuDNN us", f"{OWN} / cuDNN", f"{OWN}, PDL us", "PDL / cuDNN"]
    rows = []
    for r in found:
        row = [f"{r['rows']}x{r['n']}", _number(r["ceiling"]["us"], 2), _cell_us(r, OWN),
               _number(ratio(r), 3)]
        if backward:
            bits = {None: "-", True: "equal", False: "DIFFER"}[same_bits(r)]
            row += [_cell_us(r, LABORATORY), _over(r, LABORATORY, OWN), bits,
                    r["contenders"].get(LABORATORY, {}).get("kernel", "-")]
        row += [_cell_us(r, CUDNN), _over(r, CUDNN, OWN), _cell_us(r, OWN_PDL),
                _over(r, CUDNN, OWN_PDL)]
        rows.append(row)
    return markdown(header, rows)


def _cell_us(result, name):
    entry = result["contenders"].get(name, {})
    return f"{entry['us']:.2f}" if "us" in entry else why_not(entry)


def _over(result, name, own):
    found = over(result, name, own)
    return "-" if found is None else f"{found[0]:.3f}" + (" (slower)" if found[1] else "")


def suite_misses(results):
    """Lines: which bounds are missed, and where the laboratory's bits are not the library's."""
    for r in results:
        case = Case(r["op"], r["dtype"], r["rows"], r["n"])
        if us_of(r, OWN) is None:
            yield f"- {case.key}: {OWN} was not timed: {why_not(r['contenders'].get(OWN, {}))}"
            continue
        bound = gradient_bound(case)
        if bound is not None and ratio(r) > bound:
            yield f"- {case.key}: {ratio(r):.3f} x ceiling; required: {bound:g}"
        beside = over(r, LABORATORY, OWN)
        if beside is not None and beside[0] > LABORATORY_BOUND:
            yield f"- {case.key}: {beside[0]:.3f} x laboratory; required: {LABORATORY_BOUND:g}"
        own = own_beside(r, CUDNN)
        beside = over(r, CUDNN, own)
        if beside is not None and beside[1]:
            yield f"- {case.key}: {own} {beside[0]:.3f} x cuDNN, beyond the spread of both"
        if same_bits(r) is False:
            differs = r["contenders"][LABORATORY]["differs"]
            counts = ", ".join(f"{count} elements of {name}" for name, count in differs.items())
            yield f"- {case.key}: the laboratory's bits differ from the library's: {counts}"


def _suite_report(content, by_key, dtypes):
    lines = []
    for dtype in dtypes:
        for section in SUITES[content["suite"]]:
            table = suite_table(section, dtype, by_key)
            if table:
                lines += [f"### {section.title}, {dtype}: laboratory and cuDNN", "", table, ""]
    misses = list(suite_misses(content["results"]))
    return [*lines, "Bounds that are missed:", *(misses or ["- none"]), ""]


def _reasons(results, labels):
    """Each different reason why a contender was not timed, with how many cases it concerns."""
    counts = {}
    for r in results:
        for name, entry in r["contenders"].items():
            for word in ("wrong", "too_slow", "failed", "crashed", "unsupported"):
                if word in entry and entry[word] != NO_SUCH_OPERATION:
                    reason = (name, r["op"], word, entry[word].split("; the nearest")[0][:160])
                    counts[reason] = counts.get(reason, 0) + 1
    order = list(labels)
    return [
        f"- {labels.get(name, name)}, {op}: {word.replace('_', ' ')}: {text} ({count} shapes)"
        for (name, op, word, text), count in sorted(
            counts.items(),
            key=lambda item: (order.index(item[0][0]) if item[0][0] in order else 99, item[0][1:]),
        )
    ]


def labels_of(content):
    """{contender: heading}, in the order of the tables."""
    return dict(content.get("contenders", []))


def _sections_report(sections, by_key, dtypes, labels):
    """The library beside all peers, a table a section, and where it is slower."""
    lines = []
    for dtype in dtypes:
        for section in sections:
            table = section_table(section, dtype, by_key, labels)
            if table:
                lines += [f"### {section.title}, {dtype}", "", table, ""]
    slower = [
        f"- {key}: {against_best(r):.3f} x {best_peer(r)[0]}"
        for key, r in by_key.items()
        if beyond_spread(r)
    ]
    return [*lines, "Slower than the best peer beyond the spread of both:",
            *(slower or ["- nowhere"]), ""]


def report(content):
    """All tables of a document, and what could not be measured."""
    labels = labels_of(content)
    by_key = {f"{r['op']} {r['dtype']} {r['rows']}x{r['n']}": r for r in content["results"]}
    dtypes = sorted({r["dtype"] for r in content["results"]})
    lines = []
    if content.get("preset"):
        lines.append(against_summary(content))
    elif content.get("kind") == "grid":
        lines.append(grid_summary(content["results"]))
    elif content.get("suite"):
        lines += _suite_report(content, by_key, dtypes)
        lines += _sections_report(SUITES[content["suite"]], by_key, dtypes, labels)
    else:
        lines += _sections_report(SECTIONS, by_key, dtypes, labels)
    reasons = _reasons(content["results"], labels)
    absent = [
        f"- {labels.get(name, name)}: {why}" for name, why in content.get("unavailable", {}).items()
    ]
    if absent:
        lines += ["Not here:", *absent, ""]
    if reasons:
        lines += ["Not timed:", *reasons, ""]
    return "\n".join(lines)


def against(result):
    """Time of this build over that of the build before: below 1 it is faster. None where one was
    not timed."""
    own, before = us_of(result, OWN), us_of(result, BEFORE)
    return own / before if own is not None and before is not None else None


def geometric_mean(values):
    return math.exp(sum(math.log(v) for v in values) / len(values))


def _bounded(value, bound):
    """A figure beside its bound, and whether it keeps it."""
    if value is None:
        return "-"
    return (
        f"{value:.4f}"
        if bound is None
        else f"{value:.4f} ({'<=' if value <= bound else 'ABOVE'} {bound:g})"
    )


def against_summary(content):
    """Per group of the preset: how many of its cases were timed, and the geometric mean of this
    build's times over those of the build before. Also the worst cases, and whether the bounds are
    kept. The same for each operation."""
    by_key = {f"{r['op']} {r['dtype']} {r['rows']}x{r['n']}": r for r in content["results"]}
    header = [
        "group",
        "timed",
        "geometric mean",
        f"worst, n <= {LONG_N}",
        f"worst, n > {LONG_N}",
        "furthest",
    ]
    rows, per_op = [], []
    for group in PRESETS[content["preset"]]:
        cases = group.cases()
        found = {c: against(by_key[c.key]) for c in cases if c.key in by_key}
        found = {c: times for c, times in found.items() if times is not None}
        short = [v for c, v in found.items() if c.n <= LONG_N]
        long = [v for c, v in found.items() if c.n > LONG_N]
        furthest = sorted(found, key=found.get, reverse=True)[:3]
        mean = geometric_mean(found.values()) if found else None
        rows.append([group.title, f"{len(found)} of {len(cases)}", _bounded(mean, group.mean),
                     _bounded(max(short, default=None), group.worst),
                     _bounded(max(long, default=None), group.worst_long),
                     ", ".join(f"{c.op_name} {c.shape} {found[c]:.3f}" for c in furthest) or "-"])
        for op in group.op_names:
            of_op = [v for c, v in found.items() if c.op_name == op]
            if of_op:
                per_op.append(
                    [
                        group.title,
                        op,
                        str(len(of_op)),
                        f"{geometric_mean(of_op):.4f}",
                        f"{max(of_op):.3f}",
                    ]
                )
    beside = [f"- {case.key}: {_bounded(ratio(by_key[case.key]), bound)} x ceiling"
              for case, bound in CEILING_BOUNDS[content["preset"]] if case.key in by_key]
    return "\n".join(
        [
            markdown(header, rows),
            "",
            *beside,
            "",
            markdown(["group", "op", "timed", "geometric mean", "worst"], per_op),
            "",
        ]
    )


def grid_summary(results):
    """Per operation and dtype: how many shapes, and those furthest from the ceiling."""
    rows = []
    for op, dtype in sorted({(r["op"], r["dtype"]) for r in results}):
        timed = [
            r for r in results if (r["op"], r["dtype"]) == (op, dtype) and ratio(r) is not None
        ]
        if not timed:
            rows.append([op, dtype, "0", "-", "-", "-"])
            continue
        ratios = sorted(ratio(r) for r in timed)
        worst = sorted(timed, key=ratio, reverse=True)[:3]
        rows.append([op, dtype, str(len(timed)), f"{ratios[len(ratios) // 2]:.3f}",
                     str(sum(1 for value in ratios if value <= 1.05)),
                     ", ".join(f"{r['rows']}x{r['n']} {ratio(r):.2f}" for r in worst)])
    return (
        markdown(["op", "dtype", "shapes", "median x ceiling", "<= 1.05", "furthest"], rows) + "\n"
    )


def progress_line(case, result):
    """One line while measuring."""
    parts = [f"{case.key:26}", f"ceiling {result['ceiling']['us']:9.3f} us"]
    for name, entry in result["contenders"].items():
        parts.append(
            f"{name} {ratio(result, name):.3f}" if "us" in entry else f"{name} {why_not(entry)}"
        )
    return "  ".join(parts)
