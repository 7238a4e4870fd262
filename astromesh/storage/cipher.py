"""Digests and encryption of texts in stores, with keys that are derived from one secret."""

from __future__ import annotations

import hmac
import importlib
from hashlib import sha256
from os import urandom
from typing import Any

import orjson

from astromesh.errors import ConfigError
from astromesh.types import JsonObject

_NONCE, _KEY = 12, 32
#: hex digits of a digest: 128 bits
_DIGITS = 32


class StoredCipher:
    """Digests and encrypts (AES-256-GCM) what a store must not hold in plain.

    Args:
        secret: With another one, digests differ and stored data cannot be decrypted.
        purpose: Data of one purpose cannot be decrypted for another one.
        fault: What `decrypt` says about another secret.
    """

    def __init__(self, secret: str, purpose: str, fault: str) -> None:
        self._digest = _derive_key(secret, f"astromesh {purpose} digest")
        self._cipher = _cryptography("hazmat.primitives.ciphers.aead").AESGCM(
            _derive_key(secret, f"astromesh {purpose} seal")
        )
        self._fault = fault

    def digest(self, *parts: str) -> str:
        """Returns 32 hex digits, equal for equal texts."""
        text = orjson.dumps(parts)
        return hmac.new(self._digest, text, sha256).hexdigest()[:_DIGITS]

    def encrypt(self, data: JsonObject, about: str) -> bytes:
        """Returns encrypted JSON. Args: about: the text that `decrypt` must be called with."""
        nonce = urandom(_NONCE)
        encrypted: bytes = self._cipher.encrypt(nonce, orjson.dumps(data), about.encode())
        return nonce + encrypted

    def decrypt(self, encrypted: bytes, about: str) -> JsonObject:
        """Raises: ConfigError: it was encrypted with another secret, or with another `about`."""
        try:
            data: JsonObject = orjson.loads(
                self._cipher.decrypt(encrypted[:_NONCE], encrypted[_NONCE:], about.encode())
            )
        except _cryptography("exceptions").InvalidTag as error:
            raise ConfigError(self._fault) from error
        return data


def _derive_key(secret: str, purpose: str) -> bytes:
    sha_256 = _cryptography("hazmat.primitives.hashes").SHA256()
    derivation = _cryptography("hazmat.primitives.kdf.hkdf").HKDF(sha_256, _KEY, None, purpose.encode())
    key: bytes = derivation.derive(secret.encode())
    return key


def _cryptography(module: str) -> Any:
    # imported on first use: a server without channels and callbacks does not need it
    return importlib.import_module(f"cryptography.{module}")
