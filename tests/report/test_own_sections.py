"""A section of one's own: one file and one line put it into the page and its figure among the files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import plotly.graph_objects as go
import pytest
from pages import Page, own, part

from tl_lifehist.errors import InputError
from tl_lifehist.registry import all_added
from tl_lifehist.report import SECTIONS, Content, Section, save_figures, write_report
from tl_lifehist.report.figures.style import styled
from tl_lifehist.report.tables import RunTables


def births(run: RunTables) -> Content:
    """When carriers are born, as a figure that knows nothing of the page's style."""
    counts = run.get("carriers")["birth"].value_counts(sort=False)
    fig = go.Figure(go.Bar(x=[str(step) for step in counts.index], y=counts), {"title": {"text": "Births of carriers"}})
    return Content(
        text=f"{counts.sum()} carriers.",
        definition="First checkpoint of a carrier's lineage.",
        control="None.",
        sample=f"{len(counts)} checkpoints.",
        misleads="A lineage may begin by noise.",
        figures={"births_of_carriers": fig},
    )


MINE = Section("When carriers are born", "life-history", ("carriers",), births)


@pytest.fixture
def mine() -> Iterator[None]:
    SECTIONS.register("mine", MINE)
    yield
    SECTIONS.unregister("mine")


@pytest.mark.usefixtures("mine")
def test_a_registered_section_is_the_last_of_its_studys_page(run: Path) -> None:
    text = own(write_report(run))
    shown = part(text, "mine")
    assert "<h2>When carriers are born</h2>" in shown
    assert '<div class="plot" id="plot-births_of_carriers" style="height:450px"' in shown
    assert 'aria-label="Births of carriers"' in shown
    assert '<a href="#mine">When carriers are born</a>' in text
    assert [key for key in Page(text).ids if key in SECTIONS][-1] == "mine"


@pytest.mark.usefixtures("mine")
def test_its_figure_becomes_a_file(run: Path, tmp_path: Path) -> None:
    assert tmp_path / "figures" / "births_of_carriers.html" in save_figures(run, tmp_path / "figures", "html")


@pytest.mark.usefixtures("mine")
def test_a_run_of_the_other_study_does_not_have_it(mask_run: Path) -> None:
    assert 'id="mine"' not in own(write_report(mask_run))


@pytest.mark.usefixtures("mine")
def test_a_section_does_not_travel_to_workers() -> None:
    assert "section" not in all_added()
    assert SECTIONS.added == {"mine": MINE}


def test_a_figure_of_its_own_gets_the_pages_style_and_a_styled_one_stays_as_it_is(run: Path) -> None:
    from tl_lifehist.report.tables import read_run

    content = MINE.content(read_run(run))
    assert not isinstance(content, str)
    fig = content.figures["births_of_carriers"]
    assert fig.layout.template.layout.paper_bgcolor == "rgba(0,0,0,0)"
    assert births(read_run(run)).figures["births_of_carriers"].layout.meta is None
    made = styled(go.Figure(go.Bar(y=[1])), 200, title="one bar", caption="one")
    kept = Section("", "life-history", (), lambda run: Content("", "", "", "", "", figures={"one": made})).content(
        read_run(run)
    )
    assert not isinstance(kept, str)
    assert kept.figures["one"] is made


@pytest.mark.parametrize("name", ["claims", "limits", "provenance", "contents", "load", "answer"])
def test_names_of_the_page_and_of_its_sections_are_taken(name: str) -> None:
    with pytest.raises(InputError, match="comes with the package: register yours under another name"):
        SECTIONS.register(name, MINE)


def test_a_section_of_no_study_is_refused() -> None:
    with pytest.raises(InputError, match="study='lifehistory' is unknown"):
        Section("Mine", "lifehistory", (), births)
