"""Memory that a run needs at least, computed from its config alone."""

import math

import jax
import pytest

from flaxformer.components import Attention, Dense
from flaxformer.config import Block, ModelConfig
from flaxformer.core import params
from flaxformer.model import specs
from flaxformer.system.errors import UserError
from flaxformer.tasks import Copy
from flaxformer.training import Run, memory, start

SMALL = ModelConfig(vocabulary=7, layers=5, d_model=6, attention=Attention(heads=2), feed_forward=Dense(d_ff=11))
MODELS = {
    "alike": SMALL,
    "pattern": SMALL.replace(pattern=(Block(feed_forward=Dense(d_ff=13)), Block()), layers=4),
    "shared": SMALL.replace(distinct_blocks=2, layers=4),
    "encoder": SMALL.replace(layers=3).with_encoder(layers=2),
    "no layers": SMALL.replace(layers=0),
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_parameters_are_counted_without_the_tree_of_all_layers(model):
    assert memory.parameters(model) == params.count(specs(model))


def test_needed_memory_is_below_that_of_the_state_and_the_data():
    run = Run(model=SMALL, task=Copy(symbols=5, length=3, batch_size=3, evaluation_batches=2))
    needed, state = memory.needed_bytes(run), jax.eval_shape(start, run)
    weights = sum(4 * math.prod(leaf.shape) for leaf in jax.tree.leaves(state.params))
    assert needed["weights and gradients"] == 2 * weights
    evaluation = jax.eval_shape(lambda source: source.evaluation(), run.task.load())
    assert needed["the evaluation data"] <= sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(evaluation))
    assert memory.excess(run) == ""


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"model.d_model": 10**9}, "160 EB for weights"),
        ({"model.vocabulary": 10**13}, "for weights"),
        ({"task.batch_size": 10**12}, "for the activations of a layer"),
        ({"task.evaluation_batches": 10**13}, "for the evaluation data"),
    ],
)
def test_sizes_that_fit_no_machine_are_refused_before_anything_is_allocated(change, what):
    run = Run(model=SMALL, task=Copy(symbols=5, length=3, batch_size=2))
    for path, value in change.items():
        part, name = path.split(".")
        run = run.replace(**{part: getattr(run, part).replace(**{name: value})})
    [(path, value)] = change.items()
    with pytest.raises(
        UserError,
        match=f"arm 'a' needs at least .* of memory .*{what}.*there are .* expected a smaller .*{path}={value}",
    ):
        memory.check_memory(run, "arm 'a'")


def test_a_compiled_program_is_compared_before_it_is_called(monkeypatch):
    memory.check_compiled(memory.machine_bytes(), "advance")
    with pytest.raises(MemoryError, match=r"advance needs .* and there are"):
        memory.check_compiled(memory.machine_bytes() + 1, "advance")


def test_the_limit_of_a_container_counts(monkeypatch, tmp_path):
    (tmp_path / "memory.max").write_text("1000000\n")
    memory.host_bytes.cache_clear()
    try:
        monkeypatch.setattr(memory, "LIMITS", (str(tmp_path / "memory.max"), str(tmp_path / "none")))
        assert memory.host_bytes() == 1_000_000
        (tmp_path / "memory.max").write_text("max\n")
        memory.host_bytes.cache_clear()
        assert memory.host_bytes() > 1_000_000
    finally:
        memory.host_bytes.cache_clear()


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (12 * 10**9, "12 GB")])
def test_sizes_are_three_digits_and_a_unit(count, text):
    assert memory.size(count) == text
