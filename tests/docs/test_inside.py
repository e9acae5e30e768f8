"""The page "How it works inside" names the files between a command and the training step, as the runner does."""

import re

from pages import ROOT

from flaxformer import runner


def test_the_page_and_the_runner_name_the_same_files_in_the_same_order():
    page = (ROOT / "docs/inside.md").read_text()
    listed = re.findall(r"^\| \d+ \| \[`([\w/]+\.py)`\]", page, re.MULTILINE)
    documented = re.findall(r"^\d+\. `([\w/]+\.py)`", str(runner.__doc__), re.MULTILINE)
    assert 0 < len(documented) <= 9
    assert listed == documented
