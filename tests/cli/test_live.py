"""`--live`: a page in the output folder that shows a study or a job while it is trained, and leads to the report."""

import re
import shutil
import subprocess
import sys
import time

import pytest
from jobs.small import FILE, TEXT
from rich.console import Console
from study.tiny import fill, tiny

from flaxformer.cli import live, main
from flaxformer.cli.live import TO_REPORT, live_page
from flaxformer.store.store import Store

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
STUDY = """
from flaxformer import AdamW, Attention, Axis, Claim, Copy, Dense, ModelConfig, Run, Study, Training

study = Study(
    name="live",
    question="Is it alive?",
    baseline=Run(
        model=ModelConfig(vocabulary=7, layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=8)),
        task=Copy(symbols=5, length=3, batch_size=4, evaluation_batches=1),
        optimizer=AdamW(learning_rate=1e-2),
        training=Training(steps=4),
    ),
    axes=[Axis("optimizer.learning_rate", {"low": 1e-3, "high": 1e-2}, name="rate")],
    seeds=range(2),
    claims=[Claim("high is better", lower={"rate": "high"}, than={"rate": "low"})],
)
"""


def wait_for(path, text):
    """Wait until a file has a text, and return its content."""
    for _ in range(600):
        if path.exists() and text in (content := path.read_text()):
            return content
        time.sleep(0.1)
    pytest.fail(f"{path} has no '{text}' after a minute")


def test_the_page_is_written_again_while_the_block_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "SECONDS_BETWEEN_PAGES", 0.05)
    monkeypatch.setattr(live, "SHARE_OF_TIME", 1.0)
    page = tmp_path / "out/live.html"
    with live_page(tmp_path / "out", True, Console(quiet=True)):
        time.sleep(0.7)  # a folder without a study has no page
        assert not page.exists()
        fill(tmp_path / "out", tiny(), lambda trial: 1.0)
        [first, *_] = Store(tmp_path / "out").groups.iterdir()
        kept = first.rename(tmp_path / first.name)
        text = wait_for(page, "of 12 runs finished")
        assert 'http-equiv="refresh"' in text
        assert "high is better than low" not in text
        kept.rename(first)
        text = wait_for(page, "high is better than low")
        assert "http-equiv" not in text
    assert not (tmp_path / "out/report.html").exists()
    assert page.read_text() == text


def test_a_page_that_is_not_wanted_is_not_written(tmp_path):
    fill(tmp_path / "out", tiny(), lambda trial: 1.0)
    with live_page(tmp_path / "out", False, Console(quiet=True)):
        pass
    assert not (tmp_path / "out/live.html").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "options"),
    [("run", []), ("run", ["--launcher", "local", "--workers", "1"]), ("train", ["--samples", "0"])],
)
def test_the_page_of_a_command_leads_to_its_report_at_the_end(tmp_path, monkeypatch, capsys, command, options):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.py").write_text(STUDY)
    (tmp_path / "train.py").write_text(FILE)
    (tmp_path / "text.txt").write_text(TEXT)
    assert main([command, f"{command}.py", *options, "--output", "out", "--live"]) == 0
    assert "Live: out/live.html" in capsys.readouterr().out
    assert (tmp_path / "out/live.html").read_text() == TO_REPORT
    assert (tmp_path / "out/report.html").exists()


def test_slurm_returns_too_early_for_a_live_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.py").write_text(STUDY)
    assert main(["run", "run.py", "--launcher", "slurm", "--live"]) == 2
    assert "--live is given, and --launcher slurm returns before the runs end" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, which shows the page")
@pytest.mark.parametrize("width", [400, 1280])
def test_a_browser_shows_the_progress_of_a_running_study(tmp_path, width):
    (tmp_path / "study.py").write_text(STUDY.replace("steps=4", "steps=10_000_000, evaluate_every=1_000_000"))
    command = [sys.executable, "-m", "flaxformer.cli", "run", "study.py", "--output", "out", "--live"]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        page = tmp_path / "out/live.html"
        wait_for(page, "runs finished")
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=1000", "--dump-dom"]
        words = [CHROMIUM, *flags, f"--window-size={width},800", f"file://{page}"]
        shown = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout
        assert running.poll() is None
    finally:
        running.kill()
        running.wait()
    assert "Is it alive?" in shown
    assert re.search(r"0 of 4 runs finished", shown)
    assert "high is better" not in shown
