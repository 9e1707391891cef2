"""The public headers as plain Python values.

SWIG parses the headers and writes its parse tree as XML; load() reads that into the classes below.
Generators work on these and never on the XML. Items keep the order of the headers. load() stops at
anything the bindings have no rule for, so that a new declaration cannot be half bound.
"""

import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "include"
INTERFACE = Path(__file__).with_name("fastnorm.i")
# libfastnorm_nccl: a library beside, with its own header.
NCCL_INCLUDE = ROOT / "src" / "nccl" / "include"
NCCL_INTERFACE = Path(__file__).with_name("nccl.i")
LAYOUT = ROOT / "tests" / "abi" / "layout.txt"
UMBRELLA = "fastnorm.h"  # includes the others, declares nothing

# Bytes of the C types that the headers use; their alignment is the same number. 64-bit Linux.
SCALARS = {
    "int8_t": 1,
    "uint8_t": 1,
    "int16_t": 2,
    "uint16_t": 2,
    "int32_t": 4,
    "uint32_t": 4,
    "int64_t": 8,
    "uint64_t": 8,
    "size_t": 8,
    "float": 4,
    "double": 8,
    "char": 1,
    "int": 4,
}
POINTER_BYTES = 8
ENUM_BYTES = 4


class TreeError(Exception):
    """The headers hold something that the bindings have no rule for."""


# --- types ---


@dataclass(frozen=True)
class Named:
    """void, a scalar of SCALARS, or an item of the tree: enum, struct, opaque type, callback."""

    name: str


@dataclass(frozen=True)
class Pointer:
    to: "Named | Pointer | Array"
    const: bool  # what it points to is const


@dataclass(frozen=True)
class Array:
    of: "Named | Pointer"
    length: int


@dataclass(frozen=True)
class FunctionPointer:
    returns: "Named | Pointer"
    parameters: tuple["Named | Pointer", ...]


Type = Named | Pointer | Array | FunctionPointer


# --- items; `doc` is the comment as plain lines without stars, "" if there is none ---


@dataclass
class Macro:
    name: str
    value: int
    doc: str


@dataclass
class Enumerator:
    name: str  # FASTNORM_NORM_RMS
    value: int
    doc: str

    @property
    def is_max(self):
        """It only fixes the size of the enum."""
        return self.name.endswith("_MAX_ENUM")


@dataclass
class Enum:
    name: str  # fastnorm_norm_kind
    values: list[Enumerator]  # without the _MAX_ENUM one
    max: Enumerator
    doc: str


@dataclass
class Field:
    name: str
    type: Type
    doc: str
    offset: int = 0
    size: int = 0


@dataclass
class Struct:
    name: str
    fields: list[Field]
    doc: str
    size: int = 0
    align: int = 0


@dataclass
class Opaque:
    """A struct that is declared and never defined; used by pointer."""

    name: str
    doc: str


@dataclass
class Parameter:
    name: str
    type: Type


@dataclass
class Callback:
    """A typedef of a pointer to a function."""

    name: str
    returns: Type
    parameters: list[Parameter]
    doc: str


@dataclass
class Function:
    name: str
    returns: Type
    parameters: list[Parameter]
    doc: str
    inline: bool = False  # defined in a header: no symbol of the library


@dataclass
class Family:
    """One args struct and its functions, and the struct of a part where calls have parts beside
    it."""

    name: str  # "norm"
    args: Struct
    functions: dict[
        str, Function
    ]  # by what follows the name: "", "query", "prepare", "many", "many_query", ..
    part: Struct | None = None


@dataclass
class Tree:
    items: list = field(default_factory=list)  # all of the below, in the order of the headers

    def _all(self, kind):
        return [i for i in self.items if isinstance(i, kind)]

    @property
    def macros(self):
        return self._all(Macro)

    @property
    def enums(self):
        return self._all(Enum)

    @property
    def structs(self):
        return self._all(Struct)

    @property
    def opaques(self):
        return self._all(Opaque)

    @property
    def callbacks(self):
        return self._all(Callback)

    @property
    def functions(self):
        """Those that the library exports."""
        return [f for f in self._all(Function) if not f.inline]

    @property
    def inlines(self):
        return [f for f in self._all(Function) if f.inline]

    @property
    def families(self):
        """Every struct fastnorm_NAME_args, with the functions whose names begin with fastnorm_NAME
        and that take it. A struct fastnorm_NAME_MORE_part makes a family NAME_MORE, whose calls
        take the args of NAME."""
        found = []
        for struct in self.structs:
            match = re.fullmatch(r"fastnorm_(\w+)_args", struct.name)
            if match:
                found += self._families_of(struct, match[1])
        return found

    def _families_of(self, struct, name):
        parts = {
            p[1]: s
            for s in self.structs
            if (p := re.fullmatch(rf"fastnorm_({name}(?:_\w+)?)_part", s.name))
        }
        functions = {
            f.name.removeprefix("fastnorm_"): f
            for f in self.functions
            if f"{f.name}_".startswith(f"fastnorm_{name}_")
            and any(base_name(p.type) == struct.name for p in f.parameters)
        }
        families = []
        # The longest name first: its functions are not those of a name that it begins with.
        for own in sorted({name, *parts}, key=len, reverse=True):
            taken = [f for f in functions if f"{f}_".startswith(f"{own}_")]
            if taken or own == name:
                families.insert(
                    0,
                    Family(
                        own,
                        struct,
                        {f[len(own) :].lstrip("_"): functions.pop(f) for f in taken},
                        parts.get(own),
                    ),
                )
        return families

    def find(self, name):
        """The item of that name."""
        for item in self.items:
            if item.name == name:
                return item
        raise TreeError(f"{name} is not declared in the headers")

    def is_a(self, type, kind):
        """Whether a type names an item of that class, as in tree.is_a(field.type, Enum)."""
        return isinstance(type, Named) and any(
            i.name == type.name and isinstance(i, kind) for i in self.items
        )


def base_name(type):
    """The name under all pointers and arrays."""
    while not isinstance(type, Named):
        if isinstance(type, FunctionPointer):
            type = type.returns
        else:
            type = type.to if isinstance(type, Pointer) else type.of
    return type.name


def is_tensor(type):
    """const fastnorm_tensor*"""
    return type == Pointer(Named("fastnorm_tensor"), True)


def roles():
    """What src/schema/fields.csv says that each field of a call is, by struct and name."""
    sys.path.append(str(ROOT / "src" / "schema"))
    import schema

    return {(f"fastnorm_{f.struct}", f.name): f.role for f in schema.read()}


def short_name(enum, value):
    """What is left of a value's name without what all values of the enum begin with. A flag's name
    loses what it shares with that of its enum."""
    names = [v.name for v in enum.values]
    shared = "_".join(["FASTNORM", *enum.name.upper().split("_")[1:]]) + "_"
    while not all(name.startswith(shared) for name in names):
        shared = shared[: shared.rstrip("_").rindex("_") + 1]
    if len(names) > 1 and not enum.name.endswith("_flags"):
        common = names[0]
        while not all(n.startswith(common) for n in names) or not common.endswith("_"):
            common = common[:-1]
        shared = max(shared, common, key=len)
    return value.name.removeprefix(shared)


# --- SWIG ---


def swig():
    """The pinned swig. Its output differs between versions, so no other one will do."""
    pinned = re.search(r"^swig==(\S+)", (ROOT / "tools" / "requirements.txt").read_text(), re.M)[1]
    program = ROOT / ".venv" / "bin" / "swig"
    if not program.exists():
        raise TreeError(f"no swig in .venv: run tools/setup, or install swig=={pinned} there")
    found = subprocess.run([program, "-version"], capture_output=True, text=True).stdout
    if f"SWIG Version {pinned}\n" not in found:
        raise TreeError(f"swig {pinned} is pinned, found {found.strip().splitlines()[:1]}")
    return program


def run_swig(*arguments, cwd=None):
    """Runs swig with the public headers on its path; any warning is an error."""
    folders = [f"-I{folder}" for folder in (INCLUDE, NCCL_INCLUDE, INTERFACE.parent)]
    command = [swig(), "-Werror", *folders, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    if result.returncode != 0 or "arning" in result.stderr:
        raise TreeError(f"swig {' '.join(map(str, arguments))}\n{result.stdout}{result.stderr}")


def parse_xml(interface):
    with tempfile.TemporaryDirectory() as folder:
        # Any target writes the tree; Java's, with -doxygen, keeps the comments. 451: a setter that
        # this run throws away might leak.
        run_swig(
            "-java",
            "-doxygen",
            "-w451",
            "-module",
            "Tree",
            "-outdir",
            folder,
            "-o",
            f"{folder}/wrap.c",
            "-xmlout",
            f"{folder}/tree.xml",
            interface,
        )
        return ElementTree.parse(f"{folder}/tree.xml").getroot()


# --- XML to items ---


def attributes(node):
    own = node.find("attributelist")
    return {} if own is None else {a.get("name"): a.get("value") for a in own.findall("attribute")}


def parse_doc(text):
    """The comment without its stars. The comment of a macro with arguments, which is no item, comes
    joined by two blanks with the next one: only the last counts."""
    text = re.split(r"(?<=[.])  (?=\S)", text or "")[-1]
    lines = [re.sub(r"^\s*\*( {0,2}|$)", "", line).rstrip() for line in text.strip().split("\n")]
    return "\n".join(line.strip() if i == 0 else line for i, line in enumerate(lines)).strip()


def parse_member_doc(text):
    """Of a field or enumerator: one paragraph, whatever its indentation."""
    return " ".join(line.strip().lstrip("*").strip() for line in (text or "").split("\n")).strip()


def parse_type(text):
    """SWIG's notation: p. pointer to, q(const). const, a(N). array of, then a name."""
    const = False
    if text.startswith("q(const)."):
        const, text = True, text[len("q(const).") :]
    if text.startswith("p."):
        to, to_const = parse_type(text[2:])
        return Pointer(to, to_const), const
    match = re.match(r"a\((\d+)\)\.", text)
    if match:
        of, _ = parse_type(text[match.end() :])
        return Array(of, int(match[1])), const
    name = re.sub(r"^(enum|struct) ", "", text)
    if not re.fullmatch(r"\w+( \w+)*", name):
        raise TreeError(f"no rule for the type {text}")
    return Named(name), const


def split_list(text):
    """The entries between commas that no parentheses hold."""
    entries, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            entries.append("")
        else:
            entries[-1] += character
    return [entry for entry in entries if entry not in ("", "void")]


def parse_function_pointer(declarator, base):
    """p.f(PARAMETERS).DECLARATOR, of a field."""
    depth = end = 0
    inner = declarator[len("p.f(") :]
    for end, character in enumerate(inner):
        depth += (character == "(") - (character == ")")
        if depth < 0:
            break
    parameters = tuple(parse_type(entry)[0] for entry in split_list(inner[:end]))
    return FunctionPointer(parse_type(inner[end + len(").") :] + base)[0], parameters)


def type_of(values):
    """The type of a variable, or what a function returns: the declarator, without its parameters,
    and the base type."""
    declarator = values["decl"]
    if declarator.startswith("p.f("):
        return parse_function_pointer(declarator, values["type"])
    if declarator.startswith("f("):
        depth = end = 0
        for end, character in enumerate(declarator):
            depth += (character == "(") - (character == ")")
            if depth == 0 and character == ")":
                break
        declarator = declarator[end + len(").") :]
    return parse_type(declarator + values["type"])[0]


def parse_parameters(node):
    own = node.find("attributelist")
    found = []
    for parameter in own.iterfind("parmlist/parm"):
        values = attributes(parameter)
        if values["type"] == "void":
            continue
        if not values.get("name"):
            raise TreeError(f"{attributes(node)['name']}: a parameter without a name")
        found.append(Parameter(values["name"], parse_type(values["type"])[0]))
    return found


def evaluated(name, text):
    """The value of a constant expression of whole numbers."""
    if not re.fullmatch(r"[-+*()|<>0-9a-fA-FxX ]+", text):
        raise TreeError(f"no rule for {name} = {text}")
    try:
        return eval(text, {"__builtins__": {}})
    except (SyntaxError, NameError, TypeError):
        raise TreeError(f"no rule for {name} = {text}") from None


def parse_enum(node, values):
    found = []
    for item in node.findall("enumitem"):
        own = attributes(item)
        value = evaluated(own["name"], own.get("enumnumval") or own.get("enumvalue", ""))
        found.append(Enumerator(own["name"], value, parse_member_doc(own.get("doxygen"))))
    if not found or not found[-1].is_max or any(e.is_max for e in found[:-1]):
        raise TreeError(f"{values['name']}: the last enumerator must be the _MAX_ENUM one")
    return Enum(values["name"], found[:-1], found[-1], parse_doc(values.get("doxygen")))


def parse_struct(node, values):
    fields = []
    for member in node.findall("cdecl"):
        own = attributes(member)
        if own["kind"] != "variable":
            raise TreeError(f"{values['name']}.{own['name']}: no rule for a {own['kind']}")
        fields.append(Field(own["name"], type_of(own), parse_member_doc(own.get("doxygen"))))
    return Struct(values["name"], fields, parse_doc(values.get("doxygen")))


def parse_typedef(node, values, defined):
    """None where the typedef only repeats the name of an enum or struct."""
    name, doc = values["name"], parse_doc(values.get("doxygen"))
    if values["decl"].startswith("p.f("):
        return Callback(name, parse_type(values["type"])[0], parse_parameters(node), doc)
    if values["decl"] == "" and values["type"] in (f"struct {name}", f"enum {name}"):
        return None if name in defined else Opaque(name, doc)
    raise TreeError(f"no rule for the typedef {name}")


def parse_item(node, defined):
    values = attributes(node)
    if node.tag == "constant":
        value = evaluated(values["name"], values.get("numval") or values["value"])
        return Macro(values["name"], value, parse_doc(values.get("doxygen")))
    if node.tag == "enum":
        return parse_enum(node, values)
    if node.tag == "class" and values["kind"] == "struct":
        return parse_struct(node, values)
    if node.tag == "cdecl" and values["kind"] == "typedef":
        return parse_typedef(node, values, defined)
    if node.tag == "cdecl" and values["kind"] == "function":
        return Function(
            values["name"],
            type_of(values),
            parse_parameters(node),
            parse_doc(values.get("doxygen")),
            inline="code" in values,
        )
    raise TreeError(f"no rule for {node.tag} {values.get('name')}")


# --- layout and checks ---


def size_and_align(tree, type):
    if isinstance(type, Pointer | FunctionPointer):
        return POINTER_BYTES, POINTER_BYTES
    if isinstance(type, Array):
        size, align = size_and_align(tree, type.of)
        return size * type.length, align
    if type.name in SCALARS:
        return SCALARS[type.name], SCALARS[type.name]
    item = tree.find(type.name)
    if isinstance(item, Struct):
        return item.size, item.align
    if isinstance(item, Enum):
        return ENUM_BYTES, ENUM_BYTES
    if isinstance(item, Callback):
        return POINTER_BYTES, POINTER_BYTES
    raise TreeError(f"{type.name} cannot be held by value")


def lay_out(tree, struct):
    end, struct.align = 0, 1
    for member in struct.fields:
        member.size, align = size_and_align(tree, member.type)
        member.offset = -(-end // align) * align
        end, struct.align = member.offset + member.size, max(struct.align, align)
    struct.size = -(-end // struct.align) * struct.align


def is_description(tree, type):
    """const fastnorm_X*, of a struct with a struct_size: what a call's description points to."""
    if not (isinstance(type, Pointer) and type.const and tree.is_a(type.to, Struct)):
        return False
    return tree.find(type.to.name).fields[0].name == "struct_size"


def check_args(tree, struct):
    """What a call's description may hold; the word decoder and the safe layers count on it."""
    for i, member in enumerate(struct.fields):
        if i == 0:
            ok = member.name == "struct_size" and member.type == Named("size_t")
        else:
            if is_description(tree, member.type):
                check_args(tree, tree.find(member.type.to.name))
            ok = (
                is_tensor(member.type)
                or is_description(tree, member.type)
                or tree.is_a(member.type, Enum)
                or (
                    isinstance(member.type, Named)
                    and member.type.name in SCALARS
                    and member.type.name not in ("char", "int")
                )
                or (isinstance(member.type, Pointer) and tree.is_a(member.type.to, Opaque))
                or member.type == Pointer(Named("void"), False)
            )
        if not ok:
            raise TreeError(
                f"{struct.name}.{member.name}: an args struct holds struct_size, fixed-width scalars, "
                "enums, opaque handles, void*, const fastnorm_tensor* and pointers to such structs"
            )


def check_names(tree):
    """Every type is known, every name is used once."""
    names = [i.name for i in tree.items]
    for name in names:
        if names.count(name) > 1:
            raise TreeError(f"{name} is declared twice")
    known = {"void", *SCALARS, *names}
    for item in tree.items:
        types = [m.type for m in getattr(item, "fields", [])] + [
            p.type for p in getattr(item, "parameters", [])
        ]
        for type in types + ([item.returns] if hasattr(item, "returns") else []):
            if base_name(type) not in known:
                raise TreeError(f"{item.name}: no rule for the type {base_name(type)}")


def check_complete(tree, include, interface):
    """Nothing in the headers was overlooked: counted once more, naively."""
    headers = sorted(p for p in (include / "fastnorm").glob("*.h"))
    listed = set(re.findall(r"%include <fastnorm/(\w+\.h)>", interface.read_text()))
    if listed != {p.name for p in headers} - {UMBRELLA}:
        raise TreeError(
            f"{interface.name} includes {sorted(listed)}, "
            f"the public headers are {[p.name for p in headers]}"
        )
    source = re.sub(r"/\*.*?\*/", "", "\n".join(p.read_text() for p in headers), flags=re.S)
    for what, found, pattern in (
        ("functions", tree.functions, r"^FASTNORM_API\b"),
        ("structs", tree.structs, r"\bstruct \w+\s*\{"),
        ("enums", tree.enums, r"\benum \w+\s*\{"),
        ("inline functions", tree.inlines, r"^static inline\b"),
    ):
        count = len(re.findall(pattern, source, re.M))
        if len(found) != count:
            raise TreeError(f"{len(found)} {what} in the tree, {count} in the headers")


def check_layout(tree):
    """Offsets, sizes and values equal what a C compiler gave (tests/abi)."""
    lines = {f"struct {s.name} {s.size}" for s in tree.structs}
    lines |= {
        f"field {s.name}.{f.name} {f.offset} {f.size}" for s in tree.structs for f in s.fields
    }
    lines |= {f"enum {e.name} {v.name} {v.value}" for e in tree.enums for v in [*e.values, e.max]}
    promised = {line for line in LAYOUT.read_text().splitlines() if not line.startswith("#")}
    if lines != promised:
        raise TreeError(f"differs from {LAYOUT.relative_to(ROOT)}: {sorted(lines ^ promised)[:6]}")


def read(interface, include):
    """What the headers of a folder declare, in their order."""
    found = []
    for header in parse_xml(interface).iter("include"):
        if Path(attributes(header).get("name", "")).parent != include / "fastnorm":
            continue
        nodes = [n for n in header if n.tag in ("constant", "enum", "class", "cdecl")]
        defined = {attributes(n)["name"] for n in nodes if n.tag in ("enum", "class")}
        found += [item for item in (parse_item(n, defined) for n in nodes) if item is not None]
    return found


def load():
    """The tree of the public headers."""
    tree = Tree(read(INTERFACE, INCLUDE))
    check_names(tree)
    for struct in tree.structs:
        lay_out(tree, struct)
    for family in tree.families:
        check_args(tree, family.args)
    check_complete(tree, INCLUDE, INTERFACE)
    check_layout(tree)
    return tree


def load_nccl(tree):
    """The tree of the header of libfastnorm_nccl, which builds on that of the public ones."""
    own = Tree(read(NCCL_INTERFACE, NCCL_INCLUDE))
    whole = Tree([*tree.items, *own.items])
    check_names(whole)
    for struct in own.structs:
        lay_out(whole, struct)
    check_complete(own, NCCL_INCLUDE, NCCL_INTERFACE)
    return own


def main():
    """Prints the tree, for people."""
    for item in load().items:
        print(item)


if __name__ == "__main__":
    sys.exit(main())
