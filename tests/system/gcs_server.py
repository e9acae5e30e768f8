"""An imitation of Google Cloud Storage on this machine: the part of its JSON API that whole objects need."""

import contextlib
import email
import hashlib
import json
import re
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Objects of the bucket "bucket", by name."""

    objects: dict[str, bytes] = {}  # noqa: RUF012

    def answer(self, code, content):
        is_raw = isinstance(content, bytes)
        data = content if is_raw else json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/octet-stream" if is_raw else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):
            self.wfile.write(data)

    def refuse(self, code):
        self.answer(code, {"error": {"code": code, "message": "refused"}})

    def log_message(self, *_):
        pass

    def place(self):
        """The name of the object that is asked for, "" for all, None for another bucket; and the options."""
        url = urllib.parse.urlparse(self.path)
        match = re.fullmatch(r"(?:/download|/upload)?/storage/v1/b/bucket/o(?:/(.+))?", url.path)
        return match and urllib.parse.unquote(match[1] or ""), dict(urllib.parse.parse_qsl(url.query))

    def about(self, name):
        data, time = self.objects[name], "2026-01-01T00:00:00.000Z"
        etag = hashlib.md5(data).hexdigest()
        return {"name": name, "bucket": "bucket", "size": str(len(data)), "etag": etag} | {
            "updated": time, "timeCreated": time
        }  # fmt: skip

    def do_GET(self):
        name, options = self.place()
        if name is None or (name and name not in self.objects):
            self.refuse(404)
        elif name:
            self.answer(200, self.objects[name] if options.get("alt") == "media" else self.about(name))
        else:
            names = [name for name in sorted(self.objects) if name.startswith(options.get("prefix", ""))]
            self.answer(200, {"items": [self.about(name) for name in names]})

    def do_POST(self):
        _, options = self.place()
        body = self.rfile.read(int(self.headers["Content-Length"]))
        header = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        about, content = email.message_from_bytes(header + body).get_payload()
        name = json.loads(about.get_payload())["name"]
        if options.get("ifGenerationMatch") == "0" and name in self.objects:
            self.refuse(412)
        else:
            self.objects[name] = content.get_payload(decode=True)
            self.answer(200, self.about(name))

    def do_DELETE(self):
        name, _ = self.place()
        if self.objects.pop(name, None) is None:
            self.refuse(404)
        else:
            self.answer(204, b"")


@contextlib.contextmanager
def server():
    """Yield the address of a server without objects."""
    running = ThreadingHTTPServer(("127.0.0.1", 0), type("FreshHandler", (Handler,), {"objects": {}}))
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{running.server_port}"
    finally:
        running.shutdown()
        running.server_close()
