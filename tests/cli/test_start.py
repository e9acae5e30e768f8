"""Start of the command line."""

import gc
import importlib

import pytest

from flaxformer.cli import import_without_collections


@pytest.mark.parametrize("is_enabled", [True, False])
def test_modules_are_imported_without_garbage_collections(monkeypatch, is_enabled):
    seen = []
    monkeypatch.setattr(importlib, "import_module", lambda name: seen.append((name, gc.isenabled())))
    if not is_enabled:
        gc.disable()
    try:
        import_without_collections("a.module")
        assert seen == [("a.module", False)]
        assert gc.isenabled() is is_enabled
    finally:
        gc.enable()


def test_garbage_collections_go_on_after_a_failed_import():
    with pytest.raises(ModuleNotFoundError):
        import_without_collections("flaxformer.no_such_module")
    assert gc.isenabled()
