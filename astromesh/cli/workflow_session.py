"""A session with a workflow: what a line becomes, what is attached, what was asked (document 004 8.9).

Everything that is asked goes through `ask` or `queue`, which are the engine's `run` and `submit`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson

from astromesh.abc.events import EventSink
from astromesh.cli.workflow import parsed
from astromesh.config.workflow.operations import CommandProfile, InputMapping, ProfilesFile
from astromesh.errors import InvalidInput
from astromesh.runtime.registry import Viewer
from astromesh.runtime.task_asked import Asked
from astromesh.runtime.tasks import Workflows
from astromesh.types import JsonObject
from astromesh.workflow.project import PROFILES, Project
from astromesh.workflow.result import TaskResult

#: who works with a workflow on this machine
OPERATOR = Viewer("default", None)
#: bytes of one attached file
_MOST = 1 << 20


def profile_of(project: Project, wanted: str) -> CommandProfile:
    """A profile of cli_profiles.yaml; without a name the first, without a file one that takes JSON or text.

    Raises:
        InvalidInput: there is none of this name.
    """
    profiles = project.files.file(PROFILES, ProfilesFile).profiles
    if not wanted:
        plain = CommandProfile(id="default", input_mappings={"default": InputMapping(mode="json")})
        return profiles[0] if profiles else plain
    for profile in profiles:
        if profile.id == wanted:
            return profile
    known = ", ".join(profile.id for profile in profiles) or "none"
    raise InvalidInput(f"{PROFILES} of {project.name!r} has no profile {wanted!r}; known: {known}.")


class Session:
    """One session with one workflow. Custom commands get it as their second argument.

    Args:
        workspace: the folder that attachments must lie in.
        start: a start node, None for the default one.
    """

    def __init__(
        self,
        workflows: Workflows,
        project: Project,
        profile: CommandProfile,
        workspace: Path,
        start: str | None = None,
    ) -> None:
        self.id = f"session-{uuid4().hex[:12]}"
        self.profile, self.start = profile, start
        self._workflows, self._project, self._workspace = workflows, project, workspace.resolve()
        policies = profile.session_policies
        self._file = project.folder / policies.history_file if policies.persist_history else None
        self.history: deque[JsonObject] = deque(self._kept(), maxlen=policies.max_history_items)
        self.attachments: list[JsonObject] = []
        self.queued: list[str] = []
        self.sinks: tuple[EventSink, ...] = ()
        self.last: Asked | None = None
        self.line = ""

    # -- asking ----------------------------------------------------------------------------------------------

    def asked(self, line: str) -> Asked:
        """What the engine is asked for a line; it takes the attachments along."""
        self.line = line
        attachments, self.attachments = self.attachments, []
        mappings = self.profile.input_mappings
        mapping = mappings.get(self.start or "", mappings.get("default", InputMapping()))
        if mapping.mode != "chat":
            if attachments:
                raise InvalidInput("Attachments need a profile whose input mapping has mode: chat.")
            return Asked(parsed(line) if mapping.mode == "json" else line, self.start)
        value: JsonObject = {"text": line}
        if mapping.attach_files_as_context and attachments:
            value["attachments"] = attachments
        if mapping.include_session_id:
            value["session_id"] = self.id
        if mapping.include_profile_id:
            value["profile_id"] = self.profile.id
        return Asked(value, self.start)

    async def ask(self, asked: Asked) -> TaskResult:
        """Runs a Task to its end; `/retry` asks the same again."""
        self.last = asked
        result = await self._workflows.run(self._project.name, asked, sinks=self.sinks)
        self._note(asked, result.task_id, result.status, result.output)
        return result

    async def run(self, input: Any) -> TaskResult:
        """For custom commands: a Task with this input."""
        return await self.ask(Asked(input, self.start))

    async def queue(self, asked: Asked) -> str:
        """Submits a durable Task and does not wait for it."""
        self.last = asked
        row = await self._workflows.accept(self._project.name, asked)
        self.queued.append(row.task_id)
        self._note(asked, row.task_id, "queued", None)
        return row.task_id

    async def queue_states(self) -> list[JsonObject]:
        return [await self._workflows.tasks.state(task_id, OPERATOR) for task_id in self.queued]

    async def queue_ended(self) -> list[JsonObject]:
        """Every submitted Task when it has ended."""
        return [await self._workflows.tasks.ended(task_id, OPERATOR) for task_id in self.queued]

    # -- files -----------------------------------------------------------------------------------------------

    def attach(self, path: str) -> JsonObject:
        """Takes a text file along with the next line.

        Raises:
            InvalidInput: as `read`.
        """
        found = {"name": Path(path).name, "text": self.read(path)}
        self.attachments.append(found)
        return found

    def read(self, path: str) -> str:
        """A text file of the workspace.

        Raises:
            InvalidInput: it is none, it is too large, or it lies outside, by whatever link.
        """
        file = (self._workspace / path).resolve()
        if not file.is_relative_to(self._workspace):
            raise InvalidInput(f"{path} lies outside of the workspace {self._workspace}.")
        try:
            if file.stat().st_size > _MOST:
                raise InvalidInput(f"{path} is larger than {_MOST >> 20} MiB.")
            return file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{path} is no text file that can be read: {error}.") from error

    # -- history ---------------------------------------------------------------------------------------------

    def _kept(self) -> Sequence[JsonObject]:
        if self._file is None or not self._file.exists():
            return ()
        found: list[JsonObject] = []
        for line in self._file.read_bytes().splitlines():
            try:
                found.append(orjson.loads(line))
            except orjson.JSONDecodeError:  # a line that a killed process did not finish
                continue
        return found

    def _note(self, asked: Asked, task_id: str, status: str, output: Any) -> None:
        entry = {
            "at": time.time(), "session": self.id, "task_id": task_id, "status": status, "line": self.line,
            "input": self._told(asked.input), "output": output,
        }  # fmt: skip
        self.history.append(entry)
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("ab") as file:
                file.write(orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))

    def _told(self, input: Any) -> Any:
        keep = self.profile.session_policies.persist_attachments
        if keep or not isinstance(input, Mapping) or "attachments" not in input:
            return input
        return {**input, "attachments": [{"name": one["name"]} for one in input["attachments"]]}
