"""Where a model is cut: what the run setting ``cut`` means for each model."""

from __future__ import annotations

from simulations.models import BUILT_IN
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.naming import did_you_mean, unknown_name

CUT_POINTS: dict[str, tuple[str, ...]] = {
    "resnet18": ("layer1", "layer2", "layer3", "layer4"),
    "femnist_cnn": ("pool1", "pool2", "relu3"),
    "lenet": ("block1", "block2", "block3", "block4"),
    "digits_cnn": ("relu1", "pool1", "relu3"),
}
"""The built-in models' cut points: the last child that stays with the client, smallest first."""


def cut_children(model_name: str, cut: str) -> int | str:
    """Translate the run setting ``cut`` to what `adasplit_flwr.split.split_sequential` takes.

    A built-in model is cut at one of its `CUT_POINTS`, given by its name, or by its place: lenet's
    cuts "1" to "4" are client sizes .2, .4, .6 and .8 of the AdaSplit paper, arXiv 2112.01637. A
    model of the user's own is cut after so many children, or after the child of that name; whether
    it has them is for ``split_sequential`` to see.

    Parameters
    ----------
    model_name : str
        A built-in model, or ``package.module:function``, as for `simulations.models.build_model`.
    cut : str
        ``"1"``, ``"2"``, ..., or a name. Digits are always a number, although a sequence names its
        children ``"0"``, ``"1"``, ... if nobody else does.

    Returns
    -------
    int or str
        The number of children that stay with the client, or the last one's name; always the name
        for a built-in model.

    Raises
    ------
    SettingsError
        If the model is unknown, or the cut is empty, out of range, or unknown.
    """
    if type(cut) is not str or not cut:
        raise SettingsError(f"cut is {cut!r}; it must be a number from 1 or the name of a child")
    number = int(cut) if cut.isascii() and cut.isdecimal() else None
    if model_name in CUT_POINTS:
        return _cut_point(model_name, cut, number)
    if ":" not in model_name:
        raise SettingsError(
            f"{unknown_name('model', model_name, BUILT_IN)}; a model of your own is written "
            "package.module:function"
        )
    if number == 0:
        raise SettingsError(f"cut is {cut!r}; at least one child must stay with the client")
    return cut if number is None else number


def _cut_point(model_name: str, cut: str, number: int | None) -> str:
    points = CUT_POINTS[model_name]
    listed = ", ".join(points)
    if number is None:
        if cut not in points:
            raise SettingsError(
                f"{model_name} has no cut point {cut!r}{did_you_mean(cut, points)} "
                f"(known, smallest client first: {listed})"
            )
        return cut
    if not 1 <= number <= len(points):
        raise SettingsError(
            f"cut is {cut}, {model_name} has the cut points 1 to {len(points)}: {listed}"
        )
    return points[number - 1]
