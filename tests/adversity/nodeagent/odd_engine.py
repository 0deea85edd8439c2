"""An engine that misbehaves, in the place of ``llama-server``: what it does is in its file's name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HOW = Path(sys.argv[0]).name
BEGUN = time.monotonic()
SLEEP = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def after(option: str) -> str:
    return sys.argv[sys.argv.index(option) + 1]


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        return

    def say(self, status: int, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self) -> None:
        loading = time.monotonic() - BEGUN < 1.0
        if self.path == "/v1/models":
            self.say(200, {"data": [{"id": after("--alias")}]})
        elif self.path == "/health" and HOW == "says-loading-with-200" and loading:
            self.say(200, {"status": "loading model"})
        elif self.path == "/health" and HOW == "lists-models-first" and loading:
            self.say(503, {"error": "loading"})
        elif self.path == "/health" and HOW == "notes-each-look":
            sys.stdout.write(f'127.0.0.1 - "GET {self.path} HTTP/1.1" 503\n')
            sys.stdout.flush()
            self.say(503, {"error": "warming up"})
        elif self.path == "/health":
            self.say(200, {"status": "ok"})
        elif self.path == "/metrics":
            # Health is well, requests are there and nothing moves.
            running = 1 if HOW == "deadlocks" else 0
            page = f"llamacpp:requests_processing {running}\nllamacpp:n_decode_total 7\n".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)
        else:
            self.say(404, {})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if HOW == "healthy-and-useless":
            self.say(500, {"error": "no"})
        else:
            self.say(200, {"choices": [{"text": "a"}]})


def main() -> None:
    if HOW == "out-of-memory":
        sys.stderr.write("ggml_cuda: cudaMalloc failed: out of memory\nfailed to load model of user hunter2\n")
        sys.exit(1)
    if HOW == "scatters-workers":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for session in (True, False):
            subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=session)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:  # its parent ends at once: it belongs to nobody
                time.sleep(600)
            os._exit(0)
    ThreadingHTTPServer((after("--host"), int(after("--port"))), Answers).serve_forever()


if __name__ == "__main__":
    main()
