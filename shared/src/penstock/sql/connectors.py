"""`WITH ('connector' = ...)`: which source or sink a declared table is, and its settings.

A setting is an argument of the connector's class, in Flink's spelling (`batch-rows` for `batch_rows`) or under the name
that Flink's connector has for it (`scan.startup.mode`). What a connector does not know is refused: a setting that nobody
reads would be a mistake that nobody sees.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from types import UnionType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from penstock.connectors import lookups
from penstock.connectors.base import ChangeSource
from penstock.connectors.declaring import SourceOptions
from penstock.core.times import FLINK_UNITS, duration_us
from penstock.errors import PipelineError, nearest
from penstock.types import Schema

if TYPE_CHECKING:
    from penstock.connectors.base import Sink, Source
    from penstock.expressions import Expr

_LIST: Final = ";"
_PLACE: Final = ("host", "port", "database", "username", "password")
"""What 'redis' may say instead of 'url'."""
_TRUTHS: Final = {"true": True, "false": False}


@dataclass(frozen=True)
class TableSettings:
    """What a CREATE TABLE says of its connector."""

    schema: Schema
    """The physical columns."""
    key: tuple[str, ...]
    settings: Mapping[str, str]
    event_time: str | Expr | None = None
    out_of_orderness_us: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    """Columns that show metadata, to its name."""
    partitioned: tuple[str, ...] = ()


@dataclass(frozen=True)
class Connector:
    """A connector by the name that texts give it."""

    name: str
    source: str | None
    """The class, as `module:name` among the connectors, imported when a table needs it; None if it has none."""
    sink: str | None
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    """Flink's names of settings to arguments."""
    values: Mapping[tuple[str, str], Any] = field(default_factory=dict[tuple[str, str], Any])
    """Flink's values of arguments to those of the class."""
    ignored: frozenset[str] = frozenset()
    """Settings that Flink needs and that say nothing here."""
    as_always: frozenset[tuple[str, str]] = frozenset()
    """Settings that say nothing if they have this value, which is what the connector does anyway."""
    fixed_sink: Mapping[str, Any] = field(default_factory=dict[str, Any])
    source_key: str | None = None
    """The argument of the source that takes the primary key; so too `sink_key`."""
    sink_key: str | None = None
    lookup: str | None = None
    """The class that is asked for rows by their key, which gives the columns of the key as well."""


_KAFKA: Final = {
    "properties.bootstrap.servers": "brokers", "scan.startup.mode": "start", "scan.bounded.mode": "end",
    "value.format": "format", "key.format": "key_format", "key.fields": "key", "sink.delivery-guarantee": "delivery",
    "value.avro-confluent.url": "registry", "avro-confluent.url": "registry",
}  # fmt: skip
_KAFKA_VALUES: Final[dict[tuple[str, str], Any]] = {
    ("start", "earliest-offset"): "earliest", ("start", "latest-offset"): "latest", ("end", "latest-offset"): "latest",
    ("format", "avro-confluent"): "avro", ("format", "debezium-json"): "debezium",
}  # fmt: skip

_LOOKUP: Final = {
    "lookup.partial-cache.expire-after-write": "cache_ttl", "lookup.partial-cache.max-rows": "cache_keys",
    "lookup.max-retries": "retries",
}  # fmt: skip
_POSTGRES: Final = {"table-name": "table", **_LOOKUP}
_COMMANDS: Final = {"get": "string", "hget": "hash", "hgetall": "hash", "hmget": "hash"}
"""How rows are asked for in Redis, as Flink's community connectors have it, and what holds them then."""
_OF_KAFKA: Final = frozenset({"properties.group.id", "sink.transactional-id-prefix"})
_FROM_THE_BEGINNING: Final = frozenset({("scan.startup.mode", "earliest-offset")})

CONNECTORS: Final[dict[str, Connector]] = {
    each.name: each
    for each in (
        Connector(
            "filesystem", "files:Source", "files:Sink",
            aliases={"csv.field-delimiter": "delimiter", "csv.null-literal": "null"},
            values={("format", "json"): "jsonl"},
        ),
        Connector(
            "kafka", "kafka:Source", "kafka:Sink", _KAFKA, _KAFKA_VALUES,
            ignored=_OF_KAFKA,
        ),
        Connector(
            "upsert-kafka", "kafka:ChangeSource", "kafka:Sink", _KAFKA, _KAFKA_VALUES,
            ignored=_OF_KAFKA, as_always=_FROM_THE_BEGINNING,
            fixed_sink={"delivery": "upsert"}, source_key="key", sink_key="key",
        ),
        Connector(
            "jdbc", None, "postgres:Sink",
            aliases=_POSTGRES, ignored=frozenset({"driver", "lookup.cache"}), sink_key="key", lookup="postgres:Lookup",
        ),
        Connector(
            "postgres", None, "postgres:Sink", aliases=_POSTGRES, sink_key="key", lookup="postgres:Lookup",
        ),
        Connector(
            "sqlite", "sqlite:Source", "sqlite:Sink", aliases={"table-name": "table"}, sink_key="key",
        ),
        Connector(
            "redis", None, None, aliases={"command": "structure", **_LOOKUP},
            values={("structure", spelled): structure for command, structure in _COMMANDS.items()
                    for spelled in (command, command.upper())},
            ignored=frozenset({"lookup.cache"}), lookup="redis:Lookup",
        ),
        Connector("print", None, "console:Sink", aliases={"print-identifier": "label"}),
    )
}  # fmt: skip
"""What `'connector'` may say."""
_CHANGES_IN_KAFKA: Final = Connector(
    "kafka", "kafka:ChangeSource", "kafka:Sink", _KAFKA, _KAFKA_VALUES,
    ignored=_OF_KAFKA, as_always=_FROM_THE_BEGINNING, source_key="key", sink_key="key",
)  # fmt: skip
"""`'connector' = 'kafka'` with the format `debezium-json`: a record is a change of a table."""


def source_of(name: str, table: TableSettings) -> Source[Any]:
    """The source of a declared table.

    Raises:
        PipelineError: its connector is none, or a setting is wrong.
    """
    connector = connector_of(table)
    assert connector.source is not None
    made = _imported(connector.source)
    arguments = _arguments(name, connector, made, table)
    arguments["schema"] = table.schema
    if "timezone" in _hints(made):
        arguments.setdefault("timezone", "UTC")  # a TIMESTAMP is in UTC
    if connector.source_key is not None:
        if not table.key:
            raise PipelineError(f"{name}: '{connector.name}' needs PRIMARY KEY (...) NOT ENFORCED")
        arguments[connector.source_key] = list(table.key)
    if table.event_time is not None:
        if issubclass(made, ChangeSource):
            raise PipelineError(f"{name}: its rows replace each other, and have no event time; leave WATERMARK out")
        arguments["event_time"] = table.event_time
        arguments["max_out_of_orderness"] = f"{table.out_of_orderness_us or 0}us"
    if table.metadata and "metadata" not in inspect.signature(inspect.unwrap(made.__init__)).parameters:
        raise PipelineError(
            f"{name}: '{connector.name}' has no metadata, so no column can show any; leave METADATA out"
        )
    if table.metadata:
        arguments["metadata"] = {what: column for column, what in table.metadata.items()}
    return made(**arguments)


def lookup_of(name: str, table: TableSettings) -> lookups.Lookup[Any]:
    """The table as one that is asked for rows by their key; so too. Its connector is one with a lookup."""
    connector = connector_of(table)
    assert connector.lookup is not None
    made = _imported(connector.lookup)
    return made(**_arguments(name, connector, made, table), schema=table.schema)


def sink_of(name: str, table: TableSettings, *, appends: bool = False) -> Sink:
    """The sink of a declared table; so too.

    Args:
        name: of the table.
        table: what its declaration says.
        appends: whether rows come to those that are there, if the table does not say what becomes of them.
    """
    connector = connector_of(table)
    if connector.sink is None:
        raise PipelineError(f"{name}: the connector '{connector.name}' cannot be written")
    made = _imported(connector.sink)
    arguments = _arguments(name, connector, made, table)
    if appends and "existing" in inspect.signature(made.__init__).parameters:
        arguments.setdefault("existing", "append")
    arguments.update(connector.fixed_sink)
    if connector.sink_key is not None and table.key:
        arguments[connector.sink_key] = list(table.key)
    if connector.sink_key is not None and "delivery" in connector.fixed_sink and not table.key:
        raise PipelineError(f"{name}: '{connector.name}' needs PRIMARY KEY (...) NOT ENFORCED")
    if table.partitioned:
        if "partition_by" not in inspect.signature(made.__init__).parameters:
            raise PipelineError(f"{name}: PARTITIONED BY is not for '{connector.name}'; leave it out")
        arguments["partition_by"] = list(table.partitioned)
    return made(**arguments)


def connector_of(table: TableSettings) -> Connector:
    """The connector that a table names.

    Raises:
        PipelineError: it names none, or there is no such one.
    """
    name = table.settings.get("connector")
    if name is None:
        raise PipelineError("WITH does not say 'connector'; write for example 'connector' = 'filesystem'")
    if name not in CONNECTORS:
        raise PipelineError(f"there is no connector {name!r}; {nearest(name, CONNECTORS)}")
    if name == "kafka" and "debezium-json" in (table.settings.get("format"), table.settings.get("value.format")):
        return _CHANGES_IN_KAFKA
    return CONNECTORS[name]


def _imported(target: str) -> type[Any]:
    module, _, name = target.partition(":")
    return getattr(import_module(f"penstock.connectors.{module}"), name)


def _arguments(name: str, connector: Connector, made: type[Any], table: TableSettings) -> dict[str, Any]:
    """The settings as arguments of a class, without those that the connector's other classes alone have: a table may be
    read as well as written."""
    hints = _hints(made)
    elsewhere: dict[str, Any] = {}
    for other in (connector.source, connector.sink, connector.lookup):
        elsewhere.update({} if other is None else _hints(_imported(other)))
    found: dict[str, Any] = {}
    for key, value in _as_url(name, connector, table.settings).items():
        if key == "connector" or key in connector.ignored or (key, value) in connector.as_always:
            continue
        if only := [each for name, each in connector.as_always if name == key]:
            raise PipelineError(
                f"{name}: {key!r} of such a table is {only[0]!r}, because it has all of its rows; leave it out"
            )
        argument = connector.aliases.get(key, key.replace("-", "_"))
        if key == "path" and argument not in hints:
            argument = "folder"
        if argument not in hints and argument in elsewhere:
            continue
        if argument not in hints:
            both = {**hints, **elsewhere}
            known = [
                *(each for each, meant in connector.aliases.items() if meant in both),
                *(each.replace("_", "-") for each in both),
                *connector.ignored,
                *(_PLACE if connector.name == "redis" else ()),
            ]
            raise PipelineError(f"{name}: '{connector.name}' has no setting {key!r}; {nearest(key, known)}")
        given = connector.values.get((argument, value), value)
        if key == "command" and given is value:
            *some, last = map(repr, _COMMANDS)
            raise PipelineError(f"{name}: 'command' is {', '.join(some)} or {last}, not {value!r}")
        found[argument] = given if given is not value else _converted(name, key, value, hints[argument])
    _check_required(name, connector, made, found)
    return found


def _check_required(name: str, connector: Connector, made: type[Any], found: Mapping[str, Any]) -> None:
    """That all is said that the class needs, by the name that texts have for it."""
    spelled = {argument: key for key, argument in reversed([*connector.aliases.items()])}
    for parameter in inspect.signature(inspect.unwrap(made.__init__)).parameters.values():
        told = parameter.name in ("self", "schema", connector.source_key, connector.sink_key)
        if told or parameter.default is not parameter.empty or parameter.kind is parameter.VAR_KEYWORD:
            continue
        if parameter.name not in found:
            key = (
                "path" if parameter.name == "folder" else spelled.get(parameter.name, parameter.name.replace("_", "-"))
            )
            raise PipelineError(f"{name}: '{connector.name}' needs {key!r}; write it into WITH")


def _as_url(name: str, connector: Connector, settings: Mapping[str, str]) -> Mapping[str, str]:
    """One address of what is said in several settings: of JDBC `jdbc:postgresql://...`, `username` and `password`, and of
    Redis `host` and its like."""
    url = settings.get("url", "")
    if connector.name == "redis" and any(each in settings for each in _PLACE):
        return _of_redis(name, settings)
    if connector.name != "jdbc" or not url.startswith("jdbc:"):
        return settings
    found = {key: value for key, value in settings.items() if key not in ("username", "password")}
    scheme, separator, place = url.removeprefix("jdbc:").partition("://")
    login = ":".join(quote(settings[each], safe="") for each in ("username", "password") if each in settings)
    return {**found, "url": f"{scheme}{separator}{login}{'@' if login else ''}{place}"}


def _of_redis(name: str, settings: Mapping[str, str]) -> Mapping[str, str]:
    found = {key: value for key, value in settings.items() if key not in _PLACE}
    said = {key: quote(settings[key], safe=":[]" if key == "host" else "") for key in _PLACE if key in settings}
    if "url" in settings or "host" not in said:
        raise PipelineError(
            f"{name}: 'redis' takes its address as 'host', with 'port', 'database', 'username' and 'password' where they "
            "are needed, or as 'url'; give one of both"
        )
    login = f"{said.get('username', '')}:{said['password']}@" if "password" in said else ""
    if "username" in said and not login:
        raise PipelineError(f"{name}: 'username' of 'redis' needs 'password'; write it into WITH")
    place = f"{said['host']}:{said.get('port', '6379')}/{said.get('database', '0')}"
    return {**found, "url": f"redis://{login}{place}"}


def _hints(made: type[Any]) -> dict[str, Any]:
    """The arguments of a class, and their types; those that the table says itself left out."""
    function = inspect.unwrap(made.__init__)
    module = inspect.getmodule(function)
    namespace = {**vars(typing), **(vars(module) if module else {})}
    found: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            found.update(_options(parameter.annotation, namespace))
        elif parameter.name != "self":
            found[parameter.name] = _type(parameter.annotation, namespace)
    for taken in ("schema", "event_time", "watermarks", "metadata", "stream"):
        found.pop(taken, None)
    return found


def _options(annotation: str, namespace: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a class takes as `**options: Unpack[...]`, and their types."""
    if "LookupOptions" not in annotation:
        return dict.fromkeys(SourceOptions.__annotations__, str)
    own = {**namespace, **vars(lookups)}
    given = lookups.LookupOptions.__annotations__.items()
    return {name: _type(getattr(each, "__forward_arg__", each), own) for name, each in given}


def _type(annotation: Any, namespace: Mapping[str, Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, dict(namespace))  # the library's own annotations
    except (NameError, TypeError):
        return str


def _converted(name: str, key: str, text: str, kind: Any) -> Any:
    kinds = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, UnionType) else (kind,)
    if bool in kinds:
        if text.lower() not in _TRUTHS:
            raise PipelineError(f"{name}: {key!r} is true or false, not {text!r}")
        return _TRUTHS[text.lower()]
    for number in (int, float):
        if number in kinds:
            try:
                return number(text)
            except ValueError:
                if number is float or float not in kinds:
                    raise PipelineError(f"{name}: {key!r} is a number, not {text!r}") from None
    if timedelta in kinds:
        return f"{duration_setting(key, text)}us"
    several = any(typing.get_origin(each) is Sequence for each in kinds)
    return text.split(_LIST) if several and _LIST in text else text


def duration_setting(key: str, text: str) -> int:
    """Microseconds of a setting such as `10 s` or `1 d`, as Flink writes them.

    Raises:
        PipelineError: it is no duration.
    """
    words = re.sub("[a-zµ]+", lambda unit: FLINK_UNITS.get(unit[0], unit[0]), text.replace(" ", "").lower())
    return duration_us(words if not words.isdigit() else f"{words}ms", key)
