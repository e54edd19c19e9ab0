"""The methods of a client, one for every operation of the API.

Written by `make client`: edit scripts/make_client.py.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Literal, TypeVar

from asap_client.core import Body, Call, JsonObject
from asap_client.generated import calls
from asap_client.generated.models import (
    AgainstCreate,
    Answered,
    AuditPage,
    CaseCreate,
    ClusterList,
    ClusterPublic,
    Decision,
    Entry,
    EntryPage,
    ExplainedPlan,
    ExplainedPrediction,
    Export,
    Fork,
    HealthPublic,
    Hits,
    MarkCreate,
    Place,
    Prediction,
    Proposal,
    ReadyPublic,
    Recommendation,
    RefusalPublic,
    Report,
    Run,
    RunComparison,
    RunPage,
    Schedule,
    ScheduleCreate,
    SchedulePage,
    Session,
    SessionCreate,
    SessionPage,
    SessionPatch,
    SessionWithRequest,
    StatedScenario,
    Trace,
    TraceFile,
    TracePage,
    TraceWithFiles,
    WorkloadPublic,
)

T = TypeVar("T")


class AsyncOperations(ABC):
    @abstractmethod
    async def send(self, call: Call[T]) -> T: ...
    async def health(self) -> HealthPublic:
        """Whether the process lives."""
        return await self.send(calls.health())

    async def ready(self) -> ReadyPublic:
        """Whether it can do its work."""
        return await self.send(calls.ready())

    async def metrics(self) -> str:
        """Counts and times for Prometheus."""
        return await self.send(calls.metrics())

    async def submit(self, session: SessionCreate | Body, idempotency_key: str | None = None) -> Session:
        """Submit a session.

        Answers when it is durably enqueued: from then on it survives any restart.
        """
        return await self.send(calls.submit(session, idempotency_key))

    async def sessions(
        self,
        *,
        state: Literal["queued", "running", "waiting_approval", "completed", "failed", "cancelled"]
        | None = None,
        device: str | None = None,
        model: str | None = None,
        label: str | list[str] | None = None,
        text: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> SessionPage:
        """List sessions, newest first.

        Sessions that arrive between two pages shift nothing.
        """
        return await self.send(
            calls.sessions(
                state=state, device=device, model=model, label=label, text=text, cursor=cursor, limit=limit
            )
        )

    async def all_sessions(
        self,
        *,
        state: Literal["queued", "running", "waiting_approval", "completed", "failed", "cancelled"]
        | None = None,
        device: str | None = None,
        model: str | None = None,
        label: str | list[str] | None = None,
        text: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Session]:
        """Follows the cursor through all pages."""
        while True:
            page = await self.sessions(
                state=state, device=device, model=model, label=label, text=text, cursor=cursor, limit=limit
            )
            for item in page.items:
                yield item
            cursor = page.next_cursor
            if cursor is None:
                return

    async def session(self, id: str) -> SessionWithRequest:
        """One session, with its request."""
        return await self.send(calls.session(id))

    async def update(self, id: str, changes: SessionPatch | Body) -> Session:
        """Change a session's name, labels or remark.

        At any time, whatever its state; what is absent stays.
        """
        return await self.send(calls.update(id, changes))

    async def delete(self, id: str) -> None:
        """Delete a session that has ended.

        With its events, decisions and report. One that has not ended must be cancelled first.
        """
        return await self.send(calls.delete(id))

    async def cancel(self, id: str) -> Session:
        """Stop a session.

        At once if no worker runs it, else at its next event. Idempotent.
        """
        return await self.send(calls.cancel(id))

    async def retry(self, id: str) -> Session:
        """Run a failed or cancelled session again.

        From the start, as a new attempt of the same session.
        """
        return await self.send(calls.retry(id))

    async def decide(self, id: str, decision: Decision | Body, idempotency_key: str | None = None) -> Session:
        """Decide on the proposals.

        While the session waits for approval, or after it is completed. A plan that is edited or
        submitted is scored beside the others. The same `id` (or Idempotency-Key) again changes nothing.
        """
        return await self.send(calls.decide(id, decision, idempotency_key))

    async def fork(self, id: str, fork: Fork | Body, idempotency_key: str | None = None) -> Session:
        """Go on from a step of a session with another answer.

        A new session, which repeats nothing before that step; `forked_from` links to the other one, in
        any state. A decision needs the scope approve.
        """
        return await self.send(calls.fork(id, fork, idempotency_key))

    async def ask(self, id: str, question: str) -> Answered:
        """Ask about a completed session.

        Answered by the language model with its tools, or by rules: why not, what if, days, cost, risks.
        """
        return await self.send(calls.ask(id, question))

    async def report(self, id: str) -> Report:
        """The report of a completed session.

        JSON, Markdown, or one HTML page without scripts: as Accept asks.
        """
        return await self.send(calls.report(id))

    async def report_text(self, id: str, form: calls.ReportForm = "text/markdown") -> str:
        """The report of a completed session, as Markdown or one HTML page."""
        return await self.send(calls.report_text(id, form))

    async def proposals(self, id: str) -> list[Proposal]:
        """The proposals, best first.

        Also while the session waits for a decision about them.
        """
        return await self.send(calls.proposals(id))

    async def export(
        self,
        id: str,
        rank: int,
        format: Literal[
            "torchtitan",
            "megatron",
            "nemo",
            "deepspeed",
            "maxtext",
            "accelerate",
            "nanotron",
            "automodel",
            "huggingface",
        ],
    ) -> Export:
        """A proposal as the configuration of a training framework.

        As JSON with notes; as the file alone with Accept: text/plain.
        """
        return await self.send(calls.export(id, rank, format))

    async def create_trace(self, name: str = "") -> Trace:
        """Begin an upload.

        Then PUT each file, and POST complete.
        """
        return await self.send(calls.create_trace(name))

    async def traces(self, *, cursor: str | None = None, limit: int | None = None) -> TracePage:
        """List uploads, newest first."""
        return await self.send(calls.traces(cursor=cursor, limit=limit))

    async def all_traces(
        self, *, cursor: str | None = None, limit: int | None = None
    ) -> AsyncIterator[Trace]:
        """Follows the cursor through all pages."""
        while True:
            page = await self.traces(cursor=cursor, limit=limit)
            for item in page.items:
                yield item
            cursor = page.next_cursor
            if cursor is None:
                return

    async def trace(self, id: str) -> TraceWithFiles:
        """One upload, with its files and analysis.

        The analysis is made in the background; ask again while both it and `error` are null.
        """
        return await self.send(calls.trace(id))

    async def delete_trace(self, id: str) -> None:
        """Delete an upload."""
        return await self.send(calls.delete_trace(id))

    async def complete_trace(self, id: str, files: dict[str, str]) -> TraceWithFiles:
        """Complete an upload.

        Every file's digest is checked. Completing again with the same digests changes nothing.
        """
        return await self.send(calls.complete_trace(id, files))

    async def put_part(self, id: str, name: str, content: bytes, *, offset: int | None = None) -> TraceFile:
        """Upload a file or the next part of it.

        `received_bytes` is where the next part begins; after a break, GET the upload to learn it. The
        same part sent again changes nothing; a part from an earlier offset replaces what follows it.
        """
        return await self.send(calls.put_part(id, name, content, offset=offset))

    async def knowledge_entries(
        self,
        *,
        kind: Literal["playbook", "case"] | None = None,
        status: Literal["confirmed", "hypothesis", "refuted"] | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> EntryPage:
        """List playbooks and cases.

        What comes with ASAP first, then cases by age.
        """
        return await self.send(calls.knowledge_entries(kind=kind, status=status, cursor=cursor, limit=limit))

    async def all_knowledge_entries(
        self,
        *,
        kind: Literal["playbook", "case"] | None = None,
        status: Literal["confirmed", "hypothesis", "refuted"] | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Entry]:
        """Follows the cursor through all pages."""
        while True:
            page = await self.knowledge_entries(kind=kind, status=status, cursor=cursor, limit=limit)
            for item in page.items:
                yield item
            cursor = page.next_cursor
            if cursor is None:
                return

    async def add_case(self, case: CaseCreate | Body) -> Entry:
        """Store a case.

        Idempotent; another case under the same id is refused.
        """
        return await self.send(calls.add_case(case))

    async def search_knowledge(
        self,
        query: str,
        *,
        limit: int | None = None,
        device: str | None = None,
        architecture: str | None = None,
        bottleneck: str | None = None,
        topic: str | None = None,
        framework: str | None = None,
        vendor: str | None = None,
        num_devices: int | None = None,
    ) -> Hits:
        """Find what answers a situation.

        By words, by meaning if there is an embedder, and by facets; refuted entries are warnings.
        """
        return await self.send(
            calls.search_knowledge(
                query,
                limit=limit,
                device=device,
                architecture=architecture,
                bottleneck=bottleneck,
                topic=topic,
                framework=framework,
                vendor=vendor,
                num_devices=num_devices,
            )
        )

    async def knowledge(self, id: str) -> Entry:
        """One playbook or case."""
        return await self.send(calls.knowledge(id))

    async def mark_case(self, id: str, mark: MarkCreate | Body) -> Entry:
        """Confirm or refute a case.

        Nothing is deleted: the mark is added to the case's history, for this tenant only.
        """
        return await self.send(calls.mark_case(id, mark))

    async def report_runs(self, rows: Sequence[Body] | Body) -> ClusterList:
        """Report runs of a cluster.

        Sessions of the cluster are predicted with them from now on. Implausible runs are kept and
        named, but not learned from; a run that is known already is not stored twice.
        """
        return await self.send(calls.report_runs(rows))

    async def clusters(self, *, cursor: str | None = None, limit: int | None = None) -> ClusterList:
        """List the clusters that runs were reported for."""
        return await self.send(calls.clusters(cursor=cursor, limit=limit))

    async def cluster(self, name: str) -> ClusterPublic:
        """What the runs of a cluster say."""
        return await self.send(calls.cluster(name))

    async def undo_runs(self, name: str) -> ClusterPublic:
        """Take back the newest runs of a cluster.

        Those that were reported together; a second call takes back the ones before.
        """
        return await self.send(calls.undo_runs(name))

    async def hardware(self) -> list[JsonObject]:
        """Every device that ASAP knows."""
        return await self.send(calls.hardware())

    async def device(self, name: str) -> JsonObject:
        """One device, with the source of every figure."""
        return await self.send(calls.device(name))

    async def predict(self, statedscenario: StatedScenario | Body) -> ExplainedPrediction:
        """Predict a scenario with a plan.

        With the runs that were reported of the cluster that it names, and what the prediction stands
        on.
        """
        return await self.send(calls.predict(statedscenario))

    async def predict_batch(self, scenarios: Sequence[Body]) -> list[Prediction | RefusalPublic]:
        """Predict up to 1,000 scenarios.

        In order; a scenario that is wrong gets its error in its place, and the others are predicted.
        """
        return await self.send(calls.predict_batch(scenarios))

    async def search_plans(self, statedscenario: StatedScenario | Body) -> Recommendation:
        """Search every legal plan now.

        What `asap optimize` gives, by search and rules alone, with the runs reported of the named
        cluster.
        """
        return await self.send(calls.search_plans(statedscenario))

    async def explain_plan(self, scenario: StatedScenario | Body, plan: Body) -> ExplainedPlan:
        """Say what speaks against a plan.

        The rule it breaks, the memory it lacks, or the term that makes it slower.
        """
        return await self.send(calls.explain_plan(scenario, plan))

    async def create_against(self, against: AgainstCreate | Body) -> RunComparison:
        """Say why a job is slower than a published run.

        Every setting that differs, each with its predicted price, and what no setting explains.
        """
        return await self.send(calls.create_against(against))

    async def compare_clusters(
        self, scenario: StatedScenario | Body, clusters: Sequence[Body]
    ) -> list[Place]:
        """The same training on other clusters: time against cost.

        The best plan of each cluster, the fastest first; the scenario's own cluster and plan do not
        count.
        """
        return await self.send(calls.compare_clusters(scenario, clusters))

    async def add_schedule(self, schedule: ScheduleCreate | Body) -> Schedule:
        """Register workloads to be looked at by the clock.

        `traces` and `metrics` are paths of the server and need the scope operator; `uploads` need none.
        """
        return await self.send(calls.add_schedule(schedule))

    async def schedules(self, *, cursor: str | None = None, limit: int | None = None) -> SchedulePage:
        """List schedules, newest first."""
        return await self.send(calls.schedules(cursor=cursor, limit=limit))

    async def all_schedules(
        self, *, cursor: str | None = None, limit: int | None = None
    ) -> AsyncIterator[Schedule]:
        """Follows the cursor through all pages."""
        while True:
            page = await self.schedules(cursor=cursor, limit=limit)
            for item in page.items:
                yield item
            cursor = page.next_cursor
            if cursor is None:
                return

    async def schedule(self, id: str) -> Schedule:
        """One schedule, by id or name."""
        return await self.send(calls.schedule(id))

    async def remove_schedule(self, id: str) -> None:
        """Remove a schedule and its runs.

        The history of its workloads stays.
        """
        return await self.send(calls.remove_schedule(id))

    async def pause_schedule(self, id: str) -> Schedule:
        """Run no more nights."""
        return await self.send(calls.pause_schedule(id))

    async def resume_schedule(self, id: str) -> Schedule:
        """Run nights again, from now on."""
        return await self.send(calls.resume_schedule(id))

    async def run_schedule(self, id: str) -> Run:
        """Run it now, whatever the clock says."""
        return await self.send(calls.run_schedule(id))

    async def runs(self, id: str, *, cursor: str | None = None, limit: int | None = None) -> RunPage:
        """The runs of a schedule, newest first.

        Those that were skipped too, with the reason.
        """
        return await self.send(calls.runs(id, cursor=cursor, limit=limit))

    async def all_runs(
        self, id: str, *, cursor: str | None = None, limit: int | None = None
    ) -> AsyncIterator[Run]:
        """Follows the cursor through all pages."""
        while True:
            page = await self.runs(id, cursor=cursor, limit=limit)
            for item in page.items:
                yield item
            cursor = page.next_cursor
            if cursor is None:
                return

    async def run(self, id: str, run_id: str) -> Run:
        """One run."""
        return await self.send(calls.run(id, run_id))

    async def run_report(self, id: str, run_id: str) -> JsonObject:
        """The report of a run.

        JSON, Markdown, or one HTML page without scripts: as Accept asks.
        """
        return await self.send(calls.run_report(id, run_id))

    async def run_report_text(self, id: str, run_id: str, form: calls.ReportForm = "text/markdown") -> str:
        """The report of a run, as Markdown or one HTML page."""
        return await self.send(calls.run_report_text(id, run_id, form))

    async def workload_report(self, id: str, run_id: str, name: str) -> JsonObject:
        """What a run says of one workload.

        With trend plots, as HTML.
        """
        return await self.send(calls.workload_report(id, run_id, name))

    async def workload_report_text(
        self, id: str, run_id: str, name: str, form: calls.ReportForm = "text/markdown"
    ) -> str:
        """What a run says of one workload, as Markdown or one HTML page."""
        return await self.send(calls.workload_report_text(id, run_id, name, form))

    async def workloads(self) -> list[WorkloadPublic]:
        """Every workload, the most wasteful first."""
        return await self.send(calls.workloads())

    async def workload(self, name: str) -> WorkloadPublic:
        """One workload as the last run left it."""
        return await self.send(calls.workload(name))

    async def forget_workload(self, name: str) -> None:
        """Forget a workload with its nights.

        A schedule that still has it begins its history anew.
        """
        return await self.send(calls.forget_workload(name))

    async def audit(
        self, *, target: str | None = None, cursor: str | None = None, limit: int | None = None
    ) -> AuditPage:
        """The audit log, newest first."""
        return await self.send(calls.audit(target=target, cursor=cursor, limit=limit))
