"""Where a cluster's parts are and how to reach them: Kafka, Redis, the object store. One file, environment, flags.

Read from a TOML file (`--cluster FILE`, `PENSTOCK_CLUSTER`, or `.penstock/cluster.toml`, which `penstock up` writes),
then overridden by environment variables: `PENSTOCK_KAFKA_BROKERS` is `brokers` of the table `[kafka]`.
Secrets never appear in a repr, a log line or an error.
"""

from __future__ import annotations

import hmac
import os
import ssl
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_type_hints
from urllib.parse import urlsplit

import msgspec

from penstock.errors import UsageError, nearest

DEFAULT_FILE = Path(".penstock/cluster.toml")
FILE_VARIABLE = "PENSTOCK_CLUSTER"

T = TypeVar("T")


class Secret:
    """A password or key. No string, so that nothing prints, formats or encodes it by accident: who uses it says so."""

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    def __repr__(self) -> str:
        return "'***'"

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash(self._text)

    def reveal(self) -> str:
        """The plain string."""
        return self._text


def shown_address(url: str) -> str:
    """What may be shown of an address: host, port and path, without user, password and query.

    Empty if that cannot be told: a password with a `/`, `?`, `#` or `[` as it is would be read as one of these.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    port = "" if "@" in parts.netloc else parts.netloc.partition(":")[2]
    cut_at_query = "@" in parts.query and port != "" and not port.isdecimal()
    if "@" in parts.path + parts.fragment or cut_at_query:
        return ""
    return parts.netloc.rpartition("@")[2] + parts.path


_NONE = Secret()
_LOCAL_REDIS = Secret("redis://127.0.0.1:6379/0")


_MOST_COPIES: Final = 3


def possible_copies(brokers: int) -> int:
    """How many copies of a topic so many brokers hold, unless it is said: of more than three a write gets only slower."""
    return max(1, min(_MOST_COPIES, brokers))


@dataclass(frozen=True)
class KafkaSettings:
    """How to reach Kafka. The names of security settings are Kafka's own."""

    brokers: str = "127.0.0.1:9092"
    """`host:port`, several separated by commas."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    sasl_username: str = ""
    sasl_password: Secret = _NONE
    ssl_cafile: str = ""
    ssl_certfile: str = ""
    ssl_keyfile: str = ""
    ssl_keypassword: Secret = _NONE
    replication: int = 0
    """Copies of the topics that Penstock creates; 0: as many as there are brokers, up to 3. See `copies`."""

    def copies(self, brokers: int) -> int:
        """How many copies a topic gets that is created where there are so many brokers."""
        return self.replication or possible_copies(brokers)


@dataclass(frozen=True)
class RedisSettings:
    """How to reach Redis."""

    url: Secret = _LOCAL_REDIS
    """`redis://` or `rediss://` (TLS), with user and password where there are any; therefore a secret."""
    ssl_cafile: str = ""
    """For a `rediss://` server whose certificate is signed by an authority of one's own: that one's, as PEM; the
    system's authorities if left out."""
    ssl_certfile: str = ""
    """Where Redis wants a certificate of its clients (mutual TLS): that one, as PEM."""
    ssl_keyfile: str = ""
    """Its key."""

    @property
    def address(self) -> str:
        """Host, port and database, as people may see them; empty if `url` is none of which they can be told."""
        return shown_address(self.url.reveal())


@dataclass(frozen=True)
class StoreSettings:
    """How to reach the object store: any S3, MinIO among them."""

    endpoint: str = "http://127.0.0.1:9000"
    bucket: str = "penstock"
    region: str = "us-east-1"
    access_key: str = ""
    secret_key: Secret = _NONE
    ssl_cafile: str = ""
    """For an `https://` endpoint whose certificate is signed by an authority of one's own: that one's, as PEM. Public
    authorities count besides."""

    def authorities(self) -> bytes | None:
        """The certificates of `ssl_cafile`; None where there is none.

        Raises:
            UsageError: the file cannot be read, or holds no certificate.
        """
        if not self.ssl_cafile:
            return None
        _trusting(self.ssl_cafile, "store.ssl_cafile")
        return Path(self.ssl_cafile).read_bytes()


@dataclass(frozen=True)
class TracingSettings:
    """Where traces of checkpoints and deployments go."""

    endpoint: str = ""
    """An OTLP/HTTP receiver, such as `http://127.0.0.1:4318`; empty: as OpenTelemetry's own variables say, else none."""


@dataclass(frozen=True)
class OidcSettings:
    """An OpenID Connect provider whose JSON Web Tokens dispatchers take beside their own tokens; see
    [security](security.md#openid-connect)."""

    issuer: str = ""
    """Its URL, letter by letter as in the claim iss: `https://`, or, on loopback alone, `http://`. Empty: none."""
    audience: str = ""
    """What has to be among those whom a token is for (aud)."""
    roles_claim: str = "roles"
    """Where the values stand that give roles: a claim, or a path to one inside others (realm_access.roles)."""
    view: str = ""
    """Values of that claim that give the role `view`, separated by commas."""
    operate: str = ""
    """The same for `operate`."""
    submit: str = ""
    """The same for `submit`. Who has several roles has the highest."""
    name_claim: str = "sub"
    """What people are called in the audit log, after "oidc:"; where a token does not have it, sub."""
    client_id: str = ""
    """What the provider knows the dashboard as, a public client. Empty: it offers no login."""
    scopes: str = "openid"
    """What its login asks for, separated by spaces; openid among it."""
    login_token: Literal["access_token", "id_token"] = "access_token"
    """Which of the login's tokens the dashboard shows: the access token, or, where that is for others or opaque, the ID
    token; `audience` is the client's id then."""
    ssl_cafile: str = ""
    """For a provider whose certificate is signed by an authority of one's own: that one's, as PEM. Public authorities
    count besides."""

    def trust(self) -> ssl.SSLContext:
        """What dispatchers demand of the provider's certificate.

        Raises:
            UsageError: the file `ssl_cafile` cannot be read, or holds no certificate.
        """
        return _trusting(self.ssl_cafile, "oidc.ssl_cafile")


@dataclass(frozen=True)
class ClusterSettings:
    """A cluster. Several may share Kafka, Redis and the store: all they write begins with `name`."""

    name: str = "local"
    rest: str = "http://127.0.0.1:8081"
    """Where clients find the dispatcher; several separated by commas."""
    token: Secret = _NONE
    """What clients prove to the dispatcher who they are: the cluster's own token, which may do everything, or, of a
    client, one with a role of its own. Dispatchers need one of either kind to listen beyond loopback."""
    token_file: str = ""
    """Or the file that holds it."""
    tokens: Secret = _NONE
    """What dispatchers know of further tokens, each with a name and a role: lines that `penstock token` prints, with
    digests in them, separated by commas."""
    tokens_file: str = ""
    """Or the file that holds them, one in a line; dispatchers alone read it."""
    rest_ssl_cafile: str = ""
    """For dispatchers at `https://` whose certificate is signed by an authority of one's own: that one's, as PEM. Public
    authorities count besides."""
    rest_ssl_certfile: str = ""
    """What dispatchers show, as PEM with the chain up to the authority: they speak TLS then, and nothing else. Renewed
    files are seen within seconds."""
    rest_ssl_keyfile: str = ""
    """Its key, where that is not in the same file."""
    rest_ssl_keypassword: Secret = _NONE
    engine: Literal["embedded", "spark"] = "embedded"
    """What `penstock run` and `penstock submit` run pipelines on where neither their file nor `--engine` says so:
    `spark`, or this machine and the task managers."""
    kafka: KafkaSettings = field(default_factory=KafkaSettings)
    redis: RedisSettings = field(default_factory=RedisSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    tracing: TracingSettings = field(default_factory=TracingSettings)
    oidc: OidcSettings = field(default_factory=OidcSettings)

    def rest_trust(self) -> ssl.SSLContext:
        """What clients demand of a dispatcher's certificate.

        Raises:
            UsageError: the file `rest_ssl_cafile` cannot be read, or holds no certificate.
        """
        return _trusting(self.rest_ssl_cafile, "rest_ssl_cafile")


def _trusting(cafile: str, setting: str) -> ssl.SSLContext:
    """A context that trusts public authorities, and those in a file."""
    context = ssl.create_default_context()
    try:
        if cafile:
            context.load_verify_locations(cafile)
    except OSError as error:  # ssl.SSLError is one
        raise UsageError(f"setting {setting}: {cafile}: no certificates (PEM): {error}") from error
    return context


def load_settings(path: str | Path | None = None, environ: Mapping[str, str] | None = None) -> ClusterSettings:
    """The settings of the file (the default one, if there is one and none is given), then of the environment.

    Raises:
        UsageError: the file is missing or unreadable, or a setting in it is unknown or of the wrong type; names it.
    """
    environment = os.environ if environ is None else environ
    named = path or environment.get(FILE_VARIABLE)
    values = _read(Path(named)) if named else _read(DEFAULT_FILE) if DEFAULT_FILE.exists() else {}
    where = str(named or DEFAULT_FILE)
    settings = _build(ClusterSettings, values, where, "PENSTOCK", environment)
    if settings.token or not settings.token_file:
        return settings
    return replace(settings, token=_token_in(Path(settings.token_file)))


def _token_in(path: Path) -> Secret:
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"token_file: {path} cannot be read: {error}") from error
    if not text:
        raise UsageError(f"token_file: {path} is empty")
    return Secret(text)


def settings_to_toml(settings: ClusterSettings) -> str:
    """The file that `load_settings` reads: every setting that differs from its default. Secrets stand in it plainly."""
    lines: list[str] = []
    tables: list[str] = []
    for item in fields(settings):
        value = getattr(settings, item.name)
        if isinstance(value, str | Secret):
            if item.name in ("name", "rest") or value:
                lines.append(f"{item.name} = {_quoted(value)}")
            continue
        tables += ["", f"[{item.name}]"]
        for inner in fields(value):
            content = getattr(value, inner.name)
            if content != inner.default:
                tables.append(f"{inner.name} = {_quoted(content) if isinstance(content, str | Secret) else content}")
    return "\n".join([*lines, *tables]) + "\n"


def shown_settings(settings: ClusterSettings) -> dict[str, str]:
    """Every setting by its name in the file, `kafka.brokers`; of secrets only whether there is one."""
    shown: dict[str, str] = {}
    for item in fields(settings):
        value = getattr(settings, item.name)
        if isinstance(value, str | Secret):
            shown[item.name] = _shown(value)
        else:
            shown |= {f"{item.name}.{part.name}": _shown(getattr(value, part.name)) for part in fields(value)}
    return shown


def _shown(value: str | int | Secret) -> str:
    if isinstance(value, Secret):
        return "***" if value else ""
    return str(value)


def _quoted(text: str | Secret) -> str:
    return msgspec.json.encode(
        text.reveal() if isinstance(text, Secret) else text
    ).decode()  # a JSON string is a TOML basic string


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"{path}: cannot read the cluster's settings: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: this is not TOML: {error}") from error


def _build(kind: type[T], values: Mapping[str, Any], where: str, prefix: str, environ: Mapping[str, str]) -> T:
    hints = get_type_hints(kind)
    for name in values:
        if name not in hints:
            raise UsageError(f"{where}: there is no setting {name!r}; {nearest(name, hints)}")
    built: dict[str, Any] = {}
    for name, hint in hints.items():
        variable = f"{prefix}_{name.upper()}"
        if isinstance(hint, type) and hasattr(hint, "__dataclass_fields__"):
            table = values.get(name, {})
            if not isinstance(table, dict):
                raise UsageError(f"{where}: {name} is a table: write [{name}]")
            built[name] = _build(hint, table, f"{where}: [{name}]", variable, environ)
        elif variable in environ:
            built[name] = _value(environ[variable], hint, f"environment variable {variable}", strict=False)
        elif name in values:
            built[name] = _value(values[name], hint, f"{where}: {name}", strict=True)
    return kind(**built)


def _value(value: Any, hint: Any, where: str, *, strict: bool) -> Any:
    if hint is Secret:
        return Secret(_value(value, str, where, strict=strict))
    try:
        return msgspec.convert(value, hint, strict=strict)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}") from error
