"""Prose of the tree: pages, comments and docstrings, cut into sentences."""

import ast
import io
import re
import tokenize

C_LIKE = {".c", ".h", ".cpp", ".hpp", ".cu", ".cuh", ".inc", ".go", ".java", ".rs", ".i"}
HASH_LIKE = {".sh", ".build", ".options", ".toml", ".ini"}

# Phrases that have a word of the field, or that say nothing: (pattern, what to write). Words in
# backticks and in double quotes are names, and are free.
BANNED = [
    (r"\b(?:f32|16-bit|kept|shared|constant|broadcast|no|without|late|ready)[- ]columns\b"
     r"|\b(?:dtypes of rows|x) and columns\b|\bcolumns (?:that|which) vary\b|\bcolumns, which all\b"
     r"|\bcolumns (?:of (?:x's|another|either) dtype|are loaded|in f32)\b",
     "weight and bias"),
    (r"\b(?:by|with|of|the|a) given scales?\b|\bscales? that (?:is|are) given\b", "static scale"),
    (r"\bscales? (?:made )?(?:from|of) (?:the |its |their )?values\b", "dynamic scale"),
    (r"\b(?:residual|stored|fused) sums?\b|\bsums? kernels?\b", "residual addition, residual_out"),
    (r"\bbare\b(?! metal)", "lean"),
    (r"\b(?<!turn )in turn\b", "one after the other"),
    (r"\buneven(?:ly)?\b", "unaligned"),
    (r"\bwhole vectors?\b", "aligned rows, a multiple of a vector"),
    (r"\bpast (?:the )?L1\b", "streaming load, cached in L2 only"),
    (r"\bbut for\b.*\bbut for\b", "two sentences, or a table"),
    (r"\blikewise\b.*\blikewise\b", "two sentences, or a table"),
    (r"\bbeside\b.*\bbeside\b", "two sentences, or a table"),
]
# A possessive without its noun, such as "The forward's.", which a reference shows far from the
# comments that name the noun.
_WITHOUT_NOUN = re.compile(r"\w's(?=[.,;:)]|$)")
WITH_NOUN = ["The weight of the forward.", "x's shape, T.", "the rows of x's batch"]
WITHOUT_NOUN = ["The forward's.", "NULL = the context's.", "x's, or with a 1", "(the caller's)"]
# What must pass, and what must not.
ALLOWED = [
    "the columns of a block",
    "A scale for each block of 64 or 128 columns.",
    "100 columns",
    "rows and 4 columns",
    "rope turns the last 64 columns",
    "`bf16 plain rms once store uneven bare 8x2` is a kernel",
    "the sum of squares",
    "CPU and GPU sum in different orders.",
    "a checksum",
    "exit code",
    "code = z * (1 / scale)",
    "a bare metal machine",
    "codes and their scales",
    "Turn back.",
    'the flavour "bare" in names',
    "the values of a scale",
    "rows and columns of a matrix",
    "an even number",
    "given values",
    "past the last row",
    "all but for one",
    "beside a float32 weight",
]
REFUSED = [
    "f32 columns of RMS",
    "no columns and no statistics",
    "the dtypes of rows and columns",
    "columns that vary along heads",
    "codes by a given scale",
    "one scale that is given",
    "scales from the values",
    "scales of their values",
    "RMS of a residual sum",
    "gradient of the stored sum",
    "the bare kernels",
    "a warp takes rows in turn",
    "Uneven rows",
    "rows of whole vectors",
    "loads past L1",
    "all but for one, but for two",
    "the first likewise, the second likewise",
    "beside x, beside y",
]

_END = re.compile(r"""(?<=[.!?;:])["')`*]*\s+""")
_NO_END = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|vs|cf)\.|\.\.)[\"')`*]*$"
)  # ".." stands for what is left out


class Paragraph:
    """Text of one piece, with the number of the line that it starts in."""

    def __init__(self, line, text):
        self.line, self.text = line, text

    def sentences(self):
        """(line, sentence) of each. A colon or a semicolon ends one, as a point does."""
        text, parts, start = self.text, [], 0
        for match in _END.finditer(text):
            if not _NO_END.search(text[start:match.end()].rstrip()):
                parts.append((start, match.start()))
                start = match.end()
        parts.append((start, len(text)))
        for begin, end in parts:
            sentence = " ".join(text[begin:end].split())
            if sentence:
                yield self.line + text.count("\n", 0, begin), sentence


def banned(sentence):
    """[(phrase, what to write)] of what a sentence must not say."""
    free = re.sub(r"`[^`]*`|\"[^\"]*\"", "name", sentence)
    return [
        (match[0], instead)
        for pattern, instead in BANNED
        for match in [re.search(pattern, free, re.I)]
        if match
    ]


def lacks_noun(sentence):
    """Whether a possessive of the sentence has no noun behind it."""
    return bool(_WITHOUT_NOUN.search(re.sub(r"`[^`]*`|\"[^\"]*\"", "name", sentence)))


def paragraphs(path, text):
    """The prose of a file, by its kind; nothing for files that have none."""
    first = text.split("\n", 1)[0]
    if path.suffix == ".md":
        lines = list(_markdown(text))
    elif path.suffix in C_LIKE:
        # The comment before import "C" is code of C.
        text = re.sub(r'/\*((?:(?!\*/).)*)\*/(?=\nimport "C")', r"  \1  ", text, flags=re.S)
        lines = list(_c_comments(text))
    elif path.suffix == ".py" or "python3" in first:
        lines = list(_python(text))
    elif path.suffix in HASH_LIKE or path.name == "meson.build" or first.startswith("#!"):
        lines = list(_hash_comments(text))
    else:
        return []
    return _joined(lines)


def cells(text):
    """The cells of the tables of a Markdown page, each a paragraph."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", line):
                yield Paragraph(number, cell.strip())


def _joined(lines):
    """Lines with their numbers as paragraphs. A line that is empty, starts an item, or is code or a
    table ends one."""
    found, current, last, base = [], [], None, None

    def close():
        if current:
            found.append(Paragraph(current[0][0], "\n".join(t for _, t in current)))
            current.clear()

    for number, line in lines:
        text = line.strip()
        item = re.match(r"(?:[-*]|\d+\.|@\w+)\s|#+ |FASTNORM_ERROR_\w+:", text)
        indent = len(line) - len(line.lstrip())
        if not text or item or last is not None and number != last + 1:
            close()
            base = None if item else indent
        elif base is not None and current and indent >= base + 2:
            close()  # a list without marks
        elif not current:
            base = indent
        last = number
        if (
            not text
            or text.startswith("|")
            or re.search(r"\S {3,}\S", text)
            or re.match(r"\s{4,}\S", line)
            and not current
        ):
            close()
            continue
        current.append((number, re.sub(r"^(?:[-*]|\d+\.|#+)\s+", "", text)))
        if text.startswith("#"):
            close()
    close()
    return found


def _markdown(text):
    code = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            code = not code
            yield number, ""
        elif code or line.startswith(("    ", "![", "<!--")):
            yield number, ""
        else:
            yield number, re.sub(r"^( *)", "", line)


_C_TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|R"(\w*)\(.*?\)\1"', re.S
)


def _c_comments(text):
    previous = None
    for match in _C_TOKEN.finditer(text):
        token = match[0]
        if not token.startswith("/"):
            continue
        number = text.count("\n", 0, match.start()) + 1
        alone = not text[text.rfind("\n", 0, match.start()) + 1:match.start()].strip()
        if token.startswith("//"):
            if previous != number - 1 or not alone:
                yield number, ""  # a comment behind code is one of its own
            yield number, re.sub(r"^//[/!]?<? ?", "", token)
            previous = number if alone else number
        else:
            yield number, ""
            for i, line in enumerate(token[2:-2].split("\n")):
                yield number + i, re.sub(r"^\s*\*? ?", "", line) if i else " " + line.lstrip("*<! ")
            yield number, ""
            previous = None


def _python(text):
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, documented) and body and isinstance(body[0], ast.Expr):
            value = getattr(body[0], "value", None)
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.lineno, ""
                for i, line in enumerate(value.value.split("\n")):
                    # A block that is indented further is an example.
                    extra = len(line) - len(line.lstrip()) > value.col_offset + 1 if i else False
                    yield value.lineno + i, "" if extra else line.strip()
                yield value.lineno, ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(
            ("#!", "# noqa", "# ---", "# shellcheck")
        ):
            if token.line[:token.start[1]].strip():
                yield token.start[0], ""
            yield token.start[0], re.sub("^# ?", "", token.string).split("# noqa")[0]


def _hash_comments(text):
    for number, line in enumerate(text.split("\n"), 1):
        match = re.match(r"\s*#(?!!)(?! shellcheck| ---) ?(.*)$", line)
        if match:
            # A command in a list of them is no prose.
            yield number, "" if match[1].startswith("  ") else match[1]
