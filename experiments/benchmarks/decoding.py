"""Speed of greedy decoding: ours with and without a cache, peers on the same model, and the limit of the memory.

Command: flaxformer bench decoding
Work: 128 tokens after a prompt of 64, with the time to read it; the models of `sizes.py` with random weights, all
cores. The limit is the time to move the bytes of all weights and of the keys and values so far. Peers: pip install
torch transformers x-transformers; git clone https://github.com/karpathy/nanoGPT, and nanogpt=PATH. The cache of nnx
takes one token at a time, for the prompt too; nnx-read-whole reads the prompt with our code. Without a cache, the whole
sequence is computed for each token; only points that take seconds are measured so. Cost: per round, one process of 5 to
60 s per way and size; six sizes.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import sizes
from sizes import SIZES, Size

from flaxformer.bench import Benchmark, Limit, Way, Work, rate


def size_of(work: Work) -> Size:
    """The size, with a batch, and with as many positions as a sequence has in the end."""
    return dataclasses.replace(sizes.size_of(work.point), batch=work["batch"], length=work["prompt"] + work["steps"])


def measured(work: Work, call: Callable[[], Any], ready: Callable[[Any], Any]) -> dict[str, Any]:
    """New tokens a second; the prompt's time is in it. And the share of the bandwidth of an accelerator."""
    from decoding_bytes import step_bytes
    from device_limits import of_bandwidth

    units = work["batch"] * work["steps"]
    found: Any = rate(work, call, units=units, name="tokens_per_second", ready=ready, seconds=work["seconds"])
    steps = found["tokens_per_second"] / work["batch"]
    return {**found, **of_bandwidth(steps * step_bytes(size_of(work), work["prompt"], work["steps"]))}


def with_prompt(found: dict[str, Any], work: Work, call: Callable[[], Any], ready: Callable[[Any], Any]) -> Any:
    """Add the seconds that one new token takes, most of which read the prompt, and the rate of the other tokens."""
    prompt: Any = rate(work, call, units=1, name="prompts_per_second", ready=ready, seconds=work["seconds"] / 3)
    first = 1 / prompt["prompts_per_second"]
    whole = work["batch"] * work["steps"] / found["tokens_per_second"]
    if whole <= first:  # too little work to tell them apart
        return found | {"prompt_seconds": first}
    after = work["batch"] * (work["steps"] - 1) / (whole - first)
    return found | {"prompt_seconds": first, "tokens_per_second_after_prompt": after}


def in_jax(name: str) -> Callable[[Work], dict[str, Any]]:
    """One of the ways of decoding_jax.py."""

    def measure(work: Work) -> dict[str, Any]:
        import decoding_jax
        import jax

        from flaxformer.system.startup import one_cpu_device_per_core

        if name == "ours":
            one_cpu_device_per_core()
        size, shape = size_of(work), (work["batch"], work["prompt"])
        prompt = jax.random.randint(jax.random.key(1), shape, 0, size.vocabulary)
        decode, ready = getattr(decoding_jax, name), jax.block_until_ready
        found = measured(work, decode(size, prompt, work["steps"]), ready)
        return with_prompt(found, work, decode(size, prompt, 1), ready) if name == "ours" else found

    return measure


def memory(work: Work) -> dict[str, Any]:
    """Tokens a second if bytes were all, by the faster of two ways to move as many."""
    import decoding_jax
    import jax

    passes = decoding_jax.memory_passes(size_of(work), work["prompt"], work["steps"])
    found = [measured(work, call, jax.block_until_ready) for call in passes]
    return max(found, key=lambda numbers: numbers["tokens_per_second"])


def in_torch(name: str) -> Callable[[Work], dict[str, Any]]:
    """One of the models of torch_models.py, by its own way to generate."""

    def measure(work: Work) -> dict[str, Any]:
        import torch
        import torch_models

        torch.manual_seed(0)
        size = size_of(work)
        of_model = name.removesuffix("_static")
        build = torch_models.nanogpt(work["nanogpt"]) if name == "nanogpt" else getattr(torch_models, of_model)
        device, precision = torch_models.device_and_precision(size)
        model = build(size)[0].to(device).eval()
        if size.precision == "bfloat16":  # weights too, as a step reads them
            model, precision = model.to(torch.bfloat16), contextlib.nullcontext()
        prompt = torch.randint(size.vocabulary, (work["batch"], work["prompt"]), device=device)
        decode = globals()[name](model, work["steps"])

        def call() -> Any:
            with torch.inference_mode(), precision:
                tokens = decode(prompt)
            assert tokens.shape[1] in (work["steps"], work["prompt"] + work["steps"]), tokens.shape
            return tokens

        return measured(work, call, torch_models.wait)

    return measure


def hugging_face_static(model: Any, steps: int) -> Callable[[Any], Any]:
    """`generate` with a cache of fixed size, for which transformers compiles the model on a GPU."""
    model.generation_config.cache_implementation = "static"
    return hugging_face(model, steps)


def hugging_face(model: Any, steps: int) -> Callable[[Any], Any]:
    """`generate`, with the cache that it chooses by itself."""
    exactly: dict[str, Any] = {"min_new_tokens": steps, "max_new_tokens": steps}
    model.generation_config.pad_token_id = 0
    return lambda prompt: model.generate(prompt, do_sample=False, **exactly)


def x_transformers(model: Any, steps: int) -> Callable[[Any], Any]:
    """AutoregressiveWrapper, with its cache."""
    from x_transformers import AutoregressiveWrapper

    wrapped = AutoregressiveWrapper(model)
    return lambda prompt: wrapped.generate(prompt, steps, temperature=0.0, cache_kv=True)


def nanogpt(model: Any, steps: int) -> Callable[[Any], Any]:
    """Its `generate`, which has no cache and draws: of one token, the most probable."""
    return lambda prompt: model.generate(prompt, steps, top_k=1)


def seconds_without_cache(point: Any) -> bool:
    """True if decoding without a cache takes seconds rather than minutes."""
    return point["batch"] * (SIZES[point["size"]].width / 128) ** 2 <= 16


NANOGPT: dict[str, Any] = {"path": "nanogpt", "get": "git clone https://github.com/karpathy/nanoGPT; pip install torch"}
NAMED: dict[str, Any] = {"needs": ["torch", "transformers"], "get": "pip install torch transformers"}
benchmark = Benchmark(
    question="How many tokens a second does a language model say?",
    ways=[
        Way("memory", memory, role="limit"),
        Way("flaxformer", in_jax("ours"), role="ours"),
        Way("one-device", in_jax("ours_on_one_device"), role="ours"),
        Way("no-cache", in_jax("ours_without_cache"), role="ours", takes_part=seconds_without_cache),
        Way("nnx", in_jax("flax_nnx")),
        Way("nnx-read-whole", in_jax("flax_nnx_read_whole")),
        Way("hugging-face", in_torch("hugging_face"), **NAMED),
        Way(
            "hugging-face-static",
            in_torch("hugging_face_static"),
            takes_part=lambda point: bool(point.get("accelerator")),
            **NAMED,
        ),
        Way("x-transformers", in_torch("x_transformers"), needs=["x_transformers"], get="pip install x-transformers"),
        Way("nanogpt", in_torch("nanogpt"), needs=["torch"], takes_part=seconds_without_cache, **NANOGPT),
    ],
    options={
        "size": ("S", "M"),
        "batch": (1, 16, 64),
        "prompt": (64,),
        "steps": (128,),
        "seconds": (3.0,),
        "nanogpt": ("",),
    },
    choices={"size": tuple(SIZES)},
    quick={"size": ("tiny",), "batch": (2,), "prompt": (8,), "steps": (8,), "seconds": (0.2,)},
    compared="tokens_per_second",
    reference="nnx",
    limit=Limit("tokens_per_second", "memory", "of the memory's limit"),
    columns={
        "tokens_per_second": "tokens/s",
        "tokens_per_second_after_prompt": "after the prompt",
        "prompt_seconds": "prompt, s",
        "of_bandwidth": "of the bandwidth",
        "first_step_seconds": "first call, s",
        "peak_memory_bytes": "memory, MB",
    },
    rounds=3,
)
