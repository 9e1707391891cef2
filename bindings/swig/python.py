"""Prints headers.py of packages/python/fastnorm: structs, enums and functions for ctypes, as ruff
formats them."""

import re
import textwrap

from tree import (
    Array,
    Callback,
    Enum,
    Named,
    Opaque,
    Pointer,
    TreeError,
    is_description,
    is_tensor,
    roles,
    short_name,
)

OUTPUT = "packages/python/fastnorm/headers.py"
WIDTH = 100
SCALARS = {
    "int8_t": "c_int8",
    "uint8_t": "c_uint8",
    "int16_t": "c_int16",
    "uint16_t": "c_uint16",
    "int32_t": "c_int32",
    "uint32_t": "c_uint32",
    "int64_t": "c_int64",
    "uint64_t": "c_uint64",
    "size_t": "c_size_t",
    "float": "c_float",
    "double": "c_double",
    "char": "c_char",
}

HEAD = '''\
# Generated from the public headers by bindings/swig/generate.py; do not edit.
"""The public headers for ctypes. Names are those of C without fastnorm_: NormArgs is
fastnorm_norm_args, Rounding.ONCE is FASTNORM_ROUND_ONCE. fastnorm.abi has what a program needs."""

import ctypes
'''


def camel(name):
    return "".join(
        word[:1].upper() + word[1:] for word in name.removeprefix("fastnorm_").split("_")
    )


def ctype(tree, type):
    if isinstance(type, Array):
        return f"{ctype(tree, type.of)} * {type.length}"
    if isinstance(type, Pointer):
        if type.to == Named("void") or tree.is_a(type.to, Opaque):
            return "c_void_p"
        if type.to == Named("char"):
            return "c_char_p"
        if type.to == Named("fastnorm_tensor"):
            return "TensorPointer"
        return f"POINTER({ctype(tree, type.to)})"
    if tree.is_a(type, Callback):
        return "c_void_p"
    if tree.is_a(type, Enum):
        return "c_int32"
    if isinstance(type, Named):
        return SCALARS.get(type.name) or camel(type.name)
    raise TreeError(f"no rule for the type {type}")


def docstring(item):
    """The name in C, and the first sentence of what the header says."""
    says = re.split(r"(?<=[.])\s", " ".join(item.doc.split()))[0]
    text = f'"""{item.name}: {says}' if says else f'"""{item.name}.'
    lines = textwrap.wrap(
        text, WIDTH - 3, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
    )
    lines[-1] += '"""'
    return lines


def print_enum(enum):
    return [
        f"class {camel(enum.name)}:",
        *docstring(enum),
        "",
        *(f"    {short_name(enum, value)} = {value.value}" for value in enum.values),
    ]


def print_dtypes(enum):
    """The structs of dtypes, by the names of their numbers."""
    bits = [(short_name(enum, v), v.value) for v in enum.values]
    return [
        f"{name} = Dtype({id & 255}, {id >> 8 & 255}, {id >> 16})" for name, id in bits
    ]


def print_struct(tree, struct):
    name = camel(struct.name)
    lines = [
        f"class {name}(ctypes.Structure):",
        *docstring(struct),
        "",
        "    _fields_ = [",
        *(f'        ("{f.name}", {ctype(tree, f.type)}),' for f in struct.fields),
        "    ]",
    ]
    return [*lines, "", "", "TensorPointer = POINTER(Tensor)"] if name == "Tensor" else lines


def print_function(tree, function):
    void = function.returns == Named("void")
    returns = "None" if void else ctype(tree, function.returns)
    parameters = [ctype(tree, p.type) for p in function.parameters]
    line = f'    "{function.name}": ({returns}, [{", ".join(parameters)}]),'
    if len(line) <= WIDTH:
        return [line]
    listed = f"        [{', '.join(parameters)}],"
    if len(listed) > WIDTH:
        listed = "\n".join(["        [", *(f"            {p}," for p in parameters), "        ],"])
    return [f'    "{function.name}": (', f"        {returns},", listed, "    ),"]


def print_outputs(tree, roles):
    """The tensors of each struct that a call writes."""

    def is_written(struct, f):
        return is_tensor(f.type) and roles[struct.name, f.name].endswith("out")

    lines = ["OUTPUTS = {"]
    for struct in tree.structs:
        if not any(is_tensor(f.type) for f in struct.fields):
            continue
        names = ", ".join(f'"{f.name}"' for f in struct.fields if is_written(struct, f))
        if not names:
            continue
        line = f"    {camel(struct.name)}: {{{names}}},"
        if len(line) > WIDTH:
            entries = [f"        {name}," for name in names.split(", ")]
            line = "\n".join([f"    {camel(struct.name)}: {{", *entries, "    },"])
        lines.append(line)
    return [*lines, "}"]


def print_families(tree):
    """The structs of each family's calls: the arguments, and those of a part or None."""
    lines = ["FAMILIES = {"]
    for family in tree.families:
        part = camel(family.part.name) if family.part else "None"
        lines.append(f'    "{family.name}": ({camel(family.args.name)}, {part}),')
    return [*lines, "}"]


def text(tree, roles):
    blocks = [print_enum(enum) for enum in tree.enums]
    blocks += [print_struct(tree, struct) for struct in tree.structs]
    functions = [line for f in tree.functions for line in print_function(tree, f)]
    tail = [
        print_dtypes(tree.find("fastnorm_dtype_id")),
        ["# For each family the struct of its calls, and that of a part.", *print_families(tree)],
        ["# What a call writes of each struct.", *print_outputs(tree, roles)],
        ["# What each function returns and takes.", "FUNCTIONS = {", *functions, "}"],
    ]
    body = "\n\n\n".join("\n".join(block) for block in blocks)
    body += "\n\n\n" + "\n\n".join("\n".join(block) for block in tail) + "\n"
    used = sorted(
        {"POINTER", *(c for c in SCALARS.values()), "c_char_p", "c_void_p"},
        key=lambda name: (name != "POINTER", name),
    )
    used = [name for name in used if f"{name}(" in body or f"{name}," in body or f"{name})" in body
            or f"{name}]" in body or f"{name} *" in body]
    names = "\n".join(f"    {name}," for name in used)
    return f"{HEAD}from ctypes import (\n{names}\n)\n\n\n{body}"


def generate(tree, out_dir):
    path = out_dir.parent / OUTPUT
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(tree, roles()))
    return [path]
