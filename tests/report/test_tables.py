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
from flaxformer.analysis.analysis import analyse
from flaxformer.analysis.sweep import Optimum
from flaxformer.report import markdown, phrasing, tables, tex, verdicts
from flaxformer.report.document import document
from flaxformer.report.numbers import exact, number, numbers, round_digits
from flaxformer.report.table import EVERYWHERE, ItemTable, Table, words
from flaxformer.report.table import number as number_column
from flaxformer.runner.probes import run_probe
from flaxformer.store.records import write_table
from flaxformer.store.store import Store
from flaxformer.study import Axis, Claim, Probe
from flaxformer.system.wording import count_of, duration, signed

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
        (exact(0.1), "0.1"),
        (round_digits(0.0123456), "0.0123"),
        (round_digits(3e-4), "0.0003"),
        (round_digits(3e-5), "3e-5"),
        (exact(1e9), "1,000,000,000"),
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


def test_a_claim_against_a_number_prints_the_value_and_the_claim(tmp_path):
    values = [3.9, 4.1, 4.0, 4.05, 3.95]
    claims = [
        Claim("one", equal=QUANTITY, to=1, within=0.1),
        Claim("below", lower=QUANTITY, than=5, by=0.5),
        Claim("above", higher=QUANTITY, than=3),
    ]
    found = measured(tmp_path, claims, values).claims
    mean, half = np.mean(values), 2.7764451 * np.std(values, ddof=1) / math.sqrt(5)  # t of 4 degrees of freedom
    interval = f"{mean:.3f} [{mean - half:.3f}, {mean + half:.3f}]"
    narrow = 2.1318468 / 2.7764451 * half  # an equality is tested by its 90 % interval
    tested = f"{mean:.3f} [{mean - narrow:.3f}, {mean + narrow:.3f}] (90 %)"
    assert [phrasing.effect(claim) for claim in found] == [tested, interval, interval]
    assert [phrasing.claim_text(claim) for claim in found] == ["1 ± 0.1", "below 4.5", "above 3"]
    assert [claim.judgement.verdict for claim in found] == ["refuted", "supported", "supported"]
    assert phrasing.finding(found[0]) == f"{tested}, claimed 1 ± 0.1; holds at 0 of 5 seeds; p < 0.0001 after Holm"
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
        (low, high), one = phrasing.region(claim), phrasing.measured_effect(claim)
        inside = low <= one.low and one.high <= high
        outside = one.high < low or one.low > high
        verdict = {(True, False): "supported", (False, True): "refuted", (False, False): "inconclusive"}
        assert claim.judgement.verdict == verdict[inside, outside]


def test_exact_values_have_no_interval_and_no_test(tmp_path):
    analysis = measured(tmp_path, [Claim("none", equal=QUANTITY, to=0, within=1e-6)], [0.0], exact=True, unit="bytes")
    assert phrasing.finding(analysis.claims[0]) == "exactly 0 bytes, claimed 0 ± 1e-6"
    assert verdicts.verdict(analysis) == "Supported: none (exactly 0 bytes, claimed 0 ± 1e-6)."
    assert tables.quantities(analysis).in_form("page").rows == [["x", "0"]]
    assert list(tables.quantities(analysis).in_form("page").header) == ["quantity", "value (bytes)"]
    rounded = measured(tmp_path / "third", [Claim("a third", higher=QUANTITY, than=0)], [1 / 3], exact=True)
    assert phrasing.effect(rounded.claims[0]) == "0.333333"


def test_a_difference_of_zero_holds_at_no_seed_and_has_no_test(tmp_path):
    analysis = analyse(fill(tmp_path, tiny(claims=[LOWER]), lambda trial: 2.0 + trial.seed))
    [claim] = analysis.claims
    expected = "exactly 0 nats, claimed above 0; holds at 0 of 3 seeds; no test, as all differences are equal"
    assert phrasing.finding(claim) == expected
    assert claim.judgement.verdict == "inconclusive"
    assert tables.claims(analysis).in_form("page").rows[0][4:] == ["before its data", "0 of 3", "–", "–"]


def test_an_exact_number_at_the_bound_refutes_the_claim_that_it_is_beyond(tmp_path):
    claims = [Claim("above", higher=QUANTITY, than=0), Claim("below", lower=QUANTITY, than=0)]
    analysis = measured(tmp_path, claims, [0.0], exact=True)
    assert [claim.judgement.verdict for claim in analysis.claims] == ["refuted", "refuted"]
    assert phrasing.finding(analysis.claims[0]) == "exactly 0, claimed above 0"


def test_nouns_are_in_the_plural_where_they_are_many():
    found = [count_of(n, noun) for n, noun in ((1, "run"), (2, "run"), (0, "launch"), (1200, "quantity"))]
    assert found == ["1 run", "2 runs", "0 launches", "1,200 quantities"]


def rates(tmp_path, **changes):
    """A finished sweep whose best rate is 1e-3, with some noise."""
    axis = Axis("optimizer.learning_rate", {f"{10.0**-n:g}": 10.0**-n for n in (1, 2, 3, 4)}, name="rate")
    random = np.random.default_rng(0)

    def loss(trial):
        return 2 + 0.1 * np.log(trial.run.optimizer.learning_rate / 1e-3) ** 2 + 0.01 * random.normal()

    return analyse(fill(tmp_path, tiny(**{"axes": (NORM, axis), "claims": (), "seeds": range(4)} | changes), loss))


def test_a_sweep_without_claims_is_answered_by_its_best_values(tmp_path):
    analysis = rates(tmp_path)
    number = r"\d\.\d+ \[\d\.\d+, \d\.\d+\]"
    assert re.fullmatch(
        rf"Best rate: 0\.001 with norm pre \(validation loss {number} nats\), 0\.001 with norm post \(.*\)\.",
        verdicts.verdict(analysis),
    )
    [pre, _] = phrasing.sweep_findings(analysis)
    interval = r"(1e-3|0\.001\d*|9\.\d+e-4) \[[^,]+, [^,]+\]"
    assert re.fullmatch(
        rf"norm pre: best rate 0\.001 of 4 values, optimum {interval}; validation loss {number} nats", pre
    )
    table = tables.sweep(analysis, 0).in_form("page")
    assert list(table.header[:3]) == ["norm", "best rate", "optimum [95 %]"]
    assert [row[:2] for row in table.rows] == [["pre", "0.001"], ["post", "0.001"]]
    assert pre in markdown.render(document(analysis))
    assert "best rate &" in tex.render(document(analysis))
    assert not [one for one in analysis.explorations if one.axis == "rate"]


def test_a_sweep_of_many_arms_is_answered_by_the_range_of_its_best_values(tmp_path):
    widths = Axis("model.attention.scale_exponent", {str(n): n / 10 for n in range(1, 6)}, name="scale")
    analysis = rates(tmp_path, axes=(widths,))
    assert verdicts.verdict(analysis).startswith("Best scale: 0.")
    many = dataclasses.replace(analysis.sweeps[0], lines=[analysis.sweeps[0].lines[0]] * 5)
    answer = verdicts.verdict(dataclasses.replace(analysis, sweeps=[many]))
    assert re.fullmatch(r"Best scale: 0\.\d to 0\.\d in 5 arms; the table has the value of each\.", answer)


def test_an_optimum_has_the_bounds_that_the_data_give(tmp_path):
    [line, _] = rates(tmp_path).sweeps[0].lines
    ends = [(1e-3, 5e-4, 2e-3), (1e-3, 0.0, 2e-3), (1e-3, 5e-4, math.inf), (1e-3, 0.0, math.inf), (10.0, 0.5, 99.0)]
    expected = ["0.001 [0.0005, 0.002]", "below 0.002", "above 0.0005", "not determined", "above 0.5"]
    for (value, low, high), text in zip(ends, expected, strict=True):
        optimum = Optimum(value, low, high, 4, None)
        assert phrasing.optimum(dataclasses.replace(line, optimum=optimum)) == text
    one_seed = Optimum(1e-3, math.nan, math.nan, 4, None)
    assert phrasing.optimum(dataclasses.replace(line, optimum=one_seed)) == "0.001 (one seed, no interval)"
    assert phrasing.optimum(dataclasses.replace(line, optimum=None)) == "–"


def losses(trial):
    """Differences of the rates around 0.2, and of the norms around 0."""
    labels, centred = trial.arm.labels, trial.seed - 2.5
    return 3.0 - (0.2 + 0.005 * centred) * (labels["rate"] == "high") + 0.003 * centred * (labels["norm"] == "post")


def test_the_answer_is_one_sentence_that_counts_the_claims_and_names_those_that_fail(tmp_path):
    wrong = Claim("low is better", lower={"rate": "low"}, than={"rate": "high"})
    alike = Claim("norms are alike.", equal={"norm": "pre"}, to={"norm": "post"}, within=0.5)

    def answer(name, claims):
        return verdicts.verdict(analyse(fill(tmp_path / name, tiny(claims=claims, seeds=range(6)), losses)))

    assert answer("three", [LOWER, wrong, alike]) == "2 of 3 claims are supported; refuted: low is better."
    assert answer("two", [LOWER, alike]) == "All 2 claims are supported."
    assert answer("none", [wrong, dataclasses.replace(wrong, text="so it is")]) == (
        "None of 2 claims is supported; refuted: low is better, and so it is."
    )
    assert re.fullmatch(
        r"Supported: high is better than low \(\+0\.2.* nats, claimed above 0; holds at 6 of 6 seeds; .*\)\.",
        answer("one", [LOWER]),
    )


def test_a_metric_without_a_good_direction_is_lower_or_higher(tmp_path):
    study = tiny(
        axes=(NORM,),
        claims=(),
        metric="entropy",
        measure=lambda params, run: {"entropy": jnp.float32(0)},
        metric_unit="bits",
        seeds=range(6),
    )
    analysis = analyse(renamed(fill(tmp_path, study, lambda trial: 1.0)))
    [said] = phrasing.exploratory_findings(analysis)
    assert said.startswith("norm post is higher than pre: +0.50")
    assert phrasing.metric(analysis.study) == "entropy (bits)"
    loss = analyse(
        fill(
            tmp_path / "loss",
            tiny(axes=(NORM,), claims=(), seeds=range(6)),
            lambda trial: seen(trial.seed, trial.arm.name),
        )
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
    text = tex.table(ODD)
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
    files = [
        *root.glob("study/*.py"),
        *root.glob("analysis/*.py"),
        *root.glob("claims/*.py"),
        *root.parent.glob("experiments/**/*.py"),
    ]
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


def test_a_column_appears_in_the_forms_that_it_names_and_in_the_file():
    """Two columns of one name, such as an axis called "seeds", are both in the file."""
    columns = [
        words("seeds", lambda item: f"level {item}"),
        number_column("seeds", lambda item: item, "{:,}".format),
        number_column("left out", lambda item: item, when=False),
        number_column("p", lambda item: item / 2, str, "p_value", on=("page",)),
    ]
    table = ItemTable("T", columns, [1000, 2000], file="items", on=EVERYWHERE)
    assert table.in_form("page") == Table(
        "T", ["seeds", "seeds", "p"], [["level 1000", "1,000", "500.0"], ["level 2000", "2,000", "1000.0"]], 1,
        file="items", on=EVERYWHERE,
    )  # fmt: skip
    assert [table.in_form(form).header for form in ("markdown", "paper", "terminal")] == [["seeds", "seeds"]] * 3
    assert table.values(1000) == {"seeds": "level 1000", "seeds (1)": 1000, "p_value": 500.0}


def test_markdown_has_as_many_trials_in_every_line():
    lines = markdown.table(ODD).splitlines()
    assert lines[1] == "| --- | ---: |"
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {3}


def test_the_tables_of_a_study_say_its_numbers(tmp_path):
    analysis = analyse(fill(tmp_path, tiny(seeds=range(4)), losses))
    arms = tables.arms(analysis).in_form("page")
    assert list(arms.header[:3]) == ["norm", "rate", "validation loss (nats)"]
    for arm, row in zip(analysis.arms, arms.rows, strict=True):
        assert row[:2] == list(arm.labels.values())
        assert value(row[2]) == pytest.approx(np.mean(arm.scores), abs=6e-4)
        assert value(row[4]) == pytest.approx(np.std(arm.scores, ddof=1), abs=6e-4)
    assert [row[1] for row in tables.claims(analysis).in_form("page").rows] == [
        c.judgement.verdict for c in analysis.claims
    ]
    assert {section.title for section in document(analysis).sections} >= {"Arms", "Claims"}
    page, paper = markdown.render(document(analysis)), tex.render(document(analysis))
    assert page.startswith("# Does it run?\n")
    assert "It is tiny." in page
    assert paper.count(r"\begin{tabular}") == 2
    assert paper.isascii()


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.2124, "+0.212"), (-7.8716, "-7.872"), (-0.00417, "-0.0042"), (0.00031, "+0.00031"), (0.0, "+0.000")],
)
def test_a_small_effect_keeps_two_digits(value, text):
    assert signed(value) == text
