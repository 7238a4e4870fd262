"""The tests of astromesh: unit, contract, integration, acceptance; `tests.platform` is what they stand on."""
