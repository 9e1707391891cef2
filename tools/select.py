#!/usr/bin/env python3
"""Which kernels an architecture has and which one a call runs on, from measured times: see
selection.py."""

import importlib.machinery
import importlib.util
import os
import sys

if __name__ == "__main__":
    from selection import main

    sys.exit(main())

# A script of this folder wants Python's own module of this name: here it is.
_HERE = os.path.dirname(os.path.realpath(__file__))
_spec = importlib.machinery.PathFinder.find_spec(
    "select", [p for p in sys.path if os.path.realpath(p or ".") != _HERE]
)
sys.modules[__name__] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules[__name__])
