#!/usr/bin/env python3
"""The jars as users get them: what a public repository requires of them, and the README's
program."""

import argparse
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml
import zipfile
from pathlib import Path

from clean import ROOT, Cases, clean_env, readme_program, run_clean

sys.path.insert(0, str(ROOT / "packages" / "java"))
import jars  # noqa: E402

POM = "{http://maven.apache.org/POM/4.0.0}"


def check_pom(cases, path):
    """The fields that Central's rules ask for, none of them empty."""
    root = xml.parse(path).getroot()
    for field in (
        "groupId",
        "artifactId",
        "version",
        "name",
        "description",
        "url",
        "licenses/license/name",
        "licenses/license/url",
        "developers/developer/name",
        "developers/developer/url",
        "scm/connection",
        "scm/url",
    ):
        found = root.find("/".join(POM + part for part in field.split("/")))
        cases.check(f"the POM has {field}", found is not None and (found.text or "").strip())
    cases.equal("the POM's version", root.find(POM + "version").text, jars.project_version())
    cases.check("the version is no snapshot", "SNAPSHOT" not in jars.project_version())


def check_contents(cases, folder, name, machine):
    names = {}
    for kind in ("", "-sources", "-javadoc", f"-linux-{machine}"):
        path = folder / f"{name}{kind}.jar"
        if cases.check(f"{path.name} is there", path.exists()):
            with zipfile.ZipFile(path) as archive:
                names[kind] = set(archive.namelist())
            cases.check(f"{path.name} has the licence", "META-INF/LICENSE" in names[kind])
            cases.check(
                f"{path.name} has its checksums",
                all((folder / f"{path.name}.{k}").exists() for k in ("md5", "sha1")),
            )
    classes = {
        n.removesuffix(".class") for n in names.get("", ()) if n.endswith(".class") and "$" not in n
    }
    sources = {n.removesuffix(".java") for n in names.get("-sources", ()) if n.endswith(".java")}
    cases.equal("classes without their source", sorted(classes - sources), [])
    cases.check("there are classes", len(classes) > 20, sorted(classes))
    cases.check(
        "no natives in the jar of the classes", not any("/native/" in n for n in names.get("", ()))
    )
    natives = sorted(n for n in names.get(f"-linux-{machine}", ()) if "/native/" in n)
    base = f"META-INF/native/linux-{machine}"
    cases.equal("natives", natives, [f"{base}/libfastnorm.so.1", f"{base}/libfastnorm_jni.so"])
    cases.check("the documentation has an index", "index.html" in names.get("-javadoc", ()))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, required=True, help="libfastnorm.so.1")
    parser.add_argument("--program", type=Path, help="not used")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is made")
    options = parser.parse_args()
    cases, work = Cases(), options.work.resolve()
    if shutil.which("javac") is None:
        cases.skip("the jars", "there is no JDK")
        cases.finish()
    folder = jars.make([options.library], work / "first", work / "repository")
    again = jars.make([options.library], work / "second", work / "repository2")
    for path in sorted(folder.iterdir()):
        cases.check(
            f"two runs make the same {path.name}",
            path.read_bytes() == (again / path.name).read_bytes(),
        )
    version, machine = jars.project_version(), jars.elf.machine(options.library)
    check_pom(cases, folder / f"fastnorm-{version}.pom")
    check_contents(cases, folder, f"fastnorm-{version}", machine)
    program, printed = readme_program(ROOT / "bindings" / "java" / "README.md", "java")
    project = work / "consumer"
    shutil.rmtree(project, ignore_errors=True)
    project.mkdir()
    file = re.search(r"public class (\w+)", program)[1] + ".java"
    (project / file).write_text(program)
    path = ":".join(
        str(folder / f"fastnorm-{version}{kind}.jar") for kind in ("", f"-linux-{machine}")
    )
    cases.equal(
        "what the README's program prints",
        run_clean(cases, "java", ["java", "-cp", path, file], project),
        printed,
    )
    result = subprocess.run(
        ["java", "-cp", folder / f"fastnorm-{version}.jar", file],
        capture_output=True,
        text=True,
        cwd=project,
        env=clean_env(),
    )
    wanted = (
        f"required: the artifact dev.fastnorm:fastnorm:{version} with the classifier "
        f"linux-{machine}, the file fastnorm-{version}-linux-{machine}.jar"
    )
    cases.check(
        "without the natives' jar the error names it",
        result.returncode != 0 and wanted in result.stderr,
        result.stdout + result.stderr,
    )
    cases.finish()


main()
