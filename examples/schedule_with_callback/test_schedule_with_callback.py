"""A run of the schedule is told to the receiver, which refuses another signature."""

from __future__ import annotations

import threading
import time
from http.server import ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from astromesh.api.app import create_app
from astromesh.runtime.engine import AgentRuntime

HERE = Path(__file__).parent
SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZg=="


def test_a_run_of_the_schedule_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("CALLBACK_SECRET", SECRET)
    from receiver import Receiver

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as receiver:
        threading.Thread(target=receiver.serve_forever).start()
        url = f"http://127.0.0.1:{receiver.server_port}/"
        runtime = AgentRuntime(
            HERE / "config", data_dir=tmp_path, env={"CALLBACK_SECRET": SECRET, "DIGEST_URL": url}
        )
        try:
            with TestClient(create_app(runtime)) as client:
                while not (schedules := client.get("/v1/schedules").json()["schedules"]):
                    time.sleep(0.05)
                (schedule,) = schedules
                assert schedule["cron"] == "0 8 * * 1-5"
                client.post(f"/v1/schedules/{schedule['id']}/run").raise_for_status()
                while not (calls := client.get("/v1/callbacks?state=delivered").json()["callbacks"]):
                    time.sleep(0.05)
            assert calls[0]["agent"] == "digest"
            unsigned = {
                "webhook-id": "1",
                "webhook-timestamp": str(int(time.time())),
                "webhook-signature": "v1,eA==",
            }
            assert httpx.post(url, content=b"{}", headers=unsigned).status_code == 401
        finally:
            receiver.shutdown()
    assert "run.completed 40 teas and 3 pots were sold." in capsys.readouterr().out
