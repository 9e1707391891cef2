#!/usr/bin/env bash
# Checks the library's objects. Only the units of an instruction set use its registers. These units
# define no "weak" or "unique" function, which the linker could keep for others.
# Usage: objects.sh libfastnorm_internal.a
set -euo pipefail
archive=$1
passed=0
failed=0

check() { # name, what is wrong ("" = nothing)
  if [ -z "$2" ]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAIL $1: $2"
  fi
}

# For each object: its name and the widest vector registers of its code, if any beyond 16 bytes.
widths=$(objdump -d --no-show-raw-insn "$archive" | awk '
  function flush() { if (object != "") print object, (zmm ? "zmm" : ymm ? "ymm" : "none") }
  /file format/ { flush(); object = $1; sub(/:$/, "", object); zmm = ymm = 0; next }
  /%zmm/ { zmm = 1 }
  /%ymm/ { ymm = 1 }
  END { flush() }')

objects=0
seen_wide=""
while read -r object width; do
  objects=$((objects + 1))
  case $object in
    *_avx512*) wanted=zmm ;;
    *_avx2*) wanted=ymm ;;
    *) wanted=none ;; # outside the units with their own flags
  esac
  check "$object" "$([ "$width" = $wanted ] || echo "uses $width registers, required $wanted")"
  case $object in
    *_avx*) seen_wide="$seen_wide $object" ;;
  esac
done <<<"$widths"
check "number of objects" "$([ "$objects" -ge 10 ] || echo "$objects, required at least 10")"
check "wide objects" "$([ "$(wc -w <<<"$seen_wide")" -ge 13 ] || echo "only$seen_wide")"

# nm prints a line with the name of each member, then its symbols.
shared=$(nm --defined-only "$archive" | awk '
  /:$/ { object = $0 }
  object ~ /_(scalar|avx2|avx512)/ && $2 ~ /^[WVu]$/ {
    print object, $3
  }')
check "functions shared between units" "$(head -n 3 <<<"$shared")"

echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
