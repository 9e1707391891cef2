"""A call as a list of 64-bit words: the C decoder for Go and Java, and the index constants of each.

generate() writes what the Go module needs; decoder(), go_constants() and java_constants() give the
texts to other generators. All of it follows from the fields of the fastnorm_*_args structs and the
functions that take them: a new field or family needs no line here.
"""

import re
import subprocess

from tree import INCLUDE, ROOT, Enum, Named, Pointer, TreeError, is_description, is_tensor

MAX_RANK = 8  # extents and strides that a tensor can carry
MAX_PARTS = 8  # descriptions in one call of a _many function
TENSOR_WORDS = 4  # of a tensor, before its extents
MAX_TENSOR_WORDS = TENSOR_WORDS + 2 * MAX_RANK
FORMATTER = ROOT / ".venv" / "bin" / "clang-format"

GO_RAW = "go/internal/raw"

LAYOUT = """\
A call as a list of 64-bit words, and the functions that take one.

Languages that pay for every access to C memory describe a call in one array. The functions
fnb_NAME below do what fastnorm_NAME does, with `words` in the place of `args`; they build the
structs on their stack and keep nothing.

A description fastnorm_FAMILY_args is, in this order:

  scalars   one word for each field that is no tensor or struct, in the struct's order, struct_size
            left out (the decoder sets it). Integers and enums: their bits, sign- or zero-extended.
            float, double: the bit pattern in the low bits. Handles: the address.
  mask      bit i is set if the i-th tensor field of the struct is given; the bits of structs that
            it points to are behind those of its tensors
  tensors   those that are given, in the struct's order, each:
              +0  address
              +1  device_type | device_id << 32
              +2  ndim, 31 bits | has-strides << 31 | dtype << 32, dtype a fastnorm_dtype_id
              +3  byte_offset
              +4  shape, ndim words; then strides, ndim words, if the tensor has strides
            A tensor of more than {rank} dimensions carries neither: shape and strides are NULL, and
            the library refuses its rank.
  structs   those that are given, in the struct's order, each described alike

A family with parts has its args first, then `count` parts: fastnorm_FAMILY_part, described alike.
The _many functions take `count` descriptions one after the other. For a count outside of
0 to {parts} no word is read: the library refuses the number.

A list that is too short, too long or sets unknown bits of the mask is FNB_MALFORMED, which is
no status of the library and leaves fastnorm_last_error() as it was: a defect of the caller's
encoder."""

HELPERS = """\
#define FNB_MAX_RANK {rank}
#define FNB_MAX_PARTS {parts}
#define FNB_MALFORMED ((fastnorm_status) - 1)

typedef struct fnb_reader {{
  const uint64_t* words;
  size_t left;
}} fnb_reader;

/* The next `count` words; NULL if there are fewer. */
static inline const uint64_t* fnb_take(fnb_reader* reader, size_t count) {{
  const uint64_t* taken = reader->words;
  if (reader->left < count) return NULL;
  if (count > 0) reader->words += count;
  reader->left -= count;
  return taken;
}}

static inline int32_t fnb_low(uint64_t word) {{ return (int32_t)(uint32_t)word; }}
static inline int32_t fnb_high(uint64_t word) {{ return (int32_t)(uint32_t)(word >> 32); }}

static inline float fnb_float(uint64_t word) {{
  const uint32_t bits = (uint32_t)word;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}}

static inline double fnb_double(uint64_t word) {{
  double value;
  memcpy(&value, &word, sizeof value);
  return value;
}}

/* Shape and strides point into the words. */
static inline int fnb_read_tensor(fnb_reader* reader, fastnorm_tensor* tensor) {{
  const uint64_t* words = fnb_take(reader, {head});
  uint32_t rank;
  if (words == NULL) return 0;
  rank = (uint32_t)words[2] & 0x7fffffffu;
  tensor->data = (void*)(uintptr_t)words[0];
  tensor->device_type = fnb_low(words[1]);
  tensor->device_id = fnb_high(words[1]);
  tensor->ndim = (int32_t)rank;
  tensor->dtype = fastnorm_dtype_of((fastnorm_dtype_id)fnb_high(words[2]));
  tensor->shape = NULL;
  tensor->strides = NULL;
  tensor->byte_offset = words[3];
  if (rank > FNB_MAX_RANK) return 1;
  tensor->shape = (const int64_t*)fnb_take(reader, rank);
  if (tensor->shape == NULL) return 0;
  if ((words[2] >> 31 & 1) == 0) return 1;
  tensor->strides = (const int64_t*)fnb_take(reader, rank);
  return tensor->strides != NULL;
}}
"""


# --- what a family consists of ---


def scalars(tree, struct):
    """The fields that have a word of their own."""
    rest = struct.fields[1:]
    return [f for f in rest if not is_tensor(f.type) and not is_description(tree, f.type)]


def tensors(struct):
    return [f for f in struct.fields if is_tensor(f.type)]


def nested(tree, struct):
    """(field, the struct that it points to)."""
    return [
        (f, tree.find(f.type.to.name)) for f in struct.fields if is_description(tree, f.type)
    ]


def masked(tree, struct):
    """The fields that have a bit of the mask."""
    found = [*tensors(struct), *(f for f, _ in nested(tree, struct))]
    if len(found) > 64:
        raise TreeError(f"{struct.name}: more than 64 pointers do not fit the mask")
    return found


def max_words(tree, struct):
    own = len(scalars(tree, struct)) + 1 + len(tensors(struct)) * MAX_TENSOR_WORDS
    return own + sum(max_words(tree, to) for _, to in nested(tree, struct))


def short_name(struct):
    """NAME of fastnorm_NAME_args and of fastnorm_NAME."""
    return struct.name.removeprefix("fastnorm_").removesuffix("_args")


def descriptions(tree):
    """(name, struct) of all that is described; what others point to comes before them."""
    found = {}

    def visit(name, struct):
        for _, to in nested(tree, struct):
            visit(short_name(to), to)
        found.setdefault(name, struct)

    for family in tree.families:
        visit(family.name, family.args)
        if family.part is not None:
            visit(f"{family.name}_part", family.part)
    return found.items()


def c_type(type):
    """A type as C writes it."""
    if isinstance(type, Named):
        return type.name
    if isinstance(type, Pointer):
        inner = c_type(type.to)
        if isinstance(type.to, Pointer):
            return f"{inner}{' const' if type.const else ''}*"
        return f"{'const ' if type.const else ''}{inner}*"
    raise TreeError(f"no rule for a parameter of type {type}")


def from_word(tree, type, word):
    """A C expression: the word as a field's value."""
    if isinstance(type, Pointer):
        return f"({c_type(type)})(uintptr_t){word}"
    if tree.is_a(type, Enum):
        return f"({type.name})fnb_low({word})"
    if type.name in ("float", "double"):
        return f"fnb_{type.name}({word})"
    return f"({type.name}){word}"


# --- the decoder ---


def reader_of(tree, name, struct):
    given, structs = tensors(struct), nested(tree, struct)
    first, bits = len(scalars(tree, struct)), len(masked(tree, struct))
    lines = [
        f"/* {struct.name} with the tensors that it points to. */",
        f"typedef struct fnb_{name}_call {{",
        f"  {struct.name} args;",
        *([f"  fastnorm_tensor tensors[{len(given)}];"] if given else []),
        *(f"  fnb_{short_name(to)}_call {field.name};" for field, to in structs),
        f"}} fnb_{name}_call;",
        "",
        f"static inline int fnb_read_{name}(fnb_reader* reader, fnb_{name}_call* call) {{",
        f"  {struct.name}* const args = &call->args;",
        f"  const uint64_t* words = fnb_take(reader, {first + 1});",
        "  uint64_t mask;",
        "  if (words == NULL) return 0;",
        f"  mask = words[{first}];",
    ]
    if bits < 64:
        lines.append(f"  if (mask >> {bits} != 0) return 0;")
    lines += ["  memset(args, 0, sizeof *args);", "  args->struct_size = sizeof *args;"]
    lines += [
        f"  args->{f.name} = {from_word(tree, f.type, f'words[{i}]')};"
        for i, f in enumerate(scalars(tree, struct))
    ]
    for i, member in enumerate(given):
        lines += [
            f"  if (mask >> {i} & 1) {{",
            f"    if (!fnb_read_tensor(reader, &call->tensors[{i}])) return 0;",
            f"    args->{member.name} = &call->tensors[{i}];",
            "  }",
        ]
    for i, (field, to) in enumerate(structs, len(given)):
        lines += [
            f"  if (mask >> {i} & 1) {{",
            f"    if (!fnb_read_{short_name(to)}(reader, &call->{field.name})) return 0;",
            f"    args->{field.name} = &call->{field.name}.args;",
            "  }",
        ]
    return [*lines, "  return 1;", "}", ""]


def parts_shim(family, function):
    """fnb_X for a function that takes args and a list of parts: both are in `words`, args first."""
    name, part = family.name, family.part
    held = {
        Pointer(Named(family.args.name), True): "&call.args",
        Pointer(Pointer(Named(part.name), True), True): "list",
    }
    if {p.type for p in function.parameters if p.type in held} != set(held) or not any(
        p.name == "count" and p.type == Named("int32_t") for p in function.parameters
    ):
        raise TreeError(f"{function.name}: no rule for how it takes {part.name}")
    parameters = []
    for p in function.parameters:
        if p.type not in held:
            parameters.append(f"{c_type(p.type)} {p.name}")
        elif held[p.type] == "&call.args":
            parameters += ["const uint64_t* words", "size_t word_count"]

    def call(arguments):
        return f"{function.name}({', '.join(arguments.get(p.type, p.name) for p in function.parameters)})"

    return [
        f"static inline fastnorm_status fnb_{function.name.removeprefix('fastnorm_')}({', '.join(parameters)}) {{",
        "  fnb_reader reader = {words, word_count};",
        f"  fnb_{name}_call call;",
        f"  fnb_{name}_part_call parts[FNB_MAX_PARTS];",
        f"  const {part.name}* list[FNB_MAX_PARTS];",
        "  int32_t i;",
        f"  if (!fnb_read_{name}(&reader, &call)) return FNB_MALFORMED;",
        f"  if (count < 0 || count > FNB_MAX_PARTS) return {call({**held, Pointer(Pointer(Named(part.name), True), True): 'NULL'})};",
        "  for (i = 0; i < count; ++i) {",
        f"    if (!fnb_read_{name}_part(&reader, &parts[i])) return FNB_MALFORMED;",
        "    list[i] = &parts[i].args;",
        "  }",
        "  if (reader.left != 0) return FNB_MALFORMED;",
        f"  return {call(held)};",
        "}",
        "",
    ]


def shim_of(family, function):
    """fnb_X for fastnorm_X: `words, word_count` in the place of `args`."""
    name, struct = family.name, Named(family.args.name)
    one, many = Pointer(struct, True), Pointer(Pointer(struct, True), True)
    if family.part is not None:
        return parts_shim(family, function)
    if function.returns != Named("fastnorm_status"):
        raise TreeError(
            f"{function.name} takes {struct.name} and does not return a fastnorm_status"
        )
    taken = [p for p in function.parameters if p.type in (one, many)]
    if len(taken) != 1:
        raise TreeError(f"{function.name}: no rule for how it takes {struct.name}")
    is_many = taken[0].type == many
    if is_many and not any(
        p.name == "count" and p.type == Named("int32_t") for p in function.parameters
    ):
        raise TreeError(f"{function.name}: a list without int32_t count")
    parameters = []
    for p in function.parameters:
        parameters += (
            ["const uint64_t* words", "size_t word_count"]
            if p is taken[0]
            else [f"{c_type(p.type)} {p.name}"]
        )
    lines = [
        f"static inline fastnorm_status fnb_{function.name.removeprefix('fastnorm_')}({', '.join(parameters)}) {{"
    ]
    lines += [
        f"  fnb_reader reader = {{words, word_count}};" if not is_many else "  fnb_reader reader;"
    ]

    def call(argument):
        return f"{function.name}({', '.join(argument if p is taken[0] else p.name for p in function.parameters)})"

    if not is_many:
        lines += [
            f"  fnb_{name}_call call;",
            f"  if (!fnb_read_{name}(&reader, &call) || reader.left != 0) return FNB_MALFORMED;",
            f"  return {call('&call.args')};",
        ]
    else:
        lines += [
            f"  fnb_{name}_call calls[FNB_MAX_PARTS];",
            f"  const {struct.name}* list[FNB_MAX_PARTS];",
            "  int32_t i;",
            f"  if (count < 0 || count > FNB_MAX_PARTS) return {call('NULL')};",
            "  reader.words = words;",
            "  reader.left = word_count;",
            "  for (i = 0; i < count; ++i) {",
            f"    if (!fnb_read_{name}(&reader, &calls[i])) return FNB_MALFORMED;",
            "    list[i] = &calls[i].args;",
            "  }",
            "  if (reader.left != 0) return FNB_MALFORMED;",
            f"  return {call('list')};",
        ]
    return [*lines, "}", ""]


def comment(text):
    return (
        "\n".join(
            f"/* {line}" if i == 0 else f" * {line}".rstrip()
            for i, line in enumerate(text.split("\n"))
        )
        + " */"
    )


def decoder(tree):
    """words.h: C99, needs <fastnorm/fastnorm.h>. SWIG sees the fnb_ functions of the families
    only."""
    numbers = {"rank": MAX_RANK, "parts": MAX_PARTS, "head": TENSOR_WORDS}
    lines = [
        "/* Code generated by bindings/swig/words.py. DO NOT EDIT. */",
        comment(LAYOUT.format(**numbers)),
        "#ifndef FASTNORM_BINDINGS_WORDS_H_",
        "#define FASTNORM_BINDINGS_WORDS_H_",
        "",
        "#ifndef SWIG",
        "#include <fastnorm/fastnorm.h>",
        "#include <string.h>",
        "",
        HELPERS.format(**numbers),
    ]
    for name, struct in descriptions(tree):
        lines += reader_of(tree, name, struct)
    lines += ["#endif /* SWIG */", ""]
    for family in tree.families:
        for function in family.functions.values():
            lines += shim_of(family, function)
    lines.append("#endif /* FASTNORM_BINDINGS_WORDS_H_ */")
    return c_format("\n".join(lines) + "\n")


def c_format(text):
    """The text as the project's formatter writes it."""
    result = subprocess.run(
        [FORMATTER, f"--assume-filename={INCLUDE / 'words.h'}"],
        input=text,
        capture_output=True,
        text=True,
    )
    if result.returncode != 0:
        raise TreeError(f"clang-format: {result.stderr}")
    return result.stdout


# --- the constants ---

MEANING = """\
NAME_FIELD is the index of a scalar's word, NAME_MASK that of the mask. NAME_BIT_FIELD is the
number of a tensor's or a struct's bit in it, NAME_TENSORS the number of tensors, NAME_MAX_WORDS the
most words of a description. TENSOR_WORDS is the number of words of a tensor before its extents; one
of more than MAX_RANK dimensions carries none. MAX_PARTS is the number of descriptions that a _many
function takes."""


def constants(tree):
    """Groups of (name in C's lower case, value): what all share, then each struct's."""
    yield [("tensor_words", TENSOR_WORDS), ("max_rank", MAX_RANK), ("max_parts", MAX_PARTS)]
    for prefix, struct in descriptions(tree):
        own = [(f.name, i) for i, f in enumerate(scalars(tree, struct))]
        own += [("mask", len(own))]
        own += [(f"bit_{f.name}", i) for i, f in enumerate(masked(tree, struct))]
        own += [("tensors", len(tensors(struct))), ("max_words", max_words(tree, struct))]
        yield [(f"{prefix}_{name}", value) for name, value in own]


def camel(name):
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))


def go_constants(tree):
    """words.go of package raw, as gofmt writes it."""
    lines = [
        "// Code generated by bindings/swig/words.py. DO NOT EDIT.",
        "",
        "package raw",
        "",
        "// Where each value of a call lies in its list of words; words.h has the layout.",
    ]
    meaning = re.sub(r"[A-Z]+(_[A-Z]+)+", lambda name: camel(name[0].lower()), MEANING)
    lines += [f"// {line}" for line in meaning.split("\n")]
    lines.append("const (")
    for i, group in enumerate(constants(tree)):
        wide = max(len(camel(name)) for name, _ in group)
        lines += [""] if i > 0 else []
        lines += [f"\t{camel(name):{wide}} = {value}" for name, value in group]
    return "\n".join([*lines, ")"]) + "\n"


def java_constants(tree, package, name="Words"):
    """A package-private class of the same constants."""
    lines = [
        "// Code generated by bindings/swig/words.py. DO NOT EDIT.",
        f"package {package};",
        "",
        "/**",
        " * Where each value of a call lies in its list of words; words.h has the layout.",
    ]
    lines += [f" * {line}" for line in MEANING.split("\n")]
    lines += [" */", f"final class {name} {{", f"  private {name}() {{}}"]
    for group in constants(tree):
        lines += [
            "",
            *(f"  static final int {constant.upper()} = {value};" for constant, value in group),
        ]
    return "\n".join([*lines, "}"]) + "\n"


def generate(tree, out_dir):
    folder = out_dir / GO_RAW
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"words.h": decoder(tree), "words.go": go_constants(tree)}
    for name, text in texts.items():
        (folder / name).write_text(text)
    return [folder / name for name in texts]
