"""The stages of the test run, in their order. Each is a function of the report and the options."""

import os
import platform
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

from build import BUILDS, CHECK, ROOT, VENV, Build, run

X86_64 = platform.machine() == "x86_64"
QEMU_AARCH64 = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
JAX_PYTHON = BUILDS / "jax-venv" / "bin" / "python"
STYLE_TEST = ROOT / "tests" / "style" / "style_test.py"


def suite_is(*suites):
    """Tests of one of these suites."""
    return lambda test: any(s.split(":")[-1] in suites for s in test["suite"])


# Tests for which one build is enough: they compile headers, read documents, or run Python alone.
ONCE = ("headers", "cli_docs", "select", "budget", "check_thinned", "bench", "compare")


def not_once(test):
    """All tests but those of ONCE and the check program's full sweep, which has a reduced one."""
    return test["program"] != CHECK and test["name"] not in ONCE


# The library and its tests; the command-line program and the benchmark take longer to compile than
# both.
LEAN = ["-Dtools=false", "-Dbench=false", "-Dsimt=false"]


def native_build():
    cuda = "enabled" if X86_64 else "disabled"
    return Build(
        "native",
        f"-Dcuda={cuda}",
        "-Dgpu_archs=90",
        f"-Dprefix={ROOT / 'build-test' / 'prefix'}",
        "-Dlibdir=lib",
        "-Djax=auto",
        f"-Djax_python={JAX_PYTHON}",
        "-Dnccl=true",
    )


# --- stages ---


def style(report, _):
    """Format, shell scripts, which layer includes which, clean text; lists of kernels and choices,
    and their times."""
    code, text = run([sys.executable, STYLE_TEST])
    report.add_program("style", code, text)
    code, text = run([sys.executable, ROOT / "tools" / "select.py", "--check"])
    print(text)
    report.add_program("select.py --check", code, text)
    code, text = run([sys.executable, ROOT / "packages" / "version.py", "--check"])
    report.add_program("version.py --check", code, text)


def docs(report, _):
    """The site: guide pages and references; every public name, every link, no warning, nothing that
    a page fetches from elsewhere. Then the commands of the pages, on the build of an earlier run if
    there is one."""
    code, text = run([sys.executable, ROOT / "tools" / "docs", BUILDS / "docs"])
    print(text)
    report.add_program("tools/docs", code, text)
    typed = [sys.executable, ROOT / "tests" / "pages" / "commands_test.py"]
    typed += ["--work", BUILDS / "pages"]
    native = BUILDS / "native"
    if (native / "bench" / "fastnorm_bench").exists():
        typed += ["--build", native]
    code, text = run(typed)
    report.add_program("commands of pages", code, text)


def build(report, _):
    """The library with all CUDA kernels for sm_90, and all tests and programs. kernels() samples
    PTX."""
    native_build().make()
    report.add_passed()


def native_tests(report, _):
    """unit, check, api, headers and abi, cli, fuzz corpus."""
    native_build().run_tests(report)


def kernels(report, _):
    """Registers and spills of every GPU kernel of the build, and of a sample of sm_100f. PTX is
    made of a sample. What the kernels of the build cost, beside their budget."""
    if not X86_64:
        report.add_skipped("kernel report", "CUDA is built on x86-64 only")
        return
    report_kernels(report, "kernel report", native_build().folder, "src/libfastnorm.so")
    code, text = run(
        [
            sys.executable,
            ROOT / "tools" / "budget.py",
            native_build().folder,
            "--native-file",
            VENV / "native.ini",
        ]
    )
    print(text)
    report.add_program("budget", code, text)
    # A sample of the kernels of another architecture, of one dtype.
    sample = Build(
        "sm_100f", "-Dcuda=enabled", "-Dgpu_archs=100f", "-Dgpu_sample=4", "-Dtests=false", *LEAN
    )
    for part in ["bf16_plain", "bf16_add"]:
        objects = f"src/cuda/libnorm_sm100f_{part}.a"
        sample.make(objects)
        report_kernels(report, f"kernel report, sm_100f, {part}", sample.folder, objects)
    sample = Build(
        "ptx", "-Dcuda=enabled", "-Dgpu_archs=ptx", "-Dgpu_sample=8", "-Dtests=false", *LEAN
    )
    sample.make("src/cuda/libnorm_ptx_bf16_plain.a")  # ends the stage where it fails
    report.add_passed()


def report_kernels(report, name, folder, binary, *options):
    table = folder / (name.replace(",", "").replace(" ", "_") + ".txt")
    code, text = run(
        [
            sys.executable,
            ROOT / "tools" / "kernel_report.py",
            folder / binary,
            "--output",
            table,
            "--native-file",
            VENV / "native.ini",
            *options,
        ]
    )
    print(text)
    report.add_program(name, code, text)


def consumers(report, _):
    """Programs built against the installed library, by pkg-config and by CMake, and against the
    build folder."""
    native = native_build()
    prefix = ROOT / "build-test" / "prefix"
    shutil.rmtree(prefix, ignore_errors=True)
    code, text = run(["meson", "install", "-C", native.folder, "--no-rebuild", "--quiet"])
    if code != 0:
        report.add_failed("meson install", text)
        return
    script = ROOT / "pkgconfig" / "consumer_test.py"
    # In a run after the first there is JAX at this point.
    plugin = native.folder / "examples" / "jax" / "libfastnorm_xla.so"
    also = ["--nccl", *(["--also", plugin.name] if plugin.exists() else [])]
    for name, options in (
        ("installed", ["--pkgconfig", prefix / "lib" / "pkgconfig", "--prefix", prefix, *also]),
        ("uninstalled", ["--pkgconfig", native.folder / "meson-uninstalled", "--nccl"]),
    ):
        native.run_program(
            report,
            f"consumers, {name}",
            [sys.executable, script, *options, "--work", native.folder / f"consumers-{name}"],
        )
    native.run_programs(
        report,
        {
            f"consumers, installed, {language}": [
                sys.executable,
                ROOT / "bindings" / language / "test.py",
                "--consumer",
                "--pkgconfig",
                prefix / "lib" / "pkgconfig",
                "--library-dir",
                prefix / "lib",
                "--work",
                native.folder / f"consumers-{language}",
            ]
            for language in ("go", "rust")
        },
    )


def bindings(report, _):
    """Each language against the build folder; what is generated is generated anew and compared."""
    native, swig = native_build(), ROOT / "bindings" / "swig"
    languages = sorted(path.parent.name for path in (ROOT / "bindings").glob("*/test.py"))
    programs = {
        language: [
            sys.executable,
            ROOT / "bindings" / language / "test.py",
            "--pkgconfig",
            native.folder / "meson-uninstalled",
            "--library-dir",
            native.folder / "src",
            "--nccl-dir",
            native.folder / "src" / "nccl",
            "--fake-nccl",
            native.folder / "tests" / "nccl" / "libnccl.so.2",
            "--work",
            ROOT / "build-test" / f"bindings-{language}",
        ]
        for language in languages
    }
    programs["generated files"] = [sys.executable, swig / "generate.py", "--check"]
    programs["parse tree"] = [sys.executable, swig / "tree_test.py"]
    native.run_programs(report, programs)


def install_jax():
    """Makes the environment of JAX_PYTHON, unless it was made from the same list; the text of what
    failed, or ''."""
    folder, wheels = JAX_PYTHON.parents[1], ROOT / "examples" / "jax" / "requirements.txt"
    stamp = folder / "installed.txt"
    if (
        stamp.exists()
        and stamp.read_text() == wheels.read_text()
        and run([JAX_PYTHON, "-c", "import jax"])[0] == 0
    ):
        return ""
    shutil.rmtree(folder, ignore_errors=True)
    for command in (
        [sys.executable, "-m", "venv", folder],
        [
            JAX_PYTHON,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "-r",
            wheels,
        ],
    ):
        code, text = run(command)
        if code != 0:
            return text
    shutil.copy(wheels, stamp)
    return ""


def torch_python():
    """A Python with PyTorch: the one of FASTNORM_TORCH_PYTHON, or the one that .venv was made
    with."""
    named = os.environ.get("FASTNORM_TORCH_PYTHON")
    return named or os.path.join(sys.base_prefix, "bin", "python3")


def operator_tests(framework):
    """(name, file) of each: test.py, and test_FAMILY.py."""
    paths = sorted((ROOT / "examples" / framework).glob("test*.py"))
    return [(path.stem.replace("test", framework, 1).replace("_", " ", 1), path) for path in paths]


def integrations(report, _):
    """JAX, PyTorch and the models on the CPU, and the bindings in a bundle; installs JAX, not
    PyTorch."""
    native, examples = native_build(), ROOT / "examples"
    programs = {}
    library = ["--library", native.folder / "src" / "libfastnorm.so.0"]
    failure = install_jax()
    if failure:
        report.add_failed("examples/jax/requirements.txt could not be installed", failure)
    else:
        native.make()  # once more, with JAX's headers
        plugin = native.folder / "examples" / "jax" / "libfastnorm_xla.so"
        for name, path in operator_tests("jax"):
            programs[name] = [JAX_PYTHON, path, *library, "--plugin", plugin]
    programs["bundle"] = [
        sys.executable,
        ROOT / "tests" / "gpu" / "bundle_test.py",
        "--build",
        native.folder,
        "--work",
        ROOT / "build-test" / "bundle",
    ]
    for name, path in operator_tests("torch"):
        programs[name] = [torch_python(), path, *library]
    programs["smollm2"] = [
        sys.executable,
        examples / "smollm2" / "test.py",
        "--build",
        native.folder,
    ]
    programs["mla_decode"] = [
        sys.executable,
        examples / "mla_decode" / "test.py",
        "--build",
        native.folder,
    ]
    programs["norm_heads"] = [
        sys.executable,
        examples / "norm_heads" / "test.py",
        "--build",
        native.folder,
    ]
    programs["norm_stages"] = [
        sys.executable,
        examples / "norm_stages" / "test.py",
        "--build",
        native.folder,
    ]
    programs["train_norms"] = [
        torch_python(),
        examples / "train_norms" / "test.py",
        "--build",
        native.folder,
    ]
    native.run_programs(
        report,
        programs,
        env={"CARGO_TARGET_DIR": str(ROOT / "build-test" / "bindings-rust" / "target")},
    )


def isa_levels(report, _):
    """The C API and the command line on every lower instruction set; AVX2 and none of it on
    emulated older CPUs."""
    if not X86_64:
        report.add_skipped("lower instruction sets", "x86-64 only")
        return
    native = native_build()
    for isa in ("scalar", "avx2"):
        print(f"FASTNORM_CPU_ISA={isa}")
        native.run_tests(
            report,
            lambda test: suite_is("api", "cli")(test) and not_once(test),
            env={"FASTNORM_CPU_ISA": isa},
        )
    # Code without -m flags runs on processors without AVX.
    native.run_check(
        report,
        "check on an emulated Nehalem",
        "--isa",
        "scalar",
        "--filter",
        "plain rms",
        wrapper=["qemu-x86_64", "-cpu", "Nehalem"],
    )
    native.run_check(
        report,
        "check on an emulated Haswell",
        "--isa",
        "avx2",
        "--filter",
        "plain rms",
        env={"FASTNORM_EMULATED_AVX": "1"},
        wrapper=["qemu-x86_64", "-cpu", "Haswell"],
    )


def asan_build():
    # Checks that end the program and are calls: the CPU kernels compile three times as fast as with
    # checks that go on, inlined.
    cheap = "['-fno-sanitize-recover=all', '-mllvm', '-asan-instrumentation-with-call-threshold=0']"
    return Build(
        "asan",
        "-Dcuda=disabled",
        "-Db_sanitize=address,undefined",
        "-Db_lundef=false",
        f"-Dcpp_args={cheap}",
        "-Dfuzz=true",
        "-Dnccl=true",
        compiler=("clang", "clang++"),
    )


ASAN_ENV = {
    "ASAN_OPTIONS": "abort_on_error=0:exitcode=99:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1:exitcode=99",
}


def asan(report, _):
    """Address and undefined-behaviour sanitizers, host code, with a pretended GPU: all tests but
    the check program."""
    folder = asan_build()
    folder.make()
    folder.run_tests(report, not_once, env=ASAN_ENV, slower=15)


def tsan(report, _):
    """Thread sanitizer, host code, on the CPU and with a pretended GPU: what has threads."""
    folder = Build(
        "tsan",
        "-Dcuda=disabled",
        "-Db_sanitize=thread",
        "-Db_lundef=false",
        *LEAN,
        compiler=("clang", "clang++"),
    )
    folder.make("tests/unit/cpu/unit_cpu", "tests/unit/cuda_host_test", "tests/api/api_test", CHECK)
    # TSan wants its own address layout; older runtimes stop where the kernel randomises more than
    # they know.
    setarch = ["setarch", platform.machine(), "-R"]
    wrapper = setarch if run([*setarch, "true"])[0] == 0 else []
    env = {"TSAN_OPTIONS": "halt_on_error=1:exitcode=99"}
    folder.run_tests(
        report,
        lambda test: test["name"] in ("unit_cpu", "cuda_host", "api"),
        env=env,
        wrapper=wrapper,
        slower=15,
    )
    folder.run_check(report, "check, reduced", env=env, wrapper=wrapper)


def fuzz(report, options):
    """libFuzzer over check and plan of each family: the corpus, then a minute of new inputs; beside
    it the check program with ASan."""
    folder = asan_build()
    folder.make()
    sources = ROOT / "tests" / "fuzz"
    families = sorted(path.parent.name for path in sources.glob("*/corpus"))
    corpora = {
        "norm_fuzz": sources / "corpus",
        **{f"{family}_fuzz": sources / family / "corpus" for family in families},
    }
    seconds = max(1, options.fuzz_seconds // len(corpora))

    def fuzz_one(name):
        found = folder.folder / f"{name}-found"
        shutil.rmtree(found, ignore_errors=True)
        found.mkdir()
        command = [
            folder.folder / "tests" / "fuzz" / name,
            found,
            corpora[name],
            f"-max_total_time={seconds}",
            "-max_len=768",
            "-timeout=10",
            f"-artifact_prefix={found}/",
            "-print_final_stats=1",
        ]
        return (found, *run(command, env={**os.environ, **ASAN_ENV}))

    with ThreadPoolExecutor(1) as pool:
        fuzzing = [(name, pool.submit(fuzz_one, name)) for name in corpora]
        folder.run_check(report, "check, reduced", env=ASAN_ENV)
    for name, result in fuzzing:
        found, code, text = result.result()
        executed = [line for line in text.splitlines() if "number_of_executed_units" in line]
        print("\n".join(f"{name} {line}" for line in executed))
        if code == 0 and executed:
            report.add_passed()
        else:
            # Without its lines of progress, thousands: what it found, and the input in base64,
            # stand among them.
            text = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
            report.add_failed(
                f"{name}, exit code {code}; the input is in {found.relative_to(ROOT)}", text
            )


def cpu_release():
    return Build(
        "cpu-gcc",
        "-Dcuda=disabled",
        "--buildtype=release",
        "-Dstatic_cpp_runtime=true",
        "-Ddefault_library=both",
        f"-Dprefix={BUILDS / 'prefix-cpu'}",
        "-Dlibdir=lib",
        *LEAN,
        compiler=("gcc", "g++"),
    )


def cpu_only(report, _):
    """A release without CUDA, with a static C++ runtime and an archive: the C API, its symbols and
    the check program."""
    prefix, folder = BUILDS / "prefix-cpu", cpu_release()
    folder.make(
        "src/libfastnorm.a",
        "tests/api/api_test",
        "tests/api/alloc_test",
        "tests/abi/load_test",
        CHECK,
    )
    folder.run_tests(report, lambda test: test["name"] in ("api", "alloc", "load", "symbols"))
    shutil.rmtree(prefix, ignore_errors=True)
    code, text = run(["meson", "install", "-C", folder.folder, "--no-rebuild", "--quiet"])
    if code != 0:
        report.add_failed("meson install", text)
        return
    folder.run_program(
        report,
        "consumers, static",
        [
            sys.executable,
            ROOT / "pkgconfig" / "consumer_test.py",
            "--static",
            "--pkgconfig",
            folder.folder / "meson-uninstalled",
            "--prefix",
            prefix,
            "--work",
            folder.folder / "consumers-static",
        ],
    )
    folder.run_check(report, "check, reduced")


def packages(report, _):
    """Packages as users get them: each is installed by its own tool in an empty place and runs its
    README's program."""
    folder = cpu_release()
    folder.make("tests/api/api_test")  # and the library that it links
    tests = ROOT / "packages" / "test"
    common = ["--library", folder.folder / "src" / "libfastnorm.so.0"]
    # The program takes longer to compile than the library; a build that has it may be there.
    program = BUILDS / "native" / "tools" / "fastnorm" / "fastnorm"
    if program.exists():
        common += ["--program", program]
    folder.run_programs(
        report,
        {
            path.stem.removesuffix("_test"): [
                sys.executable,
                path,
                *common,
                "--work",
                BUILDS / "packages" / path.stem,
            ]
            for path in sorted(tests.glob("*_test.py"))
        },
    )


def neon(report, _):
    """AArch64: cross-built and emulated; natively the stages before have tested it."""
    if not X86_64:
        report.add_skipped("cross build for AArch64", "this is AArch64")
        return
    folder = Build(
        "neon", "-Dcuda=disabled", *LEAN, cross_file=ROOT / "tools" / "testing" / "aarch64.ini"
    )
    folder.make()
    folder.run_tests(report, not_once, slower=20)
    folder.run_check(report, "check, reduced", wrapper=QEMU_AARCH64)


# (function, stages it builds on)
STAGES = {
    "style": (style, []),
    "docs": (docs, []),
    "build": (build, []),
    "tests": (native_tests, ["build"]),
    "kernels": (kernels, ["build"]),
    "consumers": (consumers, ["build"]),
    "bindings": (bindings, ["build"]),
    "integrations": (integrations, ["build"]),
    "isa": (isa_levels, ["build"]),
    "cpu-only": (cpu_only, []),
    "packages": (packages, []),
    "neon": (neon, []),
    "asan": (asan, []),
    "tsan": (tsan, []),
    "fuzz": (fuzz, []),
}
