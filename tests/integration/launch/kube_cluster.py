"""An API server of Kubernetes (kmock's, in memory) with a hand on what a controller and a kubelet would do.

It stores, lists and streams objects as the real one does; it runs nothing and does not read selectors.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kmock import KubernetesEmulator, ResourceInfo, Server
from kubernetes import client

NAMESPACE = "ml"
GROUP, VERSION, PLURAL = "trainer.kubeflow.org", "v1alpha1", "trainjobs"


class KubeCluster:
    """`api_client` is what the launcher gets; the rest plays the cluster's part. `server` is kmock's."""

    def __init__(self, server: Any, loop: asyncio.AbstractEventLoop, address: str) -> None:  # noqa: ANN401
        self.server = server
        self._loop = loop
        settings = client.Configuration()
        settings.host = address
        self.api_client = client.ApiClient(settings)
        self._objects: Any = client.CustomObjectsApi(self.api_client)
        self._core: Any = client.CoreV1Api(self.api_client)

    def trainjobs(self) -> list[dict[str, Any]]:
        answer = self._objects.list_namespaced_custom_object(GROUP, VERSION, NAMESPACE, PLURAL)
        items: list[dict[str, Any]] = answer["items"]
        return items

    def set_condition(self, name: str, kind: str, reason: str = "", message: str = "") -> None:
        """As the controller of TrainJobs does at the end of a job."""
        condition = {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": "2026-11-16T08:00:10Z",
        }
        body = {"status": {"conditions": [condition]}}
        self._objects.patch_namespaced_custom_object(GROUP, VERSION, NAMESPACE, PLURAL, name, body)

    def add_pod(self, name: str, status: dict[str, Any], log: object = None) -> None:
        """As JobSet and a kubelet do; the log is what kmock takes for a payload."""
        if log is not None:
            self._run(self._serve_log(name, log))
        spec = {"nodeName": "worker-1", "containers": [{"name": "node", "image": "trainer:1"}]}
        body = {"metadata": {"name": name}, "spec": spec, "status": status}
        self._core.create_namespaced_pod(NAMESPACE, body, _preload_content=False)

    def delete(self, name: str) -> None:
        self._objects.delete_namespaced_custom_object(GROUP, VERSION, NAMESPACE, PLURAL, name)

    async def _serve_log(self, name: str, log: object) -> None:
        self.server[f"get /api/v1/namespaces/{NAMESPACE}/pods/{name}/log"] << log

    def _run(self, work: Any) -> None:  # noqa: ANN401 - any coroutine
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)


@contextmanager
def running_api_server() -> Iterator[KubeCluster]:
    """In a thread of its own, since the launcher's client waits for its answers."""
    ready, stop = threading.Event(), asyncio.Event()
    found: dict[str, Any] = {}

    async def serve() -> None:
        async with KubernetesEmulator() as emulator, Server(emulator) as server:
            emulator.resources[f"{GROUP}/{VERSION}/{PLURAL}"] = ResourceInfo(namespaced=True, kind="TrainJob")
            emulator.resources["v1/pods"] = ResourceInfo(namespaced=True, kind="Pod")
            found.update(emulator=emulator, loop=asyncio.get_running_loop(), url=str(server.url))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(30)
        cluster = KubeCluster(found["emulator"], found["loop"], found["url"].rstrip("/"))
        yield cluster
        cluster.api_client.rest_client.pool_manager.clear()
    finally:
        found["loop"].call_soon_threadsafe(stop.set)
        thread.join(30)
