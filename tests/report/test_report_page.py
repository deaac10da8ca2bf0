"""The page: one file, all of its text escaped, and a line where something was not computed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pages import Page, own, part
from plausible import HOSTILE, study_record, write_run, write_tables
from plotly.offline import get_plotlyjs

from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.tables import TABLES
from tl_lifehist.report import write_report
from tl_lifehist.report.page import contents
from tl_lifehist.report.sections.life_history import SECTIONS
from tl_lifehist.report.tables import read_run

EMPTY = {"study": "life-history", "steps": [], "hook_names": []}

Tables = dict[str, pd.DataFrame]


@pytest.fixture(scope="module")
def page_text(report: Path) -> str:
    return own(report)


def test_the_page_is_one_file_that_can_fetch_nothing(report: Path, page_text: str) -> None:
    assert report.name == "report.html"
    assert report.read_text(encoding="utf-8").count(get_plotlyjs()) == 1
    text = page_text
    assert "default-src 'none'" in text
    page = Page(text)
    assert page.open == []
    assert page.suspicious == []
    assert "link" not in re.findall(r"<(\w+)", text)
    assert not re.search(r"url\(|@import|https?://", re.sub(r"arXiv \S+", "", text))
    assert len(page.ids) == len(set(page.ids))
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)


def test_every_section_is_there_with_definition_control_sample_and_warning(run: Path, page_text: str) -> None:
    for name, _, content in contents(read_run(run)):
        assert not isinstance(content, str), name
        assert all((content.text, content.definition, content.control, content.sample, content.misleads)), name
        assert "nan" not in (content.text + content.sample).replace("nance", "").lower(), name
    for name in SECTIONS:
        assert "Definition, control, sample size" in part(page_text, name)


def test_verdicts_are_words(page_text: str) -> None:
    claims = part(page_text, "claims")
    for verdict in ("beyond", "within", "not testable"):
        assert f">{verdict}</span>" in claims


def test_what_was_reduced_stands_at_the_top(page_text: str) -> None:
    assert page_text.index("2,000,000 of 50,000,000") < page_text.index('<section id="claims">')


def test_the_token_is_marked_and_hostile_text_is_only_text(page_text: str) -> None:
    carriers = part(page_text, "carriers")
    assert "<mark>&lt;script&gt;alert(&#x27;token&#x27;)&lt;/script&gt;</mark>" in carriers
    assert "&lt;b&gt;hello&lt;/b&gt;" in carriers
    assert all(hostile not in page_text for hostile in (HOSTILE, "\u202e", "\x00"))


def test_hostile_text_anywhere_in_a_run_is_only_text(tmp_path: Path, tables: Tables, page_text: str) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"
    keys = ["kind", "orientation", "level", "role"]
    for table in tables.values():
        for column in table.select_dtypes(["object", "string"]).columns.difference(keys):
            table[column] = evil + table[column].astype(str)
    record = study_record()
    record["hook_names"] = [evil + name for name in record["hook_names"]]
    record |= {"series": evil, "reduced": {evil: evil}, "versions": {evil: evil}, "config": {"a": [evil]}}
    text = own(write_report(write_run(tmp_path / "evil", tables, record)))
    page = Page(text)
    assert page.open == []
    assert page.suspicious == []
    assert page.scripts == Page(page_text).scripts
    assert "<img" not in text


@pytest.mark.parametrize("kept", [0, 1])
def test_missing_and_empty_tables_leave_out_their_sections_and_say_so(kept: int, run: Path) -> None:
    tables, left_out = dict(read_run(run).tables), {}
    for i, name in enumerate(list(tables)):
        if i % 2 == kept:
            continue
        if i % 4 < 2:
            del tables[name]
            left_out[name] = f"this run has no table “{name}”"
        else:
            tables[name] = tables[name].iloc[:0]
            left_out[name] = f"the table “{name}” is empty"
    text = own(write_report(write_tables(run, tables)))
    needs = {name: section.needs for name, section in SECTIONS.items()} | {"claims": ("claims",)}
    for key, names in needs.items():
        reasons = [left_out[name] for name in names if name in left_out]
        shown = part(text, key)
        assert (
            (f'<p class="absent">Not computed: {reasons[0]}.</p>' in shown)
            if reasons
            else ("Not computed" not in shown)
        )


def test_every_table_is_shown_somewhere() -> None:
    shown = {name for section in SECTIONS.values() for name in section.needs}
    also = {"claims", "contexts", "ablation_regression"}
    only_in_claims = {"direction_noise", "direction_by_hook", "kaplan_meier", "forecast_gain", "survival_at_rate"}
    only_in_claims |= {"calibration"}
    assert shown | also | only_in_claims == set(TABLES)


def test_the_made_up_run_has_every_table_and_column_of_a_real_one(tables: Tables) -> None:
    assert list(tables) == list(TABLES)
    assert [TABLES[name].difference(table) for name, table in tables.items()] == [""] * len(tables)


def test_a_table_without_a_column_that_is_needed_says_so(tmp_path: Path, tables: Tables) -> None:
    tables["forecast"] = tables["forecast"].drop(columns="auc")
    text = own(write_report(write_run(tmp_path / "run", tables)))
    assert "the table “forecast” has no column “auc”" in part(text, "forecast")


def test_a_run_without_tables_still_has_a_page(tmp_path: Path) -> None:
    text = own(write_report(write_run(tmp_path / "run", {}, EMPTY)))
    assert text.count("Not computed") == len(SECTIONS) + 1
    assert "does not record what was reduced" in text


def test_a_run_without_carriers_has_a_page(tmp_path: Path, tables: Tables) -> None:
    for name in ("carriers", "contexts", "load", "load_summary", "ablation_parts", "single", "content"):
        tables[name] = tables[name].iloc[:0]
    tables["features"]["carrier"] = False
    text = own(write_report(write_run(tmp_path / "run", tables)))
    assert "carriers were not computed" in part(text, "lineages")


def test_missing_measures_are_dashes_and_never_nan(tmp_path: Path, tables: Tables) -> None:
    for table in tables.values():
        for column in table.select_dtypes("float"):
            table[column] = np.nan
    tables["carriers"]["content"] = None
    tables["features"]["content"] = None
    text = own(write_report(write_run(tmp_path / "run", tables)))
    shown = re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    assert not re.search(r"\b(nan|NaN|None|inf)\b", re.sub(r"<[^>]*>", " ", shown))
    assert "No floor was computed" in part(text, "persistence")
    assert "too few later carriers" in part(text, "forecast")


def test_two_reports_of_one_run_are_the_same_bytes_and_leave_nothing_else(run: Path) -> None:
    before = sorted(path.name for path in run.iterdir())
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first
    assert sorted(path.name for path in run.iterdir()) == sorted([*before, "report.html"])


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no study.json"):
        write_report(tmp_path)
    with pytest.raises(InputError, match="holds no study.json"):
        write_report(tmp_path / "absent")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "study.json is damaged: delete it and start the run's own command again"),
        ("[]", "study.json is damaged"),
        ('{"study": "life-history"}', "holds a run of an earlier version of tl_lifehist: give another folder"),
        (
            '{"format": 2, "study": "other"}',
            "a run of the study 'other'; this report reads 'life-history' or 'sufficiency' runs",
        ),
        ('{"format": 2, "study": "life-history"}', "holds no finished stage 'tables': start the run's command again"),
    ],
)
def test_a_record_that_is_none_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(InputError, match=message):
        write_report(tmp_path)


def test_a_table_with_a_changed_byte_is_refused(run: Path) -> None:
    file = run / "tables" / "load.parquet"
    stored = bytearray(file.read_bytes())
    stored[len(stored) // 2] ^= 1
    file.write_bytes(stored)
    with pytest.raises(InputError, match=r"load\.parquet is damaged: start the run's command again"):
        write_report(run)


def test_a_table_that_is_gone_is_refused(run: Path) -> None:
    (run / "tables" / "load.parquet").unlink()
    with pytest.raises(InputError, match=r"load\.parquet is damaged: start the run's command again"):
        write_report(run)


def test_a_report_that_cannot_be_written_is_one_sentence(run: Path) -> None:
    (run / "report.html").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        write_report(run)
    assert not list(run.glob(".report-*"))


def test_hook_points_come_in_depth_order_whatever_the_table_says(tmp_path: Path, tables: Tables) -> None:
    tables["lineages"] = tables["lineages"].iloc[::-1]
    shown = read_run(write_run(tmp_path / "run", tables)).get("lineages")
    assert list(dict.fromkeys(shown["hook_name"])) == study_record()["hook_names"]


def test_provenance_is_readable(page_text: str) -> None:
    text = part(page_text, "provenance")
    for entry in ("Versions", "Texts", "Weight fingerprints", json.dumps("0.1.0").replace('"', "&quot;")):
        assert entry in text


def test_every_setting_stands_under_its_section(page_text: str) -> None:
    text = part(page_text, "provenance")
    for section, settings in study_record()["config"].items():
        for name, value in settings.items():
            assert f"<td>{section}</td><td>{name}</td><td>{value}</td>" in text


def test_the_texts_stand_at_the_top(page_text: str) -> None:
    assert "train: 15,625 sequences, 2,000,000 positions" in page_text[: page_text.index("</header>")]


def test_a_claim_is_linked_by_its_id(page_text: str, tables: Tables) -> None:
    page, claims = Page(page_text), part(page_text, "claims")
    for name in tables["claims"]["id"]:
        assert f"claim-{name}" in page.ids
        assert f'href="#claim-{name}" title="{name}"' in claims
