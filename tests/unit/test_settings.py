"""Cluster settings: file, environment, errors, secrets."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict
from pathlib import Path

import msgspec
import pytest

from penstock.errors import UsageError
from penstock.settings import (
    ClusterSettings,
    KafkaSettings,
    RedisSettings,
    Secret,
    StoreSettings,
    load_settings,
    settings_to_toml,
    shown_settings,
)


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    return path


def test_file_then_environment(tmp_path: Path) -> None:
    """The environment overrides the file, the file the defaults."""
    path = _file(tmp_path, 'name = "a"\n[kafka]\nbrokers = "k:1"\nreplication = 3\n')
    variables = {
        "PENSTOCK_KAFKA_BROKERS": "k:2",
        "PENSTOCK_STORE_SECRET_KEY": "s",
        "PENSTOCK_TRACING_ENDPOINT": "http://o",
    }
    settings = load_settings(path, variables)
    assert settings.tracing.endpoint == "http://o"
    assert settings.name == "a"
    assert settings.kafka == KafkaSettings("k:2", replication=3)
    assert settings.store.secret_key.reveal() == "s"


def test_the_variable_names_a_file(tmp_path: Path) -> None:
    """`PENSTOCK_CLUSTER` is as good as the option."""
    path = _file(tmp_path, 'name = "b"')
    assert load_settings(None, {"PENSTOCK_CLUSTER": str(path)}).name == "b"


def test_round_trip(tmp_path: Path) -> None:
    """What is written is read back, odd characters included."""
    settings = ClusterSettings(
        'q"\\ü', kafka=KafkaSettings(replication=3), store=StoreSettings(secret_key=Secret("s\n"))
    )
    assert load_settings(_file(tmp_path, settings_to_toml(settings)), {}) == settings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nme = 'x'", "there is no setting 'nme'; did you mean 'name'"),
        ("[kafka]\nbroker = 'x'", r"\[kafka\]: there is no setting 'broker'; did you mean 'brokers'"),
        ("[kafka]\nreplication = 'x'", "replication: Expected `int`"),
        ("[kafka]\nsecurity_protocol = 'TLS'", "security_protocol: Invalid enum value"),
        ("kafka = 1", r"write \[kafka\]"),
        ("= 1", "not TOML"),
    ],
)
def test_errors_name_the_place(tmp_path: Path, text: str, message: str) -> None:
    """Every mistake says where it is and what would be right."""
    with pytest.raises(UsageError, match=message):
        load_settings(_file(tmp_path, text), {})


def test_a_missing_file(tmp_path: Path) -> None:
    """A file that was named must be there."""
    with pytest.raises(UsageError, match=r"cannot read the cluster's settings"):
        load_settings(tmp_path / "none.toml", {})


def test_secrets_are_not_shown() -> None:
    """However they are printed; encoders do not take them; the value itself is there, and may be sent to workers."""
    secret = Secret("hunter2")
    settings = StoreSettings(secret_key=secret)
    for shown in (repr(settings), str(secret), f"{secret}", f"{secret!s:>10}", repr([secret])):
        assert "hunter2" not in shown
    for encode in (json.dumps, msgspec.json.encode):
        with pytest.raises(TypeError):
            encode({"key": secret})
        with pytest.raises(TypeError):
            encode(asdict(settings))
    assert pickle.loads(pickle.dumps(settings)).secret_key.reveal() == "hunter2"


def test_a_token_comes_from_the_settings_or_a_file_of_its_own(tmp_path: Path) -> None:
    """The environment has the last word; an unreadable or empty file is named."""
    (tmp_path / "token").write_text("from-a-file\n")
    path = _file(tmp_path, f'token_file = "{tmp_path / "token"}"')
    assert load_settings(path, {}).token.reveal() == "from-a-file"
    assert load_settings(path, {"PENSTOCK_TOKEN": "t"}).token.reveal() == "t"
    for content in (None, ""):
        (tmp_path / "token").unlink()
        if content is not None:
            (tmp_path / "token").write_text(content)
        else:
            (tmp_path / "token").mkdir()
        with pytest.raises(UsageError, match="token_file"):
            load_settings(path, {})
        if content is None:
            (tmp_path / "token").rmdir()
            (tmp_path / "token").touch()


def test_what_is_shown_of_settings_holds_no_secret() -> None:
    """Every setting by its name in the file; of a secret whether there is one."""
    plain = "hunter2"
    settings = ClusterSettings(
        token=Secret(plain),
        redis=RedisSettings(Secret(f"redis://u:{plain}@r")),
        store=StoreSettings(secret_key=Secret()),
    )
    shown = shown_settings(settings)
    assert plain not in str(shown)
    assert (shown["token"], shown["redis.url"], shown["store.secret_key"]) == ("***", "***", "")
    assert (shown["kafka.brokers"], shown["kafka.replication"]) == ("127.0.0.1:9092", "0")
