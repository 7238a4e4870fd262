"""What tests stand on: real servers, a guard against the network, a detector of blocking calls.

    reaper       kills servers and removes their data, also when pytest itself is killed
    processes    a server as a child process: start, stop, kill, wait until it answers, log
    postgres     PostgreSQL with pgvector
    valkey       Valkey, which speaks the Redis protocol
    astromesh    `astromesh serve` as a process
    mock_llm     an OpenAI-compatible model whose behaviour the model's name chooses
    network      no test reaches beyond this machine
    blocking     no callback blocks the event loop
    skips        no test is skipped without a listed reason

The fixtures are in `tests/conftest.py`.
"""
