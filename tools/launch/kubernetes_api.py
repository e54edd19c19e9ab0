"""The few calls to a Kubernetes cluster that the launcher makes, with its errors told as LaunchError."""

import json
from collections.abc import Callable, Generator, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import urllib3
from kubernetes import client, config, watch

from tools.launch.errors import LaunchError
from tools.launch.trainjob import GROUP, NODE, PLURAL, VERSION

Object = dict[str, Any]
P = ParamSpec("P")
T = TypeVar("T")
_TIMEOUT_S = (10.0, 60.0)
_NOT_FOUND, _CONFLICT, _BAD_REQUEST = 404, 409, 400
_CHUNK_BYTES = 65_536


def open_cluster(kubeconfig: Path | None, context: str | None = None) -> client.ApiClient:
    """Of a kubeconfig, or of the cluster that the service itself runs in."""
    settings, load = client.Configuration(), cast("Any", config)
    try:
        if kubeconfig is None:
            load.load_incluster_config(client_configuration=settings)
        else:
            load.load_kube_config(str(kubeconfig), context=context, client_configuration=settings)
    except (config.ConfigException, OSError) as error:
        raise LaunchError(f"no Kubernetes cluster: {error}") from None
    return client.ApiClient(settings)


def _told(function: Callable[P, T]) -> Callable[P, T]:
    @wraps(function)
    def call(*words: P.args, **options: P.kwargs) -> T:
        try:
            return function(*words, **options)
        except client.ApiException as error:
            raise LaunchError(f"Kubernetes answers {error.status} {error.reason}: {_said(error)}") from None
        except urllib3.exceptions.HTTPError as error:
            raise LaunchError(f"Kubernetes cannot be reached: {error}") from None

    return call


class KubernetesApi:
    """TrainJobs and pods of one namespace at a time, as plain objects."""

    def __init__(self, api_client: client.ApiClient) -> None:
        # The client's types are those of whole answers; raw and streamed ones have none.
        self._objects: Any = client.CustomObjectsApi(api_client)
        self._core: Any = client.CoreV1Api(api_client)

    @_told
    def create(self, namespace: str, manifest: Object) -> Object | None:
        """None where an object of this name is there already."""
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

    @_told
    def find(self, namespace: str, name: str) -> Object | None:
        try:
            found: Object = self._objects.get_namespaced_custom_object(
                GROUP, VERSION, namespace, PLURAL, name, _request_timeout=_TIMEOUT_S
            )
        except client.ApiException as error:
            if error.status == _NOT_FOUND:
                return None
            raise
        return found

    @_told
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

    @_told
    def pods(self, namespace: str, name: str) -> list[Object]:
        """Of the trainer only; a runtime may have other replicated jobs, for data and model."""
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
            return  # whoever waits asks for the status next, and hears of a real fault there
        finally:
            stream.stop()

    def log(self, namespace: str, pod: str, *, follow: bool) -> Iterator[bytes]:
        """From the beginning, because the API counts no bytes; nothing where the container has not begun."""
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


def _said(error: client.ApiException) -> str:
    try:
        text = str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        text = str(error.body or "")
    return " ".join(text.split())[:500]
