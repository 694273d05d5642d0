"""The plots of a run, which are drawn when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from simulations import adasplit_maps, adasplit_plots, mask_plots, plots
from zerofl_flwr.errors import DataError

PICTURES: Mapping[str, plots.Picture] = {
    "accuracy_by_round": plots.accuracy_by_round,
    "accuracy_by_megabytes": plots.accuracy_by_megabytes,
    "nonzero_ratio": plots.nonzero_ratio,
    "mask_overlap": plots.mask_overlap,
    "zero_positions": mask_plots.zero_positions,
    "overlap_matrix": mask_plots.overlap_matrix,
    "client_accuracy": adasplit_plots.client_accuracy,
    "picks": adasplit_maps.picks,
    "ucb_terms": adasplit_plots.ucb_terms,
    "client_masks": adasplit_maps.client_masks,
    "losses": adasplit_plots.losses,
    "partitions": plots.partitions,
}
"""The pictures of a run by file name, in the order in which they are drawn."""


def write_plots(run: Path) -> list[Path]:
    """Draw every picture for which the run folder has data.

    Parameters
    ----------
    run : Path
        The run folder.

    Returns
    -------
    list[Path]
        The PNG files written, all in ``run / "plots"``.

    Raises
    ------
    DataError
        If `run` is no folder, or pictures cannot be drawn, which it names: the others are there.
    """
    if not run.is_dir():
        raise DataError(f"{run}: there is no such run folder")
    written, failed = [], {}
    for name, draw in PICTURES.items():
        path = run / "plots" / f"{name}.png"
        try:
            if (figure := draw(run)) is None:
                continue
            path.parent.mkdir(exist_ok=True)
            figure.savefig(path)
        except Exception as error:  # whatever it is, it must not cost the other pictures
            failed[name] = error
        else:
            written.append(path)
    if failed:
        reasons = "; ".join(f"{name}: {error}" for name, error in failed.items())
        raise DataError(f"not all pictures could be drawn: {reasons}") from next(
            iter(failed.values())
        )
    return written
