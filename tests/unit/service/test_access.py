"""Who may ask a service: nobody without the token, no page of another site, no name that the service does not have."""

from __future__ import annotations

import asyncio

import pytest
from starlette.datastructures import Headers

from penstock.errors import UsageError
from penstock.service.access import Access, NotAdmittedError, access_of
from penstock.service.credentials import Credentials, shared_token
from penstock.settings import ClusterSettings, Secret

CANCEL = "/penstock/v1/jobs/a/cancel"
FORM = "multipart/form-data; boundary=x"


def credentials(token: str) -> Credentials:
    return Credentials((shared_token(Secret(token)),))


def status(access: Access, method: str, path: str, **headers: str) -> int:
    """How a request with these headers is answered by the gate; 0 if it is let in."""
    given = {"host": "localhost:8081", **{name.replace("_", "-"): value for name, value in headers.items()}}
    try:
        asyncio.run(access.admit(method, path, Headers(given)))
    except NotAdmittedError as refused:
        return refused.status
    return 0


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "a.localhost:1", "127.0.0.1:8081", "[::1]:8081", "rest.x:9"]
)
def test_a_service_is_called_by_its_names(host: str) -> None:
    """Those of loopback, addresses in figures, which no name server can change, and its own."""
    assert status(Access(hosts=frozenset({"rest.x"})), "GET", "/jobs", host=host) == 0


def test_another_name_for_the_same_address_is_refused() -> None:
    """As a page uses it whose name server names this address a second time (DNS rebinding), even for reading."""
    for host in ("evil.example", "evil.example:8081", "localhost.evil.example", "127.0.0.1.evil.example"):
        assert status(Access(), "GET", "/jobs", host=host) == 403
        assert status(Access(), "GET", "/healthz", host=host) == 0


def test_a_page_of_another_site_changes_nothing() -> None:
    """Whatever it sends: forms, simple requests of scripts, and requests from a frame without an origin."""
    for headers in (
        {"origin": "http://evil.example"}, {"origin": "null"}, {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"}, {"origin": "http://localhost:9999"},
    ):  # fmt: skip
        for path in ("/penstock/v1/jobs", "/jobs/a/stop"):
            for more in ({"content_type": FORM}, {"content_type": "application/json"}, {"x_requested_with": "x"}):
                assert status(Access(), "POST", path, **headers, **more) == 403
    assert status(Access(), "POST", CANCEL, content_type="application/json", origin="http://localhost:8081") == 0


def test_what_a_page_could_send_without_a_preflight_is_refused_for_a_change() -> None:
    """A browser that named no origin would be stopped by that alone; Flink's clients and ours are let in."""
    assert status(Access(), "POST", "/penstock/v1/jobs", content_type=FORM) == 403
    assert status(Access(), "POST", CANCEL) == 403
    assert status(Access(), "POST", CANCEL, content_type="text/plain") == 403
    assert status(Access(), "POST", CANCEL, content_type="application/json; charset=utf-8") == 0
    assert status(Access(), "POST", "/penstock/v1/jobs", content_type=FORM, x_requested_with="curl") == 0
    assert status(Access(), "DELETE", "/penstock/v1/jobs/a") == 0  # never sent without one
    assert status(Access(), "POST", "/jobs/a/stop", content_type="application/json") == 0
    assert status(Access(), "POST", "/jars/upload", content_type=FORM) == 0


def test_only_a_page_of_this_site_changes_something_by_get() -> None:
    """As the button of Flink's pages does: an image on any page could send the same, and names no origin."""
    path = "/v1/jobs/a/yarn-cancel"
    for refused in (
        {}, {"sec_fetch_site": "cross-site"}, {"sec_fetch_site": "none"}, {"referer": "http://evil.example/"},
        {"sec_fetch_site": "cross-site", "referer": "http://localhost:8081/"}, {"referer": "http://localhost:9/"},
    ):  # fmt: skip
        assert status(Access(), "GET", path, **refused) == 403
    assert status(Access(), "GET", path, sec_fetch_site="same-origin") == 0
    assert status(Access(), "GET", path, referer="http://localhost:8081/#/job/running") == 0
    assert status(Access(credentials("secret")), "GET", path, authorization="Bearer secret") == 0
    assert status(Access(), "GET", "/jobs/a/checkpoints") == 0


def test_a_token_is_demanded_of_everything_but_health() -> None:
    """401 with the way to prove oneself; with it the name of the service does not matter, a page's origin does."""
    access = Access(credentials("right"))
    for given in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic right"}, {"authorization": "right"}):
        assert status(access, "GET", "/jobs", **given) == 401
    for path in ("/healthz", "/readyz", "/metrics"):
        assert status(access, "GET", path, host="10.0.0.7:8082") == 0
    own = {"authorization": "bearer right"}
    assert status(access, "POST", "/penstock/v1/jobs", content_type=FORM, host="rest.x", **own) == 0
    assert status(access, "POST", "/penstock/v1/jobs", origin="http://evil.example", **own) == 403


def test_beyond_loopback_a_service_wants_a_token_to_start() -> None:
    """Unless somebody says that something else keeps others out."""
    for http in ("0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1"):
        with pytest.raises(UsageError, match="PENSTOCK_TOKEN"):
            access_of(ClusterSettings(), http)
        assert access_of(ClusterSettings(token=Secret("t")), http).credentials
        assert not access_of(ClusterSettings(), http, insecure=True).credentials
    for http in ("127.0.0.1:1", "localhost:1", "[::1]:1", "127.8.8.8:1"):
        assert not access_of(ClusterSettings(), http).credentials
    access = access_of(ClusterSettings(rest="http://a.x:1, https://B.x"), "127.0.0.1:1", ["c.x"])
    assert access.hosts == {"a.x", "b.x", "c.x", "127.0.0.1"}
