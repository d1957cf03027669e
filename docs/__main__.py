"""Write what is made from the code: pages and pictures."""

from docs.pages import PAGES

for path, page in PAGES.items():
    path.write_text(page(), encoding="utf-8")
