#!/usr/bin/env python3
"""Builds and tests the Java binding against a libfastnorm, with Maven: compiles without warnings,
runs the JUnit tests, makes the jars and the Javadoc, and runs the README's example as a user would.

Everything goes below --work. Maven takes plugins and JUnit from its local repository, or the first
time from where its settings say."""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree

JAVA = Path(__file__).resolve().parent
sys.path.insert(0, str(JAVA.parents[1] / "tests" / "abi"))
sys.dont_write_bytecode = True
from cases import Cases  # noqa: E402

LEAST_JAVA = 17
LEAST_MAVEN = (3, 6)


def say(text):
    print(text, flush=True)


def run(command, env, **options):
    """Exit code and all that a command writes."""
    result = subprocess.run(
        [str(c) for c in command],
        env=env,
        text=True,
        errors="replace",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **options,
    )
    return result.returncode, result.stdout


def missing_tool(env):
    """Why the tests cannot run here; None if they can."""
    for tool in ("java", "javac", "mvn", "pkg-config"):
        if shutil.which(tool, path=env["PATH"]) is None:
            return f"no {tool} on the PATH; required: a JDK {LEAST_JAVA} or later, Maven, a C compiler and pkg-config"
    if shutil.which(env.get("CC", "cc").split()[0], path=env["PATH"]) is None:
        return "no C compiler"
    version = re.search(r"javac (\d+)", run(["javac", "-version"], env)[1])
    if version is None or int(version[1]) < LEAST_JAVA:
        return f"javac is {version[1] if version else 'unknown'}; required: {LEAST_JAVA} or later"
    maven = re.search(
        r"Apache Maven (\d+)\.(\d+)", run(["mvn", "-B", "-Dstyle.color=never", "--version"], env)[1]
    )
    if maven is None or tuple(map(int, maven.groups())) < LEAST_MAVEN:
        return f"Maven is {maven[0] if maven else 'unknown'}; required: {'.'.join(map(str, LEAST_MAVEN))} or later"
    return None


class Maven:
    """Maven on this project. Offline once all that it needs has been there."""

    def __init__(self, work, env):
        self.work, self.env = work, env
        pom = hashlib.sha256((JAVA / "pom.xml").read_bytes()).hexdigest()[:16]
        self.stamp = work / f"resolved-{pom}"

    def run(self, *arguments):
        command = ["mvn", "-B", "-Dstyle.color=never", "-f", JAVA / "pom.xml", *arguments]
        if self.stamp.exists():
            code, text = self._run([*command, "-o"])
            if code == 0 or "offline mode" not in text:
                return code, text
        code, text = self._run(command)
        if code == 0:
            self.stamp.touch()
        return code, text

    def _run(self, command):
        say("running " + " ".join(Path(c).name if isinstance(c, Path) else c for c in command))
        return run(command, self.env, cwd=self.work)


def skip_reasons(reports):
    """(test, why) of each JUnit test that was skipped."""
    found = []
    for report in sorted(reports.glob("TEST-*.xml")):
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            skipped = case.find("skipped")
            if skipped is not None:
                # Surefire has the text as an attribute or as the first line of the stack trace.
                lines = (skipped.get("message") or skipped.text or "").strip().splitlines()
                why = lines[0].split("Assumption failed: ")[-1] if lines else "no reason given"
                found.append((f"{case.get('classname')}.{case.get('name')}", why))
    return found


def count_junit(cases, text, reports):
    """Surefire's closing line into the cases; whether there was one."""
    lines = re.findall(
        r"^\[\w+\] Tests run: (\d+), Failures: (\d+), Errors: (\d+), Skipped: (\d+)$", text, re.M
    )
    if not lines:
        return False
    total, failures, errors, skipped = map(int, lines[-1])
    say(f"JUnit: {total} run, {failures} failures, {errors} errors, {skipped} skipped")
    cases.passed += total - failures - errors - skipped
    cases.failed += failures + errors
    for name, why in (skip_reasons(reports) + [("JUnit", "no reason given")] * skipped)[:skipped]:
        cases.skip(name, why)
    for line in re.findall(r"^\[ERROR\]   .*", text, re.M):
        say(f"FAIL {line[10:]}")
    return True


def build_and_test(cases, maven, target, library, nccl):
    """mvn package: compile, JNI library, tests, jar, sources, Javadoc. Whether it worked."""
    shutil.rmtree(target, ignore_errors=True)
    code, text = maven.run(
        f"-DbuildDirectory={target}",
        f"-Dfastnorm.test.library={library}",
        *nccl,
        "-Dmaven.compiler.failOnWarning=true",
        "package",
    )
    counted = count_junit(cases, text, target / "surefire-reports")
    for line in re.findall(r"^\d+ calls, \d+ bytes before.*", text, re.M):
        say(line)
    tail = "\n".join([line for line in text.splitlines() if " from central: " not in line][-60:])
    cases.check("JUnit ran", counted, tail)
    if not cases.check(
        "mvn package, compilation and Javadoc without warnings",
        code == 0,
        "" if cases.failed else tail,
    ):
        return False
    warnings = [
        line
        for line in text.splitlines()
        if line.startswith("[WARNING]") and "Tests run" not in line
    ]
    cases.check("no warning of Maven", not warnings, "\n".join(warnings[:10]))
    return True


def names_of(jar):
    with zipfile.ZipFile(jar) as archive:
        return set(archive.namelist())


def check_jars(cases, target):
    jars = sorted(p.name for p in target.glob("*.jar"))
    wanted = [f"fastnorm-{version()}{kind}.jar" for kind in ("-javadoc", "-sources", "")]
    if not cases.equal("jars", jars, wanted):
        return None
    jar = target / wanted[-1]
    native = f"META-INF/native/linux-{os.uname().machine}/"
    own = {n[len(native) :] for n in names_of(jar) if n.startswith(native) and n != native}
    cases.equal("native part of the jar", own, {"libfastnorm_jni.so", "libdir"})
    pages = {Path(n).name: n for n in names_of(target / wanted[0]) if "class-use" not in n}
    cases.check(
        "Javadoc of the public classes and no others",
        "Norm.html" in pages and not pages.keys() & {"NormFields.html", "Raw.html", "Words.html"},
    )
    with zipfile.ZipFile(target / wanted[0]) as archive:
        page = " ".join(archive.read(pages["Norm.html"]).decode().split())
    cases.check(
        "Javadoc of a class has its generated setters, with the headers' comments",
        "residualGateTable" in page and "The normalised row is multiplied by 1 + " in page,
    )
    sources = {f"dev/fastnorm/{name}.java" for name in ("NormFields", "QuantScheme", "Raw")}
    cases.equal(
        "generated sources in the source jar", sources - names_of(target / wanted[1]), set()
    )
    return jar


def version():
    return re.search(
        r"<artifactId>fastnorm</artifactId>\s*<version>([^<]+)</version>",
        (JAVA / "pom.xml").read_text(),
    )[1]


def check_example(cases, work, env, name, jar):
    """The README's example, compiled and run with one jar and nothing else."""
    readme = (JAVA / "README.md").read_text()
    source, printed = (
        re.search(rf"^```{kind}\n(.*?)^```", readme, re.M | re.S)[1] for kind in ("java", "text")
    )
    folder = work / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "Example.java").write_text(source)
    code, text = run(
        ["javac", "-Xlint:all", "-Werror", "-cp", jar, "-d", folder, folder / "Example.java"], env
    )
    cases.check(f"{name}: README example compiles", code == 0, text)
    # Not in the package's folder, and without any path to the library.
    clean = {k: v for k, v in env.items() if k not in ("LD_LIBRARY_PATH", "PKG_CONFIG_PATH")}
    code, text = run(
        ["java", "-Xcheck:jni", "-cp", f"{jar}:{folder}", "Example"], clean, cwd=folder
    )
    cases.equal(f"{name}: README example runs", (code, text), (0, printed))


def check_bundle(cases, maven, work, env, library_dir):
    """-Dbundle=1: the library itself is in the jar."""
    target = work / "bundle"
    shutil.rmtree(target, ignore_errors=True)
    code, text = maven.run(
        f"-DbuildDirectory={target}",
        "-Dbundle=1",
        "-DskipTests",
        "-Dmaven.test.skip=true",
        "-Dmaven.javadoc.skip=true",
        "-Dmaven.source.skip=true",
        "package",
    )
    if cases.check("mvn package -Dbundle=1", code == 0, text[-3000:]):
        jar = target / f"fastnorm-{version()}.jar"
        name = f"META-INF/native/linux-{os.uname().machine}/libfastnorm.so.1"
        with zipfile.ZipFile(jar) as archive:
            same = (
                name in archive.namelist()
                and archive.read(name) == (library_dir / "libfastnorm.so.1").read_bytes()
            )
        cases.check("libfastnorm.so.1 in the jar", same)
        check_example(cases, work, env, "bundle-example", jar)


def check_no_library(cases, work, env):
    """Without a fastnorm.pc the build says what to do."""
    build = ["sh", JAVA / "src" / "main" / "native" / "build.sh"]
    native = work / "target" / "generated" / "native"
    bare = {**env, "PKG_CONFIG_LIBDIR": str(work / "nothing"), "PKG_CONFIG_PATH": ""}
    code, text = run(
        [*build, work / "nothing", java_home(env), native],
        bare,
    )
    cases.check(
        "build.sh without libfastnorm",
        code == 1 and "set PKG_CONFIG_PATH" in text and not (work / "nothing").exists(),
        text,
    )
    code, text = run(
        [*build, work / "nothing", work, native], env
    )
    cases.check("build.sh without a JDK", code == 1 and "a JDK is required" in text, text)


def check_generator(cases, work, env):
    """The raw layer of a family that does not exist yet."""
    say("running java_test.py")
    _, text = run(
        [sys.executable, JAVA.parent / "swig" / "java_test.py", "--work", work / "generator"], env
    )
    counts = re.search(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", text, re.M)
    if cases.check("java_test.py ends with its counts", counts, text[-2000:]):
        passed, failed, skipped = map(int, counts.groups())
        cases.passed, cases.failed, cases.skipped = (
            cases.passed + passed,
            cases.failed + failed,
            cases.skipped + skipped,
        )
        for line in re.findall(r"^(?:FAIL|SKIP) .*", text, re.M):
            say(line)


def java_home(env):
    return (
        run(["java", "-XshowSettings:properties", "-version"], env)[1]
        .split("java.home = ")[1]
        .splitlines()[0]
    )


def tree():
    """What is in the source folder."""
    return sorted(str(p.relative_to(JAVA)) for p in JAVA.rglob("*"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pkgconfig", type=Path, required=True, help="folder of fastnorm.pc")
    parser.add_argument(
        "--library-dir", type=Path, required=True, help="folder of libfastnorm.so.1"
    )
    parser.add_argument("--nccl-dir", type=Path, help="folder of libfastnorm_nccl.so.1")
    parser.add_argument("--fake-nccl", type=Path, help="the libnccl.so.2 of tests/nccl")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is built")
    options = parser.parse_args()
    cases = Cases()
    env = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith("PKG_CONFIG") and k != "LD_LIBRARY_PATH"
    }
    env["PKG_CONFIG_PATH"] = str(options.pkgconfig.resolve())
    env["CFLAGS"] = "-Werror"
    why = missing_tool(env)
    if why is not None:
        cases.skip("Java binding", why)
        cases.finish()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    before = tree()
    maven = Maven(work, env)
    target = work / "target"
    nccl = []
    if options.nccl_dir and options.fake_nccl:
        nccl = [
            f"-Dfastnorm.nccl.library={options.nccl_dir.resolve()}",
            f"-Dfastnorm.test.nccl={options.fake_nccl.resolve()}",
        ]
    if build_and_test(cases, maven, target, options.library_dir.resolve(), nccl):
        jar = check_jars(cases, target)
        if jar is not None:
            check_example(cases, work, env, "example", jar)
        check_bundle(cases, maven, work, env, options.library_dir.resolve())
    check_no_library(cases, work, env)
    check_generator(cases, work, env)
    cases.equal("nothing was left in the source folder", sorted(set(tree()) - set(before)), [])
    cases.finish()


main()
