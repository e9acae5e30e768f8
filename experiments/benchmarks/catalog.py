"""Ten mechanisms of the catalog, each beside the same mechanism written by hand in plain JAX.

Command: flaxformer bench catalog; one of them: flaxformer bench catalog mechanism=Mamba2 length=2048
Work: the value and all gradients of a component on a batch of sequences without padding, in float32, on one device.
Peers: `plain_mechanisms.py`; for experts also JAX's ragged product.
Goal: at least 0.9 times the plain form.
"""

from collections.abc import Callable
from typing import Any

from plain_mechanisms import PLAIN, ragged_experts

from flaxformer.bench import Benchmark, Way, Work, rate


def sized(name: str, width: int) -> Any:
    """Return a component of the catalog with heads of 64 entries."""
    from flaxformer import catalog

    heads = max(2, width // 64)
    fields = {"GatedLinearAttention": {"heads": heads, "d_key": 32, "d_value": 64}}
    fields |= {"GatedDeltaRule": {"heads": heads, "d_key": 64, "d_value": 64}, "Hyena": {}}
    fields |= {"MixtureOfExperts": {"d_ff": 2 * width}}
    return getattr(catalog, name)(**fields.get(name, {"heads": heads}))


def problem(name: str, width: int, batch: int, length: int) -> tuple[Any, Any, Any, Any]:
    """Return a component, its weights, a batch of sequences, and the context of its calls."""
    import jax
    import jax.numpy as jnp

    from flaxformer import Attention, Context, FeedForward, ModelConfig, NoPositions, Rotary
    from flaxformer.model import init
    from flaxformer.nn import Causal

    component = sized(name, width)
    place = "feed_forward" if isinstance(component, FeedForward) else "attention"
    scheme = Rotary() if name == "LatentAttention" else None
    parts = {"attention": Attention(heads=1), "positions": scheme or NoPositions(), place: component}
    model = ModelConfig(layers=1, d_model=width, **parts)
    weights = getattr(init(jax.random.key(0), model).blocks[0], place)
    positions = jnp.arange(length)
    context = Context(query_positions=positions, key_positions=positions, mask=Causal(), scheme=scheme)
    return component, weights, jax.random.normal(jax.random.key(1), (batch, length, width)), context


def measured(work: Work, function: Callable[[Any, Any], Any], weights: Any, x: Any) -> dict[str, Any]:
    """Return the tokens per second of a function and of its gradients."""
    import jax

    @jax.jit
    def gradients(weights: Any, x: Any) -> Any:
        return jax.grad(lambda weights, x: (function(weights, x) ** 2).sum(), (0, 1))(weights, x)

    return rate(
        work,
        lambda: gradients(weights, x),
        units=x.shape[0] * x.shape[1],
        name="tokens_per_second",
        ready=jax.block_until_ready,
        seconds=work["seconds"],
    )


def ours(work: Work) -> dict[str, Any]:
    """Measure the component."""
    from flaxformer.components.component import with_aux

    component, weights, x, context = problem(work["mechanism"], work["width"], work["batch"], work["length"])
    return measured(work, lambda weights, x: with_aux(component.apply(weights, x, context))[0], weights, x)


def plain(work: Work) -> dict[str, Any]:
    """Measure the plain form."""
    _, weights, x, _ = problem(work["mechanism"], work["width"], work["batch"], work["length"])
    return measured(work, PLAIN[work["mechanism"]], weights, x)


def ragged(work: Work) -> dict[str, Any]:
    """Measure JAX's ragged product."""
    _, weights, x, _ = problem(work["mechanism"], work["width"], work["batch"], work["length"])
    return measured(work, ragged_experts, weights, x)


benchmark = Benchmark(
    question="Is a mechanism of the catalog as fast as one written by hand in plain JAX?",
    ways=[
        Way("flaxformer", ours, role="ours"),
        Way("plain", plain),
        Way("plain-ragged", ragged, takes_part=lambda point: point["mechanism"] == "MixtureOfExperts"),
    ],
    options={"mechanism": tuple(PLAIN), "width": (256,), "batch": (8,), "length": (512,), "seconds": (2.0,)},
    quick={"width": (64,), "batch": (2,), "length": (64,), "seconds": (0.05,)},
    choices={"mechanism": tuple(PLAIN)},
    compared="tokens_per_second",
    reference="plain",
    columns={"tokens_per_second": "tokens/s", "first_step_seconds": "first call, s", "peak_memory_bytes": "memory, MB"},
    rounds=3,
)
