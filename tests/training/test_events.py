"""events.csv: one format for the parameter server and for Flower."""

from __future__ import annotations

import csv
from pathlib import Path

from gyroscope.runs import events
from gyroscope.runs.events import EventLog


def table(folder: Path) -> list[dict[str, str]]:
    with open(folder / "events.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_events_can_be_read_at_once_and_a_resumed_run_appends(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    log.add(0, events.STARTED, None, "waiting for 5 workers")
    log.add(3, events.REJECTED, 4, "too short", "node 17")
    assert len(table(tmp_path)) == 2
    EventLog(tmp_path).add(2, events.JOINED, 4)  # a resumed run
    lines = table(tmp_path)
    assert tuple(lines[0]) == ("time", "step", "event", "worker", "who", "detail") == events.COLUMNS
    assert [tuple(line.values())[1:] for line in lines] == [
        ("0", "started", "", "", "waiting for 5 workers"),
        ("3", "rejected", "4", "node 17", "too short"),
        ("2", "joined", "4", "", ""),
    ]
    assert all(line["time"].endswith("+00:00") for line in lines)


def test_a_strangers_text_stays_one_short_printable_line(tmp_path: Path) -> None:
    EventLog(tmp_path).add(7, events.LOST, 0, 'a\nb\x1b[31m,"c' + "d" * 5000, "who\r\n" * 1000)
    (line,) = table(tmp_path)
    assert line["detail"].startswith('a b [31m,"cddd') and len(line["detail"]) < 400
    assert line["who"].startswith("who who")
    assert (tmp_path / "events.csv").read_bytes().count(b"\n") == 2


def test_no_cell_is_a_formula(tmp_path: Path) -> None:
    EventLog(tmp_path).add(0, "refused", None, "no", "=HYPERLINK(1) at 127.0.0.1:5")
    assert ",'=HYPERLINK(1) at" in (tmp_path / "events.csv").read_text()
