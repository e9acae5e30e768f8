"""Programs of jobs are compiled once: most tests train one small run again and again."""

import pytest
from study.tiny import cache_folder, kept_programs


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(tmp_path_factory):
    with kept_programs(cache_folder(tmp_path_factory)):
        yield
