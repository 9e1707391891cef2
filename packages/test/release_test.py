#!/usr/bin/env python3
"""The papers of tools/release, made of small files: bill of materials, notes, comparison."""

import argparse
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

from clean import ROOT, Cases

sys.dont_write_bytecode = True  # tools/release has no ending, and its cache would lie beside it

TOOLS = "fastnorm-tools_1.2.3_amd64.deb"


def load_release():
    loader = importlib.machinery.SourceFileLoader("release", str(ROOT / "tools" / "release"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("release", loader))
    loader.exec_module(module)
    return module


def check_bill(cases, release, out, made, with_cuda):
    """What SPDX 2.3 asks for of the parts that this bill has."""
    name = "with CUDA" if with_cuda else "without CUDA"
    bill = json.loads(release.bill_of_materials(out, "1.2.3", made, with_cuda).read_text())
    for field in ("spdxVersion", "dataLicense", "SPDXID", "name", "documentNamespace"):
        cases.check(f"bill {name}: {field}", bill.get(field))
    form = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
    cases.check(f"bill {name}: its time", re.fullmatch(form, bill["creationInfo"]["created"]))
    ids = [e["SPDXID"] for e in bill["packages"] + bill["files"]] + [bill["SPDXID"]]
    cases.equal(f"bill {name}: names twice", sorted(n for n in set(ids) if ids.count(n) > 1), [])
    wrong = [n for n in ids if not re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", n)]
    cases.equal(f"bill {name}: names of another form", wrong, [])
    relations = bill["relationships"]
    ends = {r[k] for r in relations for k in ("spdxElementId", "relatedSpdxElement")}
    cases.equal(f"bill {name}: what it does not name", sorted(ends - set(ids)), [])
    # A package whose files are not analysed contains none.
    contained = [r for r in relations if r["relationshipType"] == "CONTAINS"]
    cases.equal(f"bill {name}: contained files", contained, [])
    sums = {
        f["fileName"]: next(
            c["checksumValue"] for c in f["checksums"] if c["algorithm"] == "SHA256"
        )
        for f in bill["files"]
    }
    wanted = {f"./{p.relative_to(out)}": hashlib.sha256(p.read_bytes()).hexdigest() for p in made}
    cases.equal(f"bill {name}: hashes", sums, wanted)
    names = {f["SPDXID"]: f["fileName"] for f in bill["files"]}
    linked = {}
    for relation in relations:
        if relation["relationshipType"] == "STATIC_LINK":
            one = relation["spdxElementId"]
            linked.setdefault(names.get(one, one), set()).add(relation["relatedSpdxElement"])
    cudart = {"SPDXRef-cudart"} if with_cuda else set()
    wanted = {
        "SPDXRef-libfastnorm": {"SPDXRef-libstdcxx"} | cudart,
        f"./{TOOLS}": {"SPDXRef-CLI11", "SPDXRef-nlohmann-json"},
    }
    cases.equal(f"bill {name}: what is linked in", linked, wanted)
    licences = {p["name"]: p["licenseDeclared"] for p in bill["packages"]}
    cases.equal(f"bill {name}: CLI11", licences.get("CLI11"), "BSD-3-Clause")
    cases.equal(f"bill {name}: nlohmann_json", licences.get("nlohmann_json"), "MIT")
    versions = [p["versionInfo"] for p in bill["packages"]]
    cases.check(f"bill {name}: versions", all(re.match(r"\d", v) for v in versions), versions)
    used = set(re.findall(r"LicenseRef-[\w-]+", json.dumps(bill["packages"])))
    known = {e["licenseId"] for e in bill["hasExtractedLicensingInfos"]}
    cases.equal(f"bill {name}: licences with their text", known, used)


def check_namespace(cases, release, out, made):
    """Bills of other files have other namespaces, whichever file it is."""

    def bill(files):
        return json.loads(release.bill_of_materials(out, "1.2.3", files, False).read_text())

    first = bill(made)["documentNamespace"]
    cases.equal("the namespace of the same files", bill(made)["documentNamespace"], first)
    for path in made:
        kept = path.read_bytes()
        path.write_bytes(kept[:-1] + b"!")
        other = bill(made)["documentNamespace"]
        cases.check(f"the namespace with another {path.name}", other != first, other)
        path.write_bytes(kept)
    only = bill(made[:2])
    refs = [p["SPDXID"] for p in only["packages"]]
    cases.equal("packages without the program", refs, ["SPDXRef-libfastnorm", "SPDXRef-libstdcxx"])


class Refused(Exception):
    pass


class Parser:
    def error(self, text):
        raise Refused(text)


def check_tools(cases, release, work):
    """What is missing is named before anything is compiled, all of it at once."""
    build = work / "configured"
    build.mkdir(parents=True, exist_ok=True)
    (build / "build.ninja").touch()
    tools = work / "tools"
    shutil.rmtree(tools, ignore_errors=True)
    tools.mkdir()

    def refusal(names, kinds, **options):
        for path in tools.iterdir():
            path.unlink()
        for name in names:
            (tools / name).symlink_to("/bin/true")
        kept = os.environ["PATH"]
        os.environ["PATH"] = str(tools)
        given = {"build": [f"cpu={build}"], "program": None, **options}
        try:
            release.check_tools(Parser(), kinds, argparse.Namespace(**given))
        except Refused as error:
            return str(error)
        finally:
            os.environ["PATH"] = kept
        return ""

    machine = os.uname().machine
    wanted = ["meson", "ninja", "gcc", "g++", "pkg-config", "readelf", "strip", "size", "nm"]
    wanted += ["cargo", "java", "javac", "javadoc", "dpkg-deb", "dpkg-shlibdeps"]
    crossed = [f"aarch64-linux-gnu-{name}" for name in ("gcc", "g++", "gcc-ar", "strip")]
    wanted += crossed if machine == "x86_64" else []
    cases.equal("all tools are there", refusal(wanted, ["cpu"]), "")
    for name in wanted[2:]:
        said = refusal([other for other in wanted if other != name], ["cpu"])
        cases.equal(f"{name} is missing", said, f"{name} not found; required: what tools/setup "
                    "installs")
    if machine == "x86_64":
        said = refusal([name for name in wanted if name not in crossed], ["cpu"])
        cases.check("all of a compiler are named", said.startswith(", ".join(crossed)), said)
    said = refusal(wanted, ["cpu"], build=["cpu=/nowhere"], program=Path("/absent"))
    cases.check("a build folder and a program that are missing are named",
                said.startswith("/nowhere/build.ninja, /absent not found"), said)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, help="not used")
    parser.add_argument("--program", type=Path, help="not used")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is made")
    options = parser.parse_args()
    cases, out = Cases(), options.work.resolve() / "out"
    shutil.rmtree(out, ignore_errors=True)
    (out / "sub").mkdir(parents=True)
    release = load_release()
    small, large = out / "sub" / "a.jar", out / "b-cpu.tar.xz"
    small.write_bytes(b"a" * 10)
    large.write_bytes(b"b" * (release.MIB + 1))
    tools = out / TOOLS
    tools.write_bytes(b"c" * 10)
    made = [small, large, tools]
    for with_cuda in (True, False):
        check_bill(cases, release, out, made, with_cuda)
    check_namespace(cases, release, out, made)

    version = release.project_version()
    notes = release.release_notes(out, version, made, {"b": {"CPU kernels, AVX2": 7}}).read_text()
    changes = (ROOT / "CHANGELOG.md").read_text().split(f"## {version}", 1)[1].split("\n## ")[0]
    cases.check("the notes have the changes", changes.strip().split("\n")[-1] in notes)
    cases.check("the notes have sizes", "| sub/a.jar | 10 |  |" in notes, notes[-500:])
    over = f"| b-cpu.tar.xz | {release.MIB + 1} | {release.MIB}, exceeded |"
    cases.check("the notes say what is too large", over in notes, notes[-500:])
    cases.check("the notes have the code", "| CPU kernels, AVX2 | 7 |" in notes)

    (out / "SHA256SUMS").write_text("00  x\n11  y\n")
    (out / "sub" / "SHA256SUMS").write_text("00  x\n22  y\n33  z\n")
    cases.equal("files that differ", release.compare(out, out / "sub"), ["y", "z"])
    cases.equal("files that differ from themselves", release.compare(out, out), [])
    result = subprocess.run(
        [sys.executable, ROOT / "tools" / "release", "--build", "gpu=/nowhere"],
        capture_output=True,
        text=True,
    )
    said = "gpu cannot be made here; required: one of" in result.stderr
    cases.check("an unknown kind is refused", result.returncode != 0 and said, result.stderr)
    with patch.object(release, "project_version", lambda: "99.0.0"):
        try:
            release.check_figures()
            said = "nothing"
        except SystemExit as why:
            said = str(why)
    stale = "README.md: h200_large.csv is of " in said and "required: 99.0.0" in said
    cases.check("figures of another version are refused", stale, said)
    tree = out / "tree"
    tree.mkdir()
    for heading, wanted in (("not released", True), ("2031-02-03", False)):
        (tree / "CHANGELOG.md").write_text(f"# Changes\n\n## {version}, {heading}\n\n- one\n")
        with patch.object(release, "ROOT", tree):
            try:
                release.check_dated()
                said = ""
            except SystemExit as why:
                said = str(why)
        cases.equal(f"{heading} is refused", "has no date of" in said, wanted)
    check_tools(cases, release, options.work.resolve())
    cases.finish()


main()
