"""Prices with tax."""


def with_tax(net: float, rate: float = 0.2) -> float:
    return net * rate
