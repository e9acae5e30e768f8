"""`flaxformer check`: correct models pass every law, and each faulty component violates its law."""

import os
import subprocess
import sys
from typing import ClassVar

import jax
import pytest
from faulty_components import (
    BIDIRECTIONAL,
    FAULTS,
    TRAINING,
    BatchMixing,
    DeadTerm,
    DecayingSum,
    LeakingNorm,
    TokenShift,
    bidirectional,
    run_of,
    run_with,
    trained_with,
)

from flaxformer.cli import main
from flaxformer.components import (
    NO_NORM,
    POST,
    RES_POST_NORM,
    SANDWICH,
    Alibi,
    Attention,
    BatchNorm,
    Classifier,
    ConcatenatedIndex,
    DeepNorm,
    Gated,
    LanguageModel,
    LayerNorm,
    LayerScale,
    LearnedPositions,
    NoPositions,
    NormPlacement,
    Patches,
    RelativeBuckets,
    ReZero,
    RMSNorm,
    Rotary,
    Tokens,
)
from flaxformer.config import Block, ModelConfig
from flaxformer.laws import LAWS, check, distinct_models
from flaxformer.system.errors import UserError
from flaxformer.tasks import Copy, Digits
from flaxformer.training import Run, Training, ZLoss

DEFAULT = {
    "off-by-one causal mask",
    "wrong shape",
    "state wrong after a chunk",
    "padding times zero",
    "number times zero",
    "float16 overflow",
    "point that is not used",
    "another result if edited",
}
TRAINED_BY_DEFAULT = {"NumPy draws the data", "by_token reads other outputs", "optimizer numbers without effect"}


@pytest.fixture(autouse=True, scope="module")
def programs_are_dropped():
    """The laws compile many programs that no other test needs."""
    yield
    jax.clear_caches()


@pytest.mark.long
@pytest.mark.every(9)
@pytest.mark.parametrize(
    "fault",
    [pytest.param(name, marks=() if name in DEFAULT else pytest.mark.slow) for name in (*FAULTS, *BIDIRECTIONAL)],
)
def test_every_faulty_component_violates_its_law(fault):
    law, words, _ = (FAULTS | BIDIRECTIONAL)[fault]
    [result] = check(run_with(fault), [law])
    assert result.finding.is_violated, result
    assert words in result.finding.words


@pytest.mark.every(3, "long")
@pytest.mark.parametrize(
    "fault",
    [pytest.param(name, marks=() if name in TRAINED_BY_DEFAULT else pytest.mark.slow) for name in TRAINING],
)
def test_every_fault_of_training_violates_its_law(fault):
    law, words, _ = TRAINING[fault]
    [result] = check(trained_with(fault), [law])
    assert result.finding.is_violated, result
    assert words in result.finding.words


def test_loss_term_number_without_effect_is_reported():
    [result] = check(run_of().replace(loss_terms=(DeadTerm(),)), ["fields"])
    assert result.finding.words == "changing loss_terms.0.strength changes nothing"


SOUND = {
    "default": {},
    "post, rotary, rms, deep norm": {
        "residual": DeepNorm(), "norm": POST, "norm_kind": RMSNorm(), "positions": Rotary(),
    },
    "batch norm, learned positions": {"norm_kind": BatchNorm(), "positions": LearnedPositions(max_length=16)},
    "branch post, ALiBi, ReZero, window": {
        "norm": RES_POST_NORM, "positions": Alibi(), "residual": ReZero(), "attention": Attention(heads=2, window=256),
    },
    "sandwich, buckets, layer scale, grouped heads": {
        "norm": SANDWICH, "positions": RelativeBuckets(buckets=4, max_distance=5), "residual": LayerScale(),
        "attention": Attention(heads=2, key_value_heads=1, query_key_norm=RMSNorm(), logit_cap=5.0),
    },
    "no norm, index, ReZero, gated": {
        "norm": NO_NORM, "positions": ConcatenatedIndex(scale=0.1), "residual": ReZero(),
        "feed_forward": Gated(d_ff=10),
    },
    "pattern and embedding norm": {
        "pattern": (Block(attention=Attention(heads=2, window=3)), Block(attention=DecayingSum())),
        "norm": NormPlacement(pre=True, embedding=True, final=True), "dropout": 0.1,
        "head": LanguageModel(transform="gelu"),
    },
    "shared weights, no feed-forward": {"distinct_blocks": 1, "feed_forward": None, "positions": NoPositions()},
    "prefix, frozen pattern, parallel": {
        "mask_pattern": "prefix", "attention": Attention(heads=2, frozen_pattern=16), "parallel": True,
        "inputs": Tokens(lookup="one-hot", scale_exponent=0.5, std=0.3),
    },
    "no layers": {"layers": 0},
}  # fmt: skip


EXPENSIVE = {"compilation", "group", "devices", "checkpoints", "repetition"}
"""Laws that hardly depend on the options of the package; they are checked on the default model."""


def assert_sound(run, laws=tuple(name for name in LAWS if name not in EXPENSIVE)):
    results = {result.law: result.finding for result in check(run, laws)}
    assert list(results) == list(laws)
    assert not {name: one.words for name, one in results.items() if one.is_violated}


@pytest.mark.parametrize(
    "model",
    [pytest.param(name, marks=pytest.mark.slow if name == "default" else pytest.mark.exhaustive) for name in SOUND],
)
def test_correct_model_passes_every_law(model):
    assert_sound(run_of(**SOUND[model]), *([tuple(LAWS)] if model == "default" else []))


@pytest.mark.long
@pytest.mark.parametrize(
    "model", [name if name.startswith("pattern") else pytest.param(name, marks=pytest.mark.slow) for name in SOUND]
)
def test_edits_hold_for_correct_models(model):
    assert_sound(run_of(**SOUND[model]), ("edits",))


@pytest.mark.long
def test_zeros_at_queries_need_no_effect_where_each_token_attends_to_itself():
    assert_sound(run_of(attention=Attention(heads=2, window=1)), ("edits",))


@pytest.mark.slow
def test_default_model_passes_the_fast_laws():
    assert_sound(run_of(), ("padding", "batch", "tokens", "decoding", "weights", "fields"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("positions", [NoPositions(), Rotary()], ids=["no positions", "rotary"])
def test_correct_encoder_passes_every_law(positions):
    assert_sound(bidirectional(positions=positions).replace(loss_terms=(ZLoss(),)))


@pytest.mark.slow
def test_correct_image_classifier_passes_every_law():
    task = Digits(batch_size=4)
    inputs = Patches(height=8, width=8, size=4, class_token=True)
    model = ModelConfig(
        layers=1, d_model=12, attention=Attention(heads=2), inputs=inputs, mask_pattern="bidirectional",
        positions=LearnedPositions(max_length=inputs.count), head=Classifier(classes=10, pool="first"),
    )  # fmt: skip
    assert_sound(Run(model=model, task=task, training=Training(steps=2)))


@pytest.mark.slow
def test_correct_encoder_decoder_passes_every_law():
    task = Copy(symbols=5, length=5, batch_size=4, evaluation_batches=2, form="paired")
    model = ModelConfig(vocabulary=task.vocabulary, layers=2, d_model=12, attention=Attention(heads=2))
    assert_sound(Run(model=model.with_encoder(layers=1), task=task, training=Training(steps=2)))


def test_declared_dependence_of_a_norm_is_no_violation():
    found = {r.law: r.finding for r in check(run_of(norm_kind=LayerNorm(over="sequence")), ["causality", "tokens"])}
    assert {name: one.verdict for name, one in found.items()} == dict.fromkeys(found, "not applicable")
    assert "LayerNorm declares that it reads later tokens" in found["causality"].words


def test_exemption_is_reported_with_its_reason():
    class Exempt(BatchMixing):
        exempt_from: ClassVar = {"batch": "subtracts the mean of the batch"}

    [result] = check(run_of(feed_forward=Exempt(d_ff=10)), ["batch"])
    assert result.finding.verdict == "not applicable"
    assert "Exempt declares: subtracts the mean of the batch" in result.finding.words


def test_exemption_from_an_unknown_law_is_refused():
    class Mistyped(TokenShift):
        exempt_from: ClassVar = {"token": "reads the token before"}

    with pytest.raises(UserError, match=r"Mistyped.exempt_from names 'token'; did you mean 'tokens'"):
        list(check(run_of(feed_forward=Mistyped(d_ff=10)), ["order"]))


def test_an_unknown_law_is_refused():
    with pytest.raises(UserError, match="law is 'casality'; did you mean 'causality'"):
        list(check(run_of(), ["casality"]))


def test_models_that_differ_only_in_numbers_are_checked_once():
    runs = [
        ("a", run_of(dropout=0.1)),
        ("b", run_of(dropout=0.2)),
        ("c", run_of()),
        ("d", run_of(norm_kind=LeakingNorm())),
    ]
    assert [name for name, _ in distinct_models(runs)] == ["a", "c", "d"]


FILE = """
from flaxformer import Attention, Dense, ModelConfig
from flaxformer.nn.masks import Causal
from flaxformer.tasks import Copy
from flaxformer.training import Run, Training

class OffByOne(Attention):
{exemption}
    def apply(self, weights, x, context):
        return super().apply(weights, x, context.replace(mask=Causal({offset})))

run = Run(
    model=ModelConfig(vocabulary=6, layers=1, d_model=8, attention=OffByOne(heads=2), feed_forward=Dense(d_ff=11)),
    task=Copy(symbols=5, length=3, batch_size=2, evaluation_batches=2),
    training=Training(steps=2),
)
"""


def shown_by(capsys):
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_the_command_prints_a_table_and_exits_by_the_verdict(tmp_path, capsys):
    file = tmp_path / "own.py"
    command = ["check", str(file), "--laws", "order", "causality"]
    file.write_text(FILE.format(offset=0, exemption=""))
    assert main(command) == 0
    shown = shown_by(capsys)
    assert "causality ok" in shown
    assert "exempt_from" not in shown
    file.write_text(FILE.format(offset=1, exemption=""))
    assert main(command) == 1
    out = capsys.readouterr().out
    assert "causality violated" in " ".join(out.split())
    assert "2 laws, 1 violated" in out
    # The line that the command prints, as it stands, declares the exception.
    [line] = [line for line in out.splitlines() if line.strip().startswith("exempt_from = ")]
    file.write_text(FILE.format(offset=1, exemption=line))
    assert main(command) == 0
    assert "OffByOne declares: the reason" in shown_by(capsys)


@pytest.mark.slow
def test_the_command_tests_two_devices_on_any_processor(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(FILE.format(offset=0, exemption=""))
    command = [sys.executable, "-m", "flaxformer.cli", "check", str(file), "--laws", "devices"]
    environment = {
        name: value for name, value in os.environ.items() if name not in ("JAX_NUM_CPU_DEVICES", "XLA_FLAGS")
    }
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert "devices ok" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("x = 1\n", [], "defines no `study` and no `run`"),
        ("run = (\n", [], "line 1: '(' was never closed"),
        ("run = 1 / 0\n", [], "line 1: ZeroDivisionError"),
        ("run = 1\n", [], "expected `run = Run(...)`, found 1"),
        (FILE.format(offset=0, exemption=""), ["--laws", "casality"], "law is 'casality'; did you mean 'causality'?"),
    ],
)
def test_user_error_prints_one_line_and_exits_with_2(tmp_path, capsys, text, arguments, message):
    (tmp_path / "own.py").write_text(text)
    assert main(["check", str(tmp_path / "own.py"), *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1
