"""Translation equals a greedy loop over single lines, independent of batch and padding; and the command."""

import io
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tasks.every import WORDS

from flaxformer.cli import main
from flaxformer.components import Attention, Dense
from flaxformer.config import ModelConfig
from flaxformer.data.tokenizer import BYTES, decode_stream
from flaxformer.jobs import translation
from flaxformer.jobs.translation import stream_translation, translate
from flaxformer.model import Sampling, apply, init
from flaxformer.report.loaded_model import LoadedModel
from flaxformer.study.load import load
from flaxformer.study.weights_source import WeightsSource
from flaxformer.system.errors import UserError
from flaxformer.tasks import PairedFiles, TextFiles
from flaxformer.training import Run

SEED = 12
"""Seed of weights with which some translations reach the end token early."""
LINES = [b"the quick fox", b"dog", b" a lazy dog so ", b"", b"do we jumps", b"so so so so", b"fox and the dog"]


def task(files, form):
    paths = {"source_path": str(files / "one.en"), "target_path": str(files / "two.en")}
    sizes = {"max_length": 4, "batch_size": 8, "evaluation_batches": 1, "buckets": 2}
    return PairedFiles(tokenizer=str(files / "one.json"), form=form, **paths, **sizes)


def untrained(files, form, seed):
    """Return a run, and weights so large that outputs depend on all inputs."""
    model = ModelConfig(
        vocabulary=17,
        layers=1,
        d_model=8,
        attention=Attention(heads=2),
        feed_forward=Dense(d_ff=7),
        mask_pattern="prefix",
    )
    model = model.with_encoder() if form == "paired" else model
    params = jax.jit(init)(jax.random.key(seed), model)
    return Run(model=model, task=task(files, form)), jax.tree.map(lambda x: 2.0 * x, params)


def translate_one_by_one(run, params, line):
    """Translate one line greedily, without cache and batch."""
    words = [1 + WORDS.index(word) for word in line.decode().split()]
    given = [*words, 14] if run.task.form == "joined" else [14]
    tokens, source = list(given), np.resize(words, (1, len(words)))
    for _ in range(5):
        row = np.full((1, 10), 0)
        row[0, : len(tokens)] = tokens
        more = {"prefix": jnp.array([len(given)]), "valid": jnp.arange(10)[None] < len(tokens)}
        if run.task.form == "paired":
            wide = np.zeros((1, 6), int)
            wide[0, : len(words)] = source
            more |= {"source": jnp.asarray(wide), "source_valid": jnp.arange(6)[None] < len(words)}
        tokens.append(int(_apply(params, run.model, jnp.asarray(row), more)[0, len(tokens) - 1].argmax()))
        if tokens[-1] == 15:
            break
    return " ".join(WORDS[i - 1] for i in tokens[len(given) :] if 0 < i < 14)


_apply = jax.jit(lambda params, model, tokens, more: apply(params, model, tokens, **more))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["paired", pytest.param("joined", marks=pytest.mark.slow)])
def test_translations_in_batches_equal_those_of_a_greedy_loop(files, form, monkeypatch):
    run, params = untrained(files, form, seed=SEED)
    monkeypatch.setattr(translation, "ROWS", 4)
    found = list(translate(params, run.model, run.task, LINES))
    assert found == [translate_one_by_one(run, params, line) if line else "" for line in LINES]
    assert len(set(found)) > 2
    assert any(0 < len(text.split()) < 5 for text in found)
    pieces = list(stream_translation(params, run.model, run.task, LINES[2]))
    assert "".join(pieces) == found[2]


@pytest.mark.slow
def test_beam_search_and_sampling_are_per_line(files, monkeypatch):
    run, params = untrained(files, "joined", seed=SEED)
    monkeypatch.setattr(translation, "ROWS", 4)
    greedy = list(translate(params, run.model, run.task, LINES))
    assert list(translate(params, run.model, run.task, LINES, beams=1)) == greedy
    drawn = [
        list(translate(params, run.model, run.task, [LINES[0]] * 8, sampling=Sampling(temperature=2.0), key=key))
        for key in jax.random.split(jax.random.key(0), 2)
    ]
    assert len(set(drawn[0])) > 4
    assert drawn[0] != drawn[1]
    assert drawn[0][:4] != drawn[0][4:]


def test_too_long_line_raises_an_error_before_translation(files):
    run, params = untrained(files, "joined", seed=SEED)
    with pytest.raises(UserError, match=r"line 2 of x.txt has 5 tokens; expected at most the task's max_length 4"):
        translate(params, run.model, run.task, [b"a", b"a a a a a"], name="x.txt")
    with pytest.raises(UserError, match=r"prompt is empty; expected a line to translate"):
        list(stream_translation(params, run.model, run.task, b" "))


FILE = """
from flaxformer import Attention, ModelConfig
from flaxformer.tasks import PairedTokens
from flaxformer.training import AdamW, Run, Training

run = Run(
    model=ModelConfig(vocabulary=259, layers=1, d_model=8, attention=Attention(heads=2)).with_encoder(),
    task=PairedTokens(path="pairs", max_length=23, batch_size=4, evaluation_batches=1, buckets=2),
    optimizer=AdamW(learning_rate=0.05),
    training=Training(steps=8),
)
"""


@pytest.fixture
def command(files, tmp_path, monkeypatch, capsys):
    """The command in a folder with prepared pairs and a run's file; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs").symlink_to(files / "one.pairs")
    (tmp_path / "tiny.py").write_text(FILE)
    before = signal.getsignal(signal.SIGTERM)

    def call(*arguments):
        code = main(list(arguments))
        return code, *capsys.readouterr()

    yield call
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "asks for --prompt TEXT or --input FILE; expected one of them"),
        (("--prompt", "a", "--input", "in.txt"), "expected one of them"),
        (("--input", "none.txt"), "input is 'none.txt', which is not a file"),
        (("--prompt", "a", "--tokens", "0"), "tokens is 0; expected a number at least 1"),
        (("--prompt", "a", "--beams", "2", "--temperature", "1"), "expected one way to decode"),
    ],
)
def test_invalid_settings_are_refused(command, tmp_path, monkeypatch, arguments, message):
    without_weights(monkeypatch, load(tmp_path / "tiny.py", "run", Run))
    code, _, err = command("generate", "run", *arguments)
    assert code == 2
    assert message in " ".join(err.split())


def without_weights(monkeypatch, run):
    """Let the command load a run without any weights, which the checks of its arguments do not read."""
    Path("run").mkdir()
    loaded = LoadedModel(WeightsSource(Path("run"), 0), run.model, None, run)
    monkeypatch.setattr("flaxformer.cli.generate.load", lambda *arguments, **options: loaded)


def test_language_model_refuses_an_input_file(command, monkeypatch, files):
    text = TextFiles(path=str(files / "one"), length=8)
    run = Run(model=ModelConfig(layers=1, d_model=8, attention=Attention(heads=2)), task=text)
    without_weights(monkeypatch, run)
    code, _, err = command("generate", "run", "--input", "in.txt")
    assert code == 2
    assert "input is 'in.txt' with a run that continues a text; expected --prompt" in " ".join(err.split())


@pytest.mark.slow
def test_generate_translates_a_file_line_by_line(command, tmp_path, monkeypatch):
    assert command("train", "tiny.py")[0] == 0
    lines = ["the quick fox", "", "a=so do we", ":dog: [b]dog[/b]"]
    (tmp_path / "in.txt").write_text("\r\n".join(lines) + "\n")
    code, out, err = command("generate", "runs/tiny", "--input", "in.txt")
    assert (code, err) == (0, "")
    found = out.split("\n")
    assert len(found) == 5
    assert found[1] == found[4] == ""
    assert any(found)
    for line, said in zip(lines, found, strict=False):
        if line:
            assert command("generate", "runs/tiny", "--prompt", line)[:2] == (0, said + "\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    assert command("generate", "runs/tiny", "--input", "-")[1] == out
    assert len(command("generate", "runs/tiny", "--input", "in.txt", "--beams", "2")[1].splitlines()) == 4


def test_stream_yields_complete_characters():
    said = list(decode_stream(BYTES.decode, [b"a\xc3", b"\xa4b", b"\xe2\x82", b"\xac", b"c\xc3"]))
    assert said == ["a", "äb", "", "€", "c", "\N{REPLACEMENT CHARACTER}"]
