"""A dispatcher beside one embedded run: the same routes, but for what one run cannot do."""

from __future__ import annotations

import httpx2
from small_cluster import ADDRESS, small_cluster, until

from penstock.coordination.worker_logs import WorkerLog, WorkerLogList, logs_in
from penstock.service.access import Access, Gate
from penstock.service.credentials import Role
from penstock.service.http_server import Readiness
from penstock_dispatcher.app import dispatcher_app
from penstock_dispatcher.cluster import DispatcherPorts
from penstock_dispatcher.route_roles import ROLES
from penstock_dispatcher.run_dashboard import REFUSED

LOGS = WorkerLogList((WorkerLog("w", False, ("a line",)),))


def beside(ports: DispatcherPorts) -> httpx2.AsyncClient:
    """Clients of such a dispatcher."""
    transport = httpx2.ASGITransport(
        Gate(dispatcher_app(ports, Readiness({}), list), Access()), raise_app_exceptions=False
    )
    own_page = {"X-Requested-With": "test", "Sec-Fetch-Site": "same-origin"}
    return httpx2.AsyncClient(transport=transport, base_url=ADDRESS, headers=own_page)


async def test_what_one_run_cannot_do_is_refused_with_the_reason() -> None:
    """Every route that submits or rescales, Flink's too; savepoints and the rest are carried out."""
    async with small_cluster() as cluster:
        job = await cluster.submit()
        await cluster.checkpointed(job)
        ports = DispatcherPorts(
            cluster.log, cluster.blobs, cluster.metadata, cluster.clock, lambda: "a" * 32, refused=REFUSED
        )
        async with beside(ports) as http:
            for route, role in ROLES.items():
                rescales = route.endswith(("/rescale", "/resource-requirements")) and not route.startswith("GET")
                if role is not Role.SUBMIT and not rescales:
                    continue
                method, path = route.split(" ")
                answer = await http.request(method, path.replace("{job}", job).replace("{job_id}", job))
                assert answer.status_code == 409, route
                assert answer.json() == {"errors": [REFUSED["rescale" if rescales else "submit"]]}
            assert (await http.get("/penstock/v1/whoami")).json()["refused"] == REFUSED
            asked = await http.post(f"/penstock/v1/jobs/{job}/savepoints")
            assert asked.status_code == 202
            assert (await cluster.services.answer(job, asked.json()["request"])).outcome == "completed"
        assert (await cluster.http.get("/penstock/v1/whoami")).json()["refused"] == {}


async def test_logs_come_from_the_run_itself() -> None:
    """Its workers belong to no task manager that could be asked; Flink's route has the same."""
    async with small_cluster() as cluster:
        job = await cluster.submit()
        await cluster.checkpointed(job)
        ports = DispatcherPorts(
            cluster.log, cluster.blobs, cluster.metadata, cluster.clock, lambda: "a" * 32, logs=lambda *_: LOGS
        )
        async with beside(ports) as http:
            answer = await http.get(f"/penstock/v1/jobs/{job}/workers/logs")
            assert logs_in(answer.content) == LOGS

            async def shown() -> bool:
                return bool((await http.get("/penstock/v1/taskmanagers")).json()["workers"])

            await until(shown, "a worker is shown")
            worker = (await http.get("/penstock/v1/taskmanagers")).json()["workers"][0]["worker"]
            assert (await http.get(f"/taskmanagers/{worker}/log")).status_code == 200
