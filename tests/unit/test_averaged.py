"""Tests by batch norm's statistics of all domains so far (tested_by=domains)."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import metadr
from metadr.benchmarks import check_recipe
from metadr.rescore import rescore
from metadr.run import advance


def ends(toy: Any, tested_by: str, num_domains: int = 2) -> list[dict[str, torch.Tensor]]:
    """The network's state at the end of each domain."""
    learner, states = toy.learner(tested_by=tested_by), []
    for index, domain in enumerate(toy.domains[:num_domains]):
        learner.begin_domain(domain.train, first=index == 0)
        learner.steps(3)
        learner.end_domain(domain)
        states.append({name: value.clone() for name, value in learner.network.state().items()})
    return states


def test_statistics_are_those_of_the_mixture_of_all_domains(classification: Any) -> None:
    averaged, plain = ends(classification, "domains", 3), ends(classification, "running", 3)
    means = [name for name in plain[0] if name.endswith("running_mean")]
    assert means
    for mean in means:
        var = mean.replace("running_mean", "running_var")
        assert torch.equal(averaged[0][mean], plain[0][mean]) and torch.equal(averaged[0][var], plain[0][var])
        for last in (1, 2):
            # A domain is stood for by two values, a deviation to each side of its mean.
            past = plain[: last + 1]
            values = torch.stack([end[mean] + sign * end[var].sqrt() for end in past for sign in (1, -1)])
            torch.testing.assert_close(averaged[last][mean], values.mean(0))
            torch.testing.assert_close(averaged[last][var], values.var(0, correction=0))


def test_training_does_not_depend_on_them(classification: Any) -> None:
    averaged, plain = (ends(classification, by, len(classification.domains)) for by in ("domains", "running"))
    for ours, theirs in zip(averaged, plain, strict=True):
        weights = [name for name in ours if "running" not in name]
        assert weights
        assert all(torch.equal(ours[name], theirs[name]) for name in weights)


def test_a_stopped_run_goes_on_with_them(registered_toys: Any, tmp_path: Path) -> None:
    recipe = registered_toys["classification"].recipe(overrides=(("steps", 12), ("tested_by", "domains")))
    whole = metadr.run(recipe, out=tmp_path / "whole", device="cpu")
    running = advance(recipe, out=tmp_path / "parts", device="cpu", checkpoint_seconds=0)
    assert any(now is not None and now.stage == 2 for now in running)  # two domains are behind it
    running.close()
    assert metadr.run(recipe, out=tmp_path / "parts", device="cpu").rows == whole.rows
    [found] = rescore([whole.path], device="cpu")  # which checks that the checkpoint scores what the run did
    assert found.rows


def test_what_is_trained_by_statistics_that_stay_is_tested_by_them(registered_toys: Any) -> None:
    for tested_by, refused in (("batch", True), ("running", False), ("domains", False)):
        settings = (("tested_by", tested_by), ("later_norm", "fixed"))
        recipe = registered_toys["classification"].recipe(overrides=settings)
        if refused:
            with pytest.raises(metadr.UserError, match=r"tested by others\. Use tested_by=running"):
                check_recipe(recipe)
        else:
            assert check_recipe(recipe) == recipe


def test_an_oracle_is_not_tested_by_them(registered_toys: Any) -> None:
    recipe = registered_toys["classification"].recipe(overrides=(("tested_by", "domains"),))
    for access in ("so_far", "all"):
        with pytest.raises(metadr.UserError, match="tested_by=domains would count them again"):
            check_recipe(dataclasses.replace(recipe, access=access))
