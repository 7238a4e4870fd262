"""Tokens for tests, sound and not, and the keys that sign them."""

from __future__ import annotations

import base64
from typing import Any

import jwt
import orjson
from cryptography.hazmat.primitives.asymmetric import ec, rsa

SECRET = "a secret of HS256 that has more than 32 bytes"
ISSUER, AUDIENCE = "https://issuer.example", "astromesh"
RSA_KEY = rsa.generate_private_key(65537, 2048)
OTHER_RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())


def claims(now: float, **more: Any) -> dict[str, Any]:
    """Sound ones; None takes a claim away."""
    whole = {
        "sub": "alice", "iss": ISSUER, "aud": AUDIENCE, "exp": now + 600, "iat": now, "tenant": "acme",
        "roles": ["analyst"], "scope": "agents:run agents:read", **more,
    }  # fmt: skip
    return {name: value for name, value in whole.items() if value is not None}


def signed(body: dict[str, Any], key: Any = SECRET, algorithm: str = "HS256", **header: Any) -> str:
    return jwt.encode(body, key, algorithm, headers=header or None)


def raw(header: Any, body: Any, signature: bytes = b"") -> str:
    """A token of parts as they are; PyJWT would refuse to make most of them."""
    parts = [header if isinstance(header, bytes) else orjson.dumps(header)]
    parts += [body if isinstance(body, bytes) else orjson.dumps(body), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def jwk(key: Any, kid: str, **more: Any) -> dict[str, Any]:
    """The public half as an issuer lists it."""
    algorithm = (
        jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    )
    return {**orjson.loads(algorithm.to_jwk(key.public_key())), "kid": kid, "use": "sig", **more}
