#!/usr/bin/env python3
"""Tests of the decoder of words.h, for every family.

What an independent encoder writes comes back field by field. Random, truncated and spoilt lists are
refused or read without a fault, under the address and undefined-behaviour sanitizers.

  words_test.py --work DIR [--inputs N]     N random inputs; 2 million take about a minute
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests" / "abi")]
sys.dont_write_bytecode = True
import tree as headers  # noqa: E402
import words  # noqa: E402
from cases import Cases  # noqa: E402

# A family that the library does not have: every kind of field, and that its shims need nothing by
# hand.
INVENTED = """\
#include <fastnorm/fastnorm.h>

typedef struct fastnorm_invented_args {
  size_t struct_size;
  double ratio;
  float eps;
  int32_t small;
  int64_t wide;
  uint64_t seed;
  uint8_t byte;
  size_t bytes;
  fastnorm_log_level level;
  void* parallel_user;
  fastnorm_context* peer;
  const fastnorm_quant* quant;
  const fastnorm_tensor* first;
  const fastnorm_tensor* second;
} fastnorm_invented_args;

fastnorm_status fastnorm_invented(fastnorm_context* context, const fastnorm_invented_args* args,
                                  double scale, void* stream);
fastnorm_status fastnorm_invented_many(fastnorm_context* context,
                                       const fastnorm_invented_args* const* args, int32_t count);

"""


def invent(tree):
    """Adds that family to the tree."""
    named, pointer = headers.Named, headers.Pointer
    context, args = pointer(named("fastnorm_context"), False), named("fastnorm_invented_args")
    types = [
        ("struct_size", "size_t"),
        ("ratio", "double"),
        ("eps", "float"),
        ("small", "int32_t"),
        ("wide", "int64_t"),
        ("seed", "uint64_t"),
        ("byte", "uint8_t"),
        ("bytes", "size_t"),
        ("level", "fastnorm_log_level"),
    ]
    fields = [headers.Field(name, named(type), "") for name, type in types]
    fields += [
        headers.Field("parallel_user", pointer(named("void"), False), ""),
        headers.Field("peer", context, ""),
        headers.Field("quant", pointer(named("fastnorm_quant"), True), ""),
    ]
    fields += [
        headers.Field(name, pointer(named("fastnorm_tensor"), True), "")
        for name in ("first", "second")
    ]
    struct = headers.Struct(args.name, fields, "")
    headers.check_args(tree, struct)

    def function(name, *parameters):
        listed = [
            headers.Parameter("context", context),
            *(headers.Parameter(n, t) for n, t in parameters),
        ]
        return headers.Function(name, named("fastnorm_status"), listed, "")

    tree.items += [
        struct,
        function(
            "fastnorm_invented",
            ("args", pointer(args, True)),
            ("scale", named("double")),
            ("stream", pointer(named("void"), False)),
        ),
        function(
            "fastnorm_invented_many",
            ("args", pointer(pointer(args, True), True)),
            ("count", named("int32_t")),
        ),
    ]


HEAD = """\
#include "words.h"

#include <stdio.h>
#include <stdlib.h>

static uint64_t state = SEED;
static uint64_t random_word(void) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state * 0x2545f4914f6cdd1d;
}

static long checks, failures;
static void check(int ok, const char* what) {
  ++checks;
  if (!ok && ++failures < 20) printf("FAIL %s\\n", what);
}

/* What the library would read: everything. */
static volatile uint64_t sink;
static void touch(const fastnorm_tensor* t) {
  int32_t i;
  if (t == NULL) return;
  sink += (uintptr_t)t->data + t->byte_offset + (uint64_t)t->device_type + (uint64_t)t->device_id;
  sink += t->dtype.code;
  if (t->ndim > FNB_MAX_RANK) {
    check(t->shape == NULL && t->strides == NULL, "extents of a rank that carries none");
    return;
  }
  for (i = 0; i < t->ndim; ++i) {
    sink += (uint64_t)t->shape[i] + (t->strides != NULL ? (uint64_t)t->strides[i] : 0);
  }
}

static uint64_t list[4096];
static size_t used;

typedef struct plain_tensor {
  int given, strided;
  uint64_t address, offset;
  int32_t device_type, device_id, ndim;
  uint32_t dtype;
  int64_t shape[FNB_MAX_RANK], strides[FNB_MAX_RANK];
} plain_tensor;

static plain_tensor random_tensor(void) {
  plain_tensor t;
  int32_t i;
  memset(&t, 0, sizeof t);
  t.given = random_word() % 4 != 0;
  t.strided = random_word() % 2;
  t.address = random_word(), t.offset = random_word();
  t.device_type = (int32_t)random_word(), t.device_id = (int32_t)random_word();
  t.ndim = (int32_t)(random_word() % 8 == 0 ? random_word() % 0x80000000u : random_word() % 11);
  t.dtype = (uint32_t)random_word();
  for (i = 0; i < FNB_MAX_RANK; ++i) {
    t.shape[i] = (int64_t)random_word(), t.strides[i] = (int64_t)random_word();
  }
  return t;
}

static void write_tensor(const plain_tensor* t) {
  int32_t i;
  if (!t->given) return;
  list[used++] = t->address;
  list[used++] = (uint32_t)t->device_type | (uint64_t)(uint32_t)t->device_id << 32;
  list[used++] = (uint32_t)t->ndim | (uint64_t)t->strided << 31 | (uint64_t)t->dtype << 32;
  list[used++] = t->offset;
  if (t->ndim > FNB_MAX_RANK) return;
  for (i = 0; i < t->ndim; ++i) list[used++] = (uint64_t)t->shape[i];
  for (i = 0; t->strided && i < t->ndim; ++i) list[used++] = (uint64_t)t->strides[i];
}

static void compare(const fastnorm_tensor* found, const plain_tensor* t, const char* what) {
  check((found != NULL) == t->given, what);
  if (found == NULL || !t->given) return;
  check((uintptr_t)found->data == t->address && found->byte_offset == t->offset, what);
  check(found->device_type == t->device_type && found->device_id == t->device_id, what);
  check(found->ndim == t->ndim, what);
  check(((uint32_t)found->dtype.code | (uint32_t)found->dtype.bits << 8 |
         (uint32_t)found->dtype.lanes << 16) == t->dtype,
        what);
  if (t->ndim > FNB_MAX_RANK) return;
  check(memcmp(found->shape, t->shape, (size_t)t->ndim * 8) == 0, what);
  check((found->strides != NULL) == t->strided, what);
  if (found->strides != NULL) {
    check(memcmp(found->strides, t->strides, (size_t)t->ndim * 8) == 0, what);
  }
}
"""

# Sound lists, and random ones. Of these some are sound descriptions that are cut or spoilt, and
# some are anything. Each has a buffer of its own size, so that a byte too much is found.
TAIL = """
/* Only the very list is taken: not one word less or more, no unknown bit of the mask. */
static void refuses(fastnorm_status (*call)(const uint64_t*, size_t), size_t scalars,
                    size_t bits) {
  const size_t whole = used;
  uint64_t* const mask = &list[scalars];
  check(call(list, whole) == FASTNORM_OK, "a sound list");
  check(call(list, whole - 1) == FNB_MALFORMED, "a list without its last word");
  check(call(list, random_word() % whole) == FNB_MALFORMED, "a list that is cut");
  check(call(list, whole + 1) == FNB_MALFORMED, "a list with a word more");
  if (bits < 64) {
    const uint64_t bit = 1ull << (bits + random_word() % (64 - bits));
    *mask |= bit;
    check(call(list, whole) == FNB_MALFORMED, "an unknown bit of the mask");
    *mask |= 1ull << bits;
    check(call(list, whole + 4) == FNB_MALFORMED, "an unknown tensor");
  }
}

static void random_input(void (*call)(const uint64_t*, size_t), void (*write)(void)) {
  size_t count, i;
  uint64_t* words;
  used = 0;
  for (i = random_word() % 2 == 0 ? 1 : random_word() % 10; i > 0; --i) write();
  count = used;
  switch (random_word() % 4) {
    case 0: /* as it is */
      break;
    case 1: /* cut */
      count = used > 0 ? random_word() % used : 0;
      break;
    case 2: /* longer */
      count = used + random_word() % 8;
      break;
    default:
      count = random_word() % 400;
  }
  for (i = used; i < count; ++i) list[i] = random_word() >> random_word() % 64;
  for (i = random_word() % 4; i > 0 && count > 0; --i) {
    list[random_word() % count] ^= 1ull << random_word() % 64;
  }
  words = (uint64_t*)malloc(count * 8 + (count == 0));
  memcpy(words, list, count * 8);
  call(words, count);
  free(words);
}

int main(int argc, char** argv) {
  const long inputs = argc > 1 ? atol(argv[1]) : 100000;
  long i;
  for (i = 0; i < inputs; ++i) {
    size_t f;
    for (f = 0; f < sizeof families / sizeof *families; ++f) {
      if (i % 16 == 0) {
        families[f].round_trip();
        refuses(families[f].one, families[f].scalars, families[f].bits);
      }
      random_input(families[f].call, families[f].write);
    }
  }
  printf("%ld inputs a family, %ld checks, %ld calls of the library\\n", inputs, checks, calls);
  if (calls < inputs / 8) check(0, "too few inputs were sound");
  if (failures > 0) printf("FAIL %ld of %ld checks\\n", failures, checks);
  return failures > 0;
}
"""


def touches(tree, struct, pointer):
    """Statements that read every field of a description."""
    lines = [f'  check({pointer}->struct_size == sizeof({struct.name}), "struct_size");']
    for f in words.scalars(tree, struct):
        lines.append(f"  sink += (uint64_t)({pointer}->{f.name} != 0);")
    lines += [f"  touch({pointer}->{f.name});" for f in words.tensors(struct)]
    for f, to in words.nested(tree, struct):
        read = f"touch_{words.short_name(to)}({pointer}->{f.name})"
        lines.append(f"  if ({pointer}->{f.name} != NULL) {read};")
    return lines


def stub(family, function):
    """A function of the library that reads all it is given."""
    struct = family.args
    lines = [
        f"fastnorm_status {function.name}({', '.join(f'{words.c_type(p.type)} {p.name}' for p in function.parameters)}) {{",
        "  ++calls;",
    ]
    names, parts = {p.name: p for p in function.parameters}, None
    for p in function.parameters:
        if headers.base_name(p.type) == struct.name:
            taken = p
            is_many = isinstance(p.type.to, headers.Pointer)
        elif is_part(family, p):
            parts = p.name
        elif p.name != "count" or not isinstance(p.type, headers.Named):
            lines.append(f"  (void){p.name};")
    if is_many:
        assert "count" in names
        lines += [
            "  if (count < 0 || count > FNB_MAX_PARTS) {",
            f'    check({taken.name} == NULL, "a list of a count that is refused");',
            "    return FASTNORM_ERROR_ARGUMENT;",
            "  }",
            f"  for (int32_t i = 0; i < count; ++i) touch_{family.name}({taken.name}[i]);",
        ]
    else:
        lines.append(f"  touch_{family.name}({taken.name});")
    if parts is not None:
        lines += [
            "  if (count < 0 || count > FNB_MAX_PARTS) {",
            f'    check({parts} == NULL, "parts of a count that is refused");',
            "    return FASTNORM_ERROR_ARGUMENT;",
            "  }",
            f"  for (int32_t i = 0; i < count; ++i) touch_{family.name}_part({parts}[i]);",
        ]
    return [*lines, "  return FASTNORM_OK;", "}", ""]


def is_part(family, parameter):
    return family.part is not None and headers.base_name(parameter.type) == family.part.name


def compare_scalar(tree, f):
    """A word and what the field must be."""
    if isinstance(f.type, headers.Pointer):
        return "(uintptr_t)args->{0} == word"
    if f.type.name in ("float", "double"):
        bits = "uint32_t" if f.type.name == "float" else "uint64_t"
        return f"memcmp(&args->{{0}}, &({bits}){{{{({bits})word}}}}, sizeof args->{{0}}) == 0"
    if tree.is_a(f.type, headers.Enum):
        return "(int32_t)args->{0} == (int32_t)word"
    return f"args->{{0}} == ({f.type.name})word"


def description_test(tree, name, struct):
    """Functions that read all of a description, write one with the words that are kept of it, and
    compare the two. What it points to has them already."""
    given, numbers = words.tensors(struct), words.scalars(tree, struct)
    structs = [(f.name, words.short_name(to)) for f, to in words.nested(tree, struct)]
    lines = [
        f"/* --- {name} --- */",
        "",
        f"static void touch_{name}(const {struct.name}* args) {{",
        *touches(tree, struct, "args"),
        "}",
        "",
        f"typedef struct plain_{name} {{",
        f"  uint64_t words[{len(numbers)}];",
        *([f"  plain_tensor tensors[{len(given)}];"] if given else []),
        *(f"  int has_{field};\n  struct plain_{to} {field};" for field, to in structs),
        f"}} plain_{name};",
        "",
        f"static void write_plain_{name}(plain_{name}* p) {{",
        "  size_t first = used, i;",
        "  uint64_t mask = 0;",
        f"  for (i = 0; i < {len(numbers)}; ++i) list[used++] = p->words[i] = random_word();",
        "  ++used;",
    ]
    if given:
        lines += [
            f"  for (i = 0; i < {len(given)}; ++i) {{",
            "    p->tensors[i] = random_tensor();",
            "    mask |= (uint64_t)p->tensors[i].given << i;",
            "    write_tensor(&p->tensors[i]);",
            "  }",
        ]
    for bit, (field, to) in enumerate(structs, len(given)):
        lines += [
            f"  p->has_{field} = random_word() % 4 != 0;",
            f"  mask |= (uint64_t)p->has_{field} << {bit};",
            f"  if (p->has_{field}) write_plain_{to}(&p->{field});",
        ]
    lines += [
        f"  list[first + {len(numbers)}] = mask;",
        "}",
        "",
        f"static void compare_{name}(const {struct.name}* args, const plain_{name}* p) {{",
        "  uint64_t word;",
        f'  check(args->struct_size == sizeof *args, "{name}: struct_size");',
    ]
    for i, f in enumerate(numbers):
        condition = compare_scalar(tree, f).format(f.name)
        lines += [f"  word = p->words[{i}];", f'  check({condition}, "{name}: {f.name}");']
    lines += [
        f'  compare(args->{f.name}, &p->tensors[{i}], "{name}: {f.name}");'
        for i, f in enumerate(given)
    ]
    for field, to in structs:
        lines += [
            f'  check((args->{field} != NULL) == p->has_{field}, "{name}: {field}");',
            f"  if (args->{field} != NULL && p->has_{field}) {{",
            f"    compare_{to}(args->{field}, &p->{field});",
            "  }",
        ]
    return [*lines, "}", ""]


def trip_test(tree, name, struct):
    """A description in the list, and back."""
    return [
        f"static plain_{name} last_{name};",
        "",
        f"static void write_{name}(void) {{",
        f"  if (used + {words.max_words(tree, struct)} > sizeof list / sizeof *list) return;",
        f"  write_plain_{name}(&last_{name});",
        "}",
        "",
        f"static void round_trip_{name}(void) {{",
        f"  fnb_{name}_call call;",
        "  fnb_reader reader;",
        f"  used = 0, write_{name}();",
        "  reader.words = list, reader.left = used;",
        f"  if (!fnb_read_{name}(&reader, &call)) {{",
        f'    check(0, "{name}: a sound list is refused");',
        "    return;",
        "  }",
        f'  check(reader.left == 0, "{name}: words are left");',
        f"  compare_{name}(&call.args, &last_{name});",
        "}",
        "",
    ]


def family_test(tree, family):
    name = family.name
    lines = trip_test(tree, name, family.args)
    trips, writes = [f"  round_trip_{name}();"], [f"  write_{name}();"]
    if family.part is not None:
        lines += trip_test(tree, f"{name}_part", family.part)
        trips.insert(0, f"  round_trip_{name}_part();")  # the list of the args stays
        writes += [f"  for (uint64_t i = random_word() % 3; i > 0; --i) write_{name}_part();"]
    lines += [
        f"static void trips_{name}(void) {{",
        *trips,
        "}",
        "",
        f"static void writes_{name}(void) {{",
        *writes,
        "}",
        "",
    ]
    for function in family.functions.values():
        lines += stub(family, function)
    lines += [
        f"static void call_{name}(const uint64_t* words, size_t count) {{",
        "  int32_t parts;",
    ]
    for function in family.functions.values():
        lines += [
            "  parts = (int32_t)(random_word() % 8 == 0 ? random_word() : random_word() % 10);",
            f"  (void){call(family, function, 'parts')};",
        ]
    lines += [
        "  (void)parts;",
        "}",
        "",
        f"static fastnorm_status one_{name}(const uint64_t* words, size_t count) {{",
    ]
    # A list of one description; with parts it has none of them.
    calls = [
        call(family, function, "1" if family.part is None else "0")
        for function in family.functions.values()
    ]
    lines += [f"  const fastnorm_status first = {calls[0]};"]
    lines += [f'  check({c} == first, "functions of {name} differ");' for c in calls[1:]]
    return [*lines, "  return first;", "}", ""]


def call(family, function, parts):
    """A call of the word function for a function."""
    arguments = []
    for p in function.parameters:
        if headers.base_name(p.type) == family.args.name:
            arguments += ["words", "count"]
        elif is_part(family, p):
            continue
        elif p.name == "count":
            arguments.append(parts)
        else:
            arguments.append("NULL" if isinstance(p.type, headers.Pointer) else "0")
    return f"fnb_{function.name.removeprefix('fastnorm_')}({', '.join(arguments)})"


def program(tree):
    lines = [INVENTED + HEAD.replace("SEED", "0x9e3779b97f4a7c15"), "static long calls;", ""]
    for name, struct in words.descriptions(tree):
        lines += description_test(tree, name, struct)
    for family in tree.families:
        lines += family_test(tree, family)
    lines += [
        "static const struct {",
        "  void (*round_trip)(void);",
        "  void (*write)(void);",
        "  void (*call)(const uint64_t*, size_t);",
        "  fastnorm_status (*one)(const uint64_t*, size_t);",
        "  size_t scalars, bits;",
        "} families[] = {",
    ]
    lines += [
        f"    {{trips_{f.name}, writes_{f.name}, call_{f.name}, one_{f.name}, "
        f"{len(words.scalars(tree, f.args))}, {len(words.masked(tree, f.args))}}},"
        for f in tree.families
    ]
    return "\n".join([*lines, "};", TAIL])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder for what is built")
    parser.add_argument("--inputs", type=int, default=100000, help="random inputs for each family")
    options = parser.parse_args()
    cases = Cases()
    try:
        tree = headers.load()
    except (headers.TreeError, OSError) as error:
        cases.skip("the decoder of words.h", f"SWIG is needed: {str(error).splitlines()[0]}")
        cases.finish()
    cases.check("there is a family", tree.families)
    invent(tree)
    options.work.mkdir(parents=True, exist_ok=True)
    (options.work / "words.h").write_text(words.decoder(tree))
    source = options.work / "words_test.c"
    source.write_text(program(tree))
    flags = [
        "-std=c99",
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{ROOT / 'include'}",
        f"-I{options.work}",
    ]
    plain = subprocess.run(
        ["cc", *flags, "-pedantic-errors", "-Wconversion", "-fsyntax-only", source],
        capture_output=True,
        text=True,
    )
    cases.check("words.h compiles with gcc without warnings", plain.returncode == 0, plain.stderr)
    binary = options.work / "words_test"
    built = subprocess.run(
        [
            "clang",
            *flags,
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover=all",
            source,
            "-o",
            binary,
        ],
        capture_output=True,
        text=True,
    )
    if cases.check(
        "words.h compiles with clang and sanitizers", built.returncode == 0, built.stderr
    ):
        ran = subprocess.run(
            [binary, str(options.inputs)],
            capture_output=True,
            text=True,
            env={**os.environ, "UBSAN_OPTIONS": "print_stacktrace=1"},
        )
        print(ran.stdout.strip())
        cases.check(f"{options.inputs} random inputs", ran.returncode == 0, ran.stdout + ran.stderr)
    cases.finish()


main()
