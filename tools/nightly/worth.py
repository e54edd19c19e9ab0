"""What a change is worth, in device-hours a day: time in which devices train nothing that they could."""

HOURS_PER_DAY = 24.0


def lost_device_hours(
    num_devices: int, fast_s: float, slow_s: float, hours_per_day: float = HOURS_PER_DAY
) -> float:
    """Of the hours a day in which the job runs, the share that steps of `fast_s` would not need."""
    if slow_s <= 0 or fast_s >= slow_s:
        return 0.0
    return num_devices * hours_per_day * (1.0 - max(fast_s, 0.0) / slow_s)


def gained_device_hours(num_devices: int, speedup: float, hours_per_day: float = HOURS_PER_DAY) -> float:
    """What a plan that is so much faster would free."""
    return lost_device_hours(num_devices, 1.0, speedup, hours_per_day)
