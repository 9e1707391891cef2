"""The part of Java's public API that enumerates what the headers have, with their comments.

Each enum of the headers is one of Java's. Each description of a call is a class NAMEFields, with a
setter for each field. A class NAME extends it, which is written by hand: how a call begins, what
sets several fields at once, and how it is run. Builds make these classes, as they make the raw
layer."""

import re
import textwrap

import words
from tree import Enum, Pointer, TreeError, base_name, is_tensor, roles, short_name

PACKAGE = "dev.fastnorm"

# Classes whose names are not the C names in Java's form.
RENAMED = {"fastnorm_peer_error": "PeerFailure"}
# Enums that have methods beside their values, and are written by hand.
HAND_WRITTEN = {
    "fastnorm_dtype_id": "DType",
    "fastnorm_profile_kind": "Profile.Kind",
    "fastnorm_status": "Status",
}
# Enums whose values are methods or constants, as the values of all enums of flags are.
NO_ENUMS = {
    "fastnorm_norm_kind",
    "fastnorm_peer_limits",
    "fastnorm_profile_id",
    "fastnorm_trace_format",
}

NORM = {"kind": "rms", "eps": "rms"}
BRANCH = {"branch_norm": "branchRms", "branch_kind": "branchRms", "branch_eps": "branchRms"}
ROPE = {"rope_dim": "rope", "cos": "rope", "sin": "rope"}
ROPE |= {f"mrope_{axis}": "mrope" for axis in range(4)}
# Fields and flags that have no setter here: the method written by hand that sets them, or None
# where Java does not set them.
BY_HAND = {
    "norm": {**NORM, **BRANCH, "alpha": "alpha", "ALPHA": "alpha"},
    "norm_backward": {**NORM, **BRANCH, "alpha": "alpha", "ALPHA": "alpha"},
    "norm_heads": ROPE,
    "norm_heads_part": {**NORM, "NORM": "rms", "rope_offset": "rope", "ROPE": "rope", "x": "of"},
    "norm_heads_backward": {**ROPE, "slots": None},
    "norm_heads_backward_part": {
        **NORM,
        **{"NORM": "rms", "rope_offset": "rope", "ROPE": "rope", "ROPE_FROM_ROUNDED": None},
        **{"dy": "of", "x": "rms"},
    },
    "mla_decode": {
        "sm_scale": "of",
        **{"max_s_q": "qoIndptr", "qo_indptr": "qoIndptr"},
        **{"profile": "profile", "profile_events": "profile"},
    },
    "peer_allreduce_norm": {"peer": "of", "norm": "of"},
    "peer_sharded_norm": {**NORM, "peer": "rms", "MODULATION_PLAIN_SCALE": None, "ALPHA": None},
}
# What a description points to: the names of setters that are not the fields', and what their
# comments begin with.
POINTED = {
    "quant": (
        {
            "scheme": "quantScheme",
            "block_size": "quantBlockSize",
            "source": "quantSource",
            "division": "quantDivision",
        },
        "",
    ),
    "cache_quant": (
        {
            "scheme": "cacheScheme",
            "block_size": "cacheBlockSize",
            "source": "cacheSource",
            "division": "cacheDivision",
            "scale_pow2": "cachePow2",
            "amax_floor": "cacheAmaxFloor",
            "scale": "cacheScale",
            "rotation": "cacheRotation",
            "rotation_signs": "cacheRotationSigns",
            # The cache itself takes the codes, and has none of these.
            **dict.fromkeys(("scale_layout", "clamp", "quantized", "global_scale"), None),
            **dict.fromkeys(("clamp_scale", "amax", "y_rotated"), None),
        },
        "For the codes of the cache. ",
    ),
}
WHETHER = "whether this holds; the default is false"  # the parameter of a switch or a flag
# How comments tell what a switch, a whole number that is 0 or 1, is.
TRUTHS = ((r"\b1(?=:| =)", "true"), (r"\b0(?=:| =)", "false"), (r"\belse 0\b", "else false"))
NUMBERS = {
    "int32_t": ("int", "{}"),
    "uint32_t": ("int", "Integer.toUnsignedLong({})"),
    "int64_t": ("long", "{}"),
    "uint64_t": ("long", "{}"),
    "float": ("double", "(float) {}"),
    "double": ("double", "Double.doubleToRawLongBits({})"),
}


def camel(name):
    """residual_out as residualOut."""
    first, *rest = name.lower().split("_")
    return first + "".join(word.capitalize() for word in rest)


def class_name(name):
    """The class for fastnorm_NAME, fastnorm_NAME_args or a description NAME."""
    short = name.removeprefix("fastnorm_").removesuffix("_args")
    return RENAMED.get(name) or HAND_WRITTEN.get(name) or words.camel(short)


# --- enums ---


def value_names(enum):
    """Names of an enum's values, without what all of them begin with."""
    return {v.name: short_name(enum, v) for v in enum.values}


def is_flags(enum):
    return enum.name.endswith("_flags")


def is_enum(enum):
    """Whether it is an enum of Java's, too."""
    return not is_flags(enum) and enum.name not in NO_ENUMS


def enum_class(tree, enum):
    name = class_name(enum.name)
    text = Text(tree)
    lines = [
        *head(),
        *text.comment("", enum.doc),
        f"public enum {name} {{",
    ]
    for i, (value, short) in enumerate(value_names(enum).items()):
        end = "," if i + 1 < len(enum.values) else ";"
        lines += text.comment("    ", enum.values[i].doc)
        lines += [f"    {short}({enum.name}.{value}){end}"]
    lines += ["", "    final int id;", "", f"    {name}(int id) {{", "        this.id = id;"]
    return "\n".join([*lines, "    }", "}"]) + "\n"


# --- comments ---


class Text:
    """The headers' comments as Javadoc, with Java's names."""

    def __init__(self, tree):
        self.names = {"NULL": "null", "LAYER": "layer norm"}
        for enum in tree.enums:
            if is_enum(enum):
                own = class_name(enum.name)
                pairs = value_names(enum).items()
                self.names |= {name: f"{{@link {own}#{short}}}" for name, short in pairs}
            if enum.name == "fastnorm_dtype_id":
                self.names |= {s.lower(): s for s in value_names(enum).values()}
        for name, struct in words.descriptions(tree):
            if name not in POINTED:
                self.names[struct.name] = f"{{@link {class_name(name)}}}"
        info = tree.find("fastnorm_info")
        self.names |= {f"{info.name}.{f.name}": link("Info", camel(f.name)) for f in info.fields}
        for field in tree.find("fastnorm_quant").fields:
            method = POINTED["quant"][0].get(field.name, camel(field.name))
            self.names[f"fastnorm_quant.{field.name}"] = link("Norm", method)

    def javadoc(self, text):
        """The text in HTML; between backquotes it is code."""
        text = re.sub(r"[&<>]", lambda c: {"&": "&amp;", "<": "&lt;", ">": "&gt;"}[c[0]], text)
        parts = " ".join(text.split()).split("`")
        for i, part in enumerate(parts):
            parts[i] = f"{{@code {part}}}" if i % 2 else self.translated(part)
        return re.sub(r"(^|\. )layer norm", r"\1Layer norm", "".join(parts))

    def translated(self, text):
        def name(found):
            return self.names.get(found[0]) or self.names.get(found[1], found[1]) + found[2]

        text = re.sub(r"(\w+)((?:\.\w+)?)", name, text)
        left = re.search(r"(?i)\bfastnorm_\w+", text)
        if left:
            raise TreeError(f"no name of Java for {left[0]} in a comment: {text}")
        return text

    def comment(self, indent, text, tags=()):
        """A Javadoc comment of whole lines."""
        width = 100 - len(indent) - 3
        body = textwrap.wrap(self.javadoc(text), width, break_on_hyphens=False)
        if len(body) == 1 and not tags and len(body[0]) < width - 4:
            return [f"{indent}/** {body[0]} */"]
        for i, tag in enumerate(tags):
            body += [""] if i == 0 else []
            body += textwrap.wrap(tag, width, subsequent_indent="    ", break_on_hyphens=False)
        lines = [f"{indent} * {line}".rstrip() for line in body]
        return [f"{indent}/**", *lines, f"{indent} */"]


def link(owner, method):
    return f"{{@link {owner}#{method} {method}}}"


def statement(call, arguments):
    """A call as one line, or with an argument a line."""
    line = f"{call}({', '.join(arguments)});"
    if len(line) <= 100:
        return [line]
    begin = " " * (len(call) - len(call.lstrip()) + 8)
    rest = [f"{begin}{argument}," for argument in arguments]
    return [f"{call}(", *rest[:-1], f"{rest[-1][:-1]});"]


def head():
    return [
        "// Code generated by bindings/swig/java_api.py. DO NOT EDIT.",
        f"package {PACKAGE};",
        "",
    ]


# --- setters ---


class Fields:
    """The class NAMEFields of one description."""

    def __init__(self, tree, name, struct):
        self.tree, self.name, self.struct = tree, name, struct
        self.owner = class_name(name)
        self.by_hand = BY_HAND.get(name, {})
        self.roles = roles()
        self.text = Text(tree)
        self.used = set()
        self.methods = {}  # lines by name
        self.pointed = [
            (field, to) for field, to in words.nested(tree, struct) if field.name in POINTED
        ]
        self.name_fields()
        for field in struct.fields:
            self.add(field)
        unknown = set(self.by_hand) - self.used
        if unknown:
            raise TreeError(f"{struct.name} has no {', '.join(sorted(unknown))}: BY_HAND of Java")

    def role(self, struct, field):
        """What fields.csv says that it is."""
        role = self.roles.get((struct.name, field.name))
        if role is None:
            raise TreeError(f"{struct.name}.{field.name} is not in src/schema/fields.csv")
        return role

    def has_setter(self, field):
        return self.role(self.struct, field) not in ("size", "user", "reserved")

    def setter_of(self, field):
        """Its method, None where there is none."""
        if field.name in self.by_hand or not self.has_setter(field):
            return self.by_hand.get(field.name)
        return camel(field.name)

    def flags(self, field):
        """(enum, names) of the enums of flags that a field's comment names."""
        is_flags = self.role(self.struct, field) == "flags"
        named = re.findall(r"fastnorm_\w+_flags", field.doc) if is_flags else []
        return [(enum, value_names(enum)) for enum in map(self.tree.find, named)]

    def name_fields(self):
        """Other fields and flags in comments are links. A word that is a field, too, stays."""
        names = self.text.names
        for field in self.struct.fields:
            method = self.setter_of(field)
            if method and "_" in field.name:
                names[field.name] = link(self.owner, method)
            for _, flags in self.flags(field):
                for name, short in flags.items():
                    method = self.by_hand.get(short, camel(short))
                    if method:
                        names[name] = names[short] = link(self.owner, method)
        for pointer, to in self.pointed:
            renamed, _ = POINTED[pointer.name]
            for field in to.fields:
                method = renamed.get(field.name, camel(field.name))
                if method:
                    names[f"{pointer.name}.{field.name}"] = link(self.owner, method)

    def add(self, field):
        if field.name in self.by_hand:
            self.used.add(field.name)
        elif not self.has_setter(field):
            return
        elif self.role(self.struct, field) == "flags":
            self.add_flags(field)
        elif field.name in POINTED:
            self.add_pointed(field)
        else:
            self.add_field(camel(field.name), "description", self.name, self.struct, field)

    def add_flags(self, field):
        previous = ""
        for enum, names in self.flags(field):
            for value in enum.values:
                short = names[value.name]
                if short in self.by_hand:
                    self.used.add(short)
                    continue
                method = camel(short)
                doc = re.sub(r"^The same for ", f"As {previous}, for ", value.doc)
                index = f"Words.{self.name.upper()}_FLAGS"
                arguments = [index, f"{enum.name}.{value.name}", method]
                self.method(method, doc, "boolean", WHETHER, arguments)
                previous = previous if doc != value.doc else value.name

    def add_pointed(self, pointer):
        renamed, begin = POINTED[pointer.name]
        to = self.tree.find(base_name(pointer.type))
        for field in to.fields[1:]:
            method = renamed.get(field.name, camel(field.name))
            if method:
                owner = camel(pointer.name)
                self.add_field(method, owner, words.short_name(to), to, field, begin, pointer)

    def add_field(self, method, owner, name, struct, field, begin="", pointer=None):
        doc, role = field.doc, self.role(struct, field)
        for one, truth in TRUTHS if role == "switch" else ():
            doc = re.sub(one, truth, doc)
        doc = begin + doc
        path = f"{pointer.name}.{field.name}" if pointer else field.name
        if is_tensor(field.type):
            arguments = [f"Words.{name.upper()}_BIT_{field.name.upper()}", method]
            output = role.endswith("out")
            call = "output" if output else "input"
            if output:
                arguments.insert(1, f'"{path}"')
            type, what = "Tensor", "the tensor, or null to remove it"
        else:
            call, output = "set", False
            type, what, word = self.scalar(field, role, method)
            arguments = [f"Words.{name.upper()}_{field.name.upper()}", word]
        if path != method:
            what = f"{{@code {path}}}: {what}"
        self.method(method, doc, type, what, arguments, f"{owner}.{call}", output)

    def scalar(self, field, role, method):
        """(type, what it is, its word) of a parameter that is no tensor."""
        kind = base_name(field.type)
        if self.tree.is_a(field.type, Enum):
            enum = self.tree.find(kind)
            own, names = class_name(kind), value_names(enum)
            zero = [names[v.name] for v in enum.values if v.value == 0]
            what = "".join(f"; the default is {{@link {own}#{name}}}" for name in zero)
            return own, f"the value{what}", f"{method}.id"
        if role == "switch":
            return "boolean", WHETHER, f"{method} ? 1 : 0"
        if isinstance(field.type, Pointer) or kind not in NUMBERS:
            raise TreeError(
                f"{self.struct.name}.{field.name}: no rule for a setter of Java; "
                "write it by hand and add it to BY_HAND in java_api.py"
            )
        type, word = NUMBERS[kind]
        what = f"the value{', as a float' if kind == 'float' else ''}; the default is 0"
        return type, what, word.format(method)

    def method(self, name, doc, type, what, arguments, call="description.set", throws=False):
        if name in self.methods:
            raise TreeError(f"{self.struct.name}: two setters {name} of Java")
        tags = [f"@param {name} {what}", "@return this"]
        if throws:
            tags += ["@throws IllegalArgumentException if its buffer is read-only"]
        self.methods[name] = [
            "",
            *self.text.comment("    ", doc, tags),
            f"    public {self.owner} {name}({type} {name}) {{",
            *statement(f"        {call}", arguments),
            f"        return ({self.owner}) this;",
            "    }",
        ]

    def base(self):
        """What the class extends, with the parameters that its constructor passes on."""
        if self.struct.name.endswith("_part"):
            return "", "", ""
        peers = any(base_name(f.type) == "fastnorm_peer" for f in self.struct.fields)
        if peers:
            return " extends PeerCall", "Peer peer, Nccl nccl", "peer, nccl"
        return " extends Call", "", ""

    def source(self):
        extends, parameters, arguments = self.base()
        upper = self.name.upper()
        lines = [
            *head(),
            f"/** Setters of {{@link {self.owner}}}: one a field, with the headers' comments. */",
            f"abstract sealed class {self.owner}Fields{extends} permits {self.owner} {{",
            *statement(
                "    final Description description = new Description",
                [f"Words.{upper}_MASK", f"Words.{upper}_TENSORS"],
            ),
        ]
        for field, to in self.pointed:
            other = words.short_name(to).upper()
            lines += statement(
                f"    final Description {camel(field.name)} = description.pointsTo",
                [
                    f"Words.{upper}_BIT_{field.name.upper()}",
                    f"new Description(Words.{other}_MASK, Words.{other}_TENSORS)",
                ],
            )
        if parameters:
            lines += ["", f"    {self.owner}Fields({parameters}) {{"]
            lines += [f"        super({arguments});", "    }"]
        for own in self.methods.values():
            lines += own
        return "\n".join([*lines, "}"]) + "\n"


def classes(tree):
    """Sources by file name."""
    found = {}
    for enum in tree.enums:
        if is_enum(enum) and enum.name not in HAND_WRITTEN:
            found[f"{class_name(enum.name)}.java"] = enum_class(tree, enum)
    for name, struct in words.descriptions(tree):
        if name not in POINTED:
            fields = Fields(tree, name, struct)
            found[f"{fields.owner}Fields.java"] = fields.source()
    return found
