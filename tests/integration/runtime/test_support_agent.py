"""The shipped support agent, as it is configured: answers from the knowledge folder, new files too."""

from __future__ import annotations

import shutil
from pathlib import Path

from astromesh.runtime.bootstrap import open_single_pipeline
from astromesh.runtime.engine import AgentRuntime
from astromesh.testing import ManualClock

CONFIG = Path(__file__).parents[3] / "config"


async def test_the_support_agent_answers_from_the_knowledge_folder(tmp_path):
    """Without keys: quoted from the file, with its name; a file that is added counts at the next question."""
    shutil.copytree(CONFIG, tmp_path / "config")
    clock = ManualClock()
    async with AgentRuntime(tmp_path / "config", data_dir=tmp_path / "data", env={}, clock=clock) as runtime:
        assert runtime.broken == {}
        answer = await runtime.run("support-agent", "How do I reset my password?", "s1")
        assert "Settings > Security > Reset password" in answer.response
        assert "account-and-password.md" in answer.response
        assert answer.metadata["tools_called"] == ["search_knowledge_base"]
        (tmp_path / "config" / "knowledge" / "teapot.md").write_text(
            "# Teapot\n\n## Descale the teapot\n\nFill the teapot with vinegar and wait an hour.\n"
        )
        clock.advance(2.0)
        answer = await runtime.run("support-agent", "How do I descale the teapot?", "s2")
        assert "vinegar" in answer.response
        assert "teapot.md" in answer.response


async def test_the_support_agent_names_its_own_addresses_and_protects_what_is_secret(tmp_path):
    """Contacts of the knowledge are in the answer; a card in the knowledge is not, nor what a user typed."""
    shutil.copytree(CONFIG, tmp_path / "config")
    (tmp_path / "config" / "knowledge" / "teapot.md").write_text(
        "# Teapot\n\n## Pay for the teapot\n\nPay for the teapot with 4111 1111 1111 1111.\n"
    )
    async with AgentRuntime(tmp_path / "config", data_dir=tmp_path / "data", env={}) as runtime:
        answer = await runtime.run("support-agent", "How can I contact support? I am bob@example.com", "s1")
        assert "support@acmedesk.example" in answer.response
        assert "bob@" not in answer.response
        answer = await runtime.run("support-agent", "How do I pay for the teapot?", "s2")
        assert "[CREDIT_CARD]" in answer.response


async def test_the_support_agent_finds_meaning_cites_it_and_says_when_it_found_nothing(tmp_path):
    """A paraphrase gets the first passage of the retrieval, an off-topic question gets none."""
    shutil.copytree(CONFIG, tmp_path / "config")
    questions = Path(__file__).parents[2] / "questions" / "off-topic-held-out.tsv"
    async with open_single_pipeline(tmp_path / "config", tmp_path / "data", "product-knowledge") as knowledge:
        await knowledge.refresh()  # with vectors: a question would not wait for all of them on a busy machine
        question = "My card was charged for something that I did not want. Do I get my money back?"
        best = (await knowledge.query(question))[0].to_json()
    async with AgentRuntime(tmp_path / "config", data_dir=tmp_path / "data", env={}) as runtime:
        answer = (await runtime.run("support-agent", question, "s1")).to_json()
        assert f"Source: {best['document']}" in answer["response"]
        keys = ("document", "title", "start", "end", "score")
        cited = {key: best[key] for key in keys} | {"passage": best["text"]}
        [citation] = answer["citations"]
        assert {key: citation[key] for key in cited} == cited
        assert citation["url"] == f"/v1/rag/product-knowledge/documents/{best['document']}"
        assert best["score"] >= 0.5
        off_topic = questions.read_text().splitlines()[:10]
        answers = [await runtime.run("support-agent", one, f"o{n}") for n, one in enumerate(off_topic)]
        assert sum(one.response.startswith("I found nothing") for one in answers) >= 9
        assert any(one.citations == [] for one in answers)
