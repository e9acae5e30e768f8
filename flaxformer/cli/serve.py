"""A server of the page of a folder on this machine: `status --serve`."""

import http.server
import threading
from html import escape
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from flaxformer.cli.folder_page import page_of
from flaxformer.cli.live import SECONDS_BETWEEN_PAGES
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


def _handler_of(folder: Path) -> type[http.server.BaseHTTPRequestHandler]:
    """The handler that answers `GET /` with the page of a folder, and everything else with an error."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name of the base class
            if urlsplit(f"//{self.headers.get('Host', '')}").hostname not in HOSTS:
                self.send_error(403, f"ask for http://{HOST}")
            elif urlsplit(self.path).path != "/":
                self.send_error(404)
            else:
                self._send_page()

        def _send_page(self) -> None:
            try:
                code, text = 200, page_of(folder, SECONDS_BETWEEN_PAGES)
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
        return http.server.HTTPServer((HOST, port), _handler_of(folder))
    except OSError as error:
        raise UserError(f"port {port} of {HOST} cannot be used: {error.strerror}; expected another --serve") from None


def serve(folder: Path, port: int, console: Console) -> int:
    """Serve the page until the command is interrupted."""
    page_of(folder, SECONDS_BETWEEN_PAGES)  # a folder without results is a mistake of the command
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
