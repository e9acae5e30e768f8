"""Numbers, sentences and tables: as many digits as are known, over any magnitude, in any of the three forms."""

import dataclasses
import math
import re
import unicodedata
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.mathtext import MathTextParser
from study.tiny import LOWER, NORM, fill, tiny

import flaxformer
from flaxformer.report import phrasing, tables, tex
from flaxformer.report.numbers import claimed, duration, exact, number, numbers
from flaxformer.report.tables import Table
from flaxformer.runner.probes import run_probe
from flaxformer.store.records import write_table
from flaxformer.store.store import Store
from flaxformer.study import Claim, Probe
from flaxformer.study.analysis import analyse

QUANTITY = {"quantity": "x"}


def value(text):
    return float(text.replace(",", "").replace("−", "-"))


@pytest.mark.parametrize("size", [1e-12, 4.9e-7, 0.002, 0.31, 4.007, 37.0, 12345.6, 1.2e9])
@pytest.mark.parametrize("relative", [1e-4, 0.013, 0.5, 7.0])
def test_a_number_is_printed_to_the_second_digit_of_its_uncertainty(size, relative):
    spread = size * relative
    shown = numbers((size, size - spread, size + spread), spread)
    for text, true in zip(shown, (size, size - spread, size + spread), strict=True):
        assert abs(value(text) - true) <= max(0.05 * spread, 0.5 * (spread >= 10))
    assert len({len(text.partition("e")[0].partition(".")[2]) for text in shown if value(text)}) == 1


@pytest.mark.parametrize("true", [*np.random.default_rng(3).normal(0, 10.0 ** np.arange(-15, 15)), 0.0, 1.0, -0.5])
def test_a_number_without_uncertainty_keeps_its_digits(true):
    assert value(number(true)) == pytest.approx(true, rel=5.1e-4)
    assert value(exact(true)) == pytest.approx(true, rel=5.1e-6)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (number(0.0), "0"),
        (number(None), "–"),
        (number(math.nan, 0.1), "–"),
        (number(math.inf), "∞"),
        (number(-0.0004, 0.01), "0.000"),
        (number(0.25, 0.013, "+"), "+0.250"),
        (number(4.9e-7, 1e-8, "+"), "+4.90e-7"),
        (exact(1835008.0), "1,835,008"),
        (exact(1e-6), "1e-6"),
        (exact(0.1 + 0.2), "0.3"),
        (claimed(0.1), "0.1"),
        (claimed(1e9), "1,000,000,000"),
        (duration(3.14), "3.1 s"),
        (duration(59.7), "1 min 00 s"),
        (duration(7620), "2 h 07 min"),
    ],
)
def test_numbers_as_a_reader_wants_them(shown, text):
    assert shown == text


def measured(tmp_path, claims, values, exact=False, unit=""):
    """The claims of a probe that measures the quantity x."""
    probe = Probe(
        name="p", question="?", measure=lambda seed: {"x": values[seed]}, seeds=range(len(values)), claims=claims,
        exact=exact, unit=unit,
    )  # fmt: skip
    list(run_probe(probe, Store(tmp_path)))
    return analyse(Store(tmp_path))


def test_a_claim_against_a_number_tells_the_value_and_what_is_claimed_of_it(tmp_path):
    values = [3.9, 4.1, 4.0, 4.05, 3.95]
    claims = [
        Claim("one", equal=QUANTITY, to=1, within=0.1),
        Claim("below", lower=QUANTITY, than=5, by=0.5),
        Claim("above", higher=QUANTITY, than=3),
    ]
    found = measured(tmp_path, claims, values).claims
    mean, half = np.mean(values), 2.7764451 * np.std(values, ddof=1) / math.sqrt(5)  # t of 4 degrees of freedom
    interval = f"{mean:.3f} [{mean - half:.3f}, {mean + half:.3f}]"
    assert [phrasing.effect(claim) for claim in found] == [interval] * 3
    assert [phrasing.claimed(claim) for claim in found] == ["1 ± 0.1", "below 4.5", "above 3"]
    assert [claim.judgement.verdict for claim in found] == ["refuted", "supported", "supported"]
    assert phrasing.finding(found[0]) == f"{interval}, claimed 1 ± 0.1; p < 0.0001 after Holm"
    for claim in found:
        np.testing.assert_allclose(phrasing.values(claim), values, rtol=1e-12)


@pytest.mark.parametrize("shift", [-3.0, 0.0, 3.0])
def test_the_region_of_a_claim_holds_its_interval_where_it_is_supported(tmp_path, shift):
    claims = [
        Claim("equal", equal=QUANTITY, to=1, within=0.5),
        Claim("below", lower=QUANTITY, than=1),
        Claim("above", higher=QUANTITY, than=1, by=0.2),
    ]
    for claim in measured(tmp_path, claims, [1.02 + shift, 0.95 + shift, 1.03 + shift, 0.99 + shift]).claims:
        (low, high), one = phrasing.region(claim), phrasing.measured(claim)
        inside = low <= one.low and one.high <= high
        outside = one.high < low or one.low > high
        verdict = {(True, False): "supported", (False, True): "refuted", (False, False): "inconclusive"}
        assert claim.judgement.verdict == verdict[inside, outside]


def test_what_is_exact_is_told_without_an_interval_or_a_test(tmp_path):
    analysis = measured(tmp_path, [Claim("none", equal=QUANTITY, to=0, within=1e-6)], [0.0], exact=True, unit="bytes")
    assert phrasing.finding(analysis.claims[0]) == "exactly 0 bytes, claimed 0 ± 1e-6"
    assert phrasing.verdict(analysis) == "Supported: none (exactly 0 bytes, claimed 0 ± 1e-6)."
    assert tables.quantities(analysis).rows == [["x", "0"]]
    assert list(tables.quantities(analysis).header) == ["quantity", "value (bytes)"]
    rounded = measured(tmp_path / "third", [Claim("a third", higher=QUANTITY, than=0)], [1 / 3], exact=True)
    assert phrasing.effect(rounded.claims[0]) == "0.333333"


def losses(trial):
    return 3.0 - 0.2 * (trial.arm.labels["rate"] == "high") + 0.01 * (trial.seed % 3)


def test_the_answer_is_one_sentence_that_counts_the_claims_and_names_those_that_fail(tmp_path):
    wrong = Claim("low is better", lower={"rate": "low"}, than={"rate": "high"})
    alike = Claim("norms are alike.", equal={"norm": "pre"}, to={"norm": "post"}, within=0.5)

    def answer(name, claims):
        return phrasing.verdict(analyse(fill(tmp_path / name, tiny(claims=claims), losses)))

    assert answer("three", [LOWER, wrong, alike]) == "2 of 3 claims are supported; refuted: low is better."
    assert answer("two", [LOWER, alike]) == "All 2 claims are supported."
    assert answer("none", [wrong, dataclasses.replace(wrong, text="so it is")]) == (
        "None of 2 claims is supported; refuted: low is better, and so it is."
    )
    assert re.fullmatch(
        r"Supported: high is better than low \(\+0\.2.* nats, claimed above 0; 3 of 3 seeds agree; p .* after Holm\)\.",
        answer("one", [LOWER]),
    )


def test_a_metric_without_a_good_direction_is_lower_or_higher(tmp_path):
    study = tiny(
        axes=(NORM,),
        claims=(),
        metric="entropy",
        measure=lambda params, run: {"entropy": jnp.float32(0)},
        metric_unit="bits",
    )
    analysis = analyse(renamed(fill(tmp_path, study, lambda trial: 1.0)))
    [said] = phrasing.exploratory_findings(analysis)
    assert said.startswith("norm post is higher than pre: +0.50")
    assert phrasing.metric(analysis.study) == "entropy (bits)"
    loss = analyse(
        fill(tmp_path / "loss", tiny(axes=(NORM,), claims=()), lambda trial: seen(trial.seed, trial.arm.name))
    )
    assert "norm post is worse than pre" in phrasing.exploratory_findings(loss)[0]


def seen(seed, arm):
    return 1.0 + 0.5 * ("post" in arm) + 0.001 * seed * ("post" in arm)


def renamed(store):
    """The rows of a filled folder with a metric of the study's own."""
    [rows] = store.groups.glob("*.parquet")
    found = store.rows().values()
    write_table(
        rows,
        [
            row | {"entropy": seen(row["seed"], row["trial"]), "initial_entropy": 0.0, "entropy_curve": [0.0, 1.0]}
            for row in found
        ],
    )
    return store


ODD = Table(
    "T",
    ["what | it", "95 %"],
    [
        ["d·σ² at σ = ½, 10⁻⁷ | \\a_b{c} ~ #1 & $2 ^ “naïve” – −∞ <x>", "-0.5 [-0.7, -0.3]"],
        ["q kᵀ / √d → x₁₂ ≤ Ω ∈ Δ", "1e-7 ± 3"],
        ["Łódź, 中, é, ½ of 100 %, $x$" + " long" * 10, "12 345"],
    ],
    1,
)


def formulas(text):
    return re.findall(r"(?<!\\)\$(.*?)(?<!\\)\$", text)


def test_latex_is_ascii_with_formulas_that_parse_and_columns_that_match():
    text = tables.latex(ODD)
    assert text.isascii()
    assert re.search(r"\\begin\{tabular\}\{p\{0\.\d+\\linewidth\}r\}", text)
    lines = text.splitlines()
    assert [lines[i] for i in (1, 3, -2, -1)] == [r"\toprule", r"\midrule", r"\bottomrule", r"\end{tabular}"]
    for line in (lines[2], *lines[4:-2]):
        assert len(re.findall(r"(?<!\\)&", line)) == 1
        assert line.endswith(r" \\")
        bare = re.sub(r"(?<!\\)\$.*?(?<!\\)\$|\\[a-zA-Z]+\{\}|\\.", "", line)
        assert not set(bare) & set("$#%^_~\\"), bare
        assert line.count("{") == line.count("}")
    parser = MathTextParser("path")
    for formula in formulas(text):
        parser.parse(f"${formula}$".replace(r"\surd", r"\sqrt{x}"))
    assert "d$\\cdot\\sigma^{2}$ at $\\sigma$ = $\\frac{1}{2}$, 10$^{-7}$" in text
    assert "[$-$0.7, $-$0.3]" not in text.replace("$-$0.5 [$-$0.7, $-$0.3]", "")
    assert "[U+4E2D]" in text
    assert tex.text("5 $σ → 1") == r"5 \$$\sigma$ $\to$ 1"


def test_every_character_of_the_experiments_and_of_the_engine_has_a_form_in_latex():
    root = Path(flaxformer.__file__).parent
    files = [*root.glob("study/*.py"), *root.glob("claims/*.py"), *root.parent.glob("experiments/**/*.py")]
    used = {letter for file in files if file.name != "tex.py" for letter in file.read_text() if not letter.isascii()}
    assert "σ" in used
    assert {letter: tex.text(letter) for letter in used if "U+" in tex.text(letter)} == {}
    assert all(tex.text(letter).isascii() for letter in used)


def test_no_two_letters_that_look_different_become_the_same():
    letters = [chr(i) for i in (*range(0x20, 0x250), *range(0x391, 0x3CA)) if chr(i).isprintable()]
    spelled = {}
    for letter in letters:
        spelled.setdefault(tex.text(letter), []).append(letter)
    same = [found for found in spelled.values() if len(found) > 1]
    alike = {unicodedata.normalize("NFKC", letter) for found in same for letter in found}
    assert all(len(found) <= 3 for found in same), same
    assert not alike & set("aeiouxyzσμ") - set("aoμ")


def test_markdown_has_as_many_trials_in_every_line():
    lines = tables.markdown(ODD).splitlines()
    assert lines[1] == "| --- | ---: |"
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {3}


def test_the_tables_of_a_study_say_its_numbers(tmp_path):
    analysis = analyse(fill(tmp_path, tiny(seeds=range(4)), losses))
    arms = tables.arms(analysis)
    assert list(arms.header[:3]) == ["norm", "rate", "validation loss (nats)"]
    for arm, row in zip(analysis.arms, arms.rows, strict=True):
        assert row[:2] == list(arm.labels.values())
        assert value(row[2]) == pytest.approx(np.mean(arm.scores), abs=6e-4)
        assert value(row[4]) == pytest.approx(np.std(arm.scores, ddof=1), abs=6e-4)
    assert [row[1] for row in tables.claims(analysis).rows] == [c.judgement.verdict for c in analysis.claims]
    assert {table.title for table in tables.of(analysis)} >= {"Arms", "Claims"}
    document, paper = tables.document(analysis), tables.paper(analysis)
    assert document.startswith("# Does it run?\n")
    assert "It is tiny." in document
    assert paper.count(r"\begin{tabular}") == 2
    assert paper.isascii()
