#!/usr/bin/env python3
"""Times norm_heads and its gradients beside others, in one process and on the same buffers.

  compare_heads.py --build build --csv heads.csv
  compare_heads.py --library LIB --streams LIB --cases 4096xqwen3:fp8 64xmla:own

A case is TOKENSxMODEL[:WHAT]: MODEL is qwen3, llama3, gemma3 or mla (DeepSeek's latents), WHAT none
(in place), own or fp8 (a paged cache), or backward. Others are this library's calls one after the
other, FlashInfer, vLLM, Liger, PyTorch and torch.compile, as far as they are installed; the file
has the reason of each that is not. Every result is compared with the formula in double precision,
and with this library's, before it is timed; one that is wrong is not timed. It needs PyTorch.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from compare import heads, program  # noqa: E402

if __name__ == "__main__":
    sys.exit(program.main("compare_heads.py", heads, __doc__))
