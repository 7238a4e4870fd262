"""Delegating to worker agents: a worker as a tool, and assignments that a model wrote as text."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

from astromesh.abc.run import RunAgent, Terms
from astromesh.abc.tool import ToolContext
from astromesh.errors import AstromeshError, DeadlineExceeded, ToolError, ToolFailed, ToolTimeout
from astromesh.graph.extract import extract_values
from astromesh.orchestration.fitting import best_fit
from astromesh.types import ToolSpec


class WorkerTool:
    """A worker agent as a tool of its supervisor.

    Args:
        agent: its name, also the tool's.
        description: what it is for.
        run_agent: runs it.
        terms: of its runs.
    """

    def __init__(self, agent: str, description: str, run_agent: RunAgent, terms: Terms) -> None:
        task = {"type": "string", "description": "What to do, with everything it needs to know."}
        schema = {"type": "object", "properties": {"task": task}, "required": ["task"]}
        about = f"Delegates a task to the agent {agent}. {description}".strip()
        self.spec = ToolSpec(agent, about, schema, "external", repeatable=True)
        self._run, self._terms = run_agent, terms
        self._active: set[int] = set()

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Raises: ToolTimeout, ToolFailed: the worker's run failed; the supervisor is shown why."""
        name = self.spec.name
        place = next(n for n in count(1) if n not in self._active)
        self._active.add(place)
        if place > 1:  # each of several at once has a session of its own
            context = replace(context, tool=f"{name}-{place}")
        try:
            answer = await self._run(name, arguments["task"], {}, context, self._terms)
        except ToolError:
            raise
        except DeadlineExceeded as error:
            raise ToolTimeout(f"The agent {name!r} did not finish in time: {error}") from error
        except AstromeshError as error:
            raise ToolFailed(f"The agent {name!r} failed ({error.code}): {error}") from error
        finally:
            self._active.discard(place)
        return answer["response"]


class Assignment(NamedTuple):
    """A task for a worker. `after`: numbers, from 1, of the assignments whose results it needs."""

    worker: str
    task: str
    after: tuple[int, ...] = ()


def assignments_in(text: str, workers: Mapping[str, str]) -> list[Assignment] | None:
    """The assignments that a text holds as JSON, or None where it holds none.

    A worker's name that is nearly right is taken as meant; one that is not is replaced by whom the task fits.

    Args:
        text: a model's answer.
        workers: description by name.
    """
    for value in extract_values(text):
        listed = value.get("delegate") if isinstance(value, dict) else value
        if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
            continue
        if not listed and not isinstance(value, dict):
            continue
        found = [_assignment(item, number, workers) for number, item in enumerate(listed, 1)]
        if all(found):
            return [assignment for assignment in found if assignment]
    return None


def _assignment(item: Mapping[str, Any], number: int, workers: Mapping[str, str]) -> Assignment | None:
    task = item.get("task")
    if not isinstance(task, str) or not task.strip():
        return None
    after = item.get("after", ())
    earlier = [n for n in after if type(n) is int and 0 < n < number] if isinstance(after, list) else []
    return Assignment(_worker(str(item.get("worker", "")), task, workers), task.strip(), tuple(earlier))


def _worker(said: str, task: str, workers: Mapping[str, str]) -> str:
    folded = {name.casefold(): name for name in workers}
    near = difflib.get_close_matches(said.casefold(), folded, 1, 0.8)
    return folded[near[0]] if near else best_fit(task, workers)


def waves(assignments: Sequence[Assignment]) -> list[list[int]]:
    """Positions of the assignments in groups that can run at once, each after those it needs."""
    depth: list[int] = []
    for assignment in assignments:
        depth.append(1 + max((depth[n - 1] for n in assignment.after), default=-1))
    return [[i for i, d in enumerate(depth) if d == level] for level in range(max(depth, default=-1) + 1)]
