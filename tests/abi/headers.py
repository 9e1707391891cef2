"""Reads the public C headers: which functions, structs and enumerators they declare.

The preprocessor does the hard part (macros, comments); what is left has one shape by our own style:
`typedef struct NAME {..} NAME;`, `typedef enum NAME {..} NAME;` and prototypes marked with the
visibility attribute. check_complete() compares with a naive count, so that a declaration of another
shape cannot be overlooked.
"""

import re
from pathlib import Path

from cases import output_of

EXPORT = r'__attribute__\(\(visibility\("default"\)\)\)'
IDENTIFIER = r"[A-Za-z_]\w*"


class Headers:
    def __init__(self, include, compiler=("cc",)):
        """include: the folder that holds fastnorm/; compiler: a C compiler's command."""
        self.folder = Path(include) / "fastnorm"
        self.text = self._preprocessed(include, compiler)
        self.functions = re.findall(rf"{EXPORT}[^;]*?\b(fastnorm_\w+)\s*\(", self.text)
        self.enums = {
            name: [e.split("=")[0].strip() for e in body.split(",") if e.strip()]
            for name, body in re.findall(
                r"typedef enum (\w+)\s*\{(.*?)\}\s*\1\s*;", self.text, re.S
            )
        }
        self.structs = {
            name: [self._field(f) for f in body.split(";") if f.strip()]
            for name, body in re.findall(
                r"typedef struct (\w+)\s*\{(.*?)\}\s*\1\s*;", self.text, re.S
            )
        }

    def _preprocessed(self, include, compiler):
        """fastnorm.h without comments, directives and the text of system headers."""
        text = output_of(
            [*compiler, "-std=c99", "-E", f"-I{include}", str(self.folder / "fastnorm.h")]
        )
        kept, ours = [], False
        for line in text.splitlines():
            marker = re.match(r'# \d+ "([^"]*)"', line)
            if marker:
                ours = Path(marker[1]).resolve().parent == self.folder.resolve()
            elif ours:
                kept.append(line)
        return "\n".join(kept)

    @staticmethod
    def _field(declaration):
        """The name a field's declaration declares."""
        return re.search(rf"({IDENTIFIER})\s*(\[[^\]]*\]\s*)*$", declaration.strip())[1]

    def check_complete(self, cases):
        source = "\n".join(p.read_text() for p in sorted(self.folder.glob("*.h")))
        source = re.sub(r"/\*.*?\*/", "", source, flags=re.S)
        marked = len(re.findall(r"^FASTNORM_API\b", source, re.M))
        cases.equal("functions found in the headers", len(self.functions), marked)
        cases.equal("functions are unique", len(set(self.functions)), len(self.functions))
        cases.equal(
            "structs found", len(self.structs), len(re.findall(r"\bstruct \w+\s*\{", source))
        )
        cases.equal("enums found", len(self.enums), len(re.findall(r"\benum \w+\s*\{", source)))
