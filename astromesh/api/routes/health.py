"""Whether the server lives, and whether it can work."""

from __future__ import annotations

from fastapi import APIRouter

from astromesh.api.health import LIVE, READY, live, ready
from astromesh.types import JsonObject

router = APIRouter(tags=["health"])

router.get(LIVE, summary="Liveness", response_model=JsonObject)(live)
router.get(READY, summary="Readiness", response_model=JsonObject)(ready)
