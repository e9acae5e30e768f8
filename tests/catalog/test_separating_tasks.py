"""Ceiling and chance level of the catalog's tasks: a solver in Python that reads the inputs alone reaches the ceiling.

A solver is a function of the tokens up to the place whose target it predicts.
"""

import collections
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer import (
    AssociativeRecall,
    Context,
    Copy,
    Induction,
    LanguageModel,
    ModelConfig,
    ModularAddition,
    Reverse,
    Sort,
)
from flaxformer.catalog import (
    Brevo,
    Compression,
    Depo,
    FuzzyRecall,
    InContextRecall,
    InContextRegression,
    Lano,
    LastTokenDecoder,
    Mano,
    Memorization,
    ModularCounting,
    MultiQueryRecall,
    NeedleRetrieval,
    PermutationComposition,
    SelectiveCopying,
)
from flaxformer.catalog.brevo import is_answer
from flaxformer.catalog.lano import ceiling_of
from flaxformer.components.component import with_aux
from flaxformer.system.errors import UserError

COUNT = 512


def drawn(task, count=COUNT, *, training=False):
    return jax.device_get(
        jax.jit(lambda key: task.replace(batch_size=count).draw(key, training=training))(jax.random.key(2))
    )


def pairs_before(task, tokens):
    """Value of the last token where it stood at an even place before."""
    return dict(zip(tokens[0:-1:2], tokens[1::2], strict=False)).get(tokens[-1])


def first_pairs(task, tokens):
    shown = tokens[: 2 * task.pairs]
    return dict(zip(shown[::2], shown[1::2], strict=True))[tokens[-1]]


def copied(task, tokens):
    symbols = [token for token in tokens if token < task.symbols - 2]
    return symbols[len(tokens) - 1 - tokens.index(task.symbols - 1) - 1]


@functools.cache
def table_of(task):
    """The table of `Memorization`, read off other examples."""
    batch = jax.device_get(task.replace(batch_size=300).draw(jax.random.key(9)))
    return dict(
        zip(batch.inputs[:, ::2].reshape(-1).tolist(), batch.targets[:, 1::2].reshape(-1).tolist(), strict=True)
    )


def memorized(task, tokens):
    return table_of(task)[tokens[-2]]


def composed(task, tokens):
    every = [p for p in itertools.permutations(range(task.points)) if not task.even or parity(p) == 0]
    product = tuple(range(task.points))
    for token in tokens:
        product = tuple(every[token][image] for image in product)
    return every.index(product)


def parity(permutation):
    """Parity by the number of cycles."""
    seen, cycles = set(), 0
    for start in permutation:
        cycles += start not in seen
        while start not in seen:
            seen.add(start)
            start = permutation[start]
    return (len(permutation) - cycles) % 2


def counted(task, tokens):
    return sum(task.steps[token] for token in tokens) % task.modulus


def retrieved(task, tokens):
    asked = len(tokens) - 1 - tokens[::-1].index(11)
    key, answered = tokens[asked + 1], tokens[asked + 3 :]
    said = next(i for i in range(asked) if tokens[i] == 10 and tokens[i + 1] == key)
    return tokens[said + 2 + len(answered)]


def evaluated(task, tokens):
    """Value of the expression in Polish notation between the second token and ⟨=⟩."""
    rest = iter(tokens[2:-1])

    def value():
        token = next(rest)
        if token < task.modulus:
            return token
        a, b = value(), value()
        return (a + b, a - b, a * b)[(token - task.modulus) // 2] % task.modulus

    return value()


def words_of(tokens, letters):
    """Words as tuples, and signs as numbers."""
    parts, word = [], []
    for token in tokens:
        if token >= 2 * letters:
            parts.append(token)
        else:
            word.append(token)
            if token >= letters:
                parts.append(tuple(word))
                word = []
    return parts, tuple(word)


def walked(task, tokens):
    parts, begun = words_of(tokens, task.letters)
    first_sign = next(i for i in range(1, len(parts)) if isinstance(parts[i], int))
    after = dict(zip(parts[1:first_sign:2], parts[2:first_sign:2], strict=True))
    steps, word, _ = parts[-3:]
    for _ in range(steps - 2 * task.letters + 1):
        word = after[word]
    return word[len(begun)]


def split_answer(task, tokens):
    parts, begun = words_of(tokens, task.letters)
    of = parts.index(2 * task.letters + 1)
    edges = list(zip(parts[1:of:2], parts[2:of:2], strict=True))
    return edges, parts[of + 1], parts[of + 3 :], begun


def sorted_next(task, tokens):
    edges, asked, answer, begun = split_answer(task, tokens)
    parents = {b: {a for a, child in edges if child == b} for _, b in edges}
    needed = {asked}
    for _ in range(task.nodes):
        needed |= {a for b in needed for a in parents.get(b, ())}
    ready = [node for node in needed if node not in answer and parents.get(node, set()) <= set(answer)]
    assert len(ready) == 1
    return ready[0][len(begun)]


SOLVERS = {
    MultiQueryRecall(symbols=64, length=32): first_pairs,
    MultiQueryRecall(symbols=64, length=32, power=1.0, random_blanks=True): first_pairs,
    InContextRecall(length=32): pairs_before,
    InContextRecall(symbols=20, length=32, noise=6, rate=0.5): pairs_before,
    InContextRecall(symbols=7, length=4, noise=3, rate=0.9): pairs_before,
    SelectiveCopying(length=64, copied=7): copied,
    SelectiveCopying(length=64, copied=7, scattered=False): copied,
    Memorization(symbols=31): memorized,
    PermutationComposition(): composed,
    PermutationComposition(points=4, even=True): composed,
    ModularCounting(): counted,
    ModularCounting(modulus=5, steps=(-1, 0, 1), everywhere=True): counted,
    NeedleRetrieval(sentences=8, needles=3): retrieved,
    NeedleRetrieval(keys=12, sentences=8, haystack="needles"): retrieved,
    Mano(): evaluated,
    Mano(operations=4, synonyms=False, modulus=7): evaluated,
    Depo(nodes=12, letters=3, steps=6): walked,
    Depo(nodes=7, letters=3, shortest=2, longest=4, steps=5, questions=3): walked,
    Brevo(nodes=12, letters=12): sorted_next,
    Brevo(nodes=9, letters=3, shortest=2, longest=3): sorted_next,
}
"""Solver of each task, of which the inputs determine all that is scored."""


def kind_of(task, target, place):
    """Kind of tokens among which a target is known to be, beside the format."""
    if isinstance(task, Depo | Brevo):
        return target >= task.letters
    if isinstance(task, NeedleRetrieval):
        return place == task.sequence_length - task.digits
    return isinstance(task, Compression) and place == task.length - 1


def guessed(task, batch):
    """Expected accuracy of a random token of those that occur among the targets of a kind."""
    rows, places = np.nonzero(batch.weights)
    targets = batch.targets[rows, places].tolist()
    kinds = [kind_of(task, target, place) for target, place in zip(targets, places, strict=True)]
    tokens = collections.defaultdict(set)
    for kind, target in zip(kinds, targets, strict=True):
        tokens[kind].add(target)
    return np.mean([1 / len(tokens[kind]) for kind in kinds])


@pytest.mark.every(3)
@pytest.mark.parametrize("number", range(len(SOLVERS)))
def test_a_solver_reaches_the_ceiling_and_a_guess_the_chance_level(number):
    task, solve = [*SOLVERS.items()][number]
    for batch in (drawn(task), *([drawn(task, training=True)] if isinstance(task, ModularCounting) else [])):
        assert set(np.unique(batch.weights)) in ({0, 1}, {1})
        rows, places = np.nonzero(batch.weights)
        predicted = [
            solve(task, batch.inputs[row, : place + 1].tolist())
            for row, place in zip(rows[:600], places[:600], strict=True)
        ]
        assert predicted == batch.targets[rows[:600], places[:600]].tolist()
        assert task.ceiling == 1
        assert guessed(task, batch) == pytest.approx(task.chance, abs=1e-9)
    assert f"{task.chance:.3g} by chance and 1 for a perfect solver" in task.notes()[0]


def test_ceiling_and_chance_of_the_tasks_of_the_core():
    for task in (
        AssociativeRecall(keys=9, values=7),
        Copy(symbols=5),
        Reverse(symbols=5),
        Sort(symbols=5),
        Induction(),
    ):
        batch = drawn(task)
        shift = 1 if isinstance(task, Induction) else 0  # the symbol that is asked for is not the last one
        assert (guessed(task, batch), task.ceiling) == (pytest.approx(1 / (1 / task.chance + shift)), 1)
    assert (ModularAddition(modulus=7).chance, ModularAddition().ceiling) == (1 / 7, 1)


def motifs(tokens, keys, padding):
    """Pairs of a key and a value, and what stands behind the last pair."""
    tokens = [token for token in tokens if token != padding]
    runs = [tuple(run) for _, run in itertools.groupby(tokens, key=lambda token: token < keys)]
    return list(zip(runs[::2], runs[1::2], strict=False)), runs[-1] if len(runs) % 2 else ()


def test_fuzzy_recall_is_solved_where_its_last_key_was_there():
    task = FuzzyRecall()
    batch, right, scored = drawn(task, 2048), 0.0, 0
    for row in range(2048):
        tokens = [*batch.inputs[row].tolist(), int(batch.targets[row, -1])]
        pairs, _ = motifs(tokens, task.keys, task.symbols - 1)
        memory, flags = {}, []
        for number, (key, value) in enumerate(pairs):
            assert len(key) == task.motif == len(set(key))
            assert memory.get(key, value) == value
            is_asked = key in memory or number == len(pairs) - 1
            flags += [False] * len(key) + [is_asked] * len(value)
            guesses = [1 / (task.values - place) for place in range(len(value))]
            right += is_asked * (len(value) if key in memory else sum(guesses))
            memory[key] = value
        padding = len(tokens) - len(flags)
        np.testing.assert_array_equal(batch.weights[row], ([False] * padding + flags)[1:])
        scored += sum(flags)
    assert right / scored == pytest.approx(task.ceiling, abs=0.004)
    assert 0.98 < task.ceiling < 1
    assert guessed(task, batch) == task.chance
    with pytest.raises(UserError, match="motif is 8; expected at most the number of tokens of keys, 7"):
        FuzzyRecall(motif=8)


def test_compression_is_for_its_head_and_its_chance_level_is_that_of_symbols():
    task = Compression()
    batch = drawn(task)
    np.testing.assert_array_equal(batch.inputs, batch.targets)
    assert guessed(task, batch) == pytest.approx(task.chance)
    model = ModelConfig(vocabulary=16)
    assert list(task.problems_with(model.replace(head=LastTokenDecoder()))) == []
    (problem,) = task.problems_with(model.replace(head=LanguageModel()))
    assert "expected LastTokenDecoder()" in problem


def logits_in_a_loop(weights, x):
    """Logits of `LastTokenDecoder` token by token, in double precision."""
    half, rows = x.shape[-1] // 2, []
    for place in range(len(x)):
        angles = [place / 10_000 ** (i / half) for i in range(half)]
        waves = jnp.array([wave(angle) for angle in angles for wave in (math.sin, math.cos)])
        hidden = x[-1] + waves
        for matrix in (weights.first, weights.second):
            hidden = (hidden / jnp.sqrt((hidden**2).mean() + 1e-6)) @ matrix
            hidden = hidden * (1 + jax.scipy.special.erf(hidden / math.sqrt(2))) / 2
        rows.append((hidden / jnp.sqrt((hidden**2).mean() + 1e-6)) @ weights.matrix)
    return jnp.stack(rows)


def test_logits_of_the_last_token_decoder_and_their_gradient_are_those_of_a_loop():
    dice, head = np.random.default_rng(0), LastTokenDecoder()
    with jax.enable_x64(True):
        shapes = {"first": (6, 6), "second": (6, 6), "matrix": (6, 5)}
        drawn_ = {name: jnp.asarray(dice.standard_normal(shape)) for name, shape in shapes.items()}
        weights = head.Weights(**drawn_, bias=None, transform=None)
        x, factors = jnp.asarray(dice.standard_normal((4, 6))), jnp.asarray(dice.standard_normal((4, 5)))

        def logits(weights, x):
            context = Context(query_positions=jnp.arange(4), key_positions=jnp.arange(4))
            return with_aux(head.apply(weights, x, None, context, None))[0]

        np.testing.assert_allclose(logits(weights, x), logits_in_a_loop(weights, x), rtol=1e-6, atol=1e-6)
        gradients = [
            jax.grad(lambda *args, of=of: (of(*args) * factors).sum(), argnums=(0, 1))(weights, x)
            for of in (logits, logits_in_a_loop)
        ]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), *gradients)


def test_least_squares_reaches_the_ceiling_of_regression():
    task = InContextRegression(width=5, points=9)
    batch = drawn(task, 4096)
    x, y = batch.inputs[:, ::2].astype(np.float64), batch.targets[:, ::2, 0].astype(np.float64)
    np.testing.assert_array_equal(batch.inputs[:, 1::2, 0], batch.targets[:, :-1:2, 0])
    assert (batch.inputs[:, 1::2, 1:] == 0).all()
    assert (batch.weights[:, ::2] == 1).all()
    assert (batch.weights[:, 1::2] == 0).all()
    errors = [((np.einsum("bi,bi->b", least(x[:, :i], y[:, :i]), x[:, i]) - y[:, i]) ** 2).mean() for i in range(9)]
    assert np.mean(errors) == pytest.approx(task.ceiling, rel=0.03)
    assert (y**2).mean() == pytest.approx(task.chance, rel=0.03)
    assert task.references() == {"zero": 5.0, "least squares": 15 / 9}


def least(x, y):
    """Solution of the least norm, example by example."""
    return np.einsum("bdi,bi->bd", np.linalg.pinv(x), y)


class Parser:
    """Exact distribution of the next token of a sentence of `Lano`, by all derivations that agree with its beginning.

    A derivation is its symbols of each layer that are still to come, and its probability.
    """

    def __init__(self, bodies):
        self.bodies, self.end = bodies, len(bodies[-1]) if len(bodies) > 1 else 3
        self.states = {((0,), *((),) * len(bodies)): 1.0}

    def down(self, layer, symbol, above):
        if layer == len(self.bodies):
            yield 1.0, symbol, above
            return
        bodies = self.bodies[layer][symbol]
        for first, *later in bodies:
            for chance, token, state in self.down(layer + 1, first, (*above, tuple(later))):
                yield chance / len(bodies), token, state

    def following(self):
        """Probability of each next token, None for the end; and of the derivations after it."""
        after = collections.defaultdict(lambda: collections.defaultdict(float))
        for state, probability in self.states.items():
            layer = max((i for i, coming in enumerate(state) if coming), default=None)
            if layer is None:
                after[None][()] += probability
                continue
            above = (*state[:layer], state[layer][1:])
            for chance, token, new in self.down(layer, state[layer][0], above):
                after[token][new] += probability * chance
        total = sum(self.states.values())
        return {token: sum(states.values()) / total for token, states in after.items()}, after

    def read(self, after, token):
        total = sum(after[token].values())
        self.states = {state: chance / total for state, chance in after[token].items()}


@pytest.mark.long
def test_sentences_of_lano_have_the_probabilities_of_the_grammar_and_its_entropy():
    task = Lano(layers=3)
    batch = drawn(task, 400)
    logs, best, count = 0.0, 0.0, 0
    for row in range(400):
        parser, length = Parser(task.bodies), int(batch.valid[row].sum())
        assert batch.inputs[row, 0] == task.symbols
        np.testing.assert_array_equal(batch.weights[row], batch.valid[row])
        for target in batch.targets[row, :length].tolist():
            chances, after = parser.following()
            token = None if target == task.symbols + 1 else target
            logs -= math.log(chances[token])
            best += max(chances.values())
            count += 1
            parser.read(after, token)
    assert task.references()["entropy"] == pytest.approx(logs / count, rel=0.04)
    assert task.ceiling == pytest.approx(best / count, abs=0.02)
    assert task.chance == 0.25


@pytest.mark.exhaustive
def test_ceiling_of_the_default_grammar_of_lano():
    assert ceiling_of(Lano(batch_size=1, evaluation_batches=1)) == pytest.approx(Lano().ceiling, abs=5e-4)
    assert Lano(grammar=1).ceiling is None


def test_training_has_other_sizes_and_scores_as_published():
    recall = drawn(InContextRecall(length=32), 4, training=True)
    assert (recall.weights == 1).all()
    assert (drawn(FuzzyRecall(), 4, training=True).weights == 1).all()
    batch = drawn(Depo(nodes=12, letters=3, steps=6), 64, training=True)
    evaluated_ = drawn(Depo(nodes=12, letters=3, steps=6), 64)
    is_step = (batch.inputs >= 6) & (batch.inputs < 12) & batch.valid
    assert set(np.unique(batch.inputs[is_step]) - 5) == set(range(1, 7))
    is_step = (evaluated_.inputs >= 6) & (evaluated_.inputs < 12) & evaluated_.valid
    assert set(np.unique(evaluated_.inputs[is_step]) - 5) == {1, 2, 4, 6}
    lengths = drawn(ModularCounting(length=9), 64, training=True).valid.sum(1)
    assert set(lengths) == set(range(1, 10))


@pytest.mark.long
@pytest.mark.parametrize("task", [Brevo(nodes=12, letters=12), Brevo(nodes=9, letters=3, shortest=2, longest=3)])
def test_answers_of_brevo_are_topological_orders(task):
    batch = drawn(task, 64, training=True)
    for row in range(64):
        length = int(batch.valid[row].sum())
        tokens = [*batch.inputs[row, :length].tolist(), int(batch.targets[row, length - 1])]
        end = tokens.index(2 * task.letters + 3)
        edges, asked, answer, _ = split_answer(task, tokens[:end])
        assert is_answer(edges, asked, answer)
        assert not is_answer(edges, asked, answer[1:])
        assert len(answer) == 1 or not is_answer(edges, asked, [*answer[1:], answer[0]])
        degrees = collections.Counter(a for a, _ in edges), collections.Counter(b for _, b in edges)
        assert max(max(each.values()) for each in degrees) <= 4
        start = tokens.index(2 * task.letters + 2)
        np.testing.assert_array_equal(np.flatnonzero(batch.weights[row]), np.arange(start - 1, end))


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (MultiQueryRecall, {"pairs": 17}, "length is 64; expected an even number of at least 4 pairs = 68"),
        (MultiQueryRecall, {"symbols": 8}, "pairs is 4; expected at most the number of keys, 3"),
        (InContextRecall, {"rate": 0.5}, "rate is 0.5; expected 0 without tokens of noise"),
        (InContextRecall, {"noise": 15}, "noise is 15; expected at most symbols − 2 = 14"),
        (SelectiveCopying, {"length": 32}, "length is 32; expected at least 2 copied \\+ 1 = 33"),
        (NeedleRetrieval, {"haystack": "needles", "keys": 32}, "keys is 32; expected at least 33"),
        (NeedleRetrieval, {"needles": 33}, "needles is 33; expected at most the number of sentences, 32"),
        (Depo, {"nodes": 99, "letters": 9}, "nodes is 99; expected at most 90, the number of words"),
        (Depo, {"shortest": 3}, "longest is 2; expected at least shortest, 3"),
        (Lano, {"fewest": 5}, "most is 4; expected at least fewest, 5"),
        (Memorization, {"length": 3}, "length is 3; expected an even number"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(kind, fields, message):
    with pytest.raises(UserError, match=message):
        kind(**fields)
