"""The page in a real browser, driven as a reader would."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser

from gyroscope.experiments.results import RunResult
from gyroscope.report.page import write_page

pytestmark = pytest.mark.slow

NASTY = "</script><img src=x onerror='window.broken=1'><b>bold</b>&amp;"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def report(runs, verdicts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(runs, verdicts, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Browser]:
    browser.open(report)
    yield browser
    assert browser.console() == []


def actions(page: Browser):
    from selenium.webdriver.common.action_chains import ActionChains

    return ActionChains(page.driver)


def column(page: Browser, number: int) -> list[str]:
    return [text.replace("−", "-") for text in page.texts(f".accuracies tbody td:nth-child({number})")]


def header(page: Browser, text: str):
    return next(th for th in page.all(".accuracies th") if th.text.startswith(text))


def visible(chart, page: Browser) -> dict[str, list[bool]]:
    """Which curves a chart shows, bands included."""
    pairs = page.run("return arguments[0].data.map((t) => [t.meta.curve, t.visible !== false])", chart)
    shown: dict[str, list[bool]] = {}
    for label, seen in pairs:
        shown.setdefault(label, []).append(seen)
    return shown


def x_range(chart, page: Browser) -> list[float]:
    return page.run("return arguments[0]._fullLayout.xaxis.range.slice()", chart)


def test_it_opens_from_disk_without_errors_or_network(page: Browser, report: Path):
    for kind in ("measured", "ratio", "straightness"):
        page.click(f"#tab-{kind}")
        for figure in page.all(f"#kind-{kind} figure:has(.chart:not(.empty))"):
            page.chart(figure.get_attribute("id"))
    page.chart("heat-figure")
    addresses = page.requests()
    assert report.as_uri() in addresses
    assert all(address == report.as_uri() or address.startswith(("data:", "blob:")) for address in addresses)


def test_the_header_says_what_this_is(page: Browser):
    facts = " ".join(page.find("#facts").text.split())
    assert "46 runs" in facts and "23 setups" in facts and "1–2 seeds" in facts and "digits task" in facts
    assert "✓ 1 claim holds" in facts and "✗ 1 claim does not hold" in facts and "– 1 claim not measured" in facts
    assert page.find("#common").text.startswith("All runs: task = digits")
    page.click("#machine summary")
    assert "torch" in page.find("#environment").text and "processor" in page.find("#environment").text


def test_charts_are_drawn_when_they_come_near(page: Browser):
    assert not page.all("#measured-3 .main-svg") and not page.all("#heat-map .main-svg")
    page.chart("measured-3-0")


def test_no_button_sends_data_to_anyone(page: Browser):
    chart = page.chart("measured-0-0")
    names = [b.get_attribute("data-title") for b in chart.find_elements("css selector", ".modebar-btn")]
    assert names == ["Download plot", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"]


def test_claims_open_and_are_filtered(page: Browser):
    assert page.texts("#claims .claims .verdict") == ["✓holds", "✗does not hold"]
    button = page.all("button.expand")[1]
    assert button.get_attribute("aria-expanded") == "false"
    page.click(button)
    details = page.find("#claim-1")
    assert details.is_displayed() and button.get_attribute("aria-expanded") == "true"
    assert "no setting worse by more than 1 point" in details.text and "Section 5.3" in details.text
    page.click("[data-verdict='holds']:not(tr)")
    assert page.texts("#claims .claims .verdict") == ["✓holds"] and not details.is_displayed()
    page.click("[data-verdict='']")
    assert len(page.texts("#claims .claims .verdict")) == 2


def test_what_was_not_measured_comes_after_the_figures(page: Browser):
    sections = [section.get_attribute("id") for section in page.all("main > section")]
    assert sections == ["claims", "figures", "grids", "accuracies", "suspicion", "unmeasured"]
    assert page.texts("#claims .claims .verdict") == ["✓holds", "✗does not hold"]
    assert page.texts("#unmeasured .claims .verdict") == ["–not measured"]


def test_runs_that_are_not_the_papers_have_no_claims(browser: Browser, runs: list[RunResult], tmp_path: Path):
    browser.open(write_page(runs, [], tmp_path / "report.html"))
    shown = [section.get_attribute("id") for section in browser.all("main > section") if section.is_displayed()]
    assert shown == ["figures", "grids", "accuracies", "suspicion"]
    links = [link.get_attribute("href").partition("#")[2] for link in browser.all("nav a")]
    assert links == shown
    assert "paper" not in browser.find("header").text


def test_the_heat_maps_say_what_the_table_says(page: Browser):
    heads = page.texts("#grids .heat [role=columnheader]")
    assert "little" in heads and "no attack" in heads
    assert len(page.all("#grids .heat .missing")) > 0
    maxima = {text.partition(" ")[0] for text in page.texts("#accuracies-body td[data-label='max:']")}
    cells = page.texts("#grids .heat [role=cell]")
    assert {cell for cell in cells if cell != "–"} == maxima - {"–"}


def test_the_table_is_sorted_by_its_headers(page: Browser):
    from selenium.webdriver.common.keys import Keys

    head = header(page, "drop")
    page.click(head.find_element("css selector", "button"))
    drops = [float(text) for text in column(page, 9)]
    assert len(drops) == 23 and drops == sorted(drops) and head.get_attribute("aria-sort") == "ascending"
    head.find_element("css selector", "button").send_keys(Keys.ENTER)
    assert [float(text) for text in column(page, 9)] == sorted(drops, reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    rule = header(page, "rule")
    page.click(rule.find_element("css selector", "button"))
    assert column(page, 1) == sorted(column(page, 1)) and head.get_attribute("aria-sort") == "none"
    page.click(header(page, "attack").find_element("css selector", "button"))
    assert column(page, 3)[-4:] == ["–"] * 4  # what is not there comes last


def test_the_table_is_filtered_by_words(page: Browser):
    field = page.find("#filter")
    field.send_keys("KRUM little")
    assert column(page, 1) == ["krum"] * 4 and page.texts(".count") == ["4 of 23 setups"]
    field.send_keys(" 0.05 workers")
    assert len(column(page, 1)) == 1
    field.send_keys(" nonsense")
    assert column(page, 1) == [] and "No setup matches" in page.find("#accuracies").text
    field.clear()
    field.send_keys("diverged")
    assert column(page, 11) == ["✕ diverged"]


def double_click(page: Browser, element, took_effect) -> bool:
    """On a busy machine the browser takes a slow double click for two single ones, which change nothing: try again."""
    for _ in range(5):
        actions(page).double_click(element).perform()
        for _ in range(10):
            if took_effect():
                return True
            time.sleep(0.1)
    return False


def test_the_legend_hides_a_curve_in_its_whole_block(page: Browser):
    charts = [page.chart(f"measured-0-{number}") for number in range(4)]
    page.run("document.getElementById('measured-0').scrollIntoView()")
    button = page.find("#measured-0 .legend [data-curve='krum']")
    page.click(button)
    assert button.get_attribute("aria-pressed") == "false"
    for chart in charts:
        assert visible(chart, page) == {
            "krum": [False, False], "median": [True, True], "bulyan": [True, True], "average, no attack": [True, True]
        }  # fmt: skip
        assert chart.find_elements("css selector", ".scatterlayer .trace")
    page.click(button)
    assert all(all(seen) for seen in visible(charts[0], page).values())
    alone = page.find("#measured-0 .legend [data-curve='median']")
    assert double_click(
        page, alone, lambda: [label for label, seen in visible(charts[0], page).items() if all(seen)] == ["median"]
    )


def test_a_curve_hidden_before_its_chart_is_drawn_stays_hidden(page: Browser):
    page.run("document.querySelector('#measured-1 [data-curve=bulyan]').click()")
    assert visible(page.chart("measured-1-1"), page)["bulyan"] == [False, False]


def test_dragging_zooms_and_a_double_click_zooms_out(page: Browser):
    chart = page.chart("measured-0-0")
    before = x_range(chart, page)
    area = chart.find_element("css selector", ".nsewdrag")
    actions(page).move_to_element_with_offset(area, -100, -40).click_and_hold().move_by_offset(60, 30).move_by_offset(
        60, 30
    ).release().perform()
    page.until(lambda: x_range(chart, page) != before)
    low, high = x_range(chart, page)
    assert before[0] < low < high < before[1]
    assert double_click(page, area, lambda: x_range(chart, page) == pytest.approx(before))


def test_pointing_shows_numbers_and_a_click_the_configuration(page: Browser):
    chart = page.chart("measured-0-0")
    area = chart.find_element("css selector", ".nsewdrag")
    actions(page).move_to_element(area).perform()
    page.until(lambda: "krum" in (chart.find_element("css selector", ".hoverlayer").text or ""))
    shown = chart.find_element("css selector", ".hoverlayer").text
    assert "average, no attack" in shown and "±" in shown and "%" in shown
    actions(page).move_to_element(area).click().perform()
    page.until(lambda: page.find("#panel").is_displayed())
    assert 'momentum = "server"' in page.find("#panel").text


def test_a_row_shows_its_configuration_and_goes_to_its_chart(page: Browser):
    page.find("#filter").send_keys("empire bulyan workers")
    (row,) = (row for row in page.all(".accuracies tbody tr") if row.is_displayed())
    page.click(row.find_element("css selector", "td:nth-child(3)"))
    panel = page.find("#panel")
    assert panel.is_displayed()
    shown = panel.find_element("css selector", "pre").text
    for line in ("# seeds 1, 2", 'rule = "bulyan"', 'attack = "empire"', 'momentum = "workers"', "byzantine = 5"):
        assert line in shown.splitlines()
    inside = (
        "const r = document.getElementById('measured-1-1').getBoundingClientRect(); return r.top >= 0 && r.top < 300"
    )
    page.until(inside)
    page.until("return !!document.querySelector('#measured-1-1 .main-svg')")
    panel.find_element("css selector", ".close").click()
    assert not panel.is_displayed()


def test_heat_maps_are_chosen_and_a_rule_without_shares_says_so(page: Browser):
    from selenium.webdriver.support.ui import Select

    chart = page.chart("heat-figure")
    assert "Byzantine workers had" in page.find("#heat-words").text
    assert page.run("return [arguments[0].data[0].z.length, arguments[0].layout.shapes[0].y0]", chart) == [23, 17.5]
    choice = Select(page.find("#heat-setup"))
    choice.select_by_visible_text(next(o.text for o in choice.options if o.text.startswith("median")))
    assert "no heat-map" in page.find("#heat-words").text and not chart.is_displayed()
    choice.select_by_visible_text(next(o.text for o in choice.options if o.text.startswith("average")))
    assert chart.is_displayed()


def test_tabs_move_with_the_arrow_keys(page: Browser):
    from selenium.webdriver.common.keys import Keys

    page.click("#tab-measured")
    page.find("#tab-measured").send_keys(Keys.ARROW_RIGHT)
    assert page.find("#kind-ratio").is_displayed() and not page.find("#kind-measured").is_displayed()
    chart = page.chart("ratio-0-0")
    assert page.run("return arguments[0]._fullLayout.yaxis.type", chart) == "log"
    assert set(visible(chart, page)) == {"server", "workers", "bound"}


def test_colours_follow_the_system(page: Browser):
    chart = page.chart("measured-0-0")
    assert page.run("return arguments[0].layout.paper_bgcolor", chart) == "#ffffff"
    page.scheme("dark")
    page.until("return arguments[0].layout.paper_bgcolor !== '#ffffff'", chart)
    assert page.run("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"


def test_hostile_names_are_shown_as_they_are(browser: Browser, runs, verdicts, tmp_path: Path):
    renamed = [
        dataclasses.replace(run, config=dataclasses.replace(run.config, rule=NASTY, task=NASTY))
        for run in runs
        if run.config.rule == "krum"
    ]
    claim = dataclasses.replace(verdicts[0], statement=NASTY, note=NASTY)
    for width in (1280, 390):
        browser.open(write_page(renamed, [claim], tmp_path / "report.html", title=NASTY), width)
        browser.chart("measured-0-0")
        browser.chart("heat-figure")
        browser.click("#row-0")
        assert browser.run("return [typeof window.broken, document.images.length]") == ["undefined", 0]
        assert browser.find("h1").text == browser.find(".claims .expand").text == NASTY
        assert NASTY in browser.find("#panel h3").text
        names = browser.run("return document.querySelector('#measured-0-0 .chart').data.map((t) => t.name)")
        assert all("<" not in name for name in names)
        assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.console() == []


def test_a_report_of_nothing(browser: Browser, tmp_path: Path):
    browser.open(write_page([], [], tmp_path / "report.html"))
    assert "There are no finished runs." in browser.find("#figures").text
    assert not browser.find("#claims").is_displayed() and not browser.all("nav a[href='#claims']")
    assert browser.console() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_width_fits_and_has_its_picture(browser: Browser, report: Path, tmp_path: Path, width: int, scheme: str):
    """Pictures go to the folder that GYROSCOPE_SHOTS names, if it names one."""
    folder = Path(os.environ.get("GYROSCOPE_SHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    browser.open(report, width, 844 if width == 390 else 900, scheme)
    overflow = "return document.documentElement.scrollWidth - window.innerWidth"
    places = {"claims": None, "figures": "measured-0-0", "accuracies": None, "suspicion": "heat-figure"}
    for place, chart in places.items():
        if chart:
            browser.chart(chart)
        browser.run("document.getElementById(arguments[0]).scrollIntoView()", place)
        browser.run("if (arguments[0] === 'claims') window.scrollTo(0, 0)", place)
        path = folder / f"report-{width}-{scheme}-{place}.png"
        browser.picture(path)
        assert path.stat().st_size > 10_000
        assert browser.run(overflow) <= 0
    browser.run("document.getElementById('row-0').click(); document.querySelector('button.expand').click()")
    for kind in ("ratio", "straightness"):
        browser.run("document.getElementById('tab-' + arguments[0]).click()", kind)
        browser.chart(f"{kind}-0-0")
        assert browser.run(overflow) <= 0
    assert browser.console() == []
