"""What is kept of people: a keyed digest to know them again, and sealed text to answer them.

Phone numbers are few enough to be tried out one by one, so that a plain hash hides nothing: HMAC-SHA256 with
a key of the operator's (RFC 2104). What must be readable again is sealed with AES-256-GCM (RFC 5116), bound
to its queue. Both keys are derived from one secret (HKDF, RFC 5869), for one channel each.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from os import urandom

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from astromesh.errors import ConfigError
from astromesh.types import JsonObject

_NONCE, _KEY = 12, 32
#: hex digits of a digest: 128 bits
_DIGITS = 32


class Seal:
    """Digests and seals of one channel.

    Args:
        secret: `identity_key`, or what the channel has for one. With another secret, people are strangers
            and what was sealed cannot be read.
        channel: its name.
    """

    def __init__(self, secret: str, channel: str) -> None:
        self._digest = _derived(secret, f"astromesh {channel} digest")
        self._cipher = AESGCM(_derived(secret, f"astromesh {channel} seal"))

    def digest(self, *parts: str) -> str:
        """32 hex digits, the same for the same texts."""
        text = orjson.dumps(parts)
        return hmac.new(self._digest, text, sha256).hexdigest()[:_DIGITS]

    def seal(self, data: JsonObject, about: str) -> bytes:
        """Args: about: what `unseal` must say again."""
        nonce = urandom(_NONCE)
        return nonce + self._cipher.encrypt(nonce, orjson.dumps(data), about.encode())

    def unseal(self, sealed: bytes, about: str) -> JsonObject:
        """Raises: ConfigError: it was sealed with another secret, or about something else."""
        try:
            data: JsonObject = orjson.loads(
                self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], about.encode())
            )
        except InvalidTag as error:
            raise ConfigError(
                "The inbox holds what was sealed with another identity_key: set that one again, or erase it."
            ) from error
        return data


def _derived(secret: str, purpose: str) -> bytes:
    return HKDF(SHA256(), _KEY, None, purpose.encode()).derive(secret.encode())
