"""One Meson build folder: configure, compile, run its tests into the report."""

import json
import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILDS = ROOT / "build-test"
VENV = ROOT / ".venv"
CHECK = "tests/check/fastnorm_check"
JOBS = len(os.sched_getaffinity(0))
# Meson finds the cache by itself, except where the environment or a file names a compiler.
CACHE = "ccache " if shutil.which("ccache") else ""


class BuildFailed(Exception):
    pass


def run(command, **options):
    """Runs a command; its exit code and all it wrote."""
    result = subprocess.run(
        [str(c) for c in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        **options,
    )
    return result.returncode, result.stdout


class Build:
    def __init__(
        self, name, *options, compiler=None, cross_file=None, native_file=None, env=None
    ):
        """options: -D and others of meson setup; compiler: (C, C++) in place of the default."""
        self.folder = BUILDS / name
        native_file = native_file or VENV / "native.ini"
        self.options = ["--native-file", native_file, "-Dwerror=true", *options]
        if cross_file:
            self.options += ["--cross-file", cross_file]
        self.configured = False
        # What was compiled in one checkout serves another.
        self.env = {"CCACHE_BASEDIR": str(ROOT), **os.environ, **(env or {})}
        if compiler:
            self.env["CC"], self.env["CXX"] = (CACHE + name for name in compiler)

    def option(self, name):
        """The value of one of its options."""
        given = [o for o in map(str, self.options) if o.startswith(f"-D{name}=")]
        return given[-1].partition("=")[2]

    def configure(self):
        """Once; anew where what is there cannot be reconfigured."""
        if self.configured:
            return
        code, text = 1, ""
        if (self.folder / "build.ninja").exists():
            code, text = self._run("meson", "setup", "--reconfigure", self.folder, *self.options)
        if code != 0:
            shutil.rmtree(self.folder, ignore_errors=True)
            code, text = self._run("meson", "setup", self.folder, *self.options)
        if code != 0:
            raise BuildFailed(f"meson setup {self.folder.name}\n{text[-4000:]}")
        self.configured = True

    def make(self, *targets):
        """Configures, and compiles these targets, or everything."""
        self.configure()
        code, text = self._run("ninja", "-C", self.folder, "-j", JOBS, *targets)
        if code != 0:
            raise BuildFailed(f"ninja -C {self.folder.name}\n{text[-8000:]}")

    def targets(self, *types):
        """Those of these types, as Meson knows them, and their names for make()."""
        _, text = run(["meson", "introspect", "--targets", self.folder], env=self.env)
        found = [target for target in json.loads(text) if target["type"] in types]
        return [(t, str(Path(t["filename"][0]).relative_to(self.folder))) for t in found]

    def archives(self, folder):
        """The static libraries that a folder's meson.build defines."""
        wanted = str(ROOT / folder / "meson.build")
        return sorted(n for t, n in self.targets("static library") if t["defined_in"] == wanted)

    def programs(self):
        """The programs and shared libraries that are built by default."""
        found = self.targets("executable", "shared library", "custom")
        return sorted(name for target, name in found if target["build_by_default"])

    def tests(self):
        """All tests of the folder, as Meson knows them; 'program' is what runs, relative to the
        folder."""
        _, text = run(["meson", "introspect", "--tests", self.folder], env=self.env)
        found = json.loads(text)
        for test in found:
            path = Path(test["cmd"][0])
            inside = path.is_absolute() and path.is_relative_to(self.folder)
            test["program"] = str(path.relative_to(self.folder)) if inside else str(path)
        return found

    def run_tests(self, report, keep=lambda test: True, env=None, wrapper=None, slower=4):
        """Runs the tests that `keep` wants; slower multiplies their time limits."""
        tests = [t for t in self.tests() if keep(t)]
        if not tests:
            report.add_failed(f"no test to run in {self.folder.name}")
            return
        names = [t["name"] for t in tests]
        command = ["meson", "test", "-C", self.folder, "--no-rebuild", "--num-processes", JOBS,
                   "--timeout-multiplier", slower, *names]
        if wrapper:
            command += ["--wrapper", " ".join(wrapper)]
        log = self.folder / "meson-logs" / "testlog.json"
        log.unlink(missing_ok=True)
        code, text = run(command, env={**self.env, **(env or {})})
        # With a wrapper Meson names the log after it.
        logs = (
            [log]
            if log.exists()
            else sorted(log.parent.glob("testlog-*.json"), key=os.path.getmtime)[-1:]
        )
        results = [json.loads(line) for path in logs for line in path.read_text().splitlines()]
        if len(results) != len(tests):
            report.add_failed(
                f"meson test ran {len(results)} of {len(tests)} tests, exit code {code}", text
            )
        for result in results:
            output = result.get("stdout") or ""
            stderr = result.get("stderr") or ""
            whole = f"{stderr}\n{output}" if stderr else output
            name = result["name"].split(":")[-1]
            print(f"  {result['result']:8} {result['duration']:6.1f} s  {name}", flush=True)
            report.add_program(name, result["returncode"], whole, result["result"] == "TIMEOUT")

    def run_program(self, report, name, command, env=None, timeout=900):
        """Runs one test program outside Meson's list."""
        self._add_program(report, name, *self._timed(command, env, timeout))

    def run_programs(self, report, programs, env=None, timeout=900):
        """Runs several, as many at a time as there are processors: {name: command}, reported in
        this order."""
        with ThreadPoolExecutor(JOBS) as pool:
            running = {
                name: pool.submit(self._timed, command, env, timeout)
                for name, command in programs.items()
            }
            for name, result in running.items():
                self._add_program(report, name, *result.result())

    def _timed(self, command, env, timeout):
        """Exit code, output, whether it ran out of time, and seconds."""
        start = time.monotonic()
        try:
            code, text = run(
                command, env={**self.env, **(env or {})}, timeout=timeout, cwd=self.folder
            )
            late = False
        except subprocess.TimeoutExpired as stop:
            code, text, late = -1, (stop.stdout or b"").decode(errors="replace"), True
        return code, text, late, time.monotonic() - start

    def _add_program(self, report, name, code, text, late, seconds):
        ok = report.add_program(name, code, text, late)
        print(f"  {'OK' if ok else 'FAIL':8} {seconds:6.1f} s  {name}", flush=True)

    def run_check(self, report, name, *options, env=None, wrapper=()):
        """Runs the program that tests every kernel of every table, on the CPU and on its reduced
        sweep."""
        program = self.folder / CHECK
        if not program.exists():
            report.add_failed(f"{self.folder.name}: {CHECK} is not built")
            return
        self.run_program(
            report, name, [*wrapper, program, "--device", "cpu", "--reduced", *options], env=env
        )

    def _run(self, *command):
        return run(command, env=self.env, cwd=ROOT)
