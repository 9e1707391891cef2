#!/usr/bin/env python3
"""Tests that the JAX functions reach every field of the C structs and every value of their enums,
or that docs/reference.md says why not. The last line is the count.

Run with a Python that has JAX and NumPy; --plugin names libfastnorm_xla.so.
"""

import contextlib
import sys

sys.dont_write_bytecode = True
from jax_testing import normal, start  # noqa: E402

ROWS, N = 4, 64


def call_norms():
    x, residual, weight, bias = normal((ROWS, N)), normal((ROWS, N), "float16"), *normal((2, N))
    for rounding in fj._ROUNDING:
        jax.grad(lambda x, r=rounding: fj.rms_norm(x, weight, weight_offset=1.0, rounding=r).sum())(
            x
        )
    jax.grad(lambda a: fj.layer_norm(*a).sum())([x, weight, bias])
    for rounding in fj._RESIDUAL_ROUNDING:
        fj.add_rms_norm(x, residual, weight, residual_rounding=rounding)
    jax.grad(lambda a: sum(r.sum() for r in fj.fused_add_rms_norm(*a)))([x, residual, weight])
    for scheme in filter(None, fj._SCHEMES):
        fj.rms_norm_quant(x, weight, scheme=scheme, block_size=64 * (scheme == "per_block"))
    fj.rms_norm_quant(x, scheme="per_row", division="divide", quant_source="rounded")


def call_stages():
    x, gate, residual = normal((ROWS, N)), normal((ROWS, N), seed=2), normal((ROWS, N), seed=3)
    weight, bias, scale, shift, table = normal((5, N), seed=4)
    one, ones = jnp.ones(1), jnp.ones((ROWS, 1))
    for act in stages.ACTS:
        fs.gated_norm(x, gate, gate_act=act, gate_from_rounded=True, activation=act)
        fs.adaln(x, residual=residual, residual_gate=scale, residual_gate_act=act)
        jax.grad(lambda g, a=act: fs.gated_norm(x, g, gate_act=a, gate_from_rounded=True).sum())(
            gate
        )
        jax.grad(
            lambda g, a=act: fs.adaln(x, residual=residual, residual_gate=g, residual_gate_act=a)[
                0
            ].sum()
        )(scale)
    jax.grad(
        lambda a: fs.gated_norm(
            *a[:3], bias=a[3], kind="layer", gate_before=True, group_size=32
        ).sum()
    )([x, gate, weight, bias])
    jax.grad(lambda a: fs.gated_norm(*a[:3], bias=a[3]).sum())([x, gate, weight, bias])
    fs.gated_norm(x, None, weight, kind="layer", mean_in=ones, rstd_in=ones)
    fs.gated_norm_sums(x)
    for settings in completeness.settings_of_codes(stages.SETTINGS, one):
        with contextlib.suppress(fj.FastnormError, ValueError):
            fs.gated_norm(x, None, weight, quant=fs.Quant(**settings, y=True))
    signs = jnp.ones(64)
    fs.gated_norm(x, quant=fs.Quant("per_row", rotation=64, rotation_signs=signs))
    for kind in stages.KINDS:
        branch = {"branch_kind": kind, "branch_eps": 1e-4, "branch_weight_offset": 1.0}

        def sandwich(a, kind=kind, branch=branch):
            return fs.sandwich_norm(
                *a[:4], kind=kind, alpha=0.5, branch_bias=a[4], branch_rounded=True, **branch
            )

        jax.grad(lambda a: sum(r.sum() for r in sandwich(a)))([x, residual, weight, bias, scale])
    for rounding in ("once", "normalized", "every_step"):
        fs.sandwich_norm(x, residual, weight, branch_rounding=rounding, sum_scale=one)
        jax.grad(
            lambda x, r=rounding: fs.sandwich_norm(
                x, residual, weight, sum_scale=one, branch_rounding=r
            )[0].sum()
        )(x)
    for rounding in stages.STEPS:
        fs.sandwich_norm(x, residual, weight, sum_rounding=rounding)
        fs.adaln(x, scale, shift, modulation_rounding=rounding)
    tables = {"residual_gate_table": table, "scale_table": table, "shift_table": table}
    modulators = [m[None] for m in (scale, shift, bias)]
    fs.adaln(
        x,
        *modulators[:2],
        residual=residual,
        residual_gate=modulators[2],
        index=jnp.zeros(ROWS, jnp.int32),
        plain_scale=True,
        **tables,
    )


def call_heads():
    x = normal((ROWS, 2, N))
    weight, bias = normal((2, N), seed=5)
    one, table = jnp.ones(1), normal((ROWS, 32), seed=6)
    positions, slots = jnp.zeros((3, ROWS), jnp.int32), jnp.arange(ROWS)
    cache, codes = jnp.zeros((ROWS, 1, 2, N)), jnp.zeros((ROWS, 1, 2, N), jnp.float8_e4m3fn)
    block_scales = jnp.zeros((ROWS, 1, 2, 1))
    rope = {"rope": True, "rope_offset": 0}
    statistics = jnp.ones((ROWS, 2))
    for rounding in fj._ROUNDING:
        fh.norm_heads([fh.Part(x, "rms", weight, rounding=rounding)])
        jax.grad(
            lambda x, r=rounding: fh.norm_heads([fh.Part(x, "rms", rounding=r)])[0].y.sum()
        )(x)
    for rounding in fh._ROPE_ROUNDINGS:
        part = fh.Part(x, rope=True, rope_rounding=rounding, rope_offset=-1, from_rounded=True)
        fh.norm_heads([part], cos=table, sin=table, rope_dim=32)
    for settings in completeness.settings_of_codes(stages.SETTINGS, one):
        named = {s.of_part: settings[s.name] for s in stages.SETTINGS if s.name in settings}
        with contextlib.suppress(fj.FastnormError, ValueError):
            fh.norm_heads([fh.Part(x, **named)])
    for more in (
        {"scheme": "per_row", "rotation": 64, "rotation_signs": jnp.ones(64)},
        {"scheme": "per_row", "head_weights": statistics, "head_weights_factor": 0.5},
        {"norm": "layer", "mean": True, "rstd": True, "sumsq": True, "across_heads": True},
        {"norm": "layer", "mean_in": statistics, "rstd_in": statistics},
    ):
        fh.norm_heads([fh.Part(x, **more)])
    for more in (
        {"cache": cache},
        {"cache": codes, "cache_scale": one},
        {"cache": codes, "cache_scale": block_scales, "cache_block": 64, "cache_pow2": True},
        {"cache": codes[..., 8:], "cache_scale": one, "cache_tail": cache[..., :8]},
        {
            "cache": codes, "cache_scale": one, "cache_rotation": 32,
            "cache_rotation_signs": jnp.ones(32),
        },
    ):
        fh.norm_heads([fh.Part(x, y=False, **more)], slots=slots)
    sections = {"mrope": (6, 5, 5), "mrope_interleaved": True, "positions": positions}

    def turned(a, **more):
        part = fh.Part(
            a[0], "layer", a[1], a[2], 1e-6, 1.0, across_heads=True, interleaved=True, inverse=True,
            **rope,
        )  # fmt: skip
        more.update(cos=table[:, :16], sin=table[:, :16], rope_dim=32)
        return fh.norm_heads([part], **more)[0].y.sum()

    jax.grad(turned)([x, weight, bias])
    jax.grad(lambda a: turned(a, **sections))([x, weight, bias])
    four = {"mrope": (4, 4, 4, 4), "positions": jnp.zeros((4, ROWS), jnp.int32)}
    turned([x, weight, bias], **four)
    part = fh.Part(x, rope=True, rope_offset=32)
    jax.grad(
        lambda x: fh.norm_heads([part._replace(x=x)], cos=table, sin=table, rope_dim=32)[0].y.sum()
    )(x)


def call_mla():
    q, q_pe, ckv, kpe = (normal((2, 1, n)) for n in (512, 64, 512, 64))
    ints = [jnp.asarray(v, jnp.int32) for v in ([1, 1], [0, 1], [0, 1, 2], [0, 1, 2])]
    lengths, table, kv_indptr, qo_indptr = ints
    for base in fm._LSE_BASES:
        fm.mla_decode(
            q, q_pe, ckv, kpe, lengths, table, sm_scale=0.1, causal=True, kv_indptr=kv_indptr,
            qo_indptr=qo_indptr, max_s_q=1, lse_base=base, split_tokens=64,
        )  # fmt: skip
    indices, sink = jnp.zeros((2, 1, 3), jnp.int32), jnp.zeros(1, jnp.float32)
    chosen = {"indices": indices, "topk_length": lengths, "extra_indices": indices}
    chosen.update(extra_topk_length=lengths, attention_sink=sink, sm_scale=0.1)
    fm.mla_decode(q, q_pe, ckv, kpe, None, None, extra_ckv=ckv, extra_kpe=kpe, **chosen)
    for row in fm._FORMATS:
        cache = jnp.zeros((2, 1, row), jnp.uint8)
        scale = sink if row == 576 else None
        nope = q[..., :448] if row == 584 else q
        fm.mla_decode(
            nope, q_pe, cache, None, None, None, extra_ckv=cache, cache_scale=scale, **chosen
        )


def test_completeness(suite):
    recorder = completeness.Recorder(abi, fj._checker.library)
    for call in (call_norms, call_stages, call_heads, call_mla):
        call()
    completeness.check(suite, abi, "JAX", recorder)


def test_the_check(suite):
    """What nobody calls is missed, and a row about what is reached is wrong."""
    headers = completeness.Headers()
    recorder = completeness.Recorder(abi, fj._checker.library)
    jax.jit(lambda x: fj.rms_norm(x, eps=0.25)).lower(normal((3, 40)))
    reached = recorder.reached(headers)
    suite.check("a field that is passed", {"fastnorm_norm_args.x", "FASTNORM_NORM_RMS"} <= reached)
    suite.equal("eps", recorder.seen["fastnorm_norm_args", "eps"], {0.25})
    suite.check("a field that is not", "fastnorm_norm_args.weight" not in reached)
    suite.check("an enumerator that is not", "FASTNORM_NORM_LAYER" not in reached)
    suite.check("not all", len(reached) < len(completeness.required(headers)) / 4, len(reached))


if __name__ == "__main__":
    suite, _, _ = start(__doc__, "jax completeness", "completeness of the JAX functions")
    import jax
    import jax.numpy as jnp
    import numpy as np

    import completeness
    import fastnorm.jax as fj
    import fastnorm.jax.mla_decode as fm
    import fastnorm.jax.norm_heads as fh
    import fastnorm.jax.norm_stages as fs
    from fastnorm import abi, stages

    suite.run([test_the_check, test_completeness])
    suite.finish()
