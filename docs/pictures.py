"""The pictures of the docs. Those of states are made from the table of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from botpool.states import BOT_ENDED, BOT_STEPS, SLOT_STEPS, BotStatus, SlotStatus
from docs.drawing import Drawing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Status = TypeVar("Status", bound=str)

_SLOT_LOOKS = {
    SlotStatus.IDLE: "good",
    SlotStatus.DEPLOYING: "warn",
    SlotStatus.BUSY: "busy",
    SlotStatus.RELEASING: "soft",
    SlotStatus.ERROR: "bad",
}
_BOT_LOOKS = {
    BotStatus.IN_CALL: "busy",
    BotStatus.DONE: "good",
    BotStatus.FATAL: "bad",
    BotStatus.CANCELLED: "soft",
}


def _arcs(
    drawing: Drawing,
    steps: Mapping[Status | None, frozenset[Status | None]],
    order: Sequence[Status],
    looks: Mapping[Status, str],
    line: float,
) -> None:
    """The statuses in a row: steps forward as arcs above it, steps back as arcs below."""
    wide, gap, left = 122, 22, 92
    places = {status: left + number * (wide + gap) for number, status in enumerate(order)}
    middle = {status: x + wide / 2 for status, x in places.items()}
    for source, targets in steps.items():
        for target in order:
            if source is None or target not in targets:
                continue
            start, end = middle[source], middle[target]
            ahead = end > start
            lift = 16 + abs(end - start) * 0.2
            y = line - 17 if ahead else line + 17
            bend = y - lift if ahead else y + lift
            begin, stop = (start + 14, end - 14) if ahead else (start - 14, end + 14)
            near = abs(order.index(target) - order.index(source)) == 1
            kind = ("line" if near else "thin") if ahead else "back"
            drawing.line(
                f"M{begin:g} {y:g}C{begin:g} {bend:g} {stop:g} {bend:g} {stop:g} {y:g}", kind=kind
            )
    for status, x in places.items():
        drawing.box(x, line - 17, wide, 34, kind=looks.get(status, "box"))
        drawing.text(x + wide / 2, line + 4.5, status, kind="code")
    firsts = [status for status in order if status in steps[None]]
    drawing.text(12, line + 4.5, "new", kind="small", anchor="start")
    for number, status in enumerate(firsts):
        drop = line + 17 + 12 * number
        if number == 0 and status == order[0]:
            drawing.line(f"M38 {line:g}H{places[status] - 2:g}")
        else:
            end = middle[status] - 30
            drawing.line(
                f"M38 {line + 3:g}C50 {drop + 60:g} {end:g} {drop + 60:g} {end:g} {line + 17:g}",
                kind="thin",
            )


def slot_states() -> str:
    """Every step of a slot."""
    order = [*SlotStatus]
    drawing = Drawing(804, 260, "Every step of a slot", _told(SLOT_STEPS))
    _arcs(drawing, SLOT_STEPS, order, _SLOT_LOOKS, 105)
    gone = [status for status in order if None in SLOT_STEPS[status]]
    drawing.text(
        402, 246, f"A slot may be deleted from {', '.join(gone)}. Amber: steps back.", kind="small"
    )
    return drawing.svg()


def bot_states() -> str:
    """Every step of a bot."""
    order = [*BotStatus]
    drawing = Drawing(1526, 410, "Every step of a bot", _told(BOT_STEPS))
    _arcs(drawing, BOT_STEPS, order, _BOT_LOOKS, 240)
    ended = ", ".join(status for status in order if status in BOT_ENDED)
    drawing.text(
        763,
        394,
        f"{ended}: ended for good. Amber: launched again, under a new lease.",
        kind="small",
    )
    return drawing.svg()


def _told(steps: Mapping[Status | None, frozenset[Status | None]]) -> str:
    """The steps in words, for those who don't see the drawing."""
    return " ".join(
        f"{source or 'new'} leads to {', '.join(sorted(each or 'deleted' for each in targets))}."
        for source, targets in steps.items()
    )


def whole() -> str:
    """Who calls whom."""
    drawing = Drawing(
        860,
        400,
        "How the parts work together",
        "Callers and browsers ask the API, which writes to PostgreSQL, the only state. Workers"
        " learn from it what is to be done, and start and stop containers on hosts. Each host has"
        " the image, and slots that bots use one after the other. Bots call the API, too: they"
        " claim, send heartbeats and report.",
    )
    drawing.label(24, 40, 170, 62, "Callers", "REST, webhooks, CLI", kind="soft")
    drawing.label(24, 130, 170, 62, "Browsers", "the dashboard, live", kind="soft")
    drawing.label(280, 78, 170, 76, "API", "any number of replicas")
    drawing.label(280, 218, 170, 62, "PostgreSQL", "the only state", kind="busy")
    drawing.label(280, 318, 170, 62, "Workers", "any number of replicas")
    drawing.line("M194 71C235 71 235 100 278 104")
    drawing.line("M194 161C235 161 235 132 278 128")
    drawing.line("M365 154V216")
    drawing.line("M350 318V282", kind="line")
    drawing.line("M380 280V316", kind="line")
    drawing.text(374, 190, "bots, slots, queue", kind="small", anchor="start")
    drawing.text(392, 303, "what is due", kind="small", anchor="start")
    for number, top in enumerate((40, 216)):
        drawing.box(560, top, 276, 156, kind="soft")
        drawing.text(576, top + 24, f"host {number + 1}", kind="strong", anchor="start")
        drawing.text(820, top + 24, "image already here", kind="small", anchor="end")
        for place, (look, word) in enumerate(
            (
                ("busy", "busy"),
                ("busy", "busy") if number else ("warn", "deploying"),
                ("good", "idle"),
            )
        ):
            x = 576 + place * 84
            drawing.label(x, top + 44, 76, 50, "slot", word, kind=look)
            if look == "busy":
                drawing.label(x + 8, top + 110, 60, 30, "bot")
                drawing.line(f"M{x + 38} {top + 110}V{top + 96}", kind="thin", tip=False)
    drawing.line("M450 349C505 349 505 294 558 294")
    drawing.line("M450 337C500 320 500 170 558 160")
    drawing.line("M614 180C614 214 520 214 500 165C487 135 480 120 452 118", kind="back")
    for y, words in ((62, "claim,"), (79, "heartbeat,"), (96, "status")):
        drawing.text(504, y, words, kind="small")
    for y, words in ((366, "start, stop,"), (383, "prove stopped")):
        drawing.text(503, y, words, kind="small")
    return drawing.svg()


def launch() -> str:
    """Why a warm slot is fast."""
    drawing = Drawing(
        860,
        236,
        "A launch without and with a warm slot",
        "Without a pool a bot waits for the pull of its image, which takes minutes, for the"
        " creation of its container, for its start and for the join. On a warm slot image and"
        " container are there: the bot waits only for the start and the join.",
    )
    drawing.text(24, 36, "From nothing", kind="strong", anchor="start")
    parts = (
        (400, "pull the image: minutes", "bad"),
        (110, "create", "warn"),
        (110, "start", "warn"),
        (130, "join", "busy"),
    )
    x = 24
    for wide, words, look in parts:
        drawing.box(x, 50, wide, 40, kind=look)
        drawing.text(x + wide / 2, 75, words)
        x += wide + 4
    drawing.text(24, 136, "On a warm slot", kind="strong", anchor="start")
    x = 24
    for wide, words, look in ((110, "start", "warn"), (130, "join", "busy")):
        drawing.box(x, 150, wide, 40, kind=look)
        drawing.text(x + wide / 2, 175, words)
        x += wide + 4
    drawing.text(
        x + 14,
        175,
        "The image came before any bot asked, and the container was made when the last bot left.",
        kind="small",
        anchor="start",
    )
    drawing.text(24, 220, "Widths are no measurements.", kind="small", anchor="start")
    return drawing.svg()


def slot_life() -> str:
    """One slot, bot after bot."""
    drawing = Drawing(
        860,
        250,
        "One slot, bot after bot",
        "An idle slot is assigned to a bot under lease 8 and deploys its container. When the"
        " container claims the bot, the slot is busy. When the bot ends, the slot is releasing: the"
        " container is stopped, proved stopped and cleaned. Then the slot is idle, or goes at once"
        " to the bot that waits, under lease 9. What a container of lease 8 says changes nothing.",
    )
    places = (
        (24, "idle", "nothing runs", "good"),
        (236, "deploying", "lease 8: bot 41", "warn"),
        (448, "busy", "lease 8: bot 41", "busy"),
        (660, "releasing", "no bot", "soft"),
    )
    for x, name, below, look in places:
        drawing.label(x, 84, 176, 62, name, below, kind=look)
    for x, words in ((200, "assigned"), (412, "claims"), (624, "ends")):
        drawing.line(f"M{x} 115H{x + 34}")
        drawing.text(x + 17, 72, words, kind="small")
    drawing.line("M748 146C748 215 112 215 112 148")
    drawing.text(430, 190, "proved stopped, and cleaned", kind="small")
    drawing.line("M720 84C720 22 324 22 324 82", kind="back")
    drawing.text(522, 28, "a bot waits: lease 9, in the same transaction", kind="small")
    drawing.text(
        24,
        234,
        "What a container says under an old lease changes nothing.",
        kind="small",
        anchor="start",
    )
    return drawing.svg()


def replicas() -> str:
    """Several replicas on one database."""
    drawing = Drawing(
        860,
        300,
        "Several replicas on one database",
        "A proxy spreads requests over replicas with the role api. They and the replicas with the"
        " role worker share one PostgreSQL. Each worker reserves the slots it works on; if it is"
        " silent for 15 seconds, another one takes over.",
    )
    drawing.label(24, 110, 130, 62, "Proxy", "TLS", kind="soft")
    for number, y in enumerate((40, 180)):
        drawing.label(240, y, 180, 62, f"api {number + 1}", "serve --role api")
        drawing.label(640, y, 196, 62, f"worker {number + 1}", "serve --role worker")
        drawing.line(f"M154 {135 + 12 * number}C195 {135 + 12 * number} 195 {y + 31} 238 {y + 31}")
        drawing.line(f"M420 {y + 31}C450 {y + 31} 440 {131 + 20 * number} 458 {131 + 20 * number}")
        drawing.line(f"M640 {y + 31}C610 {y + 31} 620 {131 + 20 * number} 602 {131 + 20 * number}")
    drawing.label(460, 110, 140, 62, "PostgreSQL", "the only state", kind="busy")
    drawing.text(738, 128, "each reserves the slots", kind="small")
    drawing.text(738, 146, "that it works on, and", kind="small")
    drawing.text(738, 164, "takes over from silent ones", kind="small")
    drawing.text(24, 278, "Kill any of them: the others go on.", kind="small", anchor="start")
    return drawing.svg()


PICTURES: Mapping[str, Callable[[], str]] = {
    "bot-states": bot_states,
    "launch": launch,
    "replicas": replicas,
    "slot-life": slot_life,
    "slot-states": slot_states,
    "whole": whole,
}
