#!/usr/bin/env python3
"""Times gated norms, sandwiches and adaLN beside others, in one process and on the same buffers.

  compare_stages.py --build build --csv stages.csv
  compare_stages.py --library LIB --streams LIB --cases 4096xgemma3 64xqwen3-next:backward

A case is TOKENSxMODEL[:WHAT], WHAT forward or backward. MODEL is qwen3-next, kimi or mamba2 (gated
norms), gemma3 or gemma2 (sandwiches), dit, flux, wan or lumina2 (adaLN of two images). Others are
two norms of this library, FlashInfer, flash-linear-attention, Liger, quack, PyTorch and
torch.compile, as far as they are installed; the file has the reason of each that is not. Every
result is compared with the formula in double precision, and with this library's, before it is
timed; one that is wrong is not timed. At the end come the cases where this library misses its
bounds, or another one is faster. It needs PyTorch.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from compare import program, stages  # noqa: E402

if __name__ == "__main__":
    sys.exit(program.main("compare_stages.py", stages, __doc__))
