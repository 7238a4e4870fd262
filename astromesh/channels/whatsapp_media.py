"""Files of WhatsApp (reliability.md S4, S8).

The Graph API names the address of a file: unless that is the Graph API itself it is called by way of the
forgery guard, and the access token goes to hosts of Meta alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from yarl import URL

from astromesh.channels.attachments import Attachments, Fetched, answered
from astromesh.errors import ChannelError
from astromesh.net.http import Answer, Http
from astromesh.types import JsonObject

#: what Meta keeps files at
_HOSTS = ("facebook.com", "fbsbx.com", "fbcdn.net", "whatsapp.net", "whatsapp.com")
_PATIENCE, _ANSWER_BYTES = 20.0, 1 << 20


class Media(Attachments):
    """Fetches attachments by the Graph API.

    Args:
        base: of the Graph API, which the operator wrote.
        headers: with the access token.
        most_bytes, most_characters: see `Attachments`.
    """

    def __init__(
        self, http: Http, base: str, headers: Mapping[str, str], most_bytes: int, most_characters: int
    ) -> None:
        super().__init__(most_bytes, most_characters)
        self._http, self._base = http, base
        self._headers = {"authorization": headers["authorization"]}

    async def fetch(self, id: str) -> Fetched:
        url = f"{self._base}/{quote(id, safe='')}"
        found = await self._http.request(
            "GET", url, headers=self._headers, timeout=_PATIENCE, limit=_ANSWER_BYTES
        )
        about = _object(found)
        size = about.get("file_size")
        if isinstance(size, int) and size > self.most_bytes:
            return self.too_large()
        answer = await self._download(str(about.get("url", "")))
        return answered(answer)

    async def _download(self, address: str) -> Answer:
        try:
            url = URL(address)
            host, origin = url.host or "", url.origin()
        except ValueError as error:
            raise ChannelError("The Graph API named no address of a media file.") from error
        if origin == URL(self._base).origin():
            return await self._http.request(
                "GET", url, headers=self._headers, timeout=_PATIENCE, limit=self.most_bytes
            )
        known = url.scheme == "https" and any(host == h or host.endswith(f".{h}") for h in _HOSTS)
        return await self._http.fetch_untrusted(
            "GET", url, headers=self._headers if known else {}, timeout=_PATIENCE, limit=self.most_bytes
        )


def _object(answer: Answer) -> JsonObject:
    """Raises: ChannelError: it is none, or an error."""
    try:
        found = answer.json()
    except ValueError as error:
        raise ChannelError("The Graph API answered something that is not JSON.") from error
    if answer.status != 200 or not isinstance(found, dict):
        raise ChannelError(f"The Graph API answered {answer.status} for a media file.")
    return found
