"""Agent Skills in three levels: names and descriptions in the prompt, instructions and files on request.

Source: the Agent Skills specification (agentskills.io), "Progressive disclosure". Nothing of a skill is run:
a script is a file that the model can read. What it shall call is a tool of the agent.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from html import escape
from itertools import islice
from pathlib import Path

from msgspec.structs import replace

from astromesh.config.skills import READ_SKILL, SKILL_FILE, Skill
from astromesh.errors import InvalidToolCall
from astromesh.text import did_you_mean
from astromesh.tools.file_root import FileRoot
from astromesh.tools.functions import FunctionTool

#: bytes of one file, and files that the instructions are followed by
_MAX_BYTES, _MAX_FILES = 1_048_576, 100
#: files beyond these are not looked for
_MAX_WALKED = 1000
_INTRODUCTION = f"""## Skills

A skill has instructions for one kind of work. If a description fits the task, read the skill with the tool
{READ_SKILL} first, and follow it. Scripts of skills cannot be run; only your tools can."""


def skills_prompt(skills: Mapping[str, Skill]) -> str:
    """Returns the part of a system prompt that names the skills of an agent; empty without skills."""
    if not skills:
        return ""
    listed = "\n".join(
        f"<skill>\n<name>{escape(one.name)}</name>\n"
        f"<description>{escape(one.description)}</description>\n</skill>"
        for one in skills.values()
    )
    return f"{_INTRODUCTION}\n\n<available_skills>\n{listed}\n</available_skills>"


def read_skill_tool(skills: Mapping[str, Skill]) -> FunctionTool:
    """Returns the tool by which a model reads the instructions and the files of skills."""
    roots = {name: FileRoot(one.folder, _MAX_BYTES) for name, one in skills.items()}

    async def read_skill(name: str, path: str = SKILL_FILE) -> str:
        """Reads the instructions of a skill, or one of its files.

        Args:
            name: one of the available skills
            path: a file of the skill, e.g. references/guide.md; absent: the instructions
        """
        skill = skills.get(name)
        if skill is None:
            raise InvalidToolCall(f"There is no skill {name[:64]!r}. {did_you_mean(name, skills)}".strip())
        if path == SKILL_FILE:
            return skill.instructions + await asyncio.to_thread(_files_note, skill.folder)
        return await roots[name].read(path)

    tool = FunctionTool(read_skill)
    tool.spec = replace(tool.spec, trusted=True)
    return tool


def _files_note(folder: Path) -> str:
    files = sorted(islice(_other_files(folder), _MAX_WALKED))
    if not files:
        return ""
    count = "many" if len(files) == _MAX_WALKED else len(files) - _MAX_FILES
    more = f"\n… and {count} more" if len(files) > _MAX_FILES else ""
    return "\n\nFiles of this skill:\n" + "\n".join(f"- {one}" for one in files[:_MAX_FILES]) + more


def _other_files(folder: Path) -> Iterator[str]:
    for above, folders, names in os.walk(folder):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        for name in sorted(names):
            path = (Path(above) / name).relative_to(folder).as_posix()
            if path != SKILL_FILE and not name.startswith("."):
                yield path
