"""Settings: what a field takes, what it refuses and in which words, and how it reads text."""

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from metadr.core import Recipe, Training
from metadr.errors import UserError, unknown
from metadr.parts import EWC, GEM, L2, PARTS, MetaDR, Randomize, Replay
from metadr.settings import check, describe, names, parse, setting
from metadr.training import STATISTICS_ORDER, statistics_passes


@dataclass(frozen=True)
class Sample:
    """One field of every kind."""

    share: float = setting(0.5, "a share", low=0)
    rate: float = setting(1.0, "a rate", above=0)
    portion: float = setting(0.5, "a portion", above=0, below=1)
    count: int = setting(3, "a count", low=1)
    limit: int | None = setting(None, "a limit", low=1)
    exact: bool = setting(False, "a fact")
    kind: Literal["plain", "fancy"] = setting("plain", "a kind")
    label: str = setting("x", "a label")
    order: tuple[str, ...] = setting((), "an order")
    pair: tuple[int, float] = setting((1, 2.0), "a pair")
    extra: Any = None

    def __post_init__(self) -> None:
        check(self)


@pytest.mark.parametrize(
    ("field", "given", "kept"),
    [
        ("share", 0.25, 0.25),
        ("share", 0, 0.0),
        ("share", 2, 2.0),
        ("rate", 1e-300, 1e-300),
        ("portion", 0.999, 0.999),
        ("count", 1, 1),
        ("limit", None, None),
        ("limit", 7, 7),
        ("exact", True, True),
        ("kind", "fancy", "fancy"),
        ("order", ["b", "a"], ("b", "a")),
        ("order", (), ()),
        ("pair", [4, 5], (4, 5.0)),
        ("extra", object, object),
    ],
)
def test_what_fits_is_kept_in_its_own_type(field, given, kept):
    value = getattr(Sample(**{field: given}), field)
    assert value == kept
    assert type(value) is type(kept)


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("share", -0.1),
        ("share", float("nan")),
        ("share", float("inf")),
        ("share", "0.5"),
        ("share", True),
        ("share", None),
        ("rate", 0),
        ("rate", -1.0),
        ("portion", 0),
        ("portion", 1),
        ("count", 0),
        ("count", 1.0),
        ("count", True),
        ("count", "3"),
        ("limit", 0),
        ("limit", 1.5),
        ("exact", 1),
        ("exact", "true"),
        ("kind", "plane"),
        ("kind", None),
        ("label", 3),
        ("order", "ab"),
        ("order", (1, 2)),
        ("pair", (1,)),
        ("pair", (1.5, 2.0)),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(field, given):
    with pytest.raises(UserError) as error:
        Sample(**{field: given})
    expected = f"The '{field}' parameter of Sample must be {describe(Sample, field)}. Got {given!r} instead."
    assert str(error.value) == expected


def test_numbers_beyond_a_float_are_no_floats():
    with pytest.raises(UserError, match="The 'share' parameter of Sample must be a number >= 0"):
        Sample(share=10**400)
    assert Sample(count=10**400).count == 10**400


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("share", "a number >= 0"),
        ("rate", "a number > 0"),
        ("portion", "a number > 0 and < 1"),
        ("count", "a whole number >= 1"),
        ("limit", "a whole number >= 1, or none"),
        ("exact", "true or false"),
        ("kind", "one of 'plain', 'fancy'"),
        ("label", "a name"),
        ("order", "names separated by commas"),
    ],
)
def test_description_says_what_is_allowed(field, words):
    assert describe(Sample, field) == words


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("share", "0.25", 0.25),
        ("share", "1e-3", 1e-3),
        ("share", "2", 2.0),
        ("count", "12", 12),
        ("limit", "12", 12),
        ("limit", "none", None),
        ("limit", "None", None),
        ("limit", "null", None),
        ("exact", "true", True),
        ("exact", "Yes", True),
        ("exact", "1", True),
        ("exact", "false", False),
        ("exact", "no", False),
        ("exact", "0", False),
        ("kind", "fancy", "fancy"),
        ("label", "street", "street"),
        ("order", "a, b,c", ("a", "b", "c")),
    ],
)
def test_text_is_read_by_the_type_of_its_field(field, text, value):
    read = parse(Sample, field, text)
    assert read == value
    assert type(read) is type(value)
    assert getattr(Sample(**{field: read}), field) == value


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("share", "much"),
        ("share", ""),
        ("count", "1.5"),
        ("count", "1e3"),
        ("count", "none"),
        ("limit", "few"),
        ("exact", "maybe"),
        ("kind", "plane"),
    ],
)
def test_text_that_cannot_be_read_is_refused(field, text):
    with pytest.raises(UserError) as error:
        parse(Sample, field, text)
    expected = f"The '{field}' parameter of Sample must be {describe(Sample, field)}. Got {text!r} instead."
    assert str(error.value) == expected


def test_field_that_does_not_exist_is_told_the_closest():
    with pytest.raises(UserError, match=r"No field 'shar' in Sample\. Closest: 'share'\."):
        parse(Sample, "shar", "1")


def test_unknown_name_lists_all_where_none_is_close():
    assert str(unknown("part", "zzz", ["ewc", "dr"])) == "No part 'zzz'. Known: dr, ewc."
    assert str(unknown("part", "x", [])) == "No part 'x'. Known: none."
    assert str(unknown("part", "ewcc", ["ewc"], within=" here", hint="Look.")) == (
        "No part 'ewcc' here. Closest: 'ewc'. Look."
    )


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: EWC(strength=-1.0), "The 'strength' parameter of EWC must be a number >= 0. Got -1.0 instead."),
        (lambda: L2(strength="big"), "The 'strength' parameter of L2 must be a number >= 0. Got 'big' instead."),
        (
            lambda: L2(anchors="first"),
            "The 'anchors' parameter of L2 must be one of 'all', 'last'. Got 'first' instead.",
        ),
        (lambda: GEM(ridge=-1), "The 'ridge' parameter of GEM must be a number >= 0. Got -1 instead."),
        (
            lambda: Replay(replay_batch=0),
            "The 'replay_batch' parameter of Replay must be a whole number >= 1, or none. Got 0 instead.",
        ),
        (
            lambda: MetaDR(meta_domains=1.0),
            "The 'meta_domains' parameter of MetaDR must be a whole number >= 1. Got 1.0 instead.",
        ),
        (
            lambda: Randomize(per="pixel"),
            "The 'per' parameter of Randomize must be one of 'batch', 'image'. Got 'pixel' instead.",
        ),
        (lambda: Training(lr=0), "The 'lr' parameter of Training must be a number > 0. Got 0 instead."),
        (
            lambda: Training(batch_norm="clean+dirty"),
            "The 'batch_norm' parameter of Training must be 'all', 'none', 'first' or a sum of memory, inner, clean, "
            "recall, adapt. Got 'clean+dirty' instead.",
        ),
    ],
)
def test_parts_and_training_refuse_in_the_same_words(make, sentence):
    with pytest.raises(UserError) as error:
        make()
    assert str(error.value) == sentence


def test_unknown_transformation_set_is_refused_where_it_is_named():
    with pytest.raises(UserError, match=r"No transformation set 'psi9'\. Closest: 'psi"):
        Randomize(transforms="psi9")


def test_whole_numbers_for_floats_are_the_same_setting():
    assert EWC(strength=1) == EWC(strength=1.0)
    assert EWC(strength=1).content() == EWC(strength=1.0).content()
    assert repr(EWC(strength=1).content()) == repr(EWC(strength=1.0).content())
    assert repr(Training(lr=1)) == repr(Training(lr=1.0))


@pytest.mark.parametrize("owner", [*PARTS.values(), Training], ids=lambda owner: owner.__name__)
def test_every_setting_is_documented_and_survives_being_written_as_text(owner):
    default = owner()
    for field in dataclasses.fields(owner):
        assert field.metadata["doc"], field.name
        assert describe(owner, field.name)
        value = getattr(default, field.name)
        assert parse(owner, field.name, str(value)) == value, field.name
    assert names(owner) == tuple(field.name for field in dataclasses.fields(owner))


def test_lists_given_to_a_recipe_become_tuples():
    recipe = Recipe("toy", ["a", "b"], [L2()], overrides=[("steps", 3), ("lr", 0.1)])
    assert recipe == Recipe("toy", ("a", "b"), (L2(),), overrides=(("lr", 0.1), ("steps", 3)))
    assert hash(recipe) == hash(Recipe("toy", ("a", "b"), (L2(),), overrides=(("lr", 0.1), ("steps", 3))))


@pytest.mark.parametrize("order", [(), ("a", "a")])
def test_order_names_each_domain_once(order):
    with pytest.raises(UserError, match="The order of domains must name each domain once"):
        Recipe("toy", order)


@pytest.mark.parametrize(
    ("policy", "passes"),
    [
        ("all", ("memory", "inner", "clean", "recall", "adapt")),
        ("none", ()),
        ("clean", ("clean",)),
        ("adapt+inner", ("inner", "adapt")),
        ("recall+clean+inner+adapt", ("inner", "clean", "recall", "adapt")),
    ],
)
def test_policy_names_passes_in_any_order(policy, passes):
    assert statistics_passes(policy) == passes


def test_policy_has_one_spelling():
    assert Training(batch_norm="adapt+clean+adapt") == Training(batch_norm="clean+adapt")
    assert Training(batch_norm="recall+clean+inner+memory+adapt").batch_norm == "all"
    for passes in itertools.chain(*(itertools.combinations(STATISTICS_ORDER, size) for size in range(1, 5))):
        for spelling in itertools.permutations(passes):
            policy = Training(batch_norm="+".join(spelling)).batch_norm
            assert statistics_passes(policy) == passes
            assert Training(batch_norm=policy).batch_norm == policy
