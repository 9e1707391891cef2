"""What a result must be: the formula in double precision, on some rows of a call."""

EPS = 1e-6
QMAX = 448.0


class WrongResult(Exception):
    """A contender's result is not within rounding of the formula."""


class Reference:
    """Checks calls of one case. Buffers as machine.buffers makes them; torch is the module."""

    ROWS = 24

    def __init__(self, torch, case, buffers):
        self.torch, self.case, self.buffers = torch, case, buffers
        count = min(case.rows, self.ROWS)
        self.rows = sorted({i * (case.rows - 1) // max(count - 1, 1) for i in range(count)})
        # A few roundings to 16 bits: peers round the sum or the normalised value too.
        self.unit = 2.0 ** (-8 if case.dtype == "bf16" else -11)

    def wanted(self, i):
        """The results of call i on the chosen rows: {"y", "sum"} in double precision."""
        b, op, torch = self.buffers, self.case.op, self.torch
        rows = torch.as_tensor(self.rows, device=b.x[i].device)
        a = b.heads_of(b.x[i]) if op.heads else b.x[i]
        a = a[rows].double()
        found = {}
        if op.adds:
            a = a + b.residual[i][rows].double()
            found["sum"] = a
        if op.layer:
            a = a - a.mean(-1, keepdim=True)
        t = a / (a.square().mean(-1, keepdim=True) + EPS).sqrt()
        weight = (b.weight32 if op.layer else b.head_weights() if op.two_weights else b.weight).double()
        found["y"] = t * weight + b.bias32.double() if op.layer else t * weight
        return found

    def given(self, i, results):
        """What the contender left: in its own tensors where it returned any, else in the buffers."""
        b, op = self.buffers, self.case.op
        results = results if isinstance(results, dict) else {}
        found = {}
        if op.quantized:
            found["y"] = results.get("quantized", b.quantized[i])
        else:
            y = results.get("y", b.y[i])
            found["y"] = b.heads_of(y) if op.heads and "y" not in results else y
        if op.adds:
            found["sum"] = results.get("sum", b.residual_out[i])
        return {name: self._picked(tensor) for name, tensor in found.items()}

    def _picked(self, tensor):
        if tensor.element_size() == 1:  # fp8 cannot be indexed
            return tensor.view(self.torch.uint8)[self.rows].view(self.torch.float8_e4m3fn).float().double()
        return tensor[self.rows].double()

    def check(self, i, results=None):
        """The largest error, in units of what is allowed; WrongResult if that is above 1."""
        wanted, given = self.wanted(i), self.given(i, results)
        worst = 0.0
        for name, exact in wanted.items():
            value = given[name]
            allowed = 4 * self.unit * exact.abs().clamp(min=1.0)
            if name == "y" and self.case.op.quantized:
                scale = self.buffers.scale.double()
                value = value * scale
                exact = exact.clamp(-QMAX * scale, QMAX * scale)
                allowed = allowed + exact.abs() * 2.0**-4 + scale * 2.0**-9
            error = ((value - exact).abs() / allowed).max().item()
            if not error <= 1.0:  # NaN too
                raise WrongResult(f"{name} of call {i} is off by {error:.3g} times what rounding allows")
            worst = max(worst, error)
        return worst
