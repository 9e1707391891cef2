#!/usr/bin/env python3
"""Measures what a call costs from Java and from C.

It builds call_cost.c and the JMH benchmark of the profile jmh, runs both, and prints a table. Each
figure is the best sample of a few hundred calls. With FASTNORM_TEST_DEVICE=cuda it measures a GPU,
too. This is no test: the figures depend on the machine and on what else runs there.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

JAVA = Path(__file__).resolve().parents[1]
ROWS = [
    ("empty native call", "emptyNativeCall", None),
    ("device, description kept", "deviceKept", "device"),
    ("device, one address changed", "deviceChanged", "device"),
    ("device, all made per call", "deviceBuilt", "device"),
    ("CPU, description kept", "cpuKept", "cpu"),
    ("CPU, all made per call", "cpuBuilt", "cpu"),
    ("4096 floats of arrays, a loop in Java", "floatsLoop", None),
    ("4096 floats of arrays, copied per call", "floatsCopied", None),
    ("4096 floats of arrays, description kept", "floatsKept", None),
    ("4096 floats of arrays, all made per call", "floatsBuilt", None),
    ("GPU with the launch, description kept", "gpuKept", "gpu"),
    ("GPU with the launch, all made per call", "gpuBuilt", "gpu"),
]


def run(command, env, **options):
    result = subprocess.run(
        [str(c) for c in command], env=env, text=True, stdout=subprocess.PIPE, **options
    )
    if result.returncode != 0:
        sys.exit(f"{result.stdout}\n{command[0]} ended with {result.returncode}")
    return result.stdout


def cost_in_c(work, env, library_dir):
    flags = run(["pkg-config", "--cflags", "--libs", "fastnorm"], env).split()
    program = work / "call_cost"
    run(
        [
            "cc",
            "-std=c99",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-D_POSIX_C_SOURCE=199309L",
            JAVA / "bench" / "call_cost.c",
            "-o",
            program,
            *flags,
            "-ldl",
        ],
        env,
    )
    lines = run([program], {**env, "LD_LIBRARY_PATH": str(library_dir)}).splitlines()
    return {name: float(ns) for name, ns in (line.split() for line in lines)}


def cost_in_java(work, env, options):
    target = work / "jmh"
    maven = ["mvn", "-B", "-f", JAVA / "pom.xml", f"-DbuildDirectory={target}", "-Pjmh"]
    classpath = target / "classpath.txt"
    run(
        [
            *maven,
            "test-compile",
            "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath",
            f"-Dmdep.outputFile={classpath}",
            "-Dmdep.includeScope=test",
        ],
        env,
    )
    result = target / "result.json"
    benchmarks = (
        "CallBenchmark"
        if env.get("FASTNORM_TEST_DEVICE") == "cuda"
        else r"CallBenchmark\.(empty|device|cpu|floats)"
    )
    run(
        [
            "java",
            "-cp",
            f"{target / 'classes'}:{target / 'test-classes'}:{classpath.read_text().strip()}",
            f"-Dfastnorm.test.basedir={JAVA}",
            f"-Dfastnorm.test.build={target}",
            "org.openjdk.jmh.Main",
            benchmarks,
            "-foe",
            "true",
            "-f",
            options.forks,
            "-wi",
            3,
            "-w",
            1,
            "-i",
            options.iterations,
            "-r",
            "500ms",
            "-rf",
            "json",
            "-rff",
            result,
        ],
        env,
    )
    found = json.loads(result.read_text())
    return {
        entry["benchmark"].rsplit(".", 1)[1]: entry["primaryMetric"]["scorePercentiles"]["0.0"]
        for entry in found
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pkgconfig", type=Path, required=True, help="folder of fastnorm.pc")
    parser.add_argument(
        "--library-dir", type=Path, required=True, help="folder of libfastnorm.so.1"
    )
    parser.add_argument("--work", type=Path, required=True, help="folder for what is built")
    parser.add_argument("--forks", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=10)
    options = parser.parse_args()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "PKG_CONFIG_PATH": str(options.pkgconfig.resolve())}
    before = cost_in_c(work, env, options.library_dir.resolve())
    in_java = cost_in_java(work, env, options)
    after = cost_in_c(work, env, options.library_dir.resolve())
    in_c = {name: min(before[name], after[name]) for name in before}
    print("| ns per call | Java | C | Java over C |\n|---|---|---|---|")
    for title, name, same in ROWS:
        if name not in in_java:
            continue
        over = f"{in_c[same]:.0f} | {in_java[name] - in_c[same]:.0f}" if same else " | "
        print(f"| {title} | {in_java[name]:.0f} | {over} |")


main()
