"""The guide pages of the site: which there are, their order, and their links as the site has them.
"""

import os
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOMEPAGE = "https://github.com/libfastnorm/libfastnorm"

# (section, [(title, source)]). A page of docs/ that no section names goes to OTHERS.
SECTIONS = [
    ("Home", "docs/index.md"),
    ("Install", "docs/install.md"),
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
            ("Examples", "examples/README.md"),
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
        for source, target in self.targets.items():
            text = self.with_links(source, target, plain((ROOT / source).read_text()))
            path = self.folder / target
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text((ALONE if source in alone else "") + text)

    def with_links(self, source, target, text):
        def changed(match):
            return f"]({self.link(source, target, match[1])})"

        return outside_code(text, lambda part: re.sub(r"\]\(([^)\s]+)\)", changed, part))

    def link(self, source, target, link):
        """A link of a page as the site has it: to a page, to the C reference, or to the sources."""
        self.links += 1
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
