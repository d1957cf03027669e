"""What the dashboard says and draws, made from values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from botpool.dashboard import words
from botpool.dashboard.charts import BOTTOM, LEFT, RIGHT, TOP, chart
from botpool.dashboard.waterfall import WIDTH, waterfall
from botpool.models.attention import Need, NeedAction, NeedKind, Severity
from botpool.models.diagnoses import Result
from botpool.models.launches import Launch, LaunchPhase, Percentiles, Phase, phases_of
from botpool.quantities import duration, ordinal, pulled, size
from botpool.settings import Settings, effective_settings
from botpool.states import BotStatus, FailureCause, SlotStatus

NOW = datetime(2026, 1, 1, 14, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (0.04, "40 ms"),
        (2.44, "2.4 s"),
        (42, "0:42"),
        (599, "9:59"),
        (720, "12 min"),
        (3 * 3600 + 300, "3 h 05 min"),
        (2 * 86400 + 3600, "2 d 1 h"),
        (-5, "0:00"),
    ],
)
def test_a_length_of_time_is_said_as_people_say_it(seconds: float, said: str) -> None:
    assert duration(timedelta(seconds=seconds)) == said


def test_how_much_of_an_image_is_there_is_said_in_one_unit() -> None:
    assert pulled(1_430_000_000, 2_300_000_000) == "62 %, 1.4 of 2.3 GB"
    assert pulled(700_000, 2_300_000_000) == "0 %, 0.0 of 2.3 GB"
    assert pulled(0, 0) == "begins"
    assert (size(12), size(1500)) == ("12 bytes", "1.5 kB")


def test_places_in_a_queue_are_ordinals() -> None:
    said = [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 102, 111)]
    assert said == ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th"]


def test_a_meeting_is_shown_without_what_may_be_a_password() -> None:
    assert words.address("https://zoom.us/j/12?pwd=secret") == "zoom.us/j/12"


def _need(sentence: str, method: str, path: str, webhook_id: int | None = None) -> Need:
    return Need(
        kind=NeedKind.POOL_FULL,
        severity=Severity.SOON,
        sentence=sentence,
        webhook_id=webhook_id,
        action=NeedAction(label="Mend", method=method, path=path),
    )


def test_a_need_names_platforms_as_people_do_and_leads_to_a_page() -> None:
    need = _need("pool-zoom-001 of zoom: https://zoom.us/j/1", "POST", "/api/v1/slots/1/recover")
    assert words.of_need(need) == "pool-zoom-001 of Zoom: https://zoom.us/j/1"
    assert words.mending(need) == "/slots/1/recover"
    assert words.mending(_need("", "GET", "/api/v1/queue?platform=zoom")) == "#queue"
    resume = _need("", "PATCH", "/api/v1/webhooks/3", webhook_id=3)
    assert words.mending(resume) == "/settings/webhooks/3/resume"


def _launch(*ends: float | None, usual: float | None = 1000) -> Launch:
    times = [None if end is None else NOW + timedelta(seconds=end) for end in ends]
    spread = Percentiles(usual and usual / 2, usual, usual and usual * 2)
    total = Percentiles(usual and usual * 4, usual and usual * 7, usual and usual * 9)
    return Launch(
        bot_id=1,
        attempt=1,
        began_at=NOW,
        phases=[
            LaunchPhase(name=name, began_at=began, ended_at=ended, usual=spread)
            for name, began, ended in phases_of(times, NOW)
        ],
        usual_total=total,
        usual_of=10,
    )


def test_a_launch_that_took_long_says_why() -> None:
    drawn = waterfall(_launch(0.1, 30, 31, 32, 33, 34, 34.2), NOW, None)
    assert drawn.sentence == (
        "In its call after 0:34, 0:27 longer than usual: its host had to fetch the image."
    )
    assert [bar.slow for bar in drawn.bars] == [False, True, *[False] * 5]
    assert drawn.bars[1].beside == "0:28 longer"
    assert drawn.bars[-1].left + drawn.bars[-1].width == pytest.approx(WIDTH, abs=1)


def test_a_launch_as_usual_says_so_and_one_without_others_that_nothing_is_usual() -> None:
    ends = (0.1, None, None, 1, 2, 3, 4)
    drawn = waterfall(_launch(*ends), NOW, None)
    assert drawn.sentence == "In its call after 4.0 s, as usual."
    assert [bar.took for bar in drawn.bars][:3] == ["0.1 s", "", ""]
    unknown = waterfall(_launch(*ends, usual=None), NOW, None)
    assert unknown.sentence == "In its call after 4.0 s. What is usual is not known yet."


def test_a_launch_under_way_says_how_far_it_is_and_one_that_failed_where_it_ended() -> None:
    launch = _launch(0.1, None, None, 1, None, None, None)
    later = NOW + timedelta(seconds=5)
    under_way = waterfall(launch, later, None)
    assert under_way.sentence == "On its way for 5.0 s: it comes up."
    assert [bar.under_way for bar in under_way.bars].index(True) == [*Phase].index(Phase.CLAIMED)
    ended = waterfall(launch, later + timedelta(hours=1), later)
    assert ended.sentence == (
        "It never came into its call: it ended after 5.0 s, while it comes up."
    )


def test_a_chart_stays_within_its_frame_and_breaks_at_gaps() -> None:
    values = [(NOW + timedelta(minutes=n), float(n)) for n in (0, 1, 2, 30, 60)]
    drawn = chart(NOW, NOW + timedelta(hours=1), {"p50": values, "none": []}, str, 300)
    assert len(drawn.series["p50"]) == 3
    points = [
        tuple(map(float, point.split(",")))
        for line in drawn.series["p50"]
        for point in line.points.split()
    ]
    assert all(LEFT <= x <= RIGHT and TOP <= y <= BOTTOM for x, y in points)
    (before, last) = points[-2:]
    assert before[0] < last[0]  # also at the end of the chart, one value alone is to be seen
    assert [label.text for label in drawn.along][::3] == ["14:00", "14:30", "15:00"]
    assert chart(NOW, NOW + timedelta(hours=1), {"p50": []}, str).is_empty


def test_settings_in_force_tell_where_they_come_from_and_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BOTPOOL_ADMIN_KEY", "a-very-secret-admin-key")
    monkeypatch.setenv("BOTPOOL_CLAIM_TTL_MS", "9000")
    monkeypatch.setenv("COOLIFY_API_TOKEN", "1|token")
    found = {each.variable: each for each in effective_settings(Settings(port=1))}
    told = {name: (each.value, each.source) for name, each in found.items()}
    assert told["BOTPOOL_ADMIN_KEY"] == ("hidden", "BOTPOOL_ADMIN_KEY")
    assert told["BOTPOOL_COOLIFY_API_TOKEN"] == ("hidden", "COOLIFY_API_TOKEN")
    assert told["BOTPOOL_RESERVATION_TTL_MS"] == ("9000", "BOTPOOL_CLAIM_TTL_MS")
    assert told["BOTPOOL_PORT"] == ("1", "given")
    assert told["BOTPOOL_ENGINE"] == ("process", "default")
    assert told["BOTPOOL_DATABASE_URL"] == ("", "default")


def test_every_cause_and_every_status_has_its_words() -> None:
    assert words.CAUSES.keys() == {*FailureCause}
    assert words.STATUSES.keys() == words.STEPS.keys() == words.TONES.keys() == {*BotStatus}
    assert words.SLOT_STATUSES.keys() == {*SlotStatus}
    assert words.DIAGNOSIS_TONES.keys() == {*Result}
