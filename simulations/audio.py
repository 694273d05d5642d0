"""Recordings as 32x32 one-channel images: log-mel spectra or MFCCs over one second."""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import resample_poly

from zerofl_flwr.errors import DataError

SIDE = 32
"""Height (mel bands or coefficients) and width (frames) of the images."""

_MFCC_MELS = 64
_POWER_FLOOR = 1e-8  # keeps silence finite; 80 dB below full scale


def require_audio() -> tuple[Any, Any]:
    """Import librosa and soundfile.

    Returns
    -------
    tuple of modules
        ``(librosa, soundfile)``.

    Raises
    ------
    DataError
        If one is not installed; the message names the extra that installs them.
    """
    try:
        return importlib.import_module("librosa"), importlib.import_module("soundfile")
    except (ImportError, OSError) as error:
        raise DataError(
            f"audio data needs librosa and soundfile ({error}); "
            "install them with: pip install 'lean-flwr[audio]'"
        ) from error


def read_clip(cell: Mapping[str, Any] | bytes | None, row: int) -> tuple[NDArray[np.float32], int]:
    """Decode one recording.

    Parameters
    ----------
    cell : mapping with ``bytes`` or ``path``, or bytes
        An encoded file, such as wav or flac.
    row : int
        Number of the row, for messages.

    Returns
    -------
    tuple of (float32 array (samples,), int)
        The mean of the channels in [-1, 1], and the sampling rate in Hz.

    Raises
    ------
    DataError
        If there is none, or it cannot be decoded.
    """
    _, soundfile = require_audio()
    encoded = cell.get("bytes") if isinstance(cell, Mapping) else cell
    path = cell.get("path") if isinstance(cell, Mapping) else None
    source = path if encoded is None else io.BytesIO(encoded)
    if source is None:
        raise DataError(f"row {row}: there is no recording")
    try:
        wave, rate = soundfile.read(source, dtype="float32", always_2d=True)
    except (RuntimeError, TypeError, OSError) as error:
        raise DataError(f"row {row}: the recording cannot be decoded ({error})") from error
    return wave.mean(axis=1, dtype=np.float32), int(rate)


def fit_clip(wave: NDArray[np.float32], rate: int, target_rate: int) -> NDArray[np.float32]:
    """Bring a recording to one second at a given sampling rate.

    Parameters
    ----------
    wave : float32 array (samples,)
        The recording.
    rate, target_rate : int
        Its sampling rate and the wanted one, in Hz.

    Returns
    -------
    float32 array (target_rate,)
        Resampled where the rates differ, then cut, or padded with zeros at the end.
    """
    if rate != target_rate and wave.size:
        ratio = Fraction(target_rate, rate)
        wave = resample_poly(wave, ratio.numerator, ratio.denominator).astype(np.float32)
    fitted = np.zeros(target_rate, dtype=np.float32)
    length = min(target_rate, wave.size)
    fitted[:length] = wave[:length]
    return fitted


def clip_images(
    clips: NDArray[np.float32], rate: int, features: str = "log-mel"
) -> NDArray[np.float32]:
    """Turn one-second recordings into images.

    Windows overlap by half and there are 32 of them, so a frame covers a sixteenth of a second.

    Parameters
    ----------
    clips : float32 array (N, rate)
        Recordings of one second.
    rate : int
        Sampling rate in Hz, at least 1000.
    features : {"log-mel", "mfcc"}
        32 log mel bands in dB, or 32 cepstral coefficients of 64 log mel bands (the ZeroFL
        paper's 32x32 MFCC).

    Returns
    -------
    float32 array (N, 1, 32, 32)
        Bands or coefficients from low to high down the rows, time along the columns.

    Raises
    ------
    DataError
        If librosa is missing or the sampling rate is too low.
    """
    librosa, _ = require_audio()
    if rate < 1000:
        raise DataError(f"a sampling rate of {rate} Hz is too low for {SIDE} mel bands")
    hop = rate // SIDE
    power = librosa.feature.melspectrogram(
        y=clips,
        sr=rate,
        n_fft=2 * hop,
        hop_length=hop,
        n_mels=_MFCC_MELS if features == "mfcc" else SIDE,
    )[..., :SIDE]
    # No floor relative to the loudest clip: it would make an image depend on its neighbours.
    images = librosa.power_to_db(power, amin=_POWER_FLOOR, top_db=None)
    if features == "mfcc":
        images = librosa.feature.mfcc(S=images, n_mfcc=SIDE)
    return np.asarray(images, dtype=np.float32)[:, np.newaxis]


def audio_images(
    cells: Iterable[Mapping[str, Any] | bytes | None], features: str, *, chunk: int = 256
) -> Iterator[NDArray[np.float32]]:
    """Decode recordings and yield their images in chunks.

    The first recording's sampling rate becomes everybody's.

    Parameters
    ----------
    cells : iterable
        As for `read_clip`.
    features : {"log-mel", "mfcc"}
        As for `clip_images`.
    chunk : int
        Recordings a chunk.

    Yields
    ------
    float32 array (n, 1, 32, 32)
        ``n`` is `chunk`, less for the last.

    Raises
    ------
    DataError
        As `read_clip` and `clip_images`.
    """
    target_rate: int | None = None
    waiting: list[NDArray[np.float32]] = []
    for row, cell in enumerate(cells):
        wave, rate = read_clip(cell, row)
        target_rate = rate if target_rate is None else target_rate
        waiting.append(fit_clip(wave, rate, target_rate))
        if len(waiting) == chunk:
            yield clip_images(np.stack(waiting), target_rate, features)
            waiting = []
    if waiting and target_rate is not None:
        yield clip_images(np.stack(waiting), target_rate, features)
