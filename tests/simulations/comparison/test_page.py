"""The report's page, as text and in a real browser."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from simulations.c3 import Budgets
from simulations.comparison.methods import Comparison, Method, MethodRun, found_methods
from simulations.comparison.page import Picture, Section, write_page
from simulations.comparison.report import write_report
from simulations.plot_style import new_figure
from tests.simulations.browser import Tab, browser_tab, find_browser
from tests.simulations.finished_runs import add_compute, add_tests, write_finished
from tests.simulations.small_runs import small


def comparison(
    *methods: tuple[str, dict[str, str | float]], notes: tuple[str, ...] = ()
) -> Comparison:
    run = MethodRun(1, Path("run"))
    return Comparison(
        [Method(name, settings, (run,)) for name, settings in methods], notes=list(notes)
    )


def summary(**columns: list[object]) -> pd.DataFrame:
    return pd.DataFrame(columns)


def test_names_notes_and_settings_are_text_and_not_markup(tmp_path: Path) -> None:
    name, path = "<script>alert(1)</script>", tmp_path / 'a"b<i>.png'
    new_figure().savefig(path)
    found = comparison((name, {"model": "<b>x</b>"}), notes=("<i>left out</i>",))
    section = Section("A & B", [Picture(path, 'of "<u>it</u>"')])
    page = write_page("<h1>", found, summary(method=[name]), no_clients(), Budgets(), [section])
    for tag in ("<script>alert", "<b>x", "<i>left", "<u>it", "<title><h1>"):
        assert tag not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert 'alt="of &#34;&lt;u&gt;it&lt;/u&gt;&#34;"' in page
    assert "A &amp; B" in page


def no_clients() -> pd.DataFrame:
    return pd.DataFrame({"method": [], "client": [], "seeds": [], "accuracy": [], "spread": []})


def cells(page: str, table: str) -> list[list[str]]:
    """Return the texts of a table's rows, headings first."""
    inside = re.search(rf'<table id="{table}".*?</table>', page, flags=re.DOTALL)
    assert inside is not None
    rows = re.findall(r"<tr>(.*?)</tr>", inside[0], flags=re.DOTALL)
    texts = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, flags=re.DOTALL) for row in rows]
    return [[re.sub(r"<[^>]*>", "", text) for text in row] for row in texts]


def test_settings_are_told_by_method_where_they_differ(tmp_path: Path) -> None:
    found = comparison(
        ("one", {"kappa": 0.3, "rounds": 5, "dataset": f"{tmp_path}/cats,{tmp_path}/dogs"}),
        ("two", {"kappa": 0.6, "rounds": 5, "dataset": "digits", "mask": "hard"}),
    )
    page = write_page("x", found, summary(method=["one", "two"]), no_clients(), Budgets(), [])
    assert cells(page, "settings") == [
        ["method", "dataset", "kappa", "mask"],
        ["one", "cats,dogs", "0.3", "–"],
        ["two", "digits", "0.6", "hard"],
    ]
    assert cells(page, "shared") == [["rounds", "5"]]
    assert str(tmp_path) not in page


def test_traffic_is_a_table_without_columns_of_zeros() -> None:
    traffic = pd.DataFrame(
        [["one", 1.5, 0.0, 0.0], ["two", 2.0, 0.0, 3.25]],
        columns=["method", "up weights", "up labels", "down weights"],
    )
    found, table = comparison(("one", {}), ("two", {})), summary(method=["one", "two"])
    page = write_page("x", found, table, no_clients(), Budgets(), [], traffic)
    assert cells(page, "traffic") == [
        ["method", "up weights", "down weights"],
        ["one", "1.50", "0.00"],
        ["two", "2.00", "3.25"],
    ]
    for none in (None, traffic[:0]):
        page = write_page("x", found, table, no_clients(), Budgets(), [], none)
        assert 'id="traffic"' not in page


def test_a_method_alone_shares_all_its_settings() -> None:
    found = comparison(("one", {"kappa": 0.3, "rounds": 5}))
    page = write_page("x", found, summary(method=["one"]), no_clients(), Budgets(), [])
    assert 'id="settings"' not in page
    assert cells(page, "shared") == [["kappa", "0.3"], ["rounds", "5"]]
    assert "1 method, 1 run. Accuracy is that of the last test." in " ".join(page.split())


def test_the_page_says_whose_tests_accuracy_is_of() -> None:
    found = replace(comparison(("one", {"kappa": 0.3})), last_tests=5, tests="clients")
    page = write_page("x", found, summary(method=["one"]), no_clients(), Budgets(), [])
    said = "Accuracy is that of the last 5 tests, the mean over clients that test on samples of"
    assert said in " ".join(page.split())


def scored(budgets: Budgets, **columns: list[object]) -> str:
    costs: dict[str, list[object]] = {
        "method": ["a", "b"],
        "GB": [2.0, 84.64],
        "client T multiply-adds": [17.13, math.nan],
    }
    found = comparison(("a", {"kappa": 0.3}), ("b", {"kappa": 0.6}))
    table = pd.DataFrame(costs | columns)
    return write_page("x", found, table, no_clients(), budgets, [])


def test_the_page_says_what_the_scores_were_computed_with() -> None:
    page = scored(Budgets(), C3=[0.5, math.nan])
    most = "the most among the methods"
    assert "exp(−(B + C) / 8)" in page
    assert f"up and down over 84.64, {most}, and C" in page
    assert f"over 17.13 T, {most}. What" in page
    given = scored(Budgets(bandwidth=10, compute=20, temperature=4), C3=[0.5, math.nan])
    assert "exp(−(B + C) / 4)" in given
    assert "up and down over 10, and C" in given
    assert "over 20 T. What" in given
    assert "There is no C3-Score" in scored(Budgets())


def test_clients_have_a_table_unless_they_are_too_many() -> None:
    def page_of(count: int) -> str:
        rows = [("one", c, 2, 50.0 + c, 1.25) for c in range(count)]
        rows += [("two", c, 1, 60.0 + c, math.nan) for c in range(1, count)]
        clients = pd.DataFrame(rows, columns=["method", "client", "seeds", "accuracy", "spread"])
        found = comparison(("one", {}), ("two", {}))
        return write_page("x", found, summary(method=["one", "two"]), clients, Budgets(), [])

    assert cells(page_of(3), "clients") == [
        ["method", "client 0", "client 1", "client 2"],
        ["one", "50.0 ± 1.2", "51.0 ± 1.2", "52.0 ± 1.2"],
        ["two", "", "61.0", "62.0"],
    ]
    assert 'id="clients"' in page_of(20)
    assert 'id="clients"' not in page_of(21)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the report of three methods, of which one has two seeds, and one counted no compute."""
    folder = tmp_path_factory.mktemp("report")
    for name, accuracy, changes in (
        ("a", 0.5, {"sparsity": 0.9}),
        ("b", 0.7, {"sparsity": 0.9, "seed": 8}),
        ("c", 0.9, {"sparsity": 0.5}),
        ("d", 0.8, {"sparsity": 0.7}),
    ):
        run = write_finished(folder / "runs" / name, small(**changes), [0.1, 0.4, accuracy])
        add_tests(run, [[0.4, 0.5], [accuracy, accuracy]])
        if name != "d":
            add_compute(run, client=3e12 * accuracy, server=1e12)
    write_report(found_methods([folder / "runs"]), folder / "out")
    return folder / "out"


def test_the_page_is_one_file_and_asks_for_no_other(report: Path) -> None:
    page = (report / "index.html").read_text(encoding="utf-8")
    sources = re.findall(r'(?:src|href)="([^"]{0,30})', page)
    assert sources
    assert all(source.startswith("data:") for source in sources)
    assert not re.search(r"https?://|@import|url\(", page)


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Tab]:
    """Open a browser's tab; without a browser the test is skipped."""
    program = find_browser()
    if program is None:
        pytest.skip("there is no Chromium or Chrome to open the page with")
    with browser_tab(program, tmp_path / "profile") as tab:
        yield tab


_TABLE = "[...document.querySelectorAll('#methods tbody tr')].map(row => row.cells[{}].innerText)"
_NAMES, _ACCURACIES = _TABLE.format(0), _TABLE.format(2)
_WIDTHS = "[...document.images].map(image => image.complete && image.naturalWidth)"


def test_a_browser_shows_all_pictures_and_rows_from_the_file_alone(tab: Tab, report: Path) -> None:
    page = report / "index.html"
    tab.open(page)
    assert tab.evaluate("document.title") == "Comparison"
    widths = tab.evaluate(_WIDTHS)
    pictures = sorted(path.name for path in report.glob("*.png"))
    assert pictures == [
        "accuracy-by-megabytes.png",
        "accuracy-by-multiply-adds.png",
        "accuracy-by-round.png",
        "accuracy-by-seconds.png",
        "c3.png",
        "client-accuracy.png",
        "trade-off.png",
    ]
    assert len(widths) == 7
    assert min(widths) > 600
    assert tab.evaluate(_NAMES) == ["sparsity 0.9", "sparsity 0.5", "sparsity 0.7"]
    assert tab.evaluate(_ACCURACIES) == ["60.00", "90.00", "80.00"]
    others = [url for url in tab.requests if not url.startswith("data:")]
    assert others == [page.as_uri()]
    assert tab.messages == []
    # Nothing is wider than the window but tables, which scroll in their own boxes.
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_click_on_a_heading_sorts_the_rows(tab: Tab, report: Path) -> None:
    tab.open(report / "index.html")
    heading = "[...document.querySelectorAll('#methods thead th')].find(h => h.innerText == '{}')"

    def click(name: str) -> str:
        tab.evaluate(f"({heading.format(name)}).setAttribute('id', 'clicked')")
        tab.evaluate("document.querySelector('#clicked button').click()")
        order = tab.evaluate("document.querySelector('#clicked').getAttribute('aria-sort')")
        tab.evaluate("document.querySelector('#clicked').removeAttribute('id')")
        return str(order)

    assert click("accuracy") == "descending"
    assert tab.evaluate(_ACCURACIES) == ["90.00", "80.00", "60.00"]
    assert click("method") == "ascending"
    assert tab.evaluate(_NAMES) == ["sparsity 0.5", "sparsity 0.7", "sparsity 0.9"]
    assert tab.evaluate("document.querySelectorAll('#methods [aria-sort]').length") == 1
    # The method without a score is last either way.
    by_score = [["sparsity 0.5", "sparsity 0.9"], ["sparsity 0.9", "sparsity 0.5"]]
    assert click("C3") == "descending"
    assert tab.evaluate(_NAMES) == [*by_score[0], "sparsity 0.7"]
    assert click("C3") == "ascending"
    assert tab.evaluate(_NAMES) == [*by_score[1], "sparsity 0.7"]


def test_the_page_is_whole_without_scripts(tab: Tab, report: Path) -> None:
    tab.open(report / "index.html", scripts=False)
    assert tab.evaluate("document.querySelectorAll('button').length") == 0
    assert len(tab.evaluate(_WIDTHS)) == 7
    assert min(tab.evaluate(_WIDTHS)) > 600
    assert tab.evaluate(_ACCURACIES) == ["60.00", "90.00", "80.00"]
