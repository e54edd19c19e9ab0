"""The fleet and its schedules, with numbers in words."""

from dataclasses import dataclass

from service.api.schemas.schedules import SchedulePublic
from service.nightly.fleet import Fleet, FleetWorkload
from service.nightly.report.words import STATUS, hours
from service.report.text import seconds, seconds_span

ALARMING = ("regressed", "slower", "broken", "stale")


@dataclass(frozen=True)
class WorkloadView:
    workload: FleetWorkload

    @property
    def where(self) -> str:
        one = self.workload
        return f"{one.num_devices:,} × {one.device}" if one.num_devices and one.device else ""

    @property
    def status(self) -> str:
        return STATUS[self.workload.status]

    @property
    def step_time(self) -> str:
        return seconds(self.workload.step_time_s) if self.workload.step_time_s else ""

    @property
    def change(self) -> str:
        ratio = self.workload.change_ratio
        return "" if ratio is None else f"{ratio:+.1%}"

    @property
    def wasted(self) -> str:
        return hours(self.workload.wasted_device_hours_per_day)

    @property
    def is_alarming(self) -> bool:
        return self.workload.status in ALARMING

    @property
    def trend(self) -> str:
        """The sparkline in words."""
        values = self.workload.spark_values
        if not values:
            return "no nights yet"
        return f"step time over {len(values)} nights, from {seconds_span(values[0], values[-1])}"


@dataclass(frozen=True)
class FleetView:
    fleet: Fleet

    @property
    def workloads(self) -> list[WorkloadView]:
        return [WorkloadView(one) for one in self.fleet.workloads]

    @property
    def wasted(self) -> str:
        return hours(self.fleet.wasted_device_hours_per_day)


@dataclass(frozen=True)
class ScheduleView:
    public: SchedulePublic

    @property
    def workloads(self) -> list[str]:
        return [str(one.get("name", "")) for one in self.public.definition.get("workloads", [])]

    @property
    def is_active(self) -> bool:
        return self.public.state == "active"
