"""Reads a page of a report as a browser would."""

import re
from html.parser import HTMLParser


class Elements(HTMLParser):
    """Collects the elements that a browser would make, scripts' texts, and all visible text."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.scripts, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.tags and self.tags[-1] == "script" and self.scripts:
            self.scripts[-1] += data
        self.text.append(data)


def parsed(html):
    parser = Elements()
    parser.feed(html)
    parser.close()
    return parser


def table_texts(html):
    return re.sub(r"\s+", " ", " ".join(parsed(html).text))
