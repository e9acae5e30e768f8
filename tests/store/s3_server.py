"""A server of S3 on this machine (moto), whose variables commands of other processes read."""

import contextlib
import importlib.util
import os
from collections.abc import Iterator

import pytest

MISSING = [name for name in ("moto", "s3fs", "flask") if importlib.util.find_spec(name) is None]
needs_server = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
BUCKET = "s3://bucket"


@contextlib.contextmanager
def server() -> Iterator[dict[str, str]]:
    """Yield the environment in which s3:// is a server with an empty bucket."""
    from moto.server import ThreadedMotoServer

    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    environment = keys | {"AWS_ENDPOINT_URL": f"http://{host}:{port}"}
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            import s3fs

            s3fs.S3FileSystem(skip_instance_cache=True).mkdir("bucket")
            yield {**os.environ, **environment}
    finally:
        running.stop()
