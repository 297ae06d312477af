"""A real Chromium without a window, and what the tests ask of it."""

from __future__ import annotations

import base64
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

INSTALL = "apt-get install chromium chromium-driver, and pip install selenium"
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--window-size=1280,900",
)  # fmt: skip
PATIENCE = 20.0


def _find(*names: str) -> str | None:
    return next((path for path in map(shutil.which, names) if path), None)


class Browser:
    """One page at a time, with its console and its requests."""

    def __init__(self, profile: Path) -> None:
        pytest.importorskip("selenium", reason=f"the page is tested in a real browser: {INSTALL}")
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        program, driver = _find("/usr/bin/chromium", "chromium", "chromium-browser"), _find("chromedriver")
        if not program or not driver:
            missing = "chromium" if not program else "chromedriver"
            pytest.skip(f"there is no {missing} to open the HTML report with: {INSTALL}")
        options = webdriver.ChromeOptions()
        options.binary_location = program
        for flag in (*FLAGS, f"--user-data-dir={profile}", "about:blank"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(driver))
        self.driver.set_script_timeout(PATIENCE)

    def close(self) -> None:
        self.driver.quit()

    def open(self, path: Path, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Open a file in a window of this size, in light or dark, with animations off."""
        self.visit(path.as_uri(), width, height, scheme)
        self.until("return document.documentElement.dataset.ready === 'yes'")

    def visit(self, address: str, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Open any page in the same way, and wait until all of it is loaded."""
        self.driver.get("about:blank")
        self.size(width, height)
        self.scheme(scheme)
        self.console(), self.requests()
        self.driver.get(address)

    def size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def scheme(self, scheme: str) -> None:
        features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        wanted = [{"name": name, "value": value} for name, value in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def click(self, what: Any) -> None:
        """Click on an element or on what a selector finds, in the middle of the window, clear of the fixed bar."""
        element = self.find(what) if isinstance(what, str) else what
        self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        element.click()

    def texts(self, selector: str) -> list[str]:
        """What a reader sees of all such elements."""
        return [element.text for element in self.all(selector) if element.is_displayed()]

    def until(self, condition: str | Callable[[], Any], *arguments: Any) -> Any:
        """Wait for a script or a function to give something true."""
        begun = time.monotonic()
        while True:
            answer = self.run(condition, *arguments) if isinstance(condition, str) else condition()
            if answer:
                return answer
            assert time.monotonic() - begun < PATIENCE, f"never happened: {condition}"
            time.sleep(0.05)

    def chart(self, figure: str) -> Any:
        """Scroll to a figure and wait until its chart is drawn."""
        self.run("document.getElementById(arguments[0]).scrollIntoView({block: 'center'})", figure)
        self.until("return !!document.querySelector('#' + arguments[0] + ' .chart .main-svg')", figure)
        return self.find(f"#{figure} .chart")

    def console(self) -> list[str]:
        """Everything that went wrong in scripts since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def requests(self) -> set[str]:
        """Every address asked for since the last call."""
        messages = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        return {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}

    def picture(self, path: Path) -> None:
        """What the window shows."""
        # Two frames later everything asked for has been painted.
        self.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
        answer = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        path.write_bytes(base64.b64decode(answer["data"]))
