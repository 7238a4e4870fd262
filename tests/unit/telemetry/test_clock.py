"""The system's clock."""

import uvloop

from astromesh.telemetry.clock import SystemClock


def test_nobody_sleeps_shorter_than_asked_on_any_loop():
    """uvloop rounds to milliseconds, down as well."""
    clock, seconds = SystemClock(), 0.00249

    async def shortest() -> float:
        slept = []
        for _ in range(50):
            began = clock.monotonic()
            await clock.sleep(seconds)
            slept.append(clock.monotonic() - began)
        return min(slept)

    assert uvloop.run(shortest()) >= seconds
