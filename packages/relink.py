"""Links libfastnorm.so.1, and its plugins for JAX, ONNX Runtime and PyTorch, anew from the objects
of a build, for systems with an old glibc.

The objects are those of GCC. The linker of Zig's wheel knows the symbols of every glibc; libstdc++
is linked in. libgcc_s stays shared: two unwinders in one process abort where an exception meets
both. """

import os
import re
import subprocess
from pathlib import Path

import elf

ROOT = Path(__file__).resolve().parents[1]
GLIBC = (2, 28)
# (Ninja's name of a plugin, what it exports, whether it calls the library by itself)
PLUGINS = (
    ("examples/jax/libfastnorm_xla.so", "examples/jax/fastnorm_xla.map", True),
    (
        "integrations/onnxruntime/libfastnorm_onnxruntime.so",
        "integrations/onnxruntime/fastnorm_onnxruntime.map",
        True,
    ),
    ("packages/python/torch_stable/_C.so", "packages/python/torch_stable/stable.map", False),
)


def ninja(build, *arguments):
    tool = ROOT / ".venv" / "bin" / "ninja"
    return subprocess.run(
        [tool if tool.exists() else "ninja", "-C", build, *arguments],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def shared_library(build):
    """Ninja's name of the shared library of a build folder."""
    target = next(
        (
            line.split(":")[0]
            for line in ninja(build, "-t", "targets", "all").splitlines()
            if re.fullmatch(r"src/libfastnorm\.so\.[\d.]+: \w+", line)
        ),
        None,
    )
    if target is None:
        raise SystemExit(f"{build} does not build libfastnorm.so; required: a build folder of it")
    return target


def objects(build, target=None, complete=True):
    """The objects that a build folder links a library from, its shared library by default, and the
    CUDA runtime's archive. complete: all of them must be there."""
    target = target or shared_library(build)
    listed = ninja(build, "-t", "query", target).split("outputs:")[0]
    found = [build / name for name in re.findall(r"^ +(\S+\.o)$", listed, re.M)]
    missing = [str(path) for path in found if not path.exists()] if complete else []
    if not found or missing:
        raise SystemExit(f"{build} lacks {missing[:3]}; required: a complete build")
    runtime = re.search(r"\S+/libcudart_static\.a", (build / "build.ninja").read_text())
    return found, [Path(runtime[0])] if runtime else []


def compiler_file(compiler, name):
    text = subprocess.run(
        [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout
    path = Path(text.strip())
    if not path.is_absolute():
        raise SystemExit(f"{compiler} has no {name}")
    return path.resolve()


def relink(build, out, python, cache):
    """The library. python: one with the package ziglang. Ends the program where the result needs a
    newer glibc."""
    parts, runtime = objects(build)
    more = [
        *runtime,
        f"-Wl,--version-script,{ROOT / 'src' / 'fastnorm.map'}",
        "-Wl,-z,nodelete",
        "-Wl,-soname,libfastnorm.so.1",
        *(["-ldl", "-lrt"] if runtime else []),
    ]
    link(parts, more, out, python, cache)


def relink_plugins(build, library, python, cache):
    """The plugins, of a folder that is configured for them and need not be built. They are put
    beside the library, where they find it."""
    for target, exported, calls in PLUGINS:
        parts, _ = objects(build, target, complete=False)
        ninja(build, *(path.relative_to(build) for path in parts))
        more = [f"-Wl,--version-script,{ROOT / exported}", "-ldl"]
        more += ["-Wl,-rpath,$ORIGIN", library] if calls else []
        link(parts, more, library.with_name(Path(target).name), python, cache)


def plugins_of(library):
    """Where relink_plugins() puts them."""
    return [library.with_name(Path(target).name) for target, *_ in PLUGINS]


def link(parts, more, out, python, cache):
    machine = elf.machine(parts[0])
    compiler = "g++" if machine == os.uname().machine else f"{machine}-linux-gnu-g++"
    out.parent.mkdir(parents=True, exist_ok=True)
    command = [
        python,
        "-m",
        "ziglang",
        "cc",
        "-target",
        f"{machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}",
        "-shared",
        "-s",
        "-o",
        out,
        *parts,
        "-Wl,--gc-sections",  # what libstdc++ has and nobody calls
        *more,
        compiler_file(compiler, "libstdc++.a"),
        compiler_file(compiler, "libgcc_s.so.1"),
        "-lm",
        "-lpthread",
    ]
    result = subprocess.run(
        [str(c) for c in command],
        capture_output=True,
        text=True,
        env={**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(cache)},
    )
    if result.returncode != 0:
        raise SystemExit(
            f"the link against glibc {GLIBC[0]}.{GLIBC[1]} failed\n{result.stderr[-4000:]}"
        )
    check(out)


def check(library):
    """Refuses what does not load on the oldest system."""
    glibc = elf.newest(library, "GLIBC")
    if glibc is None or glibc > GLIBC:
        raise SystemExit(f"{library} needs glibc {glibc}; required: {GLIBC} or older")
    if elf.newest(library, "GLIBCXX") is not None:
        raise SystemExit(f"{library} needs libstdc++; required: the one that is linked in")
