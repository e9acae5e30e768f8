"""Every recipe in experiments/training/ loads, says what it needs and what it gave, and trains."""

import contextlib
import importlib.util
import math
import re
from pathlib import Path

import numpy as np
import pytest

from flaxformer.checkpoint import Stop
from flaxformer.core.paths import replace_at
from flaxformer.data import prepare, read_tokenizer
from flaxformer.data.token_files import open_tokens
from flaxformer.jobs import Job, train
from flaxformer.runner.events import Evaluated
from flaxformer.study.load import load, load_study
from flaxformer.system.errors import UserError
from flaxformer.training import Run
from flaxformer.training.memory import parameters
from flaxformer.training.schedule import learning_rate

FOLDER = Path(__file__).parents[1] / "experiments" / "training"
RECIPES = [file for file in sorted(FOLDER.glob("*.py")) if "\nrun = Run(" in file.read_text()]
RECORD = ("Data", "Command", "Cost", "Published|Baseline", "Measured", "Deviations|Choices")
SENTENCES = ["Two dogs run.", "A dog runs.", "Two cats run.", "A cat, a dog.", "It rains.", "Tom ran.", "Go on."]


def script(name):
    """A script of the folder as a module."""
    spec = importlib.util.spec_from_file_location(f"recipe_script_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_shard(file, tokens):
    """A file of tokens in the format of modded-nanogpt."""
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(tokens)
    file.write_bytes(header.tobytes() + np.array(tokens, "<u2").tobytes())


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Stand-ins, where a recipe looks for its data."""
    folder = tmp_path_factory.mktemp("recipes")
    with contextlib.chdir(folder):
        files = Path("data")
        for name in ("multi30k", "tatoeba", "text"):
            (files / name).mkdir(parents=True)
        text = "\n".join(f"{line} {number}" for number in range(80) for line in SENTENCES)
        (files / "shakespeare.txt").write_text(text * 4)
        lines = [f"{number} {line}" for number in range(40) for line in SENTENCES]
        for path in ("train.de", "train.en", "val.de", "val.en"):
            (files / "multi30k" / path).write_text("\n".join(lines))
        for path in ("train.source", "train.target"):
            (files / "tatoeba" / path).write_text("\n".join(lines))
        for name, file in (("multi30k", "words.json"), ("tatoeba", "tokenizer.json")):
            script("words").words(["data/multi30k/train.de"]).save(f"data/{name}/{file}")
        rng = np.random.default_rng(0)
        np.savez(
            files / "mnist.npz", images=rng.integers(0, 256, (50, 28, 28), dtype=np.uint8), labels=np.arange(50) % 10
        )
        for number in range(20):
            (files / "text" / f"{number}.txt").write_text(text)
        prepare("data/text", "data/fineweb")
        (files / "fineweb10B").mkdir()
        for name in ("fineweb_val_000000", "fineweb_train_000001", "fineweb_train_000002"):
            write_shard(files / "fineweb10B" / f"{name}.bin", [50256, *range(3000)])
        script("track3_data").prepare(files / "fineweb10B", files / "fineweb10B" / "prepared")
    return folder


def recipe(file, data):
    with contextlib.chdir(data):
        return load(file, "run", Run)


def test_recipe_page_lists_every_recipe():
    names = [file.stem for file in RECIPES]
    assert {"shakespeare", "multi30k", "gpt2"} <= set(names)
    rows = [line for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith("| [")]
    assert sorted(re.match(r"\| \[(\w+)\]\(\1\.py\)", row)[1] for row in rows) == names


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_a_recipe_loads_and_has_a_record(file, data):
    run = recipe(file, data)
    assert run.training.steps > run.training.interval or run.training.steps >= 100
    found = re.findall(r"^(\w+): \S", file.read_text().split('"""')[1], re.MULTILINE)
    for name in RECORD:
        assert set(name.split("|")) & set(found), f"{file.name} has no line '{name}: …'"


def test_grokking_delay_follows_from_the_evaluations(data):
    study = load_study(FOLDER / "modular_addition.py")
    row = {
        "evaluated_at": [0, 50, 100, 150],
        "accuracy_on_shown_curve": [0.1, 0.99, 0.98, 1.0],
        "validation_accuracy_curve": [0, 0.3, 0.989, 0.5],
    }
    assert study.derive({"baseline": row}) == {
        "steps to 99 % of the shown": 50,
        "steps to 99 % of the others": 150,
        "ratio": 3,
    }


def test_the_study_of_shakespeare_has_the_rates_of_the_published_run(data):
    run = recipe(FOLDER / "shakespeare_gpu.py", data)
    with contextlib.chdir(data):
        study = load_study(FOLDER / "shakespeare_gpu.py")
    short = study.baseline
    assert short.training.steps < run.training.steps
    for step in (0, 99, 100, 1234, short.training.steps - 1):
        whole = learning_rate(run.optimizer, step, run.training.steps)
        assert learning_rate(short.optimizer, step, short.training.steps) == pytest.approx(float(whole), rel=1e-5)
    row = {"evaluated_at": [0, 250, 500, 750], "validation_loss_curve": [5.6, 1.6, 1.5, 1.75]}
    assert study.derive({"baseline": row}) == {
        "least validation loss": 1.5,
        "step of the least": 500,
        "rise after it": 0.25,
    }


def test_losses_of_translation_are_taken_after_the_published_epochs(data):
    with contextlib.chdir(data):
        study = load_study(FOLDER / "multi30k.py")
    row = {
        "evaluated_at": [227 * epoch for epoch in range(11)],
        "validation_loss_curve": [9.5, 3.0, 2.3, 2.0, 1.8, 1.7, 1.6, 1.65, 1.64, 1.63, 1.7],
        "flickr2016_loss_curve": [9.4 - epoch / 100 for epoch in range(11)],
    }
    numbers = study.derive({"baseline": row})
    assert [numbers[f"loss after epoch {epoch}"] for epoch in (1, 2, 4, 8)] == [3.0, 2.3, 1.8, 1.64]
    assert (numbers["least validation loss"], numbers["epoch of the least"]) == (1.6, 6)
    assert numbers["test loss at the least"] == pytest.approx(9.34)
    assert {claim.equal["quantity"] for claim in study.claims} <= set(numbers)
    assert script("multi30k_bleu").words("A man's dog, 2.") == "a man ' s dog , 2 ."


def test_words_are_lower_case_and_occur_twice(tmp_path):
    for name, text in (("a", "A man, a dog."), ("b", "The dog\nTHE cat; a man's")):
        (tmp_path / name).write_text(text)
    script("words").words([str(tmp_path / "a"), str(tmp_path / "b")]).save(str(tmp_path / "words.json"))
    words = read_tokenizer(str(tmp_path / "words.json"))
    assert words.vocabulary == 5
    the, man, comma, again, cat = words.encode(b"The MAN, the cat")
    assert (the, comma) == (again, cat)
    assert words.decode([the, man, comma]) == "the man [UNK]"


def test_training_set_has_no_test_sentence():
    lines = [f"sentence {i % 50}\ttranslation {i}\tsome licence" for i in range(100)]
    sides = script("split_pairs").split("\n".join(lines))
    train, test = ({source for source, _ in sides[side]} for side in ("train", "test"))
    assert train
    assert test
    assert not train & test
    assert len(train | test) == 50
    assert len(sides["test"]) == len(test)
    assert all(int(target.split()[1]) == int(source.split()[1]) for source, target in sides["test"])


def test_the_network_of_track_3_has_the_published_number_of_weights(data):
    assert parameters(recipe(FOLDER / "track3.py", data).model) == 162_354_816


def test_token_shards_are_joined_in_order_and_checked(tmp_path):
    for name, tokens in (("train_000001", [50256, 1, 2]), ("train_000002", [3, 50256, 4]), ("val_000000", [5, 6, 7])):
        write_shard(tmp_path / f"fineweb_{name}.bin", tokens)
    shards = script("track3_data")
    shards.prepare(tmp_path, tmp_path / "prepared")
    folder = open_tokens(str(tmp_path / "prepared"))
    assert folder.train.tolist() == [50256, 1, 2, 3, 50256, 4]
    assert folder.train_documents.tolist() == [0, 4, 6]
    assert folder.validation.tolist() == [5, 6, 7]
    write_shard(tmp_path / "fineweb_train_000003.bin", [1, 2, 3])
    with (tmp_path / "fineweb_train_000003.bin").open("ab") as file:
        file.write(b"\0\0")
    with pytest.raises(UserError, match=r"000003.bin has 4 tokens; expected 3"):
        shards.prepare(tmp_path, tmp_path / "again")


TINY = {"layers": 1, "d_model": 16, "attention.heads": 2, "feed_forward.d_ff": 16}
SHORT = {
    "task.batch_size": 4,
    "task.evaluation_batches": 1,
    "training.steps": 2,
    "training.evaluate_every": 1,
    "training.micro_batches": 1,
    "optimizer.warmup_steps": 0,
}


@pytest.mark.slow
@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_a_recipe_trains(file, data, tmp_path):
    run = recipe(file, data)
    stacks = ["model", *(["model.encoder"] if run.model.encoder else [])]
    with contextlib.chdir(data):
        tiny = {f"{stack}.{name}": value for stack in stacks for name, value in TINY.items()}
        if getattr(run.model.positions, "rotated_width", None) is not None:
            tiny["model.positions.rotated_width"] = 4
        run = replace_at(run, SHORT | tiny)
        losses = [
            event.metrics["validation_loss"]
            for event in train(run, Job(output=tmp_path), Stop())
            if isinstance(event, Evaluated) and not event.is_test
        ]
    assert len(losses) == 3
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[2] != losses[0]
