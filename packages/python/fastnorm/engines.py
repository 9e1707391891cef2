"""Plug-ins of vLLM and SGLang, which both load by entry points of this package.

The engines load every plug-in that is installed. So each does nothing unless its variable is set:
FASTNORM_VLLM=1, FASTNORM_SGLANG=1. Nothing of PyTorch or of an engine is imported before.
"""

import os

__all__ = ["sglang_plugin", "vllm_plugin"]


def _wanted(name: str) -> bool:
    value = os.environ.get(name, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{name} is {value!r}; required: 1, or 0 or nothing")
    return value == "1"


def vllm_plugin() -> None:
    """The entry point of vllm.general_plugins: with FASTNORM_VLLM=1 it calls
    fastnorm.torch.vllm.install(). A second call changes nothing.

    Raises:
        ValueError: The variable has another value than 1, 0 or nothing.
        ImportError: The engine is not installed.
    """
    if _wanted("FASTNORM_VLLM"):
        from fastnorm.torch import vllm

        vllm.install()


def sglang_plugin() -> None:
    """The entry point of sglang.srt.plugins: with FASTNORM_SGLANG=1 it calls
    fastnorm.torch.sglang.install(). A second call changes nothing.

    Raises:
        ValueError: The variable has another value than 1, 0 or nothing.
        ImportError: The engine is not installed.
    """
    if _wanted("FASTNORM_SGLANG"):
        from fastnorm.torch import sglang

        sglang.install()
