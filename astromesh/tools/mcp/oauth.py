"""OAuth of the client of an MCP server: the SDK makes the flow, this module says when, and stores the result.

A server of agents never opens a browser: it refreshes tokens, and where that is not enough, the error names
`astromesh mcp login`. Tokens are encrypted in the data folder. Processes with one data folder share a login,
and one of them refreshes it at a time. Requests to hosts that no operator has configured pass the guard
against request forgery.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import parse_qs, urlsplit

import httpx2
import orjson
from mcp.client.auth import (
    AuthorizationCodeResult,
    OAuthClientProvider,
    OAuthFlowError,
    OAuthRegistrationError,
    OAuthTokenError,
)
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.auth.utils import (
    extract_field_from_www_auth,
    extract_resource_metadata_from_www_auth,
    extract_scope_from_www_auth,
    union_scopes,
)
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from mcp_types import LATEST_PROTOCOL_VERSION
from pydantic import AnyUrl, BaseModel, ConfigDict, Field, SecretStr
from yarl import URL

from astromesh.errors import ConfigError, NetError, ToolFailed
from astromesh.logs import get_logger
from astromesh.net.http import Http
from astromesh.storage.cipher import StoredCipher
from astromesh.storage.private_files import FILE_MODE, private_folder, shared_key
from astromesh.telemetry.clock import Clock


class OAuthOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    grant: Literal["authorization_code", "client_credentials"] = Field(
        "authorization_code", description="How to get tokens."
    )
    client_id: str = Field("", description="Id of a registered client.")
    client_secret: SecretStr = Field(SecretStr(""), description="Its secret.")
    auth_method: Literal["client_secret_basic", "client_secret_post"] = Field(
        "client_secret_basic", description="How to send the secret."
    )
    client_metadata_url: str = Field("", description="URL of the client's metadata document.")
    issuer: str = Field("", description="The authorization server.")
    scope: str = Field("", description="Scopes to request beside those that the server names.")
    redirect_port: int = Field(0, ge=0, le=65535, description="Port of the redirect.")


log = get_logger("astromesh.mcp")
#: errors of the SDK's flow; ValueError for metadata that is not valid
_FLOW_ERRORS = (OAuthFlowError, OAuthTokenError, OAuthRegistrationError, ValueError)
#: seconds of a request to an authorization server; bytes of its answer; characters of an error that are shown
_REQUEST_SECONDS, _MAX_ANSWER, _MAX_ERROR = 15.0, 1 << 20, 300
#: most seconds before its end at which a token is refreshed; seconds between attempts to get the lock
_LEEWAY, _LOCK_POLL = 30.0, 0.05
_PURPOSE = "mcp login"
#: the SDK logs what it raises, with a stack trace
logging.getLogger("mcp.client.auth").setLevel(logging.CRITICAL)
_OWN_HEADERS = frozenset({"host", "content-length", "connection", "accept-encoding", "user-agent"})


class LoginRequired(ToolFailed):
    """Only a person can go on: `astromesh mcp login`."""


class LoginFailed(ToolFailed):
    """The authorization server refuses, or its answer is not OAuth."""


class Browser(Protocol):
    """The user's part of a login."""

    @property
    def redirect_uri(self) -> str: ...

    async def authorize(self, url: str) -> str:
        """Shows a page, and returns the URL that it redirects to in the end."""


class Challenge(BaseModel):
    """Why a server refused a request (RFC 6750, RFC 9728)."""

    status: Literal[401, 403]
    scope: str | None = None
    resource_metadata: str | None = None

    @classmethod
    def of(cls, response: httpx2.Response) -> Challenge | None:
        """Returns what a response asks for; None where another token would not help."""
        if response.status_code == 401:
            status: Literal[401, 403] = 401
        elif extract_field_from_www_auth(response, "error") == "insufficient_scope":
            status = 403
        else:
            return None
        metadata = extract_resource_metadata_from_www_auth(response)
        return cls(status=status, scope=extract_scope_from_www_auth(response), resource_metadata=metadata)

    def response(self, request: httpx2.Request, scope: str) -> httpx2.Response:
        """Returns the refusal anew. Args: scope: what the operator asks for, beside what the server names."""
        parts = {"scope": union_scopes(scope, self.scope), "resource_metadata": self.resource_metadata}
        parts |= {"error": "insufficient_scope"} if self.status == 403 else {}
        value = "Bearer " + ", ".join(f'{name}="{text}"' for name, text in parts.items() if text)
        return httpx2.Response(self.status, headers={"www-authenticate": value}, request=request)


class Login(BaseModel):
    """What is stored: tokens, the client's registration, and what was discovered."""

    model_config = ConfigDict(frozen=True)

    tokens: OAuthToken | None = None
    expires_at: float | None = None
    client: OAuthClientInformationFull | None = None
    resource: ProtectedResourceMetadata | None = None
    server: OAuthMetadata | None = None
    server_url: str | None = None
    challenge: Challenge | None = None

    @property
    def token(self) -> str:
        return self.tokens.access_token if self.tokens is not None else ""

    @property
    def can_refresh(self) -> bool:
        return self.tokens is not None and bool(self.tokens.refresh_token) and self.client is not None


class LoginFile:
    """The stored login of a server, encrypted. Args: folder: `mcp` of the data folder."""

    def __init__(self, folder: Path, server: str) -> None:
        self._folder, self._server = folder, server
        self._file, self._lock = folder / f"{server}.login", folder / f"{server}.lock"
        self._read: tuple[tuple[int, int], Login] | None = None

    def read(self) -> Login:
        """Returns what is stored; nothing where there is no file, or one of another key."""
        try:
            found = self._file.stat()
            stamp = found.st_mtime_ns, found.st_ino
            if self._read is None or self._read[0] != stamp:
                data = self._cipher().decrypt(self._file.read_bytes(), self._server)
                self._read = stamp, Login.model_validate(data)
        except FileNotFoundError:
            return Login()
        except ConfigError as error:
            log.warning("mcp_login_unreadable", server=self._server, error=str(error))
            return Login()
        return self._read[1]

    def write(self, login: Login) -> None:
        private_folder(self._folder)
        draft = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        opened = os.open(draft, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, FILE_MODE)
        with os.fdopen(opened, "wb") as stream:
            stream.write(self._cipher().encrypt(login.model_dump(mode="json"), self._server))
        draft.replace(self._file)

    def remove(self) -> bool:
        """Returns False where there was none."""
        try:
            self._file.unlink()
        except FileNotFoundError:
            return False
        return True

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Waits until no other task or process changes the login."""
        private_folder(self._folder)
        opened = os.open(self._lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, FILE_MODE)
        try:
            while not _try_lock(opened):  # noqa: ASYNC110 (another process has it)
                await asyncio.sleep(_LOCK_POLL)
            yield
        finally:
            os.close(opened)

    def _cipher(self) -> StoredCipher:
        fault = f"The login of {self._server} was encrypted with another key: log in again."
        return StoredCipher(shared_key(self._folder / "logins.key").hex(), _PURPOSE, fault)


def _try_lock(opened: int) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class _Memory:
    """Where the SDK finds and leaves tokens and registration during one flow."""

    def __init__(self, login: Login) -> None:
        self.tokens, self.client = login.tokens, login.client

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class OAuthSession:
    """The login of one server: its token for each request, and a new one where a token is refused.

    Args:
        server: name in mcp.yaml.
        url: of the server.
        folder: `mcp` of the data folder.
    """

    def __init__(
        self, server: str, url: str, options: OAuthOptions, http: Http, folder: Path, clock: Clock
    ) -> None:
        self._server, self._url, self._options = server, url, options
        self._http, self._clock = http, clock
        self._file = LoginFile(folder, server)
        self._renewals: set[asyncio.Task[str]] = set()
        self._trusted = {URL(one).origin() for one in (url, options.issuer) if one}

    async def token(self) -> str:
        """Returns a token for a request, refreshed where it ends soon; empty without a login.

        Raises:
            NetError: the authorization server cannot be reached.
        """
        login = self._file.read()
        if not login.can_refresh or not self._ends_soon(login):
            return login.token
        return await self._uncancelled(self._refreshed())

    def challenge(self, status: int, headers: Mapping[str, str]) -> Challenge | None:
        """Returns what a response asks for; None where another token would not help."""
        named = {"www-authenticate": headers.get("www-authenticate", "")}
        return Challenge.of(httpx2.Response(status, headers=named)) if status in (401, 403) else None

    async def renew(self, refused: str, challenge: Challenge) -> str:
        """Returns another token than one that was refused.

        Raises:
            LoginRequired: only a person can get one.
            LoginFailed: the authorization server refuses. NetError: it cannot be reached.
        """
        return await self._uncancelled(self._renewed(refused, challenge))

    async def _uncancelled(self, work: Coroutine[Any, Any, str]) -> str:
        """Awaits work that goes on if the caller is cancelled: else a refresh token could be lost."""
        task = asyncio.create_task(work)
        self._renewals.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: asyncio.Task[str]) -> None:
        self._renewals.discard(task)
        if not task.cancelled():
            task.exception()  # the caller may be gone

    async def _refreshed(self) -> str:
        async with self._file.locked():
            login = self._file.read()
            return await self._refresh(login) if self._ends_soon(login) else login.token

    async def _renewed(self, refused: str, challenge: Challenge) -> str:
        async with self._file.locked():
            login = self._file.read()
            if login.token and login.token != refused:  # another task or process was faster
                return login.token
            if challenge.status == 401 and login.can_refresh and (token := await self._refresh(login)):
                return token
            if self._options.grant == "client_credentials":
                return (await self._authorize(login, challenge, None)).token
            self._file.write(self._file.read().model_copy(update={"challenge": challenge}))
        why = "wants more rights than the login has" if challenge.status == 403 else "wants a login"
        raise LoginRequired(f"The server {why}. Run: astromesh mcp login {self._server}")

    async def login(self, browser: Browser) -> Login:
        """Gets new tokens with the help of a person, and stores them.

        Raises:
            LoginFailed, NetError
        """
        stored = self._file.read()
        challenge = stored.challenge or await self._probe()
        client = stored.client
        if client is not None and browser.redirect_uri not in map(str, client.redirect_uris or ()):
            client = None  # it is registered with another port
        login = stored.model_copy(update={"client": client})
        return await self._authorize(login, challenge, browser)

    async def logout(self) -> bool:
        """Forgets the login, and revokes its tokens where their server offers that (RFC 7009).

        Returns False where there was none.

        Raises:
            LoginFailed: the tokens are not revoked. The login is forgotten all the same.
        """
        async with self._file.locked():
            login = self._file.read()
            was_there = self._file.remove()
        try:
            await self._revoke(login)
        except (LoginFailed, NetError) as error:
            raise LoginFailed(
                f"The login is forgotten, but its tokens may still be valid: {error}"
            ) from error
        return was_there

    async def _revoke(self, login: Login) -> None:
        server, tokens = login.server, login.tokens
        if tokens is None or server is None or server.revocation_endpoint is None:
            return
        context = self._provider(login, None)[0].context
        context.client_info = login.client or context.client_info
        # the server ends the access tokens of a refresh token with it, if it can
        for kind in ("refresh_token", "access_token"):
            if not (token := getattr(tokens, kind)):
                continue
            form, headers = context.prepare_token_auth({"token": token, "token_type_hint": kind})
            if context.client_info is not None and not headers:  # a public client, or one with a form
                form["client_id"] = str(context.client_info.client_id)
            url = str(server.revocation_endpoint)
            answer = await self._send(httpx2.Request("POST", url, data=form, headers=headers))
            if answer.status_code >= 400:
                raise LoginFailed(f"{url} answers {answer.status_code} for the {kind}.")

    def _ends_soon(self, login: Login) -> bool:
        return login.expires_at is not None and self._clock.now() >= login.expires_at

    async def _refresh(self, login: Login) -> str:
        """Returns the refreshed token, stored; empty where the authorization server refuses."""
        provider, memory = self._provider(login, None)
        provider.context.token_expiry_time = 1.0  # so that the flow begins with a refresh
        await self._drive(provider, None)
        if provider.context.current_tokens is None:
            self._file.write(login.model_copy(update={"tokens": None, "expires_at": None}))
            return ""
        return self._store(provider, memory).token

    async def _authorize(self, login: Login, challenge: Challenge, browser: Browser | None) -> Login:
        if challenge.status == 401:
            login = login.model_copy(update={"tokens": None})
        provider, memory = self._provider(login, browser)
        await self._drive(provider, challenge)
        if memory.tokens is None:
            raise LoginFailed(f"The authorization server of {self._server} gave no token.")
        return self._store(provider, memory)

    def _store(self, provider: OAuthClientProvider, memory: _Memory) -> Login:
        context = provider.context
        login = Login(
            tokens=memory.tokens, expires_at=self._end_of(memory.tokens), client=memory.client,
            resource=context.protected_resource_metadata, server=context.oauth_metadata,
            server_url=context.auth_server_url,
        )  # fmt: skip
        self._file.write(login)
        return login

    def _end_of(self, tokens: OAuthToken | None) -> float | None:
        """Returns when a new token must be refreshed: a little before its end."""
        if tokens is None or tokens.expires_in is None:
            return None
        return self._clock.now() + tokens.expires_in - min(_LEEWAY, tokens.expires_in / 10)

    # -- the SDK's flow ------------------------------------------------------------------------------------

    def _provider(self, login: Login, browser: Browser | None) -> tuple[OAuthClientProvider, _Memory]:
        options, memory = self._options, _Memory(login)
        secret = options.client_secret.get_secret_value()
        provider: OAuthClientProvider
        if options.grant == "client_credentials":
            provider = ClientCredentialsOAuthProvider(
                self._url, memory, options.client_id, secret, options.auth_method, issuer=options.issuer
            )
        else:
            redirect = AnyUrl(browser.redirect_uri) if browser is not None else AnyUrl("http://127.0.0.1/")
            if options.client_id:
                memory.client = _registered(options, redirect)
            person = _Person(browser)
            provider = OAuthClientProvider(
                self._url,
                OAuthClientMetadata(client_name="astromesh", redirect_uris=[redirect]),
                memory,
                person.show,
                person.result,
                options.client_metadata_url or None,
            )
        context = provider.context
        context.protected_resource_metadata, context.oauth_metadata = login.resource, login.server
        context.auth_server_url = login.server_url
        return provider, memory

    async def _drive(self, provider: OAuthClientProvider, challenge: Challenge | None) -> None:
        """Runs the flow of a request that is never sent: what it is answered with is known.

        Args:
            challenge: the answer; None ends the flow where it would send the request.
        """
        request = httpx2.Request("POST", self._url, headers={"mcp-protocol-version": LATEST_PROTOCOL_VERSION})
        flow = provider.async_auth_flow(request)
        try:
            outgoing = await self._send_until(request, flow, await anext(flow))
            if challenge is not None and outgoing is request:
                refusal = challenge.response(request, self._options.scope)
                await self._send_until(request, flow, await flow.asend(refusal))
        except StopAsyncIteration:
            return
        except _FLOW_ERRORS as error:
            raise LoginFailed(str(error).partition("\n")[0][:_MAX_ERROR]) from error
        finally:
            await flow.aclose()

    async def _send_until(self, request: httpx2.Request, flow: Any, outgoing: httpx2.Request) -> Any:
        while outgoing is not request:
            outgoing = await flow.asend(await self._send(outgoing))
        return outgoing

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        """Sends a request of the flow; redirects are not followed.

        Raises:
            AddressForbidden: the host is not public, and nobody has configured it.
            NetError
        """
        url, body = URL(str(request.url)), await request.aread() or None
        headers = {name: value for name, value in request.headers.items() if name not in _OWN_HEADERS}
        if url.origin() in self._trusted:
            call = self._http.request(
                request.method, url, body=body, headers=headers, timeout=_REQUEST_SECONDS, limit=_MAX_ANSWER
            )
        else:
            _check_scheme(url)
            call = self._http.fetch_untrusted(
                request.method, url, body=body, headers=headers, timeout=_REQUEST_SECONDS,
                limit=_MAX_ANSWER, follow=False,
            )  # fmt: skip
        answer = await call
        kind = {"content-type": answer.headers.get("content-type", "")}
        return httpx2.Response(answer.status, headers=kind, content=answer.body, request=request)

    async def _probe(self) -> Challenge:
        """Returns the server's challenge to a request without a token."""
        about = {"name": "astromesh", "version": "0"}
        params = {"protocolVersion": LATEST_PROTOCOL_VERSION, "capabilities": {}, "clientInfo": about}
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        answer = await self._http.request(
            "POST", self._url, body=orjson.dumps(message), headers=headers, timeout=_REQUEST_SECONDS
        )
        return self.challenge(answer.status, answer.headers) or Challenge(status=401)


class _Person:
    """Hands the page of a login to a browser, for the SDK."""

    def __init__(self, browser: Browser | None) -> None:
        self._browser, self._result = browser, ""

    async def show(self, url: str) -> None:
        if self._browser is None:
            raise OAuthFlowError("A person must log in: run `astromesh mcp login`.")
        _check_scheme(URL(url))
        self._result = await self._browser.authorize(url)

    async def result(self) -> AuthorizationCodeResult:
        return result_of(self._result)


def result_of(url: str) -> AuthorizationCodeResult:
    """Returns what the redirect of an authorization server says (RFC 6749, RFC 9207).

    Raises:
        OAuthFlowError: that it refuses.
    """
    found = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    if "error" in found:
        raise OAuthFlowError(f"{found['error']}: {found.get('error_description', 'the login was refused')}")
    if "code" not in found or "state" not in found:
        raise OAuthFlowError("This is not the address of the last page of the login: it has no code.")
    return AuthorizationCodeResult(code=found.get("code", ""), state=found.get("state"), iss=found.get("iss"))


def _registered(options: OAuthOptions, redirect: AnyUrl) -> OAuthClientInformationFull:
    secret = options.client_secret.get_secret_value() or None
    return OAuthClientInformationFull(
        client_id=options.client_id, client_secret=secret, redirect_uris=[redirect],
        token_endpoint_auth_method=options.auth_method if secret else "none", issuer=options.issuer or None,
    )  # fmt: skip


def _check_scheme(url: URL) -> None:
    """Raises: OAuthFlowError: neither TLS nor this machine."""
    if url.scheme != "https" and url.host not in ("localhost", "127.0.0.1", "::1"):
        raise OAuthFlowError(f"The server names {url.scheme}://{url.host}, and OAuth needs https.")
