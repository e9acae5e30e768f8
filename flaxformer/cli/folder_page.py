"""Page of a folder as it is now, and a server of it on this machine: a report, or the progress of a study.

A study whose runs are not all there has its progress, and no estimate: a look before the end would be an interim
analysis. Once it is complete, its report is shown; of training jobs and ledgers, always what there is.
"""

import contextlib
import http.server
import threading
from html import escape
from pathlib import Path

from rich.console import Console

from flaxformer.analysis.analysis import analyse
from flaxformer.cli.study_progress import groups_table, is_over, lease_line, summary
from flaxformer.ledger.page import document as ledger_document
from flaxformer.ledger.reading import is_ledger, read_ledger
from flaxformer.report import figures, html
from flaxformer.report.document import document
from flaxformer.report.job import is_job, job_document, read_job
from flaxformer.report.sections import Bullets, Figure, ReportSection, StudyReport
from flaxformer.store.line_forms import LAUNCHES
from flaxformer.store.places import SECONDS_BETWEEN_PAGES
from flaxformer.store.status import StudyStatus, status
from flaxformer.store.store import Store, read_lines
from flaxformer.system.errors import UserError

HOST = "127.0.0.1"
HOSTS = {HOST, "localhost"}
"""Names by which the page may be asked for; another name would be that of a page elsewhere."""
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'",
}
LAST_PORT = 65_535
SECONDS_TO_ASK = 10.0
"""Time after which a connection on which nothing is asked, or nothing is read, is closed."""


def page_of(folder: Path) -> str:
    """Return the page of a folder as it is now, which a browser asks for every few seconds until nothing more comes."""
    report, is_complete = _report_of(folder)
    drawn = figures.draw_for_notebook(part for part in report.parts if isinstance(part, Figure))
    text = html.render(report, drawn)
    refresh = f'<meta http-equiv="refresh" content="{SECONDS_BETWEEN_PAGES}">'
    return text if is_complete else text.replace("<head>", f"<head>\n{refresh}", 1)


def _report_of(folder: Path) -> tuple[StudyReport, bool]:
    """The report, and whether it is the last one; a ledger may always get another attempt."""
    if is_ledger(folder):
        return ledger_document(read_ledger(folder)), False
    if is_job(folder):
        job = read_job(folder)
        return job_document(job), job.is_finished or job.has_diverged
    store = Store(folder)
    progress = status(store)
    if not is_over(progress):
        return _progress(store, progress), False
    return document(analyse(store), read_lines(folder / LAUNCHES)), True


def _progress(store: Store, progress: StudyStatus) -> StudyReport:
    """The progress of a study as a report without results."""
    declared = store.read_declaration()
    damaged = [f"{name} is damaged ({what})." for name, what in progress["damaged"].items()]
    return StudyReport(
        name=declared.name,
        question=declared.question,
        about="verdicts follow when every run has ended",
        answer=f"{summary(progress)}.",
        verdict="",
        sections=[
            ReportSection("Programs", [groups_table(progress)]),
            ReportSection("Processes", [Bullets([*map(lease_line, progress["leases"]), *damaged])]),
        ],
    )


def _handler_of(folder: Path) -> type[http.server.BaseHTTPRequestHandler]:
    """The handler that answers `GET /` with the page of a folder, and everything else with an error."""
    one_page_at_a_time = threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = SECONDS_TO_ASK

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):  # the other side has closed it
                super().handle()

        def do_GET(self) -> None:  # the name of the base class
            if self.headers.get("Host", "").partition(":")[0].lower() not in HOSTS:
                self.send_error(403, f"ask for http://{HOST}")
            elif self.path.partition("?")[0] != "/":
                self.send_error(404)
            else:
                self._send_page()

        def _send_page(self) -> None:
            try:
                with one_page_at_a_time:
                    code, text = 200, page_of(folder)
            except (UserError, OSError) as error:
                code, text = 500, f"<pre>{escape(str(error))}</pre>"
            content = text.encode(errors="replace")
            self.send_response(code)
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *values: object) -> None:  # noqa: A002  # the name of the base class
            pass

    return Handler


def server_of(folder: Path, port: int) -> http.server.HTTPServer:
    """Return a server of the page, which begins to serve with `serve_forever`; port 0 is a free one.

    Raises:
      UserError: the port is not one, or is taken.
    """
    if not 0 <= port <= LAST_PORT:
        raise UserError(f"--serve is {port}; expected a port from 0 (a free one) to {LAST_PORT:,}")
    try:
        return http.server.ThreadingHTTPServer((HOST, port), _handler_of(folder))  # browsers keep idle connections
    except OSError as error:
        raise UserError(f"port {port} of {HOST} cannot be used: {error.strerror}; expected another --serve") from None


def serve(folder: Path, port: int, console: Console) -> int:
    """Serve the page until the command is interrupted."""
    page_of(folder)  # a folder without results is a mistake of the command
    with server_of(folder, port) as server:
        console.print(f"http://{HOST}:{server.server_port} shows {folder} until Ctrl-C", soft_wrap=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(0.5)
        finally:
            server.shutdown()
    return 0
