"""Sums of parts, and their keys: in any order the same, with any change another, and what is no sum."""

import dataclasses
import itertools

import pytest

from metadr.core import Recipe
from metadr.errors import UserError
from metadr.parts import EWC, GEM, L2, Randomize, Replay
from metadr.store import key_of


def test_sum_commutes(registered_toys):
    toy = registered_toys["classification"]
    for parts in itertools.permutations([Replay(), Randomize(), EWC()]):
        recipe = toy.recipe(*parts)
        assert recipe == toy.recipe(Replay(), Randomize(), EWC())
        assert recipe.method_name == "dr+er+ewc"
        assert key_of(recipe, 0) == key_of(toy.recipe(EWC(), Randomize(), Replay()), 0)


def test_key_changes_with_anything_that_changes_the_run(registered_toys):
    toy = registered_toys["classification"]
    recipe = toy.recipe(Replay(), Randomize())
    others = [
        toy.recipe(Replay()),
        toy.recipe(Replay(), Randomize(per="batch")),
        toy.recipe(Replay(), Randomize(transforms="psi2")),
        toy.recipe(Replay(replay_batch=3), Randomize()),
        toy.recipe(Replay(), Randomize(), memory=5),
        toy.recipe(Replay(), Randomize(), access="all"),
        *(
            toy.recipe(Replay(), Randomize(), overrides=(change,))
            for change in (("lr", 0.5), ("steps", 9), ("batch_norm", "none"), ("limit", 5), ("scaling", "imagenet"))
        ),
        dataclasses.replace(recipe, memory_choice="first"),
        dataclasses.replace(recipe, order=recipe.order[::-1]),
        dataclasses.replace(recipe, order=recipe.order[:2]),
        dataclasses.replace(recipe, benchmark=registered_toys["segmentation"].benchmark.name),
    ]
    keys = [key_of(recipe, 0), key_of(recipe, 1), *(key_of(other, 0) for other in others)]
    assert len(set(keys)) == len(keys)
    assert key_of(recipe, 0) == key_of(dataclasses.replace(recipe), 0)
    stated = dataclasses.replace(recipe, overrides=(("steps", toy.benchmark.training.steps),))
    assert key_of(stated, 0) == key_of(recipe, 0)


def test_key_changes_with_the_revision_of_a_part(registered_toys, monkeypatch):
    recipe = registered_toys["classification"].recipe(Replay(), Randomize())
    before = key_of(recipe, 0)
    monkeypatch.setattr(Randomize, "revision", Randomize.revision + 1)
    assert key_of(recipe, 0) != before


@pytest.mark.parametrize(
    ("parts", "memory", "sentence"),
    [
        ((Replay(), Replay(replay_batch=3)), 4, "Part 'er' is twice in the method. Each part may be named once."),
        ((GEM(),), 0, "Part 'gem' needs a memory, but memory_per_domain is 0. Give it 1 or more (paper: 100)."),
        ((L2(),), 3, "memory_per_domain is 3, but no part of method 'l2' uses a memory."),
    ],
)
def test_sums_that_make_no_sense_are_refused(parts, memory, sentence):
    with pytest.raises(UserError) as error:
        Recipe("toy-shapes", ("red",), parts, memory_per_domain=memory)
    assert sentence in str(error.value)
