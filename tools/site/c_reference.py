"""The C reference of the public headers, by Doxygen. A warning is a fault, and so is a public name
that the reference does not have.

As a program it is Doxygen's filter: it prints status.h with the enumerators of its macro."""

import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
LOOK = HERE / "reference"  # the bar of the site, its colours and the choice between them
HEADERS = ROOT / "include" / "fastnorm"
NCCL = ROOT / "src" / "nccl" / "include" / "fastnorm"  # of a library beside, with its own header
MAIN_PAGE = ROOT / "docs" / "reference.md"

SETTINGS = {
    "PROJECT_NAME": '"libfastnorm, C reference"',
    "FILE_PATTERNS": "*.h *.md",
    "USE_MDFILE_AS_MAINPAGE": MAIN_PAGE,
    "STRIP_FROM_PATH": ROOT,
    "STRIP_FROM_INC_PATH": f"{ROOT / 'include'} {NCCL.parent}",
    "FULL_PATH_NAMES": "YES",
    "FILTER_PATTERNS": f'"*/status.h={sys.executable} {Path(__file__).resolve()}"',
    "OPTIMIZE_OUTPUT_FOR_C": "YES",
    "JAVADOC_AUTOBRIEF": "YES",
    "MACRO_EXPANSION": "YES",
    "EXPAND_ONLY_PREDEF": "YES",
    "PREDEFINED": "FASTNORM_API=",
    "EXCLUDE_SYMBOLS": "FASTNORM_*_H_ FASTNORM_API *_MAX_ENUM",
    "WARN_NO_PARAMDOC": "YES",
    "WARN_AS_ERROR": "FAIL_ON_WARNINGS",
    "QUIET": "YES",
    "HAVE_DOT": "NO",
    "GENERATE_LATEX": "NO",
    "GENERATE_XML": "YES",
    "LAYOUT_FILE": LOOK / "layout.xml",
    "HTML_HEADER": LOOK / "header.html",
    "HTML_FOOTER": LOOK / "footer.html",
    "HTML_EXTRA_STYLESHEET": LOOK / "reference.css",
    "HTML_EXTRA_FILES": LOOK / "reference.js",
    "SEARCHENGINE": "NO",  # the search of the site finds the names
    "HTML_DYNAMIC_MENUS": "NO",
    "EXTRACT_STATIC": "YES",
}


def expanded_status(text):
    """status.h with the enumerators of its macro written out, and as many lines."""
    rows = re.findall(r'^  X\((\w+), (\d+), "([^"]*)"\)', text, re.M)
    enumerators = " ".join(
        f"FASTNORM_{name} = {value}, /**< {says}. */" for name, value, says in rows
    )
    text, uses = re.subn(
        r"^ +FASTNORM_STATUS_MAP\(FASTNORM_STATUS_ENUMERATOR\)",
        lambda _: enumerators,
        text,
        flags=re.M,
    )
    if not rows or uses != 1:
        raise SystemExit("tools/docs: status.h has no FASTNORM_STATUS_MAP of the known form")
    return re.sub(r"^#(define|undef) FASTNORM_STATUS_ENUMERATOR.*", "", text, flags=re.M)


def headers():
    return sorted([*HEADERS.glob("*.h"), *NCCL.glob("*.h")], key=lambda path: path.name)


def public_names():
    """What the headers declare: functions, types and values of enums."""
    names = set()
    for path in headers():
        text = expanded_status(path.read_text()) if path.name == "status.h" else path.read_text()
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
        names |= set(re.findall(r"FASTNORM_API[^;(]*?\b(fastnorm_\w+)\s*\(", text))
        names |= set(re.findall(r"^(?:typedef struct \w+ |\} )(fastnorm_\w+);", text, re.M))
        for body in re.findall(r"^typedef enum \w+ \{(.*?)^\}", text, re.M | re.S):
            names |= set(re.findall(r"\b(FASTNORM_\w+)\s*=", body))
    return {name for name in names if not name.endswith("_MAX_ENUM")}


def make(html, work):
    """(faults, number of names): the pages in html, what else Doxygen writes in work."""
    if shutil.which("doxygen") is None:
        return ["doxygen is not installed; tools/setup installs it"], 0
    for folder in (html, work):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    settings = {
        **SETTINGS,
        "INPUT": f"{HEADERS} {NCCL} {MAIN_PAGE}",
        "OUTPUT_DIRECTORY": work,
        "HTML_OUTPUT": html,
        "GENERATE_TAGFILE": work / "reference.tag",
    }
    text = "\n".join(f"{name} = {value}" for name, value in settings.items())
    result = subprocess.run(["doxygen", "-"], input=text, text=True, capture_output=True, cwd=ROOT)
    said = (result.stdout + result.stderr).strip()
    faults = [f"doxygen: {said or result.returncode}"] if said or result.returncode else []
    index = work / "reference.tag"  # Doxygen's list of what it documented
    documented = set(
        re.findall(r">(\w+)</(?:name|enumvalue)>", index.read_text() if index.exists() else "")
    )
    names = public_names()
    faults += [f"{name}: the reference does not have it" for name in sorted(names - documented)]
    if not names:
        faults.append("the headers declare nothing")
    return faults, len(names & documented)


# --- the page of names, which the site's search finds ---


def text_of(element):
    return " ".join("".join(element.itertext()).split()) if element is not None else ""


def cell(text):
    """Text in a table of Markdown."""
    return re.sub(r"([|*_`\[\]])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))


def documented_names(work):
    """(header, what it says of itself, [(name, link, what)]) of each header."""
    folder = work / "xml"
    for path in headers():
        file = path.name.replace("_", "__").replace(".", "_8")
        definition = xml.parse(folder / f"{file}.xml").getroot().find("compounddef")
        rows = []
        for inner in definition.iter("innerclass"):
            struct = xml.parse(folder / f"{inner.get('refid')}.xml").getroot().find("compounddef")
            brief = text_of(struct.find("briefdescription"))
            rows.append((text_of(inner), f"{inner.get('refid')}.html", brief))
        for member in definition.iter("memberdef"):
            if member.get("kind") not in ("function", "enum", "define"):
                continue
            place, _, anchor = member.get("id").rpartition("_1")
            brief = text_of(member.find("briefdescription"))
            name = text_of(member.find("name"))
            if name.startswith("FASTNORM_") and not brief:
                continue
            rows.append((name, f"{place}.html#{anchor}", brief))
        if rows:
            yield path.name, text_of(definition.find("briefdescription")), rows


def links(work):
    """{name: link} of what the headers declare."""
    return {name: link for _, _, rows in documented_names(work) for name, link, _ in rows}


def names_page(work):
    """Markdown: functions, types and values of each header, with links into the reference."""
    lines = []
    for header, brief, rows in documented_names(work):
        lines += ["", f"### {header}", "", cell(brief), "", "| name | what |", "|---|---|"]
        lines += [f"| [`{name}`](c/{link}) | {cell(brief)} |" for name, link, brief in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(expanded_status(Path(sys.argv[1]).read_text()), end="")
