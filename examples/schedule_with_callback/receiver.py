"""Receives callbacks, checks their signature and prints the answers: python receiver.py [PORT].

CALLBACK_SECRET holds the secret that the server signs with.
"""

from __future__ import annotations

import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks import Webhook, WebhookVerificationError


class Receiver(BaseHTTPRequestHandler):
    """Answers 204 if the signature is right, else 401."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        try:
            call: Any = Webhook(os.environ["CALLBACK_SECRET"]).verify(body, dict(self.headers.items()))
        except WebhookVerificationError:
            self.send_response(401)
        else:
            # a call may come twice, e.g. after a crash: `webhook-id` tells which one it is
            print(self.headers["webhook-id"], call["type"], call["data"]["result"]["response"], flush=True)
            self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8099
    ThreadingHTTPServer(("127.0.0.1", port), Receiver).serve_forever()
