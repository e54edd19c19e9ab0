"""Capture: profile a few steps of a training loop, one trace and one summary a rank.

    from tools.profile import capture

    with capture("traces") as profiler:
        for batch in loader:
            train(batch)
            profiler.step()

Needs torch in the user's environment. What the traces say is the business of `tools.trace`.
"""

from tools.profile.capture import Capture, CaptureSchedule, capture

__all__ = ["Capture", "CaptureSchedule", "capture"]
