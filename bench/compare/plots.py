"""Plots of documents, as SVG: bandwidth over the row length, decode latency over the rows, and the
grid as a heat map. Needs matplotlib, no GPU."""

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.colors import TwoSlopeNorm  # noqa: E402

from compare.ops import GRID_N, GRID_ROWS, OPS
from compare.tables import OWN, gb_per_s, labels_of, ratio, us_of

# A fixed salt, so that a file changes only where its data change.
matplotlib.rcParams.update({"svg.hashsalt": "fastnorm", "svg.fonttype": "none", "font.size": 9,
                            "axes.spines.top": False, "axes.spines.right": False})
LARGE_ROWS = 4096
DECODE_OPS = ("rms", "add")
OWN_STYLE = {"color": "#c02020", "linewidth": 2.2, "zorder": 5}
# A contender has the same colour in all plots; none is close to the library's.
PEER_COLORS = [
    "#7f7f7f",
    "#1f77b4",
    "#2ca02c",
    "#ff7f0e",
    "#9467bd",
    "#17becf",
    "#8c564b",
    "#bcbd22",
    "#e377c2",
    "#393b79",
    "#637939",
    "#e7969c",
]
CEILING = {"color": "black", "linestyle": "--", "linewidth": 1.2, "label": "ceiling"}


def draw(contents, folder):
    """Writes all plots that the documents have data for; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for content in contents:
        device = content.get("device", "")
        if content.get("kind") == "grid":
            for op, dtype in _pairs(content["results"]):
                drawn.append(
                    _save(
                        heat_map(content["results"], op, dtype, device),
                        folder / f"grid_{op}_{dtype}.svg",
                    )
                )
        else:
            labels = labels_of(content)
            for op, dtype in _pairs(content["results"]):
                large = _picked(content["results"], op, dtype, lambda r: r["rows"] == LARGE_ROWS)
                if len(large) > 1 and not OPS[op].heads:
                    drawn.append(_save(bandwidth(large, op, dtype, labels, device),
                                       folder / f"bandwidth_{op}_{dtype}.svg"))
                decode = _picked(content["results"], op, dtype, lambda r: r["rows"] <= 1024)
                if op in DECODE_OPS and len(decode) > 1:
                    drawn.append(
                        _save(
                            latency(decode, op, dtype, labels, device),
                            folder / f"decode_{op}_{dtype}.svg",
                        )
                    )
    return drawn


def _pairs(results):
    return sorted({(r["op"], r["dtype"]) for r in results})


def _picked(results, op, dtype, wanted):
    return sorted((r for r in results if (r["op"], r["dtype"]) == (op, dtype) and wanted(r)),
                  key=lambda r: (r["n"], r["rows"]))


def _save(figure, path):
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)
    return path


def _lines(axes, results, across, value, labels, ceiling):
    """A line for each contender that was timed, and the ceiling's."""
    axes.plot([r[across] for r in results], [ceiling(r) for r in results], **CEILING)
    for place, (name, label) in enumerate(labels.items()):
        points = [(r[across], value(r, name)) for r in results if us_of(r, name) is not None]
        if points:
            style = (
                OWN_STYLE
                if name == OWN
                else {"color": PEER_COLORS[place % len(PEER_COLORS)], "linewidth": 1.1}
            )
            axes.plot(*zip(*points), marker="o", markersize=3, label=label, **style)
    axes.set_xscale("log", base=2)
    ticks = sorted({r[across] for r in results})
    axes.set_xticks(ticks, [str(t) for t in ticks], rotation=45)
    axes.minorticks_off()
    axes.grid(alpha=0.3)


def bandwidth(results, op, dtype, labels, device):
    """GB/s over the row length."""
    figure, axes = plt.subplots(figsize=(7.5, 4.2))
    _lines(axes, results, "n", lambda r, name: gb_per_s(r, us_of(r, name)), labels,
           lambda r: gb_per_s(r, r["ceiling"]["us"]))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("row length")
    axes.set_ylabel("GB/s")
    axes.set_title(f"{OPS[op].title}, {LARGE_ROWS} rows, {dtype}, {device}")
    axes.legend(fontsize=8, ncols=2)
    return figure


def latency(results, op, dtype, labels, device):
    """Microseconds over the rows, for each row length that has more than one number of rows."""
    lengths = [
        n for n in sorted({r["n"] for r in results}) if sum(r["n"] == n for r in results) > 1
    ]
    lengths = lengths or sorted({r["n"] for r in results})[:1]
    figure, all_axes = plt.subplots(
        1, len(lengths), figsize=(3.4 * len(lengths), 3.4), squeeze=False
    )
    for axes, n in zip(all_axes[0], lengths):
        _lines(
            axes,
            [r for r in results if r["n"] == n],
            "rows",
            us_of,
            labels,
            lambda r: r["ceiling"]["us"],
        )
        axes.set_ylim(bottom=0)
        axes.set_title(f"row length {n}")
        axes.set_xlabel("rows")
    all_axes[0][0].set_ylabel("us")
    all_axes[0][-1].legend(fontsize=7)
    figure.suptitle(f"{OPS[op].title}, few rows, cold, {dtype}, {device}")
    figure.tight_layout()
    return figure


def heat_map(results, op, dtype, device):
    """Time over the ceiling's, rows x row length."""
    found = {(r["rows"], r["n"]): ratio(r) for r in results if (r["op"], r["dtype"]) == (op, dtype)}
    rows = [m for m in GRID_ROWS if any(key[0] == m for key in found)]
    lengths = [n for n in GRID_N if any(key[1] == n for key in found)]
    values = [[found.get((m, n)) or float("nan") for n in lengths] for m in rows]
    figure, axes = plt.subplots(figsize=(0.42 * len(lengths) + 2, 0.42 * len(rows) + 1.6))
    image = axes.imshow(values, cmap="RdYlGn_r", aspect="auto", norm=TwoSlopeNorm(1.05, 0.95, 1.5))
    axes.set_xticks(range(len(lengths)), [str(n) for n in lengths], rotation=90)
    axes.set_yticks(range(len(rows)), [str(m) for m in rows])
    for y, line in enumerate(values):
        for x, value in enumerate(line):
            if value == value:
                axes.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=6)
    axes.set_xlabel("row length")
    axes.set_ylabel("rows")
    axes.set_title(f"{OPS[op].title}, {dtype}, {device}: time over the ceiling's")
    figure.colorbar(image, ax=axes, pad=0.01)
    return figure
