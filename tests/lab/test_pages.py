"""The pages about the papers say what was measured, and nothing else."""

from __future__ import annotations

import json

import pytest

from benchmarks import paper_figures, which_overlay
from benchmarks.paper_figures import FIGURES, MEASURED, PAGES
from tidings.lab import EXPERIMENTS

PAPERS = sorted({each.paper for each in EXPERIMENTS})


@pytest.mark.parametrize("paper", PAPERS)
def test_a_page_ends_with_the_verdicts_of_claims_json(paper: str) -> None:
    claims, made = (json.loads(file.read_text(encoding="utf-8")) for file in (FIGURES / "claims.json", MEASURED))
    page = (PAGES / f"{paper}.md").read_text(encoding="utf-8")
    assert page.endswith(paper_figures.section(paper, claims, made)), "python -m benchmarks.paper_figures --text-only"


def test_every_claim_of_every_experiment_is_judged_in_the_stored_results() -> None:
    claims = json.loads((FIGURES / "claims.json").read_text(encoding="utf-8"))
    judged = {(row["paper"], row["figure"], row["claim"]) for row in claims}
    assert judged == {(each.paper, each.figure, claim.says) for each in EXPERIMENTS for claim in each.claims}


def test_the_page_that_compares_overlays_ends_with_what_was_measured() -> None:
    costs, version = which_overlay.stored()
    page = which_overlay.PAGE.read_text(encoding="utf-8")
    assert page.endswith(f"{which_overlay.MARK}\n\n{which_overlay.text(costs, version)}")
    assert version in page.replace("\n", " ")


def test_every_experiment_says_its_conditions() -> None:
    assert [each.name for each in EXPERIMENTS if not each.conditions] == []


@pytest.mark.parametrize(("quick", "minutes"), [(False, 30), (True, 5)])
def test_the_whole_lab_fits_into_its_time_on_two_cores(quick: bool, minutes: int) -> None:
    """By the experiments' own estimates, which were fitted to what they took."""
    chosen = paper_figures.chosen(["all"], None, quick=quick)
    seconds = sum(each.cost(point.parameters) for each in chosen for point in each.points())
    assert seconds / 2 < 60 * minutes


def test_fewer_runs_are_taken_where_an_experiment_would_take_too_long() -> None:
    (whole,), (cut,) = (paper_figures.chosen(["immune-5"], most, quick=False) for most in (None, 20.0))
    assert whole.seeds == 100
    assert paper_figures.SEEDS_MIN <= cut.seeds < 10


def test_a_figure_is_still_the_same_if_the_points_that_are_stored_are() -> None:
    def rows(y: float, *points: str) -> list[dict[str, object]]:
        about = {"paper": "mine", "figure": "1", "seed": 0, "series": "line", "x": 1.0}
        return [{**about, "parameters": point, "y": y} for point in points]

    assert paper_figures.is_still(rows(2.0, "a", "b"), rows(2.0, "a")) is True
    assert paper_figures.is_still(rows(2.0, "a", "b"), rows(2.5, "a")) is False
    assert paper_figures.is_still(rows(2.0, "a"), rows(2.0, "a", "a")) is False
    assert paper_figures.is_still(rows(2.0, "b"), rows(2.0, "a")) is None
