#!/usr/bin/env python3
"""Times the operators beside ONNX Runtime's own, and whole models, in one process. Writes
bench/results/onnxruntime_cpu.csv and the table of README.md.

    integrations/onnxruntime/bench.py --build build-test/native

Run it with a Python that has the packages of requirements.txt. --check compares the table with the
results. --table writes the table alone. --cuda measures on the CUDA provider, with onnxruntime-gpu,
and writes the results into the named file alone: inputs and outputs stay on the GPU, and a call has
the time until its work has run.
"""

import argparse
import datetime
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT / "packages" / "python")]
from figures import commit, device, lines, with_table  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "onnxruntime_cpu.csv"
PAGE = HERE / "README.md"
CHAIN = 10  # nodes of an operator in a model, so that the session's own time counts little
ROUNDS, SECONDS = 15, 0.02
N, HEADS, D = 4096, 32, 128


def fastest(runs, now):
    """Microseconds of a call of each, in rounds that take turns: the fastest round of each."""
    counts = []
    for run in runs:
        for _ in range(3):
            run()
        begin = now()
        run()
        counts.append(max(1, int(SECONDS / max(now() - begin, 1e-7))))
    best = [float("inf")] * len(runs)
    for _ in range(ROUNDS):
        for i, run in enumerate(runs):
            begin = now()
            for _ in range(counts[i]):
                run()
            best[i] = min(best[i], (now() - begin) / counts[i] * 1e6)
    return best


def bound(session, feeds, cuda):
    """A call whose inputs and outputs are at hand."""
    import onnxruntime as ort

    binding = session.io_binding()
    for name, array in feeds.items():
        if cuda:
            value = ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0)
            binding.bind_ortvalue_input(name, value)
        else:
            binding.bind_cpu_input(name, array)
    for output in session.get_outputs():
        binding.bind_output(output.name, "cuda" if cuda else "cpu")
    return lambda: session.run_with_iobinding(binding)


def gpu():
    """The name of the first GPU."""
    if shutil.which("nvidia-smi") is None:
        return "unknown"
    found = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
                           capture_output=True, text=True)
    return found.stdout.splitlines()[0] if found.returncode == 0 else "unknown"


def chain(op, dtype, rows):
    """A model of CHAIN nodes, each of the result of the one before, as ORT has them."""
    import numpy as np
    from models import FLOATS, Maker

    rng = np.random.default_rng(0)
    kind, np_type = FLOATS[dtype], np.dtype(dtype)
    make = Maker((("", 23), ("com.microsoft", 1)))
    if op == "RMSNormalization + RotaryEmbedding":
        x = make.input("x", kind, [1, HEADS, rows, D])
        make.input("ids", 7, [1, rows])
        angle = np.arange(rows)[:, None] / 100.0 ** (np.arange(D // 2) / (D // 2))
        make.constant("cos", np.cos(angle).astype(np_type))
        make.constant("sin", np.sin(angle).astype(np_type))
        for i in range(CHAIN):
            make.constant(f"w{i}", np.full(D, 1 + i / 64, np_type))
            make.node("RMSNormalization", [x, f"w{i}"], f"t{i}")
            x = make.node("RotaryEmbedding", [f"t{i}", "cos", "sin", "ids"], f"y{i}")
        make.output(x, kind, [1, HEADS, rows, D])
        values = rng.standard_normal((1, HEADS, rows, D)).astype(np_type)
        return make.model(11), {"x": values, "ids": np.arange(rows)[None]}
    x = make.input("x", kind, [1, rows, N])
    feeds = {"x": rng.standard_normal((1, rows, N)).astype(np_type)}
    skip = "Skip" in op
    make.constant("b", rng.standard_normal(N).astype(np_type))
    make.constant("scale", np.float32(0.03))
    make.constant("zero", np.int8(0))
    if skip:
        make.input("r", kind, [1, rows, N])
        feeds["r"] = rng.standard_normal((1, rows, N)).astype(np_type)
    total = "r"
    for i in range(CHAIN):
        first = op.split(" ")[0]
        # Nodes of the same inputs would become one.
        w = make.constant(f"w{i}", (1 + 0.1 * rng.standard_normal(N)).astype(np_type))
        inputs = [x, *([total] if skip else []), w] + (["b"] if "Simplified" not in op
                                                       and "RMS" not in op else [])
        outputs = [f"y{i}"] + (["", "", f"sum{i}"] if skip else [])
        domain = "com.microsoft" if skip else ""
        attributes = {} if skip else {"axis": -1}
        make.node(first, inputs, outputs, domain, epsilon=1e-5, **attributes)
        x, total = f"y{i}", f"sum{i}"
        if op.endswith("QuantizeLinear"):
            make.node("QuantizeLinear", [x, "scale", "zero"], f"codes{i}")
            make.output(f"codes{i}", 3, [1, rows, N])
            x = "x"
    if not op.endswith("QuantizeLinear"):
        make.output(x, kind, [1, rows, N])
    return make.model(11), feeds


def cases():
    for rows in (1, 256):
        for dtype in ("float32", "float16"):
            for op in ("LayerNormalization", "RMSNormalization", "SkipLayerNormalization",
                       "SkipSimplifiedLayerNormalization", "RMSNormalization + RotaryEmbedding"):
                yield op, dtype, rows
        yield "LayerNormalization + QuantizeLinear", "float32", rows
        for norm in ("layer", "rms", "chain"):
            for dtype in ("float32", "float16"):
                yield f"model, {norm}", dtype, rows


def measure(threads, cuda):
    import onnx
    import onnxruntime as ort
    from models import block, feeds, session

    import fastnorm.onnxruntime as fn

    providers = [*(["CUDAExecutionProvider"] if cuda else []), "CPUExecutionProvider"]
    # On a GPU a thread waits for what it has queued.
    now = time.perf_counter if cuda else time.thread_time

    def opened(model, ours):
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        if ours:
            fn.register(options)
            model = fn.rewrite(model, providers=providers)
        made = ort.InferenceSession(model.SerializeToString(), options, providers=providers)
        if made.get_providers()[0] != providers[0]:
            sys.exit(f"{providers[0]} does not load here")
        return made

    del onnx, session
    for op, dtype, rows in cases():
        if op.startswith("model"):
            width = 512
            model = block(op.split(", ")[1], dtype, width=width, heads=8, layers=2, positions=256)
            fed, nodes, n = feeds(dtype, 1, rows, width), 1, width
        else:
            model, fed = chain(op, dtype, rows)
            nodes, n = CHAIN, D if "Rotary" in op else N
        runs = [bound(opened(model, ours), fed, cuda) for ours in (True, False)]
        us, theirs = (t / nodes for t in fastest(runs, now))
        result = {"op": op, "dtype": dtype, "rows": rows, "n": n, "threads": threads, "us": us,
                  "ort_us": theirs, "ratio": us / theirs}
        print(f"{op:40} {dtype:8} {rows:4} {threads}: {us:9.2f} us, ORT {theirs:9.2f}, "
              f"{us / theirs:.2f}", flush=True)
        yield result


def table():
    results = lines.read(RESULTS)
    head = f"{results['device']}, ONNX Runtime {results['onnxruntime']}, {results['date'][:10]}; "
    head += "microseconds, and the part of ONNX Runtime's own time:"
    found = {(r["op"], r["dtype"], r["rows"]): r for r in results["results"]}
    text = [head, "", "| | 1 token, f32 | 256, f32 | 1 token, f16 | 256, f16 |",
            "|---|---|---|---|---|"]
    for op in dict.fromkeys(op for op, _, _ in found):
        cells = []
        for dtype in ("float32", "float16"):
            for rows in (1, 256):
                r = found.get((op, dtype, rows))
                cells.append(f"{r['us']:.1f}, {r['ratio']:.2f}" if r else "")
        text.append(f"| {op} | " + " | ".join(cells) + " |")
    return "\n".join(text) + "\n"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, help="folder of Meson")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--cuda", type=Path, help="a file for results of the CUDA provider")
    options = parser.parse_args()
    if options.check:
        same = with_table(PAGE, table()) == PAGE.read_text()
        sys.exit(0 if same else f"{PAGE.name} has other figures than {RESULTS.name}")
    if not options.table:
        if options.build:
            build = options.build.resolve()
            os.environ["FASTNORM_LIBRARY"] = str(build / "src" / "libfastnorm.so.1")
            os.environ["FASTNORM_ONNXRUNTIME_LIBRARY"] = str(
                build / "integrations" / "onnxruntime" / "libfastnorm_onnxruntime.so"
            )
        import onnxruntime

        content = {
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "device": device(), "commit": commit(), "onnxruntime": onnxruntime.__version__,
            "kind": "onnxruntime", "threads": options.threads, "rounds": ROUNDS, "results": [],
        }
        if options.cuda:
            content.update(kind="onnxruntime_cuda", device=gpu())
        for result in measure(options.threads, options.cuda is not None):
            content["results"].append(result)
            lines.write(options.cuda or RESULTS, content)
        if options.cuda:
            return
    PAGE.write_text(with_table(PAGE, table()))


if __name__ == "__main__":
    main()
