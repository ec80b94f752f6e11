"""Renders the page of `t0 show --html`: the rows of prompts, a tab for each prompt, with a search.

    render_row_page("reviews", {"reviews_positive": ()}, most_rows=200)    # the page, and its notes

The page is one file that loads nothing. Texts of rows are untrusted: they only pass through Jinja's
autoescape, and control characters and lone surrogates are shown as escapes.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from t0.errors import AbsentData, printable
from t0.reports.page_templates import page_template, read_assets

LARGEST_PAGE = 20_000_000  # bytes
_NOTE_BYTES = 600  # reserved for the notes about a prompt


def render_row_page(
    title: str,
    prompts: Mapping[str, Iterable[Any]],
    *,
    most_rows: int,
    pieces: Callable[[Sequence[int]], Sequence[str]] | None = None,
    notes: Sequence[str] = (),
    largest: int = LARGEST_PAGE,
) -> tuple[str, list[str]]:
    """Renders a page of rows, and returns it with its notes.

    The rows of a prompt can take an equal share of the bytes that the prompts before it left. The
    notes name the prompts with rows that do not fit, and the prompts whose data is missing.

    Args:
      prompts: name -> rows, each a `t0.catalogue.row_preview.RowPreview`; they are read one by one.
      most_rows: the most rows of a prompt.
      pieces: converts token ids to the pieces of the vocabulary; None to show the ids instead.
      notes: the first notes.
      largest: the size limit of the page, in bytes of UTF-8.

    Raises:
      UserError: the data of all prompts is missing, or a row cannot be rendered.
    """
    from markupsafe import Markup

    template = page_template("row_page.html.j2")
    frame = {"title": title, **read_assets("row_page.js")}
    page = template.make_module({"prompts": dict.fromkeys(prompts, ()), "notes": notes, **frame})
    left = largest - len(printable(str(page)).encode()) - _NOTE_BYTES * len(prompts)
    rendered: dict[str, list[Any]] = {}
    full, absent = [], {}
    for index, (name, rows) in enumerate(prompts.items()):
        share, articles = left // (len(prompts) - index), []
        try:
            for row in itertools.islice(rows, most_rows):
                # `Markup`, because Jinja has escaped the texts.
                article = Markup(printable(page.row_html(row, pieces)))
                share -= (size := len(article.encode()))
                if share < 0:
                    full.append(f"{name} ({len(articles):,})")
                    break
                articles.append(article)
                left -= size
            rendered[name] = articles
        except AbsentData as error:
            absent[name] = error
    if absent and not rendered:
        raise next(iter(absent.values()))
    notes = [*notes, *[f"fewer rows, because more do not fit: {', '.join(full)}"] * bool(full)]
    notes += [f"left out, because the data is missing: {', '.join(absent)}"] * bool(absent)
    return printable(template.render(prompts=rendered, notes=notes, **frame)), notes
