"""Hosts, origins and URLs of runtime.yaml are judged at load, at their place, and no password is repeated."""

from __future__ import annotations

import pytest

from astromesh.errors import ConfigError
from astromesh.net.ssrf_guard import SsrfGuard
from astromesh.storage.postgres import Address
from astromesh.storage.redis import Redis
from tests.unit.config.samples import file_of, told

HEAD = "apiVersion: astromesh/v1\nkind: RuntimeConfig\nspec:\n"

ALLOWED = (
    "localhost", "wiki.local", "*.corp.local", "10.0.0.0/8", "10.1.2.3", "::1", "[::1]", "fd00::/8",
    " Wiki.Local. ", "my_service", "bücher.example",
)  # fmt: skip
#: what is no host → what is said, which begins with what is wrong and says what to write
NOT_ALLOWED = (
    ("http://localhost:8080", "is a URL; write only the host"),
    ("10.0.0.1/8", "is an address inside a network; write 10.0.0.0/8"),
    ("10.0.0.0/33", "is not a network; write ADDRESS/BITS"),
    ("host/16", "is not a network"),
    ("", "must not be empty"),
    ("host:8080", "contains a port; write only the host"),
    ("10.0.0.1:80", "contains a port"),
    ("*", "may contain '*' only at the start"),
    ("a.*.b", "may contain '*' only at the start"),
    ("*.", "may contain '*' only at the start"),
    ("*.a b", "must have a name after '*.'"),
    ("fe80::1%eth0", "is not a host name"),
    ("a b", "is neither a host name"),
    ("10.0.0.256", "is neither a host name"),
)
NOT_STORES = (
    ("mysql://u:hush-hush@h/x", "must be a URL sqlite:///PATH or postgresql://"),
    ("postgresql+asyncpg://u:hush-hush@h/x", "must be a URL sqlite:///PATH or postgresql://"),
    ("hush-hush", "must be a URL sqlite:///PATH or postgresql://"),
    ("postgresql://u:hush-hush@h:99999999/x", "must have a port of at most 65535"),
    ("postgresql://u:hush-hush/x@h:5432/x", "in a password write / ? # as %2F %3F %23"),
    ("postgresql://u:p@hush/hush@h:5432/x", "in a password write / @ as %2F %40"),
    ("postgresql://u:hush-hush@h", "names no database"),
    ("postgresql://u:hush-hush@[h/x", "must be a URL sqlite:///PATH or postgresql://"),
    ("postgresql://u:hush-hush@h/x?pool_size=0", "must have a whole number of at least 1 as pool_size"),
    ("sqlite://hush-hush", "must have three slashes and a path"),
    ("sqlite:///", "must have three slashes and a path"),
    ("sqlite:hush-hush.db", "must have three slashes and a path"),
)
NOT_REDIS = (
    ("anything-hush-hush", "must be a URL redis://HOST:PORT/NUMBER"),
    ("http://:hush-hush@h", "must be a URL redis://HOST:PORT/NUMBER"),
    ("redis://:hush-hush@h:123456/0", "must have a port of at most 65535"),
    ("redis://:hush-hush@h/first", "must name its database by a number"),
    ("unix://", "must have a path"),
)
OTHERS = (
    ('api: {host: "not a host!"}', "spec.api.host", "is neither a host name nor an IP address"),
    ('api: {host: ""}', "spec.api.host", "must not be empty"),
    ('api: {host: "localhost:8000"}', "spec.api.host", "contains a port"),
    ('api: {host: "[::1]"}', "spec.api.host", "write it without"),
    ('telemetry: {otlp_endpoint: "nope"}', "spec.telemetry.otlp_endpoint", "must be a URL http://… or https://…"),
    ('auth: {jwt: {jwks_url: "x"}}', "spec.auth.jwt.jwks_url", "must be a URL http://… or https://…"),
    ('auth: {jwt: {secret_env: "hush-hush"}}', "spec.auth.jwt.secret_env", "looks like a key"),
    ('api: {cors_origins: ["*", "foo"]}', "spec.api.cors_origins[1]", "must be an origin"),
    ('api: {cors_origins: ["https://x.com/path"]}', "spec.api.cors_origins[0]", "write https://x.com"),
    ('api: {cors_origins: ["https://X.com:443/"]}', "spec.api.cors_origins[0]", "write https://x.com"),
    ('api: {cors_origins: ["https://u:hush-hush@x.com"]}', "spec.api.cors_origins[0]", "write https://x.com"),
)  # fmt: skip


def faults_of(spec: str, env: dict[str, str] | None = None) -> list[str]:
    return told(file_of("RuntimeConfig", f"{HEAD}  {spec}\n", env))


@pytest.mark.parametrize("entry", ALLOWED)
def test_what_may_be_allowed_is_what_the_guard_takes(entry: str) -> None:
    """A host that passes at load makes a guard."""
    assert faults_of(f'network: {{allow_hosts: ["{entry}"]}}') == []
    SsrfGuard([entry])


@pytest.mark.parametrize(("entry", "said"), NOT_ALLOWED)
def test_a_host_that_is_none_is_told_at_its_place_with_what_to_write(entry: str, said: str) -> None:
    (fault,) = faults_of(f'network: {{allow_hosts: [localhost, "{entry}"]}}')
    assert "4:38: " in fault
    assert f"spec.network.allow_hosts[1]: {said}" in fault


def test_all_wrong_addresses_are_told_at_once() -> None:
    spec = (
        "network: {allow_hosts: ['a b', 'c d']}\n  storage: {url: x}\n  redis: {url: y}\n  api: {host: 'a b'}"
    )
    assert len(faults_of(spec)) == 5


@pytest.mark.parametrize(("url", "said"), NOT_STORES)
def test_a_store_s_url_that_is_none_is_told_without_its_password(url: str, said: str) -> None:
    (fault,) = faults_of(f'storage: {{url: "{url}"}}')
    assert "4:18: spec.storage.url: " in fault
    assert said in fault
    assert "hush" not in fault


@pytest.mark.parametrize(("url", "said"), NOT_REDIS)
def test_a_url_of_redis_that_is_none_is_told_without_its_password(url: str, said: str) -> None:
    (fault,) = faults_of(f'redis: {{url: "{url}"}}')
    assert said in fault
    assert "hush" not in fault


@pytest.mark.parametrize(("spec", "key", "said"), OTHERS)
def test_hosts_origins_and_urls_of_the_server_are_told_at_their_place(spec: str, key: str, said: str) -> None:
    found = [fault for fault in faults_of(spec) if key in fault]
    assert said in found[0]
    assert "hush" not in found[0]


def test_what_a_variable_holds_is_judged_too_and_not_repeated() -> None:
    (fault,) = faults_of('storage: {url: "${DB}"}', {"DB": "mysql://u:hush-hush@h/x"})
    assert "spec.storage.url: must be a URL" in fault
    assert "The value comes from DB" in fault
    assert "hush" not in fault


@pytest.mark.parametrize(
    "spec",
    [
        "storage: {url: 'sqlite:////var/lib/a.db'}",
        "storage: {url: ''}",
        "storage: {url: 'postgres://h:5432/d?pool_size=3'}",
        "storage: {url: 'postgresql:///d?host=/var/run'}",
        "storage: {url: 'postgresql://u:p%2F@[::1]:5432/d?sslmode=require'}",
        "redis: {url: ''}",
        "redis: {url: 'redis://:p@h:6379/0'}",
        "redis: {url: 'rediss://h'}",
        "redis: {url: 'unix:///run/r.sock'}",
        "api: {host: '::'}",
        "api: {host: 0.0.0.0}",
        "api: {host: my_host.local}",
        "telemetry: {otlp_endpoint: ''}",
        "telemetry: {otlp_endpoint: 'http://otel:4318/v1/traces'}",
        "api: {cors_origins: ['*', 'https://a.example', 'http://localhost:3000', 'http://[::1]:81', 'app://x']}",
    ],
)
def test_what_is_right_is_left_alone(spec: str) -> None:
    assert faults_of(spec) == []


@pytest.mark.parametrize("url", ["postgresql://u:hush-hush@h:99999999/x", "postgresql://u:hush-hush@[h/x"])
def test_a_plugin_s_own_url_of_a_database_is_refused_in_a_sentence(url: str) -> None:
    with pytest.raises(ConfigError, match="PostgreSQL needs a URL") as refused:
        Address.parse(url)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("url", ["redis://:hush-hush@h:99999999/0", "redis://:hush-hush@[h/0"])
def test_a_plugin_s_own_url_of_redis_is_refused_in_a_sentence(url: str) -> None:
    with pytest.raises(ConfigError, match="Redis needs a URL") as refused:
        Redis(url)
    assert "hush" not in str(refused.value)
