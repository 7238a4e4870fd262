"""Results of tools that were too long for a model, whole."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from astromesh.abc.kept import KeptResults
from astromesh.api.access import caller_of, runtime_of, viewer_of
from astromesh.api.declared import scope
from astromesh.errors import EventsGone

router = APIRouter(tags=["runs"])


@router.get(
    "/v1/runs/{run_id}/results/{result_id}", summary="A long result", response_class=Response,
    responses={200: {"content": {"text/plain": {}}}}, dependencies=[scope("runs:read")],
)  # fmt: skip
async def result(run_id: str, result_id: str, request: Request) -> Response:
    """The whole text of a tool's result that the model was shown cut."""
    runtime = runtime_of(request)
    await runtime.runs.get(run_id, viewer_of(caller_of(request)))
    kept: KeptResults = await runtime.opened.resources.shared(KeptResults, KeptResults)
    found = kept.find(run_id, result_id)
    if found is None:
        raise EventsGone(f"Nothing is kept as {result_id!r} in this run, or no longer.")
    return Response(found.text, media_type="text/plain; charset=utf-8")
