"""What the tests of both files of compiled operators share: calls and their results, and tests that
hold for each of them. A test calls start() first.
"""

import os
import pickle
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
from norm_testing import ROOT, Suite, arguments, best_us, missing, use_library  # noqa: E402

PACKAGE = ROOT / "packages" / "python"
DTYPES = ("float32", "bfloat16", "float16")
ROUNDINGS = ("once", "normalized", "every_step", "once_rw")
# Tests of the Python operators that run with the compiled ones.
OTHERS = ("test.py", "test_backward.py", "test_operators.py")
PYTHON = {"FASTNORM_TORCH_COMPILED": "0"}  # of a program without compiled operators


# --- results of many calls, in a program with the compiled operators or without them ---


def normal(shape, dtype, seed, scale=1.0, offset=0.0):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator) * scale + offset
    return values.to(getattr(torch, dtype)).to(DEVICE)


def shapes(dtype):
    """Rows by what is particular about them."""
    return {
        "rows": normal((3, 64), dtype, 1),
        "one row": normal((64,), dtype, 1),
        "5 dimensions": normal((2, 1, 2, 3, 64), dtype, 1),
        "a view": normal((4, 2, 80), dtype, 1)[:, 1, :64],
        "columns apart": normal((3, 128), dtype, 1)[:, ::2],
        "no rows": normal((0, 64), dtype, 1),
        "odd": normal((2, 63), dtype, 1),
    }


def calls(x, dtype, weight_dtype, rounding):
    """Functions by name, each of leaf tensors of its own."""
    n = x.shape[-1]
    y_dtype = torch.float32 if rounding == "every_step" else None

    def leaves(wanted):
        made = [
            x.detach().clone() if x.is_contiguous() else x.detach(),
            normal(x.shape, dtype, 2),
            normal((n,), weight_dtype, 3, 0.2, 1.0),
            normal((n,), weight_dtype, 4),
        ]
        return [t.requires_grad_() if wanted else t for t in made]

    named = {"rounding": rounding, "y_dtype": y_dtype}
    offset = {**named, "weight_offset": 1.0}
    functions = {
        "rms": lambda x, r, w, b: (ft.rms_norm(x, w, 1e-5, **offset),),
        "rms without a weight": lambda x, r, w, b: (ft.rms_norm(x, None, None, **named),),
        "add": lambda x, r, w, b: ft.add_rms_norm(
            x, r, w, 1e-5, residual_rounding="before_statistics", **offset
        ),
        "fused": lambda x, r, w, b: (ft.fused_add_rms_norm(x, q := r + 0, w, **offset), q),
    }
    if rounding != "once_rw":
        functions["layer"] = lambda x, r, w, b: (ft.layer_norm(x, w, b, 1e-5, **named),)
        functions["layer without a bias"] = lambda x, r, w, b: (ft.layer_norm(x, w, **named),)
    return leaves, functions


def bits(t):
    """A tensor as bytes, with its dtype and shape; None for none."""
    if t is None:
        return None
    data = t.detach().cpu().contiguous()
    return (
        str(t.dtype),
        tuple(t.shape),
        data.view(torch.uint8).numpy().tobytes() if data.numel() else b"",
    )


def all_results():
    """Bits of results and gradients by the name of a call."""
    found = {}
    for dtype in DTYPES:
        for weight_dtype in dict.fromkeys((dtype, "float32")):
            for rounding in ROUNDINGS:
                for place, x in shapes(dtype).items():
                    leaves, functions = calls(x, dtype, weight_dtype, rounding)
                    for name, function in functions.items():
                        label = f"{name}, {place}, {dtype}, {weight_dtype}, {rounding}"
                        tensors = leaves(False)
                        with torch.no_grad():
                            found[label] = [bits(t) for t in function(*tensors)]
                        tensors = leaves(True)
                        results = function(*tensors)
                        torch.manual_seed(0)
                        results[-1].float().square().sum().backward()
                        if len(results) == 2:  # and of the other result, alone
                            function(*tensors)[0].float().sum().backward()
                        found[f"{label}: gradients"] = [bits(t.grad) for t in tensors]
    return found


def all_errors():
    """Texts of errors by the name of a call."""
    x, w = normal((3, 64), "float32", 1), normal((64,), "float32", 2)
    wrong = {
        "shape": lambda: ft.rms_norm(x, w[:63]),
        "dtype": lambda: ft.rms_norm(x.double(), w),
        "word": lambda: ft.rms_norm(x, w, rounding="never"),
        "residual's word": lambda: ft.add_rms_norm(x, x, w, residual_rounding="never"),
        "None": lambda: ft.rms_norm(None, w),
        "eps": lambda: ft.rms_norm(x, w, -1.0),
        "overlap": lambda: ft.fused_add_rms_norm(x.view(-1)[:64], x.view(-1)[8:72], w),
        "no residual": lambda: ft.add_rms_norm(x, None, w),
        "no dimension": lambda: ft.rms_norm(x[0, 0], None),
        "sparse": lambda: ft.rms_norm(x.to_sparse(), w),
        "main_grad": lambda: ft.rms_norm(x, None, main_grad=w),
        "second derivative": lambda: second_derivative(x, w),
        "forward derivative": lambda: torch.func.jvp(lambda x: ft.rms_norm(x, w), (x,), (x,)),
        "changed in place": lambda: changed_in_place(x, w),
    }
    found = {}
    for name, call in wrong.items():
        try:
            call()
            found[name] = "none"
        except Exception as error:
            text = re.sub(r"0x[0-9a-f]+", "ADDRESS", str(error))
            found[name] = f"{type(error).__name__}: {text}".split("\nException raised")[0]
    return found


def second_derivative(x, w):
    x = x.clone().requires_grad_()
    (dx,) = torch.autograd.grad(ft.rms_norm(x, w).square().sum(), x, create_graph=True)
    dx.sum().backward()


def changed_in_place(x, w):
    x = x.clone().requires_grad_()
    z = x * 2
    y = ft.rms_norm(z, w)
    ft.fused_add_rms_norm(x.detach(), z.detach(), w)
    y.sum().backward()


# --- programs ---


def program(environment, *command):
    """A Python program, when it has ended."""
    return subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def child(path):
    """Writes the results of this program."""
    runs = compiled.runs()
    results = {"results": all_results(), "errors": all_errors(), "path": compiled.path()}
    results["runs"] = compiled.runs() - runs
    Path(path).write_bytes(pickle.dumps(results))


def results_of(suite, name, environment):
    path = WORK / f"results-{name}"
    ran = program(environment, sys.argv[0], "--device", DEVICE.type, "--child", path)
    suite.check(f"the program of {name} operators runs", ran.returncode == 0, ran.stderr[-3000:])
    return pickle.loads(path.read_bytes())


def start(doc, name, add_arguments=None, why=None):
    """The suite of a program with that docstring, and its options. why(options): what is missing,
    or None; the program then ends."""
    global WORK
    parser = arguments(doc.splitlines()[0])
    parser.add_argument("--child", type=Path, help="write the results of calls to this file")
    if add_arguments is not None:
        add_arguments(parser)
    options = parser.parse_args()
    os.environ["FASTNORM_LIBRARY"] = use_library(options)
    suite = Suite(name, options)
    why = missing("torch", "numpy") or (why(options) if why else None)
    if why is None:
        import torch

        if options.device == "cuda" and not torch.cuda.is_available():
            why = "PyTorch has no CUDA device here"
    if why:
        suite.skip("compiled operators", why)
        suite.finish()
    start.folder = tempfile.TemporaryDirectory()  # lives as long as the program
    WORK = Path(start.folder.name)
    return suite, options


def import_package(suite, options, environment):
    """Imports fastnorm.torch of the checkout with these variables. True: this is a child, which has
    done its work."""
    global torch, ft, compiled, DEVICE
    if options.child is None:
        os.environ.update(environment)
    os.environ["PYTHONPATH"] = str(PACKAGE)
    sys.path.insert(0, str(PACKAGE))
    import fastnorm.torch as ft
    import torch
    from fastnorm.torch import compiled

    DEVICE = torch.device(options.device)
    if options.child is not None:
        child(options.child)
        return True
    suite.results["versions"] = {"torch": torch.__version__, "libfastnorm": ft.version()}
    return False


# --- tests ---


def compare(suite, path, environment, least_runs):
    """The bits and texts of the Python operators and of these. least_runs(count): how often a
    program of so many results calls the library at least."""
    plain, found = results_of(suite, "python", PYTHON), results_of(suite, path, environment)
    suite.equal("which path runs", [plain["path"], found["path"]], ["python", path])
    suite.equal("calls of the Python path", plain["runs"], 0)
    least = least_runs(len(found["results"]))
    suite.check(f"calls of the {path} path", found["runs"] > least, found["runs"])
    suite.equal("which calls", list(found["results"]), list(plain["results"]))
    suite.check("there are many", len(plain["results"]) > 1000, len(plain["results"]))
    wrong = [name for name, result in plain["results"].items() if found["results"][name] != result]
    suite.check("same bits of results and gradients", not wrong, wrong[:20])
    for name, text in plain["errors"].items():
        suite.equal(f"error: {name}", found["errors"][name], text)
    silent = [name for name, text in plain["errors"].items() if text == "none"]
    suite.equal("every wrong call is an error", silent, [])


def test_threads(suite):
    """Threads with plans of their own, while the number of PyTorch's threads changes."""
    x, w = normal((64, 512), "float32", 1), normal((512,), "float32", 2)
    wanted = ft.rms_norm(x, w)
    wrong = []

    def work(seed):
        own = x + seed
        first = ft.rms_norm(own, w)
        for i in range(300):
            if not torch.equal(ft.rms_norm(own, w), first):
                wrong.append((seed, i))
            y = own.clone().requires_grad_()
            ft.rms_norm(y, w).sum().backward()

    for _ in range(3):
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    suite.equal("threads", wrong, [])
    before = torch.get_num_threads()
    for count in (1, 3, 2):
        torch.set_num_threads(count)
        suite.check(f"{count} threads of PyTorch", torch.equal(ft.rms_norm(x, w), wanted))
    torch.set_num_threads(before)
    for rows in range(1, 5000):  # more shapes than a thread keeps
        ft.rms_norm(x[:1].expand(rows, 512)[:, :8], None)
    suite.check("ever new shapes", torch.equal(ft.rms_norm(x, w), wanted))


def test_costs(suite):
    """Times of one row, with one thread, beside those of PyTorch."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    x, dy = normal((1, 4096), "float32", 1), normal((1, 4096), "float32", 2)
    w, b = normal((4096,), "float32", 3), normal((4096,), "float32", 4)
    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    names = torch.nn.functional
    forward = {
        "F.rms_norm": lambda x, w, b: names.rms_norm(x, (4096,), w, 1e-6),
        "rms_norm": lambda x, w, b: ft.rms_norm(x, w, 1e-6),
        "F.layer_norm": lambda x, w, b: names.layer_norm(x, (4096,), w, b),
        "layer_norm": lambda x, w, b: ft.layer_norm(x, w, b),
    }
    for name, function in forward.items():
        suite.cost(f"{name}, forward", best_us(lambda: function(x, w, b), 2000))

        def both():
            for t in leaves:
                t.grad = None
            function(*leaves).backward(dy)

        suite.cost(f"{name}, forward and backward", best_us(both, 1000))
    torch.set_num_threads(before)


def test_others(suite, environment, *more):
    """The tests of the Python operators, and more of them."""
    for name in (*OTHERS, *more):
        path = ("--path", compiled.path()) if name == "test_models.py" else ()
        ran = program(environment, HERE / name, "--device", DEVICE.type, *path)
        last = ran.stdout.strip().splitlines()[-1:] or [""]
        found = re.fullmatch(r"(\d+) passed, (\d+) failed, (\d+) skipped", last[0])
        ok = ran.returncode == 0 and found and int(found[1]) > 0 and found[2] == "0"
        text = "\n".join(line for line in ran.stdout.splitlines() if line.startswith("FAIL"))
        suite.check(f"{name}: {last[0]}", ok, text[-3000:] + ran.stderr[-3000:])
