"""What our pages may load and run: only the sources that are named."""

import base64
import hashlib


def policy(*, form: str = "'none'", **sources: str) -> str:
    """A Content-Security-Policy: these sources for `script`, `style` and so on, and no others.

    `form` says where forms may go.
    """
    named = [f"{kind}-src {allowed}" for kind, allowed in sources.items()]
    rest = ["base-uri 'none'", f"form-action {form}", "frame-ancestors 'none'"]
    return "; ".join(["default-src 'none'", *named, *rest])


def of_text(text: str) -> str:
    """The source expression that allows exactly this inline text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
