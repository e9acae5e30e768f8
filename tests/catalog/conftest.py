"""Files of the catalog are written as a user writes them."""

import pytest


@pytest.fixture(autouse=True)
def _as_in_a_users_program(broadcasting_as_in_a_users_program):
    """Implicit rank promotion is allowed."""
