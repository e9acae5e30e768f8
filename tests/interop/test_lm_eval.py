"""The adapter for lm-eval: likelihoods against NumPy, one text at a time, and its calls by the library itself."""

import json
import sys
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer import model
from flaxformer.checkpoint import Stop
from flaxformer.components import Attention, Dense, LearnedPositions, Rotary
from flaxformer.config import ModelConfig
from flaxformer.interop.lm_eval import from_folder, harness_model
from flaxformer.interop.text_scorer import TextScorer
from flaxformer.jobs import Job, train
from flaxformer.model import generate
from flaxformer.system.errors import UserError
from flaxformer.tasks import Copy, TextFiles
from flaxformer.training import Run, Training, start

MODEL = ModelConfig(
    vocabulary=256, layers=2, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=11), positions=Rotary()
)
LENGTH = 19
PAIRS = [
    ("the fox", " is quick"),
    ("", "a text without a context"[:LENGTH]),
    ("a context that is much too long ", "to fit"),
    ("x", "y"),
    ("é", "ü"),
]
TEXTS = ["short", "a text of more than nineteen bytes, in three windows", "exactly nineteen by"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("lm_eval")
    (root / "text.txt").write_text("the quick brown fox jumps over the lazy dog; " * 40)
    run = Run(
        model=MODEL,
        task=TextFiles(path=str(root / "text.txt"), length=LENGTH, batch_size=4, evaluation_batches=1),
        training=Training(steps=2),
    )
    list(train(run, Job(output=root / "job", samples=0), Stop()))
    return root


@pytest.fixture(scope="module")
def scorer(folder):
    params, run = from_folder(folder / "job")
    assert (run.task.length, run.model) == (LENGTH, MODEL)
    # Larger weights than after two steps, so that tokens differ clearly.
    return TextScorer(jax.tree.map(lambda x: 4 * x, params), run, batch_size=3)


APPLY = jax.jit(lambda params, tokens: model.apply(params, MODEL, tokens)[0])


def log_probabilities(params, tokens):
    logits = np.asarray(APPLY(params, jnp.asarray([tokens], jnp.int32)), np.float64)
    return (
        logits
        - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        - logits.max(-1, keepdims=True)
    )


@pytest.mark.long
def test_log_likelihoods_are_those_of_one_text_at_a_time(scorer):
    found = scorer.log_likelihoods(PAIRS)
    for (context, continuation), own in zip(PAIRS, found, strict=True):
        whole = (context + continuation).encode()
        count = len(whole) - len(context.rstrip().encode())
        tokens = [*(b"\n" if not context else b""), *whole][-(LENGTH + 1) :]
        logs = log_probabilities(scorer.params, tokens[:-1])
        places = range(len(tokens) - count, len(tokens))
        expected = sum(logs[t - 1, tokens[t]] for t in places)
        np.testing.assert_allclose(own.log_likelihood, expected, rtol=2e-5)
        assert own.is_greedy == all(logs[t - 1].argmax() == tokens[t] for t in places)


@pytest.mark.long
def test_the_most_likely_token_is_greedy_and_no_other_is(scorer):
    greedy = {text: int(log_probabilities(scorer.params, list(text.encode()))[-1].argmax()) for text in "abcdefghijkl"}
    pairs = [(text, chr(token)) for text, token in greedy.items() if token < 128]  # one byte in UTF-8
    assert pairs
    assert all(own.is_greedy for own in scorer.log_likelihoods(pairs))
    assert not any(own.is_greedy for own in scorer.log_likelihoods([(text, chr(ord(y) ^ 1)) for text, y in pairs]))


def test_rolling_windows_predict_each_token_once_with_the_longest_context(scorer):
    for text, found in zip(TEXTS, scorer.rolling_log_likelihoods(TEXTS), strict=True):
        tokens, total = list(text.encode()), 0.0
        whole = [*b"\n", *tokens]
        for first in range(0, len(tokens), LENGTH):
            last = min(first + LENGTH, len(tokens))
            begin = max(0, last - LENGTH)
            logs = log_probabilities(scorer.params, whole[begin:last])
            total += sum(logs[t - begin, tokens[t]] for t in range(first, last))
        np.testing.assert_allclose(found, total, rtol=2e-5)
    assert scorer.rolling_log_likelihoods([""]) == [0]


def test_few_shapes_are_compiled(scorer):
    before = scorer._score._cache_size()
    scorer.log_likelihoods([("c" * n, "y") for n in range(1, 40)])
    assert scorer._score._cache_size() <= max(before, 2)  # 16 and 19 tokens


@pytest.mark.slow
def test_continuations_are_those_of_generate_up_to_the_first_stop(scorer):
    contexts = ["the fox", "dog", "a context that is much too long for it"]
    found = scorer.continuations(contexts, {"max_gen_toks": 7})
    for context, text in zip(contexts, found, strict=True):
        prompt = np.frombuffer(context.encode()[-(LENGTH - 7) :], np.uint8)[None].astype(np.int32)
        alone = scorer.tokenizer.decode(generate(scorer.params, scorer.run.model, prompt, steps=7).tokens[0])
        assert text == alone
    stop = found[0][2]
    cut = scorer.continuations(contexts[:1], {"max_gen_toks": 7, "until": [stop, "never"]})[0]
    assert cut == found[0][: found[0].index(stop)]
    assert scorer.continuations(contexts[:1], {"max_gen_toks": 7, "until": stop})[0] == cut


@pytest.mark.slow
def test_samples_depend_on_the_seed_alone(scorer, folder):
    asked = {"max_gen_toks": 7, "do_sample": True, "temperature": 1.5}
    once, again = (scorer.continuations(["the"], asked) for _ in range(2))
    params, run = from_folder(folder / "job")
    other = TextScorer(params, run, batch_size=3, seed=1).continuations(["the"], asked)
    assert once == again != other
    assert scorer.continuations(["the"], {"max_gen_toks": 7, "temperature": 1.5}) == scorer.continuations(
        ["the"], {"max_gen_toks": 7}
    )


def test_mistakes_have_messages(scorer, folder):
    params, run = from_folder(folder / "job")
    bounded = run.replace(model=MODEL.replace(positions=LearnedPositions(max_length=19)))
    for make, message in (
        (lambda: TextScorer(params, run.replace(task=Copy())), "task is Copy; expected a task of text"),
        (lambda: TextScorer(params, bounded, length=20), "length is 20; expected at least 2 and at most max_length 19"),
        (lambda: TextScorer(params, run, prefix=""), "prefix is '', which has no tokens; expected a text"),
        (lambda: scorer.log_likelihoods([("x", "y" * 20)]), "a continuation has 20 tokens; expected at most length 19"),
    ):
        with pytest.raises(UserError) as error:
            make()
        assert message in str(error.value)


class Request(NamedTuple):
    """A request as lm-eval makes it, as far as the adapter reads it."""

    args: tuple


class Base:
    """The part of lm-eval's `LM` that the adapter relies on."""

    def __init__(self):
        self.initialised = True


@pytest.mark.slow
def test_the_methods_of_the_interface_give_results_in_the_order_of_the_requests(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", types.SimpleNamespace(LM=Base))
    params, run = from_folder(folder / "job")
    own = harness_model(params, run, batch_size=3)
    assert isinstance(own, Base)
    assert own.initialised
    assert own.tokenizer_name == "flaxformer-bytes"
    plain = TextScorer(params, run, batch_size=3)
    assert own.loglikelihood([Request(pair) for pair in PAIRS]) == [tuple(one) for one in plain.log_likelihoods(PAIRS)]
    assert own.loglikelihood_rolling([Request((text,)) for text in TEXTS]) == plain.rolling_log_likelihoods(TEXTS)
    settings = [{"max_gen_toks": n, "until": ["\n"]} for n in (3, 5, 3)]
    requests = [Request((text, given)) for text, given in zip(TEXTS, settings, strict=True)]
    expected = [plain.continuations([text], given)[0] for text, given in zip(TEXTS, settings, strict=True)]
    assert own.generate_until(requests) == expected


def test_without_the_library_a_message_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", None)
    with pytest.raises(UserError, match=r"pip install 'flaxformer\[lm-eval\]'"):
        harness_model(*from_folder(folder / "job"))


TASK = """
task: local_facts
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{context}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
target_delimiter: ""
metric_list: [{metric: acc}]
"""


@pytest.mark.slow
def test_the_library_itself_evaluates_a_local_task(folder, tmp_path):
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.tasks import TaskManager

    rows = [{"context": c, "choices": [" dog", " quick", " zz"], "answer": i % 3} for i, c in enumerate("abcdefg")]
    (tmp_path / "facts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "facts.yaml").write_text(TASK.replace("FILE", str(tmp_path / "facts.jsonl")))
    params, run = from_folder(folder / "job")
    own = harness_model(params, run, batch_size=3)
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    found = lm_eval.simple_evaluate(own, tasks=["local_facts"], task_manager=manager, bootstrap_iters=0)
    scores = [
        [one.log_likelihood for one in own.scorer.log_likelihoods([(r["context"], y) for y in r["choices"]])]
        for r in rows
    ]
    right = [np.argmax(score) == row["answer"] for score, row in zip(scores, rows, strict=True)]
    assert found["results"]["local_facts"]["acc,none"] == pytest.approx(np.mean(right))


def test_the_weights_of_a_folder_are_those_of_its_newest_step(folder):
    params, run = from_folder(folder / "job", step=2)
    state = jax.eval_shape(start, run)
    assert jax.tree.map(lambda x: x.shape, params) == jax.tree.map(lambda x: x.shape, state.params)
