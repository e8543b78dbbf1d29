"""Which catalog a table is found in, how it is reached, and what goes wrong there as our errors.

The settings are pyiceberg's own and may hold keys: they are never shown, neither in plans nor in errors.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors.base import Dataset
from penstock.core.extras import install
from penstock.errors import ExternalError, PenstockError, PipelineError
from penstock.settings import Secret

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

CatalogLike = str | Mapping[str, str | Secret]

_USER: Final = re.compile(r"//[^/@]*@")
"""User and password in a URL."""
_SHOWN: Final = ("type", "uri", "warehouse")


@dataclass(frozen=True)
class TablePlace:
    """A table in a catalog."""

    what: str
    """The connector, for errors: `iceberg.Sink`."""
    table: str
    """Namespace and name, with dots."""
    catalog: str
    """Its name; SQL catalogs keep the tables of each name apart."""
    settings: tuple[tuple[str, str | Secret], ...] | None = field(default=None, repr=False)
    """None: what pyiceberg is configured with under that name."""

    def __str__(self) -> str:
        return f"table {self.table} of catalog {self.catalog}"

    def open(self) -> Catalog:
        """The client of the catalog, one for all of this process until something goes wrong with it."""
        with self.asking("open the catalog of"):
            return _client(self.catalog, self.settings)

    def load(self) -> Table:
        """The table as it is now.

        Raises:
            PipelineError: there is none.
        """
        with self.asking("load"):
            return self.open().load_table(self.table)

    def describe(self) -> dict[str, Any]:
        """For plans and fingerprints: no secrets."""
        if self.settings is None:
            return {"table": self.table, "catalog": self.catalog}
        plain = [(name, value) for name, value in self.settings if name in _SHOWN and isinstance(value, str)]
        shown = {name: _USER.sub("//", value) for name, value in plain}
        return {"table": self.table, "catalog": {"name": self.catalog} | shown}

    def dataset(self) -> Dataset:
        """The table, by its catalog's URL or, where that is not known here, its name."""
        uri = dict(self.settings or ()).get("uri", self.catalog)
        return Dataset(_USER.sub("//", uri) if isinstance(uri, str) else self.catalog, self.table)

    def same(self, other: TablePlace) -> bool:
        """Whether it is the same table, as far as settings tell."""
        return (self.table, self.catalog, self.settings) == (other.table, other.catalog, other.settings)

    @contextmanager
    def asking(self, doing: str) -> Generator[None]:
        """What is raised inside becomes an error of ours that says what was done to what."""
        try:
            yield
        except PenstockError:
            raise
        except Exception as error:  # of pyiceberg, its catalogs' clients, the file systems below, Arrow
            _client.cache_clear()  # its token may be over
            raise self._translated(doing, error) from None

    def _translated(self, doing: str, error: Exception) -> PenstockError:
        kind, reason = type(error).__name__, self._hidden(" ".join(str(error).split())[:500])
        message = f"{self.what}: cannot {doing} {self}: {reason or kind}"
        if kind in _WRONG:
            return PipelineError(f"{message}; {_WRONG[kind]}")
        return ExternalError(f"{message} ({kind})")

    def _hidden(self, text: str) -> str:
        """Without the settings that are not shown anyway."""
        for name, value in self.settings or ():
            if name not in _SHOWN and len(_plain(value)) > 3:
                text = text.replace(_plain(value), "***")
        return _USER.sub("//***@", text)


@functools.lru_cache(maxsize=16)
def _client(name: str, settings: tuple[tuple[str, str | Secret], ...] | None) -> Catalog:
    from pyiceberg.catalog import load_catalog

    return load_catalog(name, **{key: _plain(value) for key, value in settings or ()})


_WRONG: Final = {
    "NoSuchTableError": "create it, or correct its name",
    "NoSuchIcebergTableError": "it is no table of Iceberg",
    "NoSuchNamespaceError": "create the namespace, or correct the name",
    "UnauthorizedError": "check the credentials in catalog=",
    "ForbiddenError": "check the permissions of the credentials in catalog=",
    "OAuthError": "check the credentials in catalog=",
    "NotInstalledError": "install what it names",
    "ModuleNotFoundError": "install what is missing: pip install 'pyiceberg[...]' has an extra per catalog and store",
}
"""What repeating does not help against, and what to do."""


def table_place(what: str, table: str, catalog: CatalogLike) -> TablePlace:
    """The place of a table as the user names it.

    Raises:
        PipelineError: it is no name of a table, settings are not text, or pyiceberg is missing.
    """
    check_installed(what)
    if len(parts := table.split(".")) < 2 or not all(parts):
        raise PipelineError(f"{what}: table {table!r} names no namespace; write 'namespace.table'")
    if isinstance(catalog, str):
        return TablePlace(what, table, catalog)
    for name, value in catalog.items():
        if not isinstance(value, str | Secret):
            raise PipelineError(f"{what}: catalog={{{name!r}: ...}} is text or a Secret, got {type(value).__name__}")
    name = _plain(catalog.get("name", "default"))
    if not {"type", "uri", "py-catalog-impl"} & catalog.keys():
        raise PipelineError(
            f"{what}: catalog= says neither 'type' nor 'uri'; write for example {{'type': 'rest', 'uri': "
            "'http://catalog:8181'}, or the name of a catalog that pyiceberg is configured with"
        )
    settings = tuple(sorted((key, value) for key, value in catalog.items() if key != "name"))
    return TablePlace(what, table, name, settings)


def check_installed(what: str) -> None:
    """Raise `PipelineError` if pyiceberg is not there."""
    try:
        import pyiceberg.table  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        raise PipelineError(f"{what} needs pyiceberg: {install('iceberg')}") from None


def _plain(value: str | Secret) -> str:
    return value.reveal() if isinstance(value, Secret) else value
