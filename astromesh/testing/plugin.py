"""Hands a ready object through the door that plugins come in by."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class AnyOptions(BaseModel):
    """Takes every option."""

    model_config = ConfigDict(extra="allow")


def plugin_of(instance: Any, options: type[BaseModel] = AnyOptions) -> type[Any]:
    """A plugin class whose `open` answers this object.

    Example: `Plugins({"providers": {"scripted": plugin_of(ScriptedProvider("hello"))}})`.
    """

    class Ready:
        Options = options
        opened: list[BaseModel] = []  # noqa: RUF012 - one per plugin_of call: with which options it was opened

        @classmethod
        async def open(cls, options: BaseModel, deps: object) -> Any:
            cls.opened.append(options)
            return instance

    return Ready
