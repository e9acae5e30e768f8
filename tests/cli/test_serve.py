"""`status --serve`: a page for this machine alone, which shows no result of a study before it is complete."""

import http.client
import socket
import struct
import threading

import pytest
from ledger.ledgers import begun
from study.tiny import fill, tiny

from flaxformer.cli import main
from flaxformer.cli.folder_page import page_of, server_of
from flaxformer.store.store import Store


def complete(root):
    fill(root, tiny(), lambda trial: 2.0 if trial.arm.labels["rate"] == "low" else 1.0)


@pytest.fixture
def ask(tmp_path):
    """A function that asks the server of a folder, and returns status and text."""
    server = server_of(tmp_path / "out", 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def get(path="/", host=None, method="GET"):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        connection.request(method, path, headers={} if host is None else {"Host": host})
        response = connection.getresponse()
        return response.status, response.read().decode()

    get.port = server.server_port
    yield get
    server.shutdown()
    server.server_close()


def test_a_complete_study_shows_its_report_once(tmp_path, ask):
    complete(tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    status, text = ask()
    assert status == 200
    assert "high is better than low" in text
    assert "http-equiv" not in text
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


def test_an_incomplete_study_shows_its_progress_and_no_result(tmp_path, ask):
    complete(tmp_path / "out")
    store = Store(tmp_path / "out")
    for path in list(store.groups.iterdir())[:1]:
        path.unlink()
    log = (tmp_path / "out" / "declarations.jsonl").read_bytes()
    status, text = ask()
    assert status == 200
    assert 'http-equiv="refresh"' in text
    assert "0 of 12 runs finished" in text
    assert "high is better than low" not in text
    assert (tmp_path / "out" / "declarations.jsonl").read_bytes() == log  # it is no interim analysis


def test_only_this_machine_and_only_the_page(tmp_path, ask):
    complete(tmp_path / "out")
    assert ask(host="example.org")[0] == 403
    assert ask(host="example.org:80")[0] == 403
    assert ask(host="localhost:1")[0] == 200
    assert ask("/../study.json")[0] == 404
    assert ask("/study.json")[0] == 404
    assert ask(method="POST")[0] == 501


@pytest.mark.parametrize("host", ["[bad", "evil.org@127.0.0.1", "127.0.0.1.evil.org", "localhost.", ""])
def test_only_exact_names_of_this_machine_are_answered(tmp_path, ask, capfd, host):
    complete(tmp_path / "out")
    assert ask(host=host)[0] == 403
    assert ask(path="//[bad")[0] == 404
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("text", [b"", b"GET / HTTP/1.0\r\n"])
def test_a_connection_that_asks_for_nothing_does_not_stop_others(tmp_path, ask, text):
    complete(tmp_path / "out")
    with socket.create_connection(("127.0.0.1", ask.port)) as idle:
        idle.sendall(text)
        assert ask()[0] == 200


def test_a_reader_who_leaves_is_no_error(tmp_path, ask, capfd):
    complete(tmp_path / "out")
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", ask.port)) as left:
            left.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            left.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
    assert ask()[0] == 200  # after the pages of the others
    assert capfd.readouterr().err == ""


def test_a_folder_that_is_damaged_while_it_is_served_is_an_error_in_words(tmp_path, ask):
    complete(tmp_path / "out")
    (tmp_path / "out" / "study.json").write_text("{<script>")
    status, text = ask()
    assert status == 500
    assert "<script>" not in text
    assert "study.json" in text


@pytest.mark.parametrize("port", ["-1", "65536"])
def test_what_is_not_a_port_is_refused(tmp_path, capsys, port):
    complete(tmp_path / "out")
    assert main(["status", str(tmp_path / "out"), "--serve", port]) == 2
    assert "serve" in capsys.readouterr().err


def test_a_job_and_a_ledger_have_a_page(tmp_path):

    from flaxformer.ledger import log

    (tmp_path / "book").mkdir()
    log.append(tmp_path / "book", [], begun())
    text = page_of(tmp_path / "book")
    assert "No attempt was made yet." in text
    assert 'http-equiv="refresh"' in text
