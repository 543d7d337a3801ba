"""A program that answers prompts as was recorded, until it is killed: recorded_server.py PORT FILE.

Every line of the file is a prompt and its answer, both as JSON, with a tabulator between them. It starts at once, as it
imports little.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MODELS = b'{"data": [{"id": "tiny", "owned_by": "vllm"}]}'


class RecordedHandler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    answers: dict[bytes, bytes]

    def log_message(self, *_: object) -> None:
        """Prints nothing."""

    def do_GET(self) -> None:
        self.send({"/v1/models": MODELS, "/version": b'{"version": "0.32.0"}'}.get(self.path))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send(self.answers[json.dumps(body["prompt"]).encode()])

    def send(self, content: bytes | None) -> None:
        self.send_response(404 if content is None else 200)
        self.send_header("content-length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")


class RecordedServer(ThreadingHTTPServer):
    """A server for many connections at a time."""

    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: object) -> None:
        """Says nothing: clients are killed on purpose."""


def record(answers: dict[tuple[int, ...], bytes], path: Path) -> Path:
    """Writes answers by prompt into a file."""
    path.write_bytes(b"".join(json.dumps(ids).encode() + b"\t" + answer + b"\n" for ids, answer in answers.items()))
    return path


if __name__ == "__main__":
    pairs = (line.split(b"\t") for line in Path(sys.argv[2]).read_bytes().splitlines())
    RecordedHandler.answers = dict(pairs)
    RecordedServer(("127.0.0.1", int(sys.argv[1])), RecordedHandler).serve_forever()
