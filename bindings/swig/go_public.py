"""The public package of Go, as far as it follows from the headers.

enums.go has the enums. args.go has the descriptions of calls with their encoders, results.go what
calls fill in. Comments are the headers', with Go's names. The tables below have what the rules do
not give. How calls are made, and the formulas, stand in the files that are written by hand.
"""

import re
import textwrap
from itertools import groupby

import words
from tree import (
    Array,
    Enum,
    Named,
    Opaque,
    Pointer,
    TreeError,
    is_description,
    is_tensor,
    roles,
)

# Words that are not just written with a capital.
WORDS = {
    word.lower(): word
    for word in """BF16 CKV CPU CUDA DBias DBranch DGate DResidual DType DWeight DX DY E2M1FN E4M3FN
    E5M2 E8M0FNU KPE KV LSE MLA MXFP4 MXFP8 NVFP4 PDL PE QO QPE RMS RW SiLU""".split()
}
# Enums that this package has in another form, or not.
NO_ENUM = "context_flags norm_heads_flags profile_id trace_format peer_limits".split()
TYPES = {
    "norm_heads_part_flags": "NormHeadsFlags",
    "norm_heads_backward_flags": "NormHeadsFlags",
    "dtype_id": "DType",
    "peer_error": "PeerFailure",
    "kernel_info": "Kernel",
}
PREFIXES = {"DTYPE_": "", "ERROR_": "Status", "PEER_ERROR_": "Peer"}  # of enumerators
NAMES = {  # of enumerators, of fields, of functions
    "NORM_RMS": "RMS",
    "NORM_LAYER": "Layer",
    "NORM_MODULATION_PLAIN_SCALE": "NormPlainScale",
    "PEER_ERROR_NONE": "PeerNoFailure",
    "OK": "StatusOK",
    "DTYPE_F4_E2M1FN_X2": "F4E2M1FNx2",
    "quant.quantized": "Out",
    "mla_decode.sm_scale": "Scale",
    "mla_decode.max_s_q": "MaxNew",
    "mla_decode.total_kv_hint": "TotalKVHint",
    "peer_state.error": "Failure",
    "peer_options.wait_ns": "Wait",
    "profile_decode": "[DecodeProfile]",
    "kernel_describe": "[Kernels]",
}
# Flags that tell whether a factor is there, by its field. Enums whose flags are fields, and what is
# before their names.
FACTORS = {"norm.alpha": "NORM_ALPHA", "norm_backward.alpha": "NORM_BACKWARD_ALPHA"}
SWITCHES = {"fastnorm_norm_heads_flags": "FASTNORM_NORM_HEADS_"}
# The switches of calls, and one of a result.
BOOLS = {field for (_, field), role in roles().items() if role == "switch"} | {"connected"}
INT64 = {"total_kv_hint"}
NO_FIELD = {"struct_size", "parallel_user", "reserved", "stage_reserved"}
NO_FIELD_OF = {("norm_heads_backward", "slots")}  # gradients write to no cache
# Fields that make a struct of their own, by their prefix. PREFIX_norm tells whether it is there.
GROUPS = {"norm": ("branch", "Branch")}
RESULTS = ("info", "device_info", "kernel_info", "peer_state")  # what calls fill in
COMMENTS = {  # in the place of the headers', whose words are those of C
    "branch": "Branch describes the norm of X before the residual is added, as in Gemma: norm, "
    "sum, norm. Its statistics are of all n columns, whatever the GroupSize of the [Norm].",
    "norm.branch_norm": "The norm of X before the residual is added. nil: there is none.",
    "norm.branch_weight": "The weight of this norm, [.., n], with the rules of Weight of the "
    "[Norm]. Not given: 1.",
    "norm.branch_bias": "The bias of this norm, [.., n], with the rules of Bias of the [Norm]. Not "
    "given: 0.",
    "norm.alpha": "Factor of the branch in the sum, finite. nil: none.",
    "norm_backward.alpha": "The Alpha of the forward. nil: it had none.",
    "mla_decode.sm_scale": "Factor of the scores: finite and not 0, on a GPU > 0. Required.",
    "mla_decode.causal": "A new token does not attend to later ones.",
    "norm_heads": "NormHeads describes a call: what its parts share, and the parts.",
    "norm_heads_backward": "NormHeadsBackward describes the gradients of a [NormHeads]. The fields "
    "that its parts share have the values of the forward.",
    "norm_heads_backward_part.flags": "The flags of the forward, and those that accumulate.",
    "peer_state.error": "What stopped the peer.",
    "info": "Info is what a call would do. Nothing in it depends on the contents of tensors.",
    "dtype_id": "DType is an element type, as DLPack's code | bits << 8 | lanes << 16.",
    "status": "Status is the result of a call of the library. A newer library may return values "
    "without a name here; the decade, Status / 10, tells their kind.",
}
# What comments of C say, and what those of Go do.
PHRASES = (
    (r" (?:Strings are static|Static|Since 0\.\d)\.|, zero-terminated", ""),
    (r"A zeroed struct with struct_size,\s+(?:peer(?:,| and)\s+)?", "The zero value with "),
    (r" [^.]* at the top of this header\.", ""),
    (r'see "Stages" above', "see [Norm.Run]"),
    (r"\bx\.shape\[:-1\]", "x's shape without its last extent"),
    (r"`(\w+)`", r"\1"),
    (r"\bNULL(?: = |: )", "not given: "),
    (r"\bmay be NULL\b", "need not be given"),
    (r"\bNULL\b", "not given"),
    (r"((?:^|\.\s)n)ot given", lambda m: m[1].upper() + "ot given"),
    (r"\bFASTNORM_ERROR_(\w+)", lambda m: f"[Err{camel(m[1].lower())}]"),
)
BOOL_PHRASES = ((r"\b1(?=:| = | once)", "true"), (r"\b0:", "false:"), (r"\belse 0", "else false"))
DTYPES = re.compile(r"\b(?:bf16|f16|f32|[iu]8|i32|i64|f8_e\w+|f4_e\w+)\b")
# Words of English, where a comment is about no field.
ENGLISH = ("mean", "scale", "rounding", "norm")


def camel(name):
    return "".join(WORDS.get(word, word[:1].upper() + word[1:]) for word in name.split("_"))


def type_name(item):
    name = words.short_name(item)
    return TYPES.get(name) or camel(name)


def enumerator(name):
    """The Go name of an enumerator."""
    name = name.removeprefix("FASTNORM_")
    prefix = max((p for p in PREFIXES if name.startswith(p)), key=len, default="")
    return NAMES.get(name) or PREFIXES.get(prefix, "") + camel(name[len(prefix) :].lower())


def field_name(description, name):
    return NAMES.get(f"{description}.{name}") or camel(name)


def public_enums(tree):
    return [e for e in tree.enums if words.short_name(e) not in NO_ENUM]


def flags_of(tree, field):
    """The enums of a field of flags, which its comment names."""
    named = re.findall(r"\w+", field.doc)
    return [e for e in tree.enums if e.name in named]


# --- comments ---


class Scope:
    """Where a comment stands: what its words may name."""

    def __init__(self, tree, name="", struct=None, enum=None):
        self.tree, fields = tree, struct.fields if struct else []
        flags = [e for f in fields if f.name == "flags" for e in flags_of(tree, f)]
        typed = [e for e in tree.enums if any(f.type == Named(e.name) for f in fields)]
        self.enums = [*([enum] if enum else []), *flags, *typed]
        self.nested = {}
        # Names of C with an underscore stand for nothing else; a struct's own names come last.
        names = {
            f.name: field_name(words.short_name(s), f.name)
            for s in tree.structs
            for f in s.fields
            if "_" in f.name
        }
        for field, to in words.nested(tree, struct) if struct else ():
            self.nested[field.name] = words.short_name(to)
            names |= {f.name: field_name(words.short_name(to), f.name) for f in to.fields}
        names |= {f.name: field_name(name, f.name) for f in fields} | {"x": "X", "y": "Y"}
        if name in GROUPS:
            prefix, go = GROUPS[name]
            own = {f: f"{go}.{camel(f[len(prefix) + 1 :])}" for f in names if f.startswith(prefix)}
            names |= own | {f"{prefix}_norm": go}
        self.names = {c: go for c, go in names.items() if struct and not enum or c not in ENGLISH}

    def capitals(self, match):
        """The end of an enumerator's name, in an enum of this scope or in one alone."""
        for enums in (*([e] for e in self.enums), public_enums(self.tree)):
            found = [v for e in enums for v in e.values if v.name.endswith(f"_{match[0]}")]
            if len(found) == 1:
                return enumerator(found[0].name)
        return match[0]

    def c_name(self, match):
        """fastnorm_NAME or fastnorm_NAME.FIELD."""
        name, field = match[1], match[2]
        if name in NAMES:
            return NAMES[name]
        for item in [*self.tree.structs, *self.tree.enums]:
            if item.name in (f"fastnorm_{name}", f"fastnorm_{name}_args"):
                field = f".{field_name(words.short_name(item), field)}" if field else ""
                return f"[{type_name(item)}]{field}"
        raise TreeError(f"no name in Go for {match[0]}")

    def word(self, match):
        """A field, or a field of a struct that it points to."""
        name, field = match[1], match[2]
        if field and name in self.nested:
            return f"{self.names[name]}.{field_name(self.nested[name], field)}"
        return self.names.get(name, name) + (f".{field}" if field else "")

    def say(self, text, phrases=()):
        """A comment of the headers with Go's names."""
        for pattern, go in (*PHRASES, *phrases):
            text = re.sub(pattern, go, text)
        text = re.sub(r"\bFASTNORM_\w+", lambda m: enumerator(m[0]), text)
        text = re.sub(r"\b(?!CPU\b|CUDA\b)[A-Z][A-Z0-9_]+\b", self.capitals, text)
        text = re.sub(r"\bfastnorm_(\w+)(?:\.(\w+))?", self.c_name, text)
        text = DTYPES.sub(lambda m: enumerator(f"DTYPE_{m[0].upper()}"), text)
        # After an article it is a word of English.
        own = r"(?<![.\w])(?<!\b[Aa] )(?<!\bOne )(?!mean (?:what|square))([a-z]\w*)(?:\.([a-z]\w+))?"
        return re.sub(own, self.word, text)


def comment(text, indent=""):
    lines = []
    for block in re.split(r"\n\n+", text.strip()):
        filled = textwrap.wrap(block, 97 - len(indent), break_on_hyphens=False)
        lines += [*(["//"] if lines else []), *(f"// {line}" for line in filled)]
    return [indent + line for line in lines]


def introduced(name, text):
    """The comment of a type begins with its name."""
    verb = re.match(r"(Bits )|(?:One|A|What|Where|How) ", text)
    verb = ":" if not verb else " are" if verb[1] else " is"
    return f"{name}{verb} {text[:1].lower()}{text[1:]}"


# --- enums ---


def scope_of_enum(tree, enum):
    """That of the first description with a field of the enum, by its type or its comment."""
    for name, struct in words.descriptions(tree):
        if any(f.type == Named(enum.name) or enum in flags_of(tree, f) for f in struct.fields):
            return Scope(tree, name, struct, enum)
    return Scope(tree, enum=enum)


def enums_go(tree):
    lines, types = [], set()
    for enum in public_enums(tree):
        name, scope = type_name(enum), scope_of_enum(tree, enum)
        if name not in types:
            own = COMMENTS.get(words.short_name(enum))
            number = "uint32" if name.endswith("Flags") or name == "DType" else "int32"
            lines += ["", *comment(own or introduced(name, scope.say(enum.doc)))]
            lines += [f"type {name} {number}"]
        types.add(name)
        lines += ["", f"// Values of [{name}].", "const ("]
        for value in enum.values:
            if value.name.removeprefix("FASTNORM_") in FACTORS.values():
                continue
            line = f"\t{enumerator(value.name)} {name} = raw.{value.name}"
            if len(line) > 96:
                line = f"\t{enumerator(value.name)} = {name}(\n\t\traw.{value.name})"
            lines += [*(comment(scope.say(value.doc), "\t") if value.doc else []), line]
        lines.append(")")
        if name == "DType":
            lines += ["", "var dtypeNames = map[DType]string{"]
            for value in enum.values:
                own = value.name.removeprefix("FASTNORM_DTYPE_").lower()
                lines.append(f'\t{enumerator(value.name)}: "{own}",')
            lines.append("}")
    return lines


# --- descriptions of calls ---


def value_type(tree, field):
    """The Go type of a scalar."""
    if tree.is_a(field.type, Enum):
        return type_name(tree.find(field.type.name))
    if field.name == "flags":
        found = flags_of(tree, field)
        if not found:
            raise TreeError(f"the comment of a field of flags names no enum: {field.doc}")
        return type_name(found[0])
    if field.name in BOOLS:
        return "bool"
    if field.name in INT64:
        return "int64"
    types = {"uint64_t": "uint64", "float": "float32", "double": "float64"}
    return types.get(field.type.name, "int")


def as_word(kind, field, value):
    """The word of a value."""
    if kind == "int" and field.type == Named("int32_t"):
        return f"uint64(clip({value}))"
    forms = {"bool": "bit({})", "float64": "math.Float64bits({})"}
    forms["float32"] = "uint64(math.Float32bits({}))"
    return forms.get(kind, "uint64({})").format(value)


class Description:
    """A description of a call, or a part of one."""

    def __init__(self, tree, name, struct, family):
        self.tree, self.name, self.struct, self.family = tree, name, struct, family
        self.type, self.scope = camel(name), Scope(tree, name, struct)
        self.is_call = family is not None and struct is family.args
        self.fields, self.code = [], []  # (group, lines) of the struct and of the encoder
        self.handles = [f.name for f in struct.fields if self.is_handle(f)]
        if self.is_call and family.part is not None:
            self.fields.append(("", [f"\tParts []{type_name(family.part)} // at most 8"]))
        for field in struct.fields:
            if field.name not in NO_FIELD and (name, field.name) not in NO_FIELD_OF:
                # Words of scalars come first, then tensors, then structs.
                rank = 2 * is_description(tree, field.type) + is_tensor(field.type)
                self.code.append((rank, *self.add(field)))
        self.code.sort(key=lambda entry: entry[0])

    def is_handle(self, field):
        return isinstance(field.type, Pointer) and self.tree.is_a(field.type.to, Opaque)

    def raw(self, name):
        return "raw." + words.camel(f"{self.name}_{name}")

    def add(self, field):
        """Declares a field; its group and what encodes it."""
        name, group, of = field.name, "", "d"
        go, word = field_name(self.name, name), f"w[{self.raw(name)}]"
        if self.name in GROUPS and name.startswith(GROUPS[self.name][0] + "_"):
            prefix, group = GROUPS[self.name]
            go, of = camel(name[len(prefix) + 1 :]), f"d.{group}"
            if name == f"{prefix}_norm":
                self.declare("", group, f"*{group}", field)
                return group, [f"{word} = 1"]
        if self.is_handle(field):
            return "", [f"{word} = uint64({name})"]
        if is_tensor(field.type):
            self.declare(group, go, "Tensor", field)
            return group, [f"q.tensor(part, {self.raw(f'bit_{name}')}, &{of}.{go})"]
        if is_description(self.tree, field.type):
            return "", self.add_nested(field, go, self.tree.find(field.type.to.name))
        if f"{self.name}.{name}" in FACTORS:
            self.declare(group, go, "*float32", field)
            flag = f"raw.FASTNORM_{FACTORS[f'{self.name}.{name}']}"
            lines = [f"w[{self.raw('flags')}] |= {flag}"]
            lines += [f"{word} = uint64(math.Float32bits(*d.{go}))"]
            return group, [f"if d.{go} != nil {{", *lines, "}"]
        for enum in flags_of(self.tree, field):
            if enum.name in SWITCHES:
                return group, self.add_switches(enum, word)
        if array := re.fullmatch(r"(\w+)_(\d)", name):
            go = camel(array[1])
            if array[2] == "0":
                count = sum(f.name.startswith(f"{array[1]}_") for f in self.struct.fields)
                self.declare(group, go, f"[{count}]int", field)
            return group, [f"{word} = {as_word('int', field, f'd.{go}[{array[2]}]')}"]
        kind = value_type(self.tree, field)
        self.declare(group, go, kind, field)
        return group, [f"{word} = {as_word(kind, field, f'{of}.{go}')}"]

    def add_nested(self, field, go, to):
        """A struct that the description points to: by value where it is required."""
        required = "Required" in field.doc
        self.declare("", go, ("" if required else "*") + type_name(to), field)
        name = words.short_name(to)
        at = f'{self.raw(f"bit_{field.name}")}, "{field.name}.", {names_of(name)}'
        lines = [f"q.enter({at})", f"d.{go}.encode(q, part)", "q.leave()"]
        return lines if required else [f"if d.{go} != nil {{", *lines, "}"]

    def add_switches(self, enum, word):
        lines = []
        for value in enum.values:
            go = camel(value.name.removeprefix(SWITCHES[enum.name]).lower())
            self.declare("", go, "bool", value)
            lines += [f"if d.{go} {{", f"{word} |= raw.{value.name}", "}"]
        return lines

    def declare(self, group, go, kind, said):
        phrases = BOOL_PHRASES if kind == "bool" else ()
        text = COMMENTS.get(f"{self.name}.{said.name}") or self.scope.say(said.doc, phrases)
        self.fields.append((group, [*comment(text, "\t"), f"\t{go} {kind}"]))

    def declaration(self):
        doc = COMMENTS.get(self.name) or introduced(self.type, self.scope.say(self.struct.doc))
        if self.is_call:
            doc += f"\n\n[{formulas(self.type)}] has the formulas."
        structs = [("", self.type, doc)]
        if self.name in GROUPS:
            structs.append((GROUPS[self.name][1], GROUPS[self.name][1], COMMENTS["branch"]))
        for group, name, doc in structs:
            own = [line for g, lines in self.fields if g == group for line in lines]
            yield from ["", *comment(doc), f"type {name} struct {{", *own, "}"]

    def encoder(self):
        yield from ["", f"var {names_of(self.name)} = []string{{"]
        yield from (f'\t"{field.name}",' for field in words.tensors(self.struct))
        handles = "".join(f", {handle} uintptr" for handle in self.handles)
        yield from ["}", "", f"func (d *{self.type}) encode(q *call, part int{handles}) {{"]
        yield f"w := q.begin({self.raw('mask')})"
        for group, entries in groupby(self.code, lambda entry: entry[1]):
            own = [line for *_, lines in entries for line in lines]
            yield from [f"if d.{group} != nil {{", *own, "}"] if group else own
        yield "}"


def formulas(name):
    """The method whose comment has them."""
    peer = name.startswith("Peer")
    return f"Peer.{name.removeprefix('Peer')}" if peer else f"{name}.Run"


def names_of(description):
    """The variable of the tensors' names."""
    return f"{description[:1]}{words.camel(description)[1:]}Tensors"


# --- calls ---

CALL = """
func (d *{go}) call({parameters}) *call {{
	q := newCall(1, {most})
	d.encode(q, 0{handles})
	return q
}}"""
CALL_OF_PARTS = """
// call encodes what the parts share, then the parts. Of a list that is too long the library refuses
// the number.
func (d *{go}) call() *call {{
	parts := d.Parts
	if len(parts) > raw.MaxParts {{
		parts = nil
	}}
	q := newCall(1, {most}+len(parts)*raw.{words}PartMaxWords)
	q.count = clip(len(d.Parts))
	d.encode(q, shared)
	for i := range parts {{
		parts[i].encode(q, i)
	}}
	return q
}}"""
FAMILY = """
var call{go} = &family{{
	{tensors},
	run: func(target uintptr, q *call) int32 {{
		return raw.Fnb_{name}(target, {given}, q.workspace,
			q.workspaceBytes, q.stream)
	}},
	prepare: func(target uintptr, q *call) int32 {{
		return raw.Fnb_{name}_prepare(target, {given})
	}},
	query: func(target uintptr, q *call, info raw.Fastnorm_info) int32 {{
		return raw.Fnb_{name}_query(target, {given}, info)
	}},
}}"""


def calls_go(description):
    """What begins the calls of a family, and the library's functions for them."""
    family, go, in_raw = description.family, description.type, words.camel(description.name)
    values = {
        "go": go,
        "words": in_raw,
        "most": f"raw.{in_raw}MaxWords",
        "handles": "".join(f", {handle}" for handle in description.handles),
        "parameters": ", ".join(f"{handle} uintptr" for handle in description.handles),
    }
    given = "q.list(), uintptr(q.used)"
    tensors = f"tensors: {names_of(family.name)}"
    if family.part is not None:
        yield CALL_OF_PARTS.format(**values)
        tensors = f'tensors: {names_of(f"{family.name}_part")}, list: "parts", shared: '
        tensors, given = tensors + names_of(family.name), f"{given}, q.count"
    else:
        yield CALL.format(**values)
    yield FAMILY.format(go=go, name=family.name, given=given, tensors=tensors)
    if "many" in family.functions:
        tensors, given = f'{tensors}, list: "args"', f"{given}, q.count"
        name = f"{family.name}_many"
        yield FAMILY.format(go=f"{go}Many", name=name, given=given, tensors=tensors)


def descriptions(tree):
    families = {f.name: f for f in tree.families}
    for name, struct in words.descriptions(tree):
        yield Description(tree, name, struct, families.get(name.removesuffix("_part")))


def args_go(tree):
    for description in descriptions(tree):
        yield from [*description.declaration(), *description.encoder()]
        if description.is_call:
            yield from calls_go(description)


# --- results ---


def results_go(tree):
    """Structs that the library fills in, read by the functions of the raw layer."""
    for name in RESULTS:
        struct = tree.find(f"fastnorm_{name}")
        scope, go, read = Scope(tree), type_name(struct), []
        yield from ["", *comment(COMMENTS.get(name) or introduced(go, scope.say(struct.doc)))]
        yield f"type {go} struct {{"
        for field in struct.fields:
            if field.name in NO_FIELD:
                continue
            text = isinstance(field.type, Pointer | Array)
            kind = "string" if text else value_type(tree, field)
            phrases = BOOL_PHRASES if kind == "bool" else ()
            doc = COMMENTS.get(f"{name}.{field.name}") or scope.say(field.doc, phrases)
            yield from comment(doc, "\t")
            yield f"\t{field_name(name, field.name)} {kind}"
            value = f"from.Get{field.name[:1].upper()}{field.name[1:]}()"
            if kind == "bool":
                value += " != 0"
            elif kind not in ("string", "uint64"):
                value = f"{kind}({value})"
            read.append(f"{field_name(name, field.name)}: {value},")
        yield from ["}", "", f"func {go[:1].lower()}{go[1:]}Of(from raw.Fastnorm_{name}) {go} {{"]
        yield from [f"return {go}{{", *read, "}", "}"]


# --- what the tests compare with ---


def descriptions_test_go(tree):
    """Each description, its calls, and where the C compiler has its fields."""
    yield from ["", "var descriptions = []described{"]
    for d in descriptions(tree):
        family = f"call{camel(d.family.name)}" if d.family else "nil"
        yield f'\t{{"{d.name}",\n\t\t&{d.type}{{}}, {names_of(d.name)}, {family}, []cField{{'
        yield from (f'\t\t{{"{f.name}", {f.offset}, {f.size}}},' for f in d.struct.fields)
        yield "\t}},"
    yield "}"


def texts(tree, generated):
    """Texts by their names, before gofmt."""
    own = {
        "enums.go": (enums_go, ["raw"]),
        "args.go": (args_go, ["math", "raw"]),
        "results.go": (results_go, ["raw"]),
        "descriptions_test.go": (descriptions_test_go, []),
    }
    paths = {"math": "math", "raw": "github.com/libfastnorm/libfastnorm/bindings/go/internal/raw"}
    found = {}
    for name, (lines, imports) in own.items():
        imported = ["", "import (", *(f'\t"{paths[i]}"\n' for i in imports), ")"] if imports else []
        found[name] = "\n".join([generated, "", "package fastnorm", *imported, *lines(tree), ""])
    names = (f"DESCRIPTION({name})\n" for name, _ in words.descriptions(tree))
    found["internal/direct/descriptions.h"] = (
        f"/* {generated[3:]} */\n/* clang-format off */\n{''.join(names)}"
    )
    return found
