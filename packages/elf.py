"""What a shared library needs of the system: other libraries, and versions of their symbols."""

import re
import subprocess

# The versions of glibc that tools for wheels have a policy for.
MANYLINUX = [(2, 17), (2, 24), (2, 26), (2, 27), (2, 28), (2, 31), (2, 34), (2, 35)]


def _readelf(path, *options):
    return subprocess.run(
        ["readelf", "--wide", *options, str(path)], capture_output=True, text=True, check=True
    ).stdout


def needed(path):
    """Names of the libraries that the loader looks for."""
    return re.findall(r"\(NEEDED\).*\[(.*)\]", _readelf(path, "--dynamic"))


def newest(path, family):
    """The newest version of symbols of a family, such as GLIBC or GLIBCXX, as numbers; None if
    none."""
    text = _readelf(path, "--version-info")
    section = text[text.find("Version needs section") :] if "Version needs section" in text else ""
    found = re.findall(rf"Name: {family}_(\d[\d.]*)", section)
    return max((tuple(map(int, v.split("."))) for v in found), default=None)


def machine(path):
    """x86_64 or aarch64."""
    text = _readelf(path, "--file-header")
    for word, name in (("X86-64", "x86_64"), ("AArch64", "aarch64")):
        if word in text:
            return name
    raise ValueError(f"{path} is for another processor than x86-64 and AArch64")


def has_cuda(path):
    """Whether kernels for GPUs are in it."""
    return ".nv_fatbin" in _readelf(path, "--section-headers")


def manylinux(path):
    """The platform tag of a wheel with this library: the oldest known glibc that has what it needs.
    One that needs libstdc++ is for this machine alone: others may have an older one."""
    allowed = {
        "libc.so.6",
        "libm.so.6",
        "libgcc_s.so.1",
        "libpthread.so.0",
        "libdl.so.2",
        "librt.so.1",
        "libstdc++.so.6",
        "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1",
        "libfastnorm.so.0",
    }
    others = sorted(set(needed(path)) - allowed)
    if others:
        raise ValueError(
            f"{path} needs {', '.join(others)}; required: none but {', '.join(sorted(allowed))}"
        )
    if "libstdc++.so.6" in needed(path):
        return f"linux_{machine(path)}"
    glibc = (newest(path, "GLIBC") or (2, 17))[:2]
    major, minor = next((known for known in MANYLINUX if known >= glibc), glibc)
    return f"manylinux_{major}_{minor}_{machine(path)}"
