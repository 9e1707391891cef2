#!/usr/bin/env python3
"""Tests of the examples for ND4J, DJL and jlama with their packages of Maven Central: each is
compiled, compared with the engine and with double precision, and timed beside the engine. The last
line is the count.

    integrations/java/test.py --build build-test/native --work build-test/java-engines
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE.parent))
from engine_testing import ROOT, Session, write_figures  # noqa: E402

BINDING = ROOT / "bindings" / "java"
# Engine: the class that tests it, the least Java, options of java.
ENGINES = {
    "nd4j": ("Nd4jTest", 17, ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]),
    "djl": ("DjlTest", 17, ["-Dai.djl.offline=true", "-DDJL_CACHE_DIR={work}/djl-cache"]),
    "jlama": (
        "JlamaTest",
        22,
        ["--add-modules=jdk.incubator.vector", "--enable-native-access=ALL-UNNAMED",
         "--sun-misc-unsafe-memory-access=allow"],
    ),
}  # fmt: skip
# Where the engine is faster, and why.
SLOWER = {
    ("djl", "LayerNorm", "1"): "DJL makes a buffer object for each array that it lends, which"
    " takes longer than one row; its own operator is one call",
}
NAMES = {"nd4j": "ND4J", "djl": "PyTorch by DJL", "jlama": "jlama"}


def javas():
    """Folders of the JDKs of this machine, by version, newest last."""
    found = {}
    homes = [os.environ.get("JAVA_HOME"), *sorted(Path("/usr/lib/jvm").glob("*"))]
    if shutil.which("javac"):
        homes.append(Path(shutil.which("javac")).resolve().parents[1])
    for home in filter(None, homes):
        javac = Path(home) / "bin" / "javac"
        if javac.exists():
            text = subprocess.run([javac, "-version"], capture_output=True, text=True).stdout
            version = re.search(r"javac (\d+)", text)
            if version:
                found[int(version[1])] = Path(home)
    return dict(sorted(found.items()))


def binding(s):
    """The jar of the binding, made from the tree; None if that does not work."""
    target = s.work / "binding"
    sources = [BINDING / "pom.xml", *sorted((BINDING / "src" / "main").rglob("*.*"))]
    text = "".join(
        f"{path.relative_to(BINDING)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
        for path in sources
    )
    stamp = target / "made-from"
    if not (stamp.exists() and stamp.read_text() == f"{s.build}\n{text}"):
        shutil.rmtree(target, ignore_errors=True)
        made = s.fetch(
            "the binding's jar",
            ["mvn", "-B", "-Dstyle.color=never", "-f", BINDING / "pom.xml",
             f"-DbuildDirectory={target}", "-Dmaven.test.skip=true", "-Dmaven.javadoc.skip=true",
             "-Dmaven.source.skip=true", "package"],
        )  # fmt: skip
        if not made:
            return None
        stamp.write_text(f"{s.build}\n{text}")
    return next(p for p in target.glob("fastnorm-*.jar"))


def classpath(s, engine):
    """What Maven has fetched for the engine; None without it."""
    pom = HERE / engine / "pom.xml"
    key = hashlib.sha256(pom.read_bytes()).hexdigest()[:16]
    path = s.work / f"{engine}-{key}.classpath"
    if not path.exists():
        part = path.with_suffix(".part")
        command = ["mvn", "-B", "-Dstyle.color=never", "-f", pom, "dependency:build-classpath"]
        if not s.fetch(f"packages of {engine}", [*command, f"-Dmdep.outputFile={part}"]):
            return None
        part.rename(path)
    return path.read_text().strip()


def run_engine(s, engine, jar, rounds):
    """Compiles and runs the engine's test. The lines of its figures."""
    main, least, options = ENGINES[engine]
    java = next((home for version, home in javas().items() if version >= least), None)
    if java is None:
        s.cases.skip(engine, f"there is no JDK {least} or later")
        return []
    packages = classpath(s, engine)
    if packages is None:
        return []
    classes = s.work / f"{engine}-classes"
    shutil.rmtree(classes, ignore_errors=True)
    path = f"{classes}:{jar}:{packages}"
    sources = [HERE / "Beside.java", *sorted((HERE / engine).glob("*.java"))]
    modules = [word for word in options if word.startswith("--add-modules")]
    command = [java / "bin" / "javac", "-Xlint:-options", "-nowarn", *modules, "-cp", path, "-d",
               classes, *sources]  # fmt: skip
    if s.check(f"{engine} compiles", command) is None:
        return []
    # What is timed must be compiled, also on a machine that has other work: -Xbatch waits for it.
    options = ["-Xbatch", *(option.format(work=s.work) for option in options)]
    code, text = s.run([java / "bin" / "java", *options, "-cp", path, main, rounds], timeout=600)
    count = re.search(r"^(\d+) passed, (\d+) failed, 0 skipped$", text, re.M)
    detail = f"exit code {code}\n{text[-6000:]}"
    if not s.cases.check(f"{engine} ends with its count", count, detail):
        return []
    print("\n".join(re.findall(r"^FAIL .*$", text, re.M)))
    s.cases.passed += int(count[1])
    s.cases.failed += int(count[2])
    lines = [line.split("\t") for line in text.splitlines() if line.count("\t") == 6]
    s.cases.check(f"{engine} has figures", lines)
    for what, rows, _, theirs, ours, their_error, _ in lines:
        name = f"{engine}: its {what}, {rows} rows is the same norm"
        s.cases.check(name, float(their_error) < 1e-5, their_error)
        ratio = float(ours) / float(theirs)
        name = f"{engine}: {what}, {rows} rows is no slower"
        if ratio > 1 and (engine, what, rows) in SLOWER:
            s.cases.skip(name, f"{ratio:.2f}: {SLOWER[engine, what, rows]}")
        else:
            s.cases.check(name, ratio <= 1, f"{ratio:.2f}")
    return [[NAMES[engine], *line] for line in lines]


def write_table(s, lines):
    write_figures(
        s,
        HERE / "figures.md",
        "Time and error beside engines for Java",
        [
            "`test.py --figures` writes this page. Both sides are timed by turns in one run, and the",
            "least time of each counts. The error is the root of the mean square of the difference",
            "from double precision, relative to the result. libfastnorm has the machine's threads, as",
            "ND4J and PyTorch have, and one beside jlama's one. All numbers are float32. Where an",
            "engine has no RMSNorm, its line is that of the engine's operators.",
        ],
        ["engine", "norm", "rows", "columns", "engine, µs", "fastnorm, µs", "time",
         "error of the engine", "error of fastnorm"],
        [[*line[:6], f"{float(line[5]) / float(line[4]):.3f}", *line[6:]] for line in lines],
    )  # fmt: skip


def main():
    s = Session(__doc__, HERE)
    s.env["PATH"] = f"{ROOT / '.venv' / 'bin'}:{s.env['PATH']}"
    if platform.machine() != "x86_64":
        s.cases.skip("engines for Java", "the packages' native code is for x86-64")
        s.cases.finish()
    if shutil.which("mvn") is None or not javas():
        s.cases.skip("engines for Java", "there is no Maven, or no JDK")
        s.cases.finish()
    jar = binding(s)
    if jar is None:
        s.cases.finish()
    lines = [
        line for name in ENGINES for line in run_engine(s, name, jar, "60" if s.figures else "5")
    ]
    if s.figures:
        write_table(s, lines)
    s.finish()


if __name__ == "__main__":
    main()
