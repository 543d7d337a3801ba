"""Clips as the input of a model that reads sound."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairbits.text.sound import Clip, Samples

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import WhisperFeatureExtractor


@dataclass(frozen=True, eq=False)
class Listener:
    """Makes features of clips; the encoder of the model has `positions` for them, whatever the length of a clip."""

    extractor: "WhisperFeatureExtractor"
    positions: int

    @property
    def seconds(self) -> float:
        """The length of the longest clip that the model can read."""
        return float(self.extractor.n_samples / self.extractor.sampling_rate)

    def sound(self, clip: Clip) -> "Sound | None":
        """Returns a clip as the input of the encoder; None if it is too long."""
        samples, room = len(self._samples(clip)), self.extractor.n_samples
        heard = -(-samples * self.positions // room)
        return None if samples > room else Sound(clip, self, self.positions, heard)

    def features(self, clip: Clip) -> "Tensor":
        """Returns the features of a clip, (bins, frames), with silence after its end."""
        rate = int(self.extractor.sampling_rate)
        found: Tensor = self.extractor(self._samples(clip), sampling_rate=rate, return_tensors="pt").input_features[0]
        return found

    def _samples(self, clip: Clip) -> Samples:
        return clip.samples(int(self.extractor.sampling_rate))


@dataclass(frozen=True, eq=False)
class Sound:
    """A clip for an encoder of `positions` positions, of which the first `heard` hold sound and the others silence.

    HiddenStates are made when they are asked for: those of a whole corpus would fill the memory.
    """

    clip: Clip
    listener: Listener
    positions: int
    heard: int

    def features(self) -> "Tensor":
        """Returns the features of the clip, (bins, frames)."""
        return self.listener.features(self.clip)
