"""Named tokens: what is kept of them, how they are read, whose they are, and when they end."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from penstock.errors import UsageError
from penstock.service.credentials import (
    Credentials,
    Identity,
    NamedToken,
    Role,
    WrongTokenError,
    credentials_of,
    digest_of,
    inner_credentials_of,
    read_tokens,
    token_between_services,
)
from penstock.settings import ClusterSettings, Secret, load_settings

DIGEST = digest_of("secret")


def test_roles_include_each_other_in_this_order() -> None:
    assert [str(role) for role in sorted(Role)] == ["view", "operate", "submit"]


def test_tokens_are_read_from_lines_and_from_one_line() -> None:
    """As `line` writes them; what follows a # is a comment."""
    ann = NamedToken(Identity("ann", Role.VIEW), DIGEST)
    robot = NamedToken(Identity("ci@x.y", Role.SUBMIT), digest_of("2"), date(2027, 6, 30))
    text = f"# who may\n{ann.line()}  # until she leaves\n\n{robot.line()}\n"
    assert read_tokens(text, "here") == [ann, robot]
    assert read_tokens(f"{ann.line()}, {robot.line()},", "here") == [ann, robot]
    assert read_tokens(" # nobody\n", "here") == []
    assert "secret" not in ann.line()


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("penstock_abcdef", "an entry is NAME ROLE"),
        (f"ann view {DIGEST} 2027-06-30 more", "an entry is NAME ROLE"),
        ("ann view penstock_abcdef", "no sha256:DIGEST"),
        (f"ann view sha256:{DIGEST[:-1]}", "no sha256:DIGEST"),
        (f"ann admin sha256:{DIGEST}", "no such role"),
        (f"ann viwe sha256:{DIGEST}", "did you mean 'view'"),
        (f"shared view sha256:{DIGEST}", "named by"),
        (f"anonymous view sha256:{DIGEST}", "named by"),
        (f"-ann view sha256:{DIGEST}", "named by"),
        (f"{'a' * 65} view sha256:{DIGEST}", "named by"),
        (f"ann view sha256:{DIGEST} soon", "as 2026-12-31"),
    ],
)
def test_an_entry_that_is_none_is_refused_and_not_repeated(entry: str, said: str) -> None:
    """It may be a secret that somebody put there by mistake."""
    with pytest.raises(UsageError, match=r"here, line 2: ") as raised:
        read_tokens(f"\n{entry}", "here")
    assert said in str(raised.value)
    assert "penstock_abcdef" not in str(raised.value)


def test_a_token_says_who_has_it() -> None:
    found = Credentials(tuple(read_tokens(f"ann view sha256:{DIGEST}, bob operate sha256:{digest_of('2')}", "here")))
    assert found.identify("secret") == Identity("ann", Role.VIEW)
    assert found.identify("2") == Identity("bob", Role.OPERATE)
    for wrong in ("", "secre", "secret ", DIGEST, f"sha256:{DIGEST}", "ä\udce4"):
        with pytest.raises(WrongTokenError, match="none of the cluster's"):
            found.identify(wrong)


def test_a_token_is_good_to_the_end_of_its_last_day() -> None:
    """Nobody else learns that there was one; the next of the same name is good beside it."""
    text = f"ann view sha256:{DIGEST} 2026-12-31, ann view sha256:{digest_of('next')}"

    def at(moment: datetime) -> Credentials:
        return Credentials(tuple(read_tokens(text, "here")), moment.timestamp)

    last = datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert at(last).identify("secret").name == "ann"
    after = at(datetime(2027, 1, 1, tzinfo=UTC))
    with pytest.raises(WrongTokenError, match="token of ann expired at the end of 2026-12-31"):
        after.identify("secret")
    assert after.identify("next").name == "ann"
    assert read_tokens(f"ann view sha256:{DIGEST} 9999-12-31", "x")
    eternal = Credentials(tuple(read_tokens(f"ann view sha256:{DIGEST} 9999-12-31", "x")), lambda: 0.0)
    assert eternal.identify("secret").name == "ann"


def test_tokens_come_from_the_settings(tmp_path) -> None:
    """Of a file only dispatchers read what stands there."""
    file = tmp_path / "tokens"
    file.write_text(f"bob operate sha256:{digest_of('2')}\n")
    variables = {
        "PENSTOCK_TOKEN": "own", "PENSTOCK_TOKENS": f"ann view sha256:{DIGEST}", "PENSTOCK_TOKENS_FILE": str(file),
    }  # fmt: skip
    settings = load_settings(environ=variables)
    found = credentials_of(settings)
    assert [str(found.identify(token).role) for token in ("own", "secret", "2")] == ["submit", "view", "operate"]
    assert DIGEST not in repr(settings)
    inner = inner_credentials_of(settings)
    assert inner.identify("own").role is Role.SUBMIT
    assert inner.identify(token_between_services(settings.token).reveal()).role is Role.VIEW
    for stranger in (inner, found):
        for token in ("secret", token_between_services(Secret("other")).reveal()):
            if stranger is inner or token != "secret":
                with pytest.raises(WrongTokenError):
                    stranger.identify(token)
    with pytest.raises(WrongTokenError):
        found.identify(token_between_services(settings.token).reveal())
    assert not credentials_of(ClusterSettings())
    assert not inner_credentials_of(ClusterSettings(tokens=Secret(variables["PENSTOCK_TOKENS"])))
    with pytest.raises(UsageError, match="tokens_file: /nowhere cannot be read"):
        credentials_of(ClusterSettings(tokens_file="/nowhere"))
