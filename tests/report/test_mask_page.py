"""The page of a sufficiency run: its numbers stand in its tables, and it says when a mask shows nothing."""

from __future__ import annotations

import html
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pages import Page, own, part
from plausible import write_run, write_tables
from plausible_masks import SITES, mask_record, plausible_mask_tables
from plotly.offline import get_plotlyjs

from tl_lifehist.report import save_figures, write_report
from tl_lifehist.report.figures.cells import label
from tl_lifehist.report.markup import number, percent
from tl_lifehist.report.page import contents
from tl_lifehist.report.sections import Content
from tl_lifehist.report.sections.sufficiency import LIMITS, SECTIONS
from tl_lifehist.report.tables import RunTables, read_run
from tl_lifehist.sufficiency.tables import TABLES

Tables = dict[str, pd.DataFrame]
RECORD = mask_record([0, 512, 143000], (0, 4))
MLP, RESID = SITES
CONTROLS = ("aligned", "procrustes", "dictionary", "identity", "shuffled")


@pytest.fixture(scope="module")
def page_text(mask_report: Path) -> str:
    return own(mask_report)


def words(text: str) -> str:
    """What a reader sees of some HTML."""
    bare = re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", "", bare))).replace("\u00a0", " ")


def paragraph(text: str, key: str, site: str) -> str:
    """What a section says of one site."""
    found = re.search(rf"<p><strong><code>{site}</code></strong>.*?</p>", part(text, key), re.DOTALL)
    assert found, (key, site)
    return words(found[0])


def built(tables: Tables, key: str) -> Content | str:
    """The content of one section made of these tables, or why there is none."""
    return SECTIONS[key].content(RunTables(Path("run"), RECORD, tables))


def shown(tables: Tables, key: str) -> str:
    """One section made of these tables, as HTML."""
    content = built(tables, key)
    assert not isinstance(content, str), content
    text = "".join(f"<p>{paragraph}</p>" for paragraph in (content.text, *content.points))
    return f'<section id="{key}">{text}{content.table}{content.more}</section>'


def first(table: pd.DataFrame, site: str, mask: str) -> pd.DataFrame:
    """The rows that count: of one site and mask, of the first seed."""
    return table[(table["site"] == site) & (table["mask"] == mask) & (table["seed"] == 0)]


def written(tmp_path: Path, tables: Tables) -> str:
    return own(write_report(write_run(tmp_path / "run", tables, RECORD)))


def test_the_page_is_one_file_that_can_fetch_nothing(mask_report: Path, page_text: str) -> None:
    assert mask_report.read_text(encoding="utf-8").count(get_plotlyjs()) == 1
    page = Page(page_text)
    assert (page.open, page.suspicious) == ([], [])
    assert not re.search(r"url\(|@import|https?://", re.sub(r"arXiv \S+", "", page_text))
    assert len(page.ids) == len(set(page.ids))
    assert all(link[1:] in page.ids for link in page.links)


def test_every_section_says_what_it_is_and_is_of_this_study(mask_run: Path, page_text: str) -> None:
    for name, _, content in contents(read_run(mask_run)):
        assert not isinstance(content, str), name
        assert all((content.text, content.definition, content.control, content.sample, content.misleads)), name
        assert content.figures or content.table, name
        assert "Definition, control, sample size" in part(page_text, name)
    assert [key for key in Page(page_text).ids if key in ("lineages", "load", "dag", "forecast")] == []
    assert "Functional sufficiency of masks: EleutherAI/pythia-160m</h1>" in page_text


def test_every_table_is_shown_somewhere() -> None:
    assert {name for section in SECTIONS.values() for name in section.needs} | {"claims"} == set(TABLES)


def test_the_made_up_run_has_every_table_and_column_of_a_real_one(mask_tables: Tables) -> None:
    assert list(mask_tables) == list(TABLES)
    assert [TABLES[name].difference(table) for name, table in mask_tables.items()] == [""] * len(mask_tables)


@pytest.mark.parametrize("site", SITES)
def test_the_answer_gives_the_medians_of_one_site_beside_its_nulls(
    site: str, mask_tables: Tables, page_text: str
) -> None:
    said = paragraph(page_text, "answer", site)
    evaluation, nulls = mask_tables["evaluation"], mask_tables["nulls"]
    downstream = first(evaluation, site, "downstream")
    low, mass, high = np.quantile(downstream["soft_mass"], [0.25, 0.5, 0.75])
    share = [percent(x).replace("\u00a0", " ") for x in (mass, low, high)]
    assert f"the downstream masks keep {share[0]} ({share[1]} to {share[2]}) of the soft mass" in said
    low, lost, high = np.quantile(downstream["lost_fraction"], [0.25, 0.5, 0.75])
    assert f"lose {number(lost)} ({number(low)} to {number(high)}) of what mean ablation costs" in said
    ends = [number(np.median(first(evaluation, site, mask)["relative_kl"])) for mask in ("empty", "full")]
    assert f"Relative KL beside it: empty mask {ends[0]}, full mask {ends[1]}." in said
    drawn = nulls[(nulls["site"] == site) & (nulls["target"] == "downstream")]
    random = drawn[drawn["kind"] == "random"].groupby(["step", "hook_name", "method"])["relative_kl"].mean()
    top = drawn.loc[drawn["kind"] == "top_variance", "relative_kl"]
    assert f"top variance {number(np.median(top))}" in said
    assert f"random {number(np.median(random))}" in said
    assert f"reconstruction {percent(np.median(first(evaluation, site, 'reconstruction')['soft_mass']))}".replace(
        "\u00a0", " "
    ) in said.replace("\u00a0", " ")


def test_the_table_of_the_answer_counts_cells(mask_tables: Tables, page_text: str) -> None:
    rows = re.findall(r"<tr><td>downstream</td>.*?</tr>", part(page_text, "answer"), re.DOTALL)
    assert len(rows) == 2
    n = len(first(mask_tables["evaluation"], MLP, "downstream"))
    assert all(row.endswith(f"<td class=number>{n}</td></tr>") for row in rows)


def _with_losses(tables: Tables, site: str, *, mask: float, top: float, empty: float) -> Tables:
    """Every downstream mask, top-variance mask and empty mask of a site with these KLs in nats."""
    evaluation, nulls = tables["evaluation"], tables["nulls"]
    here = evaluation["site"] == site
    for name, value in (("downstream", mask), ("empty", empty)):
        chosen = here & (evaluation["mask"] == name)
        evaluation.loc[chosen, ["kl", "relative_kl", "lost_fraction"]] = value, value / 2.8, value / empty
    nulls.loc[(nulls["site"] == site) & (nulls["kind"] == "top_variance"), "kl"] = top
    return tables


@pytest.mark.parametrize(
    ("mask", "top", "empty", "said", "not_said"),
    [
        (0.10, 0.50, 0.11, "hardly beats the empty mask: its KL is 0.909 times as large", "does not beat"),
        (
            0.10,
            0.50,
            0.11,
            "It beats the top-variance mask of the same mass: its KL is 0.2 times",
            "hardly beats the top",
        ),
        (0.10, 0.10, 1.00, "does not beat the top-variance mask of the same mass", "hardly beats the empty"),
        (0.09, 0.10, 1.00, "hardly beats the top-variance mask of the same mass", "does not beat"),
        (0.09, 0.10, 1.00, "It beats the empty mask: its KL is 0.09 times as large", "Taking this site away"),
        (0.01, 0.10, 0.14, "Taking this site away costs 5 % of the entropy", "hardly beats"),
        (0.79, 1.00, 1.00, "below 0.8 times in 12 of 12 cells", "hardly beats"),
        (0.81, 1.00, 1.00, "below 0.8 times in 0 of 12 cells", "It beats"),
    ],
)
def test_the_answer_says_when_a_mask_hardly_beats_its_nulls(
    mask: float, top: float, empty: float, said: str, not_said: str, mask_tables: Tables
) -> None:
    tables = _with_losses(mask_tables, RESID, mask=mask, top=top, empty=empty)
    text = paragraph(shown(tables, "answer"), "answer", RESID)
    assert said in text
    assert not_said not in text


def test_the_answer_says_when_the_dictionary_itself_fails(mask_tables: Tables) -> None:
    evaluation = mask_tables["evaluation"]
    evaluation.loc[(evaluation["mask"] == "full") & (evaluation["site"] == RESID), "lost_fraction"] = 0.375
    text = shown(mask_tables, "answer")
    assert "Even the full mask loses 0.375 of what mean ablation costs" in paragraph(text, "answer", RESID)
    assert "Even the full mask" not in paragraph(text, "answer", MLP)


def test_sites_are_told_apart_everywhere(mask_tables: Tables) -> None:
    alone = {key: t[t["site"] == MLP] if "site" in t else t for key, t in mask_tables.items()}
    for key in (name for name in SECTIONS if name != "published_masks"):
        both, one = shown(mask_tables, key), shown(alone, key)
        assert RESID not in one
        if f"<strong><code>{MLP}</code></strong>" in one:
            assert paragraph(one, key, MLP) == paragraph(both, key, MLP), key


def test_the_matrix_names_the_best_mask_of_each_metric(mask_tables: Tables) -> None:
    evaluation = mask_tables["evaluation"]
    chosen = (evaluation["mask"] == "transfer") & (evaluation["site"] == MLP)
    evaluation.loc[chosen, "accuracy_drop"] = -0.25
    text = shown(mask_tables, "matrix")
    assert "accuracy drop, pp: transfer −0.25" in paragraph(text, "matrix", MLP)
    assert "accuracy drop, pp: transfer" not in paragraph(text, "matrix", RESID)


def test_equal_masses_count_the_cells_in_which_the_mask_is_better(mask_tables: Tables) -> None:
    evaluation, nulls = mask_tables["evaluation"], mask_tables["nulls"]
    nulls.loc[nulls["kind"] == "tau_ranked", "kl"] = 1.0
    chosen = (evaluation["mask"] == "downstream") & (evaluation["site"] == MLP)
    evaluation.loc[chosen, "kl"] = 2.0
    evaluation.loc[chosen & (evaluation["step"] == 512) & (evaluation["method"] == "svd"), "kl"] = 0.5
    text = shown(mask_tables, "equal_mass")
    n = len(first(evaluation, MLP, "downstream"))
    assert f"tau-ranked in 2 of {n} cells" in paragraph(text, "equal_mass", MLP)
    row = rf"<tr><td><code>{MLP}</code></td><td>downstream</td><td>tau-ranked</td><td>KL</td>.*?</tr>"
    cells = re.findall(r"<td class=number>(.*?)</td>", re.findall(row, text)[0])
    assert cells == ["2<small>2 to 2</small>", percent(2 / n), str(n)]


def test_the_frontier_gives_the_studys_penalty_at_the_last_checkpoint(mask_tables: Tables, page_text: str) -> None:
    table = mask_tables["frontier"]
    here = table[(table["site"] == RESID) & (table["step"] == 143000)]
    own_point = here[here["operating"]]
    said = paragraph(page_text, "frontier", RESID)
    assert f"at the study's penalty {percent(np.median(own_point['soft_mass']))}".replace("\u00a0", " ") in said
    assert f"lose {number(np.median(own_point['lost_fraction']))}" in said
    better = int((here["lost_fraction"] < here["variance_lost_fraction"]).sum())
    assert f"loses less in {better} of {len(here)} fits" in said


def test_the_onset_counts_cells(mask_tables: Tables, page_text: str) -> None:
    table = mask_tables["onset"]
    here = table[table["site"] == MLP]
    found = here.dropna(subset=["onset"])
    said = paragraph(page_text, "onset", MLP)
    assert f"{len(found)} of {len(here)} cells have an onset, the first at step {found['step'].min()}" in said


def test_a_site_without_any_onset_says_so(mask_tables: Tables) -> None:
    mask_tables["onset"]["onset"] = np.nan
    said = paragraph(shown(mask_tables, "onset"), "onset", MLP)
    assert "0 of 12 cells have an onset. At the last checkpoint 0 of 4 cells; the full mask loses" in said


def test_transfer_gives_each_method_beside_its_controls(mask_tables: Tables, page_text: str) -> None:
    table = mask_tables["transfer"]
    here = table[(table["site"] == MLP) & (table["mask"] == "full") & (table["method"] == "nmf")]
    medians = {name: number(float(np.median(here.loc[here["control"] == name, "relative_kl"]))) for name in CONTROLS}
    wanted = ", ".join(f"{label(name)} {value}" for name, value in medians.items())
    assert f"NMF {wanted}" in paragraph(page_text, "transfer", MLP)


def test_trajectories_stand_beside_the_empty_mask_and_the_entropy(mask_tables: Tables, page_text: str) -> None:
    table = mask_tables["trajectories"]
    here = table[(table["site"] == MLP) & (table["mask"] == "downstream") & (table["quantity"] == "relative_kl")]
    row = here[here["against"] == "checkpoint"].iloc[0]
    said = paragraph(page_text, "trajectories", MLP)
    assert f"against checkpoint {number(row['pooled'])}" in said
    assert f"empty mask {number(row['empty'])}, clean entropy −0.95" in said
    n = int(table.loc[table["site"] == MLP, "claimed"].sum())
    assert f"Claimed are {n} of {int((table['site'] == MLP).sum())}" in said


def test_a_hypothesis_is_printed_as_one(page_text: str) -> None:
    assert "<strong>A hypothesis</strong>" in part(page_text, "senders")
    assert "a hypothesis" in next(line for line in page_text.splitlines() if "<nav" in line)


def test_dictionaries_that_did_not_converge_are_counted(mask_tables: Tables) -> None:
    table = mask_tables["dictionaries"]
    assert "All of them converged." in shown(mask_tables, "dictionaries")
    table.loc[table["step"] == 512, "converged"] = False
    text = shown(mask_tables, "dictionaries")
    assert "<strong>8 of 24 stopped before they converged.</strong>" in text
    rows = mask_tables["checkpoints"]
    top = rows.loc[rows["site"] == RESID, "top_row_share"]
    share = f"{percent(top.min())} to {percent(top.max())} of the variance"
    assert f"The 0.1\u00a0% of rows farthest from the mean hold {share}" in text


def test_only_step_0_is_called_unlearnt(mask_tables: Tables) -> None:
    found = built(mask_tables, "anisotropy")
    assert not isinstance(found, str)
    assert "The first checkpoint, where nothing was learnt, and tau under one draw" in found.control
    table = mask_tables["anisotropy"]
    found = built(mask_tables | {"anisotropy": table[table["step"] > 0]}, "anisotropy")
    assert not isinstance(found, str)
    assert "nothing was learnt" not in found.control


def test_the_bridge_counts_what_lies_above_the_matched_sets(mask_tables: Tables) -> None:
    table = mask_tables["carriers"]
    table["p"] = np.where(table["step"] == 512, 0.05, 0.06)
    said = paragraph(shown(mask_tables, "bridge"), "bridge", MLP)
    assert "above 95 % of the sets matched by mass in 4 of 12 masks." in said
    table.loc[(table["step"] == 512) & table["keep_error"], "p"] = np.nan
    said = paragraph(shown(mask_tables, "bridge"), "bridge", MLP)
    assert "matched by mass in 2 of 10 masks, and 2 could not be tested." in said


def test_the_bridge_shows_losses_beside_the_empty_and_the_full_mask(mask_tables: Tables) -> None:
    table = mask_tables["carriers"]
    table["lost_fraction"] = 0.25
    text = shown(mask_tables, "bridge")
    kept = "the lost fraction is 0.25 with the error dropped (empty mask 1, full mask 0.07) and 0.25 with the error"
    assert f"{kept} kept (empty mask 0.98, full mask 0)" in paragraph(text, "bridge", MLP)
    assert "<td class=number>0.25</td><td class=number>0.98</td><td class=number>0</td></tr>" in text
    content = built(mask_tables, "bridge")
    assert not isinstance(content, str)
    assert "at most 10 % of the carriers have no other kind among their ten and the mass gap is at most 0.1" in (
        content.control
    )
    table[[c for c in table if c.startswith(("empty_", "full_"))]] = np.nan
    bare = shown(mask_tables, "bridge")
    assert "0.25 with the error dropped and 0.25 with the error kept." in paragraph(bare, "bridge", MLP)


def test_a_bridge_without_a_life_history_says_what_to_give(mask_tables: Tables) -> None:
    del mask_tables["carriers"]
    assert built(mask_tables, "bridge") == "this run has no table “carriers”; give the study a life-history run"


def test_limits_and_published_figures_name_the_unknown_site(page_text: str) -> None:
    limits = part(page_text, "limits")
    assert all(limit in limits for limit in LIMITS)
    for phrase in ("relative to a target", "not unique", "empty mask is the null", "learning in context"):
        assert phrase in limits
    published = part(page_text, "published_masks")
    assert "At which site the published figures were taken is not known" in published
    assert "<td>0.030</td><td>0.020</td>" in published


@pytest.mark.parametrize("kept", [0, 1])
def test_missing_and_empty_tables_leave_out_their_sections_and_say_so(kept: int, mask_run: Path) -> None:
    tables, left_out = dict(read_run(mask_run).tables), {}
    for i, name in enumerate(list(tables)):
        if i % 2 == kept:
            continue
        if i % 4 < 2:
            del tables[name]
            left_out[name] = f"this run has no table “{name}”"
        else:
            tables[name] = tables[name].iloc[:0]
            left_out[name] = f"the table “{name}” is empty"
    text = own(write_report(write_tables(mask_run, tables)))
    for key, section in SECTIONS.items():
        reasons = [left_out[name] for name in section.needs if name in left_out]
        found = part(text, key)
        assert (f'<p class="absent">Not computed: {reasons[0]}' in found) if reasons else ("Not computed" not in found)


@pytest.mark.parametrize("key", SECTIONS)
def test_a_section_lives_on_the_tables_it_names_alone(key: str, mask_tables: Tables) -> None:
    needs = SECTIONS[key].needs
    assert not isinstance(built({name: mask_tables[name] for name in needs}, key), str)
    for name in needs:
        found = built({other: table for other, table in mask_tables.items() if other != name}, key)
        assert isinstance(found, str)
        assert f"no table “{name}”" in found


def test_a_table_without_a_column_that_is_needed_says_so(mask_tables: Tables) -> None:
    mask_tables["onset"] = mask_tables["onset"].drop(columns="full_lost_fraction")
    assert built(mask_tables, "onset") == "the table “onset” has no column “full_lost_fraction”"


def test_a_run_without_tables_still_has_a_page(tmp_path: Path) -> None:
    text = own(write_report(write_run(tmp_path / "run", {}, {"study": "sufficiency", "steps": [], "hook_names": []})))
    assert text.count("Not computed") == len(SECTIONS) + 1  # and the claims
    assert "does not record what was reduced" in text


def test_missing_measures_are_dashes_and_never_nan(tmp_path: Path, mask_tables: Tables) -> None:
    for table in mask_tables.values():
        for column in table.select_dtypes("float"):
            table[column] = np.nan
    text = words(written(tmp_path, mask_tables))
    assert not re.search(r"\b(nan|NaN|None|inf|NA)\b", text)


def test_flags_may_be_missing(tmp_path: Path, mask_tables: Tables) -> None:
    for name, column in (("trajectories", "claimed"), ("frontier", "operating"), ("dictionaries", "converged")):
        mask_tables[name][column] = pd.array([pd.NA] * len(mask_tables[name]), dtype="boolean")
    mask_tables["evaluation"]["seed"] = mask_tables["evaluation"]["seed"].where(
        ~mask_tables["evaluation"]["mask"].isin(["empty", "full"])
    )
    text = written(tmp_path, mask_tables)
    assert "Claimed are 0 of 48" in paragraph(text, "trajectories", MLP)
    assert "converged" not in words(part(text, "dictionaries")).split(MLP)[0]
    assert "at the study's penalty – of the soft mass" in paragraph(text, "frontier", MLP)


@pytest.mark.parametrize(
    "reduced",
    [
        {"methods": ("svd",)},
        {"sites": ("hook_resid_post",)},
        {"layers": (7,), "steps": [64]},
        {"seeds": (3,)},
        {
            "methods": ("semi_nmf",),
            "sites": ("hook_mlp_out",),
            "layers": (1,),
            "steps": [10],
            "seeds": (5,),
            "n_draws": 1,
        },
    ],
)
def test_a_run_of_one_method_site_layer_or_seed_has_a_page(reduced: dict, tmp_path: Path) -> None:
    small = {"steps": [0, 64], "layers": (0, 1), "methods": ("svd", "nmf"), "n_draws": 2} | reduced
    tables = plausible_mask_tables(**small)
    record = mask_record(small["steps"], small["layers"], small.get("sites", SITES))
    text = own(write_report(write_run(tmp_path / "run", tables, record)))
    absent = {name for name in SECTIONS if "Not computed" in part(text, name)}
    assert absent == ({"stability"} if "seeds" in reduced else set())


def test_hostile_text_anywhere_in_a_run_is_only_text(tmp_path: Path, mask_tables: Tables, page_text: str) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"
    for table in mask_tables.values():
        for column in table.select_dtypes(["object", "string"]).columns:
            table[column] = evil + table[column].astype(str)
    record = RECORD | {"hook_names": [evil], "series": evil, "reduced": {evil: evil}, "config": {"a": [evil]}}
    text = own(write_report(write_run(tmp_path / "evil", mask_tables, record)))
    page = Page(text)
    assert (page.open, page.suspicious) == ([], [])
    assert "<img" not in text
    assert "<script>alert" not in text
    assert page.scripts > 2


def test_names_of_sites_never_leave_the_folder_of_the_figures(tmp_path: Path, mask_tables: Tables) -> None:
    for table in mask_tables.values():
        if "site" in table:
            table["site"] = "../../" + table["site"]
    run = write_run(tmp_path / "run", mask_tables, RECORD)
    written = save_figures(run, tmp_path / "figures" / "here", "html")
    assert {path.parent for path in written} == {tmp_path / "figures" / "here"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["figures", "run"]
    assert len({path.name for path in written}) == len(written) >= 2 * 15


def test_two_sites_with_like_names_keep_both_figures(mask_tables: Tables) -> None:
    for table in mask_tables.values():
        if "site" in table:
            table["site"] = table["site"].map({MLP: "a b", RESID: "a/b"})
    found = built(mask_tables, "answer")
    assert not isinstance(found, str)
    assert len(found.figures) == 2


def test_scores_without_a_reference_are_counted(mask_tables: Tables) -> None:
    evaluation = mask_tables["evaluation"]
    found = built(mask_tables, "answer")
    assert not isinstance(found, str)
    assert "no reference" not in found.sample
    evaluation.loc[(evaluation["step"] == 0) & (evaluation["method"] == "svd"), "lost_fraction"] = np.nan
    found = built(mask_tables, "answer")
    assert not isinstance(found, str)
    assert "24 cells. In 4 of them a score has no reference" in found.sample
    assert "<td class=number>12</td></tr>" in found.more  # rows still count their cells
