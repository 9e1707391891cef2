"""Looks at the index of a built site: what a reader may type leads to a page that has it."""

import re

# What is typed, and a page that must be among those found.
QUERIES = {
    "huggingface": "troubleshooting.html",
    "onnx": "troubleshooting.html",
    "openmp": "troubleshooting.html",
    "troubleshooting": "troubleshooting.html",
    "libfastnorm.so.1 cannot open": "troubleshooting.html",
    "pip install": "install.html",
    "fastnorm_norm_heads": "reference/index.html",
    "rms_norm_quant": "reference/python/fastnorm_torch.html",
    "gated_norm_sums": "reference/python/fastnorm_jax_norm_stages.html",
    "nvfp4": "quantisation.html",
}


def words(text, separator):
    """The words of a text as the search of the site cuts them, which knows no case."""
    return {word for word in re.split(separator, text.lower()) if word}


def found(index, query):
    """The pages that have all words of a query in one section."""
    separator = index["config"]["separator"]
    wanted = words(query, separator)
    return {
        entry["location"].partition("#")[0]
        for entry in index["docs"]
        if wanted <= words(re.sub(r"<[^>]*>", " ", f"{entry['title']} {entry['text']}"), separator)
    }


def check(index):
    """Faults: queries that do not lead to their page."""
    return [
        f"{query!r} does not lead to {page}"
        for query, page in QUERIES.items()
        if page not in found(index, query)
    ]
