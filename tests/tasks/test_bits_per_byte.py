"""Bits per byte of text: equal to the definition, the same for equal text whatever its tokens, and refused else."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ledger.ledgers import ledger
from study.tiny import tiny

from flaxformer.cli import main
from flaxformer.components import Attention, Dense
from flaxformer.config import ModelConfig
from flaxformer.data import prepare
from flaxformer.data.tokenizer import train_bpe
from flaxformer.ledger.improve import OpenLedger
from flaxformer.model import init
from flaxformer.runner.execution import Execution
from flaxformer.study import Claim, Points
from flaxformer.study.evaluation_data import data_limits_of, evaluation_data
from flaxformer.study.metrics import metrics_of, named_goal, unit_of
from flaxformer.system.errors import UserError
from flaxformer.tasks import Domain, EvaluationSet, MaskedTokens, Mixture, TextFiles, TokenFiles
from flaxformer.training import AdamW, Run, Training
from flaxformer.training.compiled_run import CompiledRun
from flaxformer.training.device_group import DeviceGroup
from flaxformer.training.evaluation import evaluate, evaluate_sets

TEXT = "".join(f"naïve café № {i % 17}: the quick brown fox, {i * 7919 % 1000}\n" for i in range(400))
MODEL = ModelConfig(vocabulary=300, layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with a text, two tokenizers of its bytes, and one that loses capitals."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "text.txt").write_text(TEXT)
    for size in (270, 300):
        (folder / f"{size}.json").write_bytes(train_bpe([TEXT], size))
    lossy = json.loads(train_bpe([TEXT.lower()], 300)) | {"normalizer": {"type": "Lowercase"}}
    (folder / "lossy.json").write_text(json.dumps(lossy))
    (folder / "capitals.txt").write_text(TEXT.title())
    return folder


def text_task(folder, tokenizer=None, **changes):
    path = None if tokenizer is None else str(folder / f"{tokenizer}.json")
    fields = {"path": str(folder / "text.txt"), "length": 16, "batch_size": 2, "evaluation_batches": 3}
    return TextFiles(**(fields | {"tokenizer": path, "bits_per_byte": True} | changes))


def run_of(task, **changes):
    return Run(model=MODEL, task=task, optimizer=AdamW(), training=Training(steps=2), **changes)


def scores(run, params=None):
    params = init(jax.random.key(0), run.model) if params is None else params
    return {name: float(x) for name, x in evaluate(params, run, run.task.load()).items()}


@pytest.mark.parametrize("tokenizer", [None, 270, 300])
def test_a_model_that_knows_nothing_needs_the_bits_of_a_token_for_each(folder, tokenizer):
    run = run_of(text_task(folder, tokenizer))
    zeros = jax.tree.map(jnp.zeros_like, init(jax.random.key(0), run.model))
    text = TEXT.encode()[-run.task.corpus().validation.size :]
    tokens = run.task.tokens()[1].size
    expected = math.log2(300) * tokens / len(text)
    assert scores(run, zeros)["validation_bits_per_byte"] == pytest.approx(expected, rel=1e-6)
    assert (tokens == len(text)) == (tokenizer is None)


def test_prepared_tokens_give_the_bits_of_their_text(folder, tmp_path):
    prepare(folder / "text.txt", tmp_path / "tokens", tokenizer=str(folder / "300.json"))
    prepared = TokenFiles(
        path=str(tmp_path / "tokens"), length=16, batch_size=2, evaluation_batches=3, bits_per_byte=True
    )
    task = text_task(folder, 300)
    expected, actual = scores(run_of(task)), scores(run_of(prepared))
    assert actual["validation_bits_per_byte"] == expected["validation_bits_per_byte"]
    assert prepared.evaluation_text() == task.evaluation_text() == text_task(folder, 270).evaluation_text()
    assert prepared.evaluation_text() != task.replace(length=15).evaluation_text()
    assert prepared.evaluation_text() != task.replace(evaluation_batches=4).evaluation_text()


def test_an_end_token_costs_bits_and_has_no_bytes(folder, tmp_path):
    documents = tmp_path / "documents"
    documents.mkdir()
    for i in range(60):
        (documents / f"{i}.txt").write_text(chr(97 + i % 26) * (3 + i % 11))
    description = prepare(documents, tmp_path / "tokens", end=True)
    task = TokenFiles(path=str(tmp_path / "tokens"), length=8, bits_per_byte=True)
    text, count = description["texts"]["validation"]["bytes"], description["documents"]["validation"]
    assert task.bits_per_nat == pytest.approx((text + count) / text / math.log(2))


def test_parts_named_sets_and_tests_have_their_own_bits(folder):
    tasks = {"whole_text": text_task(folder, 300), "tenths": text_task(folder, 300, validation_tenths=3)}
    domains = tuple(Domain(name=name, task=task) for name, task in tasks.items())
    mixture = Mixture(domains=domains, batch_size=2, evaluation_batches=3)
    run = run_of(mixture, evaluations=(EvaluationSet(name="other", task=text_task(folder, 300)),))
    assert "other_bits_per_byte" in metrics_of(run)
    actual = scores(run_of(mixture))
    for domain, task in mixture.evaluation_parts().items():
        alone = scores(run_of(task))["validation_bits_per_byte"]
        assert actual[f"{domain}_bits_per_byte"] == pytest.approx(alone, rel=1e-5)
    assert "validation_bits_per_byte" not in actual
    named = run.evaluations[0].load()
    sums = {"loss": (jnp.float32(6), jnp.float32(2))}
    examples = (jnp.array([2.0, 4.0]), jnp.ones(2))
    factor = text_task(folder, 300).bits_per_nat
    np.testing.assert_allclose(named.scores(sums, examples)["bits_per_byte"], 3 * factor, rtol=1e-6)
    loss_error = named.scores(sums, examples)["loss_se"]
    np.testing.assert_allclose(named.scores(sums, examples)["bits_per_byte_se"], loss_error * factor, rtol=1e-6)


@pytest.mark.parametrize("is_main_in_bits", [True, False])
def test_named_sets_of_the_shape_of_the_task_have_their_own_bits(folder, is_main_in_bits):
    tasks = {
        "same": text_task(folder, 300),
        "other": text_task(folder, 270),
        "nats": text_task(folder, 270, bits_per_byte=False),
    }
    sets = tuple(EvaluationSet(name=name, task=task) for name, task in tasks.items())
    run = run_of(text_task(folder, 300, bits_per_byte=is_main_in_bits), evaluations=sets)
    arrays = jax.tree.map(jnp.asarray, run)
    compiled = CompiledRun(run, DeviceGroup.of(None))
    state = compiled.start(arrays)
    actual, expected = compiled.evaluate(state, arrays), evaluate_sets(state.params, arrays, sets)
    assert {name: actual[name] for name in expected if not name.endswith("_se")} == pytest.approx(
        {name: value for name, value in expected.items() if not name.endswith("_se")}, rel=1e-5
    )
    assert "nats_bits_per_byte" not in actual


def test_metrics_have_a_goal_and_a_unit(folder):
    run = run_of(text_task(folder, 300))
    for metric in ("validation_bits_per_byte", "test_bits_per_byte"):
        assert metric in metrics_of(run)
        assert (named_goal(metric, run), unit_of(metric, run)) == ("lower", "bits per byte")
    assert "validation_bits_per_byte" not in metrics_of(run_of(text_task(folder, 300, bits_per_byte=False)))


def test_a_tokenizer_that_loses_characters_is_refused(folder):
    task = text_task(folder, "lossy", path=str(folder / "capitals.txt"))
    with pytest.raises(UserError, match="does not restore the validation text"):
        scores(run_of(task))
    assert "validation_loss" in scores(run_of(task.replace(bits_per_byte=False)))


def study_of(folder, metric):
    task = text_task(folder, 270)
    points = {str(size): {"task.tokenizer": str(folder / f"{size}.json")} for size in (270, 300)}
    claim = Claim("more tokens are better", lower={"tokens": "300"}, than={"tokens": "270"})
    return tiny(baseline=run_of(task), axes=[Points("tokens", points)], claims=[claim], metric=metric)


def test_arms_with_different_tokens_share_their_data_by_bits_alone(folder):
    by_loss = " ".join(data_limits_of(study_of(folder, "validation_loss")))
    assert "evaluation data differ along tokens" in by_loss
    assert "compares arms that are evaluated on different data" in by_loss
    by_bits = study_of(folder, "validation_bits_per_byte")
    assert "different data" not in " ".join(data_limits_of(by_bits))
    assert by_bits.goal == "lower"


@pytest.mark.long
def test_a_study_is_judged_in_bits(folder, tmp_path, capsys):
    file = tmp_path / "tokens.py"
    file.write_text(
        "from flaxformer import AdamW, Attention, Claim, Dense, ModelConfig, Points, Run, Study, TextFiles, Training\n"
        f"FOLDER = {str(folder)!r}\n"
        "study = Study(\n"
        "    name='tokens', question='?', seeds=range(3), metric='test_bits_per_byte',\n"
        "    baseline=Run(\n"
        "        model=ModelConfig(vocabulary=300, layers=1, d_model=8, attention=Attention(heads=2),\n"
        "                          feed_forward=Dense(d_ff=8)),\n"
        "        task=TextFiles(path=f'{FOLDER}/text.txt', length=16, batch_size=2, evaluation_batches=3,\n"
        "                       bits_per_byte=True),\n"
        "        optimizer=AdamW(), training=Training(steps=2)),\n"
        "    axes=[Points('tokens', {'bytes': {}, 'bpe': {'task.tokenizer': f'{FOLDER}/300.json'}})],\n"
        "    claims=[Claim('longer tokens are better', lower={'tokens': 'bpe'}, than={'tokens': 'bytes'})],\n"
        ")\n"
    )
    assert main(["run", str(file), "--output", str(tmp_path / "out")]) == 0
    assert "bits per byte" in capsys.readouterr().out.replace("\n", " ")


def ledger_of(folder, root, metric):
    opened = OpenLedger(ledger(start=run_of(text_task(folder, 270)), metric=metric), root, Execution())
    opened.begin()
    return opened


def test_a_ledger_in_bits_takes_another_tokenizer_and_no_other_windows(folder, tmp_path):
    opened, change = ledger_of(folder, tmp_path, "validation_bits_per_byte"), f"task.tokenizer={folder / '300.json'}"
    with pytest.raises(UserError, match="evaluated on other examples"):
        list(opened.propose(["task.evaluation_batches=2"], None, "less data"))
    list(opened.propose([change], None, "longer tokens"))
    assert [attempt.entry.changes for attempt in opened.results().attempts] == [(change,)]


def test_a_ledger_in_nats_refuses_another_tokenizer(folder, tmp_path):
    opened = ledger_of(folder, tmp_path, "validation_loss")
    with pytest.raises(UserError, match="bits_per_byte compares tokenizers"):
        list(opened.propose([f"task.tokenizer={folder / '300.json'}"], None, "longer tokens"))


def test_a_number_of_the_user_may_have_the_name(folder):
    """Its data are those of the task, whatever it counts."""
    study = study_of(folder, "validation_loss")
    measured = dataclasses.replace(study, measure=lambda params, run: {"my_bits_per_byte": 1.0}, goal="lower")
    data = evaluation_data(dataclasses.replace(measured, metric="my_bits_per_byte"))
    assert data == evaluation_data(study)
    assert len(data) == 2


def test_a_corrupted_text_has_no_bits(folder):
    with pytest.raises(UserError, match=r"text.bits_per_byte is True"):
        MaskedTokens(text=TextFiles(path=str(folder / "text.txt"), bits_per_byte=True))
