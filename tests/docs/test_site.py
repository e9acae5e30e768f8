"""The site builds without a warning and needs no network; links and lists of pages are complete."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest
from pages import ROOT, pages

PAGES = pages()


def anchors(text):
    """The anchors of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_something(page):
    text = PAGES[page].read_text()
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", text):
        target = (PAGES[page].parent / link) if link else PAGES[page]
        is_made = link.startswith("api/") or target.stem == "commands"
        assert is_made or target.exists(), link
        if anchor and not is_made:
            assert anchor in anchors(target.read_text()), f"{link}#{anchor}"


def test_every_page_is_in_the_navigation():
    written = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert written == set(PAGES) - {"README"}


def test_the_glossary_defines_the_words_that_the_pages_use_in_a_sense_of_their_own():
    terms = re.findall(r"^(\S.*)\n: ", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    words = {word.strip().lower() for term in terms for word in term.split(",")}
    assert words >= {"program", "trial", "arm", "axis", "lease", "probe", "detectable", "rung", "quantity", "claim"}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs the extra docs")
def test_the_site_builds_without_a_warning_and_refers_to_no_other_host(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = re.compile(r"<(?:link|script|img|iframe)[^>]*(?:src|href)=\"?(https?://[^\"> ]+)")
    built = list(tmp_path.rglob("*.html"))
    assert len(built) > 40
    assert {url for path in built for url in loaded.findall(path.read_text())} == set()
    assert "flaxformer run" in (tmp_path / "commands.html").read_text()
    assert 'id="flaxformer.study.declare.Study"' in (tmp_path / "api/flaxformer.study.html").read_text()
