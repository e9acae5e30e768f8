"""Multiple choice by log-likelihood, against log-likelihoods that NumPy computes one question at a time."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tasks.every import WORDS, word_tokenizer

from flaxformer import model
from flaxformer.components import Attention, Dense, LearnedPositions, Rotary
from flaxformer.config import ModelConfig
from flaxformer.data.questions import read_questions
from flaxformer.study import Study
from flaxformer.study.evaluation_data import data_limits_of
from flaxformer.system.errors import UserError
from flaxformer.tasks import Copy, Domain, Mixture, MultipleChoice, Overlap, TextClassification, TextFiles
from flaxformer.tasks.choices import ChoiceData, accuracy_of
from flaxformer.training import Run, start
from flaxformer.training.evaluation import score_data

MODEL = ModelConfig(
    vocabulary=256, layers=2, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=11), positions=Rotary()
)
QUESTIONS = [
    {"context": "the fox is", "choices": [" quick", " so very lazy", " a dog"], "answer": 1},
    {"context": "two and three make", "choices": [" five", " 23"], "answer": " five"},
    {"context": "jumps over ", "choices": ["the dog", "it", "the lazy dog", "so"], "answer": 3},
    {"context": "é", "choices": ["ü", "zz"], "answer": 0},
    {"context": "a long context, of which the start does not fit", "choices": [" yes", " it does not"], "answer": 1},
]
LENGTH = 23


def write(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("questions") / "facts.jsonl", QUESTIONS)


RUN = Run(model=MODEL, task=Copy(symbols=5, length=3))


def log_softmax(x):
    x = np.asarray(x, np.float64)
    return x - x.max(-1, keepdims=True) - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True))


APPLY = jax.jit(lambda params, tokens: model.apply(params, MODEL, tokens)[0])


def likelihood(params, context, choice, length=LENGTH):
    """log p(choice | context) by a loop over the tokens of one text, without padding; and its number of tokens."""
    first, whole = context.rstrip().encode(), (context + choice).encode()
    tokens = np.frombuffer(whole, np.uint8).astype(np.int32)[-(length + 1) :]
    count = len(whole) - len(first)
    logs = log_softmax(APPLY(params, jnp.asarray(tokens[None, :-1])))
    return sum(logs[t - 1, tokens[t]] for t in range(len(tokens) - count, len(tokens))), count


def expected_scores(params, unconditional):
    """Accuracies by each score, and the loss per token of the right choices."""
    right = {name: [] for name in ("accuracy", "accuracy_tokens", "accuracy_bytes", "accuracy_unconditional")}
    total = tokens = 0
    for row in QUESTIONS:
        answer = row["answer"] if isinstance(row["answer"], int) else row["choices"].index(row["answer"])
        own = [likelihood(params, row["context"], choice) for choice in row["choices"]]
        null = [likelihood(params, unconditional, choice)[0] for choice in row["choices"]]
        sums, counts = (np.array(column) for column in zip(*own, strict=True))
        scores = sums, sums / counts, sums / [len(choice.encode()) for choice in row["choices"]], sums - null
        for name, score in zip(right, scores, strict=True):
            right[name].append(score.argmax() == answer)
        total, tokens = total - sums[answer], tokens + counts[answer]
    return {name: np.mean(found) for name, found in right.items()} | {"loss": total / tokens}


@pytest.fixture(scope="module")
def params():
    # Larger weights than at the start, so that choices differ clearly.
    return jax.tree.map(lambda x: 4 * x, jax.jit(start)(RUN).params)


SCORE = jax.jit(score_data)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [3, 32])
def test_scores_are_those_of_one_text_at_a_time(path, params, batch_size):
    own = MultipleChoice(name="facts", path=path, length=LENGTH, batch_size=batch_size, unconditional="Answer:")
    found = SCORE(params, RUN, own.load())
    expected = expected_scores(params, "Answer:")
    assert {name.removesuffix("_se") for name in found} == set(expected) == set(own.metrics(True))
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-5, err_msg=name)
        if name != "loss":
            n = len(QUESTIONS)
            np.testing.assert_allclose(found[f"{name}_se"], np.sqrt(value * (1 - value) / (n - 1)), rtol=1e-5)
    assert 0 < float(found["loss_se"]) < 10


def test_every_accuracy_is_that_of_its_own_score():
    """Random losses of 499 questions with 2 to 5 choices, scored in NumPy."""
    rng = np.random.default_rng(0)
    counts = rng.integers(2, 6, 499)
    losses, tokens, sizes = rng.exponential(5, 1313), rng.integers(1, 9, 1313), rng.integers(1, 40, (499, 5))
    rows, null = rng.integers(0, 1313, (499, 5)), rng.integers(0, 1313, (499, 5))
    answers = rng.integers(0, counts)
    is_choice = np.arange(5) < counts[:, None]
    data = ChoiceData(
        batches=None,
        rows=jnp.asarray(rows),
        byte_counts=jnp.asarray(sizes * is_choice, jnp.float32),
        answers=jnp.asarray(answers),
        unconditional=jnp.asarray(null),
    )
    found = data.scores({}, (jnp.asarray(losses, jnp.float32)[:, None], jnp.asarray(tokens, jnp.float32)[:, None]))
    scores = {
        "accuracy": -losses[rows],
        "accuracy_tokens": -losses[rows] / tokens[rows],
        "accuracy_bytes": -losses[rows] / sizes,
        "accuracy_unconditional": -losses[rows] + losses[null],
    }
    expected = {
        name: np.mean([row[:n].argmax() == own for row, n, own in zip(score, counts, answers, strict=True)])
        for name, score in scores.items()
    }
    assert len(set(expected.values())) == 4
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6)
    right = rows[np.arange(499), answers]
    np.testing.assert_allclose(found["loss"], losses[right].sum() / tokens[right].sum(), rtol=1e-5)


def test_padding_does_not_change_a_score(params, tmp_path):
    alone = write(tmp_path / "alone.jsonl", QUESTIONS[3:4])
    data = [MultipleChoice(name="x", path=p, length=LENGTH, batch_size=2).load() for p in (alone,)]
    longer = write(
        tmp_path / "longer.jsonl", [QUESTIONS[3], {"context": "y" * 30, "choices": ["x" * 19, "z"], "answer": 0}]
    )
    data.append(MultipleChoice(name="x", path=longer, length=LENGTH, batch_size=2).load())
    assert data[0].batches.inputs.shape[-1] < data[1].batches.inputs.shape[-1] == LENGTH
    first = likelihood(params, "é", "ü")
    for own in data:
        sums = SCORE(
            params, RUN, own.replace(rows=own.rows[:1], answers=own.answers[:1], byte_counts=own.byte_counts[:1])
        )
        np.testing.assert_allclose(sums["loss"], -first[0] / first[1], rtol=2e-5)


def test_long_contexts_lose_their_start(path):
    own = MultipleChoice(name="x", path=path, length=LENGTH).load()
    tokens = [
        *own.batches.inputs.reshape(-1, LENGTH)[own.rows[4, 0]],
        *own.batches.targets.reshape(-1, LENGTH)[own.rows[4, 0]][-1:],
    ]
    assert bytes(map(int, tokens)).decode() == "the start does not fit yes"[-LENGTH - 1 :]
    assert own.batches.prefix.reshape(-1)[own.rows[4, 0]] == LENGTH + 1 - len(" yes")


def test_equal_examples_are_computed_once(tmp_path):
    rows = [{"text": text, "label": label} for text, label in (("good", 1), ("bad", 0), ("good", 1), ("fine", 1))]
    path = write(tmp_path / "labels.jsonl", rows)
    fields = {"template": "{text}. Sentiment:", "labels": ("0", "1"), "words": (" bad", " good"), "length": 40}
    own = TextClassification(name="sst", path=path, unconditional="Sentiment:", batch_size=4, **fields).load()
    scored = (np.asarray(own.batches.weights).sum(-1) > 0).sum()
    assert scored == 3 * 2 + 2
    assert own.answers.tolist() == [1, 0, 1, 1]
    assert own.rows[0].tolist() == own.rows[2].tolist()
    assert len({tuple(row) for row in np.asarray(own.unconditional)}) == 1


def test_classification_is_multiple_choice_with_the_words_of_the_labels(tmp_path, params):
    rows = [{"text": f"text {i}", "label": "ab"[i % 2]} for i in range(5)]
    questions = [
        {"context": f"<{row['text']}>\n", "choices": [" a", " b"], "answer": " " + row["label"]} for row in rows
    ]
    own = TextClassification(
        name="x", path=write(tmp_path / "l.jsonl", rows), template="<{text}>\n", labels=("a", "b"), length=LENGTH
    )
    other = MultipleChoice(name="x", path=write(tmp_path / "q.jsonl", questions), length=LENGTH)
    jax.tree.map(np.testing.assert_array_equal, own.load(), other.load())
    assert own.metrics(True) == ("loss", "accuracy", "accuracy_tokens", "accuracy_bytes")


def test_tokens_of_a_choice_are_those_after_the_context(tmp_path):
    (tmp_path / "words.json").write_text(word_tokenizer(WORDS))
    rows = [{"context": "the quick brown ", "choices": ["fox jumps", "dog"], "answer": 0}]
    own = MultipleChoice(
        name="x", path=write(tmp_path / "q.jsonl", rows), length=7, tokenizer=str(tmp_path / "words.json"), batch_size=1
    )
    data, encode = own.load(), own.encoding.encode
    assert data.batches.inputs[0, 0].tolist() == encode(b"the quick brown fox").tolist()
    assert data.batches.targets[0, 0].tolist() == encode(b"quick brown fox jumps").tolist()
    assert data.batches.weights[:, 0].tolist() == [[0, 0, 1, 1], [0, 0, 1, 0]]
    assert own.fingerprint()["tokenizer_sha256"] == own.encoding.fingerprint["tokenizer_sha256"]


def test_an_accuracy_ignores_missing_choices_and_shows_scores_that_are_not_numbers():
    scores = jnp.asarray([[-3.0, -2.0, 0.0], [-1.0, -1.0, -4.0]])
    is_choice = jnp.asarray([[True, True, False], [True, True, True]])
    found = accuracy_of("accuracy", scores, is_choice, jnp.asarray([1, 0]))
    assert float(found["accuracy"]) == 1  # the first of equal scores
    assert float(found["accuracy_se"]) == 0
    assert np.isnan(accuracy_of("a", scores.at[1, 2].set(jnp.nan), is_choice, jnp.asarray([1, 0]))["a"])
    assert float(accuracy_of("a", scores.at[0, 2].set(jnp.nan), is_choice, jnp.asarray([1, 0]))["a"]) == 1
    assert np.isnan(accuracy_of("a", scores[:1], is_choice[:1], jnp.asarray([1]))["a_se"])


LINES = {
    "no object": ("[1]", "line 2 is '[1]'; expected a JSON object"),
    "no json": ("{", "line 2: expected a JSON object, but:"),
    "no context": ('{"choices": ["a", "b"], "answer": 0}', "line 2 has no field 'context'; it has: choices, answer"),
    "number": ('{"context": 3, "choices": ["a", "b"], "answer": 0}', "line 2: field 'context' is '3'; expected text"),
    "one choice": (
        '{"context": "x", "choices": ["a"], "answer": 0}',
        "line 2: choices is \"['a']\"; expected a list of at",
    ),
    "twice": ('{"context": "x", "choices": ["a", "a"], "answer": 0}', "expected distinct texts that are not empty"),
    "range": (
        '{"context": "x", "choices": ["a", "b"], "answer": 2}',
        "line 2: answer is 2; expected an index from 0 to 1",
    ),
    "truth": ('{"context": "x", "choices": ["a", "b"], "answer": true}', "line 2: answer is True; expected an index"),
    "surrogate": (
        '{"context": "\\ud800", "choices": ["a", "b"], "answer": 0}',
        "line 2: field 'context' has half of a surrogate",
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_a_wrong_line_is_named(name, tmp_path):
    line, message = LINES[name]
    file = tmp_path / "wrong.jsonl"
    file.write_text(json.dumps(QUESTIONS[0]) + "\n" + line)
    with pytest.raises(UserError) as error:
        read_questions(str(file))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"context": "  ", "choices": ["a", "b"], "answer": 0}, "line 1: the context is '  '; expected text before"),
        (
            {"context": "x", "choices": ["a" * 24, "b"], "answer": 0},
            "line 1: choice 'aaaaaaaaaaaaaaaaaaaaaaaa' has 24 tokens; expected 1 to length 23",
        ),
    ],
)
def test_a_question_that_cannot_be_scored_is_named(row, message, tmp_path):
    own = MultipleChoice(name="x", path=write(tmp_path / "q.jsonl", [row]), length=LENGTH)
    with pytest.raises(UserError) as error:
        own.load()
    assert message in str(error.value)


def test_files_and_labels_are_checked(tmp_path):
    with pytest.raises(UserError, match="which is not a file; expected JSON lines"):
        MultipleChoice(name="x", path=str(tmp_path / "none.jsonl")).load()
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n\n")
    with pytest.raises(UserError, match="has no lines; expected a JSON object per line"):
        MultipleChoice(name="x", path=str(empty)).load()
    path = write(tmp_path / "l.jsonl", [{"text": "t", "label": "c"}])
    own = TextClassification(name="x", path=path, template="{text}:", labels=("a", "b"))
    with pytest.raises(UserError, match="line 1: label is 'c'"):
        own.load()
    for changes, message in (
        ({"template": "text"}, "template is 'text'; expected {text} in it"),
        ({"labels": ("a",)}, "expected at least 2 distinct labels"),
        ({"words": (" a",)}, "expected a word of its own for each of"),
        ({"words": ("", " b")}, "expected texts that are not empty"),
        ({"unconditional": " "}, "unconditional is ' '; expected a text, or None"),
    ):
        with pytest.raises(UserError) as error:
            own.replace(**changes)
        assert message in str(error.value)


def test_a_model_that_cannot_score_choices_is_refused(path):
    own = MultipleChoice(name="facts", path=path, length=LENGTH)
    small = Run(model=MODEL.replace(vocabulary=200), task=Copy(symbols=5, length=3))
    for changes, message in (
        ({}, "evaluation 'facts': model.vocabulary is 200; expected at least the task's 256 tokens"),
        (
            {"vocabulary": 256, "positions": LearnedPositions(max_length=11)},
            "evaluation 'facts': model.positions.max_length is 11; expected",
        ),
    ):
        with pytest.raises(UserError) as error:
            small.replace(model=small.model.replace(**changes), evaluations=(own,))
        assert message in str(error.value)


def test_questions_with_their_answers_in_the_training_text_are_counted(path, tmp_path):
    """Context and right choice must follow each other in the text; a wrong choice there does not count."""
    text = "Then the fox is so very lazy. Two and three make 23; two and three make 24. It jumps over the lazy dog! "
    (tmp_path / "a.txt").write_text(9 * text)
    (tmp_path / "b.txt").write_text("nothing of these " * 40 + "éü" + " nothing of these" * 40)
    own = MultipleChoice(name="facts", path=path, length=LENGTH)
    first, second = (TextFiles(path=str(tmp_path / name), length=8) for name in ("a.txt", "b.txt"))
    assert own.overlap(first) == Overlap(5, 1)
    assert own.overlap(first.replace(validation_tenths=5)) == Overlap(5, 1)
    both = Mixture(domains=(Domain(name="a", task=first), Domain(name="b", task=second)))
    assert own.overlap(both) == Overlap(5, 2)
    assert own.overlap(Copy()) == own.overlap() == Overlap(5, 0, 0)


def test_an_overlap_with_questions_is_in_the_limits_of_a_study(path, tmp_path):
    (tmp_path / "a.txt").write_text("the fox is so very lazy, " * 40)
    run = Run(
        model=MODEL,
        task=TextFiles(path=str(tmp_path / "a.txt"), length=8),
        evaluations=(MultipleChoice(name="facts", path=path, length=LENGTH),),
    )
    study = Study(name="s", question="?", baseline=run, axes=[], seeds=range(2), metric="facts_accuracy")
    [limit] = data_limits_of(study)
    assert limit.startswith("1 of 5 evaluation examples (20.0%) also occur in the training data")
