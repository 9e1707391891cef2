#!/usr/bin/env python3
"""Writes a C program that takes the address of every function in the headers and calls those that
need no device. It compares the version of Meson, of the headers and of the library."""

import sys
from pathlib import Path

from headers import Headers

PROGRAM = """#include <stdio.h>
#include <string.h>

#include "fastnorm/fastnorm.h"

typedef void (*function)(void);

static int passed, failed;

static void check(const char* name, int ok) {
  ok ? ++passed : ++failed;
  if (!ok) printf("FAIL %s\\n", name);
}

int main(void) {
  const struct {
    const char* name;
    function address;
  } functions[] = {
FUNCTIONS
  };
  size_t i;
  for (i = 0; i < sizeof functions / sizeof functions[0]; ++i) {
    check(functions[i].name, functions[i].address != NULL);
  }
  check("fastnorm_version()", fastnorm_version() == FASTNORM_VERSION);
  check("fastnorm_version_string()", strcmp(fastnorm_version_string(), PROJECT_VERSION) == 0);
  check("version.h", HEADER_VERSION);
  check("fastnorm_build_info()", strchr(fastnorm_build_info(), ':') != NULL);
  check("fastnorm_numeric_version()", fastnorm_numeric_version() >= 1);
  check("fastnorm_last_error()", fastnorm_last_error()[0] == '\\0');
  printf("%d passed, %d failed, 0 skipped\\n", passed, failed);
  return failed != 0;
}
"""


def main():
    include, version, output = sys.argv[1:]
    functions = Headers(include).functions
    major, minor, patch = map(int, version.split("."))
    header = (
        f"FASTNORM_VERSION_MAJOR == {major} && FASTNORM_VERSION_MINOR == {minor} && "
        f"FASTNORM_VERSION_PATCH == {patch}"
    )
    lines = "\n".join(f'      {{"{f}", (function){f}}},' for f in functions)
    text = PROGRAM.replace("FUNCTIONS", lines).replace("PROJECT_VERSION", f'"{version}"')
    Path(output).write_text(text.replace("HEADER_VERSION", header))


main()
