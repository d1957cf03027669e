"""Write the pages of docs/ that are made from the code."""

from docs.pages import PAGES

for path, page in PAGES.items():
    path.write_text(page(), encoding="utf-8")
