"""`flaxformer catalog` lists, shows, and writes its page; a config may name every class of the catalog."""

import json
from pathlib import Path

import pytest

from flaxformer import Attention, Axis, Dense, ModelConfig, Run, StandardLibrary, Training
from flaxformer.catalog import GatedLinearAttention, ScalableSoftmax, import_named, mechanisms
from flaxformer.checkpoint import read_config, write_config
from flaxformer.cli import main
from flaxformer.core.overrides import override
from flaxformer.core.paths import as_kind, replace_at
from flaxformer.system.errors import UserError

RUN = Run(
    model=ModelConfig(attention=Attention(heads=8, bias=False)), task=StandardLibrary(), training=Training(steps=2)
)


def test_every_mechanism_is_listed_and_shown(capsys):
    assert main(["catalog", "--json"]) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["module"] for row in listed] == list(mechanisms())
    assert main(["catalog"]) == 0
    text = capsys.readouterr().out
    assert [name for name in mechanisms() if name not in text] == []
    assert main(["catalog", "ScalableSoftmax"]) == 0
    shown = capsys.readouterr().out
    assert "class ScalableSoftmax(Attention)" in shown
    assert "Measured gain: " in shown


@pytest.mark.parametrize("words", [["sclable_softmax"], ["--family", "atention"]])
def test_a_misspelt_name_is_one_message(capsys, words):
    assert main(["catalog", *words]) == 2
    assert "did you mean" in capsys.readouterr().err


def test_the_page_is_that_of_the_command(capsys):
    assert main(["catalog", "--markdown"]) == 0
    page = Path(__file__).parents[2] / "docs" / "catalog.md"
    assert page.read_text() == capsys.readouterr().out


def test_a_class_keeps_the_fields_that_both_have():
    expected = ScalableSoftmax(heads=8, bias=False)
    import_named(["model.attention=ScalableSoftmax"])
    assert as_kind(RUN.model.attention, ScalableSoftmax, "") == expected
    assert override(RUN, ["model.attention=ScalableSoftmax"]).model.attention == expected
    assert override(RUN, ["model.attention=ScalableSoftmax(heads=2)"]).model.attention == ScalableSoftmax(heads=2)
    gated = as_kind(RUN.model.attention, GatedLinearAttention, "")  # whose d_value cannot be None
    assert gated == GatedLinearAttention(heads=8)
    changes = {"model.attention": ScalableSoftmax, "model.attention.window": 3}
    assert replace_at(RUN, changes).model.attention == expected.replace(window=3)
    axis = Axis("model.attention", {"softmax": Attention, "scalable": ScalableSoftmax})
    assert axis.baseline_label(RUN) == "softmax"


def test_a_misspelt_class_of_the_catalog_has_its_name_in_the_message():
    import_named(["model.attention=TalkingHead(heads=2)"])
    with pytest.raises(UserError, match="did you mean 'TalkingHeads'"):
        override(RUN, ["model.attention=TalkingHead(heads=2)"])


def test_a_class_of_another_family_is_refused():
    with pytest.raises(UserError, match=r"ModelConfig.attention is Dense\(.*; expected"):
        replace_at(RUN, {"model.attention": Dense})


def test_a_folder_may_name_a_class_of_the_catalog(tmp_path):
    run = replace_at(RUN, {"model.attention": ScalableSoftmax})
    write_config(tmp_path, run)
    assert read_config(tmp_path) == run
