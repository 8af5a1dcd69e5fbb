"""Who tells the story: the demo says what happens, a narrator puts it on a screen."""

from abc import ABC, abstractmethod

from sonde.spikes.decoding import DecodedSample


class Narrator(ABC):
    """Hears every act as it begins, and what was found in it."""

    @abstractmethod
    def act(self, title: str) -> None:
        """An act begins."""

    @abstractmethod
    def tell(self, text: str) -> None:
        """Something was found or done."""

    @abstractmethod
    def show(self, sample: DecodedSample, *, calm_loss: float | None) -> None:
        """The text of a sample; tokens well above `calm_loss` are what is odd about it."""
