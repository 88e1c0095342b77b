"""Random changes of images, inside the program of a step."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, ClassVar

from pydantic import Field

from nitro_cli.experiment import Part
from nitro_cli.text import Catalogue

__all__ = ["AUGMENTS", "Augment", "Crop", "Flip", "Shift", "register_augment"]

AUGMENTS: Catalogue[type[Augment]] = Catalogue("augment", "nitro.augments")
"""The augmentations by (id, version): nitro's own, those of `register_augment`, and those of the entry points
`nitro.augments`."""

register_augment = AUGMENTS.register
"""`@register_augment(id, version=1)`: a class decorator that makes an augmentation known as `{ kind = id }`."""


class Augment(Part):
    """A random change of one image: called as `augment(key, image)`, traced, it returns an image of the same shape.

    It is called for every row of a batch of training with a key of its own, before `normalize`.
    """

    catalogue: ClassVar[Catalogue[Any] | None] = AUGMENTS

    least_side: ClassVar[int] = 1
    """The smallest side that an image may have."""

    @property
    def needed_side(self) -> int:
        """The smallest side of an image that it can work on."""
        return self.least_side

    @abstractmethod
    def __call__(self, key: Any, image: Any) -> Any:
        """The image changed.

        Args:
            key: a JAX random key.
            image: f32[H, W, C], bytes as 0..1.
        """


class _OfPixels(Augment):
    """An augmentation by a number of pixels."""

    n: Annotated[int, Field(ge=1)]
    """How many pixels at most."""

    def __init__(self, n: int | None = None, /, **values: Any) -> None:
        given: dict[str, Any] = {} if n is None else {"n": n}
        super().__init__(**given, **values)

    @property
    def needed_side(self) -> int:
        """One pixel more than it moves or cuts."""
        return self.n + 1


@register_augment("flip")
class Flip(Augment):
    """Left and right exchanged, for every second image."""

    def __call__(self, key: Any, image: Any) -> Any:
        """The image or its mirror image; arguments as of `Augment`."""
        import jax
        import jax.numpy as jnp

        return jnp.where(jax.random.bernoulli(key), image[:, ::-1], image)


@register_augment("shift")
class Shift(_OfPixels):
    """Moved by up to `n` pixels along each axis, uniformly; what comes in is 0."""

    def __call__(self, key: Any, image: Any) -> Any:
        """The image moved; arguments as of `Augment`."""
        import jax
        import jax.numpy as jnp

        padded = jnp.pad(image, ((self.n, self.n), (self.n, self.n), (0, 0)))
        row, column = jax.random.randint(key, (2,), 0, 2 * self.n + 1)
        return jax.lax.dynamic_slice(padded, (row, column, 0), image.shape)


@register_augment("crop")
class Crop(_OfPixels):
    """A window smaller by `n` pixels along each axis, at a place drawn uniformly, enlarged linearly to the whole."""

    def __call__(self, key: Any, image: Any) -> Any:
        """The window enlarged; arguments as of `Augment`."""
        import jax

        height, width, channels = image.shape
        row, column = jax.random.randint(key, (2,), 0, self.n + 1)
        window = jax.lax.dynamic_slice(image, (row, column, 0), (height - self.n, width - self.n, channels))
        return jax.image.resize(window, image.shape, "linear")
