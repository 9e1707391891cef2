#!/usr/bin/env python3
"""Tests a page of docs about one family. Its C program compiles without warnings and prints what
the page says. Its files exist. Usage: docs_test.py --family NAME --library FILE [--cc CC]"""

import argparse
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "abi"))
sys.dont_write_bytecode = True
from cases import Cases  # noqa: E402

DOCS = ROOT / "docs"
# The structs of a family's header, and fields that need no words on its page.
FAMILIES = {
    "mla_decode": (["args"], {"struct_size", "total_kv_hint"}),
    "norm_backward": (["args"], {"struct_size"}),
    "norm_heads": (["part", "backward_part", "args"], {"struct_size", "mrope_1", "mrope_2"}),
}


def check_program(cases, text, library, compiler, work):
    program = re.search(r"^```c\n(.*?)^```\n+```text\n(.*?)^```", text, re.M | re.S)
    if not cases.check("the page has a program and what it prints", program):
        return
    source, binary = work / "example.c", work / "example"
    source.write_text(program[1])
    built = subprocess.run(
        [
            *compiler.split(),
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{ROOT / 'include'}",
            source,
            "-o",
            binary,
            library,
            "-lm",
            f"-Wl,-rpath,{library.parent}",
        ],
        capture_output=True,
        text=True,
    )
    if not cases.equal("the program compiles", (built.returncode, built.stderr), (0, "")):
        return
    ran = subprocess.run([binary], capture_output=True, text=True)
    cases.equal(
        "what the program prints", (ran.returncode, ran.stdout, ran.stderr), (0, program[2], "")
    )


def check_picture(cases, text):
    for name in re.findall(r"!\[[^]]+\]\(([^)]+)\)", text):
        root = ElementTree.parse(DOCS / name).getroot()
        words = [e for e in root.iter() if e.tag.endswith("}text")]
        cases.check(
            f"{name} is a picture with words",
            root.tag.endswith("}svg") and len(words) > 4,
            len(words),
        )
        if name.endswith("_trace.svg"):
            spans = [r for r in root if r.get("class") == "span"]
            cases.check(f"{name} is a picture of a trace", len(spans) > 20, len(spans))


def check_links(cases, text, family):
    links = [
        link.partition("#")
        for link in re.findall(r"\]\(([^)]+)\)", text)
        if not link.startswith("http")
    ]
    named = re.findall(r"`((?:include|tests|tools|docs)/[\w/.]+)", text)
    cases.check("the page has links", len(links) >= 4 and named)
    for path in [*(DOCS / link for link, _, _ in links if link), *(ROOT / name for name in named)]:
        cases.check(
            f"there is a {path.relative_to(DOCS) if path.is_relative_to(DOCS) else path.name}",
            path.exists(),
        )
    for link, _, section in links:
        if section:
            page = (DOCS / link).read_text() if link else text
            titles = {
                title.lower().replace(" ", "-") for title in re.findall(r"^#+ (.+)", page, re.M)
            }
            cases.check(f"{link} has a section {section}", section in titles)
    headers = sorted((ROOT / "include" / "fastnorm").glob(f"{family}*.h"))
    header = "\n".join(path.read_text() for path in headers)
    structs, untold = FAMILIES[family]
    for struct in structs:
        fields = re.search(
            rf"typedef struct fastnorm_{family}_{struct} \{{(.*?)\n\}}", header, re.S
        )[1]
        fields = re.sub(r"/\*.*?\*/", "", fields, flags=re.S)
        for field in re.findall(r"(\w+);", fields):
            cases.check(f"the page tells of {field}", field in text or field in untold)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", choices=FAMILIES, required=True)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--cc", default="cc")
    options = parser.parse_args()
    cases, text = Cases(), (DOCS / f"{options.family}.md").read_text()
    check_links(cases, text, options.family)
    check_picture(cases, text)
    with tempfile.TemporaryDirectory() as work:
        check_program(cases, text, options.library.resolve(), options.cc, Path(work))
    cases.finish()


main()
