"""Jobs on Kubernetes as TrainJobs: the API calls and the launcher.

The object's name is derived from the key, so the API server refuses a second one. Imports the Kubernetes
client: load it lazily.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import urllib3
from kubernetes import client, config

from tools.errors import InputError
from tools.launch.folder import JobFolder
from tools.launch.launcher import Job, Launcher, Prepared
from tools.launch.status import Handle, JobStatus, LaunchError
from tools.launch.template import Template
from tools.launch.trainjob import (
    DIGEST,
    GROUP,
    NODE,
    PLURAL,
    VERSION,
    Object,
    make_trainjob,
    object_name,
    read_trainjob,
)

_RECORD = "trainjob.json"
_TIMEOUT_S = (10.0, 60.0)
_NOT_FOUND, _CONFLICT, _BAD_REQUEST = 404, 409, 400


def open_cluster(kubeconfig: Path | None, context: str | None = None) -> client.ApiClient:
    """The cluster of a kubeconfig, or the one that the service itself runs in."""
    settings, load = client.Configuration(), cast("Any", config)
    try:
        if kubeconfig is None:
            load.load_incluster_config(client_configuration=settings)
        else:
            load.load_kube_config(str(kubeconfig), context=context, client_configuration=settings)
    except (config.ConfigException, OSError) as error:
        raise LaunchError(f"no Kubernetes cluster: {error}") from None
    return client.ApiClient(settings)


@contextmanager
def _launch_errors(*tolerated: int) -> Iterator[None]:
    """The server's refusals as LaunchError; an answer with a tolerated status ends the block quietly."""
    try:
        yield
    except client.ApiException as error:
        if error.status in tolerated:
            return
        try:
            message = str(json.loads(error.body or "")["message"])
        except (ValueError, KeyError, TypeError):
            message = str(error.body or "")
        shown = " ".join(message.split())[:500]
        raise LaunchError(f"Kubernetes answers {error.status} {error.reason}: {shown}") from None
    except urllib3.exceptions.HTTPError as error:
        raise LaunchError(f"Kubernetes cannot be reached: {error}") from None


class KubernetesApi:
    """TrainJobs and pods of one namespace at a time, as plain objects."""

    def __init__(self, api_client: client.ApiClient) -> None:
        # The client's types are those of whole answers; raw and streamed ones have none.
        self._objects: Any = client.CustomObjectsApi(api_client)
        self._core: Any = client.CoreV1Api(api_client)

    def create(self, namespace: str, manifest: Object) -> Object | None:
        """None if an object of this name exists already."""
        with _launch_errors(_CONFLICT):
            created: Object = self._objects.create_namespaced_custom_object(
                *(GROUP, VERSION, namespace, PLURAL, manifest),
                field_validation="Strict",
                field_manager="asap",
                _request_timeout=_TIMEOUT_S,
            )
            return created
        return None

    def find(self, namespace: str, name: str) -> Object | None:
        with _launch_errors(_NOT_FOUND):
            trainjob: Object = self._objects.get_namespaced_custom_object(
                GROUP, VERSION, namespace, PLURAL, name, _request_timeout=_TIMEOUT_S
            )
            return trainjob
        return None

    def delete(self, namespace: str, name: str) -> None:
        """In the foreground: the object is there until its pods are gone."""
        with _launch_errors(_NOT_FOUND):
            self._objects.delete_namespaced_custom_object(
                *(GROUP, VERSION, namespace, PLURAL, name),
                propagation_policy="Foreground",
                _request_timeout=_TIMEOUT_S,
            )

    def pods(self, namespace: str, name: str) -> list[Object]:
        """Pods of the trainer only; a runtime may have other replicated jobs, for data and model."""
        selector = f"jobset.sigs.k8s.io/jobset-name={name},jobset.sigs.k8s.io/replicatedjob-name={NODE}"
        with _launch_errors():
            answer = self._core.list_namespaced_pod(
                namespace, label_selector=selector, _preload_content=False, _request_timeout=_TIMEOUT_S
            )
            items: list[Object] = json.loads(answer.data)["items"]
        return items

    def log_tail(self, namespace: str, pod: str, lines: int) -> list[str]:
        """Nothing if the container has not started, or if its node is out of reach."""
        with _launch_errors(_NOT_FOUND, _BAD_REQUEST), suppress(urllib3.exceptions.HTTPError):
            answer = self._core.read_namespaced_pod_log(
                *(pod, namespace),
                container=NODE,
                tail_lines=lines,
                _preload_content=False,
                _request_timeout=_TIMEOUT_S,
            )
            text: str = answer.data.decode("utf-8", "replace")
            return text.splitlines()[-lines:]
        return []


class KubernetesLauncher(Launcher):
    """`root` is the claim's mount in the service."""

    name = "kubernetes"
    for_others = True

    def __init__(
        self, root: Path, templates: Mapping[str, Template], api_client: client.ApiClient, poll_s: float = 5.0
    ) -> None:
        super().__init__(root, templates, {}, poll_s)
        self._api = KubernetesApi(api_client)

    def submit(self, key: str, job: Job) -> Handle:
        prepared = self._prepare(key, job)
        folder, handle = prepared.folder, _handle(prepared.template, key)
        with folder.submission():
            if folder.read(_RECORD) is None and not folder.is_cancelled:
                namespace, _ = _names(handle)
                created = self._create(prepared, namespace)
                folder.write(_RECORD, {"namespace": namespace, "uid": created["metadata"].get("uid")})
        return handle

    def _create(self, prepared: Prepared, namespace: str) -> Object:
        template, intent = prepared.template, prepared.intent
        assert template.kubernetes is not None
        assert template.image is not None
        created = self._api.create(namespace, make_trainjob(intent, template.kubernetes, template.image))
        trainjob = created or self._api.find(namespace, object_name(intent.key))
        if trainjob is None:
            raise LaunchError(f"TrainJob {object_name(intent.key)} was deleted while it was submitted")
        if trainjob["metadata"].get("annotations", {}).get(DIGEST) != intent.digest:
            taken = f"is the name of another TrainJob in {namespace}; choose another"
            raise InputError("key", intent.key, taken)
        return trainjob

    def find(self, key: str) -> Handle | None:
        folder = self._folder(key)
        intent = folder.find_intent()
        if intent is None or intent.template not in self.templates:
            return None
        handle = _handle(self.templates[intent.template], key)
        return handle if folder.read(_RECORD) or self._api.find(*_names(handle)) else None

    def _query(self, folder: JobFolder, handle: Handle) -> JobStatus:
        trainjob = self._api.find(*_names(handle))
        if trainjob is not None:
            return read_trainjob(trainjob, self._api.pods(*_names(handle)))
        if folder.is_cancelled:
            return JobStatus.cancelled("deleted", source="TrainJob")
        return JobStatus.lost("the TrainJob is gone; ASAP did not delete it", source="TrainJob")

    def _end(self, handle: Handle) -> None:
        self._api.delete(*_names(handle))

    def log_tail(self, handle: Handle, lines: int) -> list[str]:
        """Those of the first node's pod."""
        names = sorted(pod["metadata"]["name"] for pod in self._api.pods(*_names(handle)))
        return self._api.log_tail(_names(handle)[0], names[0], lines) if names else []


def _handle(template: Template, key: str) -> Handle:
    assert template.kubernetes is not None
    return Handle(KubernetesLauncher.name, key, f"{template.kubernetes.namespace}/{object_name(key)}")


def _names(handle: Handle) -> tuple[str, str]:
    namespace, _, name = handle.reference.partition("/")
    return namespace, name
