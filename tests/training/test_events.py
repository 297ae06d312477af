"""events.csv: one format for the parameter server and for Flower."""

from __future__ import annotations

import csv
from pathlib import Path

from gyroscope.runs import events
from gyroscope.runs.events import Events


def table(folder: Path) -> list[dict[str, str]]:
    with open(folder / "events.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_lines_are_there_as_soon_as_they_are_told(tmp_path: Path) -> None:
    log = Events()
    log.add(events.STARTED, None, "before there is a directory")
    log.write_to(tmp_path)
    log.step = 3
    log.add(events.REJECTED, 4, "too short", "node 17")
    again = Events()  # a resumed run
    again.write_to(tmp_path)
    again.step = 2
    again.add(events.JOINED, 4)
    lines = table(tmp_path)
    assert tuple(lines[0]) == ("time", "step", "event", "worker", "who", "detail") == events.COLUMNS
    assert [tuple(line.values())[1:] for line in lines] == [
        ("0", "started", "", "", "before there is a directory"),
        ("3", "rejected", "4", "node 17", "too short"),
        ("2", "joined", "4", "", ""),
    ]
    assert all(line["time"].endswith("+00:00") for line in lines)


def test_a_strangers_text_stays_one_short_printable_line(tmp_path: Path) -> None:
    log = Events()
    log.write_to(tmp_path)
    log.add(events.LOST, 0, 'a\nb\x1b[31m,"c' + "d" * 5000, "who\r\n" * 1000)
    (line,) = table(tmp_path)
    assert line["detail"].startswith('a b [31m,"cddd') and len(line["detail"]) < 400
    assert line["who"].startswith("who who")
    assert (tmp_path / "events.csv").read_bytes().count(b"\n") == 2
