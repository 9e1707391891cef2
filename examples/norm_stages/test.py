#!/usr/bin/env python3
"""Runs the example on the CPU and looks at what it prints; then a wrong norm, and no library."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.dont_write_bytecode = True
from layer_testing import test_layers  # noqa: E402

GRADIENTS = ["dit_input_gradient", "dit_modulator_gradient"]
test_layers(HERE, "21 tokens", ["gemma", "delta", "dit", *GRADIENTS], 250000)
