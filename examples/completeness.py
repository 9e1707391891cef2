"""Whether a Python layer reaches all that the C structs have: each field of each args struct, and
each value of their enums.

A test calls a layer's public functions, records what the layer passes to the library, and compares
that with the headers:

    recorder = Recorder(abi, library)     # each abi.Library through which the layer calls
    ...                                   # calls that use every argument of every function
    check(suite, abi, "JAX", recorder)

What a layer leaves out has a row in docs/reference.md that says why. A row about something that the
layer does reach is a failure, too.
"""

import ctypes
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADERS, REASONS = ROOT / "include" / "fastnorm", ROOT / "docs" / "reference.md"
HEADING = "## What Python does not reach"

_TYPEDEF = re.compile(r"typedef (struct|enum) (\w+) \{(.*?)\n\} \2;", re.S)
_FIELD = re.compile(r"^\s*(?:const )?(\w+)(\s*\*)?\s*(\w+);", re.M)
_VALUE = re.compile(r"\b(FASTNORM_\w+)\s*=\s*(\w+)")
_OF_CALLS = {"struct_size;", "fastnorm_tensor*"}  # words of a struct to which args point
_COMMENT = re.compile(r"/\*.*?\*/", re.S)
# The comment before a field, or the one behind it, which begins with /**<.
_OF_FLAGS = re.compile(
    r"(/\*\*[^<](?:(?!\*/).)*\*/)?\s*uint32_t flags;\s*(/\*\*<(?:(?!\*/).)*\*/)?", re.S
)


class Headers:
    """What include/fastnorm declares. structs: a description by field by struct. A description is
    "tensor", the name of an enum, a tuple of names of enums whose values are bits, or "number".
    enums: a number by name by enum."""

    def __init__(self, folder=HEADERS):
        self.structs, self.enums, bodies = {}, {}, {}
        for path in sorted(folder.glob("*.h")):
            for kind, name, body in _TYPEDEF.findall(path.read_text()):
                if kind == "enum":
                    values = _VALUE.findall(_COMMENT.sub("", body))
                    self.enums[name] = {
                        value: int(number, 0)
                        for value, number in values
                        if not value.endswith("_MAX_ENUM")
                    }
                elif name.endswith(("_args", "_part")) or _OF_CALLS <= set(body.split()):
                    bodies[name] = body
        for name, body in bodies.items():
            self.structs[name] = dict(self._fields(name, body))

    def _fields(self, struct, body):
        for kind, pointer, name in _FIELD.findall(_COMMENT.sub("", body)):
            if name == "struct_size" or "reserved" in name:
                continue
            if kind == "fastnorm_tensor" and pointer:
                yield name, "tensor"
            elif name == "flags":
                comments = _OF_FLAGS.search(body).groups("")
                named = re.findall(r"fastnorm_\w+_flags", "".join(comments))
                found = tuple(enum for enum in named if enum in self.enums)
                if not found:
                    raise ValueError(f"the comment of {struct}.flags names no enum: {comments}")
                yield name, found
            else:
                yield name, kind if kind in self.enums else "number"


def c_name(struct):
    """fastnorm_norm_heads_part of NormHeadsPart."""
    return "fastnorm" + re.sub(r"([A-Z])", r"_\1", struct.__name__).lower()


class Recorder:
    """Notes the structs that the functions of libraries take, in `seen`: values by (struct, field).
    A tensor that is there is the value 1. A call that the library refuses does not count, but for
    one that this device does not have."""

    def __init__(self, abi, *libraries):
        self.seen = {}
        self._tensor, self._status = abi.TensorPointer, abi.Status
        self._structs = tuple(
            value
            for value in vars(abi).values()
            if isinstance(value, type)
            and issubclass(value, ctypes.Structure)
            and (
                value.__name__.endswith(("Args", "Part"))
                or {"struct_size", self._tensor} <= {part for f in value._fields_ for part in f}
            )
        )
        for library in libraries:
            for name in set(abi.FUNCTIONS) - library.missing:
                self._watch(library.c, name)

    def _watch(self, functions, name):
        function = getattr(functions, name)

        def watched(*arguments):
            result = function(*arguments)
            if result in (self._status.OK, self._status.ERROR_UNSUPPORTED):
                for argument in arguments:
                    self._note(argument)
            return result

        setattr(functions, name, watched)

    def _note(self, argument):
        found = getattr(argument, "_obj", argument)  # of byref()
        if isinstance(found, ctypes.Array):
            for element in found:
                self._note(element)
        elif isinstance(found, ctypes._Pointer):
            if found and issubclass(found._type_, self._structs):
                self._note(found.contents)
        elif isinstance(found, self._structs):
            for field, kind in found._fields_:
                value = getattr(found, field)
                if isinstance(value, ctypes._Pointer):
                    if kind is not self._tensor:
                        self._note(value)
                    value = int(bool(value))
                value = 0 if value is None else value  # of a void*
                self.seen.setdefault((c_name(type(found)), field), set()).add(value)

    def reached(self, headers):
        """Names of all that was seen with a value: struct.field, and enumerators."""
        found = set()
        for struct, fields in headers.structs.items():
            for field, kind in fields.items():
                values = self.seen.get((struct, field), set())
                if values - {0}:
                    found.add(f"{struct}.{field}")
                if isinstance(kind, tuple):
                    bits = 0
                    for value in values:
                        bits |= value
                    for enum in kind:
                        found |= {n for n, bit in headers.enums[enum].items() if bits & bit}
                elif kind in headers.enums:
                    found |= {n for n, number in headers.enums[kind].items() if number in values}
        return found


def settings_of_codes(settings, ones):
    """Keyword arguments of a Quant, from fastnorm.stages.SETTINGS: those that each scheme needs,
    and beside them each other setting with each of its values. Some are refused, since not every
    scheme has every setting. ones: a float32 tensor [1]. Rows are of 64 columns."""
    values = {bool: (True,), int: (64,), float: (0.5,), None: (ones,)}
    for scheme in filter(None, next(s.words for s in settings if s.name == "scheme")):
        base = {"scheme": scheme, "rotation": 16}
        base.update({"block_size": 64} if scheme == "per_block" else {})
        base.update({"scale": ones} if scheme == "per_tensor" else {})
        yield base
        for s in settings:
            if s.name not in base:
                for value in s.words or values[s.kind]:
                    yield {**base, s.name: value}


def required(headers):
    """Names of all that a layer has to reach: struct.field, and the enumerators of fields."""
    found = set()
    for struct, fields in headers.structs.items():
        for field, kind in fields.items():
            found.add(f"{struct}.{field}")
            for enum in kind if isinstance(kind, tuple) else (kind,):
                found |= set(headers.enums.get(enum, ()))
    return found


def left_out(layer, headers, page=REASONS):
    """What a layer leaves out: a reason by name, from the table of docs/reference.md. Its rows have
    the layers, the names and the reason; a struct's name stands for all its fields, and names may
    be shortened to the part behind the dot after a first one in full."""
    text = page.read_text()
    if HEADING not in text:
        raise ValueError(f"{page} has no {HEADING!r}")
    names, found = required(headers), {}
    for line in text.split(HEADING, 1)[1].split("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) != 3 or layer not in re.split(r",\s*", cells[0]):
            continue
        struct = None
        for name in re.findall(r"`([^`]+)`", cells[1]):
            struct = name.split(".")[0] if name.startswith("fastnorm_") else struct
            full = name if name.startswith(("fastnorm_", "FASTNORM_")) else f"{struct}.{name}"
            of = {n for n in names if n == full or n.startswith(f"{full}.")}
            if not of:
                raise ValueError(f"{page} leaves out {full}, which the headers do not have")
            found.update(dict.fromkeys(of, cells[2]))
    return found


def abi_differs(abi, headers):
    """What the structs of fastnorm.abi do not have, in the order of the headers' fields."""
    problems = []
    known = {c_name(v): v for v in vars(abi).values() if isinstance(v, type) and v.__module__}
    for struct, fields in headers.structs.items():
        if struct not in known:
            problems.append(f"{struct} is missing")
            continue
        here = [n for n, _ in known[struct]._fields_ if n in fields]
        problems += [f"{struct}.{name} is missing" for name in fields if name not in here]
        if here != [name for name in fields if name in here]:
            problems.append(f"{struct} has its fields in another order")
    return problems


def check(suite, abi, layer, recorder, headers=None):
    """A case for each name: it was reached, or docs/reference.md says why it is not."""
    headers = headers or Headers()
    if len(headers.structs) < 8 or len(headers.enums) < 20:
        raise ValueError(f"{len(headers.structs)} structs, {len(headers.enums)} enums")
    problems = abi_differs(abi, headers)
    suite.check(f"fastnorm.abi has the headers' structs: {problems or 'all'}", not problems)
    reached, exempt = recorder.reached(headers), left_out(layer, headers)
    for name in sorted(required(headers)):
        if name in exempt:
            why = f"{layer} leaves out {name}, as docs/reference.md says"
            suite.check(why, name not in reached)
        else:
            suite.check(f"{layer} reaches {name}", name in reached)
