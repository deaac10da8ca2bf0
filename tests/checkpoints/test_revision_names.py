from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tl_lifehist.checkpoints.revisions import (
    match_template,
    nearest_steps,
    parse_revision,
    require_steps,
    select_steps,
    sort_revisions,
)
from tl_lifehist.errors import InputError

numbers = st.integers(0, 10**7)
maybe = st.none() | numbers


def spell(stage: int | None, ingredient: int | None, step: int, tokens: int | None) -> str:
    before = f"stage{stage}-" if stage is not None else ""
    before += f"ingredient{ingredient}-" if ingredient is not None else ""
    return f"{before}step{step}" + (f"-tokens{tokens}B" if tokens is not None else "")


@given(maybe, maybe, numbers, maybe)
def test_a_spelled_name_is_read_back(stage, ingredient, step, tokens):
    name = spell(stage, ingredient, step, tokens)
    found = parse_revision(name)
    assert found is not None
    assert (found.name, found.stage, found.ingredient) == (name, stage, ingredient)
    assert (found.step, found.tokens_billion) == (step, tokens)


@given(numbers, numbers, st.sampled_from(["checkpoint-{}", "ckpt-{}", "ep{1}-ba{0}-rank0.pt"]))
def test_the_other_spellings_give_their_step(step, epoch, form):
    found = parse_revision(form.format(step, epoch))
    assert found is not None
    assert (found.step, found.stage, found.ingredient, found.tokens_billion) == (step, None, None, None)


@pytest.mark.parametrize(
    "name",
    ["main", "step", "step--1", ".step8.partial", "step8.partial", "Step8", "step8\n", "xstep8", "step8-tokens4"]
    + ["step٣", "ep0-ba10-rank1.pt", "ep0-ba10-rank0xpt", "checkpoint-", "step1e3", "step" + "9" * 5000],
)
def test_what_is_no_checkpoint_is_left_out(name):
    assert parse_revision(name) is None
    assert sort_revisions([name]) == []


@given(st.text(max_size=40))
def test_any_text_is_either_a_checkpoint_or_not(text):
    found = parse_revision(text)
    assert found is None or found.name == text


@given(st.lists(st.tuples(maybe, maybe, numbers, maybe), max_size=20), st.randoms())
def test_the_order_is_by_stage_then_step_whatever_the_input_order(parts, random):
    names = [spell(*p) for p in parts]
    shuffled = random.sample(names, len(names))
    ordered = sort_revisions(shuffled)
    keys = [(r.stage or 0, r.step) for r in ordered]
    assert keys == sorted(keys)
    assert sorted(r.name for r in ordered) == sorted(names)
    assert [r.name for r in ordered] == [r.name for r in sort_revisions(names)]


def test_published_layouts_select_their_pretraining_steps():
    pythia = ["main", *(f"step{s}" for s in (143000, 0, 512, 1000))]
    assert list(select_steps(pythia).items()) == [
        (0, "step0"),
        (512, "step512"),
        (1000, "step1000"),
        (143000, "step143000"),
    ]
    olmo = ["main", "step738020-tokens3094B", "step1000-tokens4B"]
    assert select_steps(olmo) == {1000: "step1000-tokens4B", 738020: "step738020-tokens3094B"}
    olmo2 = [
        "stage2-ingredient1-step1000-tokens3B",
        "stage2-ingredient2-step1000-tokens3B",
        "stage1-step1000-tokens3B",
    ]
    assert select_steps(olmo2) == {1000: "stage1-step1000-tokens3B"}
    assert select_steps(olmo2, stage=2, ingredient=2) == {1000: "stage2-ingredient2-step1000-tokens3B"}
    with pytest.raises(InputError, match="two checkpoints of step 1000.*ingredient="):
        select_steps(olmo2, stage=2)
    with pytest.raises(InputError, match=r"no checkpoint of stage 3.*stage 2 ingredient 1"):
        select_steps(olmo2, stage=3)


def test_no_checkpoint_at_all_is_an_error_that_says_what_is_looked_for():
    with pytest.raises(InputError, match=r"The branches of x/y hold no checkpoint: names such as step1000"):
        select_steps(["main", "v1.0"], where="The branches of x/y")


def test_a_template_finds_its_folders():
    files = ["README.md", "a/ckpt-20/pt/config.json", "a/ckpt-3/pt/weights", "a/ckpt-3/pt/x/y", "a/ckpt-9/tf/c"]
    assert match_template("a/ckpt-{step}/pt/", files) == {3: "a/ckpt-3/pt", 20: "a/ckpt-20/pt"}
    assert match_template("b.{step}", ["bx7/config.json", "b.7/config.json"]) == {7: "b.7"}
    for bad in ("ckpt", "{step}/{step}", "{other}/{step}"):
        with pytest.raises(InputError, match=r"must hold \{step\} exactly once"):
            match_template(bad, files)


@given(numbers, st.sets(numbers, min_size=1, max_size=30), st.integers(1, 5))
def test_nearest_steps_are_known_and_nothing_else_is_nearer(step, known, n):
    near = nearest_steps(step, known, n)
    assert near == sorted(near)
    assert len(near) == min(n, len(known))
    assert set(near) <= known
    farthest = max(abs(other - step) for other in near)
    assert all(abs(other - step) >= farthest for other in known - set(near))


def test_a_step_that_is_not_there_is_answered_with_the_nearest():
    require_steps([0, 1000], [0, 1000], "x/y")
    with pytest.raises(InputError, match=r"x/y has no checkpoint of step 900; the nearest steps are: 0, 1000, 2000\."):
        require_steps([900], [0, 1000, 2000, 143000], "x/y")
