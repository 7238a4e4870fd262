"""`astromesh keys encrypt`: secrets for `auth: {type: encrypted}` of provider_credentials.yaml."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from astromesh.cli.output import note
from astromesh.errors import InvalidInput
from astromesh.workflow.secrets import encrypted, new_key


def encrypt(key_env: str, key_file: Path | None, *, makes_key: bool) -> None:
    """Prints the encrypted form of what is read from stdin.

    Args:
        key_env, key_file: where the key is; one of them.
        makes_key: the file does not exist yet and gets a new key.

    Raises:
        InvalidInput: there is no key, or nothing to encrypt.
    """
    key = _made(key_file) if makes_key else _key(key_env, key_file)
    if sys.stdin.isatty():
        note("Type the secret, then Ctrl-D.")
    text = sys.stdin.read().strip()
    if not text:
        raise InvalidInput("There is nothing to encrypt: the secret is read from stdin.")
    print(encrypted(text, key))


def _made(file: Path | None) -> str:
    if file is None:
        raise InvalidInput("--new-key needs --key-file FILE, where the key is written.")
    key = new_key()
    try:
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise InvalidInput(f"The key cannot be written to {file}: {error.strerror}.") from error
    with os.fdopen(opened, "w") as out:
        out.write(key + "\n")
    note(f"a new key is in {file}; keep it apart from the secrets")
    return key


def _key(variable: str, file: Path | None) -> str:
    if bool(variable) == (file is not None):
        raise InvalidInput("Name the key: either --key-env VARIABLE or --key-file FILE.")
    if file is None:
        if not os.environ.get(variable):
            raise InvalidInput(f"The environment variable {variable} is not set.")
        return os.environ[variable]
    try:
        return file.read_text()
    except OSError as error:
        raise InvalidInput(f"The key file {file} cannot be read: {error.strerror}.") from error
