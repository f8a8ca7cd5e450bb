"""A page measured in headless Chromium: what is wider than the window, outside its box, or without a label.

The page is shown in frames of several widths, because a window of Chromium is never as narrow as a phone. A script
opens every `details`, measures, and leaves what it found as JSON in the document, which Chromium prints.
"""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

WIDTHS = (1400, 400)  # px
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
MEASURE = r"""
const words = (element) => (element.textContent || element.tagName).trim().slice(0, 60);
const outside = (inner, outer) => inner.left < outer.left - 1 || inner.right > outer.right + 1 ||
  inner.top < outer.top - 1 || inner.bottom > outer.bottom + 1;
const overlap = (a, b) => a.left + 1 < b.right && b.left + 1 < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom;

function text(page, width, fault) {
  for (const element of page.body.querySelectorAll("*")) {
    if (element.closest("svg")) continue;
    if (element.clientWidth && element.scrollWidth > element.clientWidth + 1)
      fault(`${element.tagName} scrolls, ${element.scrollWidth} px in ${element.clientWidth}: ${words(element)}`);
    for (const node of element.childNodes) {
      if (node.nodeType !== Node.TEXT_NODE || !node.data.trim()) continue;
      const range = page.createRange();
      range.selectNodeContents(node);
      const own = range.getBoundingClientRect(), box = element.getBoundingClientRect();
      if (own.width && (own.left < -1 || own.right > width + 1 || outside(own, box)))
        fault(`text outside its box: ${words(node)}`);
    }
  }
}

function figures(page, fault) {
  for (const svg of page.querySelectorAll("svg:not([aria-hidden])")) {
    const label = svg.getAttribute("aria-label"), box = svg.getBoundingClientRect();
    if (svg.getAttribute("role") !== "img" || !label)
      fault(`a figure without role="img" and aria-label: ${words(svg)}`);
    if (!svg.querySelector(".title")) fault(`a figure without a title: ${label}`);
    if (!svg.querySelector(".name")) fault(`a figure without the name of an axis: ${label}`);
    const seen = [...svg.querySelectorAll("text")].map((element) => [element, element.getBoundingClientRect()]);
    seen.forEach(([element, own], i) => {
      if (outside(own, box)) fault(`text outside its figure, ${label}: ${words(element)}`);
      for (const [other, its] of seen.slice(i + 1))
        if (overlap(own, its)) fault(`text over text, ${label}: ${words(element)} | ${words(other)}`);
    });
  }
}

function theme(page, fault) {
  const colour = () => page.defaultView.getComputedStyle(page.body).backgroundColor, before = colour();
  page.getElementById("theme")?.click();
  if (colour() === before) fault("no switch between a light and a dark theme");
}

onload = () => {
  const found = {};
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, root = page.documentElement, faults = [];
    const fault = (what) => faults.push(what);
    for (const closed of page.querySelectorAll("details")) closed.open = true;
    const width = root.clientWidth;
    if (root.scrollWidth > width) fault(`the page is ${root.scrollWidth} px wide in a window of ${width} px`);
    text(page, width, fault);
    figures(page, fault);
    theme(page, fault);
    found[frame.width] = faults;
  }
  document.body.textContent = JSON.stringify(found);
};
"""


def browser() -> str | None:
    """The path of Chromium; None where there is none."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def faults(page: str, folder: Path, widths: tuple[int, ...] = WIDTHS) -> dict[int, list[str]]:
    """Width -> what is wrong with the page in a window of that many px. folder: for temporary files."""
    frames = "".join(f'<iframe width="{width}" height="900" srcdoc="{html.escape(page)}"></iframe>' for width in widths)
    file = folder / "measured.html"
    file.write_text(f'<!DOCTYPE html><meta charset="utf-8"><script>{MEASURE}</script><body>{frames}</body>')
    done = subprocess.run(
        [browser(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=20000",
         f"--user-data-dir={folder}/profile", "--dump-dom", file.as_uri()],
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    body = re.search(r"<body>(\{.*\})</body>", done.stdout, re.DOTALL)
    assert body, f"nothing was measured: {done.stderr[-2000:]}"
    return {int(width): found for width, found in json.loads(html.unescape(body[1])).items()}
