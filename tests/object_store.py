"""A real S3 server in this process (moto's), with one empty bucket, found through the environment
as any other.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from moto.server import ThreadedMotoServer

BUCKET = "s3://bucket"


@contextmanager
def s3_server() -> Iterator[str]:
    """The address of the server; clients of this process and of those that it starts go there."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    names = {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",  # the server takes any
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        with patch.dict("os.environ", names):
            from s3fs import S3FileSystem

            S3FileSystem.clear_instance_cache()
            S3FileSystem().makedirs("bucket", exist_ok=True)  # what it holds is the process's
            yield address
    finally:
        server.stop()
