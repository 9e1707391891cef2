"""The raw layer of the Java binding: what SWIG makes of java.i, and the constants of the words."""

import re
import tempfile
from pathlib import Path

import words
from tree import Enum, Opaque, Pointer, TreeError, base_name, is_tensor, run_swig

PACKAGE = "dev.fastnorm"
CLASSES = Path("java/src/main/generated/dev/fastnorm")
NATIVE = Path("java/src/main/native")
# Functions that java.i wraps by hand.
BY_HAND = {
    "fastnorm_context_create",
    "fastnorm_device_count",
    "fastnorm_device_describe",
    "fastnorm_profile_decode",
    "fastnorm_peer_buffer_bytes",
    "fastnorm_peer_create",
    "fastnorm_peer_create_from_pointers",
    "fastnorm_peer_status",
}
SCALARS = {"int32_t", "uint32_t", "int64_t", "uint64_t", "size_t", "float", "double"}


def is_filled(struct):
    """Whether the library fills the struct in: an object of Java. All others are described in
    words."""
    return struct.name.endswith("info")


def has_rule(tree, type):
    """Whether java.i has a rule for a parameter or a result of this type."""
    name = base_name(type)
    if not isinstance(type, Pointer):
        return name in SCALARS or name == "void" or tree.is_a(type, Enum)
    if isinstance(type.to, Pointer) or is_tensor(type):
        return False
    return (
        name == "void"
        or (name == "char" and type.const)
        or tree.is_a(type.to, Opaque)
        or any(s.name == name and is_filled(s) for s in tree.structs)
    )


def wrapped(tree):
    """Lines for SWIG: how it shall wrap handles and the structs that the library fills in, and what
    not."""
    in_words = {f.name for family in tree.families for f in family.functions.values()}
    for function in tree.functions:
        types = [function.returns, *(p.type for p in function.parameters)]
        if function.name not in in_words | BY_HAND and not all(has_rule(tree, t) for t in types):
            raise TreeError(
                f"{function.name}: no rule for Java; wrap it in java.i and add it to BY_HAND in java.py"
            )
    names = [e.max.name for e in tree.enums]
    names += [c.name for c in tree.callbacks]
    names += [s.name for s in tree.structs if not is_filled(s)]
    names += [f.name for f in tree.inlines]
    names += sorted(in_words) + sorted(BY_HAND)
    lines = [f"NUMBER({o.name} *)" for o in tree.opaques] + [f"%ignore {name};" for name in names]
    for struct in tree.structs:
        if is_filled(struct):
            lines += [f"%ignore {struct.name}::struct_size;"]
            lines += [f"%immutable {struct.name}::{f.name};" for f in struct.fields]
            lines += [
                f"%extend {struct.name} {{",
                f"  {struct.name}() {{",
                f"    {struct.name} *made = ({struct.name} *)calloc(1, sizeof({struct.name}));",
                f"    if (made != NULL) made->struct_size = sizeof({struct.name});",
                "    return made;",
                "  }",
                "}",
            ]
    return "\n".join(lines) + "\n"


def tidy(name, text):
    """SWIG's text without blanks at line ends; nothing of it is public."""
    if name == "RawConstants.java":
        text = text.replace("public interface", "interface")
    if name.endswith(".java") and re.search(r"^public (final )?(class|interface)", text, re.M):
        raise TreeError(f"{name}: SWIG made a public class of it")
    return "\n".join(line.rstrip() for line in text.split("\n")).rstrip("\n") + "\n"


def generate(tree, out_dir):
    written = {
        NATIVE / "words.h": words.decoder(tree),
        CLASSES / "Words.java": words.java_constants(tree, PACKAGE),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "java.i").write_text(Path(__file__).with_name("java.i").read_text())
        (folder / "wrapped.i").write_text(wrapped(tree))
        (folder / "words.h").write_text(written[NATIVE / "words.h"])
        run_swig(
            "-java",
            "-package",
            PACKAGE,
            f"-I{folder}",
            "-outdir",
            folder,
            "-o",
            folder / "wrap.c",
            folder / "java.i",
        )
        for path in sorted(folder.glob("*.java")):
            written[CLASSES / path.name] = tidy(path.name, path.read_text())
        written[NATIVE / "wrap.c"] = words.c_format(tidy("wrap.c", (folder / "wrap.c").read_text()))
    for path in [*(out_dir / CLASSES).glob("*.java")]:
        if CLASSES / path.name not in written:
            path.unlink()
    for path, text in written.items():
        (out_dir / path).parent.mkdir(parents=True, exist_ok=True)
        (out_dir / path).write_text(text)
    return [out_dir / path for path in written]
