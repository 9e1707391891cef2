"""A backward pass: the tensors of its calls, and what its results must be."""

from compare.ops import rounded
from compare.reference import EPS, WrongResult

CHUNK_ELEMENTS = 1 << 24  # of double precision at a time


class BackwardBuffers:
    """The tensors of all calls of a chain; lists are indexed by call.

    x, dy, dresidual_in      inputs, never written
    rstd, mean               inputs, f32 [rows], of x; mean of LayerNorm
    dx, dweight, dbias       outputs; dweight and dbias have the weight's dtype
    weight, bias             of x's dtype
    """

    def __init__(self, torch, case, chain, inputs, outputs, parameters):
        op, self.torch, self.case, self._outputs = case.op, torch, case, outputs
        dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[case.dtype]
        shape = (case.rows, case.n)
        inputs.reserve(chain.calls * op.reads * rounded(shape, dtype.itemsize), case.dtype)
        outputs.reserve(
            chain.calls * (rounded(shape, dtype.itemsize) + 2 * rounded((case.n,), dtype.itemsize))
        )
        self.x, self.dy, self.dresidual_in, self.dx, self.dweight, self.dbias = (
            [],
            [],
            [],
            [],
            [],
            [],
        )
        for _ in range(chain.calls):
            self.x.append(inputs.cut(shape, dtype))
            self.dy.append(inputs.cut(shape, dtype))
            if op.adds:
                self.dresidual_in.append(inputs.cut(shape, dtype))
            self.dx.append(outputs.cut(shape, dtype))
            self.dweight.append(outputs.cut((case.n,), dtype))
            self.dbias.append(outputs.cut((case.n,), dtype))
        self.weight, self.bias = parameters(case.n, 1).to(dtype), parameters(case.n, 0).to(dtype)
        self.mean, self.rstd = [], []
        for x in self.x:
            mean, rstd = self._statistics(x)
            self.rstd.append(rstd)
            if op.layer:
                self.mean.append(mean)

    def _statistics(self, x):
        """(mean or None, rstd) of the rows, rounded once to f32."""
        means, rstds = [], []
        for rows in chunks(x):
            values = rows.double()
            if self.case.op.layer:
                means.append(values.mean(-1))
                values = values - means[-1].unsqueeze(-1)
            rstds.append((values.square().mean(-1) + EPS).rsqrt())
        f32 = self.torch.float32
        return self.torch.cat(means).to(f32) if means else None, self.torch.cat(rstds).to(f32)

    def reset(self):
        """NaN in the outputs: what is not written is found out."""
        self._outputs.refill()


class BackwardReference:
    """Checks calls of one backward case: dx on some rows, dweight and dbias whole."""

    ROWS = 24

    def __init__(self, torch, case, buffers):
        self.torch, self.case, self.buffers = torch, case, buffers
        count = min(case.rows, self.ROWS)
        self.rows = sorted({i * (case.rows - 1) // max(count - 1, 1) for i in range(count)})
        # A few roundings to 16 bits: peers round the normalised value or the sums of some rows too.
        self.unit = 2.0 ** (-8 if case.dtype == "bf16" else -11)

    def wanted(self, i):
        """{"dx", "dweight", "dbias"} of call i as (exact, size); an error is measured by size."""
        b, op = self.buffers, self.case.op
        rows = self.torch.as_tensor(self.rows, device=b.x[i].device)
        mean = b.mean[i][rows] if op.layer else None
        dy, xhat = b.dy[i][rows].double(), normalized(b.x[i][rows], mean, b.rstd[i][rows])
        e = dy * b.weight.double()
        c1 = (e * xhat).mean(-1, keepdim=True)
        c2 = e.mean(-1, keepdim=True) if op.layer else 0.0
        dx = (e - c2 - xhat * c1) * b.rstd[i][rows].double().unsqueeze(-1)
        if op.adds:
            dx = dx + b.dresidual_in[i][rows].double()
        found = {"dx": (dx, dx.abs().clamp(min=1.0))}
        found["dweight"] = self._sums(i, lambda dy, xhat: dy * xhat)
        if op.layer:
            found["dbias"] = self._sums(i, lambda dy, xhat: dy)
        return found

    def _sums(self, i, term):
        """A sum over all rows; its magnitude, or the root of its terms' squares if larger."""
        b, total, squares, row = self.buffers, 0.0, 0.0, 0
        for x, dy in zip(chunks(b.x[i]), chunks(b.dy[i])):
            part = slice(row, row + len(x))
            row += len(x)
            mean = b.mean[i][part] if self.case.op.layer else None
            terms = term(dy.double(), normalized(x, mean, b.rstd[i][part]))
            total, squares = total + terms.sum(0), squares + terms.square().sum(0)
        return total, self.torch.maximum(total.abs(), squares.sqrt())

    def given(self, i, results):
        """What the contender left: in tensors that it returned, else in the buffers."""
        results = results if isinstance(results, dict) else {}
        found = {
            name: results.get(name, getattr(self.buffers, name)[i])
            for name in ("dx", "dweight", "dbias")
        }
        return {name: (t[self.rows] if name == "dx" else t).double() for name, t in found.items()}

    def check(self, i, results=None):
        """The largest error, in units of what is allowed; WrongResult if that is above 1."""
        given, worst = self.given(i, results), 0.0
        for name, (exact, size) in self.wanted(i).items():
            error = ((given[name] - exact).abs() / (4 * self.unit * size)).max().item()
            if not error <= 1.0:  # NaN too
                raise WrongResult(
                    f"{name} of call {i} is off by {error:.3g} times what rounding allows"
                )
            worst = max(worst, error)
        return worst


def normalized(x, mean, rstd):
    """(x - mean) * rstd in double precision."""
    values = x.double()
    if mean is not None:
        values = values - mean.double().unsqueeze(-1)
    return values * rstd.double().unsqueeze(-1)


def chunks(tensor):
    """Pieces of a tensor's rows that fit in double precision."""
    return tensor.split(max(1, CHUNK_ELEMENTS // tensor.shape[1]))
