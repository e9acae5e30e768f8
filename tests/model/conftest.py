"""Fixtures for tests of the model."""

import jax
import pytest


@pytest.fixture
def broadcasting_as_in_a_users_program():
    with jax.numpy_rank_promotion("allow"):
        yield
