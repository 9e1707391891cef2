"""The tests on ONNX Runtime's CUDA provider, inside an environment that has onnxruntime-gpu, what
suite.py needs, and PyTorch for streams. The last line is the count; without a GPU all is skipped.

FASTNORM_LIBRARY and FASTNORM_ONNXRUNTIME_LIBRARY name the libraries, as for suite.py. ONLY names
steps, such as "check_stream check_blocks"; without it all run.
"""

import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.dont_write_bytecode = True
import suite  # noqa: E402, I001  It makes the folders of the others known.
import models  # noqa: E402
import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402
from models import DOMAIN, block, feeds, one_operator  # noqa: E402
from norm_testing import missing  # noqa: E402
from suite import CODES, F32, KIND, NORMS, arrays_of, cases, normal, outputs_of, wrong  # noqa: E402

import fastnorm.onnxruntime as fn  # noqa: E402

CPU = ["CPUExecutionProvider"]
# Matrix products in whole single precision, for comparisons.
CUDA = [("CUDAExecutionProvider", {"device_id": "0", "use_tf32": "0"}), *CPU]
# One rounding, where the two sides' sums differ.
STEP = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}
QUANTIZE = {
    "LayerNormalizationQuantize": "LayerNormalization",
    "RMSNormalizationQuantize": "RMSNormalization",
    "SkipLayerNormalizationQuantize": "SkipLayerNormalization",
    "SkipRMSNormalizationQuantize": "SkipSimplifiedLayerNormalization",
}


def opened(model, providers, ours=True, options=None):
    options = options or ort.SessionOptions()
    options.log_severity_level = 4
    if ours:
        fn.register(options)
    return ort.InferenceSession(model.SerializeToString(), options, providers=providers)


def run(session, arrays):
    names = {i.name for i in session.get_inputs()}
    return session.run(None, {k: v for k, v in arrays.items() if k in names})


def reason_to_skip():
    """Why nothing can run, or None."""
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        return "this ONNX Runtime has no CUDA provider"
    arrays = arrays_of("RMSNormalization", "float32", (2, 8), np.random.default_rng(0))
    model = one_operator("Identity", "", "float32", {"x": arrays["x"]}, {"y": F32})
    found = opened(model, CUDA, ours=False).get_providers()
    return None if found[0] == "CUDAExecutionProvider" else "there is no GPU for ONNX Runtime"


# --- one operator ---


def one_of_each(dtype, rng):
    """name: (model, what it is fed) for every operator."""
    found = {}
    for op in NORMS:
        arrays = arrays_of(op, dtype, (2, 3, 200), rng)
        found[op] = one_operator(op, DOMAIN, dtype, arrays, outputs_of(op, dtype, True)), arrays
    for op, base in QUANTIZE.items():
        arrays = arrays_of(base, dtype, (2, 3, 200), rng)
        outputs = {"codes": CODES["int8"], "scales": F32, "y": KIND[dtype]}
        if "skip" in arrays:
            outputs["sum"] = KIND[dtype]
        found[op] = suite.code_model(op, dtype, arrays, "int8", None, outputs), arrays
    d, tokens = 64, 5
    arrays = {
        "q": normal(rng, 2, tokens, 4, d, dtype=dtype),
        "wq": normal(rng, d, dtype=dtype, scale=0.2, offset=1.0),
        "cos": normal(rng, 9, d // 2, dtype=dtype), "sin": normal(rng, 9, d // 2, dtype=dtype),
        "ids": rng.integers(0, 9, (2, tokens)),
        "k": normal(rng, 2, tokens, 2, d, dtype=dtype),
        "wk": normal(rng, d, dtype=dtype, scale=0.2, offset=1.0),
    }
    op = "RMSNormalizationRotaryEmbedding"
    outputs = {"q_out": KIND[dtype], "k_out": KIND[dtype]}
    found[op] = one_operator(op, DOMAIN, dtype, arrays, outputs, input_tokens_first=1), arrays
    return found


def check_places():
    """Our nodes run on the GPU, says ONNX Runtime's profile."""
    for dtype in KIND:
        for op, (model, arrays) in one_of_each(dtype, np.random.default_rng(10)).items():
            options = ort.SessionOptions()
            options.enable_profiling = True
            with tempfile.TemporaryDirectory() as folder:
                options.profile_file_prefix = str(Path(folder) / "profile")
                session = opened(model, CUDA, options=options)
                run(session, arrays)
                events = json.loads(Path(session.end_profiling()).read_text())
            where = {e["args"].get("provider") for e in events
                     if e.get("args", {}).get("op_name") == op}
            cases.equal(f"{op} {dtype}: where it runs", where - {None}, {"CUDAExecutionProvider"})


def check_beside_cpu():
    """Every operator on the two providers; the same bits again on the GPU."""
    for dtype in KIND:
        for op, (model, arrays) in one_of_each(dtype, np.random.default_rng(11)).items():
            session = opened(model, CUDA)
            found, again = run(session, arrays), run(session, arrays)
            wanted = run(opened(model, CPU), arrays)
            for output, a, b, c in zip(model.graph.output, found, wanted, again):
                name = f"{op} {dtype}: {output.name} beside the CPU"
                if output.name == "codes":
                    step = np.abs(a.astype(np.float64) - b)
                    cases.check(name, a.shape == b.shape and np.max(step) <= 1
                                and np.mean(step) < 0.01, f"{np.max(step)}, {np.mean(step)}")
                else:
                    small = output.name in ("mean", "rstd", "scales")
                    cases.equal(name, wrong(a, b, 2e-6 if small else STEP[dtype]), "")
                cases.check(f"{op} {dtype}: {output.name} again", np.array_equal(a, c))


def check_memory():
    """Operands that ONNX Runtime moves: outputs in the place of inputs, weights that are inputs."""
    rng = np.random.default_rng(12)
    x = normal(rng, 4, 96)
    make = models.Maker()
    make.input("x", F32, ["rows", 96])
    make.input("w", F32, [96])
    value = make.node("Neg", ["x"], "y0")
    for i in range(6):  # each may have the memory of the one before
        value = make.node("SkipSimplifiedLayerNormalization", [value, "x", "w"],
                          [f"y{i + 1}", "", "", f"sum{i}"], DOMAIN, epsilon=1e-5)
        value = make.node("Add", [value, f"sum{i}"], f"z{i}")
    make.output(value, F32, ["rows", 96])
    fed = {"x": x, "w": normal(rng, 96, scale=0.1, offset=0.5)}
    model = make.model()
    cases.equal("a chain that reuses memory", wrong(
        run(opened(model, CUDA), fed)[0], run(opened(model, CPU), fed)[0], 2e-5), "")


# --- streams ---


def chain_model(rows, width, nodes):
    make = models.Maker()
    make.input("x", F32, [rows, width])
    value = "x"
    for i in range(nodes):
        make.constant(f"w{i}", np.full(width, 1 + i / 16, np.float32))
        value = make.node("RMSNormalization", [value, f"w{i}"], f"y{i}", DOMAIN, epsilon=1e-5)
    make.output(value, F32, [rows, width])
    return make.model()


def on_gpu(session, arrays):
    """A binding whose inputs and outputs stay on the GPU."""
    binding = session.io_binding()
    for name, array in arrays.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0))
    for output in session.get_outputs():
        binding.bind_output(output.name, "cuda", 0)
    return binding


def check_threads():
    rng = np.random.default_rng(13)
    model, fed = chain_model(257, 768, 8), {"x": normal(rng, 257, 768)}
    sessions = [opened(model, CUDA) for _ in range(2)]
    wanted = run(sessions[0], fed)[0]
    found = [[] for _ in range(4)]

    def work(i):
        for _ in range(20):
            found[i].append(run(sessions[i % 2], fed)[0])

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    cases.check("four threads run two sessions", all(
        np.array_equal(y, wanted) for part in found for y in part) and all(
            len(part) == 20 for part in found))


def check_graph():
    """A CUDA graph that ONNX Runtime captures, with new inputs at each replay."""
    rng = np.random.default_rng(14)
    model = chain_model(5, 1024, 6)
    providers = [("CUDAExecutionProvider", {"device_id": "0", "enable_cuda_graph": "1"})]
    plain, captured = opened(model, CUDA), opened(model, providers)
    x = ort.OrtValue.ortvalue_from_numpy(np.zeros((5, 1024), np.float32), "cuda", 0)
    y = ort.OrtValue.ortvalue_from_numpy(np.zeros((5, 1024), np.float32), "cuda", 0)
    binding = captured.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_output(captured.get_outputs()[0].name, y)
    for i in range(4):
        values = normal(rng, 5, 1024)
        x.update_inplace(values)
        captured.run_with_iobinding(binding)
        wanted = run(plain, {"x": values})[0]
        cases.check(f"a captured graph, run {i}", np.array_equal(y.numpy(), wanted))


def check_stream():
    """The stream of the program: what it has queued before is seen, and nothing waits."""
    reason = missing("torch")
    if reason is not None:
        cases.skip("a stream of the program", reason)
        return
    import torch

    rng = np.random.default_rng(15)
    model, values = chain_model(64, 2048, 4), normal(rng, 64, 2048)
    wanted = run(opened(model, CUDA), {"x": values})[0]
    stream = torch.cuda.Stream()
    providers = [("CUDAExecutionProvider",
                  {"device_id": "0", "user_compute_stream": str(stream.cuda_stream)})]
    session = opened(model, providers)
    x = torch.zeros(64, 2048, device="cuda")
    y = torch.zeros(64, 2048, device="cuda")
    late = torch.from_numpy(values).cuda()
    binding = session.io_binding()
    binding.bind_input("x", "cuda", 0, np.float32, (64, 2048), x.data_ptr())
    binding.bind_output(session.get_outputs()[0].name, "cuda", 0, np.float32, (64, 2048),
                        y.data_ptr())
    options = ort.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    session.run_with_iobinding(binding, options)  # what is made at the first run is made
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)
        x.copy_(late)
        session.run_with_iobinding(binding, options)
        busy = not stream.query()
        z = y * 2
    stream.synchronize()
    cases.check("the call returns while the stream still works", busy)
    cases.check("the program's stream: y", np.array_equal(y.cpu().numpy(), wanted))
    cases.check("the program's stream: what follows", np.array_equal(z.cpu().numpy(), wanted * 2))


# --- whole models ---


def check_blocks():
    for norm in ("layer", "rms", "chain"):
        for dtype in ("float32", "float16"):
            name = f"block {norm} {dtype}"
            model = block(norm, dtype, layers=2)
            found = fn.rewrite(model, providers=CUDA)
            count = fn.count(found)
            print(f"{name}: {count}")
            skip = "SkipLayerNormalization" if norm == "layer" else (
                "SkipSimplifiedLayerNormalization")
            cases.equal(f"{name}: additions that are fused", count.get(skip), 4)
            left = [n.op_type for n in found.graph.node if n.domain != DOMAIN
                    and ("Norm" in n.op_type or n.op_type in ("ReduceMean", "RotaryEmbedding"))]
            cases.equal(f"{name}: norms that are left", left, [])
            for batch, tokens in ((2, 7), (1, 1), (1, 64)):
                fed = feeds(dtype, batch, tokens, 256)
                y = run(opened(found, CUDA), fed)[0]
                for side, providers in (("CUDA", CUDA), ("CPU", CPU)):
                    wanted = run(opened(model, providers, ours=False), fed)[0]
                    near = 2e-5 if dtype == "float32" else 1e-2
                    cases.equal(f"{name} [{batch}, {tokens}]: beside ORT's {side}",
                                wrong(y, wanted, near), "")


def main():
    reason = reason_to_skip()
    if reason is not None:
        cases.skip("the CUDA provider", reason)
        cases.finish()
    models.PROVIDERS = CUDA
    suite.ON_GPU = True
    # ONNX Runtime's kernels of float16 add in float16 there.
    suite.NEAR = {"float32": 4e-6, "float16": 1e-2}
    steps = (
        check_places, check_beside_cpu, check_memory, check_threads, check_graph, check_stream,
        check_blocks, suite.check_rows, suite.check_heads, suite.check_variants, suite.check_skips,
        suite.check_empty_and_errors, suite.check_codes, suite.check_rewriting,
    )
    wanted = os.environ.get("ONLY", "").split()
    for step in steps:
        if wanted and step.__name__ not in wanted:
            continue
        begin = time.perf_counter()
        try:
            step()
        except Exception as error:  # the other steps tell more
            cases.check(f"{step.__module__}.{step.__name__}", False, f"{type(error)}: {error}")
        print(f"{step.__name__}: {time.perf_counter() - begin:.1f} s; {cases.passed} passed, "
              f"{cases.failed} failed so far", flush=True)
    cases.finish()


if __name__ == "__main__":
    main()
