"""The stages of the test run, in their order. Each is a function of the report and the options,
which have the part of a stage that does not run whole."""

import os
import platform
import re
import shlex
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import slices
from build import BUILDS, CACHE, CHECK, ROOT, VENV, Build, run

X86_64 = platform.machine() == "x86_64"
QEMU_AARCH64 = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
JAX_PYTHON = BUILDS / "jax-venv" / "bin" / "python"
STYLE_TEST = ROOT / "tests" / "style" / "style_test.py"


def suite_is(*suites):
    """Tests of one of these suites."""
    return lambda test: any(s.split(":")[-1] in suites for s in test["suite"])


# Tests for which one build is enough: they compile headers, read documents, or run Python alone.
ONCE = ("headers", "cli_docs", "select", "budget", "loops", "check_thinned", "check_parts")
ONCE += ("check_replay", "bench", "compare", "cli_completion", "cli_usage")


def not_once(test):
    """All tests but those of ONCE and the check program's full sweep, which has a reduced one."""
    return test["program"] != CHECK and test["name"] not in ONCE


def is_sweep(test):
    """The check program, and tests of kernels on the SIMT machine: what takes minutes."""
    return test["program"] == CHECK or test["name"].startswith("simt_")


# The library and its tests; the command-line program and the benchmark take longer to compile than
# both.
LEAN = ["-Dtools=false", "-Dbench=false", "-Dsimt=false"]


# Objects of a release, compiled once: for the shared library, the archive, the tests and packages.
RELEASE = ["--buildtype=release", "-Dlibdir=lib", "-Dnccl=true"]
PREFIX = BUILDS / "prefix"
SIMT_SAMPLE = 2  # -Dsimt_sample, where all cases run


def native_build(options):
    """Without CUDA. A part of the sweeps has a part of the SIMT machine's kernels."""
    simt = []
    if options.part_of("sweeps") is not None:
        simt = [
            f"-Dsimt_sample={SIMT_SAMPLE * slices.COUNT}",
            f"-Dsimt_from={SIMT_SAMPLE * options.part_of('sweeps')}",
        ]
    return Build(
        "native",
        "-Dcuda=disabled",
        "-Ddefault_library=both",
        *RELEASE,
        f"-Dprefix={PREFIX}",
        "-Djax=auto",
        f"-Djax_python={JAX_PYTHON}",
        "-Donnxruntime=true",
        "-Dtorch=true",
        *(simt or [f"-Dsimt_sample={SIMT_SAMPLE}", "-Dsimt_from=0"]),
    )


def cuda_build():
    return Build(
        "cuda",
        "-Dcuda=enabled",
        "-Dgpu_archs=90",
        *RELEASE,
        f"-Dprefix={BUILDS / 'prefix-cuda'}",
        "-Dsimt=false",
        native_file=cached_nvcc(),
    )


def cached_nvcc():
    """The native file with ccache before nvcc."""
    text = (VENV / "native.ini").read_text()
    path = BUILDS / "native.ini"
    path.parent.mkdir(exist_ok=True)
    if CACHE:
        text = text.replace("cuda = '", "cuda = ['ccache', '").replace("'\n", "']\n")
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return path


# --- stages ---


def style(report, _):
    """Format, shell scripts, which layer includes which, clean text; lists of kernels and choices,
    and their times; which stages run when; where faults on purpose belong."""
    code, text = run([sys.executable, STYLE_TEST])
    report.add_program("style", code, text)
    code, text = run([sys.executable, ROOT / "tools" / "select.py", "--check"])
    print(text)
    report.add_program("select.py --check", code, text)
    code, text = run([sys.executable, ROOT / "tests" / "testing" / "testing_test.py"])
    report.add_program("slices, budgets", code, text)
    code, text = run([sys.executable, ROOT / "tools" / "mutants", "--check"])
    report.add_program("mutants --check", code, text)
    code, text = run([sys.executable, ROOT / "tools" / "counts.py"])
    print(text)
    report.add_program("counts.py", code, text)
    code, text = run([sys.executable, ROOT / "packages" / "version.py", "--check"])
    report.add_program("version.py --check", code, text)


def docs(report, _):
    """The site: guide pages and references; every public name of C and Python, every link, what the
    search finds, no warning, nothing that a page fetches from elsewhere. Then the commands of the
    pages and their error texts, on the build of an earlier run if there is one. Last what
    CONTRIBUTING.md says of a field, in a copy of the tree."""
    code, text = run([sys.executable, ROOT / "tools" / "docs", BUILDS / "docs"])
    print(text)
    report.add_program("tools/docs", code, text)
    code, text = run([sys.executable, ROOT / "tests" / "pages" / "site_test.py"])
    report.add_program("what tools/docs looks at", code, text)
    type_commands(report, BUILDS / "native")
    code, text = run([sys.executable, ROOT / "tools" / "cost_of_change.py"])
    report.add_program("a field more", code, text)


def type_commands(report, folder):
    """The commands of the pages, with the programs of a build folder that is there."""
    typed = [sys.executable, ROOT / "tests" / "pages" / "commands_test.py"]
    typed += ["--work", BUILDS / f"pages-{folder.name}"]
    if (folder / "bench" / "fastnorm_bench").exists():
        typed += ["--build", folder]
    code, text = run(typed)
    report.add_program(f"commands of pages, {folder.name}", code, text)
    library = folder / "src" / "libfastnorm.so.1"
    if library.exists():
        test = ROOT / "tests" / "pages" / "troubleshooting_test.py"
        code, text = run([sys.executable, test, "--library", library])
        report.add_program(f"error texts of pages, {folder.name}", code, text)


def build(report, options):
    """The library without CUDA, shared and as an archive, and all tests and programs."""
    native_build(options).make()
    report.add_passed()


def native_tests(report, options):
    """unit, api, headers and abi, cli, fuzz corpus: all but the sweeps."""
    native_build(options).run_tests(report, lambda test: not is_sweep(test))


def sweeps(report, options):
    """Every kernel of the CPU and of the SIMT machine against the specification."""
    native_build(options).run_tests(report, is_sweep, env=part_env(options, "sweeps"))


def part_env(options, stage):
    """What makes test programs run the stage's part of their cases, if it does not run whole."""
    part = options.part_of(stage)
    if part is None:
        return {}
    return {
        "FASTNORM_CHECK_PART": f"{part}/{slices.COUNT}",
        "GTEST_TOTAL_SHARDS": str(slices.COUNT),
        "GTEST_SHARD_INDEX": str(part),
    }


def kernels(report, options):
    """Compiles the GPU kernels of sm_90; registers and spills of each."""
    if not X86_64:
        report.add_skipped("kernel report", "CUDA is built on x86-64 only")
        return
    folder, part = cuda_build(), options.part_of("kernels")
    folder.configure()
    archives = {name_of_kernels(archive): archive for archive in folder.archives("src/cuda")}
    names = archives if part is None else slices.balanced(slices.read_sizes(archives))[part]
    archives = [archives[name] for name in names]
    folder.make(*archives)
    for archive in archives:
        name = name_of_kernels(archive)
        report_kernels(report, f"kernel report, {name}", folder.folder, archive)
        # Kernels of the norm are many and share one body, whose order the SIMT machine tests.
        if not re.match(r"norm_sm\w+_(plain|add)$", name):
            report_order(report, f"launch order, {name}", folder.folder / archive)


def name_of_kernels(archive):
    return archive.removeprefix("src/cuda/lib").removesuffix(".a")


def report_order(report, name, binary):
    """Whether kernels wait for the stream's previous one before anything else."""
    command = [sys.executable, ROOT / "tools" / "launch_order.py", binary]
    code, text = run([*command, "--native-file", VENV / "native.ini"])
    print(text)
    report.add_program(name, code, text)


def cuda(report, _):
    """The library with all CUDA kernels for sm_90: its tests without a GPU, the program that it
    installs for, what its kernels cost beside their budget."""
    if not X86_64:
        report.add_skipped("library with CUDA", "CUDA is built on x86-64 only")
        return
    folder = cuda_build()
    folder.make()
    folder.run_tests(report, lambda test: not is_sweep(test) and not_once_or_cuda(test))
    report_kernels(report, "kernel report", folder.folder, "src/libfastnorm.so")
    command = [sys.executable, ROOT / "tools" / "budget.py", folder.folder]
    code, text = run([*command, "--native-file", VENV / "native.ini"])
    print(text)
    report.add_program("budget", code, text)
    if install(report, folder):
        run_consumers(report, folder, BUILDS / "prefix-cuda", "with CUDA", "--nccl")
    type_commands(report, folder.folder)


def not_once_or_cuda(test):
    """One build is enough for some tests, but those of benchmarks pretend a GPU in this one."""
    return test["name"] in ("bench", "compare") or not_once(test)


def architectures(report, _):
    """Registers and spills of a sample of the kernels of sm_100f; PTX is made of a sample."""
    if not X86_64:
        report.add_skipped("kernels of other architectures", "CUDA is built on x86-64 only")
        return
    sampled = ["-Dcuda=enabled", "-Dtests=false", *LEAN]
    sample = Build(
        "sm_100f", "-Dgpu_archs=100f", "-Dgpu_sample=4", *sampled, native_file=cached_nvcc()
    )
    for part in ["bf16_plain", "bf16_add"]:
        objects = f"src/cuda/libnorm_sm100f_{part}.a"
        sample.make(objects)
        report_kernels(report, f"kernel report, sm_100f, {part}", sample.folder, objects)
    sample = Build("ptx", "-Dgpu_archs=ptx", "-Dgpu_sample=8", *sampled, native_file=cached_nvcc())
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


def install(report, folder):
    """Installs a build anew, in the build folders alone; whether it worked."""
    prefix = Path(folder.option("prefix"))
    if not prefix.is_relative_to(BUILDS):
        report.add_failed("meson install", f"prefix is {prefix}; required: a folder of {BUILDS}")
        return False
    shutil.rmtree(prefix, ignore_errors=True)
    code, text = run(["meson", "install", "-C", folder.folder, "--no-rebuild", "--quiet"])
    if code != 0:
        report.add_failed("meson install", text)
    return code == 0


def run_consumers(report, folder, prefix, name, *more):
    """Programs built against a library that is installed at a prefix."""
    script = ROOT / "pkgconfig" / "consumer_test.py"
    pkgconfig = ["--pkgconfig", prefix / "lib" / "pkgconfig", "--prefix", prefix]
    if "--static" in more:
        pkgconfig[1] = folder.folder / "meson-uninstalled"
    work = folder.folder / f"consumers-{name.replace(' ', '-')}"
    folder.run_program(
        report,
        f"consumers, {name}",
        [sys.executable, script, *pkgconfig, *more, "--work", work],
    )


def consumers(report, options):
    """Programs built against the installed library, by pkg-config and by CMake, and against the
    build folder."""
    native = native_build(options)
    if not install(report, native):
        return
    also = ["libfastnorm_onnxruntime.so"]
    # In a run after the first there is JAX at this point.
    plugin = native.folder / "examples" / "jax" / "libfastnorm_xla.so"
    if plugin.exists():
        also.append(plugin.name)
    run_consumers(report, native, PREFIX, "installed", "--nccl", "--archive", "--also", *also)
    script = ROOT / "pkgconfig" / "consumer_test.py"
    uninstalled = native.folder / "meson-uninstalled"
    native.run_program(
        report,
        "consumers, uninstalled",
        [sys.executable, script, "--pkgconfig", uninstalled, "--nccl", "--archive"]
        + ["--work", native.folder / "consumers-uninstalled"],
    )
    native.run_programs(
        report,
        {
            f"consumers, installed, {language}": [
                sys.executable,
                ROOT / "bindings" / language / "test.py",
                "--consumer",
                "--pkgconfig",
                PREFIX / "lib" / "pkgconfig",
                "--library-dir",
                PREFIX / "lib",
                "--work",
                native.folder / f"consumers-{language}",
            ]
            for language in ("go", "rust")
        },
    )


def binding(language):
    """The stage of a language."""

    def stage(report, options):
        native = native_build(options)
        native.run_program(
            report,
            language,
            [
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
                BUILDS / f"bindings-{language}",
            ],
        )

    stage.__doc__ = f"bindings/{language} against the build folder, with its README's program."
    return stage


def generated(report, _):
    """What the bindings have of generated files is generated anew and compared, and the table of
    fields with the headers."""
    swig = ROOT / "bindings" / "swig"
    for name, program in (
        ("generated files", [swig / "generate.py", "--check"]),
        ("parse tree", [swig / "tree_test.py"]),
        ("table of fields", [ROOT / "src" / "schema" / "schema_test.py"]),
    ):
        code, text = run([sys.executable, *program])
        report.add_program(name, code, text)


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


def integrations(report, options):
    """JAX, PyTorch and the models on the CPU, and the bindings in a bundle; installs JAX, not
    PyTorch."""
    native, examples = native_build(options), ROOT / "examples"
    programs = {}
    library = ["--library", native.folder / "src" / "libfastnorm.so.1"]
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
    stable = native.folder / "packages" / "python" / "torch_stable" / "_C.so"
    programs["torch stable"] += ["--stable", stable]
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
    programs["indexer"] = [
        sys.executable,
        examples / "indexer" / "test.py",
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


def engines(report, options):
    """Inference engines of other projects with the library in them, each beside the engine as it
    is. Each test fetches its pinned packages."""
    native = native_build(options)
    native.run_programs(
        report,
        {
            path.parent.name: [
                sys.executable,
                path,
                "--build",
                native.folder,
                "--work",
                BUILDS / "engines" / path.parent.name,
            ]
            for path in sorted((ROOT / "integrations").glob("*/test.py"))
        },
    )


# Tests of the command line in which no CPU kernel runs: hashes by the reference, times and kernels
# of GPUs.
ANY_LEVEL = ("golden", "tune_csv", "tuning")


def isa_levels(report, options):
    """The C API and the command line on every lower instruction set; AVX2 and none of it on
    emulated older CPUs."""
    if not X86_64:
        report.add_skipped("lower instruction sets", "x86-64 only")
        return
    native = native_build(options)
    for isa in ("scalar", "avx2"):
        print(f"FASTNORM_CPU_ISA={isa}")
        native.run_tests(
            report,
            lambda test: suite_is("api", "cli")(test)
            and not_once(test)
            and test["name"] not in ANY_LEVEL,
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


# Without the first ccache compiles anew what has a precompiled header. With the second it does not
# preprocess what it compiles: the compiler's list of headers is enough.
PRECOMPILED = {"CCACHE_SLOPPINESS": "pch_defines,time_macros", "CCACHE_DEPEND": "true"}


def asan_build():
    # Checks that end the program and are calls: the CPU kernels compile three times as fast as with
    # checks that go on, inlined. Stacks of calls need line tables alone.
    cheap = "'-fno-sanitize-recover=all', '-mllvm', '-asan-instrumentation-with-call-threshold=0'"
    # Accesses outside of an object of known size: the address sanitizer sees them, too.
    fewer = "'-fno-sanitize=object-size'"
    return Build(
        "asan",
        "-Dcuda=disabled",
        "-Db_sanitize=address,undefined",
        "-Db_lundef=false",
        "-Doptimization=1",
        f"-Dc_args=['-g1', {fewer}]",
        f"-Dcpp_args=['-g1', {fewer}, {cheap}]",
        "-Dfuzz=true",
        "-Dnccl=true",
        compiler=("clang", "clang++"),
        env=PRECOMPILED,
    )


COMMAND_LINE = ("tools/", "bench/", "tests/cli/")  # folders of its programs and their tests
ASAN_ENV = {
    "FASTNORM_TEST_SHARE": "7",
    "ASAN_OPTIONS": "abort_on_error=0:exitcode=99:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1:exitcode=99",
}


def asan(report, _):
    """Address and undefined-behaviour sanitizers, host code, with a pretended GPU: all tests but
    those of the command line, the check program, and the corpora, which the fuzzers run."""
    folder = asan_build()
    folder.configure()
    programs = (name for name in folder.programs() if not name.startswith(COMMAND_LINE))
    folder.make(*(name for name in programs if name != CHECK and not name.endswith("_replay")))
    folder.run_tests(
        report,
        lambda test: not_once(test) and not suite_is("cli", "bench", "fuzz")(test),
        env=ASAN_ENV,
        slower=15,
    )


def asan_cli(report, _):
    """The same sanitizers, for the tests of the command line."""
    folder = asan_build()
    folder.configure()
    folder.make(*(name for name in folder.programs() if not name.endswith("_replay")))
    folder.run_tests(
        report,
        lambda test: not_once(test) and suite_is("cli", "bench")(test),
        env=ASAN_ENV,
        slower=15,
    )


def tsan(report, _):
    """Thread sanitizer, host code, on the CPU and with a pretended GPU: what has threads."""
    folder = Build(
        "tsan",
        "-Dcuda=disabled",
        "-Db_sanitize=thread",
        "-Db_lundef=false",
        *LEAN,
        compiler=("clang", "clang++"),
        env=PRECOMPILED,
    )
    folder.make("tests/unit/cpu/unit_cpu", "tests/unit/cuda_host_test", "tests/api/api_test", CHECK)
    # TSan wants its own address layout; older runtimes stop where the kernel randomises more than
    # they know.
    setarch = ["setarch", platform.machine(), "-R"]
    wrapper = setarch if run([*setarch, "true"])[0] == 0 else []
    env = {"TSAN_OPTIONS": "halt_on_error=1:exitcode=99", "FASTNORM_TEST_SHARE": "7"}
    folder.run_tests(
        report,
        lambda test: test["name"] in ("unit_cpu", "cuda_host", "api"),
        env=env,
        wrapper=wrapper,
        slower=15,
    )
    # Every kernel; threads meet in the same way in each of its cases.
    folder.run_check(report, "check, every third case", "--every", "3", env=env, wrapper=wrapper)


def fuzz(report, options):
    """libFuzzer over check and plan of each family: the corpus, then a minute of new inputs; beside
    it the check program with ASan, all of it or a part."""
    folder, sources = asan_build(), ROOT / "tests" / "fuzz"
    folder.configure()
    fuzzers = (name for name in folder.programs() if name.startswith("tests/fuzz/"))
    folder.make(*fuzzers, CHECK)
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
            f"-seed={options.fuzz_seed}",
            "-max_len=768",
            "-timeout=10",
            f"-artifact_prefix={found}/",
            "-print_final_stats=1",
        ]
        return (found, *run(command, env={**os.environ, **ASAN_ENV}))

    with ThreadPoolExecutor(1) as pool:
        fuzzing = [(name, pool.submit(fuzz_one, name)) for name in corpora]
        folder.run_check(report, "check, reduced", env=ASAN_ENV | part_env(options, "fuzz"))
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


def with_static_runtime(native):
    """libfastnorm.so.1 of the build's objects with libstdc++ in it, as -Dstatic_cpp_runtime=true
    links it."""
    target = (native.folder / "src" / "libfastnorm.so").resolve().relative_to(native.folder)
    code, text = run(["ninja", "-C", native.folder, "-t", "commands", "-s", target])
    if code != 0:
        raise RuntimeError(f"how {target} is linked\n{text[-4000:]}")
    command = shlex.split(text.splitlines()[-1])
    made = native.folder / "static-runtime" / "libfastnorm.so.1"
    made.parent.mkdir(exist_ok=True)
    command[command.index("-o") + 1] = str(made)
    # The archive before -lstdc++, which adds nothing then.
    command.insert(command.index("-lstdc++"), "-l:libstdc++.a")
    code, text = run(command, cwd=native.folder)
    if code != 0:
        raise RuntimeError(f"the library with a static C++ runtime\n{text[-4000:]}")
    return made


def static(report, options):
    """The archive, and a library with a static C++ runtime, both of the build's objects: consumers,
    the C API, its symbols, and how it is loaded."""
    native, abi = native_build(options), ROOT / "tests" / "abi"
    if install(report, native):
        run_consumers(report, native, PREFIX, "static", "--static")
    library = with_static_runtime(native)
    api, load = (native.folder / "tests" / name for name in ("api/api_test", "abi/load_test"))
    symbols = [sys.executable, abi / "symbols.py", "--include", ROOT / "include"]
    native.run_programs(
        report,
        {
            "api, static C++ runtime": ["env", f"LD_PRELOAD={library}", api],
            "load, static C++ runtime": [load, library],
            "symbols, static C++ runtime": [*symbols, "--library", library, "--static-runtime"],
        },
    )


def packages(report, options):
    """Packages as users get them: each is installed by its own tool in an empty place and runs its
    README's program."""
    native = native_build(options)
    common = ["--library", with_static_runtime(native)]
    common += ["--program", native.folder / "tools" / "fastnorm" / "fastnorm"]
    plugins = [
        native.folder / "examples" / "jax" / "libfastnorm_xla.so",
        native.folder / "integrations" / "onnxruntime" / "libfastnorm_onnxruntime.so",
        native.folder / "packages" / "python" / "torch_stable" / "_C.so",
    ]
    more = {"python": [word for p in plugins if p.exists() for word in ("--plugin", p)]}
    native.run_programs(
        report,
        {
            path.stem.removesuffix("_test"): [
                sys.executable,
                path,
                *common,
                *more.get(path.stem.removesuffix("_test"), []),
                "--work",
                BUILDS / "packages" / path.stem,
            ]
            for path in sorted((ROOT / "packages" / "test").glob("*_test.py"))
        },
    )


def neon_build():
    return Build(
        "neon", "-Dcuda=disabled", *LEAN, cross_file=ROOT / "tools" / "testing" / "aarch64.ini"
    )


def neon(report, _):
    """AArch64: cross-built and emulated; natively the stages before have tested it."""
    if not X86_64:
        report.add_skipped("cross build for AArch64", "this is AArch64")
        return
    folder = neon_build()
    # The check program is a stage of its own.
    folder.configure()
    folder.make(*(t for t in folder.programs() if t != CHECK))
    folder.run_tests(report, not_once, slower=20)


def neon_sweep(report, _):
    """Every kernel of AArch64 against the specification, emulated."""
    if not X86_64:
        report.add_skipped("kernels of AArch64", "this is AArch64")
        return
    folder = neon_build()
    folder.make(CHECK)
    folder.run_check(report, "check, reduced", wrapper=QEMU_AARCH64)


# (function, stages it builds on)
STAGES = {
    "style": (style, []),
    "docs": (docs, []),
    "build": (build, []),
    "tests": (native_tests, ["build"]),
    "sweeps": (sweeps, ["build"]),
    "consumers": (consumers, ["build"]),
    "go": (binding("go"), ["build"]),
    "java": (binding("java"), ["build"]),
    "rust": (binding("rust"), ["build"]),
    "integrations": (integrations, ["build"]),
    "engines": (engines, ["build"]),
    "isa": (isa_levels, ["build"]),
    "static": (static, ["build"]),
    "packages": (packages, ["build"]),
    "generated": (generated, []),
    "kernels": (kernels, []),
    "architectures": (architectures, []),
    "cuda": (cuda, []),
    "asan": (asan, []),
    "asan-cli": (asan_cli, []),
    "fuzz": (fuzz, []),
    "neon": (neon, []),
    "neon-sweep": (neon_sweep, []),
    "tsan": (tsan, []),
}
