from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from simulations import audio
from simulations.audio import audio_images, clip_images, fit_clip, read_clip
from tests.simulations.parquet_folders import wav
from zerofl_flwr.errors import DataError

pytest.importorskip("librosa")
pytest.importorskip("soundfile")

RATE = 8000


def tone(frequency: float, seconds: float = 1.0, rate: int = RATE) -> NDArray[np.float64]:
    time = np.arange(round(seconds * rate)) / rate
    return 0.5 * np.sin(2 * np.pi * frequency * time)


def slaney_mel(frequency: float) -> float:
    """Slaney's mel scale, written down afresh: linear to 1 kHz, logarithmic above."""
    if frequency < 1000:
        return frequency * 3 / 200
    return 15 + 27 * math.log(frequency / 1000) / math.log(6.4)


@pytest.mark.parametrize("frequency", [200.0, 700.0, 1500.0, 3000.0])
def test_tone_lights_up_its_mel_band(frequency: float) -> None:
    image = clip_images(tone(frequency).astype(np.float32)[np.newaxis], RATE)[0, 0]
    # 32 triangular bands have their peaks at 1/33, 2/33, ... of the highest mel.
    expected = slaney_mel(frequency) / slaney_mel(RATE / 2) * 33 - 1
    assert abs(int(image[:, 16].argmax()) - expected) <= 1


def test_images_have_the_promised_shape_and_are_finite_for_silence() -> None:
    clips = np.zeros((3, RATE), dtype=np.float32)
    for features in ("log-mel", "mfcc"):
        images = clip_images(clips, RATE, features)
        assert images.shape == (3, 1, 32, 32)
        assert images.dtype == np.float32
        assert np.isfinite(images).all()
    # The floor of 1e-8 is -80 dB.
    np.testing.assert_allclose(clip_images(clips, RATE), -80.0)


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050, 44100])
def test_every_usual_rate_gives_32_frames(rate: int) -> None:
    clips = tone(440.0, rate=rate).astype(np.float32)[np.newaxis]
    assert clip_images(clips, rate).shape == (1, 1, 32, 32)


def test_mfcc_is_the_cosine_transform_of_the_log_mel_bands() -> None:
    from scipy.fft import dct

    rng = np.random.default_rng(0)
    clips = rng.normal(scale=0.1, size=(2, RATE)).astype(np.float32)
    mfcc = clip_images(clips, RATE, "mfcc")[:, 0]
    import librosa

    power = librosa.feature.melspectrogram(y=clips, sr=RATE, n_fft=500, hop_length=250, n_mels=64)[
        ..., :32
    ]
    log_mel = 10 * np.log10(np.maximum(power, 1e-8))
    np.testing.assert_allclose(
        mfcc, dct(log_mel, axis=1, norm="ortho")[:, :32], rtol=1e-4, atol=1e-2
    )


def test_an_image_does_not_depend_on_its_neighbours() -> None:
    quiet = (0.001 * tone(500)).astype(np.float32)
    loud = tone(2000).astype(np.float32)
    alone = clip_images(quiet[np.newaxis], RATE)
    np.testing.assert_allclose(
        clip_images(np.stack([quiet, loud]), RATE)[0], alone[0], rtol=1e-5, atol=1e-4
    )


def test_short_clips_are_padded_and_long_ones_cut() -> None:
    assert fit_clip(np.ones(3, np.float32), 5, 5).tolist() == [1, 1, 1, 0, 0]
    assert fit_clip(np.arange(9, dtype=np.float32), 5, 5).tolist() == [0, 1, 2, 3, 4]
    assert fit_clip(np.zeros(0, np.float32), 16000, 5).tolist() == [0] * 5


def test_clip_of_another_rate_is_resampled() -> None:
    fast = tone(300.0, rate=16000).astype(np.float32)
    np.testing.assert_allclose(
        fit_clip(fast, 16000, RATE)[100:-100], tone(300.0)[100:-100], atol=2e-3
    )


def test_wav_is_decoded_and_channels_are_averaged(tmp_path: Path) -> None:
    stereo = np.stack([np.full(10, 0.5), np.full(10, -0.25)], axis=1)
    wave, rate = read_clip({"bytes": wav(stereo, RATE), "path": "a.wav"}, 0)
    assert rate == RATE
    assert wave.dtype == np.float32
    np.testing.assert_allclose(wave, np.full(10, 0.125), atol=1e-4)
    (tmp_path / "a.wav").write_bytes(wav(tone(100.0), RATE))
    wave, _ = read_clip({"bytes": None, "path": str(tmp_path / "a.wav")}, 0)
    np.testing.assert_allclose(wave, tone(100.0), atol=1e-4)


def test_chunks_keep_the_order_and_take_the_first_rate() -> None:
    cells = [
        wav(tone(300.0), RATE),
        wav(tone(2500.0, 0.3), RATE),
        wav(tone(300.0, rate=16000), 16000),
    ]
    chunks = list(audio_images(cells, "log-mel", chunk=2))
    assert [chunk.shape for chunk in chunks] == [(2, 1, 32, 32), (1, 1, 32, 32)]
    low, high, resampled = (int(image[0, :, 4].argmax()) for image in np.concatenate(chunks))
    assert low == resampled
    assert high > low


def test_bad_recordings_are_refused() -> None:
    with pytest.raises(DataError, match="row 7: the recording cannot be decoded"):
        read_clip(b"no recording", 7)
    with pytest.raises(DataError, match="row 7: there is no recording"):
        read_clip({"bytes": None, "path": None}, 7)
    with pytest.raises(DataError, match="row 7: there is no recording"):
        read_clip(None, 7)
    with pytest.raises(DataError, match="sampling rate of 100 Hz is too low"):
        clip_images(np.zeros((1, 100), np.float32), 100)


def test_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(DataError, match=r"pip install 'lean-flwr\[audio\]'"):
        audio.require_audio()
