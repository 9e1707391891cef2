"""The guide pages of the site: which there are, their order, and their links as the site has them.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOMEPAGE = "https://github.com/libfastnorm/libfastnorm"

# (section, [(title, source)]). A page of docs/ that no section names goes to OTHERS.
SECTIONS = [
    ("Home", "docs/index.md"),
    ("Install", "docs/install.md"),
    ("Troubleshooting", "docs/troubleshooting.md"),
    (
        "Operations",
        [
            ("RMSNorm and LayerNorm", "docs/norm.md"),
            ("Gated norms and groups", "docs/gated_norm.md"),
            ("Gated residual, scale and shift", "docs/adaln.md"),
            ("Norm before the residual", "docs/sandwich_norm.md"),
            ("Quantised outputs", "docs/quantisation.md"),
            ("Query and key heads", "docs/norm_heads.md"),
            ("Gradients", "docs/norm_backward.md"),
            ("MLA decode", "docs/mla_decode.md"),
            ("Several GPUs", "docs/peer.md"),
            ("NCCL", "docs/nccl.md"),
        ],
    ),
    (
        "Languages",
        [
            ("Python", "packages/python/README.md"),
            ("Rust", "bindings/rust/README.md"),
            ("Go", "bindings/go/README.md"),
            ("Java", "bindings/java/README.md"),
            ("PyTorch", "examples/torch/README.md"),
            ("JAX", "examples/jax/README.md"),
            ("Whole models", "docs/models.md"),
            ("Examples", "examples/README.md"),
        ],
    ),
    (
        "Integrations",
        [
            ("ONNX Runtime", "integrations/onnxruntime/README.md"),
            ("ggml", "integrations/ggml/README.md"),
            ("candle", "integrations/candle/README.md"),
            ("gorgonia", "integrations/gorgonia/README.md"),
            ("Engines for Java", "integrations/java/README.md"),
            ("ND4J", "integrations/java/nd4j.md"),
            ("DJL", "integrations/java/djl.md"),
            ("jlama", "integrations/java/jlama.md"),
            ("CMake", "integrations/cmake/README.md"),
        ],
    ),
    (
        "Arithmetic",
        [
            ("Numerics", "docs/numerics.md"),
            ("Rounding of other libraries", "docs/rounding.md"),
        ],
    ),
    (
        "Speed",
        [
            ("Performance", "docs/performance.md"),
            ("Tuning", "docs/tuning.md"),
            ("Platforms", "docs/platforms.md"),
            ("Benchmarks", "bench/README.md"),
        ],
    ),
    ("Command", "docs/command_line.md"),
    (
        "Inside",
        [
            ("Architecture", "docs/architecture.md"),
            ("Kernels", "docs/kernels.md"),
            ("Contributing", "CONTRIBUTING.md"),
            ("Tools", "tools/README.md"),
            ("Changes", "CHANGELOG.md"),
        ],
    ),
]
OTHERS = "Operations"
LAB = "docs/lab"
ALONE = "---\nhide:\n  - navigation\n---\n\n"  # a page without others beside it
NOT_PAGES = {"docs/reference.md"}  # the first page of the C reference
# The pictures of docs/performance.md are drawn from these. That of README.md is committed, too.
DRAWN_FROM = ["h200_compare.csv", "h200_grid.csv"]
COMMITTED = ROOT / "docs" / "plots"
CHANGES, CHANGES_SHOWN = ROOT / "CHANGELOG.md", 6
PICTURE = re.compile(r"^<!-- picture: (\S+): (.*?) -->$", re.M)


def title_of(path):
    found = re.search(r"^# (.+)$", path.read_text(), re.M)
    if found is None:
        raise SystemExit(f"tools/docs: {path.relative_to(ROOT)} has no heading; required: # TITLE")
    return found[1].replace("`", "")


def sections():
    """SECTIONS with the pages that it does not name, and the laboratory notes."""
    listed = {page for _, part in SECTIONS if isinstance(part, list) for _, page in part}
    listed |= {part for _, part in SECTIONS if isinstance(part, str)} | NOT_PAGES
    found = sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))
    others = [(title_of(ROOT / name), name) for name in found if name not in listed]
    lab = [f"{LAB}/README.md"] + sorted(
        f"{LAB}/{p.name}" for p in (ROOT / LAB).glob("*.md") if p.name != "README.md"
    )
    made = []
    for name, part in SECTIONS:
        if name == OTHERS:
            part = [*part, *others]
        elif name == "Inside":
            part = [*part, ("Laboratory notes", [(title_of(ROOT / p), p) for p in lab])]
        made.append((name, part))
    return made


def flat(part):
    """The sources of a part of the navigation, in order."""
    if isinstance(part, str):
        return [part]
    return [source for _, below in part for source in flat(below)]


def target_of(source):
    """Where a page is in the site: docs/norm.md is norm.md, bindings/go/README.md is go.md."""
    path = Path(source)
    if source.startswith(f"{LAB}/"):
        return Path("lab") / ("index.md" if path.name == "README.md" else path.name)
    if path.name == "README.md":
        return Path("languages" if "python" in source or "bindings" in source else "") / (
            f"{path.parent.name}.md"
        )
    return Path(path.name if source.startswith("docs/") else path.name.lower())


class Staging:
    """Copies the pages into a folder, with the links that the site needs."""

    def __init__(self, folder, version):
        self.folder, self.version = folder, version
        self.sources = [s for _, part in sections() for s in flat(part)]
        self.targets = {s: target_of(s) for s in self.sources}
        self.faults, self.links = [], 0
        if len(set(self.targets.values())) != len(self.targets):
            raise SystemExit("tools/docs: two pages have one name in the site")

    def run(self):
        alone = {part for _, part in sections() if isinstance(part, str)}
        self.draw()
        for source, target in self.targets.items():
            text = PICTURE.sub(r"![\2](picture:\1)", (ROOT / source).read_text())
            text = tabs(self.filled(source, text))
            text = self.with_links(source, target, plain(text))
            path = self.folder / target
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text((ALONE if source in alone else "") + text)

    def filled(self, source, text):
        """A page with what only the site has: the version, and the newest changes."""
        made = {
            "version": f"**Version {self.version}**",
            "changes": newest_changes(CHANGES.read_text()),
        }

        def put(match):
            if match[1] not in made:
                self.faults.append(f"{source}: nothing makes {match[0]}")
            return made.get(match[1], match[0])

        return re.sub(r"^<!-- site: (\w+) -->$", put, text, flags=re.M)

    def draw(self):
        """The pictures that no commit has; a committed one must be what is drawn now."""
        python = ROOT / ".venv" / "bin" / "python"
        program = [python if python.exists() else sys.executable, ROOT / "bench" / "compare.py"]
        results = [ROOT / "bench" / "results" / name for name in DRAWN_FROM]
        drawn = subprocess.run(
            [str(c) for c in (*program, "plot", *results, "--out", self.folder / "pictures")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if drawn.returncode:
            self.faults.append(f"bench/compare.py plot: {drawn.stdout.strip()}")
            return
        for path in sorted(COMMITTED.iterdir()):
            now = self.folder / "pictures" / path.name
            if not now.exists() or now.read_bytes() != path.read_bytes():
                self.faults.append(f"{path.relative_to(ROOT)} is not what bench/compare.py draws")

    def with_links(self, source, target, text):
        def changed(match):
            return f"]({self.link(source, target, match[1])})"

        return outside_code(text, lambda part: re.sub(r"\]\(([^)\s]+)\)", changed, part))

    def link(self, source, target, link):
        """A link of a page as the site has it: to a page, to a picture that is drawn, to the C
        reference, or to the sources."""
        self.links += 1
        if link.startswith("picture:"):
            place = Path("pictures") / link.partition(":")[2]
            if not (self.folder / place).exists():
                self.faults.append(f"{source}: nothing draws the picture {place.name}")
            return relative(place, target)
        if re.match(r"\w+:|#", link):
            return link
        name, _, anchor = link.partition("#")
        anchor = f"#{anchor}" if anchor else ""
        path = (ROOT / source).parent / name
        if not path.exists():
            self.faults.append(f"{source}: the link {link} leads to no file")
            return link
        path = path.resolve().relative_to(ROOT)
        page = str(path / "README.md" if (ROOT / path).is_dir() else path)
        if page in self.targets:
            return relative(self.targets[page], target) + anchor
        if str(path) == "docs/reference.md":
            return relative(Path("reference/c/index.html"), target)
        if path.parent.name == "fastnorm" and path.parent.parent.name == "include":
            file = path.name.replace("_", "__").replace(".", "_8") + ".html"
            return relative(Path("reference/c") / file, target) + anchor
        if path.suffix in (".svg", ".png"):
            place = Path("pictures") / path.name
            (self.folder / place).parent.mkdir(exist_ok=True)
            shutil.copyfile(ROOT / path, self.folder / place)
            return relative(place, target)
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{HOMEPAGE}/{kind}/v{self.version}/{path}{anchor}"


def newest_changes(text):
    """Of CHANGELOG.md the newest version and its first changes, as Markdown."""
    title, _, body = text.partition("\n## ")[2].partition("\n## ")[0].partition("\n")
    entries = re.split(r"^- ", re.sub(r"^### .*\n", "", body, flags=re.M), flags=re.M)[1:]
    if len(entries) < CHANGES_SHOWN:
        raise SystemExit(f"tools/docs: {title} of CHANGELOG.md has {len(entries)} changes")
    first = [re.split(r"(?<=[.])\s", " ".join(e.split("\n  - ")[0].split()))[0] for e in entries]
    shown = "\n".join(f"- {sentence.rstrip(':')}" for sentence in first[:CHANGES_SHOWN])
    shown = re.sub(r"\]\((?!\w+:|#)", "](../", shown)  # from docs/, where the home page is
    more = f"[All {len(entries)} changes of this version, and those before](../CHANGELOG.md)"
    return f"### {title}\n\n{shown}\n\n{more}"


def tabs(text):
    """What is between two comments as tabs, whose titles are bold lines. GitHub has no tabs."""

    def changed(match):
        parts = re.split(r"^\*\*(.+)\*\*\n", match[1], flags=re.M)
        made = [parts[0]]
        for title, body in zip(parts[1::2], parts[2::2]):
            lines = (f"    {line}" if line else "" for line in body.strip().split("\n"))
            made += [f'=== "{title}"\n', "\n".join(lines), ""]
        return "\n".join(made)

    return re.sub(r"^<!-- tabs -->\n(.*?)^<!-- end -->$", changed, text, flags=re.M | re.S)


def relative(to, page):
    return os.path.relpath(to, page.parent)


def outside_code(text, change):
    """The text with a change made to what is not in fenced code."""
    parts = re.split(r"(^```.*?^```\s*?$)", text, flags=re.M | re.S)
    return "".join(part if i % 2 else change(part) for i, part in enumerate(parts))


def plain(text):
    """What GitHub's Markdown allows and the site's does not: comments beside a table, and a list
    without a blank line before it."""

    def changed(part):
        part = re.sub(r"^<!--.*?-->\n", "\n", part, flags=re.M | re.S)
        lines = []
        for line in part.split("\n"):
            starts = re.match(r"(?:[-*]|\d+\.) ", line)
            before = lines[-1] if lines else ""
            if starts and before and not re.match(r"\s|(?:[-*]|\d+\.) ", before):
                lines.append("")
            lines.append(line)
        return "\n".join(lines)

    return outside_code(text, changed)
