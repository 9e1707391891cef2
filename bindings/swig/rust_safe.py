"""Prints what the crate `fastnorm` has of the headers, fields.rs of rust/fastnorm/src, in rustfmt's
form: its enums, and of each description the link to the C struct, its setters and their tests.

A field gives a setter of its own name and type. fields.csv says which tensors a call writes, whose
setters take a TensorMut, and what is a bool. A flag gives a setter that takes whether it is on.
What the rules do not give stands in DESCRIPTIONS, and in the modules of the crate: constructors,
and setters of several fields.
"""

import re
import textwrap
from dataclasses import dataclass, field

from rust import SCALARS, WIDTH, escaped, identifier
from tree import Enum, TreeError, is_description, is_tensor, load_nccl, roles, short_name

OUTPUT = "rust/fastnorm/src/fields.rs"

HEAD = """\
// Generated from the public headers by bindings/swig/generate.py; do not edit.
//! Enums, and what descriptions have of the fields of their C structs.

#![allow(clippy::needless_pass_by_value)] // the borrow of a tensor moves in
"""


@dataclass
class Description:
    """A type of the crate, with a field `args` of the C struct."""

    name: str
    struct: str
    bare: str  # one without what the setters set, for the tests
    by_hand: str = ""  # fields whose setters are written by hand
    absent: str = ""  # fields that it leaves as they are
    renamed: dict = field(default_factory=dict)
    types: dict = field(default_factory=dict)  # Rust types that are not the C ones
    flags: dict = field(default_factory=dict)  # enums, each with flags that have no setter
    in_place: tuple = ()  # an input and an output that may be one tensor
    shown: str = ""  # scalars that Debug shows
    seldom: str = ""  # the first of the tensors that few calls have
    # It has no tensors but those of another description; `link` is by hand.
    setters_only: bool = False
    also: dict = field(default_factory=dict)  # more members of the type, and how they are copied

    def names(self, words):
        return set(getattr(self, words).split())


NO_MIRI = "which calls no foreign functions"
NEVER = {"struct_size", "parallel_user"}  # a Context has closures
NCCL_FLAGS = {"fastnorm_nccl_flags": ""}
PEER_TYPES = {"one_shot_bytes": "u64", "rings": "usize"}
PART_FLAGS = "NORM ROPE"
DESCRIPTIONS = [
    Description(
        "Quant",
        "fastnorm_quant",
        "Quant::none()",
        by_hand="scheme block_size quantized scale",
        renamed={"scale_layout": "layout", "scale_pow2": "pow2"},
        shown="scheme",
    ),
    Description(
        "Norm",
        "fastnorm_norm_args",
        "Norm::rms(0.0)",
        by_hand="kind eps branch_norm branch_kind branch_eps",
        types={"group_size": "usize"},
        flags={"fastnorm_norm_flags": ""},
        in_place=(("x", "y"), ("residual", "residual_out"), ("gate", "y")),
        shown="kind eps",
        seldom="gate",
    ),
    Description(
        "NormBackward",
        "fastnorm_norm_backward_args",
        "NormBackward::rms(0.0)",
        by_hand="kind eps branch_norm branch_kind branch_eps",
        flags={"fastnorm_norm_backward_flags": ""},
        in_place=(("dy", "dx"), ("gate", "dgate"), ("branch", "dbranch")),
        shown="kind eps",
        seldom="gate",
    ),
    Description(
        "MlaDecode",
        "fastnorm_mla_decode_args",
        "MlaDecode::new(1.0)",
        by_hand="sm_scale lse_base max_s_q profile_events qo_indptr lse profile",
        flags={"fastnorm_mla_decode_flags": ""},
        shown="sm_scale causal",
    ),
    Description(
        "NormHeads",
        "fastnorm_norm_heads_args",
        "NormHeads::new()",
        by_hand="rope_dim mrope_0 mrope_1 mrope_2 mrope_3 cos sin",
        flags={"fastnorm_norm_heads_flags": "MROPE_INTERLEAVED"},
        shown="rope_dim",
        also={"parts": "self.copied_parts()"},
    ),
    Description(
        "NormHeadsPart",
        "fastnorm_norm_heads_part",
        "NormHeadsPart::new(input(1))",
        by_hand="kind eps rope_offset x cache_quant",
        flags={"fastnorm_norm_heads_part_flags": PART_FLAGS},
        shown="flags eps",
    ),
    Description(
        "NormHeadsBackward",
        "fastnorm_norm_heads_args",
        "NormHeadsBackward::new()",
        by_hand="rope_dim mrope_0 mrope_1 mrope_2 mrope_3 cos sin",
        absent="slots",
        flags={"fastnorm_norm_heads_flags": "MROPE_INTERLEAVED"},
        shown="rope_dim",
        also={"parts": "self.copied_parts()"},
    ),
    Description(
        "NormHeadsBackwardPart",
        "fastnorm_norm_heads_backward_part",
        "NormHeadsBackwardPart::new(input(1))",
        by_hand="kind eps rope_offset dy x",
        flags={
            "fastnorm_norm_heads_part_flags": f"{PART_FLAGS} ROPE_FROM_ROUNDED",
            "fastnorm_norm_heads_backward_flags": "",
        },
        shown="flags eps",
    ),
    Description(
        "PeerShardedNorm",
        "fastnorm_peer_sharded_norm_args",
        "PeerShardedNorm::rms(&peer, 0.0)",
        by_hand="peer kind eps x2 y2",
        renamed={"weight2": "second_weight", "bias2": "second_bias"},
        flags={"fastnorm_norm_flags": "MODULATION_PLAIN_SCALE ALPHA"},
        shown="kind eps",
        also={"context": "self.context"},
    ),
    Description(
        "PeerAllreduceNorm",
        "fastnorm_peer_allreduce_norm_args",
        "PeerAllreduceNorm::new(&peer, Norm::rms(0.0))",
        by_hand="peer norm",
        setters_only=True,
    ),
    Description(
        "PeerOptions",
        "fastnorm_peer_options",
        "PeerOptions::new(0, 2, DType::F32, 8)",
        by_hand="rank ranks dtype max_columns wait_ns",
        types=PEER_TYPES,
        setters_only=True,
    ),
    Description(
        "NcclOptions",
        "fastnorm_nccl_options",
        "NcclOptions::new(DType::F32, 8)",
        by_hand="dtype max_columns wait_ns",
        types={**PEER_TYPES, "peer_bytes": "u64"},
        flags=NCCL_FLAGS,
        setters_only=True,
    ),
]
# Values of enums whose names are not what is left of the C ones without what all have in common.
VARIANTS = {
    "FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY": "BeforeApply",
    "FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS": "BeforeStatistics",
    "FASTNORM_QUANT_FROM_F32": "Exact",
    "FASTNORM_GATE_FROM_F32": "Exact",
}
# Items of the C ABI that comments name.
ITEMS = {
    "fastnorm_info.profile_bytes": "[`Info::profile_bytes`](crate::Info::profile_bytes)",
    "fastnorm_info.bytes_read": "[`Info::bytes_read`](crate::Info::bytes_read)",
    "fastnorm_profile_decode": "[`decode_profile`](crate::decode_profile)",
    "fastnorm_norm_args": "[`Norm`](crate::Norm)",
}
# Words of the C ABI for what the crate has by another way than an enum or a setter.
WORDS = {"RMS": "rms", "LAYER": "layer", "NORM": "norm", "ROPE": "rope", "NULL": "absent"}


def camel(name):
    return "".join(word[:1].upper() + word[1:] for word in name.lower().split("_"))


def variant(enum, value):
    return VARIANTS.get(value.name, camel(short_name(enum, value)))


def type_name(enum):
    return camel(enum.name.removeprefix("fastnorm_"))


# --- comments ---


class Comments:
    """The headers' comments with Rust's names in the place of C's."""

    def __init__(self, tree, enums):
        self.words = {word: text for word, text in WORDS.items()}
        for enum in enums:
            for value in enum.values:
                name = variant(enum, value)
                self.words[value.name] = f"`{type_name(enum)}::{name}`"
                self.words[short_name(enum, value)] = f"`{name}`"
        flags = {name for d in DESCRIPTIONS for name in d.flags}
        for enum in (e for e in tree.enums if e.name in flags):
            for value in enum.values:
                name = short_name(enum, value)
                self.words.setdefault(value.name, f"`{name.lower()}`")
                self.words.setdefault(name, f"`{name.lower()}`")
        for value in tree.find("fastnorm_quant_scheme").values:
            name = value.name.removeprefix("FASTNORM_QUANT_")
            self.words.setdefault(name, f"`{name.lower()}`")

    def lines(self, text, indent, own=()):
        """The text as /// lines. `own`: setters of the type, which become links."""

        def word(found):
            name = found[0]
            if name.startswith("`"):
                return name
            if name in ITEMS:
                return ITEMS[name]
            if name in own and "_" in name:
                return f"[`{name}`](Self::{name})"
            plain = self.words.get(name, name)
            is_start = found.start() == 0 or found.string[: found.start()].endswith(". ")
            return plain[0].upper() + plain[1:] if is_start and name in WORDS else plain

        text = re.sub(r"`(\w+)`", r"\1", " ".join(text.split()))
        text = re.sub(r"; NULL( =|:) ", "; default: ", text)
        text = re.sub(r"\bNULL( =|:) ", "Default: ", text)
        text = re.sub(r"(\b\w+\.\w+)?\[[^\]]*\]", r"`\g<0>`", text)
        text = re.sub(r"`[^`]*`|\b[\w.]*[A-Za-z]\w*\b", word, escaped(text))
        text = text.replace('"Stages" above', "[stages](#stages)")
        start = f"{indent}/// "
        return [
            start + line
            for line in textwrap.wrap(
                text, WIDTH - len(start), break_long_words=False, break_on_hyphens=False
            )
        ]


# --- enums ---


def print_enum(comments, enum):
    name = type_name(enum)
    lines = [
        *comments.lines(enum.doc, ""),
        "#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]",
        "#[non_exhaustive]",
        f"pub enum {name} {{",
    ]
    for value in enum.values:
        lines += comments.lines(value.doc, "    ")
        lines += ["    #[default]"] if value.value == 0 else []
        lines.append(f"    {variant(enum, value)},")
    lines += [
        "}",
        "",
        f"impl {name} {{",
        "    /// Its number in the C ABI.",
        "    #[inline]",
        f"    pub fn raw(self) -> sys::{enum.name} {{",
        "        match self {",
        *(f"            Self::{variant(enum, v)} => sys::{v.name}," for v in enum.values),
        "        }",
        "    }",
        "}",
    ]
    return lines


# --- setters ---


@dataclass
class Setter:
    name: str
    argument: str  # "x: Tensor<'a>"
    body: list[str]
    doc: str
    # For the tests: an argument, and the fields that it sets, each with its value.
    given: str
    sets: dict


def extent(slot, is_written):
    """A tensor of one dimension, for the tests, told apart by its extent."""
    return f"output(&mut [0.0; {slot + 1}])" if is_written else f"input({slot + 1})"


class Printer:
    """One description."""

    def __init__(self, tree, comments, roles, description):
        self.tree, self.comments, self.d = tree, comments, description
        self.roles = {name: role for (s, name), role in roles.items() if s == description.struct}
        self.struct = tree.find(description.struct)
        self.skipped = description.names("by_hand")
        absent = description.names("absent") | NEVER
        unknown = (self.skipped | absent) - {f.name for f in self.struct.fields}
        if unknown - NEVER:
            raise TreeError(f"{description.struct} has no {sorted(unknown - NEVER)}")
        self.fields = [
            f for f in self.struct.fields if f.name not in absent and "reserved" not in f.name
        ]
        self.tensors = [f for f in self.fields if is_tensor(f.type)]
        self.slots = {f.name: slot for slot, f in enumerate(self.tensors)}
        self.inner = [f for f in self.fields if is_description(tree, f.type)]
        if description.setters_only:
            self.inner = []

    def flags(self):
        """(enum, value, name) of each flag with a setter."""
        for name, without in self.d.flags.items():
            enum = self.tree.find(name)
            for value in enum.values:
                own = short_name(enum, value)
                if own not in without.split():
                    yield enum, value, own.lower()

    def setters(self):
        flags = {name: value for _, value, name in self.flags()}
        names = {f.name for f in self.fields}
        for f in self.fields:
            if f.name in self.skipped or f.name == "flags":
                continue
            yield self.setter(f, flags.get(f.name))
        for read, written in self.d.in_place:
            slots = self.slots[read], self.slots[written]
            yield Setter(
                f"{read}_in_place",
                f"{read}: TensorMut<'a>",
                [f"self.views.put({slot}, {read}.view);" for slot in slots],
                f"{read} and {written} in one: the result replaces what is read.",
                extent(slots[0], True),
                {read: slots[0] + 1, written: slots[0] + 1},
            )
        for _, value, name in self.flags():
            of = name.removeprefix("accumulate_")
            if name in names:
                continue
            if of == name:
                yield Setter(
                    name,
                    "on: bool",
                    [f"self.flag(sys::{value.name}, on);"],
                    value.doc + ("" if "Default: " in value.doc else " Default: off."),
                    "true",
                    {"flags": value.value},
                )
                continue
            same = "The result is added to what is there: once, in f32, after the sum."
            yield Setter(
                name,
                f"{of}: TensorMut<'a>",
                [
                    f"self.flag(sys::{value.name}, true);",
                    f"self.views.put({self.slots[of]}, {of}.view);",
                ],
                f"As {of}. {same}",
                extent(self.slots[of], True),
                {of: self.slots[of] + 1, "flags": value.value},
            )

    def setter(self, f, flag):
        """Of one field, and of the flag of its name."""
        name = self.d.renamed.get(f.name, f.name)
        given_name, field_name = identifier(name), f"args.{identifier(f.name)}"
        more, sets, doc = [], {}, f.doc
        if flag:
            more, sets = [f"self.flag(sys::{flag.name}, true);"], {"flags": flag.value}
            doc = re.sub(rf"^With {flag.name}: (.*); else 0\.$", r"\1. Default: none.", doc)
            doc = doc[0].upper() + doc[1:]
        role = self.roles.get(f.name, "")
        if role == "switch":
            doc = re.sub(r"\b([01])(:| =) ", lambda n: f"{('Off', 'On')[int(n[1])]}{n[2]} ", doc)

        def made(type, value, given, number):
            body = [f"self.{value};", *more]
            return Setter(
                name, f"{given_name}: {type}", body, doc, given, {f.name: number} | sets
            )

        if f.name in self.slots:
            slot, is_written = self.slots[f.name], role.endswith("out")
            type, given = "TensorMut" if is_written else "Tensor", extent(slot, is_written)
            return made(f"{type}<'a>", f"views.put({slot}, {given_name}.view)", given, slot + 1)
        if f in self.inner:
            type = camel(f.type.to.name.removeprefix("fastnorm_"))
            value = f"{identifier(f.name)} = Some({given_name})"
            return made(f"{type}<'a>", value, f"{type}::none()", 1)
        if self.tree.is_a(f.type, Enum):
            enum = self.tree.find(f.type.name)
            last = enum.values[-1]
            given = f"{type_name(enum)}::{variant(enum, last)}"
            return made(type_name(enum), f"{field_name} = {given_name}.raw()", given, last.value)
        c = SCALARS.get(getattr(f.type, "name", None))
        if c is None:
            raise TreeError(f"{self.struct.name}.{f.name}: no rule for a setter of its type")
        rust = "bool" if role == "switch" else self.d.types.get(f.name, c)
        if rust == "bool":
            return made(rust, f"{field_name} = {c}::from({given_name})", "true", 1)
        number = 3 if c.startswith("f") else 64
        given = f"{number}.0" if c.startswith("f") else str(number)
        if rust == c:
            return made(rust, f"{field_name} = {given_name}", given, number)
        value = f"{field_name} = {c}::try_from({given_name}).unwrap_or({c}::MAX)"
        return made(rust, value, given, number)

    # --- the text ---

    def usual(self):
        """The number of tensors before the first that few calls have."""
        return self.slots.get(self.d.seldom, len(self.tensors))

    def link(self):
        """How the C struct gets the addresses of its tensors."""
        rest = self.usual()
        link = [
            f"        self.views.link({self.slots[f.name]}, &mut self.args.{f.name});"
            for f in self.tensors
        ]
        lines = [
            "    /// Points the arguments at the tensors and these at their shapes, until the",
            "    /// description is moved.",
            *(["    #[inline]"] if self.d.seldom else []),  # else it is inlined into one of these
            f"    pub(crate) fn link(&mut self) -> *const sys::{self.struct.name} {{",
            *link[:rest],
        ]
        if link[rest:]:
            lines += [
                f"        if self.views.has_from({rest}) {{",
                "            self.link_rest();",
                "        }",
            ]
        for f in self.inner:
            lines += [
                f"        if let Some({f.name}) = &mut self.{f.name} {{",
                f"            self.args.{f.name} = {f.name}.link();",
                "        }",
            ]
        lines += ["        &self.args", "    }"]
        if link[rest:]:
            lines += ["", "    #[cold]", "    fn link_rest(&mut self) {"]
            lines += [*link[rest:], "    }"]
        return lines

    def copied(self):
        members = ["args: self.args", "views: self.views"]
        members += [f"{f.name}: self.{f.name}.as_ref().map(Quant::copied)" for f in self.inner]
        members += [f"{name}: {value}" for name, value in self.d.also.items()]
        members += ["borrow: PhantomData"]
        return [
            "    /// A copy that links where only a shared borrow is at hand. It is never run.",
            f"    pub(crate) fn copied(&self) -> {self.d.name}<'_> {{",
            f"        {self.d.name} {{",
            *(f"            {member}," for member in members),
            "        }",
            "    }",
        ]

    def debug(self):
        shown = [
            f'        shown.field("{name}", &'
            + ("kind_name(self.args.kind)" if name == "kind" else f"self.args.{name}")
            + ");"
            for name in self.d.shown.split()
        ]
        shown += [
            f'        self.views.show({slot}, "{name}", &mut shown);'
            for name, slot in self.slots.items()
        ]
        for f in self.inner:
            shown += [
                f"        if let Some({f.name}) = &self.{f.name} {{",
                f'            shown.field("{f.name}", {f.name});',
                "        }",
            ]
        return [
            f"impl fmt::Debug for {self.d.name}<'_> {{",
            "    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {",
            f'        let mut shown = f.debug_struct("{self.d.name}");',
            *shown,
            "        shown.finish_non_exhaustive()",
            "    }",
            "}",
        ]

    def by_hand(self, f):
        """A tensor for a setter that is written by hand."""
        return [
            "    #[inline]",
            f"    pub(crate) fn put_{f.name}(mut self, {f.name}: View) -> Self {{",
            f"        self.views.put({self.slots[f.name]}, {f.name});",
            "        self",
            "    }",
        ]

    def print(self):
        lines, own = [], {setter.name for setter in self.setters()}
        blocks = []
        for setter in self.setters():
            blocks.append(
                [
                    *self.comments.lines(setter.doc, "    ", own - {setter.name}),
                    "    #[inline]",
                    f"    pub fn {identifier(setter.name)}(mut self, {setter.argument}) -> Self {{",
                    *(f"        {line}" for line in setter.body),
                    "        self",
                    "    }",
                ]
            )
        blocks += [self.by_hand(f) for f in self.tensors if f.name in self.skipped]
        if self.d.flags:
            blocks.append(
                [
                    "    #[inline]",
                    "    pub(crate) fn flag(&mut self, flag: u32, on: bool) {",
                    "        set_flag(&mut self.args.flags, flag, on);",
                    "    }",
                ]
            )
        if not self.d.setters_only:
            blocks += [self.link(), self.copied()]
        has_borrow = "<'a>" if "PeerAllreduceNorm" == self.d.name else ""
        if not self.d.setters_only:
            lines += [f"pub(crate) type {self.d.name}Views = Views<{len(self.tensors)}>;", ""]
            has_borrow = "<'a>"
        if has_borrow and not any("'a" in setter.argument for setter in self.setters()):
            lines.append(f"impl {self.d.name}<'_> {{")
        else:
            lines.append(f"impl{has_borrow} {self.d.name}{has_borrow} {{")
        for i, block in enumerate(blocks):
            lines += [*([""] if i else []), *block]
        lines.append("}")
        return lines + ([] if self.d.setters_only else ["", *self.debug()])

    # --- tests ---

    def value(self, f):
        """An expression for a field's value as a number."""
        if is_tensor(f.type):
            return f"extent(args.{f.name})"
        if is_description(self.tree, f.type):
            return f"is_set(args.{f.name})"
        c = SCALARS.get(getattr(f.type, "name", None), "u32")
        if c in ("i64", "u64"):
            return f"args.{f.name} as f64"
        return f"args.{f.name}" if c == "f64" else f"f64::from(args.{f.name})"

    def print_tests(self):
        name = re.sub(r"(?<!^)([A-Z])", r"_\1", self.d.name).lower()
        fields = [f for f in self.struct.fields if f.name not in NEVER | {"peer"}]
        borrow = "" if self.d.name.endswith("Options") else "<'_>"
        is_linked = not self.d.name.endswith("Options")
        mutable = "mut " if is_linked else ""
        lines = [
            "    #[test]",
            *([f"    #[cfg(not(miri))] // {NO_MIRI}"] if "&peer" in self.d.bare else []),
            "    #[allow(clippy::too_many_lines)]",
            f"    fn setters_of_{name}() {{",
            f"        fn values({mutable}of: {self.d.name}{borrow}) -> Values {{",
        ]
        if is_linked:
            lines += [
                "            // SAFETY: linked just now.",
                "            let args = unsafe { &*of.link() };",
            ]
        else:
            lines.append("            let args = &of.args;")
        lines += [
            "            vec![",
            *(f'                ("{f.name}", {self.value(f)}),' for f in fields),
            "            ]",
            "        }",
        ]
        if "&peer" in self.d.bare:
            lines += [
                "        let context = crate::Context::cpu().unwrap();",
                "        let options = PeerOptions::new(0, 2, DType::F32, 8);",
                "        let peer = options.create(&context).unwrap();",
            ]
        lines.append(f"        let bare = values({self.d.bare});")
        for setter in self.setters():
            sets = ", ".join(
                f'("{f.name}", {setter.sets[f.name]}.0)' for f in fields if f.name in setter.sets
            )
            lines += [
                f"        let call = {self.d.bare};",
                f"        let set = values(call.{setter.name}({setter.given}));",
                f"        changes(&bare, &set, &[{sets}]);",
            ]
        return [*lines, "    }"]


TESTS = """\
#[cfg(test)]
mod tests {
    #![allow(clippy::cast_precision_loss)]

    use super::*;
    use crate::{DType, Norm};

    /// Fields, each with its value; of a tensor the extent of its one dimension.
    type Values = Vec<(&'static str, f64)>;

    /// Checks that these fields have another value, and no others.
    fn changes(bare: &Values, set: &Values, wanted: &[(&str, f64)]) {
        let both = bare.iter().zip(set);
        let found: Values = both.filter(|(a, b)| a != b).map(|(_, b)| *b).collect();
        assert_eq!(found, wanted);
    }

    fn is_set<T>(pointer: *const T) -> f64 {
        f64::from(u8::from(!pointer.is_null()))
    }

    fn extent(tensor: *const sys::fastnorm_tensor) -> f64 {
        // SAFETY: null, or linked, to a tensor of rank 1.
        unsafe { tensor.as_ref().map_or(0.0, |tensor| *tensor.shape as f64) }
    }

    fn input(extent: usize) -> Tensor<'static> {
        const ROW: [f32; 32] = [0.0; 32];
        Tensor::new(&ROW[..extent], &[extent]).unwrap()
    }

    fn output(row: &mut [f32]) -> TensorMut<'_> {
        let extent = row.len();
        TensorMut::new(row, &[extent]).unwrap()
    }
"""


def print_enum_tests(enums):
    lines = ["    #[test]", "    fn enums_have_their_numbers() {"]
    for enum in enums:
        name = type_name(enum)
        for value in enum.values:
            of = variant(enum, value)
            lines.append(f"        assert_eq!({name}::{of}.raw(), {value.value});")
        lines.append(f"        assert_eq!({name}::default().raw(), 0);")
    return [*lines, "    }"]


def enums_of(tree, printers):
    """The enums that setters take, in the order of the headers, and those of setters by hand."""
    taken = {"fastnorm_lse_base"}
    for printer in printers:
        for f in printer.fields:
            if tree.is_a(f.type, Enum) and f.name not in printer.skipped:
                taken.add(f.type.name)
    return [enum for enum in tree.enums if enum.name in taken]


def uses(names):
    """One `use` of the crate's names."""
    lines = textwrap.wrap(", ".join(["sys", *sorted(names)]) + ",", WIDTH - 4)
    return ["use crate::{", *(f"    {line}" for line in lines), "};"]


def text(tree):
    whole = type(tree)([*tree.items, *load_nccl(tree).items])
    known = roles()
    printers = [Printer(whole, None, known, description) for description in DESCRIPTIONS]
    enums = enums_of(whole, printers)
    comments = Comments(whole, enums)
    for printer in printers:
        printer.comments = comments
    blocks = [print_enum(comments, enum) for enum in enums]
    blocks += [printer.print() for printer in printers]
    tests = [print_enum_tests(enums), *(p.print_tests() for p in printers)]
    used = {d.name for d in DESCRIPTIONS} | {"Tensor", "TensorMut"}
    parts = [
        HEAD,
        "use std::fmt;",
        "use std::marker::PhantomData;",
        "",
        "use crate::slots::{kind_name, set_flag, Views};",
        "use crate::tensor::View;",
        *uses(used),
        "",
        *("\n".join(block) + "\n" for block in blocks),
        TESTS,
        *("\n".join(block) + "\n" for block in tests),
    ]
    return "\n".join(parts).rstrip("\n") + "\n}\n"


def generate(tree, out_dir):
    path = out_dir / OUTPUT
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(tree))
    return [path]
