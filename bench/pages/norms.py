"""Tables of README.md and docs/performance.md: norms on a GPU and on CPUs, and the host."""

import statistics

from compare import tables as compared
from pages.files import (
    Missing,
    an,
    and_of,
    measured,
    minor,
    pick,
    project_version,
    ranged,
    table,
    wrapped,
)

OPS = ("rms", "add", "layer")
HEAD = ["RMSNorm", "residual + RMSNorm", "LayerNorm"]


def ratio(r):
    return f"{r['us']:.1f} us, {r['ratio']:.3f}"


def with_place(file, lines):
    return [*measured(file), "", *lines]


def many_rows(file, columns):
    found = file.by_case()
    return with_place(file, table(
        ["n", *HEAD],
        [[str(n)] + [ratio(pick(found, (op, 4096, n), file)) for op in OPS] for n in columns],
    ))


def large(shelf):
    file = shelf.part("large")
    return many_rows(file, sorted(n for op, m, n in file.by_case() if op == "rms" and m == 4096))


def readme(shelf):
    return many_rows(shelf.part("large"), [1024, 2048, 4096, 5120, 7168, 8192, 16384])


def decode(shelf):
    # Both columns of one file: the same run, the same buffers.
    file = shelf.part("pdl")
    found = file.by_case()

    def cell(r):
        return f"{r['us']:.2f} us, {r['us'] - r['ceiling_us']:+.2f}; {r['pdl_us']:.2f}"

    shapes = [(1, 4096), (1, 16384), (16, 4096), (64, 7168), (128, 8192), (128, 16384)]
    return with_place(file, table(
        ["rows x n", *HEAD],
        [
            [f"{m} x {n}"] + [cell(pick(found, (op, m, n), file)) for op in OPS]
            for m, n in shapes
        ],
    ))


CODES = {
    "rms_fp8": "RMSNorm, e4m3, static scale",
    "add_fp8": "residual + RMSNorm, e4m3, static scale",
    "layer_fp8": "LayerNorm, e4m3, static scale",
    "rms_row_fp8": "RMSNorm, e4m3, dynamic scale per row",
    "add_row_fp8": "residual + RMSNorm, e4m3, dynamic scale per row",
    "rms_block_fp8": "RMSNorm, e4m3, dynamic scale per block of 128",
    "rms_mxfp8": "RMSNorm, MXFP8",
    "rms_nvfp4": "RMSNorm, NVFP4",
}


def codes(shelf):
    file = shelf.part("codes")
    found, columns = file.by_case(), [1024, 4096, 8192, 16384, 32768]
    return with_place(file, table(
        ["output", *map(str, columns)],
        [
            [name] + [ratio(pick(found, (op, 4096, n), file)) for n in columns]
            for op, name in CODES.items()
        ],
    ))


def heads(shelf):
    file = shelf.part("heads")
    found = file.by_case()
    shapes = sorted((rows, n) for op, rows, n in found if op == "qk")
    return with_place(file, table(
        ["tokens x head size", "query and key heads", "rounded before the weight"],
        [
            [f"{m} x {n}"] + [ratio(pick(found, (op, m, n), file)) for op in ("qk", "qk_rounded")]
            for m, n in shapes
        ],
    ))


def short(shelf):
    file = shelf.part("other")
    found = file.by_case()
    shapes = sorted((n, rows) for op, rows, n in found if op == "rms" and n <= 512)
    return with_place(file, table(
        ["rows x n", *HEAD],
        [
            [f"{m} x {n}"] + [ratio(pick(found, (op, m, n), file)) for op in OPS]
            for n, m in shapes
        ],
    ))


def host(shelf):
    """What a call takes on the host."""
    try:
        file = shelf.part("host_cost")
    except Missing:
        file = shelf.file("host_host_cost")  # of a machine without a GPU
    ns = {r["op"]: [] for r in file.results}
    for r in file.results:
        ns[r["op"]].append(r["ns"] / 1e3)
    norms = [us for op, found in ns.items() if op != "qk" for us in found]
    text = (
        f"On the host, a call takes {ranged(norms)} us before the launch, and query and key heads "
        f"in one launch take {ranged(ns['qk'])} us. {' '.join(measured(file))}"
    )
    return wrapped(text)


def title(label):
    return "PyTorch" if label == "torch" else label


def timed_peers(results):
    """Names of other libraries that were timed, in the order of the file."""
    names = {name for r in results for name, entry in r["contenders"].items() if "us" in entry}
    return {name for name in names - set(compared.NOT_PEERS) if not name.endswith("-pdl")}


def beside(shelf):
    """What compare.py found, in sentences."""
    found = []
    for name in ("compare", "compare_f16"):
        file = shelf.part(name)
        labels = compared.labels_of(file.content)
        rest = [r for r in file.results if compared.best_peer(r)]
        peers = timed_peers(rest)
        slow = [r for r in rest if compared.beyond_spread(r)]
        nearest = max(rest, key=compared.against_best)
        names = and_of(title(labels[n]) for n in labels if n in peers)
        dtype = and_of(sorted({r["dtype"] for r in rest}))
        peer = compared.best_peer(nearest)[0]
        how = "none of them is" if not slow else f"in {len(slow)} of them another library is"
        found += wrapped(
            f"**{dtype}:** in {len(rest)} cases beside {names}, {how} faster by more than the "
            f"spreads of both. The nearest is {title(labels[peer])} for `{nearest['op']}` of "
            f"{nearest['rows']} x {nearest['n']}, where this library takes "
            f"{compared.against_best(nearest):.2f} times as long. {' '.join(measured(file))}"
        ) + [""]
    return found[:-1]


def beside_short(shelf):
    file = shelf.part("compare")
    labels = compared.labels_of(file.content)
    rest = [r for r in file.results if compared.best_peer(r)]
    slow = sum(map(compared.beyond_spread, rest))
    peers = timed_peers(rest)
    names = and_of(title(labels[n]) for n in labels if n in peers)
    return wrapped(
        f"In {slow or 'none'} of {len(rest)} cases one of {names} is faster by more than the "
        f"spreads of both. {' '.join(measured(file))}"
    )


def grid(shelf):
    file = shelf.part("grid")
    rows = []
    groups = (("1024 and more", lambda m: m >= 1024), ("up to 128", lambda m: m <= 128))
    for name, wanted in groups:
        medians = [
            statistics.median(
                compared.ratio(r)
                for r in file.results
                if r["op"] == op and wanted(r["rows"]) and compared.ratio(r) is not None
            )
            for op in OPS
        ]
        rows.append([name, *(f"{m:.2f}" for m in medians)])
    return with_place(file, table(["rows", *HEAD], rows))


def rounded(shelf):
    """What two roundings cost: the same shapes, with and without, in two files of one card."""
    file, plain = shelf.part("rounded"), [shelf.part("large"), shelf.part("decode")]
    before = {}
    for other in plain:
        for dtype in ("bf16", "f16"):
            before |= {(dtype, *key): r for key, r in other.by_case(dtype).items()}
    found = {op: [] for op in OPS}
    for r in file.results:
        key = (r["dtype"], r["op"].removesuffix("_rounded"), r["rows"], r["n"])
        if key in before and "us" in r:
            found[key[1]].append(r["us"] / before[key]["us"] - 1)
    rms = found["rms"] + found["add"]
    text = (
        "`FASTNORM_ROUND_NORMALIZED` with `FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS` changes the "
        f"time of RMSNorm, with and without a residual, by {100 * statistics.mean(rms):.1f} % on "
        f"average and by {100 * max(rms):.1f} % at most, and that of LayerNorm by "
        f"{100 * statistics.mean(found['layer']):.1f} % on average. "
        f"{' '.join(measured(file, *plain))}"
    )
    return wrapped(text)


def rows_of(low, high=1 << 30):
    return lambda r: low <= r["rows"] <= high


def long_rows(low, high=1 << 30):
    return lambda r: low <= r["rows"] <= high and r["n"] > 32768


def off(r):
    """Whether rows begin elsewhere than at multiples of 16 bytes."""
    return bool(r["n"] % 8 or r.get("gap", 0) % 8 or r.get("shift", 0) % 8)


def unaligned(low, high=1 << 30, shortest=1, longest=1 << 30):
    return lambda r: low <= r["rows"] <= high and shortest <= r["n"] <= longest and off(r)


def aligned(low, high=1 << 30):
    return lambda r: low <= r["rows"] <= high and not off(r)


# (what, file, which of its cases; then for RMSNorm, residual + RMSNorm and LayerNorm the operations
# whose ratios count, or none)
FAR = (
    ("256 to 2048 rows of 4096 to 32768, to y", "some_rows", rows_of(256, 2048), OPS),
    ("the same, static scale", "some_rows", rows_of(256, 2048),
     ("rms_fp8", "add_fp8", "layer_fp8")),
    ("the same, dynamic scale per row", "some_rows", rows_of(256, 2048),
     ("rms_row_fp8", "add_row_fp8", "layer_row_fp8")),
    ("the same, f32 weight, to y", "some_rows_f32", rows_of(256, 2048), (None, None, "layer")),
    ("4096 rows, static scale", "codes", rows_of(4096), ("rms_fp8", "add_fp8", "layer_fp8")),
    ("4096 rows, dynamic scale per row", "codes", rows_of(4096),
     ("rms_row_fp8", "add_row_fp8", None)),
    ("4096 rows, NVFP4", "codes", rows_of(4096), ("rms_nvfp4", None, None)),
    ("f32 weight, 16-bit x, 4096 rows", "f32_parameters", aligned(4096), (None, None, "layer")),
    ("the same, up to 128 rows", "f32_parameters", rows_of(1, 128), (None, None, "layer")),
    ("unaligned rows, from 4096 rows on", "other", unaligned(4096), OPS),
    ("the same, up to 128 rows", "grid", unaligned(1, 128), OPS),
    ("unaligned rows, static scale", "unaligned_codes", unaligned(1),
     ("rms_fp8", "add_fp8", "layer_fp8")),
    ("f32 weight, static scale", "f32_codes", rows_of(1), ("rms_fp8", None, "layer_fp8")),
    ("rows longer than 32768, from 1024 rows on", "grid", long_rows(1024), OPS),
    ("the same, up to 16 rows", "grid", long_rows(1, 16), OPS),
    ("the same, unaligned, up to 262144", "long_unaligned", unaligned(1, longest=262144), OPS),
    ("the same, longer", "long_unaligned", unaligned(1, shortest=262145), OPS),
)


def over(r):
    """Time over the ceiling's, of fastnorm_bench or of compare.py."""
    return compared.ratio(r) if "contenders" in r else r.get("ratio")


def far(shelf):
    """Ratios of what is not near the ceiling: the least and the greatest."""
    rows, files = [], {}
    for what, name, wanted, ops in FAR:
        file = shelf.part(name)
        files[file.name] = file
        cells = []
        for op in ops:
            ratios = [over(r) for r in file.results if r["op"] == op and over(r) and wanted(r)]
            if op and not ratios:
                raise Missing(f"{file.name} has no {op} for '{what}'")
            cells.append(ranged(ratios).replace(" to ", "-") if ratios else "")
        rows.append([what, *cells, f"`{file.name}`, {file.version}"])
    first = next(iter(files.values()))
    text = wrapped(
        f"Ratios of time to ceiling on {an(first.device)}, the least and the greatest. The last "
        "column has the file in `bench/results` and its version."
    )
    return [*text, "", *table(["what", *HEAD, "file"], rows)]


CPU_SHAPES = ((4096, 4096), (512, 8192), (1, 4096))


def cpu(shelf):
    """A table for each processor that a file is of: medians of its files of the newest version."""
    groups = {}
    for file in shelf.matching("*cpu_*threads*.csv"):
        place = file.content["device"], file.content.get("isa", "")
        groups.setdefault(place, []).append(file)
    found = []
    for (device, isa), files in sorted(groups.items()):
        newest = max(file.version for file in files)
        files = [file for file in files if file.version == newest]
        cases = {}
        for file in files:
            for r in file.results:
                key = (r["threads"], r["op"], r["dtype"], r["rows"], r["n"])
                cases.setdefault(key, []).append(r)
        threads = sorted({key[0] for key in cases})
        rows = []
        for m, n in CPU_SHAPES:
            for count in threads if m > 1 else threads[:1]:
                cells = []
                for op in OPS:
                    for dtype in ("bf16", "f32"):
                        rs = cases[count, op, dtype, m, n]
                        us = statistics.median(r["us"] for r in rs)
                        share = statistics.median(r["ratio"] for r in rs)
                        cells.append(f"{us:.0f}, {share:.2f}" if m > 1 else f"{us:.2f}")
                rows.append([f"{m} x {n}, {count}", *cells])
        head = ["rows x n, threads"]
        head += [f"{op} {d}" for op in ("RMSNorm", "add", "LayerNorm") for d in ("bf16", "f32")]
        older = "version" if minor(newest) == minor(project_version()) else "the older version"
        dates = sorted({file.date for file in files})
        names = f"`{common(files)}`"
        if len(files) > 1:
            names = f"medians of {len(files)} files, {names}"
        found += wrapped(
            f"{device}, {isa}, {older} {newest}, {' to '.join(sorted({dates[0], dates[-1]}))} "
            f"({names}):"
        )
        found += ["", *table(head, rows), ""]
    return found[:-1]


def common(files):
    """cpu_epyc*.csv of the files' names."""
    names = [file.name for file in files]
    if len(names) == 1:
        return names[0]
    length = next(
        (i for i, letters in enumerate(zip(*names)) if len(set(letters)) > 1), len(names[0])
    )
    return f"{names[0][:length]}*.csv"
