#!/usr/bin/env python3
"""What tools/docs looks at finds faults. Names, parameters and fields lack a place in the Python
reference, and queries of the search lead nowhere. Parts of pages that only the site has are made.
"""

import ast
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "abi"), str(ROOT / "tools" / "site")]
import pages  # noqa: E402
import python_reference  # noqa: E402
import search  # noqa: E402
from cases import Cases  # noqa: E402

MODULE = '''
__all__ = ["Shape", "f", "g"]
class Shape:
    """A shape."""
    rows: int  # how many
    def area(self, unit):
        """Its area."""
def f(x, *, y=1, **fields):
    """Computes.

    Args:
        x: A row.
        fields: Others.
    """
def g():
    pass
def hidden(x):
    pass
'''
CHANGES = """# Changes

## 0.3.0

- **One.** A sentence. Another.
- **Two**: more, which
  goes on. And on.
- **Three.** a
- **Four.** b
- **Five.** c
- **Six.** d
- **Seven.** e

## 0.2.0

- **Old.** f
"""
TABS = """<!-- tabs -->
**C**

```sh
make
```

**Go**

text
<!-- end -->
after
"""


def check_names(cases):
    """A module whose docstrings lack things, and pages that lack names."""
    tree = ast.parse(MODULE)
    cases.equal("public names", python_reference.public_names(tree), ["Shape", "f", "g"])
    function = next(n for n in tree.body if getattr(n, "name", "") == "f")
    cases.equal("what a docstring leaves out", python_reference.undescribed(function), ["y"])
    with tempfile.TemporaryDirectory() as folder:
        packages, listed = python_reference.PACKAGES, python_reference.MODULES
        python_reference.PACKAGES = Path(folder)
        python_reference.MODULES = [("Section", [("m", "fastnorm")])]
        try:
            source = Path(folder) / "fastnorm"
            source.mkdir()
            (source / "__init__.py").write_text(MODULE)
            (source / "other.py").write_text("")
            page = (Path(folder) / python_reference.page_of("fastnorm")).with_suffix(".html")
            page.parent.mkdir(parents=True)
            places = ("fastnorm.Shape", "fastnorm.Shape.area", "fastnorm.f")
            page.write_text("".join(f'<h2 id="{place}"></h2>' for place in places))
            faults, count = python_reference.check(Path(folder))
        finally:
            python_reference.PACKAGES, python_reference.MODULES = packages, listed
    cases.equal("names of the module", count, 5)
    for wanted in (
        "fastnorm.other: no page of the Python reference has it",
        "fastnorm.g: the Python reference does not have it",
        "fastnorm.Shape.rows: the Python reference does not have it",
        "fastnorm.Shape.area: its docstring does not describe unit",
        "fastnorm.f: its docstring does not describe y",
        "fastnorm.g has no docstring",
    ):
        cases.check(wanted, wanted in faults, faults)
    cases.equal("no other faults", len(faults), 6)
    cases.equal("modules without a page", python_reference.unlisted(), [])


def check_search(cases):
    index = {
        "config": {"separator": r"[\s\-,:!=\[\]()\"/`.]+"},
        "docs": [
            {"location": "a.html#x", "title": "Rows", "text": "<p>models (huggingface/x)</p>"},
            {"location": "b.html", "title": "onnx", "text": "Hugging Face"},
        ],
    }
    cases.equal("a word behind a slash", search.found(index, "HuggingFace"), {"a.html"})
    cases.equal("a word of a title", search.found(index, "ONNX"), {"b.html"})
    cases.equal("two words of two pages", search.found(index, "onnx huggingface"), set())
    faults = search.check(index)
    cases.equal("queries that lead nowhere are faults", len(faults), len(search.QUERIES))


def check_parts(cases):
    made = pages.newest_changes(CHANGES)
    lines = made.split("\n")
    cases.equal("the newest version", lines[0], "### 0.3.0")
    wanted = ["- **One.** A sentence.", "- **Two**: more, which goes on."]
    cases.equal("its changes", lines[2:4], wanted)
    cases.check("not all of them", "Seven" not in made and "All 7 changes" in made, made)
    cases.check("not the older ones", "Old" not in made, made)
    wanted = '=== "C"\n\n    ```sh\n    make\n    ```\n\n=== "Go"\n\n    text\n\nafter\n'
    cases.equal("tabs", pages.tabs(TABS), "\n" + wanted)
    cases.equal("text without tabs", pages.tabs("a\n"), "a\n")


def main():
    cases = Cases()
    check_names(cases)
    check_search(cases)
    check_parts(cases)
    cases.finish()


main()
