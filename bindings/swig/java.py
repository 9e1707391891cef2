"""The raw layer of the Java binding: what SWIG makes of java.i, and the constants of the words."""

import re
import tempfile
from pathlib import Path

import words
from tree import TreeError, run_swig

PACKAGE = "dev.fastnorm"
CLASSES = Path("java/src/main/generated/dev/fastnorm")
NATIVE = Path("java/src/main/native")
# Structs that the library fills in: objects of Java. All others the handwritten layer describes in words.
FILLED = {"fastnorm_info", "fastnorm_device_info", "fastnorm_kernel_info"}


def omitted(tree):
    """What SWIG shall not wrap, and how it shall wrap the structs that the library fills in."""
    names = [e.max.name for e in tree.enums]
    names += [c.name for c in tree.callbacks]
    names += [s.name for s in tree.structs if s.name not in FILLED]
    names += [f.name for family in tree.families for f in family.functions.values()]
    names += [f.name for f in tree.inlines]
    names += ["fastnorm_context_create", "fastnorm_device_count", "fastnorm_device_describe"]
    lines = [f"%ignore {name};" for name in names]
    for struct in tree.structs:
        if struct.name in FILLED:
            lines += [f"%ignore {struct.name}::struct_size;"]
            lines += [f"%immutable {struct.name}::{f.name};" for f in struct.fields]
            lines += [f"%extend {struct.name} {{", f"  {struct.name}() {{",
                      f"    {struct.name} *made = ({struct.name} *)calloc(1, sizeof({struct.name}));",
                      f"    if (made != NULL) made->struct_size = sizeof({struct.name});", "    return made;", "  }", "}"]
    return "\n".join(lines) + "\n"


def tidy(name, text):
    """SWIG's text without blanks at line ends; nothing of it is public."""
    if name == "RawConstants.java":
        text = text.replace("public interface", "interface")
    if name.endswith(".java") and re.search(r"^public (final )?(class|interface)", text, re.M):
        raise TreeError(f"{name}: SWIG made a public class of it")
    return "\n".join(line.rstrip() for line in text.split("\n")).rstrip("\n") + "\n"


def generate(tree, out_dir):
    written = {NATIVE / "words.h": words.decoder(tree), CLASSES / "Words.java": words.java_constants(tree, PACKAGE)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "omitted.i").write_text(omitted(tree))
        (folder / "words.h").write_text(written[NATIVE / "words.h"])
        run_swig("-java", "-package", PACKAGE, f"-I{folder}", "-outdir", folder, "-o", folder / "wrap.c",
                 Path(__file__).with_name("java.i"))
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
