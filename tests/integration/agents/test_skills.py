"""Agent Skills: named in the prompt, read by the model, never run; checked beside the reference library."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import skills_ref

from astromesh import Agent
from astromesh.config.folder import load
from astromesh.config.skills import read_skills
from astromesh.core.tools import read_skill_tool
from astromesh.testing import ScriptedProvider
from astromesh.types import ToolCall
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

QUESTION = {"query": "Send an invoice.", "session_id": "s"}
INVOICE = """---
name: invoice
description: Writes invoices & reminders. Use it when someone has to pay.
license: MIT
metadata:
  version: 1.0
---
# Invoices

Take the number from `${NUMBER}`. See references/layout.md.
"""


def skill(folder: Path, name: str = "invoice", text: str = INVOICE) -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "SKILL.md").write_text(text)
    return folder / name


def head(name: str, about: str = "Does a thing.", more: str = "") -> str:
    return f"---\nname: {name}\ndescription: {about}\n{more}---\nDo it.\n"


async def test_a_model_reads_a_skill_in_three_levels(tmp_path: Path) -> None:
    folder = write(
        tmp_path, manifest(skills=["skills"], permissions={"tools": []}, prompts={"system": "Help."})
    )
    made = skill(folder / "skills")
    (made / "references").mkdir()
    (made / "references" / "layout.md").write_text("Two columns.")
    (made / "scripts").mkdir()
    (made / "scripts" / "send.py").write_text("raise SystemExit")
    skill(folder / "skills", "travel", head("travel"))
    model = ScriptedProvider(
        [ToolCall("c1", "read_skill", '{"name": "invoice"}')],
        [
            ToolCall("c2", "read_skill", '{"name": "invoice", "path": "references/layout.md"}'),
            ToolCall("c3", "read_skill", '{"name": "invoices"}'),
            ToolCall("c4", "read_skill", '{"name": "invoice", "path": "../travel/SKILL.md"}'),
            ToolCall("c5", "read_skill", '{"name": "invoice", "path": "references/none.md"}'),
        ],
        "Sent.",
    )
    async with client_of(runtime_of(folder, model)) as client:
        answer = await client.post("/v1/agents/helper/run", json=QUESTION)
    assert answer.json()["response"] == "Sent."
    first = model.requests[0]
    system = first.messages[0].content
    assert system.startswith("Help.\n\n## Skills")
    assert re.findall("<name>(.*)</name>", system) == ["invoice", "travel"]
    assert "Writes invoices &amp; reminders." in system
    assert "Invoices" not in system.replace("invoices", "")
    assert [tool.name for tool in first.tools] == ["read_skill"]
    instructions, layout, unknown, outside, missing = [
        one.content for one in model.requests[-1].messages if one.role == "tool"
    ]
    assert instructions == (
        "# Invoices\n\nTake the number from `${NUMBER}`. See references/layout.md.\n\n"
        "Files of this skill:\n- references/layout.md\n- scripts/send.py"
    )
    assert layout == "Two columns."
    assert "no skill 'invoices'" in unknown
    assert "Did you mean" in unknown
    assert "not a path inside the folder" in outside
    assert "No such file" in missing
    assert str(folder) not in missing


async def test_of_a_skill_with_many_files_some_are_named(tmp_path: Path) -> None:
    """No more are looked for, and never on the event loop."""
    made = skill(tmp_path)
    (made / "data").mkdir()
    for n in range(1100):
        (made / "data" / f"{n:04}.txt").touch()
    read = read_skill_tool(read_skills([tmp_path]).skills)
    said = await read("invoice")
    assert said.count("- data/") == 100
    assert "- data/0099.txt\n… and many more" in said


async def test_an_agent_in_python_has_skills(tmp_path: Path) -> None:
    skill(tmp_path)
    model = ScriptedProvider([ToolCall("c1", "read_skill", '{"name": "invoice"}')], "Done.")
    agent = Agent(model, skills=[tmp_path / "invoice"])
    result = await agent.run("Send an invoice.")
    assert result.output == "Done."
    assert "<name>invoice</name>" in model.requests[0].messages[0].content


async def test_a_link_out_of_a_skill_is_not_followed(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest(skills=["skills"]))
    (tmp_path / "secret.txt").write_text("the secret")
    (skill(folder / "skills") / "notes.txt").symlink_to(tmp_path / "secret.txt")
    model = ScriptedProvider([ToolCall("c", "read_skill", '{"name": "invoice", "path": "notes.txt"}')], "Ok.")
    async with client_of(runtime_of(folder, model)) as client:
        await client.post("/v1/agents/helper/run", json=QUESTION)
    assert "the secret" not in model.requests[-1].messages[-1].content


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("invoice", "# Invoices\n", "has no frontmatter"),
        ("invoice", "---\nname: invoice\n", "has no frontmatter"),
        ("invoice", "---\nname: invoice\n---\nText", "required key is missing"),
        ("invoice", head("invoice", "' '"), "must match"),
        ("invoice", head("invoice", "x" * 1025), "at most 1024"),
        ("invoice", head("other"), "the folder is named `invoice`, the skill `other`"),
        ("In-Voice", head("In-Voice"), "lower-case"),
        ("a--b", head("a--b"), "single hyphens"),
        ("-a", head("-a"), "single hyphens"),
        ("a_b", head("a_b"), "lower-case letters, digits"),
        ("a" * 65, head("a" * 65), "at most 64 characters"),
        ("invoice", head("invoice", more=f"compatibility: {'x' * 501}\n"), "at most 500"),
        ("invoice", head("[invoice"), "is not valid YAML"),
    ],
)
def test_faults_have_their_place_and_the_reference_finds_them_too(
    tmp_path: Path, name: str, text: str, fault: str
) -> None:
    made = skill(tmp_path, name, text)
    found = read_skills([tmp_path])
    assert not found.skills
    assert fault in " ".join(map(str, found.faults))
    assert str(made / "SKILL.md") in str(found.faults[0])
    assert skills_ref.validate(made)


@pytest.mark.parametrize("name", ["invoice", "a1", "größe", "技能", "a-b-c"])
def test_what_the_reference_accepts_is_read(tmp_path: Path, name: str) -> None:
    made = skill(tmp_path, name, INVOICE.replace("name: invoice", f"name: {name}"))
    assert skills_ref.validate(made) == []
    found = read_skills([tmp_path])
    assert (list(found.skills), found.faults, found.warnings) == ([name], (), ())
    assert found.skills[name].description == skills_ref.read_properties(made).description


def test_unknown_keys_are_warnings(tmp_path: Path) -> None:
    skill(tmp_path, "a", head("a", more="version: 1\n"))
    found = read_skills([tmp_path])
    assert list(found.skills) == ["a"]
    assert "SKILL.md:4:1" in str(found.warnings[0])


def test_validate_names_faults_of_skills_at_the_agent(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        manifest("one", skills=["none"]),
        manifest("two", skills=["skills"]),
        manifest(
            "three",
            skills=["more", "skills/good"],
            tools=[{"name": "read_skill", "type": "builtin", "builtin": "calculator"}],
        ),
    )
    skill(folder / "skills", "bad", "no head")
    skill(folder / "skills", "good", head("good"))
    skill(folder / "more", "good", head("good"))
    found = load(folder)
    assert set(found.broken) == {"one", "two", "three"}
    assert "the folder does not exist" in str(found.broken["one"][0])
    assert "has no frontmatter" in str(found.broken["two"][0])
    faults = " ".join(map(str, found.broken["three"]))
    assert "duplicate skill `good`" in faults
    assert "the name `read_skill`" in faults
