"""`penstock token`: one token, one line, and they fit each other."""

from __future__ import annotations

import json

import pytest

from penstock.cli.main import main
from penstock.service.credentials import Credentials, Identity, Role, read_tokens


def test_a_token_fits_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Each is another one; the line holds its digest alone."""
    made: set[str] = set()
    for _ in range(2):
        assert main(["token", "ann", "--role", "operate", "--expires", "2999-01-01", "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        made.add(printed["token"])
        assert len(printed["token"]) > 40
        assert printed["token"] not in printed["line"]
        known = Credentials(tuple(read_tokens(printed["line"], "here")))
        assert known.identify(printed["token"]) == Identity("ann", Role.OPERATE)
    assert len(made) == 2


def test_what_people_read_has_both(capsys: pytest.CaptureFixture[str]) -> None:
    """And says where each goes."""
    assert main(["token", "ci", "--role", "submit"]) == 0
    token, line, *rest = capsys.readouterr().out.splitlines()
    (known,) = read_tokens(line.removeprefix("line "), "here")
    assert Credentials((known,)).identify(token.removeprefix("token ").strip()).name == "ci"
    assert known.expires is None
    assert "PENSTOCK_TOKENS_FILE" in " ".join(rest)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["shared", "--role", "view"], "NAME: a token is named by"),
        (["a b", "--role", "view"], "NAME: a token is named by"),
        (["ann", "--role", "view", "--expires", "soon"], "--expires: the last day"),
    ],
)
def test_what_is_no_name_or_day_is_refused(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", *options]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.out == ""
