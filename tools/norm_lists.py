"""The lists of kernels and of choices as Python sees them: src/cuda/norm/variants_*.inc and
src/core/norm/choice_*.inc.

docs/kernels.md explains both notations. Reading is strict: a line that is not exactly of its
notation is an error that names it.
"""

import itertools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
VARIANTS = [f"src/cuda/norm/variants_{part}.inc" for part in ("codes", "store", "unaligned")]
ARCHS = [
    "sm_80",
    "sm_90",
    "sm_100f",
    "sm_120f",
    "ptx_90",
]  # the columns of a variant line, in order
# The list of choices of each; devices that cannot schedule a cluster go by the default one.
CHOICES = {
    "sm_80": "default",
    "sm_90": "sm90",
    "sm_100f": "default",
    "sm_120f": "default",
    "ptx_90": "default",
}
# Fields of a variant line: the first column of thread blocks, and what follows the last one. These
# are the policies, fours(..) and pair(..), of which the last two may be absent.
BLOCKS = 15
POLICIES = BLOCKS + len(ARCHS)
PAIR = POLICIES + 2
ALL = 2**31 - 1
MAX_VECTORS = 8

DTYPES = {
    "F32": ("f32",),
    "F16": ("f16",),
    "BF16": ("bf16",),
    "HALF": ("f16", "bf16"),
    "ALL": ("f32", "f16", "bf16"),
}
FLAVOURS = ("general", "bare", "bare_cs", "rounded", "rounded_cs", "bare_sm")
# The words of KIND, in order.
KIND_WORDS = (
    ("b16", "f32"),
    ("plain", "add"),
    ("rms", "layer"),
    ("own_dtype", "f32_weights", "any_weights"),
    ("y", "per_tensor", "per_row", "per_block"),
    ("aligned", "unaligned", "any_address"),
    ("lean", "llama", "full", "head_weights"),
    ("rows", "heads"),
)
PICK_FLAVOURS = ("full", "lean", "cached", "streaming", "shared")


class Wrong(Exception):
    """A list, or what is made of it, is not as it has to be."""


def choice_file(name):
    return f"src/core/norm/choice_{name}.inc"


def divide_up(a, b):
    return -(-a // b)


# --- kernels ---


class Tile(NamedTuple):
    threads: int
    vectors: int  # 0: the row is streamed
    blocks: int = 1

    def __str__(self):
        blocks = f"x{self.blocks}" if self.blocks > 1 else ""
        return f"{self.threads}x{self.vectors or 'stream'}{blocks}"

    @classmethod
    def parse(cls, text):
        threads, vectors, *blocks = text.split("x")
        return cls(
            int(threads),
            0 if vectors == "stream" else int(vectors),
            int(blocks[0]) if blocks else 1,
        )


class Kernel(NamedTuple):
    """What tells a kernel from others of its architecture."""

    dtype: str
    source: str
    stat: str
    affine: str
    sink: str
    access: str
    flavour: str
    tile: Tile

    @classmethod
    def parse(cls, name):
        """Of a name as the library has it: "bf16 add rms once store vector bare 256x4"."""
        words = name.split()
        if len(words) not in (7, 8):
            raise Wrong(f"'{name}' is no kernel's name")
        flavour = words[6].replace("-", "_") if len(words) == 8 else "general"
        if flavour not in FLAVOURS:
            raise Wrong(f"'{name}' is no kernel's name: no flavour is {flavour}")
        return cls(*words[:6], flavour, Tile.parse(words[-1]))

    def __str__(self):
        flavour = [] if self.flavour == "general" else [self.flavour.replace("_", "-")]
        return " ".join(
            [
                self.dtype,
                self.source,
                self.stat,
                self.affine,
                self.sink,
                self.access,
                *flavour,
                str(self.tile),
            ]
        )

    def entry_points(self):
        """1, and one for each of its forms of grid: runs_pairs() and runs_heads() of
        src/core/norm/key.h."""
        pairs = (self.source == "plain" and self.sink == "store" and self.access == "vector"
                 and self.tile.threads <= 32 and self.flavour != "bare_cs")
        heads = pairs and self.flavour != "general" and self.affine == "once"
        return 1 + pairs + heads


def split_fields(text):
    """At the commas outside parentheses; blanks stay."""
    fields, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            fields.append(text[start:i])
            start = i + 1
    return [*fields, text[start:]]


@dataclass
class VariantLine:
    """One line V(..), whose fields keep their blanks."""

    fields: list
    bound: str = ""  # why it stays without a choice

    @classmethod
    def parse(cls, text):
        match = re.fullmatch(r"V\((.*)\)(?:\s*// bound: (.+))?", text)
        fields = split_fields(match[1]) if match else []
        line = cls(fields, (match[2] or "") if match else "")
        words = [f.strip() for f in fields]
        ok = (
            POLICIES < len(fields) <= PAIR + 1
            and set(words[0].split("|")) <= {"plain", "add"}
            and set(words[1].split("|")) <= {"rms", "layer"}
            and words[2] in ("once", "f32", "any")
            and words[3] in ("store", "static", "quant")
            and words[4] in ("vector", "unaligned", "any")
            and all(n.isdigit() for i in (5, 7) for n in words[i].split("|"))
            and all(re.fullmatch("x[0-8]", v) for v in words[6].split("|"))
            and all(w.isdigit() for w in words[BLOCKS:POLICIES])
            and all(d in DTYPES for d in re.split(r"\s*\|\s*", words[8]))
            and all(f in FLAVOURS for f in re.split(r"\s*\|\s*", words[9]))
        )
        if not ok:
            raise Wrong(f"not a line of a list of kernels: {text}")
        return line

    def __str__(self):
        return (
            "V(" + ",".join(self.fields) + ")" + (f"  // bound: {self.bound}" if self.bound else "")
        )

    def word(self, i):
        return self.fields[i].strip()

    @property
    def dtypes(self):
        return [d for word in self.word(8).split("|") for d in DTYPES[word.strip()]]

    @property
    def flavours(self):
        return [f.strip() for f in self.word(9).split("|")]

    @property
    def parts(self):
        """(source, stat, tile) of its kernels."""
        sources, stats, threads, vectors, blocks = (
            self.word(i).split("|") for i in (0, 1, 5, 6, 7)
        )
        return [
            (source, stat, Tile(int(t), int(v.removeprefix("x")), int(b)))
            for source, stat, t, v, b in itertools.product(
                sources, stats, threads, vectors, blocks
            )
        ]

    def blocks(self, arch):
        return int(self.word(BLOCKS + ARCHS.index(arch)))

    def kernel(self, part, dtype, flavour):
        source, stat, tile = part
        return Kernel(dtype, source, stat, *(self.word(i) for i in range(2, 5)), flavour, tile)

    def kernels(self, arch):
        if self.blocks(arch) == 0:
            return []
        return [
            self.kernel(p, d, f)
            for p, d, f in itertools.product(self.parts, self.dtypes, self.flavours)
        ]

    def alone(self, part):
        """The line of one of its parts."""
        source, stat, tile = part
        fields = list(self.fields)
        fields[0] = source.ljust(len(fields[0]))
        for i, word in ((1, stat), (6, f"x{tile.vectors}")):
            fields[i] = _padded(fields[i], word)
        for i, number in ((5, tile.threads), (7, tile.blocks)):
            fields[i] = _padded(fields[i], str(number), right=True)
        return VariantLine(fields, self.bound)

    def without(self, archs, dtypes, flavours):
        """The same for these dtypes and flavours alone, and without these architectures; None if
        nothing is left."""
        fields = list(self.fields)
        fields[8] = _padded(fields[8], _dtype_word(dtypes))
        fields[9] = _padded(fields[9], "|".join(flavours))
        for i, arch in enumerate(ARCHS):
            if arch in archs:
                fields[BLOCKS + i] = _padded(fields[BLOCKS + i], "0", right=True)
        if len(fields) > PAIR:
            counts = re.findall(r"\d+", fields[PAIR])
            counts = ["0" if arch in archs else c for arch, c in zip(ARCHS, counts)]
            fields[PAIR] = f" pair({', '.join(counts)})"
        left = VariantLine(fields, self.bound)
        return left if any(left.blocks(arch) for arch in ARCHS) else None


def _padded(old, word, right=False):
    """A word in place of a field, as wide as that was."""
    body = old[1:] if old.startswith(" ") else old
    return " " + (word.rjust(len(body)) if right else word.ljust(len(body)))


def _dtype_word(dtypes):
    for word, all_of in DTYPES.items():
        if set(dtypes) == set(all_of):
            return word
    names = {"f32": "F32", "f16": "F16", "bf16": "BF16"}
    return "|".join(names[d] for d in ("f32", "f16", "bf16") if d in dtypes)


# --- choices ---


class Pick(NamedTuple):
    """How a row lies over threads, and which kernel of that tile."""

    threads: int
    vectors: str  # kFit, kStreamed, or a number
    blocks: int
    flavour: str
    tokens: bool = False

    def tile(self, row_vectors):
        vectors = {"kStreamed": 0}.get(self.vectors)
        if vectors is None:
            vectors = (
                divide_up(row_vectors, self.threads * self.blocks)
                if self.vectors == "kFit"
                else int(self.vectors)
            )
        return Tile(self.threads, vectors, self.blocks)


class Rectangle(NamedTuple):
    least_n: int
    most_n: int
    least_rows: int
    most_rows: int
    pick: Pick

    @classmethod
    def parse(cls, text):
        match = re.fullmatch(r"(ROWS|TOKENS)\((.*)\)", text)
        words = [w.strip() for w in match[2].split(",")] if match else []
        numbers = [
            ALL if w == "kAll" else int(w) if w.isdigit() else -1 for w in words[:5] + words[6:7]
        ]
        vectors = words[5] if len(words) == 8 else ""
        ok = (
            len(words) == 8
            and min(numbers) > 0
            and words[7] in PICK_FLAVOURS
            and (
                vectors in ("kFit", "kStreamed")
                or (vectors.isdigit() and 1 <= int(vectors) <= MAX_VECTORS)
            )
            and numbers[0] <= numbers[1]
            and numbers[2] <= numbers[3]
        )
        if not ok:
            raise Wrong(f"not a line of a list of choices: {text}")
        pick = Pick(numbers[4], vectors, numbers[5], words[7], match[1] == "TOKENS")
        return cls(*numbers[:4], pick)

    def __str__(self):
        def shown(value):
            return "kAll" if value == ALL else str(value)

        p = self.pick
        return (
            f"{'TOKENS' if p.tokens else 'ROWS'}({shown(self.least_n):>7}, {shown(self.most_n):>7}, "
            f"{shown(self.least_rows):>6}, {shown(self.most_rows):>6}, {p.threads:>4}, {p.vectors:>9}, {p.blocks:>2}, "
            f"{p.flavour})"
        )


@dataclass
class ChoiceList:
    """The kinds of call that a list serves, and its lines."""

    kinds: list  # texts of KIND lines
    lines: list = field(default_factory=list)

    def each_kind(self):
        """Every kind that the list is for, as a tuple of words."""
        for text in self.kinds:
            yield from itertools.product(
                *(tuple(w.strip() for w in words.split("|")) for words in kind_words(text))
            )


def kind_words(text):
    match = re.fullmatch(r"KIND\((.*)\)", text)
    words = match[1].split(",") if match else []
    if len(words) != len(KIND_WORDS) or any(
        w.strip() not in known for word, known in zip(words, KIND_WORDS) for w in word.split("|")
    ):
        raise Wrong(f"not a line of a list of choices: {text}")
    return words


def kind_line(kind):
    return f"KIND({', '.join(kind)})"


def kernel_of(kind, dtype, tile, flavour="general"):
    """The kernel of a kind of call; `flavour` is the kernel's. key_of() of
    src/core/norm/choice.h."""
    _, source, stat, weights, output, reach, _, _ = kind
    affine = {"own_dtype": "once", "f32_weights": "f32", "any_weights": "any"}[weights]
    sink = {"y": "store", "per_tensor": "static"}.get(output, "quant")
    access = {"aligned": "vector", "any_address": "any"}.get(reach, "unaligned")
    return Kernel(dtype, source, stat, affine, sink, access, flavour, tile)


def dtypes_of(kind):
    return ("f32",) if kind[0] == "f32" else ("f16", "bf16")


def flavoured(full, ask, flavour):
    """The kernels that a line's flavour may mean for calls that ask for `ask`, of which `full` is
    the full kernel: for_each_key() of src/core/norm/choice.h."""
    if flavour == "full" or ask not in ("lean", "llama"):
        return [full]
    lean = "rounded" if ask == "llama" else "bare"
    return [
        full._replace(flavour=f)
        for f in {
            "lean": (lean, f"{lean}_cs"),
            "cached": (lean,),
            "streaming": (f"{lean}_cs",),
            "shared": ("bare_sm",),
        }[flavour]
    ]


def vectors_of(n, kind):
    return ALL if n == ALL else divide_up(n, 4 if kind[0] == "f32" else 8)


def tiles_of(kind, line):
    """The tiles that a line has for the lengths of its rows."""
    step = line.pick.threads * line.pick.blocks
    least, most = vectors_of(line.least_n, kind), vectors_of(line.most_n, kind)
    if line.pick.vectors != "kFit":
        return [line.pick.tile(least)]
    if most == ALL:
        raise Wrong(f"{line}: kFit does not hold rows of any length")
    return [
        Tile(line.pick.threads, v, line.pick.blocks)
        for v in range(divide_up(least, step), divide_up(most, step) + 1)
    ]


def rows_per_block(tile):
    """rows_per_block() of src/core/norm/plan.h is more than one for rows of a warp or less."""
    return 2 if tile.threads <= 32 and tile.blocks == 1 else 1


# --- files ---


@dataclass
class VariantFile:
    path: str
    lines: list  # VariantLine, or the text of a comment or an empty line

    def text(self):
        return "".join(f"{line}\n" for line in self.lines)

    def variants(self):
        return [line for line in self.lines if isinstance(line, VariantLine)]


@dataclass
class ChoiceFile:
    path: str
    head: list
    lists: list

    def text(self):
        parts = ["\n".join([*lst.kinds, *map(str, lst.lines)]) for lst in self.lists]
        return "\n".join(self.head) + "\n\n" + "\n\n".join(parts) + "\n"


def _read(root, path, parse):
    for number, text in enumerate((root / path).read_text().splitlines(), 1):
        try:
            parse(text.strip())
        except Wrong as why:
            raise Wrong(f"{path}:{number}: {why}") from None


def read_variants(root=ROOT):
    files = []
    for path in VARIANTS:
        lines = []
        _read(root, path, lambda text, lines=lines: lines.append(
            text if not text or text.startswith("//") else VariantLine.parse(text)))
        files.append(VariantFile(path, lines))
    return files


def read_choices(name, root=ROOT):
    head, lists = [], []

    def parse(text):
        if text.startswith("//"):
            if lists:
                raise Wrong(f"a comment inside the lists: {text}")
            head.append(text)
        elif text.startswith("KIND"):
            kind_words(text)
            if not lists or lists[-1].lines:
                lists.append(ChoiceList([]))
            lists[-1].kinds.append(text)
        elif text:
            if not lists:
                raise Wrong(f"a choice before its kind: {text}")
            lists[-1].lines.append(Rectangle.parse(text))

    path = choice_file(name)
    _read(root, path, parse)
    return ChoiceFile(path, head, lists)


def all_kernels(variants, arch):
    """{kernel: its line} of an architecture."""
    found = {}
    for file in variants:
        for line in file.variants():
            for kernel in line.kernels(arch):
                if kernel in found:
                    raise Wrong(f"{file.path}: {arch} {kernel} has two lines")
                found[kernel] = line
    return found


# --- what lists need of each other ---


class Use(NamedTuple):
    """What a line needs for one of its tiles, the same for many kinds of call."""

    full: Kernel  # of one dtype
    ask: str
    flavour: str
    heads: bool


def uses_of(file):
    """{use: a text that names a line and a kind} of a file of choices."""
    found = {}
    for lst in file.lists:
        # What kinds have in common, but for the tile.
        alike = {(kernel_of(kind, dtype, None), kind[6], kind[7] == "heads"): kind
                 for kind in lst.each_kind() for dtype in dtypes_of(kind)}
        a_kind = next(iter(alike.values()))
        for line in lst.lines:
            for tile in tiles_of(a_kind, line):
                for (full, ask, heads), kind in alike.items():
                    use = Use(full._replace(tile=tile), ask, line.pick.flavour, heads)
                    if use not in found:
                        found[use] = f"{file.path}: {line}, under {kind_line(kind)}"
    return found


def named(uses):
    """The kernels that choices name."""
    return {kernel for use in uses for kernel in flavoured(use.full, use.ask, use.flavour)}


def check_partition(file):
    """Lengths and numbers of rows of a list leave nothing out and do not overlap; a kind has one
    list."""
    seen = {}
    for lst in file.lists:
        for kind in lst.each_kind():
            if seen.setdefault(kind, lst) is not lst:
                raise Wrong(f"{file.path}: {kind_line(kind)} has two lists")
        before = None
        for line in lst.lines:
            same = before and (before.least_n, before.most_n) == (line.least_n, line.most_n)
            if same:
                ok = before.most_rows != ALL and line.least_rows == before.most_rows + 1
            else:
                ok = line.least_rows == 1 and (
                    before is None
                    or (before.most_rows == ALL and line.least_n == before.most_n + 1)
                )
            if not ok:
                raise Wrong(
                    f"{file.path}: {line}, under {lst.kinds[0]}, leaves a gap or overlaps the line before"
                )
            before = line
        if before is None or before.most_rows != ALL:
            raise Wrong(f"{file.path}: {lst.kinds[0]} ends before all numbers of rows are there")


def check_lists(variants, choices_of):
    """Raises Wrong where lists of choices and of kernels do not agree. choices_of: {name:
    ChoiceFile}. Returns how many lines and kernels were looked at."""
    lines = kernels = 0
    for file in choices_of.values():
        check_partition(file)
        lines += sum(len(lst.lines) for lst in file.lists)
    uses = {name: uses_of(file) for name, file in choices_of.items()}
    for arch, name in CHOICES.items():
        have = all_kernels(variants, arch)
        _check_uses(uses[name], arch, have)
        _check_uses(uses["default"], arch, have)
        wanted = named({**uses[name], **uses["default"]})
        for kernel, line in have.items():
            if kernel not in wanted and not line.bound:
                raise Wrong(
                    f"{arch} {kernel}: no choice names it; required: a choice, or '// bound: WHY' behind its line {line}"
                )
        kernels += len(have)
    return lines, kernels


def _check_uses(uses, arch, have):
    for use, text in uses.items():
        tile = use.full.tile
        if tile.vectors > MAX_VECTORS:
            raise Wrong(f"{text}: {tile} has more than {MAX_VECTORS} vectors a thread")
        if use.heads and use.flavour != "full" and rows_per_block(tile) == 1:
            raise Wrong(
                f"{text}: lean kernels with one row a block know one index of it; required: full"
            )
        for kernel in flavoured(use.full, use.ask, use.flavour):
            if kernel not in have:
                raise Wrong(f"{text}: {arch} has no kernel {kernel}")


def prune(variants, choices_of, archs):
    """Takes the kernels out that no choice of these architectures needs; lines that lose all of
    them go. Returns how many kernels went, by architecture."""
    needed, gone = {}, {arch: 0 for arch in archs}
    for arch in archs:
        needed[arch] = named(
            {**uses_of(choices_of[CHOICES[arch]]), **uses_of(choices_of["default"])}
        )
    for file in variants:
        lines = []
        for line in file.lines:
            lines += _pruned(line, needed, gone) if isinstance(line, VariantLine) else [line]
        file.lines = lines
    return gone


def _pruned(line, needed, gone):
    if line.bound:
        return [line]
    # By (dtype, flavour): the architectures that it leaves. Parts that agree in them share a line.
    without = [
        {
            (dtype, flavour): tuple(
                a for a in needed
                if line.blocks(a) and line.kernel(part, dtype, flavour) not in needed[a]
            )
            for dtype, flavour in itertools.product(line.dtypes, line.flavours)
        }
        for part in line.parts
    ]
    for leaves in without:
        for arch in itertools.chain(*leaves.values()):
            gone[arch] += 1
    if all(leaves == without[0] for leaves in without):
        return _left(line, without[0])
    return [
        left
        for part, leaves in zip(line.parts, without)
        for left in _left(line.alone(part), leaves)
    ]


def _left(line, without):
    """The lines of what is left of one, whose parts agree in what they leave."""
    left = []
    # Dtypes that agree for a flavour share a line, and then flavours that agree in all.
    groups = {}
    for flavour in line.flavours:
        by_archs = {}
        for dtype in line.dtypes:
            by_archs.setdefault(without[dtype, flavour], []).append(dtype)
        key = tuple((archs, tuple(dtypes)) for archs, dtypes in by_archs.items())
        groups.setdefault(key, []).append(flavour)
    for key, flavours in groups.items():
        for archs, dtypes in key:
            part = line.without(archs, dtypes, flavours)
            if part:
                left.append(part)
    return left


def write(files, root=ROOT):
    for file in files:
        (Path(root) / file.path).write_text(file.text())
