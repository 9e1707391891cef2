"""Looks at a built site: every link to a place of the site leads there, and no page fetches
anything from elsewhere."""

import re
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

# Elements that make a browser fetch what they name.
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
FETCHED_LINKS = {"stylesheet", "icon", "preload", "modulepreload", "prefetch", "preconnect"}


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.places, self.links, self.fetched, self.base = set(), [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if found.get("id"):
            self.places.add(found["id"])
        if tag == "a" and found.get("name"):
            self.places.add(found["name"])
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag in FETCHED and found.get(FETCHED[tag]):
            self.fetched.append(found[FETCHED[tag]])
        if tag == "link" and FETCHED_LINKS & set((found.get("rel") or "").lower().split()):
            self.fetched.append(found.get("href") or "")

    handle_startendtag = handle_starttag


def is_elsewhere(link):
    return bool(re.match(r"[a-z][a-z0-9+.-]*:|//", link, re.I))


def style_links(text):
    """What a style sheet fetches."""
    return re.findall(r"""(?:url\(\s*|@import\s+(?!url))["']?([^"')\s;]+)""", text)


def check(site, unchecked=()):
    """(faults, links looked at). Fragments into the folders of unchecked are not looked up: their
    pages make them by scripts."""
    pages = {p: Page(p.read_text(errors="replace")) for p in sorted(site.rglob("*.html"))}
    faults, looked = [], 0
    free = tuple(site / name for name in unchecked)
    for path in site.rglob("*.css"):
        for link in style_links(path.read_text(errors="replace")):
            if is_elsewhere(link):
                if not link.startswith("data:"):
                    faults.append(f"{path.relative_to(site)} fetches {link}")
            elif not link.startswith("#"):
                looked += 1
                if not (path.parent / unquote(urlsplit(link).path)).is_file():
                    faults.append(f"{path.relative_to(site)}: {link} leads to no file")
    for path, page in pages.items():
        name = path.relative_to(site)
        for link in page.fetched:
            if is_elsewhere(link) and not link.startswith(("data:", "javascript:void(0)")):
                faults.append(f"{name} fetches {link}")
        for link in page.links + page.fetched:
            if is_elsewhere(link):
                continue
            looked += 1
            parts = urlsplit(link)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if parts.path.startswith("/"):
                target = site / unquote(parts.path)[1:]
            if target.is_dir():
                target = target / "index.html"
            place = unquote(parts.fragment)
            if not target.is_file():
                faults.append(f"{name}: the link {link} leads to no file")
            elif place and target in pages and not any(f in target.parents for f in free):
                if place not in pages[target].places and place not in ("top", "__comments"):
                    faults.append(f"{name}: the link {link} leads to no place of its page")
    return faults, looked
