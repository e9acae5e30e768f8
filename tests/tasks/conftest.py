"""Fixture with the files that tasks read."""

import pytest
from tasks.every import write_files


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("files"))
