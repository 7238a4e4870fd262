from typing import Any


def double(input: Any, context: Any, tools: Any) -> Any:
    return {"amount": 2 * input["amount"]}
