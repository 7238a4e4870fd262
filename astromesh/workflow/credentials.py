"""Secrets of provider_credentials.yaml: from the environment or a file, plain or encrypted.

An encrypted secret is a Fernet token (https://github.com/fernet/spec), written by `astromesh keys encrypt`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any

import orjson

from astromesh.config.workflow import AuthSpec, CredentialSpec
from astromesh.errors import InvalidInput, MissingKey

#: characters of a secret that is masked within words, and of one that is masked at all, as a whole word
_WITHIN_WORDS, _MIN_MASKED = 8, 4


def read_secret(auth: AuthSpec, folder: Path, env: Mapping[str, str]) -> str:
    """Reads the secret of a credential; only the adapter may receive it.

    Raises:
        MissingKey: the variable or file does not exist, is empty, or was encrypted with another key.
    """
    if auth.source == "env":
        found, where = env.get(auth.env_var or "", ""), f"the environment variable {auth.env_var}"
    else:
        file = folder / (auth.file_path or "")
        where = f"the file {file.name}"
        try:
            found = _value_at(file.read_text(), auth.file_key)
        except (OSError, KeyError, TypeError, orjson.JSONDecodeError) as error:
            raise MissingKey(_no_credential(where)) from error
    if not found:
        raise MissingKey(_no_credential(where))
    return decrypt_secret(found, _key(auth, folder, env), where) if auth.type == "encrypted" else found


def masked_secrets(
    credentials: Iterable[CredentialSpec], folder: Path, env: Mapping[str, str]
) -> tuple[str, ...]:
    """Returns the secrets to mask, the longest first: those that exist and are not short."""
    found: set[str] = set()
    for credential in credentials:
        with suppress(MissingKey):
            found.add(read_secret(credential.auth, folder, env))
    return tuple(sorted((one for one in found if len(one) >= _MIN_MASKED), key=len, reverse=True))


def mask_secrets(value: Any, secrets: Sequence[str]) -> Any:
    """Returns a JSON value with `***` in place of these secrets, in keys and inside texts too.

    A short secret is masked where it stands alone: it may be part of an ordinary word.
    """
    if isinstance(value, str):
        return _pattern_of(tuple(secrets)).sub("***", value)
    if isinstance(value, dict):
        return {mask_secrets(key, secrets): mask_secrets(one, secrets) for key, one in value.items()}
    return [mask_secrets(one, secrets) for one in value] if isinstance(value, list) else value


@lru_cache(maxsize=64)
def _pattern_of(secrets: tuple[str, ...]) -> re.Pattern[str]:
    parts = (
        re.escape(one) if len(one) >= _WITHIN_WORDS else rf"(?<!\w){re.escape(one)}(?!\w)" for one in secrets
    )
    return re.compile("|".join(parts) or r"(?!)")


def _no_credential(where: str) -> str:
    return f"There is no credential in {where}. Store it there, or change provider_credentials.yaml."


def encrypt_secret(text: str, key: str) -> str:
    """Encrypts a text into a Fernet token.

    Args:
        key: 32 bytes in URL-safe base64.

    Raises:
        InvalidInput: the key has another form.
    """
    return str(_fernet(key).encrypt(text.encode()).decode())


def decrypt_secret(token: str, key: str, where: str) -> str:
    try:
        return str(_fernet(key).decrypt(token.strip().encode()).decode())
    except (_fernet_module().InvalidToken, InvalidInput) as error:
        raise MissingKey(
            f"The credential in {where} cannot be decrypted. Its key_env or key_file contains another key."
        ) from error


def new_key() -> str:
    return str(_fernet_module().Fernet.generate_key().decode())


def _fernet(key: str) -> Any:
    try:
        return _fernet_module().Fernet(key.strip())
    except ValueError as error:
        raise InvalidInput("A key must be 32 bytes in URL-safe base64. Create one with --new-key.") from error


def _fernet_module() -> Any:
    # imported on first use: a server without encrypted credentials does not need it
    return importlib.import_module("cryptography.fernet")


def _key(auth: AuthSpec, folder: Path, env: Mapping[str, str]) -> str:
    if auth.key_env:
        found = env.get(auth.key_env, "")
        if not found:
            raise MissingKey(f"There is no key in the environment variable {auth.key_env}. Set it.")
        return found
    if not auth.key_file:
        raise MissingKey("auth.type: encrypted needs key_env or key_file. Write one of them.")
    try:
        return (folder / auth.key_file).read_text()
    except OSError as error:
        raise MissingKey(f"There is no key in the file {Path(auth.key_file).name}. Write it.") from error


def _value_at(text: str, key: str | None) -> str:
    if not key:
        return text.strip()
    return str(reduce(lambda value, part: value[part], key.split("."), orjson.loads(text)))
