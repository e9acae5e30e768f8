"""Optimizers of the catalog equal loops over steps in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from mechanisms import ARMS, run_of

from flaxformer import AdamW, Attention, Dense, Lion, ModelConfig, Muon, NoPositions
from flaxformer.catalog import SOAP, AdamHyperball, AdEMAMix, Kron, MuonHyperball, NorMuon, Prodigy, soap
from flaxformer.core.weight_axes import decay_mask
from flaxformer.laws.updates import check_updates
from flaxformer.model import init

dice = np.random.default_rng(0)
GRADIENTS = dice.standard_normal((5, 3, 4))


@pytest.mark.parametrize("rise", [0, 3])
def test_ademamix_equals_its_equation(rise):
    b1, b2, b3, alpha = 0.9, 0.99, 0.999, 4.0
    with jax.enable_x64(True):
        transform = AdEMAMix(beta1=b1, beta2=b2, beta3=b3, alpha=alpha, rise=float(rise)).direction()
        state = transform.init({"w": jnp.zeros((3, 4))})
        fast = slow = square = np.zeros((3, 4))
        for t, g in enumerate(GRADIENTS):
            u, state = transform.update({"w": jnp.asarray(g)}, state)
            share = min(t / rise, 1) if rise else 1
            life = (1 - share) * np.log(0.5) / np.log(b1) + share * np.log(0.5) / np.log(b3)
            slow_decay = 0.5 ** (1 / life)
            fast, slow = b1 * fast + (1 - b1) * g, slow_decay * slow + (1 - slow_decay) * g
            square = b2 * square + (1 - b2) * g**2
            top = fast / (1 - b1 ** (t + 1)) + share * alpha * slow
            np.testing.assert_allclose(u["w"], top / (np.sqrt(square / (1 - b2 ** (t + 1))) + 1e-8), rtol=1e-5)


def model():
    config = ModelConfig(
        layers=2,
        d_model=6,
        attention=Attention(heads=2),
        feed_forward=Dense(d_ff=4),
        positions=NoPositions(),
        vocabulary=5,
    )
    return init(jax.random.key(0), config)


def random_like(tree):
    return jax.tree.map(lambda x: jnp.asarray(dice.standard_normal(x.shape), jnp.float32), tree)


@pytest.mark.every(4, "long")
@pytest.mark.parametrize("kind", [AdamW, Lion, Muon, NorMuon])
def test_cautious_weight_decay_equals_its_equation(kind):
    params = random_like(model())
    optimizer = kind(weight_decay=0.1, cautious_decay=True)
    plain = optimizer.direction()
    both = optax.chain(*optimizer.decayed_direction(None))
    gradient = random_like(params)
    direction, _ = plain.update(gradient, plain.init(params), params)
    decayed, _ = both.update(gradient, both.init(params), params)
    u, w = (np.array(tree.blocks[1].feed_forward.up) for tree in (direction, params))
    expected = [
        [a + 0.1 * b if a * b >= 0 else a for a, b in zip(*rows, strict=True)] for rows in zip(u, w, strict=True)
    ]
    np.testing.assert_allclose(decayed.blocks[1].feed_forward.up, expected, rtol=1e-6)
    np.testing.assert_array_equal(decayed.blocks[1].feed_forward.up_bias, direction.blocks[1].feed_forward.up_bias)


@pytest.mark.long
def test_nor_muon_equals_its_equation():
    params = random_like(model())
    muon, normalised = Muon().direction(), NorMuon().direction()
    states, v = [muon.init(params), normalised.init(params)], np.zeros(4)
    for _ in range(3):
        gradient = random_like(params)
        plain, states[0] = muon.update(gradient, states[0], params)
        actual, states[1] = normalised.update(gradient, states[1], params)
        o = np.array(plain.blocks[1].feed_forward.up, np.float64)  # [inputs, neurons]
        v = np.array([0.95 * v[n] + 0.05 * (o[:, n] ** 2).mean() for n in range(4)])
        even = np.stack([o[:, n] / (np.sqrt(v[n]) + 1e-8) for n in range(4)], axis=1)
        expected = 0.2 * np.sqrt(o.size) * even / np.linalg.norm(even)
        np.testing.assert_allclose(actual.blocks[1].feed_forward.up, expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(actual.blocks[1].feed_forward.up_bias, plain.blocks[1].feed_forward.up_bias)


def square_model():
    """Weights in double precision of a model whose matrices are square, and three gradients."""
    config = ModelConfig(
        layers=2, d_model=6, attention=Attention(heads=2), feed_forward=Dense(d_ff=6), positions=NoPositions(),
        vocabulary=5,
    )  # fmt: skip
    shapes = jax.eval_shape(lambda: init(jax.random.key(0), config))
    return [jax.tree.map(lambda x: dice.standard_normal(x.shape), shapes) for _ in range(7)]


def orthonormal(columns):
    """Gram and Schmidt's orthonormal vectors, from the first column on."""
    basis = []
    for column in columns.T:
        for q in basis:
            column = column - (q @ column) * q
        basis.append(column / np.sqrt(column @ column))
    return np.stack(basis, axis=1)


def soap_steps(gradients, frequency, b1=0.95, b2=0.9, first_basis=None):
    """Yield the updates of one matrix: Adam in the basis, with the mean kept outside of it.

    `first_basis` has the left and right eigenvectors after the first step; by default they are computed.
    """
    m, n = gradients[0].shape
    left, right, mean, square = np.zeros((m, m)), np.zeros((n, n)), np.zeros((m, n)), np.zeros((m, n))
    q_left, q_right = np.eye(m), np.eye(n)
    for t, g in enumerate(gradients):
        if t:
            turned = q_left.T @ g @ q_right
            mean, square = b1 * mean + (1 - b1) * g, b2 * square + (1 - b2) * turned**2
            top = (q_left.T @ mean @ q_right) / (1 - b1**t)
            yield q_left @ (top / (np.sqrt(square / (1 - b2**t)) + 1e-8)) @ q_right.T
        else:
            yield np.zeros((m, n))
        left, right = b2 * left + (1 - b2) * g @ g.T, b2 * right + (1 - b2) * g.T @ g
        if t == 0:
            computed = [np.linalg.svd(side)[0] for side in (left, right)]  # by size, the largest first
            q_left, q_right = first_basis or computed
        elif t % frequency == 0:
            q_left, q_right = orthonormal(left @ q_left), orthonormal(right @ q_right)


def test_soap_equals_its_algorithm():
    with jax.enable_x64(True):
        params, *gradients = square_model()
        transform = SOAP(beta1=0.95, beta2=0.9, frequency=2).direction()
        adam = optax.scale_by_adam(b1=0.95, b2=0.9)
        state, plain, update = transform.init(params), adam.init(params), jax.jit(transform.update)
        expected = soap_steps([g.blocks[1].attention.out.reshape(6, 6) for g in gradients], 2)
        for gradient, u in zip(gradients, expected, strict=True):
            actual, state = update(gradient, state, params)
            beside, plain = adam.update(gradient, plain)
            np.testing.assert_allclose(actual.blocks[1].attention.out.reshape(6, 6), u, rtol=1e-7, atol=1e-9)
            np.testing.assert_allclose(actual.embedding.tokens, beside.embedding.tokens, rtol=1e-12)


def soap_updates(gradients, frequency, dtype):
    """The updates of SOAP, with its own betas, of one matrix; and its left and right basis after the first step."""
    optimizer, (m, n) = SOAP(frequency=frequency), gradients[0].shape
    sides, zeros = [jnp.zeros((size, size), dtype) for size in (m, n)], jnp.zeros((m, n), dtype)
    basis = soap.Basis(*sides, jnp.eye(m, dtype=dtype), jnp.eye(n, dtype=dtype), zeros, zeros)
    step, updates, bases = jax.jit(optimizer.of_matrices), [], []
    for t, gradient in enumerate(gradients):
        update, basis = step(jnp.asarray(gradient, dtype), basis, jnp.int32(t))
        updates.append(update)
        bases.append((np.array(basis.left_basis), np.array(basis.right_basis)))
    return updates, bases[0]


@pytest.mark.parametrize("frequency", [10, 2])
def test_soap_with_its_published_settings_equals_its_algorithm_for_full_rank_gradients(frequency):
    """The singular values of a gradient are 2 ** -k; in single precision."""

    def rotation():
        return np.linalg.qr(dice.standard_normal((6, 6)))[0]

    gradients = [rotation() @ np.diag(2.0 ** -np.arange(6)) @ rotation() for _ in range(12)]
    expected = list(soap_steps(gradients, frequency, b2=0.95))
    actual, _ = soap_updates(gradients, frequency, jnp.float32)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("shape", [(4, 7), (9, 5)])
def test_soap_of_matrices_that_are_not_square_differs_by_the_basis_of_null_spaces_alone(shape):
    """Any orthonormal vectors of the null space of the first G Gᵀ or Gᵀ G are eigenvectors."""
    gradients = [dice.standard_normal(shape) for _ in range(12)]
    with jax.enable_x64(True):
        actual, first = soap_updates(gradients, 10, jnp.float64)
    actual, other = np.array(actual), np.array(list(soap_steps(gradients, 10, b2=0.95)))
    for basis, side in zip(first, (gradients[0] @ gradients[0].T, gradients[0].T @ gradients[0]), strict=True):
        np.testing.assert_allclose(basis @ basis.T, np.eye(len(side)), atol=1e-12)
        turned = basis.T @ side @ basis
        np.testing.assert_allclose(turned, np.diag(np.linalg.eigvalsh(side)[::-1]), atol=1e-12)
    same = list(soap_steps(gradients, 10, b2=0.95, first_basis=first))
    np.testing.assert_allclose(actual, same, rtol=0, atol=1e-9)
    assert abs(actual - other).max() > 0.1


@pytest.mark.long
@pytest.mark.parametrize("kind", [AdamHyperball, MuonHyperball])
def test_hyperball_moves_along_the_sphere_of_the_initial_norm(kind):
    with jax.enable_x64(True):
        params, *gradients = square_model()
        optimizer, rate = kind(weight_decay=0.3), 0.1
        direction, whole = optimizer.direction(), optimizer.transformation(rate)
        states, radius = [direction.init(params), whole.init(params)], np.linalg.norm(params.blocks[0].attention.key)
        for gradient in gradients[:4]:
            w, bias = np.array(params.blocks[0].attention.key), np.array(params.blocks[0].attention.key_bias)
            head = np.array(params.head.matrix)
            u, states[0] = direction.update(gradient, states[0], params)
            updates, states[1] = whole.update(gradient, states[1], params)
            params = optax.apply_updates(params, updates)
            along = np.array(u.blocks[0].attention.key)
            moved = w - rate * radius * along / np.sqrt((along**2).sum())
            expected = radius * moved / np.sqrt((moved**2).sum())
            np.testing.assert_allclose(params.blocks[0].attention.key, expected, rtol=1e-9)
            np.testing.assert_allclose(
                params.blocks[0].attention.key_bias, bias - rate * u.blocks[0].attention.key_bias, rtol=1e-9
            )
            shrunk = head - rate * (u.head.matrix + 0.3 * head)
            np.testing.assert_allclose(params.head.matrix, shrunk, rtol=1e-9)
        assert np.linalg.norm(params.blocks[0].attention.key) == pytest.approx(radius, rel=1e-12)


def flat(tree):
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


def test_prodigy_equals_its_algorithm():
    with jax.enable_x64(True):
        params, *gradients = square_model()
        transform = optax.chain(*Prodigy(start=1e-2, weight_decay=0.1).decayed_direction(None))
        state, update = transform.init(params), jax.jit(transform.update)
        d, r, b1, b2 = 1e-2, 0.0, 0.9, 0.999
        first = w = flat(params)
        shrinks = flat(jax.tree.map(lambda x, of: np.full(x.shape, of), params, decay_mask(params)))
        s = m = v = np.zeros_like(w)
        for step, gradient in enumerate(gradients):
            g = 30 * (first - w) if step == 2 else flat(gradient)  # from the third on, the estimate rises
            leaves = np.split(g, np.cumsum([x.size for x in jax.tree.leaves(params)])[:-1])
            gradient = jax.tree.map(lambda x, of: of.reshape(x.shape), params, jax.tree.unflatten(
                jax.tree.structure(params), leaves))  # fmt: skip
            u, state = update(gradient, state, params)
            r = np.sqrt(b2) * r + (1 - np.sqrt(b2)) * d**2 * (g * (first - w)).sum()
            s = np.sqrt(b2) * s + (1 - np.sqrt(b2)) * d**2 * g
            m, v = b1 * m + (1 - b1) * d * g, b2 * v + (1 - b2) * (d * g) ** 2
            change = d * (m / (np.sqrt(v) + d * 1e-8) + 0.1 * shrinks * w)
            np.testing.assert_allclose(flat(u), change, rtol=1e-5)
            d, w = max(d, r / np.abs(s).sum()), w - change
            params = jax.tree.map(lambda x, of: x - of, params, u)
            np.testing.assert_allclose(optax.tree.get(state, "distance"), d, rtol=1e-5)
        assert d > 0.011


@pytest.mark.long
@pytest.mark.parametrize("arm", [arm for arm, changes in ARMS.items() if "optimizer" in changes])
def test_updates_of_a_weight_do_not_depend_on_layout_or_on_other_weights(arm):
    finding = check_updates(run_of(arm))
    assert not finding.is_violated, finding


def kron_steps(gradients, mu, fits):
    """Yield the updates of one matrix; B is a sum over all matrices with a single 1."""
    size = len(gradients[0])
    left, right, mean = np.eye(size), np.eye(size), np.zeros((size, size))

    def moved(q, a, b):
        total = a + b
        column = max(total.T, key=np.linalg.norm)
        v = total @ column / np.linalg.norm(total @ column)
        upper = [[a[i, j] - b[i, j] if j >= i else 0 for j in range(size)] for i in range(size)]
        return q - mu * np.array(upper) @ q / np.linalg.norm(total @ v)

    for step, g in enumerate(gradients):
        if step in fits:
            inner, outer, noise = np.zeros((2, size, size)), np.zeros((2, size, size)), np.zeros((2, size, size))
            for i in range(size):
                for j in range(size):
                    unit = np.zeros((size, size))
                    unit[i, j] = 1
                    back = np.linalg.inv(left).T @ unit @ np.linalg.inv(right)
                    through = left @ unit @ right.T
                    outer += [back @ back.T, back.T @ back]
                    noise += [through @ through.T, through.T @ through]
            white = left @ g @ right.T
            damping = np.finfo(np.float32).eps * np.abs(g).mean() ** 2
            inner = [white @ white.T, white.T @ white] + damping * noise
            left, right = moved(left, inner[0], outer[0]), moved(right, inner[1], outer[1])
        mean = 0.9 * mean + 0.1 * g
        u = np.kron(left.T @ left, right.T @ right) @ (mean / (1 - 0.9 ** (step + 1))).ravel()
        yield (u / max(1, np.sqrt((u**2).mean()) / 1.1)).reshape(size, size)


@pytest.mark.long
@pytest.mark.parametrize(("fall", "fits"), [(0.0, (0, 1, 2, 3, 4, 5)), (0.3, (0, 1, 3))])
def test_kron_equals_its_algorithm(fall, fits):
    """With a fall of 0.3, one of 1, 1, 1.3, 1.8, 2.5, 3.3 steps fits: after the second, the fourth alone."""
    with jax.enable_x64(True):
        params, *gradients = square_model()
        gradients = [jax.tree.map(lambda x: 0.2 * x, gradient) for gradient in gradients]
        transform = Kron(fit_rate=0.3, flat=2.0, fall=fall).direction()
        state, update = transform.init(params), jax.jit(transform.update)
        expected = kron_steps([g.blocks[1].attention.out.reshape(6, 6) for g in gradients], 0.3, fits)
        for gradient, u in zip(gradients, expected, strict=True):
            actual, state = update(gradient, state, params)
            np.testing.assert_allclose(actual.blocks[1].attention.out.reshape(6, 6), u, rtol=1e-7, atol=1e-9)
