"""What a result must be: the formula in double precision, on some rows of a call."""

EPS = 1e-6
QMAX = 448.0
STATISTICS_UNIT = 2.0**-18  # f32, after a sum over the row


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
        """The results of call i on the chosen rows: {"y", "sum", "mean", "rstd"} in double
        precision."""
        b, op, torch = self.buffers, self.case.op, self.torch
        rows = torch.as_tensor(self.rows, device=b.x[i].device)
        a = b.heads_of(b.x[i]) if op.heads else b.x[i]
        a = a[rows].double()
        found = {}
        if op.adds:
            a = a + b.residual[i][rows].double()
            found["sum"] = a
        if op.layer:
            if op.statistics:
                found["mean"] = a.mean(-1)
            a = a - a.mean(-1, keepdim=True)
        rstd = (a.square().mean(-1, keepdim=True) + EPS).rsqrt()
        if op.statistics:
            found["rstd"] = rstd[:, 0]
        t = a * rstd
        weight = (
            b.weight32 if op.layer else b.head_weights() if op.two_weights else b.weight
        ).double()
        found["y"] = t * weight + b.bias32.double() if op.layer else t * weight
        return found

    def given(self, i, results):
        """What the contender left: in its own tensors where it returned any, else in the
        buffers."""
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
        if op.statistics:
            found["rstd"] = b.rstd[i]
            if op.layer:
                found["mean"] = b.mean[i]
        return {name: self._picked(tensor) for name, tensor in found.items()}

    def _picked(self, tensor):
        if tensor.element_size() == 1:  # fp8 cannot be indexed
            return (
                tensor.view(self.torch.uint8)[self.rows]
                .view(self.torch.float8_e4m3fn)
                .float()
                .double()
            )
        return tensor[self.rows].double()

    def _scale(self, i):
        """Of the codes: one, or one for each chosen row. Those are the library's own, and checked
        by what they make of the codes."""
        if not self.case.op.row_scales:
            return self.buffers.scale.double()
        return self.buffers.row_scale[i][self.rows].double().unsqueeze(-1)

    def check(self, i, results=None):
        """The largest error, in units of what is allowed; WrongResult if that is above 1."""
        wanted, given = self.wanted(i), self.given(i, results)
        worst = 0.0
        for name, exact in wanted.items():
            value = given[name]
            unit = STATISTICS_UNIT if name in ("mean", "rstd") else self.unit
            allowed = 4 * unit * exact.abs().clamp(min=1.0)
            if name == "y" and self.case.op.quantized:
                scale = self._scale(i)
                value = value * scale
                exact = exact.clamp(-QMAX * scale, QMAX * scale)
                allowed = allowed + exact.abs() * 2.0**-4 + scale * 2.0**-9
            error = ((value - exact).abs() / allowed).max().item()
            if not error <= 1.0:  # NaN too
                raise WrongResult(
                    f"{name} of call {i} is off by {error:.3g} times what rounding allows"
                )
            worst = max(worst, error)
        return worst
