#!/usr/bin/env bash
# Runs all tests of a bundle (tools/bundle makes one) on the device that FASTNORM_TEST_DEVICE names,
# cpu or cuda (the default): the C API, Go, Rust, Java, and then what a call costs from each.
#
#   run.sh [--quick] [--only REGEX] [OUT]
#
# OUT receives a log of each suite and results.json; --quick measures costs roughly; --only names
# suites. The last line is "N passed, N failed, N skipped".
set -uo pipefail
export PATH=${PATH:-/usr/local/bin:/usr/bin:/bin} LC_ALL=C
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export FASTNORM_TEST_DEVICE=${FASTNORM_TEST_DEVICE:-cuda}
case $FASTNORM_TEST_DEVICE in
  cpu | cuda) ;;
  *)
    echo "FASTNORM_TEST_DEVICE is $FASTNORM_TEST_DEVICE; required: cpu or cuda"
    exit 2
    ;;
esac
quick=0 only=.
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=1 ;;
    --only) only=${2:?a regular expression} && shift ;;
    -*) echo "$1: unknown; required: --quick, --only REGEX or a folder" && exit 2 ;;
    *) break ;;
  esac
  shift
done
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
out=${1:-$scratch/out}
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
# What is set already may name the driver's folder.
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} TMPDIR=$scratch
[ -x "$here/api/api_test" ] || chmod -R u+x "$here"
passed=0 failed=0 skipped=0 suites=

quoted() { printf '"%s"' "$(printf '%s' "$1" | tr -d '\000-\037' | sed 's/\\/\\\\/g; s/"/\\"/g')"; }

device=unknown driver=none
if [ "$FASTNORM_TEST_DEVICE" = cuda ]; then
  line=$(timeout 30 nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null |
    head -n 1)
  if [ -n "$line" ]; then
    device=${line%%,*} driver=${line##*, }
  elif [ -r /proc/driver/nvidia/version ]; then
    driver=$(grep -oE '[0-9]{3}\.[0-9.]+' /proc/driver/nvidia/version | head -n 1)
  fi
else
  device=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)
fi

# The counts so far, so that a run which is cut short leaves what it has.
write_results() {
  local form='{"date": %s, "commit": %s, "test_device": %s, "device": %s, "driver": %s, '
  form+='"passed": %d, "failed": %d, "skipped": %d, "suites": [\n%s\n]}\n'
  # shellcheck disable=SC2059
  printf "$form" "$(quoted "$(date -u +%Y-%m-%dT%H:%M:%SZ)")" \
    "$(quoted "$(cat "$here/made_of.txt")")" "$(quoted "$FASTNORM_TEST_DEVICE")" \
    "$(quoted "$device")" "$(quoted "$driver")" $passed $failed $skipped "$suites" \
    >"$out/results.json"
}

# --- counts: "passed failed skipped" of a log, after a line "SKIP .." for each test that was
# skipped ---

count_closing() {
  awk '/^SKIP / { print } { last = $0 }
    END {
      if (last !~ /^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/) last = "0 passed, 0 failed, 0"
      split(last, w, " ")
      print w[1], w[3], w[5]
    }' "$1"
}
count_go() {
  awk '/^ +[a-z_]+\.go:[0-9]+: / { why = $0; sub(/^ +[a-z_]+\.go:[0-9]+: /, "", why) }
    /^ *--- PASS: / { ++p }
    /^ *--- FAIL: / { ++f }
    /^ *--- SKIP: / { ++s; print "SKIP " $3 ": " why }
    END { print p + 0, f + 0, s + 0 }' "$1"
}
count_rust() {
  awk '/^test .* \.\.\. ignored/ { print "SKIP " $2 ": ignored" }
    /^test result: / { p += $4; f += $6; s += $8 } END { print p + 0, f + 0, s + 0 }' "$1"
}
count_junit() {
  awk '/\[[AS]\] / {
      why = name = $0
      sub(/.*\[[AS]\] (Assumption failed: )?/, "", why)
      sub(/ *\[[AS]\].*/, "", name)
      gsub(/^[^A-Za-z]+/, "", name); print "SKIP " name ": " why }
    /^\[ +[0-9]+ tests successful/ { p = $2 } /^\[ +[0-9]+ (tests|containers) failed/ { f += $2 }
    /^\[ +[0-9]+ (tests|containers) (aborted|skipped)/ { s += $2 }
    END { print p + 0, f + 0, s + 0 }' "$1"
}

# --- costs: a line of JSON for each way to call ---

cost_go() {
  awk '/over-C-ns/ { sub(/-[0-9]+$/, "", $1); for (i = 3; i < NF; i += 2) v[$(i + 1)] = $i
    printf "{\"case\": \"%s\", \"ns\": %s, ", $1, v["Go-ns/call"]
    printf "\"over_c_ns\": %s}\n", v["over-C-ns"] }' "$1"
}
cost_rust() {
  awk '/, ns a call$/ { what = $0; sub(/, ns a call$/, "", what) }
    / over C / {
      line = $0
      sub(/^ +fastnorm, /, "", line)
      form = line
      sub(/ +[0-9.]+ +over C.*/, "", form)
      n = split(line, w, " ")
      printf "{\"case\": \"%s: %s\", \"ns\": %s, ", what, form, w[n - 3]
      printf "\"over_c_ns\": %s}\n", w[n] }' "$1"
}
# Java's own figures stand beside those of C.
cost_java() {
  awk '/^(device|cpu|gpu) -?[0-9.]+$/ { c[$1] = $2 }
    /^CallBenchmark\.[A-Za-z]+:p0\.00 / || /CallBenchmark\.[A-Za-z]+:[A-Za-z]+.p0\.00 / {
      name = $1
      sub(/^.*CallBenchmark\./, "", name)
      sub(/:.*/, "", name)
      same = name
      sub(/[A-Z].*/, "", same)
      for (i = 2; i < NF; ++i) if ($i ~ /^[0-9.]+$/) ns = $i
      if (same in c) {
        printf "{\"case\": \"%s\", \"ns\": %s, \"over_c_ns\": %.1f}\n", name, ns, ns - c[same]
      } }' "$1"
}

# suite NAME SECONDS COUNT COMMAND ..: runs it in the scratch folder, prints and adds its counts.
suite() {
  local name=$1 limit=$2 count=$3 start=$SECONDS code found p f s costs=
  shift 3
  [[ $name =~ $only ]] || return 0
  local log=$out/$name.log
  (cd "$scratch" && timeout -k 5 "$limit" "$@") >"$log" 2>&1
  code=$?
  found=$($count "$log")
  case $count in
    cost_*)
      costs=$(printf '%s' "$found" | tr '\n' ',' | sed 's/,$//; s/},{/}, {/g')
      printf '%s\n' "$found"
      p=$(printf '%s' "$found" | grep -c '^{') f=0 s=0
      ;;
    *)
      read -r p f s <<<"${found##*$'\n'}"
      printf '%s\n' "$found" | grep '^SKIP ' | sed "s/^SKIP /SKIP $name: /"
      ;;
  esac
  # It broke off, found fault after counting, or counted nothing.
  if [ "$f" -eq 0 ] && { [ $code -ne 0 ] || [ $((p + s)) -eq 0 ]; }; then f=1; fi
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  printf '%-16s %5d passed, %d failed, %d skipped, exit code %d, %d s\n' \
    "$name" "$p" "$f" "$s" $code $((SECONDS - start))
  if [ "$f" -ne 0 ]; then
    printf 'FAIL %s; its last lines:\n' "$name"
    tail -n 25 "$log"
  fi
  suites+=${suites:+,$'\n'}$(
    printf '  {"name": %s, "passed": %d, "failed": %d, "skipped": %d, ' "$(quoted "$name")" "$p" \
      "$f" "$s"
    printf '"exit_code": %d, "seconds": %d, "costs": [%s]}' $code $((SECONDS - start)) "$costs"
  )
  write_results
}

echo "device: $device, driver: $driver"
while IFS= read -r line; do
  echo "SKIP $line"
  skipped=$((skipped + 1))
done <"$here/missing.txt"

for program in "$here"/api/*; do suite "c-$(basename "$program")" 120 count_closing "$program"; done

if [ -d "$here/go" ]; then
  suite go 60 count_go "$here/go/fastnorm.test" -test.v -test.timeout=50s -test.skip='^TestFaults$'
  suite go-faults 20 count_go env FAULTS=1 LD_PRELOAD="$here/go/libfaults.so" \
    "$here/go/fastnorm.test" -test.v -test.run='^TestFaults$'
fi

if [ -d "$here/rust" ]; then
  for program in "$here"/rust/tests/*; do
    suite "rust-$(basename "$program")" 60 count_rust "$program"
  done
  suite rust-faults 20 count_rust env LD_PRELOAD="$here/rust/other/libstub.so" \
    "$here/rust/other/preload"
fi

if [ -d "$here/java" ]; then
  # Child processes of the tests find their classes in the folder that fastnorm.test.build names.
  mkdir "$scratch/java" && ln -s "$here/java/classes" "$here/java/test-classes" "$scratch/java/"
  tar xJf "$here/java/runtime.tar.xz" -C "$scratch"
  java=("$scratch/runtime/bin/java" "-Djava.io.tmpdir=$scratch"
    "-Dfastnorm.library=$here/lib" "-Dfastnorm.test.library=$here/lib"
    "-Dfastnorm.test.build=$scratch/java" "-Dfastnorm.test.gpu=$here/java/libgpu.so")
  classpath=$here/java/classes:$here/java/test-classes
  suite java 120 count_junit "${java[@]}" -jar "$here/java/junit-console.jar" execute \
    --disable-banner --disable-ansi-colors --details=tree --class-path "$classpath" \
    --scan-class-path "$here/java/test-classes" \
    --include-classname '^dev\.fastnorm\.[A-Za-z]+Test$'
fi

# --- what a call costs ---

if [ -d "$here/go" ]; then
  suite cost-go 60 cost_go "$here/go/fastnorm.test" -test.run='^$' -test.bench=. \
    -test.benchtime=$((quick ? 20 : 300))x
fi
if [ -d "$here/rust" ]; then
  suite cost-rust 60 cost_rust "$here/rust/other/call"
fi
if [ -d "$here/java" ]; then
  which='CallBenchmark\.(device|cpu)(Kept|Built)'
  effort=(-wi 2 -w 400ms -i 3 -r 300ms)
  [ $quick = 0 ] || effort=(-wi 1 -w 50ms -i 1 -r 50ms)
  [ "$FASTNORM_TEST_DEVICE" = cpu ] || which='CallBenchmark\.(device|cpu|gpu)(Kept|Built)'
  # shellcheck disable=SC2016
  suite cost-java 60 cost_java bash -c '"$1" && shift && exec "$@"' - "$here/java/call_cost" \
    "${java[@]}" -cp "$classpath:$here/java/jmh/*" \
    org.openjdk.jmh.Main "$which" -f 1 -foe true "${effort[@]}"
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
