"""What setup asks of retention: checkpoints that are there when they are wanted."""

import pytest

from nitro_cli.checkpoints import check_averaged, check_retention
from nitro_cli.errors import ConfigError, NitroWarning
from nitro_cli.experiment import Average, Best, Checkpointer, Epochs, Every, Last


def test_a_rule_that_keeps_the_best_alone_is_refused_where_nothing_is_scored() -> None:
    with pytest.raises(ConfigError, match="keeps only the best, and there is no `val` split"):
        check_retention(Checkpointer(keep=(Best(3), Best(1))), scored=False)
    check_retention(Checkpointer(keep=(Best(3), Last(1))), scored=False)


def test_a_rule_without_a_last_says_that_the_end_is_not_kept() -> None:
    with pytest.warns(NitroWarning, match=r"keeps no last\(n\)"):
        check_retention(Checkpointer(keep=Every(2)), scored=True)


@pytest.mark.parametrize(
    ("checkpointer", "average", "scored", "why", "fix"),
    [
        (Checkpointer(), Average(Best(2)), False, "no `val` split", "average the last ones"),
        (None, Average(Last(2)), True, "checkpointer is None", 'keep = ["last(2)"]'),
        (object(), Average(Last(2)), True, "object gives its best and its latest only", "restore_best=True"),
        (Checkpointer(keep=Last(1)), Average(Last(3)), True, "keep = [last(1)]", "keep = ['last(1)', 'last(3)']"),
        (Checkpointer(keep=Last(1)), Average(Epochs(9)), True, "of 5 epochs", "average epochs that the run has"),
    ],
)  # fmt: skip
def test_an_average_of_what_will_not_be_there_is_refused_with_what_would_keep_it(
    checkpointer, average, scored, why, fix
) -> None:
    with pytest.raises(ConfigError, match="asks for checkpoints that will not be there") as refused:
        check_averaged(checkpointer, average, 5, metric="acc", mode="max", scored=scored)
    assert why in (refused.value.why or "")
    assert fix in (refused.value.fix or "")


def test_an_average_of_what_is_kept_is_not_refused() -> None:
    rule = Checkpointer(keep=(Best(3), Last(2)))
    for average in (Average(Best(2)), Average(Last(2))):
        check_averaged(rule, average, 5, metric="acc", mode="max", scored=True)
