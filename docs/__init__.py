"""The docs, and what makes those of them that come from the code."""

MADE = "<!-- Made from the code by `make docs`. -->"
"""The first line of a page that nobody writes by hand."""
