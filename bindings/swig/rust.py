"""Prints the raw Rust layer, ffi.rs and nccl.rs of rust/fastnorm-sys/src, in rustfmt's form."""

import re
import textwrap

from tree import (
    Array,
    Callback,
    Enum,
    Function,
    FunctionPointer,
    Macro,
    Named,
    Opaque,
    Pointer,
    Struct,
    TreeError,
    load_nccl,
)

OUTPUT = "rust/fastnorm-sys/src/ffi.rs"
NCCL_OUTPUT = "rust/fastnorm-sys/src/nccl.rs"
WIDTH = 100  # rustfmt's

HEAD = """\
// Generated from the public headers by bindings/swig/generate.py; do not edit.
"""
USES = """\
use core::ffi::{c_char, c_uint, c_void};
use core::marker::{PhantomData, PhantomPinned};
use core::mem::{offset_of, size_of};
"""

NCCL_USES = """\
use crate::ffi::*;
use core::ffi::{c_char, c_int, c_uint, c_void, CStr};
use core::marker::{PhantomData, PhantomPinned};
use core::mem::{offset_of, size_of};
"""

SCALARS = {
    "void": "c_void",
    "int8_t": "i8",
    "uint8_t": "u8",
    "int16_t": "i16",
    "uint16_t": "u16",
    "int32_t": "i32",
    "uint32_t": "u32",
    "int64_t": "i64",
    "uint64_t": "u64",
    "size_t": "usize",
    "float": "f32",
    "double": "f64",
    "char": "c_char",
    "int": "c_int",
}
KEYWORDS = set(
    """as async await break const continue crate dyn else enum extern false fn for gen if impl in
    let loop match mod move mut pub ref return self static struct super trait true type unsafe use
    where while abstract become box do final macro override priv try typeof unsized virtual
    yield""".split()
)

# Functions that the headers define are no symbols: fastnorm-sys/src/lib.rs has them by hand.
HANDWRITTEN = {"fastnorm_dtype_of"}


def identifier(name):
    return f"r#{name}" if name in KEYWORDS else name


def rust_type(type):
    if isinstance(type, Pointer):
        return f"*{'const' if type.const else 'mut'} {rust_type(type.to)}"
    if isinstance(type, Array):
        return f"[{rust_type(type.of)}; {type.length}]"
    if isinstance(type, FunctionPointer):
        parameters = ", ".join(map(rust_type, type.parameters))
        return f'Option<unsafe extern "C" fn({parameters}) -> {rust_type(type.returns)}>'
    return SCALARS.get(type.name, type.name)


# --- comments: Doxygen to Markdown ---


def escaped(text):
    """Text in which no character but those between backquotes means anything to Markdown."""
    parts = text.split("`")
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"([\[\]<>*])", r"\\\1", parts[i])
    return "`".join(parts)


def paragraphs(doc):
    """(first indent, text) of each paragraph, list entry, @param, @return and @since."""
    found, in_return = [], None
    for line in doc.split("\n"):
        words = line.strip()
        param = re.match(r"@param (\w+)\s+(.*)", words)
        if not words:
            found.append(("", ""))
        elif param:
            found.append(("- ", f"`{param[1]}`: {escaped(param[2])}"))
        elif words.startswith("@return "):
            found += [("", ""), ("", f"Returns {escaped(words[len('@return '):])}")]
            in_return = len(found) - 1
        elif words.startswith("@since "):
            found += [("", ""), ("", f"Since {words[len('@since '):]}.")]
        elif words.startswith("- "):
            found.append(("- ", escaped(words[2:])))
        elif found and found[-1][1]:
            found[-1] = (found[-1][0], f"{found[-1][1]} {escaped(words)}")
        else:
            found.append(("", escaped(words)))
    if in_return is not None:  # a table of codes becomes one sentence
        table = re.sub(
            r"(?<![;.,]) (FASTNORM_ERROR_\w+) +(?=[a-z])", r"; \1: ", found[in_return][1]
        )
        found[in_return] = ("", table if "  " in found[in_return][1] else found[in_return][1])
    return [(first, re.sub(" +", " ", text)) for first, text in found]


def doc_lines(doc, indent=""):
    """The comment as /// lines, wrapped; blank lines only between paragraphs, one at a time."""
    lines, blank = [], False
    previous = ""
    for first, text in paragraphs(doc):
        if not text:
            blank = bool(lines)
            continue
        if blank or (lines and first and not previous):
            lines.append("")
        blank, previous = False, first
        lines += textwrap.wrap(
            text,
            WIDTH - len(indent) - len("/// "),
            initial_indent=first,
            subsequent_indent=" " * len(first),
            break_long_words=False,
            break_on_hyphens=False,
        )
    return [f"{indent}/// {line}".rstrip() for line in lines]


# --- items ---


def print_macro(macro):
    return [*doc_lines(macro.doc), f"pub const {macro.name}: i32 = {macro.value};"]


def print_enum(enum):
    lines = [*doc_lines(enum.doc), f"pub type {enum.name} = c_uint;"]
    for item in [*enum.values, enum.max]:
        value = f"{item.value:#x}" if item.value > 0xFFFF else str(item.value)
        line = f"pub const {item.name}: {enum.name} = {value};"
        lines += [
            *doc_lines(item.doc),
            *([line] if len(line) <= 100 else line.replace("= ", "=\n    ").split("\n")),
        ]
    return lines


def default_of(tree, type):
    """The value that `{0}` gives."""
    if isinstance(type, Pointer):
        return f"core::ptr::null{'' if type.const else '_mut'}()"
    if isinstance(type, Array):
        return f"[{default_of(tree, type.of)}; {type.length}]"
    if isinstance(type, FunctionPointer):
        return "None"
    if type.name in ("float", "double"):
        return "0.0"
    if tree.is_a(type, Callback):
        return "None"
    if tree.is_a(type, Struct):
        return f"{type.name}::new()"
    return "0"


def print_field(field):
    """On one line; a function's address that is too long for it has its parameters on lines."""
    line = f"    pub {identifier(field.name)}: {rust_type(field.type)},"
    if len(line) <= WIDTH or not isinstance(field.type, FunctionPointer):
        return [line]
    return [
        f"    pub {identifier(field.name)}: Option<",
        '        unsafe extern "C" fn(',
        *[f"            {rust_type(p)}," for p in field.type.parameters],
        f"        ) -> {rust_type(field.type.returns)},",
        "    >,",
    ]


def print_struct(tree, struct):
    sized = any(f.name == "struct_size" for f in struct.fields)
    lines = [
        *doc_lines(struct.doc),
        "#[repr(C)]",
        "#[derive(Clone, Copy, Debug)]",
        f"pub struct {struct.name} {{",
    ]
    for field in struct.fields:
        lines += [*doc_lines(field.doc, "    "), *print_field(field)]
    what = "Everything zero" + (", `struct_size` set: the defaults." if sized else ".")
    lines += [
        "}",
        "",
        f"impl {struct.name} {{",
        f"    /// {what}",
        "    #[inline]",
        "    pub const fn new() -> Self {",
    ]
    values = [
        ("size_of::<Self>()" if f.name == "struct_size" else default_of(tree, f.type))
        for f in struct.fields
    ]
    inits = [f"{identifier(f.name)}: {value}" for f, value in zip(struct.fields, values)]
    short = f"        Self {{ {', '.join(inits)} }}"
    # rustfmt keeps a struct literal on one line up to 18 columns of content.
    if len(", ".join(inits)) <= 18:
        lines.append(short)
    else:
        lines += ["        Self {", *[f"            {init}," for init in inits], "        }"]
    lines += [
        "    }",
        "}",
        "",
        f"impl Default for {struct.name} {{",
        "    fn default() -> Self {",
        "        Self::new()",
        "    }",
        "}",
    ]
    return lines


def print_opaque(opaque):
    return [
        *doc_lines(opaque.doc),
        "#[repr(C)]",
        f"pub struct {opaque.name} {{",
        "    _data: [u8; 0],",
        "    _marker: PhantomData<(*mut u8, PhantomPinned)>,",
        "}",
    ]


def parameters_of(item):
    return [f"{identifier(p.name)}: {rust_type(p.type)}" for p in item.parameters]


def print_callback(callback):
    """On one line, broken after =, or with one parameter a line: what fits first, as rustfmt has it."""
    doc, head = doc_lines(callback.doc), f"pub type {callback.name} ="
    returns = "" if callback.returns == Named("void") else f" -> {rust_type(callback.returns)}"
    parameters = parameters_of(callback)
    line = f"Option<unsafe extern \"C\" fn({', '.join(parameters)}){returns}>;"
    if len(f"{head} {line}") <= WIDTH:
        return [*doc, f"{head} {line}"]
    if len(f"    {line}") <= WIDTH:
        return [*doc, head, f"    {line}"]
    return [
        *doc,
        f"{head} Option<",
        '    unsafe extern "C" fn(',
        *[f"        {p}," for p in parameters],
        f"    ){returns},",
        ">;",
    ]


def print_function(function):
    """On one line, or with one parameter a line. A line that is just full rustfmt breaks
    before the arrow."""
    doc, parameters = doc_lines(function.doc, "    "), parameters_of(function)
    returns = "" if function.returns == Named("void") else f" -> {rust_type(function.returns)}"
    head = f"    pub fn {function.name}({', '.join(parameters)})"
    if len(f"{head}{returns};") < WIDTH:
        return [*doc, f"{head}{returns};"]
    if returns and len(f"{head}{returns};") == WIDTH:
        return [*doc, head, f"       {returns};"]
    return [
        *doc,
        f"    pub fn {function.name}(",
        *[f"        {p}," for p in parameters],
        f"    ){returns};",
    ]


def print_functions(functions):
    lines = ['extern "C" {']
    for i, function in enumerate(functions):
        lines += [""] if i else []
        lines += print_function(function)
    return [*lines, "}"]


def print_asserts(tree):
    """What a C compiler makes of the headers, asked of rustc."""
    lines = ["// The layout that a C compiler gives these types.", "const _: () = {"]
    for struct in tree.structs:
        lines.append(f"    assert!(size_of::<{struct.name}>() == {struct.size});")
        lines += [
            f"    assert!(offset_of!({struct.name}, {identifier(f.name)}) == {f.offset});"
            for f in struct.fields
        ]
    lines += [f"    assert!(size_of::<{enum.name}>() == 4);" for enum in tree.enums]
    return [*lines, "};"]


LIBRARY = """\
/// The functions of libfastnorm_nccl, a library that is found at run time.
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_nccl_library {
{fields}
}

/// The function at an address.
///
/// # Safety
/// It is that of a function of the type `F`, which is a pointer to a function.
unsafe fn function<F: Copy>(address: *const c_void) -> F {
    assert!(size_of::<F>() == size_of::<*const c_void>());
    // SAFETY: both are addresses, and the caller knows the type.
    unsafe { core::mem::transmute_copy(&address) }
}

impl fastnorm_nccl_library {
    /// Asks `find` for the address of each function by its name.
    ///
    /// # Errors
    /// The name of a function whose address is null.
    ///
    /// # Safety
    /// What `find` returns is null, or the function of that name in libfastnorm_nccl.
    pub unsafe fn find(
        mut find: impl FnMut(&'static CStr) -> *const c_void,
    ) -> Result<Self, &'static CStr> {
        let mut found = |name| match find(name) {
            address if address.is_null() => Err(name),
            address => Ok(address),
        };
        // SAFETY: as the caller promises, each has the type of its field.
        unsafe {
            Ok(Self {
{values}
            })
        }
    }
}
"""


def print_library(functions):
    fields, values = [], []
    for f in functions:
        parameters = parameters_of(f)
        returns = "" if f.returns == Named("void") else f" -> {rust_type(f.returns)}"
        type = f'unsafe extern "C" fn({", ".join(parameters)}){returns},'
        fields += doc_lines(f.doc, "    ")
        if len(f"    pub {f.name}: {type}") <= WIDTH:
            fields.append(f"    pub {f.name}: {type}")
        elif len(f"        {type}") <= WIDTH:
            fields += [f"    pub {f.name}:", f"        {type}"]
        else:
            fields += [
                f'    pub {f.name}: unsafe extern "C" fn(',
                *[f"        {p}," for p in parameters],
                f"    ){returns},",
            ]
        value = f'                {f.name}: function(found(c"{f.name}")?),'
        if len(value) <= WIDTH:
            values.append(value)
        else:
            values += [
                f"                {f.name}: function(found(",
                f'                    c"{f.name}",',
                "                )?),",
            ]
    return (
        LIBRARY.replace("{fields}", "\n".join(fields))
        .replace("{values}", "\n".join(values))
        .rstrip("\n")
        .split("\n")
    )


def nccl_blocks(whole, own):
    """The items of the header of libfastnorm_nccl; its functions are addresses."""
    for item in own.items:
        if isinstance(item, Enum):
            yield print_enum(item)
        elif isinstance(item, Struct):
            yield print_struct(whole, item)
        elif isinstance(item, Opaque):
            yield print_opaque(item)
        elif not isinstance(item, Function) or item.inline:
            raise TreeError(f"no rule for {item}")
    yield print_library(own.functions)
    yield print_asserts(own)


def blocks(tree):
    """The items in the order of the headers; functions that follow each other share a block."""
    functions = []
    for item in tree.items:
        if isinstance(item, Function):
            if item.inline:
                if item.name not in HANDWRITTEN:
                    raise TreeError(
                        f"{item.name} is defined in a header: write it into fastnorm-sys/src/lib.rs"
                    )
            else:
                functions.append(item)
            continue
        if functions:
            yield print_functions(functions)
            functions = []
        if isinstance(item, Macro):
            yield print_macro(item)
        elif isinstance(item, Enum):
            yield print_enum(item)
        elif isinstance(item, Struct):
            yield print_struct(tree, item)
        elif isinstance(item, Opaque):
            yield print_opaque(item)
        elif isinstance(item, Callback):
            yield print_callback(item)
        else:
            raise TreeError(f"no rule for {item}")
    if functions:
        yield print_functions(functions)
    yield print_asserts(tree)


def generate(tree, out_dir):
    path = out_dir / OUTPUT
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join([HEAD, USES, *["\n".join(block) + "\n" for block in blocks(tree)]])
    path.write_text(text)
    own = load_nccl(tree)
    whole = type(tree)([*tree.items, *own.items])
    parts = ["\n".join(block) + "\n" for block in nccl_blocks(whole, own)]
    nccl = out_dir / NCCL_OUTPUT
    nccl.write_text("\n".join([HEAD, NCCL_USES, *parts]))
    return [path, nccl]
