"""Whether the model hub can be reached, as huggingface_hub would. Slow modules are imported late."""

import socket
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from zlaunch.frozen import dataclass

SECONDS = 5.0
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_PROXIES = ("https_proxy", "http_proxy", "all_proxy")
_TRUE = frozenset({"1", "on", "yes", "true"})


@dataclass(frozen=True, slots=True)
class Hub:
    """The way to the model hub."""

    endpoint: str
    offline: str | None = None
    """The variable that forbids to use it."""
    proxy: str | None = None
    error: str | None = None
    """Why it cannot be reached."""
    seconds: float = 0.0


def reach_hub(environ: Mapping[str, str], seconds: float = SECONDS) -> Hub:
    """Try to open a connection to the hub, or to the proxy in front of it, and ask for a page."""
    endpoint = environ.get("HF_ENDPOINT") or "https://huggingface.co"
    offline = next((name for name in OFFLINE if environ.get(name, "").lower() in _TRUE), None)
    proxy = shown = _proxy(endpoint, environ)
    if proxy is not None:
        shown = _bare(proxy)
    if offline is not None:
        return Hub(endpoint, offline, shown)
    started = time.monotonic()
    error = _connect(proxy or endpoint, seconds) or _fetch_page(endpoint, proxy, seconds)
    return Hub(endpoint, None, shown, error, time.monotonic() - started)


def _bare(url: str) -> str:
    """A proxy without the user and password that its URL may contain."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _proxy(endpoint: str, environ: Mapping[str, str]) -> str | None:
    parts = urlsplit(endpoint)
    given = {name.lower(): value for name, value in environ.items() if value}
    excluded = [one.strip().lstrip(".") for one in given.get("no_proxy", "").split(",")]
    host = parts.hostname or ""
    if any(one and (one in {"*", host} or host.endswith(f".{one}")) for one in excluded):
        return None
    other_scheme = "https_proxy"
    if parts.scheme == "https":
        other_scheme = "http_proxy"
    proxy = next((given[name] for name in _PROXIES if name in given and name != other_scheme), None)
    if proxy is None or "://" in proxy:
        return proxy
    return f"http://{proxy}"


def _connect(url: str, seconds: float) -> str | None:
    parts = urlsplit(url)
    port = parts.port or {"https": 443, "socks5": 1080, "socks5h": 1080}.get(parts.scheme, 80)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=seconds):
            return None
    except OSError as error:
        return f"{parts.hostname}: {error.strerror or error}"


def _fetch_page(endpoint: str, proxy: str | None, seconds: float) -> str | None:
    """Ask for a page: certificates, and proxies that let nothing pass, show only then."""
    if proxy is not None and not proxy.startswith("http"):
        return None
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import ProxyHandler, Request, build_opener

    proxies = {}
    if proxy is not None:
        proxies = {"http": proxy, "https": proxy}
    request = Request(endpoint, method="HEAD", headers={"User-Agent": "zlaunch"})  # noqa: S310 - the user's own
    try:
        with build_opener(ProxyHandler(proxies)).open(request, timeout=seconds):
            return None
    except HTTPError as error:
        status = int(error.code)
        if status >= 500 or status == 407:
            return f"HTTP status {status}"
        return None
    except (OSError, HTTPException, ValueError) as error:
        return str(getattr(error, "reason", error)) or type(error).__name__
