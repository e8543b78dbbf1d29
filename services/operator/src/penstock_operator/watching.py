"""What happens to the resources, by kopf: it lists and watches them, and begins anew where a connection breaks.

Nothing is decided by what it brings, which may be old: it only says which resource is to be looked at. Its handlers of
changes, its finalizers and its record of what was handled are not used, because the status says all that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import kopf

from penstock_operator.definitions import KINDS, Kind
from penstock_operator.resources import GROUP, VERSION

Nudge = Callable[[Kind, str, str], None]


async def watch(nudge: Nudge, namespaces: Sequence[str]) -> None:
    """Call `nudge` with kind, namespace and name of whatever is there or changes; ends by cancellation or SIGTERM.

    `namespaces`: those that are watched; none: all.
    """
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(_login)
    for kind in KINDS:
        kopf.on.event(GROUP, VERSION, kind.plural, registry=registry, id=kind.plural)(_nudging(kind, nudge))
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # it may neither list namespaces nor definitions, and need not
    await kopf.operator(
        registry=registry, settings=settings, standalone=True, clusterwide=not namespaces, namespaces=namespaces
    )


def _login(**arguments: Any) -> Any:
    return kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(**arguments)


def _nudging(kind: Kind, nudge: Nudge) -> Any:
    async def seen(namespace: str | None, name: str | None, **_: Any) -> None:
        if namespace and name:
            nudge(kind, namespace, name)

    return seen
