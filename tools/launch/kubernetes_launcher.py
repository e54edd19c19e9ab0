"""Jobs on Kubernetes, as TrainJobs of Kubeflow Trainer v2.

The object's name is made of the key, so the API server itself refuses a second one. An object that was once
recorded here is never created again, even when somebody has deleted it. Inputs and results pass through a
volume claim that the service mounts at its folder for jobs.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

from kubernetes import client

from tools.errors import InputError
from tools.launch.artefacts import copy_results
from tools.launch.errors import LaunchError
from tools.launch.folder import JobFolder
from tools.launch.job import Job
from tools.launch.kubernetes_api import KubernetesApi, Object
from tools.launch.log import LogChunk
from tools.launch.pod_log import chunks_from
from tools.launch.preparing import Place, Prepared, prepare
from tools.launch.status import Cause, Handle, JobStatus, State
from tools.launch.template import Template
from tools.launch.trainjob import DIGEST, make_trainjob, object_name
from tools.launch.trainjob_status import read_trainjob
from tools.launch.waiting import has_ended, wait_for_end

NAME = "kubernetes"
_RECORD = "trainjob.json"
_WATCH_S = 60.0


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
        found = self._api.find(namespace, name)
        if found is None:
            return folder.keep_final(_gone(folder))
        status = read_trainjob(found, self._api.pods(namespace, name))
        return folder.keep_final(status)

    def wait(self, handle: Handle, timeout_s: float) -> JobStatus:
        """Wakes at every change of the TrainJob; pods change without it, so it looks now and then as well."""

        def watch(left_s: float) -> None:
            self._watch_for_end(handle, min(left_s, _WATCH_S))
            time.sleep(min(self._poll_s, left_s))

        return wait_for_end(lambda: self.status(handle), watch, timeout_s)

    def _watch_for_end(self, handle: Handle, timeout_s: float) -> None:
        """Or for anything else that ends the stream of changes."""
        with closing(self._api.watch(*_names(handle), timeout_s=timeout_s)) as changes:
            for _ in changes:
                if has_ended(lambda: self.status(handle)):
                    return

    def logs(self, handle: Handle, offset: int = 0, *, follow: bool = True) -> Iterator[LogChunk]:
        """Of the first node's pod."""
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
        found = created or self._api.find(namespace, object_name(intent.key))
        if found is None:
            raise LaunchError(f"TrainJob {object_name(intent.key)} was deleted while it was submitted")
        if found["metadata"].get("annotations", {}).get(DIGEST) != intent.digest:
            raise InputError(
                "key", intent.key, f"is the name of another TrainJob in {namespace}; choose another"
            )
        return found

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
    detail = "the TrainJob is gone, and not by ASAP's hand"
    return JobStatus(State.LOST, Cause.LOST, detail=detail, source="TrainJob")
