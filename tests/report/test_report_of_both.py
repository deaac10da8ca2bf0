"""One page of several runs: one head, one copy of plotly.js, every table under the name of its run."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from pages import Page, own, part
from plausible import write_run
from plausible_masks import mask_record
from plotly.offline import get_plotlyjs

from tl_lifehist.errors import InputError
from tl_lifehist.report import write_report
from tl_lifehist.report.sections import life_history, sufficiency

LIFE, MASKS = "Life history of features", "Functional sufficiency of masks"


@pytest.fixture
def life(tmp_path: Path) -> Path:
    """A life-history run without tables: a page of it is quickly written."""
    return write_run(tmp_path / "life", {})


@pytest.fixture
def masks(tmp_path: Path) -> Path:
    """A sufficiency run without tables."""
    return write_run(tmp_path / "masks", {}, mask_record())


@pytest.fixture(scope="module")
def text(both_report: Path) -> str:
    return own(both_report)


def test_one_page_holds_both_runs_and_one_plotly(both_report: Path, text: str) -> None:
    assert both_report.read_text(encoding="utf-8").count(get_plotlyjs()) == 1
    page = Page(text)
    assert (page.open, page.suspicious) == ([], [])
    assert len(page.ids) == len(set(page.ids))
    assert all(link[1:] in page.ids for link in page.links)
    assert text.count("<h1>") == 1
    assert text.count("<nav") == 1
    assert "<h1>Life history of features and functional sufficiency of masks: EleutherAI/pythia-160m</h1>" in text


def test_every_section_of_both_studies_is_there_under_its_own_name(text: str) -> None:
    for study, sections in (("life-history", life_history.SECTIONS), ("sufficiency", sufficiency.SECTIONS)):
        for name, section in sections.items():
            assert f'<a href="#{study}-{name}">' in text
            assert f"<h3>{section.title}</h3>" in part(text, f"{study}-{name}")


def test_the_contents_have_two_parts(text: str) -> None:
    contents = text[text.index("<nav") : text.index("</nav>")]
    parts = re.findall(r'<a class="run" href="#([\w-]+)">(.*?)</a>', contents)
    assert parts == [("life-history", LIFE), ("sufficiency", MASKS)]


def test_what_both_runs_share_names_each(text: str) -> None:
    for key in ("claims", "limits", "provenance"):
        shown = part(text, key)
        assert re.findall(r"<h3>(.*?)</h3>", shown) == [LIFE, MASKS], key
    claims = part(text, "claims")
    life, masks = claims.index("Removing the 51 carriers"), claims.index("Downstream masks at hook_mlp_out")
    assert life < claims.index(f"<h3>{MASKS}") < masks
    assert part(text, "provenance").count("Weight fingerprints") == 2
    header = text[: text.index("</header>")]
    assert "2,000,000 of 50,000,000" in header
    assert "200 of 1,000" in header
    assert header.count("Reduced in this run.") == 2


def test_a_run_alone_shows_nothing_of_the_other(report: Path, mask_report: Path) -> None:
    life, masks = own(report), own(mask_report)
    assert MASKS not in life
    assert LIFE not in masks
    assert "<h3>" not in part(life, "claims") + part(masks, "claims")
    assert 'class="part"' not in life + masks


def test_the_page_lies_where_it_is_asked_or_above_the_runs(life: Path, masks: Path, tmp_path: Path) -> None:
    assert write_report(life, masks) == tmp_path.resolve() / "report.html"
    named = tmp_path / "pages" / "both.html"
    named.parent.mkdir()
    assert write_report(life, masks, out=named) == named
    assert write_report(str(life), str(masks), out=str(named)) == named
    assert write_report(life, out=named) == named
    assert not (life / "report.html").exists()
    assert [path.name for path in named.parent.iterdir()] == ["both.html"]


def test_runs_in_folders_of_different_depth_share_the_nearest(life: Path, masks: Path, tmp_path: Path) -> None:
    deep = shutil.move(masks, tmp_path / "a" / "b" / "masks")
    assert write_report(life, deep) == tmp_path.resolve() / "report.html"


def test_two_runs_of_one_study_are_told_apart_by_their_folders(masks: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(masks, tmp_path / "wider"))
    record = json.loads((other / "study.json").read_text()) | {"series": "EleutherAI/pythia-410m"}
    (other / "study.json").write_text(json.dumps(record))
    text = own(write_report(masks, other))
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert f"<h2>{MASKS} (masks)</h2>" in text
    assert f"<h2>{MASKS} (wider)</h2>" in text
    assert f"<h1>{MASKS}: EleutherAI/pythia-160m and EleutherAI/pythia-410m</h1>" in text
    assert part(text, "sufficiency-answer") != part(text, "sufficiency-2-answer")


def test_hostile_names_of_folders_and_series_are_only_text(masks: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(masks, tmp_path / "<img src=x onerror=alert(1)>"))
    (other / "study.json").write_text((other / "study.json").read_text().replace("EleutherAI/", "<script>"))
    text = own(write_report(masks, other))
    assert "<img" not in text
    assert "<script>pythia" not in text
    assert Page(text).suspicious == []


def test_a_run_given_twice_is_refused(life: Path, masks: Path) -> None:
    with pytest.raises(InputError, match="is given twice"):
        write_report(life, masks, life / ".." / life.name)


def test_a_folder_that_is_no_run_is_refused_before_anything_is_written(life: Path, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    with pytest.raises(InputError, match="holds no study.json"):
        write_report(life, tmp_path / "nothing")
    assert not (tmp_path / "report.html").exists()


def test_a_page_that_cannot_be_written_is_one_sentence(life: Path, masks: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written to"):
        write_report(life, masks, out=tmp_path / "absent" / "report.html")
    (tmp_path / "taken").mkdir()
    with pytest.raises(InputError, match="cannot be written to"):
        write_report(life, masks, out=tmp_path / "taken")
    assert not list(tmp_path.glob(".report-*"))
