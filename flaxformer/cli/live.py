"""A page of a folder that is up to date while a command trains in it: `run --live`, `train --live`."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from flaxformer.store.places import LIVE, REPORT, SECONDS_BETWEEN_PAGES
from flaxformer.system.errors import UserError
from flaxformer.system.files import write_atomically
from flaxformer.system.links import check_file

SHARE_OF_TIME = 0.05
"""Largest share of the time of training that goes into writing the page."""
TO_REPORT = f'<!doctype html>\n<meta http-equiv="refresh" content="0; url={REPORT}">\n<a href="{REPORT}">Report</a>\n'


@contextlib.contextmanager
def live_page(folder: Path, is_wanted: bool, console: Console) -> Iterator[None]:
    """Write FOLDER/live.html again and again inside the `with` block, by a thread; nothing if it is not wanted.

    After a block that ends, the page leads to the report, which has been written; after one that raises, it stays.
    """
    if not is_wanted:
        yield
        return
    console.print(f"Live: {folder / LIVE}", soft_wrap=True)
    is_over = threading.Event()
    thread = threading.Thread(target=_keep_writing, args=(folder, is_over), daemon=True, name="live page")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    if (folder / REPORT).exists():
        _write(folder, TO_REPORT)


def _keep_writing(folder: Path, is_over: threading.Event) -> None:
    from flaxformer.cli.folder_page import page_of  # here, since importing the parts of reports takes half a second

    seconds = 0.0
    while not is_over.wait(max(SECONDS_BETWEEN_PAGES, seconds / SHARE_OF_TIME) if seconds else 0.5):
        began = time.monotonic()
        with contextlib.suppress(UserError, OSError):  # no results yet, or a full disk, on which training reports
            _write(folder, page_of(folder))
            seconds = time.monotonic() - began


def _write(folder: Path, text: str) -> None:
    check_file(folder / LIVE)
    write_atomically(folder / LIVE, text.encode(errors="replace"))
