"""The service's side of AWS: it checks signatures, and frames events, by the published descriptions alone.

Signatures: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import json
import struct
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote


def event(kind: str, payload: Any, *, message: str = "event") -> bytes:
    """Returns one message of an event stream. Args: message: `event` or `exception`."""
    headers = {f":{message}-type": kind, ":content-type": "application/json", ":message-type": message}
    head = b"".join(
        struct.pack("!B", len(name)) + name.encode() + struct.pack("!BH", 7, len(value)) + value.encode()
        for name, value in headers.items()
    )
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    prelude = struct.pack("!II", len(head) + len(body) + 16, len(head))
    framed = prelude + struct.pack("!I", binascii.crc32(prelude)) + head + body
    return framed + struct.pack("!I", binascii.crc32(framed))


def is_signed(secret: str, method: str, raw_path: str, headers: Mapping[str, str], body: bytes) -> bool:
    """Whether a request without a query has the signature that this secret key makes."""
    algorithm, _, rest = headers.get("authorization", "").partition(" ")
    if algorithm != "AWS4-HMAC-SHA256":
        return False
    fields = dict(part.strip().split("=", 1) for part in rest.split(","))
    scope = fields["Credential"].split("/")[1:]
    names = fields["SignedHeaders"]
    signed = "".join(f"{name}:{headers[name].strip()}\n" for name in names.split(";"))
    digest = hashlib.sha256(body).hexdigest()
    request = "\n".join((method, quote(raw_path, safe="/~"), "", signed, names, digest))
    text = "\n".join(
        (algorithm, headers["x-amz-date"], "/".join(scope), hashlib.sha256(request.encode()).hexdigest())
    )
    key = b"AWS4" + secret.encode()
    for part in (*scope, text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.compare_digest(key.hex(), fields["Signature"]) and "host" in names.split(";")
