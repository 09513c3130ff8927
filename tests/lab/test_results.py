"""Results, figures and verdicts: what a run leaves behind, drawn and judged from the stored table alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.lab.small import experiment
from tidings.lab import EXPERIMENTS, Claim, Experiment, Finding, Verdict, report
from tidings.lab.fork import in_a_copy
from tidings.lab.results import DRAFT, MeanWithMargin, Results, read, spread, table_of, write, written_whole


def a_table_of(chosen: Experiment) -> list[dict[str, object]]:
    return [
        {
            "paper": chosen.paper,
            "figure": chosen.figure,
            "seed": point.seed,
            "parameters": point.parameters,
            **row._asdict(),
        }
        for point in chosen.points()
        for row in chosen.measure(point.parameters, point.seed)
    ]


@pytest.fixture
def chosen() -> Experiment:
    return experiment("immune-5", node_count="20,30", seeds="2")


@pytest.fixture
def stored(chosen: Experiment, tmp_path: Path) -> Path:
    path = tmp_path / "results.parquet"
    write([table_of(a_table_of(chosen))], path)
    return path


def test_results_have_the_promised_columns_and_a_row_per_run(chosen: Experiment, stored: Path) -> None:
    table = read(stored)
    assert table.column_names == ["paper", "figure", "series", "x", "y", "seed", "parameters"]
    assert table.num_rows == len(chosen.points())
    assert json.loads(table["parameters"][0].as_py())["m0"] == 20


def test_results_are_the_same_file_whichever_run_finished_first(chosen: Experiment, stored: Path) -> None:
    rows = a_table_of(chosen)
    other = stored.with_name("other.parquet")
    write([table_of([row]) for row in reversed(rows)], other)
    assert other.read_bytes() == stored.read_bytes()


def test_figures_and_claims_come_from_the_stored_table_alone(chosen: Experiment, stored: Path) -> None:
    made = report([chosen], stored, stored.parent)
    assert [path.relative_to(stored.parent).as_posix() for path in made.figures] == [
        "figures/immune/5.png",
        "figures/immune/5.svg",
    ]
    assert made.figures[0].read_bytes().startswith(b"\x89PNG")
    drawn = made.figures[1].read_text("utf-8")
    for words in (chosen.title, chosen.x.label, chosen.y.label, "guarded, core_tree", "published"):
        assert words in drawn
    claims = json.loads(made.claims.read_text("utf-8"))
    assert claims == made.judgements
    assert {"paper", "claim", "expected", "conditions", "measured", "verdict", "why"} <= set(claims[0])
    assert {claim["verdict"] for claim in claims} <= {"holds", "goal met", "differs", "goal missed"}
    assert any("at 100 was not measured" in missing for missing in made.not_judged)


def test_the_same_results_give_the_same_figure_to_the_last_byte(chosen: Experiment, stored: Path) -> None:
    one, other = (report([chosen], stored, stored.parent / name) for name in ("one", "other"))
    assert [path.read_bytes() for path in one.figures] == [path.read_bytes() for path in other.figures]


def test_a_file_that_fails_half_way_is_not_there_and_what_was_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "claims.json"
    path.write_text("old")
    with pytest.raises(RuntimeError), written_whole(path) as draft:  # noqa: PT012
        draft.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert not list(tmp_path.glob(f".*{DRAFT}"))


def test_a_mean_comes_with_its_interval() -> None:
    assert spread([3.0]) == MeanWithMargin(3.0, 0.0)
    mean, margin = spread([1.0, 2.0, 3.0, 4.0])
    assert mean == 2.5
    assert margin == pytest.approx(2.054, abs=0.001)  # t(0.975, 3) · s / √4, from a table.


def test_questions_about_one_line_do_not_mix_with_another() -> None:
    results = Results((("a", 1.0, 10.0), ("a", 1.0, 20.0), ("a", 2.0, 5.0), ("b", 1.0, 7.0)))
    assert results.series() == ["a", "b"]
    assert (results.xs("a"), results.ys("a", 1.0), results.mean("a", 1.0)) == ([1.0, 2.0], [10.0, 20.0], 15.0)


def test_what_is_tried_out_on_a_copy_changes_nothing_here() -> None:
    kept = {"seen": [1]}
    assert in_a_copy(lambda: kept["seen"].append(2) or kept["seen"]) == [1, 2]  # type: ignore[func-returns-value]
    assert kept == {"seen": [1]}


def test_what_goes_wrong_in_a_copy_is_told_here() -> None:
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        in_a_copy(lambda: 1 / 0)


@pytest.mark.parametrize("verdict", [Verdict.HOLDS, Verdict.BETTER])
def test_a_target_of_our_own_is_met_or_missed_and_never_better_than_a_paper(verdict: Verdict) -> None:
    found = Finding("1", verdict, "")
    assert Claim("beyond the paper: less", "1", lambda _: found).find(Results(())).verdict is Verdict.GOAL_MET
    assert Claim("less", "1", lambda _: found).find(Results(())).verdict is verdict
    missed = found._replace(verdict=Verdict.DIFFERS)
    assert Claim("beyond the paper: less", "1", lambda _: missed).find(Results(())).verdict is Verdict.GOAL_MISSED
    assert Claim("less", "1", lambda _: missed).find(Results(())).verdict is Verdict.DIFFERS


def test_every_experiment_with_claims_of_a_paper_says_its_conditions() -> None:
    assert [each.name for each in EXPERIMENTS if each.paper != "secure" and not each.conditions] == []
