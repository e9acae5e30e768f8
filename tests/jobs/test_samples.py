"""What a run says while it trains: of its seed and step alone, at no cost to its numbers, and readable."""

import jax
import numpy as np
import pytest

from flaxformer import model
from flaxformer.components import Attention, LearnedPositions, Sinusoidal
from flaxformer.config import ModelConfig
from flaxformer.jobs import samples
from flaxformer.jobs.samples import Sample, sampler, text_of
from flaxformer.model import Generation
from flaxformer.system.wording import printable
from flaxformer.tasks import Copy, PairedFiles, TextFiles
from flaxformer.training import Run


def text_run(folder, **changes):
    (folder / "text.txt").write_text("to be or not to be, that is the question: " * 40)
    task = TextFiles(path=str(folder / "text.txt"), length=8, batch_size=2, evaluation_batches=1)
    return Run(model=ModelConfig(layers=1, d_model=8, attention=Attention(heads=2), **changes), task=task, seed=3)


def weights(run):
    return jax.jit(model.init, static_argnums=1)(jax.random.key(0), run.model)


@pytest.mark.long
def test_a_sample_depends_on_the_seed_and_the_step_alone(tmp_path):
    run = text_run(tmp_path)
    source, params = run.task.load(), weights(run)
    sample = sampler(run, source, 5)
    one = sample(params, 7)
    assert one.prompt == bytes(np.asarray(source.evaluation().inputs)[0, 0, :4].tolist()).decode()
    assert one == sample(params, 7) == sampler(run, source, 5)(params, 7)
    assert one.text != sample(params, 8).text
    assert one.text != sampler(run.replace(seed=4), source, 5)(params, 7).text
    assert one.text != sample(jax.tree.map(lambda leaf: 30 * leaf, params), 7).text
    assert text_of(run.task).encode(one.prompt.encode()).size == 4


@pytest.fixture
def asked(monkeypatch):
    """What is asked of `generate`, which says the bytes "ab", its end, and more."""
    calls = []

    def generate(params, config, prompt, **how):
        calls.append(how | {"prompt": np.asarray(prompt).tolist()})
        tokens = np.array([[97, 98, 257, 99]])
        return Generation(tokens=tokens, lengths=np.array([3 if how["end"] == 257 else 4]), log_probabilities=None)

    monkeypatch.setattr(samples, "generate", generate)
    return calls


@pytest.mark.parametrize(("most", "tokens", "steps"), [(None, 100, 100), (8, 100, 5), (8, 5, 5), (8, 3, 3)])
def test_a_sample_is_no_longer_than_asked_for_or_than_the_positions(tmp_path, asked, most, tokens, steps):
    """Four tokens are given, and the last one said is never read: eight positions are enough for five more."""
    positions = Sinusoidal() if most is None else LearnedPositions(max_length=most)
    run = text_run(tmp_path, positions=positions)
    said = sampler(run, run.task.load(), tokens)(None, 7)
    assert said.text == "abc"
    assert asked[0]["steps"] == steps
    assert len(asked[0]["prompt"][0]) == 4


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("form", ["paired", "joined"])
def test_a_held_out_line_is_translated_to_its_end(tmp_path, asked, form):
    for name in ("one", "two"):
        (tmp_path / name).write_text("".join(f"{name} {number}\n" for number in range(40)))
    paths = {"source_path": str(tmp_path / "one"), "target_path": str(tmp_path / "two")}
    task = PairedFiles(**paths, max_length=7, form=form, batch_size=2, evaluation_batches=1)
    config = ModelConfig(vocabulary=259, layers=1, d_model=8, attention=Attention(heads=2))
    config = config.with_encoder() if form == "paired" else config.replace(mask_pattern="prefix")
    said = sampler(Run(model=config, task=task), task.load(), 6)(None, 0)
    assert said.text == "ab"
    line = [*said.prompt.removesuffix("\n").encode()]
    assert bytes(line).startswith(b"one ")
    (how,) = asked
    assert how["prompt"] == [[256] if form == "paired" else [*line, 256]]
    assert how["end"] == 257
    assert how["sampling"].temperature is None
    if form == "paired":
        assert np.asarray(how["source"])[how["source_valid"]].tolist() == line


def test_without_text_or_tokens_there_is_no_sampler(tmp_path):
    run = text_run(tmp_path)
    assert sampler(run, run.task.load(), 0) is None
    numbers = Run(model=ModelConfig(vocabulary=7), task=Copy(symbols=5, length=3))
    assert sampler(numbers, numbers.task.load(), 5) is None


def test_nothing_in_a_text_commands_a_terminal():
    assert printable("a\x1b[2J\x07é\r\n\tb\x00�") == "a·[2J·é·\n\tb·�"
    assert Sample("a", "b") == ("a", "b")
