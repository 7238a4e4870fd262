"""An e-mail becomes an object with types, after one repair."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from pydantic import BaseModel

from astromesh import Agent

HERE = Path(__file__).parent


class Item(BaseModel):
    name: str
    quantity: int


class Order(BaseModel):
    customer: str
    deliver_on: date | None
    items: list[Item]


def test_a_mail_becomes_an_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    reader = Agent.from_yaml(HERE / "config" / "agents" / "reader.agent.yaml", data_dir=tmp_path)
    result = reader.run_sync((HERE / "mail.txt").read_text())
    order = Order.model_validate(result.output)
    assert (order.customer, order.deliver_on) == ("Ada Lovelace", date(2027, 3, 1))
    assert {item.name: item.quantity for item in order.items} == {"green tea": 2, "pot": 1}
