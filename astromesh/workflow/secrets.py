"""Secrets of provider_credentials.yaml: from the environment or a file, plain or encrypted (workflow.md E62).

An encrypted secret is a Fernet token (https://github.com/fernet/spec), written by `astromesh keys encrypt`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import orjson

from astromesh.config.workflow.agents import AuthSpec
from astromesh.errors import InvalidInput, MissingKey


def secret(auth: AuthSpec, folder: Path, env: Mapping[str, str]) -> str:
    """The secret that a credential refers to; it goes to the adapter and nowhere else.

    Raises:
        MissingKey: the variable or file is not there, it is empty, or its key is another one.
    """
    if auth.source == "env":
        found, where = env.get(auth.env_var or "", ""), f"the environment variable {auth.env_var}"
    else:
        file = folder / (auth.file_path or "")
        where = f"the file {file.name}"
        try:
            found = _within(file.read_text(), auth.file_key)
        except (OSError, KeyError, TypeError, orjson.JSONDecodeError) as error:
            raise MissingKey(f"There is no credential in {where}.") from error
    if not found:
        raise MissingKey(f"There is no credential in {where}.")
    return decrypted(found, _key(auth, folder, env), where) if auth.type == "encrypted" else found


def encrypted(text: str, key: str) -> str:
    """A Fernet token of the text.

    Args:
        key: 32 bytes in URL-safe base64.

    Raises:
        InvalidInput: it is no such key.
    """
    return str(_fernet(key).encrypt(text.encode()).decode())


def decrypted(token: str, key: str, where: str) -> str:
    try:
        return str(_fernet(key).decrypt(token.strip().encode()).decode())
    except (_library().InvalidToken, InvalidInput) as error:
        raise MissingKey(
            f"The credential in {where} cannot be decrypted: its key_env or key_file holds another key."
        ) from error


def new_key() -> str:
    return str(_library().Fernet.generate_key().decode())


def _fernet(key: str) -> Any:
    try:
        return _library().Fernet(key.strip())
    except ValueError as error:
        raise InvalidInput("A key is 32 bytes in URL-safe base64; --new-key makes one.") from error


def _library() -> Any:
    # loaded on first use: a server without encrypted credentials starts without it
    return importlib.import_module("cryptography.fernet")


def _key(auth: AuthSpec, folder: Path, env: Mapping[str, str]) -> str:
    if auth.key_env:
        found = env.get(auth.key_env, "")
        if not found:
            raise MissingKey(f"There is no key in the environment variable {auth.key_env}.")
        return found
    if not auth.key_file:
        raise MissingKey("auth.type: encrypted needs key_env or key_file.")
    try:
        return (folder / auth.key_file).read_text()
    except OSError as error:
        raise MissingKey(f"There is no key in the file {Path(auth.key_file).name}.") from error


def _within(text: str, key: str | None) -> str:
    if not key:
        return text.strip()
    return str(reduce(lambda value, part: value[part], key.split("."), orjson.loads(text)))
