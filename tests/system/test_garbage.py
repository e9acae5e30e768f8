"""Pause of the garbage collector."""

import gc

import pytest

from flaxformer.system.garbage import without_collections


@pytest.mark.parametrize("is_enabled", [True, False])
def test_nothing_is_collected_inside(is_enabled):
    if not is_enabled:
        gc.disable()
    try:
        with without_collections():
            assert not gc.isenabled()
        assert gc.isenabled() is is_enabled
    finally:
        gc.enable()


def test_collections_go_on_after_an_error():
    with pytest.raises(KeyError), without_collections():
        raise KeyError
    assert gc.isenabled()
