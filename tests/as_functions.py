"""Functions that the program has in its phases only, each as a function of arrays."""

import numpy as np
import numpy.typing as npt

from diskmoe.compiled.functions import kernel
from diskmoe.engine.kernels.attention import AttendShape, add_attend
from diskmoe.engine.kernels.heads import KV_F32, CachePart
from diskmoe.engine.kernels.matmul import check_floats
from diskmoe.engine.kernels.program import Builder, address_of_array, rows_of
from diskmoe.engine.kernels.simd import address, load_f32, mul, sigmoid, silu, store_f32
from diskmoe.engine.kernels.workers import Workers

Floats = npt.NDArray[np.float32]


def silu_mul(gate: Floats, up: Floats) -> Floats:
    """gate / (1 + exp(-gate)) * up, of any equal shapes, C-contiguous."""
    out = np.empty_like(gate)
    _silu_mul(gate.reshape(-1), up.reshape(-1), out.reshape(-1))
    return out


def sigmoids(x: Floats) -> Floats:
    """1 / (1 + exp(-x)), (n,)."""
    out = np.empty_like(x)
    _sigmoids(x, out)
    return out


def attend(
    q: Floats,  # (n, heads, head_dim)
    k: Floats,  # (ctx, kv_heads, head_dim), ctx >= start + n
    v: Floats,  # (ctx, kv_heads, v_dim)
    start: int,
    scale: float,
    out: Floats,  # (n, heads, v_dim)
    workers: Workers,
    window: int = 0,
    sinks: Floats | None = None,  # (heads,)
) -> Floats:
    """Row i sees keys 0..start+i (its own key is already in k and v); returns `out`.

    With a window, only that many of the last of these. Query head h uses kv head
    h // (heads / kv_heads). All arrays C-contiguous (a leading slice of a cache is).
    """
    n, heads, head_dim = q.shape
    ctx, kv_heads, v_dim = v.shape
    check_floats("q", q, (n, heads, head_dim))
    check_floats("k", k, (ctx, kv_heads, head_dim))
    check_floats("v", v, (ctx, kv_heads, v_dim))
    check_floats("out", out, (n, heads, v_dim))
    if sinks is not None:
        check_floats("sinks", sinks, (heads,))
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads do not share {kv_heads} key heads evenly")
    if start < 0 or start + n > ctx:
        raise ValueError(f"rows at positions {start}..{start + n - 1} with {ctx} keys")
    begin = np.array([start], np.int64)
    builder = Builder()
    add_attend(
        builder,
        n,
        AttendShape(heads, kv_heads, head_dim, v_dim, window),
        rows_of(q),
        KV_F32,
        CachePart(address_of_array(k), k.strides[0], k.strides[1]),
        CachePart(address_of_array(v), v.strides[0], v.strides[1]),
        address_of_array(begin),
        scale,
        rows_of(out),
        workers.n_threads,
        0 if sinks is None else address_of_array(sinks),
    )
    workers.run(builder.program())
    return out


@kernel
def _silu_mul(gate, up, out):  # pragma: no cover - compiled
    whole = len(gate) // 16 * 16
    for c in range(0, whole, 16):
        activated = mul(silu(load_f32(address(gate) + c * 4)), load_f32(address(up) + c * 4))
        store_f32(address(out) + c * 4, activated)
    for c in range(whole, len(gate)):
        out[c] = silu(gate[c]) * up[c]


@kernel
def _sigmoids(x, out):  # pragma: no cover - compiled
    whole = len(x) // 16 * 16
    for c in range(0, whole, 16):
        store_f32(address(out) + c * 4, sigmoid(load_f32(address(x) + c * 4)))
    for c in range(whole, len(x)):
        out[c] = sigmoid(x[c])
