#!/usr/bin/env python3
"""Every command in a block of code of the pages below is run, or a rule of this file says why not.

    commands_test.py --work DIR [--build BUILD]

A command without a rule fails, so a page cannot gain one that nobody tries. `fastnorm` commands and
those of docs/install.md have tests of their own. The commands run in a folder that looks like the
checkout with BUILD as its build folder. Without --build those that need one are skipped."""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "abi"))
from cases import Cases  # noqa: E402

PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "bench/README.md",
    "examples/README.md",
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").glob("**/*.md")),
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "examples").glob("*/README.md")),
    "packages/python/README.md",
]
# Other tests that take whole pages, or all commands of a program.
PAGES_ELSEWHERE = {"docs/install.md": "packages/test/pages_test.py"}
SECONDS = 4  # a benchmark that runs on without an error after this is stopped
# What stands for a reader's program of the Python package: it is that of the checkout, and loads.
PROGRAM = """
import pathlib, fastnorm
assert pathlib.Path(fastnorm.__file__).parent == pathlib.Path("packages/python/fastnorm").resolve()
assert fastnorm.version() == fastnorm.__version__
"""
NO_DEVICE = re.compile(
    r"cudaSetDevice|CUDA driver|no CUDA|without CUDA|needs a GPU|no NVIDIA|no libfastnorm_streams"
)
NO_PACKAGE = re.compile(r"No module named '?([\w.]+)|([\w.]+) is not installed")

# What is done with a command, by how it begins: (expression, action, more).
#   run        it must end with 0
#   bench      the same, or stopped after a few seconds; without a GPU it may be refused for that
#   configure  run in a copy of the checkout's files
#   dry        run there with -n
#   other      the named test runs it
#   skip       not run here, for this reason
RULES = [
    (r"fastnorm ", "other", "tests/cli/docs_test.py"),
    (r"(build/bench/)?fastnorm_bench --host-cost", "run", ""),
    (r"(build/bench/)?fastnorm_bench ", "bench", ""),
    (r"export ", "run", ""),
    (r"fastnorm_nccl_bench ", "other", "tests/nccl/bench_test.py"),
    (r"meson setup build .*-Djax=enabled", "other", "tools/testing/stages.py"),
    (r"meson setup build ", "configure", ""),
    (r"ninja -C build", "dry", ""),
    (r"meson install -C build", "other", "pkgconfig/consumer_test.py"),
    (r"\$\(command -v sudo\) ldconfig", "skip", "changes the list of the machine's libraries"),
    (r"meson test -C build$", "skip", "takes minutes; the stages tests and asan run all tests"),
    (r"meson test -C build --suite unit", "skip", "takes minutes; the stage tests runs it"),
    (r"(\./)?tools/setup", "other", "tools/test"),
    (r"\./tools/quickstart", "skip", "downloads a model; examples/smollm2/test.py has a small one"),
    (r"(\./)?tools/test( --all)?$", "skip", "this test is a part of it"),
    (r"tools/test --list$", "run", ""),
    (r"tools/test --stage style$", "other", "tests/style/style_test.py"),
    (r"tools/docs$", "other", "tools/testing/stages.py"),
    (r"build/tests/check/", "bench", ""),
    (r"build/tests/", "run", ""),
    (r"cc example.c ", "other", "pkgconfig/consumer_test.py"),
    (r"cc examples/peer/ranks.c ", "run", ""),
    (r"pip install \.$", "other", "packages/test/python_source_test.py"),
    (r"pip install ", "other", "packages/test/python_test.py"),
    (r"bench/campaign\.py --list", "run", ""),
    (r"bench/campaign\.py ", "other", "bench/campaign_test.py"),
    (r"bench/compare\.py (report|plot) ", "run", ""),
    (r"bench/compare(_heads|_stages|_mla_decode|_peers)?\.py ", "bench", ""),
    (r"tools/trace_picture\.py ", "other", "tests/trace/trace_test.py"),
    (r"ncu ", "skip", "needs a GPU and Nsight Compute"),
    (r"\.venv/bin/python -m pip install .*smollm2", "other", "tools/quickstart"),
    (r"\.venv/bin/python examples/smollm2 ", "other", "examples/smollm2/test.py"),
    (r"\.venv/bin/python examples/mla_decode ", "other", "examples/mla_decode/test.py"),
    (r"\.venv/bin/python examples/norm_heads ", "other", "examples/norm_heads/test.py"),
    (r"\.venv/bin/python examples/indexer ", "other", "examples/indexer/test.py"),
    (r"\.venv/bin/python examples/norm_stages ", "other", "examples/norm_stages/test.py"),
    (r"python3 examples/train_norms ", "other", "examples/train_norms/test.py"),
    (r"PYTHONPATH=packages/python python3 program.py", "run", ""),
]


def commands(text):
    """The commands of a page's blocks, and those that cells of its tables name, in their order.

    Lines that a loop or a backslash joins are one command."""
    for block in re.findall(r"^ *```(?:sh|console)\n(.*?)^ *```", text, re.M | re.S):
        console = re.search(r"^\s*\$ ", block, re.M)
        command = ""
        for line in block.splitlines():
            if console and not command and not line.lstrip().startswith("$ "):
                continue  # what the command prints
            command += line.strip().removeprefix("$ ") if not command else "\n" + line.strip()
            if line.endswith("\\") or command.count("$(") > command.count(")"):
                continue
            command = re.sub(r"\s+#.*$", "", command)
            if command and not command.startswith("#"):
                yield command
            command = ""
    for row in re.findall(r"^\| `([^`|]+)` \|", text, re.M):
        if re.match(r"(\./)?(tools|build|bench)/|meson |ninja ", row):
            yield row


def rule_of(command):
    return next((rule for rule in RULES if re.match(rule[0], command)), None)


class Runner:
    def __init__(self, cases, work, build):
        self.cases, self.work, self.build = cases, work, build
        self.tree, self.fresh = work / "tree", work / "fresh"
        for folder in (self.tree, self.fresh):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        for path in ROOT.iterdir():
            if not path.name.startswith(("build", "dist", ".git", "bench")):
                (self.tree / path.name).symlink_to(path)
        # Its programs look for the build folder beside their own.
        shutil.copytree(ROOT / "bench", self.tree / "bench")
        if build:
            (self.tree / "build").symlink_to(build)
            shutil.copy(build / "src" / "libfastnorm.so.1", self.tree / "before.so")
        shutil.copy(ROOT / "bench" / "results" / "h200_compare.csv", self.tree / "run.csv")
        shutil.copy(ROOT / "bench" / "results" / "h200_grid.csv", self.tree / "grid.csv")
        (self.tree / "program.py").write_text(PROGRAM)
        self.has_gpu = shutil.which("nvidia-smi") is not None
        self.before = ""  # the assignments of a block so far

    def environment(self):
        programs = [ROOT / ".venv" / "bin"]
        more = {}
        if self.build:
            programs += [self.build / "bench", self.build / "tools" / "fastnorm"]
            more = {
                "PKG_CONFIG_PATH": str(self.build / "meson-uninstalled"),
                "LD_LIBRARY_PATH": str(self.build / "src"),
            }
        path = ":".join([*map(str, programs), os.environ["PATH"]])
        return {**os.environ, **more, "PATH": path}

    def shell(self, command, folder, seconds):
        """(exit code, output); 124 where it was stopped."""
        script = f"set -e\n{self.before}\n{command}\n"
        with subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                text, _ = process.communicate(timeout=seconds)
                return process.returncode, text
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                return 124, process.communicate()[0]

    def expect(self, name, command, folder, seconds=300):
        code, text = self.shell(command, folder, seconds)
        return self.cases.check(name, code == 0, f"exit code {code}\n{text[-1500:]}")

    def bench(self, name, command):
        """A benchmark. Options, operations and shapes are read before the GPU is looked for."""
        code, text = self.shell(command, self.tree, SECONDS)
        lacks = NO_PACKAGE.search(text)
        if code == 124:
            self.cases.skip(name, f"takes minutes; it ran {SECONDS} s without an error")
        elif code == 0:
            self.cases.check(name, True)
        elif lacks:
            self.cases.skip(name, f"{lacks[1] or lacks[2]} is not installed")
        elif not self.has_gpu and NO_DEVICE.search(text):
            self.cases.skip(name, "no GPU; its options and shapes were read")
        else:
            self.cases.check(name, False, f"exit code {code}\n{text[-1500:]}")

    def configure(self, name, command):
        if not (self.fresh / "meson.build").exists():
            listed = ["git", "-C", ROOT, "ls-files", "-z"]
            listed += ["--cached", "--others", "--exclude-standard"]  # also what is not added yet
            names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
            for each in filter(None, names.split("\0")):
                target = self.fresh / each
                target.parent.mkdir(parents=True, exist_ok=True)
                if (ROOT / each).is_file():
                    shutil.copy(ROOT / each, target)
            (self.fresh / ".venv").symlink_to(ROOT / ".venv")
        shutil.rmtree(self.fresh / "build", ignore_errors=True)
        self.expect(name, command, self.fresh)

    def one(self, page, command):
        name = f"{page}: {' '.join(command.split())[:90]}"
        rule = rule_of(command)
        if not self.cases.check(f"{name}: has a rule", rule):
            return
        _, action, more = rule
        if action == "skip":
            self.cases.skip(name, more)
        elif action == "other":
            self.cases.check(f"{name}: {more} is there", (ROOT / more).exists())
        elif action == "configure":
            self.configure(name, command)
        elif action == "dry":
            self.expect(name, command.replace("ninja ", "ninja -n ", 1), self.fresh)
        elif re.match(r"\w+=\S|\w+=\$\(", command) or command.startswith("export "):
            self.before += command + "\n"
            self.cases.check(name, True)
        elif not self.build and re.search(
            r"build/|fastnorm_bench|compare|ranks|program\.py", command
        ):
            self.cases.skip(name, "no build folder")
        elif action == "bench":
            self.bench(name, command)
        else:
            self.expect(name, command, self.tree)


def check_reading(cases):
    """That commands are found, joined and told from what they print."""
    text = (
        "```sh\na=$(for x in 1 2; do\n  echo $x\ndone)\nb c \\\n  d   # e\n```\n"
        "```console\n$ f g\nprinted\n$ h\n```\n| `tools/x` | y |\n| `z` | y |\n"
    )
    found = [" ".join(c.split()) for c in commands(text)]
    wanted = ["a=$(for x in 1 2; do echo $x done)", "b c \\ d", "f g", "h", "tools/x"]
    cases.equal("commands of a page", found, wanted)
    cases.check("a command that nobody knows has no rule", rule_of("rm -rf /") is None)


def check_docs_tool(cases, work):
    """Without MkDocs tools/docs says what to run, before it makes anything."""
    bare = work / "bare"
    shutil.rmtree(bare, ignore_errors=True)
    for name in ("tools", "packages"):
        shutil.copytree(ROOT / name, bare / name)
    shutil.copy(ROOT / "meson.build", bare)
    venv = bare / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    result = subprocess.run(
        [venv / "bin" / "python", bare / "tools" / "docs", bare / "site"],
        capture_output=True,
        text=True,
    )
    said = "has no MkDocs; required: run tools/setup, or " in result.stderr
    cases.check("tools/docs without MkDocs says what to run", said, result.stderr[-500:])
    cases.equal("tools/docs without MkDocs: exit code", result.returncode, 2)
    cases.check("tools/docs without MkDocs makes nothing", not (bare / "site").exists())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for what is made")
    parser.add_argument("--build", type=Path, help="a build folder with programs and tests")
    options = parser.parse_args()
    cases = Cases()
    check_reading(cases)
    check_docs_tool(cases, options.work.resolve())
    build = options.build.resolve() if options.build else None
    runner = Runner(cases, options.work.resolve(), build)
    found = 0
    for page in PAGES:
        runner.before = ""
        for command in commands((ROOT / page).read_text()):
            found += 1
            if page in PAGES_ELSEWHERE:
                continue
            try:
                shlex.split(command, comments=True)
            except ValueError:
                cases.check(f"{page}: {command[:60]}: is a command", False)
                continue
            runner.one(page, command)
    for test in PAGES_ELSEWHERE.values():
        cases.check(f"{test} is there", (ROOT / test).exists())
    cases.check("commands were found", found > 80, found)
    cases.finish()


main()
