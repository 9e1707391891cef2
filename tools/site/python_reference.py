"""The Python reference: one page for each module, by mkdocstrings from the docstrings. The sources
are parsed and never imported, so neither PyTorch nor JAX need be installed.

A public name that has no place in the reference is a fault. So is a parameter of a public function
that its docstring does not describe, and a field of a public class without a comment."""

import ast
import re
from pathlib import Path

from c_reference import cell

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / "packages" / "python"

# (section, [(title, module)])
MODULES = [
    ("NumPy and DLPack", [("fastnorm", "fastnorm")]),
    (
        "PyTorch",
        [
            ("fastnorm.torch", "fastnorm.torch"),
            ("Compiled operators", "fastnorm.torch.compiled"),
            ("Query and key heads", "fastnorm.torch.norm_heads"),
            ("Gates, two norms, adaLN", "fastnorm.torch.norm_stages"),
            ("MLA decode", "fastnorm.torch.mla_decode"),
            ("Whole models", "fastnorm.torch.models"),
            ("vLLM", "fastnorm.torch.vllm"),
            ("SGLang", "fastnorm.torch.sglang"),
        ],
    ),
    (
        "JAX",
        [
            ("fastnorm.jax", "fastnorm.jax"),
            ("Query and key heads", "fastnorm.jax.norm_heads"),
            ("Gates, two norms, adaLN", "fastnorm.jax.norm_stages"),
            ("MLA decode", "fastnorm.jax.mla_decode"),
            ("Flax", "fastnorm.jax.nnx"),
            ("Equinox", "fastnorm.jax.equinox"),
        ],
    ),
    ("ONNX Runtime", [("fastnorm.onnxruntime", "fastnorm.onnxruntime")]),
    (
        "Shared",
        [
            ("Quant, Quantized", "fastnorm.stages"),
            ("Plug-ins", "fastnorm.engines"),
            ("C ABI", "fastnorm.abi"),
            ("Structs and enums", "fastnorm.headers"),
        ],
    ),
]
# The guide of a module: that of the longest name here that it begins with.
GUIDES = {
    "fastnorm": ("Python", "../../languages/python.md"),
    "fastnorm.torch": ("PyTorch", "../../torch.md"),
    "fastnorm.torch.models": ("Whole models", "../../models.md"),
    "fastnorm.torch.vllm": ("Whole models", "../../models.md#vllm"),
    "fastnorm.torch.sglang": ("Whole models", "../../models.md#sglang"),
    "fastnorm.engines": ("Whole models", "../../models.md#vllm"),
    "fastnorm.onnxruntime": ("ONNX Runtime", "../../onnxruntime.md"),
    "fastnorm.jax": ("JAX", "../../jax.md"),
    "fastnorm.jax.nnx": ("Whole models", "../../models.md#jax"),
    "fastnorm.jax.equinox": ("Whole models", "../../models.md#jax"),
}
HEADERS = "fastnorm.headers"
FOLDER = "reference/python"


def source_of(module):
    path = PACKAGES / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def page_of(module):
    return f"{FOLDER}/{module.replace('.', '_')}.md"


def navigation():
    return [
        {section: [{title: page_of(module)} for title, module in modules]}
        for section, modules in MODULES
    ]


def modules():
    return [module for _, listed in MODULES for _, module in listed]


# --- what must be in the reference ---


def public_names(tree):
    """The names of __all__, or without one the classes and functions that no underscore hides."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    kinds = (ast.FunctionDef, ast.ClassDef)
    return [n.name for n in tree.body if isinstance(n, kinds) and not n.name.startswith("_")]


def methods(node):
    return [
        below
        for below in node.body
        if isinstance(below, ast.FunctionDef) and not below.name.startswith("_")
    ]


def undescribed(node):
    """Parameters of a function that its docstring does not describe."""
    arguments = node.args
    listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    listed += filter(None, (arguments.vararg, arguments.kwarg))
    text = ast.get_docstring(node) or ""
    return [
        argument.arg
        for argument in listed
        if argument.arg != "self" and not re.search(rf"^ +{argument.arg}: ", text, re.M)
    ]


def required(module):
    """(names that must have a place, faults of their docstrings) of a module."""
    tree = ast.parse(source_of(module).read_text())
    names, faults = [], []
    defined = {getattr(node, "name", None): node for node in tree.body}
    for name in public_names(tree):
        names.append(f"{module}.{name}")
        node = defined.get(name)
        if isinstance(node, ast.FunctionDef):
            functions = [(name, node)]
        elif isinstance(node, ast.ClassDef):
            functions = [(f"{name}.{below.name}", below) for below in methods(node)]
            names += [f"{module}.{of}" for of, _ in functions]
            # A field without a comment has no row.
            names += [f"{module}.{name}.{f.target.id}" for f in node.body
                      if isinstance(f, ast.AnnAssign)]
            if ast.get_docstring(node) is None:
                faults.append(f"{module}.{name} has no docstring")
        else:
            continue
        for of, function in functions:
            if ast.get_docstring(function) is None:
                faults.append(f"{module}.{of} has no docstring")
            faults += [
                f"{module}.{of}: its docstring does not describe {argument}"
                for argument in undescribed(function)
            ]
    return names, faults


def unlisted():
    """Modules of the package that no page has, and no underscore hides."""
    found = {
        ".".join(path.relative_to(PACKAGES).with_suffix("").parts).removesuffix(".__init__")
        for path in (PACKAGES / "fastnorm").rglob("*.py")
        if not re.match("_[a-z]", path.name)
    }
    return sorted(found - set(modules()))


def check(html):
    """(faults, number of names): whether the built pages have a place for each public name."""
    faults = [f"{module}: no page of the Python reference has it" for module in unlisted()]
    count = 0
    for module in modules():
        names, wrong = required(module)
        faults += wrong
        page = (html / page_of(module)).with_suffix(".html")
        # A function and a class have a heading, a field has a row.
        pattern = r'\bid="([\w.]+)"|<td><code><span title="([\w.]+)"'
        found = re.findall(pattern, page.read_text() if page.exists() else "")
        places = {heading or field for heading, field in found}
        faults += [f"{name}: the Python reference does not have it" for name in names
                   if name not in places]
        count += len(names)
        if not names:
            faults.append(f"{module} declares nothing")
    return faults, count


# --- the pages ---


def headers_page(c_names):
    """Markdown: the structs and enums by their names in C. c_names: {name: link}."""
    tree = ast.parse(source_of(HEADERS).read_text())
    lines = [f"# {HEADERS}", "", ast.get_docstring(tree), ""]
    lines += ["| Python | C | what |", "|---|---|---|"]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            name, _, what = " ".join(ast.get_docstring(node).split()).partition(": ")
            link = f"[`{name}`](../c/{c_names[name]})" if name in c_names else f"`{name}`"
            place = f'<a id="{HEADERS}.{node.name}"></a>'
            lines.append(f"| {place}`{node.name}` | {link} | {cell(what)} |")
    return "\n".join(lines) + "\n"


def write(pages, c_names):
    """Writes the sources of the pages below a folder."""
    for _, listed in MODULES:
        for _, module in listed:
            path = pages / page_of(module)
            path.parent.mkdir(parents=True, exist_ok=True)
            if module == HEADERS:
                path.write_text(headers_page(c_names))
            else:
                guide = max((name for name in GUIDES if module.startswith(name)), key=len)
                title, link = GUIDES[guide]
                path.write_text(f"# {module}\n\nGuide: [{title}]({link})\n\n::: {module}\n")
