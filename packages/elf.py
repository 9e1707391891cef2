"""What a shared library needs of the system: other libraries, and versions of their symbols."""

import re
import struct
import subprocess

# The versions of glibc that tools for wheels have a policy for.
MANYLINUX = [(2, 17), (2, 24), (2, 26), (2, 27), (2, 28), (2, 31), (2, 34), (2, 35)]

_PT_DYNAMIC = 2
_RUNPATHS = (15, 29)  # tags of RPATH and RUNPATH


def _readelf(path, *options):
    return subprocess.run(
        ["readelf", "--wide", *options, str(path)], capture_output=True, text=True, check=True
    ).stdout


def needed(path):
    """Names of the libraries that the loader looks for."""
    return re.findall(r"\(NEEDED\).*\[(.*)\]", _readelf(path, "--dynamic"))


def runpath(path):
    """Folders that the file tells the loader to search, RPATH and RUNPATH."""
    return re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", _readelf(path, "--dynamic"))


def drop_runpath(path):
    """Takes RPATH and RUNPATH out of the dynamic section of a 64-bit file, in its place."""
    data = bytearray(path.read_bytes())
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path} is not ELF of 64 bits and little endian")
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    for header in range(table, table + size * count, size):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", data, header)
        if kind != _PT_DYNAMIC:
            continue
        entries = list(struct.iter_unpack("<QQ", data[offset : offset + length]))
        kept = [e for e in entries if e[0] not in _RUNPATHS]
        kept += [(0, 0)] * (len(entries) - len(kept))
        data[offset : offset + length] = b"".join(struct.pack("<QQ", *e) for e in kept)
    path.write_bytes(data)


def is_elf(path):
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


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


def manylinux(*paths):
    """The platform tag of a wheel with these libraries: the oldest known glibc that has what they
    need. One that needs libstdc++ is for this machine alone: others may have an older one."""
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
        "libfastnorm.so.1",
    }
    for path in paths:
        others = sorted(set(needed(path)) - allowed)
        if others:
            raise ValueError(
                f"{path} needs {', '.join(others)}; required: none but "
                f"{', '.join(sorted(allowed))}"
            )
    if any("libstdc++.so.6" in needed(path) for path in paths):
        return f"linux_{machine(paths[0])}"
    glibc = max((newest(path, "GLIBC") or (2, 17))[:2] for path in paths)
    major, minor = next((known for known in MANYLINUX if known >= glibc), glibc)
    return f"manylinux_{major}_{minor}_{machine(paths[0])}"
