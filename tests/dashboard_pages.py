"""What the browser tests of the dashboard share: where to look on a page, and how to use it."""

import json

from browser import Browser

DRAWN = "document.getElementById('curves')?.dataset.drawn === 'true'"
LOSS_LINE = "document.querySelector('#curves .panel path.curve.line').getAttribute('d')"


def addresses(page: Browser) -> list[str]:
    """What the page has asked for."""
    return [request["request"]["url"] for request in page.requests]


def query(page: Browser) -> str:
    """The state in the address."""
    found: str = page.evaluate("location.search")
    return found


def click(page: Browser, selector: str) -> None:
    """Click on an element."""
    page.evaluate(f"document.querySelector({json.dumps(selector)}).click()")


def type_text(page: Browser, selector: str, text: str) -> None:
    """Put a text into a box, or choose it from a list."""
    page.evaluate(
        f"(() => {{ const box = document.querySelector({json.dumps(selector)}); box.value ="
        f" {json.dumps(text)}; for (const kind of ['input', 'change']) box.dispatchEvent(new"
        " Event(kind, {bubbles: true})); })()"
    )
