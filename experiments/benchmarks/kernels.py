"""Every attention kernel on this device: values and gradients against the equation, and speed forward and backward.

Command: flaxformer bench kernels length=1024,4096
Ways: the rows of `flaxformer.nn.kernels.KERNELS`; those that this device has not are left out, with the reason.
Measured: FLOP/s of a causal call of 12 heads of 64 in bfloat16 with its gradients (of the pairs that the mask allows);
and over masks of every kind that the kernel takes, the largest difference of values and of gradients from the equation
in float32, relative to the largest number. A kernel that differs by more than 3 % fails.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from flaxformer.bench import Benchmark, Unavailable, Way, Work, rate
from flaxformer.nn.kernels import KERNELS

MOST = 0.03
"""Largest difference, relative to the largest number, of bfloat16."""


def calls(length: int, heads: int, dtype: Any) -> dict[str, Any]:
    """Return calls by the name of their mask; padding leaves one sequence with few tokens and one with none."""
    import jax
    import jax.numpy as jnp

    from flaxformer.nn import Causal, Padding, Segments, Window
    from flaxformer.nn.kernels.call import AttentionCall
    from flaxformer.nn.masks import Prefix

    batch, width = 3, 64
    keys = jax.random.split(jax.random.key(length), 4)
    query, key, value = (jax.random.normal(one, (batch, length, heads, width)).astype(dtype) for one in keys[:3])
    lengths = jnp.asarray([length, 0, length // 3])
    valid = jax.random.bernoulli(keys[3], 0.7, (batch, length)).at[1].set(False)
    ids = jnp.cumsum(jax.random.bernoulli(keys[3], 0.02, (batch, length)), axis=1)
    masks = {
        "none": None,
        "causal": Causal(),
        "window": Causal() & Window(length // 4),
        "lengths": Prefix(lengths),
        "causal lengths": Causal() & Prefix(lengths),
        "padding": Causal() & Padding(valid),
        "packed": Causal() & Segments(ids, ids),
    }
    return {name: AttentionCall(query, key, value, mask, None, width**-0.5) for name, mask in masks.items()}


def differences(compute: Callable[[Any], Any], call: Any) -> tuple[float, float]:
    """Return the largest difference of the value and of the gradients of a kernel from the equation in float32."""
    import jax
    import jax.numpy as jnp

    from flaxformer.nn.kernels.products import reference_attention

    def both(compute: Callable[[Any], Any], query: Any, key: Any, value: Any) -> Any:
        def attend(query: Any, key: Any, value: Any) -> Any:
            return compute(call._replace(query=query, key=key, value=value)).astype(jnp.float32)

        y, back = jax.vjp(attend, query, key, value)
        return [y, *back(jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape))]

    found = jax.jit(both, static_argnums=0)(compute, *call[:3])
    with jax.default_matmul_precision("float32"):
        wide = jax.jit(both, static_argnums=0)(reference_attention, *(x.astype(jnp.float32) for x in call[:3]))
    relative = [
        float(jnp.abs(own.astype(jnp.float32) - other).max() / jnp.abs(other).max())
        for own, other in zip(found, wide, strict=True)
    ]
    return relative[0], max(relative[1:])


def kernel(name: str) -> Callable[[Work], dict[str, Any]]:
    """Check a kernel, then measure its speed."""

    def measure(work: Work) -> dict[str, Any]:
        import jax
        import jax.numpy as jnp
        from device_limits import of_peak

        from flaxformer.nn import Causal
        from flaxformer.nn.kernels import attention
        from flaxformer.nn.kernels.call import AttentionCall

        dtype = jnp.bfloat16
        cases = calls(work["checked"], 4, dtype)
        taken = {mask: call for mask, call in cases.items() if attention.refusal(name, call) is None}
        if not taken:
            raise Unavailable(attention.refusal(name, cases["causal"]) or attention.refusal(name, cases["none"]) or "")
        compute = attention.select(name, next(iter(taken.values())))
        with ThreadPoolExecutor() as threads:  # most of the time is compilation
            pairs = threads.map(lambda call: differences(compute, call), taken.values())
        found = dict(zip(taken, pairs, strict=True))
        if wrong := {mask: pair for mask, pair in found.items() if not max(pair) < MOST}:
            raise RuntimeError(f"{name} differs from the equation: {wrong}")
        batch, heads, width, length = work["batch"], 12, 64, work["length"]
        random = jax.random.normal(jax.random.key(0), (3, batch, length, heads, width)).astype(dtype)

        @jax.jit
        def gradients(q: Any, k: Any, v: Any) -> Any:
            def total(q: Any, k: Any, v: Any) -> Any:
                call = AttentionCall(q, k, v, Causal(), None, width**-0.5)
                return compute(call).astype(jnp.float32).sum()

            return jax.grad(total, (0, 1, 2))(q, k, v)

        flops = 12 * batch * heads * length * (length + 1) // 2 * width  # 2 products forward and 4 of the gradients
        speed: Any = rate(
            work,
            lambda: gradients(*random),
            units=flops,
            name="flops_per_second",
            ready=jax.block_until_ready,
            seconds=work["seconds"],
        )
        values, backward = zip(*found.values(), strict=True)
        return {
            **speed,
            **of_peak(speed["flops_per_second"], "bfloat16"),
            "masks": len(found),
            "value_difference": max(values),
            "gradient_difference": max(backward),
        }

    return measure


benchmark = Benchmark(
    question="Is each attention kernel right on this device, and how fast is it?",
    ways=[
        Way(
            name,
            kernel(name),
            role="peer" if name == "reference" else "ours",
            needs=["tokamax"] if name == "tokamax" else (),
            get="pip install tokamax",
        )
        for name in (*KERNELS, "reference")
    ],
    options={"length": (1024, 4096), "batch": (4,), "checked": (384,), "seconds": (1.0,)},
    quick={"length": (64,), "batch": (1,), "checked": (24,), "seconds": (0.05,)},
    compared="flops_per_second",
    reference="xla",
    columns={
        "flops_per_second": "GFLOP/s",
        "of_peak": "of the peak",
        "masks": "masks",
        "value_difference": "largest difference",
        "gradient_difference": "of gradients",
        "first_step_seconds": "first call, s",
    },
    rounds=1,
)
