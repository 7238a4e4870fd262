"""Agent Skills: folders whose SKILL.md says what they are for and how to use them.

Source: the Agent Skills specification (agentskills.io), its rules for folders and for the frontmatter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple
from unicodedata import normalize

from pydantic import AfterValidator, BeforeValidator, Field

from astromesh.config.base import Node, Place
from astromesh.config.parser import Document, manifest_fault, parse_text, read_text
from astromesh.config.records import Record
from astromesh.config.validation import validate
from astromesh.errors import InvalidManifest

#: the file of a skill
SKILL_FILE = "SKILL.md"
#: the tool that agents with skills have
READ_SKILL = "read_skill"
_MAX_NAME = 64
_MARK = "---"


def _check_name(name: str) -> str:
    """Raises: ValueError: it is no name of a skill."""
    name = normalize("NFKC", name)
    if len(name) > _MAX_NAME:
        raise ValueError(f"must have at most {_MAX_NAME} characters")
    parts = name.split("-")
    if not all(part and part.isalnum() and part == part.lower() for part in parts):
        raise ValueError("must contain only lower-case letters, digits and single hyphens between them")
    return name


def _as_text(value: object) -> object:
    """Values such as `version: 1.0` are text in a skill."""
    return str(value) if isinstance(value, int | float) else value


_Text = Annotated[str, BeforeValidator(_as_text)]


class SkillHead(Record):
    """The frontmatter of a SKILL.md."""

    name: Annotated[str, AfterValidator(_check_name)] = Field(description="The name of the folder.")
    description: str = Field(
        min_length=1, max_length=1024, pattern=r"\S", description="What the skill does, and when to use it."
    )
    license: _Text | None = Field(None, description="Name of a license, or of a file that contains it.")
    compatibility: str | None = Field(None, max_length=500, description="What the skill needs to work.")
    metadata: dict[str, _Text] = Field(default_factory=dict, description="Free key-value pairs.")
    allowed_tools: str | None = Field(
        None, alias="allowed-tools", description="Tools that the skill uses; approvals stay as they are."
    )


class Skill(NamedTuple):
    """One skill.

    Args:
        folder: Its files.
        instructions: The text of SKILL.md after the frontmatter.
    """

    name: str
    description: str
    folder: Path
    instructions: str


class FoundSkills(NamedTuple):
    """What a folder has: skills by name, faults, and keys that the specification does not know."""

    skills: Mapping[str, Skill]
    faults: tuple[InvalidManifest, ...]
    warnings: tuple[InvalidManifest, ...]


def read_skills(folders: Iterable[Path]) -> FoundSkills:
    """Reads skills, in the order of their folders and names.

    Args:
        folders: Each is a skill, or contains skills.
    """
    skills: dict[str, Skill] = {}
    faults: list[InvalidManifest] = []
    warnings: list[InvalidManifest] = []
    for folder in folders:
        found = list(_skill_files(folder))
        if not found:
            what = f"contains no {SKILL_FILE}" if folder.is_dir() else "the folder does not exist"
            faults.append(manifest_fault(folder, what))
        for file in found:
            skill, wrong, ignored = _read_skill(file)
            faults += wrong
            warnings += ignored
            if skill is not None and (first := skills.setdefault(skill.name, skill)) is not skill:
                message = f"duplicate skill `{skill.name}`, also in {first.folder}"
                faults.append(manifest_fault(file, message, Place(1, 1)))
    return FoundSkills(skills, tuple(faults), tuple(warnings))


def _skill_files(folder: Path) -> Iterator[Path]:
    own = folder / SKILL_FILE
    yield from [own] if own.exists() else sorted(folder.glob(f"[!.]*/{SKILL_FILE}"))


def _read_skill(file: Path) -> tuple[Skill | None, list[InvalidManifest], list[InvalidManifest]]:
    document = read_text(file)
    if document.faults:
        return None, document.faults, []
    head, instructions = _parts(document)
    if head is None:
        return None, document.faults, []
    known = {field.alias or name for name, field in SkillHead.model_fields.items()}
    warnings = [
        manifest_fault(
            file, f"unknown key `{key}`; it has no effect", head.place_of((key,), key=True), (key,)
        )
        for key in head.value
        if key not in known
    ]
    for key in head.value.keys() - known:
        head = head.without((key,))
    record, faults, _ = validate(SkillHead, head, file)
    if record is None:
        return None, list(faults), warnings
    folder = file.parent.resolve()
    if normalize("NFKC", folder.name) != record.name:
        message = f"the folder is named `{folder.name}`, the skill `{record.name}`"
        at = head.place_of(("name",))
        return None, [manifest_fault(file, message, at, ("name",), "Give both one name.")], warnings
    return Skill(record.name, record.description.strip(), folder, instructions), [], warnings


def _parts(document: Document) -> tuple[Node | None, str]:
    """Returns the frontmatter of a SKILL.md, and the text after it. None: it has faults."""
    lines = document.text.split("\n")
    marks = [number for number, line in enumerate(lines) if line.rstrip() == _MARK]
    if marks[:1] != [0] or len(marks) == 1:
        hint = f"Begin it with a line `{_MARK}`, `name`, `description` and another line `{_MARK}`."
        document.fault("has no frontmatter", Place(1, 1), hint=hint)
        return None, ""
    end = marks[1]
    # the empty line stands for the first mark, so that faults have the line of the file
    parse_text("\n" + "\n".join(lines[1:end]), document, None)
    if document.faults or document.node is None:
        return None, ""
    if not isinstance(document.node.value, dict):
        document.fault("the frontmatter must be a mapping with name and description", Place(2, 1))
        return None, ""
    return document.node, "\n".join(lines[end + 1 :]).strip()
