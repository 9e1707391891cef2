#!/usr/bin/env python3
"""Rules that hold for every file: format, scripts, which layer may include which, clean text,
kernels without numbers."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "abi"))
from cases import Cases, output_of  # noqa: E402

import prose  # noqa: E402

SOURCES = {".c", ".h", ".cpp", ".hpp", ".cu", ".cuh"}

# Who may include what, by first folder of the path in quotes. A header beside the file is always
# fine.
ARROWS = {
    "include": set(),
    "src/api": {"fastnorm", "api", "core"},
    "src/core": {"fastnorm", "core", "schema"},
    "src/cpu": {"fastnorm", "core", "cpu"},
    "src/cuda": {"fastnorm", "core", "cuda"},
    "src/nccl": {"fastnorm", "core", "nccl"},
    "tests/ref": {"ref"},
    "bench": {"fastnorm", "bench", "support"},
    "tools": {"fastnorm", "tools", "support"},
    "examples": {"fastnorm", "support"},
}
# Folders of a layer include their own files, common, what is named here, and of the layer's own
# files those that no family is above. common includes nothing but itself and lower layers' common.
BUILDS_ON = {
    "src/core": {
        "norm": set(),
        "norm_backward": {"norm"},
        "norm_heads": {"norm"},
        "norm_heads_backward": {"norm", "norm_backward", "norm_heads"},
        "mla_decode": {"norm"},
        "peer": {"norm", "norm_heads"},
    },
    "src/cpu": {
        "norm": set(),
        "norm_stages": {"norm"},
        "norm_backward": {"norm", "norm_stages"},
        "norm_heads": {"norm"},
        "norm_heads_backward": {"norm_backward", "norm_heads"},
        "mla_decode": set(),
        "peer": set(),
    },
    "src/cuda": {
        "norm": set(),
        "norm_stages": {"norm"},
        "norm_backward": {"norm"},
        "norm_heads": {"norm"},
        "norm_heads_backward": {"norm", "norm_backward", "norm_heads"},
        "mla_decode": set(),
        "peer": {"norm", "norm_heads"},
    },
}
BELOW_FAMILIES = {
    "core": set(),
    "cpu": {"isa.h"},
    "cuda": {
        "arch.h",
        "family.h",
        "instances.cuh",
        "kernels.h",
        "launch.h",
        "name_writer.h",
        "wgmma.h",
    },
}
# What implements a part of the layer's device.
DEVICE_PARTS = {
    "src/cuda/mla_decode/launch.cpp",
    "src/cuda/mla_decode/run.cpp",
    "src/cuda/peer/launch.cpp",
}
# Vendors' headers, and the folders that may know them.
SYSTEM_ARROWS = {
    r"cuda|cooperative_groups|nv/": {"src/cuda"},
    r"immintrin|arm_neon|cpuid|x86intrin": {"src/cpu"},
    r"iostream": set(),
}
# Places of one machine, and hosts that belong into a client's configuration. Split, so that this
# file does not contain them.
MACHINE = [
    "/" + "work/",
    "/" + "root/",
    "/" + "home/",
    "shared" + "/design",
    "pypi" + ".org",
    "pythonhosted" + ".org",
]


def project_files():
    listed = output_of(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    )
    return [p for p in (ROOT / name for name in listed.split("\0") if name) if p.is_file()]


def read_text(path):
    """The file's text; None if it is binary."""
    data = path.read_bytes()
    return None if b"\0" in data else data.decode(errors="replace")


def check_format(cases, files):
    """One call for all files: most of a call is the formatter's start."""
    formatter = ROOT / ".venv" / "bin" / "clang-format"
    sources = [p for p in files if p.suffix in SOURCES]
    result = subprocess.run(
        [formatter, "--dry-run", "-Werror", *sources], capture_output=True, text=True
    )
    lines = result.stderr.splitlines()
    wrong = 0
    for path in sources:
        faults = [line for line in lines if line.startswith(f"{path}:")]
        wrong += bool(faults)
        cases.check(f"format of {path.relative_to(ROOT)}", not faults, "\n".join(faults[:3]))
    cases.check("the formatter read every file", (result.returncode != 0) == (wrong > 0),
                "\n".join(lines[:3]))


def is_shell(path, text):
    return path.suffix == ".sh" or (text or "").startswith(
        ("#!/bin/sh", "#!/usr/bin/env bash", "#!/bin/bash")
    )


def check_scripts(cases, files, texts):
    scripts = [p for p in files if is_shell(p, texts[p])]
    if not cases.check("there are shell scripts", scripts):
        return
    if shutil.which("shellcheck") is None:
        cases.check("shellcheck", False, "not installed")
        return
    for path in scripts:
        result = subprocess.run(
            ["shellcheck", "-x", path], capture_output=True, text=True, cwd=ROOT
        )
        cases.check(f"shellcheck {path.relative_to(ROOT)}", result.returncode == 0, result.stdout)
    for path in files:
        if path.suffix == ".py":
            try:
                compile(texts[path], str(path), "exec")
                error = ""
            except SyntaxError as e:
                error = str(e)
            cases.check(f"syntax of {path.relative_to(ROOT)}", not error, error)


def above_folder(name, layer, included):
    """Why a file of a folder may not include another file of the layers; "" if it may."""
    families = BUILDS_ON.get(layer)
    parts = name.removeprefix(f"{layer}/").split("/")
    target = included.split("/")
    if families is None or len(parts) < 2 or target[0] not in BELOW_FAMILIES:
        return ""
    folder, own = parts[0], layer.removeprefix("src/")
    if folder == "common":
        return "" if len(target) > 2 and target[1] == "common" else "common is below everything"
    if len(target) == 2:
        return "" if target[1] in BELOW_FAMILIES[target[0]] else f"{target[1]} is above families"
    allowed = {"common", folder} | families[folder]
    # A family of a backend builds on what core's family of its name builds on.
    if target[0] == "core" and own != "core":
        return ""
    return "" if target[1] in allowed else f"{folder} does not build on {target[1]}"


def check_arrows(cases, files, texts):
    seen = dict.fromkeys(ARROWS, 0)
    for path in files:
        if path.suffix not in SOURCES:
            continue
        name = str(path.relative_to(ROOT))
        layer = next((f for f in ARROWS if name.startswith(f + "/")), None)
        for included in re.findall(r'^\s*#\s*include\s+"([^"]+)"', texts[path], re.M):
            if layer is None:
                continue
            seen[layer] += 1
            beside = (path.parent / included).resolve()
            ok = included.split("/")[0] in ARROWS[layer] or (
                beside.exists() and str(beside.relative_to(ROOT)).startswith(layer + "/"))
            cases.check(f'{name} includes "{included}"', ok, f"not an arrow of {layer}")
            if name not in DEVICE_PARTS and path.name != "schema.h":
                reason = above_folder(name, layer, included)
                cases.check(f'{name} includes "{included}", which is below', not reason, reason)
        for included in re.findall(r"^\s*#\s*include\s+<([^>]+)>", texts[path], re.M):
            for pattern, homes in SYSTEM_ARROWS.items():
                if re.match(pattern, included) and name.startswith("src/"):
                    cases.check(
                        f"{name} includes <{included}>",
                        any(name.startswith(h) for h in homes),
                        f"known in {sorted(homes) or 'no folder'} only",
                    )
    for layer in ("include", "src/api", "src/core", "src/cpu", "src/cuda", "src/nccl"):
        cases.check(f"{layer} was looked at", seen[layer] > 0)


def check_text(cases, files, texts):
    own = Path(__file__).resolve()
    for path in files:
        text = texts[path]
        if text is None or path.suffix in (".xml", ".json", ".svg") or path.parent.name == "corpus":
            continue
        name = path.relative_to(ROOT)
        if path.name != "LICENSE":
            bad = [i for i, line in enumerate(text.split("\n"), 1) if line != line.rstrip()]
            cases.check(f"{name}: no blanks at line ends", not bad, f"lines {bad[:5]}")
        cases.check(f"{name}: ends with a newline", not text or text.endswith("\n"))
        if path == own:
            continue
        for place in MACHINE:
            lines = [i for i, line in enumerate(text.splitlines(), 1) if place in line]
            if lines:
                cases.check(
                    f"{name}: no place of one machine", False, f"{place} in lines {lines[:5]}"
                )
    cases.check("files were looked at", len(files) > 20)


# Where a number of a tile, of registers or of a capability may be compared: data, and what defines
# them.
NUMBERED = {"src/cuda/arch.h", "src/cuda/common/tile.cuh"}
QUANTITY = (r"(?:\w+::)*k(?:Threads|Vectors|Blocks|BlockThreads|Registers\w*|Capability)\b"
            r"|(?:\w+(?:\.|->))*(?:threads|vectors|blocks|capability|registers)\b|__CUDA_ARCH__")
GRID = r"(?!plan(?:\.|->)blocks)"  # a plan's blocks are a grid's
LITERAL = r"(?:0x[0-9a-f]+|\d+)u?l*\b"
COMPARED = r"\s+(?:[=!<>]=|[<>])\s+"
FUNCTION_LINES = 80  # of the kernels' mechanism


def without_comments(text):
    """C++ with comments blanked, as many lines as before."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), text, flags=re.S)


def named_numbers(texts):
    """Constants that name one number."""
    names = set()
    for path, text in texts.items():
        if path.suffix in SOURCES and str(path.relative_to(ROOT)).startswith("src/"):
            names |= set(
                re.findall(
                    r"\bconstexpr\s+[\w:]+\s+(k[A-Z]\w*)\s*=\s*-?" + LITERAL + r"\s*[;,]", text
                )
            )
    return names - {"kNone"}


def numbers_compared(code, names):
    """(line, text) of each comparison of a tile, a register count or a capability with one
    value."""
    value = "(?:" + "|".join([LITERAL, *sorted(rf"(?:\w+::)*{n}\b" for n in names)]) + ")"
    patterns = [rf"(?<![\w.>]){GRID}(?:{QUANTITY}){COMPARED}{value}",
                rf"(?<![\w.])(?<![-+*/%] ){value}{COMPARED}{GRID}(?:{QUANTITY})",
                r"[=!]=\s+(?:\w+::)*Tile\s*\{"]
    return [
        (code.count("\n", 0, m.start()) + 1, m[0])
        for pattern in patterns
        for m in re.finditer(pattern, code)
    ]


def long_functions(code):
    """(line, lines) of each function of device code that is longer than FUNCTION_LINES."""
    found = []
    for match in re.finditer(r"__forceinline__|__global__", code):
        depth, i = 0, match.end()
        while code[i] not in "{;" or depth > 0:  # the body's brace, behind all parentheses
            depth += {"(": 1, ")": -1}.get(code[i], 0)
            i += 1
        if code[i] == ";":
            continue
        end, depth = i, 0
        while True:
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            if depth == 0:
                break
            end += 1
        lines = code.count("\n", match.start(), end) + 1
        if lines > FUNCTION_LINES:
            found.append((code.count("\n", 0, match.start()) + 1, lines))
    return found


def check_mechanism(cases, files, texts):
    """Kernels ask policies, which are data (variants_*.inc); planning counts no registers."""
    names = named_numbers(texts)
    own = [
        ("if (Tile::kThreads >= 512)", True),
        ("x = 4 < tile.vectors;", True),
        ("if (tile == Tile{64, 4})", True),
        ("Arch::kCapability == 90", True),
        ("v < Tile::kVectors", False),
        ("std::array<float, kVectors> a", False),
        ("Tile::kVectors - 1 == v", False),
        ("registers <= 64", True),
        ("plan->blocks <= 4", False),
        ("v + 1 == p.vectors", False),
    ]
    for code, wanted in own:
        cases.check(f"the rule sees {code}", bool(numbers_compared(code, names)) == wanted)
    looked = 0
    for path in files:
        name = str(path.relative_to(ROOT))
        if path.suffix not in SOURCES:
            continue
        code = without_comments(texts[path])
        if name.startswith("src/cuda/") and name not in NUMBERED and "/ptx/" not in name:
            looked += 1
            for line, text in numbers_compared(code, names):
                cases.check(f"{name}:{line} asks a policy, no number", False, text)
        if name.startswith("src/cuda/norm/"):
            for line, lines in long_functions(code):
                cases.check(
                    f"{name}:{line}: a function of at most {FUNCTION_LINES} lines",
                    False,
                    f"{lines} lines",
                )
        if name.startswith("src/core/"):
            cases.check(
                f"{name} counts no registers",
                not re.search(r"\bk\w*Registers\w*|\w*registers\w*\s*\(", code),
            )
    cases.check("kernels were looked at", looked > 20)


def check_tables(cases):
    """What a page says was measured is what bench/results holds."""
    result = subprocess.run(
        [sys.executable, ROOT / "bench" / "tables.py", "--check"], capture_output=True, text=True
    )
    cases.check("tables of measurements", result.returncode == 0, result.stdout + result.stderr)


PROSE_COLUMNS = 100
# (lines, words) that a page may have.
PAGE_LIMITS = {"README.md": (200, 1500), "bench/README.md": (200, 2500)}


def prose_lines(text):
    """(number, line) of what is neither code, nor a table, nor a picture."""
    code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            code = not code
        elif not code and not line.startswith(("|", "    ", "![", "<!--")):
            yield number, line


def check_pages(cases, files, texts):
    """Links of Markdown pages lead to files; the pages of users are short, and their lines too."""
    pages = [p for p in files if p.suffix == ".md"]
    cases.check("pages were looked at", len(pages) > 10)
    for path in pages:
        name, text = str(path.relative_to(ROOT)), texts[path]
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            if not re.match(r"\w+:", link):
                cases.check(
                    f"{name}: the link {link}", (path.parent / link).exists(), "leads to no file"
                )
        long = [n for n, line in prose_lines(text) if len(line) > PROSE_COLUMNS]
        cases.check(f"{name}: at most {PROSE_COLUMNS} columns", not long, f"lines {long[:5]}")
    for name, limits in PAGE_LIMITS.items():
        text = texts[ROOT / name]
        size = (text.count("\n"), len(text.split()))
        cases.check(
            f"{name}: at most {limits} lines and words",
            size[0] <= limits[0] and size[1] <= limits[1],
            size,
        )


# Old headers, lists of phrases, and what is generated.
NO_PROSE = [
    "tests/abi/old",
    "tests/style/prose.py",
    "bindings/go/internal/raw",
]
HEADERS = ["include", "src/nccl/include"]  # whose comments the references show one by one
HAND_WRITTEN = {"bindings/go/internal/raw/nccl_calls.h"}  # beside what is generated
COLUMNS = 100
CODE = {".py", ".java", ".go", ".rs", ".sh", ".build", *SOURCES}
# A text that cannot be cut without harm to who searches for it, alone on its line; or what an
# example of Go prints.
ONE_TEXT = re.compile(
    r"""\s*// FASTNORM_ERROR_\w+: .*"""
    r"""|\s*(?:return |\w+ = |"[^"]*": |[\w.]+\()?[rbf]*(["']).*\1[\s,;:)\]}]*$"""
)


def is_in(name, folders):
    within = any(name == f or name.startswith(f + "/") for f in folders)
    return within and name not in HAND_WRITTEN


def long_lines(lines):
    """Numbers of those that are too long."""
    long = [(n, line) for n, line in enumerate(lines, 1) if len(line) > COLUMNS]
    return [n for n, line in long if not ONE_TEXT.fullmatch(line)]


def check_columns(cases, files, texts):
    """Lines of code have at most COLUMNS columns, unless a text fills them."""
    x = "x" * 101
    lines = [x[1:], x, f'    "{x}",', f'f(a, "{x}")']
    cases.equal("the rule sees long lines", long_lines(lines), [2, 4])
    looked = 0
    for path in files:
        name = str(path.relative_to(ROOT))
        if texts[path] is None or is_in(name, [*NO_PROSE[2:], "tests/abi/old"]):
            continue
        if path.suffix not in CODE and not texts[path].startswith("#!"):
            continue
        if texts[path].startswith("// Written by tools/"):
            continue
        looked += 1
        long = long_lines(texts[path].splitlines())
        cases.check(f"{name}: at most {COLUMNS} columns", not long, f"lines {long[:5]}")
    cases.check("columns of code were looked at", looked > 150, looked)


def check_recipes(cases, texts):
    """Files that CONTRIBUTING.md names are there; a word in capitals stands for a name."""
    named = re.findall(
        r"`((?:bench|bindings|docs|include|src|tests|tools)/[\w./*-]+|[\w-]+\.(?:md|build|options))`",
        texts[ROOT / "CONTRIBUTING.md"],
    )
    cases.check("CONTRIBUTING.md names files", len(named) > 80, len(named))
    for name in sorted(set(named)):
        if not re.search(r"[A-Z]{4,}(?<!README)(?<!CHANGELOG)", name):
            cases.check(f"CONTRIBUTING.md: {name} is there", any(ROOT.glob(name.rstrip("/"))))


def check_prose(cases, files, texts):
    """Comments, docstrings and pages use the field's words: no sentence has a refused phrase. In
    public headers a possessive has its noun."""
    for text in prose.ALLOWED:
        cases.check(f"allowed: {text}", not prose.banned(text), prose.banned(text))
    for text in prose.REFUSED:
        cases.check(f"refused: {text}", prose.banned(text))
    for text in prose.WITH_NOUN:
        cases.check(f"with a noun: {text}", not prose.lacks_noun(text))
    for text in prose.WITHOUT_NOUN:
        cases.check(f"without a noun: {text}", prose.lacks_noun(text))
    check_extraction(cases)
    folders = ["include", "src", "bench", "bindings", "tools", "docs", "examples", "tests"]
    looked = dict.fromkeys(folders, 0)
    for path in files:
        name = str(path.relative_to(ROOT))
        if texts[path] is None or is_in(name, NO_PROSE) or path.parent.name == "corpus":
            continue
        pieces = list(prose.paragraphs(path, texts[path]))
        if path.suffix == ".md":
            pieces += prose.cells(texts[path])
        sentences = [s for p in pieces for s in p.sentences()]
        if not sentences:
            continue
        folder = name.split("/")[0]
        if folder in looked:
            looked[folder] += len(sentences)
        wrong = [
            f"line {line}: '{phrase}'; required: {instead}"
            for line, s in sentences
            for phrase, instead in prose.banned(s)
        ]
        if is_in(name, HEADERS):
            wrong += [
                f"line {line}: a possessive without its noun: {s}"
                for line, s in sentences
                if prose.lacks_noun(s)
            ]
        cases.check(f"{name}: prose", not wrong, "\n".join(wrong[:5]))
    for folder, count in looked.items():
        cases.check(f"prose of {folder} was looked at", count > 20, count)


def check_extraction(cases):
    """That the rule sees comments, docstrings, items and pages, and no code. A phrase is refused
    where a line breaks it, and not where a sentence or an item ends within it."""
    one, two = "these are late", "columns of a call"
    phrase = f"{one} {two}"
    samples = [
        ("a.cpp", f"// {phrase}.\nint a;\n", 1),
        ("a.cpp", f'const char* a = "// {phrase}";\n', 0),
        ("a.cpp", f"int a;  // one\n// {one}\n// {two}\nint b;\n", 1),
        ("a.h", f"/** One.\n *  {one}\n *  {two}\n *  @param a b */\n", 1),
        ("a.h", f"/** One.\n *\n *      {phrase}\n */\n", 0),
        ("a.go", f'/*\nint {phrase};\n*/\nimport "C"\n', 0),
        ("a.go", f'/*\nint a;  // {phrase}\n*/\nimport "C"\n', 1),
        ("a.py", f'"""{phrase}."""\n', 1),
        ("a.py", f"def f():\n    return '# {phrase}'\n", 0),
        ("a.py", f"a = 1  # {phrase}\n", 1),
        ("a.md", f"{one}\n{two}\n", 1),
        ("a.md", f"```\n{phrase}\n```\n", 0),
        ("a.md", f"- {one}\n- {two}\n", 0),
        ("a.md", f"{one}. {two}\n", 0),
        ("a.md", f"{one} `{two}`\n", 0),
        ("meson.build", f"# {phrase}\n", 1),
        ("a.sh", f"echo {phrase}\n", 0),
    ]
    for name, text, wanted in samples:
        found = sum(
            len(prose.banned(s))
            for p in prose.paragraphs(Path(name), text)
            for _, s in p.sentences()
        )
        cases.equal(f"refused phrases of {name}: {text[:40]!r}", found, wanted)
    table = f"| a | {phrase} |\n|---|---|\n| {one} | {two} |\n"
    found = [prose.banned(s) for p in prose.cells(table) for _, s in p.sentences()]
    cases.equal("refused phrases of cells", sum(map(len, found)), 1)


def main():
    cases = Cases()
    files = project_files()
    texts = {p: read_text(p) for p in files}
    check_format(cases, files)
    check_scripts(cases, files, texts)
    check_arrows(cases, files, texts)
    check_text(cases, files, texts)
    check_mechanism(cases, files, texts)
    check_tables(cases)
    check_pages(cases, files, texts)
    check_prose(cases, files, texts)
    check_recipes(cases, texts)
    check_columns(cases, files, texts)
    cases.finish()


main()
