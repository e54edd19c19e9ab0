"""The report as a message of incoming webhooks: Slack's shape, which Mattermost, Rocket.Chat and others take.

Slack's marks are escaped by its own rule (&, < and >); no name of a workload can mention anybody.
"""

import json
from collections.abc import Mapping
from typing import Any

from service.nightly.report import words
from service.report.text import plain, sentence

Data = Mapping[str, Any]
MOST_STORIES = 20
"""A message has at most 50 blocks."""
MOST_CHARACTERS = 2900
"""Of a block: 3,000."""


def chat_message(report: Data, link: str | None = None) -> bytes:
    title = f"{report['title']}, {words.day(report['at'])}"
    lines = [f"*{escape(title)}*", escape(sentence(report["summary"]))]
    if report["lost_device_hours_per_day"] >= 1:
        lines.append(f"{words.hours(report['lost_device_hours_per_day'])} device-hours a day are lost")
    blocks = [_block("\n".join(lines))]
    told = [one for one in report["workloads"] if one["status"] in STORIES]
    blocks += [_block(_story(one)) for one in told[:MOST_STORIES]]
    if len(told) > MOST_STORIES:
        blocks.append(_block(f"and {len(told) - MOST_STORIES} more"))
    if link:
        blocks.append(_block(f"<{link}|The whole report>"))
    return json.dumps({"text": escape(f"{title}: {report['summary']}"), "blocks": blocks}).encode()


STORIES = ("regressed", "broken", "slower", "suspected", "notice", "recovered")


def _story(said: Data) -> str:
    lines = [f"*{escape(said['name'])}*: {words.STATUS[said['status']]}"]
    if said["reason"]:
        lines.append(escape(sentence(said["reason"])))
    if said["status"] != "broken":
        lines += [f"• {escape(words.sentence(one))}" for one in said["findings"][:3]]
        lines += [f"• {escape(one)}" for one in words.causes(said)[:2]] if said["findings"] else []
        lines += [f"→ {escape(one)}" for one in said["advice"][:1]]
    return "\n".join(lines)


def _block(text: str) -> dict[str, Any]:
    shown = text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"
    return {"type": "section", "text": {"type": "mrkdwn", "text": shown}}


def escape(value: object) -> str:
    """As Slack asks for it; stars and the like only change how a text looks."""
    return plain(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
