"""Whether a server answers, and how its address is shown: in words, never a secret, never an exception."""

from __future__ import annotations

import socket

import pytest

from verl.tracking.diagnosis.reachability import proxy_for, unreachable, without_credentials, without_login


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("http://bob:geheim123@host:5000/x", "http://host:5000/x"),
        ("http://bob:ge@heim123@host", "http://host"),
        ("http://bob:ge/heim123@host", "http://host"),
        ("http://bob:ge#heim123@host", "http://host"),
        ("http://bob:ge?heim123@host", "http://host"),
        ("http://geheim123@host", "http://host"),
        ("bob:geheim123@proxy:3128", "proxy:3128"),
        ("bob:ge/heim123@proxy:3128", "proxy:3128"),
        ("http://bob:geheim123@[::1", "http://[::1"),
        ("http://host?password=geheim123", "http://host"),
        ("http://host/a?b=1&api_key=geheim123&c=2#d", "http://host/a?b=1&c=2#d"),
        ("postgresql+psycopg://bob:geheim123@host/db", "postgresql+psycopg://host/db"),
        ("http://host/sk-abcdefgh1234567890abcd", "http://host/***"),
    ],
)
def test_an_address_is_shown_without_secrets(given: str, shown: str) -> None:
    assert without_credentials(given) == shown


@pytest.mark.parametrize(
    "address",
    [
        "http://host:5000/a@b",
        "http://host:5000?a=b@c",
        "http://[::1]:5000/a@b",
        "sqlite:///a.db?timeout=3",
        "sqlite:////folder/a@b.db",
        "databricks",
        "runs@home",
        "",
    ],
)
def test_an_address_without_secrets_is_shown_as_it_is(address: str) -> None:
    assert without_credentials(address) == without_login(address) == address


def test_secret_parameters_stay_where_an_address_is_used() -> None:
    assert without_login("http://bob:geheim123@host?token=abcdef") == "http://host?token=abcdef"


@pytest.mark.parametrize("address", ["http://[::1", "http://host:port", "http://host:99999", "http://", "", "//[", "x"])
def test_a_bad_address_is_a_reason_and_never_raises(address: str) -> None:
    assert (unreachable(address) or "").startswith("its address")
    assert proxy_for(address) is None
    assert unreachable("http://host", address or "//").startswith("the proxy's address") or address == "x"  # type: ignore[union-attr]
    without_credentials(address)


@pytest.mark.parametrize("host", ["a" * 70, "a..b", "bob:ge/heim@x\u00adx"])
def test_a_name_that_cannot_be_looked_up_is_a_reason(host: str) -> None:
    reason = unreachable(f"http://{host}")
    assert reason
    assert "heim" not in reason


def test_the_reason_has_nothing_of_a_password() -> None:
    for address in ("http://bob:ge/heim123@127.0.0.1:1", "http://bob:geheim123@127.0.0.1:1"):
        assert unreachable(address) == "127.0.0.1:1: Connection refused"
        assert unreachable("http://host", address) == "127.0.0.1:1 (the proxy): Connection refused"


def test_the_proxy_for_everything_counts_after_that_of_the_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy_for("https://host") is None
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1")
    assert proxy_for("https://host") == "socks5://127.0.0.1"
    assert proxy_for("https://host", reads_all_proxy=False) is None
    monkeypatch.setenv("HTTPS_PROXY", "http://other:1")
    assert proxy_for("https://host") == "http://other:1"
    assert proxy_for("http://host") == "socks5://127.0.0.1"
    assert proxy_for("http://host", "http://own:1") == "http://own:1"
    monkeypatch.setenv("NO_PROXY", "host")
    assert proxy_for("https://host") is None


def test_a_server_is_looked_for_through_the_proxy_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("ALL_PROXY", f"127.0.0.1:{listener.getsockname()[1]}")
        assert unreachable("http://no.such.host.at.all") is None
    assert "(the proxy)" in (unreachable("http://no.such.host.at.all") or "")
