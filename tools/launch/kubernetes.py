"""Jobs on Kubernetes as TrainJobs: the API calls, pod logs by byte offset, and the launcher.

The object's name is derived from the key, so the API server refuses a second one. Imports the Kubernetes
client: load it lazily.
"""

import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import urllib3
from kubernetes import client, config, watch

from tools.errors import InputError
from tools.launch.files import LogChunk, copy_results, whole_lines
from tools.launch.folder import JobFolder, Place, Prepared, prepare
from tools.launch.launcher import Job
from tools.launch.status import Cause, Handle, JobStatus, LaunchError, State, has_ended, wait_for_end
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

P = ParamSpec("P")
T = TypeVar("T")
NAME = "kubernetes"
_RECORD = "trainjob.json"
_WATCH_S = 60.0
_TIMEOUT_S = (10.0, 60.0)
_NOT_FOUND, _CONFLICT, _BAD_REQUEST = 404, 409, 400
_CHUNK_BYTES = 65_536


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


def _with_launch_errors(function: Callable[P, T]) -> Callable[P, T]:
    @wraps(function)
    def call(*words: P.args, **options: P.kwargs) -> T:
        try:
            return function(*words, **options)
        except client.ApiException as error:
            raise LaunchError(
                f"Kubernetes answers {error.status} {error.reason}: {_message(error)}"
            ) from None
        except urllib3.exceptions.HTTPError as error:
            raise LaunchError(f"Kubernetes cannot be reached: {error}") from None

    return call


class KubernetesApi:
    """TrainJobs and pods of one namespace at a time, as plain objects."""

    def __init__(self, api_client: client.ApiClient) -> None:
        # The client's types are those of whole answers; raw and streamed ones have none.
        self._objects: Any = client.CustomObjectsApi(api_client)
        self._core: Any = client.CoreV1Api(api_client)

    @_with_launch_errors
    def create(self, namespace: str, manifest: Object) -> Object | None:
        """None if an object of this name exists already."""
        try:
            created: Object = self._objects.create_namespaced_custom_object(
                GROUP,
                VERSION,
                namespace,
                PLURAL,
                manifest,
                field_validation="Strict",
                field_manager="asap",
                _request_timeout=_TIMEOUT_S,
            )
        except client.ApiException as error:
            if error.status == _CONFLICT:
                return None
            raise
        return created

    @_with_launch_errors
    def find(self, namespace: str, name: str) -> Object | None:
        try:
            trainjob: Object = self._objects.get_namespaced_custom_object(
                GROUP, VERSION, namespace, PLURAL, name, _request_timeout=_TIMEOUT_S
            )
        except client.ApiException as error:
            if error.status == _NOT_FOUND:
                return None
            raise
        return trainjob

    @_with_launch_errors
    def delete(self, namespace: str, name: str) -> None:
        """In the foreground: the object is there until its pods are gone."""
        try:
            self._objects.delete_namespaced_custom_object(
                GROUP,
                VERSION,
                namespace,
                PLURAL,
                name,
                propagation_policy="Foreground",
                _request_timeout=_TIMEOUT_S,
            )
        except client.ApiException as error:
            if error.status != _NOT_FOUND:
                raise

    @_with_launch_errors
    def pods(self, namespace: str, name: str) -> list[Object]:
        """Pods of the trainer only; a runtime may have other replicated jobs, for data and model."""
        selector = f"jobset.sigs.k8s.io/jobset-name={name},jobset.sigs.k8s.io/replicatedjob-name={NODE}"
        answer = self._core.list_namespaced_pod(
            namespace, label_selector=selector, _preload_content=False, _request_timeout=_TIMEOUT_S
        )
        items: list[Object] = json.loads(answer.data)["items"]
        return items

    def watch(self, namespace: str, name: str, timeout_s: float) -> Generator[None, None, None]:
        """Yields whenever the TrainJob changes, until the time is over or the server ends the stream."""
        stream: Any = cast("Any", watch.Watch)()
        try:
            for _ in stream.stream(
                self._objects.list_namespaced_custom_object,
                GROUP,
                VERSION,
                namespace,
                PLURAL,
                field_selector=f"metadata.name={name}",
                timeout_seconds=max(1, int(timeout_s)),
                _request_timeout=(_TIMEOUT_S[0], max(0.1, timeout_s)),
            ):
                yield
        except (client.ApiException, urllib3.exceptions.HTTPError):
            return  # the caller polls the status next, where a real fault raises
        finally:
            stream.stop()

    def log(self, namespace: str, pod: str, *, follow: bool) -> Iterator[bytes]:
        """From the beginning, because the API counts no bytes; nothing if the container has not started."""
        try:
            answer = self._core.read_namespaced_pod_log(
                pod,
                namespace,
                container=NODE,
                follow=follow,
                _preload_content=False,
                # A job that runs may be silent for as long as it likes.
                _request_timeout=None if follow else _TIMEOUT_S,
            )
            yield from answer.stream(_CHUNK_BYTES, decode_content=False)
        except client.ApiException as error:
            if error.status not in (_NOT_FOUND, _BAD_REQUEST):
                raise LaunchError(f"Kubernetes answers {error.status} {error.reason}") from None
        except urllib3.exceptions.HTTPError:
            return


def _message(error: client.ApiException) -> str:
    try:
        text = str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        text = str(error.body or "")
    return " ".join(text.split())[:500]


def chunks_from(content: Iterable[bytes], offset: int) -> Iterator[LogChunk]:
    """Whole lines after the first `offset` bytes; the rest of a line that the stream ends in comes last."""
    position, waiting = 0, b""
    for piece in content:
        fresh = piece[max(0, offset - position) :]
        position += len(piece)
        waiting += fresh
        lines = whole_lines(waiting, is_last=False)
        if lines:
            waiting = waiting[len(lines) :]
            yield _chunk(lines, position - len(waiting))
    if waiting:
        yield _chunk(waiting, position)


def _chunk(content: bytes, next_offset: int) -> LogChunk:
    return LogChunk(content.decode("utf-8", "replace"), next_offset)


class KubernetesLauncher:
    """`root` is the claim's mount in the service."""

    name = NAME

    def __init__(
        self, root: Path, templates: Mapping[str, Template], api_client: client.ApiClient, poll_s: float = 5.0
    ) -> None:
        self._place = Place(NAME, root, for_others=True)
        self._templates = templates
        self._api = KubernetesApi(api_client)
        self._poll_s = poll_s

    def submit(self, key: str, job: Job) -> Handle:
        prepared = prepare(self._place, self._templates, key, job)
        namespace = _namespace(prepared.template)
        with prepared.folder.submission():
            recorded = prepared.folder.read(_RECORD)
            if recorded is None and not prepared.folder.is_cancelled:
                created = self._create(prepared, namespace)
                prepared.folder.write(
                    _RECORD, {"namespace": namespace, "uid": created["metadata"].get("uid")}
                )
        return Handle(NAME, key, f"{namespace}/{object_name(key)}")

    def find(self, key: str) -> Handle | None:
        folder = JobFolder.of(self._place.root, key)
        intent = folder.find_intent()
        if intent is None or intent.template not in self._templates:
            return None
        namespace = _namespace(self._templates[intent.template])
        if folder.read(_RECORD) or self._api.find(namespace, object_name(key)):
            return Handle(NAME, key, f"{namespace}/{object_name(key)}")
        return None

    def status(self, handle: Handle) -> JobStatus:
        folder = self._folder(handle)
        final = folder.find_final()
        if final:
            return final
        namespace, name = _names(handle)
        trainjob = self._api.find(namespace, name)
        if trainjob is None:
            return folder.keep_final(_gone(folder))
        status = read_trainjob(trainjob, self._api.pods(namespace, name))
        return folder.keep_final(status)

    def wait(self, handle: Handle, timeout_s: float) -> JobStatus:
        """Wakes at every change of the TrainJob, and polls too: pods change without it."""

        def watch(left_s: float) -> None:
            self._watch_for_end(handle, min(left_s, _WATCH_S))
            time.sleep(min(self._poll_s, left_s))

        return wait_for_end(lambda: self.status(handle), watch, timeout_s)

    def _watch_for_end(self, handle: Handle, timeout_s: float) -> None:
        """Returns early if the stream of changes ends."""
        with closing(self._api.watch(*_names(handle), timeout_s=timeout_s)) as changes:
            for _ in changes:
                if has_ended(lambda: self.status(handle)):
                    return

    def logs(self, handle: Handle, offset: int = 0, *, follow: bool = True) -> Iterator[LogChunk]:
        """Log of the first node's pod."""
        while True:
            is_last = not follow or has_ended(lambda: self.status(handle))
            pod = self._find_first_pod(handle)
            if pod:
                content = self._api.log(_names(handle)[0], pod, follow=not is_last)
                for chunk in chunks_from(content, offset):
                    yield chunk
                    offset = chunk.next_offset
            if is_last:
                return
            time.sleep(self._poll_s)

    def artefacts(self, handle: Handle, to: Path) -> list[Path]:
        return copy_results(self._folder(handle).out, to)

    def cancel(self, handle: Handle, timeout_s: float = 60.0) -> JobStatus:
        folder = self._folder(handle)
        status = self.status(handle)
        if status.has_ended:
            return status
        with folder.submission():
            folder.mark_cancelled()
        self._api.delete(*_names(handle))
        return self.wait(handle, timeout_s)

    def _folder(self, handle: Handle) -> JobFolder:
        return JobFolder.of(self._place.root, handle.key)

    def _create(self, prepared: Prepared, namespace: str) -> Object:
        template, intent = prepared.template, prepared.intent
        assert template.kubernetes is not None
        assert template.image is not None
        created = self._api.create(namespace, make_trainjob(intent, template.kubernetes, template.image))
        trainjob = created or self._api.find(namespace, object_name(intent.key))
        if trainjob is None:
            raise LaunchError(f"TrainJob {object_name(intent.key)} was deleted while it was submitted")
        if trainjob["metadata"].get("annotations", {}).get(DIGEST) != intent.digest:
            raise InputError(
                "key", intent.key, f"is the name of another TrainJob in {namespace}; choose another"
            )
        return trainjob

    def _find_first_pod(self, handle: Handle) -> str | None:
        names = sorted(pod["metadata"]["name"] for pod in self._api.pods(*_names(handle)))
        return names[0] if names else None


def _namespace(template: Template) -> str:
    assert template.kubernetes is not None
    return template.kubernetes.namespace


def _names(handle: Handle) -> tuple[str, str]:
    namespace, _, name = handle.reference.partition("/")
    return namespace, name


def _gone(folder: JobFolder) -> JobStatus:
    if folder.is_cancelled:
        return JobStatus(State.CANCELLED, Cause.CANCELLED, detail="deleted", source="TrainJob")
    detail = "the TrainJob is gone; ASAP did not delete it"
    return JobStatus(State.LOST, Cause.LOST, detail=detail, source="TrainJob")
